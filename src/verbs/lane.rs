//! One lane: a queue pair, and what was posted to it and has not completed.

use std::collections::VecDeque;

use super::budget::Permit;
use super::cq::Wc;
use super::qp::Qp;
use super::status::status_of;
use super::sys::IBV_WC_RECV_RDMA_WITH_IMM;
use crate::lanes::{Completed, Completion, LaneEvent, LaneId, LaneSpec, Status};
use crate::time::{Span, Time};

/// Marks the id of a receive among the ids that the device sees.
const RECEIVE: u64 = 1 << 32;

pub(super) struct Lane {
    pub(super) id: LaneId,
    /// Gone if the device would not take it to ERR: then only its end guarantees that nothing lands any more.
    pub(super) qp: Option<Qp>,
    pub(super) spec: LaneSpec,
    pub(super) qpn: u32,
    pub(super) psn: u32,
    pub(super) device: usize,
    pub(super) cq: usize,
    pub(super) place: usize,
    pub(super) mtu: Option<u32>,
    /// Takes no more work.
    pub(super) failed: bool,
    /// Whoever uses the lane knows that it failed.
    pub(super) told: bool,
    /// What an event of the device said, before completions did.
    pub(super) cause: Option<Status>,
    /// Requests in posting order.
    sends: VecDeque<Sent>,
    /// Receives in posting order.
    receives: VecDeque<u64>,
    /// The last so many requests wait for the doorbell.
    pub(super) unrung: usize,
    /// The last so many requests never reached the device.
    orphans: usize,
    pub(super) _permit: Permit,
}

#[derive(Clone, Copy)]
struct Sent {
    id: u64,
    at: Time,
}

/// What a lane is made of.
pub(super) struct LaneParts {
    pub(super) id: LaneId,
    pub(super) qp: Qp,
    pub(super) spec: LaneSpec,
    pub(super) psn: u32,
    pub(super) device: usize,
    pub(super) cq: usize,
    pub(super) place: usize,
    pub(super) permit: Permit,
}

impl Lane {
    pub(super) fn new(parts: LaneParts) -> Lane {
        let spec = parts.spec;
        Lane {
            id: parts.id,
            qpn: parts.qp.qpn(),
            qp: Some(parts.qp),
            spec,
            psn: parts.psn,
            device: parts.device,
            cq: parts.cq,
            place: parts.place,
            mtu: None,
            failed: false,
            told: false,
            cause: None,
            sends: VecDeque::with_capacity(usize::from(spec.send_depth)),
            receives: VecDeque::with_capacity(usize::from(spec.receive_depth)),
            unrung: 0,
            orphans: 0,
            _permit: parts.permit,
        }
    }

    /// Entries of the completion queue that it may need.
    pub(super) fn entries(&self) -> u32 {
        entries(&self.spec)
    }

    pub(super) fn can_send(&self) -> bool {
        !self.failed && self.mtu.is_some() && self.sends.len() < usize::from(self.spec.send_depth)
    }

    pub(super) fn can_receive(&self) -> bool {
        !self.failed && self.receives.len() < usize::from(self.spec.receive_depth)
    }

    /// The id that the device gets for a request.
    pub(super) fn send_id(&self) -> u64 {
        u64::from(self.id.0)
    }

    /// The id that the device gets for a receive.
    pub(super) fn receive_id(&self) -> u64 {
        u64::from(self.id.0) | RECEIVE
    }

    pub(super) fn sent(&mut self, id: u64) {
        self.sends.push_back(Sent { id, at: Time::ZERO });
        self.unrung += 1;
    }

    pub(super) fn received(&mut self, id: u64) {
        self.receives.push_back(id);
    }

    pub(super) fn has_work(&self) -> bool {
        !self.sends.is_empty() || !self.receives.is_empty()
    }

    /// Sends what was posted. If the device does not take it, the lane fails.
    pub(super) fn ring(&mut self, now: Time, backlog: &mut VecDeque<Completion>) {
        let first = self.sends.len() - self.unrung;
        for sent in self.sends.range_mut(first..) {
            sent.at = now;
        }
        let unrung = std::mem::take(&mut self.unrung);
        let result = match &mut self.qp {
            Some(qp) => qp.ring(),
            None => return,
        };
        if let Err(rejected) = result {
            self.reject(unrung.saturating_sub(rejected.taken as usize), backlog);
        }
    }

