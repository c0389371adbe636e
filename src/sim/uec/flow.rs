//! One flow: the sender's and the receiver's state, and what each does with a packet.

use super::fabric::HEADER;
use super::packet::{Kind, NONE, Packet};
use super::records::{Records, State};
use super::window::{Law, Sample, Window};
use crate::policy::{Pick, Policy, Report};
use crate::time::{Span, Time};

/// Numbers that all flows share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) law: Law,
    /// Bytes of a full packet on the wire, and of its payload.
    pub(super) full: u32,
    pub(super) payload: u32,
    /// Bytes after which the receiver acknowledges.
    pub(super) ack_bytes: u32,
    /// The retransmission timer.
    pub(super) rto: u64,
}

/// A flow.
pub(super) struct Flow {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) start: u64,
    /// When the sender knew that all had arrived.
    pub(super) finished: Option<u64>,
    pub(super) policy: Box<dyn Policy>,
    pub(super) records: Records,
    window: Window,
    /// Packets, and bytes of the last one.
    total: u32,
    last: u32,
    in_flight: i64,
    /// What the receiver said it had.
    told: u64,
    /// It waits for its host's turn.
    pub(super) waits: bool,
    /// When its timer event is due; later than any if there is none.
    pub(super) timer_at: u64,
    /// When the newest packet of each plane that arrived had been sent.
    newest: Vec<u64>,
    pub(super) tally: FlowTally,
    /// The receiver: all below have arrived; bytes in all; bytes since the last acknowledgement; gaps above.
    expected: u32,
    received: u64,
    unacknowledged: u32,
    ahead: u32,
    owed: bool,
    /// Packets that arrived again; bytes that arrived by plane.
    pub(super) spurious: u64,
    pub(super) plane_bytes: Vec<u64>,
}

/// What befell a flow's packets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlowTally {
    pub(super) retransmitted: u64,
    pub(super) timeouts: u64,
    pub(super) given_up: u64,
}

fn time(ps: u64) -> Time {
    Time::from_nanos(ps / 1000)
}

impl Flow {
    pub(super) fn new(
        rules: &Rules,
        ends: (u32, u32),
        bytes: u32,
        start: u64,
        planes: u8,
        policy: Box<dyn Policy>,
    ) -> Flow {
        let total = bytes.div_ceil(rules.payload);
        Flow {
            from: ends.0,
            to: ends.1,
            start,
            finished: None,
            policy,
            records: Records::new(planes),
            window: Window::new(&rules.law),
            total,
            last: bytes - (total - 1) * rules.payload + HEADER,
            in_flight: 0,
            told: 0,
            waits: false,
            timer_at: u64::MAX,
            newest: vec![0; planes.into()],
            tally: FlowTally::default(),
            expected: 0,
            received: 0,
            unacknowledged: 0,
            ahead: 0,
            owed: false,
            spurious: 0,
            plane_bytes: vec![0; planes.into()],
        }
    }

    fn size_of(&self, rules: &Rules, seq: u32) -> u32 {
        if seq + 1 == self.total { self.last } else { rules.full }
    }

    fn next_seq(&mut self) -> Option<u32> {
        self.records.first_again().or_else(|| (self.records.next < self.total).then_some(self.records.next))
    }

    /// True if there is something to send and the window has room for it.
    pub(super) fn may_send(&mut self, rules: &Rules) -> bool {
        if self.finished.is_some() {
            return false;
        }
        let Some(seq) = self.next_seq() else { return false };
        self.in_flight + i64::from(self.size_of(rules, seq)) <= self.window.size()
    }

    /// The next packet, which is then out.
    pub(super) fn send(&mut self, rules: &Rules, name: u32, now: u64, random: &mut fastrand::Rng) -> Option<Packet> {
        let seq = self.next_seq()?;
        let again = seq < self.records.next;
        if again {
            self.records.pop_again();
            self.tally.retransmitted += 1;
        }
        let size = self.size_of(rules, seq);
        let pick = self.policy.pick(time(now), random);
        self.records.sent(seq, now, pick);
        self.in_flight += i64::from(size);
        let all_sent = self.records.next == self.total;
        let full = self.in_flight + i64::from(size) >= self.window.size();
        let before = self.records.get(seq).before > 0;
        Some(Packet {
            urgent: again || all_sent || full,
            again: before,
            ..packet(name, seq, self.to, pick, size, Kind::Data)
        })
    }

    /// An empty packet to a path that the policy wants to know of.
    pub(super) fn probe(&mut self, name: u32, now: u64) -> Option<Packet> {
        let pick = self.policy.probe(time(now))?;
        Some(packet(name, 0, self.to, pick, HEADER, Kind::Probe))
    }

