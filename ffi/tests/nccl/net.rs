//! A plugin as NCCL sees it: opened by `dlopen`, called through the table of one version.

use std::ffi::{CStr, CString, c_char, c_int, c_ulong, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Mutex;

use crate::abi::*;

pub type Ptr = *mut c_void;

/// The versions that are exported.
pub const VERSIONS: std::ops::RangeInclusive<u32> = 6..=12;

/// An opened library.
pub struct Library(Ptr);

impl Library {
    pub fn open(path: &Path) -> Library {
        let path = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
        // SAFETY: a valid string; our library runs nothing when it is loaded.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "dlopen: {}", dlerror());
        Library(handle)
    }

    pub fn symbol(&self, name: &str) -> Option<Ptr> {
        let name = CString::new(name).expect("a name");
        // SAFETY: the handle is open, the name a valid string.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!symbol.is_null()).then_some(symbol)
    }

    pub fn close(self) {
        // SAFETY: open until now.
        assert_eq!(unsafe { libc::dlclose(self.0) }, 0, "dlclose: {}", dlerror());
    }
}

fn dlerror() -> String {
    // SAFETY: dlerror gives null or a string of its own.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// What the plugin said through the logger.
pub static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// NCCL's logger is variadic, which Rust cannot define; ours takes the one argument that the plugin passes by `%s`.
unsafe extern "C" fn logger(
    _: c_int,
    _: c_ulong,
    _: *const c_char,
    _: c_int,
    format: *const c_char,
    text: *const c_char,
) {
    // SAFETY: valid strings.
    let (format, text) = unsafe { (CStr::from_ptr(format), CStr::from_ptr(text)) };
    assert_eq!(format, c"%s");
    LOGGED.lock().expect("no panic").push(text.to_string_lossy().into_owned());
}

pub fn the_logger() -> Logger {
    type Fixed = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);
    // SAFETY: on x86-64 and AArch64 Linux a variadic call passes pointers where a fixed one does.
    unsafe { std::mem::transmute::<Fixed, Logger>(logger) }
}

/// One version's table, with what differs between versions evened out.
#[derive(Clone, Copy)]
pub struct Net {
    pub version: u32,
    table: *const c_void,
    ctx: Ptr,
}

// SAFETY: the table is constant, and the context is passed back only.
unsafe impl Send for Net {}

/// What all versions' properties have.
#[derive(Debug)]
pub struct Properties {
    pub name: String,
    pub ptr_support: i32,
    pub speed: i32,
    pub max_recvs: i32,
    pub max_comms: i32,
    pub guid: u64,
    /// From version 9.
    pub max_bytes: Option<usize>,
    /// Version 12.
    pub rail_and_plane: Option<(i16, i16)>,
}

/// Calls a member that has the same type in every version.
macro_rules! same {
    ($net:expr, $t:ident => $call:expr) => {
        // SAFETY: the table is of the version that it was looked up by.
        unsafe {
            match $net.version {
                6 => {
                    let $t = &*$net.table.cast::<TableV6>();
                    $call
                }
                7 => {
                    let $t = &*$net.table.cast::<TableV7>();
                    $call
                }
                8 => {
                    let $t = &*$net.table.cast::<TableV8>();
                    $call
                }
                9 => {
                    let $t = &*$net.table.cast::<TableV9>();
                    $call
                }
                10 => {
                    let $t = &*$net.table.cast::<TableV10>();
                    $call
                }
                11 => {
                    let $t = &*$net.table.cast::<TableV11>();
                    $call
                }
                12 => {
                    let $t = &*$net.table.cast::<TableV12>();
                    $call
                }
                _ => panic!("no such version"),
            }
        }
    };
}

impl Net {
    /// Looks the version up; without `init`.
    pub fn find(library: &Library, version: u32) -> Net {
        let table = library.symbol(&format!("ncclNetPlugin_v{version}")).expect("every version is exported");
        Net { version, table, ctx: null_mut() }
    }

    pub fn name(&self) -> &'static CStr {
        // SAFETY: a string that the table points to.
        same!(self, t => CStr::from_ptr(t.name))
    }

    pub fn init_with(&mut self, logger: Option<Logger>, traffic_class: i32) -> c_int {
        let mut config = CommConfig { traffic_class };
        // SAFETY: as NCCL calls them.
        unsafe {
            match self.version {
                6 => ((*self.table.cast::<TableV6>()).init)(logger),
                7 => ((*self.table.cast::<TableV7>()).init)(logger),
                8 => ((*self.table.cast::<TableV8>()).init)(logger),
                9 => ((*self.table.cast::<TableV9>()).init)(logger),
                10 => ((*self.table.cast::<TableV10>()).init)(logger, None),
                11 => ((*self.table.cast::<TableV11>()).init)(&raw mut self.ctx, 7, &raw mut config, logger, None),
                _ => ((*self.table.cast::<TableV12>()).init)(&raw mut self.ctx, 7, &raw mut config, logger, None),
            }
        }
    }

    pub fn init(&mut self) {
        assert_eq!(self.init_with(Some(the_logger()), -1), SUCCESS, "init: {:?}", LOGGED.lock());
        assert!(self.version < 11 || !self.ctx.is_null());
    }

    pub fn finalize(&mut self) {
        let ctx = std::mem::replace(&mut self.ctx, null_mut());
        // SAFETY: as NCCL calls it.
        let code = unsafe {
            match self.version {
                11 => ((*self.table.cast::<TableV11>()).finalize)(ctx),
                12 => ((*self.table.cast::<TableV12>()).finalize)(ctx),
                _ => SUCCESS,
            }
        };
        assert_eq!(code, SUCCESS);
    }

    pub fn devices(&self) -> c_int {
        let mut n = -1;
        assert_eq!(same!(self, t => (t.devices)(&raw mut n)), SUCCESS);
        n
    }

    pub fn properties(&self, dev: c_int) -> Result<Properties, c_int> {
        macro_rules! get {
            ($table:ty, $props:ty, $p:ident => $bytes:expr, $rail:expr) => {{
                // NCCL does not clear it either: what is not written shows.
                let mut room = std::mem::MaybeUninit::<$props>::uninit();
                // SAFETY: bytes may be written to room for bytes.
                unsafe { room.as_mut_ptr().cast::<u8>().write_bytes(0xa5, size_of::<$props>()) };
                // SAFETY: the table is of this version.
                let code = unsafe { ((*self.table.cast::<$table>()).get_properties)(dev, room.as_mut_ptr()) };
                if code != SUCCESS {
                    return Err(code);
                }
                // SAFETY: every byte was written, by us or by the plugin.
                let $p = unsafe { room.assume_init() };
                // SAFETY: a string of the plugin's.
                let name = unsafe { CStr::from_ptr($p.name) }.to_string_lossy().into_owned();
                assert!($p.pci_path as usize != 0xa5a5_a5a5_a5a5_a5a5, "pciPath was not written");
                assert_eq!($p.port, 1);
                assert!($p.latency >= 0.0 && $p.latency < 1000.0);
                Properties {
                    name,
                    ptr_support: $p.ptr_support,
                    speed: $p.speed,
                    max_recvs: $p.max_recvs,
                    max_comms: $p.max_comms,
                    guid: $p.guid,
                    max_bytes: $bytes,
                    rail_and_plane: $rail,
                }
            }};
        }
        macro_rules! plain {
            ($p:ident) => {{
                assert_eq!(($p.device_type, $p.device_version), (0, 0));
            }};
        }
        macro_rules! fused {
            ($p:ident) => {{
                plain!($p);
                assert_eq!(($p.vprops.ndevs, $p.vprops.devs[0]), (1, dev));
                assert!(($p.reg_is_global, $p.force_flush) == (0, 0));
                assert_eq!($p.max_p2p_bytes, $p.max_coll_bytes);
                Some($p.max_p2p_bytes)
            }};
        }
        Ok(match self.version {
            6 => get!(TableV6, PropsV6, p => None, None),
            7 => get!(TableV7, PropsV7, p => { plain!(p); None }, None),
            8 => get!(TableV8, PropsV8, p => { plain!(p); assert_eq!(p.reg_is_global, 0); None }, None),
            9 => get!(TableV9, PropsV9, p => fused!(p), None),
            10 => get!(TableV10, PropsV9, p => fused!(p), None),
            11 => get!(TableV11, PropsV11, p => { assert_eq!(p.max_multi_request_size, 1); fused!(p) }, None),
            _ => get!(TableV12, PropsV12, p => { assert_eq!(p.max_multi_request_size, 1); fused!(p) },
                Some((p.rail_id, p.plane_id))),
        })
    }

    pub fn listen(&self) -> (Ptr, [u8; HANDLE_BYTES]) {
        let mut handle = [0u8; HANDLE_BYTES];
        let mut comm = null_mut();
        let at: Ptr = handle.as_mut_ptr().cast();
        // SAFETY: as NCCL calls it.
        let code = unsafe {
            match self.version {
                6 => ((*self.table.cast::<TableV6>()).listen)(0, at, &raw mut comm),
                7 => ((*self.table.cast::<TableV7>()).listen)(0, at, &raw mut comm),
                8 => ((*self.table.cast::<TableV8>()).listen)(0, at, &raw mut comm),
                9 => ((*self.table.cast::<TableV9>()).listen)(0, at, &raw mut comm),
                10 => ((*self.table.cast::<TableV10>()).listen)(0, at, &raw mut comm),
                11 => ((*self.table.cast::<TableV11>()).listen)(self.ctx, 0, at, &raw mut comm),
                _ => ((*self.table.cast::<TableV12>()).listen)(self.ctx, 0, at, &raw mut comm),
            }
        };
        assert_eq!(code, SUCCESS, "listen: {:?}", LOGGED.lock());
        assert!(!comm.is_null(), "listen gives its comm at once");
        (comm, handle)
    }

    /// One call of connect: null until it is up.
    pub fn try_connect(&self, handle: &mut [u8; HANDLE_BYTES]) -> Result<Ptr, c_int> {
        let mut comm = null_mut();
        let at: Ptr = handle.as_mut_ptr().cast();
        // NCCL passes a place for a device handle that points to null.
        let mut device: *mut DeviceHandle = null_mut();
        let d = &raw mut device;
        let mut config = CommConfig { traffic_class: -1 };
        let out = &raw mut comm;
        // SAFETY: as NCCL calls it.
        let code = unsafe {
            match self.version {
                6 => ((*self.table.cast::<TableV6>()).connect)(0, at, out),
                7 => ((*self.table.cast::<TableV7>()).connect)(0, at, out, d),
                8 => ((*self.table.cast::<TableV8>()).connect)(0, at, out, d),
                9 => ((*self.table.cast::<TableV9>()).connect)(0, at, out, null_mut()),
                10 => ((*self.table.cast::<TableV10>()).connect)(0, &raw mut config, at, out, d),
                11 => ((*self.table.cast::<TableV11>()).connect)(self.ctx, 0, at, out, d),
                _ => ((*self.table.cast::<TableV12>()).connect)(self.ctx, 0, at, out, d),
            }
        };
        assert!(device.is_null(), "a plain plugin writes no device handle");
        if code == SUCCESS { Ok(comm) } else { Err(code) }
    }

    /// One call of accept: null until somebody is there.
    pub fn try_accept(&self, listening: Ptr) -> Ptr {
        let mut comm = null_mut();
        let out = &raw mut comm;
        let mut device: *mut DeviceHandle = null_mut();
        let d = &raw mut device;
        // SAFETY: as NCCL calls it.
        let code = unsafe {
            match self.version {
                6 => ((*self.table.cast::<TableV6>()).accept)(listening, out),
                7 => ((*self.table.cast::<TableV7>()).accept)(listening, out, d),
                8 => ((*self.table.cast::<TableV8>()).accept)(listening, out, d),
                9 => ((*self.table.cast::<TableV9>()).accept)(listening, out, null_mut()),
                10 => ((*self.table.cast::<TableV10>()).accept)(listening, out, d),
                11 => ((*self.table.cast::<TableV11>()).accept)(listening, out, d),
                _ => ((*self.table.cast::<TableV12>()).accept)(listening, out, d),
            }
        };
        assert_eq!(code, SUCCESS, "accept: {:?}", LOGGED.lock());
        comm
    }

    pub fn reg_mr(&self, comm: Ptr, data: Ptr, size: usize, kind: c_int) -> Result<Ptr, c_int> {
        let mut handle = null_mut();
        let out = &raw mut handle;
        // SAFETY: as NCCL calls it.
        let code = unsafe {
            match self.version {
                6 => ((*self.table.cast::<TableV6>()).reg_mr)(comm, data, size as c_int, kind, out),
                7 => ((*self.table.cast::<TableV7>()).reg_mr)(comm, data, size as c_int, kind, out),
                8 => ((*self.table.cast::<TableV8>()).reg_mr)(comm, data, size, kind, out),
                9 => ((*self.table.cast::<TableV9>()).reg_mr)(comm, data, size, kind, out),
                10 => ((*self.table.cast::<TableV10>()).reg_mr)(comm, data, size, kind, out),
                11 => ((*self.table.cast::<TableV11>()).reg_mr)(comm, data, size, kind, out),
                _ => ((*self.table.cast::<TableV12>()).reg_mr)(comm, data, size, kind, out),
            }
        };
        if code != SUCCESS {
            return Err(code);
        }
        assert!(!handle.is_null(), "NCCL takes a null mhandle for not registered");
        Ok(handle)
    }

    pub fn dereg_mr(&self, comm: Ptr, handle: Ptr) {
        assert_eq!(same!(self, t => (t.dereg_mr)(comm, handle)), SUCCESS);
    }

    /// The request; null if it cannot begin now.
    pub fn isend(&self, comm: Ptr, data: Ptr, size: usize, tag: c_int, handle: Ptr) -> Result<Ptr, c_int> {
        // NCCL leaves the pointer of an earlier request there.
        let mut request: Ptr = 0x10 as Ptr;
        let out = &raw mut request;
        // SAFETY: as NCCL calls it.
        let code = unsafe {
            match self.version {
                6 => ((*self.table.cast::<TableV6>()).isend)(comm, data, size as c_int, tag, handle, out),
                7 => ((*self.table.cast::<TableV7>()).isend)(comm, data, size as c_int, tag, handle, out),
                8 => ((*self.table.cast::<TableV8>()).isend)(comm, data, size as c_int, tag, handle, out),
                9 => ((*self.table.cast::<TableV9>()).isend)(comm, data, size, tag, handle, out),
                10 => ((*self.table.cast::<TableV10>()).isend)(comm, data, size, tag, handle, null_mut(), out),
                11 => ((*self.table.cast::<TableV11>()).isend)(comm, data, size, tag, handle, null_mut(), out),
                _ => ((*self.table.cast::<TableV12>()).isend)(comm, data, size, tag, handle, null_mut(), out),
            }
        };
        if code == SUCCESS { Ok(request) } else { Err(code) }
    }

    pub fn irecv(&self, comm: Ptr, data: Ptr, size: usize, tag: c_int, handle: Ptr) -> Result<Ptr, c_int> {
        self.irecv_group(comm, &mut [data], &mut [size], &mut [tag], &mut [handle], 1 as Ptr)
    }

    /// `stale` is what is in the request's place before.
    pub fn irecv_group(
        &self,
        comm: Ptr,
        data: &mut [Ptr],
        sizes: &mut [usize],
        tags: &mut [c_int],
        handles: &mut [Ptr],
        stale: Ptr,
    ) -> Result<Ptr, c_int> {
        let n = data.len() as c_int;
        let mut ints: Vec<c_int> = sizes.iter().map(|&s| s as c_int).collect();
        let (d, s, i, t, h) =
            (data.as_mut_ptr(), sizes.as_mut_ptr(), ints.as_mut_ptr(), tags.as_mut_ptr(), handles.as_mut_ptr());
        let mut request = stale;
        let out = &raw mut request;
        // SAFETY: as NCCL calls it.
        let code = unsafe {
            match self.version {
                6 => ((*self.table.cast::<TableV6>()).irecv)(comm, n, d, i, t, h, out),
                7 => ((*self.table.cast::<TableV7>()).irecv)(comm, n, d, i, t, h, out),
                8 => ((*self.table.cast::<TableV8>()).irecv)(comm, n, d, i, t, h, out),
                9 => ((*self.table.cast::<TableV9>()).irecv)(comm, n, d, s, t, h, out),
                10 => ((*self.table.cast::<TableV10>()).irecv)(comm, n, d, s, t, h, null_mut(), out),
                11 => ((*self.table.cast::<TableV11>()).irecv)(comm, n, d, s, t, h, null_mut(), out),
                _ => ((*self.table.cast::<TableV12>()).irecv)(comm, n, d, s, t, h, null_mut(), out),
            }
        };
        if code == SUCCESS { Ok(request) } else { Err(code) }
    }

    pub fn iflush(&self, comm: Ptr, data: Ptr, size: usize, handle: Ptr) -> Ptr {
        let (mut data, mut size, mut handle, mut request) = ([data], [size as c_int], [handle], null_mut());
        let (d, s, h, r) = (data.as_mut_ptr(), size.as_mut_ptr(), handle.as_mut_ptr(), &raw mut request);
        assert_eq!(same!(self, t => (t.iflush)(comm, 1, d, s, h, r)), SUCCESS);
        request
    }

    /// `Some(size)` once it is over.
    pub fn test(&self, request: Ptr) -> Result<Option<usize>, c_int> {
        let (mut done, mut size) = (-1, -1);
        let code = same!(self, t => (t.test)(request, &raw mut done, &raw mut size));
        match (code, done) {
            (SUCCESS, 0) => Ok(None),
            (SUCCESS, 1) => Ok(Some(usize::try_from(size).expect("the size was written"))),
            (SUCCESS, done) => panic!("done is {done}"),
            (code, _) => Err(code),
        }
    }

    /// As the bootstrap ring does it: without a place for sizes.
    pub fn test_without_sizes(&self, request: Ptr) -> Result<bool, c_int> {
        let mut done = -1;
        let code = same!(self, t => (t.test)(request, &raw mut done, null_mut()));
        assert!(code != SUCCESS || done == 0 || done == 1);
        if code == SUCCESS { Ok(done == 1) } else { Err(code) }
    }

    pub fn close_send(&self, comm: Ptr) -> c_int {
        same!(self, t => (t.close_send)(comm))
    }

    pub fn close_recv(&self, comm: Ptr) -> c_int {
        same!(self, t => (t.close_recv)(comm))
    }

    pub fn close_listen(&self, comm: Ptr) -> c_int {
        same!(self, t => (t.close_listen)(comm))
    }

    /// Members that NCCL checks for null and that this plugin does not have.
    pub fn optional_members(&self) -> usize {
        // SAFETY: the table is of this version.
        unsafe {
            match self.version {
                6 => usize::from((*self.table.cast::<TableV6>()).reg_mr_dma_buf.is_some()),
                12 => {
                    let t = &*self.table.cast::<TableV12>();
                    usize::from(t.reg_mr_dma_buf.is_some())
                        + usize::from(t.make_vdevice.is_some())
                        + usize::from(t.irecv_consumed.is_some())
                }
                _ => 0,
            }
        }
    }
}
