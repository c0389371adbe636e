//! Plays NCCL: connects, registers, and keeps requests in flight, with every byte checked.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use crate::abi::{HANDLE_BYTES, PTR_HOST};
use crate::net::{LOGGED, Net, Ptr};

/// Nothing takes this long.
pub const LONG: Duration = Duration::from_secs(60);
/// Bytes around each buffer that nobody may write.
const GUARD: usize = 256;

pub const SIZES: &[usize] = &[
    0,
    1,
    7,
    8,
    64,
    127,
    128,
    129,
    1000,
    3072,
    3073,
    4096,
    4097,
    16_384,
    16_385,
    65_536,
    65_537,
    262_144,
    1 << 20,
    (1 << 20) + 1,
    0,
    8 << 20,
];

/// xorshift: the same sequence for the same seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// Fails the test when something does not come to an end.
pub struct Deadline(Instant);

impl Deadline {
    pub fn new() -> Deadline {
        Deadline(Instant::now())
    }

    pub fn check(&self, what: &str) {
        assert!(self.0.elapsed() < LONG, "{what}: no end; logged: {:?}", LOGGED.lock());
        // As NCCL does between polls.
        std::thread::yield_now();
    }
}

/// Connects a sending end of `a` to a receiving end of `b`, on one thread.
pub fn join(a: &Net, b: &Net) -> (Ptr, Ptr) {
    let (listening, mut handle) = b.listen();
    let ends = join_at(a, b, listening, &mut handle);
    assert_eq!(b.close_listen(listening), 0);
    ends
}

pub fn join_at(a: &Net, b: &Net, listening: Ptr, handle: &mut [u8; HANDLE_BYTES]) -> (Ptr, Ptr) {
    let (mut send, mut receive): (Ptr, Ptr) = (null_mut(), null_mut());
    let deadline = Deadline::new();
    while send.is_null() || receive.is_null() {
        if send.is_null() {
            send = a.try_connect(handle).unwrap_or_else(|c| panic!("connect: {c}, {:?}", LOGGED.lock()));
        }
        if receive.is_null() {
            receive = b.try_accept(listening);
        }
        deadline.check("connect and accept");
    }
    (send, receive)
}

pub fn connect(net: &Net, handle: &mut [u8; HANDLE_BYTES]) -> Ptr {
    let deadline = Deadline::new();
    loop {
        let comm = net.try_connect(handle).unwrap_or_else(|c| panic!("connect: {c}, {:?}", LOGGED.lock()));
        if !comm.is_null() {
            return comm;
        }
        deadline.check("connect");
    }
}

pub fn accept(net: &Net, listening: Ptr) -> Ptr {
    let deadline = Deadline::new();
    loop {
        let comm = net.try_accept(listening);
        if !comm.is_null() {
            return comm;
        }
        deadline.check("accept");
    }
}

/// Registered memory between guards.
pub struct Buffer {
    bytes: Vec<u8>,
    len: usize,
    comm: Ptr,
    pub handle: Ptr,
}

impl Buffer {
    pub fn new(net: &Net, comm: Ptr, len: usize) -> Buffer {
        let mut bytes = vec![0xee; len + 2 * GUARD];
        let start = bytes[GUARD..].as_mut_ptr().cast();
        let handle = net.reg_mr(comm, start, len, PTR_HOST).expect("host memory");
        Buffer { bytes, len, comm, handle }
    }

    pub fn ptr(&mut self) -> Ptr {
        self.bytes.as_mut_ptr().wrapping_add(GUARD).cast()
    }

    pub fn fill(&mut self, seed: u64, len: usize) {
        for (i, chunk) in self.bytes[GUARD..GUARD + len].chunks_mut(8).enumerate() {
            chunk.copy_from_slice(&word(seed, i)[..chunk.len()]);
        }
    }

    /// Checks what was received, and that nothing else was touched.
    pub fn check(&mut self, seed: u64, len: usize, capacity: usize) {
        for (i, chunk) in self.bytes[GUARD..GUARD + len].chunks(8).enumerate() {
            assert_eq!(*chunk, word(seed, i)[..chunk.len()], "message {seed} of {len} bytes, at {}", i * 8);
        }
        assert!(self.bytes[..GUARD].iter().all(|&b| b == 0xee), "written before the buffer");
        assert!(self.bytes[GUARD + capacity..].iter().all(|&b| b == 0xee), "written behind the receive");
        self.bytes[GUARD..GUARD + capacity].fill(0xee);
    }

    pub fn close(self, net: &Net) {
        net.dereg_mr(self.comm, self.handle);
    }

    /// Gives the memory back first, then looks whether anybody still writes there.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[GUARD..GUARD + self.len]
    }
}

