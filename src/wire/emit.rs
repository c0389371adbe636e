//! Packets to bytes.

use thiserror::Error;

use super::extensions::Shape;
use super::{Aeth, AtomicEth, Bth, Deth, Extensions, Header, NakCode, Opcode, Packet, Reth, Syndrome};

/// Why a packet cannot be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum EmitError {
    /// The buffer is shorter than the packet.
    #[error("the buffer is shorter than the packet")]
    Space,
    /// An opcode that is none of the constants of [`Opcode`].
    #[error("opcode {0:#04x} is not known")]
    Opcode(u8),
    /// A transport header version other than 0.
    #[error("transport header version {0} is not known")]
    Version(u8),
    /// The extension headers present are not those of the opcode.
    #[error("the extension headers are not those of the opcode")]
    Extensions,
    /// Payload and padding do not fit the opcode, each other, or the BTH's pad count.
    #[error("payload and padding do not fit the header")]
    Length,
}

impl Packet<'_> {
    /// Bytes on the wire: headers, payload, padding and ICRC.
    pub fn len(&self) -> usize {
        self.header.len() + self.payload.len() + self.padding.len() + 4
    }

    /// Always false: a packet has at least its BTH.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the whole packet, with the ICRC as it stands in `self.icrc`, to the front of `out`.
    /// Returns the bytes written. [`super::Flow::seal`] puts the right ICRC in afterwards.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, EmitError> {
        let pad = self.header.bth.pad;
        let shape = self.header.shape()?;
        if self.padding.len() != usize::from(pad) || !shape.body.allows(self.payload.len(), pad) {
            return Err(EmitError::Length);
        }
        let out = out.get_mut(..self.len()).ok_or(EmitError::Space)?;
        let at = self.header.emit(out)?;
        let rest = &mut out[at..];
        let (payload, rest) = rest.split_at_mut(self.payload.len());
        payload.copy_from_slice(self.payload);
        let (padding, icrc) = rest.split_at_mut(self.padding.len());
        padding.copy_from_slice(self.padding);
        icrc.copy_from_slice(&self.icrc.to_le_bytes());
        Ok(self.len())
    }
}

impl Header {
    /// The extension headers that follow the BTH of `opcode`; `None` for an opcode that is none of the constants.
    pub fn extensions(opcode: Opcode) -> Option<Extensions> {
        Some(Shape::of(opcode)?.extensions)
    }

    /// Bytes on the wire: the BTH and the extension headers present.
    #[inline]
    pub fn len(&self) -> usize {
        12 + self.present().len()
    }

    /// Always false: a header has at least its BTH.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the BTH and the extension headers to the front of `out`. Returns the bytes written.
    ///
    /// Values wider than their field are cut to it; the extension headers present must be those of the opcode.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, EmitError> {
        self.shape()?;
        let len = self.len();
        let mut rest = out.get_mut(..len).ok_or(EmitError::Space)?;
        put(&mut rest, &self.bth.to_bytes())?;
        if let Some(deth) = &self.deth {
            put(&mut rest, &deth.to_bytes())?;
        }
        if let Some(reth) = &self.reth {
            put(&mut rest, &reth.to_bytes())?;
        }
        if let Some(atomic) = &self.atomic {
            put(&mut rest, &atomic.to_bytes())?;
        }
        if let Some(aeth) = &self.aeth {
            put(&mut rest, &aeth.to_bytes())?;
        }
        if let Some(before) = self.atomic_ack {
            put(&mut rest, &before.to_be_bytes())?;
        }
        if let Some(imm) = self.imm {
            put(&mut rest, &imm.to_be_bytes())?;
        }
        Ok(len)
    }

    /// The set of extension headers that are present.
    #[inline]
    fn present(&self) -> Extensions {
        let pick = |there, set| if there { set } else { Extensions::NONE };
        pick(self.deth.is_some(), Extensions::DETH)
            .and(pick(self.reth.is_some(), Extensions::RETH))
            .and(pick(self.atomic.is_some(), Extensions::ATOMIC))
            .and(pick(self.aeth.is_some(), Extensions::AETH))
            .and(pick(self.atomic_ack.is_some(), Extensions::ATOMIC_ACK))
            .and(pick(self.imm.is_some(), Extensions::IMM))
    }

    /// The shape of the opcode, if the header has it.
    #[inline]
    fn shape(&self) -> Result<Shape, EmitError> {
        let shape = Shape::of(self.bth.opcode).ok_or(EmitError::Opcode(self.bth.opcode.0))?;
        if self.bth.version != 0 {
            return Err(EmitError::Version(self.bth.version));
        }
        if self.present() != shape.extensions {
            return Err(EmitError::Extensions);
        }
        Ok(shape)
    }
}

