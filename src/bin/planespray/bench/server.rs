//! The server's side of a sample.

use std::time::{Duration, Instant};

use super::api::{Buffer, WindowAccess};
use super::check::Checker;
use super::link::{Link, Pool, Posted, Queue};
use super::pattern;
use super::placement;
use super::talk::{Job, Ready, Report, Talk, ToClient, ToServer, Transport};
use super::tcp;
use super::watch::Watch;

/// How long the client may think between samples.
const THINK: Duration = Duration::from_secs(60);
/// After the client's last message: how long one that is missing may still come.
const LATE: Duration = Duration::from_secs(5);
/// How often a server without work looks whether it should end.
const LOOK: Duration = Duration::from_millis(100);
/// Turns of the loop between looks at the control channel.
const LOOK_EVERY: u32 = 64;

/// Serves one client until it says goodbye.
pub(super) fn serve(link: &Link<'_>, tcp_addr: std::net::IpAddr) -> Result<(), String> {
    let mut talk = Talk::new(link.fabric, link.connection)?;
    let mut pool = Pool::default();
    loop {
        match hear(link, &mut talk)? {
            ToServer::Job(job) => {
                if let Err(what) = sample(link, &mut talk, &mut pool, &job, tcp_addr) {
                    let _ = talk.send(&ToClient::Failed { what: what.clone() });
                    let _ = talk.flush();
                    return Err(what);
                }
            }
            ToServer::Finish { .. } => return Err("the client finished what it had not begun".into()),
            ToServer::Bye => return talk.flush(),
        }
    }
}

/// The client's next word; it may think for a while.
fn hear(link: &Link<'_>, talk: &mut Talk<'_>) -> Result<ToServer, String> {
    let deadline = Instant::now() + THINK;
    loop {
        match talk.receive_within(LOOK)? {
            Some(word) => return Ok(word),
            None if link.stop.asked() => return Err(interrupted()),
            None if Instant::now() > deadline => {
                return Err(format!(
                    "the client said nothing for {} s; it hangs, or packets do not get through",
                    THINK.as_secs()
                ));
            }
            None => {}
        }
    }
}

fn sample(
    link: &Link<'_>,
    talk: &mut Talk<'_>,
    pool: &mut Pool,
    job: &Job,
    tcp_addr: std::net::IpAddr,
) -> Result<(), String> {
    let before = link.retransmits();
    let udp_ports = link.fabric.stats().planes.iter().map(|p| p.udp_port).collect();
    let ready = Ready { cpu: placement::this_cpu(), udp_ports, ..Ready::default() };
    let mut report = match job.transport {
        Transport::Tcp { sockets } => {
            let listener = tcp::listen(tcp_addr)?;
            talk.send(&ToClient::Ready(Ready { tcp: Some(listener.ticket()), ..ready }))?;
            let (mut report, received) = listener.serve(job, sockets)?;
            let ToServer::Finish { sent, .. } = talk.receive(job.stall())? else {
                return Err("the client did not finish what it had begun".into());
            };
            report.lost += sent.saturating_sub(received);
            report
        }
        Transport::Ours if job.op == super::options::Operation::Read => expose(link, talk, pool, job, ready)?,
        Transport::Ours if job.lat => echo(link, talk, pool, job, ready)?,
        Transport::Ours => sink(link, talk, pool, job, ready)?,
    };
    report.retransmits = link.retransmits().saturating_sub(before);
    report.injected = link.injected();
    talk.send(&ToClient::Report(report))
}

