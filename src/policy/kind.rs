//! The policies by name.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::bitmap::Bitmap;
use super::planespray::{Balancer, Tuning};
use super::reps::Reps;
use super::simple::{Fixed, Rotation, TwoRandom, spread};
use super::{ChunkRule, Chunks, Policy};
use crate::time::Span;

/// A policy by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Every flow on the same path of the first plane.
    Single,
    /// Each flow on a path of its own that a hash chose.
    Ecmp,
    /// All paths in turn (NCCL, DQPLB).
    RoundRobin,
    /// Of two random paths the one with the lower round-trip time (UCCL).
    TwoRandomRtt,
    /// All paths in a random order (oblivious packet spray).
    Oblivious,
    /// Recycled entropies.
    Reps,
    /// A penalty per path.
    Bitmap,
    /// Recycled values, otherwise penalties (UEC's default).
    Mixed,
    /// Planes by expected completion, paths by proof.
    Planespray,
}

/// All of them.
const ALL: [(Kind, &str); 9] = [
    (Kind::Single, "single"),
    (Kind::Ecmp, "ecmp"),
    (Kind::RoundRobin, "round-robin"),
    (Kind::TwoRandomRtt, "two-random-rtt"),
    (Kind::Oblivious, "oblivious"),
    (Kind::Reps, "reps"),
    (Kind::Bitmap, "bitmap"),
    (Kind::Mixed, "mixed"),
    (Kind::Planespray, "planespray"),
];

/// A name that is none.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("`{0}` is not a policy: single, ecmp, round-robin, two-random-rtt, oblivious, reps, bitmap, mixed, planespray")]
pub struct KindError(String);

impl FromStr for Kind {
    type Err = KindError;

    fn from_str(text: &str) -> Result<Kind, KindError> {
        let found = ALL.iter().find(|(_, name)| *name == text);
        found.map(|(kind, _)| *kind).ok_or_else(|| KindError(text.into()))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = ALL.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

/// What a policy is made with.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Planes, 1 to 8.
    pub planes: u8,
    /// Entropy values over all planes, a power of two.
    pub paths: u16,
    /// The unloaded round-trip time.
    pub rtt: Span,
    /// Packets of a chunk and fixed paths (queue pairs) of a flow, if it decides by chunk.
    pub chunk: Option<(u16, u16)>,
    /// Values of this project's own policy.
    pub tuning: Tuning,
}

impl Kind {
    /// True if it can decide by chunk over fixed paths.
    pub fn has_chunks(self) -> bool {
        self.rule().is_some()
    }

    fn rule(self) -> Option<ChunkRule> {
        match self {
            Kind::RoundRobin => Some(ChunkRule::RoundRobin),
            Kind::TwoRandomRtt => Some(ChunkRule::TwoRandomRtt),
            Kind::Planespray => Some(ChunkRule::ExpectedCompletion),
            _ => None,
        }
    }

    /// A policy for one connection.
    pub fn build(self, setup: Setup, random: &mut fastrand::Rng) -> Box<dyn Policy> {
        let Setup { planes, paths, .. } = setup;
        if let (Some((packets, lanes)), Some(rule)) = (setup.chunk, self.rule()) {
            return Box::new(Chunks::new(rule, planes, lanes, packets, random));
        }
        match self {
            Kind::Single => Box::new(Fixed(spread(0, planes.into()))),
            Kind::Ecmp => Box::new(Fixed(spread(random.u16(..paths), planes.into()))),
            Kind::RoundRobin => Box::new(Rotation::new(planes, paths, false, random)),
            Kind::TwoRandomRtt => Box::new(TwoRandom::new(planes, paths)),
            Kind::Oblivious => Box::new(Rotation::new(planes, paths, true, random)),
            Kind::Reps => Box::new(Reps::new(planes, paths)),
            Kind::Bitmap => Box::new(Bitmap::new(planes, paths, false, random)),
            Kind::Mixed => Box::new(Bitmap::new(planes, paths, true, random)),
            Kind::Planespray => Box::new(Balancer::new(planes, paths / u16::from(planes), setup.rtt, setup.tuning)),
        }
    }
}
