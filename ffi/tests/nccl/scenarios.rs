//! What the processes of the tests play.

use std::path::Path;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use crate::abi::{HANDLE_BYTES, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, PTR_HOST, REMOTE_ERROR};
use crate::net::{LOGGED, Library, Net, Ptr, VERSIONS};
use crate::play::{Board, Buffer, Deadline, SIZES, Stream, accept, connect, join, join_at, run, wait};

pub fn play(scenario: &str, arguments: &[&str]) {
    let version = || arguments.iter().find_map(|a| a.parse().ok()).expect("a version");
    match scenario {
        "loopback" => loopback(version()),
        "by-name" => by_name(Path::new(arguments[0])),
        "mixed" => mixed(),
        "reload" => reload(version()),
        "misuse" => misuse(version()),
        "nulls" => nulls(),
        "depth" => depth(version()),
        "too-long" => too_long(version()),
        "abort" => abort(version()),
        "abandon" => abandon(version()),
        "hundred" => hundred(version()),
        "accept-again" => accept_again(version()),
        "fork" => fork(version()),
        "pair" => pair(&Rank::new(arguments)),
        "cross" => cross(&Rank::new(arguments)),
        "death" => death(&Rank::new(arguments)),
        "key" => key(&Rank::new(arguments)),
        other => panic!("no scenario {other}"),
    }
}

fn begin(version: u32) -> (Library, Net) {
    let library = Library::open(&crate::build::library());
    let mut net = Net::find(&library, version);
    net.init();
    (library, net)
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("Linux").count()
}

fn logged(part: &str) -> bool {
    LOGGED.lock().expect("no panic").iter().any(|line| line.contains(part))
}

fn loopback(version: u32) {
    let (library, net) = begin(version);
    assert_eq!(net.name(), c"planespray");
    assert_eq!(net.devices(), 1);
    assert_eq!(net.optional_members(), 0);
    let properties = net.properties(0).expect("device 0");
    assert_eq!(properties.name, "planespray0");
    assert_eq!(properties.ptr_support, PTR_HOST);
    assert_eq!(properties.max_recvs, 1);
    assert!(properties.speed > 0 && properties.max_comms >= 1024 && properties.guid != 0, "{properties:?}");
    assert_eq!(properties.max_bytes.is_some(), version >= 9);
    assert!(properties.max_bytes.is_none_or(|n| (1 << 20..=1 << 40).contains(&n)));
    assert_eq!(properties.rail_and_plane, (version >= 12).then_some((-1, -1)));
    assert_eq!(net.properties(1).expect_err("one device"), INVALID_ARGUMENT);
    assert!(logged("planes") && logged("PLANESPRAY_PLANES") && logged("handle's secret"), "{:?}", LOGGED.lock());

    let (send, receive) = join(&net, &net);
    let mut streams = [
        Stream::new(&net, send, true, SIZES, 2 * SIZES.len(), 4, 100),
        Stream::new(&net, receive, false, SIZES, 2 * SIZES.len(), 4, 100),
    ];
    run(&net, &mut streams, 1);
    streams.into_iter().for_each(|s| s.close(&net));
    // As many as NCCL ever has in flight, and receives that fit exactly.
    let mut streams = [
        Stream::new(&net, send, true, &SIZES[..16], 2000, 32, 5).exact(),
        Stream::new(&net, receive, false, &SIZES[..16], 2000, 32, 5).exact(),
    ];
    run(&net, &mut streams, 2);
    streams.into_iter().for_each(|s| s.close(&net));
    // Memory that may be anything when there is nothing to send.
    let receiving = net.irecv(receive, null_mut(), 0, 0, null_mut()).expect("nothing");
    let sending = net.isend(send, null_mut(), 0, 0, null_mut()).expect("nothing");
    assert_eq!((wait(&net, receiving), wait(&net, sending)), (Ok(0), Ok(0)));
    assert_eq!((net.close_send(send), net.close_recv(receive)), (0, 0));
    let mut net = net;
    net.finalize();
    library.close();
}

