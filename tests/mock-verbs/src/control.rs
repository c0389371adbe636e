//! What tests may ask for: the faults of real devices.

use std::ffi::{CStr, c_char, c_int};

use planespray::verbs::sys::*;

use crate::world::{raise, raise_for_qp, world};

#[derive(Clone, Default)]
pub(crate) struct Control {
    pub(crate) list_errno: Option<c_int>,
    pub(crate) no_devices: bool,
    pub(crate) open_errno: Option<c_int>,
    pub(crate) create_errno: Option<c_int>,
    pub(crate) dereg_errno: Option<c_int>,
    pub(crate) no_timestamps: bool,
    pub(crate) no_inline: bool,
    pub(crate) empty_post: bool,
    pub(crate) dmabuf: bool,
    pub(crate) cut: bool,
    pub(crate) cqe: Option<c_int>,
    pub(crate) mtu_code: Option<u32>,
    pub(crate) link_layer: Option<u8>,
    pub(crate) gid_shift: u32,
    /// So many more WRITEs are spoilt, and found malformed by the peer.
    pub(crate) malformed: u32,
    /// Some were.
    pub(crate) spoilt: bool,
    /// Destroying a queue pair leaves a write that lands so many ms later.
    pub(crate) late_write: Option<u64>,
    /// Setting a source port fails.
    pub(crate) sport_errno: Option<c_int>,
    /// Where sysfs is, as far as the caller is told.
    pub(crate) sysfs: Option<String>,
    /// The flags of the last registration.
    pub(crate) last_access: u32,
    /// Registrations that fail, and how.
    registrations: (u64, c_int),
    /// Requests that are refused after some more, and how.
    posts: Option<(u64, c_int)>,
    /// The state that queue pairs are refused.
    refuse: Option<(ibv_qp_state, c_int)>,
    /// How the next request, or receive, of a queue pair ends.
    status: Vec<(u32, bool, ibv_wc_status)>,
}

impl Control {
    /// What `MOCK_VERBS` asks for, for programs that tests run: `name=value`, separated by commas.
    pub(crate) fn from_environment() -> Control {
        let mut control = Control::default();
        let asked = std::env::var("MOCK_VERBS").unwrap_or_default();
        for (name, value) in asked.split(',').filter_map(|a| a.split_once('=')) {
            let known = value.parse().is_ok_and(|value| control.set(name, value));
            assert!(known, "MOCK_VERBS: {name}={value} is nothing that the mock knows");
        }
        control.sysfs = std::env::var("PLANESPRAY_ROOT").ok().map(|root| format!("{root}/sys/class/infiniband"));
        control
    }

    fn set(&mut self, name: &str, value: i64) -> bool {
        let errno = c_int::try_from(value).ok().filter(|&v| v >= 0);
        match name {
            "list" => self.list_errno = errno,
            "open" => self.open_errno = errno,
            "create" => self.create_errno = errno,
            "dereg" => self.dereg_errno = errno,
            "sport" => self.sport_errno = errno,
            "cqe" => self.cqe = errno,
            "mtu" => self.mtu_code = errno.map(|v| v as u32),
            "link_layer" => self.link_layer = errno.map(|v| v as u8),
            "malformed" => {
                self.malformed = errno.unwrap_or(0) as u32;
                self.spoilt |= self.malformed > 0;
            }
            "gid_shift" => self.gid_shift = errno.unwrap_or(0) as u32,
            "late_write" => self.late_write = u64::try_from(value).ok(),
            "no_devices" => self.no_devices = value > 0,
            "no_timestamps" => self.no_timestamps = value > 0,
            "no_inline" => self.no_inline = value > 0,
            "empty_post" => self.empty_post = value > 0,
            "dmabuf" => self.dmabuf = value > 0,
            "cut" => self.cut = value > 0,
            _ => return false,
        }
        true
    }

    pub(crate) fn registration_errno(&mut self) -> Option<c_int> {
        let (left, errno) = &mut self.registrations;
        if *left == 0 {
            return None;
        }
        *left -= 1;
        Some(*errno)
    }

    pub(crate) fn post_errno(&mut self) -> Option<c_int> {
        match &mut self.posts {
            Some((0, errno)) => {
                let errno = *errno;
                self.posts = None;
                Some(errno)
            }
            Some((more, _)) => {
                *more -= 1;
                None
            }
            None => None,
        }
    }

    pub(crate) fn refusal(&self, to: ibv_qp_state) -> Option<c_int> {
        self.refuse.filter(|&(state, _)| state == to).map(|(_, errno)| errno)
    }

