//! A software plane load balancer for RoCEv2: it sprays each message in chunks over many queue pairs,
//! rails and planes.
#![warn(missing_docs)]

pub mod class;
pub mod congestion;
pub mod lanes;
pub mod mem;
pub mod path;
pub mod roce;
pub mod seq;
pub mod spray;
pub mod time;
pub mod wire;
