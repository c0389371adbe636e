//! Local ports: one receive socket per address, and what its interface can carry.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::sys::socket::SockaddrStorage;

use super::SoftError;
use super::config::{ROCE_PORT, UdpConfig, UdpPort};
use super::udp::{self, Pmtu, Sock, with_scope};
use crate::lanes::{MAX_PORTS, PortInfo};

/// RoCE MTUs, largest first.
const MTUS: [u32; 5] = [4096, 2048, 1024, 512, 256];
/// Most that UDP, BTH, RETH, immediate and ICRC add to a payload.
const HEADERS: u32 = 8 + 12 + 16 + 4 + 4;
/// Taken for an address that belongs to no interface by name, as with `ip route add local`.
const UNKNOWN_MTU: u32 = 1500;
const RECEIVE_BUFFER: usize = 4 << 20;

/// A local address with its receive socket.
pub(super) struct Port {
    pub(super) sock: Sock,
    /// Interface index for link-local addresses, else 0.
    pub(super) scope: u32,
}

impl Port {
    /// Where packets for this port are addressed.
    pub(super) fn addr(&self) -> SocketAddr {
        self.sock.local()
    }
}

impl AsRawFd for Port {
    fn as_raw_fd(&self) -> RawFd {
        self.sock.as_raw_fd()
    }
}

/// Checks what needs no system call.
pub(super) fn check(cfg: &UdpConfig) -> Result<(), SoftError> {
    let bad = |what| Err(SoftError::Config { what });
    if cfg.planes.is_empty() || cfg.planes.len() > MAX_PORTS {
        return bad("between 1 and 8 local addresses are needed");
    }
    if cfg.planes.iter().enumerate().any(|(i, a)| cfg.planes[..i].contains(a)) {
        return bad("a local address is listed twice; each may be listed once");
    }
    if cfg.planes.iter().any(|a| a.is_unspecified() || a.is_multicast()) {
        return bad("local addresses must be concrete: the ICRC covers the source address");
    }
    if cfg.planes.iter().any(|a| a.to_canonical() != *a) {
        return bad("IPv4 addresses must be given as such, not mapped into IPv6");
    }
    if !MTUS.contains(&cfg.mtu) {
        return bad("the RoCE MTU must be 256, 512, 1024, 2048 or 4096");
    }
    if !(1..=1024).contains(&cfg.source_ports) {
        return bad("between 1 and 1024 source ports are needed");
    }
    if cfg.udp_port == UdpPort::Fixed(0) {
        return bad("UDP port 0 cannot be asked for; use automatic choice");
    }
    Ok(())
}

/// Opens the receive socket of plane `index`.
pub(super) fn open(cfg: &UdpConfig, index: usize) -> Result<(Port, PortInfo), SoftError> {
    let ip = cfg.planes[index];
    let interface = interface_of(ip);
    let scope = match (&interface, ip) {
        (Some(name), IpAddr::V6(v6)) if v6.is_unicast_link_local() => {
            nix::net::if_::if_nametoindex(name.as_str()).unwrap_or(0)
        }
        _ => 0,
    };
    let sock = bind_receive(cfg.udp_port, ip, scope)?;
    sock.set_receive_options(cfg.gro)?;
    let buffer = sock.set_receive_buffer(cfg.receive_buffer.unwrap_or(RECEIVE_BUFFER))?;
    let link = match &interface {
        Some(name) => udp::interface_mtu(&sock, name).map_err(|errno| SoftError::Call {
            call: "ioctl(SIOCGIFMTU)",
            errno,
            addr: sock.local(),
        })?,
        None => {
            tracing::info!(%ip, mtu = UNKNOWN_MTU, "address of no known interface; taking this for its MTU");
            UNKNOWN_MTU
        }
    };
    let mtu = roce_mtu(ip, link, cfg.mtu)?;
    if mtu < cfg.mtu {
        tracing::info!(%ip, interface_mtu = link, wanted = cfg.mtu, mtu, "RoCE MTU lowered to what the interface carries");
    }
    let info = PortInfo {
        rail: 0,
        plane: index as u16,
        addr: ip,
        udp_port: sock.local().port(),
        mtu,
        receive_budget: Some(buffer as u64 / 2),
        name: interface.unwrap_or_else(|| ip.to_string()),
    };
    Ok((Port { sock, scope }, info))
}

