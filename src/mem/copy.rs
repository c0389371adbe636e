//! Copies to and from memory that someone else may be looking at.
//!
//! Stores ascend in 8-byte words, so that a reader which polls the last word of a 128-byte line (NCCL's
//! LL and LL128 protocols) sees the words before it as well. x86-64 keeps stores in order; elsewhere a
//! release fence stands before the last word of each line.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

const LINE: usize = 128;

/// Copies `src` to `dst`, in ascending 8-byte stores where `dst` is aligned.
///
/// # Safety
/// `dst..dst + src.len()` is valid for writes for the length of the call, and is reached by others only
/// through atomic or raw accesses (no reference to it exists).
pub(super) unsafe fn copy_in(dst: *mut u8, src: &[u8]) {
    let mut at = 0;
    let head = dst.align_offset(8).min(src.len());
    while at < head {
        // SAFETY: at < src.len(), within the caller's range; AtomicU8 has no alignment need.
        unsafe { AtomicU8::from_ptr(dst.add(at)) }.store(src[at], Ordering::Relaxed);
        at += 1;
    }
    let words = src[at..].chunks_exact(8);
    let tail = words.remainder();
    for word in words {
        // SAFETY: at + 8 <= src.len(), and dst + at is 8-byte aligned after the head.
        let ptr = unsafe { dst.add(at) }.cast::<u64>();
        if cfg!(not(target_arch = "x86_64")) && (ptr as usize).wrapping_add(8).is_multiple_of(LINE) {
            fence(Ordering::Release);
        }
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(ptr) }.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        at += 8;
    }
    for &byte in tail {
        // SAFETY: at < src.len().
        unsafe { AtomicU8::from_ptr(dst.add(at)) }.store(byte, Ordering::Relaxed);
        at += 1;
    }
}

/// Copies from `src` into `dst`; bytes that change meanwhile come out as either value.
///
/// # Safety
/// `src..src + dst.len()` is valid for reads for the length of the call.
pub(super) unsafe fn copy_out(src: *const u8, dst: &mut [u8]) {
    // A race with a peer's placement yields old or new bytes, never anything else on the targets we
    // support; the pointer is laundered so that the compiler assumes nothing about the contents.
    let src = std::hint::black_box(src);
    // SAFETY: valid for reads by the caller's promise; dst is a distinct live slice.
    unsafe { std::ptr::copy_nonoverlapping(src, dst.as_mut_ptr(), dst.len()) };
}
