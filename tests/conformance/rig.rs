//! Two ends of one backend, lanes between them, and the bookkeeping that every case leans on.
//!
//! Whatever a case does, the rig checks that each request and receive completes exactly once, in the order of
//! posting on its lane, with nothing but `Flushed` after a lane's first error, and that no completion names a lane
//! that is gone.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

use planespray::class::{Class, Dscp};
use planespray::lanes::{
    Completed, Completion, Domain, Full, LaneEvent, LaneId, LaneSpec, Lanes, Local, MAX_PORTS, MrId, Op, PortId,
    Receive, Remote, Status, Window, WindowAccess, WorkRequest, charge,
};
use planespray::mem::Region;
use planespray::time::{Span, Time};

/// How long anything is waited for, by the backend's clock.
pub(crate) const PATIENCE: Span = Span::from_secs(20);
/// The domain of every lane and window that does not say otherwise.
pub(crate) const HOME: Domain = Domain(7);
/// Everything that a window can allow.
pub(crate) const ALL: WindowAccess = WindowAccess { write: true, read: true, atomic: true };

/// What a backend and the network under it can do: a case asks here what it may expect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    /// The network loses, repeats, reorders, marks and corrupts nothing, and time passes only when nothing is to be
    /// done: nothing is ever sent twice.
    pub(crate) exact: bool,
    /// No packet is lost, though one may be sent again where a thread was held up.
    pub(crate) lossless: bool,
    /// Bounds of the round trip of one small request on an idle lane; `None` where none is reported, or where
    /// losses and delays blur it.
    pub(crate) rtt: Option<(Span, Span)>,
    /// Congestion marks are known per lane.
    pub(crate) marks: bool,
    /// The longest that a lane may take to give up a peer that never answers.
    pub(crate) gives_up: Span,
    /// A lane has exactly the depth that was asked for, not more.
    pub(crate) exact_depth: bool,
    /// A window opened for one domain is closed to lanes of another.
    pub(crate) domains: bool,
    /// The network has atomics.
    pub(crate) atomics: bool,
    /// A refused request ends with the status that the specification names, at both ends. Else it may be another one,
    /// the responder may put it on a receive, and the requester's own driver may be the one that refuses.
    pub(crate) exact_errors: bool,
}

/// How a round of the rig ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pass {
    /// Something completed: there may be more at once.
    Busy,
    /// Nothing completed; a backend must be polled then at the latest.
    Idle {
        /// Zero if something waits to be sent.
        wake: Time,
    },
}

/// How a pair of lanes is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) port: u8,
    pub(crate) send_depth: u16,
    pub(crate) receive_depth: u16,
    pub(crate) domain: Domain,
    pub(crate) class: Class,
    pub(crate) entropy: u16,
}

impl Default for Shape {
    fn default() -> Self {
        Shape { port: 0, send_depth: 64, receive_depth: 64, domain: HOME, class: Class::Bulk, entropy: 1 }
    }
}

/// Two connected lanes, one at each end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) lane: [LaneId; 2],
    pub(crate) port: PortId,
    pub(crate) mtu: u32,
}

/// Registered memory of one end.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) mr: MrId,
    pub(crate) region: Region,
}

/// What most cases need: a pair of lanes, and memory at end 1 that end 0 may use in every way.
#[derive(Clone, Debug)]
pub(crate) struct Yard {
    pub(crate) pair: Pair,
    pub(crate) near: Memory,
    pub(crate) far: Memory,
    pub(crate) window: Window,
}

/// Two ends.
pub(crate) struct Rig<L> {
    pub(crate) ends: [L; 2],
    pub(crate) can: Abilities,
    pub(crate) now: Time,
    clock: Box<dyn FnMut(Pass) -> Time>,
    books: [Book; 2],
    next_id: u64,
    rng: fastrand::Rng,
}

