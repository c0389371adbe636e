//! The one error that users see.

use std::time::Duration;

use crate::bootstrap::{BootstrapError, KeyError};
use crate::lanes::LaneError;
use crate::mem::MemError;
use crate::soft::SoftError;
use crate::spray::{Failure, Fate, Refused};
use crate::topology::SurveyError;
use crate::verbs::VerbsError;

/// What went wrong. The text says what was seen, the likely cause and the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is out of range or contradicts itself.
    #[error("configuration: {what}")]
    Config {
        /// What, and what would be right.
        what: String,
    },
    /// A list of devices, a topology file or a variable is wrong.
    #[error(transparent)]
    Devices(#[from] SurveyError),
    /// A device could not be opened or used.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// No device can be used.
    #[error("no usable device: {reasons}")]
    NoDevice {
        /// What was looked at, why not, and the next step for each.
        reasons: String,
    },
    /// The UDP sockets could not be set up.
    #[error(transparent)]
    Socket(#[from] SoftError),
    /// The peers could not agree on a session.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// The job key is unusable.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Memory could not be had or registered.
    #[error("memory: {0}")]
    Memory(#[from] MemError),
    /// The engine refused a control call.
    #[error("engine: {0}{advice}", advice = advice(.0))]
    Engine(#[from] LaneError),
    /// A system call failed.
    #[error("{call} failed on {subject}: {source}; {hint}")]
    System {
        /// Which call.
        call: &'static str,
        /// On what.
        subject: String,
        /// Its error.
        source: std::io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// Too much is outstanding: wait for a [`Pending`](super::Pending), then try again. Not a failure.
    #[error("too many operations are outstanding; wait for one of them, then try again")]
    Full,
    /// It took longer than allowed. The operation goes on.
    #[error("not done within {after:?}; the operation goes on, and its buffer stays lent to it")]
    TimedOut {
        /// The time allowed.
        after: Duration,
    },
    /// A range leaves its buffer or window.
    #[error("{len} bytes at offset {offset} leave {size} bytes of {what}")]
    Range {
        /// Of what.
        what: &'static str,
        /// Start.
        offset: u64,
        /// Length.
        len: u64,
        /// What there is.
        size: u64,
    },
    /// The operation failed.
    #[error("{peer}: {failure}{known}", known = known(*.fate))]
    Failed {
        /// The peer.
        peer: String,
        /// Why.
        failure: Failure,
        /// As [`Error::fate`] says.
        fate: Option<Fate>,
    },
    /// The connection did not take the operation.
    #[error("{peer}: not taken: {refused}")]
    NotTaken {
        /// The peer.
        peer: String,
        /// Why.
        refused: Refused,
    },
    /// Our own end closed the connection first.
    #[error("the connection to {peer} was closed at this end before the operation was over{known}", known = known(*.fate))]
    Closed {
        /// The peer.
        peer: String,
        /// As [`Error::fate`] says.
        fate: Option<Fate>,
    },
    /// The peer's process ended or closed the session.
    #[error("peer {peer} is gone: {seen}{known}", known = known(*.fate))]
    PeerGone {
        /// The peer.
        peer: String,
        /// What told so.
        seen: &'static str,
        /// As [`Error::fate`] says.
        fate: Option<Fate>,
    },
}

/// What is known of the message that an error is about.
fn known(fate: Option<Fate>) -> &'static str {
    match fate {
        None => "",
        Some(Fate::Delivered) => "; the message had been delivered",
        Some(Fate::NotDelivered) => "; the message was not delivered",
        Some(Fate::Unknown) => "; whether the message was delivered is not known",
    }
}

/// What to do about a backend's error, where that is known.
fn advice(error: &LaneError) -> &'static str {
    match error {
        LaneError::System { errno: libc::EMFILE | libc::ENFILE, .. } => {
            "; raise the limit of open files (ulimit -n), or use fewer planes or lanes"
        }
        LaneError::System { errno: libc::ENOMEM | libc::ENOBUFS, .. } => "; free memory, or use fewer planes or lanes",
        LaneError::NoLanes { .. } => "; close connections, or use fewer planes or lanes",
        _ => "",
    }
}

/// Why a bootstrap address could not be listened at or connected to.
pub(super) fn at_address(addr: std::net::SocketAddr, error: BootstrapError) -> Error {
    let BootstrapError::Io { call, errno, .. } = error else { return Error::Bootstrap(error) };
    let hint = match (call, errno) {
        ("listen", libc::EADDRINUSE) => "another process listens there (`ss -tlnp` names it); choose another port",
        ("listen", libc::EADDRNOTAVAIL) => "it is not an address of this machine; `ip addr` lists those that are",
        ("listen", libc::EACCES) => "a port below 1024 needs privilege; choose another",
        ("connect", libc::ECONNREFUSED) => "nobody listens there; start that end first, and check address and port",
        ("connect", libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ETIMEDOUT) => {
            "no way leads there; check address, route and firewall"
        }
        (_, libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)",
        ("listen" | "connect", _) => "check address and port",
        _ => return Error::Bootstrap(error),
    };
    Error::System { call, subject: addr.to_string(), source: std::io::Error::from_raw_os_error(errno), hint }
}

impl Error {
    /// What is known about the arrival of the send or one-sided operation that ended with this error. `None` for receives, for
    /// errors of a whole connection, and for errors that are not about an operation's end.
    ///
    /// *Delivered* means what success means: it was in the peer's memory, or a small message in the hands of its engine. If
    /// the peer's process has ended since, its program may not have looked at it. *Unknown* is said only if part of it was
    /// under way and nobody is left who could tell.
    pub fn fate(&self) -> Option<Fate> {
        match self {
            Error::Failed { fate, .. } | Error::Closed { fate, .. } | Error::PeerGone { fate, .. } => *fate,
            Error::NotTaken { .. } | Error::Full | Error::Range { .. } => Some(Fate::NotDelivered),
            _ => None,
        }
    }

    /// True if the same call may succeed later without any change.
    pub fn is_back_pressure(&self) -> bool {
        matches!(self, Error::Full)
    }
}
