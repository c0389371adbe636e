//! One behaviour of the transport at a time.

use std::cell::RefCell;
use std::rc::Rc;

use planespray::roce::{
    CqeKind, Extension, PostError, QpEvent, QpState, ReceiveWr, Remote, Rtr, Rts, SendOp, SendWr, Status, Transition,
};
use planespray::seq::{Psn, Qpn};
use planespray::time::{Span, Time};
use planespray::wire::{Opcode, Packet};

use crate::net::{Faults, Net, Setup};

type Log = Rc<RefCell<Vec<(usize, Vec<u8>)>>>;

/// Keeps a copy of every packet; those for which `drop` says true are lost.
fn tap(net: &mut Net, mut drop: impl FnMut(usize, &Packet<'_>) -> bool + 'static) -> Log {
    let log: Log = Rc::default();
    let copy = log.clone();
    net.tap = Some(Box::new(move |from, bytes| {
        copy.borrow_mut().push((from, bytes.to_vec()));
        !drop(from, &Packet::parse(bytes).expect("parses"))
    }));
    log
}

fn opcodes(log: &Log, from: usize) -> Vec<u8> {
    log.borrow().iter().filter(|(f, _)| *f == from).map(|(_, b)| b[0]).collect()
}

fn write(net: &Net, id: u64, len: u32, op: SendOp) -> SendWr {
    let remote = Remote { addr: 512 << 10, rkey: net.ends[1].key.0 };
    SendWr::new(id, op, net.sge(0, 0, len), remote)
}

fn done(net: &mut Net) {
    assert!(net.run_for(Span::from_secs(5)), "quiet");
}

#[test]
fn standard_peers_get_first_middle_last() {
    let mut net = Net::new(&Setup::default());
    let log = tap(&mut net, |_, _| false);
    let data = net.fill(0, 0, 3000);
    net.receive(1, &ReceiveWr { id: 5, ..ReceiveWr::default() });
    net.send(0, &write(&net, 1, 3000, SendOp::WriteImm(77)));
    done(&mut net);
    assert_eq!(opcodes(&log, 0), [0x06, 0x07, 0x09]);
    assert_eq!(opcodes(&log, 1), [0x11]);
    assert_eq!(net.bytes(1, 512 << 10, 3000), data);
    let cqe = net.ends[1].cqes[0];
    assert_eq!((cqe.id, cqe.what, cqe.imm), (5, CqeKind::ReceiveWriteImm, Some(77)));
    let cqe = net.ends[0].cqes[0];
    assert_eq!((cqe.id, cqe.len, cqe.retransmits, cqe.marks), (1, 3000, 0, None));
    assert!(cqe.rtt.is_some_and(|rtt| rtt >= Span::from_micros(10) && rtt < Span::from_micros(30)));
}

#[test]
fn planespray_peers_get_runs_of_single_packets() {
    for (len, expected) in [
        (0, vec![0x0b]),
        (1024, vec![0x0b]),
        (1025, vec![0x0a, 0x0b]),
        (2048, vec![0x0a, 0x0a, 0x0b]),
        (2047, vec![0x0a, 0x0a, 0x0b]),
        (2044, vec![0x0a, 0x0b]),
        (2048 + 512, vec![0x0a, 0x0a, 0x0b]),
    ] {
        let mut net = Net::new(&Setup { extended: true, ..Setup::default() });
        let log = tap(&mut net, |_, _| false);
        let data = net.fill(0, 0, len);
        net.receive(1, &ReceiveWr::default());
        net.send(0, &write(&net, 1, len as u32, SendOp::WriteImm(1)));
        done(&mut net);
        assert_eq!(opcodes(&log, 0), expected, "{len} bytes");
        assert_eq!(opcodes(&log, 1), [0x11], "one acknowledgement for {len} bytes");
        assert_eq!(net.bytes(1, 512 << 10, len), data);
        assert_eq!(net.ends[0].cqes[0].marks, Some((expected.len() as u32, 0)));
    }
}

#[test]
fn one_lost_packet_is_sent_again_alone() {
    let mut net = Net::new(&Setup { extended: true, ..Setup::default() });
    let mut once = true;
    let log = tap(&mut net, move |_, p| p.header.bth.psn == Psn::new(2) && std::mem::take(&mut once));
    let data = net.fill(0, 0, 32 << 10);
    net.send(0, &write(&net, 1, 32 << 10, SendOp::Write));
    done(&mut net);
    assert_eq!(opcodes(&log, 0).len(), 33);
    assert_eq!(net.bytes(1, 512 << 10, 32 << 10), data);
    let cqe = net.ends[0].cqes[0];
    assert_eq!((cqe.retransmits, cqe.rtt), (1, None));
    assert_eq!(net.ends[0].device.counters().local_ack_timeout_err, 0, "no timer was needed");
}

#[test]
fn a_nak_makes_a_standard_peer_go_back() {
    let mut net = Net::new(&Setup::default());
    let mut once = true;
    let log = tap(&mut net, move |_, p| p.header.bth.psn == Psn::new(2) && std::mem::take(&mut once));
    let data = net.fill(0, 0, 32 << 10);
    net.send(0, &write(&net, 1, 32 << 10, SendOp::Write));
    done(&mut net);
    // PSN 2 is the sixth of 32.
    assert_eq!(opcodes(&log, 0).len(), 32 + 27);
    assert_eq!(net.bytes(1, 512 << 10, 32 << 10), data);
    let counters = net.ends[0].device.counters();
    assert_eq!((counters.local_ack_timeout_err, counters.packet_seq_err), (0, 1));
}

#[test]
fn a_lost_tail_waits_for_the_timer() {
    for extended in [false, true] {
        let mut net = Net::new(&Setup { extended, ..Setup::default() });
        let mut once = true;
        tap(&mut net, move |from, _| from == 0 && std::mem::take(&mut once));
        net.send(0, &write(&net, 1, 8, SendOp::Write));
        done(&mut net);
        assert_eq!(net.outcomes(0, true), [(1, Status::Success)]);
        assert!(net.now >= Time::from_nanos(4_000_000) && net.now < Time::from_nanos(20_000_000));
    }
}

#[test]
fn a_read_is_taken_up_where_it_broke() {
    let mut net = Net::new(&Setup::default());
    let mut once = true;
    // The peer's responses carry our PSNs; the fourth of eight is lost.
    let log = tap(&mut net, move |from, p| from == 1 && p.header.bth.psn == Psn::new(0) && std::mem::take(&mut once));
    let data = net.fill(1, 0, 8000);
    let wr = SendWr::new(1, SendOp::Read, net.sge(0, 0, 8000), Remote { addr: 0, rkey: net.ends[1].key.0 });
    net.send(0, &wr);
    done(&mut net);
    assert_eq!(net.bytes(0, 0, 8000), data);
    let requests: Vec<_> = log
        .borrow()
        .iter()
        .filter(|(from, _)| *from == 0)
        .map(|(_, b)| {
            let p = Packet::parse(b).expect("parses");
            (p.header.bth.psn, p.header.reth.map(|r| (r.va, r.len)))
        })
        .collect();
    assert_eq!(requests, [(Psn::new(0xff_fffd), Some((0, 8000))), (Psn::new(0), Some((3072, 8000 - 3072)))]);
    let mut responses = vec![0x0d, 0x0e, 0x0e, 0x0e, 0x0e, 0x0e, 0x0e, 0x0f];
    responses.extend([0x0d, 0x0e, 0x0e, 0x0e, 0x0f]);
    assert_eq!(opcodes(&log, 1), responses, "and no acknowledgement besides");
}

#[test]
fn duplicates_read_again_but_add_once() {
    let mut net = Net::new(&Setup::default());
    let log = tap(&mut net, |_, _| false);
    net.ends[1].region.write_at(0, &40u64.to_ne_bytes()).expect("in bounds");
    let remote = Remote { addr: 0, rkey: net.ends[1].key.0 };
    net.send(0, &SendWr::new(1, SendOp::FetchAdd(2), net.sge(0, 0, 8), remote));
    net.send(0, &SendWr::new(2, SendOp::CompareSwap { compare: 42, swap: 7 }, net.sge(0, 8, 8), remote));
    net.send(0, &SendWr::new(3, SendOp::Read, net.sge(0, 16, 8), remote));
    done(&mut net);
    assert_eq!(net.bytes(0, 0, 8), 40u64.to_ne_bytes());
    assert_eq!(net.bytes(0, 8, 8), 42u64.to_ne_bytes());
    assert_eq!(net.bytes(0, 16, 8), 7u64.to_ne_bytes());
    let requests: Vec<_> = log.borrow().iter().filter(|(from, _)| *from == 0).map(|(_, b)| b.clone()).collect();
    let answers = |log: &Log| -> Vec<Vec<u8>> {
        log.borrow().iter().filter(|(from, _)| *from == 1).map(|(_, b)| b.clone()).collect()
    };
    let before = answers(&log);
    for request in &requests {
        net.deliver(1, 2, request);
        done(&mut net);
    }
    let after = answers(&log);
    let mut psns_and_values: Vec<_> = after[before.len()..].iter().map(|b| (b[0], b[9..12].to_vec())).collect();
    let firsts: Vec<_> = before.iter().map(|b| (b[0], b[9..12].to_vec())).collect();
    psns_and_values.truncate(firsts.len());
    assert_eq!(psns_and_values, firsts, "the same answers again");
    assert_eq!(after[before.len()][16..24], before[0][16..24], "with the value before the first execution");
    assert_eq!(net.bytes(1, 0, 8), 7u64.to_ne_bytes());
    assert_eq!(net.ends[0].cqes.len(), 3);
}

#[test]
fn no_receive_means_wait_or_give_up() {
    for extended in [false, true] {
        let rts = Rts { rnr_retry: 2, ..Rts::default() };
        let mut net = Net::new(&Setup { extended, rts, ..Setup::default() });
        net.send(0, &write(&net, 1, 100, SendOp::WriteImm(1)));
        net.send(0, &write(&net, 2, 100, SendOp::Send));
        done(&mut net);
        assert_eq!(net.outcomes(0, true), [(1, Status::RnrRetryExceeded), (2, Status::Flushed)]);
        assert_eq!(net.ends[1].device.counters().rnr_nak_sent, 3);
        let event = net.ends[0].device.poll_event();
        assert_eq!(event, Some(QpEvent { qpn: net.ends[0].qpn, status: Status::RnrRetryExceeded }));

        let mut net = Net::new(&Setup { extended, ..Setup::default() });
        let data = net.fill(0, 0, 5000);
        net.send(0, &write(&net, 1, 5000, SendOp::Send));
        net.run_for(Span::from_millis(3));
        assert!(net.ends[0].cqes.is_empty());
        net.receive(1, &ReceiveWr::new(9, net.sge(1, 0, 5000)));
        done(&mut net);
        assert_eq!(net.bytes(1, 0, 5000), data);
        assert_eq!(net.outcomes(0, true), [(1, Status::Success)]);
    }
}

#[test]
fn a_bad_key_ends_both_sides_and_places_nothing() {
    for extended in [false, true] {
        let mut net = Net::new(&Setup { extended, ..Setup::default() });
        net.fill(0, 0, 3000);
        net.receive(1, &ReceiveWr { id: 50, ..ReceiveWr::default() });
        net.receive(0, &ReceiveWr { id: 60, ..ReceiveWr::default() });
        let mut bad = write(&net, 1, 3000, SendOp::Write);
        bad.remote.rkey ^= 0x10000;
        bad.signaled = false;
        net.send(0, &bad);
        net.send(0, &write(&net, 2, 3000, SendOp::WriteImm(4)));
        done(&mut net);
        assert_eq!(net.outcomes(0, true), [(1, Status::RemoteAccess), (2, Status::Flushed)]);
        assert_eq!(net.outcomes(0, false), [(60, Status::Flushed)]);
        assert_eq!(net.outcomes(1, false), [(50, Status::Flushed)]);
        for end in &mut net.ends {
            assert_eq!(end.device.state(end.qpn), Some(QpState::Err));
            let refused = end.device.post_send(end.qpn, &SendWr::default());
            assert_eq!(refused, Err(PostError::BadState));
        }
        // What was placed early under the good key may be there, but is not announced.
        if !extended {
            assert_eq!(net.bytes(1, 512 << 10, 3000), [0; 3000]);
        }
    }
}

#[test]
fn a_send_longer_than_its_receive() {
    let mut net = Net::new(&Setup::default());
    net.receive(1, &ReceiveWr::new(1, net.sge(1, 0, 1500)));
    net.receive(1, &ReceiveWr::new(2, net.sge(1, 0, 1500)));
    net.send(0, &write(&net, 3, 1501, SendOp::Send));
    done(&mut net);
    assert_eq!(net.outcomes(1, false), [(1, Status::LocalLength), (2, Status::Flushed)]);
    assert_eq!(net.outcomes(0, true), [(3, Status::RemoteInvalidRequest)]);
}

#[test]
fn a_misaligned_atomic_and_a_local_key() {
    let mut net = Net::new(&Setup::default());
    let remote = Remote { addr: 4, rkey: net.ends[1].key.0 };
    net.send(0, &SendWr::new(1, SendOp::FetchAdd(2), net.sge(0, 0, 8), remote));
    done(&mut net);
    assert_eq!(net.outcomes(0, true), [(1, Status::RemoteInvalidRequest)]);

    let mut net = Net::new(&Setup::default());
    let mut wr = write(&net, 1, 100, SendOp::Write);
    net.send(0, &wr);
    wr.id = 2;
    wr.sges[0].addr = (1 << 20) - 50;
    net.send(0, &wr);
    done(&mut net);
    assert_eq!(net.outcomes(0, true).last(), Some(&(2, Status::LocalProtection)));
    assert_eq!(net.ends[1].device.state(net.ends[1].qpn), Some(QpState::Rts), "the peer is not told");
}

#[test]
fn silence_is_given_up_and_err_is_silent() {
    for extended in [false, true] {
        let rts = Rts { retry_count: 3, ..Rts::default() };
        let mut net = Net::new(&Setup { extended, rts, ..Setup::default() });
        net.faults = Faults { cut: true, ..Faults::default() };
        net.receive(0, &ReceiveWr { id: 9, ..ReceiveWr::default() });
        for id in 0..5 {
            net.send(0, &write(&net, id, 3000, SendOp::Write));
        }
        done(&mut net);
        let flushed = |id| (id, Status::Flushed);
        let expected = [(0, Status::RetryExceeded), flushed(1), flushed(2), flushed(3), flushed(4)];
        assert_eq!(net.outcomes(0, true), expected);
        assert_eq!(net.outcomes(0, false), [flushed(9)]);
        let took = net.now.since(Time::ZERO);
        let range = if extended { 1_000..1_200 } else { 60..70 };
        assert!(range.contains(&(took.as_nanos() / 1_000_000)), "{took:?}");
        net.faults = Faults::default();
        let sent = net.sent[0];
        net.send(1, &SendWr::new(1, SendOp::Write, net.sge(1, 0, 64), Remote { addr: 0, rkey: net.ends[0].key.0 }));
        net.run_for(Span::from_millis(10));
        assert_eq!(net.sent[0], sent);
        assert_eq!(net.bytes(0, 0, 64), [0; 64], "nothing is placed in ERR");
    }
}

#[test]
fn a_cut_that_heals_is_survived() {
    for extended in [false, true] {
        let mut net = Net::new(&Setup { extended, ..Setup::default() });
        let data = net.fill(0, 0, 100_000);
        net.send(0, &write(&net, 1, 100_000, SendOp::Write));
        net.faults.cut = true;
        net.run_for(Span::from_millis(50));
        net.faults.cut = false;
        done(&mut net);
        assert_eq!(net.outcomes(0, true), [(1, Status::Success)]);
        assert_eq!(net.bytes(1, 512 << 10, 100_000), data);
    }
}

#[test]
fn sqd_finishes_what_was_started() {
    let mut net = Net::new(&Setup::default());
    let qpn = net.ends[0].qpn;
    net.send(0, &write(&net, 1, 5000, SendOp::Write));
    net.pump();
    net.ends[0].device.modify_qp(qpn, Transition::Sqd).expect("from RTS");
    net.send(0, &write(&net, 2, 5000, SendOp::Write));
    assert!(!net.ends[0].device.is_drained(qpn));
    done(&mut net);
    assert!(net.ends[0].device.is_drained(qpn));
    assert_eq!(net.outcomes(0, true), [(1, Status::Success)]);
    net.ends[0].device.modify_qp(qpn, Transition::Resume).expect("from SQD");
    done(&mut net);
    assert_eq!(net.outcomes(0, true), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn marks_become_notifications_or_counts() {
    let mut net = Net::new(&Setup::default());
    let log = tap(&mut net, |_, _| false);
    net.faults.mark = 1000;
    net.send(0, &write(&net, 1, 64 << 10, SendOp::Write));
    done(&mut net);
    let notices: Vec<_> = log.borrow().iter().filter(|(f, b)| *f == 1 && b[0] == Opcode::CNP.0).cloned().collect();
    assert_eq!(notices.len(), 1, "at most one in 50 us");
    assert_eq!((notices[0].1.len(), notices[0].1[4]), (32, 0x40));
    assert!(log.borrow().iter().any(|(f, b)| *f == 1 && b[0] == 0x11 && b[4] == 0x40), "BECN in acknowledgements");
    assert_eq!(net.ends[0].device.counters().cnp_handled, 1);
    assert!(net.ends[0].cqes[0].marks.is_some_and(|(_, ce)| ce > 0));

    let mut net = Net::new(&Setup { extended: true, ..Setup::default() });
    let log = tap(&mut net, |_, _| false);
    let mut total = (0, 0);
    for id in 0..20 {
        net.faults.mark = 300;
        net.send(0, &write(&net, id, 16 << 10, SendOp::Write));
        done(&mut net);
        let (packets, ce) = net.ends[0].cqes[id as usize].marks.expect("known");
        assert!(ce <= packets, "{ce} marks on {packets} packets");
        total = (total.0 + packets, total.1 + ce);
    }
    // One more, so that the last count is told.
    net.faults.mark = 0;
    net.send(0, &write(&net, 99, 16 << 10, SendOp::Write));
    done(&mut net);
    let (packets, ce) = net.ends[0].cqes[20].marks.expect("known");
    total = (total.0 + packets, total.1 + ce);
    assert_eq!(total.0, 21 * 16);
    // Acknowledgements are marked as well, and count at their own receiver only.
    assert_eq!(u64::from(total.1), net.ends[1].device.counters().ecn_marked_packets);
    assert!(total.1 > 50);
    assert!(opcodes(&log, 1).iter().all(|&op| op != Opcode::CNP.0));
}

#[test]
fn strangers_are_not_heard() {
    let mut net = Net::new(&Setup::default());
    net.fill(0, 0, 64);
    let log = tap(&mut net, |_, _| true);
    net.send(0, &write(&net, 1, 64, SendOp::Write));
    net.pump();
    let bytes = log.borrow()[0].1.clone();
    let good = net.ends[0].addr;
    net.ends[0].addr = "10.0.0.9".parse().expect("address");
    net.deliver(1, 2, &bytes);
    assert_eq!(net.ends[1].device.counters().wrong_source, 1);
    net.ends[0].addr = good;
    let mut foreign = bytes.clone();
    foreign[2..4].copy_from_slice(&[0x80, 0x01]);
    net.deliver(1, 2, &foreign);
    let mut other_qp = bytes.clone();
    other_qp[5] ^= 1;
    net.deliver(1, 2, &other_qp);
    assert_eq!(net.ends[1].device.counters().dropped_pkts, 2);
    assert_eq!(net.bytes(1, 512 << 10, 64), [0; 64]);
    net.deliver(1, 2, &bytes);
    assert_ne!(net.bytes(1, 512 << 10, 64), [0; 64]);
}

#[test]
fn a_revoked_key_stops_a_read_under_way() {
    let mut net = Net::new(&Setup { memory: 2 << 20, ..Setup::default() });
    let wr = SendWr::new(1, SendOp::Read, net.sge(0, 0, 1 << 20), Remote { addr: 0, rkey: net.ends[1].key.0 });
    net.send(0, &wr);
    net.pump();
    // The request arrives, one burst of responses leaves, then the owner takes its memory back.
    net.run_for(Span::from_micros(5));
    let key = net.ends[1].key;
    net.ends[1].device.memory_mut().revoke(key);
    done(&mut net);
    assert_eq!(net.outcomes(0, true), [(1, Status::RemoteAccess)]);
    assert_eq!(net.ends[1].device.state(net.ends[1].qpn), Some(QpState::Err));
}

#[test]
fn completions_that_were_not_polled_keep_their_place() {
    let mut net = Net::new(&Setup { depth: 4, ..Setup::default() });
    let wr = write(&net, 1, 8, SendOp::Write);
    let (qpn, other) = (net.ends[0].qpn, net.ends[1].qpn);
    for _ in 0..4 {
        net.send(0, &wr);
    }
    assert_eq!(net.ends[0].device.post_send(qpn, &wr), Err(PostError::Full));
    // Packets go both ways, but nobody polls the completion queue.
    let mut out = vec![0; 65_536];
    let mut now = Time::from_nanos(1);
    for _ in 0..4 {
        for from in 0..2 {
            now += Span::from_micros(1);
            while let Some(t) = net.ends[from].device.poll_transmit(now, 65_000, &mut out) {
                for bytes in out[..t.len].chunks(t.segment) {
                    net.deliver(1 - from, 2, bytes);
                }
            }
        }
    }
    assert_eq!(net.ends[0].device.post_send(qpn, &wr), Err(PostError::Full), "four completions wait");
    net.pump();
    assert_eq!(net.ends[0].cqes.len(), 4);
    net.send(0, &wr);
    assert_eq!(net.ends[1].device.post_send(qpn, &wr), Err(PostError::NoQp));
    net.ends[1].device.destroy_qp(other).expect("it lives");
    assert_eq!(net.ends[1].device.state(other), None);
    net.run_for(Span::from_millis(1));
    assert_eq!(net.ends[1].device.counters().dropped_pkts, 1);
}

#[test]
fn parameters_and_states_are_checked() {
    let mut net = Net::new(&Setup::default());
    let (qpn, device) = (net.ends[0].qpn, &mut net.ends[0].device);
    assert!(device.modify_qp(qpn, Transition::Init).is_err());
    device.modify_qp(qpn, Transition::Reset).expect("always");
    assert!(device.modify_qp(qpn, Transition::Rtr(Rtr::default())).is_err(), "not from RESET");
    device.modify_qp(qpn, Transition::Init).expect("from RESET");
    assert!(device.modify_qp(qpn, Transition::Rtr(Rtr { mtu: 1000, ..Rtr::default() })).is_err());
    let extension = Some(Extension { feedback_qpn: Qpn::new(2), qkey: 1 });
    device.modify_qp(qpn, Transition::Rtr(Rtr { extension, ..Rtr::default() })).expect("well formed");
    assert!(device.modify_qp(qpn, Transition::Rts(Rts { max_rd_atomic: 0, ..Rts::default() })).is_err());
    device.modify_qp(qpn, Transition::Rts(Rts::default())).expect("well formed");
    let too_many = SendWr { sge_count: 5, ..SendWr::default() };
    assert_eq!(device.post_send(qpn, &too_many), Err(PostError::Invalid));
    let not_eight = SendWr { op: SendOp::FetchAdd(1), ..SendWr::default() };
    assert_eq!(device.post_send(qpn, &not_eight), Err(PostError::Invalid));
}

#[test]
fn reads_outstanding_are_limited_and_a_fence_waits_for_them() {
    let rts = Rts { max_rd_atomic: 2, ..Rts::default() };
    let mut net = Net::new(&Setup { rts, rtr: Rtr { max_dest_rd_atomic: 2, ..Rtr::default() }, ..Setup::default() });
    let log = tap(&mut net, |_, _| false);
    let remote = Remote { addr: 0, rkey: net.ends[1].key.0 };
    for id in 0..5 {
        net.send(0, &SendWr::new(id, SendOp::Read, net.sge(0, id * 4096, 3000), remote));
    }
    let fenced = SendWr { fence: true, ..write(&net, 5, 8, SendOp::Write) };
    net.send(0, &fenced);
    net.send(0, &write(&net, 6, 8, SendOp::Write));
    done(&mut net);
    assert_eq!(net.outcomes(0, true).len(), 7);
    let (mut open, mut seen) = (0i32, Vec::new());
    for (from, bytes) in log.borrow().iter() {
        match (from, bytes[0]) {
            (0, 0x0c) => open += 1,
            (1, 0x0f) => open -= 1,
            (0, 0x0a) => assert_eq!(open, 0, "the fenced WRITE waits"),
            _ => {}
        }
        seen.push(open);
    }
    assert_eq!(seen.iter().max(), Some(&2));
    assert_eq!(net.ends[0].device.counters().retransmits, 0);
}

#[test]
fn a_fenced_queue_pair_is_dead_at_once() {
    for extended in [false, true] {
        let mut net = Net::new(&Setup { extended, ..Setup::default() });
        net.fill(0, 0, 200_000);
        net.receive(1, &ReceiveWr { id: 4, ..ReceiveWr::default() });
        net.send(0, &write(&net, 1, 200_000, SendOp::WriteImm(1)));
        net.pump();
        net.run_for(Span::from_micros(5));
        let qpn = net.ends[1].qpn;
        net.ends[1].device.modify_qp(qpn, Transition::Err).expect("always");
        let before = net.bytes(1, 0, 1 << 20);
        let (sent, marks) = (net.sent[1], net.faults);
        net.faults = Faults { mark: 1000, ..marks };
        net.run_for(Span::from_millis(30));
        assert!(net.bytes(1, 0, 1 << 20) == before, "no byte lands any more");
        assert_eq!(net.sent[1], sent, "and nothing is sent");
        assert_eq!(net.outcomes(1, false), [(4, Status::Flushed)]);
        assert_eq!(net.ends[1].device.poll_event(), None, "the owner knows");
    }
}
