//! The embedded engine: lanes made of our own queue pairs over some way of moving packets.
//!
//! [`Embedded`] joins [`crate::roce`], which knows no lanes, to the seam, which knows no packets; the
//! packets travel by a [`PacketIo`]: UDP sockets or the simulated fabric.
#![forbid(unsafe_code)]

mod io;

pub use io::PacketIo;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use crate::lanes::{
    Caps, Completed, Completion, Control, Domain, Full, LaneAddress, LaneError, LaneEvent, LaneId, LaneSpec, Lanes,
    Local, MAX_PORTS, Marks, MrId, Op, PortInfo, Receive, Status, Window, WindowAccess, WorkRequest,
};
use crate::mem::{Access, Key, PageBuf, Pd, Region};
use crate::roce::{
    self, Cqe, CqeKind, Device, DeviceConfig, PathId, QpConfig, QpKind, ReceiveWr, SendOp, SendWr, Sge, Transition,
};
use crate::seq::{Psn, Qpn};
use crate::time::{Span, Time};

/// Bytes of one staged burst: what one `sendmsg` may carry.
const STAGING: usize = 65_536;
/// Bursts per doorbell, so that receiving is never starved by sending.
const BURSTS_PER_DOORBELL: usize = 16;
/// The RTT and loss bounds of the queue pairs. The watchdog above decides sooner.
const TIMEOUT: Span = Span::from_millis(4);
const RETRIES: u8 = 12;
/// While packets keep coming, timers run once in so many polls.
const TIMERS_EVERY: u32 = 16;
const CQ_BATCH: usize = 64;
const EMPTY_CQE: Cqe = Cqe {
    qpn: Qpn::new(0),
    id: 0,
    what: CqeKind::Send,
    status: roce::Status::Success,
    len: 0,
    imm: None,
    src_qpn: None,
    rtt: None,
    marks: None,
    retransmits: 0,
};

/// How an embedded engine is sized.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedConfig {
    /// Seeds queue pair numbers, PSNs and keys; from a real random source outside tests.
    pub seed: u64,
    /// Most lanes at once, 1..=4096.
    pub max_lanes: usize,
    /// Most registrations and windows at once, 1..=65,536.
    pub max_keys: usize,
    /// What goes into the name that logs and JSON show.
    pub name: &'static str,
    /// Payload bytes of one burst.
    pub burst: u32,
    /// How long a lane may make no progress before it is given up.
    pub patience: Span,
}

/// Lanes over our own RoCEv2 queue pairs.
pub struct Embedded<P> {
    config: EmbeddedConfig,
    device: Device,
    io: P,
    lanes: Vec<Slot>,
    /// Lane of each queue pair slot (the low 12 bits of its number).
    by_qp: Vec<Option<LaneId>>,
    mrs: Vec<Option<Mr>>,
    staging: PageBuf,
    blocked: Option<roce::Transmit>,
    events: VecDeque<LaneEvent>,
    cqes: Vec<Cqe>,
    rng: fastrand::Rng,
    /// Calls of `poll` in a row that found packets.
    busy_polls: u32,
}

struct Slot {
    generation: u16,
    lane: Option<Lane>,
}

struct Lane {
    qpn: Qpn,
    psn: Psn,
    secret: u32,
    spec: LaneSpec,
    path: Option<PathId>,
    mtu: Option<u32>,
    failed: bool,
}

struct Mr {
    region: Region,
    key: Key,
}

impl<P: PacketIo> Embedded<P> {
    /// An engine over `io`.
    pub fn new(config: EmbeddedConfig, io: P) -> Self {
        let max_lanes = config.max_lanes.clamp(1, 4095);
        let device = Device::new(&DeviceConfig {
            seed: config.seed,
            // One more for the feedback queue pair.
            max_qps: max_lanes + 1,
            max_keys: config.max_keys,
        });
        Embedded {
            device,
            io,
            lanes: Vec::new(),
            by_qp: vec![None; 4096],
            mrs: Vec::new(),
            staging: PageBuf::zeroed(STAGING, 2048),
            blocked: None,
            events: VecDeque::with_capacity(256),
            cqes: vec![EMPTY_CQE; CQ_BATCH],
            busy_polls: 0,
            rng: fastrand::Rng::with_seed(config.seed ^ 0x9e37_79b9_7f4a_7c15),
            config: EmbeddedConfig { max_lanes, ..config },
        }
    }

