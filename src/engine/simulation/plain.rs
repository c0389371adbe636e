//! A backend as NICs are: windows may stay open, as verbs' plain memory regions do, so that a late packet changes memory and
//! is seen; and a queue pair takes its time to reach ERR.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use crate::lanes::{
    Caps, Completion, Control, Domain, Full, LaneAddress, LaneError, LaneEvent, LaneId, LaneSpec, Lanes, MrId,
    PortInfo, Receive, Status, Window, WindowAccess, WorkRequest,
};
use crate::mem::Region;
use crate::time::{Span, Time};

/// `L`, which closes no window if `open`.
pub(super) struct Plain<L> {
    pub(super) lanes: L,
    open: bool,
    /// Longest time to ERR.
    slow: Span,
    rng: fastrand::Rng,
    now: Time,
    /// Queue pairs on their way there.
    fencing: Vec<(Time, LaneId)>,
    /// Queue pairs that failed by themselves.
    failed: VecDeque<LaneId>,
    /// Queue pairs that exist, and windows that nobody has closed.
    pub(super) alive: usize,
    pub(super) windows: usize,
}

impl<L> Plain<L> {
    pub(super) fn new(lanes: L, open: bool, seed: u64, slow: Span) -> Plain<L> {
        let rng = fastrand::Rng::with_seed(seed);
        Plain {
            lanes,
            open,
            slow,
            rng,
            now: Time::ZERO,
            fencing: Vec::new(),
            failed: VecDeque::new(),
            alive: 0,
            windows: 0,
        }
    }
}

impl<L: Control> Plain<L> {
    /// A queue pair goes to ERR by itself, and says so.
    pub(super) fn fail(&mut self, lane: LaneId) {
        if self.lanes.fence(lane).is_ok() {
            self.failed.push_back(lane);
        }
    }
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
        let window = self.lanes.open_window(domain, mr, offset, len, access)?;
        self.windows += 1;
        Ok(window)
    }
    fn close_window(&mut self, window: &Window) -> bool {
        self.windows -= 1;
        self.open || self.lanes.close_window(window)
    }
    fn create(&mut self, spec: &LaneSpec) -> Result<LaneId, LaneError> {
        let lane = self.lanes.create(spec)?;
        self.alive += 1;
        Ok(lane)
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
        let after = Span::from_nanos(self.rng.u64(..=self.slow.as_nanos()));
        self.fencing.push((self.now + after, lane));
        Ok(())
    }
    fn destroy(&mut self, lane: LaneId) -> Result<(), LaneError> {
        self.fencing.retain(|f| f.1 != lane);
        self.lanes.destroy(lane)?;
        self.alive -= 1;
        Ok(())
    }
    fn poll_event(&mut self) -> Option<LaneEvent> {
        // One that has been destroyed meanwhile says nothing any more.
        while let Some(lane) = self.failed.pop_front() {
            if self.lanes.address(lane).is_ok() {
                return Some(LaneEvent::LaneError { lane, status: Status::Other });
            }
        }
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
        self.now = now;
        let due: Vec<LaneId> = self.fencing.iter().filter(|f| f.0 <= now).map(|f| f.1).collect();
        self.fencing.retain(|f| f.0 > now);
        for lane in due {
            let _ = self.lanes.fence(lane);
        }
        self.lanes.poll(now, out)
    }
    fn next_timeout(&self) -> Option<Time> {
        let fence = self.fencing.iter().map(|f| f.0).min();
        [self.lanes.next_timeout(), fence].into_iter().flatten().min()
    }
    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.lanes.wait_fds()
    }
}
