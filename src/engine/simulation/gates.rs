//! The promises that have numbers, each by a scenario that comes with the crate, and that each notices what is broken.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use super::tests::must;
use super::{Record, SHIPPED, Scenario};

#[test]
fn losing_k_of_n_planes_costs_at_most_k_of_n() {
    for seed in 0..2 {
        must(seed, "one-of-four");
        must(seed, "two-of-four");
    }
}

#[test]
fn a_healed_plane_has_its_share_again_and_all_is_as_fast_as_before() {
    must(1, "heals");
}

#[test]
fn a_dark_path_costs_its_lanes_and_no_others() {
    (0..2).for_each(|seed| assert!(must(seed, "path-dark").lanes_lost > 0, "seed {seed}: some lane took that path"));
}

#[test]
fn a_slow_plane_carries_its_part() {
    must(1, "slow-plane");
}

#[test]
fn an_end_that_is_stopped_loses_no_lane() {
    must(1, "stopped");
}

#[test]
fn a_hundred_flaps_cost_nothing() {
    for seed in 0..3 {
        must(seed, "hundred-flaps");
    }
}

#[test]
fn everything_at_once() {
    for seed in 0..10 {
        let o = must(seed, "everything");
        assert!(o.net.strays > 0 && o.net.corrupted > 0 && o.net.swallowed > 0, "seed {seed}: {o:?}");
    }
}

#[test]
fn a_peer_that_begins_anew_is_another() {
    for seed in 0..10 {
        let o = must(seed, "restart");
        assert!(o.failed > 0 && o.messages > 100, "seed {seed}: {o:?}");
        let told = changed("restart", "noticed = false", "noticed = true");
        let o = told.run(seed, Record::default()).unwrap_or_else(|broken| panic!("seed {seed}, noticed: {broken}"));
        assert!(o.failed > 0 && o.messages > 100, "seed {seed}, noticed: {o:?}");
    }
}

/// A scenario that comes with the crate, with one thing changed.
fn changed(name: &str, was: &str, is: &str) -> Scenario {
    let text = SHIPPED.iter().find(|s| s.0 == name).expect("it is there").1;
    assert!(text.contains(was), "{name} says {was}");
    Scenario::parse(&text.replace(was, is)).expect("it is a scenario")
}

/// With one thing changed a scenario breaks this promise.
fn notices(name: &str, was: &str, is: &str, promise: &str) {
    let broken = changed(name, was, is).run(1, Record::default()).expect_err("something is wrong");
    assert_eq!(broken.promise, promise, "{name} with {is}: {broken}");
}

#[test]
fn gates_notice_what_is_broken() {
    notices("one-of-four", "plane = 2", "planes = [1, 2]", "P4");
    notices("heals", "rebuild = true", "rebuild = false", "P4");
    notices("heals", "lasts = \"500ms\"", "lasts = \"4s\"", "P4");
    notices("path-dark", "silence = \"20ms\"", "silence = \"200ms\"", "P3");
    notices("slow-plane", "plane = 3", "planes = [2, 3]", "P4");
    notices("stopped", "what = \"stop\"", "what = \"cut\"\nplane = 0", "P3");
    notices("hundred-flaps", "rebuild = true", "rebuild = false", "P4");
    notices("restart", "session_timeout = \"1s\"", "session_timeout = \"200s\"\n[expect]\nlimit = \"5s\"", "P8");
}

#[derive(Clone, Default)]
struct Shared(Rc<RefCell<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The event log and the capture of a seed.
fn recorded(name: &str, seed: u64) -> (Vec<u8>, Vec<u8>) {
    let (log, pcap) = (Shared::default(), Shared::default());
    let record = Record { log: Some(Box::new(log.clone())), pcap: Some(Box::new(pcap.clone())), thorough: false };
    let result = Scenario::builtin(name).expect("it is there").run(seed, record);
    assert!(result.is_ok(), "{result:?}");
    (log.0.take(), pcap.0.take())
}

#[test]
fn a_seed_repeats_a_run_to_the_byte() {
    for name in ["storm", "everything", "restart"] {
        let first = recorded(name, 5);
        assert!(first.0.len() > 1000 && first.1.len() > 10_000, "there is a log and a capture");
        assert!(first == recorded(name, 5), "{name}: the same seed twice");
        assert!(first.0 != recorded(name, 6).0, "{name}: another seed");
    }
}

#[test]
fn scenarios_that_come_with_the_crate_are_read() {
    for name in Scenario::builtins() {
        assert!(Scenario::builtin(name).is_some(), "{name}");
    }
    for (name, text) in SHIPPED {
        assert!(Scenario::parse(text).is_ok(), "{name}: {:?}", Scenario::parse(text).err());
    }
}

#[test]
fn what_does_not_fit_is_refused_with_its_reason() {
    let refused = |text: &str| Scenario::parse(text).expect_err(text);
    let plane = "[[plane]]\ncount = 2\n";
    assert!(refused("").contains("plane"));
    assert!(refused("[[plane]]\ncount = 9\n").contains("1 to 8"));
    assert!(refused("[[plane]]\npaths = 4\n").contains("needs a rate"));
    assert!(refused(&format!("{plane}[[fault]]\nwhat = \"cut\"\nat = \"1ms\"\nplane = 2\n")).contains("no plane 2"));
    assert!(refused(&format!("{plane}[[fault]]\nwhat = \"stop\"\nat = \"1ms\"\nend = 0\n")).contains("needs lasts"));
    assert!(refused(&format!("{plane}[[fault]]\nwhat = \"cut\"\nat = \"1ms\"\nloss = 0.1\n")).contains("has no loss"));
    assert!(refused(&format!("{plane}[[fault]]\nwhat = \"cut\"\nat = \"1ms\"\npath = 0\n")).contains("a rate"));
    assert!(refused(&format!("{plane}[[traffic]]\nfrom = 0\nsize = \"1K\"\n")).contains("at_once"));
    assert!(refused(&format!("{plane}[[traffic]]\nfrom = 0\nsize = \"1X\"\ncount = 1\n")).contains("1X"));
}
