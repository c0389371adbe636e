//! Memory that the caller owns, registered where it lies: for C callers, whose buffers cannot be moved into ours.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use super::connection::{Connection, Peer, SendOptions, within};
use super::error::Error;
use super::fabric::{Fabric, Inner};
use super::window::{RemoteWindow, TOKEN, window_token};
use crate::class::Class;
use crate::engine::{Command, OpId, SessionId};
use crate::lanes::{Control, MrId, Window, WindowAccess};
use crate::mem::Region;
use crate::spray::{OneSided, Send, Source};

/// A registration of memory that somebody else owns and keeps valid.
///
/// Dropping it gives the memory back, as [`Memory::take_back`] does.
pub struct Memory {
    region: Region,
    mr: MrId,
    fabric: Arc<Inner>,
}

/// An operation under way on [`Memory`]. Dropping it lets go of the operation, which goes on.
pub struct Posted {
    peer: Arc<Peer>,
    op: Option<OpId>,
}

/// A part of [`Memory`] that one peer may use until this is dropped. Drop it before the memory, and when the peer is known to
/// be done: what the peer sends afterwards is refused, and costs its lane.
pub struct ExposedMemory {
    window: Window,
    peer: Arc<Peer>,
}

impl ExposedMemory {
    /// What the peer makes a [`RemoteWindow`] of. Whoever has it can use the window; it travels only between the two.
    pub fn token(&self) -> [u8; TOKEN] {
        window_token(&self.window)
    }
}

impl Drop for ExposedMemory {
    fn drop(&mut self) {
        self.peer.fabric.shared.lock().lanes_mut().close_window(&self.window);
    }
}

impl fmt::Debug for ExposedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExposedMemory({} bytes)", self.window.len)
    }
}

impl Fabric {
    /// A descriptor that becomes readable when operations have ended, from the first call on; for callers that sleep in a loop
    /// of their own. Read its 8 bytes, then test what is under way.
    ///
    /// # Errors
    /// The process has no file descriptors left.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.inner.shared.finished_fd().map_err(|source| Error::System {
            call: "eventfd",
            subject: "this process".into(),
            source,
            hint: "raise its limits (ulimit -n)",
        })
    }

    /// Registers `len` bytes at `start`, which stay where they are. `len` may be 0.
    ///
    /// # Errors
    /// 65,536 registrations already.
    ///
    /// # Safety
    /// Until the [`Memory`] is taken back or dropped, the bytes are valid for reads and writes. While an operation uses some of
    /// them, they are not reached through references, and not written by anyone else.
    pub unsafe fn register_memory(&self, start: NonNull<u8>, len: usize) -> Result<Memory, Error> {
        // SAFETY: valid until `detach`, which `take_back` and drop call; the rest is the caller's promise.
        let region = unsafe { Region::from_raw(start, len) };
        let mr = self.inner.shared.lock().lanes_mut().register(&region)?;
        Ok(Memory { region, mr, fabric: self.inner.clone() })
    }
}

impl Memory {
    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// True for a registration of no bytes.
    pub fn is_empty(&self) -> bool {
        self.region.is_empty()
    }

    /// Gives the memory back to its owner now, whatever is under way: from here on nothing reads or writes it. What a peer
    /// still sends into it is dropped.
    ///
    /// A send that still has bytes in flight breaks its lane if it must be sent again, so call
    /// [`Connection::cancel_sends`] first and wait until it returns 0.
    pub fn take_back(&self) {
        // Whoever drives holds this lock while it touches memory.
        let core = self.fabric.shared.lock();
        self.region.detach();
        drop(core);
    }

    /// Lets the peer of `connection` at the first `len` bytes, until the [`ExposedMemory`] is dropped. Send it
    /// [`ExposedMemory::token`].
    ///
    /// # Errors
    /// The connection is over, the range leaves the memory, or no keys are left.
    pub fn expose(&self, connection: &Connection, len: u64, access: WindowAccess) -> Result<ExposedMemory, Error> {
        within("the registration", 0, len, self.region.len() as u64)?;
        let peer = connection.handle();
        let window = peer.fabric.shared.lock().open_window(peer.session, self.mr, len, access)?;
        Ok(ExposedMemory { window, peer })
    }

    fn source(&self, offset: u64, len: u64) -> Result<Source, Error> {
        within("the registration", offset, len, self.region.len() as u64)?;
        Ok(Source { mr: self.mr, region: self.region.clone(), offset, len })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.take_back();
        self.fabric.shared.garbage().deregister(self.mr);
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.region.len())
    }
}

impl Connection {
    /// Sends `len` bytes at `offset` of `memory` as one message; otherwise as [`Connection::send`].
    ///
    /// # Errors
    /// [`Error::Full`] when too much is outstanding (try again later), [`Error::Range`], or the connection is over.
    pub fn send_from(&self, options: SendOptions, memory: &Memory, offset: u64, len: u64) -> Result<Posted, Error> {
        let local = memory.source(offset, len)?;
        self.post(|session, op| {
            Command::Send(
                session,
                Send {
                    channel: options.channel,
                    class: options.class,
                    local,
                    token: op.token(),
                    rendezvous_only: options.rendezvous,
                },
            )
        })
    }

