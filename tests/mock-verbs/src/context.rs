//! Devices, contexts, ports and protection domains.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int};
use std::mem::{offset_of, zeroed};
use std::ptr::null_mut;
use std::sync::OnceLock;

use planespray::mem::Pd;
use planespray::verbs::sys::*;

use crate::world::{event_fd, take_one, world};

pub(crate) struct MockContext {
    pub(crate) device: usize,
    pub(crate) events: VecDeque<ibv_async_event>,
    pub(crate) next_pd: u32,
    /// Posting and polling do nothing but count.
    pub(crate) empty: bool,
    pub(crate) verbs: verbs_context,
}

impl MockContext {
    pub(crate) fn of(context: *mut ibv_context) -> *mut MockContext {
        let back = offset_of!(MockContext, verbs) + offset_of!(verbs_context, context);
        context.wrapping_byte_sub(back).cast()
    }

    /// The device of a context.
    pub(crate) unsafe fn device_of(context: *mut ibv_context) -> usize {
        // SAFETY: contexts of this library are all of this kind.
        unsafe { (*MockContext::of(context)).device }
    }
}

#[repr(C)]
pub(crate) struct MockPd {
    pub(crate) pd: ibv_pd,
    pub(crate) number: Pd,
}

struct Devices(Vec<ibv_device>);
// SAFETY: never changed after they are made.
unsafe impl Send for Devices {}
// SAFETY: as above.
unsafe impl Sync for Devices {}

fn devices() -> &'static Devices {
    static DEVICES: OnceLock<Devices> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let sysfs = world().control.sysfs.clone().unwrap_or("/nowhere/mock".into());
        let make = |(i, name): (usize, String)| {
            // SAFETY: pointers and numbers may be zero.
            let mut d: ibv_device = unsafe { zeroed() };
            d.node_type = IBV_NODE_CA;
            d.transport_type = IBV_TRANSPORT_IB;
            copy(&mut d.name, &name);
            copy(&mut d.dev_name, &format!("mock{i}"));
            copy(&mut d.ibdev_path, &format!("{sysfs}/{name}"));
            d
        };
        let names: Vec<String> = world().devices.iter().map(|d| d.name.clone()).collect();
        Devices(names.into_iter().enumerate().map(make).collect())
    })
}

fn copy(to: &mut [c_char], text: &str) {
    for (to, from) in to.iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: every thread has one.
    unsafe { *libc::__errno_location() = errno };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let all = devices();
    let control = world().control.clone();
    if let Some(errno) = control.list_errno {
        set_errno(errno);
        return null_mut();
    }
    let n = if control.no_devices { 0 } else { all.0.len() };
    let mut list: Vec<*mut ibv_device> = all.0[..n].iter().map(|d| std::ptr::from_ref(d).cast_mut()).collect();
    list.push(null_mut());
    if !count.is_null() {
        // SAFETY: the caller's number.
        unsafe { *count = n as c_int };
    }
    Box::leak(Box::new(ListHead(list))).0.as_mut_ptr()
}

/// Lists are few and small: they are left alone when freed.
struct ListHead(Vec<*mut ibv_device>);

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(_list: *mut *mut ibv_device) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let index = devices().0.iter().position(|d| std::ptr::eq(d, device));
    let mut w = world();
    let Some(index) = index else {
        set_errno(libc::ENODEV);
        return null_mut();
    };
    if let Some(errno) = w.control.open_errno {
        set_errno(errno);
        return null_mut();
    }
    let mut c = Box::new(MockContext {
        device: index,
        events: VecDeque::new(),
        next_pd: 0,
        empty: w.control.empty_post,
        // SAFETY: pointers, numbers and absent functions may be zero.
        verbs: unsafe { zeroed() },
    });
    let v = &mut c.verbs;
    v.sz = size_of::<verbs_context>();
    v.query_port = Some(query_port);
    v.query_device_ex = Some(query_device_ex);
    v.create_cq_ex = Some(crate::cq::create_cq_ex);
    v.create_qp_ex = Some(crate::qp::create_qp_ex);
    v.context.device = device;
    v.context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    v.context.async_fd = event_fd();
    v.context.cmd_fd = -1;
    v.context.num_comp_vectors = 1;
    v.context.ops.req_notify_cq = Some(crate::cq::req_notify_cq);
    v.context.ops.poll_cq = Some(if w.control.empty_post { crate::empty::poll_cq } else { crate::cq::poll_cq });
    v.context.ops.post_send = Some(if w.control.empty_post { crate::empty::post_send } else { crate::wr::post_send });
    v.context.ops.post_recv = Some(crate::wr::post_recv);
    let c = Box::into_raw(c);
    w.devices[index].contexts.push(c);
    // SAFETY: just made.
    unsafe { &raw mut (*c).verbs.context }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    let c = MockContext::of(context);
    let mut w = world();
    // SAFETY: an open context of this library, closed once.
    unsafe {
        w.devices[(*c).device].contexts.retain(|&other| other != c);
        libc::close((*c).verbs.context.async_fd);
        drop(Box::from_raw(c));
    }
    0
}

