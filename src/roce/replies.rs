//! The responder's sending half: READ responses, acknowledgements, NAKs and congestion notifications.

use crate::mem::{Access, Key};
use crate::seq::{Msn, Psn};
use crate::time::Span;
use crate::wire::{Aeth, NakCode, Opcode, Reth, Syndrome};

use super::burst::Burst;
use super::gather::Fault;
use super::qp::{Cx, Qp};
use super::responder::Responder;
use super::state::QpState;
use super::wr::Status;

/// Acknowledgement that keeps no credit count.
const ACK: Syndrome = Syndrome::Ack(31);
/// Least time between two congestion notifications of one queue pair.
const CNP_INTERVAL: Span = Span::from_micros(50);

/// An answer with data that is being given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reply {
    /// PSN of its next packet.
    pub(super) psn: Psn,
    /// Packets still to send.
    packets: u32,
    msn: Msn,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Read { rkey: u32, va: u64, left: u32, first: bool },
    Atomic { before: u64 },
}

impl Reply {
    pub(super) fn read(psn: Psn, reth: &Reth, packets: u32, msn: Msn) -> Reply {
        Reply { psn, packets, msn, what: What::Read { rkey: reth.rkey, va: reth.va, left: reth.len, first: true } }
    }

    pub(super) fn atomic(psn: Psn, before: u64, msn: Msn) -> Reply {
        Reply { psn, packets: 1, msn, what: What::Atomic { before } }
    }

    /// The PSN after its last packet.
    pub(super) fn end(&self) -> Psn {
        self.psn.add(self.packets)
    }
}

impl Responder {
    #[inline]
    pub(super) fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }
}

impl Qp {
    /// Fills the burst with READ and atomic responses.
    pub(super) fn fill_replies(&mut self, cx: &mut Cx<'_>, burst: &mut Burst<'_>) {
        while let Some(&reply) = self.resp.replies.front() {
            match self.emit_reply(cx, burst, &reply) {
                Ok(Some(rest)) if rest.packets > 0 => {
                    if let Some(front) = self.resp.replies.front_mut() {
                        *front = rest;
                    }
                }
                Ok(Some(_)) => {
                    self.resp.replies.pop_front();
                }
                Ok(None) => return,
                Err(_) => {
                    // The key was revoked meanwhile.
                    if burst.count == 0 {
                        cx.counters.resp_remote_access_errors += 1;
                        self.fail(cx, None, Status::RemoteAccess);
                        self.resp.nak = Some((reply.psn, Syndrome::Nak(NakCode::RemoteAccess)));
                    }
                    return;
                }
            }
        }
    }

    /// Sends the reply's next packet and returns what is left of it; `None` if the burst does not take it.
    #[inline]
    fn emit_reply(&self, cx: &Cx<'_>, burst: &mut Burst<'_>, reply: &Reply) -> Result<Option<Reply>, Fault> {
        let aeth = Some(Aeth { syndrome: ACK, msn: reply.msn });
        let mut rest = Reply { psn: reply.psn.add(1), packets: reply.packets.saturating_sub(1), ..*reply };
        let taken = match reply.what {
            What::Atomic { before } => {
                let mut h = self.header(Opcode::ATOMIC_ACK, reply.psn);
                h.aeth = aeth;
                h.atomic_ack = Some(before);
                burst.push(&mut h, 0, |_| Ok(()))?
            }
            What::Read { rkey, va, left, first } => {
                let len = left.min(self.link.mtu);
                let last = rest.packets == 0;
                let opcode = match (first, last) {
                    (true, true) => Opcode::READ_RESPONSE_ONLY,
                    (true, false) => Opcode::READ_RESPONSE_FIRST,
                    (false, false) => Opcode::READ_RESPONSE_MIDDLE,
                    (false, true) => Opcode::READ_RESPONSE_LAST,
                };
                let mut h = self.header(opcode, reply.psn);
                h.aeth = if opcode == Opcode::READ_RESPONSE_MIDDLE { None } else { aeth };
                let (pd, memory) = (self.pd, cx.memory);
                rest.what = What::Read { rkey, va: va.wrapping_add(u64::from(len)), left: left - len, first: false };
                burst.push(&mut h, len as usize, |out| {
                    if len == 0 {
                        return Ok(());
                    }
                    memory
                        .open(pd, Key(rkey), va, u64::from(len), Access::REMOTE_READ)
                        .and_then(|slice| slice.copy_out(out))
                        .map_err(|_| Fault::Local)
                })?
            }
        };
        Ok(taken.then_some(rest))
    }

    /// Notes that a packet came with CE. Only data counts: requests for the peer, READ responses for ourselves.
    pub(super) fn note_ce(&mut self, cx: &mut Cx<'_>, opcode: Opcode) {
        cx.counters.ecn_marked_packets += 1;
        match opcode {
            Opcode::ACK | Opcode::ATOMIC_ACK | Opcode::CNP => return,
            Opcode(0x0d..=0x10) if self.extended() => {
                self.req.marked = self.req.marked.saturating_add(1);
                return;
            }
            Opcode(0x0d..=0x10) => {}
            _ => {
                self.resp.report.ce = self.resp.report.ce.wrapping_add(1);
                self.resp.ce_since_ack = true;
            }
        }
        let connected = matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        if connected && !self.extended() && cx.now >= self.resp.cnp_not_before {
            self.resp.cnp_due = true;
            self.resp.cnp_not_before = cx.now + CNP_INTERVAL;
        }
    }

    /// Adds a congestion notification and an acknowledgement or NAK to the burst, as far as they are due and fit.
    pub(super) fn fill_late(&mut self, cx: &mut Cx<'_>, burst: &mut Burst<'_>) {
        if self.resp.cnp_due && self.state != QpState::Err {
            let mut h = self.header(Opcode::CNP, Psn::default());
            h.bth.becn = true;
            let sent = burst.push(&mut h, 16, |out| {
                out.fill(0);
                Ok(())
            });
            if sent != Ok(true) {
                return;
            }
            self.resp.cnp_due = false;
            cx.counters.cnp_sent += 1;
        }
        self.fill_ack(cx, burst);
    }

    /// Adds an acknowledgement or NAK to the burst, if one is due and may go before the responses that are owed.
    pub(super) fn fill_ack(&mut self, cx: &mut Cx<'_>, burst: &mut Burst<'_>) {
        if !self.acks_now() {
            return;
        }
        let (psn, syndrome) = match self.resp.nak {
            Some(nak) => nak,
            None => (self.resp.epsn.sub(1), ACK),
        };
        let mut h = self.header(Opcode::ACK, psn);
        h.bth.becn = self.resp.ce_since_ack;
        h.aeth = Some(Aeth { syndrome, msn: self.resp.msn });
        if burst.push(&mut h, 0, |_| Ok(())) != Ok(true) {
            return;
        }
        match syndrome {
            Syndrome::RnrNak(_) => cx.counters.rnr_nak_sent += 1,
            Syndrome::Nak(NakCode::PsnSequence) => cx.counters.sequence_nak_sent += 1,
            _ => {}
        }
        self.resp.nak = None;
        self.resp.ack_now = false;
        self.resp.ack_at = None;
        self.resp.unacked = 0;
        self.resp.unacked_bytes = 0;
        self.resp.ce_since_ack = false;
    }

    /// Whether an acknowledgement or NAK is due. Responses come first: an acknowledgement beyond them would say they are lost.
    #[inline]
    pub(super) fn acks_now(&self) -> bool {
        (self.resp.nak.is_some() || self.resp.ack_now) && !self.resp.has_replies()
    }
}
