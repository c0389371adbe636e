//! A run: hosts and flows over the planes, until all flows are done.

use std::collections::VecDeque;

use thiserror::Error;

use super::clock::{Delay, Happens};
use super::fabric::{Fabric, HEADER, Queues};
use super::faults::{Change, Conditions, Part};
use super::flow::{Flow, Rules};
use super::ideal::ideal_ns;
use super::layout::Layout;
use super::matrix::{Matrix, Start, TriggerKind};
use super::outcome::{Flowed, Outcome};
use super::packet::{Kind, Packet};
use super::topo::Topology;
use super::window::Law;
use crate::policy::{self, Tuning};
use crate::time::Span;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Each plane.
    pub topology: Topology,
    /// Equal planes, 1 to 8.
    pub planes: u8,
    /// Who sends what.
    pub matrix: Matrix,
    /// Slow and dead parts.
    pub changes: Vec<Change>,
    /// How flows are balanced.
    pub policy: policy::Kind,
    /// Values of this project's own policy.
    pub tuning: Tuning,
    /// Full queues cut off payloads instead of dropping packets.
    pub trim: bool,
    /// Switches send data to their shortest queue instead of by hash.
    pub adaptive: bool,
    /// Entropy values of a flow over all planes, a power of two from 8 to 4,096.
    pub paths: u16,
    /// Bytes of a chunk and fixed paths of a flow, if the policy decides by chunk.
    pub chunk: Option<(u32, u16)>,
    /// Nothing happens after this.
    pub limit: Span,
}

impl Scenario {
    /// One healthy plane with the peers' defaults: trimming, 256 paths, 100 ms at most.
    pub fn new(topology: Topology, matrix: Matrix, policy: policy::Kind) -> Scenario {
        Scenario {
            topology,
            planes: 1,
            matrix,
            changes: Vec::new(),
            policy,
            tuning: Tuning::default(),
            trim: true,
            adaptive: false,
            paths: 256,
            chunk: None,
            limit: Span::from_millis(100),
        }
    }
}

/// Why a scenario cannot be run.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{0}")]
pub struct ScenarioError(String);

/// Bytes of a full packet, and what of it is payload.
const FULL: u32 = 4150;
const PAYLOAD: u32 = FULL - HEADER;
const ACK_BYTES: u32 = 16 << 10;

/// Runs a scenario. The same seed gives the same outcome.
///
/// # Errors
///
/// Planes, paths, parts or hosts that do not exist, and policies that cannot decide by chunk.
pub fn run(scenario: &Scenario, seed: u64) -> Result<Outcome, ScenarioError> {
    check(scenario)?;
    let mut run = Run::new(scenario, seed);
    run.go();
    Ok(run.outcome(scenario, seed))
}

fn check(s: &Scenario) -> Result<(), ScenarioError> {
    let refuse = |what: String| Err(ScenarioError(what));
    if !(1..=8).contains(&s.planes) {
        return refuse(format!("{} planes: 1 to 8 are simulated", s.planes));
    }
    if !s.paths.is_power_of_two() || !(8..=4096).contains(&s.paths) {
        return refuse(format!("{} paths: a power of two from 8 to 4096 is needed", s.paths));
    }
    if s.topology.hosts != s.matrix.hosts {
        return refuse(format!("the fabric has {} hosts, the matrix {}", s.topology.hosts, s.matrix.hosts));
    }
    if let Some((bytes, lanes)) = s.chunk {
        if !s.policy.has_chunks() {
            return refuse(format!("`{}` decides by packet, not by chunk", s.policy));
        }
        if bytes == 0 || bytes > 1 << 24 || lanes == 0 || lanes > 1024 {
            return refuse("chunks have 1 byte to 16 MiB, and flows 1 to 1024 lanes".into());
        }
    }
    let layout = Layout::new(&s.topology);
    for c in &s.changes {
        Conditions::check(c.part, s.planes, &layout).map_err(|e| ScenarioError(e.to_string()))?;
    }
    for f in &s.matrix.failures {
        if s.topology.tiers.len() != 3 || layout.middle_link(f.switch, f.link).is_none() {
            return refuse(format!(
                "failure: there is no link {} of switch {} between tiers 1 and 2",
                f.link, f.switch
            ));
        }
    }
    Ok(())
}

/// A host: flows that wait for their turn and acknowledgements, which go first.
#[derive(Default)]
struct Host {
    busy: u8,
    waiting: VecDeque<u32>,
    control: VecDeque<Packet>,
    turn: u8,
}

/// Acknowledgements that go before a flow that waits has its turn.
const CONTROL_FIRST: u8 = 10;

