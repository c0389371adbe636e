//! Messages under way, and the memory they use.

use super::plan::{Message, Outcome};
use super::world::World;
use crate::engine::OpId;
use crate::lanes::MrId;
use crate::mem::Region;
use crate::time::Time;

/// What a buffer's owner writes into it once it is back.
const USED: u8 = 0x5a;
/// What a receive's buffer is filled with before.
const FRESH: u8 = 0xee;
/// Messages begin at so many places of the same random bytes.
const PLACES: usize = 4099;

/// Buffers that are back before one of them is used again.
const KEPT: usize = 16;

/// Registered memory of one end.
struct Buffer {
    side: usize,
    region: Region,
    mr: MrId,
}

/// A message under way.
struct Flight {
    number: u64,
    stream: Option<usize>,
    message: Message,
    source: Option<Buffer>,
    target: Option<Buffer>,
    send: Option<OpId>,
    receive: Option<OpId>,
    sent: bool,
    received: bool,
}

/// All of them.
pub(super) struct Traffic {
    random: Vec<u8>,
    flights: Vec<Flight>,
    /// Back with their owners.
    idle: Vec<Buffer>,
    numbers: u64,
    may_end: bool,
}

impl Traffic {
    /// `longest` is the most bytes of a message.
    pub(super) fn new(seed: u64, longest: usize, may_end: bool) -> Traffic {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0xb17e5);
        let mut random = vec![0; longest + PLACES];
        rng.fill(&mut random);
        Traffic { random, flights: Vec::new(), idle: Vec::new(), numbers: 0, may_end }
    }

    pub(super) fn add(&mut self, message: Message, stream: Option<usize>) {
        self.numbers += 1;
        self.flights.push(Flight {
            number: self.numbers - 1,
            stream,
            message,
            source: None,
            target: None,
            send: None,
            receive: None,
            sent: false,
            received: false,
        });
    }

    /// Messages of a stream that are not over.
    pub(super) fn of(&self, stream: usize) -> usize {
        self.flights.iter().filter(|f| f.stream == Some(stream)).count()
    }

    pub(super) fn is_over(&self) -> bool {
        self.flights.is_empty()
    }

    /// When the next operation is to be posted.
    pub(super) fn next(&self) -> Option<Time> {
        let sends = self.flights.iter().filter(|f| f.send.is_none() && !f.sent).map(|f| f.message.send_at);
        let receives = self.flights.iter().filter(|f| f.receive.is_none() && !f.received).map(|f| f.message.receive_at);
        sends.chain(receives).min()
    }

    /// Posts what is due.
    pub(super) fn post(&mut self, world: &mut World) {
        let now = world.now;
        for i in 0..self.flights.len() {
            let f = &self.flights[i];
            let m = f.message;
            if f.send.is_none() && !f.sent && m.send_at <= now {
                let place = (f.number as usize * 61) % PLACES;
                let buffer = take(&mut self.idle, world, m.from, m.capacity);
                // It is as long as asked for.
                let _ = buffer.region.write_at(0, &self.random[place..place + m.len]);
                self.flights[i].send = Some(world.send(&m, &buffer.region, buffer.mr));
                self.flights[i].source = Some(buffer);
            }
            let f = &self.flights[i];
            if f.receive.is_none() && !f.received && m.receive_at <= now {
                let buffer = take(&mut self.idle, world, 1 - m.from, m.capacity);
                let _ = buffer.region.write_at(0, &vec![FRESH; m.capacity]);
                self.flights[i].receive = Some(world.receive(&m, &buffer.region, buffer.mr));
                self.flights[i].target = Some(buffer);
            }
        }
    }

    /// Takes what is over, and looks at its bytes.
    pub(super) fn check(
        &mut self,
        world: &mut World,
        outcome: &mut Outcome,
        log: &mut impl FnMut(Time, usize, String),
    ) -> Result<(), (&'static str, String)> {
        let now = world.now;
        let mut over = false;
        for f in &mut self.flights {
            let m = f.message;
            if let Some(op) = f.send
                && let Some(result) = world.take(m.from, op)
            {
                log(now, m.from, format!("send of message {} of {} bytes: {result:?}", f.number, m.len));
                (f.send, f.sent) = (None, true);
                over = true;
                outcome.failed += u64::from(result.is_err());
                if !self.may_end && result != Ok(m.len as u64) {
                    let what = format!("send of message {} of {} bytes ended with {result:?}", f.number, m.len);
                    return Err(("P1", what));
                }
                // Its owner uses it again: nothing may read it any more.
                give_back(&mut self.idle, f.source.take());
            }
            if let Some(op) = f.receive
                && let Some(result) = world.take(1 - m.from, op)
            {
                log(now, 1 - m.from, format!("receive of message {} of {} bytes: {result:?}", f.number, m.len));
                (f.receive, f.received) = (None, true);
                over = true;
                match result {
                    Ok(n) if n == m.len as u64 => {
                        let place = (f.number as usize * 61) % PLACES;
                        let bytes = f.target.as_ref().map(|b| read(&b.region)).unwrap_or_default();
                        let want = self.random[place..place + m.len].iter().chain(std::iter::repeat(&FRESH));
                        if let Some((at, (is, want))) = bytes.iter().zip(want).enumerate().find(|(_, (a, b))| a != b) {
                            let promise = if at < m.len { "P1" } else { "P2" };
                            let what = format!("byte {at} of message {} is {is:#x}, not {want:#x}", f.number);
                            return Err((promise, what));
                        }
                        outcome.messages += 1;
                        outcome.bytes += m.len as u64;
                        outcome.slowest = outcome.slowest.max(now.since(m.send_at.max(m.receive_at)));
                    }
                    Err(_) if self.may_end => outcome.failed += 1,
                    result => {
                        let what = format!("receive of message {} of {} bytes ended with {result:?}", f.number, m.len);
                        return Err(("P1", what));
                    }
                }
                give_back(&mut self.idle, f.target.take());
            }
        }
        if over {
            self.flights.retain(|f| !(f.sent && f.received));
        }
        Ok(())
    }

    /// Buffers that are back with their owners stay as these left them.
    pub(super) fn check_memory(&self) -> Result<(), (&'static str, String)> {
        for buffer in &self.idle {
            if let Some(at) = read(&buffer.region).iter().position(|&b| b != USED) {
                let (side, len) = (buffer.side, buffer.region.len());
                let what = format!("byte {at} of {len} at end {side} changed after its buffer was given back");
                return Err(("P2", what));
            }
        }
        Ok(())
    }

    /// An end's process is gone: with it its memory, and what it waited for.
    pub(super) fn lose(&mut self, side: usize) {
        for f in &mut self.flights {
            let half_posted = f.send.is_some() || f.receive.is_some() || f.sent || f.received;
            if !half_posted {
                continue;
            }
            if f.message.from == side || f.send.is_none() {
                (f.send, f.sent, f.source) = (None, true, f.source.take().filter(|b| b.side != side));
            }
            if f.message.from != side || f.receive.is_none() {
                (f.receive, f.received, f.target) = (None, true, f.target.take().filter(|b| b.side != side));
            }
        }
        self.idle.retain(|b| b.side != side);
        self.flights.retain(|f| !(f.sent && f.received));
    }

    pub(super) fn waiting(&self) -> String {
        let text = |f: &Flight| {
            let (m, yes) = (f.message, |b: bool| if b { "over" } else { "waits" });
            let (sent, received) = (yes(f.sent), yes(f.received));
            format!("message {} of {} bytes from end {}: send {sent}, receive {received}", f.number, m.len, m.from)
        };
        self.flights.iter().map(text).collect::<Vec<_>>().join("; ")
    }
}

/// A buffer that is back and fits, or a new one.
fn take(idle: &mut Vec<Buffer>, world: &mut World, side: usize, len: usize) -> Buffer {
    // Some are kept back: what comes late must not change them.
    let fits = |b: &Buffer| b.side == side && b.region.len() == len;
    if idle.len() > KEPT
        && let Some(at) = idle.iter().position(fits)
    {
        return idle.remove(at);
    }
    let region = Region::from_vec(vec![0; len]);
    let mr = world.register(side, &region);
    Buffer { side, region, mr }
}

fn give_back(idle: &mut Vec<Buffer>, buffer: Option<Buffer>) {
    if let Some(buffer) = buffer {
        let _ = buffer.region.write_at(0, &vec![USED; buffer.region.len()]);
        idle.push(buffer);
    }
}

fn read(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    let _ = region.read_at(0, &mut bytes);
    bytes
}
