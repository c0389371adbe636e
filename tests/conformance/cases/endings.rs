//! How lanes end: fenced, destroyed, and without a peer.

use std::collections::BTreeSet;

use planespray::lanes::{Lanes, Op, Status};
use planespray::time::Span;

use super::queues::refuses_everything;
use crate::rig::{Memory, NOTHING, NOWHERE, Pair, Rig, Shape, Yard, same};

/// A fence before the first doorbell: nothing is sent, everything is flushed.
pub(crate) fn fenced_before_anything_was_sent<L: Lanes>(rig: &mut Rig<L>) {
    let yard = rig.yard(Shape::default(), 64 << 10);
    let [here, there] = yard.pair.lane;
    yard.near.fill(0, 32 << 10, 1);
    rig.receive(1, there, None);
    let receives: Vec<u64> = (0..5).map(|_| rig.receive(0, here, None)).collect();
    let requests: Vec<u64> = (0..12)
        .map(|i| {
            let op = [Op::Write, Op::WriteImm(1), Op::Read, Op::Send][i % 4];
            rig.try_post(0, here, op, yard.near.at(i as u64 * 512, 512), yard.there(1024)).expect("posted")
        })
        .collect();
    rig.ends[0].fence(here).expect("fenced");
    rig.all(0, &requests, Status::Flushed);
    rig.all(0, &receives, Status::Flushed);
    rig.pass(Span::from_millis(20));
    yard.far.check_zero(0, 64 << 10, "the peer's memory");
    assert!(rig.try_post(0, here, Op::Write, yard.near.at(0, 8), yard.there(0)).is_err(), "post after the fence");
    assert!(rig.try_receive(0, here, None).is_err(), "receive after the fence");
    assert_eq!(rig.ends[0].fence(here), Ok(()), "fenced twice");
    rig.pass(Span::from_millis(1));
    rig.part(&yard.pair);
}

/// A fence at the requester in the middle of everything: what has not succeeded is flushed, and the answers to READs
/// that come late are not placed.
pub(crate) fn fenced_requester<L: Lanes>(rig: &mut Rig<L>) {
    for rounds in 0..10 {
        let yard = rig.yard(Shape::default(), 1 << 20);
        let [here, there] = yard.pair.lane;
        let len = 3 * yard.pair.mtu + 1;
        yard.far.fill(0, 512 << 10, 1);
        let receives: Vec<u64> = (0..5).map(|_| rig.receive(0, here, None)).collect();
        let requests: Vec<u64> = (0..24)
            .map(|i| {
                let at = i * u64::from(len);
                let op = if i % 3 == 0 { Op::Write } else { Op::Read };
                let (near, far) = if op == Op::Read { (at, at) } else { (600 << 10, 600 << 10) };
                rig.post(0, here, op, yard.near.at(near, len), yard.there(far))
            })
            .collect();
        for _ in 0..rounds {
            rig.step(rig.now + Span::from_millis(1));
        }
        rig.ends[0].fence(here).expect("fenced");
        let then = yard.near.read(0, 1 << 20);
        let statuses: Vec<Status> = requests.iter().map(|&id| rig.wait(0, id).status).collect();
        assert!(statuses.iter().all(|s| matches!(s, Status::Success | Status::Flushed)), "{statuses:?}");
        rig.all(0, &receives, Status::Flushed);
        rig.pass(Span::from_millis(20));
        same(&yard.near.read(0, 1 << 20), &then, "memory after the fence");
        // The peer's end knows nothing of it, and is fenced on its own.
        let theirs = rig.receive(1, there, None);
        rig.ends[1].fence(there).expect("fenced");
        rig.all(1, &[theirs], Status::Flushed);
        rig.part(&yard.pair);
    }
    rig.assert_no_events();
}

