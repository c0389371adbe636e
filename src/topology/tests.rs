//! Scans of fake trees, and what is chosen from them.

use super::tree::{FakePort, LOCAL, TEN_0, TEN_1, Tree, V1, V2};
use super::*;

struct Facts {
    devices: Vec<Device>,
    host: Host,
}

fn facts(tree: &Tree) -> Facts {
    let devices = scan(tree.root()).unwrap();
    let host = Host::read(tree.root(), Library::look(tree.root()), &devices);
    Facts { devices, host }
}

fn auto(tree: &Tree) -> Choice {
    let f = facts(tree);
    choose(&f.devices, &f.host, &Request { memory: 64 << 20, ..Request::default() }).unwrap()
}

fn listed(tree: &Tree, list: &str) -> Choice {
    let (f, list) = (facts(tree), list.parse().unwrap());
    choose(&f.devices, &f.host, &Request { list: Some(&list), ..Request::default() }).unwrap()
}

/// One line for each reason.
fn lines(choice: &Choice) -> String {
    let lines: Vec<String> = choice.reasons.iter().map(ToString::to_string).collect();
    assert!(lines.iter().all(|l| !l.contains('\n')), "{lines:?}");
    lines.join("\n")
}

fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in {text:?}");
    }
}

fn mlx5(tree: &mut Tree) {
    let ports = [FakePort::roce("ens1f0np0", TEN_0), FakePort::roce("ens1f1np1", TEN_1)];
    tree.device("mlx5_0", "mlx5_core", Some("0000:01:00.0"), &ports);
}

fn rxe(tree: &mut Tree, name: &str, netdev: &'static str, addr: &'static str) {
    // The kernel invents the rate, and a veth has no PCI device.
    let port = FakePort { rate: "2.5 Gb/sec (1X SDR)", speed: 10_000, mtu: 4200, ..FakePort::roce(netdev, addr) };
    tree.device(name, "", None, &[port]);
}

#[test]
fn a_nic_with_two_ports() {
    let mut tree = Tree::new().with_verbs();
    mlx5(&mut tree);
    let f = facts(&tree);
    let d = &f.devices[0];
    assert_eq!(
        (d.name.as_str(), d.provider(), d.numa, d.uverbs.as_deref()),
        ("mlx5_0", "mlx5", Some(0), Some("uverbs0"))
    );
    assert_eq!((d.pci.unwrap().to_string().as_str(), d.firmware.as_deref()), ("0000:01:00.0", Some("28.39.1002")));
    assert!(d.notes.is_empty(), "{:?}", d.notes);
    let p = &d.ports[1];
    assert_eq!(
        (p.number, &p.state, p.rate, p.speed(), p.mtu()),
        (2, &PortState::Active, Some(100_000), Some(100_000), Some(4096))
    );
    assert_eq!(p.netdev.as_ref().map(|n| (n.name.as_str(), n.here)), Some(("ens1f1np1", true)));
    assert_eq!(p.gids.len(), 4, "the empty entry is left out");
    assert_eq!(p.gids[3].addr, "10.0.1.1".parse::<std::net::IpAddr>().unwrap());

    let choice = auto(&tree);
    assert_eq!(choice.engine.to_string(), "verbs:mlx5");
    let ports: Vec<_> =
        choice.ports.iter().map(|p| (p.port, p.gid_index, p.place.rail, p.place.plane, p.weight)).collect();
    assert_eq!(ports, [(1, 3, 0, 0, 1000), (2, 3, 0, 1, 1000)]);
    assert_eq!(lines(&choice), "", "nothing comes before hardware");
}

