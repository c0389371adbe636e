//! Which lanes two ends make: one pure function that both compute.

use super::hello::{Hello, PlaneOffer};
use super::reach::Reach;
use crate::class::Class;
use crate::lanes::MAX_PORTS;
use crate::topology::{share, weights};

/// Most lanes between two ends; their addresses fit one message.
pub const MAX_LANES: usize = 416;

/// Enough for a control and a data lane per port pair and class, however the ports are spread over planes
/// (at most 14 pairs).
pub(super) const LANES_ALWAYS: usize = 96;

/// What a lane carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LaneKind {
    /// SENDs: control and eager messages.
    Control,
    /// WRITEs with immediate: chunks.
    Data,
}

/// One lane to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LanePlan {
    /// Index of the initiator's port in its Hello.
    pub initiator_port: u8,
    /// Index of the responder's port in its Hello.
    pub responder_port: u8,
    /// For which class.
    pub class: Class,
    /// For what.
    pub kind: LaneKind,
    /// The lane's number at both ends: its position in the plan.
    pub index: u16,
    /// Entropy of both ends for it; differs between the lanes of one pair of ports.
    pub entropy: u16,
}

impl LanePlan {
    /// The port at this end, and the one at the other.
    pub fn ports(&self, role: super::Role) -> (u8, u8) {
        match role {
            super::Role::Initiator => (self.initiator_port, self.responder_port),
            super::Role::Responder => (self.responder_port, self.initiator_port),
        }
    }
}

/// The lanes that two ends with these Hellos make, at most [`MAX_LANES`].
///
/// Ports meet if their plane number and address family are equal, by the order of their rails; where one end
/// has fewer ports in a plane, they serve several of the other's. A pair that does not reach each other is left out; a port
/// that loses all its partners by that gets another of its plane that it does reach. Each pair gets, for every class that
/// both want, one control lane and the smaller number of data lanes that either asked for, fewer where
/// the lane limits say so, and fewer on pairs that are slower than the fastest. Empty if no plane is common.
pub fn plan(initiator: &Hello, responder: &Hello, reach: &Reach) -> Vec<LanePlan> {
    let pairs = reached(initiator, responder, reach);
    let speeds: Vec<Option<u32>> = pairs.iter().map(|&pair| speed(initiator, responder, pair)).collect();
    let weights = weights(&speeds);
    let classes: Vec<Class> = Class::ALL.into_iter().filter(|&c| initiator.wants(c) && responder.wants(c)).collect();
    let groups = pairs.len() * classes.len();
    if groups == 0 {
        return Vec::new();
    }
    let limit = usize::from(initiator.limits.max_lanes.min(responder.limits.max_lanes)).min(MAX_LANES);
    let wanted = usize::from(initiator.lanes_per_plane.min(responder.lanes_per_plane));
    let data = wanted.min((limit / groups).saturating_sub(1)).max(1);

    let mut lanes = Vec::with_capacity(groups * (1 + data));
    for (&(initiator_port, responder_port), weight) in pairs.iter().zip(weights) {
        let mut entropy = 0;
        for &class in &classes {
            for number in 0..=share(data, weight) {
                let kind = if number == 0 { LaneKind::Control } else { LaneKind::Data };
                let index = lanes.len() as u16;
                lanes.push(LanePlan { initiator_port, responder_port, class, kind, index, entropy });
                entropy += 1;
            }
        }
    }
    lanes
}

/// Which ports of both ends meet if all reach each other: (initiator's, responder's).
pub(super) fn preferred(initiator: &Hello, responder: &Hello) -> Vec<(u8, u8)> {
    pairs(&initiator.planes, &responder.planes)
}

