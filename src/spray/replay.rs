//! Chunks whose lane was lost: in limbo until the peer has told what arrived, then done or posted again.

use super::chunk::{COUNTS, Chunk, Immediate, code_of, units};
use super::failure::Failure;
use super::intake::{CHUNK, CONTROL};
use super::lane::ClassState;
use super::message::{DoneKind, Fate, Post};
use super::mutation::{Mutation, broken};
use super::outgoing::Stage;
use super::select::{NoLane, Pick, Want, data_lane};
use super::session::Session;
use super::slab::Key;
use crate::lanes::{Completed, Completion, Local, Op, Remote, Status, WorkRequest};
use crate::time::Span;

/// A chunk to be posted again. It counts among its message's chunks in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replay {
    pub(super) message: Key,
    /// Its first unit.
    pub(super) first: u32,
    pub(super) bytes: u32,
    /// The peer's end found it malformed.
    pub(super) refused: bool,
}

impl Replay {
    pub(super) fn of(chunk: &Chunk, message: Key) -> Replay {
        Replay { message, first: chunk.first(), bytes: chunk.bytes, refused: chunk.was_refused() }
    }
}

/// True if one end refused the request, and the lane is not to blame.
pub(super) fn is_own_fault(status: Status) -> bool {
    matches!(
        status,
        Status::RemoteAccess
            | Status::RemoteInvalidRequest
            | Status::RemoteOperation
            | Status::LocalProtection
            | Status::LocalLength
    )
}

impl Session {
    /// A chunk came back without success; its lane is given up.
    #[cold]
    pub(super) fn chunk_lost(&mut self, index: u16, c: &Completion) {
        let Some(chunk) = self.chunks.lose(c.id) else { return };
        if self.over.is_some() {
            self.chunks.take(c.id);
            self.one_less(chunk.message, Fate::Unknown);
            return;
        }
        self.lanes[index as usize].limbo += 1;
        if broken(Mutation::Quarantine)
            && let Some(m) = self.outgoing.at_mut(chunk.message)
        {
            m.in_flight = m.in_flight.saturating_sub(1);
            if m.is_complete() {
                self.finish_sent(chunk.message);
            }
        }
        // A queue pair that lost count finds requests malformed that are not; another one's word is believed.
        let malformed = c.status == Status::RemoteInvalidRequest;
        if malformed {
            self.chunks.refuse(c.id);
        }
        if is_own_fault(c.status) && (!malformed || chunk.was_refused()) {
            if let Some(m) = self.outgoing.at_mut(chunk.message) {
                m.part_ended(Fate::NotDelivered);
            }
            self.fail_send(chunk.message, Failure::Lane { lane: c.lane, status: c.status });
        }
    }

    /// Takes a chunk out of limbo: it landed, or it did not and is to be posted again, or nobody will say and nobody wants it
    /// any more.
    #[cold]
    pub(super) fn chunk_settled(&mut self, id: u64, fate: Fate) {
        let Some(chunk) = self.chunks.take(id) else { return };
        let lane = &mut self.lanes[chunk.lane as usize];
        lane.limbo = lane.limbo.saturating_sub(1);
        self.counts.survived += u64::from(fate == Fate::Delivered);
        let m = self.outgoing.at(chunk.message).map(|m| (m.class.index(), m.stage));
        match (fate, m, self.outgoing.key(chunk.message)) {
            (Fate::NotDelivered, Some((c, stage)), Some(message)) if !matches!(stage, Stage::Failing(_)) => {
                let replay = Replay::of(&chunk, message);
                self.classes[c].replay.push_back(replay);
            }
            _ => self.one_less(chunk.message, fate),
        }
        self.check_settled(chunk.lane);
    }

    /// A message has one chunk less under way, and may be over.
    fn one_less(&mut self, message: u32, fate: Fate) {
        let Some(m) = self.outgoing.at_mut(message) else { return };
        m.in_flight = m.in_flight.saturating_sub(1);
        m.part_ended(fate);
        if m.is_complete() {
            self.finish_sent(message);
        } else if let Stage::Failing(why) = m.stage
            && m.in_flight == 0
        {
            self.finish_failed(message, why);
        }
    }

