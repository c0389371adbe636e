//! The seam: what the spraying machine needs from whatever moves bytes.
//!
//! A backend offers *lanes*: queue pairs towards one peer, each on one local port of one plane with an
//! entropy of its own. Above the seam nobody knows packets; below it nobody knows messages.
//! Nothing here reads a clock.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use crate::class::{Class, Dscp};
use crate::mem::{MemError, Region};
use crate::time::{Span, Time};

/// Most ports (planes x rails) that one backend drives.
pub const MAX_PORTS: usize = 8;

/// A local port of the backend: an index below [`MAX_PORTS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PortId(pub u8);

/// One port and what is known of it.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// Which NIC of the node.
    pub rail: u16,
    /// Which fabric.
    pub plane: u16,
    /// Its address.
    pub addr: IpAddr,
    /// UDP port at which its queue pairs receive.
    pub udp_port: u16,
    /// RoCE MTU in bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// Bytes that may be under way towards this port at once, over all peers, headers and buffer
    /// overhead counted as [`charge`] does; `None` where the hardware takes care of it.
    pub receive_budget: Option<u64>,
    /// Name to print.
    pub name: String,
}

/// What a message of `len` bytes in packets of `mtu` takes from a receiver's budget.
///
/// 768 bytes is what the kernel charges a socket for the smallest packet besides its data. A packet that is sent alone
/// lies in one piece of memory, whose size is a power of two: one of 4,096 bytes takes 8,448.
pub const fn charge(len: u64, mtu: u32) -> u64 {
    let mtu = mtu as u64;
    if len <= mtu { (len + 448).next_power_of_two() + 256 } else { len + len.div_ceil(mtu) * 768 }
}

/// A trust domain: windows opened for one peer are closed to lanes of another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Domain(pub u32);

/// A lane of this backend: an index with a generation, so that a number is not mistaken for its successor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LaneId(pub u32);

impl LaneId {
    /// The lane's slot, 0..65,536, for use as an index.
    pub const fn index(self) -> usize {
        (self.0 & 0xffff) as usize
    }
}

/// How a lane is to be made.
#[derive(Clone, Copy, Debug)]
pub struct LaneSpec {
    /// On which local port.
    pub port: PortId,
    /// Whose windows the lane's peer may use.
    pub domain: Domain,
    /// For which class of messages.
    pub class: Class,
    /// What its packets carry.
    pub dscp: Dscp,
    /// Work requests that may be outstanding.
    pub send_depth: u16,
    /// Receives that may be posted.
    pub receive_depth: u16,
    /// Chooses among the port's source ports (or flow labels): lanes of different entropy take different paths.
    pub entropy: u16,
}

/// What the other end needs to know of a lane; travels only inside the authenticated bootstrap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct LaneAddress {
    /// Queue pair number.
    pub qpn: u32,
    /// First PSN that this end will send.
    pub psn: u32,
    /// Address of the port.
    pub addr: IpAddr,
    /// UDP port at which it receives.
    pub udp_port: u16,
    /// Largest RoCE MTU of this end; a lane uses the smaller of both.
    pub mtu: u32,
    /// Queue pair that takes this end's feedback datagrams; 0 if the end is not planespray.
    pub feedback_qpn: u32,
    /// This end's half of the secret that feedback datagrams carry.
    pub feedback_secret: u32,
}

/// Memory registered with a backend.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MrId(pub u32);

/// A window that a peer may use: its address and one key for each local port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Address of its first byte.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The key at each port; all the same where the backend has one key table.
    pub keys: [u32; MAX_PORTS],
}

/// What a window allows the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowAccess {
    /// WRITE.
    pub write: bool,
    /// READ.
    pub read: bool,
    /// Atomics.
    pub atomic: bool,
}

/// Bytes of registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Local {
    /// Which registration.
    pub mr: MrId,
    /// First byte in it.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

/// Bytes at the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remote {
    /// Address, as the peer's window gave it.
    pub addr: u64,
    /// Key for the peer's port that the lane ends at.
    pub rkey: u32,
}

/// What a work request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// SEND into the peer's oldest posted receive.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE that consumes a receive and delivers 32 bits.
    WriteImm(u32),
    /// RDMA READ into the local bytes.
    Read,
    /// Add to 8 bytes at the peer; what they were comes into the local bytes.
    FetchAdd(u64),
    /// Compare 8 bytes at the peer with the first value and store the second if equal.
    CompareSwap(u64, u64),
}

