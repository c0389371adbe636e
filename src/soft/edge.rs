//! The socket edge as a whole: [`Udp`].

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use super::SoftError;
use super::config::UdpConfig;
use super::counters::{Counters, FaultCounts};
use super::fault::{Fate, Faults};
use super::gate::Gate;
use super::links::Links;
use super::paths::{Paths, Stopped};
use super::ports::{self, Port};
use super::selftest::{self, ProbeResponder};
use super::tap::Tap;
use super::udp::{Arrival, MAX_BURST, MAX_SEGMENTS, PollSet, RECEIVE_LEN};
use crate::embedded::PacketIo;
use crate::lanes::{LaneError, MAX_PORTS, PortId, PortInfo};
use crate::mem::PageBuf;
use crate::roce::{PathId, RxMeta};
use crate::time::Time;
use crate::wire::{Flow, Packet};

/// Shortest packet: a BTH and an ICRC.
const PACKET_MIN: usize = 16;
/// Where one receive call of ours stops.
const RECEIVE_BOUND: usize = 256 << 10;
/// Receive calls of the kernel per port in one of ours.
const RECEIVE_CALLS: usize = 4;
/// The same once several of our calls in a row have found packets.
const RECEIVE_CALLS_QUEUED: usize = 64;
/// One packet shorter than this is likely the only one there: handle it before asking for more.
const BULK: usize = 1024;
/// Flows whose ICRC prefix is kept per port; a power of two.
const FLOWS: usize = 256;
/// How long a sleep may last while fault injection holds packets back.
const HELD_SLEEP: Duration = Duration::from_millis(1);

/// RoCEv2 packets over UDP sockets: see the [module](super).
pub struct Udp {
    ports: Vec<Port>,
    infos: Vec<PortInfo>,
    states: Vec<State>,
    paths: Paths,
    poll: PollSet,
    /// What one receive call of the kernel fills.
    buffer: PageBuf,
    /// The port that is asked first next time.
    first: usize,
    /// Receive calls of ours in a row that found packets.
    streak: u32,
    counters: Counters,
    faults: Option<Faults>,
    gates: Vec<Gate>,
    /// A gate has a rate.
    shaped: bool,
    /// News of the ports' links, where the system gives some.
    links: Option<Links>,
    /// When packets were last asked for.
    now: Time,
    tap: Option<Tap>,
}

/// What belongs to one port beside its socket.
struct State {
    gso: bool,
    flows: Box<[Option<(SocketAddr, Flow)>]>,
    /// The socket's own count of drops, as last reported.
    dropped: u32,
    /// Drops not yet passed on.
    unreported: u32,
    /// The last send error, so that one that lasts is logged once.
    logged: i32,
}

impl State {
    #[cold]
    fn send_failed(&mut self, errno: i32, dest: SocketAddr) -> LaneError {
        if self.logged != errno {
            self.logged = errno;
            let error = SoftError::Call { call: "sendmsg", errno, addr: dest };
            tracing::warn!(%error, "packets are lost; further ones of this kind are counted only");
        }
        LaneError::System { call: "sendmsg", errno }
    }
}

