//! One lane as its session sees it, and the lanes of a class.

use std::collections::VecDeque;

use super::config::{LaneKind, LaneRole, SessionConfig};
use super::credit::Credits;
use super::health::Health;
use super::rebuild::Return;
use super::replay::Replay;
use super::select::LaneSet;
use super::session::{Pending, WORKING};
use super::slab::{Key, List};
use super::stats::LaneStats;
use super::watch::Watch;
use crate::class::Class;
use crate::congestion::Window;
use crate::lanes::{Completion, LaneId, Status};
use crate::path::{ONE, Path, Sample};
use crate::time::Time;

/// A lane of unknown rate is taken to need this many 1/65,536 ns for a byte: 100 Gb/s.
const DEFAULT_NS_PER_BYTE: u32 = 5243;

/// How far a lane's queue pair is from its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Connected.
    Up,
    /// Given up: it goes to ERR, and not everything that was posted has come back.
    Flushing,
    /// All of it has come back; the driver is to destroy it.
    Flushed,
    /// There is none: nothing can arrive any more.
    Gone,
    /// The driver is to make a new one.
    Making,
    /// A new one, which is not connected.
    Made,
}

/// One lane.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) id: LaneId,
    pub(super) role: LaneRole,
    /// Bytes posted and not completed.
    pub(super) in_flight: u32,
    /// Work requests posted and not completed.
    pub(super) outstanding: u32,
    /// Expected round trip of an empty lane in nanoseconds; 0 while unknown.
    base: u32,
    /// Expected time for a byte in 1/65,536 ns.
    ns_per_byte: u32,
    /// Factor for marked packets, in 1/256.
    penalty: u32,
    pub(super) credits: Credits,
    pub(super) window: Window,
    pub(super) path: Path,
    /// Its place among the class's lanes of its kind.
    pub(super) place: u16,
    mtu_shift: u8,
    /// Why it was given up; `None` while it is connected.
    pub(super) dead: Option<Status>,
    /// It may carry messages.
    pub(super) open: bool,
    /// Whose operators want nothing new on it, a bit each.
    pub(super) drained: u8,
    pub(super) stage: Stage,
    /// The peer said that its queue pair of this generation is gone.
    pub(super) peer_gone: bool,
    /// Chunks posted on it of which nobody knows yet whether they arrived.
    pub(super) limbo: u32,
    /// When it was given up.
    pub(super) given_up: Time,
    /// Our own end refused a request of the peer's: its queue pair is left as it is until the peer has heard why.
    pub(super) patient: bool,
    /// The fate of every chunk in limbo was asked for or is known.
    pub(super) settled: bool,
    /// Every life up to this one is gone here.
    pub(super) fenced: Option<u16>,
    /// The peer is about to be told so.
    pub(super) saying: bool,
    pub(super) back: Return,
    pub(super) watch: Watch,
    pub(super) health: Health,
    /// The backend's queue was full; nothing more until something completes or time passes.
    pub(super) full: bool,
    /// It waits in the session's list of lanes that miss receives.
    pub(super) in_repost: bool,
    /// It waits in its class's list of credits to report.
    pub(super) in_report: bool,
    /// First byte of its block of control memory; control lanes only.
    pub(super) block: u64,
    /// Receive slots that are not posted; control lanes only.
    pub(super) slots: Vec<u16>,
    bytes: u64,
    chunks: u64,
    retransmits: u64,
}

impl Lane {
    pub(super) fn new(id: LaneId, role: LaneRole, place: u16, block: u64, config: &SessionConfig) -> Lane {
        let (depth, slots) = match role.kind {
            LaneKind::Control => (config.control_slots, (0..config.control_slots).rev().collect()),
            LaneKind::Data => (config.immediates, Vec::new()),
        };
        Lane {
            id,
            role,
            in_flight: 0,
            outstanding: 0,
            base: 0,
            ns_per_byte: DEFAULT_NS_PER_BYTE,
            penalty: 256,
            credits: Credits::new(depth),
            window: Window::new(config.initial_window, role.mtu.max(4096), config.max_window),
            path: Path::default(),
            place,
            mtu_shift: role.mtu.trailing_zeros() as u8,
            dead: None,
            open: true,
            drained: 0,
            back: Return::begun(),
            stage: Stage::Up,
            peer_gone: false,
            limbo: 0,
            given_up: Time::ZERO,
            patient: false,
            settled: false,
            fenced: None,
            saying: false,
            watch: Watch::default(),
            health: Health::Healthy,
            full: false,
            in_repost: false,
            in_report: false,
            block,
            slots,
            bytes: 0,
            chunks: 0,
            retransmits: 0,
        }
    }

    /// True if the backend takes what is posted.
    pub(super) fn is_usable(&self) -> bool {
        self.dead.is_none() && !self.full
    }

    /// True if messages may go by it.
    #[inline]
    pub(super) fn may_carry(&self) -> bool {
        self.is_usable() && self.is_serving()
    }

    /// True if it is there for new messages.
    #[inline]
    pub(super) fn is_serving(&self) -> bool {
        self.open && self.drained == 0
    }

