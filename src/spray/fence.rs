//! How a lane ends without loss: both ends move it to ERR, take in what had arrived, destroy it, and then settle what it
//! carried. `docs/protocol.md` has the rules.

use super::channel::RxEntry;
use super::config::LaneKind;
use super::failure::{Failure, Violation};
use super::health::{Cause, Health};
use super::lane::{Lane, Stage};
use super::message::{Event, Fate};
use super::mutation::{Mutation, broken};
use super::outgoing::Stage as Sending;
use super::records::{Answer, Ask, LaneLife};
use super::session::{NO_LANE, Pending, Session};
use crate::class::Class;
use crate::lanes::{LaneAddress, LaneId, Status};
use crate::time::Time;

/// Answers that may wait to be written; a correct peer asks about what its lanes carried, which is less.
const MAX_ANSWERS: u32 = 1 << 16;

/// What the driver is to do with a lane. Nothing of it may fail but for a lane that is gone already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LaneCommand {
    /// Move its queue pair to ERR and go on handing over its completions.
    Fence(LaneId),
    /// Everything of it has come back: destroy its queue pair, then call [`Session::lane_destroyed`].
    Destroy(LaneId),
    /// Make a queue pair as that of lane `lane` was, its entropy changed `rolls` times, and call [`Session::lane_made`] or
    /// [`Session::lane_not_made`].
    Make {
        /// The lane's number in the session.
        lane: u16,
        /// Changes of its entropy since the session's start.
        rolls: u16,
    },
    /// Connect it to the peer's, if that is where the peer's of this number always was, and call
    /// [`Session::lane_connected`] or [`Session::lane_not_connected`].
    Connect {
        /// Ours.
        lane: LaneId,
        /// Its number in the session.
        number: u16,
        /// The peer's.
        address: LaneAddress,
    },
}

impl Session {
    /// The next thing to do with a lane; call until it returns `None`, after any other call.
    pub fn poll_command(&mut self) -> Option<LaneCommand> {
        while let Some(index) = self.unexplained.pop() {
            self.give_up(index, Status::Flushed, Cause::Completion(Status::Flushed));
            self.check_flushed(index);
        }
        self.commands.pop_front()
    }

    /// A lane's queue pair was destroyed: nothing can arrive on it any more. What was still outstanding on it counts as
    /// flushed.
    pub fn lane_destroyed(&mut self, now: Time, lane: LaneId) {
        self.now = now;
        let Some(index) = self.lane_of(lane) else { return };
        self.give_up(index, Status::Flushed, Cause::Operator);
        self.flush_rest(index);
        self.forget_id(lane);
        let lane = &mut self.lanes[index as usize];
        lane.stage = Stage::Gone;
        lane.in_flight = 0;
        lane.outstanding = 0;
        lane.patient = false;
        self.say_fenced(index);
        self.settle(index);
    }

    /// Gives a lane up: nothing more is posted on it, and what it carries goes elsewhere once its fate is known.
    #[cold]
    pub(super) fn give_up(&mut self, index: u16, status: Status, cause: Cause) {
        let lane = &mut self.lanes[index as usize];
        if lane.dead.is_some() {
            return;
        }
        lane.dead = Some(status);
        lane.stage = Stage::Flushing;
        if lane.health == Health::Healthy {
            lane.back.forget_mtu();
        }
        lane.given_up = self.now;
        lane.path.restart(self.now);
        let (id, role, served) = (lane.id, lane.role, lane.is_serving());
        lane.open = false;
        self.set_health(index, Health::Dead, cause);
        self.events.push_back(Event::LaneDown { lane: id, status });
        if role.kind == LaneKind::Data {
            self.classes[role.class.index()].close(&self.lanes[index as usize]);
        }
        if served {
            self.count_lane(index, false);
        }
        if self.over.is_some() {
            return;
        }
        if !self.lanes[index as usize].patient {
            self.begin_fence(index);
        }
        if broken(Mutation::FlushWait) {
            self.say_fenced(index);
        }
        self.watch_from_now();
        let none = self.control_class(role.class).is_none() || self.data_class(role.class.index()).is_none();
        if none {
            self.undrain_all();
        }
        let spoke = served && role.kind == LaneKind::Control;
        if spoke && self.control_class(role.class).is_none() && !self.goes_dark() {
            // Nothing can be said to the peer any more.
            self.end(Failure::Lane { lane: id, status });
            return;
        }
        if role.kind == LaneKind::Data && !self.config.rebuild && self.data_class(role.class.index()).is_none() {
            self.no_data_lanes(Failure::Lane { lane: id, status });
        }
        self.check_flushed(index);
    }

