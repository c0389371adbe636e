//! What a flow remembers of its packets: rings that grow with what is outstanding.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::policy::Pick;

/// What became of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum State {
    /// It is out.
    #[default]
    Sent,
    /// It is to be sent again.
    Again,
    /// It arrived.
    Arrived,
}

/// A packet that was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Record {
    pub(super) at: u64,
    pub(super) pick: Pick,
    pub(super) state: State,
    /// How often it was sent before.
    pub(super) before: u8,
}

/// The packets of a flow between the oldest that is not acknowledged and the newest.
#[derive(Default)]
pub(super) struct Records {
    ring: Vec<Record>,
    /// One bit each: the receiver has it.
    got: Vec<u64>,
    /// Acknowledged below this one; sent below that one.
    pub(super) oldest: u32,
    pub(super) next: u32,
    /// What is to be sent again, lowest first; entries may be out of date.
    again: BinaryHeap<Reverse<u32>>,
    /// What is out in order of sending, by plane; entries may be out of date.
    order: Vec<VecDeque<(u64, u32)>>,
}

/// Bits beyond the newest packet that an acknowledgement may speak of.
const BEYOND: u32 = 128;

impl Records {
    pub(super) fn new(planes: u8) -> Records {
        Records {
            ring: vec![Record::default(); 256],
            got: vec![0; 4],
            order: (0..planes).map(|_| VecDeque::new()).collect(),
            ..Records::default()
        }
    }

    fn mask(&self) -> usize {
        self.ring.len() - 1
    }

    #[inline]
    pub(super) fn get(&self, seq: u32) -> &Record {
        &self.ring[seq as usize & self.mask()]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, seq: u32) -> &mut Record {
        let mask = self.mask();
        &mut self.ring[seq as usize & mask]
    }

    /// True if the packet was sent and is not acknowledged below.
    #[inline]
    pub(super) fn is_open(&self, seq: u32) -> bool {
        (self.oldest..self.next).contains(&seq)
    }

    /// A packet is sent, for the first time if it is the next one.
    pub(super) fn sent(&mut self, seq: u32, at: u64, pick: Pick) {
        if seq == self.next {
            if self.next - self.oldest + BEYOND >= self.ring.len() as u32 {
                self.grow();
            }
            self.next += 1;
            *self.get_mut(seq) = Record { at, pick, state: State::Sent, before: 0 };
            self.set(seq + BEYOND / 2, false);
        } else {
            let r = self.get_mut(seq);
            *r = Record { at, pick, state: State::Sent, before: r.before.saturating_add(1) };
        }
        self.order[usize::from(pick.plane)].push_back((at, seq));
    }

    fn grow(&mut self) {
        let old = std::mem::take(&mut self.ring);
        let bits = std::mem::take(&mut self.got);
        let n = old.len() * 2;
        self.ring = vec![Record::default(); n];
        self.got = vec![0; n / 64];
        for seq in self.oldest..self.next + BEYOND / 2 {
            let at = seq as usize & (old.len() - 1);
            self.ring[seq as usize & (n - 1)] = old[at];
            self.set(seq, bits[at / 64] >> (at % 64) & 1 == 1);
        }
    }

    fn set(&mut self, seq: u32, on: bool) {
        let at = seq as usize & self.mask();
        let bit = 1 << (at % 64);
        if on {
            self.got[at / 64] |= bit;
        } else {
            self.got[at / 64] &= !bit;
        }
    }

    /// Whether the receiver has it; only for packets from [`Records::oldest`] on.
    #[inline]
    pub(super) fn has(&self, seq: u32) -> bool {
        let at = seq as usize & self.mask();
        self.got[at / 64] >> (at % 64) & 1 == 1
    }

    /// The receiver got a packet.
    #[inline]
    pub(super) fn got(&mut self, seq: u32) {
        self.set(seq, true);
    }

    /// Which of the 64 packets from `base` on the receiver has.
    #[inline]
    pub(super) fn bits(&self, base: u32) -> u64 {
        let at = base as usize & self.mask();
        let (word, shift) = (at / 64, at % 64);
        let low = self.got[word] >> shift;
        let high = self.got[(word + 1) & (self.got.len() - 1)];
        if shift == 0 { low } else { low | high << (64 - shift) }
    }

    /// Puts a packet into the queue of those to be sent again.
    pub(super) fn send_again(&mut self, seq: u32) {
        self.get_mut(seq).state = State::Again;
        self.again.push(Reverse(seq));
    }

    /// The lowest packet to be sent again.
    #[inline]
    pub(super) fn first_again(&mut self) -> Option<u32> {
        while let Some(&Reverse(seq)) = self.again.peek() {
            if self.is_open(seq) && self.get(seq).state == State::Again {
                return Some(seq);
            }
            self.again.pop();
        }
        None
    }

    /// Takes what [`Records::first_again`] returned.
    pub(super) fn pop_again(&mut self) {
        self.again.pop();
    }

    /// The packet of a plane that is out for longest, and when it was sent.
    #[inline]
    pub(super) fn longest_out(&mut self, plane: usize) -> Option<(u64, u32)> {
        while let Some(&(at, seq)) = self.order[plane].front() {
            if self.is_open(seq) {
                let r = self.get(seq);
                if r.state == State::Sent && r.at == at && usize::from(r.pick.plane) == plane {
                    return Some((at, seq));
                }
            }
            self.order[plane].pop_front();
        }
        None
    }

    pub(super) fn planes(&self) -> usize {
        self.order.len()
    }

    /// Lets go of the memory: the flow is done.
    pub(super) fn clear(&mut self) {
        let planes = self.order.len();
        *self = Records { oldest: self.oldest, next: self.next, ..Records::default() };
        self.order = (0..planes).map(|_| VecDeque::new()).collect();
    }

    /// True if [`Records::clear`] was called.
    pub(super) fn is_cleared(&self) -> bool {
        self.ring.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_grow_without_losing_anything() {
        let mut r = Records::new(1);
        for seq in 0..1000 {
            r.sent(seq, u64::from(seq), Pick::default());
            if seq % 3 == 0 {
                r.got(seq);
            }
        }
        assert!((0..1000).all(|s| r.get(s).at == u64::from(s) && r.has(s) == (s % 3 == 0)));
        let bits = r.bits(500);
        assert!((0..64).all(|i| (bits >> i & 1 == 1) == ((500 + i) % 3 == 0)));
        assert_eq!(r.bits(990) >> 10, 0, "nothing beyond the newest");
        r.oldest = 900;
        for seq in 1000..2000 {
            r.sent(seq, 0, Pick::default());
            r.oldest += 1;
        }
        assert_eq!(r.bits(1950), 0, "bits of packets long ago are gone");
    }

    #[test]
    fn what_is_sent_again_comes_lowest_first_and_once() {
        let mut r = Records::new(2);
        for seq in 0..10 {
            r.sent(seq, u64::from(seq), Pick { plane: (seq % 2) as u8, ..Pick::default() });
        }
        assert_eq!(r.longest_out(1), Some((1, 1)));
        for seq in [7, 1, 3] {
            r.send_again(seq);
        }
        r.get_mut(3).state = State::Arrived;
        assert_eq!((r.first_again(), r.longest_out(1)), (Some(1), Some((5, 5))));
        r.pop_again();
        r.sent(1, 99, Pick::default());
        assert_eq!(r.first_again(), Some(7));
        assert_eq!((r.get(1).before, r.longest_out(0)), (1, Some((0, 0))));
    }
}
