//! What the embedded engine needs from whatever moves packets: a UDP socket or a simulated fabric.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use crate::lanes::{LaneError, PortId, PortInfo};
use crate::roce::{PathId, RxMeta};
use crate::time::Time;
use crate::wire::Packet;

/// Packets in and out. Opening and closing may allocate and make any system call; [`PacketIo::send`],
/// [`PacketIo::receive`] and [`PacketIo::drops`] may not allocate, lock or read a clock in steady state.
pub trait PacketIo {
    /// Opens a way from a local port to a peer's receive address. Equal `entropy` on one port means an equal
    /// UDP source port, so two paths of equal entropy to one peer take the same way through the fabric.
    ///
    /// # Errors
    /// No such port, a destination of another address family, no free source port, or a failed system call.
    fn open_path(&mut self, port: PortId, entropy: u16, dest: SocketAddr) -> Result<PathId, LaneError>;

    /// Closes a path. Its number may be given out again. Unknown paths are ignored.
    fn close_path(&mut self, path: PathId);

    /// Sends packets that stand back to back in `bytes`, each `segment` bytes long but the last, which may be
    /// shorter. The last four bytes of each are room for the ICRC, which this call fills in.
    ///
    /// `Ok(true)`: handed to the network. `Ok(false)`: it would block; call again later with the same bytes.
    ///
    /// # Errors
    /// An unknown path, lengths out of range, or a failed system call. The packets are then lost, as if a switch
    /// had dropped them; whether the lane goes on is the caller's decision.
    fn send(&mut self, path: PathId, tos: u8, bytes: &mut [u8], segment: usize) -> Result<bool, LaneError>;

    /// Takes in what has arrived, up to a bound of about 256 KiB, and gives every packet whose ICRC is right to
    /// `sink`. Returns how many those were; 0 when nothing had arrived, or nothing but rubbish.
    fn receive(&mut self, now: Time, sink: &mut impl FnMut(&RxMeta, &Packet<'_>)) -> usize;

    /// The local ports; `PortId` is the index.
    fn ports(&self) -> &[PortInfo];

    /// Packets that a port's full receive buffer dropped since the last report, port by port; `None` when there
    /// is nothing more to report.
    fn drops(&mut self) -> Option<(PortId, u32)>;

    /// The next port that lost its carrier or its address since the last report (false), or has both back (true); `None` when
    /// there is nothing more to report, or nobody tells.
    fn port_change(&mut self) -> Option<(PortId, bool)> {
        None
    }

    /// File descriptors that become readable when something arrives. Empty where there are none (simulation).
    fn wait_fds(&self) -> Vec<BorrowedFd<'_>>;

    /// When something will arrive without any file descriptor becoming readable: a simulated arrival, or a packet
    /// that fault injection holds back.
    fn next_event(&self) -> Option<Time> {
        None
    }
}
