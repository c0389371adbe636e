//! What every backend must do, whatever moves its bytes.
//!
//! [`cases`] are written against [`planespray::lanes::Lanes`] alone and run on each backend by
//! [`conformance!`]; [`sim`] and [`soft`] say how two ends of a backend are made and add what only they can do.

#[macro_use]
mod cases;
mod rig;
mod sim;
mod soft;
