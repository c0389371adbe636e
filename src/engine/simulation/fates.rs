//! What a sender is told of its messages when the session dies, compared with what the receiver's application got.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::random::config;
use super::tests::seeds;
use super::world::{PlaneShape, Shape, World, address};
use crate::class::Class;
use crate::engine::{Ended, OpId, Seen};
use crate::lanes::Control;
use crate::mem::Region;
use crate::sim::Faults;
use crate::spray::{Failure, Fate, SessionConfig};
use crate::time::{Span, Time};

/// How a session dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Death {
    /// The peer's process is killed, and its end of the bootstrap connection closed by its system.
    Killed,
    /// The peer's host stands still for ever.
    Silent,
    /// Nothing gets through any more.
    Dark,
    /// The sender ends it.
    Here,
    /// The receiver ends it.
    There,
}

const DEATHS: [Death; 5] = [Death::Killed, Death::Silent, Death::Dark, Death::Here, Death::There];
const TIMEOUT: Span = Span::from_millis(200);
/// A typed error comes this soon after a sign that the peer is gone.
const SOON: Span = Span::from_millis(10);

struct Message {
    source: Region,
    send_at: Time,
    send: Option<OpId>,
    receive: Option<OpId>,
}

/// How many messages ended how.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    sent: u64,
    delivered: u64,
    not_delivered: u64,
    /// Of these the receiver had some.
    unknown: u64,
    unknown_but_there: u64,
}

