//! Which engine runs, over which ports: hardware, else rdma_rxe, else the embedded engine; and why not the others.

use std::fmt;
use std::net::IpAddr;

use super::assign::{Candidate, Place, assign};
use super::file::TopologyFile;
use super::gid::{GidPolicy, select};
use super::hca::{HcaEntry, HcaList};
use super::host::{Host, Library, Memlock};
use super::link::weights;
use super::reason::{NotTaken, Reason};
use super::sysfs::{Device, LinkLayer, Node, Port, PortState};
use crate::lanes::MAX_PORTS;

/// Which engine is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wanted {
    /// Hardware, else rdma_rxe, else the embedded engine.
    #[default]
    Auto,
    /// Hardware or rdma_rxe, or an error.
    Verbs,
    /// The embedded engine.
    Embedded,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// Which engine.
    pub wanted: Wanted,
    /// Which HCAs; all if `None`.
    pub list: Option<&'a HcaList>,
    /// Which GIDs.
    pub gids: GidPolicy,
    /// Rails, planes and speeds that are said.
    pub topology: Option<&'a TopologyFile>,
    /// Bytes that will be pinned.
    pub memory: u64,
}

/// An engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Engine {
    /// libibverbs over devices of this provider.
    Verbs {
        /// `mlx5`, `rxe`, ..; several joined by `+`.
        provider: String,
    },
    /// RoCEv2 over UDP sockets.
    Embedded,
}

/// A port to run over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChosenPort {
    /// Its device.
    pub device: String,
    /// Its number.
    pub port: u8,
    /// Index of its GID now.
    pub gid_index: u16,
    /// The GID's address, by which the index is found again.
    pub addr: IpAddr,
    /// True if only hosts on the same link can be reached.
    pub link_local: bool,
    /// Its interface.
    pub netdev: Option<String>,
    /// RoCE MTU, as the interface allows.
    pub mtu: Option<u32>,
    /// Speed in Mb/s.
    pub speed: Option<u32>,
    /// Its part of the traffic beside the other ports', 1..=1000.
    pub weight: u32,
    /// Its rail and plane.
    pub place: Place,
}

/// What became of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortReport {
    /// Its device.
    pub device: String,
    /// Its number.
    pub port: u8,
    /// Its rail and plane, if the list has it.
    pub place: Option<Place>,
    /// Why it cannot be used, if so.
    pub fault: Option<NotTaken>,
}

/// What was chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The engine.
    pub engine: Engine,
    /// Its ports, by plane and rail; none for the embedded engine, which takes addresses.
    pub ports: Vec<ChosenPort>,
    /// What was not taken, and why; the engines last.
    pub reasons: Vec<Reason>,
    /// Every port.
    pub reports: Vec<PortReport>,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Engine::Verbs { provider } => write!(f, "verbs:{provider}"),
            Engine::Embedded => f.write_str("embedded"),
        }
    }
}

