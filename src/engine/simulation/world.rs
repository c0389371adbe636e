//! Two engines with one session over a simulated network, in virtual time.

use std::net::IpAddr;
use std::sync::Arc;

use crossbeam_queue::{ArrayQueue, SegQueue};

use super::plain::Plain;
use crate::class::{Class, Dscp};
use crate::embedded::{Embedded, EmbeddedConfig};
use crate::engine::{Command, Core, Ended, Lost, NewSession, OpId, Ops, Seen, SessionId};
use crate::lanes::{Control, LaneEvent, LaneId, LaneSpec, MrId, PortId};
use crate::mem::Region;
use crate::sim::{Faults, Net, SimIo, SimPort};
use crate::spray::{LaneKind, LaneRole, Send, SessionConfig, Source};
use crate::time::{Span, Time};

/// One way.
const DELAY: Span = Span::from_micros(10);
const CLASSES: [Class; 2] = [Class::Latency, Class::Bulk];

/// What a world is made with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) seed: u64,
    pub(super) planes: u8,
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
}

pub(super) struct World {
    pub(super) now: Time,
    pub(super) net: Net,
    pub(super) ends: [End; 2],
    pub(super) rng: fastrand::Rng,
    shape: Shape,
    pub(super) steps: u64,
}

/// The address of a host on a plane.
pub(super) fn address(plane: u8, host: usize) -> IpAddr {
    IpAddr::from([10, plane, 0, 1 + host as u8])
}

impl World {
    pub(super) fn new(shape: Shape, config: SessionConfig) -> World {
        let net = Net::new(shape.seed, DELAY, shape.faults);
        let mut cores = [0, 1].map(|host| {
            let ports: Vec<SimPort> =
                (0..shape.planes).map(|p| SimPort { plane: p.into(), addr: address(p, host), mtu: 1024 }).collect();
            let embedded = EmbeddedConfig {
                seed: shape.seed.wrapping_mul(2) + host as u64,
                max_lanes: 256,
                max_keys: 2048,
                name: "sim",
                burst: 15 << 10,
                patience: Span::from_secs(100),
            };
            let ops = Arc::new(Ops::new(1024));
            let lanes =
                Plain::new(Embedded::new(embedded, net.host(&ports)), shape.plain, embedded.seed, shape.slow_fence);
            (Core::new(lanes, ops.clone()), ops)
        });
        let domains = [cores[0].0.new_domain(), cores[1].0.new_domain()];
        let mut lanes = [Vec::new(), Vec::new()];
        let mut remakes = [Vec::new(), Vec::new()];
        for plane in 0..shape.planes {
            let mut entropy = 0;
            for class in CLASSES {
                for number in 0..=shape.data {
                    let kind = if number == 0 { LaneKind::Control } else { LaneKind::Data };
                    let (send_depth, receive_depth) = match kind {
                        LaneKind::Control => (config.control_slots, config.control_slots),
                        LaneKind::Data => (config.send_depth, config.immediates),
                    };
                    let mut made = Vec::new();
                    for (core, domain) in cores.iter_mut().zip(domains) {
                        let spec = LaneSpec {
                            port: PortId(plane),
                            domain,
                            class,
                            dscp: Dscp::default(),
                            send_depth,
                            receive_depth,
                            entropy,
                        };
                        let lane = core.0.lanes_mut().create(&spec).expect("room for a lane");
                        let address = core.0.lanes().address(lane).expect("it is there");
                        made.push((lane, spec, address));
                    }
                    for (side, core) in cores.iter_mut().enumerate() {
                        let (lane, _, _) = made[side];
                        core.0.lanes_mut().connect(lane, &made[1 - side].2).expect("connects");
                        let role = LaneRole {
                            port: PortId(plane),
                            peer_port: plane,
                            class,
                            kind,
                            peer_index: lanes[side].len() as u16,
                            mtu: 1024,
                            generation: 0,
                        };
                        lanes[side].push((lane, role));
                        remakes[side].push((made[side].1, made[1 - side].2));
                    }
                    entropy += 1;
                }
            }
        }
        let mut lanes = lanes.into_iter();
        let mut domains = domains.into_iter();
        let mut remakes = remakes.into_iter();
        let ends = cores.map(|(mut core, ops)| {
            let (lanes, domain) = (lanes.next().expect("two"), domains.next().expect("two"));
            let remake = remakes.next().expect("two");
            let ids = lanes.iter().map(|l| l.0).collect();
            let new = NewSession { config, domain, lanes, remake, budgets: Vec::new() };
            let session = core.add_session(Time::ZERO, new).expect("a session");
            End {
                core,
                session,
                lanes: ids,
                commands: ArrayQueue::new(1024),
                garbage: SegQueue::new(),
                ops,
                stopped: Time::ZERO,
                ready: Time::ZERO,
            }
        });
        let mut world =
            World { now: Time::ZERO, net, ends, rng: fastrand::Rng::with_seed(!shape.seed), shape, steps: 0 };
        for end in &mut world.ends {
            end.core.watch(Time::ZERO, end.session, Box::new(|| Seen::Nothing));
        }
        world
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(super) fn register(&mut self, side: usize, region: &Region) -> MrId {
        self.ends[side].core.lanes_mut().register(region).expect("a key")
    }

    pub(super) fn send(&mut self, side: usize, channel: u32, class: Class, region: &Region, eager: bool) -> OpId {
        let mr = self.register(side, region);
        let end = &mut self.ends[side];
        let op = end.ops.begin().expect("a free operation");
        let local = Source { mr, region: region.clone(), offset: 0, len: region.len() as u64 };
        let message = Send { channel, class, local, token: op.token(), rendezvous_only: !eager };
        end.commands.push(Command::Send(end.session, message)).expect("room");
        end.ready = self.now;
        op
    }

    pub(super) fn receive(&mut self, side: usize, channel: u32, region: &Region) -> OpId {
        let mr = self.register(side, region);
        let end = &mut self.ends[side];
        let op = end.ops.begin().expect("a free operation");
        let into = Source { mr, region: region.clone(), offset: 0, len: region.len() as u64 };
        let receive = Command::Receive { session: end.session, channel, into, ordered: false, op };
        end.commands.push(receive).expect("room");
        end.ready = self.now;
        op
    }

    pub(super) fn take(&mut self, side: usize, op: OpId) -> Option<Result<u64, Ended>> {
        Some(self.take_lost(side, op)?.map_err(|lost| lost.why))
    }

    /// The same, with what is known about the arrival of a message that failed.
    pub(super) fn take_lost(&mut self, side: usize, op: OpId) -> Option<Result<u64, Lost>> {
        self.ends[side].ops.take(op)
    }

    pub(super) fn event(&mut self, side: usize, event: &LaneEvent) {
        let now = self.now;
        self.ends[side].core.lane_event(now, event);
        self.ends[side].ready = now;
    }

    /// Drives an end although nothing is due, as the helper thread does now and then.
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
        let next = [self.next(0), self.next(1)];
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
