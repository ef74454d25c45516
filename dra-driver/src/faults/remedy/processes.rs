//! The processes of a command, known by a mark in their environment.
//!
//! What has ended is looked for in the cgroup of this process, where a command's processes are. To read the environment of another's process may take for
//! ever, if that hangs in the kernel as processes of broken GPUs do; and anybody may give his own processes the mark.
//!
//! What an earlier driver left may be in any cgroup: there all processes of the node are read. Whoever hangs then holds up a thread and nothing else ([`Ender`]).

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
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

/// How long it is waited for an answer about all processes of the node: as long as those that were killed have, and thousands take to be read.
const LONGEST: Duration = Duration::from_secs(15);

/// Ends what an earlier driver left, on a thread that is waited for 15 s at most. Cheap to clone; clones share the one thread.
///
/// A process whose environment cannot be read now may be one of the command's, so the answer is then that some are left: the GPUs of that mark stay kept, and are
/// looked for anew, while all others are reset and checked. No second thread is begun before the first has ended, so however often it is asked one thread hangs.
/// It does no harm when it goes on late: an id is of one command, and what bears it is to end whenever it is found.
#[derive(Clone, Debug, Default)]
pub struct Ender {
    is_busy: Arc<AtomicBool>,
}

/// The thread, until this is dropped.
struct Busy(Arc<AtomicBool>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Ender {
    /// Ends all processes with this mark, in whatever cgroup; whether it is known that none is left. Blocking, for a bounded time.
    pub fn end(&self, proc: &Path, id: &str) -> bool {
        let (proc, id) = (proc.to_owned(), id.to_owned());
        self.answer_within(LONGEST, move || end(&proc, &id))
    }

    fn answer_within(&self, limit: Duration, look: impl FnOnce() -> bool + Send + 'static) -> bool {
        if self.is_busy.swap(true, Ordering::SeqCst) {
            tracing::warn!(
                "a process of the node still cannot be looked at: what is left of commands is not known"
            );
            return false;
        }
        let busy = Busy(Arc::clone(&self.is_busy));
        let (tell, told) = mpsc::sync_channel(1);
        let look = move || {
            let is_ended = look();
            // Before it is told: whoever is told may ask about the next.
            drop(busy);
            // Nobody waits any more, if it is late.
            let _ = tell.send(is_ended);
        };
        if let Err(error) = thread::Builder::new().spawn(look) {
            tracing::warn!(%error, "what is left of commands cannot be looked for");
            return false;
        }
        told.recv_timeout(limit).unwrap_or_else(|_| {
            tracing::error!(
                "a process of the node cannot be looked at: what is left of commands is not known"
            );
            false
        })
    }
}

/// Ends all processes with this mark, in whatever cgroup; whether none is left. Blocking, for as long as the kernel takes to show each process.
fn end(proc: &Path, id: &str) -> bool {
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
    fn a_process_that_hangs_when_it_is_read_holds_up_one_thread_and_nobody_who_asks() {
        let directory = tempfile::tempdir().unwrap();
        let proc = directory.path().to_owned();
        fs::create_dir(proc.join("10")).unwrap();
        let environment = proc.join("10").join("environ");
        // Nobody has it open for writing: to open it for reading takes for ever.
        let made = Command::new("mkfifo").arg(&environment).status().unwrap();
        assert!(made.success());
        let ender = Ender::default();
        let ask = |limit: Duration| {
            let proc = proc.clone();
            ender.answer_within(limit, move || end(&proc, "one"))
        };
        assert!(!ask(Duration::from_millis(50)), "it may be one of them");
        // The limit is not even waited for.
        let begun = Instant::now();
        assert!(!ask(LONGEST));
        assert!(begun.elapsed() < LONGEST, "{:?}", begun.elapsed());
        // It goes on, and turns out to be no such process.
        let writer = fs::OpenOptions::new().write(true).open(&environment);
        fs::remove_dir_all(proc.join("10")).unwrap();
        drop(writer.unwrap());
        let deadline = Instant::now() + LONGEST;
        while !ask(LONGEST) {
            assert!(Instant::now() < deadline, "the thread does not end");
            thread::yield_now();
        }
    }

    #[test]
    fn one_after_another_is_asked_about_and_a_look_that_breaks_off_is_no_answer() {
        let ender = Ender::default();
        for number in 0..100 {
            assert!(ender.answer_within(LONGEST, || true), "{number}");
        }
        assert!(!ender.answer_within(LONGEST, || panic!("on purpose")));
        // The thread may still be about to end.
        let deadline = Instant::now() + LONGEST;
        while !ender.answer_within(LONGEST, || true) {
            assert!(Instant::now() < deadline, "no other is asked about");
            thread::yield_now();
        }
    }

    #[test]
    fn what_an_earlier_driver_left_running_is_found_by_its_mark() {
        let id = format!("left-{}", std::process::id());
        let mut left = Command::new("/bin/sleep")
            .arg("1000")
            .env(VARIABLE, &id)
            .spawn()
            .unwrap();
        let ender = Ender::default();
        assert!(ender.end(Path::new("/proc"), "of-nobody"));
        assert_eq!(left.try_wait().unwrap(), None);
        // A child of this process is a zombie from then on, which has no environment.
        assert!(ender.end(Path::new("/proc"), &id));
        let status = left.wait().unwrap();
        assert_eq!(status.signal(), Some(9));
    }
}
