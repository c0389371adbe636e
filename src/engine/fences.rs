//! What the engine does for its sessions besides moving their messages: it carries out what they decide about lanes, keeps
//! their timers, and looks after their peers.

use super::core::{Core, Entry, NOBODY, SessionState};
use super::log::Entry as Logged;
use super::ops::Ended;
use crate::lanes::{
    Domain, LaneAddress, LaneEvent, LaneId, LaneSpec, Lanes, MrId, PortId, Remote, Window, WindowAccess,
};
use crate::mem::Region;
use crate::spray::{Event, LaneCommand, Session};
use crate::time::{Span, Time};

/// How often the bootstrap connections are looked at.
const WATCH_EVERY: Span = Span::from_millis(2);
/// What one change of a lane's entropy adds to it; odd, so that it visits every source port.
const ROLL: u16 = 29;
/// How late timers may be because completions keep coming.
const BEHIND: Span = Span::from_millis(1);

impl<L: Lanes> Core<L> {
    /// Carries out what a session wants done with its lanes.
    pub(super) fn obey(&mut self, now: Time, index: usize) {
        while let Some(entry) = self.slots[index].entry.as_deref_mut() {
            let Some(command) = entry.session.poll_command() else { return };
            match command {
                LaneCommand::Fence(lane) => {
                    // A lane that is gone already has nothing left that could come.
                    let _ = self.lanes.fence(lane);
                }
                LaneCommand::Destroy(lane) => {
                    let _ = self.lanes.destroy(lane);
                    entry.lanes.retain(|&l| l != lane);
                    entry.session.lane_destroyed(now, lane);
                    self.disown(lane);
                }
                LaneCommand::Make { lane, rolls } => self.make(now, index, lane, rolls),
                LaneCommand::Connect { lane, number, address } => self.connect(now, index, lane, number, &address),
            }
        }
    }

    /// Windows for probes of lanes that return: one for each session that has made a lane anew.
    #[cfg(any(test, feature = "cli"))]
    pub(super) fn probe_windows(&self) -> usize {
        self.slots.iter().filter_map(|s| s.entry.as_ref()).filter(|e| e.scratch.is_some()).count()
    }

    /// Makes a lane anew.
    #[cold]
    fn make(&mut self, now: Time, index: usize, number: u16, rolls: u16) {
        let Some(entry) = self.slots[index].entry.as_deref_mut() else { return };
        let how = entry.remake.get(usize::from(number)).copied().flatten();
        if entry.scratch.is_none() {
            entry.scratch = scratch(&mut self.lanes, entry.domain);
        }
        let window = entry.scratch.map(|s| s.1);
        let made = how.zip(window).and_then(|((spec, _), window)| {
            let key = window.keys[usize::from(spec.port.0) % window.keys.len()];
            let target = Remote { addr: window.addr, rkey: key };
            let entropy = spec.entropy.wrapping_add(rolls.wrapping_mul(ROLL));
            let lane = self.lanes.create(&LaneSpec { entropy, ..spec }).ok()?;
            match self.lanes.address(lane) {
                Ok(address) => Some((lane, address, target)),
                Err(_) => {
                    let _ = self.lanes.destroy(lane);
                    None
                }
            }
        });
        match made {
            Some((lane, address, target)) => {
                entry.lanes.push(lane);
                entry.session.lane_made(now, number, lane, address, target);
                self.own(lane, index);
            }
            None => entry.session.lane_not_made(now, number),
        }
    }

    /// Connects a lane that was made anew. A peer's address does not change: it could be anybody's.
    #[cold]
    fn connect(&mut self, now: Time, index: usize, lane: LaneId, number: u16, address: &LaneAddress) {
        let Some(entry) = self.slots[index].entry.as_deref_mut() else { return };
        let known = entry.remake.get(usize::from(number)).copied().flatten();
        let was = known.map(|(_, was)| was).filter(|was| (was.addr, was.udp_port) == (address.addr, address.udp_port));
        // What did not pass when the session began does not pass now.
        let address = was.map(|was| LaneAddress { mtu: address.mtu.min(was.mtu), ..*address });
        if address.is_some_and(|address| self.lanes.connect(lane, &address).is_ok())
            && let Some(mtu) = self.lanes.lane_mtu(lane)
        {
            entry.session.lane_connected(now, lane, mtu);
        } else {
            entry.session.lane_not_connected(now, lane);
        }
    }

    /// Notes whose lane it is.
    pub(super) fn own(&mut self, lane: LaneId, index: usize) {
        if self.owner.len() <= lane.index() {
            self.owner.resize(lane.index() + 1, NOBODY);
        }
        self.owner[lane.index()] = index as u16;
    }

    /// Takes a local port out of use for every session, or back. False, and nothing is changed, if a session has no other
    /// port that could carry on.
    pub fn drain(&mut self, now: Time, port: PortId, on: bool) -> bool {
        let ready = |e: &&Entry| e.ready && e.state == SessionState::Open;
        let mut sessions = self.slots.iter().filter_map(|s| s.entry.as_deref()).filter(ready);
        if on && !sessions.all(|e| e.session.can_drain(port)) {
            return false;
        }
        let Some(drained) = self.drained.get_mut(usize::from(port.0)) else { return false };
        *drained = on;
        for entry in self.slots.iter_mut().filter_map(|s| s.entry.as_deref_mut()).filter(|e| e.ready) {
            entry.session.drain(now, port, on);
            entry.dirty = true;
        }
        self.pump_all(now);
        self.lanes.doorbell(now);
        true
    }

