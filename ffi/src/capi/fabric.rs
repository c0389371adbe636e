//! A process's ports on all planes.

use std::ffi::{c_char, c_int};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::time::Duration;

use planespray::{Engine, Fabric, FabricConfig, JobKey};

use super::status::{Failed, guard, invalid, object, store, string};

/// How a fabric is opened. Set it up by `spray_config_init`, which makes later versions of it compatible.
#[repr(C)]
pub struct SprayConfig {
    /// Size of this struct, set by `spray_config_init`.
    pub size: u64,
    /// Local addresses separated by commas, one per plane, 1 to 8 of them: the embedded engine runs over these. NULL:
    /// 127.0.0.1.
    pub planes: *const c_char,
    /// The job's key, 32 bytes, the same at both ends. NULL: the environment's (`PLANESPRAY_JOB_KEY`).
    pub key: *const u8,
    /// Not 0: go on without a key and without authentication.
    pub insecure: u32,
    /// Data lanes per plane and class, 1 to 64; 0: the default.
    pub lanes_per_plane: u32,
    /// RoCE MTU: 256, 512, 1024, 2048 or 4096; 0: the default.
    pub mtu: u32,
    /// DSCP of each class, 0 to 63: latency, steady, bulk.
    pub dscp: [u8; 3],
    /// Zero.
    pub reserved: u8,
    /// Milliseconds for which a peer may be silent; 0: the default.
    pub peer_timeout_ms: u64,
}

/// A process's ports on all planes.
pub struct SprayFabric {
    pub(super) fabric: Fabric,
}

/// Fills in the defaults. `size` is `sizeof(spray_config)` as the caller's header has it.
///
/// # Safety
/// `config` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_config_init(config: *mut SprayConfig, size: u64) -> i32 {
    guard(|| {
        if size != size_of::<SprayConfig>() as u64 {
            return Err(invalid(
                "the size of spray_config is not this library's: header and library do not belong together",
            ));
        }
        let defaults = SprayConfig {
            size,
            planes: std::ptr::null(),
            key: std::ptr::null(),
            insecure: 0,
            lanes_per_plane: 0,
            mtu: 0,
            dscp: [0; 3],
            reserved: 0,
            peer_timeout_ms: 0,
        };
        // SAFETY: the caller's promise.
        unsafe { store(config, defaults) }
    })
}

/// Opens the ports. `*fabric` is closed by `spray_fabric_close`.
///
/// # Safety
/// `config` was initialized and its pointers are NULL or valid; `fabric` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_fabric_open(config: *const SprayConfig, fabric: *mut *mut SprayFabric) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let config = unsafe { object(config, "config") }?;
        // SAFETY: the caller's promise.
        let opened = Fabric::open(&unsafe { translate(config) }?)?;
        // SAFETY: the caller's promise.
        unsafe { hand_over(fabric, SprayFabric { fabric: opened }) }
    })
}

/// # Safety
/// The config's pointers are NULL or valid.
unsafe fn translate(config: &SprayConfig) -> Result<FabricConfig, Failed> {
    if config.size != size_of::<SprayConfig>() as u64 {
        return Err(invalid("the config was not set up by spray_config_init"));
    }
    let mut full = FabricConfig { engine: Engine::Embedded, insecure: config.insecure != 0, ..FabricConfig::default() };
    if !config.planes.is_null() {
        // SAFETY: the caller's promise.
        let text = unsafe { string(config.planes, "planes") }?;
        let parse =
            |t: &str| t.trim().parse::<IpAddr>().map_err(|_| invalid(&format!("`{t}` in planes is not an address")));
        full.planes = text.split(',').map(parse).collect::<Result<_, _>>()?;
    }
    full.key = if config.key.is_null() {
        JobKey::from_env().map_err(planespray::Error::from)?
    } else {
        // SAFETY: 32 bytes by the caller's promise.
        Some(JobKey::from_bytes(unsafe { config.key.cast::<[u8; 32]>().read() }))
    };
    if config.lanes_per_plane != 0 {
        full.lanes_per_plane = u16::try_from(config.lanes_per_plane).unwrap_or(u16::MAX);
    }
    if config.mtu != 0 {
        full.mtu = config.mtu;
    }
    for (dscp, &value) in full.dscp.iter_mut().zip(&config.dscp) {
        *dscp = planespray::Dscp::new(value).ok_or_else(|| invalid("a DSCP is 0 to 63"))?;
    }
    if config.peer_timeout_ms != 0 {
        full.peer_timeout = Duration::from_millis(config.peer_timeout_ms);
    }
    Ok(full)
}

/// Gives the caller an object to close later.
///
/// # Safety
/// `place` is null or valid for a write.
pub(super) unsafe fn hand_over<T>(place: *mut *mut T, value: T) -> Result<(), Failed> {
    if place.is_null() {
        return Err(invalid("the place for the result is NULL"));
    }
    // SAFETY: the caller's promise.
    unsafe { store(place, Box::into_raw(Box::new(value))) }
}

/// Takes an object back; NULL is nothing.
///
/// # Safety
/// `pointer` is null, or came from [`hand_over`] and is not used again.
pub(super) unsafe fn take_over<T>(pointer: *mut T) -> Option<Box<T>> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { Box::from_raw(pointer) })
}

/// Closes the fabric's handle; the ports go with the last listener, connection and memory. NULL is allowed.
///
/// # Safety
/// `fabric` came from `spray_fabric_open` and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_fabric_close(fabric: *mut SprayFabric) {
    guard(|| {
        // SAFETY: the caller's promise.
        drop(unsafe { take_over(fabric) });
        Ok(())
    });
}

/// Does what is due, without waiting. Any call on an operation does so too.
///
/// # Safety
/// `fabric` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_progress(fabric: *const SprayFabric) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { object(fabric, "fabric") }?.fabric.progress();
        Ok(())
    })
}

/// A descriptor for `poll` or `epoll`: readable when operations have ended since its 8 bytes were last read. It belongs to the
/// fabric; do not close it. Operations go on while the caller sleeps on it.
///
/// # Safety
/// `fabric` is NULL or open, `fd` NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_event_fd(fabric: *const SprayFabric, fd: *mut c_int) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let fabric = unsafe { object(fabric, "fabric") }?;
        // SAFETY: the caller's promise.
        unsafe { store(fd, fabric.fabric.event_fd()?.as_raw_fd()) }
    })
}