    /// Has a lane moved to ERR at both ends.
    fn begin_fence(&mut self, index: u16) {
        let lane = &self.lanes[index as usize];
        let (id, life) = (lane.id, LaneLife { lane: lane.role.peer_index, generation: lane.role.generation });
        self.commands.push_back(LaneCommand::Fence(id));
        self.queue_record(Class::Latency, Pending::Fence(life));
    }

    /// The peer knows why its request was refused, or has had the time to hear it.
    pub(super) fn no_more_patience(&mut self, index: u16) {
        if std::mem::replace(&mut self.lanes[index as usize].patient, false) {
            self.begin_fence(index);
            self.check_flushed(index);
        }
    }

    /// No lane is left that could carry chunks.
    fn no_data_lanes(&mut self, why: Failure) {
        for c in 0..self.classes.len() {
            if self.classes[c].data.is_empty() {
                continue;
            }
            let class = self.classes[c].class;
            self.classes[c].down = true;
            self.events.push_back(Event::ClassDown(class));
            for index in 0..self.outgoing.bound() {
                let Some(m) = self.outgoing.at(index).filter(|m| m.class == class) else { continue };
                if matches!(m.stage, Sending::EagerQueued | Sending::EagerSent) || (m.eager && m.in_flight == 0) {
                    continue;
                }
                let why = if m.in_flight > 0 { why } else { Failure::Class(class) };
                self.fail_send(index, why);
            }
        }
    }

    /// Asks for a lane's end once everything that was posted on it has come back.
    pub(super) fn check_flushed(&mut self, index: u16) {
        let lane = &mut self.lanes[index as usize];
        if lane.stage == Stage::Flushing && !lane.patient && lane.outstanding == 0 && lane.credits.is_empty() {
            lane.stage = Stage::Flushed;
            let id = lane.id;
            self.commands.push_back(LaneCommand::Destroy(id));
        }
    }

    /// Tells the peer up to which life our queue pairs of a lane are gone.
    pub(super) fn say_fenced(&mut self, index: u16) {
        let lane = &mut self.lanes[index as usize];
        if lane.stage == Stage::Gone || broken(Mutation::FlushWait) {
            lane.fenced = Some(lane.role.generation);
        }
        if lane.fenced.is_some() && !std::mem::replace(&mut lane.saying, true) {
            self.queue_record(Class::Latency, Pending::Fenced(index));
        }
    }

    /// What we say when it is [`Pending::Fenced`]'s turn.
    pub(super) fn fenced_record(&self, index: u16) -> Option<LaneLife> {
        let lane = self.lanes.get(index as usize)?;
        Some(LaneLife { lane: lane.role.peer_index, generation: lane.fenced? })
    }

    /// The lane with this number, and how far `life` is ahead of it.
    pub(super) fn lane_with(&self, life: LaneLife) -> Option<(u16, i16)> {
        let index = *self.by_peer.get(usize::from(life.lane))?;
        let lane = self.lanes.get(index as usize)?;
        Some((index, life.generation.wrapping_sub(lane.role.generation) as i16))
    }

    /// The same for what fences say: what is older means nothing any more.
    fn lane_said(&self, life: LaneLife) -> Option<(u16, i16)> {
        let (index, ahead) = self.lane_with(life)?;
        Some((index, if broken(Mutation::Generation) { 0 } else { ahead }))
    }

