//! Unreliable datagrams.

use std::net::IpAddr;

use crate::wire::{Deth, Opcode, Packet};

use super::burst::Burst;
use super::device::RxMeta;
use super::gather::{gather, scatter, total};
use super::qp::{Cx, Qp};
use super::state::{PathId, QpState};
use super::wr::{CqeKind, SendOp, Status};

/// Bytes before the payload of a received datagram.
pub(super) const GRH: usize = 40;

impl Qp {
    /// Fills the burst with datagrams of one path, which it returns. They complete at once.
    pub(super) fn fill_datagrams(&mut self, cx: &mut Cx<'_>, burst: &mut Burst<'_>) -> PathId {
        let mut path = self.link.path;
        while let (QpState::Rts, Some(&wqe)) = (self.state, self.req.sq.front()) {
            let Some(dest) = wqe.wr.ud else {
                self.fail(cx, Some((0, Status::LocalOperation)), Status::LocalOperation);
                break;
            };
            if burst.count > 0 && dest.path != path {
                break;
            }
            path = dest.path;
            let psn = self.req.next_psn;
            let mut h = self.header(Opcode::UD_SEND_ONLY, psn);
            h.bth.dest_qp = dest.qpn;
            h.bth.solicited = wqe.wr.solicited;
            h.deth = Some(Deth { qkey: dest.qkey, reserved: 0, src_qp: self.qpn });
            if let SendOp::SendImm(imm) = wqe.wr.op {
                h.bth.opcode = Opcode::UD_SEND_ONLY_IMM;
                h.imm = Some(imm);
            }
            let sges = wqe.wr.sges.get(..usize::from(wqe.wr.sge_count)).unwrap_or(&[]);
            let (memory, pd) = (cx.memory, self.pd);
            match burst.push(&mut h, wqe.len as usize, |out| gather(memory, pd, sges, 0, out)) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => {
                    if burst.count == 0 {
                        self.fail(cx, Some((0, Status::LocalProtection)), Status::LocalProtection);
                    }
                    break;
                }
            }
            let r = &mut self.req;
            r.next_psn = psn.add(1);
            r.una = r.next_psn;
            r.sent_end = r.next_psn;
            r.sq.pop_front();
            self.complete_request(cx, &wqe, Status::Success);
        }
        path
    }

    /// Takes a datagram: 40 bytes of network header and the payload go into the oldest receive.
    pub(super) fn handle_datagram(&mut self, cx: &mut Cx<'_>, from: &RxMeta, packet: &Packet<'_>) {
        if !matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            cx.counters.dropped_pkts += 1;
            return;
        }
        let Some(deth) = packet.header.deth else { return };
        if deth.qkey != self.link.qkey {
            cx.counters.qkey_violations += 1;
            return;
        }
        let need = GRH + packet.payload.len();
        let wr = match self.resp.rq.front() {
            Some(wr) if total(wr.sges.get(..usize::from(wr.sge_count)).unwrap_or(&[])) >= need as u64 => *wr,
            _ => {
                cx.counters.ud_dropped += 1;
                return;
            }
        };
        let sges = wr.sges.get(..usize::from(wr.sge_count)).unwrap_or(&[]);
        let udp_payload = packet.header.len() + packet.payload.len() + packet.padding.len() + 4;
        let grh = network_header(from, udp_payload);
        let placed = scatter(cx.memory, self.pd, sges, 0, &grh)
            .and_then(|()| scatter(cx.memory, self.pd, sges, GRH as u32, packet.payload));
        self.resp.rq.pop_front();
        let (status, len) = match placed {
            Ok(()) => (Status::Success, need as u32),
            Err(_) => (Status::LocalProtection, 0),
        };
        self.complete_receive(cx, wr.id, CqeKind::Receive, status, len, packet.header.imm, Some(deth.src_qp));
        if status != Status::Success {
            self.fail(cx, None, status);
        }
    }
}

/// The IPv6 header, or 20 zero bytes and the IPv4 header, of a datagram with a UDP payload of this length.
///
/// A socket does not show the IPv4 identification: it is 0, and the checksum fits that.
fn network_header(from: &RxMeta, udp_payload: usize) -> [u8; GRH] {
    let mut grh = [0; GRH];
    let udp = (udp_payload + 8) as u16;
    match (from.src, from.dst) {
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            grh[0] = 0x60 | from.tos >> 4;
            grh[1] = from.tos << 4;
            grh[4..6].copy_from_slice(&udp.to_be_bytes());
            grh[6] = 17;
            grh[7] = from.ttl;
            grh[8..24].copy_from_slice(&src.octets());
            grh[24..40].copy_from_slice(&dst.octets());
        }
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let ip = &mut grh[20..];
            ip[0] = 0x45;
            ip[1] = from.tos;
            ip[2..4].copy_from_slice(&(udp + 20).to_be_bytes());
            ip[6] = 0x40;
            ip[8] = from.ttl;
            ip[9] = 17;
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            let mut sum: u32 = ip.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
            sum = (sum & 0xffff) + (sum >> 16);
            sum = (sum & 0xffff) + (sum >> 16);
            ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        }
        // Mixed families do not come from one IP header.
        _ => {}
    }
    grh
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_stand_where_verbs_has_them() {
        let meta = |src: &str, dst: &str| RxMeta {
            src: src.parse().expect("address"),
            dst: dst.parse().expect("address"),
            tos: 0x43,
            ttl: 64,
        };
        // The header of a datagram that rdma_rxe received, but for its identification b65e and the checksum.
        let v4 = network_header(&meta("10.0.0.1", "10.0.0.2"), 0x74 - 28);
        assert_eq!(&v4[..20], &[0; 20]);
        let mut seen = [0x45, 0x43, 0, 0x74, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        seen[10..12].copy_from_slice(&v4[30..32]);
        assert_eq!(&v4[20..], &seen);
        let sum: u32 = seen.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        let v6 = network_header(&meta("fd00::1", "fd00::2"), 0x60 - 8);
        assert_eq!(&v6[..8], &[0x64, 0x30, 0, 0, 0, 0x60, 17, 64]);
        assert_eq!((v6[8], v6[23], v6[39]), (0xfd, 1, 2));
    }
}
