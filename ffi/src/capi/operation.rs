//! Messages and one-sided operations.

use planespray::{Class, Error, Posted, RemoteWindow, SendOptions};

use super::connection::SprayConnection;
use super::fabric::{hand_over, take_over};
use super::memory::{SPRAY_TOKEN_BYTES, SprayMemory};
use super::status::{AGAIN, Failed, SPRAY_AGAIN, guard, invalid, object, store};

/// Small messages whose delay is felt.
pub const SPRAY_CLASS_LATENCY: u32 = 0;
/// Regular traffic with a rate to keep.
pub const SPRAY_CLASS_STEADY: u32 = 1;
/// As much as fits.
pub const SPRAY_CLASS_BULK: u32 = 2;

/// An operation under way.
pub struct SprayRequest {
    posted: Posted,
}

fn class(number: u32) -> Result<Class, Failed> {
    match number {
        SPRAY_CLASS_LATENCY => Ok(Class::Latency),
        SPRAY_CLASS_STEADY => Ok(Class::Steady),
        SPRAY_CLASS_BULK => Ok(Class::Bulk),
        _ => Err(invalid("class is SPRAY_CLASS_LATENCY, SPRAY_CLASS_STEADY or SPRAY_CLASS_BULK")),
    }
}

/// # Safety
/// As the exported functions.
unsafe fn begin(
    connection: *const SprayConnection,
    memory: *const SprayMemory,
    request: *mut *mut SprayRequest,
    post: impl FnOnce(&SprayConnection, &SprayMemory) -> Result<Posted, Failed>,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let (connection, memory) = unsafe { (object(connection, "connection")?, object(memory, "memory")?) };
        if request.is_null() {
            return Err(invalid("the place for the request is NULL"));
        }
        let posted = post(connection, memory)?;
        // SAFETY: the caller's promise.
        unsafe { hand_over(request, SprayRequest { posted }) }
    })
}

/// Sends `len` bytes at `offset` of `memory` as one message. The nth send on a channel meets the nth receive on it.
/// `SPRAY_AGAIN`: too much is outstanding.
///
/// # Safety
/// All pointers are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_send(
    connection: *const SprayConnection,
    channel: u32,
    class_number: u32,
    memory: *const SprayMemory,
    offset: u64,
    len: u64,
    request: *mut *mut SprayRequest,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        begin(connection, memory, request, |c, m| {
            let options = SendOptions { class: class(class_number)?, rendezvous: false, channel };
            Ok(c.connection.send_from(options, &m.memory, offset, len)?)
        })
    }
}

/// Receives the next message of a channel into at most `len` bytes at `offset` of `memory`.
///
/// # Safety
/// All pointers are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_receive(
    connection: *const SprayConnection,
    channel: u32,
    memory: *const SprayMemory,
    offset: u64,
    len: u64,
    request: *mut *mut SprayRequest,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        begin(connection, memory, request, |c, m| Ok(c.connection.receive_into(channel, &m.memory, offset, len)?))
    }
}

/// # Safety
/// `token` is null or has 48 bytes.
unsafe fn window(token: *const u8) -> Result<RemoteWindow, Failed> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { object(token.cast::<[u8; SPRAY_TOKEN_BYTES]>(), "token") }?;
    RemoteWindow::from_bytes(bytes).ok_or_else(|| invalid("this is no token of spray_expose"))
}

/// Writes `len` bytes at `offset` of `memory` to `remote_offset` of the peer's window that `token` (48 bytes) names. Done means:
/// they are there. The peer's program is not told.
///
/// # Safety
/// All pointers are NULL or valid.
#[allow(clippy::too_many_arguments)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_write(
    connection: *const SprayConnection,
    class_number: u32,
    memory: *const SprayMemory,
    offset: u64,
    len: u64,
    token: *const u8,
    remote_offset: u64,
    request: *mut *mut SprayRequest,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        begin(connection, memory, request, |c, m| {
            let to = window(token)?;
            Ok(c.connection.write_from(class(class_number)?, &m.memory, offset, len, &to, remote_offset)?)
        })
    }
}