    /// True while it has a queue pair that is connected.
    pub(super) fn is_up(&self) -> bool {
        self.stage == Stage::Up
    }

    /// True while something about its last life is not settled.
    pub(super) fn is_fencing(&self) -> bool {
        match self.stage {
            Stage::Flushing | Stage::Flushed => true,
            Stage::Gone => !self.settled || self.limbo > 0,
            Stage::Up | Stage::Making | Stage::Made => false,
        }
    }

    /// Another path may behave otherwise.
    pub(super) fn forget_path(&mut self) {
        self.base = 0;
        self.ns_per_byte = DEFAULT_NS_PER_BYTE;
        self.penalty = 256;
        self.path = Path::default();
    }

    pub(super) fn set_mtu(&mut self, mtu: u32) {
        self.role.mtu = mtu;
        self.mtu_shift = mtu.trailing_zeros() as u8;
    }

    /// When `bytes` more would have arrived, in nanoseconds from now, weighted by the lane's marks.
    ///
    /// A lane that has been silent for longer than its round trip is expected to stay so.
    #[inline]
    pub(super) fn expected(&self, now: Time, bytes: u32) -> u64 {
        let mut base = u64::from(self.base);
        if self.in_flight > 0 {
            base = base.max(self.path.age(now).as_nanos().min(1 << 40));
        }
        let queue = (u64::from(self.in_flight) + u64::from(bytes)) * u64::from(self.ns_per_byte);
        ((base + (queue >> 16)) * u64::from(self.penalty)) >> 8
    }

    /// Nanoseconds that this many bytes take at the lane's rate.
    #[inline]
    pub(super) fn own_time(&self, bytes: u64) -> u64 {
        (bytes.min(1 << 31) * u64::from(self.ns_per_byte)) >> 16
    }

    /// What [`charge`](crate::lanes::charge) says, for an MTU that is a power of two.
    #[inline]
    fn charge(&self, bytes: u32) -> u64 {
        if bytes <= self.role.mtu {
            return crate::lanes::charge(u64::from(bytes), self.role.mtu);
        }
        let bytes = u64::from(bytes);
        let packets = (bytes + u64::from(self.role.mtu) - 1) >> self.mtu_shift;
        bytes + packets * 768
    }

    /// Counts a work request that goes out. Returns what it takes of the peer port's budget.
    #[inline]
    pub(super) fn on_post(&mut self, now: Time, bytes: u32) -> u64 {
        if self.outstanding == 0 {
            self.path.on_busy(now);
        }
        self.outstanding += 1;
        self.in_flight += bytes;
        self.charge(bytes)
    }

    /// Counts a work request that the backend did not take. Returns what it had taken of the budget.
    pub(super) fn on_unpost(&mut self, bytes: u32) -> u64 {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.in_flight = self.in_flight.saturating_sub(bytes);
        self.charge(bytes)
    }

    /// Counts a work request that completed, and learns from it. `best` is the best rate of the class.
    #[inline]
    pub(super) fn on_complete(&mut self, now: Time, bytes: u32, c: &Completion, best: &mut u64) -> u64 {
        let before = self.in_flight;
        let charged = self.on_unpost(bytes);
        self.retransmits += u64::from(c.retransmits);
        self.full = false;
        if c.status != Status::Success {
            return charged;
        }
        self.bytes += u64::from(bytes);
        self.chunks += 1;
        let sample = Sample { bytes, left: self.in_flight, rtt: c.rtt, marks: c.marks };
        let measured = self.path.on_ack(now, &sample);
        let marked = c.marks.is_some_and(|m| m.ce > 0);
        self.window.on_ack(now, bytes, before, marked, &self.path);
        self.base = self.path.srtt().unwrap_or(0);
        if c.marks.is_some() {
            // Half of the packets marked: three times the time.
            self.penalty = 256 + (u64::from(self.path.ce_share().unwrap_or(0)) * 1024 / u64::from(ONE)) as u32;
        }
        if measured {
            let own = self.path.rate().unwrap_or(0);
            *best = own.max(*best - *best / 32);
            // Without a queue, a rate says how much was asked for, not how much the lane can do.
            let rate = if self.path.is_queued() { own } else { own.max(*best) };
            let ns = (1_000_000_000u64 << 16).checked_div(rate);
            self.ns_per_byte = ns.map_or(DEFAULT_NS_PER_BYTE, |ns| u32::try_from(ns).unwrap_or(u32::MAX));
        }
        charged
    }

    /// Learns from the completion of a receive.
    #[inline]
    pub(super) fn on_receive(&mut self, now: Time, c: &Completion) {
        self.retransmits += u64::from(c.retransmits);
        self.credits.missing += 1;
        if let Some(marks) = c.marks {
            self.path.on_marks(marks);
            self.window.on_ack(now, 0, 0, marks.ce > 0, &self.path);
        }
    }

    /// Work requests that the peer's end has acknowledged.
    pub(super) fn delivered(&self) -> u64 {
        self.chunks
    }

