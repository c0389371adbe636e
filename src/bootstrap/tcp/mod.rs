//! Handshakes over nonblocking TCP. No threads: poll functions, and file descriptors to sleep on.
//!
//! A [`Connector`] or a [`Listener`] yields a [`Peering`]; when that is done, the stream stays as a [`Witness`].

mod listener;
#[cfg(test)]
mod tests;
mod witness;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use socket2::{Domain, Protocol, Socket, Type};

pub use listener::{Incoming, Listener, ListenerConfig};
pub use witness::{Sight, Witness};

use super::{Auth, BootstrapError, Established, Handshake, Hello, PairReport, Refusal, Role, Step, Waiting};
use crate::lanes::LaneAddress;
use crate::time::{Span, Time};

/// How long a connector waits before it tries a refused connection again.
const RETRY: Span = Span::from_millis(50);

/// A connection on the way up. A peer that does not listen yet is tried again until the deadline.
#[derive(Debug)]
pub struct Connector {
    addr: SocketAddr,
    /// Taken when connected.
    end: Option<(Auth, Hello)>,
    deadline: Time,
    attempt: Option<Socket>,
    again: Time,
    last: Option<i32>,
}

impl Connector {
    /// Starts to connect to `addr`; everything up to [`Step::Done`] must be through at `deadline`.
    ///
    /// # Errors
    /// [`BootstrapError::Invalid`] if `hello` is out of range.
    pub fn new(addr: SocketAddr, auth: Auth, hello: Hello, deadline: Time) -> Result<Connector, BootstrapError> {
        if let Some(what) = hello.fault() {
            return Err(BootstrapError::Invalid { what });
        }
        let again = Time::ZERO;
        Ok(Connector { addr, end: Some((auth, hello)), deadline, attempt: None, again, last: None })
    }

    /// Goes on; the peering once TCP is connected, and `None` before and ever after.
    ///
    /// # Errors
    /// A failure that trying again does not mend, or the deadline.
    pub fn poll(&mut self, now: Time) -> Result<Option<Peering>, BootstrapError> {
        let waiting_for = Waiting::Connect;
        if self.end.is_none() {
            return Ok(None);
        }
        if now >= self.deadline {
            return Err(match self.last {
                Some(errno) => BootstrapError::Io { call: "connect", errno, waiting_for },
                None => BootstrapError::Timeout { waiting_for },
            });
        }
        match self.advance(now) {
            Ok(None) => Ok(None),
            Ok(Some(socket)) => {
                let Some((auth, hello)) = self.end.take() else { return Ok(None) };
                let handshake = Handshake::new(Role::Initiator, auth, hello, self.deadline)?;
                Ok(Some(Peering::new(socket.into(), self.addr, handshake)))
            }
            Err(e) => {
                self.attempt = None;
                let errno = e.raw_os_error().unwrap_or(0);
                // Not up yet, restarting, or a route that is on its way.
                let mends =
                    [libc::ECONNREFUSED, libc::ECONNRESET, libc::EHOSTUNREACH, libc::ENETUNREACH, libc::ETIMEDOUT];
                if !mends.contains(&errno) {
                    return Err(BootstrapError::Io { call: "connect", errno, waiting_for });
                }
                self.last = Some(errno);
                self.again = now + RETRY;
                Ok(None)
            }
        }
    }

    fn advance(&mut self, now: Time) -> std::io::Result<Option<Socket>> {
        let Some(socket) = &self.attempt else {
            if now < self.again {
                return Ok(None);
            }
            let socket = Socket::new(Domain::for_address(self.addr), Type::STREAM, Some(Protocol::TCP))?;
            socket.set_nonblocking(true)?;
            return match socket.connect(&self.addr.into()) {
                Ok(()) => Ok(Some(socket)),
                Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => {
                    self.attempt = Some(socket);
                    Ok(None)
                }
                Err(e) => Err(e),
            };
        };
        if let Some(e) = socket.take_error()? {
            return Err(e);
        }
        match socket.peer_addr() {
            Ok(_) => Ok(self.attempt.take()),
            Err(e) if e.kind() == ErrorKind::NotConnected => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// When to poll although nothing happened.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.end.as_ref()?;
        Some(if self.attempt.is_none() { self.again.min(self.deadline) } else { self.deadline })
    }

    /// What becomes writable when the connection is up; `None` between two attempts.
    pub fn fd(&self) -> Option<RawFd> {
        self.attempt.as_ref().map(AsRawFd::as_raw_fd)
    }
}

/// A handshake and its stream.
#[derive(Debug)]
pub struct Peering {
    stream: TcpStream,
    addr: SocketAddr,
    handshake: Handshake,
    output: Outbox,
}

impl Peering {
    fn new(stream: TcpStream, addr: SocketAddr, handshake: Handshake) -> Peering {
        // Without it each turn of the exchange may wait for a delayed acknowledgement; harmless if refused.
        let _ = stream.set_nodelay(true);
        Peering { stream, addr, handshake, output: Outbox::default() }
    }