/// What one end has posted and what became of it.
#[derive(Default)]
struct Book {
    lanes: BTreeMap<u32, Posted>,
    arrived: VecDeque<Completion>,
    events: VecDeque<LaneEvent>,
    /// Bytes under way towards each of this end's ports, as [`charge`] counts.
    towards: [u64; MAX_PORTS],
    log: Vec<(Time, Completion)>,
}

/// Of one lane: ids that have not completed.
struct Posted {
    port: PortId,
    mtu: u32,
    requests: VecDeque<(u64, Charged)>,
    receives: VecDeque<u64>,
    /// A request, or a receive, has failed: what follows is flushed.
    failed: [bool; 2],
}

/// What a request took from a port's receive budget.
#[derive(Clone, Copy)]
struct Charged {
    end: usize,
    bytes: u64,
}

impl<L: Lanes> Rig<L> {
    /// Two ends of which port `i` of one reaches port `i` of the other. `clock` says what time it is after a round.
    pub(crate) fn new(ends: [L; 2], can: Abilities, seed: u64, clock: impl FnMut(Pass) -> Time + 'static) -> Self {
        let mut rig = Rig {
            ends,
            can,
            now: Time::ZERO,
            clock: Box::new(clock),
            books: Default::default(),
            next_id: 1,
            rng: fastrand::Rng::with_seed(seed),
        };
        rig.now = (rig.clock)(Pass::Busy);
        rig
    }

    /// Ports that both ends have.
    pub(crate) fn ports(&self) -> u8 {
        self.ends[0].ports().len().min(self.ends[1].ports().len()) as u8
    }

    /// Zeroed, registered memory at `end`.
    pub(crate) fn memory(&mut self, end: usize, len: usize) -> Memory {
        let region = Region::alloc(len).expect("memory");
        let mr = self.ends[end].register(&region).expect("a registration");
        Memory { mr, region }
    }

    /// A window of `end` over part of its memory.
    #[track_caller]
    pub(crate) fn open(&mut self, end: usize, memory: &Memory, offset: u64, len: u64, access: WindowAccess) -> Window {
        self.ends[end].open_window(HOME, memory.mr, offset, len, access).expect("a window")
    }

    /// An unconnected lane.
    #[track_caller]
    pub(crate) fn create(&mut self, end: usize, shape: Shape) -> LaneId {
        let port = PortId(shape.port);
        let lane = self.ends[end]
            .create(&LaneSpec {
                port,
                domain: shape.domain,
                class: shape.class,
                dscp: Dscp::default(),
                send_depth: shape.send_depth,
                receive_depth: shape.receive_depth,
                entropy: shape.entropy,
            })
            .expect("a lane");
        let posted =
            Posted { port, mtu: 256, requests: VecDeque::new(), receives: VecDeque::new(), failed: [false; 2] };
        let known = self.books[end].lanes.insert(lane.0, posted);
        assert!(known.is_none(), "{lane:?} was given out twice");
        lane
    }

    /// Connects two lanes.
    #[track_caller]
    pub(crate) fn connect(&mut self, lane: [LaneId; 2]) -> Pair {
        let address = [0, 1].map(|end| self.ends[end].address(lane[end]).expect("an address"));
        for (end, &lane) in lane.iter().enumerate() {
            assert_eq!(self.ends[end].lane_mtu(lane), None, "an MTU before the lane is connected");
            self.ends[end].connect(lane, &address[1 - end]).expect("connects");
        }
        let mtu = address[0].mtu.min(address[1].mtu);
        for (end, &lane) in lane.iter().enumerate() {
            assert_eq!(self.ends[end].lane_mtu(lane), Some(mtu));
            self.posted(end, lane).mtu = mtu;
        }
        Pair { lane, port: self.posted(0, lane[0]).port, mtu }
    }

    /// A pair of connected lanes.
    #[track_caller]
    pub(crate) fn join(&mut self, shape: Shape) -> Pair {
        let lane = [self.create(0, shape), self.create(1, shape)];
        self.connect(lane)
    }