    /// The peer has given a lane up.
    pub(super) fn on_fence(&mut self, life: LaneLife) {
        let Some((index, ahead)) = self.lane_said(life) else { return };
        let stage = self.lanes[index as usize].stage;
        if ahead == 0 {
            self.no_more_patience(index);
        }
        if ahead == 0 && stage == Stage::Up {
            self.give_up(index, Status::Flushed, Cause::Peer);
        } else if ahead == 0 && stage == Stage::Made {
            self.abandon(index);
        } else if ahead == 1 {
            self.ahead(index, false);
        } else if ahead <= 0 {
            // Said before, perhaps; once more does no harm.
            self.say_fenced(index);
        }
    }

    /// The peer's queue pair of a lane is gone.
    pub(super) fn on_fenced(&mut self, life: LaneLife) {
        let Some((index, ahead)) = self.lane_said(life) else { return };
        if ahead == 1 {
            self.ahead(index, true);
            return;
        }
        if ahead != 0 {
            self.counts.duplicate_records += 1;
            return;
        }
        self.no_more_patience(index);
        self.give_up(index, Status::Flushed, Cause::Peer);
        self.abandon(index);
        self.lanes[index as usize].peer_gone = true;
        self.settle(index);
    }

    /// Finds out about the chunks of a lane that is gone at both ends.
    pub(super) fn settle(&mut self, index: u16) {
        let lane = &mut self.lanes[index as usize];
        let gone = lane.peer_gone || broken(Mutation::SingleCarrier);
        if lane.stage != Stage::Gone || !gone || std::mem::replace(&mut lane.settled, true) {
            return;
        }
        let life = LaneLife { lane: lane.role.peer_index, generation: lane.role.generation };
        for id in self.chunks.on_lane(index) {
            let Some(chunk) = self.chunks.get(id) else { continue };
            let Some(m) = self.outgoing.at(chunk.message) else { continue };
            let wanted = !matches!(m.stage, Sending::Failing(_));
            if wanted && m.announces() && !broken(Mutation::SingleCarrier) {
                self.queue_record(m.class, Pending::Ask(life, id));
            } else {
                // Nobody keeps count of one-sided bytes: they may come twice.
                self.chunk_settled(id, if wanted { Fate::NotDelivered } else { Fate::Unknown });
            }
        }
        self.check_settled(index);
    }

    /// Asks once more about the chunks of a lane of which nothing was heard since it was gone.
    pub(super) fn ask_again(&mut self, index: u16) {
        let lane = &self.lanes[index as usize];
        if lane.stage != Stage::Gone || !lane.settled || lane.limbo == 0 {
            return;
        }
        let life = LaneLife { lane: lane.role.peer_index, generation: lane.role.generation };
        for id in self.chunks.on_lane(index) {
            self.queue_record(Class::Latency, Pending::Ask(life, id));
        }
    }

    /// Everything about a lane that is gone is known.
    pub(super) fn check_settled(&mut self, index: u16) {
        let lane = &self.lanes[index as usize];
        if lane.stage == Stage::Gone && !lane.is_fencing() {
            self.lane_settled(index);
        }
    }

    /// The question about a chunk, while it is one.
    pub(super) fn ask_record(&mut self, life: LaneLife, id: u64) -> Option<Ask> {
        let chunk = self.chunks.get(id)?;
        let m = self.outgoing.at(chunk.message)?;
        if matches!(m.stage, Sending::Failing(_)) {
            self.chunk_settled(id, Fate::Unknown);
            return None;
        }
        let units = super::chunk::units(u64::from(chunk.bytes), m.unit_shift());
        let number = if broken(Mutation::AnswerKey) { u32::from(m.grant.slot) } else { m.number };
        let channel = self.channels.at(m.channel).id;
        Some(Ask { life, cookie: id, channel, number, first: chunk.first() as u16, units: units as u16 })
    }

