//! Two sessions over lanes of an ideal fabric in virtual time: lanes keep their own order, nothing else does.
//!
//! It moves real bytes between regions and is strict: a SEND or immediate without a posted receive, a key that is
//! not open and a byte outside a window each end the test.
#![allow(dead_code, unreachable_pub)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use planespray::class::Class;
use planespray::lanes::{
    Completed, Completion, LaneEvent, LaneId, Local, Marks, MrId, Op, PortId, Receive, Status, Window, WorkRequest,
};
use planespray::mem::Region;
use planespray::spray::{Done, Event, LaneCommand, LaneKind, LaneRole, Post, Session, SessionConfig};
use planespray::time::{Span, Time};

/// One lane of the fabric.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub class: Class,
    pub kind: LaneKind,
    pub port: u8,
    /// One way, in nanoseconds.
    pub delay: u64,
    /// At most this much more, at random.
    pub jitter: u64,
    /// Nanoseconds for 1 KiB; 0: no time.
    pub ns_per_kib: u64,
    /// Packets of 1,000 that get marked.
    pub ce: u32,
    /// Round trip times and marks are reported.
    pub telemetry: bool,
}

impl Link {
    pub fn new(class: Class, kind: LaneKind, port: u8) -> Link {
        Link { class, kind, port, delay: 5_000, jitter: 0, ns_per_kib: 80, ce: 0, telemetry: true }
    }
}

/// `planes` control and `data` data lanes per plane and class.
pub fn links(classes: &[Class], planes: u8, data: usize) -> Vec<Link> {
    let mut links = Vec::new();
    for &class in classes {
        for port in 0..planes {
            links.push(Link::new(class, LaneKind::Control, port));
            links.extend((0..data).map(|_| Link::new(class, LaneKind::Data, port)));
        }
    }
    links
}

pub struct End {
    pub session: Session,
    regions: Vec<Region>,
    windows: HashMap<u32, (usize, u64, u64)>,
    next_key: u32,
    pub dones: Vec<(Time, Done)>,
    pub events: Vec<Event>,
    /// Work requests that were posted, and bytes, by link.
    pub posted: Vec<(u64, u64)>,
}

#[derive(Default)]
struct Direction {
    /// Requests that are not completed.
    open: VecDeque<(u64, bool)>,
    /// Receives posted at the far end.
    receives: VecDeque<Receive>,
    free_at: u64,
    arrived_at: u64,
    acked_at: u64,
    polled_at: u64,
}

enum What {
    Arrive { wr: WorkRequest, at: u64 },
    Complete(Completion),
    Detect,
    Flush,
}

pub struct World {
    pub now: u64,
    pub ends: [End; 2],
    pub links: Vec<Link>,
    dead: Vec<bool>,
    /// Ends whose lane is in ERR: nothing is placed or sent there any more.
    closed: Vec<[bool; 2]>,
    directions: Vec<[Direction; 2]>,
    heap: BinaryHeap<Reverse<(u64, u64)>>,
    pending: HashMap<u64, (usize, usize, What)>,
    seq: u64,
    pub rng: fastrand::Rng,
    /// Of 1,000 posts, how many meet a full queue.
    pub full: u32,
    /// Completions are taken in up to this much later, differently per lane.
    pub poll_delay: u64,
    /// Bytes in flight towards each port of each end, and the most there ever was.
    pub towards: [[u64; 8]; 2],
    pub most: [[u64; 8]; 2],
    pub outstanding_most: u64,
}

const MR_CONTROL: u32 = 0;
const MTU: u32 = 4096;

impl World {
    pub fn new(config: SessionConfig, links: Vec<Link>, seed: u64) -> World {
        let control = links.iter().filter(|l| l.kind == LaneKind::Control).count();
        let end = |side: usize| {
            let memory = Region::alloc(Session::control_bytes(&config, control)).expect("control memory");
            let mut session = Session::new(config, memory.clone(), MrId(MR_CONTROL), 2);
            for (i, link) in links.iter().enumerate() {
                let role = LaneRole {
                    port: PortId(link.port),
                    peer_port: link.port,
                    class: link.class,
                    kind: link.kind,
                    peer_index: i as u16,
                    mtu: MTU,
                    generation: 3,
                };
                session.add_lane(lane_id(side, i), role).expect("a good role");
            }
            End {
                session,
                regions: vec![memory],
                windows: HashMap::new(),
                next_key: 1000 * (side as u32 + 1),
                dones: Vec::new(),
                events: Vec::new(),
                posted: vec![(0, 0); links.len()],
            }
        };
        let mut world = World {
            now: 0,
            ends: [end(0), end(1)],
            dead: vec![false; links.len()],
            closed: vec![[false; 2]; links.len()],
            directions: links.iter().map(|_| Default::default()).collect(),
            links,
            heap: BinaryHeap::new(),
            pending: HashMap::new(),
            seq: 0,
            rng: fastrand::Rng::with_seed(seed),
            full: 0,
            poll_delay: 0,
            towards: [[0; 8]; 2],
            most: [[0; 8]; 2],
            outstanding_most: 0,
        };
        for side in 0..2 {
            world.ends[side].session.start(Time::ZERO);
            world.pump(side);
        }
        world
    }

