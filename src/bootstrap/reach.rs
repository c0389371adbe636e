//! Which ports of two ends reach each other, found out before any lane is made.
//!
//! [`Probing`] is one end's half: it says what to send when, takes what arrived, and makes the report that the other end
//! is told. From both reports both ends make the same [`Reach`], and from that the same lanes.

use std::net::IpAddr;

use super::Role;
use super::hello::{Hello, valid_mtu};
use super::plan::preferred;
use crate::lanes::MAX_PORTS;
use crate::time::{Span, Time};

/// Bit of [`Hello::features`]: this end answers probes, and wants to be answered.
pub const FEATURE_PROBES: u64 = 1 << 8;

/// Most pairs of ports.
pub(super) const MAX_PAIRS: usize = MAX_PORTS * MAX_PORTS;

/// Small packets of a burst: as many as show that identifications count up.
pub const PROBE_BURST: u8 = 8;
/// UDP payload of each of them.
const BURST_LEN: usize = 256;
/// First byte of the packets that have a full size, plus the position of their MTU.
const FULL: u8 = 0x80;
/// RoCE MTUs, largest first.
const MTUS: [u32; 5] = [4096, 2048, 1024, 512, 256];
/// What BTH, RETH, immediate and ICRC add to a full packet.
const HEADERS: usize = 12 + 16 + 4 + 4;
/// When probes are sent, counted from the moment at which the peer is ready for them.
const ROUNDS: [Span; 3] = [Span::from_millis(0), Span::from_millis(50), Span::from_millis(150)];
/// How long probes are waited for at most.
const WINDOW: Span = Span::from_millis(500);

/// Probes to send from one of our ports to one of the peer's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe {
    /// Our port.
    pub from: u8,
    /// The peer's.
    pub to: u8,
    /// First byte of the first packet; the next have the next.
    pub first: u8,
    /// How many packets.
    pub count: u8,
    /// UDP payload of each, in bytes.
    pub len: usize,
}

/// What one end saw of the other's probes between two ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct PairReport {
    /// Port of the end that sent.
    pub from: u8,
    /// Port of the end that reports.
    pub to: u8,
    /// Packets of the burst that arrived, one bit each.
    pub burst: u8,
    /// All of them carried their position as IPv4 identification.
    pub counted: bool,
    /// Largest RoCE MTU of which a full packet arrived, 0 for none.
    pub mtu: u32,
}

impl PairReport {
    /// True if something arrived.
    pub fn is_reached(&self) -> bool {
        self.mtu != 0
    }

    /// True if bursts that were sent with one call do not arrive as they must: not at all while single packets do, or with
    /// IPv4 identifications that their ICRC is not made for.
    pub fn bursts_fail(&self, v4: bool) -> bool {
        self.mtu != 0 && (self.burst == 0 || v4 && !self.counted)
    }

    /// What is wrong with a report by an end with `to` ports on one of an end with `from` ports, if anything.
    pub(super) fn fault(&self, from: &Hello, to: &Hello) -> Option<&'static str> {
        let (f, t) = (usize::from(self.from), usize::from(self.to));
        if !meet(from, f, to, t) {
            return Some("a report on ports that cannot meet");
        }
        if self.mtu != 0 && !valid_mtu(self.mtu) {
            return Some("a report of an MTU that is none of 256, 512, 1024, 2048 and 4096");
        }
        None
    }
}

/// Whether a port of each of two ends could meet: same plane, same family.
pub(super) fn meet(a: &Hello, i: usize, b: &Hello, j: usize) -> bool {
    match (a.planes.get(i), b.planes.get(j)) {
        (Some(p), Some(q)) => p.plane == q.plane && p.addr.is_ipv6() == q.addr.is_ipv6(),
        _ => false,
    }
}

/// The matrix: for each port of the initiator and each of the responder, the RoCE MTU that passes in both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reach {
    mtu: [[u32; MAX_PORTS]; MAX_PORTS],
}

