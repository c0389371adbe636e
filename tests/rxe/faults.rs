//! Networks that lose, spoil and mark packets.

use planespray::roce::{SendOp, Status};
use planespray::time::Span;

use crate::end::Options;
use crate::rig::{Family, Pair, bursts_travel_whole, counter, pattern, run};
use crate::rxe::Ask;

/// Messages in each direction.
const MESSAGES: u64 = 12;
const LEN: u32 = 24_000;

/// WRITEs, SENDs and READs in both directions at once while plane 0 misbehaves; all must end well.
fn traffic(family: Family, fault: &str) -> Pair {
    let options = Options { timeout: Span::from_millis(100), retries: 20, ..Options::default() };
    let mut pair = Pair::with(family, &options, |_| ());
    // Else a fault would hit a whole burst.
    bursts_travel_whole(false);
    let (ours, theirs) = (pattern(MESSAGES as usize * LEN as usize, 7), pattern(MESSAGES as usize * LEN as usize, 8));
    // Ours is in the first MiB of our memory and goes to the first of theirs; theirs goes by the second.
    pair.end.write(0, &ours);
    pair.rxe.write(1 << 20, &theirs);
    run(&format!("plane {fault}"));
    let (mut want_ours, mut want_theirs) = (Vec::new(), Vec::new());
    for i in 0..MESSAGES {
        let offset = i * u64::from(LEN);
        let there = (1 << 20) + offset;
        match i % 3 {
            0 => {
                want_ours.push(pair.post(SendOp::Write, offset, LEN));
                want_theirs.push(pair.ask(Ask::Write, there, LEN));
            }
            1 => {
                let (a, b) = (pair.id(), pair.id());
                pair.rxe.post_receive(a, offset, LEN);
                pair.end.post_receive(b, there, LEN);
                want_theirs.push(a);
                want_ours.push(b);
                want_ours.push(pair.post(SendOp::Send, offset, LEN));
                want_theirs.push(pair.ask(Ask::Send, there, LEN));
            }
            _ => {
                want_ours.push(pair.post(SendOp::Read, there, LEN));
                want_theirs.push(pair.ask(Ask::Read, offset, LEN));
            }
        }
    }
    let (mut got_ours, mut got_theirs) = (Vec::new(), Vec::new());
    let (all_ours, all_theirs) = (want_ours.len(), want_theirs.len());
    pair.until("all completions", |p| {
        while let Some(cqe) = p.end.poll() {
            assert_eq!(cqe.status, Status::Success, "{cqe:?}");
            got_ours.push(cqe.id);
        }
        while let Some(wc) = p.rxe.poll() {
            assert!(wc.is_success(), "{wc:?}");
            got_theirs.push(wc.id);
        }
        (got_ours.len() == all_ours && got_theirs.len() == all_theirs).then_some(())
    });
    for list in [&mut got_ours, &mut got_theirs, &mut want_ours, &mut want_theirs] {
        list.sort_unstable();
    }
    assert_eq!((got_ours, got_theirs), (want_ours, want_theirs), "each once");
    assert!(pair.rxe.read(0, ours.len()) == ours, "our bytes at rdma_rxe");
    assert!(pair.end.read(1 << 20, theirs.len()) == theirs, "rdma_rxe's bytes at ours");
    run("plane clear 0");
    pair
}

fn loss(family: Family) {
    let names = ["out_of_seq_request", "rcvd_seq_err", "duplicate_request", "completer_retry_err"];
    let before = names.map(counter);
    let pair = traffic(family, "loss 0 3%");
    let ours = pair.end.counters();
    assert!(ours.retransmits > 0 && ours.out_of_sequence > 0, "{ours:?}");
    let moved: Vec<u64> = names.iter().zip(before).map(|(name, was)| counter(name) - was).collect();
    println!("ours {ours:?}\nrdma_rxe {names:?} {moved:?}");
    // It saw ours missing, and was told of its own.
    assert!(moved[0] > 0 && moved[1] > 0, "{names:?} {moved:?}");
}

#[test]
fn loss_v4() {
    loss(Family::V4);
}

#[test]
fn loss_v6() {
    loss(Family::V6);
}

/// A bit of one packet in thirty flips on the way: the ICRC finds it at both ends.
fn corruption(family: Family) {
    let pair = traffic(family, "corrupt 0 3%");
    let sockets = pair.end.socket_counters();
    // Some flips hit the headers below RoCE, or a packet of another kind.
    assert!(sockets.bad_icrc + sockets.parse_errors > 0, "{sockets:?}");
}

#[test]
fn corruption_v4() {
    corruption(Family::V4);
}

#[test]
fn corruption_v6() {
    corruption(Family::V6);
}

/// CE on every packet. We notice and send notifications; rdma_rxe does neither, and is not disturbed by them.
#[test]
fn marks() {
    let pair = traffic(Family::V4, "ecn 0");
    let ours = pair.end.counters();
    assert!(ours.ecn_marked_packets > 0 && ours.cnp_sent > 0, "{ours:?}");
    assert_eq!((ours.cnp_handled, ours.becn_handled), (0, 0), "rdma_rxe 6.1 and 6.12 never say that they saw a mark");
}
