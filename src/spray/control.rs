//! Control messages: a header and records, little-endian. `docs/protocol.md` has the tables.

use super::failure::Violation;
use super::grant::{Grant, SLOTS};
use super::records::{Answer, Ask, LaneLife, Offer};
use crate::lanes::MAX_PORTS;

/// Version of everything in `docs/protocol.md`.
pub const VERSION: u8 = 1;
/// Feature bits of this end, exchanged by the bootstrap. None is defined yet.
pub const FEATURES: u64 = 0;

/// Bytes of the header.
pub(super) const HEADER: usize = 24;
/// Records of at least this type may be ignored by who does not know them.
const OPTIONAL: u8 = 128;

const GRANT: u8 = 1;
const REQUEST: u8 = 2;
const TOTAL: u8 = 3;
const EAGER: u8 = 4;
const CREDIT: u8 = 5;
const BUDGET: u8 = 6;
const BYE: u8 = 7;
const FAILED: u8 = 8;
const FENCE: u8 = 9;
const FENCED: u8 = 10;
const ASK: u8 = 11;
const ANSWER: u8 = 12;
const OFFER: u8 = 13;
const READY: u8 = 14;
const DRAIN: u8 = 15;

/// What every control message says first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    /// Generation of the lane it travels on.
    pub(super) generation: u16,
    /// Receives that the sender of this message has posted on this lane since its start.
    pub(super) credit: u32,
    /// The session.
    pub(super) nonce: u64,
    /// Eager messages that the sender of this message accepts in all.
    pub(super) eager_limit: u32,
}

/// One record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Record<'a> {
    /// A message may be written into a window.
    Grant { channel: u32, number: u32, grant: Grant },
    /// A message waits for its grant.
    Request { channel: u32, number: u32, len: u64 },
    /// A message is shorter than its grant.
    Total { channel: u32, number: u32, total: u64 },
    /// A whole message.
    Eager { channel: u32, number: u32, payload: &'a [u8] },
    /// Receives posted on another lane.
    Credit { lane: u16, generation: u16, posted: u32 },
    /// Bytes that may be in flight towards one of the sender's ports; `None`: any.
    Budget { port: u8, number: u16, bytes: Option<u64> },
    /// The sender has sent this many messages in all, and sends no more.
    Bye { messages: u64 },
    /// The sender of this message gives it up.
    Failed { channel: u32, number: u32, reason: u8 },
    /// The sender has given a lane up; the other end is to do the same.
    Fence(LaneLife),
    /// The sender's queue pair of a lane is gone, and those of all earlier lives.
    Fenced(LaneLife),
    /// What became of a chunk?
    Ask(Ask),
    /// This.
    Answer(Answer),
    /// A new queue pair for a lane.
    Offer(Offer),
    /// The sender's new queue pair is connected and has its receives.
    Ready(LaneLife),
    /// A port of the sender's is to be left alone, or used again.
    Drain { port: u8, on: bool, number: u16 },
    /// A record that need not be understood.
    Optional(u8),
}

