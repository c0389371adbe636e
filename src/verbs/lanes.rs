//! Lanes over devices.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::ah::{Route, flow_label};
use super::batch::{SendOp, SendRequest};
use super::clock::DeviceClock;
use super::config::{GidChoice, VerbsConfig, VerbsPort};
use super::cq::{CompletionChannel, Cq};
use super::device::{Context, devices};
use super::dl::Library;
use super::driver::{backend_name, driver_of};
use super::error::VerbsError;
use super::events::AsyncEvents;
use super::lane::{Lane, LaneParts, entries};
use super::memory::Memory;
use super::port::{GidKind, LinkLayer, PortState};
use super::qp::{Peer, Qp, QpSpec, Transport};
use super::status::refused;
use crate::class::Ecn;
use crate::lanes::{
    Caps, Completion, Control, Domain, Full, LaneAddress, LaneError, LaneEvent, LaneId, LaneSpec, Lanes, MAX_PORTS,
    MrId, Op, PortId, PortInfo, Receive, Status, Window, WindowAccess, WorkRequest,
};
use crate::mem::Region;
use crate::time::{Span, Time};

/// Entries of a completion queue that lanes share.
const SHARED_ENTRIES: u32 = 8192;
/// So many polls in a row without completion, or so long: then the queues are armed, so that somebody can sleep.
const IDLE_POLLS: u32 = 8;
const IDLE_FOR: Span = Span::from_micros(20);
/// How long after a completion its wake-up may come, if one comes at all.
const WAKE_FOR: Span = Span::from_micros(200);
/// How often a device is asked for events, which takes a system call.
const EVENTS_EVERY: Span = Span::from_micros(200);
/// Bytes of a burst: what one work request carries at little more cost than a packet.
const BURST: u32 = 65_536;
/// UDP port of RoCEv2.
const ROCE_PORT: u16 = 4791;

/// Lanes over queue pairs of real devices.
pub struct VerbsLanes {
    pub(super) config: VerbsConfig,
    pub(super) caps: Caps,
    pub(super) ports: Vec<PortInfo>,
    pub(super) links: Vec<Link>,
    pub(super) lanes: Vec<Slot>,
    pub(super) devices: Vec<Dev>,
    pub(super) memory: Memory,
    /// Lanes with requests that wait for the doorbell.
    pub(super) unrung: Vec<LaneId>,
    /// Completions that did not come from the device just now.
    pub(super) backlog: VecDeque<Completion>,
    pub(super) events: VecDeque<LaneEvent>,
    pub(super) rng: fastrand::Rng,
    /// Since when nothing has completed, in polls and in time.
    pub(super) idle_polls: u32,
    pub(super) idle_since: Time,
    pub(super) asked_events: Time,
    pub(super) ask_events: bool,
    pub(super) first_queue: usize,
}

/// A port: what the seam does not need to know of it.
pub(super) struct Link {
    pub(super) device: usize,
    pub(super) number: u8,
    pub(super) sgid_index: u8,
    pub(super) addr: IpAddr,
}

pub(super) struct Dev {
    /// The queues, before the channel they wake.
    pub(super) cqs: Vec<Shared>,
    pub(super) channel: CompletionChannel,
    pub(super) events: AsyncEvents,
    pub(super) context: Arc<Context>,
    pub(super) clock: Option<DeviceClock>,
    /// The queues will wake whoever sleeps.
    pub(super) armed: bool,
    /// A wake-up is due that has not come yet.
    pub(super) wake_due: bool,
}

pub(super) struct Shared {
    cq: Cq,
    used: u32,
    broken: bool,
}

pub(super) struct Slot {
    pub(super) generation: u16,
    pub(super) lane: Option<Box<Lane>>,
}

