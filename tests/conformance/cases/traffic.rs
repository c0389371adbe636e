//! Random traffic over many lanes at once: every byte compared, everything completed exactly once.

use std::collections::{BTreeMap, VecDeque};

use planespray::class::Class;
use planespray::lanes::{Completed, Completion, LaneId, Lanes, Op, Status};
use planespray::time::Span;

use crate::rig::{ALL, Memory, NOTHING, PATIENCE, Pair, Rig, Shape};

/// Bytes behind each slot's message that must stay zero.
const GUARD: usize = 16;

/// How much traffic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) lanes_per_port: usize,
    /// Requests of each lane and direction.
    pub(crate) requests: usize,
    /// Longest message.
    pub(crate) longest: usize,
    /// Messages that one lane and direction has under way.
    pub(crate) slots: usize,
    /// Every message has this length.
    pub(crate) length: Option<usize>,
    pub(crate) atomics: bool,
}

impl Default for Load {
    fn default() -> Self {
        Load { lanes_per_port: 3, requests: 40, longest: 64 << 10, slots: 6, length: None, atomics: true }
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) retransmits: u64,
    /// Requests with a round trip.
    pub(crate) timed: u64,
    pub(crate) marks: u64,
    pub(crate) took: Span,
}

/// Few lanes, long messages.
pub(crate) fn few_lanes<L: Lanes>(rig: &mut Rig<L>) {
    traffic(rig, 1);
    rig.assert_no_events();
}

/// Sixty-four lanes, short messages.
pub(crate) fn many_lanes<L: Lanes>(rig: &mut Rig<L>) {
    let lanes_per_port = 64 / usize::from(rig.ports());
    run(rig, 2, Load { lanes_per_port, requests: 12, longest: 6000, slots: 3, ..Load::default() });
    rig.assert_no_events();
}

/// Random traffic of ordinary size.
pub(crate) fn traffic<L: Lanes>(rig: &mut Rig<L>, seed: u64) -> Tally {
    run(rig, seed, Load::default())
}

/// Random traffic in both directions on every port, until all of it is done.
pub(crate) fn run<L: Lanes>(rig: &mut Rig<L>, seed: u64, load: Load) -> Tally {
    let mut traffic = Traffic::new(rig, seed, load);
    let start = rig.now;
    let mut progress = rig.now;
    while !traffic.done() {
        traffic.post(rig);
        rig.step(rig.now + Span::from_millis(10));
        for end in 0..2 {
            while let Some(c) = rig.next_arrived(end) {
                traffic.arrived(rig, end, &c);
                progress = rig.now;
            }
        }
        let waited = rig.now.since(progress);
        assert!(waited < PATIENCE, "seed {seed}: nothing completed for {waited:?}: {}", traffic.left());
    }
    traffic.tally.took = rig.now.since(start);
    traffic.finish(rig)
}

struct Traffic {
    seed: u64,
    load: Load,
    stride: usize,
    rng: fastrand::Rng,
    flows: Vec<Flow>,
    pairs: Vec<Pair>,
    by_lane: [BTreeMap<u32, usize>; 2],
    serial: u64,
    tally: Tally,
}

/// One direction of one pair.
struct Flow {
    from: usize,
    pair: Pair,
    window: planespray::lanes::Window,
    /// Slots that requests read from and place into, at the end that posts.
    own: Memory,
    /// Slots that the peer's requests use, open to it.
    open: Memory,
    /// Slots of the receives.
    inbox: Memory,
    left: usize,
    free: Vec<usize>,
    /// For each slot, how much still needs it.
    holds: Vec<u8>,
    /// Requests that have not completed, oldest first.
    pending: VecDeque<Job>,
    /// What the peer's receives will see, oldest first.
    expected: VecDeque<Expected>,
    /// Receives posted and not yet used, oldest first: their slots.
    receives: VecDeque<usize>,
    /// Receives that requests may still use.
    credit: usize,
    /// What the words for atomics hold once everything posted is done.
    words: [u64; 2],
}

