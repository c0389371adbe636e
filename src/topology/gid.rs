//! Which GID of a port to use. An index says nothing that lasts: the table changes whenever an interface gets or loses
//! an address. So a GID is chosen by what it is, and found again by its address.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::sysfs::{Gid, GidNetdev, GidType};
use super::{Lookup, first_set};

const INDEX: [&str; 2] = ["PLANESPRAY_GID_INDEX", "NCCL_IB_GID_INDEX"];
const FAMILY: [&str; 2] = ["PLANESPRAY_ADDR_FAMILY", "NCCL_IB_ADDR_FAMILY"];
const RANGE: [&str; 2] = ["PLANESPRAY_ADDR_RANGE", "NCCL_IB_ADDR_RANGE"];

/// Which addresses are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Family {
    /// IPv4, or IPv6 where there is none.
    #[default]
    PreferV4,
    /// IPv6, or IPv4 where there is none.
    PreferV6,
    /// IPv4 alone.
    OnlyV4,
    /// IPv6 alone.
    OnlyV6,
}

/// A network: addresses that begin with the same bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    addr: IpAddr,
    len: u8,
}

/// What a GID must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GidPolicy {
    /// Which family.
    pub family: Family,
    /// In which network.
    pub prefix: Option<Prefix>,
    /// Exactly this index, whatever else is there. It may stand for another address tomorrow.
    pub index: Option<u16>,
}

/// Why a GID cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unusable {
    /// Not RoCE v2.
    NotRoceV2,
    /// Its interface is in another network namespace; the error that the kernel gave, if it did.
    OtherNamespace(Option<i32>),
    /// Link-local: reaches nothing behind a router.
    LinkLocal,
    /// Of the family that is not wanted.
    Family,
    /// Outside the network that is wanted.
    Prefix,
    /// No address that packets can carry.
    NotUnicast,
}

/// A GID that was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Selected<'a> {
    /// It.
    pub gid: &'a Gid,
    /// True if nothing but link-local ones was there: only hosts on the same link are reached.
    pub link_local: bool,
}

/// Why no GID was chosen.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GidError {
    /// The table is empty.
    #[error(
        "its GID table is empty: the interface {netdev} has no address in this network namespace; give it one (`ip address add`)"
    )]
    Empty {
        /// The port's interface, or what is known of it.
        netdev: String,
    },
    /// None fits.
    #[error("none of its {count} GIDs can be used ({why}); {step}")]
    NoneUsable {
        /// How many there are.
        count: usize,
        /// How many of them have which fault.
        why: String,
        /// What to do.
        step: &'static str,
    },
    /// The index asked for is not in the table.
    #[error(
        "GID index {index} was asked for, but the port's GIDs have the indices {have}; choose one of these, or leave the index out"
    )]
    NoIndex {
        /// Asked for.
        index: u16,
        /// There.
        have: String,
    },
    /// The index asked for cannot be used.
    #[error("GID index {index} was asked for, but it is {addr}, {why}; choose another, or leave the index out")]
    BadIndex {
        /// Asked for.
        index: u16,
        /// Its address.
        addr: IpAddr,
        /// Its fault.
        why: Unusable,
    },
}

/// A variable that does not say which GIDs are wanted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{variable}: \"{value}\" is not {wanted}")]
pub struct PolicyError {
    /// Which variable.
    pub variable: &'static str,
    /// Its value.
    pub value: String,
    /// What it should be.
    pub wanted: &'static str,
}

impl GidPolicy {
    /// What the variables say: `PLANESPRAY_GID_INDEX`, `_ADDR_FAMILY` and `_ADDR_RANGE`, or NCCL's `NCCL_IB_*` of these
    /// names. Also which variables decided.
    ///
    /// # Errors
    /// A value that is none.
    pub fn from_variables(lookup: Lookup<'_>) -> Result<(GidPolicy, Vec<&'static str>), PolicyError> {
        let mut policy = GidPolicy::default();
        let mut decided = Vec::new();
        if let Some((variable, value)) = first_set(lookup, &INDEX) {
            // NCCL's -1 is "choose by yourself".
            if value.trim() != "-1" {
                let wanted = "a GID index (0 to 65535, or -1 to choose by address)";
                let index = value.trim().parse().map_err(|_| PolicyError { variable, value, wanted })?;
                policy.index = Some(index);
                decided.push(variable);
            }
        }
        if let Some((variable, value)) = first_set(lookup, &FAMILY) {
            policy.family = match (value.trim(), variable == FAMILY[1]) {
                // NCCL's family filters strictly.
                ("AF_INET", true) | ("ipv4-only", false) => Family::OnlyV4,
                ("AF_INET6", true) | ("ipv6-only", false) => Family::OnlyV6,
                ("ipv4" | "AF_INET", false) => Family::PreferV4,
                ("ipv6" | "AF_INET6", false) => Family::PreferV6,
                (_, nccl) => {
                    let wanted = if nccl { "AF_INET or AF_INET6" } else { "ipv4, ipv6, ipv4-only or ipv6-only" };
                    return Err(PolicyError { variable, value, wanted });
                }
            };
            decided.push(variable);
        }
        if let Some((variable, value)) = first_set(lookup, &RANGE) {
            let wanted = "a network such as 10.0.0.0/16 or fd00::/8";
            policy.prefix = Some(value.trim().parse().map_err(|()| PolicyError { variable, value, wanted })?);
            decided.push(variable);
        }
        Ok((policy, decided))
    }

