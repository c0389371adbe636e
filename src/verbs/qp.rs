//! Queue pairs: their states, and their queues.

use std::ffi::c_int;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use super::ah::{Ah, Route};
use super::batch::{Batch, Local, SendRequest};
use super::cq::{Cq, CqInner};
use super::driver::is_software;
use super::error::VerbsError;
use super::mlx5::Mlx5;
use super::pd::Pd;
use super::port::mtu_code;
use super::sys::*;

/// Which transport service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable datagram.
    Ud,
}

/// How a queue pair is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpSpec {
    /// Transport service.
    pub transport: Transport,
    /// Requests that may be outstanding.
    pub send_depth: u32,
    /// Receives that may be posted.
    pub receive_depth: u32,
    /// Bytes that a request may carry in itself; the device grants what it can.
    pub inline: u32,
    /// Use `ibv_wr_*`, with one doorbell for a batch, where the device has it; else a chain of one `ibv_post_send`.
    pub batched: bool,
}

/// When a connection gives up. Nothing here means for ever: a timeout of 0, a retry count of 7 (which `rdma_rxe` never
/// ends) and an RNR retry count of 7 are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retry {
    timeout: u8,
    retries: u8,
    rnr_retries: u8,
    rnr_timer: u8,
}

impl Default for Retry {
    /// About 0.3 s to a dead peer's end; 6 pauses of 5 ms for one without receives.
    fn default() -> Self {
        Retry { timeout: 14, retries: 3, rnr_retries: 6, rnr_timer: 18 }
    }
}

impl Retry {
    /// What fits devices of a driver. One of software (`rxe`, `siw`) answers when its host's processors have time, and what it
    /// sends again without need takes more of it: it waits a second where a NIC waits 67 ms.
    pub fn of(driver: Option<&str>) -> Retry {
        let timeout = if is_software(driver) { 18 } else { Retry::default().timeout };
        Retry { timeout, ..Retry::default() }
    }

    /// - `timeout`: 1..=31; an acknowledgement is waited for 4.096 us times two to this power, at least.
    /// - `retries`: 0..=6 repetitions.
    /// - `rnr_retries`: 1..=6 repetitions where the peer has no receive.
    /// - `rnr_timer`: 1..=31; code of the pause that our end asks for before each (table 46 of the specification).
    ///
    /// # Errors
    /// Out of range.
    pub fn new(timeout: u8, retries: u8, rnr_retries: u8, rnr_timer: u8) -> Result<Retry, VerbsError> {
        for (what, value, range, text) in [
            ("timeout", timeout, 1..=31, "1 to 31 (0 is for ever)"),
            ("retry count", retries, 0..=6, "0 to 6 (7 is for ever on rdma_rxe)"),
            ("RNR retry count", rnr_retries, 1..=6, "1 to 6 (7 is for ever)"),
            ("minimal RNR timer", rnr_timer, 1..=31, "1 to 31 (0 is 655 ms)"),
        ] {
            if !range.contains(&value) {
                return Err(VerbsError::Invalid { what, value: u64::from(value), range: text });
            }
        }
        Ok(Retry { timeout, retries, rnr_retries, rnr_timer })
    }

    /// The longest that an acknowledgement is waited for, in ns: devices wait up to four times what they are told.
    pub fn gives_up_after_ns(&self) -> u64 {
        (u64::from(self.retries) + 1) * 4 * (4096 << self.timeout)
    }
}

/// The other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// How to get there.
    pub route: Route,
    /// Its queue pair.
    pub qpn: u32,
    /// The PSN that it begins with.
    pub psn: u32,
    /// RoCE MTU that both ends have, in bytes.
    pub mtu: u32,
}

/// What a driver negotiates with its peer when queue pairs connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ece {
    /// The vendor's number (its IEEE OUI).
    pub vendor: u32,
    /// The vendor's own bits; 0 if it has nothing to negotiate.
    pub options: u32,
}

/// A state of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum QpState {
    /// Made.
    Reset,
    /// Takes receives.
    Init,
    /// Receives.
    ReadyToReceive,
    /// Receives and sends.
    ReadyToSend,
    /// Everything is flushed.
    Error,
    /// Any other.
    Other,
}

