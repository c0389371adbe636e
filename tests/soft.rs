//! The socket edge over loopback, without any privilege.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use planespray::class::{Dscp, Ecn};
use planespray::embedded::PacketIo;
use planespray::lanes::{LaneError, PortId, charge};
use planespray::roce::{PathId, RxMeta};
use planespray::seq::{Psn, Qpn};
use planespray::soft::{Fault, ProbeReport, SoftError, Udp, UdpConfig, UdpPort};
use planespray::time::Time;
use planespray::wire::{Bth, Flow, Header, Opcode, Packet, Reth, pcap};

const P0: PortId = PortId(0);

fn config(ip: &str) -> UdpConfig {
    UdpConfig { planes: vec![ip.parse().unwrap()], ..UdpConfig::default() }
}

fn open(ip: &str) -> Udp {
    Udp::open(&config(ip)).unwrap()
}

/// Where the edge receives on its first port.
fn receives_at(udp: &Udp) -> SocketAddr {
    let port = &udp.ports()[0];
    SocketAddr::new(port.addr, port.udp_port)
}

/// `count` WRITE ONLY packets of `len` bytes, numbered by PSN from `psn`; returns the bytes and the packet size.
fn burst(psn: u32, count: u32, len: usize) -> (Vec<u8>, usize) {
    let mut all = Vec::new();
    let mut segment = 0;
    for i in 0..count {
        let payload: Vec<u8> = (0..len).map(|b| (b as u32 ^ (psn + i)) as u8).collect();
        let mut header = Header::new(Bth::new(Opcode::WRITE_ONLY, Qpn::new(0x123456), Psn::new(psn + i)));
        header.reth = Some(Reth { va: 0x1000, rkey: 7, len: len as u32 });
        let packet = Packet { header, payload: &payload, padding: &[], icrc: 0 };
        segment = packet.len();
        let at = all.len();
        all.resize(at + segment, 0);
        assert_eq!(packet.emit(&mut all[at..]), Ok(segment));
    }
    (all, segment)
}

/// Receives until `want` packets came, or a second has passed; returns PSN and meta data of each.
fn receive(udp: &mut Udp, want: usize) -> Vec<(u32, RxMeta)> {
    let start = Instant::now();
    let mut got = Vec::new();
    while got.len() < want && start.elapsed() < Duration::from_secs(1) {
        let now = Time::from_nanos(start.elapsed().as_nanos() as u64);
        let delivered = udp.receive(now, &mut |meta: &RxMeta, packet: &Packet<'_>| {
            let psn = packet.header.bth.psn.get();
            assert!(packet.payload.iter().enumerate().all(|(b, &v)| v == (b as u32 ^ psn) as u8), "payload of {psn}");
            got.push((psn, *meta));
        });
        if delivered == 0 {
            udp.wait(Duration::from_millis(5)).unwrap();
        }
    }
    got
}

fn psns(got: &[(u32, RxMeta)]) -> Vec<u32> {
    got.iter().map(|g| g.0).collect()
}

fn connect(a: &mut Udp, b: &Udp) -> PathId {
    a.open_path(P0, 3, receives_at(b)).unwrap()
}

