//! The upper machine: messages become chunks over many lanes, and messages again at the other end.
//!
//! Sans-IO: it speaks of lanes, chunks, keys and times, never of packets, sockets or clocks.
//! `docs/protocol.md` has the byte layouts and the rules.

mod config;
mod failure;
mod message;
mod session;
mod stats;

pub use config::{LaneKind, LaneRole, SessionConfig};
pub use failure::{Failure, PeerReason, Violation};
pub use message::{Done, DoneKind, Event, MessageId, OneSided, Post, Recv, Refused, Send, Source};
pub use session::Session;
pub use stats::{LaneStats, MessageStats, PortStats, SessionStats};