/// Writes a control message into a buffer of at least [`HEADER`] bytes.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    buf: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(buf: &'a mut [u8]) -> Self {
        Writer { buf, at: HEADER }
    }

    /// Appends a record; false if it does not fit (nothing is written then).
    pub(super) fn push(&mut self, record: &Record<'_>) -> bool {
        let body = match record {
            Record::Grant { grant, .. } => 28 + 4 * key_count(grant),
            Record::Request { .. } | Record::Total { .. } => 16,
            Record::Eager { payload, .. } => 8 + payload.len(),
            Record::Credit { .. } | Record::Bye { .. } => 8,
            Record::Budget { .. } | Record::Failed { .. } => 12,
            Record::Fence(_) | Record::Fenced(_) | Record::Ready(_) => LaneLife::LEN,
            Record::Drain { .. } => 4,
            Record::Ask(_) => Ask::LEN,
            Record::Answer(_) => Answer::LEN,
            Record::Offer(_) => Offer::LEN,
            Record::Optional(_) => 0,
        };
        let Some(mut w) = self.open(record_type(record), body) else { return false };
        match *record {
            Record::Grant { channel, number, grant } => {
                let keys = key_count(&grant);
                w.u32(channel);
                w.u32(number);
                w.u16(grant.slot | u16::from(grant.generation) << 12);
                w.u8(grant.unit_shift);
                w.u8(keys as u8);
                w.u64(grant.addr);
                w.u64(grant.capacity);
                for &key in &grant.keys[..keys] {
                    w.u32(key);
                }
            }
            Record::Request { channel, number, len: value } | Record::Total { channel, number, total: value } => {
                w.u32(channel);
                w.u32(number);
                w.u64(value);
            }
            Record::Eager { channel, number, payload } => {
                w.u32(channel);
                w.u32(number);
                w.bytes(payload);
            }
            Record::Credit { lane, generation, posted } => {
                w.u16(lane);
                w.u16(generation);
                w.u32(posted);
            }
            Record::Budget { port, number, bytes } => {
                w.u8(port);
                w.u8(u8::from(bytes.is_some()));
                w.u16(number);
                w.u64(bytes.unwrap_or(0));
            }
            Record::Bye { messages } => w.u64(messages),
            Record::Failed { channel, number, reason } => {
                w.u32(channel);
                w.u32(number);
                w.u32(u32::from(reason));
            }
            Record::Fence(life) | Record::Fenced(life) | Record::Ready(life) => life.emit(&mut w),
            Record::Ask(ask) => ask.emit(&mut w),
            Record::Answer(answer) => answer.emit(&mut w),
            Record::Offer(offer) => offer.emit(&mut w),
            Record::Drain { port, on, number } => {
                w.u8(port);
                w.u8(u8::from(on));
                w.u16(number);
            }
            Record::Optional(_) => {}
        }
        true
    }

    /// Appends an eager record whose payload `fill` writes; false if it does not fit or `fill` fails.
    pub(super) fn push_eager(
        &mut self,
        channel: u32,
        number: u32,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> bool {
        let before = self.at;
        let Some(mut w) = self.open(EAGER, 8 + len) else { return false };
        w.u32(channel);
        w.u32(number);
        if !fill(&mut w.0[..len]) {
            self.at = before;
            return false;
        }
        true
    }

    /// Reserves a record and writes its head; the rest of it, padding included, is returned zeroed.
    fn open(&mut self, kind: u8, body: usize) -> Option<Out<'_>> {
        let whole = 4 + body.next_multiple_of(4);
        let len = u16::try_from(body).ok()?;
        let room = self.buf.get_mut(self.at..self.at + whole)?;
        self.at += whole;
        room[0] = kind;
        room[1] = 0;
        room[2..4].copy_from_slice(&len.to_le_bytes());
        room[4 + body..].fill(0);
        Some(Out(&mut room[4..]))
    }

    /// True if no record was written.
    pub(super) fn is_empty(&self) -> bool {
        self.at == HEADER
    }

    /// Writes the header and returns the message's length.
    pub(super) fn finish(self, header: &Header) -> usize {
        header.emit((self.at - HEADER) as u32, self.buf);
        self.at
    }
}

impl Header {
    /// Writes the header of a message with `records` bytes of records.
    pub(super) fn emit(&self, records: u32, buf: &mut [u8]) {
        let mut w = Out(&mut buf[..HEADER]);
        w.u8(VERSION);
        w.u8(0);
        w.u16(self.generation);
        w.u32(self.credit);
        w.u64(self.nonce);
        w.u32(self.eager_limit);
        w.u32(records);
    }

    /// Reads a message's header; the records follow.
    pub(super) fn parse(message: &[u8]) -> Result<(Header, Reader<'_>), Violation> {
        let (head, records) = message.split_at_checked(HEADER).ok_or(Violation::Length)?;
        let mut r = In(head);
        if r.u8() != Some(VERSION) {
            return Err(Violation::Version);
        }
        let read = |r: &mut In<'_>| {
            r.u8()?;
            let generation = r.u16()?;
            let (credit, nonce, eager_limit) = (r.u32()?, r.u64()?, r.u32()?);
            Some((Header { generation, credit, nonce, eager_limit }, r.u32()?))
        };
        let (header, length) = read(&mut r).ok_or(Violation::Length)?;
        if length as usize != records.len() {
            return Err(Violation::Length);
        }
        Ok((header, Reader { rest: records }))
    }
}