/// A fence at the responder: receives are flushed, and nothing of what is under way is placed or delivered.
pub(crate) fn fenced_responder<L: Lanes>(rig: &mut Rig<L>) {
    for rounds in 0..8 {
        let yard = rig.yard(Shape::default(), 1 << 20);
        let [here, there] = yard.pair.lane;
        yard.near.fill(0, 1 << 20, 1);
        let len = 5 * yard.pair.mtu;
        let receives: Vec<u64> =
            (0..10).map(|i| rig.receive(1, there, Some(yard.far.at((900 << 10) + i * 64, 64)))).collect();
        for i in 0..20 {
            let at = i * u64::from(len);
            let op = if i % 2 == 0 { Op::Write } else { Op::WriteImm(i as u32) };
            rig.post(0, here, op, yard.near.at(at, len), yard.there(at));
        }
        for _ in 0..rounds {
            rig.step(rig.now + Span::from_millis(1));
        }
        rig.ends[1].fence(there).expect("fenced");
        let then = yard.far.read(0, 1 << 20);
        let statuses: Vec<Status> = receives.iter().map(|&id| rig.wait(1, id).status).collect();
        assert!(statuses.iter().all(|s| matches!(s, Status::Success | Status::Flushed)), "{statuses:?}");
        rig.pass(Span::from_millis(60));
        same(&yard.far.read(0, 1 << 20), &then, "memory after the fence");
        rig.ends[0].fence(here).expect("fenced");
        rig.part(&yard.pair);
    }
    rig.assert_no_events();
}

/// A lane that never had a peer.
pub(crate) fn fenced_unconnected<L: Lanes>(rig: &mut Rig<L>) {
    let lane = rig.create(0, Shape::default());
    let receives: Vec<u64> = (0..3).map(|_| rig.receive(0, lane, None)).collect();
    rig.ends[0].fence(lane).expect("fenced");
    rig.all(0, &receives, Status::Flushed);
    rig.destroy(0, lane);
    let lane = rig.create(0, Shape::default());
    rig.receive(0, lane, None);
    rig.destroy(0, lane);
    rig.pass(Span::from_millis(1));
}

/// Completions that nobody polled go with their lane, and its number goes for good.
pub(crate) fn destroyed_with_completions_due<L: Lanes>(rig: &mut Rig<L>) {
    let address = {
        let pair = rig.join(Shape::default());
        rig.ends[1].address(pair.lane[1]).expect("an address")
    };
    let mut old = Vec::new();
    for round in 0..6 {
        let yard = rig.yard(Shape::default(), 64 << 10);
        let [here, there] = yard.pair.lane;
        yard.near.fill(0, 4096, round);
        rig.receive(1, there, None);
        for i in 0..8 {
            rig.post(0, here, Op::Write, yard.near.at(i * 512, 512), yard.there(i * 512));
        }
        rig.post(0, here, Op::WriteImm(1), NOTHING, NOWHERE);
        rig.receive(0, here, None);
        let deadline = rig.now + Span::from_secs(5);
        while rig.next_arrived(1).is_none() {
            assert!(rig.now < deadline, "no immediate came");
            rig.step_blind(0);
        }
        for _ in 0..4 {
            rig.step_blind(0);
        }
        yard.far.check(0, 4096, round, "what was written");
        rig.destroy(0, here);
        refuses_everything(rig, here, &address, yard.near.at(0, 8));
        old.push(here);
        // Its successor has nothing of it.
        let next = rig.yard(Shape::default(), 4096);
        assert!(!old.contains(&next.pair.lane[0]), "{:?} was given out again", next.pair.lane[0]);
        refuses_everything(rig, here, &address, yard.near.at(0, 8));
        next.near.fill(0, 64, 9);
        let id = rig.post(0, next.pair.lane[0], Op::Write, next.near.at(0, 64), next.there(0));
        rig.success(0, id);
        next.far.check(0, 64, 9, "the successor's WRITE");
        rig.destroy(1, there);
        old.push(next.pair.lane[0]);
        rig.part(&next.pair);
    }
    rig.pass(Span::from_millis(1));
    rig.assert_no_events();
}

