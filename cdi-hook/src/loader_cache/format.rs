//! The cache as bytes: the format of glibc 2.2 and newer, alone (every such loader reads it; glibc 2.32 and newer write
//! nothing else).
//!
//! ```text
//! "glibc-ld.so.cache" "1.1"   20 bytes
//! number of entries           u32
//! length of the strings       u32
//! byte order                  u8   2: little endian; 3 bytes unused
//! offset of the extension     u32  0: none; 12 bytes unused
//! entries                     24 bytes each: flags u32, name u32, path u32, OS version u32, hardware u64
//! strings                     ending in NUL; names and paths are offsets from the start of this format
//! extension                   magic u32, number u32, then (tag u32, flags u32, offset u32, length u32) each
//! ```
//!
//! Of the extension's sections one matters: the names of `glibc-hwcaps` subdirectories, which entries refer to by number.

use std::cmp::{Ordering, Reverse};

use super::name_order;

pub(super) const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
pub(super) const HEADER_BYTES: usize = 48;
pub(super) const ENTRY_BYTES: usize = 24;
pub(super) const EXTENSION_MAGIC: u32 = 0xeaa4_2174;
pub(super) const HARDWARE_NAMES_TAG: u32 = 1;
/// Set in an entry's hardware if its low half is the number of a `glibc-hwcaps` name.
const NAMED_HARDWARE: u64 = 1 << 62;
const LITTLE_ENDIAN: u8 = 2;

/// What a cache says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cache {
    /// The libraries, in the loader's order.
    pub(super) entries: Vec<Entry>,
    /// Names of `glibc-hwcaps` subdirectories, in the order that entries count them in.
    pub(super) hardware_names: Vec<Vec<u8>>,
}

/// One library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    pub(super) path: Vec<u8>,
    pub(super) flags: u32,
    pub(super) os_version: u32,
    pub(super) hardware: u64,
}

impl Cache {
    /// With these libraries, each before others of its name: the loader takes the first. Added twice they are there once.
    #[must_use]
    pub(super) fn with(mut self, added: Vec<Entry>) -> Self {
        self.entries.retain(|entry| !added.contains(entry));
        self.entries.splice(0..0, added);
        // Stable: what is equal stays in this order.
        self.entries.sort_by(loader_order);
        self
    }

    /// As bytes; `None` if an offset would not fit.
    pub(super) fn to_bytes(&self) -> Option<Vec<u8>> {
        let strings_start = HEADER_BYTES + ENTRY_BYTES * self.entries.len();
        let mut strings = Vec::new();
        let mut string = |text: &[u8]| {
            let offset = u32::try_from(strings_start + strings.len()).ok();
            strings.extend_from_slice(text);
            strings.push(0);
            offset
        };
        let mut entries = Vec::new();
        for entry in &self.entries {
            entries.extend(entry.flags.to_le_bytes());
            entries.extend(string(&entry.name)?.to_le_bytes());
            entries.extend(string(&entry.path)?.to_le_bytes());
            entries.extend(entry.os_version.to_le_bytes());
            entries.extend(entry.hardware.to_le_bytes());
        }
        let names: Option<Vec<u32>> = self
            .hardware_names
            .iter()
            .map(|name| string(name))
            .collect();
        let names = names?;
        let end = strings_start + strings.len();
        let extension_start = end.next_multiple_of(4);
        let extension = if names.is_empty() {
            Vec::new()
        } else {
            let length = u32::try_from(4 * names.len()).ok()?;
            let section = u32::try_from(extension_start + 24).ok()?;
            let words = [EXTENSION_MAGIC, 1, HARDWARE_NAMES_TAG, 0, section, length];
            words
                .into_iter()
                .chain(names)
                .flat_map(u32::to_le_bytes)
                .collect()
        };
        let extension_offset = if extension.is_empty() {
            0
        } else {
            extension_start
        };

        let mut bytes = MAGIC.to_vec();
        bytes.extend(u32::try_from(self.entries.len()).ok()?.to_le_bytes());
        bytes.extend(u32::try_from(strings.len()).ok()?.to_le_bytes());
        bytes.extend([LITTLE_ENDIAN, 0, 0, 0]);
        bytes.extend(u32::try_from(extension_offset).ok()?.to_le_bytes());
        bytes.resize(HEADER_BYTES, 0);
        bytes.extend(entries);
        bytes.extend(strings);
        if !extension.is_empty() {
            bytes.resize(extension_start, 0);
            bytes.extend(extension);
        }
        Some(bytes)
    }
}

/// As `ldconfig` sorts, as far as the loader relies on it: names from the greatest to the least, and of one name and
/// kind those of `glibc-hwcaps` subdirectories before the others, since the loader stops at the first of the others.
fn loader_order(one: &Entry, other: &Entry) -> Ordering {
    let is_plain = |entry: &Entry| entry.hardware & NAMED_HARDWARE == 0;
    name_order::compare(&other.name, &one.name)
        .then_with(|| Reverse(one.flags).cmp(&Reverse(other.flags)))
        .then_with(|| is_plain(one).cmp(&is_plain(other)))
}
