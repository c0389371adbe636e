//! The planes: a queue with two priorities at every link, marks, trimming, and switches that choose links.

use super::clock::{Clock, Delay, Happens};
use super::faults::Conditions;
use super::layout::Layout;
use super::packet::{Kind, NONE, Packet, Packets};
use super::topo::Topology;

/// Bytes of headers, acknowledgements and trimmed packets on the wire.
pub(super) const HEADER: u32 = 64;

/// How queues behave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queues {
    /// Bytes of data that a switch's queue holds at full speed; twice as many of headers.
    pub(super) limit: u32,
    /// Bytes from which on packets that leave are marked, and from which on all are; in proportion between.
    pub(super) mark: (u32, u32),
    /// What does not fit loses its payload; otherwise it is dropped.
    pub(super) trim: bool,
    /// Switches send each packet to the shortest of their queues instead of by hash.
    pub(super) adaptive: bool,
    /// Bytes of a full packet on the wire.
    pub(super) full: u32,
}

/// What befell packets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// Links crossed by data, and by headers and acknowledgements.
    pub(super) data_hops: u64,
    pub(super) header_hops: u64,
    pub(super) trimmed: u64,
    pub(super) dropped: u64,
    /// Swallowed by dead links.
    pub(super) swallowed: u64,
    pub(super) marked: u64,
}

/// One direction of a link and the queue in front of it. List 0 is data, list 1 is headers, which go first.
#[repr(align(64))]
struct Link {
    first: [u32; 2],
    last: [u32; 2],
    bytes: [u32; 2],
    /// The switch at its end among all planes' switches, or the host.
    to: u32,
    /// Picoseconds per 1,024 bytes; 0 if it is dead.
    slowness: u32,
    /// Of full packets and of headers, if they have queues of events; and what lies behind the link.
    delays: [Option<Delay>; 2],
    pipe: Delay,
    /// As in [`Queues`], for the speed that the link has: queues hold a time, not a number of bytes.
    limit: u32,
    mark: (u32, u32),
    serving: Option<u8>,
    to_host: bool,
    from_host: bool,
    plane: u8,
}

/// All planes.
pub(super) struct Fabric {
    pub(super) packets: Packets,
    pub(super) clock: Clock,
    pub(super) tally: Tally,
    layout: Layout,
    links: Vec<Link>,
    /// Links of one plane, and switches.
    per_plane: u32,
    switches: u32,
    salts: Vec<u64>,
    queues: Queues,
    /// The way through a switch, for adaptive ones.
    pipeline: [Option<Delay>; 3],
    random: fastrand::Rng,
}

impl Fabric {
    pub(super) fn new(t: &Topology, planes: u8, queues: Queues, seed: u64) -> Fabric {
        let layout = Layout::new(t);
        let mut random = fastrand::Rng::with_seed(seed);
        let switches = layout.leaves + layout.middles + layout.cores;
        let mut clock = Clock::new();
        let mut links = Vec::new();
        let need = "few delays are known before the links are";
        for plane in 0..planes {
            for link in 0..layout.links() {
                let wire = layout.wire(link);
                let tier = t.tiers[usize::from(wire.tier)];
                let through = wire.to.map_or(0, |to| layout.tier(to, t).switch_ns);
                let ns = tier.link_ns + if queues.adaptive { 0 } else { through };
                links.push(Link {
                    first: [NONE; 2],
                    last: [NONE; 2],
                    bytes: [0; 2],
                    to: wire.to.map_or(wire.host.unwrap_or(0), |to| u32::from(plane) * switches + to),
                    slowness: 0,
                    delays: [None; 2],
                    pipe: clock.delay(u64::from(ns) * 1000).expect(need),
                    limit: queues.limit,
                    mark: queues.mark,
                    serving: None,
                    to_host: wire.to.is_none(),
                    from_host: wire.from.is_none(),
                    plane,
                });
            }
        }
        let mut pipeline = [None; 3];
        for (at, tier) in t.tiers.iter().enumerate() {
            pipeline[at] = clock.delay(u64::from(tier.switch_ns) * 1000);
        }
        let mut fabric = Fabric {
            packets: Packets::new(),
            clock,
            tally: Tally::default(),
            per_plane: layout.links(),
            layout,
            links,
            switches,
            salts: (0..u32::from(planes) * switches).map(|_| random.u64(..)).collect(),
            queues,
            pipeline,
            random,
        };
        let whole = Conditions::new(planes);
        (0..planes).for_each(|p| fabric.set_speeds(p, t, &whole));
        fabric
    }

