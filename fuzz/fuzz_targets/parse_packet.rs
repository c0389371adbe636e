//! Any bytes as a packet, a frame and a capture.
#![no_main]

#[path = "../bodies/parse_packet.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::check(bytes));
