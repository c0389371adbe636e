//! What messages are filled with: a function of the message's number and the offset, cheap enough to check every byte.
//!
//! Word `i` of message `m` is `x ^ (x >> 29)` with `x = mix(m) + i * STEP`: additions, shifts and exclusive ors
//! only, so that compilers make vector code of it even for the oldest processors.

/// 2^64 divided by the golden ratio: consecutive multiples differ in all parts of the word.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// What lies in a slot between uses. No word of a pattern is expected to be this.
const POISON: u64 = 0xdead_c0de_dead_c0de;
/// Words done at once.
const BLOCK: usize = 8;

/// Mixes a message's number (the finalizer of splitmix64).
const fn mix(message: u64) -> u64 {
    let mut z = message.wrapping_add(STEP);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const fn word(base: u64, i: u64) -> u64 {
    let x = base.wrapping_add(i.wrapping_mul(STEP));
    x ^ (x >> 29)
}

/// The next `BLOCK` words from word `i`.
#[inline]
fn block(base: u64, i: u64) -> [u64; BLOCK] {
    let mut x = base.wrapping_add(i.wrapping_mul(STEP));
    let mut out = [0; BLOCK];
    for o in &mut out {
        *o = x ^ (x >> 29);
        x = x.wrapping_add(STEP);
    }
    out
}

/// Fills `bytes` with message `message`.
pub(super) fn fill(bytes: &mut [u8], message: u64) {
    let base = mix(message);
    let mut i = 0;
    let mut blocks = bytes.chunks_exact_mut(BLOCK * 8);
    for chunk in &mut blocks {
        let words = block(base, i);
        for (to, word) in chunk.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        i += BLOCK as u64;
    }
    for to in blocks.into_remainder().chunks_mut(8) {
        to.copy_from_slice(&word(base, i).to_le_bytes()[..to.len()]);
        i += 1;
    }
}

/// Makes `bytes` look like no message.
pub(super) fn poison(bytes: &mut [u8]) {
    for to in bytes.chunks_mut(8) {
        let len = to.len();
        to.copy_from_slice(&POISON.to_le_bytes()[..len]);
    }
}

/// True if `bytes` are message `message`; poisons them on the way, while they are in cache.
pub(super) fn check_and_poison(bytes: &mut [u8], message: u64) -> bool {
    let base = mix(message);
    let (mut i, mut differ) = (0, 0u64);
    let mut blocks = bytes.chunks_exact_mut(BLOCK * 8);
    for chunk in &mut blocks {
        let words = block(base, i);
        for (from, word) in chunk.chunks_exact_mut(8).zip(words) {
            let mut got = [0; 8];
            got.copy_from_slice(from);
            differ |= u64::from_le_bytes(got) ^ word;
            from.copy_from_slice(&POISON.to_le_bytes());
        }
        i += BLOCK as u64;
    }
    for from in blocks.into_remainder().chunks_mut(8) {
        let len = from.len();
        let mut got = [0; 8];
        got[..len].copy_from_slice(from);
        let mut want = [0; 8];
        want[..len].copy_from_slice(&word(base, i).to_le_bytes()[..len]);
        differ |= u64::from_le_bytes(got) ^ u64::from_le_bytes(want);
        from.copy_from_slice(&POISON.to_le_bytes()[..len]);
        i += 1;
    }
    differ == 0
}

/// Which message within `around - reach ..= around + reach` begins with these 8 bytes.
pub(super) fn recognize(first: [u8; 8], around: u64, reach: u64) -> Option<u64> {
    let first = u64::from_le_bytes(first);
    (around.saturating_sub(reach)..=around.saturating_add(reach)).find(|&m| word(mix(m), 0) == first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_checks_and_every_bit_counts() {
        for len in (0..200).chain([4096, 65537]) {
            let mut bytes = vec![0; len];
            fill(&mut bytes, 42);
            assert!(check_and_poison(&mut bytes.clone(), 42), "{len}");
            if len > 0 {
                assert!(!check_and_poison(&mut bytes.clone(), 43), "{len}");
            }
            for at in (0..len).step_by((len / 150).max(1)) {
                let mut wrong = bytes.clone();
                wrong[at] ^= 1 << (at % 8);
                assert!(!check_and_poison(&mut wrong, 42), "byte {at} of {len}");
            }
        }
    }

    #[test]
    fn a_poisoned_slot_is_no_message() {
        for len in [1, 7, 8, 64, 1000] {
            let mut bytes = vec![0; len];
            fill(&mut bytes, 7);
            assert!(check_and_poison(&mut bytes, 7));
            let mut again = bytes.clone();
            assert!(!check_and_poison(&mut again, 7), "{len}");
            poison(&mut bytes);
            assert_eq!(bytes, again);
        }
    }

    #[test]
    fn prefixes_and_shifts_differ() {
        let mut a = vec![0; 4096];
        fill(&mut a, 1);
        let mut shifted = a[8..].to_vec();
        assert!(!check_and_poison(&mut shifted, 1));
        let mut first = [0; 8];
        first.copy_from_slice(&a[..8]);
        assert_eq!(recognize(first, 3, 5), Some(1));
        assert_eq!(recognize(first, 30, 5), None);
    }
}
