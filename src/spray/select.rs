//! Which lane takes the next chunk or control message, and how long the chunk is.
//!
//! The lane with the least expected finish (see `Lane::expected`), where lanes within an eighth of each other count as equal
//! and take turns. What little is left of a queue waits for a lane that is busy now but would still be done in half the time.

use super::chunk::MIN_UNIT_SHIFT;
use super::lane::{ClassState, Lane};
use crate::class::Class;
use crate::lanes::charge;
use crate::time::Time;

/// Data lanes that a class may have.
pub(super) const MAX_CLASS_LANES: usize = 256;
/// Longest chunk that does not take turns when it is alone.
const LONELY: u32 = 4096;
/// Lanes that one decision looks at.
const CANDIDATES: usize = 16;
/// Longest chunk while units allow: 15 packets of 4 KiB, one burst on UDP.
const BURST: u64 = 15 << MIN_UNIT_SHIFT;

/// A set of places, 0..[`MAX_CLASS_LANES`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LaneSet {
    words: [u64; MAX_CLASS_LANES / 64],
    len: u32,
}

impl LaneSet {
    #[inline]
    pub(super) fn put(&mut self, place: usize, on: bool) {
        let word = &mut self.words[place / 64 % (MAX_CLASS_LANES / 64)];
        let bit = 1 << (place % 64);
        let was = *word & bit != 0;
        if on != was {
            *word ^= bit;
            self.len = if on { self.len + 1 } else { self.len - 1 };
        }
    }

    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// The first place in it from `from` on, below [`MAX_CLASS_LANES`].
    #[inline]
    pub(super) fn next(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut bits = *self.words.get(word)? & (u64::MAX << (from % 64));
        loop {
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize);
            }
            word += 1;
            bits = *self.words.get(word)?;
        }
    }
}

/// A lane for a chunk, and how many bytes it has room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pick {
    pub(super) lane: u16,
    pub(super) room: u32,
}

/// How much may be in flight towards the peer's ports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budgets {
    limit: [u64; 8],
    used: [u64; 8],
    least: u64,
    /// Number of the last announcement of each port.
    heard: [u16; 8],
}

impl Budgets {
    pub(super) fn new() -> Budgets {
        Budgets { limit: [u64::MAX; 8], used: [0; 8], least: u64::MAX, heard: [0; 8] }
    }

    pub(super) fn set(&mut self, port: u8, bytes: Option<u64>) {
        if let Some(limit) = self.limit.get_mut(usize::from(port)) {
            *limit = bytes.unwrap_or(u64::MAX);
        }
        self.least = self.limit.iter().copied().min().unwrap_or(u64::MAX);
    }

    /// What the peer announced; one that a later one overtook on another lane is ignored.
    pub(super) fn announced(&mut self, port: u8, number: u16, bytes: Option<u64>) {
        if let Some(heard) = self.heard.get_mut(usize::from(port))
            && number.wrapping_sub(*heard) as i16 > 0
        {
            *heard = number;
            self.set(port, bytes);
        }
    }

    /// Payload that a port still has room for; at least a unit while nothing is in flight towards it.
    #[inline]
    fn room(&self, port: u8, mtu: u32, unit: u64) -> u64 {
        let port = usize::from(port) & 7;
        let limit = self.limit[port];
        if limit == u64::MAX {
            return u64::MAX;
        }
        let left = limit.saturating_sub(self.used[port]);
        let mtu = u64::from(mtu.max(1));
        // One alone takes more than one of many; two take more than that in any case.
        let packets = if left < charge(mtu, mtu as u32) { 0 } else { left / (mtu + 768) };
        if self.used[port] > 0 { packets * mtu } else { (packets * mtu).max(unit) }
    }

    #[inline]
    pub(super) fn add(&mut self, port: u8, charge: u64) {
        self.used[usize::from(port) & 7] += charge;
    }

    #[inline]
    pub(super) fn sub(&mut self, port: u8, charge: u64) {
        let used = &mut self.used[usize::from(port) & 7];
        *used = used.saturating_sub(charge);
    }