impl VerbsLanes {
    /// Opens the devices.
    ///
    /// # Errors
    /// No kernel support, no such device, no permission, a port that is down or not Ethernet, a GID that is not
    /// there, or what else a device says.
    pub fn open(library: &Arc<Library>, config: VerbsConfig) -> Result<VerbsLanes, VerbsError> {
        let count = config.ports.len() as u64;
        if count == 0 || count > MAX_PORTS as u64 {
            return Err(VerbsError::Invalid { what: "number of ports", value: count, range: "1 to 8" });
        }
        if !(1..=65_535).contains(&config.max_lanes) {
            let value = config.max_lanes as u64;
            return Err(VerbsError::Invalid { what: "number of lanes", value, range: "1 to 65,535" });
        }
        let found = devices(library)?;
        let (mut opened, mut ports, mut links): (Vec<Dev>, Vec<PortInfo>, Vec<Link>) = Default::default();
        for wanted in &config.ports {
            let device = match opened.iter().position(|d| d.context.name() == wanted.device) {
                Some(i) => i,
                None => {
                    let there = || found.iter().map(|d| d.name()).collect();
                    let device = found.iter().find(|d| d.name() == wanted.device);
                    let device = device
                        .ok_or_else(|| VerbsError::UnknownDevice { name: wanted.device.clone(), there: there() })?;
                    opened.push(Dev::new(device.open()?, config.timestamps)?);
                    opened.len() - 1
                }
            };
            let (info, link) = port(&opened[device].context, device, wanted)?;
            ports.push(info);
            links.push(link);
        }
        let driver = opened.first().and_then(|d| driver_of(d.context.sysfs()));
        let mut memory = Memory::new(config.relaxed_ordering);
        if !config.isolate {
            for (i, dev) in opened.iter().enumerate() {
                memory.enter(&dev.context, i, Domain(0))?;
            }
        }
        Ok(VerbsLanes {
            caps: Caps { name: backend_name(driver.as_deref()), ecn_per_lane: false, shared_keys: false, burst: BURST },
            ports,
            links,
            lanes: Vec::new(),
            devices: opened,
            memory,
            unrung: Vec::with_capacity(config.max_lanes),
            backlog: VecDeque::with_capacity(1024),
            events: VecDeque::with_capacity(256),
            rng: fastrand::Rng::with_seed(config.seed),
            idle_polls: 0,
            idle_since: Time::ZERO,
            asked_events: Time::ZERO,
            ask_events: true,
            first_queue: 0,
            config,
        })
    }

    /// The queue pair of a lane, for logs and tools.
    pub fn qpn(&self, lane: LaneId) -> Option<u32> {
        self.lane(lane).ok().map(|l| l.qpn)
    }

    /// The open device of a port.
    pub fn context(&self, port: PortId) -> Option<&Arc<Context>> {
        let link = self.links.get(usize::from(port.0))?;
        self.devices.get(link.device).map(|d| &d.context)
    }

    #[inline]
    fn lane(&self, id: LaneId) -> Result<&Lane, LaneError> {
        find(&self.lanes, id).ok_or(LaneError::NoLane)
    }

    #[inline]
    fn lane_mut(&mut self, id: LaneId) -> Option<&mut Lane> {
        find_mut(&mut self.lanes, id)
    }

    fn domain(&self, domain: Domain) -> Domain {
        if self.config.isolate { domain } else { Domain(0) }
    }

    /// A queue of the device with room for so many entries.
    fn queue(&mut self, device: usize, need: u32) -> Result<usize, VerbsError> {
        let dev = &mut self.devices[device];
        let fits = |s: &Shared| !s.broken && s.used + need <= s.cq.capacity();
        if let Some(at) = dev.cqs.iter().position(fits) {
            return Ok(at);
        }
        let depth = need.max(SHARED_ENTRIES.min(dev.context.limits().max_cqe));
        let cq = Cq::new(&dev.context, Some(&dev.channel), depth, dev.clock.is_some())?;
        dev.cqs.push(Shared { cq, used: 0, broken: false });
        // It has not been armed with the others.
        dev.armed = false;
        Ok(dev.cqs.len() - 1)
    }

    /// Takes completions of all queues, as many as `out` holds.
    fn take_completions(&mut self, now: Time, out: &mut [Completion]) -> usize {
        let mut n = 0;
        while n < out.len()
            && let Some(completion) = self.backlog.pop_front()
        {
            if let Some(lane) = find_mut(&mut self.lanes, completion.lane) {
                if completion.status != Status::Success {
                    lane.tell(completion.status, &mut self.events);
                }
                out[n] = completion;
                n += 1;
            }
        }
        let VerbsLanes { devices, lanes, events, backlog, .. } = self;
        let queues = devices.len();
        for i in 0..queues {
            let d = (self.first_queue + i) % queues;
            let Dev { cqs, clock, wake_due, armed, .. } = &mut devices[d];
            for shared in cqs.iter_mut().filter(|s| !s.broken) {
                let room = out.len() - n;
                if room == 0 {
                    break;
                }
                let polled = shared.cq.poll(room, |wc| {
                    let (id, receive) = Lane::split(wc.wr_id);
                    // What a lane left behind when it was destroyed is dropped.
                    let Some(lane) = find_mut(lanes, id) else { return };
                    let completed = match (clock.as_mut(), wc.timestamp) {
                        (Some(clock), Some(stamp)) => clock.completed(stamp, now),
                        _ => now,
                    };
                    let Some(completion) = lane.complete(wc, completed) else { return };
                    if completion.status != Status::Success {
                        lane.tell(completion.status, events);
                    }
                    if !receive {
                        lane.settle(backlog);
                    }
                    out[n] = completion;
                    n += 1;
                });
                match polled {
                    Ok(got) => *wake_due |= *armed && got > 0,
                    Err(_) => shared.broken = true,
                }
            }
        }
        self.first_queue = self.first_queue.wrapping_add(1);
        n
    }