fn by_name(path: &Path) {
    let library = Library::open(path);
    for version in VERSIONS {
        assert_eq!(Net::find(&library, version).name(), c"planespray");
    }
    for absent in ["ncclNetPlugin_v5", "ncclNetPlugin_v13", "ncclCollNetPlugin_v12", "ncclTunerPlugin_v4"] {
        assert!(library.symbol(absent).is_none(), "{absent}");
    }
    assert!(library.symbol("spray_abi_version").is_some());
    library.close();
}

/// Every version at once, each sending to the next one.
fn mixed() {
    let library = Library::open(&crate::build::library());
    let mut nets: Vec<Net> = VERSIONS.map(|v| Net::find(&library, v)).collect();
    nets.iter_mut().for_each(Net::init);
    for i in 0..nets.len() {
        let (a, b) = (nets[i], nets[(i + 1) % nets.len()]);
        let (send, receive) = join(&a, &b);
        let mut out = Stream::new(&a, send, true, &SIZES[..18], 40, 8, 9);
        let mut into = Stream::new(&b, receive, false, &SIZES[..18], 40, 8, 9);
        let (mut random, deadline) = (crate::play::Random(77), Deadline::new());
        while !(out.is_over() && into.is_over()) {
            out.step(&a, &mut random);
            into.step(&b, &mut random);
            deadline.check("mixed versions");
        }
        out.close(&a);
        into.close(&b);
        assert_eq!((a.close_send(send), b.close_recv(receive)), (0, 0));
    }
    nets.iter_mut().for_each(Net::finalize);
}

fn reload(version: u32) {
    let before = threads();
    for round in 0..5 {
        let (library, mut net) = begin(version);
        // Two communicators, the first of which ends before the second.
        let mut second = Net::find(&library, version);
        second.init();
        let (send, receive) = join(&net, &net);
        let mut streams = [
            Stream::new(&net, send, true, &SIZES[..18], 60, 8, round),
            Stream::new(&net, receive, false, &SIZES[..18], 60, 8, round),
        ];
        run(&net, &mut streams, round + 1);
        streams.into_iter().for_each(|s| s.close(&net));
        assert_eq!((net.close_send(send), net.close_recv(receive)), (0, 0));
        net.finalize();
        let (send, receive) = join(&second, &second);
        let receiving = second.irecv(receive, null_mut(), 0, 0, null_mut()).expect("nothing");
        let sending = second.isend(send, null_mut(), 0, 0, null_mut()).expect("nothing");
        assert_eq!((wait(&second, receiving), wait(&second, sending)), (Ok(0), Ok(0)));
        assert_eq!((second.close_send(send), second.close_recv(receive)), (0, 0));
        let start = Instant::now();
        second.finalize();
        assert!(start.elapsed() < Duration::from_secs(3), "finalize took {:?}", start.elapsed());
        if version >= 11 {
            assert_eq!(threads(), before, "our thread is joined with the last finalize");
        } else {
            assert!(threads() <= before + 1);
        }
        library.close();
    }
}

