//! Two ends on devices, and the few things that every measurement does with them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::PATIENCE;
use crate::class::Ecn;
use crate::mem::{Access, Region};
use crate::topology::ChosenPort;
use crate::verbs::{
    Context, Cq, Device, Local, Mr, Pd, Peer, Qp, QpSpec, QpState, Rejected, Retry, Route, SendOp, SendRequest,
    Transport, VerbsError, flow_label, status_of,
};

/// Requests that a queue pair of the measurement takes.
pub(super) const DEPTH: u32 = 16;

/// The end that is measured, and the one that writes to it.
pub(super) struct Rig {
    pub(super) subject: End,
    pub(super) peer: End,
}

/// A port with a protection domain.
pub(super) struct End {
    pub(super) context: Arc<Context>,
    pub(super) pd: Pd,
    pub(super) port: u8,
    sgid_index: u8,
    addr: std::net::IpAddr,
    mtu: u32,
}

/// Why a measurement ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// A call.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A completion.
    #[error("{what} of {device} ended with {:?} (status {status}, vendor's {vendor:#x})", status_of(*status))]
    Completion { device: String, what: &'static str, status: u32, vendor: u32 },
    /// Nothing.
    #[error("{what} did not complete within {PATIENCE:?}")]
    Silent { what: &'static str },
    /// A datagram.
    #[error("a datagram was lost on its way")]
    Lost,
    /// The device does not take a request.
    #[error("{device} did not take a request: {}", std::io::Error::from_raw_os_error(*errno))]
    Rejected { device: String, errno: i32 },
    /// A queue pair that is elsewhere than it was sent.
    #[error("{device}: a queue pair that was moved to ERR says that it is in {state:?}")]
    State { device: String, state: QpState },
    /// Other bytes than were written.
    #[error("{device}: byte {at} is not what was written, though the write completed")]
    Wrong { device: String, at: usize },
    /// Memory of our own.
    #[error(transparent)]
    Memory(#[from] crate::mem::MemError),
}

impl Trouble {
    /// What to do about it.
    pub(super) fn step(&self) -> &'static str {
        match self {
            Trouble::Verbs(_) => "do what the message says and run it again",
            Trouble::Completion { .. } | Trouble::Silent { .. } | Trouble::Lost => {
                "check with `ib_write_bw` that the two ports reach each other (link, VLAN, route, firewall), then run it again"
            }
            Trouble::State { .. } | Trouble::Wrong { .. } => {
                "update the NIC's firmware and driver, or report it to the vendor"
            }
            Trouble::Rejected { .. } | Trouble::Memory(_) => "see the kernel's log (`dmesg`) and run it again",
        }
    }
}

impl End {
    pub(super) fn open(devices: &[Device], at: &ChosenPort) -> Result<End, VerbsError> {
        let device = devices.iter().find(|d| d.name() == at.device).ok_or_else(|| VerbsError::UnknownDevice {
            name: at.device.clone(),
            there: devices.iter().map(Device::name).collect(),
        })?;
        let context = device.open()?;
        let sgid_index = context.gid_index(at.port, at.addr)?;
        let mtu = context.port(at.port)?.mtu;
        let pd = Pd::new(&context)?;
        Ok(End { context, pd, port: at.port, sgid_index, addr: at.addr, mtu })
    }

    pub(super) fn name(&self) -> String {
        self.context.name().to_owned()
    }

    pub(super) fn is_ipv4(&self) -> bool {
        self.addr.is_ipv4()
    }

    pub(super) fn queue(&self, entries: u32) -> Result<Cq, VerbsError> {
        Cq::new(&self.context, None, entries, false)
    }

    /// A queue pair in RESET.
    pub(super) fn queue_pair(&self, cq: &Cq, transport: Transport) -> Result<Qp, VerbsError> {
        let spec = QpSpec { transport, send_depth: DEPTH, receive_depth: DEPTH, inline: 0, batched: true };
        Qp::new(&self.pd, cq, cq, &spec)
    }

    /// One of a connection, in INIT.
    pub(super) fn connection(&self, cq: &Cq) -> Result<Qp, VerbsError> {
        let mut qp = self.queue_pair(cq, Transport::Rc)?;
        qp.init(self.port, 0)?;
        Ok(qp)
    }

    /// Memory of so many bytes, registered.
    pub(super) fn memory(&self, len: usize, access: Access) -> Result<Mr, Trouble> {
        let region = Region::alloc(len)?;
        Ok(Mr::register(&self.pd, &region, 0, len as u64, access, false)?)
    }

    /// The way to another end.
    pub(super) fn route(&self, to: &End, entropy: u16) -> Route {
        Route {
            port: self.port,
            sgid_index: self.sgid_index,
            peer: to.addr,
            flow_label: flow_label(entropy),
            traffic_class: Ecn::Ect0 as u8,
            hop_limit: 64,
        }
    }

    /// What another end's queue pair is to this one.
    pub(super) fn towards(&self, to: &End, qpn: u32, entropy: u16) -> Peer {
        Peer { route: self.route(to, entropy), qpn, psn: qpn.wrapping_mul(7919) & 0xff_ffff, mtu: self.mtu.min(to.mtu) }
    }
}

/// For queue pairs that must not give up because the machine is busy: after 2 to 9 s.
pub(super) fn patient() -> Result<Retry, VerbsError> {
    Retry::new(18, 1, 6, 18)
}

impl Rig {
    /// Connects a queue pair of the peer, and one of the subject.
    pub(super) fn connect(
        &self,
        writer: &mut Qp,
        taker: &mut Qp,
        entropy: u16,
        retry: &Retry,
    ) -> Result<(), VerbsError> {
        let (to, from) = (
            self.peer.towards(&self.subject, taker.qpn(), entropy),
            self.subject.towards(&self.peer, writer.qpn(), entropy),
        );
        taker.connect(&from, to.psn, retry)?;
        writer.connect(&to, from.psn, retry)
    }
}

/// A WRITE of `len` bytes at `at` of `source` to the same place of `window`.
pub(super) fn write<'a>(id: u64, source: &'a Mr, window: &Mr, at: u64, len: u32) -> SendRequest<'a> {
    SendRequest {
        id,
        op: SendOp::Write,
        local: Some(Local { mr: source, offset: at, len }),
        remote: (window.addr() + at, window.rkey()),
        inline: false,
    }
}

