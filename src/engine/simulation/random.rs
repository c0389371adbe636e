//! Random messages and random failures.

use super::plan::{Act, Message, Plan, Want};
use super::world::{PlaneShape, Shape, address};
use crate::class::Class;
use crate::sim::{Cut, Faults};
use crate::spray::SessionConfig;
use crate::time::{Span, Time};

/// What may go wrong. At least one plane stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// One plane or path at a time, silently.
    Silent,
    /// Planes come and go, and what they held up arrives late.
    Flaps,
    /// All planes but one, in any order, by silence, events and errors, at either or both ends, also while others are
    /// being fenced.
    Storm,
    /// Ends stand still meanwhile.
    Stops,
    /// Whatever fails comes back, and all of it is in use again 3 s later.
    Returns,
    /// One plane or path fails silently, and nothing else slows anything down.
    Quick,
    /// All planes dark for seconds, then back.
    Dark,
    /// Operators take planes out of use, and back.
    Drains,
    /// What was said of a lost lane is said again when the lane has long returned.
    Echoes,
}

impl Kind {
    /// All of them, with the names by which the command knows them.
    pub(super) const ALL: [(&'static str, Kind); 9] = [
        ("silent", Kind::Silent),
        ("flaps", Kind::Flaps),
        ("storm", Kind::Storm),
        ("stops", Kind::Stops),
        ("returns", Kind::Returns),
        ("quick", Kind::Quick),
        ("dark", Kind::Dark),
        ("drains", Kind::Drains),
        ("echoes", Kind::Echoes),
    ];
}

pub(super) fn config(seed: u64, rebuild: bool) -> SessionConfig {
    SessionConfig {
        rebuild,
        nonce: seed,
        eager_max: 1024,
        eager_buffers: 16,
        control_slots: 16,
        immediates: 32,
        send_depth: 32,
        channels: 4,
        slots: 4 << (seed / 4 % 3),
        max_sends: 1024,
        max_receives: 1024,
        ..SessionConfig::default()
    }
}

/// The run of a seed.
pub(super) fn plan(seed: u64, kind: Kind) -> Plan {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed << 40);
    let planes = if kind == Kind::Echoes { 3 } else { rng.u8(2..=4) };
    let rebuild = matches!(kind, Kind::Returns | Kind::Echoes) || rng.bool();
    let calm = matches!(kind, Kind::Quick | Kind::Dark | Kind::Drains);
    let faults = if rng.u8(..4) == 0 && !calm {
        Faults { loss: 0.01, duplicate: 0.01, reorder: 0.05, reorder_by: Span::from_micros(30), ..Faults::default() }
    } else {
        Faults::default()
    };
    let shape = Shape {
        seed,
        planes: vec![PlaneShape::default(); usize::from(planes)],
        data: rng.u16(1..=2),
        plain: rng.bool(),
        sloth: Span::from_nanos(rng.u64(..30_000)),
        slow_fence: Span::from_nanos(if calm { 0 } else { rng.u64(..4_000_000) }),
        faults,
        ..Shape::default()
    };
    let span = Span::from_millis(if kind == Kind::Echoes { 100 } else { rng.u64(20..=80) });
    let at = |rng: &mut fastrand::Rng| Time::from_nanos(rng.u64(..span.as_nanos()));
    let acts = acts(&mut rng, kind, &shape, span);
    let mut messages = Vec::new();
    for _ in 0..if kind == Kind::Echoes { 40 } else { rng.usize(8..32) } {
        let len = match rng.u8(..4) {
            0 => rng.usize(..1024),
            1 => rng.usize(1024..20_000),
            2 => [4096, 8192, 65_536][rng.usize(..3)],
            _ => rng.usize(20_000..100_000),
        };
        let capacity = len + if rng.bool() { 0 } else { rng.usize(..5000) };
        let (a, b) = (at(&mut rng), at(&mut rng));
        messages.push(Message {
            from: rng.usize(..2),
            channel: rng.u32(..3),
            class: [Class::Latency, Class::Bulk][rng.usize(..2)],
            eager: rng.bool(),
            send_at: a,
            receive_at: if rng.bool() { a } else { b },
            len,
            capacity,
        });
    }
    // On a channel the nth send meets the nth receive: both in the order of the list.
    messages.sort_by_key(|f| f.send_at);
    let mut clock = [[Time::ZERO; 3]; 2];
    for m in &mut messages {
        let last = &mut clock[m.from][m.channel as usize];
        m.receive_at = m.receive_at.max(*last);
        *last = m.receive_at;
    }
    let want = Want {
        settle: if kind == Kind::Returns { Span::from_secs(3) } else { Span::from_millis(50) },
        all_back: kind == Kind::Returns,
        lanes_lost: matches!(kind, Kind::Dark | Kind::Drains).then_some(0),
        slowest: match kind {
            Kind::Quick => Some(Span::from_millis(50)),
            Kind::Storm => Some(Span::from_millis(100)),
            Kind::Dark => Some(Span::from_secs(6)),
            _ => None,
        },
        ..Want::default()
    };
    Plan { shape, config: config(seed, rebuild), messages, streams: Vec::new(), acts, want }
}

