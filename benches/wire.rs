//! What a packet costs besides its payload's copy: ICRC, headers.

use std::hint::black_box;
use std::net::SocketAddr;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use planespray::seq::{Psn, Qpn};
use planespray::wire::{Bth, Flow, Header, Opcode, Packet, Reth};

const SIZES: [usize; 3] = [64, 1024, 4096];

fn flow(v6: bool) -> Flow {
    let end = |n: u8| match v6 {
        false => SocketAddr::from(([10, 0, 0, n], 4791)),
        true => SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, n.into()], 4791)),
    };
    Flow::new(end(1), end(2))
}

fn header() -> Header {
    let bth = Bth::new(Opcode::WRITE_ONLY, Qpn::new(0x1234), Psn::new(5));
    Header { reth: Some(Reth { va: 0x7f00_0000_1000, rkey: 77, len: 4096 }), ..Header::new(bth) }
}

/// A WRITE ONLY packet with `size` bytes of payload and the right ICRC for `flow` and identification 0x2345.
fn sealed(flow: &Flow, size: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..size).map(|i| (i * 7) as u8).collect();
    let packet = Packet { header: header(), payload: &payload, padding: &[], icrc: 0 };
    let mut bytes = vec![0; packet.len()];
    packet.emit(&mut bytes).expect("the buffer has the packet's length");
    flow.seal(0x2345, &mut bytes);
    bytes
}

fn icrc(c: &mut Criterion) {
    let mut group = c.benchmark_group("icrc");
    for size in SIZES {
        group.throughput(Throughput::Bytes(size as u64));
        for (family, v6) in [("v4", false), ("v6", true)] {
            let flow = flow(v6);
            let packet = sealed(&flow, size);
            group.bench_function(BenchmarkId::new(format!("verify {family}"), size), |b| {
                b.iter(|| black_box(&flow).verify(black_box(0x2345), black_box(&packet)));
            });
        }
        let flow = flow(false);
        let mut packet = sealed(&flow, size);
        group.bench_function(BenchmarkId::new("verify blind v4", size), |b| {
            b.iter(|| black_box(&flow).verify_blind(black_box(&packet)));
        });
        group.bench_function(BenchmarkId::new("seal v4", size), |b| {
            b.iter(|| black_box(&flow).seal(black_box(3), black_box(&mut packet)));
        });
        group.bench_function(BenchmarkId::new("crc32 alone", size), |b| {
            b.iter(|| crc32fast::hash(black_box(&packet)));
        });
    }
    group.finish();
}

fn headers(c: &mut Criterion) {
    let mut group = c.benchmark_group("headers");
    let packet = sealed(&flow(false), 4096);
    // As a receiver uses it: the result stays where it is and is read there.
    group.bench_function("parse", |b| {
        b.iter(|| {
            if let Ok(packet) = &Packet::parse(black_box(&packet)) {
                black_box(packet);
            }
        });
    });
    let header = header();
    let mut out = [0; 64];
    group.bench_function("emit header", |b| b.iter(|| black_box(&header).emit(black_box(&mut out))));
    let mut whole = packet.clone();
    group.bench_function("parse and emit header", |b| {
        b.iter(|| Packet::parse(black_box(&packet)).map(|p| p.header.emit(black_box(&mut whole))));
    });
    group.finish();
}

fn flows(c: &mut Criterion) {
    let end = |n: u8| SocketAddr::from(([10, 0, 0, n], 4791));
    c.bench_function("new flow v4", |b| b.iter(|| Flow::new(black_box(end(1)), black_box(end(2)))));
}

criterion_group!(benches, icrc, headers, flows);
criterion_main!(benches);
