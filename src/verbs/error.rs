//! What goes wrong with devices, told apart by what the user can do about it.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

/// Why a call of the verbs backend failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// There is no libibverbs.
    #[error("no {path}: {reason}; install rdma-core (package libibverbs1), or name the library in PLANESPRAY_IBVERBS")]
    LibraryAbsent {
        /// What was to be loaded.
        path: String,
        /// What the loader says.
        reason: String,
    },
    /// The library lacks a function that every version since 1.1 has.
    #[error("{path} has no {symbol}: this is not libibverbs, or one from before 2010; install rdma-core")]
    NotIbverbs {
        /// Which library.
        path: String,
        /// Which function.
        symbol: &'static str,
    },
    /// The kernel has no RDMA.
    #[error("libibverbs is there, but the kernel has no RDMA (ibv_get_device_list: {}); \
        load ib_uverbs, or rdma_rxe for an ordinary network card", os(*errno))]
    NoKernelSupport {
        /// ENOSYS, mostly.
        errno: i32,
    },
    /// The kernel has RDMA, but no device.
    #[error(
        "libibverbs and the kernel have RDMA, but there is no device; \
        `rdma link add rxe0 type rxe netdev eth0` makes one of an ordinary network card"
    )]
    NoDevice,
    /// No device has this name.
    #[error("no device {name}; there are: {}; name one of these", there.join(", "))]
    UnknownDevice {
        /// What was asked for.
        name: String,
        /// What there is.
        there: Vec<String>,
    },
    /// The device file cannot be opened.
    #[error("{device}: {path} cannot be opened ({}); give this user access to it: \
        a udev rule, the group that owns it, or --device for a container", os(*errno))]
    NoPermission {
        /// Which device.
        device: String,
        /// Its file.
        path: PathBuf,
        /// EACCES or EPERM.
        errno: i32,
    },
    /// The limit on locked memory is too low.
    #[error(
        "{device}: {asked} bytes cannot be registered: this process may lock {limit} bytes and has locked \
        {locked}; raise it with `ulimit -l unlimited`, --ulimit memlock=-1 for a container, or CAP_IPC_LOCK"
    )]
    MemlockTooSmall {
        /// Which device.
        device: String,
        /// Bytes that were to be registered.
        asked: u64,
        /// RLIMIT_MEMLOCK in bytes.
        limit: u64,
        /// Bytes locked or pinned before.
        locked: u64,
    },
    /// The device has no room for another registration.
    #[error("{device}: no memory to register {asked} bytes (ENOMEM), though {} of memory may be locked; \
        the device has {max_mr} registrations in all", limit_text(*limit))]
    RegistrationsExhausted {
        /// Which device.
        device: String,
        /// Bytes that were to be registered.
        asked: u64,
        /// RLIMIT_MEMLOCK in bytes; `u64::MAX` if there is none.
        limit: u64,
        /// How many the device has.
        max_mr: u64,
    },
    /// The driver does not take dma-buf memory.
    #[error("{device}: its driver cannot register a dma-buf ({}); copy through host memory instead", os(*errno))]
    NoDmaBuf {
        /// Which device.
        device: String,
        /// EOPNOTSUPP, mostly.
        errno: i32,
    },
    /// The UDP source port of an mlx5 queue pair cannot be set.
    #[error(
        "{path}: {reason}; source ports follow the flow label instead (install ibverbs-providers of rdma-core 42 or \
        later, or name libmlx5 in PLANESPRAY_MLX5)"
    )]
    NoSourcePorts {
        /// What was to be loaded.
        path: String,
        /// What was seen.
        reason: String,
    },
    /// The device has no such port.
    #[error("{device} has ports 1 to {ports}, not {port}; correct the list of devices")]
    NoPort {
        /// Which device.
        device: String,
        /// What was asked for.
        port: u8,
        /// How many there are.
        ports: u8,
    },
    /// The port is not active.
    #[error("{device} port {port} is {state}; is the cable in and the network device up (`ip link set dev .. up`)?")]
    PortDown {
        /// Which device.
        device: String,
        /// Which port.
        port: u8,
        /// Its state.
        state: &'static str,
    },
    /// The port is not Ethernet.
    #[error(
        "{device} port {port} is {link_layer}, and planespray speaks RoCEv2 over Ethernet; set the port's type to Ethernet \
        where the NIC can, or leave it out of the list"
    )]
    NotEthernet {
        /// Which device.
        device: String,
        /// Which port.
        port: u8,
        /// Its link layer.
        link_layer: &'static str,
    },
    /// The table of GIDs has no such entry.
    #[error(
        "{device} port {port} has GIDs 0 to {}, not {index}; leave the index out, and one is chosen by its address",
        len.saturating_sub(1)
    )]
    GidOutOfRange {
        /// Which device.
        device: String,
        /// Which port.
        port: u8,
        /// What was asked for.
        index: u32,
        /// Entries of the table.
        len: u32,
    },
    /// The entry is not one that RoCEv2 can use.
    #[error("{device} port {port}: GID {index} is {what}; RoCEv2 entries: {}", usable.join(", "))]
    GidUnusable {
        /// Which device.
        device: String,
        /// Which port.
        port: u8,
        /// Which entry.
        index: u32,
        /// What is wrong with it.
        what: &'static str,
        /// What could be used: index and address.
        usable: Vec<String>,
    },
    /// No entry has the address any more.
    #[error("{device} port {port} has no RoCEv2 GID for {addr}: is the address still on its network device?")]
    NoGidFor {
        /// Which device.
        device: String,
        /// Which port.
        port: u8,
        /// Which address.
        addr: IpAddr,
    },
    /// The peer says an MTU that RoCE does not have.
    #[error(
        "{port}: the peer's port {peer} says a RoCE MTU of {mtu} bytes, and RoCE has 256, 512, 1024, 2048 and 4096; \
        run the same version of planespray on both ends"
    )]
    PeerMtu {
        /// Our port.
        port: String,
        /// The peer's address.
        peer: IpAddr,
        /// What it says.
        mtu: u32,
    },
    /// The peer receives where devices do not send.
    #[error(
        "{port}: the peer's port {peer} receives at UDP port {udp_port}, and devices send to 4791 alone; its engine is \
        the embedded one: take `verbs` on both ends, or free 4791 there (rdma_rxe holds it)"
    )]
    PeerPort {
        /// Our port.
        port: String,
        /// The peer's address.
        peer: IpAddr,
        /// Where it receives.
        udp_port: u16,
    },
    /// One end has IPv4, the other IPv6.
    #[error(
        "{port} has {addr} and the peer's port {peer}: one is IPv4 and the other IPv6; choose the same family on both \
        ends with PLANESPRAY_ADDR_FAMILY"
    )]
    PeerFamily {
        /// Our port.
        port: String,
        /// Its address.
        addr: IpAddr,
        /// The peer's.
        peer: IpAddr,
    },
    /// The peer seems to be on InfiniBand.
    #[error(
        "{port} with {addr} has no way to the peer's {peer} ({}), which is link-local and not made of a MAC address, as \
        GIDs of InfiniBand ports are; see with `ibstat` whether the peer's link layer is Ethernet, and give its port an \
        IP address", os(*errno))]
    PeerLinkLayer {
        /// Our port.
        port: String,
        /// Its address.
        addr: IpAddr,
        /// The peer's.
        peer: IpAddr,
        /// What the device said.
        errno: i32,
    },
    /// There is no way to the peer.
    #[error(
        "{port} with {addr} has no way to the peer's {peer} ({call} failed: {}); is there a route to it by this port, and \
        does it answer (`ip route get`, `ping -I`)?", os(*errno))]
    PeerUnreachable {
        /// Our port.
        port: String,
        /// Its address.
        addr: IpAddr,
        /// The peer's.
        peer: IpAddr,
        /// Which call.
        call: &'static str,
        /// What the device said.
        errno: i32,
    },
    /// All queue pairs that this process allows itself are in use.
    #[error(
        "{device} port {port}: all {limit} queue pairs that this process allows itself are in use; \
        close connections, use fewer lanes for each, or raise the budget"
    )]
    QueuePairBudget {
        /// Which device.
        device: String,
        /// Which port.
        port: u8,
        /// The budget.
        limit: u32,
    },
    /// A parameter is out of range.
    #[error("{what} is out of range: {value}, not {range}")]
    Invalid {
        /// Which.
        what: &'static str,
        /// What it was.
        value: u64,
        /// What it may be.
        range: &'static str,
    },
    /// Bytes outside a registration.
    #[error("{len} bytes at {offset} leave a registration of {size} bytes")]
    OutOfBounds {
        /// First byte.
        offset: u64,
        /// How many.
        len: u64,
        /// The registration's size.
        size: u64,
    },
    /// The device lacks something.
    #[error("{device} has no {what}")]
    Unsupported {
        /// Which device.
        device: String,
        /// What it lacks.
        what: &'static str,
    },
    /// Any other call failed.
    #[error("{device}: {call} failed: {}{hint}", os(*errno))]
    Call {
        /// Which device; empty if none was concerned.
        device: String,
        /// Which call.
        call: &'static str,
        /// Its error.
        errno: i32,
        /// What to look at; empty if nothing comes to mind.
        hint: &'static str,
    },
}

