//! Two engines with one session over a simulated network, in virtual time.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::{ArrayQueue, SegQueue};

use super::plain::Plain;
use super::plan::Message;
use crate::class::{Class, Dscp};
use crate::embedded::{Embedded, EmbeddedConfig};
use crate::engine::{Command, Core, Ended, Lost, NewSession, OpId, Ops, Seen, SessionId};
use crate::lanes::{Control, LaneId, LaneSpec, MrId, PortId};
use crate::mem::Region;
use crate::sim::{Faults, Net, SimIo, SimPort, Switches};
use crate::spray::{LaneKind, LaneRole, Send, SessionConfig, Source};
use crate::time::{Span, Time};

const CLASSES: [Class; 2] = [Class::Latency, Class::Bulk];

/// A plane.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlaneShape {
    /// None: ideal.
    pub(super) switches: Option<Switches>,
    pub(super) mtu: u32,
}

impl Default for PlaneShape {
    fn default() -> Self {
        PlaneShape { switches: None, mtu: 1024 }
    }
}

/// What a world is made with.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) seed: u64,
    pub(super) planes: Vec<PlaneShape>,
    /// One way through an ideal plane.
    pub(super) delay: Span,
    /// Data lanes per plane and class.
    pub(super) data: u16,
    /// Windows stay open.
    pub(super) plain: bool,
    /// An engine is driven at most this much later than it should be.
    pub(super) sloth: Span,
    /// A queue pair takes up to this long to reach ERR.
    pub(super) slow_fence: Span,
    pub(super) faults: Faults,
}

impl Default for Shape {
    fn default() -> Self {
        Shape {
            seed: 1,
            planes: vec![PlaneShape::default(); 2],
            delay: Span::from_micros(10),
            data: 2,
            plain: false,
            sloth: Span::from_micros(5),
            slow_fence: Span::ZERO,
            faults: Faults::NONE,
        }
    }
}

impl Shape {
    /// Lanes of one plane, over all classes: a control lane each, and the data lanes.
    pub(super) fn lanes_per_plane(&self) -> usize {
        CLASSES.len() * (usize::from(self.data) + 1)
    }
}

pub(super) type Backend = Plain<Embedded<SimIo>>;

pub(super) struct End {
    pub(super) core: Core<Backend>,
    pub(super) session: SessionId,
    pub(super) lanes: Vec<LaneId>,
    commands: ArrayQueue<Command>,
    garbage: SegQueue<MrId>,
    ops: Arc<Ops>,
    /// Its process stands still until then.
    pub(super) stopped: Time,
    /// It is driven no sooner.
    ready: Time,
    /// Its session's bootstrap connection was reset.
    reset: Arc<AtomicBool>,
}

pub(super) struct World {
    pub(super) now: Time,
    pub(super) net: Net,
    pub(super) ends: [End; 2],
    pub(super) rng: fastrand::Rng,
    shape: Shape,
    config: SessionConfig,
    pub(super) steps: u64,
}

/// The address of a host on a plane.
pub(super) fn address(plane: u8, host: usize) -> IpAddr {
    IpAddr::from([10, plane, 0, 1 + host as u8])
}

impl End {
    fn new(shape: &Shape, seed: u64, io: SimIo) -> End {
        let embedded = EmbeddedConfig {
            seed,
            max_lanes: 256,
            max_keys: 4096,
            name: "sim",
            burst: 15 << 10,
            patience: Span::from_secs(100),
        };
        let ops = Arc::new(Ops::new(1024));
        let lanes = Plain::new(Embedded::new(embedded, io), shape.plain, embedded.seed, shape.slow_fence);
        End {
            core: Core::new(lanes, ops.clone()),
            session: SessionId { index: 0, generation: 0 },
            lanes: Vec::new(),
            commands: ArrayQueue::new(1024),
            garbage: SegQueue::new(),
            ops,
            stopped: Time::ZERO,
            ready: Time::ZERO,
            reset: Arc::new(AtomicBool::new(false)),
        }
    }
}

