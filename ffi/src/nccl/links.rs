//! A link: one session with another process (or our own), which all communicators of the two share.
//!
//! Channel 0 carries what the plugins themselves say, in messages of [`MESSAGE`] bytes; each communicator has a channel of its
//! own, numbered by the end that sends on it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use planespray::{Buffer, Class, Connection, Error, Fabric, Pending, SendOptions};

use super::log;

/// Bytes of a message of the plugins.
const MESSAGE: usize = 32;
/// Receives kept posted for them.
const RECEIVES: usize = 32;
/// Communicators that one link ever carries in each direction; then another is made.
const CHANNELS: u32 = 30_000;
/// The channel of the plugins' own messages.
const CONTROL: u32 = 0;
/// The peer has not closed its end.
const OPEN: u64 = u64::MAX;

/// What both a communicator and its link know about it.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) channel: u32,
    /// How many of the communicator's messages the peer still takes or has sent; [`OPEN`] until it says so.
    limit: AtomicU64,
}

impl Shared {
    fn new(channel: u32) -> Arc<Shared> {
        Arc::new(Shared { channel, limit: AtomicU64::new(OPEN) })
    }

    /// True if the peer closed its end, and message `number` is not among those that it takes or has sent.
    pub(super) fn is_lost(&self, number: u64) -> bool {
        number >= self.limit.load(Ordering::Acquire)
    }

    fn close(&self, limit: u64) {
        self.limit.fetch_min(limit, Ordering::AcqRel);
    }
}

/// Something that plugins tell each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Message {
    /// I shall send on `channel` to your listener.
    Open { channel: u32, listener: u64 },
    /// There is no such listener.
    Refused { channel: u32 },
    /// I send nothing more on `channel`; all that I sent of the first `count` messages is delivered.
    SenderClosed { channel: u32, count: u64 },
    /// I take nothing more on `channel` than the first `count` messages.
    ReceiverClosed { channel: u32, count: u64 },
}

impl Message {
    fn to_bytes(self) -> [u8; MESSAGE] {
        let (kind, channel, value) = match self {
            Message::Open { channel, listener } => (1u32, channel, listener),
            Message::Refused { channel } => (2, channel, 0),
            Message::SenderClosed { channel, count } => (3, channel, count),
            Message::ReceiverClosed { channel, count } => (4, channel, count),
        };
        let mut bytes = [0; MESSAGE];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&channel.to_le_bytes());
        bytes[8..16].copy_from_slice(&value.to_le_bytes());
        bytes
    }

    /// `None` for what this release does not know.
    fn from_bytes(bytes: &[u8]) -> Option<Message> {
        let bytes: &[u8; MESSAGE] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (channel, value) = (word(4), u64::from(word(8)) | u64::from(word(12)) << 32);
        match word(0) {
            1 => Some(Message::Open { channel, listener: value }),
            2 => Some(Message::Refused { channel }),
            3 => Some(Message::SenderClosed { channel, count: value }),
            4 => Some(Message::ReceiverClosed { channel, count: value }),
            _ => None,
        }
    }
}

/// A session with another process.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) connection: Connection,
    /// The other process's fabric.
    pub(super) peer: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    receives: VecDeque<Pending>,
    sends: Vec<Pending>,
    outbox: VecDeque<Message>,
    spare: Vec<Buffer>,
    next: u32,
    /// Communicators on which we send.
    senders: HashMap<u32, Arc<Shared>>,
    /// Communicators on which the peer sends, and whether ours are closed.
    receivers: HashMap<u32, (Arc<Shared>, bool)>,
    /// The peer's openings that nobody has looked at.
    openings: VecDeque<(u64, Arc<Shared>)>,
    ended: bool,
}

impl Link {
    /// Over a connection that is up.
    pub(super) fn new(fabric: &Fabric, connection: Connection) -> Result<Arc<Link>, Error> {
        let peer = connection.peer_id();
        let mut state = State { next: 1, ..State::default() };
        for _ in 0..RECEIVES {
            let pending = connection.receive(CONTROL, fabric.alloc(MESSAGE)?).map_err(|refused| refused.error)?;
            state.receives.push_back(pending);
            state.spare.push(fabric.alloc(MESSAGE)?);
        }
        Ok(Arc::new(Link { connection, peer, state: Mutex::new(state) }))
    }

    /// True if new communicators can be opened on it.
    pub(super) fn is_usable(&self) -> bool {
        let state = self.state.lock();
        !state.ended && state.next < CHANNELS && !self.connection.is_peer_closed()
    }

    /// True if nothing can come from it any more.
    pub(super) fn is_over(&self) -> bool {
        self.state.lock().ended || self.connection.is_peer_closed()
    }

    /// Opens a communicator on which we send to a listener of the peer.
    pub(super) fn open(&self, listener: u64) -> Arc<Shared> {
        let mut state = self.state.lock();
        let channel = state.next;
        state.next += 1;
        let shared = Shared::new(channel);
        state.senders.insert(channel, shared.clone());
        state.outbox.push_back(Message::Open { channel, listener });
        self.flush(&mut state);
        shared
    }

