//! Messages: the two ends of a communicator, and their requests.
//!
//! One thread at a time sends, receives and tests on an end; registration may go on beside it and touches nothing here but
//! what is shared and constant.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use planespray::{Class, Error, Failure, PeerReason, Posted, SendOptions};

use super::abi::{INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, MAX_REQUESTS, REMOTE_ERROR};
use super::context::fail;
use super::core::Core;
use super::links::{Link, Shared};
use super::memory::Registration;
use super::setup::End;

/// Messages up to this length go by the lanes of the latency class.
const SMALL: u64 = 16 << 10;
/// How often a test that finds nothing looks at what the peer's plugin says.
const LOOK_EVERY: u32 = 64;
/// How long closing waits for messages that were given up while bytes of them were in flight.
const CLOSING: Duration = Duration::from_secs(1);

/// Which end of a communicator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Send,
    Receive,
}

/// One end of a communicator: what a `sendComm` or `recvComm` points to.
pub(super) struct Comm {
    pub(super) core: Arc<Core>,
    side: Side,
    link: Arc<Link>,
    shared: Arc<Shared>,
    tickets: Box<[Ticket]>,
    requests: UnsafeCell<Requests>,
}

/// What a `request` points to; never changes once NCCL has the end.
struct Ticket {
    comm: *const Comm,
    index: usize,
}

struct Requests {
    slots: [State; MAX_REQUESTS],
    /// Bit i: slot i is free.
    free: u32,
    /// Messages begun.
    begun: u64,
    idle_tests: u32,
    failed: Option<c_int>,
}

enum State {
    Free,
    /// Under way; the registration stays alive with it.
    Under {
        posted: Posted,
        number: u64,
        registration: Arc<Registration>,
    },
    /// It cannot succeed; why.
    Lost,
}

const _: () = assert!(MAX_REQUESTS == u32::BITS as usize);

impl Comm {
    pub(super) fn new(core: Arc<Core>, side: Side, (link, shared): End) -> Box<Comm> {
        let tickets = (0..MAX_REQUESTS).map(|index| Ticket { comm: std::ptr::null(), index }).collect();
        let slots = std::array::from_fn(|_| State::Free);
        let requests = Requests { slots, free: u32::MAX, begun: 0, idle_tests: 0, failed: None };
        Box::new(Comm { core, side, link, shared, tickets, requests: UnsafeCell::new(requests) })
    }

    /// For NCCL to keep, until it is closed by `Box::from_raw`.
    pub(super) fn into_raw(self: Box<Self>) -> *mut c_void {
        let comm = Box::into_raw(self);
        // SAFETY: it was a box a moment ago, and nobody else knows it yet.
        for ticket in unsafe { &mut (*comm).tickets } {
            ticket.comm = comm;
        }
        comm.cast()
    }

    pub(super) fn side(&self) -> Side {
        self.side
    }

    /// # Safety
    /// Nobody else is in a call that uses the requests of this end.
    #[allow(clippy::mut_from_ref)]
    unsafe fn requests(&self) -> &mut Requests {
        // SAFETY: the caller is the only one.
        unsafe { &mut *self.requests.get() }
    }

    /// Begins to send or receive `len` bytes at `data`. `None` if it cannot begin now.
    ///
    /// # Errors
    /// The arguments are wrong, or the connection is over.
    ///
    /// # Safety
    /// As for [`Comm::requests`]; `handle` is a memory handle of ours that was not closed, or null.
    pub(super) unsafe fn begin(
        &self,
        data: *mut c_void,
        len: u64,
        handle: *mut c_void,
    ) -> Result<Option<*mut c_void>, c_int> {
        // SAFETY: the caller's promise.
        let requests = unsafe { self.requests() };
        if requests.free == 0 {
            self.look();
            return Ok(None);
        }
        let registration = match handle.is_null() {
            // SAFETY: the caller's promise.
            false => unsafe { Registration::from_handle(handle) },
            true if len == 0 => self.core.nothing.clone(),
            true => return Err(fail(INVALID_ARGUMENT, "a message of memory that is not registered")),
        };
        let Some(offset) = registration.offset_of(data, len) else {
            return Err(fail(INVALID_ARGUMENT, &format!("{len} bytes at {data:?} leave the registered memory")));
        };
        let number = requests.begun;
        let state = if self.shared.is_lost(number) {
            State::Lost
        } else {
            let posted = match self.side {
                Side::Send => {
                    let class = if len <= SMALL { Class::Latency } else { Class::Bulk };
                    let options = SendOptions { class, rendezvous: false, channel: self.shared.channel };
                    self.link.connection.send_from(options, registration.memory(), offset, len)
                }
                Side::Receive => {
                    self.link.connection.receive_into(self.shared.channel, registration.memory(), offset, len)
                }
            };
            match posted {
                Ok(posted) => State::Under { posted, number, registration },
                Err(error) if error.is_back_pressure() => {
                    self.look();
                    return Ok(None);
                }
                Err(error) => return Err(self.failed(requests, &error)),
            }
        };
        let index = requests.free.trailing_zeros();
        requests.free &= requests.free - 1;
        requests.begun += 1;
        requests.slots[index as usize] = state;
        Ok(Some(std::ptr::from_ref(&self.tickets[index as usize]).cast_mut().cast()))
    }

