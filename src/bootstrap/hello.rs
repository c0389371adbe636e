//! What each end says of itself.

use std::net::IpAddr;

use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};

use super::error::PlaneList;
use super::plan::LANES_ALWAYS;
use crate::class::Class;
use crate::lanes::{MAX_PORTS, PortInfo};

/// Longest host label in bytes.
pub const MAX_HOST: usize = 64;

/// Most data lanes per plane and class that an end may ask for.
const MAX_LANES_PER_PLANE: u16 = 128;

/// One end's description of itself.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Hello {
    /// What this end can do beyond the version's base, one bit each; both ends use the bits they share.
    pub features: u64,
    /// Random number of this process: another one behind the same address is another peer.
    pub nonce: u64,
    /// Name of the host to print, at most [`MAX_HOST`] bytes without control characters.
    pub host: String,
    /// Its ports, 1..=[`MAX_PORTS`]; a lane plan names them by their index here.
    #[serde(deserialize_with = "bounded::<_, _, MAX_PORTS>")]
    pub planes: Vec<PlaneOffer>,
    /// Which classes it wants lanes for, by [`Class::index`]; a class needs both ends.
    pub classes: [bool; 3],
    /// Data lanes per plane and class that it wants, 1..=128; the smaller of both counts.
    pub lanes_per_plane: u16,
    /// What it takes.
    pub limits: Limits,
}

/// One port of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct PlaneOffer {
    /// Which NIC of the node.
    pub rail: u16,
    /// Which fabric.
    pub plane: u16,
    /// Its address.
    pub addr: IpAddr,
    /// UDP port at which its queue pairs receive, never 0.
    pub udp_port: u16,
    /// RoCE MTU in bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// Bytes that may be under way towards this port at once, over all peers; `None` where the hardware takes care.
    pub receive_budget: Option<u64>,
    /// Line rate in Mb/s; `None` where it is not known.
    pub speed: Option<u32>,
}

/// What an end takes from one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Limits {
    /// Lanes, at least 96 so that each port and class can have its two.
    pub max_lanes: u16,
    /// Bytes of a message that may travel eagerly.
    pub eager_max: u32,
    /// Eager messages that may wait here for their receives, 4..=16,384.
    pub eager_buffers: u16,
    /// Receives on each control lane, 16..=4,096.
    pub control_slots: u16,
    /// Receives without buffer on each data lane, 16..=32,768.
    pub immediates: u16,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_lanes: super::MAX_LANES as u16,
            eager_max: 4096,
            eager_buffers: 256,
            control_slots: 64,
            immediates: 256,
        }
    }
}

impl PlaneOffer {
    /// The offer that a port makes, with its line rate in Mb/s if it is known.
    pub fn of(port: &PortInfo, speed: Option<u32>) -> PlaneOffer {
        PlaneOffer {
            rail: port.rail,
            plane: port.plane,
            addr: port.addr,
            udp_port: port.udp_port,
            mtu: port.mtu,
            receive_budget: port.receive_budget,
            speed,
        }
    }
}

impl Hello {
    /// The same planes as a list to print.
    pub fn plane_list(&self) -> PlaneList {
        PlaneList(self.planes.iter().map(|p| (p.plane, p.addr)).collect())
    }

    /// True if this end wants lanes of `class`.
    pub fn wants(&self, class: Class) -> bool {
        self.classes[class.index()]
    }

    /// What is out of range, if anything.
    pub(super) fn fault(&self) -> Option<&'static str> {
        if self.host.len() > MAX_HOST || self.host.chars().any(char::is_control) {
            return Some("a host name that is too long or not printable");
        }
        if self.planes.is_empty() || self.planes.len() > MAX_PORTS {
            return Some("a number of planes outside 1..=8");
        }
        for (i, p) in self.planes.iter().enumerate() {
            // A mapped IPv4 address would pass for IPv6 in the plan and for IPv4 in the kernel.
            let mapped = p.addr.to_canonical() != p.addr;
            if p.addr.is_unspecified() || p.addr.is_multicast() || mapped {
                return Some("a plane address that is unspecified, multicast or IPv4-mapped");
            }
            if p.udp_port == 0 {
                return Some("UDP port 0");
            }
            if !valid_mtu(p.mtu) {
                return Some("an MTU that is none of 256, 512, 1024, 2048 and 4096");
            }
            if self.planes[..i].iter().any(|q| (q.addr, q.udp_port) == (p.addr, p.udp_port)) {
                return Some("two planes with the same address and port");
            }
        }
        if self.classes == [false; 3] {
            return Some("no traffic class");
        }
        if !(1..=MAX_LANES_PER_PLANE).contains(&self.lanes_per_plane) {
            return Some("a number of lanes per plane outside 1..=128");
        }
        if usize::from(self.limits.max_lanes) < LANES_ALWAYS {
            return Some("a limit of fewer than 96 lanes");
        }
        if self.limits.control_slots < 16 || self.limits.immediates < 16 {
            return Some("a limit of fewer than 16 receives");
        }
        if self.limits.eager_buffers < 4 {
            return Some("a limit of fewer than 4 eager messages");
        }
        None
    }
}

pub(super) fn valid_mtu(mtu: u32) -> bool {
    matches!(mtu, 256 | 512 | 1024 | 2048 | 4096)
}

/// Takes a sequence of at most `N` elements, and allocates only for those that are really there.
pub(super) fn bounded<'de, D, T, const N: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Bounded<T, const N: usize>(std::marker::PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for Bounded<T, N> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "at most {N} elements")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let mut out = Vec::new();
            while let Some(element) = seq.next_element()? {
                if out.len() == N {
                    return Err(serde::de::Error::invalid_length(N + 1, &self));
                }
                out.push(element);
            }
            Ok(out)
        }
    }
    deserializer.deserialize_seq(Bounded::<T, N>(std::marker::PhantomData))
}
