//! Copies to and from memory that someone else may be looking at.
//!
//! Stores ascend and never tear an aligned 8-byte word, and the last word of each 128-byte line is a store of its
//! own after all others of that line: a reader which polls it (NCCL's LL and LL128 protocols) sees the words before
//! it as well. Whole lines go by vector stores where the processor keeps stores in order (x86-64), written in
//! assembly because a compiler may merge, split and reorder plain stores; elsewhere by atomic words.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

const LINE: usize = 128;

/// x86-64 keeps stores in order, so release costs nothing there and keeps the compiler from reordering.
const ASCENDING: Ordering = if cfg!(target_arch = "x86_64") { Ordering::Release } else { Ordering::Relaxed };

/// Copies `src` to `dst`, in ascending stores.
///
/// # Safety
/// `dst..dst + src.len()` is valid for writes for the length of the call, and is reached by others only
/// through atomic or raw accesses (no reference to it exists).
#[inline]
pub(super) unsafe fn copy_in(dst: *mut u8, src: &[u8]) {
    // SAFETY: the caller's promise; a slice is valid for reads and no part of dst.
    unsafe { copy_across(dst, src.as_ptr(), src.len()) }
}

/// Copies `len` bytes from `src` to `dst`, in ascending stores.
///
/// # Safety
/// As [`copy_in`]; `src..src + len` is valid for reads for the length of the call, and the two do not overlap.
#[inline]
pub(super) unsafe fn copy_across(dst: *mut u8, src: *const u8, len: usize) {
    if len == 8 && dst.addr().is_multiple_of(8) {
        // SAFETY: 8 bytes are valid on both sides, and dst is aligned.
        return unsafe { store_word(dst, src) };
    }
    if len < LINE {
        // SAFETY: the caller's range.
        return unsafe { copy_words(dst, src, len) };
    }
    let head = dst.addr().wrapping_neg() % LINE;
    let lines = len.saturating_sub(head) / LINE;
    if lines == 0 {
        // SAFETY: the caller's range.
        return unsafe { copy_words(dst, src, len) };
    }
    let whole = head + lines * LINE;
    // SAFETY: head, lines and rest are the caller's range cut in three, in ascending order, and the middle begins at a
    // line and is whole lines long.
    unsafe {
        copy_words(dst, src, head);
        copy_lines(dst.add(head), src.add(head), lines);
        copy_words(dst.add(whole), src.add(whole), len - whole);
    }
}

/// Copies from `src` into `dst`; bytes that change meanwhile come out as either value.
///
/// # Safety
/// `src..src + dst.len()` is valid for reads for the length of the call.
#[inline]
pub(super) unsafe fn copy_out(src: *const u8, dst: &mut [u8]) {
    // A race with a peer's placement yields old or new bytes, never anything else on the targets we
    // support; the pointer is laundered so that the compiler assumes nothing about the contents.
    let src = std::hint::black_box(src);
    // SAFETY: valid for reads by the caller's promise; dst is a distinct live slice.
    unsafe { std::ptr::copy_nonoverlapping(src, dst.as_mut_ptr(), dst.len()) };
}

/// Copies 8 bytes to an aligned word; release if the word ends a line.
///
/// # Safety
/// 8 bytes are valid on both sides, and `dst` is a multiple of 8.
#[inline(always)]
unsafe fn store_word(dst: *mut u8, src: *const u8) {
    // SAFETY: by the caller's promise.
    let word = unsafe { src.cast::<u64>().read_unaligned() };
    // SAFETY: by the caller's promise.
    let cell = unsafe { AtomicU64::from_ptr(dst.cast()) };
    let ends_line = dst.addr() % LINE == LINE - 8;
    cell.store(word, if ends_line { Ordering::Release } else { ASCENDING });
}

/// Copies any number of bytes by words, with smaller stores up to the first and after the last.
///
/// # Safety
/// As [`copy_across`].
#[inline]
unsafe fn copy_words(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    // Stores 1, 2 or 4 bytes if that many are left; `when` says whether dst needs it.
    macro_rules! part {
        ($int:ty, $atomic:ty, $when:expr) => {
            let size = size_of::<$int>();
            if len - at >= size && $when(dst.addr().wrapping_add(at)) {
                // SAFETY: at + size <= len.
                let value = unsafe { src.add(at).cast::<$int>().read_unaligned() };
                // SAFETY: at + size <= len, and dst + at is a multiple of size: in the head each smaller size was
                // made good before, and the tail begins at a multiple of 8 and takes the larger sizes first.
                unsafe { <$atomic>::from_ptr(dst.add(at).cast()) }.store(value, ASCENDING);
                at += size;
            }
        };
    }
    if !dst.addr().is_multiple_of(8) {
        part!(u8, AtomicU8, |addr: usize| addr & 1 != 0);
        part!(u16, AtomicU16, |addr: usize| addr & 3 == 2);
        part!(u32, AtomicU32, |addr: usize| addr & 7 == 4);
    }
    if dst.addr().wrapping_add(at).is_multiple_of(8) {
        while len - at >= 32 {
            // SAFETY: at + 32 <= len, and dst + at is a multiple of 8.
            unsafe {
                store_word(dst.add(at), src.add(at));
                store_word(dst.add(at + 8), src.add(at + 8));
                store_word(dst.add(at + 16), src.add(at + 16));
                store_word(dst.add(at + 24), src.add(at + 24));
            }
            at += 32;
        }
        while len - at >= 8 {
            // SAFETY: at + 8 <= len, and dst + at is a multiple of 8.
            unsafe { store_word(dst.add(at), src.add(at)) };
            at += 8;
        }
    }
    // At most 7 bytes are left: either behind the last word, or a copy that ended within its head.
    part!(u32, AtomicU32, |addr: usize| addr & 3 == 0);
    part!(u16, AtomicU16, |addr: usize| addr & 1 == 0);
    part!(u8, AtomicU8, |_| true);
    debug_assert_eq!(at, len);
}

