//! A stretch of memory that lives as long as anyone holds it.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::copy;

/// Why memory could not be had or reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemError {
    /// The system gave no memory.
    #[error("no memory for {len} bytes (errno {errno})")]
    NoMemory {
        /// Bytes asked for.
        len: usize,
        /// What mmap said.
        errno: i32,
    },
    /// An access outside the region.
    #[error("{len} bytes at offset {offset} leave a region of {size} bytes")]
    OutOfBounds {
        /// Start of the access.
        offset: u64,
        /// Its length.
        len: u64,
        /// The region's size.
        size: u64,
    },
    /// An atomic on an address that is not a multiple of 8.
    #[error("atomic at offset {offset}, which is not 8-byte aligned")]
    Misaligned {
        /// Start of the access.
        offset: u64,
    },
    /// The owner of the memory took it back.
    #[error("the memory was taken back by its owner")]
    Detached,
    /// All keys of the registry are in use.
    #[error("all {limit} keys are in use")]
    NoKeys {
        /// The registry's capacity.
        limit: usize,
    },
}

/// Shared, reference-counted memory. A clone is another handle to the same bytes.
#[derive(Clone)]
pub struct Region(Arc<Inner>);

struct Inner {
    ptr: NonNull<u8>,
    len: usize,
    backing: Backing,
    /// Only borrowed memory: its owner took it back, so nothing may touch it any more.
    detached: AtomicBool,
}

enum Backing {
    /// From mmap: page-aligned, zeroed.
    Mapped,
    /// The user's vector: its capacity, to give it back.
    Vector { capacity: usize },
    /// Somebody else's, who keeps it alive.
    Borrowed,
}

impl Inner {
    fn new(ptr: NonNull<u8>, len: usize, backing: Backing) -> Inner {
        Inner { ptr, len, backing, detached: AtomicBool::new(false) }
    }
}

