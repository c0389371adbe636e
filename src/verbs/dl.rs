//! The library: found and loaded when asked for, so that this crate runs where there is none.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use super::error::VerbsError;
use super::sys::*;

/// The variable that names another library than [`DEFAULT_LIBRARY`]; [`Library::load_named`] reads it.
pub const LIBRARY_VARIABLE: &str = "PLANESPRAY_IBVERBS";
/// What is loaded if nothing else is named.
pub const DEFAULT_LIBRARY: &str = "libibverbs.so.1";

/// A loaded libibverbs. It stays loaded for the life of the process, as its providers may have threads and hooks.
pub struct Library {
    path: String,
    pub(super) f: Functions,
}

macro_rules! functions {
    ($(($name:ident, $kind:ident, $symbol:literal, $version:literal, fn($($arg:ty),*) -> $ret:ty);)*) => {
        /// Types of the functions that are resolved by name.
        pub mod signatures {
            #![allow(non_camel_case_types, missing_docs)]
            use super::*;
            $(pub type $name = unsafe extern "C" fn($($arg),*) -> $ret;)*
        }

        pub(super) struct Functions {
            $(pub(super) $name: functions!(@type $kind, signatures::$name),)*
        }

        impl Functions {
            /// # Safety
            /// `handle` is a loaded libibverbs, or something with the same functions.
            unsafe fn resolve(handle: NonNull<c_void>, path: &str) -> Result<Functions, VerbsError> {
                Ok(Functions {
                    $($name: {
                        // SAFETY: as above; the symbol has this type in every version that has it.
                        let found = unsafe {
                            find(handle, $symbol, $version).map(|p| std::mem::transmute::<NonNull<c_void>, signatures::$name>(p))
                        };
                        functions!(@take $kind, found, path, $name)
                    },)*
                })
            }
        }
    };
    (@type must, $ty:ty) => { $ty };
    (@type may, $ty:ty) => { Option<$ty> };
    (@take must, $found:ident, $path:ident, $name:ident) => {
        $found.ok_or_else(|| VerbsError::NotIbverbs {
            path: $path.to_owned(),
            symbol: concat!("ibv_", stringify!($name)),
        })?
    };
    (@take may, $found:ident, $path:ident, $name:ident) => { $found };
}

