//! What a window keeps out.

use planespray::lanes::{Domain, LaneError, Lanes, MrId, Op, Remote, Status, Window, WindowAccess};
use planespray::time::Span;

use crate::rig::{ALL, HOME, Memory, Pair, Rig, Shape};

/// Bytes of memory at the peer, of which the window in question covers `OPEN..OPEN + WIDE`.
const SIZE: usize = 64 << 10;
const OPEN: u64 = 16 << 10;
const WIDE: u64 = 8 << 10;
/// Where the requests before and after the trespass write 64 bytes.
const BEFORE: u64 = 0;
const AFTER: u64 = 128;
/// Seed of what the peer's memory holds.
const HELD: u64 = 0xab;

/// One trespass between two lawful WRITEs: it is refused at both ends, changes nothing anywhere, and everything
/// posted after it is flushed; other lanes do not notice.
#[track_caller]
fn refused<L: Lanes>(
    rig: &mut Rig<L>,
    what: &str,
    op: Op,
    len: u32,
    trespass: impl FnOnce(&mut Rig<L>, &Pair, &Memory) -> Remote,
) {
    let what = format!("{op:?} of {len} bytes, {what}");
    let pair = rig.join(Shape::default());
    let bystander = rig.join(Shape { entropy: 2, ..Shape::default() });
    let [here, there] = pair.lane;
    let (near, far) = (rig.memory(0, 4096 + len as usize), rig.memory(1, SIZE));
    far.fill(0, SIZE, HELD);
    near.fill(0, 64, 1);
    let lawful = rig.open(1, &far, 0, 1024, ALL);
    let remote = trespass(rig, &pair, &far);

    let own = rig.receive(0, here, None);
    let theirs = [rig.receive(1, there, None), rig.receive(1, there, None)];
    let before = rig.post(0, here, Op::Write, near.at(0, 64), pair.at(&lawful, BEFORE));
    let bad = rig.post(0, here, op, near.at(4096, len), remote);
    let after = rig.post(0, here, Op::Write, near.at(0, 64), pair.at(&lawful, AFTER));
    let last = rig.post(0, here, Op::WriteImm(1), near.at(0, 64), pair.at(&lawful, AFTER));

    rig.refused(0, here, &[before, bad, after, last], 1, &[Status::RemoteAccess]);
    rig.all(0, &[own], Status::Flushed);
    for id in theirs {
        rig.spoiled(1, id, Status::Flushed);
    }
    rig.lane_error(1, there);
    assert!(rig.try_post(0, here, Op::Write, near.at(0, 1), pair.at(&lawful, 0)).is_err(), "{what}: the lane lives");
    assert!(rig.try_receive(0, here, None).is_err(), "{what}: the lane takes receives");

    rig.pass(Span::from_millis(2));
    near.check_zero(4096, len as usize, &what);
    far.check(BEFORE, 64, 1, "the WRITE before");
    // What was flushed may have landed or not, but whole or not at all.
    let landed = far.read(AFTER, 64);
    let held = crate::rig::pattern(HELD, SIZE);
    if landed != crate::rig::pattern(1, 64) {
        crate::rig::same(&landed, &held[AFTER as usize..AFTER as usize + 64], &what);
    }
    far.region.write_at(BEFORE, &held[..64]).expect("inside");
    far.region.write_at(AFTER, &held[AFTER as usize..AFTER as usize + 64]).expect("inside");
    far.check(0, SIZE, HELD, &what);

    let other = rig.post(0, bystander.lane[0], Op::Write, near.at(0, 64), bystander.at(&lawful, 256));
    rig.success(0, other);
    far.check(256, 64, 1, "the bystander's WRITE");
    rig.part(&pair);
    rig.part(&bystander);
    rig.ends[1].close_window(&lawful);
    rig.assert_no_events();
}

/// Each operation with its length.
fn operations<L: Lanes>(rig: &Rig<L>) -> Vec<(Op, u32)> {
    let mut all = vec![(Op::Write, 8), (Op::WriteImm(3), 24), (Op::Read, 40), (Op::Write, 1)];
    if rig.can.atomics {
        all.extend([(Op::FetchAdd(1), 8), (Op::CompareSwap(0, 1), 8)]);
    }
    all
}

fn window<L: Lanes>(rig: &mut Rig<L>, far: &Memory, access: WindowAccess) -> Window {
    rig.open(1, far, OPEN, WIDE, access)
}

