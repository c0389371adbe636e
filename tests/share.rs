//! The shares that `bench` reports, checked against its capture: another source than the counters they come from.
#![cfg(feature = "cli")]

#[path = "common/bench.rs"]
mod bench;

use std::collections::HashSet;
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

/// Runs until one agrees: a lane lost because this machine stood still has its unanswered chunks sent again by another lane,
/// and the capture then holds their bytes twice, the counters once. A count that is wrong is so in every run.
const RUNS: usize = 12;

/// Payload bytes of the WRITEs of one run.
const SENT: u64 = 250 << 17;

/// One run: its result, the bytes of each plane in its capture, and how many packets came again.
fn run(args: &[&str]) -> (Value, Vec<u64>, u64) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("share.pcap");
    let bind = [CLIENT, SERVER].concat().join(",");
    let mut all = vec!["--planes", "2", "--bind", &bind, "--pcap", path.to_str().unwrap(), "-s", "128K", "-n", "250"];
    all.extend(args);
    let result = bench::result(&all);
    let (bytes, again) = captured(&path, &CLIENT);
    assert!(bytes.iter().sum::<u64>() >= SENT, "{bytes:?}");
    (result, bytes, again)
}

fn check(args: &[&str]) -> u64 {
    let mut seen = Vec::new();
    for _ in 0..RUNS {
        let (mut result, bytes, again) = run(args);
        let off = deviation(&result, &bytes);
        if off >= 0.02 {
            // Only this way round: what is counted went over the wire, and what a lost lane carried may not be counted.
            let counted: u64 =
                result["per_plane"].as_array().unwrap().iter().map(|p| p["bytes"].as_u64().unwrap()).sum();
            let on_wire: u64 = bytes.iter().sum();
            assert!(on_wire > counted, "{counted} counted, {bytes:?} in the capture, {result}");
            seen.push(format!("{off}: {bytes:?} in the capture, {result}"));
            continue;
        }
        // The check itself sees what it is for: a share and a byte count that are off by 3 %.
        for (field, change) in [("share", 0.03), ("bytes", bytes[0] as f64 * 0.03)] {
            let right = result["per_plane"][0][field].clone();
            result["per_plane"][0][field] = (right.as_f64().unwrap() + change).into();
            assert!(deviation(&result, &bytes) > 0.02, "{field}");
            result["per_plane"][0][field] = right;
        }
        return again;
    }
    panic!("no run of {RUNS} agrees with its capture:\n{}", seen.join("\n"));
}

#[test]
fn shares_are_those_of_the_capture() {
    check(&[]);
    let again = check(&["--fault", "loss=1%,reorder=1%,seed=5"]);
    assert!(again > 0, "what was lost was sent again");
}
