//! Memory that a peer may read and write by itself.

use std::fmt;

use super::buffer::Buffer;
use super::connection::Connection;
use super::error::Error;
use crate::lanes::{Control, MAX_PORTS, Window, WindowAccess};

/// Bytes of a window's token.
pub(super) const TOKEN: usize = 16 + 4 * MAX_PORTS;

/// A buffer that one peer may use until it is closed. Its bytes may change at any time, so they are only copied.
pub struct Exposed {
    buffer: Option<Buffer>,
    window: Window,
    connection: std::sync::Arc<super::connection::Peer>,
}

/// A window of the peer, as its token describes it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RemoteWindow {
    window: Window,
}

/// A window as the bytes that [`RemoteWindow::from_bytes`] takes.
pub(super) fn window_token(window: &Window) -> [u8; TOKEN] {
    let mut token = [0; TOKEN];
    token[..8].copy_from_slice(&window.addr.to_le_bytes());
    token[8..16].copy_from_slice(&window.len.to_le_bytes());
    for (slot, key) in token[16..].chunks_exact_mut(4).zip(window.keys) {
        slot.copy_from_slice(&key.to_le_bytes());
    }
    token
}

impl Connection {
    /// Lets the peer of this connection at `buffer`. Send it [`Exposed::token`].
    ///
    /// # Errors
    /// The connection is over, or no keys are left; the buffer comes back.
    pub fn expose(&self, buffer: Buffer, access: WindowAccess) -> Result<Exposed, super::Refused> {
        let peer = self.handle();
        let opened = peer.fabric.shared.lock().open_window(peer.session, buffer.mr(), buffer.len() as u64, access);
        match opened {
            Ok(window) => Ok(Exposed { buffer: Some(buffer), window, connection: peer }),
            Err(e) => Err(super::Refused { buffer, error: Error::Engine(e) }),
        }
    }
}

impl Exposed {
    /// What the peer makes a [`RemoteWindow`] of. Whoever has it can use the window; it travels only between the two.
    pub fn token(&self) -> [u8; TOKEN] {
        window_token(&self.window)
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.window.len as usize
    }

    /// True for a window of no bytes.
    pub fn is_empty(&self) -> bool {
        self.window.len == 0
    }

    /// Copies bytes out, as they are at the moment.
    ///
    /// # Errors
    /// [`Error::Memory`] outside the window.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        match &self.buffer {
            Some(buffer) => Ok(buffer.region().read_at(offset, into)?),
            None => Ok(()),
        }
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`Error::Memory`] outside the window.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        match &self.buffer {
            Some(buffer) => Ok(buffer.region().write_at(offset, from)?),
            None => Ok(()),
        }
    }

    /// Closes the window: whatever the peer still sends for it is refused, and ends the lanes that carried it. So close it when
    /// the peer is known to be done. Gives the buffer back.
    pub fn close(mut self) -> Buffer {
        self.revoke();
        match self.buffer.take() {
            Some(buffer) => buffer,
            None => unreachable!("only close and drop take the buffer"),
        }
    }

    fn revoke(&self) {
        self.connection.fabric.shared.lock().lanes_mut().close_window(&self.window);
    }
}

impl Drop for Exposed {
    fn drop(&mut self) {
        if self.buffer.is_some() {
            self.revoke();
        }
    }
}

impl RemoteWindow {
    /// The window that a peer's token describes; `None` if the length is wrong or the range overflows.
    pub fn from_bytes(token: &[u8]) -> Option<RemoteWindow> {
        let token: &[u8; TOKEN] = token.try_into().ok()?;
        let word = |at: usize| -> Option<u64> { Some(u64::from_le_bytes(token.get(at..at + 8)?.try_into().ok()?)) };
        let (addr, len) = (word(0)?, word(8)?);
        addr.checked_add(len)?;
        let mut keys = [0; MAX_PORTS];
        for (key, bytes) in keys.iter_mut().zip(token[16..].chunks_exact(4)) {
            *key = u32::from_le_bytes(bytes.try_into().ok()?);
        }
        Some(RemoteWindow { window: Window { addr, len, keys } })
    }

    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.window.len
    }

    /// True for a window of no bytes.
    pub fn is_empty(&self) -> bool {
        self.window.len == 0
    }

    pub(super) fn addr(&self) -> u64 {
        self.window.addr
    }

    pub(super) fn keys(&self) -> [u32; MAX_PORTS] {
        self.window.keys
    }
}

impl fmt::Debug for RemoteWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys are not for logs.
        write!(f, "RemoteWindow({} bytes)", self.window.len)
    }
}

impl fmt::Debug for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exposed({} bytes)", self.window.len)
    }
}
