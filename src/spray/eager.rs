//! Eager messages that came before their receive, and the count of those that the peer may send.

/// Cells of [`eager_max`](super::SessionConfig::eager_max) bytes.
#[derive(Debug)]
pub(super) struct EagerPool {
    bytes: Vec<u8>,
    cell: usize,
    free: Vec<u16>,
    cells: u32,
    /// Eager messages of the peer that no longer take a cell.
    consumed: u32,
    /// The limit that the peer was last told.
    reported: u32,
}

impl EagerPool {
    pub(super) fn new(cells: u16, cell: u32) -> EagerPool {
        EagerPool {
            bytes: vec![0; cells as usize * cell as usize],
            cell: cell as usize,
            free: (0..cells).rev().collect(),
            cells: u32::from(cells),
            consumed: 0,
            reported: u32::from(cells),
        }
    }

    /// Keeps a message until its receive is posted; `None` if it is too long or no cell is free.
    pub(super) fn store(&mut self, payload: &[u8]) -> Option<u16> {
        if payload.len() > self.cell {
            return None;
        }
        let cell = self.free.pop()?;
        let at = cell as usize * self.cell;
        self.bytes[at..at + payload.len()].copy_from_slice(payload);
        Some(cell)
    }

    /// The first `len` bytes of a cell.
    pub(super) fn bytes(&self, cell: u16, len: u32) -> &[u8] {
        let at = cell as usize * self.cell;
        self.bytes.get(at..at + (len as usize).min(self.cell)).unwrap_or(&[])
    }

    /// The message in the cell went to its receive.
    pub(super) fn release(&mut self, cell: u16) {
        self.free.push(cell);
        self.consume();
    }

    /// A message went to its receive without a cell.
    pub(super) fn consume(&mut self) {
        self.consumed = self.consumed.wrapping_add(1);
    }

    /// How many eager messages the peer may send in all; it counts as told.
    pub(super) fn report(&mut self) -> u32 {
        self.reported = self.consumed.wrapping_add(self.cells);
        self.reported
    }

    /// True when the peer should be told of new credit.
    pub(super) fn due(&self) -> bool {
        self.consumed.wrapping_add(self.cells).wrapping_sub(self.reported) >= (self.cells / 4).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_come_back_and_credit_follows() {
        let mut pool = EagerPool::new(4, 8);
        assert!(pool.store(&[0; 9]).is_none(), "too long");
        let cells: Vec<u16> = (0..4u8).map(|i| pool.store(&[i; 8]).expect("free")).collect();
        assert!(pool.store(&[]).is_none(), "no more cells");
        assert!(!pool.due());
        for (i, &cell) in cells.iter().enumerate() {
            assert_eq!(pool.bytes(cell, 3), &[i as u8; 3]);
            pool.release(cell);
        }
        assert!(pool.due());
        assert_eq!(pool.report(), 8);
        assert!(!pool.due());
        pool.consume();
        assert_eq!(pool.report(), 9);
    }
}
