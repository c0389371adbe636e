//! Speed beside perftest on the same devices, in turns, where time is the number of instructions (`rxe-vm -i`): the figures are
//! the same on a busy machine. They say how much work there is, on an emulated machine: ratios only.

use std::fs;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use planespray::class::{Class, Dscp};
use planespray::lanes::{
    Completed, Completion, Control, LaneId, LaneSpec, Lanes, Local, Op, PortId, Receive, Remote, Status, Window,
    WorkRequest,
};
use planespray::mem::Region;
use planespray::time::Time;
use planespray::verbs::VerbsLanes;

use crate::rig::{ALL, HOME};
use crate::rxe::ends;

const ROUNDS: usize = 3;
const LEN: u32 = 64 << 10;
const WRITES: usize = 300;
/// Writes that lanes have outstanding. perftest has 128: with more than 8, rdma_rxe keeps so many packets in flight that their
/// memory is taken from the kernel and cleared anew, which costs a tenth.
const DEPTH: u16 = 8;
const PINGS: usize = 200;
const PATIENCE: Duration = Duration::from_secs(60);
/// TCP port by which perftest's two sides find each other.
const PERFTEST: u16 = 18515;

/// One end with a lane and memory.
struct Side {
    lanes: VerbsLanes,
    lane: LaneId,
    mr: planespray::lanes::MrId,
    window: Window,
    start: Instant,
}

fn sides() -> [Side; 2] {
    let mut sides = ends(1, 1, |_| {}).map(|mut lanes| {
        let region = Region::alloc(LEN as usize).expect("memory");
        let mr = lanes.register(&region).expect("a registration");
        let window = lanes.open_window(HOME, mr, 0, u64::from(LEN), ALL).expect("a window");
        let spec = LaneSpec {
            port: PortId(0),
            domain: HOME,
            class: Class::Bulk,
            dscp: Dscp::default(),
            send_depth: DEPTH,
            receive_depth: DEPTH,
            entropy: 1,
        };
        let lane = lanes.create(&spec).expect("a lane");
        Side { lanes, lane, mr, window, start: Instant::now() }
    });
    let addresses = [0, 1].map(|i: usize| sides[i].lanes.address(sides[i].lane).expect("an address"));
    for (i, side) in sides.iter_mut().enumerate() {
        side.lanes.connect(side.lane, &addresses[1 - i]).expect("connects");
    }
    sides
}

impl Side {
    fn now(&self) -> Time {
        Time::from_nanos(self.start.elapsed().as_nanos() as u64)
    }

    fn post(&mut self, op: Op, len: u32, remote: Remote) {
        let local = Local { mr: self.mr, offset: 0, len };
        self.lanes.post(self.lane, &WorkRequest { id: 1, op, local, remote }).expect("room");
    }

    fn receive(&mut self) {
        let local = Some(Local { mr: self.mr, offset: 0, len: 64 });
        self.lanes.post_receive(self.lane, &Receive { id: 2, local }).expect("room");
    }

    fn poll(&mut self, out: &mut [Completion]) -> usize {
        let now = self.now();
        let n = self.lanes.poll(now, out);
        assert!(out[..n].iter().all(|c| c.status == Status::Success), "{:?}", &out[..n]);
        n
    }

    /// Sleeps until a SEND of the peer has come; completions of our own are let go.
    fn wait_for_send(&mut self, out: &mut [Completion]) {
        let since = Instant::now();
        loop {
            let n = self.poll(out);
            if out[..n].iter().any(|c| matches!(c.what, Completed::Receive { .. })) {
                return;
            }
            assert!(since.elapsed() < PATIENCE, "the peer is silent");
            if n == 0 {
                self.sleep();
            }
        }
    }

    /// Sleeps until something comes or is due.
    fn sleep(&self) {
        let now = self.now();
        let due = self.lanes.next_timeout().map_or(100_000_000, |at| at.since(now).as_nanos().min(100_000_000));
        // Shorter than a sleep: the queues are not armed yet.
        if due < 1_000_000 {
            return;
        }
        let fds = self.lanes.wait_fds();
        let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
        poll(&mut fds, PollTimeout::from(due.div_ceil(1_000_000) as u8)).expect("poll");
    }
}

fn blank() -> [Completion; 32] {
    let lane = LaneId(0);
    [Completion {
        lane,
        id: 0,
        what: Completed::Request,
        status: Status::Success,
        rtt: None,
        marks: None,
        retransmits: 0,
    }; 32]
}

