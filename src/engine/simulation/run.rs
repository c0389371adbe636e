//! One run: what is due is posted and done, and after every step the promises are looked at.

use std::io::Write;

use super::plan::{Act, Broken, Message, Outcome, Plan, seconds};
use super::promises::Promises;
use super::traffic::Traffic;
use super::world::{World, address};
use crate::time::{Span, Time};

/// How often a run's measures are taken, where anything is compared.
const SAMPLE: Span = Span::from_millis(5);

/// What a run leaves behind besides its outcome.
#[derive(Default)]
pub struct Record {
    /// Every packet as it was sent, in the pcap format.
    pub pcap: Option<Box<dyn Write>>,
    /// A line for everything that happened. The same seed gives the same bytes.
    pub log: Option<Box<dyn Write>>,
    /// Compare all memory after every step, so that the time of what is wrong is exact. Slow.
    pub thorough: bool,
}

/// Runs a plan.
pub(super) fn run(plan: Plan, record: Record) -> Result<Outcome, Broken> {
    let longest = plan.messages.iter().map(|m| m.len).chain(plan.streams.iter().map(|s| s.len.1)).max().unwrap_or(0);
    let world = World::new(plan.shape.clone(), plan.config);
    let mut log = Log(record.log);
    if let Some(out) = record.pcap
        && let Err(e) = world.net.capture(out)
    {
        log.line(Time::ZERO, format_args!("the capture cannot be written: {e}"));
    }
    if log.0.is_some() {
        world.net.keep_fates();
    }
    if plan.acts.iter().any(|a| matches!(a.1, Act::Stray)) {
        world.net.snoop();
    }
    let mut run = Run {
        traffic: Traffic::new(plan.shape.seed, longest, plan.want.may_end),
        promises: Promises::new(&world, &plan),
        rng: fastrand::Rng::with_seed(plan.shape.seed ^ 0x57_12ea),
        world,
        log,
        outcome: Outcome::default(),
        thorough: record.thorough,
        plan,
    };
    let result = run.go();
    run.log.line(run.world.now, format_args!("end: {result:?}"));
    result.map(|()| run.outcome).map_err(|(promise, what)| Broken { promise, at: run.world.now, what })
}