#[test]
fn soft_roce_where_no_hardware_is() {
    let mut tree = Tree::new().with_verbs();
    rxe(&mut tree, "h1p1", "h1p1", TEN_1);
    rxe(&mut tree, "h1p0", "h1p0", TEN_0);
    let f = facts(&tree);
    assert_eq!((f.devices[0].name.as_str(), f.devices[0].driver.as_deref()), ("h1p0", Some("rdma_rxe")));
    assert_eq!(f.devices[0].ports[0].speed(), Some(10_000), "the interface's, not the invented one");
    let choice = auto(&tree);
    assert_eq!(choice.engine.to_string(), "verbs:rxe");
    let places: Vec<_> = choice.ports.iter().map(|p| (p.device.as_str(), p.place.rail, p.place.plane)).collect();
    assert_eq!(places, [("h1p0", 0, 0), ("h1p1", 0, 1)]);
    assert_says(&lines(&choice), &["hardware: no RDMA NIC", "lspci"]);
    // In the order of the list.
    let choice = listed(&tree, "h1p1,h1p0");
    let places: Vec<_> = choice.ports.iter().map(|p| (p.device.as_str(), p.place.plane)).collect();
    assert_eq!(places, [("h1p1", 0), ("h1p0", 1)]);
    // A subset.
    let choice = listed(&tree, "=h1p1");
    assert_eq!(choice.ports.len(), 1);
    assert_says(&format!("{:?}", choice.reports), &["NotListed"]);
    // Beside hardware it is not needed.
    mlx5(&mut tree);
    let choice = auto(&tree);
    assert_eq!((choice.engine.to_string().as_str(), choice.ports.len()), ("verbs:mlx5", 2));
    assert_says(&lines(&choice), &["rdma_rxe: not needed: hardware is taken"]);
}

#[test]
fn a_bond_shows_its_members_and_its_speed() {
    let mut tree = Tree::new().with_verbs();
    let port = FakePort { speed: 200_000, ..FakePort::roce("bond0", TEN_0) };
    tree.device("mlx5_bond_0", "mlx5_core", Some("0000:01:00.0"), &[port]);
    tree.write("sys/class/net/bond0/bonding/slaves", "ens1f0np0 ens1f1np1");
    let f = facts(&tree);
    let netdev = f.devices[0].ports[0].netdev.as_ref().unwrap();
    assert_eq!((netdev.name.as_str(), netdev.bond.len()), ("bond0", 2));
    assert_eq!(auto(&tree).ports[0].speed, Some(200_000));
}

#[test]
fn links_that_are_no_roce() {
    let mut tree = Tree::new().with_verbs();
    let ib = FakePort { link_layer: "InfiniBand", gids: vec![(LOCAL, V1, "EINVAL")], ..FakePort::roce("", "") };
    tree.device("mlx5_0", "mlx5_core", Some("0000:01:00.0"), &[ib]);
    tree.device("cxgb4_0", "cxgb4", Some("0000:02:00.0"), &[FakePort::roce("eth9", TEN_0)]);
    tree.write("sys/devices/pci0000:00/0000:02:00.0/infiniband/cxgb4_0/node_type", "4: RNIC");
    tree.device("usnic_0", "usnic", Some("0000:03:00.0"), &[FakePort::roce("eth8", TEN_0)]);
    tree.write("sys/devices/pci0000:00/0000:03:00.0/infiniband/usnic_0/node_type", "6: usNIC UDP");
    let choice = auto(&tree);
    assert_eq!((choice.engine, choice.ports.len()), (Engine::Embedded, 0));
    let choice = auto(&tree);
    let text = lines(&choice);
    assert_says(&text, &["mlx5_0 port 1: its link is InfiniBand", "cxgb4_0 port 1: it is an iWARP", "usNIC UDP"]);
    assert!(!text.contains("hardware: no RDMA NIC"), "there are NICs: {text}");
    assert_says(&text, &["rdma_rxe: no soft-RoCE device", "rdma link add"]);
}

