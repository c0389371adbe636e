//! SEND and receive.

use planespray::lanes::{Completed, Lanes, Op, Status};
use planespray::time::Span;

use crate::rig::{NOTHING, NOWHERE, Rig, Shape};

/// Bytes after each buffer that must stay zero.
const GUARD: usize = 32;

/// SENDs of every interesting length, all under way at once, each into a receive longer than itself.
pub(crate) fn sends<L: Lanes>(rig: &mut Rig<L>) {
    for port in 0..rig.ports() {
        let pair = rig.join(Shape { port, ..Shape::default() });
        let mtu = pair.mtu as usize;
        let mut lengths = vec![0, 1, 7, mtu - 1, mtu, mtu + 1, 5 * mtu + 3, 61_440, 0, 1 << 20, 64];
        lengths.retain(|&l| rig.fits(&pair, l as u64));
        let total: usize = lengths.iter().map(|l| l + GUARD).sum();
        let (near, far) = (rig.memory(0, total), rig.memory(1, total));
        let (mut at, mut receives, mut sends) = (0, Vec::new(), Vec::new());
        for &len in &lengths {
            receives.push((at, rig.receive(1, pair.lane[1], Some(far.at(at, (len + GUARD) as u32)))));
            at += (len + GUARD) as u64;
        }
        for (&len, &(at, _)) in lengths.iter().zip(&receives) {
            near.fill(at, len, at);
            sends.push(rig.post(0, pair.lane[0], Op::Send, near.at(at, len as u32), NOWHERE));
        }
        for (&len, &(at, id)) in lengths.iter().zip(&receives) {
            let c = rig.success(1, id);
            assert_eq!((c.what, c.lane), (Completed::Receive { len: len as u32 }, pair.lane[1]));
            far.check(at, len, at, "what was sent");
            far.check_zero(at + len as u64, GUARD, "behind what was sent");
        }
        for id in sends {
            let c = rig.success(0, id);
            assert_eq!((c.what, c.lane), (Completed::Request, pair.lane[0]));
        }
    }
    rig.assert_no_events();
}

/// A SEND may fill its receive to the last byte.
pub(crate) fn exact_receives<L: Lanes>(rig: &mut Rig<L>) {
    let pair = rig.join(Shape::default());
    let (near, far) = (rig.memory(0, 64 << 10), rig.memory(1, 64 << 10));
    for len in [1, pair.mtu, pair.mtu + 1, 3 * pair.mtu] {
        near.fill(5, len as usize, u64::from(len));
        far.zero(0, 64 << 10);
        let receive = rig.receive(1, pair.lane[1], Some(far.at(3, len)));
        let send = rig.post(0, pair.lane[0], Op::Send, near.at(5, len), NOWHERE);
        assert_eq!(rig.success(1, receive).what, Completed::Receive { len });
        rig.success(0, send);
        far.check_zero(0, 3, "before the receive");
        far.check(3, len as usize, u64::from(len), "the receive");
        far.check_zero(3 + u64::from(len), GUARD, "behind the receive");
    }
    rig.assert_no_events();
}

/// Receives without buffer serve empty SENDs and immediates.
pub(crate) fn receives_without_buffer<L: Lanes>(rig: &mut Rig<L>) {
    let yard = rig.yard(Shape::default(), 4096);
    let [here, there] = yard.pair.lane;
    let receives: Vec<u64> = (0..3).map(|_| rig.receive(1, there, None)).collect();
    yard.near.fill(0, 100, 1);
    let requests = [
        rig.post(0, here, Op::Send, NOTHING, NOWHERE),
        rig.post(0, here, Op::WriteImm(0xfeed_beef), yard.near.at(0, 100), yard.there(8)),
        rig.post(0, here, Op::Send, NOTHING, NOWHERE),
    ];
    assert_eq!(rig.success(1, receives[0]).what, Completed::Receive { len: 0 });
    assert_eq!(rig.success(1, receives[1]).what, Completed::Immediate { imm: 0xfeed_beef });
    yard.far.check(8, 100, 1, "written before the immediate came");
    assert_eq!(rig.success(1, receives[2]).what, Completed::Receive { len: 0 });
    rig.all(0, &requests, Status::Success);
    rig.assert_no_events();
}