    /// Where the peer's end of the stream is.
    pub fn peer_addr(&self) -> SocketAddr {
        self.addr
    }

    /// The machine, for its plan and what both ends said.
    pub fn handshake(&self) -> &Handshake {
        &self.handshake
    }

    /// Moves bytes both ways and says what to do next. Call again after each answer but [`Step::NeedIo`]; then
    /// when the descriptor is readable, or writable if [`Peering::wants_write`], or at [`Peering::poll_timeout`].
    ///
    /// # Errors
    /// Any; final. Drop the peering then.
    pub fn poll(&mut self, now: Time) -> Result<Step<'_>, BootstrapError> {
        let moved = self.pump(now);
        if let Err(e) = moved {
            // What the peer should know goes out as far as the socket takes it.
            self.handshake.take_output(&mut self.output.bytes);
            let _ = self.output.flush(&mut self.stream);
            return Err(e);
        }
        self.handshake.poll(now)
    }

    fn pump(&mut self, now: Time) -> Result<(), BootstrapError> {
        let mut buf = [0; 4096];
        loop {
            self.flush()?;
            let want = self.handshake.wanted().min(buf.len());
            if want == 0 {
                return Ok(());
            }
            match self.stream.read(&mut buf[..want]) {
                Ok(0) => return Err(self.handshake.closed()),
                Ok(n) => {
                    self.handshake.input(now, &buf[..n])?;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(self.handshake.io_failed("read", e.raw_os_error().unwrap_or(0))),
            }
        }
    }

    fn flush(&mut self) -> Result<(), BootstrapError> {
        self.handshake.take_output(&mut self.output.bytes);
        match self.output.flush(&mut self.stream) {
            Ok(()) => Ok(()),
            // The peer is gone, but it may have said why: reading tells.
            Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => Ok(()),
            Err(e) => Err(self.handshake.io_failed("write", e.raw_os_error().unwrap_or(0))),
        }
    }

    /// As [`Handshake::provide_probes`].
    ///
    /// # Errors
    /// As there.
    pub fn provide_probes(&mut self, ports: Vec<u16>) -> Result<(), BootstrapError> {
        self.handshake.provide_probes(ports)
    }

    /// As [`Handshake::report`].
    ///
    /// # Errors
    /// As there.
    pub fn report(&mut self, report: Vec<PairReport>) -> Result<(), BootstrapError> {
        let said = self.handshake.report(report);
        if said.is_err() {
            // The peer draws the same conclusion from it.
            self.handshake.take_output(&mut self.output.bytes);
            let _ = self.output.flush(&mut self.stream);
        }
        said
    }

    /// As [`Handshake::provide_lanes`].
    ///
    /// # Errors
    /// As there.
    pub fn provide_lanes(&mut self, lanes: Vec<LaneAddress>) -> Result<(), BootstrapError> {
        self.handshake.provide_lanes(lanes)
    }

    /// As [`Handshake::ready`].
    ///
    /// # Errors
    /// As there.
    pub fn ready(&mut self) -> Result<(), BootstrapError> {
        self.handshake.ready()
    }

    /// Tells the peer no, and ends.
    pub fn refuse(mut self, reason: Refusal) {
        self.handshake.refuse(reason);
        let _ = self.flush();
        // A socket that is closed with bytes unread sends a RST, which may overtake the reason.
        let _ = self.stream.shutdown(Shutdown::Write);
        let mut rest = [0; 4096];
        for _ in 0..16 {
            if !matches!(self.stream.read(&mut rest), Ok(1..)) {
                break;
            }
        }
    }

    /// At [`Step::Done`]: what both ends agreed on, and the stream as a witness. Before: the peering itself.
    ///
    /// # Errors
    /// Not at [`Step::Done`].
    pub fn finish(mut self) -> Result<(Established, Witness), Box<Peering>> {
        self.handshake.take_output(&mut self.output.bytes);
        match self.handshake.finish() {
            Ok((established, records)) => Ok((established, Witness::new(self.stream, self.addr, records, self.output))),
            Err(handshake) => Err(Box::new(Peering { handshake: *handshake, ..self })),
        }
    }

    /// When to poll although nothing arrived.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.handshake.poll_timeout()
    }

    /// True if output waits for the socket to take it.
    pub fn wants_write(&self) -> bool {
        !self.output.bytes.is_empty()
    }
}

impl AsFd for Peering {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl AsRawFd for Peering {
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

/// Bytes that the socket did not take yet.
#[derive(Debug, Default)]
struct Outbox {
    bytes: Vec<u8>,
}

impl Outbox {
    /// Writes what the socket takes now.
    fn flush(&mut self, stream: &mut TcpStream) -> std::io::Result<()> {
        let mut sent = 0;
        let result = loop {
            if sent == self.bytes.len() {
                break Ok(());
            }
            match stream.write(&self.bytes[sent..]) {
                Ok(n) => sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => break Err(e),
            }
        };
        self.bytes.drain(..sent);
        result
    }
}
