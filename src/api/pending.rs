//! Operations under way.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::buffer::Buffer;
use super::connection::Peer;
use super::error::Error;
use crate::engine::OpId;

/// An operation under way. It owns the buffer until it is done.
///
/// Dropping it lets go of the operation, which goes on; the memory stays registered until nothing uses it.
pub struct Pending {
    pub(super) peer: Arc<Peer>,
    pub(super) op: Option<OpId>,
    pub(super) buffer: Option<Buffer>,
}

/// How an operation ended.
#[derive(Debug)]
pub struct Outcome {
    /// The buffer, free for any use again; `None` if the operation is not over ([`Error::TimedOut`]).
    pub buffer: Option<Buffer>,
    /// Bytes moved, or why not. [`Error::fate`] says whether a message that was not acknowledged was delivered.
    pub result: Result<usize, Error>,
}

impl Pending {
    /// The outcome, if there is one. Drives the engine once if there is none yet.
    pub fn test(&mut self) -> Option<Outcome> {
        if let Some(outcome) = self.take() {
            return Some(outcome);
        }
        self.peer.fabric.drive();
        self.take()
    }

    /// Waits for the outcome for at most `timeout`. After [`Error::TimedOut`] the operation goes on, and this
    /// can be called again.
    pub fn wait(&mut self, timeout: Duration) -> Outcome {
        if let Some(outcome) = self.take() {
            return outcome;
        }
        let Some(op) = self.op else {
            return Outcome {
                buffer: self.buffer.take(),
                result: Err(Error::Config { what: "this operation's outcome was taken already".into() }),
            };
        };
        let peer = self.peer.clone();
        peer.fabric.wait_until(timeout, || peer.fabric.shared.ops().is_done(op));
        self.take().unwrap_or(Outcome { buffer: None, result: Err(Error::TimedOut { after: timeout }) })
    }

    /// True once [`Pending::test`] would give an outcome. Does not drive.
    pub fn is_done(&self) -> bool {
        self.op.is_some_and(|op| self.peer.fabric.shared.ops().is_done(op))
    }

    fn take(&mut self) -> Option<Outcome> {
        let op = self.op?;
        let result = self.peer.fabric.shared.ops().take(op)?;
        self.op = None;
        self.peer.finished();
        let result = match result {
            Ok(len) => Ok(len as usize),
            Err(failure) => Err(self.peer.failed(failure)),
        };
        Some(Outcome { buffer: self.buffer.take(), result })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(op) = self.op.take() {
            self.peer.fabric.shared.ops().detach(op);
            self.peer.finished();
        }
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("peer", &self.peer.label).field("done", &self.is_done()).finish()
    }
}
