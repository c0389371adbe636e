//! What a lane's two ends settle on, and what ports of unequal speed get.

/// RoCE MTUs, largest first, in bytes.
pub const MTUS: [u32; 5] = [4096, 2048, 1024, 512, 256];
/// What the kernel keeps free for headers when it derives the RoCE MTU from an interface's: GRH or IP, UDP, BTH, the
/// longest extensions and the ICRC.
const KERNEL_HEADERS: u32 = 40 + 8 + 12 + 4 + 28 + 4;

/// The RoCE MTU that Linux gives to a port whose interface has an MTU of `interface` bytes; `None` below the smallest.
pub fn roce_mtu(interface: u32) -> Option<u32> {
    MTUS.into_iter().find(|m| m + KERNEL_HEADERS <= interface)
}

/// The MTU of a lane between ports with these; `None` if one is no RoCE MTU.
pub fn lane_mtu(ours: u32, theirs: u32) -> Option<u32> {
    (MTUS.contains(&ours) && MTUS.contains(&theirs)).then_some(ours.min(theirs))
}

/// Weights of ports with these speeds in Mb/s: 1..=1000, the fastest has 1000. A port of unknown speed counts as the mean
/// of the others; if none is known all are equal.
pub fn weights(speeds: &[Option<u32>]) -> Vec<u32> {
    let known: Vec<u64> = speeds.iter().flatten().map(|&s| u64::from(s)).filter(|&s| s > 0).collect();
    let Some(&fastest) = known.iter().max() else { return vec![1000; speeds.len()] };
    let mean = known.iter().sum::<u64>() / known.len() as u64;
    let weight = |speed: &Option<u32>| {
        let speed = speed.filter(|&s| s > 0).map_or(mean, u64::from);
        // At most 1000, because no speed exceeds the fastest.
        ((speed * 1000 + fastest / 2) / fastest).max(1) as u32
    };
    speeds.iter().map(weight).collect()
}

/// How many of `wanted` lanes a port of weight `weight` gets, at least 1.
pub fn share(wanted: usize, weight: u32) -> usize {
    ((wanted * weight.min(1000) as usize + 500) / 1000).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus() {
        assert_eq!(
            [9000, 4200, 4192, 4191, 1500, 352, 351].map(roce_mtu),
            [Some(4096), Some(4096), Some(4096), Some(2048), Some(1024), Some(256), None]
        );
        assert_eq!(lane_mtu(4096, 1024), Some(1024));
        assert_eq!(lane_mtu(4096, 1500), None);
    }

    #[test]
    fn unequal_speeds_are_weighted() {
        assert_eq!(weights(&[Some(400_000), Some(400_000)]), [1000, 1000]);
        assert_eq!(weights(&[Some(400_000), Some(100_000)]), [1000, 250]);
        assert_eq!(weights(&[Some(400_000), None, Some(200_000)]), [1000, 750, 500]);
        assert_eq!(weights(&[None, Some(0)]), [1000, 1000]);
        assert_eq!(weights(&[Some(u32::MAX), Some(1)]), [1000, 1]);
        assert_eq!(weights(&[]), [0; 0]);
        assert_eq!([1000, 250, 1].map(|w| share(8, w)), [8, 2, 1]);
    }
}
