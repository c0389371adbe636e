//! A queue pair of rdma_rxe, through libibverbs.

use std::collections::VecDeque;
use std::net::IpAddr;

use planespray::mem::{Access, Region};
use planespray::verbs::{
    self, Cq, Library, Local, Mr, Pd, Peer, Qp, QpSpec, Retry, Route, SendOp, SendRequest, Transport, sys,
};

use crate::end::Options;

/// What rdma_rxe is to do: as [`planespray::roce::SendOp`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ask {
    Send,
    SendImm(u32),
    Write,
    WriteImm(u32),
    Read,
    FetchAdd(u64),
    CompareSwap { compare: u64, swap: u64 },
}

/// A completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wc {
    pub(crate) id: u64,
    status: u32,
    opcode: u32,
    pub(crate) len: u32,
    pub(crate) imm: Option<u32>,
}

impl Wc {
    pub(crate) fn is_success(&self) -> bool {
        self.status == sys::IBV_WC_SUCCESS
    }

    pub(crate) fn is_receive(&self) -> bool {
        self.opcode == sys::IBV_WC_RECV
    }

    pub(crate) fn is_remote_access(&self) -> bool {
        self.status == sys::IBV_WC_REM_ACCESS_ERR
    }

    pub(crate) fn is_rnr_retry_exceeded(&self) -> bool {
        self.status == sys::IBV_WC_RNR_RETRY_EXC_ERR
    }
}

pub(crate) struct Rxe {
    /// `None` once destroyed. Before what it uses.
    qp: Option<Qp>,
    qpn: u32,
    cq: Cq,
    mr: Mr,
    ip: IpAddr,
    gid: u8,
    done: VecDeque<Wc>,
}

impl Rxe {
    pub(crate) fn open(device: &str, ip: IpAddr, memory: usize) -> Rxe {
        let library = Library::load(None).unwrap_or_else(|e| panic!("{e}"));
        let devices = verbs::devices(&library).unwrap_or_else(|e| panic!("{e}"));
        let found = devices.iter().find(|d| d.name() == device).expect("the device");
        let context = found.open().unwrap_or_else(|e| panic!("{e}"));
        let pd = Pd::new(&context).unwrap();
        let cq = Cq::new(&context, None, 1024, false).unwrap();
        let region = Region::alloc(memory).unwrap();
        let all = Access::LOCAL_WRITE.and(Access::REMOTE_WRITE).and(Access::REMOTE_READ).and(Access::REMOTE_ATOMIC);
        let mr = Mr::register(&pd, &region, 0, memory as u64, all, false).unwrap();
        let spec = QpSpec { transport: Transport::Rc, send_depth: 256, receive_depth: 256, inline: 0, batched: false };
        let mut qp = Qp::new(&pd, &cq, &cq, &spec).unwrap();
        qp.init(1, 0).unwrap();
        let gid = context.gid_index(1, ip).unwrap();
        Rxe { qpn: qp.qpn(), qp: Some(qp), cq, mr, ip, gid, done: VecDeque::new() }
    }

    pub(crate) fn qpn(&self) -> u32 {
        self.qpn
    }

    pub(crate) fn rkey(&self) -> u32 {
        self.mr.rkey()
    }

    /// The address of its memory's first byte.
    pub(crate) fn base(&self) -> u64 {
        self.mr.addr()
    }

    pub(crate) fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Towards our queue pair. Both ends begin with `psn`s of their own: `psn` is ours to send, the options' the peer's.
    pub(crate) fn connect(&mut self, peer: IpAddr, qpn: u32, psn: u32, options: &Options) {
        // ECT(0), so that switches may mark its packets.
        let route = Route { port: 1, sgid_index: self.gid, peer, flow_label: 0, traffic_class: 2, hop_limit: 64 };
        // 18: about a second, for a machine that is slow.
        let retry = Retry::new(18, 6, options.rnr_retry, options.min_rnr_timer).unwrap();
        let peer = Peer { route, qpn, psn: options.psn, mtu: options.mtu };
        self.qp().connect(&peer, psn, &retry).unwrap_or_else(|e| panic!("{e}"));
    }

    fn qp(&mut self) -> &mut Qp {
        self.qp.as_mut().expect("not destroyed")
    }

    pub(crate) fn post(&mut self, id: u64, ask: Ask, offset: u64, len: u32, addr: u64, rkey: u32) {
        let op = match ask {
            Ask::Send => SendOp::Send,
            Ask::SendImm(imm) => SendOp::SendImm(imm),
            Ask::Write => SendOp::Write,
            Ask::WriteImm(imm) => SendOp::WriteImm(imm),
            Ask::Read => SendOp::Read,
            Ask::FetchAdd(add) => SendOp::FetchAdd(add),
            Ask::CompareSwap { compare, swap } => SendOp::CompareSwap(compare, swap),
        };
        let local = (len > 0).then_some(Local { mr: &self.mr, offset, len });
        let request = SendRequest { id, op, local, remote: (addr, rkey), inline: false };
        let qp = self.qp.as_mut().expect("not destroyed");
        assert!(qp.post(&request), "room for a request");
        qp.ring().unwrap_or_else(|e| panic!("post: {e:?}"));
    }

    /// Posts a receive; of no bytes if `len` is 0.
    pub(crate) fn post_receive(&mut self, id: u64, offset: u64, len: u32) {
        let local = (len > 0).then_some(Local { mr: &self.mr, offset, len });
        self.qp.as_mut().expect("not destroyed").post_receive(id, local).unwrap_or_else(|e| panic!("{e}"));
    }

    pub(crate) fn poll(&mut self) -> Option<Wc> {
        let done = &mut self.done;
        let take = |wc: &verbs::Wc| {
            done.push_back(Wc { id: wc.wr_id, status: wc.status, opcode: wc.opcode, len: wc.byte_len, imm: wc.imm });
        };
        self.cq.poll(64, take).unwrap_or_else(|e| panic!("{e}"));
        self.done.pop_front()
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        self.mr.region().expect("host memory").write_at(offset, bytes).expect("within the memory");
    }

    pub(crate) fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.region().expect("host memory").read_at(offset, &mut bytes).expect("within the memory");
        bytes
    }

    /// Destroys the queue pair without a word to the peer.
    pub(crate) fn destroy(&mut self) {
        self.qp = None;
    }
}
