//! UDP sockets as RoCEv2 needs them. The only file of the socket edge with `unsafe`.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::time::Duration;

use libc::{c_int, c_void, cmsghdr, msghdr, pollfd, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use socket2::{Domain, Protocol, SockAddr, SockFilter, Socket, Type};

use super::SoftError;

// Not in libc for every target.
const UDP_NO_CHECK6_RX: c_int = 102;

/// Most packets in one burst (`UDP_MAX_SEGMENTS` of Linux 5.0 is 64; 6.9 raised it to 128).
pub(super) const MAX_SEGMENTS: usize = 64;
/// Most bytes in one burst, below what one IPv4 datagram can hold (65,507).
pub(super) const MAX_BURST: usize = 65_000;
/// What one receive call needs room for.
pub(super) const RECEIVE_LEN: usize = 65_536;

/// Room for control messages: a send needs two, a receive four, of 24 bytes each.
const CONTROL_LEN: usize = 160;

/// Control messages, aligned as the kernel expects their headers.
#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

/// How the kernel treats the path MTU; decides also what it writes into the IPv4 identification field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pmtu {
    /// Never fragment, ignore what ICMP says: identification = segment index.
    Probe,
    /// The system's default: identification from a counter. Only to show that the self-test can fail.
    #[cfg_attr(not(test), expect(dead_code, reason = "only the self-test's own test asks for it"))]
    Want,
}

/// What a receive call brought: one datagram, or several of one sender that the kernel joined.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Bytes in the buffer.
    pub(super) len: usize,
    /// Bytes per packet; the last may be shorter. At least 1.
    pub(super) segment: usize,
    /// Who sent it.
    pub(super) from: SocketAddr,
    /// IPv4 TOS byte or IPv6 traffic class, of every packet.
    pub(super) tos: u8,
    /// IPv4 time to live or IPv6 hop limit, of every packet.
    pub(super) ttl: u8,
    /// Packets that the socket has dropped for want of buffer since it was made, wrapping; `None` if it did not say.
    pub(super) dropped: Option<u32>,
    /// The buffer was too short for it.
    pub(super) truncated: bool,
}

/// A bound, nonblocking, unconnected UDP socket.
pub(super) struct Sock {
    socket: Socket,
    local: SocketAddr,
}

