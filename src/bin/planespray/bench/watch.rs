//! What a process notices of itself: processor time, and how long its polling loop stood still.

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// A loop that stood still for longer makes its sample void.
pub(super) const VOID_GAP: Duration = Duration::from_millis(10);

/// Processor time of this process so far, user and system, in nanoseconds.
pub(super) fn cpu_ns() -> u64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return 0 };
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    u64::try_from(micros).unwrap_or(0) * 1000
}

/// Watches a polling loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    cpu: u64,
    /// Processor time when the watch was stopped.
    used: Option<u64>,
    last: Instant,
    gap: Duration,
    /// Waiting may sleep, so standing still means nothing.
    sleeps: bool,
}

impl Watch {
    pub(super) fn start(busy: bool) -> Watch {
        Watch { cpu: cpu_ns(), used: None, last: Instant::now(), gap: Duration::ZERO, sleeps: !busy }
    }

    /// Once per turn of the loop: the time now.
    pub(super) fn turn(&mut self) -> Instant {
        let now = Instant::now();
        let gap = now - self.last;
        if gap > self.gap && !self.sleeps {
            self.gap = gap;
        }
        self.last = now;
        now
    }

    /// Longest turn so far, in nanoseconds.
    pub(super) fn gap_ns(&self) -> u64 {
        u64::try_from(self.gap.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Processor time from the start to now or to the stop, in nanoseconds.
    pub(super) fn cpu_ns(&self) -> u64 {
        self.used.unwrap_or_else(|| cpu_ns().saturating_sub(self.cpu))
    }

    /// This watch at the end of what it watches.
    pub(super) fn stopped(mut self) -> Watch {
        self.used = Some(self.cpu_ns());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_seen() {
        let mut watch = Watch::start(true);
        watch.turn();
        std::thread::sleep(Duration::from_millis(15));
        watch.turn();
        assert!(watch.gap_ns() > VOID_GAP.as_nanos() as u64);
        let mut sleeper = Watch::start(false);
        std::thread::sleep(Duration::from_millis(15));
        sleeper.turn();
        assert_eq!(sleeper.gap_ns(), 0);
    }

    #[test]
    fn processor_time_advances() {
        let before = cpu_ns();
        let end = Instant::now() + Duration::from_secs(5);
        while cpu_ns() == before && Instant::now() < end {}
        assert!(cpu_ns() > before);
    }
}
