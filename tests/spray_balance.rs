//! How chunks are shared out, what happens when lanes die, and that no channel can stop another.
#[path = "support/ideal.rs"]
mod ideal;

use ideal::{Link, World, filled, links};
use planespray::class::Class;
use planespray::lanes::Window;
use planespray::mem::Region;
use planespray::spray::{DoneKind, Event, Failure, LaneKind, PeerReason, Recv, Send, SessionConfig, Source};

fn send(world: &mut World, side: usize, channel: u32, class: Class, len: u64, token: u64) {
    let region = filled(token, len);
    let mr = world.register(side, &region);
    let local = Source { mr, region, offset: 0, len };
    let msg = Send { channel, class, local, token, rendezvous_only: false };
    let now = world.time();
    world.ends[side].session.send(now, &msg).expect("taken");
    world.pump(side);
}

fn receive(world: &mut World, side: usize, channel: u32, capacity: u64, token: u64) -> (Region, Window) {
    let region = Region::from_vec(vec![0; capacity as usize]);
    let mr = world.register(side, &region);
    let window = world.open(side, mr, 0, capacity);
    let r = Recv { channel, mr, region: region.clone(), offset: 0, capacity, window, token, ordered: false };
    let now = world.time();
    world.ends[side].session.receive(now, &r).expect("taken");
    world.pump(side);
    (region, window)
}

/// Sends `count` messages of `len` bytes and returns the bytes that each data lane carried.
fn shares(fabric: Vec<Link>, count: u64, len: u64) -> Vec<u64> {
    let data: Vec<bool> = fabric.iter().map(|l| l.kind == LaneKind::Data).collect();
    let mut world = World::new(SessionConfig::default(), fabric, 7);
    for i in 0..count {
        receive(&mut world, 1, 1, len, i);
        send(&mut world, 0, 1, Class::Bulk, len, i);
    }
    world.run();
    let done = world.ends[1].dones.iter().filter(|(_, d)| d.result == Ok(len)).count() as u64;
    assert_eq!(done, count);
    let posted = world.ends[0].posted.iter().zip(data);
    posted.filter(|(_, data)| *data).map(|(p, _)| p.1).collect()
}

fn fabric(data: usize) -> Vec<Link> {
    let mut fabric = links(&[Class::Bulk], 1, 0);
    fabric.extend((0..data).map(|i| Link::new(Class::Bulk, LaneKind::Data, (i % 2) as u8)));
    fabric
}

fn assert_equal(shares: &[u64]) {
    let mean = shares.iter().sum::<u64>() / shares.len() as u64;
    for &share in shares {
        assert!(share.abs_diff(mean) * 10 <= mean, "not within a tenth: {shares:?}");
    }
}

#[test]
fn equal_lanes_get_equal_shares() {
    for data in [2, 4, 16, 40] {
        assert_equal(&shares(fabric(data), 4, 16 << 20));
    }
    // Also of messages that take one chunk each.
    assert_equal(&shares(fabric(4), 2000, 16 << 10));
}

#[test]
fn equal_lanes_with_jitter_get_equal_shares() {
    let mut noisy = fabric(8);
    for link in &mut noisy {
        link.jitter = 3_000;
    }
    assert_equal(&shares(noisy, 8, 16 << 20));
}

#[test]
fn lanes_without_telemetry_get_equal_shares() {
    let mut silent = fabric(8);
    for link in &mut silent {
        link.telemetry = false;
    }
    assert_equal(&shares(silent, 4, 16 << 20));
}

#[test]
fn a_lane_without_telemetry_is_explored() {
    let mut mixed = fabric(4);
    mixed[4].telemetry = false;
    let shares = shares(mixed, 4, 16 << 20);
    let least = shares.iter().min().expect("lanes");
    assert!(*least > 1 << 20, "{shares:?}");
}

