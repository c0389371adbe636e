//! Channels: message numbers of both directions, and where each number stands.

use std::collections::VecDeque;

use super::slab::NONE;
use crate::class::Class;

/// Sends, and receives, that may be outstanding on one channel.
pub(super) const CHANNEL_DEPTH: u32 = 4096;
/// How far beyond the oldest unfinished message a peer may speak of one.
pub(super) const MAX_AHEAD: u32 = 4 * CHANNEL_DEPTH;
/// Numbers that a peer has spoken of before we have, over all channels.
pub(super) const TOTAL_AHEAD: u32 = 1 << 17;

/// States by message number, from the oldest that is not finished.
#[derive(Debug)]
pub(super) struct NumberRing<E> {
    base: u32,
    entries: VecDeque<E>,
}

impl<E: Copy + Default> NumberRing<E> {
    fn new() -> Self {
        NumberRing { base: 0, entries: VecDeque::new() }
    }

    pub(super) fn base(&self) -> u32 {
        self.base
    }

    /// Where `number` stands from the base; `None` if it is finished and gone.
    pub(super) fn ahead(&self, number: u32) -> Option<u32> {
        let ahead = number.wrapping_sub(self.base);
        (ahead < 1 << 31).then_some(ahead)
    }

    /// The state of a number that is not gone; the default beyond the end.
    #[inline]
    pub(super) fn get(&self, number: u32) -> E {
        self.entries.get(number.wrapping_sub(self.base) as usize).copied().unwrap_or_default()
    }

    /// Sets the state of a number, at most [`MAX_AHEAD`] ahead.
    #[inline]
    pub(super) fn set(&mut self, number: u32, entry: E) {
        let at = number.wrapping_sub(self.base);
        if at >= MAX_AHEAD {
            return;
        }
        while self.entries.len() <= at as usize {
            self.entries.push_back(E::default());
        }
        self.entries[at as usize] = entry;
    }

    /// One more than the highest number that has a state.
    pub(super) fn end(&self) -> u32 {
        self.base.wrapping_add(self.entries.len() as u32)
    }

    /// The oldest number's state.
    pub(super) fn front(&self) -> Option<E> {
        self.entries.front().copied()
    }

    pub(super) fn pop_front(&mut self) {
        if self.entries.pop_front().is_some() {
            self.base = self.base.wrapping_add(1);
        }
    }
}

/// Where a message of ours stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum TxEntry {
    /// Not sent yet, nothing known.
    #[default]
    Vacant,
    /// Granted before it was sent; the grant is in the session's table.
    Granted(u32),
    /// Under way.
    Message(u32),
    /// Finished.
    Done,
}

/// Where a message of the peer stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum RxEntry {
    /// No receive and nothing known.
    #[default]
    Vacant,
    /// The peer waits for a grant and there is no receive.
    Wanted,
    /// Here, in a cell, with its length, and there is no receive.
    Eager(u16, u32),
    /// Given up by the peer, and there is no receive.
    Failed(u8),
    /// A receive is posted.
    Posted(u32),
    /// Finished.
    Done,
}

/// One channel.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) id: u32,
    /// Our messages.
    pub(super) tx: NumberRing<TxEntry>,
    /// Number of our next message.
    pub(super) tx_next: u32,
    /// Our messages below this have been asked about, or need not be.
    pub(super) cursor: u32,
    /// Messages of ours that wait and have asked for a grant.
    pub(super) requested: u32,
    /// The peer's messages.
    pub(super) rx: NumberRing<RxEntry>,
    /// Number of our next receive.
    pub(super) rx_next: u32,
    /// Class that the peer used last; grants go the same way.
    pub(super) rx_class: Class,
    /// Receives that are granted and not full yet.
    pub(super) granted: u32,
    /// How many of those grants wait to be sent.
    pub(super) held: u32,
}

/// All channels, found by number in a few comparisons.
#[derive(Debug)]
pub(super) struct Channels {
    channels: Vec<Channel>,
    /// Open addressing: indices into `channels`, at most half full.
    index: Vec<u32>,
    limit: usize,
}