fn round_trip(ip_a: &str, ip_b: &str) {
    let (mut a, mut b) = (open(ip_a), open(ip_b));
    let path = connect(&mut a, &b);
    let back = connect(&mut b, &a);
    let (mut bytes, segment) = burst(100, 15, 4096);
    assert_eq!(a.send(path, 0x02, &mut bytes, segment), Ok(true));
    let got = receive(&mut b, 15);
    assert_eq!(psns(&got), (100..115).collect::<Vec<_>>());
    let (src, dst): (IpAddr, IpAddr) = (ip_a.parse().unwrap(), ip_b.parse().unwrap());
    assert!(got.iter().all(|(_, m)| m.src == src && m.dst == dst && m.tos == 2 && m.ttl == 64), "{:?}", got[0].1);
    // One system call each way: 9-16 packets.
    assert_eq!((a.counters().gso_batches[4], b.counters().gro_batches[4]), (1, 1));
    assert_eq!((a.counters().sent_packets, b.counters().received_packets), (15, 15));
    assert_eq!(a.counters().sent_bytes, bytes.len() as u64);
    assert_eq!(b.counters().received_bytes, bytes.len() as u64);
    // A shorter last packet, and one packet alone, the other way.
    let (mut bytes, segment) = burst(200, 2, 1024);
    let (last, last_len) = burst(202, 1, 64);
    bytes.extend(last);
    assert_eq!(b.send(back, 0x02, &mut bytes, segment), Ok(true));
    let (mut single, len) = burst(203, 1, 8);
    assert_eq!(b.send(back, 0x02, &mut single, len), Ok(true));
    assert!(last_len < segment);
    assert_eq!(psns(&receive(&mut a, 4)), [200, 201, 202, 203]);
    for udp in [&a, &b] {
        let c = udp.counters();
        assert_eq!((c.bad_icrc, c.parse_errors, c.drops, c.send_errors, c.receive_errors), (0, 0, 0, 0, 0), "{c:?}");
    }
}

#[test]
fn round_trip_v4() {
    round_trip("127.0.1.1", "127.0.1.2");
}

#[test]
fn round_trip_v6() {
    round_trip("::1", "::1");
}

#[test]
fn dscp_and_ecn_arrive_unchanged() {
    for ip in ["127.0.1.3", "::1"] {
        let (mut a, mut b) = (open(ip), open(ip));
        let path = connect(&mut a, &b);
        let back = connect(&mut b, &a);
        for dscp in [0, 10, 26, 46, 63] {
            for ecn in [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
                let tos = Dscp::new(dscp).unwrap().with(ecn);
                for count in [1, 4] {
                    let (mut bytes, segment) = burst(1, count, 256);
                    assert_eq!(a.send(path, tos, &mut bytes, segment), Ok(true));
                    assert!(receive(&mut b, count as usize).iter().all(|g| g.1.tos == tos && Ecn::of(g.1.tos) == ecn));
                    assert_eq!(b.send(back, tos, &mut bytes, segment), Ok(true));
                    assert!(receive(&mut a, count as usize).iter().all(|g| g.1.tos == tos));
                }
            }
        }
        assert_eq!((a.counters().received_packets, b.counters().received_packets), (100, 100));
    }
}

#[test]
fn packets_one_by_one_and_without_gro() {
    let mut sender = Udp::open(&UdpConfig { gso: false, ..config("127.0.1.4") }).unwrap();
    let mut receiver = Udp::open(&UdpConfig { gro: false, ..config("127.0.1.5") }).unwrap();
    assert!(!sender.gso(P0) && receiver.gso(P0));
    let path = connect(&mut sender, &receiver);
    let (mut bytes, segment) = burst(7, 10, 1024);
    assert_eq!(sender.send(path, 0, &mut bytes, segment), Ok(true));
    assert_eq!(psns(&receive(&mut receiver, 10)), (7..17).collect::<Vec<_>>());
    assert_eq!(sender.counters().gso_batches[0], 10);
    sender.set_gso(P0, true);
    assert_eq!(sender.send(path, 0, &mut bytes, segment), Ok(true));
    assert_eq!(psns(&receive(&mut receiver, 10)), (7..17).collect::<Vec<_>>());
    assert_eq!(sender.counters().gso_batches[4], 1);
    assert_eq!(receiver.counters().gro_batches[0], 20);
}

