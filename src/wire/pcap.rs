//! Captures in the classic pcap format, and UDP datagrams in them.
//!
//! A socket never sees IP and UDP headers; [`Writer`] makes them so that what tools read is what was on the wire,
//! as far as the ICRC covers it.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;

use super::Ends;
use crate::time::Time;

const UDP: u8 = 17;
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const UDP_HEADER: usize = 8;
/// The longest record that is read or announced, the limit of the usual tools.
const MAX_RECORD: u32 = 262_144;
const MAGIC_MICROS: u32 = 0xa1b2_c3d4;
const MAGIC_NANOS: u32 = 0xa1b2_3c4d;
const LINK_RAW_IP: u32 = 101;

/// One UDP datagram with what its IP header says about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram<'a> {
    /// When it was captured, since the epoch of the capture.
    pub time: Time,
    /// Source address and UDP port.
    pub src: SocketAddr,
    /// Destination address and UDP port, of the same family.
    pub dst: SocketAddr,
    /// IPv4 type of service or IPv6 traffic class; the lower two bits are ECN.
    pub tos: u8,
    /// IPv4 time to live or IPv6 hop limit.
    pub ttl: u8,
    /// IPv4 identification; 0 on IPv6.
    pub ip_id: u16,
    /// IPv4 DF flag; true on IPv6.
    pub dont_fragment: bool,
    /// The UDP payload.
    pub payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// A datagram with TOS 0, TTL 64, identification 0 and DF set.
    pub const fn new(time: Time, src: SocketAddr, dst: SocketAddr, payload: &'a [u8]) -> Self {
        Datagram { time, src, dst, tos: 0, ttl: 64, ip_id: 0, dont_fragment: true, payload }
    }
}

/// Writes datagrams as a capture of link type 101 (raw IP) with nanoseconds.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    record: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Starts a capture: writes the file header.
    pub fn new(mut out: W) -> io::Result<Self> {
        let mut header = Vec::with_capacity(24);
        header.extend(MAGIC_NANOS.to_le_bytes());
        header.extend(2u16.to_le_bytes());
        header.extend(4u16.to_le_bytes());
        header.extend([0; 8]);
        header.extend(MAX_RECORD.to_le_bytes());
        header.extend(LINK_RAW_IP.to_le_bytes());
        out.write_all(&header)?;
        Ok(Writer { out, record: Vec::new() })
    }

    /// Appends one datagram, with IP and UDP headers around it whose lengths and checksums are right.
    ///
    /// Fails with `InvalidInput` if the payload is longer than a datagram can be (65,507 bytes on IPv4,
    /// 65,527 on IPv6), else as the output does.
    pub fn write(&mut self, datagram: &Datagram<'_>) -> io::Result<()> {
        let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "the payload is too long for a datagram");
        let udp_len = u16::try_from(UDP_HEADER + datagram.payload.len()).map_err(|_| too_long())?;
        let ends = Ends::new(datagram.src.ip(), datagram.dst.ip());
        let ip_header = match ends {
            Ends::V4(..) => IPV4_HEADER,
            Ends::V6(..) => IPV6_HEADER,
        };
        let total = ip_header + UDP_HEADER + datagram.payload.len();

        let record = &mut self.record;
        record.clear();
        let ns = datagram.time.as_nanos();
        record.extend(((ns / 1_000_000_000) as u32).to_le_bytes());
        record.extend(((ns % 1_000_000_000) as u32).to_le_bytes());
        record.extend((total as u32).to_le_bytes());
        record.extend((total as u32).to_le_bytes());
        let addresses_sum = match ends {
            Ends::V4(src, dst) => {
                let total = u16::try_from(total).map_err(|_| too_long())?;
                push_ipv4(record, datagram, total, src, dst);
                ones_sum(0, &src.octets()) + ones_sum(0, &dst.octets())
            }
            Ends::V6(src, dst) => {
                push_ipv6(record, datagram, udp_len, src, dst);
                ones_sum(0, &src.octets()) + ones_sum(0, &dst.octets())
            }
        };
        push_udp(record, datagram, udp_len, addresses_sum);
        record.extend(datagram.payload);
        self.out.write_all(record)
    }

    /// Flushes the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// The output, with everything written to it.
    pub fn into_inner(self) -> W {
        self.out
    }
}

