//! A libibverbs without kernel and devices: its symbols, answered by planespray's own queue pairs in memory.
//!
//! Four devices `h0p0`, `h0p1`, `h1p0` and `h1p1` stand for two hosts on two planes; devices of one plane reach each
//! other. What goes wrong on real devices is asked for by the `mock_*` functions in [`control`]. All state belongs to
//! the loaded library: a test that needs a world of its own loads a copy under another name.
#![allow(clippy::missing_safety_doc)]

mod context;
mod control;
mod cq;
mod empty;
mod mr;
mod qp;
mod world;
mod wr;
