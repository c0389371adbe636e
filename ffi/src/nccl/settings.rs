//! What the environment asks for: our variables first, NCCL's where users have set those already.

use std::net::IpAddr;
use std::time::Duration;

use planespray::{Dscp, JobKey};

/// How the plugin runs, and which variable decided what.
#[derive(Debug)]
pub(super) struct Settings {
    /// One address per plane, with the interface that has it.
    pub(super) planes: Vec<(String, IpAddr)>,
    /// Data lanes per plane and class; `None` for the default.
    pub(super) lanes_per_plane: Option<u16>,
    /// What the packets carry.
    pub(super) dscp: Option<Dscp>,
    /// How long a peer may be silent.
    pub(super) peer_timeout: Duration,
    /// How long a connection may take to come up.
    pub(super) connect_timeout: Duration,
    /// The job's key.
    pub(super) key: Option<JobKey>,
    /// One line for each decision.
    pub(super) log: Vec<String>,
}

/// An address of this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) addr: IpAddr,
    pub(super) loopback: bool,
}

/// NCCL's variables that mean something only on RDMA devices.
const UNUSED: &[&str] =
    &["NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_SL", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROCE_VERSION_NUM"];
/// NCCL takes at most 16 interfaces; a fabric at most 8 planes.
const MAX_PLANES: usize = 8;

impl Settings {
    /// Reads the environment through `var`.
    ///
    /// # Errors
    /// A variable that cannot be followed, in words for the user.
    pub(super) fn read(
        var: impl Fn(&str) -> Option<String>,
        interfaces: &[Interface],
        key: Option<JobKey>,
    ) -> Result<Settings, String> {
        let mut log = Vec::new();
        // The first that is set and not empty.
        let first = |names: &[&'static str]| {
            names.iter().find_map(|&name| Some((name, var(name).filter(|v| !v.trim().is_empty())?)))
        };
        let v6 = match first(&["PLANESPRAY_ADDR_FAMILY", "NCCL_IB_ADDR_FAMILY", "NCCL_SOCKET_FAMILY"]) {
            Some((name, value)) => {
                log.push(format!("address family {value}, from {name}"));
                match value.trim() {
                    "AF_INET" => Some(false),
                    "AF_INET6" => Some(true),
                    _ => return Err(format!("{name}={value}: it must be AF_INET or AF_INET6")),
                }
            }
            None => None,
        };
        let planes = if let Some((name, value)) = first(&["PLANESPRAY_PLANES"]) {
            log.push(format!("planes {value}, from {name}"));
            addresses(name, &value, interfaces)?
        } else if let Some((name, value)) = first(&["PLANESPRAY_IFNAME", "NCCL_SOCKET_IFNAME"]) {
            let matched = matching(&value, &usable(interfaces, v6));
            if matched.is_empty() {
                let names: Vec<&str> = interfaces.iter().map(|i| i.name.as_str()).collect();
                return Err(format!(
                    "{name}={value} matches no interface with an address; there are {}",
                    names.join(", ")
                ));
            }
            log.push(format!("planes {}, from {name}={value}", list(&matched)));
            matched
        } else {
            let chosen = default_interface(&usable(interfaces, v6));
            let chosen = chosen.ok_or("no interface of this machine has an address; set PLANESPRAY_PLANES")?;
            log.push(format!(
                "planes {}, the first interface that is not a loopback or container bridge; PLANESPRAY_PLANES lists others",
                list(std::slice::from_ref(&chosen))
            ));
            vec![chosen]
        };
        if planes.len() > MAX_PLANES {
            return Err(format!("{} planes are chosen, and {MAX_PLANES} is the most", planes.len()));
        }
        let number = |names: &[&'static str], range: std::ops::RangeInclusive<u64>| match first(names) {
            Some((name, value)) => match value.trim().parse::<u64>() {
                Ok(n) if range.contains(&n) => Ok(Some((name, n))),
                _ => Err(format!("{name}={value}: it must be a number in {}..={}", range.start(), range.end())),
            },
            None => Ok(None),
        };
        let lanes = number(&["PLANESPRAY_LANES_PER_PLANE", "NCCL_IB_QPS_PER_CONNECTION"], 1..=128)?;
        let lanes_per_plane = lanes.map(|(name, n)| {
            let n = n.min(64) as u16;
            log.push(format!("{n} lanes per plane, from {name}"));
            n
        });
        let class = number(&["PLANESPRAY_TC", "NCCL_IB_TC"], 0..=255)?;
        let dscp = class.and_then(|(name, tos)| {
            log.push(format!("DSCP {} (traffic class {tos}), from {name}", tos >> 2));
            Dscp::new((tos >> 2) as u8)
        });
        let mut peer_timeout = Duration::from_secs(10);
        if let Some((name, ms)) = number(&["PLANESPRAY_PEER_TIMEOUT_MS"], 100..=3_600_000)? {
            log.push(format!("a peer may be silent for {ms} ms, from {name}"));
            peer_timeout = Duration::from_millis(ms);
        } else if let Some((name, exponent)) = number(&["NCCL_IB_TIMEOUT"], 1..=31)? {
            let retries = number(&["NCCL_IB_RETRY_CNT"], 0..=7)?.map_or(7, |(_, n)| n);
            let ns = (4096u64 << exponent).saturating_mul(retries + 1);
            peer_timeout = Duration::from_nanos(ns).clamp(Duration::from_millis(100), Duration::from_secs(3600));
            log.push(format!("a peer may be silent for {peer_timeout:?}, from {name} and NCCL_IB_RETRY_CNT"));
        }
        let connect = number(&["PLANESPRAY_CONNECT_TIMEOUT_MS"], 100..=86_400_000)?;
        let connect_timeout = Duration::from_millis(connect.map_or(120_000, |(_, ms)| ms));
        for name in UNUSED {
            if first(&[name]).is_some() {
                log.push(format!("{name} is not used: messages go through UDP sockets, not through an RDMA device"));
            }
        }
        log.push(
            match &key {
                Some(_) => "bootstrap: authenticated by the job key and the handle's secret",
                None => {
                    "bootstrap: authenticated by the handle's secret alone, which is as safe as the channel that NCCL sends \
                     handles through; set PLANESPRAY_JOB_KEY_FILE for more"
                }
            }
            .to_owned(),
        );
        Ok(Settings { planes, lanes_per_plane, dscp, peer_timeout, connect_timeout, key, log })
    }

    /// This machine's addresses, in the order of its interfaces.
    pub(super) fn interfaces() -> Vec<Interface> {
        let mut found = Vec::new();
        let Ok(all) = nix::ifaddrs::getifaddrs() else { return found };
        for entry in all {
            let up = entry.flags.contains(nix::net::if_::InterfaceFlags::IFF_UP);
            let (true, Some(address)) = (up, entry.address) else { continue };
            let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
            let v6 = address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip()));
            let Some(addr) = v4.or(v6) else { continue };
            let loopback = entry.flags.contains(nix::net::if_::InterfaceFlags::IFF_LOOPBACK);
            found.push(Interface { name: entry.interface_name, addr, loopback });
        }
        found
    }
}

