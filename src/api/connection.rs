//! A connection: messages and one-sided operations with one peer.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::buffer::Buffer;
use super::error::Error;
use super::fabric::Inner;
use super::pending::Pending;
use super::window::RemoteWindow;
use crate::class::Class;
use crate::engine::{Command, Ended, Lost, OpId, SessionId, SessionState};
use crate::spray::{Failure, Fate, OneSided, Send, Source};

/// Operations that one connection may have outstanding.
const MAX_OUTSTANDING: usize = 8192;
/// How long a dropped connection may take to say goodbye.
const LINGER: Duration = Duration::from_secs(2);

/// Messages and one-sided operations with one peer. The nth send on a channel meets the nth receive on it.
///
/// Methods take `&self`: any thread may post. Posting never blocks.
pub struct Connection {
    peer: Arc<Peer>,
}

/// How a message is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// Whose lanes it takes.
    pub class: Class,
    /// Always write into the receiver's memory, even if it is small enough to travel in a control message.
    pub rendezvous: bool,
    /// Which sequence of messages it belongs to.
    pub channel: u32,
}

/// An operation that was not taken, with the buffer it was to use.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// The buffer, untouched.
    pub buffer: Buffer,
    /// Why.
    #[source]
    pub error: Error,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseReport {
    /// Sends and one-sided operations that were still under way. [`Error::fate`] of each one's outcome says what is known of it.
    pub undelivered: usize,
    /// True if the peer acknowledged our goodbye.
    pub clean: bool,
}

/// What operations need of their connection.
pub(super) struct Peer {
    pub(super) fabric: Arc<Inner>,
    pub(super) session: SessionId,
    pub(super) label: String,
    /// What the peer's fabric calls itself.
    id: u64,
    outstanding: AtomicUsize,
    removed: AtomicBool,
}

impl Peer {
    pub(super) fn new(fabric: Arc<Inner>, session: SessionId, label: String, id: u64) -> Peer {
        Peer { fabric, session, label, id, outstanding: AtomicUsize::new(0), removed: AtomicBool::new(false) }
    }

    pub(super) fn finished(&self) {
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
    }

    pub(super) fn failed(&self, lost: Lost) -> Error {
        let (peer, fate) = (self.label.clone(), lost.fate);
        match lost.why {
            Ended::PeerGone => Error::PeerGone {
                peer,
                seen: "its bootstrap connection closed without a goodbye (the process ended or was killed)",
                fate,
            },
            Ended::Failed(Failure::PeerClosed) => Error::PeerGone { peer, seen: "it closed the connection", fate },
            Ended::Failed(failure) => Error::Failed { peer, failure, fate },
            Ended::Refused(refused) => Error::NotTaken { peer, refused },
            Ended::Cancelled => Error::Closed { peer, fate },
        }
    }

    pub(super) fn begin(&self) -> Result<OpId, Error> {
        if self.removed.load(Ordering::Acquire) {
            return Err(self.failed(Lost { why: Ended::Cancelled, fate: Some(Fate::NotDelivered) }));
        }
        if self.outstanding.fetch_add(1, Ordering::AcqRel) >= MAX_OUTSTANDING {
            self.finished();
            return Err(Error::Full);
        }
        self.fabric.shared.ops().begin().ok_or_else(|| {
            self.finished();
            Error::Full
        })
    }

    fn remove(&self) {
        if !self.removed.swap(true, Ordering::AcqRel) {
            let mut core = self.fabric.shared.lock();
            core.remove(self.session);
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.remove();
    }
}

impl Connection {
    pub(super) fn new(peer: Peer) -> Connection {
        Connection { peer: Arc::new(peer) }
    }

    /// The peer's host name and bootstrap address.
    pub fn peer(&self) -> &str {
        &self.peer.label
    }

    /// The peer's [`Fabric::id`](super::Fabric::id).
    pub fn peer_id(&self) -> u64 {
        self.peer.id
    }