    /// The packet edge, for its counters.
    pub fn io(&self) -> &P {
        &self.io
    }

    /// The packet edge, for its controls.
    pub fn io_mut(&mut self) -> &mut P {
        &mut self.io
    }

    /// The queue pairs' counters.
    pub fn counters(&self) -> &roce::Counters {
        self.device.counters()
    }

    fn lane(&self, id: LaneId) -> Result<&Lane, LaneError> {
        match self.lanes.get(id.index()) {
            Some(Slot { generation, lane: Some(lane) }) if u32::from(*generation) == id.0 >> 16 => Ok(lane),
            _ => Err(LaneError::NoLane),
        }
    }

    fn lane_mut(&mut self, id: LaneId) -> Result<&mut Lane, LaneError> {
        match self.lanes.get_mut(id.index()) {
            Some(Slot { generation, lane: Some(lane) }) if u32::from(*generation) == id.0 >> 16 => Ok(lane),
            _ => Err(LaneError::NoLane),
        }
    }

    fn sge(&self, local: &Local) -> Option<Sge> {
        let mr = self.mrs.get(local.mr.0 as usize)?.as_ref()?;
        Some(Sge { addr: local.offset, len: local.len, lkey: mr.key })
    }

    /// Sends the staged burst; false if the socket would block.
    fn flush(&mut self, burst: &roce::Transmit) -> bool {
        // After an error the packets are lost like any others; timers and the watchdog see to it.
        self.io.send(burst.path, burst.tos, &mut self.staging[..burst.len], burst.segment).unwrap_or(true)
    }

    /// A lane that ends sends nothing more, not even what a full socket held up.
    fn forget_blocked(&mut self, qpn: Qpn) {
        if self.blocked.as_ref().is_some_and(|b| b.qpn == qpn) {
            self.blocked = None;
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.device.poll_event() {
            if let Some(id) = self.by_qp[(event.qpn.get() & 0xfff) as usize]
                && self.lane(id).is_ok_and(|lane| lane.qpn == event.qpn)
            {
                self.fail(id, status(event.status));
            }
        }
    }

    fn complete(&mut self, cqe: &Cqe) -> Option<Completion> {
        let lane = (*self.by_qp.get((cqe.qpn.get() & 0xfff) as usize)?)?;
        if self.lane(lane).ok()?.qpn != cqe.qpn {
            return None;
        }
        let status = status(cqe.status);
        let what = match cqe.what {
            CqeKind::Send | CqeKind::Write | CqeKind::Read | CqeKind::FetchAdd | CqeKind::CompareSwap => {
                Completed::Request
            }
            CqeKind::Receive => Completed::Receive { len: cqe.len },
            CqeKind::ReceiveWriteImm => Completed::Immediate { imm: cqe.imm.unwrap_or(0) },
        };
        Some(Completion {
            lane,
            id: cqe.id,
            what,
            status,
            rtt: cqe.rtt,
            marks: cqe.marks.map(|(packets, ce)| Marks { packets, ce }),
            retransmits: cqe.retransmits,
        })
    }

    fn fail(&mut self, id: LaneId, status: Status) {
        if let Ok(lane) = self.lane_mut(id)
            && !std::mem::replace(&mut lane.failed, true)
        {
            self.events.push_back(LaneEvent::LaneError { lane: id, status });
        }
    }
}

impl<P: PacketIo> Control for Embedded<P> {
    fn caps(&self) -> Caps {
        Caps { name: self.config.name, ecn_per_lane: true, shared_keys: true, burst: self.config.burst }
    }