    /// A pair with `len` bytes of memory at both ends, end 1's open to end 0.
    #[track_caller]
    pub(crate) fn yard(&mut self, shape: Shape, len: usize) -> Yard {
        let pair = self.join(shape);
        let (near, far) = (self.memory(0, len), self.memory(1, len));
        let window = self.open(1, &far, 0, len as u64, ALL);
        Yard { pair, near, far, window }
    }

    /// Destroys the lane of one end; its completions must not come any more.
    #[track_caller]
    pub(crate) fn destroy(&mut self, end: usize, lane: LaneId) {
        self.ends[end].destroy(lane).expect("destroyed");
        let posted = self.books[end].lanes.remove(&lane.0).expect("a lane of the rig");
        for (_, charged) in posted.requests {
            self.refund(posted.port, charged);
        }
    }

    /// Destroys both lanes.
    #[track_caller]
    pub(crate) fn part(&mut self, pair: &Pair) {
        self.destroy(0, pair.lane[0]);
        self.destroy(1, pair.lane[1]);
    }

    /// Whether the receive budget has room for this request now.
    pub(crate) fn has_room(&self, end: usize, lane: LaneId, op: Op, len: u32) -> bool {
        let posted = &self.books[end].lanes[&lane.0];
        let (to, bytes) = charged(end, op, len, posted.mtu);
        let port = usize::from(posted.port.0);
        self.ends[to].ports()[port].receive_budget.is_none_or(|b| self.books[to].towards[port] + bytes <= b)
    }

    /// Whether a message of `len` bytes fits the receive budgets at all.
    pub(crate) fn fits(&self, pair: &Pair, len: u64) -> bool {
        let port = usize::from(pair.port.0);
        self.ends.iter().all(|e| e.ports()[port].receive_budget.is_none_or(|b| charge(len, pair.mtu) <= b))
    }

    /// Posts a request whatever the budget says.
    pub(crate) fn try_post(
        &mut self,
        end: usize,
        lane: LaneId,
        op: Op,
        local: Local,
        remote: Remote,
    ) -> Result<u64, Full> {
        let id = self.next_id;
        self.next_id += 1;
        self.ends[end].post(lane, &WorkRequest { id, op, local, remote })?;
        let posted = self.posted(end, lane);
        let (port, (to, bytes)) = (posted.port, charged(end, op, local.len, posted.mtu));
        posted.requests.push_back((id, Charged { end: to, bytes }));
        self.books[to].towards[usize::from(port.0)] += bytes;
        Ok(id)
    }

    /// Posts a request as soon as the receive budget allows it.
    #[track_caller]
    pub(crate) fn post(&mut self, end: usize, lane: LaneId, op: Op, local: Local, remote: Remote) -> u64 {
        if !self.has_room(end, lane, op, local.len) {
            self.until("room in the receive budget", |rig| rig.has_room(end, lane, op, local.len).then_some(()));
        }
        self.try_post(end, lane, op, local, remote).unwrap_or_else(|_| panic!("{op:?} on {lane:?} was not taken"))
    }

    /// Posts a receive.
    pub(crate) fn try_receive(&mut self, end: usize, lane: LaneId, local: Option<Local>) -> Result<u64, Full> {
        let id = self.next_id;
        self.next_id += 1;
        self.ends[end].post_receive(lane, &Receive { id, local })?;
        self.posted(end, lane).receives.push_back(id);
        Ok(id)
    }

    /// Posts a receive.
    #[track_caller]
    pub(crate) fn receive(&mut self, end: usize, lane: LaneId, local: Option<Local>) -> u64 {
        self.try_receive(end, lane, local).unwrap_or_else(|_| panic!("a receive on {lane:?} was not taken"))
    }

