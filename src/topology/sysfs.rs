//! What the kernel shows of RDMA devices below `sys/class`. Any file may be missing or hold nonsense: then the value
//! is unknown and the device says so in its notes.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Most bytes read of one file.
const MAX_FILE: u64 = 4096;
/// Most devices, ports of a device and GIDs of a port that are looked at.
const MAX_DEVICES: usize = 256;
const MAX_PORTS: usize = 255;
const MAX_GIDS: usize = 4096;

/// An RDMA device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Its name, as `ibv_devices` prints it.
    pub name: String,
    /// The kernel driver of the device below it, such as `mlx5_core`; `rdma_rxe` for soft-RoCE.
    pub driver: Option<String>,
    /// What kind of node it is.
    pub node: Node,
    /// Firmware.
    pub firmware: Option<String>,
    /// Where it sits.
    pub pci: Option<PciAddress>,
    /// Where the NIC's physical function sits, if the device is a virtual function.
    pub physical: Option<PciAddress>,
    /// Its memory node.
    pub numa: Option<u16>,
    /// Name of its character device, such as `uverbs0`.
    pub uverbs: Option<String>,
    /// Its ports, in order of their numbers.
    pub ports: Vec<Port>,
    /// Files that were missing or not understood.
    pub notes: Vec<String>,
}

/// A port of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// Its number, from 1.
    pub number: u8,
    /// Its logical state.
    pub state: PortState,
    /// Its physical state, such as `LinkUp`.
    pub physical_state: Option<String>,
    /// What link it has.
    pub link_layer: LinkLayer,
    /// Rate in Mb/s.
    pub rate: Option<u32>,
    /// The interface of the port itself.
    pub netdev: Option<Netdev>,
    /// Its GIDs that are not zero, in order of their indices.
    pub gids: Vec<Gid>,
}

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Netdev {
    /// Its name.
    pub name: String,
    /// Whether it is in this network namespace.
    pub here: bool,
    /// Its MTU in bytes.
    pub mtu: Option<u32>,
    /// Its speed in Mb/s.
    pub speed: Option<u32>,
    /// What tells its physical port from others, if the driver says.
    pub physical_port: Option<String>,
    /// Members, if it is a bond.
    pub bond: Vec<String>,
}

/// A port's logical state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortState {
    /// Packets flow.
    Active,
    /// Anything else, as the kernel names it; `unknown` if it could not be read.
    Other(String),
}

/// What a port's link is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkLayer {
    /// RoCE or iWARP.
    Ethernet,
    /// InfiniBand.
    InfiniBand,
    /// Not read, or not known.
    Unknown,
}

/// What kind of RDMA device it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Node {
    /// A channel adapter: InfiniBand or RoCE.
    ChannelAdapter,
    /// iWARP.
    Rnic,
    /// Anything else, as the kernel names it.
    Other(String),
}

/// An entry of a port's GID table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gid {
    /// Its index.
    pub index: u16,
    /// The address that it stands for; IPv4 addresses as such.
    pub addr: IpAddr,
    /// Its type.
    pub kind: GidType,
    /// Its interface.
    pub netdev: GidNetdev,
}

/// A GID's type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GidType {
    /// RoCE over UDP.
    RoceV2,
    /// RoCE version 1, or InfiniBand: the kernel names them alike.
    RoceV1,
    /// Anything else; empty if it could not be read.
    Other(String),
}

/// A GID's interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GidNetdev {
    /// In this network namespace.
    Here(String),
    /// The kernel gave this error, as it does for entries of other namespaces (`EINVAL`).
    Unreadable(i32),
    /// The kernel names it, but it is not in this network namespace.
    Elsewhere(String),
}

/// Why nothing could be scanned.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("read of {} failed: {}; check that /sys is mounted and readable", path.display(), io::Error::from_raw_os_error(*errno))]
pub struct ScanError {
    /// What was read.
    pub path: PathBuf,
    /// The error number.
    pub errno: i32,
}

/// The devices below `root`, in order of their names. None where the kernel has no RDMA: see [`super::Host`].
///
/// # Errors
/// The directory is there and cannot be read.
pub fn scan(root: &Path) -> Result<Vec<Device>, ScanError> {
    let class = root.join("sys/class/infiniband");
    let mut names = match list(&class) {
        Ok(names) => names,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(ScanError { path: class, errno: e.raw_os_error().unwrap_or(0) }),
    };
    names.truncate(MAX_DEVICES);
    let uverbs = uverbs(root);
    Ok(names.iter().map(|name| device(root, &class.join(name), name, &uverbs)).collect())
}