/// A queue pair. It keeps its protection domain and completion queues alive, and is destroyed when dropped.
///
/// It takes memory by registration, never by address:
/// ```compile_fail,E0308
/// fn f(qp: &mut planespray::verbs::Qp, bytes: &[u8]) { let _ = qp.post_receive(1, Some(bytes)); }
/// ```
/// and a registration that has ended cannot be named:
/// ```compile_fail,E0382
/// use planespray::verbs::{Local, Mr, Qp};
/// fn f(qp: &mut Qp, mr: Mr) {
///     drop(mr);
///     let _ = qp.post_receive(1, Some(Local { mr: &mr, offset: 0, len: 8 }));
/// }
/// ```
pub struct Qp {
    ptr: NonNull<ibv_qp>,
    qpn: u32,
    transport: Transport,
    inline: u32,
    batch: Batch,
    /// It was destroyed, or the device refused to.
    ended: bool,
    pd: Pd,
    _queues: [Arc<CqInner>; 2],
}

// SAFETY: libibverbs allows calls from any thread; all that change anything need `&mut`.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

impl Qp {
    /// A queue pair in RESET, every request of which completes visibly.
    ///
    /// # Errors
    /// More than the device has.
    pub fn new(pd: &Pd, send_cq: &Cq, receive_cq: &Cq, spec: &QpSpec) -> Result<Qp, VerbsError> {
        let context = pd.context();
        let max = context.limits().max_qp_wr;
        for (what, depth) in [("send depth", spec.send_depth), ("receive depth", spec.receive_depth)] {
            if depth > max {
                let range = "at most the device's max_qp_wr";
                return Err(VerbsError::Invalid { what, value: u64::from(depth), range });
            }
        }
        let mut made = None;
        // A device that has no room for inline data refuses to make the pair at all.
        for inline in [spec.inline, 0] {
            let cap = ibv_qp_cap {
                max_send_wr: spec.send_depth.max(1),
                max_recv_wr: spec.receive_depth.max(1),
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: inline,
            };
            // SAFETY: live objects of one context.
            made = unsafe { create(pd, send_cq, receive_cq, spec, cap) };
            if made.is_some() || inline == 0 {
                break;
            }
        }
        let (ptr, extended, inline) = made.ok_or_else(|| context.failed("ibv_create_qp"))?;
        // SAFETY: just made.
        let qpn = unsafe { (*ptr.as_ptr()).qp_num };
        // SAFETY: the batch is used with this queue pair alone, and dropped before it.
        let batch = unsafe { Batch::new(ptr, extended, context.ops.post_send, spec.send_depth.max(1), inline) };
        Ok(Qp {
            ptr,
            qpn,
            transport: spec.transport,
            inline,
            batch,
            ended: false,
            pd: pd.clone(),
            _queues: [send_cq.0.clone(), receive_cq.0.clone()],
        })
    }

    /// Its number.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Bytes that a request may carry in itself.
    pub fn inline(&self) -> u32 {
        self.inline
    }

    /// True if batches go by `ibv_wr_*`.
    pub fn is_batched(&self) -> bool {
        self.batch.is_extended()
    }

    /// RESET to INIT on this port. `qkey` is for datagrams.
    ///
    /// # Errors
    /// The device refuses.
    pub fn init(&mut self, port: u8, qkey: u32) -> Result<(), VerbsError> {
        let mut attr = no_attributes();
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = port;
        attr.qkey = qkey;
        attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
        if self.pd.context().limits().atomics {
            attr.qp_access_flags |= IBV_ACCESS_REMOTE_ATOMIC;
        }
        let own = match self.transport {
            Transport::Rc => IBV_QP_ACCESS_FLAGS,
            Transport::Ud => IBV_QP_QKEY,
        };
        self.modify(&mut attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | own, "ibv_modify_qp to INIT", "")
    }

    /// INIT to RTR and RTS, towards `peer`, beginning with `psn`.
    ///
    /// # Errors
    /// As for [`Qp::ready_to_receive`] and [`Qp::ready_to_send`].
    pub fn connect(&mut self, peer: &Peer, psn: u32, retry: &Retry) -> Result<(), VerbsError> {
        self.ready_to_receive(peer, retry)?;
        self.ready_to_send(psn, retry)
    }