fn word(seed: u64, i: usize) -> [u8; 8] {
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i as u64).wrapping_mul(0xd1b5_4a32_d192_ed03)).to_le_bytes()
}

/// A request, its message's number, and the bytes there are for it.
type UnderWay = (Ptr, usize, usize);

/// A stream of messages in one direction, as far as one end sees it.
pub struct Stream {
    comm: Ptr,
    sending: bool,
    slots: Vec<(Buffer, Option<UnderWay>)>,
    next: usize,
    over: usize,
    total: usize,
    seed: u64,
    sizes: Vec<usize>,
    /// Receives of the same capacity as the message, rather than larger ones.
    exact: bool,
}

impl Stream {
    /// `total` messages whose sizes go round in `sizes`, at most `depth` at once.
    pub fn new(net: &Net, comm: Ptr, sending: bool, sizes: &[usize], total: usize, depth: usize, seed: u64) -> Stream {
        let room = sizes.iter().max().copied().unwrap_or(0) + 1000;
        let slots = (0..depth).map(|_| (Buffer::new(net, comm, room), None)).collect();
        let sizes = sizes.to_vec();
        Stream { comm, sending, slots, next: 0, over: 0, total, seed, sizes, exact: false }
    }

    pub fn exact(mut self) -> Stream {
        self.exact = true;
        self
    }

    pub fn is_over(&self) -> bool {
        self.over == self.total
    }

    /// One round as NCCL's progress thread has it: begin what can begin, test what is under way, in any order.
    pub fn step(&mut self, net: &Net, random: &mut Random) {
        while self.next < self.total {
            let Some(slot) = self.slots.iter_mut().find(|s| s.1.is_none()) else { break };
            let (number, size) = (self.next, self.sizes[self.next % self.sizes.len()]);
            let seed = self.seed + number as u64;
            let ptr = slot.0.ptr();
            let (request, capacity) = if self.sending {
                slot.0.fill(seed, size);
                (net.isend(self.comm, ptr, size, 3, slot.0.handle).expect("isend"), size)
            } else {
                let capacity = if self.exact { size } else { size + random.below(1000) };
                (net.irecv(self.comm, ptr, capacity, 3, slot.0.handle).expect("irecv"), capacity)
            };
            if request.is_null() {
                break;
            }
            slot.1 = Some((request, number, capacity));
            self.next += 1;
        }
        let first = random.below(self.slots.len());
        for i in 0..self.slots.len() {
            let index = (first + i) % self.slots.len();
            let (buffer, state) = &mut self.slots[index];
            let Some((request, number, capacity)) = *state else { continue };
            let size = self.sizes[number % self.sizes.len()];
            let over = if random.below(4) == 0 {
                net.test_without_sizes(request).expect("test").then_some(size)
            } else {
                net.test(request).expect("test")
            };
            let Some(reported) = over else { continue };
            assert_eq!(reported, size, "message {number}");
            if self.sending {
                // NCCL writes there at once.
                let len = size.min(64);
                buffer.bytes[GUARD..GUARD + len].fill(0x11);
            } else {
                assert!(net.iflush(self.comm, buffer.ptr(), size, buffer.handle).is_null());
                buffer.check(self.seed + number as u64, size, capacity);
            }
            *state = None;
            self.over += 1;
        }
    }

    pub fn close(self, net: &Net) {
        for (buffer, state) in self.slots {
            assert!(state.is_none());
            buffer.close(net);
        }
    }
}

/// Runs streams on this thread until all are over.
pub fn run(net: &Net, streams: &mut [Stream], seed: u64) {
    let mut random = Random(seed | 1);
    let deadline = Deadline::new();
    while !streams.iter().all(Stream::is_over) {
        for stream in streams.iter_mut() {
            stream.step(net, &mut random);
        }
        deadline.check("streams");
    }
}

/// Waits for one request.
pub fn wait(net: &Net, request: Ptr) -> Result<usize, c_int> {
    let deadline = Deadline::new();
    loop {
        if let Some(size) = net.test(request)? {
            return Ok(size);
        }
        deadline.check("one request");
    }
}

/// Files by which processes of a test exchange handles and wait for each other.
pub struct Board(pub std::path::PathBuf);

impl Board {
    pub fn post(&self, name: &str, bytes: &[u8]) {
        let (part, whole) = (self.0.join(format!("{name}.part")), self.0.join(name));
        std::fs::write(&part, bytes).expect("written");
        std::fs::rename(part, whole).expect("renamed");
    }

    pub fn take(&self, name: &str) -> Vec<u8> {
        let deadline = Deadline::new();
        loop {
            if let Ok(bytes) = std::fs::read(self.0.join(name)) {
                return bytes;
            }
            deadline.check(name);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
