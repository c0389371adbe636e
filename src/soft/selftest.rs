//! The wire-ID self-test: does this host write the IPv4 identification fields that our ICRCs are made for?
//!
//! The receiver's ID-blind check cannot tell: it recovers whatever the sender assumed. So a [`ProbeResponder`] reads
//! the field off the packets themselves: an unprivileged classic BPF filter cuts each one to a length that is its
//! identification plus one, and the byte that always remains is the packet's index in its burst.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use socket2::SockAddr;

use super::SoftError;
use super::ports::Port;
use super::udp::{MAX_BURST, MAX_SEGMENTS, Pmtu, PollSet, Sock, with_scope};

/// Shortest probe packet, UDP payload in bytes: long enough that every identification of a burst fits.
pub const PROBE_MIN: usize = 256;
/// An identification too large to be read, or none (IPv6).
pub const ID_UNREADABLE: u16 = u16::MAX;

/// Bytes that a responder's socket holds: the probes of several peers' ports at once.
const RECEIVE_BUFFER: usize = 1 << 20;

/// What a responder saw of one burst: identification by index of the packet; `None` did not arrive.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct ProbeReport {
    /// One entry per packet of the burst.
    pub ids: Vec<Option<u16>>,
}

impl ProbeReport {
    /// Judges the report on a burst of `sent` packets from `addr`, sent in one call (`gso`) or one by one.
    /// A report made by a peer may be of any length.
    ///
    /// # Errors
    /// [`SoftError::ProbeLost`] if any is missing, [`SoftError::WireIds`] if any carried a wrong identification.
    pub fn verdict(&self, addr: IpAddr, sent: usize, gso: bool) -> Result<(), SoftError> {
        let got = self.ids.iter().take(sent).flatten().count();
        if got < sent {
            return Err(SoftError::ProbeLost { addr, sent: sent as u16, got: got as u16 });
        }
        if addr.is_ipv6() {
            return Ok(());
        }
        let expected = |index: usize| if gso { index as u16 } else { 0 };
        match self.ids.iter().take(sent).flatten().enumerate().find(|&(i, &id)| id != expected(i)) {
            Some((index, &seen)) => Err(SoftError::WireIds { addr, index: index as u16, seen }),
            None => Ok(()),
        }
    }
}

/// The receiving half of the self-test, at the peer or here.
pub struct ProbeResponder {
    sock: Sock,
    poll: PollSet,
}

impl ProbeResponder {
    pub(super) fn open(port: &Port) -> Result<Self, SoftError> {
        let sock = Sock::bind(with_scope(port.addr().ip(), 0, port.scope), Pmtu::Probe)?;
        // ldh [SKF_NET_OFF + 4]; add 9; ret a: UDP header, index, and as many bytes as the identification says.
        let id = (libc::SKF_NET_OFF + 4) as u32;
        sock.attach_filter(&[(0x28, 0, 0, id), (0x04, 0, 0, 9), (0x16, 0, 0, 0)])?;
        sock.set_receive_buffer(RECEIVE_BUFFER)?;
        let poll = PollSet::new(&[sock.as_raw_fd()]);
        Ok(ProbeResponder { sock, poll })
    }

    /// Where probes are to be sent.
    pub fn addr(&self) -> SocketAddr {
        self.sock.local()
    }

    /// Becomes readable when a probe arrives.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.sock.as_fd()
    }

    /// Takes in what is there, at most 1,024 packets, and gives for each where it is from, its first byte, and its
    /// identification if that can be read.
    pub fn take(&mut self, mut sink: impl FnMut(IpAddr, u8, Option<u16>)) {
        let mut buf = [0; 9216];
        for _ in 0..1024 {
            // An error of a socket that only takes probes is a probe that did not arrive.
            let Ok(Some(arrival)) = self.sock.receive(&mut buf) else { return };
            if arrival.len > 0 {
                sink(arrival.from.ip(), buf[0], identification(arrival.len));
            }
        }
    }

    /// Takes in what `from` has sent, until all `expect` packets of a burst are there or `timeout` is over.
    ///
    /// # Errors
    /// [`SoftError::Config`] if `expect` is not in 1..=64; a failed call. Missing packets are no error here.
    pub fn collect(&mut self, from: IpAddr, expect: usize, timeout: Duration) -> Result<ProbeReport, SoftError> {
        if !(1..=MAX_SEGMENTS).contains(&expect) {
            return Err(SoftError::Config { what: "a probe burst has 1 to 64 packets" });
        }
        let addr = self.sock.local();
        let end = Instant::now() + timeout;
        let mut report = ProbeReport { ids: vec![None; expect] };
        let mut buf = vec![0; 9216];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if report.ids.iter().all(Option::is_some) || left.is_zero() {
                return Ok(report);
            }
            let arrived =
                self.sock.receive(&mut buf).map_err(|errno| SoftError::Call { call: "recvmsg", errno, addr })?;
            let Some(arrival) = arrived else {
                self.poll.wait(left).map_err(|errno| SoftError::Call { call: "ppoll", errno, addr })?;
                continue;
            };
            if arrival.from.ip() != from || arrival.len == 0 {
                continue;
            }
            let id = identification(arrival.len).unwrap_or(ID_UNREADABLE);
            if let Some(slot) = report.ids.get_mut(usize::from(buf[0])) {
                *slot = Some(id);
            }
        }
    }
}

/// The identification of a probe of which `len` bytes are left: less than [`PROBE_MIN`] if the filter cut it.
fn identification(len: usize) -> Option<u16> {
    (1..PROBE_MIN).contains(&len).then(|| (len - 1) as u16)
}

