//! The public API over real sockets: both ends in one process, two planes on loopback.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use planespray::{
    Class, Connection, Error, Fabric, FabricConfig, JobKey, RemoteWindow, SendOptions, Wait, WindowAccess,
};

const LONG: Duration = Duration::from_secs(20);

fn addrs(list: &[&str]) -> Vec<IpAddr> {
    list.iter().map(|a| a.parse().expect("an address")).collect()
}

fn open(planes: &[&str], key: &JobKey) -> Fabric {
    let config = FabricConfig { planes: addrs(planes), key: Some(key.clone()), ..FabricConfig::default() };
    Fabric::open(&config).expect("a fabric on loopback")
}

/// Two fabrics with a connection between them. `net` keeps tests apart.
fn pair(net: u8) -> ((Fabric, Connection), (Fabric, Connection)) {
    let key = JobKey::generate().expect("randomness");
    let plane = |host: u8| format!("127.0.{net}.{host}");
    let a = open(&[&plane(1), &plane(2)], &key);
    let b = open(&[&plane(3), &plane(4)], &key);
    let (ca, cb) = join(&a, &b);
    ((a, ca), (b, cb))
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

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ seed.wrapping_mul(7) ^ (i >> 8)) as u8).collect()
}

#[test]
fn messages_of_all_sizes_arrive_whole() {
    let ((a, ca), (b, cb)) = pair(51);
    for (seed, len) in
        [0, 1, 8, 127, 128, 3072, 3073, 4096, 65_536, 65_537, 1 << 20, (1 << 20) + 1, 5_000_000].into_iter().enumerate()
    {
        for rendezvous in [false, true] {
            let mut receive = cb.receive(0, b.alloc(len + 100).expect("memory")).expect("room");
            let message = a.register(pattern(seed, len)).expect("a key");
            let options = SendOptions { rendezvous, ..SendOptions::default() };
            let mut send = ca.send(options, message, len).expect("room");
            let got = receive.wait(LONG);
            assert_eq!(got.result.expect("received"), len);
            assert_eq!(got.buffer.expect("back")[..len], pattern(seed, len)[..], "length {len}");
            assert_eq!(send.wait(LONG).result.expect("delivered"), len);
        }
    }
    let stats = a.stats();
    assert_eq!(stats.planes.len(), 2);
    for plane in &stats.planes {
        assert!(plane.share.is_some_and(|s| s > 0.2), "both planes carry their part: {stats:?}");
    }
}

#[test]
fn many_messages_under_way_keep_their_order() {
    let ((a, ca), (b, cb)) = pair(52);
    const N: usize = 2000;
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut waiting = std::collections::VecDeque::new();
            for i in 0..N {
                let len = 1 + (i * 7919) % 20_000;
                let options = SendOptions { class: Class::ALL[i % 3], ..SendOptions::default() };
                let buffer = a.register(pattern(i, len)).expect("a key");
                waiting.push_back(ca.send(options, buffer, len).expect("room"));
                if waiting.len() >= 64 {
                    waiting.pop_front().expect("some").wait(LONG).result.expect("delivered");
                }
            }
            for mut w in waiting {
                w.wait(LONG).result.expect("delivered");
            }
        });
        let mut waiting = std::collections::VecDeque::new();
        let post = || cb.receive_ordered(0, b.alloc(20_000).expect("memory")).expect("room");
        for _ in 0..64 {
            waiting.push_back(post());
        }
        for i in 0..N {
            let got = waiting.pop_front().expect("some").wait(LONG);
            let len = 1 + (i * 7919) % 20_000;
            assert_eq!(got.result.expect("received"), len, "message {i}");
            assert_eq!(got.buffer.expect("back")[..len], pattern(i, len)[..], "message {i}");
            waiting.push_back(post());
        }
    });
}