    /// One round: both ends are polled and sent, and time passes, though not beyond `by`.
    pub(crate) fn step(&mut self, by: Time) {
        let mut busy = false;
        for end in 0..2 {
            busy |= self.poll(end);
            self.ends[end].doorbell(self.now);
        }
        let wake = self.ends.iter().filter_map(Lanes::next_timeout).fold(by, Time::min);
        self.now = (self.clock)(if busy { Pass::Busy } else { Pass::Idle { wake } });
    }

    /// Polls one end into a batch of random size.
    fn poll(&mut self, end: usize) -> bool {
        let mut out = [BLANK; 32];
        let size = self.rng.usize(1..=out.len());
        let got = self.ends[end].poll(self.now, &mut out[..size]);
        assert!(got <= size, "{got} completions in a batch of {size}");
        for completion in &out[..got] {
            self.note(end, completion);
        }
        let mut busy = got > 0;
        while let Some(event) = self.ends[end].poll_event() {
            self.books[end].events.push_back(event);
            busy = true;
        }
        busy
    }

    /// A round in which `end` takes in packets but none of its completions.
    pub(crate) fn step_blind(&mut self, end: usize) {
        let got = self.ends[end].poll(self.now, &mut []);
        assert_eq!(got, 0, "completions in a batch of 0");
        self.ends[end].doorbell(self.now);
        self.poll(1 - end);
        self.ends[1 - end].doorbell(self.now);
        let wake = self.ends.iter().filter_map(Lanes::next_timeout).fold(self.now + Span::from_millis(1), Time::min);
        self.now = (self.clock)(Pass::Idle { wake });
    }

    fn note(&mut self, end: usize, c: &Completion) {
        let book = &mut self.books[end];
        let Some(posted) = book.lanes.get_mut(&c.lane.0) else {
            panic!("end {end}: a completion of a lane that is gone or never was: {c:?}");
        };
        let request = c.what == Completed::Request;
        let due = if request { posted.requests.front().map(|&(id, _)| id) } else { posted.receives.front().copied() };
        assert_eq!(Some(c.id), due, "end {end}: out of order, twice, or never posted: {c:?}");
        let failed = &mut posted.failed[usize::from(!request)];
        if *failed {
            assert_eq!(c.status, Status::Flushed, "end {end}: after an error: {c:?}");
        }
        *failed |= c.status != Status::Success;
        book.arrived.push_back(*c);
        book.log.push((self.now, *c));
        let port = posted.port;
        if request {
            if let Some((_, charged)) = posted.requests.pop_front() {
                self.refund(port, charged);
            }
        } else {
            posted.receives.pop_front();
        }
    }

    fn refund(&mut self, port: PortId, charged: Charged) {
        self.books[charged.end].towards[usize::from(port.0)] -= charged.bytes;
    }

    /// Runs until `ready` has an answer; panics after [`PATIENCE`], saying that `what` was waited for.
    #[track_caller]
    pub(crate) fn until<T>(&mut self, what: &str, mut ready: impl FnMut(&mut Self) -> Option<T>) -> T {
        let (start, deadline) = (self.now, self.now + PATIENCE);
        loop {
            if let Some(t) = ready(self) {
                return t;
            }
            if self.now >= deadline {
                panic!("waited from {start:?} to {:?} for {what}\n{}", self.now, self.outstanding());
            }
            self.step(deadline);
        }
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, span: Span) {
        let end = self.now + span;
        while self.now < end {
            self.step(end);
        }
    }

    /// The completion of `id`, which is taken out.
    #[track_caller]
    pub(crate) fn wait(&mut self, end: usize, id: u64) -> Completion {
        self.until(&format!("the completion of id {id} at end {end}"), |rig| {
            let arrived = &mut rig.books[end].arrived;
            let at = arrived.iter().position(|c| c.id == id)?;
            arrived.remove(at)
        })
    }

    /// The completion of `id`, which must be a success.
    #[track_caller]
    pub(crate) fn success(&mut self, end: usize, id: u64) -> Completion {
        let c = self.wait(end, id);
        assert_eq!(c.status, Status::Success, "end {end}: {c:?}");
        c
    }

