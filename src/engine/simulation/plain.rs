//! A backend whose windows stay open: what verbs' plain memory regions are. A late packet then changes memory, and is seen.

use std::os::fd::BorrowedFd;

use crate::lanes::{
    Caps, Completion, Control, Domain, Full, LaneAddress, LaneError, LaneEvent, LaneId, LaneSpec, Lanes, MrId, PortInfo,
    Receive, Window, WindowAccess, WorkRequest,
};
use crate::mem::Region;
use crate::time::Time;

/// `L`, which closes no window if `open`.
pub(super) struct Plain<L> {
    pub(super) lanes: L,
    pub(super) open: bool,
}

impl<L: Control> Control for Plain<L> {
    fn caps(&self) -> Caps {
        self.lanes.caps()
    }
    fn ports(&self) -> &[PortInfo] {
        self.lanes.ports()
    }
    fn register(&mut self, region: &Region) -> Result<MrId, LaneError> {
        self.lanes.register(region)
    }
    fn deregister(&mut self, mr: MrId) -> bool {
        self.lanes.deregister(mr)
    }
    fn open_window(
        &mut self,
        domain: Domain,
        mr: MrId,
        offset: u64,
        len: u64,
        access: WindowAccess,
    ) -> Result<Window, LaneError> {
        self.lanes.open_window(domain, mr, offset, len, access)
    }
    fn close_window(&mut self, window: &Window) -> bool {
        self.open || self.lanes.close_window(window)
    }
    fn create(&mut self, spec: &LaneSpec) -> Result<LaneId, LaneError> {
        self.lanes.create(spec)
    }
    fn address(&self, lane: LaneId) -> Result<LaneAddress, LaneError> {
        self.lanes.address(lane)
    }
    fn connect(&mut self, lane: LaneId, peer: &LaneAddress) -> Result<(), LaneError> {
        self.lanes.connect(lane, peer)
    }
    fn lane_mtu(&self, lane: LaneId) -> Option<u32> {
        self.lanes.lane_mtu(lane)
    }
    fn fence(&mut self, lane: LaneId) -> Result<(), LaneError> {
        self.lanes.fence(lane)
    }
    fn destroy(&mut self, lane: LaneId) -> Result<(), LaneError> {
        self.lanes.destroy(lane)
    }
    fn poll_event(&mut self) -> Option<LaneEvent> {
        self.lanes.poll_event()
    }
}

impl<L: Lanes> Lanes for Plain<L> {
    fn post(&mut self, lane: LaneId, wr: &WorkRequest) -> Result<(), Full> {
        self.lanes.post(lane, wr)
    }
    fn post_receive(&mut self, lane: LaneId, receive: &Receive) -> Result<(), Full> {
        self.lanes.post_receive(lane, receive)
    }
    fn doorbell(&mut self, now: Time) {
        self.lanes.doorbell(now);
    }
    fn poll(&mut self, now: Time, out: &mut [Completion]) -> usize {
        self.lanes.poll(now, out)
    }
    fn next_timeout(&self) -> Option<Time> {
        self.lanes.next_timeout()
    }
    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.lanes.wait_fds()
    }
}
