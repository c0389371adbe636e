//! A measurement is several samples; only those are put together that ran under the same conditions.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::client::Flow;
use super::options::Extent;
use super::placement::Placement;
use super::watch::VOID_GAP;

/// Our sample and the TCP samples right after it.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) ours: Flow,
    /// One and four sockets, or for latency one.
    pub(super) tcp: Vec<Flow>,
    pub(super) placement: Option<Placement>,
}

impl Sample {
    /// True if one of our own loops stood still: then the sample says nothing about speed.
    pub(super) fn is_void(&self) -> bool {
        let limit = VOID_GAP.as_nanos() as u64;
        std::iter::once(&self.ours).chain(&self.tcp).any(|f| f.gap_ns > limit)
    }
}

/// How a measurement is cut into samples.
pub(super) fn plan(extent: Extent, compare: bool) -> Vec<Extent> {
    match extent {
        Extent::Duration(whole) => {
            let piece = if compare { 0.5 } else { 1.0 };
            let count = (whole.as_secs_f64() / piece).round().clamp(1.0, 100_000.0) as u32;
            vec![Extent::Duration(whole / count); count as usize]
        }
        Extent::Iterations(n) if compare => {
            let count = (n / 1000).clamp(1, 5);
            (0..count).map(|i| Extent::Iterations(n / count + u64::from(i < n % count))).collect()
        }
        Extent::Iterations(_) => vec![extent],
    }
}

/// How many samples may be taken again because they were void.
pub(super) fn retries(extent: Extent, planned: usize) -> usize {
    match extent {
        Extent::Duration(_) => (planned / 4).max(3),
        // As many messages were asked for, so as many are sent.
        Extent::Iterations(_) => 0,
    }
}

/// Flows put together.
#[derive(Clone, Debug, Default)]
pub(super) struct Sum {
    pub(super) messages: u64,
    pub(super) elapsed: Duration,
    /// Messages per second of the fastest sample.
    pub(super) peak: f64,
    pub(super) lat: Option<Histogram<u64>>,
    pub(super) cpu_ns: u64,
}

impl Sum {
    pub(super) fn of<'a>(flows: impl Iterator<Item = &'a Flow>) -> Sum {
        let mut sum = Sum::default();
        for flow in flows {
            sum.messages += flow.messages;
            sum.elapsed += flow.elapsed;
            sum.cpu_ns += flow.cpu_ns;
            if !flow.elapsed.is_zero() {
                sum.peak = sum.peak.max(flow.messages as f64 / flow.elapsed.as_secs_f64());
            }
            match (&mut sum.lat, &flow.lat) {
                (None, Some(lat)) => sum.lat = Some(lat.clone()),
                // Both have the same bounds, so adding cannot fail.
                (Some(all), Some(lat)) => drop(all.add(lat)),
                _ => {}
            }
        }
        sum
    }

    /// Messages per second.
    pub(super) fn rate(&self) -> f64 {
        if self.elapsed.is_zero() { 0.0 } else { self.messages as f64 / self.elapsed.as_secs_f64() }
    }
}

/// Samples under the conditions that most had: the placement, and those samples. Void ones only if there
/// are no others.
pub(super) fn comparable(samples: &[Sample]) -> (Option<Placement>, Vec<&Sample>) {
    let good: Vec<&Sample> = samples.iter().filter(|s| !s.is_void()).collect();
    let usable = if good.is_empty() { samples.iter().collect() } else { good };
    let kinds = [Some(Placement::Near), Some(Placement::Far), Some(Placement::Mixed), None];
    let count = |kind: Option<Placement>| usable.iter().filter(|s| s.placement == kind).count();
    let mut best = kinds[0];
    for kind in kinds {
        if count(kind) > count(best) {
            best = kind;
        }
    }
    (best, usable.into_iter().filter(|s| s.placement == best).collect())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn flow(messages: u64, millis: u64, gap_ms: u64) -> Flow {
        Flow {
            messages,
            elapsed: Duration::from_millis(millis),
            lat: None,
            wrong: 0,
            lost: 0,
            dup: 0,
            cpu_ns: 1000,
            gap_ns: gap_ms * 1_000_000,
            retransmits: 0,
            injected: [0; 3],
            gaps: None,
            server_cpu: None,
            server_ports: vec![4791],
        }
    }

    fn sample(messages: u64, gap_ms: u64, placement: Placement) -> Sample {
        Sample { ours: flow(messages, 1000, gap_ms), tcp: vec![], placement: Some(placement) }
    }

    #[test]
    fn plans() {
        let seconds = |s| Extent::Duration(Duration::from_secs_f64(s));
        assert_eq!(plan(seconds(2.0), false), vec![seconds(1.0); 2]);
        assert_eq!(plan(seconds(2.0), true), vec![seconds(0.5); 4]);
        assert_eq!(plan(seconds(0.2), true), vec![seconds(0.2)]);
        assert_eq!(plan(Extent::Iterations(10), true), vec![Extent::Iterations(10)]);
        let parts = plan(Extent::Iterations(20_003), true);
        let total: u64 = parts.iter().map(|e| if let Extent::Iterations(n) = e { *n } else { 0 }).sum();
        assert_eq!((parts.len(), total), (5, 20_003));
    }

    #[test]
    fn void_and_misplaced_samples_are_left_out() {
        let all = [
            sample(10, 0, Placement::Far),
            sample(100, 0, Placement::Near),
            sample(200, 0, Placement::Near),
            sample(9999, 11, Placement::Near),
        ];
        let (placement, used) = comparable(&all);
        assert_eq!((placement, used.len()), (Some(Placement::Near), 2));
        let sum = Sum::of(used.iter().map(|s| &s.ours));
        assert_eq!((sum.messages, sum.rate(), sum.peak), (300, 150.0, 200.0));
        let (_, used) = comparable(&all[3..]);
        assert_eq!(used.len(), 1);
    }

    #[test]
    fn a_void_peer_makes_the_sample_void() {
        let mut s = sample(1, 0, Placement::Near);
        s.tcp.push(flow(1, 1, 50));
        assert!(s.is_void());
    }
}
