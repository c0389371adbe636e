//! Any bytes into a handshake.
#![no_main]

#[path = "../bodies/bootstrap.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::check(bytes));