impl Udp {
    /// Opens one receive socket per configured address and tests what the kernel writes into IPv4 identification
    /// fields; where bursts do not get predictable ones, packets are sent one by one.
    ///
    /// # Errors
    /// [`SoftError`]: a configuration out of range, an address that is not local, a port in use, an interface whose
    /// MTU is too small, a self-test that failed both ways, a capture file that cannot be made, or a failed call.
    pub fn open(cfg: &UdpConfig) -> Result<Self, SoftError> {
        ports::check(cfg)?;
        let count = cfg.planes.len();
        let mut opened = Vec::with_capacity(count);
        let mut infos = Vec::with_capacity(count);
        for index in 0..count {
            let (port, info) = ports::open(cfg, index)?;
            opened.push(port);
            infos.push(info);
        }
        let fds: Vec<RawFd> = opened.iter().map(AsRawFd::as_raw_fd).collect();
        let state = || State {
            gso: cfg.gso,
            flows: vec![None; FLOWS].into_boxed_slice(),
            dropped: 0,
            unreported: 0,
            logged: 0,
        };
        let mut udp = Udp {
            poll: PollSet::new(&fds),
            ports: opened,
            infos,
            states: (0..count).map(|_| state()).collect(),
            paths: Paths::new(count, cfg.source_ports),
            buffer: PageBuf::zeroed(RECEIVE_LEN, 0),
            first: 0,
            streak: 0,
            counters: Counters::default(),
            faults: cfg.fault.as_ref().map(Faults::new),
            gates: (0..count).map(|_| Gate::new(cfg.plane_rate)).collect(),
            shaped: cfg.plane_rate.is_some(),
            links: Links::open(cfg.planes.iter().copied()),
            now: Time::ZERO,
            tap: cfg.pcap.as_deref().map(Tap::create).transpose()?,
        };
        for port in 0..count {
            udp.self_test(PortId(port as u8))?;
        }
        Ok(udp)
    }

    /// Tests on the port's own address that IPv4 packets leave with the identifications that their ICRCs are made
    /// for, and turns bursts off if only single packets do. A peer behind a real interface should be asked too:
    /// [`Udp::probe_send`]. Nothing to test on IPv6.
    ///
    /// # Errors
    /// No such port; [`SoftError::WireIds`] or [`SoftError::ProbeLost`] if not even single packets pass; a failed call.
    pub fn self_test(&mut self, port: PortId) -> Result<(), SoftError> {
        let index = usize::from(port.0);
        let local = self.ports.get(index).ok_or(SoftError::Config { what: "no such port" })?;
        if local.addr().is_ipv6() {
            return Ok(());
        }
        let source = self.paths.source(port, local, 0)?;
        let sock = &self.paths.sources()[source as usize].sock;
        if self.states[index].gso {
            match selftest::local(sock, local, true) {
                Ok(()) => return Ok(()),
                Err(e @ SoftError::Call { errno: libc::EMFILE | libc::ENFILE, .. }) => return Err(e),
                Err(e) => {
                    tracing::warn!(port = port.0, error = %e, "bursts fail the wire-ID self-test; sending packet by packet");
                    self.states[index].gso = false;
                }
            }
        }
        selftest::local(sock, local, false)
    }

    /// Opens a socket that reads the identifications of a peer's probes on `port`; tell the peer its address.
    ///
    /// # Errors
    /// No such port, or a failed call.
    pub fn probe_responder(&self, port: PortId) -> Result<ProbeResponder, SoftError> {
        let local = self.ports.get(usize::from(port.0)).ok_or(SoftError::Config { what: "no such port" })?;
        ProbeResponder::open(local)
    }

    /// Sends `count` probes of `len` bytes (UDP payload) from the path's own source port to a responder's address,
    /// as a burst if the port sends bursts. The peer's [`super::ProbeReport::verdict`] tells how it went.
    /// With `len` = MTU + 36 (BTH, RETH, immediate, ICRC) it also tells whether the largest packets get through.
    ///
    /// # Errors
    /// No such path, `count` not in 1..=64, `len` below 256, more than 65,000 bytes in all, or a failed call.
    pub fn probe_send(&mut self, path: PathId, to: SocketAddr, count: usize, len: usize) -> Result<(), SoftError> {
        let (_, source) = self.paths.get(path).ok_or(SoftError::Config { what: "no such path" })?;
        let gso = self.states[usize::from(source.port.0)].gso;
        selftest::send(&source.sock, to, 0, count, len, gso)
    }

