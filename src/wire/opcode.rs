//! BTH opcodes (InfiniBand Architecture 1.4, table 38; RoCEv2 annex A17 for CNP).

/// A BTH opcode: the transport in the upper three bits, the operation in the lower five.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Opcode(pub u8);

impl Opcode {
    /// RC SEND, first packet of several.
    pub const SEND_FIRST: Opcode = Opcode(0x00);
    /// RC SEND, neither first nor last packet.
    pub const SEND_MIDDLE: Opcode = Opcode(0x01);
    /// RC SEND, last packet.
    pub const SEND_LAST: Opcode = Opcode(0x02);
    /// RC SEND, last packet, with immediate data.
    pub const SEND_LAST_IMM: Opcode = Opcode(0x03);
    /// RC SEND in one packet.
    pub const SEND_ONLY: Opcode = Opcode(0x04);
    /// RC SEND in one packet, with immediate data.
    pub const SEND_ONLY_IMM: Opcode = Opcode(0x05);
    /// RC RDMA WRITE, first packet of several.
    pub const WRITE_FIRST: Opcode = Opcode(0x06);
    /// RC RDMA WRITE, neither first nor last packet.
    pub const WRITE_MIDDLE: Opcode = Opcode(0x07);
    /// RC RDMA WRITE, last packet.
    pub const WRITE_LAST: Opcode = Opcode(0x08);
    /// RC RDMA WRITE, last packet, with immediate data.
    pub const WRITE_LAST_IMM: Opcode = Opcode(0x09);
    /// RC RDMA WRITE in one packet.
    pub const WRITE_ONLY: Opcode = Opcode(0x0a);
    /// RC RDMA WRITE in one packet, with immediate data.
    pub const WRITE_ONLY_IMM: Opcode = Opcode(0x0b);
    /// RC RDMA READ request.
    pub const READ_REQUEST: Opcode = Opcode(0x0c);
    /// RC RDMA READ response, first packet of several.
    pub const READ_RESPONSE_FIRST: Opcode = Opcode(0x0d);
    /// RC RDMA READ response, neither first nor last packet.
    pub const READ_RESPONSE_MIDDLE: Opcode = Opcode(0x0e);
    /// RC RDMA READ response, last packet.
    pub const READ_RESPONSE_LAST: Opcode = Opcode(0x0f);
    /// RC RDMA READ response in one packet.
    pub const READ_RESPONSE_ONLY: Opcode = Opcode(0x10);
    /// RC acknowledgement or NAK.
    pub const ACK: Opcode = Opcode(0x11);
    /// RC acknowledgement of an atomic, with the value before it.
    pub const ATOMIC_ACK: Opcode = Opcode(0x12);
    /// RC atomic compare and swap.
    pub const COMPARE_SWAP: Opcode = Opcode(0x13);
    /// RC atomic fetch and add.
    pub const FETCH_ADD: Opcode = Opcode(0x14);
    /// UD SEND.
    pub const UD_SEND_ONLY: Opcode = Opcode(0x64);
    /// UD SEND with immediate data.
    pub const UD_SEND_ONLY_IMM: Opcode = Opcode(0x65);
    /// Congestion notification packet.
    pub const CNP: Opcode = Opcode(0x81);
}
