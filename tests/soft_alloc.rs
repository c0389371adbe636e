//! Sending and receiving allocate nothing in steady state.

#[path = "common/counting.rs"]
mod counting;

use std::net::SocketAddr;
use std::time::Duration;

use planespray::embedded::PacketIo;
use planespray::lanes::PortId;
use planespray::roce::{PathId, RxMeta};
use planespray::seq::{Psn, Qpn};
use planespray::soft::{Fault, Udp, UdpConfig};
use planespray::time::{Span, Time};
use planespray::wire::{Bth, Header, Opcode, Packet, Reth};

use counting::allocations;

fn burst(count: u32) -> (Vec<u8>, usize) {
    let payload = [7; 1024];
    let mut all = vec![0; 65_000];
    let mut at = 0;
    for i in 0..count {
        let mut header = Header::new(Bth::new(Opcode::WRITE_ONLY, Qpn::new(5), Psn::new(i)));
        header.reth = Some(Reth { va: 0, rkey: 0, len: 1024 });
        at += Packet { header, payload: &payload, padding: &[], icrc: 0 }.emit(&mut all[at..]).unwrap();
    }
    all.truncate(at);
    (all, at / count as usize)
}

/// Sends a burst and receives it; `slack` is what fault injection may add or take away.
fn exchange(a: &mut Udp, b: &mut Udp, path: PathId, bytes: &mut [u8], segment: usize, now: Time, slack: usize) {
    assert_eq!(a.send(path, 2, bytes, segment), Ok(true));
    let want = bytes.len() / segment;
    let mut got = 0;
    let mut tries = 0;
    while got + slack < want && tries < 100 {
        b.wait(Duration::from_millis(10)).unwrap();
        got += b.receive(now, &mut |_: &RxMeta, p: &Packet<'_>| assert_eq!(p.payload.len(), 1024));
        tries += 1;
    }
    assert!(got + slack >= want, "{got} of {want}");
    while b.drops().is_some() {}
}

fn pair(cfg: &UdpConfig) -> (Udp, Udp, PathId) {
    let mut a = Udp::open(cfg).unwrap();
    let b = Udp::open(cfg).unwrap();
    let to = SocketAddr::new(b.ports()[0].addr, b.ports()[0].udp_port);
    let path = a.open_path(PortId(0), 0, to).unwrap();
    (a, b, path)
}

#[test]
fn no_allocation_in_steady_state() {
    let fault = Fault { loss: 0.1, dup: 0.1, reorder: 0.1, seed: 1 };
    let dir = tempfile::tempdir().unwrap();
    for ip in ["127.0.2.1", "::1"] {
        let base = UdpConfig { planes: vec![ip.parse().unwrap()], ..UdpConfig::default() };
        let pcap = Some(dir.path().join("alloc.pcap"));
        let cases = [
            ("bursts", 0, base.clone()),
            ("one by one", 0, UdpConfig { gso: false, gro: false, ..base.clone() }),
            ("faults", 15, UdpConfig { fault: Some(fault), ..base.clone() }),
            ("capture", 0, UdpConfig { pcap, ..base }),
        ];
        for (name, slack, cfg) in cases {
            let (mut a, mut b, path) = pair(&cfg);
            let (mut bytes, segment) = burst(15);
            let mut now = Time::ZERO;
            // The first one fills caches of flows and the capture's record buffer.
            exchange(&mut a, &mut b, path, &mut bytes, segment, now, slack);
            let (n, _) = allocations(|| {
                for _ in 0..200 {
                    now += Span::from_micros(10);
                    exchange(&mut a, &mut b, path, &mut bytes, segment, now, slack);
                }
            });
            assert_eq!(n, 0, "{name} on {ip}: {n} allocations");
        }
    }
}

#[test]
fn a_planted_allocation_is_seen() {
    let cfg = UdpConfig { planes: vec!["127.0.2.2".parse().unwrap()], ..UdpConfig::default() };
    let (mut a, mut b, path) = pair(&cfg);
    let (mut bytes, segment) = burst(2);
    exchange(&mut a, &mut b, path, &mut bytes, segment, Time::ZERO, 0);
    let mut copies = Vec::new();
    let (n, _) = allocations(|| {
        assert_eq!(a.send(path, 2, &mut bytes, segment), Ok(true));
        b.wait(Duration::from_secs(1)).unwrap();
        b.receive(Time::ZERO, &mut |_: &RxMeta, p: &Packet<'_>| copies.push(p.payload.to_vec()));
    });
    assert_eq!(copies.len(), 2);
    assert!(n >= 2, "{n} allocations for two copies");
}
