//! The public API used badly, or by a peer that goes away: bounded time, typed errors, nothing lost in silence.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use planespray::{
    Class, Connection, Error, Fabric, FabricConfig, Fate, JobKey, Pending, RemoteWindow, SendOptions, WindowAccess,
};

const LONG: Duration = Duration::from_secs(30);
/// Queue pairs give up when nothing was acknowledged for a second.
const STANDSTILL: Duration = Duration::from_secs(3);
const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn open_with(planes: &[String], change: impl FnOnce(&mut FabricConfig)) -> Fabric {
    let mut config = FabricConfig {
        planes: planes.iter().map(|a| a.parse::<IpAddr>().expect("an address")).collect(),
        key: Some(JobKey::from_hex(KEY).expect("a key")),
        ..FabricConfig::default()
    };
    change(&mut config);
    Fabric::open(&config).expect("a fabric on loopback")
}

/// Two fabrics of two planes each. `net` keeps tests apart.
fn fabrics(net: u8) -> (Fabric, Fabric) {
    let plane = |host: u8| format!("127.0.{net}.{host}");
    (open_with(&[plane(1), plane(2)], |_| ()), open_with(&[plane(3), plane(4)], |_| ()))
}

fn join(a: &Fabric, b: &Fabric) -> (Connection, Connection) {
    let listener = b.listen("127.0.0.1:0".parse().expect("an address")).expect("listens");
    let addr = listener.local_addr();
    std::thread::scope(|s| {
        let accepted = s.spawn(|| listener.accept(LONG));
        let connected = a.connect(addr, LONG).expect("connects");
        (connected, accepted.join().expect("no panic").expect("accepts"))
    })
}

fn send(f: &Fabric, c: &Connection, channel: u32, len: usize) -> Pending {
    let options = SendOptions { channel, ..SendOptions::default() };
    c.send(options, f.alloc(len).expect("memory"), len).expect("room")
}

fn receive(f: &Fabric, c: &Connection, channel: u32, len: usize) -> Pending {
    c.receive(channel, f.alloc(len).expect("memory")).expect("room")
}

/// One message of `len` bytes gets through.
fn works(a: (&Fabric, &Connection), b: (&Fabric, &Connection), channel: u32, len: usize) {
    let mut r = receive(b.0, b.1, channel, len);
    let mut s = send(a.0, a.1, channel, len);
    assert_eq!(r.wait(LONG).result.expect("received"), len);
    assert_eq!(s.wait(LONG).result.expect("sent"), len);
}

#[test]
fn a_channel_that_nobody_receives_on_holds_up_no_other() {
    let (a, b) = fabrics(71);
    let (ca, cb) = join(&a, &b);
    let (other_a, other_b) = join(&a, &b);
    let options = SendOptions { channel: 1, rendezvous: true, ..SendOptions::default() };
    let mut stuck = Vec::new();
    for _ in 0..5000 {
        match ca.send(options, a.alloc(8).expect("memory"), 8) {
            Ok(pending) => stuck.push(pending),
            Err(refused) => {
                assert!(refused.error.is_back_pressure(), "{}", refused.error);
                a.progress();
            }
        }
    }
    // Another connection goes on, the other direction goes on, another channel goes on.
    works((&a, &other_a), (&b, &other_b), 0, 100_000);
    works((&b, &cb), (&a, &ca), 1, 100_000);
    works((&a, &ca), (&b, &cb), 2, 100_000);
    let n = stuck.len();
    let report = ca.close(Duration::from_millis(100));
    assert_eq!((report.undelivered, report.clean), (n, false));
    for mut pending in stuck {
        assert!(matches!(pending.wait(LONG).result, Err(Error::Closed { .. })));
    }
}

