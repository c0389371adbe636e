//! Which HCAs to use: NCCL's grammar `[^][=]hca[:port[:rail[:plane]]],..`, and the variable that decides.

use std::fmt;
use std::str::FromStr;

use super::{Lookup, first_set};

/// Our own variable.
pub const HCA_OWN: &str = "PLANESPRAY_HCA";
/// NCCL's, taken where ours is not set.
pub const HCA_NCCL: &str = "NCCL_IB_HCA";
/// Most entries of a list, as in NCCL.
const MAX_ENTRIES: usize = 32;
/// Longest name of an RDMA device in the kernel, less its final zero.
const MAX_NAME: usize = 63;
/// Largest rail or plane number that a list may give.
const MAX_PLACE: u16 = 1023;

/// A list of HCAs. A name matches every device whose name begins with it, unless the list is exact.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HcaList {
    /// `^`: everything but these.
    pub exclude: bool,
    /// `=`: names must be equal.
    pub exact: bool,
    /// 1..=32 of them.
    pub entries: Vec<HcaEntry>,
}

/// One HCA of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HcaEntry {
    /// Its name, or how its name begins.
    pub hca: String,
    /// Its port, 1..=255; `None` for every port.
    pub port: Option<u8>,
    /// The rail to put it on.
    pub rail: Option<u16>,
    /// The plane to put it on.
    pub plane: Option<u16>,
}

/// What a list says that the grammar does not allow.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HcaError {
    /// Nothing to match.
    #[error(
        "the list \"{list}\" names no device; write `hca[:port[:rail[:plane]]],..`, or leave the variable out for all"
    )]
    Empty {
        /// The whole list.
        list: String,
    },
    /// An entry without a name.
    #[error("entry {at} \"{entry}\" has no device name; write `hca[:port[:rail[:plane]]]`")]
    NoName {
        /// Which entry, from 1.
        at: usize,
        /// Its text.
        entry: String,
    },
    /// A character that no device name has.
    #[error("entry {at} \"{entry}\": {character:?} cannot be in a device name{hint}")]
    Character {
        /// Which entry, from 1.
        at: usize,
        /// Its text.
        entry: String,
        /// The character.
        character: char,
        /// What was probably meant.
        hint: &'static str,
    },
    /// A name longer than the kernel allows.
    #[error("entry {at} \"{entry}\": a device name has at most 63 bytes")]
    LongName {
        /// Which entry, from 1.
        at: usize,
        /// Its text.
        entry: String,
    },
    /// A number that is none, or out of range.
    #[error("entry {at} \"{entry}\": {part} \"{text}\" is not a number from {min} to {max}")]
    Number {
        /// Which entry, from 1.
        at: usize,
        /// Its text.
        entry: String,
        /// `port`, `rail` or `plane`.
        part: &'static str,
        /// What stands there.
        text: String,
        /// Smallest number.
        min: u16,
        /// Largest number.
        max: u16,
    },
    /// More than four parts.
    #[error("entry {at} \"{entry}\" has {parts} parts; there are four: hca:port:rail:plane")]
    Parts {
        /// Which entry, from 1.
        at: usize,
        /// Its text.
        entry: String,
        /// How many.
        parts: usize,
    },
    /// A rail or plane for a device that is to be left out.
    #[error("entry {at} \"{entry}\" gives a {part} to a device that `^` leaves out; leave out `^` or the {part}")]
    ExcludedPlace {
        /// Which entry, from 1.
        at: usize,
        /// Its text.
        entry: String,
        /// `rail` or `plane`.
        part: &'static str,
    },
    /// The same port twice.
    #[error("entry {at} \"{entry}\" repeats an earlier one; name each port once")]
    Repeated {
        /// Which entry, from 1.
        at: usize,
        /// Its text.
        entry: String,
    },
    /// Too long.
    #[error("{entries} entries; a list has at most 32")]
    TooMany {
        /// How many.
        entries: usize,
    },
}

