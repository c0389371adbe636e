//! The public face: open a [`Fabric`], connect, and move owned buffers.

mod buffer;
mod config;
mod connection;
mod error;
mod establish;
mod fabric;
mod pending;
mod probe;
mod stats;
mod window;

pub use buffer::Buffer;
pub use config::{FabricConfig, Fault, UdpPort, Wait};
pub use connection::{CloseReport, Connection, Refused, SendOptions};
pub use error::Error;
pub use fabric::{Fabric, Listener};
pub use pending::{Outcome, Pending};
pub use stats::{Injected, LaneStats, PlaneStats, Stats};
pub use window::{Exposed, RemoteWindow};
