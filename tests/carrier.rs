//! A port that loses its carrier or its address is given up at once, on the kernel's word. Two network namespaces with a veth
//! pair per plane between them.
#![cfg(target_os = "linux")]

mod common;

use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use common::skipped;
use nix::sched::{CloneFlags, unshare};
use planespray::{Cause, Class, Connection, Fabric, FabricConfig, Health, JobKey, SendOptions, Subject};

const LONG: Duration = Duration::from_secs(20);
const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn run(command: &str) -> Result<(), String> {
    let mut words = command.split_whitespace();
    let program = words.next().unwrap_or_default();
    match Command::new(program).args(words).stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("`{command}` failed: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(e) => Err(format!("`{program}` cannot be run: {e}")),
    }
}

fn open(host: u8) -> Fabric {
    let planes = [0, 1].map(|plane| IpAddr::from([10, 77, plane, host])).to_vec();
    let key = Some(JobKey::from_hex(KEY).expect("a key"));
    Fabric::open(&FabricConfig { planes, key, ..FabricConfig::default() }).expect("a fabric")
}

/// The other end: receives until an empty message comes.
fn take_all(fabric: &Fabric, c: &Connection) -> usize {
    let receive = || c.receive(0, fabric.alloc(4096).expect("memory")).expect("room");
    let mut queue: std::collections::VecDeque<_> = (0..16).map(|_| receive()).collect();
    for n in 0.. {
        let got = queue.pop_front().expect("some").wait(LONG);
        let (len, buffer) = (got.result.expect("received"), got.buffer.expect("back"));
        if len == 0 {
            return n;
        }
        assert!(buffer[..len].iter().all(|&b| b == n as u8), "message {n}");
        queue.push_back(receive());
    }
    unreachable!()
}

/// Its half in a namespace of its own.
fn other_end(thread: &Sender<i32>, made: &Receiver<()>, listens: &Sender<SocketAddr>) -> Result<usize, String> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|e| format!("no network namespace can be made ({e})"))?;
    thread.send(nix::unistd::gettid().as_raw()).map_err(|e| e.to_string())?;
    made.recv().map_err(|_| "the other half failed".to_owned())?;
    run("ip link set lo up")?;
    for plane in 0..2 {
        run(&format!("ip addr add 10.77.{plane}.2/24 dev pb{plane}"))?;
        run(&format!("ip link set pb{plane} up"))?;
    }
    let fabric = open(2);
    let listener = fabric.listen("10.77.1.2:0".parse().expect("an address")).expect("listens");
    listens.send(listener.local_addr()).map_err(|e| e.to_string())?;
    let c = listener.accept(LONG).expect("accepts");
    let count = take_all(&fabric, &c);
    c.close(LONG);
    Ok(count)
}

/// Runs `test` at one end of two planes, with the other end as its peer; `skipped` if that cannot be set up.
fn between_namespaces(test: impl FnOnce(&Fabric, &Connection) + Send) {
    std::thread::scope(|s| {
        let (thread, threads) = channel();
        let (make, made) = channel();
        let (listens, listening) = channel();
        let other = s.spawn(move || other_end(&thread, &made, &listens));
        let one = s.spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).map_err(|e| format!("no network namespace can be made ({e})"))?;
            let there = threads.recv().map_err(|_| "the other half failed".to_owned())?;
            run("ip link set lo up")?;
            for plane in 0..2 {
                run(&format!("ip link add pa{plane} type veth peer name pb{plane} netns {there}"))?;
                run(&format!("ip addr add 10.77.{plane}.1/24 dev pa{plane}"))?;
                run(&format!("ip link set pa{plane} up"))?;
            }
            make.send(()).map_err(|_| "the other half failed".to_owned())?;
            let addr = listening.recv().map_err(|_| "the other half failed".to_owned())?;
            let fabric = open(1);
            let c = fabric.connect(addr, LONG).expect("connects");
            test(&fabric, &c);
            Ok::<(), String>(())
        });
        let results = (one.join(), other.join());
        match results {
            (Err(panic), _) | (_, Err(panic)) => std::panic::resume_unwind(panic),
            (Ok(Err(why)), _) | (_, Ok(Err(why))) => skipped(&why),
            (Ok(Ok(())), Ok(Ok(count))) => println!("{count} messages"),
        }
    });
}

