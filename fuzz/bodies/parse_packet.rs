//! What must hold for any bytes that claim to be a packet. Fuzzing and the property tests share it.

use std::net::SocketAddr;

use planespray::wire::pcap::{Frame, Link, Reader};
use planespray::wire::{Flow, Header, Packet};

/// Panics if `bytes` make a parser misbehave.
pub(crate) fn check(bytes: &[u8]) {
    match Packet::parse(bytes) {
        Ok(packet) => comes_out_again(&packet, bytes),
        Err(_) => verifies_only_if_whole(bytes),
    }
    for link in [Link::Ip, Link::Ethernet] {
        let frame = Frame { time: Default::default(), link, bytes };
        if let Some(datagram) = frame.datagram() {
            assert!(datagram.payload.len() + 28 <= bytes.len());
            if let Ok(packet) = Packet::parse(datagram.payload) {
                comes_out_again(&packet, datagram.payload);
            }
        }
    }
    if let Ok(mut reader) = Reader::new(bytes) {
        while let Ok(Some(_)) = reader.datagram() {}
    }
}

fn comes_out_again(packet: &Packet<'_>, bytes: &[u8]) {
    let mut out = vec![0; bytes.len()];
    assert_eq!(packet.emit(&mut out), Ok(bytes.len()));
    assert_eq!(out, bytes);
    assert_eq!(packet.len(), bytes.len());
    let extensions = Header::extensions(packet.header.bth.opcode);
    assert_eq!(extensions.map(|e| e.len() + 12), Some(packet.header.len()));

    for flow in flows() {
        // Sealed, it verifies; the ICRC is the only thing that changed.
        flow.seal(0x1234, &mut out);
        assert!(flow.verify(0x1234, &out));
        assert!(matches!(flow.verify_blind(&out), Some(0x1234 | 0)));
        assert_eq!(Packet::parse(&out).map(|p| (p.header, p.payload)), Ok((packet.header, packet.payload)));
    }
}

fn verifies_only_if_whole(bytes: &[u8]) {
    for flow in flows() {
        let whole = bytes.len() >= 16 && bytes.len().is_multiple_of(4);
        assert!(whole || (!flow.verify(0, bytes) && flow.verify_blind(bytes).is_none()));
    }
}

fn flows() -> [Flow; 2] {
    let v4 = |n| SocketAddr::from(([10, 0, 0, n], 4791));
    let v6 = |n| SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, n], 4791));
    [Flow::new(v4(1), v4(2)), Flow::new(v6(1), v6(2))]
}
