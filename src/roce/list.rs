//! First-in, first-out lists of queue pairs, threaded through the queue pairs themselves.

use super::qp::{NONE, Node, Qp};

/// The device's queue pairs by slot.
pub(super) type Slots = Vec<Option<Box<Qp>>>;

/// Which node of a queue pair the list is threaded through.
#[derive(Clone, Copy, Debug)]
pub(super) enum Thread {
    Ready,
    Late,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    thread: Thread,
    head: u16,
    tail: u16,
}

impl List {
    pub(super) const fn new(thread: Thread) -> List {
        List { thread, head: NONE, tail: NONE }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    pub(super) fn head(&self) -> u16 {
        self.head
    }

    /// Adds `slot` at the end, unless it is in already.
    pub(super) fn push(&mut self, qps: &mut Slots, slot: u16) {
        let Some(node) = self.node(qps, slot) else { return };
        if node.listed {
            return;
        }
        *node = Node { next: NONE, listed: true };
        if self.tail == NONE {
            self.head = slot;
        } else if let Some(last) = self.node(qps, self.tail) {
            last.next = slot;
        }
        self.tail = slot;
    }

    pub(super) fn pop(&mut self, qps: &mut Slots) -> Option<u16> {
        let slot = self.head;
        let node = self.node(qps, slot)?;
        self.head = node.next;
        *node = Node { next: NONE, listed: false };
        if self.head == NONE {
            self.tail = NONE;
        }
        Some(slot)
    }

    /// Takes `slot` out wherever it is. Off the hot path.
    pub(super) fn remove(&mut self, qps: &mut Slots, slot: u16) {
        let mut rest = List::new(self.thread);
        while let Some(other) = self.pop(qps) {
            if other != slot {
                rest.push(qps, other);
            }
        }
        *self = rest;
    }

    fn node<'a>(&self, qps: &'a mut Slots, slot: u16) -> Option<&'a mut Node> {
        let qp = qps.get_mut(usize::from(slot))?.as_mut()?;
        Some(match self.thread {
            Thread::Ready => &mut qp.ready,
            Thread::Late => &mut qp.late,
        })
    }
}
