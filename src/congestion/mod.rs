//! How many bytes one lane may have in flight. Integers only.
//!
//! The window doubles per round trip until the first mark, then grows by one step per round trip, and is cut in
//! proportion to the share of marked packets (as DCTCP does, RFC 8257 section 3.3) at most once per round trip.
//! A lane whose round trips have grown to several times the least does not grow: it has a queue already.
#![forbid(unsafe_code)]

use crate::path::{ONE, Path};
use crate::time::{Span, Time};

/// What an unmarked window gains per round trip.
const STEP: u32 = 16 << 10;
/// Time between cuts while no round trip time is known.
const UNKNOWN_RTT: Span = Span::from_micros(100);

/// The window of one lane.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    size: u32,
    floor: u32,
    max: u32,
    /// Bytes acknowledged towards the next step.
    acked: u32,
    doubling: bool,
    next_cut: Time,
}

impl Window {
    /// A window of `initial` bytes that stays within `floor..=max`.
    pub fn new(initial: u32, floor: u32, max: u32) -> Window {
        let floor = floor.max(1);
        let max = max.max(floor);
        Window { size: initial.clamp(floor, max), floor, max, acked: 0, doubling: true, next_cut: Time::ZERO }
    }

    /// Bytes that may be in flight.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Takes in an acknowledgement of `bytes` that left `in_flight` before it. `marked` if any of its packets carried CE.
    pub fn on_ack(&mut self, now: Time, bytes: u32, in_flight: u32, marked: bool, path: &Path) {
        if marked {
            self.on_mark(now, path);
            return;
        }
        // A window that is not used is not proven.
        if in_flight < self.size / 2 || self.size >= self.max {
            return;
        }
        if let (Some(srtt), Some(min)) = (path.srtt(), path.min_rtt())
            && u64::from(srtt) > 4 * u64::from(min) + 100_000
        {
            self.doubling = false;
            return;
        }
        if self.doubling {
            self.size = self.size.saturating_add(bytes).min(self.max);
            return;
        }
        self.acked = self.acked.saturating_add(bytes);
        if self.acked >= self.size {
            self.acked = 0;
            self.size = self.size.saturating_add(STEP).min(self.max);
        }
    }

    fn on_mark(&mut self, now: Time, path: &Path) {
        self.doubling = false;
        if now < self.next_cut {
            return;
        }
        let share = path.ce_share().unwrap_or(ONE).min(ONE);
        let cut = (u64::from(self.size) * u64::from(share) / (2 * u64::from(ONE))) as u32;
        self.size = (self.size - cut).max(self.floor);
        self.acked = 0;
        self.next_cut = now + path.srtt().map_or(UNKNOWN_RTT, |ns| Span::from_nanos(u64::from(ns)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::Marks;
    use crate::path::Sample;

    fn path(rtt_us: u64, ce: u32) -> Path {
        let mut path = Path::default();
        let marks = Some(Marks { packets: 100, ce });
        for i in 0..50 {
            let rtt = Some(Span::from_micros(rtt_us));
            path.on_ack(Time::from_nanos(i * 1000), &Sample { bytes: 4096, left: 4096, rtt, marks });
        }
        path
    }

    #[test]
    fn doubles_until_the_first_mark() {
        let mut w = Window::new(256 << 10, 4096, 8 << 20);
        let clean = path(10, 0);
        let mut acked = 0;
        while acked < 256 << 10 {
            w.on_ack(Time::ZERO, 4096, w.size(), false, &clean);
            acked += 4096;
        }
        assert_eq!(w.size(), 512 << 10);
        w.on_ack(Time::ZERO, 4096, w.size(), true, &path(10, 50));
        let cut = w.size();
        assert!((380 << 10..400 << 10).contains(&cut), "a quarter less for half the packets: {cut}");
        for _ in 0..(cut / 4096) + 1 {
            w.on_ack(Time::ZERO, 4096, w.size(), false, &clean);
        }
        assert_eq!(w.size(), cut + STEP, "then one step per window");
    }

    #[test]
    fn one_cut_per_round_trip_down_to_the_floor() {
        let mut w = Window::new(256 << 10, 4096, 8 << 20);
        let all = path(10, 100);
        let at = |us: u64| Time::from_nanos(us * 1000);
        w.on_ack(at(100), 4096, w.size(), true, &all);
        assert_eq!(w.size(), 128 << 10);
        w.on_ack(at(105), 4096, w.size(), true, &all);
        assert_eq!(w.size(), 128 << 10);
        w.on_ack(at(110), 4096, w.size(), true, &all);
        assert_eq!(w.size(), 64 << 10);
        for i in 12..100 {
            w.on_ack(at(i * 10), 4096, w.size(), true, &all);
        }
        assert_eq!(w.size(), 4096);
    }

    #[test]
    fn an_unused_window_stays() {
        let mut w = Window::new(256 << 10, 4096, 8 << 20);
        for _ in 0..1000 {
            w.on_ack(Time::ZERO, 4096, 8192, false, &path(10, 0));
        }
        assert_eq!(w.size(), 256 << 10);
    }
}