    /// The same from the first source port of `port`, before there is a path. The packets begin with `first` and the bytes
    /// after it.
    ///
    /// # Errors
    /// As for [`Udp::probe_send`].
    pub fn probe(
        &mut self,
        port: PortId,
        to: SocketAddr,
        first: u8,
        count: usize,
        len: usize,
    ) -> Result<(), SoftError> {
        let local = self.ports.get(usize::from(port.0)).ok_or(SoftError::Config { what: "no such port" })?;
        let source = self.paths.source(port, local, 0)?;
        let to = super::udp::with_scope(to.ip(), to.port(), local.scope);
        let gso = self.states[usize::from(port.0)].gso;
        selftest::send(&self.paths.sources()[source as usize].sock, to, first, count, len, gso)
    }

    /// Whether `port` sends bursts with one call.
    pub fn gso(&self, port: PortId) -> bool {
        self.states.get(usize::from(port.0)).is_some_and(|s| s.gso)
    }

    /// Turns bursts with one call on or off: off is the fall-back when a peer's report fails.
    pub fn set_gso(&mut self, port: PortId, gso: bool) {
        if let Some(state) = self.states.get_mut(usize::from(port.0)) {
            state.gso = gso;
        }
    }

    /// What was counted since [`Udp::open`].
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Loses every packet that a port sends or receives from now on, and tells nobody; or no longer. False if there is no
    /// such port.
    pub fn set_cut(&mut self, port: PortId, cut: bool) -> bool {
        let gate = self.gates.get_mut(usize::from(port.0));
        gate.map(|g| g.cut = cut).is_some()
    }

    /// Sends what waited for its turn at the rate of its port.
    #[cold]
    fn open_gates(&mut self, now: Time) {
        for port in 0..self.gates.len() {
            while let Some(mut burst) = self.gates[port].leave(now) {
                let taken = self.gates[port].cut
                    || self.send_now(burst.path, burst.tos, &mut burst.bytes, burst.segment).unwrap_or(true);
                if taken {
                    self.gates[port].give(burst);
                } else {
                    self.gates[port].put_back(burst);
                    break;
                }
            }
        }
    }

    /// Faults injected since [`Udp::open`].
    pub fn faults(&self) -> FaultCounts {
        self.faults.as_ref().map(Faults::counts).unwrap_or_default()
    }

    /// The source address and port of a path.
    pub fn source_of(&mut self, path: PathId) -> Option<SocketAddr> {
        self.paths.get(path).map(|(_, source)| source.sock.local())
    }

    /// Sleeps until a packet can be received or `timeout` is over; true if one can. A signal ends it early.
    ///
    /// # Errors
    /// [`SoftError::Call`]
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, SoftError> {
        let held = self.faults.as_ref().is_some_and(|f| f.next_due().is_some());
        let timeout = if held { timeout.min(HELD_SLEEP) } else { timeout };
        let addr = self.ports[0].addr();
        self.poll.wait(timeout).map_err(|errno| SoftError::Call { call: "ppoll", errno, addr })
    }

    /// Writes out what the capture still buffers. Dropping does so too, but cannot report an error.
    ///
    /// # Errors
    /// [`SoftError::Capture`], also for earlier writes that failed.
    pub fn flush_capture(&mut self) -> Result<(), SoftError> {
        self.tap.as_mut().map_or(Ok(()), Tap::flush)
    }

