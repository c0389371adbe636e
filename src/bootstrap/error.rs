//! What can go wrong while two ends meet, and what to do about it.

use std::fmt;
use std::net::IpAddr;

use super::key::AuthMode;

/// Why a handshake, or the record channel after it, failed.
///
/// The text says what was seen, the likely cause, and the next step.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// The first bytes are not ours.
    #[error(
        "the peer does not speak planespray: it began with {0}; something else listens or dials there; \
         check address and port, and that no proxy stands between"
    )]
    NotPlanespray(Seen),
    /// No protocol version in common.
    #[error(
        "no common protocol version: we speak {} to {}, the peer {} to {}; update the older of the two ends",
        ours.0, ours.1, theirs.0, theirs.1
    )]
    VersionMismatch {
        /// Oldest and newest version of ours.
        ours: (u16, u16),
        /// Oldest and newest version of the peer.
        theirs: (u16, u16),
    },
    /// One end has a job key and the other runs without.
    #[error(
        "this end runs {ours}, the peer runs {theirs}; give both ends the same job key \
         (PLANESPRAY_JOB_KEY or PLANESPRAY_JOB_KEY_FILE), or run both insecure"
    )]
    AuthModeMismatch {
        /// Ours.
        ours: AuthMode,
        /// The peer's.
        theirs: AuthMode,
    },
    /// The first encrypted bytes did not decrypt.
    #[error(
        "the {by} could not decrypt the key exchange: the job keys differ (or the bytes were changed on the way); \
         compare the key files of both ends, for example by sha256sum"
    )]
    WrongKey {
        /// Who could not: `this end` or `peer`.
        by: &'static str,
    },
    /// Both ends dialed, or our own bytes came back.
    #[error(
        "the peer is a {role} as well; both ends dialed, or something sends our own bytes back; \
         check that one end listens and the other connects to it"
    )]
    SameRole {
        /// What both are.
        role: &'static str,
    },
    /// A record after the key exchange did not decrypt.
    #[error(
        "a record did not decrypt: bytes were changed, repeated or lost on the way; \
         this is an attack or a broken middlebox; reconnect, and check the path if it comes again"
    )]
    Tampered,
    /// More bytes than the protocol allows.
    #[error("{what} of {len} bytes is above the limit of {limit}; the peer is faulty or hostile; check its version")]
    TooLarge {
        /// What was too large.
        what: &'static str,
        /// Its size in bytes.
        len: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A message that decrypted but makes no sense.
    #[error("the peer sent {what}, which the protocol does not allow; check that both ends run the same release")]
    Malformed {
        /// What was wrong.
        what: &'static str,
    },
    /// The deadline passed.
    #[error("no progress in time: still waiting for {waiting_for}; {}", waiting_for.advice())]
    Timeout {
        /// For what.
        waiting_for: Waiting,
    },
    /// The peer closed the connection.
    #[error("the peer closed the connection while we waited for {waiting_for}; its own log says why")]
    Closed {
        /// For what.
        waiting_for: Waiting,
    },
    /// No plane that both have, with addresses of one family.
    #[error(
        "no common plane: ours are {ours}, the peer's are {theirs}; a plane needs the same number and \
         the same address family at both ends; check the plane lists"
    )]
    NoCommonPlane {
        /// Planes of this end.
        ours: PlaneList,
        /// Planes of the peer.
        theirs: PlaneList,
    },
    /// No two ports reach each other.
    #[error(
        "no port of ours reaches one of the peer's: ours are {ours}, the peer's are {theirs}; probes (UDP to ports that the \
         system chose) were lost in one direction or both; check routes and cables, and that no firewall drops UDP; where one \
         lets only RoCEv2 (UDP port 4791) through, turn probing off at either end"
    )]
    Unreachable {
        /// Planes of this end.
        ours: PlaneList,
        /// Planes of the peer.
        theirs: PlaneList,
    },
    /// The peer said no.
    #[error("the peer refused: {reason}; {}", reason.advice())]
    Refused {
        /// Why.
        reason: Refusal,
    },
    /// This end said no, by [`Handshake::refuse`](super::Handshake::refuse).
    #[error("this end refused the peer: {reason}")]
    RefusedHere {
        /// Why.
        reason: Refusal,
    },
    /// Something of our own does not fit: nothing was sent.
    #[error("{what} of this end is out of range; correct the configuration")]
    Invalid {
        /// What.
        what: &'static str,
    },
    /// The stream below failed.
    #[error("{call} failed: {} (while waiting for {waiting_for})", std::io::Error::from_raw_os_error(*errno))]
    Io {
        /// Which call.
        call: &'static str,
        /// Its error number.
        errno: i32,
        /// What we waited for.
        waiting_for: Waiting,
    },
    /// The cryptographic library or the system's random numbers failed.
    #[error("{what} failed on this host; check that the system's random number source works")]
    Crypto {
        /// What was attempted.
        what: &'static str,
    },
}

