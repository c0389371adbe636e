//! What moves a fabric's bytes: one of the backends, chosen once when the fabric opens. A call costs one comparison.

use std::os::fd::BorrowedFd;

use crate::embedded::Embedded;
use crate::lanes::{
    Caps, Completion, Control, Domain, Full, LaneAddress, LaneError, LaneEvent, LaneId, LaneSpec, Lanes, MrId,
    PortInfo, Receive, Window, WindowAccess, WorkRequest,
};
use crate::mem::Region;
use crate::soft::Udp;
use crate::time::Time;
use crate::verbs::VerbsLanes;

/// The engine that a fabric runs.
pub(super) enum Backend {
    /// Our own queue pairs over UDP sockets.
    Embedded(Box<Embedded<Udp>>),
    /// Queue pairs of devices, by libibverbs.
    Verbs(Box<VerbsLanes>),
}

/// The same call to whichever it is.
macro_rules! each {
    ($backend:expr, $lanes:ident => $call:expr) => {
        match $backend {
            Backend::Embedded($lanes) => $call,
            Backend::Verbs($lanes) => $call,
        }
    };
}

impl Backend {
    /// The UDP sockets, of the engine that has some.
    pub(super) fn udp(&self) -> Option<&Udp> {
        match self {
            Backend::Embedded(lanes) => Some(lanes.io()),
            Backend::Verbs(_) => None,
        }
    }

    /// The same, for their controls.
    pub(super) fn udp_mut(&mut self) -> Option<&mut Udp> {
        match self {
            Backend::Embedded(lanes) => Some(lanes.io_mut()),
            Backend::Verbs(_) => None,
        }
    }
}

impl Control for Backend {
    fn caps(&self) -> Caps {
        each!(self, lanes => lanes.caps())
    }

    fn ports(&self) -> &[PortInfo] {
        each!(self, lanes => lanes.ports())
    }

    fn register(&mut self, region: &Region) -> Result<MrId, LaneError> {
        each!(self, lanes => lanes.register(region))
    }

    fn deregister(&mut self, mr: MrId) -> bool {
        each!(self, lanes => lanes.deregister(mr))
    }

    fn open_window(
        &mut self,
        domain: Domain,
        mr: MrId,
        offset: u64,
        len: u64,
        access: WindowAccess,
    ) -> Result<Window, LaneError> {
        each!(self, lanes => lanes.open_window(domain, mr, offset, len, access))
    }

    fn close_window(&mut self, window: &Window) -> bool {
        each!(self, lanes => lanes.close_window(window))
    }

    fn create(&mut self, spec: &LaneSpec) -> Result<LaneId, LaneError> {
        each!(self, lanes => lanes.create(spec))
    }

    fn address(&self, lane: LaneId) -> Result<LaneAddress, LaneError> {
        each!(self, lanes => lanes.address(lane))
    }

    fn connect(&mut self, lane: LaneId, peer: &LaneAddress) -> Result<(), LaneError> {
        each!(self, lanes => lanes.connect(lane, peer))
    }

    fn lane_mtu(&self, lane: LaneId) -> Option<u32> {
        each!(self, lanes => lanes.lane_mtu(lane))
    }

    fn fence(&mut self, lane: LaneId) -> Result<(), LaneError> {
        each!(self, lanes => lanes.fence(lane))
    }

    fn destroy(&mut self, lane: LaneId) -> Result<(), LaneError> {
        each!(self, lanes => lanes.destroy(lane))
    }

    fn poll_event(&mut self) -> Option<LaneEvent> {
        each!(self, lanes => lanes.poll_event())
    }
}

impl Lanes for Backend {
    #[inline]
    fn post(&mut self, lane: LaneId, wr: &WorkRequest) -> Result<(), Full> {
        each!(self, lanes => lanes.post(lane, wr))
    }

    #[inline]
    fn post_receive(&mut self, lane: LaneId, receive: &Receive) -> Result<(), Full> {
        each!(self, lanes => lanes.post_receive(lane, receive))
    }

    #[inline]
    fn doorbell(&mut self, now: Time) {
        each!(self, lanes => lanes.doorbell(now));
    }

    #[inline]
    fn poll(&mut self, now: Time, out: &mut [Completion]) -> usize {
        each!(self, lanes => lanes.poll(now, out))
    }

    #[inline]
    fn next_timeout(&self) -> Option<Time> {
        each!(self, lanes => lanes.next_timeout())
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        each!(self, lanes => lanes.wait_fds())
    }
}
