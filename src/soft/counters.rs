//! What the socket edge counts.

/// Counts since [`super::Udp::open`], over all ports. They only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Packets handed to the kernel.
    pub sent_packets: u64,
    /// Their bytes: UDP payload, ICRC included.
    pub sent_bytes: u64,
    /// Packets received with a right ICRC.
    pub received_packets: u64,
    /// Their bytes: UDP payload, ICRC included.
    pub received_bytes: u64,
    /// Packets dropped because their ICRC was wrong.
    pub bad_icrc: u64,
    /// Packets dropped because they were no RoCEv2 packets.
    pub parse_errors: u64,
    /// Sends that would have blocked (`EAGAIN`, `ENOBUFS`).
    pub would_block: u64,
    /// Sends that failed; their packets were lost.
    pub send_errors: u64,
    /// Receive calls that failed for another reason than an empty queue.
    pub receive_errors: u64,
    /// Packets that a full receive buffer dropped (`SO_RXQ_OVFL`).
    pub drops: u64,
    /// Packets that arrived on a port that was cut, and bursts that were to leave by it.
    pub cut: u64,
    /// Send calls by packets in the burst: 1, 2, 3-4, 5-8, 9-16, 17-32, 33-64, 65-128.
    pub gso_batches: [u64; 8],
    /// Receive calls by packets in the batch, same steps.
    pub gro_batches: [u64; 8],
}

impl Counters {
    /// The histogram step of a batch of `packets`.
    pub(super) fn step(packets: usize) -> usize {
        let n = packets.max(1) - 1;
        ((usize::BITS - n.leading_zeros()) as usize).min(7)
    }

    /// Counts one send call.
    pub(super) fn sent(&mut self, packets: usize, bytes: usize) {
        self.sent_packets += packets as u64;
        self.sent_bytes += bytes as u64;
        self.gso_batches[Counters::step(packets)] += 1;
    }
}

/// How many faults were injected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultCounts {
    /// Packets dropped.
    pub loss: u64,
    /// Packets delivered twice.
    pub dup: u64,
    /// Packets held back.
    pub reorder: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_steps() {
        let steps: Vec<usize> = [0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 64, 65, 128, 4096].map(Counters::step).to_vec();
        assert_eq!(steps, [0, 0, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 7, 7]);
    }
}