#[test]
fn windows_are_written_and_read_without_the_peer() {
    let ((a, ca), (b, cb)) = pair(53);
    let access = WindowAccess { write: true, read: true, atomic: false };
    let exposed = cb.expose(b.alloc(1 << 20).expect("memory"), access).expect("a window");
    let window = RemoteWindow::from_bytes(&exposed.token()).expect("a token");

    let bytes = pattern(3, 300_000);
    let buffer = a.register(bytes.clone()).expect("a key");
    ca.write(Class::Bulk, buffer, 300_000, &window, 4096).expect("room").wait(LONG).result.expect("written");
    let mut seen = vec![0; 300_000];
    exposed.read_at(4096, &mut seen).expect("inside");
    assert!(seen == bytes, "what was written is there");

    let got = ca.read(Class::Bulk, a.alloc(300_000).expect("memory"), 300_000, &window, 4096).expect("room").wait(LONG);
    assert_eq!(got.result.expect("read"), 300_000);
    assert!(got.buffer.expect("back")[..] == bytes[..], "what was read is the same");

    let refused = ca.write(Class::Bulk, a.alloc(64).expect("memory"), 64, &window, (1 << 20) - 63);
    assert!(matches!(refused.expect_err("outside").error, Error::Range { .. }));

    // A closed window refuses, and the connection says so instead of hanging.
    let before = exposed.close();
    let copy = before.to_vec();
    let late = ca.write(Class::Bulk, a.alloc(64).expect("memory"), 64, &window, 0).expect("room").wait(LONG);
    assert!(matches!(late.result, Err(Error::Failed { .. })), "{late:?}");
    assert!(before[..] == copy[..], "nothing was written after the window closed");
}

