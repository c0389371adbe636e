//! Queue pairs and address handles.

use std::ffi::c_int;
use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr};
use std::ptr::null_mut;

use planespray::mem::{Access, Key, Pd, Region};
use planespray::roce::{self, PathId, QpConfig, QpError, QpKind, SendWr, Transition};
use planespray::seq::{Psn, Qpn};
use planespray::time::Span;
use planespray::verbs::addr_of;
use planespray::verbs::sys::*;

use crate::context::{MockContext, MockPd, set_errno};
use crate::world::{World, forget_events, world};

/// The most that a request carries in itself.
pub(crate) const INLINE: u32 = 220;

#[repr(C)]
pub(crate) struct MockQp {
    pub(crate) ex: ibv_qp_ex,
    pub(crate) device: usize,
    pub(crate) empty: bool,
    pub(crate) qpn: Qpn,
    /// A completion was made to fail: what follows is flushed.
    pub(crate) poisoned: bool,
    pub(crate) failed_request: bool,
    pub(crate) pending: Vec<SendWr>,
    pub(crate) inline: Region,
    pub(crate) inline_key: Key,
    pub(crate) inline_next: u64,
    pub(crate) depth: u64,
    pub(crate) source_port: u16,
    pub(crate) flow_label: u32,
    path: Option<PathId>,
    qkey: u32,
    access: Access,
}

#[repr(C)]
pub(crate) struct MockAh {
    pub(crate) ah: ibv_ah,
    pub(crate) path: PathId,
}