/// Which ports meet, of those that reach each other.
fn reached(initiator: &Hello, responder: &Hello, reach: &Reach) -> Vec<(u8, u8)> {
    let mut met = preferred(initiator, responder);
    met.retain(|&(i, r)| reach.mtu(i, r).is_some());
    for i in 0..initiator.planes.len().min(MAX_PORTS) as u8 {
        if !met.iter().any(|m| m.0 == i) {
            let partners = (0..responder.planes.len().min(MAX_PORTS) as u8).filter(|&r| reach.mtu(i, r).is_some());
            met.extend(partners.min_by_key(|&r| met.iter().filter(|m| m.1 == r).count()).map(|r| (i, r)));
        }
    }
    for r in 0..responder.planes.len().min(MAX_PORTS) as u8 {
        if !met.iter().any(|m| m.1 == r) {
            let partners = (0..initiator.planes.len().min(MAX_PORTS) as u8).filter(|&i| reach.mtu(i, r).is_some());
            met.extend(partners.min_by_key(|&i| met.iter().filter(|m| m.0 == i).count()).map(|i| (i, r)));
        }
    }
    met
}

/// The slower end's speed, as far as it is known.
fn speed(initiator: &Hello, responder: &Hello, (i, r): (u8, u8)) -> Option<u32> {
    let of = |hello: &Hello, port: u8| hello.planes.get(usize::from(port)).and_then(|p| p.speed).filter(|&s| s > 0);
    [of(initiator, i), of(responder, r)].into_iter().flatten().min()
}

/// Which ports of both ends meet by their planes and the order of their rails.
fn pairs(initiator: &[PlaneOffer], responder: &[PlaneOffer]) -> Vec<(u8, u8)> {
    let initiator = sorted(initiator);
    let responder = sorted(responder);
    let mut pairs = Vec::new();
    let mut at = 0;
    while at < initiator.len() {
        let fabric = initiator[at].0;
        let ours: Vec<u8> = initiator[at..].iter().take_while(|p| p.0 == fabric).map(|p| p.2).collect();
        let theirs: Vec<u8> = responder.iter().filter(|p| p.0 == fabric).map(|p| p.2).collect();
        at += ours.len();
        if !theirs.is_empty() {
            let n = ours.len().max(theirs.len());
            pairs.extend((0..n).map(|i| (ours[i % ours.len()], theirs[i % theirs.len()])));
        }
    }
    pairs
}

