//! Keys: which region a packet may touch, where, and how.

use super::{MemError, Region};

/// A protection domain: keys work only for queue pairs of the same one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Pd(pub u32);

impl Pd {
    /// The domain of memory that any queue pair of the device may use locally, and none remotely.
    pub const LOCAL: Pd = Pd(u32::MAX);
}

/// A local or remote key: the slot in the low 16 bits, a tag that changes with each use of the slot above.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key(pub u32);

/// What a key allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access(u8);

impl Access {
    /// Only reading by the owner's own work requests.
    pub const LOCAL_READ: Access = Access(0);
    /// Receives and READ responses may be placed here.
    pub const LOCAL_WRITE: Access = Access(1);
    /// A peer may WRITE.
    pub const REMOTE_WRITE: Access = Access(2);
    /// A peer may READ.
    pub const REMOTE_READ: Access = Access(4);
    /// A peer may run atomics.
    pub const REMOTE_ATOMIC: Access = Access(8);

    /// Both.
    #[must_use]
    pub const fn and(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }

    /// True if a peer could do something with it.
    pub const fn is_remote(self) -> bool {
        self.0 & !Access::LOCAL_WRITE.0 != 0
    }

    /// True if everything in `other` is allowed.
    pub const fn allows(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Why a key did not open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AccessError {
    /// No such key, or revoked.
    #[error("no live key")]
    NoKey,
    /// The key belongs to another protection domain.
    #[error("key of another protection domain")]
    WrongPd,
    /// The key does not allow this.
    #[error("not allowed by the key")]
    Denied,
    /// Outside the key's range.
    #[error("outside the key's range")]
    Bounds,
}

/// The key table of one device.
#[derive(Debug)]
pub struct Registry {
    slots: Vec<Slot>,
    free: Vec<u16>,
    limit: usize,
    rng: fastrand::Rng,
}

#[derive(Debug)]
struct Slot {
    tag: u16,
    live: Option<Entry>,
}

#[derive(Debug)]
struct Entry {
    region: Region,
    /// Offset of the key's range in the region.
    start: u64,
    len: u64,
    /// The address that names the first byte of the range.
    iova: u64,
    pd: Pd,
    access: Access,
}

/// Part of a region that a key opened.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    /// The region.
    pub region: &'a Region,
    /// Offset of the first byte in it.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Slice<'_> {
    /// Copies `src` to the front of the slice.
    ///
    /// # Errors
    /// Longer than the slice: [`AccessError::Bounds`].
    pub fn copy_in(&self, src: &[u8]) -> Result<(), AccessError> {
        if src.len() as u64 > self.len {
            return Err(AccessError::Bounds);
        }
        self.region.write_at(self.offset, src).map_err(|_| AccessError::Bounds)
    }

    /// Copies from the front of the slice into `dst`.
    ///
    /// # Errors
    /// Longer than the slice: [`AccessError::Bounds`].
    pub fn copy_out(&self, dst: &mut [u8]) -> Result<(), AccessError> {
        if dst.len() as u64 > self.len {
            return Err(AccessError::Bounds);
        }
        self.region.read_at(self.offset, dst).map_err(|_| AccessError::Bounds)
    }
}

impl Registry {
    /// An empty table for at most `limit` keys (1..=65,536); `seed` makes the tags.
    pub fn new(limit: usize, seed: u64) -> Registry {
        let limit = limit.clamp(1, 1 << 16);
        Registry { slots: Vec::new(), free: Vec::new(), limit, rng: fastrand::Rng::with_seed(seed) }
    }

