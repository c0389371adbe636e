//! Every lane dies at both ends, again and again, and the session goes on by what the witness carries; without one it ends.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::random::config;
use super::tests::seeds;
use super::world::{PlaneShape, Shape, World};
use crate::class::Class;
use crate::engine::{Ended, OpId, Seen, Witness};
use crate::lanes::{Control, PortId};
use crate::mem::Region;
use crate::sim::Faults;
use crate::spray::{Failure, SessionConfig};
use crate::time::{Span, Time};

/// What waits for each end, and since when the connection is dead: bytes vanish, and nobody is told.
#[derive(Default)]
struct Wire {
    mail: [VecDeque<Vec<u8>>; 2],
    said: u64,
    dead: bool,
}

/// One end of a reliable stream.
struct Mail {
    wire: Arc<Mutex<Wire>>,
    side: usize,
    read: Vec<u8>,
}

impl Witness for Mail {
    fn look(&mut self) -> Seen {
        Seen::Nothing
    }
    fn speaks(&self) -> bool {
        true
    }
    fn has_room(&self) -> bool {
        self.wire.lock().mail[1 - self.side].len() < 8
    }
    fn hear(&mut self) -> Option<&[u8]> {
        self.read = self.wire.lock().mail[self.side].pop_front()?;
        Some(&self.read)
    }
    fn say(&mut self, word: &[u8]) {
        let mut wire = self.wire.lock();
        wire.said += 1;
        if !wire.dead {
            wire.mail[1 - self.side].push_back(word.to_vec());
        }
    }
}

struct Flight {
    from: usize,
    at: Time,
    len: usize,
    target: Region,
    send: Option<OpId>,
    receive: Option<OpId>,
}

fn byte(message: usize, at: usize) -> u8 {
    (message * 131 + at * 7 + at / 251) as u8
}

/// As the helper thread: each end is driven every 2 ms at the latest.
fn advance(world: &mut World, until: Time) {
    while world.now < until {
        world.drive(0);
        world.drive(1);
        let slice = (world.now + Span::from_millis(2)).min(until);
        while world.step(slice) {}
    }
}

/// Moves every queue pair of an end to ERR that is there.
fn break_all(world: &mut World, side: usize) {
    for port in 0..world.planes() {
        let end = &mut world.ends[side];
        let lanes: Vec<_> = end.core.session(end.session).expect("it lives").lanes_on(PortId(port)).collect();
        for lane in lanes {
            let _ = end.core.lanes_mut().lanes.fence(lane);
        }
    }
}

fn start(seed: u64, timeout: Span) -> (World, Arc<Mutex<Wire>>, fastrand::Rng) {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x0e0d << 40);
    let shape = Shape {
        seed,
        planes: vec![PlaneShape::default(); rng.usize(1..=3)],
        data: rng.u16(1..=2),
        plain: rng.bool(),
        sloth: Span::from_nanos(rng.u64(..30_000)),
        slow_fence: Span::from_nanos(rng.u64(..2_000_000)),
        faults: Faults { loss: if rng.bool() { 0.01 } else { 0.0 }, ..Faults::NONE },
        ..Shape::default()
    };
    let mut world = World::new(shape, SessionConfig { session_timeout: timeout, ..config(seed, true) });
    let wire = Arc::new(Mutex::new(Wire::default()));
    for (side, end) in world.ends.iter_mut().enumerate() {
        let mail = Mail { wire: wire.clone(), side, read: Vec::new() };
        end.core.watch(Time::ZERO, end.session, Box::new(mail));
    }
    (world, wire, rng)
}