/// WRITEs of 64 KiB, sleeping when there is nothing to do as an engine does: there is one CPU, and rdma_rxe needs it. Gb/s.
fn our_bandwidth() -> f64 {
    let [mut a, b] = sides();
    let remote = Remote { addr: b.window.addr, rkey: b.window.keys[0] };
    let (mut posted, mut done, mut out) = (0, 0, blank());
    let start = Instant::now();
    while done < WRITES {
        while posted < WRITES && posted - done < usize::from(DEPTH) {
            a.post(Op::Write, LEN, remote);
            posted += 1;
        }
        let now = a.now();
        a.lanes.doorbell(now);
        let n = a.poll(&mut out);
        done += n;
        if n == 0 {
            a.sleep();
        }
        assert!(start.elapsed() < PATIENCE, "{done} of {WRITES}");
    }
    (WRITES * LEN as usize * 8) as f64 / start.elapsed().as_nanos() as f64
}

/// SENDs of 8 bytes to and fro between two threads that sleep for every one of them, as perftest does with `-e`; the median
/// of half a round trip in us.
fn our_latency() -> f64 {
    let [mut a, mut b] = sides();
    a.receive();
    b.receive();
    let echo = thread::spawn(move || {
        let mut out = blank();
        for _ in 0..PINGS {
            b.wait_for_send(&mut out);
            b.receive();
            b.post(Op::Send, 8, Remote::default());
            let now = b.now();
            b.lanes.doorbell(now);
        }
        // Its last answer must arrive before it goes.
        thread::sleep(Duration::from_millis(200));
    });
    let mut out = blank();
    let mut halves: Vec<f64> = (0..PINGS)
        .map(|_| {
            let start = Instant::now();
            a.post(Op::Send, 8, Remote::default());
            let now = a.now();
            a.lanes.doorbell(now);
            a.wait_for_send(&mut out);
            a.receive();
            start.elapsed().as_nanos() as f64 / 2000.0
        })
        .collect();
    echo.join().expect("the other side");
    halves.sort_by(f64::total_cmp);
    halves[PINGS / 2]
}

/// The number in `column` of the table that a perftest tool prints.
fn perftest(words: &str, column: usize) -> f64 {
    let args = |device| words.split(' ').skip(1).chain(["-x", "1", "-d", device]).collect::<Vec<_>>();
    let tool = words.split(' ').next().unwrap();
    let server = Command::new(tool).args(args("h1p0")).stdout(Stdio::null()).spawn();
    let mut server = server.unwrap_or_else(|e| panic!("{tool}: {e}; it is in package perftest"));
    let since = Instant::now();
    let listening = || {
        ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|path| {
            let table = fs::read_to_string(path).unwrap_or_default();
            table.lines().any(|line| {
                let mut fields = line.split_whitespace().skip(1);
                fields.next().is_some_and(|a| a.ends_with(&format!(":{PERFTEST:04X}"))) && fields.nth(1) == Some("0A")
            })
        })
    };
    while !listening() {
        assert!(since.elapsed() < PATIENCE, "{tool} does not listen");
        thread::sleep(Duration::from_millis(50));
    }
    let client = Command::new(tool).args(args("h0p0")).arg("10.0.0.2").output().expect("runs");
    let text = String::from_utf8_lossy(&client.stdout);
    assert!(client.status.success() && server.wait().expect("ends").success(), "{words}: {text}");
    let mut rows = text.lines().map(|l| l.split_whitespace().map_while(|w| w.parse().ok()).collect::<Vec<f64>>());
    rows.rfind(|row| row.len() > column).unwrap_or_else(|| panic!("no table: {text}"))[column]
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

#[test]
fn write_bandwidth() {
    let ratio = median(
        (0..ROUNDS)
            .map(|_| {
                let theirs = perftest(&format!("ib_write_bw --report_gbits -s {LEN} -n {WRITES}"), 3);
                let ours = our_bandwidth();
                println!("64 KiB WRITE: ours {ours:.3} Gb/s, ib_write_bw {theirs:.3}, ratio {:.2}", ours / theirs);
                ours / theirs
            })
            .collect(),
    );
    println!("median ratio {ratio:.2}");
    assert!(ratio >= 0.95, "{ratio}");
}

#[test]
fn event_driven_latency() {
    let ratio = median(
        (0..ROUNDS)
            .map(|_| {
                let theirs = perftest(&format!("ib_send_lat -e -s 8 -n {PINGS}"), 4);
                let ours = our_latency();
                println!("8-byte SEND: ours {ours:.0} us, ib_send_lat -e {theirs:.0}, ratio {:.2}", ours / theirs);
                ours / theirs
            })
            .collect(),
    );
    println!("median ratio {ratio:.2}");
    assert!(ratio <= 1.1, "{ratio}");
}
