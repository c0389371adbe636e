//! A device's clock, laid over ours without reading either.

use crate::time::Time;

/// How long the smallest delay between a completion and its being polled is trusted: clocks drift apart.
const TRUST_NS: u64 = 100_000_000;

/// Turns the timestamps of completions into times of our clock.
///
/// A completion is polled some time after it was stamped, never before. So the smallest difference between the two
/// clocks that was seen lately belongs to a completion that was polled at once, and the rest follows from it. Polling
/// late then no longer counts as a long round trip.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceClock {
    khz: u64,
    mask: u64,
    last: Option<u64>,
    /// Ticks since the first timestamp, which stands for 2^62.
    ticks: i128,
    /// Smallest difference in ns, in this period and in the one before.
    smallest: [i128; 2],
    period: u64,
}

impl DeviceClock {
    /// A clock of `khz` and of the bits in `mask`; `None` if there is none.
    pub(super) fn new(khz: u64, mask: u64) -> Option<DeviceClock> {
        (khz > 0 && mask.count_ones() >= 24 && mask & (mask.wrapping_add(1)) == 0).then_some(DeviceClock {
            khz,
            mask,
            last: None,
            ticks: 0,
            smallest: [i128::MAX; 2],
            period: 0,
        })
    }

    /// When a completion with `stamp`, polled at `polled`, happened.
    #[inline]
    pub(super) fn completed(&mut self, stamp: u64, polled: Time) -> Time {
        let stamp = stamp & self.mask;
        let step = stamp.wrapping_sub(self.last.unwrap_or(stamp)) & self.mask;
        // Queues are polled one after the other: a stamp may be a little older than the one before.
        self.ticks += if step > self.mask / 2 { i128::from(step) - i128::from(self.mask) - 1 } else { step.into() };
        self.last = Some(stamp);
        let device_ns = self.ticks * 1_000_000 / i128::from(self.khz);
        let now = polled.as_nanos();
        let period = now / TRUST_NS;
        if period > self.period {
            let before = if period == self.period + 1 { self.smallest[0] } else { i128::MAX };
            (self.smallest, self.period) = ([i128::MAX, before], period);
        }
        self.smallest[0] = self.smallest[0].min(i128::from(now) - device_ns);
        let difference = self.smallest[0].min(self.smallest[1]);
        Time::from_nanos(u64::try_from(device_ns + difference).unwrap_or(now).min(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device whose clock ticks at `khz`, began at `start`, and runs `ppm` too fast.
    fn stamp(at_ns: u64, khz: u64, start: u64, ppm: i64, mask: u64) -> u64 {
        let ticks = i128::from(at_ns) * i128::from(khz) / 1_000_000;
        let ticks = ticks + ticks * i128::from(ppm) / 1_000_000;
        (ticks as u64).wrapping_add(start) & mask
    }

    #[test]
    fn late_polling_is_taken_out() {
        for (khz, start, ppm, mask) in [
            (1_000_000, 0, 0, u64::MAX >> 16),
            (156_250, u64::MAX - 10, 40, u64::MAX),
            (312_500, 77, -40, u32::MAX.into()),
        ] {
            let mut clock = DeviceClock::new(khz, mask).expect("a clock");
            let mut rng = fastrand::Rng::with_seed(khz);
            for i in 0..200_000u64 {
                let happened = 1_000_000 + i * 5_000;
                // Most are polled late, some at once.
                let delay = if i % 50 == 0 { 100 } else { rng.u64(100..40_000) };
                let polled = Time::from_nanos(happened + delay);
                let told = clock.completed(stamp(happened, khz, start, ppm, mask), polled).as_nanos();
                // 40 ppm over 0.2 s are 8 us; a tick may be 7 ns.
                let error = told.abs_diff(happened);
                assert!(i < 50 || error < 9_000, "{khz} kHz, completion {i}: {error} ns off");
                assert!(told <= polled.as_nanos());
            }
        }
    }

    #[test]
    fn no_clock_no_times() {
        assert!(DeviceClock::new(0, u64::MAX).is_none());
        assert!(DeviceClock::new(1000, 0).is_none());
        assert!(DeviceClock::new(1000, 0xff00).is_none());
        assert!(DeviceClock::new(1000, u64::MAX).is_some());
    }
}
