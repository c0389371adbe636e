//! Listening, connecting, closing.

use std::ffi::c_char;
use std::net::SocketAddr;
use std::time::Duration;

use planespray::{Connecting, Connection, Error, Listener};

use super::fabric::{SprayFabric, hand_over, take_over};
use super::status::{AGAIN, Failed, guard, invalid, object, store, string};

/// Waits for peers.
pub struct SprayListener {
    listener: Listener,
}

/// A connection on the way up.
pub struct SprayConnecting {
    connecting: parking_lot::Mutex<Connecting>,
}

/// Messages and one-sided operations with one peer.
pub struct SprayConnection {
    pub(super) connection: Connection,
}

/// # Safety
/// As [`string`].
unsafe fn address(text: *const c_char) -> Result<SocketAddr, Failed> {
    // SAFETY: the caller's promise.
    let text = unsafe { string(text, "address") }?;
    text.parse().map_err(|_| invalid(&format!("`{text}` is not an address with a port, such as 192.0.2.1:18515")))
}

/// Waits for peers at a TCP address, such as `192.0.2.1:18515`; port 0 lets the system choose.
///
/// # Safety
/// All pointers are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_listen(
    fabric: *const SprayFabric,
    addr: *const c_char,
    listener: *mut *mut SprayListener,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (fabric, addr) = unsafe { (object(fabric, "fabric")?, address(addr)?) };
        let listening = fabric.fabric.listen(addr)?;
        // SAFETY: the caller's promise.
        unsafe { hand_over(listener, SprayListener { listener: listening }) }
    })
}

/// Writes where it listens to `text`, of `room` bytes (64 are enough), with a zero byte at the end.
///
/// # Safety
/// All pointers are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_listener_address(listener: *const SprayListener, text: *mut c_char, room: u64) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let listener = unsafe { object(listener, "listener") }?;
        let bytes = format!("{}\0", listener.listener.local_addr());
        if text.is_null() || bytes.len() as u64 > room {
            return Err(invalid("no room for the address; 64 bytes are enough"));
        }
        // SAFETY: there is room by the check and the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), text.cast::<u8>(), bytes.len()) };
        Ok(())
    })
}

/// The next peer that completes its handshake, after at most `timeout_ms`; `SPRAY_AGAIN` if there was none. With 0 it only
/// looks: handshakes go on only while somebody calls this.
///
/// # Safety
/// All pointers are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_accept(
    listener: *const SprayListener,
    timeout_ms: u64,
    connection: *mut *mut SprayConnection,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let listener = unsafe { object(listener, "listener") }?;
        let accepted = match timeout_ms {
            0 => listener.listener.poll_accept()?.ok_or(AGAIN)?,
            ms => match listener.listener.accept(Duration::from_millis(ms)) {
                Err(Error::TimedOut { .. }) => return Err(AGAIN),
                other => other?,
            },
        };
        // SAFETY: the caller's promise.
        unsafe { hand_over(connection, SprayConnection { connection: accepted }) }
    })
}

/// Closes a listener; its connections stay. NULL is allowed.
///
/// # Safety
/// `listener` came from `spray_listen` and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_listener_close(listener: *mut SprayListener) {
    guard(|| {
        // SAFETY: the caller's promise.
        drop(unsafe { take_over(listener) });
        Ok(())
    });
}

/// Connects to a peer that listens at `addr`; waits for at most `timeout_ms`.
///
/// # Safety
/// All pointers are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_connect(
    fabric: *const SprayFabric,
    addr: *const c_char,
    timeout_ms: u64,
    connection: *mut *mut SprayConnection,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (fabric, addr) = unsafe { (object(fabric, "fabric")?, address(addr)?) };
        let connected = fabric.fabric.connect(addr, Duration::from_millis(timeout_ms))?;
        // SAFETY: the caller's promise.
        unsafe { hand_over(connection, SprayConnection { connection: connected }) }
    })
}

/// Begins to connect, without waiting; `spray_connect_poll` goes on. It has `timeout_ms` to succeed.
///
/// # Safety
/// All pointers are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_connect_begin(
    fabric: *const SprayFabric,
    addr: *const c_char,
    timeout_ms: u64,
    connecting: *mut *mut SprayConnecting,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (fabric, addr) = unsafe { (object(fabric, "fabric")?, address(addr)?) };
        let begun = fabric.fabric.begin_connect(addr, None, Duration::from_millis(timeout_ms))?;
        let begun = parking_lot::Mutex::new(begun);
        // SAFETY: the caller's promise.
        unsafe { hand_over(connecting, SprayConnecting { connecting: begun }) }
    })
}

/// Goes on without waiting: `SPRAY_AGAIN` until it is up. Close `connecting` afterwards, whatever came of it.
///
/// # Safety
/// All pointers are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_connect_poll(
    connecting: *const SprayConnecting,
    connection: *mut *mut SprayConnection,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let connecting = unsafe { object(connecting, "connecting") }?;
        let connected = connecting.connecting.lock().poll()?.ok_or(AGAIN)?;
        // SAFETY: the caller's promise.
        unsafe { hand_over(connection, SprayConnection { connection: connected }) }
    })
}

/// Gives up what is not connected yet, and frees it. NULL is allowed.
///
/// # Safety
/// `connecting` came from `spray_connect_begin` and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_connecting_close(connecting: *mut SprayConnecting) {
    guard(|| {
        // SAFETY: the caller's promise.
        drop(unsafe { take_over(connecting) });
        Ok(())
    });
}

/// Sends what is under way, says goodbye, and closes the connection after at most `timeout_ms`. `undelivered` (NULL is allowed)
/// gets the number of sends and one-sided operations that were not over. Requests of the connection stay the caller's.
///
/// # Safety
/// `connection` came from this library and is not used again; `undelivered` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_close(connection: *mut SprayConnection, timeout_ms: u64, undelivered: *mut u64) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let Some(connection) = (unsafe { take_over(connection) }) else { return Ok(()) };
        let report = connection.connection.close(Duration::from_millis(timeout_ms));
        if undelivered.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { store(undelivered, report.undelivered as u64) }
    })
}
