//! A peer that says anything at all: no panic, no byte outside what was granted, bounded state, and every operation ends.

use std::collections::VecDeque;

use planespray::class::Class;
use planespray::lanes::{Completed, Completion, LaneId, MrId, Op, PortId, Receive, Status, Window, WorkRequest};
use planespray::mem::Region;
use planespray::spray::{Failure, LaneKind, LaneRole, Post, Recv, Send, Session, SessionConfig, Source, Violation};
use planespray::time::Time;
use proptest::prelude::*;

const NONCE: u64 = 0x1122_3344_5566_7788;
const CONTROL: LaneId = LaneId(1);
const DATA: LaneId = LaneId(2);

/// A session alone with a peer that we play by hand.
struct Lone {
    session: Session,
    memory: Region,
    control: VecDeque<Receive>,
    data: VecDeque<Receive>,
    works: VecDeque<(LaneId, WorkRequest)>,
    done: usize,
}

impl Lone {
    fn new() -> Lone {
        let config = SessionConfig {
            nonce: NONCE,
            control_slots: 16,
            immediates: 16,
            eager_buffers: 4,
            eager_max: 256,
            max_channels: 10,
            ..SessionConfig::default()
        };
        let memory = Region::alloc(Session::control_bytes(&config, 1)).expect("memory");
        let mut session = Session::new(config, memory.clone(), MrId(0), 1);
        let role = LaneRole {
            port: PortId(0),
            peer_port: 0,
            class: Class::Bulk,
            kind: LaneKind::Control,
            peer_index: 0,
            mtu: 1024,
            generation: 1,
        };
        session.add_lane(CONTROL, role).expect("control lane");
        session.add_lane(DATA, LaneRole { kind: LaneKind::Data, peer_index: 1, ..role }).expect("data lane");
        session.start(Time::ZERO);
        let (control, data, works) = Default::default();
        let mut lone = Lone { session, memory, control, data, works, done: 0 };
        lone.drain();
        lone
    }

    fn drain(&mut self) {
        while let Some(post) = self.session.poll_post(Time::ZERO) {
            match post {
                Post::Receive(CONTROL, r) => self.control.push_back(r),
                Post::Receive(_, r) => self.data.push_back(r),
                Post::Work(lane, wr) => self.works.push_back((lane, wr)),
            }
        }
        while self.session.poll_done().is_some() {
            self.done += 1;
        }
    }

    fn complete(&mut self, lane: LaneId, id: u64, what: Completed, status: Status) {
        let c = Completion { lane, id, what, status, rtt: None, marks: None, retransmits: 0 };
        self.session.handle(Time::ZERO, &c);
        self.drain();
    }

    /// The peer's SEND arrives. False if the session posts no receives any more.
    fn message(&mut self, bytes: &[u8]) -> bool {
        let Some(r) = self.control.pop_front() else { return false };
        let local = r.local.expect("a buffer");
        let len = bytes.len().min(local.len as usize);
        self.memory.write_at(local.offset, &bytes[..len]).expect("in bounds");
        self.complete(CONTROL, r.id, Completed::Receive { len: len as u32 }, Status::Success);
        true
    }

    fn immediate(&mut self, imm: u32) {
        if let Some(r) = self.data.pop_front() {
            self.complete(DATA, r.id, Completed::Immediate { imm }, Status::Success);
        }
    }

    fn acknowledge(&mut self) {
        if let Some((lane, wr)) = self.works.pop_front() {
            self.complete(lane, wr.id, Completed::Request, Status::Success);
        }
    }

    fn send(&mut self, channel: u32, len: usize) -> bool {
        let region = Region::from_vec(vec![1; len]);
        let local = Source { mr: MrId(1), region, offset: 0, len: len as u64 };
        let msg = Send { channel, class: Class::Bulk, local, token: 0, rendezvous_only: len.is_multiple_of(2) };
        let taken = self.session.send(Time::ZERO, &msg).is_ok();
        self.drain();
        taken
    }

    fn receive(&mut self, channel: u32, len: usize) -> bool {
        let region = Region::from_vec(vec![0; len]);
        let window = Window { addr: 1 << 32, len: len as u64, keys: [5; 8] };
        let (mr, capacity) = (MrId(1), len as u64);
        let r = Recv { channel, mr, region, offset: 0, capacity, window, token: 0, ordered: len.is_multiple_of(3) };
        let taken = self.session.receive(Time::ZERO, &r).is_ok();
        self.drain();
        taken
    }
}

