//! Giving up what is under way on one channel of a session.

use crossbeam_queue::ArrayQueue;

use super::backlog::Kind;
use super::command::{Command, SessionId};
use super::core::Core;
use super::ops::Ended;
use crate::lanes::Lanes;
use crate::time::Time;

impl<L: Lanes> Core<L> {
    /// Gives up every send of a channel, also those that callers queued before. Returns how many of them still have bytes
    /// in flight; drive until it is 0 or too late.
    pub fn cancel_sends(&mut self, now: Time, id: SessionId, channel: u32, commands: &ArrayQueue<Command>) -> usize {
        self.drop_waiting(now, id, Kind::Send(channel), commands);
        let Some(entry) = self.entry_mut(id) else { return 0 };
        let left = entry.session.cancel_sends(now, channel);
        entry.dirty = true;
        self.pump_all(now);
        self.lanes.doorbell(now);
        left
    }

    /// Ends every receive of a channel on which the peer sends nothing more.
    pub fn cancel_receives(&mut self, now: Time, id: SessionId, channel: u32, commands: &ArrayQueue<Command>) {
        self.drop_waiting(now, id, Kind::Receive(channel), commands);
        let Some(entry) = self.entry_mut(id) else { return };
        entry.session.cancel_receives(now, channel);
        entry.dirty = true;
        self.pump_all(now);
        self.lanes.doorbell(now);
    }

    /// Takes up what callers queued, then ends what of `kind` waits for room in its session.
    fn drop_waiting(&mut self, now: Time, id: SessionId, kind: Kind, commands: &ArrayQueue<Command>) {
        for _ in 0..commands.len() {
            let Some(command) = commands.pop() else { break };
            self.accept(now, command);
        }
        let Some(entry) = self.entry_mut(id) else { return };
        for command in entry.backlog.take(kind) {
            self.reject(usize::from(id.index), &command, Ended::Cancelled);
        }
    }
}
