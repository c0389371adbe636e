//! Over loopback, on one thread, with a clock of our own.

use super::*;
use crate::bootstrap::Records;
use crate::bootstrap::tests::{START, hello, key, lanes};
use socket2::SockRef;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

const SOON: Span = Span::from_millis(10);

fn listener(config: ListenerConfig) -> (Listener, SocketAddr) {
    let hello = hello("right", &[(0, 0, "10.0.0.2")]);
    let l = Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), key(2), hello, config).expect("a port");
    let addr = l.local_addr().expect("an address");
    (l, addr)
}

fn connector(addr: SocketAddr, auth: Auth) -> Connector {
    Connector::new(addr, auth, hello("left", &[(0, 0, "10.0.0.1")]), START + Span::from_secs(10)).expect("valid")
}

/// Does the caller's part for one peering. True when done.
fn serve(p: &mut Peering, now: Time) -> Result<bool, BootstrapError> {
    loop {
        match p.poll(now)? {
            Step::NeedIo => return Ok(false),
            Step::Done => return Ok(true),
            Step::OpenProbes | Step::PeerProbes(_) | Step::Reached(_) => unreachable!("neither end offers probes"),
            Step::PeerHello(_) => {
                let lanes = lanes(p.handshake());
                p.provide_lanes(lanes)?;
            }
            Step::PeerLanes(_) => p.ready()?,
        }
    }
}

/// A good peer's part of a run.
struct Run {
    connector: Connector,
    left: Option<Peering>,
    right: Option<Peering>,
    rejected: Vec<BootstrapError>,
}

impl Run {
    fn new(connector: Connector) -> Run {
        Run { connector, left: None, right: None, rejected: Vec::new() }
    }

    /// One turn of everything. True when both ends are done.
    fn turn(&mut self, listener: &mut Listener, now: Time) -> Result<bool, BootstrapError> {
        if let Some(p) = self.connector.poll(now)? {
            self.left = Some(p);
        }
        while let Some(incoming) = listener.poll(now) {
            match incoming {
                Incoming::Peer(p) => self.right = Some(*p),
                Incoming::Rejected { error, .. } => self.rejected.push(error),
            }
        }
        let mut done = true;
        for p in [&mut self.left, &mut self.right] {
            done &= match p {
                Some(p) => serve(p, now)?,
                None => false,
            };
        }
        Ok(done)
    }

