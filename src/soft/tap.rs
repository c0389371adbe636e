//! A capture of what passes the sockets, as it was on the wire.

use std::fs::File;
use std::io::{self, BufWriter};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::SoftError;
use crate::time::Time;
use crate::wire::pcap::{Datagram, Writer};

const BUFFER: usize = 1 << 20;

/// Writes packets to a file. The first error ends the capture, not the traffic; [`Tap::flush`] reports it.
pub(super) struct Tap {
    writer: Writer<BufWriter<File>>,
    failed: Option<i32>,
}

impl Tap {
    /// The TTL of what we send, as long as nobody changes the system's default. The ICRC does not cover it.
    pub(super) const TTL: u8 = 64;

    pub(super) fn create(path: &Path) -> Result<Self, SoftError> {
        let file = File::create(path).map_err(|e| capture(&e))?;
        let writer = Writer::new(BufWriter::with_capacity(BUFFER, file)).map_err(|e| capture(&e))?;
        Ok(Tap { writer, failed: None })
    }

    /// Records one packet: its ends, TOS, TTL, IPv4 identification, and UDP payload.
    pub(super) fn packet(&mut self, src: SocketAddr, dst: SocketAddr, tos: u8, ttl: u8, ip_id: u16, payload: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        // A capture is for reading beside other programs' captures: it has the clock's time, not the engine's.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = Time::from_nanos(since.as_nanos() as u64);
        let datagram = Datagram { tos, ttl, ip_id, ..Datagram::new(time, src, dst, payload) };
        if let Err(e) = self.writer.write(&datagram) {
            self.fail(&e);
        }
    }

    pub(super) fn flush(&mut self) -> Result<(), SoftError> {
        if self.failed.is_none()
            && let Err(e) = self.writer.flush()
        {
            self.fail(&e);
        }
        self.failed.map_or(Ok(()), |errno| Err(SoftError::Capture { errno }))
    }

    #[cold]
    fn fail(&mut self, e: &io::Error) {
        self.failed = Some(e.raw_os_error().unwrap_or(0));
        tracing::warn!(error = %e, "the capture cannot be written; it ends here");
    }
}

fn capture(e: &io::Error) -> SoftError {
    SoftError::Capture { errno: e.raw_os_error().unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_ends_the_capture_and_is_reported() {
        let mut tap = Tap::create(Path::new("/dev/full")).unwrap();
        let addr = "127.0.0.1:1".parse().unwrap();
        tap.packet(addr, addr, 0, 64, 0, &[0; 64]);
        assert_eq!(tap.flush(), Err(SoftError::Capture { errno: libc::ENOSPC }));
        tap.packet(addr, addr, 0, 64, 0, &[0; 64]);
        assert_eq!(tap.flush(), Err(SoftError::Capture { errno: libc::ENOSPC }));
    }
}
