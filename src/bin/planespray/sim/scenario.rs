//! `planespray sim --scenario`: the spraying machine and the queue pairs over simulated planes that fail.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use planespray::simulation::{Broken, Outcome, Record, Scenario};
use serde_json::{Value, json};

use super::report::Sink;
use crate::say::say;

/// Exit code for a broken promise.
const BROKEN: u8 = 1;

/// What is to be run.
#[derive(Debug)]
pub(crate) struct Plan {
    /// As the command line names it.
    pub(super) name: String,
    pub(super) scenario: Scenario,
    pub(super) seeds: RangeInclusive<u64>,
    /// Go on with further seeds for so long.
    pub(super) long: Option<Duration>,
    pub(super) pcap: Option<PathBuf>,
    pub(super) log: Option<PathBuf>,
    pub(super) json: Option<String>,
}

/// Finds a scenario: `builtin:NAME`, or a file.
pub(super) fn find(name: &str) -> Result<Scenario, String> {
    if let Some(builtin) = name.strip_prefix("builtin:") {
        return Scenario::builtin(builtin).ok_or_else(|| {
            let names: Vec<&str> = Scenario::builtins().collect();
            format!("there is no scenario builtin:{builtin}; there are {}", names.join(", "))
        });
    }
    let text = fs::read_to_string(name).map_err(|e| format!("cannot read {name}: {e}"))?;
    Scenario::parse(&text).map_err(|e| format!("{name}: {e}"))
}

/// Runs the seeds, until one breaks a promise.
pub(crate) fn execute(plan: &Plan) -> ExitCode {
    match run(plan) {
        Ok(code) => code,
        Err(what) => {
            say(what);
            ExitCode::FAILURE
        }
    }
}

fn run(plan: &Plan) -> Result<ExitCode, String> {
    let mut sink = Sink::open(plan.json.as_deref())?;
    let started = Instant::now();
    let alone = plan.long.is_none() && plan.seeds.start() == plan.seeds.end();
    let quiet = plan.json.as_deref() == Some("-");
    let mut runs = 0u64;
    let mut seed = *plan.seeds.start();
    loop {
        let record = if alone { record(plan.pcap.as_deref(), plan.log.as_deref())? } else { Record::default() };
        let began = Instant::now();
        let result = plan.scenario.run(seed, record);
        runs += 1;
        let seconds = began.elapsed().as_secs_f64();
        sink.write(&report(&plan.name, seed, &result, seconds)).map_err(|e| format!("cannot write the report: {e}"))?;
        match result {
            Ok(o) if plan.long.is_none() && !quiet => println!("{}", line(seed, &o)),
            Ok(_) => {}
            Err(broken) => return show(plan, seed, &broken),
        }
        let more = match plan.long {
            Some(long) => started.elapsed() < long,
            None => seed < *plan.seeds.end(),
        };
        if !more {
            break;
        }
        seed += 1;
    }
    if !alone && !quiet {
        println!("{}: {runs} seeds in {:.1} s, no promise broken", plan.name, started.elapsed().as_secs_f64());
    }
    let _ = io::stdout().flush();
    Ok(ExitCode::SUCCESS)
}

/// Repeats a seed that broke a promise, and keeps what happened.
fn show(plan: &Plan, seed: u64, broken: &Broken) -> Result<ExitCode, String> {
    let stem = Path::new(plan.name.trim_start_matches("builtin:")).file_stem();
    let stem = stem.map_or("scenario".into(), |s| s.to_string_lossy().into_owned());
    let named = |given: &Option<PathBuf>, ext| given.clone().unwrap_or_else(|| format!("{stem}-{seed}.{ext}").into());
    let (pcap, log) = (named(&plan.pcap, "pcap"), named(&plan.log, "log"));
    // Comparing all memory after every step takes long, and only this promise is about memory.
    let thorough = broken.promise == "P2";
    let again = Record { thorough, ..record(Some(&pcap), Some(&log))? };
    let again = plan.scenario.run(seed, again);
    let broken = again.as_ref().err().unwrap_or(broken);
    say(format_args!("seed {seed}: {broken}"));
    say(format_args!("written: {} and {}", pcap.display(), log.display()));
    say(format_args!("see it again: planespray sim --scenario '{}' --seed {seed}", plan.name));
    Ok(ExitCode::from(BROKEN))
}

fn record(pcap: Option<&Path>, log: Option<&Path>) -> Result<Record, String> {
    let open = |path: Option<&Path>| -> Result<Option<Box<dyn Write>>, String> {
        let Some(path) = path else { return Ok(None) };
        let file = File::create(path).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        Ok(Some(Box::new(BufWriter::new(file))))
    };
    Ok(Record { pcap: open(pcap)?, log: open(log)?, thorough: false })
}

fn line(seed: u64, o: &Outcome) -> String {
    format!(
        "seed {seed}: {} messages, {} bytes in {:?}; slowest {:?}; {} lanes lost, {} chunks sent again",
        o.messages, o.bytes, o.took, o.slowest, o.lanes_lost, o.replayed
    )
}

fn report(name: &str, seed: u64, result: &Result<Outcome, Broken>, seconds: f64) -> Value {
    match result {
        Ok(o) => json!({
            "scenario": name,
            "seed": seed,
            "kept": true,
            "messages": o.messages,
            "bytes": o.bytes,
            "failed": o.failed,
            "slowest_us": o.slowest.as_nanos() as f64 / 1e3,
            "simulated_s": o.took.as_nanos() as f64 / 1e9,
            "lanes_lost": o.lanes_lost,
            "replayed": o.replayed,
            "survived": o.survived,
            "per_plane_bytes": o.planes,
            "packets": o.net.sent,
            "lost": o.net.lost + o.net.cut + o.net.swallowed,
            "dropped": o.net.dropped,
            "marked": o.net.marked,
            "corrupted": o.net.corrupted,
            "strays": o.net.strays,
            "steps": o.steps,
            "seconds": (seconds * 1e3).round() / 1e3,
        }),
        Err(b) => json!({
            "scenario": name,
            "seed": seed,
            "kept": false,
            "promise": b.promise,
            "at_s": b.at.as_nanos() as f64 / 1e9,
            "what": b.what,
            "seconds": (seconds * 1e3).round() / 1e3,
        }),
    }
}
