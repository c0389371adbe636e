//! This project's policy: the plane that is done first, and in it a path that has proved itself.
//!
//! Level 1 takes the plane with the smallest (in flight + 1) / measured delivery rate, so unequal planes carry in
//! proportion. Level 2 takes the path whose packet came back unmarked longest ago, unless too much is out on it;
//! otherwise the best of four random ones by outstanding packets and penalty. A plane or path that swallows packets is
//! left at once, probed with empty packets, and used again when one is answered.

use super::{Pick, Policy, Report};
use crate::time::{Span, Time};

/// Planes of a connection at most.
const PLANES: usize = 8;
/// Paths of a plane at most.
pub(super) const PATHS: usize = 64;
/// Paths of a plane that are remembered as proven.
const RING: usize = 8;
/// A penalty that keeps a path out of use until a probe is answered.
const QUARANTINE: u8 = u8::MAX;
/// The highest penalty of a path that is in use.
const MOST: u8 = 15;

/// What can be tuned.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tuning {
    /// A trim inside the fabric makes the window smaller, as one at the last switch always does.
    pub mid_trim_cuts: bool,
    /// Penalty for a marked packet, and for a trimmed one.
    pub penalties: (u8, u8),
    /// The newest rate counts this many eighths.
    pub rate_eighths: u32,
    /// A packet is lost when one that was sent later has arrived and it is out for the longest recent round trip and
    /// this many quarters of the unloaded one.
    pub patience_quarters: u32,
    /// A plane is given up when it is silent for this many unloaded round trips and 3 smoothed ones.
    pub silence: u32,
    /// A proven path is used if no more is out on it than this many packets above the plane's average.
    pub slack: u32,
    /// The window is cut by the median of round trips instead of each.
    pub median: bool,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            mid_trim_cuts: false,
            penalties: (1, 4),
            rate_eighths: 2,
            patience_quarters: 8,
            silence: 2,
            slack: 1,
            median: true,
        }
    }
}

/// The balancer of one connection.
pub struct Balancer {
    planes: Box<[Plane]>,
    tuning: Tuning,
    rtt_ns: u64,
    /// Deliveries on all planes.
    delivered: u64,
    /// The median round trip, which follows its samples in small steps.
    median_ns: u32,
    /// Paths in quarantine over all planes; while there are any, unproven paths are not trusted with much.
    quarantined: u32,
    next_probe: Time,
    probe_wait_ns: u64,
}

/// What is known of a plane.
struct Plane {
    in_flight: u32,
    /// Deliveries per unloaded round trip, in 1/256.
    rate: u32,
    epoch: Time,
    in_epoch: u32,
    smoothed_ns: u32,
    /// The longest round trip of this epoch and of the last one.
    longest_ns: [u32; 2],
    last_delivery: Time,
    /// All deliveries at that time.
    others: u64,
    state: State,
    next_probe: Time,
    probe_wait_ns: u64,
    /// A path of it lost a packet; which delivered since.
    wary: bool,
    seen: u64,
    /// Packets lost since the last that was delivered.
    lost: u32,
    /// Picks, of which each 64th explores.
    picks: u8,
    ring: [u8; RING],
    head: u8,
    proven: u8,
    paths: u8,
    out: [u8; PATHS],
    penalty: [u8; PATHS],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Up,
    Down,
}

impl Balancer {
    /// `paths` entropy values in each plane (held at 64), and the unloaded round-trip time.
    pub fn new(planes: u8, paths: u16, rtt: Span, tuning: Tuning) -> Balancer {
        let paths = paths.clamp(1, PATHS as u16) as u8;
        let rtt_ns = rtt.as_nanos().max(1);
        let plane = || Plane {
            in_flight: 0,
            rate: 256,
            epoch: Time::ZERO,
            in_epoch: 0,
            smoothed_ns: 0,
            longest_ns: [0; 2],
            last_delivery: Time::ZERO,
            others: 0,
            state: State::Up,
            next_probe: Time::ZERO,
            probe_wait_ns: 4 * rtt_ns,
            wary: false,
            seen: 0,
            lost: 0,
            picks: 0,
            ring: [0; RING],
            head: 0,
            proven: 0,
            paths,
            out: [0; PATHS],
            penalty: [0; PATHS],
        };
        Balancer {
            planes: (0..planes.clamp(1, PLANES as u8)).map(|_| plane()).collect(),
            tuning,
            rtt_ns,
            delivered: 0,
            median_ns: u32::try_from(rtt_ns).unwrap_or(u32::MAX),
            quarantined: 0,
            next_probe: Time::ZERO,
            probe_wait_ns: 4 * rtt_ns,
        }
    }

