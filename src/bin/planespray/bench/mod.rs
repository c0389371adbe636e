//! `planespray bench`: what the fabric does on this machine or between two, every byte checked.

mod api;
mod check;
mod child;
mod client;
mod link;
mod options;
mod outage;
mod parse;
mod pattern;
mod placement;
mod report;
mod samples;
mod server;
mod talk;
mod tcp;
mod watch;

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use api::{Fabric, FabricConfig, JobKey, Wait};
use child::Server;
use link::{Link, Pool, Stop};
pub(crate) use options::Args;
use options::{Extent, FabricOptions, Resolved, Role};
use outage::{Observer, Outages};
use placement::Placement;
use report::{Facts, Output, Record};
use samples::Sample;
use signal_hook::consts::{SIGINT, SIGTERM};
use talk::{Job, Talk, Transport};

use crate::say::say;

/// No wait is longer without anything happening.
const STALL: Duration = Duration::from_secs(10);
/// How long setting up a connection may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a server waits before it looks whether it should end.
const ACCEPT: Duration = Duration::from_millis(200);
/// Before the clock starts: memory is touched and windows open.
const WARM_UP: Duration = Duration::from_millis(50);
/// Exit code after Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;

/// A run whose options make sense.
pub(crate) struct Bench(Resolved);

/// Runs it and says how it went.
pub(crate) fn run(bench: Bench) -> ExitCode {
    let resolved = bench.0;
    let stop = Stop::default();
    let result = match &resolved.role {
        Role::Both { server_planes } => both(&resolved, server_planes, &stop),
        Role::Client { server } => connect(&resolved, *server, key(&resolved.fabric), &stop),
        Role::Server => listen(&resolved, key(&resolved.fabric), &stop),
        Role::Child => listen(&resolved, child::inherit(), &stop),
    };
    match result {
        Ok(_) if stop.asked() => ExitCode::from(INTERRUPTED),
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            say(format_args!("bytes or messages were not as they should be; see wrong, lost and dup"));
            ExitCode::FAILURE
        }
        Err(what) => {
            match resolved.role {
                _ if what.is_empty() => {}
                Role::Child => say(format_args!("server: {what}")),
                _ => say(what),
            }
            if stop.asked() { ExitCode::from(INTERRUPTED) } else { ExitCode::FAILURE }
        }
    }
}

/// From here on Ctrl-C asks for an end in order. Before, it ends the process at once: nothing is there to save.
fn arm(stop: &Stop) {
    for signal in [SIGINT, SIGTERM] {
        // The second one ends at once.
        let armed = signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED.into(), stop.0.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.0.clone()));
        if let Err(e) = armed {
            say(format_args!("signals cannot be caught ({e}); Ctrl-C will give no partial results"));
        }
    }
}

/// The job key that both ends of two machines were given.
fn key(options: &FabricOptions) -> Result<Option<JobKey>, String> {
    if options.insecure {
        return Ok(None);
    }
    let key = match &options.key_file {
        Some(path) => Some(JobKey::from_file(path).map_err(|e| e.to_string())?),
        None => JobKey::from_env().map_err(|e| e.to_string())?,
    };
    match key {
        Some(key) => Ok(Some(key)),
        None => Err("no job key; give both ends the same with --key-file or PLANESPRAY_JOB_KEY, or --insecure".into()),
    }
}

fn open(options: &FabricOptions, key: Option<JobKey>) -> Result<Fabric, String> {
    let defaults = FabricConfig::default();
    let config = FabricConfig {
        engine: options.engine,
        device: options.device.clone(),
        planes: options.planes.clone(),
        probe: options.probe,
        udp_port: options.udp_port,
        mtu: options.mtu,
        lanes_per_plane: options.lanes,
        insecure: key.is_none(),
        key,
        dscp: options.dscp.map_or(defaults.dscp, |d| [d; 3]),
        receive_buffer: options.receive_buffer,
        pcap: options.pcap.clone(),
        fault: options.fault,
        plane_rate: options.plane_rate,
        wait: if options.busy { Wait::Busy } else { Wait::Adaptive },
        grant_always: options.grant_always,
        ..defaults
    };
    Fabric::open(&config).map_err(|e| e.to_string())
}

