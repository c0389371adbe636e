//! Random messages and random failures, and what must hold whatever happens.

use super::world::{Shape, World, address};
use crate::class::Class;
use crate::engine::{Ended, OpId};
use crate::lanes::{Control, LaneEvent, PortId};
use crate::mem::Region;
use crate::sim::{Cut, Faults};
use crate::spray::{Health, SessionConfig, Subject};
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

/// Something that happens at a time.
#[derive(Clone, Copy, Debug)]
enum Act {
    Cut(Cut),
    Heal(u8),
    Down(usize, u8),
    /// The backend moves a lane to ERR by itself.
    Error(usize, usize),
    Stop(usize, Span),
    Drain(usize, u8, bool),
}

/// A message under way.
struct Flight {
    from: usize,
    channel: u32,
    class: Class,
    eager: bool,
    send_at: Time,
    receive_at: Time,
    source: Region,
    target: Region,
    len: usize,
    send: Option<OpId>,
    receive: Option<OpId>,
    sent: bool,
    received: bool,
}

/// What a run did, for the tests to see that something happened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    pub(super) lanes_lost: u64,
    pub(super) replayed: u64,
    pub(super) survived: u64,
    pub(super) steps: u64,
    /// Longest time from a message's posting to its arrival.
    pub(super) slowest: Span,
}

fn pattern(seed: u64, message: usize, at: usize) -> u8 {
    (seed.wrapping_mul(31).wrapping_add((message as u64) << 20 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40)
        as u8
}

/// What a buffer's owner writes into it once it is back.
const USED: u8 = 0x5a;

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

struct Run {
    seed: u64,
    kind: Kind,
    world: World,
    flights: Vec<Flight>,
    acts: Vec<(Time, Act)>,
}

/// Runs one seed. An error says which rule was broken.
pub(super) fn run(seed: u64, kind: Kind) -> Result<Outcome, String> {
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
        planes,
        data: rng.u16(1..=2),
        plain: rng.bool(),
        sloth: Span::from_nanos(rng.u64(..30_000)),
        slow_fence: Span::from_nanos(if calm { 0 } else { rng.u64(..4_000_000) }),
        faults,
    };
    let world = World::new(shape, config(seed, rebuild));
    let span = Span::from_millis(if kind == Kind::Echoes { 100 } else { rng.u64(20..=80) });
    let at = |rng: &mut fastrand::Rng| Time::from_nanos(rng.u64(..span.as_nanos()));
    let acts = acts(&mut rng, kind, &world, span);
    let mut flights = Vec::new();
    for i in 0..if kind == Kind::Echoes { 40 } else { rng.usize(8..32) } {
        let len = match rng.u8(..4) {
            0 => rng.usize(..1024),
            1 => rng.usize(1024..20_000),
            2 => [4096, 8192, 65_536][rng.usize(..3)],
            _ => rng.usize(20_000..100_000),
        };
        let target = len + if rng.bool() { 0 } else { rng.usize(..5000) };
        let (a, b) = (at(&mut rng), at(&mut rng));
        flights.push(Flight {
            from: rng.usize(..2),
            channel: rng.u32(..3),
            class: [Class::Latency, Class::Bulk][rng.usize(..2)],
            eager: rng.bool(),
            send_at: a,
            receive_at: if rng.bool() { a } else { b },
            source: Region::from_vec((0..len).map(|at| pattern(seed, i, at)).collect()),
            target: Region::from_vec(vec![0xee; target]),
            len,
            send: None,
            receive: None,
            sent: false,
            received: false,
        });
    }
    // On a channel the nth send meets the nth receive: both in the order of the list.
    flights.sort_by_key(|f| f.send_at);
    let mut clock = [[Time::ZERO; 3]; 2];
    for (i, f) in flights.iter_mut().enumerate() {
        let last = &mut clock[f.from][f.channel as usize];
        f.receive_at = f.receive_at.max(*last);
        *last = f.receive_at;
        let bytes: Vec<u8> = (0..f.len).map(|at| pattern(seed, i, at)).collect();
        f.source = Region::from_vec(bytes);
    }
    Run { seed, kind, world, flights, acts }.go()
}

