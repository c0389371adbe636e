//! Where datagrams go, and the path part of a connection.

use std::fmt;
use std::net::IpAddr;
use std::ptr::NonNull;

use super::error::VerbsError;
use super::pd::Pd;
use super::port::gid_of;
use super::sys::*;

/// The way to a peer's port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Our port, from 1.
    pub port: u8,
    /// Our entry in the port's GID table.
    pub sgid_index: u8,
    /// The peer's address.
    pub peer: IpAddr,
    /// 20 bits from which the device makes the UDP source port; 0 leaves that to the device.
    pub flow_label: u32,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// Routers that packets may pass.
    pub hop_limit: u8,
}

/// The flow label whose source port is `0xc000 | entropy`, by the rule of the RoCEv2 annex that Linux and most
/// devices follow: the low 14 bits, with the high 6 added without carry. Never 0, which would mean "any".
pub fn flow_label(entropy: u16) -> u32 {
    let low = u32::from(entropy) & 0x3fff;
    1 << 14 | (low ^ 1)
}

/// The UDP source port of a lane: one of the 16,384 that RoCEv2 has for it.
pub fn source_port(entropy: u16) -> u16 {
    0xc000 | entropy
}

impl Route {
    pub(super) fn attributes(&self) -> ibv_ah_attr {
        ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: gid_of(self.peer) },
                flow_label: self.flow_label & 0xf_ffff,
                sgid_index: self.sgid_index,
                hop_limit: self.hop_limit,
                traffic_class: self.traffic_class,
            },
            dlid: 0,
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
            is_global: 1,
            port_num: self.port,
        }
    }
}

/// An address handle: where datagrams of one protection domain go.
pub struct Ah {
    pd: Pd,
    ptr: NonNull<ibv_ah>,
}

// SAFETY: libibverbs allows calls on an address handle from any thread.
unsafe impl Send for Ah {}
// SAFETY: as above.
unsafe impl Sync for Ah {}

impl Ah {
    /// A new one.
    ///
    /// # Errors
    /// The device cannot resolve the address, or has no handles left.
    pub fn new(pd: &Pd, route: &Route) -> Result<Ah, VerbsError> {
        let mut attr = route.attributes();
        // SAFETY: a live domain, and attributes of our own.
        let ptr = unsafe { (pd.context().library.f.create_ah)(pd.as_ptr(), &mut attr) };
        let ptr = NonNull::new(ptr).ok_or_else(|| pd.context().failed("ibv_create_ah"))?;
        Ok(Ah { pd: pd.clone(), ptr })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_ah {
        self.ptr.as_ptr()
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        // SAFETY: made once; requests copied what they need when they were posted.
        unsafe { (self.pd.context().library.f.destroy_ah)(self.ptr.as_ptr()) };
    }
}

impl fmt::Debug for Ah {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ah({})", self.pd.context().name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_labels_give_the_source_port() {
        for entropy in (0..=u16::MAX).step_by(7) {
            let label = flow_label(entropy);
            assert!(label != 0 && label <= 0xf_ffff);
            let port = 0xc000 | ((label & 0x3fff) ^ ((label & 0xf_c000) >> 14));
            assert_eq!(port, u32::from(source_port(entropy)), "entropy {entropy}");
        }
    }
}