/// Sends small messages one after the other.
struct Stream<'a> {
    fabric: &'a Fabric,
    c: &'a Connection,
    sent: usize,
}

impl Stream<'_> {
    /// The longest that one took, while `go_on`.
    fn run(&mut self, mut go_on: impl FnMut() -> bool) -> Duration {
        let mut slowest = Duration::ZERO;
        while go_on() {
            let mut buffer = self.fabric.alloc(64).expect("memory");
            buffer.fill(self.sent as u8);
            let options = SendOptions { class: Class::Latency, ..SendOptions::default() };
            let start = Instant::now();
            self.c.send(options, buffer, 64).expect("room").wait(LONG).result.expect("sent");
            slowest = slowest.max(start.elapsed());
            self.sent += 1;
        }
        slowest
    }

    fn run_for(&mut self, span: Duration) -> Duration {
        let start = Instant::now();
        self.run(|| start.elapsed() < span)
    }

    /// Until every lane is in use again.
    fn until_whole(&mut self) -> Duration {
        let (fabric, start) = (self.fabric, Instant::now());
        self.run(|| {
            assert!(start.elapsed() < Duration::from_secs(15), "lanes have not returned");
            fabric.stats().lanes.iter().any(|l| !l.alive)
        });
        start.elapsed()
    }

    fn end(self) {
        let options = SendOptions { class: Class::Latency, ..SendOptions::default() };
        let empty = self.fabric.alloc(0).expect("memory");
        self.c.send(options, empty, 0).expect("room").wait(LONG).result.expect("sent");
    }
}

/// Lanes that were given up since entry `from` of the log: on our kernel's word, on the peer's word, who has heard its own, and
/// in all.
fn lost(fabric: &Fabric, from: u64) -> (usize, usize, usize) {
    let (events, _) = fabric.events(from);
    let dead =
        |e: &&planespray::LogEntry| matches!(e.transition.subject, Subject::Lane(_)) && e.transition.to == Health::Dead;
    let by = |cause| events.iter().filter(dead).filter(|e| e.transition.cause == cause).count();
    (by(Cause::PortDown), by(Cause::Peer), events.iter().filter(dead).count())
}

#[test]
fn a_lost_carrier_stalls_nothing_for_long() {
    between_namespaces(|fabric, c| {
        let mut stream = Stream { fabric, c, sent: 0 };
        let lanes = fabric.stats().lanes.iter().filter(|l| l.plane == 0).count();
        let (mut stalls, mut own) = (Vec::new(), 0);
        for round in 0..4 {
            let calm = stream.run_for(Duration::from_millis(250));
            let (_, from) = fabric.events(u64::MAX);
            let stall = std::thread::scope(|s| {
                s.spawn(|| run("ip link set dev pa0 down").expect("down"));
                stream.run_for(Duration::from_millis(250))
            });
            let (down, peer, dead) = lost(fabric, from);
            // A new one may be lost on the other end's word, which comes later than ours.
            assert!(
                down + peer == dead && dead >= lanes,
                "{down} and {peer} of {dead} lanes by event, at least {lanes}"
            );
            own += down;
            run("ip link set dev pa0 up").expect("up");
            let back = stream.until_whole();
            println!("round {round}: slowest message {stall:?}, before that {calm:?}; all lanes back after {back:?}");
            stalls.push(stall.saturating_sub(calm));
        }
        stream.end();
        assert!(own > 0, "our own kernel said so");
        // Beyond what the machine's other work costs anyway, which may add to any of them.
        let best = stalls.iter().min().expect("some");
        assert!(*best <= Duration::from_millis(10), "{stalls:?}");
    });
}

#[test]
fn a_removed_address_is_a_lost_port() {
    between_namespaces(|fabric, c| {
        let mut stream = Stream { fabric, c, sent: 0 };
        stream.run_for(Duration::from_millis(50));
        let (_, from) = fabric.events(u64::MAX);
        run("ip addr del 10.77.0.1/24 dev pa0").expect("removes");
        stream.run_for(Duration::from_millis(200));
        assert!(lost(fabric, from).0 > 0, "our own kernel said so");
        run("ip addr add 10.77.0.1/24 dev pa0").expect("adds");
        let back = stream.until_whole();
        println!("all lanes back after {back:?}");
        stream.end();
    });
}
