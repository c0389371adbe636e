//! What the fabric currently does with one lane, as its completions show it. Integers only.
//!
//! What the backend never told stays unknown; nothing is invented.
#![forbid(unsafe_code)]

use crate::lanes::Marks;
use crate::time::{Span, Time};

/// How long a minimum round trip time is believed.
const MIN_RTT_SPAN: Span = Span::from_secs(2);
/// Shortest time over which a delivery rate is taken.
const MIN_INTERVAL: Span = Span::from_micros(20);
/// One, in the 16-bit fixed point of a share.
pub const ONE: u32 = 1 << 16;

/// Telemetry of one lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct Path {
    srtt: Option<u32>,
    min_rtt: Option<u32>,
    /// Minimum of the current half of [`MIN_RTT_SPAN`], and when it began.
    young_min: u32,
    young_since: Time,
    ce: Option<u32>,
    rate: Option<u64>,
    /// Current rate interval.
    since: Time,
    bytes: u64,
    /// The lane ran dry during the interval, so its rate says little.
    dry: bool,
    /// Last completion, or when the lane last became busy.
    progress: Time,
}

/// What a completion told.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Bytes acknowledged.
    pub bytes: u32,
    /// Bytes still in flight after it.
    pub left: u32,
    /// Its round trip time.
    pub rtt: Option<Span>,
    /// Marks.
    pub marks: Option<Marks>,
}

impl Path {
    /// Smoothed round trip time in nanoseconds (gain 1/8).
    pub fn srtt(&self) -> Option<u32> {
        self.srtt
    }

    /// Least round trip time of the last seconds, in nanoseconds.
    pub fn min_rtt(&self) -> Option<u32> {
        self.min_rtt
    }

    /// Share of packets with CE, smoothed (gain 1/4 per report), 0..=65,536.
    pub fn ce_share(&self) -> Option<u32> {
        self.ce
    }

    /// Bytes per second while busy (gain 1/4 per round trip).
    pub fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// How long nothing has completed. Meaningful only while something is in flight.
    pub fn age(&self, now: Time) -> Span {
        now.since(self.progress)
    }

    /// True if round trips have grown by half over the least, or marks are more than a few: the lane has a queue.
    pub fn is_queued(&self) -> bool {
        let grown = match (self.srtt, self.min_rtt) {
            (Some(srtt), Some(min)) => srtt > min.saturating_add(min / 2),
            _ => false,
        };
        grown || self.ce.is_some_and(|ce| ce > ONE / 32)
    }

    /// Ages count from now on.
    pub fn restart(&mut self, now: Time) {
        self.progress = now;
    }

    /// A time that does not count for ages has passed.
    pub fn postpone(&mut self, by: Span) {
        self.progress += by;
    }

    /// Something was posted on the lane while nothing was in flight.
    pub fn on_busy(&mut self, now: Time) {
        self.progress = now;
        if self.bytes == 0 {
            self.since = now;
        }
    }

    /// Takes in a completion. True if the delivery rate was measured anew.
    pub fn on_ack(&mut self, now: Time, sample: &Sample) -> bool {
        self.progress = now;
        if let Some(rtt) = sample.rtt {
            self.on_rtt(now, rtt);
        }
        if let Some(marks) = sample.marks {
            self.on_marks(marks);
        }
        self.bytes += u64::from(sample.bytes);
        self.dry |= sample.left == 0;
        let span = now.since(self.since);
        if span < MIN_INTERVAL.max(Span::from_nanos(u64::from(self.srtt.unwrap_or(0)))) {
            return false;
        }
        let rate = self.bytes.saturating_mul(1_000_000_000) / span.as_nanos().max(1);
        self.rate = Some(match self.rate {
            // What a dry lane delivered is a lower bound of what it can.
            Some(old) if self.dry => old.max(rate),
            Some(old) => old - old / 4 + rate / 4,
            None => rate,
        });
        self.since = now;
        self.bytes = 0;
        self.dry = sample.left == 0;
        true
    }

