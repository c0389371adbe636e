//! The invariant CRC: the last four bytes of every RoCEv2 packet (InfiniBand Architecture 1.4, annex A17).
//!
//! It covers the packet as it would look behind an InfiniBand routing header: eight bytes of ones, the IP and
//! UDP headers with the fields that may change on the way set to ones, the BTH with its fifth byte (FECN, BECN)
//! set to ones, and everything after it. On IPv4 that includes the identification field and the flags, which
//! a UDP socket neither sets nor sees.

use std::net::SocketAddr;

use crc32fast::Hasher;

use super::{Ends, crc};

const BTH: usize = 12;
const ICRC: usize = 4;

/// The addresses of packets of one direction between two UDP ports, with the part of the ICRC they make.
///
/// IPv4 headers are taken to have no options, to be unfragmented and to have DF set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// CRC state before the BTH, for IP and UDP lengths and identification of zero.
    base: u32,
    v6: bool,
}

impl Flow {
    /// The flow from `src` to `dst`, both of one address family.
    ///
    /// IPv4 addresses mapped into IPv6 are IPv4 on the wire, and are taken so. Flow labels and scopes do not count.
    /// Between two families there are no packets, so that ICRC means nothing.
    pub fn new(src: SocketAddr, dst: SocketAddr) -> Flow {
        let ones = crc::step(!0, &[0xff; 8]);
        let (state, v6) = match Ends::new(src.ip(), dst.ip()) {
            Ends::V4(src, dst) => {
                // Version and TOS, length, identification, DF, TTL, UDP, checksum.
                let fixed = crc::step(ones, &[0x45, 0xff, 0, 0, 0, 0, 0x40, 0, 0xff, 0x11, 0xff, 0xff]);
                (crc::step(crc::step(fixed, &src.octets()), &dst.octets()), false)
            }
            Ends::V6(src, dst) => {
                // Version, traffic class and flow label, length, UDP, hop limit.
                let fixed = crc::step(ones, &[0x6f, 0xff, 0xff, 0xff, 0, 0, 0x11, 0xff]);
                (crc::step(crc::step(fixed, &src.octets()), &dst.octets()), true)
            }
        };
        let state = crc::step(crc::step(state, &src.port().to_be_bytes()), &dst.port().to_be_bytes());
        Flow { base: crc::step(state, &[0, 0, 0xff, 0xff]), v6 }
    }

    /// The ICRC of a packet whose IPv4 header carries the identification `ip_id` (ignored on IPv6).
    ///
    /// `packet` is the UDP payload without its last four bytes, that is BTH to padding, of at most 65,503 bytes.
    /// Fewer than the 12 bytes of a BTH are not a packet; their ICRC means nothing.
    #[inline]
    pub fn icrc(&self, ip_id: u16, packet: &[u8]) -> u32 {
        let state = self.before_bth(ip_id, packet.len());
        let Some((bth, rest)) = packet.split_first_chunk::<BTH>() else {
            return !crc::step(state, packet);
        };
        let [a, b, c, d, _, q0, q1, q2, e, f, g, h] = *bth;
        let state = crc::step4(state, u32::from_le_bytes([a, b, c, d]));
        let state = crc::step4(state, u32::from_le_bytes([0xff, q0, q1, q2]));
        let state = crc::step4(state, u32::from_le_bytes([e, f, g, h]));
        let mut hasher = Hasher::new_with_initial(!state);
        hasher.update(rest);
        hasher.finalize()
    }

    /// Writes the right ICRC into the last four bytes of `packet`, a whole UDP payload of at least 16 bytes.
    #[inline]
    pub fn seal(&self, ip_id: u16, packet: &mut [u8]) {
        if let Some((covered, icrc)) = packet.split_last_chunk_mut::<ICRC>() {
            *icrc = self.icrc(ip_id, covered).to_le_bytes();
        }
    }

