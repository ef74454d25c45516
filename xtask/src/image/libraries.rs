//! The shared libraries that an executable needs, found as the loader finds them: by what each file names, recursively.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use object::{
    Endianness,
    elf::{DT_NEEDED, FileHeader64},
    read::elf::{FileHeader, ProgramHeader},
};

/// A directory of libraries.
#[derive(Clone, Debug)]
pub(crate) struct SearchDirectory {
    /// Where it is on this machine.
    here: PathBuf,
    /// Where the loader of the image looks for it.
    in_image: String,
}

impl SearchDirectory {
    pub(crate) fn new(here: impl Into<PathBuf>, in_image: &str) -> Self {
        Self {
            here: here.into(),
            in_image: in_image.to_owned(),
        }
    }
}

/// A library that the image needs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Library {
    /// The file on this machine.
    pub(crate) here: PathBuf,
    /// Its path in the image.
    pub(crate) in_image: String,
}

/// What one file says of itself.
#[derive(Debug)]
struct Elf {
    /// The processor, in ELF's numbers.
    machine: u16,
    /// The loader, of an executable that needs one.
    interpreter: Option<String>,
    /// The libraries, by the names that the loader looks for.
    needed: Vec<String>,
}

/// Everything that `executable` and the libraries that it `loads` need, with the loader itself, by path in the image.
pub(crate) fn closure(
    executable: &Path,
    loads: &[&str],
    directories: &[SearchDirectory],
) -> Result<Vec<Library>> {
    let program = read(executable)?;
    let mut found = BTreeMap::new();
    let mut open = program.needed;
    open.extend(loads.iter().map(|&name| name.to_owned()));
    let loader = program.interpreter.as_deref().map(|path| {
        let name = path.rsplit('/').next().unwrap_or(path);
        (name.to_owned(), path)
    });
    open.extend(loader.iter().map(|(name, _)| name.clone()));
    while let Some(name) = open.pop() {
        if found.contains_key(&name) {
            continue;
        }
        let (library, elf) = find(&name, program.machine, directories)
            .with_context(|| format!("{} needs {name}", executable.display()))?;
        let in_image = match &loader {
            Some((loader, path)) if *loader == name => (*path).to_owned(),
            _ => library.in_image,
        };
        let here = library.here;
        open.extend(elf.needed);
        found.insert(name, Library { here, in_image });
    }
    Ok(found.into_values().collect())
}

/// The first file of this name that is for the processor.
fn find(name: &str, machine: u16, directories: &[SearchDirectory]) -> Result<(Library, Elf)> {
    for directory in directories {
        let here = directory.here.join(name);
        if !here.is_file() {
            continue;
        }
        let elf = read(&here)?;
        if elf.machine == machine {
            let in_image = format!("{}/{name}", directory.in_image);
            return Ok((Library { here, in_image }, elf));
        }
    }
    let looked: Vec<String> = directories
        .iter()
        .map(|directory| directory.here.display().to_string())
        .collect();
    bail!("not found in {}", looked.join(", "))
}

fn read(path: &Path) -> Result<Elf> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    parse(&bytes).with_context(|| format!("{} as an ELF file", path.display()))
}

fn parse(bytes: &[u8]) -> Result<Elf> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let mut interpreter = None;
    for segment in header.program_headers(endian, bytes)? {
        if let Some(path) = segment.interpreter(endian, bytes)? {
            interpreter = Some(String::from_utf8(path.to_vec())?);
        }
    }
    let sections = header.sections(endian, bytes)?;
    let mut needed = Vec::new();
    let table = sections.dynamic_table(endian, bytes)?;
    for entry in table.iter().filter(|entry| entry.tag == DT_NEEDED) {
        needed.push(String::from_utf8(table.string(entry)?.to_vec())?);
    }
    Ok(Elf {
        machine: header.e_machine(endian),
        interpreter,
        needed,
    })
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;
    use crate::image::platform::Platform;

    fn directories_here() -> Vec<SearchDirectory> {
        Platform::native().library_directories()
    }

    fn names(libraries: &[Library]) -> Vec<&str> {
        let names = libraries.iter().filter_map(|library| {
            let name = Path::new(&library.in_image).file_name()?;
            name.to_str()
        });
        names.collect()
    }

    #[test]
    fn an_executable_needs_its_loader_and_what_its_libraries_need() {
        let executable = env::current_exe().unwrap();
        let libraries = closure(&executable, &[], &directories_here()).unwrap();
        let names = names(&libraries);
        for wanted in ["libc.so.6", "libgcc_s.so.1"] {
            assert!(names.contains(&wanted), "{names:?}");
        }
        let loader = read(&executable).unwrap().interpreter.unwrap();
        let loaders = libraries
            .iter()
            .filter(|library| library.in_image == loader);
        assert_eq!(loaders.count(), 1, "{libraries:?}");
    }

    #[test]
    fn what_is_loaded_while_running_comes_along() {
        let executable = env::current_exe().unwrap();
        let plain = closure(&executable, &[], &directories_here()).unwrap();
        let loading = closure(&executable, &["libpthread.so.0"], &directories_here()).unwrap();
        assert!(!names(&plain).contains(&"libpthread.so.0"));
        assert!(names(&loading).contains(&"libpthread.so.0"));
    }

    #[test]
    fn a_library_for_another_processor_is_passed_over() {
        let executable = env::current_exe().unwrap();
        let real = closure(&executable, &[], &directories_here()).unwrap();
        let libc = real
            .iter()
            .find(|library| library.in_image.ends_with("/libc.so.6"))
            .unwrap();

        let directory = tempfile::tempdir().unwrap();
        let mut foreign = fs::read(&libc.here).unwrap();
        // `e_machine`, the second field after the sixteen bytes of identification.
        foreign[18] ^= 1;
        fs::write(directory.path().join("libc.so.6"), foreign).unwrap();
        let mut directories = vec![SearchDirectory::new(directory.path(), "/foreign")];
        directories.extend(directories_here());
        assert_eq!(closure(&executable, &[], &directories).unwrap(), real);
    }

    #[test]
    fn a_missing_library_is_named_with_where_it_was_looked_for() {
        let directory = tempfile::tempdir().unwrap();
        let nowhere = [SearchDirectory::new(directory.path(), "/usr/lib")];
        let executable = env::current_exe().unwrap();
        let error = closure(&executable, &[], &nowhere).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("needs "), "{text}");
        assert!(
            text.contains(&directory.path().display().to_string()),
            "{text}"
        );
    }

    #[test]
    fn a_script_is_no_executable_with_libraries() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        fs::write(&script, "#!/bin/sh\n").unwrap();
        let error = closure(&script, &[], &directories_here()).unwrap_err();
        assert!(format!("{error:#}").contains("as an ELF file"));
    }
}