/// What an end waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Waiting {
    /// TCP to connect.
    Connect,
    /// The 16 bytes of the preamble.
    Preamble,
    /// The Noise message.
    KeyExchange,
    /// The peer's Hello.
    Hello,
    /// Where the peer expects probes.
    Probes,
    /// What the peer saw of our probes.
    Report,
    /// The peer's lane addresses.
    Lanes,
    /// The peer's Ready.
    Ready,
    /// This end's own caller.
    Ourselves,
    /// Nothing: the handshake is done.
    Nothing,
}

impl Waiting {
    fn advice(self) -> &'static str {
        match self {
            Waiting::Connect => "check that the peer listens there and that no firewall drops the connection",
            Waiting::Preamble => "the peer accepted but said nothing; check that planespray listens at that port",
            Waiting::KeyExchange | Waiting::Hello | Waiting::Probes | Waiting::Report => {
                "the peer is slow or stopped; check its load and its log"
            }
            Waiting::Lanes | Waiting::Ready => "the peer did not get its lanes up; its log says why",
            Waiting::Ourselves => "this end did not provide or connect its lanes in time; check its load",
            Waiting::Nothing => "the handshake was done",
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Waiting::Connect => "the TCP connection",
            Waiting::Preamble => "the peer's preamble",
            Waiting::KeyExchange => "the key exchange",
            Waiting::Hello => "the peer's hello",
            Waiting::Probes => "where the peer expects probes",
            Waiting::Report => "the peer's report on our probes",
            Waiting::Lanes => "the peer's lane addresses",
            Waiting::Ready => "the peer's ready",
            Waiting::Ourselves => "this end's own lanes",
            Waiting::Nothing => "nothing",
        })
    }
}

/// Why a peer was refused; travels encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// As many peers or lanes as this end takes.
    Full,
    /// Lanes could not be made or connected.
    NoLanes,
    /// No common plane.
    NoCommonPlane,
    /// This end is going down.
    Closing,
    /// Anything else; the log of the refusing end says what.
    Other,
}

impl Refusal {
    fn advice(self) -> &'static str {
        match self {
            Refusal::Full => "raise its limits or connect fewer peers",
            Refusal::NoLanes => "its log names the system call or address that failed",
            Refusal::NoCommonPlane => "check the plane lists of both ends",
            Refusal::Closing => "connect again when it is back",
            Refusal::Other => "its log says why",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Full => "no room for another peer",
            Refusal::NoLanes => "its lanes could not be made",
            Refusal::NoCommonPlane => "no common plane",
            Refusal::Closing => "closing",
            Refusal::Other => "another reason",
        })
    }
}

/// The first bytes of something that was not understood, at most 16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    bytes: [u8; 16],
    len: u8,
}

impl Seen {
    pub(super) fn new(bytes: &[u8]) -> Seen {
        let len = bytes.len().min(16);
        let mut kept = [0; 16];
        kept[..len].copy_from_slice(&bytes[..len]);
        Seen { bytes: kept, len: len as u8 }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).min(16)]
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

/// Plane numbers and addresses, to print.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlaneList(pub Vec<(u16, IpAddr)>);

impl fmt::Display for PlaneList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (i, (plane, addr)) in self.0.iter().enumerate() {
            write!(f, "{}{plane} at {addr}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
