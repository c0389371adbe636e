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
    Chain { qp: NonNull<ibv_qp>, post_send: PostSend, waiting: Chain, inline: Vec<u8> },
}

/// Requests, each linked to the next and to its piece of memory once and for all: a request that is added writes only
/// what differs from the one that was there before.
struct Chain {
    first: NonNull<Link>,
    depth: usize,
    len: usize,
}

struct Link {
    wr: ibv_send_wr,
    sge: ibv_sge,
}

impl Chain {
    /// Room for `depth` requests, at least one.
    fn new(depth: usize) -> Chain {
        // SAFETY: pointers and numbers may be zero.
        let links: Vec<Link> = (0..depth.max(1)).map(|_| unsafe { std::mem::zeroed() }).collect();
        let depth = links.len();
        // From here on the links are reached by this pointer alone, as they point at each other.
        let first = NonNull::from(Box::leak(links.into_boxed_slice())).cast::<Link>();
        for i in 0..depth {
            // SAFETY: inside the slice, and nobody else has it.
            unsafe {
                let link = first.as_ptr().add(i);
                (*link).wr.sg_list = &raw mut (*link).sge;
                if i + 1 < depth {
                    (*link).wr.next = &raw mut (*link.add(1)).wr;
                }
            }
        }
        Chain { first, depth, len: 0 }
    }

    /// Adds a request, of which the caller writes what its operation needs; `None` if there is no room.
    #[inline]
    fn add(&mut self, id: u64, opcode: ibv_wr_opcode, inline: bool, sge: ibv_sge) -> Option<&mut ibv_send_wr> {
        if self.len >= self.depth {
            return None;
        }
        // SAFETY: inside the slice, which is ours; no other reference to it is alive.
        unsafe {
            let link = self.first.as_ptr().add(self.len);
            self.len += 1;
            (*link).sge = sge;
            let wr = &mut (*link).wr;
            wr.wr_id = id;
            wr.num_sge = i32::from(sge.length > 0);
            wr.opcode = opcode;
            wr.send_flags = IBV_SEND_SIGNALED | if inline { IBV_SEND_INLINE } else { 0 };
            Some(wr)
        }
    }

