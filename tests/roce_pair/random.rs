//! Random work over a bad link: every byte right, every request completed once and in order.

use planespray::roce::{CqeKind, ReceiveWr, Remote, SendOp, SendWr, Sge, Status};
use planespray::time::{Span, Time};

use crate::net::{Faults, Net, Setup, is_request};

const HALF: u64 = 512 << 10;
const SLOT: u64 = 24 << 10;

/// What is to be where when all is done.
struct Expected {
    end: usize,
    addr: u64,
    data: Vec<u8>,
    op: SendOp,
}

fn run(seed: u64, extended: bool, faults: Faults) {
    let mtu = [256, 512, 1024, 2048, 4096][(seed % 5) as usize];
    let setup = Setup { seed: seed + 1, extended, mtu, depth: 128, ..Setup::default() };
    let mut net = Net::new(&setup);
    net.faults = faults;
    let mut expected = Vec::new();
    let mut adds = [0u64; 2];
    let mut receives = [0u64; 2];
    let mut sends: [Vec<(u64, Option<u32>)>; 2] = [Vec::new(), Vec::new()];
    // Memory of each end: its lower half is read from, its upper half written to; slots never meet.
    for op in 0..40u64 {
        let end = net.rng.usize(..2);
        let peer = 1 - end;
        let len = match net.rng.u32(..4) {
            0 => net.rng.u64(..16),
            1 => net.rng.u64(..u64::from(mtu) + 8),
            2 => u64::from(mtu) * net.rng.u64(..5).min(SLOT / u64::from(mtu)),
            _ => net.rng.u64(..SLOT),
        }
        .min(SLOT);
        let (from, to) = (op % 20 * SLOT, HALF + op % 20 * SLOT);
        if op == 20 {
            // Everything so far must be done before slots are used again.
            finish(&mut net, seed, extended, &mut expected);
        }
        let imm = net.rng.u32(..);
        let sge = net.sge(end, from, len as u32);
        let remote = Remote { addr: to, rkey: net.ends[peer].key.0 };
        let mut wr = SendWr::new(op, SendOp::Write, sge, remote);
        wr.fence = net.rng.u32(..8) == 0;
        match net.rng.u32(..8) {
            0 => {}
            1 | 2 => wr.op = SendOp::WriteImm(imm),
            3 | 4 => {
                wr.op = if net.rng.bool() { SendOp::Send } else { SendOp::SendImm(imm) };
                // In pieces.
                let cut = net.rng.u32(..=len as u32);
                wr.sges[0].len = cut;
                wr.sges[1] = Sge { addr: from + u64::from(cut), len: len as u32 - cut, ..sge };
                wr.sge_count = 2;
            }
            5 | 6 => {
                wr.op = SendOp::Read;
                wr.sges[0].addr = to;
                wr.remote.addr = from;
            }
            _ => {
                wr.op = SendOp::FetchAdd(7);
                wr.sges[0] = net.sge(end, to, 8);
                wr.remote.addr = 2 * HALF - 8;
                adds[peer] += 7;
            }
        }
        match wr.op {
            SendOp::Write | SendOp::WriteImm(_) | SendOp::Send | SendOp::SendImm(_) => {
                let data = net.fill(end, from, len as usize);
                expected.push(Expected { end: peer, addr: to, data, op: wr.op });
            }
            SendOp::Read => {
                let data = net.fill(peer, from, len as usize);
                expected.push(Expected { end, addr: to, data, op: wr.op });
            }
            _ => {}
        }
        let takes = match wr.op {
            SendOp::Send => Some((len, None)),
            SendOp::SendImm(imm) => Some((len, Some(imm))),
            SendOp::WriteImm(imm) => Some((0, Some(imm))),
            _ => None,
        };
        if let Some(taken) = takes {
            let sge = net.sge(peer, to, SLOT as u32);
            let receive = ReceiveWr::new(receives[peer], sge);
            receives[peer] += 1;
            sends[end].push(taken);
            if net.rng.u32(..5) == 0 {
                // The peer is late: it answers "not ready" first.
                net.send(end, &wr);
                net.run_for(Span::from_micros(30));
                net.receive(peer, &receive);
            } else {
                net.receive(peer, &receive);
                net.send(end, &wr);
            }
        } else {
            net.send(end, &wr);
        }
        if net.rng.bool() {
            let pause = net.rng.u64(..40);
            net.run_for(Span::from_micros(pause));
        }
    }
    finish(&mut net, seed, extended, &mut expected);
    for end in 0..2 {
        let context = format!("seed {seed} extended {extended} end {end}");
        assert_eq!(net.bytes(end, 2 * HALF - 8, 8), adds[end].to_ne_bytes(), "atomics once each, {context}");
        let received: Vec<_> = net.ends[end].cqes.iter().filter(|c| !is_request(c)).collect();
        assert_eq!(received.len(), receives[end] as usize, "{context}");
        for (i, (cqe, (len, imm))) in received.iter().zip(&sends[1 - end]).enumerate() {
            assert_eq!((cqe.id, cqe.status, cqe.imm), (i as u64, Status::Success, *imm), "{context}");
            if cqe.what == CqeKind::Receive {
                assert_eq!(u64::from(cqe.len), *len, "{context}");
            }
        }
    }
    let total: usize = net.ends.iter().map(|e| e.cqes.iter().filter(|c| is_request(c)).count()).sum();
    assert_eq!(total, 40, "seed {seed}");
    for end in &net.ends {
        let ids: Vec<u64> = end.cqes.iter().filter(|c| is_request(c)).map(|c| c.id).collect();
        assert!(ids.is_sorted_by(|a, b| a < b), "seed {seed}: in order and once: {ids:?}");
        let bad = end.cqes.iter().find(|c| c.status != Status::Success);
        assert_eq!(bad, None, "seed {seed} extended {extended}: {:?}", end.device.counters());
    }
}

