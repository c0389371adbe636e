//! What callers ask of the engine.

use super::ops::OpId;
use crate::lanes::MrId;
use crate::spray::{OneSided, Send, Source};

/// A session of this engine: its slot and the slot's generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SessionId {
    pub(super) index: u16,
    pub(super) generation: u16,
}

/// Something a caller asks of the engine. It names memory by handle; the handle keeps the memory alive.
#[derive(Debug)]
pub enum Command {
    /// Send a message; `token` is the operation's.
    Send(SessionId, Send),
    /// Receive a message.
    Receive {
        /// From whom.
        session: SessionId,
        /// Which channel.
        channel: u32,
        /// The memory and its registration; all of it.
        into: Source,
        /// Completes in posting order.
        ordered: bool,
        /// The caller's operation.
        op: OpId,
    },
    /// One-sided WRITE.
    Write(SessionId, OneSided),
    /// One-sided READ.
    Read(SessionId, OneSided),
}

impl Command {
    pub(super) fn is_receive(&self) -> bool {
        matches!(self, Command::Receive { .. })
    }

    /// Its session, operation and registration.
    pub(super) fn parts(&self) -> (SessionId, OpId, MrId) {
        match self {
            Command::Send(id, m) => (*id, OpId::from_token(m.token), m.local.mr),
            Command::Receive { session, op, into, .. } => (*session, *op, into.mr),
            Command::Write(id, o) | Command::Read(id, o) => (*id, OpId::from_token(o.token), o.mr),
        }
    }
}
