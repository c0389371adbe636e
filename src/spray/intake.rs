//! What a session takes in: completions and lane events.

use super::config::LaneKind;
use super::control::{Header, Record};
use super::failure::{Failure, Violation};
use super::health::Cause;
use super::mutation::{Mutation, broken};
use super::outgoing::Stage;
use super::replay::is_own_fault;
use super::session::{Goodbye, NO_LANE, Session};
use crate::lanes::{Completed, Completion, LaneEvent, Status};
use crate::time::Time;

/// Ids of chunks: the low 48 bits name it.
pub(super) const CHUNK: u64 = 1 << 60;
/// Ids of control messages: the low 16 bits are the slot.
pub(super) const CONTROL: u64 = 2 << 60;
/// Ids of receives of control messages: the low 16 bits are the slot.
pub(super) const MESSAGE: u64 = 3 << 60;
/// Id of receives without buffer.
pub(super) const ANNOUNCE: u64 = 4 << 60;
/// Ids of probes: the low 16 bits are the lane.
pub(super) const PROBE: u64 = 5 << 60;
/// One of full size.
pub(super) const FULL: u64 = 1 << 16;

/// Which kind of id it is.
pub(super) const fn kind_of(id: u64) -> u64 {
    id & 0xf << 60
}

impl Session {
    /// Takes in a completion of one of the session's lanes.
    pub fn handle(&mut self, now: Time, c: &Completion) {
        self.now = now;
        let Some(index) = self.lane_of(c.lane) else { return };
        let taken = match kind_of(c.id) {
            CHUNK => {
                self.on_chunk(index, c);
                Ok(())
            }
            ANNOUNCE => self.on_announced(index, c),
            CONTROL => {
                self.on_control_sent(index, c);
                Ok(())
            }
            MESSAGE => self.on_control_received(index, c),
            PROBE => {
                self.on_probe(index, c);
                Ok(())
            }
            _ => Ok(()),
        };
        match c.status {
            Status::Success => {}
            // An event of the same moment may say why.
            Status::Flushed if self.lanes[index as usize].dead.is_none() => {
                if self.unexplained.last() != Some(&index) {
                    self.unexplained.push(index);
                }
            }
            status => {
                self.give_up(index, status, Cause::Completion(status));
                if c.what == Completed::Request && is_own_fault(status) {
                    self.no_more_patience(index);
                }
            }
        }
        if self.lanes[index as usize].dead.is_some() {
            self.check_flushed(index);
        }
        if let Err(violation) = taken {
            self.end(Failure::Protocol(violation));
        }
    }

    /// Takes in an event of a lane or port.
    pub fn lane_event(&mut self, now: Time, e: &LaneEvent) {
        self.now = now;
        match *e {
            LaneEvent::LaneError { lane, status } => {
                if let Some(index) = self.lane_of(lane) {
                    if is_own_fault(status) && self.lanes[index as usize].dead.is_none() {
                        // No request of ours came back with it: we refused one of the peer's.
                        self.lanes[index as usize].patient = true;
                    }
                    self.give_up(index, status, Cause::Completion(status));
                }
            }
            LaneEvent::PortDown(port) => self.port_down(port),
            LaneEvent::PortUp(port) => self.port_up(port),
            _ => {}
        }
    }

    #[inline]
    fn on_chunk(&mut self, index: u16, c: &Completion) {
        let failed = c.status != Status::Success;
        let found = if failed { self.chunks.get(c.id).copied() } else { self.chunks.take(c.id) };
        let Some(chunk) = found else { return };
        let lane = &mut self.lanes[index as usize];
        let class = &mut self.classes[lane.role.class.index()];
        let charge = lane.on_complete(self.now, chunk.bytes, c, &mut class.best_rate);
        self.budgets.sub(lane.role.peer_port, charge);
        class.refresh(lane, self.config.send_depth);
        if failed {
            self.chunk_lost(index, c);
            return;
        }
        self.delivered[lane.role.class.index()] += 1;
        class.note(lane, self.now, chunk.bytes);
        let missing = lane.credits.missing > 0;
        if let Some(m) = self.outgoing.at_mut(chunk.message) {
            m.in_flight = m.in_flight.saturating_sub(1);
            if let Some(m) = self.outgoing.at(chunk.message) {
                if m.is_complete() {
                    self.finish_sent(chunk.message);
                } else if let Stage::Failing(why) = m.stage
                    && m.in_flight == 0
                {
                    self.finish_failed(chunk.message, why);
                }
            }
        }
        if missing {
            // A queue that was full may have room again.
            self.lane_changed(index);
        }
    }

    #[inline]
    fn on_announced(&mut self, index: u16, c: &Completion) -> Result<(), Violation> {
        if c.status != Status::Success {
            self.lanes[index as usize].credits.missing += 1;
            return Ok(());
        }
        let Completed::Immediate { imm } = c.what else { return Err(Violation::Lane) };
        let lane = &mut self.lanes[index as usize];
        lane.on_receive(self.now, c);
        if lane.credits.post_due() {
            self.want_repost(index);
        }
        if self.over.is_some() { Ok(()) } else { self.on_immediate(imm) }
    }

