//! Devices that misbehave: what the verbs backend makes of every refusal and failure that the mock can produce.
#![cfg(target_os = "linux")]

use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use planespray::class::{Class, Dscp};
use planespray::lanes::{
    Completed, Completion, Control, DeviceRefusal, Domain, LaneError, LaneEvent, LaneId, LaneSpec, Lanes, Local, MrId,
    Op, PortId, Receive, Remote, Status, Window, WindowAccess, WorkRequest,
};
use planespray::mem::{Access, Region};
use planespray::time::{Span, Time};
use planespray::verbs::sys::*;
use planespray::verbs::{
    self, Ah, AsyncEvents, Budget, Cq, Datagram, GidChoice, Library, Mr, Pd, Qp, QpSpec, QpState, Retry, Route, SendOp,
    SendRequest, Transport, VerbsConfig, VerbsError, VerbsLanes, VerbsPort, devices, flow_label, status_of,
};

#[path = "support/mock.rs"]
mod mock;

use mock::Mock;

const HOME: Domain = Domain(1);
const PATIENCE: Duration = Duration::from_secs(10);

fn port(device: &str) -> VerbsPort {
    VerbsPort { device: device.into(), port: 1, gid: GidChoice::Any, rail: 0, plane: 0 }
}

fn config(device: &str) -> VerbsConfig {
    let mut config = VerbsConfig::new(vec![port(device)], 7);
    config.budget = Budget::new(64);
    config.retry = Some(Retry::new(8, 2, 2, 10).expect("in range"));
    config
}

fn refuses(mock: &Mock, config: VerbsConfig) -> VerbsError {
    match VerbsLanes::open(&mock.library, config) {
        Ok(_) => panic!("opened"),
        Err(e) => e,
    }
}

/// Two ends on one plane, with a lane between them and memory of end 1 open to end 0.
struct Two {
    ends: [VerbsLanes; 2],
    start: Instant,
    arrived: [Vec<Completion>; 2],
    events: [Vec<LaneEvent>; 2],
    lane: [LaneId; 2],
    near: (MrId, Region),
    far: (MrId, Region),
    window: Window,
}

const ALL: WindowAccess = WindowAccess { write: true, read: true, atomic: true };

impl Two {
    fn new(mock: &Mock, configure: impl Fn(&mut VerbsConfig)) -> Two {
        let mut ends = ["h0p0", "h1p0"].map(|name| {
            let mut config = config(name);
            configure(&mut config);
            VerbsLanes::open(&mock.library, config).expect("opens")
        });
        let regions = [0, 1].map(|_| Region::alloc(64 << 10).expect("memory"));
        let mrs = [0, 1].map(|end: usize| ends[end].register(&regions[end]).expect("registered"));
        let lane = [0, 1].map(|end: usize| ends[end].create(&spec()).expect("a lane"));
        let window = ends[1].open_window(HOME, mrs[1], 0, 64 << 10, ALL).expect("a window");
        let [near, far] = regions;
        let mut two = Two {
            ends,
            start: Instant::now(),
            arrived: Default::default(),
            events: Default::default(),
            lane,
            near: (mrs[0], near),
            far: (mrs[1], far),
            window,
        };
        two.connect();
        two
    }