    pub fn time(&self) -> Time {
        Time::from_nanos(self.now)
    }

    pub fn register(&mut self, side: usize, region: &Region) -> MrId {
        let end = &mut self.ends[side];
        end.regions.push(region.clone());
        MrId(end.regions.len() as u32 - 1)
    }

    /// Opens a window; its keys differ by port.
    pub fn open(&mut self, side: usize, mr: MrId, offset: u64, len: u64) -> Window {
        let end = &mut self.ends[side];
        let mut keys = [0; 8];
        for key in &mut keys[..2] {
            *key = end.next_key;
            end.next_key += 1;
            end.windows.insert(*key, (mr.0 as usize, offset, len));
        }
        Window { addr: address(mr, offset), len, keys }
    }

    pub fn close(&mut self, side: usize, window: &Window) {
        for key in &window.keys[..2] {
            assert!(self.ends[side].windows.remove(key).is_some(), "window closed twice");
        }
    }

    /// Takes everything out of a session and hands it to the lanes.
    pub fn pump(&mut self, side: usize) {
        let now = self.time();
        while let Some(command) = self.ends[side].session.poll_command() {
            match command {
                LaneCommand::Fence(lane) => {
                    let link = link_of(side, lane);
                    self.closed[link][side] = true;
                    // Behind everything that has arrived.
                    let at = self.now.max(self.directions[link][1 - side].polled_at);
                    let at = at.max(self.directions[link][side].acked_at);
                    self.schedule(at, side, link, What::Flush);
                }
                LaneCommand::Destroy(lane) => self.ends[side].session.lane_destroyed(now, lane),
                _ => {}
            }
        }
        while let Some(post) = self.ends[side].session.poll_post(now) {
            if self.rng.u32(..1000) < self.full || !self.post(side, post) {
                self.ends[side].session.posted_full(post);
            }
        }
        while let Some(done) = self.ends[side].session.poll_done() {
            if let Some(window) = done.window {
                self.close(side, &window);
            }
            self.ends[side].dones.push((now, done));
        }
        while let Some(event) = self.ends[side].session.poll_event() {
            self.ends[side].events.push(event);
        }
    }

    fn post(&mut self, side: usize, post: Post) -> bool {
        match post {
            Post::Receive(lane, receive) => {
                let link = link_of(side, lane);
                if self.dead[link] || self.closed[link][side] {
                    return false;
                }
                self.directions[link][1 - side].receives.push_back(receive);
            }
            Post::Work(lane, wr) => {
                let i = link_of(side, lane);
                if self.closed[i][side] {
                    return false;
                }
                let link = self.links[i];
                let d = &mut self.directions[i][side];
                d.open.push_back((wr.id, false));
                let len = u64::from(wr.local.len);
                self.ends[side].posted[i].0 += 1;
                self.ends[side].posted[i].1 += len;
                let towards = &mut self.towards[1 - side][link.port as usize];
                *towards += planespray::lanes::charge(len, MTU);
                self.most[1 - side][link.port as usize] = self.most[1 - side][link.port as usize].max(*towards);
                d.free_at = d.free_at.max(self.now) + (len + 64) * link.ns_per_kib / 1024;
                let jitter = if link.jitter > 0 { self.rng.u64(..link.jitter) } else { 0 };
                d.arrived_at = d.arrived_at.max(d.free_at + link.delay + jitter);
                let at = d.arrived_at;
                self.schedule(at, side, i, What::Arrive { wr, at: self.now });
            }
        }
        true
    }

    fn schedule(&mut self, at: u64, side: usize, link: usize, what: What) {
        self.seq += 1;
        self.heap.push(Reverse((at, self.seq)));
        self.pending.insert(self.seq, (side, link, what));
    }