/// Before, behind and across the edges of a window.
pub(crate) fn outside<L: Lanes>(rig: &mut Rig<L>) {
    for (op, len) in operations(rig) {
        // Atomics must be aligned, or something else is wrong with them.
        let step = if len == 8 { 8 } else { 1 };
        let l = u64::from(len);
        refused(rig, "one step past the end", op, len, |rig, pair, far| {
            let w = window(rig, far, ALL);
            pair.at(&w, WIDE - l + step)
        });
        refused(rig, "just behind the end", op, len, |rig, pair, far| {
            let w = window(rig, far, ALL);
            pair.at(&w, WIDE)
        });
        refused(rig, "one step before the start", op, len, |rig, pair, far| {
            let w = window(rig, far, ALL);
            Remote { addr: w.addr.wrapping_sub(step), ..pair.at(&w, 0) }
        });
        refused(rig, "far away", op, len, |rig, pair, far| {
            let w = window(rig, far, ALL);
            pair.at(&w, 1 << 44)
        });
    }
}

/// Addresses at the end of the number space.
pub(crate) fn wrapping<L: Lanes>(rig: &mut Rig<L>) {
    for (op, len) in operations(rig) {
        refused(rig, "at the last address", op, len, |rig, pair, far| {
            let w = window(rig, far, ALL);
            Remote { addr: u64::MAX - 7, ..pair.at(&w, 0) }
        });
    }
    let len = 4 * rig.join(Shape::default()).mtu;
    refused(rig, "around the end of the address space", Op::Read, len, |rig, pair, far| {
        let w = window(rig, far, ALL);
        Remote { addr: w.addr.wrapping_sub(u64::from(len / 4)), ..pair.at(&w, 0) }
    });
}

/// A window that was closed.
pub(crate) fn revoked<L: Lanes>(rig: &mut Rig<L>) {
    for (op, len) in operations(rig) {
        refused(rig, "through a closed window", op, len, |rig, pair, far| {
            let w = window(rig, far, ALL);
            assert!(rig.ends[1].close_window(&w));
            assert!(!rig.ends[1].close_window(&w), "closed twice");
            pair.at(&w, 0)
        });
    }
}

/// A window that was closed and opened again under another key.
pub(crate) fn replaced<L: Lanes>(rig: &mut Rig<L>) {
    for (op, len) in operations(rig) {
        refused(rig, "with the key of an earlier window", op, len, |rig, pair, far| {
            let old = window(rig, far, ALL);
            assert!(rig.ends[1].close_window(&old));
            for _ in 0..3 {
                let new = window(rig, far, ALL);
                assert_ne!(pair.at(&new, 0), pair.at(&old, 0), "the same key again");
                assert!(rig.ends[1].close_window(&new));
            }
            window(rig, far, ALL);
            pair.at(&old, 0)
        });
    }
}

/// A window opened for other peers.
pub(crate) fn of_another_domain<L: Lanes>(rig: &mut Rig<L>) {
    if !rig.can.domains {
        return;
    }
    for (op, len) in operations(rig) {
        for domain in [Domain(HOME.0 + 1), Domain(0)] {
            refused(rig, "through another domain's window", op, len, |rig, pair, far| {
                let w = rig.ends[1].open_window(domain, far.mr, OPEN, WIDE, ALL).expect("a window");
                pair.at(&w, 0)
            });
        }
    }
}

/// A window that allows everything else.
pub(crate) fn without_the_right<L: Lanes>(rig: &mut Rig<L>) {
    for (op, len) in operations(rig) {
        let (write, read) = (matches!(op, Op::Write | Op::WriteImm(_)), op == Op::Read);
        let rest = WindowAccess { write: !write, read: !read, atomic: write || read };
        let none = WindowAccess { write: false, read: false, atomic: false };
        for access in [rest, none] {
            refused(rig, "without the right", op, len, |rig, pair, far| {
                let w = window(rig, far, access);
                pair.at(&w, 0)
            });
        }
    }
}

/// Keys that nobody gave.
pub(crate) fn never_given<L: Lanes>(rig: &mut Rig<L>) {
    for (op, len) in operations(rig) {
        for rkey in [0x5bad_5bad, 0, u32::MAX] {
            refused(rig, "with an invented key", op, len, |rig, pair, far| {
                let w = window(rig, far, ALL);
                if pair.at(&w, 0).rkey == rkey { NOT_A_KEY } else { Remote { addr: w.addr, rkey } }
            });
        }
    }
}

const NOT_A_KEY: Remote = Remote { addr: 0, rkey: 0x0bad_0bad };