/// Name of each device with the name of its character device.
fn uverbs(root: &Path) -> Vec<(String, String)> {
    let class = root.join("sys/class/infiniband_verbs");
    let all = list(&class).unwrap_or_default().into_iter();
    all.filter_map(|node| Some((read(&class.join(&node).join("ibdev")).ok()?, node))).collect()
}

fn device(root: &Path, dir: &Path, name: &str, uverbs: &[(String, String)]) -> Device {
    let mut notes = Vec::new();
    let below = dir.join("device");
    // Soft-RoCE has no device below it, and names its interface itself.
    let parent = read(&dir.join("parent")).ok();
    let driver = match link_name(&below.join("driver")) {
        Some(driver) => Some(driver),
        None if parent.is_some() => Some("rdma_rxe".into()),
        None => None,
    };
    let node = match read(&dir.join("node_type")) {
        Ok(text) if text.starts_with("1:") => Node::ChannelAdapter,
        Ok(text) if text.starts_with("4:") => Node::Rnic,
        Ok(text) => Node::Other(text),
        Err(_) => {
            notes.push("node_type could not be read".into());
            Node::Other("unknown".into())
        }
    };
    let pci = fs::canonicalize(&below).ok().and_then(|p| pci_of(&p));
    let physical = fs::canonicalize(below.join("physfn")).ok().and_then(|p| pci_of(&p));
    let numa = read(&below.join("numa_node")).ok().and_then(|n| n.parse().ok());
    let mut ports = Vec::new();
    match list(&dir.join("ports")) {
        Ok(numbers) => {
            let mut numbers: Vec<u8> = numbers.iter().filter_map(|n| n.parse().ok()).filter(|&n| n > 0).collect();
            numbers.sort_unstable();
            numbers.truncate(MAX_PORTS);
            for number in numbers {
                ports.push(port(root, dir, number, parent.as_deref(), &mut notes));
            }
        }
        Err(e) => notes.push(format!("ports could not be listed ({e})")),
    }
    Device {
        name: name.into(),
        driver,
        node,
        firmware: read(&dir.join("fw_ver")).ok().filter(|v| !v.is_empty()),
        pci,
        physical,
        numa,
        uverbs: uverbs.iter().find(|u| u.0 == name).map(|u| u.1.clone()),
        ports,
        notes,
    }
}

fn port(root: &Path, device: &Path, number: u8, parent: Option<&str>, notes: &mut Vec<String>) -> Port {
    let dir = device.join("ports").join(number.to_string());
    let mut note = |what: &str, seen: &io::Result<String>| match seen {
        Ok(text) => notes.push(format!("ports/{number}/{what} holds {text:?}, which is not understood")),
        Err(e) => notes.push(format!("ports/{number}/{what} could not be read ({e})")),
    };
    let text = read(&dir.join("state"));
    let state = match named(&text) {
        Some("ACTIVE") => PortState::Active,
        Some(other) => PortState::Other(other.into()),
        None => {
            note("state", &text);
            PortState::Other("unknown".into())
        }
    };
    let text = read(&dir.join("phys_state"));
    let physical_state = named(&text).map(str::to_owned);
    let text = read(&dir.join("link_layer"));
    let link_layer = match text.as_deref() {
        Ok("Ethernet") => LinkLayer::Ethernet,
        Ok("InfiniBand") => LinkLayer::InfiniBand,
        _ => {
            note("link_layer", &text);
            LinkLayer::Unknown
        }
    };
    let text = read(&dir.join("rate"));
    let rate = text.as_deref().ok().and_then(mbps);
    if rate.is_none() {
        note("rate", &text);
    }
    let gids = gids(root, &dir);
    let name = parent.map(str::to_owned).or_else(|| own_netdev(device, number)).or_else(|| {
        gids.iter().find_map(|g| match &g.netdev {
            GidNetdev::Here(name) | GidNetdev::Elsewhere(name) => Some(name.clone()),
            GidNetdev::Unreadable(_) => None,
        })
    });
    Port { number, state, physical_state, link_layer, rate, netdev: name.map(|n| netdev(root, n)), gids }
}

/// The interface that shares the port's device. Ports count from 1, `dev_port` from 0.
fn own_netdev(device: &Path, number: u8) -> Option<String> {
    let dir = device.join("device/net");
    let names = list(&dir).ok()?;
    let dev_port = |name: &String| read(&dir.join(name).join("dev_port")).ok().and_then(|p| p.parse::<u16>().ok());
    match names.as_slice() {
        [only] if dev_port(only).is_none_or(|p| p + 1 == u16::from(number)) => Some(only.clone()),
        all => all.iter().find(|n| dev_port(n).is_some_and(|p| p + 1 == u16::from(number))).cloned(),
    }
}