#[derive(Clone, Copy, Debug)]
struct Job {
    serial: u64,
    kind: Kind,
    slot: usize,
    len: usize,
    /// Of an atomic: what it will find.
    before: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Send,
    Write,
    WriteImm,
    Read,
    Add,
    Swap,
}

#[derive(Clone, Copy, Debug)]
struct Expected {
    serial: u64,
    imm: Option<u32>,
    slot: usize,
    len: usize,
}

impl Traffic {
    fn new<L: Lanes>(rig: &mut Rig<L>, seed: u64, load: Load) -> Traffic {
        let mut rng = fastrand::Rng::with_seed(seed);
        let stride = (load.longest + GUARD).next_multiple_of(128);
        let bytes = load.slots * stride;
        let mut traffic = Traffic {
            seed,
            load,
            stride,
            rng: rng.fork(),
            flows: Vec::new(),
            pairs: Vec::new(),
            by_lane: Default::default(),
            serial: seed << 20,
            tally: Tally::default(),
        };
        for i in 0..load.lanes_per_port * usize::from(rig.ports()) {
            let pair = rig.join(Shape {
                port: (i % usize::from(rig.ports())) as u8,
                send_depth: rng.u16(2..12),
                receive_depth: load.slots as u16,
                class: Class::ALL[i % 3],
                entropy: i as u16,
                ..Shape::default()
            });
            for from in 0..2 {
                let own = rig.memory(from, bytes);
                let open = rig.memory(1 - from, bytes + 16);
                let inbox = rig.memory(1 - from, bytes);
                let window = rig.open(1 - from, &open, 0, bytes as u64 + 16, ALL);
                traffic.by_lane[from].insert(pair.lane[from].0, traffic.flows.len());
                traffic.flows.push(Flow {
                    from,
                    pair,
                    window,
                    own,
                    open,
                    inbox,
                    left: load.requests,
                    free: (0..load.slots).collect(),
                    holds: vec![0; load.slots],
                    pending: VecDeque::new(),
                    expected: VecDeque::new(),
                    receives: VecDeque::new(),
                    credit: 0,
                    words: [0; 2],
                });
                let flow = traffic.flows.last_mut().expect("just pushed");
                for slot in 0..load.slots {
                    flow.post_receive(rig, slot, stride);
                }
            }
            traffic.pairs.push(pair);
        }
        traffic
    }

    fn done(&self) -> bool {
        self.flows.iter().all(|f| f.left == 0 && f.pending.is_empty() && f.expected.is_empty())
    }

    /// Posts a few requests on lanes chosen at random.
    fn post<L: Lanes>(&mut self, rig: &mut Rig<L>) {
        for _ in 0..self.rng.usize(0..=self.flows.len()) {
            let i = self.rng.usize(..self.flows.len());
            self.post_on(rig, i);
        }
    }