/// A long WRITE or READ whose end leaves the window: nothing outside is touched.
pub(crate) fn across_the_end<L: Lanes>(rig: &mut Rig<L>) {
    let mtu = rig.join(Shape::default()).mtu;
    let len = 3 * mtu;
    let width = u64::from(2 * mtu + mtu / 2);
    for op in [Op::Write, Op::WriteImm(9), Op::Read] {
        let pair = rig.join(Shape::default());
        let [here, there] = pair.lane;
        let (near, far) = (rig.memory(0, 32 << 10), rig.memory(1, 32 << 10));
        far.fill(0, 32 << 10, HELD);
        let w = rig.open(1, &far, 4096, width, ALL);
        rig.receive(1, there, None);
        let bad = rig.post(0, here, op, near.at(0, len), pair.at(&w, 0));
        let after = rig.post(0, here, op, near.at(0, 1), pair.at(&w, 0));
        rig.refused(0, here, &[bad, after], 0, &[Status::RemoteAccess]);
        rig.lane_error(1, there);
        let held = crate::rig::pattern(HELD, 32 << 10);
        crate::rig::same(&far.read(0, 4096), &held[..4096], "before the window");
        let end = 4096 + width as usize;
        crate::rig::same(&far.read(end as u64, (32 << 10) - end), &held[end..], "behind the window");
        if op == Op::Read {
            near.check_zero(0, 32 << 10, "what was to be read");
        }
        rig.part(&pair);
    }
    rig.assert_no_events();
}

/// A window closed while WRITEs are under way: what had landed stays, nothing lands later.
pub(crate) fn revoked_under_way<L: Lanes>(rig: &mut Rig<L>) {
    for rounds in 0..6 {
        let yard = rig.yard(Shape::default(), 1 << 20);
        let [here, there] = yard.pair.lane;
        yard.near.fill(0, 1 << 20, 1);
        // Where devices have no event for it, that this is flushed tells the responder that its lane has ended.
        rig.receive(1, there, None);
        let len = 4 * yard.pair.mtu;
        let ids: Vec<u64> = (0..16)
            .map(|i| {
                let at = i * u64::from(len);
                rig.post(0, here, Op::Write, yard.near.at(at, len), yard.there(at))
            })
            .collect();
        for _ in 0..rounds {
            rig.step_blind(1);
        }
        assert!(rig.ends[1].close_window(&yard.window));
        let then = yard.far.read(0, 1 << 20);
        let written = yard.near.read(0, 1 << 20);
        let statuses: Vec<Status> = ids.iter().map(|&id| rig.wait(0, id).status).collect();
        crate::rig::same(&yard.far.read(0, 1 << 20), &then, "memory after its window was closed");
        let done = statuses.iter().take_while(|s| **s == Status::Success).count();
        crate::rig::same(&then[..done * len as usize], &written[..done * len as usize], "what succeeded");
        // The lane fails unless all had landed and only acknowledgements were missing.
        if let Some(&first) = statuses.get(done) {
            let silent = !rig.can.lossless && first == Status::RetryExceeded;
            assert!(first == Status::RemoteAccess || silent, "{statuses:?}");
            assert_eq!(rig.lane_error(0, here), first);
            rig.lane_error(1, there);
        }
        rig.part(&yard.pair);
    }
    rig.assert_no_events();
}

/// Windows and registrations refuse what makes no sense, and windows begin where they were asked to.
pub(crate) fn control<L: Lanes>(rig: &mut Rig<L>) {
    let pair = rig.join(Shape::default());
    let (near, far) = (rig.memory(0, 4096), rig.memory(1, 8192));
    for (offset, len) in [(0, 8193), (8192, 1), (u64::MAX, 2), (1, u64::MAX)] {
        let asked = rig.ends[1].open_window(HOME, far.mr, offset, len, ALL);
        assert!(matches!(asked, Err(LaneError::Memory(_))), "{len} bytes at {offset}: {asked:?}");
    }
    let nowhere = rig.ends[1].open_window(HOME, MrId(far.mr.0 + 999), 0, 1, ALL);
    assert!(nowhere.is_err(), "a window over no registration");

    let windows: Vec<Window> = (0..4).map(|i| rig.open(1, &far, 100 + 1000 * i, 500, ALL)).collect();
    near.fill(0, 4096, 1);
    for (i, w) in windows.iter().enumerate() {
        assert_eq!(w.len, 500);
        let id = rig.post(0, pair.lane[0], Op::Write, near.at(0, 500), pair.at(w, 0));
        rig.success(0, id);
        far.check(100 + 1000 * i as u64, 500, 1, "the window's bytes");
        far.check_zero(600 + 1000 * i as u64, 500, "behind the window");
    }
    for w in &windows {
        assert!(rig.ends[1].close_window(w));
    }
    assert!(rig.ends[1].deregister(far.mr));
    assert!(!rig.ends[1].deregister(far.mr), "deregistered twice");
    assert!(rig.ends[1].open_window(HOME, far.mr, 0, 1, ALL).is_err(), "a window over a registration that ended");
    rig.assert_no_events();
}
