//! Receives: how they are matched, granted, filled, and reported.

use super::channel::{CHANNEL_DEPTH, Channel, MAX_AHEAD, RxEntry, TOTAL_AHEAD};
use super::chunk::{Immediate, MAX_MESSAGE};
use super::failure::{Failure, PeerReason, Violation};
use super::incoming::{Granted, Incoming, Progress};
use super::message::{Done, DoneKind, Event, Fate, MessageId, Recv, Refused};
use super::session::Session;
use crate::class::Class;
use crate::time::Time;

impl Session {
    /// Posts a receive.
    ///
    /// # Errors
    /// See [`Refused`]; the receive was not taken.
    pub fn receive(&mut self, now: Time, r: &Recv) -> Result<MessageId, Refused> {
        self.now = now;
        if self.over.is_some() {
            return Err(Refused::Closed);
        }
        if r.capacity > MAX_MESSAGE {
            return Err(Refused::TooLong);
        }
        if r.offset.checked_add(r.capacity).is_none_or(|end| end > r.region.len() as u64) || r.window.len < r.capacity {
            return Err(Refused::Bounds);
        }
        let channel = self.channels.open(r.channel).ok_or(Refused::Channels)?;
        let ch = self.channels.at(channel);
        let number = ch.rx_next;
        if number.wrapping_sub(ch.rx.base()) >= CHANNEL_DEPTH {
            return Err(Refused::Full);
        }
        let entry = ch.rx.get(number);
        if self.peer_closed && !matches!(entry, RxEntry::Eager(..) | RxEntry::Failed(_)) {
            return Err(Refused::Closed);
        }
        let key = self
            .incoming
            .insert(Incoming {
                channel,
                number,
                region: r.region.clone(),
                offset: r.offset,
                capacity: r.capacity,
                window: r.window,
                token: r.token,
                ordered: r.ordered,
                slotless: false,
                granted: None,
                result: None,
            })
            .ok_or(Refused::Full)?;
        if ch.rx.end() != number {
            self.rx_ahead = self.rx_ahead.saturating_sub(1);
        }
        ch.rx.set(number, RxEntry::Posted(key.index));
        ch.rx_next = number.wrapping_add(1);
        if matches!(entry, RxEntry::Eager(..) | RxEntry::Failed(_)) {
            // It counted when it came.
            self.arrived -= 1;
        }
        match entry {
            RxEntry::Eager(cell, len) => {
                let payload = self.pool.bytes(cell, len);
                let result = place(r, payload);
                self.pool.release(cell);
                self.check_eager_credit();
                self.end_receive(key.index, result);
            }
            RxEntry::Failed(reason) => self.end_receive(key.index, Err(gave_up(reason))),
            RxEntry::Wanted => self.grant(key.index),
            _ if r.capacity > u64::from(self.config.eager_max) || self.config.grant_always => self.grant(key.index),
            _ => {}
        }
        Ok(MessageId(key.to_bits()))
    }

    /// Grants a receive, now or when a slot is free.
    fn grant(&mut self, index: u32) {
        let Some(key) = self.incoming.key(index) else { return };
        let Some(r) = self.incoming.at_mut(index) else { return };
        if r.granted.is_some() || r.slotless || r.result.is_some() {
            self.counts.duplicate_records += 1;
            return;
        }
        let Some((slot, generation)) = self.slots.take(index) else {
            r.slotless = true;
            self.slotless.push_back(key);
            return;
        };
        r.granted = Some(Granted::new(slot, generation, r.capacity, &mut self.bits));
        let ch = self.channels.at(r.channel);
        ch.granted += 1;
        ch.held += 1;
        let (class, last) = (ch.rx_class, 2 * ch.held > ch.granted);
        self.queue_grant(class, key, last);
    }

    /// Ends a receive; reports it now, or when the earlier ones have ended if it is ordered.
    pub(super) fn end_receive(&mut self, index: u32, result: Result<u64, Failure>) {
        let Some(r) = self.incoming.at_mut(index) else { return };
        if r.result.is_none() {
            r.result = Some(result);
            self.arrived += 1;
            if let Some(granted) = r.granted.take() {
                let ch = self.channels.at(r.channel);
                ch.granted = ch.granted.saturating_sub(1);
                let (class, last) = (ch.rx_class, ch.held > 0 && 2 * ch.held > ch.granted);
                if last {
                    self.classes[class.index()].held_until = self.now;
                }
                self.slots.release(granted.slot);
                granted.release(&mut self.bits);
                self.slot_is_free();
            }
        }
        let Some(r) = self.incoming.at(index) else { return };
        let (channel, number) = (r.channel, r.number);
        if !r.ordered || self.channels.at(channel).rx.base() == number || self.over.is_some() {
            self.report_receive(index);
        }
        // Those that waited for this one.
        loop {
            let ch = self.channels.at(channel);
            match ch.rx.front() {
                Some(RxEntry::Done) => ch.rx.pop_front(),
                Some(RxEntry::Posted(next)) if self.incoming.at(next).is_some_and(|r| r.result.is_some()) => {
                    self.report_receive(next);
                }
                _ => break,
            }
        }
        self.check_peer_closed();
    }

