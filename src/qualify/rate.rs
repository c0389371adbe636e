//! How fast 1, 2, 4, 8 and 16 lanes write.

use std::time::{Duration, Instant};

use super::Finding;
use super::rig::{DEPTH, Rig, Trouble, patient, rejected, until, write};
use crate::mem::Access;
use crate::verbs::Wc;

const SUBJECT: &str = "rate by lanes";
const LANES: [usize; 5] = [1, 2, 4, 8, 16];
/// Bytes of a write.
const CHUNK: u32 = 64 << 10;
/// Bytes that each lane writes over and over.
const SPAN: usize = (CHUNK * DEPTH) as usize;
/// Writes that all lanes together have under way: more than any path holds, and no more than slow devices do in a second.
const UNDER_WAY: u32 = 64;
/// More lanes are worth it if they bring at least so much of what was there.
const WORTH: f64 = 1.05;

/// Writes by each number of lanes, for so long.
pub(super) fn by_lanes(rig: &Rig, each: Duration) -> Finding {
    let mut rates = Vec::new();
    for lanes in LANES {
        match rate(rig, lanes, each) {
            Ok(rate) => rates.push((lanes, rate)),
            Err(trouble) => return Finding::broken(SUBJECT, &trouble),
        }
    }
    let text: Vec<String> = rates.iter().map(|(lanes, gbps)| format!("{lanes}: {gbps:.2}")).collect();
    let figures = rates.iter().map(|(lanes, gbps)| (format!("lanes_{lanes}_gbps"), *gbps)).collect();
    let enough = enough(&rates);
    let seen = format!("Gb/s of 64 KiB writes by number of lanes: {}; every byte arrived", text.join(", "));
    let means = format!("{enough} lanes on this port are enough for its rate; more serve paths, not the NIC");
    Finding { figures, ..Finding::proof(SUBJECT, true, seen, means) }
}

/// The smallest number of lanes after which more bring nothing.
fn enough(rates: &[(usize, f64)]) -> usize {
    let most = rates.iter().map(|r| r.1).fold(0.0, f64::max);
    rates.iter().find(|r| r.1 * WORTH >= most).map_or(1, |r| r.0)
}

fn rate(rig: &Rig, lanes: usize, each: Duration) -> Result<f64, Trouble> {
    let window = rig.subject.memory(SPAN, Access::LOCAL_WRITE.and(Access::REMOTE_WRITE))?;
    let source = rig.peer.memory(SPAN, Access::LOCAL_READ)?;
    let bytes: Vec<u8> = (0..SPAN).map(|i| ((i * 31) ^ (i >> 11) ^ lanes) as u8).collect();
    if let Some(region) = source.region() {
        region.write_at(0, &bytes)?;
    }
    let cq = rig.subject.queue(64)?;
    let mut peer_cq = rig.peer.queue(2 * DEPTH * lanes as u32)?;
    let mut qps = Vec::with_capacity(lanes);
    for entropy in 0..lanes {
        let mut taker = rig.subject.connection(&cq)?;
        let mut writer = rig.peer.connection(&peer_cq)?;
        rig.connect(&mut writer, &mut taker, entropy as u16, &patient()?)?;
        qps.push((writer, taker));
    }
    let depth = (UNDER_WAY / lanes as u32).clamp(1, DEPTH);
    let mut load = Load { under_way: vec![0; lanes], posted: vec![0; lanes], landed: 0, failed: None };
    let start = Instant::now();
    while start.elapsed() < each && load.failed.is_none() {
        for (lane, (writer, _)) in qps.iter_mut().enumerate() {
            let mut added = false;
            while load.under_way[lane] < depth {
                let at = load.posted[lane] % u64::from(DEPTH) * u64::from(CHUNK);
                if !writer.post(&write(lane as u64, &source, &window, at, CHUNK)) {
                    break;
                }
                load.posted[lane] += 1;
                load.under_way[lane] += 1;
                added = true;
            }
            if added {
                writer.ring().map_err(|r| rejected(&rig.peer, r))?;
            }
        }
        if peer_cq.poll(64, |wc| load.take(wc))? == 0 {
            std::thread::yield_now();
        }
    }
    // What is still under way counts with the time that it takes.
    until("a write", || {
        peer_cq.poll(64, |wc| load.take(wc))?;
        Ok(load.failed.is_some() || load.under_way.iter().all(|&n| n == 0))
    })?;
    let took = start.elapsed();
    if let Some((status, vendor)) = load.failed {
        return Err(Trouble::Completion { device: rig.peer.name(), what: "a write", status, vendor });
    }
    let written = load.posted.iter().max().map_or(0, |&n| n.min(u64::from(DEPTH)) as usize * CHUNK as usize);
    let mut arrived = vec![0; written];
    if let Some(region) = window.region() {
        region.read_at(0, &mut arrived)?;
    }
    if let Some(at) = arrived.iter().zip(&bytes).position(|(a, b)| a != b) {
        return Err(Trouble::Wrong { device: rig.subject.name(), at });
    }
    Ok((load.landed * u64::from(CHUNK) * 8) as f64 / took.as_secs_f64() / 1e9)
}

/// What all lanes have under way.
struct Load {
    under_way: Vec<u32>,
    posted: Vec<u64>,
    landed: u64,
    failed: Option<(u32, u32)>,
}

impl Load {
    fn take(&mut self, wc: &Wc) {
        if let Some(n) = self.under_way.get_mut(wc.wr_id as usize) {
            *n = n.saturating_sub(1);
        }
        match wc.status {
            0 => self.landed += 1,
            status => self.failed = self.failed.or(Some((status, wc.vendor_err))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_lanes_are_the_fewest_that_reach_the_rate() {
        assert_eq!(enough(&[(1, 90.0), (2, 180.0), (4, 195.0), (8, 196.0)]), 4);
        assert_eq!(enough(&[(1, 98.0), (2, 97.0)]), 1);
        assert_eq!(enough(&[]), 1);
    }
}
