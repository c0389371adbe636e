//! The device's packets: which queue pair takes one, and which sends next.

use crate::seq::Qpn;
use crate::time::Time;
use crate::wire::{Bth, Deth, Header, Opcode, Packet};

use super::burst::Burst;
use super::device::{Device, RxMeta, Transmit};
use super::feedback::{MAX_RECORDS, RECORD, Record};
use super::qp::Qp;
use super::state::{Extension, QpKind, QpState};

/// Bursts of data after which acknowledgements go out even if there is more data.
const LATE_AFTER: u32 = 4;

impl Device {
    /// Takes in a packet whose ICRC the edge has checked.
    pub fn handle(&mut self, now: Time, from: &RxMeta, packet: &Packet<'_>) {
        self.counters.rcvd_pkts += 1;
        let bth = &packet.header.bth;
        // Partition 0x7fff, as full or limited member: we are a full member of that alone.
        if bth.version != 0 || bth.pkey & 0x7fff != 0x7fff {
            self.counters.dropped_pkts += 1;
            return;
        }
        if bth.dest_qp == self.feedback_qpn {
            self.take_feedback(now, from, packet);
            return;
        }
        let Some(slot) = self.slot(bth.dest_qp) else {
            self.counters.dropped_pkts += 1;
            return;
        };
        let (Some(qp), mut cx) = self.split(slot, now) else { return };
        let transport = bth.opcode.0 >> 5;
        match qp.kind {
            QpKind::Ud if transport == 3 => qp.handle_datagram(&mut cx, from, packet),
            QpKind::Rc if transport == 0 || bth.opcode == Opcode::CNP => {
                if from.src != qp.link.peer {
                    cx.counters.wrong_source += 1;
                    return;
                }
                if from.tos & 3 == 3 {
                    qp.note_ce(&mut cx, bth.opcode);
                }
                match bth.opcode {
                    Opcode::CNP => {
                        cx.counters.cnp_handled += 1;
                        qp.req.marked = qp.req.marked.saturating_add(1);
                    }
                    Opcode(0x0d..=0x12) => qp.handle_response(&mut cx, packet),
                    _ => qp.handle_request(&mut cx, packet),
                }
            }
            _ => {
                cx.counters.dropped_pkts += 1;
                return;
            }
        }
        self.settle(slot);
    }

    /// Writes packets of one queue pair into `out`: at least one if any is due, at most 64, and not more than
    /// `limit` and 65,000 bytes unless the first alone is longer. `out` holds at least one packet of the MTU: 4,160 bytes do.
    pub fn poll_transmit(&mut self, now: Time, limit: usize, out: &mut [u8]) -> Option<Transmit> {
        loop {
            let wait = self.data_turns >= LATE_AFTER && !self.late.is_empty();
            let data = if wait { None } else { self.next_ready() };
            let sent = match data {
                Some(slot) => {
                    self.data_turns += 1;
                    self.send_data(now, slot, limit, out)
                }
                None => {
                    self.data_turns = 0;
                    let slot = self.late.pop(&mut self.qps)?;
                    self.send_late(now, usize::from(slot), limit, out)
                }
            };
            if let Some(transmit) = sent {
                self.counters.sent_pkts += transmit.count as u64;
                return Some(transmit);
            }
        }
    }

    /// True if [`Device::poll_transmit`] may have something.
    pub fn pending_transmit(&self) -> bool {
        !self.late.is_empty() || self.ready.iter().any(|list| !list.is_empty())
    }

    fn next_ready(&mut self) -> Option<usize> {
        let list = self.ready.iter_mut().find(|list| !list.is_empty())?;
        list.pop(&mut self.qps).map(usize::from)
    }

    fn send_data(&mut self, now: Time, slot: usize, limit: usize, out: &mut [u8]) -> Option<Transmit> {
        let mut burst = Burst::new(out, limit);
        let (Some(qp), mut cx) = self.split(slot, now) else { return None };
        let mut path = qp.link.path;
        if qp.kind == QpKind::Ud {
            path = qp.fill_datagrams(&mut cx, &mut burst);
        } else if qp.wants_data() {
            // Requests and responses take turns.
            qp.replies_next = !qp.replies_next;
            if qp.replies_next {
                qp.fill_replies(&mut cx, &mut burst);
            }
            if burst.count == 0 && matches!(qp.state, QpState::Rts | QpState::Sqd) {
                qp.fill_requests(&mut cx, &mut burst);
            }
            if burst.count == 0 && qp.state != QpState::Err {
                qp.fill_replies(&mut cx, &mut burst);
            }
            // An acknowledgement is shorter than anything, so it may end the burst and saves a send.
            if burst.count > 0 {
                qp.resp.ack_now |= qp.resp.ack_at.is_some();
                qp.fill_ack(&mut cx, &mut burst);
            }
        }
        let transmit = finish(qp, &burst, path);
        if transmit.is_some() {
            self.settle(slot);
        } else {
            self.settle_late(slot);
        }
        transmit
    }

