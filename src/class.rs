//! Traffic classes and what marks them in the IP header.

/// What a message needs from the network.
///
/// Each class has lanes, windows and a DSCP of its own, so that one class's queue is never another's delay.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, serde::Serialize, serde::Deserialize)]
#[repr(u8)]
pub enum Class {
    /// Small messages whose delay is felt: agent turns, control.
    Latency = 0,
    /// Regular traffic with a rate to keep: inference.
    Steady = 1,
    /// As much as fits: collectives, weights, checkpoints.
    #[default]
    Bulk = 2,
}

impl Class {
    /// Every class, in the order of its number.
    pub const ALL: [Class; 3] = [Class::Latency, Class::Steady, Class::Bulk];

    /// The class's number, 0..3, for use as an index.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// A differentiated services code point, 0..=63 (RFC 2474).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Dscp(u8);

impl Dscp {
    /// The code point `v`; `None` above 63.
    pub const fn new(v: u8) -> Option<Self> {
        if v < 64 { Some(Dscp(v)) } else { None }
    }

    /// The value, 0..=63.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The IPv4 TOS byte or IPv6 traffic class with this code point and `ecn` in its two low bits.
    pub const fn with(self, ecn: Ecn) -> u8 {
        self.0 << 2 | ecn as u8
    }
}

/// The ECN field of an IP header (RFC 3168).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN-capable: a congested switch drops.
    #[default]
    NotEct = 0,
    /// ECN-capable transport, code point 1.
    Ect1 = 1,
    /// ECN-capable transport, code point 0: what we send.
    Ect0 = 2,
    /// Congestion experienced: a switch marked it.
    Ce = 3,
}

impl Ecn {
    /// The ECN field of a TOS or traffic class byte.
    pub const fn of(tos: u8) -> Self {
        match tos & 3 {
            0 => Ecn::NotEct,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }
}
