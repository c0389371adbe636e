//! 24-bit numbers of the transport: packet sequence numbers, message sequence numbers, queue pair numbers.

use std::fmt;

const MASK: u32 = 0x00ff_ffff;

/// A packet sequence number: 24 bits, wrapping.
///
/// Two PSNs are ordered only within a window of 2^23 (InfiniBand Architecture 1.4, section 9.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The PSN with the low 24 bits of `n`.
    pub const fn new(n: u32) -> Self {
        Psn(n & MASK)
    }

    /// The value, 0..2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN `n` after this one.
    #[must_use]
    pub const fn add(self, n: u32) -> Self {
        Psn(self.0.wrapping_add(n) & MASK)
    }

    /// The PSN `n` before this one.
    #[must_use]
    pub const fn sub(self, n: u32) -> Self {
        Psn(self.0.wrapping_sub(n) & MASK)
    }

    /// How far `self` is ahead of `earlier`, in -2^23..2^23.
    pub const fn distance(self, earlier: Psn) -> i32 {
        let d = self.0.wrapping_sub(earlier.0) & MASK;
        // Sign-extend bit 23.
        ((d << 8) as i32) >> 8
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "psn {}", self.0)
    }
}

/// A message sequence number as an AETH carries it: 24 bits, wrapping.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Msn(u32);

impl Msn {
    /// The MSN with the low 24 bits of `n`.
    pub const fn new(n: u32) -> Self {
        Msn(n & MASK)
    }

    /// The value, 0..2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The next MSN.
    #[must_use]
    pub const fn next(self) -> Self {
        Msn(self.0.wrapping_add(1) & MASK)
    }
}

impl fmt::Debug for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "msn {}", self.0)
    }
}

/// A queue pair number: 24 bits. 0 and 1 are reserved, 0xffffff is multicast.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// The queue pair number with the low 24 bits of `n`.
    pub const fn new(n: u32) -> Self {
        Qpn(n & MASK)
    }

    /// The value, 0..2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qpn {:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn distance_undoes_add(start in 0u32..1 << 24, n in 0i32..1 << 23) {
            let a = Psn::new(start);
            prop_assert_eq!(a.add(n as u32).distance(a), n);
            prop_assert_eq!(a.distance(a.add(n as u32)), -n);
            prop_assert_eq!(a.add(n as u32).sub(n as u32), a);
        }
    }

    #[test]
    fn wraps_at_24_bits() {
        assert_eq!(Psn::new(0x00ff_ffff).add(1), Psn::new(0));
        assert_eq!(Psn::new(0).distance(Psn::new(0x00ff_ffff)), 1);
        assert_eq!(Msn::new(0x00ff_ffff).next(), Msn::new(0));
    }
}
