//! A histogram of fixed size for the hot path.

/// Buckets per power of two: neighbouring bounds differ by at most 1/32.
const STEPS: usize = 1 << STEP_BITS;
const STEP_BITS: u32 = 5;

/// Values below 2 * STEPS have a bucket each; every further power of two has STEPS.
const BUCKETS: usize = (64 - STEP_BITS as usize + 1) * STEPS;

/// Counts of u64 values, such as nanoseconds, in log-linear buckets.
///
/// Recording is a handful of instructions and never allocates; a value read back is at most 1/32 (3.1 %) above what
/// was recorded, and the least, greatest and mean are exact. About 15 KiB, on the heap.
#[derive(Clone, Debug)]
pub struct Histogram {
    buckets: Box<[u64; BUCKETS]>,
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

/// The usual numbers of a histogram, in its unit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Summary {
    /// Values recorded.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// The least.
    pub min: u64,
    /// Half of them are at most this.
    pub p50: u64,
    /// 99 % of them are at most this.
    pub p99: u64,
    /// 99.9 % of them are at most this.
    pub p999: u64,
    /// The greatest.
    pub max: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

impl Histogram {
    /// An empty histogram. The only call that allocates, besides `clone`.
    pub fn new() -> Histogram {
        Histogram { buckets: Box::new([0; BUCKETS]), count: 0, sum: 0, min: u64::MAX, max: 0 }
    }

    /// Counts `value` once.
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.buckets[bucket(value)] += 1;
        self.count += 1;
        self.sum += u128::from(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Adds everything that `other` counted.
    pub fn merge(&mut self, other: &Histogram) {
        for (ours, theirs) in self.buckets.iter_mut().zip(other.buckets.iter()) {
            *ours += theirs;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.buckets.fill(0);
        (self.count, self.sum, self.min, self.max) = (0, 0, u64::MAX, 0);
    }

    /// Values recorded.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The least value recorded; `None` if there is none.
    pub fn min(&self) -> Option<u64> {
        (self.count > 0).then_some(self.min)
    }

    /// The greatest value recorded; `None` if there is none.
    pub fn max(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max)
    }

    /// The mean of the values recorded; `None` if there is none.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// What the share `q` (0.0..=1.0) of the values is at most: the upper bound of the bucket, never above the greatest
    /// value. `None` if nothing was recorded.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let rank = ((q.clamp(0.0, 1.0) * self.count as f64).ceil() as u64).clamp(1, self.count);
        let mut below = 0;
        for (i, &n) in self.buckets.iter().enumerate() {
            below += n;
            if below >= rank {
                return Some(upper(i).clamp(self.min, self.max));
            }
        }
        Some(self.max)
    }

    /// The usual numbers; `None` if nothing was recorded.
    pub fn summary(&self) -> Option<Summary> {
        Some(Summary {
            count: self.count,
            mean: self.mean()?,
            min: self.min()?,
            p50: self.quantile(0.5)?,
            p99: self.quantile(0.99)?,
            p999: self.quantile(0.999)?,
            max: self.max()?,
        })
    }
}

/// Which bucket counts `value`.
#[inline]
const fn bucket(value: u64) -> usize {
    // Position of the leading one, but as if the value had at least STEP_BITS + 1 bits.
    let shift = 63 - (value | STEPS as u64).leading_zeros() - STEP_BITS;
    (shift as usize) * STEPS + (value >> shift) as usize
}

/// The greatest value that bucket `i` counts.
const fn upper(i: usize) -> u64 {
    let shift = (i / STEPS).saturating_sub(1);
    let step = (i - shift * STEPS) as u64;
    (step << shift) + ((1u64 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_are_dense_and_end_at_the_end() {
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        for i in 0..BUCKETS {
            assert_eq!(bucket(upper(i)), i);
            if let Some(next) = upper(i).checked_add(1) {
                assert_eq!(bucket(next), i + 1);
            }
        }
        assert_eq!(upper(BUCKETS - 1), u64::MAX);
    }

    #[test]
    fn small_numbers_are_exact() {
        let mut h = Histogram::new();
        assert_eq!(h.summary(), None);
        for v in 1..=50 {
            h.record(v);
        }
        let s = h.summary().expect("values");
        assert_eq!((s.count, s.min, s.p50, s.p99, s.p999, s.max), (50, 1, 25, 50, 50, 50));
        assert_eq!(s.mean, 25.5);
        h.clear();
        assert_eq!((h.count(), h.quantile(0.5)), (0, None));
    }

    proptest! {
        #[test]
        fn quantiles_are_near_and_merging_is_recording(
            a in proptest::collection::vec(any::<u64>().prop_flat_map(|v| (0u32..64).prop_map(move |s| v >> s)), 1..300),
            b in proptest::collection::vec(0u64..1 << 40, 0..300),
            q in 0.0f64..=1.0,
        ) {
            let (mut left, mut right, mut all) = (Histogram::new(), Histogram::new(), Histogram::new());
            a.iter().for_each(|&v| left.record(v));
            b.iter().for_each(|&v| right.record(v));
            a.iter().chain(&b).for_each(|&v| all.record(v));
            left.merge(&right);
            prop_assert_eq!(left.summary(), all.summary());

            let mut sorted: Vec<u64> = a.iter().chain(&b).copied().collect();
            sorted.sort_unstable();
            let rank = ((q * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len());
            let (exact, got) = (sorted[rank - 1], all.quantile(q).expect("values"));
            prop_assert!(got >= exact, "{got} < {exact}");
            prop_assert!(got - exact <= exact / 32, "{got} is far from {exact}");
            prop_assert_eq!((all.min(), all.max()), (sorted.first().copied(), sorted.last().copied()));
        }
    }
}
