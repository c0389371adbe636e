//! What came of a run.

use crate::policy;

/// What became of one flow.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Flowed {
    /// Its payload.
    pub bytes: u32,
    /// Microseconds from its start until the sender knew that all had arrived; `None` if the run ended before.
    pub us: Option<f64>,
}

/// What came of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// How flows were balanced.
    pub policy: policy::Kind,
    /// The seed of the run.
    pub seed: u64,
    /// The flows in the order of the matrix.
    pub flows: Vec<Flowed>,
    /// The slowest flow at best: bytes on the wire over what the links can carry, by maximum flow, and a round trip.
    pub ideal_us: f64,
    /// The unloaded round trip.
    pub rtt_us: f64,
    /// Packets of payload.
    pub packets: u64,
    /// Packets that were sent again.
    pub retransmissions: u64,
    /// Packets that arrived again.
    pub spurious: u64,
    /// Packets that the timer gave up.
    pub timeouts: u64,
    /// Packets that a policy gave up before the timer.
    pub given_up: u64,
    /// Packets whose payload a full queue cut off.
    pub trims: u64,
    /// Packets that full queues dropped.
    pub drops: u64,
    /// Packets that dead links swallowed.
    pub swallowed: u64,
    /// Packets that were marked.
    pub marks: u64,
    /// Bytes on the wire that arrived over each plane, duplicates not counted.
    pub per_plane_bytes: Vec<u64>,
    /// Links crossed by packets with payload.
    pub packet_hops: u64,
    /// Links crossed by headers, acknowledgements and probes.
    pub header_hops: u64,
}

/// Times of flows, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Times {
    /// The slowest.
    pub slowest: f64,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// 99 of 100 are not slower.
    pub p99: f64,
}

impl Outcome {
    /// Flows that were not done when the run ended.
    pub fn unfinished(&self) -> usize {
        self.flows.iter().filter(|f| f.us.is_none()).count()
    }

    /// The times of the flows that were done and that `which` selects; `None` if there is none.
    pub fn times(&self, which: impl Fn(&Flowed) -> bool) -> Option<Times> {
        let mut us: Vec<f64> = self.flows.iter().filter(|f| which(f)).filter_map(|f| f.us).collect();
        us.sort_by(f64::total_cmp);
        let rank = |share: f64| us[((us.len() as f64 * share).ceil() as usize).clamp(1, us.len()) - 1];
        let &slowest = us.last()?;
        Some(Times { slowest, mean: us.iter().sum::<f64>() / us.len() as f64, p50: rank(0.5), p99: rank(0.99) })
    }

    /// The slowest flow over the ideal; `None` if a flow was not done.
    pub fn ratio(&self) -> Option<f64> {
        if self.unfinished() > 0 {
            return None;
        }
        self.times(|_| true).map(|t| t.slowest / self.ideal_us)
    }

    /// Unloaded round trips by which the slowest flow is over the ideal.
    pub fn recovery_rtts(&self) -> Option<f64> {
        self.ratio().map(|r| (r - 1.0) * self.ideal_us / self.rtt_us)
    }
}