fn bind_receive(port: UdpPort, ip: IpAddr, scope: u32) -> Result<Sock, SoftError> {
    match port {
        UdpPort::Fixed(port) => Sock::bind(with_scope(ip, port, scope), Pmtu::Probe),
        UdpPort::Auto => match Sock::bind(with_scope(ip, ROCE_PORT, scope), Pmtu::Probe) {
            Err(SoftError::InUse { .. }) => {
                let sock = Sock::bind(with_scope(ip, 0, scope), Pmtu::Probe)?;
                tracing::info!(%ip, port = sock.local().port(), "UDP port 4791 is in use; receiving at another");
                Ok(sock)
            }
            other => other,
        },
    }
}

/// The largest RoCE MTU up to `wanted` whose packets fit an interface MTU of `link` bytes.
fn roce_mtu(ip: IpAddr, link: u32, wanted: u32) -> Result<u32, SoftError> {
    let overhead = HEADERS + if ip.is_ipv4() { 20 } else { 40 };
    let fits = MTUS.into_iter().find(|&m| m <= wanted && m + overhead <= link);
    fits.ok_or(SoftError::Mtu { addr: ip, interface: link, needed: MTUS[MTUS.len() - 1] + overhead })
}

/// Name of the interface that has `ip`, or, for loopback addresses, whose network it is in.
pub(super) fn interface_of(ip: IpAddr) -> Option<String> {
    let all: Vec<InterfaceAddress> = getifaddrs().ok()?.collect();
    let exact = all.iter().find(|i| i.address.as_ref().and_then(to_ip) == Some(ip));
    let found = exact.or_else(|| {
        all.iter().find(|i| match (ip, i.address.as_ref().and_then(to_ip), i.netmask.as_ref().and_then(to_ip)) {
            // All of 127.0.0.0/8 is local, though only one address of it is listed.
            (IpAddr::V4(ip), Some(IpAddr::V4(a)), Some(IpAddr::V4(mask))) => {
                ip.is_loopback() && (ip & mask) == (a & mask)
            }
            _ => false,
        })
    });
    found.map(|i| i.interface_name.clone())
}

/// The address of an interface: its first IPv4 address, else its first IPv6 address that is not link-local, `Some(None)` if it
/// has neither. `None` if there is no such interface.
pub fn interface_address(name: &str) -> Option<Option<IpAddr>> {
    let all: Vec<InterfaceAddress> = getifaddrs().ok()?.filter(|i| i.interface_name == name).collect();
    let addrs = || all.iter().filter_map(|i| i.address.as_ref().and_then(to_ip));
    let routable = |a: &IpAddr| matches!(a, IpAddr::V6(v6) if !v6.is_unicast_link_local());
    (!all.is_empty()).then(|| addrs().find(IpAddr::is_ipv4).or_else(|| addrs().find(routable)))
}

fn to_ip(a: &SockaddrStorage) -> Option<IpAddr> {
    if let Some(v4) = a.as_sockaddr_in() {
        return Some(v4.ip().into());
    }
    a.as_sockaddr_in6().map(|v6| v6.ip().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_fits_the_interface() {
        let (v4, v6) = ("10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap());
        assert_eq!(roce_mtu(v4, 65_536, 4096), Ok(4096));
        assert_eq!(roce_mtu(v4, 4160, 4096), Ok(4096));
        assert_eq!(roce_mtu(v4, 4159, 4096), Ok(2048));
        assert_eq!(roce_mtu(v6, 4179, 4096), Ok(2048));
        assert_eq!(roce_mtu(v6, 1500, 4096), Ok(1024));
        assert_eq!(roce_mtu(v4, 9000, 512), Ok(512));
        assert_eq!(roce_mtu(v4, 320, 4096), Ok(256));
        assert_eq!(roce_mtu(v4, 319, 4096), Err(SoftError::Mtu { addr: v4, interface: 319, needed: 320 }));
    }

    #[test]
    fn loopback_addresses_have_an_interface() {
        assert_eq!(interface_of("127.0.0.1".parse().unwrap()).as_deref(), Some("lo"));
        assert_eq!(interface_of("127.9.8.7".parse().unwrap()).as_deref(), Some("lo"));
        assert_eq!(interface_of("::1".parse().unwrap()).as_deref(), Some("lo"));
        assert_eq!(interface_of("192.0.2.1".parse().unwrap()), None);
        assert_eq!(interface_address("lo"), Some("127.0.0.1".parse().ok()));
        assert_eq!(interface_address("nosuch0"), None);
    }
}
