//! The device: its queue pairs, keys and completion queue.

use std::net::IpAddr;

use crate::mem::Registry;
use crate::seq::Qpn;
use crate::time::Time;
use crate::wire::Packet;

use super::counters::Counters;
use super::state::{PathId, QpConfig, QpError, QpEvent, QpState, Transition};
use super::wr::{Cqe, PostError, ReceiveWr, SendWr};

/// How a device is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceConfig {
    /// Makes queue pair numbers and keys.
    pub seed: u64,
    /// Queue pairs at once, 1..=4,095.
    pub max_qps: usize,
    /// Keys at once, 1..=65,536.
    pub max_keys: usize,
}

/// What the edge knows of a packet besides its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RxMeta {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// TOS or traffic class as it arrived: the two low bits are ECN.
    pub tos: u8,
    /// TTL or hop limit as it arrived.
    pub ttl: u8,
}

/// Packets to send: `count` of them back to back in the first `len` bytes of the caller's buffer, all
/// `segment` bytes long but the last, which may be shorter. The last 4 bytes of each are room for the ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Where to.
    pub path: PathId,
    /// TOS or traffic class.
    pub tos: u8,
    /// Bytes written.
    pub len: usize,
    /// Bytes of each packet but the last.
    pub segment: usize,
    /// Packets, 1..=64.
    pub count: usize,
    /// The queue pair that sends.
    pub qpn: Qpn,
}

/// See the [module](super).
#[derive(Debug)]
pub struct Device {
    memory: Registry,
    counters: Counters,
}

impl Device {
    /// A device without queue pairs.
    pub fn new(cfg: &DeviceConfig) -> Device {
        Device { memory: Registry::new(cfg.max_keys, cfg.seed), counters: Counters::default() }
    }
    /// The key table.
    pub fn memory(&self) -> &Registry {
        &self.memory
    }
    /// The key table, to open and revoke keys.
    pub fn memory_mut(&mut self) -> &mut Registry {
        &mut self.memory
    }
    /// Makes a queue pair in RESET. Its number is random.
    ///
    /// # Errors
    /// Too many, or a depth or priority out of range.
    pub fn create_qp(&mut self, _cfg: &QpConfig) -> Result<Qpn, QpError> {
        Err(QpError::NoQps { limit: 0 })
    }
    /// Changes its state.
    ///
    /// # Errors
    /// No such queue pair, a state that does not lead there, or a parameter out of range.
    pub fn modify_qp(&mut self, _qpn: Qpn, _to: Transition) -> Result<(), QpError> {
        Err(QpError::NoQp)
    }
    /// Ends it, and forgets its completions that were not polled.
    ///
    /// # Errors
    /// No such queue pair.
    pub fn destroy_qp(&mut self, _qpn: Qpn) -> Result<(), QpError> {
        Err(QpError::NoQp)
    }
    /// Its state.
    pub fn state(&self, _qpn: Qpn) -> Option<QpState> {
        None
    }
    /// True if nothing that was started is unfinished (SQD).
    pub fn is_drained(&self, _qpn: Qpn) -> bool {
        true
    }
    /// Where this device takes feedback; goes into the peer's [`super::Extension`].
    pub fn feedback_qpn(&self) -> Qpn {
        Qpn::new(0x1000)
    }
    /// Queues a work request.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_send(&mut self, _qpn: Qpn, _wr: &SendWr) -> Result<(), PostError> {
        Err(PostError::NoQp)
    }
    /// Queues a receive.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_receive(&mut self, _qpn: Qpn, _wr: &ReceiveWr) -> Result<(), PostError> {
        Err(PostError::NoQp)
    }
    /// Takes in a packet whose ICRC the edge has checked.
    pub fn handle(&mut self, _now: Time, _from: &RxMeta, _packet: &Packet<'_>) {}
    /// Writes packets of one queue pair into `out`: at least one if any is due, at most 64, and not more than
    /// `limit` and 65,000 bytes unless the first alone is longer. `out` holds at least one packet of the MTU (4,160 bytes).
    pub fn poll_transmit(&mut self, _now: Time, _limit: usize, _out: &mut [u8]) -> Option<Transmit> {
        None
    }
    /// True if [`Device::poll_transmit`] may have something.
    pub fn pending_transmit(&self) -> bool {
        false
    }
    /// Takes completions, oldest first. Returns how many.
    pub fn poll_cq(&mut self, _out: &mut [Cqe]) -> usize {
        0
    }
    /// The next queue pair that moved itself to ERR.
    pub fn poll_event(&mut self) -> Option<QpEvent> {
        None
    }
    /// When [`Device::handle_timeout`] must be called. Earlier or later calls do no harm.
    pub fn next_timeout(&self) -> Option<Time> {
        None
    }
    /// Runs what is due.
    pub fn handle_timeout(&mut self, _now: Time) {}
    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
