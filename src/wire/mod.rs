//! RoCEv2 packets: headers, ICRC and captures. No copies, no `unsafe`, no I/O.
#![forbid(unsafe_code)]

mod header;
mod opcode;

pub use header::{Aeth, AtomicEth, Bth, Deth, Header, NakCode, Packet, Reth, Syndrome};
pub use opcode::Opcode;
