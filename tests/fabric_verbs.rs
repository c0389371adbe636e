//! A fabric over devices: the mock libibverbs and a tree of files that shows its devices. The variables that name both are
//! a process's own, so each test runs in a process of its own.

#[path = "support/mock.rs"]
mod mock;
#[path = "common/sysfs.rs"]
mod tree;

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use planespray::{
    Class, Connection, Engine, Error, Fabric, FabricConfig, JobKey, RemoteWindow, SendOptions, WindowAccess,
};
use tree::{FakePort, LOCAL, Tree, V1, V2};

const LONG: Duration = Duration::from_secs(20);

/// h0p0, h0p1, h1p0 and h1p1, with the addresses that the mock's have.
fn devices() -> Tree {
    let mut tree = Tree::new().with_verbs();
    for (name, netdev, addr) in [
        ("h0p0", "h0p0", "0000:0000:0000:0000:0000:ffff:0a00:0001"),
        ("h0p1", "h0p1", "0000:0000:0000:0000:0000:ffff:0a01:0001"),
        ("h1p0", "h1p0", "0000:0000:0000:0000:0000:ffff:0a00:0002"),
        ("h1p1", "h1p1", "0000:0000:0000:0000:0000:ffff:0a01:0002"),
    ] {
        let gids = vec![(LOCAL, V1, netdev), (LOCAL, V2, netdev), (addr, V1, netdev), (addr, V2, netdev)];
        let port = FakePort { mtu: 4200, speed: 10_000, gids, ..FakePort::roce(netdev, addr) };
        tree.device(name, "", None, &[port]);
    }
    tree
}

