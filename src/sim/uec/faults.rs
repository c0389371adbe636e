//! Parts of the fabric that are slow or dead, from the start or from some time on.

use std::str::FromStr;

use thiserror::Error;

use super::layout::Layout;
use crate::time::Span;

/// A part of the fabric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All links of a plane. In a slow one the ports of hosts still send at full speed: its switches are slow.
    Plane(u8),
    /// All links of a switch of the top tier.
    Spine {
        /// Its plane; `None` is every plane.
        plane: Option<u8>,
        /// Which one.
        spine: u32,
    },
    /// A link between a leaf and the switch above it, in both directions.
    Link {
        /// Its plane.
        plane: u8,
        /// The leaf.
        leaf: u32,
        /// The leaf's port upwards.
        port: u32,
    },
    /// A link between a switch of the second tier and a core, in both directions.
    MiddleLink {
        /// Its plane.
        plane: u8,
        /// The switch of the second tier.
        switch: u32,
        /// The switch's port upwards.
        port: u32,
    },
    /// A host's link into a plane, in both directions.
    HostPort {
        /// The host.
        host: u32,
        /// The plane.
        plane: u8,
    },
}

/// A change of a part.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Change {
    /// When.
    pub at: Span,
    /// What changes.
    pub part: Part,
    /// The share of its speed that it has from then on: 1 is whole, 0 swallows packets and nobody is told.
    pub speed: f64,
}

/// Why a change was refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{0}")]
pub struct ChangeError(pub(super) String);

impl FromStr for Change {
    type Err = ChangeError;

    /// `TIME:PART:STATE` with a time such as `50us`, a part such as `plane:0`, `spine:PLANE.SPINE`, `spine:SPINE` (of
    /// every plane), `link:PLANE.LEAF.PORT`, `agg:PLANE.SWITCH.PORT` (between the upper tiers of three) or `host:HOST.PLANE`, and `dead`, `up` or a share such as `0.35`.
    fn from_str(text: &str) -> Result<Change, ChangeError> {
        let refuse = |what: &str| ChangeError(format!("`{text}`: {what}"));
        let words: Vec<&str> = text.split(':').collect();
        let [at, kind, which, state] = words[..] else {
            return Err(refuse("an event is TIME:PART:WHICH:STATE, such as 50us:plane:0:dead"));
        };
        let at = time(at).ok_or_else(|| refuse("the time is a number with ns, us or ms, such as 50us"))?;
        let numbers: Option<Vec<u32>> = which.split('.').map(|n| n.parse().ok()).collect();
        let numbers = numbers.ok_or_else(|| refuse("parts are named by numbers with points between them"))?;
        let small = |n: u32| u8::try_from(n).map_err(|_| refuse("there are at most 8 planes"));
        let part = match (kind, &numbers[..]) {
            ("plane", &[plane]) => Part::Plane(small(plane)?),
            ("spine", &[spine]) => Part::Spine { plane: None, spine },
            ("spine", &[plane, spine]) => Part::Spine { plane: Some(small(plane)?), spine },
            ("link", &[plane, leaf, port]) => Part::Link { plane: small(plane)?, leaf, port },
            ("agg", &[plane, switch, port]) => Part::MiddleLink { plane: small(plane)?, switch, port },
            ("host", &[host, plane]) => Part::HostPort { host, plane: small(plane)? },
            _ => {
                return Err(refuse(
                    "parts are plane:P, spine:S, spine:P.S, link:P.LEAF.PORT, agg:P.SWITCH.PORT and host:H.P",
                ));
            }
        };
        let speed = match state {
            "dead" => 0.0,
            "up" => 1.0,
            share => share
                .parse()
                .ok()
                .filter(|s| (0.001..=1.0).contains(s))
                .ok_or_else(|| refuse("the state is dead, up or a share of the speed from 0.001 to 1"))?,
        };
        Ok(Change { at, part, speed })
    }
}

