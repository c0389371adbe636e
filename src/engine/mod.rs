//! The engine: one per process and set of devices, driven by whoever calls.
//!
//! [`Core`] is the state that the driver owns; [`Shared`] lets any thread drive it and keeps the only clock.
#![forbid(unsafe_code)]

mod backlog;
mod cancel;
mod command;
mod core;
mod fences;
mod log;
mod ops;
mod parting;
mod shared;
#[cfg(any(test, feature = "cli"))]
pub mod simulation;
mod witness;

pub use self::core::{Core, NewSession, SessionState};
pub use command::{Command, SessionId};
pub use log::{Entry as LogEntry, EventLog};
pub use ops::{Ended, Lost, OpId, Ops};
pub use shared::{Garbage, Helper, Shared};
pub use witness::{Seen, Witness};
