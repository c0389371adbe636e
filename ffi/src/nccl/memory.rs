//! NCCL's memory handles.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use planespray::{Error, Fabric, Memory};

/// A registration: what an `mhandle` points to, and every request that uses it.
#[derive(Debug)]
pub(super) struct Registration {
    memory: Memory,
    start: usize,
}

impl Registration {
    /// Registers `len` bytes at `start`.
    ///
    /// # Safety
    /// NCCL's promise: they stay valid until `deregMr` returns, and only requests use them meanwhile.
    pub(super) unsafe fn new(fabric: &Fabric, start: *mut c_void, len: usize) -> Result<Arc<Registration>, Error> {
        let at = NonNull::new(start.cast::<u8>()).unwrap_or(NonNull::dangling());
        // SAFETY: the caller's promise; a null pointer is replaced and is allowed only for no bytes.
        let memory = unsafe { fabric.register_memory(at, len) }?;
        Ok(Arc::new(Registration { memory, start: at.as_ptr() as usize }))
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Where `len` bytes at `data` lie in the registration; `None` if they leave it.
    pub(super) fn offset_of(&self, data: *mut c_void, len: u64) -> Option<u64> {
        if len == 0 {
            return Some(0);
        }
        let offset = (data as usize).checked_sub(self.start)? as u64;
        (offset.checked_add(len)? <= self.memory.len() as u64).then_some(offset)
    }

    /// For NCCL to keep.
    pub(super) fn into_handle(self: Arc<Self>) -> *mut c_void {
        Arc::into_raw(self).cast_mut().cast()
    }

    /// Another reference to what NCCL keeps.
    ///
    /// # Safety
    /// `handle` came from [`Registration::into_handle`] and was not closed.
    pub(super) unsafe fn from_handle(handle: *mut c_void) -> Arc<Registration> {
        let raw = handle.cast_const().cast::<Registration>();
        // SAFETY: NCCL's own reference is alive by the caller's promise, so the count may be raised, and then taken.
        unsafe {
            Arc::increment_strong_count(raw);
            Arc::from_raw(raw)
        }
    }

    /// The reference that NCCL kept.
    ///
    /// # Safety
    /// As [`Registration::from_handle`], and NCCL does not use the handle again.
    pub(super) unsafe fn close_handle(handle: *mut c_void) -> Arc<Registration> {
        // SAFETY: by the caller's promise.
        unsafe { Arc::from_raw(handle.cast_const().cast::<Registration>()) }
    }
}
