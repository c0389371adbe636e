//! Two RoCE devices talking over a link in virtual time.

mod basics;
mod device;
mod hostile;
mod net;
mod random;
mod speed;
