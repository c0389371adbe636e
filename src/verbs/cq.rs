//! Completion queues and the channel that wakes their sleepers.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::device::Context;
use super::error::{VerbsError, last_errno};
use super::ext;
use super::sys::*;

/// Entries taken by one call.
const BATCH: usize = 32;

/// Wakes whoever sleeps on its descriptor when an armed queue gets an entry. A clone is another handle to it.
#[derive(Clone)]
pub struct CompletionChannel(Arc<Channel>);

struct Channel {
    context: Arc<Context>,
    ptr: NonNull<ibv_comp_channel>,
}

// SAFETY: libibverbs allows calls on a channel from any thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl CompletionChannel {
    /// A new one.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn new(context: &Arc<Context>) -> Result<CompletionChannel, VerbsError> {
        // SAFETY: an open context.
        let ptr = unsafe { (context.library.f.create_comp_channel)(context.ptr.as_ptr()) };
        let ptr = NonNull::new(ptr).ok_or_else(|| context.failed("ibv_create_comp_channel"))?;
        let channel = CompletionChannel(Arc::new(Channel { context: context.clone(), ptr }));
        set_nonblocking(channel.fd()).map_err(|errno| VerbsError::call(context.name(), "fcntl", errno))?;
        Ok(channel)
    }

    /// Readable when an armed queue got an entry.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.0.ptr.as_ptr()).fd) }
    }

    /// Takes up to `most` wake-ups, a system call each and one more if there are fewer. Each queue that was armed wakes once; when
    /// all are taken the descriptor is quiet again. Returns how many there were.
    pub fn take(&self, most: usize) -> usize {
        let f = &self.0.context.library.f;
        for taken in 0..most {
            let (mut cq, mut owner) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: a live channel; the descriptor does not block.
            if unsafe { (f.get_cq_event)(self.0.ptr.as_ptr(), &mut cq, &mut owner) } != 0 {
                return taken;
            }
            // SAFETY: a queue is not destroyed before its wake-ups are acknowledged.
            unsafe { (f.ack_cq_events)(cq, 1) };
        }
        most
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made once; queues of it held a handle.
        unsafe { (self.context.library.f.destroy_comp_channel)(self.ptr.as_ptr()) };
    }
}

/// A completion queue. Queue pairs hold it as well.
pub struct Cq(pub(super) Arc<CqInner>);

pub(super) struct CqInner {
    pub(super) context: Arc<Context>,
    pub(super) ptr: NonNull<ibv_cq>,
    extended: Option<Extended>,
    capacity: u32,
    /// Last: it must outlive the queue.
    _channel: Option<CompletionChannel>,
}

/// A queue that is read field by field, and gives timestamps.
struct Extended {
    ptr: NonNull<ibv_cq_ex>,
    start: unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> i32,
    next: unsafe extern "C" fn(*mut ibv_cq_ex) -> i32,
    end: unsafe extern "C" fn(*mut ibv_cq_ex),
    opcode: unsafe extern "C" fn(*mut ibv_cq_ex) -> ibv_wc_opcode,
    vendor_err: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    byte_len: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    imm: unsafe extern "C" fn(*mut ibv_cq_ex) -> __be32,
    qp_num: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    src_qp: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    flags: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    timestamp: unsafe extern "C" fn(*mut ibv_cq_ex) -> u64,
}

// SAFETY: libibverbs allows calls on a queue from any thread; polling needs the one `Cq`, by `&mut`.
unsafe impl Send for CqInner {}
// SAFETY: as above.
unsafe impl Sync for CqInner {}

/// An entry of a completion queue. With an error, only `wr_id`, `status`, `qpn` and `vendor_err` mean anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wc {
    /// As it was posted.
    pub wr_id: u64,
    /// `IBV_WC_SUCCESS` (0), or why not.
    pub status: u32,
    /// What completed: `IBV_WC_SEND` and so on.
    pub opcode: u32,
    /// The vendor's own word for an error.
    pub vendor_err: u32,
    /// Bytes that a receive got.
    pub byte_len: u32,
    /// Immediate data that came along.
    pub imm: Option<u32>,
    /// The 40 bytes before a datagram hold its IP header.
    pub grh: bool,
    /// Our queue pair.
    pub qpn: u32,
    /// The sender's queue pair, of datagrams.
    pub src_qpn: u32,
    /// The device's clock when it completed, where the queue has that.
    pub timestamp: Option<u64>,
}

