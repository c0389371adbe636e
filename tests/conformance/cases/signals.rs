//! What completions tell of the path.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use planespray::lanes::{Lanes, Marks, Op};
use planespray::time::Span;

use crate::rig::{NOTHING, NOWHERE, Rig, Shape, Yard};

/// Round trips of single small requests on an idle lane.
pub(crate) fn round_trips<L: Lanes>(rig: &mut Rig<L>) {
    let Some((least, most)) = rig.can.rtt else { return };
    for port in 0..rig.ports() {
        let yard = rig.yard(Shape { port, ..Shape::default() }, 4096);
        let [here, there] = yard.pair.lane;
        for i in 0..24 {
            let op = [Op::Write, Op::Read, Op::WriteImm(i), Op::Send][i as usize % 4];
            rig.receive(1, there, Some(yard.far.at(1024, 64)));
            let id = rig.post(0, here, op, yard.near.at(0, 64), yard.there(0));
            let c = rig.success(0, id);
            let rtt = c.rtt.unwrap_or_else(|| panic!("{op:?} without a round trip: {c:?}"));
            assert!((least..=most).contains(&rtt), "{op:?} took {rtt:?}, expected {least:?}..={most:?}");
            rig.pass(Span::from_micros(200));
        }
    }
    rig.assert_no_events();
}

/// Where nothing is lost, nothing is sent twice, however much is under way.
pub(crate) fn nothing_sent_twice<L: Lanes>(rig: &mut Rig<L>) {
    if !rig.can.exact {
        return;
    }
    let yard = rig.yard(Shape { send_depth: 256, ..Shape::default() }, 1 << 20);
    let [here, _] = yard.pair.lane;
    let ids: Vec<u64> = (0..200)
        .map(|i| {
            let op = if i % 4 == 3 { Op::Read } else { Op::Write };
            rig.post(0, here, op, yard.near.at(0, 9000), yard.there(i * 1000))
        })
        .collect();
    for id in ids {
        let c = rig.success(0, id);
        assert_eq!(c.retransmits, 0, "{c:?}");
        assert!(c.rtt.is_some(), "{c:?}");
    }
    rig.assert_no_events();
}

/// A lane reports no marks that there were not.
pub(crate) fn no_marks_on_a_clean_link<L: Lanes>(rig: &mut Rig<L>) {
    if !rig.can.exact || !rig.can.marks {
        return;
    }
    let yard = rig.yard(Shape::default(), 64 << 10);
    let marks = marks(rig, &yard, 400);
    assert_eq!(marks.ce, 0, "{marks:?}");
    rig.assert_no_events();
}

/// Marks reported over at least `packets` packets.
pub(crate) fn marks<L: Lanes>(rig: &mut Rig<L>, yard: &Yard, packets: u32) -> Marks {
    let mut sum = Marks::default();
    let mut rounds = 0;
    while sum.packets < packets {
        assert!(rounds < packets, "only {sum:?} after {rounds} requests of 4 packets");
        rounds += 1;
        let len = 4 * yard.pair.mtu;
        let id = rig.post(0, yard.pair.lane[0], Op::Write, yard.near.at(0, len), yard.there(0));
        if let Some(m) = rig.success(0, id).marks {
            sum.packets += m.packets;
            sum.ce += m.ce;
        }
    }
    sum
}

/// The descriptors are the same all the time, quiet while nothing comes, and readable when something does.
pub(crate) fn descriptors_wake<L: Lanes>(rig: &mut Rig<L>) {
    fn readable<L: Lanes>(end: &L, timeout: u16) -> bool {
        let fds = end.wait_fds();
        let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
        poll(&mut fds, PollTimeout::from(timeout)).expect("poll") > 0
    }
    if rig.ends[1].wait_fds().is_empty() {
        return;
    }
    use std::os::fd::AsRawFd;
    let numbers = |end: &L| end.wait_fds().iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>();
    let first = numbers(&rig.ends[1]);
    let pair = rig.join(Shape::default());
    for _ in 0..20 {
        rig.pass(Span::from_millis(1));
        assert!(!readable(&rig.ends[1], 0), "readable though nothing was sent");
        let receive = rig.receive(1, pair.lane[1], None);
        let send = rig.post(0, pair.lane[0], Op::Send, NOTHING, NOWHERE);
        rig.ends[0].doorbell(rig.now);
        assert!(readable(&rig.ends[1], 2000), "not readable though something was sent");
        rig.success(1, receive);
        rig.success(0, send);
    }
    assert_eq!(numbers(&rig.ends[1]), first);
}
