//! Planes that do not reach the peer, or not with everything, are found out before they are used. Each test has a network
//! namespace of its own, in which nftables plays the broken network.
#![cfg(target_os = "linux")]

mod common;

use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::skipped;
use nix::sched::{CloneFlags, unshare};
use planespray::{Connection, Error, Fabric, FabricConfig, JobKey, SendOptions};

const LONG: Duration = Duration::from_secs(20);

fn run(command: &str) -> Result<(), String> {
    let mut words = command.split_whitespace();
    let program = words.next().unwrap_or_default();
    let output = Command::new(program).args(words).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("`{command}` failed: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(e) => Err(format!("`{program}` cannot be run: {e}")),
    }
}

/// Runs `test` in a new network namespace with these rules on what leaves.
fn in_namespace(rules: &[&str], test: impl FnOnce() + Send) {
    std::thread::scope(|s| {
        let prepared = s.spawn(move || {
            // Of this thread, and of those that it starts.
            unshare(CloneFlags::CLONE_NEWNET).map_err(|e| format!("no network namespace can be made ({e})"))?;
            run("ip link set lo up")?;
            run("nft add table ip t")?;
            run("nft add chain ip t out { type filter hook output priority 0 ; }")?;
            for rule in rules {
                run(&format!("nft add rule ip t out {rule} drop"))?;
            }
            test();
            Ok::<(), String>(())
        });
        match prepared.join() {
            Ok(Ok(())) => {}
            Ok(Err(why)) => skipped(&why),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    });
}

fn open(planes: &[&str], key: &JobKey) -> Fabric {
    let planes: Vec<IpAddr> = planes.iter().map(|a| a.parse().expect("an address")).collect();
    // Data lanes would find out by themselves too, but late.
    let peer_timeout = Duration::from_secs(4);
    let config = FabricConfig { planes, key: Some(key.clone()), peer_timeout, ..FabricConfig::default() };
    Fabric::open(&config).expect("a fabric on loopback")
}

type Joined = (Result<Connection, Error>, Result<Connection, Error>);

fn join(a: &Fabric, b: &Fabric, patience: Duration) -> Joined {
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let listener = b.listen(any).expect("listens");
    let addr = listener.local_addr();
    std::thread::scope(|s| {
        let accepted = s.spawn(|| listener.accept(patience));
        let connected = a.connect(addr, LONG);
        (connected, accepted.join().expect("no panic"))
    })
}

/// Sends messages one way, and looks at every byte.
fn send(from: (&Fabric, &Connection), to: (&Fabric, &Connection), len: usize, count: usize) {
    for n in 0..count {
        let pattern: Vec<u8> = (0..len).map(|i| (i.wrapping_mul(31) ^ n ^ (i >> 8)) as u8).collect();
        let mut receive = to.1.receive(0, to.0.alloc(len).expect("memory")).expect("room");
        let message = from.0.register(pattern.clone()).expect("a key");
        let mut sent = from.1.send(SendOptions::default(), message, len).expect("room");
        let got = receive.wait(LONG);
        assert_eq!(got.result.expect("received"), len);
        assert!(got.buffer.expect("back")[..] == pattern[..], "message {n}");
        assert_eq!(sent.wait(LONG).result.expect("delivered"), len);
    }
}

#[test]
fn a_plane_that_does_not_reach_the_peer_is_left_out() {
    // One direction alone, and only of one plane.
    in_namespace(&["ip saddr 127.0.1.4 ip daddr 127.0.1.3 meta l4proto udp"], || {
        let key = JobKey::generate().expect("randomness");
        let a = open(&["127.0.1.1", "127.0.1.3", "127.0.1.5"], &key);
        let b = open(&["127.0.1.2", "127.0.1.4", "127.0.1.6"], &key);
        let began = Instant::now();
        let (ca, cb) = join(&a, &b, LONG);
        let (ca, cb) = (ca.expect("connects"), cb.expect("accepts"));
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        for fabric in [&a, &b] {
            let mut planes: Vec<u16> = fabric.stats().lanes.iter().map(|l| l.plane).collect();
            planes.sort_unstable();
            planes.dedup();
            assert_eq!(planes, [0, 2], "lanes are on the planes that reach the peer");
        }
        send((&a, &ca), (&b, &cb), 1 << 20, 4);
        send((&b, &cb), (&a, &ca), 1 << 20, 4);
    });
}

#[test]
fn the_mtu_and_bursts_give_way_to_what_passes() {
    // On loopback a burst is one long packet: it is lost, and so is every full packet of 2,048 bytes or more.
    let rules = [
        "ip saddr 127.0.2.1 ip daddr 127.0.2.2 meta l4proto udp ip length > 1900",
        "ip saddr 127.0.2.2 ip daddr 127.0.2.1 meta l4proto udp ip length > 1900",
    ];
    in_namespace(&rules, || {
        let key = JobKey::generate().expect("randomness");
        let (a, b) = (open(&["127.0.2.1"], &key), open(&["127.0.2.2"], &key));
        let (ca, cb) = join(&a, &b, LONG);
        let (ca, cb) = (ca.expect("connects"), cb.expect("accepts"));
        send((&a, &ca), (&b, &cb), 300_000, 4);
        send((&b, &cb), (&a, &ca), 300_000, 4);
        assert!(ca.error().is_none() && cb.error().is_none());
        // Some 2,400 packets; a busy machine sends a few of them twice.
        let again = a.stats().planes[0].retransmits + b.stats().planes[0].retransmits;
        assert!(again < 120, "{again} packets sent again: something is lost on the way");
    });
}

#[test]
fn a_plane_that_returns_keeps_the_mtu_that_passed() {
    let rules = [
        "ip saddr 127.0.5.3 ip daddr 127.0.5.4 meta l4proto udp ip length > 1900",
        "ip saddr 127.0.5.4 ip daddr 127.0.5.3 meta l4proto udp ip length > 1900",
    ];
    in_namespace(&rules, || {
        let key = JobKey::generate().expect("randomness");
        let (a, b) = (open(&["127.0.5.1", "127.0.5.3"], &key), open(&["127.0.5.2", "127.0.5.4"], &key));
        let (ca, cb) = join(&a, &b, LONG);
        let (ca, cb) = (ca.expect("connects"), cb.expect("accepts"));
        let alive = || a.stats().lanes.iter().filter(|l| l.plane == 1 && l.alive).count();
        let all = alive();
        assert!(all > 0);
        // The plane goes, and messages go on over the other until it is given up.
        let gone = "ip saddr 127.0.5.3 ip daddr 127.0.5.4 meta l4proto udp";
        run("nft add chain ip t gone { type filter hook output priority 1 ; }").expect("a chain");
        run(&format!("nft add rule ip t gone {gone} drop")).expect("a rule");
        let end = Instant::now() + LONG;
        while alive() == all {
            assert!(Instant::now() < end, "no lane was given up");
            send((&a, &ca), (&b, &cb), 300_000, 4);
        }
        run("nft flush chain ip t gone").expect("the plane is back");
        let end = Instant::now() + LONG;
        while alive() < all {
            assert!(Instant::now() < end, "only {} of {all} lanes returned", alive());
            send((&a, &ca), (&b, &cb), 300_000, 1);
            std::thread::sleep(Duration::from_millis(20));
        }
        let before = a.stats().planes[1].bytes;
        send((&a, &ca), (&b, &cb), 1 << 20, 8);
        assert!(a.stats().planes[1].bytes > before, "the plane carries messages again");
        assert!(alive() == all, "and stays");
    });
}

#[test]
fn a_peer_that_no_plane_reaches_is_an_error_soon() {
    // Each plane loses one direction.
    let rules = [
        "ip saddr 127.0.3.1 ip daddr 127.0.3.2 meta l4proto udp",
        "ip saddr 127.0.3.4 ip daddr 127.0.3.3 meta l4proto udp",
    ];
    in_namespace(&rules, || {
        let key = JobKey::generate().expect("randomness");
        let a = open(&["127.0.3.1", "127.0.3.3"], &key);
        let b = open(&["127.0.3.2", "127.0.3.4"], &key);
        let began = Instant::now();
        let (connected, accepted) = join(&a, &b, Duration::from_secs(2));
        let error = connected.expect_err("nothing passes").to_string();
        for part in ["127.0.3.1", "127.0.3.4", "probes", "firewall", "4791"] {
            assert!(error.contains(part), "{part:?} is missing in {error:?}");
        }
        assert!(matches!(accepted, Err(Error::TimedOut { .. })), "the listener waits for others: {accepted:?}");
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    });
}

#[test]
fn without_probes_nothing_is_left_out() {
    let rules = [
        "ip saddr 127.0.4.1 ip daddr 127.0.4.2 udp dport 32768-60999",
        "ip saddr 127.0.4.2 ip daddr 127.0.4.1 udp dport 32768-60999",
    ];
    in_namespace(&rules, || {
        let key = JobKey::generate().expect("randomness");
        let open = |plane: &str, probe: bool| {
            let planes = vec![plane.parse().expect("an address")];
            Fabric::open(&FabricConfig { planes, key: Some(key.clone()), probe, ..FabricConfig::default() })
        };
        // Only RoCEv2's own port passes; one end knows.
        let (a, b) = (open("127.0.4.1", true).expect("a fabric"), open("127.0.4.2", false).expect("a fabric"));
        let (ca, cb) = join(&a, &b, LONG);
        let (ca, cb) = (ca.expect("connects"), cb.expect("accepts"));
        send((&a, &ca), (&b, &cb), 100_000, 2);
    });
}
