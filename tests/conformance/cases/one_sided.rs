//! RDMA WRITE and READ.

use planespray::lanes::{Completed, Lanes, Op, Status};

use crate::rig::{NOTHING, NOWHERE, Rig, Shape, same};

/// Bytes around each target that must stay zero.
const GUARD: usize = 40;
const BIG: usize = (1 << 20) + 4096;

fn lengths<L: Lanes>(rig: &Rig<L>, pair: &crate::rig::Pair) -> Vec<usize> {
    let mtu = pair.mtu as usize;
    let mut lengths = vec![0, 1, mtu - 1, mtu, mtu + 1, 5 * mtu + 3, 61_440, 1 << 20];
    lengths.retain(|&l| rig.fits(pair, l as u64));
    lengths
}

/// WRITEs of every interesting length and alignment, on every port.
pub(crate) fn writes<L: Lanes>(rig: &mut Rig<L>) {
    for port in 0..rig.ports() {
        let yard = rig.yard(Shape { port, ..Shape::default() }, BIG);
        let [here, _] = yard.pair.lane;
        for len in lengths(rig, &yard.pair) {
            for (from, to) in [(0, 128), (3, 133), (64, 97)] {
                yard.near.fill(from, len, len as u64);
                yard.far.zero(0, to as usize + len + GUARD);
                let id = rig.post(0, here, Op::Write, yard.near.at(from, len as u32), yard.there(to));
                assert_eq!(rig.success(0, id).what, Completed::Request);
                yard.far.check_zero(0, to as usize, "before the target");
                yard.far.check(to, len, len as u64, "the target");
                yard.far.check_zero(to + len as u64, GUARD, "behind the target");
            }
        }
    }
    rig.assert_no_events();
}

/// The same with immediates: the bytes are there when the immediate is.
pub(crate) fn writes_with_immediate<L: Lanes>(rig: &mut Rig<L>) {
    for port in 0..rig.ports() {
        let yard = rig.yard(Shape { port, ..Shape::default() }, BIG);
        let [here, there] = yard.pair.lane;
        for len in lengths(rig, &yard.pair) {
            let imm = 0x8000_0001 ^ (len as u32) << 3;
            yard.near.fill(1, len, len as u64);
            yard.far.zero(0, len + 2 * GUARD);
            let receive = rig.receive(1, there, None);
            let remote = if len == 0 { NOWHERE } else { yard.there(GUARD as u64) };
            let id = rig.post(0, here, Op::WriteImm(imm), yard.near.at(1, len as u32), remote);
            let c = rig.success(1, receive);
            assert_eq!((c.what, c.lane), (Completed::Immediate { imm }, there));
            yard.far.check_zero(0, GUARD, "before the target");
            yard.far.check(GUARD as u64, len, len as u64, "the target");
            yard.far.check_zero((GUARD + len) as u64, GUARD, "behind the target");
            assert_eq!(rig.success(0, id).what, Completed::Request);
        }
    }
    rig.assert_no_events();
}

/// Immediates of many WRITEs of mixed lengths come in posting order, each after all bytes posted before it.
pub(crate) fn immediates_in_order<L: Lanes>(rig: &mut Rig<L>) {
    const N: u64 = 60;
    const STRIDE: u64 = 16 << 10;
    let yard = rig.yard(Shape::default(), (N * STRIDE) as usize);
    let [here, there] = yard.pair.lane;
    let length = |i: u64| [0, 1, yard.pair.mtu, 3 * yard.pair.mtu + 1, 100, 2 * yard.pair.mtu][i as usize % 6];
    yard.near.fill(0, (N * STRIDE) as usize, 1);
    let receives: Vec<u64> = (0..N / 2).map(|_| rig.receive(1, there, None)).collect();
    let mut requests = Vec::new();
    for i in 0..N {
        let op = if i % 2 == 0 { Op::Write } else { Op::WriteImm(1000 + i as u32) };
        requests.push(rig.post(0, here, op, yard.near.at(i * STRIDE, length(i)), yard.there(i * STRIDE)));
    }
    for (i, &id) in receives.iter().enumerate() {
        let last = 2 * i as u64 + 1;
        assert_eq!(rig.success(1, id).what, Completed::Immediate { imm: 1000 + last as u32 });
        for j in [last - 1, last] {
            let len = length(j) as usize;
            same(&yard.far.read(j * STRIDE, len), &yard.near.read(j * STRIDE, len), "written before the immediate");
        }
    }
    rig.all(0, &requests, Status::Success);
    rig.assert_no_events();
}

