//! Who is silent: lanes, ways, or the peer. Looked at a few times per threshold, never on the hot path.
//!
//! A lane is given up on silence only while others deliver. After a pause of our own all ages begin anew.

use super::config::LaneKind;
use super::failure::Failure;
use super::health::{Cause, Health, Subject, Transition};
use super::intake::{FULL, PROBE};
use super::lane::Lane;
use super::message::{Event, Post};
use super::session::Session;
use crate::lanes::{Local, Op, PortId, Remote, Status, WorkRequest};
use crate::time::{Span, Time};

/// A look that is later than this comes after a pause of ours.
const PAUSE: Span = Span::from_millis(1);
/// How far apart a backend's repetitions may be after a long silence.
const GRACE: Span = Span::from_millis(100);
/// Looks per threshold.
const LOOKS: u64 = 8;
/// A lane may be silent for this many of its round trips at least.
const ROUND_TRIPS: u64 = 8;
/// Probes that one look posts on a lane at most.
const PROBES: u32 = 4;

/// What the watchdog keeps of a lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watch {
    /// What it had delivered at the last look.
    seen: u64,
    /// What others had delivered when it last made progress.
    others: u64,
    suspicion: Option<Suspicion>,
}

#[derive(Clone, Copy, Debug)]
struct Suspicion {
    since: Time,
    /// What others had delivered then.
    others: u64,
}

impl Session {
    /// Something is under way: the watchdog looks.
    #[inline]
    pub(super) fn watch_on(&mut self) {
        if self.watch_at.is_none() {
            self.watch_from_now();
        }
    }

    #[cold]
    pub(super) fn watch_from_now(&mut self) {
        if self.watch_at.is_none() {
            self.watch_at = Some(self.now + self.look_every());
            self.silent_since = self.now;
        }
    }

    fn look_every(&self) -> Span {
        Span::from_nanos((self.config.silence.as_nanos() / LOOKS).max(1))
    }

    /// Looks at every lane if it is time.
    pub(super) fn watch(&mut self) {
        let now = self.now;
        let Some(due) = self.watch_at.filter(|&at| at <= now) else { return };
        self.watch_at = None;
        // We were not there: what would have come may still wait to be taken in.
        let late = now.since(due);
        let gap = late.as_nanos() > self.config.silence.as_nanos() / 4;
        // Shorter pauses add up on a busy machine; what a timer is late by does not count.
        let pause = if late > PAUSE { late } else { Span::ZERO };
        let total: u64 = self.delivered.iter().sum();
        // The first word after a silence of all: the pauses between repetitions have grown meanwhile, on each lane by itself.
        let back = self.peer_suspect && total != self.last_total;
        let from = if back { now + GRACE } else { now };
        let gap = gap || back;
        let mut busy = false;
        let mut lost = std::mem::take(&mut self.lost);
        for index in 0..self.lanes.len() as u16 {
            let others = self.others(index);
            let lane = &mut self.lanes[index as usize];
            if lane.patient {
                if lane.path.age(now) >= self.config.silence {
                    self.no_more_patience(index);
                }
                continue;
            }
            if !lane.open {
                continue;
            }
            busy |= lane.outstanding > 0;
            if lane.outstanding == 0 || gap || lane.delivered() != lane.watch.seen {
                if gap {
                    lane.path.restart(from);
                }
                let after = lane.watch.suspicion.map(|s| now.since(s.since));
                lane.watch = Watch { seen: lane.delivered(), others, suspicion: None };
                if let Some(after) = after
                    && lane.health == Health::Suspect
                {
                    let to = if lane.drained > 0 { Health::Draining } else { Health::Healthy };
                    self.set_health(index, to, Cause::Acknowledged { after });
                }
                self.check_ramp(index);
            } else {
                lane.path.postpone(pause);
                if let Some(s) = &mut lane.watch.suspicion {
                    s.since += pause;
                }
                if self.is_lost(index, others) {
                    lost.push(index);
                }
            }
        }
        if total != self.last_total || gap || !busy {
            self.last_total = total;
            // Nobody is asked for a word while lanes have time: their silence is not the peer's.
            self.silent_since = from;
            if std::mem::take(&mut self.peer_suspect) {
                self.peer_event(Health::Suspect, Health::Healthy, Cause::Delivered { count: total });
            }
        }
        for index in lost.drain(..) {
            self.give_up_on_silence(index);
        }
        self.lost = lost;
        if self.over.is_some() {
            return;
        }
        let silent = now.since(self.silent_since);
        let (threshold, timeout) = (self.config.silence.saturating_mul(2), self.config.session_timeout);
        if silent >= threshold && !self.peer_suspect {
            self.peer_suspect = true;
            self.peer_event(Health::Healthy, Health::Suspect, Cause::Silence { age: silent, threshold, deliveries: 0 });
            self.try_witness();
        }
        let unanswered = self.lanes.iter().any(|l| l.is_fencing() && now.since(l.given_up) >= timeout);
        let dark = self.words.dark.is_some_and(|since| now.since(since) >= timeout);
        if silent >= timeout || unanswered || dark {
            self.end(Failure::Silent { after: timeout });
            return;
        }
        if busy || self.is_fencing() || self.is_dark() {
            self.watch_at = Some(now + self.look_every());
        }
    }