/// Copies whole lines.
///
/// # Safety
/// As [`copy_across`] for `lines * LINE` bytes; `dst` is a multiple of [`LINE`] and `lines` is not 0.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy_lines(dst: *mut u8, src: *const u8, lines: usize) {
    if is_x86_feature_detected!("avx") {
        // SAFETY: the caller's promise, and the processor has AVX.
        unsafe { copy_lines_avx(dst, src, lines) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { copy_lines_sse(dst, src, lines) }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
unsafe fn copy_lines(dst: *mut u8, src: *const u8, lines: usize) {
    // SAFETY: the caller's promise.
    unsafe { copy_words(dst, src, lines * LINE) }
}

/// [`copy_lines`] by 32-byte stores: aligned ones do not tear the words in them on any processor with AVX.
///
/// # Safety
/// As [`copy_lines`], on a processor with AVX.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_lines_avx(dst: *mut u8, src: *const u8, lines: usize) {
    // SAFETY: reads and writes exactly `lines` lines, which the caller promised; dst is aligned as vmovaps needs; the
    // registers used are declared as clobbered.
    unsafe {
        std::arch::asm!(
            "2:",
            "vmovups ymm0, [rsi]",
            "vmovups ymm1, [rsi + 32]",
            "vmovups ymm2, [rsi + 64]",
            "vmovups xmm3, [rsi + 96]",
            "vmovups xmm4, [rsi + 112]",
            "vmovaps [rdi], ymm0",
            "vmovaps [rdi + 32], ymm1",
            "vmovaps [rdi + 64], ymm2",
            "vmovaps [rdi + 96], xmm3",
            // The last two words singly: the line's last one must not be seen before its neighbour.
            "vmovlps [rdi + 112], xmm4",
            "vmovhps [rdi + 120], xmm4",
            "add rsi, 128",
            "add rdi, 128",
            "dec rcx",
            "jnz 2b",
            "vzeroupper",
            inout("rsi") src => _,
            inout("rdi") dst => _,
            inout("rcx") lines => _,
            clobber_abi("sysv64"),
            options(nostack),
        );
    }
}

/// [`copy_lines`] by 16-byte stores, which every x86-64 has.
///
/// # Safety
/// As [`copy_lines`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_lines_sse(dst: *mut u8, src: *const u8, lines: usize) {
    // SAFETY: reads and writes exactly `lines` lines, which the caller promised; dst is aligned as movaps needs; the
    // registers used are declared as clobbered.
    unsafe {
        std::arch::asm!(
            "2:",
            "movups xmm0, [rsi]",
            "movups xmm1, [rsi + 16]",
            "movups xmm2, [rsi + 32]",
            "movups xmm3, [rsi + 48]",
            "movups xmm4, [rsi + 64]",
            "movups xmm5, [rsi + 80]",
            "movups xmm6, [rsi + 96]",
            "movups xmm7, [rsi + 112]",
            "movaps [rdi], xmm0",
            "movaps [rdi + 16], xmm1",
            "movaps [rdi + 32], xmm2",
            "movaps [rdi + 48], xmm3",
            "movaps [rdi + 64], xmm4",
            "movaps [rdi + 80], xmm5",
            "movaps [rdi + 96], xmm6",
            "movlps [rdi + 112], xmm7",
            "movhps [rdi + 120], xmm7",
            "add rsi, 128",
            "add rdi, 128",
            "dec rcx",
            "jnz 2b",
            inout("rsi") src => _,
            inout("rdi") dst => _,
            inout("rcx") lines => _,
            clobber_abi("sysv64"),
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicBool;

    type Lines = unsafe fn(*mut u8, *const u8, usize);

    fn all_ways() -> Vec<(&'static str, Lines)> {
        let mut ways: Vec<(&'static str, Lines)> = vec![("words", |d, s, n| {
            // SAFETY: the test passes whole lines.
            unsafe { copy_words(d, s, n * LINE) }
        })];
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            ways.push(("sse", copy_lines_sse));
            if is_x86_feature_detected!("avx") {
                ways.push(("avx", copy_lines_avx));
            }
        }
        ways
    }

    /// Words that others may read, beginning at a line.
    struct Shared {
        words: Vec<AtomicU64>,
        first: usize,
    }

    impl Shared {
        fn new(words: usize) -> Shared {
            let all: Vec<AtomicU64> = (0..words + LINE / 8).map(|_| AtomicU64::new(0)).collect();
            let first = all.as_ptr().addr().wrapping_neg() % LINE / 8;
            Shared { words: all, first }
        }

        fn words(&self) -> &[AtomicU64] {
            &self.words[self.first..self.words.len() - LINE / 8 + self.first]
        }

        fn ptr(&self) -> *mut u8 {
            self.words()[0].as_ptr().cast()
        }
    }

    #[test]
    fn every_way_copies_whole_lines_and_nothing_else() {
        let src: Vec<u8> = (0..5000u32).map(|i| (i * 7 + i / 256) as u8).collect();
        for (name, way) in all_ways() {
            for skew in 0..17 {
                let shared = Shared::new(16 * 34);
                // SAFETY: 32 lines behind the first, of 34; src has 4096 bytes and more.
                unsafe { way(shared.ptr().add(LINE), src.as_ptr().add(skew), 32) };
                let bytes: Vec<u8> =
                    shared.words().iter().flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes()).collect();
                assert!(bytes[..LINE].iter().all(|&b| b == 0), "{name}");
                assert_eq!(bytes[LINE..33 * LINE], src[skew..skew + 32 * LINE], "{name}");
                assert!(bytes[33 * LINE..].iter().all(|&b| b == 0), "{name}");
            }
        }
    }

    /// One thread copies ever higher numbers while another polls the last word of each line: whatever it sees
    /// there, no other word of the line may be older, and no word may be torn.
    fn poll_while_copying(copy: impl Fn(*mut u8, &[u8]) + Sync, lines: usize, from: usize) {
        // A wrong order of stores shows about once in 50,000 to 250,000 rounds.
        let rounds = if cfg!(miri) { 20 } else { 300_000u64 };
        let shared = Shared::new(lines * 16);
        let over = AtomicBool::new(false);
        let number = |g: u64| g << 32 | g;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let base = shared.ptr();
                let mut src = vec![0; (lines * 16 - from) * 8];
                for g in 1..=rounds {
                    src.chunks_exact_mut(8).for_each(|w| w.copy_from_slice(&number(g).to_ne_bytes()));
                    copy(base.wrapping_add(from * 8), &src);
                }
                over.store(true, Ordering::Release);
            });
            let mut seen = 0u64;
            let mut fresh = 0;
            while !over.load(Ordering::Acquire) || seen < rounds {
                for line in shared.words().chunks_exact(16) {
                    let tail = line[15].load(Ordering::Acquire);
                    assert_eq!(tail >> 32, tail & 0xffff_ffff, "torn");
                    fresh += u32::from(tail & 0xffff_ffff != seen);
                    seen = tail & 0xffff_ffff;
                    let skip = if std::ptr::eq(line, &shared.words()[..16]) { from } else { 0 };
                    for word in line[skip..15].iter().rev() {
                        let word = word.load(Ordering::Relaxed);
                        assert_eq!(word >> 32, word & 0xffff_ffff, "torn");
                        assert!(word & 0xffff_ffff >= seen, "a word older than its line's last: {word:x} < {seen}");
                    }
                }
            }
            assert!(fresh > 0);
        });
    }

    #[test]
    fn a_line_is_whole_when_its_last_word_is_seen() {
        for (_, way) in all_ways() {
            poll_while_copying(
                // SAFETY: the destination is `lines` lines of words that nobody has a reference to but as atomics.
                |dst, src| unsafe { way(dst, src.as_ptr(), src.len() / LINE) },
                8,
                0,
            );
        }
        for from in [0, 1, 5, 15] {
            // SAFETY: as above.
            poll_while_copying(|dst, src| unsafe { copy_in(dst, src) }, 4, from);
        }
    }

    proptest! {
        #[test]
        fn any_range_at_any_alignment(to in 0usize..260, from in 0usize..40, len in 0usize..1200) {
            let src: Vec<u8> = (0..from + len).map(|i| (i % 251 + 1) as u8).collect();
            let shared = Shared::new(200);
            // SAFETY: to + len < 1600 bytes.
            unsafe { copy_in(shared.ptr().add(to), &src[from..]) };
            let bytes: Vec<u8> = shared.words().iter().flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes()).collect();
            prop_assert!(bytes[..to].iter().all(|&b| b == 0));
            prop_assert_eq!(&bytes[to..to + len], &src[from..]);
            prop_assert!(bytes[to + len..].iter().all(|&b| b == 0));
        }
    }
}
