//! Payload between packets and lists of local memory.

use crate::mem::{Access, Pd, Registry};

use super::wr::Sge;

/// Why local memory could not be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// Key, bounds or rights.
    Local,
    /// More bytes than the list has.
    Length,
}

/// Bytes in the list.
pub(super) fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|s| u64::from(s.len)).sum()
}

/// Copies the bytes at `offset` of the list into `out`.
#[inline]
pub(super) fn gather(memory: &Registry, pd: Pd, sges: &[Sge], offset: u32, out: &mut [u8]) -> Result<(), Fault> {
    let mut done = 0;
    each(sges, offset, out.len(), |addr, lkey, len| {
        let slice = memory.open(pd, lkey, addr, len as u64, Access::LOCAL_READ).map_err(|_| Fault::Local)?;
        let part = out.get_mut(done..done + len).ok_or(Fault::Length)?;
        done += len;
        slice.copy_out(part).map_err(|_| Fault::Local)
    })
}

/// Copies `data` to `offset` of the list, after every piece it touches has been checked.
#[inline]
pub(super) fn scatter(memory: &Registry, pd: Pd, sges: &[Sge], offset: u32, data: &[u8]) -> Result<(), Fault> {
    if sges.len() > 1 {
        each(sges, offset, data.len(), |addr, lkey, len| {
            memory.open(pd, lkey, addr, len as u64, Access::LOCAL_WRITE).map(|_| ()).map_err(|_| Fault::Local)
        })?;
    }
    let mut done = 0;
    each(sges, offset, data.len(), |addr, lkey, len| {
        let slice = memory.open(pd, lkey, addr, len as u64, Access::LOCAL_WRITE).map_err(|_| Fault::Local)?;
        let part = data.get(done..done + len).ok_or(Fault::Length)?;
        done += len;
        slice.copy_in(part).map_err(|_| Fault::Local)
    })
}

/// Calls `f` with address, key and length of each piece that `len` bytes at `offset` of the list touch.
#[inline]
fn each(
    sges: &[Sge],
    offset: u32,
    len: usize,
    mut f: impl FnMut(u64, crate::mem::Key, usize) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let (mut skip, mut left) = (u64::from(offset), len as u64);
    for sge in sges {
        if left == 0 {
            return Ok(());
        }
        let here = u64::from(sge.len);
        if skip >= here {
            skip -= here;
            continue;
        }
        let n = (here - skip).min(left);
        f(sge.addr.checked_add(skip).ok_or(Fault::Local)?, sge.lkey, n as usize)?;
        left -= n;
        skip = 0;
    }
    if left == 0 { Ok(()) } else { Err(Fault::Length) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Region;

    #[test]
    fn lists_are_one_run_of_bytes() {
        let mut memory = Registry::new(4, 9);
        let region = Region::alloc(4096).expect("a page");
        let lkey = memory.register(Pd(1), &region, 0, 4096, 0, Access::LOCAL_WRITE).expect("a key");
        let sges = [Sge { addr: 0, len: 10, lkey }, Sge::EMPTY, Sge { addr: 100, len: 20, lkey }];
        let data: Vec<u8> = (0..25).collect();
        scatter(&memory, Pd(1), &sges, 5, &data).expect("fits");
        let mut back = [0; 25];
        gather(&memory, Pd(1), &sges, 5, &mut back).expect("fits");
        assert_eq!(&back[..], &data[..]);
        region.read_at(100, &mut back[..20]).expect("fits");
        assert_eq!(&back[..20], &data[5..]);
        assert_eq!(scatter(&memory, Pd(1), &sges, 6, &data), Err(Fault::Length));
        assert_eq!(gather(&memory, Pd(2), &sges, 0, &mut back), Err(Fault::Local));
    }

    #[test]
    fn nothing_is_placed_if_a_later_piece_is_bad() {
        let mut memory = Registry::new(4, 9);
        let region = Region::alloc(64).expect("memory");
        let lkey = memory.register(Pd(1), &region, 0, 64, 0, Access::LOCAL_WRITE).expect("a key");
        let sges = [Sge { addr: 0, len: 10, lkey }, Sge { addr: 60, len: 20, lkey }];
        assert_eq!(scatter(&memory, Pd(1), &sges, 0, &[9; 20]), Err(Fault::Local));
        let mut back = [1; 10];
        region.read_at(0, &mut back).expect("fits");
        assert_eq!(back, [0; 10]);
    }
}