#[test]
fn a_far_lane_gets_clearly_less() {
    let mut far = fabric(4);
    far[1].delay *= 10;
    let mut world = World::new(SessionConfig::default(), far, 29);
    let mut slowest = 0;
    for i in 0..100 {
        let begin = world.now;
        receive(&mut world, 1, 1, 1 << 20, i);
        send(&mut world, 0, 1, Class::Bulk, 1 << 20, i);
        while world.ends[1].dones.len() <= i as usize {
            assert!(world.step());
        }
        // The first ones have to find out.
        if i >= 20 {
            slowest = slowest.max(world.now - begin);
        }
    }
    let shares: Vec<u64> = world.ends[0].posted[1..].iter().map(|p| p.1).collect();
    let others = shares[1..].iter().sum::<u64>() / 3;
    assert!(shares[0] * 2 < others, "{shares:?}");
    // Two of the other lanes' round trips and the bytes, not one of the far lane's.
    assert!(slowest < 90_000, "{slowest} ns");
}

#[test]
fn a_marked_lane_gets_clearly_less() {
    let mut marked = fabric(4);
    marked[1].ce = 500;
    let shares = shares(marked, 8, 16 << 20);
    let others = shares[1..].iter().sum::<u64>() / 3;
    assert!(shares[0] * 2 < others, "{shares:?}");
}

#[test]
fn a_slow_lane_gets_what_it_can_carry() {
    let mut slow = fabric(4);
    slow[1].ns_per_kib *= 4;
    let shares = shares(slow, 16, 16 << 20);
    let others = shares[1..].iter().sum::<u64>() / 3;
    assert!(shares[0] * 2 < others, "{shares:?}");
    assert!(shares[0] * 10 > others, "{shares:?}");
}

#[test]
fn a_big_message_uses_every_plane_and_a_small_one_one_lane() {
    let all = shares(fabric(8), 1, 4 << 20);
    assert!(all.iter().all(|&s| s > 0), "{all:?}");
    let one = shares(fabric(8), 1, 16 << 10);
    assert_eq!(one.iter().filter(|&&s| s > 0).count(), 1, "{one:?}");
}

/// Channel 1 floods eager messages that nobody receives; channel 2 must go on, in every class and of every size.
#[test]
fn a_flood_on_one_channel_stops_no_other() {
    for (class, other) in [(Class::Bulk, Class::Bulk), (Class::Bulk, Class::Latency)] {
        let config = SessionConfig { control_slots: 16, eager_buffers: 8, ..SessionConfig::default() };
        let mut world = World::new(config, links(&[Class::Bulk, Class::Latency], 2, 2), 3);
        for i in 0..3000 {
            send(&mut world, 0, 1, class, 64, i);
        }
        for i in 0..200 {
            let len = [8, 64, 4096, 100_000][i as usize % 4];
            send(&mut world, 0, 2, other, len, 10_000 + i);
            receive(&mut world, 1, 2, len, 10_000 + i);
        }
        world.run();
        let through = world.ends[1].dones.iter().filter(|(_, d)| d.token >= 10_000 && d.result.is_ok()).count();
        assert_eq!(through, 200);
        // And the flood drains when somebody receives.
        for i in 0..3000 {
            receive(&mut world, 1, 1, 64, i);
        }
        world.run();
        for (side, kind) in [(0, DoneKind::Send), (1, DoneKind::Receive)] {
            let done = world.ends[side].dones.iter().filter(|(_, d)| d.token < 3000 && d.kind == kind);
            assert_eq!(done.filter(|(_, d)| d.result == Ok(64)).count(), 3000);
        }
    }
}

#[test]
fn both_ends_may_flood_at_once() {
    let config = SessionConfig { control_slots: 16, immediates: 16, eager_buffers: 4, ..SessionConfig::default() };
    let mut world = World::new(config, links(&[Class::Bulk], 1, 1), 5);
    world.poll_delay = 50_000;
    for i in 0..2000 {
        for side in 0..2 {
            send(&mut world, side, 1, Class::Bulk, i % 9000, i);
        }
    }
    for i in 0..2000 {
        for side in 0..2 {
            receive(&mut world, side, 1, 9000, i);
        }
    }
    world.run();
    for side in 0..2 {
        assert_eq!(world.ends[side].dones.iter().filter(|(_, d)| d.result.is_ok()).count(), 4000);
    }
}

