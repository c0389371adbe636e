//! Lanes over devices.
#![forbid(unsafe_code)]

mod control;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::ah::{Route, flow_label, source_port};
use super::batch::{SendOp, SendRequest};
use super::clock::DeviceClock;
use super::config::{GidChoice, VerbsConfig, VerbsPort};
use super::cq::{CompletionChannel, Cq};
use super::device::{Context, devices};
use super::dl::Library;
use super::driver::{backend_name, driver_of, is_software};
use super::error::VerbsError;
use super::events::{AsyncEvent, AsyncEvents};
use super::lane::{Lane, LaneParts, entries};
use super::memory::Memory;
use super::mlx5::Mlx5;
use super::peer;
use super::port::{GidKind, LinkLayer, PortState};
use super::qp::{Peer, Qp, QpSpec, Retry, Transport};
use crate::class::Ecn;
use crate::lanes::{
    Caps, Completion, Control, DeviceRefusal, Domain, Full, LaneAddress, LaneError, LaneEvent, LaneId, LaneSpec, Lanes,
    MAX_PORTS, MrId, Op, PortId, PortInfo, Receive, Status, Window, WindowAccess, WorkRequest,
};
use crate::mem::{MemError, Region};
use crate::time::{Span, Time};

/// Entries of a completion queue that lanes share.
const SHARED_ENTRIES: u32 = 8192;
/// How long polls find nothing before the queues are armed.
const REST_AFTER: Span = Span::from_micros(20);
/// How long after a completion its wake-up may come, if one comes at all; and how often one that nobody waits for is looked
/// for, which takes a system call.
const WAKE_FOR: Span = Span::from_micros(200);
/// How often a device is asked for events by who does not sleep, which takes a system call.
const EVENTS_EVERY: Span = Span::from_millis(1);
/// Bytes of a burst: what one work request carries at little more cost than a packet.
const BURST: u32 = 65_536;
/// UDP port of RoCEv2.
pub(super) const ROCE_PORT: u16 = 4791;

/// Lanes over queue pairs of real devices.
pub struct VerbsLanes {
    config: VerbsConfig,
    caps: Caps,
    ports: Vec<PortInfo>,
    links: Vec<Link>,
    lanes: Vec<Slot>,
    devices: Vec<Dev>,
    memory: Memory,
    /// Lanes with requests that wait for the doorbell.
    unrung: Vec<LaneId>,
    /// Completions that did not come from the device just now.
    backlog: VecDeque<Completion>,
    events: VecDeque<LaneEvent>,
    rng: fastrand::Rng,
    /// Since when nothing has completed.
    idle_since: Time,
    /// When wake-ups were last looked for.
    looked: Time,
    asked_events: Time,
    ask_events: bool,
    first_queue: usize,
    retry: Retry,
    rest_after: Span,
}

/// A port: what the seam does not need to know of it.
struct Link {
    device: usize,
    number: u8,
    sgid_index: u8,
    addr: IpAddr,
    /// The MTU that its last lane got, if that was not the port's own: said once.
    lowered: Option<u32>,
}

struct Dev {
    /// The queues, before the channel they wake.
    cqs: Vec<Shared>,
    channel: CompletionChannel,
    events: AsyncEvents,
    context: Arc<Context>,
    clock: Option<DeviceClock>,
    /// The queues will wake whoever sleeps.
    armed: bool,
    /// A wake-up is due that has not come yet.
    wake_due: bool,
    /// Sets source ports, until the device refuses.
    mlx5: Option<Mlx5>,
}

struct Shared {
    cq: Cq,
    used: u32,
    broken: bool,
}