    pub(super) fn stats(&self) -> LaneStats {
        let window = match self.role.kind {
            LaneKind::Data => u64::from(self.window.size()),
            // Bounded by its credits.
            LaneKind::Control => u64::from(self.credits.available()),
        };
        LaneStats {
            lane: self.id,
            port: self.role.port,
            peer_port: self.role.peer_port,
            class: self.role.class,
            kind: self.role.kind,
            alive: self.open,
            bytes: self.bytes,
            chunks: self.chunks,
            retransmits: self.retransmits,
            srtt: self.path.srtt().map(u64::from),
            min_rtt: self.path.min_rtt().map(u64::from),
            ce_share: self.path.ce_share().map(|s| (u64::from(s) * 1_000_000 / u64::from(ONE)) as u32),
            rate: self.path.rate(),
            window,
            in_flight: u64::from(self.in_flight),
        }
    }
}

/// The lanes and queues of one class.
#[derive(Debug)]
pub(super) struct ClassState {
    pub(super) class: Class,
    /// Its control lanes, and its data lanes, by place.
    pub(super) control: Vec<u16>,
    pub(super) data: Vec<u16>,
    /// Places of data lanes that may take a chunk.
    pub(super) open: LaneSet,
    /// Places of living data lanes with nothing in flight.
    pub(super) idle: LaneSet,
    pub(super) control_live: u32,
    pub(super) data_live: u32,
    /// Where the next search begins.
    pub(super) rotor: usize,
    /// Which lane the last chunk of one packet took.
    pub(super) lonely: usize,
    pub(super) control_rotor: usize,
    pub(super) best_rate: u64,
    /// Least expected finish that is known of among its data lanes, in nanoseconds.
    pub(super) least: u64,
    /// Decisions until busy lanes are looked at again.
    pub(super) patience: u32,
    /// Control records to write.
    pub(super) records: VecDeque<Pending>,
    /// Receives whose grants can wait for company, because the peer still has others.
    pub(super) held: VecDeque<Key>,
    /// Until when.
    pub(super) held_until: Time,
    /// Lanes whose credit should be reported.
    pub(super) reports: VecDeque<u16>,
    /// Control messages to send again, by slot.
    pub(super) resend: VecDeque<u16>,
    /// Sends that go eagerly.
    pub(super) eager: List,
    /// Short sends that wait for a grant or for eager credit.
    pub(super) waiting: List,
    /// Sends and one-sided operations with bytes to post.
    pub(super) active: List,
    /// Chunks to post again.
    pub(super) replay: VecDeque<Replay>,
    /// Bytes that the active ones have yet to post.
    pub(super) queued: u64,
    /// Bytes that the first of them got in its turn.
    pub(super) served: u64,
    /// A message without records is wanted, for its header.
    pub(super) push: bool,
    pub(super) down: bool,
}

impl ClassState {
    pub(super) fn new(class: Class) -> ClassState {
        ClassState {
            class,
            control: Vec::new(),
            data: Vec::new(),
            open: LaneSet::default(),
            idle: LaneSet::default(),
            control_live: 0,
            data_live: 0,
            rotor: 0,
            lonely: 0,
            control_rotor: 0,
            best_rate: 0,
            least: 0,
            patience: 0,
            records: VecDeque::with_capacity(WORKING),
            held: VecDeque::with_capacity(WORKING),
            held_until: Time::ZERO,
            reports: VecDeque::new(),
            resend: VecDeque::new(),
            eager: List::default(),
            waiting: List::default(),
            active: List::default(),
            replay: VecDeque::new(),
            queued: 0,
            served: 0,
            push: false,
            down: false,
        }
    }

    /// Takes a data lane that has just died out of the sets.
    pub(super) fn close(&mut self, lane: &Lane) {
        self.open.put(lane.place as usize, false);
        self.idle.put(lane.place as usize, false);
    }

    /// Brings the sets up to date after a data lane changed.
    #[inline]
    pub(super) fn refresh(&mut self, lane: &Lane, send_depth: u16) {
        if lane.dead.is_some() {
            // Its place may be its successor's by now.
            return;
        }
        let place = lane.place as usize;
        let open = lane.may_carry() && lane.in_flight < lane.window.size() && lane.outstanding < u32::from(send_depth);
        self.open.put(place, open);
        self.idle.put(place, open && lane.outstanding == 0);
    }

    /// Notes a data lane that has just completed something.
    #[inline]
    pub(super) fn note(&mut self, lane: &Lane, now: Time, bytes: u32) {
        self.least = self.least.min(lane.expected(now, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::{PortId, charge};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn charges_as_the_seam_does(bytes: u32, shift in 8u32..=12) {
            let role = LaneRole {
                port: PortId(0),
                peer_port: 0,
                class: Class::Bulk,
                kind: LaneKind::Data,
                peer_index: 0,
                mtu: 1 << shift,
                generation: 0,
            };
            let lane = Lane::new(LaneId(0), role, 0, 0, &SessionConfig::default());
            prop_assert_eq!(lane.charge(bytes), charge(u64::from(bytes), 1 << shift));
        }
    }
}
