//! What NCCL is told about our devices.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::abi::{PTR_HOST, PropsV6, PropsV7, PropsV8, PropsV9, PropsV11, PropsV12, VProps4, VProps8};

/// Most bytes of one message: the lengths that `test` reports are 32-bit numbers.
const MAX_BYTES: usize = 1 << 30;
/// Mb/s of an interface that does not say how fast it is, as for NCCL's own sockets.
const UNKNOWN_SPEED: i32 = 10_000;
/// Receives in one group.
pub(super) const MAX_RECVS: i32 = 1;

/// One device: all planes of this machine, between which every message is spread.
#[derive(Debug)]
pub(super) struct Device {
    name: &'static CStr,
    pci_path: Option<&'static CStr>,
    guid: u64,
    /// Mb/s over all planes.
    speed: i32,
}

impl Device {
    /// Looks at the interfaces of the planes.
    pub(super) fn survey(planes: &[(String, IpAddr)]) -> Device {
        let first = planes.first().map_or("", |p| p.0.as_str());
        let speed: i32 = planes.iter().map(|(name, _)| interface_speed(name).unwrap_or(UNKNOWN_SPEED)).sum();
        let host = nix_host();
        let guid = planes.iter().fold(fnv(0xcbf2_9ce4_8422_2325, host.as_bytes()), |hash, (name, addr)| {
            fnv(fnv(hash, name.as_bytes()), addr.to_string().as_bytes())
        });
        Device { name: c"planespray0", pci_path: pci_path(first).and_then(keep), guid, speed }
    }

    /// Into the caller's struct of version 6. Every field is written: NCCL does not clear it.
    pub(super) fn v6(&self) -> PropsV6 {
        PropsV6 {
            name: self.name.as_ptr(),
            pci_path: self.pci(),
            guid: self.guid,
            ptr_support: PTR_HOST,
            speed: self.speed,
            port: 1,
            latency: 0.0,
            max_comms: MAX_COMMS,
            max_recvs: MAX_RECVS,
        }
    }

    pub(super) fn v7(&self) -> PropsV7 {
        let PropsV6 { name, pci_path, guid, ptr_support, speed, port, latency, max_comms, max_recvs } = self.v6();
        PropsV7 {
            name,
            pci_path,
            guid,
            ptr_support,
            speed,
            port,
            latency,
            max_comms,
            max_recvs,
            device_type: 0,
            device_version: 0,
        }
    }

    pub(super) fn v8(&self) -> PropsV8 {
        let PropsV6 { name, pci_path, guid, ptr_support, speed, port, latency, max_comms, max_recvs } = self.v6();
        PropsV8 {
            name,
            pci_path,
            guid,
            ptr_support,
            reg_is_global: 0,
            speed,
            port,
            latency,
            max_comms,
            max_recvs,
            device_type: 0,
            device_version: 0,
        }
    }

    pub(super) fn v9(&self, dev: i32) -> PropsV9 {
        let PropsV6 { name, pci_path, guid, ptr_support, speed, port, latency, max_comms, max_recvs } = self.v6();
        PropsV9 {
            name,
            pci_path,
            guid,
            ptr_support,
            reg_is_global: 0,
            force_flush: 0,
            speed,
            port,
            latency,
            max_comms,
            max_recvs,
            device_type: 0,
            device_version: 0,
            vprops: VProps4 { ndevs: 1, devs: [dev, 0, 0, 0] },
            max_p2p_bytes: MAX_BYTES,
            max_coll_bytes: MAX_BYTES,
        }
    }

    pub(super) fn v11(&self, dev: i32) -> PropsV11 {
        let v9 = self.v9(dev);
        PropsV11 {
            name: v9.name,
            pci_path: v9.pci_path,
            guid: v9.guid,
            ptr_support: v9.ptr_support,
            reg_is_global: v9.reg_is_global,
            force_flush: v9.force_flush,
            speed: v9.speed,
            port: v9.port,
            latency: v9.latency,
            max_comms: v9.max_comms,
            max_recvs: v9.max_recvs,
            device_type: v9.device_type,
            device_version: v9.device_version,
            vprops: v9.vprops,
            max_p2p_bytes: v9.max_p2p_bytes,
            max_coll_bytes: v9.max_coll_bytes,
            max_multi_request_size: 1,
        }
    }

    pub(super) fn v12(&self, dev: i32) -> PropsV12 {
        let v9 = self.v9(dev);
        PropsV12 {
            name: v9.name,
            pci_path: v9.pci_path,
            guid: v9.guid,
            ptr_support: v9.ptr_support,
            reg_is_global: v9.reg_is_global,
            force_flush: v9.force_flush,
            speed: v9.speed,
            port: v9.port,
            latency: v9.latency,
            max_comms: v9.max_comms,
            max_recvs: v9.max_recvs,
            device_type: v9.device_type,
            device_version: v9.device_version,
            vprops: VProps8 { ndevs: 1, devs: [dev, 0, 0, 0, 0, 0, 0, 0] },
            max_p2p_bytes: v9.max_p2p_bytes,
            max_coll_bytes: v9.max_coll_bytes,
            max_multi_request_size: 1,
            // One device over all planes is on no single rail or plane.
            rail_id: -1,
            plane_id: -1,
        }
    }

    fn pci(&self) -> *mut c_char {
        // NCCL takes it as not const and does not write it.
        self.pci_path.map_or(std::ptr::null_mut(), |p| p.as_ptr().cast_mut())
    }
}

/// Communicators of all kinds that one device takes.
const MAX_COMMS: i32 = 65_536;

fn interface_speed(name: &str) -> Option<i32> {
    let text = std::fs::read_to_string(Path::new("/sys/class/net").join(name).join("speed")).ok()?;
    text.trim().parse::<i32>().ok().filter(|&speed| speed > 0)
}

/// The PCI function's directory in sysfs; virtual interfaces have none.
fn pci_path(name: &str) -> Option<PathBuf> {
    if name.is_empty() {
        return None;
    }
    let mut path = std::fs::canonicalize(Path::new("/sys/class/net").join(name).join("device")).ok()?;
    let is_function = |p: &Path| {
        let name = p.file_name().and_then(|n| n.to_str()).unwrap_or("");
        let parts: Vec<&str> = name.split([':', '.']).collect();
        parts.len() == 4 && parts.iter().all(|p| u32::from_str_radix(p, 16).is_ok())
    };
    // Some drivers put a bus of their own between.
    while !is_function(&path) {
        if !path.pop() {
            return None;
        }
    }
    Some(path)
}

fn nix_host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default()
}

fn fnv(seed: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(seed, |hash, &b| (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// A string for the rest of the process; each text is kept once.
fn keep(path: PathBuf) -> Option<&'static CStr> {
    static KEPT: Mutex<BTreeSet<&'static CStr>> = Mutex::new(BTreeSet::new());
    let text = CString::new(path.into_os_string().into_encoded_bytes()).ok()?;
    let mut kept = KEPT.lock();
    if let Some(known) = kept.get(text.as_c_str()) {
        return Some(known);
    }
    let text: &'static CStr = Box::leak(text.into_boxed_c_str());
    kept.insert(text);
    Some(text)
}
