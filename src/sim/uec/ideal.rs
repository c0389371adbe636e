//! The time that the slowest flow takes at best: bytes over what the links can carry, by maximum flow.

use std::collections::VecDeque;

use super::faults::{Change, Conditions};
use super::layout::Layout;
use super::matrix::{Matrix, Start};
use super::topo::Topology;

/// What bounds the flows in one span of time.
struct Bounds {
    /// From when, in nanoseconds.
    from: f64,
    /// Bytes per nanosecond of each (host, plane): sent and received, and the host's share of its leaf's way out and in.
    sent: Vec<f64>,
    received: Vec<f64>,
    out: Vec<f64>,
    inward: Vec<f64>,
}

/// Nanoseconds until the last byte of the last flow has arrived, at best and without the round trip.
///
/// Host links are shared by the flows of the host. A leaf's way out (its maximum flow to all other leaves, with slow
/// and dead links as they are at each time) is shared equally by its hosts, as if all of them sent at once: so it
/// is the time of the fullest permutation, and a given one that keeps some flows inside leaves may allow less.
pub(super) fn ideal_ns(
    t: &Topology,
    planes: u8,
    changes: &[Change],
    matrix: &Matrix,
    wire: impl Fn(u32) -> u64,
) -> f64 {
    let layout = Layout::new(t);
    let mut changes: Vec<Change> = changes.to_vec();
    changes.sort_by_key(|c| c.at);
    let mut conditions = Conditions::new(planes);
    let mut segments: Vec<Bounds> = Vec::new();
    let mut at = 0;
    let mut begin = 0;
    loop {
        while let Some(c) = changes.get(at).filter(|c| c.at.as_nanos() <= begin) {
            conditions.apply(c.part, c.speed);
            at += 1;
        }
        segments.push(bounds(begin as f64, t, &layout, planes, &conditions));
        match changes.get(at) {
            Some(c) => begin = c.at.as_nanos(),
            None => break,
        }
    }
    let hosts = t.hosts as usize;
    let (mut sent, mut received) = (vec![0u64; hosts], vec![0u64; hosts]);
    let (mut out, mut inward) = (sent.clone(), sent.clone());
    let mut worst: f64 = 0.0;
    let planes = usize::from(planes);
    for f in &matrix.flows {
        let Start::At(us) = f.start else { continue };
        let bytes = wire(f.bytes);
        let (a, b) = (f.from as usize, f.to as usize);
        sent[a] += bytes;
        received[b] += bytes;
        let far = t.leaf(f.from) != t.leaf(f.to);
        if far {
            out[a] += bytes;
            inward[b] += bytes;
        }
        let rate = |s: &Bounds| {
            let per_plane = (0..planes).map(|p| {
                let (a, b) = (a * planes + p, b * planes + p);
                let near = s.sent[a].min(s.received[b]);
                if far { near.min(s.out[a]).min(s.inward[b]) } else { near }
            });
            per_plane.sum()
        };
        // Changes count from the start of the run, and so does a flow's time until it begins.
        let start = f64::from(us) * 1e3;
        worst = worst.max(time(&segments, bytes, start, rate) - start);
    }
    let sum = |of: &[f64], h: usize| of[h * planes..(h + 1) * planes].iter().sum();
    for h in 0..hosts {
        worst = worst.max(time(&segments, sent[h], 0.0, |s| sum(&s.sent, h)));
        worst = worst.max(time(&segments, received[h], 0.0, |s| sum(&s.received, h)));
        let both = |port: &[f64], way: &[f64]| (0..planes).map(|p| port[h * planes + p].min(way[h * planes + p])).sum();
        worst = worst.max(time(&segments, out[h], 0.0, |s| both(&s.sent, &s.out)));
        worst = worst.max(time(&segments, inward[h], 0.0, |s| both(&s.received, &s.inward)));
    }
    worst
}

/// When so many bytes are done that begin at `start`; infinite if the last segment carries nothing.
fn time(segments: &[Bounds], bytes: u64, start: f64, rate: impl Fn(&Bounds) -> f64) -> f64 {
    let mut left = bytes as f64;
    if left == 0.0 {
        return 0.0;
    }
    for (i, s) in segments.iter().enumerate() {
        let end = segments.get(i + 1).map_or(f64::INFINITY, |n| n.from);
        let from = s.from.max(start);
        if end <= from {
            continue;
        }
        let rate = rate(s);
        if left <= rate * (end - from) {
            return from + left / rate;
        }
        left -= rate * (end - from);
    }
    f64::INFINITY
}

