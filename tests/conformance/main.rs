//! What every backend must do, whatever moves its bytes.
//!
//! [`cases`] are written against [`planespray::lanes::Lanes`] alone and run on each backend by
//! [`conformance!`]; [`sim`], [`soft`] and [`verbs`] say how two ends of a backend are made and add what only they can do.
// Both ends are told apart by a number throughout.
#![allow(clippy::needless_range_loop)]

#[macro_use]
mod cases;
mod rig;
mod sim;
mod soft;
#[cfg(target_os = "linux")]
mod verbs;
mod wall;
