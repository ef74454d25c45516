//! Keeps the runtime attended while one of its tasks is busy for long.
//!
//! A poll of the protocol's machine is one step of the leader's task, and may take seconds: a takeover, or a round of decisions for a
//! whole cluster. That ought to hold up nobody else, as long as the runtime has another thread. It does all the same: of the threads
//! that have nothing to do one waits for sockets and timers, for all of them, and the others sleep until there is a task for them. If
//! what that one wakes up for is the leader's task alone, it wakes none of the others, since there is nothing for them to do; and while it
//! is busy nobody waits for sockets and timers. No lease is renewed, no probe answered and no watch read until the poll ends, however many
//! threads sleep meanwhile. (tokio 1.54.1, `runtime/scheduler/multi_thread/worker.rs`: `transition_from_parked` and
//! `should_notify_others`.)
//!
//! So a thread outside of the runtime hands it an empty task every [`INTERVAL`]. What comes from outside wakes a thread that sleeps; it
//! runs the task, finds nothing more to do, and waits for sockets and timers if nobody does. That is a few microseconds ten times a
//! second, and nobody has to know beforehand which step will be long.
//!
//! It helps as long as fewer steps are long at a time than there are threads. The leader's is the only one: rules that anybody may
//! bring are judged on a thread of their own ([`crate::judge`]).

use std::{
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    time::Duration,
};

use tokio::runtime::Handle;

/// How long the runtime is unattended at most: a twentieth of the pause between two renewals of the lease.
const INTERVAL: Duration = Duration::from_millis(100);

/// Attends a runtime until it is dropped.
#[derive(Debug)]
pub struct Attendance {
    /// The thread ends when this goes.
    _until: Sender<()>,
}

impl Attendance {
    /// Attends a runtime with several threads from now on. Fails where no thread can be started.
    pub fn of(runtime: Handle) -> std::io::Result<Self> {
        let (until, ends) = channel();
        let attend = move || {
            while ends.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                drop(runtime.spawn(async {}));
            }
        };
        std::thread::Builder::new()
            .name("attendance".to_owned())
            .spawn(attend)?;
        Ok(Self { _until: until })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        time::Instant,
    };

    use tokio::{runtime::Builder, time::sleep};

    use super::*;

    /// Without attendance the timer fires only once the busy task has given up.
    #[test]
    fn a_timer_fires_while_the_only_task_that_was_woken_is_busy() {
        const LIMIT: Duration = Duration::from_secs(20);
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_time()
            .build()
            .unwrap();
        let _attendance = Attendance::of(runtime.handle().clone()).unwrap();
        let fired = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&fired);
        let busy = runtime.spawn(async move {
            // Both threads have nothing to do until then.
            sleep(3 * INTERVAL).await;
            let begun = Instant::now();
            while !seen.load(Ordering::SeqCst) && begun.elapsed() < LIMIT {
                std::thread::yield_now();
            }
            seen.load(Ordering::SeqCst)
        });
        runtime.spawn(async move {
            sleep(5 * INTERVAL).await;
            fired.store(true, Ordering::SeqCst);
        });
        assert!(runtime.block_on(busy).unwrap(), "nobody saw to the timer");
    }
}
