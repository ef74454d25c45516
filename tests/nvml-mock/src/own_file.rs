//! Which file this library was loaded from. Copies of it are drivers of several versions, each with hardware of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// File name of the real library, before its version.
const NAME: &str = "libnvidia-ml.so.";

/// Path of the library; `None` where the kernel does not tell.
pub(crate) fn path() -> Option<&'static Path> {
    static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
    let own: fn() -> Option<&'static Path> = path;
    let find = || file_at(&fs::read_to_string("/proc/self/maps").ok()?, own as usize);
    PATH.get_or_init(find).as_deref()
}

/// The version in the library's file name, if there is one.
pub(crate) fn version() -> Option<&'static str> {
    let name = path()?.file_name()?.to_str()?;
    name.strip_prefix(NAME)
        .filter(|version| version.contains('.'))
}

/// The file that is mapped at an address, by the lines `FROM-TO RIGHTS OFFSET DEVICE INODE PATH` of the kernel.
fn file_at(maps: &str, address: usize) -> Option<PathBuf> {
    let line = maps
        .lines()
        .find(|line| holds(line, address) == Some(true))?;
    let (_, path) = line.split_once('/')?;
    // A file that was replaced since.
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    Some(PathBuf::from(format!("/{path}")))
}

fn holds(line: &str, address: usize) -> Option<bool> {
    let (range, _) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(from)?..number(to)?).contains(&address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_that_of_the_mapping_with_the_address() {
        let maps = "\
            1000-2000 r-xp 00000000 08:01 5 /lib/libc.so.6\n\
            2000-3000 rw-p 00000000 00:00 0\n\
            3000-4000 r-xp 00000000 08:01 7 /root/usr/lib64/libnvidia-ml.so.580.95.05 (deleted)\n";
        for (address, expected) in [
            (0x1000, Some("/lib/libc.so.6")),
            (0x2000, None),
            (0x3fff, Some("/root/usr/lib64/libnvidia-ml.so.580.95.05")),
            (0x4000, None),
        ] {
            assert_eq!(file_at(maps, address).as_deref(), expected.map(Path::new));
        }
        // Here it is the test.
        let here = std::env::current_exe().unwrap().canonicalize().unwrap();
        assert_eq!(path(), Some(here.as_path()));
    }
}
