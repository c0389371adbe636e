//! Where the machine runs us: how long a cache line takes from one core to another and back.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

/// Round trips per batch: short enough that most batches are not interrupted.
const TRIPS: u64 = 100;
const BATCHES: usize = 40;
/// Below: the cores share a cache.
const NEAR_NS: f64 = 200.0;
/// How long a probe may take.
const DEADLINE: Duration = Duration::from_millis(100);

/// Whether the two cores share a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Placement {
    Near,
    Far,
    /// It changed during a sample.
    Mixed,
}

impl Placement {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Placement::Near => "near",
            Placement::Far => "far",
            Placement::Mixed => "mixed",
        }
    }

    /// What a sample is whose probes before and after said these.
    pub(super) fn of(before: Option<Placement>, after: Option<Placement>) -> Option<Placement> {
        match (before?, after?) {
            (a, b) if a == b => Some(a),
            _ => Some(Placement::Mixed),
        }
    }
}

/// The core that this thread runs on.
pub(super) fn this_cpu() -> Option<usize> {
    sched_getcpu().ok()
}

/// Two cores to probe: those given, if they differ and we may use them, else the first two that we may use.
fn pair(wanted: Option<(usize, usize)>) -> Option<(usize, usize)> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).ok()?;
    let may = |cpu: usize| allowed.is_set(cpu).unwrap_or(false);
    if let Some((a, b)) = wanted.filter(|&(a, b)| a != b && may(a) && may(b)) {
        return Some((a, b));
    }
    let mut cpus = (0..CpuSet::count()).filter(|&cpu| may(cpu));
    Some((cpus.next()?, cpus.next()?))
}

/// Probes two cores; `None` if there are no two, or other work kept us from it.
pub(super) fn probe(wanted: Option<(usize, usize)>) -> Option<Placement> {
    let ns = round_trip(pair(wanted)?)?;
    Some(if ns < NEAR_NS { Placement::Near } else { Placement::Far })
}

/// Nanoseconds of a typical undisturbed round trip.
fn round_trip((a, b): (usize, usize)) -> Option<f64> {
    let line = Line(AtomicU64::new(0));
    let end = Instant::now() + DEADLINE;
    let mut batches = std::thread::scope(|scope| {
        scope.spawn(|| {
            if pin(b).is_some() {
                for i in 0..TRIPS * BATCHES as u64 {
                    if !line.await_value(2 * i + 1, end) {
                        return;
                    }
                    line.0.store(2 * i + 2, Ordering::Release);
                }
            }
        });
        scope
            .spawn(|| {
                let mut batches = Vec::with_capacity(BATCHES);
                pin(a)?;
                for batch in 0..BATCHES as u64 {
                    let start = Instant::now();
                    for i in batch * TRIPS..(batch + 1) * TRIPS {
                        line.0.store(2 * i + 1, Ordering::Release);
                        if !line.await_value(2 * i + 2, end) {
                            return Some(batches);
                        }
                    }
                    batches.push(start.elapsed().as_nanos() as f64 / TRIPS as f64);
                }
                Some(batches)
            })
            .join()
            .ok()
            .flatten()
    })?;
    if batches.len() < 4 {
        return None;
    }
    batches.sort_by(f64::total_cmp);
    Some(batches[batches.len() / 4])
}

fn pin(cpu: usize) -> Option<()> {
    let mut set = CpuSet::new();
    set.set(cpu).ok()?;
    sched_setaffinity(Pid::from_raw(0), &set).ok()
}

/// A word on a cache line of its own.
#[repr(align(128))]
struct Line(AtomicU64);

impl Line {
    fn await_value(&self, value: u64, end: Instant) -> bool {
        let mut spins = 0u32;
        while self.0.load(Ordering::Acquire) != value {
            spins += 1;
            if spins.is_multiple_of(1024) && Instant::now() >= end {
                return false;
            }
            spin_loop();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_that_moved_is_mixed() {
        use Placement::{Far, Mixed, Near};
        assert_eq!(Placement::of(Some(Near), Some(Near)), Some(Near));
        assert_eq!(Placement::of(Some(Near), Some(Far)), Some(Mixed));
        assert_eq!(Placement::of(None, Some(Far)), None);
    }

    #[test]
    fn a_probe_ends_and_leaves_our_affinity() {
        let before = sched_getaffinity(Pid::from_raw(0)).unwrap();
        let start = Instant::now();
        let _ = probe(None);
        assert!(start.elapsed() < Duration::from_secs(5));
        assert_eq!(sched_getaffinity(Pid::from_raw(0)).unwrap(), before);
    }
}