    /// Ends a link at this time: nothing gets through any more, and both ends notice a little later.
    pub fn kill(&mut self, link: usize) {
        if self.dead[link] {
            return;
        }
        self.dead[link] = true;
        for side in 0..2 {
            let at = self.now + 20_000 + self.rng.u64(..20_000);
            self.schedule(at, side, link, What::Detect);
        }
    }

    /// Destroys a lane at one end, without a warning to its session.
    pub fn destroy(&mut self, side: usize, lane: LaneId) {
        let link = link_of(side, lane);
        self.closed[link][side] = true;
        self.directions[link][side].open.clear();
        self.directions[link][1 - side].receives.clear();
        let now = self.time();
        self.ends[side].session.lane_destroyed(now, lane);
        self.pump(side);
    }

    /// Lets one thing happen; false if nothing is left.
    pub fn step(&mut self) -> bool {
        let next = self.heap.peek().map(|Reverse((at, _))| *at);
        for side in 0..2 {
            if let Some(timer) = self.ends[side].session.poll_timeout()
                && next.is_none_or(|at| timer.as_nanos() < at)
            {
                self.now = self.now.max(timer.as_nanos());
                let now = self.time();
                self.ends[side].session.handle_timeout(now);
                self.pump(side);
                return true;
            }
        }
        let Some(Reverse((at, seq))) = self.heap.pop() else { return false };
        self.now = self.now.max(at);
        let (side, link, what) = self.pending.remove(&seq).expect("scheduled");
        match what {
            What::Arrive { wr, at } => self.arrive(side, link, wr, at),
            What::Complete(c) => {
                if c.what == Completed::Request && c.status == Status::Success {
                    if self.dead[link] || self.closed[link][side] {
                        // The acknowledgement is lost.
                        return true;
                    }
                    let open = &mut self.directions[link][side].open;
                    let at = open.iter().position(|o| o.0 == c.id).expect("posted");
                    open.remove(at);
                }
                let now = self.time();
                self.ends[side].session.handle(now, &c);
                self.pump(side);
            }
            What::Detect => {
                let (now, lane) = (self.time(), lane_id(side, link));
                let status = Status::RetryExceeded;
                self.closed[link][side] = true;
                self.ends[side].session.lane_event(now, &LaneEvent::LaneError { lane, status });
                self.pump(side);
            }
            What::Flush => self.flush(side, link),
        }
        true
    }

    fn flush(&mut self, side: usize, link: usize) {
        let now = self.time();
        let lane = lane_id(side, link);
        let mut status = Status::RetryExceeded;
        let requests: Vec<u64> = self.directions[link][side].open.drain(..).map(|o| o.0).collect();
        let receives: Vec<u64> = self.directions[link][1 - side].receives.drain(..).map(|r| r.id).collect();
        for id in requests {
            let c = Completion { lane, id, what: Completed::Request, status, rtt: None, marks: None, retransmits: 1 };
            status = Status::Flushed;
            self.ends[side].session.handle(now, &c);
            self.pump(side);
        }
        for id in receives {
            let what = Completed::Receive { len: 0 };
            let status = Status::Flushed;
            let c = Completion { lane, id, what, status, rtt: None, marks: None, retransmits: 0 };
            self.ends[side].session.handle(now, &c);
            self.pump(side);
        }
    }