    /// As [`Device::settle`], but a queue pair whose packet the caller's buffer did not hold is not asked again at once.
    fn settle_late(&mut self, slot: usize) {
        if let Some(Some(qp)) = self.qps.get(slot) {
            if let Some(at) = qp.deadline() {
                self.timers.arm(slot, at);
            }
            if qp.wants_late() {
                self.late.push(&mut self.qps, slot as u16);
            }
        }
    }

    fn send_late(&mut self, now: Time, slot: usize, limit: usize, out: &mut [u8]) -> Option<Transmit> {
        let mut burst = Burst::new(out, limit);
        let (Some(qp), mut cx) = self.split(slot, now) else { return None };
        qp.fill_late(&mut cx, &mut burst);
        let transmit = finish(qp, &burst, qp.link.path);
        let transmit = match (transmit, qp.link.extension) {
            (None, Some(extension)) if qp.resp.report.due => self.send_feedback(now, slot, &extension, out),
            (transmit, _) => transmit,
        };
        if transmit.is_some() {
            self.settle(slot);
        }
        transmit
    }

    /// One datagram with what this queue pair, and others towards the same peer, have received.
    fn send_feedback(&mut self, now: Time, slot: usize, to: &Extension, out: &mut [u8]) -> Option<Transmit> {
        let mut records = [0; MAX_RECORDS * RECORD];
        let mut count = 0;
        let first = self.qps.get(slot)?.as_ref()?;
        let (path, tos, peer) = (first.link.path, first.link.tos, first.link.peer);
        let mut next = slot;
        let mut after = self.late.head();
        for chunk in records.chunks_exact_mut(RECORD) {
            if let Some(Some(qp)) = self.qps.get_mut(next) {
                let same = qp.link.extension == Some(*to) && qp.link.peer == peer;
                let more = qp.late.next;
                if same && qp.resp.report.due {
                    chunk.copy_from_slice(&qp.record().to_bytes());
                    qp.resp.report.sent(now);
                    count += 1;
                } else {
                    // Those further down have a turn of their own.
                    break;
                }
                if next != slot {
                    after = more;
                }
            } else {
                break;
            }
            next = usize::from(after);
        }
        let mut header = Header::new(Bth::new(Opcode::UD_SEND_ONLY, to.feedback_qpn, self.feedback_psn));
        header.deth = Some(Deth { qkey: to.qkey, reserved: 0, src_qp: self.feedback_qpn });
        let mut burst = Burst::new(out, usize::MAX);
        let len = count * RECORD;
        let sent = burst.push(&mut header, len, |body| {
            body.copy_from_slice(&records[..len]);
            Ok(())
        });
        if sent != Ok(true) {
            return None;
        }
        self.feedback_psn = self.feedback_psn.add(1);
        self.counters.feedback_sent += count as u64;
        Some(Transmit { path, tos, len: burst.len, segment: burst.segment, count: 1, qpn: self.feedback_qpn })
    }

    /// Takes the records of a feedback datagram, each only from the peer that its queue pair is connected to.
    fn take_feedback(&mut self, now: Time, from: &RxMeta, packet: &Packet<'_>) {
        let (Some(deth), Opcode::UD_SEND_ONLY) = (packet.header.deth, packet.header.bth.opcode) else {
            self.counters.dropped_pkts += 1;
            return;
        };
        let expected = Extension { feedback_qpn: deth.src_qp, qkey: deth.qkey };
        for bytes in packet.payload.chunks_exact(RECORD).take(MAX_RECORDS) {
            let Ok(bytes) = bytes.try_into() else { return };
            let record = Record::from_bytes(bytes);
            let slot = self.slot(record.dest);
            let (Some(qp), mut cx) = self.split(slot.unwrap_or(0), now) else {
                self.counters.feedback_refused += 1;
                continue;
            };
            if qp.link.extension != Some(expected) || qp.link.peer != from.src {
                cx.counters.feedback_refused += 1;
                continue;
            }
            cx.counters.feedback_handled += 1;
            qp.handle_feedback(&mut cx, &record);
            if let Some(slot) = slot {
                self.settle(slot);
            }
        }
    }
}

impl Qp {
    /// Whether the queue pair belongs on the list of late senders.
    #[inline]
    pub(super) fn wants_late(&self) -> bool {
        self.acks_now() || self.resp.cnp_due || self.resp.report.due
    }

    fn record(&self) -> Record {
        let r = &self.resp;
        let dest: Qpn = self.link.dest_qpn;
        Record::new(dest, r.epsn, r.report.packets, r.report.ce, &r.held)
    }
}

fn finish(qp: &Qp, burst: &Burst<'_>, path: super::PathId) -> Option<Transmit> {
    (burst.count > 0).then_some(Transmit {
        path,
        tos: qp.link.tos,
        len: burst.len,
        segment: burst.segment,
        count: burst.count,
        qpn: qp.qpn,
    })
}
