//! Lanes over libibverbs on the kernel's rdma_rxe: the conformance suite, and planes that fail.
//!
//! Needs what `ci/rxe-vm` sets up, so it is no part of `cargo test`: `ci/rxe-stage lanes` builds and runs it.
// Both ends are told apart by a number throughout.
#![allow(clippy::needless_range_loop)]

#[macro_use]
#[path = "../conformance/cases/mod.rs"]
mod cases;
mod faults;
#[allow(dead_code)] // not all of it
#[path = "../conformance/rig.rs"]
mod rig;
mod rxe;
mod speed;
