//! Real time, for backends that have no other.

use std::time::{Duration, Instant};

use planespray::time::{Span, Time};

use crate::rig::Pass;

/// Rounds without a completion after which a little sleep is due.
const SPIN: u32 = 64;
const NAP: Duration = Duration::from_micros(50);

/// A clock for a rig that starts now, and sleeps a little when nothing has happened for a while.
pub(crate) fn wall_clock() -> impl FnMut(Pass) -> Time {
    let start = Instant::now();
    let mut idle = 0;
    move |pass| {
        let now = || Time::ZERO + Span::from(start.elapsed());
        match pass {
            Pass::Busy => idle = 0,
            Pass::Idle { .. } => idle += 1,
        }
        if let Pass::Idle { wake } = pass
            && idle > SPIN
        {
            std::thread::sleep(NAP.min(wake.since(now()).into()));
        }
        now()
    }
}
