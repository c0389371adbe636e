//! One peer's session: its state, its making and its end. The other files of this directory add what it does.

use std::collections::VecDeque;

use super::bitmap::BitPool;
use super::channel::Channels;
use super::chunk::ChunkTable;
use super::config::{LaneKind, LaneRole, SessionConfig};
use super::eager::EagerPool;
use super::failure::Failure;
use super::fence::LaneCommand;
use super::grant::{Grant, SLOTS, Slots};
use super::health::Health;
use super::incoming::Incoming;
use super::lane::{ClassState, Lane};
use super::message::{Done, Event, Fate, Refused};
use super::outgoing::Outgoing;
use super::rebuild::{Flaps, PerWay};
use super::records::{Answer, LaneLife, Offer};
use super::select::{Budgets, MAX_CLASS_LANES};
use super::slab::{Key, Slab};
use super::slots::SendSlots;
use super::stats::{MessageStats, SessionStats};
use super::words::Words;
use crate::class::Class;
use crate::lanes::{LaneId, MAX_PORTS, MrId, PortId};
use crate::mem::Region;
use crate::time::{Span, Time};

/// No lane.
pub(super) const NO_LANE: u16 = u16::MAX;
/// Lanes that a session may have: peer indices.
const MAX_LANES: usize = 4096;
/// Records, reports and results that may wait at once without a growing queue.
pub(super) const WORKING: usize = 1024;
/// How long a lane whose queue was full is left alone if nothing completes on it.
const RETRY: Span = Span::from_micros(50);

/// How long a grant may wait for others while the peer has enough.
const HOLD: Span = Span::from_micros(100);

/// A control record to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pending {
    Grant(Key),
    Request(Key),
    Total(Key),
    Failed { channel: u32, number: u32, reason: u8 },
    Budget { port: u8, number: u16, bytes: Option<u64> },
    Bye,
    Fence(LaneLife),
    Fenced(u16),
    Ask(LaneLife, u64),
    Answer(Answer),
    Offer(Offer),
    Ready(LaneLife),
    Drain { port: u8, on: bool, number: u16 },
}

/// How far our goodbye is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Goodbye {
    No,
    Queued,
    Acked,
}

/// Everything that two engines share about each other: lanes, windows, channels, messages under way.
///
/// After any call, call [`Session::poll_post`] until it returns `None`, and [`Session::poll_done`] and
/// [`Session::poll_event`] likewise.
///
/// Both ends add the same lanes, call [`Session::start`], post everything that [`Session::poll_post`] gives, and only then
/// tell each other (by the bootstrap) that they are ready; nothing may be sent before: credits start at the agreed numbers
/// of posted receives.
#[derive(Debug)]
pub struct Session {
    pub(super) config: SessionConfig,
    pub(super) slot_bytes: u32,
    pub(super) control: Region,
    pub(super) control_mr: MrId,
    pub(super) local_ports: usize,
    pub(super) lanes: Vec<Lane>,
    /// Lanes by [`LaneId::index`], and by peer index.
    pub(super) by_id: Vec<u16>,
    pub(super) by_peer: Vec<u16>,
    blocks: u64,
    pub(super) classes: [ClassState; 3],
    pub(super) channels: Channels,

    pub(super) outgoing: Slab<Outgoing>,
    pub(super) chunks: ChunkTable,
    /// Grants that came before their sends.
    pub(super) grants: Slab<Grant>,
    /// Numbers that the peer has granted and we have not sent, in ring entries.
    pub(super) tx_ahead: u32,
    pub(super) send_slots: SendSlots,
    pub(super) budgets: Budgets,
    /// Budgets that we announced, so that the peer can tell old from new.
    pub(super) announcements: u16,
    /// Eager messages that the peer accepts in all, and that we have sent or reserved.
    pub(super) eager_limit: u32,
    pub(super) eager_used: u32,

    pub(super) incoming: Slab<Incoming>,
    pub(super) slots: Slots,