fn header(credit: u32, eager: u32, records: &[u8]) -> Vec<u8> {
    let mut m = vec![1, 0, 1, 0];
    m.extend(credit.to_le_bytes());
    m.extend(NONCE.to_le_bytes());
    m.extend(eager.to_le_bytes());
    m.extend((records.len() as u32).to_le_bytes());
    m.extend(records);
    m
}

fn record(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut r = vec![kind, 0];
    r.extend((body.len() as u16).to_le_bytes());
    r.extend(body);
    r.resize(r.len().next_multiple_of(4), 0);
    r
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn small() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 0u32..6, 1 => 4000u32..20_000, 1 => any::<u32>()]
}

fn any_record() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![4 => 0u64..9000, 1 => any::<u64>()];
    prop_oneof![
        (
            small(),
            small(),
            any::<u16>(),
            prop_oneof![3 => Just(12u8), 1 => any::<u8>()],
            0u8..10,
            value.clone(),
            value.clone()
        )
            .prop_map(|(channel, number, slot, shift, keys, addr, capacity)| {
                let mut body = words(&[channel, number]);
                body.extend((slot & 0x7fff).to_le_bytes());
                body.extend([shift, keys]);
                body.extend(addr.to_le_bytes());
                body.extend(capacity.to_le_bytes());
                body.extend(words(&vec![7; keys as usize]));
                record(1, &body)
            }),
        (2u8..4, small(), small(), value.clone()).prop_map(|(kind, channel, number, v)| {
            let mut body = words(&[channel, number]);
            body.extend(v.to_le_bytes());
            record(kind, &body)
        }),
        (small(), small(), 0usize..300).prop_map(|(channel, number, n)| {
            let mut body = words(&[channel, number]);
            body.extend(vec![9; n]);
            record(4, &body)
        }),
        (0u16..4, 0u16..3, small()).prop_map(|(lane, generation, posted)| {
            let mut body = lane.to_le_bytes().to_vec();
            body.extend(generation.to_le_bytes());
            body.extend(posted.to_le_bytes());
            record(5, &body)
        }),
        (any::<[u8; 4]>(), value.clone()).prop_map(|(head, v)| {
            let mut body = head.to_vec();
            body.extend(v.to_le_bytes());
            record(6, &body)
        }),
        value.prop_map(|v| record(7, &v.to_le_bytes())),
        (small(), small(), small()).prop_map(|(c, n, r)| record(8, &words(&[c, n, r]))),
        (any::<u8>(), prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(kind, body)| record(kind, &body)),
        prop::collection::vec(any::<u8>(), 0..20),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Message(u32, u32, Vec<Vec<u8>>),
    Raw(Vec<u8>),
    Immediate(u32),
    Acknowledge,
    Send(u32, usize),
    Receive(u32, usize),
}

