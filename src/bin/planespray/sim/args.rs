//! The options of `planespray sim`.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use planespray::policy::Kind;
use planespray::sim::uec::{Change, Matrix, Part, Pattern, Scenario, Topology};
use planespray::time::Span;

use super::scenario;

/// Options as given.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Run the engine itself over planes that fail, as a file says: see docs/simulation.md. Or builtin:NAME.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["topo", "cm", "pattern", "policy"])]
    scenario: Option<String>,
    /// With --scenario: one seed.
    #[arg(long, value_name = "N", requires = "scenario", conflicts_with = "seeds")]
    seed: Option<u64>,
    /// With --scenario: go on with further seeds for so many hours.
    #[arg(long, requires = "scenario", value_parser = hours)]
    hours: Option<f64>,
    /// With --scenario: write all packets to a capture. Of several seeds that is the first that breaks a promise.
    #[arg(long, value_name = "FILE", requires = "scenario")]
    pcap: Option<PathBuf>,
    /// With --scenario: write a line for everything that happens, of the same seed.
    #[arg(long, value_name = "FILE", requires = "scenario")]
    log: Option<PathBuf>,
    /// The fabric of each plane: a .topo file.
    #[arg(long, value_name = "FILE", required_unless_present = "scenario")]
    topo: Option<PathBuf>,
    /// The traffic: a .cm file.
    #[arg(long, value_name = "FILE", conflicts_with = "pattern", required_unless_present_any = ["pattern", "scenario"])]
    cm: Option<PathBuf>,
    /// Traffic made by rule: permutation (another one for each seed), tornado, ring, all-to-all, incast:N, outcast:N.
    #[arg(long)]
    pattern: Option<String>,
    /// Bytes of each flow of a pattern, such as 8M.
    #[arg(long, default_value = "8M", value_parser = bytes)]
    size: u32,
    /// single, ecmp, round-robin, two-random-rtt, oblivious, reps, bitmap, mixed or planespray.
    #[arg(long, required_unless_present = "scenario")]
    policy: Option<Kind>,
    /// Equal planes.
    #[arg(long, default_value_t = 1)]
    planes: u8,
    /// Planes that are slow from the start, such as 0=0.5 or 1-2=0.25.
    #[arg(long, value_name = "PLANES=SHARE", value_parser = shares)]
    plane_speed: Vec<(RangeInclusive<u32>, f64)>,
    /// Spines of every plane that are slow from the start, such as 0-3=0.25.
    #[arg(long, value_name = "SPINES=SHARE", value_parser = shares)]
    spine_speed: Vec<(RangeInclusive<u32>, f64)>,
    /// A change: TIME:PART:STATE with plane:P, spine:P.S, link:P.LEAF.PORT, agg:P.SWITCH.PORT or host:H.P and dead, up or a share.
    #[arg(long, value_name = "EVENT")]
    event: Vec<Change>,
    /// Full queues cut off payloads, or drop packets.
    #[arg(long, value_enum, default_value = "on")]
    trim: Toggle,
    /// Switches send each packet to their shortest queue.
    #[arg(long)]
    adaptive: bool,
    /// Entropy values of a flow over all planes.
    #[arg(long, default_value_t = 256)]
    paths: u16,
    /// Decide by chunk over fixed paths: bytes of a chunk, such as 16K.
    #[arg(long, value_parser = bytes, requires = "lanes")]
    chunk: Option<u32>,
    /// Fixed paths of a flow.
    #[arg(long, requires = "chunk")]
    lanes: Option<u16>,
    /// Seeds, such as 3 or 1-5.
    #[arg(long, default_value = "1", value_parser = seeds)]
    seeds: RangeInclusive<u64>,
    /// Simulated milliseconds after which a run ends.
    #[arg(long, default_value_t = 100)]
    limit_ms: u64,
    /// Write one JSON object per seed to a file, or to standard output with -.
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Debug, ValueEnum)]
enum Toggle {
    On,
    Off,
}

/// What is to be run: one of two simulators.
#[derive(Debug)]
pub(crate) enum Wanted {
    Policies(Box<Plan>),
    Scenario(scenario::Plan),
}

/// Policies to compare.
#[derive(Debug)]
pub(crate) struct Plan {
    base: Scenario,
    permuted: Option<u32>,
    pub(crate) seeds: RangeInclusive<u64>,
    pub(crate) limit_ms: u64,
    pub(crate) json: Option<String>,
}