#[inline]
fn put<const N: usize>(rest: &mut &mut [u8], bytes: &[u8; N]) -> Result<(), EmitError> {
    let (head, tail) = std::mem::take(rest).split_first_chunk_mut::<N>().ok_or(EmitError::Space)?;
    *head = *bytes;
    *rest = tail;
    Ok(())
}

impl Bth {
    #[inline]
    fn to_bytes(self) -> [u8; 12] {
        let bit = |set: bool, at: u8| u8::from(set) << at;
        let flags = bit(self.solicited, 7) | bit(self.migreq, 6) | (self.pad & 3) << 4 | self.version & 0x0f;
        let resv_a = bit(self.fecn, 7) | bit(self.becn, 6) | self.reserved_a & 0x3f;
        let resv_b = bit(self.ack_req, 7) | self.reserved_b & 0x7f;
        let mut b = [0; 12];
        b[0] = self.opcode.0;
        b[1] = flags;
        b[2..4].copy_from_slice(&self.pkey.to_be_bytes());
        b[4..8].copy_from_slice(&(u32::from(resv_a) << 24 | self.dest_qp.get()).to_be_bytes());
        b[8..].copy_from_slice(&(u32::from(resv_b) << 24 | self.psn.get()).to_be_bytes());
        b
    }
}

impl Deth {
    #[inline]
    fn to_bytes(self) -> [u8; 8] {
        let [k0, k1, k2, k3] = self.qkey.to_be_bytes();
        let [_, q0, q1, q2] = self.src_qp.get().to_be_bytes();
        [k0, k1, k2, k3, self.reserved, q0, q1, q2]
    }
}

impl Reth {
    #[inline]
    fn to_bytes(self) -> [u8; 16] {
        let mut b = [0; 16];
        b[..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        b[12..].copy_from_slice(&self.len.to_be_bytes());
        b
    }
}

impl AtomicEth {
    #[inline]
    fn to_bytes(self) -> [u8; 28] {
        let mut b = [0; 28];
        b[..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        b[12..20].copy_from_slice(&self.swap_add.to_be_bytes());
        b[20..].copy_from_slice(&self.compare.to_be_bytes());
        b
    }
}

impl Aeth {
    #[inline]
    fn to_bytes(self) -> [u8; 4] {
        let [_, m0, m1, m2] = self.msn.get().to_be_bytes();
        [self.syndrome.to_byte(), m0, m1, m2]
    }
}

impl Syndrome {
    /// The byte of this syndrome; values above 31 are cut to their 5 bits.
    #[inline]
    pub const fn to_byte(self) -> u8 {
        match self {
            Syndrome::Ack(credits) => credits & 0x1f,
            Syndrome::RnrNak(timer) => 0x20 | timer & 0x1f,
            Syndrome::Nak(code) => 0x60 | code.bits(),
            Syndrome::Reserved(byte) => byte,
        }
    }
}

impl NakCode {
    const fn bits(self) -> u8 {
        match self {
            NakCode::PsnSequence => 0,
            NakCode::InvalidRequest => 1,
            NakCode::RemoteAccess => 2,
            NakCode::RemoteOperational => 3,
            NakCode::InvalidRd => 4,
            NakCode::Other(bits) => bits & 0x1f,
        }
    }
}
