//! Random workloads through two sessions, against the naive model: the nth send meets the nth receive, whole.
#[path = "support/ideal.rs"]
mod ideal;

use ideal::{Link, World, filled, links, pattern};
use planespray::class::Class;
use planespray::lanes::MrId;
use planespray::mem::Region;
use planespray::spray::{DoneKind, Event, Failure, OneSided, PeerReason, Recv, Refused, Send, SessionConfig, Source};
use proptest::prelude::*;

const GUARD: u64 = 64;

#[derive(Clone, Debug)]
struct Pair {
    from: usize,
    channel: u32,
    class: Class,
    len: u64,
    capacity: u64,
    rendezvous: bool,
    /// Nanoseconds after the channel's previous send, and receive.
    send_gap: u64,
    receive_gap: u64,
}

#[derive(Clone, Debug)]
struct Setup {
    seed: u64,
    planes: u8,
    data: usize,
    jitter: u64,
    poll_delay: u64,
    full: u32,
    grant_always: bool,
    tight: bool,
    budget: Option<u64>,
    pairs: Vec<Pair>,
}

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => prop::sample::select(vec![0u64, 1, 8, 127, 128, 4095, 4096, 4097, 8192]),
        4 => prop::sample::select(vec![65_535u64, 65_536, 65_537, 200_000]),
        2 => Just((1u64 << 20) + 1),
        1 => 0u64..300_000,
    ]
}

fn pairs(huge: bool) -> impl Strategy<Value = Vec<Pair>> {
    let len = if huge { prop_oneof![3 => sizes(), 1 => Just((34u64 << 20) + 77)].boxed() } else { sizes().boxed() };
    let one = (
        (0usize..2, 0u32..4, 0usize..3, len),
        (prop_oneof![2 => Just(0u64), 1 => Just(1), 1 => 0u64..5000, 1 => 0u64..400_000], any::<bool>()),
        (prop_oneof![3 => Just(0u64), 1 => 0u64..200_000], prop_oneof![3 => Just(0u64), 1 => 0u64..200_000]),
        0u32..20,
    );
    prop::collection::vec(one, 1..if huge { 5 } else { 80 }).prop_map(|list| {
        list.into_iter()
            .map(|((from, channel, class, len), (more, rendezvous), (send_gap, receive_gap), shorter)| Pair {
                from,
                channel: channel * 77,
                class: Class::ALL[class],
                len,
                // Now and then a receive is too short.
                capacity: if shorter == 0 && len > 0 { len - 1 } else { len + more },
                rendezvous,
                send_gap,
                receive_gap,
            })
            .collect()
    })
}

fn setups(huge: bool) -> impl Strategy<Value = Setup> {
    (
        (any::<u64>(), 1u8..=2, 1usize..4, prop_oneof![Just(0u64), 0u64..30_000]),
        (
            prop_oneof![Just(0u64), 0u64..40_000],
            prop_oneof![3 => Just(0u32), 1 => 0u32..400],
            any::<bool>(),
            any::<bool>(),
        ),
        prop_oneof![3 => Just(None), 1 => (20_000u64..400_000).prop_map(Some)],
        pairs(huge),
    )
        .prop_map(|((seed, planes, data, jitter), (poll_delay, full, grant_always, tight), budget, pairs)| Setup {
            seed,
            planes,
            data,
            jitter,
            poll_delay,
            full,
            grant_always,
            tight,
            budget,
            pairs,
        })
}

fn config(setup: &Setup) -> SessionConfig {
    let mut config = SessionConfig { nonce: setup.seed, grant_always: setup.grant_always, ..SessionConfig::default() };
    if setup.tight {
        config.control_slots = 16;
        config.immediates = 16;
        config.eager_buffers = 4;
        config.send_depth = 8;
        config.initial_window = 32 << 10;
        config.channels = 1;
    }
    config
}

struct Receive {
    region: Region,
    capacity: u64,
}