fn bounds(from: f64, t: &Topology, layout: &Layout, planes: u8, conditions: &Conditions) -> Bounds {
    let (hosts, n) = (t.hosts as usize, usize::from(planes));
    let mut b = Bounds {
        from,
        sent: vec![0.0; hosts * n],
        received: vec![0.0; hosts * n],
        out: vec![0.0; hosts * n],
        inward: vec![0.0; hosts * n],
    };
    for plane in 0..planes {
        let shares = conditions.shares(plane, layout);
        let bytes_per_ns =
            |link: u32| f64::from(t.tiers[usize::from(layout.wire(link).tier)].gbps) / 8.0 * shares[link as usize];
        let mut graph = Graph::new(layout, bytes_per_ns);
        let share = 1.0 / f64::from(layout.hosts_per_leaf());
        // Leaves of an even plane are alike.
        let alike = conditions.even(plane);
        let mut ways = (0.0, 0.0);
        for leaf in 0..layout.leaves {
            if leaf == 0 || !alike {
                ways = (graph.out_of(leaf, layout) * share, graph.inward_of(leaf, layout) * share);
            }
            let first = leaf * layout.hosts_per_leaf();
            for host in first..first + layout.hosts_per_leaf() {
                let at = host as usize * n + usize::from(plane);
                b.sent[at] = bytes_per_ns(layout.host_up(host));
                b.received[at] = bytes_per_ns(layout.host_down(host));
                (b.out[at], b.inward[at]) = ways;
            }
        }
    }
    b
}

/// Switches and the links between them, with one vertex more that stands for all other leaves' hosts.
struct Graph {
    /// Edges of each vertex; an edge and the one that takes it back are neighbours.
    at: Vec<Vec<u32>>,
    to: Vec<u32>,
    room: Vec<f64>,
    /// Capacities to start from.
    whole: Vec<f64>,
    /// The edge between each leaf and the extra vertex, towards it.
    rest: Vec<u32>,
    level: Vec<u32>,
}

impl Graph {
    fn new(layout: &Layout, capacity: impl Fn(u32) -> f64) -> Graph {
        let switches = (layout.leaves + layout.middles + layout.cores) as usize;
        let mut g = Graph {
            at: vec![Vec::new(); switches + 1],
            to: Vec::new(),
            room: Vec::new(),
            whole: Vec::new(),
            rest: Vec::new(),
            level: vec![0; switches + 1],
        };
        for link in 0..layout.links() {
            let wire = layout.wire(link);
            if let (Some(a), Some(b)) = (wire.from, wire.to) {
                g.edge(a, b, capacity(link));
            }
        }
        for leaf in 0..layout.leaves {
            let edge = g.edge(leaf, switches as u32, 0.0);
            g.rest.push(edge);
        }
        g
    }

    fn edge(&mut self, a: u32, b: u32, capacity: f64) -> u32 {
        let edge = self.to.len() as u32;
        self.to.extend([b, a]);
        self.whole.extend([capacity, 0.0]);
        self.at[a as usize].push(edge);
        self.at[b as usize].push(edge + 1);
        edge
    }

    /// The most that a leaf can send to all others together.
    fn out_of(&mut self, leaf: u32, layout: &Layout) -> f64 {
        self.fill(leaf, 0);
        let sink = self.at.len() as u32 - 1;
        self.most(leaf, sink, layout)
    }

    /// The most that a leaf can receive from all others together.
    fn inward_of(&mut self, leaf: u32, layout: &Layout) -> f64 {
        self.fill(leaf, 1);
        let source = self.at.len() as u32 - 1;
        self.most(source, leaf, layout)
    }

    /// Whole capacities; between other leaves and the extra vertex there is no limit.
    fn fill(&mut self, leaf: u32, direction: u32) {
        self.room.clone_from(&self.whole);
        for (other, &edge) in self.rest.iter().enumerate() {
            if other as u32 != leaf {
                self.room[(edge + direction) as usize] = 1e9;
            }
        }
    }

    /// Maximum flow by blocking flows along shortest ways (Dinic).
    fn most(&mut self, source: u32, sink: u32, layout: &Layout) -> f64 {
        let mut total = 0.0;
        // Ways get longer with each round, and none is longer than the number of switches.
        for _ in 0..layout.leaves + layout.middles + layout.cores + 1 {
            self.levels(source);
            if self.level[sink as usize] == u32::MAX {
                break;
            }
            let mut next = vec![0usize; self.at.len()];
            loop {
                let pushed = self.push(source, sink, f64::INFINITY, &mut next);
                if pushed <= TINY {
                    break;
                }
                total += pushed;
            }
        }
        total
    }