fn netdev(root: &Path, name: String) -> Netdev {
    let dir = root.join("sys/class/net").join(&name);
    let positive = |file: &str| read(&dir.join(file)).ok().and_then(|t| t.parse::<u32>().ok()).filter(|&n| n > 0);
    let members = read(&dir.join("bonding/slaves")).unwrap_or_default();
    Netdev {
        here: dir.exists(),
        mtu: positive("mtu"),
        // -1 where it is not known.
        speed: positive("speed"),
        physical_port: read(&dir.join("phys_port_id")).ok().filter(|t| !t.is_empty()),
        bond: members.split_whitespace().map(str::to_owned).collect(),
        name,
    }
}

/// Speed in Mb/s of an interface of this network namespace, if it says one.
pub fn interface_speed(root: &Path, name: &str) -> Option<u32> {
    if is_file_name(name) { netdev(root, name.into()).speed } else { None }
}

fn gids(root: &Path, port: &Path) -> Vec<Gid> {
    let mut indices: Vec<u16> =
        list(&port.join("gids")).unwrap_or_default().iter().filter_map(|n| n.parse().ok()).collect();
    indices.sort_unstable();
    indices.truncate(MAX_GIDS);
    let mut gids = Vec::new();
    for index in indices {
        let Ok(text) = read(&port.join("gids").join(index.to_string())) else { continue };
        let Ok(addr) = Ipv6Addr::from_str(&text) else { continue };
        // An empty entry, also one whose interface has no address yet.
        if addr.is_unspecified() {
            continue;
        }
        let attrs = port.join("gid_attrs");
        let kind = match read(&attrs.join("types").join(index.to_string())).unwrap_or_default().as_str() {
            "RoCE v2" => GidType::RoceV2,
            "IB/RoCE v1" | "RoCE v1" => GidType::RoceV1,
            other => GidType::Other(other.into()),
        };
        let netdev = match read(&attrs.join("ndevs").join(index.to_string())) {
            Ok(name) if root.join("sys/class/net").join(&name).exists() && is_file_name(&name) => GidNetdev::Here(name),
            Ok(name) => GidNetdev::Elsewhere(name),
            Err(e) => GidNetdev::Unreadable(e.raw_os_error().unwrap_or(0)),
        };
        gids.push(Gid { index, addr: IpAddr::V6(addr).to_canonical(), kind, netdev });
    }
    gids
}

/// `4: ACTIVE` is `ACTIVE`.
fn named(text: &io::Result<String>) -> Option<&str> {
    let (number, name) = text.as_ref().ok()?.split_once(':')?;
    let name = name.trim();
    (number.parse::<u8>().is_ok() && !name.is_empty()).then_some(name)
}

/// `100 Gb/sec (4X EDR)` and `2.5 Gb/sec (1X SDR)` in Mb/s.
fn mbps(text: &str) -> Option<u32> {
    let gigabits: f64 = text.split_once(" Gb/sec")?.0.parse().ok()?;
    (gigabits > 0.0 && gigabits < 1e6).then_some((gigabits * 1000.0) as u32)
}

/// Names in a directory, sorted so that `a2` comes before `a10`.
fn list(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.extend(entry?.file_name().into_string().ok().filter(|n| is_file_name(n)));
    }
    names.sort_by_cached_key(|n| natural(n));
    Ok(names)
}

/// A key that sorts numbers in names by their value.
pub(super) fn natural(name: &str) -> Vec<(String, u64)> {
    let mut key = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (text, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        key.push((text.to_owned(), tail[..end].parse().unwrap_or(u64::MAX)));
        rest = &tail[end..];
    }
    key
}

fn is_file_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains('/')
}

/// A small text file, without the space around it.
pub(super) fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned())
}

fn link_name(path: &Path) -> Option<String> {
    Some(fs::canonicalize(path).ok()?.file_name()?.to_string_lossy().into_owned())
}

/// The last PCI address of a device's path: what is below it (auxiliary bus) has none of its own.
fn pci_of(path: &Path) -> Option<PciAddress> {
    path.components().rev().find_map(|c| c.as_os_str().to_str()?.parse().ok())
}

