//! What packets cost on their way through a pair of devices on one core, without sockets.

use std::hint::black_box;

use planespray::roce::{ReceiveWr, Remote, Rtr, RxMeta, SendOp, SendWr};
use planespray::time::{Span, Time};
use planespray::wire::Packet;

use crate::net::{Net, Setup, blank};

/// Nanoseconds that this thread has run: what others take of the core does not count.
fn cpu() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).expect("a number")
}

/// Sends `messages` of `len` bytes from end 0 to end 1, 16 posted at a time. Returns packets and nanoseconds.
fn pump(setup: &Setup, op: SendOp, len: u32, messages: u64) -> (u64, u64) {
    let mut net = Net::new(setup);
    let mut out = vec![0; 65_536];
    let rkey = net.ends[1].key.0;
    let mut now = Time::from_nanos(1);
    let mut cqes = [blank(); 64];
    let takes = !matches!(op, SendOp::Write | SendOp::Read);
    let mut packets = 0;
    let start = cpu();
    for round in 0..messages / 16 {
        for i in 0..16 {
            let at = i * u64::from(len).next_multiple_of(4096);
            let wr = SendWr::new(round * 16 + i, op, net.sge(0, at, len), Remote { addr: at, rkey });
            if takes {
                net.receive(1, &ReceiveWr::default());
            }
            net.send(0, &wr);
        }
        let mut idle = false;
        while !idle {
            idle = true;
            for from in 0..2 {
                now += Span::from_micros(1);
                while let Some(t) = net.ends[from].device.poll_transmit(now, 65_000, &mut out) {
                    idle = false;
                    packets += t.count as u64;
                    let meta = RxMeta { src: net.ends[from].addr, dst: net.ends[1 - from].addr, tos: 2, ttl: 64 };
                    for bytes in out[..t.len].chunks(t.segment) {
                        let packet = Packet::parse(black_box(bytes)).expect("parses");
                        net.ends[1 - from].device.handle(now, &meta, &packet);
                    }
                }
                while net.ends[from].device.poll_cq(&mut cqes) > 0 {}
            }
        }
    }
    (packets, cpu() - start)
}

#[test]
#[ignore = "measures; run with --release"]
fn nanoseconds_per_packet() {
    let base = Setup { mtu: 4096, memory: 2 << 20, rtr: Rtr::default(), ..Setup::default() };
    for (name, op, len, extended) in [
        ("WRITE_IMM 60 KiB, planespray", SendOp::WriteImm(1), 15 * 4096, true),
        ("WRITE 60 KiB, standard", SendOp::Write, 15 * 4096, false),
        ("READ 60 KiB", SendOp::Read, 15 * 4096, false),
        ("WRITE_IMM 8 B, planespray", SendOp::WriteImm(1), 8, true),
        ("WRITE 8 B, standard", SendOp::Write, 8, false),
        ("WRITE_IMM 8 B, standard", SendOp::WriteImm(1), 8, false),
    ] {
        let setup = Setup { extended, ..base };
        pump(&setup, op, len, 1600);
        let messages = if len > 8 { 16_000 } else { 320_000 };
        let (packets, ns) = pump(&setup, op, len, messages);
        println!("{name:30} {packets:8} packets, {:6.1} ns each to send, parse and take", ns as f64 / packets as f64);
    }
    // What of it is the copy: once out of the region, once into it.
    let net = Net::new(&base);
    let mut buf = vec![0; 65_536];
    let rounds = 200_000u64;
    let start = cpu();
    for i in 0..rounds {
        let to = &mut buf[(i % 15 * 4128) as usize..][..4096];
        net.ends[0].region.read_at(i % 240 * 4096, to).expect("in bounds");
    }
    let read = cpu();
    for i in 0..rounds {
        let from = &buf[(i % 15 * 4128) as usize..][..4096];
        net.ends[1].region.write_at(i % 240 * 4096, from).expect("in bounds");
    }
    let (out, into) = ((read - start) as f64 / rounds as f64, (cpu() - read) as f64 / rounds as f64);
    println!("copies of 4 KiB alone: {out:.1} ns out of a region, {into:.1} ns into it");
}
