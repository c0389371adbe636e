//! What whoever drives owns: the lanes, the sessions over them, and the order of work in one round.

use std::sync::Arc;

use crossbeam_queue::{ArrayQueue, SegQueue};

use super::backlog::{Backlog, Kind};
use super::command::{Command, SessionId};
use super::log::EventLog;
use super::ops::{Ended, Lost, OpId, Ops};
use super::witness::Witness;
use crate::lanes::{
    Completed, Completion, Domain, LaneAddress, LaneError, LaneId, LaneSpec, Lanes, MAX_PORTS, MrId, Status, Window,
    WindowAccess,
};
use crate::mem::Region;
use crate::spray::{DoneKind, Failure, Fate, LaneRole, Post, Recv, Refused, Session, SessionConfig};
use crate::time::Time;

/// Most completions handled in one round.
const BATCH: usize = 256;
/// Most commands executed in one round.
const COMMANDS: usize = 64;
pub(super) const NOBODY: u16 = u16::MAX;

/// A session's state as its owner sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionState {
    /// Messages flow.
    Open,
    /// The peer said goodbye: what it sent has arrived, nothing more will come.
    PeerClosed,
    /// Nothing more will happen; why.
    Ended(Ended),
}

/// A session that is about to begin: its lanes are connected.
#[derive(Debug)]
pub struct NewSession {
    /// Sizes, agreed with the peer.
    pub config: SessionConfig,
    /// The windows of this peer.
    pub domain: Domain,
    /// Its lanes.
    pub lanes: Vec<(LaneId, LaneRole)>,
    /// How each of the lanes was made, and where the peer's is; without these they are not made anew.
    pub remake: Vec<(LaneSpec, LaneAddress)>,
    /// Bytes that each of the peer's ports takes.
    pub budgets: Vec<(u8, Option<u64>)>,
}

/// The engine's state over one backend.
pub struct Core<L> {
    pub(super) lanes: L,
    ops: Arc<Ops>,
    pub(super) slots: Vec<Slot>,
    /// Session of each lane slot.
    pub(super) owner: Vec<u16>,
    completions: Box<[Completion]>,
    /// Registration that each operation uses.
    registrations: Box<[MrId]>,
    /// Outstanding uses of each registration, and whether its buffer is gone.
    uses: Vec<Uses>,
    next_domain: u32,
    pub(super) next_watch: Time,
    pub(super) receive_drops: u64,
    pub(super) log: EventLog,
    /// Ports that the operator took out of use.
    pub(super) drained: [bool; MAX_PORTS],
}

#[derive(Clone, Copy, Default)]
struct Uses {
    count: u32,
    orphan: bool,
}

pub(super) struct Slot {
    generation: u16,
    pub(super) entry: Option<Box<Entry>>,
}

pub(super) struct Entry {
    pub(super) session: Session,
    pub(super) domain: Domain,
    pub(super) lanes: Vec<LaneId>,
    /// By the lane's number: how it is made, and where the peer's is.
    pub(super) remake: Vec<Option<(LaneSpec, LaneAddress)>>,
    control: MrId,
    /// Where probes of lanes that return may write; made with the first of them.
    pub(super) scratch: Option<(MrId, Window)>,
    pub(super) state: SessionState,
    pub(super) due: Option<Time>,
    pub(super) dirty: bool,
    pub(super) under_way: usize,
    pub(super) witness: Option<Box<dyn Witness>>,
    /// Operations that the session had no room for.
    pub(super) backlog: Backlog,
    /// Our end wants to say goodbye, after what waits.
    pub(super) closing: bool,
    /// The peer said goodbye and is gone: what it sent can still be received, but nothing reaches it.
    pub(super) left: bool,
    pub(super) left_at: Time,
    /// Since when we have nothing more to do here, and answer only what the peer still has under way.
    pub(super) parting: Option<Time>,
    /// Both ends are ready: control messages may go out.
    pub(super) ready: bool,
    /// Among how many sessions its peer was told that our receive budgets are divided; 0 for what the bootstrap said.
    pub(super) told: usize,
}

impl<L: Lanes> Core<L> {
    /// An engine without sessions.
    pub fn new(lanes: L, ops: Arc<Ops>) -> Self {
        let idle = Completion {
            lane: LaneId(0),
            id: 0,
            what: Completed::Request,
            status: Status::Success,
            rtt: None,
            marks: None,
            retransmits: 0,
        };
        Core {
            lanes,
            registrations: vec![MrId(0); ops.capacity()].into_boxed_slice(),
            ops,
            slots: Vec::new(),
            owner: Vec::new(),
            completions: vec![idle; BATCH].into_boxed_slice(),
            uses: Vec::new(),
            next_domain: 1,
            next_watch: Time::ZERO,
            receive_drops: 0,
            log: EventLog::default(),
            drained: [false; MAX_PORTS],
        }
    }