    fn run(&mut self, listener: &mut Listener) -> Result<Time, BootstrapError> {
        let started = Instant::now();
        let mut now = START;
        while !self.turn(listener, now)? {
            assert!(started.elapsed() < Duration::from_secs(20), "no end: {:?}", self.rejected);
            now += SOON;
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(now)
    }

    fn finish(self) -> ((Established, Witness), (Established, Witness)) {
        let (left, right) = (self.left.expect("done"), self.right.expect("done"));
        (left.finish().expect("done"), right.finish().expect("done"))
    }
}

fn witnesses() -> (Witness, Witness) {
    let (mut l, addr) = listener(ListenerConfig::default());
    let mut run = Run::new(connector(addr, key(2)));
    run.run(&mut l).expect("both ready");
    let ((a, left), (b, right)) = run.finish();
    assert_eq!((a.session, a.plan.len()), (b.session, b.plan.len()));
    (left, right)
}

fn wait_for(w: &mut Witness, sight: Sight) {
    let started = Instant::now();
    while w.poll() != sight {
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", w.poll());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn next_record(w: &mut Witness) -> Vec<u8> {
    let started = Instant::now();
    loop {
        if let Some(r) = w.receive().expect("intact") {
            return r.to_vec();
        }
        assert!(started.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_stream_becomes_a_witness() {
    let (mut left, mut right) = witnesses();
    assert_eq!((left.poll(), right.poll()), (Sight::Alive, Sight::Alive));
    left.send(b"new lanes").expect("sent");
    left.send(b"goodbye").expect("sent");
    assert_eq!(next_record(&mut right), b"new lanes");
    right.send(&[5; Records::MAX]).expect("sent");
    assert_eq!(next_record(&mut left), [5; Records::MAX]);
    left.leave();
    // The last word is read before the end of the stream is seen.
    assert_eq!(next_record(&mut right), b"goodbye");
    wait_for(&mut right, Sight::Closed);
}

#[test]
fn a_reset_is_told_from_a_close() {
    let (left, mut right) = witnesses();
    SockRef::from(&left.as_fd()).set_linger(Some(Duration::ZERO)).expect("linger");
    drop(left);
    wait_for(&mut right, Sight::Reset);
}

#[test]
fn what_does_not_decrypt_is_a_reset() {
    let (left, mut right) = witnesses();
    let mut raw: TcpStream = left.as_fd().try_clone_to_owned().expect("a copy").into();
    raw.write_all(&[&[20, 0][..], &[7; 20]].concat()).expect("written");
    let started = Instant::now();
    while right.receive().is_ok() {
        assert!(started.elapsed() < Duration::from_secs(5));
    }
    assert_eq!(right.poll(), Sight::Reset);
}

#[test]
fn a_full_queue_is_refused() {
    let (mut left, _right) = witnesses();
    // Nobody reads: sooner or later the socket takes no more, and the queue is bounded.
    let full = (0..100_000).find_map(|_| left.send(&[1; Records::MAX]).err()).expect("full");
    assert!(matches!(full, BootstrapError::TooLarge { limit: 262_144, .. }));
    assert!(left.wants_write());
}

#[test]
fn the_connector_waits_for_a_listener() {
    let (l, addr) = listener(ListenerConfig::default());
    drop(l);
    let mut c = connector(addr, key(2));
    let mut now = START;
    for _ in 0..20 {
        assert!(c.poll(now).expect("goes on").is_none());
        assert!(c.poll_timeout().is_some());
        now += SOON;
        std::thread::sleep(Duration::from_millis(1));
    }
    let hello = hello("right", &[(0, 0, "10.0.0.2")]);
    let mut l = Listener::bind(addr, key(2), hello, ListenerConfig::default()).expect("the port again");
    Run::new(c).run(&mut l).expect("both ready");
}

#[test]
fn a_connector_names_why_nobody_answered() {
    let (l, addr) = listener(ListenerConfig::default());
    drop(l);
    let mut c = connector(addr, key(2));
    for ms in 0..10 {
        assert!(c.poll(START + Span::from_millis(ms * 50)).expect("goes on").is_none());
        std::thread::sleep(Duration::from_millis(1));
    }
    let e = c.poll(START + Span::from_secs(10)).expect_err("late");
    assert_eq!(e, BootstrapError::Io { call: "connect", errno: libc::ECONNREFUSED, waiting_for: Waiting::Connect });
}

#[test]
fn a_wrong_key_is_heard_over_tcp_too() {
    let (mut l, addr) = listener(ListenerConfig::default());
    let mut run = Run::new(connector(addr, key(3)));
    assert_eq!(run.run(&mut l), Err(BootstrapError::WrongKey { by: "peer" }));
    assert_eq!(run.rejected, [BootstrapError::WrongKey { by: "this end" }]);
}

#[test]
fn a_refused_peer_hears_why() {
    let (mut l, addr) = listener(ListenerConfig::default());
    let mut run = Run::new(connector(addr, key(2)));
    let started = Instant::now();
    let e = loop {
        if let Some(p) = run.connector.poll(START).expect("goes on") {
            run.left = Some(p);
        }
        if let Some(Incoming::Peer(p)) = l.poll(START) {
            p.refuse(Refusal::Full);
        }
        if let Some(Err(e)) = run.left.as_mut().map(|p| serve(p, START)) {
            break e;
        }
        assert!(started.elapsed() < Duration::from_secs(5));
    };
    assert_eq!(e, BootstrapError::Refused { reason: Refusal::Full });
}

#[test]
fn strangers_do_not_keep_a_peer_out() {
    let config = ListenerConfig { half_open: 8, ..ListenerConfig::default() };
    let (mut l, addr) = listener(config);
    // Many that say nothing, and one that speaks something else.
    let strangers: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(addr).expect("connected")).collect();
    let mut browser = TcpStream::connect(addr).expect("connected");
    browser.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("written");

    let mut run = Run::new(connector(addr, key(2)));
    let done = run.run(&mut l).expect("both ready");
    // 101 strangers through 8 slots, each of which stays 250 ms.
    assert!(done.since(START) < Span::from_secs(5), "{:?}", done.since(START));
    assert!(l.strangers() <= 8);
    let mut out = Vec::new();
    l.fds(&mut out);
    assert!(out.len() <= 9);
    assert!(run.rejected.iter().any(|e| matches!(e, BootstrapError::NotPlanespray(_))));
    assert!(run.rejected.iter().any(|e| matches!(e, BootstrapError::Timeout { waiting_for: Waiting::Preamble })));
    drop(strangers);
}

#[test]
fn a_silent_stranger_is_dropped_at_its_deadline() {
    let (mut l, addr) = listener(ListenerConfig::default());
    let _stranger = TcpStream::connect(addr).expect("connected");
    let started = Instant::now();
    while l.strangers() == 0 {
        assert!(l.poll(START).is_none());
        assert!(started.elapsed() < Duration::from_secs(5));
    }
    let deadline = l.poll_timeout().expect("a deadline");
    assert_eq!(deadline, START + Span::from_secs(10));
    let Some(Incoming::Rejected { error, .. }) = l.poll(deadline) else { panic!("the stranger stayed") };
    assert_eq!(error, BootstrapError::Timeout { waiting_for: Waiting::Preamble });
    assert_eq!(l.strangers(), 0);
}

#[test]
fn a_dialer_that_reaches_a_silent_port_says_so() {
    let silent = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let mut c = connector(silent.local_addr().expect("an address"), key(2));
    let started = Instant::now();
    let mut p = loop {
        if let Some(p) = c.poll(START).expect("goes on") {
            break p;
        }
        assert!(started.elapsed() < Duration::from_secs(5));
    };
    assert!(matches!(p.poll(START), Ok(Step::NeedIo)));
    let e = p.poll(START + Span::from_secs(10)).expect_err("late");
    assert!(e.to_string().contains("said nothing"), "{e}");
}