/// Sends a burst of `count` probes of `len` bytes, in one call or one by one. The packets begin with `first` and the bytes
/// after it.
pub(super) fn send(
    sock: &Sock,
    to: SocketAddr,
    first: u8,
    count: usize,
    len: usize,
    gso: bool,
) -> Result<(), SoftError> {
    if !(1..=MAX_SEGMENTS).contains(&count) || len < PROBE_MIN || len.saturating_mul(count) > MAX_BURST {
        return Err(SoftError::Config {
            what: "a probe burst has 1 to 64 packets of 256 bytes or more, 65,000 in all",
        });
    }
    let mut burst = vec![0; count * len];
    for (i, packet) in burst.chunks_mut(len).enumerate() {
        packet[0] = first.wrapping_add(i as u8);
    }
    let to_raw: SockAddr = to.into();
    let step = if gso { burst.len() } else { len };
    for part in burst.chunks(step) {
        let segment = (part.len() > len).then_some(len as u16);
        match sock.send(&to_raw, 0, part, segment) {
            Ok(true) => {}
            Ok(false) => return Err(SoftError::Call { call: "sendmsg", errno: libc::EAGAIN, addr: to }),
            Err(errno) => return Err(SoftError::Call { call: "sendmsg", errno, addr: to }),
        }
    }
    Ok(())
}

/// Packets of a local test.
const LOCAL_BURST: usize = 16;
const LOCAL_TIMEOUT: Duration = Duration::from_millis(250);

/// Sends a burst to our own address and judges it. Loss is tried again: other programs may fill the queues.
pub(super) fn local(sock: &Sock, port: &Port, gso: bool) -> Result<(), SoftError> {
    let mut result = Ok(());
    for _ in 0..3 {
        let mut responder = ProbeResponder::open(port)?;
        send(sock, responder.addr(), 0, LOCAL_BURST, PROBE_MIN, gso)?;
        let ip = sock.local().ip();
        result = responder.collect(ip, LOCAL_BURST, LOCAL_TIMEOUT)?.verdict(ip, LOCAL_BURST, gso);
        if !matches!(result, Err(SoftError::ProbeLost { .. })) {
            break;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::super::paths::bind_sender;
    use super::super::{UdpConfig, ports};
    use super::*;

    fn port(ip: &str) -> Port {
        let cfg = UdpConfig { planes: vec![ip.parse().unwrap()], ..UdpConfig::default() };
        ports::open(&cfg, 0).unwrap().0
    }

    #[test]
    fn passes_with_probe_and_fails_with_want() {
        let port = port("127.0.0.61");
        let bind = |pmtu| bind_sender("127.0.0.61:0".parse().unwrap(), pmtu).unwrap();
        assert_eq!(local(&bind(Pmtu::Probe), &port, true), Ok(()));
        assert_eq!(local(&bind(Pmtu::Probe), &port, false), Ok(()));
        // Counters start anywhere, but sixteen packets cannot all have the right number.
        assert!(matches!(local(&bind(Pmtu::Want), &port, true), Err(SoftError::WireIds { .. })));
        assert!(matches!(local(&bind(Pmtu::Want), &port, false), Err(SoftError::WireIds { .. })));
    }

    #[test]
    fn v6_has_no_identification_but_packets_are_counted() {
        let port = port("::1");
        let sock = bind_sender("[::1]:0".parse().unwrap(), Pmtu::Probe).unwrap();
        assert_eq!(local(&sock, &port, true), Ok(()));
    }

    #[test]
    fn verdicts() {
        let ip: IpAddr = "10.0.0.1".parse().unwrap();
        let report = |ids: &[Option<u16>]| ProbeReport { ids: ids.to_vec() };
        assert_eq!(report(&[Some(0), Some(1), Some(2)]).verdict(ip, 3, true), Ok(()));
        assert_eq!(report(&[Some(0), Some(0), Some(0)]).verdict(ip, 3, false), Ok(()));
        assert_eq!(
            report(&[Some(0), Some(7)]).verdict(ip, 2, true),
            Err(SoftError::WireIds { addr: ip, index: 1, seen: 7 })
        );
        assert_eq!(
            report(&[Some(0), None]).verdict(ip, 2, true),
            Err(SoftError::ProbeLost { addr: ip, sent: 2, got: 1 })
        );
        // A peer's report that is too short or too long.
        assert_eq!(report(&[]).verdict(ip, 2, true), Err(SoftError::ProbeLost { addr: ip, sent: 2, got: 0 }));
        assert_eq!(report(&[Some(0), Some(1), Some(9)]).verdict(ip, 2, true), Ok(()));
        assert_eq!(report(&[Some(ID_UNREADABLE); 2]).verdict("::1".parse().unwrap(), 2, true), Ok(()));
    }

    #[test]
    fn strangers_are_not_counted() {
        let port = port("127.0.0.62");
        let mut responder = ProbeResponder::open(&port).unwrap();
        let stranger = bind_sender("127.0.0.63:0".parse().unwrap(), Pmtu::Probe).unwrap();
        send(&stranger, responder.addr(), 0, 4, PROBE_MIN, true).unwrap();
        let report = responder.collect("127.0.0.62".parse().unwrap(), 4, Duration::from_millis(20)).unwrap();
        assert_eq!(report.ids, [None; 4]);
        assert!(responder.collect("127.0.0.62".parse().unwrap(), 65, Duration::ZERO).is_err());
    }
}
