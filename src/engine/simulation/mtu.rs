//! A plane that returns and does not take full packets any more.

use super::random::config;
use super::world::{Shape, World, address};
use crate::class::Class;
use crate::engine::OpId;
use crate::lanes::PortId;
use crate::mem::Region;
use crate::spray::{Cause, Health, Subject, Transition};
use crate::time::Span;

/// Enough to want every lane.
const LEN: usize = 400_000;

fn world() -> World {
    let (sloth, slow_fence) = (Span::from_micros(10), Span::from_micros(100));
    World::new(Shape { seed: 5, sloth, slow_fence, ..Shape::default() }, config(5, true))
}

fn both(mut what: impl FnMut(std::net::IpAddr, std::net::IpAddr)) {
    what(address(0, 0), address(0, 1));
    what(address(0, 1), address(0, 0));
}

/// Messages in both directions for this long; all of them arrive.
fn run(world: &mut World, span: Span) {
    let end = world.now + span;
    let mut waiting: Vec<(usize, OpId)> = Vec::new();
    while world.now < end {
        for from in 0..2 {
            let (source, target) = (Region::from_vec(vec![3; LEN]), Region::from_vec(vec![0; LEN]));
            let (into, local) = (world.whole(1 - from, &target), world.whole(from, &source));
            waiting.push((1 - from, world.start_receive(1 - from, 0, into)));
            waiting.push((from, world.start_send(from, 0, Class::Bulk, local, false)));
        }
        let until = world.now + Span::from_millis(20);
        while world.step(until) {}
        waiting.retain(|&(side, op)| {
            world.take(side, op).is_none_or(|result| {
                assert_eq!(result, Ok(LEN as u64));
                false
            })
        });
    }
    let until = world.now + Span::from_millis(200);
    while world.step(until) {}
    for (side, op) in waiting {
        assert_eq!(world.take(side, op), Some(Ok(LEN as u64)));
    }
}

/// The plane is cut, what is under way is lost, and it is back.
fn fail(world: &mut World) {
    let net = world.net.clone();
    both(|a, b| net.cut(a, b));
    run(world, Span::from_millis(200));
    both(|a, b| net.heal_between(a, b));
}

/// Bytes that each port carries within a while.
fn carried(world: &mut World) -> [u64; 2] {
    let count = |world: &World| {
        let end = &world.ends[0];
        let ports = end.core.session(end.session).expect("it lives").stats().ports;
        [ports[0].bytes, ports[1].bytes]
    };
    let before = count(world);
    run(world, Span::from_millis(100));
    let after = count(world);
    [after[0] - before[0], after[1] - before[1]]
}

/// Both planes carry their part.
fn both_used(world: &mut World) {
    let [one, other] = carried(world);
    assert!(one * 4 > other && other * 4 > one, "{one} and {other} bytes");
}

fn steps(world: &World, side: usize, from: u64) -> (Vec<u32>, u64) {
    let (entries, next) = world.ends[side].core.log().since(from);
    let ours = |t: &Transition| matches!(t.subject, Subject::Lane(_)) && t.port == PortId(0) && t.to == Health::Dead;
    let mtu = |t: Transition| if let Cause::Mtu { mtu } = t.cause { Some(mtu) } else { None };
    (entries.map(|e| e.transition).filter(ours).filter_map(mtu).collect(), next)
}

fn whole(world: &World, side: usize) -> bool {
    let end = &world.ends[side];
    end.core.session(end.session).is_some_and(|s| s.stats().lanes.iter().all(|l| l.alive))
}

#[test]
fn a_returning_lane_steps_down_to_what_passes() {
    let mut world = world();
    both_used(&mut world);
    // A payload of 512 bytes and its headers.
    let net = world.net.clone();
    both(|a, b| net.limit(a, b, Some(600)));
    fail(&mut world);
    run(&mut world, Span::from_secs(3));
    let mut next = Vec::new();
    for side in 0..2 {
        let (stepped, end) = steps(&world, side, 0);
        next.push(end);
        assert!(stepped.iter().all(|&mtu| mtu == 1024), "{stepped:?}");
        assert!(whole(&world, side), "all of them carry messages again");
    }
    // Who found out first told the other one.
    assert!(!steps(&world, 0, 0).0.is_empty() || !steps(&world, 1, 0).0.is_empty());
    both_used(&mut world);
    // What passes again is used again, once the lanes were lost once more.
    both(|a, b| net.limit(a, b, None));
    fail(&mut world);
    run(&mut world, Span::from_secs(2));
    for (side, from) in next.into_iter().enumerate() {
        assert_eq!(steps(&world, side, from).0, [], "nothing was too large");
        assert!(whole(&world, side));
    }
    both_used(&mut world);
}