/// One operation on a lane. Copied when posted; the bytes it names are not, and must stay until it completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkRequest {
    /// Comes back in the completion.
    pub id: u64,
    /// What to do.
    pub op: Op,
    /// The local bytes.
    pub local: Local,
    /// The peer's bytes; ignored for SEND.
    pub remote: Remote,
}

/// A receive: where a SEND goes. `local.len` 0 serves only immediates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receive {
    /// Comes back in the completion.
    pub id: u64,
    /// The bytes, or `None` for a receive without buffer.
    pub local: Option<Local>,
}

/// The queue is full: poll, then post again. Not an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// What completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completed {
    /// A work request of ours: acknowledged by the peer's end.
    Request,
    /// A SEND of the peer filled this many bytes of a posted receive.
    Receive {
        /// Bytes placed.
        len: u32,
    },
    /// A WRITE with immediate of the peer landed, and everything before it on the lane.
    Immediate {
        /// Its 32 bits.
        imm: u32,
    },
}

/// How it went, in verbs' terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Status {
    /// Done.
    Success,
    /// The lane was moved to ERR before this was done.
    Flushed,
    /// No acknowledgement after all retries.
    RetryExceeded,
    /// The peer had no receive posted after all RNR retries.
    RnrRetryExceeded,
    /// The peer refused key, bounds or rights.
    RemoteAccess,
    /// The peer found the request malformed.
    RemoteInvalidRequest,
    /// The peer could not carry it out.
    RemoteOperation,
    /// Our own key, bounds or rights were wrong.
    LocalProtection,
    /// A SEND longer than its receive.
    LocalLength,
    /// Anything else the backend reports.
    Other,
}

/// Congestion marks seen over some packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Marks {
    /// Packets of this lane that reached the peer since the last report.
    pub packets: u32,
    /// How many of them carried CE.
    pub ce: u32,
}

/// One completion. What the backend does not know is `None`: no number is invented.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The lane.
    pub lane: LaneId,
    /// The id of the request or receive.
    pub id: u64,
    /// What it was.
    pub what: Completed,
    /// How it went.
    pub status: Status,
    /// From the request's first packet on the wire to its acknowledgement.
    pub rtt: Option<Span>,
    /// Marks reported since the lane's last completion.
    pub marks: Option<Marks>,
    /// Packets of the lane sent again since its last completion.
    pub retransmits: u32,
}

/// Something that happened to a port or lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LaneEvent {
    /// The lane went to ERR; everything posted on it completes with an error.
    LaneError {
        /// Which.
        lane: LaneId,
        /// Why.
        status: Status,
    },
    /// A port lost its carrier.
    PortDown(PortId),
    /// A port has a carrier again.
    PortUp(PortId),
    /// The port's receive buffer overflowed: this many packets were dropped by our own host.
    ReceiveDrops {
        /// Which port.
        port: PortId,
        /// Packets since the last such event.
        packets: u32,
    },
}

/// What a device refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceRefusal {
    /// The limit on locked memory is too low.
    LockedMemory,
    /// All queue pairs that this process allows itself on the port are in use.
    QueuePairBudget,
    /// The device has no more of what was asked for.
    Exhausted,
    /// The port cannot reach the peer's address, or has lost its own.
    Unreachable,
    /// Anything else.
    Other,
}

/// Why a control call failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaneError {
    /// Memory or keys.
    #[error(transparent)]
    Memory(#[from] MemError),
    /// The lane is gone or was never there.
    #[error("no such lane")]
    NoLane,
    /// All lanes are in use.
    #[error("all {limit} lanes are in use")]
    NoLanes {
        /// The backend's limit.
        limit: usize,
    },
    /// A parameter is out of range.
    #[error("{what} is out of range")]
    Invalid {
        /// Which.
        what: &'static str,
    },
    /// A system call failed.
    #[error("{call} failed: {}", std::io::Error::from_raw_os_error(*errno))]
    System {
        /// Which call.
        call: &'static str,
        /// Its error.
        errno: i32,
    },
    /// A device refused; the text says which, which call, and what to do.
    #[error("{message}")]
    Device {
        /// What it refused.
        refusal: DeviceRefusal,
        /// The whole story.
        message: String,
    },
}

