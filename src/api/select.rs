//! Which engine a fabric runs, over what.

use std::net::IpAddr;
use std::path::PathBuf;

use super::config::{Engine, FabricConfig};
use super::error::Error;
use crate::lanes::MAX_PORTS;
use crate::soft::interface_address;
use crate::topology::{ChosenPort, HcaEntry, Library, Question, Reason, Survey, select as select_gid, survey};
use crate::verbs::{self, VerbsError};

/// Another place than `/` to look for `sys`, `dev` and `proc`, for tests.
const ROOT: &str = "PLANESPRAY_ROOT";

/// What to open.
#[derive(Debug)]
pub(super) enum Selected {
    /// The embedded engine over these addresses.
    Embedded(Vec<IpAddr>),
    /// Verbs over these ports.
    Verbs(Vec<ChosenPort>),
}

/// Whether libibverbs can be used on this machine: it is loaded and asked.
pub fn verbs_library() -> Library {
    let absent = |e: VerbsError| match e {
        VerbsError::LibraryAbsent { path, reason } => Library::Absent { seen: format!("{path}: {reason}") },
        other => Library::Absent { seen: other.to_string() },
    };
    let library = match verbs::Library::load_named() {
        Ok(library) => library,
        Err(e) => return absent(e),
    };
    match verbs::devices(&library) {
        // Whether there are devices the kernel's files say, and more about them.
        Ok(_) | Err(VerbsError::NoDevice) => Library::Present,
        Err(VerbsError::NoKernelSupport { errno }) => Library::NoKernel { errno },
        Err(e) => absent(e),
    }
}

pub(super) fn select(config: &FabricConfig) -> Result<Selected, Error> {
    if config.device.is_none() {
        let by_address = match config.engine {
            Engine::Embedded => true,
            Engine::Auto => !config.planes.is_empty(),
            Engine::Verbs => false,
        };
        if by_address {
            return Ok(Selected::Embedded(config.planes.clone()));
        }
    }
    let lookup = |name: &str| std::env::var(name).ok();
    let root = lookup(ROOT).map_or_else(|| PathBuf::from("/"), PathBuf::from);
    let question = Question { root: &root, wanted: config.engine, list: config.device.as_deref(), memory: 0 };
    let found = survey(&question, verbs_library(), &lookup)?;
    if let Some(hca) = &found.hca {
        tracing::info!(list = %hca.list, by = %hca.by, "devices are chosen by a list");
    }
    let choice = match &found.choice {
        Ok(choice) => choice,
        Err(reasons) => return Err(Error::NoDevice { reasons: joined(reasons) }),
    };
    if !choice.ports.is_empty() {
        for port in choice.ports.iter().filter(|p| p.link_local) {
            let (device, addr) = (&port.device, port.addr);
            tracing::warn!(device, %addr, "only a link-local address; hosts on the same link alone are reached");
        }
        return Ok(Selected::Verbs(choice.ports.clone()));
    }
    let planes = interfaces(&found)?;
    if config.engine == Engine::Auto {
        for reason in &choice.reasons {
            tracing::info!("not taken: {reason}");
        }
        tracing::info!(?planes, "the embedded engine is taken");
    }
    Ok(Selected::Embedded(planes))
}

fn joined(reasons: &[Reason]) -> String {
    let lines: Vec<String> = reasons.iter().map(ToString::to_string).collect();
    lines.join("; ")
}

/// Addresses for the embedded engine: of the interfaces that the list names, or of the devices that it names.
fn interfaces(found: &Survey) -> Result<Vec<IpAddr>, Error> {
    let reasons = || found.choice.as_ref().map_or_else(|r| joined(r), |c| joined(&c.reasons));
    let Some(list) = found.hca.as_ref().map(|h| &h.list).filter(|l| !l.exclude) else {
        return Err(Error::NoDevice {
            reasons: format!("{}; for the embedded engine name local addresses", reasons()),
        });
    };
    let mut planes: Vec<IpAddr> = Vec::new();
    for entry in &list.entries {
        let mut addrs = named_interface(entry)?;
        if addrs.is_empty() {
            let ports = found.devices.iter().filter(|d| list.named(entry, &d.name)).flat_map(|d| &d.ports);
            let wanted = ports.filter(|p| entry.port.is_none_or(|n| n == p.number));
            addrs.extend(wanted.filter_map(|p| Some(select_gid(&p.gids, &found.gids, None).ok()?.gid.addr)));
        }
        if addrs.is_empty() {
            let what = format!(
                "\"{}\" is no interface, and no RDMA device with an address; `ip -brief address` lists interfaces ({})",
                entry.hca,
                reasons()
            );
            return Err(Error::Config { what });
        }
        planes.extend(addrs);
    }
    planes.dedup();
    if planes.len() > MAX_PORTS {
        return Err(Error::Config { what: format!("{} planes are named; at most {MAX_PORTS}", planes.len()) });
    }
    Ok(planes)
}

/// The address of the interface of that very name.
fn named_interface(entry: &HcaEntry) -> Result<Vec<IpAddr>, Error> {
    match interface_address(&entry.hca) {
        None => Ok(Vec::new()),
        Some(_) if entry.rail.or(entry.plane).is_some() || entry.port.is_some() => Err(Error::Config {
            what: format!(
                "\"{}\" is an interface: its position in the list is its plane; leave port, rail and plane out",
                entry.hca
            ),
        }),
        Some(Some(addr)) => Ok(vec![addr]),
        Some(None) => {
            Err(Error::Config { what: format!("interface {} has no usable address; give it one", entry.hca) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(engine: Engine, device: Option<&str>, planes: &[&str]) -> Result<Selected, String> {
        let planes = planes.iter().map(|p| p.parse().unwrap()).collect();
        let config = FabricConfig { engine, device: device.map(str::to_owned), planes, ..FabricConfig::default() };
        select(&config).map_err(|e| e.to_string())
    }

    #[test]
    fn addresses_mean_the_embedded_engine() {
        for engine in [Engine::Auto, Engine::Embedded] {
            let selected = by(engine, None, &["127.0.0.1", "127.0.0.2"]).unwrap();
            assert!(matches!(selected, Selected::Embedded(planes) if planes.len() == 2));
        }
    }

    #[test]
    fn interfaces_are_devices_too() {
        let Ok(Selected::Embedded(planes)) = by(Engine::Embedded, Some("lo"), &[]) else { panic!("lo has an address") };
        assert_eq!(planes, ["127.0.0.1".parse::<IpAddr>().unwrap()]);
        let error = by(Engine::Embedded, Some("lo,nosuch0"), &[]).unwrap_err();
        assert!(error.contains("\"nosuch0\" is no interface") && error.contains("ip -brief address"), "{error}");
        let error = by(Engine::Embedded, Some("lo:1:0:1"), &[]).unwrap_err();
        assert!(error.contains("position in the list is its plane"), "{error}");
        let error = by(Engine::Auto, Some("lo:x"), &[]).unwrap_err();
        assert!(error.contains("port \"x\""), "{error}");
    }
}
