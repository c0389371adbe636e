//! The mock libibverbs: built when first needed, loaded by path, and asked for faults.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use planespray::verbs::Library;

/// Where the mock library is.
pub(crate) fn path() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let mut args = vec!["build", "--package", "mock-verbs", "--message-format=json", "--quiet"];
        if !cfg!(debug_assertions) {
            args.push("--release");
        }
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(args).current_dir(env!("CARGO_MANIFEST_DIR"));
        // What cargo says of this test would make it build some dependencies anew.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"].iter().any(|p| name.starts_with(p)) {
                cargo.env_remove(name);
            }
        }
        let built = cargo.output().expect("cargo runs");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let text = String::from_utf8(built.stdout).expect("cargo writes UTF-8");
        let files = text.lines().filter_map(|l| serde_json::from_str::<serde_json::Value>(l).ok());
        let mut libraries = files.filter(|v| v["target"]["name"] == "mock_verbs").flat_map(|v| {
            let names = v["filenames"].as_array().cloned().unwrap_or_default();
            names.into_iter().filter_map(|n| n.as_str().map(PathBuf::from))
        });
        libraries.find(|p| p.extension().is_some_and(|e| e == "so")).expect("a library was built")
    })
}

/// The mock that all tests of this process share.
#[allow(dead_code)]
pub(crate) fn shared() -> Arc<Library> {
    static SHARED: OnceLock<Arc<Library>> = OnceLock::new();
    SHARED.get_or_init(|| Library::load(Some(path())).expect("the mock loads")).clone()
}

/// A mock of a test's own, whose faults are nobody else's.
#[allow(dead_code)]
pub(crate) struct Mock {
    pub(crate) library: Arc<Library>,
    handle: *mut c_void,
    dir: tempfile::TempDir,
}

#[allow(dead_code)]
impl Mock {
    pub(crate) fn new() -> Mock {
        let dir = tempfile::tempdir().expect("a directory");
        let copy = dir.path().join("libmock_verbs.so");
        std::fs::copy(path(), &copy).expect("copied");
        Mock::at(&copy, dir)
    }

    /// The mock that this process's fabrics load by its path.
    pub(crate) fn of_process() -> Mock {
        Mock::at(path(), tempfile::tempdir().expect("a directory"))
    }

    fn at(file: &Path, dir: tempfile::TempDir) -> Mock {
        let library = Library::load(Some(file)).expect("the mock loads");
        let name = CString::new(file.to_str().expect("UTF-8")).expect("no zero byte");
        // SAFETY: loaded already; this is another handle to it.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null());
        Mock { library, handle, dir }
    }

    fn symbol(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).expect("no zero byte");
        // SAFETY: a live handle.
        let symbol = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!symbol.is_null(), "the mock has no {name:?}");
        symbol
    }

    /// Sets a fault or value by name; -1 takes it away.
    pub(crate) fn set(&self, name: &str, value: i64) {
        let c_name = CString::new(name).expect("no zero byte");
        // SAFETY: the mock's function has this type.
        let f = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, i64) -> c_int>(
                self.symbol("mock_set"),
            )
        };
        // SAFETY: a zero-terminated name.
        assert_eq!(unsafe { f(c_name.as_ptr(), value) }, 0, "{name}");
    }

    pub(crate) fn fail_registrations(&self, count: u64, errno: i32) {
        // SAFETY: the mock's function has this type.
        let f = unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(u64, c_int)>(self.symbol("mock_fail_registrations"))
        };
        f(count, errno);
    }

    pub(crate) fn refuse_request(&self, more: u64, errno: i32) {
        // SAFETY: the mock's function has this type.
        let f = unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(u64, c_int)>(self.symbol("mock_refuse_request"))
        };
        f(more, errno);
    }

    pub(crate) fn refuse_state(&self, state: u32, errno: i32) {
        // SAFETY: the mock's function has this type.
        let f =
            unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(u32, c_int)>(self.symbol("mock_refuse_state")) };
        f(state, errno);
    }

    pub(crate) fn next_status(&self, qpn: u32, receive: bool, status: u32) {
        // SAFETY: the mock's function has this type.
        let f = unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(u32, bool, u32)>(self.symbol("mock_next_status"))
        };
        f(qpn, receive, status);
    }

    /// Says where the devices' directories are; before anybody asks for devices.
    pub(crate) fn sysfs(&self, path: &Path) {
        let path = CString::new(path.to_str().expect("UTF-8")).expect("no zero byte");
        // SAFETY: the mock's function has this type.
        let f = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char)>(self.symbol("mock_sysfs"))
        };
        // SAFETY: a zero-terminated text.
        unsafe { f(path.as_ptr()) };
    }

    /// The source port that a queue pair was given (0 for none), and how often one was asked for.
    pub(crate) fn source_port(&self, qpn: u32) -> (u16, u32) {
        // SAFETY: the mock's function has this type.
        let f =
            unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(u32) -> u32>(self.symbol("mock_source_port")) };
        let both = f(qpn);
        (both as u16, both >> 16)
    }

    pub(crate) fn flow_label(&self, qpn: u32) -> u32 {
        // SAFETY: the mock's function has this type.
        let f =
            unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(u32) -> u32>(self.symbol("mock_flow_label")) };
        f(qpn)
    }

    /// Where this copy of the library is.
    pub(crate) fn copy(&self) -> PathBuf {
        self.dir.path().join("libmock_verbs.so")
    }

    pub(crate) fn last_access(&self) -> u32 {
        // SAFETY: the mock's function has this type.
        let f = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> u32>(self.symbol("mock_last_access")) };
        f()
    }

    pub(crate) fn port_event(&self, device: &str, kind: u32, port: i32, quiet: bool) {
        let name = CString::new(device).expect("no zero byte");
        // SAFETY: the mock's function has this type.
        let f = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, u32, c_int, bool) -> c_int>(
                self.symbol("mock_port_event"),
            )
        };
        // SAFETY: a zero-terminated name.
        assert_eq!(unsafe { f(name.as_ptr(), kind, port, quiet) }, 0);
    }

    pub(crate) fn qp_event(&self, qpn: u32, kind: u32) {
        // SAFETY: the mock's function has this type.
        let f = unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(u32, u32) -> c_int>(self.symbol("mock_qp_event"))
        };
        assert_eq!(f(qpn, kind), 0);
    }
}
