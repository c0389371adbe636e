//! The socket edge as a whole: [`Udp`].

use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use super::SoftError;
use super::config::UdpConfig;
use super::counters::Counters;
use super::ports::{self, Port};
use super::udp::PollSet;
use crate::lanes::PortInfo;

/// RoCEv2 packets over UDP sockets.
pub struct Udp {
    ports: Vec<Port>,
    infos: Vec<PortInfo>,
    fds: Vec<RawFd>,
    poll: PollSet,
    counters: Counters,
}

impl Udp {
    /// Opens one receive socket per configured address.
    ///
    /// # Errors
    /// [`SoftError`]: a configuration out of range, an address that is not local, a port in use, an interface whose
    /// MTU is too small, or a failed call.
    pub fn open(cfg: &UdpConfig) -> Result<Self, SoftError> {
        ports::check(cfg)?;
        let mut opened = Vec::with_capacity(cfg.planes.len());
        let mut infos = Vec::with_capacity(cfg.planes.len());
        for index in 0..cfg.planes.len() {
            let (port, info) = ports::open(cfg, index)?;
            opened.push(port);
            infos.push(info);
        }
        let fds: Vec<RawFd> = opened.iter().map(AsRawFd::as_raw_fd).collect();
        Ok(Udp { poll: PollSet::new(&fds), ports: opened, infos, fds, counters: Counters::default() })
    }

    /// What was counted since [`Udp::open`].
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Sleeps until a packet can be received or `timeout` is over; true if one can. A signal ends it early.
    ///
    /// # Errors
    /// [`SoftError::Call`]
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, SoftError> {
        let addr = self.ports[0].addr();
        self.poll.wait(timeout).map_err(|errno| SoftError::Call { call: "ppoll", errno, addr })
    }

    /// The local ports.
    pub fn ports(&self) -> &[PortInfo] {
        &self.infos
    }

    /// The receive sockets.
    pub fn wait_fds(&self) -> &[RawFd] {
        &self.fds
    }
}
