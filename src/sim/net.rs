//! Links between simulated hosts: delay, loss, duplication, reordering, marks and cuts. A plane may have switches.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use super::faults::{Cut, Faults, NetStats};
use super::stray::Snooper;
use super::switch::{Brought, Fabric, Part, Switches};
use crate::embedded::PacketIo;
use crate::lanes::{LaneError, PortId, PortInfo};
use crate::roce::{PathId, RxMeta};
use crate::time::{Span, Time};
use crate::wire::{Flow, Packet, pcap};

/// Packets that cuts hold at most; more are lost.
const HELD: usize = 4096;

/// A port of a simulated host.
#[derive(Clone, Copy, Debug)]
pub struct SimPort {
    /// Which fabric.
    pub plane: u16,
    /// Address on it.
    pub addr: IpAddr,
    /// RoCE MTU.
    pub mtu: u32,
}

/// The network. Clones share it; it belongs to one thread.
#[derive(Clone)]
pub struct Net(Rc<RefCell<Inner>>);

pub(super) struct Inner {
    now: Time,
    pub(super) rng: fastrand::Rng,
    faults: Faults,
    /// Of single planes, in place of `faults`.
    plane_faults: Vec<(u16, Faults)>,
    /// Packets that are lost next, by plane, because the one before was.
    bursts: Vec<(u16, u32)>,
    delay: Span,
    cuts: Vec<Cut>,
    /// The longest packet that passes between two addresses, where that is limited.
    limits: Vec<(IpAddr, IpAddr, usize)>,
    /// What held cuts hold.
    held: Vec<Flight>,
    ports: Vec<Port>,
    fabric: Fabric,
    /// What flies to each host.
    flying: Vec<BinaryHeap<Reverse<Flight>>>,
    order: u64,
    pub(super) stats: NetStats,
    pub(super) snooper: Snooper,
    capture: Option<pcap::Writer<Box<dyn Write>>>,
    fates: Option<Vec<Fate>>,
}

struct Port {
    addr: SocketAddr,
    host: usize,
    plane: u16,
    /// Bytes of packets that arrived here.
    carried: u64,
}

/// A packet that did not simply arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fate {
    /// When.
    pub at: Time,
    /// What befell it.
    pub what: &'static str,
    /// Where it came from.
    pub src: SocketAddr,
    /// Where it was sent.
    pub dst: SocketAddr,
    /// The queue pair that it was for, and its PSN.
    pub qpn_psn: Option<(u32, u32)>,
}

pub(super) struct Flight {
    pub(super) at: Time,
    pub(super) order: u64,
    pub(super) src: SocketAddr,
    pub(super) dst: SocketAddr,
    pub(super) tos: u8,
    pub(super) bytes: Vec<u8>,
}

