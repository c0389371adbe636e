//! Requests on their way to a queue pair: written one by one, sent by one doorbell.

use std::ptr::NonNull;

use super::mr::Mr;
use super::qp::Rejected;
use super::sys::*;

/// Bytes of a registration.
#[derive(Clone, Copy, Debug)]
pub struct Local<'a> {
    /// The registration.
    pub mr: &'a Mr,
    /// First byte in it.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImm(u32),
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data.
    WriteImm(u32),
    /// RDMA READ.
    Read,
    /// Add to 8 bytes at the peer.
    FetchAdd(u64),
    /// Compare 8 bytes at the peer with the first, and store the second if they are equal.
    CompareSwap(u64, u64),
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// What to do.
    pub op: SendOp,
    /// Our bytes.
    pub local: Option<Local<'a>>,
    /// Address and key at the peer.
    pub remote: (u64, u32),
    /// Copy the bytes into the request itself, if the queue pair has room: they may change at once then.
    pub inline: bool,
}

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> i32;

/// The requests of one queue pair that wait for its doorbell.
pub(super) struct Batch {
    way: Way,
    inline: u32,
}

enum Way {
    /// Written by the driver's own functions, straight into its queue.
    Extended { f: Functions, begun: bool },
    /// Kept here, and handed over as a chain.
    Chain {
        qp: NonNull<ibv_qp>,
        post_send: PostSend,
        depth: usize,
        wrs: Vec<ibv_send_wr>,
        sges: Vec<ibv_sge>,
        inline: Vec<u8>,
    },
}

#[derive(Clone, Copy)]
struct Functions {
    qp: NonNull<ibv_qp_ex>,
    start: unsafe extern "C" fn(*mut ibv_qp_ex),
    complete: unsafe extern "C" fn(*mut ibv_qp_ex) -> i32,
    abort: unsafe extern "C" fn(*mut ibv_qp_ex),
    send: unsafe extern "C" fn(*mut ibv_qp_ex),
    send_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, __be32)>,
    write: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64),
    write_imm: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, __be32),
    read: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64),
    fetch_add: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)>,
    compare_swap: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)>,
    set_sge: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32),
    set_sge_list: unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge),
    set_inline: unsafe extern "C" fn(*mut ibv_qp_ex, *mut std::ffi::c_void, usize),
}

impl Functions {
    /// # Safety
    /// A live queue pair with the extended form.
    unsafe fn of(qp: NonNull<ibv_qp_ex>) -> Option<Functions> {
        // SAFETY: as promised.
        let q = unsafe { qp.as_ref() };
        Some(Functions {
            qp,
            start: q.wr_start?,
            complete: q.wr_complete?,
            abort: q.wr_abort?,
            send: q.wr_send?,
            send_imm: q.wr_send_imm,
            write: q.wr_rdma_write?,
            write_imm: q.wr_rdma_write_imm?,
            read: q.wr_rdma_read?,
            fetch_add: q.wr_atomic_fetch_add,
            compare_swap: q.wr_atomic_cmp_swp,
            set_sge: q.wr_set_sge?,
            set_sge_list: q.wr_set_sge_list?,
            set_inline: q.wr_set_inline_data?,
        })
    }
}

impl Batch {
    /// # Safety
    /// The queue pair lives longer than the batch, and nobody else posts requests to it.
    pub(super) unsafe fn new(
        qp: NonNull<ibv_qp>,
        extended: Option<NonNull<ibv_qp_ex>>,
        post_send: PostSend,
        depth: u32,
        inline: u32,
    ) -> Batch {
        // SAFETY: as promised.
        let way = match extended.and_then(|e| unsafe { Functions::of(e) }) {
            Some(f) => Way::Extended { f, begun: false },
            None => {
                let depth = depth as usize;
                Way::Chain {
                    qp,
                    post_send,
                    depth,
                    wrs: Vec::with_capacity(depth),
                    sges: Vec::with_capacity(depth),
                    // Inline data is read at the doorbell, when its registration may be gone: it waits here.
                    inline: vec![0; depth * inline as usize],
                }
            }
        };
        Batch { way, inline }
    }

