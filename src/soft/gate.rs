//! What stands between a port and its sockets when a failing or slow plane is played: a cut that nobody is told of, and a
//! rate.

use std::collections::VecDeque;

use crate::roce::PathId;
use crate::time::{Span, Time};

/// Bytes that may wait for their turn; what comes beyond is lost, as in a switch.
const QUEUE: usize = 2 << 20;
/// From so many waiting bytes on packets are marked.
const MARK_FROM: usize = 128 << 10;
/// What a packet takes on a wire besides its bytes: Ethernet, IPv4 and UDP headers, preamble and gap.
const OVERHEAD: u64 = 66;

/// One port's gate.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// Nothing passes, either way.
    pub(super) cut: bool,
    /// Bits per second.
    rate: Option<u64>,
    waiting: VecDeque<Burst>,
    bytes: usize,
    free_at: Time,
    spare: Vec<Vec<u8>>,
}

/// A burst that waits.
#[derive(Debug)]
pub(super) struct Burst {
    pub(super) path: PathId,
    pub(super) tos: u8,
    pub(super) segment: usize,
    pub(super) bytes: Vec<u8>,
    due: Time,
}

impl Gate {
    pub(super) fn new(rate: Option<u64>) -> Gate {
        Gate { rate: rate.filter(|&r| r > 0), ..Gate::default() }
    }

    /// True if bursts must go through [`Gate::enter`].
    pub(super) fn is_closed(&self) -> bool {
        self.cut || self.rate.is_some()
    }

    /// Takes a burst; it is lost, or leaves later.
    pub(super) fn enter(&mut self, now: Time, path: PathId, tos: u8, bytes: &[u8], segment: usize) {
        let Some(rate) = self.rate.filter(|_| !self.cut && self.bytes + bytes.len() <= QUEUE) else { return };
        let wire = bytes.len() as u64 + bytes.len().div_ceil(segment.max(1)) as u64 * OVERHEAD;
        let takes = Span::from_nanos(wire.saturating_mul(8_000_000_000) / rate);
        self.free_at = self.free_at.max(now) + takes;
        let mut kept = self.spare.pop().unwrap_or_default();
        kept.clear();
        kept.extend_from_slice(bytes);
        // Congestion Experienced, for those that can be told.
        let tos = if self.bytes > MARK_FROM && tos & 3 != 0 { tos | 3 } else { tos };
        self.bytes += bytes.len();
        self.waiting.push_back(Burst { path, tos, segment, bytes: kept, due: self.free_at });
    }

    /// A burst whose turn it is. Call until `None`.
    pub(super) fn leave(&mut self, now: Time) -> Option<Burst> {
        if self.waiting.front()?.due > now {
            return None;
        }
        let burst = self.waiting.pop_front()?;
        self.bytes -= burst.bytes.len();
        Some(burst)
    }

    /// The socket did not take it: it leaves first next time.
    pub(super) fn put_back(&mut self, burst: Burst) {
        self.bytes += burst.bytes.len();
        self.waiting.push_front(burst);
    }

    /// Its memory serves again.
    pub(super) fn give(&mut self, burst: Burst) {
        self.spare.push(burst.bytes);
    }

    /// A path is closed: its bursts are lost.
    pub(super) fn forget(&mut self, path: PathId) {
        self.waiting.retain(|b| b.path != path);
        self.bytes = self.waiting.iter().map(|b| b.bytes.len()).sum();
    }

    /// When the next burst leaves.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.waiting.front().map(|b| b.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: PathId = PathId(3);

    #[test]
    fn bursts_leave_at_the_rate() {
        let mut gate = Gate::new(Some(1_000_000_000));
        let now = Time::from_nanos(1_000);
        for _ in 0..10 {
            gate.enter(now, PATH, 2, &[7; 9934], 10_000);
        }
        assert!(gate.leave(now).is_none());
        // 10,000 bytes on the wire take 80 us.
        assert_eq!(gate.next_due(), Some(now + Span::from_micros(80)));
        let mut left = 0;
        while let Some(burst) = gate.leave(now + Span::from_micros(400)) {
            assert_eq!((burst.bytes.len(), burst.tos), (9934, 2));
            left += 1;
            gate.give(burst);
        }
        assert_eq!(left, 5);
        gate.forget(PATH);
        assert_eq!((gate.next_due(), gate.bytes), (None, 0));
    }

    #[test]
    fn a_long_queue_is_marked_and_a_full_one_loses() {
        let mut gate = Gate::new(Some(1_000_000_000));
        for _ in 0..100 {
            gate.enter(Time::ZERO, PATH, 2, &[7; 60_000], 4000);
        }
        let (mut count, mut marked) = (0, 0);
        while let Some(burst) = gate.leave(Time::MAX) {
            count += 1;
            marked += usize::from(burst.tos & 3 == 3);
        }
        assert_eq!(count, QUEUE / 60_000);
        assert!(marked > 20 && marked < count, "{marked} of {count}");
    }

    #[test]
    fn nothing_passes_a_cut() {
        let mut gate = Gate::new(None);
        assert!(!gate.is_closed());
        gate.cut = true;
        assert!(gate.is_closed());
        gate.enter(Time::ZERO, PATH, 2, &[7; 100], 100);
        assert!(gate.leave(Time::MAX).is_none());
    }
}