    /// Reports an ended receive.
    fn report_receive(&mut self, index: u32) {
        let Some(r) = self.incoming.remove(index) else { return };
        self.channels.at(r.channel).rx.set(r.number, RxEntry::Done);
        let result = r.result.unwrap_or(Err(Failure::Cancelled));
        let fate = match result {
            Ok(_) => {
                self.counts.received += 1;
                Fate::Delivered
            }
            Err(_) => {
                self.counts.failed += 1;
                Fate::NotDelivered
            }
        };
        self.done.push_back(Done { token: r.token, kind: DoneKind::Receive, result, fate, window: Some(r.window) });
    }

    /// Gives a free slot to the receive that has waited longest.
    fn slot_is_free(&mut self) {
        while let Some(key) = self.slotless.pop_front() {
            if let Some(r) = self.incoming.get_mut(key)
                && r.result.is_none()
            {
                r.slotless = false;
                self.grant(key.index);
                return;
            }
        }
    }

    /// A chunk landed.
    #[inline]
    pub(super) fn on_immediate(&mut self, bits: u32) -> Result<(), Violation> {
        let imm = Immediate::from_bits(bits);
        let Some(index) = self.slots.find(imm.slot, imm.generation) else {
            self.counts.late_immediates += 1;
            return Ok(());
        };
        let Some(r) = self.incoming.at_mut(index) else { return Ok(()) };
        let Some(granted) = &mut r.granted else { return Ok(()) };
        match granted.on_immediate(imm, r.capacity, &mut self.bits)? {
            Progress::More(duplicates) => self.counts.duplicate_units += duplicates,
            Progress::Whole(len) => self.end_receive(index, Ok(len)),
        }
        Ok(())
    }

    /// A message is shorter than its grant.
    pub(super) fn on_total(&mut self, channel: u32, number: u32, total: u64) -> Result<(), Violation> {
        let Some((_, RxEntry::Posted(index))) = self.peer_number(channel, number)? else {
            self.counts.duplicate_records += 1;
            return Ok(());
        };
        let Some(r) = self.incoming.at_mut(index) else { return Ok(()) };
        if r.result.is_some() {
            self.counts.duplicate_records += 1;
            return Ok(());
        }
        let granted = r.granted.as_mut().ok_or(Violation::Total)?;
        if let Progress::Whole(len) = granted.on_total(total, r.capacity, &mut self.bits)? {
            self.end_receive(index, Ok(len));
        }
        Ok(())
    }

    /// A whole message came in a control message.
    pub(super) fn on_eager(
        &mut self,
        class: Class,
        channel: u32,
        number: u32,
        payload: &[u8],
    ) -> Result<(), Violation> {
        if payload.len() > self.config.eager_max as usize {
            return Err(Violation::Eager);
        }
        let Some((channel, entry)) = self.peer_number(channel, number)? else {
            self.counts.duplicate_records += 1;
            return Ok(());
        };
        self.channels.at(channel).rx_class = class;
        match entry {
            RxEntry::Vacant | RxEntry::Wanted => {
                let cell = self.pool.store(payload).ok_or(Violation::Eager)?;
                self.counts.unexpected += 1;
                self.arrived += 1;
                self.set_ahead(channel, number, RxEntry::Eager(cell, payload.len() as u32))?;
                self.check_peer_closed();
            }
            RxEntry::Posted(index) => {
                let Some(r) = self.incoming.at(index) else { return Ok(()) };
                if r.result.is_some() {
                    self.counts.duplicate_records += 1;
                    return Ok(());
                }
                if r.granted.as_ref().is_some_and(|g| !g.is_untouched()) {
                    return Err(Violation::Eager);
                }
                let result = place_at(r, payload);
                self.pool.consume();
                self.check_eager_credit();
                self.end_receive(index, result);
            }
            RxEntry::Eager(..) | RxEntry::Failed(_) | RxEntry::Done => self.counts.duplicate_records += 1,
        }
        Ok(())
    }