/// Chooses.
///
/// # Errors
/// Verbs are asked for, and no port can be used: why none.
pub fn choose(devices: &[Device], host: &Host, request: &Request<'_>) -> Result<Choice, Vec<Reason>> {
    let mut reasons = Vec::new();
    if let Some(list) = request.list.filter(|l| !l.exclude) {
        reasons.extend(list.entries.iter().filter_map(|e| unmatched(list, e, devices)));
    }
    let mut candidates = Vec::new();
    let mut left_out = Vec::new();
    for device in devices {
        for port in &device.ports {
            match request.list.map_or(Some(None), |l| l.wants(&device.name, port.number)) {
                Some(entry) => candidates.push(Candidate { device, port, entry }),
                None => left_out.push((device, port)),
            }
        }
    }
    if let Some(list) = request.list {
        // Stable, so that ports of one entry stay in the order of their names.
        candidates.sort_by_key(|c| list.position(&c.device.name, c.port.number));
    }
    let places = assign(&candidates, request.topology);
    let mut reports = Vec::new();
    for (c, place) in candidates.iter().zip(&places) {
        let fault = fault(c.device, c.port, host, request);
        reports.push(PortReport { device: c.device.name.clone(), port: c.port.number, place: Some(*place), fault });
    }

    let blocked = blocked(host, request);
    let fine = |software: bool| {
        let usable = |&i: &usize| reports[i].fault.is_none() && candidates[i].device.is_software() == software;
        (0..candidates.len()).filter(usable).collect::<Vec<usize>>()
    };
    let (hardware, software) = (fine(false), fine(true));
    let taken = match (&blocked, hardware.is_empty(), software.is_empty()) {
        (None, false, _) => hardware,
        (None, true, false) => software,
        _ => Vec::new(),
    };
    let is_software = taken.first().map(|&i| candidates[i].device.is_software());
    for report in &reports {
        if let Some(why) = &report.fault {
            reasons.push(Reason { subject: format!("{} port {}", report.device, report.port), why: why.clone() });
        }
    }
    let mut ports: Vec<ChosenPort> = taken.iter().filter_map(|&i| chosen(&candidates[i], places[i], request)).collect();
    ports.sort_by_key(|p| (p.place.plane, p.place.rail));
    for over in ports.drain(ports.len().min(MAX_PORTS)..) {
        let subject = format!("{} port {}", over.device, over.port);
        reasons.push(Reason { subject, why: NotTaken::TooMany { limit: MAX_PORTS } });
    }
    let speeds: Vec<Option<u32>> = ports.iter().map(|p| p.speed).collect();
    for (port, weight) in ports.iter_mut().zip(weights(&speeds)) {
        port.weight = weight;
    }
    let provider = {
        let mut names: Vec<&str> = Vec::new();
        for port in &ports {
            let provider = devices.iter().find(|d| d.name == port.device).map_or("unknown", Device::provider);
            if !names.contains(&provider) {
                names.push(provider);
            }
        }
        names.join("+")
    };
    for (device, port) in left_out {
        let list = request.list.map(ToString::to_string).unwrap_or_default();
        let fault = Some(NotTaken::NotListed { list });
        reports.push(PortReport { device: device.name.clone(), port: port.number, place: None, fault });
    }
    reasons.extend(engines(devices, is_software, blocked));
    match (ports.is_empty(), request.wanted) {
        (true, Wanted::Verbs) => Err(reasons),
        (true, _) => Ok(Choice { engine: Engine::Embedded, ports, reasons, reports }),
        (false, _) => Ok(Choice { engine: Engine::Verbs { provider }, ports, reasons, reports }),
    }
}

/// Why the engines that come before the chosen one were not taken; one line each.
fn engines(devices: &[Device], taken_software: Option<bool>, blocked: Option<NotTaken>) -> Vec<Reason> {
    let reason = |subject: &str, why| Reason { subject: subject.into(), why };
    let mut reasons = Vec::new();
    if let Some(why) = blocked {
        reasons.push(reason("verbs", why));
    }
    let there = |software: bool| devices.iter().any(|d| d.is_software() == software);
    match taken_software {
        Some(false) if there(true) => reasons.push(reason("rdma_rxe", NotTaken::NotNeeded { taken: "hardware" })),
        Some(false) => {}
        _ => {
            // Where there are devices their ports have said why not.
            if !there(false) {
                reasons.push(reason("hardware", NotTaken::NoHardware));
            }
            if taken_software.is_none() && !there(true) {
                reasons.push(reason("rdma_rxe", NotTaken::NoRxe));
            }
        }
    }
    reasons
}

/// What keeps every device from being used.
fn blocked(host: &Host, request: &Request<'_>) -> Option<NotTaken> {
    if request.wanted == Wanted::Embedded {
        return Some(NotTaken::NotWanted);
    }
    match &host.library {
        Library::NotBuilt => return Some(NotTaken::NotBuilt),
        Library::Absent { seen } => return Some(NotTaken::LibraryAbsent { seen: seen.clone() }),
        Library::NoKernel { errno } => {
            let seen = std::io::Error::from_raw_os_error(*errno).to_string();
            return Some(NotTaken::NoKernel { seen });
        }
        Library::Present if !host.kernel => {
            return Some(NotTaken::NoKernel { seen: "/sys/class/infiniband_verbs is not there".into() });
        }
        Library::Present => {}
    }
    match host.memlock {
        Memlock::Limited(limit) if limit < request.memory => Some(NotTaken::Memlock { limit, needed: request.memory }),
        _ => None,
    }
}

