//! Driving: callers do it when they call, a sleeping helper thread when nobody does.
//!
//! A caller queues its command and, if nobody else is driving, drives for everyone (one try-lock per
//! batch). Waiters that found the engine taken spin or sleep until their operation is done.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_queue::{ArrayQueue, SegQueue};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use parking_lot::{Mutex, MutexGuard};

use super::command::{Command, SessionId};
use super::core::Core;
use super::ops::Ops;
use crate::lanes::{Lanes, MrId};
use crate::time::Time;

/// Commands that may wait to be taken up.
const COMMANDS: usize = 4096;
/// Operations that may be outstanding over all sessions.
const OPERATIONS: usize = 65_536;
/// Nobody drove for this long: the helper does.
const HELPER_AFTER: Duration = Duration::from_millis(1);
/// Marks the wake-up descriptor among what epoll reports.
const WAKE: u64 = 1;
/// How long the helper sleeps at most: bootstrap connections are looked at that often.
const HELPER_SLEEP: Duration = Duration::from_millis(50);
/// A sleep shorter than this is not worth its system call.
const NAP: Duration = Duration::from_micros(5);
/// How long a waiter spins before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// An engine that any thread may drive.
pub struct Shared<L> {
    core: Mutex<Core<L>>,
    commands: ArrayQueue<Command>,
    ops: Arc<Ops>,
    garbage: Arc<Garbage>,
    clock: Clock,
    /// When somebody last drove, in ns of our clock.
    driven: AtomicU64,
    /// When somebody must drive next at the latest; `u64::MAX` if only an arrival can matter.
    due: AtomicU64,
    sleepers: AtomicU32,
    /// When the first of the sleepers wakes by itself, in ns of our clock; `u64::MAX` if nobody knows.
    wakes: AtomicU64,
    wake: EventFd,
    /// Readable when a packet is there or `wake` was written; sleeping on it needs no lock.
    epoll: Epoll,
    stop: AtomicBool,
    /// Written when operations were finished, for callers that sleep by a loop of their own.
    finished_fd: OnceLock<EventFd>,
}

/// Registrations whose buffers are gone, to be ended by whoever drives next.
#[derive(Debug, Default)]
pub struct Garbage(SegQueue<MrId>);

impl Garbage {
    /// The buffer of `mr` is gone.
    pub fn deregister(&self, mr: MrId) {
        self.0.push(mr);
    }
}

/// The only clock: monotonic, counted from the engine's start.
#[derive(Clone, Copy, Debug)]
struct Clock(Instant);

impl Clock {
    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// The helper thread; joined when dropped.
pub struct Helper {
    stop: Box<dyn Fn() + Send + Sync>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Helper {
    fn drop(&mut self) {
        (self.stop)();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<L: Lanes + Send + 'static> Shared<L> {
    /// An engine over `lanes`.
    ///
    /// # Errors
    /// The system has no file descriptors left.
    pub fn new(lanes: L) -> std::io::Result<Arc<Shared<L>>> {
        let ops = Arc::new(Ops::new(OPERATIONS));
        let wake = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(wake.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
        for fd in lanes.wait_fds() {
            epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        }
        Ok(Arc::new(Shared {
            core: Mutex::new(Core::new(lanes, ops.clone())),
            commands: ArrayQueue::new(COMMANDS),
            ops,
            garbage: Arc::default(),
            clock: Clock(Instant::now()),
            driven: AtomicU64::new(0),
            due: AtomicU64::new(u64::MAX),
            sleepers: AtomicU32::new(0),
            wakes: AtomicU64::new(u64::MAX),
            wake,
            epoll,
            stop: AtomicBool::new(false),
            finished_fd: OnceLock::new(),
        }))
    }

    /// Starts the thread that drives when nobody else does.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn helper(self: &Arc<Self>) -> std::io::Result<Helper> {
        let shared = self.clone();
        let thread = std::thread::Builder::new().name("planespray".into()).spawn(move || shared.help())?;
        let shared = self.clone();
        let thread_handle = thread.thread().clone();
        let stop = Box::new(move || {
            shared.stop.store(true, Ordering::Release);
            let _ = shared.wake.write(1);
            thread_handle.unpark();
        });
        Ok(Helper { stop, thread: Some(thread) })
    }

    /// The operations' table.
    pub fn ops(&self) -> &Ops {
        &self.ops
    }

    /// Where dropped buffers report to.
    pub fn garbage(&self) -> &Arc<Garbage> {
        &self.garbage
    }

    /// The time by this engine's clock.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Queues a command and lets it start at once if nobody else is driving.
    ///
    /// # Errors
    /// The command itself, if too many wait already: drive, then try again.
    pub fn submit(&self, command: Command) -> Result<(), Command> {
        self.commands.push(command)?;
        if let Some(mut core) = self.core.try_lock() {
            let now = self.clock.now();
            core.kick(now, &self.commands, &self.garbage.0);
            self.after(core, now);
        }
        Ok(())
    }

    /// Begins a session's goodbye; what was submitted before goes first.
    pub fn close(&self, session: SessionId) {
        let mut core = self.core.lock();
        let now = self.clock.now();
        core.close(now, session, &self.commands);
        self.after(core, now);
    }

    /// [`Core::part`].
    pub fn part(&self, session: SessionId) -> Option<bool> {
        self.core.lock().part(self.clock.now(), session)
    }

    /// A descriptor that becomes readable when operations are finished, from the first call on. Reading its 8 bytes makes it
    /// wait for the next.
    ///
    /// # Errors
    /// The system has no file descriptors left.
    pub fn finished_fd(&self) -> std::io::Result<BorrowedFd<'_>> {
        if self.finished_fd.get().is_none() {
            let fd = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
            // Of two threads that both made one, the second's is closed again.
            let _ = self.finished_fd.set(fd);
        }
        self.finished_fd.get().map(AsFd::as_fd).ok_or_else(|| std::io::ErrorKind::NotFound.into())
    }

    /// Gives up every send of a session's channel, also what was submitted and not started. Returns how many of them
    /// still have bytes in flight.
    pub fn cancel_sends(&self, session: SessionId, channel: u32) -> usize {
        let mut core = self.core.lock();
        let now = self.clock.now();
        let left = core.cancel_sends(now, session, channel, &self.commands);
        self.after(core, now);
        left
    }

    /// Gives up every receive of a session's channel on which the peer sends nothing more.
    pub fn cancel_receives(&self, session: SessionId, channel: u32) {
        let mut core = self.core.lock();
        let now = self.clock.now();
        core.cancel_receives(now, session, channel, &self.commands);
        self.after(core, now);
    }

    /// Drives once if nobody else is. Returns false if somebody was.
    pub fn drive(&self) -> bool {
        let Some(mut core) = self.core.try_lock() else { return false };
        let now = self.clock.now();
        core.drive(now, &self.commands, &self.garbage.0);
        self.after(core, now);
        true
    }

    /// The engine's state, for control calls. Waits for whoever drives.
    pub fn lock(&self) -> MutexGuard<'_, Core<L>> {
        self.core.lock()
    }

