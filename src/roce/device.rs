//! The device: its queue pairs, keys and completion queue.

use std::collections::VecDeque;
use std::net::IpAddr;

use crate::mem::Registry;
use crate::seq::{Psn, Qpn};
use crate::time::Time;

use super::counters::Counters;
use super::gather::total;
use super::list::{List, Slots, Thread};
use super::qp::{Cx, Link, Qp};
use super::requester::Wqe;
use super::segment::Cut;
use super::state::{PathId, QpConfig, QpError, QpEvent, QpKind, QpState, Rtr, Rts, Transition};
use super::timer::Timers;
use super::wr::{Cqe, MAX_MESSAGE, MAX_SGES, PostError, ReceiveWr, SendOp, SendWr, Sge};

/// How a device is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceConfig {
    /// Makes queue pair numbers and keys.
    pub seed: u64,
    /// Queue pairs at once, 1..=4,095.
    pub max_qps: usize,
    /// Keys at once, 1..=65,536.
    pub max_keys: usize,
}

/// What the edge knows of a packet besides its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RxMeta {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// TOS or traffic class as it arrived: the two low bits are ECN.
    pub tos: u8,
    /// TTL or hop limit as it arrived.
    pub ttl: u8,
}

/// Packets to send: `count` of them back to back in the first `len` bytes of the caller's buffer, all
/// `segment` bytes long but the last, which may be shorter. The last 4 bytes of each are room for the ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Where to.
    pub path: PathId,
    /// TOS or traffic class.
    pub tos: u8,
    /// Bytes written.
    pub len: usize,
    /// Bytes of each packet but the last.
    pub segment: usize,
    /// Packets, 1..=64.
    pub count: usize,
    /// The queue pair that sends.
    pub qpn: Qpn,
}

/// See the [module](super).
#[derive(Debug)]
pub struct Device {
    pub(super) memory: Registry,
    /// By the low 12 bits of the number; slot 0 is the feedback queue pair's.
    pub(super) qps: Slots,
    free: Vec<u16>,
    /// The high 12 bits last used with each slot.
    tags: Vec<u16>,
    rng: fastrand::Rng,
    pub(super) cq: VecDeque<Cqe>,
    /// Sum of the depths of all queues: what the completion queue may have to hold.
    cq_needed: usize,
    pub(super) events: VecDeque<QpEvent>,
    pub(super) counters: Counters,
    pub(super) timers: Timers,
    /// Queue pairs with data to send, by priority.
    pub(super) ready: [List; 3],
    /// Those with acknowledgements, notifications or feedback to send.
    pub(super) late: List,
    /// Bursts of data since one of those had its turn.
    pub(super) data_turns: u32,
    pub(super) feedback_qpn: Qpn,
    pub(super) feedback_psn: Psn,
}

impl Device {
    /// A device without queue pairs.
    pub fn new(cfg: &DeviceConfig) -> Device {
        let max_qps = cfg.max_qps.clamp(1, 4095);
        let mut rng = fastrand::Rng::with_seed(cfg.seed);
        let key_seed = rng.u64(..);
        let feedback_qpn = Qpn::new(u32::from(rng.u16(1..0xfff)) << 12);
        let feedback_psn = Psn::new(rng.u32(..));
        Device {
            memory: Registry::new(cfg.max_keys, key_seed),
            qps: (0..=max_qps).map(|_| None).collect(),
            free: (1..=max_qps as u16).rev().collect(),
            tags: (0..=max_qps).map(|_| rng.u16(..0xffe)).collect(),
            rng,
            cq: VecDeque::new(),
            cq_needed: 0,
            events: VecDeque::with_capacity(2 * max_qps),
            counters: Counters::default(),
            timers: Timers::new(max_qps + 1),
            ready: [List::new(Thread::Ready); 3],
            late: List::new(Thread::Late),
            data_turns: 0,
            feedback_qpn,
            feedback_psn,
        }
    }

    /// The key table.
    pub fn memory(&self) -> &Registry {
        &self.memory
    }

    /// The key table, to open and revoke keys.
    pub fn memory_mut(&mut self) -> &mut Registry {
        &mut self.memory
    }

    /// Makes a queue pair in RESET. Its number is random.
    ///
    /// # Errors
    /// Too many, or a depth or priority out of range.
    pub fn create_qp(&mut self, cfg: &QpConfig) -> Result<Qpn, QpError> {
        let invalid = |what| Err(QpError::Invalid { what });
        if !(1..=32_768).contains(&cfg.send_depth) {
            return invalid("send_depth");
        }
        if cfg.receive_depth > 32_768 {
            return invalid("receive_depth");
        }
        if cfg.priority > 2 {
            return invalid("priority");
        }
        let Some(slot) = self.free.pop() else { return Err(QpError::NoQps { limit: self.qps.len() - 1 }) };
        // 1..=0xffe: with them no number is 0, 1 or 0xffffff. Never the same twice running.
        let tag = &mut self.tags[usize::from(slot)];
        *tag = (*tag + self.rng.u16(1..0xffe)) % 0xffe;
        let qpn = Qpn::new((u32::from(*tag) + 1) << 12 | u32::from(slot));
        self.qps[usize::from(slot)] = Some(Box::new(Qp::new(qpn, cfg)));
        self.cq_needed += usize::from(cfg.send_depth) + usize::from(cfg.receive_depth);
        self.cq.reserve(self.cq_needed.saturating_sub(self.cq.len()));
        Ok(qpn)
    }