#[test]
fn close_delivers_what_was_sent_and_says_goodbye() {
    let ((a, ca), (b, cb)) = pair(54);
    let mut receives: Vec<_> =
        (0..8).map(|_| cb.receive(0, b.alloc(100_000).expect("memory")).expect("room")).collect();
    let sends: Vec<_> = (0..8)
        .map(|i| {
            ca.send(SendOptions::default(), a.register(pattern(i, 100_000)).expect("a key"), 100_000).expect("room")
        })
        .collect();
    let mut last = cb.receive(0, b.alloc(8).expect("memory")).expect("room");
    let report = std::thread::scope(|s| {
        let closing = s.spawn(|| ca.close(LONG));
        for (i, r) in receives.iter_mut().enumerate() {
            let got = r.wait(LONG);
            assert_eq!(got.result.expect("received"), 100_000);
            assert!(got.buffer.expect("back")[..] == pattern(i, 100_000)[..]);
        }
        closing.join().expect("no panic")
    });
    assert!(report.clean && report.undelivered == 0, "{report:?}");
    drop(sends);
    let start = Instant::now();
    assert!(matches!(last.wait(LONG).result, Err(Error::PeerGone { .. })), "a receive that no send will meet ends");
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_message_longer_than_its_receive_is_an_error_at_both_ends() {
    let ((a, ca), (b, cb)) = pair(55);
    for (capacity, len) in [(100, 200), (100, 50_000), (10_000, 1 << 20)] {
        let mut receive = cb.receive(0, b.alloc(capacity).expect("memory")).expect("room");
        let mut send = ca.send(SendOptions::default(), a.alloc(len).expect("memory"), len).expect("room");
        let sent = send.wait(LONG).result;
        // A small message is in the peer's hands before it meets its receive.
        assert!(matches!(sent, Err(Error::Failed { .. })) || (len == 200 && sent.is_ok()), "{sent:?}");
        assert!(matches!(receive.wait(LONG).result, Err(Error::Failed { .. })));
    }
    // The connection goes on.
    let mut receive = cb.receive(0, b.alloc(64).expect("memory")).expect("room");
    ca.send(SendOptions::default(), a.alloc(64).expect("memory"), 64).expect("room").wait(LONG).result.expect("sent");
    assert_eq!(receive.wait(LONG).result.expect("received"), 64);
}

#[test]
fn dropping_an_operation_keeps_its_memory_until_it_is_over() {
    let ((a, ca), (b, cb)) = pair(56);
    for i in 0..200 {
        drop(cb.receive(0, b.alloc(40_000).expect("memory")).expect("room"));
        drop(ca.send(SendOptions::default(), a.register(pattern(i, 40_000)).expect("a key"), 40_000).expect("room"));
    }
    let mut receive = cb.receive(0, b.alloc(8).expect("memory")).expect("room");
    ca.send(SendOptions::default(), a.alloc(8).expect("memory"), 8).expect("room").wait(LONG).result.expect("sent");
    assert_eq!(receive.wait(LONG).result.expect("the last one still arrives"), 8);
}

#[test]
fn waiting_has_a_deadline() {
    let ((_a, _ca), (b, cb)) = pair(57);
    let mut receive = cb.receive(0, b.alloc(64).expect("memory")).expect("room");
    let start = Instant::now();
    let outcome = receive.wait(Duration::from_millis(50));
    assert!(matches!(outcome.result, Err(Error::TimedOut { .. })));
    assert!(outcome.buffer.is_none(), "the buffer is still lent");
    assert!(start.elapsed() >= Duration::from_millis(50) && start.elapsed() < Duration::from_secs(5));
}

#[test]
fn another_key_is_refused_and_said() {
    let a = open(&["127.0.58.1"], &JobKey::generate().expect("randomness"));
    let b = open(&["127.0.58.2"], &JobKey::generate().expect("randomness"));
    let listener = b.listen("127.0.0.1:0".parse().expect("an address")).expect("listens");
    let addr = listener.local_addr();
    std::thread::scope(|s| {
        let accepting = s.spawn(|| listener.accept(Duration::from_secs(2)));
        let error = a.connect(addr, Duration::from_secs(5)).expect_err("another key");
        assert!(error.to_string().contains("key"), "{error}");
        assert!(matches!(accepting.join().expect("no panic"), Err(Error::TimedOut { .. })));
    });
}

#[test]
fn a_missing_key_is_an_error_and_so_is_a_foreign_address() {
    let error = Fabric::open(&FabricConfig::default()).expect_err("no key");
    assert!(error.to_string().contains("key"), "{error}");
    let config = FabricConfig { planes: addrs(&["192.0.2.1"]), insecure: true, ..FabricConfig::default() };
    let error = Fabric::open(&config).expect_err("not ours");
    assert!(error.to_string().contains("192.0.2.1"), "{error}");
}

#[test]
fn several_connections_share_a_fabric() {
    let key = JobKey::generate().expect("randomness");
    let a = open(&["127.0.59.1", "127.0.59.2"], &key);
    let b = open(&["127.0.59.3", "127.0.59.4"], &key);
    let pairs: Vec<_> = (0..4).map(|_| join(&a, &b)).collect();
    std::thread::scope(|s| {
        for (i, (ca, cb)) in pairs.iter().enumerate() {
            let (a, b) = (&a, &b);
            s.spawn(move || {
                for round in 0..50 {
                    let mut receive = cb.receive(7, b.alloc(70_000).expect("memory")).expect("room");
                    let options = SendOptions { channel: 7, ..SendOptions::default() };
                    let message = a.register(pattern(i * 1000 + round, 70_000)).expect("a key");
                    let mut send = ca.send(options, message, 70_000).expect("room");
                    let got = receive.wait(LONG);
                    assert_eq!(got.result.expect("received"), 70_000);
                    assert!(got.buffer.expect("back")[..] == pattern(i * 1000 + round, 70_000)[..]);
                    send.wait(LONG).result.expect("delivered");
                }
            });
        }
    });
}

#[test]
fn busy_waiting_works_too() {
    let key = JobKey::generate().expect("randomness");
    let open = |plane: &str| {
        let config = FabricConfig {
            planes: addrs(&[plane]),
            key: Some(key.clone()),
            wait: Wait::Busy,
            ..FabricConfig::default()
        };
        Fabric::open(&config).expect("a fabric")
    };
    let (a, b) = (open("127.0.60.1"), open("127.0.60.2"));
    let (ca, cb) = join(&a, &b);
    std::thread::scope(|s| {
        s.spawn(|| {
            for _ in 0..200 {
                let got = cb.receive(0, b.alloc(8).expect("memory")).expect("room").wait(LONG);
                let buffer = got.buffer.expect("back");
                cb.send(SendOptions::default(), buffer, 8).expect("room").wait(LONG).result.expect("sent");
            }
        });
        for i in 0..200u64 {
            let mut pong = ca.receive(0, a.alloc(8).expect("memory")).expect("room");
            let ping = a.register(i.to_le_bytes().to_vec()).expect("a key");
            ca.send(SendOptions::default(), ping, 8).expect("room").wait(LONG).result.expect("sent");
            assert_eq!(pong.wait(LONG).buffer.expect("back")[..], i.to_le_bytes());
        }
    });
}
