//! Reading the cache that the image brought. It may be anything: every offset is checked.

use super::format::{
    Cache, ENTRY_BYTES, EXTENSION_MAGIC, Entry, HARDWARE_NAMES_TAG, HEADER_BYTES, MAGIC,
};

/// The format before glibc 2.2, which `ldconfig` before 2.32 still writes in front of the one that is read.
const OLD_MAGIC: &[u8] = b"ld.so-1.7.0";
const OLD_HEADER_BYTES: usize = 16;
const OLD_ENTRY_BYTES: usize = 12;

/// Reads a cache; `None` if it is none that the loader would use.
pub(super) fn parse(content: &[u8]) -> Option<Cache> {
    let file = content;
    let content = without_old_format(file)?;
    if !content.starts_with(MAGIC) || !matches!(content.get(28), Some(0 | 2)) {
        return None;
    }
    let number = usize::try_from(word(content, 20)?).ok()?;
    let entries =
        content.get(HEADER_BYTES..HEADER_BYTES.checked_add(number.checked_mul(ENTRY_BYTES)?)?)?;
    let entries: Option<_> = entries
        .chunks_exact(ENTRY_BYTES)
        .map(|entry| read_entry(content, entry))
        .collect();
    Some(Cache {
        entries: entries?,
        hardware_names: hardware_names(file, content).unwrap_or_default(),
    })
}

fn without_old_format(content: &[u8]) -> Option<&[u8]> {
    if !content.starts_with(OLD_MAGIC) {
        return Some(content);
    }
    let number = usize::try_from(word(content, 12)?).ok()?;
    let length = OLD_HEADER_BYTES.checked_add(number.checked_mul(OLD_ENTRY_BYTES)?)?;
    content.get(length.checked_next_multiple_of(8)?..)
}

fn read_entry(content: &[u8], entry: &[u8]) -> Option<Entry> {
    let long =
        |offset| Some(u64::from(word(entry, offset)?) | u64::from(word(entry, offset + 4)?) << 32);
    Some(Entry {
        flags: word(entry, 0)?,
        name: string(content, word(entry, 4)?)?,
        path: string(content, word(entry, 8)?)?,
        os_version: word(entry, 12)?,
        hardware: long(16)?,
    })
}

/// The extension is found from the start of the file, also behind the old format; the names in it are not.
fn hardware_names(file: &[u8], content: &[u8]) -> Option<Vec<Vec<u8>>> {
    let start = usize::try_from(word(content, 32)?)
        .ok()
        .filter(|start| *start != 0)?;
    let extension = file.get(start..)?;
    if word(extension, 0)? != EXTENSION_MAGIC {
        return None;
    }
    let number = usize::try_from(word(extension, 4)?).ok()?;
    let sections = extension.get(8..)?.chunks_exact(16).take(number);
    let mut names = sections.filter(|section| word(section, 0) == Some(HARDWARE_NAMES_TAG));
    let section = names.next()?;
    let from = usize::try_from(word(section, 8)?).ok()?;
    let length = usize::try_from(word(section, 12)?).ok()?;
    let offsets = file.get(from..from.checked_add(length)?)?.chunks_exact(4);
    offsets
        .map(|offset| string(content, word(offset, 0)?))
        .collect()
}

fn word(bytes: &[u8], offset: usize) -> Option<u32> {
    let bytes = bytes.get(offset..offset.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

fn string(content: &[u8], offset: u32) -> Option<Vec<u8>> {
    let rest = content.get(usize::try_from(offset).ok()?..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    Some(rest.get(..end)?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, path: &str, hardware: u64) -> Entry {
        Entry {
            name: name.into(),
            path: path.into(),
            flags: 0x303,
            os_version: 0,
            hardware,
        }
    }

    fn image() -> Cache {
        let named = 1 << 62;
        let entries = vec![
            entry("libc.so.6", "/lib64/libc.so.6", 0),
            entry("libcuda.so.1", "/opt/stubs/libcuda.so.1", 0),
            entry(
                "libz.so.1",
                "/lib64/glibc-hwcaps/x86-64-v3/libz.so.1",
                named,
            ),
            entry("libz.so.1", "/lib64/libz.so.1", 0),
        ];
        let names = vec![b"x86-64-v3".to_vec(), b"x86-64-v4".to_vec()];
        Cache {
            hardware_names: names,
            ..Cache::default()
        }
        .with(entries)
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        for cache in [Cache::default(), image()] {
            assert_eq!(parse(&cache.to_bytes().unwrap()), Some(cache));
        }
    }

    #[test]
    fn what_is_added_comes_first_of_its_name_and_only_once() {
        let driver = entry("libcuda.so.1", "/usr/lib64/libcuda.so.1", 0);
        let once = image().with(vec![driver.clone()]);
        assert_eq!(once.entries.len(), 5);
        let named = |entry: &&Entry| entry.name == driver.name;
        assert_eq!(once.entries.iter().find(named), Some(&driver));
        assert_eq!(once.hardware_names, image().hardware_names);
        assert_eq!(once.clone().with(vec![driver]), once);
    }

    #[test]
    fn the_old_format_in_front_is_passed_over() {
        let mut content = OLD_MAGIC.to_vec();
        content.push(0);
        content.extend(3_u32.to_le_bytes());
        content.resize(
            (OLD_HEADER_BYTES + 3 * OLD_ENTRY_BYTES).next_multiple_of(8),
            0,
        );
        let old = u32::try_from(content.len()).unwrap();
        let mut new = image().to_bytes().unwrap();
        // The two offsets that count from the start of the file.
        let extension = word(&new, 32).unwrap();
        let section = usize::try_from(extension).unwrap() + 8 + 8;
        for at in [32, section] {
            let moved = word(&new, at).unwrap() + old;
            new[at..at + 4].copy_from_slice(&moved.to_le_bytes());
        }
        content.extend(new);
        assert_eq!(parse(&content), Some(image()));
    }

    #[test]
    fn a_cache_that_is_cut_or_changed_anywhere_is_read_or_refused() {
        let whole = image().to_bytes().unwrap();
        for length in 0..whole.len() {
            let cut = parse(&whole[..length]);
            assert!(
                cut.is_none_or(|cut| cut.entries == image().entries),
                "{length}"
            );
        }
        for at in 0..whole.len() {
            for value in [0, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[at] = value;
                // It must end, and not panic; what it makes of it is as good as what it was given.
                if let Some(cache) = parse(&changed) {
                    assert!(cache.entries.len() <= whole.len() / ENTRY_BYTES);
                }
            }
        }
    }
}
