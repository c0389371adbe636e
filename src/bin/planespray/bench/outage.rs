//! Planes that are cut and healed during a measurement, and what that did.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use planespray::time::Time;
use serde::Serialize;

use super::api::{Fabric, Health, LogEntry, PlaneFault};

/// How often the planes' bytes are read.
const EVERY: Duration = Duration::from_millis(10);
/// Over how long a share is taken.
const OVER: Duration = Duration::from_millis(200);
/// A share is back at this part of what it was.
const BACK: f64 = 0.9;
/// A healed plane has so long to get its share back; goodput is compared after that.
const RETURN: Duration = Duration::from_secs(3);
/// Standstills within this time after a cut are the cut's.
const STALL_WITHIN: Duration = Duration::from_secs(1);
/// Gaps between messages that are kept, and from when on they are.
const GAPS: usize = 10_000;
const GAP: Duration = Duration::from_millis(1);

/// Something to do to a plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Act {
    pub(super) plane: u16,
    /// After the measurement's start.
    pub(super) at: Duration,
    pub(super) fault: PlaneFault,
}

/// What a cut did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct FaultRow {
    pub(super) plane: u16,
    pub(super) at_s: f64,
    /// Until this end gave the first lane of the plane up.
    pub(super) detected_ms: Option<f64>,
    /// Longest time without a finished message within a second of the cut.
    pub(super) stall_ms: Option<f64>,
    /// From the heal until the plane carried nine tenths of what it had.
    pub(super) share_back_s: Option<f64>,
}

/// What all of it did.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outages {
    pub(super) faults: Vec<FaultRow>,
    /// Goodput once a healed plane should have its share, by what it was before the first cut.
    pub(super) after_vs_before: Option<f64>,
    /// Seconds, and Gb/s of each plane.
    pub(super) line: Vec<(f64, Vec<f64>)>,
}

/// Long pauses between finished messages.
#[derive(Clone, Debug)]
pub(super) struct Gaps {
    last: Instant,
    long: Vec<(Instant, Duration)>,
}

impl Gaps {
    pub(super) fn start(now: Instant) -> Gaps {
        Gaps { last: now, long: Vec::new() }
    }

    /// A message is finished.
    #[inline]
    pub(super) fn note(&mut self, now: Instant) {
        let gap = now - self.last;
        if gap >= GAP && self.long.len() < GAPS {
            self.long.push((now, gap));
        }
        self.last = now;
    }

    /// The longest that ended within `within` after `from`.
    fn longest(&self, from: Instant, within: Duration) -> Duration {
        let meant = self.long.iter().filter(|(end, _)| *end >= from && *end <= from + within + STALL_WITHIN);
        meant.map(|(end, gap)| (*gap).min(*end - from)).max().unwrap_or_default()
    }
}

/// Does what is to be done, and reads the planes' bytes meanwhile.
pub(super) struct Observer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Seen, String>>,
}

/// What was seen.
struct Seen {
    start: Instant,
    acts: Vec<(Act, Instant, Time)>,
    bytes: Vec<(Instant, Vec<u64>)>,
    events: Vec<LogEntry>,
    planes: Vec<u16>,
}

impl Observer {
    pub(super) fn start(fabric: Fabric, acts: &[Act]) -> Observer {
        let stop = Arc::new(AtomicBool::new(false));
        let (flag, mut acts) = (stop.clone(), acts.to_vec());
        acts.sort_by_key(|a| a.at);
        let thread = std::thread::spawn(move || observe(&fabric, &acts, &flag));
        Observer { stop, thread }
    }

    /// Ends it.
    pub(super) fn finish(self, gaps: Option<&Gaps>) -> Result<Outages, String> {
        self.stop.store(true, Ordering::Release);
        let seen = self.thread.join().map_err(|_| "the thread that cuts planes failed".to_owned())??;
        Ok(seen.outages(gaps))
    }
}

fn observe(fabric: &Fabric, acts: &[Act], stop: &AtomicBool) -> Result<Seen, String> {
    let planes = fabric.stats().planes.iter().map(|p| p.plane).collect();
    let (_, mut from) = fabric.events(u64::MAX);
    let start = Instant::now();
    let mut seen = Seen { start, acts: Vec::new(), bytes: Vec::new(), events: Vec::new(), planes };
    let mut acts = acts.iter().peekable();
    while !stop.load(Ordering::Acquire) {
        let now = Instant::now();
        while let Some(act) = acts.next_if(|a| start + a.at <= now) {
            let at = fabric.inject(act.plane, act.fault).map_err(|e| e.to_string())?;
            seen.acts.push((*act, Instant::now(), at));
        }
        seen.bytes.push((now, fabric.stats().planes.iter().map(|p| p.bytes).collect()));
        let (events, next) = fabric.events(from);
        seen.events.extend(events);
        from = next;
        let next = acts.peek().map_or(EVERY, |a| (start + a.at).saturating_duration_since(Instant::now()).min(EVERY));
        std::thread::sleep(next);
    }
    // What is still cut must not outlive the measurement.
    for act in seen.acts.iter().filter(|a| a.0.fault != PlaneFault::Heal) {
        fabric.inject(act.0.plane, PlaneFault::Heal).map_err(|e| e.to_string())?;
    }
    Ok(seen)
}

