//! Links between simulated hosts: delay, loss, duplication, reordering, marks and cuts.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use crate::embedded::PacketIo;
use crate::lanes::{LaneError, PortId, PortInfo};
use crate::roce::{PathId, RxMeta};
use crate::time::{Span, Time};
use crate::wire::{Flow, Packet};

/// Packets that cuts hold at most; more are lost.
const HELD: usize = 4096;

/// What may befall a packet. Probabilities are 0.0..=1.0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// The packet vanishes.
    pub loss: f64,
    /// A second copy arrives a little later.
    pub duplicate: f64,
    /// It arrives later by up to `reorder_by`.
    pub reorder: f64,
    /// How much later.
    pub reorder_by: Span,
    /// It is marked CE.
    pub mark: f64,
    /// One of its bits is flipped, which the ICRC must find.
    pub corrupt: f64,
}

impl Default for Faults {
    fn default() -> Self {
        Faults { loss: 0.0, duplicate: 0.0, reorder: 0.0, reorder_by: Span::from_micros(50), mark: 0.0, corrupt: 0.0 }
    }
}

/// What befell packets so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetStats {
    /// Handed over by senders.
    pub sent: u64,
    /// Handed to receivers.
    pub delivered: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Lost to a cut.
    pub cut: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Delayed.
    pub reordered: u64,
    /// Marked CE.
    pub marked: u64,
    /// Corrupted; all of them must be refused.
    pub corrupted: u64,
    /// Refused by the receiver's ICRC check.
    pub refused: u64,
}

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

struct Inner {
    now: Time,
    rng: fastrand::Rng,
    faults: Faults,
    delay: Span,
    cuts: Vec<Cut>,
    /// The longest packet that passes between two addresses, where that is limited.
    limits: Vec<(IpAddr, IpAddr, usize)>,
    /// What held cuts hold.
    held: Vec<Flight>,
    ports: Vec<(SocketAddr, usize)>,
    /// What flies to each host.
    flying: Vec<BinaryHeap<Reverse<Flight>>>,
    order: u64,
    stats: NetStats,
}

/// Packets from one address to another, of all source ports or one, that do not arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// Source address.
    pub from: IpAddr,
    /// Destination address.
    pub to: IpAddr,
    /// Only those from this UDP source port, which means one path.
    pub source_port: Option<u16>,
    /// They do arrive, but not before the cut ends.
    pub held: bool,
}

struct Flight {
    at: Time,
    order: u64,
    src: SocketAddr,
    dst: SocketAddr,
    tos: u8,
    bytes: Vec<u8>,
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
            delay,
            cuts: Vec::new(),
            limits: Vec::new(),
            held: Vec::new(),
            ports: Vec::new(),
            flying: Vec::new(),
            order: 0,
            stats: NetStats::default(),
        })))
    }

    /// Adds a host with these ports and returns its packet edge.
    pub fn host(&self, ports: &[SimPort]) -> SimIo {
        let mut net = self.0.borrow_mut();
        let host = net.flying.len();
        net.flying.push(BinaryHeap::new());
        let mut infos = Vec::new();
        for (rail, p) in ports.iter().enumerate() {
            net.ports.push((SocketAddr::new(p.addr, 4791), host));
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

    /// Sets the time at which packets are sent from now on.
    pub fn set_now(&self, now: Time) {
        self.0.borrow_mut().now = now;
    }

    /// When the next packet arrives anywhere.
    pub fn next_arrival(&self) -> Option<Time> {
        self.0.borrow().flying.iter().filter_map(|f| f.peek()).map(|f| f.0.at).min()
    }

    /// Replaces the faults.
    pub fn set_faults(&self, faults: Faults) {
        self.0.borrow_mut().faults = faults;
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

    /// Ends the cuts from one address to another, as [`Net::heal`] does.
    pub fn heal_between(&self, from: IpAddr, to: IpAddr) {
        let mut net = self.0.borrow_mut();
        net.cuts.retain(|c| (c.from, c.to) != (from, to));
        net.release(|f| (f.src.ip(), f.dst.ip()) == (from, to));
    }

    /// What befell packets so far.
    pub fn stats(&self) -> NetStats {
        self.0.borrow().stats
    }
}

impl Inner {
    fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && self.rng.f64() < p
    }

    fn send(&mut self, src: SocketAddr, dst: SocketAddr, tos: u8, bytes: &[u8]) {
        self.stats.sent += 1;
        let meets =
            |c: &&Cut| (c.from, c.to) == (src.ip(), dst.ip()) && c.source_port.is_none_or(|port| port == src.port());
        if let Some(cut) = self.cuts.iter().find(meets) {
            self.stats.cut += 1;
            if cut.held && self.held.len() < HELD {
                self.held.push(Flight { at: Time::ZERO, order: 0, src, dst, tos, bytes: bytes.to_vec() });
            }
            return;
        }
        if self.limits.iter().any(|l| (l.0, l.1) == (src.ip(), dst.ip()) && bytes.len() > l.2) {
            self.stats.cut += 1;
            return;
        }
        let faults = self.faults;
        if self.chance(faults.loss) {
            self.stats.lost += 1;
            return;
        }
        let Some(&(_, host)) = self.ports.iter().find(|(a, _)| *a == dst) else { return };
        let mut bytes = bytes.to_vec();
        let mut tos = tos;
        if self.chance(faults.mark) && tos & 3 != 0 {
            tos |= 3;
            self.stats.marked += 1;
        }
        if self.chance(faults.corrupt) && !bytes.is_empty() {
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
        let mut at = self.now + self.delay;
        if self.chance(faults.reorder) {
            at += Span::from_nanos(self.rng.u64(1..=faults.reorder_by.as_nanos().max(1)));
            self.stats.reordered += 1;
        }
        if self.chance(faults.duplicate) {
            let later = at + Span::from_nanos(self.rng.u64(1..=faults.reorder_by.as_nanos().max(1)));
            self.stats.duplicated += 1;
            self.push(host, Flight { at: later, order: 0, src, dst, tos, bytes: bytes.clone() });
        }
        self.push(host, Flight { at, order: 0, src, dst, tos, bytes });
    }

    /// Sends off what was held and is meant.
    fn release(&mut self, meant: impl Fn(&Flight) -> bool) {
        let (released, kept) = std::mem::take(&mut self.held).into_iter().partition(meant);
        self.held = kept;
        let released: Vec<Flight> = released;
        for flight in released {
            let host = self.ports.iter().find(|(a, _)| *a == flight.dst).map(|p| p.1);
            if let Some(host) = host {
                let at = self.now + self.delay;
                self.push(host, Flight { at, ..flight });
            }
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
            net.send(path.src, path.dst, tos, packet);
        }
        Ok(true)
    }

    fn receive(&mut self, now: Time, sink: &mut impl FnMut(&RxMeta, &Packet<'_>)) -> usize {
        self.net.set_now(now);
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
                    self.net.0.borrow_mut().stats.delivered += 1;
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
        self.net.0.borrow().flying[self.host].peek().map(|f| f.0.at)
    }
}
