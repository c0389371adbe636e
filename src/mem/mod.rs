//! Registered memory: regions that packets are read from and placed into, and the keys that open them.
//!
//! A [`Region`] may be written by a peer at any time while a key of it is live, so it is never seen as
//! `&mut [u8]`: bytes go in and out by copies. [`Registry`] holds the keys.

mod copy;
mod page;
mod region;
mod registry;

pub use page::PageBuf;
pub use region::{MemError, Region};
pub use registry::{Access, AccessError, Key, Pd, Registry, Slice};
