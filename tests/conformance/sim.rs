//! The embedded engine over simulated links, in virtual time.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use planespray::embedded::{Embedded, EmbeddedConfig, PacketIo};
use planespray::lanes::{Completed, Control, LaneError, LaneEvent, Lanes, Op, PortId, PortInfo, Status};
use planespray::roce::{PathId, RxMeta};
use planespray::sim::{Faults, Net, SimIo, SimPort};
use planespray::time::{Span, Time};
use planespray::wire::Packet;

use crate::cases;
use crate::cases::endings::dead_lane;
use crate::cases::signals::marks;
use crate::cases::traffic::{self, Load, Tally, traffic};
use crate::rig::{Abilities, NOTHING, NOWHERE, Pass, Rig, Shape};

/// One way.
const DELAY: Span = Span::from_micros(10);
/// What one round of the rig takes.
const ROUND: Span = Span::from_micros(1);
const PLANES: u8 = 2;

/// A link on which everything goes wrong now and then.
const LOSSY: Faults = Faults { loss: 0.03, duplicate: 0.03, reorder: 0.05, mark: 0.1, corrupt: 0.01, ..Faults::NONE };

type Sim = Rig<Embedded<SimIo>>;

#[derive(Clone, Copy, Debug)]
enum Family {
    V4,
    V6,
}

impl Family {
    fn address(self, plane: u8, host: u8) -> IpAddr {
        match self {
            Family::V4 => Ipv4Addr::new(10, plane, 0, 1 + host).into(),
            Family::V6 => Ipv6Addr::new(0xfd00, 0, 0, u16::from(plane), 0, 0, 0, 1 + u16::from(host)).into(),
        }
    }
}

/// Two hosts on `net`, joined by two planes, with the packet edge that `edge` makes of a host's.
fn hosts<P: PacketIo>(
    net: &Net,
    seed: u64,
    family: Family,
    mtu: [u32; 2],
    edge: impl Fn(u64, SimIo) -> P,
) -> [Embedded<P>; 2] {
    [0, 1].map(|host| {
        let ports: Vec<SimPort> = (0..PLANES)
            .map(|plane| SimPort {
                plane: u16::from(plane),
                addr: family.address(plane, host),
                mtu: mtu[usize::from(host)],
            })
            .collect();
        let config = EmbeddedConfig {
            seed: seed.wrapping_mul(2).wrapping_add(u64::from(host)),
            max_lanes: 256,
            max_keys: 4096,
            name: "sim",
            burst: 61_440,
            patience: Span::from_secs(1),
        };
        Embedded::new(config, edge(config.seed, net.host(&ports)))
    })
}

/// Virtual time: it jumps to whatever happens next.
fn clock(net: &Net) -> impl FnMut(Pass) -> Time + 'static {
    let net = net.clone();
    let mut now = Time::ZERO;
    move |pass| {
        let mut next = now + ROUND;
        if let Pass::Idle { wake } = pass {
            next = next.max(net.next_arrival().map_or(wake, |t| t.min(wake)));
        }
        now = next;
        net.set_now(now);
        now
    }
}

fn abilities(faults: &Faults) -> Abilities {
    let exact = *faults == Faults::default();
    Abilities {
        exact,
        lossless: faults.loss == 0.0 && faults.corrupt == 0.0,
        rtt: exact.then_some((DELAY.saturating_mul(2), DELAY.saturating_mul(4))),
        marks: true,
        gives_up: Span::from_secs(3),
        exact_depth: true,
        domains: true,
        atomics: true,
        exact_errors: true,
    }
}

/// A rig and its network.
fn over(seed: u64, family: Family, mtu: u32, faults: Faults) -> (Sim, Net) {
    let net = Net::new(seed, DELAY, faults);
    let ends = hosts(&net, seed, family, [mtu; 2], |_, io| io);
    (Rig::new(ends, abilities(&faults), seed, clock(&net)), net)
}

