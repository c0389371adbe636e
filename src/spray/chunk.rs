//! Chunks: units, the immediate that announces one, and what is kept of one under way.

/// Most units of a message: 13 bits of an immediate.
pub(super) const MAX_UNITS: u64 = 1 << 13;
/// Smallest unit is 4 KiB.
pub(super) const MIN_UNIT_SHIFT: u8 = 12;
/// Largest unit is 1 MiB.
pub(super) const MAX_UNIT_SHIFT: u8 = 20;
/// Longest message: 8 GiB.
pub(super) const MAX_MESSAGE: u64 = MAX_UNITS << MAX_UNIT_SHIFT;
/// Units that each count code stands for.
pub(super) const COUNTS: [u16; 8] = [1, 2, 4, 6, 8, 12, 15, 16];
/// Generations of a slot before they repeat.
pub(super) const SLOT_GENERATIONS: u8 = 8;

/// log2 of the unit for a receive of `capacity` bytes, at most [`MAX_MESSAGE`].
pub(super) fn unit_shift(capacity: u64) -> u8 {
    let unit = capacity.div_ceil(MAX_UNITS).max(1).next_power_of_two();
    (unit.trailing_zeros() as u8).clamp(MIN_UNIT_SHIFT, MAX_UNIT_SHIFT)
}

/// The code of a chunk of so many units that is posted again: the least that covers them.
pub(super) fn code_of(units: u64) -> u8 {
    COUNTS.iter().position(|&c| u64::from(c) >= units).unwrap_or(COUNTS.len() - 1) as u8
}

/// Units that `len` bytes take.
pub(super) const fn units(len: u64, shift: u8) -> u64 {
    (len >> shift) + (len & ((1 << shift) - 1) != 0) as u64
}

/// The code for a chunk of about `target` units when `left` remain: the least that ends the message if the target does,
/// else the most that is not above the target.
#[inline]
pub(super) fn count_code(left: u64, target: u64) -> u8 {
    let above = |n: u64| COUNTS.iter().position(|&c| u64::from(c) >= n);
    if left <= target
        && let Some(code) = above(left)
    {
        return code as u8;
    }
    match above(target.max(1) + 1) {
        Some(code) => code.saturating_sub(1) as u8,
        None => COUNTS.len() as u8 - 1,
    }
}

/// What an immediate says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Immediate {
    /// Slot of the grant, 0..4,096.
    pub(super) slot: u16,
    /// Generation of the slot, 0..8.
    pub(super) generation: u8,
    /// The message is shorter than the grant: a TOTAL record tells its length.
    pub(super) short: bool,
    /// First unit that arrived, 0..8,192.
    pub(super) first: u16,
    /// Index into [`COUNTS`].
    pub(super) code: u8,
}

impl Immediate {
    pub(super) const fn to_bits(self) -> u32 {
        (self.slot as u32) << 20
            | (self.generation as u32 & 7) << 17
            | (self.short as u32) << 16
            | (self.first as u32 & 0x1fff) << 3
            | (self.code as u32 & 7)
    }

    pub(super) const fn from_bits(bits: u32) -> Immediate {
        Immediate {
            slot: (bits >> 20) as u16,
            generation: (bits >> 17 & 7) as u8,
            short: bits >> 16 & 1 != 0,
            first: (bits >> 3 & 0x1fff) as u16,
            code: (bits & 7) as u8,
        }
    }
}

/// A chunk under way: 16 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    /// Its message; while free, the next free chunk.
    pub(super) message: u32,
    /// Its first unit, [`LIMBO`] and [`REFUSED`].
    first: u32,
    /// Its length.
    pub(super) bytes: u32,
    /// Its lane; `u16::MAX` while free.
    pub(super) lane: u16,
    /// Changes with each use.
    tag: u16,
}

/// Set in a chunk that its lane lost and of which nobody knows yet whether it arrived.
const LIMBO: u32 = 1 << 31;
/// Set in a chunk that the peer's end once found malformed.
const REFUSED: u32 = 1 << 30;

impl Chunk {
    /// Its first unit.
    pub(super) fn first(&self) -> u32 {
        self.first & !(LIMBO | REFUSED)
    }

    /// True if its lane lost it.
    pub(super) fn is_lost(&self) -> bool {
        self.first & LIMBO != 0
    }

    /// True if the peer's end once found it malformed.
    pub(super) fn was_refused(&self) -> bool {
        self.first & REFUSED != 0
    }
}

/// All chunks under way.
#[derive(Debug)]
pub(super) struct ChunkTable {
    chunks: Vec<Chunk>,
    free: u32,
}

const FREE: u16 = u16::MAX;

impl ChunkTable {
    pub(super) fn new() -> ChunkTable {
        ChunkTable { chunks: Vec::with_capacity(1024), free: u32::MAX }
    }

