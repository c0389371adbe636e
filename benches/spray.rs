//! What the spraying machine itself costs: two sessions over lanes that deliver at once and move no payload.
//!
//! One element is one chunk, or one eager message, everything included at both ends: choice, post, arrival, bitmap,
//! receive posted again, credit, acknowledgement.

use std::collections::VecDeque;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use planespray::class::Class;
use planespray::lanes::{Completed, Completion, LaneId, Marks, MrId, Op, PortId, Receive, Status, Window, WorkRequest};
use planespray::mem::Region;
use planespray::spray::{LaneKind, LaneRole, Post, Recv, Send, Session, SessionConfig, Source};
use planespray::time::{Span, Time};

struct Pair {
    sessions: [Session; 2],
    control: [Region; 2],
    receives: [Vec<VecDeque<Receive>>; 2],
    works: [VecDeque<(LaneId, WorkRequest)>; 2],
    now: u64,
    done: [u64; 2],
    chunks: u64,
}

const CONTROL_LANES: u32 = 2;

impl Pair {
    fn new(data: u32) -> Pair {
        let config = SessionConfig { channels: 4, ..SessionConfig::default() };
        let control: [Region; 2] = std::array::from_fn(|_| {
            Region::alloc(Session::control_bytes(&config, CONTROL_LANES as usize)).expect("memory")
        });
        let sessions = std::array::from_fn(|side: usize| {
            let mut session = Session::new(config, control[side].clone(), MrId(0), 1);
            for i in 0..CONTROL_LANES + data {
                let role = LaneRole {
                    port: PortId((i % 2) as u8),
                    peer_port: (i % 2) as u8,
                    class: Class::Bulk,
                    kind: if i < CONTROL_LANES { LaneKind::Control } else { LaneKind::Data },
                    peer_index: i as u16,
                    mtu: 4096,
                    generation: 0,
                };
                session.add_lane(LaneId(i), role).expect("a lane");
            }
            session.start(Time::ZERO);
            session
        });
        let receives = std::array::from_fn(|_| (0..CONTROL_LANES + data).map(|_| VecDeque::new()).collect());
        let mut pair = Pair { sessions, control, receives, works: Default::default(), now: 0, done: [0; 2], chunks: 0 };
        for side in 0..2 {
            pair.drain(side);
        }
        pair
    }

    fn drain(&mut self, side: usize) {
        let now = Time::from_nanos(self.now);
        while let Some(post) = self.sessions[side].poll_post(now) {
            match post {
                Post::Receive(lane, r) => self.receives[side][lane.index()].push_back(r),
                Post::Work(lane, wr) => self.works[side].push_back((lane, wr)),
            }
        }
        while let Some(done) = self.sessions[side].poll_done() {
            assert!(done.result.is_ok());
            self.done[side] += 1;
        }
    }

    /// Delivers everything posted, in batches as an engine does.
    fn run(&mut self) {
        const BATCH: usize = 16;
        loop {
            let mut idle = true;
            for side in 0..2 {
                let mut batch = 0;
                while let Some((lane, wr)) = self.works[side].pop_front() {
                    idle = false;
                    self.now += 500;
                    let now = Time::from_nanos(self.now);
                    let what = match wr.op {
                        Op::WriteImm(imm) => {
                            self.chunks += 1;
                            Completed::Immediate { imm }
                        }
                        _ => Completed::Receive { len: wr.local.len },
                    };
                    let r = self.receives[1 - side][lane.index()].pop_front().expect("a receive");
                    if let Some(to) = r.local {
                        let len = u64::from(wr.local.len);
                        self.control[side]
                            .copy_to(wr.local.offset, &self.control[1 - side], to.offset, len)
                            .expect("in bounds");
                    }
                    let mut c = Completion {
                        lane,
                        id: r.id,
                        what,
                        status: Status::Success,
                        rtt: None,
                        marks: None,
                        retransmits: 0,
                    };
                    self.sessions[1 - side].handle(now, &c);
                    c.id = wr.id;
                    c.what = Completed::Request;
                    c.rtt = Some(Span::from_nanos(20_000));
                    c.marks = Some(Marks { packets: 15, ce: 0 });
                    self.sessions[side].handle(now, &c);
                    batch += 1;
                    if batch == BATCH {
                        break;
                    }
                }
                self.drain(1 - side);
                self.drain(side);
            }
            if idle {
                return;
            }
        }
    }
}

fn send(region: &Region, len: u64) -> Send {
    let local = Source { mr: MrId(1), region: region.clone(), offset: 0, len };
    Send { channel: 1, class: Class::Bulk, local, token: 0, rendezvous_only: false }
}

fn recv(region: &Region, capacity: u64) -> Recv {
    let window = Window { addr: 4096, len: capacity, keys: [9; 8] };
    Recv { channel: 1, mr: MrId(1), region: region.clone(), offset: 0, capacity, window, token: 0, ordered: false }
}

fn chunks(c: &mut Criterion) {
    const LEN: u64 = 32 << 20;
    let region = Region::alloc(LEN as usize).expect("memory");
    let (s, r) = (send(&region, LEN), recv(&region, LEN));
    let mut group = c.benchmark_group("chunk");
    for lanes in [1, 4, 16, 64, 256] {
        let mut pair = Pair::new(lanes);
        let message = |pair: &mut Pair| {
            let now = Time::from_nanos(pair.now);
            pair.sessions[1].receive(now, &r).expect("taken");
            pair.drain(1);
            pair.sessions[0].send(now, &s).expect("taken");
            pair.drain(0);
            pair.run();
        };
        message(&mut pair);
        let per_message = pair.chunks;
        group.throughput(Throughput::Elements(per_message));
        group.bench_function(BenchmarkId::from_parameter(lanes), |b| b.iter(|| message(black_box(&mut pair))));
        assert_eq!(pair.done[0], pair.done[1]);
    }
    group.finish();
}

fn eager(c: &mut Criterion) {
    const BURST: u64 = 64;
    let region = Region::alloc(4096).expect("memory");
    let (s, r) = (send(&region, 64), recv(&region, 64));
    let mut pair = Pair::new(4);
    let mut group = c.benchmark_group("eager");
    group.throughput(Throughput::Elements(BURST));
    group.bench_function("64 B", |b| {
        b.iter(|| {
            let now = Time::from_nanos(pair.now);
            for _ in 0..BURST {
                pair.sessions[1].receive(now, &r).expect("taken");
                pair.sessions[0].send(now, &s).expect("taken");
            }
            pair.drain(1);
            pair.drain(0);
            pair.run();
        });
    });
    group.finish();
}

criterion_group!(benches, chunks, eager);
criterion_main!(benches);
