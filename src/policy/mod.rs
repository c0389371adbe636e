//! Which plane and which path a packet takes: the balancing policies, without packets, clocks or I/O.
//!
//! A transport asks [`Policy::pick`] before each packet (or chunk) and reports what became of it. Policies that are
//! published elsewhere are written from their descriptions, to compare with; `planespray` is this project's own.
#![forbid(unsafe_code)]

mod bitmap;
mod chunks;
mod kind;
mod planespray;
mod reps;
mod simple;
#[cfg(test)]
mod tests;

pub use chunks::{ChunkRule, Chunks};
pub use kind::{Kind, KindError, Setup};
pub use planespray::{Balancer, Tuning};

use crate::time::{Span, Time};

/// Where a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pick {
    /// The plane.
    pub plane: u8,
    /// The entropy value: what switches hash into a path of the plane.
    pub path: u16,
    /// The chunk that it belongs to, for policies that decide by chunk.
    pub chunk: u16,
}

/// What an acknowledgement says about the one packet that caused it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// Where the packet went.
    pub pick: Pick,
    /// A queue on its way was long (ECN).
    pub marked: bool,
    /// How long it and its acknowledgement took; `None` if that cannot be told.
    pub rtt: Option<Span>,
}

/// A balancing policy of one connection.
pub trait Policy: Send {
    /// Where the next packet goes.
    fn pick(&mut self, now: Time, random: &mut fastrand::Rng) -> Pick;

    /// The packet that caused an acknowledgement.
    fn acknowledged(&mut self, now: Time, report: Report);

    /// A packet that arrived, each once, whether or not an acknowledgement was made for it alone.
    fn delivered(&mut self, _now: Time, _report: Report) {}

    /// A packet whose payload was cut off by a full queue: at the last switch, which is the receiver's affair, or before.
    fn trimmed(&mut self, now: Time, pick: Pick, last_hop: bool, marked: bool);

    /// A packet that the retransmission timer gave up.
    fn timed_out(&mut self, now: Time, pick: Pick);

    /// A packet that was found lost because later ones of its plane arrived, or because its plane is silent.
    fn lost(&mut self, _now: Time, _pick: Pick) {}

    /// True if such a trimmed packet is to make the window smaller.
    fn trim_cuts(&self, _last_hop: bool) -> bool {
        true
    }

    /// The median round trip: a window is cut only if that is long, not because one path is. `None` if every path counts.
    fn typical_rtt(&self) -> Option<Span> {
        None
    }

    /// How long a packet may be overtaken on a plane before it is lost; `None` leaves it to the timer.
    fn patience(&self, _plane: u8) -> Option<Span> {
        None
    }

    /// A plane that has just been given up: all that is in flight on it goes elsewhere.
    fn given_up(&mut self, _now: Time) -> Option<u8> {
        None
    }

    /// A path that is to be probed with a packet that carries nothing.
    fn probe(&mut self, _now: Time) -> Option<Pick> {
        None
    }

    /// The answer to a probe.
    fn probed(&mut self, _now: Time, _pick: Pick) {}
}
