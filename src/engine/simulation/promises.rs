//! The promises of docs/failure-model.md that can be looked at from outside a run's messages.

use std::collections::BTreeMap;

use super::plan::{Measure, Outcome, Plan, Ratio, Want};
use super::run::Seen;
use super::world::{World, address};
use crate::spray::{Health, Subject};
use crate::time::{Span, Time};

/// What changes its state: end, session, number, kind and ports.
type Who = (usize, u16, u16, u8, u8, u8);

/// What was seen so far.
pub(super) struct Promises {
    /// Entries read of each end's log.
    read: [u64; 2],
    /// The last state of everything that ever changed it.
    states: BTreeMap<Who, Health>,
    /// Numbers of the lanes that were given up, each as often as that happened.
    lost: Vec<u16>,
    /// Queue pairs that an end may have.
    most: usize,
    samples: Vec<Sample>,
}

struct Sample {
    at: Time,
    received: u64,
    planes: Vec<u64>,
    /// Acknowledged, over both ends.
    lanes: Vec<u64>,
}

impl Promises {
    pub(super) fn new(world: &World, plan: &Plan) -> Promises {
        // A session that ended keeps its queue pairs until its end is known.
        let restarts = plan.acts.iter().filter(|a| matches!(a.1, super::plan::Act::Restart { .. })).count();
        Promises {
            read: [0; 2],
            states: BTreeMap::new(),
            lost: Vec::new(),
            most: world.lanes() * (1 + restarts),
            samples: Vec::new(),
        }
    }

    /// P7: every change of a state is in the log, and begins where the last one ended.
    pub(super) fn after_a_step(
        &mut self,
        world: &World,
        say: &mut impl FnMut(Time, usize, String),
    ) -> Result<(), Seen> {
        for (side, end) in world.ends.iter().enumerate() {
            let (entries, next) = end.core.log().since(self.read[side]);
            self.read[side] = next;
            for entry in entries {
                let t = entry.transition;
                let (port, peer_port) = (t.port.0, t.peer_port);
                say(
                    t.at,
                    side,
                    format!("{:?} port {port} to {peer_port}: {:?} -> {:?}, {:?}", t.subject, t.from, t.to, t.cause),
                );
                let (kind, number) = match t.subject {
                    Subject::Lane(number) => (0, number),
                    Subject::Way => (1, 0),
                    Subject::Peer => (2, 0),
                };
                if kind == 0 && t.to == Health::Dead {
                    self.lost.push(number);
                }
                let ways = if kind == 1 { (port, peer_port) } else { (0, 0) };
                let was = self.states.insert((side, entry.session, number, kind, ways.0, ways.1), t.to);
                if was.is_some_and(|was| was != t.from) {
                    return Err(("P7", format!("end {side}: {:?} was {was:?}, and the log says {t:?}", t.subject)));
                }
            }
        }
        Ok(())
    }

    /// P5: as many queue pairs as ever.
    pub(super) fn now_and_then(&self, world: &World) -> Result<(), Seen> {
        for (side, end) in world.ends.iter().enumerate() {
            let alive = end.core.lanes().alive;
            if alive > self.most {
                return Err(("P5", format!("end {side} has {alive} queue pairs, more than {}", self.most)));
            }
        }
        Ok(())
    }

    /// An end began anew, with an empty log.
    pub(super) fn restarted(&mut self, side: usize) {
        self.read[side] = 0;
        self.states.clear();
    }

    pub(super) fn sample(&mut self, world: &World, outcome: &Outcome) {
        let mut lanes = vec![0; world.lanes()];
        for end in &world.ends {
            let stats = end.core.session(end.session).map(|s| s.stats());
            for (sum, lane) in lanes.iter_mut().zip(stats.iter().flat_map(|s| &s.lanes)) {
                *sum += lane.bytes;
            }
        }
        let carried = |p: u8| world.net.carried(address(p, 0)) + world.net.carried(address(p, 1));
        self.samples.push(Sample {
            at: world.now,
            received: outcome.bytes,
            planes: (0..world.planes()).map(carried).collect(),
            lanes,
        });
    }

