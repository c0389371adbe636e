//! How two ends meet: an authenticated, encrypted exchange of who they are and which lanes they make.
//!
//! Queue pair numbers, PSNs and keys travel only in here. The order, over any ordered byte stream:
//!
//! ```text
//! initiator                                   responder
//!     preamble (16 bytes, clear)        ->
//!                                       <-    preamble
//!     Noise NNpsk0 message 1            ->
//!                                       <-    Noise message 2
//!     Hello                             <->   Hello
//!     Probes                            <->   Probes         where probes are expected; if both ends want that
//!     Report                            <->   Report         which ports reach each other
//!                                                            both compute the same `plan`
//!     Lanes                             <->   Lanes          one address per planned lane
//!     Ready                             <->   Ready
//!     records                           <->   records        goodbye, new lanes: the caller's own bytes
//! ```
//!
//! [`Handshake`] is the machine: it takes bytes and times and gives bytes and [`Step`]s, and knows neither
//! sockets nor clocks. [`tcp`] drives it over nonblocking sockets.
#![forbid(unsafe_code)]

mod error;
mod frame;
mod handshake;
mod hello;
mod key;
mod noise;
mod plan;
mod preamble;
#[cfg(test)]
mod probe_tests;
mod reach;
mod records;
pub mod tcp;
#[cfg(test)]
mod tests;

pub use error::{BootstrapError, PlaneList, Refusal, Seen, Waiting};
pub use handshake::{Established, Handshake, Role, Step};
pub use hello::{Hello, Limits, MAX_HOST, PlaneOffer};
pub use key::{Auth, AuthMode, JobKey, KEY_ENV, KEY_FILE_ENV, KeyError};
pub use plan::{LaneKind, LanePlan, MAX_LANES, plan};
pub use reach::{FEATURE_PROBES, PROBE_BURST, PairReport, Probe, Probing, Reach};
pub use records::Records;

/// Longest message after its two bytes of length, authentication tag included.
pub const MAX_MESSAGE: usize = 16 * 1024;

/// Most bytes that a peer may send before it is done.
pub const MAX_HANDSHAKE: usize = 64 * 1024;

/// Oldest protocol version that this crate speaks.
pub const VERSION_MIN: u16 = 1;

/// Newest protocol version that this crate speaks.
pub const VERSION_MAX: u16 = 1;
