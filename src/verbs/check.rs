//! Feature `rdma-sys`: [`super::sys`] and [`super::signatures`] beside that crate's, when this is compiled.
//!
//! The two have types of their own, so what is compared is what a call or a field access depends on: the size of each
//! structure, the offset of each field, and for each function how many bytes each argument and the result have.
#![forbid(unsafe_code)]

use std::mem::offset_of;

use super::signatures;
use super::sys as ours;
use rdma_sys as theirs;

/// Sizes of a function's arguments; the result's comes last.
trait Shape {
    const SIZES: &'static [usize];
}

macro_rules! shapes {
    ($(($($arg:ident),*);)*) => {
        $(impl<R, $($arg),*> Shape for unsafe extern "C" fn($($arg),*) -> R {
            const SIZES: &'static [usize] = &[$(size_of::<$arg>(),)* size_of::<R>()];
        })*
    };
}

shapes! {
    (A);
    (A, B);
    (A, B, C);
    (A, B, C, D);
    (A, B, C, D, E);
    (A, B, C, D, E, F);
}

const fn same(a: &[usize], b: &[usize]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut i = 0;
    while i < a.len() {
        if a[i] != b[i] {
            return false;
        }
        i += 1;
    }
    true
}

const fn sizes<F: Shape + Copy>(_: F) -> &'static [usize] {
    F::SIZES
}

macro_rules! structures {
    ($($name:ident { $($field:ident),* $(,)? })*) => {
        $(const _: () = {
            assert!(size_of::<ours::$name>() == size_of::<theirs::$name>(), concat!("size of ", stringify!($name)));
            assert!(align_of::<ours::$name>() == align_of::<theirs::$name>(), concat!("alignment of ", stringify!($name)));
            $(assert!(
                offset_of!(ours::$name, $field) == offset_of!(theirs::$name, $field),
                concat!("offset of ", stringify!($name), ".", stringify!($field))
            );)*
        };)*
    };
}

structures! {
    ibv_ece { vendor_id, options, comp_mask }
    ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
    ibv_device_attr { fw_ver, node_guid, vendor_id, vendor_part_id, max_qp, max_qp_wr, max_cqe, max_mr, max_qp_rd_atom,
        max_qp_init_rd_atom, atomic_cap, phys_port_cnt }
    ibv_port_attr { state, max_mtu, active_mtu, gid_tbl_len, max_msg_sz, active_width, active_speed, link_layer }
    ibv_pd { context, handle }
    ibv_mr { context, pd, addr, length, handle, lkey, rkey }
    ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
    ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
    ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
    ibv_qp_init_attr_ex { send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, send_ops_flags }
    ibv_qp_attr { qp_state, path_mtu, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, ah_attr, pkey_index,
        max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry }
    ibv_sge { addr, length, lkey }
    ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, wr }
    ibv_recv_wr { wr_id, next, sg_list, num_sge }
    ibv_wc { wr_id, status, opcode, vendor_err, byte_len, qp_num, src_qp, wc_flags }
    ibv_async_event { element, event_type }
    ibv_qp { context, pd, send_cq, recv_cq, handle, qp_num, state, qp_type }
    ibv_cq { context, channel, cq_context, handle, cqe }
    ibv_cq_ex { context, channel, cqe, status, wr_id, start_poll, next_poll, end_poll, read_opcode, read_vendor_err,
        read_byte_len, read_imm_data, read_qp_num, read_src_qp, read_wc_flags, read_completion_ts }
    ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags }
    ibv_comp_channel { context, fd, refcnt }
    ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
    ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, abi_compat }
    ibv_context_ops { poll_cq, req_notify_cq, post_send, post_recv }
    verbs_context { query_port, create_cq_ex, query_device_ex, create_qp_ex, sz, context }
}

macro_rules! functions {
    ($($name:ident: $theirs:ident($($arg:tt),*);)*) => {
        $(const _: () = assert!(
            same(
                <signatures::$name as Shape>::SIZES,
                sizes(theirs::$theirs as unsafe extern "C" fn($($arg),*) -> _),
            ),
            concat!("signature of ", stringify!($theirs))
        );)*
    };
}

functions! {
    get_device_list: ibv_get_device_list(_);
    free_device_list: ibv_free_device_list(_);
    open_device: ibv_open_device(_);
    close_device: ibv_close_device(_);
    query_device: ibv_query_device(_, _);
    query_port: ibv_query_port(_, _, _);
    query_gid: ibv_query_gid(_, _, _, _);
    alloc_pd: ibv_alloc_pd(_);
    dealloc_pd: ibv_dealloc_pd(_);
    reg_mr: ibv_reg_mr(_, _, _, _);
    dereg_mr: ibv_dereg_mr(_);
    create_comp_channel: ibv_create_comp_channel(_);
    destroy_comp_channel: ibv_destroy_comp_channel(_);
    create_cq: ibv_create_cq(_, _, _, _, _);
    destroy_cq: ibv_destroy_cq(_);
    get_cq_event: ibv_get_cq_event(_, _, _);
    ack_cq_events: ibv_ack_cq_events(_, _);
    create_qp: ibv_create_qp(_, _);
    modify_qp: ibv_modify_qp(_, _, _);
    query_qp: ibv_query_qp(_, _, _, _);
    destroy_qp: ibv_destroy_qp(_);
    create_ah: ibv_create_ah(_, _);
    destroy_ah: ibv_destroy_ah(_);
    get_async_event: ibv_get_async_event(_, _);
    ack_async_event: ibv_ack_async_event(_);
    qp_to_qp_ex: ibv_qp_to_qp_ex(_);
    query_ece: ibv_query_ece(_, _);
    query_qp_data_in_order: ibv_query_qp_data_in_order(_, _, _);
    reg_mr_iova2: ibv_reg_mr_iova2(_, _, _, _, _);
    reg_dmabuf_mr: ibv_reg_dmabuf_mr(_, _, _, _, _, _);
}