    /// Takes apart one arrival in the buffer. Returns packets delivered.
    fn take(
        &mut self,
        port: usize,
        now: Time,
        arrival: &Arrival,
        sink: &mut impl FnMut(&RxMeta, &Packet<'_>),
    ) -> usize {
        let local = self.ports[port].addr();
        let state = &mut self.states[port];
        if let Some(dropped) = arrival.dropped {
            let new = dropped.wrapping_sub(state.dropped);
            state.dropped = dropped;
            state.unreported = state.unreported.saturating_add(new);
            self.counters.drops += u64::from(new);
        }
        if self.gates[port].cut {
            self.counters.cut += arrival.len.div_ceil(arrival.segment.max(1)) as u64;
            return 0;
        }
        let bytes = &self.buffer[..arrival.len];
        self.counters.gro_batches[Counters::step(arrival.len.div_ceil(arrival.segment))] += 1;
        let flow = flow(&mut state.flows, arrival.from, local);
        let meta = RxMeta { src: arrival.from.ip(), dst: local.ip(), tos: arrival.tos, ttl: arrival.ttl };
        let mut delivered = 0;
        if bytes.is_empty() {
            self.counters.parse_errors += 1;
        }
        for raw in bytes.chunks(arrival.segment) {
            let Ok(packet) = Packet::parse(raw) else {
                self.counters.parse_errors += 1;
                continue;
            };
            let Some(id) = flow.verify_blind(raw) else {
                self.counters.bad_icrc += 1;
                continue;
            };
            self.counters.received_packets += 1;
            self.counters.received_bytes += raw.len() as u64;
            if let Some(tap) = &mut self.tap {
                tap.packet(arrival.from, local, arrival.tos, arrival.ttl, id, raw);
            }
            let Some(faults) = &mut self.faults else {
                sink(&meta, &packet);
                delivered += 1;
                continue;
            };
            let times = match faults.decide(now, &meta, raw) {
                Fate::Deliver => 1,
                Fate::Twice => 2,
                Fate::Drop | Fate::Held => 0,
            };
            for _ in 0..times {
                sink(&meta, &packet);
            }
            delivered += times + release(faults, now, sink);
        }
        delivered
    }

    /// Hands packets to the kernel.
    fn send_now(&mut self, path: PathId, tos: u8, bytes: &mut [u8], segment: usize) -> Result<bool, LaneError> {
        let (path, source) = self.paths.get(path).ok_or(LaneError::Invalid { what: "path" })?;
        let len = bytes.len();
        if !(PACKET_MIN..=MAX_BURST).contains(&segment) || !(PACKET_MIN..=MAX_BURST).contains(&len) {
            return Err(LaneError::Invalid { what: "length of a burst or of its packets" });
        }
        let count = len.div_ceil(segment);
        if count > MAX_SEGMENTS || len - (count - 1) * segment < PACKET_MIN {
            return Err(LaneError::Invalid { what: "packets of a burst" });
        }
        let state = &mut self.states[usize::from(source.port.0)];
        if count == 1 || state.gso {
            for (id, packet) in bytes.chunks_mut(segment).enumerate() {
                path.flow.seal(id as u16, packet);
            }
            // `segment` is at most MAX_BURST, below 2^16.
            match source.sock.send(&path.to, tos, bytes, (count > 1).then_some(segment as u16)) {
                Ok(true) => {
                    self.counters.sent(count, len);
                    if let Some(tap) = &mut self.tap {
                        for (id, packet) in bytes.chunks(segment).enumerate() {
                            tap.packet(source.sock.local(), path.dest, tos, Tap::TTL, id as u16, packet);
                        }
                    }
                    return Ok(true);
                }
                Ok(false) => {
                    self.counters.would_block += 1;
                    return Ok(false);
                }
                // The interface cannot make checksums of segments.
                Err(libc::EIO) if count > 1 => {
                    tracing::warn!(
                        port = source.port.0,
                        "the interface does not take bursts; sending packet by packet"
                    );
                    state.gso = false;
                }
                Err(errno) => {
                    self.counters.send_errors += 1;
                    return Err(state.send_failed(errno, path.dest));
                }
            }
        }
        let Udp { counters, tap, .. } = self;
        let from = source.sock.local();
        let result = one_by_one(&mut path.stopped, &path.flow, bytes, segment, |packet| {
            let sent = source.sock.send(&path.to, tos, packet, None);
            if sent == Ok(true) {
                counters.sent(1, packet.len());
                if let Some(tap) = tap {
                    tap.packet(from, path.dest, tos, Tap::TTL, 0, packet);
                }
            }
            sent
        });
        match result {
            Ok(true) => Ok(true),
            Ok(false) => {
                counters.would_block += 1;
                Ok(false)
            }
            Err(errno) => {
                counters.send_errors += 1;
                Err(state.send_failed(errno, path.dest))
            }
        }
    }
}

impl PacketIo for Udp {
    fn open_path(&mut self, port: PortId, entropy: u16, dest: SocketAddr) -> Result<PathId, LaneError> {
        let local = self.ports.get(usize::from(port.0)).ok_or(LaneError::Invalid { what: "port" })?;
        Ok(self.paths.open(port, local, entropy, dest)?)
    }

