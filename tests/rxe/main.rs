//! The embedded engine against queue pairs of a real rdma_rxe, each side in both roles, over IPv4 and IPv6.
//!
//! Needs what `ci/rxe-vm` sets up, so it is no part of `cargo test`: `ci/rxe-stage interop` builds and runs it. Our
//! sockets are in namespace `emb`, because rdma_rxe owns UDP port 4791 in the first one.

#[path = "../support/end.rs"]
mod end;
mod errors;
mod faults;
mod icrc;
mod operations;
mod rig;
mod rxe;
