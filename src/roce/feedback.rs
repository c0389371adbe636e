//! Feedback between planespray ends: what a queue pair has received, in a datagram of its own.
//!
//! The payload is 1 to 20 records of 48 bytes, little-endian: the number of the queue pair that it is for (u32), the
//! PSN that the sender of the record expects next (u32), request packets received (u32), of those with CE (u32; both
//! counts wrap), and 32 bytes of bitmap: bit `i % 8` of byte `i / 8` says that PSN `expected + 1 + i` is there.

use crate::seq::{Psn, Qpn};
use crate::time::{Span, Time};

use super::ring::{PsnSet, WINDOW};

/// Bytes of one record.
pub(super) const RECORD: usize = 48;
/// Most records in one datagram.
pub(super) const MAX_RECORDS: usize = 20;
/// Packets after which a report is due whatever the time.
const EVERY: u32 = 16;

/// What a planespray peer says about one of our queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) dest: Qpn,
    pub(super) epsn: Psn,
    pub(super) packets: u32,
    pub(super) ce: u32,
    bitmap: [u8; 32],
}

impl Record {
    pub(super) fn new(dest: Qpn, epsn: Psn, packets: u32, ce: u32, held: &PsnSet) -> Record {
        let mut bitmap = [0; 32];
        if !held.is_empty() {
            for i in 0..WINDOW - 1 {
                if held.has(epsn.add(1 + i)) {
                    bitmap[(i / 8) as usize] |= 1 << (i % 8);
                }
            }
        }
        Record { dest, epsn, packets, ce, bitmap }
    }

    pub(super) fn to_bytes(self) -> [u8; RECORD] {
        let mut b = [0; RECORD];
        b[0..4].copy_from_slice(&self.dest.get().to_le_bytes());
        b[4..8].copy_from_slice(&self.epsn.get().to_le_bytes());
        b[8..12].copy_from_slice(&self.packets.to_le_bytes());
        b[12..16].copy_from_slice(&self.ce.to_le_bytes());
        b[16..].copy_from_slice(&self.bitmap);
        b
    }

    pub(super) fn from_bytes(b: &[u8; RECORD]) -> Record {
        let word = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let mut bitmap = [0; 32];
        bitmap.copy_from_slice(&b[16..]);
        Record { dest: Qpn::new(word(0)), epsn: Psn::new(word(4)), packets: word(8), ce: word(12), bitmap }
    }

    /// The PSNs beyond the expected one that are there, in order.
    pub(super) fn held(&self) -> impl Iterator<Item = Psn> + '_ {
        (0..WINDOW - 1).filter(|i| self.bitmap[(i / 8) as usize] >> (i % 8) & 1 == 1).map(|i| self.epsn.add(1 + i))
    }
}

/// When a queue pair reports.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reporter {
    /// Request packets received, and of all packets those with CE.
    pub(super) packets: u32,
    pub(super) ce: u32,
    /// `ce` at the last report.
    ce_reported: u32,
    /// A report should go out now.
    pub(super) due: bool,
    /// A report should go out then.
    pub(super) at: Option<Time>,
    not_before: Time,
    since: u32,
    interval: Span,
}

impl Reporter {
    /// After a packet: is there anything to say, and is it time?
    pub(super) fn consider(&mut self, now: Time, gap: bool, rtt: Option<Span>) {
        self.since = self.since.saturating_add(1);
        if self.due || !gap && self.ce == self.ce_reported {
            return;
        }
        let quarter = rtt.unwrap_or(Span::from_micros(100)).as_nanos() / 4;
        self.interval = Span::from_nanos(quarter.clamp(10_000, 1_000_000));
        if now >= self.not_before || self.since >= EVERY {
            self.due = true;
            self.at = None;
        } else if self.at.is_none() {
            self.at = Some(self.not_before);
        }
    }

    pub(super) fn on_timer(&mut self, now: Time) {
        if self.at.is_some_and(|at| at <= now) {
            self.at = None;
            self.due = true;
        }
    }

    /// The report went out.
    pub(super) fn sent(&mut self, now: Time) {
        self.due = false;
        self.at = None;
        self.since = 0;
        self.ce_reported = self.ce;
        self.not_before = now + self.interval;
    }

    pub(super) fn stop(&mut self) {
        self.due = false;
        self.at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_come_back(
            dest in 0u32..1 << 24, epsn in 0u32..1 << 24, packets: u32, ce: u32,
            held in proptest::collection::btree_set(1u32..WINDOW, 0..40)
        ) {
            let epsn = Psn::new(epsn);
            let mut set = PsnSet::default();
            for &h in &held {
                set.insert(epsn.add(h));
            }
            let record = Record::new(Qpn::new(dest), epsn, packets, ce, &set);
            let back = Record::from_bytes(&record.to_bytes());
            prop_assert_eq!(back, record);
            let listed: Vec<Psn> = back.held().collect();
            let expected: Vec<Psn> = held.iter().map(|&h| epsn.add(h)).collect();
            prop_assert_eq!(listed, expected);
        }
    }

    #[test]
    fn reports_keep_their_distance() {
        let mut reporter = Reporter::default();
        let at = |us| Time::ZERO + Span::from_micros(us);
        reporter.consider(at(1), true, Some(Span::from_micros(400)));
        assert!(reporter.due);
        reporter.sent(at(1));
        reporter.consider(at(2), true, Some(Span::from_micros(400)));
        assert!(!reporter.due);
        assert_eq!(reporter.at, Some(at(101)));
        reporter.on_timer(at(101));
        assert!(reporter.due);
        reporter.sent(at(101));
        for _ in 0..16 {
            reporter.consider(at(102), true, None);
        }
        assert!(reporter.due, "after 16 packets whatever the time");
        reporter.sent(at(102));
        reporter.consider(at(300), false, None);
        assert!(!reporter.due, "nothing to say");
        reporter.ce += 1;
        reporter.consider(at(300), false, None);
        assert!(reporter.due, "marks to tell of");
    }
}