fn push_ipv4(record: &mut Vec<u8>, datagram: &Datagram<'_>, total: u16, src: Ipv4Addr, dst: Ipv4Addr) {
    let mut header = [0; IPV4_HEADER];
    header[0] = 0x45;
    header[1] = datagram.tos;
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header[4..6].copy_from_slice(&datagram.ip_id.to_be_bytes());
    header[6] = u8::from(datagram.dont_fragment) << 6;
    header[8] = datagram.ttl;
    header[9] = UDP;
    header[12..16].copy_from_slice(&src.octets());
    header[16..20].copy_from_slice(&dst.octets());
    let checksum = ones_complement(ones_sum(0, &header));
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    record.extend(header);
}

fn push_ipv6(record: &mut Vec<u8>, datagram: &Datagram<'_>, len: u16, src: Ipv6Addr, dst: Ipv6Addr) {
    record.extend((6 << 28 | u32::from(datagram.tos) << 20).to_be_bytes());
    record.extend(len.to_be_bytes());
    record.extend([UDP, datagram.ttl]);
    record.extend(src.octets());
    record.extend(dst.octets());
}

fn push_udp(record: &mut Vec<u8>, datagram: &Datagram<'_>, len: u16, addresses_sum: u64) {
    let (src, dst) = (datagram.src.port(), datagram.dst.port());
    let header_sum = u64::from(src) + u64::from(dst) + 2 * u64::from(len) + u64::from(UDP);
    // A checksum of zero would mean that there is none.
    let checksum = match ones_complement(ones_sum(addresses_sum + header_sum, datagram.payload)) {
        0 => 0xffff,
        checksum => checksum,
    };
    for field in [src, dst, len, checksum] {
        record.extend(field.to_be_bytes());
    }
}

/// `sum` and the big-endian 16-bit words of `bytes`, a last odd byte padded with zero.
fn ones_sum(sum: u64, bytes: &[u8]) -> u64 {
    let words = bytes.chunks(2).map(|w| u16::from_be_bytes([w[0], w.get(1).copied().unwrap_or(0)]));
    sum + words.map(u64::from).sum::<u64>()
}

fn ones_complement(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Why a capture cannot be read.
#[derive(Debug, Error)]
pub enum PcapError {
    /// The input failed.
    #[error("cannot read the capture: {0}")]
    Io(#[from] io::Error),
    /// Not a classic pcap file (pcapng is not read).
    #[error("not a pcap file: it starts with {0:#010x}")]
    Magic(u32),
    /// A link type other than Ethernet (1) and raw IP (101, 228, 229).
    #[error("link type {0} is not supported")]
    LinkType(u32),
    /// The input ends within a header or a record.
    #[error("the capture ends within a record")]
    Truncated,
    /// A record of more than 262,144 bytes.
    #[error("a record of {0} bytes is too long")]
    RecordLength(u32),
}

/// What the records of a capture start with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// An Ethernet header, possibly with VLAN tags.
    Ethernet,
    /// An IPv4 or IPv6 header.
    Ip,
}

/// One record of a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// When it was captured, since the epoch of the capture.
    pub time: Time,
    /// What `bytes` starts with.
    pub link: Link,
    /// The bytes captured.
    pub bytes: &'a [u8],
}

