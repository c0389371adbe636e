//! Receivers that are not ready, and requests that are refused, in both directions.

use std::time::Duration;

use planespray::roce::{QpState, SendOp, Status};

use crate::end::Options;
use crate::rig::{Family, Pair, counter, pattern};
use crate::rxe::Ask;

#[test]
fn rxe_is_not_ready_and_then_is() {
    let mut pair = Pair::new(Family::V4);
    pair.end.write(0, &pattern(3000, 5));
    let before = counter("send_rnr_err");
    let id = pair.post(SendOp::Send, 0, 3000);
    pair.until("a NAK", |p| (p.end.counters().rnr_nak_rcvd >= 1).then_some(()));
    pair.rxe.post_receive(9000, 0, 3000);
    let cqe = pair.ours();
    assert_eq!((cqe.id, cqe.status), (id, Status::Success));
    assert_eq!(pair.theirs().id, 9000);
    assert_eq!(pair.rxe.read(0, 3000), pattern(3000, 5));
    assert!(counter("send_rnr_err") > before, "rdma_rxe counts the NAKs that it sends");
}

#[test]
fn we_are_not_ready_and_then_are() {
    for family in [Family::V4, Family::V6] {
        let mut pair = Pair::new(family);
        pair.rxe.write(0, &pattern(3000, 6));
        let id = pair.ask(Ask::WriteImm(4), 0, 3000);
        pair.until("a NAK", |p| (p.end.counters().rnr_nak_sent >= 1).then_some(()));
        pair.end.post_receive(9000, 0, 0);
        let wc = pair.theirs();
        assert!(wc.id == id && wc.is_success(), "{wc:?}");
        assert_eq!(pair.ours().id, 9000);
        assert_eq!(pair.end.read(0, 3000), pattern(3000, 6));
    }
}

#[test]
fn rxe_is_never_ready() {
    let mut pair = Pair::with(Family::V4, &Options { rnr_retry: 2, ..Options::default() }, |_| ());
    let cqe = pair.request(SendOp::Send, 0, 100);
    assert_eq!(cqe.status, Status::RnrRetryExceeded);
    assert_eq!(pair.end.state(), QpState::Err);
    assert_eq!(pair.end.counters().rnr_nak_rcvd, 3, "the first and two more");
}

#[test]
fn we_are_never_ready() {
    let mut pair = Pair::with(Family::V4, &Options { rnr_retry: 2, ..Options::default() }, |_| ());
    let wc = pair.asked(Ask::Send, 0, 100);
    assert!(wc.is_rnr_retry_exceeded(), "{wc:?}");
    assert!(pair.end.counters().rnr_nak_sent >= 2);
}

/// A request of ours that rdma_rxe must refuse, and that must leave its memory as it was.
fn refused_by_rxe(op: SendOp, key: u32, beyond: u64) {
    let mut pair = Pair::new(Family::V4);
    pair.end.write(0, &[9; 64]);
    pair.rxe.write(0, &[7; 64]);
    let (addr, rkey) = (pair.rxe.base() + beyond, pair.rxe.rkey() ^ key);
    pair.end.post(1, op, 0, if matches!(op, SendOp::FetchAdd(_)) { 8 } else { 64 }, addr, rkey);
    pair.end.post(2, SendOp::Write, 0, 64, pair.rxe.base(), pair.rxe.rkey());
    let first = pair.ours();
    assert_eq!((first.id, first.status), (1, Status::RemoteAccess), "{op:?}");
    let second = pair.ours();
    assert_eq!((second.id, second.status), (2, Status::Flushed), "{op:?}");
    assert_eq!(pair.end.state(), QpState::Err);
    assert_eq!(pair.rxe.read(0, 64), [7; 64], "{op:?}");
}

#[test]
fn rxe_refuses_a_key_that_is_not_its_own() {
    // Its keys have an 8-bit variant below the index.
    refused_by_rxe(SendOp::Write, 1, 0);
    refused_by_rxe(SendOp::Read, 1, 0);
    refused_by_rxe(SendOp::FetchAdd(1), 1, 0);
}

#[test]
fn rxe_refuses_what_is_out_of_bounds() {
    refused_by_rxe(SendOp::Write, 0, crate::end::MEMORY as u64 - 63);
    refused_by_rxe(SendOp::Read, 0, crate::end::MEMORY as u64 - 63);
}

/// A request of rdma_rxe's that we must refuse, and that must leave our memory as it was.
fn refused_by_us(ask: Ask, key: u32, beyond: u64) {
    let mut pair = Pair::new(Family::V4);
    pair.rxe.write(0, &[9; 64]);
    pair.end.write(0, &[7; 64]);
    let len = if matches!(ask, Ask::FetchAdd(_)) { 8 } else { 64 };
    let (addr, rkey) = (crate::end::BASE + beyond, pair.end.rkey() ^ key);
    pair.rxe.post(1, ask, 0, len, addr, rkey);
    let wc = pair.theirs();
    assert!(wc.id == 1 && wc.is_remote_access(), "{ask:?}: {wc:?}");
    assert_eq!(pair.end.read(0, 64), [7; 64], "{ask:?}");
    assert_eq!(pair.end.counters().resp_remote_access_errors, 1);
}

#[test]
fn we_refuse_a_key_that_is_not_ours() {
    refused_by_us(Ask::Write, 0x1_0000, 0);
    refused_by_us(Ask::Read, 0x1_0000, 0);
    refused_by_us(Ask::FetchAdd(1), 0x1_0000, 0);
}

#[test]
fn we_refuse_what_is_out_of_bounds() {
    refused_by_us(Ask::Write, 0, crate::end::MEMORY as u64 - 63);
    refused_by_us(Ask::Read, 0, crate::end::MEMORY as u64 - 63);
}

#[test]
fn a_send_longer_than_rxes_receive() {
    let mut pair = Pair::new(Family::V4);
    pair.rxe.post_receive(1, 0, 100);
    let cqe = pair.request(SendOp::Send, 0, 101);
    assert_ne!(cqe.status, Status::Success, "rdma_rxe took 101 bytes into 100: {cqe:?}");
}

#[test]
fn a_send_longer_than_our_receive() {
    let mut pair = Pair::new(Family::V4);
    pair.end.post_receive(1, 0, 100);
    let wc = pair.asked(Ask::Send, 0, 101);
    assert!(!wc.is_success(), "{wc:?}");
    let cqe = pair.ours();
    assert_eq!((cqe.id, cqe.status), (1, Status::LocalLength));
}

#[test]
fn a_queue_pair_that_went_away() {
    let short = Options { retries: 2, timeout: planespray::time::Span::from_millis(20), ..Options::default() };
    let mut pair = Pair::with(Family::V6, &short, |_| ());
    pair.good(SendOp::Write, 0, 64);
    pair.rxe.destroy();
    let cqe = pair.request(SendOp::Write, 0, 64);
    assert_eq!(cqe.status, Status::RetryExceeded);
    // Whatever it still sends finds nobody who minds.
    pair.end.sleep(Duration::from_millis(1));
    pair.end.turn();
}