/// Runs an ignored test of this file where libibverbs is the mock.
fn over_the_mock(name: &str) {
    let tree = devices();
    let mut child = Command::new(std::env::current_exe().expect("this test"));
    child.args(["--exact", name, "--ignored", "--nocapture"]);
    child.env("PLANESPRAY_ROOT", tree.root()).env("PLANESPRAY_IBVERBS", mock::path());
    child.env_remove("NCCL_IB_HCA").env_remove("PLANESPRAY_HCA");
    let output = child.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
fn messages_and_windows() {
    over_the_mock("inside::messages_and_windows");
}

#[test]
fn a_queue_pair_that_miscounts() {
    over_the_mock("inside::a_queue_pair_that_miscounts");
}

#[test]
fn what_devices_cannot_do_is_said() {
    over_the_mock("inside::what_devices_cannot_do_is_said");
}

#[test]
fn without_the_library_it_says_so() {
    let tree = devices();
    let mut child = Command::new(std::env::current_exe().expect("this test"));
    child.args(["--exact", "inside::without_the_library_it_says_so", "--ignored", "--nocapture"]);
    child.env("PLANESPRAY_ROOT", tree.root()).env("PLANESPRAY_IBVERBS", "/nonexistent/libibverbs.so.1");
    let output = child.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_command_chooses_what_a_fabric_would() {
    let tree = devices();
    let mut command = Command::new(env!("CARGO_BIN_EXE_planespray"));
    command.args(["devices", "-d", "h1p", "--json", "-"]);
    command.env("PLANESPRAY_ROOT", tree.root()).env("PLANESPRAY_IBVERBS", mock::path());
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let v: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(v["engine"], "verbs:rxe", "{v}");
    assert_eq!((&v["ports"][0]["device"], &v["ports"][1]["device"]), (&"h1p0".into(), &"h1p1".into()));
}

mod inside {
    use super::*;

    fn open(device: &str, engine: Engine, key: &JobKey) -> Result<Fabric, Error> {
        let (device, key) = (Some(device.to_owned()), Some(key.clone()));
        Fabric::open(&FabricConfig { engine, device, key, ..FabricConfig::default() })
    }

    fn join(a: &Fabric, b: &Fabric) -> (Connection, Connection) {
        let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let listener = b.listen(any).expect("listens");
        let addr = listener.local_addr();
        std::thread::scope(|s| {
            let accepted = s.spawn(|| listener.accept(LONG));
            let connected = a.connect(addr, LONG).expect("connects");
            (connected, accepted.join().expect("no panic").expect("accepts"))
        })
    }

    fn pattern(seed: usize, len: usize) -> Vec<u8> {
        (0..len).map(|i| (i.wrapping_mul(31) ^ seed.wrapping_mul(7) ^ (i >> 8)) as u8).collect()
    }

    #[test]
    #[ignore = "needs the variables that over_the_mock sets"]
    fn messages_and_windows() {
        let key = JobKey::generate().expect("randomness");
        let a = open("h0p0,h0p1", Engine::Auto, &key).expect("devices are chosen");
        // In the order of the list it would be another plane: said by the list.
        let b = open("h1p1:1:0:1,h1p0:1:0:0", Engine::Verbs, &key).expect("devices are chosen");
        assert!(a.engine().starts_with("verbs") && b.engine() == a.engine(), "{}", a.engine());
        let ports: Vec<_> = b.ports().iter().map(|p| (p.plane, p.addr.to_string())).collect();
        assert_eq!(ports, [(0, "10.0.0.2".to_owned()), (1, "10.1.0.2".to_owned())]);
        let (ca, cb) = join(&a, &b);
        for (seed, len) in [0, 1, 4096, 65_536, 1 << 20, 3_000_000].into_iter().enumerate() {
            for (from, to) in [((&a, &ca), (&b, &cb)), ((&b, &cb), (&a, &ca))] {
                let mut receive = to.1.receive(0, to.0.alloc(len).expect("memory")).expect("room");
                let message = from.0.register(pattern(seed, len)).expect("a key");
                let mut send = from.1.send(SendOptions::default(), message, len).expect("room");
                let got = receive.wait(LONG);
                assert_eq!(got.result.expect("received"), len);
                assert!(got.buffer.expect("back")[..len] == pattern(seed, len)[..], "length {len}");
                assert_eq!(send.wait(LONG).result.expect("delivered"), len);
            }
        }
        let access = WindowAccess { write: true, read: true, atomic: false };
        let exposed = cb.expose(b.alloc(1 << 20).expect("memory"), access).expect("a window");
        let window = RemoteWindow::from_bytes(&exposed.token()).expect("a token");
        let message = a.register(pattern(9, 100_000)).expect("a key");
        ca.write(Class::Bulk, message, 100_000, &window, 4096).expect("room").wait(LONG).result.expect("written");
        let mut seen = vec![0; 100_000];
        exposed.read_at(4096, &mut seen).expect("inside");
        assert!(seen == pattern(9, 100_000));
        let stats = a.stats();
        assert_eq!(stats.planes.len(), 2);
        assert!(stats.planes.iter().all(|p| p.bytes > 0), "both planes carried something: {:?}", stats.planes);
        assert_eq!((stats.bad_icrc, stats.receive_drops), (0, 0));
        a.flush_capture().expect("nothing to flush");
        assert!(ca.close(LONG).clean);
    }

    /// Its lane is replaced and the message delivered; only if another lane's peer says the same it is the message.
    #[test]
    #[ignore = "needs the variables that over_the_mock sets"]
    fn a_queue_pair_that_miscounts() {
        let key = JobKey::generate().expect("randomness");
        let (a, b) = (open("h0p0,h0p1", Engine::Verbs, &key).unwrap(), open("h1p0,h1p1", Engine::Verbs, &key).unwrap());
        let (ca, cb) = join(&a, &b);
        let len = 1 << 20;
        let deliver = |seed| {
            let mut receive = cb.receive(0, b.alloc(len).expect("memory")).expect("room");
            let message = a.register(pattern(seed, len)).expect("a key");
            let sent = ca.send(SendOptions::default(), message, len).expect("room").wait(LONG).result;
            sent.map(|_| assert!(receive.wait(LONG).buffer.expect("back")[..len] == pattern(seed, len)[..]))
        };
        let mock = mock::Mock::of_process();
        for seed in 0..8 {
            mock.set("malformed", 1);
            deliver(seed).expect("delivered all the same");
        }
        let log = format!("{:?}", a.events(0).0);
        assert!(log.contains("RemoteInvalidRequest"), "{log}");
        mock.set("malformed", 100_000);
        let error = deliver(9).expect_err("every lane's peer says so").to_string();
        assert!(error.contains("malformed"), "{error}");
    }

    #[test]
    #[ignore = "needs the variables that over_the_mock sets"]
    fn what_devices_cannot_do_is_said() {
        let key = JobKey::generate().expect("randomness");
        let dir = tempfile::tempdir().expect("a directory");
        let config = FabricConfig {
            device: Some("h0p0".into()),
            key: Some(key.clone()),
            pcap: Some(dir.path().join("x.pcap")),
            ..FabricConfig::default()
        };
        let error = Fabric::open(&config).expect_err("no packets to capture").to_string();
        assert!(error.contains("a capture needs the embedded engine"), "{error}");
        // A name that is nothing: verbs say which devices there are, and so does the other way.
        let error = open("mlx5_7", Engine::Verbs, &key).expect_err("no such device").to_string();
        for part in ["\"mlx5_7\" matches no RDMA device", "h0p0, h0p1, h1p0, h1p1"] {
            assert!(error.contains(part), "{part:?} is missing in {error:?}");
        }
        let error = open("mlx5_7", Engine::Auto, &key).expect_err("no such interface either").to_string();
        assert!(error.contains("\"mlx5_7\" is no interface"), "{error}");
    }

    #[test]
    #[ignore = "needs the variables that its caller sets"]
    fn without_the_library_it_says_so() {
        let key = JobKey::generate().expect("randomness");
        let error = open("h0p0", Engine::Verbs, &key).expect_err("no library").to_string();
        for part in ["no usable device", "/nonexistent/libibverbs.so.1", "PLANESPRAY_IBVERBS"] {
            assert!(error.contains(part), "{part:?} is missing in {error:?}");
        }
        // The embedded engine would take the devices' addresses, which are not this machine's.
        let error = open("h0p0", Engine::Auto, &key).expect_err("no such address").to_string();
        assert!(error.contains("10.0.0.1") && error.contains("not an address of this host"), "{error}");
    }
}