/// Takes messages into rotating slots, checks each slot and posts it again.
fn sink(link: &Link<'_>, talk: &mut Talk<'_>, pool: &mut Pool, job: &Job, ready: Ready) -> Result<Report, String> {
    let mut spare = pool.take(link.fabric, job.size as usize, job.slots as usize)?;
    for slot in &mut spare {
        pattern::poison(slot);
    }
    let mut queue = Queue::default();
    let mut checker = Checker::new(job);
    let mut posted = link.post(&mut spare, &mut queue, usize::try_from(job.limit()).unwrap_or(usize::MAX))?;
    talk.send(&ToClient::Ready(ready))?;

    let mut watch = Watch::start(link.busy);
    let (mut received, mut turns) = (0u64, 0u32);
    let mut sent = None;
    let mut progress = Instant::now();
    loop {
        let now = watch.turn();
        let mut idle = true;
        while let Some((mut slot, len)) = queue.pop(idle && !link.busy)? {
            (idle, progress) = (false, now);
            // After the last message come empty ones, which only give the slots back.
            if len > 0 || sent.is_none() {
                checker.check(&mut slot, len, job.first + received);
                received += 1;
            }
            spare.push(slot);
            if sent.is_none() && posted < job.limit() {
                let room = usize::try_from(job.limit() - posted).unwrap_or(usize::MAX);
                posted += link.post(&mut spare, &mut queue, room)?;
            }
        }
        turns = turns.wrapping_add(1);
        if sent.is_none() && (turns.is_multiple_of(LOOK_EVERY) || !link.busy || queue.is_empty()) {
            if posted < job.limit() && !spare.is_empty() {
                let room = usize::try_from(job.limit() - posted).unwrap_or(usize::MAX);
                posted += link.post(&mut spare, &mut queue, room)?;
            }
            if link.stop.asked() {
                return Err(interrupted());
            }
            match talk.try_receive()? {
                Some(ToServer::Finish { sent: n, .. }) => {
                    sent = Some(n);
                    progress = now;
                    talk.send(&ToClient::Stopped { posted })?;
                }
                Some(other) => return Err(format!("the client said {other:?} in the middle of a sample")),
                None => {}
            }
        }
        match sent {
            Some(_) if queue.is_empty() => break,
            Some(_) if now - progress > LATE => break,
            None if now - progress > job.stall() => return Err(silent(job)),
            _ => {}
        }
    }
    let lost = sent.unwrap_or(0).saturating_sub(received) + checker.skipped;
    // Receives that never completed keep their slots; the rest serves the next sample.
    pool.give(spare);
    Ok(Report {
        wrong: checker.wrong,
        lost,
        dup: checker.dup + received.saturating_sub(sent.unwrap_or(received)),
        cpu_ns: watch.cpu_ns(),
        gap_ns: watch.gap_ns(),
        ..Report::default()
    })
}

/// Sends each message back, checked and written anew.
fn echo(link: &Link<'_>, talk: &mut Talk<'_>, pool: &mut Pool, job: &Job, ready: Ready) -> Result<Report, String> {
    let size = job.size as usize;
    let slots = job.slots as usize;
    let mut spare = pool.take(link.fabric, size, 2 * slots)?;
    let mut answers = spare.split_off(slots);
    let (mut queue, mut sending) = (Queue::default(), Queue::default());
    let mut checker = Checker::new(job);
    for slot in &mut spare {
        pattern::poison(slot);
    }
    let mut posted = link.post(&mut spare, &mut queue, usize::try_from(job.limit()).unwrap_or(usize::MAX))?;
    talk.send(&ToClient::Ready(ready))?;

    let mut watch = Watch::start(link.busy);
    let (mut received, mut turns) = (0u64, 0u32);
    let mut finish: Option<(u64, u64)> = None;
    let mut progress = Instant::now();
    let mut next = prepare(&mut answers, job, received);
    loop {
        let now = watch.turn();
        if let Some((mut slot, len)) = queue.pop(!link.busy)? {
            progress = now;
            if len > 0 || finish.is_none() {
                let answer = match next.take() {
                    Some(answer) => answer,
                    None => reclaim(&mut sending, &mut answers, job, received)?,
                };
                push(link, job, answer, size, &mut sending)?;
                checker.check(&mut slot, len, job.first + received);
                received += 1;
            }
            spare.push(slot);
            if finish.is_none() && posted < job.limit() {
                posted += link.post(&mut spare, &mut queue, 1)?;
            }
        }
        while let Some((buffer, _)) = sending.pop(false)? {
            answers.push(buffer);
        }
        if next.is_none() {
            next = prepare(&mut answers, job, received);
        }
        turns = turns.wrapping_add(1);
        if finish.is_none() && (turns.is_multiple_of(LOOK_EVERY) || !link.busy || queue.is_empty()) {
            if link.stop.asked() {
                return Err(interrupted());
            }
            match talk.try_receive()? {
                Some(ToServer::Finish { sent, posted: theirs }) => {
                    finish = Some((sent, theirs));
                    talk.send(&ToClient::Stopped { posted })?;
                    for _ in received..theirs {
                        let buffer = match next.take() {
                            Some(buffer) => buffer,
                            None => reclaim(&mut sending, &mut answers, job, received)?,
                        };
                        sending.push(empty(link, job, buffer)?);
                    }
                }
                Some(other) => return Err(format!("the client said {other:?} in the middle of a sample")),
                None => {}
            }
        }
        match finish {
            Some(_) if queue.is_empty() && sending.is_empty() => break,
            Some(_) if now - progress > LATE => break,
            None if now - progress > job.stall() => return Err(silent(job)),
            _ => {}
        }
    }
    let sent = finish.map_or(received, |(sent, _)| sent);
    pool.give(spare.into_iter().chain(answers).chain(next));
    Ok(Report {
        wrong: checker.wrong,
        lost: sent.saturating_sub(received) + checker.skipped,
        dup: checker.dup,
        cpu_ns: watch.cpu_ns(),
        gap_ns: watch.gap_ns(),
        ..Report::default()
    })
}

