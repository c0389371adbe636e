//! A connection between the embedded engine and rdma_rxe, and what a case does with it.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use planespray::roce::{Cqe, SendOp, Status};
use planespray::soft::UdpConfig;

use crate::end::{BASE, End, MEMORY, Options, Peer};
use crate::rxe::{Ask, Rxe, Wc};

/// The emulated machine is slow, but nothing takes this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The rdma_rxe device, and the network interface below it.
pub(crate) const DEVICE: &str = "h0p0";
/// UDP port of RoCEv2.
const ROCE: u16 = 4791;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    fn ours(self) -> IpAddr {
        if self == Family::V4 { "10.0.0.100" } else { "fd00:0::100" }.parse().unwrap()
    }

    fn theirs(self) -> IpAddr {
        if self == Family::V4 { "10.0.0.1" } else { "fd00:0::1" }.parse().unwrap()
    }
}

/// Both ends. A piece of memory has the same offset at both.
pub(crate) struct Pair {
    pub(crate) end: End,
    pub(crate) rxe: Rxe,
    next: u64,
}

/// Runs `f` in a network namespace that `ip netns` knows.
pub(crate) fn within<R>(namespace: &str, f: impl FnOnce() -> R) -> R {
    let open = |path: &str| {
        fs::File::open(path).unwrap_or_else(|e| panic!("{path}: {e}; these cases run in the guest of ci/rxe-vm"))
    };
    let home = open("/proc/thread-self/ns/net");
    let there = open(&format!("/run/netns/{namespace}"));
    setns(there.as_fd(), CloneFlags::CLONE_NEWNET).expect("setns");
    let result = f();
    setns(home.as_fd(), CloneFlags::CLONE_NEWNET).expect("setns back");
    result
}

/// Runs a command and says so if it fails.
pub(crate) fn run(words: &str) {
    let mut parts = words.split(' ');
    let status = Command::new(parts.next().unwrap()).args(parts).status().unwrap_or_else(|e| panic!("{words}: {e}"));
    assert!(status.success(), "{words}: {status}");
}

/// Whether our bursts travel whole and are cut at rdma_rxe's socket; else our interface cuts them, as most do.
pub(crate) fn bursts_travel_whole(whole: bool) {
    run(&format!("ip -n emb link set dev emb0 gso_max_segs {}", if whole { 65_535 } else { 1 }));
}

/// One of rdma_rxe's counters.
pub(crate) fn counter(name: &str) -> u64 {
    // The kernel answers from memory for 10 ms after a reading.
    std::thread::sleep(Duration::from_millis(20));
    let path = format!("/sys/class/infiniband/{DEVICE}/ports/1/hw_counters/{name}");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    text.trim().parse().unwrap_or_else(|e| panic!("{path}: {e}: {text}"))
}

/// Bytes that differ by place and by `seed`.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ (i >> 16) as u8 ^ seed).collect()
}

impl Pair {
    pub(crate) fn new(family: Family) -> Pair {
        Pair::with(family, &Options::default(), |_| ())
    }

    pub(crate) fn with(family: Family, options: &Options, sockets: impl FnOnce(&mut UdpConfig)) -> Pair {
        // What a case that failed left behind.
        run("plane clear 0");
        bursts_travel_whole(true);
        let mut end = within("emb", || End::open(family.ours(), sockets));
        let mut rxe = Rxe::open(DEVICE, family.theirs(), MEMORY);
        assert_eq!(end.at().port(), ROCE, "rdma_rxe sends to this port");
        let psn = 0xff_fff8;
        let peer = Peer { at: SocketAddr::new(family.theirs(), ROCE), qpn: rxe.qpn(), psn };
        // Binds the socket of the path's source port.
        within("emb", || end.connect(&peer, options));
        rxe.connect(family.ours(), end.qpn(), psn, options);
        Pair { end, rxe, next: 1 }
    }

    /// Lets our end work until `done` gives something.
    pub(crate) fn until<R>(&mut self, what: &str, mut done: impl FnMut(&mut Pair) -> Option<R>) -> R {
        let start = Instant::now();
        loop {
            if let Some(result) = done(self) {
                return result;
            }
            if !self.end.turn() {
                self.end.sleep(Duration::from_millis(1));
            }
            assert!(start.elapsed() < PATIENCE, "waited for {what}; ours {:?}", self.end.counters());
        }
    }

    /// Our next completion.
    pub(crate) fn ours(&mut self) -> Cqe {
        self.until("a completion of ours", |p| p.end.poll())
    }

    /// rdma_rxe's next completion.
    pub(crate) fn theirs(&mut self) -> Wc {
        self.until("a completion of rdma_rxe", |p| p.rxe.poll())
    }

    pub(crate) fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Posts a request of ours over `len` bytes at `offset` of both memories.
    pub(crate) fn post(&mut self, op: SendOp, offset: u64, len: u32) -> u64 {
        let (id, addr, rkey) = (self.id(), self.rxe.base() + offset, self.rxe.rkey());
        self.end.post(id, op, offset, len, addr, rkey);
        id
    }

    /// A request of ours, and how it ended.
    pub(crate) fn request(&mut self, op: SendOp, offset: u64, len: u32) -> Cqe {
        let id = self.post(op, offset, len);
        let cqe = self.ours();
        assert_eq!(cqe.id, id, "{cqe:?}");
        cqe
    }

    /// A request of ours that must succeed.
    pub(crate) fn good(&mut self, op: SendOp, offset: u64, len: u32) {
        let cqe = self.request(op, offset, len);
        assert_eq!(cqe.status, Status::Success, "{op:?} of {len} bytes: {cqe:?}");
    }

    /// Posts a request of rdma_rxe's over `len` bytes at `offset` of both memories.
    pub(crate) fn ask(&mut self, ask: Ask, offset: u64, len: u32) -> u64 {
        let (id, rkey) = (self.id(), self.end.rkey());
        self.rxe.post(id, ask, offset, len, BASE + offset, rkey);
        id
    }

    /// A request of rdma_rxe's, and how it ended.
    pub(crate) fn asked(&mut self, ask: Ask, offset: u64, len: u32) -> Wc {
        let id = self.ask(ask, offset, len);
        let wc = self.theirs();
        assert_eq!(wc.id, id, "{wc:?}");
        wc
    }

    /// A request of rdma_rxe's that must succeed.
    pub(crate) fn asked_well(&mut self, ask: Ask, offset: u64, len: u32) {
        let wc = self.asked(ask, offset, len);
        assert!(wc.is_success(), "{ask:?} of {len} bytes: {wc:?}");
    }
}
