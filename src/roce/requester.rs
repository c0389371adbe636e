//! The requester's sending half: work requests become packets, within a window, and again after a loss.

use std::collections::VecDeque;

use crate::seq::Psn;
use crate::time::{Span, Time};
use crate::wire::{AtomicEth, Opcode, Reth};

use super::burst::Burst;
use super::gather::{Fault, gather};
use super::qp::{Cx, Qp};
use super::ring::{PsnSet, WINDOW};
use super::segment::Cut;
use super::state::{QpState, Rts};
use super::wr::{SendOp, SendWr, Status};

/// Least retransmission timeout where the transition to RTS names none.
const TIMEOUT: Span = Span::from_millis(4);

/// A work request in the send queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wqe {
    pub(super) wr: SendWr,
    /// Bytes of the message.
    pub(super) len: u32,
    /// PSNs it takes, from `first`; both mean something once `started`.
    pub(super) packets: u32,
    pub(super) first: Psn,
    pub(super) started: bool,
    pub(super) sent_at: Time,
    /// A packet of it was sent twice.
    pub(super) resent: bool,
    /// READ and atomics: responses that have come.
    pub(super) got: u32,
}

impl Wqe {
    pub(super) fn new(wr: &SendWr, len: u32) -> Wqe {
        Wqe {
            wr: *wr,
            len,
            packets: 0,
            first: Psn::default(),
            started: false,
            sent_at: Time::ZERO,
            resent: false,
            got: 0,
        }
    }

    pub(super) fn answered_by_data(&self) -> bool {
        matches!(self.wr.op, SendOp::Read | SendOp::FetchAdd(_) | SendOp::CompareSwap { .. })
    }

    pub(super) fn done(&self) -> bool {
        !self.answered_by_data() || self.got == self.packets
    }

    /// The PSN after its last.
    pub(super) fn end(&self) -> Psn {
        self.first.add(self.packets)
    }
}

#[derive(Debug)]
pub(super) struct Requester {
    pub(super) depth: usize,
    pub(super) sq: VecDeque<Wqe>,
    /// The request to send from next, and which of its packets.
    pub(super) at: usize,
    pub(super) at_packet: u32,
    /// PSN of the next request that starts.
    pub(super) next_psn: Psn,
    /// Oldest PSN not acknowledged.
    pub(super) una: Psn,
    /// The PSN after the last that an acknowledgement covered; ahead of `una` while a READ before it is unfinished.
    pub(super) acked_end: Psn,
    /// The PSN after the last that was ever sent.
    pub(super) sent_end: Psn,
    /// READs and atomics started and not answered, and the responses they still wait for.
    pub(super) reads: u32,
    pub(super) read_packets: u32,
    pub(super) max_reads: u32,

    /// Selective repeat: what the peer has beyond `una`, and what to send again.
    pub(super) held: PsnSet,
    pub(super) lost: PsnSet,
    /// In which order the window's packets were last sent.
    pub(super) order: Vec<u32>,
    pub(super) order_next: u32,
    /// The latest of that order known to have arrived.
    pub(super) order_arrived: u32,

    pub(super) timeout: Span,
    pub(super) srtt: Option<Span>,
    pub(super) backoff: u32,
    pub(super) rto_at: Option<Time>,
    pub(super) progress_at: Time,
    pub(super) retries: u32,
    pub(super) retry_count: u32,
    /// Least time without progress before a planespray peer is given up.
    pub(super) patience: Span,
    pub(super) rnr_until: Option<Time>,
    pub(super) rnr_tries: u32,
    pub(super) rnr_retry: u32,
    /// When anything was last sent again.
    pub(super) resent_at: Option<Time>,
    /// Where the last NAK sent us back to, and when.
    pub(super) went_back: Option<(Psn, Time)>,

    /// Since the last completion: packets acknowledged, marks, packets sent again.
    pub(super) acked: u32,
    pub(super) marked: u32,
    pub(super) retransmits: u32,
    /// The peer's count of CE, as feedback last gave it.
    pub(super) ce_seen: u32,
}