    /// INIT to RTR, towards `peer`.
    ///
    /// # Errors
    /// An MTU that RoCE does not have, or the device refuses: mostly because there is no way to the peer's address.
    pub fn ready_to_receive(&mut self, peer: &Peer, retry: &Retry) -> Result<(), VerbsError> {
        let limits = self.pd.context().limits();
        let mut attr = no_attributes();
        attr.qp_state = IBV_QPS_RTR;
        attr.path_mtu = mtu_code(peer.mtu).ok_or(VerbsError::Invalid {
            what: "MTU",
            value: u64::from(peer.mtu),
            range: "256, 512, 1024, 2048 or 4096",
        })?;
        attr.dest_qp_num = peer.qpn;
        attr.rq_psn = peer.psn & 0xff_ffff;
        attr.max_dest_rd_atomic = limits.max_responder_reads.min(16);
        attr.min_rnr_timer = retry.rnr_timer;
        attr.ah_attr = peer.route.attributes();
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        let hint = "; is there a route and a neighbour for the peer's address on this port?";
        self.modify(&mut attr, mask, "ibv_modify_qp to RTR", hint)
    }

    /// RTR to RTS, beginning with `psn`.
    ///
    /// # Errors
    /// The device refuses.
    pub fn ready_to_send(&mut self, psn: u32, retry: &Retry) -> Result<(), VerbsError> {
        let mut attr = no_attributes();
        attr.qp_state = IBV_QPS_RTS;
        attr.timeout = retry.timeout;
        attr.retry_cnt = retry.retries;
        attr.rnr_retry = retry.rnr_retries;
        attr.sq_psn = psn & 0xff_ffff;
        attr.max_rd_atomic = self.pd.context().limits().max_initiator_reads.min(16);
        let mask = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, mask, "ibv_modify_qp to RTS", "")
    }

    /// Sets the UDP source port of a queue pair of an mlx5 device that is in RTS.
    ///
    /// # Errors
    /// Of another device, in another state, or the firmware refuses.
    pub fn set_source_port(&mut self, mlx5: &Mlx5, port: u16) -> Result<(), VerbsError> {
        // SAFETY: a live queue pair.
        match unsafe { mlx5.modify_udp_sport(self.ptr, port) } {
            0 => Ok(()),
            errno => Err(VerbsError::call(self.pd.context().name(), "mlx5dv_modify_qp_udp_sport", errno.abs())),
        }
    }

    /// INIT to RTR and RTS, for datagrams.
    ///
    /// # Errors
    /// The device refuses.
    pub fn start_datagrams(&mut self, psn: u32) -> Result<(), VerbsError> {
        let mut attr = no_attributes();
        attr.qp_state = IBV_QPS_RTR;
        self.modify(&mut attr, IBV_QP_STATE, "ibv_modify_qp to RTR", "")?;
        attr.qp_state = IBV_QPS_RTS;
        attr.sq_psn = psn & 0xff_ffff;
        self.modify(&mut attr, IBV_QP_STATE | IBV_QP_SQ_PSN, "ibv_modify_qp to RTS", "")
    }

    /// To ERR: everything posted is flushed, and nothing more is sent or placed.
    ///
    /// # Errors
    /// The device refuses, as one that is gone does.
    pub fn fail(&mut self) -> Result<(), VerbsError> {
        let mut attr = no_attributes();
        attr.qp_state = IBV_QPS_ERR;
        self.modify(&mut attr, IBV_QP_STATE, "ibv_modify_qp to ERR", "")
    }

    /// Its state, as the device says.
    ///
    /// # Errors
    /// The call fails.
    pub fn state(&self) -> Result<QpState, VerbsError> {
        let mut attr = no_attributes();
        // SAFETY: pointers and numbers may be zero.
        let mut init: ibv_qp_init_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        let context = self.pd.context();
        // SAFETY: a live queue pair, and structures of our own.
        let rc =
            unsafe { (context.library.f.query_qp)(self.ptr.as_ptr(), &mut attr, IBV_QP_STATE as c_int, &mut init) };
        match (rc, attr.qp_state) {
            (0, IBV_QPS_RESET) => Ok(QpState::Reset),
            (0, IBV_QPS_INIT) => Ok(QpState::Init),
            (0, IBV_QPS_RTR) => Ok(QpState::ReadyToReceive),
            (0, IBV_QPS_RTS) => Ok(QpState::ReadyToSend),
            (0, IBV_QPS_ERR) => Ok(QpState::Error),
            (0, _) => Ok(QpState::Other),
            (rc, _) => Err(VerbsError::call(context.name(), "ibv_query_qp", rc)),
        }
    }

    /// What the driver would negotiate with its peer (enhanced connection establishment), where the library has that.
    ///
    /// # Errors
    /// The driver has none of it.
    pub fn ece(&self) -> Result<Ece, VerbsError> {
        let context = self.pd.context();
        let unsupported = || VerbsError::Unsupported { device: context.name().to_owned(), what: "ibv_query_ece" };
        let query = context.library.f.query_ece.ok_or_else(unsupported)?;
        let mut ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
        // SAFETY: a live queue pair, and a structure of our own.
        match unsafe { query(self.ptr.as_ptr(), &mut ece) } {
            0 => Ok(Ece { vendor: ece.vendor_id, options: ece.options }),
            rc => Err(VerbsError::call(context.name(), "ibv_query_ece", rc.abs())),
        }
    }

    /// Whether the driver promises that the bytes of a WRITE are placed in order; `None` where the library cannot ask.
    /// A driver that does not know says no.
    pub fn places_writes_in_order(&self) -> Option<bool> {
        let query = self.pd.context().library.f.query_qp_data_in_order?;
        // SAFETY: a live queue pair; no flags.
        Some(unsafe { query(self.ptr.as_ptr(), IBV_WR_RDMA_WRITE, 0) } != 0)
    }

    /// Adds a request to the batch, which [`Qp::ring`] sends. Returns false if the batch is full or the bytes are
    /// outside their registration; nothing was added then.
    #[inline]
    #[must_use]
    pub fn post(&mut self, request: &SendRequest<'_>) -> bool {
        self.batch.push(request)
    }

    /// Sends the batch.
    ///
    /// # Errors
    /// How many of its requests, the first ones, were taken in spite of an error, and the error's number.
    #[inline]
    pub fn ring(&mut self) -> Result<(), Rejected> {
        self.batch.ring()
    }

    /// Sends a datagram, and the batch before it. `false` if the bytes are outside their registration.
    ///
    /// # Errors
    /// As for [`Qp::ring`].
    pub fn send_datagram(&mut self, id: u64, local: Local<'_>, to: &Datagram<'_>) -> Result<bool, Rejected> {
        if !self.batch.push_datagram(id, &local, to.ah.as_ptr(), to.qpn, to.qkey) {
            return Ok(false);
        }
        self.batch.ring().map(|()| true)
    }

    /// Posts a receive; without bytes it serves immediates.
    ///
    /// # Errors
    /// Outside the registration, or the queue is full.
    #[inline]
    pub fn post_receive(&mut self, id: u64, local: Option<Local<'_>>) -> Result<(), VerbsError> {
        let mut sge = ibv_sge { addr: 0, length: 0, lkey: 0 };
        if let Some(l) = &local {
            let size = l.mr.len();
            let addr = l.mr.check(l.offset, l.len);
            sge.addr = addr.ok_or(VerbsError::OutOfBounds { offset: l.offset, len: u64::from(l.len), size })?;
            (sge.length, sge.lkey) = (l.len, l.mr.lkey());
        }
        let mut wr =
            ibv_recv_wr { wr_id: id, next: std::ptr::null_mut(), sg_list: &mut sge, num_sge: local.is_some().into() };
        let mut bad = std::ptr::null_mut();
        let context = self.pd.context();
        // SAFETY: a live queue pair; the request is copied before the call returns.
        match unsafe { (context.ops.post_recv)(self.ptr.as_ptr(), &mut wr, &mut bad) } {
            0 => Ok(()),
            rc => Err(VerbsError::call(context.name(), "ibv_post_recv", rc)),
        }
    }

    /// Destroys it, as dropping it does, and says whether the device did so.
    ///
    /// # Errors
    /// The device refuses; the queue pair is given up all the same.
    pub fn destroy(mut self) -> Result<(), VerbsError> {
        match self.end() {
            0 => Ok(()),
            errno => Err(VerbsError::call(self.pd.context().name(), "ibv_destroy_qp", errno.abs())),
        }
    }

    /// Once.
    fn end(&mut self) -> c_int {
        if std::mem::replace(&mut self.ended, true) {
            return 0;
        }
        self.batch.abort();
        // SAFETY: made once, and destroyed once. The queues that it reports to are still there.
        unsafe { (self.pd.context().library.f.destroy_qp)(self.ptr.as_ptr()) }
    }

    fn modify(
        &mut self,
        attr: &mut ibv_qp_attr,
        mask: ibv_qp_attr_mask,
        call: &'static str,
        hint: &'static str,
    ) -> Result<(), VerbsError> {
        let context = self.pd.context();
        // SAFETY: a live queue pair, and attributes of our own.
        match unsafe { (context.library.f.modify_qp)(self.ptr.as_ptr(), attr, mask as c_int) } {
            0 => Ok(()),
            errno => Err(VerbsError::Call { device: context.name().to_owned(), call, errno: errno.abs(), hint }),
        }
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The way there.
    pub ah: &'a Ah,
    /// The peer's queue pair.
    pub qpn: u32,
    /// Its key.
    pub qkey: u32,
}