fn clean(family: Family, mtu: u32) -> Sim {
    over(1, family, mtu, Faults::default()).0
}

fn lossy(seed: u64, family: Family, mtu: u32) -> Sim {
    over(seed, family, mtu, LOSSY).0
}

conformance!(clean_v4_256, crate::sim::clean(crate::sim::Family::V4, 256));
conformance!(clean_v4_1024, crate::sim::clean(crate::sim::Family::V4, 1024));
conformance!(clean_v4_4096, crate::sim::clean(crate::sim::Family::V4, 4096));
conformance!(clean_v6_256, crate::sim::clean(crate::sim::Family::V6, 256));
conformance!(clean_v6_1024, crate::sim::clean(crate::sim::Family::V6, 1024));
conformance!(clean_v6_4096, crate::sim::clean(crate::sim::Family::V6, 4096));
conformance!(lossy_v4_1024, crate::sim::lossy(1, crate::sim::Family::V4, 1024));
conformance!(lossy_v6_4096, crate::sim::lossy(2, crate::sim::Family::V6, 4096));
conformance!(choppy, crate::sim::choppy(3));

/// Families and MTUs in turn.
fn variant(seed: u64) -> (Family, u32) {
    let family = if seed.is_multiple_of(2) { Family::V4 } else { Family::V6 };
    (family, [256, 1024, 4096, 512, 2048][seed as usize % 5])
}

/// Random traffic over lossy links for many seeds.
#[test]
fn lossy_traffic() {
    for seed in 0..48 {
        println!("seed {seed}");
        let (family, mtu) = variant(seed);
        let (mut rig, net) = over(seed, family, mtu, LOSSY);
        let tally = traffic(&mut rig, seed);
        rig.assert_no_events();
        let stats = net.stats();
        assert!(stats.lost > 0 && stats.duplicated > 0 && stats.reordered > 0 && stats.corrupted > 0, "{stats:?}");
        assert!(tally.retransmits > 0, "seed {seed}: {} packets were lost and none sent again", stats.lost);
        assert!(tally.marks > 0, "seed {seed}: {} packets were marked and no lane knows", stats.marked);
        // 3 % lost and 1 % corrupted both ways: sending everything twice would be far too much.
        assert!(stats.sent < 3 * packets(&tally, mtu), "seed {seed}: {tally:?}, {stats:?}");
    }
}

/// Packets that the requests and answers of `tally` take at most without any loss, acknowledgements included.
fn packets(tally: &Tally, mtu: u32) -> u64 {
    2 * (tally.requests + tally.bytes / u64::from(mtu)) + 1000
}

/// The cases in which much is under way, over lossy links for many seeds.
#[test]
fn lossy_cases() {
    over_lossy_links(&[
        ("sends", cases::two_sided::sends),
        ("late_receives", cases::two_sided::late_receives),
        ("immediates_in_order", cases::one_sided::immediates_in_order),
        ("many_reads", cases::one_sided::many_reads),
        ("revoked_under_way", cases::windows::revoked_under_way),
        ("successors", cases::endings::successors),
        ("fenced_requester", cases::endings::fenced_requester),
    ]);
}

/// Atomics are carried out once, however often they are asked for, and are answered in the end.
#[test]
fn lossy_atomics() {
    over_lossy_links(&[
        ("contention", cases::atomics::contention),
        ("compare_and_swap", cases::atomics::compare_and_swap),
        ("fetch_and_add", cases::atomics::fetch_and_add),
    ]);
}

type Case = fn(&mut Sim);

fn over_lossy_links(cases: &[(&str, Case)]) {
    for seed in 400..424 {
        let (family, mtu) = variant(seed);
        for (name, case) in cases {
            println!("seed {seed}: {name}");
            case(&mut lossy(seed, family, mtu));
        }
    }
}