    #[cold]
    fn reject(&mut self, orphans: usize, backlog: &mut VecDeque<Completion>) {
        self.failed = true;
        self.orphans += orphans;
        let ended = self.qp.as_mut().is_none_or(|qp| qp.fail().is_err());
        if ended {
            self.abandon(backlog);
        } else if self.sends.len() == self.orphans {
            self.flush_orphans(backlog);
        }
    }

    /// The lane of an id that the device gave back, and whether it is a receive's.
    pub(super) fn split(wr_id: u64) -> (LaneId, bool) {
        (LaneId(wr_id as u32), wr_id & RECEIVE != 0)
    }

    /// Turns an entry of the completion queue into a completion; `completed` is when it happened.
    #[inline]
    pub(super) fn complete(&mut self, wc: &Wc, completed: Time) -> Option<Completion> {
        let mut completion = Completion {
            lane: self.id,
            id: 0,
            what: Completed::Request,
            status: status_of(wc.status),
            rtt: None,
            marks: None,
            retransmits: 0,
        };
        if wc.wr_id & RECEIVE == 0 {
            if self.sends.len() == self.orphans {
                return None;
            }
            let sent = self.sends.pop_front()?;
            completion.id = sent.id;
            if completion.status == Status::Success {
                completion.rtt = Some(completed.since(sent.at).max(Span::from_nanos(1)));
            }
        } else {
            completion.id = self.receives.pop_front()?;
            completion.what = if completion.status == Status::Success && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM {
                Completed::Immediate { imm: wc.imm.unwrap_or(0) }
            } else {
                Completed::Receive { len: if completion.status == Status::Success { wc.byte_len } else { 0 } }
            };
        }
        Some(completion)
    }

    /// After a completion of a request: if only requests are left that the device never had, they are flushed.
    #[inline]
    pub(super) fn settle(&mut self, backlog: &mut VecDeque<Completion>) {
        if self.orphans > 0 && self.sends.len() == self.orphans {
            self.flush_orphans(backlog);
        }
    }

    fn flush_orphans(&mut self, backlog: &mut VecDeque<Completion>) {
        self.orphans = 0;
        self.unrung = 0;
        let mut status = if self.told { Status::Flushed } else { self.cause.unwrap_or(Status::Other) };
        while let Some(sent) = self.sends.pop_front() {
            backlog.push_back(self.ended(sent.id, Completed::Request, status));
            status = Status::Flushed;
        }
    }

    /// Nothing more comes from the device: everything posted ends here.
    #[cold]
    pub(super) fn abandon(&mut self, backlog: &mut VecDeque<Completion>) {
        self.failed = true;
        self.flush_orphans(backlog);
        while let Some(id) = self.receives.pop_front() {
            backlog.push_back(self.ended(id, Completed::Receive { len: 0 }, Status::Flushed));
        }
    }

    /// Moves the queue pair to ERR, or ends it if the device will not. Everything posted is flushed.
    pub(super) fn stop(&mut self, backlog: &mut VecDeque<Completion>) {
        self.failed = true;
        let Some(qp) = &mut self.qp else { return };
        if qp.fail().is_err() {
            self.qp = None;
            self.abandon(backlog);
            return;
        }
        if self.unrung > 0 {
            // In ERR they are not sent any more, but flushed with the others.
            self.ring(Time::ZERO, backlog);
        }
    }

    /// Says that the lane failed, unless it was said before.
    pub(super) fn tell(&mut self, status: Status, events: &mut VecDeque<LaneEvent>) {
        self.failed = true;
        if !std::mem::replace(&mut self.told, true) {
            let why = if status == Status::Flushed { self.cause.unwrap_or(status) } else { status };
            events.push_back(LaneEvent::LaneError { lane: self.id, status: why });
        }
    }

    fn ended(&self, id: u64, what: Completed, status: Status) -> Completion {
        Completion { lane: self.id, id, what, status, rtt: None, marks: None, retransmits: 0 }
    }
}

/// Entries of the completion queue that a lane may need.
pub(super) fn entries(spec: &LaneSpec) -> u32 {
    u32::from(spec.send_depth) + u32::from(spec.receive_depth)
}