impl World {
    pub(super) fn new(shape: Shape, config: SessionConfig) -> World {
        let net = Net::new(shape.seed, shape.delay, shape.faults);
        let ends = [0, 1].map(|host| {
            let port =
                |(p, plane): (u8, &PlaneShape)| SimPort { plane: p.into(), addr: address(p, host), mtu: plane.mtu };
            let ports: Vec<SimPort> = (0..).zip(&shape.planes).map(port).collect();
            End::new(&shape, shape.seed.wrapping_mul(2) + host as u64, net.host(&ports))
        });
        for (p, plane) in (0..).zip(&shape.planes) {
            if let Some(switches) = plane.switches {
                net.set_switches(p, switches);
            }
        }
        let rng = fastrand::Rng::with_seed(!shape.seed);
        let mut world = World { now: Time::ZERO, net, ends, rng, shape, config, steps: 0 };
        world.join();
        world
    }

    /// Gives both ends a session with each other, as the bootstrap would.
    fn join(&mut self) {
        let (now, config) = (self.now, self.config);
        let ends = &mut self.ends;
        let domains = [ends[0].core.new_domain(), ends[1].core.new_domain()];
        let mut lanes = [Vec::new(), Vec::new()];
        let mut remakes = [Vec::new(), Vec::new()];
        for (plane, how) in (0..).zip(&self.shape.planes) {
            let mut entropy = 0;
            for class in CLASSES {
                for number in 0..=self.shape.data {
                    let kind = if number == 0 { LaneKind::Control } else { LaneKind::Data };
                    let (send_depth, receive_depth) = match kind {
                        LaneKind::Control => (config.control_slots, config.control_slots),
                        LaneKind::Data => (config.send_depth, config.immediates),
                    };
                    let mut made = Vec::new();
                    for (end, domain) in ends.iter_mut().zip(domains) {
                        let spec = LaneSpec {
                            port: PortId(plane),
                            domain,
                            class,
                            dscp: Dscp::default(),
                            send_depth,
                            receive_depth,
                            entropy,
                        };
                        let lane = end.core.lanes_mut().create(&spec).expect("room for a lane");
                        let address = end.core.lanes().address(lane).expect("it is there");
                        made.push((lane, spec, address));
                    }
                    for (side, end) in ends.iter_mut().enumerate() {
                        let (lane, _, _) = made[side];
                        end.core.lanes_mut().connect(lane, &made[1 - side].2).expect("connects");
                        let role = LaneRole {
                            port: PortId(plane),
                            peer_port: plane,
                            class,
                            kind,
                            peer_index: lanes[side].len() as u16,
                            mtu: how.mtu,
                            generation: 0,
                        };
                        lanes[side].push((lane, role));
                        remakes[side].push((made[side].1, made[1 - side].2));
                    }
                    entropy += 1;
                }
            }
        }
        let parts = lanes.into_iter().zip(remakes).zip(domains);
        for (end, ((lanes, remake), domain)) in ends.iter_mut().zip(parts) {
            end.lanes = lanes.iter().map(|l| l.0).collect();
            let new = NewSession { config, domain, lanes, remake, budgets: Vec::new() };
            end.session = end.core.add_session(now, new).expect("a session");
        }
        for end in ends {
            end.reset = Arc::new(AtomicBool::new(false));
            let reset = end.reset.clone();
            let witness = move || if reset.load(Ordering::Relaxed) { Seen::Gone } else { Seen::Nothing };
            end.core.watch(now, end.session, Box::new(witness));
        }
    }

    /// An end's process ends without a word, and another begins at the same addresses and joins the peer. The peer hears of
    /// it by its bootstrap connection, or not at all.
    pub(super) fn restart(&mut self, side: usize, noticed: bool) {
        let io = self.net.restart(self.ends[side].core.lanes().lanes.io());
        let seed = self.shape.seed ^ (self.steps + 1) << 20 ^ side as u64;
        let old = std::mem::replace(&mut self.ends[side], End::new(&self.shape, seed, io));
        self.ends[side].ready = self.now;
        drop(old);
        self.ends[1 - side].reset.store(noticed, Ordering::Relaxed);
        self.config.nonce = self.config.nonce.wrapping_add(1);
        self.join();
    }

    pub(super) fn planes(&self) -> u8 {
        self.shape.planes.len() as u8
    }

