//! Which ports have lost their carrier or their address: the kernel's news of links and addresses, by rtnetlink. Anyone may
//! listen to it.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket};

use super::ports::interface_of;
use crate::time::{Span, Time};

/// How often news is asked for while packets are polled for.
const EVERY: Span = Span::from_millis(1);
/// Bytes of news that one call takes; the kernel sends no more than 16 KiB at once.
const ROOM: usize = 32 << 10;
/// Calls in one look.
const CALLS: usize = 16;
/// A link that has these can carry packets. `IFF_RUNNING` says the same up to a second later when a link comes up.
const UP: i32 = libc::IFF_UP | libc::IFF_LOWER_UP;

/// Listens for what becomes of the ports' links.
pub(super) struct Links {
    socket: OwnedFd,
    ports: Vec<Link>,
    next: Time,
    buffer: Box<[u8]>,
}

/// A port's link, as last heard.
#[derive(Clone, Copy, Debug)]
struct Link {
    addr: IpAddr,
    /// Index of its interface; 0 if it belongs to none.
    index: u32,
    carrier: bool,
    address: bool,
    /// What was reported.
    up: bool,
}

impl Links {
    /// Begins to listen for the links of these addresses; `None`, with a word in the log, where the system does not allow it.
    pub(super) fn open(addrs: impl Iterator<Item = IpAddr>) -> Option<Links> {
        let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let opened = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)
            .and_then(|socket| bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups as u32)).map(|()| socket));
        let socket = match opened {
            Ok(socket) => socket,
            Err(errno) => {
                tracing::info!(%errno, "no news of links from the kernel; a lost carrier shows by silence only");
                return None;
            }
        };
        let link = |addr| Link { addr, index: 0, carrier: true, address: true, up: true };
        let ports = addrs.map(link).collect();
        let mut links = Links { socket, ports, next: Time::ZERO, buffer: vec![0; ROOM].into_boxed_slice() };
        // What happens from here on is heard, so what is read now is not too old.
        links.read_all();
        for port in &mut links.ports {
            port.up = port.carrier && port.address;
        }
        Some(links)
    }

    /// Takes in what is new, if it is time.
    pub(super) fn look(&mut self, now: Time) {
        if now < self.next {
            return;
        }
        self.next = now + EVERY;
        for _ in 0..CALLS {
            match recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::empty()) {
                Ok(len) => {
                    let news = std::mem::take(&mut self.buffer);
                    take_news(&mut self.ports, news.get(..len).unwrap_or_default());
                    self.buffer = news;
                }
                Err(nix::Error::ENOBUFS) => self.read_all(),
                Err(_) => return,
            }
        }
    }

    /// The next port whose state has changed: its index, and whether it can carry packets now.
    pub(super) fn poll(&mut self) -> Option<(usize, bool)> {
        let index = self.ports.iter().position(|p| p.up != (p.carrier && p.address))?;
        let port = &mut self.ports[index];
        port.up = !port.up;
        Some((index, port.up))
    }

    /// Reads the state of all links: some news was lost, or none was heard yet.
    #[cold]
    fn read_all(&mut self) {
        let Ok(all) = getifaddrs() else { return };
        let all: Vec<_> = all.collect();
        for port in &mut self.ports {
            let Some(name) = interface_of(port.addr) else {
                // It may never have had an interface by name.
                port.address = port.index == 0;
                continue;
            };
            let listed = |i: &&nix::ifaddrs::InterfaceAddress| i.interface_name == name;
            let flags = all.iter().find(listed).map_or(InterfaceFlags::empty(), |i| i.flags);
            port.index = nix::net::if_::if_nametoindex(name.as_str()).unwrap_or(0);
            port.carrier = flags.bits() & UP == UP;
            port.address = true;
        }
    }
}