    /// Packets in flight on a plane.
    pub fn in_flight(&self, plane: u8) -> u32 {
        self.planes.get(usize::from(plane)).map_or(0, |p| p.in_flight)
    }

    /// True if the plane is in use.
    pub fn is_up(&self, plane: u8) -> bool {
        self.planes.get(usize::from(plane)).is_some_and(|p| p.state == State::Up)
    }

    /// The plane with the smallest expected completion; all planes count if none is up.
    fn plane(&self, random: &mut fastrand::Rng) -> usize {
        let n = self.planes.len();
        if n == 1 {
            return 0;
        }
        let none_up = self.planes.iter().all(|p| p.state == State::Down);
        let start = random.usize(..n);
        let mut best: Option<(usize, u64, u64)> = None;
        for i in 0..n {
            let at = if start + i < n { start + i } else { start + i - n };
            let p = &self.planes[at];
            if p.state == State::Down && !none_up {
                continue;
            }
            let (work, rate) = (u64::from(p.in_flight + 1), u64::from(p.rate.max(1)));
            // work / rate, compared without a division.
            if best.is_none_or(|(_, w, r)| work * r < w * rate) {
                best = Some((at, work, rate));
            }
        }
        best.map_or(0, |(at, ..)| at)
    }

    fn gone(&mut self, pick: Pick) -> Option<&mut Plane> {
        let p = self.planes.get_mut(usize::from(pick.plane))?;
        p.in_flight = p.in_flight.saturating_sub(1);
        let out = &mut p.out[usize::from(pick.path) % PATHS];
        *out = out.saturating_sub(1);
        Some(p)
    }

    fn quarantine(&mut self, now: Time, pick: Pick) {
        let Some(p) = self.planes.get_mut(usize::from(pick.plane)) else { return };
        let penalty = &mut p.penalty[usize::from(pick.path) % PATHS];
        if *penalty != QUARANTINE {
            *penalty = QUARANTINE;
            if !p.wary {
                (p.wary, p.seen) = (true, 0);
            }
            p.seen &= !(1 << (pick.path % 64));
            if self.quarantined == 0 {
                self.probe_wait_ns = 4 * self.rtt_ns;
                self.next_probe = now + Span::from_nanos(self.probe_wait_ns);
            }
            self.quarantined += 1;
        }
    }
}

impl Plane {
    /// The paths that may be tried: after a loss only those that delivered since, once they are some.
    fn trusted(&self) -> u64 {
        if self.wary && self.seen.count_ones() >= u32::from(self.paths.min(8)) { self.seen } else { u64::MAX }
    }

    fn path(&mut self, slack: u32, random: &mut fastrand::Rng) -> u8 {
        let n = self.paths;
        // Above the average, rounded up.
        let fair = self.in_flight.div_ceil(u32::from(n)) + slack;
        self.picks = (self.picks + 1) % 64;
        // A path that nobody proves would never be tried again.
        while self.proven > 0 && self.picks != 0 {
            let oldest = (self.head + RING as u8 - self.proven) % RING as u8;
            self.proven -= 1;
            let path = self.ring[usize::from(oldest)];
            let at = usize::from(path);
            if u32::from(self.out[at]) <= fair && self.penalty[at] != QUARANTINE {
                return path;
            }
        }
        let mut best = (u16::MAX, 0);
        let trusted = self.trusted();
        for i in 0..4 {
            let path = random.u8(..n);
            let at = usize::from(path);
            let penalty = self.penalty[at];
            if penalty == QUARANTINE || trusted >> at & 1 == 0 {
                continue;
            }
            let score = u16::from(self.out[at]) + u16::from(penalty);
            if score < best.0 {
                best = (score, path);
            }
            // One of four forgives, or bad paths are tried again too soon.
            if i == 0 {
                self.penalty[at] = penalty.saturating_sub(1);
            }
        }
        if best.0 == u16::MAX {
            // None of four: any that is trusted and not in quarantine, and if all are, any.
            let start = random.u8(..n);
            let mut all = (0..n).map(|i| (start + i) % n);
            let good = |&p: &u8| self.penalty[usize::from(p)] != QUARANTINE && trusted >> p & 1 == 1;
            return all.find(good).unwrap_or(start);
        }
        best.1
    }

