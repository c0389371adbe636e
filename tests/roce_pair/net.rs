//! Two devices and a link between them, in virtual time, with faults from a seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::IpAddr;

use planespray::mem::{Access, Key, Pd, Region};
use planespray::roce::{
    Cqe, CqeKind, Device, DeviceConfig, Extension, PathId, QpConfig, QpKind, ReceiveWr, Rtr, Rts, RxMeta, SendWr, Sge,
    Status, Transition,
};
use planespray::seq::{Psn, Qpn};
use planespray::time::{Span, Time};
use planespray::wire::Packet;

pub(crate) const PD: Pd = Pd(3);
pub(crate) const ALL: Access =
    Access::LOCAL_WRITE.and(Access::REMOTE_WRITE).and(Access::REMOTE_READ).and(Access::REMOTE_ATOMIC);
const QKEY: u32 = 0x1234_5678;

/// What the link does to packets. Shares are of 1,000.
#[derive(Clone, Copy, Default)]
pub(crate) struct Faults {
    pub(crate) loss: u32,
    pub(crate) duplicate: u32,
    pub(crate) reorder: u32,
    pub(crate) mark: u32,
    pub(crate) cut: bool,
}

/// One end: a device, memory under one key, and a queue pair.
pub(crate) struct End {
    pub(crate) device: Device,
    pub(crate) region: Region,
    pub(crate) key: Key,
    pub(crate) qpn: Qpn,
    pub(crate) addr: IpAddr,
    pub(crate) cqes: Vec<Cqe>,
}

type Tap = dyn FnMut(usize, &[u8]) -> bool;

/// When it arrives, a serial number, at which end, its TOS and its bytes.
type Flying = (Time, u64, usize, u8, Vec<u8>);

pub(crate) struct Net {
    pub(crate) ends: [End; 2],
    pub(crate) now: Time,
    pub(crate) faults: Faults,
    pub(crate) rng: fastrand::Rng,
    pub(crate) sent: [u64; 2],
    /// Sees each packet on its way, and may drop it by saying false.
    pub(crate) tap: Option<Box<Tap>>,
    wire: BinaryHeap<Reverse<Flying>>,
    serial: u64,
    out: Vec<u8>,
}

/// How the pair is connected.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) extended: bool,
    pub(crate) mtu: u32,
    pub(crate) depth: u16,
    pub(crate) memory: usize,
    pub(crate) psn: [u32; 2],
    pub(crate) rts: Rts,
    pub(crate) rtr: Rtr,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            seed: 1,
            extended: false,
            mtu: 1024,
            depth: 64,
            memory: 1 << 20,
            // The first packets wrap.
            psn: [0xff_fffd, 0xff_fff0],
            rts: Rts::default(),
            rtr: Rtr { min_rnr_timer: 1, ..Rtr::default() },
        }
    }
}

impl Net {
    pub(crate) fn new(setup: &Setup) -> Net {
        let mut ends = [0, 1].map(|i: usize| {
            let mut device = Device::new(&DeviceConfig { seed: setup.seed * 2 + i as u64, max_qps: 8, max_keys: 64 });
            let region = Region::alloc(setup.memory).expect("memory");
            let key = device.memory_mut().register(PD, &region, 0, setup.memory as u64, 0, ALL).expect("a key");
            let cfg = QpConfig {
                kind: QpKind::Rc,
                pd: PD,
                send_depth: setup.depth,
                receive_depth: setup.depth,
                priority: 1,
                signal_all: false,
            };
            let qpn = device.create_qp(&cfg).expect("a queue pair");
            let addr = if i == 0 { "10.0.0.1" } else { "10.0.0.2" }.parse().expect("address");
            End { device, region, key, qpn, addr, cqes: Vec::new() }
        });
        for i in 0..2 {
            let other = 1 - i;
            let feedback_qpn = ends[other].device.feedback_qpn();
            let rtr = Rtr {
                dest_qpn: ends[other].qpn,
                rq_psn: Psn::new(setup.psn[other]),
                mtu: setup.mtu,
                path: PathId(i as u32),
                peer: ends[other].addr,
                extension: setup.extended.then_some(Extension { feedback_qpn, qkey: QKEY }),
                ..setup.rtr
            };
            let rts = Rts { sq_psn: Psn::new(setup.psn[i]), ..setup.rts };
            let (device, qpn) = (&mut ends[i].device, ends[i].qpn);
            for to in [Transition::Init, Transition::Rtr(rtr), Transition::Rts(rts)] {
                device.modify_qp(qpn, to).expect("a legal transition");
            }
        }
        Net {
            ends,
            now: Time::from_nanos(1),
            faults: Faults::default(),
            rng: fastrand::Rng::with_seed(setup.seed),
            sent: [0; 2],
            tap: None,
            wire: BinaryHeap::new(),
            serial: 0,
            out: vec![0; 65_536],
        }
    }

    pub(crate) fn send(&mut self, end: usize, wr: &SendWr) {
        let End { device, qpn, .. } = &mut self.ends[end];
        device.post_send(*qpn, wr).expect("posted");
    }

