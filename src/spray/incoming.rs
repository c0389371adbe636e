//! A receive under way.

use super::bitmap::{BitPool, Bits};
use super::chunk::{self, COUNTS, Immediate};
use super::failure::{Failure, Violation};
use crate::lanes::Window;
use crate::mem::Region;

/// A receive's grant, and what has arrived under it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Granted {
    pub(super) slot: u16,
    pub(super) generation: u8,
    pub(super) unit_shift: u8,
    /// Units of the capacity.
    units: u64,
    /// Units of the message, as far as known.
    needed: u64,
    /// Of these, how many are here.
    have: u64,
    /// The message is shorter than the capacity.
    short: bool,
    total: Option<u64>,
    bits: Bits,
}

/// What an immediate or total did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// More is to come. Holds how many units were here already.
    More(u64),
    /// The message is here whole. Holds its length.
    Whole(u64),
}

impl Granted {
    pub(super) fn new(slot: u16, generation: u8, capacity: u64, pool: &mut BitPool) -> Granted {
        let unit_shift = chunk::unit_shift(capacity);
        let units = chunk::units(capacity, unit_shift);
        let bits = pool.take(units);
        Granted { slot, generation, unit_shift, units, needed: units, have: 0, short: false, total: None, bits }
    }

    /// Gives the bitmap back.
    pub(super) fn release(self, pool: &mut BitPool) {
        pool.release(self.bits);
    }

    /// True if no unit has arrived.
    pub(super) fn is_untouched(&self) -> bool {
        self.have == 0 && self.total.is_none() && !self.short
    }

    /// Which of the units from `first` on are here, the first in bit 0.
    pub(super) fn window(&self, first: u16, pool: &BitPool) -> u16 {
        pool.window(&self.bits, u64::from(first))
    }

    /// Takes in a chunk's immediate.
    #[inline]
    pub(super) fn on_immediate(
        &mut self,
        imm: Immediate,
        capacity: u64,
        pool: &mut BitPool,
    ) -> Result<Progress, Violation> {
        let first = u64::from(imm.first);
        if first >= self.units {
            return Err(Violation::Unit);
        }
        self.short |= imm.short;
        // What a chunk covers beyond the end is no part of the message.
        let end = (first + u64::from(COUNTS[imm.code as usize & 7])).min(self.units);
        let split = end.min(self.needed).max(first);
        let new = pool.set(&mut self.bits, first, split);
        self.have += new;
        if split < end {
            pool.set(&mut self.bits, split, end);
        }
        Ok(self.progress(split - first - new, capacity))
    }

    /// Takes in the message's length.
    pub(super) fn on_total(&mut self, total: u64, capacity: u64, pool: &mut BitPool) -> Result<Progress, Violation> {
        if total > capacity || self.total.is_some_and(|t| t != total) {
            return Err(Violation::Total);
        }
        self.short = true;
        self.total = Some(total);
        self.needed = chunk::units(total, self.unit_shift);
        self.have = pool.count(&self.bits, self.needed);
        Ok(self.progress(0, capacity))
    }

    fn progress(&self, duplicates: u64, capacity: u64) -> Progress {
        let total = match self.total {
            Some(total) => total,
            // A message of no bytes always tells its length.
            None if self.short || capacity == 0 => return Progress::More(duplicates),
            None => capacity,
        };
        if self.have == self.needed { Progress::Whole(total) } else { Progress::More(duplicates) }
    }
}

/// A posted receive.
#[derive(Debug)]
pub(super) struct Incoming {
    /// Index of its channel.
    pub(super) channel: u32,
    /// Its number on the channel.
    pub(super) number: u32,
    pub(super) region: Region,
    pub(super) offset: u64,
    pub(super) capacity: u64,
    pub(super) window: Window,
    pub(super) token: u64,
    pub(super) ordered: bool,
    /// It waits for a slot.
    pub(super) slotless: bool,
    pub(super) granted: Option<Granted>,
    /// How it ended, while earlier ones hold it back.
    pub(super) result: Option<Result<u64, Failure>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imm(first: u16, code: u8, short: bool) -> Immediate {
        Immediate { slot: 0, generation: 0, short, first, code }
    }

    #[test]
    fn a_full_message_needs_no_total() {
        let mut pool = BitPool::default();
        let mut g = Granted::new(0, 0, 20_000, &mut pool);
        assert_eq!(g.on_immediate(imm(4, 0, false), 20_000, &mut pool), Ok(Progress::More(0)));
        assert_eq!(g.on_immediate(imm(4, 0, false), 20_000, &mut pool), Ok(Progress::More(1)));
        assert_eq!(g.on_immediate(imm(5, 0, false), 20_000, &mut pool), Err(Violation::Unit));
        assert_eq!(g.on_immediate(imm(0, 7, false), 20_000, &mut pool), Ok(Progress::Whole(20_000)));
    }

    #[test]
    fn a_short_message_waits_for_its_total() {
        let mut pool = BitPool::default();
        let mut g = Granted::new(0, 0, 4096, &mut pool);
        assert_eq!(g.on_immediate(imm(0, 0, true), 4096, &mut pool), Ok(Progress::More(0)));
        assert_eq!(g.on_total(5000, 4096, &mut pool), Err(Violation::Total));
        assert_eq!(g.on_total(100, 4096, &mut pool), Ok(Progress::Whole(100)));
        assert_eq!(g.on_total(101, 4096, &mut pool), Err(Violation::Total));
    }

    #[test]
    fn units_beyond_the_total_count_for_nothing() {
        let mut pool = BitPool::default();
        let capacity = 100 << 12;
        // Total first.
        let mut g = Granted::new(0, 0, capacity, &mut pool);
        assert_eq!(g.on_total(5 << 12, capacity, &mut pool), Ok(Progress::More(0)));
        assert_eq!(g.on_immediate(imm(4, 2, true), capacity, &mut pool), Ok(Progress::More(0)));
        assert_eq!(g.on_immediate(imm(0, 2, true), capacity, &mut pool), Ok(Progress::Whole(5 << 12)));
        // Total last.
        let mut g = Granted::new(0, 0, capacity, &mut pool);
        assert_eq!(g.on_immediate(imm(0, 3, true), capacity, &mut pool), Ok(Progress::More(0)));
        assert_eq!(g.on_total(5 << 12, capacity, &mut pool), Ok(Progress::Whole(5 << 12)));
        // Nothing at all.
        let mut g = Granted::new(0, 0, 0, &mut pool);
        assert_eq!(g.on_total(0, 0, &mut pool), Ok(Progress::Whole(0)));
    }
}
