//! The yardstick: plain TCP between the same two processes, tuned, with the same sizes, slots and checks.
//!
//! One thread per end, nonblocking sockets that are polled without rest. With several sockets, message `i`
//! goes over socket `i` modulo their number, and all are served in turn, as NCCL's socket transport does.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use super::STALL;
use super::check::Checker;
use super::client::{Mine, histogram};
use super::link::Stop;
use super::options::Extent;
use super::pattern;
use super::talk::{Job, Report};
use super::watch::Watch;

/// Asked for each socket, each way.
const SOCKET_BUFFER: usize = 4 << 20;

fn text(what: &str) -> impl Fn(std::io::Error) -> String + '_ {
    move |e| format!("TCP comparison: {what}: {e}")
}

fn socket(addr: SocketAddr) -> Result<Socket, String> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP)).map_err(text("socket"))?;
    socket.set_send_buffer_size(SOCKET_BUFFER).map_err(text("send buffer"))?;
    socket.set_recv_buffer_size(SOCKET_BUFFER).map_err(text("receive buffer"))?;
    Ok(socket)
}

/// A port for one sample.
pub(super) struct Listener {
    listener: TcpListener,
    port: u16,
    token: u64,
}

/// Opens a port on `addr`.
pub(super) fn listen(addr: IpAddr) -> Result<Listener, String> {
    let at = SocketAddr::new(addr, 0);
    let socket = socket(at)?;
    socket.bind(&at.into()).map_err(text("bind"))?;
    socket.listen(16).map_err(text("listen"))?;
    socket.set_nonblocking(true).map_err(text("nonblocking"))?;
    let listener = TcpListener::from(socket);
    let port = listener.local_addr().map_err(text("address"))?.port();
    Ok(Listener { listener, port, token: fastrand::u64(..) })
}

impl Listener {
    /// What the client needs to know: port, and what each socket says first.
    pub(super) fn ticket(&self) -> (u16, u64) {
        (self.port, self.token)
    }

    /// Takes the sockets and serves the sample. Also the number of messages received.
    pub(super) fn serve(&self, job: &Job, sockets: u8) -> Result<(Report, u64), String> {
        let mut streams: Vec<Option<TcpStream>> = (0..sockets).map(|_| None).collect();
        let deadline = Instant::now() + STALL;
        while streams.iter().any(Option::is_none) {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if let Some((index, stream)) = self.admit(stream)
                        && let Some(place) = streams.get_mut(usize::from(index))
                    {
                        *place = Some(stream);
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_micros(200));
                }
                Err(e) => return Err(text("the client's sockets did not come")(e)),
            }
        }
        let mut streams: Vec<TcpStream> = streams.into_iter().flatten().collect();
        if job.lat { echo(job, &mut streams[0]) } else { sink(job, streams) }
    }

    /// A stranger's socket is dropped.
    fn admit(&self, mut stream: TcpStream) -> Option<(u8, TcpStream)> {
        stream.set_nonblocking(false).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
        let mut hello = [0; 9];
        stream.read_exact(&mut hello).ok()?;
        let token = u64::from_le_bytes(*hello.first_chunk()?);
        if token != self.token {
            return None;
        }
        stream.set_nodelay(true).ok()?;
        stream.set_nonblocking(true).ok()?;
        Some((hello[8], stream))
    }
}

fn connect(addr: SocketAddr, token: u64, index: u8) -> Result<TcpStream, String> {
    let socket = socket(addr)?;
    socket.connect_timeout(&addr.into(), STALL).map_err(text("connect"))?;
    let mut stream = TcpStream::from(socket);
    let mut hello = [0; 9];
    hello[..8].copy_from_slice(&token.to_le_bytes());
    hello[8] = index;
    stream.write_all(&hello).map_err(text("hello"))?;
    stream.set_nodelay(true).map_err(text("nodelay"))?;
    stream.set_nonblocking(true).map_err(text("nonblocking"))?;
    Ok(stream)
}

/// Slots for `job`, a multiple of `sockets` so that a slot belongs to one socket.
fn slots(job: &Job, sockets: usize) -> Vec<Vec<u8>> {
    let count = (job.slots as usize).next_multiple_of(sockets.max(1));
    (0..count).map(|_| vec![0; job.size as usize]).collect()
}

/// The client's side of a sample.
pub(super) fn run(stop: &Stop, job: &Job, sockets: u8, to: SocketAddr, token: u64) -> Result<Mine, String> {
    let mut streams = (0..sockets).map(|i| connect(to, token, i)).collect::<Result<Vec<_>, _>>()?;
    if job.lat { ping(stop, job, &mut streams[0]) } else { source(stop, job, streams) }
}

/// Moves what it can: the bytes moved, 0 for none, `None` at the end of the stream.
fn step(result: std::io::Result<usize>) -> Result<Option<usize>, String> {
    match result {
        Ok(0) => Ok(None),
        Ok(n) => Ok(Some(n)),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(Some(0)),
        Err(e) => Err(text("the other end is gone")(e)),
    }
}