/// ((plane, is IPv6), rail, index), in ascending order.
fn sorted(planes: &[PlaneOffer]) -> Vec<((u16, bool), u16, u8)> {
    let mut ports: Vec<_> = planes
        .iter()
        .take(MAX_PORTS)
        .enumerate()
        .map(|(i, p)| ((p.plane, p.addr.is_ipv6()), p.rail, i as u8))
        .collect();
    ports.sort_unstable();
    ports
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::reach::PairReport;
    use crate::bootstrap::tests::hello;
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// The plan where everything reaches everything.
    fn plan(a: &Hello, b: &Hello) -> Vec<LanePlan> {
        super::plan(a, b, &Reach::assumed(a, b))
    }

    fn met(lanes: &[LanePlan]) -> Vec<(u8, u8)> {
        let mut met: Vec<_> = lanes.iter().map(|l| (l.initiator_port, l.responder_port)).collect();
        met.dedup();
        met
    }

    fn report(pairs: &[(u8, u8)]) -> Vec<PairReport> {
        pairs.iter().map(|&(from, to)| PairReport { from, to, burst: 0xff, counted: true, mtu: 4096 }).collect()
    }

    /// The plan where only these (initiator's, responder's) ports reach each other.
    fn plan_over(a: &Hello, b: &Hello, pairs: &[(u8, u8)]) -> Vec<LanePlan> {
        let back: Vec<_> = pairs.iter().map(|&(i, r)| (r, i)).collect();
        super::plan(a, b, &Reach::seen(a, b, &report(&back), &report(pairs)))
    }

    #[test]
    fn pairs_that_do_not_reach_each_other_are_never_used() {
        // Two rails in one plane, and a second plane.
        let a = offers(&[(0, 0, "10.0.0.1"), (1, 0, "10.0.0.2"), (0, 1, "10.0.1.1")]);
        let b = offers(&[(0, 0, "10.0.0.3"), (1, 0, "10.0.0.4"), (0, 1, "10.0.1.2")]);
        let all = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 2)];
        assert_eq!(met(&plan_over(&a, &b, &all)), [(0, 0), (1, 1), (2, 2)]);
        assert_eq!(met(&plan_over(&a, &b, &[(0, 0), (1, 1)])), [(0, 0), (1, 1)], "a plane is down");
        // Rails that are cabled crosswise.
        assert_eq!(met(&plan_over(&a, &b, &[(0, 1), (1, 0), (2, 2)])), [(2, 2), (0, 1), (1, 0)]);
        // The initiator's second rail reaches only the responder's first.
        assert_eq!(met(&plan_over(&a, &b, &[(0, 0), (1, 0)])), [(0, 0), (1, 0)]);
        // The responder's second rail is reached only by the initiator's first.
        assert_eq!(met(&plan_over(&a, &b, &[(0, 0), (0, 1)])), [(0, 0), (0, 1)]);
        assert!(plan_over(&a, &b, &[]).is_empty());
        // Ports of different planes never meet, whatever is reported.
        assert!(plan_over(&a, &b, &[(0, 2), (2, 0)]).is_empty());
    }

    #[test]
    fn slower_pairs_get_fewer_data_lanes() {
        let mut a = offers(&[(0, 0, "10.0.0.1"), (0, 1, "10.0.1.1"), (0, 2, "10.0.2.1")]);
        let mut b = offers(&[(0, 0, "10.0.0.2"), (0, 1, "10.0.1.2"), (0, 2, "10.0.2.2")]);
        (a.lanes_per_plane, b.lanes_per_plane) = (8, 8);
        a.planes[0].speed = Some(400_000);
        b.planes[0].speed = Some(400_000);
        a.planes[1].speed = Some(400_000);
        b.planes[1].speed = Some(100_000);
        (a.planes[2].speed, b.planes[2].speed) = (None, Some(1));
        let lanes = plan(&a, &b);
        let data = |port: u8| {
            let of = |l: &&LanePlan| (l.initiator_port, l.class, l.kind) == (port, Class::Bulk, LaneKind::Data);
            lanes.iter().filter(of).count()
        };
        assert_eq!([data(0), data(1), data(2)], [8, 2, 1]);
    }

    fn offers(list: &[(u16, u16, &str)]) -> Hello {
        hello("test", list)
    }

    #[test]
    fn planes_meet_by_number_and_rails_by_order() {
        let a = offers(&[(0, 7, "10.0.0.1"), (1, 3, "10.0.1.1")]);
        let b = offers(&[(0, 3, "10.0.1.2"), (0, 9, "10.0.2.2"), (1, 7, "10.0.0.2")]);
        let mut met: Vec<_> = plan(&a, &b).iter().map(|l| (l.initiator_port, l.responder_port)).collect();
        met.dedup();
        assert_eq!(met, [(1, 0), (0, 2)]);
    }

    #[test]
    fn an_end_with_fewer_ports_serves_all_of_the_other() {
        let a = offers(&[(0, 0, "10.0.0.1"), (1, 0, "10.0.0.2"), (2, 0, "10.0.0.3")]);
        let b = offers(&[(0, 0, "10.0.0.4"), (1, 0, "10.0.0.5")]);
        let mut met: Vec<_> = plan(&a, &b).iter().map(|l| (l.initiator_port, l.responder_port)).collect();
        met.dedup();
        assert_eq!(met, [(0, 0), (1, 1), (2, 0)]);
    }

    #[test]
    fn families_do_not_mix() {
        let a = offers(&[(0, 0, "10.0.0.1")]);
        let b = offers(&[(0, 0, "fd00::1")]);
        assert!(plan(&a, &b).is_empty());
        let both = offers(&[(0, 0, "10.0.0.2"), (0, 0, "fd00::2")]);
        assert!(plan(&a, &both).iter().all(|l| l.responder_port == 0));
        assert!(plan(&b, &both).iter().all(|l| l.responder_port == 1));
    }

    #[test]
    fn the_limit_takes_data_lanes_and_leaves_two_per_class() {
        let planes: Vec<_> = (0..8).map(|i| format!("10.0.0.{}", i + 1)).collect();
        let list: Vec<_> = planes.iter().enumerate().map(|(i, a)| (0, i as u16, a.as_str())).collect();
        let mut a = offers(&list);
        a.lanes_per_plane = 128;
        let lanes = plan(&a, &a);
        assert_eq!(lanes.len(), 8 * 3 * 17);
        a.limits.max_lanes = LANES_ALWAYS as u16;
        assert_eq!(plan(&a, &a).len(), 8 * 3 * 4);
        // The worst spread over planes: each end crowds one plane and has a single port in the other.
        let crowd = |full: u16| -> Hello {
            let list: Vec<_> = planes
                .iter()
                .enumerate()
                .map(|(i, a)| (i as u16, if i == 7 { 1 - full } else { full }, a.as_str()))
                .collect();
            let mut h = offers(&list);
            h.limits.max_lanes = LANES_ALWAYS as u16;
            h
        };
        let lanes = plan(&crowd(0), &crowd(1));
        assert_eq!(lanes.len(), 14 * 3 * 2);
        assert!(lanes.len() <= LANES_ALWAYS);
    }

    fn any_hello() -> impl Strategy<Value = Hello> {
        let port = (0u16..3, 0u16..3, any::<bool>());
        let classes = any::<[bool; 3]>();
        (proptest::collection::vec(port, 1..=8), classes, 1u16..=128, 96u16..600).prop_map(
            |(ports, classes, lanes, max)| {
                let addrs: Vec<String> = (0..ports.len()).map(|i| format!("10.0.0.{}", i + 1)).collect();
                let v6: Vec<String> = (0..ports.len()).map(|i| format!("fd00::{}", i + 1)).collect();
                let list: Vec<_> = ports
                    .iter()
                    .enumerate()
                    .map(|(i, &(rail, plane, six))| (rail, plane, if six { v6[i].as_str() } else { addrs[i].as_str() }))
                    .collect();
                let mut h = hello("any", &list);
                h.classes = classes;
                h.lanes_per_plane = lanes;
                h.limits.max_lanes = max;
                h
            },
        )
    }

    proptest! {
        #[test]
        fn plans_are_sound(a in any_hello(), b in any_hello()) {
            let lanes = plan(&a, &b);
            prop_assert_eq!(&lanes, &plan(&a, &b));
            // Seen from the other side it is the same plan.
            let turned: Vec<_> = plan(&b, &a)
                .into_iter()
                .map(|l| LanePlan { initiator_port: l.responder_port, responder_port: l.initiator_port, ..l })
                .collect();
            prop_assert_eq!(&lanes, &turned);

            prop_assert!(lanes.len() <= MAX_LANES);
            prop_assert!(lanes.len() <= usize::from(a.limits.max_lanes.min(b.limits.max_lanes)));
            let mut entropies = HashSet::new();
            let mut control = HashSet::new();
            let mut data = HashSet::new();
            for (i, l) in lanes.iter().enumerate() {
                prop_assert_eq!(usize::from(l.index), i);
                let (p, q) = (&a.planes[usize::from(l.initiator_port)], &b.planes[usize::from(l.responder_port)]);
                prop_assert_eq!(p.plane, q.plane);
                prop_assert_eq!(p.addr.is_ipv4(), q.addr.is_ipv4());
                prop_assert!(a.wants(l.class) && b.wants(l.class));
                let pair = (l.initiator_port, l.responder_port);
                prop_assert!(entropies.insert((pair, l.entropy)));
                match l.kind {
                    LaneKind::Control => prop_assert!(control.insert((pair, l.class)), "two control lanes"),
                    LaneKind::Data => { data.insert((pair, l.class)); }
                }
            }
            prop_assert_eq!(control, data);
            // Every port that has a partner is used.
            for (i, p) in a.planes.iter().enumerate() {
                let partner = b.planes.iter().any(|q| q.plane == p.plane && q.addr.is_ipv4() == p.addr.is_ipv4());
                let classes = (0..3).any(|c| a.classes[c] && b.classes[c]);
                prop_assert_eq!(lanes.iter().any(|l| usize::from(l.initiator_port) == i), partner && classes);
            }
        }
    }
}