    pub(super) bits: BitPool,
    /// Receives that wait for a slot.
    pub(super) slotless: VecDeque<Key>,
    /// Numbers that the peer has spoken of and we have no receive for, in ring entries.
    pub(super) rx_ahead: u32,
    pub(super) pool: EagerPool,

    /// Lanes that miss receives.
    pub(super) repost: VecDeque<u16>,
    pub(super) done: VecDeque<Done>,
    pub(super) events: VecDeque<Event>,
    pub(super) scratch: Vec<u8>,
    pub(super) now: Time,
    retry_at: Option<Time>,
    started: bool,
    pub(super) closing: bool,
    pub(super) goodbye: Goodbye,
    /// Sends that were taken.
    pub(super) accepted: u64,
    /// Messages of the peer whose fate is known here.
    pub(super) arrived: u64,
    /// Messages that the peer said it has sent in all.
    pub(super) peer_total: Option<u64>,
    pub(super) peer_closed: bool,
    pub(super) over: Option<Failure>,
    pub(super) counts: MessageStats,

    /// What the driver is to do with lanes.
    pub(super) commands: VecDeque<LaneCommand>,
    /// Answers that wait to be written.
    pub(super) answers: u32,
    /// What was posted last was a replay.
    pub(super) replayed_last: bool,
    /// When the watchdog looks next; `None` while nothing is under way.
    pub(super) watch_at: Option<Time>,
    /// Work requests acknowledged, by class.
    pub(super) delivered: [u64; 3],
    /// Their sum at the watchdog's last look, and since when it has not grown.
    pub(super) last_total: u64,
    pub(super) silent_since: Time,
    pub(super) peer_suspect: bool,
    /// Lanes to probe.
    pub(super) probes: VecDeque<u16>,
    pub(super) lost: Vec<u16>,
    /// Lanes that flushed what was posted, and nobody has said why.
    pub(super) unexplained: Vec<u16>,
    /// How each pair of ports is doing.
    pub(super) ways: PerWay<Health>,
    pub(super) flaps: PerWay<Flaps>,
    /// When lanes are to be made or looked at.
    pub(super) rebuild_at: Option<Time>,
    pub(super) words: Words,
    /// Ports that our operator took out of use, and the last that was heard of the peer's.
    pub(super) drained: [bool; MAX_PORTS],
    pub(super) drains_heard: [u16; MAX_PORTS],
    /// Spreads what many sessions do at the same moment.
    pub(super) rng: fastrand::Rng,
}

impl Session {
    /// Bytes of control memory that a session with this many control lanes needs.
    pub fn control_bytes(config: &SessionConfig, control_lanes: usize) -> usize {
        let config = config.clamped();
        control_lanes * 2 * config.control_slots as usize * config.slot_bytes() as usize
    }