/// The records of a message.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// The next record; `None` at the end.
    pub(super) fn next(&mut self) -> Option<Result<Record<'a>, Violation>> {
        if self.rest.is_empty() {
            return None;
        }
        let record = self.read();
        if record.is_err() {
            self.rest = &[];
        }
        Some(record)
    }

    fn read(&mut self) -> Result<Record<'a>, Violation> {
        let (head, rest) = self.rest.split_at_checked(4).ok_or(Violation::Record)?;
        let len = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let (body, rest) = rest.split_at_checked(len.next_multiple_of(4)).ok_or(Violation::Record)?;
        self.rest = rest;
        let mut r = In(&body[..len]);
        let record = parse(head[0], &mut r)?.ok_or(Violation::Record)?;
        if r.0.is_empty() { Ok(record) } else { Err(Violation::Record) }
    }
}

/// `Ok(None)` if the body is too short.
fn parse<'a>(kind: u8, r: &mut In<'a>) -> Result<Option<Record<'a>>, Violation> {
    Ok(match kind {
        GRANT => match grant(r) {
            Some(Ok(record)) => Some(record),
            Some(Err(violation)) => return Err(violation),
            None => None,
        },
        REQUEST => numbered(r).map(|(channel, number, len)| Record::Request { channel, number, len }),
        TOTAL => numbered(r).map(|(channel, number, total)| Record::Total { channel, number, total }),
        EAGER => match (r.u32(), r.u32()) {
            (Some(channel), Some(number)) => {
                let payload = std::mem::take(&mut r.0);
                Some(Record::Eager { channel, number, payload })
            }
            _ => None,
        },
        CREDIT => match (r.u16(), r.u16(), r.u32()) {
            (Some(lane), Some(generation), Some(posted)) => Some(Record::Credit { lane, generation, posted }),
            _ => None,
        },
        BUDGET => match (r.u8(), r.u8(), r.u16(), r.u64()) {
            (Some(port), Some(bounded), Some(number), Some(bytes)) => {
                Some(Record::Budget { port, number, bytes: (bounded != 0).then_some(bytes) })
            }
            _ => None,
        },
        BYE => r.u64().map(|messages| Record::Bye { messages }),
        FAILED => match (r.u32(), r.u32(), r.u32()) {
            (Some(channel), Some(number), Some(reason)) => {
                Some(Record::Failed { channel, number, reason: reason as u8 })
            }
            _ => None,
        },
        FENCE => LaneLife::parse(r).map(Record::Fence),
        FENCED => LaneLife::parse(r).map(Record::Fenced),
        ASK => Ask::parse(r).map(Record::Ask),
        ANSWER => Answer::parse(r).map(Record::Answer),
        OFFER => Offer::parse(r).map(Record::Offer),
        READY => LaneLife::parse(r).map(Record::Ready),
        DRAIN => match (r.u8(), r.u8(), r.u16()) {
            (Some(port), Some(on), Some(number)) => Some(Record::Drain { port, on: on != 0, number }),
            _ => None,
        },
        OPTIONAL.. => {
            r.0 = &[];
            Some(Record::Optional(kind))
        }
        _ => return Err(Violation::RecordType),
    })
}

fn numbered(r: &mut In<'_>) -> Option<(u32, u32, u64)> {
    Some((r.u32()?, r.u32()?, r.u64()?))
}

fn grant<'a>(r: &mut In<'_>) -> Option<Result<Record<'a>, Violation>> {
    use super::chunk::{MAX_UNIT_SHIFT, MAX_UNITS, MIN_UNIT_SHIFT};
    let (channel, number, slot, unit_shift, keys) = (r.u32()?, r.u32()?, r.u16()?, r.u8()?, r.u8()?);
    let (addr, capacity) = (r.u64()?, r.u64()?);
    if !(MIN_UNIT_SHIFT..=MAX_UNIT_SHIFT).contains(&unit_shift)
        || capacity > MAX_UNITS << unit_shift
        || addr.checked_add(capacity).is_none()
        || keys == 0
        || usize::from(keys) > MAX_PORTS
        || slot >> 15 != 0
    {
        return Some(Err(Violation::Grant));
    }
    let mut grant = Grant {
        addr,
        capacity,
        keys: [0; MAX_PORTS],
        slot: slot & (SLOTS as u16 - 1),
        generation: (slot >> 12) as u8,
        unit_shift,
    };
    let keys = usize::from(keys);
    for key in &mut grant.keys[..keys] {
        *key = r.u32()?;
    }
    if keys == 1 {
        grant.keys = [grant.keys[0]; MAX_PORTS];
    }
    Some(Ok(Record::Grant { channel, number, grant }))
}