/// A socket with the message it is in the middle of.
struct Strand {
    stream: TcpStream,
    /// Number of the message within the sample.
    message: u64,
    at: usize,
    begun: bool,
    open: bool,
}

fn strands(streams: Vec<TcpStream>) -> Vec<Strand> {
    let strand = |(i, stream)| Strand { stream, message: i as u64, at: 0, begun: false, open: true };
    streams.into_iter().enumerate().map(strand).collect()
}

fn source(stop: &Stop, job: &Job, streams: Vec<TcpStream>) -> Result<Mine, String> {
    let mut slots = slots(job, streams.len());
    let step_by = streams.len() as u64;
    let mut strands = strands(streams);
    let mut watch = Watch::start(true);
    let start = Instant::now();
    let end = match job.extent {
        Extent::Duration(d) => Some(start + d),
        Extent::Iterations(_) => None,
    };
    let (mut sent, mut progress) = (0u64, start);
    while strands.iter().any(|s| s.open) {
        let now = watch.turn();
        let over = end.is_some_and(|end| now >= end) || stop.asked();
        for s in strands.iter_mut().filter(|s| s.open) {
            let index = (s.message % slots.len() as u64) as usize;
            if !s.begun {
                if over || s.message >= job.limit() {
                    s.stream.shutdown(Shutdown::Write).map_err(text("end"))?;
                    s.open = false;
                    continue;
                }
                if job.verify {
                    pattern::fill(&mut slots[index], job.first + s.message);
                }
                s.begun = true;
            }
            let moved = step(s.stream.write(&slots[index][s.at..]))?.unwrap_or(0);
            if moved > 0 {
                progress = now;
            }
            s.at += moved;
            if s.at == slots[index].len() {
                (s.at, s.begun) = (0, false);
                s.message += step_by;
                sent += 1;
            }
        }
        if now - progress > STALL {
            return Err("TCP comparison: nothing was taken for too long; the server hangs".into());
        }
    }
    // The server closes when it has everything.
    for s in &mut strands {
        loop {
            let now = watch.turn();
            if step(s.stream.read(&mut [0]))?.is_none() {
                break;
            }
            if now - progress > STALL + STALL {
                return Err("TCP comparison: the server did not take everything".into());
            }
        }
    }
    let (elapsed, watch) = (start.elapsed(), watch.stopped());
    Ok(Mine { messages: sent, elapsed, lat: None, wrong: 0, dup: 0, lost: 0, gaps: None, watch })
}

fn sink(job: &Job, streams: Vec<TcpStream>) -> Result<(Report, u64), String> {
    let mut slots = slots(job, streams.len());
    for slot in &mut slots {
        pattern::poison(slot);
    }
    let step_by = streams.len() as u64;
    let mut strands = strands(streams);
    let mut checker = Checker::new(job);
    let mut watch = Watch::start(true);
    let (mut received, mut progress) = (0u64, Instant::now());
    while strands.iter().any(|s| s.open) {
        let now = watch.turn();
        for s in strands.iter_mut().filter(|s| s.open) {
            let index = (s.message % slots.len() as u64) as usize;
            let slot = &mut slots[index];
            match step(s.stream.read(&mut slot[s.at..]))? {
                None if s.at > 0 => return Err("TCP comparison: the stream ended within a message".into()),
                None => s.open = false,
                Some(0) => {}
                Some(n) => {
                    progress = now;
                    s.at += n;
                    if s.at == slot.len() {
                        checker.check(slot, s.at, job.first + s.message);
                        s.at = 0;
                        s.message += step_by;
                        received += 1;
                    }
                }
            }
        }
        if now - progress > STALL {
            return Err("TCP comparison: nothing arrived for too long; the client hangs".into());
        }
    }
    let report = Report {
        wrong: checker.wrong,
        lost: checker.skipped,
        dup: checker.dup,
        cpu_ns: watch.cpu_ns(),
        gap_ns: watch.gap_ns(),
        ..Report::default()
    };
    Ok((report, received))
}

/// Writes all of `bytes`, polling.
fn put(stream: &mut TcpStream, bytes: &[u8], watch: &mut Watch) -> Result<(), String> {
    let (mut at, start) = (0, watch.turn());
    while at < bytes.len() {
        at += step(stream.write(&bytes[at..]))?.unwrap_or(0);
        if watch.turn() - start > STALL {
            return Err("TCP comparison: nothing was taken for too long".into());
        }
    }
    Ok(())
}

