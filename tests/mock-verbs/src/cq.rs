//! Completion queues and channels.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;

use planespray::verbs::sys::*;

use crate::context::MockContext;
use crate::world::{event_fd, forget_events, notify, take_one, world};

#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) wr_id: u64,
    pub(crate) status: ibv_wc_status,
    pub(crate) opcode: ibv_wc_opcode,
    pub(crate) byte_len: u32,
    pub(crate) imm: Option<u32>,
    pub(crate) qpn: u32,
    pub(crate) src_qpn: u32,
    pub(crate) grh: bool,
    pub(crate) at: u64,
}

/// The ordinary queue is the front of the extended one.
#[repr(C)]
pub(crate) struct MockCq {
    pub(crate) ex: ibv_cq_ex,
    pub(crate) entries: VecDeque<Entry>,
    current: Option<Entry>,
    armed: bool,
    broken: bool,
}

#[repr(C)]
struct MockChannel {
    channel: ibv_comp_channel,
    waiting: VecDeque<*mut ibv_cq>,
}

impl MockCq {
    /// False if it was full: it is broken from now on.
    pub(crate) fn push(&mut self, entry: Entry) -> bool {
        if self.broken || self.entries.len() >= self.ex.cqe as usize {
            return !std::mem::replace(&mut self.broken, true);
        }
        self.entries.push_back(entry);
        if std::mem::replace(&mut self.armed, false) && !self.ex.channel.is_null() {
            let channel = self.ex.channel.cast::<MockChannel>();
            // SAFETY: channels outlive their queues, and this runs under the lock.
            unsafe {
                (*channel).waiting.push_back(std::ptr::from_mut(self).cast());
                notify((*channel).channel.fd);
            }
        }
        true
    }
}

impl Entry {
    fn flags(&self) -> u32 {
        u32::from(self.grh) | u32::from(self.imm.is_some()) << 1
    }
}

