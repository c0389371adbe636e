//! What happens next: events in order of time, kept in one queue for each delay that occurs.
//!
//! Nearly all events of a simulation lie a constant time ahead (a packet's time on a link, the time that a full packet
//! takes to send), so each such queue is in order by itself and the next event is the first of few heads.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What happens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Happens {
    /// A link has sent the first packet of its queue.
    Served(u32),
    /// A packet has come to the end of a link.
    Arrives { link: u32, packet: u32 },
    /// A packet comes out of a switch's pipeline to the queue of a link.
    Queued { link: u32, packet: u32 },
    /// A host may send again.
    HostFree(u32),
    /// A flow's timer.
    Timer(u32),
    /// A flow begins.
    Start(u32),
    /// A part of the fabric changes.
    Change(u32),
}

/// A delay that occurs often.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Delay(u8);

/// The queues of events. Times are picoseconds.
pub(super) struct Clock {
    now: u64,
    heads: Vec<u64>,
    queues: Vec<VecDeque<(u64, Happens)>>,
    delays: Vec<u64>,
    rare: BinaryHeap<Reverse<(u64, u64, Happens)>>,
    order: u64,
}

/// Queues at most; delays beyond them go to the heap.
const QUEUES: usize = 32;

impl Clock {
    pub(super) fn new() -> Clock {
        Clock { now: 0, heads: Vec::new(), queues: Vec::new(), delays: Vec::new(), rare: BinaryHeap::new(), order: 0 }
    }

    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// The queue for a delay that will occur often; `None` if there are too many already.
    pub(super) fn delay(&mut self, ps: u64) -> Option<Delay> {
        if let Some(at) = self.delays.iter().position(|&d| d == ps) {
            return Some(Delay(at as u8));
        }
        if self.delays.len() == QUEUES {
            return None;
        }
        self.delays.push(ps);
        self.heads.push(u64::MAX);
        self.queues.push(VecDeque::with_capacity(256));
        Some(Delay(self.delays.len() as u8 - 1))
    }

    #[inline]
    pub(super) fn after(&mut self, delay: Delay, what: Happens) {
        let q = usize::from(delay.0);
        let at = self.now + self.delays[q];
        if self.queues[q].is_empty() {
            self.heads[q] = at;
        }
        self.queues[q].push_back((at, what));
    }

    /// At any time that is not past.
    pub(super) fn at(&mut self, ps: u64, what: Happens) {
        self.order += 1;
        self.rare.push(Reverse((ps.max(self.now), self.order, what)));
    }

    /// The next event before `end`; the clock is then at its time.
    #[inline]
    pub(super) fn next(&mut self, end: u64) -> Option<Happens> {
        let mut best = (u64::MAX, 0);
        for (q, &at) in self.heads.iter().enumerate() {
            if at < best.0 {
                best = (at, q);
            }
        }
        if let Some(&Reverse((at, _, what))) = self.rare.peek()
            && at <= best.0
        {
            if at >= end {
                return None;
            }
            self.rare.pop();
            self.now = at;
            return Some(what);
        }
        if best.0 >= end {
            return None;
        }
        let queue = &mut self.queues[best.1];
        let (at, what) = queue.pop_front()?;
        self.heads[best.1] = queue.front().map_or(u64::MAX, |e| e.0);
        self.now = at;
        Some(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_of_time_whatever_queue_they_are_in() {
        let mut c = Clock::new();
        let (short, long) = (c.delay(10).expect("a queue"), c.delay(100).expect("a queue"));
        assert_eq!(c.delay(10), Some(short));
        c.after(long, Happens::Served(1));
        c.after(short, Happens::Served(2));
        c.at(50, Happens::Timer(3));
        c.at(50, Happens::Timer(4));
        let mut seen = Vec::new();
        while let Some(what) = c.next(1000) {
            seen.push((c.now(), what));
            if seen.len() == 1 {
                c.after(short, Happens::Served(5));
            }
        }
        let want = [
            (10, Happens::Served(2)),
            (20, Happens::Served(5)),
            (50, Happens::Timer(3)),
            (50, Happens::Timer(4)),
            (100, Happens::Served(1)),
        ];
        assert_eq!(seen, want);
        c.at(2000, Happens::Start(0));
        assert_eq!(c.next(1000), None, "what lies beyond the end stays");
    }

    #[test]
    fn too_many_delays_are_refused() {
        let mut c = Clock::new();
        assert!((0..32).all(|i| c.delay(i).is_some()));
        assert_eq!(c.delay(99), None);
    }
}
