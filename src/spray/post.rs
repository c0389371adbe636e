//! What a session hands to the backend: receives first, then control messages, then chunks, each by class.

use super::channel::Channels;
use super::chunk::{COUNTS, count_code};
use super::config::LaneKind;
use super::control::{Header, Record, Writer};
use super::credit::RESERVE;
use super::grant::Grant;
use super::incoming::Incoming;
use super::intake::{ANNOUNCE, CHUNK, CONTROL, MESSAGE, PROBE, kind_of};
use super::message::Post;
use super::outgoing::{Outgoing, Stage};
use super::replay::Replay;
use super::select::{Want, burst, control_lane};
use super::session::{NO_LANE, Pending, Session};
use super::slab::Slab;
use super::slots::MAX_REFS;
use crate::class::Class;
use crate::lanes::{Local, Op, Receive, Remote, WorkRequest};
use crate::time::Time;

/// Bytes that a message gets in its turn, while others of its class wait.
const TURN: u64 = 256 << 10;

impl Session {
    /// The next thing to hand to the backend; call until it returns `None`, after any other call.
    pub fn poll_post(&mut self, now: Time) -> Option<Post> {
        self.now = now;
        if self.over.is_some() {
            return None;
        }
        if !self.repost.is_empty()
            && let Some(post) = self.next_receive()
        {
            return Some(post);
        }
        self.replayed_last = false;
        if !self.probes.is_empty()
            && let Some(post) = self.next_probe()
        {
            return Some(post);
        }
        (0..3).find_map(|c| self.next_control(c)).or_else(|| (0..3).find_map(|c| self.next_chunk(c)))
    }

    /// Gives back what [`Session::poll_post`] returned last, because the backend's queue was full. Must be called before
    /// [`Session::poll_post`] is called again; the lane is left alone until something completes on it or a little time passes.
    pub fn posted_full(&mut self, post: Post) {
        let (Post::Work(lane, WorkRequest { id, .. }) | Post::Receive(lane, Receive { id, .. })) = post;
        let Some(index) = self.lane_of(lane) else { return };
        match kind_of(id) {
            CHUNK => self.unpost_chunk(index, id),
            CONTROL => self.unpost_control(index, id as u16),
            PROBE => {
                let lane = &mut self.lanes[index as usize];
                let charge = lane.on_unpost(0);
                self.budgets.sub(lane.role.peer_port, charge);
            }
            kind => {
                let lane = &mut self.lanes[index as usize];
                lane.credits.unpost();
                if kind == MESSAGE {
                    lane.slots.push(id as u16);
                }
            }
        }
        self.lane_full(index);
    }

    fn next_receive(&mut self) -> Option<Post> {
        while let Some(&index) = self.repost.front() {
            let lane = &mut self.lanes[index as usize];
            if !lane.is_usable() || lane.credits.missing == 0 {
                lane.in_repost = false;
                self.repost.pop_front();
                self.check_ready(index);
                self.check_report(index);
                continue;
            }
            let receive = match lane.role.kind {
                LaneKind::Data => Receive { id: ANNOUNCE, local: None },
                LaneKind::Control => {
                    // As many slots are free as receives are missing.
                    let slot = lane.slots.pop()?;
                    let offset = lane.block + u64::from(slot) * u64::from(self.slot_bytes);
                    let local = Local { mr: self.control_mr, offset, len: self.slot_bytes };
                    Receive { id: MESSAGE | u64::from(slot), local: Some(local) }
                }
            };
            lane.credits.post();
            return Some(Post::Receive(lane.id, receive));
        }
        None
    }

    /// Puts a lane on the list of credits to report if it is time.
    fn check_report(&mut self, index: u16) {
        let lane = &mut self.lanes[index as usize];
        if lane.dead.is_some() || lane.in_report || !lane.credits.due() {
            return;
        }
        lane.in_report = true;
        let class = lane.role.class.index();
        self.classes[class].reports.push_back(index);
    }

