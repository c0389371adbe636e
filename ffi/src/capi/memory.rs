//! Memory of the caller's, and windows of it.

use std::ffi::c_void;
use std::ptr::NonNull;

use planespray::{ExposedMemory, Memory, WindowAccess};

use super::connection::SprayConnection;
use super::fabric::{SprayFabric, hand_over, take_over};
use super::status::{guard, invalid, object};

/// Bytes of a window's token.
pub const SPRAY_TOKEN_BYTES: usize = 48;
/// The peer may write to the window.
pub const SPRAY_ACCESS_WRITE: u32 = 1;
/// The peer may read from the window.
pub const SPRAY_ACCESS_READ: u32 = 2;

/// Registered memory.
pub struct SprayMemory {
    pub(super) memory: Memory,
}

/// Memory that one peer may reach by itself.
pub struct SprayWindow {
    _window: ExposedMemory,
}

/// Registers `len` bytes at `start`, which stay the caller's: they must stay valid until `spray_memory_release` returns, and must
/// not be touched while an operation uses them, except to read what is being sent.
///
/// # Safety
/// As said; `fabric` is NULL or open, `memory` NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_memory_register(
    fabric: *const SprayFabric,
    start: *mut c_void,
    len: u64,
    memory: *mut *mut SprayMemory,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let fabric = unsafe { object(fabric, "fabric") }?;
        let len = usize::try_from(len).map_err(|_| invalid("more bytes than there are addresses"))?;
        let start = match NonNull::new(start.cast::<u8>()) {
            Some(start) => start,
            None if len == 0 => NonNull::dangling(),
            None => return Err(invalid("start is NULL")),
        };
        // SAFETY: the caller's promise.
        let registered = unsafe { fabric.fabric.register_memory(start, len) }?;
        // SAFETY: the caller's promise.
        unsafe { hand_over(memory, SprayMemory { memory: registered }) }
    })
}

/// Gives the memory back to the caller: from here on nothing reads or writes it. Operations that still use it end, or go on
/// without it. NULL is allowed.
///
/// # Safety
/// `memory` came from `spray_memory_register` and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_memory_release(memory: *mut SprayMemory) {
    guard(|| {
        // SAFETY: the caller's promise.
        drop(unsafe { take_over(memory) });
        Ok(())
    });
}

/// Lets the peer of `connection` at the first `len` bytes of `memory`, and writes the window's token, which the peer needs, to
/// `token` (48 bytes). Whoever has the token can use the window, so it travels only between the two.
///
/// # Safety
/// All pointers are NULL or valid; `memory` outlives the window.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_expose(
    connection: *const SprayConnection,
    memory: *const SprayMemory,
    len: u64,
    access: u32,
    token: *mut u8,
    window: *mut *mut SprayWindow,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (connection, memory) = unsafe { (object(connection, "connection")?, object(memory, "memory")?) };
        if access & !(SPRAY_ACCESS_WRITE | SPRAY_ACCESS_READ) != 0 || access == 0 {
            return Err(invalid("access is SPRAY_ACCESS_WRITE, SPRAY_ACCESS_READ or both"));
        }
        if token.is_null() {
            return Err(invalid("token is NULL"));
        }
        let rights = WindowAccess {
            write: access & SPRAY_ACCESS_WRITE != 0,
            read: access & SPRAY_ACCESS_READ != 0,
            atomic: false,
        };
        let exposed = memory.memory.expose(&connection.connection, len, rights)?;
        let bytes: [u8; SPRAY_TOKEN_BYTES] = exposed.token();
        // SAFETY: 48 bytes by the caller's promise.
        unsafe { token.cast::<[u8; SPRAY_TOKEN_BYTES]>().write(bytes) };
        // SAFETY: the caller's promise.
        unsafe { hand_over(window, SprayWindow { _window: exposed }) }
    })
}

/// Closes a window. What the peer still sends to it is refused and costs one of its lanes, so the peer should be known to be
/// done. NULL is allowed.
///
/// # Safety
/// `window` came from `spray_expose` and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_window_close(window: *mut SprayWindow) {
    guard(|| {
        // SAFETY: the caller's promise.
        drop(unsafe { take_over(window) });
        Ok(())
    });
}