/// A tenth of all packets lost, and half of them late.
#[test]
fn terrible_links() {
    let faults = Faults { loss: 0.1, reorder: 0.5, corrupt: 0.05, duplicate: 0.1, ..LOSSY };
    for seed in 100..110 {
        println!("seed {seed}");
        let (family, mtu) = variant(seed);
        let (mut rig, _) = over(seed, family, mtu, faults);
        traffic::run(&mut rig, seed, Load { requests: 12, ..Load::default() });
        rig.assert_no_events();
    }
}

/// Packets that only come late are no losses: hardly any is sent again.
#[test]
fn reordered_traffic() {
    for seed in 200..210 {
        println!("seed {seed}");
        let (family, mtu) = variant(seed);
        let faults = Faults { reorder: 0.2, reorder_by: Span::from_micros(5), ..Faults::default() };
        let (mut rig, net) = over(seed, family, mtu, faults);
        let tally = traffic(&mut rig, seed);
        rig.assert_no_events();
        assert!(net.stats().reordered > 100);
        assert_eq!(tally.requests, 240 * 2);
    }
}

/// The ICRC finds every flipped bit.
#[test]
fn corrupted_packets_are_refused() {
    for seed in 300..306 {
        println!("seed {seed}");
        let (family, mtu) = variant(seed);
        let (mut rig, net) = over(seed, family, mtu, Faults { corrupt: 0.05, ..Faults::default() });
        traffic(&mut rig, seed);
        rig.pass(Span::from_millis(1));
        let stats = net.stats();
        assert!(stats.corrupted > 20, "{stats:?}");
        assert_eq!(stats.refused, stats.corrupted, "{stats:?}");
        assert_eq!(stats.delivered, stats.sent - stats.corrupted, "{stats:?}");
    }
}

/// The same seed gives the same packets and the same completions at the same times; another seed others.
#[test]
fn a_seed_repeats_everything() {
    let run = |seed| {
        let (mut rig, net) = over(seed, Family::V4, 1024, LOSSY);
        let tally = traffic(&mut rig, seed);
        (net.stats(), tally, rig.log(0).to_vec(), rig.log(1).to_vec())
    };
    let first = run(7);
    assert!(first.2.len() > 300 && first.3.len() > 300);
    assert!(first == run(7), "the second run with one seed differs");
    assert!(first != run(8), "another seed makes no difference");
}

/// The share of marked packets comes back to the sender.
#[test]
fn marks_come_back() {
    for (share, least, most) in [(1.0, 0.9, 1.05), (0.25, 0.15, 0.4), (0.0, 0.0, 0.0)] {
        let (mut rig, net) = over(5, Family::V4, 1024, Faults { mark: share, ..Faults::default() });
        let yard = rig.yard(Shape::default(), 64 << 10);
        let seen = marks(&mut rig, &yard, 1000);
        let ratio = f64::from(seen.ce) / f64::from(seen.packets);
        assert!((least..=most).contains(&ratio), "{share} of the packets marked, {seen:?} seen, {:?}", net.stats());
        rig.assert_no_events();
    }
}

/// Both directions dead, for good.
#[test]
fn cut_both_ways() {
    for seed in 0..4 {
        println!("seed {seed}");
        let (family, mtu) = variant(seed);
        let (mut rig, net) = over(seed, family, mtu, Faults::default());
        dead_lane(&mut rig, |_, _| {
            net.cut(family.address(0, 0), family.address(0, 1));
            net.cut(family.address(0, 1), family.address(0, 0));
        });
    }
}

/// Requests do not arrive any more.
#[test]
fn cut_on_the_way_there() {
    for seed in 10..14 {
        println!("seed {seed}");
        let (family, mtu) = variant(seed);
        let (mut rig, net) = over(seed, family, mtu, Faults::default());
        dead_lane(&mut rig, |_, _| net.cut(family.address(0, 0), family.address(0, 1)));
    }
}

