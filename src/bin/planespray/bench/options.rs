//! The options of `bench`, in perftest's names, and what they mean together.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use planespray::class::{Class, Dscp};

use super::api::{Engine, Fault, UdpPort};
use super::outage::Act;
use super::parse;

/// Largest message: 2^23 bytes is the end of `-a`, 1 GiB the limit of `-s`.
pub(super) const MAX_SIZE: u64 = 1 << 30;
/// Bytes in flight by default, so that the slots stay in cache.
const DEFAULT_BYTES_IN_FLIGHT: u64 = 8 << 20;
/// Bytes that the slots of one end may take at most.
const MAX_SLOT_BYTES: u64 = 2 << 30;
/// perftest's port.
const BOOTSTRAP_PORT: u16 = 18515;

/// Options as given.
#[derive(clap::Args, Clone, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Server to connect to; without it both ends run here
    host: Option<String>,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Wait for one client
    #[arg(long)]
    server: bool,
    /// What to measure
    #[arg(long, value_enum)]
    op: Option<OpArg>,
    /// Half round trip instead of bandwidth
    #[arg(long)]
    lat: bool,
    /// Bytes per message: 65536, 64K, 1M [default: 64K, with --lat 8]
    #[arg(short = 's', long = "size", value_parser = parse::size)]
    size: Option<u64>,
    /// Every power of two from 2 bytes to 8 MiB
    #[arg(short = 'a', long = "all")]
    all: bool,
    /// Messages per size
    #[arg(short = 'n', long = "iters", value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,
    /// Seconds per size [default: 2, with -a 0.5]
    #[arg(short = 'D', long = "duration", value_parser = parse::seconds)]
    duration: Option<Duration>,
    /// Messages outstanding [default: 128, fewer if large]
    #[arg(short = 't', long = "tx-depth", value_parser = clap::value_parser!(u32).range(1..=16384))]
    depth: Option<u32>,
    /// Lanes (queue pairs) per plane [default: 4]
    #[arg(short = 'q', long = "qp", value_parser = clap::value_parser!(u16).range(1..=64))]
    lanes: Option<u16>,
    /// Number of planes [default: 2, or the number of addresses]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=8))]
    planes: Option<u16>,
    /// RDMA devices as NCCL names them, [^][=]hca[:port[:rail[:plane]]],.. or network interfaces, one per plane
    #[arg(short = 'd', long = "device")]
    device: Option<String>,
    /// Local addresses, one per plane; without a host: the client's, then as many for the server
    #[arg(long, value_delimiter = ',')]
    bind: Vec<IpAddr>,
    /// What moves the bytes [default: with -d RDMA devices if they can be used, else embedded]
    #[arg(long, value_enum)]
    engine: Option<EngineArg>,
    /// Use every plane without finding out by probes whether it reaches the peer
    #[arg(long)]
    no_probe: bool,
    /// TCP port of the bootstrap [default: 18515; without a host any]
    #[arg(short = 'p', long = "bootstrap-port")]
    bootstrap_port: Option<u16>,
    /// RoCE MTU in bytes [default: 4096]
    #[arg(short = 'm', long = "mtu")]
    mtu: Option<u32>,
    /// UDP port at which packets arrive; an error if it is in use [default: 4791 if free]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Traffic class byte (DSCP << 2)
    #[arg(long)]
    tclass: Option<u8>,
    /// Class of the messages [default: bulk, with --lat latency]
    #[arg(long, value_enum)]
    class: Option<ClassArg>,
    /// Socket receive buffer in bytes
    #[arg(long, value_parser = parse::size)]
    receive_buffer: Option<u64>,
    /// Gb/s instead of MiB/s in the table
    #[arg(long = "report_gbits")]
    report_gbits: bool,
    /// Results as JSON lines to a file, or to standard output with `-`
    #[arg(long)]
    json: Option<String>,
    /// Capture of all packets of this end
    #[arg(long)]
    pcap: Option<PathBuf>,
    /// Check every byte [default]
    #[arg(long, overrides_with = "no_verify")]
    verify: bool,
    /// Do not check bytes
    #[arg(long, overrides_with = "verify")]
    no_verify: bool,
    /// Measure a peer in the same run
    #[arg(long, value_enum)]
    compare: Option<CompareArg>,
    /// Faults in received packets: loss=1%,dup=1%,reorder=1%,seed=N
    #[arg(long, value_parser = parse::fault)]
    fault: Option<Fault>,
    /// Send no faster than this on each plane: 1gbit, 500mbit
    #[arg(long, value_name = "RATE", value_parser = parse::rate)]
    plane_rate: Option<u64>,
    /// Lose a plane's packets silently, both ways, from then on: 0@2s
    #[arg(long, value_name = "PLANE@TIME", value_delimiter = ',', value_parser = parse::cut)]
    cut: Vec<Act>,
    /// The same, and report the port's carrier as lost
    #[arg(long, value_name = "PLANE@TIME", value_delimiter = ',', value_parser = parse::cut_event)]
    cut_event: Vec<Act>,
    /// Let its packets through again
    #[arg(long, value_name = "PLANE@TIME", value_delimiter = ',', value_parser = parse::heal)]
    heal: Vec<Act>,
    /// Damage something that the check must find
    #[arg(long, value_enum)]
    inject: Option<InjectArg>,
    /// File with the job key
    #[arg(long)]
    key_file: Option<PathBuf>,
    /// Go on without a job key: no authentication
    #[arg(long)]
    insecure: bool,
    /// Poll without rest [default]
    #[arg(long)]
    busy: bool,
    /// Sleep when nothing happens
    #[arg(long)]
    wait: bool,
    /// The server process of a run without host.
    #[arg(long, hide = true)]
    child: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum OpArg {
    Write,
    Send,
    Read,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum ClassArg {
    Latency,
    Steady,
    Bulk,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum EngineArg {
    /// Hardware, else rdma_rxe, else embedded
    Auto,
    /// Hardware or rdma_rxe, or an error
    Verbs,
    /// RoCEv2 over UDP sockets
    Embedded,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum CompareArg {
    Tcp,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum InjectArg {
    Flip,
}

/// What moves the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Operation {
    /// Messages written into slots that the receiver granted.
    Write,
    /// Messages, small ones eagerly.
    Send,
    /// One-sided reads of an exposed window.
    Read,
}

impl Operation {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Operation::Write => "write",
            Operation::Send => "send",
            Operation::Read => "read",
        }
    }
}

/// How long one measurement is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub(super) enum Extent {
    Iterations(u64),
    Duration(Duration),
}

