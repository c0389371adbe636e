//! A queue pair of the embedded engine for a peer that is not planespray: `roce::Device` straight over `soft::Udp`.
#![allow(dead_code, unreachable_pub)]

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use planespray::embedded::PacketIo;
use planespray::lanes::PortId;
use planespray::mem::{Access, Key, PageBuf, Pd, Region};
use planespray::roce::{
    Counters, Cqe, CqeKind, Device, DeviceConfig, QpConfig, QpKind, QpState, ReceiveWr, Remote, Rtr, Rts, SendOp,
    SendWr, Sge, Status, Transition, Transmit,
};
use planespray::seq::{Psn, Qpn};
use planespray::soft::{self, Udp, UdpConfig};
use planespray::time::{Span, Time};

/// Address that the first byte of an end's memory has in packets.
pub const BASE: u64 = 0x5000_0000_0000;
/// Bytes of it.
pub const MEMORY: usize = 2 << 20;
/// Retransmission timeout: long enough that a slow emulated peer is not asked twice.
const TIMEOUT: Span = Span::from_millis(500);
const STAGING: usize = 65_000;
const PD: Pd = Pd(1);

/// The other side of the connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub at: SocketAddr,
    pub qpn: u32,
    /// PSN of its first request.
    pub psn: u32,
}

/// What a connection may differ in.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub mtu: u32,
    /// PSN of our first request.
    pub psn: u32,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub timeout: Span,
    pub retries: u8,
}

impl Default for Options {
    fn default() -> Self {
        Options { mtu: 1024, psn: 0xff_fff0, rnr_retry: 6, min_rnr_timer: 12, timeout: TIMEOUT, retries: 6 }
    }
}

/// One end: sockets, a device with one RC queue pair, and registered memory.
pub struct End {
    pub udp: Udp,
    device: Device,
    qpn: Qpn,
    region: Region,
    key: Key,
    start: Instant,
    staging: PageBuf,
    /// What the socket did not take yet.
    held: Option<Transmit>,
}

impl End {
    /// Opens sockets at `ip` in the caller's network namespace, and makes a queue pair.
    pub fn open(ip: IpAddr, more: impl FnOnce(&mut UdpConfig)) -> End {
        let mut config = UdpConfig { planes: vec![ip], ..UdpConfig::default() };
        more(&mut config);
        let udp = Udp::open(&config).unwrap_or_else(|e| panic!("sockets at {ip}: {e}"));
        let mut device = Device::new(&DeviceConfig { seed: 7, max_qps: 4, max_keys: 16 });
        let region = Region::alloc(MEMORY).expect("memory");
        let all = Access::LOCAL_WRITE.and(Access::REMOTE_WRITE).and(Access::REMOTE_READ).and(Access::REMOTE_ATOMIC);
        let key = device.memory_mut().register(PD, &region, 0, MEMORY as u64, BASE, all).expect("a key");
        let config =
            QpConfig { kind: QpKind::Rc, pd: PD, send_depth: 256, receive_depth: 256, priority: 1, signal_all: false };
        let qpn = device.create_qp(&config).expect("a queue pair");
        device.modify_qp(qpn, Transition::Init).expect("INIT");
        let staging = PageBuf::zeroed(65_536, 2048);
        End { udp, device, qpn, region, key, start: Instant::now(), staging, held: None }
    }

    /// Where it receives.
    pub fn at(&self) -> SocketAddr {
        let port = &self.udp.ports()[0];
        SocketAddr::new(port.addr, port.udp_port)
    }

    pub fn qpn(&self) -> u32 {
        self.qpn.get()
    }

    pub fn rkey(&self) -> u32 {
        self.key.0
    }

    pub fn connect(&mut self, peer: &Peer, options: &Options) {
        let path = self.udp.open_path(PortId(0), 5, peer.at).expect("a path");
        let rtr = Rtr {
            dest_qpn: Qpn::new(peer.qpn),
            rq_psn: Psn::new(peer.psn),
            mtu: options.mtu,
            path,
            peer: peer.at.ip(),
            min_rnr_timer: options.min_rnr_timer,
            max_dest_rd_atomic: 4,
            ..Rtr::default()
        };
        self.device.modify_qp(self.qpn, Transition::Rtr(rtr)).expect("RTR");
        let rts = Rts {
            sq_psn: Psn::new(options.psn),
            timeout: options.timeout,
            retry_count: options.retries,
            rnr_retry: options.rnr_retry,
            max_rd_atomic: 4,
            ..Rts::default()
        };
        self.device.modify_qp(self.qpn, Transition::Rts(rts)).expect("RTS");
    }

    fn now(&self) -> Time {
        Time::from_nanos(self.start.elapsed().as_nanos() as u64)
    }

    fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: BASE + offset, len, lkey: self.key }
    }

    /// Posts a request over `len` bytes at `offset`.
    pub fn post(&mut self, id: u64, op: SendOp, offset: u64, len: u32, addr: u64, rkey: u32) {
        let wr = SendWr::new(id, op, self.sge(offset, len), Remote { addr, rkey });
        self.device.post_send(self.qpn, &wr).expect("room for a request");
    }

    /// Posts a receive; of no pieces if `len` is 0.
    pub fn post_receive(&mut self, id: u64, offset: u64, len: u32) {
        let wr =
            if len == 0 { ReceiveWr { id, ..ReceiveWr::default() } } else { ReceiveWr::new(id, self.sge(offset, len)) };
        self.device.post_receive(self.qpn, &wr).expect("room for a receive");
    }

    /// Takes in what arrived, runs timers, sends what is due. True if anything came or went.
    pub fn turn(&mut self) -> bool {
        let now = self.now();
        let device = &mut self.device;
        let mut busy = self.udp.receive(now, &mut |meta, packet| device.handle(now, meta, packet)) > 0;
        if self.device.next_timeout().is_some_and(|at| at <= now) {
            self.device.handle_timeout(now);
        }
        loop {
            let burst = match self.held.take() {
                Some(burst) => burst,
                None => match self.device.poll_transmit(now, STAGING, &mut self.staging) {
                    Some(burst) => burst,
                    None => return busy,
                },
            };
            busy = true;
            let bytes = &mut self.staging[..burst.len];
            match self.udp.send(burst.path, burst.tos, bytes, burst.segment) {
                Ok(true) => {}
                Ok(false) => {
                    self.held = Some(burst);
                    return busy;
                }
                Err(e) => panic!("send: {e}"),
            }
        }
    }

    /// Sleeps until a packet comes, a timer is due or `longest` is over.
    pub fn sleep(&mut self, longest: Duration) {
        let now = self.now();
        let due = self.device.next_timeout().map_or(longest, |at| Duration::from_nanos(at.since(now).as_nanos()));
        self.udp.wait(longest.min(due)).expect("poll");
    }

    pub fn poll(&mut self) -> Option<Cqe> {
        let mut one = [Cqe {
            qpn: self.qpn,
            id: 0,
            what: CqeKind::Send,
            status: Status::Success,
            len: 0,
            imm: None,
            src_qpn: None,
            rtt: None,
            marks: None,
            retransmits: 0,
        }];
        (self.device.poll_cq(&mut one) == 1).then_some(one[0])
    }

    pub fn state(&self) -> QpState {
        self.device.state(self.qpn).expect("a queue pair")
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) {
        self.region.write_at(offset, bytes).expect("within the memory");
    }

    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read_at(offset, &mut bytes).expect("within the memory");
        bytes
    }

    pub fn counters(&self) -> Counters {
        *self.device.counters()
    }

    pub fn socket_counters(&self) -> soft::Counters {
        *self.udp.counters()
    }
}
