//! The network plugin: one core, and a thin shim for each version of the interface.
//!
//! [`shim`] has what NCCL looks up and turns its calls into calls of the core: [`context`] for the process-wide part,
//! [`setup`] for connections, [`comm`] for messages. [`links`] joins processes: all communicators of two processes share one
//! session, in which each has a channel.

mod abi;
mod comm;
mod context;
mod core;
mod device;
mod handle;
mod links;
mod log;
mod memory;
mod settings;
mod setup;
mod shim;
