//! From a TCP address to a session: the handshake, the lanes, and who waits for what.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout};

use super::connection::{Connection, Peer};
use super::error::{Error, at_address};
use super::fabric::{Fabric, Inner, Listener};
use super::probe::{self, Prober};
use crate::bootstrap::tcp::{self, Connector, Incoming, ListenerConfig, Peering};
use crate::bootstrap::{
    FEATURE_PROBES, Hello, LaneKind as PlannedKind, LanePlan, Limits, PlaneOffer, Refusal, Role, Step,
};
use crate::engine::{NewSession, SessionId};
use crate::lanes::{Control, Domain, LaneAddress, LaneError, LaneId, LaneSpec};
use crate::spray::{LaneKind, LaneRole, SessionConfig};
use crate::time::{Span, Time};

/// Longest sleep while a handshake is under way.
const SLEEP_MS: u16 = 20;

pub(super) fn listen(fabric: &Fabric, addr: SocketAddr) -> Result<Listener, Error> {
    let inner = &fabric.inner;
    let listener = tcp::Listener::bind(addr, inner.auth.clone(), hello(inner), ListenerConfig::default())
        .map_err(|e| at_address(addr, e))?;
    let local = listener.local_addr().map_err(|source| Error::System {
        call: "getsockname",
        subject: addr.to_string(),
        source,
        hint: "the listening socket is unusable; listen again",
    })?;
    let waiting = Waiting { listener, rising: Vec::new() };
    Ok(Listener { fabric: fabric.clone(), local, waiting: parking_lot::Mutex::new(waiting) })
}

pub(super) fn connect(fabric: &Fabric, addr: SocketAddr, timeout: Duration) -> Result<Connection, Error> {
    let inner = &fabric.inner;
    let deadline = inner.shared.now() + Span::from(timeout);
    let mut connector = Connector::new(addr, inner.auth.clone(), hello(inner), deadline)?;
    let mut rising = loop {
        if let Some(peering) = connector.poll(inner.shared.now()).map_err(|e| at_address(addr, e))? {
            break Rising::new(peering);
        }
        // Between two attempts, or until the three-way handshake is through: about one round trip.
        std::thread::sleep(Duration::from_micros(200));
    };
    loop {
        let up = rising.advance(inner)?;
        if up {
            return rising.finish(inner);
        }
        let mut fds = Vec::new();
        rising.fds(&mut fds);
        sleep(&fds, rising.peering.wants_write(), rising.patience(inner.shared.now()));
    }
}

/// What a listener is busy with.
pub(super) struct Waiting {
    listener: tcp::Listener,
    rising: Vec<Rising>,
}

impl Waiting {
    /// Lets go of those that are not connected yet.
    pub(super) fn abandon(&mut self, fabric: &Inner) {
        for mut rising in self.rising.drain(..) {
            rising.undo(fabric);
        }
    }

    /// Goes on as far as it can; the first that is connected.
    pub(super) fn poll(&mut self, fabric: &Fabric) -> Result<Option<Connection>, Error> {
        let inner = &fabric.inner;
        *self.listener.hello_mut() = hello(inner);
        let now = inner.shared.now();
        while let Some(incoming) = self.listener.poll(now) {
            match incoming {
                Incoming::Peer(peering) => self.rising.push(Rising::new(*peering)),
                Incoming::Rejected { addr, error } => tracing::warn!(peer = %addr, "rejected: {error}"),
            }
        }
        let mut index = 0;
        while index < self.rising.len() {
            match self.rising[index].advance(inner) {
                Ok(true) => return self.rising.remove(index).finish(inner).map(Some),
                Ok(false) => index += 1,
                Err(error) => {
                    let peering = self.rising.remove(index).peering;
                    tracing::warn!(peer = %peering.peer_addr(), "handshake failed: {error}");
                    if matches!(error, Error::Engine(_)) {
                        peering.refuse(Refusal::NoLanes);
                    }
                }
            }
        }
        Ok(None)
    }

    pub(super) fn accept(&mut self, fabric: &Fabric, timeout: Duration) -> Result<Connection, Error> {
        let inner = &fabric.inner;
        let deadline = inner.shared.now() + Span::from(timeout);
        loop {
            if let Some(connection) = self.poll(fabric)? {
                return Ok(connection);
            }
            let now = inner.shared.now();
            if now >= deadline {
                return Err(Error::TimedOut { after: timeout });
            }
            let left = deadline.since(now).as_nanos() / 1_000_000 + 1;
            let mut fds = Vec::new();
            self.listener.fds(&mut fds);
            self.rising.iter().for_each(|r| r.fds(&mut fds));
            let left = self.rising.iter().map(|r| r.patience(now)).min().map_or(left, |p| left.min(u64::from(p)));
            let writing = self.rising.iter().any(|r| r.peering.wants_write());
            sleep(&fds, writing, left.min(u64::from(SLEEP_MS)) as u16);
        }
    }
}