impl PartialEq for Flight {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl Eq for Flight {}
impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Flight {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl Net {
    /// A network without hosts whose links take `delay` one way. `seed` decides every fault.
    pub fn new(seed: u64, delay: Span, faults: Faults) -> Net {
        Net(Rc::new(RefCell::new(Inner {
            now: Time::ZERO,
            rng: fastrand::Rng::with_seed(seed),
            faults,
            plane_faults: Vec::new(),
            bursts: Vec::new(),
            delay,
            cuts: Vec::new(),
            limits: Vec::new(),
            held: Vec::new(),
            ports: Vec::new(),
            fabric: Fabric::default(),
            flying: Vec::new(),
            order: 0,
            stats: NetStats::default(),
            snooper: Snooper::default(),
            capture: None,
            fates: None,
        })))
    }

    /// Adds a host with these ports and returns its packet edge.
    pub fn host(&self, ports: &[SimPort]) -> SimIo {
        let mut net = self.0.borrow_mut();
        let host = net.flying.len();
        net.flying.push(BinaryHeap::new());
        let hosts = net.flying.len();
        net.fabric.hosts(hosts);
        let mut infos = Vec::new();
        for (rail, p) in ports.iter().enumerate() {
            net.ports.push(Port { addr: SocketAddr::new(p.addr, 4791), host, plane: p.plane, carried: 0 });
            infos.push(PortInfo {
                rail: rail as u16,
                plane: p.plane,
                addr: p.addr,
                udp_port: 4791,
                mtu: p.mtu,
                receive_budget: None,
                name: format!("sim{host}p{}", p.plane),
            });
        }
        SimIo { net: self.clone(), host, ports: infos, paths: Vec::new() }
    }

    /// The edge of a host whose process began anew: at the same addresses, without the old one's paths. What flies to the
    /// host still arrives.
    pub fn restart(&self, old: &SimIo) -> SimIo {
        SimIo { net: self.clone(), host: old.host, ports: old.ports.clone(), paths: Vec::new() }
    }

    /// Gives a plane switches; without them it is ideal, with the delay of [`Net::new`].
    pub fn set_switches(&self, plane: u16, switches: Switches) {
        self.with(|net| net.fabric.add(plane, switches, net.flying.len()));
    }

    /// Gives a part of a plane with switches this share of its speed, 0.0..=1.0.
    pub fn set_share(&self, part: Part, share: f64) {
        self.with(|net| net.fabric.set_share(part, share));
    }

    /// A dead part of a plane with switches swallows everything.
    pub fn set_dead(&self, part: Part, dead: bool) {
        self.with(|net| net.fabric.set_dead(part, dead));
    }

    /// Nothing moves on a part of a plane with switches for `span`, and nothing is lost, as under flow control.
    pub fn pause(&self, part: Part, span: Span) {
        self.with(|net| net.fabric.pause(part, net.now + span));
    }

    /// The path that packets between these addresses and ports take; `None` in a plane without switches.
    pub fn path(&self, plane: u16, src: SocketAddr, dst: SocketAddr) -> Option<u16> {
        self.0.borrow().fabric.path(plane, src, dst)
    }

    /// Bytes of packets that arrived at an address so far.
    pub fn carried(&self, addr: IpAddr) -> u64 {
        self.0.borrow().ports.iter().find(|p| p.addr.ip() == addr).map_or(0, |p| p.carried)
    }

    /// Writes every packet, as it was sent, as a capture.
    ///
    /// # Errors
    /// `out` fails. When it fails later, the capture ends.
    pub fn capture(&self, out: Box<dyn Write>) -> std::io::Result<()> {
        let writer = pcap::Writer::new(out)?;
        self.with(|net| net.capture = Some(writer));
        Ok(())
    }

    /// Keeps what befalls packets for [`Net::take_fates`].
    pub fn keep_fates(&self) {
        self.with(|net| net.fates = Some(Vec::new()));
    }

    /// What befell packets since the last call.
    pub fn take_fates(&self) -> Vec<Fate> {
        self.with(|net| net.fates.as_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Lets happen inside the switches what no host can have a part in: until `until` or the next arrival, whichever comes
    /// first. True if anything happened.
    pub fn settle(&self, until: Time) -> bool {
        self.with(|net| net.settle(until))
    }

    pub(super) fn with<R>(&self, f: impl FnOnce(&mut Inner) -> R) -> R {
        f(&mut self.0.borrow_mut())
    }

    /// Sets the time at which packets are sent from now on.
    pub fn set_now(&self, now: Time) {
        self.0.borrow_mut().now = now;
    }

    /// When the next packet arrives anywhere, or moves on inside a switch.
    pub fn next_arrival(&self) -> Option<Time> {
        let net = self.0.borrow();
        let arrivals = net.flying.iter().filter_map(|f| f.peek()).map(|f| f.0.at);
        arrivals.chain(net.fabric.next()).min()
    }

    /// Replaces the faults.
    pub fn set_faults(&self, faults: Faults) {
        self.0.borrow_mut().faults = faults;
    }

    /// Faults of one plane, in place of the others; `None`: those of all.
    pub fn set_plane_faults(&self, plane: u16, faults: Option<Faults>) {
        self.with(|net| {
            net.plane_faults.retain(|f| f.0 != plane);
            net.plane_faults.extend(faults.map(|f| (plane, f)));
        });
    }

    /// Drops everything from `from` to `to` until [`Net::heal`].
    pub fn cut(&self, from: IpAddr, to: IpAddr) {
        self.add_cut(Cut { from, to, source_port: None, held: false });
    }

    /// Loses packets from one address to another that are longer than this many bytes, or none any more.
    pub fn limit(&self, from: IpAddr, to: IpAddr, longest: Option<usize>) {
        let mut net = self.0.borrow_mut();
        net.limits.retain(|l| (l.0, l.1) != (from, to));
        net.limits.extend(longest.map(|bytes| (from, to, bytes)));
    }

    /// Begins a cut.
    pub fn add_cut(&self, cut: Cut) {
        self.0.borrow_mut().cuts.push(cut);
    }

    /// Ends all cuts. What they held arrives one delay later, in its order.
    pub fn heal(&self) {
        let mut net = self.0.borrow_mut();
        net.cuts.clear();
        net.release(|_| true);
    }

    /// Ends one cut that is exactly like this. What it held arrives one delay later.
    pub fn end_cut(&self, cut: Cut) {
        let mut net = self.0.borrow_mut();
        if let Some(at) = net.cuts.iter().position(|c| *c == cut) {
            net.cuts.remove(at);
            net.release(|f| (f.src.ip(), f.dst.ip()) == (cut.from, cut.to));
        }
    }

    /// Ends the cuts from one address to another, as [`Net::heal`] does.
    pub fn heal_between(&self, from: IpAddr, to: IpAddr) {
        let mut net = self.0.borrow_mut();
        net.cuts.retain(|c| (c.from, c.to) != (from, to));
        net.release(|f| (f.src.ip(), f.dst.ip()) == (from, to));
    }

    /// What befell packets so far.
    pub fn stats(&self) -> NetStats {
        let net = self.0.borrow();
        NetStats { marked: net.stats.marked + net.fabric.marked, ..net.stats }
    }
}

impl Inner {
    fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && self.rng.f64() < p
    }

    fn settle(&mut self, until: Time) -> bool {
        let mut any = false;
        // A host may answer what arrives; what had arrived before is in `until`.
        let mut bound = until;
        while let Some(at) = self.fabric.next()
            && at <= bound
        {
            any = true;
            match self.fabric.step(&mut self.rng) {
                Brought::Nothing => {}
                Brought::Arrived(host, flight) => {
                    bound = bound.min(flight.at);
                    self.push(host, flight);
                }
                Brought::Dropped(f) => {
                    self.stats.dropped += 1;
                    self.fate(at, "dropped by a full queue", f.src, f.dst, &f.bytes);
                }
                Brought::Swallowed(f) => {
                    self.stats.swallowed += 1;
                    self.fate(at, "lost on a dead path", f.src, f.dst, &f.bytes);
                }
            }
        }
        any
    }

    fn fate(&mut self, at: Time, what: &'static str, src: SocketAddr, dst: SocketAddr, bytes: &[u8]) {
        let Some(fates) = &mut self.fates else { return };
        let qpn_psn = Packet::parse(bytes).ok().map(|p| (p.header.bth.dest_qp.get(), p.header.bth.psn.get()));
        fates.push(Fate { at, what, src, dst, qpn_psn });
    }

    /// True if the packet is lost by chance, by itself or with the one before it.
    fn loses(&mut self, plane: u16, faults: &Faults) -> bool {
        if let Some(burst) = self.bursts.iter_mut().find(|b| b.0 == plane && b.1 > 0) {
            burst.1 -= 1;
            return true;
        }
        if !self.chance(faults.loss) {
            return false;
        }
        if faults.burst > 1 {
            let more = self.rng.u32(..=2 * (u32::from(faults.burst) - 1));
            self.bursts.retain(|b| b.0 != plane);
            self.bursts.push((plane, more));
        }
        true
    }

    fn send(&mut self, src: SocketAddr, dst: SocketAddr, tos: u8, id: u16, bytes: &[u8]) {
        self.stats.sent += 1;
        let now = self.now;
        if let Some(capture) = &mut self.capture {
            let datagram = pcap::Datagram { tos, ip_id: id, ..pcap::Datagram::new(now, src, dst, bytes) };
            if capture.write(&datagram).is_err() {
                self.capture = None;
            }
        }
        if self.snooper.on {
            self.snooper.see(&mut self.rng, src, dst, bytes);
        }
        let meets =
            |c: &&Cut| (c.from, c.to) == (src.ip(), dst.ip()) && c.source_port.is_none_or(|port| port == src.port());
        if let Some(cut) = self.cuts.iter().find(meets) {
            self.stats.cut += 1;
            let held = cut.held && self.held.len() < HELD;
            if held {
                self.held.push(Flight { at: Time::ZERO, order: 0, src, dst, tos, bytes: bytes.to_vec() });
            }
            self.fate(now, if held { "held" } else { "cut" }, src, dst, bytes);
            return;
        }
        if self.limits.iter().any(|l| (l.0, l.1) == (src.ip(), dst.ip()) && bytes.len() > l.2) {
            self.stats.cut += 1;
            self.fate(now, "too long", src, dst, bytes);
            return;
        }
        let Some(plane) = self.ports.iter().find(|p| p.addr == dst).map(|p| p.plane) else { return };
        let faults = self.plane_faults.iter().find(|f| f.0 == plane).map_or(self.faults, |f| f.1);
        if self.loses(plane, &faults) {
            self.stats.lost += 1;
            self.fate(now, "lost", src, dst, bytes);
            return;
        }
        let mut bytes = bytes.to_vec();
        let mut tos = tos;
        if self.chance(faults.mark) && tos & 3 != 0 {
            tos |= 3;
            self.stats.marked += 1;
        }
        if self.chance(faults.corrupt) && !bytes.is_empty() {
            self.fate(now, "corrupted", src, dst, &bytes);
            // Byte 4 holds only fields that the ICRC masks.
            let at = loop {
                let at = self.rng.usize(..bytes.len());
                if at != 4 {
                    break at;
                }
            };
            bytes[at] ^= 1 << self.rng.u8(..8);
            self.stats.corrupted += 1;
        }
        let mut later = Span::ZERO;
        if self.chance(faults.reorder) {
            later = Span::from_nanos(self.rng.u64(1..=faults.reorder_by.as_nanos().max(1)));
            self.stats.reordered += 1;
        }
        if self.chance(faults.duplicate) {
            let more = self.rng.u64(1..=faults.reorder_by.as_nanos().max(1));
            let copy = Span::from_nanos(later.as_nanos() + more);
            self.stats.duplicated += 1;
            self.fate(now, "duplicated", src, dst, &bytes);
            self.go(copy, src, dst, tos, bytes.clone());
        }
        self.go(later, src, dst, tos, bytes);
    }

    /// Sends a packet that nobody's faults befall.
    pub(super) fn forward(&mut self, src: SocketAddr, dst: SocketAddr, tos: u8, bytes: Vec<u8>) {
        self.fate(self.now, "stray", src, dst, &bytes);
        self.go(Span::ZERO, src, dst, tos, bytes);
    }

    /// A packet sets out, `later` than now.
    fn go(&mut self, later: Span, src: SocketAddr, dst: SocketAddr, tos: u8, bytes: Vec<u8>) {
        let Some(to) = self.ports.iter().find(|p| p.addr == dst) else { return };
        let (host, plane) = (to.host, to.plane);
        let mut flight = Flight { at: self.now + later, order: 0, src, dst, tos, bytes };
        let from = self.ports.iter().find(|p| p.addr.ip() == src.ip()).map(|p| p.host);
        match from {
            Some(from) if self.fabric.has(plane) => self.fabric.enter(plane, from, host, flight),
            _ => {
                flight.at += self.delay;
                self.push(host, flight);
            }
        }
    }

    /// Sends off what was held and is meant.
    fn release(&mut self, meant: impl Fn(&Flight) -> bool) {
        let (released, kept) = std::mem::take(&mut self.held).into_iter().partition(meant);
        self.held = kept;
        let released: Vec<Flight> = released;
        for f in released {
            self.go(Span::ZERO, f.src, f.dst, f.tos, f.bytes);
        }
    }

    fn push(&mut self, host: usize, mut flight: Flight) {
        self.order += 1;
        flight.order = self.order;
        self.flying[host].push(Reverse(flight));
    }

    /// The next packet for `host`, if it is due.
    fn take(&mut self, host: usize) -> Option<Flight> {
        let flying = &mut self.flying[host];
        if flying.peek()?.0.at > self.now {
            return None;
        }
        flying.pop().map(|r| r.0)
    }
}

/// The packet edge of one simulated host.
pub struct SimIo {
    net: Net,
    host: usize,
    ports: Vec<PortInfo>,
    paths: Vec<Option<SimPath>>,
}

struct SimPath {
    flow: Flow,
    src: SocketAddr,
    dst: SocketAddr,
}

impl PacketIo for SimIo {
    fn open_path(&mut self, port: PortId, entropy: u16, dest: SocketAddr) -> Result<PathId, LaneError> {
        let info = self.ports.get(usize::from(port.0)).ok_or(LaneError::Invalid { what: "port" })?;
        let src = SocketAddr::new(info.addr, 0xc000 | (entropy & 0x3fff));
        if src.is_ipv4() != dest.is_ipv4() {
            return Err(LaneError::Invalid { what: "address family" });
        }
        let flow = Flow::new(src, dest);
        let path = SimPath { flow, src, dst: dest };
        let index = match self.paths.iter().position(Option::is_none) {
            Some(i) => i,
            None => {
                self.paths.push(None);
                self.paths.len() - 1
            }
        };
        self.paths[index] = Some(path);
        Ok(PathId(index as u32))
    }

    fn close_path(&mut self, path: PathId) {
        if let Some(p) = self.paths.get_mut(path.0 as usize) {
            *p = None;
        }
    }

    fn send(&mut self, path: PathId, tos: u8, bytes: &mut [u8], segment: usize) -> Result<bool, LaneError> {
        let Some(Some(path)) = self.paths.get(path.0 as usize) else { return Err(LaneError::NoLane) };
        let mut net = self.net.0.borrow_mut();
        for (id, packet) in bytes.chunks_mut(segment.max(1)).enumerate() {
            path.flow.seal(id as u16, packet);
            net.send(path.src, path.dst, tos, id as u16, packet);
        }
        Ok(true)
    }

    fn receive(&mut self, now: Time, sink: &mut impl FnMut(&RxMeta, &Packet<'_>)) -> usize {
        self.net.set_now(now);
        self.net.settle(now);
        let mut delivered = 0;
        while delivered < 64 {
            let flight = self.net.0.borrow_mut().take(self.host);
            let Some(f) = flight else { break };
            // As a socket would: exact on IPv6, blind to the unseen identification on IPv4.
            let flow = Flow::new(f.src, f.dst);
            let good = if f.src.is_ipv4() {
                flow.verify_blind(&f.bytes).is_some_and(|id| id < 128)
            } else {
                flow.verify(0, &f.bytes)
            };
            match Packet::parse(&f.bytes) {
                Ok(packet) if good => {
                    let meta = RxMeta { src: f.src.ip(), dst: f.dst.ip(), tos: f.tos, ttl: 64 };
                    self.net.with(|net| {
                        net.stats.delivered += 1;
                        if let Some(port) = net.ports.iter_mut().find(|p| p.addr == f.dst) {
                            port.carried += f.bytes.len() as u64;
                        }
                    });
                    sink(&meta, &packet);
                    delivered += 1;
                }
                _ => self.net.0.borrow_mut().stats.refused += 1,
            }
        }
        delivered
    }

    fn ports(&self) -> &[PortInfo] {
        &self.ports
    }

    fn drops(&mut self) -> Option<(PortId, u32)> {
        None
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn next_event(&self) -> Option<Time> {
        let net = self.net.0.borrow();
        let arrival = net.flying[self.host].peek().map(|f| f.0.at);
        // What moves on inside a switch may arrive sooner.
        [arrival, net.fabric.next()].into_iter().flatten().min()
    }
}
