//! Work requests and their completions.

use crate::mem::Key;
use crate::seq::Qpn;
use crate::time::Span;

use super::state::PathId;

/// Most pieces of local memory in one request.
pub const MAX_SGES: usize = 4;

/// Longest message, in bytes.
pub const MAX_MESSAGE: u32 = 1 << 30;

/// A piece of registered local memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sge {
    /// Address of its first byte, as the key names it.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Local key.
    pub lkey: Key,
}

impl Sge {
    /// A piece of no bytes.
    pub const EMPTY: Sge = Sge { addr: 0, len: 0, lkey: Key(0) };
}

/// What a work request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// SEND into the peer's oldest posted receive.
    Send,
    /// The same, with immediate data.
    SendImm(u32),
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE that consumes a receive and delivers immediate data.
    WriteImm(u32),
    /// RDMA READ.
    Read,
    /// Add to 8 bytes at the peer; what they were lands in the local 8 bytes, in native byte order.
    FetchAdd(u64),
    /// Store `swap` in 8 bytes at the peer if they equal `compare`; what they were lands in the local 8 bytes.
    CompareSwap {
        /// Value to compare with.
        compare: u64,
        /// Value to store.
        swap: u64,
    },
}

/// Memory at the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remote {
    /// Address.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
}

/// Where a datagram goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdDest {
    /// Socket and destination.
    pub path: PathId,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// Its queue key.
    pub qkey: u32,
}

/// A work request. The bytes it names must stay as they are until it completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendWr {
    /// Comes back in the completion.
    pub id: u64,
    /// What to do.
    pub op: SendOp,
    /// Local memory; the first `sge_count` count.
    pub sges: [Sge; MAX_SGES],
    /// 0..=4.
    pub sge_count: u8,
    /// Memory at the peer: WRITE, READ and atomics.
    pub remote: Remote,
    /// UD only.
    pub ud: Option<UdDest>,
    /// Has a completion even if all goes well.
    pub signaled: bool,
    /// The peer should raise a solicited event.
    pub solicited: bool,
    /// Starts only when all READs and atomics before it are done.
    pub fence: bool,
}

impl Default for SendWr {
    fn default() -> Self {
        SendWr {
            id: 0,
            op: SendOp::Send,
            sges: [Sge::EMPTY; MAX_SGES],
            sge_count: 0,
            remote: Remote::default(),
            ud: None,
            signaled: true,
            solicited: false,
            fence: false,
        }
    }
}

impl SendWr {
    /// A signaled request over one piece of local memory.
    pub fn new(id: u64, op: SendOp, local: Sge, remote: Remote) -> Self {
        let mut wr = SendWr { id, op, sge_count: 1, remote, ..SendWr::default() };
        wr.sges[0] = local;
        wr
    }
}

/// A receive: where a SEND goes. Without pieces it serves empty SENDs and WRITEs with immediate data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceiveWr {
    /// Comes back in the completion.
    pub id: u64,
    /// Local memory; the first `sge_count` count. UD places 40 bytes of network header first.
    pub sges: [Sge; MAX_SGES],
    /// 0..=4.
    pub sge_count: u8,
}

impl Default for ReceiveWr {
    fn default() -> Self {
        ReceiveWr { id: 0, sges: [Sge::EMPTY; MAX_SGES], sge_count: 0 }
    }
}

impl ReceiveWr {
    /// A receive into one piece of local memory.
    pub fn new(id: u64, local: Sge) -> Self {
        let mut wr = ReceiveWr { id, sge_count: 1, ..ReceiveWr::default() };
        wr.sges[0] = local;
        wr
    }
}

/// Why a request was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// The queue is full: poll the completion queue, then post again.
    #[error("the queue is full")]
    Full,
    /// The state does not allow it.
    #[error("the queue pair's state does not allow it")]
    BadState,
    /// Malformed: too many pieces, too long, or an operation that the transport does not have.
    #[error("malformed work request")]
    Invalid,
    /// No such queue pair.
    #[error("no such queue pair")]
    NoQp,
}

/// What completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CqeKind {
    /// A SEND of ours.
    Send,
    /// A WRITE of ours, with or without immediate data.
    Write,
    /// A READ of ours: the bytes are here.
    Read,
    /// A fetch and add of ours: the old value is here.
    FetchAdd,
    /// A compare and swap of ours: the old value is here.
    CompareSwap,
    /// A SEND of the peer took a receive.
    Receive,
    /// A WRITE with immediate data of the peer took a receive.
    ReceiveWriteImm,
}

/// How it went, in verbs' terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Status {
    /// Done.
    Success,
    /// The queue pair was in ERR before this was done.
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
    /// The peer broke the protocol.
    LocalOperation,
}

/// A completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cqe {
    /// The queue pair.
    pub qpn: Qpn,
    /// The id of the request or receive.
    pub id: u64,
    /// What it was.
    pub what: CqeKind,
    /// How it went.
    pub status: Status,
    /// Bytes. For a receive taken by a WRITE with immediate data from a planespray peer, those of its last packet.
    pub len: u32,
    /// Immediate data that came with it.
    pub imm: Option<u32>,
    /// UD receives: the sender's queue pair.
    pub src_qpn: Option<Qpn>,
    /// Requests: from the first packet sent to the acknowledgement; `None` if a loss may have held it up.
    pub rtt: Option<Span>,
    /// Requests: packets acknowledged and congestion marks learned since the queue pair's last request completed.
    ///
    /// Exact counts of CE from a planespray peer. From any other, notification packets and BECN bits, and `None` while
    /// there are none, for not every peer sends them.
    pub marks: Option<(u32, u32)>,
    /// Requests: packets of the queue pair sent again since its last request completed.
    pub retransmits: u32,
}