    fn arrive(&mut self, side: usize, link: usize, wr: WorkRequest, posted: u64) {
        let far = 1 - side;
        let spec = self.links[link];
        let len = u64::from(wr.local.len);
        let towards = &mut self.towards[far][spec.port as usize];
        *towards -= planespray::lanes::charge(len, MTU);
        if self.dead[link] || self.closed[link][far] {
            return;
        }
        let mut bytes = vec![0; len as usize];
        let completed = match wr.op {
            Op::Send => {
                let to = self.directions[link][side].receives.pop_front().expect("RNR: a SEND without a receive");
                let local = to.local.expect("a receive with a buffer");
                assert!(len <= u64::from(local.len), "SEND longer than its receive");
                self.read(side, &wr.local, &mut bytes);
                self.ends[far].regions[local.mr.0 as usize].write_at(local.offset, &bytes).expect("in bounds");
                Some((to.id, Completed::Receive { len: wr.local.len }))
            }
            Op::Write if len == 0 => None,
            Op::Write | Op::WriteImm(_) => {
                self.read(side, &wr.local, &mut bytes);
                let Some((region, at)) = self.window(far, spec.port, &wr) else { return self.kill(link) };
                region.write_at(at, &bytes).expect("in bounds");
                match wr.op {
                    Op::WriteImm(imm) => {
                        let to = self.directions[link][side].receives.pop_front();
                        Some((to.expect("RNR: an immediate without a receive").id, Completed::Immediate { imm }))
                    }
                    _ => None,
                }
            }
            Op::Read => {
                let Some((region, at)) = self.window(far, spec.port, &wr) else { return self.kill(link) };
                region.read_at(at, &mut bytes).expect("in bounds");
                self.ends[side].regions[wr.local.mr.0 as usize].write_at(wr.local.offset, &bytes).expect("in bounds");
                None
            }
            _ => panic!("unexpected {:?}", wr.op),
        };
        let slack = |rng: &mut fastrand::Rng, most: u64| if most > 0 { rng.u64(..most) } else { 0 };
        if let Some((id, what)) = completed {
            let delay = slack(&mut self.rng, self.poll_delay);
            let d = &mut self.directions[link][side];
            d.polled_at = d.polled_at.max(self.now + delay);
            let at = d.polled_at;
            let lane = lane_id(far, link);
            let status = Status::Success;
            let c = Completion { lane, id, what, status, rtt: None, marks: None, retransmits: 0 };
            self.schedule(at, far, link, What::Complete(c));
        }
        let packets = len.div_ceil(u64::from(MTU)).max(1) as u32;
        let ce = (0..packets).filter(|_| self.rng.u32(..1000) < spec.ce).count() as u32;
        let delay = slack(&mut self.rng, self.poll_delay);
        let d = &mut self.directions[link][side];
        d.acked_at = d.acked_at.max(self.now + spec.delay + delay);
        let at = d.acked_at;
        let (what, status) = (Completed::Request, Status::Success);
        let rtt = spec.telemetry.then(|| Span::from_nanos(at - posted));
        let marks = spec.telemetry.then_some(Marks { packets, ce });
        let c = Completion { lane: lane_id(side, link), id: wr.id, what, status, rtt, marks, retransmits: 0 };
        self.schedule(at, side, link, What::Complete(c));
    }

    fn read(&self, side: usize, local: &Local, bytes: &mut [u8]) {
        self.ends[side].regions[local.mr.0 as usize].read_at(local.offset, bytes).expect("in bounds");
    }

    /// Region and offset that a remote access means, after every check that a backend makes. A closed key ends the lane;
    /// only a session that is over may have closed one that is still in use.
    fn window(&self, far: usize, port: u8, wr: &WorkRequest) -> Option<(Region, u64)> {
        let Some(&(mr, offset, len)) = self.ends[far].windows.get(&wr.remote.rkey) else {
            assert!(self.ends[far].session.failure().is_some(), "a key that is not open");
            return None;
        };
        assert_eq!(wr.remote.rkey % 2, u32::from(port), "the key of another port");
        let start = address(MrId(mr as u32), offset);
        let into = wr.remote.addr.checked_sub(start).expect("above the window's start");
        assert!(into + u64::from(wr.local.len) <= len, "outside the window");
        Some((self.ends[far].regions[mr].clone(), offset + into))
    }

    /// Runs until nothing happens any more.
    pub fn run(&mut self) {
        let mut steps = 0u64;
        while self.step() {
            steps += 1;
            assert!(steps < 20_000_000, "it never ends");
        }
    }

    /// Runs until a time.
    pub fn run_until(&mut self, at: u64) {
        while self.heap.peek().is_some_and(|Reverse((t, _))| *t <= at) {
            self.step();
        }
        self.now = self.now.max(at);
    }
}

fn address(mr: MrId, offset: u64) -> u64 {
    (u64::from(mr.0) + 1) << 40 | offset
}

fn lane_id(side: usize, link: usize) -> LaneId {
    // Different at both ends, with a generation in the upper half.
    LaneId((side as u32 + 5) << 16 | (link as u32 * 2 + side as u32))
}

fn link_of(side: usize, lane: LaneId) -> usize {
    let link = (lane.index() - side) / 2;
    assert_eq!(lane_id(side, link), lane, "a lane of the other end");
    link
}

/// The `i`th byte of message `seed`.
pub fn pattern(seed: u64, i: u64) -> u8 {
    ((seed.wrapping_mul(31).wrapping_add(i)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 41) as u8
}

pub fn filled(seed: u64, len: u64) -> Region {
    Region::from_vec((0..len).map(|i| pattern(seed, i)).collect())
}
