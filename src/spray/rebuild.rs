//! How a lane returns: each end makes a new queue pair and offers it, connects when it has the other's offer, says that its
//! receives are posted, and sends nothing but two probes until they have come through: one of no bytes, and one of a full
//! packet. If the second does not, the lane is made again with a smaller MTU.
//!
//! Of a way whose lanes are all dead only one is made, as a scout; the others follow when its probe came through.

use super::config::LaneKind;
use super::credit::Credits;
use super::fence::LaneCommand;
use super::health::{Cause, Health, Subject, Transition};
use super::lane::{Lane, Stage};
use super::message::Event;
use super::records::{LaneLife, Offer};
use super::session::{Pending, Session};
use super::watch::Watch;
use crate::class::Class;
use crate::congestion::Window;
use crate::lanes::{LaneAddress, LaneId, MAX_PORTS, PortId, Remote, Status};
use crate::path::Path;
use crate::time::{Span, Time};

/// Longest pause before a lane is made again.
const LONGEST_PAUSE: u64 = 500_000_000;
/// The first one.
const SHORTEST_PAUSE: u64 = 10_000_000;
/// How long a probe may take before its lane is made again with another entropy, while others of its way deliver.
const PROBE_PATIENCE: Span = Span::from_millis(500);
/// How long a full packet may take after a small one has come through.
const FULL_PATIENCE: Span = Span::from_millis(250);
/// The smallest RoCE MTU.
const LEAST_MTU: u32 = 256;
/// Failures of a way count for this long.
const FLAP_WINDOW: Span = Span::from_secs(10);
/// A way may fail this often within that time before it is left alone for a while.
const FLAPS: u32 = 4;
/// Longest time that a flapping way is left alone.
const LONGEST_HOLD: u64 = 8_000_000_000;
/// Deliveries that make a lane healthy after its return.
const PROVEN: u64 = 32;

/// A lane's return.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Return {
    /// Our new queue pair and where probes of it may write, as the peer is to know them.
    pub(super) ours: Option<(LaneAddress, Remote)>,
    /// The peer's queue pair, and the life that it is for.
    offer: Option<(u16, LaneAddress)>,
    /// Where our full-size probe may write.
    target: Remote,
    /// The small probe has come through.
    small_came: bool,
    /// A larger MTU did not pass.
    mtu: Option<u32>,
    /// Not before.
    at: Time,
    /// Attempts since it was last healthy.
    tries: u32,
    /// Changes of its entropy.
    rolls: u16,
    /// Our receives are posted, and the peer knows.
    said_ready: bool,
    /// So are the peer's.
    peer_ready: bool,
    /// The peer is a life ahead of us that has ended already; true if its queue pair is gone.
    skip: Option<bool>,
    /// When the probe was posted, and what was delivered before the lane was opened.
    probed: Time,
    since: u64,
}

/// How often the way between two ports failed lately.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flaps {
    count: u32,
    since: Time,
    /// It is left alone until then.
    hold: Time,
}

impl Return {
    /// That of a lane which the bootstrap has made.
    pub(super) fn begun() -> Return {
        Return { said_ready: true, peer_ready: true, ..Return::default() }
    }

    /// Where the next probe writes, if it is one of full size.
    pub(super) fn full_probe(&self) -> Option<Remote> {
        self.small_came.then_some(self.target)
    }

    /// The lane was fine for a while: the next one is tried with packets of full size again.
    pub(super) fn forget_mtu(&mut self) {
        self.mtu = None;
    }

    /// Our receives are posted, and the peer was told.
    pub(super) fn has_said_ready(&self) -> bool {
        self.said_ready
    }
}

impl Session {
    /// Says when the next lane is to be made.
    fn rebuild_by(&mut self, at: Time) {
        self.rebuild_at = Some(self.rebuild_at.map_or(at, |t| t.min(at)));
    }