    fn connect(&mut self) {
        let address = [0, 1].map(|end: usize| self.ends[end].address(self.lane[end]).expect("an address"));
        for end in 0..2 {
            self.ends[end].connect(self.lane[end], &address[1 - end]).expect("connects");
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + Span::from(self.start.elapsed())
    }

    fn there(&self, offset: u64) -> Remote {
        Remote { addr: self.window.addr + offset, rkey: self.window.keys[0] }
    }

    fn post(&mut self, id: u64, op: Op, len: u32) {
        let (local, remote) = (Local { mr: self.near.0, offset: 0, len }, self.there(0));
        self.ends[0].post(self.lane[0], &WorkRequest { id, op, local, remote }).expect("room");
    }

    fn step(&mut self) {
        let blank = Completion {
            lane: LaneId(0),
            id: 0,
            what: Completed::Request,
            status: Status::Other,
            rtt: None,
            marks: None,
            retransmits: 0,
        };
        for end in 0..2 {
            let now = self.now();
            self.ends[end].doorbell(now);
            let mut out = [blank; 16];
            let got = self.ends[end].poll(now, &mut out);
            self.arrived[end].extend_from_slice(&out[..got]);
            while let Some(e) = self.ends[end].poll_event() {
                self.events[end].push(e);
            }
        }
    }

    /// Runs until `ready`; panics if that takes too long.
    #[track_caller]
    fn until(&mut self, what: &str, mut ready: impl FnMut(&Two) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !ready(self) {
            assert!(Instant::now() < deadline, "no {what}: {:?} {:?}", self.arrived, self.events);
            self.step();
        }
    }

    /// Waits for so many completions at an end and takes them: id and status.
    #[track_caller]
    fn take(&mut self, end: usize, count: usize) -> Vec<(u64, Status)> {
        self.until("completions", |two| two.arrived[end].len() >= count);
        let taken = std::mem::take(&mut self.arrived[end]);
        assert_eq!(taken.len(), count, "{taken:?}");
        taken.iter().map(|c| (c.id, c.status)).collect()
    }

    #[track_caller]
    fn lane_error(&mut self, end: usize) -> Status {
        let lane = self.lane[end];
        let of = move |e: &LaneEvent| match e {
            LaneEvent::LaneError { lane: l, status } if *l == lane => Some(*status),
            _ => None,
        };
        self.until("lane error", |two| two.events[end].iter().any(|e| of(e).is_some()));
        let all: Vec<Status> = self.events[end].iter().filter_map(of).collect();
        assert_eq!(all.len(), 1, "told once");
        self.events[end].retain(|e| of(e).is_none());
        all[0]
    }
}

fn spec() -> LaneSpec {
    LaneSpec {
        port: PortId(0),
        domain: HOME,
        class: Class::Bulk,
        dscp: Dscp::default(),
        send_depth: 32,
        receive_depth: 16,
        entropy: 5,
    }
}

#[test]
fn absences_are_told_apart() {
    let mock = Mock::new();
    mock.set("list", libc::ENOSYS.into());
    let no_kernel = refuses(&mock, config("h0p0"));
    assert_eq!(no_kernel, VerbsError::NoKernelSupport { errno: libc::ENOSYS });
    mock.set("list", -1);
    mock.set("no_devices", 1);
    let no_device = refuses(&mock, config("h0p0"));
    assert_eq!(no_device, VerbsError::NoDevice);
    mock.set("no_devices", 0);
    let absent = Library::load(Some(Path::new("/nowhere/lib.so"))).expect_err("not there");
    let texts = [no_kernel, no_device, absent].map(|e| {
        assert!(e.is_absence(), "{e:?}");
        e.to_string()
    });
    for (text, next_step) in texts.iter().zip(["load ib_uverbs", "rdma link add", "install rdma-core"]) {
        assert!(text.contains(next_step), "{text}");
    }
    assert!(texts[0] != texts[1] && texts[1] != texts[2] && texts[0] != texts[2]);
    mock.set("list", libc::EMFILE.into());
    assert!(!refuses(&mock, config("h0p0")).is_absence());
}

/// The real library, on whatever machine this is.
#[test]
fn the_installed_library_answers() {
    let library = match Library::load(None) {
        Ok(library) => library,
        Err(e @ VerbsError::LibraryAbsent { .. }) => {
            assert!(std::env::var_os("CI").is_none(), "not skipped under CI: {e}");
            println!("skipped, because {e}");
            return;
        }
        Err(e) => panic!("{e}"),
    };
    match devices(&library) {
        Ok(found) => {
            for device in found {
                println!("{} ({:?}): {:?}", device.name(), verbs::driver_of(&device.sysfs()), device.open());
            }
        }
        Err(e) => assert!(e.is_absence(), "{e}"),
    }
}

#[test]
fn devices_that_cannot_be_used() {
    let mock = Mock::new();
    let unknown = refuses(&mock, config("mlx5_7")).to_string();
    assert!(unknown.contains("mlx5_7") && unknown.contains("h0p0, h0p1, h1p0, h1p1"), "{unknown}");

    mock.set("open", libc::EACCES.into());
    let e = refuses(&mock, config("h0p0"));
    assert!(matches!(&e, VerbsError::NoPermission { path, .. } if path == Path::new("/dev/infiniband/mock0")), "{e:?}");
    assert!(!e.is_absence() && e.to_string().contains("--device"), "{e}");
    mock.set("open", -1);

    let mut wrong = config("h0p0");
    wrong.ports[0].port = 2;
    assert_eq!(refuses(&mock, wrong), VerbsError::NoPort { device: "h0p0".into(), port: 2, ports: 1 });

    let with_gid = |gid| {
        let mut c = config("h0p0");
        c.ports[0].gid = gid;
        c
    };
    let e = refuses(&mock, with_gid(GidChoice::Index(16)));
    assert_eq!(e, VerbsError::GidOutOfRange { device: "h0p0".into(), port: 1, index: 16, len: 16 });
    for (index, what) in [(2, "not of RoCE v2"), (9, "empty")] {
        let e = refuses(&mock, with_gid(GidChoice::Index(index))).to_string();
        assert!(e.contains(what) && e.contains("3 (10.0.0.1)") && e.contains("4 (fd00::1)"), "{e}");
    }
    let e = refuses(&mock, with_gid(GidChoice::Address([10, 9, 9, 9].into())));
    assert!(matches!(e, VerbsError::NoGidFor { .. }), "{e:?}");

    mock.set("link_layer", 1);
    let e = refuses(&mock, config("h0p0"));
    assert!(matches!(e, VerbsError::NotEthernet { link_layer: "InfiniBand", .. }), "{e:?}");
    mock.set("link_layer", -1);

    mock.port_event("h0p0", IBV_EVENT_PORT_ERR, 1, false);
    let e = refuses(&mock, config("h0p0"));
    assert_eq!(e, VerbsError::PortDown { device: "h0p0".into(), port: 1, state: "DOWN" });
    mock.port_event("h0p0", IBV_EVENT_PORT_ACTIVE, 1, false);

    // A routable address before a link-local one, IPv4 before IPv6.
    let lanes = VerbsLanes::open(&mock.library, config("h0p0")).expect("opens");
    assert_eq!(lanes.ports()[0].addr, std::net::IpAddr::from([10, 0, 0, 1]));
    assert_eq!((lanes.ports()[0].mtu, lanes.ports()[0].receive_budget), (4096, None));
}

/// The limit belongs to the process: one test at a time.
static LIMIT: Mutex<()> = Mutex::new(());

#[test]
fn locked_memory() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let _alone = LIMIT.lock().expect("no panic");
    let mock = Mock::new();
    let mut lanes = VerbsLanes::open(&mock.library, config("h0p0")).expect("opens");
    let region = Region::alloc(16 << 20).expect("memory");
    let (soft, hard) = getrlimit(Resource::RLIMIT_MEMLOCK).expect("a limit");
    setrlimit(Resource::RLIMIT_MEMLOCK, (8 << 20).min(hard), hard).expect("lowered");
    mock.fail_registrations(1, libc::ENOMEM);
    let small = lanes.register(&region).expect_err("refused");
    setrlimit(Resource::RLIMIT_MEMLOCK, soft, hard).expect("as it was");
    let LaneError::Device { refusal: DeviceRefusal::LockedMemory, message } = small else { panic!("{small:?}") };
    for part in ["16777216 bytes", "8388608", "ulimit -l", "h0p0"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    // Nothing was lost: the next one succeeds.
    let mr = lanes.register(&region).expect("registered");
    assert!(lanes.deregister(mr));

    mock.fail_registrations(1, libc::ENOMEM);
    let other = lanes.register(&Region::alloc(4096).expect("memory")).expect_err("refused");
    assert!(matches!(other, LaneError::Device { refusal: DeviceRefusal::Exhausted, .. }), "{other:?}");
    mock.fail_registrations(1, libc::EFAULT);
    let other = lanes.register(&region).expect_err("refused");
    assert!(matches!(&other, LaneError::Device { message, .. } if message.contains("read-only")), "{other:?}");
}

#[test]
fn refused_states() {
    let mock = Mock::new();
    let mut two = Two::new(&mock, |_| {});
    mock.refuse_state(IBV_QPS_INIT, libc::EINVAL);
    let e = two.ends[0].create(&spec()).expect_err("no INIT").to_string();
    assert!(e.contains("ibv_modify_qp to INIT"), "{e}");
    mock.refuse_state(IBV_QPS_INIT, 0);

    for (state, errno, name) in [
        (IBV_QPS_RTR, libc::ETIMEDOUT, "to RTR"),
        (IBV_QPS_RTS, libc::EINVAL, "to RTS"),
        (IBV_QPS_RTR, libc::EINVAL, "to RTR"),
    ] {
        let lane = two.ends[0].create(&spec()).expect("a lane");
        let peer = two.ends[1].address(two.lane[1]).expect("an address");
        mock.refuse_state(state, errno);
        let e = two.ends[0].connect(lane, &peer).expect_err("refused");
        mock.refuse_state(state, 0);
        let LaneError::Device { refusal, message } = e else { panic!("{e:?}") };
        assert!(message.contains(name) && message.contains("h0p0"), "{message}");
        assert_eq!(refusal == DeviceRefusal::Unreachable, errno == libc::ETIMEDOUT);
        assert!(
            two.ends[0]
                .post(
                    lane,
                    &WorkRequest {
                        id: 1,
                        op: Op::Send,
                        local: Local { mr: MrId(0), offset: 0, len: 0 },
                        remote: Remote::default(),
                    }
                )
                .is_err()
        );
        two.ends[0].destroy(lane).expect("destroyed");
    }

    // A device that will not go to ERR: the queue pair is ended instead, and everything is flushed.
    two.ends[0].post_receive(two.lane[0], &Receive { id: 50, local: None }).expect("room");
    for id in 0..3 {
        two.post(id, Op::Write, 64);
    }
    mock.refuse_state(IBV_QPS_ERR, libc::EIO);
    two.ends[0].fence(two.lane[0]).expect("fenced all the same");
    mock.refuse_state(IBV_QPS_ERR, 0);
    let all = two.take(0, 4);
    let f = Status::Flushed;
    assert_eq!(all, [(0, f), (1, f), (2, f), (50, f)]);
    let before = read(&two.far.1, 64);
    for _ in 0..50 {
        two.step();
    }
    assert_eq!(read(&two.far.1, 64), before, "nothing lands after a fence");
    assert!(two.events[0].is_empty());
}

fn read(region: &Region, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.read_at(0, &mut bytes).expect("inside");
    bytes
}

/// Every status that a completion may have ends the lane, and every wait on it.
#[test]
fn every_status() {
    let mock = Mock::new();
    for status in IBV_WC_LOC_LEN_ERR..=IBV_WC_TM_RNDV_INCOMPLETE + 1 {
        for receive in [false, true] {
            let mut two = Two::new(&mock, |c| c.timestamps = status % 2 == 0);
            let end = usize::from(receive);
            let qpn = two.ends[end].qpn(two.lane[end]).expect("a queue pair");
            mock.next_status(qpn, receive, status);
            for id in 0..4 {
                two.ends[1].post_receive(two.lane[1], &Receive { id: 100 + id, local: None }).expect("room");
            }
            for id in 0..6 {
                two.post(id, if id < 3 { Op::WriteImm(id as u32) } else { Op::Write }, 32);
            }
            let expected = status_of(status);
            let (count, first) = if receive { (4, 100) } else { (6, 0) };
            let all = two.take(end, count);
            assert_eq!(all[0], (first, expected), "status {status}");
            for (i, &(id, s)) in all.iter().enumerate().skip(1) {
                assert_eq!((id, s), (first + i as u64, Status::Flushed), "status {status}");
            }
            assert_eq!(two.lane_error(end), expected, "status {status}");
            let more = WorkRequest {
                id: 9,
                op: Op::Write,
                local: Local { mr: two.near.0, offset: 0, len: 8 },
                remote: two.there(0),
            };
            if !receive {
                assert!(two.ends[0].post(two.lane[0], &more).is_err(), "a failed lane takes work");
            }
            assert!(two.ends[end].post_receive(two.lane[end], &Receive { id: 1, local: None }).is_err());
        }
    }
}

/// A batch that the device does not take, or takes in part.
#[test]
fn rejected_batches() {
    for batched in [false, true] {
        for taken in 0..4u64 {
            let mock = Mock::new();
            let mut two = Two::new(&mock, |c| c.batched = batched);
            let warm = 5;
            for id in 0..warm {
                two.post(id, Op::Write, 64);
            }
            two.take(0, warm as usize);
            two.ends[0].post_receive(two.lane[0], &Receive { id: 70, local: None }).expect("room");
            mock.refuse_request(taken, libc::ENOMEM);
            for id in 10..14 {
                two.post(id, Op::Write, 64);
            }
            let all = two.take(0, 5);
            let sends: Vec<_> = all.iter().filter(|(id, _)| *id < 70).collect();
            let ids: Vec<u64> = sends.iter().map(|s| s.0).collect();
            assert_eq!(ids, [10, 11, 12, 13], "in order, none twice");
            let good = sends.iter().take_while(|s| s.1 == Status::Success).count() as u64;
            assert!(good <= if batched { 0 } else { taken }, "{good} of {taken} succeeded: {all:?}");
            let errors = sends[good as usize..].iter().filter(|s| s.1 != Status::Flushed).count();
            assert!(errors <= 1, "{all:?}");
            assert!(all.contains(&(70, Status::Flushed)), "{all:?}");
            two.lane_error(0);
            // Another lane lives.
            two.lane = [0, 1].map(|end: usize| two.ends[end].create(&spec()).expect("a lane"));
            two.connect();
            two.post(1, Op::Write, 64);
            assert_eq!(two.take(0, 1), [(1, Status::Success)]);
        }
    }
}

/// A completion queue that overflows: all its lanes end, and so does everything that waits for them.
#[test]
fn full_completion_queue() {
    for timestamps in [false, true] {
        let mock = Mock::new();
        mock.set("cqe", 4);
        let mut two = Two::new(&mock, |c| c.timestamps = timestamps);
        mock.set("cqe", -1);
        for id in 0..20 {
            two.post(id, Op::Write, 64);
        }
        let now = two.now();
        two.ends[0].doorbell(now);
        let all = two.take(0, 20);
        let ids: Vec<u64> = all.iter().map(|c| c.0).collect();
        assert_eq!(ids, (0..20).collect::<Vec<_>>());
        assert!(all.iter().any(|c| c.1 == Status::Other), "{all:?}");
        assert_eq!(two.lane_error(0), Status::Other);
        // The next lane gets a queue that works.
        two.ends[0].destroy(two.lane[0]).expect("destroyed");
        two.lane = [0, 1].map(|end: usize| two.ends[end].create(&spec()).expect("a lane"));
        two.connect();
        two.post(1, Op::Write, 64);
        assert_eq!(two.take(0, 1), [(1, Status::Success)]);
    }
}

#[test]
fn port_events() {
    let mock = Mock::new();
    let mut two = Two::new(&mock, |_| {});
    mock.port_event("h0p0", IBV_EVENT_PORT_ERR, 7, true);
    mock.port_event("h0p0", IBV_EVENT_PORT_ERR, 0, true);
    mock.port_event("h0p0", IBV_EVENT_SM_CHANGE, 1, true);
    mock.port_event("h0p1", IBV_EVENT_PORT_ERR, 1, true);
    mock.port_event("h0p0", IBV_EVENT_PORT_ERR, 1, false);
    two.until("event", |two| !two.events[0].is_empty());
    assert_eq!(two.events[0], [LaneEvent::PortDown(PortId(0))], "another port's number is no event of ours");
    two.events[0].clear();

    // It comes back with another MTU, and its address at another index.
    mock.set("mtu", 3);
    mock.set("gid_shift", 2);
    mock.port_event("h0p0", IBV_EVENT_PORT_ACTIVE, 1, false);
    two.until("event", |two| !two.events[0].is_empty());
    assert_eq!(two.events[0], [LaneEvent::PortUp(PortId(0))]);
    assert_eq!(two.ends[0].ports()[0].mtu, 1024);
    two.lane[0] = two.ends[0].create(&spec()).expect("a lane");
    let peer = two.ends[1].address(two.lane[1]).expect("an address");
    two.ends[0].connect(two.lane[0], &peer).expect("by its address");
    assert_eq!(two.ends[0].lane_mtu(two.lane[0]), Some(1024));

    // An index that moved without an event is found as well.
    mock.set("gid_shift", 1);
    let lane = two.ends[0].create(&spec()).expect("a lane");
    two.ends[0].connect(lane, &peer).expect("looked up again");
}

#[test]
fn queue_pair_and_device_events() {
    let mock = Mock::new();
    for (kind, status) in [
        (IBV_EVENT_QP_FATAL, Status::Other),
        (IBV_EVENT_QP_ACCESS_ERR, Status::RemoteAccess),
        (IBV_EVENT_QP_REQ_ERR, Status::RemoteInvalidRequest),
    ] {
        for work in [false, true] {
            let mut two = Two::new(&mock, |_| {});
            if work {
                two.ends[0].post_receive(two.lane[0], &Receive { id: 3, local: None }).expect("room");
            }
            mock.qp_event(two.ends[0].qpn(two.lane[0]).expect("a queue pair"), kind);
            assert_eq!(two.lane_error(0), status);
            if work {
                assert_eq!(two.take(0, 1), [(3, Status::Flushed)]);
            }
        }
    }
    let mut two = Two::new(&mock, |_| {});
    two.ends[0].post_receive(two.lane[0], &Receive { id: 3, local: None }).expect("room");
    mock.port_event("h0p0", IBV_EVENT_DEVICE_FATAL, 1, true);
    assert_eq!(two.lane_error(0), Status::Other);
    assert_eq!(two.take(0, 1), [(3, Status::Flushed)]);
    assert!(two.events[0].contains(&LaneEvent::PortDown(PortId(0))));
}

#[test]
fn one_reader_for_each_context() {
    let mock = Mock::new();
    let context = devices(&mock.library).expect("devices")[0].open().expect("opens");
    let first = AsyncEvents::new(&context).expect("the first");
    assert!(matches!(AsyncEvents::new(&context), Err(VerbsError::Unsupported { .. })));
    drop(first);
    let mut next = AsyncEvents::new(&context).expect("the next");
    assert_eq!(next.next_event(), None);
}

#[test]
fn budget() {
    let mock = Mock::new();
    let budget = Budget::new(3);
    let mut c = config("h0p0");
    c.budget = budget.clone();
    let mut lanes = VerbsLanes::open(&mock.library, c).expect("opens");
    let made: Vec<LaneId> = (0..3).map(|_| lanes.create(&spec()).expect("within the budget")).collect();
    let e = lanes.create(&spec()).expect_err("beyond the budget");
    let LaneError::Device { refusal: DeviceRefusal::QueuePairBudget, message } = e else { panic!("{e:?}") };
    assert!(message.contains("all 3 queue pairs") && message.contains("raise the budget"), "{message}");
    lanes.destroy(made[1]).expect("destroyed");
    assert_eq!(budget.used("h0p0", 1), 2);
    lanes.create(&spec()).expect("room again");
    mock.set("create", libc::ENOMEM.into());
    lanes.destroy(made[0]).expect("destroyed");
    assert!(lanes.create(&spec()).is_err());
    assert_eq!(budget.used("h0p0", 1), 2, "a failure takes nothing");
    mock.set("create", -1);
    drop(lanes);
    assert_eq!(budget.used("h0p0", 1), 0);
}

#[test]
fn memory_of_other_devices() {
    let mock = Mock::new();
    let context = devices(&mock.library).expect("devices")[0].open().expect("opens");
    let pd = Pd::new(&context).expect("a domain");
    // SAFETY: makes a descriptor, which is ours.
    let fd = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"buffer".as_ptr(), 0)) };
    std::fs::File::from(fd.try_clone().expect("a second handle")).set_len(8192).expect("grown");
    let access = Access::LOCAL_WRITE.and(Access::REMOTE_WRITE);
    let e = Mr::register_dmabuf(&pd, fd.as_fd(), 0, 8192, 0x10_0000, access).expect_err("not offered");
    assert_eq!(e, VerbsError::NoDmaBuf { device: "h0p0".into(), errno: libc::EOPNOTSUPP });
    assert!(e.to_string().contains("host memory"), "{e}");
    mock.set("dmabuf", 1);
    let mr = Mr::register_dmabuf(&pd, fd.as_fd(), 0, 8192, 0x10_0000, access).expect("registered");
    assert_eq!((mr.addr(), mr.len(), mr.region().is_none()), (0x10_0000, 8192, true));
}

