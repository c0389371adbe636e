//! The embedded engine against a third implementation: `peer.py`, which has headers, ICRC and protocol of its own.
//!
//! Over loopback, IPv4 and IPv6, each side in both roles.

#[path = "../common/mod.rs"]
mod common;
#[path = "../support/end.rs"]
mod end;

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use planespray::roce::{Cqe, CqeKind, QpState, SendOp, Status};

use end::{BASE, End, Options, Peer};

const PATIENCE: Duration = Duration::from_secs(20);

/// The script, running.
struct Script {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    rkey: u32,
    base: u64,
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both ends of a connection.
struct Pair {
    end: End,
    script: Script,
    next: u64,
}

/// A connection between `ours` and `theirs`, or `None` where there is no python3.
fn connect(ours: &str, theirs: &str, options: &Options) -> Option<Pair> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/third_peer/peer.py");
    let spawned = Command::new("python3").arg(path).arg(theirs).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(e) => {
            common::skipped(&format!("python3 cannot be started: {e}"));
            return None;
        }
    };
    let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (to, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                return;
            }
        }
    });
    let mut script = Script { child, stdin, lines, rkey: 0, base: 0 };
    let hello = script.lines.recv_timeout(PATIENCE).expect("a first line");
    let words: Vec<u64> = hello.split(' ').skip(1).map(|w| w.parse().unwrap()).collect();
    let [port, qpn, psn, rkey, base] = words[..] else { panic!("{hello}") };
    (script.rkey, script.base) = (rkey as u32, base);

    let mut end = End::open(ours.parse().unwrap(), |_| ());
    let theirs: IpAddr = theirs.parse().unwrap();
    let peer = Peer { at: SocketAddr::new(theirs, port as u16), qpn: qpn as u32, psn: psn as u32 };
    end.connect(&peer, options);
    let mut pair = Pair { end, script, next: 1 };
    let at = pair.end.at();
    let (qpn, rkey) = (pair.end.qpn(), pair.end.rkey());
    let line = format!("connect {} {} {qpn} {} {} {rkey} {BASE}", at.ip(), at.port(), options.psn, options.mtu);
    pair.tell(&line);
    Some(pair)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect()
}

impl Pair {
    /// Gives the script a command and lets our end work until it has answered.
    fn tell(&mut self, line: &str) -> String {
        writeln!(self.script.stdin, "{line}").expect("the script runs");
        let start = Instant::now();
        loop {
            match self.script.lines.try_recv() {
                Ok(answer) => {
                    let what = line.get(..60).unwrap_or(line);
                    return answer.strip_prefix("ok").unwrap_or_else(|| panic!("{what}: {answer}")).trim().to_owned();
                }
                Err(e) => assert_eq!(e, std::sync::mpsc::TryRecvError::Empty, "the script ended"),
            }
            self.turn();
            assert!(start.elapsed() < PATIENCE, "no answer to {line}");
        }
    }

    fn turn(&mut self) {
        if !self.end.turn() {
            self.end.sleep(Duration::from_millis(1));
        }
    }