    /// Looks whether a request is over; its length if so, after which it is free.
    ///
    /// # Errors
    /// It failed, and so has the communicator.
    ///
    /// # Safety
    /// As for [`Comm::requests`] of the request's end; `request` is one of ours that is not over.
    pub(super) unsafe fn test(request: *mut c_void) -> Result<Option<u64>, c_int> {
        // SAFETY: the ticket lives as long as its end and does not change.
        let ticket = unsafe { &*request.cast_const().cast::<Ticket>() };
        let index = ticket.index;
        // SAFETY: the end is not closed, or its requests would be over.
        let comm = unsafe { &*ticket.comm };
        // SAFETY: the caller's promise.
        let requests = unsafe { comm.requests() };
        let over = match &mut requests.slots[index] {
            State::Under { posted, number, .. } => match posted.test() {
                Some(result) => Some(result),
                None => {
                    let number = *number;
                    requests.idle_tests = requests.idle_tests.wrapping_add(1);
                    if requests.idle_tests.is_multiple_of(LOOK_EVERY) {
                        comm.link.progress();
                        comm.core.tend();
                    }
                    if comm.shared.is_lost(number) {
                        requests.slots[index] = State::Lost;
                    }
                    return Ok(None);
                }
            },
            State::Lost => None,
            State::Free => return Err(fail(INTERNAL_ERROR, "a test of a request that is over")),
        };
        requests.slots[index] = State::Free;
        requests.free |= 1 << index;
        match over {
            Some(Ok(len)) => Ok(Some(len as u64)),
            Some(Err(error)) => Err(comm.failed(requests, &error)),
            None => {
                let peer = comm.link.connection.peer();
                let why = match comm.side {
                    Side::Send => format!("{peer} closed its receiving end before it took this message"),
                    Side::Receive => format!("{peer} closed its sending end before it sent this message"),
                };
                Err(requests.fail(REMOTE_ERROR, &why))
            }
        }
    }

    /// Sends out and takes in what there is.
    fn look(&self) {
        self.core.fabric.progress();
        self.link.progress();
    }

    #[cold]
    fn failed(&self, requests: &mut Requests, error: &Error) -> c_int {
        let code = match error {
            Error::Failed { failure: Failure::TooLong { .. } | Failure::Peer(PeerReason::TooLong), .. } => {
                INVALID_USAGE
            }
            Error::PeerGone { .. } | Error::Failed { .. } | Error::NotTaken { .. } => REMOTE_ERROR,
            _ => INTERNAL_ERROR,
        };
        requests.fail(code, &error.to_string())
    }

    /// Gives up what is under way on memory that NCCL wants back.
    pub(super) fn release(&self, registration: &Registration) {
        self.give_up_sends();
        registration.memory().take_back();
    }

    /// Ends our sends, those with bytes in flight as soon as these are acknowledged, if that is not too late.
    fn give_up_sends(&self) {
        if self.side == Side::Receive {
            return;
        }
        let start = Instant::now();
        while self.link.connection.cancel_sends(self.shared.channel) > 0 && start.elapsed() < CLOSING {
            self.core.fabric.progress();
        }
    }

    /// Ends this end, whatever is under way. From here on its memory is NCCL's.
    pub(super) fn close(mut self: Box<Self>) {
        let requests = self.requests.get_mut();
        let mut delivered = requests.begun;
        let mut memory = Vec::new();
        for slot in &mut requests.slots {
            match std::mem::replace(slot, State::Free) {
                State::Under { mut posted, number, registration } => {
                    if posted.take().is_none() {
                        delivered = delivered.min(number);
                        memory.push((posted, registration));
                    }
                }
                State::Free | State::Lost => {}
            }
        }
        if !memory.is_empty() {
            self.give_up_sends();
        }
        for (_, registration) in &memory {
            registration.memory().take_back();
        }
        match self.side {
            Side::Send => self.link.close_sender(&self.shared, delivered),
            Side::Receive => self.link.close_receiver(&self.shared, delivered),
        }
    }
}

impl Requests {
    /// Logs the first failure only: what follows follows from it.
    #[cold]
    fn fail(&mut self, code: c_int, why: &str) -> c_int {
        if self.failed.replace(code).is_none() {
            return fail(code, why);
        }
        code
    }
}
