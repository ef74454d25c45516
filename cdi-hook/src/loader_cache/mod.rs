//! The cache of glibc's loader (`/etc/ld.so.cache`): which library is where.
//!
//! The libraries that were mounted are put into the cache that the image brought; all else in it stays as it is. Nothing
//! is executed for that, neither the container's `ldconfig` nor the host's.

mod format;
mod name_order;
mod read;

use std::path::Path;

use crate::{Failure, Library, Machine, container_root::ContainerRoot};
use format::Entry;

const FILE: &str = "/etc/ld.so.cache";
/// Longest cache of an image that is looked at: of a thousand libraries it is 100 KiB.
const CACHE_BYTES: u64 = 16 << 20;

/// Adds the libraries to the container's cache. An image without the loader that they are for has no use for it and is
/// left alone.
pub(crate) fn update(root: &ContainerRoot, libraries: &[Library]) -> Result<(), Failure> {
    let usable = libraries.iter().filter(|library| {
        let mut loaders = loaders(library.machine).iter();
        loaders.any(|loader| root.has(Path::new(loader)))
    });
    let entries: Vec<Entry> = usable.map(entry).collect();
    if entries.is_empty() {
        return Ok(());
    }
    // A cache that cannot be read is none to the loader, too.
    let image = root
        .read(Path::new(FILE), CACHE_BYTES)
        .and_then(|content| read::parse(&content));
    let image = image.unwrap_or_default();
    let cache = image.clone().with(entries);
    if cache == image {
        return Ok(());
    }
    let path = Path::new(FILE);
    let content = cache.to_bytes().ok_or_else(|| Failure::Container {
        path: path.to_owned(),
        cause: "the cache would have more than 4 GiB".to_owned(),
    })?;
    root.directory(Path::new("/etc"))?
        .put_file("ld.so.cache", &content)
}

fn entry(library: &Library) -> Entry {
    Entry {
        name: library.soname.clone().into_bytes(),
        path: library.path.as_os_str().as_encoded_bytes().to_vec(),
        flags: flags(library.machine),
        os_version: 0,
        hardware: 0,
    }
}

/// What the loader of a machine looks for in an entry (glibc, `elf/cache.h` and `sysdeps/generic/ldconfig.h`): an ELF
/// library for glibc 2, of this machine.
fn flags(machine: Machine) -> u32 {
    const LIBC6: u32 = 0x0003;
    match machine {
        Machine::X86_64 => LIBC6 | 0x0300,
        Machine::Aarch64 => LIBC6 | 0x0a00,
    }
}

/// Where glibc's loader is: part of each machine's ABI.
fn loaders(machine: Machine) -> &'static [&'static str] {
    match machine {
        Machine::X86_64 => &["/lib64/ld-linux-x86-64.so.2"],
        Machine::Aarch64 => &["/lib/ld-linux-aarch64.so.1"],
    }
}