impl FromStr for HcaList {
    type Err = HcaError;

    fn from_str(text: &str) -> Result<HcaList, HcaError> {
        let text = text.trim();
        let (exclude, rest) = text.strip_prefix('^').map_or((false, text), |r| (true, r));
        let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |r| (true, r));
        if rest.is_empty() {
            return Err(HcaError::Empty { list: text.into() });
        }
        let count = rest.split(',').count();
        if count > MAX_ENTRIES {
            return Err(HcaError::TooMany { entries: count });
        }
        let mut entries: Vec<HcaEntry> = Vec::with_capacity(count);
        for (i, part) in rest.split(',').enumerate() {
            let entry = entry(i + 1, part, exclude)?;
            if entries.iter().any(|e| (&e.hca, e.port) == (&entry.hca, entry.port)) {
                return Err(HcaError::Repeated { at: i + 1, entry: part.into() });
            }
            entries.push(entry);
        }
        Ok(HcaList { exclude, exact, entries })
    }
}

fn entry(at: usize, text: &str, exclude: bool) -> Result<HcaEntry, HcaError> {
    let whole = || text.to_owned();
    let parts = text.split(':').count();
    if parts > 4 {
        return Err(HcaError::Parts { at, entry: whole(), parts });
    }
    let mut split = text.split(':');
    let hca = split.next().unwrap_or_default();
    if hca.is_empty() {
        return Err(HcaError::NoName { at, entry: whole() });
    }
    if hca.len() > MAX_NAME {
        return Err(HcaError::LongName { at, entry: whole() });
    }
    if let Some(character) = hca.chars().find(|c| !(c.is_ascii_alphanumeric() || "_-.@".contains(*c))) {
        let hint = match character {
            '^' | '=' => "; `^` and `=` stand once, before the first name, in this order",
            c if c.is_whitespace() => "; entries are separated by a comma alone",
            ';' => "; entries are separated by a comma",
            _ => "",
        };
        return Err(HcaError::Character { at, entry: whole(), character, hint });
    }
    let mut number = |part: &'static str, min: u16, max: u16| match split.next() {
        // An empty part means "not said", so that a rail can be given without a port.
        None | Some("") => Ok(None),
        Some(n) => match n.parse::<u16>() {
            Ok(value) if (min..=max).contains(&value) && n.bytes().all(|b| b.is_ascii_digit()) => Ok(Some(value)),
            _ => Err(HcaError::Number { at, entry: whole(), part, text: n.into(), min, max }),
        },
    };
    let port = number("port", 1, 255)?.map(|p| p as u8);
    let rail = number("rail", 0, MAX_PLACE)?;
    let plane = number("plane", 0, MAX_PLACE)?;
    if exclude && let Some(part) = rail.map(|_| "rail").or(plane.map(|_| "plane")) {
        return Err(HcaError::ExcludedPlace { at, entry: whole(), part });
    }
    Ok(HcaEntry { hca: hca.into(), port, rail, plane })
}

impl HcaList {
    /// Whether `device`'s `port` is wanted, and by which entry; the first that matches counts. With `^` there is no
    /// entry for what is wanted.
    pub fn wants(&self, device: &str, port: u8) -> Option<Option<&HcaEntry>> {
        let found = self.entries.iter().find(|e| e.port.is_none_or(|p| p == port) && self.named(e, device));
        match (found, self.exclude) {
            (Some(entry), false) => Some(Some(entry)),
            (None, true) => Some(None),
            _ => None,
        }
    }

    /// Whether an entry's name is `device`'s.
    pub fn named(&self, entry: &HcaEntry, device: &str) -> bool {
        if self.exact { device == entry.hca } else { device.starts_with(&entry.hca) }
    }

    /// Position of the first entry that matches, to order ports by.
    pub fn position(&self, device: &str, port: u8) -> usize {
        let matches = |e: &HcaEntry| e.port.is_none_or(|p| p == port) && self.named(e, device);
        self.entries.iter().position(matches).unwrap_or(self.entries.len())
    }
}

