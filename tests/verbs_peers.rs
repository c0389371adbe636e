//! What a port makes of its peers and of its paths: other MTUs, other families, other link layers, and source ports.
#![cfg(target_os = "linux")]

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use planespray::class::{Class, Dscp};
use planespray::lanes::{Control, DeviceRefusal, Domain, LaneAddress, LaneError, LaneId, LaneSpec, PortId};
use planespray::verbs::{Budget, GidChoice, VerbsConfig, VerbsLanes, VerbsPort, flow_label, source_port};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

#[path = "support/mock.rs"]
mod mock;
#[path = "common/sysfs.rs"]
mod tree;

use mock::Mock;
use tree::{FakePort, TEN_0, Tree};

fn config(device: &str) -> VerbsConfig {
    let port = VerbsPort { device: device.into(), port: 1, gid: GidChoice::Any, rail: 0, plane: 0 };
    VerbsConfig { budget: Budget::new(64), ..VerbsConfig::new(vec![port], 7) }
}

fn lane(lanes: &mut VerbsLanes, entropy: u16) -> LaneId {
    let spec = LaneSpec {
        port: PortId(0),
        domain: Domain(1),
        class: Class::Bulk,
        dscp: Dscp::default(),
        send_depth: 8,
        receive_depth: 8,
        entropy,
    };
    lanes.create(&spec).expect("a lane")
}

/// What the library logs in this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(Level, String)>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().expect("no panic").push((*event.metadata().level(), text.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The lines that `f` logs with this in them.
fn logged(part: &str, f: impl FnOnce()) -> Vec<(Level, String)> {
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), f);
    let mut lines = std::mem::take(&mut *log.0.lock().expect("no panic"));
    lines.retain(|(_, line)| line.contains(part));
    lines
}

#[test]
fn the_smaller_mtu_counts_for_each_lane_and_is_said_once() {
    let mock = Mock::new();
    let mut ends = ["h0p0", "h1p0"].map(|d| VerbsLanes::open(&mock.library, config(d)).expect("opens"));
    let far = lane(&mut ends[1], 1);
    let peer = ends[1].address(far).expect("an address");
    let mut connect = |mtu| {
        let near = lane(&mut ends[0], 1);
        ends[0].connect(near, &LaneAddress { mtu, ..peer }).expect("connects");
        ends[0].lane_mtu(near)
    };
    let lines = logged("MTU", || {
        for mtu in [4096, 1024, 1024, 1024, 2048] {
            assert_eq!(connect(mtu), Some(mtu));
        }
    });
    let said: Vec<&str> = lines.iter().map(|l| l.1.as_str()).collect();
    assert_eq!(said.len(), 2, "{said:?}");
    for (line, mtu) in said.iter().zip(["1024", "2048"]) {
        assert!(line.contains(mtu) && line.contains("h0p0:1") && line.contains("10.0.0.2"), "{line}");
    }
}

#[test]
fn peers_that_cannot_be_reached_are_told_apart() {
    let mock = Mock::new();
    let mut ends = ["h0p0", "h1p0"].map(|d| VerbsLanes::open(&mock.library, config(d)).expect("opens"));
    let far = lane(&mut ends[1], 1);
    let good = ends[1].address(far).expect("an address");
    let near = lane(&mut ends[0], 1);
    let v6 = |addr: &str| addr.parse::<IpAddr>().expect("an address");
    let mut said = Vec::new();
    let mut refuses = |ends: &mut [VerbsLanes; 2], near, peer: LaneAddress, unreachable, parts: &[&str]| {
        let e = ends[0].connect(near, &peer).expect_err("refused");
        let LaneError::Device { refusal, message } = e else { panic!("{e:?}") };
        assert_eq!(refusal == DeviceRefusal::Unreachable, unreachable, "{message}");
        for part in parts {
            assert!(message.contains(part), "{part:?} is missing in {message}");
        }
        assert!(!said.contains(&message), "said before: {message}");
        said.push(message);
    };
    refuses(&mut ends, near, LaneAddress { mtu: 1500, ..good }, false, &["h0p0:1", "1500", "4096", "same version"]);
    let embedded = LaneAddress { udp_port: 50_000, ..good };
    refuses(&mut ends, near, embedded, false, &["UDP port 50000", "embedded", "`verbs` on both ends"]);
    let other = LaneAddress { addr: v6("fd00::2"), ..good };
    refuses(&mut ends, near, other, true, &["10.0.0.1", "fd00::2", "IPv4", "PLANESPRAY_ADDR_FAMILY"]);
    let nowhere = LaneAddress { addr: [10, 7, 7, 7].into(), ..good };
    refuses(&mut ends, near, nowhere, true, &["10.7.7.7", "to RTR", "Network is unreachable", "ip route get"]);

    // An end with an IPv6 address, and a peer whose GID is one of an InfiniBand port.
    let mut ours = config("h0p0");
    ours.ports[0].gid = GidChoice::Address(v6("fd00::1"));
    ends[0] = VerbsLanes::open(&mock.library, ours).expect("opens");
    let near = lane(&mut ends[0], 1);
    let infiniband = LaneAddress { addr: v6("fe80::2:c903:a1:b2c3"), ..good };
    let parts = ["h0p0:1 with fd00::1", "fe80::2:c903:a1:b2c3", "InfiniBand", "ibstat", "unreachable"];
    refuses(&mut ends, near, infiniband, true, &parts);
    let ethernet = LaneAddress { addr: v6("fe80::202:c9ff:fea1:b2c3"), ..good };
    refuses(&mut ends, near, ethernet, true, &["fe80::202:c9ff:fea1:b2c3", "to RTR", "ip route get"]);
    // The lane is still good for a peer that can be reached.
    ends[0].connect(near, &LaneAddress { addr: v6("fd00::2"), ..good }).expect("connects");
}