impl Seen {
    fn outages(&self, gaps: Option<&Gaps>) -> Outages {
        let cuts = self.acts.iter().filter(|a| a.0.fault != PlaneFault::Heal);
        let faults = cuts.map(|&(act, at, time)| {
            let port = self.planes.iter().position(|&p| p == act.plane);
            let dead = self
                .events
                .iter()
                .map(|e| e.transition)
                .find(|t| t.to == Health::Dead && Some(usize::from(t.port.0)) == port && t.at >= time);
            let healed = self.acts.iter().find(|h| h.0.plane == act.plane && h.0.fault == PlaneFault::Heal && h.1 > at);
            let before = port.and_then(|p| self.share(p, at - OVER.min(at - self.start), at));
            let back = healed.zip(before).zip(port).and_then(|((heal, before), port)| {
                let ends = self.bytes.iter().map(|b| b.0).filter(|&t| t >= heal.1);
                let end = ends.into_iter().find(|&t| {
                    self.share(port, (t - OVER).max(heal.1), t).is_some_and(|share| share >= BACK * before)
                })?;
                Some((end - heal.1).as_secs_f64())
            });
            FaultRow {
                plane: act.plane,
                at_s: (at - self.start).as_secs_f64(),
                detected_ms: dead.map(|t| t.at.since(time).as_nanos() as f64 / 1e6),
                stall_ms: gaps.map(|g| g.longest(at, STALL_WITHIN).as_secs_f64() * 1e3),
                share_back_s: back,
            }
        });
        Outages { faults: faults.collect(), after_vs_before: self.after_vs_before(), line: self.line() }
    }

    /// A plane's part of all bytes between two times.
    fn share(&self, plane: usize, from: Instant, to: Instant) -> Option<f64> {
        let (first, last) = self.between(from, to)?;
        let more: Vec<u64> = first.iter().zip(last).map(|(a, b)| b.saturating_sub(*a)).collect();
        let all: u64 = more.iter().sum();
        (all > 0).then(|| more[plane] as f64 / all as f64)
    }

    fn between(&self, from: Instant, to: Instant) -> Option<(&[u64], &[u64])> {
        let first = self.bytes.iter().find(|b| b.0 >= from)?;
        let last = self.bytes.iter().rev().find(|b| b.0 <= to && b.0 > first.0)?;
        Some((&first.1, &last.1))
    }

    /// Bytes per second of all planes between two times.
    fn goodput(&self, from: Instant, to: Instant) -> Option<f64> {
        let (first, last) = self.between(from, to)?;
        let bytes = last.iter().sum::<u64>().saturating_sub(first.iter().sum());
        Some(bytes as f64 / (to - from).as_secs_f64())
    }

    fn after_vs_before(&self) -> Option<f64> {
        let cut = self.acts.iter().find(|a| a.0.fault != PlaneFault::Heal)?.1;
        let last = self.acts.last().filter(|a| a.0.fault == PlaneFault::Heal)?.1;
        // Messages stop a moment before the observer does.
        let end = self.bytes.last()?.0 - OVER;
        let from = if end > last + RETURN + OVER { last + RETURN } else { (last + RETURN / 3).min(end) };
        let (before, after) = (self.goodput(self.start + OVER, cut)?, self.goodput(from, end)?);
        (before > 0.0).then(|| after / before)
    }

    fn line(&self) -> Vec<(f64, Vec<f64>)> {
        let step = Duration::from_millis(500);
        let Some(end) = self.bytes.last().map(|b| b.0) else { return Vec::new() };
        let mut line = Vec::new();
        let mut at = self.start;
        while at + step <= end {
            if let Some((first, last)) = self.between(at, at + step) {
                let gbps = |(a, b): (&u64, &u64)| b.saturating_sub(*a) as f64 * 8.0 / 1e9 / step.as_secs_f64();
                line.push(((at - self.start).as_secs_f64(), first.iter().zip(last).map(gbps).collect()));
            }
            at += step;
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_stalls_and_goodput() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let act = |ms: u64, fault| (Act { plane: 7, at: Duration::from_millis(ms), fault }, at(ms), Time::ZERO);
        // Two planes of 1,000 bytes per 10 ms; the first stands still from 1 s to 2 s and has its share again at 2.5 s.
        let mut bytes = vec![(start, vec![0, 0])];
        for i in 1..=800u64 {
            let last = bytes[bytes.len() - 1].1.clone();
            let more = if (100..=250).contains(&i) { 0 } else { 1000 };
            bytes.push((at(i * 10), vec![last[0] + more, last[1] + 1000]));
        }
        let acts = vec![act(1000, PlaneFault::Cut), act(2000, PlaneFault::Heal)];
        let seen = Seen { start, acts, bytes, events: Vec::new(), planes: vec![7, 8] };
        let mut gaps = Gaps::start(start);
        for ms in (1..1000).chain(1030..8000) {
            gaps.note(at(ms));
        }
        let out = seen.outages(Some(&gaps));
        let fault = out.faults[0];
        assert_eq!((fault.plane, fault.at_s, fault.detected_ms), (7, 1.0, None));
        assert!((29.0..=31.0).contains(&fault.stall_ms.expect("taken")), "{fault:?}");
        assert!((0.5..=0.75).contains(&fault.share_back_s.expect("it is back")), "{fault:?}");
        assert!((0.97..=1.03).contains(&out.after_vs_before.expect("taken")), "{out:?}");
        assert_eq!(out.line.len(), 16);
    }
}