    /// Gives all links of a plane the speeds that they have now. A packet that is being sent keeps its time.
    pub(super) fn set_speeds(&mut self, plane: u8, t: &Topology, conditions: &Conditions) {
        let shares = conditions.shares(plane, &self.layout);
        let first = u32::from(plane) * self.per_plane;
        for (link, share) in shares.into_iter().enumerate() {
            let gbps = f64::from(t.tiers[usize::from(self.layout.wire(link as u32).tier)].gbps) * share;
            let slowness = if share > 0.0 { (8.0 * 1024.0 * 1000.0 / gbps).round() as u32 } else { 0 };
            let l = &mut self.links[first as usize + link];
            if l.slowness == slowness && l.delays[0].is_some() {
                continue;
            }
            l.slowness = slowness;
            if slowness > 0 {
                let scaled = |bytes: u32| (f64::from(bytes) * share) as u32;
                l.limit = scaled(self.queues.limit).max(2 * self.queues.full);
                l.mark = (scaled(self.queues.mark.0), scaled(self.queues.mark.1));
                l.delays = [self.queues.full, HEADER].map(|size| self.clock.delay(l.takes(size)));
            }
        }
    }

    /// A host sends a packet into its plane.
    #[inline]
    pub(super) fn send(&mut self, host: u32, packet: Packet) {
        let link = u32::from(packet.pick.plane) * self.per_plane + self.layout.host_up(host);
        let at = self.packets.add(packet);
        self.queue(link, at);
    }

    /// Puts a packet into the queue of a link.
    pub(super) fn queue(&mut self, link: u32, packet: u32) {
        let l = &mut self.links[link as usize];
        let p = &mut self.packets[packet];
        let size = u32::from(p.size);
        let mut list = usize::from(p.kind != Kind::Data);
        if list == 0 && !l.from_host && l.bytes[0] + size > l.limit {
            // Half of the time the newest one that waits makes room.
            let mut victim = packet;
            if self.random.bool() && l.last[0] != l.first[0] {
                victim = l.last[0];
                let prev = self.packets[victim].prev;
                self.packets[prev].next = NONE;
                l.last[0] = prev;
                l.bytes[0] -= u32::from(self.packets[victim].size);
                push(&mut self.packets, l, 0, packet);
            }
            if !self.queues.trim {
                self.tally.dropped += 1;
                self.packets.remove(victim);
                return;
            }
            self.tally.trimmed += 1;
            let v = &mut self.packets[victim];
            v.kind = Kind::Trimmed;
            v.size = HEADER as u16;
            v.last_hop = l.to_host;
            list = 1;
            if l.bytes[1] + HEADER > 2 * self.queues.limit {
                self.tally.dropped += 1;
                self.packets.remove(victim);
                return;
            }
            push(&mut self.packets, l, list, victim);
        } else {
            if list == 1 && !l.from_host && l.bytes[1] + size > 2 * self.queues.limit {
                self.tally.dropped += 1;
                self.packets.remove(packet);
                return;
            }
            push(&mut self.packets, l, list, packet);
        }
        if l.serving.is_none() {
            self.serve(link);
        }
    }

    /// Begins to send the next packet of a queue.
    fn serve(&mut self, link: u32) {
        let full = self.queues.full;
        let l = &mut self.links[link as usize];
        let list = if l.first[1] != NONE {
            1
        } else if l.first[0] != NONE {
            0
        } else {
            l.serving = None;
            return;
        };
        l.serving = Some(list as u8);
        let size = u32::from(self.packets[l.first[list]].size);
        let what = Happens::Served(link);
        let known = if size == full { l.delays[0] } else { l.delays[1].filter(|_| size == HEADER) };
        match known {
            Some(delay) => self.clock.after(delay, what),
            None => self.clock.at(self.clock.now() + l.takes(size), what),
        }
    }

