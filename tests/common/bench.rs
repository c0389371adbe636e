//! `planespray bench` for tests of what it leaves behind. A test file says `#[path = "common/bench.rs"] mod bench;`.

use std::process::{Command, Stdio};

use serde_json::Value;

/// Runs it with `--json -` and returns its one result; it must succeed, and nothing be wrong, lost or duplicated.
pub(crate) fn result(args: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_planespray"));
    command.arg("bench").args(args).args(["--json", "-"]).stdin(Stdio::null());
    command.env_remove("PLANESPRAY_JOB_KEY").env_remove("PLANESPRAY_JOB_KEY_FILE");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let result: Value = serde_json::from_str(text.trim()).expect(&text);
    for field in ["wrong", "lost", "dup"] {
        assert_eq!(result[field], 0, "{field}: {result}");
    }
    result
}
