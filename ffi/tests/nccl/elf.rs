//! The dynamic symbols of a shared library, read from its file.

use std::collections::BTreeSet;

/// What the library offers and what it needs.
pub struct Symbols {
    pub defined: BTreeSet<String>,
    pub undefined: BTreeSet<String>,
    /// Libraries that must be there.
    pub needed: BTreeSet<String>,
    /// `DT_FLAGS_1`.
    pub flags: u64,
}

fn number(bytes: &[u8], at: usize, len: usize) -> usize {
    bytes[at..at + len].iter().rev().fold(0, |n, &b| n << 8 | usize::from(b))
}

fn text(bytes: &[u8], at: usize) -> String {
    let end = bytes[at..].iter().position(|&b| b == 0).expect("a terminated string") + at;
    String::from_utf8_lossy(&bytes[at..end]).into_owned()
}

/// Parses a 64-bit little-endian ELF file.
pub fn symbols(file: &[u8]) -> Symbols {
    assert_eq!(file[..6], [0x7f, b'E', b'L', b'F', 2, 1], "a 64-bit little-endian ELF file");
    let (sections, size, count) = (number(file, 40, 8), number(file, 58, 2), number(file, 60, 2));
    let section = |kind: usize| {
        (0..count).map(|i| sections + i * size).find(|&s| number(file, s + 4, 4) == kind).expect("the section")
    };
    let bounds = |s: usize| (number(file, s + 24, 8), number(file, s + 32, 8));
    let linked = |s: usize| bounds(sections + number(file, s + 40, 4) * size).0;
    let mut found = Symbols { defined: BTreeSet::new(), undefined: BTreeSet::new(), needed: BTreeSet::new(), flags: 0 };
    let dynsym = section(11);
    let (start, len) = bounds(dynsym);
    for at in (start + 24..start + len).step_by(24) {
        let name = text(file, linked(dynsym) + number(file, at, 4));
        // Local symbols are nobody's business.
        match (file[at + 4] >> 4, number(file, at + 6, 2)) {
            (0, _) => {}
            (_, 0) => drop(found.undefined.insert(name)),
            _ => drop(found.defined.insert(name)),
        }
    }
    let dynamic = section(6);
    let (start, len) = bounds(dynamic);
    for at in (start..start + len).step_by(16) {
        let value = number(file, at + 8, 8);
        match number(file, at, 8) {
            1 => drop(found.needed.insert(text(file, linked(dynamic) + value))),
            0x6fff_fffb => found.flags = value as u64,
            _ => {}
        }
    }
    found
}