/// What goes wrong, in order.
fn acts(rng: &mut fastrand::Rng, kind: Kind, shape: &Shape, span: Span) -> Vec<(Time, Act)> {
    let planes = shape.planes.len() as u8;
    let spared = rng.u8(..planes);
    let per_plane = shape.lanes_per_plane();
    let mut acts = Vec::new();
    let at = |rng: &mut fastrand::Rng| Time::from_nanos(rng.u64(..span.as_nanos()));
    let cut = |rng: &mut fastrand::Rng, plane: u8, path: bool, held: bool| {
        let from = rng.usize(..2);
        let source_port = path.then(|| 0xc000 | rng.u16(..per_plane as u16));
        Cut { from: address(plane, from), to: address(plane, 1 - from), source_port, held }
    };
    let down = |side, plane| Act::Carrier { side, plane, up: false };
    let victims: Vec<u8> = (0..planes).filter(|&p| p != spared).collect();
    match kind {
        Kind::Silent | Kind::Quick => {
            let plane = victims[rng.usize(..victims.len())];
            let (path, begin) = (rng.bool(), at(rng));
            let first = cut(rng, plane, path, false);
            acts.push((begin, Act::Cut(first)));
            if rng.bool() {
                acts.push((begin, Act::Cut(Cut { from: first.to, to: first.from, ..first })));
            }
        }
        Kind::Flaps => {
            for _ in 0..rng.usize(2..8) {
                let plane = victims[rng.usize(..victims.len())];
                let (begin, path, held) = (at(rng), rng.u8(..3) == 0, rng.u8(..4) != 0);
                acts.push((begin, Act::Cut(cut(rng, plane, path, held))));
                let long = if rng.bool() { 100_000 } else { 60_000_000 };
                acts.push((begin + Span::from_nanos(rng.u64(..long)), Act::Heal(plane)));
            }
        }
        Kind::Dark => {
            let begin = at(rng);
            for plane in 0..planes {
                for from in 0..2 {
                    let (a, b) = (address(plane, from), address(plane, 1 - from));
                    acts.push((begin, Act::Cut(Cut { from: a, to: b, source_port: None, held: false })));
                }
                acts.push((begin + Span::from_secs(5), Act::Heal(plane)));
            }
        }
        Kind::Drains => {
            for _ in 0..rng.usize(1..6) {
                let (side, plane, begin) = (rng.usize(..2), victims[rng.usize(..victims.len())], at(rng));
                acts.push((begin, Act::Drain(side, plane, true)));
                if rng.bool() {
                    let long = Span::from_nanos(rng.u64(..30_000_000));
                    acts.push((begin + long, Act::Drain(side, plane, false)));
                }
            }
        }
        Kind::Echoes => {
            // The answer about the first goes by the second, whose acknowledgements are lost.
            let (first, second) = (victims[0], victims[1]);
            let (first, second) = if rng.bool() { (first, second) } else { (second, first) };
            let when = 5_000_000 + rng.u64(..20_000_000);
            let held = rng.bool();
            let echo = cut(rng, second, false, held);
            acts.push((Time::from_nanos(when - rng.u64(..4_000_000)), Act::Cut(echo)));
            let side = rng.usize(..2);
            acts.push((Time::from_nanos(when), down(side, first)));
            if rng.bool() {
                acts.push((Time::from_nanos(when), Act::Cut(cut(rng, first, true, true))));
            }
            // Short hold-ups of the first, once it has returned.
            let mut later = when + 10_000_000;
            for _ in 0..20 {
                later += rng.u64(..2_000_000);
                let held = cut(rng, first, false, true);
                acts.push((Time::from_nanos(later), Act::Cut(held)));
                later += rng.u64(..4_000_000);
                acts.push((Time::from_nanos(later), Act::Heal(first)));
            }
            acts.push((Time::from_nanos(when + rng.u64(..60_000_000)), Act::Heal(second)));
        }
        Kind::Returns => {
            for &plane in &victims {
                for _ in 0..rng.usize(1..3) {
                    let begin = at(rng);
                    let held = rng.bool();
                    match rng.u8(..3) {
                        0 => acts.push((begin, down(rng.usize(..2), plane))),
                        1 => {
                            let lane = usize::from(plane) * per_plane + rng.usize(..per_plane);
                            acts.push((begin, Act::Error(rng.usize(..2), lane)));
                        }
                        _ => {
                            let path = rng.u8(..3) == 0;
                            let first = cut(rng, plane, path, held);
                            acts.push((begin, Act::Cut(first)));
                            if rng.bool() {
                                acts.push((begin, Act::Cut(Cut { from: first.to, to: first.from, ..first })));
                            }
                        }
                    }
                    acts.push((begin + Span::from_nanos(rng.u64(..200_000_000)), Act::Heal(plane)));
                }
            }
        }
        Kind::Storm | Kind::Stops => {
            let begin = at(rng).as_nanos();
            // Sometimes all within what a fence takes.
            let close = if rng.bool() { 200_000 } else { span.as_nanos() };
            for &plane in &victims {
                for _ in 0..rng.usize(1..4) {
                    let when = Time::from_nanos(begin + rng.u64(..close));
                    let (held, path) = (rng.bool(), rng.u8(..3) == 0);
                    let act = match rng.u8(..4) {
                        0 => down(rng.usize(..2), plane),
                        1 => Act::Error(rng.usize(..2), usize::from(plane) * per_plane + rng.usize(..per_plane)),
                        _ => Act::Cut(cut(rng, plane, path, held)),
                    };
                    acts.push((when, act));
                    if let Act::Carrier { side, .. } = act
                        && rng.bool()
                    {
                        acts.push((when, down(1 - side, plane)));
                    }
                }
                if rng.bool() {
                    acts.push((at(rng), Act::Heal(plane)));
                }
            }
            if kind == Kind::Stops {
                for _ in 0..rng.usize(1..4) {
                    let most = [5_000_000, 100_000_000, 5_000_000_000][rng.usize(..3)];
                    let long = Span::from_nanos(rng.u64(..most));
                    acts.push((at(rng), Act::Stop(rng.usize(..2), long)));
                }
            }
        }
    }
    acts.sort_by_key(|a| a.0);
    acts
}
