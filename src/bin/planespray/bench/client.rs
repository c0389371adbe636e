//! The client's side of a sample: it sets the pace and takes the time.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::api::RemoteWindow;
use super::check::Checker;
use super::link::{Link, Pool, Posted, Queue};
use super::options::{Extent, Operation};
use super::outage::Gaps;
use super::pattern;
use super::server::{empty, push};
use super::talk::{Job, Ready, Report, Talk, ToClient, ToServer, Transport};
use super::tcp;
use super::watch::Watch;

/// What one sample gave, both ends together.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) messages: u64,
    pub(super) elapsed: Duration,
    /// Nanoseconds: half round trips, or whole reads.
    pub(super) lat: Option<Histogram<u64>>,
    pub(super) wrong: u64,
    pub(super) lost: u64,
    pub(super) dup: u64,
    pub(super) cpu_ns: u64,
    pub(super) gap_ns: u64,
    pub(super) retransmits: u64,
    /// Faults injected at both ends since the run began.
    pub(super) injected: [u64; 3],
    pub(super) gaps: Option<Gaps>,
    pub(super) server_cpu: Option<usize>,
    /// UDP ports at which the server's planes receive.
    pub(super) server_ports: Vec<u16>,
}

/// What the client alone saw.
pub(super) struct Mine {
    pub(super) messages: u64,
    pub(super) elapsed: Duration,
    pub(super) lat: Option<Histogram<u64>>,
    pub(super) wrong: u64,
    pub(super) dup: u64,
    pub(super) lost: u64,
    pub(super) gaps: Option<Gaps>,
    pub(super) watch: Watch,
}

/// A histogram of nanoseconds with three digits.
pub(super) fn histogram() -> Result<Histogram<u64>, String> {
    Histogram::new_with_bounds(1, 100_000_000_000, 3).map_err(|e| e.to_string())
}

/// Says goodbye, so that the server ends.
pub(super) fn goodbye(talk: &mut Talk<'_>) -> Result<(), String> {
    talk.send(&ToServer::Bye)?;
    talk.flush()
}

/// Runs one sample.
pub(super) fn sample(
    link: &Link<'_>,
    talk: &mut Talk<'_>,
    pool: &mut Pool,
    job: &Job,
    tcp_host: std::net::IpAddr,
) -> Result<Flow, String> {
    let before = link.retransmits();
    talk.send(&ToServer::Job(*job))?;
    let ready = match talk.receive(job.stall())? {
        ToClient::Ready(ready) => ready,
        other => return Err(unexpected(other)),
    };
    let (server_cpu, server_ports) = (ready.cpu, ready.udp_ports.clone());
    let mine = match job.transport {
        Transport::Tcp { sockets } => {
            let (port, token) = ready.tcp.ok_or("the server opened no TCP port")?;
            let mine = tcp::run(link.stop, job, sockets, (tcp_host, port).into(), token)?;
            talk.send(&ToServer::Finish { sent: mine.messages, posted: 0 })?;
            mine
        }
        Transport::Ours if job.op == Operation::Read => fetch(link, talk, pool, job, &ready)?,
        Transport::Ours if job.lat => ping(link, talk, pool, job)?,
        Transport::Ours => source(link, talk, pool, job)?,
    };
    let report: Report = match talk.receive(job.stall())? {
        ToClient::Report(report) => report,
        other => return Err(unexpected(other)),
    };
    let ours = link.injected();
    Ok(Flow {
        messages: mine.messages,
        elapsed: mine.elapsed,
        wrong: mine.wrong + report.wrong,
        lost: mine.lost + report.lost,
        dup: mine.dup + report.dup,
        cpu_ns: mine.watch.cpu_ns() + report.cpu_ns,
        gap_ns: mine.watch.gap_ns().max(report.gap_ns),
        retransmits: link.retransmits().saturating_sub(before) + report.retransmits,
        injected: [0, 1, 2].map(|i| ours[i] + report.injected[i]),
        lat: mine.lat,
        gaps: mine.gaps,
        server_cpu,
        server_ports,
    })
}

fn unexpected(message: ToClient) -> String {
    match message {
        ToClient::Failed { what } => format!("the server gave up: {what}"),
        other => format!("the server said {other:?} out of turn; use the same version at both ends"),
    }
}

/// Whether another message may begin.
struct Pace {
    limit: u64,
    end: Option<Instant>,
}

impl Pace {
    fn start(job: &Job) -> Pace {
        match job.extent {
            Extent::Iterations(n) => Pace { limit: n, end: None },
            Extent::Duration(d) => Pace { limit: u64::MAX, end: Some(Instant::now() + d) },
        }
    }

    fn goes_on(&self, link: &Link<'_>, sent: u64, now: Instant) -> bool {
        sent < self.limit && self.end.is_none_or(|end| now < end) && !link.stop.asked()
    }
}

