//! The C faces of planespray: a network plugin for NCCL and those who take its plugins, and a C ABI for everyone else.
//!
//! Exported are `ncclNetPlugin_v6` to `ncclNetPlugin_v12` and functions that begin with `spray_`, and nothing else.

mod nccl;

/// Version of the C ABI that this library speaks; it grows with every incompatible change.
///
/// 0 means that nothing but this call is promised yet.
#[unsafe(no_mangle)]
pub extern "C" fn spray_abi_version() -> u32 {
    0
}