impl VerbsError {
    pub(super) fn call(device: &str, call: &'static str, errno: i32) -> VerbsError {
        VerbsError::Call { device: device.to_owned(), call, errno, hint: "" }
    }

    /// The system's error number, if a call failed.
    pub fn errno(&self) -> Option<i32> {
        match self {
            VerbsError::NoKernelSupport { errno }
            | VerbsError::NoPermission { errno, .. }
            | VerbsError::NoDmaBuf { errno, .. }
            | VerbsError::PeerLinkLayer { errno, .. }
            | VerbsError::PeerUnreachable { errno, .. }
            | VerbsError::Call { errno, .. } => Some(*errno),
            VerbsError::MemlockTooSmall { .. } | VerbsError::RegistrationsExhausted { .. } => Some(libc::ENOMEM),
            _ => None,
        }
    }

    /// True where there is nothing to drive, so that another engine is to be used: no library, no kernel support,
    /// or no device.
    pub fn is_absence(&self) -> bool {
        matches!(
            self,
            VerbsError::LibraryAbsent { .. }
                | VerbsError::NotIbverbs { .. }
                | VerbsError::NoKernelSupport { .. }
                | VerbsError::NoDevice
        )
    }
}

/// What the last failed call left in errno.
pub(super) fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn os(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

fn limit_text(limit: u64) -> String {
    if limit == u64::MAX { "any amount".into() } else { format!("{limit} bytes") }
}