/// Sends messages, as many at once as there are slots.
fn source(link: &Link<'_>, talk: &mut Talk<'_>, pool: &mut Pool, job: &Job) -> Result<Mine, String> {
    let size = job.size as usize;
    let mut free = pool.take(link.fabric, size, job.slots as usize)?;
    let mut sending = Queue::default();
    let (mut sent, mut delivered) = (0u64, 0u64);
    // Written but refused for now.
    let mut ready = None;

    let pace = Pace::start(job);
    let mut watch = Watch::start(link.busy);
    let start = Instant::now();
    let mut progress = start;
    let mut gaps = Gaps::start(start);
    loop {
        let now = watch.turn();
        let goes_on = pace.goes_on(link, sent, now);
        let mut full = false;
        while goes_on && !full && pace.limit > sent {
            let buffer = match ready.take() {
                Some(buffer) => buffer,
                None => {
                    let Some(mut buffer) = free.pop() else { break };
                    if job.verify {
                        pattern::fill(&mut buffer, job.first + sent);
                    }
                    buffer
                }
            };
            match link.send(job, buffer, size)? {
                Posted::Yes(pending) => {
                    sending.push(pending);
                    sent += 1;
                }
                Posted::Full(buffer) => {
                    ready = Some(buffer);
                    full = true;
                }
            }
        }
        let mut idle = true;
        while let Some((buffer, _)) = sending.pop(idle && !link.busy)? {
            (idle, progress) = (false, now);
            gaps.note(now);
            delivered += 1;
            free.push(buffer);
        }
        if sending.is_empty() && !goes_on {
            break;
        }
        if sending.is_empty() {
            link.fabric.progress();
        }
        if now - progress > job.stall() {
            return Err(format!(
                "{} of {sent} messages were not delivered within {} s; the server hangs, or packets do not get through",
                sending.len(),
                job.stall().as_secs()
            ));
        }
    }
    let elapsed = start.elapsed();
    debug_assert_eq!(sent, delivered);
    let watch_end = watch.stopped();
    // Receives that the server posted in excess are filled with empty messages, so that its slots come back.
    let posted = finish(talk, job, sent, 0)?;
    free.extend(ready);
    let deadline = Instant::now() + job.stall();
    for _ in sent..posted {
        let buffer = loop {
            if let Some(buffer) = free.pop() {
                break buffer;
            }
            if let Some((buffer, _)) = sending.pop(!link.busy)? {
                free.push(buffer);
            } else if Instant::now() > deadline {
                return Err("the server's slots did not come back; packets do not get through".into());
            }
        };
        sending.push(empty(link, job, buffer)?);
    }
    drain(link, job, &mut sending, &mut free)?;
    pool.give(free);
    let gaps = Some(gaps);
    Ok(Mine { messages: sent, elapsed, lat: None, wrong: 0, dup: 0, lost: 0, gaps, watch: watch_end })
}

/// Tells the server that all is sent, and hears how many receives it posted.
fn finish(talk: &mut Talk<'_>, job: &Job, sent: u64, posted: u64) -> Result<u64, String> {
    talk.send(&ToServer::Finish { sent, posted })?;
    match talk.receive(job.stall())? {
        ToClient::Stopped { posted } => Ok(posted),
        other => Err(unexpected(other)),
    }
}

/// Waits until everything is delivered.
fn drain(link: &Link<'_>, job: &Job, sending: &mut Queue, free: &mut Vec<super::api::Buffer>) -> Result<(), String> {
    let deadline = Instant::now() + job.stall();
    while !sending.is_empty() {
        if let Some((buffer, _)) = sending.pop(!link.busy)? {
            free.push(buffer);
        } else if Instant::now() > deadline {
            return Err(format!("{} messages were not delivered in the end", sending.len()));
        }
    }
    Ok(())
}