impl Sock {
    /// Binds a socket and sets what all of ours have in common.
    ///
    /// # Errors
    /// [`SoftError::NotLocal`], [`SoftError::InUse`] or a failed call.
    pub(super) fn bind(addr: SocketAddr, pmtu: Pmtu) -> Result<Self, SoftError> {
        let fail = |call| move |e: io::Error| SoftError::call(call, addr, &e);
        let domain = if addr.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
        let socket = Socket::new(domain, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))
            .map_err(fail("socket(SOCK_DGRAM)"))?;
        if addr.is_ipv6() {
            socket.set_only_v6(true).map_err(fail("setsockopt(IPV6_V6ONLY)"))?;
        }
        let (v4, v6) = match pmtu {
            Pmtu::Probe => (libc::IP_PMTUDISC_PROBE, libc::IPV6_PMTUDISC_PROBE),
            Pmtu::Want => (libc::IP_PMTUDISC_WANT, libc::IPV6_PMTUDISC_WANT),
        };
        let set = if addr.is_ipv4() {
            set_option(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, v4)
        } else {
            set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, v6)
        };
        set.map_err(fail("setsockopt(MTU_DISCOVER)"))?;
        socket.bind(&addr.into()).map_err(|e| match e.raw_os_error() {
            Some(libc::EADDRNOTAVAIL) => SoftError::NotLocal { addr: addr.ip() },
            Some(libc::EADDRINUSE) => SoftError::InUse { addr },
            _ => SoftError::call("bind", addr, &e),
        })?;
        let local = socket.local_addr().map_err(fail("getsockname"))?.as_socket().unwrap_or(addr);
        Ok(Sock { socket, local })
    }

    /// Asks for TOS, TTL and drop counts with every packet, and takes IPv6 packets without a UDP checksum, which
    /// RoCE NICs send.
    ///
    /// # Errors
    /// A failed call.
    pub(super) fn set_receive_options(&self, gro: bool) -> Result<(), SoftError> {
        let set = |call, level, name| {
            set_option(&self.socket, level, name, 1).map_err(|e| SoftError::call(call, self.local, &e))
        };
        if self.local.is_ipv4() {
            set("setsockopt(IP_RECVTOS)", libc::IPPROTO_IP, libc::IP_RECVTOS)?;
            set("setsockopt(IP_RECVTTL)", libc::IPPROTO_IP, libc::IP_RECVTTL)?;
        } else {
            set("setsockopt(IPV6_RECVTCLASS)", libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS)?;
            set("setsockopt(IPV6_RECVHOPLIMIT)", libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT)?;
            set("setsockopt(UDP_NO_CHECK6_RX)", libc::IPPROTO_UDP, UDP_NO_CHECK6_RX)?;
        }
        set("setsockopt(SO_RXQ_OVFL)", libc::SOL_SOCKET, libc::SO_RXQ_OVFL)?;
        if gro {
            set("setsockopt(UDP_GRO)", libc::IPPROTO_UDP, libc::UDP_GRO)?;
        }
        Ok(())
    }

    /// Asks for a receive buffer and returns what the kernel counts against: twice what it granted.
    ///
    /// # Errors
    /// A failed call.
    pub(super) fn set_receive_buffer(&self, len: usize) -> Result<usize, SoftError> {
        let fail = |e: io::Error| SoftError::call("setsockopt(SO_RCVBUF)", self.local, &e);
        self.socket.set_recv_buffer_size(len).map_err(fail)?;
        self.socket.recv_buffer_size().map_err(fail)
    }

    /// Asks for a send buffer; the kernel may grant less.
    ///
    /// # Errors
    /// A failed call.
    pub(super) fn set_send_buffer(&self, len: usize) -> Result<(), SoftError> {
        self.socket.set_send_buffer_size(len).map_err(|e| SoftError::call("setsockopt(SO_SNDBUF)", self.local, &e))
    }

    /// Attaches a classic BPF program, given as (code, jt, jf, k). It sees the packet from its UDP header on and
    /// returns how many bytes of that to keep.
    ///
    /// # Errors
    /// A failed call.
    pub(super) fn attach_filter(&self, program: &[(u16, u8, u8, u32)]) -> Result<(), SoftError> {
        let program: Vec<_> = program.iter().map(|&(code, jt, jf, k)| SockFilter::new(code, jt, jf, k)).collect();
        self.socket.attach_filter(&program).map_err(|e| SoftError::call("setsockopt(SO_ATTACH_FILTER)", self.local, &e))
    }

    /// The address and port it is bound to.
    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Sends one datagram, or with `segment` several of that size but the last. `Ok(false)`: it would block.
    ///
    /// # Errors
    /// The system's error number.
    pub(super) fn send(&self, to: &SockAddr, tos: u8, bytes: &[u8], segment: Option<u16>) -> Result<bool, i32> {
        let mut control = Control([0; CONTROL_LEN]);
        let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: all-zero is a valid msghdr: null pointers with zero lengths.
        let mut msg: msghdr = unsafe { zeroed() };
        msg.msg_name = to.as_ptr().cast_mut().cast();
        msg.msg_namelen = to.len();
        msg.msg_iov = &raw mut iov;
        msg.msg_iovlen = 1;
        let (level, name) = if self.local.is_ipv4() {
            (libc::IPPROTO_IP, libc::IP_TOS)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
        };
        let mut used = put(&mut control, 0, level, name, &c_int::from(tos).to_ne_bytes());
        if let Some(segment) = segment {
            used = put(&mut control, used, libc::IPPROTO_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
        }
        msg.msg_control = control.0.as_mut_ptr().cast();
        msg.msg_controllen = used as _;
        let mut refused = false;
        loop {
            // SAFETY: `msg` points at `to`, `iov`, `bytes` and `control`, which all outlive the call, with their true
            // lengths; sendmsg only reads them.
            let n = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const msg, libc::MSG_NOSIGNAL) };
            if n >= 0 {
                return Ok(true);
            }
            match errno() {
                libc::EINTR => {}
                // An ICMP error of an earlier packet, reported once instead of sending.
                libc::ECONNREFUSED if !refused => refused = true,
                libc::EAGAIN | libc::ENOBUFS => return Ok(false),
                e => return Err(e),
            }
        }
    }

    /// Receives what one call gives. `Ok(None)`: nothing there.
    ///
    /// # Errors
    /// The system's error number.
    pub(super) fn receive(&self, buf: &mut [u8]) -> Result<Option<Arrival>, i32> {
        let mut control = Control([0; CONTROL_LEN]);
        // SAFETY: all-zero is a valid sockaddr_storage (family unspecified).
        let mut name: sockaddr_storage = unsafe { zeroed() };
        let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
        // SAFETY: all-zero is a valid msghdr: null pointers with zero lengths.
        let mut msg: msghdr = unsafe { zeroed() };
        msg.msg_iov = &raw mut iov;
        msg.msg_iovlen = 1;
        let len = loop {
            msg.msg_name = (&raw mut name).cast();
            msg.msg_namelen = size_of::<sockaddr_storage>() as socklen_t;
            msg.msg_control = control.0.as_mut_ptr().cast();
            msg.msg_controllen = CONTROL_LEN as _;
            // SAFETY: `msg` points at `name`, `iov`, `buf` and `control`, which all outlive the call and are writable
            // for the lengths given; the kernel writes no more than that.
            let n = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut msg, 0) };
            if n >= 0 {
                break (n as usize).min(buf.len());
            }
            match errno() {
                libc::EINTR => {}
                libc::EAGAIN => return Ok(None),
                e => return Err(e),
            }
        };
        // A socket that is not connected always gets the sender's name; the fallback is never right but harmless.
        let from = source(&name, msg.msg_namelen).unwrap_or(self.local);
        let mut arrival = Arrival {
            len,
            segment: len.max(1),
            from,
            tos: 0,
            ttl: 0,
            dropped: None,
            truncated: msg.msg_flags & libc::MSG_TRUNC != 0,
        };
        read_control(&msg, &mut arrival);
        Ok(Some(arrival))
    }
}