#[test]
fn relaxed_ordering_is_asked_for() {
    let mock = Mock::new();
    for relaxed in [false, true] {
        let mut c = config("h0p0");
        c.relaxed_ordering = relaxed;
        let mut lanes = VerbsLanes::open(&mock.library, c).expect("opens");
        lanes.register(&Region::alloc(4096).expect("memory")).expect("registered");
        assert_eq!(mock.last_access() & IBV_ACCESS_RELAXED_ORDERING != 0, relaxed);
    }
}

/// Memory that is lent outlives everyone who let go of it, and one that the device keeps is never freed.
#[test]
fn lent_memory_stays() {
    let mock = Mock::new();
    let context = devices(&mock.library).expect("devices")[0].open().expect("opens");
    let pd = Pd::new(&context).expect("a domain");
    let region = Region::from_vec(vec![3; 4096]);
    let mr = Mr::register(&pd, &region, 0, 4096, Access::LOCAL_WRITE, false).expect("registered");
    let region = region.into_vec().expect_err("the device holds it");
    drop(mr);
    assert_eq!(region.into_vec().expect("given back"), vec![3; 4096]);

    let region = Region::from_vec(vec![4; 4096]);
    let mr = Mr::register(&pd, &region, 0, 4096, Access::LOCAL_WRITE, false).expect("registered");
    mock.set("dereg", libc::EBUSY.into());
    drop(mr);
    mock.set("dereg", -1);
    region.into_vec().expect_err("the device still has it");
}