/// The next answer, written before it is asked for.
fn prepare(answers: &mut Vec<Buffer>, job: &Job, received: u64) -> Option<Buffer> {
    let mut answer = answers.pop()?;
    if job.verify {
        pattern::fill(&mut answer, job.first + received);
    }
    Some(answer)
}

/// Waits until an answer under way is delivered, and writes the next one into its buffer.
fn reclaim(sending: &mut Queue, answers: &mut Vec<Buffer>, job: &Job, received: u64) -> Result<Buffer, String> {
    let deadline = Instant::now() + job.stall();
    loop {
        if let Some(answer) = prepare(answers, job, received) {
            return Ok(answer);
        }
        if let Some((buffer, _)) = sending.pop(false)? {
            answers.push(buffer);
        } else if Instant::now() > deadline {
            return Err(silent(job));
        }
    }
}

/// Sends for certain: waits while too much is outstanding.
pub(super) fn push(
    link: &Link<'_>,
    job: &Job,
    mut buffer: Buffer,
    len: usize,
    sending: &mut Queue,
) -> Result<(), String> {
    let deadline = Instant::now() + job.stall();
    loop {
        match link.send(job, buffer, len)? {
            Posted::Yes(pending) => {
                sending.push(pending);
                return Ok(());
            }
            Posted::Full(back) if Instant::now() < deadline => {
                buffer = back;
                link.fabric.progress();
            }
            Posted::Full(_) => return Err(silent(job)),
        }
    }
}

/// Sends an empty message for certain.
pub(super) fn empty(link: &Link<'_>, job: &Job, mut buffer: Buffer) -> Result<super::api::Pending, String> {
    let deadline = Instant::now() + job.stall();
    loop {
        match link.send_empty(job.class(), buffer)? {
            Posted::Yes(pending) => return Ok(pending),
            Posted::Full(back) if Instant::now() < deadline => {
                buffer = back;
                link.fabric.progress();
            }
            Posted::Full(_) => return Err(silent(job)),
        }
    }
}

/// Exposes slots that the client reads.
fn expose(link: &Link<'_>, talk: &mut Talk<'_>, pool: &mut Pool, job: &Job, ready: Ready) -> Result<Report, String> {
    let size = job.size as usize;
    let mut all = pool.take(link.fabric, size * job.slots as usize, 1)?;
    let mut slots = all.pop().ok_or("no buffer to expose")?;
    if job.verify {
        for (i, slot) in slots.chunks_exact_mut(size).enumerate() {
            pattern::fill(slot, job.first + i as u64);
        }
    }
    let access = WindowAccess { write: false, read: true, atomic: false };
    let exposed = link.connection.expose(slots, access).map_err(|refused| refused.error.to_string())?;
    talk.send(&ToClient::Ready(Ready { window: Some(exposed.token().to_vec()), ..ready }))?;
    let mut watch = Watch::start(link.busy);
    let deadline = match job.extent {
        super::options::Extent::Duration(d) => Instant::now() + d + 6 * job.stall(),
        super::options::Extent::Iterations(_) => Instant::now() + Duration::from_secs(86_400),
    };
    loop {
        let now = watch.turn();
        if link.stop.asked() {
            return Err(interrupted());
        }
        match talk.try_receive()? {
            Some(ToServer::Finish { .. }) => break,
            Some(other) => return Err(format!("the client said {other:?} in the middle of a sample")),
            None if now > deadline => return Err(silent(job)),
            None if link.busy => link.fabric.progress(),
            None => std::thread::sleep(Duration::from_micros(200)),
        }
    }
    let report = Report { cpu_ns: watch.cpu_ns(), gap_ns: watch.gap_ns(), ..Report::default() };
    pool.give([exposed.close()]);
    Ok(report)
}

fn silent(job: &Job) -> String {
    format!("nothing arrived for {} s; the other end hangs, or packets do not get through", job.stall().as_secs())
}

fn interrupted() -> String {
    "the server was interrupted".into()
}