/// Keys to write: one if all are the same.
fn key_count(grant: &Grant) -> usize {
    if grant.keys.iter().all(|&k| k == grant.keys[0]) { 1 } else { MAX_PORTS }
}

fn record_type(record: &Record<'_>) -> u8 {
    match record {
        Record::Grant { .. } => GRANT,
        Record::Request { .. } => REQUEST,
        Record::Total { .. } => TOTAL,
        Record::Eager { .. } => EAGER,
        Record::Credit { .. } => CREDIT,
        Record::Budget { .. } => BUDGET,
        Record::Bye { .. } => BYE,
        Record::Failed { .. } => FAILED,
        Record::Fence(_) => FENCE,
        Record::Fenced(_) => FENCED,
        Record::Ask(_) => ASK,
        Record::Answer(_) => ANSWER,
        Record::Offer(_) => OFFER,
        Record::Ready(_) => READY,
        Record::Drain { .. } => DRAIN,
        Record::Optional(kind) => *kind,
    }
}

/// Little-endian values into a slice whose length was checked.
pub(super) struct Out<'a>(&'a mut [u8]);

impl Out<'_> {
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        let (head, rest) = std::mem::take(&mut self.0).split_at_mut(bytes.len());
        head.copy_from_slice(bytes);
        self.0 = rest;
    }
    pub(super) fn u8(&mut self, v: u8) {
        self.bytes(&[v]);
    }
    pub(super) fn u16(&mut self, v: u16) {
        self.bytes(&v.to_le_bytes());
    }
    pub(super) fn u32(&mut self, v: u32) {
        self.bytes(&v.to_le_bytes());
    }
    pub(super) fn u64(&mut self, v: u64) {
        self.bytes(&v.to_le_bytes());
    }
}

/// Little-endian values out of a slice; `None` at its end.
pub(super) struct In<'a>(&'a [u8]);

