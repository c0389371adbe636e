//! The last decisions of all sessions, with their evidence.

use std::collections::VecDeque;

use crate::spray::Transition;

/// Entries that are kept.
const KEPT: usize = 4096;

/// One decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The session's place in the engine, which a later one may have after it.
    pub session: u16,
    /// What changed, and why.
    pub transition: Transition,
}

/// Never allocates again: when it is full the oldest entries go.
#[derive(Debug)]
pub struct EventLog {
    entries: VecDeque<Entry>,
    first: u64,
}

impl Default for EventLog {
    fn default() -> Self {
        EventLog { entries: VecDeque::with_capacity(KEPT), first: 0 }
    }
}

impl EventLog {
    pub(super) fn push(&mut self, entry: Entry) {
        if self.entries.len() >= KEPT {
            self.entries.pop_front();
            self.first += 1;
        }
        self.entries.push_back(entry);
    }

    /// Entries from number `from` on (they are counted from 0 over the engine's life), and the number of the next one.
    pub fn since(&self, from: u64) -> (impl Iterator<Item = &Entry>, u64) {
        let skip = from.saturating_sub(self.first) as usize;
        (self.entries.iter().skip(skip), self.first + self.entries.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::PortId;
    use crate::spray::{Cause, Health, Subject};
    use crate::time::Time;

    #[test]
    fn the_oldest_go_first_and_numbers_stay() {
        let mut log = EventLog::default();
        for i in 0..KEPT as u64 + 10 {
            let transition = Transition {
                at: Time::from_nanos(i),
                subject: Subject::Peer,
                port: PortId(0),
                peer_port: 0,
                from: Health::Healthy,
                to: Health::Suspect,
                cause: Cause::Operator,
            };
            log.push(Entry { session: 0, transition });
        }
        let (entries, next) = log.since(20);
        assert_eq!(next, KEPT as u64 + 10);
        let times: Vec<u64> = entries.map(|e| e.transition.at.as_nanos()).collect();
        assert_eq!((times[0], times.len() as u64), (20, next - 20));
        assert_eq!(log.since(3).0.next().map(|e| e.transition.at), Some(Time::from_nanos(10)));
        assert_eq!(log.since(next).0.count(), 0);
    }
}