    fn ports(&self) -> &[PortInfo] {
        self.io.ports()
    }

    fn register(&mut self, region: &Region) -> Result<MrId, LaneError> {
        let len = region.len() as u64;
        let key = self.device.memory_mut().register(Pd::LOCAL, region, 0, len, 0, Access::LOCAL_WRITE)?;
        let mr = Mr { region: region.clone(), key };
        let index = match self.mrs.iter().position(Option::is_none) {
            Some(i) => i,
            None => {
                self.mrs.push(None);
                self.mrs.len() - 1
            }
        };
        self.mrs[index] = Some(mr);
        Ok(MrId(index as u32))
    }

    fn deregister(&mut self, mr: MrId) -> bool {
        match self.mrs.get_mut(mr.0 as usize).and_then(Option::take) {
            Some(mr) => self.device.memory_mut().revoke(mr.key),
            None => false,
        }
    }

    fn open_window(
        &mut self,
        domain: Domain,
        mr: MrId,
        offset: u64,
        len: u64,
        access: WindowAccess,
    ) -> Result<Window, LaneError> {
        let Some(Some(mr)) = self.mrs.get(mr.0 as usize) else {
            return Err(LaneError::Invalid { what: "registration" });
        };
        let mut rights = Access::LOCAL_WRITE;
        for (asked, right) in [
            (access.write, Access::REMOTE_WRITE),
            (access.read, Access::REMOTE_READ),
            (access.atomic, Access::REMOTE_ATOMIC),
        ] {
            if asked {
                rights = rights.and(right);
            }
        }
        let key = self.device.memory_mut().register(Pd(domain.0), &mr.region, offset, len, 0, rights)?;
        Ok(Window { addr: 0, len, keys: [key.0; MAX_PORTS] })
    }

    fn close_window(&mut self, window: &Window) -> bool {
        self.device.memory_mut().revoke(Key(window.keys[0]))
    }

    fn create(&mut self, spec: &LaneSpec) -> Result<LaneId, LaneError> {
        if usize::from(spec.port.0) >= self.io.ports().len() {
            return Err(LaneError::Invalid { what: "port" });
        }
        let limit = self.config.max_lanes;
        let index = match self.lanes.iter().position(|s| s.lane.is_none()) {
            Some(i) => i,
            None if self.lanes.len() < limit => {
                self.lanes.push(Slot { generation: 0, lane: None });
                self.lanes.len() - 1
            }
            None => return Err(LaneError::NoLanes { limit }),
        };
        let qpn = self
            .device
            .create_qp(&QpConfig {
                kind: QpKind::Rc,
                pd: Pd(spec.domain.0),
                send_depth: spec.send_depth,
                receive_depth: spec.receive_depth,
                priority: spec.class.index() as u8,
                signal_all: true,
            })
            .map_err(|e| match e {
                roce::QpError::Invalid { what } => LaneError::Invalid { what },
                _ => LaneError::NoLanes { limit },
            })?;
        let made = self.device.modify_qp(qpn, Transition::Init);
        debug_assert!(made.is_ok(), "RESET to INIT is always allowed");
        let slot = &mut self.lanes[index];
        slot.generation = slot.generation.wrapping_add(1);
        let id = LaneId(u32::from(slot.generation) << 16 | index as u32);
        slot.lane = Some(Lane {
            qpn,
            psn: Psn::new(self.rng.u32(..)),
            secret: self.rng.u32(..),
            spec: *spec,
            path: None,
            mtu: None,
            failed: false,
        });
        self.by_qp[(qpn.get() & 0xfff) as usize] = Some(id);
        Ok(id)
    }