    /// Runs our end until it has a completion.
    fn completion(&mut self) -> Cqe {
        let start = Instant::now();
        loop {
            self.turn();
            if let Some(cqe) = self.end.poll() {
                return cqe;
            }
            assert!(start.elapsed() < PATIENCE, "no completion; {:?}", self.end.counters());
        }
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A request of ours over `len` bytes at `offset` of both memories; its completion.
    fn request(&mut self, op: SendOp, offset: u64, len: u32) -> Cqe {
        let (id, addr, rkey) = (self.id(), self.script.base + offset, self.script.rkey);
        self.end.post(id, op, offset, len, addr, rkey);
        let cqe = self.completion();
        assert_eq!(cqe.id, id, "{cqe:?}");
        cqe
    }

    fn good(&mut self, op: SendOp, offset: u64, len: u32) {
        let cqe = self.request(op, offset, len);
        assert_eq!(cqe.status, Status::Success, "{op:?}: {cqe:?}");
    }

    fn stats(&mut self) -> serde_json::Value {
        serde_json::from_str(&self.tell("stats")).unwrap()
    }
}

/// Every operation with the engine as requester.
fn engine_asks(pair: &mut Pair) {
    let bytes = pattern(70_000, 1);
    pair.end.write(0, &bytes);
    pair.tell("post 4");
    pair.good(SendOp::Send, 0, 5);
    pair.good(SendOp::SendImm(0xfeed_0001), 0, 1025);
    pair.good(SendOp::Send, 0, 0);
    let want = format!("send:5:-:{} send:1025:{}:{} send:0:-:", hex(&bytes[..5]), 0xfeed_0001_u32, hex(&bytes[..1025]));
    assert_eq!(pair.tell("received"), want);

    pair.good(SendOp::Write, 8, 61_003);
    assert_eq!(pair.tell("load 8 61003"), hex(&bytes[8..61_011]));
    pair.good(SendOp::WriteImm(77), 100, 2048);
    assert_eq!(pair.tell("received"), "write:2048:77:");
    assert_eq!(pair.tell("load 100 2048"), hex(&bytes[100..2148]));

    let theirs = pattern(9_000, 2);
    pair.tell(&format!("store 200000 {}", hex(&theirs)));
    pair.good(SendOp::Read, 200_000, 9_000);
    assert_eq!(pair.end.read(200_000, 9_000), theirs);

    pair.tell(&format!("store 512 {}", hex(&40_u64.to_ne_bytes())));
    pair.good(SendOp::FetchAdd(2), 512, 8);
    assert_eq!(pair.end.read(512, 8), 40_u64.to_ne_bytes());
    pair.good(SendOp::CompareSwap { compare: 42, swap: u64::MAX - 1 }, 512, 8);
    assert_eq!(pair.end.read(512, 8), 42_u64.to_ne_bytes());
    assert_eq!(pair.tell("load 512 8"), hex(&(u64::MAX - 1).to_ne_bytes()));

    // No receive is posted now: the script says so until there is one.
    let (id, before) = (pair.id(), pair.end.counters().rnr_nak_rcvd);
    pair.end.post(id, SendOp::Send, 0, 16, 0, 0);
    while pair.end.counters().rnr_nak_rcvd == before {
        pair.turn();
    }
    pair.tell("post 1");
    let cqe = pair.completion();
    assert_eq!((cqe.id, cqe.status), (id, Status::Success));
    assert_eq!(pair.tell("received"), format!("send:16:-:{}", hex(&bytes[..16])));

    // It loses packets out of the middle of a message: go back to the one that it asks for.
    pair.end.write(0, &pattern(70_000, 3));
    pair.tell("drop 3");
    pair.good(SendOp::Write, 0, 50_000);
    assert_eq!(pair.tell("load 0 50000"), hex(&pattern(70_000, 3)[..50_000]));
    assert!(pair.end.counters().retransmits >= 3);
}

/// Every operation with the script as requester.
fn script_asks(pair: &mut Pair) {
    let bytes = pattern(5_000, 4);
    for (len, imm) in [(5, None), (3_001, Some(0xabcd_ef01_u32)), (0, None)] {
        let id = pair.id();
        pair.end.post_receive(id, 300_000, 4096);
        let shown = imm.map_or("-".to_owned(), |i| i.to_string());
        let sent = if len == 0 { "-".to_owned() } else { hex(&bytes[..len]) };
        assert_eq!(pair.tell(&format!("send {sent} {shown}")), "acked");
        let cqe = pair.completion();
        assert_eq!((cqe.id, cqe.what, cqe.status), (id, CqeKind::Receive, Status::Success));
        assert_eq!((cqe.len as usize, cqe.imm), (len, imm));
        assert_eq!(pair.end.read(300_000, len), bytes[..len]);
    }
    let id = pair.id();
    pair.end.post_receive(id, 0, 0);
    assert_eq!(pair.tell(&format!("write 400001 {} 9", hex(&bytes))), "acked");
    let cqe = pair.completion();
    assert_eq!((cqe.what, cqe.status, cqe.imm), (CqeKind::ReceiveWriteImm, Status::Success, Some(9)));
    assert_eq!(pair.end.read(400_001, 5_000), bytes);
    assert_eq!(pair.tell(&format!("write 500000 {} -", hex(&bytes))), "acked");
    assert_eq!(pair.end.read(500_000, 5_000), bytes);

    assert_eq!(pair.tell("read 500000 4097"), hex(&bytes[..4097]));
    pair.end.write(640, &7_u64.to_ne_bytes());
    assert_eq!(pair.tell("add 640 3"), "7");
    assert_eq!(pair.tell("swap 640 10 99"), "10");
    assert_eq!(pair.tell("swap 640 10 98"), "99");
    assert_eq!(pair.end.read(640, 8), 99_u64.to_ne_bytes());
}

/// What must not get through.
fn refusals(pair: &mut Pair) {
    let before = pair.end.socket_counters();
    let id = pair.id();
    pair.end.post_receive(id, 300_000, 64);
    pair.tell(&format!("spoil {}", hex(&[1; 8])));
    let start = Instant::now();
    while pair.end.socket_counters().bad_icrc == before.bad_icrc {
        pair.turn();
        assert!(start.elapsed() < PATIENCE, "the spoilt packet was not noticed");
    }
    assert!(pair.end.poll().is_none(), "a packet with a wrong ICRC was taken");
    assert_eq!(pair.tell(&format!("send {} -", hex(&[2; 8]))), "acked");
    assert_eq!(pair.completion().id, id);
    assert_eq!(pair.end.read(300_000, 8), [2; 8]);

    // 0x62: remote access error.
    pair.end.write(0, &[7; 64]);
    assert_eq!(pair.tell(&format!("badkey 0 {}", hex(&[9; 64]))), "nak 0x62");
    assert_eq!(pair.end.read(0, 64), [7; 64]);
    assert_eq!(pair.end.counters().resp_remote_access_errors, 1);
}

fn all(ours: &str, theirs: &str) {
    let options = Options { timeout: planespray::time::Span::from_millis(200), ..Options::default() };
    let Some(mut pair) = connect(ours, theirs, &options) else { return };
    engine_asks(&mut pair);
    script_asks(&mut pair);
    refusals(&mut pair);

    let (ours, stats) = (pair.end.socket_counters(), pair.stats());
    assert_eq!(stats["bad_icrc"], 0, "{stats}");
    assert_eq!((&stats["good"], &stats["dropped"]), (&ours.sent_packets.into(), &3.into()), "{stats}");
    assert_eq!(ours.bad_icrc, 1, "the spoilt one");
    if pair.end.at().is_ipv4() {
        // The script found ICRCs for other identifications than 0: the segments of bursts.
        assert!(stats["max_id"].as_u64().unwrap() >= 14, "{stats}");
    }

    // The engine's turn to be refused ends its connection, so it comes last.
    let Some(mut pair) = connect(&pair.end.at().ip().to_string(), theirs, &options) else { return };
    pair.script.rkey ^= 0x100;
    let cqe = pair.request(SendOp::Write, 0, 64);
    assert_eq!(cqe.status, Status::RemoteAccess);
    assert_eq!(pair.end.state(), QpState::Err);
}

#[test]
fn ipv4() {
    all("127.0.0.81", "127.0.0.82");
}

#[test]
fn ipv6() {
    all("::1", "::1");
}