struct TriggerState {
    kind: TriggerKind,
    count: u32,
    waiting: VecDeque<u32>,
}

struct Run {
    fabric: Fabric,
    rules: Rules,
    flows: Vec<Flow>,
    hosts: Vec<Host>,
    ports: u8,
    /// The time that a full packet and a header take to leave a host.
    sending: [Delay; 2],
    ps_per_byte: u64,
    triggers: Vec<(u32, TriggerState)>,
    /// Triggers of each flow: when sent, when received.
    sets_off: Vec<[Option<u32>; 2]>,
    open: usize,
    topology: Topology,
    conditions: Conditions,
    changes: Vec<Change>,
    limit: u64,
    random: fastrand::Rng,
}

impl Run {
    fn new(s: &Scenario, seed: u64) -> Run {
        let t = &s.topology;
        let host_rate = u64::from(t.host_gbps()) * 1_000_000_000;
        let rtt = unloaded_ps(t);
        let packets = (rtt as f64 * host_rate as f64 / 8e12 / f64::from(FULL)).ceil();
        let limit = packets as u32 * FULL * if s.trim { 1 } else { 5 };
        let mark = |share: f64| (packets * share).ceil() as u32 * FULL;
        let queues = Queues { limit, mark: (mark(0.2), mark(0.8)), trim: s.trim, adaptive: s.adaptive, full: FULL };
        let rules = Rules {
            law: Law::new(FULL, PAYLOAD, rtt, host_rate * u64::from(s.planes), s.trim),
            full: FULL,
            payload: PAYLOAD,
            ack_bytes: ACK_BYTES,
            rto: 15_000_000 + u64::from(limit) * 6 * 8 * 1_000_000_000 / host_rate * 1000,
        };
        let mut fabric = Fabric::new(t, s.planes, queues, seed);
        let mut random = fastrand::Rng::with_seed(seed ^ 0x9e37_79b9_7f4a_7c15);
        let ps_per_byte = 8_000_000_000_000 / host_rate;
        let need = "few delays are known so far";
        let sending = [FULL, HEADER].map(|n| fabric.clock.delay(u64::from(n) * ps_per_byte).expect(need));
        let setup = policy::Setup {
            planes: s.planes,
            paths: s.paths,
            rtt: Span::from_nanos(rtt / 1000),
            chunk: s.chunk.map(|(bytes, lanes)| (bytes.div_ceil(PAYLOAD) as u16, lanes)),
            tuning: s.tuning,
        };
        let mut triggers: Vec<(u32, TriggerState)> = s
            .matrix
            .triggers
            .iter()
            .map(|t| (t.id, TriggerState { kind: t.kind, count: 0, waiting: VecDeque::new() }))
            .collect();
        triggers.sort_by_key(|t| t.0);
        let mut flows = Vec::new();
        let mut sets_off = Vec::new();
        for (i, f) in s.matrix.flows.iter().enumerate() {
            let policy = s.policy.build(setup, &mut random);
            let start = match f.start {
                Start::At(us) => u64::from(us) * 1_000_000,
                Start::Trigger(id) => {
                    if let Ok(at) = triggers.binary_search_by_key(&id, |t| t.0) {
                        triggers[at].1.waiting.push_back(i as u32);
                    }
                    u64::MAX
                }
            };
            flows.push(Flow::new(&rules, (f.from, f.to), f.bytes, start, s.planes, policy));
            if start != u64::MAX {
                fabric.clock.at(start, Happens::Start(i as u32));
            }
            sets_off.push([f.when_sent, f.when_received]);
        }
        let mut changes = s.changes.clone();
        changes.sort_by_key(|c| c.at);
        let mut run = Run {
            fabric,
            rules,
            open: flows.len(),
            flows,
            hosts: (0..t.hosts).map(|_| Host::default()).collect(),
            ports: s.planes,
            sending,
            ps_per_byte,
            triggers,
            sets_off,
            topology: t.clone(),
            conditions: Conditions::new(s.planes),
            changes,
            limit: s.limit.as_nanos().saturating_mul(1000),
            random,
        };
        // What holds from the start holds before the first packet is sent.
        for i in 0..run.changes.len() {
            match run.changes[i].at.as_nanos() {
                0 => run.change(i),
                ns => run.fabric.clock.at(ns * 1000, Happens::Change(i as u32)),
            }
        }
        for f in &s.matrix.failures {
            for plane in 0..s.planes {
                run.conditions.apply(Part::MiddleLink { plane, switch: f.switch, port: f.link }, 0.0);
                run.fabric.set_speeds(plane, &run.topology, &run.conditions);
            }
        }
        run
    }

