//! Two ends over rdma_rxe devices, in real time.

use std::process::Command;
use std::time::{Duration, Instant};

use planespray::time::{Span, Time};
use planespray::verbs::{GidChoice, Library, Retry, VerbsConfig, VerbsLanes, VerbsPort};

use crate::rig::{Abilities, Pass, Rig};

pub(crate) type Rxe = Rig<VerbsLanes>;

/// A sleep when nothing happens: there is one CPU, and rdma_rxe needs it.
const NAP: Duration = Duration::from_micros(50);
/// The longest that a lane takes to give up, by [`retry`], on a machine that is slow.
pub(crate) const GIVES_UP: Span = Span::from_secs(15);

/// About a second to a dead peer's end.
fn retry() -> Retry {
    Retry::new(16, 3, 6, 18).expect("in range")
}

/// What one end has: `planes` devices of host `host`.
fn config(host: usize, planes: u16, gid: u32, seed: u64) -> VerbsConfig {
    let ports = (0..planes).map(|plane| VerbsPort {
        device: format!("h{host}p{plane}"),
        port: 1,
        gid: GidChoice::Index(gid),
        rail: 0,
        plane,
    });
    VerbsConfig { retry: Some(retry()), ..VerbsConfig::new(ports.collect(), seed + host as u64) }
}

/// Two ends with a port on each of `planes` planes, at GID index `gid`; `configure` may change the rest.
pub(crate) fn ends(planes: u16, gid: u32, configure: impl Fn(&mut VerbsConfig)) -> [VerbsLanes; 2] {
    // What a case that failed left behind.
    for plane in 0..planes {
        run(&format!("plane clear {plane}"));
        run(&format!("plane up {plane}"));
    }
    let library = Library::load(None).unwrap_or_else(|e| panic!("{e}"));
    [0, 1].map(|host| {
        let mut config = config(host, planes, gid, 1);
        configure(&mut config);
        VerbsLanes::open(&library, config).unwrap_or_else(|e| panic!("{e}"))
    })
}

/// A rig over such ends.
pub(crate) fn over(planes: u16, gid: u32, configure: impl Fn(&mut VerbsConfig)) -> Rxe {
    let isolated = std::cell::Cell::new(false);
    let ends = ends(planes, gid, |config| {
        configure(config);
        isolated.set(config.isolate);
    });
    let can = Abilities {
        exact: false,
        lossless: true,
        rtt: Some((Span::from_nanos(200), Span::from_secs(2))),
        // rdma_rxe hides marks on connections.
        marks: false,
        gives_up: GIVES_UP,
        exact_depth: false,
        domains: isolated.get(),
        atomics: true,
        // A receive under way ends with "remote access"; one that is too short, with a failed operation; a misaligned
        // atomic is refused when it is posted.
        exact_errors: false,
    };
    let start = Instant::now();
    let clock = move |pass| {
        if let Pass::Idle { .. } = pass {
            std::thread::sleep(NAP);
        }
        Time::ZERO + Span::from(start.elapsed())
    };
    Rig::new(ends, can, 1, clock)
}

/// Runs a command and says so if it fails.
pub(crate) fn run(words: &str) {
    let mut parts = words.split(' ');
    let status = Command::new(parts.next().unwrap()).args(parts).status();
    let status = status.unwrap_or_else(|e| panic!("{words}: {e}; these cases run in the guest of ci/rxe-vm"));
    assert!(status.success(), "{words}: {status}");
}

conformance!(v4_batched, crate::rxe::over(2, 1, |_| {}));

/// IPv6, chains of `ibv_post_send`, and a protection domain for each domain: the cases that this makes different.
mod v6_chained_isolated {
    use super::{Rxe, over};
    use crate::cases::{endings, one_sided, traffic, two_sided, windows};

    fn rig() -> Rxe {
        over(1, 2, |config| (config.isolate, config.batched, config.inline) = (true, false, 0))
    }

    #[test]
    fn two_sided() {
        two_sided::sends(&mut rig());
    }

    #[test]
    fn one_sided() {
        one_sided::writes_with_immediate(&mut rig());
        one_sided::reads(&mut rig());
    }

    #[test]
    fn windows() {
        windows::of_another_domain(&mut rig());
    }

    #[test]
    fn endings() {
        endings::fenced_responder(&mut rig());
    }

    #[test]
    fn traffic() {
        traffic::few_lanes(&mut rig());
    }
}