    /// Waits until `done` says so or `timeout` has passed; drives meanwhile. Returns the last answer of `done`.
    pub fn wait_until(&self, busy: bool, timeout: Duration, mut done: impl FnMut() -> bool) -> bool {
        let start = Instant::now();
        let mut rounds = 0u32;
        loop {
            if done() {
                return true;
            }
            if !self.drive() {
                std::hint::spin_loop();
            }
            if done() {
                return true;
            }
            rounds = rounds.wrapping_add(1);
            // The clock is read every few rounds only.
            if rounds.is_multiple_of(16) {
                let waited = start.elapsed();
                if waited >= timeout {
                    return done();
                }
                if !busy && waited >= SPIN {
                    self.sleep(timeout - waited, &mut done);
                }
            }
        }
    }

    /// Sleeps until something arrives, is due, or an operation of ours was finished by another thread.
    fn sleep(&self, at_most: Duration, done: &mut impl FnMut() -> bool) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        if !done() && self.commands.is_empty() {
            // A wake-up that another sleeper took instead of us costs at most this.
            self.block(at_most.min(Duration::from_millis(10)));
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Sleeps until something arrives, is due, somebody rouses us, or `at_most` is over.
    fn block(&self, at_most: Duration) {
        let now = self.clock.now().as_nanos();
        let due = self.due.load(Ordering::SeqCst);
        let wait = at_most.min(Duration::from_nanos(due.saturating_sub(now)));
        if wait < NAP {
            return;
        }
        // Whoever sets an earlier `due` from here on sees this, or sees nothing and rouses us.
        self.wakes.fetch_min(now.saturating_add(wait.as_nanos() as u64), Ordering::SeqCst);
        let mut fds = [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
        if ppoll(&mut fds, Some(TimeSpec::from_duration(wait)), None).unwrap_or(0) > 0 {
            let mut events = [EpollEvent::empty(); 4];
            let ready = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
            if events[..ready].iter().any(|e| e.data() == WAKE) {
                let _ = self.wake.read();
            }
        }
        self.wakes.store(u64::MAX, Ordering::SeqCst);
    }

    fn rouse(&self) {
        let n = self.sleepers.load(Ordering::SeqCst);
        if n > 0 {
            let _ = self.wake.write(u64::from(n));
        }
    }

    /// Ends a turn at driving: tells the sleepers what concerns them.
    fn after(&self, core: MutexGuard<'_, Core<L>>, now: Time) {
        let due = core.next_timeout().map_or(u64::MAX, Time::as_nanos);
        drop(core);
        self.driven.store(now.as_nanos(), Ordering::Release);
        self.due.store(due, Ordering::SeqCst);
        let finished = self.ops.take_finished();
        if let (true, Some(fd)) = (finished, self.finished_fd.get()) {
            let _ = fd.write(1);
        }
        if finished || due < self.wakes.load(Ordering::SeqCst) {
            self.rouse();
        }
    }

    fn help(&self) {
        let mut own = u64::MAX;
        while !self.stop.load(Ordering::Acquire) {
            let driven = self.driven.load(Ordering::Acquire);
            let idle = self.clock.now().as_nanos().saturating_sub(driven);
            if driven != own && idle < HELPER_AFTER.as_nanos() as u64 {
                // Somebody drives; look again when a millisecond may have passed without them.
                std::thread::park_timeout(HELPER_AFTER);
                continue;
            }
            if !self.drive() {
                // Somebody is at it, or was put aside while at it.
                std::thread::park_timeout(HELPER_AFTER);
                continue;
            }
            own = self.driven.load(Ordering::Acquire);
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            if self.commands.is_empty() && !self.stop.load(Ordering::Acquire) {
                self.block(HELPER_SLEEP);
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