    fn address(&self, lane: LaneId) -> Result<LaneAddress, LaneError> {
        let lane = self.lane(lane)?;
        let port = self.io.ports().get(usize::from(lane.spec.port.0)).ok_or(LaneError::Invalid { what: "port" })?;
        Ok(LaneAddress {
            qpn: lane.qpn.get(),
            psn: lane.psn.get(),
            addr: port.addr,
            udp_port: port.udp_port,
            mtu: port.mtu,
            feedback_qpn: self.device.feedback_qpn().get(),
            feedback_secret: lane.secret,
        })
    }

    fn connect(&mut self, id: LaneId, peer: &LaneAddress) -> Result<(), LaneError> {
        let (qpn, psn, secret, spec) = {
            let lane = self.lane(id)?;
            (lane.qpn, lane.psn, lane.secret, lane.spec)
        };
        let port = self.io.ports().get(usize::from(spec.port.0)).ok_or(LaneError::Invalid { what: "port" })?;
        if !matches!(peer.mtu, 256 | 512 | 1024 | 2048 | 4096) {
            return Err(LaneError::Invalid { what: "peer's MTU" });
        }
        let mtu = port.mtu.min(peer.mtu);
        let path = self.io.open_path(spec.port, spec.entropy, SocketAddr::new(peer.addr, peer.udp_port))?;
        let extension = (peer.feedback_qpn != 0).then(|| roce::Extension {
            feedback_qpn: Qpn::new(peer.feedback_qpn),
            qkey: secret ^ peer.feedback_secret,
        });
        let rtr = Transition::Rtr(roce::Rtr {
            dest_qpn: Qpn::new(peer.qpn),
            rq_psn: Psn::new(peer.psn),
            mtu,
            path,
            peer: peer.addr,
            tos: spec.dscp.with(crate::class::Ecn::Ect0),
            extension,
            ..roce::Rtr::default()
        });
        let rts = Transition::Rts(roce::Rts {
            sq_psn: psn,
            timeout: TIMEOUT,
            retry_count: RETRIES,
            patience: self.config.patience,
            ..roce::Rts::default()
        });
        let moved = self.device.modify_qp(qpn, rtr).and_then(|()| self.device.modify_qp(qpn, rts));
        if moved.is_err() {
            self.io.close_path(path);
            return Err(LaneError::Invalid { what: "lane state" });
        }
        let lane = self.lane_mut(id)?;
        lane.path = Some(path);
        lane.mtu = Some(mtu);
        Ok(())
    }

    fn lane_mtu(&self, lane: LaneId) -> Option<u32> {
        self.lane(lane).ok()?.mtu
    }

    fn fence(&mut self, id: LaneId) -> Result<(), LaneError> {
        let lane = self.lane_mut(id)?;
        lane.failed = true;
        let qpn = lane.qpn;
        self.forget_blocked(qpn);
        self.device.modify_qp(qpn, Transition::Err).map_err(|_| LaneError::NoLane)
    }

    fn destroy(&mut self, id: LaneId) -> Result<(), LaneError> {
        self.lane(id)?;
        let Some(lane) = self.lanes[id.index()].lane.take() else { return Err(LaneError::NoLane) };
        self.forget_blocked(lane.qpn);
        self.by_qp[(lane.qpn.get() & 0xfff) as usize] = None;
        if let Some(path) = lane.path {
            // Feedback that a full socket held up must not leave by the path's next owner.
            self.blocked = self.blocked.take().filter(|b| b.path != path);
            self.io.close_path(path);
        }
        self.device.destroy_qp(lane.qpn).map_err(|_| LaneError::NoLane)
    }

    fn poll_event(&mut self) -> Option<LaneEvent> {
        self.events.pop_front()
    }
}

impl<P: PacketIo> Lanes for Embedded<P> {
    fn post(&mut self, lane: LaneId, wr: &WorkRequest) -> Result<(), Full> {
        let qpn = self.lane(lane).map_err(|_| Full)?.qpn;
        let op = match wr.op {
            Op::Send => SendOp::Send,
            Op::Write => SendOp::Write,
            Op::WriteImm(imm) => SendOp::WriteImm(imm),
            Op::Read => SendOp::Read,
            Op::FetchAdd(add) => SendOp::FetchAdd(add),
            Op::CompareSwap(compare, swap) => SendOp::CompareSwap { compare, swap },
        };
        let mut request = SendWr {
            id: wr.id,
            op,
            remote: roce::Remote { addr: wr.remote.addr, rkey: wr.remote.rkey },
            ..SendWr::default()
        };
        if wr.local.len > 0 {
            request.sges[0] = self.sge(&wr.local).ok_or(Full)?;
            request.sge_count = 1;
        }
        self.device.post_send(qpn, &request).map_err(|_| Full)
    }