struct Slot {
    generation: u16,
    lane: Option<Box<Lane>>,
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
                    opened.push(Dev::new(device.open()?, &config)?);
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
            idle_since: Time::ZERO,
            looked: Time::ZERO,
            asked_events: Time::ZERO,
            ask_events: true,
            first_queue: 0,
            retry: config.retry.unwrap_or_else(|| Retry::of(driver.as_deref())),
            rest_after: config.rest.unwrap_or(if is_software(driver.as_deref()) { Span::ZERO } else { REST_AFTER }),
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
            self.idle_since = now;
        }
        let idle = now.since(self.idle_since) >= self.rest_after;
        let look = now.since(self.looked) >= WAKE_FOR;
        if look {
            self.looked = now;
        }
        let mut armed = false;
        for dev in &mut self.devices {
            // A wake-up that nobody waits for any more may still come: that is looked for now and then.
            if dev.armed && (dev.wake_due || look) {
                if dev.channel.take(dev.cqs.len()) > 0 {
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

    fn ask_for_events(&mut self) {
        for d in 0..self.devices.len() {
            while let Some(event) = self.devices[d].events.next_event() {
                self.take_event(d, event);
            }
        }
    }

    fn take_event(&mut self, device: usize, event: AsyncEvent) {
        match event {
            AsyncEvent::PortActive { port } => self.each_link(device, port, |lanes, i| {
                lanes.read_again(i);
                lanes.events.push_back(LaneEvent::PortUp(PortId(i as u8)));
            }),
            AsyncEvent::PortError { port } => {
                self.each_link(device, port, |lanes, i| {
                    lanes.events.push_back(LaneEvent::PortDown(PortId(i as u8)));
                });
            }
            AsyncEvent::GidChange { port } => self.each_link(device, port, |lanes, i| lanes.read_again(i)),
            AsyncEvent::QpFatal { qpn } => self.queue_pair_failed(device, qpn, Status::Other),
            AsyncEvent::QpAccess { qpn } => self.queue_pair_failed(device, qpn, Status::RemoteAccess),
            AsyncEvent::QpRequest { qpn } => self.queue_pair_failed(device, qpn, Status::RemoteInvalidRequest),
            // Polling the queue tells which one it was.
            AsyncEvent::CqError => {}
            AsyncEvent::DeviceFatal => {
                for lane in self.lanes.iter_mut().filter_map(|s| s.lane.as_mut()).filter(|l| l.device == device) {
                    lane.cause.get_or_insert(Status::Other);
                    lane.abandon(&mut self.backlog);
                    lane.tell(Status::Other, &mut self.events);
                }
                for i in 0..self.links.len() {
                    if self.links[i].device == device {
                        self.events.push_back(LaneEvent::PortDown(PortId(i as u8)));
                    }
                }
            }
            AsyncEvent::Other(_) => {}
        }
    }

    fn each_link(&mut self, device: usize, port: u8, mut f: impl FnMut(&mut Self, usize)) {
        for i in 0..self.links.len() {
            if self.links[i].device == device && self.links[i].number == port {
                f(self, i);
            }
        }
    }

    /// Reads a port's MTU and the index of its address again; what cannot be read stays as it was.
    fn read_again(&mut self, i: usize) {
        let (Some(link), Some(info)) = (self.links.get_mut(i), self.ports.get_mut(i)) else { return };
        let context = &self.devices[link.device].context;
        if let Ok(index) = context.gid_index(link.number, link.addr) {
            link.sgid_index = index;
        }
        if let Ok(attributes) = context.port(link.number)
            && attributes.mtu != 0
        {
            info.mtu = attributes.mtu;
        }
    }

    fn queue_pair_failed(&mut self, device: usize, qpn: u32, status: Status) {
        let lanes = self.lanes.iter_mut().filter_map(|s| s.lane.as_mut());
        let Some(lane) = lanes.into_iter().find(|l| l.device == device && l.qpn == qpn) else { return };
        if lane.told {
            return;
        }
        lane.cause.get_or_insert(status);
        lane.stop(&mut self.backlog);
        // A completion will say more precisely why, if one is due.
        if !lane.has_work() {
            lane.tell(status, &mut self.events);
        }
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
    fn new(context: Arc<Context>, config: &VerbsConfig) -> Result<Dev, VerbsError> {
        let limits = context.limits();
        let clock = DeviceClock::new(limits.clock_khz, limits.timestamp_mask).filter(|_| config.timestamps);
        let mlx5 = match driver_of(context.sysfs()).as_deref() {
            Some("mlx5") => Mlx5::load(config.mlx5.as_deref())
                .inspect_err(|e| tracing::info!(device = context.name(), "source ports are not set: {e}"))
                .ok(),
            _ => None,
        };
        Ok(Dev {
            cqs: Vec::new(),
            channel: CompletionChannel::new(&context)?,
            events: AsyncEvents::new(&context)?,
            clock,
            context,
            armed: false,
            wake_due: false,
            mlx5,
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
    Ok((info, Link { device, number, sgid_index: index, addr, lowered: None }))
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
                self.idle_since = now;
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
        awake.then_some(self.idle_since + self.rest_after)
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.devices.iter().flat_map(|d| [d.channel.fd(), d.events.as_fd()]).collect()
    }
}
