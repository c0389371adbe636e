//! Packets that the kernel's rdma_rxe sent, captured: they must parse, come out again byte for byte, and have the
//! ICRC that we compute, and no other.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use planespray::wire::pcap::{Datagram, Frame, Link, Reader};
use planespray::wire::{Flow, Packet};

/// Each capture and how many RoCEv2 packets it holds.
const CAPTURES: [(&str, usize); 8] = [
    ("rxe-rc-v4.pcap", 32),
    ("rxe-rc-v6.pcap", 34),
    ("rxe-ud-ce-v4.pcap", 1),
    ("rxe-ud-ce-v6.pcap", 1),
    ("rxe-ud-v4.pcap", 2),
    ("rxe-ud-v6.pcap", 2),
    ("tap-v4.pcap", 10),
    ("tap-v6.pcap", 10),
];
const ROCE_PORT: u16 = 4791;

/// The IP packets with RoCEv2 in them, each from its IP header on.
fn vectors() -> Vec<(&'static str, Vec<u8>)> {
    let mut all = Vec::new();
    for (name, expected) in CAPTURES {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(name);
        let file = File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut reader = Reader::new(BufReader::new(file)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let before = all.len();
        while let Some(frame) = reader.frame().unwrap_or_else(|e| panic!("{name}: {e}")) {
            if frame.datagram().is_some_and(|d| d.dst.port() == ROCE_PORT) {
                all.push((name, frame.ip().unwrap().to_vec()));
            }
        }
        assert_eq!(all.len() - before, expected, "RoCEv2 packets in {name}");
    }
    assert_eq!(all.len(), 92);
    all
}

fn datagram(ip: &[u8]) -> Option<Datagram<'_>> {
    Frame { time: Default::default(), link: Link::Ip, bytes: ip }.datagram()
}

/// Whether a receiver who sees the IP header would take the packet.
fn accepted(ip: &[u8]) -> bool {
    datagram(ip).is_some_and(|d| d.dont_fragment && Flow::new(d.src, d.dst).verify(d.ip_id, d.payload))
}

/// Bytes before the UDP header.
fn ip_header(ip: &[u8]) -> usize {
    if ip[0] >> 4 == 4 { 20 } else { 40 }
}

/// The bits of an IP packet that its ICRC takes as ones, as one mask per byte.
fn masked(ip: &[u8]) -> Vec<u8> {
    let mut mask = vec![0; ip.len()];
    let ranges = if ip_header(ip) == 20 {
        // TOS, TTL, header checksum.
        vec![1..2, 8..9, 10..12]
    } else {
        // Traffic class and flow label lie in the first four bytes behind the version; hop limit.
        mask[0] = 0x0f;
        vec![1..4, 7..8]
    };
    let udp = ip_header(ip);
    // UDP checksum; FECN, BECN and the six bits beside them.
    for range in ranges.into_iter().chain([udp + 6..udp + 8, udp + 12..udp + 13]) {
        mask[range].fill(0xff);
    }
    mask
}

/// The ICRC straight from the annex: over the bytes as captured, ones where masked.
fn icrc_of_capture(ip: &[u8], mask: &[u8]) -> u32 {
    let mut covered = vec![0xff; 8];
    covered.extend(ip.iter().zip(mask).map(|(byte, mask)| byte | mask));
    covered.truncate(covered.len() - 4);
    crc32fast::hash(&covered)
}

#[test]
fn each_parses_and_comes_out_the_same() {
    for (name, ip) in vectors() {
        let bytes = datagram(&ip).unwrap().payload;
        let packet = Packet::parse(bytes).unwrap_or_else(|e| panic!("{name}: {e}: {bytes:02x?}"));
        // Only values may make it through.
        let (header, payload, padding) = (packet.header, packet.payload.to_vec(), packet.padding.to_vec());
        let again = Packet { header, payload: &payload, padding: &padding, icrc: packet.icrc };
        let mut out = vec![0xa5; bytes.len() + 8];
        assert_eq!(again.emit(&mut out), Ok(bytes.len()), "{name}");
        assert_eq!(&out[..bytes.len()], bytes, "{name}");
        assert_eq!(again.emit(&mut out[..bytes.len() - 1]).ok(), None, "{name}");
        assert_eq!(header.emit(&mut out), Ok(header.len()));
        assert_eq!(header.len() + payload.len() + padding.len() + 4, bytes.len());
    }
}