    fn next_control(&mut self, c: usize) -> Option<Post> {
        self.flush_grants(c);
        let class = &mut self.classes[c];
        let resend = class.resend.front().copied();
        if resend.is_none()
            && class.records.is_empty()
            && class.eager.is_empty()
            && class.reports.is_empty()
            && !class.push
        {
            return None;
        }
        // The reserve is for credit without which control lanes could stop for ever.
        let urgent = class.reports.iter().any(|&l| self.lanes[l as usize].role.kind == LaneKind::Control);
        let credits = if urgent { 1 } else { RESERVE + 1 };
        let depth = self.config.control_slots;
        // A class without control lanes speaks by another's.
        let via = self.control_class(Class::ALL[c])?;
        let index = control_lane(&mut self.classes[via], &self.lanes, self.now, 256, credits, depth)?;
        let (slot, len) = match resend {
            Some(slot) => {
                self.classes[c].resend.pop_front();
                let header = self.header(index);
                let kept = self.send_slots.at_mut(slot)?;
                let mut bytes = [0; super::control::HEADER];
                header.emit(kept.len - bytes.len() as u32, &mut bytes);
                self.control.write_at(kept.offset, &bytes).ok()?;
                (slot, kept.len)
            }
            None => self.write_control(c, index)?,
        };
        let kept = self.send_slots.at_mut(slot)?;
        kept.lane = index;
        kept.class = c as u8;
        let offset = kept.offset;
        let lane = &mut self.lanes[index as usize];
        lane.credits.spend();
        let charge = lane.on_post(self.now, len);
        self.budgets.add(lane.role.peer_port, charge);
        self.counts.control_sent += 1;
        self.watch_on();
        let lane = &self.lanes[index as usize];
        let local = Local { mr: self.control_mr, offset, len };
        let id = CONTROL | u64::from(slot);
        Some(Post::Work(lane.id, WorkRequest { id, op: Op::Send, local, remote: Remote::default() }))
    }

    /// The header of a message on this lane; what it reports counts as told.
    fn header(&mut self, lane: u16) -> Header {
        let lane = &mut self.lanes[lane as usize];
        Header {
            generation: lane.role.generation,
            credit: lane.credits.report(),
            nonce: self.config.nonce,
            eager_limit: self.pool.report(),
        }
    }

    /// Writes everything that waits, as far as it fits, into a free slot. Returns the slot and the length.
    fn write_control(&mut self, c: usize, index: u16) -> Option<(u16, u32)> {
        let slot = self.send_slots.peek()?;
        self.send_slots.take()?;
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut w = Writer::new(&mut scratch);
        let mut useful = std::mem::take(&mut self.classes[c].push) && self.pool.due();
        let mut bye = false;

        while let Some(&pending) = self.classes[c].records.front() {
            let record = self.record(pending);
            if let Some(record) = record {
                if matches!(pending, Pending::Total(_)) && self.send_slots.noted(slot) >= MAX_REFS {
                    break;
                }
                if !w.push(&record) {
                    break;
                }
                match pending {
                    Pending::Total(key) => {
                        self.send_slots.note(slot, key);
                        if let Some(m) = self.outgoing.get_mut(key) {
                            m.total_sent = true;
                        }
                    }
                    Pending::Bye => bye = true,
                    _ => self.record_written(pending),
                }
            }
            self.classes[c].records.pop_front();
        }
        let class = &mut self.classes[c];
        while let Some(&reported) = class.reports.front() {
            let lane = &mut self.lanes[reported as usize];
            if reported == index {
                useful = true;
            } else if lane.dead.is_none() {
                let role = lane.role;
                let posted = lane.credits.report();
                if !w.push(&Record::Credit { lane: role.peer_index, generation: role.generation, posted }) {
                    break;
                }
            }
            lane.in_report = false;
            class.reports.pop_front();
        }
        let role = self.lanes[index as usize].role;
        let mut bytes = 0;
        while let Some(first) = class.eager.front() {
            let Some(key) = self.outgoing.key(first) else { break };
            let Some(m) = self.outgoing.at_mut(first) else { break };
            bytes += m.len;
            if self.send_slots.noted(slot) >= MAX_REFS || !self.budgets.fits(role.peer_port, role.mtu, bytes) {
                break;
            }
            let channel = self.channels.at(m.channel).id;
            if !w.push_eager(channel, m.number, m.len as usize, |out| m.region.read_at(m.offset, out).is_ok()) {
                break;
            }
            m.stage = Stage::EagerSent;
            class.eager.unlink(&mut self.outgoing, first);
            self.send_slots.note(slot, key);
            self.counts.eager += 1;
        }

        useful |= !w.is_empty();
        let mut len = 0;
        if useful {
            len = w.finish(&self.header(index));
        }
        let offset = self.send_slots.at_mut(slot).map_or(0, |kept| {
            kept.len = len.max(1) as u32;
            kept.bye = bye;
            kept.offset
        });
        let written = useful && self.control.write_at(offset, &scratch[..len]).is_ok();
        self.scratch = scratch;
        if !written {
            self.send_slots.release(slot);
            return None;
        }
        Some((slot, len as u32))
    }