impl AsRawFd for Sock {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsFd for Sock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sockets to sleep on, prepared once.
#[derive(Default)]
pub(super) struct PollSet(Vec<pollfd>);

impl PollSet {
    /// A set of sockets waited on for reading.
    pub(super) fn new(fds: &[RawFd]) -> Self {
        PollSet(fds.iter().map(|&fd| pollfd { fd, events: libc::POLLIN, revents: 0 }).collect())
    }

    /// Sleeps until one is readable or the time is over. `Ok(false)`: nothing to read, or a signal came.
    ///
    /// # Errors
    /// The system's error number.
    pub(super) fn wait(&mut self, timeout: Duration) -> Result<bool, i32> {
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            // Below 10^9, so it fits.
            tv_nsec: timeout.subsec_nanos() as _,
        };
        // SAFETY: the array is valid for the length given, `timeout` outlives the call, and a null mask means none.
        let n =
            unsafe { libc::ppoll(self.0.as_mut_ptr(), self.0.len() as libc::nfds_t, &raw const timeout, ptr::null()) };
        if n >= 0 {
            return Ok(n > 0);
        }
        match errno() {
            libc::EINTR => Ok(false),
            e => Err(e),
        }
    }
}

/// The MTU of an interface in bytes.
///
/// # Errors
/// The system's error number; `EINVAL` for a name that cannot be one.
pub(super) fn interface_mtu(sock: &Sock, name: &str) -> Result<u32, i32> {
    // SAFETY: all-zero is a valid ifreq: an empty name and plain integers.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(libc::EINVAL);
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: SIOCGIFMTU reads the name, which ends in a zero, and writes the integer of the union.
    let rc = unsafe { libc::ioctl(sock.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) };
    if rc < 0 {
        return Err(errno());
    }
    // SAFETY: the call succeeded, so this is the member that the kernel wrote.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| libc::EINVAL)
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn set_option(socket: &Socket, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: `value` is a live integer of the length given; setsockopt only reads it.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast::<c_void>(),
            size_of::<c_int>() as socklen_t,
        )
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Writes one control message of at most 8 bytes at `at` and returns where the next one goes.
fn put(control: &mut Control, at: usize, level: c_int, name: c_int, value: &[u8]) -> usize {
    let len = value.len() as u32;
    // SAFETY: pure arithmetic.
    let (space, whole) = unsafe { (libc::CMSG_SPACE(len) as usize, libc::CMSG_LEN(len) as usize) };
    let slot = &mut control.0[at..at + space];
    // SAFETY: all-zero is a valid cmsghdr.
    let mut header: cmsghdr = unsafe { zeroed() };
    header.cmsg_len = whole as _;
    header.cmsg_level = level;
    header.cmsg_type = name;
    // SAFETY: `slot` is at least as long as a header; it need not be aligned for an unaligned write.
    unsafe { slot.as_mut_ptr().cast::<cmsghdr>().write_unaligned(header) };
    slot[whole - value.len()..whole].copy_from_slice(value);
    at + space
}

fn read_control(msg: &msghdr, arrival: &mut Arrival) {
    // SAFETY: `msg` was filled by recvmsg and its control buffer is alive; CMSG_FIRSTHDR and CMSG_NXTHDR return only
    // headers that lie whole in that buffer, or null.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(msg) };
    while !header.is_null() {
        // SAFETY: not null, so a whole header in the buffer.
        let (h, data) = unsafe { (header.read_unaligned(), libc::CMSG_DATA(header)) };
        // SAFETY: pure arithmetic.
        #[allow(clippy::unnecessary_cast, reason = "the field is shorter with musl")]
        let len = (h.cmsg_len as usize).saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
        let int = || {
            // SAFETY: the kernel wrote at least four bytes of data behind this header.
            (len >= size_of::<c_int>()).then(|| unsafe { data.cast::<c_int>().read_unaligned() })
        };
        match (h.cmsg_level, h.cmsg_type) {
            (libc::IPPROTO_UDP, libc::UDP_GRO) => {
                if let Some(segment) = int().and_then(|v| usize::try_from(v).ok()).filter(|&v| v > 0) {
                    arrival.segment = segment;
                }
            }
            (libc::IPPROTO_IP, libc::IP_TOS) if len >= 1 => {
                // SAFETY: the kernel wrote at least one byte of data behind this header.
                arrival.tos = unsafe { *data };
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => arrival.tos = int().unwrap_or(0) as u8,
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                arrival.ttl = int().unwrap_or(0) as u8;
            }
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => arrival.dropped = int().map(|v| v as u32),
            _ => {}
        }
        // SAFETY: as for CMSG_FIRSTHDR.
        header = unsafe { libc::CMSG_NXTHDR(msg, header) };
    }
}

fn source(name: &sockaddr_storage, len: socklen_t) -> Option<SocketAddr> {
    let len = len as usize;
    match c_int::from(name.ss_family) {
        libc::AF_INET if len >= size_of::<sockaddr_in>() => {
            // SAFETY: the family says that it is a sockaddr_in, the storage is larger and aligned for every address.
            let a = unsafe { &*ptr::from_ref(name).cast::<sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(a.sin_port)).into())
        }
        libc::AF_INET6 if len >= size_of::<sockaddr_in6>() => {
            // SAFETY: as above, for sockaddr_in6.
            let a = unsafe { &*ptr::from_ref(name).cast::<sockaddr_in6>() };
            let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(a.sin6_port), 0, a.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// The socket address of `ip` and `port`, with the interface that an IPv6 link-local address needs.
pub(super) fn with_scope(ip: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match ip {
        IpAddr::V4(ip) => SocketAddrV4::new(ip, port).into(),
        IpAddr::V6(ip) if ip.is_unicast_link_local() => SocketAddrV6::new(ip, port, 0, scope).into(),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, 0).into(),
    }
}