/// READs of every interesting length and alignment, on every port.
pub(crate) fn reads<L: Lanes>(rig: &mut Rig<L>) {
    for port in 0..rig.ports() {
        let yard = rig.yard(Shape { port, ..Shape::default() }, BIG);
        let [here, _] = yard.pair.lane;
        for len in lengths(rig, &yard.pair) {
            for (from, to) in [(0, 128), (5, 131), (31, 64)] {
                yard.far.fill(from, len, len as u64);
                yard.near.zero(0, to as usize + len + GUARD);
                let id = rig.post(0, here, Op::Read, yard.near.at(to, len as u32), yard.there(from));
                assert_eq!(rig.success(0, id).what, Completed::Request);
                yard.near.check_zero(0, to as usize, "before the target");
                yard.near.check(to, len, len as u64, "the target");
                yard.near.check_zero(to + len as u64, GUARD, "behind the target");
            }
        }
    }
    rig.assert_no_events();
}

/// A READ returns what a WRITE before it on the same lane has written.
pub(crate) fn read_sees_the_write_before<L: Lanes>(rig: &mut Rig<L>) {
    let yard = rig.yard(Shape::default(), 256 << 10);
    let [here, _] = yard.pair.lane;
    let len = 2 * yard.pair.mtu + 9;
    for round in 0..20 {
        let at = round * u64::from(len);
        yard.near.fill(0, len as usize, round);
        yard.near.zero(128 << 10, len as usize);
        let write = rig.post(0, here, Op::Write, yard.near.at(0, len), yard.there(at));
        let read = rig.post(0, here, Op::Read, yard.near.at(128 << 10, len), yard.there(at));
        rig.all(0, &[write, read], Status::Success);
        yard.near.check(128 << 10, len as usize, round, "read back");
    }
    rig.assert_no_events();
}

/// More READs than a queue pair has outstanding on the wire, between other requests, in order.
pub(crate) fn many_reads<L: Lanes>(rig: &mut Rig<L>) {
    const N: u64 = 100;
    let yard = rig.yard(Shape { send_depth: 256, receive_depth: 256, ..Shape::default() }, 1 << 20);
    let [here, there] = yard.pair.lane;
    let len = yard.pair.mtu + 1;
    let stride = u64::from(len);
    yard.far.fill(0, N as usize * len as usize, 1);
    let mut ids = Vec::new();
    for i in 0..N {
        if i % 5 == 4 {
            rig.receive(1, there, None);
            ids.push(rig.post(0, here, Op::WriteImm(i as u32), NOTHING, NOWHERE));
        }
        ids.push(rig.post(0, here, Op::Read, yard.near.at(i * stride, len), yard.there(i * stride)));
    }
    rig.all(0, &ids, Status::Success);
    yard.near.check(0, N as usize * len as usize, 1, "all that was read");
    rig.assert_no_events();
}

/// Long WRITEs one behind the other, more than any window takes at once, in both directions.
pub(crate) fn many_writes<L: Lanes>(rig: &mut Rig<L>) {
    const N: usize = 24;
    let pair = rig.join(Shape::default());
    let len = if rig.fits(&pair, 61_440) { 61_440 } else { 4096 };
    let memory = [rig.memory(0, 2 * N * len), rig.memory(1, 2 * N * len)];
    let window = [0, 1].map(|end| rig.open(end, &memory[end], (N * len) as u64, (N * len) as u64, crate::rig::ALL));
    let mut ids = [Vec::new(), Vec::new()];
    for i in 0..N {
        for end in 0..2 {
            let at = (i * len) as u64;
            memory[end].fill(at, len, at + end as u64);
            let local = memory[end].at(at, len as u32);
            ids[end].push(rig.post(end, pair.lane[end], Op::Write, local, pair.at(&window[1 - end], at)));
        }
    }
    for end in 0..2 {
        rig.all(end, &ids[end], Status::Success);
        for i in 0..N {
            let at = (i * len) as u64;
            memory[1 - end].check((N * len) as u64 + at, len, at + end as u64, "written");
        }
    }
    rig.assert_no_events();
}