    fn post_receive(&mut self, lane: LaneId, receive: &Receive) -> Result<(), Full> {
        let qpn = self.lane(lane).map_err(|_| Full)?.qpn;
        let mut request = ReceiveWr { id: receive.id, ..ReceiveWr::default() };
        if let Some(local) = &receive.local {
            request.sges[0] = self.sge(local).ok_or(Full)?;
            request.sge_count = 1;
        }
        self.device.post_receive(qpn, &request).map_err(|_| Full)
    }

    fn doorbell(&mut self, now: Time) {
        if let Some(burst) = self.blocked.take()
            && !self.flush(&burst)
        {
            self.blocked = Some(burst);
            return;
        }
        for _ in 0..BURSTS_PER_DOORBELL {
            let Some(burst) = self.device.poll_transmit(now, STAGING, &mut self.staging) else { break };
            if !self.flush(&burst) {
                self.blocked = Some(burst);
                break;
            }
        }
    }

    fn poll(&mut self, now: Time, out: &mut [Completion]) -> usize {
        let device = &mut self.device;
        let received = self.io.receive(now, &mut |meta, packet| device.handle(now, meta, packet));
        // What would stop a timer may be waiting to be received: after a pause of ours nothing has expired yet.
        self.busy_polls = if received == 0 { 0 } else { self.busy_polls.wrapping_add(1) };
        if self.busy_polls.is_multiple_of(TIMERS_EVERY) && self.device.next_timeout().is_some_and(|t| t <= now) {
            self.device.handle_timeout(now);
        }
        self.take_events();
        while let Some((port, packets)) = self.io.drops() {
            self.events.push_back(LaneEvent::ReceiveDrops { port, packets });
        }
        while let Some((port, up)) = self.io.port_change() {
            self.events.push_back(if up { LaneEvent::PortUp(port) } else { LaneEvent::PortDown(port) });
        }
        let mut filled = 0;
        while filled < out.len() {
            let want = (out.len() - filled).min(CQ_BATCH);
            let got = self.device.poll_cq(&mut self.cqes[..want]);
            for i in 0..got {
                let cqe = self.cqes[i];
                if let Some(completion) = self.complete(&cqe) {
                    out[filled] = completion;
                    filled += 1;
                }
            }
            if got < want {
                break;
            }
        }
        filled
    }

    fn next_timeout(&self) -> Option<Time> {
        // Sending and posting complete requests too: those that fail, and those that a receive was missing for.
        if self.blocked.is_some() || self.device.pending_transmit() || self.device.has_completions() {
            return Some(Time::ZERO);
        }
        match (self.device.next_timeout(), self.io.next_event()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.io.wait_fds()
    }
}

fn status(s: roce::Status) -> Status {
    match s {
        roce::Status::Success => Status::Success,
        roce::Status::Flushed => Status::Flushed,
        roce::Status::RetryExceeded => Status::RetryExceeded,
        roce::Status::RnrRetryExceeded => Status::RnrRetryExceeded,
        roce::Status::RemoteAccess => Status::RemoteAccess,
        roce::Status::RemoteInvalidRequest => Status::RemoteInvalidRequest,
        roce::Status::RemoteOperation => Status::RemoteOperation,
        roce::Status::LocalProtection => Status::LocalProtection,
        roce::Status::LocalLength => Status::LocalLength,
        _ => Status::Other,
    }
}
