//! The public face: open a [`Fabric`], connect, and move owned buffers.

mod backend;
mod buffer;
mod config;
mod connecting;
mod connection;
mod error;
mod establish;
mod fabric;
mod health;
mod memory;
mod pending;
mod probe;
mod select;
mod stats;
mod window;

pub use buffer::Buffer;
pub use config::{Engine, FabricConfig, Fault, UdpPort, Wait};
pub use connecting::Connecting;
pub use connection::{CloseReport, Connection, Refused, SendOptions};
pub use error::Error;
pub use fabric::{Fabric, Listener};
pub use health::PlaneFault;
pub use memory::{ExposedMemory, Memory, Posted};
pub use pending::{Outcome, Pending};
pub use select::verbs_library;
pub use stats::{Injected, LaneStats, PlaneStats, Stats};
pub use window::{Exposed, RemoteWindow};
