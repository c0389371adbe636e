//! All devices and what flies between them, behind one lock.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, Once};
use std::time::{Duration, Instant};

use planespray::roce::{self, Cqe, CqeKind, Device, DeviceConfig, PathId, RxMeta, Transition};
use planespray::seq::Qpn;
use planespray::time::{Span, Time};
use planespray::verbs::addr_of;
use planespray::verbs::sys::*;
use planespray::wire::Packet;

use crate::context::MockContext;
use crate::control::Control;
use crate::cq::{Entry, MockCq};
use crate::qp::MockQp;

/// Bytes of one burst.
const STAGING: usize = 65_536;
/// Bursts that one call moves at most, so that what is under way stays under way for a while.
const BURSTS: usize = 48;

pub(crate) struct World {
    start: Instant,
    pub(crate) devices: Vec<Dev>,
    pub(crate) control: Control,
    /// How often a source port was asked for.
    pub(crate) source_ports_asked: u32,
    /// Memory that peers may write: the device, first byte and length.
    pub(crate) open_memory: Vec<(usize, usize, usize)>,
    /// Bytes that will be written although nobody may any more, and when.
    late: Vec<(Time, usize)>,
    staging: Vec<u8>,
}

pub(crate) struct Dev {
    pub(crate) name: String,
    plane: u8,
    pub(crate) gids: Vec<([u8; 16], ibv_gid_type)>,
    pub(crate) engine: Device,
    pub(crate) qps: BTreeMap<u32, *mut MockQp>,
    pub(crate) contexts: Vec<*mut MockContext>,
    pub(crate) up: bool,
    paths: Vec<Option<Path>>,
}

#[derive(Clone, Copy)]
struct Path {
    to: usize,
    src: IpAddr,
    dst: IpAddr,
}

// SAFETY: the pointers in it are followed only under the lock.
unsafe impl Send for World {}

static WORLD: Mutex<Option<World>> = Mutex::new(None);
static TICKER: Once = Once::new();

/// The world, made when first asked for.
pub(crate) struct Guard(MutexGuard<'static, Option<World>>);

impl std::ops::Deref for Guard {
    type Target = World;
    fn deref(&self) -> &World {
        self.0.as_ref().expect("made by world()")
    }
}

impl std::ops::DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut World {
        self.0.as_mut().expect("made by world()")
    }
}

pub(crate) fn world() -> Guard {
    TICKER.call_once(|| {
        // Timers run whether anybody polls or not, as they do in a device.
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(Duration::from_millis(1));
                world().drive();
            }
        });
    });
    let mut guard = WORLD.lock().unwrap_or_else(|e| e.into_inner());
    guard.get_or_insert_with(World::new);
    Guard(guard)
}

