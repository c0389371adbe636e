//! Outstanding operations: where an engine leaves a result and a caller finds it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;

use crate::spray::{Failure, Fate, Refused};

/// A table of operations, shared by the engine and its callers. Fixed size; nothing here allocates.
#[derive(Debug)]
pub struct Ops {
    slots: Box<[Slot]>,
    free: ArrayQueue<u32>,
    /// Somebody may be waiting for what was finished.
    finished: AtomicBool,
}

/// An operation: its slot and the slot's generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpId(u64);

#[derive(Debug)]
struct Slot {
    generation: AtomicU32,
    state: AtomicU32,
    len: AtomicU64,
    /// Set only with `FAILED`; off the hot path.
    failure: Mutex<Option<Lost>>,
}

/// How an operation ended without success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lost {
    /// Why.
    pub why: Ended,
    /// What is known about the arrival of what it sent; `None` if it was a receive.
    pub fate: Option<Fate>,
}

/// Why an operation, or a session with all of its operations, ended without success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The session says why.
    Failed(Failure),
    /// The session did not take it.
    Refused(Refused),
    /// The peer's process is gone: its bootstrap connection ended without a goodbye.
    PeerGone,
    /// Our own end closed the session.
    Cancelled,
}

const FREE: u32 = 0;
const PENDING: u32 = 1;
/// The caller let go; the engine frees the slot.
const DETACHED: u32 = 2;
const DONE: u32 = 3;
const FAILED: u32 = 4;

impl OpId {
    /// As the machine below carries it.
    pub const fn token(self) -> u64 {
        self.0
    }

    /// Back from the machine below.
    pub const fn from_token(token: u64) -> Self {
        OpId(token)
    }

    /// Its slot, below [`Ops::capacity`].
    pub(super) const fn index(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }

    const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl Ops {
    /// Room for `capacity` operations at once.
    pub fn new(capacity: usize) -> Ops {
        let slot = |_| Slot {
            generation: AtomicU32::new(0),
            state: AtomicU32::new(FREE),
            len: AtomicU64::new(0),
            failure: Mutex::new(None),
        };
        let free = ArrayQueue::new(capacity.max(1));
        for i in 0..capacity as u32 {
            let _ = free.push(i);
        }
        Ops { slots: (0..capacity).map(slot).collect(), free, finished: AtomicBool::new(false) }
    }

    /// Whether an operation was finished that somebody may be waiting for, since last asked.
    pub fn take_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire) && self.finished.swap(false, Ordering::AcqRel)
    }

    /// Takes a slot; `None` if all are outstanding.
    pub fn begin(&self) -> Option<OpId> {
        let index = self.free.pop()?;
        let slot = self.slots.get(index as usize)?;
        let generation = slot.generation.load(Ordering::Relaxed);
        slot.state.store(PENDING, Ordering::Release);
        Some(OpId(u64::from(generation) << 32 | u64::from(index)))
    }

    /// Gives back a slot whose operation was never handed to the engine.
    pub fn abandon(&self, op: OpId) {
        if let Some(slot) = self.slot(op) {
            self.release(op, slot);
        }
    }

    /// The engine's result: bytes, or why not. Returns true if somebody may be waiting for it.
    pub fn finish(&self, op: OpId, result: Result<u64, Lost>) -> bool {
        let Some(slot) = self.slot(op) else { return false };
        let state = match result {
            Ok(len) => {
                slot.len.store(len, Ordering::Relaxed);
                DONE
            }
            Err(failure) => {
                *slot.failure.lock() = Some(failure);
                FAILED
            }
        };
        match slot.state.compare_exchange(PENDING, state, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                self.finished.store(true, Ordering::Release);
                true
            }
            Err(DETACHED) => {
                self.release(op, slot);
                false
            }
            Err(_) => false,
        }
    }

    /// Takes the result, if there is one; the slot is free afterwards.
    pub fn take(&self, op: OpId) -> Option<Result<u64, Lost>> {
        let slot = self.slot(op)?;
        let result = match slot.state.load(Ordering::Acquire) {
            DONE => Ok(slot.len.load(Ordering::Relaxed)),
            FAILED => {
                Err(slot.failure.lock().take().unwrap_or(Lost { why: Ended::Cancelled, fate: Some(Fate::Unknown) }))
            }
            _ => return None,
        };
        self.release(op, slot);
        Some(result)
    }

    /// True once there is a result to take.
    pub fn is_done(&self, op: OpId) -> bool {
        self.slot(op).is_some_and(|s| matches!(s.state.load(Ordering::Acquire), DONE | FAILED))
    }

    /// Lets go of an operation: its result, now or later, goes nowhere.
    pub fn detach(&self, op: OpId) {
        let Some(slot) = self.slot(op) else { return };
        if slot.state.compare_exchange(PENDING, DETACHED, Ordering::AcqRel, Ordering::Acquire).is_err() {
            self.release(op, slot);
        }
    }

    /// How many operations fit.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Operations outstanding.
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn slot(&self, op: OpId) -> Option<&Slot> {
        let slot = self.slots.get(op.index())?;
        (slot.generation.load(Ordering::Acquire) == op.generation()).then_some(slot)
    }

    fn release(&self, op: OpId, slot: &Slot) {
        slot.generation.store(op.generation().wrapping_add(1), Ordering::Release);
        slot.state.store(FREE, Ordering::Release);
        let _ = self.free.push(op.index() as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_taken_once() {
        let ops = Ops::new(2);
        let op = ops.begin().expect("a slot");
        assert_eq!(ops.take(op), None);
        assert!(ops.finish(op, Ok(7)));
        assert!(ops.is_done(op));
        assert_eq!(ops.take(op), Some(Ok(7)));
        assert_eq!(ops.take(op), None);
        assert!(!ops.finish(op, Ok(8)), "the slot has moved on");
        assert_eq!(ops.outstanding(), 0);
    }

    #[test]
    fn detaching_before_and_after_frees_the_slot() {
        let ops = Ops::new(1);
        let op = ops.begin().expect("a slot");
        ops.detach(op);
        assert!(ops.begin().is_none(), "the engine still has it");
        assert!(!ops.finish(op, Ok(1)));
        let op = ops.begin().expect("free again");
        assert!(ops.finish(op, Err(Lost { why: Ended::Cancelled, fate: None })));
        ops.detach(op);
        assert!(ops.begin().is_some());
    }
}