impl fmt::Display for HcaList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (exclude, exact) = (if self.exclude { "^" } else { "" }, if self.exact { "=" } else { "" });
        write!(f, "{exclude}{exact}")?;
        for (i, e) in self.entries.iter().enumerate() {
            let number = |n: Option<u16>| n.map(|n| n.to_string()).unwrap_or_default();
            let text = format!("{}:{}:{}:{}", e.hca, number(e.port.map(u16::from)), number(e.rail), number(e.plane));
            write!(f, "{}{}", if i == 0 { "" } else { "," }, text.trim_end_matches(':'))?;
        }
        Ok(())
    }
}

/// What decided a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecidedBy {
    /// An option of the command or a field of the configuration.
    Option,
    /// This variable.
    Variable(&'static str),
}

impl fmt::Display for DecidedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecidedBy::Option => f.write_str("the configuration"),
            DecidedBy::Variable(name) => f.write_str(name),
        }
    }
}

/// A list, and what it came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HcaDecision {
    /// The list.
    pub list: HcaList,
    /// What decided.
    pub by: DecidedBy,
    /// A variable that is set as well and counts for nothing.
    pub overridden: Option<&'static str>,
}

/// The list that counts: `option` before [`HCA_OWN`] before [`HCA_NCCL`]. `None` if none is set or all are empty: then
/// every HCA may be used.
///
/// # Errors
/// The one that counts is malformed; where it came from is in the answer.
pub fn decide(option: Option<&str>, lookup: Lookup<'_>) -> Result<Option<HcaDecision>, (DecidedBy, HcaError)> {
    let variable = first_set(lookup, &[HCA_OWN, HCA_NCCL]);
    let (text, by) = match (option, &variable) {
        (Some(text), _) => (text, DecidedBy::Option),
        (None, Some((name, text))) => (text.as_str(), DecidedBy::Variable(name)),
        (None, None) => return Ok(None),
    };
    let overridden = match by {
        DecidedBy::Option => variable.as_ref().map(|v| v.0),
        DecidedBy::Variable(HCA_OWN) => first_set(lookup, &[HCA_NCCL]).map(|v| v.0),
        DecidedBy::Variable(_) => None,
    };
    match text.parse() {
        Ok(list) => Ok(Some(HcaDecision { list, by, overridden })),
        Err(e) => Err((by, e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(text: &str) -> HcaList {
        text.parse().unwrap()
    }

    fn error(text: &str) -> String {
        text.parse::<HcaList>().unwrap_err().to_string()
    }

    #[test]
    fn all_forms() {
        let l = list("mlx5_0");
        assert_eq!((l.exclude, l.exact, l.entries.len()), (false, false, 1));
        let l = list("^=mlx5_0:1,mlx5_3");
        assert!(l.exclude && l.exact);
        assert_eq!(l.entries[0].port, Some(1));
        let e = &list("mlx5_0::0:1").entries[0];
        assert_eq!((e.port, e.rail, e.plane), (None, Some(0), Some(1)));
        let e = &list("mlx5_0:2:3").entries[0];
        assert_eq!((e.port, e.rail, e.plane), (Some(2), Some(3), None));
        assert_eq!(list("rocep1s0f0,roceP2p1s0f0").entries.len(), 2);
    }

    #[test]
    fn names_match_by_prefix_unless_exact() {
        let l = list("mlx5_1");
        assert!(l.wants("mlx5_1", 1).is_some() && l.wants("mlx5_10", 2).is_some() && l.wants("mlx5_2", 1).is_none());
        let l = list("=mlx5_1:2");
        assert!(l.wants("mlx5_1", 2).is_some() && l.wants("mlx5_1", 1).is_none() && l.wants("mlx5_10", 2).is_none());
        let l = list("^mlx5_1");
        assert!(l.wants("mlx5_0", 1).is_some() && l.wants("mlx5_11", 1).is_none());
        // The first that matches counts.
        let l = list("mlx5_1:1:7,mlx5_1");
        assert_eq!(l.wants("mlx5_1", 1).unwrap().unwrap().rail, Some(7));
        assert_eq!(l.wants("mlx5_1", 2).unwrap().unwrap().rail, None);
        assert_eq!((l.position("mlx5_1", 2), l.position("other", 1)), (1, 2));
    }

    #[test]
    fn errors_name_the_offending_part() {
        for (text, parts) in [
            ("", &["names no device"][..]),
            ("^=", &["\"^=\"", "names no device"]),
            ("a,,b", &["entry 2 \"\"", "no device name"]),
            (":1", &["entry 1 \":1\"", "no device name"]),
            ("mlx5_0:x", &["entry 1 \"mlx5_0:x\"", "port \"x\"", "1 to 255"]),
            ("mlx5_0:0", &["port \"0\""]),
            ("mlx5_0:256", &["port \"256\""]),
            ("mlx5_0:+1", &["port \"+1\""]),
            ("a,mlx5_0:1:-1", &["entry 2", "rail \"-1\"", "0 to 1023"]),
            ("mlx5_0:1:0:99999", &["plane \"99999\""]),
            ("a:1:2:3:4", &["5 parts", "hca:port:rail:plane"]),
            ("a, b", &["entry 2 \" b\"", "' '", "comma alone"]),
            ("a;b", &["';'", "separated by a comma"]),
            ("=^a", &["'^'", "in this order"]),
            ("^a:1:0", &["gives a rail", "leave out `^`"]),
            ("a:1,b,a:1:3", &["entry 3 \"a:1:3\"", "repeats"]),
        ] {
            let got = error(text);
            for part in parts {
                assert!(got.contains(part), "{text:?}: {part:?} is missing in {got:?}");
            }
        }
        let many: Vec<String> = (0..33).map(|i| format!("d{i}")).collect();
        assert!(error(&many.join(",")).contains("33 entries"));
        assert!(error(&"x".repeat(64)).contains("63 bytes"));
    }

    #[test]
    fn the_result_says_which_variable_decided() {
        let env = |pairs: &'static [(&'static str, &'static str)]| {
            move |name: &str| pairs.iter().find(|p| p.0 == name).map(|p| p.1.to_owned())
        };
        assert_eq!(decide(None, &env(&[])).unwrap(), None);
        assert_eq!(decide(None, &env(&[(HCA_OWN, ""), (HCA_NCCL, " ")])).unwrap(), None);
        let d = decide(None, &env(&[(HCA_NCCL, "mlx5_0")])).unwrap().unwrap();
        assert_eq!((d.by, d.overridden), (DecidedBy::Variable(HCA_NCCL), None));
        let d = decide(None, &env(&[(HCA_NCCL, "mlx5_0"), (HCA_OWN, "rxe0")])).unwrap().unwrap();
        assert_eq!(
            (d.by, d.overridden, d.list.to_string()),
            (DecidedBy::Variable(HCA_OWN), Some(HCA_NCCL), "rxe0".into())
        );
        let d = decide(Some("a"), &env(&[(HCA_NCCL, "::")])).unwrap().unwrap();
        assert_eq!((d.by, d.overridden), (DecidedBy::Option, Some(HCA_NCCL)));
        let (by, e) = decide(None, &env(&[(HCA_NCCL, "a:q")])).unwrap_err();
        assert_eq!(by.to_string(), "NCCL_IB_HCA");
        assert!(e.to_string().contains("\"q\""));
    }

    proptest! {
        #[test]
        fn any_text_is_taken_or_refused(text in "[\\^=]{0,2}[a-z0-9_:,\\-; ]{0,40}") {
            if let Ok(list) = text.parse::<HcaList>() {
                // What was taken is written as something that means the same.
                prop_assert_eq!(&list.to_string().parse::<HcaList>().unwrap(), &list);
            }
        }
    }
}
