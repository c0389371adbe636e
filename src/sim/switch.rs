//! Switches of a plane: each host has a leaf, spines join the leaves, and a packet takes a spine by a hash over its
//! addresses and ports. Queues have a rate, a limit and marks.
//!
//! [`super::uec`] has switches of its own: they carry descriptions of packets by the hundred million; these carry real ones.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use super::net::Flight;
use crate::time::{Span, Time};

/// Bytes that a packet takes on a link besides its UDP payload: Ethernet, IP and UDP headers, preamble and gap.
const OVERHEAD: u64 = 66;

/// The switches of one plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Switches {
    /// Spines, each of which is a path between two hosts: 1..=1024.
    pub paths: u16,
    /// Bits per second of a host's port, at least 1,000,000.
    pub port_rate: u64,
    /// Bits per second of a leaf's link to a spine, at least 1,000,000.
    pub path_rate: u64,
    /// One way from host to host without queues.
    pub delay: Span,
    /// Bytes that a switch's queue holds; more are dropped. A host's own queue has no limit.
    pub queue: u64,
    /// Bytes in a switch's queue from which on packets are marked CE, and from which on all are; in proportion between.
    pub mark: (u64, u64),
}

/// A part of a plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All links of its switches.
    Plane(u16),
    /// One spine of a plane.
    Path(u16, u16),
    /// A host's port: what it sends, and what the leaf sends to it.
    Port(u16, usize),
}

impl Part {
    pub(super) fn plane(self) -> u16 {
        match self {
            Part::Plane(plane) | Part::Path(plane, _) | Part::Port(plane, _) => plane,
        }
    }
}

/// A packet on its way through a plane.
struct Hop {
    flight: Flight,
    to: usize,
    path: u16,
}

impl Hop {
    fn bytes(&self) -> u64 {
        self.flight.bytes.len() as u64 + OVERHEAD
    }
}

/// One direction of a link and the queue in front of it.
struct Link {
    queue: VecDeque<Hop>,
    bytes: u64,
    nominal: u64,
    rate: u64,
    sending: bool,
    paused: Time,
    dead: bool,
    /// It belongs to a switch: its queue has a limit and marks.
    switch: bool,
}

struct Plane {
    number: u16,
    switches: Switches,
    /// By host: from the host to its leaf, from the leaf to each spine, from the leaf to the host.
    links: Vec<Link>,
}

enum Happens {
    /// The first packet of a link's queue has left it.
    Left(usize),
    /// A packet comes to the queue of a link.
    Comes(usize, Hop),
}

