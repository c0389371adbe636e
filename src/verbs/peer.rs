//! Peers that a port cannot talk to, each told apart.
#![forbid(unsafe_code)]

use std::net::IpAddr;

use super::error::VerbsError;
use super::lanes::ROCE_PORT;
use crate::lanes::{LaneAddress, PortInfo};

/// Whether a port can talk to a peer's lane at all.
pub(super) fn fits(port: &PortInfo, peer: &LaneAddress) -> Result<(), VerbsError> {
    let name = || port.name.clone();
    if !matches!(peer.mtu, 256 | 512 | 1024 | 2048 | 4096) {
        return Err(VerbsError::PeerMtu { port: name(), peer: peer.addr, mtu: peer.mtu });
    }
    if peer.udp_port != ROCE_PORT {
        return Err(VerbsError::PeerPort { port: name(), peer: peer.addr, udp_port: peer.udp_port });
    }
    if port.addr.is_ipv4() != peer.addr.is_ipv4() {
        return Err(VerbsError::PeerFamily { port: name(), addr: port.addr, peer: peer.addr });
    }
    Ok(())
}

/// What more can be said of a connection that the device refused.
pub(super) fn explain(error: VerbsError, port: &PortInfo, peer: IpAddr) -> VerbsError {
    let (name, addr) = (port.name.clone(), port.addr);
    match error {
        VerbsError::Call { errno, .. } if looks_like_infiniband(peer) => {
            VerbsError::PeerLinkLayer { port: name, addr, peer, errno }
        }
        VerbsError::Call {
            call, errno: errno @ (libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ETIMEDOUT), ..
        } => VerbsError::PeerUnreachable { port: name, addr, peer, call, errno },
        other => other,
    }
}

/// The GID of an InfiniBand port is the link-local prefix and the port's number, and that of an Ethernet port the prefix
/// and what a MAC address is made into, with ff:fe in its middle.
fn looks_like_infiniband(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => {
            let b = v6.octets();
            b[..8] == [0xfe, 0x80, 0, 0, 0, 0, 0, 0] && b[11..13] != [0xff, 0xfe]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_of_infiniband_ports() {
        for (addr, ib) in [
            ("fe80::2:c903:a1:b2c3", true),
            ("fe80::ee0d:9a03:d4:5e6f", true),
            ("fe80::ee0d:9aff:fed4:5e6f", false),
            ("fd00::2:c903:a1:b2c3", false),
            ("10.0.0.1", false),
        ] {
            assert_eq!(looks_like_infiniband(addr.parse().expect("an address")), ib, "{addr}");
        }
    }
}
