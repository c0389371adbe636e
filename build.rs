//! With feature `regen`: writes `src/verbs/sys.rs` from the installed `infiniband/verbs.h`. Without it: nothing.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "regen")]
    regen::run();
}

#[cfg(feature = "regen")]
mod regen {
    /// Structures and unions that the backend reads or writes; what they refer to comes along.
    const TYPES: &[&str] = &[
        "ibv_ah_attr",
        "ibv_async_event",
        "ibv_cq_ex",
        "ibv_cq_init_attr_ex",
        "ibv_device_attr_ex",
        "ibv_ece",
        "ibv_gid",
        "ibv_gid_entry",
        "ibv_gid_type",
        "ibv_mr",
        "ibv_port_attr",
        "ibv_qp_attr",
        "ibv_qp_ex",
        "ibv_qp_init_attr",
        "ibv_qp_init_attr_ex",
        "ibv_recv_wr",
        "ibv_send_wr",
        "ibv_wc",
        "verbs_context",
        "ibv_access_flags",
        "ibv_create_cq_wc_flags",
        "ibv_cq_init_attr_mask",
        "ibv_qp_attr_mask",
        "ibv_qp_create_send_ops_flags",
        "ibv_qp_init_attr_mask",
        "ibv_send_flags",
    ];

    /// Parts of the interface that the backend never touches: only pointers to them occur.
    const OPAQUE: &[&str] = &[
        "ib_uverbs_.*",
        "ibv_counter.*",
        "ibv_dm",
        "ibv_flow.*",
        "ibv_modify_cq_attr",
        "ibv_mw",
        "ibv_mw_bind.*",
        "ibv_odp_caps.*",
        "ibv_ops_.*",
        "ibv_packet_pacing_caps",
        "ibv_parent_domain_init_attr",
        "ibv_pci_atomic_caps",
        "ibv_qp_open_attr",
        "ibv_qp_rate_limit_attr",
        "ibv_rss_caps",
        "ibv_rwq_.*",
        "ibv_rx_hash_conf",
        "ibv_srq.*",
        "ibv_td.*",
        "ibv_tm_.*",
        "ibv_tso_caps",
        "ibv_values_ex",
        "ibv_wq.*",
        "ibv_xrcd.*",
        "verbs_ex_private",
    ];

    pub(super) fn run() {
        println!("cargo:rerun-if-changed=/usr/include/infiniband/verbs.h");
        let mut builder = bindgen::Builder::default()
            .header_contents("regen.h", "#include <infiniband/verbs.h>\n")
            .default_enum_style(bindgen::EnumVariation::Consts)
            .prepend_enum_name(false)
            .generate_comments(false)
            .layout_tests(false)
            .ignore_functions()
            .ignore_methods()
            .use_core()
            .derive_debug(false)
            .derive_default(false)
            .merge_extern_blocks(true)
            .formatter(bindgen::Formatter::Rustfmt)
            .rustfmt_configuration_file(Some(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("rustfmt.toml")))
            .disable_header_comment()
            .raw_line("// Written by `cargo check --features regen`; do not edit.")
            .raw_line("// The facts of rdma-core's public infiniband/verbs.h: layouts and numbers.")
            // Their sizes differ between architectures; libc knows them.
            .blocklist_type("pthread_.*|__pthread.*|__atomic.*")
            .raw_line("use libc::{pthread_cond_t, pthread_mutex_t};");
        for name in TYPES {
            builder = builder.allowlist_type(name);
        }
        for name in OPAQUE {
            builder = builder.opaque_type(name);
        }
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/verbs/sys.rs");
        builder
            .generate()
            .expect("bindings: are libibverbs-dev and libclang installed?")
            .write_to_file(file)
            .expect("src/verbs/sys.rs");
    }
}
