//! ICRCs: of segments that the kernel cuts out of a burst, and of packets whose IPv4 identification we cannot see.

use std::fs::File;
use std::io::BufReader;
use std::net::SocketAddr;
use std::net::UdpSocket;
use std::time::Duration;

use planespray::roce::SendOp;
use planespray::seq::{Psn, Qpn};
use planespray::wire::pcap::Reader;
use planespray::wire::{Bth, Flow, Header, Opcode, Packet, Reth};

use crate::end::Options;
use crate::rig::{Family, Pair, bursts_travel_whole, counter, pattern, within};
use crate::rxe::Ask;

/// WRITEs in bursts: rdma_rxe must count every packet that we sent (it counts those whose ICRC is right), and miss none.
fn bursts(family: Family, whole: bool) {
    let mut pair = Pair::with(family, &Options { mtu: 4096, ..Options::default() }, |_| ());
    bursts_travel_whole(whole);
    let bytes = pattern(1 << 20, 9);
    pair.end.write(0, &bytes);
    let (received, missed) = (counter("rcvd_pkts"), counter("out_of_seq_request"));
    for at in (0..1 << 20).step_by(1 << 18) {
        pair.good(SendOp::Write, at, 1 << 18);
    }
    assert!(pair.rxe.read(0, 1 << 20) == bytes);
    let (ours, sockets) = (pair.end.counters(), pair.end.socket_counters());
    assert_eq!(counter("rcvd_pkts") - received, sockets.sent_packets, "{sockets:?}");
    assert_eq!((counter("out_of_seq_request"), ours.retransmits), (missed, 0));
    assert!(sockets.gso_batches[3..].iter().sum::<u64>() > 0, "no burst of more than 4 packets: {sockets:?}");
    println!("{family:?}: {} packets, bursts {:?}", sockets.sent_packets, sockets.gso_batches);
}

/// Bursts travel whole through veth and the switch, and are cut at rdma_rxe's socket.
#[test]
fn bursts_cut_at_the_receiver() {
    bursts(Family::V4, true);
    bursts(Family::V6, true);
}

/// The sender's interface takes single packets only, as most do: bursts are cut before the wire.
#[test]
fn bursts_cut_before_the_wire() {
    bursts(Family::V4, false);
    bursts(Family::V6, false);
}

/// The edge without bursts.
#[test]
fn single_packets() {
    let mut pair = Pair::with(Family::V4, &Options::default(), |udp| udp.gso = false);
    let received = counter("rcvd_pkts");
    pair.end.write(0, &pattern(60_000, 10));
    pair.good(SendOp::Write, 0, 60_000);
    assert_eq!(pair.rxe.read(0, 60_000), pattern(60_000, 10));
    assert_eq!(counter("rcvd_pkts") - received, pair.end.socket_counters().sent_packets);
}

/// rdma_rxe numbers its IPv4 packets by a counter that nobody else knows. The check finds the number of each packet,
/// and refuses none.
#[test]
fn identifications_that_we_cannot_see() {
    let file = std::env::temp_dir().join("planespray-blind.pcap");
    let mut pair = Pair::with(Family::V4, &Options { mtu: 4096, ..Options::default() }, |udp| {
        udp.pcap = Some(file.clone());
    });
    let bytes = pattern(1 << 19, 11);
    pair.rxe.write(0, &bytes);
    let sent = counter("sent_pkts");
    for at in (0..1 << 19).step_by(1 << 17) {
        pair.asked_well(Ask::Write, at, 1 << 17);
    }
    assert!(pair.end.read(0, 1 << 19) == bytes);
    let (ours, sockets) = (pair.end.counters(), pair.end.socket_counters());
    assert_eq!((sockets.bad_icrc, sockets.parse_errors, ours.retransmits), (0, 0, 0), "{sockets:?}");
    assert_eq!(counter("sent_pkts") - sent, sockets.received_packets, "{sockets:?}");

    pair.end.udp.flush_capture().expect("a capture");
    let mut reader = Reader::new(BufReader::new(File::open(&file).unwrap())).unwrap();
    let mut ids = Vec::new();
    while let Some(datagram) = reader.datagram().unwrap() {
        if datagram.dst.ip() == pair.end.at().ip() {
            ids.push(datagram.ip_id);
        }
    }
    assert_eq!(ids.len() as u64, sockets.received_packets);
    let distinct: std::collections::HashSet<u16> = ids.iter().copied().collect();
    println!("{} packets of rdma_rxe, {} identifications, first {:?}", ids.len(), distinct.len(), &ids[..4]);
    assert!(distinct.len() > 100 && ids.iter().any(|&id| id > 128), "numbers made up by the check: {ids:?}");
    let _ = std::fs::remove_file(file);
}

/// A packet with one wrong bit in its ICRC is no packet for rdma_rxe: its counters are a fair witness.
#[test]
fn rxe_counts_only_packets_with_a_right_icrc() {
    let mut pair = Pair::new(Family::V6);
    pair.good(SendOp::Write, 0, 8);
    let ip = pair.end.at().ip();
    let socket = within("emb", || UdpSocket::bind((ip, 0)).unwrap());
    let to = SocketAddr::new(pair.rxe.ip(), 4791);
    // The WRITE that came before, once more.
    let psn = Psn::new(Options::default().psn);
    let mut header = Header::new(Bth::new(Opcode::WRITE_ONLY, Qpn::new(pair.rxe.qpn()), psn));
    header.reth = Some(Reth { va: pair.rxe.base(), rkey: pair.rxe.rkey(), len: 8 });
    let mut bytes = [0; 128];
    let len = Packet { header, payload: &[1; 8], padding: &[], icrc: 0 }.emit(&mut bytes).unwrap();
    Flow::new(socket.local_addr().unwrap(), to).seal(0, &mut bytes[..len]);
    let count = |bytes: &[u8]| {
        let before = counter("rcvd_pkts");
        socket.send_to(bytes, to).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        counter("rcvd_pkts") - before
    };
    let right = count(&bytes[..len]);
    bytes[len - 1] ^= 1;
    let wrong = count(&bytes[..len]);
    assert_eq!((right, wrong), (1, 0));
}