    /// A lane is gone at both ends and nothing of it is unknown: it may be made again.
    pub(super) fn lane_settled(&mut self, index: u16) {
        if !self.config.rebuild || self.over.is_some() {
            return;
        }
        let lane = &mut self.lanes[index as usize];
        if let Some(gone) = lane.back.skip.take() {
            self.skip_life(index, gone);
            return;
        }
        let next = lane.role.generation.wrapping_add(1);
        let tries = lane.back.tries;
        let pause = match tries {
            0 => 0,
            _ => (SHORTEST_PAUSE << tries.min(10)).min(LONGEST_PAUSE),
        };
        // Many sessions may have lost a lane at the same moment.
        let jitter = self.rng.u64(..=pause.max(SHORTEST_PAUSE) / 2);
        let way = self.flaps[usize::from(lane.role.port.0) & 7][usize::from(lane.role.peer_port) & 7];
        lane.back.at = (self.now + Span::from_nanos(pause / 2 + jitter)).max(way.hold);
        if lane.back.offer.is_some_and(|o| o.0 == next) {
            // The peer waits for us.
            lane.back.at = self.now;
        }
        let at = lane.back.at;
        self.rebuild_by(at);
    }

    /// Makes the lanes whose time has come.
    pub(super) fn rebuild(&mut self) {
        let now = self.now;
        if self.rebuild_at.is_none_or(|at| at > now) {
            return;
        }
        self.rebuild_at = None;
        for index in 0..self.lanes.len() as u16 {
            let lane = &self.lanes[index as usize];
            if lane.is_up() && !lane.open {
                self.check_probe(index);
                continue;
            }
            if lane.stage != Stage::Gone || lane.is_fencing() {
                continue;
            }
            let offered = lane.back.offer.is_some_and(|o| o.0 == lane.role.generation.wrapping_add(1));
            let (at, way, number) = (lane.back.at, way_of(lane), lane.role.peer_index);
            if !offered && self.has_scout(way) {
                // It comes when the scout has come through.
                continue;
            }
            if at > now {
                self.rebuild_by(at);
                continue;
            }
            let lane = &mut self.lanes[index as usize];
            lane.stage = Stage::Making;
            lane.back.tries += 1;
            let rolls = lane.back.rolls;
            self.commands.push_back(LaneCommand::Make { lane: number, rolls });
        }
    }

    /// A port has its carrier: what waits to be made there is made now, unless its way is held down.
    pub(super) fn port_up(&mut self, port: PortId) {
        let now = self.now;
        for index in 0..self.lanes.len() {
            let hold = self.flaps[usize::from(port.0) & 7][usize::from(self.lanes[index].role.peer_port) & 7].hold;
            let lane = &mut self.lanes[index];
            if lane.role.port == port && lane.stage == Stage::Gone {
                lane.back.at = now.max(hold);
                lane.back.tries = 0;
                lane.back.forget_mtu();
            }
        }
        self.rebuild_by(now);
    }

    /// True if a way has no open lane and one that is being made.
    fn has_scout(&self, way: (PortId, u8)) -> bool {
        let mut scout = false;
        for lane in self.lanes.iter().filter(|l| way_of(l) == way) {
            if lane.open {
                return false;
            }
            scout |= matches!(lane.stage, Stage::Making | Stage::Made | Stage::Up);
        }
        scout
    }

    /// The driver made a queue pair for lane `number`; its peer may write 4,096 bytes of no meaning to `target`.
    pub fn lane_made(&mut self, now: Time, number: u16, id: LaneId, mut address: LaneAddress, target: Remote) {
        self.now = now;
        let Some(index) = self.by_peer.get(usize::from(number)).copied() else { return };
        let Some(lane) = self.lanes.get_mut(index as usize).filter(|l| l.stage == Stage::Making) else { return };
        lane.stage = Stage::Made;
        lane.id = id;
        lane.role.generation = lane.role.generation.wrapping_add(1);
        lane.peer_gone = false;
        lane.settled = false;
        address.mtu = address.mtu.min(lane.back.mtu.unwrap_or(address.mtu));
        lane.back.ours = Some((address, target));
        lane.back.small_came = false;
        lane.back.peer_ready = false;
        lane.back.said_ready = false;
        let life = LaneLife { lane: number, generation: lane.role.generation };
        self.name(id, index);
        self.queue_record(Class::Latency, Pending::Offer(Offer { life, address, target }));
        self.try_connect(index);
    }

