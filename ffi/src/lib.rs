//! The C faces of planespray. So far: the version of the C ABI.

/// Version of the C ABI that this library speaks; it grows with every incompatible change.
///
/// 0 means that nothing but this call is promised yet.
#[unsafe(no_mangle)]
pub extern "C" fn spray_abi_version() -> u32 {
    0
}