/// The device did not take a whole batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rejected {
    /// Requests of the batch that it took: the first ones.
    pub taken: u32,
    /// Its error number.
    pub errno: i32,
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qp({:#x} of {})", self.qpn, self.pd.context().name())
    }
}

/// The queue pair, its extended form if it has that, and the bytes of inline data that were granted.
///
/// # Safety
/// The objects belong to one context.
unsafe fn create(
    pd: &Pd,
    send_cq: &Cq,
    receive_cq: &Cq,
    spec: &QpSpec,
    cap: ibv_qp_cap,
) -> Option<(NonNull<ibv_qp>, Option<NonNull<ibv_qp_ex>>, u32)> {
    let context = pd.context();
    let f = &context.library.f;
    let qp_type = match spec.transport {
        Transport::Rc => IBV_QPT_RC,
        Transport::Ud => IBV_QPT_UD,
    };
    if let Some(to_ex) = f.qp_to_qp_ex
        && spec.batched
        && spec.transport == Transport::Rc
    {
        // SAFETY: pointers and numbers may be zero.
        let mut attr: ibv_qp_init_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
        (attr.send_cq, attr.recv_cq) = (send_cq.0.ptr.as_ptr(), receive_cq.0.ptr.as_ptr());
        (attr.cap, attr.qp_type, attr.sq_sig_all, attr.pd) = (cap, qp_type, 1, pd.as_ptr());
        attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        let mut ops = IBV_QP_EX_WITH_SEND
            | IBV_QP_EX_WITH_SEND_WITH_IMM
            | IBV_QP_EX_WITH_RDMA_WRITE
            | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
            | IBV_QP_EX_WITH_RDMA_READ;
        if context.limits().atomics {
            ops |= IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
        }
        attr.send_ops_flags = u64::from(ops);
        // SAFETY: as promised by the caller.
        if let Some(qp) = unsafe { super::ext::create_qp_ex(context.ptr, &mut attr) } {
            // SAFETY: made with send operations, so it has the extended form.
            let ex = NonNull::new(unsafe { to_ex(qp.as_ptr()) });
            return Some((qp, ex, attr.cap.max_inline_data));
        }
    }
    // SAFETY: pointers and numbers may be zero.
    let mut attr: ibv_qp_init_attr = unsafe { MaybeUninit::zeroed().assume_init() };
    (attr.send_cq, attr.recv_cq) = (send_cq.0.ptr.as_ptr(), receive_cq.0.ptr.as_ptr());
    (attr.cap, attr.qp_type, attr.sq_sig_all) = (cap, qp_type, 1);
    // SAFETY: as promised by the caller.
    let qp = NonNull::new(unsafe { (f.create_qp)(pd.as_ptr(), &mut attr) })?;
    Some((qp, None, attr.cap.max_inline_data))
}

fn no_attributes() -> ibv_qp_attr {
    // SAFETY: numbers may be zero.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_for_ever() {
        assert_eq!(Retry::new(14, 3, 6, 18), Ok(Retry::default()));
        for (t, r, n, m) in
            [(0, 3, 6, 18), (32, 3, 6, 18), (14, 7, 6, 18), (14, 3, 7, 18), (14, 3, 0, 18), (14, 3, 6, 0)]
        {
            let refused = Retry::new(t, r, n, m);
            assert!(matches!(refused, Err(VerbsError::Invalid { .. })), "{t} {r} {n} {m}: {refused:?}");
        }
        assert_eq!(Retry::of(Some("rxe")), Retry::new(18, 3, 6, 18).expect("in range"));
        assert_eq!(Retry::of(Some("mlx5")), Retry::default());
        assert_eq!(Retry::default().gives_up_after_ns(), 16 * (4096 << 14));
    }
}
