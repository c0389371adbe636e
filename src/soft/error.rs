//! Why the socket edge could not do something, and what to do about it.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::lanes::LaneError;

/// An error of the socket edge. Its text names the call, the address, the cause and a next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SoftError {
    /// The configuration is out of range.
    #[error("configuration: {what}")]
    Config {
        /// What is wrong and what would be right.
        what: &'static str,
    },
    /// The address belongs to no interface of this host.
    #[error(
        "bind: {addr} is not an address of this host (errno {}); \
         list the host's addresses with `ip -brief address` and configure one of them",
        libc::EADDRNOTAVAIL
    )]
    NotLocal {
        /// The address asked for.
        addr: IpAddr,
    },
    /// Another socket receives there.
    #[error(
        "bind: UDP {addr} is in use by another socket (errno {}); `ss -ulnp` names its owner (rdma_rxe holds port 4791 \
         of every address); choose another port, or let the port be chosen automatically",
        libc::EADDRINUSE
    )]
    InUse {
        /// The address and port asked for.
        addr: SocketAddr,
    },
    /// No source port of the range could be bound.
    #[error(
        "bind: no free UDP source port on {addr} in 49152..=65535 after {tries} tries (errno {}); \
         close programs that hold them (`ss -uanp`) or lower the number of source ports",
        libc::EADDRINUSE
    )]
    NoSourcePort {
        /// The local address.
        addr: IpAddr,
        /// How many ports were tried.
        tries: u16,
    },
    /// The interface cannot carry the smallest RoCE packet.
    #[error(
        "the interface of {addr} has an MTU of {interface} bytes, but the smallest RoCE MTU (256) needs {needed}; \
         raise it with `ip link set dev NAME mtu {needed}` or more (4200 or more for the full 4096)"
    )]
    Mtu {
        /// The local address.
        addr: IpAddr,
        /// MTU of its interface, bytes.
        interface: u32,
        /// What the smallest RoCE MTU needs, bytes.
        needed: u32,
    },
    /// The kernel does not write predictable IPv4 identification fields, so no right ICRC can be made.
    #[error(
        "wire-ID self-test on {addr}: IPv4 packets of this host do not carry predictable identification fields \
         (packet {index} carried {seen}), so their ICRC would be wrong at the peer; use IPv6 addresses"
    )]
    WireIds {
        /// The local address.
        addr: IpAddr,
        /// Which packet of the burst was the first wrong one.
        index: u16,
        /// The identification that it carried, or 65535 if it was above what the test can read.
        seen: u16,
    },
    /// The self-test's packets did not arrive.
    #[error(
        "wire-ID self-test: {got} of {sent} packets from {addr} arrived; \
         check that no firewall drops UDP between the two addresses"
    )]
    ProbeLost {
        /// Where they came from.
        addr: IpAddr,
        /// How many were expected.
        sent: u16,
        /// How many arrived.
        got: u16,
    },
    /// The capture file could not be created or written.
    #[error("pcap: cannot write the capture ({}); check the path, its permissions and the free space", errno_text(*errno))]
    Capture {
        /// The system's error number, 0 if there was none.
        errno: i32,
    },
    /// A system call failed.
    #[error("{call} failed for {addr}: {}; {}", errno_text(*errno), next_step(*errno))]
    Call {
        /// Which call, with its option if it has one.
        call: &'static str,
        /// The system's error number.
        errno: i32,
        /// The address it was made for.
        addr: SocketAddr,
    },
}

impl SoftError {
    /// Wraps the error of a system call.
    #[cold]
    pub(super) fn call(call: &'static str, addr: SocketAddr, e: &io::Error) -> Self {
        SoftError::Call { call, errno: e.raw_os_error().unwrap_or(0), addr }
    }
}

impl From<SoftError> for LaneError {
    fn from(e: SoftError) -> Self {
        match e {
            SoftError::Config { what } => LaneError::Invalid { what },
            SoftError::Call { call, errno, .. } => LaneError::System { call, errno },
            SoftError::NotLocal { .. } => LaneError::System { call: "bind", errno: libc::EADDRNOTAVAIL },
            SoftError::InUse { .. } | SoftError::NoSourcePort { .. } => {
                LaneError::System { call: "bind", errno: libc::EADDRINUSE }
            }
            SoftError::Mtu { .. } => LaneError::Invalid { what: "interface MTU" },
            SoftError::WireIds { .. } => LaneError::Invalid { what: "IPv4 identification on the wire" },
            SoftError::ProbeLost { .. } => LaneError::System { call: "wire-ID self-test", errno: libc::ETIMEDOUT },
            SoftError::Capture { errno } => LaneError::System { call: "pcap", errno },
        }
    }
}

fn errno_text(errno: i32) -> String {
    if errno == 0 { "no error number".into() } else { io::Error::from_raw_os_error(errno).to_string() }
}

fn next_step(errno: i32) -> &'static str {
    match errno {
        libc::EMFILE | libc::ENFILE => {
            "raise the limit of open files (`ulimit -n`) or lower the number of source ports"
        }
        libc::ENOMEM | libc::ENOBUFS => "free memory, or ask for a smaller receive buffer",
        libc::EACCES | libc::EPERM => "check firewall rules and the rights of this process",
        libc::ENETUNREACH | libc::EHOSTUNREACH => "check the routes of this address (`ip route get`)",
        libc::ENETDOWN => "bring the interface up (`ip link set dev NAME up`)",
        libc::EMSGSIZE => "lower the RoCE MTU, or raise the interface's MTU",
        libc::ENOPROTOOPT | libc::EOPNOTSUPP => "a Linux kernel of 5.0 or later is needed",
        _ => "see the manual page of the call for this error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_call_errno_address_cause_and_step() {
        let addr = "127.0.0.1:4791".parse().unwrap();
        let text = SoftError::InUse { addr }.to_string();
        for part in ["bind", "127.0.0.1:4791", "errno 98", "in use", "ss -ulnp"] {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
        let e = io::Error::from_raw_os_error(libc::EMSGSIZE);
        let text = SoftError::call("sendmsg", addr, &e).to_string();
        for part in ["sendmsg", "127.0.0.1:4791", "os error 90", "Message too long", "MTU"] {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
        let text = SoftError::NotLocal { addr: addr.ip() }.to_string();
        for part in ["bind", "127.0.0.1", "errno 99", "not an address of this host", "ip -brief address"] {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
    }

    #[test]
    fn becomes_a_lane_error() {
        let addr = "[::1]:5".parse().unwrap();
        let e = SoftError::call("sendmsg", addr, &io::Error::from_raw_os_error(libc::EPERM));
        assert_eq!(LaneError::from(e), LaneError::System { call: "sendmsg", errno: libc::EPERM });
    }
}
