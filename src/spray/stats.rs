//! Counters and gauges of a session, as a snapshot.

use super::config::LaneKind;
use crate::class::Class;
use crate::lanes::{LaneId, MAX_PORTS, PortId};

/// A snapshot of a session. Making one allocates: not for the hot path.
#[derive(Clone, Debug, Default)]
pub struct SessionStats {
    /// Every lane that the session has, dead ones included.
    pub lanes: Vec<LaneStats>,
    /// Sums over the lanes of each local port.
    pub ports: [PortStats; MAX_PORTS],
    /// Messages.
    pub messages: MessageStats,
}

/// One lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneStats {
    /// The lane.
    pub lane: LaneId,
    /// Its local port.
    pub port: PortId,
    /// The peer's port.
    pub peer_port: u8,
    /// Its class.
    pub class: Class,
    /// What it carries.
    pub kind: LaneKind,
    /// False once it died.
    pub alive: bool,
    /// Bytes acknowledged, each counted once.
    pub bytes: u64,
    /// Work requests acknowledged.
    pub chunks: u64,
    /// Packets that the backend sent again.
    pub retransmits: u64,
    /// Smoothed round trip time in nanoseconds; `None` if the backend never told one.
    pub srtt: Option<u64>,
    /// Least round trip time seen lately, in nanoseconds.
    pub min_rtt: Option<u64>,
    /// Share of packets that carried CE, smoothed, in parts per million; `None` if the backend never told one.
    pub ce_share: Option<u32>,
    /// Delivery rate while busy, in bytes per second; `None` before the first measurement.
    pub rate: Option<u64>,
    /// Bytes that may be in flight.
    pub window: u64,
    /// Bytes in flight.
    pub in_flight: u64,
}

/// Sums over the lanes of one local port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortStats {
    /// Bytes acknowledged.
    pub bytes: u64,
    /// Work requests acknowledged.
    pub chunks: u64,
    /// Packets sent again.
    pub retransmits: u64,
    /// Bytes in flight.
    pub in_flight: u64,
}

/// Counts of messages since the session began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MessageStats {
    /// Sends that are done with success.
    pub sent: u64,
    /// Receives that are done with success.
    pub received: u64,
    /// Of the sends, those that went eagerly.
    pub eager: u64,
    /// One-sided operations that are done with success.
    pub one_sided: u64,
    /// Operations of any kind that failed.
    pub failed: u64,
    /// Eager messages that came before their receive.
    pub unexpected: u64,
    /// Immediates for a slot that had moved on; they were ignored.
    pub late_immediates: u64,
    /// Units that arrived a second time; they were ignored.
    pub duplicate_units: u64,
    /// Records that repeated what was known; they were ignored.
    pub duplicate_records: u64,
    /// Chunks of lost lanes that were posted again, because the peer did not have them.
    pub replayed: u64,
    /// Chunks of lost lanes that the peer had.
    pub survived: u64,
    /// Control messages sent.
    pub control_sent: u64,
    /// Control messages received.
    pub control_received: u64,
}