    /// Waits for all of `ids`, which must have `status`.
    #[track_caller]
    pub(crate) fn all(&mut self, end: usize, ids: &[u64], status: Status) {
        for &id in ids {
            let c = self.wait(end, id);
            assert_eq!(c.status, status, "end {end}: {c:?}");
        }
    }

    /// Waits for a receive of a lane that ended because of its peer: it has `status`, or any but success where errors
    /// are not exact.
    #[track_caller]
    pub(crate) fn spoiled(&mut self, end: usize, id: u64, status: Status) {
        let c = self.wait(end, id);
        let other = !self.can.exact_errors && c.status != Status::Success;
        assert!(c.status == status || other, "end {end}: {c:?} should have {status:?}");
    }

    /// The `bad`th of some requests of one lane was refused for one of the reasons in `why`: those before it have
    /// succeeded, those after it are flushed, and an event has said so. Returns the reason.
    ///
    /// A responder in ERR says why only once. Where that can get lost, the requester may learn no more than that the
    /// peer has fallen silent.
    #[track_caller]
    pub(crate) fn refused(&mut self, end: usize, lane: LaneId, ids: &[u64], bad: usize, why: &[Status]) -> Status {
        let statuses: Vec<Status> = ids.iter().map(|&id| self.wait(end, id).status).collect();
        let first = statuses.iter().position(|&s| s != Status::Success).unwrap_or(ids.len());
        let status = statuses.get(first).copied().unwrap_or(Status::Success);
        let other = !self.can.exact_errors && !matches!(status, Status::Success | Status::Flushed);
        let told = first == bad && (why.contains(&status) || other);
        let silent = !self.can.lossless && first <= bad && status == Status::RetryExceeded;
        assert!(told || silent, "request {bad} should be refused with {why:?}: {statuses:?}");
        assert_eq!(self.lane_error(end, lane), status);
        status
    }

    /// The completion of `id`, if it has come; it stays.
    pub(crate) fn peek(&self, end: usize, id: u64) -> Option<Completion> {
        self.books[end].arrived.iter().find(|c| c.id == id).copied()
    }

    /// The oldest completion that nobody has taken.
    pub(crate) fn next_arrived(&mut self, end: usize) -> Option<Completion> {
        self.books[end].arrived.pop_front()
    }

    /// The oldest event that nobody has taken.
    #[allow(dead_code)] // not every suite that shares this file
    pub(crate) fn next_event(&mut self, end: usize) -> Option<LaneEvent> {
        self.books[end].events.pop_front()
    }

    /// Why `lane` went to ERR, as an event says.
    #[track_caller]
    pub(crate) fn lane_error(&mut self, end: usize, lane: LaneId) -> Status {
        self.until(&format!("an error event of {lane:?} at end {end}"), |rig| {
            let events = &mut rig.books[end].events;
            let at = events.iter().position(|e| matches!(e, LaneEvent::LaneError { lane: l, .. } if *l == lane))?;
            match events.remove(at) {
                Some(LaneEvent::LaneError { status, .. }) => Some(status),
                _ => None,
            }
        })
    }

    /// Nothing was reported that the case has not asked for.
    #[track_caller]
    pub(crate) fn assert_no_events(&self) {
        for (end, book) in self.books.iter().enumerate() {
            let first: Vec<&LaneEvent> = book.events.iter().take(4).collect();
            assert!(first.is_empty(), "end {end}: {} events, first {first:?}", book.events.len());
        }
    }

    /// Every completion so far and when it was polled.
    pub(crate) fn log(&self, end: usize) -> &[(Time, Completion)] {
        &self.books[end].log
    }

    fn posted(&mut self, end: usize, lane: LaneId) -> &mut Posted {
        self.books[end].lanes.get_mut(&lane.0).unwrap_or_else(|| panic!("end {end} took work for {lane:?}"))
    }

