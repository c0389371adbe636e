//! The responder: requests are checked, placed, and remembered to be answered.

use std::collections::VecDeque;

use crate::mem::{Access, Key, MemError};
use crate::seq::{Msn, Psn};
use crate::time::{Span, Time};
use crate::wire::{NakCode, Opcode, Packet, Reth, Syndrome};

use super::feedback::Reporter;
use super::gather::{Fault, scatter, total};
use super::qp::{Cx, Qp};
use super::replies::Reply;
use super::ring::{PsnSet, WINDOW};
use super::state::{QpState, Rtr};
use super::wr::{CqeKind, MAX_MESSAGE, ReceiveWr, Status};

/// Packets after which an acknowledgement is due unasked.
const ACK_EVERY: u32 = 16;
/// Bytes after which it is.
const ACK_BYTES: u32 = 64 << 10;
/// How long an acknowledgement that a planespray peer asked for may wait for data to travel with, or for more to
/// acknowledge. What such a peer needs is the end of a chunk, and that of a long one counts as [`ACK_EVERY`] packets.
const ACK_DELAY: Span = Span::from_micros(12);

/// A message of several packets under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Message {
    None,
    /// A SEND into the oldest receive; bytes placed so far.
    Send {
        placed: u32,
    },
    /// A WRITE; where its next byte goes, and how many are to come.
    Write {
        rkey: u32,
        va: u64,
        left: u32,
    },
}

/// A packet that was placed before its turn, and what to do when its turn comes.
#[derive(Clone, Copy, Debug, Default)]
struct Deferred {
    imm: Option<u32>,
    len: u32,
    ack_req: bool,
}

/// Why a request is not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    /// No receive is posted.
    Rnr,
    Invalid,
    Access,
    /// The receive's own memory was not usable.
    Operation,
    /// Longer than its receive.
    TooLong,
}

#[derive(Debug)]
pub(super) struct Responder {
    pub(super) depth: usize,
    pub(super) rq: VecDeque<ReceiveWr>,
    /// The PSN expected next.
    pub(super) epsn: Psn,
    pub(super) msn: Msn,
    message: Message,
    /// A NAK for `epsn` was given: nothing more until it comes.
    nak_given: bool,
    /// Beyond `epsn`: what was placed before its turn.
    pub(super) held: PsnSet,
    deferred: Vec<Deferred>,
    /// READs and atomics to answer, oldest first.
    pub(super) replies: VecDeque<Reply>,
    pub(super) max_replies: usize,
    /// Results of the last atomics, for duplicates.
    atomics: VecDeque<(Psn, u64)>,
    /// An acknowledgement should go out now.
    pub(super) ack_now: bool,
    /// It should go out then at the latest.
    pub(super) ack_at: Option<Time>,
    pub(super) unacked: u32,
    pub(super) unacked_bytes: u32,
    /// A NAK to give.
    pub(super) nak: Option<(Psn, Syndrome)>,
    /// CE came since the last acknowledgement.
    pub(super) ce_since_ack: bool,
    pub(super) cnp_due: bool,
    pub(super) cnp_not_before: Time,
    pub(super) report: Reporter,
}

impl Responder {
    pub(super) fn new(depth: u16) -> Responder {
        Responder {
            depth: usize::from(depth),
            rq: VecDeque::with_capacity(usize::from(depth)),
            epsn: Psn::default(),
            msn: Msn::default(),
            message: Message::None,
            nak_given: false,
            held: PsnSet::default(),
            deferred: Vec::new(),
            replies: VecDeque::new(),
            max_replies: 0,
            atomics: VecDeque::new(),
            ack_now: false,
            ack_at: None,
            unacked: 0,
            unacked_bytes: 0,
            nak: None,
            ce_since_ack: false,
            cnp_due: false,
            cnp_not_before: Time::ZERO,
            report: Reporter::default(),
        }
    }

    pub(super) fn connect(&mut self, rtr: &Rtr) {
        self.epsn = rtr.rq_psn;
        self.max_replies = usize::from(rtr.max_dest_rd_atomic);
        self.replies = VecDeque::with_capacity(2 * self.max_replies);
        self.atomics = VecDeque::with_capacity(self.max_replies);
        let window = if rtr.extension.is_some() { WINDOW as usize } else { 0 };
        self.deferred = vec![Deferred::default(); window];
    }