// SAFETY: the bytes are reached only through copies and atomics on raw pointers, which are fine from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Region {
    /// `len` zeroed bytes, page-aligned, on huge pages where the system has them to spare and `len` is at least 2 MiB.
    ///
    /// # Errors
    /// [`MemError::NoMemory`].
    pub fn alloc(len: usize) -> Result<Region, MemError> {
        const HUGE: usize = 2 << 20;
        if len == 0 {
            return Ok(Region::from_vec(Vec::new()));
        }
        let map = |flags: i32| {
            // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing of ours.
            let p = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    len,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
                    -1,
                    0,
                )
            };
            if p == libc::MAP_FAILED { None } else { NonNull::new(p.cast::<u8>()) }
        };
        let huge = if len.is_multiple_of(HUGE) { map(libc::MAP_HUGETLB | libc::MAP_HUGE_2MB) } else { None };
        let ptr = match huge.or_else(|| map(0)) {
            Some(p) => p,
            None => {
                let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
                return Err(MemError::NoMemory { len, errno });
            }
        };
        if huge.is_none() && len >= HUGE {
            // SAFETY: advice on our own fresh mapping; refusal does no harm.
            unsafe { libc::madvise(ptr.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        }
        Ok(Region(Arc::new(Inner::new(ptr, len, Backing::Mapped))))
    }

    /// The bytes of `v`, without a copy. [`Region::into_vec`] gives them back.
    pub fn from_vec(v: Vec<u8>) -> Region {
        let mut v = std::mem::ManuallyDrop::new(v);
        let ptr = NonNull::new(v.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Region(Arc::new(Inner::new(ptr, v.len(), Backing::Vector { capacity: v.capacity() })))
    }

    /// Memory that somebody else owns.
    ///
    /// # Safety
    /// `ptr..ptr + len` stays valid until every clone of the region is dropped or [`Region::detach`] has returned, and no
    /// reference to it is used while a key of it is live.
    pub unsafe fn from_raw(ptr: NonNull<u8>, len: usize) -> Region {
        Region(Arc::new(Inner::new(ptr, len, Backing::Borrowed)))
    }

    /// Gives borrowed memory back to its owner: what is still written to the region is dropped, and reading it fails.
    /// On other regions it does nothing.
    ///
    /// Nobody may be in the middle of an access: the caller holds what serializes them.
    pub fn detach(&self) {
        if matches!(self.0.backing, Backing::Borrowed) {
            self.0.detached.store(true, Ordering::Release);
        }
    }

    fn is_detached(&self) -> bool {
        self.0.detached.load(Ordering::Acquire)
    }

    /// The vector that [`Region::from_vec`] took, or a copy where the memory is of another kind.
    ///
    /// # Errors
    /// The region itself, if another handle to it is still alive.
    pub fn into_vec(self) -> Result<Vec<u8>, Region> {
        let inner = Arc::try_unwrap(self.0).map_err(Region)?;
        if inner.detached.load(Ordering::Acquire) {
            return Ok(Vec::new());
        }
        if let Backing::Vector { capacity } = inner.backing {
            let inner = std::mem::ManuallyDrop::new(inner);
            // SAFETY: pointer, length and capacity came from a vector, and this was the last handle.
            return Ok(unsafe { Vec::from_raw_parts(inner.ptr.as_ptr(), inner.len, capacity) });
        }
        let mut v = vec![0; inner.len];
        // SAFETY: the memory is valid for its length while `inner` lives.
        unsafe { copy::copy_out(inner.ptr.as_ptr(), &mut v) };
        Ok(v)
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// True for a region of no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Where the region starts. Reading through it is the caller's responsibility.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.ptr.as_ptr()
    }

    /// Copies `src` to `offset`, ascending.
    ///
    /// # Errors
    /// [`MemError::OutOfBounds`]; nothing is written then.
    #[inline]
    pub fn write_at(&self, offset: u64, src: &[u8]) -> Result<(), MemError> {
        let at = self.check(offset, src.len() as u64)?;
        if self.is_detached() {
            return Ok(());
        }
        // SAFETY: the range was checked, and the memory is valid while self lives.
        unsafe { copy::copy_in(self.0.ptr.as_ptr().add(at), src) };
        Ok(())
    }

    /// Copies from `offset` into `dst`.
    ///
    /// # Errors
    /// [`MemError::OutOfBounds`]; nothing is read then.
    #[inline]
    pub fn read_at(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemError> {
        let at = self.check(offset, dst.len() as u64)?;
        if self.is_detached() {
            return Err(MemError::Detached);
        }
        // SAFETY: the range was checked, and the memory is valid while self lives.
        unsafe { copy::copy_out(self.0.ptr.as_ptr().add(at), dst) };
        Ok(())
    }

    /// Copies `len` bytes at `offset` of `self` to `to_offset` of `to`, ascending. Where the two ranges overlap, it
    /// goes through a small buffer, and is right only if the second begins before the first.
    ///
    /// # Errors
    /// [`MemError::OutOfBounds`]; nothing is written then.
    pub fn copy_to(&self, offset: u64, to: &Region, to_offset: u64, len: u64) -> Result<(), MemError> {
        let from_at = self.check(offset, len)?;
        let to_at = to.check(to_offset, len)?;
        if self.is_detached() {
            return Err(MemError::Detached);
        }
        if to.is_detached() {
            return Ok(());
        }
        let src = self.0.ptr.as_ptr().wrapping_add(from_at);
        let dst = to.0.ptr.as_ptr().wrapping_add(to_at);
        if src.addr().abs_diff(dst.addr()) as u64 >= len {
            // SAFETY: both ranges were checked, lie apart, and are valid while the handles live.
            unsafe { copy::copy_across(dst, src, len as usize) };
            return Ok(());
        }
        let mut buf = [0; 1024];
        let mut done = 0;
        while done < len {
            let n = (len - done).min(buf.len() as u64) as usize;
            self.read_at(offset + done, &mut buf[..n])?;
            to.write_at(to_offset + done, &buf[..n])?;
            done += n as u64;
        }
        Ok(())
    }

    /// Adds to the 8 bytes at `offset` (native byte order), and returns what they were.
    ///
    /// # Errors
    /// Out of bounds or misaligned.
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, MemError> {
        Ok(self.atomic(offset)?.fetch_add(add, Ordering::SeqCst))
    }

    /// Stores `swap` in the 8 bytes at `offset` if they equal `compare`, and returns what they were.
    ///
    /// # Errors
    /// Out of bounds or misaligned.
    pub fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, MemError> {
        let cell = self.atomic(offset)?;
        Ok(cell.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|was| was))
    }

    fn atomic(&self, offset: u64) -> Result<&AtomicU64, MemError> {
        let at = self.check(offset, 8)?;
        if self.is_detached() {
            return Err(MemError::Detached);
        }
        let ptr = self.0.ptr.as_ptr().wrapping_add(at);
        if !(ptr as usize).is_multiple_of(8) {
            return Err(MemError::Misaligned { offset });
        }
        // SAFETY: in bounds, aligned, and alive as long as the borrow of self.
        Ok(unsafe { AtomicU64::from_ptr(ptr.cast()) })
    }

    #[inline]
    fn check(&self, offset: u64, len: u64) -> Result<usize, MemError> {
        let size = self.0.len as u64;
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(offset as usize),
            _ => Err(MemError::OutOfBounds { offset, len, size }),
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.0.len)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        match self.backing {
            // SAFETY: this mapping is ours and nobody can name it any more.
            Backing::Mapped => unsafe {
                libc::munmap(self.ptr.as_ptr().cast(), self.len);
            },
            // SAFETY: pointer, length and capacity came from a vector.
            Backing::Vector { capacity } => drop(unsafe { Vec::from_raw_parts(self.ptr.as_ptr(), self.len, capacity) }),
            Backing::Borrowed => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn vector_comes_back_whole() {
        let r = Region::from_vec(vec![1, 2, 3]);
        let other = r.clone();
        let r = r.into_vec().expect_err("another handle lives");
        drop(other);
        assert_eq!(r.into_vec().expect("last handle"), vec![1, 2, 3]);
    }

    #[test]
    fn bounds_hold_at_the_edges() {
        let r = Region::alloc(64).expect("64 bytes");
        assert!(r.write_at(60, &[1; 4]).is_ok());
        assert!(r.write_at(61, &[1; 4]).is_err());
        assert!(r.write_at(u64::MAX, &[1; 4]).is_err());
        assert!(r.fetch_add(56, 1).is_ok());
        assert!(r.fetch_add(57, 1).is_err());
        assert!(r.fetch_add(4, 1).is_err());
    }

    #[test]
    fn memory_taken_back_is_not_touched() {
        let mut bytes = vec![7u8; 64];
        let ptr = NonNull::new(bytes.as_mut_ptr()).expect("a vector");
        // SAFETY: `bytes` outlives the region, and is looked at only after `detach`.
        let r = unsafe { Region::from_raw(ptr, 64) };
        r.write_at(0, &[1; 8]).expect("in bounds");
        r.detach();
        r.write_at(8, &[2; 8]).expect("dropped");
        assert_eq!(r.read_at(0, &mut [0; 8]), Err(MemError::Detached));
        assert_eq!(r.fetch_add(0, 1), Err(MemError::Detached));
        assert!(r.write_at(60, &[2; 8]).is_err(), "bounds still hold");
        let own = Region::from_vec(vec![3; 64]);
        own.copy_to(0, &r, 0, 64).expect("dropped");
        assert_eq!(r.copy_to(0, &own, 0, 64), Err(MemError::Detached));
        assert_eq!(r.into_vec().expect("last handle"), Vec::<u8>::new());
        assert_eq!(bytes[..16], [1, 1, 1, 1, 1, 1, 1, 1, 7, 7, 7, 7, 7, 7, 7, 7]);
        own.detach();
        own.read_at(0, &mut [0; 8]).expect("only borrowed memory can be taken back");
    }

    #[test]
    fn without_huge_pages_memory_comes_all_the_same() {
        const HUGE: usize = 2 << 20;
        let info = std::fs::read_to_string("/proc/meminfo").expect("Linux");
        let number = |name: &str| -> usize {
            let line = info.lines().find(|l| l.starts_with(name));
            line.and_then(|l| l.split_whitespace().nth(1)).map_or(0, |n| n.parse().expect("a number"))
        };
        let free = if number("Hugepagesize:") == 2048 { number("HugePages_Free:") } else { 0 };
        // One more than the system has, but no more memory than a test should take.
        let len = (free.min(32) + 1) * HUGE;
        let r = Region::alloc(len).expect("memory of some kind");
        let mut back = [1; 8];
        r.read_at((len - 8) as u64, &mut back).expect("in bounds");
        assert_eq!(back, [0; 8]);
        r.write_at((len - 8) as u64, &[7; 8]).expect("in bounds");
        r.read_at((len - 8) as u64, &mut back).expect("in bounds");
        assert_eq!(back, [7; 8]);
        assert!(matches!(Region::alloc(1 << 62), Err(MemError::NoMemory { .. })));
    }

    #[test]
    fn regions_copy_to_each_other_and_down_in_themselves() {
        let data: Vec<u8> = (0..5000u32).map(|i| (i % 251) as u8).collect();
        let a = Region::from_vec(data.clone());
        let b = Region::alloc(6000).expect("memory");
        a.copy_to(3, &b, 77, 4900).expect("in bounds");
        let mut back = vec![0; 4900];
        b.read_at(77, &mut back).expect("in bounds");
        assert_eq!(back, data[3..4903]);
        a.copy_to(100, &a, 90, 4000).expect("in bounds");
        a.read_at(90, &mut back[..4000]).expect("in bounds");
        assert_eq!(back[..4000], data[100..4100]);
        assert!(a.copy_to(1, &b, 0, 5000).is_err());
        assert!(a.copy_to(0, &b, 1001, 5000).is_err());
    }

    proptest! {
        #[test]
        fn bytes_come_back_at_any_alignment(at in 0u64..64, data in proptest::collection::vec(any::<u8>(), 0..600)) {
            let r = Region::alloc(1024).expect("1 KiB");
            r.write_at(at, &data).expect("fits");
            let mut back = vec![0; data.len()];
            r.read_at(at, &mut back).expect("fits");
            prop_assert_eq!(&back, &data);
            let mut around = vec![0; 1024];
            r.read_at(0, &mut around).expect("fits");
            prop_assert!(around[..at as usize].iter().all(|&b| b == 0));
            prop_assert!(around[at as usize + data.len()..].iter().all(|&b| b == 0));
        }
    }
}