#[test]
fn missing_files_and_garbage() {
    let mut tree = Tree::new().with_verbs();
    mlx5(&mut tree);
    let dir = "sys/devices/pci0000:00/0000:01:00.0/infiniband/mlx5_0";
    for file in ["node_type", "fw_ver", "ports/1/state", "ports/1/rate", "ports/1/phys_state"] {
        std::fs::remove_file(tree.path(&format!("{dir}/{file}"))).unwrap();
    }
    tree.write(&format!("{dir}/ports/2/state"), "\u{1}garbage");
    tree.write(&format!("{dir}/ports/2/link_layer"), "Carrier Pigeon");
    tree.write(&format!("{dir}/ports/2/gids/1"), "not a gid");
    tree.write(&format!("{dir}/ports/nonsense/state"), "4: ACTIVE");
    tree.write("sys/class/net/ens1f0np0/mtu", "-5");
    tree.write("sys/class/net/ens1f0np0/speed", "fast");
    std::fs::write(tree.path(&format!("{dir}/ports/2/rate")), [0xff, 0xfe, 0]).unwrap();
    let f = facts(&tree);
    let d = &f.devices[0];
    assert_eq!((d.ports.len(), &d.node, &d.firmware), (2, &Node::Other("unknown".into()), &None));
    assert_eq!((d.ports[0].speed(), d.ports[0].mtu(), d.ports[1].gids.len()), (None, None, 3));
    let notes = d.notes.join("\n");
    assert_says(
        &notes,
        &["node_type", "ports/1/state could not be read", "ports/2/state holds", "Carrier Pigeon", "ports/2/rate"],
    );
    assert_eq!(auto(&tree).engine, Engine::Embedded);
    assert_says(&lines(&auto(&tree)), &["mlx5_0 port 1: the port is unknown", "link layer is not known"]);

    std::fs::remove_dir_all(tree.path(&format!("{dir}/ports"))).unwrap();
    let d = &scan(tree.root()).unwrap()[0];
    assert_eq!(d.ports.len(), 0);
    assert_says(&d.notes.join("\n"), &["ports could not be listed"]);
    // A class that is a file.
    let other = Tree::new();
    other.write("sys/class/infiniband", "");
    let e = scan(other.root()).unwrap_err().to_string();
    assert_says(&e, &["sys/class/infiniband", "Not a directory", "/sys is mounted"]);
}

#[test]
fn rails_and_planes_of_the_machine() {
    let mut tree = Tree::new().with_verbs();
    // Two cards with two functions each; the first card is on the farther memory node.
    for (name, pci, netdev) in [
        ("mlx5_0", "0000:01:00.0", "a0"),
        ("mlx5_1", "0000:01:00.1", "a1"),
        ("mlx5_2", "0000:02:00.0", "b0"),
        ("mlx5_3", "0000:02:00.1", "b1"),
    ] {
        tree.device(name, "mlx5_core", Some(pci), &[FakePort::roce(netdev, TEN_0)]);
    }
    let places = |choice: &Choice| {
        let mut all: Vec<_> = choice.ports.iter().map(|p| (p.device.clone(), p.place.rail, p.place.plane)).collect();
        all.sort();
        all.into_iter().map(|p| (p.1, p.2)).collect::<Vec<_>>()
    };
    assert_eq!(places(&auto(&tree)), [(0, 0), (0, 1), (1, 0), (1, 1)]);
    for function in [0, 1] {
        tree.write(&format!("sys/devices/pci0000:00/0000:01:00.{function}/numa_node"), "1");
    }
    assert_eq!(places(&auto(&tree)), [(1, 0), (1, 1), (0, 0), (0, 1)]);
    // Two functions that serve one cage are one plane.
    for netdev in ["a0", "a1"] {
        tree.write(&format!("sys/class/net/{netdev}/phys_port_id"), "0c42a1b2c3d4");
    }
    assert_eq!(places(&auto(&tree)), [(1, 0), (1, 0), (0, 0), (0, 1)]);
    // The file says more, the list most.
    let text = "[[port]]\ndevice = \"mlx5_0\"\nplane = 5\n[[port]]\nnetdev = \"b1\"\nrail = 7\nspeed_gbps = 25.0\n";
    let file = TopologyFile::parse(std::path::Path::new("t"), text).unwrap();
    let list = "mlx5_0::3,mlx5_1,mlx5_2,mlx5_3".parse().unwrap();
    let f = facts(&tree);
    let request = Request { list: Some(&list), topology: Some(&file), ..Request::default() };
    let choice = choose(&f.devices, &f.host, &request).unwrap();
    assert_eq!(places(&choice), [(3, 5), (1, 0), (0, 0), (7, 1)]);
    let by = |name: &str| choice.ports.iter().find(|p| p.device == name).unwrap();
    assert_eq!((by("mlx5_0").place.source, by("mlx5_3").place.source), (PlaceSource::List, PlaceSource::File));
    assert_eq!(by("mlx5_1").place.source, PlaceSource::Automatic);
    assert_eq!((by("mlx5_3").speed, by("mlx5_3").weight, by("mlx5_2").weight), (Some(25_000), 250, 1000));
}

