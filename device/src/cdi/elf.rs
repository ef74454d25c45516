//! What an ELF library says of itself: for whom it is, and the name that programs ask for. Each offset is checked, and
//! what is read is bounded.

use std::{fs::File, os::unix::fs::FileExt};

use muster_cdi_hook::Machine;

const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
/// Most program headers that are looked at: libraries have a dozen.
const PROGRAM_HEADERS: usize = 128;
/// Longest dynamic section: libraries have 1 KiB.
const DYNAMIC_BYTES: u64 = 64 << 10;
/// Longest name.
const NAME_BYTES: usize = 256;
const SEGMENT_LOAD: u64 = 1;
const SEGMENT_DYNAMIC: u64 = 2;
const TAG_STRINGS: u64 = 5;
const TAG_SONAME: u64 = 14;

/// A library of 64 bits for a machine that we know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Elf {
    pub(super) machine: Machine,
    pub(super) soname: Option<String>,
}

struct Segment {
    kind: u64,
    offset: u64,
    address: u64,
    length: u64,
}

/// Reads it; `None` if it is none, of 32 bits, or for another machine.
pub(super) fn read(file: &File) -> Option<Elf> {
    let header = bytes(file, 0, HEADER_BYTES)?;
    // Magic, 64 bits, little endian.
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let machine = match number(&header, 18, 2)? {
        62 => Machine::X86_64,
        183 => Machine::Aarch64,
        _ => return None,
    };
    Some(Elf {
        machine,
        soname: soname(file, &header),
    })
}

fn soname(file: &File, header: &[u8]) -> Option<String> {
    let segments = segments(file, header)?;
    let dynamic = segments
        .iter()
        .find(|segment| segment.kind == SEGMENT_DYNAMIC)?;
    let length = usize::try_from(dynamic.length.min(DYNAMIC_BYTES)).ok()?;
    let entries = bytes(file, dynamic.offset, length)?;
    let tagged = |tag| {
        let mut entries = entries.chunks_exact(16);
        let entry = entries.find(|entry| number(entry, 0, 8) == Some(tag))?;
        number(entry, 8, 8)
    };
    let strings = tagged(TAG_STRINGS)?;
    // An address; where that is in the file, the segment says that it is loaded with.
    let loaded = segments.iter().find(|segment| {
        let offset = strings.checked_sub(segment.address);
        segment.kind == SEGMENT_LOAD && offset.is_some_and(|offset| offset < segment.length)
    })?;
    let start = loaded
        .offset
        .checked_add(strings.checked_sub(loaded.address)?)?;
    text(file, start.checked_add(tagged(TAG_SONAME)?)?)
}

fn segments(file: &File, header: &[u8]) -> Option<Vec<Segment>> {
    let start = number(header, 32, 8)?;
    let size = usize::try_from(number(header, 54, 2)?).ok()?;
    let count = usize::try_from(number(header, 56, 2)?).ok()?;
    if size != PROGRAM_HEADER_BYTES || count > PROGRAM_HEADERS {
        return None;
    }
    let table = bytes(file, start, size * count)?;
    let segment = |entry: &[u8]| {
        Some(Segment {
            kind: number(entry, 0, 4)?,
            offset: number(entry, 8, 8)?,
            address: number(entry, 16, 8)?,
            length: number(entry, 32, 8)?,
        })
    };
    table.chunks_exact(size).map(segment).collect()
}

/// A name that ends within its limit, and that is one: it goes into paths and arguments.
fn text(file: &File, offset: u64) -> Option<String> {
    let mut buffer = [0; NAME_BYTES];
    let length = file.read_at(&mut buffer, offset).ok()?;
    let read = buffer.get(..length)?;
    let end = read.iter().position(|byte| *byte == 0)?;
    let name = std::str::from_utf8(read.get(..end)?).ok()?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte);
    (name.contains(".so") && name.bytes().all(is_plain)).then(|| name.to_owned())
}

fn bytes(file: &File, offset: u64, length: usize) -> Option<Vec<u8>> {
    let mut buffer = vec![0; length];
    file.read_exact_at(&mut buffer, offset).ok()?;
    Some(buffer)
}

fn number(bytes: &[u8], offset: usize, length: usize) -> Option<u64> {
    let bytes = bytes.get(offset..offset.checked_add(length)?)?;
    Some(
        bytes
            .iter()
            .rev()
            .fold(0, |value, byte| value << 8 | u64::from(*byte)),
    )
}