    pub(crate) fn take_status(&mut self, qpn: u32, receive: bool) -> Option<ibv_wc_status> {
        let at = self.status.iter().position(|&(q, r, _)| q == qpn && r == receive)?;
        Some(self.status.remove(at).2)
    }
}

/// Sets what one of the names below stands for; -1 takes a fault away. Returns 0, or -1 for an unknown name.
///
/// Errors: `list`, `open`, `create`, `dereg`, `sport` (error numbers). Switches: `no_devices`, `no_timestamps`,
/// `no_inline`, `empty_post` (for contexts opened from now on), `dmabuf`, `cut`. Values: `cqe` (what completion queues
/// hold, whatever is asked for), `mtu` (code), `link_layer`, `gid_shift`, `late_write` (ms),
/// `malformed` (how many of the next WRITEs the peer finds so).
#[unsafe(no_mangle)]
unsafe extern "C" fn mock_set(name: *const c_char, value: i64) -> c_int {
    // SAFETY: the test's text.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("");
    if world().control.set(name, value) { 0 } else { -1 }
}

/// Says where the devices' directories are, as below `/sys/class/infiniband`. Before the first list of devices.
#[unsafe(no_mangle)]
unsafe extern "C" fn mock_sysfs(path: *const c_char) {
    // SAFETY: the test's text.
    world().control.sysfs = unsafe { CStr::from_ptr(path) }.to_str().ok().map(str::to_owned);
}

/// The source port that a queue pair was given, or 0; in the upper half how often one was asked for.
#[unsafe(no_mangle)]
extern "C" fn mock_source_port(qpn: u32) -> u32 {
    let w = world();
    let port = w.devices.iter().find_map(|d| d.qps.get(&qpn)).map_or(0, |&qp| {
        // SAFETY: live while it is in the map.
        u32::from(unsafe { (*qp).source_port })
    });
    w.source_ports_asked << 16 | port
}

/// The flow label that a queue pair was connected with.
#[unsafe(no_mangle)]
extern "C" fn mock_flow_label(qpn: u32) -> u32 {
    let w = world();
    // SAFETY: live while it is in the map.
    w.devices.iter().find_map(|d| d.qps.get(&qpn)).map_or(0, |&qp| unsafe { (*qp).flow_label })
}

/// The next `count` registrations fail with `errno`.
#[unsafe(no_mangle)]
extern "C" fn mock_fail_registrations(count: u64, errno: c_int) {
    world().control.registrations = (count, errno);
}

/// After `more` requests, one is refused with `errno`.
#[unsafe(no_mangle)]
extern "C" fn mock_refuse_request(more: u64, errno: c_int) {
    world().control.posts = Some((more, errno));
}

/// Changes of queue pairs to `state` fail with `errno`; with 0 they no longer do.
#[unsafe(no_mangle)]
extern "C" fn mock_refuse_state(state: ibv_qp_state, errno: c_int) {
    world().control.refuse = (errno != 0).then_some((state, errno));
}

/// The next request (or receive) of a queue pair that would succeed completes with `status` instead, and the queue
/// pair fails.
#[unsafe(no_mangle)]
extern "C" fn mock_next_status(qpn: u32, receive: bool, status: ibv_wc_status) {
    world().control.status.push((qpn, receive, status));
}

/// The flags of the last registration.
#[unsafe(no_mangle)]
extern "C" fn mock_last_access() -> u32 {
    world().control.last_access
}

/// A port event at all open contexts of a device. Unless `quiet`, the port's state changes with it.
#[unsafe(no_mangle)]
unsafe extern "C" fn mock_port_event(device: *const c_char, kind: ibv_event_type, port: c_int, quiet: bool) -> c_int {
    // SAFETY: the test's text.
    let name = unsafe { CStr::from_ptr(device) }.to_str().unwrap_or("");
    let mut w = world();
    let Some(dev) = w.devices.iter_mut().find(|d| d.name == name) else { return -1 };
    if !quiet {
        match kind {
            IBV_EVENT_PORT_ERR => dev.up = false,
            IBV_EVENT_PORT_ACTIVE => dev.up = true,
            _ => {}
        }
    }
    for &context in &dev.contexts {
        let event = ibv_async_event { element: ibv_async_event__bindgen_ty_1 { port_num: port }, event_type: kind };
        // SAFETY: contexts in the list are open.
        raise(unsafe { &mut (*context).verbs.context }, event);
    }
    0
}

/// An event of a queue pair.
#[unsafe(no_mangle)]
extern "C" fn mock_qp_event(qpn: u32, kind: ibv_event_type) -> c_int {
    let w = world();
    let found = w.devices.iter().find_map(|d| d.qps.get(&qpn).copied());
    match found {
        Some(qp) => {
            raise_for_qp(qp, kind);
            0
        }
        None => -1,
    }
}
