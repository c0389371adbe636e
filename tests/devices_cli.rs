//! `planespray devices` over fake trees.

#[path = "common/sysfs.rs"]
mod tree;

use std::process::{Command, Output};

use serde_json::Value;
use tree::{FakePort, LOCAL, TEN_0, TEN_1, Tree, V1, V2};

fn run(tree: &Tree, args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_planespray"));
    command.arg("devices").arg("--sysfs").arg(tree.root()).args(args).env_clear();
    command.envs(env.iter().copied());
    command.output().unwrap()
}

fn text(tree: &Tree, args: &[&str], env: &[(&str, &str)]) -> String {
    let output = run(tree, args, env);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(tree: &Tree, args: &[&str], env: &[(&str, &str)]) -> Value {
    let args: Vec<&str> = ["--json", "-"].into_iter().chain(args.iter().copied()).collect();
    serde_json::from_str(&text(tree, &args, env)).unwrap()
}

fn two_ports() -> Tree {
    let mut tree = Tree::new().with_verbs();
    let ports = [FakePort::roce("ens1f0np0", TEN_0), FakePort::roce("ens1f1np1", TEN_1)];
    tree.device("mlx5_0", "mlx5_core", Some("0000:01:00.0"), &ports);
    tree
}

#[test]
fn a_machine_without_rdma() {
    let tree = Tree::new();
    let out = text(&tree, &[], &[]);
    for part in
        ["no RDMA device", "Engine: embedded", "UDP sockets", "hardware: no RDMA NIC", "libibverbs cannot be loaded"]
    {
        assert!(out.contains(part), "{part:?} is missing in {out}");
    }
    let v = json(&tree, &[], &[]);
    assert_eq!((v["engine"].as_str(), v["devices"].as_array().map(Vec::len)), (Some("embedded"), Some(0)));
    assert!(v["not_taken"].as_array().unwrap().len() >= 2);
}

#[test]
fn everything_of_a_nic() {
    let tree = two_ports();
    tree.write("sys/devices/pci0000:00/0000:01:00.0/infiniband/mlx5_0/ports/2/state", "1: DOWN");
    let v = json(&tree, &[], &[]);
    assert_eq!((v["engine"].as_str(), v["hca"].is_null()), (Some("verbs:mlx5"), true));
    let d = &v["devices"][0];
    assert_eq!(
        (d["device"].as_str(), d["driver"].as_str(), d["numa"].as_u64()),
        (Some("mlx5_0"), Some("mlx5_core"), Some(0))
    );
    assert_eq!((d["pci"].as_str(), d["qualification"].as_str()), (Some("0000:01:00.0"), Some("unproven on this NIC")));
    let p = &d["ports"][0];
    for (field, value) in [("port", 1), ("speed_mbps", 100_000), ("mtu", 4096), ("rail", 0), ("plane", 0)] {
        assert_eq!(p[field].as_u64(), Some(value), "{field}");
    }
    assert_eq!(
        (p["state"].as_str(), p["netdev"].as_str(), p["chosen"].as_bool()),
        (Some("ACTIVE"), Some("ens1f0np0"), Some(true))
    );
    let gids = p["gids"].as_array().unwrap();
    assert_eq!(gids.len(), 4);
    assert_eq!((gids[3]["type"].as_str(), gids[3]["address"].as_str()), (Some("RoCE v2"), Some("10.0.0.1")));
    assert_eq!((gids[3]["chosen"].as_bool(), gids[3]["netdev"].as_str()), (Some(true), Some("ens1f0np0")));
    assert_eq!(gids[1]["usable"].as_bool(), Some(false));
    assert!(gids[1]["why"].as_str().unwrap().contains("link-local"));
    assert!(gids[2]["why"].as_str().unwrap().contains("not RoCE v2"));
    let q = &d["ports"][1];
    assert_eq!((q["usable"].as_bool(), q["plane"].as_u64()), (Some(false), Some(1)));
    assert!(q["why"].as_str().unwrap().contains("DOWN"));

    let out = text(&tree, &[], &[]);
    for part in [
        "mlx5_0  mlx5_core  PCI 0000:01:00.0  NUMA node 0",
        "unproven on this NIC",
        "port 1  ACTIVE (LinkUp)  Ethernet  100 Gb/s  ens1f0np0  MTU 4096  rail 0  plane 0  chosen",
        "GID 3  RoCE v2  10.0.0.1  ens1f0np0  the one to use",
        "not usable: the port is DOWN",
        "Engine: verbs:mlx5 over mlx5_0 port 1",
    ] {
        assert!(out.contains(part), "{part:?} is missing in {out}");
    }
}

#[test]
fn the_list_and_its_variable() {
    let tree = two_ports();
    let v = json(&tree, &[], &[("NCCL_IB_HCA", "=mlx5_0:2:3:4")]);
    assert_eq!((v["hca"]["by"].as_str(), v["hca"]["list"].as_str()), (Some("NCCL_IB_HCA"), Some("=mlx5_0:2:3:4")));
    let p = &v["ports"][0];
    assert_eq!((v["ports"].as_array().unwrap().len(), p["port"].as_u64()), (1, Some(2)));
    assert_eq!((p["rail"].as_u64(), p["plane"].as_u64()), (Some(3), Some(4)));
    assert_eq!(v["devices"][0]["ports"][1]["place_by"].as_str(), Some("list"));

    let out = text(&tree, &[], &[("NCCL_IB_HCA", "mlx5_0:2"), ("PLANESPRAY_HCA", "mlx5_0:1")]);
    assert!(out.contains("Devices by PLANESPRAY_HCA: mlx5_0:1 (NCCL_IB_HCA is set too and does not count)"), "{out}");
    let out = text(&tree, &["-d", "mlx5_9"], &[("PLANESPRAY_HCA", "mlx5_0")]);
    assert!(out.contains("\"mlx5_9\" matches no RDMA device; there are mlx5_0 (2 ports)"), "{out}");
    assert!(out.contains("Engine: embedded"), "{out}");

    let output = run(&tree, &[], &[("NCCL_IB_HCA", "mlx5_0:x")]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    assert!(error.contains("NCCL_IB_HCA: entry 1 \"mlx5_0:x\": port \"x\""), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn files_that_say_more() {
    let tree = two_ports();
    tree.write("topology.toml", "[[port]]\ndevice = \"mlx5_0\"\nport = 2\nplane = 7\nspeed_gbps = 25.0");
    tree.write(
        "state/planespray/qualified.toml",
        "[[nic]]\nprovider = \"mlx5\"\ndevice = \"mlx5_0\"\nfirmware = \"28.39.1002\"\npassed = true",
    );
    let (file, state) = (tree.path("topology.toml"), tree.path("state"));
    let env = [("PLANESPRAY_TOPOLOGY", file.to_str().unwrap()), ("XDG_STATE_HOME", state.to_str().unwrap())];
    let v = json(&tree, &[], &env);
    let p = &v["ports"][1];
    assert_eq!(
        (p["plane"].as_u64(), p["speed_mbps"].as_u64(), p["weight"].as_u64()),
        (Some(7), Some(25_000), Some(250))
    );
    assert_eq!(v["devices"][0]["qualification"].as_str(), Some("proven by `planespray qualify`"));
    tree.write("topology.toml", "[[port]]\ndevice = 3");
    let output = run(&tree, &[], &env);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && error.contains("topology.toml") && error.contains("line 2"), "{error}");
}

#[test]
fn a_pod_without_its_interface() {
    let mut tree = Tree::new().with_verbs();
    let gids = vec![(LOCAL, V1, "EINVAL"), (LOCAL, V2, "EINVAL"), (TEN_0, V1, "EINVAL"), (TEN_0, V2, "EINVAL")];
    let port = FakePort { gids, ..FakePort::roce("", TEN_0) };
    tree.device("mlx5_0", "mlx5_core", Some("0000:01:00.0"), &[port]);
    let out = text(&tree, &[], &[]);
    for part in ["Engine: embedded", "no usable RoCEv2 GID", "another network namespace", "hostNetwork", "MTU unknown"]
    {
        assert!(out.contains(part), "{part:?} is missing in {out}");
    }
}

#[test]
fn json_goes_to_a_file_and_a_bad_path_is_said() {
    let tree = two_ports();
    let path = tree.path("out.json");
    let output = run(&tree, &["--json", path.to_str().unwrap()], &[]);
    assert!(output.status.success() && output.stdout.is_empty());
    let v: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(v["engine"].as_str(), Some("verbs:mlx5"));
    let output = run(&tree, &["--json", "/nonexistent/x"], &[]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && error.contains("/nonexistent/x"), "{error}");
}

/// What this very machine has: whatever it is, there is an answer.
#[test]
fn the_real_machine() {
    let output = Command::new(env!("CARGO_BIN_EXE_planespray")).args(["devices", "--json", "-"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let v: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(v["engine"].as_str().is_some_and(|e| e == "embedded" || e.starts_with("verbs:")), "{v}");
}
