//! Small runs of the whole simulator: 16 hosts, 4 leaves, 4 spines.

use super::*;
use crate::policy::Kind;
use crate::time::Span;

const SMALL: &str = include_str!("../../../tests/fabric/ls16_100g.topo");

fn scenario(policy: Kind, planes: u8, changes: &[&str]) -> Scenario {
    let topology = Topology::parse(SMALL).expect("a good file");
    let matrix = Pattern::Tornado.matrix(16, 1 << 20);
    let mut s = Scenario::new(topology, matrix, policy);
    s.planes = planes;
    s.changes = changes.iter().map(|c| c.parse().expect("an event")).collect();
    s
}

fn ratio(s: &Scenario) -> f64 {
    let o = run(s, 11).expect("a good scenario");
    assert_eq!(o.unfinished(), 0, "{:?}", s.policy);
    o.ratio().expect("all are done")
}

#[test]
fn one_flow_alone_takes_the_ideal_time() {
    let mut s = scenario(Kind::Planespray, 1, &[]);
    s.matrix.flows.truncate(1);
    let o = run(&s, 1).expect("a good scenario");
    // 257 packets; links of 100 Gb/s, four each way, seven switch and link times of 500 ns each way.
    assert!((o.rtt_us - 8.348).abs() < 0.001, "{}", o.rtt_us);
    assert!(o.ratio().is_some_and(|r| (0.99..1.01).contains(&r)), "{o:?}");
    assert_eq!((o.retransmissions, o.trims, o.packets), (0, 0, 257));
    assert_eq!(o.packet_hops, 257 * 4);
    assert_eq!(o.per_plane_bytes, [(1 << 20) + 257 * 64]);
}

#[test]
fn a_seed_repeats_a_run_and_another_differs() {
    for policy in [Kind::Oblivious, Kind::Reps, Kind::Mixed, Kind::Planespray] {
        let s = scenario(policy, 2, &["20us:plane:0:dead"]);
        assert_eq!(run(&s, 5), run(&s, 5));
        assert_ne!(run(&s, 5), run(&s, 6));
    }
}

#[test]
fn every_policy_delivers_everything_on_healthy_and_on_broken_planes() {
    let kinds =
        ["single", "ecmp", "round-robin", "two-random-rtt", "oblivious", "reps", "bitmap", "mixed", "planespray"];
    for name in kinds {
        let kind = name.parse().expect("a policy");
        assert!(ratio(&scenario(kind, 1, &[])) < 17.0, "{name}");
        let spine = ["10us:spine:0.1:dead", "400us:spine:0.1:up"];
        assert!(ratio(&scenario(kind, 2, &spine)) < 40.0, "{name}");
        let mut drops = scenario(kind, 1, &[]);
        drops.trim = false;
        let o = run(&drops, 11).expect("a good scenario");
        assert_eq!((o.unfinished(), o.trims), (0, 0), "{name}");
    }
}

#[test]
fn a_dead_plane_costs_planespray_a_few_round_trips_and_others_many() {
    let dead = ["20us:plane:1:dead"];
    let larger = |kind| Scenario { matrix: Pattern::Tornado.matrix(16, 4 << 20), ..scenario(kind, 4, &dead) };
    let (ours, mixed) = (ratio(&larger(Kind::Planespray)), ratio(&larger(Kind::Mixed)));
    assert!(ours < 1.5 && ours < mixed / 1.5, "{ours} and {mixed}");
    let s = larger(Kind::Planespray);
    let o = run(&s, 11).expect("a good scenario");
    let (dead, whole) = (o.per_plane_bytes[1], o.per_plane_bytes[0]);
    assert!(dead < whole, "{:?}", o.per_plane_bytes);
    assert!(o.spurious * 1000 < o.packets * 10, "{} of {}", o.spurious, o.packets);
}

#[test]
fn a_slow_plane_carries_in_proportion() {
    let mut s = scenario(Kind::Planespray, 4, &["0us:plane:3:0.5"]);
    s.matrix = Pattern::Tornado.matrix(16, 4 << 20);
    let o = run(&s, 11).expect("a good scenario");
    assert!(o.ratio().is_some_and(|r| r < 1.2), "{:?}", o.ratio());
    let share = o.per_plane_bytes[3] as f64 / o.per_plane_bytes[0] as f64;
    assert!((0.4..0.65).contains(&share), "{share}");
}

#[test]
fn incast_is_not_a_dead_plane() {
    let mut s = scenario(Kind::Planespray, 4, &[]);
    s.matrix = Pattern::Incast { senders: 15 }.matrix(16, 1 << 20);
    let o = run(&s, 11).expect("a good scenario");
    assert!(o.ratio().is_some_and(|r| r < 1.1), "{:?}", o.ratio());
    assert_eq!(o.given_up, 0);
}

#[test]
fn triggers_chain_messages_and_adaptive_switches_and_chunks_work() {
    let text = "Nodes 16\nConnections 3\nTriggers 2\n0->8 id 1 start 10 size 4086 send_done_trigger 1\n\
                0->8 id 2 trigger 1 size 4086 recv_done_trigger 2\n8->0 id 3 trigger 2 size 4086\n\
                trigger id 1 oneshot\ntrigger id 2 barrier count 1\n";
    let mut s = scenario(Kind::Mixed, 1, &[]);
    s.matrix = Matrix::parse(text).expect("a good file");
    let o = run(&s, 1).expect("a good scenario");
    let t = o.times(|_| true).expect("all done");
    assert!((t.slowest - 8.348).abs() < 0.01 && (t.mean - 8.348).abs() < 0.01, "each takes one round trip: {t:?}");

    let mut adaptive = scenario(Kind::Ecmp, 1, &[]);
    adaptive.adaptive = true;
    assert!(ratio(&adaptive) < 1.3);

    for kind in [Kind::RoundRobin, Kind::TwoRandomRtt, Kind::Planespray] {
        let mut chunks = scenario(kind, 2, &[]);
        chunks.chunk = Some((16 << 10, 16));
        assert!(ratio(&chunks) < 4.0, "{kind}");
    }
    let mut none = scenario(Kind::Reps, 1, &[]);
    none.chunk = Some((16 << 10, 16));
    let refused = run(&none, 1).expect_err("it decides by packet");
    assert_eq!(refused.to_string(), "`reps` decides by packet, not by chunk");
}

#[test]
fn what_cannot_be_simulated_is_refused_and_what_never_ends_is_cut_off() {
    let refused = |change: fn(&mut Scenario)| {
        let mut s = scenario(Kind::Mixed, 2, &[]);
        change(&mut s);
        run(&s, 1).expect_err("a bad scenario").to_string()
    };
    assert_eq!(refused(|s| s.planes = 9), "9 planes: 1 to 8 are simulated");
    assert_eq!(refused(|s| s.paths = 100), "100 paths: a power of two from 8 to 4096 is needed");
    assert_eq!(refused(|s| s.matrix.hosts = 17), "the fabric has 16 hosts, the matrix 17");
    assert_eq!(
        refused(|s| s.changes.push("1us:plane:2:dead".parse().expect("an event"))),
        "there are 2 planes, counted from 0"
    );
    let mut s = scenario(Kind::Ecmp, 1, &["0us:plane:0:dead"]);
    s.limit = Span::from_millis(2);
    let o = run(&s, 1).expect("a good scenario");
    assert_eq!((o.unfinished(), o.ratio()), (16, None));
}