/// How this process reaches the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// Both ends, as two processes.
    Both {
        server_planes: Vec<IpAddr>,
    },
    Client {
        server: SocketAddr,
    },
    Server,
    /// The server process of `Both`.
    Child,
}

/// Options that the fabric of either end takes.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct FabricOptions {
    /// Addresses; none where devices are to be used.
    pub(super) planes: Vec<IpAddr>,
    pub(super) device: Option<String>,
    pub(super) engine: Engine,
    pub(super) probe: bool,
    pub(super) bootstrap_port: u16,
    pub(super) lanes: u16,
    pub(super) mtu: u32,
    pub(super) udp_port: UdpPort,
    pub(super) dscp: Option<Dscp>,
    pub(super) receive_buffer: Option<usize>,
    pub(super) pcap: Option<PathBuf>,
    pub(super) fault: Option<Fault>,
    pub(super) plane_rate: Option<u64>,
    pub(super) key_file: Option<PathBuf>,
    pub(super) insecure: bool,
    pub(super) busy: bool,
    /// Receives are granted as soon as they are posted, whatever their size.
    pub(super) grant_always: bool,
}

/// What a client measures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Measure {
    pub(super) op: Operation,
    pub(super) lat: bool,
    pub(super) sizes: Vec<u64>,
    pub(super) extent: Extent,
    pub(super) depth: Option<u32>,
    pub(super) class: Class,
    pub(super) verify: bool,
    pub(super) flip: bool,
    pub(super) compare_tcp: bool,
    pub(super) report_gbits: bool,
    pub(super) json: Option<String>,
    /// What is done to planes meanwhile.
    pub(super) acts: Vec<Act>,
}

