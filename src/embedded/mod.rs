//! The embedded engine: the `roce` machine behind the seam of [`crate::lanes`], over anything that moves packets.
#![forbid(unsafe_code)]

mod io;

pub use io::{PacketIo, PathId, RxMeta};
