//! The headers of a RoCEv2 packet as values.

use super::Opcode;
use crate::seq::{Msn, Psn, Qpn};

/// Base transport header: 12 bytes at the start of every packet.
///
/// The reserved fields are kept so that a packet can be emitted again exactly as it came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// What the packet is, and which extension headers follow.
    pub opcode: Opcode,
    /// The responder should raise a solicited event.
    pub solicited: bool,
    /// Path migration state. rdma_rxe and NICs send 1.
    pub migreq: bool,
    /// Bytes of padding after the payload, 0..=3.
    pub pad: u8,
    /// Transport header version, 0.
    pub version: u8,
    /// Partition key; 0xffff by default.
    pub pkey: u16,
    /// Forward explicit congestion notification (masked in the ICRC).
    pub fecn: bool,
    /// Backward explicit congestion notification (masked in the ICRC).
    pub becn: bool,
    /// Six reserved bits beside FECN and BECN (masked in the ICRC).
    pub reserved_a: u8,
    /// The queue pair addressed.
    pub dest_qp: Qpn,
    /// The requester asks for an acknowledgement.
    pub ack_req: bool,
    /// Seven reserved bits beside `ack_req`.
    pub reserved_b: u8,
    /// The packet's sequence number.
    pub psn: Psn,
}

impl Bth {
    /// A header as a normal sender writes it: default partition, migration state 1, everything else zero.
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Bth {
            opcode,
            solicited: false,
            migreq: true,
            pad: 0,
            version: 0,
            pkey: 0xffff,
            fecn: false,
            becn: false,
            reserved_a: 0,
            dest_qp,
            ack_req: false,
            reserved_b: 0,
            psn,
        }
    }
}

/// RDMA extended transport header: 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reth {
    /// Virtual address at the responder.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Length of the whole message in bytes.
    pub len: u32,
}

/// Datagram extended transport header: 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// Eight reserved bits before the source queue pair.
    pub reserved: u8,
    /// The sender's queue pair.
    pub src_qp: Qpn,
}

/// Atomic extended transport header: 28 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicEth {
    /// Virtual address of the 8 bytes at the responder.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Value to swap in, or to add.
    pub swap_add: u64,
    /// Value to compare with; 0 for fetch and add.
    pub compare: u64,
}

/// ACK extended transport header: 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// Acknowledgement, RNR NAK or NAK, with its value.
    pub syndrome: Syndrome,
    /// The responder's message sequence number.
    pub msn: Msn,
}

/// The syndrome byte of an AETH (InfiniBand Architecture 1.4, section 9.7.5.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// Acknowledgement; the 5 bits are a credit count code, 31 = no credits in use.
    Ack(u8),
    /// Receiver not ready; the 5 bits are a timer code.
    RnrNak(u8),
    /// Negative acknowledgement; the 5 bits say why.
    Nak(NakCode),
    /// Values that the specification reserves, kept as they came.
    Reserved(u8),
}

/// Why a NAK was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NakCode {
    /// PSN sequence error: packets are missing before this one.
    PsnSequence,
    /// The request is malformed or not supported.
    InvalidRequest,
    /// Key, bounds or rights do not allow it.
    RemoteAccess,
    /// The responder could not carry it out.
    RemoteOperational,
    /// The request does not fit a reliable datagram.
    InvalidRd,
    /// A reserved code, 5..=31.
    Other(u8),
}

/// Everything before the payload: the BTH and the extension headers that its opcode calls for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Base transport header.
    pub bth: Bth,
    /// On UD packets.
    pub deth: Option<Deth>,
    /// On WRITE FIRST/ONLY and READ requests.
    pub reth: Option<Reth>,
    /// On atomic requests.
    pub atomic: Option<AtomicEth>,
    /// On acknowledgements, atomic acknowledgements and READ response FIRST/LAST/ONLY.
    pub aeth: Option<Aeth>,
    /// On atomic acknowledgements: the value before the operation.
    pub atomic_ack: Option<u64>,
    /// Immediate data, as the number its four big-endian bytes make.
    pub imm: Option<u32>,
}

impl Header {
    /// A header with no extensions yet.
    pub const fn new(bth: Bth) -> Self {
        Header { bth, deth: None, reth: None, atomic: None, aeth: None, atomic_ack: None, imm: None }
    }
}

/// A packet taken apart without a copy: UDP payload of a RoCEv2 datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// BTH and extension headers.
    pub header: Header,
    /// The payload without its padding.
    pub payload: &'a [u8],
    /// The padding bytes, `header.bth.pad` of them.
    pub padding: &'a [u8],
    /// The invariant CRC at the end, as the number its four little-endian bytes make.
    pub icrc: u32,
}