fn attributes() -> ibv_device_attr {
    // SAFETY: numbers may be zero.
    let mut a: ibv_device_attr = unsafe { zeroed() };
    copy(&mut a.fw_ver, "mock.1");
    a.node_guid = 0x0200_0000_0000_0001u64.to_be();
    (a.max_qp, a.max_qp_wr, a.max_sge, a.max_cqe) = (4095, 32_768, 4, 65_536);
    (a.max_mr, a.max_pd, a.max_qp_rd_atom, a.max_qp_init_rd_atom) = (65_536, 65_536, 16, 16);
    (a.atomic_cap, a.phys_port_cnt, a.max_mr_size) = (IBV_ATOMIC_HCA, 1, u64::MAX);
    a
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(_context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: the caller's structure.
    unsafe { *attr = attributes() };
    0
}

unsafe extern "C" fn query_device_ex(
    _context: *mut ibv_context,
    _input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    // SAFETY: numbers may be zero.
    let mut a: ibv_device_attr_ex = unsafe { zeroed() };
    a.orig_attr = attributes();
    if !world().control.no_timestamps {
        a.completion_timestamp_mask = (1 << 48) - 1;
        a.hca_core_clock = 1_000_000;
    }
    // SAFETY: the caller's structure has `size` bytes.
    unsafe { attr.cast::<u8>().copy_from((&raw const a).cast(), size.min(size_of::<ibv_device_attr_ex>())) };
    0
}

unsafe extern "C" fn query_port(context: *mut ibv_context, _port: u8, attr: *mut ibv_port_attr, size: usize) -> c_int {
    // SAFETY: an open context.
    let device = unsafe { MockContext::device_of(context) };
    let w = world();
    // SAFETY: numbers may be zero.
    let mut a: ibv_port_attr = unsafe { zeroed() };
    a.state = if w.devices[device].up { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN };
    a.max_mtu = IBV_MTU_4096;
    a.active_mtu = w.control.mtu_code.unwrap_or(IBV_MTU_4096);
    (a.gid_tbl_len, a.max_msg_sz, a.pkey_tbl_len) = (16, 1 << 30, 1);
    (a.active_width, a.active_speed, a.phys_state) = (2, 32, 5);
    a.link_layer = w.control.link_layer.unwrap_or(2);
    // SAFETY: the caller's structure has `size` bytes.
    unsafe { attr.cast::<u8>().copy_from((&raw const a).cast(), size.min(size_of::<ibv_port_attr>())) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut _compat_ibv_port_attr) -> c_int {
    // SAFETY: the older structure is the front of the newer.
    unsafe { query_port(context, port, attr.cast(), offset_of!(ibv_port_attr, port_cap_flags2)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(context: *mut ibv_context, _port: u8, index: c_int, gid: *mut ibv_gid) -> c_int {
    // SAFETY: an open context.
    let device = unsafe { MockContext::device_of(context) };
    let w = world();
    let entry = usize::try_from(index).ok().and_then(|i| w.devices[device].gids.get(i));
    // SAFETY: the caller's structure.
    unsafe { (*gid).raw = entry.map_or([0; 16], |g| g.0) };
    if (0..16).contains(&index) { 0 } else { -1 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max: usize,
    _flags: u32,
    _size: usize,
) -> isize {
    // SAFETY: an open context.
    let device = unsafe { MockContext::device_of(context) };
    let w = world();
    let gids = &w.devices[device].gids;
    // Moved entries leave holes, as real tables do.
    let moved = w.control.gid_shift;
    for (i, &(raw, gid_type)) in gids.iter().take(max).enumerate() {
        let entry =
            ibv_gid_entry { gid: ibv_gid { raw }, gid_index: i as u32 + moved, port_num: 1, gid_type, ndev_ifindex: 0 };
        // SAFETY: the caller's array has `max` entries.
        unsafe { entries.add(i).write(entry) };
    }
    gids.len().min(max) as isize
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let c = MockContext::of(context);
    let w = world();
    // SAFETY: an open context, changed under the lock.
    let number = unsafe {
        (*c).next_pd += 1;
        // Contexts of one device share its engine: their domains must differ.
        let place = w.devices[(*c).device].contexts.iter().position(|&o| o == c).unwrap_or(0);
        Pd((*c).next_pd | (place as u32 + 1) << 12 | (c.addr() as u32) << 20)
    };
    let pd = MockPd { pd: ibv_pd { context, handle: number.0 }, number };
    Box::into_raw(Box::new(pd)).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: made by `ibv_alloc_pd`.
    drop(unsafe { Box::from_raw(pd.cast::<MockPd>()) });
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    let c = MockContext::of(context);
    // SAFETY: an open context.
    if !take_one(unsafe { (*c).verbs.context.async_fd }) {
        return -1;
    }
    let _w = world();
    // SAFETY: changed under the lock; the caller's structure.
    match unsafe { (*c).events.pop_front() } {
        Some(e) => {
            // SAFETY: the caller's structure.
            unsafe { event.write(e) };
            0
        }
        None => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(_event: *mut ibv_async_event) {}
