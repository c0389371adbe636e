//! Ports and their addresses.

use std::fs;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};

use super::device::Context;
use super::error::VerbsError;
use super::ext;
use super::sys::*;

/// Most entries of a GID table that are looked at.
const MAX_GIDS: u32 = 4096;

/// The state of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortState {
    /// No link.
    Down,
    /// Coming up.
    Init,
    /// Almost up.
    Armed,
    /// In use.
    Active,
    /// Active, with a failed link that may come back.
    Deferred,
    /// None that the interface knows.
    Unknown,
}

impl PortState {
    /// As tools print it.
    pub fn name(self) -> &'static str {
        match self {
            PortState::Down => "DOWN",
            PortState::Init => "INIT",
            PortState::Armed => "ARMED",
            PortState::Active => "ACTIVE",
            PortState::Deferred => "ACTIVE_DEFER",
            PortState::Unknown => "unknown",
        }
    }
}

/// What a port's wire is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkLayer {
    /// RoCE.
    Ethernet,
    /// InfiniBand.
    InfiniBand,
    /// The driver does not say.
    Unspecified,
}

impl LinkLayer {
    /// As tools print it.
    pub fn name(self) -> &'static str {
        match self {
            LinkLayer::Ethernet => "Ethernet",
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Unspecified => "of an unknown kind",
        }
    }
}

/// A port as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortAttributes {
    /// Its number, from 1.
    pub number: u8,
    /// Its state.
    pub state: PortState,
    /// What its wire is.
    pub link_layer: LinkLayer,
    /// RoCE MTU in use, in bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// Largest RoCE MTU that it has, in bytes.
    pub max_mtu: u32,
    /// Megabits per second; 0 if not known.
    pub speed_mbps: u64,
    /// Entries of its GID table, with and without content.
    pub gid_entries: u32,
    /// Longest message in bytes.
    pub max_message: u32,
}

/// What packets an entry of the GID table stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE without IP.
    RoceV1,
    /// RoCE over UDP.
    RoceV2,
    /// The driver does not say.
    Unknown,
}

/// An entry of a port's GID table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gid {
    /// Its index.
    pub index: u32,
    /// What packets it stands for.
    pub kind: GidKind,
    /// Its 16 bytes.
    pub raw: [u8; 16],
    /// The network device that it belongs to, if that is visible here.
    pub netdev: Option<String>,
}

impl Gid {
    /// The address that it is made of: IPv4 where it is mapped, IPv6 else.
    pub fn addr(&self) -> IpAddr {
        addr_of(self.raw)
    }

    /// True if it is made of a MAC address and reaches no further than a router.
    pub fn is_link_local(&self) -> bool {
        self.raw[0] == 0xfe && self.raw[1] & 0xc0 == 0x80
    }
}

/// The address in a GID.
pub fn addr_of(raw: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(raw).to_canonical()
}

