//! Policies without feedback, and the choice by lower round-trip time of two.

use super::{Pick, Policy, Report};
use crate::time::Time;

/// One path for ever: what a flow that is hashed once gets (ECMP).
pub(super) struct Fixed(pub(super) Pick);

impl Policy for Fixed {
    fn pick(&mut self, _now: Time, _random: &mut fastrand::Rng) -> Pick {
        self.0
    }
    fn acknowledged(&mut self, _now: Time, _report: Report) {}
    fn trimmed(&mut self, _now: Time, _pick: Pick, _last_hop: bool, _marked: bool) {}
    fn timed_out(&mut self, _now: Time, _pick: Pick) {}
}

/// All entropy values in turn; the order is another each time round if `shuffled` (oblivious packet spray).
pub(super) struct Rotation {
    planes: u16,
    mask: u16,
    at: u16,
    flip: u16,
    shuffled: bool,
}

impl Rotation {
    /// `paths` is a power of two.
    pub(super) fn new(planes: u8, paths: u16, shuffled: bool, random: &mut fastrand::Rng) -> Rotation {
        let mask = paths - 1;
        Rotation { planes: planes.into(), mask, at: 0, flip: random.u16(..) & mask, shuffled }
    }

    /// The next value.
    #[inline]
    pub(super) fn next(&mut self, random: &mut fastrand::Rng) -> u16 {
        let value = (self.at ^ self.flip) & self.mask;
        self.at = (self.at + 1) & self.mask;
        if self.at == 0 && self.shuffled {
            self.flip = random.u16(..) & self.mask;
        }
        value
    }
}

/// The plane of an entropy value, for policies that know of no planes.
#[inline]
pub(super) fn spread(path: u16, planes: u16) -> Pick {
    Pick { plane: (path % planes) as u8, path, chunk: 0 }
}

impl Policy for Rotation {
    fn pick(&mut self, _now: Time, random: &mut fastrand::Rng) -> Pick {
        spread(self.next(random), self.planes)
    }
    fn acknowledged(&mut self, _now: Time, _report: Report) {}
    fn trimmed(&mut self, _now: Time, _pick: Pick, _last_hop: bool, _marked: bool) {}
    fn timed_out(&mut self, _now: Time, _pick: Pick) {}
}

/// Of two random paths the one with the lower smoothed round-trip time (weight 1/8 for the newest sample).
pub(super) struct TwoRandom {
    planes: u16,
    rtt_ns: Box<[u32]>,
}

impl TwoRandom {
    pub(super) fn new(planes: u8, paths: u16) -> TwoRandom {
        TwoRandom { planes: planes.into(), rtt_ns: vec![0; paths.into()].into() }
    }
}

impl Policy for TwoRandom {
    fn pick(&mut self, _now: Time, random: &mut fastrand::Rng) -> Pick {
        let n = self.rtt_ns.len();
        let (a, b) = (random.usize(..n), random.usize(..n));
        let path = if self.rtt_ns[b] < self.rtt_ns[a] { b } else { a };
        spread(path as u16, self.planes)
    }

    fn acknowledged(&mut self, _now: Time, report: Report) {
        let Some(rtt) = report.rtt else { return };
        let new = u32::try_from(rtt.as_nanos()).unwrap_or(u32::MAX);
        let old = &mut self.rtt_ns[usize::from(report.pick.path)];
        *old = if *old == 0 { new } else { *old - *old / 8 + new / 8 };
    }
    fn trimmed(&mut self, _now: Time, _pick: Pick, _last_hop: bool, _marked: bool) {}
    fn timed_out(&mut self, _now: Time, _pick: Pick) {}
}
