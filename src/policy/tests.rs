//! What any policy keeps to, and what this project's own promises.

use proptest::prelude::*;

use super::*;

const RTT: Span = Span::from_micros(8);

fn balancer(planes: u8) -> Balancer {
    Balancer::new(planes, 64, RTT, Tuning::default())
}

fn clean(pick: Pick) -> Report {
    Report { pick, marked: false, rtt: Some(RTT) }
}

/// Planes that serve so many packets per microsecond, one after the other; returns what each carried.
fn serve(rates: &[u64], dead: Option<usize>, micros: u64) -> Vec<u64> {
    let mut b = balancer(rates.len() as u8);
    let mut random = fastrand::Rng::with_seed(7);
    let mut queues: Vec<std::collections::VecDeque<Pick>> = vec![Default::default(); rates.len()];
    let mut carried = vec![0; rates.len()];
    let mut out = 0u64;
    for us in 1..=micros {
        let now = Time::from_nanos(us * 1000);
        while out < 300 {
            let pick = b.pick(now, &mut random);
            queues[usize::from(pick.plane)].push_back(pick);
            out += 1;
        }
        for (plane, queue) in queues.iter_mut().enumerate() {
            if dead == Some(plane) && us > micros / 4 {
                continue;
            }
            for pick in queue.drain(..queue.len().min(rates[plane] as usize)) {
                b.delivered(now, clean(pick));
                out -= 1;
                if us > micros / 2 {
                    carried[plane] += 1;
                }
            }
        }
        while let Some(plane) = b.given_up(now) {
            for pick in queues[usize::from(plane)].drain(..) {
                b.lost(now, pick);
                out -= 1;
            }
        }
    }
    carried
}

#[test]
fn shares_converge_to_the_proportions_of_the_rates() {
    for rates in [[8u64, 8, 8, 8], [8, 4, 8, 8], [8, 2, 4, 8], [1, 8, 8, 8]] {
        let carried = serve(&rates, None, 2000);
        let (sum, all): (u64, u64) = (carried.iter().sum(), rates.iter().sum());
        for (c, r) in carried.iter().zip(rates) {
            let (share, fair) = (*c as f64 / sum as f64, r as f64 / all as f64);
            assert!((share - fair).abs() < 0.03, "{rates:?} carried {carried:?}");
        }
    }
}

#[test]
fn a_dead_plane_attracts_nothing_and_comes_back_when_a_probe_is_answered() {
    let carried = serve(&[8, 8, 8, 8], Some(2), 2000);
    assert_eq!(carried[2], 0);
    assert!(carried[0] > 7000, "{carried:?}");

    let mut b = balancer(2);
    let mut random = fastrand::Rng::with_seed(1);
    let at = |us: u64| Time::from_nanos(us * 1000);
    let picks: Vec<Pick> = (0..80).map(|_| b.pick(at(0), &mut random)).collect();
    picks.iter().filter(|p| p.plane == 0).for_each(|&p| b.delivered(at(8), clean(p)));
    assert_eq!(b.given_up(at(10)), None, "silence is not long enough");
    assert_eq!(b.given_up(at(40)), Some(1));
    assert_eq!(b.given_up(at(40)), None, "told once");
    picks.iter().filter(|p| p.plane == 1).for_each(|&p| b.lost(at(40), p));
    assert_eq!(b.in_flight(1), 0);
    assert!((0..200).all(|_| b.pick(at(41), &mut random).plane == 0));
    assert_eq!(b.probe(at(41)), None, "not at once");
    let probe = b.probe(at(80)).expect("after four round trips");
    assert_eq!(probe.plane, 1);
    b.probed(at(90), probe);
    assert!(b.is_up(1));
    assert!((0..200).any(|_| b.pick(at(91), &mut random).plane == 1));
}

#[test]
fn silence_of_the_receiver_is_not_a_dead_plane() {
    let mut b = balancer(4);
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..400 {
        b.pick(Time::ZERO, &mut random);
    }
    for us in 0..1000 {
        assert_eq!(b.given_up(Time::from_nanos(us * 1000)), None, "nothing is delivered on any plane");
    }
}