impl Measure {
    /// Messages outstanding at `size`, and so slots at each end.
    pub(super) fn slots(&self, size: u64) -> u32 {
        if self.lat {
            // Receives wait ahead, so that posting the next one is not part of the round.
            return u32::try_from((DEFAULT_BYTES_IN_FLIGHT / size.max(1)).clamp(4, 64)).unwrap_or(64);
        }
        let wanted = self
            .depth
            .unwrap_or_else(|| u32::try_from((DEFAULT_BYTES_IN_FLIGHT / size.max(1)).clamp(4, 128)).unwrap_or(128));
        match self.extent {
            Extent::Iterations(n) => wanted.min(u32::try_from(n).unwrap_or(u32::MAX)),
            Extent::Duration(_) => wanted,
        }
    }
}

/// Options that make sense together.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Resolved {
    pub(super) role: Role,
    pub(super) fabric: FabricOptions,
    pub(super) measure: Measure,
}

impl Args {
    /// What the options mean together, or one line that says why they cannot.
    pub(crate) fn resolve(self) -> Result<super::Bench, String> {
        self.resolved().map(super::Bench)
    }

    fn resolved(self) -> Result<Resolved, String> {
        if self.server && self.host.is_some() {
            return Err("--server and a host contradict each other: a server waits, a client connects".into());
        }
        if self.server {
            self.refuse_client_options()?;
        }
        for (both, a, b) in [
            (self.size.is_some() && self.all, "-s", "-a"),
            (self.iterations.is_some() && self.duration.is_some(), "-n", "-D"),
            (self.busy && self.wait, "--busy", "--wait"),
            (self.key_file.is_some() && self.insecure, "--key-file", "--insecure"),
            (!self.bind.is_empty() && self.device.is_some(), "--bind", "-d"),
            (!self.bind.is_empty() && self.engine == Some(EngineArg::Verbs), "--bind", "--engine verbs"),
            (self.no_verify && self.inject.is_some(), "--no-verify", "--inject"),
            (self.lat && self.depth.is_some(), "--lat", "-t"),
        ] {
            if both {
                return Err(format!("{a} and {b} contradict each other; give one of them"));
            }
        }
        if self.pcap.as_deref().is_some_and(|p| p.as_os_str() == "-") {
            return Err("--pcap - : a capture needs a file".into());
        }
        let measure = self.measure()?;
        let role = self.role()?;
        let (planes, server_planes) = self.addresses(&role)?;
        let role = match role {
            Role::Both { .. } => Role::Both { server_planes },
            other => other,
        };
        let mtu = self.mtu.unwrap_or(4096);
        if ![256, 512, 1024, 2048, 4096].contains(&mtu) {
            return Err(format!("-m {mtu} is no RoCE MTU; it is 256, 512, 1024, 2048 or 4096"));
        }
        let dscp = match self.tclass {
            Some(t) if t & 3 != 0 => {
                return Err(format!("--tclass {t} sets ECN bits; use a multiple of 4 (DSCP << 2), such as {}", t & !3));
            }
            Some(t) => Dscp::new(t >> 2),
            None => None,
        };
        let engine = match self.engine {
            None | Some(EngineArg::Auto) => Engine::Auto,
            Some(EngineArg::Verbs) => Engine::Verbs,
            Some(EngineArg::Embedded) => Engine::Embedded,
        };
        let fabric = FabricOptions {
            planes,
            device: self.device.clone(),
            engine,
            probe: !self.no_probe,
            bootstrap_port: self.bootstrap_port.unwrap_or(match role {
                Role::Both { .. } | Role::Child => 0,
                Role::Client { .. } | Role::Server => BOOTSTRAP_PORT,
            }),
            lanes: self.lanes.unwrap_or(4),
            mtu,
            udp_port: self.port.map_or(UdpPort::Auto, UdpPort::Fixed),
            dscp,
            receive_buffer: self.receive_buffer.map(|b| b as usize),
            pcap: self.pcap,
            fault: self.fault,
            plane_rate: self.plane_rate,
            key_file: self.key_file,
            insecure: self.insecure,
            busy: !self.wait,
            grant_always: measure.op == Operation::Write,
        };
        Ok(Resolved { role, fabric, measure })
    }