    pub(crate) fn receive(&mut self, end: usize, wr: &ReceiveWr) {
        let End { device, qpn, .. } = &mut self.ends[end];
        device.post_receive(*qpn, wr).expect("posted");
    }

    /// Memory of one end.
    pub(crate) fn sge(&self, end: usize, addr: u64, len: u32) -> Sge {
        Sge { addr, len, lkey: self.ends[end].key }
    }

    pub(crate) fn fill(&mut self, end: usize, addr: u64, len: usize) -> Vec<u8> {
        let data: Vec<u8> = std::iter::repeat_with(|| self.rng.u8(..)).take(len).collect();
        self.ends[end].region.write_at(addr, &data).expect("in bounds");
        data
    }

    pub(crate) fn bytes(&self, end: usize, addr: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.ends[end].region.read_at(addr, &mut data).expect("in bounds");
        data
    }

    /// Sends everything that is due, and takes completions.
    pub(crate) fn pump(&mut self) {
        for from in 0..2 {
            while let Some(t) = self.ends[from].device.poll_transmit(self.now, 65_000, &mut self.out) {
                assert!((1..=64).contains(&t.count) && t.len <= 65_000);
                let packets: Vec<Vec<u8>> = self.out[..t.len].chunks(t.segment).map(<[u8]>::to_vec).collect();
                assert_eq!(packets.len(), t.count, "all but the last are of the segment's size");
                assert_eq!(t.path, PathId(from as u32));
                for bytes in packets {
                    self.carry(from, t.tos, bytes);
                }
            }
            let end = &mut self.ends[from];
            let mut batch = [blank(); 16];
            loop {
                let n = end.device.poll_cq(&mut batch);
                end.cqes.extend_from_slice(&batch[..n]);
                if n == 0 {
                    break;
                }
            }
        }
    }

    fn carry(&mut self, from: usize, tos: u8, bytes: Vec<u8>) {
        self.sent[from] += 1;
        if let Some(tap) = &mut self.tap
            && !tap(from, &bytes)
        {
            return;
        }
        let mut hit = |share| self.rng.u32(..1000) < share;
        if self.faults.cut || hit(self.faults.loss) {
            return;
        }
        let copies = if hit(self.faults.duplicate) { 2 } else { 1 };
        for _ in 0..copies {
            let late = if self.rng.u32(..1000) < self.faults.reorder { self.rng.u64(..60_000) } else { 0 };
            let tos = if self.rng.u32(..1000) < self.faults.mark { tos | 3 } else { tos };
            self.serial += 1;
            let at = self.now + Span::from_nanos(5_000 + self.serial % 1000 + late);
            self.wire.push(Reverse((at, self.serial, 1 - from, tos, bytes.clone())));
        }
    }

    /// Runs until nothing is under way and no timer is set, or `until`. Returns true if it became quiet.
    pub(crate) fn run(&mut self, until: Time) -> bool {
        loop {
            self.pump();
            let arrival = self.wire.peek().map(|Reverse(p)| p.0);
            let timers = self.ends.iter().filter_map(|e| e.device.next_timeout()).min();
            let Some(next) = arrival.into_iter().chain(timers).min() else { return true };
            if next > until {
                self.now = until;
                return false;
            }
            self.now = self.now.max(next);
            for end in &mut self.ends {
                if end.device.next_timeout().is_some_and(|at| at <= self.now) {
                    end.device.handle_timeout(self.now);
                }
            }
            while self.wire.peek().is_some_and(|Reverse(p)| p.0 <= self.now) {
                if let Some(Reverse((_, _, to, tos, bytes))) = self.wire.pop() {
                    self.deliver(to, tos, &bytes);
                }
            }
        }
    }

    /// Runs for a while.
    pub(crate) fn run_for(&mut self, span: Span) -> bool {
        self.run(self.now + span)
    }

    pub(crate) fn deliver(&mut self, to: usize, tos: u8, bytes: &[u8]) {
        let packet = Packet::parse(bytes).expect("our packets parse");
        let meta = RxMeta { src: self.ends[1 - to].addr, dst: self.ends[to].addr, tos, ttl: 64 };
        self.ends[to].device.handle(self.now, &meta, &packet);
    }

    /// Ids and outcomes of an end's completions: requests if `requests`, else receives.
    pub(crate) fn outcomes(&self, end: usize, requests: bool) -> Vec<(u64, Status)> {
        self.ends[end].cqes.iter().filter(|c| is_request(c) == requests).map(|c| (c.id, c.status)).collect()
    }
}

pub(crate) fn is_request(cqe: &Cqe) -> bool {
    !matches!(cqe.what, CqeKind::Receive | CqeKind::ReceiveWriteImm)
}

pub(crate) fn blank() -> Cqe {
    Cqe {
        qpn: Qpn::new(0),
        id: 0,
        what: CqeKind::Send,
        status: Status::Success,
        len: 0,
        imm: None,
        src_qpn: None,
        rtt: None,
        marks: None,
        retransmits: 0,
    }
}