    /// Changes its state.
    ///
    /// # Errors
    /// No such queue pair, a state that does not lead there, or a parameter out of range.
    pub fn modify_qp(&mut self, qpn: Qpn, to: Transition) -> Result<(), QpError> {
        let slot = self.slot(qpn).ok_or(QpError::NoQp)?;
        let (Some(qp), mut cx) = self.split(slot, Time::ZERO) else { return Err(QpError::NoQp) };
        let from = qp.state;
        match (to, from) {
            (Transition::Init, QpState::Reset) => qp.state = QpState::Init,
            (Transition::Rtr(rtr), QpState::Init) => {
                check_rtr(&rtr)?;
                qp.link = Link::new(&rtr);
                qp.resp.connect(&rtr);
                qp.state = QpState::Rtr;
            }
            (Transition::Rts(rts), QpState::Rtr) => {
                check_rts(&rts)?;
                let extended = qp.extended();
                qp.req.connect(&rts, extended);
                qp.state = QpState::Rts;
            }
            (Transition::Sqd, QpState::Rts) => qp.state = QpState::Sqd,
            (Transition::Resume, QpState::Sqd) => qp.state = QpState::Rts,
            (Transition::Err, QpState::Err) => qp.resp.stop(),
            (Transition::Err, _) => qp.enter_err(&mut cx, None),
            (Transition::Reset, _) => {
                qp.reset();
                self.cq.retain(|c| c.qpn != qpn);
            }
            _ => return Err(QpError::BadState { from }),
        }
        self.settle(slot);
        Ok(())
    }

