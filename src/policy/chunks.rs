//! Chunks over fixed paths, as queue pairs of a reliable connection allow: only a chunk's completion is seen.

use super::{Pick, Policy, Report};
use crate::time::Time;

/// How the path of a chunk is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkRule {
    /// In turn.
    RoundRobin,
    /// Of two random ones the one with the lower smoothed completion time.
    TwoRandomRtt,
    /// The smallest (posted + chunk) / measured rate.
    ExpectedCompletion,
}

/// Chunks that a flow has posted at once.
const POSTED: usize = 16;

/// A scheduler of chunks over the lanes (fixed paths) of one connection. Packets go in turn over lanes that have some.
pub struct Chunks {
    rule: ChunkRule,
    planes: u16,
    packets: u16,
    lanes: Box<[Lane]>,
    chunks: Box<[Chunk]>,
    free: Vec<u16>,
    turn: usize,
    next_lane: usize,
}

#[derive(Clone, Copy)]
struct Lane {
    path: u16,
    /// Chunks that wait to be sent, oldest first, as a list through [`Chunk::next`].
    first: u16,
    last: u16,
    /// Packets posted and not complete.
    posted: u32,
    /// Smoothed completion time of a chunk, and packets per millisecond; 0 before the first.
    completion_ns: u64,
    rate: u64,
    /// When the last chunk completed, or when it began to have work.
    since: Time,
}

#[derive(Clone, Copy)]
struct Chunk {
    lane: u16,
    next: u16,
    unsent: u16,
    open: u16,
    posted: Time,
}

const NONE: u16 = u16::MAX;

impl Chunks {
    /// `lanes` fixed paths over the planes, and chunks of so many packets.
    pub fn new(rule: ChunkRule, planes: u8, lanes: u16, packets: u16, random: &mut fastrand::Rng) -> Chunks {
        let planes = u16::from(planes);
        let lane = |i: u16| Lane {
            // Any value of the lane's plane.
            path: random.u16(..256) * planes + i % planes,
            first: NONE,
            last: NONE,
            posted: 0,
            completion_ns: 0,
            rate: 0,
            since: Time::ZERO,
        };
        let chunk = Chunk { lane: 0, next: NONE, unsent: 0, open: 0, posted: Time::ZERO };
        // Chunks that are sent but not complete are still open: the window bounds them.
        Chunks {
            rule,
            planes,
            packets: packets.max(1),
            lanes: (0..lanes.max(1)).map(lane).collect(),
            chunks: vec![chunk; POSTED].into(),
            free: (0..POSTED as u16).rev().collect(),
            turn: 0,
            next_lane: 0,
        }
    }

    fn choose(&mut self, random: &mut fastrand::Rng) -> usize {
        let n = self.lanes.len();
        match self.rule {
            ChunkRule::RoundRobin => {
                self.next_lane = (self.next_lane + 1) % n;
                self.next_lane
            }
            ChunkRule::TwoRandomRtt => {
                let (a, b) = (random.usize(..n), random.usize(..n));
                if self.lanes[b].completion_ns < self.lanes[a].completion_ns { b } else { a }
            }
            ChunkRule::ExpectedCompletion => {
                let known = self.lanes.iter().filter(|l| l.rate > 0);
                let (sum, count) = known.fold((0, 0), |(s, c), l| (s + l.rate, c + 1));
                // A lane that was never measured is taken for an average one.
                let usual = u64::checked_div(sum, count).unwrap_or(1000).max(1);
                let start = random.usize(..n);
                let expected = |l: &Lane| {
                    u64::from(l.posted + u32::from(self.packets)) * 1_000_000 / if l.rate > 0 { l.rate } else { usual }
                };
                (0..n).map(|i| (start + i) % n).min_by_key(|&i| expected(&self.lanes[i])).unwrap_or(0)
            }
        }
    }

    fn post(&mut self, now: Time, random: &mut fastrand::Rng) {
        while let Some(slot) = self.free.pop() {
            let at = self.choose(random);
            self.chunks[usize::from(slot)] =
                Chunk { lane: at as u16, next: NONE, unsent: self.packets, open: self.packets, posted: now };
            let lane = &mut self.lanes[at];
            if lane.posted == 0 {
                lane.since = now;
            }
            lane.posted += u32::from(self.packets);
            if lane.first == NONE {
                lane.first = slot;
            } else {
                self.chunks[usize::from(lane.last)].next = slot;
            }
            lane.last = slot;
        }
    }
}

impl Policy for Chunks {
    fn pick(&mut self, now: Time, random: &mut fastrand::Rng) -> Pick {
        self.post(now, random);
        let n = self.lanes.len();
        let found = (0..n).map(|i| (self.turn + i) % n).find(|&i| self.lanes[i].first != NONE);
        let Some(at) = found else {
            // Everything is posted and sent; what is retransmitted now goes by an open chunk's lane.
            let at = random.usize(..n);
            let path = self.lanes[at].path;
            return Pick { plane: (path % self.planes) as u8, path, chunk: NONE };
        };
        self.turn = (at + 1) % n;
        let lane = &mut self.lanes[at];
        let slot = lane.first;
        let chunk = &mut self.chunks[usize::from(slot)];
        chunk.unsent -= 1;
        if chunk.unsent == 0 {
            lane.first = chunk.next;
        }
        Pick { plane: (lane.path % self.planes) as u8, path: lane.path, chunk: slot }
    }

    fn acknowledged(&mut self, _now: Time, _report: Report) {}

    fn delivered(&mut self, now: Time, report: Report) {
        self.done(now, report.pick);
    }

    /// The packet is sent again, by whatever lane is next: its chunk is done without it.
    fn trimmed(&mut self, now: Time, pick: Pick, _last_hop: bool, _marked: bool) {
        self.done(now, pick);
    }

    fn timed_out(&mut self, now: Time, pick: Pick) {
        self.done(now, pick);
    }
}

impl Chunks {
    fn done(&mut self, now: Time, pick: Pick) {
        let Some(chunk) = self.chunks.get_mut(usize::from(pick.chunk)) else { return };
        chunk.open = chunk.open.saturating_sub(1);
        if chunk.open > 0 {
            return;
        }
        let lane = &mut self.lanes[usize::from(chunk.lane)];
        lane.posted = lane.posted.saturating_sub(u32::from(self.packets));
        let took = now.since(chunk.posted).as_nanos();
        lane.completion_ns = if lane.completion_ns == 0 { took } else { lane.completion_ns / 8 * 7 + took / 8 };
        // What the lane did since it last completed one, or since this one was posted to an idle lane.
        let since = now.since(lane.since.max(chunk.posted)).as_nanos().max(1);
        let rate = u64::from(self.packets) * 1_000_000 / since;
        lane.rate = if lane.rate == 0 { rate } else { (lane.rate * 3 + rate) / 4 }.max(1);
        lane.since = now;
        self.free.push(pick.chunk);
    }
}
