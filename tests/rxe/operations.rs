//! Every operation, byte for byte.

use planespray::roce::{CqeKind, SendOp, Status};

use crate::rig::{Family, Pair, counter, pattern};
use crate::rxe::Ask;

/// The engine asks, rdma_rxe answers.
fn towards_rxe(family: Family) {
    let mut pair = Pair::new(family);
    let bytes = pattern(70_000, 1);
    pair.end.write(0, &bytes);
    for (op, len) in
        [(SendOp::Send, 5), (SendOp::SendImm(0xfeed_0001), 1025), (SendOp::Send, 0), (SendOp::SendImm(2), 30_000)]
    {
        let id = pair.id();
        pair.rxe.post_receive(id, 500_000, 30_000);
        pair.good(op, 0, len);
        let wc = pair.theirs();
        assert!(wc.is_success() && wc.is_receive() && wc.id == id && wc.len == len, "{op:?}: {wc:?}");
        assert_eq!(wc.imm, if let SendOp::SendImm(imm) = op { Some(imm) } else { None }, "{op:?}");
        assert_eq!(pair.rxe.read(500_000, len as usize), bytes[..len as usize], "{op:?} of {len}");
    }
    for len in [1, 64, 1023, 1024, 1025, 61_003] {
        pair.rxe.write(7, &vec![0xee; len + 2]);
        pair.good(SendOp::Write, 8, len as u32);
        assert_eq!(pair.rxe.read(8, len), bytes[8..8 + len]);
        assert_eq!((pair.rxe.read(7, 1)[0], pair.rxe.read(8 + len as u64, 1)[0]), (0xee, 0xee), "WRITE of {len}");
    }
    for len in [0, 1500] {
        let id = pair.id();
        pair.rxe.post_receive(id, 0, 0);
        pair.good(SendOp::WriteImm(77 + len), 100, len);
        let wc = pair.theirs();
        assert!(wc.is_success() && wc.id == id && wc.imm == Some(77 + len), "{wc:?}");
    }
    assert_eq!(pair.rxe.read(100, 1500), bytes[100..1600]);

    let theirs = pattern(61_003, 2);
    pair.rxe.write(200_001, &theirs);
    for len in [1, 1024, 61_003] {
        pair.good(SendOp::Read, 200_001, len);
        assert_eq!(pair.end.read(200_001, len as usize), theirs[..len as usize]);
    }
    pair.rxe.write(512, &40_u64.to_ne_bytes());
    pair.good(SendOp::FetchAdd(2), 512, 8);
    assert_eq!(pair.end.read(512, 8), 40_u64.to_ne_bytes());
    pair.good(SendOp::CompareSwap { compare: 42, swap: u64::MAX - 1 }, 512, 8);
    assert_eq!(pair.end.read(512, 8), 42_u64.to_ne_bytes());
    pair.good(SendOp::CompareSwap { compare: 42, swap: 1 }, 512, 8);
    assert_eq!(pair.rxe.read(512, 8), (u64::MAX - 1).to_ne_bytes());

    // Many at once, more READs than may be outstanding among them.
    let ids: Vec<u64> = (0..24)
        .map(|i| pair.post(if i % 3 == 0 { SendOp::Read } else { SendOp::Write }, 600_000 + i * 8192, 8000))
        .collect();
    for id in ids {
        let cqe = pair.ours();
        assert_eq!((cqe.id, cqe.status), (id, Status::Success));
    }
    quiet(&mut pair);
}

