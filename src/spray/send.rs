//! Sends and one-sided operations: how they begin, get their grants, and end.

use super::channel::{CHANNEL_DEPTH, MAX_AHEAD, TOTAL_AHEAD, TxEntry};
use super::chunk::MAX_MESSAGE;
use super::failure::{Failure, PeerReason, Violation};
use super::grant::Grant;
use super::message::{Done, DoneKind, Fate, MessageId, OneSided, Refused, Send};
use super::outgoing::{Outgoing, Stage};
use super::session::{Pending, Session};
use super::slab::Link;
use crate::mem::Region;
use crate::time::Time;

/// Messages per channel that may ask for a grant at once.
const REQUESTS: u32 = 16;

impl Session {
    /// Sends a message.
    ///
    /// # Errors
    /// See [`Refused`]; the message was not taken.
    pub fn send(&mut self, now: Time, msg: &Send) -> Result<MessageId, Refused> {
        self.now = now;
        if self.over.is_some() || self.closing {
            return Err(Refused::Closed);
        }
        let len = msg.local.len;
        if len > MAX_MESSAGE {
            return Err(Refused::TooLong);
        }
        check(&msg.local.region, msg.local.offset, len)?;
        let class = &self.classes[msg.class.index()];
        let eager = !msg.rendezvous_only && len <= u64::from(self.config.eager_max);
        if class.down || class.control.is_empty() || (!eager && class.data.is_empty()) {
            return Err(Refused::NoLanes);
        }
        let channel = self.channels.open(msg.channel).ok_or(Refused::Channels)?;
        let ch = self.channels.at(channel);
        let number = ch.tx_next;
        if number.wrapping_sub(ch.tx.base()) >= CHANNEL_DEPTH {
            return Err(Refused::Full);
        }
        let key = self
            .outgoing
            .insert(Outgoing {
                kind: DoneKind::Send,
                class: msg.class,
                channel,
                number,
                mr: msg.local.mr,
                region: msg.local.region.clone(),
                offset: msg.local.offset,
                len,
                token: msg.token,
                eager,
                requested: false,
                total_due: false,
                stage: Stage::Waiting,
                grant: Grant::default(),
                next: 0,
                in_flight: 0,
                total_sent: false,
                fate: Fate::Delivered,
                link: Link::default(),
            })
            .ok_or(Refused::Full)?;
        if ch.tx.end() != number {
            self.tx_ahead = self.tx_ahead.saturating_sub(1);
        }
        let entry = ch.tx.get(number);
        ch.tx.set(number, TxEntry::Message(key.index));
        ch.tx_next = number.wrapping_add(1);
        self.accepted += 1;
        let grant = match entry {
            TxEntry::Granted(grant) => self.grants.remove(grant),
            _ => None,
        };
        match grant {
            Some(grant) => self.granted(key.index, grant),
            None if eager && self.reserve_eager() => self.go_eager(key.index),
            None => {
                if eager {
                    self.classes[msg.class.index()].waiting.push_back(&mut self.outgoing, key.index);
                }
                self.pump_requests(channel);
            }
        }
        Ok(MessageId(key.to_bits()))
    }

    /// Writes to a window of the peer. The target is written at least once, and is whole at [`Done`].
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn write(&mut self, now: Time, w: &OneSided) -> Result<MessageId, Refused> {
        self.one_sided(now, w, DoneKind::Write)
    }

