//! Several queue pairs of one device: datagrams, turns, shared feedback.

use std::collections::VecDeque;
use std::net::IpAddr;

use planespray::mem::{Key, Region};
use planespray::roce::{
    Device, DeviceConfig, Extension, PathId, QpConfig, QpError, QpKind, ReceiveWr, Remote, Rtr, Rts, RxMeta, SendOp,
    SendWr, Sge, Status, Transition, UdDest,
};
use planespray::seq::Qpn;
use planespray::time::{Span, Time};
use planespray::wire::Packet;

use crate::net::{ALL, PD, blank};

struct Host {
    device: Device,
    region: Region,
    key: Key,
    addr: IpAddr,
}

fn host(n: u8, max_qps: usize) -> Host {
    let mut device = Device::new(&DeviceConfig { seed: u64::from(n), max_qps, max_keys: 8 });
    let region = Region::alloc(1 << 20).expect("memory");
    let key = device.memory_mut().register(PD, &region, 0, 1 << 20, 0, ALL).expect("a key");
    Host { device, region, key, addr: IpAddr::from([10, 0, 0, n]) }
}

fn config(kind: QpKind, priority: u8) -> QpConfig {
    QpConfig { kind, pd: PD, send_depth: 64, receive_depth: 64, priority, signal_all: false }
}

impl Host {
    fn connected(&mut self, priority: u8, rtr: Rtr) -> Qpn {
        let qpn = self.device.create_qp(&config(QpKind::Rc, priority)).expect("a queue pair");
        self.connect(qpn, rtr);
        qpn
    }

    fn connect(&mut self, qpn: Qpn, rtr: Rtr) {
        for to in [Transition::Init, Transition::Rtr(rtr), Transition::Rts(Rts::default())] {
            self.device.modify_qp(qpn, to).expect("a legal transition");
        }
    }

    fn sge(&self, addr: u64, len: u32) -> Sge {
        Sge { addr, len, lkey: self.key }
    }
}

fn meta(from: &Host, to: &Host, tos: u8) -> RxMeta {
    RxMeta { src: from.addr, dst: to.addr, tos, ttl: 63 }
}

#[test]
fn datagrams_come_with_their_network_header() {
    let (mut a, mut b) = (host(1, 4), host(2, 4));
    let ud = |h: &mut Host| {
        let qpn = h.device.create_qp(&config(QpKind::Ud, 0)).expect("a queue pair");
        h.connect(qpn, Rtr { qkey: 0x77, ..Rtr::default() });
        qpn
    };
    let (qa, qb) = (ud(&mut a), ud(&mut b));
    a.region.write_at(0, b"hello").expect("in bounds");
    b.device.post_receive(qb, &ReceiveWr::new(3, b.sge(0, 100))).expect("posted");
    for (id, qkey) in [(1, 0x77), (2, 0x78), (3, 0x77)] {
        let mut wr = SendWr::new(id, SendOp::SendImm(9), a.sge(0, 5), Remote::default());
        wr.ud = Some(UdDest { path: PathId(4), qpn: qb, qkey });
        a.device.post_send(qa, &wr).expect("posted");
    }
    let mut out = vec![0; 5000];
    let now = Time::from_nanos(1);
    let t = a.device.poll_transmit(now, 65_000, &mut out).expect("datagrams");
    assert_eq!((t.count, t.path, t.qpn), (3, PathId(4), qa), "three of one path in one burst");
    for bytes in out[..t.len].chunks(t.segment) {
        b.device.handle(now, &meta(&a, &b, 0x43), &Packet::parse(bytes).expect("parses"));
    }
    let mut cqes = [blank(); 8];
    assert_eq!(a.device.poll_cq(&mut cqes), 3, "they complete when sent");
    assert_eq!(b.device.poll_cq(&mut cqes), 1);
    assert_eq!((cqes[0].id, cqes[0].len, cqes[0].imm, cqes[0].src_qpn), (3, 45, Some(9), Some(qa)));
    let mut placed = [0; 45];
    b.region.read_at(0, &mut placed).expect("in bounds");
    assert_eq!(&placed[40..], b"hello");
    assert_eq!((placed[20], placed[21], placed[28]), (0x45, 0x43, 63));
    assert_eq!(placed[32..40], [10, 0, 0, 1, 10, 0, 0, 2]);
    let counters = b.device.counters();
    assert_eq!((counters.qkey_violations, counters.ud_dropped), (1, 1));
}

#[test]
fn higher_classes_go_first_and_equals_take_turns() {
    let mut a = host(1, 8);
    let peer = host(2, 8);
    let mut qpns = Vec::new();
    for priority in [2, 1, 1, 0] {
        qpns.push(a.connected(priority, Rtr { dest_qpn: Qpn::new(0x5005), peer: peer.addr, ..Rtr::default() }));
    }
    for &qpn in &qpns {
        let wr = SendWr::new(1, SendOp::Write, a.sge(0, 200_000), Remote { addr: 0, rkey: 1 });
        a.device.post_send(qpn, &wr).expect("posted");
    }
    let mut out = vec![0; 65_536];
    let mut order = Vec::new();
    while let Some(t) = a.device.poll_transmit(Time::from_nanos(1), 65_000, &mut out) {
        order.push(qpns.iter().position(|&q| q == t.qpn).expect("ours"));
    }
    assert_eq!(order.iter().filter(|&&q| q == 3).count(), 5, "FIRST, then 48 of them by 15, then the rest: {order:?}");
    assert!(order[..5].iter().all(|&q| q == 3));
    let middle: Vec<usize> = order.iter().copied().filter(|&q| q == 1 || q == 2).collect();
    assert!(middle.chunks(2).all(|pair| pair == [1, 2]), "{order:?}");
    assert!(order.ends_with(&[0, 0, 0, 0, 0]));
    assert!(!a.device.pending_transmit());
}

