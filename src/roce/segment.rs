//! How a message is cut into packets.

use crate::wire::Opcode;

use super::wr::SendOp;

/// The messages that become several packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    /// SEND FIRST, MIDDLE.., LAST or SEND ONLY.
    Send,
    /// WRITE FIRST, MIDDLE.., LAST or WRITE ONLY.
    Write,
    /// A run of WRITE ONLY, each with an address of its own.
    Singles,
    /// One packet whatever the length: READ and atomic requests.
    Request,
}

/// One packet of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) opcode: Opcode,
    /// Bytes of the message before it.
    pub(super) offset: u32,
    /// Payload bytes.
    pub(super) len: u32,
    /// The message's last packet.
    pub(super) last: bool,
}

/// A message of `len` bytes in packets of `1 << shift`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cut {
    pub(super) shape: Shape,
    pub(super) imm: bool,
    pub(super) len: u32,
    pub(super) shift: u8,
}

impl Cut {
    pub(super) fn of(op: &SendOp, len: u32, shift: u8, singles: bool) -> Cut {
        let (shape, imm) = match op {
            SendOp::Send => (Shape::Send, false),
            SendOp::SendImm(_) => (Shape::Send, true),
            SendOp::Write => (if singles { Shape::Singles } else { Shape::Write }, false),
            SendOp::WriteImm(_) => (if singles { Shape::Singles } else { Shape::Write }, true),
            SendOp::Read | SendOp::FetchAdd(_) | SendOp::CompareSwap { .. } => (Shape::Request, false),
        };
        Cut { shape, imm, len, shift }
    }

    /// MTU-sized or shorter pieces with payload, at least one.
    fn filled(&self) -> u32 {
        (self.len.div_ceil(1 << self.shift)).max(1)
    }

    /// True if a run is closed by an empty WRITE ONLY with immediate.
    ///
    /// A burst may only end in a shorter packet, and the immediate makes the closing packet 4 bytes longer: it
    /// cannot follow full packets with a full payload, nor with one that is less than 4 bytes short of it.
    fn empty_close(&self) -> bool {
        let mtu = 1 << self.shift;
        let rest = self.len & (mtu - 1);
        self.shape == Shape::Singles && self.imm && self.len > mtu && (rest == 0 || rest.next_multiple_of(4) + 4 > mtu)
    }

    /// How many packets.
    pub(super) fn packets(&self) -> u32 {
        match self.shape {
            Shape::Request => 1,
            _ => self.filled() + u32::from(self.empty_close()),
        }
    }

    /// Packet `index`, below [`Cut::packets`].
    pub(super) fn piece(&self, index: u32) -> Piece {
        let packets = self.packets();
        let offset = (index << self.shift).min(self.len);
        let len = (self.len - offset).min(1 << self.shift);
        let (first, last) = (index == 0, index + 1 == packets);
        let opcode = match self.shape {
            Shape::Send => pick(
                first,
                last,
                self.imm,
                [
                    Opcode::SEND_FIRST,
                    Opcode::SEND_MIDDLE,
                    Opcode::SEND_LAST,
                    Opcode::SEND_LAST_IMM,
                    Opcode::SEND_ONLY,
                    Opcode::SEND_ONLY_IMM,
                ],
            ),
            Shape::Write => pick(
                first,
                last,
                self.imm,
                [
                    Opcode::WRITE_FIRST,
                    Opcode::WRITE_MIDDLE,
                    Opcode::WRITE_LAST,
                    Opcode::WRITE_LAST_IMM,
                    Opcode::WRITE_ONLY,
                    Opcode::WRITE_ONLY_IMM,
                ],
            ),
            Shape::Singles if last && self.imm => Opcode::WRITE_ONLY_IMM,
            Shape::Singles => Opcode::WRITE_ONLY,
            // The requester knows which.
            Shape::Request => Opcode::READ_REQUEST,
        };
        Piece { opcode, offset, len, last }
    }
}

fn pick(first: bool, last: bool, imm: bool, of: [Opcode; 6]) -> Opcode {
    match (first, last) {
        (true, true) => of[4 + usize::from(imm)],
        (true, false) => of[0],
        (false, false) => of[1],
        (false, true) => of[2 + usize::from(imm)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn size(p: &Piece) -> u32 {
        let extension = match p.opcode {
            Opcode::WRITE_ONLY | Opcode::WRITE_FIRST => 16,
            Opcode::WRITE_ONLY_IMM => 20,
            Opcode::SEND_LAST_IMM | Opcode::SEND_ONLY_IMM | Opcode::WRITE_LAST_IMM => 4,
            _ => 0,
        };
        12 + extension + p.len.next_multiple_of(4) + 4
    }

    #[test]
    fn a_run_of_whole_packets_closes_empty() {
        let cut = Cut::of(&SendOp::WriteImm(1), 3 * 1024, 10, true);
        assert_eq!(cut.packets(), 4);
        assert_eq!(cut.piece(2), Piece { opcode: Opcode::WRITE_ONLY, offset: 2048, len: 1024, last: false });
        assert_eq!(cut.piece(3), Piece { opcode: Opcode::WRITE_ONLY_IMM, offset: 3072, len: 0, last: true });
        assert_eq!(Cut::of(&SendOp::WriteImm(1), 1024, 10, true).packets(), 1);
        assert_eq!(Cut::of(&SendOp::Write, 0, 10, true).packets(), 1);
    }

    proptest! {
        #[test]
        fn pieces_cover_the_message_once(len in 0u32..20_000, shift in 8u8..=12, op in 0u8..4, singles: bool) {
            let op = [SendOp::Send, SendOp::SendImm(7), SendOp::Write, SendOp::WriteImm(7)][op as usize];
            let cut = Cut::of(&op, len, shift, singles);
            let mut next = 0;
            for i in 0..cut.packets() {
                let p = cut.piece(i);
                prop_assert_eq!(p.offset, next);
                next += p.len;
                prop_assert_eq!(p.last, i + 1 == cut.packets());
                prop_assert!(p.len <= 1 << shift);
                if cut.shape != Shape::Singles && !p.last {
                    prop_assert_eq!(p.len, 1 << shift);
                }
            }
            prop_assert_eq!(next, len);
        }

        #[test]
        fn a_closing_packet_is_never_the_longest(len in 0u32..20_000, shift in 8u8..=12) {
            let cut = Cut::of(&SendOp::WriteImm(7), len, shift, true);
            let first = cut.piece(0);
            for i in 0..cut.packets() {
                prop_assert!(size(&cut.piece(i)) <= size(&first));
            }
        }
    }
}