    /// A new session leaves those ports alone that the others do, if it has others.
    pub(super) fn drain_new(&mut self, now: Time, id: super::SessionId) {
        let drained = self.drained;
        if let Some(entry) = self.entry_mut(id) {
            for port in (0..).zip(drained).filter(|p| p.1).map(|p| PortId(p.0)) {
                entry.session.drain(now, port, true);
                entry.dirty = true;
            }
        }
    }

    /// A port lost its carrier, or has it back.
    pub fn port_event(&mut self, now: Time, port: PortId, up: bool) {
        let event = if up { LaneEvent::PortUp(port) } else { LaneEvent::PortDown(port) };
        self.lane_event(now, &event);
        self.pump_all(now);
        self.lanes.doorbell(now);
    }

    /// Moves every queue pair on a port to ERR, as a device that is reset does: what sessions make of it is for trials.
    pub fn break_port(&mut self, port: PortId) {
        for entry in self.slots.iter().filter_map(|s| s.entry.as_deref()) {
            for lane in entry.session.lanes_on(port) {
                let _ = self.lanes.fence(lane);
            }
        }
    }

    fn disown(&mut self, lane: LaneId) {
        if let Some(owner) = self.owner.get_mut(lane.index()) {
            *owner = NOBODY;
        }
    }

    /// Takes in what a session says about itself. Returns why it is over, if it is.
    pub(super) fn take_events(&mut self, index: usize) -> Option<Ended> {
        let (mut failed, mut closed) = (None, false);
        let entry = self.slots[index].entry.as_deref_mut()?;
        while let Some(event) = entry.session.poll_event() {
            match event {
                Event::Failed(why) => failed = Some(Ended::Failed(why)),
                Event::PeerClosed if entry.state == SessionState::Open => {
                    entry.state = SessionState::PeerClosed;
                    closed = true;
                }
                Event::Health(transition) => self.log.push(Logged { session: index as u16, transition }),
                _ => {}
            }
        }
        if closed {
            self.share_budgets();
        }
        failed
    }

    pub(super) fn lane_event(&mut self, now: Time, event: &LaneEvent) {
        match event {
            LaneEvent::LaneError { lane, .. } => {
                if let Some(entry) = self.owner_of(*lane) {
                    entry.session.lane_event(now, event);
                    entry.dirty = true;
                }
            }
            LaneEvent::ReceiveDrops { packets, .. } => self.receive_drops += u64::from(*packets),
            _ => {
                for entry in self.slots.iter_mut().filter_map(|s| s.entry.as_deref_mut()) {
                    entry.session.lane_event(now, event);
                    entry.dirty = true;
                }
            }
        }
    }

    pub(super) fn timers(&mut self, now: Time, caught_up: bool) {
        if caught_up && now >= self.next_watch {
            self.next_watch = now + WATCH_EVERY;
            for index in 0..self.slots.len() {
                let Some(entry) = self.slots[index].entry.as_deref() else { continue };
                if entry.witness.is_some() || entry.left {
                    self.look_after_peer(now, index);
                }
            }
        }
        for entry in self.slots.iter_mut().filter_map(|s| s.entry.as_deref_mut()) {
            // Ages are judged when everything that arrived is taken in; but that may go on for ever.
            if entry.due.is_some_and(|t| t <= now && (caught_up || now.since(t) > BEHIND)) {
                entry.session.handle_timeout(now);
                entry.dirty = true;
            }
        }
    }

    /// Says over the bootstrap connection what no lane can carry.
    #[inline]
    pub(super) fn say_words(&mut self, now: Time, index: usize) {
        if let Some(entry) = self.slots[index].entry.as_deref_mut().filter(|e| e.session.speaks_by_witness()) {
            entry.say_words(now);
        }
    }

    /// Tells every peer its part of our receive budgets, if it has changed. The records go out with the next pump.
    #[cold]
    pub(super) fn share_budgets(&mut self) {
        let n = self.sharers();
        let open =
            self.slots.iter_mut().filter_map(|s| s.entry.as_deref_mut()).filter(|e| e.state == SessionState::Open);
        for entry in open.filter(|e| e.ready && e.told != n) {
            for (port, info) in self.lanes.ports().iter().enumerate() {
                if let Some(whole) = info.receive_budget {
                    entry.session.announce_budget(port as u8, Some(whole / n as u64));
                }
            }
            entry.told = n;
            entry.dirty = true;
        }
    }
}

/// Memory of no meaning that a peer's probes may write to: one packet of the largest MTU.
fn scratch<L: Lanes>(lanes: &mut L, domain: Domain) -> Option<(MrId, Window)> {
    const LARGEST_MTU: u64 = 4096;
    let region = Region::alloc(LARGEST_MTU as usize).ok()?;
    let mr = lanes.register(&region).ok()?;
    match lanes.open_window(domain, mr, 0, LARGEST_MTU, WindowAccess { write: true, read: false, atomic: false }) {
        Ok(window) => Some((mr, window)),
        Err(_) => {
            lanes.deregister(mr);
            None
        }
    }
}

impl Entry {
    #[cold]
    fn say_words(&mut self, now: Time) {
        let Some(witness) = &mut self.witness else { return };
        let mut word = [0; Session::WORD];
        while witness.has_room()
            && let Some(len) = self.session.poll_word(now, &mut word)
        {
            witness.say(&word[..len]);
        }
    }
}