    /// Takes in marks that came without an acknowledgement.
    pub fn on_marks(&mut self, marks: Marks) {
        let Marks { packets, ce } = marks;
        if packets == 0 {
            return;
        }
        if ce == 0 && self.ce == Some(0) {
            return;
        }
        let share = (u64::from(ce.min(packets)) * u64::from(ONE) / u64::from(packets)) as u32;
        self.ce = Some(match self.ce {
            // A quarter of the way, rounded so that the ends are reached.
            Some(old) if share < old => old - (old - share).div_ceil(4),
            Some(old) => old + (share - old).div_ceil(4),
            None => share,
        });
    }

    fn on_rtt(&mut self, now: Time, rtt: Span) {
        let rtt = u32::try_from(rtt.as_nanos()).unwrap_or(u32::MAX);
        self.srtt = Some(match self.srtt {
            Some(old) => ((u64::from(old) * 7 + u64::from(rtt)) / 8) as u32,
            None => rtt,
        });
        if self.min_rtt.is_none_or(|min| rtt <= min) {
            self.min_rtt = Some(rtt);
        }
        if self.young_min == 0 || rtt < self.young_min {
            self.young_min = rtt;
        }
        if now.since(self.young_since).as_nanos() > MIN_RTT_SPAN.as_nanos() / 2 {
            self.min_rtt = Some(self.young_min);
            self.young_min = rtt;
            self.young_since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(path: &mut Path, at_us: u64, bytes: u32, left: u32, rtt_us: u64, marks: Option<(u32, u32)>) -> bool {
        let marks = marks.map(|(packets, ce)| Marks { packets, ce });
        let rtt = Some(Span::from_micros(rtt_us));
        path.on_ack(Time::from_nanos(at_us * 1000), &Sample { bytes, left, rtt, marks })
    }

    #[test]
    fn nothing_is_known_at_first() {
        let mut path = Path::default();
        assert_eq!((path.srtt(), path.min_rtt(), path.ce_share(), path.rate()), (None, None, None, None));
        path.on_ack(Time::from_nanos(5), &Sample { bytes: 1, left: 1, rtt: None, marks: None });
        assert_eq!((path.srtt(), path.min_rtt(), path.ce_share()), (None, None, None));
        assert!(!path.is_queued());
    }

    #[test]
    fn a_steady_lane_is_measured() {
        let mut path = Path::default();
        path.on_busy(Time::ZERO);
        for i in 1..=1000 {
            // 4 KiB each microsecond.
            ack(&mut path, i, 4096, 65536, 10, Some((1, u32::from(i % 2 == 0))));
        }
        assert_eq!(path.srtt(), Some(10_000));
        let rate = path.rate().expect("measured");
        assert!((4_000_000_000..4_200_000_000).contains(&rate), "{rate}");
        let ce = path.ce_share().expect("told");
        assert!((ONE / 3..ONE * 2 / 3).contains(&ce), "{ce}");
        assert!(path.is_queued(), "half of the packets are marked");
        for i in 1001..1100 {
            ack(&mut path, i, 4096, 65536, 10, Some((1, 0)));
        }
        assert_eq!(path.ce_share(), Some(0));
        assert!(!path.is_queued());
    }

    #[test]
    fn the_minimum_forgets() {
        let mut path = Path::default();
        ack(&mut path, 1, 1, 1, 10, None);
        ack(&mut path, 100, 1, 1, 50, None);
        assert_eq!(path.min_rtt(), Some(10_000));
        for i in 0..50u64 {
            ack(&mut path, 2_000_000 + i * 100_000, 1, 1, 50, None);
        }
        assert_eq!(path.min_rtt(), Some(50_000));
    }

    #[test]
    fn an_idle_lane_is_not_called_slow() {
        let mut path = Path::default();
        path.on_busy(Time::ZERO);
        for i in 1..=100 {
            ack(&mut path, i, 4096, 4096, 10, None);
        }
        let busy = path.rate().expect("measured");
        for i in 0..10u64 {
            ack(&mut path, 1000 + i * 1000, 64, 0, 10, None);
        }
        assert!(path.rate().expect("measured") >= busy);
    }
}