    fn go(&mut self) {
        while self.open > 0 {
            let Some(what) = self.fabric.clock.next(self.limit) else { break };
            match what {
                Happens::Served(link) => self.fabric.served(link),
                Happens::Arrives { link, packet } => {
                    if self.fabric.arrives(link, packet).is_some() {
                        self.arrived(packet);
                    }
                }
                Happens::Queued { link, packet } => self.fabric.queue(link, packet),
                Happens::HostFree(host) => self.host_free(host),
                Happens::Timer(flow) => self.timer(flow),
                Happens::Start(flow) => self.go_on(flow),
                Happens::Change(which) => self.change(which as usize),
            }
        }
    }

    fn change(&mut self, which: usize) {
        let Change { part, speed, .. } = self.changes[which];
        self.conditions.apply(part, speed);
        for plane in 0..self.ports {
            let touched = match part {
                Part::Plane(p) | Part::Link { plane: p, .. } | Part::HostPort { plane: p, .. } => p == plane,
                Part::MiddleLink { plane: p, .. } => p == plane,
                Part::Spine { plane: p, .. } => p.is_none_or(|p| p == plane),
            };
            if touched {
                self.fabric.set_speeds(plane, &self.topology, &self.conditions);
            }
        }
    }

    /// A packet is at its host.
    fn arrived(&mut self, at: u32) {
        let p = self.fabric.packets[at];
        self.fabric.packets.remove(at);
        let now = self.fabric.clock.now();
        let flow = &mut self.flows[p.flow as usize];
        match p.kind {
            Kind::Data | Kind::Trimmed | Kind::Probe => {
                let before = flow.is_received();
                let answer = flow.receive(&self.rules, p.flow, &p);
                let (host, done) = (flow.to, !before && flow.is_received());
                if let Some(answer) = answer {
                    self.control(host, answer);
                }
                if done && let Some(trigger) = self.sets_off[p.flow as usize][1] {
                    self.set_off(trigger);
                }
                return;
            }
            Kind::Ack => {
                let was = flow.finished.is_some();
                flow.acknowledged(&self.rules, now, &p);
                if flow.finished.is_some() {
                    if !was {
                        self.open -= 1;
                        if let Some(trigger) = self.sets_off[p.flow as usize][0] {
                            self.set_off(trigger);
                        }
                    }
                    return;
                }
            }
            Kind::Nack => flow.trimmed(&self.rules, now, &p),
            Kind::Answer => flow.probed(now, &p),
        }
        let flow = &mut self.flows[p.flow as usize];
        if flow.finished.is_none()
            && let Some(probe) = flow.probe(p.flow, now)
        {
            let host = flow.from;
            self.control(host, probe);
        }
        self.go_on(p.flow);
    }

    fn set_off(&mut self, id: u32) {
        let Ok(at) = self.triggers.binary_search_by_key(&id, |t| t.0) else { return };
        let t = &mut self.triggers[at].1;
        t.count += 1;
        let go = match t.kind {
            TriggerKind::OneShot => t.waiting.len(),
            TriggerKind::MultiShot => 1,
            TriggerKind::Barrier(n) if t.count == n => t.waiting.len(),
            TriggerKind::Barrier(_) => 0,
        };
        for _ in 0..go {
            let Some(flow) = self.triggers[at].1.waiting.pop_front() else { return };
            let now = self.fabric.clock.now();
            self.flows[flow as usize].start = now;
            self.fabric.clock.at(now, Happens::Start(flow));
        }
    }

    /// Sends what a flow may send, or lets it wait for its host's turn.
    fn go_on(&mut self, name: u32) {
        loop {
            let flow = &mut self.flows[name as usize];
            if flow.waits || !flow.may_send(&self.rules) {
                return;
            }
            let host = &mut self.hosts[flow.from as usize];
            if host.busy == self.ports {
                host.waiting.push_back(name);
                flow.waits = true;
                return;
            }
            if !self.send(name) {
                return;
            }
        }
    }

    /// Sends a flow's next packet.
    fn send(&mut self, name: u32) -> bool {
        let now = self.fabric.clock.now();
        let flow = &mut self.flows[name as usize];
        let Some(packet) = flow.send(&self.rules, name, now, &mut self.random) else { return false };
        let host = flow.from;
        if flow.timer_at == u64::MAX {
            flow.timer_at = now + self.rules.rto;
            self.fabric.clock.at(flow.timer_at, Happens::Timer(name));
        }
        if flow.is_tail() {
            self.arm(name);
        }
        self.busy(host, packet.size.into());
        self.fabric.send(host, packet);
        true
    }

