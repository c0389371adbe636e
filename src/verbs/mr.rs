//! Memory lent to a device.

use std::fmt;
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use nix::sys::resource::{Resource, getrlimit};

use super::device::Context;
use super::error::{VerbsError, last_errno};
use super::pd::Pd;
use super::sys::*;
use crate::mem::{Access, Region};

/// Part of a region that a device may reach.
///
/// It holds the region, so the memory lives until the device has let go of it, whoever else drops a handle: a device
/// that still writes hits this region and nothing that came after it. If the device refuses to let go, the region is
/// never freed. Nobody gets a reference to the bytes; they are copied in and out.
///
/// The bytes cannot be borrowed:
/// ```compile_fail,E0599
/// fn f(mr: &mut planespray::verbs::Mr) -> &mut [u8] { mr.as_mut_slice() }
/// ```
/// The region cannot be moved out from under the device:
/// ```compile_fail,E0507
/// fn f(mr: &planespray::verbs::Mr) -> planespray::mem::Region { *mr.region().expect("host memory") }
/// ```
/// A registration is ended once:
/// ```compile_fail,E0382
/// fn f(mr: planespray::verbs::Mr) { drop(mr); drop(mr); }
/// ```
/// and not copied:
/// ```compile_fail,E0599
/// fn f(mr: &planespray::verbs::Mr) -> planespray::verbs::Mr { mr.clone() }
/// ```
pub struct Mr {
    pd: Pd,
    region: Option<Region>,
    ptr: NonNull<ibv_mr>,
    addr: u64,
    len: u64,
    lkey: u32,
    rkey: u32,
}

// SAFETY: libibverbs allows calls on a registration from any thread, and the bytes are not reached through it.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers `len` bytes at `offset` of `region`; peers name them by their virtual address.
    ///
    /// With `relaxed`, the device may let its writes overtake each other on the bus: arrival is then known by
    /// completion alone. A library without that flag ignores it.
    ///
    /// # Errors
    /// Outside the region, no bytes at all, [`VerbsError::MemlockTooSmall`],
    /// [`VerbsError::RegistrationsExhausted`], or what else the device says.
    pub fn register(
        pd: &Pd,
        region: &Region,
        offset: u64,
        len: u64,
        access: Access,
        relaxed: bool,
    ) -> Result<Mr, VerbsError> {
        let size = region.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(VerbsError::OutOfBounds { offset, len, size });
        }
        if len == 0 {
            return Err(VerbsError::Invalid { what: "length of a registration", value: 0, range: "1 or more" });
        }
        let context = pd.context();
        let f = &context.library.f;
        // In bounds, so inside the region and its address.
        let start = region.as_ptr().wrapping_add(offset as usize);
        let (addr, flags) = (start.addr() as u64, flags(access));
        let ptr = match f.reg_mr_iova2 {
            // SAFETY: the range is valid, and the region is held until it is deregistered.
            Some(reg) if relaxed => unsafe {
                reg(pd.as_ptr(), start.cast(), len as usize, addr, flags | IBV_ACCESS_RELAXED_ORDERING)
            },
            // SAFETY: as above.
            _ => unsafe { (f.reg_mr)(pd.as_ptr(), start.cast(), len as usize, flags as i32) },
        };
        match NonNull::new(ptr) {
            Some(ptr) => Ok(Mr::new(pd, Some(region.clone()), ptr, addr, len)),
            None => Err(not_registered(context, len, last_errno())),
        }
    }

    /// Registers `len` bytes at `offset` of a dma-buf (memory of another device); peers name the first of them `iova`.
    ///
    /// # Errors
    /// [`VerbsError::NoDmaBuf`] where library or driver lack it, and as for [`Mr::register`].
    pub fn register_dmabuf(
        pd: &Pd,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Mr, VerbsError> {
        let context = pd.context();
        let refused = |errno| VerbsError::NoDmaBuf { device: context.name().to_owned(), errno };
        if len == 0 {
            return Err(VerbsError::Invalid { what: "length of a registration", value: 0, range: "1 or more" });
        }
        let reg = context.library.f.reg_dmabuf_mr.ok_or_else(|| refused(libc::EOPNOTSUPP))?;
        // SAFETY: the kernel checks the descriptor and takes its own reference to the buffer behind it.
        let ptr = unsafe { reg(pd.as_ptr(), offset, len as usize, iova, fd.as_raw_fd(), flags(access) as i32) };
        match NonNull::new(ptr) {
            Some(ptr) => Ok(Mr::new(pd, None, ptr, iova, len)),
            None => match last_errno() {
                errno @ (libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT | libc::EPROTOTYPE) => {
                    Err(refused(errno))
                }
                errno => Err(not_registered(context, len, errno)),
            },
        }
    }

    fn new(pd: &Pd, region: Option<Region>, ptr: NonNull<ibv_mr>, addr: u64, len: u64) -> Mr {
        // SAFETY: the library fills its structure before it returns it.
        let (lkey, rkey) = unsafe { ((*ptr.as_ptr()).lkey, (*ptr.as_ptr()).rkey) };
        Mr { pd: pd.clone(), region, ptr, addr, len, lkey, rkey }
    }

    /// The domain it belongs to.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The memory; `None` for a dma-buf.
    pub fn region(&self) -> Option<&Region> {
        self.region.as_ref()
    }

    /// The address of its first byte, as work requests and peers name it.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// False: a registration has at least a byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The key for our own work requests.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key for the peer's.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The address of `len` bytes at `offset`, if they are inside.
    #[inline]
    pub(super) fn check(&self, offset: u64, len: u32) -> Option<u64> {
        let end = offset.checked_add(u64::from(len))?;
        if end <= self.len { Some(self.addr + offset) } else { None }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: registered once.
        let rc = unsafe { (self.pd.context().library.f.dereg_mr)(self.ptr.as_ptr()) };
        if rc != 0 {
            // The device may still write: what it writes to stays ours for good.
            tracing::error!(device = self.pd.context().name(), rc, "ibv_dereg_mr failed; its memory is never freed");
            Box::leak(Box::new((self.region.take(), self.pd.clone())));
        }
    }
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mr({} bytes of {})", self.len, self.pd.context().name())
    }
}

