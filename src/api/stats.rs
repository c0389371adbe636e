//! What a fabric has done so far.

use std::net::IpAddr;

use crate::class::Class;
use crate::lanes::PortInfo;
use crate::spray::{LaneKind, SessionStats};

/// A snapshot of one connection, or of a fabric over all connections.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// One entry per plane.
    pub planes: Vec<PlaneStats>,
    /// One entry per lane.
    pub lanes: Vec<LaneStats>,
    /// Packets that our own full receive buffers dropped.
    pub receive_drops: u64,
    /// Faults injected, where asked for.
    pub injected: Injected,
    /// Packets dropped because their ICRC was wrong.
    pub bad_icrc: u64,
    /// Chunks of lost lanes that were sent again by another lane, because the peer did not have them.
    pub replayed: u64,
    /// Chunks of lost lanes that the peer had. No lane's or plane's `bytes` hold theirs.
    pub survived: u64,
}

/// Faults injected into received packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Injected {
    /// Packets dropped.
    pub loss: u64,
    /// Packets delivered twice.
    pub dup: u64,
    /// Packets held back.
    pub reorder: u64,
}

/// One plane, as the sender of its bytes sees it.
#[derive(Clone, Debug)]
pub struct PlaneStats {
    /// Which fabric.
    pub plane: u16,
    /// Which NIC.
    pub rail: u16,
    /// Our address on it.
    pub addr: IpAddr,
    /// Where we receive.
    pub udp_port: u16,
    /// Payload bytes sent and acknowledged, each counted once.
    pub bytes: u64,
    /// Fraction of all planes' bytes, 0..=1; `None` before the first byte.
    pub share: Option<f64>,
    /// Smoothed round trip time of its lanes in microseconds, weighted by their bytes.
    pub rtt_us: Option<f64>,
    /// Share of its packets that carried CE, 0..=1.
    pub ce_share: Option<f64>,
    /// Packets sent again.
    pub retransmits: u64,
}

/// One lane.
#[derive(Clone, Debug)]
pub struct LaneStats {
    /// Which fabric.
    pub plane: u16,
    /// Which class.
    pub class: Class,
    /// True for control and eager messages, false for chunks.
    pub control: bool,
    /// Its number in the session.
    pub lane: u32,
    /// Payload bytes sent and acknowledged, each counted once.
    pub bytes: u64,
    /// Fraction of all lanes' bytes.
    pub share: Option<f64>,
    /// Smoothed round trip time in microseconds.
    pub rtt_us: Option<f64>,
    /// Share of its packets that carried CE.
    pub ce_share: Option<f64>,
    /// Packets sent again.
    pub retransmits: u64,
    /// Bytes that may be in flight.
    pub window: u64,
    /// Payload bytes in flight.
    pub in_flight: u64,
    /// False once it died.
    pub alive: bool,
}

impl Stats {
    /// The sum over sessions of one backend.
    pub(super) fn collect(ports: &[PortInfo], sessions: &[SessionStats]) -> Stats {
        let mut stats = Stats {
            replayed: sessions.iter().map(|s| s.messages.replayed).sum(),
            survived: sessions.iter().map(|s| s.messages.survived).sum(),
            ..Stats::default()
        };
        for port in ports {
            stats.planes.push(PlaneStats {
                plane: port.plane,
                rail: port.rail,
                addr: port.addr,
                udp_port: port.udp_port,
                bytes: 0,
                share: None,
                rtt_us: None,
                ce_share: None,
                retransmits: 0,
            });
        }
        let mut rtt = vec![Mean::default(); ports.len()];
        let mut marks = vec![Mean::default(); ports.len()];
        for lane in sessions.iter().flat_map(|s| &s.lanes) {
            let index = usize::from(lane.port.0);
            let Some(plane) = stats.planes.get_mut(index) else { continue };
            // One byte more, so that an idle lane's figure counts where there is no other.
            let weight = (lane.bytes + 1) as f64;
            plane.bytes += lane.bytes;
            plane.retransmits += lane.retransmits;
            let rtt_us = lane.srtt.map(|ns| ns as f64 / 1e3);
            let ce_share = lane.ce_share.map(|ppm| f64::from(ppm) / 1e6);
            rtt[index].add(rtt_us, weight);
            marks[index].add(ce_share, weight);
            stats.lanes.push(LaneStats {
                plane: plane.plane,
                class: lane.class,
                control: lane.kind == LaneKind::Control,
                lane: lane.lane.0,
                bytes: lane.bytes,
                share: None,
                rtt_us,
                ce_share,
                retransmits: lane.retransmits,
                window: lane.window,
                in_flight: lane.in_flight,
                alive: lane.alive,
            });
        }
        let total: u64 = stats.planes.iter().map(|p| p.bytes).sum();
        let share = |bytes: u64| (total > 0).then(|| bytes as f64 / total as f64);
        for (i, plane) in stats.planes.iter_mut().enumerate() {
            plane.share = share(plane.bytes);
            plane.rtt_us = rtt[i].get();
            plane.ce_share = marks[i].get();
        }
        for lane in &mut stats.lanes {
            lane.share = share(lane.bytes);
        }
        stats
    }
}

#[derive(Clone, Default)]
struct Mean {
    sum: f64,
    weight: f64,
}

impl Mean {
    fn add(&mut self, value: Option<f64>, weight: f64) {
        if let Some(v) = value {
            self.sum += v * weight;
            self.weight += weight;
        }
    }

    fn get(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }
}