    /// What is wrong with a GID, if anything. Being link-local is a fault that counts only beside a routable one.
    pub fn judge(&self, gid: &Gid) -> Result<(), Unusable> {
        if gid.kind != GidType::RoceV2 {
            return Err(Unusable::NotRoceV2);
        }
        match gid.netdev {
            GidNetdev::Here(_) => {}
            GidNetdev::Unreadable(errno) => return Err(Unusable::OtherNamespace(Some(errno))),
            GidNetdev::Elsewhere(_) => return Err(Unusable::OtherNamespace(None)),
        }
        if gid.addr.is_multicast() || gid.addr.is_unspecified() {
            return Err(Unusable::NotUnicast);
        }
        match (self.family, gid.addr) {
            (Family::OnlyV4, IpAddr::V6(_)) | (Family::OnlyV6, IpAddr::V4(_)) => return Err(Unusable::Family),
            _ => {}
        }
        if self.prefix.is_some_and(|p| !p.contains(gid.addr)) {
            return Err(Unusable::Prefix);
        }
        if is_link_local(gid.addr) {
            return Err(Unusable::LinkLocal);
        }
        Ok(())
    }
}

/// Chooses a GID: RoCE v2, of an interface in this network namespace, in the wanted network and family, routable if there
/// is one; of these the first of the preferred family.
///
/// # Errors
/// None fits, or the index that is asked for does not.
pub fn select<'a>(gids: &'a [Gid], policy: &GidPolicy, netdev: Option<&str>) -> Result<Selected<'a>, GidError> {
    if let Some(index) = policy.index {
        let Some(gid) = gids.iter().find(|g| g.index == index) else {
            return Err(GidError::NoIndex { index, have: indices(gids) });
        };
        return match policy.judge(gid) {
            Ok(()) => Ok(Selected { gid, link_local: false }),
            Err(Unusable::LinkLocal) if !gids.iter().any(|g| policy.judge(g).is_ok()) => {
                Ok(Selected { gid, link_local: true })
            }
            Err(why) => Err(GidError::BadIndex { index, addr: gid.addr, why }),
        };
    }
    let prefers_v6 = matches!(policy.family, Family::PreferV6 | Family::OnlyV6);
    let first = |wanted: Result<(), Unusable>| {
        let fits = |g: &&Gid| policy.judge(g) == wanted;
        let preferred = gids.iter().filter(fits).find(|g| g.addr.is_ipv6() == prefers_v6);
        preferred.or_else(|| gids.iter().find(fits))
    };
    if let Some(gid) = first(Ok(())) {
        return Ok(Selected { gid, link_local: false });
    }
    if let Some(gid) = first(Err(Unusable::LinkLocal)) {
        return Ok(Selected { gid, link_local: true });
    }
    if gids.is_empty() {
        return Err(GidError::Empty { netdev: netdev.unwrap_or("of the port").into() });
    }
    let mut counts: Vec<(String, usize)> = Vec::new();
    for text in gids.iter().filter_map(|g| policy.judge(g).err()).map(|why| why.to_string()) {
        match counts.iter_mut().find(|c| c.0 == text) {
            Some(count) => count.1 += 1,
            None => counts.push((text, 1)),
        }
    }
    let why: Vec<String> = counts.into_iter().map(|(why, n)| format!("{n} {why}")).collect();
    let any = |what: fn(&Unusable) -> bool| gids.iter().filter_map(|g| policy.judge(g).err()).any(|why| what(&why));
    let step = if any(|w| matches!(w, Unusable::Family | Unusable::Prefix)) {
        "allow another address family or network, or give the interface an address of the wanted one"
    } else if any(|w| matches!(w, Unusable::OtherNamespace(_))) {
        "move the port's interface into this network namespace, or run in its namespace (a pod needs a network of the NIC, or hostNetwork)"
    } else {
        "give the interface an address, and check that the NIC's RoCE mode is version 2"
    };
    Err(GidError::NoneUsable { count: gids.len(), why: why.join(", "), step })
}