    /// A message is given up: what of it waits to be posted again is not.
    pub(super) fn drop_replays(&mut self, message: u32) {
        let Some(key) = self.outgoing.key(message) else { return };
        let Some(m) = self.outgoing.at_mut(message) else { return };
        let list = &mut self.classes[m.class.index()].replay;
        if list.is_empty() {
            return;
        }
        let before = list.len();
        list.retain(|r| r.message != key);
        let dropped = (before - list.len()) as u32;
        m.in_flight = m.in_flight.saturating_sub(dropped);
        if dropped > 0 {
            m.part_ended(Fate::NotDelivered);
        }
    }

    /// What was outstanding on a lane that is destroyed counts as flushed.
    pub(super) fn flush_rest(&mut self, index: u16) {
        let lane = self.lanes[index as usize].id;
        let (what, status) = (Completed::Request, Status::Flushed);
        let flushed = |id| Completion { lane, id, what, status, rtt: None, marks: None, retransmits: 0 };
        for id in self.chunks.on_lane(index) {
            if self.chunks.get(id).is_some_and(|c| !c.is_lost()) {
                self.handle(self.now, &flushed(CHUNK | id));
            }
        }
        for slot in self.send_slots.on_lane(index) {
            self.handle(self.now, &flushed(CONTROL | u64::from(slot)));
        }
    }

    /// The class whose data lanes carry chunks of class `c`: its own, or another one's if it has none left.
    pub(super) fn data_class(&self, c: usize) -> Option<usize> {
        let live = |c: &usize| self.classes[*c].data_live > 0;
        Some(c).filter(live).or_else(|| (0..self.classes.len()).find(live))
    }

    /// The next chunk to be posted again.
    pub(super) fn next_replay(&mut self, c: usize) -> Option<Post> {
        let &Replay { message, first, bytes, refused } = self.classes[c].replay.front()?;
        let Some(m) = self.outgoing.get_mut(message) else {
            self.classes[c].replay.pop_front();
            return None;
        };
        let want = Want { bytes, least: bytes, credit: m.announces() };
        let pick = self.pick(c, want)?;
        self.classes[c].replay.pop_front();
        self.counts.replayed += 1;
        self.replayed_last = true;
        let post = self.carry(message.index, first, bytes, pick)?;
        if let (true, Post::Work(_, wr)) = (refused, &post) {
            self.chunks.refuse(wr.id);
        }
        Some(post)
    }

    /// A data lane for a chunk of class `c`.
    pub(super) fn pick(&mut self, c: usize, want: Want) -> Option<Pick> {
        let via = self.data_class(c)?;
        match data_lane(&mut self.classes[via], &self.lanes, &self.budgets, self.now, want) {
            Ok(pick) => Some(pick),
            Err(NoLane::Busy) => None,
            Err(NoLane::Wait(ns)) => {
                self.retry_at(Span::from_nanos(ns));
                None
            }
        }
    }

    /// Posts a chunk on a lane.
    #[inline]
    pub(super) fn carry(&mut self, message: u32, first: u32, bytes: u32, pick: Pick) -> Option<Post> {
        let m = self.outgoing.at_mut(message)?;
        let shift = m.unit_shift();
        let at = u64::from(first) << shift;
        let lane = &mut self.lanes[pick.lane as usize];
        let op = match m.kind {
            DoneKind::Write => Op::Write,
            DoneKind::Read => Op::Read,
            _ => {
                lane.credits.spend();
                let short = m.len < m.grant.capacity;
                let code = code_of(units(u64::from(bytes), shift));
                debug_assert!(u64::from(COUNTS[code as usize]) << shift >= u64::from(bytes));
                let (slot, generation) = (m.grant.slot, m.grant.generation);
                Op::WriteImm(Immediate { slot, generation, short, first: first as u16, code }.to_bits())
            }
        };
        let local = Local { mr: m.mr, offset: m.offset + at, len: bytes };
        let rkey = m.grant.keys[usize::from(lane.role.peer_port) & 7];
        let remote = Remote { addr: m.grant.addr + at, rkey };
        let id = CHUNK | self.chunks.insert(message, first, bytes, pick.lane);
        let charge = lane.on_post(self.now, bytes);
        self.budgets.add(lane.role.peer_port, charge);
        let class: &mut ClassState = &mut self.classes[lane.role.class.index()];
        class.refresh(lane, self.config.send_depth);
        let to = lane.id;
        self.watch_on();
        Some(Post::Work(to, WorkRequest { id, op, local, remote }))
    }
}
