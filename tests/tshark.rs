//! An independent reader, tshark, must understand every packet that we can make.

#[cfg(feature = "cli")]
#[path = "common/bench.rs"]
mod bench;
mod common;

use std::fs::File;
#[cfg(feature = "cli")]
use std::io::BufReader;
use std::io::BufWriter;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use planespray::seq::{Msn, Psn, Qpn};
use planespray::time::Time;
#[cfg(feature = "cli")]
use planespray::wire::pcap::Reader;
use planespray::wire::pcap::{Datagram, Writer};
use planespray::wire::{Aeth, AtomicEth, Bth, Deth, Extensions, Flow, Header, NakCode, Opcode, Packet, Reth, Syndrome};

/// What tshark is asked for, in the order of [`Seen`]'s fields.
const FIELDS: [&str; 9] = [
    "frame.protocols",
    "infiniband.bth.opcode",
    "infiniband.bth.destqp",
    "infiniband.bth.psn",
    "infiniband.reth.va",
    "infiniband.aeth.msn",
    "infiniband.immdt",
    "infiniband.invariant.crc",
    "_ws.malformed",
];

/// The values of [`FIELDS`] for one packet, as numbers where they are there.
#[derive(PartialEq, Eq, Debug)]
struct Seen {
    infiniband: bool,
    opcode: Option<u64>,
    dest_qp: Option<u64>,
    psn: Option<u64>,
    va: Option<u64>,
    msn: Option<u64>,
    imm: Option<u64>,
    /// tshark shows its four bytes in wire order.
    icrc: Option<u64>,
    malformed: bool,
}

/// A packet of `opcode` with every extension header that belongs to it, and what tshark should say about it.
fn packet(opcode: Opcode, n: u32, flow: &Flow) -> (Vec<u8>, Seen) {
    let has = |set| Header::extensions(opcode).is_some_and(|e| e.contains(set));
    let (va, msn, imm) = (0x7f12_3456_7000 + u64::from(n), 0x1000 + n, 0xfeed_0000 + n);
    let mut bth = Bth::new(opcode, Qpn::new(0x0001_2300 + n), Psn::new(0x00ab_cd00 + n));
    bth.ack_req = true;
    let payload: Vec<u8> = match opcode {
        Opcode::READ_REQUEST | Opcode::ACK | Opcode::ATOMIC_ACK | Opcode::COMPARE_SWAP | Opcode::FETCH_ADD => vec![],
        Opcode::CNP => vec![0; 16],
        _ => (0..61).map(|i| 0xa0 ^ i).collect(),
    };
    let pad = payload.len().wrapping_neg() % 4;
    bth.pad = pad as u8;
    let syndrome = if n.is_multiple_of(2) { Syndrome::Ack(31) } else { Syndrome::Nak(NakCode::PsnSequence) };
    let header = Header {
        deth: has(Extensions::DETH).then_some(Deth { qkey: 0x1111_1111, reserved: 0, src_qp: Qpn::new(0x77) }),
        reth: has(Extensions::RETH).then_some(Reth { va, rkey: 0x1234, len: 61 }),
        atomic: has(Extensions::ATOMIC).then_some(AtomicEth { va, rkey: 0x1234, swap_add: 1, compare: 2 }),
        aeth: has(Extensions::AETH).then_some(Aeth { syndrome, msn: Msn::new(msn) }),
        atomic_ack: has(Extensions::ATOMIC_ACK).then_some(0x0102_0304_0506_0708),
        imm: has(Extensions::IMM).then_some(imm),
        ..Header::new(bth)
    };
    let packet = Packet { header, payload: &payload, padding: &[0; 3][..pad], icrc: 0 };
    let mut bytes = vec![0; packet.len()];
    packet.emit(&mut bytes).unwrap();
    flow.seal(n as u16, &mut bytes);
    let icrc: [u8; 4] = bytes[bytes.len() - 4..].try_into().unwrap();
    let seen = Seen {
        infiniband: true,
        opcode: Some(opcode.0.into()),
        dest_qp: Some(bth.dest_qp.get().into()),
        psn: Some(bth.psn.get().into()),
        va: (has(Extensions::RETH) || has(Extensions::ATOMIC)).then_some(va),
        msn: has(Extensions::AETH).then_some(msn.into()),
        imm: has(Extensions::IMM).then_some(imm.into()),
        icrc: Some(u32::from_be_bytes(icrc).into()),
        malformed: false,
    };
    (bytes, seen)
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn seen(line: &str) -> Seen {
    let fields: Vec<&str> = line.split('\t').collect();
    let [protocols, opcode, dest_qp, psn, va, msn, imm, icrc, malformed] = fields[..] else {
        panic!("not {} fields: {line}", FIELDS.len());
    };
    Seen {
        infiniband: protocols.split(':').any(|p| p == "infiniband"),
        opcode: number(opcode),
        dest_qp: number(dest_qp),
        psn: number(psn),
        va: number(va),
        msn: number(msn),
        // Bare bytes, in some versions a number.
        imm: u64::from_str_radix(imm.trim_start_matches("0x"), 16).ok(),
        icrc: number(icrc),
        malformed: !malformed.is_empty(),
    }
}

/// What tshark says about a capture. It checks checksums; other preferences are its defaults, not those in a home.
fn tshark(home: &Path, capture: &Path, arguments: &[&str]) -> String {
    let checked = ["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"];
    let mut command = Command::new("tshark");
    command.env("HOME", home).args(checked).arg("-r").arg(capture).args(arguments);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn installed() -> bool {
    Command::new("tshark").arg("--version").output().is_ok_and(|o| o.status.success())
}

#[test]
fn tshark_reads_every_opcode_and_calls_none_malformed() {
    if !installed() {
        return common::skipped("tshark is not installed");
    }
    let v4 = |n| SocketAddr::from(([10, 0, 0, n], 4791));
    let v6 = |n| SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, n], 4791));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("every-opcode.pcap");
    let mut writer = Writer::new(BufWriter::new(File::create(&path).unwrap())).unwrap();
    let mut expected = Vec::new();
    for (src, dst) in [(v4(1), v4(2)), (v6(1), v6(2))] {
        let flow = Flow::new(src, dst);
        let opcodes = (0..=255).map(Opcode).filter(|&opcode| Header::extensions(opcode).is_some());
        for opcode in opcodes {
            let n = expected.len() as u32;
            let (bytes, seen) = packet(opcode, n, &flow);
            let time = Time::from_nanos(1_700_000_000_000_000_000 + u64::from(n));
            let ip_id = if src.is_ipv4() { n as u16 } else { 0 };
            writer.write(&Datagram { ip_id, tos: 2, ..Datagram::new(time, src, dst, &bytes) }).unwrap();
            expected.push((opcode, seen));
        }
    }
    writer.flush().unwrap();
    assert_eq!(expected.len(), 48);

    let mut arguments = vec!["-T", "fields", "-E", "occurrence=f"];
    arguments.extend(FIELDS.iter().flat_map(|field| ["-e", field]));
    let text = tshark(folder.path(), &path, &arguments);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{text}");
    for (line, (opcode, expected)) in lines.iter().zip(&expected) {
        let mut seen = seen(line);
        if *opcode == Opcode::CNP {
            // tshark 4.0 shows no ICRC there.
            seen.icrc = seen.icrc.or(expected.icrc);
        }
        assert_eq!(&seen, expected, "{opcode:?}: {line}");
    }

    let good = "udp.checksum.status == 1 && (ipv6 || ip.checksum.status == 1)";
    assert_eq!(tshark(folder.path(), &path, &["-Y", good]).lines().count(), expected.len(), "{good}");
}