#[test]
fn close_sends_what_was_taken_however_busy_the_engine_is() {
    let (a, b) = fabrics(72);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                a.progress();
            }
        });
        for round in 0..20 {
            let (ca, cb) = join(&a, &b);
            let mut receives: Vec<_> = (0..4).map(|_| receive(&b, &cb, 0, 64)).collect();
            let _sends: Vec<_> = (0..4).map(|_| send(&a, &ca, 0, 64)).collect();
            let report = ca.close(LONG);
            assert!(report.clean && report.undelivered == 0, "{report:?}");
            for r in &mut receives {
                let got = r.wait(LONG);
                assert!(got.result.is_ok(), "round {round}: {:?}", got.result);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn any_duration_is_a_timeout() {
    let (a, b) = fabrics(73);
    let listener = b.listen("127.0.0.1:0".parse().expect("an address")).expect("listens");
    let addr = listener.local_addr();
    let (ca, cb) = std::thread::scope(|s| {
        let accepted = s.spawn(|| listener.accept(Duration::MAX));
        let connected = a.connect(addr, Duration::MAX).expect("connects");
        (connected, accepted.join().expect("no panic").expect("accepts"))
    });
    let mut r = receive(&b, &cb, 0, 64);
    let mut s = send(&a, &ca, 0, 64);
    assert_eq!(r.wait(Duration::MAX).result.expect("received"), 64);
    assert_eq!(s.wait(Duration::MAX).result.expect("sent"), 64);
    assert!(matches!(receive(&b, &cb, 0, 64).wait(Duration::ZERO).result, Err(Error::TimedOut { .. })));
    assert!(matches!(listener.accept(Duration::ZERO), Err(Error::TimedOut { .. })));
    assert!(a.connect(addr, Duration::ZERO).is_err());
    assert!(ca.close(Duration::MAX).clean);
    cb.close(Duration::ZERO);
}

#[test]
fn nothing_is_a_message_too() {
    let (a, b) = fabrics(74);
    let (ca, cb) = join(&a, &b);
    for rendezvous in [false, true] {
        let options = SendOptions { rendezvous, ..SendOptions::default() };
        for capacity in [0, 1, 100_000] {
            let mut r = receive(&b, &cb, 0, capacity);
            let mut s = ca.send(options, a.alloc(0).expect("memory"), 0).expect("room");
            assert_eq!(r.wait(LONG).result.expect("received"), 0);
            assert_eq!(s.wait(LONG).result.expect("sent"), 0);
        }
        for len in [1, 100_000] {
            let mut r = receive(&b, &cb, 0, 0);
            let mut s = ca.send(options, a.alloc(len).expect("memory"), len).expect("room");
            assert!(matches!(r.wait(LONG).result, Err(Error::Failed { .. })));
            let _ = s.wait(LONG);
        }
    }
    let access = WindowAccess { write: true, read: true, atomic: false };
    for len in [0, 10] {
        let exposed = cb.expose(b.alloc(len).expect("memory"), access).expect("a window");
        let window = RemoteWindow::from_bytes(&exposed.token()).expect("a token");
        let at = len as u64;
        let mut w = ca.write(Class::Bulk, a.alloc(0).expect("memory"), 0, &window, at).expect("room");
        assert_eq!(w.wait(LONG).result.expect("written"), 0);
        let mut r = ca.read(Class::Bulk, a.alloc(0).expect("memory"), 0, &window, at).expect("room");
        assert_eq!(r.wait(LONG).result.expect("read"), 0);
        assert!(ca.read(Class::Bulk, a.alloc(1).expect("memory"), 1, &window, at).is_err());
    }
    works((&a, &ca), (&b, &cb), 0, 10);
}

#[test]
fn parts_may_be_dropped_in_any_order_during_traffic() {
    for order in 0..6 {
        let (a, b) = fabrics(75);
        let (ca, cb) = join(&a, &b);
        let receives: Vec<_> = (0..20).map(|_| receive(&b, &cb, 0, 300_000)).collect();
        let sends: Vec<_> = (0..20).map(|_| send(&a, &ca, 0, 300_000)).collect();
        let exposed = cb
            .expose(b.alloc(4096).expect("memory"), WindowAccess { write: true, read: true, atomic: false })
            .expect("a window");
        let start = Instant::now();
        match order {
            0 => {
                drop(a);
                drop(ca);
                drop(sends);
                drop(b);
                drop(cb);
                drop(receives);
                drop(exposed);
            }
            1 => {
                drop(sends);
                drop(receives);
                drop(a);
                drop(b);
                drop(ca);
                drop(cb);
                drop(exposed);
            }
            2 => {
                drop(exposed);
                drop(cb);
                drop(b);
                drop(receives);
                drop(ca);
                drop(a);
                drop(sends);
            }
            3 => {
                drop(b);
                drop(receives);
                drop(exposed);
                drop(cb);
                drop(sends);
                drop(ca);
                drop(a);
            }
            4 => {
                drop(receives);
                drop(cb);
                drop(ca);
                drop(exposed);
                drop(sends);
                drop(a);
                drop(b);
            }
            _ => {
                drop(ca);
                drop(cb);
                drop(a);
                drop(b);
                drop(exposed);
                drop(sends);
                drop(receives);
            }
        }
        assert!(start.elapsed() < Duration::from_secs(10), "order {order}: {:?}", start.elapsed());
    }
}

fn fds() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn resident_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = text.lines().find(|l| l.starts_with("VmRSS")).expect("a size");
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
}

#[test]
#[ignore = "measures the whole process: run alone"]
fn connections_come_and_go_without_growth() {
    let (a, b) = fabrics(76);
    let round = |i: usize| {
        let (ca, cb) = join(&a, &b);
        works((&a, &ca), (&b, &cb), i as u32, 100_000);
        let exposed = cb.expose(b.alloc(64).expect("memory"), WindowAccess { write: true, read: false, atomic: false });
        // What is left is dropped under way.
        let _r = receive(&b, &cb, 7, 10_000);
        let _s = send(&a, &ca, 8, 10_000);
        match i % 3 {
            0 => drop((ca.close(Duration::from_millis(5)), cb.close(Duration::from_millis(5)))),
            1 => drop((cb.close(Duration::from_millis(5)), ca.close(Duration::from_millis(5)))),
            _ => std::thread::scope(|s| {
                s.spawn(|| ca.close(Duration::from_millis(5)));
                cb.close(Duration::from_millis(5));
            }),
        }
        drop(exposed);
    };
    (0..10).for_each(round);
    let before = (fds(), resident_kib());
    (0..50).for_each(round);
    let after = (fds(), resident_kib());
    println!("{before:?} -> {after:?}; lanes {} {}", a.stats().lanes.len(), b.stats().lanes.len());
    assert_eq!(before.0, after.0, "file descriptors");
    assert!(after.1 < before.1 + 8192, "{before:?} -> {after:?} KiB");
    assert_eq!(a.stats().lanes.len() + b.stats().lanes.len(), 0);
    drop((a, b));
    println!("after all: {} {}", fds(), resident_kib());
}

#[test]
fn full_is_said_and_passes() {
    let (a, b) = fabrics(77);
    let (ca, cb) = join(&a, &b);
    let mut receives = Vec::new();
    let mut full = 0;
    while full < 100 {
        match cb.receive(receives.len() as u32 % 4, b.alloc(16).expect("memory")) {
            Ok(pending) => receives.push(pending),
            Err(refused) => {
                assert!(refused.error.is_back_pressure(), "{}", refused.error);
                full += 1;
            }
        }
    }
    println!("{} receives", receives.len());
    let count = receives.len();
    for i in 0..count {
        loop {
            let options = SendOptions { channel: i as u32 % 4, ..SendOptions::default() };
            match ca.send(options, a.alloc(16).expect("memory"), 16) {
                Ok(_) => break,
                Err(refused) => assert!(refused.error.is_back_pressure(), "{}", refused.error),
            }
        }
    }
    for mut r in receives {
        assert_eq!(r.wait(LONG).result.expect("received"), 16);
    }
    works((&a, &ca), (&b, &cb), 0, 1000);
}

#[test]
fn two_threads_share_a_connection() {
    let (a, b) = fabrics(78);
    let (ca, cb) = join(&a, &b);
    std::thread::scope(|s| {
        for t in 0..2u32 {
            let (a, b, ca, cb) = (&a, &b, &ca, &cb);
            s.spawn(move || {
                for i in 0..300 {
                    let mut p = send(a, ca, 10 + t, 1 + 97 * i);
                    p.wait(LONG).result.expect("sent");
                    // The same channel from both threads.
                    send(a, ca, 9, 5000).wait(LONG).result.expect("sent");
                }
            });
            s.spawn(move || {
                for i in 0..300 {
                    let got = receive(b, cb, 10 + t, 40_000).wait(LONG);
                    assert_eq!(got.result.expect("received"), 1 + 97 * i);
                    assert_eq!(receive(b, cb, 9, 5000).wait(LONG).result.expect("received"), 5000);
                }
            });
        }
    });
}

#[test]
fn a_window_closed_under_a_writer_stays_as_it_was() {
    let (a, b) = fabrics(79);
    for _ in 0..5 {
        let (ca, cb) = join(&a, &b);
        let access = WindowAccess { write: true, read: false, atomic: false };
        let exposed = cb.expose(b.alloc(1 << 20).expect("memory"), access).expect("a window");
        let window = RemoteWindow::from_bytes(&exposed.token()).expect("a token");
        let writes: Vec<_> = (0..16)
            .map(|i| {
                let mut buffer = a.alloc(1 << 20).expect("memory");
                buffer.fill(i + 1);
                ca.write(Class::Bulk, buffer, 1 << 20, &window, 0).expect("room")
            })
            .collect();
        std::thread::sleep(Duration::from_millis(5));
        let buffer = exposed.close();
        let copy = buffer.to_vec();
        let start = Instant::now();
        for mut w in writes {
            let _ = w.wait(LONG);
        }
        assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
        assert!(buffer[..] == copy[..], "nothing was written after the window closed");
    }
}

#[test]
fn a_closed_connection_refuses_or_fails_at_once() {
    let (a, b) = fabrics(80);
    let (ca, cb) = join(&a, &b);
    works((&a, &ca), (&b, &cb), 0, 1000);
    drop(cb);
    let start = Instant::now();
    let mut r = receive(&a, &ca, 0, 100);
    assert!(matches!(r.wait(LONG).result, Err(Error::PeerGone { .. })));
    assert!(ca.is_peer_closed());
    // Sends end one way or the other, also when the peer's process goes on without this connection.
    for rendezvous in [false, true] {
        let options = SendOptions { rendezvous, ..SendOptions::default() };
        let ended = ca.send(options, a.alloc(10).expect("memory"), 10).map(|mut p| p.wait(LONG).result);
        assert!(matches!(ended, Ok(Err(Error::PeerGone { .. }))), "{ended:?}");
    }
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let report = ca.close(LONG);
    assert!(!report.clean && start.elapsed() < Duration::from_secs(5), "{report:?} {:?}", start.elapsed());
}

#[test]
fn what_a_peer_sent_before_it_left_is_still_received() {
    let (a, b) = fabrics(84);
    let (ca, cb) = join(&a, &b);
    for channel in 0..50 {
        send(&a, &ca, channel, 100 + channel as usize);
    }
    assert!(ca.close(LONG).clean);
    drop(a);
    std::thread::sleep(Duration::from_millis(100));
    for channel in 0..50 {
        assert_eq!(receive(&b, &cb, channel, 1000).wait(LONG).result.expect("received"), 100 + channel as usize);
    }
    assert!(matches!(receive(&b, &cb, 0, 1000).wait(LONG).result, Err(Error::PeerGone { .. })));
}

/// The other process of the tests below.
#[test]
#[ignore = "run by other tests"]
fn child() {
    let Ok(what) = std::env::var("MISUSE_CHILD") else { return };
    let (how, addr) = what.split_once('@').expect("how@addr");
    let addr: SocketAddr = addr.parse().expect("an address");
    let net: u8 = std::env::var("MISUSE_NET").expect("a net").parse().expect("a number");
    let planes = [format!("127.0.{net}.3"), format!("127.0.{net}.4")];
    let fabric = open_with(&planes, |_| ());
    let c = fabric.connect(addr, LONG).expect("connects");
    if how == "take" {
        say_what_comes(&fabric, &c);
    }
    let mut queue = std::collections::VecDeque::new();
    let start = Instant::now();
    for n in 0u64.. {
        let len = 1 + (n as usize * 7919) % 200_000;
        let mut buffer = fabric.alloc(len).expect("memory");
        buffer.fill(n as u8);
        queue.push_back(c.send(SendOptions::default(), buffer, len).expect("room"));
        queue.push_back(c.receive(1, fabric.alloc(64).expect("memory")).expect("room"));
        if queue.len() > 32 {
            for _ in 0..2 {
                queue.pop_front().expect("some").wait(LONG).result.expect("done");
            }
        }
        if how == "exit" && n == 300 {
            std::process::exit(0);
        }
        if how == "run" && start.elapsed() > Duration::from_secs(6) {
            let mut last = c.send(SendOptions::default(), fabric.alloc(0).expect("memory"), 0).expect("room");
            last.wait(LONG).result.expect("sent");
            println!("{:?}", c.close(LONG));
            return;
        }
    }
}

/// Receives on channel 0 for ever, and says the number of each message once it has it.
fn say_what_comes(fabric: &Fabric, c: &Connection) -> ! {
    let receive = || c.receive(0, fabric.alloc(200_000).expect("memory")).expect("room");
    let mut queue: std::collections::VecDeque<_> = (0..8).map(|_| receive()).collect();
    for n in 0u64.. {
        let got = queue.pop_front().expect("some").wait(LONG);
        let (len, buffer) = (got.result.expect("received"), got.buffer.expect("back"));
        assert!(buffer[..len].iter().all(|&b| b == n as u8), "message {n}");
        println!("got {n}");
        queue.push_back(receive());
    }
    unreachable!()
}

fn start_child(how: &str, addr: SocketAddr, net: u8) -> Child {
    Command::new(std::env::current_exe().expect("a program"))
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env("MISUSE_CHILD", format!("{how}@{addr}"))
        .env("MISUSE_NET", net.to_string())
        .stdin(Stdio::null())
        .spawn()
        .expect("a process")
}

/// Asserts that this is what a child sends as message `n`.
fn is_message(n: u64, len: usize, buffer: &[u8]) {
    assert_eq!(len, 1 + (n as usize * 7919) % 200_000, "message {n}");
    assert!(buffer[..len].iter().all(|&b| b == n as u8), "message {n}");
}

/// Takes messages until one is empty or fails.
fn take_all(f: &Fabric, c: &Connection, mut each: impl FnMut(u64)) -> (u64, Result<(), Error>) {
    let mut queue = std::collections::VecDeque::new();
    for n in 0u64.. {
        while queue.len() < 16 {
            match c.receive(0, f.alloc(200_000).expect("memory")) {
                Ok(p) => queue.push_back(p),
                Err(refused) => return (n, Err(refused.error)),
            }
        }
        let mut p = queue.pop_front().expect("some");
        let got = p.wait(LONG);
        let len = match got.result {
            Ok(0) => return (n, Ok(())),
            Ok(len) => len,
            Err(e) => {
                // Later messages may have come whole before this one.
                for (later, mut p) in (n + 1..).zip(queue) {
                    let start = Instant::now();
                    let got = p.wait(LONG);
                    if let Ok(len) = got.result {
                        is_message(later, len, &got.buffer.expect("back"));
                    }
                    assert!(start.elapsed() < Duration::from_secs(1));
                }
                return (n, Err(e));
            }
        };
        is_message(n, len, &got.buffer.expect("back"));
        send(f, c, 1, 8);
        each(n);
    }
    unreachable!()
}

#[test]
fn a_peer_that_exits_without_a_word_is_reported() {
    for how in ["exit", "kill"] {
        let fabric = open_with(&["127.0.81.1".into(), "127.0.81.2".into()], |_| ());
        let listener = fabric.listen("127.0.0.1:0".parse().expect("an address")).expect("listens");
        let mut child = start_child(how, listener.local_addr(), 81);
        let c = listener.accept(LONG).expect("accepts");
        let start = Instant::now();
        let (n, result) = take_all(&fabric, &c, |n| {
            if how == "kill" && n == 200 {
                child.kill().expect("kills");
            }
        });
        println!("{how}: {n} messages, then {result:?} after {:?}", start.elapsed());
        assert!(matches!(result, Err(Error::PeerGone { .. })), "{result:?}");
        child.wait().expect("ends");
        assert!(!c.close(LONG).clean);
    }
}

/// The sender's verdict on each message against what the killed process said that it had.
#[test]
fn a_killed_peer_leaves_a_verdict_on_every_message() {
    let fabric = open_with(&["127.0.83.1".into(), "127.0.83.2".into()], |_| ());
    let listener = fabric.listen("127.0.0.1:0".parse().expect("an address")).expect("listens");
    let program = std::env::current_exe().expect("a program");
    let mut child = Command::new(program)
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env("MISUSE_CHILD", format!("take@{}", listener.local_addr()))
        .env("MISUSE_NET", "83")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let said = BufReader::new(child.stdout.take().expect("its output"));
    let c = listener.accept(LONG).expect("accepts");
    let post = |channel: u32, n: u64, len: usize| {
        let mut buffer = fabric.alloc(len).expect("memory");
        buffer.fill(n as u8);
        let options = SendOptions { channel, rendezvous: len > 1000, ..SendOptions::default() };
        c.send(options, buffer, len).expect("room")
    };
    // Nobody receives these.
    let mut stuck: Vec<_> = (0..4).map(|n| post(7, n, 100_000)).collect();
    let mut open = std::collections::VecDeque::new();
    let mut verdicts = Vec::new();
    let mut killed = None;
    for n in 0u64..400 {
        open.push_back(post(0, n, if n % 3 == 0 { 500 } else { 1 + (n as usize * 7919) % 200_000 }));
        if n == 300 {
            child.kill().expect("kills");
            killed = Some(Instant::now());
        }
        while killed.is_none() && open.len() > 24 {
            verdicts.push(open.pop_front().expect("some").wait(LONG).result);
        }
    }
    let rest = open.into_iter().chain(stuck.drain(..));
    let (mut after, killed) = (Vec::new(), killed.expect("killed"));
    for mut pending in rest {
        after.push(pending.wait(LONG).result);
    }
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    verdicts.extend(after);
    child.wait().expect("ends");
    let lines = said.lines().map_while(Result::ok);
    let got: HashSet<u64> = lines.filter_map(|l| l.strip_prefix("got ")?.parse().ok()).collect();
    let (mut missing, mut unknown) = (0, 0);
    for (n, result) in verdicts.iter().enumerate() {
        let arrived = n < 400 && got.contains(&(n as u64));
        let Err(error) = result else { continue };
        assert!(matches!(error, Error::PeerGone { .. }), "message {n}: {error}");
        match error.fate().expect("a verdict") {
            Fate::NotDelivered => {
                assert!(!arrived, "message {n} was delivered");
                missing += 1;
            }
            Fate::Unknown => unknown += 1,
            Fate::Delivered => {}
        }
        if n >= 400 {
            assert_eq!(error.fate(), Some(Fate::NotDelivered), "it had no receive");
            assert!(error.to_string().contains("not delivered"), "{error}");
        }
    }
    println!(
        "{} of 404 sent, {missing} not delivered, {unknown} unknown; the peer had {}",
        404 - missing - unknown,
        got.len()
    );
    assert!(got.len() > 200 && missing >= 4);
}

#[test]
fn a_peer_that_stands_still_for_a_while_loses_nothing() {
    let fabric = open_with(&["127.0.82.1".into(), "127.0.82.2".into()], |_| ());
    let listener = fabric.listen("127.0.0.1:0".parse().expect("an address")).expect("listens");
    let mut child = start_child("run", listener.local_addr(), 82);
    let pid = child.id().to_string();
    let c = listener.accept(LONG).expect("accepts");
    let signal = |name: &str| assert!(Command::new("kill").args([name, &pid]).status().expect("runs").success());
    let mut stopped = false;
    let (n, result) = take_all(&fabric, &c, |n| {
        if n == 60 && !std::mem::replace(&mut stopped, true) {
            signal("-STOP");
            let pid = pid.clone();
            std::thread::spawn(move || {
                std::thread::sleep(STANDSTILL);
                let _ = Command::new("kill").args(["-CONT", &pid]).status();
            });
        }
    });
    println!("{n} messages, {result:?}");
    result.expect("all arrived");
    assert!(stopped);
    drop(c);
    assert!(child.wait().expect("ends").success());
}

#[test]
fn a_listener_that_goes_takes_half_made_connections_with_it() {
    let (a, b) = fabrics(83);
    for _ in 0..3 {
        let listener = b.listen("127.0.0.1:0".parse().expect("an address")).expect("listens");
        let addr = listener.local_addr();
        std::thread::scope(|s| {
            let connecting = s.spawn(|| a.connect(addr, Duration::from_secs(3)));
            // Not long enough for a whole handshake, most times.
            for _ in 0..2 {
                let _ = listener.accept(Duration::from_micros(300));
            }
            drop(listener);
            let _ = connecting.join().expect("no panic");
        });
    }
    let (ca, cb) = join(&a, &b);
    works((&a, &ca), (&b, &cb), 0, 1000);
    drop((ca, cb));
    assert_eq!(b.stats().lanes.len(), 0);
}
