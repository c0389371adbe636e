//! Whatever arrives: no panic, no byte outside what a live key covers, and a connected pair that still ends in order.

use planespray::mem::Access;
use planespray::roce::{QpState, ReceiveWr, Remote, RxMeta, SendOp, SendWr};
use planespray::seq::{Psn, Qpn};
use planespray::time::Span;
use planespray::wire::{Aeth, AtomicEth, Bth, Deth, Header, NakCode, Opcode, Packet, Reth, Syndrome};
use proptest::prelude::*;

use crate::net::{Net, PD, Setup};

/// The part of the victim's memory that a key opens to the peer.
const OPEN: std::ops::Range<u64> = 64 << 10..128 << 10;

/// A pair in the midst of things, in which end 1 is attacked; `u32` is the key of [`OPEN`].
fn busy(extended: bool, seed: u64) -> (Net, u32) {
    let mut net = Net::new(&Setup { extended, seed, mtu: 256, memory: 256 << 10, ..Setup::default() });
    let main = net.ends[1].key;
    // Only the window is open to others; the victim's own key is for itself.
    let victim = &mut net.ends[1];
    victim.device.memory_mut().revoke(main);
    let region = victim.region.clone();
    let own = Access::LOCAL_WRITE;
    victim.key = victim.device.memory_mut().register(PD, &region, 0, 256 << 10, 0, own).expect("a key");
    let all = Access::REMOTE_WRITE.and(Access::REMOTE_READ).and(Access::REMOTE_ATOMIC);
    let window = victim
        .device
        .memory_mut()
        .register(PD, &region, OPEN.start, OPEN.end - OPEN.start, OPEN.start, all)
        .expect("a key");
    for id in 0..4 {
        let sge = net.sge(1, 200 << 10, 1000);
        net.receive(1, &ReceiveWr::new(id, sge));
    }
    let key = net.ends[0].key.0;
    for id in 0..3 {
        let remote = Remote { addr: 0, rkey: key };
        net.send(1, &SendWr::new(id * 2, SendOp::Read, net.sge(1, 210 << 10, 1000), remote));
        net.send(1, &SendWr::new(id * 2 + 1, SendOp::Write, net.sge(1, 0, 1000), remote));
    }
    net.faults.loss = 300;
    net.run_for(Span::from_micros(12));
    net.faults.loss = 0;
    (net, window.0)
}

#[derive(Clone, Debug)]
struct Forged {
    opcode: u8,
    psn: i32,
    va: u64,
    len: u32,
    right_key: bool,
    to_feedback: bool,
    right_qkey: bool,
    bits: u32,
    payload: Vec<u8>,
}

fn forged() -> impl Strategy<Value = Forged> {
    let opcode = prop_oneof![0u8..=0x14, Just(0x64), Just(0x65), Just(0x81)];
    let psn = prop_oneof![-3i32..6, -300i32..300, any::<i32>()];
    let va = prop_oneof![OPEN, OPEN.end - 300..OPEN.end + 10, 0..300_000u64, any::<u64>()];
    let len = prop_oneof![0u32..600, Just(256), any::<u32>()];
    let payload = prop_oneof![
        Just(vec![0xee; 256]),
        proptest::collection::vec(any::<u8>(), 0..300),
        proptest::collection::vec(any::<u8>(), 48 * 3)
    ];
    (opcode, psn, va, len, any::<(bool, bool, bool, u32)>(), payload).prop_map(
        |(opcode, psn, va, len, (right_key, to_feedback, right_qkey, bits), payload)| Forged {
            opcode,
            psn,
            va,
            len,
            right_key: right_key || bits & 3 != 0,
            to_feedback: to_feedback && bits & 4 != 0,
            right_qkey,
            bits,
            payload,
        },
    )
}

