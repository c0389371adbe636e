//! Devices: which there are, and opening one.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::dl::Library;
use super::error::{VerbsError, last_errno};
use super::ext::{self, DataOps};
use super::sys::*;

/// A device that the library found; [`Device::open`] opens it.
pub struct Device {
    list: Arc<DeviceList>,
    ptr: NonNull<ibv_device>,
}

/// An open device. Everything made of it keeps it open.
pub struct Context {
    pub(super) library: Arc<Library>,
    pub(super) ptr: NonNull<ibv_context>,
    pub(super) ops: DataOps,
    pub(super) events_taken: AtomicBool,
    name: String,
    sysfs: PathBuf,
    limits: DeviceLimits,
}

/// What a device has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceLimits {
    /// Firmware version as the driver gives it.
    pub firmware: String,
    /// Identifies the device, in the byte order of its text form.
    pub guid: u64,
    /// PCI vendor.
    pub vendor: u32,
    /// PCI device.
    pub part: u32,
    /// Ports, numbered from 1.
    pub ports: u8,
    /// Queue pairs.
    pub max_qp: u32,
    /// Requests of one queue.
    pub max_qp_wr: u32,
    /// Entries of one completion queue.
    pub max_cqe: u32,
    /// Registrations.
    pub max_mr: u64,
    /// READs and atomics that a queue pair may have outstanding as requester.
    pub max_initiator_reads: u8,
    /// READs and atomics that a queue pair may have outstanding as responder.
    pub max_responder_reads: u8,
    /// Atomics are supported.
    pub atomics: bool,
    /// Bits of a completion's timestamp; 0 if it has none.
    pub timestamp_mask: u64,
    /// Ticks of that clock in kHz; 0 if not known.
    pub clock_khz: u64,
}

/// The devices of this machine, in the library's order.
///
/// # Errors
/// [`VerbsError::NoKernelSupport`], [`VerbsError::NoDevice`], or what else `ibv_get_device_list` said.
pub fn devices(library: &Arc<Library>) -> Result<Vec<Device>, VerbsError> {
    let mut count = 0;
    // SAFETY: the function fills `count` and gives a list that is ours to free.
    let list = unsafe { (library.f.get_device_list)(&mut count) };
    let Some(list) = NonNull::new(list) else {
        return Err(match last_errno() {
            // What it says where /sys/class/infiniband_verbs is missing.
            errno @ (libc::ENOSYS | libc::ENOENT) => VerbsError::NoKernelSupport { errno },
            errno => VerbsError::call("", "ibv_get_device_list", errno),
        });
    };
    let list = Arc::new(DeviceList { library: library.clone(), list });
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the list has `count` entries.
    let found = (0..count).filter_map(|i| NonNull::new(unsafe { *list.list.as_ptr().add(i) }));
    let devices: Vec<Device> = found.map(|ptr| Device { list: list.clone(), ptr }).collect();
    if devices.is_empty() { Err(VerbsError::NoDevice) } else { Ok(devices) }
}

struct DeviceList {
    library: Arc<Library>,
    list: NonNull<*mut ibv_device>,
}

// SAFETY: the list is only read, and the library allows its use from any thread.
unsafe impl Send for DeviceList {}
// SAFETY: as above.
unsafe impl Sync for DeviceList {}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: from ibv_get_device_list, freed once; open devices keep what they need.
        unsafe { (self.library.f.free_device_list)(self.list.as_ptr()) };
    }
}