#[test]
fn a_path_that_lost_a_packet_is_left_until_a_probe_is_answered() {
    let mut b = balancer(1);
    let mut random = fastrand::Rng::with_seed(3);
    let at = |us: u64| Time::from_nanos(us * 1000);
    let bad = b.pick(at(0), &mut random);
    b.lost(at(20), bad);
    for us in 21..2000 {
        let pick = b.pick(at(us), &mut random);
        assert_ne!(pick.path, bad.path);
        b.delivered(at(us), clean(pick));
    }
    let probe = b.probe(at(2000)).expect("a path waits for one");
    assert_eq!(probe.path, bad.path);
    b.probed(at(2001), probe);
    let tried = (0..100_000u64).any(|i| {
        let now = at(2002 + i);
        let pick = b.pick(now, &mut random);
        b.delivered(now, clean(pick));
        pick.path == bad.path
    });
    assert!(tried, "a path that answers is not starved for ever");
}

#[test]
fn names_are_read_and_written() {
    for name in
        ["single", "ecmp", "round-robin", "two-random-rtt", "oblivious", "reps", "bitmap", "mixed", "planespray"]
    {
        assert_eq!(name.parse::<Kind>().map(|k| k.to_string()), Ok(name.to_string()));
    }
    assert!("fastest".parse::<Kind>().is_err());
}

proptest! {
    /// Whatever is reported, picks are in range, counts do not go below zero and no plane is lost for ever.
    #[test]
    fn any_reports_leave_it_usable(seed: u64, steps in prop::collection::vec((0u8..7, 0u16..80, 1u64..50_000), 1..400)) {
        let mut b = balancer(4);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut now = Time::ZERO;
        let mut out = Vec::new();
        for (what, which, passed) in steps {
            now += Span::from_nanos(passed);
            if what < 3 || out.is_empty() {
                let pick = b.pick(now, &mut random);
                prop_assert!(pick.plane < 4 && pick.path < 64);
                out.push(pick);
                continue;
            }
            let pick = out.swap_remove(usize::from(which) % out.len());
            match what {
                3 => b.delivered(now, Report { marked: which % 2 == 0, ..clean(pick) }),
                4 => b.trimmed(now, pick, which % 2 == 0, false),
                5 => b.lost(now, pick),
                _ => b.timed_out(now, pick),
            }
            if let Some(plane) = b.given_up(now) {
                out.retain(|&p| { if p.plane == plane { b.lost(now, p); } p.plane != plane });
            }
            let counted: u32 = (0..4).map(|p| b.in_flight(p)).sum();
            prop_assert_eq!(counted as usize, out.len());
        }
        for _ in 0..2000 {
            now += RTT;
            if let Some(probe) = b.probe(now) {
                b.probed(now, probe);
            }
        }
        prop_assert!((0..4).all(|p| b.is_up(p)), "every plane is probed and comes back");
    }

    /// The same reports and the same seed give the same picks, for every policy.
    #[test]
    fn a_seed_repeats_every_policy(seed: u64, marks in prop::collection::vec(any::<bool>(), 50..200)) {
        for kind in [Kind::RoundRobin, Kind::TwoRandomRtt, Kind::Oblivious, Kind::Reps, Kind::Mixed, Kind::Planespray] {
            let run = || {
                let mut random = fastrand::Rng::with_seed(seed);
                let setup = Setup { planes: 4, paths: 256, rtt: RTT, chunk: None, tuning: Tuning::default() };
                let mut policy = kind.build(setup, &mut random);
                let step = |(i, &marked): (usize, &bool)| {
                    let now = Time::from_nanos(i as u64 * 500);
                    let pick = policy.pick(now, &mut random);
                    let report = Report { pick, marked, rtt: Some(RTT) };
                    policy.acknowledged(now, report);
                    policy.delivered(now, report);
                    pick
                };
                marks.iter().enumerate().map(step).collect::<Vec<_>>()
            };
            prop_assert_eq!(run(), run());
        }
    }
}
