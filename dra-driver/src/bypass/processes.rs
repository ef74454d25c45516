//! What the kernel tells of processes.

use std::{fs, io::ErrorKind, path::Path};

use super::{origin::Origin, sight::Seen};

/// What the kernel puts behind the path of a program whose file is gone.
const REPLACED: &str = " (deleted)";

/// Looks at a process, whatever it uses of a GPU. Of one that is gone, or not to be seen from here, the origin is unknown.
pub fn look_at(proc: &Path, pid: u32) -> Seen {
    let directory = proc.join(pid.to_string());
    let program = fs::read_link(directory.join("exe"));
    let has_ended = program
        .as_ref()
        .is_err_and(|error| error.kind() == ErrorKind::NotFound);
    let origin = match origin(&directory) {
        Origin::Node if has_ended => of_threads(&directory),
        origin => origin,
    };
    Seen {
        pid,
        gpu_instance: None,
        origin,
        program: program
            .ok()
            .and_then(|path| Some(program_of(path.to_str()?).to_owned())),
    }
}

/// The path that a program was started from. The kernel marks one that was replaced meanwhile, as by every update of a package: what runs
/// is still what was started.
fn program_of(link: &str) -> &str {
    link.strip_suffix(REPLACED).unwrap_or(link)
}

/// A main thread that has ended has no program, and with cgroups of version 1 it is in none any more. Others may go on, or the driver may
/// not let it go: then it is whoever's it was.
fn of_threads(process: &Path) -> Origin {
    let threads = fs::read_dir(process.join("task")).into_iter().flatten();
    let mut origins = threads.flatten().map(|thread| origin(&thread.path()));
    origins
        .find(|origin| matches!(origin, Origin::Pod(_)))
        .unwrap_or(Origin::Unknown)
}

/// Whether any process is in a pod's cgroup. Where none is, the kubelet makes no cgroups for pods, and they tell of nobody whether
/// it is in a pod.
pub fn some_are_in_pods(proc: &Path) -> bool {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_process))
        .any(|entry| matches!(origin(&entry.path()), Origin::Pod(_)))
}

fn origin(process: &Path) -> Origin {
    match fs::read(process.join("cgroup")) {
        // A container may call its own cgroups by bytes that are no text.
        Ok(text) => Origin::of_cgroups(&String::from_utf8_lossy(&text)),
        // The kernel writes no path of 4,096 bytes.
        Err(error) if error.kind() == ErrorKind::InvalidFilename => Origin::Hidden,
        Err(_) => Origin::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn origin_and_program_are_read_and_what_is_gone_is_unknown() {
        let proc = tempfile::tempdir().unwrap();
        assert_eq!(look_at(proc.path(), 7).origin, Origin::Unknown);
        assert!(!some_are_in_pods(proc.path()));
        for (pid, cgroup) in [
            ("7", "0::/system.slice/nv-hostengine.service\n"),
            ("self", "0::/kubepods/pod-1/1\n"),
        ] {
            fs::create_dir(proc.path().join(pid)).unwrap();
            fs::write(proc.path().join(pid).join("cgroup"), cgroup).unwrap();
        }
        let program = "/usr/bin/nv-hostengine";
        symlink(program, proc.path().join("7/exe")).unwrap();
        let seen = look_at(proc.path(), 7);
        assert_eq!(seen.origin, Origin::Node);
        assert_eq!(seen.program.as_deref(), Some(program));
        assert!(!some_are_in_pods(proc.path()), "self is no process");
        fs::write(proc.path().join("7/cgroup"), "0::/kubepods/podp-1/1\n").unwrap();
        assert!(some_are_in_pods(proc.path()));
    }

    #[test]
    fn a_program_that_was_updated_while_it_runs_is_the_one_that_was_started() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("7")).unwrap();
        let cgroup = "0::/system.slice/nv-hostengine.service\n";
        fs::write(proc.path().join("7/cgroup"), cgroup).unwrap();
        let link = proc.path().join("7/exe");
        symlink("/usr/bin/nv-hostengine (deleted)", link).unwrap();
        let seen = look_at(proc.path(), 7);
        assert_eq!(seen.program.as_deref(), Some("/usr/bin/nv-hostengine"));
        assert_eq!(seen.origin, Origin::Node);
    }

    #[test]
    fn a_process_whose_main_thread_has_ended_is_that_of_its_other_threads_or_of_nobody_known() {
        let proc = tempfile::tempdir().unwrap();
        let thread = |id: u32, cgroup: &str| {
            let directory = proc.path().join(format!("7/task/{id}"));
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("cgroup"), cgroup).unwrap();
        };
        // As cgroups of version 1 show it, without a program.
        let ended = "3:pids:/\n0::/\n";
        thread(7, ended);
        fs::write(proc.path().join("7/cgroup"), ended).unwrap();
        assert_eq!(look_at(proc.path(), 7).origin, Origin::Unknown);
        thread(8, "3:pids:/kubepods/podp-1/1\n0::/\n");
        let seen = look_at(proc.path(), 7);
        assert_eq!(seen.origin, Origin::Pod("p-1".to_owned()));
    }

    #[test]
    fn a_container_that_makes_cgroups_of_its_own_does_not_hide_behind_their_names() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("7")).unwrap();
        let cgroup = b"0::/kubepods/podp-1/1/\xff\xfe\n";
        fs::write(proc.path().join("7/cgroup"), cgroup).unwrap();
        let seen = look_at(proc.path(), 7);
        assert_eq!(seen.origin, Origin::Pod("p-1".to_owned()));
        // As the kernel answers where it cannot write the path.
        let too_long = proc.path().join("x".repeat(300));
        assert_eq!(look_at(&too_long, 7).origin, Origin::Hidden);
    }
}