    fn on_control_sent(&mut self, index: u16, c: &Completion) {
        let slot = c.id as u16;
        let Some(kept) = self.send_slots.at_mut(slot).filter(|s| s.len != 0 && s.lane == index) else { return };
        let (len, bye) = (kept.len, kept.bye);
        kept.lane = NO_LANE;
        let lane = &mut self.lanes[index as usize];
        // Rates of control lanes are their own: their messages are too small to compare.
        let mut best = lane.path.rate().unwrap_or(0);
        let charge = lane.on_complete(self.now, len, c, &mut best);
        self.budgets.sub(lane.role.peer_port, charge);
        if c.status != Status::Success {
            self.control_lost(slot);
            return;
        }
        self.delivered[lane.role.class.index()] += 1;
        self.lane_changed(index);
        for i in 0..self.send_slots.noted(slot) {
            let key = self.send_slots.noted_at(slot, i);
            let Some(m) = self.outgoing.get_mut(key) else { continue };
            match m.stage {
                Stage::EagerSent => self.finish_sent(key.index),
                Stage::Active => {
                    m.total_due = false;
                    if m.is_complete() {
                        self.finish_sent(key.index);
                    }
                }
                _ => {}
            }
        }
        self.send_slots.release(slot);
        if bye {
            self.goodbye = Goodbye::Acked;
        }
    }

    /// A control message may not have arrived: it goes again over another lane, since every record may come twice.
    fn control_lost(&mut self, slot: u16) {
        let Some(kept) = self.send_slots.at_mut(slot) else { return };
        let class = kept.class as usize % 3;
        if self.over.is_none() {
            self.classes[class].resend.push_back(slot);
        } else {
            self.send_slots.release(slot);
        }
    }

    fn on_probe(&mut self, index: u16, c: &Completion) {
        let lane = &mut self.lanes[index as usize];
        let mut best = lane.path.rate().unwrap_or(0);
        // One packet alone says nothing about the lane's rate: none of them counts as bytes.
        let charge = lane.on_complete(self.now, 0, c, &mut best);
        self.budgets.sub(lane.role.peer_port, charge);
        if c.status == Status::Success {
            self.delivered[lane.role.class.index()] += 1;
            self.lane_changed(index);
            self.probe_came(index, c.id & FULL != 0);
        }
    }

    fn on_control_received(&mut self, index: u16, c: &Completion) -> Result<(), Violation> {
        let slot = c.id as u16;
        let lane = &mut self.lanes[index as usize];
        if c.status != Status::Success {
            lane.credits.missing += 1;
            lane.slots.push(slot);
            return Ok(());
        }
        let Completed::Receive { len } = c.what else { return Err(Violation::Lane) };
        if lane.role.kind != LaneKind::Control || slot >= self.config.control_slots {
            return Ok(());
        }
        lane.on_receive(self.now, c);
        lane.slots.push(slot);
        let at = lane.block + u64::from(slot) * u64::from(self.slot_bytes);
        if lane.credits.post_due() {
            self.want_repost(index);
        }
        if self.over.is_some() {
            return Ok(());
        }
        self.counts.control_received += 1;
        // A copy, so that nothing is read twice from memory that a peer can write.
        let mut scratch = std::mem::take(&mut self.scratch);
        let taken = match scratch.get_mut(..len as usize) {
            Some(bytes) => match self.control.read_at(at, bytes) {
                Ok(()) => self.on_message(index, bytes),
                Err(_) => Err(Violation::Length),
            },
            None => Err(Violation::Length),
        };
        self.scratch = scratch;
        taken
    }

    fn on_message(&mut self, index: u16, message: &[u8]) -> Result<(), Violation> {
        let (header, mut records) = Header::parse(message)?;
        if header.nonce != self.config.nonce {
            return Err(Violation::Nonce);
        }
        let lane = &mut self.lanes[index as usize];
        if header.generation != lane.role.generation {
            self.counts.duplicate_records += 1;
            return Ok(());
        }
        if !lane.credits.grant(header.credit) {
            return Err(Violation::Credit);
        }
        let class = lane.role.class;
        self.on_eager_limit(header.eager_limit)?;
        while let Some(record) = records.next() {
            match record? {
                Record::Grant { channel, number, grant } => self.on_grant(channel, number, grant)?,
                Record::Request { channel, number, .. } => self.on_request(class, channel, number)?,
                Record::Total { channel, number, total } => self.on_total(channel, number, total)?,
                Record::Eager { channel, number, payload } => self.on_eager(class, channel, number, payload)?,
                Record::Credit { lane, generation, posted } => self.on_credit(lane, generation, posted)?,
                Record::Budget { port, number, bytes } => self.budgets.announced(port, number, bytes),
                Record::Bye { messages } => self.on_bye(messages),
                Record::Failed { channel, number, reason } => self.on_failed(channel, number, reason)?,
                Record::Fence(life) => self.on_fence(life),
                Record::Fenced(life) => self.on_fenced(life),
                Record::Ask(ask) => self.on_ask(ask)?,
                Record::Answer(answer) => self.on_answer(answer),
                Record::Offer(offer) => self.on_offer(offer),
                Record::Ready(life) => self.on_ready(life),
                Record::Drain { port, on, number } => self.on_drain(port, on, number),
                Record::Optional(_) => {}
            }
        }
        Ok(())
    }

    fn on_credit(&mut self, peer_index: u16, generation: u16, posted: u32) -> Result<(), Violation> {
        let index = self.by_peer.get(usize::from(peer_index)).copied().unwrap_or(NO_LANE);
        match self.lanes.get_mut(index as usize) {
            Some(lane) if lane.role.generation == generation || broken(Mutation::Generation) => {
                if lane.credits.grant(posted) { Ok(()) } else { Err(Violation::Credit) }
            }
            // A lane that is gone here and not yet there, or the reverse.
            _ => Ok(()),
        }
    }
}