/// Reads captures of either byte order, with microseconds or nanoseconds.
#[derive(Debug)]
pub struct Reader<R: Read> {
    input: R,
    big_endian: bool,
    nanos_per_tick: u64,
    link: Link,
    record: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// Reads the file header.
    pub fn new(mut input: R) -> Result<Self, PcapError> {
        let mut header = [0; 24];
        if read_up_to(&mut input, &mut header)? < header.len() {
            return Err(PcapError::Truncated);
        }
        let magic = u32::from_le_bytes(word(&header, 0));
        let (big_endian, nanos_per_tick) = match (magic, magic.swap_bytes()) {
            (MAGIC_MICROS, _) => (false, 1_000),
            (MAGIC_NANOS, _) => (false, 1),
            (_, MAGIC_MICROS) => (true, 1_000),
            (_, MAGIC_NANOS) => (true, 1),
            _ => return Err(PcapError::Magic(magic)),
        };
        // The upper bits say how long a frame check sequence is.
        let link = match number(big_endian, word(&header, 20)) & 0xffff {
            1 => Link::Ethernet,
            LINK_RAW_IP | 228 | 229 => Link::Ip,
            other => return Err(PcapError::LinkType(other)),
        };
        Ok(Reader { input, big_endian, nanos_per_tick, link, record: Vec::new() })
    }

    /// The next record; `None` at the end.
    pub fn frame(&mut self) -> Result<Option<Frame<'_>>, PcapError> {
        Ok(self.advance()?.map(|time| Frame { time, link: self.link, bytes: &self.record }))
    }

    /// The next record that is a whole UDP datagram; `None` at the end. Others are skipped, see [`Frame::datagram`].
    pub fn datagram(&mut self) -> Result<Option<Datagram<'_>>, PcapError> {
        while let Some(time) = self.advance()? {
            let found = Frame { time, link: self.link, bytes: &self.record }.datagram().is_some();
            if found {
                return Ok(Frame { time, link: self.link, bytes: &self.record }.datagram());
            }
        }
        Ok(None)
    }

    /// Reads the next record into `self.record`; `None` at the end.
    fn advance(&mut self) -> Result<Option<Time>, PcapError> {
        let mut header = [0; 16];
        match read_up_to(&mut self.input, &mut header)? {
            0 => return Ok(None),
            16 => {}
            _ => return Err(PcapError::Truncated),
        }
        let [seconds, ticks, len] = [0, 4, 8].map(|at| number(self.big_endian, word(&header, at)));
        if len > MAX_RECORD {
            return Err(PcapError::RecordLength(len));
        }
        self.record.clear();
        let read = self.input.by_ref().take(u64::from(len)).read_to_end(&mut self.record)?;
        if read < len as usize {
            return Err(PcapError::Truncated);
        }
        Ok(Some(Time::from_nanos(u64::from(seconds) * 1_000_000_000 + u64::from(ticks) * self.nanos_per_tick)))
    }
}

fn word(bytes: &[u8], at: usize) -> [u8; 4] {
    std::array::from_fn(|i| bytes[at + i])
}

fn number(big_endian: bool, bytes: [u8; 4]) -> u32 {
    if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
}

/// Reads until `buffer` is full or the input ends.
fn read_up_to(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut at = 0;
    while at < buffer.len() {
        match input.read(&mut buffer[at..]) {
            Ok(0) => break,
            Ok(n) => at += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(at)
}

impl<'a> Frame<'a> {
    /// The bytes from the IP header on; `None` if the frame is neither IPv4 nor IPv6.
    pub fn ip(&self) -> Option<&'a [u8]> {
        if self.link == Link::Ip {
            return Some(self.bytes);
        }
        let (_, mut rest) = self.bytes.split_at_checked(12)?;
        // At most an outer and an inner VLAN tag.
        for _ in 0..3 {
            let (kind, after) = rest.split_first_chunk::<2>()?;
            match u16::from_be_bytes(*kind) {
                0x0800 | 0x86dd => return Some(after),
                0x8100 | 0x88a8 => rest = after.get(2..)?,
                _ => return None,
            }
        }
        None
    }

    /// The UDP datagram in the frame; `None` if there is none, or not whole: a fragment, cut short by the capture,
    /// or with lengths that contradict each other. IPv4 options and IPv6 extension headers are not looked behind.
    pub fn datagram(&self) -> Option<Datagram<'a>> {
        let ip = self.ip()?;
        match ip.first()? >> 4 {
            4 => ipv4(self.time, ip),
            6 => ipv6(self.time, ip),
            _ => None,
        }
    }
}

