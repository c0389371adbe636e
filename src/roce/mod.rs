//! RoCEv2 queue pairs as a state machine: packets, work requests and the time go in, packets and completions come out.
//!
//! A [`Device`] owns its queue pairs, its key table and one completion queue. It knows no sockets, clocks or threads.
//! After any input ([`Device::post_send`], [`Device::handle`], [`Device::handle_timeout`]) call
//! [`Device::poll_transmit`] until it gives `None`, then [`Device::poll_cq`] until it gives 0; call
//! [`Device::handle_timeout`] when [`Device::next_timeout`] has passed.
//!
//! Nothing that a peer sends makes it allocate, panic, loop without bound, or touch a byte that a live key does not cover.
#![forbid(unsafe_code)]

mod acks;
mod burst;
mod counters;
mod device;
mod feedback;
mod gather;
mod list;
mod qp;
mod replies;
mod requester;
mod responder;
mod ring;
mod rnr;
mod segment;
mod state;
mod timer;
mod traffic;
mod ud;
mod wr;

pub use counters::Counters;
pub use device::{Device, DeviceConfig, RxMeta, Transmit};
pub use state::{Extension, PathId, QpConfig, QpError, QpEvent, QpKind, QpState, Rtr, Rts, Transition};
pub use wr::{Cqe, CqeKind, MAX_MESSAGE, MAX_SGES, PostError, ReceiveWr, Remote, SendOp, SendWr, Sge, Status, UdDest};
