//! The congestion window of a flow: network-signalled congestion control (NSCC) by delay and marks.

/// What all windows of a run share. Times are picoseconds, sizes bytes on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Law {
    full: f64,
    /// The unloaded round trip between hosts that are furthest apart.
    pub(super) rtt: u64,
    /// The queueing delay that is aimed at.
    target: u64,
    bytes_per_ps: f64,
    /// Proportional increase, in bytes per picosecond of distance from the target and byte of window.
    alpha: f64,
    fair: f64,
    fast: f64,
    eta: f64,
}

/// Share of the window that quick adaptation must find undelivered: less than 1/8 arrived.
const QUICK_GATE: f64 = 8.0;
const DELAY_WEIGHT: f64 = 0.0125;
const DECREASE: f64 = 0.8;

impl Law {
    /// For packets of `full` bytes with `payload`, a rate in bits per second of all planes together.
    pub(super) fn new(full: u32, payload: u32, rtt: u64, rate: u64, trim: bool) -> Law {
        let bytes_per_ps = rate as f64 / 8e12;
        // The constants are given for 100 Gb/s and 12 us.
        let scale = rtt as f64 * bytes_per_ps / 150_000.0;
        let target = if trim { rtt * 3 / 4 } else { rtt };
        let payload = f64::from(payload);
        Law {
            full: f64::from(full),
            rtt,
            target,
            bytes_per_ps,
            alpha: 4.0 * payload * scale * (target as f64 / 12e6) / target as f64,
            fair: 5.0 * payload * scale,
            fast: 0.25 * scale,
            eta: 0.15 * payload * scale,
        }
    }
}

/// What an acknowledgement tells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// New bytes.
    pub(super) bytes: u32,
    /// The round trip of the packet that caused it, if it is known.
    pub(super) rtt: Option<u64>,
    /// The median of round trips, if the policy separates bad paths from a full receiver.
    pub(super) typical: Option<u64>,
    pub(super) marked: bool,
}

/// A window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    size: f64,
    most: f64,
    /// The shortest round trip that was seen.
    base_rtt: u64,
    /// Smoothed queueing delay.
    delay: f64,
    increase: f64,
    since_adjusted: f64,
    adjusted: u64,
    decreased: u64,
    fast_bytes: f64,
    fast: bool,
    /// Quick adaptation: bytes of this period, when it ends, what is still to be ignored, and that a trim asks for it.
    achieved: f64,
    period_end: u64,
    to_ignore: f64,
    ignored: f64,
    wanted: bool,
}

impl Window {
    pub(super) fn new(law: &Law) -> Window {
        let most = 1.5 * law.rtt as f64 * law.bytes_per_ps;
        Window {
            size: most,
            most,
            base_rtt: law.rtt,
            delay: 0.0,
            increase: 0.0,
            since_adjusted: 0.0,
            adjusted: 0,
            decreased: 0,
            fast_bytes: 0.0,
            fast: false,
            achieved: 0.0,
            period_end: 0,
            to_ignore: 0.0,
            ignored: 0.0,
            wanted: false,
        }
    }

    /// Bytes that may be in flight.
    pub(super) fn size(&self) -> i64 {
        self.size as i64
    }

    fn clamp(&mut self, law: &Law) {
        self.size = self.size.min(self.most).max(law.full);
    }

    /// A round trip was measured.
    pub(super) fn shortest(&mut self, law: &Law, rtt: u64) {
        if rtt < self.base_rtt {
            self.base_rtt = rtt;
            self.most = 1.5 * rtt as f64 * law.bytes_per_ps;
        }
    }

    fn smooth(&mut self, law: &Law, delay: u64, marked: bool) {
        let sample = if !marked && delay > law.target { self.base_rtt as f64 * 0.25 } else { delay as f64 };
        self.delay += DELAY_WEIGHT * (sample - self.delay);
    }

    /// An acknowledgement.
    pub(super) fn acknowledged(&mut self, law: &Law, now: u64, sample: Sample, in_flight: i64) {
        let Sample { rtt, marked, .. } = sample;
        let bytes = f64::from(sample.bytes);
        self.achieved += bytes;
        self.since_adjusted += bytes;
        self.ignored += bytes;
        let mut delay = self.delay as u64;
        if let Some(rtt) = rtt {
            self.shortest(law, rtt);
            delay = rtt - self.base_rtt;
            self.smooth(law, delay, marked);
        }
        let typical = sample.typical.map(|t| t.saturating_sub(self.base_rtt));
        let common = typical.map_or(delay, |t| t.min(delay));
        if self.quick(law, now, false, marked, common, in_flight) {
            return;
        }
        match (marked, delay >= law.target) {
            (true, true) if common < law.target => {}
            (false, true) => self.increase += law.fair * bytes,
            (false, false) => {
                self.grow_fast(law, bytes, delay);
                if !self.fast {
                    self.increase += law.alpha * bytes * (law.target - delay) as f64;
                }
            }
            (true, true) => self.decrease(law, now, typical.map_or(self.delay, |t| t as f64)),
            (true, false) => {}
        }
        self.clamp(law);
        if self.since_adjusted > 8.0 * law.full || now - self.adjusted > law.rtt {
            self.size += self.increase / self.size;
            if now - self.adjusted >= law.rtt {
                self.size += law.eta;
                self.adjusted = now;
            }
            self.increase = 0.0;
            self.since_adjusted = 0.0;
        }
        self.clamp(law);
    }