/// An entry of the list that names no device.
fn unmatched(list: &HcaList, entry: &HcaEntry, devices: &[Device]) -> Option<Reason> {
    let named = |d: &&Device| list.named(entry, &d.name);
    let has_port = |d: &Device| entry.port.is_none_or(|p| d.ports.iter().any(|q| q.number == p));
    if devices.iter().filter(named).any(has_port) {
        return None;
    }
    let asked = match entry.port {
        Some(port) => format!("{}:{port}", entry.hca),
        None => entry.hca.clone(),
    };
    let ports = |d: &Device| match d.ports.len() {
        0 | 1 => d.name.clone(),
        n => format!("{} ({n} ports)", d.name),
    };
    let have: Vec<String> = devices.iter().map(ports).collect();
    let have = if have.is_empty() { "none".into() } else { have.join(", ") };
    Some(Reason { subject: "list".into(), why: NotTaken::NoSuchHca { asked, have } })
}

/// Why a port cannot be used, if so.
fn fault(device: &Device, port: &Port, host: &Host, request: &Request<'_>) -> Option<NotTaken> {
    match &device.node {
        Node::Rnic => return Some(NotTaken::Iwarp),
        // What could not be read does not count against it.
        Node::ChannelAdapter => {}
        Node::Other(name) if name == "unknown" => {}
        Node::Other(what) => return Some(NotTaken::NotRoce { what: format!("a node of type \"{what}\"") }),
    }
    match port.link_layer {
        LinkLayer::Ethernet => {}
        LinkLayer::InfiniBand => return Some(NotTaken::InfiniBand),
        LinkLayer::Unknown => return Some(NotTaken::NotRoce { what: "a port whose link layer is not known".into() }),
    }
    if host.kernel {
        let Some(node) = &device.uverbs else { return Some(NotTaken::NoNode) };
        let path = format!("/dev/infiniband/{node}");
        match host.nodes.iter().find(|n| n.0 == *node).and_then(|n| n.1) {
            None => {}
            Some(libc::ENOENT) => return Some(NotTaken::NodeMissing { path }),
            Some(errno @ (libc::EACCES | libc::EPERM)) => return Some(NotTaken::NoPermission { path, errno }),
            Some(errno) => return Some(NotTaken::NodeBroken { path, errno }),
        }
    }
    let netdev = port.netdev.as_ref();
    if let PortState::Other(state) = &port.state {
        let physical = port.physical_state.as_ref().map(|p| format!(" ({p})")).unwrap_or_default();
        let netdev = netdev.map_or("its interface", |n| n.name.as_str()).to_owned();
        return Some(NotTaken::PortDown { state: state.clone(), physical, netdev });
    }
    if let Err(e) = select(&port.gids, &request.gids, netdev.map(|n| n.name.as_str())) {
        return Some(NotTaken::Gid(e));
    }
    match netdev {
        Some(n) if n.mtu.is_some_and(|mtu| super::roce_mtu(mtu).is_none()) => {
            Some(NotTaken::Mtu { netdev: n.name.clone(), mtu: n.mtu.unwrap_or(0) })
        }
        _ => None,
    }
}

fn chosen(candidate: &Candidate<'_>, place: Place, request: &Request<'_>) -> Option<ChosenPort> {
    let Candidate { device, port, .. } = *candidate;
    let netdev = port.netdev.as_ref().map(|n| n.name.as_str());
    let selected = select(&port.gids, &request.gids, netdev).ok()?;
    let filed = request.topology.and_then(|t| t.find(&device.name, port.number, netdev)).and_then(|p| p.speed());
    Some(ChosenPort {
        device: device.name.clone(),
        port: port.number,
        gid_index: selected.gid.index,
        addr: selected.gid.addr,
        link_local: selected.link_local,
        netdev: netdev.map(str::to_owned),
        mtu: port.mtu(),
        speed: filed.or_else(|| port.speed()),
        weight: 0,
        place,
    })
}