/// Reads all of `bytes`, polling; false at the end of the stream.
fn get(stream: &mut TcpStream, bytes: &mut [u8], watch: &mut Watch) -> Result<bool, String> {
    let (mut at, start) = (0, watch.turn());
    while at < bytes.len() {
        match step(stream.read(&mut bytes[at..]))? {
            None if at == 0 => return Ok(false),
            None => return Err("TCP comparison: the stream ended within a message".into()),
            Some(n) => at += n,
        }
        if watch.turn() - start > STALL {
            return Err("TCP comparison: nothing arrived for too long".into());
        }
    }
    Ok(true)
}

fn ping(stop: &Stop, job: &Job, stream: &mut TcpStream) -> Result<Mine, String> {
    let (mut out, mut back) = (vec![0; job.size as usize], vec![0; job.size as usize]);
    let mut checker = Checker::new(&Job { flip: false, ..*job });
    let mut lat = histogram()?;
    let mut watch = Watch::start(true);
    let start = Instant::now();
    let mut sent = 0;
    loop {
        let now = watch.turn();
        let over = match job.extent {
            Extent::Iterations(n) => sent >= n,
            Extent::Duration(d) => now - start >= d,
        };
        if over || stop.asked() {
            break;
        }
        if job.verify {
            pattern::fill(&mut out, job.first + sent);
        }
        let before = watch.turn();
        put(stream, &out, &mut watch)?;
        if !get(stream, &mut back, &mut watch)? {
            return Err("TCP comparison: the server closed too early".into());
        }
        let round = watch.turn() - before;
        lat.saturating_record(u64::try_from(round.as_nanos() / 2).unwrap_or(u64::MAX));
        let len = back.len();
        checker.check(&mut back, len, job.first + sent);
        sent += 1;
    }
    let (elapsed, watch) = (start.elapsed(), watch.stopped());
    stream.shutdown(Shutdown::Write).map_err(text("end"))?;
    Ok(Mine {
        messages: sent,
        elapsed,
        lat: Some(lat),
        wrong: checker.wrong,
        dup: checker.dup,
        lost: checker.skipped,
        gaps: None,
        watch,
    })
}

fn echo(job: &Job, stream: &mut TcpStream) -> Result<(Report, u64), String> {
    let (mut out, mut got) = (vec![0; job.size as usize], vec![0; job.size as usize]);
    pattern::poison(&mut got);
    let mut checker = Checker::new(job);
    let mut watch = Watch::start(true);
    let mut received = 0;
    loop {
        if job.verify {
            pattern::fill(&mut out, job.first + received);
        }
        if !get(stream, &mut got, &mut watch)? {
            break;
        }
        put(stream, &out, &mut watch)?;
        let len = got.len();
        checker.check(&mut got, len, job.first + received);
        received += 1;
    }
    let report = Report {
        wrong: checker.wrong,
        lost: checker.skipped,
        dup: checker.dup,
        cpu_ns: watch.cpu_ns(),
        gap_ns: watch.gap_ns(),
        ..Report::default()
    };
    Ok((report, received))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::options::Operation;
    use super::super::talk::Transport;
    use super::*;

    fn job(lat: bool, flip: bool) -> Job {
        Job {
            transport: Transport::Tcp { sockets: 1 },
            op: Operation::Write,
            lat,
            size: 10_000,
            slots: 6,
            extent: Extent::Iterations(50),
            class: 2,
            verify: true,
            flip,
            first: 1000,
        }
    }

    fn both(job: Job, sockets: u8) -> (u64, Report) {
        let listener = listen(Ipv4Addr::LOCALHOST.into()).unwrap();
        let (port, token) = listener.ticket();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| listener.serve(&job, sockets).unwrap());
            let addr = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
            // A stranger is not admitted and does no harm.
            let mut stranger = TcpStream::connect(addr).unwrap();
            stranger.write_all(&[7; 9]).unwrap();
            let mut streams: Vec<_> = (0..sockets).map(|i| connect(addr, token, i).unwrap()).collect();
            let stop = Stop::default();
            let mine = if job.lat { ping(&stop, &job, &mut streams[0]) } else { source(&stop, &job, streams) };
            let mine = mine.unwrap();
            assert_eq!(mine.wrong, 0);
            assert_eq!(mine.lat.map(|l| l.len()), job.lat.then_some(mine.messages));
            let (report, received) = server.join().unwrap();
            assert_eq!(received, mine.messages);
            (mine.messages, report)
        })
    }

    #[test]
    fn messages_over_one_and_four_sockets_check() {
        for sockets in [1, 4] {
            let (sent, report) = both(job(false, false), sockets);
            assert_eq!((sent, report.lost, report.wrong, report.dup), (50, 0, 0, 0));
        }
    }

    #[test]
    fn answers_check() {
        let (sent, report) = both(job(true, false), 1);
        assert_eq!((sent, report.lost, report.wrong), (50, 0, 0));
    }

    #[test]
    fn a_flipped_byte_is_wrong() {
        assert_eq!(both(job(false, true), 1).1.wrong, 1);
    }
}
