//! One deadline per queue pair, in a heap of fixed size.

use crate::time::Time;

const ABSENT: u16 = u16::MAX;

/// A binary heap of slots by deadline, which knows where each slot is.
#[derive(Debug)]
pub(super) struct Timers {
    heap: Vec<u16>,
    /// Deadline of each slot; meaningful while it is in the heap.
    due: Vec<Time>,
    /// Index of each slot in the heap.
    place: Vec<u16>,
}

impl Timers {
    pub(super) fn new(slots: usize) -> Timers {
        Timers { heap: Vec::with_capacity(slots), due: vec![Time::MAX; slots], place: vec![ABSENT; slots] }
    }

    /// The earliest deadline.
    pub(super) fn first(&self) -> Option<Time> {
        self.heap.first().map(|&slot| self.due[slot as usize])
    }

    /// Sets the slot's deadline to `at` unless it has an earlier one.
    ///
    /// A deadline that moves later stays where it is: it is looked at again when the earlier one comes,
    /// which is cheaper than moving it with every acknowledgement.
    pub(super) fn arm(&mut self, slot: usize, at: Time) {
        let place = self.place[slot];
        if place == ABSENT {
            self.due[slot] = at;
            self.heap.push(slot as u16);
            self.rise(self.heap.len() - 1);
        } else if at < self.due[slot] {
            self.due[slot] = at;
            self.rise(place as usize);
        }
    }

    /// Takes a slot whose deadline is at or before `now`.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<usize> {
        let slot = *self.heap.first()? as usize;
        if self.due[slot] > now {
            return None;
        }
        self.disarm(slot);
        Some(slot)
    }

    /// Takes the slot out.
    pub(super) fn disarm(&mut self, slot: usize) {
        let place = self.place[slot] as usize;
        if place >= self.heap.len() {
            return;
        }
        self.place[slot] = ABSENT;
        let Some(last) = self.heap.pop() else { return };
        if last as usize != slot {
            self.heap[place] = last;
            self.place[last as usize] = place as u16;
            self.sink(place);
            self.rise(self.place[last as usize] as usize);
        }
    }

    fn rise(&mut self, mut at: usize) {
        let slot = self.heap[at];
        while at > 0 {
            let up = (at - 1) / 2;
            if self.due[self.heap[up] as usize] <= self.due[slot as usize] {
                break;
            }
            self.heap[at] = self.heap[up];
            self.place[self.heap[at] as usize] = at as u16;
            at = up;
        }
        self.heap[at] = slot;
        self.place[slot as usize] = at as u16;
    }

    fn sink(&mut self, mut at: usize) {
        let slot = self.heap[at];
        loop {
            let mut down = 2 * at + 1;
            if down >= self.heap.len() {
                break;
            }
            if down + 1 < self.heap.len() && self.due[self.heap[down + 1] as usize] < self.due[self.heap[down] as usize]
            {
                down += 1;
            }
            if self.due[slot as usize] <= self.due[self.heap[down] as usize] {
                break;
            }
            self.heap[at] = self.heap[down];
            self.place[self.heap[at] as usize] = at as u16;
            at = down;
        }
        self.heap[at] = slot;
        self.place[slot as usize] = at as u16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slots_come_in_the_order_of_their_deadlines(
            steps in proptest::collection::vec((0usize..32, 1u64..1000, any::<bool>()), 1..200)
        ) {
            let mut timers = Timers::new(32);
            let mut model = [None; 32];
            for (slot, at, disarm) in steps {
                if disarm {
                    timers.disarm(slot);
                    model[slot] = None;
                } else {
                    timers.arm(slot, Time::from_nanos(at));
                    model[slot] = Some(model[slot].map_or(at, |old: u64| old.min(at)));
                }
                prop_assert_eq!(timers.first().map(Time::as_nanos), model.iter().flatten().min().copied());
            }
            let mut last = 0;
            while let Some(slot) = timers.pop_due(Time::MAX) {
                let at = model[slot].take().expect("armed");
                prop_assert!(at >= last);
                last = at;
            }
            prop_assert!(model.iter().all(Option::is_none));
        }
    }
}
