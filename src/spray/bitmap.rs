//! Which units of a message are here.

use super::chunk::MAX_UNITS;

const WORDS: usize = (MAX_UNITS / 64) as usize;

/// The bits of one message: one word in place, or a block of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bits {
    /// At most 64 units.
    Word(u64),
    /// A block of the [`BitPool`].
    Block(u32),
}

/// Blocks for messages of more than 64 units. Allocates only when more are in use than ever before.
#[derive(Debug, Default)]
pub(super) struct BitPool {
    blocks: Vec<[u64; WORDS]>,
    free: Vec<u32>,
}

impl BitPool {
    /// Clear bits for `units` units, at most [`MAX_UNITS`].
    pub(super) fn take(&mut self, units: u64) -> Bits {
        if units <= 64 {
            return Bits::Word(0);
        }
        if let Some(block) = self.free.pop() {
            self.blocks[block as usize][..units.div_ceil(64).min(WORDS as u64) as usize].fill(0);
            return Bits::Block(block);
        }
        self.blocks.push([0; WORDS]);
        self.free.reserve(self.blocks.len());
        Bits::Block((self.blocks.len() - 1) as u32)
    }

    /// Gives the bits back.
    pub(super) fn release(&mut self, bits: Bits) {
        if let Bits::Block(block) = bits {
            self.free.push(block);
        }
    }

    /// Sets units `first..end` (`end` at most [`MAX_UNITS`]) and returns how many were clear.
    #[inline]
    pub(super) fn set(&mut self, bits: &mut Bits, first: u64, end: u64) -> u64 {
        match bits {
            Bits::Word(word) => set_word(word, first.min(64), end.min(64)),
            Bits::Block(block) => {
                let Some(words) = self.blocks.get_mut(*block as usize) else { return 0 };
                let mut new = 0;
                let mut at = first;
                while at < end.min(MAX_UNITS) {
                    let base = at & !63;
                    let stop = end.min(base + 64);
                    new += set_word(&mut words[(at / 64) as usize], at - base, stop - base);
                    at = stop;
                }
                new
            }
        }
    }

    /// Units `first..first + 16`, the first in bit 0; what is beyond the last unit may be anything.
    pub(super) fn window(&self, bits: &Bits, first: u64) -> u16 {
        let word = |at: u64| match bits {
            Bits::Word(word) if at == 0 => *word,
            Bits::Word(_) => 0,
            Bits::Block(block) => {
                self.blocks.get(*block as usize).and_then(|words| words.get(at as usize)).copied().unwrap_or(0)
            }
        };
        let (at, shift) = (first / 64, first % 64);
        let both = u128::from(word(at)) | u128::from(word(at + 1)) << 64;
        (both >> shift) as u16
    }

    /// How many of the units below `end` are set.
    pub(super) fn count(&self, bits: &Bits, end: u64) -> u64 {
        let masked = |word: u64, upto: u64| u64::from((word & mask(0, upto.min(64))).count_ones());
        match bits {
            Bits::Word(word) => masked(*word, end),
            Bits::Block(block) => self.blocks.get(*block as usize).map_or(0, |words| {
                words.iter().enumerate().map(|(i, &w)| masked(w, end.saturating_sub(i as u64 * 64))).sum()
            }),
        }
    }
}

/// Bits `from..to`, `to` at most 64.
#[inline]
fn mask(from: u64, to: u64) -> u64 {
    if from >= to { 0 } else { (u64::MAX >> (64 - (to - from))) << from }
}

#[inline]
fn set_word(word: &mut u64, from: u64, to: u64) -> u64 {
    let new = mask(from, to) & !*word;
    *word |= new;
    u64::from(new.count_ones())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_vector_of_bools(
            units in 1u64..=MAX_UNITS,
            ranges in proptest::collection::vec((0u64..MAX_UNITS, 0u64..40), 0..60),
            upto in 0u64..=MAX_UNITS,
        ) {
            let mut pool = BitPool::default();
            // A used block must come back clear.
            let mut used = pool.take(MAX_UNITS);
            pool.set(&mut used, 0, MAX_UNITS);
            pool.release(used);
            let mut bits = pool.take(units);
            let mut model = vec![false; units as usize];
            for (first, n) in ranges {
                let first = first % units;
                let end = (first + n).min(units);
                let mut fresh = 0;
                for unit in &mut model[first as usize..end as usize] {
                    fresh += u64::from(!std::mem::replace(unit, true));
                }
                prop_assert_eq!(pool.set(&mut bits, first, end), fresh);
            }
            let upto = upto.min(units);
            let want = model[..upto as usize].iter().filter(|&&b| b).count() as u64;
            prop_assert_eq!(pool.count(&bits, upto), want);
            let window = pool.window(&bits, upto);
            for i in 0..16 {
                let bit = window >> i & 1 != 0;
                if let Some(&set) = model.get((upto + i) as usize) {
                    prop_assert_eq!(bit, set);
                }
            }
        }
    }
}