    /// True if the port has room for `bytes` more.
    pub(super) fn fits(&self, port: u8, mtu: u32, bytes: u64) -> bool {
        self.room(port, mtu, bytes) >= bytes
    }

    /// Longest chunk that leaves a port's budget to at least four of them.
    fn burst(&self) -> u64 {
        self.least / 5
    }
}

/// Bytes that the next chunk should have, before a lane's room is known.
pub(super) fn burst(class: &ClassState, left: u64, split_floor: u32, budgets: &Budgets) -> u64 {
    let most = BURST.min(budgets.burst()).max(1 << MIN_UNIT_SHIFT);
    let idle = u64::from(class.idle.len());
    // A message of exactly one more unit than a burst is not worth a stump.
    if left <= most + (1 << MIN_UNIT_SHIFT) && most == BURST && idle <= 1 {
        return left.max(1);
    }
    if idle == 0 {
        return most;
    }
    let floor = if class.class == Class::Latency { 1 << MIN_UNIT_SHIFT } else { u64::from(split_floor) };
    let share = (class.queued / idle).max(floor).min(most);
    if left <= share + share / 2 { left.clamp(1, most) } else { share }
}

/// What a chunk needs of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    /// Bytes it should have.
    pub(super) bytes: u32,
    /// Bytes it has at least: one unit, or all that is left.
    pub(super) least: u32,
    /// It needs a receive at the peer.
    pub(super) credit: bool,
}

/// Why no lane takes a chunk now.
#[derive(Clone, Copy, Debug)]
pub(super) enum NoLane {
    /// All are busy: try again when something completes.
    Busy,
    /// Better wait for a busy one: try again when something completes, or after this many nanoseconds.
    Wait(u64),
}

/// The data lane for a chunk.
#[inline]
pub(super) fn data_lane(
    class: &mut ClassState,
    lanes: &[Lane],
    budgets: &Budgets,
    now: Time,
    want: Want,
) -> Result<Pick, NoLane> {
    // One packet and nothing behind it stays on the lane of the last: the peer's answer can acknowledge it on its way.
    let lonely = want.bytes <= LONELY && class.queued <= u64::from(want.bytes);
    let start = if lonely { class.lonely } else { class.rotor };
    let mut best: Option<(u64, usize, Pick)> = None;
    let mut seen = 0;
    let mut at = start;
    let mut wrapped = false;
    while seen < CANDIDATES {
        let Some(place) = class.open.next(at).filter(|&p| !wrapped || p < start) else {
            if wrapped {
                break;
            }
            wrapped = true;
            at = 0;
            continue;
        };
        at = place + 1;
        let Some(&index) = class.data.get(place) else { continue };
        let Some(lane) = lanes.get(index as usize) else { continue };
        if want.credit && lane.credits.available() == 0 {
            continue;
        }
        let window = lane.window.size();
        let mut least = want.least;
        let mut room = window.saturating_sub(lane.in_flight);
        if lane.in_flight == 0 {
            room = room.max(least);
        } else {
            // Better wait than cut a chunk to pieces because the window is nearly full.
            least = least.max(want.bytes.min(window / 4));
        }
        let port = budgets.room(lane.role.peer_port, lane.role.mtu, u64::from(want.least));
        room = room.min(port.min(u64::from(u32::MAX)) as u32);
        if room < least {
            continue;
        }
        seen += 1;
        let score = lane.expected(now, want.bytes);
        if best.is_none_or(|(least, ..)| score + score / 8 < least) {
            best = Some((score, place, Pick { lane: index, room }));
            // As good as the best that is known of: no need to look further.
            if score <= class.least + class.least / 8 {
                break;
            }
        }
    }
    let (score, place, pick) = best.ok_or(NoLane::Busy)?;
    if seen > 1 {
        class.least = score;
    }
    // While the queue is long, every lane helps; only its end may wait.
    let lane = &lanes[pick.lane as usize];
    class.patience = class.patience.saturating_sub(1);
    if class.patience == 0 && score > lane.own_time(class.queued) / u64::from(class.data_live.max(1)) {
        if better_is_busy(class, lanes, now, want, score) {
            return Err(NoLane::Wait(score / 2));
        }
        // Looking at all lanes costs as much as this many decisions.
        class.patience = class.data_live;
    }
    if lonely {
        class.lonely = place;
    } else {
        class.rotor = place + 1;
    }
    Ok(pick)
}