/// Lanes that follow each other with everything under way: late packets of one never touch the next.
pub(crate) fn successors<L: Lanes>(rig: &mut Rig<L>) {
    let (near, far) = (rig.memory(0, 1 << 20), rig.memory(1, 1 << 20));
    let windows = [
        rig.open(0, &near, 512 << 10, 256 << 10, crate::rig::ALL),
        rig.open(1, &far, 512 << 10, 256 << 10, crate::rig::ALL),
    ];
    let memories = [near, far];
    let mut seen = [BTreeSet::new(), BTreeSet::new()];
    let mut before: Option<[Vec<u8>; 2]> = None;
    for round in 0..40u64 {
        let pair = rig.join(Shape { entropy: round as u16 % 4, ..Shape::default() });
        for (seen, lane) in seen.iter_mut().zip(pair.lane) {
            assert!(seen.insert(lane.0), "{lane:?} was given out again");
        }
        if let Some(before) = before.take() {
            for end in 0..2 {
                same(&memories[end].read(0, 1 << 20), &before[end], "memory after its lanes were destroyed");
            }
        }
        for end in 0..2 {
            memories[end].fill(0, 128 << 10, round);
            let (memory, window) = (&memories[end], &windows[1 - end]);
            let lane = pair.lane[end];
            for i in 0..4 {
                rig.receive(end, lane, Some(memory.at((900 << 10) + i * 4096, 4096)));
            }
            for i in 0..8 {
                let len = 1000 + 700 * i as u32;
                let op = [Op::Write, Op::WriteImm(i as u32), Op::Read, Op::Send][i as usize % 4];
                let local = match op {
                    Op::Read => memory.at((200 << 10) + i * 8192, len),
                    Op::Send => memory.at(0, 4096),
                    _ => memory.at(i, len),
                };
                rig.post(end, lane, op, local, pair.at(window, (i * 8192) | (round & 1)));
            }
        }
        for _ in 0..round % 7 {
            rig.step(rig.now + Span::from_millis(1));
        }
        rig.part(&pair);
        before = Some([memories[0].read(0, 1 << 20), memories[1].read(0, 1 << 20)]);
        for _ in 0..round % 5 {
            rig.step(rig.now + Span::from_millis(1));
        }
    }
    rig.assert_no_events();
}

/// The peer's end is gone without a word.
pub(crate) fn dead_peer<L: Lanes>(rig: &mut Rig<L>) {
    dead_lane(rig, |rig, pair| rig.destroy(1, pair.lane[1]));
}

/// A lane whose packets meet no answer any more gives up in bounded time, once; others live on.
pub(crate) fn dead_lane<L: Lanes>(rig: &mut Rig<L>, kill: impl FnOnce(&mut Rig<L>, &Pair)) {
    let last = rig.ports() - 1;
    let bystander = rig.yard(Shape { port: last, entropy: 2, ..Shape::default() }, 64 << 10);
    let yard = rig.yard(Shape::default(), 64 << 10);
    let [here, _] = yard.pair.lane;
    yard.near.fill(0, 64 << 10, 1);
    let warm = rig.post(0, here, Op::Write, yard.near.at(0, 4096), yard.there(0));
    rig.success(0, warm);
    let receives: Vec<u64> = (0..4).map(|_| rig.receive(0, here, None)).collect();

    kill(rig, &yard.pair);
    let start = rig.now;
    let requests: Vec<u64> = (0..9)
        .map(|i| {
            let op = [Op::Write, Op::Read, Op::WriteImm(1)][i % 3];
            rig.post(0, here, op, yard.near.at(8192, 600), yard.there(8192))
        })
        .collect();
    let mut alive = 0;
    let dead = rig.until("the dead lane's error", |rig| {
        write(rig, &bystander, &bystander.near, alive);
        alive += 1;
        requests.iter().find_map(|&id| rig.peek(0, id))
    });
    let took = rig.now.since(start);
    assert!(took <= rig.can.gives_up, "gave up after {took:?}");
    assert_eq!((dead.id, dead.status), (requests[0], Status::RetryExceeded));
    rig.wait(0, requests[0]);
    rig.all(0, &requests[1..], Status::Flushed);
    rig.all(0, &receives, Status::Flushed);
    assert_eq!(rig.lane_error(0, here), Status::RetryExceeded);
    assert!(rig.try_post(0, here, Op::Write, yard.near.at(0, 8), yard.there(0)).is_err(), "the dead lane takes work");
    write(rig, &bystander, &bystander.near, alive);
    assert!(alive >= 1);
    rig.destroy(0, here);
    rig.assert_no_events();
}

/// One WRITE that must succeed.
fn write<L: Lanes>(rig: &mut Rig<L>, yard: &Yard, near: &Memory, seed: u64) {
    near.fill(0, 512, seed);
    let id = rig.post(0, yard.pair.lane[0], Op::Write, near.at(0, 512), yard.there(0));
    rig.success(0, id);
    yard.far.check(0, 512, seed, "a living lane");
}
