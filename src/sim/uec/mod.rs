//! A packet simulator to compare balancing policies with: hosts that speak a UEC-like transport over planes of
//! switches, described by the `.topo` and `.cm` files that such simulators share.
//!
//! A run is a function of its files, its options and a seed. There is no clock, thread or I/O in it.

mod faults;
mod generate;
mod ideal;
mod layout;
mod matrix;
mod topo;

pub use faults::{Change, ChangeError, Part};
pub use generate::Pattern;
pub use matrix::{FlowSpec, LinkFailure, Matrix, MatrixError, Start, Trigger, TriggerKind};
pub use topo::{Tier, Topology, TopologyError};