    /// Our sending end is closed: of its messages the first `count` are delivered.
    pub(super) fn close_sender(&self, shared: &Shared, count: u64) {
        let mut state = self.state.lock();
        if state.senders.remove(&shared.channel).is_some() {
            state.outbox.push_back(Message::SenderClosed { channel: shared.channel, count });
        }
        self.flush(&mut state);
    }

    /// Our receiving end is closed: it takes nothing beyond the first `count` messages.
    pub(super) fn close_receiver(&self, shared: &Shared, count: u64) {
        let mut state = self.state.lock();
        let peer_closed = shared.limit.load(Ordering::Acquire) != OPEN;
        match state.receivers.get_mut(&shared.channel) {
            Some(_) if peer_closed => {
                state.receivers.remove(&shared.channel);
                drop(state);
                self.connection.cancel_receives(shared.channel);
                return;
            }
            Some((_, closed)) => *closed = true,
            None => {}
        }
        state.outbox.push_back(Message::ReceiverClosed { channel: shared.channel, count });
        self.flush(&mut state);
    }

    /// Tells the peer that there is no such listener.
    pub(super) fn refuse(&self, shared: &Shared) {
        let mut state = self.state.lock();
        state.receivers.remove(&shared.channel);
        state.outbox.push_back(Message::Refused { channel: shared.channel });
        self.flush(&mut state);
    }

    /// The next communicator that the peer opened, and to which listener.
    pub(super) fn next_opening(&self) -> Option<(u64, Arc<Shared>)> {
        self.state.lock().openings.pop_front()
    }

    /// Takes in what the peer's plugin says, and sends what ours wants to say.
    pub(super) fn progress(&self) {
        // Whoever is at it does it for all.
        let Some(mut state) = self.state.try_lock() else { return };
        let mut orphans = Vec::new();
        while !state.ended && state.receives.front().is_some_and(Pending::is_done) {
            let Some(outcome) = state.receives.pop_front().and_then(|mut p| p.test()) else { break };
            let (Ok(len), Some(buffer)) = (&outcome.result, outcome.buffer) else {
                state.ended = true;
                break;
            };
            match buffer.get(..*len).and_then(Message::from_bytes) {
                Some(message) => state.take(message, &mut orphans),
                None => log::warn(&format!("{}: its plugin says something unknown; ignored", self.connection.peer())),
            }
            match self.connection.receive(CONTROL, buffer) {
                Ok(pending) => state.receives.push_back(pending),
                Err(_) => state.ended = true,
            }
        }
        self.flush(&mut state);
        drop(state);
        for channel in orphans {
            self.connection.cancel_receives(channel);
        }
    }

    fn flush(&self, state: &mut State) {
        let mut index = 0;
        while index < state.sends.len() {
            if !state.sends[index].is_done() {
                index += 1;
                continue;
            }
            let outcome = state.sends.swap_remove(index).test();
            state.spare.extend(outcome.and_then(|o| o.buffer));
        }
        while !state.ended && !state.outbox.is_empty() {
            let Some(mut buffer) = state.spare.pop() else { return };
            let Some(message) = state.outbox.front() else { return };
            buffer.copy_from_slice(&message.to_bytes());
            let options = SendOptions { class: Class::Latency, rendezvous: false, channel: CONTROL };
            match self.connection.send(options, buffer, MESSAGE) {
                Ok(pending) => {
                    state.sends.push(pending);
                    state.outbox.pop_front();
                }
                Err(refused) => {
                    state.spare.push(refused.buffer);
                    state.ended |= !refused.error.is_back_pressure();
                    return;
                }
            }
        }
    }
}

impl State {
    /// Takes a message of the peer; `orphans` gets channels whose receives nobody will send to.
    fn take(&mut self, message: Message, orphans: &mut Vec<u32>) {
        match message {
            Message::Open { channel, listener } => {
                // A correct peer numbers its communicators once and has at most so many.
                if channel == CONTROL || channel >= CHANNELS || self.receivers.contains_key(&channel) {
                    log::warn("a peer's plugin opened a communicator with a number that is not free; ignored");
                    return;
                }
                let shared = Shared::new(channel);
                self.receivers.insert(channel, (shared.clone(), false));
                self.openings.push_back((listener, shared));
            }
            Message::Refused { channel } => {
                if let Some(shared) = self.senders.get(&channel) {
                    shared.close(0);
                }
            }
            Message::SenderClosed { channel, count } => {
                let Some((shared, closed)) = self.receivers.get(&channel) else { return };
                shared.close(count);
                if *closed {
                    self.receivers.remove(&channel);
                    orphans.push(channel);
                }
            }
            Message::ReceiverClosed { channel, count } => {
                if let Some(shared) = self.senders.get(&channel) {
                    shared.close(count);
                }
            }
        }
    }
}
