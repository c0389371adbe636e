//! The layouts that NCCL and a network plugin agree on, versions 6 to 12, on 64-bit Linux.
//!
//! Written from the facts of the interface; every size and offset is checked when this file is compiled.

use std::ffi::{c_char, c_int, c_ulong, c_void};
use std::mem::{offset_of, size_of};

/// Every call succeeded or failed by one of these.
pub(super) const SUCCESS: c_int = 0;
/// The operating system or the network failed.
pub(super) const SYSTEM_ERROR: c_int = 2;
/// The caller broke the interface, or we did.
pub(super) const INTERNAL_ERROR: c_int = 3;
/// An argument is out of range.
pub(super) const INVALID_ARGUMENT: c_int = 4;
/// The user's mistake, for example messages of different lengths.
pub(super) const INVALID_USAGE: c_int = 5;
/// The peer is gone or broke the connection.
pub(super) const REMOTE_ERROR: c_int = 6;

/// Bytes of a connection handle.
pub(super) const HANDLE_BYTES: usize = 128;
/// Requests that a receiver may have outstanding on one communicator.
pub(super) const MAX_REQUESTS: usize = 32;
/// `ptrSupport`, and the type of registered memory: host memory.
pub(super) const PTR_HOST: c_int = 1;
/// A communicator that does not ask for a traffic class.
pub(super) const TRAFFIC_CLASS_UNDEF: c_int = -1;

/// Log levels and subsystems.
pub(super) const LOG_WARN: c_int = 2;
/// As above.
pub(super) const LOG_INFO: c_int = 3;
/// As above.
pub(super) const SUBSYS_INIT_NET: c_ulong = 0x11;

/// NCCL's logger: a `printf` with a level, a mask of subsystems, a file and a line.
pub(super) type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);
/// NCCL's profiler callback, which this plugin never calls.
pub(super) type Profiler = unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> c_int;

