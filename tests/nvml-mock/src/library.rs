//! Where the library itself is, for whoever depends on this crate.

use std::{
    env, io,
    path::{Path, PathBuf},
};

/// File name of the library.
pub const LIBRARY: &str = "libnvidia_ml_mock.so";

/// Path of the library. Cargo has built it for whoever depends on this crate: beside a test, and in `deps` beside another program.
/// (To ask cargo for it would build every library of the workspace.)
pub fn library() -> io::Result<PathBuf> {
    let running = env::current_exe()?;
    let beside = running.parent().unwrap_or(&running);
    beside_program(beside).ok_or_else(|| {
        let message = format!("no {LIBRARY} is beside {}", running.display());
        io::Error::new(io::ErrorKind::NotFound, message)
    })
}

fn beside_program(directory: &Path) -> Option<PathBuf> {
    [directory.to_owned(), directory.join("deps")]
        .into_iter()
        .map(|directory| directory.join(LIBRARY))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_library_is_beside_a_test_and_in_deps_beside_another_program() {
        let root = env::temp_dir().join(format!("nvml-mock-{}", std::process::id()));
        let deps = root.join("deps");
        fs::create_dir_all(&deps).unwrap();
        assert_eq!(beside_program(&root), None);
        fs::write(deps.join(LIBRARY), "").unwrap();
        for program_in in [&deps, &root] {
            assert_eq!(beside_program(program_in), Some(deps.join(LIBRARY)));
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