    /// The receiver gets a packet; what it answers.
    pub(super) fn receive(&mut self, rules: &Rules, name: u32, p: &Packet) -> Option<Packet> {
        let answer = |kind| Packet {
            again: p.again,
            marked: p.marked,
            last_hop: p.last_hop,
            ..packet(name, p.seq, self.from, p.pick, HEADER, kind)
        };
        if p.kind == Kind::Probe {
            return Some(answer(Kind::Answer));
        }
        let low = self.expected.max(self.records.oldest);
        let known = p.seq < low || self.records.is_cleared() || self.records.has(p.seq);
        let (seq, marked) = (p.seq, p.marked && p.kind == Kind::Data);
        let behind = seq.saturating_sub(63).max(self.expected + 1);
        if p.kind == Kind::Trimmed {
            return Some(if known {
                self.acknowledge(Packet { marked: false, ..answer(Kind::Ack) }, behind)
            } else {
                answer(Kind::Nack)
            });
        }
        self.unacknowledged += u32::from(p.size);
        if known {
            self.spurious += 1;
            self.unacknowledged = 0;
            let base = if marked { seq } else { behind };
            return Some(self.acknowledge(answer(Kind::Ack), base));
        }
        let mut now = self.received == 0 || marked || p.urgent;
        self.received += u64::from(p.size);
        self.plane_bytes[usize::from(p.pick.plane)] += u64::from(p.size);
        self.owed |= p.urgent;
        self.records.got(seq);
        if seq == self.expected {
            self.expected += 1;
            while self.expected < self.records.next && self.records.has(self.expected) {
                self.expected += 1;
                self.ahead -= 1;
            }
            if self.ahead == 0 && self.owed {
                self.owed = false;
                now = true;
            }
        } else {
            self.ahead += 1;
        }
        if !now && self.unacknowledged < rules.ack_bytes {
            return None;
        }
        self.unacknowledged = 0;
        let base = if marked || p.urgent { seq } else { seq.saturating_sub(63).max(self.expected + 1) };
        Some(self.acknowledge(answer(Kind::Ack), base))
    }

    fn acknowledge(&self, p: Packet, base: u32) -> Packet {
        let beyond = self.records.is_cleared() || base >= self.records.next;
        let base = base.max(self.expected.min(self.records.next));
        let arrived = if beyond { 0 } else { self.records.bits(base) };
        Packet { cumulative: self.expected, base, arrived, received: self.received, ..p }
    }

    /// True if the receiver has everything.
    pub(super) fn is_received(&self) -> bool {
        self.expected == self.total
    }

    /// The sender gets an acknowledgement.
    pub(super) fn acknowledged(&mut self, rules: &Rules, now: u64, p: &Packet) {
        if self.finished.is_some() {
            return;
        }
        let new = p.received.saturating_sub(self.told);
        self.told += new;
        self.in_flight -= new as i64;
        let r = *self.records.get(p.seq);
        let timed = self.records.is_open(p.seq) && r.state == State::Sent && r.before < 2 && (r.before == 1) == p.again;
        let rtt = timed.then(|| now - r.at);
        let report = Report { pick: p.pick, marked: p.marked, rtt: rtt.map(|ps| Span::from_nanos(ps / 1000)) };
        while self.records.oldest < p.cumulative {
            self.arrived(rules, now, self.records.oldest, p.seq, report);
            self.records.oldest += 1;
        }
        let mut bits = p.arrived;
        while bits != 0 {
            let seq = p.base + bits.trailing_zeros();
            bits &= bits - 1;
            if self.records.is_open(seq) && self.records.get(seq).state != State::Arrived {
                self.arrived(rules, now, seq, p.seq, report);
            }
        }
        self.policy.acknowledged(time(now), report);
        let typical = self.policy.typical_rtt().map(|t| t.as_nanos() * 1000);
        self.window.acknowledged(
            &rules.law,
            now,
            Sample { bytes: new as u32, rtt, typical, marked: p.marked },
            self.in_flight,
        );
        if self.records.oldest == self.total {
            self.finished = Some(now);
            self.records.clear();
            return;
        }
        self.find_lost(rules, now);
    }

    fn arrived(&mut self, rules: &Rules, now: u64, seq: u32, cause: u32, report: Report) {
        let r = *self.records.get(seq);
        match r.state {
            State::Arrived => return,
            // It was taken back when it was put aside.
            State::Again => self.in_flight += i64::from(self.size_of(rules, seq)),
            State::Sent => {
                let newest = &mut self.newest[usize::from(r.pick.plane)];
                if r.before == 0 {
                    *newest = (*newest).max(r.at);
                }
                let own = seq == cause;
                let rtt = if own { report.rtt } else { None };
                self.policy.delivered(time(now), Report { pick: r.pick, marked: own && report.marked, rtt });
            }
        }
        self.records.get_mut(seq).state = State::Arrived;
    }