impl In<'_> {
    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }
    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }
    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::{LaneAddress, Remote};
    use proptest::prelude::*;

    const H: Header = Header { generation: 7, credit: 9, nonce: 0x0123_4567_89ab_cdef, eager_limit: 11 };

    fn lives() -> impl Strategy<Value = LaneLife> {
        (any::<u16>(), any::<u16>()).prop_map(|(lane, generation)| LaneLife { lane, generation })
    }

    fn records() -> impl Strategy<Value = Record<'static>> {
        const PAYLOAD: [u8; 50] = [0x5a; 50];
        let ids = (any::<u32>(), any::<u32>());
        prop_oneof![
            (ids, any::<u64>()).prop_map(|((channel, number), len)| Record::Request { channel, number, len }),
            (ids, any::<u64>()).prop_map(|((channel, number), total)| Record::Total { channel, number, total }),
            (ids, 0usize..50).prop_map(|((channel, number), n)| Record::Eager {
                channel,
                number,
                payload: &PAYLOAD[..n]
            }),
            (any::<u16>(), any::<u16>(), any::<u32>()).prop_map(|(lane, generation, posted)| Record::Credit {
                lane,
                generation,
                posted
            }),
            (any::<u8>(), any::<u16>(), any::<Option<u64>>()).prop_map(|(port, number, bytes)| Record::Budget {
                port,
                number,
                bytes
            }),
            any::<u64>().prop_map(|messages| Record::Bye { messages }),
            (ids, any::<u8>()).prop_map(|((channel, number), reason)| Record::Failed { channel, number, reason }),
            (128u8..).prop_map(Record::Optional),
            lives().prop_map(Record::Fence),
            lives().prop_map(Record::Fenced),
            lives().prop_map(Record::Ready),
            (any::<u8>(), any::<bool>(), any::<u16>()).prop_map(|(port, on, number)| Record::Drain {
                port,
                on,
                number
            }),
            (lives(), any::<u64>(), ids, any::<u16>(), any::<u16>()).prop_map(
                |(life, cookie, (channel, number), first, units)| Record::Ask(Ask {
                    life,
                    cookie,
                    channel,
                    number,
                    first,
                    units
                })
            ),
            (lives(), any::<u64>(), ids, any::<u32>(), any::<bool>(), any::<u16>()).prop_map(
                |(life, cookie, (channel, number), watermark, finished, bits)| {
                    Record::Answer(Answer { life, cookie, channel, number, watermark, finished, bits })
                }
            ),
            (lives(), any::<[u32; 6]>(), any::<u16>(), any::<std::net::IpAddr>(), any::<u64>()).prop_map(
                |(life, [qpn, psn, mtu, feedback_qpn, feedback_secret, rkey], udp_port, addr, at)| {
                    let address = LaneAddress { qpn, psn, addr, udp_port, mtu, feedback_qpn, feedback_secret };
                    Record::Offer(Offer { life, address, target: Remote { addr: at, rkey } })
                }
            ),
            (ids, 0u64..1 << 40, 0u64..=1 << 25, any::<[u32; 8]>(), any::<bool>(), 0u16..4096, 0u8..8, 12u8..=20)
                .prop_map(|((channel, number), addr, capacity, keys, shared, slot, generation, unit_shift)| {
                    let keys = if shared { [keys[0]; 8] } else { keys };
                    let grant = Grant { addr, capacity, keys, slot, generation, unit_shift };
                    Record::Grant { channel, number, grant }
                }),
        ]
    }

    proptest! {
        #[test]
        fn records_survive(list in proptest::collection::vec(records(), 0..20), room in 24usize..800) {
            let mut buf = vec![0xee; room];
            let mut w = Writer::new(&mut buf);
            let mut written = Vec::new();
            for record in &list {
                if w.push(record) {
                    written.push(*record);
                }
            }
            prop_assert_eq!(w.is_empty(), written.is_empty());
            let len = w.finish(&H);
            prop_assert_eq!(len % 4, 0);
            let (header, mut reader) = Header::parse(&buf[..len]).expect("our own");
            prop_assert_eq!(header, H);
            for record in written {
                prop_assert_eq!(reader.next(), Some(Ok(record)));
            }
            prop_assert_eq!(reader.next(), None);
        }

        #[test]
        fn garbage_is_refused_without_harm(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), fix in any::<bool>()) {
            if fix && bytes.len() >= HEADER {
                let records = (bytes.len() - HEADER) as u32;
                H.emit(records, &mut bytes);
            }
            if let Ok((_, mut reader)) = Header::parse(&bytes) {
                let mut n = 0;
                while let Some(record) = reader.next() {
                    n += 1;
                    if let Ok(Record::Grant { grant, .. }) = record {
                        prop_assert!(grant.slot < 4096 && grant.generation < 8);
                        prop_assert!(grant.capacity <= 8192u64 << grant.unit_shift);
                    }
                }
                prop_assert!(n <= bytes.len() / 4 + 1);
            }
        }

        #[test]
        fn a_flipped_bit_never_panics(list in proptest::collection::vec(records(), 1..8), at in any::<usize>()) {
            let mut buf = vec![0; 1024];
            let mut w = Writer::new(&mut buf);
            for record in &list {
                w.push(record);
            }
            let len = w.finish(&H);
            let at = at % (len * 8);
            buf[at / 8] ^= 1 << (at % 8);
            if let Ok((_, mut reader)) = Header::parse(&buf[..len]) {
                while reader.next().is_some() {}
            }
        }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let mut buf = [0xee; 128];
        let mut w = Writer::new(&mut buf);
        assert!(w.push_eager(1, 2, 3, |b| {
            b.copy_from_slice(&[7, 8, 9]);
            true
        }));
        assert!(!w.push_eager(1, 3, 3, |_| false), "a failed fill leaves nothing");
        assert!(w.push(&Record::Credit { lane: 0x0102, generation: 3, posted: 0x0405_0607 }));
        let len = w.finish(&H);
        let want: [u8; 52] = [
            1, 0, 7, 0, 9, 0, 0, 0, 0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01, 11, 0, 0, 0, 28, 0, 0,
            0, // header
            4, 0, 11, 0, 1, 0, 0, 0, 2, 0, 0, 0, 7, 8, 9, 0, // EAGER
            5, 0, 8, 0, 2, 1, 3, 0, 7, 6, 5, 4, // CREDIT
        ];
        assert_eq!(&buf[..len], &want);
    }
}