// SAFETY: as for the list that it points into.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Its name, such as `mlx5_0`.
    pub fn name(&self) -> String {
        // SAFETY: the device lives as long as its list.
        text(unsafe { &(*self.ptr.as_ptr()).name })
    }

    /// Its directory below `/sys/class/infiniband`.
    pub fn sysfs(&self) -> PathBuf {
        // SAFETY: as above.
        PathBuf::from(text(unsafe { &(*self.ptr.as_ptr()).ibdev_path }))
    }

    /// The file through which it is driven.
    pub fn file(&self) -> PathBuf {
        // SAFETY: as above.
        Path::new("/dev/infiniband").join(text(unsafe { &(*self.ptr.as_ptr()).dev_name }))
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`VerbsError::NoPermission`], or what else the library says.
    pub fn open(&self) -> Result<Arc<Context>, VerbsError> {
        let library = &self.list.library;
        let name = self.name();
        // SAFETY: a device of a live list.
        let context = unsafe { (library.f.open_device)(self.ptr.as_ptr()) };
        let Some(ptr) = NonNull::new(context) else { return Err(self.cannot_open(&name, last_errno())) };
        // SAFETY: just opened.
        let opened = unsafe { DataOps::of(ptr) }
            .ok_or_else(|| VerbsError::Unsupported { device: name.clone(), what: "data path in user space" })
            .and_then(|ops| Ok((ops, unsafe { limits(library, ptr, &name) }?)));
        match opened {
            Ok((ops, limits)) => Ok(Arc::new(Context {
                library: library.clone(),
                ptr,
                ops,
                events_taken: AtomicBool::new(false),
                name,
                sysfs: self.sysfs(),
                limits,
            })),
            Err(e) => {
                // SAFETY: just opened, and nothing was made of it.
                unsafe { (library.f.close_device)(ptr.as_ptr()) };
                Err(e)
            }
        }
    }

    fn cannot_open(&self, name: &str, errno: i32) -> VerbsError {
        let hint = match errno {
            libc::EACCES | libc::EPERM => {
                return VerbsError::NoPermission { device: name.to_owned(), path: self.file(), errno };
            }
            libc::ENOENT | libc::ENODEV | libc::ENXIO => {
                "; is /dev/infiniband there, and in a container, was it passed in?"
            }
            libc::EMFILE | libc::ENFILE => "; raise the limit on open files",
            0 => "; does the provider library (package ibverbs-providers) fit the driver?",
            _ => "",
        };
        VerbsError::Call { device: name.to_owned(), call: "ibv_open_device", errno, hint }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.name())
    }
}

// SAFETY: libibverbs allows all calls on a context from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its directory below `/sys/class/infiniband`.
    pub fn sysfs(&self) -> &Path {
        &self.sysfs
    }

    /// What it has.
    pub fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    /// The library's own structure, for calls that this crate does not make. It must not be closed.
    pub fn as_ptr(&self) -> *mut ibv_context {
        self.ptr.as_ptr()
    }

    pub(super) fn failed(&self, call: &'static str) -> VerbsError {
        VerbsError::call(&self.name, call, last_errno())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened once, and whatever was made of it held the last handle.
        unsafe { (self.library.f.close_device)(self.ptr.as_ptr()) };
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.name)
    }
}

/// # Safety
/// An open context of this library.
unsafe fn limits(library: &Library, ptr: NonNull<ibv_context>, name: &str) -> Result<DeviceLimits, VerbsError> {
    // SAFETY: numbers and arrays of numbers may be zero.
    let mut attr: ibv_device_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: an open context.
    if unsafe { ext::query_device_ex(ptr, &mut attr) } != Some(0) {
        // SAFETY: as above.
        let rc = unsafe { (library.f.query_device)(ptr.as_ptr(), &mut attr.orig_attr) };
        if rc != 0 {
            return Err(VerbsError::call(name, "ibv_query_device", rc));
        }
        attr.completion_timestamp_mask = 0;
    }
    let d = &attr.orig_attr;
    let count = |n: i32| u32::try_from(n).unwrap_or(0);
    let reads = |n: i32| u8::try_from(n.clamp(1, 128)).unwrap_or(1);
    Ok(DeviceLimits {
        firmware: text(&d.fw_ver),
        guid: u64::from_be(d.node_guid),
        vendor: d.vendor_id,
        part: d.vendor_part_id,
        ports: d.phys_port_cnt,
        max_qp: count(d.max_qp),
        max_qp_wr: count(d.max_qp_wr),
        max_cqe: count(d.max_cqe),
        max_mr: u64::from(count(d.max_mr)),
        max_initiator_reads: reads(d.max_qp_init_rd_atom),
        max_responder_reads: reads(d.max_qp_rd_atom),
        atomics: d.atomic_cap != IBV_ATOMIC_NONE,
        timestamp_mask: attr.completion_timestamp_mask,
        clock_khz: attr.hca_core_clock,
    })
}

/// A text in an array of fixed size, up to its zero byte.
fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|&c| c as u8).collect();
    match CStr::from_bytes_until_nul(&bytes) {
        Ok(c) => c.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    }
}
