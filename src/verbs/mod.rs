//! Queue pairs of real devices: libibverbs, loaded when asked for and never linked.
//!
//! [`Library`] is the loaded library, [`Context`] an open device, and each verbs object has a type of its own
//! ([`Pd`], [`Mr`], [`Cq`], [`Qp`], [`Ah`]) that keeps alive whatever the object needs and ends it when dropped.
//! Memory is lent to a device by [`Mr`], which holds the region until the device has let go of it.
//! [`VerbsLanes`] makes lanes of all that.

#[allow(
    missing_docs,
    unreachable_pub,
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
#[doc(hidden)]
pub mod sys;

mod ah;
mod batch;
mod budget;
#[cfg(feature = "rdma-sys")]
mod check;
mod clock;
mod config;
mod counters;
mod cq;
mod device;
mod dl;
mod driver;
mod error;
mod events;
mod ext;
mod lane;
mod lanes;
mod memory;
mod mlx5;
mod mr;
mod pd;
mod peer;
mod port;
mod qp;
mod status;

pub use ah::{Ah, Route, flow_label, source_port};
pub use batch::{Local, SendOp, SendRequest};
pub use budget::{Budget, DEFAULT_BUDGET, Permit};
pub use config::{GidChoice, VerbsConfig, VerbsPort};
pub use counters::{Counters, Moves, Reading, Signal};
pub use cq::{CompletionChannel, Cq, Wc};
pub use device::{Context, Device, DeviceLimits, devices};
pub use dl::{DEFAULT_LIBRARY, LIBRARY_VARIABLE, Library, signatures};
pub use driver::driver_of;
pub use error::VerbsError;
pub use events::{AsyncEvent, AsyncEvents};
pub use lanes::VerbsLanes;
pub use mlx5::{DEFAULT_MLX5, MLX5_VARIABLE, Mlx5};
pub use mr::Mr;
pub use pd::Pd;
pub use port::{Gid, GidKind, LinkLayer, PortAttributes, PortState, addr_of, gid_of};
pub use qp::{Datagram, Ece, Peer, Qp, QpSpec, QpState, Rejected, Retry, Transport};
pub use status::status_of;
