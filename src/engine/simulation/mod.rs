//! The engine, the spraying machine and the queue pairs over simulated planes that fail in every way, in virtual time. A
//! seed repeats a run exactly.
//!
//! A [`Scenario`] is a file or one of those that come with the crate; the tests of the promises and `planespray sim` run the
//! same ones.

#[cfg(test)]
mod fates;
mod faults;
mod file;
#[cfg(test)]
mod gates;
#[cfg(test)]
mod mtu;
mod plain;
mod plan;
mod promises;
mod random;
mod run;
#[cfg(test)]
mod single;
#[cfg(test)]
mod tests;
mod traffic;
mod units;
#[cfg(test)]
mod words;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use plan::{Broken, Outcome};
pub use run::Record;

use crate::time::Time;
use plan::Plan;

/// What fails, what is sent meanwhile, and what must come of it.
#[derive(Clone, Debug)]
pub struct Scenario(Source);

#[derive(Clone, Debug)]
enum Source {
    Random(random::Kind),
    File(Box<file::File>),
}

/// Scenarios in files of their own that come with the crate.
const SHIPPED: &[(&str, &str)] = &[
    ("example", include_str!("scenarios/example.toml")),
    ("one-of-four", include_str!("scenarios/one-of-four.toml")),
    ("two-of-four", include_str!("scenarios/two-of-four.toml")),
    ("heals", include_str!("scenarios/heals.toml")),
    ("path-dark", include_str!("scenarios/path-dark.toml")),
    ("slow-plane", include_str!("scenarios/slow-plane.toml")),
    ("stopped", include_str!("scenarios/stopped.toml")),
    ("hundred-flaps", include_str!("scenarios/hundred-flaps.toml")),
    ("everything", include_str!("scenarios/everything.toml")),
    ("restart", include_str!("scenarios/restart.toml")),
];

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// It is no such file, or its parts do not fit together; the text says what and, where known, in which line.
    pub fn parse(text: &str) -> Result<Scenario, String> {
        file::File::parse(text).map(|file| Scenario(Source::File(Box::new(file))))
    }

    /// A scenario that comes with the crate.
    pub fn builtin(name: &str) -> Option<Scenario> {
        if let Some((_, kind)) = random::Kind::ALL.iter().find(|k| k.0 == name) {
            return Some(Scenario(Source::Random(*kind)));
        }
        let (_, text) = SHIPPED.iter().find(|s| s.0 == name)?;
        Scenario::parse(text).ok()
    }

    /// The names of those: first the random ones, of which every seed is another, then files.
    pub fn builtins() -> impl Iterator<Item = &'static str> {
        random::Kind::ALL.iter().map(|k| k.0).chain(SHIPPED.iter().map(|s| s.0))
    }

    fn plan(&self, seed: u64) -> Plan {
        match &self.0 {
            Source::Random(kind) => random::plan(seed, *kind),
            Source::File(file) => file.plan(seed),
        }
    }

    /// Runs a seed.
    ///
    /// # Errors
    /// A promise was broken. A panic counts as one.
    pub fn run(&self, seed: u64, record: Record) -> Result<Outcome, Broken> {
        let plan = self.plan(seed);
        catch_unwind(AssertUnwindSafe(|| run::run(plan, record))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let what = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default();
            Err(Broken { promise: "panic", at: Time::ZERO, what })
        })
    }
}