    /// Sends the first `len` bytes of `buffer` as one message. Done means: they are in the peer's memory, or, for a
    /// small message, in the hands of its engine, where they wait for their receive.
    ///
    /// # Errors
    /// With the buffer: [`Error::Full`] when too much is outstanding (try again later), [`Error::Range`], or the
    /// connection is over.
    pub fn send(&self, options: SendOptions, buffer: Buffer, len: usize) -> Result<Pending, Refused> {
        if let Err(error) = within("the buffer", 0, len as u64, buffer.len() as u64) {
            return Err(Refused { buffer, error });
        }
        self.submit(buffer, |op, buffer| {
            let local = source(buffer, len);
            Command::Send(
                self.peer.session,
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

    /// Receives the next message of `channel` into `buffer`. The outcome says how long it was.
    ///
    /// # Errors
    /// As for [`Connection::send`].
    pub fn receive(&self, channel: u32, buffer: Buffer) -> Result<Pending, Refused> {
        self.post_receive(channel, buffer, false)
    }

    /// The same, but it completes only after every earlier receive of the channel.
    ///
    /// # Errors
    /// As for [`Connection::send`].
    pub fn receive_ordered(&self, channel: u32, buffer: Buffer) -> Result<Pending, Refused> {
        self.post_receive(channel, buffer, true)
    }

    fn post_receive(&self, channel: u32, buffer: Buffer, ordered: bool) -> Result<Pending, Refused> {
        self.submit(buffer, |op, buffer| Command::Receive {
            session: self.peer.session,
            channel,
            into: source(buffer, buffer.len()),
            ordered,
            op,
        })
    }

    /// Writes the first `len` bytes of `buffer` to `offset` of a window of the peer. Done means: they are there.
    /// The peer's program is not told.
    ///
    /// # Errors
    /// As for [`Connection::send`].
    pub fn write(
        &self,
        class: Class,
        buffer: Buffer,
        len: usize,
        to: &RemoteWindow,
        offset: u64,
    ) -> Result<Pending, Refused> {
        self.one_sided(class, buffer, len, to, offset, Command::Write)
    }

    /// Reads `len` bytes at `offset` of a window of the peer into the front of `buffer`.
    ///
    /// # Errors
    /// As for [`Connection::send`].
    pub fn read(
        &self,
        class: Class,
        buffer: Buffer,
        len: usize,
        from: &RemoteWindow,
        offset: u64,
    ) -> Result<Pending, Refused> {
        self.one_sided(class, buffer, len, from, offset, Command::Read)
    }

    fn one_sided(
        &self,
        class: Class,
        buffer: Buffer,
        len: usize,
        window: &RemoteWindow,
        offset: u64,
        command: impl FnOnce(SessionId, OneSided) -> Command,
    ) -> Result<Pending, Refused> {
        let ranges = within("the buffer", 0, len as u64, buffer.len() as u64)
            .and_then(|()| within("the peer's window", offset, len as u64, window.len()));
        if let Err(error) = ranges {
            return Err(Refused { buffer, error });
        }
        self.submit(buffer, |op, buffer| {
            let one_sided = OneSided {
                class,
                mr: buffer.mr(),
                region: buffer.region().clone(),
                offset: 0,
                len: len as u64,
                remote_addr: window.addr().wrapping_add(offset),
                remote_keys: window.keys(),
                token: op.token(),
            };
            command(self.peer.session, one_sided)
        })
    }

    fn submit(&self, buffer: Buffer, command: impl FnOnce(OpId, &Buffer) -> Command) -> Result<Pending, Refused> {
        let op = match self.peer.begin() {
            Ok(op) => op,
            Err(error) => return Err(Refused { buffer, error }),
        };
        match self.peer.fabric.shared.submit(command(op, &buffer)) {
            Ok(()) => Ok(Pending { peer: self.peer.clone(), op: Some(op), buffer: Some(buffer) }),
            Err(_) => {
                self.peer.fabric.shared.ops().abandon(op);
                self.peer.finished();
                self.peer.fabric.drive();
                Err(Refused { buffer, error: Error::Full })
            }
        }
    }

    /// Why the connection is over, if it is.
    pub fn error(&self) -> Option<Error> {
        match self.peer.fabric.shared.lock().state(self.peer.session) {
            Some(SessionState::Ended(why)) => Some(self.peer.failed(Lost { why, fate: None })),
            Some(_) => None,
            None => Some(self.peer.failed(Lost { why: Ended::Cancelled, fate: None })),
        }
    }

    /// True once the peer has said goodbye or the connection is over.
    pub fn is_peer_closed(&self) -> bool {
        !matches!(self.peer.fabric.shared.lock().state(self.peer.session), Some(SessionState::Open))
    }

    /// True if nothing that is sent can arrive any more: dropping the connection then takes no time.
    pub fn is_peer_gone(&self) -> bool {
        self.peer.fabric.shared.lock().is_peer_gone(self.peer.session)
    }

    pub(super) fn handle(&self) -> Arc<Peer> {
        self.peer.clone()
    }

    /// Sends what is under way, says goodbye, and ends the connection after at most `timeout`. Operations that
    /// are not over by then end with an error; [`Error::fate`] says what is known of each.
    pub fn close(self, timeout: Duration) -> CloseReport {
        self.shut(timeout)
    }

    fn shut(&self, timeout: Duration) -> CloseReport {
        if self.peer.removed.load(Ordering::Acquire) {
            return CloseReport { undelivered: 0, clean: false };
        }
        let fabric = &self.peer.fabric;
        fabric.shared.close(self.peer.session);
        let start = Instant::now();
        let clean = loop {
            let left = timeout.saturating_sub(start.elapsed());
            if let Some(clean) = fabric.shared.part(self.peer.session) {
                break clean;
            }
            if left.is_zero() {
                break fabric.shared.lock().is_drained(self.peer.session);
            }
            fabric.wait_until(left.min(Duration::from_millis(1)), || false);
        };
        let ended = matches!(fabric.shared.lock().state(self.peer.session), Some(SessionState::Ended(_)) | None);
        let undelivered = fabric.shared.lock().under_way(self.peer.session);
        self.peer.remove();
        CloseReport { undelivered, clean: clean && !ended }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shut(LINGER);
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer.label).finish()
    }
}

fn source(buffer: &Buffer, len: usize) -> Source {
    Source { mr: buffer.mr(), region: buffer.region().clone(), offset: 0, len: len as u64 }
}

pub(super) fn within(what: &'static str, offset: u64, len: u64, size: u64) -> Result<(), Error> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::Range { what, offset, len, size }),
    }
}