impl Reach {
    /// As if all ports that could meet did: for ends that do not probe.
    pub fn assumed(initiator: &Hello, responder: &Hello) -> Reach {
        let mut mtu = [[0; MAX_PORTS]; MAX_PORTS];
        for (i, row) in mtu.iter_mut().enumerate() {
            for (j, cell) in row.iter_mut().enumerate() {
                if meet(initiator, i, responder, j) {
                    *cell = initiator.planes[i].mtu.min(responder.planes[j].mtu);
                }
            }
        }
        Reach { mtu }
    }

    /// What both ends saw: `by_initiator` of the responder's probes, `by_responder` of the initiator's. The smaller MTU
    /// of both directions counts. A report that does not fit the Hellos counts for nothing.
    pub fn seen(
        initiator: &Hello,
        responder: &Hello,
        by_initiator: &[PairReport],
        by_responder: &[PairReport],
    ) -> Reach {
        let mut mtu = Reach::assumed(initiator, responder).mtu;
        let find = |list: &[PairReport], from: usize, to: usize| {
            let found = list.iter().find(|r| (usize::from(r.from), usize::from(r.to)) == (from, to));
            found.map_or(0, |r| r.mtu)
        };
        for (i, row) in mtu.iter_mut().enumerate() {
            for (j, cell) in row.iter_mut().enumerate() {
                *cell = (*cell).min(find(by_responder, i, j)).min(find(by_initiator, j, i));
            }
        }
        Reach { mtu }
    }

    /// The RoCE MTU between two ports; `None` if they do not reach each other.
    pub fn mtu(&self, initiator_port: u8, responder_port: u8) -> Option<u32> {
        let cell = *self.mtu.get(usize::from(initiator_port))?.get(usize::from(responder_port))?;
        (cell != 0).then_some(cell)
    }
}

/// One end's probing of one peer.
#[derive(Clone, Debug)]
pub struct Probing {
    pairs: Vec<Pair>,
    began: Time,
    /// Rounds sent.
    rounds: usize,
}

#[derive(Clone, Copy, Debug)]
struct Pair {
    ours: u8,
    theirs: u8,
    /// Where the peer's probes come from.
    addr: IpAddr,
    /// MTU that both ends' interfaces allow.
    mtu: u32,
    /// Lanes would be on it; others are only for those that fail.
    preferred: bool,
    burst: u8,
    counted: bool,
    passed: u32,
}

impl Probing {
    /// Begins, once the peer has said that it is ready.
    pub fn new(role: Role, ours: &Hello, theirs: &Hello, now: Time) -> Probing {
        let chosen: Vec<(u8, u8)> = match role {
            Role::Initiator => preferred(ours, theirs),
            Role::Responder => preferred(theirs, ours).into_iter().map(|(i, r)| (r, i)).collect(),
        };
        let mut pairs = Vec::new();
        for (i, p) in ours.planes.iter().enumerate().take(MAX_PORTS) {
            for (j, q) in theirs.planes.iter().enumerate().take(MAX_PORTS) {
                if meet(ours, i, theirs, j) {
                    let (ours, theirs) = (i as u8, j as u8);
                    let preferred = chosen.contains(&(ours, theirs));
                    let mtu = p.mtu.min(q.mtu);
                    pairs.push(Pair { ours, theirs, addr: q.addr, mtu, preferred, burst: 0, counted: true, passed: 0 });
                }
            }
        }
        Probing { pairs, began: now, rounds: 0 }
    }

    /// Our ports that take part.
    pub fn is_used(&self, port: u8) -> bool {
        self.pairs.iter().any(|p| p.ours == port)
    }

