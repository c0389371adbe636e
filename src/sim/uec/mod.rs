//! A packet simulator to compare balancing policies with: hosts that speak a UEC-like transport over planes of
//! switches, described by the `.topo` and `.cm` files that such simulators share.
//!
//! A run is a function of its files, its options and a seed. There is no clock, thread or I/O in it.

mod clock;
mod fabric;
mod faults;
mod flow;
mod generate;
mod ideal;
mod layout;
mod matrix;
mod outcome;
mod packet;
mod records;
mod run;
#[cfg(test)]
mod tests;
mod topo;
mod window;

pub use faults::{Change, ChangeError, Part};
pub use generate::Pattern;
pub use matrix::{FlowSpec, LinkFailure, Matrix, MatrixError, Start, Trigger, TriggerKind};
pub use outcome::{Flowed, Outcome, Times};
pub use run::{Scenario, ScenarioError, run};
pub use topo::{Tier, Topology, TopologyError};