    /// Deliveries over other lanes that are no more urgent than this one: more urgent ones may keep it waiting.
    fn others(&self, index: u16) -> u64 {
        let lane = &self.lanes[index as usize];
        let total: u64 = self.delivered[lane.role.class.index()..].iter().sum();
        total - lane.delivered().min(total)
    }

    /// Judges a lane that has made no progress since the last look.
    fn is_lost(&mut self, index: u16, others: u64) -> bool {
        let now = self.now;
        let lane = &mut self.lanes[index as usize];
        let rtt = lane.path.srtt().map_or(0, |ns| u64::from(ns) * ROUND_TRIPS);
        let threshold = Span::from_nanos(self.config.silence.as_nanos().max(rtt));
        let half = threshold.as_nanos() / 2;
        let age = lane.path.age(now);
        let Some(s) = lane.watch.suspicion else {
            // While nothing comes over others either, it is not the lane.
            if age.as_nanos() >= half && others > lane.watch.others {
                lane.watch.suspicion = Some(Suspicion { since: now, others });
                let deliveries = u32::try_from(others - lane.watch.others).unwrap_or(u32::MAX);
                self.set_health(index, Health::Suspect, Cause::Silence { age, threshold, deliveries });
                self.probe_others(index, self.config.deliveries);
                self.probe_way(index);
            } else if age.as_nanos() >= half {
                // Nothing else is under way that could tell.
                self.probe_others(index, 1);
            }
            return false;
        };
        let came = u32::try_from(others - s.others).unwrap_or(u32::MAX);
        if now.since(s.since).as_nanos() < half || came < self.config.deliveries {
            self.probe_others(index, self.config.deliveries.saturating_sub(came));
            return false;
        }
        true
    }

    /// Has `wanted` deliveries come over lanes that are idle.
    #[cold]
    fn probe_others(&mut self, index: u16, wanted: u32) {
        if wanted == 0 || !self.probes.is_empty() {
            return;
        }
        let class = self.lanes[index as usize].role.class;
        let idle = |l: &Lane| l.may_carry() && l.outstanding == 0 && l.role.class.index() >= class.index();
        let candidates = self.lanes.iter().filter(|l| idle(l)).count() as u32;
        if candidates == 0 {
            return;
        }
        let each = wanted.div_ceil(candidates).min(PROBES);
        for i in 0..self.lanes.len() {
            if idle(&self.lanes[i]) {
                for _ in 0..each {
                    self.probes.push_back(i as u16);
                }
            }
        }
    }

    /// Has the idle lanes of the same two ports tried, so that they are judged with this one and not one after the other.
    #[cold]
    fn probe_way(&mut self, index: u16) {
        let lane = &self.lanes[index as usize];
        let way = (lane.role.port, lane.role.peer_port);
        for (i, l) in (0..).zip(&self.lanes) {
            let same = (l.role.port, l.role.peer_port) == way;
            if same && l.may_carry() && l.outstanding == 0 && !self.probes.contains(&i) {
                self.probes.push_back(i);
            }
        }
    }

    /// The next probe: a WRITE of no bytes, which needs no key and no receive; the second one of a new lane is of one full packet.
    pub(super) fn next_probe(&mut self) -> Option<Post> {
        while let Some(index) = self.probes.pop_front() {
            let lane = &mut self.lanes[index as usize];
            if !lane.is_usable() || lane.outstanding >= u32::from(self.config.control_slots) {
                continue;
            }
            let full = lane.back.full_probe();
            let (bytes, remote) = full.map_or((0, Remote::default()), |target| (lane.role.mtu, target));
            let charge = lane.on_post(self.now, 0);
            self.budgets.add(lane.role.peer_port, charge);
            let id = lane.id;
            if lane.role.kind == LaneKind::Data {
                self.classes[lane.role.class.index()].refresh(lane, self.config.send_depth);
            }
            self.watch_on();
            // What it carries means nothing; there is more control memory than a packet takes.
            let local = Local { mr: self.control_mr, offset: 0, len: bytes };
            let id_of = PROBE | if full.is_some() { FULL } else { 0 } | u64::from(index);
            let request = WorkRequest { id: id_of, op: Op::Write, local, remote };
            return Some(Post::Work(id, request));
        }
        None
    }