fn one(seed: u64, count: &mut Count) -> Result<(), String> {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0xfa7e << 40);
    let death = DEATHS[seed as usize % DEATHS.len()];
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
    let rebuild = rng.bool();
    let mut world = World::new(shape, SessionConfig { session_timeout: TIMEOUT, ..config(seed, rebuild) });
    let gone = [0, 1].map(|_| Arc::new(AtomicBool::new(false)));
    for (end, gone) in world.ends.iter_mut().zip(gone.clone()) {
        let look = move || if gone.load(Ordering::Relaxed) { Seen::Gone } else { Seen::Nothing };
        end.core.watch(Time::ZERO, end.session, Box::new(look));
    }
    let dies = Time::from_nanos(rng.u64(50_000..6_000_000));
    // A plane fails at about the same time, so that fences are under way.
    let trouble = Time::from_nanos(dies.as_nanos().saturating_sub(rng.u64(..3_000_000)));
    let mut messages: Vec<Message> = (0..rng.usize(4..40))
        .map(|_| Message {
            source: Region::from_vec(vec![7; [rng.usize(..1024), rng.usize(1024..200_000)][rng.usize(..2)]]),
            send_at: Time::from_nanos(rng.u64(..dies.as_nanos() + 100_000)),
            send: None,
            receive: None,
        })
        .collect();
    messages.sort_by_key(|m| m.send_at);
    for (channel, m) in messages.iter_mut().enumerate() {
        // Some that nobody receives, some shorter than their receives.
        if rng.u8(..4) > 0 {
            let target = Region::from_vec(vec![0; m.source.len() + [0, 5000][rng.usize(..2)]]);
            let into = world.whole(1, &target);
            m.receive = Some(world.start_receive(1, channel as u32, into));
        }
    }
    let eager = rng.bool();
    let mut next = 0;
    let mut troubled = world.planes() == 1;
    loop {
        let due = messages.get(next).map(|m| m.send_at);
        let until = [due, (!troubled).then_some(trouble)].into_iter().flatten().min().unwrap_or(dies).min(dies);
        while world.step(until) {}
        if world.now >= dies {
            break;
        }
        if !troubled && world.now >= trouble {
            troubled = true;
            match rng.u8(..3) {
                0 => world.carrier(rng.usize(..2), 0, false),
                1 => world.net.cut(address(0, 0), address(0, 1)),
                _ => {
                    let (side, lane) = (rng.usize(..2), rng.usize(..world.ends[0].lanes.len()));
                    let id = world.ends[side].lanes[lane];
                    let _ = world.ends[side].core.lanes_mut().lanes.fence(id);
                }
            }
        }
        while let Some(m) = messages.get_mut(next).filter(|m| m.send_at <= world.now) {
            let class = [Class::Latency, Class::Bulk][rng.usize(..2)];
            let local = world.whole(0, &m.source);
            m.send = Some(world.start_send(0, next as u32, class, local, eager));
            next += 1;
        }
    }
    messages.truncate(next);
    let never = Time::from_nanos(u64::MAX / 2);
    let mut limit = SOON;
    let mut why = Ended::PeerGone;
    match death {
        Death::Killed => {
            world.ends[1].stopped = never;
            gone[0].store(true, Ordering::Relaxed);
        }
        Death::Silent => {
            world.ends[1].stopped = never;
            (limit, why) = (TIMEOUT.saturating_mul(2), Ended::Failed(Failure::Silent { after: TIMEOUT }));
        }
        Death::Dark => {
            for plane in 0..world.planes() {
                world.net.cut(address(plane, 0), address(plane, 1));
                world.net.cut(address(plane, 1), address(plane, 0));
            }
            (limit, why) = (TIMEOUT.saturating_mul(2), Ended::Failed(Failure::Silent { after: TIMEOUT }));
        }
        Death::Here | Death::There => {
            let side = usize::from(death == Death::There);
            let end = &mut world.ends[side];
            end.core.end(end.session, Ended::Cancelled);
            gone[1 - side].store(true, Ordering::Relaxed);
            if side == 0 {
                why = Ended::Cancelled;
            }
        }
    }
    // A session that has nothing under way hears no silence.
    let waits = death == Death::Silent || death == Death::Dark;
    let until = world.now + limit;
    while world.now < until {
        world.drive(0);
        world.drive(1);
        let slice = (world.now + Span::from_millis(5)).min(until);
        while world.step(slice) {}
    }
    world.drive(0);
    let mut left = 0;
    for (i, m) in messages.iter().enumerate() {
        let Some(send) = m.send else { continue };
        let result = world.take_lost(0, send);
        let got = m.receive.is_some_and(|op| matches!(world.take(1, op), Some(Ok(_))));
        let buffered = m.receive.is_none() && eager && m.source.len() <= 1024;
        match result {
            None => left += 1,
            Some(Ok(_)) => {
                count.sent += 1;
                if !got && !buffered {
                    return Err(format!("message {i} was sent, but did not arrive ({death:?})"));
                }
            }
            Some(Err(lost)) => {
                let ours =
                    lost.why == why || matches!(lost.why, Ended::Failed(Failure::Lane { .. } | Failure::Class(_)));
                if !ours {
                    return Err(format!("message {i} ended with {lost:?} ({death:?})"));
                }
                match lost.fate.ok_or("a send without a fate")? {
                    Fate::Delivered => count.delivered += 1,
                    Fate::NotDelivered => count.not_delivered += 1,
                    Fate::Unknown => {
                        count.unknown += 1;
                        count.unknown_but_there += u64::from(got);
                    }
                }
                let wrong = match lost.fate {
                    Some(Fate::Delivered) => !got && !buffered,
                    Some(Fate::NotDelivered) => got,
                    _ => false,
                };
                if wrong {
                    return Err(format!("message {i} ended with {lost:?}, but got is {got} ({death:?})"));
                }
            }
        }
    }
    // Nothing is silent while nothing is under way: those wait for a receive, and would for ever.
    let state = world.ends[0].core.state(world.ends[0].session);
    if left > 0 && !(waits && state == Some(crate::engine::SessionState::Open)) {
        return Err(format!("{left} messages have not ended ({death:?}, {state:?})"));
    }
    Ok(())
}

/// The sender's verdict never contradicts what the receiver's application got.
#[test]
fn senders_are_told_the_truth() {
    let mut count = Count::default();
    for seed in seeds(2000) {
        if let Err(broken) = one(seed, &mut count) {
            panic!(
                "seed {seed}: {broken}\nrun it alone: PLANESPRAY_SEED={seed} cargo test --lib simulation::fates -- --nocapture"
            );
        }
    }
    println!("{count:?}");
    if seeds(2000) == (0..2000) {
        assert!(count.not_delivered > 0 && count.unknown > 0 && count.sent > 0, "{count:?}");
        // So neither other verdict would have done for them.
        assert!((1..count.unknown).contains(&count.unknown_but_there), "{count:?}");
        assert!(count.not_delivered > count.unknown, "most is known: {count:?}");
    }
}