/// True if a lane that is at work would be done with the chunk in half of `score`, even behind what it has to do.
fn better_is_busy(class: &ClassState, lanes: &[Lane], now: Time, want: Want, score: u64) -> bool {
    let lanes = class.data.iter().filter_map(|&l| lanes.get(l as usize));
    lanes.filter(|l| l.may_carry() && l.in_flight > 0).any(|l| l.expected(now, want.bytes) < score / 2)
}

/// The control lane for a message of about `bytes`, of those with at least `credits` credits and less than `depth` outstanding.
pub(super) fn control_lane(
    class: &mut ClassState,
    lanes: &[Lane],
    now: Time,
    bytes: u32,
    credits: u32,
    depth: u16,
) -> Option<u16> {
    let n = class.control.len();
    let mut best: Option<(u64, usize, u16)> = None;
    for i in 0..n {
        let place = (class.control_rotor + i) % n;
        let index = class.control[place];
        let Some(lane) = lanes.get(index as usize) else { continue };
        if !lane.may_carry() || lane.credits.available() < credits || lane.outstanding >= u32::from(depth) {
            continue;
        }
        let score = lane.expected(now, bytes);
        if best.is_none_or(|(least, ..)| score + score / 8 < least) {
            best = Some((score, place, index));
        }
    }
    let (_, place, index) = best?;
    class.control_rotor = place + 1;
    Some(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_set_finds_the_next() {
        let mut set = LaneSet::default();
        for place in [3, 64, 200] {
            set.put(place, true);
        }
        assert_eq!(set.len(), 3);
        assert_eq!(set.next(0), Some(3));
        assert_eq!(set.next(4), Some(64));
        assert_eq!(set.next(65), Some(200));
        assert_eq!(set.next(201), None);
        assert_eq!(set.next(256), None);
        set.put(64, false);
        assert_eq!(set.next(4), Some(200));
    }

    proptest! {
        #[test]
        fn room_never_exceeds_the_budget(limit in 0u64..1 << 20, used in 1u64..1 << 20, shift in 8u32..=12) {
            let mtu = 1u32 << shift;
            let mut budgets = Budgets::new();
            budgets.set(2, Some(limit));
            budgets.add(2, used);
            let room = budgets.room(2, mtu, 4096);
            if room > 0 {
                prop_assert!(used + charge(room, mtu) <= limit);
            }
            prop_assert_eq!(budgets.room(1, mtu, 4096), u64::MAX);
        }
    }

    #[test]
    fn bursts_shrink_when_lanes_idle() {
        let mut class = ClassState::new(Class::Bulk);
        let budgets = Budgets::new();
        class.queued = 64 << 10;
        assert_eq!(burst(&class, 64 << 10, 16 << 10, &budgets), 64 << 10, "one lane: all of it");
        for place in 0..4 {
            class.idle.put(place, true);
        }
        assert_eq!(burst(&class, 64 << 10, 16 << 10, &budgets), 16 << 10);
        class.queued = 1 << 30;
        assert_eq!(burst(&class, 1 << 30, 16 << 10, &budgets), 60 << 10);
        let mut tight = budgets;
        tight.set(0, Some(100 << 10));
        assert!(burst(&class, 1 << 30, 16 << 10, &tight) <= 20 << 10);
        class.class = Class::Latency;
        class.queued = 8 << 10;
        assert_eq!(burst(&class, 8 << 10, 16 << 10, &budgets), 4 << 10);
    }

    #[test]
    fn an_overtaken_announcement_is_ignored() {
        let mut budgets = Budgets::new();
        budgets.announced(1, 2, Some(1000));
        budgets.announced(1, 1, Some(9000));
        budgets.announced(9, 3, Some(1));
        assert_eq!(budgets.limit[1], 1000);
        budgets.heard[1] = u16::MAX;
        budgets.announced(1, 0, None);
        assert_eq!(budgets.limit[1], u64::MAX);
    }
}
