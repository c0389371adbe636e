//! A set of packet numbers within one window.

use crate::seq::Psn;

/// Packets that may be outstanding, and beyond the first missing one be remembered.
pub(super) const WINDOW: u32 = 256;

/// One bit for each PSN of a window; PSNs 256 apart share one, so the owner clears what the window leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct PsnSet {
    words: [u64; 4],
}

impl PsnSet {
    #[inline]
    pub(super) fn has(&self, psn: Psn) -> bool {
        let i = psn.get() % WINDOW;
        self.words[(i / 64) as usize] >> (i % 64) & 1 == 1
    }

    #[inline]
    pub(super) fn insert(&mut self, psn: Psn) {
        let i = psn.get() % WINDOW;
        self.words[(i / 64) as usize] |= 1 << (i % 64);
    }

    #[inline]
    pub(super) fn remove(&mut self, psn: Psn) {
        let i = psn.get() % WINDOW;
        self.words[(i / 64) as usize] &= !(1 << (i % 64));
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.words == [0; 4]
    }

    pub(super) fn clear(&mut self) {
        self.words = [0; 4];
    }

    /// The member closest after `from`, itself included.
    pub(super) fn next(&self, from: Psn) -> Option<Psn> {
        let start = from.get() % WINDOW;
        for step in 0..=4 {
            let at = ((start / 64 + step) % 4) as usize;
            let mut word = self.words[at];
            if step == 0 {
                word &= u64::MAX << (start % 64);
            } else if step == 4 {
                word &= !(u64::MAX << (start % 64));
            }
            if word != 0 {
                let i = at as u32 * 64 + word.trailing_zeros();
                return Some(from.add((i + WINDOW - start) % WINDOW));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn next_is_the_closest(start in 0u32..1 << 24, members in proptest::collection::btree_set(0u32..WINDOW, 0..20)) {
            let from = Psn::new(start);
            let mut set = PsnSet::default();
            for &m in &members {
                set.insert(from.add(m));
            }
            prop_assert_eq!(set.next(from), members.first().map(|&m| from.add(m)));
            for &m in &members {
                prop_assert!(set.has(from.add(m)));
                set.remove(from.add(m));
            }
            prop_assert!(set.is_empty());
        }
    }
}
