//! RoCEv2 packets: headers, ICRC and captures. No copies, no `unsafe`, no I/O but through a caller's reader or writer.
#![forbid(unsafe_code)]

mod crc;
mod emit;
mod ends;
mod extensions;
mod header;
mod icrc;
mod opcode;
mod parse;
pub mod pcap;

pub use emit::EmitError;
use ends::Ends;
pub use extensions::Extensions;
pub use header::{Aeth, AtomicEth, Bth, Deth, Header, NakCode, Packet, Reth, Syndrome};
pub use icrc::Flow;
pub use opcode::Opcode;
pub use parse::ParseError;
