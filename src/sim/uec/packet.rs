//! Packets in flight, in one array that is reused.

use crate::policy::Pick;

/// What a packet is. Those from [`Kind::Ack`] on go back to a sender.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub(super) enum Kind {
    /// Payload.
    Data,
    /// Payload that a full queue cut off.
    Trimmed,
    /// An empty packet that asks for an answer.
    Probe,
    /// An acknowledgement.
    Ack,
    /// The report of a trimmed packet.
    Nack,
    /// The answer to a probe.
    Answer,
}

/// A packet. The last four fields are used by acknowledgements only.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Packet {
    /// Neighbours in the queue that it waits in.
    pub(super) next: u32,
    pub(super) prev: u32,
    pub(super) flow: u32,
    /// Which of the flow's packets it is, or which one caused the acknowledgement.
    pub(super) seq: u32,
    pub(super) to: u32,
    pub(super) pick: Pick,
    pub(super) size: u16,
    pub(super) kind: Kind,
    pub(super) marked: bool,
    /// An acknowledgement is wanted at once.
    pub(super) urgent: bool,
    /// It was sent before; echoed.
    pub(super) again: bool,
    /// The last switch cut it.
    pub(super) last_hop: bool,
    /// All packets below have arrived.
    pub(super) cumulative: u32,
    /// The packet that the first bit of `arrived` stands for.
    pub(super) base: u32,
    pub(super) arrived: u64,
    /// Bytes on the wire that arrived in all, duplicates not counted.
    pub(super) received: u64,
}

/// No packet.
pub(super) const NONE: u32 = u32::MAX;

/// All packets.
#[derive(Default)]
pub(super) struct Packets {
    all: Vec<Packet>,
    free: u32,
}

impl Packets {
    pub(super) fn new() -> Packets {
        Packets { all: Vec::new(), free: NONE }
    }

    #[inline]
    pub(super) fn add(&mut self, packet: Packet) -> u32 {
        if self.free == NONE {
            self.all.push(packet);
            return self.all.len() as u32 - 1;
        }
        let at = self.free;
        self.free = self.all[at as usize].next;
        self.all[at as usize] = packet;
        at
    }

    #[inline]
    pub(super) fn remove(&mut self, at: u32) {
        self.all[at as usize].next = self.free;
        self.free = at;
    }
}

impl std::ops::Index<u32> for Packets {
    type Output = Packet;
    #[inline]
    fn index(&self, at: u32) -> &Packet {
        &self.all[at as usize]
    }
}

impl std::ops::IndexMut<u32> for Packets {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut Packet {
        &mut self.all[at as usize]
    }
}