    fn refuse_client_options(&self) -> Result<(), String> {
        for (given, name) in [
            (self.op.is_some() && !self.child, "--op"),
            (self.lat, "--lat"),
            (self.size.is_some(), "-s"),
            (self.all, "-a"),
            (self.iterations.is_some(), "-n"),
            (self.duration.is_some(), "-D"),
            (self.depth.is_some(), "-t"),
            (self.class.is_some(), "--class"),
            (self.json.is_some(), "--json"),
            (self.compare.is_some(), "--compare"),
            (self.inject.is_some(), "--inject"),
            (self.no_verify || self.verify, "--verify and --no-verify"),
            (self.report_gbits, "--report_gbits"),
            (!self.cut.is_empty(), "--cut"),
            (!self.cut_event.is_empty(), "--cut-event"),
            (!self.heal.is_empty(), "--heal"),
        ] {
            if given {
                return Err(format!("{name} is the client's to say; give it there and not to --server"));
            }
        }
        Ok(())
    }

    fn measure(&self) -> Result<Measure, String> {
        let sizes: Vec<u64> = if self.all {
            (1..=23).map(|p| 1 << p).collect()
        } else {
            vec![self.size.unwrap_or(if self.lat { 8 } else { 64 << 10 })]
        };
        for &size in &sizes {
            if size == 0 || size > MAX_SIZE {
                return Err(format!("-s {size} is out of range; a message has 1 byte to {MAX_SIZE} bytes (1G)"));
            }
        }
        let extent = match (self.iterations, self.duration) {
            (Some(n), _) => Extent::Iterations(n),
            (None, Some(d)) => Extent::Duration(d),
            (None, None) => Extent::Duration(Duration::from_millis(if self.all { 500 } else { 2000 })),
        };
        let class = match self.class {
            Some(ClassArg::Latency) => Class::Latency,
            Some(ClassArg::Steady) => Class::Steady,
            Some(ClassArg::Bulk) => Class::Bulk,
            None if self.lat => Class::Latency,
            None => Class::Bulk,
        };
        let op = match self.op {
            Some(OpArg::Send) => Operation::Send,
            Some(OpArg::Read) => Operation::Read,
            Some(OpArg::Write) | None => Operation::Write,
        };
        let measure = Measure {
            op,
            lat: self.lat,
            sizes,
            extent,
            depth: self.depth,
            class,
            verify: !self.no_verify,
            flip: self.inject.is_some(),
            compare_tcp: self.compare.is_some(),
            report_gbits: self.report_gbits,
            json: self.json.clone(),
            acts: [&self.cut[..], &self.cut_event, &self.heal].concat(),
        };
        self.check_acts(&measure)?;
        for &size in &measure.sizes {
            let slots = measure.slots(size);
            if u64::from(slots) * size > MAX_SLOT_BYTES {
                let fits = (MAX_SLOT_BYTES / size).max(1);
                return Err(format!(
                    "{slots} messages of {size} bytes outstanding need more than 2 GiB at each end; use -t {fits} or less"
                ));
            }
        }
        Ok(measure)
    }