fn run(setup: &Setup) {
    let mut fabric = links(&Class::ALL, setup.planes, setup.data);
    for link in &mut fabric {
        link.jitter = setup.jitter;
    }
    let mut world = World::new(config(setup), fabric, setup.seed);
    world.full = setup.full;
    world.poll_delay = setup.poll_delay;
    for side in 0..2 {
        for port in 0..2 {
            world.ends[side].session.set_peer_budget(port, setup.budget);
        }
    }

    // Per end and channel, sends and receives happen in the order of the list.
    let mut timeline = Vec::new();
    let mut clocks = std::collections::HashMap::new();
    for (i, pair) in setup.pairs.iter().enumerate() {
        let clock: &mut (u64, u64) = clocks.entry((pair.from, pair.channel)).or_default();
        clock.0 += pair.send_gap;
        clock.1 += pair.receive_gap;
        timeline.push((clock.0, i, true));
        timeline.push((clock.1, i, false));
    }
    timeline.sort_by_key(|t| t.0);
    let ordered = |channel: u32| (channel / 77).is_multiple_of(2);
    let mut received: Vec<Option<Receive>> = setup.pairs.iter().map(|_| None).collect();
    for (at, i, is_send) in timeline {
        world.run_until(at);
        let pair = &setup.pairs[i];
        let side = if is_send { pair.from } else { 1 - pair.from };
        if is_send {
            let region = filled(i as u64, pair.len + GUARD);
            let mr = world.register(side, &region);
            let local = Source { mr, region, offset: GUARD, len: pair.len };
            let token = i as u64;
            let msg = Send { channel: pair.channel, class: pair.class, local, token, rendezvous_only: pair.rendezvous };
            let now = world.time();
            world.ends[side].session.send(now, &msg).expect("taken");
        } else {
            let region = Region::from_vec(vec![0xee; (pair.capacity + 2 * GUARD) as usize]);
            let mr = world.register(side, &region);
            let window = world.open(side, mr, GUARD, pair.capacity);
            let now = world.time();
            let recv = Recv {
                channel: pair.channel,
                mr,
                region: region.clone(),
                offset: GUARD,
                capacity: pair.capacity,
                window,
                token: i as u64,
                ordered: ordered(pair.channel),
            };
            world.ends[side].session.receive(now, &recv).expect("taken");
            received[i] = Some(Receive { region, capacity: pair.capacity });
        }
        world.pump(side);
    }
    world.run();

    for (i, pair) in setup.pairs.iter().enumerate() {
        let ends = |side: usize, kind: DoneKind| {
            let dones = world.ends[side].dones.iter().filter(|(_, d)| d.token == i as u64 && d.kind == kind);
            dones.map(|(_, d)| d.result).collect::<Vec<_>>()
        };
        let sent = ends(pair.from, DoneKind::Send);
        let got = ends(1 - pair.from, DoneKind::Receive);
        assert_eq!((sent.len(), got.len()), (1, 1), "pair {i} ends once at each end: {sent:?} {got:?} {pair:?}");
        let receive = received[i].as_ref().expect("posted");
        let mut bytes = vec![0; receive.region.len()];
        receive.region.read_at(0, &mut bytes).expect("in bounds");
        let filled_to = if pair.len <= pair.capacity {
            assert_eq!(sent[0], Ok(pair.len), "pair {i}: {pair:?}");
            assert_eq!(got[0], Ok(pair.len), "pair {i}: {pair:?}");
            pair.len
        } else {
            let too_long = Failure::TooLong { len: pair.len, capacity: receive.capacity };
            // An eager message was delivered as far as its sender can know.
            assert!(sent[0] == Err(too_long) || sent[0] == Ok(pair.len), "pair {i}: {:?}", sent[0]);
            assert!(got[0] == Err(too_long) || got[0] == Err(Failure::Peer(PeerReason::TooLong)), "{:?}", got[0]);
            0
        };
        for (at, &byte) in bytes.iter().enumerate() {
            let want = match (at as u64).checked_sub(GUARD) {
                Some(into) if into < filled_to => pattern(i as u64, into + GUARD),
                _ => 0xee,
            };
            assert_eq!(byte, want, "pair {i}, byte {at}: {pair:?}");
        }
    }
    for side in 0..2 {
        // Ordered channels report in order.
        for channel in 0..4 {
            if ordered(channel * 77) {
                let tokens: Vec<u64> = world.ends[side]
                    .dones
                    .iter()
                    .filter(|(_, d)| d.kind == DoneKind::Receive)
                    .filter(|(_, d)| setup.pairs[d.token as usize].channel == channel * 77)
                    .map(|(_, d)| d.token)
                    .collect();
                assert!(tokens.is_sorted(), "channel {channel}: {tokens:?}");
            }
        }
        let now = world.time();
        assert_eq!(world.ends[side].session.failure(), None);
        let stats = world.ends[side].session.stats();
        assert!(stats.lanes.iter().all(|l| l.in_flight == 0));
        assert_eq!(stats.messages.late_immediates, 0);
        assert_eq!(stats.messages.duplicate_units, 0);
        world.ends[side].session.close(now);
        world.pump(side);
    }
    world.run();
    for side in 0..2 {
        assert!(world.ends[side].session.is_drained());
        assert_eq!(world.ends[side].events, vec![Event::PeerClosed]);
        if let Some(budget) = setup.budget {
            // One chunk may go when nothing else is in flight, and bare control always may.
            for most in world.most[side] {
                assert!(most <= budget.max(10_000) + 150_000, "{most} bytes in flight for a budget of {budget}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, max_shrink_iters: 4000, ..ProptestConfig::default() })]

    #[test]
    fn every_message_arrives_once_whole_and_in_order(setup in setups(false)) {
        run(&setup);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn tens_of_megabytes_too(setup in setups(true)) {
        run(&setup);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn one_sided_operations_move_the_right_bytes(
        seed: u64,
        ops in prop::collection::vec((any::<bool>(), 0usize..2, sizes(), 0u64..3000), 1..12),
        full in prop_oneof![Just(0u32), 0u32..400],
    ) {
        let fabric = links(&[Class::Bulk, Class::Latency], 2, 2);
        let mut world = World::new(SessionConfig { nonce: seed, ..SessionConfig::default() }, fabric, seed);
        world.full = full;
        let mut checks = Vec::new();
        for (i, &(write, side, len, at)) in ops.iter().enumerate() {
            let local = filled(i as u64, len + 128);
            let remote = filled(i as u64 + 1000, len + at + 128);
            let mr = world.register(side, &local);
            let far = world.register(1 - side, &remote);
            let window = world.open(1 - side, far, 64 + at, len);
            let op = OneSided {
                class: if i % 2 == 0 { Class::Bulk } else { Class::Latency },
                mr,
                region: local.clone(),
                offset: 64,
                len,
                remote_addr: window.addr,
                remote_keys: window.keys,
                token: i as u64,
            };
            let now = world.time();
            let session = &mut world.ends[side].session;
            if write { session.write(now, &op) } else { session.read(now, &op) }.expect("taken");
            world.pump(side);
            checks.push((write, side, len, at, local, remote));
        }
        world.run();
        for (i, (write, side, len, at, local, remote)) in checks.iter().enumerate() {
            let kind = if *write { DoneKind::Write } else { DoneKind::Read };
            let results: Vec<_> =
                world.ends[*side].dones.iter().filter(|(_, d)| d.token == i as u64).map(|(_, d)| (d.kind, d.result)).collect();
            prop_assert_eq!(results, vec![(kind, Ok(*len))]);
            let (from, from_at, from_seed, to, to_at, to_seed) = if *write {
                (local, 64, i as u64, remote, 64 + at, i as u64 + 1000)
            } else {
                (remote, 64 + at, i as u64 + 1000, local, 64, i as u64)
            };
            let mut bytes = vec![0; to.len()];
            to.read_at(0, &mut bytes).expect("in bounds");
            for (b, &byte) in bytes.iter().enumerate() {
                let b = b as u64;
                let want = if (to_at..to_at + len).contains(&b) {
                    pattern(from_seed, b - to_at + from_at)
                } else {
                    pattern(to_seed, b)
                };
                prop_assert_eq!(byte, want, "op {} byte {} of {}", i, b, from.len());
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let fabric: Vec<Link> = links(&[Class::Bulk], 1, 1);
    let mut world = World::new(SessionConfig::default(), fabric, 1);
    let now = world.time();
    let region = Region::from_vec(vec![0; 100]);
    let session = &mut world.ends[0].session;
    let send = |class, offset, len| Send {
        channel: 0,
        class,
        local: Source { mr: MrId(1), region: region.clone(), offset, len },
        token: 0,
        rendezvous_only: false,
    };
    assert_eq!(session.send(now, &send(Class::Bulk, 1, 100)).err(), Some(Refused::Bounds));
    assert_eq!(session.send(now, &send(Class::Bulk, u64::MAX, 1)).err(), Some(Refused::Bounds));
    assert_eq!(session.send(now, &send(Class::Bulk, 0, (8 << 30) + 1)).err(), Some(Refused::TooLong));
    assert_eq!(session.send(now, &send(Class::Steady, 0, 1)).err(), Some(Refused::NoLanes));
    for _ in 0..4096 {
        session.send(now, &send(Class::Bulk, 0, 1)).expect("taken");
    }
    assert_eq!(session.send(now, &send(Class::Bulk, 0, 1)).err(), Some(Refused::Full));
    session.close(now);
    assert_eq!(session.send(now, &send(Class::Bulk, 0, 1)).err(), Some(Refused::Closed));
}