    pub(super) fn reset(&mut self) {
        let mut rq = std::mem::take(&mut self.rq);
        rq.clear();
        let depth = self.depth;
        *self = Responder::new(0);
        self.depth = depth;
        self.rq = rq;
    }

    /// Forgets what was to be answered.
    pub(super) fn stop(&mut self) {
        self.nak = None;
        self.replies.clear();
        self.ack_now = false;
        self.ack_at = None;
        self.cnp_due = false;
        self.message = Message::None;
        self.report.stop();
    }

    /// Whether a WRITE with immediate that was placed early waits for a receive.
    #[inline]
    pub(super) fn waits_for_receive(&self) -> bool {
        self.held.has(self.epsn)
    }

    #[inline]
    pub(super) fn wake_at(&self) -> Option<Time> {
        match (self.report.at, self.ack_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    pub(super) fn on_timer(&mut self, now: Time) {
        self.report.on_timer(now);
        if self.ack_at.is_some_and(|at| at <= now) {
            self.ack_at = None;
            self.ack_now = true;
        }
    }

    fn note_for_ack(&mut self, now: Time, patient: bool, packet: &Packet<'_>) {
        if matches!(packet.header.bth.opcode, Opcode::READ_REQUEST | Opcode::FETCH_ADD | Opcode::COMPARE_SWAP) {
            // The response acknowledges this and everything before.
            self.ack_now = false;
            self.ack_at = None;
            self.unacked = 0;
            self.unacked_bytes = 0;
            return;
        }
        self.unacked += 1;
        self.unacked_bytes = self.unacked_bytes.saturating_add(packet.payload.len() as u32);
        if self.unacked >= ACK_EVERY || self.unacked_bytes >= ACK_BYTES || packet.header.bth.ack_req && !patient {
            self.ack_now = true;
        } else if packet.header.bth.ack_req && !self.ack_now {
            self.ack_at = Some(self.ack_at.unwrap_or(now + ACK_DELAY));
        }
    }
}

impl Qp {
    /// Takes a request packet.
    pub(super) fn handle_request(&mut self, cx: &mut Cx<'_>, packet: &Packet<'_>) {
        if !matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            cx.counters.dropped_pkts += 1;
            return;
        }
        self.resp.report.packets = self.resp.report.packets.wrapping_add(1);
        let psn = packet.header.bth.psn;
        let ahead = psn.distance(self.resp.epsn);
        if ahead < 0 {
            cx.counters.duplicate_request += 1;
            self.handle_duplicate(cx, psn, packet);
        } else if ahead == 0 {
            match self.accept(cx, packet) {
                Ok(taken) => {
                    self.resp.nak_given = false;
                    self.resp.nak = None;
                    // It may be one that waited for a receive.
                    self.resp.held.remove(psn);
                    self.resp.epsn = psn.add(taken);
                    let patient = self.extended();
                    self.resp.note_for_ack(cx.now, patient, packet);
                    self.take_deferred(cx);
                }
                Err(refusal) => self.refuse(cx, psn, refusal),
            }
        } else if self.extended() {
            cx.counters.out_of_sequence += 1;
            self.place_early(cx, psn, ahead as u32, packet);
        } else {
            cx.counters.out_of_sequence += 1;
            self.nak_sequence();
        }
        if self.state != QpState::Err && self.extended() {
            let gap = ahead > 0 || !self.resp.held.is_empty();
            let rtt = self.req.srtt;
            self.resp.report.consider(cx.now, gap, rtt);
        }
    }

    /// Says once that `epsn` is missing.
    fn nak_sequence(&mut self) {
        if !self.resp.nak_given {
            self.resp.nak_given = true;
            self.resp.nak = Some((self.resp.epsn, Syndrome::Nak(NakCode::PsnSequence)));
        }
    }

    fn refuse(&mut self, cx: &mut Cx<'_>, psn: Psn, refusal: Refusal) {
        let (code, status) = match refusal {
            Refusal::Rnr => {
                // Once: what follows before the pause is over is dropped.
                self.resp.nak_given = true;
                self.resp.nak = Some((psn, Syndrome::RnrNak(self.link.min_rnr_timer)));
                return;
            }
            Refusal::Invalid => {
                cx.counters.resp_invalid_request += 1;
                (NakCode::InvalidRequest, Status::RemoteInvalidRequest)
            }
            Refusal::Access => {
                cx.counters.resp_remote_access_errors += 1;
                (NakCode::RemoteAccess, Status::RemoteAccess)
            }
            Refusal::Operation => (NakCode::RemoteOperational, Status::LocalProtection),
            Refusal::TooLong => (NakCode::InvalidRequest, Status::LocalLength),
        };
        if matches!(refusal, Refusal::Operation | Refusal::TooLong)
            && let Some(wr) = self.resp.rq.pop_front()
        {
            self.complete_receive(cx, wr.id, CqeKind::Receive, status, 0, None, None);
        }
        self.fail(cx, None, status);
        // The one packet that a queue pair in ERR still sends: why it went there.
        self.resp.nak = Some((psn, Syndrome::Nak(code)));
    }

    /// Carries out the request whose turn it is. Returns the PSNs it takes.
    fn accept(&mut self, cx: &mut Cx<'_>, packet: &Packet<'_>) -> Result<u32, Refusal> {
        let h = &packet.header;
        let mtu = self.link.mtu as usize;
        let len = packet.payload.len();
        let op = h.bth.opcode;
        let within = self.resp.message;
        let full = len == mtu;
        let last = (1..=mtu).contains(&len);
        match (op, within) {
            (Opcode::SEND_FIRST, Message::None) if full => self.place_send(cx, packet, 0, false),
            (Opcode::SEND_MIDDLE, Message::Send { placed }) if full => self.place_send(cx, packet, placed, false),
            (Opcode::SEND_LAST | Opcode::SEND_LAST_IMM, Message::Send { placed }) if last => {
                self.place_send(cx, packet, placed, true)
            }
            (Opcode::SEND_ONLY | Opcode::SEND_ONLY_IMM, Message::None) if len <= mtu => {
                self.place_send(cx, packet, 0, true)
            }
            (Opcode::WRITE_FIRST, Message::None) if full => {
                let Some(Reth { va, rkey, len: all }) = h.reth else { return Err(Refusal::Invalid) };
                if all as usize <= mtu || all > MAX_MESSAGE {
                    return Err(Refusal::Invalid);
                }
                self.place_write(cx, rkey, va, all, packet.payload)?;
                let placed = len as u32;
                self.resp.message = Message::Write { rkey, va: va.wrapping_add(len as u64), left: all - placed };
                Ok(1)
            }
            (Opcode::WRITE_MIDDLE, Message::Write { rkey, va, left }) if full && len < left as usize => {
                self.place_write(cx, rkey, va, len as u32, packet.payload)?;
                self.resp.message = Message::Write { rkey, va: va.wrapping_add(len as u64), left: left - len as u32 };
                Ok(1)
            }
            (Opcode::WRITE_LAST | Opcode::WRITE_LAST_IMM, Message::Write { rkey, va, left })
                if last && len == left as usize =>
            {
                self.need_receive(op == Opcode::WRITE_LAST_IMM)?;
                self.place_write(cx, rkey, va, len as u32, packet.payload)?;
                self.end_write(cx, h.imm, len as u32);
                Ok(1)
            }
            (Opcode::WRITE_ONLY | Opcode::WRITE_ONLY_IMM, Message::None) => {
                let reth = self.single(packet)?;
                self.need_receive(op == Opcode::WRITE_ONLY_IMM)?;
                self.place_write(cx, reth.rkey, reth.va, reth.len, packet.payload)?;
                self.end_write(cx, h.imm, reth.len);
                Ok(1)
            }
            (Opcode::READ_REQUEST, Message::None) => {
                let reth = h.reth.ok_or(Refusal::Invalid)?;
                self.need_reply()?;
                let packets = self.check_read(cx, &reth)?;
                self.resp.replies.push_back(Reply::read(h.bth.psn, &reth, packets, self.resp.msn.next()));
                self.end_message();
                Ok(packets)
            }
            (Opcode::FETCH_ADD | Opcode::COMPARE_SWAP, Message::None) => self.atomic(cx, packet),
            _ => Err(Refusal::Invalid),
        }
    }

    fn end_message(&mut self) {
        self.resp.message = Message::None;
        self.resp.msn = self.resp.msn.next();
    }

    fn need_receive(&self, needed: bool) -> Result<(), Refusal> {
        if needed && self.resp.rq.is_empty() { Err(Refusal::Rnr) } else { Ok(()) }
    }

    fn place_send(&mut self, cx: &mut Cx<'_>, packet: &Packet<'_>, placed: u32, last: bool) -> Result<u32, Refusal> {
        let wr = *self.resp.rq.front().ok_or(Refusal::Rnr)?;
        let sges = wr.sges.get(..usize::from(wr.sge_count)).unwrap_or(&[]);
        let len = packet.payload.len() as u32;
        if u64::from(placed) + u64::from(len) > total(sges) {
            return Err(Refusal::TooLong);
        }
        scatter(cx.memory, self.pd, sges, placed, packet.payload).map_err(|fault| match fault {
            Fault::Length => Refusal::TooLong,
            Fault::Local => Refusal::Operation,
        })?;
        if last {
            self.resp.rq.pop_front();
            let imm = packet.header.imm;
            self.complete_receive(cx, wr.id, CqeKind::Receive, Status::Success, placed + len, imm, None);
            self.end_message();
        } else {
            self.resp.message = Message::Send { placed: placed + len };
        }
        Ok(1)
    }

    /// The RETH of a WRITE ONLY, if it agrees with the payload.
    fn single(&self, packet: &Packet<'_>) -> Result<Reth, Refusal> {
        match packet.header.reth {
            Some(reth) if reth.len as usize == packet.payload.len() && reth.len <= self.link.mtu => Ok(reth),
            _ => Err(Refusal::Invalid),
        }
    }

    /// Places `data` at the front of `len` bytes that the key must open. No bytes need no key.
    #[inline]
    fn place_write(&self, cx: &Cx<'_>, rkey: u32, va: u64, len: u32, data: &[u8]) -> Result<(), Refusal> {
        if !self.link.access.allows(Access::REMOTE_WRITE) {
            return Err(Refusal::Invalid);
        }
        if len == 0 {
            return Ok(());
        }
        cx.memory
            .open(self.pd, Key(rkey), va, u64::from(len), Access::REMOTE_WRITE)
            .and_then(|slice| slice.copy_in(data))
            .map_err(|_| Refusal::Access)
    }

    fn end_write(&mut self, cx: &mut Cx<'_>, imm: Option<u32>, len: u32) {
        if imm.is_some()
            && let Some(wr) = self.resp.rq.pop_front()
        {
            self.complete_receive(cx, wr.id, CqeKind::ReceiveWriteImm, Status::Success, len, imm, None);
        }
        self.end_message();
    }

    /// Whether the READ is allowed, and how many packets answer it.
    fn check_read(&self, cx: &Cx<'_>, reth: &Reth) -> Result<u32, Refusal> {
        if !self.link.access.allows(Access::REMOTE_READ) || reth.len > MAX_MESSAGE {
            return Err(Refusal::Invalid);
        }
        let packets = reth.len.div_ceil(self.link.mtu).max(1);
        if packets > 1 << 21 {
            return Err(Refusal::Invalid);
        }
        if reth.len > 0 {
            cx.memory
                .open(self.pd, Key(reth.rkey), reth.va, u64::from(reth.len), Access::REMOTE_READ)
                .map_err(|_| Refusal::Access)?;
        }
        Ok(packets)
    }

    /// Room for one more answer. Answers that are given again take room too, so a correct peer may find none: it waits.
    fn need_reply(&self) -> Result<(), Refusal> {
        if self.resp.max_replies == 0 {
            return Err(Refusal::Invalid);
        }
        if self.resp.replies.len() >= self.resp.max_replies { Err(Refusal::Rnr) } else { Ok(()) }
    }

    fn atomic(&mut self, cx: &mut Cx<'_>, packet: &Packet<'_>) -> Result<u32, Refusal> {
        let request = packet.header.atomic.ok_or(Refusal::Invalid)?;
        if !self.link.access.allows(Access::REMOTE_ATOMIC) {
            return Err(Refusal::Invalid);
        }
        self.need_reply()?;
        let slice = cx
            .memory
            .open(self.pd, Key(request.rkey), request.va, 8, Access::REMOTE_ATOMIC)
            .map_err(|_| Refusal::Access)?;
        let before = if packet.header.bth.opcode == Opcode::FETCH_ADD {
            slice.region.fetch_add(slice.offset, request.swap_add)
        } else {
            slice.region.compare_swap(slice.offset, request.compare, request.swap_add)
        };
        let before = before.map_err(|e| match e {
            MemError::Misaligned { .. } => Refusal::Invalid,
            _ => Refusal::Access,
        })?;
        let psn = packet.header.bth.psn;
        self.end_message();
        if self.resp.atomics.len() >= self.resp.max_replies {
            self.resp.atomics.pop_front();
        }
        self.resp.atomics.push_back((psn, before));
        self.resp.replies.push_back(Reply::atomic(psn, before, self.resp.msn));
        Ok(1)
    }

    /// A request that was carried out before: only READs and atomics have more to it than an acknowledgement.
    fn handle_duplicate(&mut self, cx: &mut Cx<'_>, psn: Psn, packet: &Packet<'_>) {
        match packet.header.bth.opcode {
            Opcode::READ_REQUEST => {
                let Some(reth) = packet.header.reth else { return };
                let Ok(packets) = self.check_read(cx, &reth) else { return };
                if psn.add(packets).distance(self.resp.epsn) > 0 {
                    return;
                }
                self.answer_again(Reply::read(psn, &reth, packets, self.resp.msn));
            }
            Opcode::FETCH_ADD | Opcode::COMPARE_SWAP => {
                if let Some(&(_, before)) = self.resp.atomics.iter().find(|(at, _)| *at == psn) {
                    self.answer_again(Reply::atomic(psn, before, self.resp.msn));
                }
            }
            _ => self.resp.ack_now = true,
        }
    }

    /// Queues an answer that was given, or is being given. A peer that goes back asks for what follows again.
    fn answer_again(&mut self, reply: Reply) {
        let extended = self.extended();
        let replies = &mut self.resp.replies;
        if let Some(same) = replies.iter_mut().find(|r| r.end() == reply.end()) {
            *same = reply;
            return;
        }
        if !extended {
            replies.retain(|r| r.psn.distance(reply.psn) < 0);
        }
        if replies.len() < 2 * self.resp.max_replies {
            replies.push_back(reply);
        }
    }

    /// Places a WRITE of a planespray peer before its turn.
    fn place_early(&mut self, cx: &mut Cx<'_>, psn: Psn, ahead: u32, packet: &Packet<'_>) {
        let op = packet.header.bth.opcode;
        if ahead >= WINDOW {
            return;
        }
        if !matches!(op, Opcode::WRITE_ONLY | Opcode::WRITE_ONLY_IMM) {
            // Dropped, and feedback cannot say so.
            self.nak_sequence();
            return;
        }
        if self.resp.held.has(psn) {
            cx.counters.duplicate_request += 1;
            return;
        }
        // Whatever is wrong with it is said when its turn comes.
        let Ok(reth) = self.single(packet) else { return };
        if self.place_write(cx, reth.rkey, reth.va, reth.len, packet.payload).is_err() {
            return;
        }
        cx.counters.placed_out_of_order += 1;
        self.resp.held.insert(psn);
        if let Some(slot) = self.resp.deferred.get_mut((psn.get() % WINDOW) as usize) {
            *slot = Deferred { imm: packet.header.imm, len: reth.len, ack_req: packet.header.bth.ack_req };
        }
    }

    /// Counts in what was placed early and is no longer early.
    ///
    /// An immediate that finds no receive stays where it is, for what was reported as placed is not taken back: it is
    /// looked at again when a receive is posted, or when the peer sends it again after the pause.
    pub(super) fn take_deferred(&mut self, cx: &mut Cx<'_>) {
        while self.resp.held.has(self.resp.epsn) {
            let psn = self.resp.epsn;
            let Some(&deferred) = self.resp.deferred.get((psn.get() % WINDOW) as usize) else { return };
            if deferred.imm.is_some() && self.resp.rq.is_empty() {
                self.refuse(cx, psn, Refusal::Rnr);
                return;
            }
            self.resp.nak = None;
            self.resp.held.remove(psn);
            self.end_write(cx, deferred.imm, deferred.len);
            self.resp.epsn = psn.add(1);
            self.resp.unacked += 1;
            if deferred.ack_req || self.resp.unacked >= ACK_EVERY {
                self.resp.ack_now = true;
            }
        }
    }
}
