//! What is under way to a receiver stays within its socket buffers, however small its packets and however many its peers.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use planespray::lanes::charge;
use planespray::{Connection, Fabric, FabricConfig, JobKey, Pending, SendOptions};

const LONG: Duration = Duration::from_secs(30);
/// `net.core.rmem_max` as kernels come; a socket that asks for it gets twice that, bookkeeping included.
const STOCK: usize = 212_992;

fn open(key: &JobKey, hosts: [[u8; 2]; 2], ask: usize) -> Fabric {
    let planes = hosts.map(|[net, host]| IpAddr::from([127, 0, net, host])).to_vec();
    let config = FabricConfig {
        planes,
        key: Some(key.clone()),
        receive_buffer: Some(ask),
        grant_always: true,
        ..FabricConfig::default()
    };
    Fabric::open(&config).expect("a fabric on loopback")
}

fn join(a: &Fabric, b: &Fabric) -> (Connection, Connection) {
    let listener = b.listen("127.0.0.1:0".parse().expect("an address")).expect("listens");
    std::thread::scope(|s| {
        let accepted = s.spawn(|| listener.accept(LONG));
        let connected = a.connect(listener.local_addr(), LONG).expect("connects");
        (connected, accepted.join().expect("no panic").expect("accepts"))
    })
}

fn byte(message: usize, at: usize) -> u8 {
    (message.wrapping_mul(151) ^ at.wrapping_mul(7) ^ (at >> 8)) as u8
}

/// Sends `count` messages of `len` bytes, up to `depth` under way, while another thread receives and checks them.
fn stream(a: &Fabric, ca: &Connection, b: &Fabric, cb: &Connection, rendezvous: bool, len: usize, count: usize) {
    let depth = if len > 4096 { 16 } else { 512 };
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut free: Vec<_> = (0..depth).map(|_| a.alloc(len).expect("memory")).collect();
            let mut waiting: VecDeque<Pending> = VecDeque::new();
            for i in 0..count {
                let mut buffer = free.pop().unwrap_or_else(|| {
                    let outcome = waiting.pop_front().expect("under way").wait(LONG);
                    outcome.result.expect("delivered");
                    outcome.buffer.expect("comes back")
                });
                for (at, b) in buffer.iter_mut().enumerate() {
                    *b = byte(i, at);
                }
                let options = SendOptions { rendezvous, ..SendOptions::default() };
                waiting.push_back(ca.send(options, buffer, len).expect("room"));
            }
            for mut w in waiting {
                w.wait(LONG).result.expect("delivered");
            }
        });
        let mut waiting: VecDeque<Pending> =
            (0..depth.min(count)).map(|_| cb.receive(0, b.alloc(len).expect("memory")).expect("room")).collect();
        for i in 0..count {
            let outcome = waiting.pop_front().expect("posted").wait(LONG);
            assert_eq!(outcome.result.expect("received"), len);
            let buffer = outcome.buffer.expect("comes back");
            assert!(buffer.iter().enumerate().all(|(at, &b)| b == byte(i, at)), "message {i}");
            if i + depth < count {
                waiting.push_back(cb.receive(0, buffer).expect("room"));
            }
        }
    });
}

#[test]
fn stock_receive_buffers_drop_nothing() {
    let key = JobKey::generate().expect("randomness");
    let a = open(&key, [[71, 1], [71, 2]], STOCK);
    let b = open(&key, [[71, 3], [71, 4]], STOCK);
    for port in b.ports() {
        assert_eq!(port.receive_budget, Some(STOCK as u64), "half of what the kernel gave");
    }
    let (ca, cb) = join(&a, &b);
    for (rendezvous, len, count) in [(false, 64, 20_000), (true, 64, 20_000), (true, 1 << 20, 200)] {
        stream(&a, &ca, &b, &cb, rendezvous, len, count);
        for (end, fabric) in [("sender", &a), ("receiver", &b)] {
            let drops = fabric.stats().receive_drops;
            assert_eq!(drops, 0, "{drops} packets dropped at the {end}, {len} bytes, rendezvous {rendezvous}");
        }
    }
}

/// The most that was charged to a port of the receiver at once, over all senders, while everyone sends.
fn most_under_way(senders: &[Fabric], pairs: &[(Connection, Connection)], b: &Fabric) -> u64 {
    const LEN: usize = 1 << 20;
    let mut receives: Vec<Pending> =
        pairs.iter().map(|(_, cb)| cb.receive(0, b.alloc(LEN).expect("memory")).expect("room")).collect();
    let options = SendOptions { rendezvous: true, ..SendOptions::default() };
    let mut sends: Vec<Pending> = Vec::new();
    for (i, (ca, _)) in pairs.iter().enumerate() {
        let buffer = senders[i % senders.len()].alloc(LEN).expect("memory");
        sends.push(ca.send(options, buffer, LEN).expect("room"));
    }
    let mut most = 0;
    let start = Instant::now();
    while !sends.iter().chain(&receives).all(Pending::is_done) {
        let mut ports = vec![0; b.ports().len()];
        for fabric in senders {
            fabric.progress();
            // Plane i of every sender leads to plane i of the receiver, and most packets are full.
            for lane in fabric.stats().lanes.iter().filter(|l| l.in_flight > 0) {
                ports[usize::from(lane.plane)] += charge(lane.in_flight, 4096);
            }
        }
        most = most.max(ports.into_iter().max().unwrap_or(0));
        b.progress();
        assert!(start.elapsed() < LONG, "hangs");
    }
    for p in sends.iter_mut().chain(&mut receives) {
        assert_eq!(p.wait(LONG).result.expect("success"), LEN);
    }
    most
}

#[test]
fn peers_share_the_budget() {
    let key = JobKey::generate().expect("randomness");
    let b = open(&key, [[72, 1], [72, 2]], STOCK);
    let senders: Vec<Fabric> = (0..3).map(|i| open(&key, [[73, 2 * i + 1], [73, 2 * i + 2]], 4 << 20)).collect();
    // Two connections from each.
    let mut pairs: Vec<_> = (0..6).map(|i| join(&senders[i % 3], &b)).collect();
    let budget = STOCK as u64;
    // The first ones carry the last announcements.
    most_under_way(&senders, &pairs, &b);
    let six = (0..4).map(|_| most_under_way(&senders, &pairs, &b)).max().unwrap_or(0);
    assert!(six > budget / 4 && six <= budget, "{six} of {budget} bytes under way from six peers");

    // Who leaves gives its part back.
    for (ca, cb) in pairs.drain(1..) {
        assert!(ca.close(LONG).clean);
        drop(cb);
    }
    most_under_way(&senders, &pairs, &b);
    let one = (0..4).map(|_| most_under_way(&senders, &pairs, &b)).max().unwrap_or(0);
    assert!(one > budget / 2 && one <= budget, "{one} of {budget} bytes under way from one peer");
    // More than half of every buffer is left for what timers send again; a starved machine may need more than that.
    let again: u64 = senders.iter().flat_map(|f| f.stats().lanes).map(|l| l.retransmits).sum();
    eprintln!("{} packets dropped, {again} sent again", b.stats().receive_drops);
}