    /// Ends the lanes of queues that are broken: nothing comes from those any more.
    fn end_broken(&mut self) {
        let broken = |dev: &Dev| dev.cqs.iter().any(|s| s.broken && s.used > 0);
        if !self.devices.iter().any(broken) {
            return;
        }
        for slot in &mut self.lanes {
            let Some(lane) = &mut slot.lane else { continue };
            if self.devices[lane.device].cqs[lane.cq].broken && lane.qp.is_some() {
                lane.qp = None;
                lane.cause.get_or_insert(Status::Other);
                lane.abandon(&mut self.backlog);
                lane.tell(Status::Other, &mut self.events);
                self.devices[lane.device].cqs[lane.cq].used -= lane.entries();
            }
        }
    }

    /// Arms the queues once nothing has come for a while, and takes the wake-ups that came of it.
    fn rest(&mut self, now: Time, found: usize) -> bool {
        if found > 0 {
            (self.idle_polls, self.idle_since) = (0, now);
        } else {
            self.idle_polls = self.idle_polls.saturating_add(1);
        }
        let idle = self.idle_polls >= IDLE_POLLS || now.since(self.idle_since) >= IDLE_FOR;
        let mut armed = false;
        for dev in &mut self.devices {
            // A wake-up that nobody waits for any more may still come: that is looked for now and then.
            if dev.armed && (dev.wake_due || self.idle_polls.is_multiple_of(IDLE_POLLS)) {
                if dev.channel.take() > 0 {
                    (dev.armed, dev.wake_due) = (false, false);
                } else if now.since(self.idle_since) >= WAKE_FOR {
                    dev.wake_due = false;
                }
            }
            if found == 0 && idle && !dev.armed && !dev.cqs.is_empty() {
                for shared in dev.cqs.iter_mut().filter(|s| !s.broken) {
                    shared.broken |= shared.cq.arm().is_err();
                }
                (dev.armed, armed) = (true, true);
            }
        }
        armed
    }

    fn route(&self, spec: &LaneSpec, link: &Link, peer: IpAddr) -> Route {
        Route {
            port: link.number,
            sgid_index: link.sgid_index,
            peer,
            flow_label: flow_label(spec.entropy),
            traffic_class: spec.dscp.with(Ecn::Ect0),
            hop_limit: 64,
        }
    }
}

impl Dev {
    fn new(context: Arc<Context>, timestamps: bool) -> Result<Dev, VerbsError> {
        let limits = context.limits();
        let clock = DeviceClock::new(limits.clock_khz, limits.timestamp_mask).filter(|_| timestamps);
        Ok(Dev {
            cqs: Vec::new(),
            channel: CompletionChannel::new(&context)?,
            events: AsyncEvents::new(&context)?,
            clock,
            context,
            armed: false,
            wake_due: false,
        })
    }
}