/// Receives can be posted as soon as the lane is made.
pub(crate) fn receives_before_the_connection<L: Lanes>(rig: &mut Rig<L>) {
    let lane = [rig.create(0, Shape::default()), rig.create(1, Shape::default())];
    let (near, far) = (rig.memory(0, 4096), rig.memory(1, 4096));
    let receives: Vec<u64> = (0..8).map(|i| rig.receive(1, lane[1], Some(far.at(i * 64, 64)))).collect();
    let pair = rig.connect(lane);
    near.fill(0, 8 * 64, 1);
    let sends: Vec<u64> = (0..8).map(|i| rig.post(0, pair.lane[0], Op::Send, near.at(i * 64, 64), NOWHERE)).collect();
    rig.all(1, &receives, Status::Success);
    rig.all(0, &sends, Status::Success);
    far.check(0, 8 * 64, 1, "all receives");
    rig.assert_no_events();
}

/// A SEND that finds no receive waits for one; nothing is lost and nothing overtakes.
pub(crate) fn late_receives<L: Lanes>(rig: &mut Rig<L>) {
    let pair = rig.join(Shape::default());
    let (near, far) = (rig.memory(0, 64 << 10), rig.memory(1, 64 << 10));
    let window = rig.open(1, &far, 32 << 10, 4096, crate::rig::ALL);
    let len = 2 * pair.mtu + 1;
    near.fill(0, 3 * len as usize, 1);
    let sends = [
        rig.post(0, pair.lane[0], Op::Send, near.at(0, len), NOWHERE),
        rig.post(0, pair.lane[0], Op::WriteImm(77), near.at(9, 100), pair.at(&window, 0)),
        rig.post(0, pair.lane[0], Op::Send, near.at(u64::from(len), len), NOWHERE),
    ];
    rig.pass(Span::from_millis(3));
    let mut receives = Vec::new();
    for i in 0..3 {
        receives.push(rig.receive(1, pair.lane[1], Some(far.at(i * u64::from(len), len))));
        let c = rig.success(1, receives[i as usize]);
        let expected = if i == 1 { Completed::Immediate { imm: 77 } } else { Completed::Receive { len } };
        assert_eq!(c.what, expected);
        rig.pass(Span::from_millis(2));
    }
    rig.all(0, &sends, Status::Success);
    far.check(0, len as usize, 1, "first SEND");
    far.check_zero(u64::from(len), len as usize, "the buffer of the receive that the immediate took");
    let all = near.read(0, 2 * len as usize);
    crate::rig::same(&far.read(2 * u64::from(len), len as usize), &all[len as usize..], "second SEND");
    rig.assert_no_events();
}

/// A SEND longer than its receive fails at both ends and ends the lane at both; nothing is written behind the receive.
pub(crate) fn too_long_for_the_receive<L: Lanes>(rig: &mut Rig<L>) {
    let mtu = rig.join(Shape::default()).mtu;
    for (capacity, len) in [(Some(16), 17), (None, 1), (Some(mtu + 5), 3 * mtu), (Some(mtu), mtu + 1)] {
        let pair = rig.join(Shape::default());
        let [here, there] = pair.lane;
        let (near, far) = (rig.memory(0, 32 << 10), rig.memory(1, 32 << 10));
        near.fill(0, 16 << 10, 1);
        let first = rig.receive(1, there, Some(far.at(0, 8)));
        let short = rig.receive(1, there, capacity.map(|c| far.at(8, c)));
        let spare = rig.receive(1, there, Some(far.at(24 << 10, 4096)));
        let own = rig.receive(0, here, None);
        let good = rig.post(0, here, Op::Send, near.at(0, 8), NOWHERE);
        let long = rig.post(0, here, Op::Send, near.at(0, len), NOWHERE);
        let after = rig.post(0, here, Op::Send, near.at(0, 8), NOWHERE);
        rig.success(1, first);
        rig.spoiled(1, short, Status::LocalLength);
        assert_eq!(rig.wait(1, spare).status, Status::Flushed);
        rig.refused(0, here, &[good, long, after], 1, &[Status::RemoteInvalidRequest]);
        assert_eq!(rig.wait(0, own).status, Status::Flushed);
        let why = rig.lane_error(1, there);
        assert!(why == Status::LocalLength || !rig.can.exact_errors, "{len} bytes into {capacity:?}: {why:?}");
        let placed = 8 + u64::from(capacity.unwrap_or(0));
        far.check_zero(placed, (32 << 10) - placed as usize, "behind the receive");
        rig.part(&pair);
    }
    rig.assert_no_events();
}
