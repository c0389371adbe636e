//! Pauses after "receiver not ready" (InfiniBand Architecture 1.4, table 46).

use crate::time::Span;

/// Units of 10 us.
const PAUSE: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// The pause that a timer code means; codes above 31 count by their low 5 bits.
pub(super) fn pause(code: u8) -> Span {
    Span::from_micros(10 * u64::from(PAUSE[(code & 31) as usize]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_the_specifications() {
        assert_eq!(pause(0), Span::from_micros(655_360));
        assert_eq!(pause(1), Span::from_micros(10));
        assert_eq!(pause(14), Span::from_micros(1_280));
        assert_eq!(pause(31), Span::from_micros(491_520));
        assert!((2..32).all(|c| pause(c) > pause(c - 1)));
    }
}
