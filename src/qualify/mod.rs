//! What a NIC does, measured on it: the proofs that lanes rest on, and what its owner should know.
//!
//! A [`Qualify`] names two ports of this machine, or one twice, and [`Qualify::run`] gives its [`Finding`]s. Queue pairs of the
//! measurement are its own: nothing else on the device is touched. Every wait ends after [`PATIENCE`].
#![forbid(unsafe_code)]

mod calls;
mod late;
mod marks;
mod offers;
mod ports;
mod rate;
mod rig;

use std::time::Duration;

use crate::Error;
use crate::topology::{ChosenPort, Device};
use crate::verbs::{self, Library};
use rig::{End, Rig, Trouble};

/// Nothing is waited for longer.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Qualify {
    /// The device whose port is measured: what it takes in, and what its calls cost.
    pub device: Device,
    /// Its port.
    pub port: ChosenPort,
    /// The port that writes to it; the same one, if it is looped to itself.
    pub peer: ChosenPort,
    /// Queue pairs that are destroyed while a peer writes, 1 or more.
    pub rounds: u32,
    /// How long each number of lanes writes; at most [`PATIENCE`].
    pub rate_for: Duration,
}

/// What became of a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is as it must be.
    Passed,
    /// It is not.
    Failed,
    /// This is how it is; either way is fine.
    Seen,
    /// This machine does not say.
    Unknown,
}

impl Verdict {
    /// As tables and JSON print it.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Passed => "passed",
            Verdict::Failed => "failed",
            Verdict::Seen => "seen",
            Verdict::Unknown => "unknown",
        }
    }
}

/// An answer.
#[derive(Clone, PartialEq, Debug)]
pub struct Finding {
    /// What was asked: `late writes`, `rate`, ..
    pub subject: &'static str,
    /// Without a pass the device is not proven.
    pub needed: bool,
    /// What became of it.
    pub verdict: Verdict,
    /// What was seen.
    pub seen: String,
    /// What that means for lanes over this device, and the next step if there is one.
    pub means: String,
    /// Its numbers, with names that end in their unit.
    pub figures: Vec<(String, f64)>,
}

impl Finding {
    /// True if everything that is needed passed, and something was.
    pub fn prove(all: &[Finding]) -> bool {
        let mut needed = all.iter().filter(|f| f.needed).peekable();
        needed.peek().is_some() && needed.all(|f| f.verdict == Verdict::Passed)
    }

    fn new(subject: &'static str, verdict: Verdict, seen: impl Into<String>, means: impl Into<String>) -> Finding {
        Finding { subject, needed: false, verdict, seen: seen.into(), means: means.into(), figures: Vec::new() }
    }

    /// Something that must pass.
    fn proof(subject: &'static str, passed: bool, seen: impl Into<String>, means: impl Into<String>) -> Finding {
        let verdict = if passed { Verdict::Passed } else { Verdict::Failed };
        Finding { needed: true, ..Finding::new(subject, verdict, seen, means) }
    }

    /// A measurement that could not be made.
    fn broken(subject: &'static str, trouble: &Trouble) -> Finding {
        let means = format!("this could not be measured, so it is not proven; {}", trouble.step());
        Finding::proof(subject, false, trouble.to_string(), means)
    }
}

impl Qualify {
    /// Measures. What goes wrong with one question is its finding; the others are still asked.
    ///
    /// # Errors
    /// libibverbs or a device cannot be opened, or a port cannot be used at all.
    pub fn run(&self) -> Result<Vec<Finding>, Error> {
        let library = Library::load_named()?;
        let devices = verbs::devices(&library)?;
        let rig = Rig { subject: End::open(&devices, &self.port)?, peer: End::open(&devices, &self.peer)? };
        let mut findings = vec![
            late::writes(&rig, self.rounds.max(1)),
            calls::latency(&rig),
            ports::flow_label(&rig),
            ports::source_port(&rig),
            marks::counters(&rig),
            marks::datagrams(&rig),
        ];
        findings.extend(offers::all(&rig, &self.device, &self.port));
        findings.push(rate::by_lanes(&rig, self.rate_for.min(PATIENCE)));
        Ok(findings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_proofs_count_and_all_of_them() {
        let seen = Finding::new("a", Verdict::Unknown, "", "");
        let good = Finding::proof("b", true, "", "");
        let bad = Finding::proof("c", false, "", "");
        assert!(Finding::prove(&[seen.clone(), good.clone()]));
        assert!(!Finding::prove(&[good, bad]) && !Finding::prove(&[seen]) && !Finding::prove(&[]));
        let broken = Finding::broken("d", &Trouble::Silent { what: "a write" });
        assert!(broken.needed && broken.verdict == Verdict::Failed && broken.seen.contains("10s"), "{broken:?}");
    }
}
