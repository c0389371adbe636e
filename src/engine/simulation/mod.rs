//! The engine, the spraying machine and the queue pairs over simulated planes that fail in every way, in virtual time. A
//! seed repeats a run exactly.

mod fates;
mod mtu;
mod plain;
mod promises;
mod scenario;
mod words;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use scenario::{Kind, Outcome, run};

use crate::spray::mutation::{Mutation, set_broken};

/// Runs a seed, a panic counted as a broken rule.
fn attempt(seed: u64, kind: Kind) -> Result<Outcome, String> {
    catch_unwind(AssertUnwindSafe(|| run(seed, kind))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default())
    })
}

/// The seeds of a test: one alone if the environment names it, or as many as it says.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    match (number("PLANESPRAY_SEED"), number("PLANESPRAY_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(many)) => 0..many,
        (None, None) => 0..count,
    }
}

fn all(kind: Kind, count: u64, test: &str) -> Outcome {
    let mut sum = Outcome::default();
    let start = std::time::Instant::now();
    for seed in seeds(count) {
        match attempt(seed, kind) {
            Ok(o) => {
                sum.lanes_lost += o.lanes_lost;
                sum.replayed += o.replayed;
                sum.survived += o.survived;
                sum.steps += o.steps;
                sum.slowest = sum.slowest.max(o.slowest);
            }
            Err(broken) => panic!(
                "seed {seed}: {broken}\nrun it alone: PLANESPRAY_SEED={seed} cargo test --lib simulation::{test} -- --nocapture"
            ),
        }
    }
    println!("{kind:?}: {sum:?} in {:?}", start.elapsed());
    if seeds(count) == (0..count) {
        assert!(sum.lanes_lost > 0 && sum.replayed > 0 && sum.survived > 0, "something happened: {sum:?}");
    }
    sum
}

#[test]
fn silent_planes_and_paths() {
    all(Kind::Silent, 500, "silent_planes_and_paths");
}

#[test]
fn flaps_and_late_packets() {
    all(Kind::Flaps, 500, "flaps_and_late_packets");
}

#[test]
fn all_planes_but_one_in_any_order() {
    all(Kind::Storm, 500, "all_planes_but_one_in_any_order");
}

#[test]
fn ends_that_stand_still() {
    all(Kind::Stops, 500, "ends_that_stand_still");
}

#[test]
fn what_fails_returns() {
    all(Kind::Returns, 300, "what_fails_returns");
}

#[test]
fn old_words_about_new_lanes() {
    all(Kind::Echoes, 300, "old_words_about_new_lanes");
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
        attempt(seed, kind).err().map(|e| (seed, kind, e))
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
