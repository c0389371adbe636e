//! A queue pair: what requester and responder share, and how both end.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};

use crate::mem::{Access, Pd, Registry};
use crate::seq::Qpn;
use crate::time::Time;
use crate::wire::{Bth, Header, Opcode};

use super::counters::Counters;
use super::requester::{Requester, Wqe};
use super::responder::Responder;
use super::state::{Extension, PathId, QpConfig, QpEvent, QpKind, QpState, Rtr};
use super::wr::{Cqe, CqeKind, SendOp, Status};

/// End of an intrusive list.
pub(super) const NONE: u16 = u16::MAX;

/// What a queue pair may use of its device during one call.
pub(super) struct Cx<'a> {
    pub(super) now: Time,
    pub(super) memory: &'a Registry,
    pub(super) cq: &'a mut VecDeque<Cqe>,
    pub(super) events: &'a mut VecDeque<QpEvent>,
    pub(super) counters: &'a mut Counters,
}

/// What the transition to RTR said.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) dest_qpn: Qpn,
    pub(super) path: PathId,
    pub(super) peer: IpAddr,
    pub(super) tos: u8,
    pub(super) mtu: u32,
    /// log2 of the MTU.
    pub(super) shift: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) access: Access,
    pub(super) extension: Option<Extension>,
    pub(super) qkey: u32,
}

impl Link {
    pub(super) fn new(rtr: &Rtr) -> Link {
        Link {
            dest_qpn: rtr.dest_qpn,
            path: rtr.path,
            peer: rtr.peer,
            tos: rtr.tos,
            mtu: rtr.mtu,
            shift: rtr.mtu.trailing_zeros() as u8,
            min_rnr_timer: rtr.min_rnr_timer,
            access: rtr.access,
            extension: rtr.extension,
            qkey: rtr.qkey,
        }
    }

    fn none() -> Link {
        Link::new(&Rtr { peer: IpAddr::V4(Ipv4Addr::UNSPECIFIED), access: Access::LOCAL_READ, ..Rtr::default() })
    }
}

/// Membership of one of the device's lists.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) next: u16,
    pub(super) listed: bool,
}

#[derive(Debug)]
pub(super) struct Qp {
    pub(super) qpn: Qpn,
    pub(super) kind: QpKind,
    pub(super) pd: Pd,
    pub(super) priority: u8,
    pub(super) signal_all: bool,
    pub(super) state: QpState,
    pub(super) link: Link,
    pub(super) req: Requester,
    pub(super) resp: Responder,
    /// Completions of requests that wait to be polled.
    pub(super) sq_unpolled: u32,
    /// The same of receives.
    pub(super) rq_unpolled: u32,
    /// In a list of queue pairs with data to send.
    pub(super) ready: Node,
    /// In the list of those with acknowledgements and the like.
    pub(super) late: Node,
    /// Whose turn it is: responses or requests.
    pub(super) replies_next: bool,
}

impl Qp {
    pub(super) fn new(qpn: Qpn, cfg: &QpConfig) -> Qp {
        let node = Node { next: NONE, listed: false };
        Qp {
            qpn,
            kind: cfg.kind,
            pd: cfg.pd,
            priority: cfg.priority,
            signal_all: cfg.signal_all,
            state: QpState::Reset,
            link: Link::none(),
            req: Requester::new(cfg.send_depth),
            resp: Responder::new(cfg.receive_depth),
            sq_unpolled: 0,
            rq_unpolled: 0,
            ready: node,
            late: node,
            replies_next: false,
        }
    }

    pub(super) fn reset(&mut self) {
        self.state = QpState::Reset;
        self.link = Link::none();
        self.req.reset();
        self.resp.reset();
        self.sq_unpolled = 0;
        self.rq_unpolled = 0;
    }

    pub(super) fn extended(&self) -> bool {
        self.link.extension.is_some()
    }

    /// A header towards the peer.
    pub(super) fn header(&self, opcode: Opcode, psn: crate::seq::Psn) -> Header {
        Header::new(Bth::new(opcode, self.link.dest_qpn, psn))
    }

    /// Whether there are requests or responses that may be sent.
    #[inline]
    pub(super) fn wants_data(&self) -> bool {
        match self.state {
            QpState::Rts | QpState::Sqd => self.resp.has_replies() || self.sendable(),
            QpState::Rtr => self.resp.has_replies(),
            _ => false,
        }
    }

    /// When [`Qp::on_timer`] must run.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Time> {
        let earliest = |a: Option<Time>, b: Option<Time>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        earliest(earliest(self.req.rto_at, self.req.rnr_until), self.resp.wake_at())
    }

    pub(super) fn on_timer(&mut self, cx: &mut Cx<'_>) {
        self.resp.on_timer(cx.now);
        self.requester_timer(cx);
    }

    /// Moves to ERR by itself: request `failed.0` of the queue completes with `failed.1`, everything else as flushed.
    pub(super) fn fail(&mut self, cx: &mut Cx<'_>, failed: Option<(usize, Status)>, why: Status) {
        if self.state == QpState::Err {
            return;
        }
        if cx.events.len() < cx.events.capacity() {
            cx.events.push_back(QpEvent { qpn: self.qpn, status: why });
        }
        self.enter_err(cx, failed);
    }

    /// Everything posted completes: as flushed but for the request that failed.
    pub(super) fn enter_err(&mut self, cx: &mut Cx<'_>, failed: Option<(usize, Status)>) {
        self.state = QpState::Err;
        let mut index = 0;
        while let Some(wqe) = self.req.sq.pop_front() {
            let status = match failed {
                Some((at, status)) if at == index => status,
                _ => Status::Flushed,
            };
            self.complete_request(cx, &wqe, status);
            index += 1;
        }
        while let Some(wr) = self.resp.rq.pop_front() {
            self.complete_receive(cx, wr.id, CqeKind::Receive, Status::Flushed, 0, None, None);
        }
        self.req.stop();
        self.resp.stop();
    }

    pub(super) fn complete_request(&mut self, cx: &mut Cx<'_>, wqe: &Wqe, status: Status) {
        if status == Status::Success && !wqe.wr.signaled && !self.signal_all {
            return;
        }
        let what = match wqe.wr.op {
            SendOp::Send | SendOp::SendImm(_) => CqeKind::Send,
            SendOp::Write | SendOp::WriteImm(_) => CqeKind::Write,
            SendOp::Read => CqeKind::Read,
            SendOp::FetchAdd(_) => CqeKind::FetchAdd,
            SendOp::CompareSwap { .. } => CqeKind::CompareSwap,
        };
        let clean = status == Status::Success && self.kind == QpKind::Rc;
        let rtt = if clean { self.req.round_trip(wqe, cx.now) } else { None };
        let marks = self.req.take_marks(self.link.extension.is_some());
        let retransmits = std::mem::take(&mut self.req.retransmits);
        self.sq_unpolled += 1;
        cx.cq.push_back(Cqe {
            qpn: self.qpn,
            id: wqe.wr.id,
            what,
            status,
            len: wqe.len,
            imm: None,
            src_qpn: None,
            rtt,
            marks,
            retransmits,
        });
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn complete_receive(
        &mut self,
        cx: &mut Cx<'_>,
        id: u64,
        what: CqeKind,
        status: Status,
        len: u32,
        imm: Option<u32>,
        src_qpn: Option<Qpn>,
    ) {
        self.rq_unpolled += 1;
        cx.cq.push_back(Cqe {
            qpn: self.qpn,
            id,
            what,
            status,
            len,
            imm,
            src_qpn,
            rtt: None,
            marks: None,
            retransmits: 0,
        });
    }
}
