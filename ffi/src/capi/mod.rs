//! The C ABI, for authors of other collective plugins and for everyone who has no Rust.
//!
//! Each function checks its pointers, survives any fault of ours, returns a negative status and leaves a text for
//! [`spray_last_error`](status::spray_last_error). `docs/c-abi.md` has the rules on threads and ownership.

mod connection;
mod fabric;
mod memory;
mod operation;
mod status;