    /// A session without lanes. `control` is memory for the slots of all control lanes, registered as
    /// `control_mr`; `local_ports` (1..=8) is the number of ports of this end's backend.
    pub fn new(config: SessionConfig, control: Region, control_mr: MrId, local_ports: usize) -> Session {
        let config = config.clamped();
        let slot_bytes = config.slot_bytes();
        Session {
            config,
            slot_bytes,
            control,
            control_mr,
            local_ports: local_ports.clamp(1, MAX_PORTS),
            lanes: Vec::new(),
            by_id: Vec::new(),
            by_peer: vec![NO_LANE; MAX_LANES],
            blocks: 0,
            classes: Class::ALL.map(ClassState::new),
            channels: Channels::new(config.channels, config.max_channels),
            outgoing: Slab::new(config.max_sends),
            chunks: ChunkTable::new(),
            grants: Slab::new(SLOTS),
            tx_ahead: 0,
            send_slots: SendSlots::default(),
            budgets: Budgets::new(),
            announcements: 0,
            eager_limit: u32::from(config.eager_buffers),
            eager_used: 0,
            incoming: Slab::new(config.max_receives),
            slots: Slots::new(config.slots),
            bits: BitPool::default(),
            slotless: VecDeque::with_capacity(WORKING),
            rx_ahead: 0,
            pool: EagerPool::new(config.eager_buffers, config.eager_max),
            repost: VecDeque::new(),
            done: VecDeque::with_capacity(WORKING),
            events: VecDeque::with_capacity(256),
            scratch: vec![0; slot_bytes as usize],
            now: Time::ZERO,
            retry_at: None,
            started: false,
            closing: false,
            goodbye: Goodbye::No,
            accepted: 0,
            arrived: 0,
            peer_total: None,
            peer_closed: false,
            over: None,
            counts: MessageStats::default(),
            commands: VecDeque::with_capacity(16),
            answers: 0,
            replayed_last: false,
            watch_at: None,
            delivered: [0; 3],
            last_total: 0,
            silent_since: Time::ZERO,
            peer_suspect: false,
            probes: VecDeque::new(),
            lost: Vec::new(),
            unexplained: Vec::new(),
            ways: [[Health::Healthy; MAX_PORTS]; MAX_PORTS],
            flaps: PerWay::default(),
            rebuild_at: None,
            words: Words::default(),
            drained: [false; MAX_PORTS],
            drains_heard: [0; MAX_PORTS],
            rng: fastrand::Rng::with_seed(config.nonce),
        }
    }

    /// Adds a connected lane. Off the hot path: may allocate.
    ///
    /// # Errors
    /// [`Refused::Role`] if the role is out of range, its number is taken, or the control memory is used up.
    pub fn add_lane(&mut self, lane: LaneId, role: LaneRole) -> Result<(), Refused> {
        let taken = |index: u16| self.lanes.get(index as usize).is_some();
        if usize::from(role.peer_index) >= MAX_LANES
            || usize::from(role.peer_port) >= MAX_PORTS
            || usize::from(role.port.0) >= MAX_PORTS
            || !(256..=4096).contains(&role.mtu)
            || !role.mtu.is_power_of_two()
            || taken(self.by_peer[usize::from(role.peer_index)])
            || self.lane_of(lane).is_some()
            || self.lanes.len() >= usize::from(NO_LANE)
        {
            return Err(Refused::Role);
        }
        let class = &mut self.classes[role.class.index()];
        let list = match role.kind {
            LaneKind::Control => &mut class.control,
            LaneKind::Data => &mut class.data,
        };
        let place = list.len();
        if place >= MAX_CLASS_LANES {
            return Err(Refused::Role);
        }
        let mut block = 0;
        if role.kind == LaneKind::Control {
            let half = u64::from(self.config.control_slots) * u64::from(self.slot_bytes);
            block = self.blocks * 2 * half;
            if block + 2 * half > self.control.len() as u64 {
                return Err(Refused::Role);
            }
            self.blocks += 1;
            for i in 0..u64::from(self.config.control_slots) {
                self.send_slots.add(block + half + i * u64::from(self.slot_bytes));
            }
            class.control_live += 1;
        } else {
            class.data_live += 1;
        }
        let index = self.lanes.len() as u16;
        list.push(index);
        class.down = class.control_live == 0 || (class.data_live == 0 && !class.data.is_empty());
        let made = Lane::new(lane, role, place as u16, block, &self.config);
        if role.kind == LaneKind::Data {
            class.refresh(&made, self.config.send_depth);
        }
        self.lanes.push(made);
        self.name(lane, index);
        self.by_peer[usize::from(role.peer_index)] = index;
        // Any of them may be in these lists, once.
        let lanes = self.lanes.len();
        self.repost.reserve(lanes.saturating_sub(self.repost.len()));
        self.lost.reserve(lanes);
        self.probes.reserve(4 * lanes);
        for class in &mut self.classes {
            class.reports.reserve(lanes.saturating_sub(class.reports.len()));
            class.resend.reserve(usize::from(self.config.control_slots));
        }
        if self.started {
            self.want_repost(index);
        }
        Ok(())
    }