    fn grow_fast(&mut self, law: &Law, bytes: f64, delay: u64) {
        if delay < 1_000_000 {
            self.fast_bytes += bytes;
            if self.fast_bytes > self.size || self.fast {
                self.size += bytes * law.fast;
                self.fast = true;
                return;
            }
        } else {
            self.fast_bytes = 0.0;
        }
        self.fast = false;
    }

    fn decrease(&mut self, law: &Law, now: u64, delay: f64) {
        self.fast = false;
        self.fast_bytes = 0.0;
        let target = law.target as f64;
        if delay > target && now - self.decreased > self.base_rtt {
            self.size *= (1.0 - DECREASE * (delay - target) / delay).max(0.5);
            self.decreased = now;
        }
    }

    /// Sets the window to what arrived in the last period if that is little and there was loss or much delay.
    fn quick(&mut self, law: &Law, now: u64, loss: bool, marked: bool, delay: u64, in_flight: i64) -> bool {
        let mut done = false;
        if self.ignored < self.to_ignore && marked {
            done = true;
        } else if now > self.period_end {
            let asked = self.wanted || loss || delay > 4 * law.target;
            if self.period_end != 0 && asked && self.achieved < self.most / QUICK_GATE {
                self.size = self.achieved.max(law.full);
                self.to_ignore = in_flight as f64;
                self.ignored = 0.0;
                self.wanted = false;
                done = true;
            }
            self.achieved = 0.0;
            self.period_end = now + self.base_rtt + law.target;
        }
        if done {
            self.increase = 0.0;
            self.since_adjusted = 0.0;
        }
        done
    }

    /// A packet of so many bytes was trimmed.
    pub(super) fn trimmed(&mut self, law: &Law, now: u64, bytes: u32, in_flight: i64) {
        self.ignored += f64::from(bytes);
        self.smooth(law, law.rtt, true);
        self.wanted = true;
        if !self.quick(law, now, true, true, 0, in_flight) {
            self.size -= f64::from(bytes);
            self.clamp(law);
        }
    }

    /// The retransmission timer gave up a packet.
    pub(super) fn timed_out(&mut self, law: &Law, bytes: u32) {
        self.size = (self.size - f64::from(bytes)).max(law.full);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn law() -> Law {
        Law::new(4150, 4086, 7_337_000, 400_000_000_000, true)
    }

    #[test]
    fn it_begins_at_one_and_a_half_bandwidth_delay_products_and_shrinks_with_trims() {
        let law = law();
        let mut w = Window::new(&law);
        assert_eq!(w.size(), 550_275);
        w.trimmed(&law, 1, 4150, 100_000);
        assert_eq!(w.size(), 546_125);
        w.timed_out(&law, 4150);
        assert_eq!(w.size(), 541_975);
    }

    #[test]
    fn little_delivered_and_a_trim_adapt_it_at_once() {
        let law = law();
        let mut w = Window::new(&law);
        let sample = Sample { bytes: 16_600, rtt: Some(8_000_000), typical: None, marked: false };
        w.acknowledged(&law, 1, sample, 400_000);
        w.acknowledged(&law, 2, sample, 400_000);
        w.trimmed(&law, 20_000_000, 4150, 300_000);
        assert_eq!(w.size(), 16_600, "what arrived since the first acknowledgement");
    }

    proptest! {
        #[test]
        fn it_stays_between_one_packet_and_its_cap(
            steps in prop::collection::vec((0u8..4, 1u64..60_000_000, 0u32..70_000, any::<bool>()), 1..300),
        ) {
            let law = law();
            let mut w = Window::new(&law);
            let mut now = 0;
            for (what, passed, bytes, marked) in steps {
                now += passed;
                match what {
                    0 => w.trimmed(&law, now, 4150, 200_000),
                    1 => w.timed_out(&law, 4150),
                    _ => {
                        let rtt = (what == 2).then_some(3_000_000 + passed);
                        let typical = (bytes % 2 == 0).then_some(now % 30_000_000);
                        w.acknowledged(&law, now, Sample { bytes, rtt, typical, marked }, 200_000);
                    }
                }
                prop_assert!((4150..=550_275).contains(&w.size()), "{}", w.size());
            }
        }
    }
}