    fn delivery(&mut self, now: Time, all: u64, rtt: Option<Span>, epoch_ns: u64, eighths: u32) {
        self.last_delivery = now;
        self.others = all;
        self.lost = 0;
        if let Some(rtt) = rtt {
            let rtt = u32::try_from(rtt.as_nanos()).unwrap_or(u32::MAX);
            self.smoothed_ns =
                if self.smoothed_ns == 0 { rtt } else { self.smoothed_ns - self.smoothed_ns / 8 + rtt / 8 };
            self.longest_ns[0] = self.longest_ns[0].max(rtt);
        }
        self.in_epoch += 1;
        let passed = now.since(self.epoch).as_nanos();
        if passed >= epoch_ns {
            let sample = u64::from(self.in_epoch) * 256 * epoch_ns / passed;
            let sample = sample.min(1 << 24) as u32;
            self.rate =
                if self.epoch == Time::ZERO { sample } else { (self.rate * (8 - eighths) + sample * eighths) / 8 };
            self.epoch = now;
            self.in_epoch = 0;
            self.longest_ns = [0, self.longest_ns[0]];
        }
    }
}

impl Policy for Balancer {
    fn pick(&mut self, _now: Time, random: &mut fastrand::Rng) -> Pick {
        let at = self.plane(random);
        let slack = self.tuning.slack;
        let p = &mut self.planes[at];
        let path = p.path(slack, random);
        p.in_flight += 1;
        let out = &mut p.out[usize::from(path)];
        *out = out.saturating_add(1);
        Pick { plane: at as u8, path: path.into(), chunk: 0 }
    }

    fn acknowledged(&mut self, _now: Time, _report: Report) {}

    fn delivered(&mut self, now: Time, report: Report) {
        self.delivered += 1;
        if let Some(rtt) = report.rtt {
            let step = (self.rtt_ns / 32).max(1) as u32;
            let longer = rtt.as_nanos() > u64::from(self.median_ns);
            self.median_ns =
                if longer { self.median_ns.saturating_add(step) } else { self.median_ns.saturating_sub(step) };
        }
        let (all, rtt_ns, eighths, penalty) =
            (self.delivered, self.rtt_ns, self.tuning.rate_eighths, self.tuning.penalties.0);
        let Some(p) = self.gone(report.pick) else { return };
        p.delivery(now, all, report.rtt, rtt_ns, eighths);
        let at = usize::from(report.pick.path) % PATHS;
        p.seen |= 1 << at;
        if p.penalty[at] == QUARANTINE {
            return;
        }
        if report.marked {
            p.penalty[at] = (p.penalty[at] + penalty).min(MOST);
        } else {
            p.penalty[at] /= 2;
            p.ring[usize::from(p.head)] = at as u8;
            p.head = (p.head + 1) % RING as u8;
            p.proven = (p.proven + 1).min(RING as u8);
        }
    }

    fn trimmed(&mut self, now: Time, pick: Pick, last_hop: bool, _marked: bool) {
        self.delivered += 1;
        let (all, by) = (self.delivered, self.tuning.penalties.1);
        let Some(p) = self.gone(pick) else { return };
        // It says that the plane is alive, but not how fast it is.
        p.last_delivery = now;
        p.others = all;
        p.lost = 0;
        let penalty = &mut p.penalty[usize::from(pick.path) % PATHS];
        if !last_hop && *penalty != QUARANTINE {
            *penalty = (*penalty + by).min(MOST);
        }
    }

