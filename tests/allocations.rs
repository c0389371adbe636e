//! Messages over real sockets allocate nothing in steady state: two fabrics, two planes, every kind of operation, all
//! threads counted but the harness's own. One test function, since the harness itself allocates whenever a test ends.

#[path = "common/counting.rs"]
mod counting;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use planespray::{
    Buffer, Class, Connection, Exposed, Fabric, FabricConfig, JobKey, Pending, Refused, RemoteWindow, SendOptions,
    Wait, WindowAccess,
};

use counting::allocations;

const LONG: Duration = Duration::from_secs(20);
/// Turns of both engines that a round may take. Not a time: a machine may stand still.
const PATIENCE: usize = 5_000_000;
/// Operations of each kind in one round.
const MESSAGES: usize = 128;
const EAGER: usize = 16;
const WRITES: usize = 16;
const READS: usize = 16;
/// Each of these fits one packet, and so is one chunk.
const CHUNKS: usize = MESSAGES + WRITES + READS;
const SIZE: usize = 4096;
const SHORT: usize = 512;

/// Both ends, and all that a round needs.
struct Rig {
    fabrics: [Fabric; 2],
    ends: [Connection; 2],
    window: RemoteWindow,
    exposed: Exposed,
    /// Free buffers: of the first end, of the second, and short ones of each.
    long: [Vec<Buffer>; 2],
    short: [Vec<Buffer>; 2],
    sending: Vec<(Pending, bool)>,
    receiving: Vec<(Pending, bool)>,
    round: u64,
}

fn taken(result: Result<Pending, Refused>) -> Pending {
    result.expect("room for a round")
}

impl Rig {
    fn new() -> Rig {
        let key = JobKey::generate().expect("randomness");
        let open = |hosts: [u8; 2]| {
            let planes = hosts.map(|h| IpAddr::from([127, 0, 70, h])).to_vec();
            let config = FabricConfig {
                planes,
                key: Some(key.clone()),
                wait: Wait::Busy,
                grant_always: true,
                ..FabricConfig::default()
            };
            Fabric::open(&config).expect("a fabric on loopback")
        };
        let (a, b) = (open([1, 2]), open([3, 4]));
        let listener = b.listen("127.0.0.1:0".parse().expect("an address")).expect("listens");
        let (ca, cb) = std::thread::scope(|s| {
            let accepted = s.spawn(|| listener.accept(LONG));
            let connected = a.connect(listener.local_addr(), LONG).expect("connects");
            (connected, accepted.join().expect("no panic").expect("accepts"))
        });
        let access = WindowAccess { write: true, read: true, atomic: false };
        let exposed = cb.expose(b.alloc(WRITES * SIZE).expect("memory"), access).expect("a window");
        let window = RemoteWindow::from_bytes(&exposed.token()).expect("a token");
        let buffers = |f: &Fabric, n: usize, len: usize| (0..n).map(|_| f.alloc(len).expect("memory")).collect();
        Rig {
            long: [buffers(&a, CHUNKS, SIZE), buffers(&b, MESSAGES, SIZE)],
            short: [buffers(&a, EAGER, SHORT), buffers(&b, EAGER, SHORT)],
            fabrics: [a, b],
            ends: [ca, cb],
            window,
            exposed,
            sending: Vec::with_capacity(CHUNKS + EAGER),
            receiving: Vec::with_capacity(MESSAGES + EAGER),
            round: 0,
        }
    }

