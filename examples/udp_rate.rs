//! Rate and latency of the socket edge over loopback, beside plain TCP in the same run.
//!
//! `cargo run --release --no-default-features --example udp_rate -- [rounds] [payload] [packets per burst]`
//!
//! Two threads on cores 0 and 1. A virtual machine's cores may be near (shared cache) or far from one minute to the
//! next, so each sample is taken between two probes of a cache line's round trip, and only ratios of one round are
//! worth reading. `chrt -f 10` in front keeps other programs away.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use planespray::embedded::PacketIo;
use planespray::lanes::{PortId, charge};
use planespray::mem::PageBuf;
use planespray::roce::RxMeta;
use planespray::seq::{Psn, Qpn};
use planespray::soft::{Udp, UdpConfig};
use planespray::time::Time;
use planespray::wire::{Bth, Header, Opcode, Packet, Reth};

const SAMPLE: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(300);
const WINDOW: u64 = 1 << 20;
const ACK_EVERY: u64 = 64 << 10;
/// Message buffers at both ends: what a copy reads from and writes to.
const MESSAGE: usize = 1 << 20;
const PINGS: usize = 20_000;
const ECT0: u8 = 2;

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|a| a.parse::<usize>().ok());
    let rounds = args.next().unwrap_or(9);
    let payload = args.next().unwrap_or(4096).clamp(64, 4096) & !3;
    let packets = args.next().unwrap_or(15).clamp(1, 65_000 / (payload + 32)).min(64);
    println!("{packets} packets of {payload} bytes per call, ICRC made and checked; rates in Gb/s of payload");
    println!("round  probe ns      v4     v6    TCP   v4/TCP v6/TCP | half RTT us, 8 bytes: v4 p50 p99  TCP p50 p99");
    let mut kept = Vec::new();
    for round in 0..rounds {
        // Real-time threads get 95 % of each second.
        thread::sleep(PAUSE);
        let before = probe();
        let v4 = udp_rate("127.0.0.1", payload, packets);
        thread::sleep(PAUSE);
        let v6 = udp_rate("::1", payload, packets);
        thread::sleep(PAUSE);
        let tcp = tcp_rate();
        thread::sleep(PAUSE);
        let udp_ping = udp_latency("127.0.0.1");
        let tcp_ping = tcp_latency();
        let after = probe();
        println!(
            "{round:5}  {before:3.0} {after:3.0}   {v4:6.1} {v6:6.1} {tcp:6.1}   {:6.2} {:6.2} | {:29.2} {:5.2} {:8.2} {:5.2}",
            v4 / tcp,
            v6 / tcp,
            udp_ping.0,
            udp_ping.1,
            tcp_ping.0,
            tcp_ping.1
        );
        // Both near or both far, and no stall.
        if (before < 220.0) == (after < 220.0) && v4 > 0.0 && v6 > 0.0 {
            kept.push((v4 / tcp, v6 / tcp, udp_ping.0 / tcp_ping.0));
        }
    }
    let median = |pick: fn(&(f64, f64, f64)) -> f64| {
        let mut all: Vec<f64> = kept.iter().map(pick).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
    };
    println!(
        "median of {} rounds: v4/TCP {:.2}, v6/TCP {:.2}, latency v4/TCP {:.2}",
        kept.len(),
        median(|k| k.0),
        median(|k| k.1),
        median(|k| k.2)
    );
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    if set.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)).is_err() {
        eprintln!("cannot pin to core {core}");
    }
}

/// Round trip of a cache line between the cores, ns.
fn probe() -> f64 {
    const TURNS: u64 = 20_000;
    let ball = AtomicU64::new(0);
    let turn = |mine: u64| {
        for i in 0..TURNS {
            while ball.load(Ordering::Acquire) != 2 * i + mine {
                std::hint::spin_loop();
            }
            ball.store(2 * i + mine + 1, Ordering::Release);
        }
    };
    // Under SCHED_FIFO a spinning thread would never let its new sibling leave this core.
    let ready = Barrier::new(2);
    thread::scope(|s| {
        s.spawn(|| {
            pin(1);
            ready.wait();
            turn(1);
        });
        ready.wait();
        pin(0);
        let start = Instant::now();
        turn(0);
        start.elapsed().as_nanos() as f64 / TURNS as f64
    })
}

