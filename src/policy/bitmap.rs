//! A penalty per entropy value, alone (`bitmap`) or behind recycled values (`mixed`).

use std::collections::VecDeque;

use super::simple::{Rotation, spread};
use super::{Pick, Policy, Report};
use crate::time::Time;

const MOST: u8 = 15;
const MARK: u8 = 1;
const TRIM: u8 = 4;

/// Values in turn, in another order each time round; one with a penalty is skipped and forgiven a little.
pub(super) struct Bitmap {
    planes: u16,
    penalty: Box<[u8]>,
    turn: Rotation,
    /// Values that came back unmarked and are used first; `None` for the plain bitmap.
    recycled: Option<VecDeque<u16>>,
}

impl Bitmap {
    /// `paths` is a power of two.
    pub(super) fn new(planes: u8, paths: u16, recycle: bool, random: &mut fastrand::Rng) -> Bitmap {
        Bitmap {
            planes: planes.into(),
            penalty: vec![0; paths.into()].into(),
            turn: Rotation::new(planes, paths, true, random),
            recycled: recycle.then(VecDeque::new),
        }
    }

    fn punish(&mut self, path: u16, by: u8) {
        let p = &mut self.penalty[usize::from(path)];
        *p = (*p + by).min(MOST);
    }
}

impl Policy for Bitmap {
    fn pick(&mut self, _now: Time, random: &mut fastrand::Rng) -> Pick {
        if let Some(path) = self.recycled.as_mut().and_then(VecDeque::pop_front) {
            return spread(path, self.planes);
        }
        let mut path = self.turn.next(random);
        // Only the first that is skipped is forgiven; after a whole round the next is taken as it is.
        let first = &mut self.penalty[usize::from(path)];
        if *first > 0 {
            *first -= 1;
            for _ in 0..self.penalty.len() {
                path = self.turn.next(random);
                if self.penalty[usize::from(path)] == 0 {
                    break;
                }
            }
        }
        spread(path, self.planes)
    }

    fn acknowledged(&mut self, _now: Time, report: Report) {
        if report.marked {
            self.punish(report.pick.path, MARK);
        } else if let Some(recycled) = &mut self.recycled {
            recycled.push_back(report.pick.path);
        }
    }

    fn trimmed(&mut self, _now: Time, pick: Pick, last_hop: bool, marked: bool) {
        match (last_hop, marked) {
            (false, _) => self.punish(pick.path, TRIM),
            (true, true) => self.punish(pick.path, MARK),
            (true, false) => {
                if let Some(recycled) = &mut self.recycled {
                    recycled.push_back(pick.path);
                }
            }
        }
    }

    /// Which value lost the packet is not known to the published design: it punishes a fixed one.
    fn timed_out(&mut self, _now: Time, _pick: Pick) {
        let last = self.penalty.len() as u16 - 1;
        self.punish(last, MOST);
    }
}
