//! Connections without waiting, and memory that stays with its owner.

use std::net::IpAddr;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use planespray::{
    Class, Connection, Error, Fabric, FabricConfig, JobKey, Listener, Memory, Posted, RemoteWindow, SendOptions,
    WindowAccess,
};

const LONG: Duration = Duration::from_secs(20);

fn open(net: u8, host: u8) -> Fabric {
    let planes: Vec<IpAddr> = vec![[127, 1, net, host].into(), [127, 1, net, host + 1].into()];
    let key = Some(JobKey::from_bytes([net + 1; 32]));
    Fabric::open(&FabricConfig { planes, key, ..FabricConfig::default() }).expect("loopback")
}

fn listen(f: &Fabric) -> Listener {
    f.listen("127.0.0.1:0".parse().expect("an address")).expect("a free port")
}

/// Both ends on one thread.
fn join(a: &Fabric, b: &Fabric) -> (Connection, Connection) {
    let listener = listen(b);
    let mut connecting = a.begin_connect(listener.local_addr(), None, LONG).expect("begins");
    let (mut here, mut there) = (None, None);
    let start = Instant::now();
    while here.is_none() || there.is_none() {
        assert!(start.elapsed() < LONG, "no connection");
        if here.is_none() {
            here = connecting.poll().expect("connects");
        }
        if there.is_none() {
            there = listener.poll_accept().expect("accepts");
        }
    }
    (here.expect("up"), there.expect("up"))
}

/// Registers a vector; it must not be looked at before the registration is dropped.
fn register(f: &Fabric, bytes: &mut [u8]) -> Memory {
    let start = NonNull::new(bytes.as_mut_ptr()).expect("a slice");
    // SAFETY: each test keeps its bytes until the registration is gone, and looks at them afterwards or through operations that
    // are over.
    unsafe { f.register_memory(start, bytes.len()) }.expect("a key")
}

fn wait(posted: &mut Posted) -> Result<usize, Error> {
    let start = Instant::now();
    loop {
        if let Some(result) = posted.test() {
            return result;
        }
        assert!(start.elapsed() < LONG, "not over");
    }
}

fn options(channel: u32) -> SendOptions {
    SendOptions { channel, class: Class::Bulk, rendezvous: false }
}