impl Wc {
    /// True if a receive completed without error.
    pub fn is_receive(&self) -> bool {
        self.opcode & IBV_WC_RECV != 0
    }
}

/// The bits of `wc_flags` that matter here.
const WC_GRH: u32 = 1;
const WC_WITH_IMM: u32 = 2;

impl Cq {
    /// A queue of at least `depth` entries. With `timestamps`, it has them if the device does.
    ///
    /// # Errors
    /// More entries than the device has, or no memory.
    pub fn new(
        context: &Arc<Context>,
        channel: Option<&CompletionChannel>,
        depth: u32,
        timestamps: bool,
    ) -> Result<Cq, VerbsError> {
        let max = context.limits().max_cqe;
        if depth == 0 || depth > max || depth > i32::MAX as u32 {
            return Err(VerbsError::Invalid {
                what: "depth of a completion queue",
                value: u64::from(depth),
                range: "1 to the device's max_cqe",
            });
        }
        let channel_ptr = channel.map_or(std::ptr::null_mut(), |c| c.0.ptr.as_ptr());
        let mut extended = None;
        if timestamps && context.limits().timestamp_mask != 0 {
            let mut attr = ibv_cq_init_attr_ex {
                cqe: depth,
                cq_context: std::ptr::null_mut(),
                channel: channel_ptr,
                comp_vector: 0,
                wc_flags: u64::from(
                    IBV_WC_EX_WITH_BYTE_LEN
                        | IBV_WC_EX_WITH_IMM
                        | IBV_WC_EX_WITH_QP_NUM
                        | IBV_WC_EX_WITH_SRC_QP
                        | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
                ),
                comp_mask: 0,
                flags: 0,
                parent_domain: std::ptr::null_mut(),
            };
            // SAFETY: an open context and its own channel.
            if let Some(cq) = unsafe { ext::create_cq_ex(context.ptr, &mut attr) } {
                // SAFETY: just made.
                extended = unsafe { Extended::of(cq) };
                if extended.is_none() {
                    // SAFETY: just made, and nothing uses it.
                    unsafe { (context.library.f.destroy_cq)(cq.as_ptr().cast()) };
                }
            }
        }
        let ptr = match &extended {
            Some(e) => e.ptr.cast(),
            None => {
                // SAFETY: an open context and its own channel.
                let cq = unsafe {
                    (context.library.f.create_cq)(
                        context.ptr.as_ptr(),
                        depth as i32,
                        std::ptr::null_mut(),
                        channel_ptr,
                        0,
                    )
                };
                NonNull::new(cq).ok_or_else(|| context.failed("ibv_create_cq"))?
            }
        };
        // SAFETY: just made; the library has filled in what it granted.
        let granted = u32::try_from(unsafe { (*ptr.as_ptr()).cqe }).unwrap_or(depth);
        Ok(Cq(Arc::new(CqInner {
            context: context.clone(),
            ptr,
            extended,
            capacity: granted.max(depth),
            _channel: channel.cloned(),
        })))
    }

    /// Entries that it holds.
    pub fn capacity(&self) -> u32 {
        self.0.capacity
    }

    /// True if its entries have timestamps.
    pub fn has_timestamps(&self) -> bool {
        self.0.extended.is_some()
    }

    /// Asks for one wake-up of the channel by the next entry. Poll again afterwards: what came before does not wake.
    ///
    /// # Errors
    /// The call fails.
    pub fn arm(&self) -> Result<(), VerbsError> {
        let inner = &*self.0;
        // SAFETY: a live queue of this context.
        match unsafe { (inner.context.ops.req_notify_cq)(inner.ptr.as_ptr(), 0) } {
            0 => Ok(()),
            rc => Err(VerbsError::call(inner.context.name(), "ibv_req_notify_cq", rc)),
        }
    }