impl Requester {
    /// READs and atomics that were started and are still in the queue, answered or not: the peer may be asked for any
    /// of them again, and keeps answers for no more than agreed.
    fn unretired_reads(&self) -> u32 {
        self.sq.iter().take_while(|w| w.started).filter(|w| w.answered_by_data()).count() as u32
    }

    pub(super) fn new(depth: u16) -> Requester {
        Requester {
            depth: usize::from(depth),
            sq: VecDeque::with_capacity(usize::from(depth)),
            at: 0,
            at_packet: 0,
            next_psn: Psn::default(),
            una: Psn::default(),
            acked_end: Psn::default(),
            sent_end: Psn::default(),
            reads: 0,
            read_packets: 0,
            max_reads: 1,
            held: PsnSet::default(),
            lost: PsnSet::default(),
            order: Vec::new(),
            order_next: 0,
            order_arrived: 0,
            timeout: TIMEOUT,
            srtt: None,
            backoff: 0,
            rto_at: None,
            progress_at: Time::ZERO,
            retries: 0,
            retry_count: 7,
            patience: Span::ZERO,
            rnr_until: None,
            rnr_tries: 0,
            rnr_retry: 7,
            resent_at: None,
            went_back: None,
            acked: 0,
            marked: 0,
            retransmits: 0,
            ce_seen: 0,
        }
    }

    pub(super) fn connect(&mut self, rts: &Rts, extended: bool) {
        self.next_psn = rts.sq_psn;
        self.una = rts.sq_psn;
        self.acked_end = rts.sq_psn;
        self.sent_end = rts.sq_psn;
        self.timeout = if rts.timeout == Span::ZERO { TIMEOUT } else { rts.timeout };
        self.retry_count = u32::from(rts.retry_count);
        self.patience = rts.patience;
        self.rnr_retry = u32::from(rts.rnr_retry);
        self.max_reads = u32::from(rts.max_rd_atomic);
        self.order = if extended { vec![0; WINDOW as usize] } else { Vec::new() };
    }

    pub(super) fn reset(&mut self) {
        let (depth, mut sq) = (self.depth, std::mem::take(&mut self.sq));
        sq.clear();
        *self = Requester::new(0);
        self.depth = depth;
        self.sq = sq;
    }

    /// Forgets what was under way; the queue is empty.
    pub(super) fn stop(&mut self) {
        self.at = 0;
        self.at_packet = 0;
        self.reads = 0;
        self.read_packets = 0;
        self.lost.clear();
        self.held.clear();
        self.rto_at = None;
        self.rnr_until = None;
    }

    /// Whether anything sent waits for an acknowledgement.
    #[inline]
    pub(super) fn in_flight(&self) -> bool {
        self.una != self.sent_end
    }

    /// The retransmission timeout now.
    #[inline]
    pub(super) fn rto(&self) -> Span {
        let adaptive = self.srtt.map_or(Span::ZERO, |s| s.saturating_mul(4)).min(self.timeout.saturating_mul(16));
        self.timeout.max(adaptive).saturating_mul(1 << self.backoff)
    }

    /// How long the request took, unless a loss may have held it up: its own or another's before it.
    pub(super) fn round_trip(&self, wqe: &Wqe, now: Time) -> Option<Span> {
        let clean = !wqe.resent && self.resent_at.is_none_or(|at| at < wqe.sent_at);
        clean.then(|| now.since(wqe.sent_at))
    }

    /// Index of the started request that `psn` belongs to.
    pub(super) fn find(&self, psn: Psn) -> Option<usize> {
        let i = self.sq.partition_point(|w| w.started && psn.distance(w.end()) >= 0);
        let wqe = self.sq.get(i)?;
        (wqe.started && psn.distance(wqe.first) >= 0).then_some(i)
    }

