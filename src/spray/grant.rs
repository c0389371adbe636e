//! Grants: the receiver's slots, and what a sender keeps of a grant.

use super::chunk::SLOT_GENERATIONS;
use super::slab::NONE;
use crate::lanes::MAX_PORTS;

/// Slots of a session: 12 bits of an immediate.
pub(super) const SLOTS: usize = 1 << 12;

/// A grant as the sender holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Grant {
    /// Address of the receive's first byte.
    pub(super) addr: u64,
    /// Longest message that fits.
    pub(super) capacity: u64,
    /// The window's key at each of the receiver's ports.
    pub(super) keys: [u32; MAX_PORTS],
    /// The receiver's slot, 0..4,096.
    pub(super) slot: u16,
    /// The slot's generation, 0..8.
    pub(super) generation: u8,
    /// log2 of the unit, 12..=20.
    pub(super) unit_shift: u8,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: u8,
    receive: u32,
}

/// The receiver's slots: index and generation name a granted receive in immediates.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Box<[Slot]>,
    /// Free slots, oldest first, so that a slot rests as long as possible.
    free: Box<[u16]>,
    head: usize,
    count: usize,
}

impl Slots {
    /// `count` slots, at most [`SLOTS`].
    pub(super) fn new(count: u16) -> Slots {
        let count = usize::from(count).min(SLOTS);
        Slots {
            slots: vec![Slot { generation: 0, receive: NONE }; count].into(),
            free: (0..count as u16).collect(),
            head: 0,
            count,
        }
    }

    /// A slot and its generation for this receive; `None` if all are taken.
    pub(super) fn take(&mut self, receive: u32) -> Option<(u16, u8)> {
        if self.count == 0 {
            return None;
        }
        let index = self.free[self.head];
        self.head = (self.head + 1) % self.free.len();
        self.count -= 1;
        let slot = &mut self.slots[index as usize];
        slot.generation = (slot.generation + 1) % SLOT_GENERATIONS;
        slot.receive = receive;
        Some((index, slot.generation))
    }

    pub(super) fn release(&mut self, index: u16) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        if slot.receive != NONE {
            slot.receive = NONE;
            let at = (self.head + self.count) % self.free.len();
            self.free[at] = index;
            self.count += 1;
        }
    }

    /// The receive that an immediate means; `None` if the slot has moved on.
    #[inline]
    pub(super) fn find(&self, index: u16, generation: u8) -> Option<u32> {
        let slot = self.slots.get(index as usize)?;
        (slot.generation == generation && slot.receive != NONE).then_some(slot.receive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_rests_before_it_returns() {
        let mut slots = Slots::new(SLOTS as u16);
        let (first, generation) = slots.take(7).expect("free");
        assert_eq!(slots.find(first, generation), Some(7));
        slots.release(first);
        slots.release(first);
        assert_eq!(slots.find(first, generation), None);
        for i in 0..SLOTS as u32 - 1 {
            let (slot, _) = slots.take(i).expect("free");
            assert_ne!(slot, first, "came back after {i} others");
        }
        let (again, next) = slots.take(9).expect("the last one");
        assert_eq!(again, first);
        assert_ne!(next, generation);
        assert_eq!(slots.find(first, generation), None, "an old generation finds nothing");
        assert!(slots.take(1).is_none());
    }
}
