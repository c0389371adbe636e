//! Giving up what is under way on one channel, while the others go on.

use super::failure::Failure;
use super::message::DoneKind;
use super::session::Session;
use crate::time::Time;

impl Session {
    /// Gives up every send of a channel: what has not begun ends at once, what has bytes in flight ends when they are
    /// acknowledged or their lane is gone. The peer's receives end with an error. Later sends are not affected.
    ///
    /// Returns how many sends of the channel still have bytes in flight.
    pub fn cancel_sends(&mut self, now: Time, channel: u32) -> usize {
        self.now = now;
        let Some(channel) = self.channels.find(channel) else { return 0 };
        let mut left = 0;
        for index in 0..self.outgoing.bound() {
            let ours = |m: &super::outgoing::Outgoing| m.kind == DoneKind::Send && m.channel == channel;
            if self.outgoing.at(index).is_some_and(ours) {
                self.fail_send(index, Failure::Cancelled);
                left += usize::from(self.outgoing.at(index).is_some());
            }
        }
        left
    }

    /// Ends every receive of a channel that is not over. Only when the peer is known to send nothing more on the channel
    /// and to have nothing in flight: a chunk that meets a closed window ends its lane.
    pub fn cancel_receives(&mut self, now: Time, channel: u32) {
        self.now = now;
        let Some(channel) = self.channels.find(channel) else { return };
        for index in 0..self.incoming.bound() {
            if self.incoming.at(index).is_some_and(|r| r.channel == channel && r.result.is_none()) {
                self.end_receive(index, Err(Failure::Cancelled));
            }
        }
    }
}