fn open_pair(ip: &str) -> (Udp, Udp) {
    let ip: IpAddr = ip.parse().expect("an address");
    let cfg = UdpConfig { planes: vec![ip], ..UdpConfig::default() };
    (Udp::open(&cfg).expect("open"), Udp::open(&cfg).expect("open"))
}

fn at(udp: &Udp) -> SocketAddr {
    SocketAddr::new(udp.ports()[0].addr, udp.ports()[0].udp_port)
}

/// A WRITE ONLY packet at the front of `out`.
fn put(out: &mut [u8], psn: u32, va: u64, payload: &[u8]) -> usize {
    let mut header = Header::new(Bth::new(Opcode::WRITE_ONLY, Qpn::new(77), Psn::new(psn)));
    header.reth = Some(Reth { va, rkey: 1, len: payload.len() as u32 });
    Packet { header, payload, padding: &[], icrc: 0 }.emit(out).expect("room")
}

fn send_all(udp: &mut Udp, path: planespray::roce::PathId, bytes: &mut [u8], segment: usize) {
    while !udp.send(path, ECT0, bytes, segment).expect("send") {}
}

/// One direction, acknowledged every 64 KiB, at most 1 MiB under way. 0 if packets were lost.
fn udp_rate(ip: &str, payload: usize, packets: usize) -> f64 {
    let (mut a, mut b) = open_pair(ip);
    let data = a.open_path(PortId(0), 1, at(&b)).expect("path");
    let acks = b.open_path(PortId(0), 1, at(&a)).expect("path");
    assert!(b.ports()[0].receive_budget.is_some_and(|budget| budget >= charge(WINDOW, payload as u32)));
    let stop = AtomicBool::new(false);
    let ready = Barrier::new(2);
    thread::scope(|s| {
        s.spawn(|| {
            pin(1);
            ready.wait();
            let mut target = vec![0u8; MESSAGE];
            let mut ack = [0; 128];
            let (mut got, mut acknowledged) = (0u64, 0);
            while !stop.load(Ordering::Relaxed) {
                b.receive(Time::ZERO, &mut |_: &RxMeta, p: &Packet<'_>| {
                    let to = p.header.reth.map_or(0, |r| r.va as usize);
                    if let Some(place) = target.get_mut(to..to + p.payload.len()) {
                        place.copy_from_slice(p.payload);
                    }
                    got += p.payload.len() as u64;
                });
                if got - acknowledged >= ACK_EVERY {
                    acknowledged = got;
                    let n = put(&mut ack, 0, got, &[0; 8]);
                    send_all(&mut b, acks, &mut ack[..n], n);
                }
            }
            std::hint::black_box(&target);
        });
        ready.wait();
        pin(0);
        let source = vec![0x5au8; MESSAGE];
        let mut staging = PageBuf::zeroed(65_536, 2048);
        let (mut sent, mut acknowledged, mut psn) = (0u64, 0u64, 0u32);
        let start = Instant::now();
        let mut heard = start;
        let rate = loop {
            while sent - acknowledged + (packets * payload) as u64 <= WINDOW {
                let (mut at, mut segment) = (0, 0);
                for _ in 0..packets {
                    let from = (sent as usize % (MESSAGE - payload + 1)) & !63;
                    segment = put(&mut staging[at..], psn, from as u64, &source[from..from + payload]);
                    at += segment;
                    psn += 1;
                    sent += payload as u64;
                }
                send_all(&mut a, data, &mut staging[..at], segment);
            }
            let new = a.receive(Time::ZERO, &mut |_: &RxMeta, p: &Packet<'_>| {
                acknowledged = acknowledged.max(p.header.reth.map_or(0, |r| r.va));
            });
            let now = Instant::now();
            if new > 0 {
                heard = now;
            }
            if now - start >= SAMPLE {
                break acknowledged as f64 * 8.0 / (now - start).as_nanos() as f64;
            }
            if now - heard > Duration::from_millis(150) {
                break 0.0;
            }
        };
        stop.store(true, Ordering::Relaxed);
        rate
    })
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let a = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let b = listener.accept().expect("accept").0;
    for s in [&a, &b] {
        s.set_nodelay(true).expect("nodelay");
        s.set_nonblocking(true).expect("nonblocking");
        let s = socket2::SockRef::from(s);
        s.set_send_buffer_size(4 << 20).expect("buffer");
        s.set_recv_buffer_size(4 << 20).expect("buffer");
    }
    (a, b)
}

