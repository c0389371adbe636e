//! Arithmetic on CRC-32 states (IEEE 802.3, reflected): steps over few bytes, and steps over zero bytes in
//! either direction as multiplications in GF(2)[x] modulo the CRC's polynomial.
//!
//! A *state* here is the shift register itself, before the final inversion. It is a polynomial of degree
//! below 32 with the coefficient of x^0 in bit 31; one zero byte multiplies it by x^8.

const POLYNOMIAL: u32 = 0xedb8_8320;

/// `STEP[k][b]`: the state after byte `b` and `k` zero bytes, from state 0.
static STEP: [[u32; 256]; 4] = [at(0), at(1), at(2), at(3)];

/// Where one byte leads to, from state 0, when `after` zero bytes follow it: contributions of bytes at known
/// places can be XORed together.
pub(super) const fn at(after: usize) -> [u32; 256] {
    let mut table = [0; 256];
    let mut bit = 0;
    while bit < 8 {
        let mut state = 1 << bit;
        let mut n = 0;
        while n < 8 * (after + 1) {
            state = if state & 1 != 0 { state >> 1 ^ POLYNOMIAL } else { state >> 1 };
            n += 1;
        }
        let mut b = 0;
        while b < 1 << bit {
            table[b | 1 << bit] = table[b] ^ state;
            b += 1;
        }
        bit += 1;
    }
    table
}

/// The state after four more bytes, given as a little-endian word.
#[inline]
pub(super) fn step4(state: u32, word: u32) -> u32 {
    let [a, b, c, d] = (state ^ word).to_le_bytes();
    STEP[3][usize::from(a)] ^ STEP[2][usize::from(b)] ^ STEP[1][usize::from(c)] ^ STEP[0][usize::from(d)]
}

/// The state after `bytes`, one at a time: for set-up, not for payloads.
pub(super) fn step(state: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(state, |s, &b| STEP[0][usize::from(s as u8 ^ b)] ^ s >> 8)
}

/// The state before `4 * words` zero bytes, if it is `state` after them.
///
/// Above 4 KiB this takes two multiplications instead of one.
#[inline]
pub(super) fn back_words(state: u32, words: usize) -> u32 {
    let near = multiply(state, BACK[words % BACK.len()]);
    match words / BACK.len() {
        0 => near,
        far => multiply(near, BACK_FAR[far % BACK_FAR.len()]),
    }
}

/// The longest stretch of zero bytes that [`back_words`] takes, in words: more than a UDP datagram.
pub(super) const BACK_WORDS_MAX: usize = BACK.len() * BACK_FAR.len() - 1;

/// `BACK[n]` is x^(-32 n).
static BACK: [u32; 1088] = powers(X_MINUS_32);
/// `BACK_FAR[n]` is x^(-32 * 1088 n).
static BACK_FAR: [u32; 16] = powers(back(ONE, 4 * BACK.len()));

/// The polynomial 1.
const ONE: u32 = 1 << 31;
const X_MINUS_32: u32 = back(ONE, 4);

const fn powers<const N: usize>(x: u32) -> [u32; N] {
    let mut table = [ONE; N];
    let mut n = 1;
    while n < N {
        table[n] = slow_multiply(table[n - 1], x);
        n += 1;
    }
    table
}

/// The state before `bytes` zero bytes, if it is `state` after them; bit by bit.
const fn back(mut state: u32, bytes: usize) -> u32 {
    let mut n = 0;
    while n < 8 * bytes {
        state = if state & ONE != 0 { (state ^ POLYNOMIAL) << 1 | 1 } else { state << 1 };
        n += 1;
    }
    state
}

const fn slow_multiply(a: u32, b: u32) -> u32 {
    let mut shifted = b;
    let mut product = 0;
    let mut n = 0;
    while n < 32 {
        if a & ONE >> n != 0 {
            product ^= shifted;
        }
        shifted = if shifted & 1 != 0 { shifted >> 1 ^ POLYNOMIAL } else { shifted >> 1 };
        n += 1;
    }
    product
}

/// `a * b` modulo the polynomial.
#[inline]
fn multiply(a: u32, b: u32) -> u32 {
    let product = carryless(a, b) << 1;
    // The low half has the coefficients of x^32..x^63: it is the high half's place times x^32.
    (product >> 32) as u32 ^ step4(product as u32, 0)
}

/// The product of two polynomials over GF(2).
///
/// Ordinary multiplications of words that have every fourth bit only: at most eight ones meet in one place, so
/// no carry reaches the next bit that counts.
#[inline]
fn carryless(a: u32, b: u32) -> u64 {
    const M: u64 = 0x1111_1111_1111_1111;
    let a: [u64; 4] = std::array::from_fn(|i| u64::from(a) & M << i);
    let b: [u64; 4] = std::array::from_fn(|i| u64::from(b) & M << i);
    let part = |k: usize| -> u64 { (0..4).fold(0, |sum, i| sum ^ a[i].wrapping_mul(b[(k + 4 - i) % 4])) & M << k };
    part(0) | part(1) | part(2) | part(3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tables_agree_with_crc32fast() {
        for len in 0usize..64 {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 37 + 11) as u8).collect();
            let crc = crc32fast::hash(&bytes);
            assert_eq!(!step(!0, &bytes), crc);
            if len.is_multiple_of(4) {
                let words = bytes.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
                assert_eq!(!words.fold(!0, step4), crc);
            }
        }
    }

    proptest! {
        #[test]
        fn multiplication_is_the_slow_one(a: u32, b: u32) {
            prop_assert_eq!(multiply(a, b), slow_multiply(a, b));
        }

        #[test]
        fn going_back_undoes_zero_bytes(state: u32, words in 0usize..=BACK_WORDS_MAX) {
            let ahead = step(state, &vec![0; 4 * words]);
            prop_assert_eq!(back_words(ahead, words), state);
        }

        #[test]
        fn a_byte_at_its_place(byte: u8, after in 0usize..64) {
            let mut bytes = vec![0; after + 1];
            bytes[0] = byte;
            prop_assert_eq!(at(after)[usize::from(byte)], step(0, &bytes));
        }
    }
}
