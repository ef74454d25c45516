//! Directories that the loader of a driver root is told of: `/etc/ld.so.conf`, and what that includes.
//!
//! Installers that put a driver into a directory of its own name it there, and NVIDIA's toolkit finds it by the loader's cache. The
//! cache is written from this file, is of a format for one machine and one loader, and may be out of date, so the file is read.
//!
//! All paths are resolved inside the root ([`OpenRoot`]). What is read is bounded, whatever stands there: a file that is no regular
//! one, is too long or includes itself costs nothing but what it would have named. A directory becomes a path in containers and an
//! argument of hooks, so only plain ones are taken, and none of the kernel's own file systems, where a container has its own.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    io::Read,
    path::{Component, Path, PathBuf},
};

use super::driver_root::OpenRoot;

/// Where it begins.
const FILE: &str = "/etc/ld.so.conf";
/// Longest file, in bytes: those of systems have some hundred.
const LONGEST_FILE_BYTES: usize = 64 << 10;
/// Most files that are read and directories that are searched for files, together: systems have a dozen.
const MOST_STEPS: usize = 64;
/// Names of a directory that one search looks at; as many more cost another step, so that a large directory cannot be searched again and again.
const NAMES_OF_A_STEP: usize = 128;
/// Most directories that are taken: systems name a dozen.
const MOST_DIRECTORIES: usize = 32;
/// Longest name of one, and longest pattern for names, in bytes.
const LONGEST_NAME_BYTES: usize = 256;
/// What is the kernel's.
const OF_THE_KERNEL: [&str; 3] = ["/dev", "/proc", "/sys"];

/// The directories, in the loader's order, each once. Whether they are there is not looked at.
pub(super) fn directories(root: &OpenRoot<'_>) -> Vec<PathBuf> {
    let mut configuration = Configuration {
        root,
        steps_left: MOST_STEPS,
        read: BTreeSet::new(),
        directories: Vec::new(),
    };
    configuration.read(Path::new(FILE));
    configuration.directories
}

/// What was read so far.
struct Configuration<'a> {
    root: &'a OpenRoot<'a>,
    steps_left: usize,
    read: BTreeSet<PathBuf>,
    directories: Vec<PathBuf>,
}

impl Configuration<'_> {
    /// Reads a file. It goes no deeper than there are steps.
    fn read(&mut self, path: &Path) {
        if self.read.contains(path) || !self.takes_a_step() {
            return;
        }
        self.read.insert(path.to_owned());
        for line in self.text(path).unwrap_or_default().lines() {
            let line = line.split('#').next().unwrap_or_default().trim();
            let included = line.strip_prefix("include");
            match included.filter(|patterns| patterns.starts_with([' ', '\t'])) {
                Some(patterns) => {
                    for pattern in patterns.split_whitespace() {
                        self.include(path, pattern);
                    }
                }
                None => self.add(line),
            }
        }
    }

    /// What stands in a file; `None` if it is not there, is no regular file, or is too long to be one of the loader's.
    fn text(&self, path: &Path) -> Option<String> {
        let file = self.root.file(path).ok()?;
        let mut content = Vec::new();
        let longest = u64::try_from(LONGEST_FILE_BYTES).ok()?;
        file.take(longest + 1).read_to_end(&mut content).ok()?;
        let is_whole = content.len() <= LONGEST_FILE_BYTES;
        // What is no text is no plain name either.
        is_whole.then(|| String::from_utf8_lossy(&content).into_owned())
    }

    /// Reads the file of this name, or the files that a pattern stands for, in order. `*` and `?` count in the last part of it only.
    fn include(&mut self, from: &Path, pattern: &str) {
        // Relative to the file that says so.
        let Some(path) = from.parent().map(|beside| beside.join(pattern)) else {
            return;
        };
        let name = path.file_name().and_then(OsStr::to_str);
        let (Some(directory), Some(name)) = (path.parent(), name) else {
            return;
        };
        if name.contains(['*', '?']) {
            // A longer one fits no name that a file can have, but for stars that mean nothing.
            if name.len() <= LONGEST_NAME_BYTES {
                self.search(directory, name);
            }
        } else {
            self.read(&path);
        }
    }

    /// Reads the files of a directory of which the names fit a pattern.
    fn search(&mut self, directory: &Path, pattern: &str) {
        if !self.takes_a_step() {
            return;
        }
        let names = self.root.names(directory);
        for (number, names) in names.chunks(NAMES_OF_A_STEP).enumerate() {
            if number > 0 && !self.takes_a_step() {
                return;
            }
            for name in names {
                // As for a shell, hidden files are meant only where the pattern says so.
                let may_be_meant = pattern.starts_with('.') || !name.starts_with('.');
                if may_be_meant && fits(pattern, name) {
                    self.read(&directory.join(name));
                }
            }
        }
    }

    /// Adds the directory of a line. Old systems write its kind behind it: `/usr/lib=libc5`.
    fn add(&mut self, line: &str) {
        let name = line.split('=').next().unwrap_or_default().trim_end();
        if self.directories.len() >= MOST_DIRECTORIES || !is_usable(name) {
            return;
        }
        // Without slashes that mean nothing.
        let directory: PathBuf = Path::new(name).components().collect();
        if !self.directories.contains(&directory) {
            self.directories.push(directory);
        }
    }

    /// Whether one more file may be read, or one more directory be searched.
    fn takes_a_step(&mut self) -> bool {
        let may = self.steps_left > 0;
        self.steps_left = self.steps_left.saturating_sub(1);
        may
    }
}