    /// Reads from a window of the peer.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn read(&mut self, now: Time, r: &OneSided) -> Result<MessageId, Refused> {
        self.one_sided(now, r, DoneKind::Read)
    }

    fn one_sided(&mut self, now: Time, op: &OneSided, kind: DoneKind) -> Result<MessageId, Refused> {
        self.now = now;
        if self.over.is_some() || self.closing {
            return Err(Refused::Closed);
        }
        if op.len > MAX_MESSAGE {
            return Err(Refused::TooLong);
        }
        check(&op.region, op.offset, op.len)?;
        op.remote_addr.checked_add(op.len).ok_or(Refused::Bounds)?;
        let class = &mut self.classes[op.class.index()];
        if class.down || class.data.is_empty() {
            return Err(Refused::NoLanes);
        }
        let grant = Grant { addr: op.remote_addr, capacity: op.len, keys: op.remote_keys, ..Grant::default() };
        let key = self
            .outgoing
            .insert(Outgoing {
                kind,
                class: op.class,
                channel: 0,
                number: 0,
                mr: op.mr,
                region: op.region.clone(),
                offset: op.offset,
                len: op.len,
                token: op.token,
                eager: false,
                requested: false,
                total_due: false,
                stage: Stage::Active,
                grant,
                next: 0,
                in_flight: 0,
                total_sent: false,
                fate: Fate::Delivered,
                link: Link::default(),
            })
            .ok_or(Refused::Full)?;
        if op.len == 0 {
            self.finish_sent(key.index);
        } else {
            class.active.push_back(&mut self.outgoing, key.index);
            class.queued += op.len;
        }
        Ok(MessageId(key.to_bits()))
    }

    /// Takes an eager credit if there is one.
    fn reserve_eager(&mut self) -> bool {
        let credit = self.eager_limit.wrapping_sub(self.eager_used) as i32 > 0;
        if credit {
            self.eager_used = self.eager_used.wrapping_add(1);
        }
        credit
    }

    /// Queues a message, in no list and with an eager credit, for a control message.
    fn go_eager(&mut self, index: u32) {
        let Some(m) = self.outgoing.at_mut(index) else { return };
        m.stage = Stage::EagerQueued;
        let class = m.class.index();
        self.classes[class].eager.push_back(&mut self.outgoing, index);
    }

    /// The peer accepts more eager messages.
    pub(super) fn on_eager_limit(&mut self, limit: u32) -> Result<(), Violation> {
        let step = limit.wrapping_sub(self.eager_limit) as i32;
        if step > 1 << 20 {
            return Err(Violation::Credit);
        }
        if step <= 0 {
            return Ok(());
        }
        self.eager_limit = limit;
        for class in 0..3 {
            while let Some(index) = self.classes[class].waiting.front() {
                if !self.reserve_eager() {
                    return Ok(());
                }
                self.stop_waiting(index);
                self.go_eager(index);
            }
        }
        Ok(())
    }

    /// Takes a waiting message out of what it waits in.
    fn stop_waiting(&mut self, index: u32) {
        let Some(m) = self.outgoing.at_mut(index) else { return };
        let (eager, class, channel) = (m.eager, m.class.index(), m.channel);
        let requested = std::mem::take(&mut m.requested);
        if eager {
            self.classes[class].waiting.unlink(&mut self.outgoing, index);
        }
        if requested {
            let ch = self.channels.at(channel);
            ch.requested = ch.requested.saturating_sub(1);
            self.pump_requests(channel);
        }
    }

    /// Asks for grants for the oldest messages of a channel that wait.
    fn pump_requests(&mut self, channel: u32) {
        let ch = self.channels.at(channel);
        if ch.tx.ahead(ch.cursor).is_none() {
            ch.cursor = ch.tx.base();
        }
        while ch.requested < REQUESTS && ch.cursor != ch.tx_next {
            let entry = ch.tx.get(ch.cursor);
            ch.cursor = ch.cursor.wrapping_add(1);
            let TxEntry::Message(index) = entry else { continue };
            let Some(key) = self.outgoing.key(index) else { continue };
            let Some(m) = self.outgoing.at_mut(index) else { continue };
            if m.stage == Stage::Waiting && !m.requested {
                m.requested = true;
                ch.requested += 1;
                self.classes[m.class.index()].records.push_back(Pending::Request(key));
            }
        }
    }

    /// A grant arrived.
    pub(super) fn on_grant(&mut self, channel: u32, number: u32, grant: Grant) -> Result<(), Violation> {
        let channel = self.channels.open(channel).ok_or(Violation::Channels)?;
        let ch = self.channels.at(channel);
        let Some(ahead) = ch.tx.ahead(number) else {
            self.counts.duplicate_records += 1;
            return Ok(());
        };
        if ahead >= MAX_AHEAD {
            return Err(Violation::Number);
        }
        match ch.tx.get(number) {
            TxEntry::Vacant => {
                let more = number.wrapping_add(1).wrapping_sub(ch.tx.end()) as i32;
                if more > 0 {
                    // Entries below our next number always exist.
                    self.tx_ahead += more as u32;
                    if self.tx_ahead > TOTAL_AHEAD {
                        return Err(Violation::Grants);
                    }
                }
                let key = self.grants.insert(grant).ok_or(Violation::Grants)?;
                ch.tx.set(number, TxEntry::Granted(key.index));
            }
            TxEntry::Message(index) => match self.outgoing.at(index) {
                Some(m) if m.stage == Stage::Waiting => {
                    self.stop_waiting(index);
                    self.granted(index, grant);
                }
                // It went eagerly meanwhile, or this is the second copy.
                _ => self.counts.duplicate_records += 1,
            },
            TxEntry::Granted(_) | TxEntry::Done => self.counts.duplicate_records += 1,
        }
        Ok(())
    }

    /// A message that is in no list has its grant.
    fn granted(&mut self, index: u32, grant: Grant) {
        let Some(m) = self.outgoing.at(index) else { return };
        let (len, class) = (m.len, m.class.index());
        if len > grant.capacity {
            self.finish_failed(index, Failure::TooLong { len, capacity: grant.capacity });
            return;
        }
        // One control message instead of a write and a TOTAL.
        if m.eager && (len < grant.capacity || len == 0) && self.reserve_eager() {
            self.go_eager(index);
            return;
        }
        if len > 0 && (self.classes[class].down || self.classes[class].data.is_empty()) {
            self.finish_failed(index, Failure::Class(self.classes[class].class));
            return;
        }
        let Some(key) = self.outgoing.key(index) else { return };
        let Some(m) = self.outgoing.at_mut(index) else { return };
        m.grant = grant;
        m.stage = Stage::Active;
        if len < grant.capacity || len == 0 {
            m.total_due = true;
            self.classes[class].records.push_back(Pending::Total(key));
        }
        if len > 0 {
            let class = &mut self.classes[class];
            class.active.push_back(&mut self.outgoing, index);
            class.queued += len;
        }
    }

    /// Ends a message that is delivered.
    pub(super) fn finish_sent(&mut self, index: u32) {
        let Some(m) = self.outgoing.remove(index) else { return };
        match m.kind {
            DoneKind::Send => {
                self.counts.sent += 1;
                self.forget_number(m.channel, m.number);
            }
            _ => self.counts.one_sided += 1,
        }
        self.done.push_back(Done {
            token: m.token,
            kind: m.kind,
            result: Ok(m.len),
            fate: Fate::Delivered,
            window: None,
        });
        if self.closing {
            self.say_goodbye();
        }
    }

    /// Marks a number finished and moves the channel's window.
    fn forget_number(&mut self, channel: u32, number: u32) {
        let ch = self.channels.at(channel);
        if ch.tx.ahead(number).is_some() {
            ch.tx.set(number, TxEntry::Done);
        }
        while ch.tx.front() == Some(TxEntry::Done) {
            ch.tx.pop_front();
        }
    }

    /// Gives a message up; it ends when nothing of it is in flight.
    pub(super) fn fail_send(&mut self, index: u32, why: Failure) {
        let Some(m) = self.outgoing.at_mut(index) else { return };
        let class = m.class.index();
        m.gave_up();
        match m.stage {
            Stage::Failing(_) => return,
            Stage::Waiting => self.stop_waiting(index),
            Stage::EagerQueued => {
                self.classes[class].eager.unlink(&mut self.outgoing, index);
                self.eager_used = self.eager_used.wrapping_sub(1);
            }
            Stage::EagerSent => {}
            Stage::Active => {
                let left = m.len - m.next;
                if left > 0 {
                    let class = &mut self.classes[class];
                    class.active.unlink(&mut self.outgoing, index);
                    class.queued -= left;
                }
                self.drop_replays(index);
            }
        }
        let Some(m) = self.outgoing.at_mut(index) else { return };
        m.stage = Stage::Failing(why);
        if m.in_flight == 0 {
            self.finish_failed(index, why);
        }
    }

    /// Ends a message that was given up and has nothing in flight.
    pub(super) fn finish_failed(&mut self, index: u32, why: Failure) {
        let Some(mut m) = self.outgoing.remove(index) else { return };
        m.gave_up();
        let fate = m.verdict();
        self.counts.failed += 1;
        if m.kind == DoneKind::Send {
            self.forget_number(m.channel, m.number);
            let reason = match why {
                Failure::TooLong { .. } => PeerReason::TooLong,
                Failure::Lane { .. } | Failure::Class(_) => PeerReason::Lane,
                _ => PeerReason::Other,
            };
            // Only now: before, a chunk under way could still have met a closed window.
            self.queue_record(m.class, Pending::Failed { channel: m.channel, number: m.number, reason: reason as u8 });
        }
        self.done.push_back(Done { token: m.token, kind: m.kind, result: Err(why), fate, window: None });
        if self.closing {
            self.say_goodbye();
        }
    }
}

fn check(region: &Region, offset: u64, len: u64) -> Result<(), Refused> {
    match offset.checked_add(len) {
        Some(end) if end <= region.len() as u64 => Ok(()),
        _ => Err(Refused::Bounds),
    }
}
