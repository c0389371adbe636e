//! A receiver's verdict on each message.

use super::pattern;
use super::talk::Job;

/// Counts what came in, against what should have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checker {
    size: usize,
    verify: bool,
    /// One byte is still to be flipped.
    flip: bool,
    reach: u64,
    pub(super) wrong: u64,
    pub(super) dup: u64,
    /// Messages that came too early: something before them is missing.
    pub(super) skipped: u64,
}

impl Checker {
    pub(super) fn new(job: &Job) -> Checker {
        Checker {
            size: job.size as usize,
            verify: job.verify,
            flip: job.flip,
            reach: 4 * u64::from(job.slots) + 16,
            wrong: 0,
            dup: 0,
            skipped: 0,
        }
    }

    /// Message `expected` should be in `bytes`, of which `len` were filled.
    pub(super) fn check(&mut self, bytes: &mut [u8], len: usize, expected: u64) {
        if self.flip {
            self.flip = false;
            if let Some(byte) = bytes.get_mut(len / 2) {
                *byte ^= 0x10;
            }
        }
        if len != self.size || bytes.len() < len {
            self.wrong += 1;
            return;
        }
        if !self.verify {
            return;
        }
        let first = bytes.first_chunk::<8>().copied();
        if pattern::check_and_poison(&mut bytes[..len], expected) {
            return;
        }
        match first.and_then(|first| pattern::recognize(first, expected, self.reach)) {
            Some(other) if other < expected => self.dup += 1,
            Some(other) if other > expected => self.skipped += 1,
            _ => self.wrong += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::options::{Extent, Operation};
    use super::super::talk::Transport;
    use super::*;

    fn job(size: u64, flip: bool) -> Job {
        Job {
            transport: Transport::Ours,
            op: Operation::Write,
            lat: false,
            size,
            slots: 4,
            extent: Extent::Duration(Duration::from_secs(1)),
            class: 2,
            verify: true,
            flip,
            first: 0,
        }
    }

    fn message(number: u64) -> Vec<u8> {
        let mut bytes = vec![0; 100];
        pattern::fill(&mut bytes, number);
        bytes
    }

    #[test]
    fn kinds_of_faults() {
        let mut c = Checker::new(&job(100, false));
        c.check(&mut message(10), 100, 10);
        assert_eq!((c.wrong, c.dup, c.skipped), (0, 0, 0));
        c.check(&mut message(9), 100, 10);
        c.check(&mut message(12), 100, 10);
        c.check(&mut message(1000), 100, 10);
        c.check(&mut message(10), 99, 10);
        let mut stale = message(10);
        stale[50] ^= 1;
        c.check(&mut stale, 100, 10);
        assert_eq!((c.wrong, c.dup, c.skipped), (3, 1, 1));
    }

    #[test]
    fn a_flip_is_found_once() {
        let mut c = Checker::new(&job(100, true));
        c.check(&mut message(1), 100, 1);
        c.check(&mut message(2), 100, 2);
        assert_eq!(c.wrong, 1);
    }
}