/// Requests arrive, but no answer does: they are carried out, once, though they fail.
#[test]
fn cut_on_the_way_back() {
    let (mut rig, net) = over(20, Family::V4, 1024, Faults::default());
    dead_lane(&mut rig, |_, _| net.cut(Family::V4.address(0, 1), Family::V4.address(0, 0)));
    net.heal();

    let yard = rig.yard(Shape::default(), 64 << 10);
    let [here, there] = yard.pair.lane;
    net.cut(Family::V4.address(0, 1), Family::V4.address(0, 0));
    yard.near.fill(0, 4096, 1);
    let receives: Vec<u64> = (0..3).map(|i| rig.receive(1, there, Some(yard.far.at(i * 4096, 4096)))).collect();
    let requests = [
        rig.post(0, here, Op::Send, yard.near.at(0, 3000), NOWHERE),
        rig.post(0, here, Op::FetchAdd(3), yard.near.at(8192, 8), yard.there(32 << 10)),
        rig.post(0, here, Op::WriteImm(8), yard.near.at(0, 4096), yard.there(40 << 10)),
    ];
    assert_eq!(rig.success(1, receives[0]).what, Completed::Receive { len: 3000 });
    assert_eq!(rig.success(1, receives[1]).what, Completed::Immediate { imm: 8 });
    yard.far.check(40 << 10, 4096, 1, "written with the immediate");
    assert_eq!(rig.wait(0, requests[0]).status, Status::RetryExceeded);
    rig.all(0, &requests[1..], Status::Flushed);
    assert_eq!(rig.lane_error(0, here), Status::RetryExceeded);
    assert_eq!(yard.far.word(32 << 10), 3, "one addition however often it was asked for");
    assert!(rig.peek(1, receives[2]).is_none(), "a repetition took a receive");
}

/// Outages shorter than the patience of the lanes: everything goes on afterwards.
#[test]
fn short_outages() {
    for seed in 30..42 {
        println!("seed {seed}");
        let (family, mtu) = variant(seed);
        let (mut rig, net) = over(seed, family, mtu, Faults::default());
        let yards: Vec<_> = (0..PLANES).map(|port| rig.yard(Shape { port, ..Shape::default() }, 1 << 20)).collect();
        let mut ids = Vec::new();
        for yard in &yards {
            yard.near.fill(0, 1 << 20, seed);
            for i in 0..16 {
                let op = if i % 4 == 3 { Op::Read } else { Op::Write };
                let at = i * (64 << 10);
                if op == Op::Read {
                    yard.far.fill(at, 60_000, i);
                }
                ids.push(rig.post(0, yard.pair.lane[0], op, yard.near.at(at, 60_000), yard.there(at)));
            }
        }
        for _ in 0..seed % 5 {
            rig.step(rig.now + Span::from_millis(1));
        }
        let (a, b) = (family.address(0, 0), family.address(0, 1));
        if seed % 3 != 0 {
            net.cut(a, b);
        }
        if seed % 3 != 1 {
            net.cut(b, a);
        }
        rig.pass(Span::from_millis(20 + 13 * (seed - 30)));
        net.heal();
        rig.all(0, &ids, Status::Success);
        for yard in &yards {
            for i in 0..16 {
                let at = i * (64 << 10);
                let (far, near) = (yard.far.read(at, 60_000), yard.near.read(at, 60_000));
                crate::rig::same(&far, &near, &format!("request {i} after the outage"));
            }
        }
        rig.assert_no_events();
    }
}

