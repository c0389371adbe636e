//! Why operations fail.

use crate::class::Class;
use crate::lanes::{LaneId, Status};
use crate::time::Span;

/// Why an operation ended without success. Whether its bytes arrived is not known unless said so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A lane that carried part of it died.
    #[error("lane {} died: {}", lane.index(), cause(*status))]
    Lane {
        /// The lane.
        lane: LaneId,
        /// How.
        status: Status,
    },
    /// All lanes of its class died.
    #[error("all lanes of class {0:?} are dead: the peer stood still, or packets do not get through; connect again")]
    Class(Class),
    /// Nothing was heard of the peer for too long, on any lane.
    #[error("nothing was heard of the peer for {} s on any lane: its host stands still or no packets get through", after.as_nanos() / 1_000_000_000)]
    Silent {
        /// How long.
        after: Span,
    },
    /// The message is longer than the receive it met. Nothing was delivered.
    #[error("message of {len} bytes for a receive of {capacity}; make the receive larger")]
    TooLong {
        /// The message's length.
        len: u64,
        /// The receive's capacity.
        capacity: u64,
    },
    /// The peer gave the message up.
    #[error("the peer gave the message up: {}", reason(*.0))]
    Peer(PeerReason),
    /// The peer closed the session before it sent a message for this receive.
    #[error("the peer closed the session")]
    PeerClosed,
    /// The session was ended at this end.
    #[error("cancelled")]
    Cancelled,
    /// The peer broke the protocol; the session is over.
    #[error("protocol violation: {0}")]
    Protocol(Violation),
}

fn cause(status: Status) -> &'static str {
    match status {
        Status::RetryExceeded => {
            "its packets were not acknowledged: the peer stood still, or packets do not get through"
        }
        Status::RnrRetryExceeded => "the peer has no receive for its packets",
        Status::RemoteAccess => "the peer refused key, bounds or rights; the window may be closed",
        Status::RemoteInvalidRequest => "the peer found a request malformed",
        Status::RemoteOperation => "the peer could not carry a request out",
        Status::LocalProtection => "a key, bounds or rights of this end are wrong",
        Status::LocalLength => "a message did not fit its receive",
        Status::Flushed => "it was ended while this was under way",
        Status::Success | Status::Other => "an error of its backend",
    }
}

fn reason(reason: PeerReason) -> &'static str {
    match reason {
        PeerReason::Lane => "a lane of its died, so that packets did not get through or one end stood still",
        PeerReason::TooLong => "it is longer than the receive",
        PeerReason::Other => "its error says why",
    }
}

/// What a peer says of a message that it gives up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PeerReason {
    /// A lane of its died.
    Lane,
    /// The message and the receive do not fit.
    TooLong,
    /// Anything else.
    Other,
}

/// What a peer did that no correct peer does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Another protocol version.
    #[error("unknown protocol version")]
    Version,
    /// A message of another session.
    #[error("message of another session")]
    Nonce,
    /// A control message shorter than its header, or whose length disagrees with it.
    #[error("bad length of a control message")]
    Length,
    /// A record that ends beyond its message, or is too short or too long for its type.
    #[error("malformed record")]
    Record,
    /// A record type that this version must understand and does not.
    #[error("unknown record type")]
    RecordType,
    /// More channels than allowed.
    #[error("too many channels")]
    Channels,
    /// A message number too far ahead.
    #[error("message number out of range")]
    Number,
    /// A grant whose slot, unit, capacity, address or keys make no sense.
    #[error("impossible grant")]
    Grant,
    /// More grants outstanding than there are slots.
    #[error("too many grants")]
    Grants,
    /// An immediate outside its message.
    #[error("immediate outside its message")]
    Unit,
    /// A total beyond the receive's capacity, or a second one that differs.
    #[error("impossible total")]
    Total,
    /// An eager message longer than agreed, or without credit.
    #[error("eager message without leave")]
    Eager,
    /// A credit for a lane that does not exist, or that jumps.
    #[error("impossible credit")]
    Credit,
    /// A word about a fence that cannot be.
    #[error("impossible word about a fence")]
    Fence,
    /// A control message on a data lane or the reverse.
    #[error("wrong kind of lane")]
    Lane,
}