impl AsFd for Links {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Goes through messages of rtnetlink; what is malformed ends them.
fn take_news(ports: &mut [Link], mut news: &[u8]) {
    while let Some((head, _)) = news.split_at_checked(16) {
        let len = word(head, 0) as usize;
        let Some(message) = news.get(16..len) else { return };
        match u16::from_ne_bytes([head[4], head[5]]) {
            // Those of a family of their own are about bridges.
            kind @ (libc::RTM_NEWLINK | libc::RTM_DELLINK) if message.len() >= 16 && message[0] == 0 => {
                let (index, flags) = (word(message, 4), word(message, 8));
                let carrier = kind == libc::RTM_NEWLINK && flags & UP as u32 == UP as u32;
                ports.iter_mut().filter(|p| p.index == index).for_each(|p| p.carrier = carrier);
            }
            kind @ (libc::RTM_NEWADDR | libc::RTM_DELADDR) if message.len() >= 8 => {
                let index = word(message, 4);
                let addr = address(message[0], &message[8..]);
                for port in ports.iter_mut().filter(|p| addr == Some(p.addr)) {
                    if kind == libc::RTM_NEWADDR {
                        // On another interface than before, its link is taken to be up.
                        port.carrier |= port.index != index;
                        (port.index, port.address) = (index, true);
                    } else if port.index == index {
                        port.address = false;
                    }
                }
            }
            _ => {}
        }
        news = news.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

/// The local address among the attributes of an address message; without one of its own kind it is the address itself.
fn address(family: u8, mut attributes: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    while let Some(head) = attributes.get(..4) {
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let body = attributes.get(4..len)?;
        let addr = match (i32::from(family), body.len()) {
            (libc::AF_INET, 4) => <[u8; 4]>::try_from(body).ok().map(IpAddr::from),
            (libc::AF_INET6, 16) => <[u8; 16]>::try_from(body).ok().map(IpAddr::from),
            _ => None,
        };
        match u16::from_ne_bytes([head[2], head[3]]) {
            libc::IFA_LOCAL if addr.is_some() => return addr,
            libc::IFA_ADDRESS => found = found.or(addr),
            _ => {}
        }
        attributes = attributes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OURS: [u8; 4] = [10, 1, 0, 1];

    fn port() -> Link {
        Link { addr: OURS.into(), index: 7, carrier: true, address: true, up: true }
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&(16 + body.len() as u32).to_ne_bytes());
        out.extend_from_slice(&kind.to_ne_bytes());
        out.extend_from_slice(&[0; 10]);
        out.extend_from_slice(body);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    }

    fn link(kind: u16, index: u32, flags: i32) -> Vec<u8> {
        let mut body = vec![0; 16];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        body[8..12].copy_from_slice(&flags.to_ne_bytes());
        message(kind, &body)
    }

    fn addr(kind: u16, index: u32, ip: [u8; 4]) -> Vec<u8> {
        let mut body = vec![libc::AF_INET as u8, 24, 0, 0, 0, 0, 0, 0];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        for (attribute, ip) in [(libc::IFA_ADDRESS, [10, 1, 0, 255]), (libc::IFA_LOCAL, ip)] {
            body.extend_from_slice(&8u16.to_ne_bytes());
            body.extend_from_slice(&attribute.to_ne_bytes());
            body.extend_from_slice(&ip);
        }
        message(kind, &body)
    }

    fn after(news: &[Vec<u8>]) -> (bool, bool) {
        let mut ports = [port()];
        take_news(&mut ports, &news.concat());
        (ports[0].carrier, ports[0].address)
    }

    #[test]
    fn links_and_addresses_come_and_go() {
        let up = libc::IFF_UP | libc::IFF_LOWER_UP;
        assert_eq!(after(&[link(libc::RTM_NEWLINK, 7, libc::IFF_UP)]), (false, true));
        assert_eq!(after(&[link(libc::RTM_NEWLINK, 8, 0)]), (true, true), "another's link");
        assert_eq!(after(&[link(libc::RTM_NEWLINK, 7, 0), link(libc::RTM_NEWLINK, 7, up)]), (true, true));
        assert_eq!(after(&[link(libc::RTM_DELLINK, 7, up)]), (false, true));
        assert_eq!(after(&[addr(libc::RTM_DELADDR, 7, OURS)]), (true, false));
        assert_eq!(after(&[addr(libc::RTM_DELADDR, 7, [10, 1, 0, 2])]), (true, true), "another address");
        let moved = [link(libc::RTM_DELLINK, 7, 0), addr(libc::RTM_DELADDR, 7, OURS), addr(libc::RTM_NEWADDR, 9, OURS)];
        assert_eq!(after(&moved), (true, true));
        assert_eq!(after(&[moved.concat(), link(libc::RTM_NEWLINK, 9, 0)]), (false, true));
    }

    #[test]
    fn each_change_is_reported_once() {
        let mut links = Links::open(["127.0.0.1".parse().unwrap()].into_iter()).expect("anyone may listen");
        assert!(links.ports[0].index > 0, "loopback has an interface");
        links.look(Time::ZERO);
        let was = links.ports[0].up;
        links.ports[0].carrier = !was;
        links.ports[0].address = true;
        assert_eq!(links.poll(), Some((0, !was)));
        assert_eq!(links.poll(), None);
    }

    proptest! {
        #[test]
        fn rubbish_is_harmless(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 16u16..22) {
            if bytes.len() > 6 {
                let len = bytes.len() as u32;
                bytes[..4].copy_from_slice(&len.to_ne_bytes());
                bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
            }
            take_news(&mut [port()], &bytes);
        }
    }
}
