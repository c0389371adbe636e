//! Properties of packets: any bytes are survived, and what is emitted parses to the same.

use planespray::seq::{Msn, Psn, Qpn};
use planespray::wire::{
    Aeth, AtomicEth, Bth, Deth, EmitError, Extensions, Header, NakCode, Opcode, Packet, ParseError, Reth, Syndrome,
};
use proptest::prelude::*;

#[path = "../fuzz/bodies/parse_packet.rs"]
mod parse_packet;

/// Each opcode with the bytes of its extension headers, as tables 38 and A17-2 of the specification have them.
const OPCODES: [(Opcode, usize); 24] = [
    (Opcode::SEND_FIRST, 0),
    (Opcode::SEND_MIDDLE, 0),
    (Opcode::SEND_LAST, 0),
    (Opcode::SEND_LAST_IMM, 4),
    (Opcode::SEND_ONLY, 0),
    (Opcode::SEND_ONLY_IMM, 4),
    (Opcode::WRITE_FIRST, 16),
    (Opcode::WRITE_MIDDLE, 0),
    (Opcode::WRITE_LAST, 0),
    (Opcode::WRITE_LAST_IMM, 4),
    (Opcode::WRITE_ONLY, 16),
    (Opcode::WRITE_ONLY_IMM, 20),
    (Opcode::READ_REQUEST, 16),
    (Opcode::READ_RESPONSE_FIRST, 4),
    (Opcode::READ_RESPONSE_MIDDLE, 0),
    (Opcode::READ_RESPONSE_LAST, 4),
    (Opcode::READ_RESPONSE_ONLY, 4),
    (Opcode::ACK, 4),
    (Opcode::ATOMIC_ACK, 12),
    (Opcode::COMPARE_SWAP, 28),
    (Opcode::FETCH_ADD, 28),
    (Opcode::UD_SEND_ONLY, 8),
    (Opcode::UD_SEND_ONLY_IMM, 12),
    (Opcode::CNP, 0),
];

/// Payload bytes that an opcode's packet may have.
fn payload_lengths(opcode: Opcode) -> std::ops::RangeInclusive<usize> {
    match opcode {
        Opcode::READ_REQUEST | Opcode::ACK | Opcode::ATOMIC_ACK | Opcode::COMPARE_SWAP | Opcode::FETCH_ADD => 0..=0,
        Opcode::CNP => 16..=16,
        _ => 0..=300,
    }
}

fn syndrome() -> impl Strategy<Value = Syndrome> {
    any::<u8>().prop_map(Syndrome::from_byte)
}

/// A packet's parts: the header, payload, padding, ICRC.
type Parts = (Header, Vec<u8>, Vec<u8>, u32);

fn bth(opcode: Opcode) -> impl Strategy<Value = Bth> {
    (any::<[bool; 5]>(), any::<(u16, u32, u32)>(), 0u8..64, 0u8..128).prop_map(
        move |([solicited, migreq, fecn, becn, ack_req], (pkey, qpn, psn), reserved_a, reserved_b)| Bth {
            solicited,
            migreq,
            pkey,
            fecn,
            becn,
            reserved_a,
            ack_req,
            reserved_b,
            ..Bth::new(opcode, Qpn::new(qpn), Psn::new(psn))
        },
    )
}

fn parts() -> impl Strategy<Value = Parts> {
    let each = prop::sample::select(&OPCODES[..]);
    each.prop_flat_map(|(opcode, _)| {
        let extensions = (any::<(u32, u8, u32)>(), any::<(u64, u32, u32)>(), any::<(u64, u64, u32)>(), syndrome());
        let payload = prop::collection::vec(any::<u8>(), payload_lengths(opcode));
        (bth(opcode), extensions, payload, any::<([u8; 3], u32)>()).prop_map(build)
    })
}

type Values = ((u32, u8, u32), (u64, u32, u32), (u64, u64, u32), Syndrome);

fn build((mut bth, values, payload, (padding, icrc)): (Bth, Values, Vec<u8>, ([u8; 3], u32))) -> Parts {
    let ((qkey, reserved, qpn), (va, rkey, len), (swap_add, compare, number), syndrome) = values;
    let pad = payload.len().wrapping_neg() % 4;
    bth.pad = pad as u8;
    let there = Header::extensions(bth.opcode).unwrap();
    let has = |set| there.contains(set);
    let header = Header {
        deth: has(Extensions::DETH).then_some(Deth { qkey, reserved, src_qp: Qpn::new(qpn) }),
        reth: has(Extensions::RETH).then_some(Reth { va, rkey, len }),
        atomic: has(Extensions::ATOMIC).then_some(AtomicEth { va, rkey, swap_add, compare }),
        aeth: has(Extensions::AETH).then_some(Aeth { syndrome, msn: Msn::new(number) }),
        atomic_ack: has(Extensions::ATOMIC_ACK).then_some(compare),
        imm: has(Extensions::IMM).then_some(number),
        ..Header::new(bth)
    };
    (header, payload, padding[..pad].to_vec(), icrc)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        parse_packet::check(&bytes);
    }

    #[test]
    fn any_bytes_behind_a_known_opcode_are_survived(
        (opcode, _) in prop::sample::select(&OPCODES[..]), bytes in prop::collection::vec(any::<u8>(), 16..80),
    ) {
        let mut bytes = bytes;
        bytes[0] = opcode.0;
        bytes[1] &= 0xf0;
        parse_packet::check(&bytes);
    }

    #[test]
    fn what_is_emitted_parses_to_the_same((header, payload, padding, icrc) in parts()) {
        let packet = Packet { header, payload: &payload, padding: &padding, icrc };
        let mut out = vec![0; packet.len()];
        prop_assert_eq!(packet.emit(&mut out), Ok(out.len()));
        prop_assert_eq!(Packet::parse(&out), Ok(packet));
        prop_assert_eq!(&out[out.len() - 4..], &icrc.to_le_bytes()[..]);
        parse_packet::check(&out);

        // Any byte more or less makes a length that no packet has, or an error.
        let mut longer = out.clone();
        longer.push(0);
        prop_assert!(Packet::parse(&longer).is_err());
        for len in 0..out.len() {
            if let Ok(shorter) = Packet::parse(&out[..len]) {
                prop_assert!(len.is_multiple_of(4) && shorter.payload.len() < payload.len());
            }
        }
    }

    #[test]
    fn emit_fills_no_more_than_it_says_and_needs_no_less((header, payload, padding, icrc) in parts(), extra in 0usize..9) {
        let packet = Packet { header, payload: &payload, padding: &padding, icrc };
        let len = packet.len();
        let mut out = vec![0xc3; len + extra];
        prop_assert_eq!(packet.emit(&mut out), Ok(len));
        prop_assert!(out[len..].iter().all(|&b| b == 0xc3));
        prop_assert_eq!(packet.emit(&mut out[..len - 1]), Err(EmitError::Space));
        prop_assert_eq!(header.emit(&mut out[..header.len() - 1]), Err(EmitError::Space));
    }
}