/// Inline bytes are copied when they are posted, also where the doorbell comes later than the end of their memory.
#[test]
fn inline_bytes_may_go_at_once() {
    for (batched, no_inline) in [(false, false), (true, false), (false, true)] {
        let mock = Mock::new();
        mock.set("no_inline", no_inline.into());
        let mut two = Two::new(&mock, |c| c.batched = batched);
        two.near.1.write_at(0, &[9; 32]).expect("inside");
        two.post(1, Op::Write, 32);
        if !no_inline {
            two.near.1.write_at(0, &[1; 32]).expect("inside");
            let end = &mut two.ends[0];
            assert!(end.deregister(two.near.0));
        }
        assert_eq!(two.take(0, 1), [(1, Status::Success)]);
        assert_eq!(read(&two.far.1, 33), [[9; 32].as_slice(), &[0]].concat());
    }
}

/// Datagrams, with the IP header before the payload.
#[test]
fn datagrams() {
    let mock = Mock::new();
    let found = devices(&mock.library).expect("devices");
    let contexts = [0, 2].map(|i: usize| found[i].open().expect("opens"));
    let pds = [0, 1].map(|i: usize| Pd::new(&contexts[i]).expect("a domain"));
    let mut cqs = [0, 1].map(|i: usize| Cq::new(&contexts[i], None, 16, true).expect("a queue"));
    let spec = QpSpec { transport: Transport::Ud, send_depth: 4, receive_depth: 4, inline: 0, batched: true };
    let mut qps = [0, 1].map(|i: usize| {
        let mut qp = Qp::new(&pds[i], &cqs[i], &cqs[i], &spec).expect("a queue pair");
        assert_eq!(qp.state(), Ok(QpState::Reset));
        qp.init(1, 77).expect("INIT");
        qp.start_datagrams(5).expect("RTS");
        assert_eq!(qp.state(), Ok(QpState::ReadyToSend));
        qp
    });
    let regions = [0, 1].map(|_| Region::alloc(4096).expect("memory"));
    let mrs = [0, 1]
        .map(|i: usize| Mr::register(&pds[i], &regions[i], 0, 4096, Access::LOCAL_WRITE, false).expect("registered"));
    regions[0].write_at(0, b"hello").expect("inside");
    qps[1].post_receive(8, Some(verbs::Local { mr: &mrs[1], offset: 0, len: 100 })).expect("room");
    let route = Route {
        port: 1,
        sgid_index: 3,
        peer: [10, 0, 0, 2].into(),
        flow_label: flow_label(3),
        traffic_class: 2,
        hop_limit: 64,
    };
    let ah = Ah::new(&pds[0], &route).expect("a way");
    let to = Datagram { ah: &ah, qpn: qps[1].qpn(), qkey: 77 };
    let local = verbs::Local { mr: &mrs[0], offset: 0, len: 5 };
    assert_eq!(qps[0].send_datagram(1, local, &to), Ok(true));
    assert_eq!(qps[0].send_datagram(2, verbs::Local { offset: 4095, ..local }, &to), Ok(false));
    let deadline = Instant::now() + PATIENCE;
    let mut got = Vec::new();
    while got.len() < 2 {
        assert!(Instant::now() < deadline, "{got:?}");
        for cq in &mut cqs {
            cq.poll(4, |wc| got.push(*wc)).expect("a queue that works");
        }
    }
    let received = got.iter().find(|wc| wc.wr_id == 8).expect("received");
    assert_eq!((received.status, received.byte_len, received.grh), (0, 45, true));
    assert_eq!(received.src_qpn, qps[0].qpn());
    let bytes = read(&regions[1], 46);
    assert_eq!(
        (bytes[20], &bytes[32..40], &bytes[40..45]),
        (0x45, [10, 0, 0, 1, 10, 0, 0, 2].as_slice(), b"hello".as_slice())
    );
    let nowhere = Ah::new(&pds[0], &Route { peer: [10, 7, 7, 7].into(), ..route }).expect_err("no way there");
    assert_eq!(nowhere.errno(), Some(libc::ENETUNREACH));
}

