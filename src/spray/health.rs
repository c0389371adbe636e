//! The states of lanes and of the way between two ports, and why they change.

use crate::lanes::{PortId, Status};
use crate::time::{Span, Time};

/// How a lane, or the way between a local port and a port of the peer, is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    /// In use.
    Healthy,
    /// Silent for longer than it should be; what is under way is left where it is.
    Suspect,
    /// In use for what is under way and for nothing new, by the operator's wish.
    Draining,
    /// Given up; what it carried goes elsewhere.
    Dead,
    /// Made anew and not proven yet.
    Probing,
    /// Proven, and about to get its share back.
    Ramping,
}

/// The evidence for a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// Nothing was acknowledged for `age`, beyond `threshold`, while `deliveries` came over other lanes.
    Silence {
        /// How long.
        age: Span,
        /// From when on that counts.
        threshold: Span,
        /// What came over other lanes meanwhile.
        deliveries: u32,
    },
    /// A lane of the same two ports was given up, and nothing has come over this one since that was suspected.
    PlaneSilence {
        /// How long nothing was acknowledged.
        age: Span,
    },
    /// The backend reported this.
    Completion(Status),
    /// The port lost its carrier.
    PortDown,
    /// The port has a carrier.
    PortUp,
    /// The peer gave it up.
    Peer,
    /// The operator asked for it.
    Operator,
    /// Something was acknowledged again after this long.
    Acknowledged {
        /// How long nothing was.
        after: Span,
    },
    /// A new queue pair is connected.
    Connected {
        /// The lane's generation.
        generation: u16,
    },
    /// A probe came through.
    ProbeAcknowledged {
        /// How long after it was posted.
        after: Span,
    },
    /// Packets of this many bytes did not come through, though small ones did: the next attempt uses smaller ones.
    Mtu {
        /// The RoCE MTU that failed.
        mtu: u32,
    },
    /// As many deliveries as a lane needs that has returned.
    Delivered {
        /// How many.
        count: u64,
    },
    /// The way failed so often lately that it is left alone for a while.
    Flapping {
        /// Failures within the window.
        failures: u32,
        /// How long it is left alone.
        hold: Span,
    },
    /// Every lane of it is dead.
    AllLanesDead,
}

/// What changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// A lane, by its number in the session.
    Lane(u16),
    /// The way between two ports.
    Way,
    /// The peer as a whole.
    Peer,
}

/// One change of a state, with its evidence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transition {
    /// When.
    pub at: Time,
    /// Of what.
    pub subject: Subject,
    /// The local port.
    pub port: PortId,
    /// The peer's port.
    pub peer_port: u8,
    /// What it was.
    pub from: Health,
    /// What it is.
    pub to: Health,
    /// Why.
    pub cause: Cause,
}