/// Whether it is an absolute path that can be mounted to and passed on: plain, and never upwards.
fn is_usable(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._+-".contains(&byte);
    let path = Path::new(name);
    let mut parts = path.components();
    path.is_absolute()
        && name.len() <= LONGEST_NAME_BYTES
        && name.bytes().all(is_plain)
        && parts.all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
        && path != Path::new("/")
        && OF_THE_KERNEL.iter().all(|other| !path.starts_with(other))
}

/// Whether a name fits a pattern, in which `*` stands for anything and `?` for one byte. Takes at most as many steps as the product of
/// their lengths.
fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut at, mut reached) = (0, 0);
    // Where the last `*` is, and how far it stands for the name.
    let mut last: Option<(usize, usize)> = None;
    while let Some(byte) = name.get(reached) {
        match pattern.get(at) {
            Some(b'*') => {
                last = Some((at, reached));
                at += 1;
            }
            Some(wanted) if *wanted == b'?' || wanted == byte => {
                at += 1;
                reached += 1;
            }
            _ => {
                let Some((star, covered)) = last else {
                    return false;
                };
                last = Some((star, covered + 1));
                (at, reached) = (star + 1, covered + 1);
            }
        }
    }
    pattern.iter().skip(at).all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_as_those_of_a_shell_do() {
        for (pattern, name, expected) in [
            ("*.conf", "cuda.conf", true),
            ("*.conf", "cuda.conf.old", false),
            ("*.conf", ".conf", true),
            ("*", "", true),
            ("**", "anything", true),
            ("a*b*c", "axxbxxbc", true),
            ("a*b*c", "axxbxxb", false),
            ("nvidia-?.conf", "nvidia-1.conf", true),
            ("nvidia-?.conf", "nvidia-10.conf", false),
            ("nvidia-?.conf", "nvidia-.conf", false),
            ("plain", "plain", true),
            ("plain", "plai", false),
            ("plain", "plainly", false),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }

    /// A matcher that tries all ways would not end.
    #[test]
    fn a_pattern_of_nothing_but_stars_ends() {
        let pattern = "*a".repeat(100) + "b";
        assert!(!fits(&pattern, &"a".repeat(250)));
    }

    #[test]
    fn only_directories_that_can_be_mounted_to_are_taken() {
        let longest = format!("/{}", "x".repeat(LONGEST_NAME_BYTES - 1));
        let longer = format!("{longest}x");
        for (name, usable) in [
            ("/usr/local/nvidia/lib64", true),
            ("/usr//local/./lib/", true),
            (longest.as_str(), true),
            (longer.as_str(), false),
            ("", false),
            ("/", false),
            ("usr/lib", false),
            ("/usr/../etc", false),
            ("/usr/lib::/etc", false),
            ("/usr/lib two", false),
            ("/usr/lib\u{fffd}", false),
            ("/proc/1/root/usr/lib", false),
            ("/dev/shm", false),
            ("/sys", false),
            ("/system/lib", true),
            ("hwcap 0 nosegneg", false),
        ] {
            assert_eq!(is_usable(name), usable, "{name:?}");
        }
    }
}
