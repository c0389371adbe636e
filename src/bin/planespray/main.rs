//! The `planespray` command.

fn main() {
    eprintln!("planespray {}", env!("CARGO_PKG_VERSION"));
}