/// Addresses written out, each with its interface if it is known.
fn addresses(name: &str, value: &str, interfaces: &[Interface]) -> Result<Vec<(String, IpAddr)>, String> {
    let one = |text: &str| {
        let addr: IpAddr = text.parse().map_err(|_| format!("{name}={value}: `{text}` is not an address"))?;
        let known = interfaces.iter().find(|i| i.addr == addr);
        Ok((known.map_or_else(String::new, |i| i.name.clone()), addr))
    };
    value.split(',').map(str::trim).filter(|t| !t.is_empty()).map(one).collect()
}

/// One address per interface: of the family asked for, else IPv4 before IPv6, never a link-local one.
fn usable(interfaces: &[Interface], v6: Option<bool>) -> Vec<Interface> {
    let mut found: Vec<Interface> = Vec::new();
    for interface in interfaces {
        let local = matches!(interface.addr, IpAddr::V6(a) if a.is_unicast_link_local());
        if local || v6.is_some_and(|v6| v6 != interface.addr.is_ipv6()) {
            continue;
        }
        match found.iter_mut().find(|i| i.name == interface.name) {
            Some(known) if known.addr.is_ipv6() && interface.addr.is_ipv4() => *known = interface.clone(),
            Some(_) => {}
            None => found.push(interface.clone()),
        }
    }
    found
}

/// NCCL's grammar: `^` excludes, `=` wants whole names, otherwise prefixes. The order is the list's.
fn matching(value: &str, interfaces: &[Interface]) -> Vec<(String, IpAddr)> {
    let value = value.trim();
    let (exclude, rest) = value.strip_prefix('^').map_or((false, value), |r| (true, r));
    let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |r| (true, r));
    let names: Vec<&str> = rest.split(',').map(str::trim).filter(|n| !n.is_empty()).collect();
    let fits = |i: &Interface, name: &str| if exact { i.name == name } else { i.name.starts_with(name) };
    let pair = |i: &Interface| (i.name.clone(), i.addr);
    if exclude {
        let kept = interfaces.iter().filter(|i| !i.loopback && !names.iter().any(|n| fits(i, n)));
        return kept.map(pair).collect();
    }
    let mut found: Vec<(String, IpAddr)> = Vec::new();
    for name in names {
        for interface in interfaces.iter().filter(|i| fits(i, name)) {
            if !found.iter().any(|(known, _)| *known == interface.name) {
                found.push(pair(interface));
            }
        }
    }
    found
}

fn default_interface(interfaces: &[Interface]) -> Option<(String, IpAddr)> {
    let bridge = |i: &Interface| ["docker", "virbr", "br-", "cni", "veth"].iter().any(|p| i.name.starts_with(p));
    let real = interfaces.iter().find(|i| !i.loopback && !bridge(i));
    real.or_else(|| interfaces.first()).map(|i| (i.name.clone(), i.addr))
}

fn list(planes: &[(String, IpAddr)]) -> String {
    let text: Vec<String> = planes.iter().map(|(name, addr)| format!("{name} {addr}")).collect();
    text.join(", ")
}
