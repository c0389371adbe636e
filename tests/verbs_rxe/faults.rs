//! Planes that lose packets, lose carrier, are slow, and mark.

use planespray::lanes::{LaneEvent, Op, PortId, Status};
use planespray::time::Span;

use crate::cases::traffic::{self, Load};
use crate::rig::{PATIENCE, Shape, Yard};
use crate::rxe::{GIVES_UP, Rxe, over, run};

const LEN: usize = 64 << 10;

fn on(port: u8) -> Shape {
    Shape { port, ..Shape::default() }
}

/// A WRITE that must succeed.
fn works(rig: &mut Rxe, yard: &Yard, seed: u64) {
    yard.near.fill(0, LEN, seed);
    let id = rig.post(0, yard.pair.lane[0], Op::Write, yard.near.at(0, LEN as u32), yard.there(0));
    rig.success(0, id);
    yard.far.check(0, LEN, seed, "after a WRITE");
}

/// Every packet of a plane vanishes, and nobody says so: its lane ends by itself, in time, and the other plane's goes on.
#[test]
fn a_plane_goes_silent() {
    let mut rig = over(2, 1, |_| {});
    let (dead, live) = (rig.yard(on(0), LEN), rig.yard(on(1), LEN));
    works(&mut rig, &dead, 1);
    run("plane loss 0 100%");
    let since = rig.now;
    let receive = rig.receive(0, dead.pair.lane[0], None);
    let ids: Vec<u64> =
        (0..3).map(|_| rig.post(0, dead.pair.lane[0], Op::Write, dead.near.at(0, 4096), dead.there(0))).collect();
    works(&mut rig, &live, 2);
    assert_eq!(rig.wait(0, ids[0]).status, Status::RetryExceeded);
    let took = rig.now.since(since);
    assert!(took < GIVES_UP, "{took:?}");
    println!("given up after {took:?}");
    rig.all(0, &ids[1..], Status::Flushed);
    rig.all(0, &[receive], Status::Flushed);
    assert_eq!(rig.lane_error(0, dead.pair.lane[0]), Status::RetryExceeded);
    works(&mut rig, &live, 3);

    run("plane clear 0");
    rig.part(&dead.pair);
    let again = rig.yard(on(0), LEN);
    works(&mut rig, &again, 4);
}

/// Waits for a port to say something; how long it took.
fn port_event(rig: &mut Rxe, end: usize, want: LaneEvent) -> Span {
    // The time that the last command took is not the port's.
    rig.step(rig.now);
    let since = rig.now;
    loop {
        if rig.next_event(end) == Some(want) {
            return rig.now.since(since);
        }
        rig.step(rig.now + Span::from_millis(10));
        assert!(rig.now.since(since) < PATIENCE, "no {want:?} at end {end}");
    }
}

/// A switch port goes down: both ends are told at once, and told when it is back.
#[test]
fn a_plane_loses_carrier() {
    let mut rig = over(2, 1, |_| {});
    let (dead, live) = (rig.yard(on(0), LEN), rig.yard(on(1), LEN));
    works(&mut rig, &dead, 1);
    run("plane down 0");
    for end in 0..2 {
        let took = port_event(&mut rig, end, LaneEvent::PortDown(PortId(0)));
        println!("end {end} knew after {took:?}");
    }
    works(&mut rig, &live, 2);
    let id = rig.post(0, dead.pair.lane[0], Op::Write, dead.near.at(0, 4096), dead.there(0));
    let status = rig.wait(0, id).status;
    assert_ne!(status, Status::Success);
    run("plane up 0");
    for end in 0..2 {
        port_event(&mut rig, end, LaneEvent::PortUp(PortId(0)));
    }
    rig.part(&dead.pair);
    let again = rig.yard(on(0), LEN);
    works(&mut rig, &again, 3);
}

/// Losses are made good by the device.
#[test]
fn a_plane_loses_some_packets() {
    let mut rig = over(2, 1, |_| {});
    run("plane loss 0 1%");
    let tally = traffic::run(&mut rig, 5, Load { requests: 16, longest: 16 << 10, ..Load::default() });
    println!("{tally:?}");
    rig.assert_no_events();
    run("plane clear 0");
}

/// A slow plane is slow, and the other is not.
#[test]
fn a_plane_is_slow() {
    let mut rig = over(2, 1, |_| {});
    let (slow, fast) = (rig.yard(on(0), LEN), rig.yard(on(1), LEN));
    run("plane rate 0 10mbit");
    let mut took = [Span::ZERO; 2];
    for (yard, took) in [&slow, &fast].into_iter().zip(&mut took) {
        let since = rig.now;
        for seed in 0..6 {
            works(&mut rig, yard, seed);
        }
        *took = rig.now.since(since);
    }
    println!("slow {:?}, fast {:?}", took[0], took[1]);
    // 6 x 64 KiB less the first burst of 64 KB, at 10 Mb/s.
    assert!(took[0] > Span::from_millis(200), "{:?} is faster than the plane", took[0]);
    assert!(took[1] < took[0], "{took:?}");
    run("plane clear 0");
}

/// Every packet is marked: lanes send packets that can be, the device does not tell, and nothing else changes.
#[test]
fn a_plane_marks() {
    let mut rig = over(2, 2, |_| {});
    let yard = rig.yard(on(0), LEN);
    // The neighbours know each other now: what is not ECN-capable does not get through from here on.
    works(&mut rig, &yard, 1);
    run("plane ecn 0");
    works(&mut rig, &yard, 2);
    let tally = traffic::run(&mut rig, 6, Load { requests: 8, longest: 8 << 10, ..Load::default() });
    assert_eq!(tally.marks, 0);
    rig.assert_no_events();
    run("plane clear 0");
}
