//! What the two ends of a run say to each other: JSON in messages on a channel of its own, so it is as
//! authenticated as the connection.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use planespray::class::Class;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::api::{Buffer, Connection, Fabric, Pending, SendOptions};
use super::options::{Extent, Operation};

/// Channel of these messages; data goes on [`DATA`].
const CONTROL: u32 = 0;
pub(super) const DATA: u32 = 1;
/// Longest of these messages.
const MAX_MESSAGE: usize = 4096;
/// How often an idle end looks; it does not spin, so that it does not take a core from a probe.
const LOOK: Duration = Duration::from_micros(100);

/// What moves the bytes of a sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Transport {
    Ours,
    Tcp { sockets: u8 },
}

/// One sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) transport: Transport,
    pub(super) op: Operation,
    pub(super) lat: bool,
    pub(super) size: u64,
    pub(super) slots: u32,
    pub(super) extent: Extent,
    pub(super) class: u8,
    pub(super) verify: bool,
    pub(super) flip: bool,
    /// Number of the first message; no two samples of a run share numbers.
    pub(super) first: u64,
}

impl Job {
    /// Most messages of this sample.
    pub(super) const fn limit(&self) -> u64 {
        match self.extent {
            Extent::Iterations(n) => n,
            Extent::Duration(_) => u64::MAX,
        }
    }

    /// How long nothing may arrive: even at 8 MiB/s all slots pass in that time.
    pub(super) fn stall(&self) -> Duration {
        super::STALL + Duration::from_secs((self.size * u64::from(self.slots)) >> 23)
    }

    pub(super) fn class(&self) -> Class {
        Class::ALL.into_iter().find(|c| c.index() == usize::from(self.class)).unwrap_or_default()
    }
}

/// From client to server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ToServer {
    Job(Job),
    /// All `sent` messages are out; the client posted this many receives for answers.
    Finish {
        sent: u64,
        posted: u64,
    },
    Bye,
}

/// From server to client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ToClient {
    Ready(Ready),
    /// Receives posted so far; no more will be. The client fills those in excess with empty messages.
    Stopped {
        posted: u64,
    },
    Report(Report),
    /// The server gives up.
    Failed {
        what: String,
    },
}

/// The server is ready for the first message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ready {
    /// Window to read from.
    pub(super) window: Option<Vec<u8>>,
    /// TCP port, and what each socket must say first.
    pub(super) tcp: Option<(u16, u64)>,
    /// Core that the server runs on.
    pub(super) cpu: Option<usize>,
    /// UDP ports at which its planes receive.
    pub(super) udp_ports: Vec<u16>,
}

/// What the server saw of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) wrong: u64,
    pub(super) lost: u64,
    pub(super) dup: u64,
    pub(super) cpu_ns: u64,
    /// Longest time that the server's polling loop stood still.
    pub(super) gap_ns: u64,
    pub(super) retransmits: u64,
    /// Faults injected since the run began: loss, duplicates, reordering.
    pub(super) injected: [u64; 3],
}

/// One end of the conversation.
pub(super) struct Talk<'a> {
    connection: &'a Connection,
    inbox: Option<Pending>,
    outbox: Vec<Buffer>,
    sending: VecDeque<Pending>,
}

impl<'a> Talk<'a> {
    pub(super) fn new(fabric: &Fabric, connection: &'a Connection) -> Result<Self, String> {
        let alloc = || fabric.alloc(MAX_MESSAGE).map_err(|e| e.to_string());
        let inbox = Some(receive(connection, alloc()?)?);
        Ok(Talk { connection, inbox, outbox: vec![alloc()?, alloc()?], sending: VecDeque::new() })
    }

    pub(super) fn send(&mut self, message: &impl Serialize) -> Result<(), String> {
        let text = serde_json::to_vec(message).map_err(|e| e.to_string())?;
        let deadline = Instant::now() + super::STALL;
        let mut buffer = loop {
            if let Some(buffer) = self.outbox.pop() {
                break buffer;
            }
            let Some(mut oldest) = self.sending.pop_front() else { return Err("no buffer left to talk with".into()) };
            match oldest.test() {
                Some(outcome) => {
                    outcome.result.map_err(|e| e.to_string())?;
                    self.outbox.extend(outcome.buffer);
                }
                None => {
                    self.sending.push_front(oldest);
                    pause(deadline, "said")?;
                }
            }
        };
        buffer.get_mut(..text.len()).ok_or("a control message is too long")?.copy_from_slice(&text);
        let options = SendOptions { class: Class::Latency, rendezvous: false, channel: CONTROL };
        loop {
            match self.connection.send(options, buffer, text.len()) {
                Ok(pending) => {
                    self.sending.push_back(pending);
                    return Ok(());
                }
                Err(refused) if refused.error.is_back_pressure() => {
                    buffer = refused.buffer;
                    pause(deadline, "said")?;
                }
                Err(refused) => return Err(refused.error.to_string()),
            }
        }
    }

    /// The next message, if it is there.
    pub(super) fn try_receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>, String> {
        let Some(inbox) = self.inbox.as_mut() else { return Err("the conversation is over".into()) };
        let Some(outcome) = inbox.test() else { return Ok(None) };
        self.inbox = None;
        let len = outcome.result.map_err(|e| e.to_string())?;
        let buffer = outcome.buffer.ok_or("a receive ended without its buffer")?;
        let message = serde_json::from_slice(buffer.get(..len).unwrap_or_default())
            .map_err(|e| format!("the peer speaks another version of bench ({e}); use the same one at both ends"));
        self.inbox = Some(receive(self.connection, buffer)?);
        message.map(Some)
    }

    /// Waits for the next message for at most `limit`; `None` if there was none.
    pub(super) fn receive_within<T: DeserializeOwned>(&mut self, limit: Duration) -> Result<Option<T>, String> {
        let deadline = Instant::now() + limit;
        loop {
            let message = self.try_receive()?;
            if message.is_some() || Instant::now() >= deadline {
                return Ok(message);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits for the next message for at most `limit`.
    pub(super) fn receive<T: DeserializeOwned>(&mut self, limit: Duration) -> Result<T, String> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(message) = self.try_receive()? {
                return Ok(message);
            }
            pause(deadline, "heard")?;
        }
    }

    /// Waits until what was said is delivered.
    pub(super) fn flush(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + super::STALL;
        while let Some(mut oldest) = self.sending.pop_front() {
            match oldest.test() {
                Some(outcome) => {
                    outcome.result.map_err(|e| e.to_string())?;
                    self.outbox.extend(outcome.buffer);
                }
                None => {
                    self.sending.push_front(oldest);
                    pause(deadline, "said")?;
                }
            }
        }
        Ok(())
    }
}

fn pause(deadline: Instant, what: &str) -> Result<(), String> {
    if Instant::now() >= deadline {
        return Err(format!("nothing could be {what} for too long; the peer hangs, or packets do not get through"));
    }
    std::thread::sleep(LOOK);
    Ok(())
}

fn receive(connection: &Connection, mut buffer: Buffer) -> Result<Pending, String> {
    let deadline = Instant::now() + super::STALL;
    loop {
        match connection.receive(CONTROL, buffer) {
            Ok(pending) => return Ok(pending),
            Err(refused) if refused.error.is_back_pressure() => {
                buffer = refused.buffer;
                pause(deadline, "heard")?;
            }
            Err(refused) => return Err(refused.error.to_string()),
        }
    }
}
