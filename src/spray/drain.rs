//! Taking a port out of use and back, as its operator wishes, at both ends and without an error to anyone.

use super::config::LaneKind;
use super::health::{Cause, Health};
use super::lane::Lane;
use super::session::{Pending, Session};
use crate::class::Class;
use crate::lanes::{MAX_PORTS, PortId};
use crate::time::Time;

/// Our operator's wish, and the peer's.
const OURS: u8 = 1;
const PEERS: u8 = 2;

impl Session {
    /// Puts nothing more on the lanes of a local port, or uses them again; what is under way ends as always. The peer is
    /// told to do the same. False, and nothing is changed, if no other port could carry on.
    pub fn drain(&mut self, now: Time, port: PortId, on: bool) -> bool {
        self.now = now;
        if on && !self.can_drain(port) {
            return false;
        }
        let known = self.drained[usize::from(port.0) % MAX_PORTS];
        if known != on {
            self.drained[usize::from(port.0) % MAX_PORTS] = on;
            self.announcements = self.announcements.wrapping_add(1);
            self.queue_record(Class::Latency, Pending::Drain { port: port.0, on, number: self.announcements });
            self.mark(|l| l.role.port == port, OURS, on, Cause::Operator);
            self.keep_some();
        }
        true
    }

    /// True if lanes of both kinds are in use on another port.
    pub fn can_drain(&self, port: PortId) -> bool {
        let other = |kind| self.lanes.iter().any(|l| l.is_serving() && l.role.port != port && l.role.kind == kind);
        other(LaneKind::Control) && other(LaneKind::Data)
    }

    /// The peer's operator takes a port of its out of use, or back.
    pub(super) fn on_drain(&mut self, port: u8, on: bool, number: u16) {
        let Some(heard) = self.drains_heard.get_mut(usize::from(port)) else { return };
        if number.wrapping_sub(*heard) as i16 <= 0 {
            self.counts.duplicate_records += 1;
            return;
        }
        *heard = number;
        self.mark(|l| l.role.peer_port == port, PEERS, on, Cause::Peer);
        self.keep_some();
    }

    /// Both ends may have taken different ports out of use at the same moment.
    fn keep_some(&mut self) {
        if self.control_class(Class::Latency).is_none() || self.data_class(0).is_none() {
            self.undrain_all();
        }
    }

    fn mark(&mut self, meant: impl Fn(&Lane) -> bool, whose: u8, on: bool, cause: Cause) {
        for index in 0..self.lanes.len() as u16 {
            let lane = &mut self.lanes[index as usize];
            if !meant(lane) {
                continue;
            }
            let served = lane.is_serving();
            lane.drained = if on { lane.drained | whose } else { lane.drained & !whose };
            let (serves, open, drained) = (lane.is_serving(), lane.open, lane.drained > 0);
            if serves != served {
                self.count_lane(index, serves);
                self.lane_changed(index);
            }
            if open {
                self.set_health(index, if drained { Health::Draining } else { Health::Healthy }, cause);
            }
        }
    }

    /// Counts a lane that serves from now on, or does no longer.
    pub(super) fn count_lane(&mut self, index: u16, serves: bool) {
        let role = self.lanes[index as usize].role;
        let class = &mut self.classes[role.class.index()];
        let live = match role.kind {
            LaneKind::Data => &mut class.data_live,
            LaneKind::Control => &mut class.control_live,
        };
        *live = if serves { *live + 1 } else { live.saturating_sub(1) };
        if serves && role.kind == LaneKind::Control {
            self.is_light();
        }
    }

    /// Every lane that serves is lost: those that an operator took out of use are needed again. True if there are any.
    pub(super) fn undrain_all(&mut self) -> bool {
        let any = self.lanes.iter().any(|l| l.open && l.drained > 0);
        if any {
            self.drained = [false; MAX_PORTS];
            self.mark(|l| l.drained > 0, OURS | PEERS, false, Cause::AllLanesDead);
        }
        any
    }
}
