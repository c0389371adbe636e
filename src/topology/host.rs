//! What this host lets the process do with RDMA devices.

use std::fs::OpenOptions;
use std::path::Path;

use super::sysfs::{Device, read};

/// Directories in which distributions keep libraries.
const LIBRARY_DIRS: [&str; 8] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "lib64",
    "usr/local/lib",
];
/// Bit of CAP_IPC_LOCK.
const CAP_IPC_LOCK: u32 = 14;

/// Whether libibverbs can be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Library {
    /// Loaded, or there to be loaded.
    Present,
    /// Not there, or it cannot be loaded.
    Absent {
        /// What was seen.
        seen: String,
    },
    /// There, but it finds no kernel support.
    NoKernel {
        /// What it said.
        errno: i32,
    },
    /// This build cannot use it.
    NotBuilt,
}

/// How much memory the process may pin, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memlock {
    /// Any amount: no limit, or CAP_IPC_LOCK.
    Unlimited,
    /// This much.
    Limited(u64),
    /// Not known.
    Unknown,
}

/// Facts that decide which engine can run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// libibverbs.
    pub library: Library,
    /// Whether the kernel offers verbs to user space (ib_uverbs).
    pub kernel: bool,
    /// Memory that may be pinned.
    pub memlock: Memlock,
    /// Character devices, such as `uverbs0`, with the error that opening one gave.
    pub nodes: Vec<(String, Option<i32>)>,
}

impl Library {
    /// Looks for libibverbs where distributions put it, without loading it.
    pub fn look(root: &Path) -> Library {
        if LIBRARY_DIRS.iter().any(|dir| root.join(dir).join("libibverbs.so.1").exists()) {
            Library::Present
        } else {
            Library::Absent { seen: "no libibverbs.so.1 in the system's library directories".into() }
        }
    }
}

impl Host {
    /// Reads them below `root`, for these devices.
    pub fn read(root: &Path, library: Library, devices: &[Device]) -> Host {
        let open = |node: &String| {
            let path = root.join("dev/infiniband").join(node);
            // The kernel asks a driver nothing for this.
            let opened = OpenOptions::new().read(true).write(true).open(path);
            (node.clone(), opened.err().map(|e| e.raw_os_error().unwrap_or(0)))
        };
        Host {
            library,
            kernel: root.join("sys/class/infiniband_verbs").exists(),
            memlock: memlock(root),
            nodes: devices.iter().filter_map(|d| d.uverbs.as_ref()).map(open).collect(),
        }
    }
}

fn memlock(root: &Path) -> Memlock {
    let process = root.join("proc/self");
    let status = read(&process.join("status")).unwrap_or_default();
    let capabilities = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|c| u64::from_str_radix(c.trim(), 16).ok());
    if capabilities.is_some_and(|c| c >> CAP_IPC_LOCK & 1 == 1) {
        return Memlock::Unlimited;
    }
    let limits = read(&process.join("limits")).unwrap_or_default();
    let soft = limits.lines().find_map(|l| l.strip_prefix("Max locked memory")?.split_whitespace().next());
    match soft {
        Some("unlimited") => Memlock::Unlimited,
        Some(bytes) => bytes.parse().map_or(Memlock::Unknown, Memlock::Limited),
        None => Memlock::Unknown,
    }
}