struct Event {
    at: Time,
    order: u64,
    /// Index of the plane.
    plane: usize,
    what: Happens,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl Eq for Event {}
impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Event {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// What one event brought.
pub(super) enum Brought {
    Nothing,
    /// A packet is at its host, at the time that it carries.
    Arrived(usize, Flight),
    /// A queue was full.
    Dropped(Flight),
    /// A part was dead.
    Swallowed(Flight),
}

/// All planes that have switches.
#[derive(Default)]
pub(super) struct Fabric {
    planes: Vec<Plane>,
    events: BinaryHeap<Reverse<Event>>,
    order: u64,
    pub(super) marked: u64,
}

impl Fabric {
    /// Gives a plane switches. `hosts` is the number of hosts there are.
    pub(super) fn add(&mut self, plane: u16, switches: Switches, hosts: usize) {
        let switches = Switches {
            paths: switches.paths.clamp(1, 1024),
            port_rate: switches.port_rate.max(1_000_000),
            path_rate: switches.path_rate.max(1_000_000),
            ..switches
        };
        self.planes.retain(|p| p.number != plane);
        self.planes.push(Plane { number: plane, switches, links: Vec::new() });
        self.hosts(hosts);
    }

    /// There are `hosts` hosts now.
    pub(super) fn hosts(&mut self, hosts: usize) {
        for plane in &mut self.planes {
            let s = plane.switches;
            while plane.links.len() < hosts * plane.per_host() {
                plane.links.push(Link::new(s.port_rate, false));
                plane.links.extend((0..s.paths).map(|_| Link::new(s.path_rate, true)));
                plane.links.push(Link::new(s.port_rate, true));
            }
        }
    }

    pub(super) fn has(&self, plane: u16) -> bool {
        self.planes.iter().any(|p| p.number == plane)
    }

    /// The path that packets between these addresses and ports take; `None` where there are no switches.
    pub(super) fn path(&self, plane: u16, src: SocketAddr, dst: SocketAddr) -> Option<u16> {
        let plane = self.planes.iter().find(|p| p.number == plane)?;
        Some((hash(src, dst) % u32::from(plane.switches.paths)) as u16)
    }

    /// A host sends a packet into a plane that has switches.
    pub(super) fn enter(&mut self, plane: u16, from: usize, to: usize, flight: Flight) {
        let Some(at) = self.planes.iter().position(|p| p.number == plane) else { return };
        let path = (hash(flight.src, flight.dst) % u32::from(self.planes[at].switches.paths)) as u16;
        let link = from * self.planes[at].per_host();
        let when = flight.at;
        self.push(when, at, Happens::Comes(link, Hop { flight, to, path }));
    }

    /// When something happens next inside the switches.
    pub(super) fn next(&self) -> Option<Time> {
        self.events.peek().map(|e| e.0.at)
    }

    /// Lets the next thing happen.
    pub(super) fn step(&mut self, rng: &mut fastrand::Rng) -> Brought {
        let Some(Reverse(event)) = self.events.pop() else { return Brought::Nothing };
        let (now, at) = (event.at, event.plane);
        let plane = &mut self.planes[at];
        match event.what {
            Happens::Comes(number, mut hop) => {
                let (limit, mark) = (plane.switches.queue, plane.switches.mark);
                let link = &mut plane.links[number];
                if link.dead {
                    return Brought::Swallowed(hop.flight);
                }
                // Whoever is paused has told those before it in time.
                if link.switch && link.paused <= now && link.bytes + hop.bytes() > limit {
                    return Brought::Dropped(hop.flight);
                }
                if link.switch && hop.flight.tos & 3 != 0 && is_marked(link.bytes, mark, rng) {
                    self.marked += u64::from(hop.flight.tos & 3 != 3);
                    hop.flight.tos |= 3;
                }
                link.bytes += hop.bytes();
                link.queue.push_back(hop);
                self.serve(now, at, number);
                Brought::Nothing
            }
            Happens::Left(number) => {
                let (per_host, delay) = (plane.per_host(), plane.switches.delay.as_nanos());
                let link = &mut plane.links[number];
                link.sending = false;
                // A pause stops what had begun, too.
                if link.paused > now {
                    self.serve(now, at, number);
                    return Brought::Nothing;
                }
                let Some(mut hop) = link.queue.pop_front() else { return Brought::Nothing };
                link.bytes -= hop.bytes();
                let dead = link.dead;
                self.serve(now, at, number);
                if dead {
                    return Brought::Swallowed(hop.flight);
                }
                let (host, place) = (number / per_host, number % per_host);
                let to = hop.to * per_host + per_host - 1;
                if place == 0 {
                    let next = host * per_host + 1 + usize::from(hop.path);
                    self.push(now + Span::from_nanos(delay / 4), at, Happens::Comes(next, hop));
                } else if number != to {
                    self.push(now + Span::from_nanos(delay / 2), at, Happens::Comes(to, hop));
                } else {
                    hop.flight.at = now + Span::from_nanos(delay - delay / 4 - delay / 2);
                    return Brought::Arrived(hop.to, hop.flight);
                }
                Brought::Nothing
            }
        }
    }

    /// Gives a part this share of its speed.
    pub(super) fn set_share(&mut self, part: Part, share: f64) {
        self.each(part, |link| link.rate = ((link.nominal as f64 * share) as u64).max(1000));
    }

    /// A dead part swallows everything.
    pub(super) fn set_dead(&mut self, part: Part, dead: bool) {
        self.each(part, |link| link.dead = dead);
    }

    /// Nothing moves on a part before `until`.
    pub(super) fn pause(&mut self, part: Part, until: Time) {
        self.each(part, |link| link.paused = link.paused.max(until));
    }

    fn each(&mut self, part: Part, change: impl Fn(&mut Link)) {
        let Some(plane) = self.planes.iter_mut().find(|p| p.number == part.plane()) else { return };
        let per_host = plane.per_host();
        for (number, link) in plane.links.iter_mut().enumerate() {
            let (host, place) = (number / per_host, number % per_host);
            let meant = match part {
                Part::Plane(_) => place != 0,
                Part::Path(_, path) => place == 1 + usize::from(path),
                Part::Port(_, h) => host == h && (place == 0 || place == per_host - 1),
            };
            if meant {
                change(link);
            }
        }
    }

    /// Begins to send the first packet of a queue.
    fn serve(&mut self, now: Time, at: usize, number: usize) {
        let link = &mut self.planes[at].links[number];
        let Some(first) = link.queue.front() else { return };
        if link.sending {
            return;
        }
        link.sending = true;
        let takes = Span::from_nanos(first.bytes() * 8 * 1_000_000_000 / link.rate);
        let from = now.max(link.paused);
        self.push(from + takes, at, Happens::Left(number));
    }

    fn push(&mut self, at: Time, plane: usize, what: Happens) {
        self.order += 1;
        self.events.push(Reverse(Event { at, order: self.order, plane, what }));
    }
}

impl Plane {
    fn per_host(&self) -> usize {
        usize::from(self.switches.paths) + 2
    }
}

impl Link {
    fn new(rate: u64, switch: bool) -> Link {
        let (queue, bytes) = (VecDeque::new(), 0);
        Link { queue, bytes, nominal: rate, rate, sending: false, paused: Time::ZERO, dead: false, switch }
    }
}

fn is_marked(bytes: u64, (from, all): (u64, u64), rng: &mut fastrand::Rng) -> bool {
    bytes > from && (bytes >= all || rng.u64(..all - from) < bytes - from)
}

/// Spreads addresses and ports (FNV-1a, then the finaliser of MurmurHash3).
fn hash(src: SocketAddr, dst: SocketAddr) -> u32 {
    let mut x = 0x811c_9dc5u32;
    let mut eat = |bytes: &[u8]| bytes.iter().for_each(|&b| x = (x ^ u32::from(b)).wrapping_mul(0x0100_0193));
    for end in [src, dst] {
        match end.ip() {
            IpAddr::V4(ip) => eat(&ip.octets()),
            IpAddr::V6(ip) => eat(&ip.octets()),
        }
        eat(&end.port().to_be_bytes());
    }
    x = (x ^ x >> 16).wrapping_mul(0x85eb_ca6b);
    x = (x ^ x >> 13).wrapping_mul(0xc2b2_ae35);
    x ^ x >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: u64 = 1_000_000;
    const SHAPE: Switches = Switches {
        paths: 4,
        port_rate: 800 * MBIT,
        path_rate: 800 * MBIT,
        delay: Span::from_micros(8),
        queue: 100_000,
        mark: (20_000, 60_000),
    };

    fn packet(at: Time, source_port: u16) -> Flight {
        let (src, dst) = (([10, 0, 0, 1], source_port).into(), ([10, 0, 0, 2], 4791).into());
        Flight { at, order: 0, src, dst, tos: 2, bytes: vec![0; 934] }
    }

    /// `packets` from host 0 to host 1, sent at once: when each arrived, how many were dropped, swallowed, and marked.
    fn run(fabric: &mut Fabric, packets: usize, source_port: impl Fn(usize) -> u16) -> (Vec<u64>, usize, usize, usize) {
        for i in 0..packets {
            fabric.enter(0, 0, 1, packet(Time::ZERO, source_port(i)));
        }
        let mut rng = fastrand::Rng::with_seed(1);
        let (mut at, mut dropped, mut swallowed, mut marked) = (Vec::new(), 0, 0, 0);
        while fabric.next().is_some() {
            match fabric.step(&mut rng) {
                Brought::Arrived(host, flight) => {
                    assert_eq!(host, 1);
                    marked += usize::from(flight.tos & 3 == 3);
                    at.push(flight.at.as_nanos());
                }
                Brought::Dropped(_) => dropped += 1,
                Brought::Swallowed(_) => swallowed += 1,
                Brought::Nothing => {}
            }
        }
        (at, dropped, swallowed, marked)
    }

    fn fabric(switches: Switches) -> Fabric {
        let mut fabric = Fabric::default();
        fabric.add(0, switches, 2);
        fabric
    }

    #[test]
    fn packets_arrive_at_the_rate_of_the_port() {
        // 1,000 bytes at 800 Mb/s are 10 us on each of three links.
        let (at, dropped, _, marked) = run(&mut fabric(SHAPE), 100, |_| 50_000);
        let want: Vec<u64> = (0..100).map(|i| 38_000 + i * 10_000).collect();
        assert_eq!((at, dropped, marked), (want, 0, 0));
    }

    #[test]
    fn a_slow_path_marks_then_drops_and_delays_no_other() {
        let mut f = fabric(SHAPE);
        let path = f.path(0, packet(Time::ZERO, 50_000).src, packet(Time::ZERO, 50_000).dst).expect("there are paths");
        f.set_share(Part::Path(0, path), 0.01);
        let other = (50_001..).find(|&port| {
            let p = packet(Time::ZERO, port);
            f.path(0, p.src, p.dst) != Some(path)
        });
        let other = other.expect("another path");
        let (at, dropped, _, marked) = run(&mut f, 400, |i| if i % 2 == 0 { 50_000 } else { other });
        // Of 200 the queue takes 100, and one more for every millisecond.
        assert!((95..=105).contains(&dropped), "{dropped} of 200 dropped");
        assert!(marked > 50, "{marked} marked");
        let quick = at.iter().filter(|&&at| at <= 38_000 + 400 * 10_000).count();
        assert!(quick >= 200, "the other path's {quick} packets came at full speed");
    }

    #[test]
    fn flows_take_all_paths() {
        let f = fabric(SHAPE);
        let mut seen = [0; 4];
        for port in 0xc000..0xc100 {
            let p = packet(Time::ZERO, port);
            seen[usize::from(f.path(0, p.src, p.dst).expect("there are paths"))] += 1;
        }
        assert!(seen.iter().all(|&n| n > 32), "{seen:?}");
    }

    #[test]
    fn dead_parts_swallow_and_paused_ones_lose_nothing() {
        let mut f = fabric(SHAPE);
        f.set_dead(Part::Plane(0), true);
        assert_eq!(run(&mut f, 50, |_| 50_000).2, 50);
        f.set_dead(Part::Plane(0), false);
        f.pause(Part::Port(0, 1), Time::from_nanos(50_000_000));
        let (at, dropped, swallowed, _) = run(&mut f, 300, |_| 50_000);
        assert_eq!((at.len(), dropped, swallowed), (300, 0, 0), "more than a queue holds, and all there");
        assert!(at[0] > 50_000_000);
    }
}