    fn post_on<L: Lanes>(&mut self, rig: &mut Rig<L>, i: usize) {
        let kinds = if self.load.atomics && rig.can.atomics { 10 } else { 8 };
        let kind = match self.rng.u8(..kinds) {
            0 | 1 => Kind::Send,
            2 | 3 => Kind::Write,
            4 | 5 => Kind::WriteImm,
            6 | 7 => Kind::Read,
            8 => Kind::Add,
            _ => Kind::Swap,
        };
        let atomic = matches!(kind, Kind::Add | Kind::Swap);
        let mtu = self.flows[i].pair.mtu as usize;
        let len = if atomic { 8 } else { self.length(mtu) };
        let flow = &mut self.flows[i];
        let needs_receive = matches!(kind, Kind::Send | Kind::WriteImm);
        if flow.left == 0 || flow.free.is_empty() || needs_receive && flow.credit == 0 {
            return;
        }
        let pick = self.rng.usize(..flow.free.len());
        let slot = flow.free[pick];
        let at = (slot * self.stride) as u64;
        let serial = self.serial + 1;
        let mut job = Job { serial, kind, slot, len, before: 0 };
        let words = (self.load.slots * self.stride) as u64;
        let (op, to) = match kind {
            Kind::Send => (Op::Send, at),
            Kind::Write => (Op::Write, at),
            Kind::WriteImm => (Op::WriteImm(imm(serial)), at),
            Kind::Read => (Op::Read, at),
            Kind::Add => {
                job.before = flow.words[0];
                (Op::FetchAdd(self.rng.u64(..)), words)
            }
            Kind::Swap => {
                job.before = flow.words[1];
                // One in three expects the wrong value.
                let expect = if self.rng.u8(..3) == 0 { job.before ^ 1 } else { job.before };
                (Op::CompareSwap(expect, self.rng.u64(..)), words + 8)
            }
        };
        let lane = flow.pair.lane[flow.from];
        if !rig.has_room(flow.from, lane, op, len as u32) {
            return;
        }
        match kind {
            Kind::Read => {
                flow.open.fill(at, len, serial);
                flow.own.zero(at, len + GUARD);
            }
            Kind::Add | Kind::Swap => flow.own.zero(at, 8 + GUARD),
            _ => {
                flow.own.fill(at, len, serial);
                flow.open.zero(at, len + GUARD);
            }
        }
        let local = if len == 0 { NOTHING } else { flow.own.at(at, len as u32) };
        let Ok(_) = rig.try_post(flow.from, lane, op, local, flow.pair.at(&flow.window, to)) else {
            assert!(!flow.pending.is_empty(), "seed {}: an idle queue is full", self.seed);
            return;
        };
        self.serial = serial;
        match op {
            Op::FetchAdd(add) => flow.words[0] = flow.words[0].wrapping_add(add),
            Op::CompareSwap(expect, swap) if expect == flow.words[1] => flow.words[1] = swap,
            _ => {}
        }
        flow.free.swap_remove(pick);
        flow.holds[slot] = 1;
        flow.left -= 1;
        flow.pending.push_back(job);
        if needs_receive {
            flow.credit -= 1;
            flow.holds[slot] += u8::from(kind == Kind::WriteImm);
            let imm = (kind == Kind::WriteImm).then(|| imm(serial));
            flow.expected.push_back(Expected { serial, imm, slot, len });
        }
        self.tally.requests += 1;
        self.tally.bytes += len as u64;
    }

    fn length(&mut self, mtu: usize) -> usize {
        let longest = self.load.longest;
        if let Some(length) = self.load.length {
            return length;
        }
        let len = match self.rng.u8(..20) {
            0..5 => self.rng.usize(0..=16),
            5..11 => (mtu * self.rng.usize(1..=4) + self.rng.usize(0..=2)).saturating_sub(1),
            11..19 => self.rng.usize(0..=8192),
            _ => self.rng.usize(0..=longest),
        };
        len.min(longest)
    }

    fn arrived<L: Lanes>(&mut self, rig: &mut Rig<L>, end: usize, c: &Completion) {
        let seed = self.seed;
        assert_eq!(c.status, Status::Success, "seed {seed}, end {end}: {c:?}");
        if c.what == Completed::Request {
            self.tally.retransmits += u64::from(c.retransmits);
            self.tally.timed += u64::from(c.rtt.is_some());
            self.tally.marks += c.marks.map_or(0, |m| u64::from(m.ce));
            let i = self.by_lane[end][&c.lane.0];
            self.flows[i].request_done(self.stride, &format!("seed {seed}, flow {i}"));
        } else {
            let i = self.by_lane[1 - end][&peer(&self.pairs, end, c.lane).0];
            let flow = &mut self.flows[i];
            let slot = flow.message_came(&c.what, self.stride, &format!("seed {seed}, flow {i}"));
            flow.post_receive(rig, slot, self.stride);
        }
    }

    fn left(&self) -> String {
        let stuck = self.flows.iter().enumerate().filter(|(_, f)| !f.pending.is_empty() || !f.expected.is_empty());
        stuck.map(|(i, f)| format!("\nflow {i}: {:?}, {:?}", f.pending.front(), f.expected.front())).collect()
    }

