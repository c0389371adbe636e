//! Which lanes two ends make: one pure function that both compute.

use super::hello::{Hello, PlaneOffer};
use crate::class::Class;
use crate::lanes::MAX_PORTS;

/// Most lanes between two ends; their addresses fit one message.
pub const MAX_LANES: usize = 448;

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
/// has fewer ports in a plane, they serve several of the other's. Each pair gets, for every class that
/// both want, one control lane and the smaller number of data lanes that either asked for, fewer where
/// the lane limits say so. Empty if no plane is common.
pub fn plan(initiator: &Hello, responder: &Hello) -> Vec<LanePlan> {
    let pairs = pairs(&initiator.planes, &responder.planes);
    let classes: Vec<Class> = Class::ALL.into_iter().filter(|&c| initiator.wants(c) && responder.wants(c)).collect();
    let groups = pairs.len() * classes.len();
    if groups == 0 {
        return Vec::new();
    }
    let limit = usize::from(initiator.limits.max_lanes.min(responder.limits.max_lanes)).min(MAX_LANES);
    let wanted = usize::from(initiator.lanes_per_plane.min(responder.lanes_per_plane));
    let data = wanted.min((limit / groups).saturating_sub(1)).max(1);

    let mut lanes = Vec::with_capacity(groups * (1 + data));
    for &(initiator_port, responder_port) in &pairs {
        let mut entropy = 0;
        for &class in &classes {
            for number in 0..=data {
                let kind = if number == 0 { LaneKind::Control } else { LaneKind::Data };
                let index = lanes.len() as u16;
                lanes.push(LanePlan { initiator_port, responder_port, class, kind, index, entropy });
                entropy += 1;
            }
        }
    }
    lanes
}

/// Which ports of both ends meet.
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