    /// A message waits for its grant.
    pub(super) fn on_request(&mut self, class: Class, channel: u32, number: u32) -> Result<(), Violation> {
        let Some((channel, entry)) = self.peer_number(channel, number)? else {
            self.counts.duplicate_records += 1;
            return Ok(());
        };
        self.channels.at(channel).rx_class = class;
        match entry {
            RxEntry::Vacant => self.set_ahead(channel, number, RxEntry::Wanted)?,
            RxEntry::Posted(index) => self.grant(index),
            _ => self.counts.duplicate_records += 1,
        }
        Ok(())
    }

    /// The peer gives a message up.
    pub(super) fn on_failed(&mut self, channel: u32, number: u32, reason: u8) -> Result<(), Violation> {
        let Some((channel, entry)) = self.peer_number(channel, number)? else {
            self.counts.duplicate_records += 1;
            return Ok(());
        };
        match entry {
            RxEntry::Vacant | RxEntry::Wanted => {
                self.arrived += 1;
                self.set_ahead(channel, number, RxEntry::Failed(reason))?;
                self.check_peer_closed();
            }
            RxEntry::Posted(index) if self.incoming.at(index).is_some_and(|r| r.result.is_none()) => {
                self.end_receive(index, Err(gave_up(reason)));
            }
            _ => self.counts.duplicate_records += 1,
        }
        Ok(())
    }

    /// The peer has sent `messages` in all and sends no more.
    pub(super) fn on_bye(&mut self, messages: u64) {
        if self.peer_total.is_none() {
            self.peer_total = Some(messages);
            self.check_peer_closed();
        }
    }

    /// Fails the receives that nothing can match any more.
    fn check_peer_closed(&mut self) {
        let Some(total) = self.peer_total else { return };
        if self.peer_closed || self.arrived < total || self.over.is_some() {
            return;
        }
        self.peer_closed = true;
        self.events.push_back(Event::PeerClosed);
        for index in 0..self.incoming.bound() {
            if self.incoming.at(index).is_some_and(|r| r.result.is_none()) {
                self.end_receive(index, Err(Failure::PeerClosed));
            }
        }
    }

    /// The channel and state of a number that the peer speaks of; `None` if it is finished and gone.
    fn peer_number(&mut self, channel: u32, number: u32) -> Result<Option<(u32, RxEntry)>, Violation> {
        let channel = self.channels.open(channel).ok_or(Violation::Channels)?;
        let ch: &Channel = self.channels.at(channel);
        match ch.rx.ahead(number) {
            None => Ok(None),
            Some(ahead) if ahead >= MAX_AHEAD => Err(Violation::Number),
            Some(_) => Ok(Some((channel, ch.rx.get(number)))),
        }
    }

    /// Sets the state of a number for which there is no receive.
    fn set_ahead(&mut self, channel: u32, number: u32, entry: RxEntry) -> Result<(), Violation> {
        let ch = self.channels.at(channel);
        let more = number.wrapping_add(1).wrapping_sub(ch.rx.end()) as i32;
        if more > 0 {
            self.rx_ahead += more as u32;
            if self.rx_ahead > TOTAL_AHEAD {
                return Err(Violation::Number);
            }
        }
        ch.rx.set(number, entry);
        Ok(())
    }

    /// Tells the peer of new eager credit if it is time.
    fn check_eager_credit(&mut self) {
        if self.pool.due() {
            self.classes[Class::Latency.index()].push = true;
        }
    }
}

/// Copies an eager message to a receive that is just posted.
fn place(r: &Recv, payload: &[u8]) -> Result<u64, Failure> {
    fit(payload, r.capacity)?;
    r.region.write_at(r.offset, payload).map_err(|_| Failure::Cancelled)?;
    Ok(payload.len() as u64)
}

fn place_at(r: &Incoming, payload: &[u8]) -> Result<u64, Failure> {
    fit(payload, r.capacity)?;
    r.region.write_at(r.offset, payload).map_err(|_| Failure::Cancelled)?;
    Ok(payload.len() as u64)
}

fn fit(payload: &[u8], capacity: u64) -> Result<(), Failure> {
    let len = payload.len() as u64;
    if len > capacity { Err(Failure::TooLong { len, capacity }) } else { Ok(()) }
}

fn gave_up(reason: u8) -> Failure {
    Failure::Peer(match reason {
        0 => PeerReason::Lane,
        1 => PeerReason::TooLong,
        _ => PeerReason::Other,
    })
}