/// A time such as `50us` or `1.5ms`, below an hour.
fn time(text: &str) -> Option<Span> {
    let split = text.find(|c: char| c.is_ascii_alphabetic())?;
    let scale = match &text[split..] {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    let number: f64 = text[..split].parse().ok()?;
    let ns = number * scale;
    (0.0..3.6e12).contains(&ns).then_some(Span::from_nanos(ns as u64))
}

/// The speed that each link has now.
#[derive(Clone, Debug)]
pub(super) struct Conditions {
    planes: Vec<f64>,
    /// Changes of single links since the start, the later ones last.
    parts: Vec<(Part, f64)>,
    /// Whether a plane has changes of single links.
    uneven: Vec<bool>,
}

impl Conditions {
    pub(super) fn new(planes: u8) -> Conditions {
        let n = usize::from(planes);
        Conditions { planes: vec![1.0; n], parts: Vec::new(), uneven: vec![false; n] }
    }

    /// Checks that a part exists.
    pub(super) fn check(part: Part, planes: u8, layout: &Layout) -> Result<(), ChangeError> {
        let plane = |p: u8| if p < planes { Ok(()) } else { Err(format!("there are {planes} planes, counted from 0")) };
        let below = |n: u32, limit: u32, what: &str| {
            if n < limit { Ok(()) } else { Err(format!("there are {limit} {what}, counted from 0")) }
        };
        let checked = match part {
            Part::Plane(p) => plane(p),
            Part::Spine { plane: p, spine } => {
                p.map_or(Ok(()), plane).and_then(|()| below(spine, layout.spines(), "spines"))
            }
            Part::Link { plane: p, leaf, port } => plane(p)
                .and_then(|()| below(leaf, layout.leaves, "leaves"))
                .and_then(|()| layout.leaf_link(leaf, port).map(|_| ()).ok_or(format!("a leaf has no port {port}"))),
            Part::MiddleLink { plane: p, switch, port } => plane(p)
                .and_then(|()| layout.middle_link(switch, port).map(|_| ()).ok_or("there is no such link".to_string())),
            Part::HostPort { host, plane: p } => plane(p).and_then(|()| below(host, layout.hosts, "hosts")),
        };
        checked.map_err(ChangeError)
    }

    pub(super) fn apply(&mut self, part: Part, speed: f64) {
        match part {
            Part::Plane(p) => self.planes[usize::from(p)] = speed,
            _ => {
                self.parts.retain(|(other, _)| *other != part);
                self.parts.push((part, speed));
                for (p, uneven) in self.uneven.iter_mut().enumerate() {
                    *uneven |= match part {
                        Part::Spine { plane: None, .. } => true,
                        Part::Spine { plane: Some(plane), .. }
                        | Part::Link { plane, .. }
                        | Part::MiddleLink { plane, .. }
                        | Part::HostPort { plane, .. } => usize::from(plane) == p,
                        Part::Plane(_) => false,
                    };
                }
            }
        }
    }

    /// True if all links of the plane have the same share of their speed.
    pub(super) fn even(&self, plane: u8) -> bool {
        !self.uneven[usize::from(plane)]
    }

    /// The shares of all links of a plane.
    pub(super) fn shares(&self, plane: u8, layout: &Layout) -> Vec<f64> {
        let speed = self.planes[usize::from(plane)];
        let mut shares = vec![speed; layout.links() as usize];
        if speed > 0.0 {
            shares[..layout.hosts as usize].fill(1.0);
        }
        for &(part, speed) in &self.parts {
            match part {
                Part::Spine { plane: p, spine } if p.is_none_or(|p| p == plane) => {
                    let switch = layout.leaves + layout.middles + layout.cores - layout.spines() + spine;
                    for link in 2 * layout.hosts..layout.links() {
                        let wire = layout.wire(link);
                        if wire.from == Some(switch) || wire.to == Some(switch) {
                            shares[link as usize] *= speed;
                        }
                    }
                }
                Part::Link { plane: p, leaf, port } if p == plane => {
                    for link in layout.leaf_link(leaf, port).into_iter().flatten() {
                        shares[link as usize] *= speed;
                    }
                }
                Part::MiddleLink { plane: p, switch, port } if p == plane => {
                    for link in layout.middle_link(switch, port).into_iter().flatten() {
                        shares[link as usize] *= speed;
                    }
                }
                Part::HostPort { host, plane: p } if p == plane => {
                    shares[layout.host_up(host) as usize] *= speed;
                    shares[layout.host_down(host) as usize] *= speed;
                }
                _ => {}
            }
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::super::topo::Topology;
    use super::*;

    #[test]
    fn events_are_read() {
        let at = |us| Span::from_micros(us);
        let read = |text: &str| text.parse::<Change>().expect("an event");
        assert_eq!(read("50us:plane:0:dead"), Change { at: at(50), part: Part::Plane(0), speed: 0.0 });
        assert_eq!(read("1.5ms:plane:3:up"), Change { at: at(1500), part: Part::Plane(3), speed: 1.0 });
        let spine = Part::Spine { plane: Some(1), spine: 12 };
        assert_eq!(read("0us:spine:1.12:0.25"), Change { at: at(0), part: spine, speed: 0.25 });
        assert_eq!(read("0us:spine:3:up").part, Part::Spine { plane: None, spine: 3 });
        assert_eq!(read("7us:link:0.2.15:dead").part, Part::Link { plane: 0, leaf: 2, port: 15 });
        assert_eq!(read("7us:host:99.1:dead").part, Part::HostPort { host: 99, plane: 1 });
        for bad in [
            "50us:plane:0",
            "50:plane:0:dead",
            "50us:plane:x:dead",
            "50us:rack:0:dead",
            "-1us:plane:0:dead",
            "50us:plane:0:2.0",
            "50us:plane:0:0",
            "50us:plane:999:dead",
            "50us:link:0.1:dead",
            ":::",
        ] {
            assert!(bad.parse::<Change>().is_err(), "{bad}");
        }
        assert_eq!(
            "50us:plane:0:slow".parse::<Change>().expect_err("no state").to_string(),
            "`50us:plane:0:slow`: the state is dead, up or a share of the speed from 0.001 to 1"
        );
    }

    #[test]
    fn shares_multiply_and_are_taken_back() {
        let t = Topology::parse(include_str!("../../../tests/fabric/ls16_100g.topo")).expect("a good file");
        let layout = Layout::new(&t);
        let mut c = Conditions::new(2);
        assert!(c.even(0));
        c.apply(Part::Plane(1), 0.5);
        c.apply(Part::Spine { plane: Some(1), spine: 2 }, 0.5);
        let [up, down] = layout.leaf_link(3, 2).expect("a port");
        let shares = c.shares(1, &layout);
        assert_eq!((shares[up as usize], shares[down as usize]), (0.25, 0.25));
        assert_eq!(shares.iter().filter(|&&s| s == 0.25).count(), 8);
        assert!(c.even(0) && !c.even(1));
        assert!(c.shares(0, &layout).iter().all(|&s| s == 1.0));
        c.apply(Part::Spine { plane: Some(1), spine: 2 }, 1.0);
        c.apply(Part::Plane(1), 1.0);
        assert!(c.shares(1, &layout).iter().all(|&s| s == 1.0));
        let check = |part| Conditions::check(part, 2, &layout).map_err(|e| e.to_string());
        assert_eq!(check(Part::Plane(2)), Err("there are 2 planes, counted from 0".into()));
        assert_eq!(check(Part::Spine { plane: None, spine: 4 }), Err("there are 4 spines, counted from 0".into()));
        assert_eq!(check(Part::Link { plane: 0, leaf: 0, port: 4 }), Err("a leaf has no port 4".into()));
        assert_eq!(check(Part::HostPort { host: 15, plane: 1 }), Ok(()));
    }
}
