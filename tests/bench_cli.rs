//! `planespray bench` as its users run it: options, results, exit codes, and that nothing is left behind.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn bench(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_planespray"));
    command.arg("bench").args(args).stdin(Stdio::null());
    command.env_remove("PLANESPRAY_JOB_KEY").env_remove("PLANESPRAY_JOB_KEY_FILE");
    command
}

/// Runs to the end, which must come within `limit`.
fn finish(mut child: Child, limit: Duration) -> Output {
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let out = std::thread::spawn(move || {
        let mut text = Vec::new();
        out.read_to_end(&mut text).map(|_| text)
    });
    let err = std::thread::spawn(move || {
        let mut text = Vec::new();
        err.read_to_end(&mut text).map(|_| text)
    });
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("bench was not done within {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Output { status, stdout: out.join().unwrap().unwrap(), stderr: err.join().unwrap().unwrap() }
}

fn run(args: &[&str]) -> Output {
    let child = bench(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    finish(child, Duration::from_secs(120))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Result lines of a run that must succeed.
fn results(args: &[&str]) -> Vec<Value> {
    let mut all = args.to_vec();
    all.extend(["--json", "-"]);
    let output = run(&all);
    assert!(output.status.success(), "{args:?}: {}\n{}", output.status, text(&output.stderr));
    assert!(text(&output.stderr).contains("#bytes"), "the table goes to standard error");
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

fn clean(r: &Value) {
    for field in ["wrong", "lost", "dup"] {
        assert_eq!(r[field], 0, "{field}: {r}");
    }
}

#[test]
fn bad_options_are_one_line_and_exit_2() {
    for (args, says) in [
        (&["--nonsense"][..], "--nonsense"),
        (&["-s", "64K", "-a"], "-s and -a"),
        (&["-s", "12Q"], "12Q"),
        (&["-s", "2G"], "out of range"),
        (&["--op", "fly"], "fly"),
        (&["-m", "1500"], "MTU"),
        (&["--server", "127.0.0.1"], "contradict"),
        (&["--bind", "192.0.2.1,192.0.2.2"], "192.0.2.1 is not an address of this machine"),
        (&["--fault", "loss=2"], "share"),
        (&["--planes", "9"], "9"),
        (&["host.invalid", "--insecure"], "host.invalid"),
        (&["--port", "0"], "--port"),
        (&["--pcap", "-"], "file"),
    ] {
        let output = run(args);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {err}");
        assert_eq!(err.trim_end().lines().count(), 1, "{args:?}: {err}");
        assert!(err.starts_with("planespray: ") && err.contains(says), "{args:?}: {err}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn help_names_perftests_options() {
    let output = run(&["--help"]);
    assert!(output.status.success());
    let help = text(&output.stdout);
    for option in ["-s, --size", "-n, --iters", "-D, --duration", "-q, --qp", "-p,", "-m, --mtu", "-d, --device", "-a,"]
    {
        assert!(help.contains(option), "{option}: {help}");
    }
    for option in ["--report_gbits", "--tclass", "--bind", "--planes", "--lat", "--compare", "--fault", "--inject"] {
        assert!(help.contains(option), "{option}: {help}");
    }
    assert!(!help.contains("--child"));
}

#[test]
fn no_key_no_connection() {
    let output = run(&["127.0.0.1", "-p", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("--key-file"), "{}", text(&output.stderr));
}

#[test]
fn nobody_listens() {
    let started = Instant::now();
    let output = run(&["127.0.0.1", "-p", "1", "--insecure"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(started.elapsed() < Duration::from_secs(15));
    let err = text(&output.stderr);
    let last = err.lines().last().unwrap_or_default();
    assert!(
        last.starts_with("planespray: ") && last.contains("127.0.0.1:1") && last.contains("nobody listens"),
        "{err}"
    );
}

#[test]
fn a_bootstrap_port_in_use_is_said() {
    let taken = std::net::TcpListener::bind("127.0.9.4:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = run(&["--server", "--bind", "127.0.9.4", "-p", &port, "--insecure"]);
    assert_eq!(output.status.code(), Some(1));
    let err = text(&output.stderr);
    assert!(err.contains(&format!("127.0.9.4:{port}")) && err.contains("another process listens"), "{err}");
}

#[test]
fn a_capture_that_cannot_be_written_fails_the_run() {
    let output = run(&["-n", "20", "--pcap", "/dev/full"]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.lines().last().unwrap_or_default().contains("No space left") && !err.contains("tshark"), "{err}");
}

#[test]
fn an_interrupted_server_ends_at_once_and_so_does_its_client() {
    let child = bench(&["-D", "60"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let servers = children(child.id());
    let started = Instant::now();
    assert!(Command::new("kill").args(["-INT", &servers[0].to_string()]).status().unwrap().success());
    let output = finish(child, Duration::from_secs(20));
    assert_eq!(output.status.code(), Some(1));
    assert!(started.elapsed() < Duration::from_secs(15));
    assert!(text(&output.stderr).contains("planespray: "));
}

#[test]
fn every_operation_arrives_whole() {
    for op in ["write", "send", "read"] {
        let lines = results(&["--op", op, "-s", "20000", "-n", "300", "--planes", "2"]);
        assert_eq!(lines.len(), 1);
        let r = &lines[0];
        clean(r);
        assert_eq!((r["op"].as_str(), r["size"].as_u64()), (Some(op), Some(20000)));
        assert_eq!((r["iterations"].as_u64(), r["engine"].as_str()), (Some(300), Some("embedded")));
        assert_eq!((r["planes"].as_u64(), r["lanes"].as_u64()), (Some(2), Some(8)));
        assert!(r["bw_gbps"].as_f64().unwrap() > 0.0 && r["msg_rate_mpps"].as_f64().unwrap() > 0.0);
        assert!(r["cpu_ns_per_byte"].as_f64().unwrap() > 0.0);
        assert!(r["lat_us"].is_null() && r["peer_gbps"].is_null());
        assert_eq!(r["per_plane"].as_array().unwrap().len(), 2);
    }
}

#[test]
fn both_planes_carry() {
    let r = &results(&["-s", "256K", "-n", "400", "--planes", "2"])[0];
    let planes = r["per_plane"].as_array().unwrap();
    let share: f64 = planes.iter().map(|p| p["share"].as_f64().unwrap()).sum();
    assert!((share - 1.0).abs() < 1e-6, "{r}");
    let bytes: u64 = planes.iter().map(|p| p["bytes"].as_u64().unwrap()).sum();
    assert!(bytes >= 400 << 18, "{r}");
    for p in planes {
        assert!(p["share"].as_f64().unwrap() > 0.05, "{r}");
    }
}

#[test]
fn latency_is_half_a_round_trip() {
    for op in ["write", "send", "read"] {
        let r = &results(&["--lat", "--op", op, "-s", "8", "-n", "500", "--planes", "1"])[0];
        clean(r);
        let lat = &r["lat_us"];
        let (p50, p99, p999) =
            (lat["p50"].as_f64().unwrap(), lat["p99"].as_f64().unwrap(), lat["p999"].as_f64().unwrap());
        assert!(p50 > 0.5 && p50 <= p99 && p99 <= p999, "{r}");
        assert!(r["bw_gbps"].is_null());
    }
}

#[test]
fn tcp_is_measured_beside() {
    let r = &results(&["-s", "64K", "-D", "0.3", "--compare", "tcp", "--planes", "1"])[0];
    clean(r);
    assert!(r["peer_gbps"].as_f64().unwrap() > 0.0, "{r}");
    let r = &results(&["--lat", "-s", "8", "-n", "300", "--compare", "tcp", "--planes", "1"])[0];
    assert!(r["peer_lat_us"].as_f64().unwrap() > 0.0, "{r}");
}

#[test]
fn all_sizes_give_a_line_each() {
    let lines = results(&["-a", "-n", "8", "--planes", "1"]);
    let sizes: Vec<u64> = lines.iter().map(|r| r["size"].as_u64().unwrap()).collect();
    assert_eq!(sizes, (1..=23).map(|p| 1 << p).collect::<Vec<u64>>());
    lines.iter().for_each(clean);
}

#[test]
fn a_planted_wrong_byte_is_found() {
    for op in ["write", "send", "read"] {
        let output = run(&["--op", op, "-s", "4096", "-n", "100", "--inject", "flip", "--json", "-"]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        let r: Value = serde_json::from_str(text(&output.stdout).trim()).unwrap();
        assert_eq!(r["wrong"], 1, "{r}");
    }
}

#[test]
fn faults_are_injected_and_mended() {
    let r = &results(&["-s", "64K", "-D", "1", "--fault", "loss=1%,dup=1%,reorder=1%,seed=3"])[0];
    clean(r);
    for kind in ["loss", "dup", "reorder"] {
        assert!(r["injected"][kind].as_u64().unwrap() > 0, "{r}");
    }
    assert!(r["retransmits"].as_u64().unwrap() > 0, "{r}");
}

/// An interface is a device of the embedded engine.
#[test]
fn an_interface_by_name() {
    let mut server = bench(&["--server", "-p", "0", "-d", "lo", "--insecure"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(server.stderr.take().unwrap());
    let mut seen = String::new();
    let port = loop {
        let from = seen.len();
        assert!(stderr.read_line(&mut seen).unwrap() > 0, "the server did not say its port: {seen}");
        if let Some(rest) = seen[from..].split("client at 127.0.0.1:").nth(1) {
            break rest.split(';').next().unwrap().trim().to_owned();
        }
    };
    assert!(seen.contains("engine embedded") && seen.contains("not taken: "), "{seen}");
    let client =
        ["127.0.0.1", "-p", &port, "--bind", "127.0.9.8", "--insecure", "-n", "100", "--no-probe", "--json", "-"];
    let output = run(&client);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((record["engine"].as_str(), record["planes"].as_u64()), (Some("embedded"), Some(1)));
    drop(stderr);
    assert!(server.wait().unwrap().success());
}

#[test]
fn client_and_server_with_a_key_file() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("job.key");
    std::fs::write(&key, "0123456789abcdef".repeat(4)).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let key = key.to_str().unwrap();
    let mut server = bench(&["--server", "-p", "0", "--bind", "127.0.9.2", "--key-file", key])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    let port = loop {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "the server did not say its port");
        if let Some(at) = line.split("127.0.9.2:").nth(1) {
            break at.split(';').next().unwrap().trim().to_owned();
        }
    };
    let r = &results(&["127.0.9.2", "-p", &port, "--bind", "127.0.9.1", "--key-file", key, "-n", "200"])[0];
    clean(r);
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "the server did not end after its client");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(server.wait().unwrap().success());
}

#[test]
fn ctrl_c_gives_partial_results_and_leaves_nothing() {
    let child = bench(&["-D", "60", "--json", "-"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    std::thread::sleep(Duration::from_secs(2));
    let servers = children(pid);
    assert_eq!(servers.len(), 1, "one server process");
    let kill = Command::new("kill").args(["-INT", &pid.to_string()]).status().unwrap();
    assert!(kill.success());
    let output = finish(child, Duration::from_secs(20));
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    let r: Value = serde_json::from_str(text(&output.stdout).trim()).unwrap();
    clean(&r);
    assert!(r["iterations"].as_u64().unwrap() > 0, "{r}");
    assert!(gone(servers[0]));
}

#[test]
fn a_killed_parent_takes_its_server_with_it() {
    let mut child = bench(&["-D", "60"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let servers = children(child.id());
    assert_eq!(servers.len(), 1, "one server process");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(gone(servers[0]));
}

#[test]
fn a_killed_server_ends_the_run() {
    let child = bench(&["-D", "60"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let servers = children(child.id());
    let kill = Command::new("kill").args(["-KILL", &servers[0].to_string()]).status().unwrap();
    assert!(kill.success());
    let output = finish(child, Duration::from_secs(60));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).lines().last().unwrap_or_default().starts_with("planespray: "));
}

/// Processes whose parent is `pid`.
fn children(pid: u32) -> Vec<u32> {
    let parent_of = |p: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{p}/stat")).ok()?;
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
    all.filter(|&p: &u32| parent_of(p) == Some(pid)).collect()
}

/// True once the process is gone, or a zombie that its new parent has yet to reap.
fn gone(pid: u32) -> bool {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            Err(_) => return true,
            Ok(stat) if stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z') => return true,
            Ok(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    false
}
