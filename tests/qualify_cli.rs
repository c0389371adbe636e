//! `planespray qualify` over the mock libibverbs, and a tree of files that shows its devices as mlx5.
#![cfg(target_os = "linux")]

#[path = "support/mock.rs"]
mod mock;
#[path = "common/sysfs.rs"]
mod tree;

use std::process::{Command, Output};

use serde_json::Value;
use tree::{FakePort, LOCAL, Tree, V1, V2};

const HOST_0: &str = "0000:0000:0000:0000:0000:ffff:0a00:0001";
const HOST_1: &str = "0000:0000:0000:0000:0000:ffff:0a00:0002";

/// h0p0 and h1p0, which reach each other, with a NIC below each.
fn nics() -> Tree {
    let mut tree = Tree::new().with_verbs();
    for (name, pci, addr) in [("h0p0", "0000:01:00.0", HOST_0), ("h1p0", "0000:02:00.0", HOST_1)] {
        let gids = vec![(LOCAL, V1, name), (LOCAL, V2, name), (addr, V1, name), (addr, V2, name)];
        tree.device(name, "mlx5_core", Some(pci), &[FakePort { gids, ..FakePort::roce(name, addr) }]);
        let counters = format!("sys/devices/pci0000:00/{pci}/infiniband/{name}/ports/1/hw_counters");
        tree.write(&format!("{counters}/np_cnp_sent"), "7");
        tree.write(&format!("{counters}/local_ack_timeout_err"), "0");
    }
    tree
}

fn command(tree: &Tree, what: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_planespray"));
    command.arg(what).args(args).env_clear();
    command.env("PLANESPRAY_ROOT", tree.root()).env("PLANESPRAY_IBVERBS", mock::path());
    command.env("PLANESPRAY_MLX5", mock::path()).env("XDG_STATE_HOME", tree.path("state"));
    command
}

fn qualify(tree: &Tree, args: &[&str], faults: &str) -> Output {
    let mut command = command(tree, "qualify", args);
    command.args(["--rounds", "4", "-D", "0.05"]);
    if !faults.is_empty() {
        command.env("MOCK_VERBS", faults);
    }
    command.output().expect("it runs")
}

fn finding<'a>(port: &'a Value, subject: &str) -> &'a Value {
    let all = port["findings"].as_array().expect("findings");
    all.iter().find(|f| f["subject"] == subject).unwrap_or_else(|| panic!("no {subject:?} in {port:#}"))
}

fn text(f: &Value) -> String {
    format!("{} {}", f["seen"].as_str().expect("what was seen"), f["means"].as_str().expect("what it means"))
}

#[track_caller]
fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
}

fn error(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

#[test]
fn a_device_that_behaves_is_proven_and_devices_says_so() {
    let tree = nics();
    let output = qualify(&tree, &["-d", "h0p0", "--peer-device", "h1p0", "--json", "-"], "");
    assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), error(&output));
    let v: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&v["proven"], v["ports"].as_array().map(Vec::len)), (&true.into(), Some(1)));
    let port = &v["ports"][0];
    assert_eq!((&port["measured"]["device"], &port["peer"]["device"]), (&"h0p0".into(), &"h1p0".into()));
    for (subject, verdict) in [
        ("late writes", "passed"),
        ("queue-pair calls", "passed"),
        ("flow label", "passed"),
        ("rate by lanes", "passed"),
        ("source port", "seen"),
        ("counters", "seen"),
        ("marks on datagrams", "seen"),
        ("order of placement", "seen"),
        ("enhanced connection establishment", "seen"),
        ("bonding", "seen"),
        ("adaptive routing", "unknown"),
        ("plane balancing in hardware", "unknown"),
    ] {
        assert_eq!(finding(port, subject)["verdict"], verdict, "{subject}");
    }
    let late = finding(port, "late writes");
    assert_eq!((&late["needed"], &late["figures"]["rounds"]), (&true.into(), &4.0.into()));
    says(&text(late), &["4 queue pairs", "4 of them while the peer wrote", "safe to use again"]);
    says(&text(finding(port, "source port")), &["libmlx5 set 4 source ports", "0xc000"]);
    says(
        &text(finding(port, "counters")),
        &["at most every 10 ms", "driver mlx5", "cnp_sent", "with some firmware: ack_timeout"],
    );
    says(
        &text(finding(port, "marks on datagrams")),
        &["sent with traffic class 0x2a", "arrived with 0x00", "marks mean nothing"],
    );
    says(&text(finding(port, "enhanced connection establishment")), &["not offered"]);
    says(&text(finding(port, "adaptive routing")), &["cannot be read", "mlxreg -d 0000:01:00.0", "one data lane"]);
    says(&text(finding(port, "plane balancing in hardware")), &["cannot be read", "one lane for each plane"]);
    let calls = &finding(port, "queue-pair calls")["figures"];
    for call in ["create", "init", "rtr", "rts", "err", "destroy"] {
        let of = |what: &str| calls[format!("{call}_{what}_us")].as_f64().expect("a time");
        assert!(of("median") > 0.0 && of("max") >= of("median"), "{call}: {calls}");
    }
    let rates = &finding(port, "rate by lanes")["figures"];
    for lanes in [1, 2, 4, 8, 16] {
        assert!(rates[format!("lanes_{lanes}_gbps")].as_f64().expect("a rate") > 0.0, "{rates}");
    }

    let record = std::fs::read_to_string(tree.path("state/planespray/qualified.toml")).expect("kept");
    says(&record, &["[[nic]]", "device = \"h0p0\"", "firmware = \"28.39.1002\"", "passed = true"]);
    assert_eq!(v["record"].as_str(), tree.path("state/planespray/qualified.toml").to_str());
    let output = command(&tree, "devices", &[]).output().expect("it runs");
    let shown = String::from_utf8(output.stdout).expect("UTF-8");
    says(&shown, &["proven by `planespray qualify`", "unproven on this NIC"]);
}