    /// The backend.
    pub fn lanes(&self) -> &L {
        &self.lanes
    }

    /// The last decisions about lanes and ports, with their evidence.
    pub fn log(&self) -> &EventLog {
        &self.log
    }

    /// The backend, for its control half.
    pub fn lanes_mut(&mut self) -> &mut L {
        &mut self.lanes
    }

    /// Packets that our own full receive buffers dropped.
    pub fn receive_drops(&self) -> u64 {
        self.receive_drops
    }

    /// A trust domain that no session has had before.
    pub fn new_domain(&mut self) -> Domain {
        let domain = Domain(self.next_domain);
        // The highest number is the registry's mark for local memory.
        self.next_domain = if self.next_domain >= u32::MAX - 1 { 1 } else { self.next_domain + 1 };
        domain
    }

    /// Takes up a session whose lanes are connected, and posts their receives. Only then may the peer be told
    /// that we are ready.
    ///
    /// # Errors
    /// No memory, no keys, or roles that contradict each other; the lanes are left to the caller then.
    pub fn add_session(&mut self, now: Time, new: NewSession) -> Result<SessionId, LaneError> {
        let index = match self.slots.iter().position(|s| s.entry.is_none()) {
            Some(i) => i,
            None if self.slots.len() < usize::from(NOBODY) => {
                self.slots.push(Slot { generation: 0, entry: None });
                self.slots.len() - 1
            }
            None => return Err(LaneError::Invalid { what: "number of sessions" }),
        };
        let control_lanes = new.lanes.iter().filter(|(_, r)| r.kind == crate::spray::LaneKind::Control).count();
        let region = Region::alloc(Session::control_bytes(&new.config, control_lanes))?;
        let control = self.lanes.register(&region)?;
        let ports = self.lanes.ports().len();
        let mut session = Session::new(new.config, region, control, ports);
        for &(lane, role) in &new.lanes {
            if session.add_lane(lane, role).is_err() {
                self.lanes.deregister(control);
                return Err(LaneError::Invalid { what: "lane plan" });
            }
        }
        for (port, bytes) in new.budgets {
            session.set_peer_budget(port, bytes);
        }
        session.start(now);
        let mut remake = Vec::new();
        for ((_, role), &how) in new.lanes.iter().zip(&new.remake) {
            let number = usize::from(role.peer_index);
            if remake.len() <= number {
                remake.resize(number + 1, None);
            }
            remake[number] = Some(how);
        }
        let lanes: Vec<LaneId> = new.lanes.iter().map(|l| l.0).collect();
        for lane in &lanes {
            self.own(*lane, index);
        }
        let slot = &mut self.slots[index];
        slot.generation = slot.generation.wrapping_add(1);
        let id = SessionId { index: index as u16, generation: slot.generation };
        slot.entry = Some(Box::new(Entry {
            session,
            domain: new.domain,
            lanes,
            remake,
            control,
            scratch: None,
            state: SessionState::Open,
            due: None,
            dirty: true,
            under_way: 0,
            witness: None,
            backlog: Backlog::default(),
            closing: false,
            left: false,
            left_at: Time::ZERO,
            parting: None,
            ready: false,
            told: 0,
        }));
        self.share_budgets();
        self.pump_all(now);
        self.lanes.doorbell(now);
        Ok(id)
    }

    /// Both ends of a session are ready; its bootstrap connection is watched from now on.
    pub fn watch(&mut self, now: Time, id: SessionId, witness: Box<dyn Witness>) {
        if let Some(entry) = self.entry_mut(id) {
            entry.session.set_witness(now, witness.speaks());
            entry.witness = Some(witness);
            entry.ready = true;
            self.drain_new(now, id);
            self.share_budgets();
            self.pump_all(now);
            self.lanes.doorbell(now);
        }
    }

    /// Sessions whose peers may send: each is entitled to an equal part of our ports' receive budgets.
    pub fn sharers(&self) -> usize {
        self.slots.iter().filter_map(|s| s.entry.as_ref()).filter(|e| e.state == SessionState::Open).count()
    }

    /// What has become of a session; `None` once it is removed.
    pub fn state(&self, id: SessionId) -> Option<SessionState> {
        self.entry(id).map(|e| e.state)
    }

