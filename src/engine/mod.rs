//! The engine: one per process and set of devices, driven by whoever calls.
//!
//! [`Core`] is the state that the driver owns; [`Shared`] lets any thread drive it and keeps the only clock.
#![forbid(unsafe_code)]

mod core;
mod ops;
mod shared;

pub use self::core::{Command, Core, NewSession, Seen, SessionId, SessionState, Witness};
pub use ops::{Ended, OpId, Ops};
pub use shared::{Garbage, Helper, Shared};