    fn outstanding(&self) -> String {
        let mut text = String::new();
        for (end, book) in self.books.iter().enumerate() {
            let wake = self.ends[end].next_timeout();
            let _ = writeln!(text, "end {end}: next timeout {wake:?}, events {:?}", book.events);
            for (lane, posted) in &book.lanes {
                let requests: Vec<u64> = posted.requests.iter().map(|&(id, _)| id).take(8).collect();
                let (n, receives) = (posted.requests.len(), posted.receives.len());
                let _ = writeln!(text, "  lane {lane:#x}: {n} requests, first {requests:?}; {receives} receives");
            }
        }
        text
    }
}

impl Pair {
    /// Where `offset` of the peer's window is, for a lane that ends at this port.
    pub(crate) fn at(&self, window: &Window, offset: u64) -> Remote {
        Remote { addr: window.addr + offset, rkey: window.keys[usize::from(self.port.0)] }
    }
}

impl Yard {
    /// Where `offset` of the far memory is.
    pub(crate) fn there(&self, offset: u64) -> Remote {
        self.pair.at(&self.window, offset)
    }
}

impl Memory {
    /// Part of it.
    pub(crate) fn at(&self, offset: u64, len: u32) -> Local {
        Local { mr: self.mr, offset, len }
    }

    /// Writes the bytes that `seed` makes.
    pub(crate) fn fill(&self, offset: u64, len: usize, seed: u64) {
        self.region.write_at(offset, &pattern(seed, len)).expect("inside");
    }

    /// Zeroes `len` bytes.
    pub(crate) fn zero(&self, offset: u64, len: usize) {
        self.region.write_at(offset, &vec![0; len]).expect("inside");
    }

    /// The bytes now.
    pub(crate) fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.read_at(offset, &mut bytes).expect("inside");
        bytes
    }

    /// The 8 bytes at `offset` as a number.
    pub(crate) fn word(&self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        self.region.read_at(offset, &mut bytes).expect("inside");
        u64::from_ne_bytes(bytes)
    }

    /// Panics unless these are the bytes that `seed` makes.
    #[track_caller]
    pub(crate) fn check(&self, offset: u64, len: usize, seed: u64, what: &str) {
        same(&self.read(offset, len), &pattern(seed, len), what);
    }

    /// Panics unless these bytes are zero.
    #[track_caller]
    pub(crate) fn check_zero(&self, offset: u64, len: usize, what: &str) {
        same(&self.read(offset, len), &vec![0; len], what);
    }
}

/// Panics with the first difference.
#[track_caller]
pub(crate) fn same(got: &[u8], want: &[u8], what: &str) {
    if let Some(at) = got.iter().zip(want).position(|(a, b)| a != b) {
        let differ = got.iter().zip(want).filter(|(a, b)| a != b).count();
        panic!("{what}: {differ} of {} bytes differ, the first is byte {at}: {} not {}", got.len(), got[at], want[at]);
    }
    assert_eq!(got.len(), want.len(), "{what}");
}

/// `len` bytes that differ from seed to seed, none of them zero.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    for b in &mut bytes {
        *b |= 1;
    }
    bytes
}

/// No bytes.
pub(crate) const NOTHING: Local = Local { mr: MrId(0), offset: 0, len: 0 };
/// For operations that name nothing at the peer.
pub(crate) const NOWHERE: Remote = Remote { addr: 0, rkey: 0 };

const BLANK: Completion = Completion {
    lane: LaneId(0),
    id: 0,
    what: Completed::Request,
    status: Status::Other,
    rtt: None,
    marks: None,
    retransmits: 0,
};

/// Whose port's budget a request draws on, and how much.
fn charged(end: usize, op: Op, len: u32, mtu: u32) -> (usize, u64) {
    let to = if op == Op::Read { end } else { 1 - end };
    (to, charge(u64::from(len), mtu))
}