/// A peer that has authenticated and is not connected yet.
pub(super) struct Rising {
    peering: Peering,
    prober: Prober,
    domain: Domain,
    config: SessionConfig,
    lanes: Vec<LaneId>,
    specs: Vec<LaneSpec>,
    session: Option<SessionId>,
}

impl Rising {
    pub(super) fn new(peering: Peering) -> Rising {
        Rising {
            peering,
            prober: Prober::default(),
            domain: Domain(0),
            config: SessionConfig::default(),
            lanes: Vec::new(),
            specs: Vec::new(),
            session: None,
        }
    }

    /// What becomes readable when it can go on.
    fn fds<'a>(&'a self, out: &mut Vec<BorrowedFd<'a>>) {
        out.push(self.peering.as_fd());
        self.prober.fds(out);
    }

    /// How many milliseconds it can be left alone.
    fn patience(&self, now: Time) -> u16 {
        let due = self.prober.next_timeout().map_or(u64::MAX, |t| t.since(now).as_nanos() / 1_000_000 + 1);
        due.min(u64::from(SLEEP_MS)) as u16
    }

    /// Goes on as far as it can; true once both ends are ready. After an error nothing of it is left.
    pub(super) fn advance(&mut self, fabric: &Inner) -> Result<bool, Error> {
        let result = self.try_advance(fabric);
        if result.is_err() {
            self.undo(fabric);
        }
        result
    }

    pub(super) fn undo(&mut self, fabric: &Inner) {
        let mut core = fabric.shared.lock();
        match self.session.take() {
            Some(session) => core.remove(session),
            None => {
                for lane in self.lanes.drain(..) {
                    let _ = core.lanes_mut().destroy(lane);
                }
            }
        }
    }

    fn try_advance(&mut self, fabric: &Inner) -> Result<bool, Error> {
        loop {
            let now = fabric.shared.now();
            match self.peering.poll(now)? {
                Step::NeedIo => return Ok(false),
                Step::Done => return Ok(true),
                Step::OpenProbes => {
                    let core = fabric.shared.lock();
                    // Only an engine with sockets offers to probe.
                    let io = core.lanes().udp().ok_or(LaneError::Invalid { what: "probing without sockets" })?;
                    self.peering.provide_probes(self.prober.open(io)?)?;
                }
                Step::PeerProbes(ports) => {
                    let ports = ports.to_vec();
                    let handshake = self.peering.handshake();
                    let Some(peer) = handshake.peer_hello() else { return Ok(false) };
                    let hellos = (handshake.hello(), peer);
                    let mut core = fabric.shared.lock();
                    let io =
                        core.lanes_mut().udp_mut().ok_or(LaneError::Invalid { what: "probing without sockets" })?;
                    match self.prober.advance(now, handshake.role(), hellos, &ports, io) {
                        Some(report) => self.peering.report(report)?,
                        None => return Ok(false),
                    }
                }
                Step::PeerHello(_) | Step::Reached(_) => {
                    self.heed_probes(fabric);
                    let Some(peer) = self.peering.handshake().peer_hello() else { return Ok(false) };
                    let limits = peer.limits;
                    let plan = self.peering.handshake().plan().to_vec();
                    let role = self.peering.handshake().role();
                    self.config = agree(fabric, &limits);
                    let addresses = self.make(fabric, &plan, role)?;
                    self.peering.provide_lanes(addresses)?;
                }
                Step::PeerLanes(peers) => {
                    let peers = peers.to_vec();
                    let handshake = self.peering.handshake();
                    let (plan, role) = (handshake.plan().to_vec(), handshake.role());
                    self.config.nonce = handshake.session();
                    let budgets = handshake.peer_hello().map(|h| {
                        let budget = |(i, p): (usize, &PlaneOffer)| (i as u8, p.receive_budget);
                        h.planes.iter().enumerate().map(budget).collect()
                    });
                    self.begin(fabric, now, &plan, role, &peers, budgets.unwrap_or_default())?;
                    self.peering.ready()?;
                }
            }
        }
    }

    /// Acts on what the probes showed, if there were any.
    fn heed_probes(&mut self, fabric: &Inner) {
        self.prober.close();
        let handshake = self.peering.handshake();
        if let (Some(report), Some(peer)) = (handshake.peer_report(), handshake.peer_hello()) {
            if let Some(io) = fabric.shared.lock().lanes_mut().udp_mut() {
                probe::heed(io, report);
            }
            let hellos = (handshake.hello(), peer);
            probe::tell(handshake.role(), hellos, &handshake.unreached(), handshake.plan(), |l| handshake.mtu(l));
        }
    }

    fn make(&mut self, fabric: &Inner, plan: &[LanePlan], role: Role) -> Result<Vec<LaneAddress>, LaneError> {
        let mut core = fabric.shared.lock();
        self.domain = core.new_domain();
        let mut addresses = Vec::with_capacity(plan.len());
        for planned in plan {
            let control = planned.kind == PlannedKind::Control;
            let (send_depth, receive_depth) = match control {
                true => (self.config.control_slots, self.config.control_slots),
                false => (self.config.send_depth, self.config.immediates),
            };
            let spec = LaneSpec {
                port: crate::lanes::PortId(planned.ports(role).0),
                domain: self.domain,
                class: planned.class,
                dscp: fabric.config.dscp[planned.class.index()],
                send_depth,
                receive_depth,
                entropy: planned.entropy,
            };
            let lane = core.lanes_mut().create(&spec)?;
            self.specs.push(spec);
            self.lanes.push(lane);
            let mut address = core.lanes().address(lane)?;
            // What the probes showed to pass; the peer says the same of its end.
            address.mtu = self.peering.handshake().mtu(planned).map_or(address.mtu, |m| m.min(address.mtu));
            address.mtu = address.mtu.min(fabric.config.mtu);
            addresses.push(address);
        }
        Ok(addresses)
    }

    fn begin(
        &mut self,
        fabric: &Inner,
        now: Time,
        plan: &[LanePlan],
        role: Role,
        peers: &[LaneAddress],
        budgets: Vec<(u8, Option<u64>)>,
    ) -> Result<(), LaneError> {
        let mut core = fabric.shared.lock();
        let mut lanes = Vec::with_capacity(plan.len());
        for ((planned, &lane), peer) in plan.iter().zip(&self.lanes).zip(peers) {
            core.lanes_mut().connect(lane, peer)?;
            let (port, peer_port) = planned.ports(role);
            lanes.push((
                lane,
                LaneRole {
                    port: crate::lanes::PortId(port),
                    peer_port,
                    class: planned.class,
                    kind: if planned.kind == PlannedKind::Control { LaneKind::Control } else { LaneKind::Data },
                    peer_index: planned.index,
                    mtu: core.lanes().lane_mtu(lane).ok_or(LaneError::NoLane)?,
                    generation: 0,
                },
            ));
        }
        let remake = self.specs.iter().copied().zip(peers.iter().copied()).collect();
        let new = NewSession { config: self.config, domain: self.domain, lanes, remake, budgets };
        self.session = Some(core.add_session(now, new)?);
        Ok(())
    }

    pub(super) fn finish(self, fabric: &Arc<Inner>) -> Result<Connection, Error> {
        let (Some(session), addr) = (self.session, self.peering.peer_addr()) else {
            return Err(Error::Engine(LaneError::Invalid { what: "handshake state" }));
        };
        let Ok((established, witness)) = self.peering.finish() else {
            fabric.shared.lock().remove(session);
            return Err(Error::Engine(LaneError::Invalid { what: "handshake state" }));
        };
        fabric.shared.lock().watch(fabric.shared.now(), session, Box::new(witness));
        let label = format!("{} ({addr})", established.peer.host);
        Ok(Connection::new(Peer::new(fabric.clone(), session, label, established.peer.nonce)))
    }
}