/// Both ends here.
fn both(resolved: &Resolved, server_planes: &[IpAddr], stop: &Stop) -> Result<bool, String> {
    let key = if resolved.fabric.insecure {
        None
    } else if resolved.fabric.key_file.is_some() {
        key(&resolved.fabric)?
    } else {
        Some(JobKey::generate().map_err(|e| e.to_string())?)
    };
    let server = Server::start(resolved, server_planes, key.as_ref())?;
    let result = connect(resolved, server.addr, Ok(key), stop)?;
    server.join()?;
    Ok(result)
}

/// The server's end: one client, then the end.
fn listen(resolved: &Resolved, key: Result<Option<JobKey>, String>, stop: &Stop) -> Result<bool, String> {
    let child = resolved.role == Role::Child;
    let options = &resolved.fabric;
    let fabric = open(options, key?)?;
    let planes: Vec<IpAddr> = fabric.ports().iter().map(|p| p.addr).collect();
    let first = *planes.first().ok_or("no planes")?;
    let listener = fabric.listen(SocketAddr::new(first, options.bootstrap_port)).map_err(|e| e.to_string())?;
    let addr = listener.local_addr();
    if child {
        writeln!(std::io::stdout(), "{addr}").map_err(|e| format!("the parent process is gone: {e}"))?;
    } else {
        let planes: Vec<String> = planes.iter().map(ToString::to_string).collect();
        let engine = fabric.engine();
        eprintln!("planespray: waiting for a client at {addr}; planes {}; engine {engine}", planes.join(", "));
        if first.is_loopback() {
            say(format_args!("these are loopback addresses; for other machines say --bind ADDR,.. or -d IFACE,.."));
        }
    }
    arm(stop);
    while !stop.asked() {
        let connection = match listener.accept(ACCEPT) {
            Ok(connection) => connection,
            Err(api::Error::TimedOut { .. }) => continue,
            Err(e) => {
                say(format_args!("a client was refused: {e}"));
                continue;
            }
        };
        let link = Link { fabric: &fabric, connection: &connection, busy: options.busy, stop };
        let served = server::serve(&link, addr.ip());
        if served.is_err() && child && connection.is_peer_closed() {
            // The parent went first, and says why.
            return Err(String::new());
        }
        served?;
        // Everything said is delivered; only the receive for a next word is left.
        connection.close(STALL);
        fabric.flush_capture().map_err(|e| e.to_string())?;
        return Ok(true);
    }
    Ok(true)
}

/// The client's end.
fn connect(
    resolved: &Resolved,
    server: SocketAddr,
    key: Result<Option<JobKey>, String>,
    stop: &Stop,
) -> Result<bool, String> {
    let mut output = Output::open(&resolved.measure)?;
    let fabric = open(&resolved.fabric, key?)?;
    let connection = fabric.connect(server, CONNECT).map_err(|e| e.to_string())?;
    arm(stop);
    let link = Link { fabric: &fabric, connection: &connection, busy: resolved.fabric.busy, stop };
    let mut talk = Talk::new(&fabric, &connection)?;
    output.head(resolved, &fabric).map_err(|e| format!("the table cannot be written: {e}"))?;
    let mut run = Run { resolved, link, server, pool: Pool::default(), next: 0, server_ports: Vec::new() };
    let (mut clean, mut last) = (true, None);
    for &size in &resolved.measure.sizes {
        if stop.asked() {
            break;
        }
        let record = run.size(&mut talk, &mut output, size)?;
        output.line(&record).map_err(|e| format!("the result cannot be written: {e}"))?;
        clean &= !record.is_faulty();
        last = Some(record);
    }
    if let Some(record) = &last {
        output.tail(record).map_err(|e| format!("the table cannot be written: {e}"))?;
    }
    client::goodbye(&mut talk)?;
    let server_ports = run.server_ports;
    drop(talk);
    // Everything said is delivered; only the receive for a next word is left.
    connection.close(STALL);
    fabric.flush_capture().map_err(|e| e.to_string())?;
    decode_as(&resolved.fabric, &fabric, &server_ports);
    Ok(clean)
}

/// Says how to read a capture in which no side has RoCE's port.
fn decode_as(options: &FabricOptions, fabric: &Fabric, server_ports: &[u16]) {
    const ROCE: u16 = 4791;
    let Some(path) = &options.pcap else { return };
    let ours: Vec<u16> = fabric.stats().planes.iter().map(|p| p.udp_port).collect();
    let mut ports: Vec<u16> = ours.iter().chain(server_ports).copied().filter(|&p| p != ROCE).collect();
    ports.sort_unstable();
    ports.dedup();
    // Packets go to the port of their receiver, so one side alone is not enough.
    let options: String = ports.iter().map(|p| format!(" -d udp.port=={p},infiniband")).collect();
    say(format_args!("capture: tshark -r {}{options}", path.display()));
}

