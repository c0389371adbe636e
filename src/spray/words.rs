//! What is said about lanes when no lane can say it: a few records go over the bootstrap connection, the witness, until a
//! control lane is back. Data never does.
//!
//! That is so when no control lane is in use here, or when nothing gets through by those that are: then each end may have lost
//! just the lanes that the other one speaks by.

use super::control::{Header, Record, Writer};
use super::failure::{Failure, Violation};
use super::lane::Stage;
use super::records::{LaneLife, Offer};
use super::session::{Pending, Session};
use crate::class::Class;
use crate::time::Time;

/// A session's way of speaking without lanes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Words {
    /// There is a witness that can carry words, or there was one and it may come back.
    hope: bool,
    /// It can now.
    speaks: bool,
    /// Since when no control lane is in use; `None` while one is.
    pub(super) dark: Option<Time>,
}

impl Session {
    /// Bytes that [`Session::poll_word`] fills at most.
    pub const WORD: usize = 4096;

    /// The witness can carry words from now on, or it cannot. A session that had one once waits for another for
    /// [`session_timeout`](super::SessionConfig::session_timeout) when it needs it.
    pub fn set_witness(&mut self, now: Time, speaks: bool) {
        self.now = now;
        self.words.hope |= speaks;
        self.words.speaks = speaks;
        if self.speaks_by_witness() {
            // Nobody knows what of the last witness arrived.
            self.say_all_again();
        }
    }

    /// True while no control lane is in use.
    pub fn is_dark(&self) -> bool {
        self.words.dark.is_some()
    }

    /// True while what must be said about lanes comes out of [`Session::poll_word`].
    #[inline]
    pub fn speaks_by_witness(&self) -> bool {
        (self.words.dark.is_some() || self.peer_suspect) && self.words.speaks
    }

    /// Nothing gets through by any lane.
    pub(super) fn try_witness(&mut self) {
        if self.words.speaks {
            self.say_all_again();
        }
    }

    /// The last control lane was given up. False if nothing can be said to the peer any more.
    pub(super) fn goes_dark(&mut self) -> bool {
        if !self.words.hope || !self.config.rebuild {
            return false;
        }
        self.words.dark = Some(self.now);
        self.say_all_again();
        true
    }

    /// A control lane is in use again.
    pub(super) fn is_light(&mut self) {
        self.words.dark = None;
    }

    /// Queues everything about lanes that the peer may not have heard. What it has heard does no harm.
    fn say_all_again(&mut self) {
        for index in 0..self.lanes.len() as u16 {
            let lane = &self.lanes[index as usize];
            let life = LaneLife { lane: lane.role.peer_index, generation: lane.role.generation };
            let offer = lane.back.ours.map(|(address, target)| Pending::Offer(Offer { life, address, target }));
            let said_ready = lane.back.has_said_ready();
            match lane.stage {
                Stage::Up if lane.open => {}
                Stage::Up | Stage::Made => {
                    offer.into_iter().for_each(|offer| self.queue_record(Class::Latency, offer));
                    if said_ready {
                        self.queue_record(Class::Latency, Pending::Ready(life));
                    }
                }
                Stage::Flushing | Stage::Flushed => self.queue_record(Class::Latency, Pending::Fence(life)),
                Stage::Gone | Stage::Making => {
                    self.say_fenced(index);
                    self.ask_again(index);
                }
            }
        }
    }

    /// The next message for the witness, in `out` of at least [`Session::WORD`] bytes; call until it returns `None`, after any
    /// other call. Only while [`Session::speaks_by_witness`].
    pub fn poll_word(&mut self, now: Time, out: &mut [u8]) -> Option<usize> {
        if !self.speaks_by_witness() || self.over.is_some() {
            return None;
        }
        self.now = now;
        let mut w = Writer::new(out);
        for c in 0..self.classes.len() {
            // All of them once around, so that what stays keeps its order.
            for _ in 0..self.classes[c].records.len() {
                let Some(pending) = self.classes[c].records.pop_front() else { break };
                if !is_word(&pending) || !self.write_word(&mut w, pending) {
                    self.classes[c].records.push_back(pending);
                }
            }
        }
        if w.is_empty() {
            return None;
        }
        // It belongs to no lane, and reports nothing.
        let nonce = self.config.nonce;
        Some(w.finish(&Header { generation: 0, credit: 0, nonce, eager_limit: 0 }))
    }

    /// Writes a record; false if it does not fit.
    fn write_word(&mut self, w: &mut Writer<'_>, pending: Pending) -> bool {
        let Some(record) = self.record(pending) else { return true };
        if !w.push(&record) {
            return false;
        }
        self.record_written(pending);
        true
    }

    /// The peer said this over the witness.
    pub fn word(&mut self, now: Time, message: &[u8]) {
        self.now = now;
        if self.over.is_none()
            && let Err(violation) = self.on_word(message)
        {
            self.end(Failure::Protocol(violation));
        }
    }

    fn on_word(&mut self, message: &[u8]) -> Result<(), Violation> {
        let (header, mut records) = Header::parse(message)?;
        if header.nonce != self.config.nonce {
            return Err(Violation::Nonce);
        }
        while let Some(record) = records.next() {
            match record? {
                Record::Fence(life) => self.on_fence(life),
                Record::Fenced(life) => self.on_fenced(life),
                Record::Ask(ask) => self.on_ask(ask)?,
                Record::Answer(answer) => self.on_answer(answer),
                Record::Offer(offer) => self.on_offer(offer),
                Record::Ready(life) => self.on_ready(life),
                Record::Optional(_) => {}
                // Messages depend on nothing but lanes.
                _ => return Err(Violation::Record),
            }
        }
        Ok(())
    }
}

/// What the witness may carry.
fn is_word(pending: &Pending) -> bool {
    matches!(
        pending,
        Pending::Fence(_)
            | Pending::Fenced(_)
            | Pending::Ask(..)
            | Pending::Answer(_)
            | Pending::Offer(_)
            | Pending::Ready(_)
    )
}
