//! The requester's receiving half: acknowledgements, responses, feedback and timers.

use crate::seq::Psn;
use crate::time::Span;
use crate::wire::{NakCode, Opcode, Packet, Syndrome};

use super::feedback::Record;
use super::gather::scatter;
use super::qp::{Cx, Qp};
use super::ring::WINDOW;
use super::rnr;
use super::state::QpState;
use super::wr::{SendOp, Status};

/// Packets sent later that must have arrived before one counts as lost.
const REORDER: u32 = 3;
/// Until a round trip is known, how long a second NAK for one packet is taken for an echo of the first.
const ECHO: Span = Span::from_micros(100);

impl Qp {
    /// Takes a response, acknowledgement or NAK.
    pub(super) fn handle_response(&mut self, cx: &mut Cx<'_>, packet: &Packet<'_>) {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            cx.counters.dropped_pkts += 1;
            return;
        }
        let psn = packet.header.bth.psn;
        if packet.header.bth.becn {
            cx.counters.becn_handled += 1;
            if !self.extended() {
                self.req.marked += 1;
            }
        }
        // Within what was sent and not yet acknowledged?
        if psn.distance(self.req.una) < 0 || psn.distance(self.req.sent_end) >= 0 {
            if packet.header.bth.opcode != Opcode::ACK || psn != self.req.una.sub(1) {
                cx.counters.unexpected_response += 1;
            }
            return;
        }
        match packet.header.bth.opcode {
            Opcode::ACK => self.handle_ack(cx, psn, packet),
            Opcode::ATOMIC_ACK => self.handle_atomic(cx, psn, packet),
            _ => self.handle_read(cx, psn, packet),
        }
    }

    fn handle_ack(&mut self, cx: &mut Cx<'_>, psn: Psn, packet: &Packet<'_>) {
        let Some(aeth) = packet.header.aeth else { return };
        match aeth.syndrome {
            Syndrome::Ack(_) => self.retire(cx, psn.add(1), true),
            Syndrome::RnrNak(code) => {
                cx.counters.rnr_nak_rcvd += 1;
                self.retire(cx, psn, true);
                self.handle_rnr(cx, psn, code);
            }
            Syndrome::Nak(NakCode::PsnSequence) => {
                cx.counters.packet_seq_err += 1;
                self.retire(cx, psn, true);
                if self.go_back_once(cx, psn) && self.extended() {
                    self.resend_ordered(psn);
                }
            }
            Syndrome::Nak(code) => {
                self.retire(cx, psn, true);
                let status = match code {
                    NakCode::InvalidRequest => Status::RemoteInvalidRequest,
                    NakCode::RemoteAccess => Status::RemoteAccess,
                    _ => Status::RemoteOperation,
                };
                let failed = self.req.find(psn).map(|i| (i, status));
                self.fail(cx, failed, status);
            }
            Syndrome::Reserved(_) => cx.counters.unexpected_response += 1,
        }
    }

    fn handle_rnr(&mut self, cx: &mut Cx<'_>, psn: Psn, code: u8) {
        let r = &mut self.req;
        if r.rnr_until.is_some() || psn.distance(r.una) < 0 {
            return;
        }
        r.rnr_tries += 1;
        if r.rnr_retry < 7 && r.rnr_tries > r.rnr_retry {
            cx.counters.rnr_retry_exceeded_err += 1;
            let failed = self.req.find(psn).map(|i| (i, Status::RnrRetryExceeded));
            self.fail(cx, failed, Status::RnrRetryExceeded);
            return;
        }
        r.rnr_until = Some(cx.now + rnr::pause(code));
        r.rto_at = None;
        self.go_back(psn);
    }

    fn handle_atomic(&mut self, cx: &mut Cx<'_>, psn: Psn, packet: &Packet<'_>) {
        let found = self.req.find(psn).map(|i| (i, self.req.sq[i]));
        let (Some((index, wqe)), Some(before)) = (found, packet.header.atomic_ack) else {
            cx.counters.unexpected_response += 1;
            return;
        };
        if !matches!(wqe.wr.op, SendOp::FetchAdd(_) | SendOp::CompareSwap { .. }) || wqe.done() {
            cx.counters.unexpected_response += 1;
            return;
        }
        self.take_response(cx, index, &before.to_ne_bytes());
    }

    fn handle_read(&mut self, cx: &mut Cx<'_>, psn: Psn, packet: &Packet<'_>) {
        let found = self.req.find(psn).map(|i| (i, self.req.sq[i]));
        let Some((index, wqe)) = found else {
            cx.counters.unexpected_response += 1;
            return;
        };
        let nth = psn.distance(wqe.first) as u32;
        if wqe.wr.op != SendOp::Read || nth < wqe.got {
            cx.counters.unexpected_response += 1;
            return;
        }
        if nth > wqe.got {
            cx.counters.implied_nak_seq_err += 1;
            self.go_back_once(cx, wqe.first.add(wqe.got));
            return;
        }
        let due = (wqe.len - (nth << self.link.shift)).min(self.link.mtu);
        let last = nth + 1 == wqe.packets;
        let closes = matches!(packet.header.bth.opcode, Opcode::READ_RESPONSE_LAST | Opcode::READ_RESPONSE_ONLY);
        if packet.payload.len() != due as usize || closes != last {
            cx.counters.unexpected_response += 1;
            return;
        }
        self.take_response(cx, index, packet.payload);
    }

    /// Places the next response of request `index`, and takes it as acknowledgement of everything before.
    fn take_response(&mut self, cx: &mut Cx<'_>, index: usize, data: &[u8]) {
        let wqe = self.req.sq[index];
        let sges = wqe.wr.sges.get(..usize::from(wqe.wr.sge_count)).unwrap_or(&[]);
        if scatter(cx.memory, self.pd, sges, wqe.got << self.link.shift, data).is_err() {
            self.fail(cx, Some((index, Status::LocalProtection)), Status::LocalProtection);
            return;
        }
        let r = &mut self.req;
        r.sq[index].got += 1;
        r.read_packets -= 1;
        if r.sq[index].done() {
            r.reads -= 1;
        }
        self.progress(cx);
        self.retire(cx, wqe.first.add(wqe.got + 1), true);
    }

    /// Everything before `end` has arrived: completes what that finishes.
    ///
    /// A READ or atomic is finished only by its responses; if `implied`, an acknowledgement beyond one that
    /// lacks responses means they were lost (InfiniBand Architecture 1.4, section 9.7.5.1.1).
    pub(super) fn retire(&mut self, cx: &mut Cx<'_>, end: Psn, implied: bool) {
        let mut reached = self.req.una;
        let mut lacking = None;
        // What an earlier acknowledgement said of requests behind an unfinished READ still holds.
        if end.distance(self.req.acked_end) > 0 {
            self.req.acked_end = end;
        }
        let told = end;
        let end = self.req.acked_end;
        while let Some(&wqe) = self.req.sq.front() {
            let answered = wqe.answered_by_data() && wqe.done();
            if !wqe.started || end.distance(wqe.first) <= 0 && !answered {
                break;
            }
            if !wqe.done() {
                let have = wqe.first.add(wqe.got);
                if have.distance(reached) > 0 {
                    reached = have;
                }
                if told.distance(have) > 0 {
                    lacking = Some(have);
                }
                break;
            }
            if end.distance(wqe.end()) < 0 && !answered {
                if end.distance(reached) > 0 {
                    reached = end;
                }
                break;
            }
            reached = wqe.end();
            self.advance(cx, reached);
            self.req.sq.pop_front();
            self.req.at = match self.req.at.checked_sub(1) {
                Some(at) => at,
                None => {
                    self.req.at_packet = 0;
                    0
                }
            };
            if let Some(rtt) = self.req.round_trip(&wqe, cx.now) {
                self.sample(rtt);
            }
            self.complete_request(cx, &wqe, Status::Success);
        }
        self.advance(cx, reached);
        if let (Some(psn), true) = (lacking, implied) {
            cx.counters.implied_nak_seq_err += 1;
            self.go_back_once(cx, psn);
        }
    }

    /// Moves the oldest unacknowledged PSN to `to`.
    fn advance(&mut self, cx: &mut Cx<'_>, to: Psn) {
        let r = &mut self.req;
        let n = to.distance(r.una);
        if n <= 0 {
            return;
        }
        let n = n as u32;
        r.acked = r.acked.wrapping_add(n);
        if !r.order.is_empty() {
            for i in 0..n.min(WINDOW) {
                let psn = r.una.add(i);
                if !r.held.has(psn) {
                    r.note_arrival(psn);
                }
                r.held.remove(psn);
                r.lost.remove(psn);
            }
        }
        r.una = to;
        // What was to be sent again has arrived meanwhile.
        if let Some(wqe) = r.sq.get(r.at) {
            let behind = to.distance(wqe.first.add(r.at_packet));
            if wqe.started && !wqe.answered_by_data() && behind > 0 {
                r.at_packet = (r.at_packet + behind as u32).min(wqe.packets);
                if r.at_packet == wqe.packets {
                    r.at += 1;
                    r.at_packet = 0;
                }
            }
        }
        self.progress(cx);
    }

    fn progress(&mut self, cx: &mut Cx<'_>) {
        let r = &mut self.req;
        r.retries = 0;
        r.backoff = 0;
        r.rnr_tries = 0;
        r.progress_at = cx.now;
        r.rto_at = (r.in_flight() && r.rnr_until.is_none()).then(|| cx.now + r.rto());
    }

    fn sample(&mut self, rtt: Span) {
        let srtt = match self.req.srtt {
            None => rtt.as_nanos(),
            Some(old) => old.as_nanos() - old.as_nanos() / 8 + rtt.as_nanos() / 8,
        };
        self.req.srtt = Some(Span::from_nanos(srtt));
    }

    /// Sends again from `psn` on; towards a planespray peer, only `psn`.
    fn go_back(&mut self, psn: Psn) {
        let extended = self.extended();
        let r = &mut self.req;
        let Some(index) = r.find(psn) else { return };
        if extended {
            // A bit per packet of the window is all there is: a READ at its end may have its rest beyond it.
            if psn.distance(r.una) < WINDOW as i32 {
                r.lost.insert(psn);
            }
            return;
        }
        let packet = if r.sq[index].answered_by_data() { 0 } else { psn.distance(r.sq[index].first) as u32 };
        if (index, packet) < (r.at, r.at_packet) {
            r.at = index;
            r.at_packet = packet;
        }
    }

    /// The same, but not again for one packet within a round trip: the NAK may be an echo of what was already sent again.
    /// Returns whether it did.
    fn go_back_once(&mut self, cx: &mut Cx<'_>, psn: Psn) -> bool {
        let r = &mut self.req;
        let within = r.srtt.unwrap_or(ECHO);
        if r.went_back.is_some_and(|(to, at)| to == psn && cx.now < at + within) {
            return false;
        }
        r.went_back = Some((psn, cx.now));
        self.go_back(psn);
        true
    }

    /// A planespray peer keeps WRITEs that come early; a NAK says that it dropped whatever else followed `psn`.
    fn resend_ordered(&mut self, psn: Psn) {
        let r = &mut self.req;
        let mut at = psn;
        for wqe in r.sq.iter().take_while(|w| w.started) {
            let single = matches!(wqe.wr.op, SendOp::Write | SendOp::WriteImm(_));
            if single || wqe.done() && wqe.answered_by_data() || wqe.end().distance(psn) <= 0 {
                continue;
            }
            if wqe.answered_by_data() {
                at = wqe.first.add(wqe.got);
            } else if wqe.first.distance(at) > 0 {
                at = wqe.first;
            }
            // One packet asks for all of a READ.
            let end = if wqe.answered_by_data() { at.add(1) } else { wqe.end() };
            while at.distance(end) < 0 {
                if at.distance(r.sent_end) >= 0 || at.distance(r.una) >= WINDOW as i32 {
                    return;
                }
                r.lost.insert(at);
                at = at.add(1);
            }
        }
    }

    /// Takes what a planespray peer says it has.
    pub(super) fn handle_feedback(&mut self, cx: &mut Cx<'_>, record: &Record) {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return;
        }
        let ce = record.ce.wrapping_sub(self.req.ce_seen);
        // An older record that came late would count backwards.
        if ce < 1 << 31 {
            self.req.marked = self.req.marked.saturating_add(ce);
            self.req.ce_seen = record.ce;
        }
        if record.epsn.distance(self.req.una) < 0 || record.epsn.distance(self.req.sent_end) > 0 {
            return;
        }
        self.retire(cx, record.epsn, false);
        let r = &mut self.req;
        let mut news = false;
        for psn in record.held() {
            if psn.distance(r.sent_end) >= 0 {
                break;
            }
            let ahead = psn.distance(r.una);
            if (0..WINDOW as i32).contains(&ahead) && !r.held.has(psn) {
                r.held.insert(psn);
                r.lost.remove(psn);
                r.note_arrival(psn);
                news = true;
            }
        }
        if news {
            self.progress(cx);
        }
        self.find_losses(record.epsn);
    }

    /// Marks as lost what was sent clearly before something that arrived. `epsn` is the first the peer misses.
    fn find_losses(&mut self, epsn: Psn) {
        let r = &mut self.req;
        if r.order.is_empty() {
            return;
        }
        let mut psn = r.una;
        for wqe in r.sq.iter().take_while(|w| w.started) {
            if wqe.answered_by_data() {
                let want = wqe.first.add(wqe.got);
                let ahead = want.distance(r.una);
                // Only the request itself can be missing here; lost responses show at the requester.
                if !wqe.done()
                    && epsn.distance(wqe.first) <= 0
                    && (0..WINDOW as i32).contains(&ahead)
                    && r.overtaken(want)
                {
                    r.lost.insert(want);
                }
                psn = wqe.end();
            }
            while psn.distance(wqe.end()) < 0 {
                if psn.distance(r.sent_end) >= 0 || psn.distance(r.una) >= WINDOW as i32 {
                    return;
                }
                if psn.distance(epsn) >= 0 && !r.held.has(psn) && r.overtaken(psn) {
                    r.lost.insert(psn);
                }
                psn = psn.add(1);
            }
        }
    }

    /// Runs the requester's timers that are due.
    pub(super) fn requester_timer(&mut self, cx: &mut Cx<'_>) {
        if self.req.rnr_until.is_some_and(|at| at <= cx.now) {
            let r = &mut self.req;
            r.rnr_until = None;
            if r.rto_at.is_none() && r.in_flight() {
                r.rto_at = Some(cx.now + r.rto());
            }
        }
        if self.req.rto_at.is_none_or(|at| at > cx.now) {
            return;
        }
        let extended = self.extended();
        let r = &mut self.req;
        r.rto_at = None;
        if !r.in_flight() {
            return;
        }
        cx.counters.local_ack_timeout_err += 1;
        r.retries += 1;
        let patient = extended && cx.now.since(r.progress_at) < r.patience;
        if r.retries > r.retry_count && !patient {
            cx.counters.retry_exceeded_err += 1;
            self.fail(cx, Some((0, Status::RetryExceeded)), Status::RetryExceeded);
            return;
        }
        r.backoff = (r.backoff + 1).min(4);
        r.rto_at = Some(cx.now + r.rto());
        if !extended {
            let una = r.una;
            self.go_back(una);
            return;
        }
        // The oldest in any case: if the peer has it, it waits for a receive there, and says so again.
        r.held.remove(r.una);
        let mut psn = r.una;
        if r.retries == 1 {
            // Perhaps the peer or we were only held up. The oldest and as many of the newest as make a loss known ask.
            r.lost.insert(psn);
            let newest = r.sent_end.sub(REORDER);
            if newest.distance(psn) > 0 {
                psn = newest;
            }
        }
        for i in 0.. {
            let Some(&wqe) = r.sq.get(i) else { return };
            if !wqe.started {
                return;
            }
            if wqe.answered_by_data() {
                let want = wqe.first.add(wqe.got);
                if !wqe.done() && want.distance(r.una) < WINDOW as i32 {
                    r.lost.insert(want);
                }
                if wqe.end().distance(psn) > 0 {
                    psn = wqe.end();
                }
            }
            while psn.distance(wqe.end()) < 0 {
                if psn.distance(r.sent_end) >= 0 || psn.distance(r.una) >= WINDOW as i32 {
                    return;
                }
                if !r.held.has(psn) {
                    r.lost.insert(psn);
                }
                psn = psn.add(1);
            }
        }
    }
}

impl super::requester::Requester {
    #[inline]
    fn sent_as(&self, psn: Psn) -> u32 {
        self.order.get((psn.get() % WINDOW) as usize).copied().unwrap_or(0)
    }

    #[inline]
    fn note_arrival(&mut self, psn: Psn) {
        let order = self.sent_as(psn);
        if order.wrapping_sub(self.order_arrived) < 1 << 31 {
            self.order_arrived = order;
        }
    }

    /// Whether enough that was sent after `psn` has arrived.
    #[inline]
    fn overtaken(&self, psn: Psn) -> bool {
        let later = self.order_arrived.wrapping_sub(self.sent_as(psn));
        (REORDER..1 << 31).contains(&later)
    }
}