fn flags(access: Access) -> u32 {
    let mut flags = 0;
    for (right, flag) in [
        // Whoever lets a peer write must be allowed to write.
        (Access::LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE),
        (Access::REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE),
        (Access::REMOTE_READ, IBV_ACCESS_REMOTE_READ),
        (Access::REMOTE_ATOMIC, IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_LOCAL_WRITE),
    ] {
        if access.allows(right) {
            flags |= flag;
        }
    }
    flags
}

/// Why a registration failed, with what this process may and does lock.
fn not_registered(context: &Context, asked: u64, errno: i32) -> VerbsError {
    let device = context.name().to_owned();
    let hint = match errno {
        libc::ENOMEM => {
            let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(u64::MAX, |(soft, _)| soft);
            let locked = locked_bytes(&fs::read_to_string("/proc/self/status").unwrap_or_default());
            if limit != u64::MAX && locked.saturating_add(asked) > limit {
                return VerbsError::MemlockTooSmall { device, asked, limit, locked };
            }
            return VerbsError::RegistrationsExhausted { device, asked, limit, max_mr: context.limits().max_mr };
        }
        libc::EFAULT => "; is the memory read-only, or not memory of this process?",
        _ => "",
    };
    VerbsError::Call { device, call: "ibv_reg_mr", errno, hint }
}

/// Bytes that a process has locked or pinned, from its `/proc/self/status`.
fn locked_bytes(status: &str) -> u64 {
    let kib = |name: &str| -> u64 {
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        line.and_then(|l| l.split_whitespace().next()).and_then(|n| n.parse().ok()).unwrap_or(0)
    };
    // Devices count as pinned, mlock as locked; the limit holds for each.
    1024 * kib("VmPin:").max(kib("VmLck:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_locked_is_read_from_proc() {
        assert_eq!(locked_bytes("VmPeak:\t  100 kB\nVmLck:\t       8 kB\nVmPin:\t    4096 kB\n"), 4096 * 1024);
        assert_eq!(locked_bytes("VmLck: 12 kB"), 12 * 1024);
        assert_eq!((locked_bytes(""), locked_bytes("VmPin: much")), (0, 0));
        let real = fs::read_to_string("/proc/self/status").expect("Linux");
        assert!(real.contains("VmPin:") && real.contains("VmLck:"));
    }

    #[test]
    fn writing_by_a_peer_includes_writing() {
        assert_eq!(flags(Access::LOCAL_READ), 0);
        assert_eq!(flags(Access::REMOTE_WRITE), IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE);
        assert_eq!(flags(Access::REMOTE_READ), IBV_ACCESS_REMOTE_READ);
        let all = Access::LOCAL_WRITE.and(Access::REMOTE_READ).and(Access::REMOTE_ATOMIC);
        assert_eq!(flags(all), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
    }
}
