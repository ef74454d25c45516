//! The processes of a command, known by a mark in their environment.
//!
//! What has ended is looked for in the cgroup of this process, where a command's processes are. To read the environment of another's process may take for
//! ever, if that hangs in the kernel as processes of broken GPUs do; and anybody may give his own processes the mark.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// Variable of the environment that tells whose processes these are.
pub(super) const VARIABLE: &str = "MUSTER_HOOK";
/// How often it is looked whether a command has ended, or what is left of it.
pub(super) const POLL: Duration = Duration::from_millis(50);
/// How long it is waited for what was killed, and for the rest of its output.
pub(super) const KILLED: Duration = Duration::from_secs(5);

/// Ends all processes with this mark, in whatever cgroup; whether none is left. Blocking.
pub fn end(proc: &Path, id: &str) -> bool {
    end_within(proc, id, None)
}

/// The same of those in the cgroup of this process, if the kernel tells it.
pub(super) fn end_own(proc: &Path, id: &str) -> bool {
    end_within(proc, id, cgroup(&proc.join("self")).as_deref())
}

fn end_within(proc: &Path, id: &str, cgroup: Option<&[u8]>) -> bool {
    let deadline = Instant::now() + KILLED;
    loop {
        let left = marked(proc, id, cgroup);
        if left.is_empty() {
            return true;
        }
        if Instant::now() >= deadline {
            tracing::error!(?left, id, "processes of a command cannot be ended");
            return false;
        }
        for pid in left {
            // It may have ended just now.
            let _ = kill_process(pid, Signal::KILL);
        }
        thread::sleep(POLL);
    }
}

/// The cgroup of the process with this directory, as the kernel writes it; `None`: it does not tell.
fn cgroup(directory: &Path) -> Option<Vec<u8>> {
    let text = fs::read(directory.join("cgroup")).ok()?;
    (!text.is_empty()).then_some(text)
}

/// Processes with this mark, in this cgroup or whichever. One that cannot be looked at is not ours: ours are of the same user.
pub(super) fn marked(proc: &Path, id: &str, within: Option<&[u8]>) -> Vec<Pid> {
    let wanted = format!("{VARIABLE}={id}");
    let is_marked = |directory: &Path| {
        if within.is_some() && cgroup(directory).as_deref() != within {
            return false;
        }
        let environment = fs::read(directory.join("environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|variable| variable == wanted.as_bytes())
    };
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        is_marked(&entry.path()).then(|| Pid::from_raw(pid))?
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt, process::Command};

    use super::*;

    #[test]
    fn who_gives_his_own_processes_the_mark_is_no_part_of_the_command() {
        let directory = tempfile::tempdir().unwrap();
        let proc = directory.path();
        for (pid, cgroup, id) in [
            ("10", "0::/driver\n", "one"),
            ("11", "0::/driver\n", "other"),
            ("12", "0::/tenant\n", "one"),
        ] {
            fs::create_dir(proc.join(pid)).unwrap();
            fs::write(proc.join(pid).join("cgroup"), cgroup).unwrap();
            let environment = format!("PATH=/bin\0{VARIABLE}={id}\0");
            fs::write(proc.join(pid).join("environ"), environment).unwrap();
        }
        let own = cgroup(&proc.join("10"));
        let found = |within: Option<&[u8]>| -> Vec<i32> {
            let mut found: Vec<i32> = marked(proc, "one", within)
                .into_iter()
                .map(|pid| pid.as_raw_nonzero().get())
                .collect();
            found.sort_unstable();
            found
        };
        assert_eq!(found(own.as_deref()), [10]);
        assert_eq!(found(None), [10, 12], "of a driver that has ended");
        assert_eq!(cgroup(&proc.join("13")), None);
    }

    #[test]
    fn what_an_earlier_driver_left_running_is_found_by_its_mark() {
        let id = format!("left-{}", std::process::id());
        let mut left = Command::new("/bin/sleep")
            .arg("1000")
            .env(VARIABLE, &id)
            .spawn()
            .unwrap();
        assert!(end(Path::new("/proc"), "of-nobody"));
        assert_eq!(left.try_wait().unwrap(), None);
        // A child of this process is a zombie from then on, which has no environment.
        assert!(end(Path::new("/proc"), &id));
        let status = left.wait().unwrap();
        assert_eq!(status.signal(), Some(9));
    }
}
