//! `planespray devices`: what there is, what would be used, and why not the rest.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use planespray::topology::{
    Choice, Device, Gid, GidNetdev, Library, Memlock, PlaceSource, Port, PortReport, Question, Survey, SurveyError,
    Unusable, Wanted, is_qualified, select, survey,
};
use planespray::verbs_library;
use serde_json::{Value, json};

/// Options as given.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The result as one JSON object to a file, or to standard output with `-`
    #[arg(long)]
    json: Option<String>,
    /// Devices in NCCL's grammar: [^][=]hca[:port[:rail[:plane]]],.. [default: PLANESPRAY_HCA, else NCCL_IB_HCA, else all]
    #[arg(short = 'd', long = "device")]
    device: Option<String>,
    /// Where the tree of files begins.
    #[arg(long = "sysfs", value_name = "ROOT", hide = true)]
    root: Option<PathBuf>,
}

/// Why there is no list.
pub(crate) enum Failure {
    /// What the user said is wrong.
    Usage(String),
    /// The system.
    System(String),
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // The same place where a fabric looks.
    let elsewhere = args.root.clone().or_else(|| std::env::var_os("PLANESPRAY_ROOT").map(PathBuf::from));
    let root = elsewhere.as_deref().unwrap_or(Path::new("/"));
    let library = match args.root {
        Some(_) => Library::look(root),
        None => verbs_library(),
    };
    let question = Question { root, wanted: Wanted::Auto, list: args.device.as_deref(), memory: 0 };
    let found = survey(&question, library, &variable).map_err(|e| match e {
        SurveyError::Scan(e) => Failure::System(e.to_string()),
        e => Failure::Usage(e.to_string()),
    })?;
    // Only where verbs are insisted on there may be no choice.
    let choice = found.choice.as_ref().map_err(|_| Failure::System("no engine could be chosen".into()))?;
    let written = match args.json.as_deref() {
        None => print(&text(&found, choice)),
        Some("-") => print(&format!("{}\n", json(&found, choice))),
        Some(path) => std::fs::write(path, format!("{}\n", json(&found, choice))).map_err(|e| format!("{path}: {e}")),
    };
    written.map_err(Failure::System)
}

pub(crate) fn print(text: &str) -> Result<(), String> {
    match std::io::stdout().write_all(text.as_bytes()) {
        // Whoever read it has had enough.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|e| format!("standard output: {e}")),
    }
}

pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// What became of a GID: why not, or whether it is the one.
fn gid_verdict(found: &Survey, port: &Port, gid: &Gid) -> (bool, bool, Option<Unusable>) {
    let netdev = port.netdev.as_ref().map(|n| n.name.as_str());
    let selected = select(&port.gids, &found.gids, netdev).ok();
    let is_it = selected.is_some_and(|s| s.gid.index == gid.index);
    match found.gids.judge(gid) {
        Err(why) if !is_it => (false, false, Some(why)),
        _ => (true, is_it, None),
    }
}

fn report_of<'a>(choice: &'a Choice, device: &Device, port: &Port) -> Option<&'a PortReport> {
    choice.reports.iter().find(|r| r.device == device.name && r.port == port.number)
}

fn is_chosen(choice: &Choice, device: &Device, port: &Port) -> bool {
    choice.ports.iter().any(|p| p.device == device.name && p.port == port.number)
}

fn speed(mbps: Option<u32>) -> String {
    mbps.map_or("speed unknown".into(), |m| format!("{} Gb/s", f64::from(m) / 1000.0))
}

fn text(found: &Survey, choice: &Choice) -> String {
    let mut out = String::new();
    // A string takes whatever is written to it.
    let _ = write_text(&mut out, found, choice);
    out
}

fn write_text(out: &mut String, found: &Survey, choice: &Choice) -> std::fmt::Result {
    if found.devices.is_empty() {
        writeln!(out, "This machine has no RDMA device.")?;
    }
    for device in &found.devices {
        let driver = device.driver.as_deref().unwrap_or("driver unknown");
        write!(out, "{}  {driver}", device.name)?;
        if let Some(pci) = device.pci {
            write!(out, "  PCI {pci}")?;
        }
        if let Some(numa) = device.numa {
            write!(out, "  NUMA node {numa}")?;
        }
        if let Some(firmware) = &device.firmware {
            write!(out, "  firmware {firmware}")?;
        }
        match device.is_software() {
            true => writeln!(out)?,
            false => writeln!(out, "  {}", is_qualified(device, &variable))?,
        }
        for port in &device.ports {
            write_port(out, found, choice, device, port)?;
        }
        for note in &device.notes {
            writeln!(out, "  note: {note}")?;
        }
    }
    writeln!(out)?;
    write!(out, "Engine: {}", choice.engine)?;
    if choice.ports.is_empty() {
        writeln!(
            out,
            ", RoCEv2 over ordinary UDP sockets; it takes local addresses (`planespray bench --bind ADDR,..`)"
        )?;
    } else {
        let ports: Vec<String> = choice.ports.iter().map(|p| format!("{} port {}", p.device, p.port)).collect();
        writeln!(out, " over {}", ports.join(", "))?;
    }
    if let Some(hca) = &found.hca {
        write!(out, "Devices by {}: {}", hca.by, hca.list)?;
        match hca.overridden {
            Some(other) => writeln!(out, " ({other} is set too and does not count)")?,
            None => writeln!(out)?,
        }
    }
    if !found.gid_variables.is_empty() {
        writeln!(out, "Addresses by {}", found.gid_variables.join(", "))?;
    }
    if let Some(path) = &found.topology {
        writeln!(out, "Topology file: {}", path.display())?;
    }
    if !choice.reasons.is_empty() {
        writeln!(out, "Not taken:")?;
    }
    for reason in &choice.reasons {
        writeln!(out, "  {reason}")?;
    }
    Ok(())
}

