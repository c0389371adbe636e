//! Registered memory as its user holds it: owned, and lent to an operation by moving it there.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::engine::Garbage;
use crate::lanes::MrId;
use crate::mem::Region;

/// A registered buffer.
///
/// Whoever holds it owns its bytes: an operation takes the buffer and gives it back when nothing can
/// read or write it any more. Dropping it ends the registration, once no operation uses it.
pub struct Buffer {
    region: Region,
    mr: MrId,
    garbage: Arc<Garbage>,
}

impl Buffer {
    /// Takes a region that nobody else will reach except by operations that hold this buffer.
    pub(super) fn new(region: Region, mr: MrId, garbage: Arc<Garbage>) -> Buffer {
        Buffer { region, mr, garbage }
    }

    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    pub(super) fn mr(&self) -> MrId {
        self.mr
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.region.is_empty() {
            return &[];
        }
        // SAFETY: the memory is valid while `region` lives; operations that could write it hold the
        // Buffer, so none is outstanding while somebody can borrow it.
        unsafe { std::slice::from_raw_parts(self.region.as_ptr(), self.region.len()) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        if self.region.is_empty() {
            return &mut [];
        }
        // SAFETY: as for `deref`; the exclusive borrow of the Buffer makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.region.as_ptr(), self.region.len()) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.region.len())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.garbage.deregister(self.mr);
    }
}
