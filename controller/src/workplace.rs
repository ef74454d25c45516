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
//! **A step that never ends** would keep the lease for ever all the same, since whoever renews it is not held up: a leader that does nothing,
//! which no other replaces, and that looks alive to every probe. So the main runtime hands this one an empty task now and then
//! ([`Workplace::watch_over`]). If that is not done after [`LONGEST_STEP`], the program ends, which gives the lease up. Should the step end
//! after all meanwhile, the leader finds its leadership gone before it starts anything.
//!
//! Rules that anybody may bring are judged on a thread of their own all the same ([`crate::judge`]).

use std::time::Duration;

use muster_serve::Shutdown;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    time::{sleep, timeout},
};

/// Pause between two empty tasks.
const INTERVAL: Duration = Duration::from_secs(10);
/// How long one step of the work may take. Ten times as long as a whole takeover may take until an alert says that it is too long
/// (`MusterTakeoverTakesLong`): a machine without a processor to spare makes a step long, and to begin anew makes it no shorter.
pub const LONGEST_STEP: Duration = Duration::from_mins(5);

/// The work does not go on.
#[derive(Debug, thiserror::Error)]
#[error(
    "the leader's work has stood still for {} s: a step of it does not end, or its thread is gone; a fresh process is to follow",
    .0.as_secs()
)]
struct StandsStill(Duration);

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

    /// Ends the program if the work stands still. Call it where nothing of the work is: what is spawned here must go on meanwhile.
    pub fn watch_over(&self, shutdown: &Shutdown) {
        let watching = stands_still(self.handle.clone(), INTERVAL, LONGEST_STEP);
        let watching = shutdown.token().clone().run_until_cancelled_owned(watching);
        shutdown.spawn_essential("watch over the leader's work", async move {
            watching.await.map_or(Ok(()), Err)
        });
    }
}

/// Ends once the work stands still.
async fn stands_still(work: Handle, interval: Duration, longest_step: Duration) -> StandsStill {
    while let Ok(Ok(())) = timeout(longest_step, work.spawn(async {})).await {
        sleep(interval).await;
    }
    StandsStill(longest_step)
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
            mpsc,
        },
        time::Instant,
    };

    use muster_serve::shutdown::ShutdownError;
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

    /// Time passes on the thread of the test alone, and only while nothing happens there.
    #[tokio::test(start_paused = true)]
    async fn a_step_of_the_work_that_never_ends_ends_the_program() {
        const FINISH_LIMIT: Duration = Duration::from_secs(20);
        let workplace = Workplace::open().unwrap();
        let (end, ends) = mpsc::channel::<()>();
        let (begin, begun) = oneshot::channel();
        workplace.handle().spawn(async move {
            begin.send(()).unwrap();
            let _ = ends.recv();
        });
        begun.await.unwrap();
        let since = tokio::time::Instant::now();
        let shutdown = Shutdown::default();
        workplace.watch_over(&shutdown);
        let ended = shutdown.finish(FINISH_LIMIT).await;
        let Err(ShutdownError::TaskFailed(why)) = ended else {
            panic!("{ended:?}");
        };
        assert!(why.contains("has stood still for 300 s"), "{why}");
        let took = since.elapsed().as_secs();
        assert_eq!(took, LONGEST_STEP.as_secs(), "as soon as it is sure");
        drop(end);
    }

    #[tokio::test]
    async fn work_that_goes_on_is_left_alone_until_the_program_ends_and_a_thread_that_is_gone_is_not()
     {
        const LIMIT: Duration = Duration::from_secs(20);
        const MOMENT: Duration = Duration::from_millis(1);
        let workplace = Workplace::open().unwrap();
        let work = workplace.handle().clone();
        let watching = stands_still(work.clone(), MOMENT, LIMIT);
        assert!(timeout(50 * MOMENT, watching).await.is_err());

        let shutdown = Shutdown::default();
        workplace.watch_over(&shutdown);
        shutdown.request();
        assert_eq!(shutdown.finish(LIMIT).await, Ok(()));

        drop(workplace);
        let gone = timeout(LIMIT, stands_still(work, MOMENT, 10 * LIMIT)).await;
        assert!(gone.is_ok(), "nobody does what is spawned there");
    }
}