    pub(super) fn take_marks(&mut self, exact: bool) -> Option<(u32, u32)> {
        let packets = std::mem::take(&mut self.acked);
        // Marks are told apart from acknowledgements: those that came early are reported with what they belong to. Without
        // the extension one mark stands for any number of packets.
        let marks = if exact { self.marked.min(packets) } else { self.marked };
        self.marked -= marks;
        if exact && packets > 0 || marks > 0 { Some((packets.max(marks), marks)) } else { None }
    }
}

impl Qp {
    /// Whether the requester has a packet that it may send now.
    #[inline]
    pub(super) fn sendable(&self) -> bool {
        let r = &self.req;
        if r.rnr_until.is_some() {
            return false;
        }
        if !r.lost.is_empty() {
            return true;
        }
        let Some(wqe) = r.sq.get(r.at) else { return false };
        let psn = if wqe.started {
            wqe.first.add(r.at_packet)
        } else {
            if self.state != QpState::Rts
                || wqe.wr.fence && r.reads > 0
                || wqe.answered_by_data() && r.unretired_reads() >= r.max_reads
            {
                return false;
            }
            r.next_psn
        };
        // Responses that the peer will send take PSNs but no room at the peer.
        let ahead = i64::from(psn.distance(r.una));
        let counted = if self.link.extension.is_some() { ahead } else { ahead - i64::from(r.read_packets) };
        counted < i64::from(WINDOW) && ahead < 1 << 22
    }

    /// Fills the burst with requests.
    pub(super) fn fill_requests(&mut self, cx: &mut Cx<'_>, burst: &mut Burst<'_>) {
        let before = burst.count;
        while self.sendable() {
            let sent = match self.req.lost.next(self.req.una) {
                Some(psn) => self.send_lost(cx, burst, psn),
                None => self.send_next(cx, burst),
            };
            match sent {
                Ok(true) => {}
                Ok(false) => break,
                Err((index, _)) => {
                    // Packets already in the burst belong to requests that were fine.
                    if burst.count == 0 {
                        self.fail(cx, Some((index, Status::LocalProtection)), Status::LocalProtection);
                    }
                    break;
                }
            }
        }
        let r = &mut self.req;
        if burst.count > before && self.state != QpState::Err && r.rto_at.is_none() && r.in_flight() {
            r.progress_at = cx.now;
            r.rto_at = Some(cx.now + r.rto());
        }
    }

    /// Sends the packet that the cursor stands at.
    fn send_next(&mut self, cx: &mut Cx<'_>, burst: &mut Burst<'_>) -> Result<bool, (usize, Fault)> {
        let at = self.req.at;
        let mut wqe = self.req.sq[at];
        if !wqe.started {
            wqe.first = self.req.next_psn;
            wqe.packets = match wqe.wr.op {
                SendOp::Read => wqe.len.div_ceil(self.link.mtu).max(1),
                _ => Cut::of(&wqe.wr.op, wqe.len, self.link.shift, self.extended()).packets(),
            };
        } else if wqe.answered_by_data() && wqe.done() {
            self.req.at += 1;
            self.req.at_packet = 0;
            return Ok(true);
        }
        let packet = self.req.at_packet;
        if !self.emit(cx, burst, &wqe, packet, false).map_err(|fault| (at, fault))? {
            return Ok(false);
        }
        let r = &mut self.req;
        let slot = &mut r.sq[at];
        if !slot.started {
            slot.started = true;
            slot.first = wqe.first;
            slot.packets = wqe.packets;
            slot.sent_at = cx.now;
            r.next_psn = wqe.end();
            if wqe.answered_by_data() {
                r.reads += 1;
                r.read_packets += wqe.packets;
            }
        }
        // One request packet stands for the whole READ.
        let after = if wqe.answered_by_data() { wqe.packets } else { packet + 1 };
        let (psn, end) = (wqe.first.add(packet), wqe.first.add(after));
        if psn.distance(r.sent_end) < 0 {
            slot.resent = true;
            r.resent_at = Some(cx.now);
            r.retransmits += 1;
            cx.counters.retransmits += 1;
        }
        if end.distance(r.sent_end) > 0 {
            r.sent_end = end;
        }
        r.note_order(psn);
        if after == wqe.packets {
            r.at += 1;
            r.at_packet = 0;
        } else {
            r.at_packet = after;
        }
        Ok(true)
    }