/// What we say of ourselves. A new peer gets its part of our receive budgets beside the peers we have.
pub(super) fn hello(fabric: &Inner) -> Hello {
    let sharers = fabric.shared.lock().sharers() as u64 + 1;
    let offer = |(p, &speed)| {
        let offer = PlaneOffer::of(p, speed);
        PlaneOffer { receive_budget: offer.receive_budget.map(|whole| whole / sharers), ..offer }
    };
    let probes = fabric.config.probe && fabric.shared.lock().lanes().udp().is_some();
    let config = fabric.session_config();
    let host = nix::unistd::gethostname().ok().and_then(|h| h.into_string().ok()).unwrap_or_default();
    Hello {
        features: if probes { FEATURE_PROBES } else { 0 },
        nonce: fabric.nonce,
        host: host.chars().filter(|c| !c.is_control()).take(crate::bootstrap::MAX_HOST / 4).collect(),
        planes: fabric.ports.iter().zip(&fabric.speeds).map(offer).collect(),
        classes: [true; 3],
        lanes_per_plane: fabric.config.lanes_per_plane,
        limits: Limits {
            eager_max: config.eager_max,
            eager_buffers: config.eager_buffers,
            control_slots: config.control_slots,
            immediates: config.immediates,
            ..Limits::default()
        },
    }
}

/// Our configuration with what the peer takes less of.
fn agree(fabric: &Inner, peer: &Limits) -> SessionConfig {
    let ours = fabric.session_config();
    SessionConfig {
        eager_max: ours.eager_max.min(peer.eager_max),
        eager_buffers: ours.eager_buffers.min(peer.eager_buffers),
        control_slots: ours.control_slots.min(peer.control_slots),
        immediates: ours.immediates.min(peer.immediates),
        ..ours
    }
}

/// Sleeps until one of `fds` is readable (or writable, if asked), at most `millis`.
fn sleep(fds: &[BorrowedFd<'_>], writing: bool, millis: u16) {
    let flags = if writing { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
    let mut fds: Vec<PollFd<'_>> = fds.iter().map(|&fd| PollFd::new(fd, flags)).collect();
    let _ = nix::poll::poll(&mut fds, PollTimeout::from(millis));
}
