//! The stream after the handshake: it tells of the peer's death, and carries the little that comes later.

use std::io::{ErrorKind, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use super::Outbox;
use crate::bootstrap::{BootstrapError, Records};

/// Most bytes that may wait to be sent.
const QUEUE: usize = 256 * 1024;

/// What the witness sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sight {
    /// The connection stands.
    Alive,
    /// The peer's end was closed (FIN): the process ended or said goodbye.
    Closed,
    /// The peer's host refused the connection (RST), or sent what does not decrypt: the process is gone.
    Reset,
    /// The connection died without a word from the peer. That says nothing about the peer.
    Lost,
}

/// The connection of a finished handshake. Data never depends on it.
#[derive(Debug)]
pub struct Witness {
    stream: TcpStream,
    addr: SocketAddr,
    records: Records,
    output: Outbox,
    sight: Sight,
    /// Nothing follows what waits.
    leaving: bool,
}

impl Witness {
    pub(super) fn new(stream: TcpStream, addr: SocketAddr, records: Records, output: Outbox) -> Witness {
        // So that the host of a vanished peer gets to answer with a RST when it is back.
        let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(5));
        let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive.with_retries(6));
        Witness { stream, addr, records, output, sight: Sight::Alive, leaving: false }
    }

    /// Where the peer's end is.
    pub fn peer_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Moves bytes both ways and says how the connection is. A record that waits for [`Witness::receive`] comes before
    /// the end of the stream: until it is taken the witness is alive.
    pub fn poll(&mut self) -> Sight {
        self.flush();
        let mut buf = [0; 4096];
        while self.sight == Sight::Alive {
            let want = self.records.wanted().min(buf.len());
            if want == 0 {
                break;
            }
            match self.stream.read(&mut buf[..want]) {
                Ok(0) => self.sight = Sight::Closed,
                Ok(n) => {
                    if self.records.input(&buf[..n]).is_err() {
                        self.sight = Sight::Reset;
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => self.sight = sight_of(&e),
            }
        }
        self.sight
    }

    /// The next record of the peer, if one is here.
    ///
    /// # Errors
    /// The channel is broken; the witness is [`Sight::Reset`] then.
    pub fn receive(&mut self) -> Result<Option<&[u8]>, BootstrapError> {
        self.poll();
        match self.records.open() {
            Ok(record) => Ok(record),
            Err(e) => {
                self.sight = Sight::Reset;
                Err(e)
            }
        }
    }

    /// Sends a record, at most [`Records::MAX`] bytes; what the socket does not take now goes with the next poll.
    ///
    /// # Errors
    /// Too long, or too much waits already.
    pub fn send(&mut self, record: &[u8]) -> Result<(), BootstrapError> {
        let len = self.output.bytes.len() + record.len();
        if len > QUEUE {
            return Err(BootstrapError::TooLarge { what: "our queue of records", len, limit: QUEUE });
        }
        self.records.seal(record, &mut self.output.bytes)?;
        self.flush();
        Ok(())
    }

    /// Tells the peer that nothing more comes (FIN), after what waits; the peer's end is still looked at.
    pub fn leave(&mut self) {
        self.leaving = true;
        self.flush();
    }

    /// True if output waits for the socket to take it.
    pub fn wants_write(&self) -> bool {
        !self.output.bytes.is_empty() && self.sight == Sight::Alive
    }

    fn flush(&mut self) {
        if let Err(e) = self.output.flush(&mut self.stream) {
            self.output.bytes.clear();
            // A closed stream may hold the peer's last words: then reading finds its end.
            if e.kind() != ErrorKind::BrokenPipe && self.sight == Sight::Alive {
                self.sight = sight_of(&e);
            }
        }
        if self.leaving && self.output.bytes.is_empty() {
            self.leaving = false;
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }
}

impl AsFd for Witness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl AsRawFd for Witness {
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

fn sight_of(e: &std::io::Error) -> Sight {
    match e.kind() {
        ErrorKind::ConnectionReset => Sight::Reset,
        _ => Sight::Lost,
    }
}