/// A queue pair says how much it takes, and refuses what is not inside its registration.
#[test]
fn bounds_of_requests() {
    let mock = Mock::new();
    let context = devices(&mock.library).expect("devices")[0].open().expect("opens");
    let pd = Pd::new(&context).expect("a domain");
    let cq = Cq::new(&context, None, 64, false).expect("a queue");
    assert!(Cq::new(&context, None, 0, false).is_err() && Cq::new(&context, None, u32::MAX, false).is_err());
    let region = Region::alloc(4096).expect("memory");
    assert!(matches!(
        Mr::register(&pd, &region, 1, 4096, Access::LOCAL_WRITE, false),
        Err(VerbsError::OutOfBounds { .. })
    ));
    let mr = Mr::register(&pd, &region, 1024, 512, Access::LOCAL_WRITE, false).expect("registered");
    for batched in [false, true] {
        let spec = QpSpec { transport: Transport::Rc, send_depth: 4, receive_depth: 4, inline: 64, batched };
        let mut qp = Qp::new(&pd, &cq, &cq, &spec).expect("a queue pair");
        assert_eq!(qp.is_batched(), batched);
        for (offset, len) in [(0, 513), (512, 1), (u64::MAX, 1), (u64::MAX - 3, 8)] {
            let local = Some(verbs::Local { mr: &mr, offset, len });
            let request = SendRequest { id: 1, op: SendOp::Write, local, remote: (0, 0), inline: true };
            assert!(!qp.post(&request), "{len} bytes at {offset}");
            assert!(qp.post_receive(1, local).is_err(), "{len} bytes at {offset}");
        }
    }
    let wide = QpSpec { transport: Transport::Rc, send_depth: 1 << 20, receive_depth: 1, inline: 0, batched: true };
    assert!(matches!(Qp::new(&pd, &cq, &cq, &wide), Err(VerbsError::Invalid { what: "send depth", .. })));
}