    /// The driver could not make it: tried again later.
    pub fn lane_not_made(&mut self, now: Time, number: u16) {
        self.now = now;
        let Some(index) = self.by_peer.get(usize::from(number)).copied() else { return };
        let Some(lane) = self.lanes.get_mut(index as usize).filter(|l| l.stage == Stage::Making) else { return };
        lane.stage = Stage::Gone;
        // The peer's offer stands, but there is no hurry.
        let pause = self.rng.u64(LONGEST_PAUSE / 2..=LONGEST_PAUSE);
        lane.back.at = now + Span::from_nanos(pause);
        let at = lane.back.at;
        self.rebuild_by(at);
    }

    /// The peer offers a queue pair.
    pub(super) fn on_offer(&mut self, offer: Offer) {
        let Some((index, ahead)) = self.lane_with(offer.life) else { return };
        let lane = &mut self.lanes[index as usize];
        if !(0..=1).contains(&ahead) || (ahead == 0 && lane.stage != Stage::Made) || !self.config.rebuild {
            self.counts.duplicate_records += 1;
            return;
        }
        lane.back.offer = Some((offer.life.generation, offer.address));
        lane.back.target = offer.target;
        if ahead == 0 {
            self.try_connect(index);
            return;
        }
        // Who offers a new life has ended the old one.
        let before = LaneLife { generation: offer.life.generation.wrapping_sub(1), ..offer.life };
        self.on_fenced(before);
        let lane = &mut self.lanes[index as usize];
        if lane.stage == Stage::Gone && !lane.is_fencing() {
            lane.back.at = lane.back.at.min(self.now);
            let now = self.now;
            self.rebuild_by(now);
        }
    }

    /// Connects a queue pair whose peer is known.
    fn try_connect(&mut self, index: u16) {
        let lane = &self.lanes[index as usize];
        if lane.stage == Stage::Made
            && let Some((_, address)) = lane.back.offer.filter(|o| o.0 == lane.role.generation)
        {
            let number = lane.role.peer_index;
            // What this end has found not to pass is no reason for the other one to send it.
            let ours = lane.back.ours.map_or(address.mtu, |(ours, _)| ours.mtu);
            let address = LaneAddress { mtu: address.mtu.min(ours), ..address };
            self.commands.push_back(LaneCommand::Connect { lane: lane.id, number, address });
        }
    }

    /// The driver connected it; both ends settled on `mtu`.
    pub fn lane_connected(&mut self, now: Time, id: LaneId, mtu: u32) {
        self.now = now;
        let Some(index) = self.lane_of(id) else { return };
        let (config, generation) = (self.config, self.lanes[index as usize].role.generation);
        let lane = &mut self.lanes[index as usize];
        if lane.stage != Stage::Made {
            return;
        }
        lane.stage = Stage::Up;
        lane.dead = None;
        lane.full = false;
        lane.back.offer = None;
        lane.in_flight = 0;
        lane.outstanding = 0;
        lane.forget_path();
        lane.path = Path::default();
        lane.watch = Watch::default();
        if mtu.is_power_of_two() && (256..=4096).contains(&mtu) {
            lane.set_mtu(mtu);
        }
        lane.window = Window::new(config.initial_window, lane.role.mtu.max(4096), config.max_window);
        let depth = match lane.role.kind {
            LaneKind::Control => {
                lane.slots.clear();
                lane.slots.extend((0..config.control_slots).rev());
                config.control_slots
            }
            LaneKind::Data => config.immediates,
        };
        lane.credits = Credits::new(depth);
        self.set_health(index, Health::Probing, Cause::Connected { generation });
        self.want_repost(index);
    }