/// One stream, 1 MiB writes and reads, both ends polling, no CRC.
fn tcp_rate() -> f64 {
    let (mut a, mut b) = tcp_pair();
    let stop = AtomicBool::new(false);
    let got = AtomicU64::new(0);
    let ready = Barrier::new(2);
    thread::scope(|s| {
        s.spawn(|| {
            pin(1);
            ready.wait();
            let mut target = vec![0u8; MESSAGE];
            while !stop.load(Ordering::Relaxed) {
                if let Ok(n) = b.read(&mut target) {
                    got.fetch_add(n as u64, Ordering::Relaxed);
                }
            }
        });
        ready.wait();
        pin(0);
        let source = vec![0x5au8; MESSAGE];
        let start = Instant::now();
        let mut from = 0;
        while start.elapsed() < SAMPLE {
            if let Ok(n) = a.write(&source[from..]) {
                from = (from + n) % MESSAGE;
            }
        }
        let rate = got.load(Ordering::Relaxed) as f64 * 8.0 / start.elapsed().as_nanos() as f64;
        stop.store(true, Ordering::Relaxed);
        rate
    })
}

/// Half a round trip's median and 99th percentile, us.
fn halves(mut all: Vec<u64>) -> (f64, f64) {
    all.sort_unstable();
    let pick = |q: usize| all[(all.len() * q / 100).min(all.len() - 1)] as f64 / 2000.0;
    (pick(50), pick(99))
}

fn udp_latency(ip: &str) -> (f64, f64) {
    let (mut a, mut b) = open_pair(ip);
    let there = a.open_path(PortId(0), 1, at(&b)).expect("path");
    let back = b.open_path(PortId(0), 1, at(&a)).expect("path");
    let ping = |udp: &mut Udp, path, bytes: &mut [u8; 128]| {
        let n = put(bytes, 0, 0, &[1; 8]);
        send_all(udp, path, &mut bytes[..n], n);
    };
    let pong = |udp: &mut Udp| while udp.receive(Time::ZERO, &mut |_: &RxMeta, _: &Packet<'_>| {}) == 0 {};
    let ready = Barrier::new(2);
    thread::scope(|s| {
        s.spawn(|| {
            pin(1);
            ready.wait();
            let mut bytes = [0; 128];
            for _ in 0..PINGS {
                pong(&mut b);
                ping(&mut b, back, &mut bytes);
            }
        });
        ready.wait();
        pin(0);
        let mut bytes = [0; 128];
        halves(
            (0..PINGS)
                .map(|_| {
                    let start = Instant::now();
                    ping(&mut a, there, &mut bytes);
                    pong(&mut a);
                    start.elapsed().as_nanos() as u64
                })
                .collect(),
        )
    })
}

fn tcp_latency() -> (f64, f64) {
    let (mut a, mut b) = tcp_pair();
    let pong = |s: &mut TcpStream| {
        let mut bytes = [0; 8];
        while s.read(&mut bytes).unwrap_or(0) == 0 {}
    };
    let ready = Barrier::new(2);
    thread::scope(|s| {
        s.spawn(|| {
            pin(1);
            ready.wait();
            for _ in 0..PINGS {
                pong(&mut b);
                b.write_all(&[1; 8]).expect("write");
            }
        });
        ready.wait();
        pin(0);
        halves(
            (0..PINGS)
                .map(|_| {
                    let start = Instant::now();
                    a.write_all(&[1; 8]).expect("write");
                    pong(&mut a);
                    start.elapsed().as_nanos() as u64
                })
                .collect(),
        )
    })
}
