//! A software plane load balancer for RoCEv2: it sprays each message in chunks over many queue pairs,
//! rails and planes.
#![warn(missing_docs)]

pub mod api;
pub mod bootstrap;
pub mod class;
pub mod embedded;
pub mod engine;
pub mod lanes;
pub mod mem;
pub mod roce;
pub mod seq;
pub mod sim;
pub mod soft;
pub mod spray;
pub mod time;
pub mod wire;
