//! A software plane load balancer for RoCEv2.
//!
//! planespray sprays each message in chunks over many queue pairs, rails and planes, steered by what the paths
//! report, and puts it together again at the other end. This crate is the library; the `planespray` command
//! measures it.
//!
//! Two ends in one process, on two planes of the loopback interface:
//!
//! ```
//! use std::time::Duration;
//! use planespray::{Fabric, FabricConfig, JobKey, SendOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let key = JobKey::generate()?;
//! let config = |first: &str, second: &str| -> Result<FabricConfig, std::net::AddrParseError> {
//!     Ok(FabricConfig { planes: vec![first.parse()?, second.parse()?], key: Some(key.clone()), ..Default::default() })
//! };
//! let a = Fabric::open(&config("127.0.0.1", "127.0.0.2")?)?;
//! let b = Fabric::open(&config("127.0.0.3", "127.0.0.4")?)?;
//!
//! let listener = b.listen("127.0.0.1:0".parse()?)?;
//! let addr = listener.local_addr();
//! let (here, there) = std::thread::scope(|s| {
//!     let accepted = s.spawn(|| listener.accept(Duration::from_secs(10)));
//!     let connected = a.connect(addr, Duration::from_secs(10));
//!     (connected, accepted.join().expect("no panic"))
//! });
//! let (here, there) = (here?, there?);
//!
//! // The receiver lends a buffer, the sender sends one; both come back.
//! let mut receive = there.receive(0, b.alloc(1 << 20)?)?;
//! let mut message = a.alloc(1 << 20)?;
//! message.fill(7);
//! let mut send = here.send(SendOptions::default(), message, 1 << 20)?;
//!
//! let received = receive.wait(Duration::from_secs(10));
//! assert_eq!(received.result?, 1 << 20);
//! assert!(received.buffer.expect("it is over").iter().all(|&b| b == 7));
//! assert_eq!(send.wait(Duration::from_secs(10)).result?, 1 << 20);
//! # Ok(())
//! # }
//! ```
#![warn(missing_docs)]

pub mod api;
pub mod bootstrap;
pub mod class;
pub mod congestion;
pub mod embedded;
pub mod engine;
pub mod hist;
pub mod lanes;
pub mod mem;
pub mod path;
pub mod policy;
#[cfg(target_os = "linux")]
pub mod qualify;
pub mod roce;
pub mod seq;
pub mod sim;
pub mod soft;
pub mod spray;
pub mod time;
pub mod topology;
#[cfg(target_os = "linux")]
pub mod verbs;
pub mod wire;

pub use api::{
    Buffer, CloseReport, Connecting, Connection, Engine, Error, Exposed, ExposedMemory, Fabric, FabricConfig, Fault,
    Injected, LaneStats, Listener, Memory, Outcome, Pending, PlaneFault, PlaneStats, Posted, Refused, RemoteWindow,
    SendOptions, Stats, UdpPort, Wait, verbs_library,
};
pub use bootstrap::{BootstrapError, JobKey};
pub use class::{Class, Dscp};
pub use engine::LogEntry;
#[cfg(feature = "cli")]
pub use engine::simulation;
pub use lanes::WindowAccess;
#[cfg(target_os = "linux")]
pub use qualify::{Finding, Qualify, Verdict};
pub use spray::{Cause, Failure, Fate, Health, PeerReason, Subject, Transition};
