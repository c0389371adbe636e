//! A simulated fabric in virtual time: the same lanes as on sockets, with faults that a seed repeats.
//!
//! `net` joins hosts by planes: one link each, or switches with paths and queues. [`uec`] compares balancing policies,
//! with an endpoint and switches of its own.
#![forbid(unsafe_code)]

mod faults;
mod net;
mod stray;
mod switch;
pub mod uec;

pub use faults::{Cut, Faults, NetStats};
pub use net::{Fate, Net, SimIo, SimPort};
pub use switch::{Part, Switches};