    /// A record about lanes is on its way.
    pub(super) fn record_written(&mut self, pending: Pending) {
        match pending {
            Pending::Fenced(index) => self.lanes[index as usize].saying = false,
            Pending::Answer(_) => self.answers = self.answers.saturating_sub(1),
            _ => {}
        }
    }

    /// The record; `None` if it is not wanted any more.
    pub(super) fn record(&mut self, pending: Pending) -> Option<Record<'static>> {
        match pending {
            Pending::Fence(life) => return Some(Record::Fence(life)),
            Pending::Fenced(index) => return self.fenced_record(index).map(Record::Fenced),
            Pending::Ask(life, id) => return self.ask_record(life, id).map(Record::Ask),
            Pending::Answer(answer) => return Some(Record::Answer(answer)),
            Pending::Offer(offer) => return Some(Record::Offer(offer)),
            Pending::Ready(life) => return Some(Record::Ready(life)),
            Pending::Drain { port, on, number } => return Some(Record::Drain { port, on, number }),
            _ => {}
        }
        let sources = Sources {
            channels: &mut self.channels,
            outgoing: &mut self.outgoing,
            incoming: &mut self.incoming,
            ports: self.local_ports,
            accepted: self.accepted,
        };
        sources.record(pending)
    }

    fn next_chunk(&mut self, c: usize) -> Option<Post> {
        if !self.classes[c].replay.is_empty() {
            return self.next_replay(c);
        }
        let via = self.data_class(c)?;
        let class = &mut self.classes[c];
        let index = class.active.front()?;
        let m = self.outgoing.at_mut(index)?;
        let shift = m.unit_shift();
        let left = m.len - m.next;
        let least = left.min(1 << shift) as u32;
        let credit = m.announces();
        let bytes = (burst(&self.classes[via], left, self.config.split_floor, &self.budgets) as u32).max(least);
        let pick = self.pick(c, Want { bytes, least, credit })?;
        let m = self.outgoing.at_mut(index)?;
        let room = u64::from(pick.room.min(bytes));
        let units = m.units_left();
        let target = if room >= left { units } else { (room >> shift).max(1) };
        let code = count_code(units, target);
        let bytes = left.min(u64::from(COUNTS[code as usize]) << shift);
        let first = (m.next >> shift) as u32;
        m.next += bytes;
        m.in_flight += 1;
        let all = m.next == m.len;
        let class = &mut self.classes[c];
        class.queued -= bytes;
        class.served += bytes;
        if all || class.served >= TURN {
            class.served = 0;
            class.active.unlink(&mut self.outgoing, index);
            if !all {
                class.active.push_back(&mut self.outgoing, index);
            }
        }
        self.carry(index, first, bytes as u32, pick)
    }

    fn unpost_chunk(&mut self, lane: u16, id: u64) {
        let Some(chunk) = self.chunks.take(id) else { return };
        let to = &mut self.lanes[lane as usize];
        let charge = to.on_unpost(chunk.bytes);
        self.budgets.sub(to.role.peer_port, charge);
        let Some(m) = self.outgoing.at_mut(chunk.message) else { return };
        if m.announces() {
            to.credits.unspend();
        }
        if self.replayed_last {
            // It counts among those in flight until it has found a lane.
            let c = m.class.index();
            if let Some(message) = self.outgoing.key(chunk.message) {
                self.classes[c].replay.push_front(Replay::of(&chunk, message));
            }
            return;
        }
        m.in_flight -= 1;
        if m.stage != Stage::Active {
            return;
        }
        let class = &mut self.classes[m.class.index()];
        let was_all = m.next == m.len;
        // It was the last one posted, so its bytes are the next again.
        m.next = u64::from(chunk.first()) << m.unit_shift();
        class.queued += u64::from(chunk.bytes);
        if was_all {
            class.active.push_back(&mut self.outgoing, chunk.message);
        }
    }

    fn unpost_control(&mut self, lane: u16, slot: u16) {
        let Some(kept) = self.send_slots.at_mut(slot) else { return };
        let (class, len) = (kept.class as usize % 3, kept.len);
        kept.lane = NO_LANE;
        let to = &mut self.lanes[lane as usize];
        to.credits.unspend();
        let charge = to.on_unpost(len);
        self.budgets.sub(to.role.peer_port, charge);
        self.counts.control_sent -= 1;
        self.classes[class].resend.push_front(slot);
    }
}

