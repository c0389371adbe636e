//! Slots of control memory that hold control messages until they are acknowledged.

use super::slab::{Key, NONE};

/// Messages that one control message may complete when it is acknowledged.
pub(super) const MAX_REFS: usize = 64;

/// A control message kept for sending again.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendSlot {
    /// Where it lies in control memory.
    pub(super) offset: u64,
    /// Its length; 0 while the slot is free.
    pub(super) len: u32,
    /// Lane that carries it; `u16::MAX` while none does.
    pub(super) lane: u16,
    /// Index of its class.
    pub(super) class: u8,
    /// It carries our goodbye.
    pub(super) bye: bool,
    refs: u8,
}

/// All send slots of a session.
#[derive(Debug, Default)]
pub(super) struct SendSlots {
    slots: Vec<SendSlot>,
    refs: Vec<Key>,
    free: Vec<u16>,
}

impl SendSlots {
    /// Adds a slot; off the hot path.
    pub(super) fn add(&mut self, offset: u64) {
        let Ok(index) = u16::try_from(self.slots.len()) else { return };
        if index == u16::MAX {
            return;
        }
        self.slots.push(SendSlot { offset, len: 0, lane: u16::MAX, class: 0, bye: false, refs: 0 });
        self.refs.resize(self.slots.len() * MAX_REFS, Key { index: NONE, generation: 0 });
        self.free.reserve(self.slots.len());
        self.free.push(index);
    }

    /// A free slot, which stays free until [`SendSlots::take`].
    pub(super) fn peek(&self) -> Option<u16> {
        self.free.last().copied()
    }

    /// Takes the slot that [`SendSlots::peek`] showed.
    pub(super) fn take(&mut self) -> Option<&mut SendSlot> {
        let index = self.free.pop()?;
        let slot = self.slots.get_mut(index as usize)?;
        *slot = SendSlot { offset: slot.offset, len: 0, lane: u16::MAX, class: 0, bye: false, refs: 0 };
        Some(slot)
    }

    pub(super) fn release(&mut self, index: u16) {
        if let Some(slot) = self.slots.get_mut(index as usize)
            && slot.len != 0
        {
            slot.len = 0;
            slot.refs = 0;
            slot.lane = u16::MAX;
            self.free.push(index);
        }
    }

    pub(super) fn at_mut(&mut self, index: u16) -> Option<&mut SendSlot> {
        self.slots.get_mut(index as usize)
    }

    /// Notes that a message is done when the slot's message is acknowledged; false if it has no room for that.
    pub(super) fn note(&mut self, index: u16, key: Key) -> bool {
        let Some(slot) = self.slots.get_mut(index as usize) else { return false };
        let at = slot.refs as usize;
        if at >= MAX_REFS {
            return false;
        }
        self.refs[index as usize * MAX_REFS + at] = key;
        slot.refs += 1;
        true
    }

    /// How many messages the slot completes.
    pub(super) fn noted(&self, index: u16) -> usize {
        self.slots.get(index as usize).map_or(0, |s| s.refs as usize)
    }

    /// The `i`th message that the slot completes.
    pub(super) fn noted_at(&self, index: u16, i: usize) -> Key {
        self.refs[index as usize * MAX_REFS + i]
    }

    /// Slots that a lane carries. Off the hot path.
    pub(super) fn on_lane(&self, lane: u16) -> Vec<u16> {
        let on = self.slots.iter().enumerate().filter(|(_, s)| s.len != 0 && s.lane == lane);
        on.map(|(i, _)| i as u16).collect()
    }
}
