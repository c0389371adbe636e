//! Packets that no queue pair sent: noise, forged ones, and old ones that somebody sends again.

use std::net::SocketAddr;

use super::net::Net;
use crate::wire::Flow;

/// Packets that are kept, of all ages.
const KEPT: usize = 256;
/// Places of the queue pair's number and of the PSN in a packet.
const QPN: std::ops::Range<usize> = 5..8;
const PSN: std::ops::Range<usize> = 9..12;

/// Packets that somebody has listened to.
#[derive(Debug, Default)]
pub(super) struct Snooper {
    pub(super) on: bool,
    kept: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
}

impl Snooper {
    pub(super) fn see(&mut self, rng: &mut fastrand::Rng, src: SocketAddr, dst: SocketAddr, bytes: &[u8]) {
        let packet = (src, dst, bytes.to_vec());
        if self.kept.len() < KEPT {
            self.kept.push(packet);
        } else if rng.u8(..16) == 0 {
            let at = rng.usize(..KEPT);
            self.kept[at] = packet;
        }
    }
}

impl Net {
    /// Somebody listens from now on, so that [`Net::stray`] has something to forge.
    pub fn snoop(&self) {
        self.with(|net| net.snooper.on = true);
    }

    /// Sends one packet that no queue pair sent, from and to addresses at which packets were seen: noise, one with a right
    /// ICRC and the number of a queue pair that nobody told, one with a random PSN, or an old one again. Nothing if nobody
    /// listened or nothing was seen.
    pub fn stray(&self) {
        self.with(|net| {
            let kept = &net.snooper.kept;
            if kept.is_empty() {
                return;
            }
            let (src, dst, mut bytes) = kept[net.rng.usize(..kept.len())].clone();
            let kind = net.rng.u8(..4);
            let forged = match kind {
                0 => {
                    bytes.iter_mut().for_each(|b| *b = net.rng.u8(..));
                    None
                }
                1 => Some(QPN),
                2 => Some(PSN),
                _ => None,
            };
            if let Some(place) = forged
                && bytes.len() > 16
            {
                bytes[place].iter_mut().for_each(|b| *b = net.rng.u8(..));
                Flow::new(src, dst).seal(0, &mut bytes);
            }
            net.stats.strays += 1;
            net.forward(src, dst, 2, bytes);
        });
    }
}