/// A broken promise, and what was seen.
pub(super) type Seen = (&'static str, String);

struct Run {
    plan: Plan,
    world: World,
    traffic: Traffic,
    promises: Promises,
    rng: fastrand::Rng,
    log: Log,
    outcome: Outcome,
    thorough: bool,
}

impl Run {
    fn go(&mut self) -> Result<(), Seen> {
        for message in std::mem::take(&mut self.plan.messages) {
            self.traffic.add(message, None);
        }
        let mut acts = std::mem::take(&mut self.plan.acts).into_iter().peekable();
        let (limit, measured) = (self.plan.want.limit, !self.plan.want.ratios.is_empty());
        let mut sample = measured.then_some(Time::ZERO);
        loop {
            self.stream();
            let starts = self.plan.streams.iter().map(|s| s.start).filter(|&at| at > self.world.now).min();
            let due = [self.traffic.next(), acts.peek().map(|a| a.0), sample, starts];
            let until = due.into_iter().flatten().min().unwrap_or(limit).min(limit);
            while self.world.step(until) {
                self.check()?;
                if self.traffic.is_over() || self.wants_more() {
                    break;
                }
            }
            self.check()?;
            let acting = self.plan.want.whole && acts.peek().is_some();
            if self.traffic.is_over() && !self.wants_more() && starts.is_none() && !acting {
                break;
            }
            if self.world.now >= limit {
                return Err(("P8", format!("an operation never ended: {}", self.traffic.waiting())));
            }
            if sample.is_some_and(|at| at <= self.world.now) {
                self.promises.sample(&self.world, &self.outcome);
                sample = Some(self.world.now + SAMPLE);
            }
            while let Some((_, act)) = acts.next_if(|a| a.0 <= self.world.now) {
                self.act(act);
            }
            self.traffic.post(&mut self.world);
        }
        // What is to happen still, and what is held up anywhere, happens now, and must change nothing.
        for (_, act) in acts {
            self.act(act);
        }
        self.world.net.heal();
        let end = self.world.now + self.plan.want.settle;
        while self.world.step(end) {
            self.check()?;
        }
        self.traffic.check_memory()?;
        self.outcome.steps = self.world.steps;
        self.outcome.took = self.world.now.since(Time::ZERO);
        self.outcome.net = self.world.net.stats();
        for (p, bytes) in (0..self.plan.shape.planes.len() as u8).zip(&mut self.outcome.planes) {
            *bytes = (0..2).map(|host| self.world.net.carried(address(p, host))).sum();
        }
        self.promises.at_the_end(&self.world, &self.plan.want, &mut self.outcome)
    }

    /// True if a stream has room for another message now.
    fn wants_more(&self) -> bool {
        let now = self.world.now;
        let open = |s: &super::plan::Stream| s.start <= now && now < s.until;
        self.plan.streams.iter().enumerate().any(|(i, s)| open(s) && self.traffic.of(i) < s.at_once)
    }

    fn stream(&mut self) {
        let now = self.world.now;
        for (i, s) in self.plan.streams.iter().enumerate().filter(|(_, s)| s.start <= now && now < s.until) {
            for _ in self.traffic.of(i)..s.at_once {
                let message = Message {
                    from: s.from,
                    channel: s.channel,
                    class: s.class,
                    eager: s.eager,
                    send_at: now,
                    receive_at: now,
                    len: self.rng.usize(s.len.0..=s.len.1),
                    capacity: s.len.1,
                };
                self.traffic.add(message, Some(i));
            }
        }
        self.traffic.post(&mut self.world);
    }

    fn check(&mut self) -> Result<(), Seen> {
        let log = &mut self.log;
        for fate in self.world.net.take_fates() {
            let to = fate.qpn_psn.map_or(String::new(), |(qpn, psn)| format!(" for queue pair {qpn:#x}, PSN {psn:#x}"));
            log.line(fate.at, format_args!("packet from {} to {}{to}: {}", fate.src, fate.dst, fate.what));
        }
        let mut say = |at, side, text| log.line(at, format_args!("end {side}: {text}"));
        self.promises.after_a_step(&self.world, &mut say)?;
        self.traffic.check(&mut self.world, &mut self.outcome, &mut say)?;
        if self.thorough || self.world.steps.is_multiple_of(256) {
            self.traffic.check_memory()?;
            self.promises.now_and_then(&self.world)?;
        }
        Ok(())
    }

    fn act(&mut self, act: Act) {
        let world = &mut self.world;
        if !matches!(act, Act::Stray) {
            self.log.line(world.now, format_args!("{act:?}"));
        }
        match act {
            Act::Cut(cut) => world.net.add_cut(cut),
            Act::EndCut(cut) => world.net.end_cut(cut),
            Act::Heal(plane) => {
                world.net.heal_between(address(plane, 0), address(plane, 1));
                world.net.heal_between(address(plane, 1), address(plane, 0));
            }
            Act::Carrier { side, plane, up } => world.carrier(side, plane, up),
            Act::Error(side, lane) => {
                let id = world.ends[side].lanes[lane];
                world.ends[side].core.lanes_mut().fail(id);
            }
            Act::Overrun(side, plane) => {
                let per_plane = self.plan.shape.lanes_per_plane();
                let end = &mut world.ends[side];
                // Those that were made anew have other numbers.
                let session = end.core.session(end.session);
                let lanes: Vec<_> =
                    session.map(|s| s.stats().lanes.iter().map(|l| l.lane).collect()).unwrap_or_default();
                for &lane in lanes.iter().skip(usize::from(plane) * per_plane).take(per_plane) {
                    end.core.lanes_mut().fail(lane);
                }
            }
            Act::Drain(side, plane, on) => {
                let now = world.now;
                world.ends[side].core.drain(now, crate::lanes::PortId(plane), on);
            }
            Act::Stop(side, span) => {
                let until = world.now + span;
                world.ends[side].stopped = world.ends[side].stopped.max(until);
            }
            Act::Faults(plane, faults) => world.net.set_plane_faults(plane, faults),
            Act::Share(part, share) => world.net.set_share(part, share),
            Act::Dead(part, dead) => world.net.set_dead(part, dead),
            Act::Pause(part, span) => world.net.pause(part, span),
            Act::Stray => world.net.stray(),
            Act::Restart { side, noticed } => {
                world.restart(side, noticed);
                self.traffic.lose(side);
                self.promises.restarted(side);
            }
        }
    }
}

/// Where the event log goes.
struct Log(Option<Box<dyn Write>>);

impl Log {
    fn line(&mut self, at: Time, what: std::fmt::Arguments<'_>) {
        if let Some(out) = &mut self.0
            && writeln!(out, "{} {what}", seconds(at)).is_err()
        {
            self.0 = None;
        }
    }
}
