//! `planespray sim --scenario`: the documented example runs, and a broken promise leaves what shows it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn sim(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_planespray")).arg("sim").args(args).current_dir(dir).output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The first block of TOML of docs/simulation.md.
fn documented() -> String {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/simulation.md")).expect("the page");
    let (_, block) = page.split_once("```toml\n").expect("an example");
    block.split_once("```").expect("its end").0.to_owned()
}

#[test]
fn the_documented_example_runs_and_repeats() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("example.toml"), documented()).expect("written");
    let run = |log| {
        let args = ["--scenario", "example.toml", "--seed", "7", "--log", log, "--pcap", "x.pcap", "--json", "-"];
        let out = sim(dir.path(), &args);
        assert!(out.status.success(), "{}", text(&out.stderr));
        let object: serde_json::Value = serde_json::from_slice(&out.stdout).expect("one object");
        (object, fs::read(dir.path().join(log)).expect("a log"))
    };
    let ((object, log), (_, again)) = (run("a.log"), run("b.log"));
    assert_eq!((&object["kept"], &object["seed"]), (&true.into(), &7.into()));
    assert!(object["messages"].as_u64() > Some(100) && object["lost"].as_u64() > Some(0), "{object}");
    assert!(log.len() > 1000 && log == again, "the same seed gives the same bytes");
    assert!(fs::metadata(dir.path().join("x.pcap")).expect("a capture").len() > 100_000);
}

#[test]
fn a_broken_promise_is_told_with_what_shows_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let impossible = documented().replace("slowest = \"200ms\"", "slowest = \"1us\"");
    fs::write(dir.path().join("hurry.toml"), impossible).expect("written");
    let out = sim(dir.path(), &["--scenario", "hurry.toml", "--seeds", "3-9"]);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("seed 3: P3 broken at "), "{said}");
    assert!(said.contains("planespray sim --scenario 'hurry.toml' --seed 3"), "{said}");
    for file in ["hurry-3.pcap", "hurry-3.log"] {
        assert!(fs::metadata(dir.path().join(file)).expect(file).len() > 1000);
    }
}

#[test]
fn builtins_run_by_number_and_by_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = sim(dir.path(), &["--scenario", "builtin:quick", "--seeds", "0-4"]);
    assert!(out.status.success() && text(&out.stdout).contains("5 seeds"), "{}", text(&out.stdout));
    let out = sim(dir.path(), &["--scenario", "builtin:quick", "--hours", "0.0003"]);
    assert!(out.status.success() && text(&out.stdout).contains("no promise broken"), "{}", text(&out.stdout));
}

#[test]
fn what_does_not_fit_is_a_usage_error() {
    let dir = tempfile::tempdir().expect("a directory");
    for args in [
        &["--scenario", "builtin:nothing"][..],
        &["--scenario", "missing.toml"],
        &["--scenario", "builtin:quick", "--policy", "mixed"],
        &["--seed", "1", "--policy", "mixed"],
        &[],
    ] {
        let out = sim(dir.path(), args);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {}", text(&out.stderr));
    }
}
