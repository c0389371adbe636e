//! A device that takes requests and completes them without doing anything: what is left is the caller's own cost.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};

use planespray::verbs::sys::*;

/// Requests that were posted and not polled. One thread measures at a time.
struct Ring(UnsafeCell<([u64; SIZE], usize, usize)>);
// SAFETY: whoever measures is alone.
unsafe impl Sync for Ring {}
const SIZE: usize = 65_536;
static RING: Ring = Ring(UnsafeCell::new(([0; SIZE], 0, 0)));

unsafe fn add(wr_id: u64) {
    // SAFETY: alone.
    let (ids, head, _) = unsafe { &mut *RING.0.get() };
    ids[*head % SIZE] = wr_id;
    *head += 1;
}

pub(crate) unsafe extern "C" fn post_send(
    _qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    _bad: *mut *mut ibv_send_wr,
) -> c_int {
    while !wr.is_null() {
        // SAFETY: the caller's chain.
        unsafe {
            add((*wr).wr_id);
            wr = (*wr).next;
        }
    }
    0
}

pub(crate) unsafe extern "C" fn poll_cq(_cq: *mut ibv_cq, most: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: alone.
    let (ids, head, tail) = unsafe { &mut *RING.0.get() };
    let mut n = 0;
    while n < most && *tail < *head {
        // SAFETY: room for `most`; a device writes these fields.
        unsafe {
            let wc = wc.add(n as usize);
            (*wc).wr_id = ids[*tail % SIZE];
            (*wc).status = IBV_WC_SUCCESS;
            (*wc).opcode = IBV_WC_RDMA_WRITE;
            (*wc).vendor_err = 0;
            (*wc).byte_len = 0;
            (*wc).qp_num = 0;
            (*wc).src_qp = 0;
            (*wc).wc_flags = 0;
        }
        *tail += 1;
        n += 1;
    }
    n
}

pub(crate) fn install(ex: &mut ibv_qp_ex) {
    ex.wr_start = Some(nothing);
    ex.wr_complete = Some(complete);
    ex.wr_abort = Some(nothing);
    ex.wr_send = Some(send);
    ex.wr_rdma_write = Some(write);
    ex.wr_rdma_write_imm = Some(write_imm);
    ex.wr_rdma_read = Some(write);
    ex.wr_set_sge = Some(set_sge);
    ex.wr_set_sge_list = Some(set_sge_list);
    ex.wr_set_inline_data = Some(set_inline_data);
}

unsafe extern "C" fn nothing(_qp: *mut ibv_qp_ex) {}
unsafe extern "C" fn complete(_qp: *mut ibv_qp_ex) -> c_int {
    0
}
unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    // SAFETY: a live queue pair.
    unsafe { add((*qp).wr_id) };
}
unsafe extern "C" fn write(qp: *mut ibv_qp_ex, _rkey: u32, _addr: u64) {
    // SAFETY: as above.
    unsafe { add((*qp).wr_id) };
}
unsafe extern "C" fn write_imm(qp: *mut ibv_qp_ex, _rkey: u32, _addr: u64, _imm: __be32) {
    // SAFETY: as above.
    unsafe { add((*qp).wr_id) };
}
unsafe extern "C" fn set_sge(_qp: *mut ibv_qp_ex, _lkey: u32, _addr: u64, _len: u32) {}
unsafe extern "C" fn set_sge_list(_qp: *mut ibv_qp_ex, _count: usize, _list: *const ibv_sge) {}
unsafe extern "C" fn set_inline_data(_qp: *mut ibv_qp_ex, _addr: *mut c_void, _len: usize) {}
