//! Entries with generations, and lists threaded through them.

/// No entry.
pub(super) const NONE: u32 = u32::MAX;

/// Names an entry of a [`Slab`] for as long as it lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl Key {
    pub(super) const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    /// Next free entry.
    free: u32,
    value: Option<T>,
}

/// Entries that a slab has room for from the start.
const WORKING: usize = 1024;

/// Allocates only when more entries live than ever before, and more than [`WORKING`].
#[derive(Debug)]
pub(super) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: u32,
    live: usize,
    limit: usize,
}

impl<T> Slab<T> {
    pub(super) fn new(limit: usize) -> Self {
        let limit = limit.min(NONE as usize);
        Slab { entries: Vec::with_capacity(limit.min(WORKING)), free: NONE, live: 0, limit }
    }

    pub(super) fn len(&self) -> usize {
        self.live
    }

    /// `None` if the slab is full.
    pub(super) fn insert(&mut self, value: T) -> Option<Key> {
        let index = if let Some(entry) = self.entries.get_mut(self.free as usize) {
            let index = self.free;
            self.free = entry.free;
            entry.value = Some(value);
            index
        } else if self.entries.len() < self.limit {
            self.entries.push(Entry { generation: 0, free: NONE, value: Some(value) });
            (self.entries.len() - 1) as u32
        } else {
            return None;
        };
        self.live += 1;
        Some(Key { index, generation: self.entries[index as usize].generation })
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        let entry = self.entries.get_mut(index as usize)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        entry.free = self.free;
        self.free = index;
        self.live -= 1;
        Some(value)
    }

    #[inline]
    pub(super) fn at(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)?.value.as_ref()
    }

    #[inline]
    pub(super) fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.value.as_mut()
    }

    /// The key of a live entry.
    pub(super) fn key(&self, index: u32) -> Option<Key> {
        let entry = self.entries.get(index as usize)?;
        entry.value.is_some().then_some(Key { index, generation: entry.generation })
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.index as usize)?;
        if entry.generation == key.generation { entry.value.as_mut() } else { None }
    }

    /// One more than the highest index ever used.
    pub(super) fn bound(&self) -> u32 {
        self.entries.len() as u32
    }
}

/// An entry's neighbours in the one list that it is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Link {
    prev: u32,
    next: u32,
}

impl Default for Link {
    fn default() -> Self {
        Link { prev: NONE, next: NONE }
    }
}

/// An entry that can be in a [`List`].
pub(super) trait Linked {
    fn link(&mut self) -> &mut Link;
}

/// A doubly linked list of slab entries: first in, first out, with removal anywhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    head: u32,
    tail: u32,
}

impl Default for List {
    fn default() -> Self {
        List { head: NONE, tail: NONE }
    }
}

impl List {
    pub(super) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    pub(super) fn front(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// Appends an entry that is in no list.
    pub(super) fn push_back<T: Linked>(&mut self, slab: &mut Slab<T>, index: u32) {
        let tail = self.tail;
        let Some(entry) = slab.at_mut(index) else { return };
        *entry.link() = Link { prev: tail, next: NONE };
        match slab.at_mut(tail) {
            Some(last) => last.link().next = index,
            None => self.head = index,
        }
        self.tail = index;
    }

    /// Takes out an entry that is in this list.
    pub(super) fn unlink<T: Linked>(&mut self, slab: &mut Slab<T>, index: u32) {
        let Some(entry) = slab.at_mut(index) else { return };
        let Link { prev, next } = std::mem::take(entry.link());
        match slab.at_mut(prev) {
            Some(p) => p.link().next = next,
            None => self.head = next,
        }
        match slab.at_mut(next) {
            Some(n) => n.link().prev = prev,
            None => self.tail = prev,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    struct Node(u32, Link);
    impl Linked for Node {
        fn link(&mut self) -> &mut Link {
            &mut self.1
        }
    }

    #[test]
    fn an_old_key_opens_nothing() {
        let mut slab = Slab::new(1);
        let a = slab.insert(7).expect("room");
        assert!(slab.insert(8).is_none(), "limit holds");
        assert_eq!(slab.remove(a.index), Some(7));
        let b = slab.insert(9).expect("room again");
        assert_eq!(a.index, b.index);
        assert!(slab.get_mut(a).is_none());
        assert_eq!(slab.get_mut(b), Some(&mut 9));
        assert_eq!(slab.len(), 1);
    }

    proptest! {
        #[test]
        fn a_list_is_a_queue_with_holes(ops in proptest::collection::vec((0u8..4, 0usize..16), 0..200)) {
            let mut slab = Slab::new(1000);
            let mut list = List::default();
            let mut model: VecDeque<u32> = VecDeque::new();
            for (op, at) in ops {
                match op {
                    0 | 1 => {
                        let key = slab.insert(Node(0, Link::default())).expect("room");
                        slab.at_mut(key.index).expect("live").0 = key.index;
                        list.push_back(&mut slab, key.index);
                        model.push_back(key.index);
                    }
                    2 => if let Some(front) = list.front() {
                        list.unlink(&mut slab, front);
                        prop_assert_eq!(slab.remove(front).map(|n| n.0), Some(front));
                        prop_assert_eq!(model.pop_front(), Some(front));
                    },
                    _ => if at < model.len() {
                        let index = model.remove(at).expect("in range");
                        list.unlink(&mut slab, index);
                        slab.remove(index);
                    },
                }
                prop_assert_eq!(list.front(), model.front().copied());
                prop_assert_eq!(list.is_empty(), model.is_empty());
            }
        }
    }
}
