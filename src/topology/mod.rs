//! Which devices there are, which of their ports are usable, which rail and plane each is on, and which engine
//! to run over them.
//!
//! Nothing here opens a device. Facts are read from files below a root directory that the caller names (`/`, or a
//! tree made by a test); variables come through a lookup function; everything else is a pure function of these.
#![forbid(unsafe_code)]

mod assign;
mod choice;
mod file;
mod gid;
mod hca;
mod host;
mod link;
mod qualify;
mod reason;
mod survey;
mod sysfs;
#[cfg(test)]
mod tests;
#[cfg(test)]
#[path = "../../tests/common/sysfs.rs"]
mod tree;

pub use assign::{Place, PlaceSource};
pub use choice::{Choice, ChosenPort, Engine, PortReport, Request, Wanted, choose};
pub use file::{FileError, TopologyFile, TopologyPort};
pub use gid::{Family, GidError, GidPolicy, PolicyError, Prefix, Selected, Unusable, find_address, select};
pub use hca::{DecidedBy, HCA_NCCL, HCA_OWN, HcaDecision, HcaEntry, HcaError, HcaList, decide};
pub use host::{Host, Library, Memlock};
pub use link::{MTUS, lane_mtu, roce_mtu, share, weights};
pub use qualify::{Qualification, RecordError, is_qualified, record};
pub use reason::{NotTaken, Reason};
pub use survey::{Question, Survey, SurveyError, survey};
pub use sysfs::{
    Device, Gid, GidNetdev, GidType, LinkLayer, Netdev, Node, PciAddress, Port, PortState, ScanError, interface_speed,
    scan,
};

/// How a variable is looked up: `std::env::var` at the edge, a table in tests.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The value of the first of `names` that is set and not empty, with its name.
fn first_set(lookup: Lookup<'_>, names: &[&'static str]) -> Option<(&'static str, String)> {
    names.iter().find_map(|&name| Some((name, lookup(name).filter(|v| !v.trim().is_empty())?)))
}
