//! Connections that come up while their owner does something else: nothing here blocks.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use super::connection::Connection;
use super::error::{Error, at_address};
use super::establish::{Rising, hello};
use super::fabric::{Fabric, Listener};
use crate::bootstrap::tcp::Connector;
use crate::bootstrap::{Auth, JobKey};
use crate::time::Span;

/// A connection on the way up. Dropping it gives up.
pub struct Connecting {
    fabric: Fabric,
    addr: SocketAddr,
    connector: Connector,
    rising: Option<Rising>,
}

impl Fabric {
    /// Begins to connect to a peer that listens at `addr`, and has until `timeout` to succeed. With `key` the peer must know
    /// that key, without it the fabric's own.
    ///
    /// # Errors
    /// As [`Fabric::connect`], as far as it is known at once.
    pub fn begin_connect(
        &self,
        addr: SocketAddr,
        key: Option<&JobKey>,
        timeout: Duration,
    ) -> Result<Connecting, Error> {
        let auth = key.map_or_else(|| self.inner.auth.clone(), |key| Auth::Key(key.clone()));
        let deadline = self.inner.shared.now() + Span::from(timeout);
        let connector = Connector::new(addr, auth, hello(&self.inner), deadline)?;
        Ok(Connecting { fabric: self.clone(), addr, connector, rising: None })
    }

    /// A random number that names this fabric to its peers; see [`Connection::peer_id`].
    pub fn id(&self) -> u64 {
        self.inner.nonce
    }
}

impl Connecting {
    /// Goes on as far as it can without waiting; the connection once it is up. Call it again until then.
    ///
    /// # Errors
    /// As [`Fabric::connect`]; final.
    pub fn poll(&mut self) -> Result<Option<Connection>, Error> {
        let inner = &self.fabric.inner;
        if self.rising.is_none() {
            let peering = self.connector.poll(inner.shared.now()).map_err(|e| at_address(self.addr, e))?;
            self.rising = peering.map(Rising::new);
        }
        let Some(rising) = &mut self.rising else { return Ok(None) };
        // After an error nothing is left of it that dropping would have to undo.
        match rising.advance(inner) {
            Ok(false) => Ok(None),
            Ok(true) => self.rising.take().map(|rising| rising.finish(inner)).transpose(),
            Err(e) => {
                self.rising = None;
                Err(e)
            }
        }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        if let Some(mut rising) = self.rising.take() {
            rising.undo(&self.fabric.inner);
        }
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").field("to", &self.addr).finish_non_exhaustive()
    }
}

impl Listener {
    /// The next peer that has completed its handshake, if there is one. Handshakes go on only while somebody calls this or
    /// [`Listener::accept`].
    ///
    /// # Errors
    /// What a peer did wrong; the listener goes on in any case.
    pub fn poll_accept(&self) -> Result<Option<Connection>, Error> {
        self.waiting.lock().poll(&self.fabric)
    }
}