#[test]
fn each_has_the_icrc_that_we_compute() {
    let mut ids = 0;
    for (name, ip) in vectors() {
        let d = datagram(&ip).unwrap();
        assert!(d.dont_fragment, "{name}");
        let flow = Flow::new(d.src, d.dst);
        assert!(flow.verify(d.ip_id, d.payload), "{name}");
        assert_eq!(flow.verify_blind(d.payload), Some(d.ip_id), "{name}");
        ids += usize::from(d.ip_id != 0);

        let (covered, icrc) = d.payload.split_at(d.payload.len() - 4);
        assert_eq!(flow.icrc(d.ip_id, covered).to_le_bytes(), icrc, "{name}");
        assert_eq!(icrc_of_capture(&ip, &masked(&ip)).to_le_bytes(), icrc, "{name}");
        let mut sealed = d.payload.to_vec();
        sealed[covered.len()..].fill(0);
        flow.seal(d.ip_id, &mut sealed);
        assert_eq!(sealed, d.payload, "{name}");

        if d.src.is_ipv4() {
            assert!(!flow.verify(d.ip_id ^ 1, d.payload), "{name}");
        }
    }
    assert!(ids > 0, "no capture has an identification to recover");
}

#[test]
fn any_bit_flipped_is_noticed_unless_it_is_masked() {
    for (name, mut ip) in vectors() {
        let mask = masked(&ip);
        let header = ip_header(&ip);
        for byte in 0..ip.len() {
            for bit in 0..8 {
                ip[byte] ^= 1 << bit;
                let is_masked = mask[byte] & 1 << bit != 0;
                assert_eq!(accepted(&ip), is_masked, "{name}: bit {bit} of byte {byte}");
                let icrc = u32::from_le_bytes(ip[ip.len() - 4..].try_into().unwrap());
                assert_eq!(icrc_of_capture(&ip, &mask) == icrc, is_masked, "{name}: bit {bit} of byte {byte}");
                if byte >= header + 8 && !is_masked {
                    // What the blind check lets through of a single flipped bit has another identification.
                    let d = datagram(&ip).unwrap();
                    assert_ne!(Flow::new(d.src, d.dst).verify_blind(d.payload), Some(d.ip_id), "{name}");
                }
                ip[byte] ^= 1 << bit;
            }
        }
    }
}

#[test]
fn the_writer_makes_packets_that_verify() {
    use planespray::wire::pcap::Writer;
    let vectors = vectors();
    let mut writer = Writer::new(Vec::new()).unwrap();
    for (_, ip) in &vectors {
        writer.write(&datagram(ip).unwrap()).unwrap();
    }
    let file = writer.into_inner();
    let mut reader = Reader::new(&file[..]).unwrap();
    for (name, ip) in &vectors {
        let written = reader.frame().unwrap().unwrap().bytes;
        let mask = masked(ip);
        // Apart from masked fields (rxe sends other checksums and flow labels) the bytes are those captured.
        let differ = |i: usize| (written[i] ^ ip[i]) & !mask[i] != 0;
        assert!(written.len() == ip.len() && !(0..ip.len()).any(differ), "{name}");
        assert!(accepted(written), "{name}");
        // Traffic class and hop limit are kept.
        let (a, b) = (datagram(written).unwrap(), datagram(ip).unwrap());
        assert_eq!((a.tos, a.ttl, a.payload), (b.tos, b.ttl, b.payload), "{name}");
    }
    assert!(reader.frame().unwrap().is_none());
}
