//! What we have to say, through NCCL's own logger.

use std::ffi::{CString, c_int, c_ulong};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::abi::{LOG_INFO, LOG_WARN, Logger, SUBSYS_INIT_NET};

/// The function that NCCL gave us last, as a number; 0 for none.
static LOGGER: AtomicUsize = AtomicUsize::new(0);

/// Takes NCCL's logger. Without one, warnings go to the standard error.
pub(super) fn set_logger(logger: Option<Logger>) {
    LOGGER.store(logger.map_or(0, |f| f as usize), Ordering::Release);
    // The library's own warnings go the same way; that there is a subscriber already is no error.
    let _ = tracing::subscriber::set_global_default(Forward);
}

/// Something that the user should know.
pub(super) fn info(text: &str) {
    write(LOG_INFO, SUBSYS_INIT_NET, text);
}

/// Something that went wrong.
pub(super) fn warn(text: &str) {
    write(LOG_WARN, c_ulong::MAX, text);
}

fn write(level: c_int, subsystems: c_ulong, text: &str) {
    let number = LOGGER.load(Ordering::Acquire);
    if number == 0 {
        if level == LOG_WARN {
            eprintln!("NET/planespray: {text}");
        }
        return;
    }
    // SAFETY: the number is a function pointer that `set_logger` took; NCCL outlives its plugins.
    let logger = unsafe { std::mem::transmute::<usize, Logger>(number) };
    let Ok(line) = CString::new(format!("NET/planespray: {text}").replace('\0', " ")) else { return };
    // SAFETY: a constant format with one string, which lives through the call.
    unsafe { logger(level, subsystems, c"planespray".as_ptr(), 0, c"%s".as_ptr(), line.as_ptr()) };
}

/// Hands the library's warnings on.
struct Forward;

impl Subscriber for Forward {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        warn(&text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?} "),
            name => write!(self.0, "{name}={value:?} "),
        };
    }
}