    /// Bounds the bytes in flight towards one of the peer's ports, charged as [`charge`](crate::lanes::charge) does.
    pub fn set_peer_budget(&mut self, peer_port: u8, bytes: Option<u64>) {
        self.budgets.set(peer_port, bytes);
    }

    /// Tells the peer how many bytes may be in flight towards one of our ports. Only once both ends are ready.
    pub fn announce_budget(&mut self, port: u8, bytes: Option<u64>) {
        self.announcements = self.announcements.wrapping_add(1);
        self.queue_record(Class::Latency, Pending::Budget { port, number: self.announcements, bytes });
    }

    /// Begins: the receives of all lanes come out of [`Session::poll_post`].
    pub fn start(&mut self, now: Time) {
        self.now = now;
        self.started = true;
        for index in 0..self.lanes.len() as u16 {
            self.want_repost(index);
        }
    }

    /// Ends the session: every operation gets a [`Done`] with `why` at once. The lanes must be fenced or destroyed before,
    /// since the memory of these operations goes back to the user.
    pub fn cancel_all(&mut self, why: Failure) {
        self.end(why);
        for index in 0..self.outgoing.bound() {
            if let Some(m) = self.outgoing.at_mut(index) {
                if std::mem::take(&mut m.in_flight) > 0 {
                    m.part_ended(Fate::Unknown);
                }
                self.finish_failed(index, why);
            }
        }
        self.chunks.clear();
    }

    /// Takes no more sends; says goodbye to the peer once everything sent is acknowledged.
    pub fn close(&mut self, now: Time) {
        self.now = now;
        self.closing = true;
        self.say_goodbye();
    }

    /// Queues the goodbye if it is time.
    pub(super) fn say_goodbye(&mut self) {
        if self.closing && self.goodbye == Goodbye::No && self.outgoing.len() == 0 && self.over.is_none() {
            self.goodbye = Goodbye::Queued;
            self.queue_record(Class::Latency, Pending::Bye);
        }
    }

    /// True when the goodbye is acknowledged or the session is over, and nothing of ours is under way.
    pub fn is_drained(&self) -> bool {
        (self.over.is_some() || self.goodbye == Goodbye::Acked) && self.outgoing.len() == 0
    }

    /// Why the session is over, if it is.
    pub fn failure(&self) -> Option<Failure> {
        self.over
    }

    /// The session cannot go on: no more posts, and every operation ends with `why`. Operations with bytes in flight end
    /// when their lanes have flushed.
    pub(super) fn end(&mut self, why: Failure) {
        if self.over.is_some() {
            return;
        }
        self.over = Some(why);
        self.watch_at = None;
        self.retry_at = None;
        self.rebuild_at = None;
        self.events.push_back(Event::Failed(why));
        for index in 0..self.incoming.bound() {
            if self.incoming.at(index).is_some() {
                self.end_receive(index, Err(why));
            }
        }
        for index in 0..self.outgoing.bound() {
            if self.outgoing.at(index).is_some() {
                self.fail_send(index, why);
            }
        }
        // Nobody will say what became of these.
        for id in self.chunks.lost() {
            self.chunk_settled(id, Fate::Unknown);
        }
        for class in &mut self.classes {
            class.records.clear();
            class.held.clear();
            class.reports.clear();
            class.resend.clear();
            class.replay.clear();
            class.push = false;
        }
        self.repost.clear();
        self.slotless.clear();
    }

