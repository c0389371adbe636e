//! What a device counts, by the names of rdma_rxe and mlx5 where they have one.

/// Counts since the device was made. They wrap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Packets given to [`super::Device::handle`].
    pub rcvd_pkts: u64,
    /// Packets that [`super::Device::poll_transmit`] made.
    pub sent_pkts: u64,
    /// Packets for no live queue pair, of another transport, version or partition, or in a state that takes none.
    pub dropped_pkts: u64,
    /// RC packets from another address than the peer's.
    pub wrong_source: u64,
    /// Requests that came before one that is missing.
    pub out_of_sequence: u64,
    /// Of them, packets placed at once (planespray peers).
    pub placed_out_of_order: u64,
    /// Requests that came again.
    pub duplicate_request: u64,
    /// Requests refused: malformed or out of order within their message.
    pub resp_invalid_request: u64,
    /// Requests refused: key, bounds or rights.
    pub resp_remote_access_errors: u64,
    /// PSN sequence NAKs sent.
    pub sequence_nak_sent: u64,
    /// PSN sequence NAKs received.
    pub packet_seq_err: u64,
    /// Receiver-not-ready NAKs sent.
    pub rnr_nak_sent: u64,
    /// Receiver-not-ready NAKs received.
    pub rnr_nak_rcvd: u64,
    /// Acknowledgements that said a READ or atomic response was lost.
    pub implied_nak_seq_err: u64,
    /// Responses and acknowledgements that fit nothing outstanding.
    pub unexpected_response: u64,
    /// Retransmission timers that expired.
    pub local_ack_timeout_err: u64,
    /// Request packets sent again.
    pub retransmits: u64,
    /// Queue pairs that gave up for want of acknowledgements.
    pub retry_exceeded_err: u64,
    /// Queue pairs that gave up for want of receives.
    pub rnr_retry_exceeded_err: u64,
    /// Packets that came with CE.
    pub ecn_marked_packets: u64,
    /// Congestion notification packets sent.
    pub cnp_sent: u64,
    /// Congestion notification packets received.
    pub cnp_handled: u64,
    /// Acknowledgements that came with BECN.
    pub becn_handled: u64,
    /// Feedback records sent.
    pub feedback_sent: u64,
    /// Feedback records taken.
    pub feedback_handled: u64,
    /// Feedback records that named no queue pair of ours, or lacked its secret.
    pub feedback_refused: u64,
    /// Datagrams with a wrong queue key.
    pub qkey_violations: u64,
    /// Datagrams for which no receive, or none long enough, was posted.
    pub ud_dropped: u64,
}
