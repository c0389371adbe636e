//! The verbs backend over the mock libibverbs, in real time.

use planespray::time::Span;
use planespray::verbs::{Budget, GidChoice, VerbsConfig, VerbsLanes, VerbsPort};

use crate::rig::{Abilities, Rig};
use crate::wall::wall_clock;

#[path = "../support/mock.rs"]
mod mock;

type Verbs = Rig<VerbsLanes>;

/// Two hosts with a port on each of two planes.
fn over(v6: bool, seed: u64, configure: impl Fn(&mut VerbsConfig)) -> Verbs {
    let library = mock::shared();
    let mut isolate = false;
    let ends = [0u8, 1].map(|host| {
        let port = |plane: u8| VerbsPort {
            device: format!("h{host}p{plane}"),
            port: 1,
            gid: if v6 {
                GidChoice::Address([0xfd00, u16::from(plane), 0, 0, 0, 0, 0, u16::from(host) + 1].into())
            } else {
                GidChoice::Any
            },
            rail: u16::from(plane),
            plane: u16::from(plane),
        };
        let mut config = VerbsConfig::new(vec![port(0), port(1)], seed * 2 + u64::from(host));
        config.budget = Budget::new(256);
        configure(&mut config);
        isolate = config.isolate;
        VerbsLanes::open(&library, config).expect("the mock's devices open")
    });
    let can = Abilities {
        exact: false,
        lossless: true,
        rtt: Some((Span::from_nanos(1), Span::from_secs(2))),
        marks: false,
        gives_up: Span::from_secs(10),
        exact_depth: true,
        domains: isolate,
        atomics: true,
        exact_errors: true,
    };
    Rig::new(ends, can, seed, wall_clock())
}

/// `ibv_wr_*`, extended completion queues with timestamps, IPv4.
fn extended() -> Verbs {
    over(false, 1, |_| {})
}

/// Chains of `ibv_post_send`, ordinary completion queues, IPv6, a protection domain for each domain, relaxed ordering.
fn plain() -> Verbs {
    over(true, 2, |config| {
        (config.batched, config.timestamps) = (false, false);
        (config.isolate, config.relaxed_ordering) = (true, true);
    })
}

conformance!(mock_extended, crate::verbs::extended());
conformance!(mock_plain, crate::verbs::plain());