impl World {
    fn new() -> World {
        let mut devices = Vec::new();
        for host in 0..2u8 {
            for plane in 0..2u8 {
                let link_local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, plane, host + 1];
                let v4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, plane, 0, host + 1];
                let v6 = [0xfd, 0, 0, plane, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host + 1];
                let seed = u64::from(std::process::id()) << 8 | u64::from(host) << 1 | u64::from(plane);
                devices.push(Dev {
                    name: format!("h{host}p{plane}"),
                    plane,
                    gids: vec![
                        (link_local, IBV_GID_TYPE_ROCE_V1),
                        (link_local, IBV_GID_TYPE_ROCE_V2),
                        (v4, IBV_GID_TYPE_ROCE_V1),
                        (v4, IBV_GID_TYPE_ROCE_V2),
                        (v6, IBV_GID_TYPE_ROCE_V2),
                    ],
                    engine: Device::new(&DeviceConfig { seed, max_qps: 4095, max_keys: 65_536 }),
                    qps: BTreeMap::new(),
                    contexts: Vec::new(),
                    up: true,
                    paths: Vec::new(),
                });
            }
        }
        World {
            start: Instant::now(),
            devices,
            control: Control::from_environment(),
            source_ports_asked: 0,
            open_memory: Vec::new(),
            late: Vec::new(),
            staging: vec![0; STAGING],
        }
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_nanos(self.start.elapsed().as_nanos() as u64)
    }

    /// A way from one of a device's addresses to an address; `None` if no device of its plane has that.
    pub(crate) fn open_path(&mut self, from: usize, sgid: usize, dgid: [u8; 16]) -> Option<PathId> {
        let plane = self.devices[from].plane;
        let src = addr_of(self.devices[from].gids.get(sgid)?.0);
        let to = self.devices.iter().position(|d| d.plane == plane && d.gids.iter().any(|g| g.0 == dgid))?;
        let path = Path { to, src, dst: addr_of(dgid) };
        let paths = &mut self.devices[from].paths;
        let index = match paths.iter().position(Option::is_none) {
            Some(i) => i,
            None => {
                paths.push(None);
                paths.len() - 1
            }
        };
        paths[index] = Some(path);
        Some(PathId(index as u32))
    }

    pub(crate) fn close_path(&mut self, from: usize, path: PathId) {
        if let Some(p) = self.devices[from].paths.get_mut(path.0 as usize) {
            *p = None;
        }
    }

    /// Moves packets, runs timers, and hands out what completed.
    pub(crate) fn drive(&mut self) {
        let now = self.now();
        let mut left = BURSTS;
        let mut staging = std::mem::take(&mut self.staging);
        loop {
            let mut moved = false;
            for d in 0..self.devices.len() {
                if self.devices[d].engine.next_timeout().is_some_and(|t| t <= now) {
                    self.devices[d].engine.handle_timeout(now);
                }
                while left > 0 {
                    let Some(burst) = self.devices[d].engine.poll_transmit(now, STAGING, &mut staging) else { break };
                    (moved, left) = (true, left - 1);
                    self.deliver(d, &burst, &staging, now);
                }
            }
            if !moved {
                break;
            }
        }
        self.staging = staging;
        self.late.retain(|&(due, at)| {
            if due <= now {
                // SAFETY: registered, for `close_memory` takes away what no longer is; the owner copies it in and out.
                unsafe { std::ptr::with_exposed_provenance_mut::<u8>(at).write_volatile(0xa5) };
            }
            due > now
        });
        for d in 0..self.devices.len() {
            self.collect(d);
        }
    }

    /// A queue pair of a device goes, and leaves a write behind if that is asked for.
    pub(crate) fn leave_late_write(&mut self, device: usize) {
        let newest = self.open_memory.iter().rev().find(|m| m.0 == device);
        if let (Some(ms), Some(&(_, at, len))) = (self.control.late_write, newest) {
            self.late.push((self.now() + Span::from_millis(ms), at + len / 2));
        }
    }

    /// Memory is no longer registered.
    pub(crate) fn close_memory(&mut self, device: usize, at: usize, len: usize) {
        if let Some(i) = self.open_memory.iter().position(|&m| m == (device, at, len)) {
            self.open_memory.remove(i);
            self.late.retain(|l| !(at..at + len).contains(&l.1));
        }
    }

    fn deliver(&mut self, from: usize, burst: &roce::Transmit, staging: &[u8], now: Time) {
        let Some(Some(path)) = self.devices[from].paths.get(burst.path.0 as usize).copied() else { return };
        if !self.devices[from].up || !self.devices[path.to].up || self.control.cut {
            return;
        }
        let meta = RxMeta { src: path.src, dst: path.dst, tos: burst.tos, ttl: 64 };
        for bytes in staging[..burst.len].chunks(burst.segment.max(1)) {
            if let Ok(packet) = Packet::parse(bytes) {
                self.devices[path.to].engine.handle(now, &meta, &packet);
            }
        }
    }

    /// Gives completions to their queues and events to their contexts.
    fn collect(&mut self, d: usize) {
        let blank = Cqe {
            qpn: Qpn::new(0),
            id: 0,
            what: CqeKind::Send,
            status: roce::Status::Success,
            len: 0,
            imm: None,
            src_qpn: None,
            rtt: None,
            marks: None,
            retransmits: 0,
        };
        let mut batch = [blank; 32];
        loop {
            let got = self.devices[d].engine.poll_cq(&mut batch);
            for cqe in &batch[..got] {
                self.complete(d, cqe);
            }
            if got == 0 {
                break;
            }
        }
        while let Some(event) = self.devices[d].engine.poll_event() {
            let Some(&qp) = self.devices[d].qps.get(&event.qpn.get()) else { continue };
            let kind = match event.status {
                roce::Status::RemoteAccess => IBV_EVENT_QP_ACCESS_ERR,
                roce::Status::RemoteInvalidRequest => IBV_EVENT_QP_REQ_ERR,
                _ => IBV_EVENT_QP_FATAL,
            };
            // What the requester did wrong is told by its completions alone.
            if requester_status(event.status) && self.has_requests(qp) {
                continue;
            }
            raise_for_qp(qp, kind);
        }
    }

    fn has_requests(&self, qp: *mut MockQp) -> bool {
        // SAFETY: live while it is in the map.
        unsafe { (*qp).failed_request }
    }

    fn complete(&mut self, d: usize, cqe: &Cqe) {
        let Some(&qp) = self.devices[d].qps.get(&cqe.qpn.get()) else { return };
        // SAFETY: live while it is in the map, and used under the lock only.
        let q = unsafe { &mut *qp };
        let receive = matches!(cqe.what, CqeKind::Receive | CqeKind::ReceiveWriteImm);
        let mut status = wc_status(cqe.status);
        if self.control.spoilt && status == IBV_WC_REM_ACCESS_ERR {
            status = IBV_WC_REM_INV_REQ_ERR;
        }
        if q.poisoned && status == IBV_WC_SUCCESS {
            status = IBV_WC_WR_FLUSH_ERR;
        }
        if let Some(planned) = self.control.take_status(cqe.qpn.get(), receive)
            && status == IBV_WC_SUCCESS
        {
            status = planned;
            q.poisoned = true;
            let _ = self.devices[d].engine.modify_qp(cqe.qpn, Transition::Err);
        }
        if !receive && status != IBV_WC_SUCCESS && status != IBV_WC_WR_FLUSH_ERR {
            q.failed_request = true;
        }
        let opcode = match cqe.what {
            CqeKind::Send => IBV_WC_SEND,
            CqeKind::Write => IBV_WC_RDMA_WRITE,
            CqeKind::Read => IBV_WC_RDMA_READ,
            CqeKind::FetchAdd => IBV_WC_FETCH_ADD,
            CqeKind::CompareSwap => IBV_WC_COMP_SWAP,
            CqeKind::Receive => IBV_WC_RECV,
            CqeKind::ReceiveWriteImm => IBV_WC_RECV_RDMA_WITH_IMM,
        };
        let entry = Entry {
            wr_id: cqe.id,
            status,
            opcode,
            byte_len: cqe.len,
            imm: cqe.imm,
            qpn: cqe.qpn.get(),
            src_qpn: cqe.src_qpn.map_or(0, Qpn::get),
            grh: receive && cqe.src_qpn.is_some(),
            at: self.now().as_nanos(),
        };
        let cq = if receive { q.ex.qp_base.recv_cq } else { q.ex.qp_base.send_cq };
        self.push(d, cqe.qpn, cq, entry);
    }

    /// Puts an entry into a queue; one too many breaks it, and the queue pair with it.
    pub(crate) fn push(&mut self, d: usize, qpn: Qpn, cq: *mut ibv_cq, entry: Entry) {
        // SAFETY: queues outlive the queue pairs that report to them.
        let cq = unsafe { &mut *cq.cast::<MockCq>() };
        if !cq.push(entry) {
            // SAFETY: the context outlives its queues.
            let context = unsafe { &mut *cq.ex.context };
            raise(
                context,
                ibv_async_event {
                    element: ibv_async_event__bindgen_ty_1 { cq: std::ptr::from_mut(cq).cast() },
                    event_type: IBV_EVENT_CQ_ERR,
                },
            );
            let _ = self.devices[d].engine.modify_qp(qpn, Transition::Err);
        }
    }
}