impl Args {
    /// Reads the files, and checks the options together.
    pub(crate) fn resolve(self) -> Result<Wanted, String> {
        if let Some(name) = self.scenario {
            let seeds = self.seed.map_or(self.seeds, |seed| seed..=seed);
            let scenario = scenario::find(&name)?;
            let long = self.hours.map(|h| Duration::from_secs_f64(h * 3600.0));
            let (pcap, log, json) = (self.pcap, self.log, self.json);
            return Ok(Wanted::Scenario(scenario::Plan { name, scenario, seeds, long, pcap, log, json }));
        }
        let (Some(topo), Some(policy)) = (&self.topo, self.policy) else {
            return Err("either --scenario, or --topo and --policy, is needed".into());
        };
        let read = |path: &Path| fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()));
        let topology = Topology::parse(&read(topo)?).map_err(|e| format!("{}: {e}", topo.display()))?;
        let mut permuted = None;
        let matrix = match (&self.cm, &self.pattern) {
            (Some(path), _) => Matrix::parse(&read(path)?).map_err(|e| format!("{}: {e}", path.display()))?,
            (None, Some(name)) => {
                let pattern = pattern(name)?;
                permuted = matches!(pattern, Pattern::Permutation { .. }).then_some(self.size);
                pattern.matrix(topology.hosts, self.size)
            }
            (None, None) => return Err("either --cm or --pattern is needed".into()),
        };
        let mut base = Scenario::new(topology, matrix, policy);
        base.planes = self.planes;
        base.trim = self.trim == Toggle::On;
        base.adaptive = self.adaptive;
        base.paths = self.paths;
        base.chunk = self.chunk.zip(self.lanes);
        base.limit = Span::from_millis(self.limit_ms);
        for (planes, speed) in self.plane_speed {
            for plane in planes {
                let plane = u8::try_from(plane).map_err(|_| format!("--plane-speed: there is no plane {plane}"))?;
                base.changes.push(Change { at: Span::ZERO, part: Part::Plane(plane), speed });
            }
        }
        for (spines, speed) in self.spine_speed {
            base.changes.extend(spines.map(|spine| Change {
                at: Span::ZERO,
                part: Part::Spine { plane: None, spine },
                speed,
            }));
        }
        base.changes.extend(self.event);
        let (seeds, limit_ms, json) = (self.seeds, self.limit_ms, self.json);
        Ok(Wanted::Policies(Box::new(Plan { base, permuted, seeds, limit_ms, json })))
    }
}

impl Plan {
    /// The scenario of a seed: permutations differ from seed to seed.
    pub(crate) fn scenario(&self, seed: u64) -> Scenario {
        let mut scenario = self.base.clone();
        if let Some(bytes) = self.permuted {
            scenario.matrix = Pattern::Permutation { seed: seed as u32 }.matrix(scenario.topology.hosts, bytes);
        }
        scenario
    }
}

fn pattern(name: &str) -> Result<Pattern, String> {
    let count = |n: &str| n.parse().map_err(|_| format!("--pattern: `{n}` is not a number of hosts"));
    Ok(match name.split_once(':') {
        None if name == "permutation" => Pattern::Permutation { seed: 1 },
        None if name == "tornado" => Pattern::Tornado,
        None if name == "ring" => Pattern::Ring,
        None if name == "all-to-all" => Pattern::AllToAll,
        Some(("incast", n)) => Pattern::Incast { senders: count(n)? },
        Some(("outcast", n)) => Pattern::Outcast { receivers: count(n)? },
        _ => {
            return Err(format!(
                "--pattern: `{name}` is none of permutation, tornado, ring, all-to-all, incast:N, outcast:N"
            ));
        }
    })
}

/// Bytes with K, M or G (powers of two), at most 2^31 - 1.
fn bytes(text: &str) -> Result<u32, String> {
    let (number, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u32 = number.parse().map_err(|_| format!("`{text}` is not a size such as 16K"))?;
    let bytes = u64::from(number) << shift;
    match u32::try_from(bytes) {
        Ok(bytes @ 1..=0x7fff_ffff) => Ok(bytes),
        _ => Err(format!("`{text}` is not between 1 and 2147483647 bytes")),
    }
}

fn range<T: std::str::FromStr + PartialOrd + Copy>(text: &str) -> Option<RangeInclusive<T>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some(first..=last)
}

fn seeds(text: &str) -> Result<RangeInclusive<u64>, String> {
    range(text)
        .filter(|r| *r.end() <= u64::from(u32::MAX))
        .ok_or_else(|| format!("`{text}` is neither a seed nor a range such as 1-5"))
}

fn hours(text: &str) -> Result<f64, String> {
    let hours = text.parse().ok().filter(|h| (0.0..=10_000.0).contains(h));
    hours.ok_or_else(|| format!("`{text}` is not a number of hours"))
}

fn shares(text: &str) -> Result<(RangeInclusive<u32>, f64), String> {
    let parsed = text.split_once('=').and_then(|(which, share)| Some((range(which)?, share.parse::<f64>().ok()?)));
    let fits = |(which, share): &(RangeInclusive<u32>, f64)| *which.end() < 1 << 20 && (0.001..=1.0).contains(share);
    parsed.filter(fits).ok_or_else(|| format!("`{text}` is not like 0-3=0.25, with a share from 0.001 to 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_ranges_and_shares() {
        assert_eq!((bytes("16K"), bytes("8M"), bytes("7")), (Ok(16 << 10), Ok(8 << 20), Ok(7)));
        assert!(["2G", "0", "", "K", "x", "-1", "9999999G"].iter().all(|t| bytes(t).is_err()));
        assert_eq!((seeds("3"), seeds("1-5")), (Ok(3..=3), Ok(1..=5)));
        assert!(["5-1", "a", "1-", ""].iter().all(|t| seeds(t).is_err()));
        assert_eq!(shares("0-3=0.25"), Ok((0..=3, 0.25)));
        assert!(["0=0", "0=2", "0", "=1", "1-0=0.5"].iter().all(|t| shares(t).is_err()));
        assert_eq!(pattern("incast:32"), Ok(Pattern::Incast { senders: 32 }));
        assert!(pattern("incast").is_err() && pattern("incast:x").is_err());
    }
}