/// A client's run.
struct Run<'a> {
    resolved: &'a Resolved,
    link: Link<'a>,
    server: SocketAddr,
    pool: Pool,
    /// Number of the next message.
    next: u64,
    server_ports: Vec<u16>,
}

impl Run<'_> {
    /// Everything about one size.
    fn size(&mut self, talk: &mut Talk<'_>, output: &mut Output, size: u64) -> Result<Record, String> {
        let measure = &self.resolved.measure;
        // Planes are cut in one go, and void or not it happens once.
        let once = !measure.acts.is_empty();
        let plan = if once { vec![measure.extent] } else { samples::plan(measure.extent, measure.compare_tcp) };
        let mut retries = if once { 0 } else { samples::retries(measure.extent, plan.len()) };
        let mut outages = Outages::default();
        let before = self.link.fabric.stats();
        let (mut all, mut voids) = (Vec::new(), 0);
        let (mut faults, mut retransmits, mut injected) = ([0; 3], 0, [0; 3]);
        let mut count = |flow: &client::Flow| {
            for (sum, more) in faults.iter_mut().zip([flow.wrong, flow.lost, flow.dup]) {
                *sum += more;
            }
            retransmits += flow.retransmits;
            injected = flow.injected;
        };
        if let Extent::Duration(_) = measure.extent {
            let warm = self.sample(talk, size, Extent::Duration(WARM_UP), Transport::Ours)?;
            count(&warm);
        }
        let local = self.server.ip().is_loopback() || matches!(self.resolved.role, Role::Both { .. });
        let mut cpus = None;
        let mut at = if local { placement::probe(cpus) } else { None };
        let mut todo = plan.iter().copied().enumerate();
        let mut current = todo.next();
        while let Some((i, extent)) = current {
            if self.link.stop.asked() {
                break;
            }
            output.progress(&format!("{size} bytes: sample {} of {}", i + 1, plan.len()));
            let observer = once.then(|| Observer::start(self.link.fabric.clone(), &measure.acts));
            let ours = self.sample(talk, size, extent, Transport::Ours);
            if let Some(observer) = observer {
                outages = observer.finish(ours.as_ref().ok().and_then(|f| f.gaps.as_ref()))?;
            }
            let ours = ours?;
            cpus = placement::this_cpu().zip(ours.server_cpu);
            count(&ours);
            let mut tcp = Vec::new();
            if measure.compare_tcp && !self.link.stop.asked() {
                let kinds: &[u8] = if measure.lat { &[1] } else { &[1, 4] };
                for &sockets in kinds {
                    tcp.push(self.sample(talk, size, extent, Transport::Tcp { sockets })?);
                }
            }
            let after = if local { placement::probe(cpus) } else { None };
            let sample = Sample { ours, tcp, placement: Placement::of(at, after) };
            at = after;
            if sample.is_void() {
                voids += 1;
                // Kept all the same: it counts if there is no other.
                all.push(sample);
                if retries > 0 {
                    retries -= 1;
                    continue;
                }
            } else {
                all.push(sample);
            }
            current = todo.next();
        }
        let after = self.link.fabric.stats();
        Ok(Record::new(&Facts {
            resolved: self.resolved,
            engine: self.link.fabric.engine(),
            size,
            samples: &all,
            voids,
            faults,
            retransmits,
            injected,
            outages,
            before: &before,
            after: &after,
        }))
    }

    fn sample(
        &mut self,
        talk: &mut Talk<'_>,
        size: u64,
        extent: Extent,
        transport: Transport,
    ) -> Result<client::Flow, String> {
        let measure = &self.resolved.measure;
        let slots = measure.slots(size);
        let job = Job {
            transport,
            op: measure.op,
            lat: measure.lat,
            size,
            slots,
            extent,
            class: measure.class.index() as u8,
            verify: measure.verify,
            flip: measure.flip && transport == Transport::Ours,
            first: self.next,
        };
        let flow = client::sample(&self.link, talk, &mut self.pool, &job, self.server.ip())?;
        self.next += flow.messages.max(u64::from(slots)) + 1;
        self.server_ports.clone_from(&flow.server_ports);
        Ok(flow)
    }
}