functions! {
    (get_device_list, must, c"ibv_get_device_list", c"IBVERBS_1.1", fn(*mut c_int) -> *mut *mut ibv_device);
    (free_device_list, must, c"ibv_free_device_list", c"IBVERBS_1.1", fn(*mut *mut ibv_device) -> ());
    (open_device, must, c"ibv_open_device", c"IBVERBS_1.1", fn(*mut ibv_device) -> *mut ibv_context);
    (close_device, must, c"ibv_close_device", c"IBVERBS_1.1", fn(*mut ibv_context) -> c_int);
    (query_device, must, c"ibv_query_device", c"IBVERBS_1.1", fn(*mut ibv_context, *mut ibv_device_attr) -> c_int);
    (query_port, must, c"ibv_query_port", c"IBVERBS_1.1",
        fn(*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int);
    (query_gid, must, c"ibv_query_gid", c"IBVERBS_1.1", fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int);
    (alloc_pd, must, c"ibv_alloc_pd", c"IBVERBS_1.1", fn(*mut ibv_context) -> *mut ibv_pd);
    (dealloc_pd, must, c"ibv_dealloc_pd", c"IBVERBS_1.1", fn(*mut ibv_pd) -> c_int);
    (reg_mr, must, c"ibv_reg_mr", c"IBVERBS_1.1", fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr);
    (dereg_mr, must, c"ibv_dereg_mr", c"IBVERBS_1.1", fn(*mut ibv_mr) -> c_int);
    (create_comp_channel, must, c"ibv_create_comp_channel", c"IBVERBS_1.0",
        fn(*mut ibv_context) -> *mut ibv_comp_channel);
    (destroy_comp_channel, must, c"ibv_destroy_comp_channel", c"IBVERBS_1.0", fn(*mut ibv_comp_channel) -> c_int);
    (create_cq, must, c"ibv_create_cq", c"IBVERBS_1.1",
        fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq);
    (destroy_cq, must, c"ibv_destroy_cq", c"IBVERBS_1.1", fn(*mut ibv_cq) -> c_int);
    (get_cq_event, must, c"ibv_get_cq_event", c"IBVERBS_1.1",
        fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int);
    (ack_cq_events, must, c"ibv_ack_cq_events", c"IBVERBS_1.1", fn(*mut ibv_cq, u32) -> ());
    (create_qp, must, c"ibv_create_qp", c"IBVERBS_1.1", fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp);
    (modify_qp, must, c"ibv_modify_qp", c"IBVERBS_1.1", fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int);
    (query_qp, must, c"ibv_query_qp", c"IBVERBS_1.1",
        fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int);
    (destroy_qp, must, c"ibv_destroy_qp", c"IBVERBS_1.1", fn(*mut ibv_qp) -> c_int);
    (create_ah, must, c"ibv_create_ah", c"IBVERBS_1.1", fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah);
    (destroy_ah, must, c"ibv_destroy_ah", c"IBVERBS_1.1", fn(*mut ibv_ah) -> c_int);
    (get_async_event, must, c"ibv_get_async_event", c"IBVERBS_1.1",
        fn(*mut ibv_context, *mut ibv_async_event) -> c_int);
    (ack_async_event, must, c"ibv_ack_async_event", c"IBVERBS_1.1", fn(*mut ibv_async_event) -> ());
    (qp_to_qp_ex, may, c"ibv_qp_to_qp_ex", c"IBVERBS_1.6", fn(*mut ibv_qp) -> *mut ibv_qp_ex);
    (reg_mr_iova2, may, c"ibv_reg_mr_iova2", c"IBVERBS_1.8",
        fn(*mut ibv_pd, *mut c_void, usize, u64, u32) -> *mut ibv_mr);
    (query_gid_table, may, c"_ibv_query_gid_table", c"IBVERBS_1.11",
        fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize);
    (query_ece, may, c"ibv_query_ece", c"IBVERBS_1.10", fn(*mut ibv_qp, *mut ibv_ece) -> c_int);
    (query_qp_data_in_order, may, c"ibv_query_qp_data_in_order", c"IBVERBS_1.14",
        fn(*mut ibv_qp, ibv_wr_opcode, u32) -> c_int);
    (reg_dmabuf_mr, may, c"ibv_reg_dmabuf_mr", c"IBVERBS_1.12",
        fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr);
}

impl Library {
    /// Loads `path`, or [`DEFAULT_LIBRARY`] as the system finds it.
    ///
    /// # Errors
    /// [`VerbsError::LibraryAbsent`] or [`VerbsError::NotIbverbs`].
    pub fn load(path: Option<&Path>) -> Result<Arc<Library>, VerbsError> {
        let name = path.unwrap_or(Path::new(DEFAULT_LIBRARY));
        let shown = name.display().to_string();
        let handle = open(name).map_err(|reason| VerbsError::LibraryAbsent { path: shown.clone(), reason })?;
        // SAFETY: just loaded, under the name of libibverbs or one that the caller vouches for.
        let f = unsafe { Functions::resolve(handle, &shown)? };
        Ok(Arc::new(Library { path: shown, f }))
    }

    /// Loads the library that [`LIBRARY_VARIABLE`] names, or [`DEFAULT_LIBRARY`].
    ///
    /// # Errors
    /// As for [`Library::load`].
    pub fn load_named() -> Result<Arc<Library>, VerbsError> {
        let path = std::env::var_os(LIBRARY_VARIABLE).filter(|p| !p.is_empty());
        Library::load(path.as_deref().map(Path::new))
    }

    /// What was loaded.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Library({})", self.path)
    }
}

/// Loads a library; why not, if so.
pub(super) fn open(name: &Path) -> Result<NonNull<c_void>, String> {
    let c_name = CString::new(name.as_os_str().as_bytes()).map_err(|_| "its name holds a zero byte".to_owned())?;
    // SAFETY: a zero-terminated name. Loading runs the library's initialisers, which is what the caller asked for.
    let handle = unsafe { libc::dlopen(c_name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    NonNull::new(handle).ok_or_else(dl_error)
}

/// The function of this version, or the library's default where it has no versions.
///
/// # Safety
/// `handle` is a loaded library.
pub(super) unsafe fn find(handle: NonNull<c_void>, symbol: &CStr, version: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: live handle, zero-terminated names.
    let versioned = unsafe { libc::dlvsym(handle.as_ptr(), symbol.as_ptr(), version.as_ptr()) };
    NonNull::new(versioned).or_else(|| {
        // SAFETY: as above.
        NonNull::new(unsafe { libc::dlsym(handle.as_ptr(), symbol.as_ptr()) })
    })
}

/// What the loader says about its last failure.
fn dl_error() -> String {
    // SAFETY: the text belongs to this thread until its next call of the loader.
    let text: *const c_char = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".into();
    }
    // SAFETY: not null, so a zero-terminated text.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named() {
        let e = Library::load(Some(Path::new("/nowhere/libibverbs.so.1"))).expect_err("not there");
        let text = e.to_string();
        assert!(matches!(&e, VerbsError::LibraryAbsent { path, .. } if path == "/nowhere/libibverbs.so.1"), "{e:?}");
        assert!(e.is_absence());
        assert!(text.contains("/nowhere/libibverbs.so.1") && text.contains("rdma-core"), "{text}");
    }

    #[test]
    fn another_library_is_not_taken_for_it() {
        let e = Library::load(Some(Path::new("libc.so.6"))).expect_err("no verbs in libc");
        assert_eq!(e, VerbsError::NotIbverbs { path: "libc.so.6".into(), symbol: "ibv_get_device_list" });
    }
}
