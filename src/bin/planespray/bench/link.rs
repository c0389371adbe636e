//! One end's connection, and the buffers that rotate through it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use planespray::class::Class;

use super::api::{Buffer, Connection, Error, Fabric, Outcome, Pending, Refused, SendOptions};
use super::options::Operation;
use super::talk::{DATA, Job};

/// How long one wait lasts when waiting may sleep.
const NAP: Duration = Duration::from_millis(20);

/// Set by Ctrl-C.
#[derive(Clone, Debug, Default)]
pub(super) struct Stop(pub(super) Arc<AtomicBool>);

impl Stop {
    pub(super) fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection and how to use it.
pub(super) struct Link<'a> {
    pub(super) fabric: &'a Fabric,
    pub(super) connection: &'a Connection,
    pub(super) busy: bool,
    pub(super) stop: &'a Stop,
}

/// Buffers of one size, kept from sample to sample.
#[derive(Default)]
pub(super) struct Pool {
    size: usize,
    free: Vec<Buffer>,
}

impl Pool {
    /// `count` buffers of `size` bytes.
    pub(super) fn take(&mut self, fabric: &Fabric, size: usize, count: usize) -> Result<Vec<Buffer>, String> {
        if self.size != size {
            self.free.clear();
            self.size = size;
        }
        while self.free.len() < count {
            let buffer = fabric.alloc(size).map_err(|e| {
                format!(
                    "no memory for buffer {} of {count}, {size} bytes each ({e}); use -t or -s with less",
                    self.free.len()
                )
            })?;
            self.free.push(buffer);
        }
        Ok(self.free.split_off(self.free.len() - count))
    }

    pub(super) fn give(&mut self, buffers: impl IntoIterator<Item = Buffer>) {
        let size = self.size;
        self.free.extend(buffers.into_iter().filter(|b| b.len() == size));
    }
}

/// Operations in order of their posting.
#[derive(Default)]
pub(super) struct Queue(VecDeque<Pending>);

/// An operation that is over: its buffer and the bytes moved.
pub(super) type Done = (Buffer, usize);

impl Queue {
    pub(super) fn push(&mut self, pending: Pending) {
        self.0.push_back(pending);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The oldest operation's outcome, if it is there; drives the engine. Waits a moment if `wait`.
    pub(super) fn pop(&mut self, wait: bool) -> Result<Option<Done>, String> {
        let Some(front) = self.0.front_mut() else { return Ok(None) };
        let outcome = if wait {
            let outcome = front.wait(NAP);
            if outcome.buffer.is_none() {
                return Ok(None);
            }
            outcome
        } else {
            match front.test() {
                Some(outcome) => outcome,
                None => return Ok(None),
            }
        };
        self.0.pop_front();
        let Outcome { buffer, result } = outcome;
        let len = result.map_err(|e| e.to_string())?;
        Ok(Some((buffer.ok_or("an operation ended without its buffer")?, len)))
    }
}

/// What became of an operation that was to be posted.
pub(super) enum Posted {
    Yes(Pending),
    /// Too much is outstanding: later.
    Full(Buffer),
}

fn posted(result: Result<Pending, Refused>) -> Result<Posted, String> {
    match result {
        Ok(pending) => Ok(Posted::Yes(pending)),
        Err(Refused { buffer, error, .. }) if Error::is_back_pressure(&error) => Ok(Posted::Full(buffer)),
        Err(refused) => Err(refused.error.to_string()),
    }
}

impl Link<'_> {
    pub(super) fn send(&self, job: &Job, buffer: Buffer, len: usize) -> Result<Posted, String> {
        let options = SendOptions { class: job.class(), rendezvous: job.op == Operation::Write, channel: DATA };
        posted(self.connection.send(options, buffer, len))
    }

    /// A message without bytes.
    pub(super) fn send_empty(&self, class: Class, buffer: Buffer) -> Result<Posted, String> {
        posted(self.connection.send(SendOptions { class, rendezvous: false, channel: DATA }, buffer, 0))
    }

    pub(super) fn receive(&self, buffer: Buffer) -> Result<Posted, String> {
        posted(self.connection.receive(DATA, buffer))
    }

    /// Posts receives from `spare`, as far as they are taken.
    pub(super) fn post(&self, spare: &mut Vec<Buffer>, queue: &mut Queue, limit: usize) -> Result<u64, String> {
        let mut count = 0;
        while count < limit as u64 {
            let Some(buffer) = spare.pop() else { break };
            match self.receive(buffer)? {
                Posted::Yes(pending) => {
                    queue.push(pending);
                    count += 1;
                }
                Posted::Full(buffer) => {
                    spare.push(buffer);
                    break;
                }
            }
        }
        Ok(count)
    }

    /// Retransmitted packets so far.
    pub(super) fn retransmits(&self) -> u64 {
        self.fabric.stats().planes.iter().map(|p| p.retransmits).sum()
    }

    /// Faults injected so far: loss, duplicates, reordering.
    pub(super) fn injected(&self) -> [u64; 3] {
        let i = self.fabric.stats().injected;
        [i.loss, i.dup, i.reorder]
    }
}