    /// The driver could not connect it, or the offer is not what a peer may say: the attempt ends.
    pub fn lane_not_connected(&mut self, now: Time, id: LaneId) {
        self.now = now;
        if let Some(index) = self.lane_of(id) {
            self.abandon(index);
        }
    }

    /// Gives a queue pair up that never was connected.
    pub(super) fn abandon(&mut self, index: u16) {
        let lane = &mut self.lanes[index as usize];
        if lane.stage == Stage::Made {
            lane.stage = Stage::Flushed;
            lane.given_up = self.now;
            lane.back.offer = None;
            let id = lane.id;
            let life = LaneLife { lane: lane.role.peer_index, generation: lane.role.generation };
            self.commands.push_back(LaneCommand::Destroy(id));
            self.queue_record(Class::Latency, Pending::Fence(life));
        }
    }

    /// The peer made and ended a life of a lane that we never had.
    pub(super) fn ahead(&mut self, index: u16, gone: bool) {
        let lane = &mut self.lanes[index as usize];
        let gone = gone || lane.back.skip.unwrap_or(false);
        if lane.stage == Stage::Gone && !lane.is_fencing() {
            self.skip_life(index, gone);
        } else {
            lane.back.skip = Some(gone);
        }
    }

    fn skip_life(&mut self, index: u16, gone: bool) {
        let lane = &mut self.lanes[index as usize];
        lane.role.generation = lane.role.generation.wrapping_add(1);
        lane.given_up = self.now;
        lane.back.offer = None;
        lane.peer_gone = gone;
        lane.settled = false;
        self.say_fenced(index);
        self.settle(index);
    }

    /// Says that a new lane's receives are posted, once they are.
    pub(super) fn check_ready(&mut self, index: u16) {
        let lane = &mut self.lanes[index as usize];
        if lane.is_up() && lane.credits.missing == 0 && !std::mem::replace(&mut lane.back.said_ready, true) {
            let life = LaneLife { lane: lane.role.peer_index, generation: lane.role.generation };
            self.queue_record(Class::Latency, Pending::Ready(life));
            self.probe_new(index);
        }
    }

    /// The peer's receives are posted.
    pub(super) fn on_ready(&mut self, life: LaneLife) {
        let Some((index, ahead)) = self.lane_with(life) else { return };
        if ahead == 0 && !std::mem::replace(&mut self.lanes[index as usize].back.peer_ready, true) {
            self.probe_new(index);
        }
    }

    /// Sends a probe over a new lane.
    fn probe_new(&mut self, index: u16) {
        let now = self.now;
        let lane = &mut self.lanes[index as usize];
        if lane.is_up() && !lane.open && lane.back.said_ready && lane.back.peer_ready {
            lane.back.probed = now;
            self.probes.push_back(index);
            self.rebuild_by(now + PROBE_PATIENCE);
        }
    }

    /// A probe has been under way for long: while the way is fine otherwise, another path is tried.
    fn check_probe(&mut self, index: u16) {
        let now = self.now;
        let lane = &self.lanes[index as usize];
        if lane.outstanding == 0 {
            return;
        }
        let (age, way) = (now.since(lane.back.probed), way_of(lane));
        let mtu = lane.role.mtu;
        if lane.back.small_came && mtu > LEAST_MTU {
            if age < FULL_PATIENCE {
                self.rebuild_by(lane.back.probed + FULL_PATIENCE);
                return;
            }
            self.lanes[index as usize].back.mtu = Some(mtu / 2);
            self.give_up(index, Status::RetryExceeded, Cause::Mtu { mtu });
            return;
        }
        if age < PROBE_PATIENCE {
            self.rebuild_by(lane.back.probed + PROBE_PATIENCE);
            return;
        }
        if self.lanes.iter().any(|l| l.open && way_of(l) == way) {
            let (threshold, deliveries) = (PROBE_PATIENCE, self.config.deliveries);
            self.give_up(index, Status::RetryExceeded, Cause::Silence { age, threshold, deliveries });
        } else {
            self.rebuild_by(now + PROBE_PATIENCE);
        }
    }