fn ipv4(time: Time, bytes: &[u8]) -> Option<Datagram<'_>> {
    let (header, rest) = bytes.split_first_chunk::<IPV4_HEADER>()?;
    let [0x45, tos, l0, l1, i0, i1, f0, f1, ttl, UDP, _, _, s0, s1, s2, s3, d0, d1, d2, d3] = *header else {
        return None;
    };
    // All but DF: the reserved flag, more fragments, and the offset.
    let flags = u16::from_be_bytes([f0, f1]);
    if flags & 0xbfff != 0 {
        return None;
    }
    let len = usize::from(u16::from_be_bytes([l0, l1])).checked_sub(IPV4_HEADER)?;
    let (src, dst, payload) = udp(rest.get(..len)?)?;
    Some(Datagram {
        time,
        src: SocketAddr::from(([s0, s1, s2, s3], src)),
        dst: SocketAddr::from(([d0, d1, d2, d3], dst)),
        tos,
        ttl,
        ip_id: u16::from_be_bytes([i0, i1]),
        dont_fragment: flags != 0,
        payload,
    })
}

fn ipv6(time: Time, bytes: &[u8]) -> Option<Datagram<'_>> {
    let (header, rest) = bytes.split_first_chunk::<IPV6_HEADER>()?;
    let [v, t, _, _, l0, l1, UDP, ttl, addresses @ ..] = *header else {
        return None;
    };
    let len = usize::from(u16::from_be_bytes([l0, l1]));
    let (src, dst, payload) = udp(rest.get(..len)?)?;
    let address = |at: usize| -> [u8; 16] { std::array::from_fn(|i| addresses[at + i]) };
    Some(Datagram {
        time,
        src: SocketAddr::from((address(0), src)),
        dst: SocketAddr::from((address(16), dst)),
        tos: v << 4 | t >> 4,
        ttl,
        ip_id: 0,
        dont_fragment: true,
        payload,
    })
}