/// A device of driver mlx5, and the mock as its libmlx5.
fn mlx5(mock: &Mock) -> (Tree, VerbsConfig) {
    let mut tree = Tree::new().with_verbs();
    tree.device("h0p0", "mlx5_core", Some("0000:01:00.0"), &[FakePort::roce("h0p0", TEN_0)]);
    mock.sysfs(&tree.root().join("sys/class/infiniband"));
    let config = VerbsConfig { mlx5: Some(mock.copy()), ..config("h0p0") };
    (tree, config)
}

#[test]
fn lanes_of_mlx5_get_their_source_ports() {
    let mock = Mock::new();
    let (_tree, config) = mlx5(&mock);
    let mut lanes = VerbsLanes::open(&mock.library, config).expect("opens");
    assert_eq!(lanes.caps().name, "verbs:mlx5");
    for (n, entropy) in [0, 5, 0x2abc, 0x3fff].into_iter().enumerate() {
        let made = lane(&mut lanes, entropy);
        let qpn = lanes.qpn(made).expect("a queue pair");
        assert_eq!(mock.source_port(qpn), (0, n as u32), "not before it is connected");
        let own = lanes.address(made).expect("an address");
        lanes.connect(made, &own).expect("connects");
        assert_eq!(mock.source_port(qpn), (0xc000 | entropy, n as u32 + 1));
        // The flow label says the same.
        assert_eq!((mock.flow_label(qpn), source_port(entropy)), (flow_label(entropy), 0xc000 | entropy));
    }
}

#[test]
fn where_source_ports_cannot_be_set_the_flow_label_counts() {
    let mock = Mock::new();
    let (_tree, config) = mlx5(&mock);
    mock.set("sport", libc::EOPNOTSUPP.into());
    let mut lanes = VerbsLanes::open(&mock.library, config.clone()).expect("opens");
    let connect = |lanes: &mut VerbsLanes, entropy| {
        let made = lane(lanes, entropy);
        let own = lanes.address(made).expect("an address");
        lanes.connect(made, &own).expect("connects all the same");
        let qpn = lanes.qpn(made).expect("a queue pair");
        (mock.source_port(qpn), mock.flow_label(qpn))
    };
    // Refused: tried once, said once.
    let lines = logged("source port", || {
        for entropy in [3, 4, 5] {
            assert_eq!(connect(&mut lanes, entropy), ((0, 1), flow_label(entropy)));
        }
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].0 == Level::WARN && lines[0].1.contains("h0p0") && lines[0].1.contains("flow label"), "{lines:?}");
    assert!(lines[0].1.contains("mlx5dv_modify_qp_udp_sport"), "{lines:?}");
    mock.set("sport", -1);

    // No such library, or one without the function.
    for path in ["/nowhere/libmlx5.so.1", "libc.so.6"] {
        let without = VerbsConfig { mlx5: Some(path.into()), ..config.clone() };
        let lines = logged("source ports", || {
            let mut lanes = VerbsLanes::open(&mock.library, without).expect("opens");
            assert_eq!(connect(&mut lanes, 9), ((0, 1), flow_label(9)), "nothing was asked for");
            assert_eq!(connect(&mut lanes, 10), ((0, 1), flow_label(10)));
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].1.contains(path) && lines[0].1.contains("PLANESPRAY_MLX5"), "{lines:?}");
    }

    // Other drivers are not asked.
    let other = Mock::new();
    let mut lanes =
        VerbsLanes::open(&other.library, VerbsConfig { mlx5: Some(other.copy()), ..config }).expect("opens");
    let made = lane(&mut lanes, 6);
    let own = lanes.address(made).expect("an address");
    lanes.connect(made, &own).expect("connects");
    assert_eq!(other.source_port(lanes.qpn(made).expect("a queue pair")), (0, 0));
}
