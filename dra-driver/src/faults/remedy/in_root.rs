//! A command in the file system of the host's driver: its programs and their libraries are there, and not in the image of this one.
//!
//! The program starts itself anew, changes its root, and becomes the command. So nothing of a process with several threads is changed.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::{fs::chroot, process::CommandExt},
    path::Path,
    process::Command,
};

/// First argument of a program that is to become a command in another root; the root and the command follow.
const VERB: &str = "run-in-root";
/// Exit status of a command that could not be run, as shells give it.
pub const NOT_RUN: u8 = 127;

/// What to start for a command in this root.
pub(super) fn words(root: &Path, words: &[String]) -> io::Result<Vec<OsString>> {
    let own = std::env::current_exe()?;
    let first = [
        own.into_os_string(),
        VERB.into(),
        root.as_os_str().to_owned(),
    ];
    let rest = words.iter().map(OsString::from);
    Ok(first.into_iter().chain(rest).collect())
}

/// Becomes the command, if these arguments of the program ask for that. Returns only if they do not, or if that fails.
pub fn enter(arguments: impl Iterator<Item = OsString>) -> Option<io::Error> {
    let mut arguments = arguments.skip(1);
    if arguments.next()? != VERB {
        return None;
    }
    let usage = || io::Error::other(format!("{VERB} ROOT PROGRAM [ARGUMENT...]"));
    let (Some(root), Some(program)) = (arguments.next(), arguments.next()) else {
        return Some(usage());
    };
    let entered = chroot(&root).and_then(|()| std::env::set_current_dir("/"));
    if let Err(error) = entered {
        return Some(named(&root, &error));
    }
    let error = Command::new(&program).args(arguments).exec();
    Some(named(&program, &error))
}

fn named(what: &OsStr, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", what.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entered(arguments: &[&str]) -> Option<String> {
        let arguments = arguments.iter().map(OsString::from);
        enter(arguments).map(|error| error.to_string())
    }

    #[test]
    fn only_who_is_asked_to_becomes_a_command_and_says_why_not() {
        assert_eq!(entered(&["driver"]), None);
        assert_eq!(entered(&["driver", "--node-name", VERB]), None);
        let told = entered(&["driver", VERB, "/somewhere"]).unwrap();
        assert!(told.contains("ROOT PROGRAM"), "{told}");
        let told = entered(&["driver", VERB, "/nonexistent-muster", "/bin/true"]).unwrap();
        assert!(told.contains("/nonexistent-muster"), "{told}");
    }

    #[test]
    fn the_root_and_the_command_follow_the_verb() {
        let command = ["/bin/reset".to_owned(), "-r".to_owned()];
        let words = words(Path::new("/root"), &command).unwrap();
        assert_eq!(
            words[1..],
            [VERB, "/root", "/bin/reset", "-r"].map(OsString::from)
        );
    }
}