impl Device {
    /// The verbs provider's name: `mlx5`, `rxe`, ..; what the kernel says if it is none that we know, else `unknown`.
    pub fn provider(&self) -> &str {
        match self.driver.as_deref() {
            Some("mlx5_core" | "mlx5_ib") => "mlx5",
            Some("mlx4_core" | "mlx4_ib") => "mlx4",
            Some("bnxt_en" | "bnxt_re") => "bnxt_re",
            Some("ice" | "i40e" | "idpf" | "irdma") => "irdma",
            Some("hns3" | "hns_roce_hw_v2") => "hns",
            Some("rdma_rxe") => "rxe",
            Some(other) => other,
            None => "unknown",
        }
    }

    /// True if the kernel does in software what a NIC would.
    pub fn is_software(&self) -> bool {
        matches!(self.provider(), "rxe" | "siw")
    }
}

impl Port {
    /// The speed in Mb/s: the interface's if it says one, because soft-RoCE invents the port's rate.
    pub fn speed(&self) -> Option<u32> {
        self.netdev.as_ref().and_then(|n| n.speed).or(self.rate)
    }

    /// The RoCE MTU that the interface allows.
    pub fn mtu(&self) -> Option<u32> {
        super::roce_mtu(self.netdev.as_ref()?.mtu?)
    }
}

/// A PCI address: domain, bus, device and function.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PciAddress {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, 0..32.
    pub device: u8,
    /// Function, 0..8.
    pub function: u8,
}

impl FromStr for PciAddress {
    type Err = ();

    fn from_str(text: &str) -> Result<PciAddress, ()> {
        let hex = |t: &str, digits: std::ops::RangeInclusive<usize>| {
            let fine = digits.contains(&t.len()) && t.bytes().all(|b| b.is_ascii_hexdigit());
            if fine { u32::from_str_radix(t, 16).map_err(|_| ()) } else { Err(()) }
        };
        let (rest, function) = text.rsplit_once('.').ok_or(())?;
        let mut parts = rest.split(':');
        let (Some(domain), Some(bus), Some(device), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(());
        };
        let (domain, bus) = (hex(domain, 4..=8)?, hex(bus, 2..=2)? as u8);
        let (device, function) = (hex(device, 2..=2)? as u8, hex(function, 1..=1)? as u8);
        if device < 32 && function < 8 { Ok(PciAddress { domain, bus, device, function }) } else { Err(()) }
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortState::Active => f.write_str("ACTIVE"),
            PortState::Other(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkLayer::Ethernet => "Ethernet",
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Unknown => "unknown",
        })
    }
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GidType::RoceV2 => f.write_str("RoCE v2"),
            GidType::RoceV1 => f.write_str("RoCE v1"),
            GidType::Other(name) if name.is_empty() => f.write_str("unknown"),
            GidType::Other(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_kernel() {
        assert_eq!(mbps("100 Gb/sec (4X EDR)"), Some(100_000));
        assert_eq!(mbps("2.5 Gb/sec (1X SDR)"), Some(2500));
        for wrong in ["", "100", "x Gb/sec", "-1 Gb/sec", "NaN Gb/sec", "inf Gb/sec", "1e9 Gb/sec"] {
            assert_eq!(mbps(wrong), None, "{wrong}");
        }
        assert_eq!(named(&Ok("4: ACTIVE".into())), Some("ACTIVE"));
        assert_eq!(named(&Ok("ACTIVE".into())), None);
        assert_eq!(named(&Ok("4:".into())), None);
    }

    #[test]
    fn pci_addresses() {
        let a: PciAddress = "0002:01:00.1".parse().unwrap();
        assert_eq!((a.domain, a.bus, a.device, a.function, a.to_string()), (2, 1, 0, 1, "0002:01:00.1".into()));
        for wrong in ["", "0000:01:00", "0000:01:00.8", "0000:01:20.0", "00:01:00.0", "0000:1:00.0", "mlx5_core.rdma.0"]
        {
            assert!(wrong.parse::<PciAddress>().is_err(), "{wrong}");
        }
        let path = Path::new("/sys/devices/pci0000:00/0000:00:03.0/0000:03:00.1/mlx5_core.rdma.1");
        assert_eq!(pci_of(path).unwrap().to_string(), "0000:03:00.1");
    }

    #[test]
    fn names_sort_by_their_numbers() {
        let mut names = ["mlx5_10", "mlx5_2", "h1p0", "h0p10", "h0p9"];
        names.sort_by_cached_key(|n| natural(n));
        assert_eq!(names, ["h0p9", "h0p10", "h1p0", "mlx5_2", "mlx5_10"]);
    }
}
