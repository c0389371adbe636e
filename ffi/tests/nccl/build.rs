//! The library that the tests open.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Names a library that is built already.
pub const LIBRARY: &str = "PLANESPRAY_TEST_LIBRARY";

/// The library, built as this test was: cargo builds no C library for a test.
pub fn library() -> PathBuf {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        if let Some(path) = std::env::var_os(LIBRARY) {
            return Some(path.into());
        }
        let here = std::env::current_exe().expect("a path");
        let profile = here.ancestors().nth(2).expect("target/PROFILE/deps/test");
        let name = profile.file_name().and_then(|n| n.to_str()).expect("UTF-8");
        let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--quiet", "--package", "planespray-ffi", "--lib", "--profile"])
            .arg(if name == "debug" { "dev" } else { name })
            .arg("--target-dir")
            .arg(profile.parent().expect("target"))
            .status()
            .expect("cargo runs");
        status.success().then(|| profile.join("libplanespray.so"))
    };
    BUILT.get_or_init(build).clone().expect("the library builds")
}