/// The index at which the RoCE v2 GID of `addr` is now, in this network namespace. After a GID event an index that was
/// chosen before means nothing; its address does.
pub fn find_address(gids: &[Gid], addr: IpAddr) -> Option<u16> {
    let here = |g: &&Gid| g.kind == GidType::RoceV2 && matches!(g.netdev, GidNetdev::Here(_));
    gids.iter().filter(here).find(|g| g.addr == addr.to_canonical()).map(|g| g.index)
}

fn indices(gids: &[Gid]) -> String {
    const SHOWN: usize = 16;
    let mut text: Vec<String> = gids.iter().take(SHOWN).map(|g| g.index.to_string()).collect();
    if gids.len() > SHOWN {
        text.push("..".into());
    }
    if text.is_empty() { "none".into() } else { text.join(", ") }
}

fn is_link_local(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

impl Prefix {
    /// Whether `addr` begins with its bits; never for another family.
    pub fn contains(&self, addr: IpAddr) -> bool {
        match (self.addr, addr) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= u32::from(self.len),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= u32::from(self.len),
            _ => false,
        }
    }
}

impl FromStr for Prefix {
    type Err = ();

    fn from_str(text: &str) -> Result<Prefix, ()> {
        let (addr, len) = text.split_once('/').ok_or(())?;
        let addr: IpAddr = addr.parse().map_err(|_| ())?;
        let len: u8 = len.parse().map_err(|_| ())?;
        let bits = if addr.is_ipv4() { 32 } else { 128 };
        if len <= bits { Ok(Prefix { addr, len }) } else { Err(()) }
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusable::NotRoceV2 => f.write_str("not RoCE v2"),
            Unusable::OtherNamespace(Some(errno)) => {
                write!(f, "of another network namespace (its interface gives errno {errno})")
            }
            Unusable::OtherNamespace(None) => f.write_str("of an interface that is not in this network namespace"),
            Unusable::LinkLocal => f.write_str("link-local while a routable one exists"),
            Unusable::Family => f.write_str("of the address family that is not wanted"),
            Unusable::Prefix => f.write_str("outside the wanted network"),
            Unusable::NotUnicast => f.write_str("no unicast address"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u16, addr: &str) -> Gid {
        let netdev = GidNetdev::Here("eth0".into());
        Gid { index, addr: addr.parse().unwrap(), kind: GidType::RoceV2, netdev }
    }

    fn pick(gids: &[Gid], policy: &GidPolicy) -> Result<(u16, bool), String> {
        select(gids, policy, Some("eth0")).map(|s| (s.gid.index, s.link_local)).map_err(|e| e.to_string())
    }

    fn policy(family: Family, prefix: Option<&str>, index: Option<u16>) -> GidPolicy {
        GidPolicy { family, prefix: prefix.map(|p| p.parse().unwrap()), index }
    }

    #[test]
    fn never_link_local_beside_a_routable_one() {
        let mut v1 = gid(2, "10.0.0.1");
        v1.kind = GidType::RoceV1;
        let table = [gid(0, "fe80::1"), gid(1, "169.254.0.9"), v1, gid(3, "fd00::1"), gid(4, "10.0.0.1")];
        assert_eq!(pick(&table, &GidPolicy::default()), Ok((4, false)));
        assert_eq!(pick(&table, &policy(Family::PreferV6, None, None)), Ok((3, false)));
        assert_eq!(pick(&table[..4], &GidPolicy::default()), Ok((3, false)), "IPv6 where there is no IPv4");
        assert_eq!(pick(&table[..3], &GidPolicy::default()), Ok((1, true)));
        assert_eq!(pick(&table[..1], &GidPolicy::default()), Ok((0, true)));
        let text = pick(&table, &policy(Family::default(), None, Some(0))).unwrap_err();
        assert!(text.contains("index 0") && text.contains("fe80::1") && text.contains("link-local"), "{text}");
    }

    #[test]
    fn other_namespaces_are_skipped() {
        let mut first = gid(1, "10.0.0.1");
        first.netdev = GidNetdev::Unreadable(libc::EINVAL);
        let mut second = gid(2, "10.0.0.2");
        second.netdev = GidNetdev::Elsewhere("ens8".into());
        let table = [first, second, gid(7, "10.0.0.3")];
        assert_eq!(pick(&table, &GidPolicy::default()), Ok((7, false)));
        let text = pick(&table[..2], &GidPolicy::default()).unwrap_err();
        for part in ["2 GIDs", "errno 22", "another network namespace", "hostNetwork"] {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
        // By address, too: the same address may be there for several namespaces.
        assert_eq!(find_address(&table, "10.0.0.1".parse().unwrap()), None);
        assert_eq!(find_address(&table, "::ffff:10.0.0.3".parse().unwrap()), Some(7));
    }

    #[test]
    fn family_network_and_index() {
        let table = [gid(0, "fd00::1"), gid(1, "10.1.0.1"), gid(2, "10.2.0.1")];
        assert_eq!(pick(&table, &policy(Family::default(), Some("10.2.0.0/16"), None)), Ok((2, false)));
        assert_eq!(pick(&table, &policy(Family::OnlyV6, None, None)), Ok((0, false)));
        assert_eq!(pick(&table, &policy(Family::default(), None, Some(1))), Ok((1, false)));
        let text = pick(&table, &policy(Family::OnlyV4, Some("192.168.0.0/16"), None)).unwrap_err();
        for part in ["3 GIDs", "1 of the address family", "2 outside the wanted network", "allow another"] {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
        let text = pick(&table, &policy(Family::default(), None, Some(9))).unwrap_err();
        assert!(text.contains("index 9") && text.contains("0, 1, 2"), "{text}");
        let text = pick(&[], &GidPolicy::default()).unwrap_err();
        assert!(text.contains("empty") && text.contains("eth0") && text.contains("ip address add"), "{text}");
    }

    #[test]
    fn found_again_by_address_after_the_table_moved() {
        let addr = "10.0.0.1".parse().unwrap();
        assert_eq!(find_address(&[gid(3, "10.0.0.1")], addr), Some(3));
        assert_eq!(find_address(&[gid(1, "fe80::1"), gid(5, "10.0.0.1")], addr), Some(5));
        let mut v1 = gid(0, "10.0.0.1");
        v1.kind = GidType::RoceV1;
        assert_eq!(find_address(&[v1], addr), None);
    }

    #[test]
    fn prefixes() {
        let p: Prefix = "10.0.0.0/8".parse().unwrap();
        assert!(p.contains("10.255.0.1".parse().unwrap()) && !p.contains("11.0.0.1".parse().unwrap()));
        assert!(!p.contains("::1".parse().unwrap()));
        let all: Prefix = "::/0".parse().unwrap();
        assert!(all.contains("fd00::1".parse().unwrap()));
        assert!("10.0.0.1/32".parse::<Prefix>().unwrap().contains("10.0.0.1".parse().unwrap()));
        for wrong in ["", "10.0.0.0", "10.0.0.0/33", "::/129", "x/8", "10.0.0.0/-1"] {
            assert!(wrong.parse::<Prefix>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn variables_decide() {
        let from = |pairs: &'static [(&'static str, &'static str)]| {
            GidPolicy::from_variables(&move |n: &str| pairs.iter().find(|p| p.0 == n).map(|p| p.1.to_owned()))
        };
        assert_eq!(from(&[]).unwrap(), (GidPolicy::default(), vec![]));
        let (p, by) = from(&[("NCCL_IB_GID_INDEX", "3"), ("NCCL_IB_ADDR_FAMILY", "AF_INET6")]).unwrap();
        assert_eq!(
            (p.index, p.family, by),
            (Some(3), Family::OnlyV6, vec!["NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_FAMILY"])
        );
        let (p, by) = from(&[("NCCL_IB_GID_INDEX", "3"), ("PLANESPRAY_GID_INDEX", "-1")]).unwrap();
        assert_eq!((p.index, by), (None, vec![]), "ours says: choose");
        let (p, _) = from(&[("PLANESPRAY_ADDR_FAMILY", "ipv6"), ("PLANESPRAY_ADDR_RANGE", "fd00::/8")]).unwrap();
        assert_eq!((p.family, p.prefix), (Family::PreferV6, Some("fd00::/8".parse().unwrap())));
        for (name, value) in
            [("NCCL_IB_GID_INDEX", "x"), ("PLANESPRAY_ADDR_FAMILY", "ipx"), ("NCCL_IB_ADDR_RANGE", "10.0.0.0/40")]
        {
            let e = GidPolicy::from_variables(&|n: &str| (n == name).then(|| value.to_owned())).unwrap_err();
            assert!(e.to_string().contains(name) && e.to_string().contains(value), "{e}");
        }
    }
}