fn misuse(version: u32) {
    let library = Library::open(&crate::build::library());
    let mut net = Net::find(&library, version);
    assert_eq!(net.properties(0).expect_err("before init"), INTERNAL_ERROR);
    net.init();
    let mut foreign = [7u8; HANDLE_BYTES];
    assert_eq!(net.try_connect(&mut foreign), Err(INVALID_USAGE));
    assert!(logged("not made by planespray"));
    let (listening, handle) = net.listen();
    let mut newer = handle;
    newer[8] = 9;
    assert_eq!(net.try_connect(&mut newer), Err(INVALID_USAGE));
    assert!(logged("version 9") && logged("version 1"), "{:?}", LOGGED.lock());
    // A listener that is closed before anybody comes.
    let mut late = handle;
    assert_eq!(net.close_listen(listening), 0);
    let send = connect(&net, &mut late);
    until_lost(&net, |net| net.isend(send, null_mut(), 0, 0, null_mut()));
    assert_eq!(net.close_send(send), 0);

    let (send, receive) = join(&net, &net);
    let mut bytes = vec![0u8; 4096];
    let data: Ptr = bytes.as_mut_ptr().cast();
    assert_eq!(net.reg_mr(send, data, 4096, 2), Err(INVALID_ARGUMENT));
    assert!(logged("host memory"));
    assert_eq!(net.reg_mr(send, null_mut(), 4096, PTR_HOST), Err(INVALID_ARGUMENT));
    let handle = net.reg_mr(send, data, 4096, PTR_HOST).expect("registered");
    let again = net.reg_mr(receive, data, 100, PTR_HOST).expect("registered a second time");
    assert_eq!(net.isend(receive, data, 8, 0, handle), Err(INTERNAL_ERROR));
    assert_eq!(net.irecv(send, data, 8, 0, handle), Err(INTERNAL_ERROR));
    assert_eq!(net.isend(send, data, 4097, 0, handle), Err(INVALID_ARGUMENT));
    assert_eq!(net.isend(send, data.wrapping_byte_add(4090), 8, 0, handle), Err(INVALID_ARGUMENT));
    assert_eq!(net.isend(send, data.wrapping_byte_sub(1), 1, 0, handle), Err(INVALID_ARGUMENT));
    assert_eq!(net.isend(send, data, 8, 0, null_mut()), Err(INVALID_ARGUMENT));
    assert_eq!(net.isend(null_mut(), data, 8, 0, handle), Err(INTERNAL_ERROR));
    let (mut d, mut s, mut t, mut h) = ([data; 2], [8; 2], [0; 2], [handle; 2]);
    assert_eq!(net.irecv_group(receive, &mut d, &mut s, &mut t, &mut h, null_mut()), Err(INVALID_USAGE));
    assert_eq!(net.test(null_mut()), Err(INTERNAL_ERROR));
    assert_eq!(net.close_recv(send), INTERNAL_ERROR);
    if version < 8 {
        assert_eq!(net.isend(send, data, usize::MAX, 0, handle), Err(INVALID_ARGUMENT));
    }
    // All that was refused has left the ends as they were.
    let receiving = net.irecv(receive, data.wrapping_byte_add(50), 50, 0, again).expect("begun");
    let sending = net.isend(send, data.wrapping_byte_add(2000), 50, 0, handle).expect("begun");
    assert_eq!((wait(&net, receiving), wait(&net, sending)), (Ok(50), Ok(50)));
    net.dereg_mr(send, handle);
    net.dereg_mr(receive, again);
    net.dereg_mr(send, null_mut());
    assert_eq!((net.close_send(send), net.close_recv(receive)), (0, 0));
    assert_eq!((net.close_send(null_mut()), net.close_recv(null_mut()), net.close_listen(null_mut())), (0, 0, 0));
    net.finalize();
}

fn nulls() {
    let library = Library::open(&crate::build::library());
    for version in [11, 6] {
        let mut net = Net::find(&library, version);
        assert_eq!(net.init_with(None, -1), 0);
        assert_eq!(net.devices(), 1);
        let (send, receive) = join(&net, &net);
        // A warning without a logger.
        assert_eq!(net.test(null_mut()), Err(INTERNAL_ERROR));
        assert_eq!((net.close_send(send), net.close_recv(receive)), (0, 0));
        net.finalize();
    }
}