    /// Keeps a chunk; the id (below 2^48) finds it again.
    pub(super) fn insert(&mut self, message: u32, first: u32, bytes: u32, lane: u16) -> u64 {
        let index = self.free;
        if let Some(chunk) = self.chunks.get_mut(index as usize) {
            self.free = chunk.message;
            let tag = chunk.tag.wrapping_add(1);
            *chunk = Chunk { message, first, bytes, lane, tag };
            u64::from(tag) << 32 | u64::from(index)
        } else {
            self.chunks.push(Chunk { message, first, bytes, lane, tag: 0 });
            (self.chunks.len() - 1) as u64
        }
    }

    /// Forgets a chunk and returns it; `None` if the id names none.
    pub(super) fn take(&mut self, id: u64) -> Option<Chunk> {
        let index = id as u32;
        let chunk = self.chunks.get_mut(index as usize)?;
        if chunk.lane == FREE || u64::from(chunk.tag) != id >> 32 & 0xffff {
            return None;
        }
        let was = *chunk;
        chunk.lane = FREE;
        chunk.message = self.free;
        self.free = index;
        Some(was)
    }

    /// A chunk that is kept.
    pub(super) fn get(&self, id: u64) -> Option<&Chunk> {
        let chunk = self.chunks.get(id as u32 as usize)?;
        (chunk.lane != FREE && u64::from(chunk.tag) == id >> 32 & 0xffff).then_some(chunk)
    }

    /// Notes that a chunk's lane lost it. `None` if the id names none, or one that was lost before.
    pub(super) fn lose(&mut self, id: u64) -> Option<Chunk> {
        let chunk = *self.get(id)?;
        if chunk.is_lost() {
            return None;
        }
        self.chunks[id as u32 as usize].first |= LIMBO;
        Some(chunk)
    }

    /// Notes that the peer's end found a chunk malformed.
    pub(super) fn refuse(&mut self, id: u64) {
        if self.get(id).is_some() {
            self.chunks[id as u32 as usize].first |= REFUSED;
        }
    }

    /// Ids of the chunks on a lane. Off the hot path.
    pub(super) fn on_lane(&self, lane: u16) -> Vec<u64> {
        let ids = self.chunks.iter().enumerate().filter(|(_, c)| c.lane == lane);
        ids.map(|(i, c)| u64::from(c.tag) << 32 | i as u64).collect()
    }

    /// Ids of all chunks that their lanes lost. Off the hot path.
    pub(super) fn lost(&self) -> Vec<u64> {
        let ids = self.chunks.iter().enumerate().filter(|(_, c)| c.lane != FREE && c.is_lost());
        ids.map(|(i, c)| u64::from(c.tag) << 32 | i as u64).collect()
    }

    /// Forgets every chunk.
    pub(super) fn clear(&mut self) {
        for lane in 0..self.chunks.len() {
            let id = u64::from(self.chunks[lane].tag) << 32 | lane as u64;
            self.take(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_chunk_is_16_bytes() {
        assert_eq!(size_of::<Chunk>(), 16);
    }

    #[test]
    fn units_cover_every_capacity() {
        for (capacity, shift) in [
            (0, 12),
            (1, 12),
            (32 << 20, 12),
            ((32 << 20) + 1, 13),
            (MAX_MESSAGE, 20),
            (MAX_MESSAGE - 1, 20),
            (4 << 30, 19),
        ] {
            assert_eq!(unit_shift(capacity), shift, "capacity {capacity}");
            assert!(units(capacity, shift) <= MAX_UNITS);
        }
        assert_eq!(units(0, 12), 0);
        assert_eq!(units(4097, 12), 2);
    }

    #[test]
    fn codes_end_messages_without_a_stump() {
        let pick = |left, target| COUNTS[count_code(left, target) as usize];
        assert_eq!(pick(5, 16), 6);
        assert_eq!(pick(16, 16), 16);
        assert_eq!(pick(16, 15), 15);
        assert_eq!(pick(100, 15), 15);
        assert_eq!(pick(3, 2), 2);
        assert_eq!(pick(1, 0), 1);
        assert_eq!(pick(11, 11), 12, "what is beyond the end costs nothing");
        assert_eq!(pick(12, 11), 8, "not above the target otherwise");
    }

    #[test]
    fn a_stale_id_finds_nothing() {
        let mut table = ChunkTable::new();
        let a = table.insert(1, 2, 3, 4);
        assert_eq!(table.take(a).map(|c| (c.message, c.first(), c.bytes, c.lane)), Some((1, 2, 3, 4)));
        assert!(table.take(a).is_none());
        let b = table.insert(5, 6, 7, 8);
        assert_ne!(a, b);
        assert!(table.take(a).is_none());
        assert!(table.take(b).is_some());
        assert!(table.take(u64::MAX).is_none());
    }

    proptest! {
        #[test]
        fn an_immediate_survives(bits in any::<u32>()) {
            prop_assert_eq!(Immediate::from_bits(bits).to_bits(), bits);
        }

        #[test]
        fn a_code_is_within_its_target(left in prop_oneof![1u64..20, 1u64..9000], target in 0u64..20) {
            let count = u64::from(COUNTS[count_code(left, target) as usize]);
            prop_assert!(count.min(left) <= target.max(1));
        }
    }
}
