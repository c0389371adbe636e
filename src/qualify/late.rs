//! Whether anything lands after a queue pair went to ERR and was destroyed: what lanes rest on when they reuse memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Finding;
use super::rig::{DEPTH, End, Rig, Trouble, rejected, until, write};
use crate::mem::{Access, Region};
use crate::verbs::{Cq, Mr, Qp, Retry};

const SUBJECT: &str = "late writes";
/// Bytes of a write.
const CHUNK: u32 = 16 << 10;
/// Bytes of the window.
const WINDOW: usize = (CHUNK * DEPTH) as usize;
/// Writes that must have landed before a round counts.
const WARM: u64 = 2 * DEPTH as u64;
/// How long memory is watched after a destroy; the last time longer than the writer repeats itself.
const WATCH: Duration = Duration::from_millis(5);
const LAST_WATCH: Duration = Duration::from_millis(1200);
/// Bytes that are compared, and marked, at a time.
const PIECE: usize = 4096;
/// What no write ever carries.
const MARK: u8 = 0xff;

/// What a round showed.
struct Round {
    /// Writes that never ended well: they were under way when the queue pair went, or came after.
    unanswered: u64,
    /// A byte that changed after the destroy had returned: where, and how long after.
    late: Option<(usize, Duration)>,
}

/// Destroys queue pairs while the peer writes through them.
pub(super) fn writes(rig: &Rig, rounds: u32) -> Finding {
    let (mut fired, mut late, mut first) = (0, 0, None);
    for n in 0..rounds {
        let watch = if n + 1 == rounds { LAST_WATCH } else { WATCH };
        match round(rig, n, watch) {
            Ok(r) => {
                fired += u32::from(r.unanswered > 0);
                late += u32::from(r.late.is_some());
                first = first.or(r.late);
            }
            Err(trouble) => return Finding::broken(SUBJECT, &trouble),
        }
    }
    let figures = vec![("rounds".into(), f64::from(rounds)), ("late_rounds".into(), f64::from(late))];
    let what = format!("{rounds} queue pairs were moved to ERR and destroyed, {fired} of them while the peer wrote");
    let finding = match first {
        Some((at, after)) => Finding::proof(
            SUBJECT,
            false,
            format!(
                "{what}; in {late} rounds memory changed after the destroy had returned, first byte {at} after {after:?}"
            ),
            "memory of a failed lane is not safe to reuse on this NIC with this firmware: do not run planespray's lanes \
             over it; update the firmware, or report it to the vendor with this output",
        ),
        None if fired == 0 => Finding::proof(
            SUBJECT,
            false,
            format!("{what}; memory did not change, but nothing was written that could have changed it"),
            "this proves nothing; run it again with more --rounds, on a machine with less to do",
        ),
        None => Finding::proof(
            SUBJECT,
            true,
            format!("{what}; memory did not change after a destroy had returned"),
            "what a failed lane was lent is safe to use again once its queue pair is gone",
        ),
    };
    Finding { figures, ..finding }
}

fn round(rig: &Rig, n: u32, watch: Duration) -> Result<Round, Trouble> {
    let window = rig.subject.memory(WINDOW, Access::LOCAL_WRITE.and(Access::REMOTE_WRITE))?;
    let source = rig.peer.memory(WINDOW, Access::LOCAL_READ)?;
    let mut subject_cq = rig.subject.queue(4 * DEPTH)?;
    let mut peer_cq = rig.peer.queue(4 * DEPTH)?;
    let mut taker = rig.subject.connection(&subject_cq)?;
    let mut writer = rig.peer.connection(&peer_cq)?;
    rig.connect(&mut writer, &mut taker, n as u16, &Retry::default())?;
    taker.post_receive(0, None)?;

    let progress = Progress::default();
    std::thread::scope(|s| {
        let work = || keep_writing(&rig.peer, &mut writer, &mut peer_cq, &source, &window, &progress);
        let writing = s.spawn(work);
        let result = destroy_and_watch(taker, &mut subject_cq, &window, &progress, n, watch);
        progress.stop.store(true, Ordering::Release);
        let written = writing.join().unwrap_or(Err(Trouble::Silent { what: "the writing thread" }));
        match (result, written) {
            // A writer that failed early explains why nothing arrived.
            (Err(Trouble::Silent { .. }), Err(why)) => Err(why),
            // That it fails in the end is as it should be.
            (result, _) => Ok(Round { unanswered: progress.unanswered(), late: result? }),
        }
    })
}