fn finish(net: &mut Net, seed: u64, extended: bool, expected: &mut Vec<Expected>) {
    let quiet = net.run(net.now + Span::from_secs(20));
    assert!(quiet, "seed {seed} extended {extended}: still busy after 20 s; {:?}", net.ends[0].device.counters());
    for e in expected.drain(..) {
        let got = net.bytes(e.end, e.addr, e.data.len());
        let differs = got.iter().zip(&e.data).position(|(a, b)| a != b);
        assert_eq!(differs, None, "seed {seed} extended {extended}: end {} address {} {:?}", e.end, e.addr, e.op);
    }
    assert!(net.now < Time::ZERO + Span::from_secs(40));
}

#[test]
fn a_clean_link() {
    for seed in 0..40 {
        run(seed, false, Faults::default());
        run(seed, true, Faults::default());
    }
}

#[test]
fn losses() {
    for seed in 0..150 {
        let faults = Faults { loss: 30, ..Faults::default() };
        run(seed, false, faults);
        run(seed, true, faults);
    }
}

#[test]
fn losses_duplicates_and_reordering() {
    for seed in 1000..1150 {
        let faults = Faults { loss: 20, duplicate: 30, reorder: 100, mark: 50, cut: false };
        run(seed, false, faults);
        run(seed, true, faults);
    }
}

#[test]
fn reordering_alone_loses_nothing() {
    for seed in 2000..2060 {
        let faults = Faults { reorder: 300, ..Faults::default() };
        run(seed, false, faults);
        run(seed, true, faults);
    }
}

/// More seeds, worse links. `SEEDS=from..to` chooses others.
#[test]
#[ignore = "takes minutes"]
fn many() {
    let range = std::env::var("SEEDS").unwrap_or_else(|_| "10000..12000".into());
    let (from, to) = range.split_once("..").expect("from..to");
    for seed in from.parse().expect("a number")..to.parse().expect("a number") {
        let mut rng = fastrand::Rng::with_seed(seed);
        let faults = Faults {
            loss: rng.u32(..60),
            duplicate: rng.u32(..60),
            reorder: rng.u32(..200),
            mark: rng.u32(..100),
            cut: false,
        };
        run(seed, false, faults);
        run(seed, true, faults);
    }
}
