//! Packets back to back in the caller's buffer, as one segmented send takes them.

use crate::wire::Header;

use super::gather::Fault;

/// Most packets in one burst.
pub(super) const MAX_PACKETS: usize = 64;
/// Most bytes in one burst.
pub(super) const MAX_BYTES: usize = 65_000;

/// Fills `out` with packets of one size, of which only the last may be shorter.
pub(super) struct Burst<'a> {
    out: &'a mut [u8],
    limit: usize,
    pub(super) len: usize,
    pub(super) segment: usize,
    pub(super) count: usize,
    /// The last packet was shorter: none can follow.
    closed: bool,
}

impl<'a> Burst<'a> {
    pub(super) fn new(out: &'a mut [u8], limit: usize) -> Burst<'a> {
        Burst { out, limit: limit.min(MAX_BYTES), len: 0, segment: 0, count: 0, closed: false }
    }

    /// Whether a packet of this size may follow. The first always may, if the buffer holds it.
    #[inline]
    fn takes_bytes(&self, size: usize) -> bool {
        let end = self.len + size;
        if self.count == 0 {
            return end <= self.out.len();
        }
        !self.closed && self.count < MAX_PACKETS && size <= self.segment && end <= self.limit && end <= self.out.len()
    }

    /// Writes one packet; `fill` writes its payload. False if it does not fit here: then nothing was written.
    ///
    /// # Errors
    /// What `fill` says; the packet is then not part of the burst.
    #[inline]
    pub(super) fn push(
        &mut self,
        header: &mut Header,
        payload: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Fault>,
    ) -> Result<bool, Fault> {
        let padded = payload.next_multiple_of(4);
        header.bth.pad = (padded - payload) as u8;
        let front = header.len();
        let size = front + padded + 4;
        if !self.takes_bytes(size) {
            return Ok(false);
        }
        let Some(packet) = self.out.get_mut(self.len..self.len + size) else { return Ok(false) };
        let (head, rest) = packet.split_at_mut(front);
        header.emit(head).map_err(|_| Fault::Local)?;
        let (body, tail) = rest.split_at_mut(payload);
        fill(body)?;
        tail.fill(0);
        if self.count == 0 {
            self.segment = size;
        }
        self.closed = size < self.segment;
        self.len += size;
        self.count += 1;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seq::{Psn, Qpn};
    use crate::wire::{Bth, Opcode, Packet};

    fn push(burst: &mut Burst<'_>, len: usize) -> bool {
        let mut header = Header::new(Bth::new(Opcode::SEND_MIDDLE, Qpn::new(0x1001), Psn::new(3)));
        burst
            .push(&mut header, len, |body| {
                body.fill(7);
                Ok(())
            })
            .expect("no fault")
    }

    #[test]
    fn only_the_last_packet_is_shorter() {
        let mut out = [1; 4096];
        let mut burst = Burst::new(&mut out, 4096);
        assert!(push(&mut burst, 256));
        assert!(push(&mut burst, 256));
        assert!(!push(&mut burst, 260), "longer than the first");
        assert!(push(&mut burst, 9));
        assert!(!push(&mut burst, 9), "after the shorter one");
        assert_eq!((burst.count, burst.segment, burst.len), (3, 272, 2 * 272 + 28));
        let last = Packet::parse(&out[544..572]).expect("well formed");
        assert_eq!((last.payload, last.padding), (&[7; 9][..], &[0; 3][..]));
    }

    #[test]
    fn a_burst_ends_at_its_limits() {
        let mut out = vec![0; 70_000];
        let mut burst = Burst::new(&mut out, 1000);
        assert!(push(&mut burst, 2000), "the first goes whatever the limit");
        assert!(!push(&mut burst, 4));
        let mut burst = Burst::new(&mut out, usize::MAX);
        while push(&mut burst, 16) {}
        assert_eq!(burst.count, MAX_PACKETS);
        let mut burst = Burst::new(&mut out, usize::MAX);
        while push(&mut burst, 4096) {}
        assert!(burst.len <= MAX_BYTES && burst.len > MAX_BYTES - 4200);
        let mut burst = Burst::new(&mut out[..100], usize::MAX);
        assert!(!push(&mut burst, 100), "no room at all");
    }
}
