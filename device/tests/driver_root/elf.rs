//! The least ELF library that has a soname.

/// A library's machine, as ELF numbers them, and its width in bits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    X86Wide,
    X86Narrow,
    Power,
}

/// Headers, a segment that is loaded at an address of its own, and in it the dynamic section and the strings.
pub(crate) fn library(kind: Kind, soname: &str) -> Vec<u8> {
    const ADDRESS: u64 = 0x0040_0000;
    const DYNAMIC: u64 = 64 + 2 * 56;
    const STRINGS: u64 = DYNAMIC + 3 * 16;
    let (class, machine): (u8, u16) = match kind {
        Kind::X86Wide => (2, 62),
        Kind::X86Narrow => (1, 3),
        Kind::Power => (2, 21),
    };
    let mut bytes = b"\x7fELF".to_vec();
    bytes.extend([class, 1, 1]);
    bytes.resize(16, 0);
    bytes.extend(3_u16.to_le_bytes());
    bytes.extend(machine.to_le_bytes());
    bytes.resize(32, 0);
    bytes.extend(64_u64.to_le_bytes());
    bytes.resize(54, 0);
    bytes.extend(56_u16.to_le_bytes());
    bytes.extend(2_u16.to_le_bytes());
    bytes.resize(64, 0);
    let length = STRINGS + 1 + soname.len() as u64 + 1;
    for (kind, offset, length) in [(1_u32, 0, length), (2, DYNAMIC, 3 * 16)] {
        bytes.extend(kind.to_le_bytes());
        bytes.extend([0; 4]);
        for word in [
            offset,
            ADDRESS + offset,
            ADDRESS + offset,
            length,
            length,
            8,
        ] {
            bytes.extend(word.to_le_bytes());
        }
    }
    for (tag, value) in [(5_u64, ADDRESS + STRINGS), (14, 1), (0, 0)] {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(value.to_le_bytes());
    }
    bytes.push(0);
    bytes.extend(soname.as_bytes());
    bytes.push(0);
    bytes
}
