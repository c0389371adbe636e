//! The one error that users see.

use std::time::Duration;

use crate::bootstrap::{BootstrapError, KeyError};
use crate::lanes::LaneError;
use crate::mem::MemError;
use crate::soft::SoftError;
use crate::spray::{Failure, Refused};
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
    #[error("{peer}: {failure}")]
    Failed {
        /// The peer.
        peer: String,
        /// Why.
        failure: Failure,
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
    #[error("the connection to {peer} was closed at this end before the operation was over")]
    Closed {
        /// The peer.
        peer: String,
    },
    /// The peer's process ended or closed the session.
    #[error("peer {peer} is gone: {seen}; messages under way were not delivered, or it is not known")]
    PeerGone {
        /// The peer.
        peer: String,
        /// What told so.
        seen: &'static str,
    },
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
    /// True if the same call may succeed later without any change.
    pub fn is_back_pressure(&self) -> bool {
        matches!(self, Error::Full)
    }
}
