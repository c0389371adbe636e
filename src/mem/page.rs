use std::ops::{Deref, DerefMut};

/// What [`PageBuf`] begins at a multiple of.
const PAGE: usize = 4096;

/// Bytes of our own that begin at a page: what is handed to the kernel to copy.
///
/// On processors with "fast short `rep movsb`" the kernel copies by that one instruction, and on AMD Zen 3 it is
/// about 25 times slower (1.7 instead of 42 GB/s, measured) where the destination lies 1 to 31 bytes behind the
/// source modulo 4096. The kernel's own side mostly lies at multiples of 32 from a page's begin, so ours must as
/// well; a large `Vec` lies 16 behind one.
#[derive(Debug)]
pub struct PageBuf {
    bytes: Box<[u8]>,
    start: usize,
    len: usize,
}

impl PageBuf {
    /// `len` zeroed bytes, the first at an address of `offset` modulo 4096.
    pub fn zeroed(len: usize, offset: usize) -> Self {
        let bytes = vec![0; len + PAGE].into_boxed_slice();
        let start = (offset % PAGE).wrapping_sub(bytes.as_ptr().addr()) % PAGE;
        PageBuf { bytes, start, len }
    }
}

impl Deref for PageBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl DerefMut for PageBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begins_where_asked_for() {
        for (len, offset) in [(0, 0), (1, 4095), (65_536, 0), (65_536, 2048), (100, 5000)] {
            let mut buf = PageBuf::zeroed(len, offset);
            assert_eq!(buf.len(), len);
            assert_eq!(buf.as_ptr().addr() % PAGE, offset % PAGE);
            buf.fill(7);
            let moved = buf;
            assert_eq!(moved.as_ptr().addr() % PAGE, offset % PAGE);
            assert!(moved.iter().all(|&b| b == 7));
        }
    }
}