    fn timed_out(&mut self, now: Time, pick: Pick) {
        if let Some(p) = self.gone(pick) {
            p.lost += 1;
        }
        self.quarantine(now, pick);
    }

    fn lost(&mut self, now: Time, pick: Pick) {
        if let Some(p) = self.gone(pick) {
            p.lost += 1;
        }
        if self.is_up(pick.plane) {
            self.quarantine(now, pick);
        }
    }

    fn trim_cuts(&self, last_hop: bool) -> bool {
        last_hop || self.tuning.mid_trim_cuts
    }

    fn typical_rtt(&self) -> Option<Span> {
        self.tuning.median.then_some(Span::from_nanos(self.median_ns.into()))
    }

    fn patience(&self, plane: u8) -> Option<Span> {
        let p = self.planes.get(usize::from(plane))?;
        let longest = u64::from(p.longest_ns[0].max(p.longest_ns[1]));
        Some(Span::from_nanos(longest.max(self.rtt_ns) + self.rtt_ns * u64::from(self.tuning.patience_quarters) / 4))
    }

    fn given_up(&mut self, now: Time) -> Option<u8> {
        if self.planes.len() == 1 {
            return None;
        }
        for (i, p) in self.planes.iter_mut().enumerate() {
            let silence = (u64::from(self.tuning.silence) * self.rtt_ns).max(3 * u64::from(p.smoothed_ns));
            if p.state == State::Up
                && p.in_flight + p.lost >= 4
                && now.since(p.last_delivery).as_nanos() > silence
                && self.delivered - p.others >= 16
            {
                p.state = State::Down;
                p.probe_wait_ns = 4 * self.rtt_ns;
                p.next_probe = now + Span::from_nanos(p.probe_wait_ns);
                return Some(i as u8);
            }
        }
        None
    }

    fn probe(&mut self, now: Time) -> Option<Pick> {
        const MOST_NS: u64 = 1_000_000;
        for (i, p) in self.planes.iter_mut().enumerate() {
            if p.state == State::Down && now >= p.next_probe {
                p.probe_wait_ns = (2 * p.probe_wait_ns).min(MOST_NS);
                p.next_probe = now + Span::from_nanos(p.probe_wait_ns);
                // Another path each time.
                p.head = (p.head + 1) % RING as u8;
                let path = p.ring[usize::from(p.head)];
                return Some(Pick { plane: i as u8, path: path.into(), chunk: 0 });
            }
        }
        if self.quarantined > 0 && now >= self.next_probe {
            self.probe_wait_ns = (2 * self.probe_wait_ns).min(MOST_NS);
            self.next_probe = now + Span::from_nanos(self.probe_wait_ns);
            for (i, p) in self.planes.iter().enumerate() {
                if p.state == State::Up
                    && let Some(path) = p.penalty.iter().position(|&x| x == QUARANTINE)
                {
                    return Some(Pick { plane: i as u8, path: path as u16, chunk: 0 });
                }
            }
        }
        None
    }

    fn probed(&mut self, now: Time, pick: Pick) {
        let all = self.delivered;
        let Some(p) = self.planes.get_mut(usize::from(pick.plane)) else { return };
        if p.state == State::Down {
            p.state = State::Up;
            // It begins with a quarter of an equal share, and earns the rest.
            p.rate = (p.rate / 4).max(64);
            p.epoch = now;
            p.in_epoch = 0;
            p.proven = 0;
        }
        p.last_delivery = now;
        p.others = all;
        p.lost = 0;
        p.seen |= 1 << (pick.path % 64);
        let penalty = &mut p.penalty[usize::from(pick.path) % PATHS];
        if *penalty == QUARANTINE {
            *penalty = MOST;
            self.quarantined = self.quarantined.saturating_sub(1);
            p.wary = p.penalty.contains(&QUARANTINE);
        }
    }
}
