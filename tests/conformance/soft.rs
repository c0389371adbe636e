//! The embedded engine over UDP sockets of this host's loopback addresses, in real time.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, Ordering};

use planespray::embedded::{Embedded, EmbeddedConfig};
use planespray::lanes::{Control, charge};
use planespray::soft::{Fault, Udp, UdpConfig, UdpPort};
use planespray::time::Span;

use crate::cases::traffic::{self, Load, traffic};
use crate::rig::{Abilities, Rig};
use crate::wall::wall_clock;

type Soft = Rig<Embedded<Udp>>;

/// Loopback addresses that no other test uses.
fn fresh() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let [_, _, high, low] = (n + 1).to_be_bytes();
    // Different processes may run this suite at once: they share only what Auto sorts out.
    Ipv4Addr::new(127, 1 + (std::process::id() % 200) as u8, high, low).into()
}

/// Two ends with a port for each plane.
fn over(planes: usize, v6: bool, seed: u64, configure: impl Fn(&mut UdpConfig)) -> Soft {
    let ends = [0, 1].map(|end| {
        let addresses = (0..planes).map(|_| if v6 { Ipv6Addr::LOCALHOST.into() } else { fresh() }).collect();
        let mut config = UdpConfig { planes: addresses, udp_port: UdpPort::Auto, ..UdpConfig::default() };
        configure(&mut config);
        if let Some(fault) = &mut config.fault {
            fault.seed ^= end;
        }
        let udp = Udp::open(&config).expect("sockets");
        let config = EmbeddedConfig {
            seed: seed * 2 + end,
            max_lanes: 256,
            max_keys: 4096,
            name: "soft",
            burst: 61_440,
            patience: Span::from_secs(1),
        };
        Embedded::new(config, udp)
    });
    let can = Abilities {
        exact: false,
        lossless: true,
        rtt: Some((Span::from_nanos(200), Span::from_secs(2))),
        marks: true,
        gives_up: Span::from_secs(8),
        exact_depth: true,
        domains: true,
        atomics: true,
        exact_errors: true,
    };
    Rig::new(ends, can, seed, wall_clock())
}

fn v4() -> Soft {
    over(2, false, 1, |_| {})
}

fn v6() -> Soft {
    over(1, true, 2, |_| {})
}

fn small_mtu() -> Soft {
    over(2, false, 3, |config| config.mtu = 1024)
}

fn plain_calls() -> Soft {
    over(1, false, 4, |config| (config.gso, config.gro) = (false, false))
}

/// The kernel counts 212,992 bytes: what an unprivileged process gets where nobody raised the limits.
fn tight() -> Soft {
    over(2, false, 5, |config| config.receive_buffer = Some(212_992 / 2))
}

conformance!(v4_two_planes, crate::soft::v4());
conformance!(v6_one_plane, crate::soft::v6());
conformance!(v4_mtu_1024, crate::soft::small_mtu());
conformance!(v4_single_packets, crate::soft::plain_calls());
conformance!(v4_tight_buffer, crate::soft::tight());

/// The budget is half of what the kernel gave, and the kernel gave what was asked for.
#[test]
fn budgets_are_real() {
    let rig = tight();
    for end in &rig.ends {
        for port in end.ports() {
            assert_eq!(port.receive_budget, Some(212_992 / 2));
        }
    }
}

/// Tens of thousands of packets of 64 bytes into small buffers, within their budget: none is dropped.
#[test]
fn small_packets_within_the_budget() {
    let mut rig = tight();
    let load = Load { lanes_per_port: 24, requests: 250, longest: 64, slots: 8, length: Some(64), atomics: false };
    let tally = traffic::run(&mut rig, 9, load);
    assert_eq!(tally.requests, 2 * 2 * 24 * 250);
    // All of it at once would not have fitted.
    assert!(tally.requests * charge(64, 4096) > 10 * 212_992);
    rig.assert_no_events();
    for end in &rig.ends {
        assert_eq!(end.io().counters().drops, 0);
    }
}

/// Full-size packets into small buffers, within their budget.
#[test]
fn large_packets_within_the_budget() {
    let mut rig = tight();
    let tally = traffic::run(&mut rig, 10, Load { requests: 60, longest: 90_000, ..Load::default() });
    assert!(tally.bytes > 0);
    rig.assert_no_events();
    for end in &rig.ends {
        assert_eq!(end.io().counters().drops, 0);
    }
}

/// Losses, repetitions and delays between the sockets and the engine.
#[test]
fn faulty_links() {
    for seed in 0..6 {
        let fault = Fault { loss: 0.02, dup: 0.02, reorder: 0.03, seed };
        let mut rig = over(2, false, 20 + seed, |config| {
            config.mtu = [4096, 1024][seed as usize % 2];
            config.fault = Some(fault);
        });
        let tally = traffic(&mut rig, seed);
        assert!(tally.retransmits > 0, "seed {seed}: {tally:?}");
        rig.assert_no_events();
    }
}

/// Packets carry a right ICRC: none is refused.
#[test]
fn nothing_is_refused() {
    for v6 in [false, true] {
        let mut rig = over(1, v6, 30, |_| {});
        traffic(&mut rig, 30);
        rig.assert_no_events();
        for end in &rig.ends {
            let counters = end.io().counters();
            assert!(counters.received_packets > 100, "{counters:?}");
            assert_eq!((counters.bad_icrc, counters.parse_errors, counters.drops), (0, 0, 0), "{counters:?}");
        }
    }
}