fn depth(version: u32) {
    let (_library, net) = begin(version);
    let (send, receive) = join(&net, &net);
    let mut out = Buffer::new(&net, send, 1 << 20);
    let mut into = Buffer::new(&net, receive, 1 << 20);
    // Sends first: they begin by themselves and wait for their receives.
    let sends: Vec<Ptr> = (0..32).map(|_| net.isend(send, out.ptr(), 1 << 20, 0, out.handle).expect("isend")).collect();
    assert!(sends.iter().all(|r| !r.is_null()));
    assert!(net.isend(send, out.ptr(), 1, 0, out.handle).expect("no error").is_null(), "the 33rd waits");
    let receives: Vec<Ptr> =
        (0..32).map(|_| net.irecv(receive, into.ptr(), 1 << 20, 0, into.handle).expect("irecv")).collect();
    assert!(receives.iter().all(|r| !r.is_null()));
    assert!(net.irecv(receive, into.ptr(), 1, 0, into.handle).expect("no error").is_null(), "the 33rd waits");
    // A caller that only tries to begin more: that alone must drive what is there.
    let deadline = Deadline::new();
    let mut tested = false;
    let more = loop {
        let more = net.isend(send, out.ptr(), 5, 0, out.handle).expect("no error");
        if !more.is_null() {
            break more;
        }
        // Its slot is free only when a request was seen to be over.
        tested = tested || net.test(sends[0]).expect("test").is_some();
        if tested {
            continue;
        }
        deadline.check("a free request");
    };
    for &r in sends[1..].iter().rev() {
        assert_eq!(wait(&net, r), Ok(1 << 20));
    }
    for &r in &receives {
        assert_eq!(wait(&net, r), Ok(1 << 20));
    }
    let last = net.irecv(receive, into.ptr(), 10, 0, into.handle).expect("irecv");
    assert_eq!((wait(&net, more), wait(&net, last)), (Ok(5), Ok(5)));
    out.close(&net);
    into.close(&net);
    assert_eq!((net.close_send(send), net.close_recv(receive)), (0, 0));
}

fn too_long(version: u32) {
    let (_library, net) = begin(version);
    for (sent, room) in [(100, 99), (8, 0), (5000, 4999), (1 << 20, 1000), (2 << 20, 1 << 20)] {
        let (send, receive) = join(&net, &net);
        let mut out = Buffer::new(&net, send, sent);
        let mut into = Buffer::new(&net, receive, sent);
        into.fill(1, sent);
        let before = into.bytes()[room..].to_vec();
        let receiving = net.irecv(receive, into.ptr(), room, 0, into.handle).expect("irecv");
        let sending = net.isend(send, out.ptr(), sent, 0, out.handle).expect("isend");
        assert_eq!(wait(&net, receiving), Err(INVALID_USAGE), "{sent} into {room}: {:?}", LOGGED.lock());
        // A small message is out of its sender's hands before anybody sees that it does not fit.
        let code = wait(&net, sending);
        assert!(code == Err(INVALID_USAGE) || (sent <= 3072 && code == Ok(sent)), "{sent} into {room}: {code:?}");
        assert_eq!(into.bytes()[room..], before, "written behind the receive");
        out.close(&net);
        into.close(&net);
        assert_eq!((net.close_send(send), net.close_recv(receive)), (0, 0));
    }
}

/// Sends until a test tells of the loss. What is sent before the news of it comes may seem to arrive.
fn until_lost(net: &Net, mut send: impl FnMut(&Net) -> Result<Ptr, i32>) {
    let deadline = Deadline::new();
    loop {
        let request = send(net).expect("the loss is told by test");
        assert!(!request.is_null());
        match wait(net, request) {
            Ok(_) => deadline.check("news of the loss"),
            Err(code) => return assert_eq!(code, REMOTE_ERROR, "{:?}", LOGGED.lock()),
        }
    }
}