    fn close_path(&mut self, path: PathId) {
        for gate in &mut self.gates {
            gate.forget(path);
        }
        self.paths.close(path);
    }

    fn send(&mut self, id: PathId, tos: u8, bytes: &mut [u8], segment: usize) -> Result<bool, LaneError> {
        let (_, source) = self.paths.get(id).ok_or(LaneError::Invalid { what: "path" })?;
        let gate = &mut self.gates[usize::from(source.port.0)];
        if gate.is_closed() {
            self.counters.cut += u64::from(gate.cut);
            gate.enter(self.now, id, tos, bytes, segment);
            return Ok(true);
        }
        self.send_now(id, tos, bytes, segment)
    }

    fn receive(&mut self, now: Time, sink: &mut impl FnMut(&RxMeta, &Packet<'_>)) -> usize {
        self.now = now;
        if let Some(links) = &mut self.links {
            links.look(now);
        }
        if self.shaped {
            self.open_gates(now);
        }
        let mut delivered = 0;
        if let Some(faults) = &mut self.faults {
            delivered += release(faults, now, sink);
        }
        let count = self.ports.len();
        let mut bytes = 0;
        for i in 0..count {
            let port = (self.first + i) % count;
            // A lone packet is handled before the kernel is asked for more; a queue is emptied before it overflows.
            let queued = self.streak >= 2;
            for _ in 0..if queued { RECEIVE_CALLS_QUEUED } else { RECEIVE_CALLS } {
                match self.ports[port].sock.receive(&mut self.buffer) {
                    Ok(None) => break,
                    Ok(Some(arrival)) if !arrival.truncated => {
                        delivered += self.take(port, now, &arrival, sink);
                        bytes += arrival.len;
                        if arrival.len < BULK && !queued || bytes >= RECEIVE_BOUND {
                            break;
                        }
                    }
                    Ok(Some(_)) | Err(_) => {
                        self.counters.receive_errors += 1;
                        break;
                    }
                }
            }
            if bytes >= RECEIVE_BOUND {
                // The ports not reached come first next time.
                self.first = (port + 1) % count;
                break;
            }
        }
        self.streak = if bytes == 0 { 0 } else { self.streak.saturating_add(1) };
        delivered
    }

    fn ports(&self) -> &[PortInfo] {
        &self.infos
    }

    fn drops(&mut self) -> Option<(PortId, u32)> {
        let port = self.states.iter().position(|s| s.unreported > 0)?;
        Some((PortId(port as u8), std::mem::take(&mut self.states[port].unreported)))
    }

    fn port_change(&mut self) -> Option<(PortId, bool)> {
        let (port, up) = self.links.as_mut()?.poll()?;
        Some((PortId(port as u8), up))
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        let links = self.links.as_ref().map(AsFd::as_fd);
        self.ports.iter().map(|p| p.sock.as_fd()).chain(links).collect()
    }

    fn next_event(&self) -> Option<Time> {
        let held = self.faults.as_ref().and_then(Faults::next_due);
        if !self.shaped {
            return held;
        }
        self.gates.iter().filter_map(Gate::next_due).chain(held).min()
    }
}

/// Seals and sends the packets of a burst one by one, all with identification 0. A burst that would block on the way
/// is remembered by its first BTH and goes on there when it is given again.
fn one_by_one(
    stopped: &mut Option<Stopped>,
    flow: &Flow,
    bytes: &mut [u8],
    segment: usize,
    mut send: impl FnMut(&[u8]) -> Result<bool, i32>,
) -> Result<bool, i32> {
    let len = bytes.len();
    let mut bth = [0; 12];
    bth.copy_from_slice(&bytes[..12]);
    let done = match stopped.take() {
        Some(s) if s.len == len && s.bth == bth => s.packets,
        _ => 0,
    };
    for (packets, packet) in bytes.chunks_mut(segment).enumerate().skip(done) {
        flow.seal(0, packet);
        if !send(packet)? {
            *stopped = Some(Stopped { packets, len, bth });
            return Ok(false);
        }
    }
    Ok(true)
}

/// The flow from `from`, kept from last time or made anew.
fn flow(kept: &mut [Option<(SocketAddr, Flow)>], from: SocketAddr, local: SocketAddr) -> Flow {
    let host = match from.ip() {
        std::net::IpAddr::V4(ip) => ip.to_bits(),
        std::net::IpAddr::V6(ip) => ip.to_bits() as u32,
    };
    // Consecutive entropies differ in the low bits of their ports, hosts of one subnet in those of their addresses.
    let slot = &mut kept[(u32::from(from.port()) ^ host.wrapping_mul(0x9e37_79b1) >> 16) as usize % FLOWS];
    match slot {
        Some((known, flow)) if *known == from => *flow,
        _ => {
            let flow = Flow::new(from, local);
            *slot = Some((from, flow));
            flow
        }
    }
}

/// Delivers held packets whose turn it is.
fn release(faults: &mut Faults, now: Time, sink: &mut impl FnMut(&RxMeta, &Packet<'_>)) -> usize {
    let mut delivered = 0;
    while let Some((meta, raw)) = faults.release(now) {
        // It was parsed before it was held.
        if let Ok(packet) = Packet::parse(raw) {
            sink(&meta, &packet);
            delivered += 1;
        }
    }
    delivered
}

const _: () = assert!(MAX_PORTS <= 256 && FLOWS.is_power_of_two());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_on_where_it_stopped() {
        let flow = Flow::new(([127, 0, 0, 1], 1).into(), ([127, 0, 0, 1], 2).into());
        let mut burst: Vec<u8> = (0..4 * 64).map(|i| (i / 64) as u8).collect();
        let mut stopped = None;
        let mut sent = Vec::new();
        let mut room = 3;
        let mut send = |bytes: &mut [u8], stopped: &mut Option<Stopped>, room: &mut usize| {
            one_by_one(stopped, &flow, bytes, 64, |p| {
                if *room == 0 {
                    return Ok(false);
                }
                *room -= 1;
                sent.push(p[0]);
                assert!(flow.verify(0, p));
                Ok(true)
            })
        };
        assert_eq!(send(&mut burst, &mut stopped, &mut room), Ok(false));
        assert_eq!(send(&mut burst, &mut stopped, &mut room), Ok(false));
        room = 9;
        assert_eq!(send(&mut burst, &mut stopped, &mut room), Ok(true));
        assert!(stopped.is_none());
        // Another burst of the same length starts at its own beginning.
        room = 1;
        assert_eq!(send(&mut burst, &mut stopped, &mut room), Ok(false));
        let mut other: Vec<u8> = burst.iter().map(|b| b ^ 0x80).collect();
        room = 9;
        assert_eq!(send(&mut other, &mut stopped, &mut room), Ok(true));
        assert_eq!(sent, [0, 1, 2, 3, 0, 0x80, 0x81, 0x82, 0x83]);
        assert_eq!(one_by_one(&mut stopped, &flow, &mut burst, 64, |_| Err(libc::EPERM)), Err(libc::EPERM));
    }
}
