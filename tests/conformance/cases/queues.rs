//! Queues: their bounds, their order, and what they refuse.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use planespray::lanes::{Completed, LaneAddress, LaneError, LaneId, LaneSpec, Lanes, Local, MrId, Op, PortId, Status};

use crate::rig::{NOTHING, NOWHERE, Rig, Shape};

/// Most that a backend may round a depth up to.
const ROUNDED: usize = 64;

/// A full send queue says so and takes work again once completions were polled.
pub(crate) fn full_send_queue<L: Lanes>(rig: &mut Rig<L>) {
    const DEPTH: usize = 8;
    let yard = rig.yard(Shape { send_depth: DEPTH as u16, ..Shape::default() }, 64 << 10);
    let [here, _] = yard.pair.lane;
    yard.near.fill(0, 64 << 10, 1);
    let mut written = 0;
    for round in 0..5 {
        let mut ids = Vec::new();
        while let Ok(id) = rig.try_post(0, here, Op::Write, yard.near.at(written, 16), yard.there(written)) {
            ids.push(id);
            written += 16;
            assert!(ids.len() <= ROUNDED * DEPTH, "the queue has no end");
        }
        assert!(ids.len() >= DEPTH, "round {round}: only {} of {DEPTH}", ids.len());
        assert!(!rig.can.exact_depth || ids.len() == DEPTH, "round {round}: {} instead of {DEPTH}", ids.len());
        // Full does no harm to what is there, and ends with the first completion that is polled.
        rig.success(0, ids[0]);
        let one = rig.try_post(0, here, Op::Write, yard.near.at(written, 16), yard.there(written));
        ids.push(one.expect("room after a completion"));
        written += 16;
        rig.all(0, &ids[1..], Status::Success);
    }
    crate::rig::same(&yard.far.read(0, written as usize), &yard.near.read(0, written as usize), "all that was taken");
    yard.far.check_zero(written, 1024, "behind it");
    rig.assert_no_events();
}

/// The same for receives.
pub(crate) fn full_receive_queue<L: Lanes>(rig: &mut Rig<L>) {
    const DEPTH: usize = 4;
    let pair = rig.join(Shape { receive_depth: DEPTH as u16, ..Shape::default() });
    let [here, there] = pair.lane;
    for round in 0..5 {
        let mut ids = Vec::new();
        while let Ok(id) = rig.try_receive(1, there, None) {
            ids.push(id);
            assert!(ids.len() <= ROUNDED * DEPTH, "the queue has no end");
        }
        assert!(ids.len() >= DEPTH, "round {round}: only {} of {DEPTH}", ids.len());
        assert!(!rig.can.exact_depth || ids.len() == DEPTH, "round {round}: {} instead of {DEPTH}", ids.len());
        for id in ids {
            let send = rig.post(0, here, Op::Send, NOTHING, NOWHERE);
            rig.success(1, id);
            rig.success(0, send);
        }
    }
    rig.assert_no_events();
}

/// A thousand requests of mixed kinds posted before any is sent.
pub(crate) fn deep_pipelining<L: Lanes>(rig: &mut Rig<L>) {
    const N: u64 = 1000;
    let yard = rig.yard(Shape { send_depth: 1024, receive_depth: 1024, ..Shape::default() }, 256 << 10);
    let [here, there] = yard.pair.lane;
    yard.near.fill(0, 128 << 10, 1);
    let mut receives = Vec::new();
    let mut requests = Vec::new();
    for i in 0..N {
        let (at, len) = (i * 128, (i % 128) as u32);
        let op = match i % 4 {
            0 | 1 => Op::Write,
            2 => Op::WriteImm(i as u32),
            _ => Op::Send,
        };
        match op {
            Op::WriteImm(_) => receives.push((i, rig.receive(1, there, None))),
            Op::Send => receives.push((i, rig.receive(1, there, Some(yard.far.at(at, 128))))),
            _ => {}
        }
        requests.push(rig.post(0, here, op, yard.near.at(at, len), yard.there(at)));
    }
    for (i, id) in receives {
        let expected = match i % 4 {
            2 => Completed::Immediate { imm: i as u32 },
            _ => Completed::Receive { len: (i % 128) as u32 },
        };
        assert_eq!(rig.success(1, id).what, expected);
    }
    rig.all(0, &requests, Status::Success);
    let (near, far) = (yard.near.read(0, 128_000), yard.far.read(0, 128_000));
    for i in 0..N as usize {
        let (start, len) = (i * 128, i % 128);
        crate::rig::same(&far[start..start + len], &near[start..start + len], &format!("message {i}"));
        assert!(far[start + len..start + 128].iter().all(|&b| b == 0), "behind message {i}");
    }
    rig.assert_no_events();
}