fn abort(version: u32) {
    let (_library, net) = begin(version);
    let (other_send, other_receive) = join(&net, &net);
    for deregister_first in [false, true] {
        // Receives that nobody sends to, and then somebody does.
        let (send, receive) = join(&net, &net);
        let mut out = Buffer::new(&net, send, 1 << 20);
        let mut into = Buffer::new(&net, receive, 1 << 20);
        for _ in 0..20 {
            assert!(!net.irecv(receive, into.ptr(), 1 << 20, 0, into.handle).expect("irecv").is_null());
        }
        if deregister_first {
            net.dereg_mr(receive, into.handle);
            assert_eq!(net.close_recv(receive), 0);
        } else {
            assert_eq!(net.close_recv(receive), 0);
        }
        let before = into.bytes().to_vec();
        until_lost(&net, |net| net.isend(send, out.ptr(), 1 << 20, 0, out.handle));
        assert_eq!(into.bytes(), before, "written after it was given back");
        net.dereg_mr(send, out.handle);
        assert_eq!(net.close_send(send), 0);

        // Sends that nobody takes, and sends in the middle of their way.
        for taken in [false, true] {
            let (send, receive) = join(&net, &net);
            let mut out = Buffer::new(&net, send, 4 << 20);
            let mut into = Buffer::new(&net, receive, 4 << 20);
            let mut receives = Vec::new();
            if taken {
                receives.push(net.irecv(receive, into.ptr(), 4 << 20, 0, into.handle).expect("irecv"));
            }
            for _ in 0..10 {
                let request = net.isend(send, out.ptr(), 4 << 20, 0, out.handle).expect("isend");
                assert!(!request.is_null());
                let _ = net.test(request).expect("no error yet");
            }
            let start = Instant::now();
            if deregister_first {
                net.dereg_mr(send, out.handle);
            }
            assert_eq!(net.close_send(send), 0);
            assert!(start.elapsed() < Duration::from_secs(3), "closing took {:?}", start.elapsed());
            receives.push(net.irecv(receive, into.ptr(), 4 << 20, 0, into.handle).expect("irecv"));
            let last = receives.pop().expect("one");
            assert_eq!(wait(&net, last), Err(REMOTE_ERROR));
            for request in receives {
                // What was sent whole before it was given up may have arrived.
                let code = wait(&net, request);
                assert!(code == Ok(4 << 20) || code == Err(REMOTE_ERROR), "{code:?}");
            }
            net.dereg_mr(receive, into.handle);
            assert_eq!(net.close_recv(receive), 0);
        }
    }
    let mut streams = [
        Stream::new(&net, other_send, true, SIZES, 100, 8, 4),
        Stream::new(&net, other_receive, false, SIZES, 100, 8, 4),
    ];
    run(&net, &mut streams, 3);
    streams.into_iter().for_each(|s| s.close(&net));
    let mut net = net;
    assert_eq!((net.close_send(other_send), net.close_recv(other_receive)), (0, 0));
    net.finalize();
}

fn abandon(version: u32) {
    let before = threads();
    let fds = || std::fs::read_dir("/proc/self/fd").expect("Linux").count();
    let open = fds();
    for _ in 0..20 {
        let (library, mut net) = begin(version);
        let (_listening, handle) = net.listen();
        let mut to_nobody = handle;
        // Another process's handle at a port where nobody answers.
        to_nobody[12..14].copy_from_slice(&9u16.to_le_bytes());
        to_nobody[64] ^= 0xff;
        for _ in 0..3 {
            assert!(net.try_connect(&mut to_nobody).expect("it is tried").is_null());
        }
        let mut own = handle;
        let _ = net.try_connect(&mut own).expect("begun");
        net.finalize();
        library.close();
    }
    assert_eq!(threads(), before);
    assert!(fds() <= open + 2, "{} descriptors, {open} before", fds());
}

fn hundred(version: u32) {
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
        text.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).expect("a number") * 4096
    };
    let (library, mut net) = begin(version);
    let mut first = Vec::new();
    let before = threads();
    let round = |rounds: u64, keep: &mut Vec<(Ptr, Ptr)>| {
        for i in 0..rounds {
            let (send, receive) = join(&net, &net);
            let mut streams = [
                Stream::new(&net, send, true, &SIZES[..12], 24, 4, i),
                Stream::new(&net, receive, false, &SIZES[..12], 24, 4, i),
            ];
            run(&net, &mut streams, i + 1);
            streams.into_iter().for_each(|s| s.close(&net));
            keep.push((send, receive));
        }
    };
    round(10, &mut first);
    let memory = resident();
    round(100, &mut first);
    assert_eq!(threads(), before, "no thread per communicator");
    let grown = resident().saturating_sub(memory);
    assert!(grown < 100 * 64 * 1024, "100 communicators took {} KiB", grown / 1024);
    for (send, receive) in first {
        assert_eq!((net.close_send(send), net.close_recv(receive)), (0, 0));
    }
    net.finalize();
    library.close();
}