#[test]
fn feedback_of_several_lanes_shares_a_datagram() {
    let (mut a, mut b) = (host(1, 8), host(2, 8));
    let ext = |h: &Host| Some(Extension { feedback_qpn: h.device.feedback_qpn(), qkey: 5 });
    let mut lanes = Vec::new();
    for i in 0..4 {
        let qb = b.device.create_qp(&config(QpKind::Rc, 1)).expect("a queue pair");
        let path = PathId(i);
        let rtr = Rtr { dest_qpn: qb, peer: b.addr, extension: ext(&b), path, ..Rtr::default() };
        let qa = a.connected(1, rtr);
        b.connect(qb, Rtr { dest_qpn: qa, peer: a.addr, extension: ext(&a), path, ..Rtr::default() });
        lanes.push(qa);
    }
    for &qa in &lanes {
        let wr = SendWr::new(1, SendOp::Write, a.sge(0, 20_000), Remote { addr: 0, rkey: b.key.0 });
        a.device.post_send(qa, &wr).expect("posted");
    }
    let mut out = vec![0; 65_536];
    let mut now = Time::from_nanos(1);
    while let Some(t) = a.device.poll_transmit(now, 65_000, &mut out) {
        // The first packet of each lane is lost.
        for bytes in out[..t.len].chunks(t.segment).skip(1) {
            b.device.handle(now, &meta(&a, &b, 2), &Packet::parse(bytes).expect("parses"));
        }
    }
    now += Span::from_micros(10);
    let t = b.device.poll_transmit(now, 65_000, &mut out).expect("feedback");
    assert_eq!((t.count, t.qpn, t.len), (1, b.device.feedback_qpn(), 12 + 8 + 4 * 48 + 4));
    assert_eq!(b.device.poll_transmit(now, 65_000, &mut out), None);
    // From an address that is not the peer's, it counts for nothing.
    let bytes = {
        let mut again = vec![0; 5000];
        again[..t.len].copy_from_slice(&out[..t.len]);
        again.truncate(t.len);
        again
    };
    let packet = Packet::parse(&bytes).expect("parses");
    let stranger = RxMeta { src: IpAddr::from([10, 9, 9, 9]), ..meta(&b, &a, 2) };
    a.device.handle(now, &stranger, &packet);
    assert_eq!((a.device.counters().feedback_refused, a.device.poll_transmit(now, 65_000, &mut out)), (4, None));
    a.device.handle(now, &meta(&b, &a, 2), &packet);
    let mut again = VecDeque::new();
    while let Some(t) = a.device.poll_transmit(now, 65_000, &mut out) {
        again.push_back((t.qpn, t.count));
        for bytes in out[..t.len].chunks(t.segment) {
            b.device.handle(now, &meta(&a, &b, 2), &Packet::parse(bytes).expect("parses"));
        }
    }
    assert_eq!(again.len(), 4);
    assert!(again.iter().all(|&(qpn, count)| count == 1 && lanes.contains(&qpn)), "the lost packets alone");
    while let Some(t) = b.device.poll_transmit(now, 65_000, &mut out) {
        a.device.handle(now, &meta(&b, &a, 2), &Packet::parse(&out[..t.len]).expect("parses"));
    }
    let mut cqes = [blank(); 8];
    assert_eq!(a.device.poll_cq(&mut cqes), 4);
    assert!(cqes[..4].iter().all(|c| c.status == Status::Success && c.retransmits == 1));
}

#[test]
fn numbers_are_random_and_the_table_is_bounded() {
    let mut h = host(1, 4);
    let cfg = config(QpKind::Rc, 0);
    let mut seen = Vec::new();
    for _ in 0..500 {
        let qpn = h.device.create_qp(&cfg).expect("a queue pair");
        assert!(qpn.get() > 1 && qpn.get() < 0xff_ffff && qpn != h.device.feedback_qpn());
        assert_ne!(seen.last(), Some(&qpn));
        seen.push(qpn);
        h.device.destroy_qp(qpn).expect("it lives");
        assert_eq!(h.device.destroy_qp(qpn), Err(QpError::NoQp));
    }
    for _ in 0..4 {
        h.device.create_qp(&cfg).expect("a queue pair");
    }
    assert_eq!(h.device.create_qp(&cfg), Err(QpError::NoQps { limit: 4 }));
    assert_eq!(h.device.create_qp(&QpConfig { send_depth: 0, ..cfg }), Err(QpError::Invalid { what: "send_depth" }));
}
