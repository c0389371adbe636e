//! Status codes and the text of the last error.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use planespray::{Error, Failure, Fate, PeerReason};

/// It worked.
pub const SPRAY_OK: i32 = 0;
/// Not now: nothing is there yet, or too much is outstanding. Try again later; no error text is left.
pub const SPRAY_AGAIN: i32 = -1;
/// An argument is null, out of range, or contradicts another.
pub const SPRAY_INVALID: i32 = -2;
/// The operating system refused something, or there is no memory.
pub const SPRAY_SYSTEM: i32 = -3;
/// The two ends could not agree: another key, another version, no common plane, or it took too long.
pub const SPRAY_HANDSHAKE: i32 = -4;
/// The peer is gone, or closed the connection.
pub const SPRAY_PEER_GONE: i32 = -5;
/// The operation failed at one of the ends or on the way.
pub const SPRAY_FAILED: i32 = -6;
/// A message is longer than the receive that it met.
pub const SPRAY_TOO_LONG: i32 = -7;
/// The connection was closed at this end.
pub const SPRAY_CLOSED: i32 = -8;
/// A fault of planespray; please report it.
pub const SPRAY_BUG: i32 = -9;

/// The error was not about the arrival of something sent.
pub const SPRAY_FATE_NONE: i32 = 0;
/// All of it had arrived, as success would have meant.
pub const SPRAY_FATE_DELIVERED: i32 = 1;
/// It has not arrived, and will not.
pub const SPRAY_FATE_NOT_DELIVERED: i32 = 2;
/// Part of it was under way, and nobody is left who could tell.
pub const SPRAY_FATE_UNKNOWN: i32 = 3;

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
    static FATE: Cell<i32> = const { Cell::new(SPRAY_FATE_NONE) };
}

/// A status that is not [`SPRAY_OK`].
pub(super) struct Failed(i32);

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        if error.is_back_pressure() {
            return Failed(SPRAY_AGAIN);
        }
        let code = match &error {
            Error::Config { .. } | Error::Range { .. } | Error::Key(_) => SPRAY_INVALID,
            Error::Bootstrap(_) | Error::TimedOut { .. } => SPRAY_HANDSHAKE,
            Error::PeerGone { .. } => SPRAY_PEER_GONE,
            Error::Closed { .. } => SPRAY_CLOSED,
            Error::Failed { failure: Failure::TooLong { .. } | Failure::Peer(PeerReason::TooLong), .. } => {
                SPRAY_TOO_LONG
            }
            Error::Failed { .. } | Error::NotTaken { .. } => SPRAY_FAILED,
            _ => SPRAY_SYSTEM,
        };
        say(&error.to_string());
        FATE.set(match error.fate() {
            None => SPRAY_FATE_NONE,
            Some(Fate::Delivered) => SPRAY_FATE_DELIVERED,
            Some(Fate::NotDelivered) => SPRAY_FATE_NOT_DELIVERED,
            Some(Fate::Unknown) => SPRAY_FATE_UNKNOWN,
        });
        Failed(code)
    }
}

/// Nothing is there yet.
pub(super) const AGAIN: Failed = Failed(SPRAY_AGAIN);

/// A wrong argument.
#[cold]
pub(super) fn invalid(why: &str) -> Failed {
    say(why);
    Failed(SPRAY_INVALID)
}

fn say(text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    LAST.with(|last| *last.borrow_mut() = text);
    FATE.set(SPRAY_FATE_NONE);
}

/// Runs the body of an exported function.
pub(super) fn guard(body: impl FnOnce() -> Result<(), Failed>) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SPRAY_OK,
        Ok(Err(Failed(code))) => code,
        Err(_) => {
            let _ = catch_unwind(|| say("a fault of planespray; please report it"));
            SPRAY_BUG
        }
    }
}

/// The object behind a pointer of the caller's.
///
/// # Safety
/// `pointer` is null or points to a live object of this type.
pub(super) unsafe fn object<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failed> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| invalid(&format!("{what} is NULL")))
}

/// Stores a result where the caller wants it.
///
/// # Safety
/// `place` is null or valid for a write.
pub(super) unsafe fn store<T>(place: *mut T, value: T) -> Result<(), Failed> {
    if place.is_null() {
        return Err(invalid("the place for the result is NULL"));
    }
    // SAFETY: not null, so valid by the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

/// A string of the caller's.
///
/// # Safety
/// `text` is null or a string that ends in a zero byte.
pub(super) unsafe fn string<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failed> {
    if text.is_null() {
        return Err(invalid(&format!("{what} is NULL")));
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| invalid(&format!("{what} is not UTF-8")))
}

/// Why the last call of this thread that failed did so: what was seen, the likely cause and the next step. Empty if none has.
/// Valid until the next call of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn spray_last_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

/// Whether the message that the last failure of this thread was about was delivered: `SPRAY_FATE_..`. Of `spray_test_batch`, the
/// last of those that failed in the call.
#[unsafe(no_mangle)]
pub extern "C" fn spray_last_fate() -> i32 {
    FATE.get()
}

/// A status in a few words; never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn spray_status_text(status: i32) -> *const c_char {
    let text = match status {
        SPRAY_OK => c"ok",
        SPRAY_AGAIN => c"not now, try again",
        SPRAY_INVALID => c"invalid argument",
        SPRAY_SYSTEM => c"operating system",
        SPRAY_HANDSHAKE => c"the two ends did not agree",
        SPRAY_PEER_GONE => c"the peer is gone",
        SPRAY_FAILED => c"the operation failed",
        SPRAY_TOO_LONG => c"the message is longer than its receive",
        SPRAY_CLOSED => c"closed at this end",
        SPRAY_BUG => c"a fault of planespray",
        _ => c"unknown status",
    };
    text.as_ptr()
}

/// Version of this interface: it grows with every incompatible change. Compare it with `SPRAY_ABI_VERSION`.
#[unsafe(no_mangle)]
pub extern "C" fn spray_abi_version() -> u32 {
    SPRAY_ABI_VERSION
}

/// The version that this header describes.
pub const SPRAY_ABI_VERSION: u32 = 1;