/// A dead plane takes its own lanes and no others, and comes back with new ones.
#[test]
fn a_plane_dies_and_returns() {
    let (mut rig, net) = over(50, Family::V6, 1024, LOSSY);
    let lost = rig.yard(Shape::default(), 4096);
    let [here, there] = lost.pair.lane;
    let receive = rig.receive(1, there, None);
    net.cut(Family::V6.address(0, 0), Family::V6.address(0, 1));
    let id = rig.post(0, here, Op::Write, lost.near.at(0, 4096), lost.there(0));
    let other = rig.yard(Shape { port: 1, ..Shape::default() }, 64 << 10);
    for seed in 0..50 {
        other.near.fill(0, 10_000, seed);
        let id = rig.post(0, other.pair.lane[0], Op::Write, other.near.at(0, 10_000), other.there(0));
        rig.success(0, id);
        other.far.check(0, 10_000, seed, "the living plane");
    }
    assert_eq!(rig.wait(0, id).status, Status::RetryExceeded);
    assert_eq!(rig.lane_error(0, here), Status::RetryExceeded);
    rig.ends[1].fence(there).expect("fenced");
    rig.all(1, &[receive], Status::Flushed);
    lost.far.check_zero(0, 4096, "memory that nothing reached");
    rig.part(&lost.pair);
    net.heal();
    traffic(&mut rig, 50);
    rig.assert_no_events();
}

/// Ends of different MTU settle on the smaller.
#[test]
fn unequal_mtus() {
    for mtu in [[4096, 1024], [256, 2048]] {
        let net = Net::new(60, DELAY, LOSSY);
        let ends = hosts(&net, 60, Family::V4, mtu, |_, io| io);
        let mut rig = Rig::new(ends, abilities(&LOSSY), 60, clock(&net));
        assert_eq!(rig.join(Shape::default()).mtu, mtu[0].min(mtu[1]));
        traffic(&mut rig, 60);
        rig.assert_no_events();
    }
}

/// All lanes of an engine can be used up, and used again.
#[test]
fn lanes_run_out() {
    let net = Net::new(70, DELAY, Faults::default());
    let io = net.host(&[SimPort { plane: 0, addr: Family::V4.address(0, 0), mtu: 1024 }]);
    let config = EmbeddedConfig {
        seed: 1,
        max_lanes: 5,
        max_keys: 16,
        name: "sim",
        burst: 61_440,
        patience: Span::from_secs(1),
    };
    let mut end = Embedded::new(config, io);
    let spec = planespray::lanes::LaneSpec {
        port: PortId(0),
        domain: crate::rig::HOME,
        class: planespray::class::Class::Steady,
        dscp: planespray::class::Dscp::default(),
        send_depth: 4,
        receive_depth: 4,
        entropy: 0,
    };
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let lanes: Vec<_> = (0..5).map(|_| end.create(&spec).expect("one of five")).collect();
        assert_eq!(end.create(&spec), Err(LaneError::NoLanes { limit: 5 }));
        for lane in lanes {
            assert!(seen.insert(lane.0), "{lane:?} was given out again");
            end.destroy(lane).expect("destroyed");
        }
    }
    // A parameter out of range is not a lack of lanes.
    let bad = end.create(&planespray::lanes::LaneSpec { send_depth: 0, ..spec });
    assert!(matches!(bad, Err(LaneError::Invalid { .. })), "{bad:?}");
}

/// An error that nobody has polled yet is not the successor's.
#[test]
fn an_event_is_not_the_successors() {
    let mut rig = clean(Family::V4, 1024);
    for _ in 0..200 {
        let yard = rig.yard(Shape::default(), 4096);
        let lane = yard.pair.lane[0];
        // Outside its registration: the lane fails when this is to be sent.
        if rig.try_post(0, lane, Op::Write, yard.near.at(4090, 100), yard.there(0)).is_ok() {
            rig.ends[0].doorbell(rig.now);
        }
        rig.destroy(0, lane);
        let next = rig.create(0, Shape::default());
        rig.pass(Span::from_micros(10));
        rig.destroy(0, next);
        rig.destroy(1, yard.pair.lane[1]);
        rig.ends[0].deregister(yard.near.mr);
        rig.ends[1].close_window(&yard.window);
        rig.ends[1].deregister(yard.far.mr);
    }
    rig.assert_no_events();
}

