//! Every kind of failure by many seeds, and rules broken on purpose.

use super::random::Kind;
use super::{Broken, Outcome, Record, Scenario, Source};
use crate::spray::mutation::{Mutation, set_broken};

/// Runs a seed of a scenario that comes with the crate.
pub(super) fn attempt(seed: u64, name: &str) -> Result<Outcome, Broken> {
    Scenario::builtin(name).expect("a name that there is").run(seed, Record::default())
}

/// The same; what is broken fails the test, with the command that shows it.
pub(super) fn must(seed: u64, name: &str) -> Outcome {
    attempt(seed, name).unwrap_or_else(|broken| {
        panic!(
            "seed {seed}: {broken}\nsee it: planespray sim --scenario builtin:{name} --seed {seed} --pcap {name}-{seed}.pcap --log {name}-{seed}.log"
        )
    })
}

/// The seeds of a test: one alone if the environment names it, or as many as it says.
pub(super) fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    match (number("PLANESPRAY_SEED"), number("PLANESPRAY_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(many)) => 0..many,
        (None, None) => 0..count,
    }
}

pub(super) fn all(name: &str, count: u64) -> Outcome {
    let mut sum = Outcome::default();
    let start = std::time::Instant::now();
    for seed in seeds(count) {
        let o = must(seed, name);
        sum.lanes_lost += o.lanes_lost;
        sum.replayed += o.replayed;
        sum.survived += o.survived;
        sum.steps += o.steps;
        sum.slowest = sum.slowest.max(o.slowest);
    }
    println!("{name}: {sum:?} in {:?}", start.elapsed());
    if seeds(count) == (0..count) {
        assert!(sum.lanes_lost > 0 && sum.replayed > 0 && sum.survived > 0, "something happened: {sum:?}");
    }
    sum
}

#[test]
fn silent_planes_and_paths() {
    all("silent", 500);
}

#[test]
fn flaps_and_late_packets() {
    all("flaps", 500);
}

#[test]
fn all_planes_but_one_in_any_order() {
    all("storm", 500);
}

#[test]
fn ends_that_stand_still() {
    all("stops", 500);
}

#[test]
fn what_fails_returns() {
    all("returns", 300);
}

#[test]
fn old_words_about_new_lanes() {
    all("echoes", 300);
}

/// A broken rule is noticed within 2,000 seeds.
fn noticed(rule: Mutation) {
    set_broken(Some(rule));
    let found = (0..2000u64).find_map(|seed| {
        let kind = match rule {
            // Old words need a place to come from.
            Mutation::Generation => Kind::Echoes,
            _ => [Kind::Flaps, Kind::Storm, Kind::Stops, Kind::Echoes][seed as usize % 4],
        };
        Scenario(Source::Random(kind)).run(seed, Record::default()).err().map(|e| (seed, kind, e))
    });
    set_broken(None);
    let (seed, kind, broken) = found.unwrap_or_else(|| panic!("nobody noticed that {rule:?} is broken"));
    println!("{rule:?} broken: noticed by seed {seed} of {kind:?}: {broken}");
}

#[test]
fn a_fence_that_does_not_wait_is_noticed() {
    noticed(Mutation::FlushWait);
}

#[test]
fn generations_that_nobody_compares_are_noticed() {
    noticed(Mutation::Generation);
}

#[test]
fn answers_by_slot_are_noticed() {
    noticed(Mutation::AnswerKey);
}

#[test]
fn answers_without_bitmap_are_noticed() {
    noticed(Mutation::Bitmap);
}

#[test]
fn messages_that_end_too_soon_are_noticed() {
    noticed(Mutation::Quarantine);
}

#[test]
fn two_carriers_of_one_chunk_are_noticed() {
    noticed(Mutation::SingleCarrier);
}