    /// Lanes that the session has at each end.
    pub(super) fn lanes(&self) -> usize {
        self.shape.planes.len() * self.shape.lanes_per_plane()
    }

    pub(super) fn register(&mut self, side: usize, region: &Region) -> MrId {
        self.ends[side].core.lanes_mut().register(region).expect("a key")
    }

    pub(super) fn send(&mut self, m: &Message, region: &Region, mr: MrId) -> OpId {
        let local = Source { mr, region: region.clone(), offset: 0, len: m.len as u64 };
        self.start_send(m.from, m.channel, m.class, local, m.eager)
    }

    pub(super) fn receive(&mut self, m: &Message, region: &Region, mr: MrId) -> OpId {
        let into = Source { mr, region: region.clone(), offset: 0, len: m.capacity as u64 };
        self.start_receive(1 - m.from, m.channel, into)
    }

    pub(super) fn start_send(&mut self, side: usize, channel: u32, class: Class, local: Source, eager: bool) -> OpId {
        let end = &mut self.ends[side];
        let op = end.ops.begin().expect("a free operation");
        let message = Send { channel, class, local, token: op.token(), rendezvous_only: !eager };
        end.commands.push(Command::Send(end.session, message)).expect("room");
        end.ready = self.now;
        op
    }

    pub(super) fn start_receive(&mut self, side: usize, channel: u32, into: Source) -> OpId {
        let end = &mut self.ends[side];
        let op = end.ops.begin().expect("a free operation");
        let session = end.session;
        end.commands.push(Command::Receive { session, channel, into, ordered: false, op }).expect("room");
        end.ready = self.now;
        op
    }

    /// All of a region that no end has registered yet.
    #[cfg(test)]
    pub(super) fn whole(&mut self, side: usize, region: &Region) -> Source {
        let mr = self.register(side, region);
        Source { mr, region: region.clone(), offset: 0, len: region.len() as u64 }
    }

    pub(super) fn take(&mut self, side: usize, op: OpId) -> Option<Result<u64, Ended>> {
        Some(self.take_lost(side, op)?.map_err(|lost| lost.why))
    }

    /// The same, with what is known about the arrival of a message that failed.
    pub(super) fn take_lost(&mut self, side: usize, op: OpId) -> Option<Result<u64, Lost>> {
        self.ends[side].ops.take(op)
    }

    /// An end hears that a port lost its carrier, or has it back.
    pub(super) fn carrier(&mut self, side: usize, plane: u8, up: bool) {
        self.ends[side].core.port_event(self.now, PortId(plane), up);
        self.ends[side].ready = self.now;
    }

    /// Drives an end although nothing is due, as the helper thread does now and then.
    #[cfg(test)]
    pub(super) fn drive(&mut self, side: usize) {
        let end = &mut self.ends[side];
        if end.stopped <= self.now {
            end.core.drive(self.now, &end.commands, &end.garbage);
        }
    }

    /// When something is to be done next.
    fn next(&self, side: usize) -> Option<Time> {
        let end = &self.ends[side];
        let busy = (!end.commands.is_empty()).then_some(self.now);
        let due = [end.core.next_timeout(), busy].into_iter().flatten().min()?;
        Some(due.max(end.ready).max(end.stopped))
    }

    /// Lets the next thing happen, but nothing after `until`. False if there is nothing before.
    pub(super) fn step(&mut self, until: Time) -> bool {
        let next = loop {
            let next = [self.next(0), self.next(1)];
            let bound = next.iter().flatten().fold(until, |a, &b| a.min(b));
            if !self.net.settle(bound) {
                break next;
            }
        };
        let Some(at) = next.iter().flatten().min().copied().filter(|&at| at < until) else {
            self.now = self.now.max(until);
            self.net.set_now(self.now);
            return false;
        };
        self.steps += 1;
        self.now = self.now.max(at) + Span::from_nanos(500);
        self.net.set_now(self.now);
        for (end, next) in self.ends.iter_mut().zip(next) {
            if next.is_some_and(|at| at <= self.now) {
                let sloth = self.rng.u64(..=self.shape.sloth.as_nanos());
                end.core.drive(self.now, &end.commands, &end.garbage);
                end.ready = self.now + Span::from_nanos(sloth);
            }
        }
        true
    }
}