/// rdma_rxe asks, the engine answers.
fn from_rxe(family: Family) {
    let mut pair = Pair::new(family);
    let bytes = pattern(70_000, 3);
    pair.rxe.write(0, &bytes);
    for (ask, len) in [(Ask::Send, 5), (Ask::SendImm(0xfeed_0001), 1025), (Ask::Send, 0), (Ask::SendImm(2), 30_000)] {
        let id = pair.id();
        pair.end.post_receive(id, 500_000, 30_000);
        pair.asked_well(ask, 0, len);
        let cqe = pair.ours();
        assert_eq!((cqe.id, cqe.what, cqe.status, cqe.len), (id, CqeKind::Receive, Status::Success, len));
        assert_eq!(cqe.imm, if let Ask::SendImm(imm) = ask { Some(imm) } else { None }, "{ask:?}");
        assert_eq!(pair.end.read(500_000, len as usize), bytes[..len as usize], "{ask:?} of {len}");
    }
    for len in [1, 64, 1023, 1024, 1025, 61_003] {
        pair.end.write(7, &vec![0xee; len + 2]);
        pair.asked_well(Ask::Write, 8, len as u32);
        assert_eq!(pair.end.read(8, len), bytes[8..8 + len]);
        assert_eq!((pair.end.read(7, 1)[0], pair.end.read(8 + len as u64, 1)[0]), (0xee, 0xee), "WRITE of {len}");
    }
    for len in [0, 1500] {
        let id = pair.id();
        pair.end.post_receive(id, 0, 0);
        pair.asked_well(Ask::WriteImm(77 + len), 100, len);
        let cqe = pair.ours();
        assert_eq!((cqe.id, cqe.what, cqe.imm), (id, CqeKind::ReceiveWriteImm, Some(77 + len)));
    }
    assert_eq!(pair.end.read(100, 1500), bytes[100..1600]);

    let ours = pattern(61_003, 4);
    pair.end.write(200_001, &ours);
    for len in [1, 1024, 61_003] {
        pair.asked_well(Ask::Read, 200_001, len);
        assert_eq!(pair.rxe.read(200_001, len as usize), ours[..len as usize]);
    }
    pair.end.write(512, &40_u64.to_ne_bytes());
    pair.asked_well(Ask::FetchAdd(2), 512, 8);
    assert_eq!(pair.rxe.read(512, 8), 40_u64.to_ne_bytes());
    pair.asked_well(Ask::CompareSwap { compare: 42, swap: u64::MAX - 1 }, 512, 8);
    assert_eq!(pair.rxe.read(512, 8), 42_u64.to_ne_bytes());
    pair.asked_well(Ask::CompareSwap { compare: 42, swap: 1 }, 512, 8);
    assert_eq!(pair.end.read(512, 8), (u64::MAX - 1).to_ne_bytes());

    let ids: Vec<u64> =
        (0..24).map(|i| pair.ask(if i % 3 == 0 { Ask::Read } else { Ask::Write }, 600_000 + i * 8192, 8000)).collect();
    for id in ids {
        let wc = pair.theirs();
        assert!(wc.id == id && wc.is_success(), "{wc:?}, expected {id}");
    }
    quiet(&mut pair);
}

/// Nothing of all that went wrong on the way.
fn quiet(pair: &mut Pair) {
    let (ours, sockets) = (pair.end.counters(), pair.end.socket_counters());
    assert_eq!((sockets.bad_icrc, sockets.parse_errors, sockets.drops), (0, 0, 0), "{sockets:?}");
    assert_eq!((ours.out_of_sequence, ours.sequence_nak_sent, ours.packet_seq_err), (0, 0, 0), "{ours:?}");
    assert_eq!((ours.dropped_pkts, ours.wrong_source, ours.resp_invalid_request), (0, 0, 0), "{ours:?}");
    println!("rcvd {} sent {} of rdma_rxe since boot", counter("rcvd_pkts"), counter("sent_pkts"));
}

#[test]
fn towards_rxe_v4() {
    towards_rxe(Family::V4);
}

#[test]
fn towards_rxe_v6() {
    towards_rxe(Family::V6);
}

#[test]
fn from_rxe_v4() {
    from_rxe(Family::V4);
}

#[test]
fn from_rxe_v6() {
    from_rxe(Family::V6);
}