    pub(super) fn is_extended(&self) -> bool {
        matches!(self.way, Way::Extended { .. })
    }

    #[inline]
    pub(super) fn push(&mut self, request: &SendRequest<'_>) -> bool {
        let mut sge = ibv_sge { addr: 0, length: 0, lkey: 0 };
        let mut inline = false;
        if let Some(l) = &request.local {
            let Some(addr) = l.mr.check(l.offset, l.len) else { return false };
            sge = ibv_sge { addr, length: l.len, lkey: l.mr.lkey() };
            inline = request.inline
                && l.len <= self.inline
                && l.len > 0
                && matches!(request.op, SendOp::Send | SendOp::SendImm(_) | SendOp::Write | SendOp::WriteImm(_))
                && l.mr.region().is_some();
        }
        let (addr, rkey) = request.remote;
        match &mut self.way {
            Way::Extended { f, begun } => {
                let qp = f.qp.as_ptr();
                // SAFETY: the queue pair is live and ours; `sge` is inside a registration, whose memory is alive while
                // it is borrowed here, so that inline data can be copied.
                unsafe {
                    if !std::mem::replace(begun, true) {
                        (f.start)(qp);
                    }
                    (*qp).wr_id = request.id;
                    (*qp).wr_flags = IBV_SEND_SIGNALED | if inline { IBV_SEND_INLINE } else { 0 };
                    match request.op {
                        SendOp::Send => (f.send)(qp),
                        SendOp::SendImm(imm) => match f.send_imm {
                            Some(op) => op(qp, imm.to_be()),
                            None => return false,
                        },
                        SendOp::Write => (f.write)(qp, rkey, addr),
                        SendOp::WriteImm(imm) => (f.write_imm)(qp, rkey, addr, imm.to_be()),
                        SendOp::Read => (f.read)(qp, rkey, addr),
                        SendOp::FetchAdd(add) => match f.fetch_add {
                            Some(op) => op(qp, rkey, addr, add),
                            None => return false,
                        },
                        SendOp::CompareSwap(compare, swap) => match f.compare_swap {
                            Some(op) => op(qp, rkey, addr, compare, swap),
                            None => return false,
                        },
                    }
                    if inline {
                        (f.set_inline)(
                            qp,
                            std::ptr::with_exposed_provenance_mut(sge.addr as usize),
                            sge.length as usize,
                        );
                    } else if sge.length > 0 {
                        (f.set_sge)(qp, sge.lkey, sge.addr, sge.length);
                    } else {
                        (f.set_sge_list)(qp, 0, std::ptr::null());
                    }
                }
                true
            }
            Way::Chain { depth, wrs, sges, inline: room, .. } => {
                if wrs.len() >= *depth {
                    return false;
                }
                if inline && let Some(l) = &request.local {
                    let width = self.inline as usize;
                    let room = &mut room[wrs.len() * width..][..l.len as usize];
                    let copied = l.mr.region().is_some_and(|r| {
                        let start = l.mr.addr() - r.as_ptr().addr() as u64;
                        r.read_at(start + l.offset, room).is_ok()
                    });
                    if !copied {
                        return false;
                    }
                    sge.addr = room.as_ptr().expose_provenance() as u64;
                }
                let mut wr = empty(request.id);
                wr.num_sge = i32::from(sge.length > 0);
                wr.send_flags = IBV_SEND_SIGNALED | if inline { IBV_SEND_INLINE } else { 0 };
                wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: addr, rkey };
                wr.opcode = match request.op {
                    SendOp::Send => IBV_WR_SEND,
                    SendOp::SendImm(imm) => {
                        wr.__bindgen_anon_1.imm_data = imm.to_be();
                        IBV_WR_SEND_WITH_IMM
                    }
                    SendOp::Write => IBV_WR_RDMA_WRITE,
                    SendOp::WriteImm(imm) => {
                        wr.__bindgen_anon_1.imm_data = imm.to_be();
                        IBV_WR_RDMA_WRITE_WITH_IMM
                    }
                    SendOp::Read => IBV_WR_RDMA_READ,
                    SendOp::FetchAdd(_) => IBV_WR_ATOMIC_FETCH_AND_ADD,
                    SendOp::CompareSwap(..) => IBV_WR_ATOMIC_CMP_AND_SWP,
                };
                let atomic = match request.op {
                    SendOp::FetchAdd(add) => Some((add, 0)),
                    SendOp::CompareSwap(compare, swap) => Some((compare, swap)),
                    _ => None,
                };
                if let Some((compare_add, swap)) = atomic {
                    wr.wr.atomic =
                        ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr: addr, compare_add, swap, rkey };
                }
                wrs.push(wr);
                sges.push(sge);
                true
            }
        }
    }

    /// A datagram; the caller rings while it still holds the address handle.
    pub(super) fn push_datagram(&mut self, id: u64, local: &Local<'_>, ah: *mut ibv_ah, qpn: u32, qkey: u32) -> bool {
        let Some(addr) = local.mr.check(local.offset, local.len) else { return false };
        // Queue pairs for datagrams are made without the extended form.
        let Way::Chain { depth, wrs, sges, .. } = &mut self.way else { return false };
        if wrs.len() >= *depth {
            return false;
        }
        let mut wr = empty(id);
        wr.num_sge = i32::from(local.len > 0);
        wr.opcode = IBV_WR_SEND;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn: qpn, remote_qkey: qkey };
        wrs.push(wr);
        sges.push(ibv_sge { addr, length: local.len, lkey: local.mr.lkey() });
        true
    }

    #[inline]
    pub(super) fn ring(&mut self) -> Result<(), Rejected> {
        match &mut self.way {
            Way::Extended { f, begun } => {
                if !std::mem::replace(begun, false) {
                    return Ok(());
                }
                // SAFETY: live, and begun.
                match unsafe { (f.complete)(f.qp.as_ptr()) } {
                    0 => Ok(()),
                    // The driver takes such a batch back whole.
                    errno => Err(Rejected { taken: 0, errno: errno.abs() }),
                }
            }
            Way::Chain { qp, post_send, wrs, sges, .. } => {
                let n = wrs.len();
                if n == 0 {
                    return Ok(());
                }
                let base = wrs.as_mut_ptr();
                for (i, (wr, sge)) in wrs.iter_mut().zip(sges.iter_mut()).enumerate() {
                    wr.sg_list = sge;
                    wr.next = if i + 1 < n { base.wrapping_add(i + 1) } else { std::ptr::null_mut() };
                }
                let mut bad = std::ptr::null_mut();
                // SAFETY: a live queue pair, and a chain of requests that the call copies.
                let rc = unsafe { post_send(qp.as_ptr(), base, &mut bad) };
                wrs.clear();
                sges.clear();
                if rc == 0 {
                    return Ok(());
                }
                let bad = (bad.addr().wrapping_sub(base.addr())) / size_of::<ibv_send_wr>();
                Err(Rejected { taken: if bad < n { bad as u32 } else { 0 }, errno: rc.abs() })
            }
        }
    }

    /// Forgets what waits.
    pub(super) fn abort(&mut self) {
        match &mut self.way {
            Way::Extended { f, begun } => {
                if std::mem::replace(begun, false) {
                    // SAFETY: live, and begun.
                    unsafe { (f.abort)(f.qp.as_ptr()) };
                }
            }
            Way::Chain { wrs, sges, .. } => {
                wrs.clear();
                sges.clear();
            }
        }
    }
}

fn empty(id: u64) -> ibv_send_wr {
    // SAFETY: pointers and numbers may be zero.
    let mut wr: ibv_send_wr = unsafe { std::mem::MaybeUninit::zeroed().assume_init() };
    wr.wr_id = id;
    wr
}