fn write_port(out: &mut String, found: &Survey, choice: &Choice, device: &Device, port: &Port) -> std::fmt::Result {
    let physical = port.physical_state.as_ref().map(|p| format!(" ({p})")).unwrap_or_default();
    write!(out, "  port {}  {}{physical}  {}  {}", port.number, port.state, port.link_layer, speed(port.speed()))?;
    if let Some(netdev) = &port.netdev {
        let bond =
            if netdev.bond.is_empty() { String::new() } else { format!(" (bond of {})", netdev.bond.join(", ")) };
        write!(out, "  {}{bond}", netdev.name)?;
    }
    match port.mtu() {
        Some(mtu) => write!(out, "  MTU {mtu}")?,
        None => write!(out, "  MTU unknown")?,
    }
    let report = report_of(choice, device, port);
    if let Some(place) = report.and_then(|r| r.place) {
        write!(out, "  rail {}  plane {}", place.rail, place.plane)?;
    }
    match report.and_then(|r| r.fault.as_ref()) {
        Some(fault) => writeln!(out, "  not usable: {fault}")?,
        None if is_chosen(choice, device, port) => writeln!(out, "  chosen")?,
        None => writeln!(out, "  usable")?,
    }
    for gid in &port.gids {
        let netdev = match &gid.netdev {
            GidNetdev::Here(name) | GidNetdev::Elsewhere(name) => name,
            GidNetdev::Unreadable(_) => "-",
        };
        let verdict = match gid_verdict(found, port, gid) {
            (_, true, _) => "the one to use".to_owned(),
            (_, _, Some(why)) => why.to_string(),
            _ => "usable".into(),
        };
        writeln!(out, "    GID {}  {}  {}  {netdev}  {verdict}", gid.index, gid.kind, gid.addr)?;
    }
    Ok(())
}

fn json(found: &Survey, choice: &Choice) -> Value {
    let hca = found
        .hca
        .as_ref()
        .map(|h| json!({"list": h.list.to_string(), "by": h.by.to_string(), "overridden": h.overridden}));
    let chosen: Vec<Value> = choice
        .ports
        .iter()
        .map(|p| {
            json!({
                "device": p.device, "port": p.port, "gid_index": p.gid_index, "address": p.addr,
                "link_local": p.link_local, "netdev": p.netdev, "mtu": p.mtu, "speed_mbps": p.speed,
                "weight": p.weight, "rail": p.place.rail, "plane": p.place.plane,
            })
        })
        .collect();
    let reasons: Vec<Value> =
        choice.reasons.iter().map(|r| json!({"subject": r.subject, "reason": r.why.to_string()})).collect();
    let memlock = match found.host.memlock {
        Memlock::Limited(bytes) => json!(bytes),
        Memlock::Unlimited => json!("unlimited"),
        Memlock::Unknown => Value::Null,
    };
    json!({
        "engine": choice.engine.to_string(),
        "ports": chosen,
        "not_taken": reasons,
        "hca": hca,
        "gid_variables": found.gid_variables,
        "topology_file": found.topology,
        "memlock": memlock,
        "devices": found.devices.iter().map(|d| device_json(found, choice, d)).collect::<Vec<_>>(),
    })
}

fn device_json(found: &Survey, choice: &Choice, device: &Device) -> Value {
    let qualification = (!device.is_software()).then(|| is_qualified(device, &variable).to_string());
    json!({
        "device": device.name,
        "driver": device.driver,
        "provider": device.provider(),
        "pci": device.pci.map(|p| p.to_string()),
        "numa": device.numa,
        "firmware": device.firmware,
        "qualification": qualification,
        "notes": device.notes,
        "ports": device.ports.iter().map(|p| port_json(found, choice, device, p)).collect::<Vec<_>>(),
    })
}

fn port_json(found: &Survey, choice: &Choice, device: &Device, port: &Port) -> Value {
    let report = report_of(choice, device, port);
    let place = report.and_then(|r| r.place);
    let gids: Vec<Value> = port
        .gids
        .iter()
        .map(|g| {
            let (usable, chosen, why) = gid_verdict(found, port, g);
            let netdev = match &g.netdev {
                GidNetdev::Here(name) | GidNetdev::Elsewhere(name) => Some(name),
                GidNetdev::Unreadable(_) => None,
            };
            json!({
                "index": g.index, "type": g.kind.to_string(), "address": g.addr, "netdev": netdev,
                "usable": usable, "chosen": chosen, "why": why.map(|w| w.to_string()),
            })
        })
        .collect();
    json!({
        "port": port.number,
        "state": port.state.to_string(),
        "physical_state": port.physical_state,
        "link_layer": port.link_layer.to_string(),
        "speed_mbps": port.speed(),
        "mtu": port.mtu(),
        "netdev": port.netdev.as_ref().map(|n| &n.name),
        "bond": port.netdev.as_ref().map(|n| &n.bond),
        "rail": place.map(|p| p.rail),
        "plane": place.map(|p| p.plane),
        "place_by": place.map(|p| match p.source {
            PlaceSource::List => "list",
            PlaceSource::File => "file",
            PlaceSource::Automatic => "automatic",
        }),
        "chosen": is_chosen(choice, device, port),
        "usable": report.is_some_and(|r| r.fault.is_none()),
        "why": report.and_then(|r| r.fault.as_ref()).map(ToString::to_string),
        "gids": gids,
    })
}
