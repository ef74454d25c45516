//! Where the leader's work is done: one thread with a runtime of its own.
//!
//! A poll of the protocol's machine is one step of the leader's task, and may take seconds: a takeover, or a round of decisions for a
//! whole cluster. Meanwhile the lease must be renewed and probes be answered. So there are two runtimes of one thread each:
//!
//! * the **main** one, for all that is short and must not wait: the lease with a client of its own, the admin server, signals, the
//!   probe of the extender (an answer that waits for a poll would count as one that came late);
//! * this one, for the leader's task, and for what works for it: watches, writes, and what is kept right beside it. What of that waits for a
//!   long poll loses nothing: no watch and no answer is worth anything to the leader before the poll has ended, and a call that is
//!   taken for unanswered by then is one that may have been carried out, as any other ([`muster_protocol::Outcome::Unknown`]).
//!
//! *Why not one runtime with two threads*, which share all tasks: whichever thread gets a second task wakes the other one for it. While
//! gangs come and go that is nearly every answer and every change that is watched: each is a few microseconds of work, and for each the other
//! thread woke, looked for work, found none, and slept again; what one had allocated and read the other freed and read again. And of
//! two such threads one may wait for sockets and timers for both of them, be woken for the leader's task alone, and leave nobody waiting
//! for the lease (tokio 1.54.1, `runtime/scheduler/multi_thread/worker.rs`: `transition_from_parked` and `should_notify_others`); here
//! no long step is ever on the thread that renews it.
//!
//! Rules that anybody may bring are judged on a thread of their own all the same ([`crate::judge`]).

use tokio::runtime::{Builder, Handle, Runtime};

/// See the module. Ends, without waiting for what is still under way there, when it is dropped.
#[derive(Debug)]
pub struct Workplace {
    handle: Handle,
    /// There until it is dropped.
    runtime: Option<Runtime>,
}

impl Workplace {
    /// Starts its thread. Fails where none can be started.
    pub fn open() -> std::io::Result<Self> {
        // With one worker, and not of the flavor `current_thread`: that would need a thread of ours to drive it.
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("work")
            .enable_all()
            .build()?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }

    /// What is spawned on this works there.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Workplace {
    /// Whoever drops it may be a task itself, and must not wait.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        time::{Duration, Instant},
    };

    use tokio::sync::oneshot;

    use super::*;

    /// On a runtime that it shares with the busy task this one would not go on before that gives up.
    #[tokio::test]
    async fn whatever_is_short_goes_on_while_the_work_is_busy_and_need_not_wait_for_its_end() {
        const LIMIT: Duration = Duration::from_secs(20);
        let workplace = Workplace::open().unwrap();
        let went_on = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&went_on);
        let (begin, begun) = oneshot::channel();
        let busy = workplace.handle().spawn(async move {
            begin.send(()).unwrap();
            let since = Instant::now();
            while !seen.load(Ordering::SeqCst) && since.elapsed() < LIMIT {
                std::thread::yield_now();
            }
            seen.load(Ordering::SeqCst)
        });
        begun.await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        went_on.store(true, Ordering::SeqCst);
        assert!(busy.await.unwrap(), "it waited for the busy task");
        workplace.handle().spawn(std::future::pending::<()>());
        // Within a task: a runtime that waits for its end panics here.
        drop(workplace);
    }
}
