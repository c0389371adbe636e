//! A send or one-sided operation under way.

use super::chunk::{MIN_UNIT_SHIFT, units};
use super::failure::Failure;
use super::grant::Grant;
use super::message::{DoneKind, Fate};
use super::slab::{Link, Linked};
use crate::class::Class;
use crate::lanes::MrId;
use crate::mem::Region;

/// How far a message has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Neither granted nor sent eagerly; in the class's `waiting` list if it may go eagerly.
    Waiting,
    /// It has an eager credit and is in the class's `eager` list.
    EagerQueued,
    /// It is in a control message.
    EagerSent,
    /// Granted, or one-sided; in the class's `active` list while bytes are left to post.
    Active,
    /// Given up; ends when nothing of it is in flight.
    Failing(Failure),
}

/// A send or one-sided operation.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) kind: DoneKind,
    pub(super) class: Class,
    /// Index of its channel; sends only.
    pub(super) channel: u32,
    /// Its number on the channel; sends only.
    pub(super) number: u32,
    pub(super) mr: MrId,
    pub(super) region: Region,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) token: u64,
    /// It may go eagerly.
    pub(super) eager: bool,
    /// It has asked for a grant and waits for it.
    pub(super) requested: bool,
    /// A TOTAL record of it is not acknowledged yet.
    pub(super) total_due: bool,
    pub(super) stage: Stage,
    /// Where its bytes go, or come from.
    pub(super) grant: Grant,
    /// Bytes posted.
    pub(super) next: u64,
    /// Chunks posted and not completed.
    pub(super) in_flight: u32,
    /// Its TOTAL record is in a control message, which may have arrived.
    pub(super) total_sent: bool,
    /// What is known about the parts of it that are not under way any more.
    pub(super) fate: Fate,
    pub(super) link: Link,
}

impl Linked for Outgoing {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }
}

impl Outgoing {
    /// True when every byte was posted and acknowledged.
    #[inline]
    pub(super) fn is_complete(&self) -> bool {
        self.stage == Stage::Active && self.next == self.len && self.in_flight == 0 && !self.total_due
    }

    /// One part of it is over. What is missing for certain outweighs what nobody knows.
    pub(super) fn part_ended(&mut self, fate: Fate) {
        match (self.fate, fate) {
            (Fate::NotDelivered, _) | (_, Fate::Delivered) => {}
            _ => self.fate = fate,
        }
    }

    /// Notes what of it was never sent, when it is given up.
    pub(super) fn gave_up(&mut self) {
        let missing = match self.stage {
            Stage::Waiting | Stage::EagerQueued => true,
            // A receiver has the whole only with every chunk, and with the TOTAL of a short one.
            Stage::Active if self.announces() => self.next < self.len || (self.total_due && !self.total_sent),
            Stage::Active => self.next == 0,
            Stage::EagerSent | Stage::Failing(_) => false,
        };
        if missing {
            self.part_ended(Fate::NotDelivered);
        } else if self.stage == Stage::EagerSent || self.total_due || self.next < self.len {
            self.part_ended(Fate::Unknown);
        }
    }

    /// What is known of it, now that it ends.
    pub(super) fn verdict(&self) -> Fate {
        match self.fate {
            Fate::NotDelivered if !self.announces() && self.next > 0 => Fate::Unknown,
            Fate::Delivered if self.in_flight > 0 => Fate::Unknown,
            fate => fate,
        }
    }

    /// True if an immediate announces each chunk.
    #[inline]
    pub(super) fn announces(&self) -> bool {
        matches!(self.kind, DoneKind::Send)
    }

    /// log2 of what its chunks are multiples of.
    #[inline]
    pub(super) fn unit_shift(&self) -> u8 {
        if self.announces() { self.grant.unit_shift } else { MIN_UNIT_SHIFT }
    }

    /// Units that are left to post.
    #[inline]
    pub(super) fn units_left(&self) -> u64 {
        units(self.len - self.next, self.unit_shift())
    }
}