    /// What must hold when everything is over.
    pub(super) fn at_the_end(&self, world: &World, want: &Want, outcome: &mut Outcome) -> Result<(), Seen> {
        outcome.lanes_lost = self.lost.len() as u64;
        for (side, end) in world.ends.iter().enumerate() {
            let counters = end.core.lanes().lanes.counters();
            if counters.rnr_nak_sent > 0 {
                return Err(("P5", format!("end {side} had no receive for what its peer sent: {counters:?}")));
            }
            if counters.resp_remote_access_errors > 0 {
                return Err(("P2", format!("end {side} was written outside its windows: {counters:?}")));
            }
            let Some(session) = end.core.session(end.session).filter(|s| s.failure().is_none()) else {
                if want.may_end {
                    continue;
                }
                return Err(("P1", format!("the session of end {side} ended: {:?}", end.core.state(end.session))));
            };
            let stats = session.stats();
            let m = stats.messages;
            outcome.replayed += m.replayed;
            outcome.survived += m.survived;
            if m.duplicate_units + m.late_immediates > 0 {
                return Err(("P1", format!("a chunk arrived twice at end {side}: {m:?}")));
            }
            if m.failed > 0 && !want.may_end {
                return Err(("P1", format!("operations of end {side} failed: {m:?}")));
            }
            let windows = end.core.lanes().windows.saturating_sub(end.core.probe_windows() as _);
            if windows > 0 {
                return Err(("P5", format!("end {side} has {windows} windows open, and no operation")));
            }
            let dead = stats.lanes.iter().filter(|l| !l.alive).count();
            if want.all_back && dead > 0 {
                return Err(("P4", format!("{dead} lanes of end {side} have not returned")));
            }
        }
        self.now_and_then(world)?;
        if let Some(most) = want.slowest
            && outcome.slowest > most
        {
            return Err(("P3", format!("a message took {:?}, more than {most:?}", outcome.slowest)));
        }
        if let Some(most) = want.lanes_lost
            && outcome.lanes_lost > most
        {
            return Err(("P3", format!("{} lanes were given up, more than {most}", outcome.lanes_lost)));
        }
        want.ratios.iter().try_for_each(|ratio| self.compare(ratio))
    }

    fn compare(&self, r: &Ratio) -> Result<(), Seen> {
        let (now, before) = (self.rate(r.measure, r.between), self.rate(r.measure, r.before));
        let (Some(now), Some(before)) = (now, before) else {
            return Err(("expect", format!("nothing was measured: {r:?}")));
        };
        let unit = if matches!(r.measure, Measure::Share(_)) { "of all" } else { "Mb/s" };
        if now >= before * r.least {
            return Ok(());
        }
        let promise = if r.measure == Measure::OtherLanes { "P3" } else { "P4" };
        let (what, least) = (r.measure, r.least);
        Err((
            promise,
            format!("{what:?} was {before:.3} {unit}, then {now:.3}: {:.3} of it, not {least}", now / before),
        ))
    }

    /// A measure between two times: Mb/s, or the share of a plane.
    fn rate(&self, measure: Measure, (from, to): (Time, Time)) -> Option<f64> {
        let at = |t: Time| self.samples.iter().find(|s| s.at >= t);
        let (a, b) = (at(from)?, at(to)?);
        let ns = b.at.since(a.at).max(Span::from_nanos(1)).as_nanos() as f64;
        let mbps = |bytes: u64| bytes as f64 * 8e3 / ns;
        match measure {
            Measure::Goodput => Some(mbps(b.received - a.received)),
            Measure::Share(plane) => {
                let carried = |p: usize| (b.planes[p] - a.planes[p]) as f64;
                let all: f64 = (0..b.planes.len()).map(carried).sum();
                (usize::from(plane) < b.planes.len()).then(|| carried(usize::from(plane)) / all.max(1.0))
            }
            Measure::OtherLanes => {
                let kept = |i: &usize| !self.lost.contains(&(*i as u16));
                Some(mbps((0..b.lanes.len()).filter(kept).map(|i| b.lanes[i].saturating_sub(a.lanes[i])).sum()))
            }
        }
    }
}