#[test]
fn a_dead_data_lane_costs_no_message() {
    let (mut replayed, mut survived) = (0, 0);
    for seed in 0..20 {
        let mut world = World::new(SessionConfig::default(), fabric(4), seed);
        world.poll_delay = seed * 1000;
        let mut memory = Vec::new();
        for i in 0..40 {
            memory.push(receive(&mut world, 1, 1, 1 << 20, i).0);
            send(&mut world, 0, 1, Class::Bulk, 1 << 20, i);
        }
        world.run_until(150_000 + seed * 7_000);
        world.kill(2);
        world.run();
        let down = world.ends[0].events.iter().filter(|e| matches!(e, Event::LaneDown { .. })).count();
        assert_eq!(down, 1);
        for side in 0..2 {
            assert_eq!(world.ends[side].dones.len(), 40, "nothing hangs");
            for (_, done) in &world.ends[side].dones {
                assert_eq!(done.result, Ok(1 << 20));
            }
        }
        for (i, region) in memory.iter().enumerate() {
            let mut bytes = vec![0; region.len()];
            region.read_at(0, &mut bytes).expect("in bounds");
            let wrong = (0..1 << 20).find(|&at| bytes[at] != ideal::pattern(i as u64, at as u64));
            assert_eq!(wrong, None, "message {i}, seed {seed}");
        }
        let (sent, got) = (world.ends[0].session.stats().messages, world.ends[1].session.stats().messages);
        assert_eq!((got.duplicate_units, got.late_immediates), (0, 0), "seed {seed}: one carrier at a time");
        replayed += sent.replayed;
        survived += sent.survived;
    }
    assert!(replayed > 0 && survived > 0, "both happened: {replayed} posted again, {survived} had arrived");
}

#[test]
fn control_records_survive_their_lane() {
    for seed in 0..20 {
        let config = SessionConfig { control_slots: 16, ..SessionConfig::default() };
        let mut world = World::new(config, links(&[Class::Bulk], 2, 2), seed);
        world.poll_delay = 20_000;
        let control = world.links.iter().position(|l| l.kind == LaneKind::Control).expect("a control lane");
        for i in 0..300u64 {
            let len = [5, 3000, 70_000][i as usize % 3];
            send(&mut world, 0, 1, Class::Bulk, len, i);
            receive(&mut world, 1, 1, 70_000, i);
            world.run_until(i * 300);
            if i == 50 + seed * 10 {
                world.kill(control);
            }
        }
        world.run();
        for side in 0..2 {
            assert_eq!(world.ends[side].dones.iter().filter(|(_, d)| d.result.is_ok()).count(), 300, "seed {seed}");
        }
    }
}

#[test]
fn a_class_without_lanes_goes_by_those_of_others() {
    for kind in [LaneKind::Control, LaneKind::Data] {
        let mut world = World::new(SessionConfig::default(), links(&[Class::Bulk, Class::Latency], 2, 2), 13);
        let lost: Vec<usize> = (0..world.links.len())
            .filter(|&l| world.links[l].kind == kind && world.links[l].class == Class::Bulk)
            .collect();
        for i in 0..20 {
            receive(&mut world, 1, 1, 1 << 20, i);
            receive(&mut world, 1, 2, 100, 100 + i);
            send(&mut world, 0, 1, Class::Bulk, 1 << 20, i);
        }
        world.run_until(60_000);
        for link in lost {
            world.kill(link);
        }
        world.run_until(200_000);
        for i in 0..20 {
            send(&mut world, 0, 2, Class::Latency, 100, 100 + i);
        }
        world.run();
        for side in 0..2 {
            let dones = &world.ends[side].dones;
            assert_eq!(dones.len(), 40, "nothing hangs at end {side}");
            assert!(dones.iter().all(|(_, d)| d.result.is_ok()), "{kind:?}");
            assert_eq!(world.ends[side].session.failure(), None);
        }
    }
}