/// Reads `len` bytes at `remote_offset` of the peer's window into `offset` of `memory`.
///
/// # Safety
/// All pointers are NULL or valid.
#[allow(clippy::too_many_arguments)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_read(
    connection: *const SprayConnection,
    class_number: u32,
    memory: *const SprayMemory,
    offset: u64,
    len: u64,
    token: *const u8,
    remote_offset: u64,
    request: *mut *mut SprayRequest,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        begin(connection, memory, request, |c, m| {
            let from = window(token)?;
            Ok(c.connection.read_into(class(class_number)?, &m.memory, offset, len, &from, remote_offset)?)
        })
    }
}

/// Ends a request that has a result; `SPRAY_AGAIN` if it has none.
///
/// # Safety
/// `request` points to a place that is null or holds a request; `len` is null or valid.
unsafe fn settle(
    request: *mut *mut SprayRequest,
    len: *mut u64,
    look: impl FnOnce(&mut Posted) -> Option<Result<usize, Error>>,
) -> Result<(), Failed> {
    // SAFETY: the caller's promise; nobody else uses the request meanwhile.
    let Some(pending) = (unsafe { request.as_ref().and_then(|r| r.as_mut()) }) else {
        return Err(invalid("request is NULL"));
    };
    let result = look(&mut pending.posted).ok_or(AGAIN)?;
    // SAFETY: it came from `hand_over`; the caller's place is cleared, so it is not used again.
    drop(unsafe { take_over(request.replace(std::ptr::null_mut())) });
    let moved = result? as u64;
    if len.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { store(len, moved) }
}

/// Looks whether `*request` is over: `SPRAY_AGAIN` if not. Otherwise it is freed and `*request` set to NULL, and the status
/// and `*len` (NULL is allowed) say how it ended and how many bytes it moved.
///
/// # Safety
/// All pointers are NULL or valid; one thread at a time per request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_test(request: *mut *mut SprayRequest, len: *mut u64) -> i32 {
    // SAFETY: the caller's promise.
    guard(|| unsafe { settle(request, len, Posted::test) })
}

/// As `spray_test`, but waits for at most `timeout_ms`; sleeps while nothing arrives.
///
/// # Safety
/// As `spray_test`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_wait(request: *mut *mut SprayRequest, timeout_ms: u64, len: *mut u64) -> i32 {
    let timeout = std::time::Duration::from_millis(timeout_ms);
    // SAFETY: the caller's promise.
    guard(|| unsafe { settle(request, len, |posted| posted.wait(timeout)) })
}

/// Tests `n` requests at once. NULL ones are skipped; those that are over are freed and set to NULL, their status stored in
/// `status[i]` and their length in `len[i]`; the others get `SPRAY_AGAIN`. Returns how many are over, or a negative status.
///
/// # Safety
/// Each array is NULL or has `n` elements; one thread at a time per request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_test_batch(
    requests: *mut *mut SprayRequest,
    n: u32,
    status: *mut i32,
    len: *mut u64,
) -> i32 {
    let mut over = 0;
    let code = guard(|| {
        if n == 0 {
            return Ok(());
        }
        if requests.is_null() || status.is_null() || len.is_null() {
            return Err(invalid("an array is NULL"));
        }
        if n > i32::MAX as u32 {
            return Err(invalid("more requests than a status can count"));
        }
        let mut driven = false;
        for i in 0..n as usize {
            // SAFETY: element i of each array.
            let (request, status, len) = unsafe { (requests.add(i), status.add(i), len.add(i)) };
            // SAFETY: as above.
            if unsafe { (*request).is_null() } {
                continue;
            }
            // One round of the engine serves all.
            let look =
                |posted: &mut Posted| if std::mem::replace(&mut driven, true) { posted.take() } else { posted.test() };
            // SAFETY: the caller's promise.
            let code = guard(|| unsafe { settle(request, len, look) });
            over += i32::from(code != SPRAY_AGAIN);
            // SAFETY: as above.
            unsafe { status.write(code) };
        }
        Ok(())
    });
    if code < 0 { code } else { over }
}

/// Lets go of a request: it goes on, and nobody learns how it ends. Its memory must stay until it is released. NULL is allowed.
///
/// # Safety
/// `request` came from this library and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spray_request_detach(request: *mut SprayRequest) {
    guard(|| {
        // SAFETY: the caller's promise.
        drop(unsafe { take_over(request) });
        Ok(())
    });
}