/// A port that can be used, and its address.
fn port(context: &Context, device: usize, wanted: &VerbsPort) -> Result<(PortInfo, Link), VerbsError> {
    let number = wanted.port;
    let attributes = context.port(number)?;
    let name = || context.name().to_owned();
    if attributes.link_layer == LinkLayer::InfiniBand {
        let link_layer = attributes.link_layer.name();
        return Err(VerbsError::NotEthernet { device: name(), port: number, link_layer });
    }
    if !matches!(attributes.state, PortState::Active | PortState::Deferred) {
        return Err(VerbsError::PortDown { device: name(), port: number, state: attributes.state.name() });
    }
    let (addr, index) = match wanted.gid {
        GidChoice::Address(addr) => (addr, context.gid_index(number, addr)?),
        GidChoice::Index(index) => {
            let gid = context.gid_at(number, index)?;
            (gid.addr(), index as u8)
        }
        GidChoice::Any => {
            let mut gids = context.gids(number)?;
            gids.retain(|g| g.kind == GidKind::RoceV2 && g.index <= u32::from(u8::MAX));
            gids.sort_by_key(|g| (g.is_link_local(), !g.addr().is_ipv4(), g.index));
            let none = || VerbsError::GidUnusable {
                device: name(),
                port: number,
                index: 0,
                what: "not of RoCE v2, nor is any other: has the network device an address in this namespace?",
                usable: Vec::new(),
            };
            let best = gids.first().ok_or_else(none)?;
            (best.addr(), best.index as u8)
        }
    };
    let info = PortInfo {
        rail: wanted.rail,
        plane: wanted.plane,
        addr,
        udp_port: ROCE_PORT,
        mtu: attributes.mtu,
        receive_budget: None,
        name: format!("{}:{number}", context.name()),
    };
    Ok((info, Link { device, number, sgid_index: index, addr }))
}

#[inline]
fn find(lanes: &[Slot], id: LaneId) -> Option<&Lane> {
    match lanes.get(id.index()) {
        Some(Slot { generation, lane: Some(lane) }) if u32::from(*generation) == id.0 >> 16 => Some(lane),
        _ => None,
    }
}

#[inline]
fn find_mut(lanes: &mut [Slot], id: LaneId) -> Option<&mut Lane> {
    match lanes.get_mut(id.index()) {
        Some(Slot { generation, lane: Some(lane) }) if u32::from(*generation) == id.0 >> 16 => Some(lane),
        _ => None,
    }
}

impl Control for VerbsLanes {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn ports(&self) -> &[PortInfo] {
        &self.ports
    }

    fn register(&mut self, region: &Region) -> Result<MrId, LaneError> {
        self.memory.register(region).map_err(refused)
    }

    fn deregister(&mut self, mr: MrId) -> bool {
        self.memory.deregister(mr)
    }

    fn open_window(
        &mut self,
        domain: Domain,
        mr: MrId,
        offset: u64,
        len: u64,
        access: WindowAccess,
    ) -> Result<Window, LaneError> {
        let domain = self.domain(domain);
        let mut places = Vec::with_capacity(self.links.len());
        let mut result = Ok(());
        for link in &self.links {
            match self.memory.enter(&self.devices[link.device].context, link.device, domain) {
                Ok(place) => places.push(place),
                Err(e) => {
                    result = Err(e);
                    break;
                }
            }
        }
        let opened = result.and_then(|()| self.memory.open_window(&places, mr, offset, len, access));
        for place in places {
            self.memory.leave(place);
        }
        opened.map_err(refused)
    }

    fn close_window(&mut self, window: &Window) -> bool {
        self.memory.close_window(window)
    }

    fn create(&mut self, spec: &LaneSpec) -> Result<LaneId, LaneError> {
        let link = self.links.get(usize::from(spec.port.0)).ok_or(LaneError::Invalid { what: "port" })?;
        if spec.send_depth == 0 {
            return Err(LaneError::Invalid { what: "send_depth" });
        }
        let (device, number) = (link.device, link.number);
        let limit = self.config.max_lanes;
        let index = match self.lanes.iter().position(|s| s.lane.is_none()) {
            Some(i) => i,
            None if self.lanes.len() < limit => {
                self.lanes.push(Slot { generation: 0, lane: None });
                self.lanes.len() - 1
            }
            None => return Err(LaneError::NoLanes { limit }),
        };
        let context = self.devices[device].context.clone();
        let permit = self.config.budget.take(context.name(), number).map_err(refused)?;
        let cq = self.queue(device, entries(spec)).map_err(refused)?;
        let place = self.memory.enter(&context, device, self.domain(spec.domain)).map_err(refused)?;
        let queue = &self.devices[device].cqs[cq].cq;
        let wanted = QpSpec {
            transport: Transport::Rc,
            send_depth: u32::from(spec.send_depth),
            receive_depth: u32::from(spec.receive_depth),
            inline: self.config.inline,
            batched: self.config.batched,
        };
        let made = match self.memory.pd(place) {
            Some(pd) => Qp::new(pd, queue, queue, &wanted).and_then(|mut qp| qp.init(number, 0).map(|()| qp)),
            None => Err(VerbsError::Invalid { what: "domain", value: place as u64, range: "one that is live" }),
        };
        let qp = match made {
            Ok(qp) => qp,
            Err(e) => {
                self.memory.leave(place);
                return Err(refused(e));
            }
        };
        let slot = &mut self.lanes[index];
        slot.generation = slot.generation.wrapping_add(1);
        let id = LaneId(u32::from(slot.generation) << 16 | index as u32);
        let psn = self.rng.u32(..) & 0xff_ffff;
        let lane = Lane::new(LaneParts { id, qp, spec: *spec, psn, device, cq, place, permit });
        self.devices[device].cqs[cq].used += lane.entries();
        slot.lane = Some(Box::new(lane));
        Ok(id)
    }

