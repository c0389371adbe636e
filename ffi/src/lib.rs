//! The C faces of planespray: a network plugin for NCCL and those who take its plugins, and a C ABI for everyone else.
//!
//! Exported are `ncclNetPlugin_v6` to `ncclNetPlugin_v12` and functions that begin with `spray_`, and nothing else.

// What C sees is public; Rust sees nothing of it.
#![allow(unreachable_pub)]

mod capi;
mod nccl;