/// Source port, destination port and payload of a UDP datagram that fills `bytes`.
fn udp(bytes: &[u8]) -> Option<(u16, u16, &[u8])> {
    let (header, payload) = bytes.split_first_chunk::<UDP_HEADER>()?;
    let [s0, s1, d0, d1, l0, l1, _, _] = *header;
    if usize::from(u16::from_be_bytes([l0, l1])) != bytes.len() {
        return None;
    }
    Some((u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]), payload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn v4() -> (SocketAddr, SocketAddr) {
        (([10, 0, 0, 1], 49_152).into(), ([10, 0, 0, 2], 4791).into())
    }

    fn v6() -> (SocketAddr, SocketAddr) {
        ("[2001:db8::1]:49152".parse().unwrap(), "[2001:db8::2]:4791".parse().unwrap())
    }

    /// A capture of one Ethernet frame, as a big-endian machine writes it.
    fn big_endian_ethernet(frame: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        for field in [MAGIC_MICROS, 0x0002_0004, 0, 0, 65_535, 1, 3, 250, frame.len() as u32, frame.len() as u32] {
            file.extend(field.to_be_bytes());
        }
        file.extend(frame);
        file
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut writer = Writer::new(Vec::new()).unwrap();
        let payload = [7; 21];
        let time = Time::from_nanos(1_234_567_890_123);
        let mut sent = Vec::new();
        for (src, dst) in [v4(), v6()] {
            let v4 = src.is_ipv4();
            let d = Datagram {
                tos: 0x69,
                ttl: 3,
                ip_id: if v4 { 0xabcd } else { 0 },
                ..Datagram::new(time, src, dst, &payload)
            };
            writer.write(&d).unwrap();
            sent.push(d);
            if v4 {
                let loose = Datagram { dont_fragment: false, ..d };
                writer.write(&loose).unwrap();
                sent.push(loose);
            }
        }
        let file = writer.into_inner();
        let mut reader = Reader::new(&file[..]).unwrap();
        for d in sent {
            assert_eq!(reader.datagram().unwrap(), Some(d));
        }
        assert_eq!(reader.datagram().unwrap(), None);
    }

    #[test]
    fn checksums_are_right() {
        for (src, dst) in [v4(), v6()] {
            for payload in [&[][..], &[1], &[0xff; 33], &[9; 1024]] {
                let mut writer = Writer::new(Vec::new()).unwrap();
                writer.write(&Datagram::new(Time::ZERO, src, dst, payload)).unwrap();
                let file = writer.into_inner();
                let mut reader = Reader::new(&file[..]).unwrap();
                let ip = reader.frame().unwrap().unwrap().ip().unwrap();
                let (addresses, udp) = if src.is_ipv4() {
                    assert_eq!(ones_complement(ones_sum(0, &ip[..20])), 0);
                    (&ip[12..20], &ip[20..])
                } else {
                    (&ip[8..40], &ip[40..])
                };
                let pseudo = ones_sum(u64::from(UDP) + udp.len() as u64, addresses);
                assert_eq!(ones_complement(ones_sum(pseudo, udp)), 0);
            }
        }
    }

    #[test]
    fn a_payload_longer_than_a_datagram_is_refused() {
        let mut writer = Writer::new(io::sink()).unwrap();
        let long = vec![0; 65_528];
        let mut fits =
            |(src, dst), len: usize| writer.write(&Datagram::new(Time::ZERO, src, dst, &long[..len])).is_ok();
        assert!(fits(v4(), 65_507) && fits(v6(), 65_527));
        assert!(!fits(v4(), 65_508) && !fits(v6(), 65_528));
    }

    #[test]
    fn big_endian_vlan_tagged_and_padded() {
        let mut writer = Writer::new(Vec::new()).unwrap();
        writer.write(&Datagram::new(Time::ZERO, v4().0, v4().1, b"abc")).unwrap();
        let ip = &writer.into_inner()[24 + 16..];
        let mut frame = vec![0x02; 12];
        frame.extend([0x81, 0, 0, 5, 0x08, 0]);
        frame.extend(ip);
        frame.extend([0; 11]);
        let file = big_endian_ethernet(&frame);
        let mut reader = Reader::new(&file[..]).unwrap();
        let d = reader.datagram().unwrap().unwrap();
        assert_eq!((d.payload, d.src, d.dst), (&b"abc"[..], v4().0, v4().1));
        assert_eq!(d.time, Time::from_nanos(3_000_250_000));
    }

    #[test]
    fn broken_files_are_errors() {
        let good = big_endian_ethernet(&[0; 60]);
        let read = |bytes: &[u8]| Reader::new(bytes).and_then(|mut r| r.datagram().map(|d| d.is_some()));
        assert!(matches!(read(&good), Ok(false)));
        assert!(matches!(read(&good[..23]), Err(PcapError::Truncated)));
        assert!(matches!(read(&good[..24]), Ok(false)));
        assert!(matches!(read(&good[..39]), Err(PcapError::Truncated)));
        assert!(matches!(read(&good[..99]), Err(PcapError::Truncated)));
        let with = |at: usize, byte| {
            let mut bad = good.clone();
            bad[at] = byte;
            bad
        };
        assert!(matches!(read(&with(0, 0)), Err(PcapError::Magic(_))));
        assert!(matches!(read(&with(23, 105)), Err(PcapError::LinkType(105))));
        assert!(matches!(read(&with(33, 5)), Err(PcapError::RecordLength(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200), link: bool) {
            let link = if link { Link::Ip } else { Link::Ethernet };
            let _ = Frame { time: Time::ZERO, link, bytes: &bytes }.datagram();
            let _ = Reader::new(&bytes[..]).map(|mut r| while let Ok(Some(_)) = r.datagram() {});
            let _ = Reader::new(&big_endian_ethernet(&bytes)[..]).map(|mut r| r.datagram().is_ok());
        }
    }
}
