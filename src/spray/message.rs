//! What goes into a session and what comes out.

use super::failure::Failure;
use super::health::Transition;
use crate::class::Class;
use crate::lanes::{LaneId, MrId, Receive, Status, Window, WorkRequest};
use crate::mem::Region;

/// Bytes of registered memory that a message is read from.
#[derive(Clone, Debug)]
pub struct Source {
    /// The registration.
    pub mr: MrId,
    /// The memory itself: eager messages are copied out of it.
    pub region: Region,
    /// First byte, from the start of the region and of the registration.
    pub offset: u64,
    /// Length in bytes; may be 0.
    pub len: u64,
}

/// A message to send. The nth send on a channel meets the nth receive on it at the peer.
#[derive(Clone, Debug)]
pub struct Send {
    /// The channel.
    pub channel: u32,
    /// Whose lanes it uses.
    pub class: Class,
    /// Its bytes; they stay untouched until the [`Done`] with this token.
    pub local: Source,
    /// Comes back in [`Done`].
    pub token: u64,
    /// Never send it eagerly: write it straight into the receiver's memory.
    pub rendezvous_only: bool,
}

/// A receive.
#[derive(Clone, Debug)]
pub struct Recv {
    /// The channel.
    pub channel: u32,
    /// Registration of the memory.
    pub mr: MrId,
    /// The memory.
    pub region: Region,
    /// First byte, from the start of the region.
    pub offset: u64,
    /// Longest message that fits, in bytes; at most 8 GiB.
    pub capacity: u64,
    /// The window that lets the peer write there: `len` at least `capacity`. Comes back in [`Done`], to be closed.
    pub window: Window,
    /// Comes back in [`Done`].
    pub token: u64,
    /// Report it only after every earlier receive of the channel.
    pub ordered: bool,
}

/// A one-sided operation between registered memory and a window of the peer.
#[derive(Clone, Debug)]
pub struct OneSided {
    /// Whose lanes it uses.
    pub class: Class,
    /// Registration of the local memory.
    pub mr: MrId,
    /// The local memory.
    pub region: Region,
    /// First local byte, from the start of the region.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Address of the first byte at the peer.
    pub remote_addr: u64,
    /// The window's key at each of the peer's ports.
    pub remote_keys: [u32; 8],
    /// Comes back in [`Done`].
    pub token: u64,
}

/// Names an operation that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MessageId(pub u64);

/// Why an operation was not taken. Nothing of it was kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// As many operations are outstanding as the session or channel allows: try again after a [`Done`].
    #[error("too many operations are outstanding")]
    Full,
    /// Longer than 8 GiB.
    #[error("longer than 8 GiB")]
    TooLong,
    /// The session is closed, closing or failed.
    #[error("the session is closed")]
    Closed,
    /// The class has no living lanes of the kind that this needs.
    #[error("no living lanes for this class")]
    NoLanes,
    /// The memory does not contain the range, or the window is shorter than the receive.
    #[error("the range leaves its memory")]
    Bounds,
    /// More channels than [`max_channels`](super::SessionConfig::max_channels).
    #[error("too many channels")]
    Channels,
    /// A lane whose role is out of range or already taken.
    #[error("bad lane role")]
    Role,
}

/// Which kind of operation is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DoneKind {
    /// A send: every byte of it is in the peer's memory.
    Send,
    /// A receive: the message is here whole.
    Receive,
    /// A one-sided write.
    Write,
    /// A one-sided read.
    Read,
}

/// What is known about the arrival of a message, or of a part of it, that ended without success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// All of it is at the peer, as success would have meant, although the operation ended with an error.
    Delivered,
    /// It is not there as a whole, and nothing of it is under way any more. Of a one-sided operation: nothing was begun.
    NotDelivered,
    /// Some of it was under way, and nobody is left who could say whether it arrived.
    Unknown,
}

/// The end of an operation. From here on the session does not touch its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// The operation's token.
    pub token: u64,
    /// What it was.
    pub kind: DoneKind,
    /// The message's length in bytes, or why it failed.
    pub result: Result<u64, Failure>,
    /// What is known about the arrival of what was sent; of a receive, [`Fate::NotDelivered`] if it failed.
    pub fate: Fate,
    /// The receive's window, to be closed before the memory goes back to the user.
    pub window: Option<Window>,
}

/// Something to hand to the backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Post {
    /// [`Lanes::post`](crate::lanes::Lanes::post) this.
    Work(LaneId, WorkRequest),
    /// [`Lanes::post_receive`](crate::lanes::Lanes::post_receive) this.
    Receive(LaneId, Receive),
}

/// News about the session itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A lane is dead and is not used any more; it can be destroyed once the session no longer waits for it.
    LaneDown {
        /// Which.
        lane: LaneId,
        /// Why.
        status: Status,
    },
    /// No lanes are left that could carry this class: everything of it has failed or will within the lanes' flush.
    ClassDown(Class),
    /// A lane, a way or the peer is doing better or worse.
    Health(Transition),
    /// The peer said goodbye, and everything it had sent has arrived.
    PeerClosed,
    /// The session is over. Every operation ends with this failure.
    Failed(Failure),
}