    /// The session's own view of itself.
    pub fn session(&self, id: SessionId) -> Option<&Session> {
        self.entry(id).map(|e| &e.session)
    }

    /// The sessions there are.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.slots.iter().enumerate().filter_map(|(i, s)| {
            let e = s.entry.as_ref()?;
            Some((SessionId { index: i as u16, generation: s.generation }, &e.session))
        })
    }

    /// Lets the peer of `session` at part of a registration.
    ///
    /// # Errors
    /// No such session, out of bounds, or no keys left.
    pub fn open_window(
        &mut self,
        session: SessionId,
        mr: MrId,
        len: u64,
        access: WindowAccess,
    ) -> Result<Window, LaneError> {
        let domain = self.entry(session).ok_or(LaneError::Invalid { what: "session" })?.domain;
        self.lanes.open_window(domain, mr, 0, len, access)
    }

    /// Sends and one-sided operations of the session that are not over. A receive that nobody has sent to is no loss.
    pub fn under_way(&self, id: SessionId) -> usize {
        self.entry(id).map_or(0, |e| e.under_way)
    }

    /// Ends a session at once: its lanes go first, so that nothing can still touch memory, then every operation
    /// ends with `why`.
    pub fn end(&mut self, id: SessionId, why: Ended) {
        if self.entry(id).is_some() {
            self.end_slot(usize::from(id.index), why);
        }
    }

    /// Ends a session and forgets it.
    pub fn remove(&mut self, id: SessionId) {
        if self.entry(id).is_none() {
            return;
        }
        self.end_slot(usize::from(id.index), Ended::Cancelled);
        if let Some(entry) = self.slots[usize::from(id.index)].entry.take() {
            self.lanes.deregister(entry.control);
        }
    }

    /// Executes what callers queued and sends it off, without looking for arrivals. [`Ops::take_finished`] tells whether an
    /// operation was finished.
    pub fn kick(&mut self, now: Time, commands: &ArrayQueue<Command>, garbage: &SegQueue<MrId>) {
        self.execute(now, commands, garbage);
        self.pump_all(now);
        self.lanes.doorbell(now);
    }

    /// One round: commands, arrivals, timers, and everything that follows.
    pub fn drive(&mut self, now: Time, commands: &ArrayQueue<Command>, garbage: &SegQueue<MrId>) {
        self.execute(now, commands, garbage);
        let n = self.lanes.poll(now, &mut self.completions);
        for i in 0..n {
            let completion = self.completions[i];
            if let Some(entry) = self.owner_of(completion.lane) {
                entry.session.handle(now, &completion);
                entry.dirty = true;
            }
        }
        while let Some(event) = self.lanes.poll_event() {
            self.lane_event(now, &event);
        }
        // While completions wait, a peer that is gone may have delivered what its receives here do not know yet.
        self.timers(now, n < self.completions.len());
        self.pump_all(now);
        self.lanes.doorbell(now);
    }

    /// When [`Core::drive`] must be called at the latest.
    pub fn next_timeout(&self) -> Option<Time> {
        let sessions = self.slots.iter().filter_map(|s| s.entry.as_ref()?.due).min();
        match (sessions, self.lanes.next_timeout()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    pub(super) fn entry(&self, id: SessionId) -> Option<&Entry> {
        let slot = self.slots.get(usize::from(id.index))?;
        if slot.generation == id.generation { slot.entry.as_deref() } else { None }
    }

    pub(super) fn entry_mut(&mut self, id: SessionId) -> Option<&mut Entry> {
        let slot = self.slots.get_mut(usize::from(id.index))?;
        if slot.generation == id.generation { slot.entry.as_deref_mut() } else { None }
    }

    pub(super) fn owner_of(&mut self, lane: LaneId) -> Option<&mut Entry> {
        let owner = *self.owner.get(lane.index())?;
        self.slots.get_mut(usize::from(owner))?.entry.as_deref_mut()
    }

    fn execute(&mut self, now: Time, commands: &ArrayQueue<Command>, garbage: &SegQueue<MrId>) {
        // A buffer is dropped after its last command was queued: its turn comes when those are through.
        let dropped = garbage.len();
        for _ in 0..COMMANDS {
            let Some(command) = commands.pop() else {
                for _ in 0..dropped {
                    let Some(mr) = garbage.pop() else { break };
                    self.orphan(mr);
                }
                break;
            };
            self.accept(now, command);
        }
    }

    /// Takes a command: from here on its operation is under way, whether its session has room for it or not.
    pub(super) fn accept(&mut self, now: Time, command: Command) {
        let (id, op, mr) = command.parts();
        let why = match self.entry_mut(id).map(|e| e.state) {
            None => Some(Ended::Cancelled),
            Some(SessionState::Ended(why)) => Some(why),
            Some(_) => None,
        };
        if let Some(why) = why {
            self.ops.finish(op, Err(Lost { why, fate: (!command.is_receive()).then_some(Fate::NotDelivered) }));
            return;
        }
        let Some(entry) = self.entry_mut(id) else { return };
        entry.dirty = true;
        entry.under_way += usize::from(!command.is_receive());
        self.registrations[op.index()] = mr;
        let slot = mr.0 as usize;
        if self.uses.len() <= slot {
            self.uses.resize(slot + 1, Uses::default());
        }
        self.uses[slot].count += 1;
        let index = usize::from(id.index);
        let waits = match self.slots[index].entry.as_deref() {
            Some(entry) if entry.backlog.holds_up(Kind::of(&command)) => Some(command),
            _ => self.start(now, command).err(),
        };
        if let (Some(command), Some(entry)) = (waits, self.slots[index].entry.as_deref_mut()) {
            entry.backlog.push(command);
        }
    }

    /// Hands a command to its session. An error is the command itself: the session is full for now.
    fn start(&mut self, now: Time, command: Command) -> Result<(), Command> {
        let (id, _, _) = command.parts();
        let Some(entry) = self.slots[usize::from(id.index)].entry.as_deref_mut() else { return Ok(()) };
        let taken = match &command {
            _ if entry.left && !command.is_receive() => Err(Refused::NoLanes),
            Command::Send(_, message) => entry.session.send(now, message).map(drop),
            Command::Write(_, write) => entry.session.write(now, write).map(drop),
            Command::Read(_, read) => entry.session.read(now, read).map(drop),
            Command::Receive { channel, into, ordered, op, .. } => {
                let access = WindowAccess { write: true, read: false, atomic: false };
                match self.lanes.open_window(entry.domain, into.mr, into.offset, into.len, access) {
                    Ok(window) => {
                        let receive = Recv {
                            channel: *channel,
                            mr: into.mr,
                            region: into.region.clone(),
                            offset: into.offset,
                            capacity: into.len,
                            window,
                            token: op.token(),
                            ordered: *ordered,
                        };
                        let taken = entry.session.receive(now, &receive).map(drop);
                        if taken.is_err() {
                            self.lanes.close_window(&window);
                        }
                        taken
                    }
                    // No key is free: others come back.
                    Err(_) => Err(Refused::Full),
                }
            }
        };
        match taken {
            Ok(()) => Ok(()),
            Err(Refused::Full) => Err(command),
            Err(refused) => {
                let why = match (refused, entry.session.failure()) {
                    (Refused::Closed | Refused::NoLanes, _) if entry.left => Ended::Failed(Failure::PeerClosed),
                    (Refused::Closed, Some(why)) => Ended::Failed(why),
                    // Our own goodbye is no reason to refuse a receive, so it was the peer's.
                    (Refused::Closed, None) if command.is_receive() => Ended::Failed(Failure::PeerClosed),
                    (Refused::Closed, None) => Ended::Cancelled,
                    _ => Ended::Refused(refused),
                };
                self.reject(usize::from(id.index), &command, why);
                Ok(())
            }
        }
    }

    /// Ends an operation of which nothing was sent.
    pub(super) fn reject(&mut self, index: usize, command: &Command, why: Ended) {
        self.settle(index, command.parts().1, command.is_receive(), Err((why, Fate::NotDelivered)));
    }

    /// Ends an operation that was accepted. Returns true if somebody may be waiting for it.
    fn settle(&mut self, index: usize, op: OpId, receive: bool, result: Result<u64, (Ended, Fate)>) -> bool {
        if let Some(entry) = self.slots[index].entry.as_deref_mut() {
            entry.under_way -= usize::from(!receive).min(entry.under_way);
        }
        let mr = self.registrations[op.index()];
        self.release(mr);
        let result = result.map_err(|(why, fate)| Lost { why, fate: (!receive).then_some(fate) });
        self.ops.finish(op, result)
    }

    /// Gives a session what waits for room, and the goodbye when its turn has come. Returns true if that changed anything.
    fn retry(&mut self, now: Time, index: usize) -> bool {
        let Some(entry) = self.slots[index].entry.as_deref_mut() else { return false };
        let mut changed = false;
        if !entry.backlog.is_empty() {
            let mut backlog = std::mem::take(&mut entry.backlog);
            changed = backlog.retry(|command| self.start(now, command));
            if let Some(entry) = self.slots[index].entry.as_deref_mut() {
                entry.backlog = backlog;
            }
        }
        let Some(entry) = self.slots[index].entry.as_deref_mut() else { return changed };
        if entry.closing && !entry.backlog.holds_up_goodbye() {
            entry.closing = false;
            entry.session.close(now);
            changed = true;
        }
        changed
    }

    pub(super) fn pump_all(&mut self, now: Time) {
        for index in 0..self.slots.len() {
            if self.slots[index].entry.as_ref().is_some_and(|e| e.dirty || !e.backlog.is_empty()) {
                self.pump(now, index);
            }
        }
    }

    /// Moves what one session wants to the lanes, and its results to the callers.
    pub(super) fn pump(&mut self, now: Time, index: usize) {
        // What finished may have made room for what waits, which then has posts of its own.
        loop {
            let retried = self.retry(now, index);
            let Some(entry) = self.slots[index].entry.as_deref_mut() else { return };
            entry.dirty = false;
            self.obey(now, index);
            // Before a lane takes the words, and again for those that posting brings.
            self.say_words(now, index);
            let Some(entry) = self.slots[index].entry.as_deref_mut() else { return };
            while let Some(post) = entry.session.poll_post(now) {
                let posted = match &post {
                    Post::Work(lane, wr) => self.lanes.post(*lane, wr),
                    Post::Receive(lane, receive) => self.lanes.post_receive(*lane, receive),
                };
                if posted.is_err() {
                    entry.session.posted_full(post);
                    entry.dirty = true;
                    break;
                }
            }
            self.say_words(now, index);
            if let Some(why) = self.take_events(index) {
                // The lanes go before the memory that they may still touch is given back.
                self.end_slot(index, why);
                return;
            }
            let delivered = self.deliver(index, None);
            let Some(entry) = self.slots[index].entry.as_deref_mut() else { return };
            entry.due = entry.session.poll_timeout();
            if entry.backlog.is_empty() || !(delivered || retried) {
                return;
            }
        }
    }

    /// Hands finished operations to their callers. A receive's window is closed first.
    fn deliver(&mut self, index: usize, why: Option<Ended>) -> bool {
        let mut finished = false;
        while let Some(entry) = self.slots[index].entry.as_deref_mut() {
            let Some(done) = entry.session.poll_done() else { break };
            if let Some(window) = &done.window {
                self.lanes.close_window(window);
            }
            debug_assert!(done.kind != DoneKind::Receive || done.window.is_some(), "a receive brings its window back");
            let left = entry.left;
            let result = done.result.map_err(|failure| {
                let ended = match failure {
                    Failure::Lane { .. } | Failure::Class(_) if left => Ended::Failed(Failure::PeerClosed),
                    _ => why.unwrap_or(Ended::Failed(failure)),
                };
                (ended, done.fate)
            });
            finished |= self.settle(index, OpId::from_token(done.token), done.kind == DoneKind::Receive, result);
        }
        finished
    }

    pub(super) fn end_slot(&mut self, index: usize, why: Ended) {
        let Some(entry) = self.slots[index].entry.as_deref_mut() else { return };
        if matches!(entry.state, SessionState::Ended(_)) {
            return;
        }
        entry.state = SessionState::Ended(why);
        for lane in std::mem::take(&mut entry.lanes) {
            // A destroyed queue pair sends and places nothing more: from here on the memory is ours alone.
            let _ = self.lanes.destroy(lane);
            if let Some(owner) = self.owner.get_mut(lane.index()) {
                *owner = NOBODY;
            }
        }
        if let Some((mr, window)) = entry.scratch.take() {
            self.lanes.close_window(&window);
            self.lanes.deregister(mr);
        }
        entry.session.cancel_all(Failure::Cancelled);
        entry.due = None;
        entry.witness = None;
        let mut backlog = std::mem::take(&mut entry.backlog);
        self.deliver(index, Some(why));
        backlog.retry(|command| {
            self.reject(index, &command, why);
            Ok(())
        });
        self.share_budgets();
    }

    fn release(&mut self, mr: MrId) {
        if let Some(uses) = self.uses.get_mut(mr.0 as usize) {
            uses.count = uses.count.saturating_sub(1);
            if uses.count == 0 && std::mem::take(&mut uses.orphan) {
                self.lanes.deregister(mr);
            }
        }
    }

    fn orphan(&mut self, mr: MrId) {
        match self.uses.get_mut(mr.0 as usize) {
            Some(uses) if uses.count > 0 => uses.orphan = true,
            _ => {
                self.lanes.deregister(mr);
            }
        }
    }
}
