//! Bytes to packets.

use thiserror::Error;

use super::extensions::{Body, Shape};
use super::{Aeth, AtomicEth, Bth, Deth, Extensions, Header, NakCode, Opcode, Packet, Reth, Syndrome};
use crate::seq::{Msn, Psn, Qpn};

/// Why bytes are not a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ParseError {
    /// Shorter than the headers that the opcode calls for, with the padding and the ICRC.
    #[error("the packet is shorter than its headers")]
    Short,
    /// An opcode that is none of the constants of [`Opcode`].
    #[error("opcode {0:#04x} is not known")]
    Opcode(u8),
    /// A transport header version other than 0.
    #[error("transport header version {0} is not known")]
    Version(u8),
    /// Not a multiple of four bytes, or a payload where the opcode has none, or a CNP without its 16 reserved bytes.
    #[error("the packet's length does not fit its opcode")]
    Length,
}

impl<'a> Packet<'a> {
    /// Takes a UDP payload apart. The ICRC is read, not checked: that takes the addresses, see [`super::Flow`].
    ///
    /// Reserved bits are kept as they came; reserved lengths, opcodes and versions are refused.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, ParseError> {
        let (bth, rest) = bytes.split_first_chunk::<12>().ok_or(ParseError::Short)?;
        let (mut rest, icrc) = rest.split_last_chunk::<4>().ok_or(ParseError::Short)?;
        let bth = Bth::from_bytes(bth);
        let shape = Shape::of(bth.opcode).ok_or(ParseError::Opcode(bth.opcode.0))?;
        if bth.version != 0 {
            return Err(ParseError::Version(bth.version));
        }
        let header = Header::read(bth, shape.extensions, &mut rest).ok_or(ParseError::Short)?;
        let len = rest.len().checked_sub(usize::from(bth.pad)).ok_or(ParseError::Short)?;
        let (payload, padding) = rest.split_at_checked(len).ok_or(ParseError::Short)?;
        if !shape.body.allows(payload.len(), bth.pad) {
            return Err(ParseError::Length);
        }
        Ok(Packet { header, payload, padding, icrc: u32::from_le_bytes(*icrc) })
    }
}

impl Body {
    /// Whether `len` payload bytes with `pad` bytes of padding may stand here.
    #[inline]
    pub(super) fn allows(self, len: usize, pad: u8) -> bool {
        match self {
            Body::Payload => (len + usize::from(pad)).is_multiple_of(4),
            Body::Empty => len == 0 && pad == 0,
            Body::Reserved16 => len == 16 && pad == 0,
        }
    }
}

impl Header {
    /// Reads the extension headers off the front of `rest`; `None` if it is too short.
    #[inline]
    fn read(bth: Bth, extensions: Extensions, rest: &mut &[u8]) -> Option<Header> {
        let mut header = Header::new(bth);
        if extensions.contains(Extensions::DETH) {
            header.deth = Some(Deth::from_bytes(take(rest)?));
        }
        if extensions.contains(Extensions::RETH) {
            header.reth = Some(Reth::from_bytes(take(rest)?));
        }
        if extensions.contains(Extensions::ATOMIC) {
            header.atomic = Some(AtomicEth::from_bytes(take(rest)?));
        }
        if extensions.contains(Extensions::AETH) {
            header.aeth = Some(Aeth::from_bytes(take(rest)?));
        }
        if extensions.contains(Extensions::ATOMIC_ACK) {
            header.atomic_ack = Some(u64::from_be_bytes(*take(rest)?));
        }
        if extensions.contains(Extensions::IMM) {
            header.imm = Some(u32::from_be_bytes(*take(rest)?));
        }
        Some(header)
    }
}

#[inline]
fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(head)
}

/// The `N` big-endian bytes at `at` as an array.
#[inline]
fn field<const N: usize, const LEN: usize>(b: &[u8; LEN], at: usize) -> [u8; N] {
    std::array::from_fn(|i| b[at + i])
}

impl Bth {
    #[inline]
    fn from_bytes(b: &[u8; 12]) -> Bth {
        let [opcode, flags, ..] = *b;
        // Eight bits and a 24-bit number each.
        let destination = u32::from_be_bytes(field(b, 4));
        let sequence = u32::from_be_bytes(field(b, 8));
        let (resv_a, resv_b) = ((destination >> 24) as u8, (sequence >> 24) as u8);
        Bth {
            opcode: Opcode(opcode),
            solicited: flags & 0x80 != 0,
            migreq: flags & 0x40 != 0,
            pad: flags >> 4 & 3,
            version: flags & 0x0f,
            pkey: u16::from_be_bytes(field(b, 2)),
            fecn: resv_a & 0x80 != 0,
            becn: resv_a & 0x40 != 0,
            reserved_a: resv_a & 0x3f,
            dest_qp: Qpn::new(destination),
            ack_req: resv_b & 0x80 != 0,
            reserved_b: resv_b & 0x7f,
            psn: Psn::new(sequence),
        }
    }
}

impl Deth {
    #[inline]
    fn from_bytes(b: &[u8; 8]) -> Deth {
        Deth {
            qkey: u32::from_be_bytes(field(b, 0)),
            reserved: b[4],
            src_qp: Qpn::new(u32::from_be_bytes(field(b, 4))),
        }
    }
}

impl Reth {
    #[inline]
    fn from_bytes(b: &[u8; 16]) -> Reth {
        Reth {
            va: u64::from_be_bytes(field(b, 0)),
            rkey: u32::from_be_bytes(field(b, 8)),
            len: u32::from_be_bytes(field(b, 12)),
        }
    }
}

impl AtomicEth {
    #[inline]
    fn from_bytes(b: &[u8; 28]) -> AtomicEth {
        AtomicEth {
            va: u64::from_be_bytes(field(b, 0)),
            rkey: u32::from_be_bytes(field(b, 8)),
            swap_add: u64::from_be_bytes(field(b, 12)),
            compare: u64::from_be_bytes(field(b, 20)),
        }
    }
}

impl Aeth {
    #[inline]
    fn from_bytes(b: &[u8; 4]) -> Aeth {
        Aeth { syndrome: Syndrome::from_byte(b[0]), msn: Msn::new(u32::from_be_bytes(*b)) }
    }
}

impl Syndrome {
    /// The syndrome that a byte means.
    #[inline]
    pub const fn from_byte(byte: u8) -> Syndrome {
        let value = byte & 0x1f;
        match byte >> 5 {
            0 => Syndrome::Ack(value),
            1 => Syndrome::RnrNak(value),
            3 => Syndrome::Nak(NakCode::from_bits(value)),
            _ => Syndrome::Reserved(byte),
        }
    }
}

impl NakCode {
    const fn from_bits(bits: u8) -> NakCode {
        match bits {
            0 => NakCode::PsnSequence,
            1 => NakCode::InvalidRequest,
            2 => NakCode::RemoteAccess,
            3 => NakCode::RemoteOperational,
            4 => NakCode::InvalidRd,
            other => NakCode::Other(other),
        }
    }
}