#[test]
fn damaged_packets_and_rubbish_are_counted_and_dropped() {
    for ip in ["127.0.1.6", "::1"] {
        let mut udp = open(ip);
        let to = receives_at(&udp);
        let raw = UdpSocket::bind((ip.parse::<IpAddr>().unwrap(), 0)).unwrap();
        let (mut packet, _) = burst(5, 1, 64);
        Flow::new(raw.local_addr().unwrap(), to).seal(0, &mut packet);
        raw.send_to(&packet, to).unwrap();
        assert_eq!(psns(&receive(&mut udp, 1)), [5]);
        for at in [8, 11, 20, 50, packet.len() - 1] {
            let mut bad = packet.clone();
            bad[at] ^= 1;
            raw.send_to(&bad, to).unwrap();
        }
        for rubbish in [&b""[..], b"x", &[0xff; 16], &[0; 15], &packet[..27]] {
            raw.send_to(rubbish, to).unwrap();
        }
        // FECN and BECN are not covered.
        packet[4] ^= 0xc0;
        raw.send_to(&packet, to).unwrap();
        assert_eq!(psns(&receive(&mut udp, 1)), [5]);
        let c = udp.counters();
        assert_eq!((c.bad_icrc, c.parse_errors, c.received_packets), (5, 5, 2), "{c:?}");
    }
}

#[test]
fn ports_in_use_and_foreign_addresses_are_named() {
    let ip = "127.0.1.7";
    let first = open(ip);
    assert_eq!(first.ports()[0].udp_port, 4791);
    assert_eq!((first.ports()[0].name.as_str(), first.ports()[0].mtu), ("lo", 4096));
    let second = open(ip);
    assert_ne!(second.ports()[0].udp_port, 4791);
    let fixed = |port, ip| Udp::open(&UdpConfig { udp_port: UdpPort::Fixed(port), ..config(ip) });
    let e = fixed(4791, ip).err().unwrap();
    assert_eq!(e, SoftError::InUse { addr: "127.0.1.7:4791".parse().unwrap() });
    assert!(e.to_string().contains("127.0.1.7:4791") && e.to_string().contains("in use"), "{e}");
    // Another address has a port 4791 of its own.
    assert_eq!(fixed(4791, "127.0.1.8").unwrap().ports()[0].udp_port, 4791);
    for foreign in ["192.0.2.1", "2001:db8::1"] {
        let e = Udp::open(&config(foreign)).err().unwrap();
        assert_eq!(e, SoftError::NotLocal { addr: foreign.parse().unwrap() });
        assert!(e.to_string().contains("not an address of this host"), "{e}");
    }
}

#[test]
fn bad_configurations_are_refused() {
    let base = config("127.0.1.9");
    let twice = vec![base.planes[0]; 2];
    let refused = [
        UdpConfig { planes: vec![], ..base.clone() },
        UdpConfig { planes: twice, ..base.clone() },
        UdpConfig { planes: vec!["0.0.0.0".parse().unwrap()], ..base.clone() },
        UdpConfig { planes: vec!["::ffff:127.0.0.1".parse().unwrap()], ..base.clone() },
        UdpConfig { mtu: 1500, ..base.clone() },
        UdpConfig { source_ports: 0, ..base.clone() },
        UdpConfig { udp_port: UdpPort::Fixed(0), ..base.clone() },
    ];
    for cfg in refused {
        assert!(matches!(Udp::open(&cfg).err(), Some(SoftError::Config { .. })), "{cfg:?}");
    }
    let pcap = Some("/nonexistent/dir/x.pcap".into());
    assert!(matches!(Udp::open(&UdpConfig { pcap, ..base }).err(), Some(SoftError::Capture { errno: libc::ENOENT })));
}

