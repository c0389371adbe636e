//! A simulated fabric in virtual time: the same lanes as on sockets, with faults that a seed repeats.
//!
//! So far it joins hosts by one link per plane; switches and queues come with the simulator proper.
#![forbid(unsafe_code)]

mod fabric;
mod net;
pub mod uec;

pub use fabric::{Fabric, FabricPort, FabricStats, Hop, LinkSpec, LinkState, Shape, Transit};
pub use net::{Cut, Faults, Net, NetStats, SimIo, SimPort};
