//! Probing over sockets: [`Probing`] says what to send and takes what arrives.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use crate::bootstrap::{Hello, LanePlan, PairReport, Probing, Role};
use crate::embedded::PacketIo;
use crate::lanes::PortId;
use crate::soft::{ProbeResponder, SoftError, Udp};
use crate::time::Time;

/// One end's sockets for probes, and what is known so far.
#[derive(Default)]
pub(super) struct Prober {
    /// One for each of our ports.
    responders: Vec<ProbeResponder>,
    machine: Option<Probing>,
    /// Calls that failed, so that one that lasts is logged once.
    failed: Option<SoftError>,
}

impl Prober {
    /// Opens the sockets that take the peer's probes; the UDP port of each.
    pub(super) fn open(&mut self, io: &Udp) -> Result<Vec<u16>, SoftError> {
        for port in 0..io.ports().len() {
            self.responders.push(io.probe_responder(PortId(port as u8))?);
        }
        Ok(self.responders.iter().map(|r| r.addr().port()).collect())
    }

    /// Goes on; our report once it is over. `ports` are the UDP ports at which the peer takes probes.
    pub(super) fn advance(
        &mut self,
        now: Time,
        role: Role,
        (ours, theirs): (&Hello, &Hello),
        ports: &[u16],
        io: &mut Udp,
    ) -> Option<Vec<PairReport>> {
        let machine = self.machine.get_or_insert_with(|| Probing::new(role, ours, theirs, now));
        let mut probes = Vec::new();
        machine.due(now, &mut probes);
        for probe in probes {
            let to = usize::from(probe.to);
            let (Some(plane), Some(&port)) = (theirs.planes.get(to), ports.get(to)) else { continue };
            let to = SocketAddr::new(plane.addr, port);
            let sent = io.probe(PortId(probe.from), to, probe.first, usize::from(probe.count), probe.len);
            // What was not sent does not arrive; the report says so.
            if let Err(error) = sent
                && self.failed != Some(error)
            {
                tracing::info!(%error, "a probe could not be sent");
                self.failed = Some(error);
            }
        }
        for (port, responder) in self.responders.iter_mut().enumerate() {
            responder.take(|from, first, id| machine.arrived(port as u8, from, first, id));
        }
        machine.is_over(now).then(|| machine.report())
    }

    /// When to go on although nothing arrived.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.machine.as_ref().map(Probing::next_timeout)
    }

    /// What becomes readable when a probe arrives.
    pub(super) fn fds<'a>(&'a self, out: &mut Vec<BorrowedFd<'a>>) {
        // Before the peer says where it takes ours, nothing is read.
        if self.machine.is_some() {
            out.extend(self.responders.iter().map(ProbeResponder::wait_fd));
        }
    }

    /// Closes the sockets.
    pub(super) fn close(&mut self) {
        self.responders.clear();
        self.machine = None;
    }
}

/// Turns bursts off on ports where the peer's report says that they do not arrive as they must.
pub(super) fn heed(io: &mut Udp, report: &[PairReport]) {
    for r in report {
        let port = PortId(r.from);
        let v4 = io.ports().get(usize::from(r.from)).is_some_and(|p| p.addr.is_ipv4());
        if r.bursts_fail(v4) && io.gso(port) {
            let addr = io.ports().get(usize::from(r.from)).map(|p| p.addr);
            let seen =
                if r.burst == 0 { "no packet of it arrived" } else { "its IPv4 identifications are not counted up" };
            tracing::warn!(
                port = r.from,
                ?addr,
                "a burst fails on the way to the peer ({seen}); sending packet by packet"
            );
            io.set_gso(port, false);
        }
    }
}

/// Says which pairs of ports are not used, and which carry less than their interfaces would.
pub(super) fn tell(
    role: Role,
    (ours, theirs): (&Hello, &Hello),
    unreached: &[(u8, u8)],
    plan: &[LanePlan],
    mtu: impl Fn(&LanePlan) -> Option<u32>,
) {
    let addrs =
        |here: u8, there: u8| Some((ours.planes.get(usize::from(here))?, theirs.planes.get(usize::from(there))?));
    for (here, there) in unreached.iter().filter_map(|&(here, there)| addrs(here, there)) {
        tracing::warn!(
            "{} and the peer's {} (plane {}) do not reach each other: probes were lost; left out. Check link, route and firewall",
            here.addr,
            there.addr,
            here.plane
        );
    }
    let mut last = None;
    for lane in plan {
        let pair = lane.ports(role);
        let (Some((here, there)), Some(mtu)) = (addrs(pair.0, pair.1), mtu(lane)) else { continue };
        let could = here.mtu.min(there.mtu);
        if mtu < could && last.replace(pair) != Some(pair) {
            tracing::warn!(
                "between {} and the peer's {} packets of RoCE MTU {could} are lost; using {mtu}. Check the MTU of the switches",
                here.addr,
                there.addr
            );
        }
    }
}
