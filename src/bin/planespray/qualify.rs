//! `planespray qualify`: measures a NIC, says what that means, and keeps whether it is proven.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use planespray::topology::{self, ChosenPort, Device, Question, SurveyError, Wanted, survey};
use planespray::{Finding, Qualify, Verdict, verbs_library};
use serde_json::{Value, json};

use crate::devices::{Failure, print, variable};

/// Options as given.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Ports to measure, in NCCL's grammar: [^][=]hca[:port],.. [default: PLANESPRAY_HCA, else NCCL_IB_HCA, else all]
    #[arg(short = 'd', long = "device")]
    device: Option<String>,
    /// The port that writes to them: another one of this machine, on the same plane [default: each port writes to itself]
    #[arg(long, value_name = "HCA[:PORT]")]
    peer_device: Option<String>,
    /// Queue pairs that are destroyed while a peer writes
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rounds: u32,
    /// Seconds for each number of lanes, 0.01 to 10
    #[arg(short = 'D', long, default_value_t = 1.0)]
    seconds: f64,
    /// The result as one JSON object to a file, or to standard output with `-`
    #[arg(long)]
    json: Option<String>,
}

/// What was found of one port.
struct Answer {
    plan: Qualify,
    findings: Vec<Finding>,
}

/// True if everything is proven.
pub(crate) fn run(args: &Args) -> Result<bool, Failure> {
    if !(0.01..=10.0).contains(&args.seconds) {
        return Err(Failure::Usage(format!("--seconds {} is not 0.01 to 10", args.seconds)));
    }
    let ports = chosen(args.device.as_deref())?;
    let peer = match args.peer_device.as_deref() {
        None => None,
        Some(list) => match &chosen(Some(list))?[..] {
            [one] => Some(one.1.clone()),
            several => {
                let names: Vec<String> = several.iter().map(|(_, p)| format!("{}:{}", p.device, p.port)).collect();
                let what = format!("--peer-device {list} is {} ports; name one of {}", several.len(), names.join(", "));
                return Err(Failure::Usage(what));
            }
        },
    };
    let mut answers = Vec::new();
    for (device, port) in ports {
        let peer = peer.clone().unwrap_or_else(|| port.clone());
        if peer.addr.is_ipv4() != port.addr.is_ipv4() {
            return Err(Failure::System(format!(
                "{} port {} has {}, {} port {} has {}: choose one family with PLANESPRAY_ADDR_FAMILY",
                port.device, port.port, port.addr, peer.device, peer.port, peer.addr
            )));
        }
        let rate_for = Duration::from_secs_f64(args.seconds);
        let plan = Qualify { device, port, peer, rounds: args.rounds, rate_for };
        let findings = plan.run().map_err(|e| Failure::System(e.to_string()))?;
        answers.push(Answer { plan, findings });
    }
    let proven = answers.iter().all(|a| Finding::prove(&a.findings));
    // What was measured is shown, also where it cannot be kept.
    let (record, trouble) = match keep(&answers) {
        Ok(path) => (Some(path), None),
        Err(e) => (None, Some(e)),
    };
    let written = match args.json.as_deref() {
        None => print(&text(&answers, record.as_deref())),
        Some("-") => print(&format!("{}\n", json(&answers, record.as_deref()))),
        Some(path) => {
            std::fs::write(path, format!("{}\n", json(&answers, record.as_deref()))).map_err(|e| format!("{path}: {e}"))
        }
    };
    written.map_err(Failure::System)?;
    trouble.map_or(Ok(proven), |e| Err(Failure::System(e.to_string())))
}

/// The ports that a list stands for.
fn chosen(list: Option<&str>) -> Result<Vec<(Device, ChosenPort)>, Failure> {
    let elsewhere = std::env::var_os("PLANESPRAY_ROOT").map(PathBuf::from);
    let root = elsewhere.as_deref().unwrap_or(Path::new("/"));
    let question = Question { root, wanted: Wanted::Verbs, list, memory: 0 };
    let found = survey(&question, verbs_library(), &variable).map_err(|e| match e {
        SurveyError::Scan(e) => Failure::System(e.to_string()),
        e => Failure::Usage(e.to_string()),
    })?;
    let choice = found.choice.map_err(|reasons| {
        let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
        Failure::System(format!("there is no port to measure: {}", reasons.join("; ")))
    })?;
    let device = |p: &ChosenPort| found.devices.iter().find(|d| d.name == p.device).cloned();
    Ok(choice.ports.into_iter().filter_map(|p| Some((device(&p)?, p))).collect())
}

/// Each device is proven if all of its ports that were measured are.
fn keep(answers: &[Answer]) -> Result<PathBuf, topology::RecordError> {
    let mut path = PathBuf::new();
    for (i, a) in answers.iter().enumerate() {
        let same = |b: &&Answer| b.plan.device.name == a.plan.device.name;
        if answers[..i].iter().any(|b| same(&b)) {
            continue;
        }
        let passed = answers.iter().filter(same).all(|b| Finding::prove(&b.findings));
        path = topology::record(&a.plan.device, passed, &variable)?;
    }
    Ok(path)
}

fn text(answers: &[Answer], record: Option<&Path>) -> String {
    let mut out = String::new();
    // A string takes whatever is written to it.
    let _ = write_text(&mut out, answers, record);
    out
}

fn write_text(out: &mut String, answers: &[Answer], record: Option<&Path>) -> std::fmt::Result {
    for Answer { plan, findings } in answers {
        let (port, peer) = (&plan.port, &plan.peer);
        let firmware = plan.device.firmware.as_deref().unwrap_or("unknown");
        write!(out, "{} port {} ({}, firmware {firmware}), ", port.device, port.port, plan.device.provider())?;
        match port == peer {
            true => writeln!(out, "looped to itself")?,
            false => writeln!(out, "written to by {} port {}", peer.device, peer.port)?,
        }
        for f in findings {
            let mark = match f.verdict {
                Verdict::Passed => "ok  ",
                Verdict::Failed => "FAIL",
                Verdict::Seen => "    ",
                Verdict::Unknown => "?   ",
            };
            writeln!(out, "  {mark}  {}: {}", f.subject, f.seen)?;
            writeln!(out, "          {}", f.means)?;
        }
        let verdict = if Finding::prove(findings) { "proven" } else { "not proven" };
        writeln!(out, "{} port {}: {verdict}\n", port.device, port.port)?;
    }
    match record {
        Some(path) => writeln!(out, "Kept in {}", path.display()),
        None => writeln!(out, "Not kept."),
    }
}

fn json(answers: &[Answer], record: Option<&Path>) -> Value {
    let port = |p: &ChosenPort| json!({ "device": p.device, "port": p.port, "address": p.addr });
    let ports: Vec<Value> = answers
        .iter()
        .map(|Answer { plan, findings }| {
            let all: Vec<Value> = findings
                .iter()
                .map(|f| {
                    let figures: serde_json::Map<String, Value> =
                        f.figures.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
                    json!({
                        "subject": f.subject, "needed": f.needed, "verdict": f.verdict.name(), "seen": f.seen,
                        "means": f.means, "figures": figures,
                    })
                })
                .collect();
            json!({
                "measured": port(&plan.port), "peer": port(&plan.peer), "provider": plan.device.provider(),
                "firmware": plan.device.firmware, "proven": Finding::prove(findings), "findings": all,
            })
        })
        .collect();
    json!({ "ports": ports, "record": record, "proven": answers.iter().all(|a| Finding::prove(&a.findings)) })
}