    /// Gives a silent lane up, and with it those of the same two ports that have been silent since.
    #[cold]
    fn give_up_on_silence(&mut self, index: u16) {
        let now = self.now;
        let lane = &self.lanes[index as usize];
        let Some(s) = lane.watch.suspicion.filter(|_| lane.dead.is_none()) else { return };
        let (way, others) = ((lane.role.port, lane.role.peer_port), self.others(index));
        let age = lane.path.age(now);
        let threshold = self.config.silence;
        let deliveries = u32::try_from(others - s.others).unwrap_or(u32::MAX);
        if !self.may_lose(index) {
            return;
        }
        self.give_up(index, Status::RetryExceeded, Cause::Silence { age, threshold, deliveries });
        let mut plane = false;
        for other in 0..self.lanes.len() as u16 {
            let lane = &self.lanes[other as usize];
            let same = lane.open && (lane.role.port, lane.role.peer_port) == way;
            let age = lane.path.age(now);
            // Probes that went out at that moment count.
            if same && lane.outstanding > 0 && age >= now.since(s.since) && self.may_lose(other) {
                self.give_up(other, Status::RetryExceeded, Cause::PlaneSilence { age });
                plane = true;
            }
        }
        if !plane {
            self.other_path(index);
        }
    }

    /// The last lane that can say anything to the peer is not given up by guesswork.
    fn may_lose(&self, index: u16) -> bool {
        let lane = &self.lanes[index as usize];
        let control = |l: &&Lane| l.is_serving() && l.role.kind == LaneKind::Control;
        lane.role.kind == LaneKind::Data || self.lanes.iter().filter(control).count() > 1
    }

    /// A port lost its carrier: its lanes are given up, unless no others could speak for them.
    pub(super) fn port_down(&mut self, port: PortId) {
        let elsewhere = |l: &Lane| l.open && l.role.kind == LaneKind::Control && l.role.port != port;
        if !self.lanes.iter().any(elsewhere) {
            return;
        }
        // Those first that have something under way.
        for busy in [true, false] {
            for index in 0..self.lanes.len() as u16 {
                let lane = &self.lanes[index as usize];
                if lane.role.port == port && (lane.outstanding > 0) == busy {
                    self.give_up(index, Status::Other, Cause::PortDown);
                }
            }
        }
    }

    /// Notes a lane's state, and that of the way it takes.
    #[cold]
    pub(super) fn set_health(&mut self, index: u16, to: Health, cause: Cause) {
        let at = self.now;
        let lane = &mut self.lanes[index as usize];
        let from = std::mem::replace(&mut lane.health, to);
        if from == to {
            return;
        }
        let (port, peer_port) = (lane.role.port, lane.role.peer_port);
        let subject = Subject::Lane(lane.role.peer_index);
        self.events.push_back(Event::Health(Transition { at, subject, port, peer_port, from, to, cause }));
        let same = |l: &&Lane| (l.role.port, l.role.peer_port) == (port, peer_port);
        let mut lanes = self.lanes.iter().filter(same);
        let dead = lanes.clone().all(|l| matches!(l.health, Health::Dead | Health::Probing));
        let serving = lanes.any(|l| matches!(l.health, Health::Healthy | Health::Ramping | Health::Draining));
        let way = &mut self.ways[usize::from(port.0) & 7][usize::from(peer_port) & 7];
        let (from, to, cause) = match (*way, dead, serving) {
            (Health::Dead, false, true) => (*way, Health::Healthy, cause),
            (from, true, _) if from != Health::Dead => (from, Health::Dead, Cause::AllLanesDead),
            _ => return,
        };
        *way = to;
        let subject = Subject::Way;
        self.events.push_back(Event::Health(Transition { at, subject, port, peer_port, from, to, cause }));
        if to == Health::Dead {
            self.way_failed(port, peer_port);
        }
    }

    fn peer_event(&mut self, from: Health, to: Health, cause: Cause) {
        let (at, subject) = (self.now, Subject::Peer);
        self.events.push_back(Event::Health(Transition {
            at,
            subject,
            port: PortId(0),
            peer_port: 0,
            from,
            to,
            cause,
        }));
    }
}
