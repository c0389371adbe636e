//! Protection domains.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::device::Context;
use super::error::VerbsError;
use super::sys::*;

/// A protection domain: queue pairs reach only registrations of their own. A clone is another handle to it.
#[derive(Clone)]
pub struct Pd(Arc<Inner>);

struct Inner {
    context: Arc<Context>,
    ptr: NonNull<ibv_pd>,
}

// SAFETY: libibverbs allows calls on a protection domain from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Pd {
    /// A new one.
    ///
    /// # Errors
    /// The device has none left.
    pub fn new(context: &Arc<Context>) -> Result<Pd, VerbsError> {
        // SAFETY: an open context.
        let ptr = unsafe { (context.library.f.alloc_pd)(context.ptr.as_ptr()) };
        let ptr = NonNull::new(ptr).ok_or_else(|| context.failed("ibv_alloc_pd"))?;
        Ok(Pd(Arc::new(Inner { context: context.clone(), ptr })))
    }

    /// The device.
    pub fn context(&self) -> &Arc<Context> {
        &self.0.context
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_pd {
        self.0.ptr.as_ptr()
    }

    /// True if both are handles to the same domain.
    pub fn is(&self, other: &Pd) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: registrations and queue pairs of it held a handle, so there are none any more.
        unsafe { (self.context.library.f.dealloc_pd)(self.ptr.as_ptr()) };
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pd({})", self.0.context.name())
    }
}