#[test]
fn messages_go_from_the_callers_memory_to_the_callers_memory() {
    let (fa, fb) = (open(1, 1), open(1, 3));
    let (a, b) = join(&fa, &fb);
    assert_eq!((a.peer_id(), b.peer_id()), (fb.id(), fa.id()));
    let mut from: Vec<u8> = (0..300_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
    let expected = from.clone();
    let mut to = vec![0u8; 400_000];
    for len in [0u64, 1, 100, 5000, 70_000, 300_000 - 7] {
        let (ma, mb) = (register(&fa, &mut from), register(&fb, &mut to));
        let mut receive = b.receive_into(3, &mb, 128, len + 1000).expect("posted");
        let mut send = a.send_from(options(3), &ma, 7, len).expect("posted");
        assert_eq!(wait(&mut receive).expect("received"), len as usize);
        assert_eq!(wait(&mut send).expect("sent"), len as usize);
        assert!(send.take().is_none(), "once");
        drop((ma, mb));
        assert_eq!(to[128..128 + len as usize], expected[7..7 + len as usize], "{len} bytes");
    }
    let mb = register(&fb, &mut to);
    assert!(matches!(b.receive_into(3, &mb, 1, 400_000), Err(Error::Range { .. })));
    assert!(matches!(b.receive_into(3, &mb, u64::MAX, 2), Err(Error::Range { .. })));
}

#[test]
fn a_fabric_connects_to_itself_on_one_thread() {
    let f = open(2, 1);
    let (a, b) = join(&f, &f);
    assert_eq!(a.peer_id(), f.id());
    let (mut from, mut to) = (vec![5u8; 100_000], vec![0u8; 100_000]);
    let (ma, mb) = (register(&f, &mut from), register(&f, &mut to));
    let mut receive = b.receive_into(0, &mb, 0, 100_000).expect("posted");
    let mut send = a.send_from(options(0), &ma, 0, 100_000).expect("posted");
    assert_eq!(wait(&mut receive).expect("received"), 100_000);
    assert_eq!(wait(&mut send).expect("sent"), 100_000);
    drop((ma, mb));
    assert_eq!(to, from);
}

#[test]
fn a_foreign_key_is_used_for_the_peer_it_belongs_to() {
    let (fa, fb) = (open(3, 1), open(3, 3));
    let key = JobKey::from_bytes([4; 32]);
    let listener = listen(&fb);
    let mut wrong = fa.begin_connect(listener.local_addr(), Some(&JobKey::from_bytes([9; 32])), LONG).expect("begins");
    let start = Instant::now();
    let error = loop {
        assert!(start.elapsed() < LONG);
        let _ = listener.poll_accept().expect("goes on");
        match wrong.poll() {
            Ok(up) => assert!(up.is_none(), "another key connected"),
            Err(e) => break e,
        }
    };
    assert!(error.to_string().contains("key"), "{error}");
    let mut right = fa.begin_connect(listener.local_addr(), Some(&key), LONG).expect("begins");
    let (mut here, mut there) = (None, None);
    while here.is_none() || there.is_none() {
        assert!(start.elapsed() < LONG);
        here = here.or_else(|| right.poll().expect("connects"));
        there = there.or_else(|| listener.poll_accept().expect("accepts"));
    }
}

#[test]
fn memory_taken_back_under_a_receive_is_left_alone_and_the_lanes_live() {
    let (fa, fb) = (open(4, 1), open(4, 3));
    let (a, b) = join(&fa, &fb);
    let (mut from, mut to, mut other) = (vec![5u8; 1 << 20], vec![1u8; 1 << 20], vec![0u8; 1 << 20]);
    let (ma, mb, mc) = (register(&fa, &mut from), register(&fb, &mut to), register(&fb, &mut other));
    let receive = b.receive_into(1, &mb, 0, 1 << 20).expect("posted");
    drop((receive, mb));
    to.fill(2);
    let mut send = a.send_from(options(1), &ma, 0, 1 << 20).expect("posted");
    assert_eq!(wait(&mut send).expect("into the void"), 1 << 20);
    assert!(to.iter().all(|&b| b == 2), "written after it was taken back");
    let mut receive = b.receive_into(2, &mc, 0, 1 << 20).expect("posted");
    let mut send = a.send_from(options(2), &ma, 0, 1 << 20).expect("posted");
    assert_eq!(wait(&mut send).expect("sent"), 1 << 20);
    assert_eq!(wait(&mut receive).expect("received"), 1 << 20);
    drop((ma, mc));
    assert_eq!(other, from);
}

#[test]
fn cancelled_sends_end_at_both_ends_and_other_channels_go_on() {
    let (fa, fb) = (open(5, 1), open(5, 3));
    let (a, b) = join(&fa, &fb);
    let (mut from, mut to) = (vec![5u8; 1 << 20], vec![0u8; 1 << 20]);
    let (ma, mb) = (register(&fa, &mut from), register(&fb, &mut to));
    // No receives: nothing can be in flight.
    let mut sends: Vec<Posted> = (0..40).map(|_| a.send_from(options(1), &ma, 0, 1 << 20).expect("posted")).collect();
    let start = Instant::now();
    while a.cancel_sends(1) > 0 {
        assert!(start.elapsed() < LONG);
        fa.progress();
    }
    for send in &mut sends {
        assert!(wait(send).is_err());
    }
    let mut receive = b.receive_into(1, &mb, 0, 1 << 20).expect("posted");
    assert!(wait(&mut receive).is_err(), "the peer gave it up");
    // Receives that the peer will not send to.
    let mut lonely = b.receive_into(9, &mb, 0, 1 << 20).expect("posted");
    b.cancel_receives(9);
    assert!(wait(&mut lonely).is_err());
    b.cancel_receives(77);
    assert_eq!(a.cancel_sends(77), 0);
    // In the middle of a transfer.
    for _ in 0..20 {
        let mut receive = b.receive_into(3, &mb, 0, 1 << 20).expect("posted");
        let mut send = a.send_from(options(3), &ma, 0, 1 << 20).expect("posted");
        while a.cancel_sends(3) > 0 {
            assert!(start.elapsed() < LONG);
            fa.progress();
        }
        let (sent, received) = (wait(&mut send), wait(&mut receive));
        // What was given up with its last chunks in flight may have arrived whole.
        assert!(received.is_ok() || sent.is_err(), "{sent:?} {received:?}");
    }
    let mut receive = b.receive_into(2, &mb, 0, 1 << 20).expect("posted");
    let mut send = a.send_from(options(2), &ma, 0, 1 << 20).expect("posted");
    assert_eq!(wait(&mut send).expect("sent"), 1 << 20);
    assert_eq!(wait(&mut receive).expect("received"), 1 << 20);
}

#[test]
fn windows_of_the_callers_memory_are_written_and_read() {
    let (fa, fb) = (open(6, 1), open(6, 3));
    let (a, b) = join(&fa, &fb);
    let (mut from, mut to, mut back) = (vec![7u8; 50_000], vec![1u8; 60_000], vec![0u8; 50_000]);
    let (ma, mb, mc) = (register(&fa, &mut from), register(&fb, &mut to), register(&fa, &mut back));
    let access = WindowAccess { write: true, read: true, atomic: false };
    assert!(matches!(mb.expose(&b, 60_001, access), Err(Error::Range { .. })));
    let exposed = mb.expose(&b, 55_000, access).expect("a window");
    let window = RemoteWindow::from_bytes(&exposed.token()).expect("a token");
    assert!(matches!(a.write_from(Class::Bulk, &ma, 0, 50_000, &window, 5001), Err(Error::Range { .. })));
    let mut write = a.write_from(Class::Bulk, &ma, 0, 50_000, &window, 5000).expect("posted");
    assert_eq!(write.wait(LONG).expect("in time").expect("written"), 50_000);
    let mut read = a.read_into(Class::Latency, &mc, 0, 50_000, &window, 4000).expect("posted");
    assert!(read.wait(LONG).expect("in time").is_ok());
    assert!(read.wait(LONG).is_none(), "a result is taken once");
    drop((exposed, ma, mb, mc));
    assert!(to[..5000].iter().all(|&b| b == 1) && to[5000..55_000].iter().all(|&b| b == 7));
    assert!(back[..1000].iter().all(|&b| b == 1) && back[1000..].iter().all(|&b| b == 7));
}

#[test]
fn a_loop_of_the_callers_own_sleeps_on_a_descriptor() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let (fa, fb) = (open(7, 1), open(7, 3));
    let (a, b) = join(&fa, &fb);
    let fd = fb.event_fd().expect("a descriptor");
    let (mut from, mut to) = (vec![5u8; 100_000], vec![0u8; 100_000]);
    let (ma, mb) = (register(&fa, &mut from), register(&fb, &mut to));
    let mut receive = b.receive_into(0, &mb, 0, 100_000).expect("posted");
    let mut send = a.send_from(options(0), &ma, 0, 100_000).expect("posted");
    let start = Instant::now();
    let result = loop {
        assert!(start.elapsed() < LONG, "nobody woke us");
        // Nothing here drives: the library's own thread does.
        if receive.is_done() {
            break receive.take().expect("done");
        }
        let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, PollTimeout::from(20_000u16)).expect("poll"), 1, "readable when it is over");
        let _ = nix::unistd::read(fd, &mut [0; 8]).expect("8 bytes");
    };
    assert_eq!(result.expect("received"), 100_000);
    assert_eq!(wait(&mut send).expect("sent"), 100_000);
}
