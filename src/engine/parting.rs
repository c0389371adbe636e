//! How sessions end in peace: the goodbye, the end that leaves first and still answers the other, and the peer that is gone.

use crossbeam_queue::ArrayQueue;

use super::command::{Command, SessionId};
use super::core::{Core, Entry, SessionState};
use super::ops::Ended;
use super::witness::Seen;
use crate::lanes::Lanes;
use crate::spray::Failure;
use crate::time::{Span, Time};

/// How long operations may go on towards a peer that said goodbye and left.
const PARTING: Span = Span::from_millis(500);
/// How long an end that has nothing more to do answers what its peer still has under way: an acknowledgement of ours may have
/// been lost. The peer says when it needs us no more, by closing its end of the bootstrap connection.
const FAREWELL: Span = Span::from_millis(250);
/// Words of a peer that are taken in at one look.
const WORDS: usize = 64;

impl<L: Lanes> Core<L> {
    /// Takes no more sends on the session; the goodbye follows the last of them. What callers queued before is taken
    /// first.
    pub fn close(&mut self, now: Time, id: SessionId, commands: &ArrayQueue<Command>) {
        for _ in 0..commands.len() {
            let Some(command) = commands.pop() else { break };
            self.accept(now, command);
        }
        if let Some(entry) = self.entry_mut(id) {
            entry.closing = true;
            entry.dirty = true;
        }
        self.pump_all(now);
        self.lanes.doorbell(now);
    }

    /// True when everything sent is acknowledged and the goodbye too, or the session is over.
    pub fn is_drained(&self, id: SessionId) -> bool {
        self.entry(id).is_none_or(|e| e.session.is_drained())
    }

    /// True if nothing that is sent on the session can arrive any more.
    pub fn is_peer_gone(&self, id: SessionId) -> bool {
        self.entry(id).is_none_or(|e| e.left || matches!(e.state, SessionState::Ended(_)))
    }

    /// Whether a session that was closed can be removed, and if so whether the peer acknowledged everything. It can when that
    /// is so and the peer needs no answer of ours any more, or when nobody is left who could acknowledge. To be asked again
    /// and again while the engine is driven.
    pub fn part(&mut self, now: Time, id: SessionId) -> Option<bool> {
        let Some(entry) = self.entry_mut(id) else { return Some(false) };
        if matches!(entry.state, SessionState::Ended(_)) {
            return Some(false);
        }
        if !entry.session.is_drained() {
            return entry.has_lost_peer().then_some(false);
        }
        let since = *entry.parting.get_or_insert_with(|| {
            if let Some(witness) = &mut entry.witness {
                witness.leave();
            }
            now
        });
        (entry.left || entry.witness.is_none() || now.since(since) > FAREWELL).then_some(true)
    }

    /// Hears what the peer says over the bootstrap connection, and notices its end.
    #[cold]
    pub(super) fn look_after_peer(&mut self, now: Time, index: usize) {
        let Some(entry) = self.slots[index].entry.as_deref_mut() else { return };
        if entry.left {
            let waited = now.since(entry.left_at) > PARTING;
            if entry.under_way == 0 || waited {
                // The peer waits for this, if it is still there.
                entry.witness = None;
            }
            if entry.under_way > 0 && waited {
                // Nobody answers what was sent since its goodbye; the lanes would wait for longer.
                self.end_slot(index, Ended::Failed(Failure::PeerClosed));
            }
            return;
        }
        let Some(witness) = &mut entry.witness else { return };
        for _ in 0..WORDS {
            let Some(word) = witness.hear() else { break };
            entry.session.word(now, word);
            entry.dirty = true;
        }
        match witness.look() {
            Seen::Nothing => {}
            Seen::Lost => {
                entry.witness = None;
                entry.session.set_witness(now, false);
            }
            Seen::Gone => {
                // Its goodbye may be among what came with this round.
                self.pump(now, index);
                match self.slots[index].entry.as_deref_mut() {
                    Some(entry) if entry.state == SessionState::PeerClosed || entry.parting.is_some() => {
                        entry.left = true;
                        entry.left_at = now;
                    }
                    _ => self.end_slot(index, Ended::PeerGone),
                }
            }
        }
    }
}

impl Entry {
    /// Nobody is left who could acknowledge anything.
    fn has_lost_peer(&self) -> bool {
        self.left && self.witness.is_none()
    }
}
