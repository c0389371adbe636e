//! A plane of switches: leaves and spines, a queue at every link, and what can go wrong with them.
//!
//! Packets take one event per link, in order of time, so each queue sees its arrivals in order. Nothing here knows
//! what a packet contains.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::{Span, Time};

/// A leaf-and-spine fabric in virtual time that moves `T`s.
///
/// Every leaf has one link to and one from every spine. A leaf chooses the spine by a hash of the packet's flow, as
/// switches do (ECMP); it avoids spines whose link it knows to be down.
#[derive(Debug)]
pub struct Fabric<T> {
    shape: Shape,
    links: Vec<Link>,
    /// The leaf of each attached port.
    ports: Vec<u16>,
    events: BinaryHeap<Reverse<Event<T>>>,
    order: u64,
    rng: fastrand::Rng,
    salt: u64,
    stats: FabricStats,
}

/// How a fabric is built.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shape {
    /// Leaf switches, at least 1.
    pub leaves: u16,
    /// Spine switches; 0 if there is one leaf only.
    pub spines: u16,
    /// Links between hosts and leaves.
    pub edge: LinkSpec,
    /// Links between leaves and spines.
    pub core: LinkSpec,
}

/// A link in one direction and the queue in front of it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkSpec {
    /// Bits per second, at least 1,000.
    pub rate: u64,
    /// Time from the last bit sent to the packet's arrival.
    pub delay: Span,
    /// Bytes that may wait; what does not fit is dropped.
    pub queue: u64,
    /// Bytes waiting from which on packets are marked, and from which on all are; in between in proportion (RED).
    pub mark: (u64, u64),
}

impl LinkSpec {
    /// A link of `gbps` with a queue of one MiB that marks between 20 % and 80 % of it.
    pub const fn gbps(gbps: u64, delay: Span) -> LinkSpec {
        const QUEUE: u64 = 1 << 20;
        LinkSpec { rate: gbps * 1_000_000_000, delay, queue: QUEUE, mark: (QUEUE / 5, QUEUE * 4 / 5) }
    }
}

/// A place where a host is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FabricPort(u32);

/// One direction of one link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hop {
    /// From a host to its leaf.
    Up(FabricPort),
    /// From a leaf to a host.
    Down(FabricPort),
    /// From a leaf to a spine.
    ToSpine {
        /// Which leaf.
        leaf: u16,
        /// Which spine.
        spine: u16,
    },
    /// From a spine to a leaf.
    ToLeaf {
        /// Which spine.
        spine: u16,
        /// Which leaf.
        leaf: u16,
    },
}

/// What a link does with packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LinkState {
    /// It carries them.
    #[default]
    Up,
    /// It has no carrier, and the switch in front of it knows.
    Down,
    /// It swallows them, and nobody knows.
    Black,
}

/// A packet that goes in.
#[derive(Clone, Copy, Debug)]
pub struct Transit<T> {
    /// Where it enters.
    pub from: FabricPort,
    /// Where it is to leave.
    pub to: FabricPort,
    /// What ECMP hashes: addresses and UDP ports.
    pub flow: u64,
    /// Bytes on the wire.
    pub size: u32,
    /// Its IP header allows marks (ECT).
    pub ecn: bool,
    /// It was marked CE.
    pub marked: bool,
    /// What it carries.
    pub what: T,
}

/// What befell packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricStats {
    /// Arrived.
    pub delivered: u64,
    /// Dropped because a queue was full.
    pub overflowed: u64,
    /// Swallowed by links that are down or black.
    pub swallowed: u64,
    /// Marked, each counted once.
    pub marked: u64,
    /// Most bytes that waited in front of one link.
    pub deepest: u64,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    spec: LinkSpec,
    state: LinkState,
    /// How long what waits takes to send, as of `since`.
    work: Span,
    since: Time,
    /// It sends nothing before (a pause frame).
    paused: Time,
    carried: u64,
}

#[derive(Debug)]
struct Event<T> {
    at: Time,
    order: u64,
    stage: Stage,
    packet: Transit<T>,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Leaf,
    Spine(u16),
    LastLeaf,
    Arrived,
}