/// Declares `#[repr(C)]` structs whose size and offsets the compiler checks.
macro_rules! layout {
    ($( $(#[$doc:meta])* $name:ident = $size:literal { $( $at:literal $field:ident: $type:ty, )* } )*) => { $(
        $(#[$doc])*
        #[allow(missing_docs)]
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $name { $( pub $field: $type, )* }
        const _: () = {
            assert!(size_of::<$name>() == $size);
            $( assert!(offset_of!($name, $field) == $at); )*
        };
    )* };
}

layout! {
    /// Which devices a device is made of; versions 9 to 11.
    VProps4 = 20 { 0 ndevs: i32, 4 devs: [i32; 4], }
    /// The same in version 12.
    VProps8 = 36 { 0 ndevs: i32, 4 devs: [i32; 8], }
    /// What a communicator asks for, from version 10.
    CommConfig = 4 { 0 traffic_class: i32, }
    /// What NCCL says about a group of peers, from version 11.
    CommAttr = 16 { 0 max_peers: i32, 4 min_peers: i32, 8 max_flows: i32, 12 min_flows: i32, }
    /// What NCCL is about to do, from version 11.
    NetAttr = 44 { 0 send: CommAttr, 16 recv: CommAttr, 32 op: u32, 36 algo: u32, 40 proto: u32, }
    /// A handle for code on the GPU, from version 7; a plain plugin writes none.
    DeviceHandle = 32 { 0 kind: i32, 4 version: i32, 8 handle: *mut c_void, 16 size: usize, 24 needs_progress: i32, }
    /// A device's properties in version 6.
    PropsV6 = 48 {
        0 name: *const c_char, 8 pci_path: *const c_char, 16 guid: u64, 24 ptr_support: i32, 28 speed: i32, 32 port: i32,
        36 latency: f32, 40 max_comms: i32, 44 max_recvs: i32,
    }
    /// In version 7.
    PropsV7 = 56 {
        0 name: *const c_char, 8 pci_path: *const c_char, 16 guid: u64, 24 ptr_support: i32, 28 speed: i32, 32 port: i32,
        36 latency: f32, 40 max_comms: i32, 44 max_recvs: i32, 48 device_type: i32, 52 device_version: i32,
    }
    /// In version 8.
    PropsV8 = 64 {
        0 name: *const c_char, 8 pci_path: *const c_char, 16 guid: u64, 24 ptr_support: i32, 28 reg_is_global: i32,
        32 speed: i32, 36 port: i32, 40 latency: f32, 44 max_comms: i32, 48 max_recvs: i32, 52 device_type: i32,
        56 device_version: i32,
    }
    /// In versions 9 and 10.
    PropsV9 = 104 {
        0 name: *const c_char, 8 pci_path: *const c_char, 16 guid: u64, 24 ptr_support: i32, 28 reg_is_global: i32,
        32 force_flush: i32, 36 speed: i32, 40 port: i32, 44 latency: f32, 48 max_comms: i32, 52 max_recvs: i32,
        56 device_type: i32, 60 device_version: i32, 64 vprops: VProps4, 88 max_p2p_bytes: usize, 96 max_coll_bytes: usize,
    }
    /// In version 11.
    PropsV11 = 112 {
        0 name: *const c_char, 8 pci_path: *const c_char, 16 guid: u64, 24 ptr_support: i32, 28 reg_is_global: i32,
        32 force_flush: i32, 36 speed: i32, 40 port: i32, 44 latency: f32, 48 max_comms: i32, 52 max_recvs: i32,
        56 device_type: i32, 60 device_version: i32, 64 vprops: VProps4, 88 max_p2p_bytes: usize, 96 max_coll_bytes: usize,
        104 max_multi_request_size: i32,
    }
    /// In version 12.
    PropsV12 = 128 {
        0 name: *const c_char, 8 pci_path: *const c_char, 16 guid: u64, 24 ptr_support: i32, 28 reg_is_global: i32,
        32 force_flush: i32, 36 speed: i32, 40 port: i32, 44 latency: f32, 48 max_comms: i32, 52 max_recvs: i32,
        56 device_type: i32, 60 device_version: i32, 64 vprops: VProps8, 104 max_p2p_bytes: usize,
        112 max_coll_bytes: usize, 120 max_multi_request_size: i32, 124 rail_id: i16, 126 plane_id: i16,
    }
}

type Ptr = *mut c_void;
type Out = *mut *mut c_void;
type Handles = *mut *mut DeviceHandle;
type Call<A> = Option<A>;

type Init6 = unsafe extern "C" fn(Option<Logger>) -> c_int;
type Init10 = unsafe extern "C" fn(Option<Logger>, Option<Profiler>) -> c_int;
type Init11 = unsafe extern "C" fn(Out, u64, *mut CommConfig, Option<Logger>, Option<Profiler>) -> c_int;
type Devices = unsafe extern "C" fn(*mut c_int) -> c_int;
type Properties<P> = unsafe extern "C" fn(c_int, *mut P) -> c_int;
type Listen6 = unsafe extern "C" fn(c_int, Ptr, Out) -> c_int;
type Listen11 = unsafe extern "C" fn(Ptr, c_int, Ptr, Out) -> c_int;
type Connect6 = unsafe extern "C" fn(c_int, Ptr, Out) -> c_int;
type Connect7 = unsafe extern "C" fn(c_int, Ptr, Out, Handles) -> c_int;
type Connect10 = unsafe extern "C" fn(c_int, *mut CommConfig, Ptr, Out, Handles) -> c_int;
type Connect11 = unsafe extern "C" fn(Ptr, c_int, Ptr, Out, Handles) -> c_int;
type Accept6 = unsafe extern "C" fn(Ptr, Out) -> c_int;
type Accept7 = unsafe extern "C" fn(Ptr, Out, Handles) -> c_int;
type RegMr6 = unsafe extern "C" fn(Ptr, Ptr, c_int, c_int, Out) -> c_int;
type RegMr8 = unsafe extern "C" fn(Ptr, Ptr, usize, c_int, Out) -> c_int;
type RegDmaBuf = unsafe extern "C" fn(Ptr, Ptr, usize, c_int, u64, c_int, Out) -> c_int;
type DeregMr = unsafe extern "C" fn(Ptr, Ptr) -> c_int;
type Isend6 = unsafe extern "C" fn(Ptr, Ptr, c_int, c_int, Ptr, Out) -> c_int;
type Isend9 = unsafe extern "C" fn(Ptr, Ptr, usize, c_int, Ptr, Out) -> c_int;
type Isend10 = unsafe extern "C" fn(Ptr, Ptr, usize, c_int, Ptr, Ptr, Out) -> c_int;
type Irecv6 = unsafe extern "C" fn(Ptr, c_int, Out, *mut c_int, *mut c_int, Out, Out) -> c_int;
type Irecv9 = unsafe extern "C" fn(Ptr, c_int, Out, *mut usize, *mut c_int, Out, Out) -> c_int;
type Irecv10 = unsafe extern "C" fn(Ptr, c_int, Out, *mut usize, *mut c_int, Out, Out, Out) -> c_int;
type Iflush = unsafe extern "C" fn(Ptr, c_int, Out, *mut c_int, Out, Out) -> c_int;
type Test = unsafe extern "C" fn(Ptr, *mut c_int, *mut c_int) -> c_int;
type Close = unsafe extern "C" fn(Ptr) -> c_int;
type DeviceMr = unsafe extern "C" fn(Ptr, Ptr, Out) -> c_int;
type Consumed = unsafe extern "C" fn(Ptr, c_int, Ptr) -> c_int;
type VDevice<P> = unsafe extern "C" fn(*mut c_int, *mut P) -> c_int;
type SetAttr = unsafe extern "C" fn(Ptr, *mut NetAttr) -> c_int;

layout! {
    /// The plugin's functions in version 6.
    TableV6 = 136 {
        0 name: *const c_char, 8 init: Init6, 16 devices: Devices, 24 get_properties: Properties<PropsV6>, 32 listen: Listen6,
        40 connect: Connect6, 48 accept: Accept6, 56 reg_mr: RegMr6, 64 reg_mr_dma_buf: Call<RegDmaBuf>, 72 dereg_mr: DeregMr,
        80 isend: Isend6, 88 irecv: Irecv6, 96 iflush: Iflush, 104 test: Test, 112 close_send: Close, 120 close_recv: Close,
        128 close_listen: Close,
    }
    /// In version 7.
    TableV7 = 152 {
        0 name: *const c_char, 8 init: Init6, 16 devices: Devices, 24 get_properties: Properties<PropsV7>, 32 listen: Listen6,
        40 connect: Connect7, 48 accept: Accept7, 56 reg_mr: RegMr6, 64 reg_mr_dma_buf: Call<RegDmaBuf>, 72 dereg_mr: DeregMr,
        80 isend: Isend6, 88 irecv: Irecv6, 96 iflush: Iflush, 104 test: Test, 112 close_send: Close, 120 close_recv: Close,
        128 close_listen: Close, 136 get_device_mr: Call<DeviceMr>, 144 irecv_consumed: Call<Consumed>,
    }
    /// In version 8.
    TableV8 = 152 {
        0 name: *const c_char, 8 init: Init6, 16 devices: Devices, 24 get_properties: Properties<PropsV8>, 32 listen: Listen6,
        40 connect: Connect7, 48 accept: Accept7, 56 reg_mr: RegMr8, 64 reg_mr_dma_buf: Call<RegDmaBuf>, 72 dereg_mr: DeregMr,
        80 isend: Isend6, 88 irecv: Irecv6, 96 iflush: Iflush, 104 test: Test, 112 close_send: Close, 120 close_recv: Close,
        128 close_listen: Close, 136 get_device_mr: Call<DeviceMr>, 144 irecv_consumed: Call<Consumed>,
    }
    /// In version 9.
    TableV9 = 160 {
        0 name: *const c_char, 8 init: Init6, 16 devices: Devices, 24 get_properties: Properties<PropsV9>, 32 listen: Listen6,
        40 connect: Connect7, 48 accept: Accept7, 56 reg_mr: RegMr8, 64 reg_mr_dma_buf: Call<RegDmaBuf>, 72 dereg_mr: DeregMr,
        80 isend: Isend9, 88 irecv: Irecv9, 96 iflush: Iflush, 104 test: Test, 112 close_send: Close, 120 close_recv: Close,
        128 close_listen: Close, 136 get_device_mr: Call<DeviceMr>, 144 irecv_consumed: Call<Consumed>,
        152 make_vdevice: Call<VDevice<VProps4>>,
    }
    /// In version 10.
    TableV10 = 160 {
        0 name: *const c_char, 8 init: Init10, 16 devices: Devices, 24 get_properties: Properties<PropsV9>, 32 listen: Listen6,
        40 connect: Connect10, 48 accept: Accept7, 56 reg_mr: RegMr8, 64 reg_mr_dma_buf: Call<RegDmaBuf>, 72 dereg_mr: DeregMr,
        80 isend: Isend10, 88 irecv: Irecv10, 96 iflush: Iflush, 104 test: Test, 112 close_send: Close, 120 close_recv: Close,
        128 close_listen: Close, 136 get_device_mr: Call<DeviceMr>, 144 irecv_consumed: Call<Consumed>,
        152 make_vdevice: Call<VDevice<VProps4>>,
    }
    /// In version 11.
    TableV11 = 176 {
        0 name: *const c_char, 8 init: Init11, 16 devices: Devices, 24 get_properties: Properties<PropsV11>, 32 listen: Listen11,
        40 connect: Connect11, 48 accept: Accept7, 56 reg_mr: RegMr8, 64 reg_mr_dma_buf: Call<RegDmaBuf>, 72 dereg_mr: DeregMr,
        80 isend: Isend10, 88 irecv: Irecv10, 96 iflush: Iflush, 104 test: Test, 112 close_send: Close, 120 close_recv: Close,
        128 close_listen: Close, 136 get_device_mr: Call<DeviceMr>, 144 irecv_consumed: Call<Consumed>,
        152 make_vdevice: Call<VDevice<VProps4>>, 160 finalize: Close, 168 set_net_attr: Call<SetAttr>,
    }
    /// In version 12.
    TableV12 = 176 {
        0 name: *const c_char, 8 init: Init11, 16 devices: Devices, 24 get_properties: Properties<PropsV12>, 32 listen: Listen11,
        40 connect: Connect11, 48 accept: Accept7, 56 reg_mr: RegMr8, 64 reg_mr_dma_buf: Call<RegDmaBuf>, 72 dereg_mr: DeregMr,
        80 isend: Isend10, 88 irecv: Irecv10, 96 iflush: Iflush, 104 test: Test, 112 close_send: Close, 120 close_recv: Close,
        128 close_listen: Close, 136 get_device_mr: Call<DeviceMr>, 144 irecv_consumed: Call<Consumed>,
        152 make_vdevice: Call<VDevice<VProps8>>, 160 finalize: Close, 168 set_net_attr: Call<SetAttr>,
    }
}

/// The tables are data that NCCL reads from any thread.
macro_rules! shared {
    ($($name:ident),*) => { $(
        // SAFETY: the table is constant, and its name points to a constant.
        unsafe impl Sync for $name {}
    )* };
}
shared!(TableV6, TableV7, TableV8, TableV9, TableV10, TableV11, TableV12);
