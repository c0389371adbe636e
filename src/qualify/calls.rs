//! What calls on queue pairs cost: how long a lane takes to be made, and to be gone.

use std::time::{Duration, Instant};

use super::Finding;
use super::rig::{Rig, Trouble, micros};
use crate::verbs::{QpState, Retry, Transport};

const SUBJECT: &str = "queue-pair calls";
/// How often each call is made.
const COUNT: usize = 100;
const CALLS: [&str; 6] = ["create", "init", "rtr", "rts", "err", "destroy"];

/// Times each call.
pub(super) fn latency(rig: &Rig) -> Finding {
    let mut took = match measure(rig) {
        Ok(took) => took,
        Err(trouble) => return Finding::broken(SUBJECT, &trouble),
    };
    let mut figures = Vec::new();
    let mut parts = Vec::new();
    let (mut made, mut gone) = (Duration::ZERO, Duration::ZERO);
    for (i, (name, times)) in CALLS.iter().zip(&mut took).enumerate() {
        times.sort();
        let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
        *if i < 4 { &mut made } else { &mut gone } += median;
        parts.push(format!("{name} {:.0}/{:.0}", micros(median), micros(most)));
        figures.push((format!("{name}_median_us"), micros(median)));
        figures.push((format!("{name}_max_us"), micros(most)));
    }
    let seen = format!("median/most of {COUNT} in us: {}", parts.join(", "));
    let means = format!(
        "a lane takes {:.0} us of calls to be made and {:.0} us to be gone; a failed plane with 64 lanes takes {:.1} ms to \
         be rebuilt besides its probes",
        micros(made),
        micros(gone),
        64.0 * micros(made + gone) / 1000.0
    );
    Finding { figures, ..Finding::proof(SUBJECT, true, seen, means) }
}

fn measure(rig: &Rig) -> Result<[Vec<Duration>; CALLS.len()], Trouble> {
    let (cq, peer_cq) = (rig.subject.queue(64)?, rig.peer.queue(64)?);
    let partner = rig.peer.connection(&peer_cq)?;
    let to = rig.subject.towards(&rig.peer, partner.qpn(), 0);
    let mut took: [Vec<Duration>; CALLS.len()] = Default::default();
    for _ in 0..COUNT {
        let mut times = [Instant::now(); CALLS.len() + 1];
        let mut qp = rig.subject.queue_pair(&cq, Transport::Rc)?;
        times[1] = Instant::now();
        qp.init(rig.subject.port, 0)?;
        times[2] = Instant::now();
        qp.ready_to_receive(&to, &Retry::default())?;
        times[3] = Instant::now();
        qp.ready_to_send(to.psn, &Retry::default())?;
        times[4] = Instant::now();
        qp.fail()?;
        times[5] = Instant::now();
        let state = qp.state()?;
        let asked = Instant::now();
        qp.destroy()?;
        times[6] = Instant::now() - (asked - times[5]);
        if state != QpState::Error {
            return Err(Trouble::State { device: rig.subject.name(), state });
        }
        for (all, pair) in took.iter_mut().zip(times.windows(2)) {
            all.push(pair[1] - pair[0]);
        }
    }
    Ok(took)
}