    fn address(&self, lane: LaneId) -> Result<LaneAddress, LaneError> {
        let lane = self.lane(lane)?;
        let port = self.ports.get(usize::from(lane.spec.port.0)).ok_or(LaneError::Invalid { what: "port" })?;
        Ok(LaneAddress {
            qpn: lane.qpn,
            psn: lane.psn,
            addr: port.addr,
            udp_port: ROCE_PORT,
            mtu: port.mtu,
            feedback_qpn: 0,
            feedback_secret: 0,
        })
    }

    fn connect(&mut self, id: LaneId, peer: &LaneAddress) -> Result<(), LaneError> {
        let lane = self.lane(id)?;
        let (spec, psn) = (lane.spec, lane.psn);
        if lane.mtu.is_some() || lane.failed {
            return Err(LaneError::Invalid { what: "lane state" });
        }
        let at = usize::from(spec.port.0);
        let info = self.ports.get(at).ok_or(LaneError::Invalid { what: "port" })?;
        if !matches!(peer.mtu, 256 | 512 | 1024 | 2048 | 4096) {
            return Err(LaneError::Invalid { what: "peer's MTU" });
        }
        if peer.udp_port != ROCE_PORT {
            // A device sends to the port of RoCEv2 and to no other.
            return Err(LaneError::Invalid { what: "peer's UDP port" });
        }
        if info.addr.is_ipv4() != peer.addr.is_ipv4() {
            return Err(LaneError::Invalid { what: "address family" });
        }
        let mtu = info.mtu.min(peer.mtu);
        let retry = self.config.retry;
        let mut index = self.links[at].sgid_index;
        loop {
            let route = self.route(&spec, &self.links[at], peer.addr);
            let lane = self.lane_mut(id).ok_or(LaneError::NoLane)?;
            let qp = lane.qp.as_mut().ok_or(LaneError::NoLane)?;
            let error = match qp.connect(&Peer { route, qpn: peer.qpn, psn: peer.psn, mtu }, psn, &retry) {
                Ok(()) => {
                    lane.mtu = Some(mtu);
                    return Ok(());
                }
                Err(e) => e,
            };
            // The index may have moved without anybody having taken the event yet.
            self.read_again(at);
            if self.links[at].sgid_index == index {
                return Err(refused(error));
            }
            index = self.links[at].sgid_index;
        }
    }

    fn lane_mtu(&self, lane: LaneId) -> Option<u32> {
        self.lane(lane).ok()?.mtu
    }

    fn fence(&mut self, id: LaneId) -> Result<(), LaneError> {
        let lane = find_mut(&mut self.lanes, id).ok_or(LaneError::NoLane)?;
        lane.told = true;
        lane.stop(&mut self.backlog);
        Ok(())
    }

    fn destroy(&mut self, id: LaneId) -> Result<(), LaneError> {
        self.lane(id)?;
        let Some(mut lane) = self.lanes[id.index()].lane.take() else { return Err(LaneError::NoLane) };
        let counted = lane.qp.is_some() || !self.devices[lane.device].cqs[lane.cq].broken;
        // The queue pair goes before its protection domain may.
        lane.qp = None;
        self.backlog.retain(|c| c.lane != id);
        // What it left in its queue is taken out, so that others find the room they were promised.
        let mut swept = VecDeque::new();
        let Dev { cqs, clock, wake_due, armed, .. } = &mut self.devices[lane.device];
        let (lanes, events, backlog) = (&mut self.lanes, &mut self.events, &mut self.backlog);
        let shared = &mut cqs[lane.cq];
        if counted {
            shared.used -= lane.entries();
        }
        let now = self.idle_since;
        if !shared.broken {
            let most = shared.cq.capacity() as usize;
            let polled = shared.cq.poll(most, |wc| {
                let (id, receive) = Lane::split(wc.wr_id);
                let Some(lane) = find_mut(lanes, id) else { return };
                let at = match (clock.as_mut(), wc.timestamp) {
                    (Some(clock), Some(stamp)) => clock.completed(stamp, now),
                    _ => now,
                };
                let completion = lane.complete(wc, at);
                if let Some(c) = &completion
                    && c.status != Status::Success
                {
                    lane.tell(c.status, events);
                }
                swept.extend(completion);
                if !receive {
                    lane.settle(&mut swept);
                }
            });
            match polled {
                Ok(got) => *wake_due |= *armed && got > 0,
                Err(_) => shared.broken = true,
            }
        }
        backlog.extend(swept);
        self.memory.leave(lane.place);
        Ok(())
    }

