//! The plugin, driven as NCCL drives it: opened by `dlopen`, through the table of every version.
//!
//! Each scenario runs in processes of its own, since a plugin is one per process.

// A test is a crate of its own: nothing in it is public.
#![allow(unreachable_pub)]

#[allow(dead_code)]
#[path = "../../src/nccl/abi.rs"]
mod abi;
mod build;
mod elf;
mod net;
mod play;
mod scenarios;

use std::path::Path;
use std::process::{Child, Command, Stdio};

use build::library;
use net::VERSIONS;

const SCENARIO: &str = "PLANESPRAY_TEST_SCENARIO";
const ARGUMENTS: &str = "PLANESPRAY_TEST_ARGUMENTS";

/// A process of this test that plays one scenario on addresses of its own.
fn start(scenario: &str, arguments: &[&str], planes: &str) -> Child {
    Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(SCENARIO, scenario)
        .env(ARGUMENTS, arguments.join(" "))
        .env(build::LIBRARY, library())
        .env("PLANESPRAY_PLANES", planes)
        .env_remove("PLANESPRAY_JOB_KEY")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a process")
}

fn finish(what: &str, child: Child) -> String {
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}\n{text}", output.status);
    text
}

/// Plays a scenario in one process.
fn alone(scenario: &str, arguments: &[&str]) -> String {
    finish(scenario, start(scenario, arguments, "127.0.0.1,127.0.0.2"))
}

#[test]
fn child() {
    let Ok(scenario) = std::env::var(SCENARIO) else { return };
    let arguments = std::env::var(ARGUMENTS).unwrap_or_default();
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    scenarios::play(&scenario, &arguments);
}

#[test]
fn only_the_promised_symbols_are_exported_and_few_libraries_needed() {
    let symbols = elf::symbols(&std::fs::read(library()).expect("readable"));
    let mut tables: Vec<String> = VERSIONS.map(|v| format!("ncclNetPlugin_v{v}")).collect();
    tables.sort();
    let (spray, other): (Vec<String>, Vec<String>) =
        symbols.defined.into_iter().partition(|name| name.starts_with("spray_"));
    assert!(spray.contains(&"spray_abi_version".to_owned()));
    assert_eq!(other, tables);
    for name in &symbols.needed {
        let known = ["libc.so", "libm.so", "libgcc_s.so", "ld-linux", "libpthread.so", "libdl.so", "librt.so"];
        assert!(known.iter().any(|k| name.starts_with(k)), "{name} is needed");
    }
    for name in &symbols.undefined {
        let foreign = ["ibv_", "rdma_", "mlx5", "cuda", "cu", "nccl"].iter().any(|p| name.starts_with(p));
        assert!(!foreign, "{name} is undefined");
    }
    assert_ne!(symbols.flags & 8, 0, "the library stays mapped (nodelete)");
}

#[test]
fn every_version_moves_every_size_on_one_thread() {
    for version in VERSIONS {
        alone("loopback", &[&version.to_string()]);
    }
}

#[test]
fn the_plugin_is_found_by_the_name_that_nccl_makes() {
    let dir = tempfile::tempdir().expect("a directory");
    let link = dir.path().join("libnccl-net-planespray.so");
    std::os::unix::fs::symlink(library(), &link).expect("a link");
    alone("by-name", &[link.to_str().expect("UTF-8")]);
}

#[test]
fn versions_mix_in_one_process() {
    alone("mixed", &[]);
}

#[test]
fn the_plugin_is_unloaded_and_loaded_again() {
    alone("reload", &["12"]);
    alone("reload", &["11"]);
    alone("reload", &["8"]);
}

#[test]
fn wrong_use_is_answered_with_a_code() {
    alone("misuse", &["12"]);
    alone("misuse", &["6"]);
}

#[test]
fn null_logger_profiler_and_context_are_survived() {
    alone("nulls", &[]);
}

#[test]
fn requests_are_bounded_and_refused_by_null() {
    alone("depth", &["12"]);
}

#[test]
fn a_send_longer_than_its_receive_fails_at_both_ends() {
    alone("too-long", &["12"]);
}

#[test]
fn closing_with_requests_in_flight_frees_the_memory_and_spares_the_others() {
    alone("abort", &["12"]);
}

#[test]
fn setup_that_is_abandoned_is_freed_by_finalize() {
    alone("abandon", &["12"]);
}

#[test]
fn a_hundred_communicators_take_one_thread() {
    alone("hundred", &["12"]);
}

#[test]
fn a_listener_is_accepted_several_times() {
    alone("accept-again", &["10"]);
}

#[test]
fn a_process_may_fork_before_init() {
    alone("fork", &["12"]);
}

/// Two processes, each with its addresses.
fn two(scenario: &str, arguments: &[&str]) -> (Child, Child, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let board = Path::to_str(dir.path()).expect("UTF-8").to_owned();
    let with =
        |rank: &str| -> Vec<String> { [rank, &board].iter().chain(arguments).map(|s| (*s).to_owned()).collect() };
    let begin = |rank: &str, planes: &str| {
        let arguments = with(rank);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        start(scenario, &arguments, planes)
    };
    (begin("0", "127.0.0.1,127.0.0.2"), begin("1", "127.0.0.3,127.0.0.4"), dir)
}

#[test]
fn two_processes_send_both_ways_on_several_threads() {
    for versions in [["12", "12"], ["8", "12"]] {
        let (a, b, _dir) = two("pair", &versions);
        finish("rank 0", a);
        finish("rank 1", b);
    }
}

#[test]
fn both_ends_connect_at_the_same_time() {
    let (a, b, _dir) = two("cross", &["11"]);
    finish("rank 0", a);
    finish("rank 1", b);
}

#[test]
fn a_peer_that_dies_is_a_remote_error_soon() {
    let (a, mut b, _dir) = two("death", &["12"]);
    let text = finish("rank 0", a);
    assert!(text.contains("is gone"), "{text}");
    assert!(!b.wait().expect("it ends").success());
}

#[test]
fn a_job_key_at_one_end_only_is_said() {
    let dir = tempfile::tempdir().expect("a directory");
    let board = dir.path().to_str().expect("UTF-8").to_owned();
    let a = start("key", &["0", &board], "127.0.0.1");
    let b = start("key", &["1", &board], "127.0.0.3");
    finish("rank 0", a);
    finish("rank 1", b);
}