#[test]
fn bad_sends_are_refused() {
    let mut udp = open("127.0.1.10");
    let path = udp.open_path(P0, 0, "127.0.1.11:4791".parse().unwrap()).unwrap();
    let mut bytes = vec![0; 65_536];
    for (len, segment) in [(15, 15), (16, 15), (65_001, 4096), (65 * 100, 100), (4096 + 15, 4096), (0, 100)] {
        let sent = udp.send(path, 0, &mut bytes[..len], segment);
        assert!(matches!(sent, Err(LaneError::Invalid { .. })), "{len} by {segment}: {sent:?}");
    }
    assert!(udp.open_path(P0, 0, "[::1]:4791".parse().unwrap()).is_err());
    assert!(udp.open_path(P0, 0, "127.0.1.11:0".parse().unwrap()).is_err());
    assert!(udp.open_path(PortId(1), 0, "127.0.1.11:4791".parse().unwrap()).is_err());
    udp.close_path(path);
    udp.close_path(path);
    udp.close_path(PathId(99));
    assert_eq!(udp.send(path, 0, &mut bytes[..64], 64), Err(LaneError::Invalid { what: "path" }));
    // The number is given out again, once.
    let again = udp.open_path(P0, 0, "127.0.1.11:4791".parse().unwrap()).unwrap();
    let other = udp.open_path(P0, 0, "127.0.1.11:4791".parse().unwrap()).unwrap();
    assert_eq!(again, path);
    assert_ne!(other, path);
    assert_eq!(udp.counters().sent_packets, 0);
}

#[test]
fn a_send_that_fails_is_an_error_and_is_counted() {
    for gso in [true, false] {
        let mut udp = Udp::open(&UdpConfig { gso, ..config("127.0.1.11") }).unwrap();
        // A broadcast address without SO_BROADCAST: EACCES.
        let path = udp.open_path(P0, 0, "255.255.255.255:4791".parse().unwrap()).unwrap();
        for count in [1, 3] {
            let (mut bytes, segment) = burst(0, count, 64);
            let sent = udp.send(path, 0, &mut bytes, segment);
            assert_eq!(sent, Err(LaneError::System { call: "sendmsg", errno: libc::EACCES }));
        }
        assert_eq!((udp.counters().send_errors, udp.counters().sent_packets), (2, 0));
    }
}

#[test]
fn the_self_test_runs_here_and_against_a_peer() {
    let (mut a, b) = (open("127.0.1.12"), open("127.0.1.13"));
    assert_eq!(a.self_test(P0), Ok(()));
    let path = connect(&mut a, &b);
    let mut responder = b.probe_responder(P0).unwrap();
    let from = a.ports()[0].addr;
    for (count, len) in [(1, 256), (15, 4140), (64, 256)] {
        a.probe_send(path, responder.addr(), count, len).unwrap();
        let report = responder.collect(from, count, Duration::from_secs(1)).unwrap();
        assert_eq!(report.ids, (0..count as u16).map(Some).collect::<Vec<_>>());
        assert_eq!(report.verdict(from, count, a.gso(P0)), Ok(()));
    }
    a.set_gso(P0, false);
    a.probe_send(path, responder.addr(), 15, 256).unwrap();
    let report = responder.collect(from, 15, Duration::from_secs(1)).unwrap();
    assert_eq!(report, ProbeReport { ids: vec![Some(0); 15] });
    assert_eq!(report.verdict(from, 15, false), Ok(()));
    assert!(matches!(report.verdict(from, 15, true), Err(SoftError::WireIds { index: 1, seen: 0, .. })));
    assert!(a.probe_send(path, responder.addr(), 65, 256).is_err());
    assert!(a.probe_send(path, responder.addr(), 1, 255).is_err());
    // Nothing comes: the report says so.
    let silent = responder.collect(from, 3, Duration::from_millis(5)).unwrap();
    assert!(matches!(silent.verdict(from, 3, true), Err(SoftError::ProbeLost { sent: 3, got: 0, .. })));
}