/// Sends a message and waits for its answer, again and again.
fn ping(link: &Link<'_>, talk: &mut Talk<'_>, pool: &mut Pool, job: &Job) -> Result<Mine, String> {
    let size = job.size as usize;
    let slots = job.slots as usize;
    let mut spare = pool.take(link.fabric, size, 2 * slots)?;
    let mut free = spare.split_off(slots);
    for slot in &mut spare {
        pattern::poison(slot);
    }
    let (mut queue, mut sending) = (Queue::default(), Queue::default());
    // The server's check is the one that a planted fault is for.
    let mut checker = Checker::new(&Job { flip: false, ..*job });
    let mut posted = link.post(&mut spare, &mut queue, usize::try_from(job.limit()).unwrap_or(usize::MAX))?;
    let mut lat = histogram()?;

    let pace = Pace::start(job);
    let mut watch = Watch::start(link.busy);
    let start = Instant::now();
    let mut sent = 0u64;
    let mut gaps = Gaps::start(start);
    while pace.goes_on(link, sent, watch.turn()) {
        let turn = watch.turn();
        let mut buffer = loop {
            if let Some(buffer) = free.pop() {
                break buffer;
            }
            if let Some((buffer, _)) = sending.pop(false)? {
                free.push(buffer);
            } else if watch.turn() - turn > job.stall() {
                return Err(no_answer(job));
            }
        };
        if job.verify {
            pattern::fill(&mut buffer, job.first + sent);
        }
        let before = watch.turn();
        push(link, job, buffer, size, &mut sending)?;
        let (mut slot, len) = loop {
            if let Some(done) = queue.pop(!link.busy)? {
                break done;
            }
            if watch.turn() - before > job.stall() {
                return Err(no_answer(job));
            }
        };
        let now = watch.turn();
        gaps.note(now);
        let round = now - before;
        lat.saturating_record(u64::try_from(round.as_nanos() / 2).unwrap_or(u64::MAX));
        checker.check(&mut slot, len, job.first + sent);
        sent += 1;
        spare.push(slot);
        if posted < job.limit() {
            posted += link.post(&mut spare, &mut queue, 1)?;
        }
        while let Some((buffer, _)) = sending.pop(false)? {
            free.push(buffer);
        }
    }
    let elapsed = start.elapsed();
    let watch_end = watch.stopped();
    drain(link, job, &mut sending, &mut free)?;
    let theirs = finish(talk, job, sent, posted)?;
    for _ in sent..theirs {
        let buffer = free.pop().ok_or("no buffer left to end with")?;
        sending.push(empty(link, job, buffer)?);
    }
    drain(link, job, &mut queue, &mut spare)?;
    drain(link, job, &mut sending, &mut free)?;
    pool.give(spare.into_iter().chain(free));
    Ok(Mine {
        messages: sent,
        elapsed,
        lat: Some(lat),
        wrong: checker.wrong,
        dup: checker.dup,
        lost: checker.skipped,
        gaps: Some(gaps),
        watch: watch_end,
    })
}

fn no_answer(job: &Job) -> String {
    format!("no answer for {} s; the server hangs, or packets do not get through", job.stall().as_secs())
}

/// Reads the server's slots, as many at once as there are, or one at a time for latency.
fn fetch(link: &Link<'_>, talk: &mut Talk<'_>, pool: &mut Pool, job: &Job, ready: &Ready) -> Result<Mine, String> {
    let token = ready.window.as_ref().ok_or("the server exposed no window")?;
    let window = RemoteWindow::from_bytes(token)
        .ok_or("the server's window makes no sense; use the same version at both ends")?;
    let size = job.size as usize;
    let slots = u64::from(job.slots);
    let mut free = pool.take(link.fabric, size, if job.lat { 1 } else { job.slots as usize })?;
    for slot in &mut free {
        pattern::poison(slot);
    }
    let mut reading = Queue::default();
    let mut checker = Checker::new(job);
    let mut lat = if job.lat { Some(histogram()?) } else { None };
    let (mut posted, mut done) = (0u64, 0u64);

    let pace = Pace::start(job);
    let mut watch = Watch::start(link.busy);
    let start = Instant::now();
    let (mut progress, mut before) = (start, start);
    loop {
        let now = watch.turn();
        let goes_on = pace.goes_on(link, posted, now);
        while goes_on && pace.limit > posted {
            let Some(buffer) = free.pop() else { break };
            let offset = (posted % slots) * job.size;
            if job.lat {
                before = watch.turn();
            }
            match self::read(link, job, buffer, size, &window, offset)? {
                Posted::Yes(pending) => {
                    reading.push(pending);
                    posted += 1;
                }
                Posted::Full(buffer) => {
                    free.push(buffer);
                    break;
                }
            }
        }
        let mut idle = true;
        while let Some((mut slot, len)) = reading.pop(idle && !link.busy)? {
            if let Some(lat) = &mut lat {
                let whole = watch.turn() - before;
                lat.saturating_record(u64::try_from(whole.as_nanos()).unwrap_or(u64::MAX));
            }
            (idle, progress) = (false, now);
            checker.check(&mut slot, len, job.first + done % slots);
            done += 1;
            free.push(slot);
        }
        if reading.is_empty() && !goes_on {
            break;
        }
        if now - progress > job.stall() {
            return Err(no_answer(job));
        }
    }
    let (elapsed, watch) = (start.elapsed(), watch.stopped());
    talk.send(&ToServer::Finish { sent: done, posted: 0 })?;
    pool.give(free);
    Ok(Mine {
        messages: done,
        elapsed,
        lat,
        wrong: checker.wrong + checker.dup + checker.skipped,
        dup: 0,
        lost: posted - done,
        gaps: None,
        watch,
    })
}

fn read(
    link: &Link<'_>,
    job: &Job,
    buffer: super::api::Buffer,
    len: usize,
    window: &RemoteWindow,
    offset: u64,
) -> Result<Posted, String> {
    match link.connection.read(job.class(), buffer, len, window, offset) {
        Ok(pending) => Ok(Posted::Yes(pending)),
        Err(refused) if refused.error.is_back_pressure() => Ok(Posted::Full(refused.buffer)),
        Err(refused) => Err(refused.error.to_string()),
    }
}