fn steps() -> impl Strategy<Value = Step> {
    let imm = prop_oneof![
        any::<u32>(),
        (0u32..4, 0u32..8, 0u32..2, 0u32..4, 0u32..8).prop_map(|(s, g, t, f, c)| s << 20
            | g << 17
            | t << 16
            | f << 3
            | c),
    ];
    prop_oneof![
        6 => (16u32..40, 0u32..20, prop::collection::vec(any_record(), 0..4)).prop_map(|(c, e, r)| Step::Message(c, e, r)),
        1 => prop::collection::vec(any::<u8>(), 0..100).prop_map(Step::Raw),
        3 => imm.prop_map(Step::Immediate),
        4 => Just(Step::Acknowledge),
        3 => (0u32..4, 0usize..9000).prop_map(|(c, n)| Step::Send(c, n)),
        3 => (0u32..4, 0usize..9000).prop_map(|(c, n)| Step::Receive(c, n)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn anything_goes_and_nothing_breaks(script in prop::collection::vec(steps(), 0..60)) {
        let mut lone = Lone::new();
        let mut begun = 0;
        for step in script {
            match step {
                Step::Message(credit, eager, records) => {
                    lone.message(&header(credit, eager, &records.concat()));
                }
                Step::Raw(bytes) => {
                    lone.message(&bytes);
                }
                Step::Immediate(imm) => lone.immediate(imm),
                Step::Acknowledge => lone.acknowledge(),
                Step::Send(channel, len) => begun += usize::from(lone.send(channel, len)),
                Step::Receive(channel, len) => begun += usize::from(lone.receive(channel, len)),
            }
            prop_assert!(lone.session.channels() <= 10);
            prop_assert!(lone.works.len() <= 16 + 256, "credits bound what is posted");
            for (_, wr) in &lone.works {
                if let Op::WriteImm(_) = wr.op {
                    prop_assert!(wr.remote.addr.checked_add(u64::from(wr.local.len)).is_some());
                }
            }
        }
        lone.session.cancel_all(Failure::Cancelled);
        lone.drain();
        prop_assert_eq!(lone.done, begun, "every operation ends");
        prop_assert!(lone.session.is_drained());
    }
}

#[test]
fn each_violation_is_named() {
    let grant = |slot: u16, shift: u8, keys: u8, addr: u64, capacity: u64| {
        let mut body = words(&[0, 0]);
        body.extend(slot.to_le_bytes());
        body.extend([shift, keys]);
        body.extend(addr.to_le_bytes());
        body.extend(capacity.to_le_bytes());
        body.extend(words(&vec![0; keys as usize]));
        record(1, &body)
    };
    let long = |kind: u8, value: u64| {
        let mut body = words(&[0, 0]);
        body.extend(value.to_le_bytes());
        record(kind, &body)
    };
    let with = |records: &[u8]| header(16, 4, records);
    let mut version = with(&[]);
    version[0] = 2;
    let mut nonce = with(&[]);
    nonce[8] ^= 1;
    let mut length = with(&[]);
    length[20] = 4;
    let eager = |channel: u32, number: u32, n: usize| {
        let mut body = words(&[channel, number]);
        body.extend(vec![0; n]);
        record(4, &body)
    };
    let flood: Vec<u8> = (1..6).flat_map(|n| eager(0, n, 8)).collect();
    let channels: Vec<u8> = (0..11).flat_map(|c| record(2, &[words(&[c, 0]), vec![0; 8]].concat())).collect();
    let cases: Vec<(&str, Vec<u8>, Violation)> = vec![
        ("version", version, Violation::Version),
        ("nonce", nonce, Violation::Nonce),
        ("length", length, Violation::Length),
        ("short", vec![1; 23], Violation::Length),
        ("cut record", with(&[2, 0, 16, 0]), Violation::Record),
        ("long record", with(&record(7, &[0; 12])), Violation::Record),
        ("type", with(&record(99, &[])), Violation::RecordType),
        ("channels", with(&channels), Violation::Channels),
        ("number", with(&record(2, &[words(&[0, 20_000]), vec![0; 8]].concat())), Violation::Number),
        ("unit size", with(&grant(0, 11, 1, 0, 4096)), Violation::Grant),
        ("capacity", with(&grant(0, 12, 1, 0, (8192 << 12) + 1)), Violation::Grant),
        ("address", with(&grant(0, 12, 1, u64::MAX, 1)), Violation::Grant),
        ("keys", with(&grant(0, 12, 9, 0, 1)), Violation::Grant),
        ("slot", with(&grant(1 << 15, 12, 1, 0, 1)), Violation::Grant),
        ("eager length", with(&eager(0, 0, 257)), Violation::Eager),
        ("eager credit", with(&flood), Violation::Eager),
        ("credit", header(1 << 20, 4, &[]), Violation::Credit),
        ("total", with(&long(3, 5000)), Violation::Total),
    ];
    for (name, message, violation) in cases {
        let mut lone = Lone::new();
        assert!(lone.receive(0, 4096), "granted, since it is above eager_max");
        assert!(lone.message(&message));
        assert_eq!(lone.session.failure(), Some(Failure::Protocol(violation)), "{name}");
        assert_eq!(lone.done, 1, "{name}: the receive ended");
    }
    let mut lone = Lone::new();
    assert!(lone.receive(0, 4096));
    // Slot 0, generation 1: the first grant. Unit 1 of a receive that has one.
    lone.immediate(1 << 17 | 1 << 3);
    assert_eq!(lone.session.failure(), Some(Failure::Protocol(Violation::Unit)));
}

#[test]
fn a_late_immediate_is_counted_and_ignored() {
    let mut lone = Lone::new();
    assert!(lone.receive(0, 4096));
    lone.immediate(2 << 17);
    lone.immediate(7 << 20 | 1 << 17);
    assert_eq!(lone.session.stats().messages.late_immediates, 2);
    assert_eq!(lone.session.failure(), None);
    lone.immediate(1 << 17);
    assert_eq!(lone.done, 1);
    lone.immediate(1 << 17);
    assert_eq!(lone.session.stats().messages.late_immediates, 3, "the slot has moved on");
}