    /// Whether the ICRC of `packet`, a whole UDP payload, is right, where the IPv4 identification is known
    /// (it is ignored on IPv6).
    #[inline]
    pub fn verify(&self, ip_id: u16, packet: &[u8]) -> bool {
        match split(packet) {
            Some((covered, icrc)) => self.icrc(ip_id, covered) == icrc,
            None => false,
        }
    }

    /// Checks the ICRC of `packet`, a whole UDP payload, where the IPv4 identification is not known, and returns
    /// the identification with which it is right. IPv6 has none: the check is exact and gives `Some(0)`.
    ///
    /// On IPv4 a damaged packet passes once in 2^16 times with some random identification, so a caller who
    /// knows which ones the sender uses should look at the result.
    #[inline]
    pub fn verify_blind(&self, packet: &[u8]) -> Option<u16> {
        let (covered, icrc) = split(packet)?;
        let difference = self.icrc(0, covered) ^ icrc;
        if difference == 0 {
            return Some(0);
        }
        if self.v6 {
            return None;
        }
        // The CRC is linear: the difference is what the identification alone, followed by zero bytes,
        // leaves. Going back over those and itself gives its two bytes, and ones above them if that is not so.
        let words = (V4_AFTER_ID + 2 + covered.len()) / 4;
        if words > crc::BACK_WORDS_MAX {
            return None;
        }
        let bytes = crc::back_words(difference, words);
        u16::try_from(bytes).ok().map(u16::swap_bytes)
    }

    /// The CRC state before the BTH of a packet with `covered` bytes from BTH to padding.
    #[inline]
    fn before_bth(&self, ip_id: u16, covered: usize) -> u32 {
        // Longer than a datagram can be does not occur; it would wrap and give a wrong CRC, no worse.
        let udp = (8 + covered + ICRC) as u16;
        let [u0, u1] = udp.to_be_bytes().map(usize::from);
        if self.v6 {
            return self.base ^ V6_LENGTH[0][u0] ^ V6_LENGTH[1][u1];
        }
        let [l0, l1] = udp.wrapping_add(20).to_be_bytes().map(usize::from);
        let [i0, i1] = ip_id.to_be_bytes().map(usize::from);
        self.base
            ^ V4_LENGTH[0][l0]
            ^ V4_LENGTH[1][l1]
            ^ V4_ID[0][i0]
            ^ V4_ID[1][i1]
            ^ UDP_LENGTH[0][u0]
            ^ UDP_LENGTH[1][u1]
    }
}

/// Bytes between the IPv4 identification and the BTH.
const V4_AFTER_ID: usize = 22;

// What the bytes of the variable fields add to the state before the BTH.
static V4_LENGTH: [[u32; 256]; 2] = [crc::at(25), crc::at(24)];
static V4_ID: [[u32; 256]; 2] = [crc::at(V4_AFTER_ID + 1), crc::at(V4_AFTER_ID)];
static UDP_LENGTH: [[u32; 256]; 2] = [crc::at(3), crc::at(2)];
/// IPv6 has the UDP length twice.
static V6_LENGTH: [[u32; 256]; 2] = [both(crc::at(43), crc::at(3)), both(crc::at(42), crc::at(2))];

const fn both(a: [u32; 256], b: [u32; 256]) -> [u32; 256] {
    let mut table = a;
    let mut i = 0;
    while i < table.len() {
        table[i] ^= b[i];
        i += 1;
    }
    table
}

