//! How the library is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // NCCL closes its plugins with the last communicator and opens them again for the next. Code that was mapped once stays:
    // other libraries may hold our functions, and thread-local destructors run late.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libplanespray.so");
}
