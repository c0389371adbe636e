//! Recycled entropies (REPS): a value that came back unmarked has a free slot on its path, so it is used again.

use super::simple::spread;
use super::{Pick, Policy, Report};
use crate::time::{Span, Time};

/// Entropy values that are remembered.
const RING: usize = 8;
/// How long only remembered values are used after a timeout, at least.
const FREEZE: Span = Span::from_millis(10);
/// Random values after that.
const EXPLORE: u32 = 16;

/// A ring of entropy values that were acknowledged without a mark.
pub(super) struct Reps {
    planes: u16,
    paths: u16,
    ring: [(u16, bool); RING],
    head: usize,
    filled: usize,
    fresh: usize,
    frozen: Option<Time>,
    frozen_at: usize,
    explore: u32,
}

impl Reps {
    pub(super) fn new(planes: u8, paths: u16) -> Reps {
        Reps {
            planes: planes.into(),
            paths,
            ring: [(0, false); RING],
            head: 0,
            filled: 0,
            fresh: 0,
            frozen: None,
            frozen_at: 0,
            explore: 0,
        }
    }

    fn thaw(&mut self, now: Time) {
        if self.frozen.is_some_and(|until| now > until) {
            let (planes, paths) = (self.planes as u8, self.paths);
            *self = Reps { explore: EXPLORE, ..Reps::new(planes, paths) };
        }
    }

    fn add(&mut self, path: u16) {
        if !self.ring[self.head].1 {
            self.fresh += 1;
        }
        self.ring[self.head] = (path, true);
        self.head = (self.head + 1) % RING;
        self.filled = (self.filled + 1).min(RING);
    }
}

impl Policy for Reps {
    fn pick(&mut self, _now: Time, random: &mut fastrand::Rng) -> Pick {
        let path = if self.explore > 0 {
            self.explore -= 1;
            random.u16(..self.paths)
        } else if self.frozen.is_some() && self.filled > 0 {
            let (path, fresh) = self.ring[self.frozen_at];
            self.fresh -= usize::from(fresh);
            self.ring[self.frozen_at].1 = false;
            self.frozen_at = (self.frozen_at + 1) % self.filled;
            path
        } else if self.fresh > 0 {
            let oldest = (self.head + RING - self.fresh) % RING;
            self.ring[oldest].1 = false;
            self.fresh -= 1;
            self.ring[oldest].0
        } else {
            random.u16(..self.paths)
        };
        spread(path, self.planes)
    }

    fn acknowledged(&mut self, now: Time, report: Report) {
        self.thaw(now);
        if !report.marked {
            self.add(report.pick.path);
        }
    }

    fn trimmed(&mut self, now: Time, pick: Pick, last_hop: bool, marked: bool) {
        self.thaw(now);
        if last_hop && !marked {
            self.add(pick.path);
        }
    }

    fn timed_out(&mut self, now: Time, _pick: Pick) {
        if self.frozen.is_none() && self.explore == 0 {
            self.frozen = Some(now + FREEZE);
            self.frozen_at = 0;
        }
        self.thaw(now);
    }
}