/// A packet's covered bytes and its ICRC; `None` if no packet has this length.
#[inline]
fn split(packet: &[u8]) -> Option<(&[u8], u32)> {
    let (covered, icrc) = packet.split_last_chunk::<ICRC>()?;
    (covered.len() >= BTH && covered.len().is_multiple_of(4)).then_some((covered, u32::from_le_bytes(*icrc)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::IpAddr;

    /// The ICRC over a pseudo header that is built in full.
    fn by_the_book(src: SocketAddr, dst: SocketAddr, ip_id: u16, covered: &[u8]) -> u32 {
        let udp_len = (covered.len() + 12) as u16;
        let mut all = vec![0xff; 8];
        match (src.ip(), dst.ip()) {
            (IpAddr::V4(s), IpAddr::V4(d)) => {
                all.extend([0x45, 0xff]);
                all.extend((udp_len + 20).to_be_bytes());
                all.extend(ip_id.to_be_bytes());
                all.extend([0x40, 0, 0xff, 17, 0xff, 0xff]);
                all.extend(s.octets());
                all.extend(d.octets());
            }
            (IpAddr::V6(s), IpAddr::V6(d)) => {
                all.extend([0x6f, 0xff, 0xff, 0xff]);
                all.extend(udp_len.to_be_bytes());
                all.extend([17, 0xff]);
                all.extend(s.octets());
                all.extend(d.octets());
            }
            _ => panic!("two families"),
        }
        all.extend(src.port().to_be_bytes());
        all.extend(dst.port().to_be_bytes());
        all.extend(udp_len.to_be_bytes());
        all.extend([0xff, 0xff]);
        let bth = all.len();
        all.extend(covered);
        all[bth + 4] = 0xff;
        crc32fast::hash(&all)
    }

    fn addresses() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
        let v4 = any::<([u8; 4], u16, [u8; 4], u16)>().prop_map(|(a, p, b, q)| ((a, p).into(), (b, q).into()));
        let v6 = any::<([u16; 8], u16, [u16; 8], u16)>().prop_map(|(mut a, p, mut b, q)| {
            // Not a mapped address.
            a[0] |= 0x2000;
            b[0] |= 0x2000;
            ((a, p).into(), (b, q).into())
        });
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn tables_give_the_icrc_by_the_book(
            (src, dst) in addresses(), id: u16, covered in prop::collection::vec(any::<u8>(), 12..400),
        ) {
            let flow = Flow::new(src, dst);
            prop_assert_eq!(flow.icrc(id, &covered), by_the_book(src, dst, id, &covered));
        }

        #[test]
        fn the_blind_check_finds_the_id(
            (src, dst) in addresses(), id: u16, words in 4usize..16376, fill: u8,
        ) {
            let flow = Flow::new(src, dst);
            let mut packet = vec![fill; 4 * words];
            flow.seal(id, &mut packet);
            prop_assert!(flow.verify(id, &packet));
            let expected = if src.is_ipv6() { 0 } else { id };
            prop_assert_eq!(flow.verify_blind(&packet), Some(expected));
        }

        #[test]
        fn short_and_odd_packets_fail(packet in prop::collection::vec(any::<u8>(), 0..40)) {
            let flow = Flow::new(([1, 2, 3, 4], 5).into(), ([6, 7, 8, 9], 10).into());
            let mut packet = packet;
            flow.seal(0, &mut packet);
            let whole = packet.len() >= 16 && packet.len().is_multiple_of(4);
            prop_assert_eq!(flow.verify(0, &packet), whole);
            prop_assert_eq!(flow.verify_blind(&packet), whole.then_some(0));
        }
    }

    #[test]
    fn mapped_addresses_are_v4() {
        let v4: SocketAddr = "10.0.0.1:4791".parse().unwrap();
        let mapped: SocketAddr = "[::ffff:10.0.0.1]:4791".parse().unwrap();
        assert_eq!(Flow::new(v4, v4), Flow::new(mapped, v4));
        assert_eq!(Flow::new(v4, v4), Flow::new(mapped, mapped));
    }

    #[test]
    fn damaged_packets_pass_the_blind_check_about_once_in_65536() {
        let flow = Flow::new(([1, 2, 3, 4], 5).into(), ([6, 7, 8, 9], 10).into());
        let mut packet = vec![0x5a; 64];
        let mut rng = fastrand::Rng::with_seed(7);
        let tries = 1 << 20;
        let passed = (0..tries)
            .filter(|_| {
                packet[60..].copy_from_slice(&rng.u32(..).to_le_bytes());
                flow.verify_blind(&packet).is_some()
            })
            .count();
        // 16 are expected.
        assert!((1..64).contains(&passed), "{passed} of {tries}");
    }
}
