//! Fake trees of files as the kernel shows them. A test file says `#[path = "common/sysfs.rs"] mod tree;`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A root directory with `sys`, `dev`, `proc` and `usr` below it.
pub(crate) struct Tree {
    dir: TempDir,
    devices: usize,
}

/// A port of a fake device.
#[derive(Clone)]
pub(crate) struct FakePort {
    pub(crate) state: &'static str,
    pub(crate) link_layer: &'static str,
    pub(crate) rate: &'static str,
    pub(crate) netdev: &'static str,
    pub(crate) mtu: u32,
    /// Mb/s, 0 for none.
    pub(crate) speed: u32,
    /// Address as the kernel writes it, type, interface; an interface `EINVAL` cannot be read.
    pub(crate) gids: Vec<(&'static str, &'static str, &'static str)>,
}

pub(crate) const V2: &str = "RoCE v2";
pub(crate) const V1: &str = "IB/RoCE v1";
// Not every test file needs each of these.
/// 10.0.0.1
#[allow(dead_code)]
pub(crate) const TEN_0: &str = "0000:0000:0000:0000:0000:ffff:0a00:0001";
/// 10.0.1.1
#[allow(dead_code)]
pub(crate) const TEN_1: &str = "0000:0000:0000:0000:0000:ffff:0a00:0101";
/// fe80::1
pub(crate) const LOCAL: &str = "fe80:0000:0000:0000:0000:0000:0000:0001";

impl FakePort {
    /// An active RoCE port of 100 Gb/s with a link-local and a routable address.
    pub(crate) fn roce(netdev: &'static str, addr: &'static str) -> FakePort {
        FakePort {
            state: "4: ACTIVE",
            link_layer: "Ethernet",
            rate: "100 Gb/sec (4X EDR)",
            netdev,
            mtu: 9000,
            speed: 100_000,
            gids: vec![(LOCAL, V1, netdev), (LOCAL, V2, netdev), (addr, V1, netdev), (addr, V2, netdev)],
        }
    }
}

impl Tree {
    /// A host without RDMA.
    pub(crate) fn new() -> Tree {
        let tree = Tree { dir: tempfile::tempdir().unwrap(), devices: 0 };
        tree.write("sys/class/net/lo/mtu", "65536");
        tree.write("proc/self/status", "Name:\tx\nCapEff:\t0000000000000000\n");
        tree.limit("8388608");
        tree
    }

    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    /// The limit of locked memory.
    pub(crate) fn limit(&self, soft: &str) {
        let line = format!("Max locked memory         {soft}              {soft}              bytes     ");
        self.write("proc/self/limits", &format!("Limit                     Soft Limit           Hard Limit\n{line}"));
    }

    /// libibverbs, ib_uverbs, and as much memory as wanted.
    pub(crate) fn with_verbs(self) -> Tree {
        self.write("usr/lib/x86_64-linux-gnu/libibverbs.so.1", "");
        self.write("sys/class/infiniband_verbs/abi_version", "6");
        self.limit("unlimited");
        self
    }

    /// A device on PCI address `pci`, or soft-RoCE without.
    pub(crate) fn device(&mut self, name: &str, driver: &str, pci: Option<&str>, ports: &[FakePort]) {
        let below = match pci {
            Some(pci) => format!("sys/devices/pci0000:00/{pci}"),
            None => "sys/devices/virtual".into(),
        };
        let dir = format!("{below}/infiniband/{name}");
        self.write(&format!("{dir}/node_type"), "1: CA");
        self.write(&format!("{dir}/fw_ver"), "28.39.1002");
        if let Some(pci) = pci {
            self.write(&format!("{below}/numa_node"), "0");
            fs::create_dir_all(self.path(&format!("sys/bus/pci/drivers/{driver}"))).unwrap();
            let link = self.path(&format!("{below}/driver"));
            let _ = symlink(self.path(&format!("sys/bus/pci/drivers/{driver}")), link);
            symlink(self.path(&below), self.path(&format!("{dir}/device"))).unwrap();
            assert!(pci.contains(':'));
        } else {
            self.write(&format!("{dir}/parent"), ports[0].netdev);
        }
        for (i, port) in ports.iter().enumerate() {
            self.port(&dir, i, port);
            if pci.is_some() && !port.netdev.is_empty() {
                self.write(&format!("{below}/net/{}/dev_port", port.netdev), &i.to_string());
            }
        }
        fs::create_dir_all(self.path("sys/class/infiniband")).unwrap();
        symlink(self.path(&dir), self.path(&format!("sys/class/infiniband/{name}"))).unwrap();
        let node = format!("uverbs{}", self.devices);
        self.devices += 1;
        self.write(&format!("sys/class/infiniband_verbs/{node}/ibdev"), name);
        self.write(&format!("dev/infiniband/{node}"), "");
    }

    fn port(&self, dir: &str, index: usize, port: &FakePort) {
        let dir = format!("{dir}/ports/{}", index + 1);
        self.write(&format!("{dir}/state"), port.state);
        let physical = if port.state.contains("ACTIVE") { "5: LinkUp" } else { "3: Disabled" };
        self.write(&format!("{dir}/phys_state"), physical);
        self.write(&format!("{dir}/link_layer"), port.link_layer);
        self.write(&format!("{dir}/rate"), port.rate);
        if !port.netdev.is_empty() {
            let net = format!("sys/class/net/{}", port.netdev);
            self.write(&format!("{net}/mtu"), &port.mtu.to_string());
            let speed = if port.speed == 0 { "-1".to_owned() } else { port.speed.to_string() };
            self.write(&format!("{net}/speed"), &speed);
        }
        for (i, (addr, kind, netdev)) in port.gids.iter().enumerate() {
            self.write(&format!("{dir}/gids/{i}"), addr);
            self.write(&format!("{dir}/gid_attrs/types/{i}"), kind);
            let ndev = format!("{dir}/gid_attrs/ndevs/{i}");
            match *netdev {
                // A directory cannot be read either.
                "EINVAL" => fs::create_dir_all(self.path(&ndev)).unwrap(),
                name => self.write(&ndev, name),
            }
        }
        // Tables end with entries that are empty.
        let end = port.gids.len();
        self.write(&format!("{dir}/gids/{end}"), "0000:0000:0000:0000:0000:0000:0000:0000");
    }
}