/// Lanes that never were.
pub(crate) fn unknown_lanes<L: Lanes>(rig: &mut Rig<L>) {
    let pair = rig.join(Shape::default());
    let memory = rig.memory(0, 64);
    let address = rig.ends[1].address(pair.lane[1]).expect("an address");
    for lane in [LaneId(0), LaneId(u32::MAX), LaneId(pair.lane[0].0 ^ 0x0001_0000), LaneId(pair.lane[0].0 + 77)] {
        refuses_everything(rig, lane, &address, memory.at(0, 8));
    }
    let ports = rig.ends[0].ports().len() as u8;
    let spec = LaneSpec {
        port: PortId(ports),
        domain: crate::rig::HOME,
        class: planespray::class::Class::Bulk,
        dscp: planespray::class::Dscp::default(),
        send_depth: 8,
        receive_depth: 8,
        entropy: 0,
    };
    for port in [ports, u8::MAX] {
        let made = rig.ends[0].create(&LaneSpec { port: PortId(port), ..spec });
        assert!(matches!(made, Err(LaneError::Invalid { .. })), "a lane on port {port}: {made:?}");
    }
    let id = rig.try_receive(1, pair.lane[1], None).expect("the real lane lives");
    let send = rig.post(0, pair.lane[0], Op::Send, NOTHING, NOWHERE);
    rig.success(1, id);
    rig.success(0, send);
    rig.assert_no_events();
}

/// Every call on a lane that is not there, at end 0.
#[track_caller]
pub(crate) fn refuses_everything<L: Lanes>(rig: &mut Rig<L>, lane: LaneId, peer: &LaneAddress, local: Local) {
    let end = &mut rig.ends[0];
    assert_eq!(end.address(lane), Err(LaneError::NoLane), "{lane:?}");
    assert_eq!(end.connect(lane, peer), Err(LaneError::NoLane), "{lane:?}");
    assert_eq!(end.lane_mtu(lane), None, "{lane:?}");
    assert_eq!(end.fence(lane), Err(LaneError::NoLane), "{lane:?}");
    assert_eq!(end.destroy(lane), Err(LaneError::NoLane), "{lane:?}");
    assert!(rig.try_post(0, lane, Op::Send, local, NOWHERE).is_err(), "{lane:?}");
    assert!(rig.try_receive(0, lane, Some(local)).is_err(), "{lane:?}");
}

/// Registrations that never were, or are no more.
pub(crate) fn unknown_memory<L: Lanes>(rig: &mut Rig<L>) {
    let yard = rig.yard(Shape::default(), 4096);
    let [here, there] = yard.pair.lane;
    let gone = rig.memory(0, 4096);
    assert!(rig.ends[0].deregister(gone.mr));
    for mr in [gone.mr, MrId(u32::MAX), MrId(gone.mr.0 + 50)] {
        let local = Local { mr, offset: 0, len: 8 };
        assert!(rig.try_post(0, here, Op::Write, local, yard.there(0)).is_err(), "a WRITE from {mr:?}");
        assert!(rig.try_post(0, here, Op::Read, local, yard.there(0)).is_err(), "a READ into {mr:?}");
        assert!(rig.try_receive(0, here, Some(local)).is_err(), "a receive into {mr:?}");
    }
    let id = rig.receive(1, there, None);
    let imm = rig.post(0, here, Op::WriteImm(5), NOTHING, NOWHERE);
    assert_eq!(rig.success(1, id).what, Completed::Immediate { imm: 5 });
    rig.success(0, imm);
    rig.assert_no_events();
}

