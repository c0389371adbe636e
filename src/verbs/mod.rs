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
mod cq;
mod device;
mod dl;
mod error;
mod events;
mod ext;
mod mr;
mod pd;
mod port;
mod qp;

pub use ah::{Ah, Route, flow_label};
pub use batch::{Local, SendOp, SendRequest};
pub use cq::{CompletionChannel, Cq, Wc};
pub use device::{Context, Device, DeviceLimits, devices};
pub use dl::{DEFAULT_LIBRARY, LIBRARY_VARIABLE, Library, signatures};
pub use error::VerbsError;
pub use events::{AsyncEvent, AsyncEvents};
pub use mr::Mr;
pub use pd::Pd;
pub use port::{Gid, GidKind, LinkLayer, PortAttributes, PortState, addr_of, gid_of};
pub use qp::{Datagram, Peer, Qp, QpSpec, QpState, Rejected, Retry, Transport};
