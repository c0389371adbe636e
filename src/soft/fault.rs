//! Faults on received packets: loss, duplication, reordering; the same seed and arrivals give the same faults.

use super::config::Fault;
use super::counters::FaultCounts;
use crate::roce::RxMeta;
use crate::time::{Span, Time};

/// Packets held back at once; when all slots are taken no more are reordered.
const SLOTS: usize = 16;
/// Room per slot: a 4096-byte packet with all its headers.
const SLOT_LEN: usize = 4352;
/// A held packet follows after this many later ones at most.
const OVERTAKEN_BY: u32 = 8;
/// And after this time at most, if no later ones come.
const HELD: Span = Span::from_millis(1);

/// What happens to a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Deliver,
    Twice,
    Drop,
    Held,
}

struct Slot {
    bytes: Box<[u8]>,
    len: usize,
    meta: Option<RxMeta>,
    /// Later packets that still go before it.
    overtakers: u32,
    due: Time,
}

/// The middleware's state.
pub(super) struct Faults {
    loss: u32,
    dup: u32,
    reorder: u32,
    rng: fastrand::Rng,
    slots: Box<[Slot]>,
    held: usize,
    counts: FaultCounts,
}

impl Faults {
    pub(super) fn new(cfg: &Fault) -> Self {
        let slot =
            || Slot { bytes: vec![0; SLOT_LEN].into_boxed_slice(), len: 0, meta: None, overtakers: 0, due: Time::ZERO };
        Faults {
            loss: threshold(cfg.loss),
            dup: threshold(cfg.dup),
            reorder: threshold(cfg.reorder),
            rng: fastrand::Rng::with_seed(cfg.seed),
            slots: (0..SLOTS).map(|_| slot()).collect(),
            held: 0,
            counts: FaultCounts::default(),
        }
    }

    pub(super) fn counts(&self) -> FaultCounts {
        self.counts
    }

    /// Decides about one packet, and takes a copy of it if it is held back.
    pub(super) fn decide(&mut self, now: Time, meta: &RxMeta, packet: &[u8]) -> Fate {
        for slot in self.slots.iter_mut().filter(|s| s.meta.is_some()) {
            slot.overtakers = slot.overtakers.saturating_sub(1);
        }
        if self.rng.u32(..u32::MAX) < self.loss {
            self.counts.loss += 1;
            return Fate::Drop;
        }
        if self.rng.u32(..u32::MAX) < self.dup {
            self.counts.dup += 1;
            return Fate::Twice;
        }
        if self.rng.u32(..u32::MAX) < self.reorder && packet.len() <= SLOT_LEN {
            let overtakers = self.rng.u32(1..=OVERTAKEN_BY);
            if let Some(slot) = self.slots.iter_mut().find(|s| s.meta.is_none()) {
                slot.bytes[..packet.len()].copy_from_slice(packet);
                slot.len = packet.len();
                slot.meta = Some(*meta);
                slot.overtakers = overtakers;
                slot.due = now + HELD;
                self.held += 1;
                self.counts.reorder += 1;
                return Fate::Held;
            }
        }
        Fate::Deliver
    }

    /// A held packet whose turn it is. Call until `None`.
    pub(super) fn release(&mut self, now: Time) -> Option<(RxMeta, &[u8])> {
        if self.held == 0 {
            return None;
        }
        let slot = self.slots.iter_mut().find(|s| s.meta.is_some() && (s.overtakers == 0 || s.due <= now))?;
        self.held -= 1;
        slot.meta.take().map(|meta| (meta, &slot.bytes[..slot.len]))
    }

    /// When the next held packet is due at the latest.
    pub(super) fn next_due(&self) -> Option<Time> {
        if self.held == 0 {
            return None;
        }
        self.slots.iter().filter(|s| s.meta.is_some()).map(|s| s.due).min()
    }
}

/// A probability as a bound for a random number below `u32::MAX`.
fn threshold(p: f64) -> u32 {
    // A float to integer cast saturates, and makes NaN 0.
    (p * f64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta() -> RxMeta {
        RxMeta { src: [127, 0, 0, 1].into(), dst: [127, 0, 0, 1].into(), tos: 0, ttl: 64 }
    }

    fn run(cfg: &Fault, packets: u32) -> (Vec<u32>, FaultCounts) {
        let mut faults = Faults::new(cfg);
        let mut out = Vec::new();
        let now = Time::from_nanos(5);
        let number = |b: &[u8]| u32::from_le_bytes(b[..4].try_into().unwrap());
        for n in 0..packets {
            let packet = n.to_le_bytes();
            match faults.decide(now, &meta(), &packet) {
                Fate::Deliver => out.push(n),
                Fate::Twice => out.extend([n, n]),
                Fate::Drop | Fate::Held => {}
            }
            while let Some((_, b)) = faults.release(now) {
                out.push(number(b));
            }
        }
        while let Some((_, b)) = faults.release(now + HELD) {
            out.push(number(b));
        }
        assert_eq!(faults.next_due(), None);
        (out, faults.counts())
    }

    #[test]
    fn counts_and_arrivals_agree() {
        let cfg = Fault { loss: 0.1, dup: 0.05, reorder: 0.2, seed: 3 };
        let (out, counts) = run(&cfg, 10_000);
        assert_eq!(out.len() as u64, 10_000 - counts.loss + counts.dup);
        assert!((800..1200).contains(&counts.loss), "{counts:?}");
        assert!((350..550).contains(&counts.dup), "{counts:?}");
        assert!(counts.reorder > 1000, "{counts:?}");
        let back = out.windows(2).filter(|w| w[1] < w[0]).count();
        assert!(back > 500, "{back} steps back");
        // Nothing is overtaken by more than the bound.
        let mut seen = 0;
        for &n in &out {
            assert!(n + OVERTAKEN_BY >= seen, "{n} after {seen}");
            seen = seen.max(n);
        }
        assert_eq!(run(&cfg, 10_000), (out, counts));
        assert_ne!(run(&Fault { seed: 4, ..cfg }, 10_000).1, counts);
    }

    #[test]
    fn never_and_always() {
        let none = Fault { loss: 0.0, dup: 0.0, reorder: 0.0, seed: 1 };
        assert_eq!(run(&none, 100), ((0..100).collect(), FaultCounts::default()));
        let all = Fault { loss: 1.0, ..none };
        assert_eq!(run(&all, 100).1.loss, 100);
        let all = Fault { dup: 1.0, ..none };
        assert_eq!(run(&all, 100).0.len(), 200);
        // With every slot taken packets go through.
        let all = Fault { reorder: 1.0, ..none };
        let (out, counts) = run(&all, 100);
        assert_eq!(out.len(), 100);
        assert!(counts.reorder >= SLOTS as u64);
    }

    #[test]
    fn a_held_packet_comes_in_time() {
        let mut faults = Faults::new(&Fault { loss: 0.0, dup: 0.0, reorder: 1.0, seed: 1 });
        let now = Time::from_nanos(1_000);
        assert_eq!(faults.decide(now, &meta(), &[7; 4096]), Fate::Held);
        assert!(faults.release(now).is_none());
        assert_eq!(faults.next_due(), Some(now + HELD));
        assert_eq!(faults.release(now + HELD).map(|(_, b)| b.to_vec()), Some(vec![7; 4096]));
        assert!(faults.release(now + HELD).is_none());
    }
}
