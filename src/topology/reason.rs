//! Why a device, port or engine was not taken: what was seen, and the next step.

use std::fmt;

use super::gid::GidError;

/// Something that was not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reason {
    /// What: `mlx5_0 port 1`, `hardware`, `rdma_rxe`, `verbs`.
    pub subject: String,
    /// Why.
    pub why: NotTaken,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.why)
    }
}

/// Why it was not taken. Each text is one line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotTaken {
    /// The library is not there.
    #[error(
        "libibverbs cannot be loaded: {seen}; install it (Debian: libibverbs1 and ibverbs-providers), or name it in PLANESPRAY_IBVERBS"
    )]
    LibraryAbsent {
        /// What was seen.
        seen: String,
    },
    /// This build cannot drive verbs.
    #[error("this build of planespray has no verbs backend; use one that has, or the embedded engine")]
    NotBuilt,
    /// The library is there, the kernel's part is not.
    #[error(
        "libibverbs is there, but the kernel offers no verbs ({seen}); load its part (`modprobe ib_uverbs` and the NIC's driver)"
    )]
    NoKernel {
        /// What was seen.
        seen: String,
    },
    /// No NIC.
    #[error("no RDMA NIC in /sys/class/infiniband; check that the NIC's RDMA driver is loaded (`rdma link`, `lspci`)")]
    NoHardware,
    /// No soft-RoCE device.
    #[error(
        "no soft-RoCE device in /sys/class/infiniband; `rdma link add rxe0 type rxe netdev IFACE` makes one where the kernel has rdma_rxe"
    )]
    NoRxe,
    /// A listed name that no device has.
    #[error("\"{asked}\" matches no RDMA device; there are {have}: correct the list")]
    NoSuchHca {
        /// The entry.
        asked: String,
        /// Devices that there are.
        have: String,
    },
    /// The list does not name it.
    #[error("left out by the list \"{list}\"")]
    NotListed {
        /// The list.
        list: String,
    },
    /// No character device.
    #[error("it has no character device in /sys/class/infiniband_verbs; load ib_uverbs")]
    NoNode,
    /// The character device is not where the process looks.
    #[error("{path} is not there; give the container that device (and /dev/infiniband/rdma_cm)")]
    NodeMissing {
        /// Its path.
        path: String,
    },
    /// The character device cannot be opened.
    #[error("no permission to open {path} ({}); join its group, or fix its mode or the container's device rules", std::io::Error::from_raw_os_error(*errno))]
    NoPermission {
        /// Its path.
        path: String,
        /// The error.
        errno: i32,
    },
    /// The character device cannot be opened for another reason.
    #[error("{path} cannot be opened: {}; see the kernel's log (`dmesg`)", std::io::Error::from_raw_os_error(*errno))]
    NodeBroken {
        /// Its path.
        path: String,
        /// The error.
        errno: i32,
    },
    /// Too little memory may be pinned.
    #[error(
        "memlock is {limit} bytes, but {needed} must be pinned; raise it (`ulimit -l unlimited`, docker --ulimit memlock=-1) or give CAP_IPC_LOCK"
    )]
    Memlock {
        /// The limit in bytes.
        limit: u64,
        /// What is needed in bytes.
        needed: u64,
    },
    /// The port has no link.
    #[error(
        "the port is {state}{physical}; check cable and switch, and bring {netdev} up (`ip link set dev {netdev} up`)"
    )]
    PortDown {
        /// Its state.
        state: String,
        /// Its physical state in parentheses, or nothing.
        physical: String,
        /// Its interface.
        netdev: String,
    },
    /// An InfiniBand link.
    #[error(
        "its link is InfiniBand, not Ethernet; planespray speaks RoCEv2 (set the port's type to Ethernet where the NIC can)"
    )]
    InfiniBand,
    /// An iWARP device.
    #[error("it is an iWARP device; planespray speaks RoCEv2")]
    Iwarp,
    /// Neither RoCE nor anything that we know.
    #[error("it is {what}, which is no RoCE port; planespray speaks RoCEv2")]
    NotRoce {
        /// What the kernel says.
        what: String,
    },
    /// No GID.
    #[error("no usable RoCEv2 GID: {0}")]
    Gid(#[from] GidError),
    /// The interface is too narrow.
    #[error(
        "the MTU of {netdev} is {mtu} bytes, too small for RoCE; raise it (`ip link set dev {netdev} mtu 4200` for RoCE's 4096)"
    )]
    Mtu {
        /// The interface.
        netdev: String,
        /// Its MTU in bytes.
        mtu: u32,
    },
    /// One port too many.
    #[error("{limit} ports are taken already; name the ones to use")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// Something better was taken.
    #[error("not needed: {taken} is taken")]
    NotNeeded {
        /// What was taken.
        taken: &'static str,
    },
    /// The embedded engine was asked for.
    #[error("not looked for: the embedded engine was asked for")]
    NotWanted,
}