/// A well-formed packet with the values of `f`, near the sequence numbers in use.
fn forge(net: &Net, window: u32, f: &Forged, base: [u32; 2]) -> Vec<u8> {
    let victim = &net.ends[1];
    let opcode = Opcode(f.opcode);
    let dest = if f.to_feedback { victim.device.feedback_qpn() } else { victim.qpn };
    let response = (0x0d..=0x12).contains(&f.opcode);
    let start = base[usize::from(response)];
    let mut h = Header::new(Bth::new(opcode, dest, Psn::new(start.wrapping_add(f.psn as u32))));
    h.bth.ack_req = f.bits & 8 != 0;
    h.bth.becn = f.bits & 16 != 0;
    let rkey = if f.right_key { window } else { f.bits };
    let syndrome = match f.bits >> 5 & 7 {
        0..=3 => Syndrome::Ack(31),
        4 => Syndrome::RnrNak((f.bits >> 8 & 31) as u8),
        5 => Syndrome::Nak(NakCode::PsnSequence),
        6 => Syndrome::Nak(NakCode::Other(9)),
        _ => Syndrome::Reserved(0x60),
    };
    let msn = Default::default();
    match f.opcode {
        0x03 | 0x05 | 0x09 => h.imm = Some(f.bits),
        0x06 | 0x0a | 0x0c => h.reth = Some(Reth { va: f.va, rkey, len: f.len }),
        0x0b => {
            h.reth = Some(Reth { va: f.va, rkey, len: f.payload.len() as u32 });
            h.imm = Some(f.bits);
        }
        0x0d | 0x0f | 0x10 | 0x11 => h.aeth = Some(Aeth { syndrome, msn }),
        0x12 => {
            h.aeth = Some(Aeth { syndrome, msn });
            h.atomic_ack = Some(f.va);
        }
        0x13 | 0x14 => h.atomic = Some(AtomicEth { va: f.va, rkey, swap_add: 0xeeee, compare: 0 }),
        0x64 | 0x65 => {
            let qkey = if f.right_qkey { 0x1234_5678 } else { f.bits };
            h.deth = Some(Deth { qkey, reserved: 0, src_qp: net.ends[0].device.feedback_qpn() });
            if f.opcode == 0x65 {
                h.imm = Some(1);
            }
        }
        _ => {}
    }
    if f.opcode == 0x0a && f.bits & 32 != 0 {
        h.reth = Some(Reth { va: f.va, rkey, len: f.payload.len() as u32 });
    }
    let empty = matches!(f.opcode, 0x0c | 0x11..=0x14);
    let mut payload = if empty { Vec::new() } else { f.payload.clone() };
    if f.opcode == 0x81 {
        payload = vec![0; 16];
    }
    if f.to_feedback && payload.len() >= 48 {
        // Records that name the victim's queue pair, and PSNs that it sent.
        payload[..4].copy_from_slice(&victim.qpn.get().to_le_bytes());
        let epsn = Psn::new(base[1].wrapping_add(f.psn as u32)).get();
        payload[4..8].copy_from_slice(&epsn.to_le_bytes());
    }
    let pad = payload.len().next_multiple_of(4) - payload.len();
    h.bth.pad = pad as u8;
    let mut out = vec![0; 1024];
    let padding = [0; 3];
    let packet = Packet { header: h, payload: &payload, padding: &padding[..pad], icrc: 0 };
    let n = packet.emit(&mut out).expect("well formed");
    out.truncate(n);
    out
}

/// Memory that nobody but the owner may change, as it is now: all but the window and where its own READs and receives land.
fn closed(net: &Net) -> Vec<u8> {
    let mut bytes = net.bytes(1, 0, OPEN.start as usize);
    bytes.extend(net.bytes(1, OPEN.end, (200 << 10) - OPEN.end as usize));
    bytes.extend(net.bytes(1, 212 << 10, 44 << 10));
    bytes
}

/// Everything that was posted completes once, whatever happened.
fn ends_well(mut net: Net) {
    net.tap = None;
    net.run_for(Span::from_secs(5));
    let victim = &net.ends[1];
    let sends = net.outcomes(1, true);
    let ids: Vec<u64> = sends.iter().map(|(id, _)| *id).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "{sends:?}");
    if victim.device.state(victim.qpn) == Some(QpState::Err) {
        assert_eq!(sends.len(), 6, "{sends:?}");
        assert_eq!(net.outcomes(1, false).len(), 4);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn forged_packets_stay_inside_the_window(
        extended: bool, seed in 0u64..1000, packets in proptest::collection::vec(forged(), 1..60)
    ) {
        let (mut net, window) = busy(extended, seed);
        let before = closed(&net);
        for f in &packets {
            let bytes = forge(&net, window, f, Setup::default().psn);
            net.deliver(1, 2 | (f.bits >> 20 & 1) as u8, &bytes);
            net.pump();
            if f.bits & 0x300 == 0 {
                net.run_for(Span::from_micros(30));
            }
        }
        prop_assert!(closed(&net) == before, "a byte outside the window changed");
        ends_well(net);
    }

    #[test]
    fn damaged_packets_do_no_harm(
        extended: bool, seed in 0u64..1000,
        damage in proptest::collection::vec((0usize..60, any::<u8>(), any::<bool>()), 1..80)
    ) {
        let (mut net, window) = busy(extended, seed);
        let before = closed(&net);
        let sample = Forged {
            opcode: 0x0a, psn: 0, va: OPEN.start, len: 256, right_key: true, to_feedback: false, right_qkey: true,
            bits: 32, payload: vec![3; 256],
        };
        let mut bytes = forge(&net, window, &sample, Setup::default().psn);
        for (at, value, keep) in damage {
            let mut bad = bytes.clone();
            bad[at] = value;
            if let Ok(packet) = Packet::parse(&bad) {
                let meta = RxMeta { src: net.ends[0].addr, dst: net.ends[1].addr, tos: value, ttl: 1 };
                net.ends[1].device.handle(net.now, &meta, &packet);
                if keep {
                    bytes = bad;
                }
            }
            net.pump();
        }
        prop_assert!(closed(&net) == before, "a byte outside the window changed");
        ends_well(net);
    }

    #[test]
    fn any_bytes_at_all(bytes in proptest::collection::vec(any::<u8>(), 0..200), state in 0u8..3) {
        let (mut net, _) = busy(true, 5);
        let qpn = if state == 0 { Qpn::new(1) } else { net.ends[1].qpn };
        let mut bytes = bytes;
        if state > 0 && bytes.len() > 8 {
            bytes[5..8].copy_from_slice(&qpn.get().to_be_bytes()[1..]);
            bytes[2..4].fill(0xff);
        }
        if let Ok(packet) = Packet::parse(&bytes) {
            let meta = RxMeta { src: net.ends[0].addr, dst: net.ends[1].addr, tos: 0, ttl: 1 };
            net.ends[1].device.handle(net.now, &meta, &packet);
        }
        net.pump();
        ends_well(net);
    }
}