unsafe fn create(
    context: *mut ibv_context,
    cqe: u32,
    owner: *mut c_void,
    channel: *mut ibv_comp_channel,
) -> *mut MockCq {
    let w = world();
    // SAFETY: pointers, numbers and absent functions may be zero.
    let mut ex: ibv_cq_ex = unsafe { zeroed() };
    (ex.context, ex.channel, ex.cq_context) = (context, channel, owner);
    ex.cqe = w.control.cqe.unwrap_or(cqe as c_int);
    ex.start_poll = Some(start_poll);
    ex.next_poll = Some(next_poll);
    ex.end_poll = Some(end_poll);
    ex.read_opcode = Some(read_opcode);
    ex.read_vendor_err = Some(read_vendor_err);
    ex.read_byte_len = Some(read_byte_len);
    ex.read_imm_data = Some(read_imm_data);
    ex.read_qp_num = Some(read_qp_num);
    ex.read_src_qp = Some(read_src_qp);
    ex.read_wc_flags = Some(read_wc_flags);
    ex.read_completion_ts = Some(read_completion_ts);
    Box::into_raw(Box::new(MockCq { ex, entries: VecDeque::new(), current: None, armed: false, broken: false }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    owner: *mut c_void,
    channel: *mut ibv_comp_channel,
    _vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: as the caller promises.
    unsafe { create(context, cqe as u32, owner, channel) }.cast()
}

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the caller's structure.
    let attr = unsafe { &*attr };
    // SAFETY: as the caller promises.
    unsafe { create(context, attr.cqe, attr.cq_context, attr.channel) }.cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    let _w = world();
    // SAFETY: made by `create`, destroyed once.
    let mock = unsafe { Box::from_raw(cq.cast::<MockCq>()) };
    if !mock.ex.channel.is_null() {
        // SAFETY: channels outlive their queues.
        unsafe { (*mock.ex.channel.cast::<MockChannel>()).waiting.retain(|&c| c != cq) };
    }
    // SAFETY: the context is open.
    unsafe { forget_events(&mut (*MockContext::of(mock.ex.context)).events, cq.cast()) };
    0
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, _solicited: c_int) -> c_int {
    let _w = world();
    // SAFETY: a live queue, changed under the lock.
    unsafe { (*cq.cast::<MockCq>()).armed = true };
    0
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, most: c_int, wc: *mut ibv_wc) -> c_int {
    let mut w = world();
    w.drive();
    // SAFETY: a live queue, changed under the lock.
    let cq = unsafe { &mut *cq.cast::<MockCq>() };
    if cq.broken {
        return -1;
    }
    let mut n = 0;
    while n < most {
        let Some(e) = cq.entries.pop_front() else { break };
        // SAFETY: numbers may be zero.
        let mut out: ibv_wc = unsafe { zeroed() };
        (out.wr_id, out.status, out.opcode, out.byte_len) = (e.wr_id, e.status, e.opcode, e.byte_len);
        (out.qp_num, out.src_qp, out.wc_flags) = (e.qpn, e.src_qpn, e.flags());
        out.__bindgen_anon_1.imm_data = e.imm.unwrap_or(0).to_be();
        // SAFETY: room for `most`.
        unsafe { wc.add(n as usize).write(out) };
        n += 1;
    }
    n
}

unsafe fn advance(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: a live queue, between start and end, or under the lock.
    let cq = unsafe { &mut *cq.cast::<MockCq>() };
    if cq.broken {
        return libc::EIO;
    }
    cq.current = cq.entries.pop_front();
    match cq.current {
        Some(e) => {
            (cq.ex.wr_id, cq.ex.status) = (e.wr_id, e.status);
            0
        }
        None => libc::ENOENT,
    }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, _attr: *mut ibv_poll_cq_attr) -> c_int {
    let mut w = world();
    w.drive();
    // SAFETY: as the caller promises.
    unsafe { advance(cq) }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    let _w = world();
    // SAFETY: as the caller promises.
    unsafe { advance(cq) }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: a live queue.
    unsafe { (*cq.cast::<MockCq>()).current = None };
}

unsafe fn current(cq: *mut ibv_cq_ex) -> Entry {
    // SAFETY: between start and end there is one.
    unsafe { (*cq.cast::<MockCq>()).current }.expect("between start and end")
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    // SAFETY: as for all of these.
    unsafe { current(cq).opcode }
}
unsafe extern "C" fn read_vendor_err(_cq: *mut ibv_cq_ex) -> u32 {
    0x77
}
unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { current(cq).byte_len }
}
unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> __be32 {
    // SAFETY: as above.
    unsafe { current(cq).imm.unwrap_or(0).to_be() }
}
unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { current(cq).qpn }
}
unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { current(cq).src_qpn }
}
unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { current(cq).flags() }
}
/// A clock of its own: 48 bits, about to wrap when the library is loaded.
unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: as above.
    unsafe { current(cq).at }.wrapping_sub(50_000_000) & ((1 << 48) - 1)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let channel = ibv_comp_channel { context, fd: event_fd(), refcnt: 0 };
    Box::into_raw(Box::new(MockChannel { channel, waiting: VecDeque::new() })).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    let _w = world();
    // SAFETY: made above, destroyed once.
    unsafe {
        libc::close((*channel).fd);
        drop(Box::from_raw(channel.cast::<MockChannel>()));
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    owner: *mut *mut c_void,
) -> c_int {
    // SAFETY: a live channel.
    if !take_one(unsafe { (*channel).fd }) {
        return -1;
    }
    let _w = world();
    // SAFETY: changed under the lock; the caller's variables.
    unsafe {
        let Some(next) = (*channel.cast::<MockChannel>()).waiting.pop_front() else {
            (*cq, *owner) = (null_mut(), null_mut());
            return -1;
        };
        (*cq, *owner) = (next, (*next).cq_context);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(_cq: *mut ibv_cq, _count: u32) {}