#[test]
fn without_any_data_lane_only_short_messages_go() {
    let mut world = World::new(SessionConfig::default(), links(&[Class::Bulk], 2, 1), 14);
    for i in 0..10 {
        receive(&mut world, 1, 1, 1 << 20, i);
        send(&mut world, 0, 1, Class::Bulk, 1 << 20, i);
    }
    world.run_until(60_000);
    for link in 0..world.links.len() {
        if world.links[link].kind == LaneKind::Data {
            world.kill(link);
        }
    }
    world.run();
    assert!(world.ends[0].events.contains(&Event::ClassDown(Class::Bulk)));
    for side in 0..2 {
        assert_eq!(world.ends[side].dones.len(), 10, "nothing hangs at end {side}");
        assert_eq!(world.ends[side].session.failure(), None);
    }
    let failed = world.ends[0].dones.iter().filter(|(_, d)| d.result.is_err()).count();
    assert!(failed > 0);
    for (_, done) in &world.ends[1].dones {
        assert!(matches!(done.result, Ok(_) | Err(Failure::Peer(PeerReason::Lane))), "{done:?}");
    }
}

#[test]
fn a_session_without_control_lanes_is_over() {
    let mut world = World::new(SessionConfig::default(), links(&[Class::Bulk], 1, 2), 17);
    for i in 0..20 {
        receive(&mut world, 1, 1, 1 << 20, i);
        send(&mut world, 0, 1, Class::Bulk, 1 << 20, i);
    }
    world.run_until(30_000);
    world.kill(0);
    world.run();
    for side in 0..2 {
        assert_eq!(world.ends[side].dones.len(), 20, "nothing hangs at end {side}");
        assert!(matches!(world.ends[side].session.failure(), Some(Failure::Lane { .. })));
        assert!(world.ends[side].session.is_drained());
    }
}

#[test]
fn a_destroyed_lane_counts_as_flushed() {
    let mut world = World::new(SessionConfig::default(), fabric(2), 19);
    receive(&mut world, 1, 1, 8 << 20, 0);
    send(&mut world, 0, 1, Class::Bulk, 8 << 20, 0);
    world.run_until(40_000);
    let stats = world.ends[0].session.stats();
    let lane = stats.lanes.iter().find(|l| l.kind == LaneKind::Data && l.in_flight > 0).expect("busy").lane;
    world.destroy(0, lane);
    assert!(world.ends[0].dones.is_empty(), "nobody knows yet what arrived");
    world.run();
    for side in 0..2 {
        assert_eq!(world.ends[side].dones[0].1.result, Ok(8 << 20));
    }
    let got = world.ends[1].session.stats().messages;
    assert_eq!((got.duplicate_units, got.late_immediates), (0, 0), "one carrier at a time");
}

#[test]
fn cancelling_ends_everything_at_once() {
    let mut world = World::new(SessionConfig::default(), fabric(2), 23);
    for i in 0..10 {
        receive(&mut world, 1, 1, 1 << 20, i);
        receive(&mut world, 0, 1, 1 << 20, 100 + i);
        send(&mut world, 0, 1, Class::Bulk, 1 << 20, i);
    }
    world.run_until(30_000);
    world.ends[0].session.cancel_all(Failure::Cancelled);
    world.pump(0);
    let cancelled = world.ends[0].dones.iter().filter(|(_, d)| d.result == Err(Failure::Cancelled)).count();
    let ok = world.ends[0].dones.iter().filter(|(_, d)| d.result.is_ok()).count();
    assert_eq!(cancelled + ok, 20);
    assert!(cancelled >= 10);
    assert!(world.ends[0].session.is_drained());
    // What still completes is ignored.
    world.run_until(60_000);
    assert_eq!(world.ends[0].dones.len(), 20);
}