#[test]
fn a_stock_receive_buffer_holds_its_budget() {
    let cfg = UdpConfig { receive_buffer: Some(212_992), ..config("127.0.1.14") };
    let mut receiver = Udp::open(&cfg).unwrap();
    let budget = receiver.ports()[0].receive_budget.unwrap();
    assert_eq!(budget, 212_992);
    let mut sender = open("127.0.1.15");
    let path = connect(&mut sender, &receiver);
    for (payload, count) in [(4096, 15), (1024, 15), (4096, 1), (1024, 1), (64, 1)] {
        let each = charge(count * payload, payload as u32);
        let mut sent = 0;
        for i in 0..budget / each {
            let (mut bytes, segment) = burst((i * count) as u32, count as u32, payload as usize);
            assert_eq!(sender.send(path, 0, &mut bytes, segment), Ok(true));
            sent += count as usize;
        }
        assert_eq!(receive(&mut receiver, sent).len(), sent, "{count} packets of {payload} per burst");
    }
    assert_eq!(receiver.drops(), None);
    // Far beyond it packets are dropped, and the socket says so with the next one that fits.
    let (mut bytes, segment) = burst(0, 15, 4096);
    for _ in 0..30 {
        assert_eq!(sender.send(path, 0, &mut bytes, segment), Ok(true));
    }
    let arrived = receive(&mut receiver, 450).len();
    let (mut one, len) = burst(0, 1, 64);
    assert_eq!(sender.send(path, 0, &mut one, len), Ok(true));
    assert_eq!(receive(&mut receiver, 1).len(), 1);
    let (port, dropped) = receiver.drops().unwrap();
    assert!(arrived < 450 && port == P0 && dropped > 0, "{arrived} arrived, {dropped} dropped");
    assert_eq!(receiver.counters().drops, u64::from(dropped));
    assert_eq!(receiver.drops(), None);
}

