//! How fast packets go through a pair of devices on one core, without sockets.

use std::hint::black_box;
use std::time::{Duration, Instant};

use planespray::roce::{ReceiveWr, Remote, Rtr, RxMeta, SendOp, SendWr};
use planespray::time::{Span, Time};
use planespray::wire::Packet;

use crate::net::{Net, Setup, blank};

struct Spent {
    packets: u64,
    transmit: Duration,
    parse: Duration,
    handle: Duration,
}

/// Sends `messages` of `len` bytes from end 0 to end 1, 16 posted at a time.
fn pump(setup: &Setup, op: SendOp, len: u32, messages: u64) -> Spent {
    let mut net = Net::new(setup);
    let mut out = vec![0; 65_536];
    let mut spent = Spent { packets: 0, transmit: Duration::ZERO, parse: Duration::ZERO, handle: Duration::ZERO };
    let rkey = net.ends[1].key.0;
    let mut now = Time::from_nanos(1);
    let mut cqes = [blank(); 64];
    let takes = !matches!(op, SendOp::Write | SendOp::Read);
    for round in 0..messages / 16 {
        for i in 0..16 {
            let at = i * u64::from(len).next_multiple_of(4096);
            let wr = SendWr::new(round * 16 + i, op, net.sge(0, at, len), Remote { addr: at, rkey });
            if takes {
                net.receive(1, &ReceiveWr::default());
            }
            net.send(0, &wr);
        }
        loop {
            let mut idle = true;
            for from in 0..2 {
                now += Span::from_micros(1);
                loop {
                    let start = Instant::now();
                    let t = net.ends[from].device.poll_transmit(now, 65_000, &mut out);
                    let sent = Instant::now();
                    spent.transmit += sent - start;
                    let Some(t) = t else { break };
                    idle = false;
                    let mut packets = [None; 64];
                    for (to, bytes) in packets.iter_mut().zip(out[..t.len].chunks(t.segment)) {
                        *to = Packet::parse(black_box(bytes)).ok();
                    }
                    let parsed = Instant::now();
                    let meta = RxMeta { src: net.ends[from].addr, dst: net.ends[1 - from].addr, tos: 2, ttl: 64 };
                    for packet in packets.iter().flatten() {
                        net.ends[1 - from].device.handle(now, &meta, packet);
                    }
                    spent.parse += parsed - sent;
                    spent.handle += parsed.elapsed();
                    spent.packets += t.count as u64;
                }
                let start = Instant::now();
                while net.ends[from].device.poll_cq(&mut cqes) > 0 {}
                spent.handle += start.elapsed();
            }
            if idle {
                break;
            }
        }
    }
    spent
}

#[test]
#[ignore = "measures; run with --release"]
fn packets_per_second() {
    let base = Setup { mtu: 4096, memory: 2 << 20, rtr: Rtr::default(), ..Setup::default() };
    for (name, op, len, extended) in [
        ("WRITE_IMM 60 KiB, planespray", SendOp::WriteImm(1), 15 * 4096, true),
        ("WRITE 60 KiB, standard", SendOp::Write, 15 * 4096, false),
        ("READ 60 KiB", SendOp::Read, 15 * 4096, false),
        ("WRITE_IMM 8 B, planespray", SendOp::WriteImm(1), 8, true),
        ("WRITE 8 B, standard", SendOp::Write, 8, false),
        ("SEND 8 B", SendOp::WriteImm(1), 8, false),
    ] {
        let setup = Setup { extended, ..base };
        pump(&setup, op, len, 1600);
        let s = pump(&setup, op, len, 64_000);
        let per = |d: Duration| d.as_nanos() as f64 / s.packets as f64;
        let mpps = s.packets as f64 / (s.transmit + s.parse + s.handle).as_secs_f64() / 1e6;
        println!(
            "{name:30} {:9} packets: transmit {:6.1} ns, parse {:5.1} ns, handle {:6.1} ns; {mpps:5.2} M packets/s",
            s.packets,
            per(s.transmit),
            per(s.parse),
            per(s.handle)
        );
    }
    // What of it is the copy: once out of the region, once into it.
    let net = Net::new(&base);
    let mut buf = vec![0; 65_536];
    let start = Instant::now();
    for i in 0..200_000u64 {
        let at = i % 200 * 4096;
        let to = &mut buf[(i % 15 * 4128) as usize..][..4096];
        net.ends[0].region.read_at(at, to).expect("in bounds");
    }
    let read = start.elapsed();
    let start = Instant::now();
    for i in 0..200_000u64 {
        let from = &buf[(i % 15 * 4128) as usize..][..4096];
        net.ends[1].region.write_at(i % 200 * 4096, from).expect("in bounds");
    }
    let write = start.elapsed();
    println!(
        "copies of 4 KiB alone: out {:.1} ns, in {:.1} ns",
        read.as_nanos() as f64 / 2e5,
        write.as_nanos() as f64 / 2e5
    );
}
