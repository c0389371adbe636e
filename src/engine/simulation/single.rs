//! Single promises, each with its numbers.

use super::plan::Message;
use super::random::config;
use super::tests::{all, must};
use super::world::{Shape, World, address};
use crate::class::Class;
use crate::engine::{Ended, OpId, SessionState};
use crate::mem::Region;
use crate::spray::{Failure, Health, SessionConfig, Subject};
use crate::time::{Span, Time};

fn shape() -> Shape {
    Shape { plain: true, sloth: Span::from_micros(10), slow_fence: Span::from_micros(100), ..Shape::default() }
}

/// The default thresholds at a round trip below 1 ms: no message waits for longer than 50 ms because of it.
#[test]
fn a_silent_plane_or_path_is_left_within_50_ms() {
    all("quick", 200);
    // Its lanes were once found silent one after the other.
    must(715, "quick");
}

/// Nothing is given up while nothing comes from anywhere, and all goes on once a plane is back.
#[test]
fn all_planes_dark_for_five_seconds_cost_nothing_but_time() {
    for seed in 0..40 {
        must(seed, "dark");
    }
}

#[test]
fn draining_planes_is_no_failure() {
    for seed in 0..100 {
        must(seed, "drains");
    }
}

fn cut(world: &World, plane: u8) {
    world.net.cut(address(plane, 0), address(plane, 1));
    world.net.cut(address(plane, 1), address(plane, 0));
}

fn heal(world: &World, plane: u8) {
    world.net.heal_between(address(plane, 0), address(plane, 1));
    world.net.heal_between(address(plane, 1), address(plane, 0));
}

/// A message from end 0 to end 1: both operations.
fn message(world: &mut World, len: usize) -> [(usize, OpId); 2] {
    let now = world.now;
    let (class, channel) = (Class::Bulk, 0);
    let m = Message { from: 0, channel, class, eager: false, send_at: now, receive_at: now, len, capacity: len };
    let (from, to) = (Region::from_vec(vec![7; len]), Region::from_vec(vec![0; len]));
    let (here, there) = (world.register(0, &from), world.register(1, &to));
    [(1, world.receive(&m, &to, there)), (0, world.send(&m, &from, here))]
}

fn run_for(world: &mut World, span: Span) {
    let until = world.now + span;
    while world.step(until) {}
}

/// A peer that stays silent everywhere: every operation ends with a typed error, in time.
#[test]
fn a_peer_that_stays_silent_ends_the_session() {
    let config = SessionConfig { session_timeout: Span::from_secs(2), ..config(1, true) };
    let mut world = World::new(shape(), config);
    let early = message(&mut world, 50_000);
    run_for(&mut world, Span::from_millis(10));
    for (side, op) in early {
        assert_eq!(world.take(side, op), Some(Ok(50_000)));
    }
    cut(&world, 0);
    cut(&world, 1);
    let late = message(&mut world, 50_000);
    run_for(&mut world, Span::from_millis(1900));
    assert!(late.iter().all(|&(side, op)| world.take(side, op).is_none()), "not yet");
    run_for(&mut world, Span::from_millis(400));
    let silent = Ended::Failed(Failure::Silent { after: Span::from_secs(2) });
    assert_eq!(world.take(late[1].0, late[1].1), Some(Err(silent)));
    let end = &world.ends[0];
    assert_eq!(end.core.state(end.session), Some(SessionState::Ended(silent)));
    let suspects = end.core.log().since(0).0.filter(|e| e.transition.subject == Subject::Peer);
    assert_eq!(suspects.filter(|e| e.transition.to == Health::Suspect).count(), 1, "the log says why");
}

/// A plane that comes and goes a hundred times in a minute: no error, and as many lanes as ever.
#[test]
fn a_hundred_flaps_cost_no_message_and_no_memory() {
    let mut world = World::new(shape(), config(2, true));
    let lanes = world.ends[0].lanes.len();
    let mut waiting = Vec::new();
    for flap in 0..100u64 {
        cut(&world, 0);
        waiting.extend(message(&mut world, 30_000));
        run_for(&mut world, Span::from_millis(300));
        heal(&world, 0);
        waiting.extend(message(&mut world, 30_000));
        run_for(&mut world, Span::from_millis(300));
        waiting.retain(|&(side, op)| match world.take(side, op) {
            None => true,
            Some(result) => {
                assert_eq!(result, Ok(30_000), "flap {flap}");
                false
            }
        });
        for end in &world.ends {
            let session = end.core.session(end.session).expect("it lives");
            assert_eq!((session.failure(), session.stats().lanes.len()), (None, lanes));
        }
    }
    assert!(waiting.is_empty());
    // Held down at first, then all of it is back.
    run_for(&mut world, Span::from_secs(12));
    for end in &world.ends {
        let stats = end.core.session(end.session).expect("it lives").stats();
        assert!(stats.lanes.iter().all(|l| l.alive), "everything has returned");
    }
    assert!(world.now > Time::from_nanos(60_000_000_000));
}
