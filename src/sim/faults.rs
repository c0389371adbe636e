//! What may befall packets, and how much of it did.

use std::net::IpAddr;

use crate::time::Span;

/// What may befall a packet. Probabilities are 0.0..=1.0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// The packet vanishes.
    pub loss: f64,
    /// Packets that vanish in a row, on average, once one does; 0 and 1: that one alone.
    pub burst: u16,
    /// A second copy arrives a little later.
    pub duplicate: f64,
    /// It arrives later by up to `reorder_by`.
    pub reorder: f64,
    /// How much later.
    pub reorder_by: Span,
    /// It is marked CE.
    pub mark: f64,
    /// One of its bits is flipped, which the ICRC must find.
    pub corrupt: f64,
}

impl Faults {
    /// None of it.
    pub const NONE: Faults = Faults {
        loss: 0.0,
        burst: 0,
        duplicate: 0.0,
        reorder: 0.0,
        reorder_by: Span::from_micros(50),
        mark: 0.0,
        corrupt: 0.0,
    };
}

impl Default for Faults {
    fn default() -> Self {
        Faults::NONE
    }
}

/// Packets from one address to another, of all source ports or one, that do not arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// Source address.
    pub from: IpAddr,
    /// Destination address.
    pub to: IpAddr,
    /// Only those from this UDP source port, which means one path.
    pub source_port: Option<u16>,
    /// They do arrive, but not before the cut ends.
    pub held: bool,
}

/// What befell packets so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetStats {
    /// Handed over by senders.
    pub sent: u64,
    /// Handed to receivers.
    pub delivered: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Lost to a cut.
    pub cut: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Delayed.
    pub reordered: u64,
    /// Marked CE.
    pub marked: u64,
    /// Corrupted; all of them must be refused.
    pub corrupted: u64,
    /// Refused by the receiver's ICRC check.
    pub refused: u64,
    /// Dropped by full queues of switches.
    pub dropped: u64,
    /// Lost on dead paths.
    pub swallowed: u64,
    /// Sent by nobody's queue pair.
    pub strays: u64,
}
