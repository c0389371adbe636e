//! Two RoCE devices talking over a link in virtual time.

mod net;
mod random;