fn one(seed: u64) -> Result<(u64, u64), String> {
    let (mut world, wire, mut rng) = start(seed, Span::from_secs(30));
    let span = 30_000_000;
    let mut flights: Vec<Flight> = (0..rng.usize(8..32))
        .map(|_| {
            let len = [rng.usize(..1024), rng.usize(1024..20_000), rng.usize(20_000..100_000)][rng.usize(..3)];
            Flight {
                from: rng.usize(..2),
                at: Time::from_nanos(rng.u64(..span)),
                len,
                target: Region::from_vec(vec![0; len]),
                send: None,
                receive: None,
            }
        })
        .collect();
    flights.sort_by_key(|f| f.at);
    // When all lanes of an end break, of both at the same moment, or of one port after the other.
    let mut breaks: Vec<(Time, usize, u8)> = Vec::new();
    for _ in 0..rng.usize(1..4) {
        let at = rng.u64(..span);
        let first = rng.usize(..2);
        match rng.u8(..3) {
            0 => breaks.push((Time::from_nanos(at), first, u8::MAX)),
            1 => {
                let after = if rng.bool() { 0 } else { rng.u64(..3_000_000) };
                breaks.push((Time::from_nanos(at), first, u8::MAX));
                breaks.push((Time::from_nanos(at + after), 1 - first, u8::MAX));
            }
            _ => {
                for plane in 0..world.planes() {
                    let (side, after) = (rng.usize(..2), rng.u64(..2_000_000));
                    breaks.push((Time::from_nanos(at + after), side, plane));
                }
            }
        }
    }
    breaks.sort_by_key(|b| b.0);
    let (mut next, mut broken) = (0, 0);
    loop {
        let due = [flights.get(next).map(|f| f.at), breaks.get(broken).map(|b| b.0)].into_iter().flatten().min();
        let Some(due) = due else { break };
        advance(&mut world, due);
        while let Some(&(_, side, plane)) = breaks.get(broken).filter(|b| b.0 <= world.now) {
            broken += 1;
            if plane == u8::MAX {
                break_all(&mut world, side);
            } else {
                let end = &mut world.ends[side];
                let session = end.core.session(end.session).expect("it lives");
                let lanes: Vec<_> = session.lanes_on(PortId(plane)).collect();
                for lane in lanes {
                    let _ = end.core.lanes_mut().lanes.fence(lane);
                }
                world.carrier(side, plane, true);
            }
        }
        while let Some(f) = flights.get_mut(next).filter(|f| f.at <= world.now) {
            let source = Region::from_vec((0..f.len).map(|at| byte(next, at)).collect());
            let class = [Class::Latency, Class::Bulk][rng.usize(..2)];
            let (into, local) = (world.whole(1 - f.from, &f.target), world.whole(f.from, &source));
            f.receive = Some(world.start_receive(1 - f.from, 0, into));
            f.send = Some(world.start_send(f.from, 0, class, local, rng.bool()));
            next += 1;
        }
    }
    let mut left = flights.len() * 2;
    let limit = world.now + Span::from_secs(20);
    while left > 0 && world.now < limit {
        let until = world.now + Span::from_millis(10);
        advance(&mut world, until);
        for (i, f) in flights.iter_mut().enumerate() {
            for (side, op) in [(f.from, &mut f.send), (1 - f.from, &mut f.receive)] {
                let Some(result) = op.and_then(|op| world.take(side, op)) else { continue };
                if result != Ok(f.len as u64) {
                    return Err(format!("message {i} of {} bytes ended with {result:?}", f.len));
                }
                (*op, left) = (None, left - 1);
            }
        }
    }
    if left > 0 {
        return Err(format!("{left} operations never ended"));
    }
    // Ways that failed often are left alone for a while.
    let until = world.now + Span::from_secs(12);
    advance(&mut world, until);
    for (i, f) in flights.iter().enumerate() {
        let mut bytes = vec![0; f.len];
        f.target.read_at(0, &mut bytes).map_err(|e| e.to_string())?;
        if let Some(at) = (0..f.len).find(|&at| bytes[at] != byte(i, at)) {
            return Err(format!("byte {at} of message {i} is {:#x}", bytes[at]));
        }
    }
    let mut lost = 0;
    for (side, end) in world.ends.iter().enumerate() {
        let session = end.core.session(end.session).ok_or("the session is gone")?;
        let (stats, counters) = (session.stats(), end.core.lanes().lanes.counters());
        let m = stats.messages;
        if session.failure().is_some() || session.is_dark() || stats.lanes.iter().any(|l| !l.alive) {
            return Err(format!("end {side} is not whole again: {:?}", session.failure()));
        }
        if m.duplicate_units + m.late_immediates + m.failed > 0 || counters.rnr_nak_sent > 0 {
            return Err(format!("end {side}: {m:?} {counters:?}"));
        }
        lost += m.replayed + m.survived;
    }
    let said = wire.lock().said;
    Ok((lost, said))
}

#[test]
fn all_lanes_die_and_the_session_goes_on() {
    let (mut settled, mut said) = (0, 0);
    for seed in seeds(600) {
        match one(seed) {
            Ok((chunks, words)) => {
                settled += chunks;
                said += words;
            }
            Err(broken) => panic!(
                "seed {seed}: {broken}\nrun it alone: PLANESPRAY_SEED={seed} cargo test --lib simulation::words -- --nocapture"
            ),
        }
    }
    println!("{settled} chunks settled, {said} words");
    if seeds(600) == (0..600) {
        assert!(settled > 100 && said > 1000, "{settled} chunks, {said} words");
    }
}

/// A witness that has died in silence carries nothing: the session waits for another, then ends.
#[test]
fn without_a_witness_the_session_ends_in_time() {
    for seed in 0..20 {
        let timeout = Span::from_secs(1);
        let (mut world, wire, _) = start(seed, timeout);
        wire.lock().dead = true;
        let target = Region::from_vec(vec![0; 50_000]);
        let source = Region::from_vec(vec![1; 50_000]);
        let (into, local) = (world.whole(1, &target), world.whole(0, &source));
        let ops = [(1, world.start_receive(1, 0, into)), (0, world.start_send(0, 0, Class::Bulk, local, false))];
        break_all(&mut world, 0);
        break_all(&mut world, 1);
        let until = world.now + Span::from_millis(900);
        advance(&mut world, until);
        assert!(ops.iter().all(|&(side, op)| world.take(side, op).is_none()), "seed {seed}: not yet");
        let until = world.now + Span::from_millis(300);
        advance(&mut world, until);
        for (side, op) in ops {
            let silent = Err(Ended::Failed(Failure::Silent { after: timeout }));
            assert_eq!(world.take(side, op), Some(silent), "seed {seed}");
        }
    }
}