    fn poll_event(&mut self) -> Option<LaneEvent> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        if std::mem::replace(&mut self.ask_events, false) {
            self.ask_for_events();
        }
        self.events.pop_front()
    }
}

impl Lanes for VerbsLanes {
    #[inline]
    fn post(&mut self, id: LaneId, wr: &WorkRequest) -> Result<(), Full> {
        let lane = find_mut(&mut self.lanes, id).ok_or(Full)?;
        if !lane.can_send() {
            return Err(Full);
        }
        let op = match wr.op {
            Op::Send => SendOp::Send,
            Op::Write => SendOp::Write,
            Op::WriteImm(imm) => SendOp::WriteImm(imm),
            Op::Read => SendOp::Read,
            Op::FetchAdd(add) => SendOp::FetchAdd(add),
            Op::CompareSwap(compare, swap) => SendOp::CompareSwap(compare, swap),
        };
        let local = match wr.local.len {
            0 => None,
            _ => Some(self.memory.local(lane.place, &wr.local).ok_or(Full)?),
        };
        let wr_id = lane.send_id();
        let qp = lane.qp.as_mut().ok_or(Full)?;
        let remote = (wr.remote.addr, wr.remote.rkey);
        if !qp.post(&SendRequest { id: wr_id, op, local, remote, inline: wr.local.len <= self.config.inline }) {
            return Err(Full);
        }
        if lane.unrung == 0 {
            self.unrung.push(id);
        }
        lane.sent(wr.id);
        Ok(())
    }

    fn post_receive(&mut self, id: LaneId, receive: &Receive) -> Result<(), Full> {
        let lane = find_mut(&mut self.lanes, id).ok_or(Full)?;
        if !lane.can_receive() {
            return Err(Full);
        }
        let local = match &receive.local {
            None => None,
            Some(l) if l.len == 0 => None,
            Some(l) => Some(self.memory.local(lane.place, l).ok_or(Full)?),
        };
        let wr_id = lane.receive_id();
        let qp = lane.qp.as_mut().ok_or(Full)?;
        qp.post_receive(wr_id, local).map_err(|_| Full)?;
        lane.received(receive.id);
        Ok(())
    }

    fn doorbell(&mut self, now: Time) {
        while let Some(id) = self.unrung.pop() {
            if let Some(lane) = find_mut(&mut self.lanes, id)
                && lane.unrung > 0
            {
                lane.ring(now, &mut self.backlog);
            }
        }
    }

    fn poll(&mut self, now: Time, out: &mut [Completion]) -> usize {
        let mut n = self.take_completions(now, out);
        if self.rest(now, n) {
            // What came before the queues were armed does not wake anybody.
            n += self.take_completions(now, &mut out[n..]);
            if n > 0 {
                (self.idle_polls, self.idle_since) = (0, now);
            }
        }
        self.end_broken();
        if now.since(self.asked_events) >= EVENTS_EVERY {
            (self.asked_events, self.ask_events) = (now, true);
        }
        n
    }

    fn next_timeout(&self) -> Option<Time> {
        if !self.backlog.is_empty() || !self.unrung.is_empty() || !self.events.is_empty() {
            return Some(Time::ZERO);
        }
        // Nobody may sleep before the queues are armed.
        let awake = self.devices.iter().any(|d| !d.cqs.is_empty() && (!d.armed || d.wake_due));
        awake.then_some(self.idle_since + IDLE_FOR)
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.devices.iter().flat_map(|d| [d.channel.fd(), d.events.as_fd()]).collect()
    }
}
