//! Messages in the byte stream: two bytes of length, little-endian, then that many bytes.

use super::MAX_MESSAGE;
use super::error::BootstrapError;

const HEADER: usize = 2;

/// Gathers one message at a time in a buffer of fixed capacity.
#[derive(Debug)]
pub(super) struct Frame {
    buf: Vec<u8>,
    /// Longest message taken now.
    limit: usize,
}

impl Frame {
    /// Takes messages of at most `limit` bytes; that much is allocated now and never more until
    /// [`Frame::widen`].
    pub(super) fn new(limit: usize) -> Frame {
        let limit = limit.min(MAX_MESSAGE);
        Frame { buf: Vec::with_capacity(HEADER + limit), limit }
    }

    /// Takes messages of at most `limit` bytes from now on.
    pub(super) fn widen(&mut self, limit: usize) {
        self.limit = limit.min(MAX_MESSAGE);
        self.buf.reserve_exact((HEADER + self.limit).saturating_sub(self.buf.len()));
    }

    /// The length that the header claims, once it is here.
    fn claimed(&self) -> Option<usize> {
        self.buf.first_chunk::<HEADER>().map(|h| usize::from(u16::from_le_bytes(*h)))
    }

    /// Bytes that may come next without running into another message; 0 if one is complete.
    pub(super) fn wanted(&self) -> usize {
        let whole = HEADER + self.claimed().unwrap_or(0);
        whole.saturating_sub(self.buf.len())
    }

    /// Takes bytes until a message is complete, and returns how many.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<usize, BootstrapError> {
        let mut taken = 0;
        while taken < bytes.len() {
            let n = self.wanted().min(bytes.len() - taken);
            if n == 0 {
                break;
            }
            self.buf.extend_from_slice(&bytes[taken..taken + n]);
            taken += n;
            match self.claimed() {
                Some(len) if len > self.limit => {
                    return Err(BootstrapError::TooLarge { what: "a message", len, limit: self.limit });
                }
                _ => {}
            }
        }
        Ok(taken)
    }

    /// The message, if it is complete.
    pub(super) fn complete(&self) -> Option<&[u8]> {
        let len = self.claimed()?;
        self.buf.get(HEADER..HEADER + len)
    }

    /// Makes room for the next message.
    pub(super) fn clear(&mut self) {
        self.buf.clear();
    }
}

/// The header of a message of `len` bytes.
pub(super) fn header(len: usize) -> [u8; HEADER] {
    (len as u16).to_le_bytes()
}