#[test]
fn no_more_than_eight_ports() {
    let mut tree = Tree::new().with_verbs();
    for i in 0..10 {
        let (name, pci) = (format!("mlx5_{i}"), format!("0000:{i:02x}:00.0"));
        tree.device(&name, "mlx5_core", Some(&pci), &[FakePort::roce("eth0", TEN_0)]);
    }
    let choice = auto(&tree);
    assert_eq!(choice.ports.len(), 8);
    assert_says(&lines(&choice), &["mlx5_8 port 1: 8 ports are taken already", "mlx5_9 port 1"]);
}

/// Each of these differs from the others, says what was seen and what to do.
#[test]
fn why_not() {
    let with = |change: &dyn Fn(&mut Tree)| {
        let mut tree = Tree::new().with_verbs();
        mlx5(&mut tree);
        change(&mut tree);
        tree
    };
    let port = "sys/devices/pci0000:00/0000:01:00.0/infiniband/mlx5_0/ports";
    let remove = |path: &'static str| move |t: &mut Tree| std::fs::remove_file(t.path(path)).unwrap();

    let tree = with(&remove("usr/lib/x86_64-linux-gnu/libibverbs.so.1"));
    assert_says(&lines(&auto(&tree)), &["verbs: libibverbs cannot be loaded", "no libibverbs.so.1", "libibverbs1"]);

    let tree = with(&|t| std::fs::remove_dir_all(t.path("sys/class/infiniband_verbs")).unwrap());
    assert_says(
        &lines(&auto(&tree)),
        &["verbs: libibverbs is there, but the kernel offers no verbs", "modprobe ib_uverbs"],
    );
    let mut f = facts(&tree);
    f.host.library = Library::NoKernel { errno: libc::ENOSYS };
    let choice = choose(&f.devices, &f.host, &Request::default()).unwrap();
    assert_says(&lines(&choice), &["kernel offers no verbs (Function not implemented"]);
    f.host.library = Library::NotBuilt;
    let choice = choose(&f.devices, &f.host, &Request::default()).unwrap();
    assert_says(&lines(&choice), &["no verbs backend"]);

    let tree = Tree::new().with_verbs();
    assert_says(&lines(&auto(&tree)), &["hardware: no RDMA NIC", "rdma_rxe: no soft-RoCE device"]);

    let tree = with(&|_| {});
    let choice = listed(&tree, "mlx5_7,mlx5_0:3");
    assert_says(
        &lines(&choice),
        &["\"mlx5_7\" matches no RDMA device", "mlx5_0 (2 ports)", "\"mlx5_0:3\"", "correct the list"],
    );
    assert_eq!(choice.engine, Engine::Embedded);

    let tree = with(&remove("dev/infiniband/uverbs0"));
    assert_says(&lines(&auto(&tree)), &["mlx5_0 port 1: /dev/infiniband/uverbs0 is not there", "container"]);
    let tree = with(&|t| std::fs::remove_dir_all(t.path("sys/class/infiniband_verbs/uverbs0")).unwrap());
    assert_says(&lines(&auto(&tree)), &["no character device", "load ib_uverbs"]);
    // What opening gives is a fact that the choice is told; root opens everything.
    let mut f = facts(&with(&|_| {}));
    for (errno, part) in [(libc::EACCES, "Permission denied"), (libc::EPERM, "not permitted")] {
        f.host.nodes = vec![("uverbs0".into(), Some(errno))];
        let choice = choose(&f.devices, &f.host, &Request::default()).unwrap();
        assert_says(&lines(&choice), &["no permission to open /dev/infiniband/uverbs0", part, "join its group"]);
    }
    f.host.nodes = vec![("uverbs0".into(), Some(libc::ENODEV))];
    let choice = choose(&f.devices, &f.host, &Request::default()).unwrap();
    assert_says(&lines(&choice), &["uverbs0 cannot be opened: No such device", "dmesg"]);

    let tree = with(&|t| t.limit("8388608"));
    assert_says(&lines(&auto(&tree)), &["memlock is 8388608 bytes, but 67108864", "ulimit -l", "IPC_LOCK"]);
    tree.write("proc/self/status", "CapEff:\t0000000000004000");
    assert_eq!(auto(&tree).engine.to_string(), "verbs:mlx5", "CAP_IPC_LOCK lifts the limit");

    let tree = with(&|t| t.write(&format!("{port}/2/state"), "1: DOWN"));
    tree.write(&format!("{port}/2/phys_state"), "3: Disabled");
    let choice = auto(&tree);
    assert_eq!(choice.ports.len(), 1, "the other port is used");
    assert_says(
        &lines(&choice),
        &["mlx5_0 port 2: the port is DOWN (Disabled)", "check cable", "ip link set dev ens1f1np1 up"],
    );

    let tree = with(&|t| t.write("sys/class/net/ens1f0np0/mtu", "300"));
    assert_says(&lines(&auto(&tree)), &["mlx5_0 port 1: the MTU of ens1f0np0 is 300 bytes", "mtu 4200"]);
}

