//! What a chunk costs in the verbs backend beyond the device's own library: `cargo run --release --example verbs_cost`.
//!
//! The mock library completes requests without doing anything. The same requests go to it once by bare calls of
//! `ibv_post_send` and `ibv_poll_cq`, and once by [`VerbsLanes`]: what is left between the two is ours. The goal is
//! 25 ns, so that chunks of 16 KiB leave room at 1.6 Tb/s, where there is one every 82 ns.
//!
//! With an argument (`bare`, `chain` or `wr`) that way alone is taken, once: for `valgrind --tool=callgrind`, whose counts
//! of instructions are the same on a busy machine.

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("skipped, because libibverbs is for Linux");
}

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(target_os = "linux")]
#[path = "../tests/support/mock.rs"]
mod mock;

#[cfg(target_os = "linux")]
mod linux {
    use planespray::class::{Class, Dscp};
    use planespray::lanes::{
        Completed, Completion, Control, Domain, LaneId, LaneSpec, Lanes, Local, Op, PortId, Remote, Status, WorkRequest,
    };
    use planespray::mem::Region;
    use planespray::time::{Span, Time};
    use planespray::verbs::sys::*;
    use planespray::verbs::{Budget, GidChoice, VerbsConfig, VerbsLanes, VerbsPort};

    /// Chunks of one doorbell.
    const BATCH: usize = 16;
    const ROUNDS: usize = 100_000;
    const TRIES: usize = 7;

    pub(super) fn main() {
        let mock = super::mock::Mock::new();
        mock.set("empty_post", 1);
        if let Some(way) = std::env::args().nth(1) {
            let took = match way.as_str() {
                "bare" => bare(&mock),
                "chain" => ours(&mock, false),
                "wr" => ours(&mock, true),
                other => panic!("{other} is none of bare, chain and wr"),
            };
            println!("{way}: {took:.1} ns for each of {} chunks", ROUNDS * BATCH);
            return;
        }
        let bare = least(|| bare(&mock));
        println!("bare ibv_post_send and ibv_poll_cq: {bare:.1} ns for a chunk, {BATCH} for a doorbell");
        for (batched, name) in [(false, "one chained ibv_post_send"), (true, "ibv_wr_*")] {
            let ours = least(|| ours(&mock, batched));
            let beyond = ours - bare;
            let goal = if beyond <= 25.0 { "within" } else { "above" };
            println!("lanes by {name}: {ours:.1} ns, {beyond:.1} ns beyond the bare calls ({goal} the goal of 25 ns)");
        }
    }

    /// CPU time of this thread: others may run beside it.
    fn cpu_ns() -> u64 {
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: fills a structure of our own.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
        t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
    }

    /// The least of several measurements: others disturb, nothing helps.
    fn least(mut measure: impl FnMut() -> f64) -> f64 {
        (0..TRIES).map(|_| measure()).fold(f64::INFINITY, f64::min)
    }

    fn open(mock: &super::mock::Mock, batched: bool) -> VerbsLanes {
        let port = VerbsPort { device: "h0p0".into(), port: 1, gid: GidChoice::Any, rail: 0, plane: 0 };
        let mut config = VerbsConfig::new(vec![port], 1);
        (config.batched, config.timestamps, config.inline) = (batched, false, 0);
        config.budget = Budget::new(8);
        VerbsLanes::open(&mock.library, config).expect("the mock's device opens")
    }

    fn ours(mock: &super::mock::Mock, batched: bool) -> f64 {
        let mut lanes = open(mock, batched);
        let region = Region::alloc(1 << 20).expect("memory");
        let mr = lanes.register(&region).expect("registered");
        let spec = LaneSpec {
            port: PortId(0),
            domain: Domain(0),
            class: Class::Bulk,
            dscp: Dscp::default(),
            send_depth: 64,
            receive_depth: 64,
            entropy: 1,
        };
        let lane = lanes.create(&spec).expect("a lane");
        let peer = lanes.address(lane).expect("an address");
        lanes.connect(lane, &peer).expect("connects");
        let blank = Completion {
            lane,
            id: 0,
            what: Completed::Request,
            status: Status::Other,
            rtt: None,
            marks: None,
            retransmits: 0,
        };
        let mut out = [blank; 2 * BATCH];
        let mut done = 0;
        let start = cpu_ns();
        for round in 0..ROUNDS {
            let now = Time::ZERO + Span::from_nanos(1000 * round as u64);
            for i in 0..BATCH {
                let wr = WorkRequest {
                    id: i as u64,
                    op: Op::WriteImm(i as u32),
                    local: Local { mr, offset: (i * 16_384) as u64, len: 16_384 },
                    remote: Remote { addr: (i * 16_384) as u64, rkey: 7 },
                };
                lanes.post(lane, &wr).expect("room");
            }
            lanes.doorbell(now);
            let got = lanes.poll(now, &mut out);
            done += out[..got].iter().filter(|c| c.status == Status::Success && c.lane != LaneId(0)).count();
        }
        let took = cpu_ns() - start;
        assert_eq!(done, ROUNDS * BATCH, "every chunk completed");
        took as f64 / done as f64
    }

    /// The same, as a program in C would do it with requests that are filled in for each batch.
    fn bare(mock: &super::mock::Mock) -> f64 {
        let lanes = open(mock, false);
        let context = lanes.context(PortId(0)).expect("a device").as_ptr();
        // SAFETY: the context is open, and its table of functions filled in.
        let (post, poll) =
            unsafe { ((*context).ops.post_send.expect("there"), (*context).ops.poll_cq.expect("there")) };
        // SAFETY: pointers and numbers may be zero.
        let mut wrs: [ibv_send_wr; BATCH] = unsafe { std::mem::zeroed() };
        let mut sges = [ibv_sge { addr: 0, length: 0, lkey: 0 }; BATCH];
        // SAFETY: as above.
        let mut wcs: [ibv_wc; 2 * BATCH] = unsafe { std::mem::zeroed() };
        let mut done = 0;
        let start = cpu_ns();
        for _ in 0..ROUNDS {
            for i in 0..BATCH {
                sges[i] = ibv_sge { addr: (i * 16_384) as u64, length: 16_384, lkey: 3 };
                let wr = &mut wrs[i];
                (wr.wr_id, wr.num_sge, wr.opcode) = (i as u64, 1, IBV_WR_RDMA_WRITE_WITH_IMM);
                wr.send_flags = IBV_SEND_SIGNALED;
                wr.__bindgen_anon_1.imm_data = (i as u32).to_be();
                wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: (i * 16_384) as u64, rkey: 7 };
            }
            let (first, pieces) = (wrs.as_mut_ptr(), sges.as_mut_ptr());
            for i in 0..BATCH {
                // SAFETY: inside the arrays.
                unsafe {
                    (*first.add(i)).sg_list = pieces.add(i);
                    (*first.add(i)).next = if i + 1 < BATCH { first.add(i + 1) } else { std::ptr::null_mut() };
                }
            }
            let mut bad = std::ptr::null_mut();
            // SAFETY: the mock looks at neither queue, and the chain is whole.
            let got = unsafe {
                assert_eq!(post(std::ptr::null_mut(), first, &mut bad), 0);
                poll(std::ptr::null_mut(), 2 * BATCH as i32, wcs.as_mut_ptr())
            };
            done += wcs[..got as usize].iter().filter(|wc| wc.status == IBV_WC_SUCCESS).count();
        }
        let took = cpu_ns() - start;
        assert_eq!(done, ROUNDS * BATCH, "every request completed");
        took as f64 / done as f64
    }
}
