//! The command line, written by the driver into CDI files and read by the program.
//!
//! `create-symlinks` is spelt as the toolkit's `nvidia-cdi-hook` spells it. `update-ldcache` is not: the toolkit's looks
//! for libraries in directories of the container, while ours is told each library, so that it need not look into files
//! that the image may have put there.

use std::{
    ffi::OsString,
    path::{Component, Path, PathBuf},
};

use crate::Failure;

/// Between the parts of an argument, as in the toolkit.
const SEPARATOR: &str = "::";

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Make symbolic links.
    CreateSymlinks(Vec<Link>),
    /// Tell the loader of these libraries.
    UpdateLdcache(Vec<Library>),
}

/// A symbolic link in the container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    /// What it says. Never resolved by us.
    pub target: String,
    /// Its absolute path in the container.
    pub path: PathBuf,
}

/// A library that the loader is told of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Library {
    /// Whom it is for.
    pub machine: Machine,
    /// The name that programs ask for: its `SONAME`, or the name of a link that they look for instead.
    pub soname: String,
    /// Its absolute path in the container.
    pub path: PathBuf,
}

/// The machines whose loaders we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Machine {
    /// `x86_64`.
    X86_64,
    /// `aarch64`.
    Aarch64,
}

impl Machine {
    const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// The kernel's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }
}

impl Command {
    /// Reads a command line, without the program's name.
    pub fn parse(arguments: &[OsString]) -> Result<Self, Failure> {
        let mut words = arguments.iter().map(|word| {
            word.to_str()
                .ok_or_else(|| Failure::Arguments(format!("{} is not UTF-8", word.display())))
        });
        let Some(name) = words.next().transpose()? else {
            return Err(Failure::Arguments(usage()));
        };
        match name {
            "create-symlinks" => values(words, "--link", link).map(Self::CreateSymlinks),
            "update-ldcache" => values(words, "--library", library).map(Self::UpdateLdcache),
            other => Err(Failure::Arguments(format!(
                "{other:?} is unknown; {}",
                usage()
            ))),
        }
    }

    /// The command line, without the program's name.
    pub fn arguments(&self) -> Vec<String> {
        let (name, flag, values): (_, _, Vec<String>) = match self {
            Self::CreateSymlinks(links) => (
                "create-symlinks",
                "--link",
                links.iter().map(Link::argument).collect(),
            ),
            Self::UpdateLdcache(libraries) => (
                "update-ldcache",
                "--library",
                libraries.iter().map(Library::argument).collect(),
            ),
        };
        let flagged = values
            .into_iter()
            .flat_map(|value| [flag.to_owned(), value]);
        [name.to_owned()].into_iter().chain(flagged).collect()
    }
}

impl Link {
    fn argument(&self) -> String {
        [&self.target, SEPARATOR, &self.path.to_string_lossy()].concat()
    }
}

impl Library {
    fn argument(&self) -> String {
        [
            self.machine.name(),
            &self.soname,
            &self.path.to_string_lossy(),
        ]
        .join(SEPARATOR)
    }
}

fn usage() -> String {
    "expected create-symlinks [--link TARGET::PATH]… or update-ldcache [--library MACHINE::SONAME::PATH]…".to_owned()
}

/// The values of a flag that may be given often, and is the only one.
fn values<'a, T>(
    mut words: impl Iterator<Item = Result<&'a str, Failure>>,
    flag: &str,
    read: fn(&str) -> Option<T>,
) -> Result<Vec<T>, Failure> {
    let mut values = Vec::new();
    while let Some(word) = words.next().transpose()? {
        if word != flag {
            return Err(Failure::Arguments(format!(
                "{word:?} where {flag} was expected"
            )));
        }
        let value = words.next().transpose()?.unwrap_or_default();
        let wrong = || Failure::Arguments(format!("{flag} {value:?}; {}", usage()));
        values.push(read(value).ok_or_else(wrong)?);
    }
    Ok(values)
}

fn link(value: &str) -> Option<Link> {
    let (target, path) = value.split_once(SEPARATOR)?;
    let path = absolute(path)?;
    (!target.is_empty() && path.file_name().is_some()).then(|| Link {
        target: target.to_owned(),
        path,
    })
}

fn library(value: &str) -> Option<Library> {
    let (machine, rest) = value.split_once(SEPARATOR)?;
    let (soname, path) = rest.split_once(SEPARATOR)?;
    let machine = Machine::ALL
        .into_iter()
        .find(|known| known.name() == machine)?;
    let is_name = !soname.is_empty() && !soname.contains('/');
    is_name.then_some(Library {
        machine,
        soname: soname.to_owned(),
        path: absolute(path)?,
    })
}

/// A path that says where it is without being looked up: absolute, and without `..`.
fn absolute(path: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    (path.is_absolute() && path.components().all(is_plain)).then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Command, Failure> {
        Command::parse(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let commands = [
            Command::CreateSymlinks(vec![Link {
                target: "libcuda.so.1".to_owned(),
                path: "/usr/lib/x86_64-linux-gnu/libcuda.so".into(),
            }]),
            Command::CreateSymlinks(Vec::new()),
            Command::UpdateLdcache(vec![Library {
                machine: Machine::Aarch64,
                soname: "libcuda.so.1".to_owned(),
                path: "/usr/lib64/libcuda.so.1".into(),
            }]),
        ];
        for command in commands {
            let words = command.arguments();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            assert_eq!(parse(&words).unwrap(), command);
        }
    }

    #[test]
    fn anything_else_is_refused_with_what_would_work() {
        for words in [
            &[][..],
            &["chmod"],
            &["create-symlinks", "--link"],
            &["create-symlinks", "--link", "a"],
            &["create-symlinks", "--link", "a::b"],
            &["create-symlinks", "--link", "a::/b/../c"],
            &["create-symlinks", "--link", "::/b"],
            &["create-symlinks", "--link", "a::/"],
            &["create-symlinks", "a::/b"],
            &["update-ldcache", "--folder", "/usr/lib64"],
            &["update-ldcache", "--library", "x86_64::liba.so"],
            &["update-ldcache", "--library", "sparc::liba.so::/liba.so"],
            &["update-ldcache", "--library", "x86_64::a/b::/liba.so"],
        ] {
            let failure = parse(words).unwrap_err().to_string();
            assert!(
                failure.starts_with("command line: "),
                "{words:?}: {failure}"
            );
            assert!(failure.contains("expected"), "{words:?}: {failure}");
        }
    }
}