unsafe fn create(
    pd: *mut ibv_pd,
    cap: &mut ibv_qp_cap,
    queues: [*mut ibv_cq; 2],
    kind: ibv_qp_type,
    signal_all: bool,
) -> *mut MockQp {
    // SAFETY: a domain of this library.
    let (context, number) = unsafe { ((*pd).context, (*pd.cast::<MockPd>()).number) };
    // SAFETY: its context is open.
    let (device, empty) = unsafe { (MockContext::device_of(context), (*MockContext::of(context)).empty) };
    let mut w = world();
    let fail = |errno| {
        set_errno(errno);
        null_mut()
    };
    if cap.max_inline_data > INLINE || w.control.no_inline && cap.max_inline_data > 0 {
        return fail(libc::EINVAL);
    }
    if let Some(errno) = w.control.create_errno {
        return fail(errno);
    }
    let kind = match kind {
        IBV_QPT_RC => QpKind::Rc,
        IBV_QPT_UD => QpKind::Ud,
        _ => return fail(libc::EOPNOTSUPP),
    };
    let (Ok(send_depth), Ok(receive_depth)) = (u16::try_from(cap.max_send_wr), u16::try_from(cap.max_recv_wr)) else {
        return fail(libc::EINVAL);
    };
    let engine = &mut w.devices[device].engine;
    let config = QpConfig { kind, pd: number, send_depth, receive_depth, priority: 1, signal_all };
    let qpn = match engine.create_qp(&config) {
        Ok(qpn) => qpn,
        Err(QpError::NoQps { .. }) => return fail(libc::ENOMEM),
        Err(_) => return fail(libc::EINVAL),
    };
    let inline = Region::alloc(usize::from(send_depth) * INLINE as usize).expect("memory");
    let len = inline.len() as u64;
    let key = engine.memory_mut().register(Pd::LOCAL, &inline, 0, len, 0, Access::LOCAL_READ);
    let Ok(inline_key) = key else {
        let _ = engine.destroy_qp(qpn);
        return fail(libc::ENOMEM);
    };
    cap.max_inline_data = if w.control.no_inline { 0 } else { INLINE };
    // SAFETY: pointers, numbers and absent functions may be zero.
    let mut ex: ibv_qp_ex = unsafe { zeroed() };
    let base = &mut ex.qp_base;
    (base.context, base.pd, base.send_cq, base.recv_cq) = (context, pd, queues[0], queues[1]);
    base.qp_num = qpn.get();
    base.qp_type = if kind == QpKind::Ud { IBV_QPT_UD } else { IBV_QPT_RC };
    let qp = Box::into_raw(Box::new(MockQp {
        ex,
        device,
        empty,
        qpn,
        poisoned: false,
        failed_request: false,
        pending: Vec::new(),
        inline,
        inline_key,
        inline_next: 0,
        depth: u64::from(send_depth),
        source_port: 0,
        flow_label: 0,
        path: None,
        qkey: 0,
        access: Access::LOCAL_READ,
    }));
    w.devices[device].qps.insert(qpn.get(), qp);
    qp
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller's structure.
    let a = unsafe { &mut *attr };
    // SAFETY: as the caller promises.
    unsafe { create(pd, &mut a.cap, [a.send_cq, a.recv_cq], a.qp_type, a.sq_sig_all != 0) }.cast()
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the caller's structure.
    let a = unsafe { &mut *attr };
    // SAFETY: as the caller promises.
    let qp = unsafe { create(a.pd, &mut a.cap, [a.send_cq, a.recv_cq], a.qp_type, a.sq_sig_all != 0) };
    if !qp.is_null() {
        // SAFETY: just made.
        unsafe { crate::wr::install(&mut *qp) };
    }
    qp.cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    qp.cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    let mut w = world();
    // SAFETY: made above, destroyed once.
    let mock = unsafe { Box::from_raw(qp.cast::<MockQp>()) };
    let dev = &mut w.devices[mock.device];
    dev.qps.remove(&mock.qpn.get());
    let _ = dev.engine.destroy_qp(mock.qpn);
    dev.engine.memory_mut().revoke(mock.inline_key);
    w.leave_late_write(mock.device);
    if let Some(path) = mock.path {
        w.close_path(mock.device, path);
    }
    // SAFETY: the context is open. Completions that nobody polled stay in their queue, as rdma_rxe leaves them.
    unsafe { forget_events(&mut (*MockContext::of(mock.ex.qp_base.context)).events, qp.cast()) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: a live queue pair and the caller's structure.
    let (q, a) = unsafe { (&mut *qp.cast::<MockQp>(), &*attr) };
    let mut w = world();
    if mask as u32 & IBV_QP_STATE == 0 {
        return libc::EINVAL;
    }
    if let Some(errno) = w.control.refusal(a.qp_state) {
        return errno;
    }
    let result = transition(&mut w, q, a);
    // Flushed completions are there at once.
    w.drive();
    match result {
        Ok(()) => 0,
        Err(errno) => errno,
    }
}

fn transition(w: &mut World, q: &mut MockQp, a: &ibv_qp_attr) -> Result<(), c_int> {
    let to = match a.qp_state {
        IBV_QPS_INIT => {
            q.qkey = a.qkey;
            q.access = Access::LOCAL_READ;
            for (flag, right) in [
                (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
                (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
                (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
            ] {
                if a.qp_access_flags & flag != 0 {
                    q.access = q.access.and(right);
                }
            }
            Transition::Init
        }
        IBV_QPS_RTR => {
            let connected = a.path_mtu != 0;
            let grh = &a.ah_attr.grh;
            let (mut path, mut peer, mut mtu) = (PathId(u32::MAX), IpAddr::V4(Ipv4Addr::UNSPECIFIED), 4096);
            if connected {
                if !w.devices[q.device].up {
                    return Err(libc::ENETUNREACH);
                }
                // SAFETY: all of a GID's forms are bytes.
                let dgid = unsafe { grh.dgid.raw };
                let sgid = usize::from(grh.sgid_index).checked_sub(w.control.gid_shift as usize);
                path = sgid.and_then(|s| w.open_path(q.device, s, dgid)).ok_or(libc::ENETUNREACH)?;
                q.flow_label = grh.flow_label;
                (peer, mtu) = (addr_of(dgid), 128 << a.path_mtu);
                q.path = Some(path);
            }
            Transition::Rtr(roce::Rtr {
                dest_qpn: Qpn::new(a.dest_qp_num),
                rq_psn: Psn::new(a.rq_psn),
                mtu,
                path,
                peer,
                tos: grh.traffic_class,
                min_rnr_timer: a.min_rnr_timer,
                max_dest_rd_atomic: a.max_dest_rd_atomic,
                access: q.access,
                extension: None,
                qkey: q.qkey,
            })
        }
        IBV_QPS_RTS => Transition::Rts(roce::Rts {
            sq_psn: Psn::new(a.sq_psn),
            timeout: Span::from_nanos(4096 << a.timeout),
            retry_count: a.retry_cnt,
            rnr_retry: a.rnr_retry,
            max_rd_atomic: a.max_rd_atomic.max(1),
            ..roce::Rts::default()
        }),
        IBV_QPS_ERR => Transition::Err,
        IBV_QPS_RESET => Transition::Reset,
        _ => return Err(libc::EINVAL),
    };
    w.devices[q.device].engine.modify_qp(q.qpn, to).map_err(|_| libc::EINVAL)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    _init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: a live queue pair.
    let q = unsafe { &*qp.cast::<MockQp>() };
    let state = match world().devices[q.device].engine.state(q.qpn) {
        Some(roce::QpState::Reset) => IBV_QPS_RESET,
        Some(roce::QpState::Init) => IBV_QPS_INIT,
        Some(roce::QpState::Rtr) => IBV_QPS_RTR,
        Some(roce::QpState::Rts) => IBV_QPS_RTS,
        Some(roce::QpState::Sqd) => IBV_QPS_SQD,
        Some(roce::QpState::Err) => IBV_QPS_ERR,
        None => return libc::EINVAL,
    };
    // SAFETY: the caller's structure.
    unsafe { (*attr).qp_state = state };
    0
}

/// The mock is its own libmlx5.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_modify_qp_udp_sport(qp: *mut ibv_qp, port: u16) -> c_int {
    // SAFETY: a live queue pair.
    let q = unsafe { &mut *qp.cast::<MockQp>() };
    let mut w = world();
    w.source_ports_asked += 1;
    if let Some(errno) = w.control.sport_errno {
        return errno;
    }
    if w.devices[q.device].engine.state(q.qpn) != Some(roce::QpState::Rts) {
        return libc::EINVAL;
    }
    q.source_port = port;
    0
}

/// As a driver without it, which is most of them, answers.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    libc::EOPNOTSUPP
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: ibv_wr_opcode, _flags: u32) -> c_int {
    1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: a domain of this library and the caller's structure.
    let (context, grh) = unsafe { ((*pd).context, (*attr).grh) };
    // SAFETY: its context is open.
    let device = unsafe { MockContext::device_of(context) };
    // SAFETY: all of a GID's forms are bytes.
    let dgid = unsafe { grh.dgid.raw };
    match world().open_path(device, usize::from(grh.sgid_index), dgid) {
        Some(path) => Box::into_raw(Box::new(MockAh { ah: ibv_ah { context, pd, handle: path.0 }, path })).cast(),
        None => {
            set_errno(libc::ENETUNREACH);
            null_mut()
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: made above, destroyed once.
    let mock = unsafe { Box::from_raw(ah.cast::<MockAh>()) };
    // SAFETY: its context is open.
    let device = unsafe { MockContext::device_of(mock.ah.context) };
    world().close_path(device, mock.path);
    0
}