    /// Gives up what a policy's patience or its verdict on a plane says is lost.
    fn find_lost(&mut self, rules: &Rules, now: u64) {
        for plane in 0..self.records.planes() {
            let Some(patience) = self.policy.patience(plane as u8) else { return };
            let patience = patience.as_nanos() * 1000;
            while let Some((at, seq)) = self.records.longest_out(plane) {
                if now - at < patience || self.newest[plane] <= at {
                    break;
                }
                self.put_aside(rules, now, seq);
            }
        }
        self.find_silent(rules, now);
    }

    /// Gives up all that is out on planes that the policy gave up.
    fn find_silent(&mut self, rules: &Rules, now: u64) {
        while let Some(plane) = self.policy.given_up(time(now)) {
            while let Some((_, seq)) = self.records.longest_out(plane.into()) {
                self.put_aside(rules, now, seq);
            }
        }
    }

    fn put_aside(&mut self, rules: &Rules, now: u64, seq: u32) {
        self.in_flight -= i64::from(self.size_of(rules, seq));
        let pick = self.records.get(seq).pick;
        self.records.send_again(seq);
        self.tally.given_up += 1;
        self.policy.lost(time(now), pick);
    }

    /// The sender hears that a packet was trimmed.
    pub(super) fn trimmed(&mut self, rules: &Rules, now: u64, p: &Packet) {
        if self.finished.is_some() || !self.records.is_open(p.seq) || self.records.get(p.seq).state != State::Sent {
            return;
        }
        let r = *self.records.get(p.seq);
        let size = self.size_of(rules, p.seq);
        self.window.shortest(&rules.law, now - r.at);
        if self.policy.trim_cuts(p.last_hop) {
            self.window.trimmed(&rules.law, now, size, self.in_flight);
        }
        self.in_flight -= i64::from(size);
        self.records.send_again(p.seq);
        self.policy.trimmed(time(now), r.pick, p.last_hop, p.marked);
        self.find_lost(rules, now);
    }

    /// A probe was answered.
    pub(super) fn probed(&mut self, now: u64, p: &Packet) {
        self.policy.probed(time(now), p.pick);
    }

    /// True if everything was sent at least once.
    pub(super) fn is_tail(&self) -> bool {
        self.records.next == self.total
    }

    /// When the timer is to run out next.
    pub(super) fn deadline(&mut self, rules: &Rules) -> Option<u64> {
        let planes = 0..self.records.planes();
        planes.filter_map(|p| self.records.longest_out(p).map(|(at, seq)| at + self.allowed(rules, p, seq))).min()
    }

    /// How long a packet may be out. When all is sent, no later packet will show that one is lost, so a policy's
    /// patience alone decides, once for each packet.
    fn allowed(&self, rules: &Rules, plane: usize, seq: u32) -> u64 {
        let tail = self.is_tail() && self.records.get(seq).before == 0;
        match self.policy.patience(plane as u8) {
            Some(patience) if tail => rules.rto.min(patience.as_nanos() * 1000),
            _ => rules.rto,
        }
    }

    /// The timer ran out: everything that is out for too long is sent again.
    pub(super) fn timer(&mut self, rules: &Rules, now: u64) {
        for plane in 0..self.records.planes() {
            while let Some((at, seq)) = self.records.longest_out(plane) {
                let allowed = self.allowed(rules, plane, seq);
                if at + allowed > now {
                    break;
                }
                if allowed < rules.rto {
                    self.put_aside(rules, now, seq);
                    continue;
                }
                let size = self.size_of(rules, seq);
                let pick = self.records.get(seq).pick;
                self.in_flight -= i64::from(size);
                self.window.timed_out(&rules.law, size);
                self.records.send_again(seq);
                self.tally.timeouts += 1;
                self.policy.timed_out(time(now), pick);
            }
        }
        self.find_silent(rules, now);
    }
}

fn packet(flow: u32, seq: u32, to: u32, pick: Pick, size: u32, kind: Kind) -> Packet {
    Packet {
        next: NONE,
        prev: NONE,
        flow,
        seq,
        to,
        pick,
        size: size as u16,
        kind,
        marked: false,
        urgent: false,
        again: false,
        last_hop: false,
        cumulative: 0,
        base: 0,
        arrived: 0,
        received: 0,
    }
}