    /// Opens `len` bytes at `start` of `region` under a new key; `iova` names the first of them.
    ///
    /// No allocation happens while fewer keys are live than ever before.
    ///
    /// # Errors
    /// The range leaves the region, `iova + len` overflows, or no key is free.
    pub fn register(
        &mut self,
        pd: Pd,
        region: &Region,
        start: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Key, MemError> {
        let size = region.len() as u64;
        if start.checked_add(len).is_none_or(|end| end > size) || iova.checked_add(len).is_none() {
            return Err(MemError::OutOfBounds { offset: start, len, size });
        }
        let index = match self.free.pop() {
            Some(i) => i,
            None if self.slots.len() < self.limit => {
                self.slots.push(Slot { tag: self.rng.u16(..), live: None });
                // Room to give every slot back without allocating.
                self.free.reserve(self.slots.len());
                (self.slots.len() - 1) as u16
            }
            None => return Err(MemError::NoKeys { limit: self.limit }),
        };
        let slot = &mut self.slots[index as usize];
        // Never the same tag twice running, and none that a peer could foresee.
        slot.tag = slot.tag.wrapping_add(1 + self.rng.u16(..0x7fff));
        slot.live = Some(Entry { region: region.clone(), start, len, iova, pd, access });
        Ok(Key(u32::from(slot.tag) << 16 | u32::from(index)))
    }

    /// Closes `key`: whatever still names it is refused from now on. Returns false if it was not live.
    pub fn revoke(&mut self, key: Key) -> bool {
        let index = key.0 as u16;
        match self.slots.get_mut(index as usize) {
            Some(slot) if u32::from(slot.tag) == key.0 >> 16 && slot.live.is_some() => {
                slot.live = None;
                self.free.push(index);
                true
            }
            _ => false,
        }
    }

    /// The bytes at `addr..addr + len` under `key`, if `pd` and `need` agree with it.
    ///
    /// # Errors
    /// See [`AccessError`].
    #[inline]
    pub fn open(&self, pd: Pd, key: Key, addr: u64, len: u64, need: Access) -> Result<Slice<'_>, AccessError> {
        let slot = self.slots.get(key.0 as u16 as usize).ok_or(AccessError::NoKey)?;
        let entry = match &slot.live {
            Some(e) if u32::from(slot.tag) == key.0 >> 16 => e,
            _ => return Err(AccessError::NoKey),
        };
        if entry.pd != pd && (entry.pd != Pd::LOCAL || need.is_remote()) {
            return Err(AccessError::WrongPd);
        }
        if !entry.access.allows(need) {
            return Err(AccessError::Denied);
        }
        let into = addr.checked_sub(entry.iova).ok_or(AccessError::Bounds)?;
        if into.checked_add(len).is_none_or(|end| end > entry.len) {
            return Err(AccessError::Bounds);
        }
        Ok(Slice { region: &entry.region, offset: entry.start + into, len })
    }

    /// Keys that are live now.
    pub fn live(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RW: Access = Access::LOCAL_WRITE.and(Access::REMOTE_WRITE);

    #[test]
    fn a_revoked_key_stays_closed() {
        let mut reg = Registry::new(4, 1);
        let region = Region::alloc(4096).expect("a page");
        let mut old = Vec::new();
        for _ in 0..1000 {
            let key = reg.register(Pd(1), &region, 0, 4096, 0, RW).expect("a key");
            assert!(!old.contains(&key) || old.len() > 100, "tag came back at once");
            if let Some(&last) = old.last() {
                assert_eq!(reg.open(Pd(1), last, 0, 1, RW).err(), Some(AccessError::NoKey));
            }
            assert!(reg.revoke(key));
            assert!(!reg.revoke(key));
            old.push(key);
        }
        assert_eq!(reg.live(), 0);
    }

    #[test]
    fn domain_rights_and_bounds_are_checked() {
        let mut reg = Registry::new(4, 2);
        let region = Region::alloc(4096).expect("a page");
        let key = reg.register(Pd(7), &region, 1024, 512, 0x1000, RW).expect("a key");
        assert!(reg.open(Pd(7), key, 0x1000, 512, RW).is_ok());
        assert_eq!(reg.open(Pd(8), key, 0x1000, 1, RW).err(), Some(AccessError::WrongPd));
        assert_eq!(reg.open(Pd(7), key, 0x1000, 1, Access::REMOTE_READ).err(), Some(AccessError::Denied));
        assert_eq!(reg.open(Pd(7), key, 0xfff, 1, RW).err(), Some(AccessError::Bounds));
        assert_eq!(reg.open(Pd(7), key, 0x1000, 513, RW).err(), Some(AccessError::Bounds));
        assert_eq!(reg.open(Pd(7), key, u64::MAX, 2, RW).err(), Some(AccessError::Bounds));
        let shared = reg.register(Pd::LOCAL, &region, 0, 64, 0, RW).expect("a key");
        assert!(reg.open(Pd(9), shared, 0, 64, Access::LOCAL_WRITE).is_ok());
        assert_eq!(reg.open(Pd(9), shared, 0, 64, Access::REMOTE_WRITE).err(), Some(AccessError::WrongPd));
        let slice = reg.open(Pd(7), key, 0x1010, 4, RW).expect("open");
        slice.copy_in(&[9; 4]).expect("fits");
        let mut back = [0; 4];
        region.read_at(1024 + 0x10, &mut back).expect("fits");
        assert_eq!(back, [9; 4]);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut reg = Registry::new(2, 3);
        let region = Region::alloc(64).expect("memory");
        let a = reg.register(Pd(0), &region, 0, 64, 0, RW).expect("first");
        reg.register(Pd(0), &region, 0, 64, 0, RW).expect("second");
        assert_eq!(reg.register(Pd(0), &region, 0, 64, 0, RW).err(), Some(MemError::NoKeys { limit: 2 }));
        assert!(reg.revoke(a));
        assert!(reg.register(Pd(0), &region, 0, 64, 0, RW).is_ok());
    }
}