impl<T> PartialEq for Event<T> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl<T> Eq for Event<T> {}
impl<T> PartialOrd for Event<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Event<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl<T> Fabric<T> {
    /// A fabric without hosts. `seed` decides hashes and marks.
    pub fn new(shape: Shape, seed: u64) -> Fabric<T> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let shape = Shape { leaves: shape.leaves.max(1), ..shape };
        let core = 2 * usize::from(shape.leaves) * usize::from(shape.spines);
        Fabric {
            links: vec![Link::new(shape.core); core],
            shape,
            ports: Vec::new(),
            events: BinaryHeap::new(),
            order: 0,
            salt: rng.u64(..),
            rng,
            stats: FabricStats::default(),
        }
    }

    /// Attaches a host to a leaf; leaves that do not exist are counted round.
    pub fn attach(&mut self, leaf: u16) -> FabricPort {
        self.ports.push(leaf % self.shape.leaves);
        self.links.extend([Link::new(self.shape.edge); 2]);
        FabricPort(self.ports.len() as u32 - 1)
    }

    /// Sends a packet at `now`, which must not be earlier than the last [`Fabric::advance`].
    pub fn send(&mut self, now: Time, packet: Transit<T>) {
        let up = self.index(Hop::Up(packet.from));
        self.pass(now, up, Stage::Leaf, packet);
    }

    /// Moves everything that happens up to `now`; `arrived` gets what leaves the fabric, in order of time.
    pub fn advance(&mut self, now: Time, mut arrived: impl FnMut(Time, Transit<T>)) {
        while self.next_event().is_some_and(|at| at <= now) {
            let Some(Reverse(event)) = self.events.pop() else { return };
            let to = self.ports[event.packet.to.0 as usize];
            let (hop, stage) = match event.stage {
                Stage::Arrived => {
                    self.stats.delivered += 1;
                    arrived(event.at, event.packet);
                    continue;
                }
                Stage::Leaf => {
                    let leaf = self.ports[event.packet.from.0 as usize];
                    match self.spine_for(leaf, &event.packet) {
                        _ if leaf == to => (Hop::Down(event.packet.to), Stage::Arrived),
                        Some(spine) => (Hop::ToSpine { leaf, spine }, Stage::Spine(spine)),
                        None => {
                            self.stats.swallowed += 1;
                            continue;
                        }
                    }
                }
                Stage::Spine(spine) => (Hop::ToLeaf { spine, leaf: to }, Stage::LastLeaf),
                Stage::LastLeaf => (Hop::Down(event.packet.to), Stage::Arrived),
            };
            let link = self.index(hop);
            self.pass(event.at, link, stage, event.packet);
        }
    }

    /// When something happens next.
    pub fn next_event(&self) -> Option<Time> {
        self.events.peek().map(|e| e.0.at)
    }

    /// The spine that a flow takes from a leaf at present; `None` if no link is up, or there is no spine.
    pub fn spine_of(&self, from: FabricPort, flow: u64) -> Option<u16> {
        self.choose(*self.ports.get(from.0 as usize)?, flow)
    }

    /// Changes a link's state. Packets that are on it arrive.
    pub fn set_state(&mut self, hop: Hop, state: LinkState) {
        let link = self.index(hop);
        self.links[link].state = state;
    }

    /// Changes a link's rate, in bits per second, for what is sent from `now` on.
    pub fn set_rate(&mut self, now: Time, hop: Hop, rate: u64) {
        let link = self.index(hop);
        let l = &mut self.links[link];
        l.drain(now);
        let waiting = l.waiting();
        l.spec.rate = rate.max(1000);
        l.work = l.time(waiting);
    }

    /// Lets a link begin no packet between `now` and `until`, as a pause frame does. Those that wait already go out.
    pub fn pause(&mut self, now: Time, hop: Hop, until: Time) {
        let link = self.index(hop);
        let l = &mut self.links[link];
        l.drain(now);
        l.paused = l.paused.max(until);
    }

    /// Bytes that a link has carried.
    pub fn carried(&self, hop: Hop) -> u64 {
        self.links[self.index(hop)].carried
    }

    /// What befell packets so far.
    pub fn stats(&self) -> FabricStats {
        self.stats
    }

    /// Its shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The link of a hop. Panics if the fabric has no such switch or port: the caller made the fabric.
    fn index(&self, hop: Hop) -> usize {
        let (leaves, spines) = (usize::from(self.shape.leaves), usize::from(self.shape.spines));
        let of = |leaf: u16, spine: u16| {
            assert!(usize::from(leaf) < leaves && usize::from(spine) < spines, "no such link");
            usize::from(leaf) * spines + usize::from(spine)
        };
        match hop {
            Hop::ToSpine { leaf, spine } => of(leaf, spine),
            Hop::ToLeaf { spine, leaf } => leaves * spines + of(leaf, spine),
            Hop::Up(port) => 2 * (leaves * spines + port.0 as usize),
            Hop::Down(port) => 2 * (leaves * spines + port.0 as usize) + 1,
        }
    }

    fn spine_for(&self, leaf: u16, packet: &Transit<T>) -> Option<u16> {
        self.choose(leaf, packet.flow)
    }

    /// Hash over the spines that the leaf believes to be reachable.
    fn choose(&self, leaf: u16, flow: u64) -> Option<u16> {
        let up = |spine: &u16| self.links[self.index(Hop::ToSpine { leaf, spine: *spine })].state != LinkState::Down;
        let count = (0..self.shape.spines).filter(up).count() as u64;
        let hash = mix(flow ^ self.salt.wrapping_add(u64::from(leaf) << 48));
        // Multiplied, not divided: the upper bits choose.
        let nth = (u128::from(hash) * u128::from(count)) >> 64;
        (0..self.shape.spines).filter(up).nth(nth as usize)
    }

    /// Puts a packet into a link's queue at `now`; it reaches `stage` when it has been sent and the delay is over.
    fn pass(&mut self, now: Time, link: usize, stage: Stage, mut packet: Transit<T>) {
        let l = &mut self.links[link];
        if l.state != LinkState::Up {
            self.stats.swallowed += 1;
            return;
        }
        l.drain(now);
        let waiting = l.waiting();
        if waiting + u64::from(packet.size) > l.spec.queue {
            self.stats.overflowed += 1;
            return;
        }
        self.stats.deepest = self.stats.deepest.max(waiting);
        let (from, all) = l.spec.mark;
        if packet.ecn && !packet.marked && waiting >= from {
            let share = if all > from { (waiting - from) as f64 / (all - from) as f64 } else { 1.0 };
            if share >= 1.0 || self.rng.f64() < share {
                packet.marked = true;
                self.stats.marked += 1;
            }
        }
        l.work = Span::from_nanos(l.work.as_nanos().saturating_add(l.time(u64::from(packet.size)).as_nanos()));
        l.carried += u64::from(packet.size);
        let at = now.max(l.paused) + l.work + l.spec.delay;
        self.order += 1;
        self.events.push(Reverse(Event { at, order: self.order, stage, packet }));
    }
}