/// Where records come from.
struct Sources<'a> {
    channels: &'a mut Channels,
    outgoing: &'a mut Slab<Outgoing>,
    incoming: &'a mut Slab<Incoming>,
    ports: usize,
    accepted: u64,
}

impl Sources<'_> {
    /// The record; `None` if it is not wanted any more.
    fn record(self, pending: Pending) -> Option<Record<'static>> {
        match pending {
            Pending::Grant(key) => {
                let r = self.incoming.get_mut(key)?;
                let granted = r.granted.as_ref()?;
                let mut keys = r.window.keys;
                if self.ports == 1 {
                    keys = [keys[0]; 8];
                }
                let grant = Grant {
                    addr: r.window.addr,
                    capacity: r.capacity,
                    keys,
                    slot: granted.slot,
                    generation: granted.generation,
                    unit_shift: granted.unit_shift,
                };
                Some(Record::Grant { channel: self.channels.at(r.channel).id, number: r.number, grant })
            }
            Pending::Request(key) => {
                let m = self.outgoing.get_mut(key).filter(|m| m.stage == Stage::Waiting)?;
                Some(Record::Request { channel: self.channels.at(m.channel).id, number: m.number, len: m.len })
            }
            Pending::Total(key) => {
                let m = self.outgoing.get_mut(key).filter(|m| m.stage == Stage::Active)?;
                Some(Record::Total { channel: self.channels.at(m.channel).id, number: m.number, total: m.len })
            }
            Pending::Failed { channel, number, reason } => {
                Some(Record::Failed { channel: self.channels.at(channel).id, number, reason })
            }
            Pending::Budget { port, number, bytes } => Some(Record::Budget { port, number, bytes }),
            Pending::Bye => Some(Record::Bye { messages: self.accepted }),
            // Not here: these are about lanes.
            Pending::Fence(_)
            | Pending::Fenced(_)
            | Pending::Ask(..)
            | Pending::Answer(_)
            | Pending::Offer(_)
            | Pending::Ready(_)
            | Pending::Drain { .. } => None,
        }
    }
}