    /// Appends the probes whose time has come. The first round tries the largest packets alone, later ones the smaller
    /// too.
    pub fn due(&mut self, now: Time, out: &mut Vec<Probe>) {
        while let Some(&at) = ROUNDS.get(self.rounds).filter(|&&at| now >= self.began + at) {
            for p in &self.pairs {
                out.push(Probe { from: p.ours, to: p.theirs, first: 0, count: PROBE_BURST, len: BURST_LEN });
                let fits = MTUS.iter().enumerate().filter(|(_, m)| **m <= p.mtu);
                for (step, mtu) in fits.take(if at == ROUNDS[0] { 1 } else { MTUS.len() }) {
                    let first = FULL + step as u8;
                    out.push(Probe { from: p.ours, to: p.theirs, first, count: 1, len: *mtu as usize + HEADERS });
                }
            }
            self.rounds += 1;
        }
    }

    /// A packet arrived at our port `to` from `from`: its first byte, and its IPv4 identification if that could be read.
    pub fn arrived(&mut self, to: u8, from: IpAddr, first: u8, id: Option<u16>) {
        let Some(pair) = self.pairs.iter_mut().find(|p| p.ours == to && p.addr == from) else { return };
        if first < PROBE_BURST {
            pair.burst |= 1 << first;
            pair.counted &= id == Some(u16::from(first));
        } else if let Some(&mtu) = first.checked_sub(FULL).and_then(|step| MTUS.get(usize::from(step))) {
            pair.passed = pair.passed.max(mtu.min(pair.mtu));
        }
    }

    /// True when nothing more can be learnt that matters, or the time is over.
    pub fn is_over(&self, now: Time) -> bool {
        let whole = |p: &Pair| p.burst == u8::MAX && p.passed == p.mtu;
        now >= self.began + WINDOW || self.rounds > 0 && self.pairs.iter().filter(|p| p.preferred).all(whole)
    }

    /// When to call again although nothing arrived.
    pub fn next_timeout(&self) -> Time {
        self.began + ROUNDS.get(self.rounds).copied().unwrap_or(WINDOW)
    }

    /// What was seen.
    pub fn report(&self) -> Vec<PairReport> {
        let report = |p: &Pair| PairReport {
            from: p.theirs,
            to: p.ours,
            burst: p.burst,
            counted: p.counted && p.burst != 0,
            mtu: p.passed,
        };
        self.pairs.iter().map(report).collect()
    }
}

