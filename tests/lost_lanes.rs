//! Every queue pair of a connection dies, at one end or at both: the connection goes on.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use planespray::{Buffer, Connection, Fabric, FabricConfig, JobKey, Pending, PlaneFault, SendOptions};

const LONG: Duration = Duration::from_secs(30);
const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn fabric(net: u8, host: u8) -> Fabric {
    let planes = [0, 1].map(|p| IpAddr::from([127, 0, net, host * 2 + p]));
    let config = FabricConfig {
        planes: planes.to_vec(),
        key: Some(JobKey::from_hex(KEY).expect("a key")),
        ..FabricConfig::default()
    };
    Fabric::open(&config).expect("a fabric on loopback")
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

fn filled(f: &Fabric, n: usize, len: usize) -> Buffer {
    let mut buffer = f.alloc(len).expect("memory");
    buffer.fill(n as u8);
    buffer
}

/// Messages in both directions, small and large, while `each` breaks things; all of them arrive once and whole.
fn stream(ends: [(&Fabric, &Connection); 2], count: usize, mut each: impl FnMut(usize)) -> Duration {
    let mut queue: std::collections::VecDeque<(usize, usize, Instant, Pending, Pending)> =
        std::collections::VecDeque::new();
    let mut slowest = Duration::ZERO;
    for n in 0..count + 32 {
        if n < count {
            let len = if n % 2 == 0 { 1 + n % 2000 } else { 1 + (n * 7919) % 300_000 };
            let (from, to) = (ends[n / 2 % 2], ends[1 - n / 2 % 2]);
            let receive = to.1.receive(0, to.0.alloc(len).expect("memory")).expect("room");
            let send = from.1.send(SendOptions::default(), filled(from.0, n, len), len).expect("room");
            queue.push_back((n, len, Instant::now(), send, receive));
            each(n);
        }
        while queue.len() > 31 || (n >= count && !queue.is_empty()) {
            let (n, len, since, mut send, mut receive) = queue.pop_front().expect("some");
            let got = receive.wait(LONG);
            assert_eq!(got.result.expect("received"), len, "message {n}");
            assert!(got.buffer.expect("back")[..len].iter().all(|&b| b == n as u8), "message {n}");
            assert_eq!(send.wait(LONG).result.expect("sent"), len, "message {n}");
            slowest = slowest.max(since.elapsed());
        }
    }
    slowest
}

#[test]
fn all_queue_pairs_die_at_once_and_nothing_is_lost() {
    let (a, b) = (fabric(91, 1), fabric(91, 2));
    let (ca, cb) = join(&a, &b);
    let slowest = stream([(&a, &ca), (&b, &cb)], 600, |n| {
        let broken: &[&Fabric] = match n {
            100 => &[&a],
            300 => &[&b],
            500 => &[&a, &b],
            _ => return,
        };
        for fabric in broken {
            for plane in [0, 1] {
                fabric.inject(plane, PlaneFault::Break).expect("breaks");
            }
        }
    });
    println!("slowest message: {slowest:?}");
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    assert!(ca.error().is_none() && cb.error().is_none());
    assert!(ca.close(LONG).clean);
}

/// Nothing is under way when they die; what comes later goes by the lanes that are made anew.
#[test]
fn an_idle_connection_survives_as_well() {
    let (a, b) = (fabric(92, 1), fabric(92, 2));
    let (ca, cb) = join(&a, &b);
    let ends = [(&a, &ca), (&b, &cb)];
    stream(ends, 20, |_| ());
    for plane in [0, 1] {
        b.inject(plane, PlaneFault::Break).expect("breaks");
    }
    std::thread::sleep(Duration::from_millis(300));
    let slowest = stream(ends, 20, |_| ());
    println!("slowest message: {slowest:?}");
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
}
