//! RoCEv2 over ordinary UDP sockets: no RDMA hardware, no kernel module, no privilege.
//!
//! One receive socket per local address (port 4791 where it is free) and one *unconnected* bound socket per source
//! port. With `IP_PMTUDISC_PROBE` such a socket writes the segment's index into the IPv4 identification field of
//! every segment of a burst, which makes the ICRC (it covers that field) computable ahead; [`ProbeResponder`] tests
//! that the kernel really does so.
//!
//! All `unsafe` is in `udp.rs`.

mod config;
mod counters;
mod edge;
mod error;
mod fault;
mod gate;
mod links;
mod paths;
mod ports;
mod selftest;
mod tap;
mod udp;

pub use config::{Fault, ROCE_PORT, UdpConfig, UdpPort};
pub use counters::{Counters, FaultCounts};
pub use edge::Udp;
pub use error::SoftError;
pub use ports::interface_address;
pub use selftest::{ID_UNREADABLE, PROBE_MIN, ProbeReport, ProbeResponder};