const _: () = assert!(PROBE_BURST as u32 == u8::BITS);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::tests::{START, hello};

    fn ends() -> (Hello, Hello) {
        let a = hello("a", &[(0, 0, "10.0.0.1"), (0, 1, "10.0.1.1"), (1, 1, "fd00::1")]);
        let b = hello("b", &[(0, 0, "10.0.0.2"), (0, 1, "10.0.1.2"), (1, 1, "fd00::2")]);
        (a, b)
    }

    /// Two ends that probe each other over a network that takes packets by `passes(from, to, len)`.
    fn probe(a: &Hello, b: &Hello, passes: impl Fn(IpAddr, IpAddr, usize, Time) -> bool) -> (Probing, Probing, Time) {
        let mut ends = [Probing::new(Role::Initiator, a, b, START), Probing::new(Role::Responder, b, a, START)];
        let mut now = START;
        loop {
            for (i, (us, them)) in [(a, b), (b, a)].into_iter().enumerate() {
                let mut out = Vec::new();
                ends[i].due(now, &mut out);
                for p in out {
                    let from = us.planes[usize::from(p.from)].addr;
                    let to = them.planes[usize::from(p.to)].addr;
                    if passes(from, to, p.len, now) {
                        for n in 0..p.count {
                            let id = from.is_ipv4().then_some(u16::from(n));
                            ends[1 - i].arrived(p.to, from, p.first + n, id);
                        }
                    }
                }
            }
            if ends.iter().all(|e| e.is_over(now)) {
                let [x, y] = ends;
                return (x, y, now);
            }
            now = ends.iter().map(Probing::next_timeout).min().unwrap().max(now + Span::from_millis(1));
        }
    }

    fn matrix(a: &Hello, b: &Hello, x: &Probing, y: &Probing) -> Reach {
        Reach::seen(a, b, &x.report(), &y.report())
    }

    #[test]
    fn where_all_is_well_one_round_is_enough() {
        let (a, b) = ends();
        let (x, y, end) = probe(&a, &b, |_, _, _, _| true);
        assert_eq!(end, START);
        let reach = matrix(&a, &b, &x, &y);
        assert_eq!(reach, Reach::assumed(&a, &b));
        assert_eq!(
            (reach.mtu(0, 0), reach.mtu(1, 0), reach.mtu(1, 2), reach.mtu(7, 9)),
            (Some(4096), None, None, None)
        );
        assert!(x.report().iter().all(|r| !r.bursts_fail(a.planes[usize::from(r.to)].addr.is_ipv4())));
    }

    #[test]
    fn one_direction_is_not_enough() {
        let (a, b) = ends();
        let blocked = a.planes[1].addr;
        let (x, y, end) = probe(&a, &b, |from, _, _, _| from != blocked);
        assert_eq!(end, START + WINDOW, "it waits for what could come late, and no longer");
        let reach = matrix(&a, &b, &x, &y);
        assert_eq!((reach.mtu(0, 0), reach.mtu(1, 1), reach.mtu(2, 2)), (Some(4096), None, Some(4096)));
    }

    #[test]
    fn the_mtu_steps_down_to_what_passes() {
        let (a, b) = ends();
        let narrow = b.planes[0].addr;
        let (x, y, _) = probe(&a, &b, |_, to, len, _| to != narrow || len < 2000);
        let reach = matrix(&a, &b, &x, &y);
        assert_eq!((reach.mtu(0, 0), reach.mtu(1, 1)), (Some(1024), Some(4096)));
    }

    #[test]
    fn losses_are_made_up_for_by_later_rounds() {
        let (a, b) = ends();
        let (x, y, end) = probe(&a, &b, |_, _, _, now| now > START);
        assert!(end < START + WINDOW);
        assert_eq!(matrix(&a, &b, &x, &y), Reach::assumed(&a, &b));
    }

    #[test]
    fn bursts_that_fail_are_told() {
        let (a, b) = ends();
        let mut p = Probing::new(Role::Responder, &b, &a, START);
        for n in 0..PROBE_BURST {
            // A counter that other packets of the host move on.
            p.arrived(0, a.planes[0].addr, n, Some(100 + u16::from(n)));
            p.arrived(2, a.planes[2].addr, n, None);
        }
        for (port, plane) in [(0, 0), (1, 1), (2, 2)] {
            p.arrived(port, a.planes[plane].addr, FULL, Some(0));
        }
        // From somebody else, and with bytes that mean nothing.
        p.arrived(0, "10.9.9.9".parse().unwrap(), FULL, Some(0));
        p.arrived(0, a.planes[0].addr, 0xff, Some(0));
        let report = p.report();
        let fails = |to: u8, v4: bool| report.iter().find(|r| r.to == to).unwrap().bursts_fail(v4);
        assert!(fails(0, true), "identifications");
        assert!(fails(1, true), "no burst arrived");
        assert!(!fails(2, false), "IPv6 has none");
    }

    #[test]
    fn what_a_peer_reports_is_bounded() {
        let (a, b) = ends();
        let good = PairReport { from: 0, to: 0, burst: 0xff, counted: true, mtu: 4096 };
        assert_eq!(good.fault(&a, &b), None);
        for bad in [
            PairReport { from: 3, ..good },
            PairReport { to: 200, ..good },
            PairReport { to: 1, ..good },
            PairReport { from: 1, to: 2, ..good },
            PairReport { mtu: 1500, ..good },
        ] {
            assert!(bad.fault(&a, &b).is_some(), "{bad:?}");
        }
        // A report of more than the interfaces allow does not raise the MTU.
        let mut narrow = b.clone();
        narrow.planes[0].mtu = 1024;
        assert_eq!(Reach::seen(&a, &narrow, &[good], &[good]).mtu(0, 0), Some(1024));
    }
}
