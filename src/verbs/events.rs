//! What a device reports on its own: ports that come and go, queue pairs that fail.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cq::set_nonblocking;
use super::device::Context;
use super::error::VerbsError;
use super::sys::*;

/// One thing that happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A port is up.
    PortActive {
        /// Which.
        port: u8,
    },
    /// A port is down.
    PortError {
        /// Which.
        port: u8,
    },
    /// A port's table of GIDs has changed: indices may have moved.
    GidChange {
        /// Which.
        port: u8,
    },
    /// The device is dead: only closing it is left.
    DeviceFatal,
    /// A queue pair failed.
    QpFatal {
        /// Which.
        qpn: u32,
    },
    /// A peer sent a queue pair a request that it may not send.
    QpAccess {
        /// Which.
        qpn: u32,
    },
    /// A peer sent a queue pair a request that makes no sense.
    QpRequest {
        /// Which.
        qpn: u32,
    },
    /// A completion queue overflowed; the queue pairs that use it fail.
    CqError,
    /// Anything else, by its number.
    Other(u32),
}

/// The one reader of a context's events.
pub struct AsyncEvents {
    context: Arc<Context>,
}

impl AsyncEvents {
    /// The reader of this context.
    ///
    /// # Errors
    /// There is one already, or its descriptor cannot be set to not block.
    pub fn new(context: &Arc<Context>) -> Result<AsyncEvents, VerbsError> {
        let unsupported =
            || VerbsError::Unsupported { device: context.name().to_owned(), what: "second reader of its events" };
        if context.events_taken.swap(true, Ordering::AcqRel) {
            return Err(unsupported());
        }
        let events = AsyncEvents { context: context.clone() };
        set_nonblocking(events.as_fd()).map_err(|errno| VerbsError::call(context.name(), "fcntl", errno))?;
        Ok(events)
    }

    /// The next event, if there is one.
    pub fn next_event(&mut self) -> Option<AsyncEvent> {
        let mut event = MaybeUninit::<ibv_async_event>::uninit();
        let f = &self.context.library.f;
        // SAFETY: an open context; the descriptor does not block; the call fills the event if it returns 0.
        let mut event = unsafe {
            if (f.get_async_event)(self.context.ptr.as_ptr(), event.as_mut_ptr()) != 0 {
                return None;
            }
            event.assume_init()
        };
        let known = self.read(&event);
        // SAFETY: taken above, acknowledged once.
        unsafe { (f.ack_async_event)(&mut event) };
        Some(known)
    }

    fn read(&self, event: &ibv_async_event) -> AsyncEvent {
        let ports = self.context.limits().ports;
        let port = || {
            // SAFETY: the type of the event says which field counts; the number may be anything.
            let n = unsafe { event.element.port_num };
            u8::try_from(n).ok().filter(|n| (1..=ports).contains(n))
        };
        // SAFETY: the type of the event says which field counts; a queue pair with an event that is not
        // acknowledged is not destroyed.
        let qpn = || unsafe { event.element.qp.as_ref() }.map(|qp| qp.qp_num);
        let known = match event.event_type {
            IBV_EVENT_PORT_ACTIVE => port().map(|port| AsyncEvent::PortActive { port }),
            IBV_EVENT_PORT_ERR => port().map(|port| AsyncEvent::PortError { port }),
            IBV_EVENT_GID_CHANGE => port().map(|port| AsyncEvent::GidChange { port }),
            IBV_EVENT_DEVICE_FATAL => Some(AsyncEvent::DeviceFatal),
            IBV_EVENT_QP_FATAL => qpn().map(|qpn| AsyncEvent::QpFatal { qpn }),
            IBV_EVENT_QP_ACCESS_ERR => qpn().map(|qpn| AsyncEvent::QpAccess { qpn }),
            IBV_EVENT_QP_REQ_ERR => qpn().map(|qpn| AsyncEvent::QpRequest { qpn }),
            IBV_EVENT_CQ_ERR => Some(AsyncEvent::CqError),
            _ => None,
        };
        known.unwrap_or(AsyncEvent::Other(event.event_type))
    }
}

impl Drop for AsyncEvents {
    fn drop(&mut self) {
        self.context.events_taken.store(false, Ordering::Release);
    }
}

impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the context.
        unsafe { BorrowedFd::borrow_raw((*self.context.ptr.as_ptr()).async_fd) }
    }
}

impl fmt::Debug for AsyncEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncEvents({})", self.context.name())
    }
}