    /// Ends the lanes and checks the words.
    fn finish<L: Lanes>(self, rig: &mut Rig<L>) -> Tally {
        let words = (self.load.slots * self.stride) as u64;
        for flow in &self.flows {
            assert_eq!([flow.open.word(words), flow.open.word(words + 8)], flow.words, "seed {}", self.seed);
        }
        for pair in &self.pairs {
            rig.part(pair);
        }
        for flow in &self.flows {
            assert!(rig.ends[1 - flow.from].close_window(&flow.window));
            assert!(rig.ends[flow.from].deregister(flow.own.mr));
            assert!(rig.ends[1 - flow.from].deregister(flow.open.mr));
            assert!(rig.ends[1 - flow.from].deregister(flow.inbox.mr));
        }
        self.tally
    }
}

impl Flow {
    fn post_receive<L: Lanes>(&mut self, rig: &mut Rig<L>, slot: usize, stride: usize) {
        let at = (slot * stride) as u64;
        self.inbox.zero(at, stride);
        let to = 1 - self.from;
        rig.receive(to, self.pair.lane[to], Some(self.inbox.at(at, stride as u32)));
        self.receives.push_back(slot);
        self.credit += 1;
    }

    fn request_done(&mut self, stride: usize, what: &str) {
        let job = self.pending.pop_front().unwrap_or_else(|| panic!("{what}: a request too many"));
        let at = (job.slot * stride) as u64;
        let what = format!("{what}: {job:?}");
        match job.kind {
            Kind::Send => {}
            Kind::Write | Kind::WriteImm => self.check_landed(job.slot, job.len, job.serial, stride, &what),
            Kind::Read => {
                self.own.check(at, job.len, job.serial, &what);
                self.own.check_zero(at + job.len as u64, GUARD, &what);
            }
            Kind::Add | Kind::Swap => {
                assert_eq!(self.own.word(at), job.before, "{what}");
                self.own.check_zero(at + 8, GUARD, &what);
            }
        }
        self.release(job.slot);
    }

    /// Checks what a receive of the peer saw, and returns the slot of the receive.
    fn message_came(&mut self, seen: &Completed, stride: usize, what: &str) -> usize {
        let expected = self.expected.pop_front().unwrap_or_else(|| panic!("{what}: a message too many: {seen:?}"));
        let receive = self.receives.pop_front().expect("the rig knows that one was posted");
        let at = (receive * stride) as u64;
        let what = format!("{what}: {expected:?}");
        let Some(imm) = expected.imm else {
            assert_eq!(*seen, Completed::Receive { len: expected.len as u32 }, "{what}");
            self.inbox.check(at, expected.len, expected.serial, &what);
            self.inbox.check_zero(at + expected.len as u64, GUARD, &what);
            return receive;
        };
        assert_eq!(*seen, Completed::Immediate { imm }, "{what}");
        self.inbox.check_zero(at, stride, &what);
        self.check_landed(expected.slot, expected.len, expected.serial, stride, &what);
        // Everything before it on the lane is there too.
        for job in &self.pending {
            if job.kind == Kind::Write && job.serial < expected.serial {
                self.check_landed(job.slot, job.len, job.serial, stride, &format!("{what}, before it {job:?}"));
            }
        }
        self.release(expected.slot);
        receive
    }

    fn check_landed(&self, slot: usize, len: usize, serial: u64, stride: usize, what: &str) {
        let at = (slot * stride) as u64;
        self.open.check(at, len, serial, what);
        self.open.check_zero(at + len as u64, GUARD, what);
    }

    fn release(&mut self, slot: usize) {
        self.holds[slot] -= 1;
        if self.holds[slot] == 0 {
            self.free.push(slot);
        }
    }
}

fn peer(pairs: &[Pair], end: usize, lane: LaneId) -> LaneId {
    let pair = pairs.iter().find(|p| p.lane[end] == lane).expect("a lane of the traffic");
    pair.lane[1 - end]
}

/// An immediate that uses all 32 bits.
fn imm(serial: u64) -> u32 {
    (serial as u32).wrapping_mul(0x9e37_79b1)
}