    /// One message on each buffer, one-sided operations beside them, and everything waited for.
    fn round(&mut self) {
        self.round += 1;
        let stamp = self.round.to_le_bytes();
        let [a, b] = &self.ends;
        while let Some(buffer) = self.long[1].pop() {
            self.receiving.push((taken(b.receive(0, buffer)), true));
        }
        while let Some(buffer) = self.short[1].pop() {
            self.receiving.push((taken(b.receive(1, buffer)), false));
        }
        let options = SendOptions { class: Class::Bulk, rendezvous: true, channel: 0 };
        for _ in 0..MESSAGES {
            let mut buffer = self.long[0].pop().expect("a free buffer");
            buffer[SIZE - 8..].copy_from_slice(&stamp);
            self.sending.push((taken(a.send(options, buffer, SIZE)), true));
        }
        while let Some(mut buffer) = self.short[0].pop() {
            buffer[SHORT - 8..].copy_from_slice(&stamp);
            let options = SendOptions { class: Class::Latency, rendezvous: false, channel: 1 };
            self.sending.push((taken(a.send(options, buffer, SHORT)), false));
        }
        for i in 0..WRITES {
            let mut buffer = self.long[0].pop().expect("a free buffer");
            buffer[SIZE - 8..].copy_from_slice(&stamp);
            let at = (i * SIZE) as u64;
            self.sending.push((taken(a.write(Class::Steady, buffer, SIZE, &self.window, at)), true));
        }
        for i in 0..READS {
            let buffer = self.long[0].pop().expect("a free buffer");
            self.sending.push((taken(a.read(Class::Bulk, buffer, SIZE, &self.window, (i * SIZE) as u64)), true));
        }

        let mut turns = 0;
        while !(self.sending.is_empty() && self.receiving.is_empty()) {
            self.fabrics[0].progress();
            self.fabrics[1].progress();
            collect(&mut self.sending, &mut self.long[0], &mut self.short[0], None);
            collect(&mut self.receiving, &mut self.long[1], &mut self.short[1], Some(stamp));
            turns += 1;
            assert!(turns < PATIENCE, "a round hangs");
        }
        let mut seen = [0; 8];
        self.exposed.read_at((WRITES * SIZE - 8) as u64, &mut seen).expect("inside");
        assert_eq!(seen, stamp);
    }
}

/// Takes what is done out of a list, its buffers back, and looks for the stamp at their ends.
fn collect(list: &mut Vec<(Pending, bool)>, long: &mut Vec<Buffer>, short: &mut Vec<Buffer>, stamp: Option<[u8; 8]>) {
    let mut i = 0;
    while i < list.len() {
        if !list[i].0.is_done() {
            i += 1;
            continue;
        }
        let (mut pending, is_long) = list.swap_remove(i);
        let outcome = pending.test().expect("done");
        let len = outcome.result.expect("success");
        let buffer = outcome.buffer.expect("comes back");
        assert_eq!(len, buffer.len());
        assert!(stamp.is_none_or(|s| buffer.ends_with(&s)), "another round's bytes");
        if is_long { long.push(buffer) } else { short.push(buffer) }
    }
}

#[test]
fn a_million_chunks_allocate_nothing_and_one_planted_allocation_is_found() {
    // Never in the process's first thread, which is not counted.
    std::thread::scope(|s| s.spawn(million).join()).expect("as said above");
}

fn million() {
    let mut rig = Rig::new();
    let run = |rig: &mut Rig, rounds: usize| (0..rounds).for_each(|_| rig.round());
    // Queues reach the lengths they need.
    run(&mut rig, 300);

    let (_, n) = allocations(|| {
        run(&mut rig, 20);
        drop(std::hint::black_box(Box::new(rig.round)));
    });
    assert_eq!(n, 1, "the planted one, and no other");

    let rounds = 1_000_000usize.div_ceil(CHUNKS);
    let start = Instant::now();
    let (_, n) = allocations(|| run(&mut rig, rounds));
    eprintln!("{} chunks in {:?}", rounds * CHUNKS, start.elapsed());
    let events: Vec<_> = rig.fabrics.iter().flat_map(|f| f.events(0).0).map(|e| e.transition).collect();
    assert_eq!(n, 0, "{n} allocations over {} chunks; {events:#?}", rounds * CHUNKS);
    let planes = rig.fabrics[0].stats().planes;
    assert!(planes.iter().all(|p| p.bytes > 1 << 20), "both planes took part: {planes:?}");
}
