//! A result's fields and what they are made of.

use std::time::Duration;

use super::super::api::{Engine, Injected as Faults, UdpPort};
use super::super::client::histogram;
use super::super::options::{Extent, FabricOptions, Role};
use super::super::samples::tests::flow;
use super::*;

fn resolved(lat: bool) -> Resolved {
    Resolved {
        role: Role::Both { server_planes: vec![] },
        fabric: FabricOptions {
            planes: vec!["127.0.0.1".parse().unwrap(), "127.0.1.1".parse().unwrap()],
            device: None,
            engine: Engine::Auto,
            probe: true,
            bootstrap_port: 0,
            lanes: 4,
            mtu: 4096,
            udp_port: UdpPort::Auto,
            dscp: None,
            receive_buffer: None,
            pcap: None,
            fault: None,
            plane_rate: None,
            key_file: None,
            insecure: false,
            busy: true,
            grant_always: true,
        },
        measure: Measure {
            op: Operation::Write,
            lat,
            sizes: vec![1000],
            extent: Extent::Duration(Duration::from_secs(1)),
            depth: None,
            class: planespray::class::Class::Bulk,
            verify: true,
            flip: false,
            compare_tcp: true,
            report_gbits: true,
            json: None,
            acts: vec![],
        },
    }
}

fn stats(bytes: [u64; 2]) -> Stats {
    let plane = |(i, &bytes): (usize, &u64)| PlaneStats {
        plane: i as u16,
        rail: 0,
        addr: "127.0.0.1".parse().unwrap(),
        udp_port: 4791,
        bytes,
        share: None,
        rtt_us: Some(12.5),
        ce_share: None,
        retransmits: 0,
    };
    Stats {
        planes: bytes.iter().enumerate().map(plane).collect(),
        lanes: vec![],
        receive_drops: 0,
        injected: Faults::default(),
        bad_icrc: 0,
        replayed: bytes[0] / 100,
        survived: bytes[1] / 100,
    }
}

fn record(lat: bool) -> Record {
    let mut ours = flow(1_000_000, 1000, 0);
    let mut tcp = vec![flow(500_000, 1000, 0), flow(800_000, 1000, 0)];
    if lat {
        for (flow, ns) in [(&mut ours, 3000), (&mut tcp[0], 5000)] {
            let mut h = histogram().unwrap();
            h.record_n(ns, 1000).unwrap();
            flow.lat = Some(h);
        }
        tcp.truncate(1);
    }
    Record::new(&Facts {
        resolved: &resolved(lat),
        engine: "embedded",
        size: 1000,
        samples: &[Sample { ours, tcp, placement: Some(Placement::Far) }],
        voids: 2,
        faults: [1, 0, 0],
        retransmits: 7,
        injected: [3, 4, 5],
        outages: Outages::default(),
        before: &stats([100, 100]),
        after: &stats([850, 350]),
    })
}

#[test]
fn the_fields_are_those_promised() {
    let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(&record(false)).unwrap()).unwrap();
    let fields: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    let mut promised = vec![
        "op",
        "size",
        "iterations",
        "engine",
        "planes",
        "lanes",
        "bw_gbps",
        "msg_rate_mpps",
        "lat_us",
        "wrong",
        "lost",
        "dup",
        "retransmits",
        "replayed",
        "survived",
        "verify",
        "cpu_ns_per_byte",
        "placement",
        "per_plane",
        "peer_gbps",
        "peer_lat_us",
        "voids",
        "injected",
    ];
    promised.sort_unstable();
    let mut sorted = fields.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, promised);
    let plane: Vec<&str> = json["per_plane"][0].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(plane.len(), 5);
    for field in ["plane", "bytes", "share", "rtt_us", "ce_share"] {
        assert!(plane.contains(&field), "{field}");
    }
    assert_eq!(json["op"], "write");
    assert_eq!(json["placement"], "far");
    assert_eq!((json["planes"].as_u64(), json["lanes"].as_u64()), (Some(2), Some(8)));
    assert_eq!(json["bw_gbps"].as_f64(), Some(8.0));
    assert_eq!(json["peer_gbps"].as_f64(), Some(6.4));
    assert_eq!(json["per_plane"][0]["share"].as_f64(), Some(0.75));
    assert_eq!(json["per_plane"][1]["bytes"].as_u64(), Some(250));
    assert_eq!([&json["replayed"], &json["survived"]], [7, 2]);
    assert!(json["lat_us"].is_null() && json["peer_lat_us"].is_null() && json["per_plane"][0]["ce_share"].is_null());
    assert!(record(false).is_faulty());
}

#[test]
fn latency_has_percentiles_and_no_bandwidth() {
    let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(&record(true)).unwrap()).unwrap();
    assert!(json["bw_gbps"].is_null() && json["peer_gbps"].is_null() && json["msg_rate_mpps"].is_null());
    let p50 = json["lat_us"]["p50"].as_f64().unwrap();
    assert!((p50 - 3.0).abs() < 0.01, "{p50}");
    assert!((json["peer_lat_us"].as_f64().unwrap() - 5.0).abs() < 0.01);
}

#[test]
fn nothing_measured_is_null() {
    let r = Record::new(&Facts {
        resolved: &resolved(false),
        engine: "embedded",
        size: 8,
        samples: &[],
        voids: 0,
        faults: [0; 3],
        retransmits: 0,
        injected: [0; 3],
        outages: Outages::default(),
        before: &stats([0, 0]),
        after: &stats([0, 0]),
    });
    assert!(r.bw_gbps.is_none() && r.cpu_ns_per_byte.is_none() && r.peer_gbps.is_none() && !r.is_faulty());
    assert_eq!(r.per_plane[0].share, 0.0);
}