pub(super) fn rejected(end: &End, r: Rejected) -> Trouble {
    Trouble::Rejected { device: end.name(), errno: r.errno }
}

/// Waits until `done` says so; sleeping peers on the same processor get their turn.
pub(super) fn until(what: &'static str, mut done: impl FnMut() -> Result<bool, Trouble>) -> Result<(), Trouble> {
    let deadline = Instant::now() + PATIENCE;
    while !done()? {
        if Instant::now() >= deadline {
            return Err(Trouble::Silent { what });
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// Posts one WRITE and waits for its end.
pub(super) fn write_once(end: &End, qp: &mut Qp, cq: &mut Cq, request: &SendRequest<'_>) -> Result<(), Trouble> {
    if !qp.post(request) {
        return Err(Trouble::Rejected { device: end.name(), errno: libc::ENOMEM });
    }
    qp.ring().map_err(|r| rejected(end, r))?;
    let mut ended = None;
    until("a write", || {
        cq.poll(1, |wc| ended = Some(*wc))?;
        Ok(ended.is_some())
    })?;
    match ended {
        Some(wc) if wc.status != 0 => {
            let (status, vendor) = (wc.status, wc.vendor_err);
            Err(Trouble::Completion { device: end.name(), what: "a write", status, vendor })
        }
        _ => Ok(()),
    }
}

pub(super) fn micros(d: Duration) -> f64 {
    d.as_secs_f64() * 1e6
}