    /// The next operation that is over.
    pub fn poll_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Session::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.retry_at, self.watch_at, self.rebuild_at].into_iter().flatten().min()
    }

    /// Runs the timers that are due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.now = now;
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            for index in 0..self.lanes.len() as u16 {
                self.lanes[index as usize].full = false;
                self.lane_changed(index);
            }
        }
        if self.over.is_none() {
            self.watch();
            self.rebuild();
        }
    }

    /// Notes that a lane's queue is full.
    pub(super) fn lane_full(&mut self, index: u16) {
        self.lanes[index as usize].full = true;
        self.lane_changed(index);
        self.retry_at(RETRY);
    }

    /// Asks to be called again after `span`.
    pub(super) fn retry_at(&mut self, span: Span) {
        let at = self.now + span;
        self.retry_at = Some(self.retry_at.map_or(at, |t| t.min(at)));
    }

    /// Brings what depends on a lane's state up to date.
    pub(super) fn lane_changed(&mut self, index: u16) {
        let lane = &self.lanes[index as usize];
        if lane.role.kind == LaneKind::Data {
            self.classes[lane.role.class.index()].refresh(lane, self.config.send_depth);
        }
        if lane.credits.missing > 0 && lane.is_usable() {
            self.want_repost(index);
        }
    }

    /// Puts a lane on the list of those that miss receives.
    pub(super) fn want_repost(&mut self, index: u16) {
        let lane = &mut self.lanes[index as usize];
        if self.started && !lane.in_repost && lane.dead.is_none() {
            lane.in_repost = true;
            self.repost.push_back(index);
        }
    }

    /// The session's index of a backend's lane.
    #[inline]
    pub(super) fn lane_of(&self, id: LaneId) -> Option<u16> {
        let index = *self.by_id.get(id.index())?;
        (self.lanes.get(index as usize)?.id == id).then_some(index)
    }

    /// The class whose control lanes carry records that would best go by `class`.
    pub(super) fn control_class(&self, class: Class) -> Option<usize> {
        let live = |c: &usize| self.classes[*c].control_live > 0;
        Some(class.index()).filter(live).or_else(|| (0..3).find(live))
    }

    /// Queues a record for the control lanes of `class`, or of another one if it has none left.
    pub(super) fn queue_record(&mut self, class: Class, record: Pending) {
        if self.over.is_none() {
            self.classes[class.index()].records.push_back(record);
        }
    }

    /// Queues a grant. It waits a little for others to travel with, unless the peer has fewer left than wait here.
    pub(super) fn queue_grant(&mut self, class: Class, receive: Key, last: bool) {
        if self.over.is_some() {
            return;
        }
        let c = class.index();
        if last {
            self.classes[c].held_until = self.now;
        } else if self.classes[c].held.is_empty() {
            self.classes[c].held_until = self.now + HOLD;
        }
        self.classes[c].held.push_back(receive);
    }

    /// Queues the grants that waited if it is time, or if something else goes out anyway.
    pub(super) fn flush_grants(&mut self, c: usize) {
        let state = &mut self.classes[c];
        if state.held.is_empty() {
            return;
        }
        let company = !state.records.is_empty() || !state.eager.is_empty() || !state.reports.is_empty() || state.push;
        if !company && self.now < state.held_until {
            // One timer serves all; whoever else it rang for, it must ring again.
            let left = state.held_until.since(self.now);
            self.retry_at(left);
            return;
        }
        while let Some(key) = state.held.pop_front() {
            if let Some(r) = self.incoming.get_mut(key) {
                self.channels.at(r.channel).held = 0;
            }
            state.records.push_back(Pending::Grant(key));
        }
    }

    /// Connected lanes on a local port. Off the hot path.
    pub fn lanes_on(&self, port: PortId) -> impl Iterator<Item = LaneId> {
        self.lanes.iter().filter(move |l| l.role.port == port && l.is_up()).map(|l| l.id)
    }

    /// Channels that exist.
    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    /// A snapshot.
    pub fn stats(&self) -> SessionStats {
        let mut stats = SessionStats { messages: self.counts, ..SessionStats::default() };
        for lane in self.lanes.iter().map(Lane::stats) {
            if let Some(port) = stats.ports.get_mut(usize::from(lane.port.0)) {
                port.bytes += lane.bytes;
                port.chunks += lane.chunks;
                port.retransmits += lane.retransmits;
                port.in_flight += lane.in_flight;
            }
            stats.lanes.push(lane);
        }
        stats
    }
}
