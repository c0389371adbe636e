//! How communicators come to be: listen, connect, accept, none of which waits.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use planespray::{BootstrapError, Connecting, Error};

use super::core::Core;
use super::handle::Handle;
use super::links::{Link, Shared};
use super::log;

/// The bootstrap listener and the links are looked at no more often.
const PAUSE: Duration = Duration::from_micros(20);
/// No more often by those who have other things to do.
const TEND: Duration = Duration::from_millis(2);
/// A connection that broke while it came up is tried again after this.
const AGAIN: Duration = Duration::from_millis(100);

/// Counts on when the plugin begins anew: no listener's number comes twice.
static LAST_LISTENER: AtomicU64 = AtomicU64::new(0);

/// Everything under way.
#[derive(Default)]
pub(super) struct Setup {
    links: Vec<Arc<Link>>,
    /// Links that take no more communicators. They go when that takes no time, since our callers must not wait.
    over: Vec<Arc<Link>>,
    dials: HashMap<u64, Dial>,
    /// Communicators that peers opened, by our listener.
    listens: HashMap<u64, VecDeque<End>>,
    looked: Option<Instant>,
}

/// A link on the way up.
struct Dial {
    connecting: Option<Connecting>,
    /// Why it did not come up.
    failed: Option<Error>,
    deadline: Instant,
    again: Instant,
    /// The first failure was logged.
    told: bool,
}

/// An end of a communicator that is up.
pub(super) type End = (Arc<Link>, Arc<Shared>);

impl Core {
    /// A new listener, and its handle.
    pub(super) fn listen(&self) -> (u64, Handle) {
        let listener = LAST_LISTENER.fetch_add(1, Ordering::Relaxed) + 1;
        self.setup.lock().listens.insert(listener, VecDeque::new());
        let handle = Handle {
            job_key: self.settings.key.is_some(),
            addr: self.listener.local_addr(),
            secret: self.secret,
            peer: self.fabric.id(),
            listener,
        };
        (listener, handle)
    }

    /// Closes a listener. Who opened a communicator to it that was not accepted is told.
    pub(super) fn close_listener(&self, listener: u64) {
        let waiting = self.setup.lock().listens.remove(&listener).unwrap_or_default();
        for (link, shared) in waiting {
            link.refuse(&shared);
        }
    }

    /// The sending end of a communicator to the listener of `handle`, if it is up already.
    ///
    /// # Errors
    /// The peer cannot be reached in time, or is none of ours.
    pub(super) fn connect(&self, handle: &Handle) -> Result<Option<End>, Error> {
        let mut gone = Vec::new();
        let mut setup = self.setup.lock();
        self.look(&mut setup, PAUSE, &mut gone);
        if let Some(link) = setup.links.iter().find(|l| l.peer == handle.peer && l.is_usable()) {
            // A dial that is still under way goes on: its other end may be what we use, when the peer is ourselves.
            return Ok(Some((link.clone(), link.open(handle.listener))));
        }
        let now = Instant::now();
        let timeout = self.settings.connect_timeout;
        let dial = setup.dials.entry(handle.peer).or_insert_with(|| Dial {
            connecting: None,
            failed: None,
            deadline: now.checked_add(timeout).unwrap_or(now),
            again: now,
            told: false,
        });
        if let Some(error) = dial.failed.take() {
            // A peer that is busy lets a handshake pass; it is there all the same.
            if !mends(&error) || now + AGAIN >= dial.deadline {
                setup.dials.remove(&handle.peer);
                return Err(error);
            }
            if !std::mem::replace(&mut dial.told, true) {
                log::info(&format!("{} is tried again: {error}", handle.addr));
            }
            dial.again = now + AGAIN;
        }
        if dial.connecting.is_none() && now >= dial.again {
            let left = dial.deadline.saturating_duration_since(now);
            dial.connecting =
                Some(self.fabric.begin_connect(handle.addr, Some(&self.key_for(&handle.secret)), left)?);
        }
        Ok(None)
    }

    /// The receiving end of the next communicator that a peer opened to `listener`.
    pub(super) fn accept(&self, listener: u64) -> Option<End> {
        let mut gone = Vec::new();
        let mut setup = self.setup.lock();
        self.look(&mut setup, PAUSE, &mut gone);
        setup.listens.get_mut(&listener)?.pop_front()
    }

    /// Answers peers although nobody connects or accepts at the moment.
    pub(super) fn tend(&self) {
        let mut gone = Vec::new();
        if let Some(mut setup) = self.setup.try_lock() {
            self.look(&mut setup, TEND, &mut gone);
        }
    }

    /// Takes in what arrived; `gone` gets links that ended, to be dropped without the lock.
    fn look(&self, setup: &mut Setup, pause: Duration, gone: &mut Vec<Arc<Link>>) {
        let now = Instant::now();
        if setup.looked.is_some_and(|at| now.saturating_duration_since(at) < pause) {
            return;
        }
        setup.looked = Some(now);
        self.fabric.progress();
        match self.listener.poll_accept().and_then(|up| up.map(|c| Link::new(&self.fabric, c)).transpose()) {
            Ok(Some(link)) => setup.links.push(link),
            Ok(None) => {}
            Err(error) => log::warn(&format!("a peer that connected was lost: {error}")),
        }
        let mut up = Vec::new();
        for (&peer, dial) in &mut setup.dials {
            let Some(connecting) = &mut dial.connecting else { continue };
            let polled = connecting.poll();
            match polled.and_then(|up| up.map(|c| Link::new(&self.fabric, c)).transpose()) {
                Ok(None) => {}
                Ok(Some(link)) => {
                    setup.links.push(link);
                    up.push(peer);
                }
                Err(error) => {
                    dial.connecting = None;
                    dial.failed = Some(error);
                }
            }
        }
        for peer in up {
            setup.dials.remove(&peer);
        }
        let mut index = 0;
        while index < setup.links.len() {
            let link = setup.links[index].clone();
            link.progress();
            while let Some((listener, shared)) = link.next_opening() {
                match setup.listens.get_mut(&listener) {
                    Some(queue) => queue.push_back((link.clone(), shared)),
                    None => link.refuse(&shared),
                }
            }
            if link.is_over() {
                let link = setup.links.swap_remove(index);
                setup.over.push(link);
            } else {
                index += 1;
            }
        }
        gone.extend(setup.over.extract_if(.., |link| link.connection.is_peer_gone()));
    }

    /// Gives up what is half made. Called when nobody asks for it any more.
    pub(super) fn abandon(&self) {
        let mut setup = self.setup.lock();
        let dials = std::mem::take(&mut setup.dials);
        let links = (std::mem::take(&mut setup.links), std::mem::take(&mut setup.over));
        setup.listens.clear();
        drop(setup);
        drop((dials, links));
    }
}

/// True if the same peer may answer a little later.
fn mends(error: &Error) -> bool {
    matches!(
        error,
        Error::Bootstrap(BootstrapError::Closed { .. } | BootstrapError::Io { .. } | BootstrapError::Timeout { .. })
    )
}
