//! The upper machine: messages become chunks over many lanes, and messages again at the other end.
//!
//! Sans-IO: it speaks of lanes, chunks, keys and times, never of packets, sockets or clocks.
//! `docs/protocol.md` has the byte layouts and the rules.
#![forbid(unsafe_code)]

mod bitmap;
mod cancel;
mod channel;
mod chunk;
mod config;
mod control;
mod credit;
mod drain;
mod eager;
mod failure;
mod fence;
mod grant;
mod health;
mod incoming;
mod intake;
mod lane;
mod message;
pub(crate) mod mutation;
mod outgoing;
mod post;
mod rebuild;
mod receive;
mod records;
mod replay;
mod select;
mod send;
mod session;
mod slab;
mod slots;
mod stats;
mod watch;
mod words;

pub use config::{LaneKind, LaneRole, SessionConfig};
pub use control::{FEATURES, VERSION};
pub use failure::{Failure, PeerReason, Violation};
pub use fence::LaneCommand;
pub use health::{Cause, Health, Subject, Transition};
pub use message::{Done, DoneKind, Event, Fate, MessageId, OneSided, Post, Recv, Refused, Send, Source};
pub use session::Session;
pub use stats::{LaneStats, MessageStats, PortStats, SessionStats};