#[test]
fn gids_that_cannot_be_used() {
    let one = |gids: Vec<(&'static str, &'static str, &'static str)>| {
        let mut tree = Tree::new().with_verbs();
        let port = FakePort { gids, ..FakePort::roce("ens1", TEN_0) };
        tree.device("mlx5_0", "mlx5_core", Some("0000:01:00.0"), &[port]);
        tree
    };
    let tree = one(vec![(LOCAL, V2, "EINVAL"), (TEN_0, V1, "ens1"), (TEN_0, V2, "EINVAL"), (TEN_1, V2, "elsewhere0")]);
    let f = facts(&tree);
    assert!(matches!(f.devices[0].ports[0].gids[2].netdev, GidNetdev::Unreadable(e) if e != 0));
    assert_eq!(f.devices[0].ports[0].gids[3].netdev, GidNetdev::Elsewhere("elsewhere0".into()));
    assert_says(
        &lines(&auto(&tree)),
        &["no usable RoCEv2 GID", "4 GIDs", "another network namespace", "1 not RoCE v2", "hostNetwork"],
    );
    // Of the same table with one of ours it is taken.
    let tree = one(vec![(LOCAL, V2, "EINVAL"), (TEN_0, V2, "EINVAL"), (TEN_1, V2, "ens1")]);
    assert_eq!(auto(&tree).ports[0].gid_index, 2);
    // Link-local where there is nothing else.
    let tree = one(vec![(LOCAL, V2, "ens1")]);
    assert!(auto(&tree).ports[0].link_local);
    let tree = one(vec![]);
    assert_says(&lines(&auto(&tree)), &["GID table is empty", "ens1", "ip address add"]);
    let f = facts(&one(vec![(TEN_0, V2, "ens1")]));
    let gids = GidPolicy { index: Some(9), ..GidPolicy::default() };
    let choice = choose(&f.devices, &f.host, &Request { gids, ..Request::default() }).unwrap();
    assert_says(&lines(&choice), &["GID index 9 was asked for", "indices 0"]);
}

#[test]
fn an_engine_that_is_asked_for() {
    let tree = Tree::new().with_verbs();
    let f = facts(&tree);
    let reasons = choose(&f.devices, &f.host, &Request { wanted: Wanted::Verbs, ..Request::default() }).unwrap_err();
    assert_eq!(reasons.len(), 2);
    let mut tree = Tree::new().with_verbs();
    mlx5(&mut tree);
    let f = facts(&tree);
    let choice = choose(&f.devices, &f.host, &Request { wanted: Wanted::Embedded, ..Request::default() }).unwrap();
    assert_eq!(choice.engine, Engine::Embedded);
    assert_says(&lines(&choice), &["verbs: not looked for"]);
    let choice = choose(&f.devices, &f.host, &Request { wanted: Wanted::Verbs, ..Request::default() }).unwrap();
    assert_eq!(choice.ports.len(), 2);
}
