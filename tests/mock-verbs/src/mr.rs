//! Registrations.

use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};

use planespray::mem::{Access, Key, Region};
use planespray::verbs::sys::*;

use crate::context::{MockContext, MockPd, set_errno};
use crate::world::world;

#[repr(C)]
struct MockMr {
    mr: ibv_mr,
    key: Key,
}

fn rights(flags: u32) -> Access {
    let mut access = Access::LOCAL_READ;
    for (flag, right) in [
        (IBV_ACCESS_LOCAL_WRITE, Access::LOCAL_WRITE),
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
    ] {
        if flags & flag != 0 {
            access = access.and(right);
        }
    }
    access
}

unsafe fn register(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, flags: u32) -> *mut ibv_mr {
    // SAFETY: a domain of this library.
    let (context, number) = unsafe { ((*pd).context, (*pd.cast::<MockPd>()).number) };
    // SAFETY: the domain's context is open.
    let device = unsafe { MockContext::device_of(context) };
    let mut w = world();
    w.control.last_access = flags;
    let refused = if length == 0
        || flags & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0 && flags & IBV_ACCESS_LOCAL_WRITE == 0
    {
        Some(libc::EINVAL)
    } else {
        w.control.registration_errno()
    };
    let Some(ptr) = NonNull::new(addr.cast::<u8>()).filter(|_| refused.is_none()) else {
        set_errno(refused.unwrap_or(libc::EFAULT));
        return null_mut();
    };
    // SAFETY: whoever registers memory keeps it until it is deregistered.
    let region = unsafe { Region::from_raw(ptr, length) };
    let registered =
        w.devices[device].engine.memory_mut().register(number, &region, 0, length as u64, iova, rights(flags));
    let Ok(key) = registered else {
        set_errno(libc::ENOMEM);
        return null_mut();
    };
    if flags & IBV_ACCESS_REMOTE_WRITE != 0 {
        w.open_memory.push((device, ptr.as_ptr().expose_provenance(), length));
    }
    let mr = ibv_mr { context, pd, addr, length, handle: key.0, lkey: key.0, rkey: key.0 };
    Box::into_raw(Box::new(MockMr { mr, key })).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
    // SAFETY: as the caller promises.
    unsafe { register(pd, addr, length, addr.addr() as u64, access as u32) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: as the caller promises.
    unsafe { register(pd, addr, length, iova, access) }
}

/// Maps the descriptor, where that is allowed: any file in memory does for a dma-buf.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    if !world().control.dmabuf {
        set_errno(libc::EOPNOTSUPP);
        return null_mut();
    }
    // SAFETY: a mapping at an address of the kernel's choice; it stays for the life of the process.
    let p = unsafe {
        libc::mmap(null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, offset as i64)
    };
    if p == libc::MAP_FAILED {
        return null_mut();
    }
    // SAFETY: just mapped.
    unsafe { register(pd, p, length, iova, access as u32) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    let mut w = world();
    if let Some(errno) = w.control.dereg_errno {
        return errno;
    }
    // SAFETY: made by `register`, deregistered once.
    let mock = unsafe { Box::from_raw(mr.cast::<MockMr>()) };
    // SAFETY: its context is open.
    let device = unsafe { MockContext::device_of(mock.mr.context) };
    w.close_memory(device, mock.mr.addr.addr(), mock.mr.length);
    if w.devices[device].engine.memory_mut().revoke(mock.key) { 0 } else { libc::EINVAL }
}