    /// Takes up to `most` entries, oldest first, and gives each to `sink`. Returns how many.
    ///
    /// # Errors
    /// The queue is broken, as after an overflow: nothing comes from it any more.
    #[inline]
    pub fn poll(&mut self, most: usize, mut sink: impl FnMut(&Wc)) -> Result<usize, VerbsError> {
        let inner = &*self.0;
        if let Some(e) = &inner.extended {
            // SAFETY: `&mut self` makes this the only poller.
            return unsafe { e.poll(most, &mut sink) }
                .map_err(|rc| VerbsError::call(inner.context.name(), "ibv_start_poll", rc));
        }
        let mut taken = 0;
        while taken < most {
            let mut wcs = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
            let want = (most - taken).min(BATCH);
            // SAFETY: a live queue, and room for as many entries as asked for.
            let got = unsafe { (inner.context.ops.poll_cq)(inner.ptr.as_ptr(), want as i32, wcs.as_mut_ptr().cast()) };
            let Ok(got) = usize::try_from(got) else {
                return Err(VerbsError::call(inner.context.name(), "ibv_poll_cq", last_errno()));
            };
            for wc in &wcs[..got.min(want)] {
                // SAFETY: the call has filled this many.
                let wc = unsafe { wc.assume_init_ref() };
                sink(&Wc {
                    wr_id: wc.wr_id,
                    status: wc.status,
                    opcode: wc.opcode,
                    vendor_err: wc.vendor_err,
                    byte_len: wc.byte_len,
                    // SAFETY: both forms are 32 bits.
                    imm: (wc.wc_flags & WC_WITH_IMM != 0)
                        .then(|| u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data })),
                    grh: wc.wc_flags & WC_GRH != 0,
                    qpn: wc.qp_num,
                    src_qpn: wc.src_qp,
                    timestamp: None,
                });
            }
            taken += got;
            if got < want {
                break;
            }
        }
        Ok(taken)
    }
}

impl Extended {
    /// # Safety
    /// A live extended queue.
    unsafe fn of(ptr: NonNull<ibv_cq_ex>) -> Option<Extended> {
        // SAFETY: as promised; the library fills in its functions when it makes the queue.
        let cq = unsafe { ptr.as_ref() };
        Some(Extended {
            ptr,
            start: cq.start_poll?,
            next: cq.next_poll?,
            end: cq.end_poll?,
            opcode: cq.read_opcode?,
            vendor_err: cq.read_vendor_err?,
            byte_len: cq.read_byte_len?,
            imm: cq.read_imm_data?,
            qp_num: cq.read_qp_num?,
            src_qp: cq.read_src_qp?,
            flags: cq.read_wc_flags?,
            timestamp: cq.read_completion_ts?,
        })
    }

    /// # Safety
    /// The queue is live, and nobody else polls it.
    unsafe fn poll(&self, most: usize, sink: &mut impl FnMut(&Wc)) -> Result<usize, i32> {
        if most == 0 {
            return Ok(0);
        }
        let cq = self.ptr.as_ptr();
        let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: as promised by the caller; so for all calls below.
        match unsafe { (self.start)(cq, &mut attr) } {
            0 => {}
            libc::ENOENT => return Ok(0),
            rc => return Err(rc),
        }
        let mut taken = 0;
        let rc = loop {
            // SAFETY: between start and end the current entry can be read.
            let wc = unsafe {
                let (wr_id, status) = ((*cq).wr_id, (*cq).status);
                let good = status == IBV_WC_SUCCESS;
                let (opcode, flags) = if good { ((self.opcode)(cq), (self.flags)(cq)) } else { (0, 0) };
                Wc {
                    wr_id,
                    status,
                    opcode,
                    vendor_err: if good { 0 } else { (self.vendor_err)(cq) },
                    byte_len: if good { (self.byte_len)(cq) } else { 0 },
                    imm: (flags & WC_WITH_IMM != 0).then(|| u32::from_be((self.imm)(cq))),
                    grh: flags & WC_GRH != 0,
                    qpn: (self.qp_num)(cq),
                    src_qpn: if good { (self.src_qp)(cq) } else { 0 },
                    timestamp: good.then(|| (self.timestamp)(cq)),
                }
            };
            sink(&wc);
            taken += 1;
            if taken == most {
                break 0;
            }
            // SAFETY: as above.
            match unsafe { (self.next)(cq) } {
                0 => {}
                libc::ENOENT => break 0,
                rc => break rc,
            }
        };
        // SAFETY: started above.
        unsafe { (self.end)(cq) };
        if rc == 0 || taken > 0 { Ok(taken) } else { Err(rc) }
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        // SAFETY: made once; queue pairs held a handle, and all wake-ups are acknowledged as they are taken.
        unsafe { (self.context.library.f.destroy_cq)(self.ptr.as_ptr()) };
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cq({} of {})", self.0.capacity, self.0.context.name())
    }
}

/// Makes reads from a descriptor return at once.
pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), i32> {
    use std::os::fd::AsRawFd;
    // SAFETY: reads and sets the flags of an open descriptor.
    let rc = unsafe {
        let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
        if flags < 0 { -1 } else { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) }
    };
    if rc < 0 { Err(last_errno()) } else { Ok(()) }
}