    /// Receives the next message of `channel` into `len` bytes at `offset` of `memory`.
    ///
    /// # Errors
    /// As for [`Connection::send_from`].
    pub fn receive_into(&self, channel: u32, memory: &Memory, offset: u64, len: u64) -> Result<Posted, Error> {
        let into = memory.source(offset, len)?;
        self.post(|session, op| Command::Receive { session, channel, into, ordered: false, op })
    }

    /// Writes `len` bytes at `offset` of `memory` to `to_offset` of a window of the peer; otherwise as
    /// [`Connection::write`].
    ///
    /// # Errors
    /// As for [`Connection::send_from`].
    pub fn write_from(
        &self,
        class: Class,
        memory: &Memory,
        offset: u64,
        len: u64,
        to: &RemoteWindow,
        to_offset: u64,
    ) -> Result<Posted, Error> {
        let local = memory.source(offset, len)?;
        self.reach(class, local, to, to_offset, Command::Write)
    }

    /// Reads `len` bytes at `from_offset` of a window of the peer into `offset` of `memory`.
    ///
    /// # Errors
    /// As for [`Connection::send_from`].
    pub fn read_into(
        &self,
        class: Class,
        memory: &Memory,
        offset: u64,
        len: u64,
        from: &RemoteWindow,
        from_offset: u64,
    ) -> Result<Posted, Error> {
        let local = memory.source(offset, len)?;
        self.reach(class, local, from, from_offset, Command::Read)
    }

    fn reach(
        &self,
        class: Class,
        local: Source,
        window: &RemoteWindow,
        window_offset: u64,
        command: impl FnOnce(SessionId, OneSided) -> Command,
    ) -> Result<Posted, Error> {
        within("the peer's window", window_offset, local.len, window.len())?;
        let (remote_addr, remote_keys) = (window.addr().wrapping_add(window_offset), window.keys());
        self.post(|session, op| {
            let Source { mr, region, offset, len } = local;
            command(session, OneSided { class, mr, region, offset, len, remote_addr, remote_keys, token: op.token() })
        })
    }

    fn post(&self, command: impl FnOnce(SessionId, OpId) -> Command) -> Result<Posted, Error> {
        let peer = self.handle();
        let op = peer.begin()?;
        match peer.fabric.shared.submit(command(peer.session, op)) {
            Ok(()) => Ok(Posted { peer, op: Some(op) }),
            Err(_) => {
                peer.fabric.shared.ops().abandon(op);
                peer.finished();
                peer.fabric.shared.drive();
                Err(Error::Full)
            }
        }
    }

    /// Gives up every send on `channel`: each ends with an error at both ends. Those with bytes in flight end when they are
    /// acknowledged; returns how many there are, so call it again, driving meanwhile, until it returns 0.
    pub fn cancel_sends(&self, channel: u32) -> usize {
        let peer = self.handle();
        peer.fabric.shared.cancel_sends(peer.session, channel)
    }

    /// Ends every receive on `channel`. The peer must have said, by some other message, that it sends nothing more there
    /// and that its sends are over: a chunk that arrives for a receive that was cancelled costs its lane.
    pub fn cancel_receives(&self, channel: u32) {
        let peer = self.handle();
        peer.fabric.shared.cancel_receives(peer.session, channel);
    }
}

impl Posted {
    /// The bytes moved, or why not, if it is over: `Some` once, and `None` before and after. Does not drive.
    pub fn take(&mut self) -> Option<Result<usize, Error>> {
        let op = self.op?;
        let result = self.peer.fabric.shared.ops().take(op)?;
        self.op = None;
        self.peer.finished();
        Some(match result {
            Ok(len) => Ok(len as usize),
            Err(failure) => Err(self.peer.failed(failure)),
        })
    }

    /// True once there is a result to take.
    pub fn is_done(&self) -> bool {
        self.op.is_some_and(|op| self.peer.fabric.shared.ops().is_done(op))
    }

    /// As [`Posted::take`], but waits for at most `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> Option<Result<usize, Error>> {
        let fabric = self.peer.fabric.clone();
        fabric.wait_until(timeout, || self.is_done() || self.op.is_none());
        self.take()
    }

    /// As [`Posted::take`], but drives once if it is not over.
    pub fn test(&mut self) -> Option<Result<usize, Error>> {
        self.take().or_else(|| {
            self.peer.fabric.drive();
            self.take()
        })
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        if let Some(op) = self.op.take() {
            self.peer.fabric.shared.ops().detach(op);
            self.peer.finished();
        }
    }
}

impl fmt::Debug for Posted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Posted").field("peer", &self.peer.label).field("over", &self.op.is_none()).finish()
    }
}
