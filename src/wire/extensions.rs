//! Which extension headers follow the BTH, by opcode (InfiniBand Architecture 1.4, table 38; annex A17 for CNP).

use super::Opcode;

/// The set of extension headers of one opcode. On the wire they stand in the order of the constants below.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extensions(u8);

impl Extensions {
    /// None: the payload follows the BTH.
    pub const NONE: Extensions = Extensions(0);
    /// Datagram header, 8 bytes.
    pub const DETH: Extensions = Extensions(1);
    /// RDMA header, 16 bytes.
    pub const RETH: Extensions = Extensions(1 << 1);
    /// Atomic header, 28 bytes.
    pub const ATOMIC: Extensions = Extensions(1 << 2);
    /// Acknowledgement header, 4 bytes.
    pub const AETH: Extensions = Extensions(1 << 3);
    /// Value before an atomic operation, 8 bytes.
    pub const ATOMIC_ACK: Extensions = Extensions(1 << 4);
    /// Immediate data, 4 bytes.
    pub const IMM: Extensions = Extensions(1 << 5);

    /// Whether every header of `other` is in this set.
    #[inline]
    pub const fn contains(self, other: Extensions) -> bool {
        self.0 & other.0 == other.0
    }

    /// The headers of both sets.
    #[must_use]
    pub const fn and(self, other: Extensions) -> Extensions {
        Extensions(self.0 | other.0)
    }

    /// Bytes on the wire.
    #[inline]
    pub const fn len(self) -> usize {
        const BYTES: [usize; 6] = [8, 16, 28, 4, 8, 4];
        let mut sum = 0;
        let mut i = 0;
        while i < BYTES.len() {
            if self.0 & (1 << i) != 0 {
                sum += BYTES[i];
            }
            i += 1;
        }
        sum
    }

    /// Whether no extension header is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// What may follow the headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Body {
    /// Nothing: requests and acknowledgements without data.
    Empty,
    /// Any number of bytes, padded to a multiple of four.
    Payload,
    /// Exactly the 16 reserved bytes of a CNP.
    Reserved16,
}

/// The shape of one opcode's packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) extensions: Extensions,
    pub(super) body: Body,
}

impl Shape {
    /// The shape of `opcode`'s packets; `None` where the opcode is not one of the named constants.
    #[inline]
    pub(super) fn of(opcode: Opcode) -> Option<Shape> {
        SHAPES[usize::from(opcode.0)]
    }
}

static SHAPES: [Option<Shape>; 256] = {
    const IMM: Extensions = Extensions::IMM;
    const AETH: Extensions = Extensions::AETH;
    const RETH: Extensions = Extensions::RETH;
    const DETH: Extensions = Extensions::DETH;
    let mut shapes = [None; 256];
    let mut i = 0;
    while i < shapes.len() {
        let (extensions, body) = match Opcode(i as u8) {
            Opcode::SEND_FIRST | Opcode::SEND_MIDDLE | Opcode::SEND_LAST | Opcode::SEND_ONLY => {
                (Extensions::NONE, Body::Payload)
            }
            Opcode::SEND_LAST_IMM | Opcode::SEND_ONLY_IMM | Opcode::WRITE_LAST_IMM => (IMM, Body::Payload),
            Opcode::WRITE_MIDDLE | Opcode::WRITE_LAST | Opcode::READ_RESPONSE_MIDDLE => {
                (Extensions::NONE, Body::Payload)
            }
            Opcode::WRITE_FIRST | Opcode::WRITE_ONLY => (RETH, Body::Payload),
            Opcode::WRITE_ONLY_IMM => (RETH.and(IMM), Body::Payload),
            Opcode::READ_REQUEST => (RETH, Body::Empty),
            Opcode::READ_RESPONSE_FIRST | Opcode::READ_RESPONSE_LAST | Opcode::READ_RESPONSE_ONLY => {
                (AETH, Body::Payload)
            }
            Opcode::ACK => (AETH, Body::Empty),
            Opcode::ATOMIC_ACK => (AETH.and(Extensions::ATOMIC_ACK), Body::Empty),
            Opcode::COMPARE_SWAP | Opcode::FETCH_ADD => (Extensions::ATOMIC, Body::Empty),
            Opcode::UD_SEND_ONLY => (DETH, Body::Payload),
            Opcode::UD_SEND_ONLY_IMM => (DETH.and(IMM), Body::Payload),
            Opcode::CNP => (Extensions::NONE, Body::Reserved16),
            _ => {
                i += 1;
                continue;
            }
        };
        shapes[i] = Some(Shape { extensions, body });
        i += 1;
    }
    shapes
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_of_the_specification() {
        let len = |opcode| Shape::of(opcode).map(|s| s.extensions.len());
        assert_eq!(len(Opcode::SEND_MIDDLE), Some(0));
        assert_eq!(len(Opcode::WRITE_ONLY_IMM), Some(20));
        assert_eq!(len(Opcode::READ_RESPONSE_MIDDLE), Some(0));
        assert_eq!(len(Opcode::READ_RESPONSE_LAST), Some(4));
        assert_eq!(len(Opcode::ATOMIC_ACK), Some(12));
        assert_eq!(len(Opcode::COMPARE_SWAP), Some(28));
        assert_eq!(len(Opcode::UD_SEND_ONLY_IMM), Some(12));
        assert_eq!(len(Opcode::CNP), Some(0));
        assert_eq!(len(Opcode(0x15)), None);
        assert_eq!(SHAPES.iter().flatten().count(), 24);
    }
}
