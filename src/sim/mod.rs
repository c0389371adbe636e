//! A simulated fabric in virtual time: the same lanes as on sockets, with faults that a seed repeats.
//!
//! `net` joins hosts by one link per plane; switches and queues are in [`uec`], which has an endpoint of its own.
#![forbid(unsafe_code)]

mod net;
pub mod uec;

pub use net::{Cut, Faults, Net, NetStats, SimIo, SimPort};