impl Link {
    const fn new(spec: LinkSpec) -> Link {
        Link { spec, state: LinkState::Up, work: Span::ZERO, since: Time::ZERO, paused: Time::ZERO, carried: 0 }
    }

    /// How long `bytes` take.
    fn time(&self, bytes: u64) -> Span {
        let ns = u128::from(bytes) * 8_000_000_000 / u128::from(self.spec.rate.max(1000));
        Span::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Sends until `now`.
    fn drain(&mut self, now: Time) {
        let sending = now.since(self.since.max(self.paused));
        self.work = Span::from_nanos(self.work.as_nanos().saturating_sub(sending.as_nanos()));
        self.since = self.since.max(now);
    }

    /// Bytes that wait.
    fn waiting(&self) -> u64 {
        let bytes = u128::from(self.work.as_nanos()) * u128::from(self.spec.rate) / 8_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX / 2)
    }
}

/// Spreads the bits of a flow's name (the finaliser of SplitMix64).
fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Span = Span::from_micros(1);

    fn fabric(spines: u16) -> (Fabric<u32>, FabricPort, FabricPort) {
        let spec = LinkSpec::gbps(8, US);
        let mut f = Fabric::new(Shape { leaves: 2, spines, edge: spec, core: spec }, 1);
        let (a, b) = (f.attach(0), f.attach(1));
        (f, a, b)
    }

    fn packet(from: FabricPort, to: FabricPort, flow: u64, what: u32) -> Transit<u32> {
        Transit { from, to, flow, size: 1000, ecn: true, marked: false, what }
    }

    fn run(f: &mut Fabric<u32>, until: Time) -> Vec<(u64, u32, bool)> {
        let mut out = Vec::new();
        f.advance(until, |at, p| out.push((at.as_nanos(), p.what, p.marked)));
        out
    }

    #[test]
    fn a_packet_takes_four_links_and_its_successors_queue() {
        let (mut f, a, b) = fabric(1);
        for i in 0..3 {
            f.send(Time::ZERO, packet(a, b, 9, i));
        }
        // 1,000 bytes at 8 Gb/s take 1 us, each link delays by 1 us.
        assert_eq!(run(&mut f, Time::from_nanos(7_999)), []);
        assert_eq!(run(&mut f, Time::MAX), [(8_000, 0, false), (9_000, 1, false), (10_000, 2, false)]);
        let c = f.attach(0);
        f.send(Time::from_nanos(20_000), packet(a, c, 9, 7));
        assert_eq!(run(&mut f, Time::MAX), [(24_000, 7, false)], "within a leaf there are two links");
        assert_eq!(f.stats().delivered, 4);
    }

    #[test]
    fn queues_mark_and_then_drop() {
        let (mut f, a, b) = fabric(1);
        for i in 0..1200 {
            f.send(Time::ZERO, packet(a, b, 9, i));
        }
        let out = run(&mut f, Time::MAX);
        assert_eq!(out.len() as u64 + f.stats().overflowed, 1200);
        assert_eq!(out.len(), 1048, "1 MiB of 1,000 bytes");
        assert!(out[..209].iter().all(|p| !p.2), "below 20 % of the queue none is marked");
        assert!(out[840..].iter().all(|p| p.2), "above 80 % all are");
        let middle = out[209..840].iter().filter(|p| p.2).count();
        assert!((210..420).contains(&middle), "{middle} of 631");
        assert_eq!(f.stats().marked, out.iter().filter(|p| p.2).count() as u64);
        f.send(Time::from_nanos(1 << 40), Transit { ecn: false, ..packet(a, b, 9, 0) });
        assert_eq!(run(&mut f, Time::MAX).len(), 1);
    }

    #[test]
    fn flows_keep_their_spine_and_spread() {
        let (mut f, a, b) = fabric(4);
        let mut count = [0; 4];
        for flow in 0..400 {
            let spine = f.spine_of(a, flow).expect("a spine");
            assert_eq!(f.spine_of(a, flow), Some(spine));
            count[usize::from(spine)] += 1;
            f.send(Time::from_nanos(flow * 10_000), packet(a, b, flow, flow as u32));
            assert_eq!(run(&mut f, Time::from_nanos((flow + 1) * 10_000)).len(), 1);
        }
        assert!(count.iter().all(|c| (60..140).contains(c)), "{count:?}");
        for (spine, count) in count.into_iter().enumerate() {
            assert_eq!(f.carried(Hop::ToSpine { leaf: 0, spine: spine as u16 }), count * 1000);
        }
    }

    #[test]
    fn a_known_cut_is_avoided_and_a_black_one_is_not() {
        let (mut f, a, b) = fabric(2);
        let flow = (0..).find(|&flow| f.spine_of(a, flow) == Some(1)).expect("some flow");
        f.set_state(Hop::ToLeaf { spine: 1, leaf: 1 }, LinkState::Black);
        f.send(Time::ZERO, packet(a, b, flow, 1));
        assert_eq!(run(&mut f, Time::MAX), []);
        f.set_state(Hop::ToSpine { leaf: 0, spine: 1 }, LinkState::Down);
        f.send(Time::from_nanos(10_000), packet(a, b, flow, 2));
        assert_eq!(run(&mut f, Time::MAX).len(), 1);
        f.set_state(Hop::ToSpine { leaf: 0, spine: 0 }, LinkState::Down);
        f.send(Time::from_nanos(20_000), packet(a, b, flow, 3));
        assert_eq!(run(&mut f, Time::MAX), []);
        assert_eq!(f.stats().swallowed, 2);
    }

    #[test]
    fn a_slow_link_and_a_pause_delay() {
        let (mut f, a, b) = fabric(1);
        f.set_rate(Time::ZERO, Hop::Up(a), 800_000_000);
        f.send(Time::ZERO, packet(a, b, 1, 0));
        assert_eq!(run(&mut f, Time::MAX), [(17_000, 0, false)]);
        f.pause(Time::from_nanos(18_000), Hop::Down(b), Time::from_nanos(1_000_000));
        f.send(Time::from_nanos(20_000), packet(a, b, 1, 1));
        assert_eq!(run(&mut f, Time::MAX), [(1_002_000, 1, false)]);
    }
}
