//! How a fabric is opened.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use crate::bootstrap::JobKey;
use crate::class::Dscp;
pub use crate::soft::{Fault, UdpPort};
pub use crate::topology::Wanted as Engine;

/// Everything that [`Fabric::open`](super::Fabric::open) needs. `Default` is one plane on 127.0.0.1 without a key.
#[derive(Clone, Debug)]
pub struct FabricConfig {
    /// Which engine moves the bytes.
    pub engine: Engine,
    /// Devices to run over, in NCCL's grammar `[^][=]hca[:port[:rail[:plane]]],..` (`docs/devices.md`). A name that is no RDMA
    /// device may be an interface, whose address is then a plane of the embedded engine. Counts before `planes`.
    pub device: Option<String>,
    /// One local address per plane, in plane order, 1..=8 of them: the embedded engine runs over these. Without `device` and
    /// without addresses RDMA devices are looked for.
    pub planes: Vec<IpAddr>,
    /// UDP port at which packets arrive: 4791 if it is free, or exactly this one.
    pub udp_port: UdpPort,
    /// Largest RoCE MTU: 256, 512, 1024, 2048 or 4096. A plane whose interface is smaller uses less.
    pub mtu: u32,
    /// Data lanes per plane and class, 1..=64.
    pub lanes_per_plane: u16,
    /// The job's key: both ends need the same one.
    pub key: Option<JobKey>,
    /// Without a key: go on without authentication.
    pub insecure: bool,
    /// What the packets of each class carry, by [`Class::index`](crate::class::Class::index).
    pub dscp: [Dscp; 3],
    /// Socket receive buffer to ask for, in bytes; `None` asks for 4 MiB.
    pub receive_buffer: Option<usize>,
    /// Where to write a capture of all packets.
    pub pcap: Option<PathBuf>,
    /// Faults to inject into received packets.
    pub fault: Option<Fault>,
    /// Bits per second at which each plane sends, for trying out what losing one costs; `None`: as fast as it can.
    pub plane_rate: Option<u64>,
    /// How [`Pending::wait`](super::Pending::wait) waits.
    pub wait: Wait,
    /// Receives of any size are granted at once, so that small messages can go by RDMA WRITE without asking.
    pub grant_always: bool,
    /// A lane that is silent for this long while others deliver is given up, and what it carried goes by others.
    pub silence: Duration,
    /// How long a connection lives without a word from its peer; a peer that stands still for less loses nothing. A peer
    /// whose process ends is noticed at once.
    pub peer_timeout: Duration,
    /// Find out by probes which planes reach the peer, before lanes are made: planes that do not are left out. Probes go to
    /// UDP ports that the system chooses; turn this off where a firewall lets only RoCEv2's port through. It is off if either
    /// end turns it off.
    pub probe: bool,
}

/// How to wait for something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wait {
    /// Spin: lowest latency, one core at 100 %.
    Busy,
    /// Spin for 50 us, then sleep until something arrives.
    #[default]
    Adaptive,
}

impl Default for FabricConfig {
    fn default() -> Self {
        FabricConfig {
            engine: Engine::Auto,
            device: None,
            planes: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            udp_port: UdpPort::Auto,
            mtu: 4096,
            lanes_per_plane: 4,
            key: None,
            insecure: false,
            dscp: [Dscp::default(); 3],
            receive_buffer: None,
            pcap: None,
            fault: None,
            plane_rate: None,
            wait: Wait::default(),
            grant_always: false,
            silence: Duration::from_millis(20),
            peer_timeout: Duration::from_secs(30),
            probe: true,
        }
    }
}