/// The fault that the whole command is for.
#[test]
fn a_write_that_lands_after_a_destroy_is_found() {
    let tree = nics();
    // It was proven once, with an older driver say.
    let proven = "[[nic]]\nprovider = \"mlx5\"\ndevice = \"h0p0\"\nfirmware = \"28.39.1002\"\npassed = true";
    tree.write("state/planespray/qualified.toml", proven);
    for delay in [0, 3] {
        let output = qualify(&tree, &["-d", "h0p0", "--json", "-"], &format!("late_write={delay}"));
        assert_eq!(output.status.code(), Some(1), "{}", error(&output));
        let v: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let late = finding(&v["ports"][0], "late writes");
        assert_eq!((&v["proven"], &late["verdict"]), (&false.into(), &"failed".into()), "{late:#}");
        says(&text(late), &["memory changed after the destroy had returned", "first byte 131072", "not safe to reuse"]);
        assert!(late["figures"]["late_rounds"].as_f64() >= Some(1.0), "{late:#}");
    }
    let record = std::fs::read_to_string(tree.path("state/planespray/qualified.toml")).expect("kept");
    assert!(record.contains("passed = false") && !record.contains("passed = true"), "{record}");
    let output = command(&tree, "devices", &[]).output().expect("it runs");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("proven by"), "no longer");
}

#[test]
fn what_goes_wrong_is_a_finding_and_the_rest_is_still_asked() {
    let tree = nics();
    for (faults, subject, verdict, part) in [
        ("sport=95", "source port", "seen", "offered by libmlx5, but: h0p0: mlx5dv_modify_qp_udp_sport failed"),
        ("create=12", "queue-pair calls", "failed", "ibv_create_qp failed: Cannot allocate memory"),
        ("cut=1", "rate by lanes", "failed", "ended with RetryExceeded"),
    ] {
        let output = qualify(&tree, &["-d", "h0p0", "--json", "-"], faults);
        let v: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let f = finding(&v["ports"][0], subject);
        assert_eq!(f["verdict"], verdict, "{faults}: {f:#}");
        says(&text(f), &[part]);
        assert_eq!(output.status.code(), Some(i32::from(verdict == "failed")), "{faults}");
        assert!(v["ports"][0]["findings"].as_array().expect("findings").len() >= 11, "{faults}");
    }
}

#[test]
fn the_text_says_what_was_seen_and_what_it_means() {
    let tree = nics();
    let output = qualify(&tree, &["-d", "h0p0"], "");
    let shown = String::from_utf8(output.stdout.clone()).expect("UTF-8");
    assert!(output.status.success(), "{shown}{}", error(&output));
    let parts = [
        "h0p0 port 1 (mlx5, firmware 28.39.1002), looped to itself",
        "ok    late writes:",
        "?     adaptive routing: cannot be read",
        "h0p0 port 1: proven",
        "qualified.toml",
    ];
    says(&shown, &parts);
}

#[test]
fn what_cannot_be_measured_is_said_with_the_next_step() {
    let tree = nics();
    let refused = |args: &[&str], faults: &str, code: i32, parts: &[&str]| {
        let output = qualify(&tree, args, faults);
        let said = error(&output);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        says(&said, parts);
    };
    refused(&["-d", "mlx5_9"], "", 1, &["no port to measure", "\"mlx5_9\" matches no RDMA device", "h0p0, h1p0"]);
    refused(&["-d", "h0p0", "--peer-device", "mlx5_9"], "", 1, &["\"mlx5_9\" matches no RDMA device"]);
    refused(&["-d", "h0p0", "--peer-device", "h"], "", 2, &["--peer-device h is 2 ports", "h0p0:1, h1p0:1"]);
    refused(&["-d", "h0p0:x"], "", 2, &["port \"x\"", "--help"]);
    refused(&["-d", "h0p0", "-D", "0"], "", 2, &["--seconds"]);
    refused(&["-d", "h0p0"], "open=13", 1, &["Permission denied", "--device for a container"]);
    refused(&["-d", "h0p0"], "list=38", 1, &["kernel offers no verbs", "modprobe ib_uverbs"]);
    tree.write("state/planespray/qualified.toml", "nic = 3");
    let output = qualify(&tree, &["-d", "h0p0"], "");
    assert_eq!(output.status.code(), Some(1));
    says(&String::from_utf8_lossy(&output.stdout), &["h0p0 port 1: proven", "Not kept"]);
    says(&error(&output), &["qualified.toml is not understood", "move it away"]);

    // A machine with nothing but the embedded engine.
    let tree = Tree::new();
    let output =
        command(&tree, "qualify", &[]).env("PLANESPRAY_IBVERBS", "/nonexistent/lib.so").output().expect("runs");
    assert_eq!(output.status.code(), Some(1));
    says(&error(&output), &["no port to measure", "no RDMA NIC", "libibverbs cannot be loaded", "PLANESPRAY_IBVERBS"]);
    // With the library, and no device.
    let tree = Tree::new().with_verbs();
    let output = command(&tree, "qualify", &[]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    says(&error(&output), &["no RDMA NIC", "rdma link add"]);
}