#[test]
fn every_opcode_has_its_headers_and_no_other_opcode_is_known() {
    for byte in 0..=255 {
        let known = OPCODES.iter().find(|(opcode, _)| opcode.0 == byte);
        assert_eq!(Header::extensions(Opcode(byte)).map(Extensions::len), known.map(|(_, len)| *len), "{byte:#x}");
        if known.is_none() {
            let mut bytes = [0; 64];
            bytes[0] = byte;
            assert_eq!(Packet::parse(&bytes), Err(ParseError::Opcode(byte)));
            let header = Header::new(Bth::new(Opcode(byte), Qpn::new(2), Psn::new(0)));
            assert_eq!(header.emit(&mut bytes), Err(EmitError::Opcode(byte)));
        }
    }
}

#[test]
fn refusals() {
    let parse = |opcode: Opcode, flags: u8, len: usize| {
        let mut bytes = vec![0; len];
        bytes[0] = opcode.0;
        bytes[1] = flags;
        Packet::parse(&bytes).map(|p| (p.payload.len(), p.padding.len()))
    };
    assert_eq!(Packet::parse(&[]), Err(ParseError::Short));
    assert_eq!(Packet::parse(&[0; 15]), Err(ParseError::Short));
    assert_eq!(parse(Opcode::SEND_ONLY, 0, 16), Ok((0, 0)));
    assert_eq!(parse(Opcode::SEND_ONLY, 0x10, 16), Err(ParseError::Short));
    assert_eq!(parse(Opcode::SEND_ONLY, 0x30, 20), Ok((1, 3)));
    assert_eq!(parse(Opcode::SEND_ONLY, 0x01, 20), Err(ParseError::Version(1)));
    assert_eq!(parse(Opcode::SEND_ONLY, 0, 21), Err(ParseError::Length));
    assert_eq!(parse(Opcode::READ_RESPONSE_MIDDLE, 0, 16), Ok((0, 0)));
    assert_eq!(parse(Opcode::READ_RESPONSE_LAST, 0, 16), Err(ParseError::Short));
    assert_eq!(parse(Opcode::ACK, 0, 20), Ok((0, 0)));
    assert_eq!(parse(Opcode::ACK, 0, 24), Err(ParseError::Length));
    assert_eq!(parse(Opcode::ACK, 0x30, 24), Err(ParseError::Length));
    assert_eq!(parse(Opcode::CNP, 0, 32), Ok((16, 0)));
    assert_eq!(parse(Opcode::CNP, 0, 28), Err(ParseError::Length));
    assert_eq!(parse(Opcode::CNP, 0x30, 32), Err(ParseError::Length));
}

#[test]
fn a_header_that_does_not_fit_its_opcode_is_not_emitted() {
    let header = |opcode| Header::new(Bth::new(opcode, Qpn::new(2), Psn::new(0)));
    let mut out = [0; 128];
    assert_eq!(header(Opcode::ACK).emit(&mut out), Err(EmitError::Extensions));
    let imm = Header { imm: Some(1), ..header(Opcode::SEND_ONLY) };
    assert_eq!(imm.emit(&mut out), Err(EmitError::Extensions));
    let mut wrong = header(Opcode::SEND_ONLY);
    wrong.bth.version = 1;
    assert_eq!(wrong.emit(&mut out), Err(EmitError::Version(1)));

    let mut packet = Packet { header: header(Opcode::SEND_ONLY), payload: &[1], padding: &[], icrc: 0 };
    assert_eq!(packet.emit(&mut out), Err(EmitError::Length));
    packet.header.bth.pad = 3;
    assert_eq!(packet.emit(&mut out), Err(EmitError::Length));
    packet.padding = &[0; 3];
    assert_eq!(packet.emit(&mut out), Ok(20));
}

#[test]
fn syndromes_are_bytes() {
    for byte in 0..=255 {
        assert_eq!(Syndrome::from_byte(byte).to_byte(), byte);
    }
    assert_eq!(Syndrome::from_byte(0x1f), Syndrome::Ack(31));
    assert_eq!(Syndrome::from_byte(0x21), Syndrome::RnrNak(1));
    assert_eq!(Syndrome::from_byte(0x60), Syndrome::Nak(NakCode::PsnSequence));
    assert_eq!(Syndrome::from_byte(0x62), Syndrome::Nak(NakCode::RemoteAccess));
}