/// Planes of a client and of a server, all at RoCE's own port.
#[cfg(feature = "cli")]
const PLANES: [&str; 4] = ["127.0.75.1", "127.0.75.2", "127.0.75.3", "127.0.75.4"];

#[test]
#[cfg(feature = "cli")]
fn tshark_reads_every_packet_of_a_run() {
    if !installed() {
        return common::skipped("tshark is not installed");
    }
    if let Some(taken) = PLANES.iter().find(|ip| std::net::UdpSocket::bind((**ip, 4791)).is_err()) {
        return common::skipped(&format!("UDP port 4791 of {taken} is in use"));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.pcap");
    let bind = PLANES.join(",");
    let common = ["--port", "4791", "--planes", "2", "--bind", &bind, "--pcap", path.to_str().unwrap()];
    for own in [
        &["--op", "write", "-s", "64", "-n", "2000", "--fault", "loss=1%,dup=1%,reorder=1%,seed=7"][..],
        &["--op", "write", "-s", "100000", "-n", "100", "--fault", "loss=1%,dup=1%,reorder=1%,seed=8"],
        &["--op", "send", "-s", "2000", "-n", "500"],
        &["--op", "read", "-s", "20000", "-n", "200", "--fault", "loss=1%,seed=9"],
    ] {
        let result = bench::result(&[&common, own].concat());
        if own.contains(&"--fault") {
            assert!(result["injected"]["loss"].as_u64().unwrap() > 0, "{result}");
        }
        let fields = ["-T", "fields", "-e", "frame.protocols", "-e", "_ws.malformed", "-e", "infiniband.bth.opcode"];
        let text = tshark(folder.path(), &path, &fields);
        let wrong: Vec<&str> = text.lines().filter(|line| !is_roce(line)).take(5).collect();
        assert!(wrong.is_empty(), "{own:?}: {wrong:?}");
        let mut reader = Reader::new(BufReader::new(File::open(&path).unwrap())).unwrap();
        let mut packets = 0;
        while reader.datagram().unwrap().is_some() {
            packets += 1;
        }
        assert_eq!(text.lines().count(), packets, "{own:?}");
        assert!(packets > 200, "{own:?}: {packets}");
    }
}

/// Whether a line of protocols, malformed mark and opcode is one of a good RoCEv2 packet.
#[cfg(feature = "cli")]
fn is_roce(line: &str) -> bool {
    let fields: Vec<&str> = line.split('\t').collect();
    let [protocols, malformed, opcode] = fields[..] else { return false };
    protocols.contains("udp:infiniband") && malformed.is_empty() && !opcode.is_empty()
}

#[test]
#[cfg(feature = "cli")]
fn a_bad_line_is_seen() {
    assert!(is_roce("raw:ip:udp:infiniband\t\t17"));
    assert!(!is_roce("raw:ip:udp:data\t\t"));
    assert!(!is_roce("raw:ip:udp:infiniband:_ws.malformed\t_ws.malformed\t17"));
}