    /// Hands all of them over, and is empty then.
    #[inline]
    fn ring(&mut self, qp: NonNull<ibv_qp>, post_send: PostSend) -> Result<(), Rejected> {
        let n = std::mem::take(&mut self.len);
        if n == 0 {
            return Ok(());
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue pair, and a chain of `n` requests that the call copies; the last one ends it only for
        // as long as the call takes.
        let rc = unsafe {
            let last = &raw mut (*self.first.as_ptr().add(n - 1)).wr.next;
            let next = last.replace(std::ptr::null_mut());
            let rc = post_send(qp.as_ptr(), &raw mut (*self.first.as_ptr()).wr, &mut bad);
            last.write(next);
            rc
        };
        if rc == 0 {
            return Ok(());
        }
        let bad = bad.addr().wrapping_sub(self.first.addr().get()) / size_of::<Link>();
        Err(Rejected { taken: if bad < n { bad as u32 } else { 0 }, errno: rc.abs() })
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        let links = std::ptr::slice_from_raw_parts_mut(self.first.as_ptr(), self.depth);
        // SAFETY: leaked by `new`, with this length.
        drop(unsafe { Box::from_raw(links) });
    }
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
                let waiting = Chain::new(depth as usize);
                // Inline data is read at the doorbell, when its registration may be gone: it waits here.
                let inline = vec![0; waiting.depth * inline as usize];
                Way::Chain { qp, post_send, waiting, inline }
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
            Way::Chain { waiting, inline: room, .. } => {
                if waiting.len >= waiting.depth {
                    return false;
                }
                if inline && let Some(l) = &request.local {
                    let width = self.inline as usize;
                    let room = &mut room[waiting.len * width..][..l.len as usize];
                    let copied = l.mr.region().is_some_and(|r| {
                        let start = l.mr.addr() - r.as_ptr().addr() as u64;
                        r.read_at(start + l.offset, room).is_ok()
                    });
                    if !copied {
                        return false;
                    }
                    sge.addr = room.as_ptr().expose_provenance() as u64;
                }
                let (opcode, imm, atomic) = match request.op {
                    SendOp::Send => (IBV_WR_SEND, 0, None),
                    SendOp::SendImm(imm) => (IBV_WR_SEND_WITH_IMM, imm, None),
                    SendOp::Write => (IBV_WR_RDMA_WRITE, 0, None),
                    SendOp::WriteImm(imm) => (IBV_WR_RDMA_WRITE_WITH_IMM, imm, None),
                    SendOp::Read => (IBV_WR_RDMA_READ, 0, None),
                    SendOp::FetchAdd(add) => (IBV_WR_ATOMIC_FETCH_AND_ADD, 0, Some((add, 0))),
                    SendOp::CompareSwap(compare, swap) => (IBV_WR_ATOMIC_CMP_AND_SWP, 0, Some((compare, swap))),
                };
                let Some(wr) = waiting.add(request.id, opcode, inline, sge) else { return false };
                wr.__bindgen_anon_1.imm_data = imm.to_be();
                match atomic {
                    None => wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: addr, rkey },
                    Some((compare_add, swap)) => {
                        wr.wr.atomic =
                            ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr: addr, compare_add, swap, rkey };
                    }
                }
                true
            }
        }
    }

    /// A datagram; the caller rings while it still holds the address handle.
    pub(super) fn push_datagram(&mut self, id: u64, local: &Local<'_>, ah: *mut ibv_ah, qpn: u32, qkey: u32) -> bool {
        let Some(addr) = local.mr.check(local.offset, local.len) else { return false };
        // Queue pairs for datagrams are made without the extended form.
        let Way::Chain { waiting, .. } = &mut self.way else { return false };
        let sge = ibv_sge { addr, length: local.len, lkey: local.mr.lkey() };
        let Some(wr) = waiting.add(id, IBV_WR_SEND, false, sge) else { return false };
        wr.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn: qpn, remote_qkey: qkey };
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
            Way::Chain { qp, post_send, waiting, .. } => waiting.ring(*qp, *post_send),
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
            Way::Chain { waiting, .. } => waiting.len = 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    thread_local! {
        /// What the device was handed: id and first byte.
        static HANDED: RefCell<Vec<(u64, u64)>> = const { RefCell::new(Vec::new()) };
    }
    /// A request that the device refuses.
    const REFUSED: u64 = 99;

    unsafe extern "C" fn post_send(_: *mut ibv_qp, mut wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> i32 {
        while !wr.is_null() {
            // SAFETY: the chain's requests, each with a piece of memory.
            unsafe {
                if (*wr).wr_id == REFUSED {
                    *bad = wr;
                    return libc::ENOMEM;
                }
                HANDED.with_borrow_mut(|h| h.push(((*wr).wr_id, (*(*wr).sg_list).addr)));
                wr = (*wr).next;
            }
        }
        0
    }

    fn chain(chain: &mut Chain, ids: &[u64]) -> (Result<(), Rejected>, Vec<(u64, u64)>) {
        for &id in ids {
            let sge = ibv_sge { addr: id * 10, length: 1, lkey: 7 };
            assert!(chain.add(id, IBV_WR_RDMA_WRITE, false, sge).is_some());
        }
        let result = chain.ring(NonNull::dangling(), post_send);
        (result, HANDED.take())
    }

    #[test]
    fn a_chain_ends_where_it_should_whatever_it_was_before() {
        let mut c = Chain::new(3);
        for ids in [&[1, 2, 3][..], &[4], &[5, 6], &[7, 8, 9], &[]] {
            let handed = ids.iter().map(|&id| (id, id * 10)).collect();
            assert_eq!(chain(&mut c, ids), (Ok(()), handed));
        }
        for _ in 0..3 {
            assert!(c.add(1, IBV_WR_SEND, false, ibv_sge { addr: 0, length: 0, lkey: 0 }).is_some());
        }
        assert!(c.add(1, IBV_WR_SEND, false, ibv_sge { addr: 0, length: 0, lkey: 0 }).is_none(), "full");
        c.len = 0;
        for (at, ids) in [(0, [REFUSED, 1, 2]), (1, [1, REFUSED, 2]), (2, [1, 2, REFUSED])] {
            let (result, handed) = chain(&mut c, &ids);
            assert_eq!((result, handed.len()), (Err(Rejected { taken: at, errno: libc::ENOMEM }), at as usize));
        }
        assert_eq!(chain(&mut c, &[1, 2, 3]).1.len(), 3, "whole again");
    }
}