/// The GID of an address.
pub fn gid_of(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl Context {
    /// A port as it is now.
    ///
    /// # Errors
    /// [`VerbsError::NoPort`], or the call fails.
    pub fn port(&self, number: u8) -> Result<PortAttributes, VerbsError> {
        let ports = self.limits().ports;
        if number == 0 || number > ports {
            return Err(VerbsError::NoPort { device: self.name().to_owned(), port: number, ports });
        }
        // SAFETY: numbers may be zero.
        let mut attr: ibv_port_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: the context is open.
        let rc = unsafe { ext::query_port(self.ptr, number, &mut attr) }.unwrap_or_else(|| {
            // SAFETY: the older function fills the front part, which its own structure describes.
            unsafe { (self.library.f.query_port)(self.ptr.as_ptr(), number, std::ptr::from_mut(&mut attr).cast()) }
        });
        if rc != 0 {
            return Err(VerbsError::call(self.name(), "ibv_query_port", rc));
        }
        let rate = fs::read_to_string(self.sysfs().join(format!("ports/{number}/rate")));
        let speed = rate.ok().and_then(|r| speed_of(&r)).unwrap_or_else(|| speed(attr.active_speed, attr.active_width));
        Ok(PortAttributes {
            number,
            state: match attr.state {
                IBV_PORT_DOWN => PortState::Down,
                IBV_PORT_INIT => PortState::Init,
                IBV_PORT_ARMED => PortState::Armed,
                IBV_PORT_ACTIVE => PortState::Active,
                IBV_PORT_ACTIVE_DEFER => PortState::Deferred,
                _ => PortState::Unknown,
            },
            link_layer: match attr.link_layer {
                2 => LinkLayer::Ethernet,
                1 => LinkLayer::InfiniBand,
                _ => LinkLayer::Unspecified,
            },
            mtu: mtu_bytes(attr.active_mtu),
            max_mtu: mtu_bytes(attr.max_mtu),
            speed_mbps: speed,
            gid_entries: u32::try_from(attr.gid_tbl_len).unwrap_or(0).min(MAX_GIDS),
            max_message: attr.max_msg_sz,
        })
    }

    /// The entries of a port's GID table that have content and belong to this network namespace.
    ///
    /// # Errors
    /// No such port, or the call fails.
    pub fn gids(&self, port: u8) -> Result<Vec<Gid>, VerbsError> {
        let len = self.port(port)?.gid_entries;
        if let Some(gids) = self.gid_table(port) {
            return Ok(gids);
        }
        let mut gids = Vec::new();
        for index in 0..len {
            let mut gid = ibv_gid { raw: [0; 16] };
            // SAFETY: the context is open, and the index inside the table.
            let rc = unsafe { (self.library.f.query_gid)(self.ptr.as_ptr(), port, index as i32, &mut gid) };
            // SAFETY: all of a GID's forms are bytes.
            let raw = unsafe { gid.raw };
            // An entry of another namespace gives EINVAL, an empty one zeros.
            if rc == 0 && raw != [0; 16] {
                let (kind, netdev) = self.gid_in_sysfs(port, index);
                gids.push(Gid { index, kind, raw, netdev });
            }
        }
        Ok(gids)
    }

    /// The whole table in one call, where library and kernel have that.
    fn gid_table(&self, port: u8) -> Option<Vec<Gid>> {
        let query = self.library.f.query_gid_table?;
        let ports = usize::from(self.limits().ports);
        let empty =
            ibv_gid_entry { gid: ibv_gid { raw: [0; 16] }, gid_index: 0, port_num: 0, gid_type: 0, ndev_ifindex: 0 };
        let mut entries = vec![empty; ports.max(1) * MAX_GIDS as usize];
        // SAFETY: the context is open and the array as long as said.
        let got =
            unsafe { query(self.ptr.as_ptr(), entries.as_mut_ptr(), entries.len(), 0, size_of::<ibv_gid_entry>()) };
        let got = usize::try_from(got).ok().filter(|&n| n > 0 && n <= entries.len())?;
        let mine = entries[..got].iter().filter(|e| e.port_num == u32::from(port));
        Some(
            mine.map(|e| {
                let by_index = (e.ndev_ifindex != 0)
                    .then(|| nix::net::if_::if_indextoname(e.ndev_ifindex).ok())
                    .flatten()
                    .map(|n| n.to_string_lossy().into_owned());
                Gid {
                    index: e.gid_index,
                    kind: match e.gid_type {
                        IBV_GID_TYPE_IB => GidKind::InfiniBand,
                        IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
                        IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
                        _ => GidKind::Unknown,
                    },
                    // SAFETY: all of a GID's forms are bytes.
                    raw: unsafe { e.gid.raw },
                    netdev: by_index.or_else(|| self.gid_in_sysfs(port, e.gid_index).1),
                }
            })
            .collect(),
        )
    }

    fn gid_in_sysfs(&self, port: u8, index: u32) -> (GidKind, Option<String>) {
        let attributes = self.sysfs().join(format!("ports/{port}/gid_attrs"));
        let read = |dir: &str| fs::read_to_string(attributes.join(dir).join(index.to_string())).ok();
        let kind = match read("types").as_deref().map(str::trim) {
            Some("RoCE v2") => GidKind::RoceV2,
            Some("IB/RoCE v1") => GidKind::RoceV1,
            _ => GidKind::Unknown,
        };
        (kind, read("ndevs").map(|n| n.trim().to_owned()).filter(|n| !n.is_empty()))
    }

    /// The index of the RoCEv2 entry that stands for `addr`.
    ///
    /// # Errors
    /// [`VerbsError::NoGidFor`], or the table cannot be read.
    pub fn gid_index(&self, port: u8, addr: IpAddr) -> Result<u8, VerbsError> {
        let wanted = gid_of(addr);
        let found = self.gids(port)?.into_iter().find(|g| g.raw == wanted && g.kind == GidKind::RoceV2);
        found.and_then(|g| u8::try_from(g.index).ok()).ok_or_else(|| VerbsError::NoGidFor {
            device: self.name().to_owned(),
            port,
            addr,
        })
    }

    /// The RoCEv2 entry at `index`.
    ///
    /// # Errors
    /// [`VerbsError::GidOutOfRange`] or [`VerbsError::GidUnusable`].
    pub fn gid_at(&self, port: u8, index: u32) -> Result<Gid, VerbsError> {
        let len = self.port(port)?.gid_entries;
        let device = self.name().to_owned();
        if index >= len || index > u32::from(u8::MAX) {
            return Err(VerbsError::GidOutOfRange { device, port, index, len });
        }
        let all = self.gids(port)?;
        let what = match all.iter().find(|g| g.index == index) {
            Some(g) if g.kind == GidKind::RoceV2 => return Ok(g.clone()),
            Some(_) => "not of RoCE v2",
            None => "empty, or of another network namespace",
        };
        let usable = all.iter().filter(|g| g.kind == GidKind::RoceV2).map(|g| format!("{} ({})", g.index, g.addr()));
        Err(VerbsError::GidUnusable { device, port, index, what, usable: usable.collect() })
    }
}

/// Bytes of an MTU code; 0 for one that is not known.
pub(super) fn mtu_bytes(code: ibv_mtu) -> u32 {
    if (IBV_MTU_256..=IBV_MTU_4096).contains(&code) { 128 << code } else { 0 }
}

/// The code of an MTU in bytes.
pub(super) fn mtu_code(bytes: u32) -> Option<ibv_mtu> {
    (IBV_MTU_256..=IBV_MTU_4096).find(|&code| mtu_bytes(code) == bytes)
}

/// Mb/s of the port attributes' codes.
fn speed(speed: u8, width: u8) -> u64 {
    let lane = match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    lane * lanes
}

/// Mb/s of what sysfs says: `400 Gb/sec (4X NDR)`, `2.5 Gb/sec (1X SDR)`.
fn speed_of(rate: &str) -> Option<u64> {
    let (number, rest) = rate.trim().split_once(' ')?;
    if !rest.starts_with("Gb/sec") {
        return None;
    }
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let part = match part.len() {
        0 => 0,
        1 => part.parse::<u64>().ok()? * 100,
        _ => return None,
    };
    Some(whole.parse::<u64>().ok()?.checked_mul(1000)? + part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_and_speeds() {
        for bytes in [256, 512, 1024, 2048, 4096] {
            assert_eq!(mtu_bytes(mtu_code(bytes).expect("a code")), bytes);
        }
        assert_eq!((mtu_code(1000), mtu_bytes(0), mtu_bytes(6)), (None, 0, 0));
        assert_eq!((speed(128, 2), speed(4, 1), speed(64, 4), speed(0, 2)), (400_000, 10_000, 400_000, 0));
        assert_eq!(speed_of("800 Gb/sec (4X XDR)\n"), Some(800_000));
        assert_eq!(speed_of("2.5 Gb/sec (1X SDR)"), Some(2_500));
        assert_eq!((speed_of("fast"), speed_of("1.25 Gb/sec"), speed_of("")), (None, None, None));
    }

    #[test]
    fn addresses_and_gids() {
        for addr in ["10.1.2.3", "fd00:1::2", "fe80::1"] {
            let addr: IpAddr = addr.parse().expect("an address");
            assert_eq!(addr_of(gid_of(addr)), addr);
        }
        let gid = |addr: &str| Gid {
            index: 0,
            kind: GidKind::RoceV2,
            raw: gid_of(addr.parse().expect("an address")),
            netdev: None,
        };
        assert!(gid("fe80::1").is_link_local() && !gid("10.0.0.1").is_link_local() && !gid("fd00::1").is_link_local());
    }
}