    fn check_acts(&self, measure: &Measure) -> Result<(), String> {
        let Some(last) = measure.acts.iter().map(|a| a.at).max() else { return Ok(()) };
        let Extent::Duration(whole) = measure.extent else {
            return Err("--cut and --heal say when; give -D with a duration and not -n".into());
        };
        if measure.sizes.len() > 1 || measure.compare_tcp {
            return Err("--cut and --heal go with one size and without --compare".into());
        }
        if last >= whole {
            return Err(format!(
                "the last --cut or --heal is at {} s, but the measurement ends at {} s; use a longer -D",
                last.as_secs_f64(),
                whole.as_secs_f64()
            ));
        }
        Ok(())
    }

    fn role(&self) -> Result<Role, String> {
        if self.child {
            return Ok(Role::Child);
        }
        if self.server {
            return Ok(Role::Server);
        }
        let Some(host) = &self.host else { return Ok(Role::Both { server_planes: Vec::new() }) };
        let port = self.bootstrap_port.unwrap_or(BOOTSTRAP_PORT);
        if port == 0 {
            return Err("-p 0 names no port to connect to".into());
        }
        let server = (host.as_str(), port)
            .to_socket_addrs()
            .ok()
            .and_then(|mut found| found.next())
            .ok_or_else(|| format!("{host} is neither an address nor a name that resolves; check the spelling"))?;
        Ok(Role::Client { server })
    }

    /// Planes of this end and, if both run here, of the server.
    fn addresses(&self, role: &Role) -> Result<(Vec<IpAddr>, Vec<IpAddr>), String> {
        let both = matches!(role, Role::Both { .. });
        let verbs = self.engine == Some(EngineArg::Verbs);
        if self.device.is_some() || verbs {
            if both {
                return Err(
                    "-d and --engine verbs need a host or --server: a device cannot be both ends; see --bind".into()
                );
            }
            if let Some(text) = &self.device {
                parse::devices(text)?;
            }
            return Ok((Vec::new(), Vec::new()));
        }
        if self.bind.is_empty() {
            let loopback = match role {
                Role::Client { server } => server.ip().is_loopback(),
                _ => true,
            };
            if !loopback {
                return Err(
                    "planes are not known; say with --bind ADDR,.. or -d IFACE,.. which local addresses they are"
                        .into(),
                );
            }
            let n = self.planes.unwrap_or(2) as u8;
            let plane = |i: u8, end: u8| IpAddr::from([127, 0, i, end]);
            let (client, server): (Vec<_>, Vec<_>) = (0..n).map(|i| (plane(i, 1), plane(i, 2))).unzip();
            return Ok(match role {
                Role::Server | Role::Child => (server, Vec::new()),
                Role::Client { .. } => (client, Vec::new()),
                Role::Both { .. } => (client, server),
            });
        }
        for addr in &self.bind {
            parse::is_local(*addr)?;
        }
        for (i, addr) in self.bind.iter().enumerate() {
            if self.bind[..i].contains(addr) {
                return Err(format!("--bind names {addr} twice; each plane and each end needs an address of its own"));
            }
        }
        if !both {
            return Ok((self.counted(self.bind.clone())?, Vec::new()));
        }
        if !self.bind.len().is_multiple_of(2) {
            return Err(format!(
                "--bind has {} addresses; without a host it takes the client's and then as many for the server",
                self.bind.len()
            ));
        }
        let (client, server) = self.bind.split_at(self.bind.len() / 2);
        Ok((self.counted(client.to_vec())?, server.to_vec()))
    }

    fn counted(&self, planes: Vec<IpAddr>) -> Result<Vec<IpAddr>, String> {
        match self.planes {
            Some(n) if usize::from(n) != planes.len() => {
                Err(format!("--planes {n} contradicts {} addresses; leave --planes out", planes.len()))
            }
            _ if planes.len() > 8 => Err(format!("{} planes are too many; at most 8", planes.len())),
            _ => Ok(planes),
        }
    }
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