impl Channels {
    pub(super) fn new(expected: usize, limit: usize) -> Channels {
        let room = (2 * expected).next_power_of_two().max(16);
        Channels { channels: Vec::with_capacity(expected), index: vec![NONE; room], limit }
    }

    /// The channel's index; makes the channel if need be. `None` beyond the limit.
    #[inline]
    pub(super) fn open(&mut self, id: u32) -> Option<u32> {
        let mask = self.index.len() - 1;
        let mut at = hash(id) & mask;
        loop {
            let index = self.index[at];
            match self.channels.get(index as usize) {
                Some(channel) if channel.id == id => return Some(index),
                Some(_) => at = (at + 1) & mask,
                None => return self.create(id, at),
            }
        }
    }

    /// The channel's index, if the channel exists.
    pub(super) fn find(&self, id: u32) -> Option<u32> {
        let mask = self.index.len() - 1;
        let mut at = hash(id) & mask;
        loop {
            let index = self.index[at];
            match self.channels.get(index as usize) {
                Some(channel) if channel.id == id => return Some(index),
                Some(_) => at = (at + 1) & mask,
                None => return None,
            }
        }
    }

    #[cold]
    fn create(&mut self, id: u32, at: usize) -> Option<u32> {
        if self.channels.len() >= self.limit {
            return None;
        }
        let index = self.channels.len() as u32;
        self.channels.push(Channel {
            id,
            tx: NumberRing::new(),
            tx_next: 0,
            cursor: 0,
            requested: 0,
            rx: NumberRing::new(),
            rx_next: 0,
            rx_class: Class::Latency,
            granted: 0,
            held: 0,
        });
        self.index[at] = index;
        if self.channels.len() * 2 > self.index.len() {
            let mask = self.index.len() * 2 - 1;
            self.index = vec![NONE; mask + 1];
            for (i, channel) in self.channels.iter().enumerate() {
                let mut at = hash(channel.id) & mask;
                while self.index[at] != NONE {
                    at = (at + 1) & mask;
                }
                self.index[at] = i as u32;
            }
        }
        Some(index)
    }

    /// A channel that [`Channels::open`] gave.
    #[inline]
    pub(super) fn at(&mut self, index: u32) -> &mut Channel {
        &mut self.channels[index as usize]
    }

    pub(super) fn len(&self) -> usize {
        self.channels.len()
    }
}

/// Spreads consecutive numbers; a peer that makes them collide slows only itself, up to the channel limit.
fn hash(id: u32) -> usize {
    (id.wrapping_mul(0x9e37_79b1) >> 7) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn channels_are_found_again(ids in proptest::collection::vec(any::<u32>(), 0..300)) {
            let mut channels = Channels::new(4, 200);
            let mut model = HashMap::new();
            for id in ids {
                let got = channels.open(id);
                match model.get(&id) {
                    Some(&index) => prop_assert_eq!(got, Some(index)),
                    None if model.len() < 200 => {
                        let index = got.expect("below the limit");
                        prop_assert_eq!(channels.at(index).id, id);
                        model.insert(id, index);
                    }
                    None => prop_assert_eq!(got, None),
                }
            }
            prop_assert_eq!(channels.len(), model.len());
        }
    }

    #[test]
    fn numbers_wrap() {
        let mut ring: NumberRing<TxEntry> = NumberRing::new();
        ring.base = u32::MAX - 1;
        for i in 0..4u32 {
            ring.set((u32::MAX - 1).wrapping_add(i), TxEntry::Message(i));
        }
        assert_eq!(ring.get(1), TxEntry::Message(3));
        assert_eq!(ring.ahead(1), Some(3));
        assert_eq!(ring.ahead(u32::MAX - 2), None);
        ring.pop_front();
        ring.pop_front();
        assert_eq!(ring.base(), 0);
        assert_eq!(ring.end(), 2);
        assert_eq!(ring.front(), Some(TxEntry::Message(2)));
        ring.set(MAX_AHEAD, TxEntry::Done);
        assert_eq!(ring.end(), 2, "too far ahead is not kept");
    }
}
