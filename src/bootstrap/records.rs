//! The encrypted channel that is left when the handshake is done.

use snow::TransportState;

use super::MAX_MESSAGE;
use super::error::BootstrapError;
use super::frame::{self, Frame};

const TAG: usize = 16;

/// Records of the caller's own bytes over the same stream: goodbye, new lanes. Each is authenticated, encrypted,
/// and taken once and in order; a repeated, changed or lost one ends the channel.
pub struct Records {
    transport: Box<TransportState>,
    frame: Frame,
    plain: Vec<u8>,
    broken: Option<BootstrapError>,
}

impl Records {
    /// Longest record in bytes.
    pub const MAX: usize = MAX_MESSAGE - TAG;

    pub(super) fn new(transport: Box<TransportState>, mut frame: Frame) -> Records {
        frame.widen(MAX_MESSAGE);
        Records { transport, frame, plain: vec![0; MAX_MESSAGE], broken: None }
    }

    /// Appends `record` to `out`, encrypted and framed.
    ///
    /// # Errors
    /// [`BootstrapError::TooLarge`] above [`Records::MAX`]; the channel goes on.
    pub fn seal(&mut self, record: &[u8], out: &mut Vec<u8>) -> Result<(), BootstrapError> {
        if record.len() > Records::MAX {
            return Err(BootstrapError::TooLarge { what: "our record", len: record.len(), limit: Records::MAX });
        }
        let start = out.len();
        out.extend_from_slice(&frame::header(record.len() + TAG));
        let body = out.len();
        out.resize(body + record.len() + TAG, 0);
        match self.transport.write_message(record, &mut out[body..]) {
            Ok(n) if n == record.len() + TAG => Ok(()),
            _ => {
                out.truncate(start);
                Err(BootstrapError::Crypto { what: "encrypting a record" })
            }
        }
    }

    /// Bytes of the stream that may be read next without running into another record; 0 if one waits for
    /// [`Records::open`].
    pub fn wanted(&self) -> usize {
        self.frame.wanted()
    }

    /// Takes bytes of the stream until a record is complete, and returns how many it took.
    ///
    /// # Errors
    /// The channel is broken, for good.
    pub fn input(&mut self, bytes: &[u8]) -> Result<usize, BootstrapError> {
        self.check()?;
        let taken = self.frame.push(bytes);
        taken.map_err(|e| self.fail(e))
    }

    /// The record that is complete, if any; then [`Records::input`] takes bytes again.
    ///
    /// # Errors
    /// The channel is broken, for good: [`BootstrapError::Tampered`] where the record does not decrypt.
    pub fn open(&mut self) -> Result<Option<&[u8]>, BootstrapError> {
        self.check()?;
        let Some(sealed) = self.frame.complete() else { return Ok(None) };
        let opened = self.transport.read_message(sealed, &mut self.plain);
        self.frame.clear();
        match opened {
            Ok(len) => Ok(self.plain.get(..len)),
            Err(_) => Err(self.fail(BootstrapError::Tampered)),
        }
    }

    fn check(&self) -> Result<(), BootstrapError> {
        match &self.broken {
            Some(e) => Err(e.clone()),
            None => Ok(()),
        }
    }

    fn fail(&mut self, e: BootstrapError) -> BootstrapError {
        self.broken = Some(e.clone());
        e
    }
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records").field("broken", &self.broken).finish_non_exhaustive()
    }
}
