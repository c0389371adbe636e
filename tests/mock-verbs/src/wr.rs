//! Posting: by chains, and by `ibv_wr_*`.

use std::ffi::{c_int, c_void};

use planespray::mem::Key;
use planespray::roce::{PostError, QpState, ReceiveWr, Remote, SendOp, SendWr, Sge, UdDest};
use planespray::seq::Qpn;
use planespray::verbs::sys::*;

use crate::cq::Entry;
use crate::qp::{MockAh, MockQp};
use crate::world::{Guard, World, world};

fn errno_of(error: PostError) -> c_int {
    match error {
        PostError::Full => libc::ENOMEM,
        _ => libc::EINVAL,
    }
}

/// Copies bytes into the queue pair's own memory, as inline requests carry them.
unsafe fn inline(q: &mut MockQp, addr: *const u8, len: usize) -> Option<Sge> {
    if len > crate::qp::INLINE as usize {
        return None;
    }
    let at = (q.inline_next % q.depth) * u64::from(crate::qp::INLINE);
    q.inline_next += 1;
    // SAFETY: the poster's bytes, valid during the call.
    let bytes = unsafe { std::slice::from_raw_parts(addr, len) };
    q.inline.write_at(at, bytes).ok()?;
    Some(Sge { addr: at, len: len as u32, lkey: q.inline_key })
}

/// Takes a request; in ERR it is flushed at once.
fn take(w: &mut World, q: &MockQp, wr: &SendWr) -> Result<(), c_int> {
    let mut wr = *wr;
    if w.control.malformed > 0 && matches!(wr.op, SendOp::Write | SendOp::WriteImm(_)) {
        w.control.malformed -= 1;
        wr.remote.rkey = !wr.remote.rkey;
    }
    let wr = &wr;
    let engine = &mut w.devices[q.device].engine;
    if engine.state(q.qpn) == Some(QpState::Err) {
        let entry = Entry {
            wr_id: wr.id,
            status: IBV_WC_WR_FLUSH_ERR,
            opcode: IBV_WC_SEND,
            byte_len: 0,
            imm: None,
            qpn: q.qpn.get(),
            src_qpn: 0,
            grh: false,
            at: 0,
        };
        w.push(q.device, q.qpn, q.ex.qp_base.send_cq, entry);
        return Ok(());
    }
    engine.post_send(q.qpn, wr).map_err(errno_of)
}

unsafe fn translate(q: &mut MockQp, wr: &ibv_send_wr) -> Option<SendWr> {
    let mut out = SendWr { id: wr.wr_id, ..SendWr::default() };
    out.signaled = wr.send_flags & IBV_SEND_SIGNALED != 0;
    // SAFETY: the opcode says which fields count; all forms are numbers.
    unsafe {
        let imm = u32::from_be(wr.__bindgen_anon_1.imm_data);
        let (rdma, atomic) = (wr.wr.rdma, wr.wr.atomic);
        out.remote = Remote { addr: rdma.remote_addr, rkey: rdma.rkey };
        out.op = match wr.opcode {
            IBV_WR_SEND => SendOp::Send,
            IBV_WR_SEND_WITH_IMM => SendOp::SendImm(imm),
            IBV_WR_RDMA_WRITE => SendOp::Write,
            IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteImm(imm),
            IBV_WR_RDMA_READ => SendOp::Read,
            IBV_WR_ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd(atomic.compare_add),
            IBV_WR_ATOMIC_CMP_AND_SWP => SendOp::CompareSwap { compare: atomic.compare_add, swap: atomic.swap },
            _ => return None,
        };
        if matches!(out.op, SendOp::FetchAdd(_) | SendOp::CompareSwap { .. }) {
            out.remote = Remote { addr: atomic.remote_addr, rkey: atomic.rkey };
        }
        if (*q.ex.qp_base.pd).context.is_null() {
            return None;
        }
        if !wr.wr.ud.ah.is_null() && matches!(wr.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM) && q.is_datagram() {
            let ud = wr.wr.ud;
            let path = (*ud.ah.cast::<MockAh>()).path;
            out.ud = Some(UdDest { path, qpn: Qpn::new(ud.remote_qpn), qkey: ud.remote_qkey });
        }
        for i in 0..usize::try_from(wr.num_sge).ok()?.min(4) {
            let s = *wr.sg_list.add(i);
            out.sges[i] = if wr.send_flags & IBV_SEND_INLINE != 0 {
                inline(q, std::ptr::with_exposed_provenance(s.addr as usize), s.length as usize)?
            } else {
                Sge { addr: s.addr, len: s.length, lkey: Key(s.lkey) }
            };
            out.sge_count = i as u8 + 1;
        }
    }
    Some(out)
}