fn accept_again(version: u32) {
    let (_library, net) = begin(version);
    let (listening, handle) = net.listen();
    let mut ends = Vec::new();
    for i in 0..5 {
        let mut copy = handle;
        ends.push(join_at(&net, &net, listening, &mut copy));
        assert_eq!(ends.len(), i + 1);
    }
    assert_eq!(net.close_listen(listening), 0);
    let mut streams: Vec<Stream> = Vec::new();
    for (i, &(send, receive)) in ends.iter().enumerate() {
        streams.push(Stream::new(&net, send, true, &SIZES[..18], 30, 4, 1000 * i as u64));
        streams.push(Stream::new(&net, receive, false, &SIZES[..18], 30, 4, 1000 * i as u64));
    }
    run(&net, &mut streams, 8);
    streams.into_iter().for_each(|s| s.close(&net));
}

fn fork(version: u32) {
    // The test harness has threads, so the child must not touch anything of theirs: it begins anew by exec. What is inherited
    // is a library that was opened and not initialized.
    let library = Library::open(&crate::build::library());
    let mut net = Net::find(&library, version);
    // SAFETY: the child calls only what is allowed between fork and exit: raw system calls through the plugin's own init are
    // not, so it only looks at the table and leaves.
    match unsafe { libc::fork() } {
        -1 => panic!("fork failed"),
        0 => {
            let good = net.name() == c"planespray";
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(i32::from(!good)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: a child of ours.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
    }
    net.init();
    let (send, receive) = join(&net, &net);
    // After init a child may live, as data loaders do, as long as it leaves us alone.
    // SAFETY: as above.
    match unsafe { libc::fork() } {
        -1 => panic!("fork failed"),
        // SAFETY: as above.
        0 => unsafe { libc::_exit(0) },
        child => {
            let mut status = 0;
            // SAFETY: a child of ours.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        }
    }
    let mut streams =
        [Stream::new(&net, send, true, SIZES, 40, 4, 2), Stream::new(&net, receive, false, SIZES, 40, 4, 2)];
    run(&net, &mut streams, 3);
    streams.into_iter().for_each(|s| s.close(&net));
    assert_eq!((net.close_send(send), net.close_recv(receive)), (0, 0));
    net.finalize();
}

/// One of two processes.
struct Rank {
    rank: usize,
    board: Board,
    rest: Vec<u32>,
}

impl Rank {
    fn new(arguments: &[&str]) -> Rank {
        let rank = arguments[0].parse().expect("a rank");
        let rest = arguments[2..].iter().map(|a| a.parse().expect("a number")).collect();
        Rank { rank, board: Board(arguments[1].into()), rest }
    }

    fn version(&self) -> u32 {
        *self.rest.get(self.rank).or(self.rest.first()).unwrap_or(&12)
    }

    fn listen(&self, net: &Net, name: &str) -> Ptr {
        let (listening, handle) = net.listen();
        self.board.post(&format!("{name}-{}", self.rank), &handle);
        listening
    }

    fn peers_handle(&self, name: &str) -> [u8; HANDLE_BYTES] {
        self.board.take(&format!("{name}-{}", 1 - self.rank)).try_into().expect("128 bytes")
    }

    fn meet(&self, name: &str) {
        self.board.post(&format!("{name}-here-{}", self.rank), b"");
        self.board.take(&format!("{name}-here-{}", 1 - self.rank));
    }
}

/// Two communicators in each direction, each on a thread of its own.
fn pair(rank: &Rank) {
    let (library, net) = begin(rank.version());
    std::thread::scope(|scope| {
        for i in 0..4u64 {
            scope.spawn(move || {
                let name = format!("comm{i}");
                let sending = (i % 2 == 0) == (rank.rank == 0);
                let (comm, stream) = if sending {
                    let comm = connect(&net, &mut rank.peers_handle(&name));
                    (comm, Stream::new(&net, comm, true, SIZES, 150, 8, 10_000 * i))
                } else {
                    let listening = rank.listen(&net, &name);
                    let comm = accept(&net, listening);
                    assert_eq!(net.close_listen(listening), 0);
                    (comm, Stream::new(&net, comm, false, SIZES, 150, 8, 10_000 * i))
                };
                let mut streams = [stream];
                run(&net, &mut streams, i + 1);
                streams.into_iter().for_each(|s| s.close(&net));
                let code = if sending { net.close_send(comm) } else { net.close_recv(comm) };
                assert_eq!(code, 0);
            });
        }
    });
    rank.meet("end");
    let mut net = net;
    net.finalize();
    library.close();
}

/// Both directions on one thread, and both ends dial first.
fn cross(rank: &Rank) {
    let (library, mut net) = begin(rank.version());
    let listening = rank.listen(&net, "cross");
    let mut handle = rank.peers_handle("cross");
    let (mut send, mut receive): (Ptr, Ptr) = (null_mut(), null_mut());
    let deadline = Deadline::new();
    while send.is_null() || receive.is_null() {
        if send.is_null() {
            send = net.try_connect(&mut handle).expect("connects");
        }
        if receive.is_null() {
            receive = net.try_accept(listening);
        }
        deadline.check("both dial");
    }
    let mut streams =
        [Stream::new(&net, send, true, SIZES, 100, 8, 50), Stream::new(&net, receive, false, SIZES, 100, 8, 50)];
    run(&net, &mut streams, 5);
    streams.into_iter().for_each(|s| s.close(&net));
    rank.meet("end");
    assert_eq!((net.close_send(send), net.close_recv(receive), net.close_listen(listening)), (0, 0, 0));
    net.finalize();
    library.close();
}

fn death(rank: &Rank) {
    let (_library, net) = begin(rank.version());
    if rank.rank == 1 {
        let listening = rank.listen(&net, "death");
        let _comm = accept(&net, listening);
        rank.meet("ready");
        // SAFETY: ends this process at once, as a crash does.
        unsafe { libc::_exit(9) };
    }
    let send = connect(&net, &mut rank.peers_handle("death"));
    rank.meet("ready");
    let mut out = Buffer::new(&net, send, 1 << 20);
    let start = Instant::now();
    let request = net.isend(send, out.ptr(), 1 << 20, 0, out.handle).expect("isend");
    assert_eq!(wait(&net, request), Err(REMOTE_ERROR), "{:?}", LOGGED.lock());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    // It stays that way, and is logged once.
    if let Ok(request) = net.isend(send, out.ptr(), 8, 0, out.handle) {
        assert_eq!(wait(&net, request), Err(REMOTE_ERROR));
    }
    let lines: Vec<String> = LOGGED.lock().expect("no panic").iter().filter(|l| l.contains("gone")).cloned().collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    println!("{}", lines[0]);
    out.close(&net);
    assert_eq!(net.close_send(send), 0);
}

fn key(rank: &Rank) {
    if rank.rank == 1 {
        // SAFETY: this process has no other thread that reads the environment now.
        unsafe { std::env::set_var("PLANESPRAY_JOB_KEY", "1234567890abcdef".repeat(4)) };
    }
    let (_library, net) = begin(rank.version());
    let _listening = rank.listen(&net, "key");
    let mut theirs = rank.peers_handle("key");
    assert_eq!(net.try_connect(&mut theirs), Err(INVALID_USAGE));
    assert!(logged("PLANESPRAY_JOB_KEY on all nodes"), "{:?}", LOGGED.lock());
    // With the same key on both ends of one process it works.
    let (send, receive) = join(&net, &net);
    assert_eq!((net.close_send(send), net.close_recv(receive)), (0, 0));
    rank.meet("end");
}
