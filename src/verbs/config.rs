//! How the backend is to be set up.

use std::net::IpAddr;
use std::path::PathBuf;

use super::budget::Budget;
use super::qp::Retry;
use crate::time::Span;

/// Which entry of a port's GID table to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GidChoice {
    /// The RoCEv2 entry that stands for this address.
    Address(IpAddr),
    /// The entry at this index.
    Index(u32),
    /// The first RoCEv2 entry that reaches beyond a router: IPv4 before IPv6; a link-local one if there is no other.
    Any,
}

/// A port to use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerbsPort {
    /// The device's name, such as `mlx5_0`.
    pub device: String,
    /// The device's port, from 1.
    pub port: u8,
    /// Its address.
    pub gid: GidChoice,
    /// Which NIC of the node.
    pub rail: u16,
    /// Which fabric.
    pub plane: u16,
}

/// How lanes over devices are made.
#[derive(Clone, Debug)]
pub struct VerbsConfig {
    /// The ports, 1 to [`crate::lanes::MAX_PORTS`] of them; `PortId` is the index.
    pub ports: Vec<VerbsPort>,
    /// When a lane gives up; `None` as [`Retry::of`] the first device's driver.
    pub retry: Option<Retry>,
    /// Requests of at most this many bytes are copied into the queue, where the device has room for it.
    pub inline: u32,
    /// Use `ibv_wr_*` where offered.
    pub batched: bool,
    /// Use the timestamps of completions where offered.
    pub timestamps: bool,
    /// Let the device write in any order (relaxed ordering on the bus).
    pub relaxed_ordering: bool,
    /// Give each domain a protection domain of its own: keys of one are useless to the peers of another. Memory is
    /// then registered, and counted as locked, once for each domain.
    pub isolate: bool,
    /// How long polls must have found nothing before the queues are armed, so that somebody can sleep. Shorter, and a sleeper
    /// sleeps sooner; longer, and a busy one is spared the calls. `None`: 20 us for NICs, nothing for devices of software, which
    /// need the processor themselves.
    pub rest: Option<Span>,
    /// The libmlx5 to load where a device is one of mlx5; [`super::DEFAULT_MLX5`] if `None`.
    pub mlx5: Option<PathBuf>,
    /// Most lanes at once, 1..=65,535.
    pub max_lanes: usize,
    /// Counts queue pairs.
    pub budget: Budget,
    /// Makes PSNs; from a real random source outside tests.
    pub seed: u64,
}

impl VerbsConfig {
    /// The usual over these ports.
    pub fn new(ports: Vec<VerbsPort>, seed: u64) -> VerbsConfig {
        VerbsConfig {
            ports,
            retry: None,
            inline: 220,
            batched: true,
            timestamps: true,
            relaxed_ordering: false,
            isolate: false,
            rest: None,
            mlx5: None,
            max_lanes: 4095,
            budget: Budget::process(),
            seed,
        }
    }
}
