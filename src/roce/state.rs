//! How a queue pair is made, connected and ended.

use std::net::{IpAddr, Ipv4Addr};

use crate::mem::{Access, Pd};
use crate::seq::{Psn, Qpn};
use crate::time::Span;

use super::wr::Status;

/// The states of a queue pair (InfiniBand Architecture 1.4, section 10.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpState {
    /// Made, with nothing in it.
    Reset,
    /// Receives can be posted; packets are dropped.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send as well.
    Rts,
    /// What was started finishes, nothing new is started.
    Sqd,
    /// Nothing is sent or placed; whatever is posted completes as flushed.
    Err,
}

/// Which transport service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpKind {
    /// Reliable connection.
    Rc,
    /// Unreliable datagram.
    Ud,
}

/// How a queue pair is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpConfig {
    /// Transport service.
    pub kind: QpKind,
    /// The protection domain that its keys must belong to.
    pub pd: Pd,
    /// Work requests that may be posted and not yet polled, 1..=32,768.
    pub send_depth: u16,
    /// Receives that may be posted and not yet polled, 0..=32,768.
    pub receive_depth: u16,
    /// Who sends first: 0 before 1 before 2.
    pub priority: u8,
    /// Every work request has a completion, whatever its `signaled` says.
    pub signal_all: bool,
}

/// Where packets go: the edge's name for a local socket and a destination.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PathId(pub u32);

/// The peer is planespray as well: WRITEs are runs of single packets that land in any order, and what is
/// missing is repeated selectively after feedback datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extension {
    /// The peer's [`super::Device::feedback_qpn`].
    pub feedback_qpn: Qpn,
    /// Secret of the connection, the same at both ends; feedback without it is ignored.
    pub qkey: u32,
}

/// What a queue pair needs to receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rtr {
    /// The peer's queue pair; ignored for UD.
    pub dest_qpn: Qpn,
    /// The PSN of the peer's first request.
    pub rq_psn: Psn,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// Where packets to the peer go; ignored for UD.
    pub path: PathId,
    /// The address that its packets come from; all others are dropped. Ignored for UD.
    pub peer: IpAddr,
    /// TOS or traffic class of what is sent.
    pub tos: u8,
    /// Code of the pause a peer makes when no receive is posted, 0..=31 (table 46 of the specification; 0 is 655 ms).
    pub min_rnr_timer: u8,
    /// READs and atomics that the peer may have outstanding, 0..=128.
    pub max_dest_rd_atomic: u8,
    /// What the peer may do at all; each key is asked as well.
    pub access: Access,
    /// Present if the peer is planespray.
    pub extension: Option<Extension>,
    /// UD: the queue key that datagrams to this queue pair must carry.
    pub qkey: u32,
}

impl Default for Rtr {
    fn default() -> Self {
        Rtr {
            dest_qpn: Qpn::default(),
            rq_psn: Psn::default(),
            mtu: 4096,
            path: PathId::default(),
            peer: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            tos: 2,
            min_rnr_timer: 12,
            max_dest_rd_atomic: 16,
            access: Access::REMOTE_WRITE.and(Access::REMOTE_READ).and(Access::REMOTE_ATOMIC),
            extension: None,
            qkey: 0,
        }
    }
}

/// What a queue pair needs to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rts {
    /// The PSN of its first request.
    pub sq_psn: Psn,
    /// Least time to wait for an acknowledgement; zero means 4 ms. Four smoothed round trips are waited
    /// if that is longer; each expiry doubles it, up to sixteenfold.
    pub timeout: Span,
    /// Expiries without progress before the queue pair gives up (towards planespray not before `patience`).
    pub retry_count: u8,
    /// Towards planespray: it is not given up before it made no progress for this long, whatever the count says.
    pub patience: Span,
    /// Receiver-not-ready answers before it gives up, 0..=6; 7 is for ever.
    pub rnr_retry: u8,
    /// READs and atomics that may be outstanding, 1..=128.
    pub max_rd_atomic: u8,
}

impl Default for Rts {
    fn default() -> Self {
        Rts {
            sq_psn: Psn::default(),
            timeout: Span::ZERO,
            retry_count: 7,
            patience: Span::from_secs(1),
            rnr_retry: 7,
            max_rd_atomic: 16,
        }
    }
}

/// A change of state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transition {
    /// From RESET.
    Init,
    /// From INIT.
    Rtr(Rtr),
    /// From RTR.
    Rts(Rts),
    /// From SQD back to RTS.
    Resume,
    /// From RTS: start nothing new. [`super::Device::is_drained`] tells when all is finished.
    Sqd,
    /// From any state: everything posted completes as flushed.
    Err,
    /// From any state: everything posted is forgotten, with the completions that were not polled.
    Reset,
}

/// Why a queue pair could not be made or changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QpError {
    /// No such queue pair.
    #[error("no such queue pair")]
    NoQp,
    /// All are in use.
    #[error("all {limit} queue pairs are in use")]
    NoQps {
        /// The device's limit.
        limit: usize,
    },
    /// The state does not lead there.
    #[error("not from state {from:?}")]
    BadState {
        /// The state it is in.
        from: QpState,
    },
    /// A parameter is out of range.
    #[error("{what} is out of range")]
    Invalid {
        /// Which.
        what: &'static str,
    },
}

/// A queue pair moved itself to ERR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpEvent {
    /// Which.
    pub qpn: Qpn,
    /// Why.
    pub status: Status,
}