#[derive(Default)]
struct Progress {
    stop: AtomicBool,
    posted: AtomicU64,
    landed: AtomicU64,
    /// The writer's queue pair has failed.
    failed: AtomicBool,
}

impl Progress {
    fn unanswered(&self) -> u64 {
        self.posted.load(Ordering::Acquire).saturating_sub(self.landed.load(Ordering::Acquire))
    }

    /// Enough has landed; an error if that will not happen any more.
    fn is_warm(&self) -> Result<bool, Trouble> {
        let failed = self.failed.load(Ordering::Acquire);
        match self.landed.load(Ordering::Acquire) >= WARM {
            false if failed => Err(Trouble::Silent { what: "the first writes" }),
            warm => Ok(warm),
        }
    }
}

/// Writes until it is told to stop or the queue pair fails, each time other bytes.
fn keep_writing(
    end: &End,
    qp: &mut Qp,
    cq: &mut Cq,
    source: &Mr,
    window: &Mr,
    progress: &Progress,
) -> Result<(), Trouble> {
    let (mut posted, mut landed) = (0u64, 0u64);
    let mut failed = None;
    while !progress.stop.load(Ordering::Acquire) {
        while failed.is_none() && posted - landed < u64::from(DEPTH) {
            let at = posted % u64::from(DEPTH) * u64::from(CHUNK);
            if let Some(region) = source.region() {
                region.write_at(at, &[(posted % u64::from(MARK)) as u8; CHUNK as usize])?;
            }
            if !qp.post(&write(posted, source, window, at, CHUNK)) {
                break;
            }
            posted += 1;
            if let Err(r) = qp.ring() {
                progress.failed.store(true, Ordering::Release);
                return Err(rejected(end, r));
            }
        }
        progress.posted.store(posted, Ordering::Release);
        let got = cq.poll(DEPTH as usize, |wc| match wc.status {
            0 => landed += 1,
            _ => failed = failed.or(Some((wc.status, wc.vendor_err))),
        })?;
        progress.landed.store(landed, Ordering::Release);
        progress.failed.store(failed.is_some(), Ordering::Release);
        if got == 0 {
            std::thread::yield_now();
        }
    }
    match failed {
        Some((status, vendor)) => Err(Trouble::Completion { device: end.name(), what: "a write", status, vendor }),
        None => Ok(()),
    }
}

fn destroy_and_watch(
    mut taker: Qp,
    cq: &mut Cq,
    window: &Mr,
    progress: &Progress,
    n: u32,
    watch: Duration,
) -> Result<Option<(usize, Duration)>, Trouble> {
    until("the first writes", || progress.is_warm())?;
    taker.fail()?;
    if n % 2 == 1 {
        // As lanes do it: once everything posted has come back.
        let mut flushed = false;
        until("a flushed receive", || {
            cq.poll(1, |_| flushed = true)?;
            Ok(flushed)
        })?;
    }
    taker.destroy()?;
    let destroyed = Instant::now();
    match window.region() {
        Some(region) => seen_late(region, destroyed, watch),
        None => Ok(None),
    }
}

/// Where memory changes from now on, if it does. It is compared with what it was, and then marked: a write of the same
/// bytes once more is seen as well.
fn seen_late(region: &Region, destroyed: Instant, watch: Duration) -> Result<Option<(usize, Duration)>, Trouble> {
    let mut before = vec![0; WINDOW];
    region.read_at(0, &mut before)?;
    let mut piece = [0; PIECE];
    for (i, was) in before.chunks(PIECE).enumerate() {
        let at = (i * PIECE) as u64;
        let now = &mut piece[..was.len()];
        region.read_at(at, now)?;
        if let Some(k) = now.iter().zip(was).position(|(a, b)| a != b) {
            return Ok(Some((i * PIECE + k, destroyed.elapsed())));
        }
        region.write_at(at, &[MARK; PIECE][..was.len()])?;
    }
    loop {
        region.read_at(0, &mut before)?;
        if let Some(at) = before.iter().position(|&b| b != MARK) {
            return Ok(Some((at, destroyed.elapsed())));
        }
        if destroyed.elapsed() >= watch {
            return Ok(None);
        }
        std::thread::yield_now();
    }
}