/// Adds to a context's events.
pub(crate) fn raise(context: &mut ibv_context, event: ibv_async_event) {
    let context = MockContext::of(context);
    // SAFETY: contexts are live while they are in their device's list or objects of them are.
    unsafe { (*context).events.push_back(event) };
    // SAFETY: the descriptor is open as long as the context.
    notify(unsafe { (*context).verbs.context.async_fd });
}

pub(crate) fn raise_for_qp(qp: *mut MockQp, kind: ibv_event_type) {
    // SAFETY: live, as the caller found it in the map.
    let context = unsafe { &mut *(*qp).ex.qp_base.context };
    raise(context, ibv_async_event { element: ibv_async_event__bindgen_ty_1 { qp: qp.cast() }, event_type: kind });
}

/// Adds one to an event descriptor.
pub(crate) fn notify(fd: i32) {
    let one = 1u64;
    // SAFETY: eight bytes of our own.
    unsafe { libc::write(fd, std::ptr::from_ref(&one).cast(), 8) };
}

/// Takes one from an event descriptor; false if there is none and it does not block.
pub(crate) fn take_one(fd: i32) -> bool {
    let mut one = 0u64;
    // SAFETY: eight bytes of our own.
    unsafe { libc::read(fd, std::ptr::from_mut(&mut one).cast(), 8) == 8 }
}

pub(crate) fn event_fd() -> i32 {
    // SAFETY: makes a descriptor.
    unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) }
}

/// Events of one queue pair, or queue, that nobody took: they go with it.
pub(crate) fn forget_events(events: &mut VecDeque<ibv_async_event>, object: *mut std::ffi::c_void) {
    events.retain(|e| {
        let about_object = matches!(
            e.event_type,
            IBV_EVENT_QP_FATAL | IBV_EVENT_QP_ACCESS_ERR | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_CQ_ERR
        );
        // SAFETY: these kinds hold a pointer.
        !about_object || unsafe { e.element.qp.cast() } != object
    });
}

/// Statuses by which a requester fails.
fn requester_status(status: roce::Status) -> bool {
    !matches!(status, roce::Status::LocalLength)
}

pub(crate) fn wc_status(status: roce::Status) -> ibv_wc_status {
    match status {
        roce::Status::Success => IBV_WC_SUCCESS,
        roce::Status::Flushed => IBV_WC_WR_FLUSH_ERR,
        roce::Status::RetryExceeded => IBV_WC_RETRY_EXC_ERR,
        roce::Status::RnrRetryExceeded => IBV_WC_RNR_RETRY_EXC_ERR,
        roce::Status::RemoteAccess => IBV_WC_REM_ACCESS_ERR,
        roce::Status::RemoteInvalidRequest => IBV_WC_REM_INV_REQ_ERR,
        roce::Status::RemoteOperation => IBV_WC_REM_OP_ERR,
        roce::Status::LocalProtection => IBV_WC_LOC_PROT_ERR,
        roce::Status::LocalLength => IBV_WC_LOC_LEN_ERR,
        _ => IBV_WC_LOC_QP_OP_ERR,
    }
}