/// Our own bytes outside their registration: refused when posted or when carried out, but never sent or placed.
pub(crate) fn local_bounds<L: Lanes>(rig: &mut Rig<L>) {
    for (op, offset, len) in [(Op::Write, 4095, 2), (Op::Send, 4096, 1), (Op::Read, 4090, 8), (Op::Write, u64::MAX, 1)]
    {
        let yard = rig.yard(Shape::default(), 4096);
        let [here, there] = yard.pair.lane;
        yard.far.fill(0, 4096, 2);
        rig.receive(1, there, Some(yard.far.at(0, 64)));
        match rig.try_post(0, here, op, yard.near.at(offset, len), yard.there(0)) {
            Err(_) => {}
            Ok(id) => {
                assert_eq!(rig.wait(0, id).status, Status::LocalProtection, "{op:?} of {len} at {offset}");
                assert_eq!(rig.lane_error(0, here), Status::LocalProtection);
            }
        }
        yard.far.check(0, 4096, 2, "the peer's memory");
        rig.part(&yard.pair);
    }
    rig.assert_no_events();
}

/// A lane without a peer takes no requests, and refuses peers that make no sense.
pub(crate) fn unconnected<L: Lanes>(rig: &mut Rig<L>) {
    let lane = [rig.create(0, Shape::default()), rig.create(1, Shape::default())];
    assert!(rig.try_post(0, lane[0], Op::Send, NOTHING, NOWHERE).is_err());
    let good = rig.ends[1].address(lane[1]).expect("an address");
    for mtu in [0, 255, 1000] {
        let asked = rig.ends[0].connect(lane[0], &LaneAddress { mtu, ..good });
        assert!(asked.is_err(), "a peer with an MTU of {mtu}");
    }
    let addr: IpAddr = if good.addr.is_ipv4() { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    let asked = rig.ends[0].connect(lane[0], &LaneAddress { addr, ..good });
    assert!(asked.is_err(), "a peer of another address family");
    // A peer that could take more: the smaller of both counts.
    assert_eq!(rig.ends[0].connect(lane[0], &LaneAddress { mtu: 4096, ..good }), Ok(()));
    assert_eq!(rig.ends[0].lane_mtu(lane[0]), Some(rig.ends[0].ports()[0].mtu));
    assert!(rig.ends[0].connect(lane[0], &good).is_err(), "connected twice");
    rig.assert_no_events();
}

/// One lane for many thousand messages: numbers that wrap do no harm.
pub(crate) fn long_lived<L: Lanes>(rig: &mut Rig<L>) {
    const N: u32 = 6000;
    let yard = rig.yard(Shape { send_depth: 32, receive_depth: 64, ..Shape::default() }, 4096);
    let [here, there] = yard.pair.lane;
    let (mut posted, mut received, mut sent, mut done) = (0, 0, 0, 0);
    while done < N || received < N {
        while posted < N && posted < received + 64 && rig.try_receive(1, there, None).is_ok() {
            posted += 1;
        }
        while sent < posted {
            let local = yard.near.at(0, 8);
            if !rig.has_room(0, here, Op::Write, 8)
                || rig.try_post(0, here, Op::WriteImm(sent.wrapping_mul(0x9e37)), local, yard.there(0)).is_err()
            {
                break;
            }
            sent += 1;
        }
        let (d, r) = rig.until("progress", |rig| {
            let (mut d, mut r) = (0, Vec::new());
            while let Some(c) = rig.next_arrived(0) {
                assert_eq!(c.status, Status::Success, "{c:?}");
                d += 1;
            }
            while let Some(c) = rig.next_arrived(1) {
                r.push(c.what);
            }
            (d > 0 || !r.is_empty()).then_some((d, r))
        });
        done += d;
        for what in r {
            assert_eq!(what, Completed::Immediate { imm: u32::wrapping_mul(received, 0x9e37) });
            received += 1;
        }
    }
    assert_eq!((done, received), (N, N));
    rig.assert_no_events();
}
