//! What `infiniband/verbs.h` has as inline functions: calls through the tables of a context.

use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr::NonNull;

use super::sys::*;

/// What `abi_compat` holds where the context stands in a [`verbs_context`]: a pointer of all ones. (Compared with
/// 32 ones, as other bindings do, extended verbs never work on 64-bit machines.)
const EXTENDED: usize = usize::MAX;

/// The extended context around an ordinary one.
///
/// # Safety
/// `context` comes from `ibv_open_device` and is open.
pub(super) unsafe fn extended(context: NonNull<ibv_context>) -> Option<NonNull<verbs_context>> {
    // SAFETY: an open context can be read.
    if unsafe { (*context.as_ptr()).abi_compat }.addr() != EXTENDED {
        return None;
    }
    // SAFETY: the mark says that the context is a field of a verbs_context.
    Some(unsafe { context.byte_sub(offset_of!(verbs_context, context)).cast() })
}

/// A function of the extended context; `None` if the library is older than the function, or the driver has none.
macro_rules! extended_op {
    ($context:expr, $op:ident) => {{
        let context: NonNull<ibv_context> = $context;
        // SAFETY: the caller's context is open. `sz` counts from the field to the end of the structure, which grows
        // at its front, so it is asked before the field is read.
        unsafe {
            extended(context).and_then(|v| {
                let v = v.as_ptr();
                if (*v).sz >= size_of::<verbs_context>() - offset_of!(verbs_context, $op) { (*v).$op } else { None }
            })
        }
    }};
}

/// `ibv_query_port`, where the library fills the whole structure; `None` if only the exported function is there.
///
/// # Safety
/// An open context.
pub(super) unsafe fn query_port(context: NonNull<ibv_context>, port: u8, attr: &mut ibv_port_attr) -> Option<c_int> {
    let f = extended_op!(context, query_port)?;
    // SAFETY: the structure is ours and as long as said.
    Some(unsafe { f(context.as_ptr(), port, attr, size_of::<ibv_port_attr>()) })
}

/// `ibv_query_device_ex`; `None` if it is not there.
///
/// # Safety
/// An open context.
pub(super) unsafe fn query_device_ex(context: NonNull<ibv_context>, attr: &mut ibv_device_attr_ex) -> Option<c_int> {
    let f = extended_op!(context, query_device_ex)?;
    // SAFETY: no input is allowed; the structure is ours and as long as said.
    Some(unsafe { f(context.as_ptr(), std::ptr::null(), attr, size_of::<ibv_device_attr_ex>()) })
}

/// `ibv_create_cq_ex`; `None` if it is not there or failed.
///
/// # Safety
/// An open context and a valid channel in `attr`.
pub(super) unsafe fn create_cq_ex(
    context: NonNull<ibv_context>,
    attr: &mut ibv_cq_init_attr_ex,
) -> Option<NonNull<ibv_cq_ex>> {
    let f = extended_op!(context, create_cq_ex)?;
    // SAFETY: as promised by the caller.
    NonNull::new(unsafe { f(context.as_ptr(), attr) })
}

/// `ibv_create_qp_ex`; `None` if it is not there or failed.
///
/// # Safety
/// An open context; the objects that `attr` names are live and of the same context.
pub(super) unsafe fn create_qp_ex(
    context: NonNull<ibv_context>,
    attr: &mut ibv_qp_init_attr_ex,
) -> Option<NonNull<ibv_qp>> {
    let f = extended_op!(context, create_qp_ex)?;
    // SAFETY: as promised by the caller.
    NonNull::new(unsafe { f(context.as_ptr(), attr) })
}

/// The functions of the data path, taken out of the context once.
#[derive(Clone, Copy)]
pub(super) struct DataOps {
    pub(super) poll_cq: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    pub(super) req_notify_cq: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
    pub(super) post_send: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    pub(super) post_recv: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
}

impl DataOps {
    /// `None` if the driver lacks one of them.
    ///
    /// # Safety
    /// An open context.
    pub(super) unsafe fn of(context: NonNull<ibv_context>) -> Option<DataOps> {
        // SAFETY: an open context can be read.
        let ops = unsafe { &(*context.as_ptr()).ops };
        Some(DataOps {
            poll_cq: ops.poll_cq?,
            req_notify_cq: ops.req_notify_cq?,
            post_send: ops.post_send?,
            post_recv: ops.post_recv?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes and offsets as the C compiler has them on 64-bit machines with the public header of rdma-core 44.
    #[test]
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    fn layouts_are_those_of_c() {
        assert_eq!((size_of::<ibv_wc>(), offset_of!(ibv_wc, qp_num)), (48, 28));
        assert_eq!((size_of::<ibv_send_wr>(), offset_of!(ibv_send_wr, wr)), (128, 40));
        assert_eq!(size_of::<ibv_recv_wr>(), 32);
        assert_eq!(size_of::<ibv_sge>(), 16);
        assert_eq!((size_of::<ibv_qp_attr>(), offset_of!(ibv_qp_attr, ah_attr)), (144, 56));
        assert_eq!(size_of::<ibv_ah_attr>(), 32);
        assert_eq!((size_of::<ibv_context>(), offset_of!(ibv_context, abi_compat)), (328, 320));
        assert_eq!(size_of::<ibv_port_attr>(), 52);
        assert_eq!((size_of::<ibv_device_attr>(), size_of::<ibv_device_attr_ex>()), (232, 400));
        assert_eq!((size_of::<verbs_context>(), offset_of!(verbs_context, query_device_ex)), (648, 216));
        assert_eq!((size_of::<ibv_cq_ex>(), size_of::<ibv_qp_ex>(), size_of::<ibv_gid_entry>()), (288, 352, 32));
    }
}