    /// Sends a packet again that the peer is missing.
    fn send_lost(&mut self, cx: &mut Cx<'_>, burst: &mut Burst<'_>, psn: Psn) -> Result<bool, (usize, Fault)> {
        let Some(index) = self.req.find(psn) else {
            self.req.lost.remove(psn);
            return Ok(true);
        };
        let wqe = self.req.sq[index];
        if wqe.answered_by_data() && wqe.done() {
            self.req.lost.remove(psn);
            return Ok(true);
        }
        let packet = psn.distance(wqe.first) as u32;
        if !self.emit(cx, burst, &wqe, packet, true).map_err(|fault| (index, fault))? {
            return Ok(false);
        }
        let r = &mut self.req;
        r.lost.remove(psn);
        r.sq[index].resent = true;
        r.resent_at = Some(cx.now);
        r.retransmits += 1;
        cx.counters.retransmits += 1;
        r.note_order(psn);
        Ok(true)
    }

    /// Writes packet `packet` of the request into the burst; false if the burst does not take it.
    #[inline]
    fn emit(
        &mut self,
        cx: &mut Cx<'_>,
        burst: &mut Burst<'_>,
        wqe: &Wqe,
        packet: u32,
        again: bool,
    ) -> Result<bool, Fault> {
        let wr = &wqe.wr;
        let (va, rkey) = (wr.remote.addr, wr.remote.rkey);
        if wqe.answered_by_data() {
            // A READ that was answered in part is asked for the rest.
            let mut h = self.header(Opcode::READ_REQUEST, wqe.first.add(wqe.got));
            h.bth.ack_req = true;
            h.bth.solicited = wr.solicited;
            let atomic = |compare, swap_add| Some(AtomicEth { va, rkey, swap_add, compare });
            match wr.op {
                SendOp::FetchAdd(add) => {
                    h.bth.opcode = Opcode::FETCH_ADD;
                    h.atomic = atomic(0, add);
                }
                SendOp::CompareSwap { compare, swap } => {
                    h.bth.opcode = Opcode::COMPARE_SWAP;
                    h.atomic = atomic(compare, swap);
                }
                _ => {
                    let skip = wqe.got << self.link.shift;
                    h.reth = Some(Reth { va: va.wrapping_add(u64::from(skip)), rkey, len: wqe.len - skip });
                }
            }
            return burst.push(&mut h, 0, |_| Ok(()));
        }
        let singles = self.extended();
        let piece = Cut::of(&wr.op, wqe.len, self.link.shift, singles).piece(packet);
        let psn = wqe.first.add(packet);
        let mut h = self.header(piece.opcode, psn);
        h.bth.ack_req = piece.last || again || psn.get() % 16 == 15;
        if piece.last {
            h.bth.solicited = wr.solicited;
            if let SendOp::SendImm(imm) | SendOp::WriteImm(imm) = wr.op {
                h.imm = Some(imm);
            }
        }
        match piece.opcode {
            Opcode::WRITE_ONLY | Opcode::WRITE_ONLY_IMM => {
                let va = va.wrapping_add(u64::from(piece.offset));
                h.reth = Some(Reth { va, rkey, len: piece.len });
            }
            Opcode::WRITE_FIRST => h.reth = Some(Reth { va, rkey, len: wqe.len }),
            _ => {}
        }
        let sges = wr.sges.get(..usize::from(wr.sge_count)).unwrap_or(&[]);
        let (memory, pd) = (cx.memory, self.pd);
        burst.push(&mut h, piece.len as usize, |out| gather(memory, pd, sges, piece.offset, out))
    }
}

impl Requester {
    #[inline]
    fn note_order(&mut self, psn: Psn) {
        if let Some(order) = self.order.get_mut((psn.get() % WINDOW) as usize) {
            *order = self.order_next;
            self.order_next = self.order_next.wrapping_add(1);
        }
    }
}