#[test]
fn faults_are_injected_and_counted() {
    let fault = Some(Fault { loss: 0.05, dup: 0.05, reorder: 0.05, seed: 11 });
    let mut receiver = Udp::open(&UdpConfig { fault, ..config("127.0.1.16") }).unwrap();
    let mut sender = open("127.0.1.17");
    let path = connect(&mut sender, &receiver);
    let mut got = Vec::new();
    let mut now = Time::ZERO;
    for round in 0..100 {
        let (mut bytes, segment) = burst(round * 15, 15, 256);
        assert_eq!(sender.send(path, 0, &mut bytes, segment), Ok(true));
        now = Time::from_nanos(u64::from(round) * 1_000);
        receiver.receive(now, &mut |_: &RxMeta, p: &Packet<'_>| got.push(p.header.bth.psn.get()));
    }
    if let Some(due) = receiver.next_event() {
        assert!(due > now);
        receiver.receive(due, &mut |_: &RxMeta, p: &Packet<'_>| got.push(p.header.bth.psn.get()));
    }
    let counts = receiver.faults();
    assert!(counts.loss > 20 && counts.dup > 20 && counts.reorder > 20, "{counts:?}");
    assert_eq!(got.len() as u64, 1500 - counts.loss + counts.dup);
    assert!(got.windows(2).any(|w| w[1] < w[0]));
    assert_eq!(receiver.counters().received_packets, 1500);
    assert_eq!(receiver.next_event(), None);
}

#[test]
fn sixteen_entropies_are_sixteen_source_ports() {
    let sink = UdpSocket::bind("127.0.1.19:0").unwrap();
    sink.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let dest = sink.local_addr().unwrap();
    let mut udp = Udp::open(&UdpConfig { source_ports: 16, ..config("127.0.1.18") }).unwrap();
    let paths: Vec<PathId> = (0..32).map(|e| udp.open_path(P0, e, dest).unwrap()).collect();
    let mut seen = Vec::new();
    let mut buf = [0; 2048];
    for &path in &paths {
        let (mut bytes, segment) = burst(0, 1, 64);
        assert_eq!(udp.send(path, 0, &mut bytes, segment), Ok(true));
        let from = sink.recv_from(&mut buf).unwrap().1;
        assert_eq!(Some(from), udp.source_of(path));
        seen.push(from.port());
    }
    assert_eq!(seen[..16], seen[16..], "equal entropy, equal port");
    assert!(seen.iter().all(|&p| p >= 0xc000));
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 16);
    // The same configuration gives the same ports again.
    let before = udp.source_of(paths[5]);
    drop(udp);
    let mut udp = Udp::open(&UdpConfig { source_ports: 16, ..config("127.0.1.18") }).unwrap();
    let path = udp.open_path(P0, 5, dest).unwrap();
    assert_eq!(udp.source_of(path), before);
}

#[test]
fn several_planes_are_served() {
    let planes = (20..24).map(|n| IpAddr::from([127, 0, 1, n])).chain(["::1".parse().unwrap()]).collect();
    let mut a = Udp::open(&UdpConfig { planes, ..config("127.0.1.20") }).unwrap();
    // And one for news of their links.
    assert_eq!(PacketIo::wait_fds(&a).len(), 6);
    assert!(!a.wait(Duration::from_millis(2)).unwrap());
    // Each plane sends to itself.
    let paths: Vec<PathId> = (0..5)
        .map(|n| {
            let port = &a.ports()[n];
            assert_eq!(usize::from(port.plane), n);
            let to = SocketAddr::new(port.addr, port.udp_port);
            a.open_path(PortId(n as u8), 1, to).unwrap()
        })
        .collect();
    for (n, &path) in paths.iter().enumerate() {
        let (mut bytes, segment) = burst(10 * n as u32, 2, 512);
        assert_eq!(a.send(path, 0, &mut bytes, segment), Ok(true));
    }
    assert!(a.wait(Duration::from_secs(1)).unwrap());
    let got = receive(&mut a, 10);
    assert_eq!(psns(&got), [0, 1, 10, 11, 20, 21, 30, 31, 40, 41]);
    assert!(got.iter().all(|(_, m)| m.src == m.dst));
}

#[test]
fn a_capture_reads_back_with_every_icrc_right() {
    let dir = tempfile::tempdir().unwrap();
    for (ip_a, ip_b) in [("127.0.1.30", "127.0.1.31"), ("::1", "::1")] {
        let file = |name: &str| dir.path().join(name);
        let tapped = |ip, name| Udp::open(&UdpConfig { pcap: Some(file(name)), ..config(ip) }).unwrap();
        let (mut a, mut b) = (tapped(ip_a, "a.pcap"), tapped(ip_b, "b.pcap"));
        let path = connect(&mut a, &b);
        let back = connect(&mut b, &a);
        let mut expected = Vec::new();
        for (count, len, tos) in [(15, 4096, 2), (1, 8, 3), (64, 256, 0x6a), (3, 1024, 0xbb)] {
            let (mut bytes, segment) = burst(1000 * count, count, len);
            assert_eq!(a.send(path, tos, &mut bytes, segment), Ok(true));
            assert_eq!(receive(&mut b, count as usize).len(), count as usize);
            let id = |i| if ip_a.contains(':') { 0 } else { i as u16 };
            expected.extend((0..count).map(|i| (1000 * count + i, tos, id(i))));
        }
        let (mut bytes, segment) = burst(5, 2, 64);
        assert_eq!(b.send(back, 1, &mut bytes, segment), Ok(true));
        assert_eq!(receive(&mut a, 2).len(), 2);
        expected.extend([(5, 1, 0), (6, 1, u16::from(!ip_a.contains(':')))]);
        a.flush_capture().unwrap();
        b.flush_capture().unwrap();
        for name in ["a.pcap", "b.pcap"] {
            let mut reader = pcap::Reader::new(std::fs::File::open(file(name)).unwrap()).unwrap();
            let mut seen = Vec::new();
            let mut last = Time::ZERO;
            while let Some(d) = reader.datagram().unwrap() {
                assert!(Flow::new(d.src, d.dst).verify(d.ip_id, d.payload), "ICRC of packet {}", seen.len());
                assert!(d.time >= last && d.dont_fragment && d.ttl == 64);
                last = d.time;
                let packet = Packet::parse(d.payload).unwrap();
                seen.push((packet.header.bth.psn.get(), d.tos, if d.src.is_ipv6() { 0 } else { d.ip_id }));
            }
            assert_eq!(seen, expected, "{name}");
        }
    }
}