    /// Ends it, and forgets its completions that were not polled.
    ///
    /// # Errors
    /// No such queue pair.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), QpError> {
        let slot = self.slot(qpn).ok_or(QpError::NoQp)?;
        let index = slot as u16;
        for list in &mut self.ready {
            list.remove(&mut self.qps, index);
        }
        self.late.remove(&mut self.qps, index);
        self.timers.disarm(slot);
        self.cq.retain(|c| c.qpn != qpn);
        self.events.retain(|e| e.qpn != qpn);
        if let Some(qp) = self.qps[slot].take() {
            self.cq_needed -= qp.req.depth + qp.resp.depth;
        }
        self.free.push(index);
        Ok(())
    }

    /// Its state.
    pub fn state(&self, qpn: Qpn) -> Option<QpState> {
        self.qp(qpn).map(|qp| qp.state)
    }

    /// True if nothing that was started is unfinished; in SQD nothing new starts.
    pub fn is_drained(&self, qpn: Qpn) -> bool {
        self.qp(qpn).is_none_or(|qp| qp.req.sq.front().is_none_or(|wqe| !wqe.started))
    }

    /// Where this device takes feedback; goes into the peer's [`super::Extension`].
    pub fn feedback_qpn(&self) -> Qpn {
        self.feedback_qpn
    }

    /// Queues a work request: in RTS or SQD.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_send(&mut self, qpn: Qpn, wr: &SendWr) -> Result<(), PostError> {
        let slot = self.slot(qpn).ok_or(PostError::NoQp)?;
        let qp = self.qps[slot].as_mut().ok_or(PostError::NoQp)?;
        if !matches!(qp.state, QpState::Rts | QpState::Sqd) {
            return Err(PostError::BadState);
        }
        let len = length(&wr.sges, wr.sge_count)?;
        let fits = match (qp.kind, wr.op) {
            (QpKind::Ud, SendOp::Send | SendOp::SendImm(_)) => wr.ud.is_some() && len <= qp.link.mtu,
            (QpKind::Ud, _) => false,
            (QpKind::Rc, SendOp::FetchAdd(_) | SendOp::CompareSwap { .. }) => len == 8,
            (QpKind::Rc, SendOp::Read) => len >> qp.link.shift < 1 << 21,
            (QpKind::Rc, op) => Cut::of(&op, len, qp.link.shift, qp.extended()).packets() <= 1 << 21,
        };
        if !fits {
            return Err(PostError::Invalid);
        }
        if qp.req.sq.len() + qp.sq_unpolled as usize >= qp.req.depth {
            return Err(PostError::Full);
        }
        qp.req.sq.push_back(Wqe::new(wr, len));
        self.settle(slot);
        Ok(())
    }

    /// Queues a receive: in any state but RESET and ERR.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_receive(&mut self, qpn: Qpn, wr: &ReceiveWr) -> Result<(), PostError> {
        let slot = self.slot(qpn).ok_or(PostError::NoQp)?;
        let qp = self.qps[slot].as_mut().ok_or(PostError::NoQp)?;
        if matches!(qp.state, QpState::Reset | QpState::Err) {
            return Err(PostError::BadState);
        }
        length(&wr.sges, wr.sge_count)?;
        if qp.resp.rq.len() + qp.rq_unpolled as usize >= qp.resp.depth {
            return Err(PostError::Full);
        }
        qp.resp.rq.push_back(*wr);
        if qp.resp.waits_for_receive() {
            if let (Some(qp), mut cx) = self.split(slot, Time::ZERO) {
                qp.take_deferred(&mut cx);
            }
            self.settle(slot);
        }
        Ok(())
    }

    /// Takes completions, oldest first. Returns how many.
    pub fn poll_cq(&mut self, out: &mut [Cqe]) -> usize {
        let n = out.len().min(self.cq.len());
        for (to, cqe) in out.iter_mut().zip(self.cq.drain(..n)) {
            *to = cqe;
            let slot = (cqe.qpn.get() & 0xfff) as usize;
            if let Some(Some(qp)) = self.qps.get_mut(slot) {
                let count = match cqe.what {
                    super::CqeKind::Receive | super::CqeKind::ReceiveWriteImm => &mut qp.rq_unpolled,
                    _ => &mut qp.sq_unpolled,
                };
                *count = count.saturating_sub(1);
            }
        }
        n
    }

    /// True if [`Device::poll_cq`] has something.
    pub fn has_completions(&self) -> bool {
        !self.cq.is_empty()
    }

    /// The next queue pair that moved itself to ERR.
    pub fn poll_event(&mut self) -> Option<QpEvent> {
        self.events.pop_front()
    }

    /// When [`Device::handle_timeout`] must be called. Earlier or later calls do no harm.
    pub fn next_timeout(&self) -> Option<Time> {
        self.timers.first()
    }

    /// Runs what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        // Each queue pair at most once: it may arm its timer anew, but for later.
        for _ in 0..self.qps.len() {
            let Some(slot) = self.timers.pop_due(now) else { return };
            if let (Some(qp), mut cx) = self.split(slot, now) {
                qp.on_timer(&mut cx);
            }
            self.settle(slot);
        }
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    fn qp(&self, qpn: Qpn) -> Option<&Qp> {
        self.qps.get((qpn.get() & 0xfff) as usize)?.as_deref().filter(|qp| qp.qpn == qpn)
    }

    /// The slot of a live queue pair.
    #[inline]
    pub(super) fn slot(&self, qpn: Qpn) -> Option<usize> {
        self.qp(qpn).map(|_| (qpn.get() & 0xfff) as usize)
    }

    /// A queue pair, and the rest of the device for it to use.
    #[inline]
    pub(super) fn split(&mut self, slot: usize, now: Time) -> (Option<&mut Qp>, Cx<'_>) {
        let qp = self.qps.get_mut(slot).and_then(|qp| qp.as_deref_mut());
        let cx =
            Cx { now, memory: &self.memory, cq: &mut self.cq, events: &mut self.events, counters: &mut self.counters };
        (qp, cx)
    }

    /// Puts a queue pair on the lists and timers that its state now calls for.
    #[inline]
    pub(super) fn settle(&mut self, slot: usize) {
        let Some(Some(qp)) = self.qps.get(slot) else { return };
        let data = !qp.ready.listed && qp.wants_data();
        let late = !qp.late.listed && qp.wants_late();
        let priority = usize::from(qp.priority);
        if let Some(at) = qp.deadline() {
            self.timers.arm(slot, at);
        }
        if data {
            self.ready[priority].push(&mut self.qps, slot as u16);
        }
        if late {
            self.late.push(&mut self.qps, slot as u16);
        }
    }
}

/// Bytes that a list of pieces has, if it is well formed.
fn length(sges: &[Sge; MAX_SGES], count: u8) -> Result<u32, PostError> {
    let sges = sges.get(..usize::from(count)).ok_or(PostError::Invalid)?;
    match total(sges) {
        len if len <= u64::from(MAX_MESSAGE) => Ok(len as u32),
        _ => Err(PostError::Invalid),
    }
}

fn check_rtr(rtr: &Rtr) -> Result<(), QpError> {
    let invalid = |what| Err(QpError::Invalid { what });
    if !matches!(rtr.mtu, 256 | 512 | 1024 | 2048 | 4096) {
        return invalid("mtu");
    }
    if rtr.min_rnr_timer > 31 {
        return invalid("min_rnr_timer");
    }
    if rtr.max_dest_rd_atomic > 128 {
        return invalid("max_dest_rd_atomic");
    }
    Ok(())
}

fn check_rts(rts: &Rts) -> Result<(), QpError> {
    let invalid = |what| Err(QpError::Invalid { what });
    if rts.rnr_retry > 7 {
        return invalid("rnr_retry");
    }
    if !(1..=128).contains(&rts.max_rd_atomic) {
        return invalid("max_rd_atomic");
    }
    Ok(())
}