    /// The peer asks about a chunk that a lost lane carried.
    pub(super) fn on_ask(&mut self, ask: Ask) -> Result<(), Violation> {
        let Some((index, _)) = self.lane_with(ask.life) else { return Err(Violation::Fence) };
        let fenced = self.lanes[index as usize].fenced;
        // Before our queue pair was gone nobody could know.
        if fenced.is_none_or(|f| ask.life.generation.wrapping_sub(f) as i16 > 0) && !broken(Mutation::Generation) {
            return Err(Violation::Fence);
        }
        if self.answers >= MAX_ANSWERS {
            return Err(Violation::Fence);
        }
        let channel = self.channels.open(ask.channel).ok_or(Violation::Channels)?;
        let ch = self.channels.at(channel);
        let watermark = ch.rx.base();
        let mut entry = ch.rx.get(ask.number);
        if broken(Mutation::AnswerKey) {
            let generation = |g: u8| self.slots.find(ask.number as u16, g);
            entry = (0..8).find_map(generation).map_or(RxEntry::Done, RxEntry::Posted);
        }
        let (finished, bits) = match (ch.rx.ahead(ask.number), entry) {
            (None, _) if !broken(Mutation::AnswerKey) => (true, 0),
            (_, RxEntry::Posted(receive)) => match self.incoming.at(receive) {
                Some(r) if r.result.is_some() => (true, 0),
                Some(r) => {
                    let bits = r.granted.as_ref().map_or(0, |g| g.window(ask.first, &self.bits));
                    (false, if broken(Mutation::Bitmap) { u16::MAX } else { bits })
                }
                None => (true, 0),
            },
            (_, RxEntry::Vacant | RxEntry::Wanted) => (false, 0),
            (_, RxEntry::Eager(..) | RxEntry::Failed(_) | RxEntry::Done) => (true, 0),
        };
        self.answers += 1;
        let Ask { life, cookie, channel, number, .. } = ask;
        let answer = Answer { life, cookie, channel, number, watermark, finished, bits };
        self.queue_record(Class::Latency, Pending::Answer(answer));
        Ok(())
    }

    /// The peer says what arrived of a chunk that a lost lane carried.
    pub(super) fn on_answer(&mut self, answer: Answer) {
        let found = self.lane_said(answer.life).filter(|&(index, ahead)| {
            let chunk = self.chunks.get(answer.cookie);
            let lane = &self.lanes[index as usize];
            ahead == 0 && lane.stage == Stage::Gone && lane.settled && chunk.is_some_and(|c| c.lane == index)
        });
        let message = found.and_then(|_| {
            let chunk = self.chunks.get(answer.cookie)?;
            let m = self.outgoing.at(chunk.message)?;
            let channel = self.channels.at(m.channel).id;
            let number = if broken(Mutation::AnswerKey) { u32::from(m.grant.slot) } else { m.number };
            let same = m.announces() && channel == answer.channel && number == answer.number;
            same.then(|| (super::chunk::units(u64::from(chunk.bytes), m.unit_shift()), m.number))
        });
        let Some((units, number)) = message else {
            self.counts.duplicate_records += 1;
            return;
        };
        let all = u16::MAX >> (16 - units.clamp(1, 16));
        let behind = (number.wrapping_sub(answer.watermark) as i32) < 0;
        let landed = behind || answer.finished || answer.bits & all == all;
        self.chunk_settled(answer.cookie, if landed { Fate::Delivered } else { Fate::NotDelivered });
    }

    /// True while a lane's chunks wait for the peer's word, or the peer for ours.
    pub(super) fn is_fencing(&self) -> bool {
        self.lanes.iter().any(Lane::is_fencing)
    }

    /// A backend's lane means this one.
    pub(super) fn name(&mut self, lane: LaneId, index: u16) {
        if self.by_id.len() <= lane.index() {
            self.by_id.resize(lane.index() + 1, NO_LANE);
        }
        self.by_id[lane.index()] = index;
    }

    fn forget_id(&mut self, lane: LaneId) {
        if let Some(entry) = self.by_id.get_mut(lane.index()) {
            *entry = NO_LANE;
        }
    }
}
