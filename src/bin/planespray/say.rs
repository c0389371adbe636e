//! Lines on standard error, ours and the library's, in one form.

use std::fmt;
use std::io::Write;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// One line. A standard error that is gone is no reason to fail.
pub(crate) fn say(line: impl fmt::Display) {
    // In one piece, so that lines of two processes do not mix.
    let line = format!("planespray: {line}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Shows what the library has to say: warnings, and what it chose by itself.
pub(crate) fn listen() {
    let shown = tracing_subscriber::fmt()
        .with_max_level(Level::INFO)
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .event_format(Line)
        .finish();
    // Only this program sets one, once.
    let _ = tracing::subscriber::set_global_default(shown);
}

struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut parts = Parts::default();
        event.record(&mut parts);
        writeln!(to, "planespray: {}{}", parts.message, parts.fields)
    }
}

#[derive(Default)]
struct Parts {
    message: String,
    fields: String,
}

impl Visit for Parts {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        use fmt::Write as _;
        // A string takes whatever is written to it.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, "; {name} {value:?}"),
        };
    }
}