    fn levels(&mut self, source: u32) {
        self.level.fill(u32::MAX);
        self.level[source as usize] = 0;
        let mut queue = VecDeque::from([source]);
        while let Some(v) = queue.pop_front() {
            for &e in &self.at[v as usize] {
                let to = self.to[e as usize] as usize;
                if self.room[e as usize] > TINY && self.level[to] == u32::MAX {
                    self.level[to] = self.level[v as usize] + 1;
                    queue.push_back(to as u32);
                }
            }
        }
    }

    fn push(&mut self, v: u32, sink: u32, most: f64, next: &mut [usize]) -> f64 {
        if v == sink {
            return most;
        }
        while let Some(&e) = self.at[v as usize].get(next[v as usize]) {
            let to = self.to[e as usize];
            let room = self.room[e as usize];
            if room > TINY && self.level[to as usize] == self.level[v as usize] + 1 {
                let pushed = self.push(to, sink, most.min(room), next);
                if pushed > TINY {
                    self.room[e as usize] -= pushed;
                    self.room[(e ^ 1) as usize] += pushed;
                    return pushed;
                }
            }
            next[v as usize] += 1;
        }
        0.0
    }
}

/// Bytes per nanosecond that do not count.
const TINY: f64 = 1e-9;

#[cfg(test)]
mod tests {
    use super::super::faults::Part;
    use super::super::generate::Pattern;
    use super::*;
    use crate::time::Span;

    /// 8 MiB in packets of 4,086 bytes with headers of 64.
    fn wire(bytes: u32) -> u64 {
        u64::from(bytes) + u64::from(bytes.div_ceil(4086)) * 64
    }

    fn ideal_us(text: &str, planes: u8, changes: &[&str]) -> f64 {
        let t = Topology::parse(text).expect("a good file");
        let changes: Vec<Change> = changes.iter().map(|c| c.parse().expect("an event")).collect();
        let m = Pattern::Tornado.matrix(t.hosts, 8 << 20);
        ideal_ns(&t, planes, &changes, &m, wire) / 1e3
    }

    const L400: &str = include_str!("../../../tests/fabric/ls128_400g.topo");
    const L100: &str = include_str!("../../../tests/fabric/ls128_100g.topo");

    /// To a tenth of a microsecond.
    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 0.1
    }

    #[test]
    fn slow_and_dead_parts_take_their_share() {
        let whole = 170.4;
        assert!(near(ideal_us(L400, 1, &[]), whole));
        let slow: Vec<String> = (0..4).map(|s| format!("0us:spine:{s}:0.25")).collect();
        let slow: Vec<&str> = slow.iter().map(String::as_str).collect();
        assert!(near(ideal_us(L400, 1, &slow), whole * 16.0 / 13.0));
        assert!(near(ideal_us(L400, 1, &slow[..1]), whole * 16.0 / 15.25));
        assert!(near(ideal_us(L100, 4, &["0us:plane:0:0.5"]), whole * 4.0 / 3.5));
        let dead = 50.0 + (whole - 50.0) * 4.0 / 3.0;
        assert!(near(ideal_us(L100, 4, &["50us:plane:0:dead"]), dead));
        assert!(near(ideal_us(L100, 4, &["50us:host:3.0:dead"]), dead), "one port bounds one flow");
        assert!(near(ideal_us(L100, 4, &["50us:plane:0:dead", "150us:plane:0:up"]), whole + 25.0));
        let spine = 50.0 + (whole - 50.0) * 64.0 / 63.0;
        assert!(near(ideal_us(L100, 4, &["50us:spine:0.3:dead"]), spine));
        assert_eq!(ideal_us(L100, 1, &["50us:plane:0:dead"]), f64::INFINITY);
    }

    #[test]
    fn incast_is_bound_by_the_receiver_and_fat_trees_are_whole() {
        let t = Topology::parse(L400).expect("a good file");
        let m = Pattern::Incast { senders: 32 }.matrix(128, 1 << 20);
        assert!(near(ideal_ns(&t, 1, &[], &m, wire) / 1e3, 32.0 * 21.3));
        let t = Topology::parse(include_str!("../../../tests/fabric/ft1024_400g.topo")).expect("a good file");
        let m = Pattern::Tornado.matrix(1024, 8 << 20);
        assert!(near(ideal_ns(&t, 1, &[], &m, wire) / 1e3, 170.4));
        let core = Change { at: Span::ZERO, part: Part::Spine { plane: None, spine: 0 }, speed: 0.0 };
        // One of the eight cores that a second-tier switch reaches, so one of the 64 ways out of a leaf's pod.
        let slowed = ideal_ns(&t, 1, &[core], &m, wire) / 1e3;
        assert!(near(slowed, 170.4), "a leaf alone does not fill its pod's ways: {slowed}");
    }
}