    fn busy(&mut self, host: u32, size: u32) {
        self.hosts[host as usize].busy += 1;
        let what = Happens::HostFree(host);
        match size {
            FULL => self.fabric.clock.after(self.sending[0], what),
            HEADER => self.fabric.clock.after(self.sending[1], what),
            _ => self.fabric.clock.at(self.fabric.clock.now() + u64::from(size) * self.ps_per_byte, what),
        }
    }

    /// A header leaves a host, at once or when it is free.
    fn control(&mut self, host: u32, packet: Packet) {
        if self.hosts[host as usize].busy < self.ports {
            self.busy(host, HEADER);
            self.fabric.send(host, packet);
        } else {
            self.hosts[host as usize].control.push_back(packet);
        }
    }

    fn host_free(&mut self, at: u32) {
        let host = &mut self.hosts[at as usize];
        host.busy -= 1;
        let mut data_first = host.control.is_empty();
        if !data_first && !host.waiting.is_empty() {
            host.turn = (host.turn + 1) % (CONTROL_FIRST + 1);
            data_first = host.turn == 0;
        }
        if data_first {
            while let Some(name) = self.hosts[at as usize].waiting.pop_front() {
                let flow = &mut self.flows[name as usize];
                flow.waits = false;
                if !flow.may_send(&self.rules) || !self.send(name) {
                    continue;
                }
                let flow = &mut self.flows[name as usize];
                if flow.may_send(&self.rules) {
                    flow.waits = true;
                    self.hosts[at as usize].waiting.push_back(name);
                }
                return;
            }
        }
        if let Some(packet) = self.hosts[at as usize].control.pop_front() {
            self.busy(at, HEADER);
            self.fabric.send(at, packet);
        }
    }

    fn timer(&mut self, name: u32) {
        let now = self.fabric.clock.now();
        let flow = &mut self.flows[name as usize];
        if flow.finished.is_some() || now < flow.timer_at {
            return;
        }
        flow.timer_at = u64::MAX;
        if flow.deadline(&self.rules).is_some_and(|at| at <= now) {
            flow.timer(&self.rules, now);
        }
        self.arm(name);
        self.go_on(name);
    }

    /// Sets a flow's timer if it is to run out earlier than it would.
    fn arm(&mut self, name: u32) {
        let flow = &mut self.flows[name as usize];
        if let Some(at) = flow.deadline(&self.rules)
            && at < flow.timer_at
        {
            flow.timer_at = at;
            self.fabric.clock.at(at, Happens::Timer(name));
        }
    }

    fn outcome(&self, s: &Scenario, seed: u64) -> Outcome {
        let wire = |bytes: u32| u64::from(bytes) + u64::from(bytes.div_ceil(PAYLOAD)) * u64::from(HEADER);
        let rtt_us = self.rules.law.rtt as f64 / 1e6;
        let ideal_us = ideal_ns(&s.topology, s.planes, &self.changes, &s.matrix, wire) / 1e3 + rtt_us;
        let flowed = self
            .flows
            .iter()
            .zip(&s.matrix.flows)
            .map(|(f, spec)| Flowed { bytes: spec.bytes, us: f.finished.map(|at| (at - f.start) as f64 / 1e6) });
        let mut per_plane_bytes = vec![0; usize::from(s.planes)];
        for f in &self.flows {
            f.plane_bytes.iter().zip(&mut per_plane_bytes).for_each(|(a, b)| *b += a);
        }
        let sum = |of: fn(&Flow) -> u64| self.flows.iter().map(of).sum();
        let tally = &self.fabric.tally;
        Outcome {
            policy: s.policy,
            seed,
            flows: flowed.collect(),
            ideal_us,
            rtt_us,
            packets: self.flows.iter().map(|f| u64::from(f.records.next)).sum(),
            retransmissions: sum(|f| f.tally.retransmitted),
            spurious: sum(|f| f.spurious),
            timeouts: sum(|f| f.tally.timeouts),
            given_up: sum(|f| f.tally.given_up),
            trims: tally.trimmed,
            drops: tally.dropped,
            swallowed: tally.swallowed,
            marks: tally.marked,
            per_plane_bytes,
            packet_hops: tally.data_hops,
            header_hops: tally.header_hops,
        }
    }
}

/// The round trip of a full packet and its acknowledgement between the hosts that are furthest apart.
fn unloaded_ps(t: &Topology) -> u64 {
    let sending = u64::from(FULL + HEADER) * 8000 / u64::from(t.host_gbps());
    2 * t.latency_ns() * 1000 + sending * u64::from(t.longest())
}
