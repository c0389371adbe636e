//! Handshakes in which both ends probe.

use super::handshake::Message;
use super::tests::{START, deadline, established, feed, hello, lanes, run};
use super::*;

fn ends() -> (Handshake, Handshake) {
    let end = |role, name, ports: &[(u16, u16, &str)]| {
        let mut hello = hello(name, ports);
        hello.features |= FEATURE_PROBES;
        Handshake::new(role, Auth::Insecure, hello, deadline()).expect("valid")
    };
    let a = end(Role::Initiator, "left", &[(0, 0, "10.0.0.1"), (0, 1, "fd00::1")]);
    // Nothing arrives at 10.0.0.2: `serve` says so.
    let b = end(Role::Responder, "right", &[(0, 1, "fd00::2"), (0, 0, "10.0.0.2")]);
    (a, b)
}

/// Both have said Hello, and nothing more.
fn greeted() -> (Handshake, Handshake) {
    let (mut a, mut b) = ends();
    for _ in 0..3 {
        feed(&mut a, &mut b).expect("taken");
        feed(&mut b, &mut a).expect("taken");
    }
    assert!(matches!(a.poll(START), Ok(Step::OpenProbes)));
    assert!(matches!(b.poll(START), Ok(Step::OpenProbes)));
    (a, b)
}

#[test]
fn lanes_are_made_only_where_probes_arrived() {
    let (a, b) = ends();
    let (a, b) = run(a, b, |_| usize::MAX);
    assert_eq!((a.h.unreached(), b.h.unreached()), (vec![(0, 1)], vec![(1, 0)]));
    let planned = a.h.plan().to_vec();
    assert!(planned.iter().all(|l| (l.initiator_port, l.responder_port) == (1, 0)) && !planned.is_empty());
    assert_eq!((a.h.mtu(&planned[0]), b.h.mtu(&planned[0])), (Some(4096), Some(4096)));
    let ((a, _), (b, _)) = established(a, b);
    assert_eq!(a.plan, b.plan);
}

#[test]
fn an_end_that_does_not_probe_is_taken_at_its_word() {
    let (a, _) = ends();
    let b = super::tests::responder(Auth::Insecure);
    let (a, b) = run(a, b, |_| usize::MAX);
    let ((a, _), _) = established(a, b);
    assert_eq!(a.plan.len(), 18, "both planes");
}

#[test]
fn any_cut_of_the_stream_gives_the_same() {
    let (a, b) = ends();
    let (a, b) = run(a, b, |_| 1);
    established(a, b);
}

#[test]
fn two_ends_that_never_meet_say_so_both() {
    let end = |role, addr: &str| {
        let mut hello = hello("end", &[(0, 0, addr)]);
        hello.features = FEATURE_PROBES;
        Handshake::new(role, Auth::Insecure, hello, deadline()).expect("valid")
    };
    let (a, b) = run(end(Role::Initiator, "10.0.0.1"), end(Role::Responder, "10.0.0.2"), |_| usize::MAX);
    for error in [a.error, b.error] {
        let error = error.expect("nothing arrives");
        assert!(matches!(error, BootstrapError::Unreachable { .. }), "{error:?}");
        let text = error.to_string();
        for part in ["10.0.0.1", "10.0.0.2", "firewall", "4791"] {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
    }
}

#[test]
fn what_a_hostile_end_says_is_refused() {
    let good = PairReport { from: 1, to: 0, burst: 0xff, counted: true, mtu: 4096 };
    // Instead of its probe ports.
    for message in [
        Message::Probes(vec![9]),
        Message::Probes(vec![9, 0]),
        Message::Probes(vec![9, 9, 9]),
        Message::Report(vec![good]),
        Message::Lanes(Vec::new()),
        Message::Ready,
    ] {
        let (mut a, mut b) = greeted();
        a.say(&message).expect("said");
        assert!(matches!(feed(&mut a, &mut b), Err(BootstrapError::Malformed { .. })));
    }
    // Instead of its report: also one on ports that cannot meet, and one before we said where we take probes.
    for (ready, message) in [
        (true, Message::Report(vec![PairReport { from: 0, ..good }])),
        (true, Message::Report(vec![PairReport { mtu: 9000, ..good }])),
        (true, Message::Report(vec![PairReport { from: 200, ..good }])),
        (true, Message::Lanes(Vec::new())),
        (true, Message::Probes(vec![9, 9])),
        (false, Message::Report(vec![good])),
    ] {
        let (mut a, mut b) = greeted();
        if ready {
            b.provide_probes(vec![9, 9]).expect("its turn");
        }
        a.say(&Message::Probes(vec![9, 9])).expect("said");
        feed(&mut a, &mut b).expect("probe ports");
        a.say(&message).expect("said");
        assert!(matches!(feed(&mut a, &mut b), Err(BootstrapError::Malformed { .. })));
    }
    // Lanes before it heard our report: nobody can know the plan.
    let (mut a, mut b) = greeted();
    b.provide_probes(vec![9, 9]).expect("its turn");
    a.say(&Message::Probes(vec![9, 9])).expect("said");
    a.say(&Message::Report(vec![good])).expect("said");
    let early = lanes(&a);
    a.say(&Message::Lanes(early)).expect("said");
    assert!(matches!(feed(&mut a, &mut b), Err(BootstrapError::Malformed { .. })));
}

#[test]
fn our_own_calls_out_of_turn_change_nothing() {
    let (mut a, mut b) = greeted();
    assert!(matches!(a.report(Vec::new()), Err(BootstrapError::Invalid { .. })));
    assert!(matches!(a.provide_lanes(Vec::new()), Err(BootstrapError::Invalid { .. })));
    assert!(matches!(a.provide_probes(vec![9]), Err(BootstrapError::Invalid { .. })));
    assert!(matches!(a.provide_probes(vec![9, 0]), Err(BootstrapError::Invalid { .. })));
    assert_eq!(a.waiting_for(), Waiting::Ourselves);
    a.provide_probes(vec![9, 9]).expect("its turn");
    assert!(matches!(a.provide_probes(vec![9, 9]), Err(BootstrapError::Invalid { .. })));
    assert_eq!(a.waiting_for(), Waiting::Probes);
    feed(&mut a, &mut b).expect("taken");
    assert!(matches!(b.poll(START), Ok(Step::OpenProbes)));
    assert!(matches!(b.report(Vec::new()), Err(BootstrapError::Invalid { .. })), "before it said where it takes ours");
}
