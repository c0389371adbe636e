//! Atomics on 8 bytes at the peer.

use std::collections::BTreeSet;

use planespray::lanes::{Completed, Lanes, Op, Status};

use crate::rig::{Rig, Shape};

/// FETCH ADD returns what was there, and adds, wrapping.
pub(crate) fn fetch_and_add<L: Lanes>(rig: &mut Rig<L>) {
    if !rig.can.atomics {
        return;
    }
    let yard = rig.yard(Shape::default(), 4096);
    let [here, _] = yard.pair.lane;
    let start = u64::MAX - 10;
    yard.far.region.write_at(64, &start.to_ne_bytes()).expect("inside");
    let mut expected = start;
    let mut ids = Vec::new();
    for i in 0..40 {
        let op = Op::FetchAdd(i * i);
        ids.push((i, rig.post(0, here, op, yard.near.at(i * 8, 8), yard.there(64))));
    }
    for (i, id) in ids {
        assert_eq!(rig.success(0, id).what, Completed::Request);
        assert_eq!(yard.near.word(i * 8), expected, "what was there before addition {i}");
        expected = expected.wrapping_add(i * i);
    }
    assert_eq!(yard.far.word(64), expected);
    yard.far.check_zero(0, 64, "before the word");
    yard.far.check_zero(72, 64, "behind the word");
    rig.assert_no_events();
}

/// COMPARE SWAP stores only where it finds what it expects, and returns what was there.
pub(crate) fn compare_and_swap<L: Lanes>(rig: &mut Rig<L>) {
    if !rig.can.atomics {
        return;
    }
    let yard = rig.yard(Shape::default(), 4096);
    let [here, _] = yard.pair.lane;
    let big = 0x0102_0304_0506_0708;
    let steps = [(0, big, 0), (0, 5, big), (big, 6, big), (6, u64::MAX, 6), (u64::MAX, 0, u64::MAX), (1, 2, 0)];
    let ids: Vec<u64> = (0..steps.len())
        .map(|i| {
            let (compare, swap, _) = steps[i];
            let local = yard.near.at(1024 + 8 * i as u64, 8);
            rig.post(0, here, Op::CompareSwap(compare, swap), local, yard.there(8))
        })
        .collect();
    rig.all(0, &ids, Status::Success);
    for (i, (_, _, before)) in steps.iter().enumerate() {
        assert_eq!(yard.near.word(1024 + 8 * i as u64), *before, "step {i}");
    }
    assert_eq!(yard.far.word(8), 0);
    yard.far.check_zero(0, 4096, "around the word");
    rig.assert_no_events();
}

/// Several lanes on every port add to one word, and race for another: nothing is counted twice or forgotten.
pub(crate) fn contention<L: Lanes>(rig: &mut Rig<L>) {
    if !rig.can.atomics {
        return;
    }
    const LANES: usize = 6;
    const EACH: usize = 25;
    const ROUNDS: u64 = 12;
    let (near, far) = (rig.memory(0, LANES * EACH * 8), rig.memory(1, 4096));
    let window = rig.open(1, &far, 0, 64, crate::rig::ALL);
    let ports = rig.ports();
    let pairs: Vec<_> =
        (0..LANES).map(|i| rig.join(Shape { port: i as u8 % ports, entropy: i as u16, ..Shape::default() })).collect();
    let mut ids = Vec::new();
    for i in 0..EACH {
        for (j, pair) in pairs.iter().enumerate() {
            let local = near.at(((i * LANES + j) * 8) as u64, 8);
            ids.push(rig.post(0, pair.lane[0], Op::FetchAdd(1), local, pair.at(&window, 0)));
        }
    }
    rig.all(0, &ids, Status::Success);
    let seen: BTreeSet<u64> = (0..LANES * EACH).map(|i| near.word(8 * i as u64)).collect();
    assert_eq!(seen, (0..(LANES * EACH) as u64).collect(), "every value was seen once");
    assert_eq!(far.word(0), (LANES * EACH) as u64);

    for round in 0..ROUNDS {
        let ids: Vec<u64> = (0..LANES)
            .map(|j| {
                let pair = &pairs[j];
                let op = Op::CompareSwap(round, round + 1);
                rig.post(0, pair.lane[0], op, near.at(8 * j as u64, 8), pair.at(&window, 8))
            })
            .collect();
        rig.all(0, &ids, Status::Success);
        let won = (0..LANES).filter(|&j| near.word(8 * j as u64) == round).count();
        assert_eq!(won, 1, "round {round}: lanes that found the old value");
        assert_eq!(far.word(8), round + 1);
    }
    rig.assert_no_events();
}

/// A word that is not aligned is refused, and nothing changes.
pub(crate) fn misaligned<L: Lanes>(rig: &mut Rig<L>) {
    if !rig.can.atomics {
        return;
    }
    for op in [Op::FetchAdd(1), Op::CompareSwap(0, 1)] {
        let yard = rig.yard(Shape::default(), 4096);
        let [here, there] = yard.pair.lane;
        // Where devices have no event for it, that this is flushed tells the responder that its lane has ended.
        rig.receive(1, there, None);
        let id = rig.post(0, here, op, yard.near.at(0, 8), yard.there(4));
        let remote = [Status::RemoteInvalidRequest, Status::RemoteAccess];
        // A driver that refuses it itself tells the peer nothing.
        if remote.contains(&rig.refused(0, here, &[id], 0, &remote)) {
            rig.lane_error(1, there);
        }
        yard.far.check_zero(0, 4096, "the peer's memory");
        yard.near.check_zero(0, 4096, "the result");
        rig.part(&yard.pair);
    }
    rig.assert_no_events();
}
