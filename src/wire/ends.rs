//! Source and destination address as an IP header has them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Source and destination of an IP header.
pub(super) enum Ends {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl Ends {
    /// What an IP header between two addresses of sockets has: IPv4 where both are IPv4, also if mapped into IPv6.
    pub(super) fn new(src: IpAddr, dst: IpAddr) -> Ends {
        let v6 = |ip| match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        match (src.to_canonical(), dst.to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Ends::V4(src, dst),
            (src, dst) => Ends::V6(v6(src), v6(dst)),
        }
    }
}
