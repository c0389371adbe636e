//! The shares that `bench` reports, checked against its capture: another source than the counters they come from.
#![cfg(feature = "cli")]

#[path = "common/bench.rs"]
mod bench;

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::BufReader;
use std::net::IpAddr;
use std::path::Path;

use planespray::wire::pcap::Reader;
use planespray::wire::{Opcode, Packet};
use serde_json::Value;

const CLIENT: [&str; 2] = ["127.0.74.1", "127.0.74.2"];
const SERVER: [&str; 2] = ["127.0.74.3", "127.0.74.4"];

/// Payload bytes of WRITEs that each of `planes` sent for the first time, and how many came again.
fn captured(path: &Path, planes: &[&str]) -> (Vec<u64>, u64) {
    let planes: Vec<IpAddr> = planes.iter().map(|a| a.parse().unwrap()).collect();
    let mut reader = Reader::new(BufReader::new(File::open(path).unwrap())).unwrap();
    let (mut bytes, mut again, mut seen) = (vec![0; planes.len()], 0, HashSet::new());
    while let Some(datagram) = reader.datagram().unwrap() {
        let Some(plane) = planes.iter().position(|&a| a == datagram.src.ip()) else { continue };
        let packet = Packet::parse(datagram.payload).expect("one of ours");
        let bth = packet.header.bth;
        let writes = Opcode::WRITE_FIRST.0..=Opcode::WRITE_ONLY_IMM.0;
        if !writes.contains(&bth.opcode.0) {
            continue;
        }
        // Queue pair numbers are unique per receiving process: one server here.
        if seen.insert((bth.dest_qp, bth.psn)) {
            bytes[plane] += packet.payload.len() as u64;
        } else {
            again += 1;
        }
    }
    (bytes, again)
}

/// How far the result is from the capture, as a fraction: of a plane's share, and of its bytes.
fn deviation(result: &Value, captured: &[u64]) -> f64 {
    let total: u64 = captured.iter().sum();
    let planes = result["per_plane"].as_array().unwrap();
    assert_eq!(planes.len(), captured.len());
    let of = |(plane, &bytes): (&Value, &u64)| {
        let share = (plane["share"].as_f64().unwrap() - bytes as f64 / total as f64).abs();
        let size = (plane["bytes"].as_f64().unwrap() / bytes as f64 - 1.0).abs();
        share.max(size)
    };
    planes.iter().zip(captured).map(of).fold(0.0, f64::max)
}

/// A run that lost a lane, as one may where this machine stands still, is followed by another: its capture holds the chunks
/// of that lane once more for each that was sent again, its counters hold none of those that had arrived.
const RUNS: usize = 12;

/// Bytes of one WRITE; a chunk is part of one.
const SIZE: u64 = 128 << 10;

/// A result beside the capture of its run.
struct Run {
    result: Value,
    /// Payload bytes that each plane sent for the first time.
    captured: Vec<u64>,
    /// Packets that came again.
    again: u64,
}

impl Run {
    fn new(args: &[&str]) -> Run {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("share.pcap");
        let bind = [CLIENT, SERVER].concat().join(",");
        let mut all = vec!["--planes", "2", "--bind", &bind, "--pcap", path.to_str().unwrap(), "-s", "128K"];
        all.extend(args);
        let result = bench::result(&all);
        let (captured, again) = captured(&path, &CLIENT);
        Run { result, captured, again }
    }

    /// Chunks of lost lanes. They must explain what the capture holds beyond the counters.
    fn of_lost_lanes(&self) -> u64 {
        let number = |value: &Value| value.as_u64().unwrap();
        let chunks = number(&self.result["replayed"]) + number(&self.result["survived"]);
        let counted: u64 = self.result["per_plane"].as_array().unwrap().iter().map(|p| number(&p["bytes"])).sum();
        let on_wire: u64 = self.captured.iter().sum();
        assert!(on_wire <= counted + counted / 50 + chunks * SIZE, "{counted} counted, {self}");
        assert!(counted <= on_wire + on_wire / 50, "{counted} counted, {self}");
        chunks
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in the capture, {}", self.captured, self.result)
    }
}

fn check(args: &[&str]) -> u64 {
    let mut seen = Vec::new();
    for _ in 0..RUNS {
        let mut run = Run::new(&[&["-n", "250"], args].concat());
        assert!(run.captured.iter().sum::<u64>() >= 250 * SIZE, "{run}");
        if run.of_lost_lanes() > 0 {
            seen.push(run.to_string());
            continue;
        }
        let off = deviation(&run.result, &run.captured);
        assert!(off < 0.02, "{off}: {run}");
        // The check itself sees what it is for: a share and a byte count that are off by 3 %.
        for (field, change) in [("share", 0.03), ("bytes", run.captured[0] as f64 * 0.03)] {
            let right = run.result["per_plane"][0][field].clone();
            run.result["per_plane"][0][field] = (right.as_f64().unwrap() + change).into();
            assert!(deviation(&run.result, &run.captured) > 0.02, "{field}");
            run.result["per_plane"][0][field] = right;
        }
        return run.again;
    }
    panic!("each of {RUNS} runs lost a lane:\n{}", seen.join("\n"));
}

#[test]
fn shares_are_those_of_the_capture() {
    check(&[]);
    let again = check(&["--fault", "loss=1%,reorder=1%,seed=5"]);
    assert!(again > 0, "what was lost was sent again");
    let cut = Run::new(&["-D", "1", "--plane-rate", "500mbit", "--cut", "0@0.4s"]);
    assert!(cut.of_lost_lanes() > 0, "a plane was lost with chunks under way: {cut}");
}
