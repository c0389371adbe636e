//! Where packets leave: source-port sockets, and paths from them to peers.

use std::net::{IpAddr, SocketAddr};

use socket2::SockAddr;

use super::SoftError;
use super::ports::Port;
use super::udp::{Pmtu, Sock, with_scope};
use crate::lanes::PortId;
use crate::roce::PathId;
use crate::wire::Flow;

/// Source ports are taken from the dynamic range, as NICs do: its upper two bits are ones.
const FIRST: u16 = 0xc000;
const RANGE: u16 = 0x4000;
/// Odd and near RANGE / golden ratio: consecutive entropies differ in high and low bits, and all ports are visited.
const STRIDE: u16 = 10_125;
/// How far the next try is from a port that is in use; odd.
const RETRY_STRIDE: u16 = 0x1f3;
const TRIES: u16 = 64;
const SEND_BUFFER: usize = 1 << 20;

/// A bound, unconnected socket that only sends.
pub(super) struct Source {
    pub(super) sock: Sock,
    pub(super) port: PortId,
}

/// A way from a source port to a peer's receive address.
pub(super) struct Path {
    /// Index of its [`Source`].
    pub(super) source: u32,
    pub(super) to: SockAddr,
    pub(super) dest: SocketAddr,
    pub(super) flow: Flow,
    /// A burst sent packet by packet that stopped on the way.
    pub(super) stopped: Option<Stopped>,
}

/// Where a burst stopped, and by what to know it again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Stopped {
    pub(super) packets: usize,
    pub(super) len: usize,
    pub(super) bth: [u8; 12],
}

/// All sources and paths.
pub(super) struct Paths {
    sources: Vec<Source>,
    /// For each port and each slot of entropy, the index of its source.
    slots: Vec<Vec<Option<u32>>>,
    table: Vec<Option<Path>>,
    free: Vec<u32>,
}

impl Paths {
    pub(super) fn new(ports: usize, source_ports: u16) -> Self {
        let slots = vec![vec![None; usize::from(source_ports)]; ports];
        Paths { sources: Vec::new(), slots, table: Vec::new(), free: Vec::new() }
    }

    /// Opens a path, and its source port if it is the first to use it.
    ///
    /// # Errors
    /// [`SoftError::Config`] if `dest` is of another family or not an address, [`SoftError::NoSourcePort`], or a
    /// failed call.
    pub(super) fn open(
        &mut self,
        id: PortId,
        port: &Port,
        entropy: u16,
        dest: SocketAddr,
    ) -> Result<PathId, SoftError> {
        let source = self.source(id, port, entropy)?;
        let dest = with_scope(dest.ip(), dest.port(), port.scope);
        let src = self.sources[source as usize].sock.local();
        if src.is_ipv4() != dest.is_ipv4() || dest.ip().is_unspecified() || dest.port() == 0 {
            return Err(SoftError::Config { what: "destination address: another family, unspecified or without port" });
        }
        let path = Path { source, to: dest.into(), dest, flow: Flow::new(src, dest), stopped: None };
        if let Some(id) = self.free.pop() {
            self.table[id as usize] = Some(path);
            return Ok(PathId(id));
        }
        let id = u32::try_from(self.table.len()).map_err(|_| SoftError::Config { what: "too many paths" })?;
        self.table.push(Some(path));
        // Closing must not allocate.
        self.free.reserve(self.table.len() - self.free.len());
        Ok(PathId(id))
    }

    pub(super) fn close(&mut self, path: PathId) {
        if let Some(slot) = self.table.get_mut(path.0 as usize)
            && slot.take().is_some()
        {
            self.free.push(path.0);
        }
    }

    /// A path with its source.
    pub(super) fn get(&mut self, path: PathId) -> Option<(&mut Path, &Source)> {
        let path = self.table.get_mut(path.0 as usize)?.as_mut()?;
        let source = self.sources.get(path.source as usize)?;
        Some((path, source))
    }

    /// The source that `entropy` chooses, opened if it is not yet.
    pub(super) fn source(&mut self, id: PortId, port: &Port, entropy: u16) -> Result<u32, SoftError> {
        let index = usize::from(id.0);
        let slots = self.slots.get(index).ok_or(SoftError::Config { what: "no such port" })?;
        let slot = usize::from(entropy) % slots.len();
        if let Some(source) = slots[slot] {
            return Ok(source);
        }
        let sock = bind_source(port.addr().ip(), port.scope, slot as u16)?;
        let source = u32::try_from(self.sources.len()).map_err(|_| SoftError::Config { what: "too many sources" })?;
        self.sources.push(Source { sock, port: id });
        self.slots[index][slot] = Some(source);
        Ok(source)
    }

    pub(super) fn sources(&self) -> &[Source] {
        &self.sources
    }
}

/// The port that entropy slot `slot` gets on try `again`.
fn candidate(slot: u16, again: u16) -> u16 {
    FIRST + (slot.wrapping_mul(STRIDE).wrapping_add(again.wrapping_mul(RETRY_STRIDE)) % RANGE)
}

fn bind_source(ip: IpAddr, scope: u32, slot: u16) -> Result<Sock, SoftError> {
    for again in 0..TRIES {
        match bind_sender(with_scope(ip, candidate(slot, again), scope), Pmtu::Probe) {
            Err(SoftError::InUse { .. }) => {}
            other => return other,
        }
    }
    Err(SoftError::NoSourcePort { addr: ip, tries: TRIES })
}

/// Binds a socket that only sends: whatever is addressed to it is dropped before it takes memory.
pub(super) fn bind_sender(addr: SocketAddr, pmtu: Pmtu) -> Result<Sock, SoftError> {
    let sock = Sock::bind(addr, pmtu)?;
    // BPF_RET | BPF_K: keep nothing.
    sock.attach_filter(&[(0x06, 0, 0, 0)])?;
    sock.set_send_buffer(SEND_BUFFER)?;
    Ok(sock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ports_are_spread_and_distinct() {
        let all: HashSet<u16> = (0..1024).map(|slot| candidate(slot, 0)).collect();
        assert_eq!(all.len(), 1024);
        assert!(all.iter().all(|&p| p >= FIRST));
        // 16 lanes reach all sixteen sixteenths of the range but two at most.
        let upper: HashSet<u16> = (0..16).map(|slot| (candidate(slot, 0) - FIRST) / (RANGE / 16)).collect();
        assert!(upper.len() >= 14, "{upper:?}");
        let tries: HashSet<u16> = (0..TRIES).map(|again| candidate(7, again)).collect();
        assert_eq!(tries.len(), usize::from(TRIES));
    }

    #[test]
    fn a_port_in_use_moves_on() {
        let ip: IpAddr = "127.0.0.77".parse().unwrap();
        let first = bind_source(ip, 0, 5).unwrap();
        let second = bind_source(ip, 0, 5).unwrap();
        assert_eq!(first.local().port(), candidate(5, 0));
        assert_eq!(second.local().port(), candidate(5, 1));
    }
}
