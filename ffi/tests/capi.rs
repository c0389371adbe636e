//! The C ABI as C sees it: the header, the exported symbols, and a program that the system's compiler builds.

// A test is a crate of its own: nothing in it is public.
#![allow(unreachable_pub)]

#[path = "nccl/build.rs"]
mod build;
#[path = "nccl/elf.rs"]
mod elf;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

const HEADER: &str = "include/planespray.h";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Says why a check is left out; in CI none may be.
fn skip(why: &str) {
    println!("skipped, because {why}");
    assert!(std::env::var_os("CI").is_none(), "skipped in CI, because {why}");
}

fn is_there(tool: &str) -> bool {
    Command::new(tool).arg("--version").output().is_ok_and(|o| o.status.success())
}

#[test]
fn the_header_names_what_the_library_exports() {
    let header = std::fs::read_to_string(root().join(HEADER)).expect("the header");
    let named: BTreeSet<String> = header
        .split(|c: char| !(c.is_ascii_alphanumeric() || "_(".contains(c)))
        .filter_map(|word| word.split_once('(').map(|(name, _)| name))
        .filter(|name| name.starts_with("spray_"))
        .map(str::to_owned)
        .collect();
    let symbols = elf::symbols(&std::fs::read(build::library()).expect("readable"));
    assert!(!symbols.needed.is_empty() && !symbols.undefined.is_empty() && symbols.flags != 0);
    let exported: BTreeSet<String> = symbols.defined.into_iter().filter(|n| n.starts_with("spray_")).collect();
    assert!(exported.len() > 20);
    assert_eq!(named, exported);
}

#[test]
fn the_header_is_what_cbindgen_makes() {
    let tool = std::env::var("CBINDGEN").unwrap_or_else(|_| "cbindgen".into());
    if !is_there(&tool) {
        return skip("there is no cbindgen (cargo install cbindgen --version 0.29.4)");
    }
    let output = Command::new(tool)
        .args(["--quiet", "--config", "cbindgen.toml", "--crate", "planespray-ffi", "."])
        .current_dir(root())
        .output()
        .expect("cbindgen runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let made = String::from_utf8(output.stdout).expect("UTF-8");
    let kept = std::fs::read_to_string(root().join(HEADER)).expect("the header");
    assert!(
        made == kept,
        "the header is old: cbindgen --config cbindgen.toml --crate planespray-ffi -o {HEADER} . in ffi/"
    );
}

#[test]
fn a_c_program_builds_without_warnings_and_works() {
    if !is_there("cc") {
        return skip("there is no C compiler (cc)");
    }
    let library = build::library();
    let place = library.parent().expect("a directory");
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("pingpong");
    let output = Command::new("cc")
        .args(["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Iinclude", "-o"])
        .arg(&program)
        .arg("tests/c/pingpong.c")
        .arg(format!("-L{}", place.display()))
        .arg("-lplanespray")
        .current_dir(root())
        .output()
        .expect("cc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = Command::new(&program)
        .env("LD_LIBRARY_PATH", place)
        .env_remove("PLANESPRAY_JOB_KEY")
        .output()
        .expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("all right"), "{}: {text}", output.status);
}
