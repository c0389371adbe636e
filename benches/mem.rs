//! Copies into and out of regions, beside memcpy.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use planespray::mem::Region;

const SIZES: [usize; 4] = [8, 64, 4 << 10, 64 << 10];

fn copies(c: &mut Criterion) {
    let region = Region::alloc(1 << 20).expect("1 MiB");
    let other = Region::alloc(1 << 20).expect("1 MiB");
    let mut target = vec![0u8; 1 << 20];
    // Packets lie behind headers: the payload is seldom aligned.
    let source = vec![7u8; (1 << 20) + 28];
    for size in SIZES {
        let mut group = c.benchmark_group(format!("{size} B"));
        group.throughput(Throughput::Bytes(size as u64));
        let src = &source[28..28 + size];
        group.bench_function("memcpy", |b| {
            b.iter(|| target[..black_box(size)].copy_from_slice(black_box(src)));
        });
        group.bench_function("write_at", |b| {
            b.iter(|| region.write_at(black_box(0), black_box(src)));
        });
        group.bench_function("write_at, not at a line", |b| {
            b.iter(|| region.write_at(black_box(24), black_box(src)));
        });
        group.bench_function("read_at", |b| {
            b.iter(|| region.read_at(black_box(0), black_box(&mut target[..size])));
        });
        group.bench_function("copy_to", |b| {
            b.iter(|| region.copy_to(black_box(0), &other, black_box(0), size as u64));
        });
        group.finish();
    }
}

criterion_group!(benches, copies);
criterion_main!(benches);