impl MockQp {
    fn is_datagram(&self) -> bool {
        self.ex.qp_base.qp_type == IBV_QPT_UD
    }
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a live queue pair of this library.
    let q = unsafe { &mut *qp.cast::<MockQp>() };
    let mut w = world();
    let mut rc = 0;
    while !wr.is_null() {
        // SAFETY: the caller's chain.
        let one = unsafe { &*wr };
        // SAFETY: as above.
        let taken = unsafe { translate(q, one) }
            .ok_or(libc::EINVAL)
            .and_then(|t| w.control.post_errno().map_or_else(|| take(&mut w, q, &t), Err));
        if let Err(errno) = taken {
            // SAFETY: the caller's variable.
            unsafe { *bad = wr };
            rc = errno;
            break;
        }
        wr = one.next;
    }
    w.drive();
    rc
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a live queue pair of this library.
    let q = unsafe { &mut *qp.cast::<MockQp>() };
    let mut w = world();
    let mut rc = 0;
    while !wr.is_null() {
        // SAFETY: the caller's chain.
        let one = unsafe { &*wr };
        let mut out = ReceiveWr { id: one.wr_id, ..ReceiveWr::default() };
        for i in 0..one.num_sge.clamp(0, 4) as usize {
            // SAFETY: the chain's list has as many.
            let s = unsafe { *one.sg_list.add(i) };
            out.sges[i] = Sge { addr: s.addr, len: s.length, lkey: Key(s.lkey) };
            out.sge_count = i as u8 + 1;
        }
        let engine = &mut w.devices[q.device].engine;
        let taken = if engine.state(q.qpn) == Some(QpState::Err) {
            let entry = Entry {
                wr_id: one.wr_id,
                status: IBV_WC_WR_FLUSH_ERR,
                opcode: IBV_WC_RECV,
                byte_len: 0,
                imm: None,
                qpn: q.qpn.get(),
                src_qpn: 0,
                grh: false,
                at: 0,
            };
            w.push(q.device, q.qpn, q.ex.qp_base.recv_cq, entry);
            Ok(())
        } else {
            engine.post_receive(q.qpn, &out).map_err(errno_of)
        };
        if let Err(errno) = taken {
            // SAFETY: the caller's variable.
            unsafe { *bad = wr };
            rc = errno;
            break;
        }
        wr = one.next;
    }
    w.drive();
    rc
}

/// Gives a queue pair its `ibv_wr_*` functions.
pub(crate) fn install(q: &mut MockQp) {
    let ex = &mut q.ex;
    if q.empty {
        crate::empty::install(ex);
        return;
    }
    ex.wr_start = Some(start);
    ex.wr_complete = Some(complete);
    ex.wr_abort = Some(abort);
    ex.wr_send = Some(send);
    ex.wr_send_imm = Some(send_imm);
    ex.wr_rdma_write = Some(write);
    ex.wr_rdma_write_imm = Some(write_imm);
    ex.wr_rdma_read = Some(read);
    ex.wr_atomic_fetch_add = Some(fetch_add);
    ex.wr_atomic_cmp_swp = Some(compare_swap);
    ex.wr_set_sge = Some(set_sge);
    ex.wr_set_sge_list = Some(set_sge_list);
    ex.wr_set_inline_data = Some(set_inline_data);
}

unsafe fn mock<'a>(qp: *mut ibv_qp_ex) -> &'a mut MockQp {
    // SAFETY: queue pairs of this library are all of this kind.
    unsafe { &mut *qp.cast::<MockQp>() }
}

unsafe fn add(qp: *mut ibv_qp_ex, op: SendOp, addr: u64, rkey: u32) {
    // SAFETY: as the caller promises; so for all below.
    let q = unsafe { mock(qp) };
    let signaled = q.ex.wr_flags & IBV_SEND_SIGNALED != 0;
    q.pending.push(SendWr { id: q.ex.wr_id, op, remote: Remote { addr, rkey }, signaled, ..SendWr::default() });
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: as above.
    unsafe { mock(qp) }.pending.clear();
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: as above.
    unsafe { mock(qp) }.pending.clear();
}

unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: as above.
    let q = unsafe { mock(qp) };
    let mut w: Guard = world();
    let pending = std::mem::take(&mut q.pending);
    // A batch is refused before any of it is taken.
    let mut rc = pending.iter().find_map(|_| w.control.post_errno()).unwrap_or(0);
    if rc == 0 {
        rc = pending.iter().find_map(|wr| take(&mut w, q, wr).err()).unwrap_or(0);
    }
    w.drive();
    q.pending = pending;
    q.pending.clear();
    rc
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    // SAFETY: as above.
    unsafe { add(qp, SendOp::Send, 0, 0) };
}
unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, imm: __be32) {
    // SAFETY: as above.
    unsafe { add(qp, SendOp::SendImm(u32::from_be(imm)), 0, 0) };
}
unsafe extern "C" fn write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: as above.
    unsafe { add(qp, SendOp::Write, addr, rkey) };
}
unsafe extern "C" fn write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, imm: __be32) {
    // SAFETY: as above.
    unsafe { add(qp, SendOp::WriteImm(u32::from_be(imm)), addr, rkey) };
}
unsafe extern "C" fn read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: as above.
    unsafe { add(qp, SendOp::Read, addr, rkey) };
}
unsafe extern "C" fn fetch_add(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, value: u64) {
    // SAFETY: as above.
    unsafe { add(qp, SendOp::FetchAdd(value), addr, rkey) };
}
unsafe extern "C" fn compare_swap(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, compare: u64, swap: u64) {
    // SAFETY: as above.
    unsafe { add(qp, SendOp::CompareSwap { compare, swap }, addr, rkey) };
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, len: u32) {
    // SAFETY: as above.
    let q = unsafe { mock(qp) };
    if let Some(wr) = q.pending.last_mut() {
        wr.sges[0] = Sge { addr, len, lkey: Key(lkey) };
        wr.sge_count = 1;
    }
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    for i in 0..count.min(1) {
        // SAFETY: the caller's list.
        unsafe {
            let s = *list.add(i);
            set_sge(qp, s.lkey, s.addr, s.length);
        }
    }
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, len: usize) {
    // SAFETY: as above.
    let q = unsafe { mock(qp) };
    // SAFETY: the caller's bytes.
    let sge = unsafe { inline(q, addr.cast(), len) };
    if let (Some(wr), Some(sge)) = (q.pending.last_mut(), sge) {
        wr.sges[0] = sge;
        wr.sge_count = 1;
    }
}
