//! One peer's session.
#![forbid(unsafe_code)]

use super::config::{LaneRole, SessionConfig};
use super::failure::Failure;
use super::message::{Done, Event, MessageId, OneSided, Post, Recv, Refused, Send};
use super::stats::SessionStats;
use crate::lanes::{Completion, LaneEvent, LaneId, MrId};
use crate::mem::Region;
use crate::time::Time;

/// Everything that two engines share about each other: lanes, windows, channels, messages under way.
///
/// After any call that takes `now`, call [`Session::poll_post`] until it returns `None`, and
/// [`Session::poll_done`] and [`Session::poll_event`] likewise.
///
/// Both ends add the same lanes, call [`Session::start`], post everything that [`Session::poll_post`] gives, and only then
/// tell each other (by the bootstrap) that they are ready; nothing may be sent before: credits start at the agreed numbers
/// of posted receives.
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    lanes: Vec<(LaneId, LaneRole)>,
    closed: Option<Failure>,
}

impl Session {
    /// Bytes of control memory that a session with this many control lanes needs.
    pub fn control_bytes(config: &SessionConfig, control_lanes: usize) -> usize {
        let config = config.clamped();
        control_lanes * 2 * config.control_slots as usize * config.slot_bytes() as usize
    }

    /// A session without lanes. `control` is memory for the slots of all control lanes, registered as
    /// `control_mr`; `local_ports` is the number of ports of this end's backend.
    pub fn new(config: SessionConfig, control: Region, control_mr: MrId, local_ports: usize) -> Session {
        let _ = (control, control_mr, local_ports);
        Session { config: config.clamped(), lanes: Vec::new(), closed: None }
    }

    /// Adds a connected lane. Off the hot path: may allocate.
    ///
    /// # Errors
    /// [`Refused::Role`] if the role is out of range, its number is taken, or the control memory is used up.
    pub fn add_lane(&mut self, lane: LaneId, role: LaneRole) -> Result<(), Refused> {
        self.lanes.push((lane, role));
        Ok(())
    }

    /// Forgets a lane whose queue pair was destroyed: what was outstanding on it counts as flushed.
    pub fn remove_lane(&mut self, now: Time, lane: LaneId) {
        let _ = now;
        self.lanes.retain(|l| l.0 != lane);
    }

    /// Bounds the bytes in flight towards one of the peer's ports, charged as [`charge`](crate::lanes::charge) does.
    pub fn set_peer_budget(&mut self, peer_port: u8, bytes: Option<u64>) {
        let _ = (peer_port, bytes);
    }

    /// Begins: the receives of all lanes come out of [`Session::poll_post`].
    pub fn start(&mut self, now: Time) {
        let _ = now;
    }

    /// Sends a message.
    ///
    /// # Errors
    /// See [`Refused`]; the message was not taken.
    pub fn send(&mut self, now: Time, msg: &Send) -> Result<MessageId, Refused> {
        let _ = (now, msg);
        Err(Refused::NoLanes)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// See [`Refused`]; the receive was not taken.
    pub fn receive(&mut self, now: Time, r: &Recv) -> Result<MessageId, Refused> {
        let _ = (now, r);
        Err(Refused::NoLanes)
    }

    /// Writes to a window of the peer.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn write(&mut self, now: Time, w: &OneSided) -> Result<MessageId, Refused> {
        let _ = (now, w);
        Err(Refused::NoLanes)
    }

    /// Reads from a window of the peer.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn read(&mut self, now: Time, r: &OneSided) -> Result<MessageId, Refused> {
        let _ = (now, r);
        Err(Refused::NoLanes)
    }

    /// Ends the session: every operation gets a [`Done`] with `why` at once. The lanes must be fenced or destroyed first.
    pub fn cancel_all(&mut self, why: Failure) {
        self.closed = Some(why);
    }

    /// Takes in a completion of one of the session's lanes.
    pub fn handle(&mut self, now: Time, c: &Completion) {
        let _ = (now, c);
    }

    /// Takes in an event of a lane or port.
    pub fn lane_event(&mut self, now: Time, e: &LaneEvent) {
        let _ = (now, e);
    }

    /// The next thing to hand to the backend.
    pub fn poll_post(&mut self, now: Time) -> Option<Post> {
        let _ = now;
        None
    }

    /// Gives back what [`Session::poll_post`] returned last, because the backend's queue was full.
    pub fn posted_full(&mut self, post: Post) {
        let _ = post;
    }

    /// The next operation that is over.
    pub fn poll_done(&mut self) -> Option<Done> {
        None
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        None
    }

    /// When [`Session::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// Runs the timers that are due.
    pub fn handle_timeout(&mut self, now: Time) {
        let _ = now;
    }

    /// Takes no more sends; says goodbye to the peer once everything sent is acknowledged.
    pub fn close(&mut self, now: Time) {
        let _ = now;
    }

    /// True when the goodbye is acknowledged or the session is over, and nothing of ours is under way.
    pub fn is_drained(&self) -> bool {
        self.closed.is_some()
    }

    /// A snapshot.
    pub fn stats(&self) -> SessionStats {
        let _ = &self.config;
        SessionStats::default()
    }
}