/// What a backend can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caps {
    /// Name for logs and JSON: `embedded`, `verbs:mlx5`, `sim`.
    pub name: &'static str,
    /// Marks are known per packet and lane.
    pub ecn_per_lane: bool,
    /// One key serves all ports.
    pub shared_keys: bool,
    /// Most bytes that travel as one burst of one lane for little more than one packet costs (15 MTU on UDP).
    pub burst: u32,
}

/// The control half: opens, connects and ends lanes, and registers memory. May allocate and make system calls.
pub trait Control {
    /// What this backend can do.
    fn caps(&self) -> Caps;
    /// Its ports; `PortId` is the index.
    fn ports(&self) -> &[PortInfo];
    /// Registers a region for local use.
    ///
    /// # Errors
    /// No keys left.
    fn register(&mut self, region: &Region) -> Result<MrId, LaneError>;
    /// Ends a registration; every window of it must be revoked first. Returns false if it was not live.
    fn deregister(&mut self, mr: MrId) -> bool;
    /// Lets the peers of `domain` at part of a registration. Hot path on backends with `shared_keys`: no allocation in steady state.
    ///
    /// # Errors
    /// Out of bounds, or no keys left.
    fn open_window(
        &mut self,
        domain: Domain,
        mr: MrId,
        offset: u64,
        len: u64,
        access: WindowAccess,
    ) -> Result<Window, LaneError>;
    /// Closes a window: whatever arrives for it from now on is refused.
    fn close_window(&mut self, window: &Window) -> bool;
    /// Makes a lane in INIT.
    ///
    /// # Errors
    /// Bad port, depth or too many lanes.
    fn create(&mut self, spec: &LaneSpec) -> Result<LaneId, LaneError>;
    /// What the peer needs to know of it.
    ///
    /// # Errors
    /// No such lane.
    fn address(&self, lane: LaneId) -> Result<LaneAddress, LaneError>;
    /// Connects it to the peer's lane: RTR, then RTS.
    ///
    /// # Errors
    /// No such lane, or an address that does not fit the port.
    fn connect(&mut self, lane: LaneId, peer: &LaneAddress) -> Result<(), LaneError>;
    /// The RoCE MTU that both ends settled on; `None` before [`Control::connect`].
    fn lane_mtu(&self, lane: LaneId) -> Option<u32>;
    /// Moves it to ERR: nothing more is sent or placed, and everything posted completes as `Flushed`.
    ///
    /// # Errors
    /// No such lane.
    fn fence(&mut self, lane: LaneId) -> Result<(), LaneError>;
    /// Destroys it; its remaining completions are dropped.
    ///
    /// # Errors
    /// No such lane.
    fn destroy(&mut self, lane: LaneId) -> Result<(), LaneError>;
    /// The next event, if any.
    fn poll_event(&mut self) -> Option<LaneEvent>;
}

/// The data half: no allocation, lock, clock read or formatting behind any of these in steady state.
pub trait Lanes: Control {
    /// Queues a work request.
    ///
    /// # Errors
    /// [`Full`] if the lane's send queue is full, or the lane is in ERR or gone (then an event has said so).
    fn post(&mut self, lane: LaneId, wr: &WorkRequest) -> Result<(), Full>;
    /// Queues a receive.
    ///
    /// # Errors
    /// [`Full`], as for [`Lanes::post`].
    fn post_receive(&mut self, lane: LaneId, receive: &Receive) -> Result<(), Full>;
    /// Sends what was posted, as far as the path below takes it. Once per batch.
    fn doorbell(&mut self, now: Time);
    /// Takes in what arrived, runs timers that are due, and fills `out` from its front. Returns how many.
    fn poll(&mut self, now: Time, out: &mut [Completion]) -> usize;
    /// When [`Lanes::poll`] must be called again even if nothing arrives.
    fn next_timeout(&self) -> Option<Time>;
    /// File descriptors that become readable when something arrives, for sleeping on. The same ones for the
    /// backend's whole life.
    fn wait_fds(&self) -> Vec<BorrowedFd<'_>>;
}