    /// A link has sent its packet: it is on its way, and the next one is sent.
    pub(super) fn served(&mut self, link: u32) {
        let l = &mut self.links[link as usize];
        let list = usize::from(l.serving.unwrap_or(0));
        let at = l.first[list];
        let p = &mut self.packets[at];
        l.first[list] = p.next;
        l.bytes[list] -= u32::from(p.size);
        if p.next == NONE {
            l.last[list] = NONE;
        }
        if list == 0 {
            self.tally.data_hops += 1;
            let (from, all) = l.mark;
            if l.bytes[0] > from && !l.from_host {
                let over = l.bytes[0] - from;
                if l.bytes[0] > all || self.random.u32(..all - from) < over {
                    self.tally.marked += u64::from(!p.marked);
                    p.marked = true;
                }
            }
        } else {
            self.tally.header_hops += 1;
        }
        if l.slowness == 0 {
            self.tally.swallowed += 1;
            self.packets.remove(at);
        } else {
            self.clock.after(l.pipe, Happens::Arrives { link, packet: at });
        }
        self.serve(link);
    }

    /// A packet has come to the end of a link: `Some` host if it is there.
    #[inline]
    pub(super) fn arrives(&mut self, link: u32, packet: u32) -> Option<u32> {
        let l = &self.links[link as usize];
        if l.to_host {
            return Some(l.to);
        }
        let p = &self.packets[packet];
        let plane = u32::from(l.plane);
        let switch = l.to - plane * self.switches;
        let (first, n) = self.layout.route(switch, p.to);
        let first = plane * self.per_plane + first;
        let adaptive = self.queues.adaptive && p.kind == Kind::Data;
        let nth = match n {
            1 => 0,
            _ if adaptive => self.shortest(first, n),
            _ => {
                let flow = u64::from(p.flow) << 32 | u64::from(p.pick.path) << 1 | u64::from(p.kind >= Kind::Ack);
                ((u64::from(hash(flow ^ self.salts[l.to as usize])) * u64::from(n)) >> 32) as u32
            }
        };
        if self.queues.adaptive {
            let tier =
                u32::from(switch >= self.layout.leaves) + u32::from(switch >= self.layout.leaves + self.layout.middles);
            if let Some(delay) = self.pipeline[tier as usize] {
                self.clock.after(delay, Happens::Queued { link: first + nth, packet });
                return None;
            }
        }
        self.queue(first + nth, packet);
        None
    }

    /// A random one of the shortest queues. Switches see lengths in four steps: 5, 10 and 20 % of the limit.
    fn shortest(&mut self, first: u32, n: u32) -> u32 {
        let limit = self.queues.limit;
        let step = |bytes: u32| {
            u32::from(bytes * 20 >= limit) + u32::from(bytes * 10 >= limit) + u32::from(bytes * 5 >= limit)
        };
        let (mut best, mut ties, mut chosen) = (u32::MAX, 0, 0);
        for i in 0..n {
            let l = &self.links[(first + i) as usize];
            let length = step(l.bytes[0] + l.bytes[1]);
            if length < best {
                (best, ties) = (length, 0);
            }
            if length == best {
                ties += 1;
                // Each of the ties is as likely.
                if self.random.u32(..ties) == 0 {
                    chosen = i;
                }
            }
        }
        chosen
    }
}

impl Link {
    fn takes(&self, size: u32) -> u64 {
        // A dead link swallows packets at some speed.
        u64::from(size) * u64::from(self.slowness.max(1024)) / 1024
    }
}

#[inline]
fn push(packets: &mut Packets, l: &mut Link, list: usize, at: u32) {
    let p = &mut packets[at];
    p.next = NONE;
    p.prev = l.last[list];
    l.bytes[list] += u32::from(p.size);
    if l.last[list] == NONE {
        l.first[list] = at;
    } else {
        packets[l.last[list]].next = at;
    }
    l.last[list] = at;
}

/// Spreads the bits of a flow's name (the finaliser of SplitMix64).
#[inline]
fn hash(mut x: u64) -> u32 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x >> 32) as u32
}