/// Every event of a lane comes once.
#[test]
fn events_come_once() {
    let (mut rig, net) = over(80, Family::V4, 1024, Faults::default());
    let pair = rig.join(Shape::default());
    net.cut(Family::V4.address(0, 0), Family::V4.address(0, 1));
    let ids: Vec<u64> = (0..10).map(|_| rig.post(0, pair.lane[0], Op::Send, NOTHING, NOWHERE)).collect();
    rig.wait(0, ids[0]);
    rig.all(0, &ids[1..], Status::Flushed);
    assert_eq!(rig.lane_error(0, pair.lane[0]), Status::RetryExceeded);
    rig.ends[0].fence(pair.lane[0]).expect("fenced");
    rig.pass(Span::from_secs(2));
    rig.assert_no_events();
    assert!(!matches!(rig.ends[0].poll_event(), Some(LaneEvent::LaneError { .. })));
}

/// What a full socket has held up is not sent any more once its lane is fenced or destroyed.
#[test]
fn a_fence_reaches_what_is_held_up() {
    for destroy in [false, true] {
        let net = Net::new(90, DELAY, Faults::default());
        let full = Rc::new(Cell::new(false));
        let edge = |seed, io| Choppy { io, rng: fastrand::Rng::with_seed(seed), odds: 0.0, full: full.clone() };
        let ends = hosts(&net, 90, Family::V4, [1024; 2], edge);
        let mut rig = Rig::new(ends, abilities(&Faults::default()), 90, clock(&net));
        let yard = rig.yard(Shape::default(), 4096);
        let other = rig.yard(Shape { entropy: 2, ..Shape::default() }, 4096);
        yard.near.fill(0, 4096, 1);
        full.set(true);
        let id = rig.post(0, yard.pair.lane[0], Op::Write, yard.near.at(0, 4096), yard.there(0));
        let lives = rig.post(0, other.pair.lane[0], Op::Write, other.near.at(0, 64), other.there(0));
        rig.pass(Span::from_micros(50));
        if destroy {
            rig.destroy(0, yard.pair.lane[0]);
        } else {
            rig.ends[0].fence(yard.pair.lane[0]).expect("fenced");
            rig.all(0, &[id], Status::Flushed);
        }
        full.set(false);
        rig.success(0, lives);
        rig.pass(Span::from_millis(1));
        yard.far.check_zero(0, 4096, "memory that a lane which ended wrote to");
        rig.assert_no_events();
    }
}

/// An edge that often says it would block, takes nothing then, and comes back later.
struct Choppy {
    io: SimIo,
    rng: fastrand::Rng,
    odds: f64,
    /// Takes nothing at all.
    full: Rc<Cell<bool>>,
}

fn choppy(seed: u64) -> Rig<Embedded<Choppy>> {
    let net = Net::new(seed, DELAY, LOSSY);
    let edge = |seed, io| Choppy { io, rng: fastrand::Rng::with_seed(seed), odds: 0.3, full: Rc::default() };
    let ends = hosts(&net, seed, Family::V4, [1024; 2], edge);
    Rig::new(ends, abilities(&LOSSY), seed, clock(&net))
}

impl PacketIo for Choppy {
    fn open_path(&mut self, port: PortId, entropy: u16, dest: SocketAddr) -> Result<PathId, LaneError> {
        self.io.open_path(port, entropy, dest)
    }

    fn close_path(&mut self, path: PathId) {
        self.io.close_path(path);
    }

    fn send(&mut self, path: PathId, tos: u8, bytes: &mut [u8], segment: usize) -> Result<bool, LaneError> {
        if self.full.get() || self.rng.f64() < self.odds { Ok(false) } else { self.io.send(path, tos, bytes, segment) }
    }

    fn receive(&mut self, now: Time, sink: &mut impl FnMut(&RxMeta, &Packet<'_>)) -> usize {
        self.io.receive(now, sink)
    }

    fn ports(&self) -> &[PortInfo] {
        self.io.ports()
    }

    fn drops(&mut self) -> Option<(PortId, u32)> {
        self.io.drops()
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.io.wait_fds()
    }

    fn next_event(&self) -> Option<Time> {
        self.io.next_event()
    }
}
