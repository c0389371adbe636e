//! The machine: one end of the handshake.

use snow::HandshakeState;

use super::error::{BootstrapError, Refusal, Waiting};
use super::frame::{self, Frame};
use super::hello::{Hello, bounded, valid_mtu};
use super::key::Auth;
use super::plan::{LanePlan, MAX_LANES, plan, preferred};
use super::preamble::{self, Preamble};
use super::reach::{FEATURE_PROBES, MAX_PAIRS, PairReport, Reach};
use super::records::Records;
use super::{MAX_HANDSHAKE, MAX_MESSAGE, noise};
use crate::class::Class;
use crate::lanes::{LaneAddress, MAX_PORTS};
use crate::time::Time;

/// A frame of this length is no message but a clear word of the responder: the key exchange did not decrypt.
const ALERT_WRONG_KEY: u16 = 0xff01;

/// Which end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// The one that connected.
    Initiator,
    /// The one that listened.
    Responder,
}

impl Role {
    pub(super) fn name(self) -> &'static str {
        match self {
            Role::Initiator => "initiator",
            Role::Responder => "responder",
        }
    }
}

/// What to do next.
#[derive(Debug)]
pub enum Step<'a> {
    /// Move bytes: send [`Handshake::take_output`], feed [`Handshake::input`], and poll again then or at
    /// [`Handshake::poll_timeout`].
    NeedIo,
    /// The peer is authenticated and said this, and one of us does not probe. Make the lanes of [`Handshake::plan`], then
    /// call [`Handshake::provide_lanes`].
    PeerHello(&'a Hello),
    /// The peer is authenticated, and both ends probe: get ready for its probes, then call
    /// [`Handshake::provide_probes`].
    OpenProbes,
    /// The peer takes probes at these UDP ports, one for each of its planes. Send ours and gather its; then call
    /// [`Handshake::report`].
    PeerProbes(&'a [u16]),
    /// Both ends know which ports reach each other; this is what the peer saw of our probes. Make the lanes of
    /// [`Handshake::plan`], then call [`Handshake::provide_lanes`].
    Reached(&'a [PairReport]),
    /// The peer's lanes, one for each of [`Handshake::plan`]. Connect ours to them, then call
    /// [`Handshake::ready`].
    PeerLanes(&'a [LaneAddress]),
    /// Both ends are ready: send what output is left, then call [`Handshake::finish`].
    Done,
}

/// One end of a handshake. Takes bytes and times, gives bytes and [`Step`]s.
///
/// Until the peer proved the job key it costs us 16 + 50 bytes of input, two curve multiplications and a
/// buffer of fixed size; until it is done, at most [`MAX_HANDSHAKE`] bytes. An error is final: every later call
/// repeats it, and only [`Handshake::take_output`] still gives the word that tells the peer.
pub struct Handshake {
    role: Role,
    auth: Option<Auth>,
    hello: Hello,
    deadline: Time,
    ours: [u8; preamble::LEN],
    theirs: Vec<u8>,
    version: u16,
    exchange: Option<Box<HandshakeState>>,
    pub(super) records: Option<Box<Records>>,
    session: u64,
    frame: Frame,
    awaiting: Waiting,
    received: usize,
    pub(super) output: Vec<u8>,
    peer: Option<Hello>,
    probing: bool,
    probes_sent: bool,
    peer_probes: Option<Vec<u16>>,
    report: Option<Vec<PairReport>>,
    peer_report: Option<Vec<PairReport>>,
    reach: Option<Reach>,
    plan: Vec<LanePlan>,
    lanes_sent: bool,
    peer_lanes: Option<Vec<LaneAddress>>,
    ready_sent: bool,
    failed: Option<BootstrapError>,
}

/// What a finished handshake leaves.
#[derive(Debug)]
pub struct Established {
    /// Which end we are.
    pub role: Role,
    /// The version that both speak.
    pub version: u16,
    /// Number of this session, the same at both ends and no secret; from the key exchange, so never twice.
    pub session: u64,
    /// Features that both have.
    pub features: u64,
    /// What the peer said.
    pub peer: Hello,
    /// The lanes.
    pub plan: Vec<LanePlan>,
    /// The peer's address for each of them.
    pub peer_lanes: Vec<LaneAddress>,
}

#[derive(serde::Serialize, serde::Deserialize)]
pub(super) enum Message {
    Hello(Hello),
    Probes(#[serde(deserialize_with = "bounded::<_, _, MAX_PORTS>")] Vec<u16>),
    Report(#[serde(deserialize_with = "bounded::<_, _, MAX_PAIRS>")] Vec<PairReport>),
    Lanes(#[serde(deserialize_with = "bounded::<_, _, MAX_LANES>")] Vec<LaneAddress>),
    Ready,
    Refused(Refusal),
}

impl Handshake {
    /// Starts one end; it fails with [`BootstrapError::Timeout`] when it is not done at `deadline`.
    ///
    /// # Errors
    /// [`BootstrapError::Invalid`] if `hello` is out of range.
    pub fn new(role: Role, auth: Auth, hello: Hello, deadline: Time) -> Result<Handshake, BootstrapError> {
        if let Some(what) = hello.fault() {
            return Err(BootstrapError::Invalid { what });
        }
        let ours = Preamble::ours(auth.mode(), role).emit();
        let mut output = Vec::with_capacity(256);
        if role == Role::Initiator {
            output.extend_from_slice(&ours);
        }
        Ok(Handshake {
            role,
            auth: Some(auth),
            hello,
            deadline,
            ours,
            theirs: Vec::with_capacity(preamble::LEN),
            version: 0,
            exchange: None,
            records: None,
            session: 0,
            frame: Frame::new(noise::MESSAGE),
            awaiting: Waiting::Preamble,
            received: 0,
            output,
            peer: None,
            probing: false,
            probes_sent: false,
            peer_probes: None,
            report: None,
            peer_report: None,
            reach: None,
            plan: Vec::new(),
            lanes_sent: false,
            peer_lanes: None,
            ready_sent: false,
            failed: None,
        })
    }

    /// Number of the session, the same at both ends; 0 before the peer's Hello.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// Which end this is.
    pub fn role(&self) -> Role {
        self.role
    }

    /// What this end says of itself.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// What the peer said of itself, once it did.
    pub fn peer_hello(&self) -> Option<&Hello> {
        self.peer.as_ref()
    }

    /// The lanes to make, once it is their turn: with the peer's Hello, or with [`Step::Reached`].
    pub fn plan(&self) -> &[LanePlan] {
        &self.plan
    }

    /// What the peer saw of our probes, once it said so.
    pub fn peer_report(&self) -> Option<&[PairReport]> {
        self.peer_report.as_deref()
    }

    /// Ports of ours and the peer's that would have met, but do not reach each other.
    pub fn unreached(&self) -> Vec<(u8, u8)> {
        let (Some(peer), Some(reach)) = (&self.peer, &self.reach) else { return Vec::new() };
        let pairs = match self.role {
            Role::Initiator => preferred(&self.hello, peer),
            Role::Responder => preferred(peer, &self.hello),
        };
        let lost = pairs.into_iter().filter(|&(i, r)| reach.mtu(i, r).is_none());
        lost.map(|(i, r)| if self.role == Role::Initiator { (i, r) } else { (r, i) }).collect()
    }

    /// The RoCE MTU between the ports of a planned lane, once the plan is known.
    pub fn mtu(&self, lane: &LanePlan) -> Option<u32> {
        self.reach.as_ref()?.mtu(lane.initiator_port, lane.responder_port)
    }

    /// True once the peer proved that it knows the job key and is there now (in insecure mode: the latter).
    ///
    /// The responder cannot tell a repeated first Noise message from a fresh one; the Hello after it does.
    pub fn is_authenticated(&self) -> bool {
        self.peer.is_some()
    }

    /// What is missing to go on.
    pub fn waiting_for(&self) -> Waiting {
        let hello = self.peer.is_some() && if self.probing { !self.probes_sent } else { !self.lanes_sent };
        let probes = self.peer_probes.is_some() && self.report.is_none();
        let reached = self.probing && self.reach.is_some() && !self.lanes_sent;
        let caller = hello || probes || reached || (self.peer_lanes.is_some() && !self.ready_sent);
        if caller { Waiting::Ourselves } else { self.awaiting }
    }

    /// Most bytes of the stream that [`Handshake::input`] takes next; 0 when the peer is done.
    pub fn wanted(&self) -> usize {
        if self.failed.is_some() {
            return 0;
        }
        match (self.awaiting, &self.records) {
            (Waiting::Preamble, _) => preamble::LEN - self.theirs.len(),
            (Waiting::Nothing, _) => 0,
            (_, Some(records)) => records.wanted(),
            (_, None) => self.frame.wanted(),
        }
    }

    /// Takes bytes of the stream, and returns how many; fewer than all only behind the peer's Ready.
    ///
    /// # Errors
    /// Any but those of the caller; final.
    pub fn input(&mut self, now: Time, bytes: &[u8]) -> Result<usize, BootstrapError> {
        self.check(now)?;
        let mut taken = 0;
        while taken < bytes.len() && self.awaiting != Waiting::Nothing {
            match self.take(&bytes[taken..]) {
                Ok(n) => taken += n,
                Err(e) => return Err(self.fail(e)),
            }
        }
        Ok(taken)
    }

    /// Moves all bytes to send to the end of `out`. Also after an error, for the peer's sake.
    pub fn take_output(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.output);
    }

    /// What to do next.
    ///
    /// # Errors
    /// Any; final.
    pub fn poll(&mut self, now: Time) -> Result<Step<'_>, BootstrapError> {
        let done = self.ready_sent && self.awaiting == Waiting::Nothing;
        if !done {
            self.check(now)?;
        } else if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        Ok(match (&self.peer, &self.peer_lanes) {
            _ if done => Step::Done,
            (Some(hello), _) if !self.probing && !self.lanes_sent => Step::PeerHello(hello),
            (Some(_), _) if self.probing && !self.probes_sent => Step::OpenProbes,
            (Some(_), _) if self.probing && !self.lanes_sent => self.probe_step(),
            (_, Some(lanes)) if !self.ready_sent => Step::PeerLanes(lanes),
            _ => Step::NeedIo,
        })
    }

    /// When to poll although nothing arrived; `None` once both ends are ready or after an error.
    pub fn poll_timeout(&self) -> Option<Time> {
        let done = self.ready_sent && self.awaiting == Waiting::Nothing;
        if done || self.failed.is_some() { None } else { Some(self.deadline) }
    }

    fn probe_step(&self) -> Step<'_> {
        match (&self.peer_probes, &self.peer_report) {
            (Some(ports), _) if self.report.is_none() => Step::PeerProbes(ports),
            (_, Some(report)) if self.report.is_some() => Step::Reached(report),
            _ => Step::NeedIo,
        }
    }

    /// We are ready for probes: at which UDP port of each of our planes.
    ///
    /// # Errors
    /// [`BootstrapError::Invalid`] if it is not the moment, or not one port for each plane; not final.
    pub fn provide_probes(&mut self, ports: Vec<u16>) -> Result<(), BootstrapError> {
        if !self.probing || self.probes_sent || ports.len() != self.hello.planes.len() || ports.contains(&0) {
            return Err(BootstrapError::Invalid { what: "the moment to provide probe ports, or their number" });
        }
        self.probes_sent = true;
        self.say(&Message::Probes(ports))
    }

    /// What we saw of the peer's probes.
    ///
    /// # Errors
    /// [`BootstrapError::Invalid`] if it is not the moment; not final. [`BootstrapError::Unreachable`] if the peer's
    /// report is here and no ports reach each other.
    pub fn report(&mut self, report: Vec<PairReport>) -> Result<(), BootstrapError> {
        if self.peer_probes.is_none() || !self.probes_sent || self.report.is_some() || report.len() > MAX_PAIRS {
            return Err(BootstrapError::Invalid { what: "the moment to report on probes" });
        }
        self.say(&Message::Report(report.clone()))?;
        self.report = Some(report);
        self.conclude().map_err(|e| self.fail(e))
    }

    /// With both reports, or without probing: the matrix and the plan.
    fn conclude(&mut self) -> Result<(), BootstrapError> {
        let Some(peer) = &self.peer else { return Ok(()) };
        let (initiator, responder) = match self.role {
            Role::Initiator => (&self.hello, peer),
            Role::Responder => (peer, &self.hello),
        };
        let reach = match (self.probing, &self.report, &self.peer_report) {
            (false, ..) => Reach::assumed(initiator, responder),
            (true, Some(ours), Some(theirs)) => match self.role {
                Role::Initiator => Reach::seen(initiator, responder, ours, theirs),
                Role::Responder => Reach::seen(initiator, responder, theirs, ours),
            },
            _ => return Ok(()),
        };
        self.plan = plan(initiator, responder, &reach);
        self.reach = Some(reach);
        if self.plan.is_empty() {
            let (ours, theirs) = (self.hello.plane_list(), peer.plane_list());
            return Err(match self.probing {
                true => BootstrapError::Unreachable { ours, theirs },
                false => BootstrapError::NoCommonPlane { ours, theirs },
            });
        }
        Ok(())
    }

    /// Our lanes, one for each of [`Handshake::plan`], in its order.
    ///
    /// # Errors
    /// [`BootstrapError::Invalid`] if it is not their turn or one does not fit the plan; not final.
    pub fn provide_lanes(&mut self, lanes: Vec<LaneAddress>) -> Result<(), BootstrapError> {
        if self.peer.is_none() || self.reach.is_none() || self.lanes_sent {
            return Err(BootstrapError::Invalid { what: "the moment to provide lanes" });
        }
        let role = self.role;
        if lanes_fault(&lanes, &self.plan, &self.hello, |p| p.ports(role).0).is_some() {
            return Err(BootstrapError::Invalid { what: "the list of lanes" });
        }
        self.lanes_sent = true;
        self.say(&Message::Lanes(lanes))
    }

    /// Our lanes are connected to the peer's.
    ///
    /// # Errors
    /// [`BootstrapError::Invalid`] if it is not the moment; not final.
    pub fn ready(&mut self) -> Result<(), BootstrapError> {
        if self.peer_lanes.is_none() || !self.lanes_sent || self.ready_sent {
            return Err(BootstrapError::Invalid { what: "the moment to be ready" });
        }
        self.ready_sent = true;
        self.say(&Message::Ready)
    }

    /// Ends the handshake and tells the peer why, if it is authenticated and we did not say ready before. Send what
    /// output is left afterwards.
    pub fn refuse(&mut self, reason: Refusal) {
        if self.failed.is_none() && self.is_authenticated() && !self.ready_sent {
            let _ = self.say(&Message::Refused(reason));
        }
        self.failed.get_or_insert(BootstrapError::RefusedHere { reason });
    }

    /// The peer closed the stream.
    pub fn closed(&mut self) -> BootstrapError {
        let waiting_for = self.awaiting;
        self.fail(BootstrapError::Closed { waiting_for })
    }

    /// The stream failed.
    pub(super) fn io_failed(&mut self, call: &'static str, errno: i32) -> BootstrapError {
        let waiting_for = self.awaiting;
        self.fail(BootstrapError::Io { call, errno, waiting_for })
    }

    /// What the handshake leaves, and the channel for what comes later; the handshake itself if it is not done.
    ///
    /// # Errors
    /// Not at [`Step::Done`].
    pub fn finish(self) -> Result<(Established, Records), Box<Handshake>> {
        let done = self.ready_sent && self.awaiting == Waiting::Nothing && self.failed.is_none();
        match self {
            Handshake { peer: Some(peer), peer_lanes: Some(peer_lanes), records: Some(records), .. } if done => {
                let established = Established {
                    role: self.role,
                    version: self.version,
                    session: self.session,
                    features: self.hello.features & peer.features,
                    peer,
                    plan: self.plan,
                    peer_lanes,
                };
                Ok((established, *records))
            }
            other => Err(Box::new(other)),
        }
    }

    fn check(&mut self, now: Time) -> Result<(), BootstrapError> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        if now >= self.deadline {
            let waiting_for = self.waiting_for();
            return Err(self.fail(BootstrapError::Timeout { waiting_for }));
        }
        Ok(())
    }

    fn fail(&mut self, e: BootstrapError) -> BootstrapError {
        self.failed.get_or_insert(e).clone()
    }

    /// Takes the bytes of at most one unit.
    fn take(&mut self, bytes: &[u8]) -> Result<usize, BootstrapError> {
        let n = bytes.len().min(self.wanted());
        self.received += n;
        if self.received > MAX_HANDSHAKE {
            return Err(BootstrapError::TooLarge { what: "a handshake", len: self.received, limit: MAX_HANDSHAKE });
        }
        let bytes = &bytes[..n];
        if self.awaiting == Waiting::Preamble {
            self.theirs.extend_from_slice(bytes);
            preamble::check_magic(&self.theirs)?;
            if let Some(&whole) = self.theirs.first_chunk() {
                self.on_preamble(&whole)?;
            }
        } else if let Some(records) = &mut self.records {
            records.input(bytes)?;
            let message = records.open()?.map(postcard::from_bytes);
            match message {
                Some(Ok(message)) => self.on_message(message)?,
                Some(Err(_)) => return Err(BootstrapError::Malformed { what: "a message that does not parse" }),
                None => {}
            }
        } else {
            match self.frame.push(bytes) {
                Err(BootstrapError::TooLarge { len, .. })
                    if len == usize::from(ALERT_WRONG_KEY) && self.role == Role::Initiator =>
                {
                    return Err(BootstrapError::WrongKey { by: "peer" });
                }
                other => other?,
            };
            if self.frame.complete().is_some() {
                self.on_exchange()?;
            }
        }
        Ok(n)
    }

    fn on_preamble(&mut self, theirs: &[u8; preamble::LEN]) -> Result<(), BootstrapError> {
        let peer = Preamble::parse(theirs)?;
        let auth = self.auth.take().ok_or(BootstrapError::Malformed { what: "a second preamble" })?;
        // Said before the check, so that the other end can name the reason as well.
        if self.role == Role::Responder {
            self.output.extend_from_slice(&self.ours);
        }
        self.version = Preamble::ours(auth.mode(), self.role).agree(&peer)?;
        let (initiator, responder) = match self.role {
            Role::Initiator => (&self.ours, theirs),
            Role::Responder => (theirs, &self.ours),
        };
        self.exchange = Some(noise::start(self.role, &auth, initiator, responder)?);
        if self.role == Role::Initiator {
            self.write_exchange()?;
        }
        self.awaiting = Waiting::KeyExchange;
        Ok(())
    }

    fn write_exchange(&mut self) -> Result<(), BootstrapError> {
        let mut message = [0; noise::MESSAGE];
        let written = self.exchange.as_mut().map(|x| x.write_message(&[], &mut message));
        if !matches!(written, Some(Ok(noise::MESSAGE))) {
            return Err(BootstrapError::Crypto { what: "the key exchange" });
        }
        self.output.extend_from_slice(&frame::header(message.len()));
        self.output.extend_from_slice(&message);
        Ok(())
    }

    fn on_exchange(&mut self) -> Result<(), BootstrapError> {
        let (Some(message), Some(exchange)) = (self.frame.complete(), &mut self.exchange) else { return Ok(()) };
        let mut payload = [0; noise::MESSAGE];
        if message.len() != noise::MESSAGE {
            return Err(BootstrapError::Malformed { what: "a key exchange of the wrong size" });
        }
        if exchange.read_message(message, &mut payload).is_err() {
            if self.role == Role::Responder {
                self.output.extend_from_slice(&ALERT_WRONG_KEY.to_le_bytes());
            }
            return Err(BootstrapError::WrongKey { by: "this end" });
        }
        self.frame.clear();
        if self.role == Role::Responder {
            self.write_exchange()?;
        }
        let fail = BootstrapError::Crypto { what: "the key exchange" };
        let exchange = self.exchange.take().ok_or(fail.clone())?;
        self.session = exchange.get_handshake_hash().first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        let transport = exchange.into_transport_mode().map_err(|_| fail)?;
        self.records = Some(Box::new(Records::new(Box::new(transport), Frame::new(MAX_MESSAGE))));
        self.awaiting = Waiting::Hello;
        let hello = Message::Hello(self.hello.clone());
        self.say(&hello)
    }

    fn on_message(&mut self, message: Message) -> Result<(), BootstrapError> {
        match (self.awaiting, message) {
            (_, Message::Refused(reason)) => Err(BootstrapError::Refused { reason }),
            (Waiting::Hello, Message::Hello(hello)) => {
                if let Some(what) = hello.fault() {
                    return Err(BootstrapError::Malformed { what });
                }
                if !Class::ALL.into_iter().any(|c| hello.wants(c) && self.hello.wants(c)) {
                    return Err(BootstrapError::Malformed { what: "no traffic class that this end uses as well" });
                }
                if preferred(&self.hello, &hello).is_empty() {
                    let (ours, theirs) = (self.hello.plane_list(), hello.plane_list());
                    return Err(BootstrapError::NoCommonPlane { ours, theirs });
                }
                self.probing = self.hello.features & hello.features & FEATURE_PROBES != 0;
                self.peer = Some(hello);
                self.awaiting = if self.probing { Waiting::Probes } else { Waiting::Lanes };
                self.conclude()
            }
            (Waiting::Probes, Message::Probes(ports)) => {
                let planes = self.peer.as_ref().map_or(0, |p| p.planes.len());
                if ports.len() != planes || ports.contains(&0) {
                    return Err(BootstrapError::Malformed { what: "probe ports that do not fit its planes" });
                }
                self.peer_probes = Some(ports);
                self.awaiting = Waiting::Report;
                Ok(())
            }
            (Waiting::Report, Message::Report(report)) if self.probes_sent => {
                let Some(peer) = &self.peer else {
                    return Err(BootstrapError::Malformed { what: "a report too early" });
                };
                if let Some(what) = report.iter().find_map(|r| r.fault(&self.hello, peer)) {
                    return Err(BootstrapError::Malformed { what });
                }
                self.peer_report = Some(report);
                self.awaiting = Waiting::Lanes;
                self.conclude()
            }
            // Nobody can plan lanes before both reports are known.
            (Waiting::Lanes, Message::Lanes(lanes)) if self.reach.is_some() => {
                let Some(peer) = &self.peer else { return Err(BootstrapError::Malformed { what: "lanes too early" }) };
                let role = self.role;
                if let Some(what) = lanes_fault(&lanes, &self.plan, peer, |p| p.ports(role).1) {
                    return Err(BootstrapError::Malformed { what });
                }
                self.peer_lanes = Some(lanes);
                self.awaiting = Waiting::Ready;
                Ok(())
            }
            // The peer cannot have connected to lanes that we did not name yet.
            (Waiting::Ready, Message::Ready) if self.lanes_sent => {
                self.awaiting = Waiting::Nothing;
                Ok(())
            }
            _ => Err(BootstrapError::Malformed { what: "a message out of order" }),
        }
    }

    pub(super) fn say(&mut self, message: &Message) -> Result<(), BootstrapError> {
        let fail = BootstrapError::Crypto { what: "writing a message" };
        let plain = postcard::to_allocvec(message).map_err(|_| fail.clone())?;
        let sealed = match &mut self.records {
            Some(records) => records.seal(&plain, &mut self.output),
            None => Err(fail),
        };
        sealed.map_err(|e| self.fail(e))
    }
}

impl std::fmt::Debug for Handshake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handshake")
            .field("role", &self.role)
            .field("awaiting", &self.awaiting)
            .field("received", &self.received)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

/// What is wrong with the lanes of an end that said `hello`, if anything. A lane must end at the address that was
/// offered: nobody may send our packets to a third party.
fn lanes_fault(
    lanes: &[LaneAddress],
    plan: &[LanePlan],
    hello: &Hello,
    port: impl Fn(&LanePlan) -> u8,
) -> Option<&'static str> {
    if lanes.len() != plan.len() {
        return Some("another number of lanes than planned");
    }
    for (lane, plan) in lanes.iter().zip(plan) {
        let Some(offer) = hello.planes.get(usize::from(port(plan))) else { return Some("a lane on no port") };
        if (lane.addr, lane.udp_port) != (offer.addr, offer.udp_port) {
            return Some("a lane at another address than its plane's");
        }
        // Queue pairs 0 and 1 are reserved, 0xffffff is multicast; all three numbers have 24 bits.
        if !(2..0x00ff_ffff).contains(&lane.qpn) || lane.psn > 0x00ff_ffff || lane.feedback_qpn > 0x00ff_ffff {
            return Some("a queue pair number or PSN out of range");
        }
        if !valid_mtu(lane.mtu) {
            return Some("a lane with an MTU that is none of 256, 512, 1024, 2048 and 4096");
        }
    }
    None
}
