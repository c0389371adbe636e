//! RoCEv2 packets: headers, ICRC and captures. No copies, no `unsafe`, no I/O.
#![forbid(unsafe_code)]

mod crc;
mod emit;
mod extensions;
mod header;
mod icrc;
mod opcode;
mod parse;

pub use emit::EmitError;
pub use extensions::Extensions;
pub use header::{Aeth, AtomicEth, Bth, Deth, Header, NakCode, Packet, Reth, Syndrome};
pub use icrc::Flow;
pub use opcode::Opcode;
pub use parse::ParseError;
