//! What a run is made of, with every time and size decided.

use super::world::Shape;
use crate::class::Class;
use crate::sim::{Cut, Faults, Part};
use crate::spray::SessionConfig;
use crate::time::{Span, Time};

/// A run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) shape: Shape,
    pub(super) config: SessionConfig,
    /// On a channel the nth send meets the nth receive: both in the order of the list.
    pub(super) messages: Vec<Message>,
    pub(super) streams: Vec<Stream>,
    /// In order of time.
    pub(super) acts: Vec<(Time, Act)>,
    pub(super) want: Want,
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) from: usize,
    pub(super) channel: u32,
    pub(super) class: Class,
    pub(super) eager: bool,
    pub(super) send_at: Time,
    pub(super) receive_at: Time,
    pub(super) len: usize,
    /// Bytes that its receive has room for.
    pub(super) capacity: usize,
}

/// Messages one after the other, so many at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) from: usize,
    pub(super) channel: u32,
    pub(super) class: Class,
    pub(super) eager: bool,
    pub(super) len: (usize, usize),
    pub(super) at_once: usize,
    pub(super) start: Time,
    pub(super) until: Time,
}

/// Something that happens at a time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    Cut(Cut),
    EndCut(Cut),
    /// Ends all cuts of a plane.
    Heal(u8),
    /// An end hears of a port's carrier.
    Carrier {
        side: usize,
        plane: u8,
        up: bool,
    },
    /// The backend moves a lane to ERR by itself, and says so.
    Error(usize, usize),
    /// The same with all lanes of a port at once, as when their completion queue overran.
    Overrun(usize, u8),
    Stop(usize, Span),
    Drain(usize, u8, bool),
    /// What befalls the packets of a plane; `None`: what befalls all.
    Faults(u16, Option<Faults>),
    Share(Part, f64),
    Dead(Part, bool),
    Pause(Part, Span),
    /// Somebody sends a packet that is none of ours.
    Stray,
    /// An end's process begins anew at the same addresses; the other hears of it at once, or never.
    Restart {
        side: usize,
        noticed: bool,
    },
}

/// What must come of it, besides what always must.
#[derive(Clone, Debug)]
pub(super) struct Want {
    /// Every operation has ended by then.
    pub(super) limit: Time,
    /// How long the run goes on after the last operation and the last act.
    pub(super) settle: Span,
    /// The run lasts until the last act at least.
    pub(super) whole: bool,
    /// Every lane is in use at the end.
    pub(super) all_back: bool,
    /// Sessions may end, and operations with them.
    pub(super) may_end: bool,
    /// Lanes that are given up at most, over both ends.
    pub(super) lanes_lost: Option<u64>,
    /// Longest time from a message's posting at both ends to its arrival.
    pub(super) slowest: Option<Span>,
    pub(super) ratios: Vec<Ratio>,
}

impl Default for Want {
    fn default() -> Self {
        Want {
            limit: Time::from_nanos(60_000_000_000),
            settle: Span::from_millis(50),
            whole: false,
            all_back: false,
            may_end: false,
            lanes_lost: None,
            slowest: None,
            ratios: Vec::new(),
        }
    }
}

/// What is compared between two times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Measure {
    /// Bytes of messages that arrived.
    Goodput,
    /// Bytes that a plane carried, of all that the planes did.
    Share(u8),
    /// Bytes by the lanes that nobody gave up.
    OtherLanes,
}

/// A measure per time is at least this part of what it was before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ratio {
    pub(super) measure: Measure,
    pub(super) between: (Time, Time),
    pub(super) before: (Time, Time),
    pub(super) least: f64,
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Messages that arrived.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Operations that ended with an error, where that is allowed.
    pub failed: u64,
    /// Lanes that either end gave up.
    pub lanes_lost: u64,
    /// Chunks of lost lanes that were posted again.
    pub replayed: u64,
    /// Chunks of lost lanes that had arrived.
    pub survived: u64,
    /// Rounds of the engines.
    pub steps: u64,
    /// Longest time from a message's posting at both ends to its arrival.
    pub slowest: Span,
    /// Simulated time.
    pub took: Span,
    /// What befell packets.
    pub net: crate::sim::NetStats,
    /// Bytes that arrived over each of the first eight planes.
    pub planes: [u64; 8],
}

/// A promise that a run broke.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    /// Which: `P1` to `P8`, or `expect` for what the scenario asked for.
    pub promise: &'static str,
    /// In simulated time since the run began.
    pub at: Time,
    /// What was seen.
    pub what: String,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} broken at {}: {}", self.promise, seconds(self.at), self.what)
    }
}

/// A time as logs show it.
pub(super) fn seconds(at: Time) -> String {
    format!("{}.{:09} s", at.as_nanos() / 1_000_000_000, at.as_nanos() % 1_000_000_000)
}