    /// A probe of a new lane came through. After that of full size it may carry messages.
    pub(super) fn probe_came(&mut self, index: u16, full: bool) {
        let now = self.now;
        let lane = &mut self.lanes[index as usize];
        if lane.open || !lane.is_up() {
            return;
        }
        if !full {
            lane.back.small_came = true;
            lane.back.probed = now;
            self.probes.push_back(index);
            self.rebuild_by(now + FULL_PATIENCE);
            return;
        }
        lane.open = true;
        lane.back.small_came = false;
        lane.back.since = lane.delivered();
        let (after, way) = (now.since(lane.back.probed), way_of(lane));
        let first = !self.lanes.iter().enumerate().any(|(i, l)| i != usize::from(index) && l.open && way_of(l) == way);
        let cause = Cause::ProbeAcknowledged { after };
        if self.lanes[index as usize].is_serving() {
            self.count_lane(index, true);
            self.set_health(index, Health::Ramping, cause);
        } else {
            self.set_health(index, Health::Draining, cause);
            if self.is_dark() {
                self.undrain_all();
            }
        }
        self.lane_changed(index);
        for class in &mut self.classes {
            class.down = false;
        }
        if first {
            for other in 0..self.lanes.len() {
                let lane = &mut self.lanes[other];
                if way_of(lane) == way && lane.stage == Stage::Gone {
                    lane.back.at = now;
                }
            }
            self.rebuild_by(now);
        }
    }

    /// A lane that has returned is healthy once it has delivered enough.
    pub(super) fn check_ramp(&mut self, index: u16) {
        let lane = &mut self.lanes[index as usize];
        let count = lane.delivered() - lane.back.since;
        if lane.health == Health::Ramping && count >= PROVEN {
            lane.back.tries = 0;
            self.set_health(index, Health::Healthy, Cause::Delivered { count });
        }
    }

    /// A lane was given up while the rest of its way delivers: its path is at fault, and another is tried.
    pub(super) fn other_path(&mut self, index: u16) {
        let way = way_of(&self.lanes[index as usize]);
        if self.lanes.iter().any(|l| l.open && way_of(l) == way) {
            let lane = &mut self.lanes[index as usize];
            lane.back.rolls = lane.back.rolls.wrapping_add(1);
        }
    }

    /// A way has failed: one that does so often is left alone for a while.
    pub(super) fn way_failed(&mut self, port: PortId, peer_port: u8) {
        let at = self.now;
        let flaps = &mut self.flaps[usize::from(port.0) & 7][usize::from(peer_port) & 7];
        if at.since(flaps.since) > FLAP_WINDOW {
            *flaps = Flaps { count: 0, since: at, hold: Time::ZERO };
        }
        flaps.count += 1;
        if flaps.count <= FLAPS || !self.config.rebuild {
            return;
        }
        let hold = Span::from_nanos((SHORTEST_PAUSE << (4 + flaps.count - FLAPS).min(20)).min(LONGEST_HOLD));
        flaps.hold = at + hold;
        flaps.since = at;
        let cause = Cause::Flapping { failures: flaps.count, hold };
        let (from, to, subject) = (Health::Dead, Health::Dead, Subject::Way);
        self.events.push_back(Event::Health(Transition { at, subject, port, peer_port, from, to, cause }));
    }
}

/// The ports that a lane joins.
pub(super) fn way_of(lane: &Lane) -> (PortId, u8) {
    (lane.role.port, lane.role.peer_port)
}

/// One entry for each pair of ports.
pub(super) type PerWay<T> = [[T; MAX_PORTS]; MAX_PORTS];
