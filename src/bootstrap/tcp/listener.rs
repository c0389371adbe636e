//! Takes in strangers, and gives those that turn out to be peers.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};

use socket2::{Domain, Protocol, Socket, Type};

use super::Peering;
use crate::bootstrap::{Auth, BootstrapError, Handshake, Hello, Role, Step, Waiting};
use crate::time::{Span, Time};

/// Connections accepted in one poll.
const ACCEPTS: usize = 16;

/// How long the system is left alone after it refused to accept.
const ACCEPT_PAUSE: Span = Span::from_millis(100);

/// How much a listener spends on strangers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenerConfig {
    /// Connections that have not authenticated yet, at least 1. When all are taken, the oldest past `grace` is dropped
    /// for a new one.
    pub half_open: usize,
    /// How long a stranger has in any case.
    pub grace: Span,
    /// From the accept to both ends ready.
    pub timeout: Span,
}

impl Default for ListenerConfig {
    fn default() -> ListenerConfig {
        ListenerConfig { half_open: 64, grace: Span::from_millis(250), timeout: Span::from_secs(10) }
    }
}

/// What a listener reports.
#[derive(Debug)]
pub enum Incoming {
    /// An authenticated peer at [`Step::PeerHello`]; the caller goes on with it.
    Peer(Box<Peering>),
    /// A stranger that was dropped.
    Rejected {
        /// Where it came from.
        addr: SocketAddr,
        /// Why.
        error: BootstrapError,
    },
}

/// Accepts connections and advances their handshakes until they are authenticated.
///
/// A stranger costs a slot, 16 + 50 bytes and the key exchange; the number of slots is fixed.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    auth: Auth,
    hello: Hello,
    config: ListenerConfig,
    /// Oldest first.
    strangers: Vec<Stranger>,
    accept_after: Time,
}

#[derive(Debug)]
struct Stranger {
    since: Time,
    peering: Peering,
}

impl Listener {
    /// Listens at `addr`; port 0 lets the system choose.
    ///
    /// # Errors
    /// [`BootstrapError::Invalid`] if `hello` is out of range, [`BootstrapError::Io`] if the address cannot be had.
    pub fn bind(
        addr: SocketAddr,
        auth: Auth,
        hello: Hello,
        config: ListenerConfig,
    ) -> Result<Listener, BootstrapError> {
        if let Some(what) = hello.fault() {
            return Err(BootstrapError::Invalid { what });
        }
        if config.half_open == 0 {
            return Err(BootstrapError::Invalid { what: "a listener without room for strangers" });
        }
        let open = || -> std::io::Result<TcpListener> {
            let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
            socket.set_reuse_address(true)?;
            socket.set_nonblocking(true)?;
            socket.bind(&addr.into())?;
            socket.listen(1024)?;
            Ok(socket.into())
        };
        let socket = open().map_err(|e| BootstrapError::Io {
            call: "listen",
            errno: e.raw_os_error().unwrap_or(0),
            waiting_for: Waiting::Connect,
        })?;
        let strangers = Vec::with_capacity(config.half_open);
        Ok(Listener { socket, auth, hello, config, strangers, accept_after: Time::ZERO })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system does not say.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Connections that have not authenticated yet.
    pub fn strangers(&self) -> usize {
        self.strangers.len()
    }

    /// What later peers are told.
    pub fn hello_mut(&mut self) -> &mut Hello {
        &mut self.hello
    }

    /// Accepts, advances every stranger, and returns the first thing to report; call again until `None`.
    pub fn poll(&mut self, now: Time) -> Option<Incoming> {
        let dropped = self.accept(now);
        if dropped.is_some() {
            return dropped;
        }
        for i in 0..self.strangers.len() {
            let stranger = &mut self.strangers[i];
            match stranger.peering.poll(now) {
                Ok(Step::NeedIo) => {}
                Ok(_) => return Some(Incoming::Peer(Box::new(self.strangers.remove(i).peering))),
                Err(error) => {
                    let addr = self.strangers.remove(i).peering.peer_addr();
                    return Some(Incoming::Rejected { addr, error });
                }
            }
        }
        None
    }

    fn accept(&mut self, now: Time) -> Option<Incoming> {
        if now < self.accept_after {
            return None;
        }
        for _ in 0..ACCEPTS {
            let full = self.strangers.len() >= self.config.half_open;
            if full && self.evict_at().is_none_or(|t| now < t) {
                return None;
            }
            let (stream, addr) = match self.socket.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return None,
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => continue,
                Err(_) => {
                    // Out of descriptors or memory: the backlog waits, and nobody spins.
                    self.accept_after = now + ACCEPT_PAUSE;
                    return None;
                }
            };
            let deadline = now + self.config.timeout;
            let handshake = Handshake::new(Role::Responder, self.auth.clone(), self.hello.clone(), deadline);
            let (Ok(handshake), Ok(())) = (handshake, stream.set_nonblocking(true)) else { continue };
            let evicted = full.then(|| self.strangers.remove(0));
            self.strangers.push(Stranger { since: now, peering: Peering::new(stream, addr, handshake) });
            if let Some(Stranger { peering, .. }) = evicted {
                let error = BootstrapError::Timeout { waiting_for: peering.handshake().waiting_for() };
                return Some(Incoming::Rejected { addr: peering.peer_addr(), error });
            }
        }
        None
    }

    /// When the oldest stranger may be dropped for a new one.
    fn evict_at(&self) -> Option<Time> {
        self.strangers.first().map(|s| s.since + self.config.grace)
    }

    /// When to poll although nothing arrived.
    pub fn poll_timeout(&self) -> Option<Time> {
        let first = self.strangers.iter().filter_map(|s| s.peering.poll_timeout()).min();
        let full = self.strangers.len() >= self.config.half_open;
        let evict = if full { self.evict_at() } else { None };
        let paused = (self.accept_after > Time::ZERO && !full).then_some(self.accept_after);
        [first, evict, paused].into_iter().flatten().min()
    }

    /// Appends the descriptors to wait for until they are readable, or [`Listener::poll_timeout`].
    ///
    /// What a stranger is told fits any socket buffer, so nothing waits for writing.
    pub fn fds<'a>(&'a self, out: &mut Vec<BorrowedFd<'a>>) {
        // While no stranger can be taken in, a waiting one must not keep the caller awake.
        if self.strangers.len() < self.config.half_open {
            out.push(self.socket.as_fd());
        }
        out.extend(self.strangers.iter().map(|s| s.peering.as_fd()));
    }
}