/// What goes wrong, in order.
fn acts(rng: &mut fastrand::Rng, kind: Kind, world: &World, span: Span) -> Vec<(Time, Act)> {
    let planes = world.shape().planes;
    let spared = rng.u8(..planes);
    let lanes = world.ends[0].lanes.len();
    let per_plane = lanes / usize::from(planes);
    let mut acts = Vec::new();
    let at = |rng: &mut fastrand::Rng| Time::from_nanos(rng.u64(..span.as_nanos()));
    let cut = |rng: &mut fastrand::Rng, plane: u8, path: bool, held: bool| {
        let from = rng.usize(..2);
        let source_port = path.then(|| 0xc000 | rng.u16(..per_plane as u16));
        Cut { from: address(plane, from), to: address(plane, 1 - from), source_port, held }
    };
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
            acts.push((Time::from_nanos(when), Act::Down(side, first)));
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
                        0 => acts.push((begin, Act::Down(rng.usize(..2), plane))),
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
                        0 => Act::Down(rng.usize(..2), plane),
                        1 => Act::Error(rng.usize(..2), usize::from(plane) * per_plane + rng.usize(..per_plane)),
                        _ => Act::Cut(cut(rng, plane, path, held)),
                    };
                    acts.push((when, act));
                    if let Act::Down(side, _) = act
                        && rng.bool()
                    {
                        acts.push((when, Act::Down(1 - side, plane)));
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

impl Run {
    fn go(mut self) -> Result<Outcome, String> {
        let mut outcome = Outcome::default();
        let mut acts = std::mem::take(&mut self.acts).into_iter().peekable();
        let limit = Time::from_nanos(60_000_000_000);
        loop {
            let sends = self.flights.iter().filter(|f| f.send.is_none() && !f.sent).map(|f| f.send_at);
            let receives = self.flights.iter().filter(|f| f.receive.is_none() && !f.received).map(|f| f.receive_at);
            let posted = sends.chain(receives).min();
            let until = [posted, acts.peek().map(|a| a.0)].into_iter().flatten().min().unwrap_or(limit);
            while self.world.step(until) {
                self.check(&mut outcome)?;
                if self.flights.iter().all(|f| f.sent && f.received) {
                    break;
                }
            }
            self.check(&mut outcome)?;
            if self.flights.iter().all(|f| f.sent && f.received) {
                break;
            }
            if self.world.now >= limit {
                return Err(format!("an operation never ended: {}", self.waiting()));
            }
            while let Some((_, act)) = acts.next_if(|a| a.0 <= self.world.now) {
                self.act(act);
            }
            self.post();
        }
        // What is held up anywhere arrives now, and must change nothing.
        for (_, act) in acts {
            self.act(act);
        }
        self.world.net.heal();
        let after = if self.kind == Kind::Returns { Span::from_secs(3) } else { Span::from_millis(50) };
        let end = self.world.now + after;
        while self.world.step(end) {}
        self.check_memory(true)?;
        for side in 0..2 {
            let end = &self.world.ends[side];
            let session = end.core.session(end.session).ok_or("the session is gone")?;
            if let Some(failure) = session.failure() {
                return Err(format!("the session of end {side} ended: {failure}"));
            }
            let stats = session.stats();
            let m = stats.messages;
            if m.duplicate_units + m.late_immediates > 0 {
                return Err(format!("a chunk arrived twice at end {side}: {m:?}"));
            }
            if m.failed > 0 {
                return Err(format!("operations of end {side} failed: {m:?}"));
            }
            let dead = stats.lanes.iter().filter(|l| !l.alive).count() as u64;
            if self.kind == Kind::Returns && dead > 0 {
                return Err(format!("{dead} lanes of end {side} have not returned"));
            }
            let downs = end
                .core
                .log()
                .since(0)
                .0
                .filter(|e| matches!(e.transition.subject, Subject::Lane(_)) && e.transition.to == Health::Dead);
            outcome.lanes_lost += downs.count() as u64;
            outcome.replayed += m.replayed;
            outcome.survived += m.survived;
            let counters = end.core.lanes().lanes.counters();
            if counters.rnr_nak_sent > 0 {
                return Err(format!("end {side} had no receive for what its peer sent: {counters:?}"));
            }
            if counters.resp_remote_access_errors > 0 {
                return Err(format!("end {side} was written outside its windows: {counters:?}"));
            }
        }
        outcome.steps = self.world.steps;
        Ok(outcome)
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Cut(cut) => self.world.net.add_cut(cut),
            Act::Heal(plane) => {
                self.world.net.heal_between(address(plane, 0), address(plane, 1));
                self.world.net.heal_between(address(plane, 1), address(plane, 0));
            }
            Act::Down(side, plane) => self.world.event(side, &LaneEvent::PortDown(PortId(plane))),
            Act::Error(side, lane) => {
                let id = self.world.ends[side].lanes[lane];
                let _ = self.world.ends[side].core.lanes_mut().lanes.fence(id);
            }
            Act::Drain(side, plane, on) => {
                let now = self.world.now;
                self.world.ends[side].core.drain(now, PortId(plane), on);
            }
            Act::Stop(side, span) => {
                let until = self.world.now + span;
                self.world.ends[side].stopped = self.world.ends[side].stopped.max(until);
            }
        }
    }

    fn post(&mut self) {
        let now = self.world.now;
        for i in 0..self.flights.len() {
            let f = &self.flights[i];
            if f.send.is_none() && !f.sent && f.send_at <= now {
                let (from, channel, class, eager, source) = (f.from, f.channel, f.class, f.eager, f.source.clone());
                self.flights[i].send = Some(self.world.send(from, channel, class, &source, eager));
            }
            let f = &self.flights[i];
            if f.receive.is_none() && !f.received && f.receive_at <= now {
                let (to, channel, target) = (1 - f.from, f.channel, f.target.clone());
                self.flights[i].receive = Some(self.world.receive(to, channel, &target));
            }
        }
    }

    /// Takes what is over, and looks at its bytes.
    fn check(&mut self, outcome: &mut Outcome) -> Result<(), String> {
        for i in 0..self.flights.len() {
            let (from, send, receive) = (self.flights[i].from, self.flights[i].send, self.flights[i].receive);
            if let Some(op) = send
                && let Some(result) = self.world.take(from, op)
            {
                let f = &mut self.flights[i];
                (f.send, f.sent) = (None, true);
                good(i, "send", result, f.len)?;
                // Its owner uses it again: nothing may read it any more.
                let used = vec![USED; f.len];
                f.source.write_at(0, &used).map_err(|e| e.to_string())?;
            }
            if let Some(op) = receive
                && let Some(result) = self.world.take(1 - from, op)
            {
                let f = &mut self.flights[i];
                (f.receive, f.received) = (None, true);
                good(i, "receive", result, f.len)?;
                let mut bytes = vec![0; f.target.len()];
                f.target.read_at(0, &mut bytes).map_err(|e| e.to_string())?;
                for (at, &byte) in bytes.iter().enumerate() {
                    let want = if at < f.len { pattern(self.seed, i, at) } else { 0xee };
                    if byte != want {
                        return Err(format!("byte {at} of message {i} is {byte:#x}, not {want:#x}"));
                    }
                }
                let used = vec![USED; f.target.len()];
                f.target.write_at(0, &used).map_err(|e| e.to_string())?;
                let latest = f.send_at.max(f.receive_at);
                outcome.slowest = outcome.slowest.max(self.world.now.since(latest));
            }
        }
        if self.world.steps.is_multiple_of(256) { self.check_memory(false) } else { Ok(()) }
    }

    /// Buffers that are back with their owners stay as these left them.
    fn check_memory(&self, all: bool) -> Result<(), String> {
        for (i, f) in self.flights.iter().enumerate() {
            if all && !(f.sent && f.received) {
                return Err(format!("message {i} is not over"));
            }
            for (region, back) in [(&f.target, f.received), (&f.source, f.sent)] {
                let mut bytes = vec![USED; region.len()];
                if back {
                    region.read_at(0, &mut bytes).map_err(|e| e.to_string())?;
                }
                if let Some(at) = bytes.iter().position(|&b| b != USED) {
                    return Err(format!("byte {at} of message {i} changed after its buffer was given back"));
                }
            }
        }
        Ok(())
    }

    fn waiting(&self) -> String {
        let mut text = String::new();
        for (i, f) in self.flights.iter().enumerate().filter(|(_, f)| !(f.sent && f.received)) {
            text += &format!("message {i} of {} bytes from end {} ({} {}), ", f.len, f.from, f.sent, f.received);
        }
        text
    }
}

fn good(message: usize, what: &str, result: Result<u64, Ended>, len: usize) -> Result<(), String> {
    match result {
        Ok(n) if n == len as u64 => Ok(()),
        other => Err(format!("{what} of message {message} of {len} bytes ended with {other:?}")),
    }
}
