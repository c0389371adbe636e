//! Bodies of the records that fence lanes and make them anew.

use std::net::IpAddr;

use super::control::{In, Out};
use crate::lanes::{LaneAddress, Remote};

/// Which life of which lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LaneLife {
    /// The lane's number in the session.
    pub(super) lane: u16,
    /// How often it was made anew.
    pub(super) generation: u16,
}

/// What became of a chunk that a lost lane carried?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ask {
    pub(super) life: LaneLife,
    /// Comes back in the answer.
    pub(super) cookie: u64,
    pub(super) channel: u32,
    pub(super) number: u32,
    /// The chunk's first unit.
    pub(super) first: u16,
    /// Its units, 1..=16.
    pub(super) units: u16,
}

/// What has arrived of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Answer {
    pub(super) life: LaneLife,
    pub(super) cookie: u64,
    pub(super) channel: u32,
    pub(super) number: u32,
    /// Every message of the channel below this number is finished.
    pub(super) watermark: u32,
    /// The message is finished, though it is not below the watermark.
    pub(super) finished: bool,
    /// The chunk's units that are here, the first in bit 0.
    pub(super) bits: u16,
}

/// A new queue pair for a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Offer {
    pub(super) life: LaneLife,
    pub(super) address: LaneAddress,
    /// Where a probe of full size is written to.
    pub(super) target: Remote,
}

impl LaneLife {
    pub(super) const LEN: usize = 4;

    pub(super) fn emit(&self, w: &mut Out<'_>) {
        w.u16(self.lane);
        w.u16(self.generation);
    }

    pub(super) fn parse(r: &mut In<'_>) -> Option<LaneLife> {
        Some(LaneLife { lane: r.u16()?, generation: r.u16()? })
    }
}

impl Ask {
    pub(super) const LEN: usize = 24;

    pub(super) fn emit(&self, w: &mut Out<'_>) {
        self.life.emit(w);
        w.u64(self.cookie);
        w.u32(self.channel);
        w.u32(self.number);
        w.u16(self.first);
        w.u16(self.units);
    }

    pub(super) fn parse(r: &mut In<'_>) -> Option<Ask> {
        let life = LaneLife::parse(r)?;
        let (cookie, channel, number) = (r.u64()?, r.u32()?, r.u32()?);
        Some(Ask { life, cookie, channel, number, first: r.u16()?, units: r.u16()? })
    }
}

impl Answer {
    pub(super) const LEN: usize = 28;

    pub(super) fn emit(&self, w: &mut Out<'_>) {
        self.life.emit(w);
        w.u64(self.cookie);
        w.u32(self.channel);
        w.u32(self.number);
        w.u32(self.watermark);
        w.u16(self.bits);
        w.u16(u16::from(self.finished));
    }

    pub(super) fn parse(r: &mut In<'_>) -> Option<Answer> {
        let life = LaneLife::parse(r)?;
        let (cookie, channel, number, watermark) = (r.u64()?, r.u32()?, r.u32()?, r.u32()?);
        let (bits, finished) = (r.u16()?, r.u16()? != 0);
        Some(Answer { life, cookie, channel, number, watermark, finished, bits })
    }
}

impl Offer {
    pub(super) const LEN: usize = 56;

    pub(super) fn emit(&self, w: &mut Out<'_>) {
        self.life.emit(w);
        let a = &self.address;
        w.u32(a.qpn);
        w.u32(a.psn);
        w.u32(a.mtu);
        w.u32(a.feedback_qpn);
        w.u32(a.feedback_secret);
        w.u16(a.udp_port);
        match a.addr {
            IpAddr::V4(v4) => {
                w.u16(4);
                w.bytes(&v4.octets());
                w.bytes(&[0; 12]);
            }
            IpAddr::V6(v6) => {
                w.u16(6);
                w.bytes(&v6.octets());
            }
        }
        w.u64(self.target.addr);
        w.u32(self.target.rkey);
    }

    /// `None` also for a family that is neither 4 nor 6.
    pub(super) fn parse(r: &mut In<'_>) -> Option<Offer> {
        let life = LaneLife::parse(r)?;
        let (qpn, psn, mtu, feedback_qpn, feedback_secret) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?, r.u32()?);
        let (udp_port, family) = (r.u16()?, r.u16()?);
        let octets: [u8; 16] = r.array()?;
        let addr = match family {
            4 => IpAddr::from([octets[0], octets[1], octets[2], octets[3]]),
            6 => IpAddr::from(octets),
            _ => return None,
        };
        let address = LaneAddress { qpn, psn, addr, udp_port, mtu, feedback_qpn, feedback_secret };
        Some(Offer { life, address, target: Remote { addr: r.u64()?, rkey: r.u32()? } })
    }
}
