//! How the socket edge is to be set up.

use std::net::IpAddr;
use std::path::PathBuf;

/// The UDP port that RoCEv2 packets are addressed to by default (InfiniBand Architecture, annex A17).
pub const ROCE_PORT: u16 = 4791;

/// At which UDP port packets are received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UdpPort {
    /// 4791 where it is free, else any.
    #[default]
    Auto,
    /// This one or an error.
    Fixed(u16),
}

/// Faults to inject into received packets, for tests. Probabilities are per packet, 0.0..=1.0.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fault {
    /// The packet is dropped.
    pub loss: f64,
    /// The packet is delivered twice.
    pub dup: f64,
    /// The packet is held back until several later ones, or a millisecond, have passed.
    pub reorder: f64,
    /// Seed of the decisions: the same seed and the same arrivals give the same faults.
    pub seed: u64,
}

/// What [`super::Udp::open`] opens.
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// One local address per port, at most [`crate::lanes::MAX_PORTS`], each once. The index is the plane.
    /// Packets leave with this source address; where several planes share a subnet, routing by source
    /// (`ip rule add from ADDR`) must choose the interface.
    pub planes: Vec<IpAddr>,
    /// Where to receive.
    pub udp_port: UdpPort,
    /// Largest RoCE MTU to use: 256, 512, 1024, 2048 or 4096 bytes. An interface that cannot carry it lowers it.
    pub mtu: u32,
    /// Bytes to ask `SO_RCVBUF` for, in the kernel's own counting (it doubles them); `None` asks for 4 MiB. The
    /// kernel grants at most `net.core.rmem_max`; the real size is in the port's receive budget.
    pub receive_buffer: Option<usize>,
    /// UDP source ports per local port, 1..=1024: a lane's entropy modulo this number chooses one. Opened when used.
    pub source_ports: u16,
    /// Where to write a capture of every packet sent and received.
    pub pcap: Option<PathBuf>,
    /// Faults to inject.
    pub fault: Option<Fault>,
    /// Bits per second at which each port sends, for trying out what slow planes do; `None`: as fast as it can.
    pub plane_rate: Option<u64>,
    /// Send bursts with one system call (`UDP_SEGMENT`). Turned off by itself where it does not work.
    pub gso: bool,
    /// Receive bursts with one system call (`UDP_GRO`).
    pub gro: bool,
}

impl Default for UdpConfig {
    fn default() -> Self {
        UdpConfig {
            planes: Vec::new(),
            udp_port: UdpPort::Auto,
            mtu: 4096,
            receive_buffer: None,
            source_ports: 64,
            pcap: None,
            fault: None,
            plane_rate: None,
            gso: true,
            gro: true,
        }
    }
}
