//! What NCCL looks up: one table of functions per version, all over the same core.

use std::ffi::{c_char, c_int, c_void};

use super::abi::{
    CommConfig, DeviceHandle, HANDLE_BYTES, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, Logger, MAX_REQUESTS,
    PTR_HOST, Profiler, PropsV6, PropsV7, PropsV8, PropsV9, PropsV11, PropsV12, TRAFFIC_CLASS_UNDEF, TableV6, TableV7,
    TableV8, TableV9, TableV10, TableV11, TableV12,
};
use super::comm::{Comm, Side};
use super::context::{self, Context, fail, guard};
use super::device::{Device, MAX_RECVS};
use super::handle::Handle;
use super::log;
use super::memory::Registration;

type Ptr = *mut c_void;
type Out = *mut *mut c_void;
type Handles = *mut *mut DeviceHandle;

const NAME: *const c_char = c"planespray".as_ptr();

/// A `listenComm` is the listener's number: setup that NCCL abandons leaves nothing behind.
fn listener_of(listening: Ptr) -> u64 {
    listening.addr() as u64
}

/// Stores to a place of the caller's.
///
/// # Safety
/// `place` is null or valid for a write.
unsafe fn put<T>(place: *mut T, value: T) -> Result<(), c_int> {
    if place.is_null() {
        return Err(fail(INVALID_ARGUMENT, "NCCL passed no place for a result"));
    }
    // SAFETY: not null, so valid by the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

fn reject_null(pointer: Ptr, what: &str) -> Result<(), c_int> {
    if pointer.is_null() { Err(fail(INTERNAL_ERROR, &format!("NCCL passed no {what}"))) } else { Ok(()) }
}

fn only_device(dev: c_int) -> Result<(), c_int> {
    if dev == 0 { Ok(()) } else { Err(fail(INVALID_ARGUMENT, &format!("there is no device {dev}"))) }
}

unsafe extern "C" fn init_v6(logger: Option<Logger>) -> c_int {
    guard("init", || {
        log::set_logger(logger);
        context::init_resident()
    })
}

unsafe extern "C" fn init_v10(logger: Option<Logger>, _: Option<Profiler>) -> c_int {
    // SAFETY: passes its caller's arguments on.
    unsafe { init_v6(logger) }
}

unsafe extern "C" fn init_v11(
    ctx: Out,
    _comm: u64,
    config: *mut CommConfig,
    logger: Option<Logger>,
    _: Option<Profiler>,
) -> c_int {
    guard("init", || {
        log::set_logger(logger);
        // SAFETY: NCCL passes null or a valid configuration.
        let class = unsafe { config.as_ref() }.map_or(TRAFFIC_CLASS_UNDEF, |c| c.traffic_class);
        if ctx.is_null() {
            // A driver that wants no context has none to finalize.
            return context::init_resident();
        }
        let context = Box::into_raw(context::init(class)?);
        // SAFETY: NCCL's place for it.
        unsafe { put(ctx, context.cast()) }
    })
}

unsafe extern "C" fn finalize(ctx: Ptr) -> c_int {
    guard("finalize", || {
        if !ctx.is_null() {
            // SAFETY: `init` gave it to NCCL, which does not use it again.
            context::finalize(unsafe { Box::from_raw(ctx.cast::<Context>()) });
        }
        Ok(())
    })
}

unsafe extern "C" fn devices(count: *mut c_int) -> c_int {
    guard("devices", || {
        context::core()?;
        // SAFETY: NCCL's place.
        unsafe { put(count, 1) }
    })
}

/// One function per layout of the properties.
macro_rules! properties {
    ($($name:ident: $props:ty = $make:expr;)*) => { $(
        unsafe extern "C" fn $name(dev: c_int, props: *mut $props) -> c_int {
            guard("getProperties", || {
                only_device(dev)?;
                let make: fn(&Device, c_int) -> $props = $make;
                // SAFETY: NCCL's place, of this version's layout.
                unsafe { put(props, make(&context::core()?.device, dev)) }
            })
        }
    )* };
}
properties! {
    properties_v6: PropsV6 = |d, _| d.v6();
    properties_v7: PropsV7 = |d, _| d.v7();
    properties_v8: PropsV8 = |d, _| d.v8();
    properties_v9: PropsV9 = |d, dev| d.v9(dev);
    properties_v11: PropsV11 = |d, dev| d.v11(dev);
    properties_v12: PropsV12 = |d, dev| d.v12(dev);
}

unsafe extern "C" fn listen_v6(dev: c_int, handle: Ptr, comm: Out) -> c_int {
    guard("listen", || {
        only_device(dev)?;
        let core = context::core()?;
        reject_null(handle, "handle")?;
        let (listener, text) = core.listen();
        // SAFETY: NCCL's handle has room for 128 bytes.
        unsafe { handle.cast::<[u8; HANDLE_BYTES]>().write_unaligned(text.to_bytes()) };
        // SAFETY: NCCL's place.
        unsafe { put(comm, std::ptr::without_provenance_mut(listener as usize)) }
    })
}

unsafe extern "C" fn listen_v11(_: Ptr, dev: c_int, handle: Ptr, comm: Out) -> c_int {
    // SAFETY: passes its caller's arguments on.
    unsafe { listen_v6(dev, handle, comm) }
}

unsafe extern "C" fn connect_v6(dev: c_int, handle: Ptr, comm: Out) -> c_int {
    guard("connect", || {
        only_device(dev)?;
        let core = context::core()?;
        reject_null(handle, "handle")?;
        // SAFETY: NCCL's place.
        unsafe { put(comm, std::ptr::null_mut()) }?;
        // SAFETY: NCCL's handle has 128 bytes.
        let bytes = unsafe { handle.cast::<[u8; HANDLE_BYTES]>().read_unaligned() };
        let handle = Handle::from_bytes(&bytes).map_err(|e| fail(INVALID_USAGE, &e.to_string()))?;
        if handle.job_key != core.settings.key.is_some() {
            let (ours, theirs) = if handle.job_key { ("without", "with") } else { ("with", "without") };
            let why =
                format!("this process runs {ours} a job key, its peer {theirs}: set PLANESPRAY_JOB_KEY on all nodes");
            return Err(fail(INVALID_USAGE, &why));
        }
        match core.connect(&handle) {
            Ok(Some(end)) => {
                let end = Comm::new(core, Side::Send, end).into_raw();
                // SAFETY: NCCL's place.
                unsafe { put(comm, end) }
            }
            Ok(None) => Ok(()),
            Err(error) => Err(fail(super::abi::REMOTE_ERROR, &format!("no connection to {}: {error}", handle.addr))),
        }
    })
}

unsafe extern "C" fn connect_v7(dev: c_int, handle: Ptr, comm: Out, _: Handles) -> c_int {
    // SAFETY: passes its caller's arguments on.
    unsafe { connect_v6(dev, handle, comm) }
}

unsafe extern "C" fn connect_v10(dev: c_int, config: *mut CommConfig, handle: Ptr, comm: Out, _: Handles) -> c_int {
    let code = guard("connect", || {
        // SAFETY: NCCL passes null or a valid configuration.
        if let Some(config) = unsafe { config.as_ref() } {
            context::core()?.want_traffic_class(config.traffic_class);
        }
        Ok(())
    });
    // SAFETY: passes its caller's arguments on.
    if code == super::abi::SUCCESS { unsafe { connect_v6(dev, handle, comm) } } else { code }
}

unsafe extern "C" fn connect_v11(_: Ptr, dev: c_int, handle: Ptr, comm: Out, _: Handles) -> c_int {
    // SAFETY: passes its caller's arguments on.
    unsafe { connect_v6(dev, handle, comm) }
}

unsafe extern "C" fn accept_v6(listening: Ptr, comm: Out) -> c_int {
    guard("accept", || {
        reject_null(listening, "listenComm")?;
        // SAFETY: NCCL's place.
        unsafe { put(comm, std::ptr::null_mut()) }?;
        let core = context::core()?;
        if let Some(end) = core.accept(listener_of(listening)) {
            let end = Comm::new(core, Side::Receive, end).into_raw();
            // SAFETY: NCCL's place.
            unsafe { put(comm, end) }?;
        }
        Ok(())
    })
}

unsafe extern "C" fn accept_v7(listening: Ptr, comm: Out, _: Handles) -> c_int {
    // SAFETY: passes its caller's arguments on.
    unsafe { accept_v6(listening, comm) }
}

unsafe extern "C" fn reg_mr_v8(comm: Ptr, data: Ptr, size: usize, kind: c_int, handle: Out) -> c_int {
    guard("regMr", || {
        reject_null(comm, "comm")?;
        if kind != PTR_HOST {
            let why =
                format!("memory of type {kind} cannot be registered: this device takes host memory (type 1) only");
            return Err(fail(INVALID_ARGUMENT, &why));
        }
        if data.is_null() && size > 0 {
            return Err(fail(INVALID_ARGUMENT, "a null pointer cannot be registered"));
        }
        // SAFETY: `connect` or `accept` gave it, and it was not closed; the core in it never changes.
        let core = unsafe { &*comm.cast::<Comm>() }.core.clone();
        // SAFETY: NCCL keeps registered memory until `deregMr`.
        let registration = unsafe { Registration::new(&core.fabric, data, size) };
        let registration = registration.map_err(|e| fail(super::abi::SYSTEM_ERROR, &e.to_string()))?;
        // SAFETY: NCCL's place.
        unsafe { put(handle, registration.into_handle()) }
    })
}

unsafe extern "C" fn reg_mr_v6(comm: Ptr, data: Ptr, size: c_int, kind: c_int, handle: Out) -> c_int {
    match usize::try_from(size) {
        // SAFETY: passes its caller's arguments on.
        Ok(size) => unsafe { reg_mr_v8(comm, data, size, kind, handle) },
        Err(_) => guard("regMr", || Err(fail(INVALID_ARGUMENT, "a negative size"))),
    }
}

unsafe extern "C" fn dereg_mr(comm: Ptr, handle: Ptr) -> c_int {
    guard("deregMr", || {
        if handle.is_null() {
            return Ok(());
        }
        // SAFETY: `regMr` gave it, and NCCL does not use it again.
        let registration = unsafe { Registration::close_handle(handle) };
        // Requests that use it hold it as well.
        if std::sync::Arc::strong_count(&registration) > 1 {
            reject_null(comm, "comm")?;
            // SAFETY: `connect` or `accept` gave it, and it was not closed.
            unsafe { &*comm.cast::<Comm>() }.release(&registration);
        }
        Ok(())
    })
}

/// Begins a message on an end of the right kind.
///
/// # Safety
/// As NCCL calls `isend` and `irecv`.
unsafe fn begin(comm: Ptr, side: Side, data: Ptr, size: Option<u64>, handle: Ptr, request: Out) -> Result<(), c_int> {
    reject_null(comm, "comm")?;
    // What is there may be left from an earlier request.
    // SAFETY: NCCL's place.
    unsafe { put(request, std::ptr::null_mut()) }?;
    let Some(size) = size else { return Err(fail(INVALID_ARGUMENT, "a negative size")) };
    // SAFETY: `connect` or `accept` gave it, and it was not closed.
    let comm = unsafe { &*comm.cast::<Comm>() };
    if comm.side() != side {
        return Err(fail(INTERNAL_ERROR, "isend on a recvComm, or irecv on a sendComm"));
    }
    // SAFETY: NCCL uses an end from one thread at a time, and memory handles until `deregMr`.
    if let Some(begun) = unsafe { comm.begin(data, size, handle) }? {
        // SAFETY: checked above.
        unsafe { request.write(begun) };
    }
    Ok(())
}

unsafe extern "C" fn isend_v6(comm: Ptr, data: Ptr, size: c_int, _tag: c_int, handle: Ptr, request: Out) -> c_int {
    // SAFETY: NCCL's call.
    guard("isend", || unsafe { begin(comm, Side::Send, data, u64::try_from(size).ok(), handle, request) })
}

unsafe extern "C" fn isend_v9(comm: Ptr, data: Ptr, size: usize, _tag: c_int, handle: Ptr, request: Out) -> c_int {
    // SAFETY: NCCL's call.
    guard("isend", || unsafe { begin(comm, Side::Send, data, Some(size as u64), handle, request) })
}

unsafe extern "C" fn isend_v10(
    comm: Ptr,
    data: Ptr,
    size: usize,
    tag: c_int,
    handle: Ptr,
    _: Ptr,
    request: Out,
) -> c_int {
    // SAFETY: passes its caller's arguments on.
    unsafe { isend_v9(comm, data, size, tag, handle, request) }
}

/// Begins a receive, once its group is known to be one that we take.
///
/// # Safety
/// As NCCL calls `irecv`.
unsafe fn receive<S: Copy>(
    comm: Ptr,
    n: c_int,
    data: Out,
    sizes: *mut S,
    handles: Out,
    request: Out,
    size: impl FnOnce(S) -> Option<u64>,
) -> Result<(), c_int> {
    if n != MAX_RECVS {
        return Err(fail(INVALID_USAGE, &format!("a group of {n} receives: this device takes {MAX_RECVS} at a time")));
    }
    if data.is_null() || sizes.is_null() || handles.is_null() {
        return Err(fail(INVALID_ARGUMENT, "irecv without buffers, sizes or memory handles"));
    }
    // SAFETY: arrays of one element.
    let (data, bytes, handle) = unsafe { (*data, *sizes, *handles) };
    // SAFETY: the caller's promise.
    unsafe { begin(comm, Side::Receive, data, size(bytes), handle, request) }
}

unsafe extern "C" fn irecv_v6(
    comm: Ptr,
    n: c_int,
    data: Out,
    sizes: *mut c_int,
    _tags: *mut c_int,
    handles: Out,
    request: Out,
) -> c_int {
    // SAFETY: NCCL's call.
    guard("irecv", || unsafe { receive(comm, n, data, sizes, handles, request, |s| u64::try_from(s).ok()) })
}

unsafe extern "C" fn irecv_v9(
    comm: Ptr,
    n: c_int,
    data: Out,
    sizes: *mut usize,
    _tags: *mut c_int,
    handles: Out,
    request: Out,
) -> c_int {
    // SAFETY: NCCL's call.
    guard("irecv", || unsafe { receive(comm, n, data, sizes, handles, request, |s| Some(s as u64)) })
}

unsafe extern "C" fn irecv_v10(
    comm: Ptr,
    n: c_int,
    data: Out,
    sizes: *mut usize,
    tags: *mut c_int,
    handles: Out,
    _: Out,
    request: Out,
) -> c_int {
    // SAFETY: passes its caller's arguments on.
    unsafe { irecv_v9(comm, n, data, sizes, tags, handles, request) }
}

/// Host memory is whole when its receive is over: there is nothing to flush.
unsafe extern "C" fn iflush(_: Ptr, _: c_int, _: Out, _: *mut c_int, _: Out, request: Out) -> c_int {
    // SAFETY: NCCL's place.
    guard("iflush", || unsafe { put(request, std::ptr::null_mut()) })
}

unsafe extern "C" fn test(request: Ptr, done: *mut c_int, sizes: *mut c_int) -> c_int {
    guard("test", || {
        reject_null(request, "request")?;
        // SAFETY: NCCL's place.
        unsafe { put(done, 0) }?;
        // SAFETY: NCCL tests what we gave it, from the end's thread.
        if let Some(len) = unsafe { Comm::test(request) }? {
            if !sizes.is_null() {
                // SAFETY: room for one number per receive of the group.
                unsafe { sizes.write(c_int::try_from(len).unwrap_or(c_int::MAX)) };
            }
            // SAFETY: checked above.
            unsafe { done.write(1) };
        }
        Ok(())
    })
}

/// Closes an end.
///
/// # Safety
/// `comm` is null or an end of ours, which NCCL does not use again.
unsafe fn close(comm: Ptr, side: Side) -> Result<(), c_int> {
    if comm.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    if unsafe { &*comm.cast::<Comm>() }.side() != side {
        return Err(fail(INTERNAL_ERROR, "closeSend of a recvComm, or closeRecv of a sendComm"));
    }
    // SAFETY: made by `Box::into_raw`, and not used again.
    unsafe { Box::from_raw(comm.cast::<Comm>()) }.close();
    Ok(())
}

unsafe extern "C" fn close_send(comm: Ptr) -> c_int {
    // SAFETY: NCCL's call.
    guard("closeSend", || unsafe { close(comm, Side::Send) })
}

unsafe extern "C" fn close_recv(comm: Ptr) -> c_int {
    // SAFETY: NCCL's call.
    guard("closeRecv", || unsafe { close(comm, Side::Receive) })
}

unsafe extern "C" fn close_listen(listening: Ptr) -> c_int {
    guard("closeListen", || {
        if !listening.is_null() {
            context::core()?.close_listener(listener_of(listening));
        }
        Ok(())
    })
}

const _: () = assert!(MAX_REQUESTS >= 32);

/// One exported table. The members that all versions have in common are written once.
macro_rules! tables {
    ($($symbol:ident: $table:ident { $($field:ident: $value:expr,)* })*) => { $(
        /// What NCCL looks up.
        #[allow(non_upper_case_globals, unreachable_pub)]
        #[unsafe(no_mangle)]
        pub static $symbol: $table = $table {
            name: NAME,
            devices,
            reg_mr_dma_buf: None,
            dereg_mr,
            iflush,
            test,
            close_send,
            close_recv,
            close_listen,
            $($field: $value,)*
        };
    )* };
}

tables! {
    ncclNetPlugin_v6: TableV6 {
        init: init_v6, get_properties: properties_v6, listen: listen_v6, connect: connect_v6, accept: accept_v6,
        reg_mr: reg_mr_v6, isend: isend_v6, irecv: irecv_v6,
    }
    ncclNetPlugin_v7: TableV7 {
        init: init_v6, get_properties: properties_v7, listen: listen_v6, connect: connect_v7, accept: accept_v7,
        reg_mr: reg_mr_v6, isend: isend_v6, irecv: irecv_v6, get_device_mr: None, irecv_consumed: None,
    }
    ncclNetPlugin_v8: TableV8 {
        init: init_v6, get_properties: properties_v8, listen: listen_v6, connect: connect_v7, accept: accept_v7,
        reg_mr: reg_mr_v8, isend: isend_v6, irecv: irecv_v6, get_device_mr: None, irecv_consumed: None,
    }
    ncclNetPlugin_v9: TableV9 {
        init: init_v6, get_properties: properties_v9, listen: listen_v6, connect: connect_v7, accept: accept_v7,
        reg_mr: reg_mr_v8, isend: isend_v9, irecv: irecv_v9, get_device_mr: None, irecv_consumed: None, make_vdevice: None,
    }
    ncclNetPlugin_v10: TableV10 {
        init: init_v10, get_properties: properties_v9, listen: listen_v6, connect: connect_v10, accept: accept_v7,
        reg_mr: reg_mr_v8, isend: isend_v10, irecv: irecv_v10, get_device_mr: None, irecv_consumed: None, make_vdevice: None,
    }
    ncclNetPlugin_v11: TableV11 {
        init: init_v11, get_properties: properties_v11, listen: listen_v11, connect: connect_v11, accept: accept_v7,
        reg_mr: reg_mr_v8, isend: isend_v10, irecv: irecv_v10, get_device_mr: None, irecv_consumed: None, make_vdevice: None,
        finalize: finalize, set_net_attr: None,
    }
    ncclNetPlugin_v12: TableV12 {
        init: init_v11, get_properties: properties_v12, listen: listen_v11, connect: connect_v11, accept: accept_v7,
        reg_mr: reg_mr_v8, isend: isend_v10, irecv: irecv_v10, get_device_mr: None, irecv_consumed: None, make_vdevice: None,
        finalize: finalize, set_net_attr: None,
    }
}
