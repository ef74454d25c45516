//! The end of a program: one token that says "stop", one tracker that knows who has not stopped yet.
//!
//! Order: the token is cancelled (a signal, or an essential task that ended) and the program is not ready any more;
//! loops end; servers stop accepting, at once or after the time that their clients take to learn of it, and finish what
//! is in flight; [`Shutdown::finish`] waits for all of them, bounded.

use std::{
    future::Future,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinHandle,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Stops the tasks of a program and waits for them. Cheap to clone; clones share everything.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    token: CancellationToken,
    tracker: TaskTracker,
    failure: Arc<OnceLock<String>>,
    serves_on: Arc<OnceLock<Duration>>,
}

/// How a program ended that did not end well.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShutdownError {
    /// A task without which the program is of no use ended first.
    #[error("{0}")]
    TaskFailed(String),
    /// Tasks did not stop in time.
    #[error("{tasks} tasks had not stopped {seconds} s after the program was told to")]
    Unfinished {
        /// How many.
        tasks: usize,
        /// How long was waited.
        seconds: u64,
    },
}

impl Shutdown {
    /// A shutdown that begins with SIGTERM or SIGINT. Must be called within a tokio runtime.
    ///
    /// A second one changes nothing: a kubelet or a runtime that is started again sends it again to a container that
    /// stops already, and whoever is still asked goes on answering. The end comes in bounded time all the same.
    pub fn on_signals() -> std::io::Result<Self> {
        let shutdown = Self::default();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let token = shutdown.token.clone();
        tokio::spawn(async move {
            loop {
                let name = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                };
                let again = token.is_cancelled();
                tracing::info!(signal = name, again, "stopping");
                token.cancel();
            }
        });
        Ok(shutdown)
    }

    /// The token that is cancelled when the program is to stop.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// Waits until the program is to stop.
    pub async fn requested(&self) {
        self.token.cancelled().await;
    }

    /// Whether the program is to stop.
    pub fn is_requested(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Tells everything to stop.
    pub fn request(&self) {
        self.token.cancel();
    }

    /// Tells everything to stop because of a failure; [`Shutdown::finish`] reports the first one told.
    pub fn fail(&self, why: String) {
        tracing::error!(why, "stopping after a failure");
        // The first failure is the cause; later ones are what followed from it.
        let _ = self.failure.set(why);
        self.token.cancel();
    }

    /// Has servers go on for a while when the program is told to stop: whoever sends requests learns of it later. After a
    /// failure they stop at once. The first call counts.
    pub fn serve_on_for(&self, time: Duration) {
        let _ = self.serves_on.set(time);
    }

    /// Waits until servers are to stop accepting.
    pub async fn servers_stop(&self) {
        self.requested().await;
        if let (Some(time), None) = (self.serves_on.get(), self.failure.get()) {
            tokio::time::sleep(*time).await;
        }
    }

    /// Runs a task that stops by itself once the token is cancelled, and that is waited for at the end.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn(task)
    }

    /// Runs a task without which the program is of no use: if it fails, panics, or ends before the program
    /// is told to stop, the whole program stops with that as its failure.
    pub fn spawn_essential<F, E>(&self, name: &'static str, task: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: std::fmt::Display + Send + 'static,
    {
        let shutdown = self.clone();
        self.tracker.spawn(async move {
            match tokio::spawn(task).await {
                Ok(Ok(())) if shutdown.is_requested() => {}
                Ok(Ok(())) => shutdown.fail(format!("{name} ended by itself")),
                Ok(Err(error)) => shutdown.fail(format!("{name} failed: {error}")),
                Err(panic) => shutdown.fail(format!("{name} broke off: {panic}")),
            }
        });
    }

    /// The same for a task that goes on for ever: it is dropped when the program is to stop.
    pub fn spawn_until_stopped(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let stopped = self.token.clone().run_until_cancelled_owned(task);
        self.spawn_essential(name, async move {
            let _ = stopped.await;
            Ok::<(), std::convert::Infallible>(())
        });
    }

    /// Waits until the program is to stop, then at most `limit` for its tasks.
    pub async fn finish(self, limit: Duration) -> Result<(), ShutdownError> {
        self.requested().await;
        self.tracker.close();
        let stopped = tokio::time::timeout(limit, self.tracker.wait()).await;
        if let Some(why) = self.failure.get() {
            return Err(ShutdownError::TaskFailed(why.clone()));
        }
        stopped.map_err(|_| ShutdownError::Unfinished {
            tasks: self.tracker.len(),
            seconds: limit.as_secs(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn the_end_of_an_essential_task_is_the_end_of_the_program() {
        let shutdown = Shutdown::default();
        shutdown.spawn_essential("watch of pods", async { Err("no such kind") });
        assert_eq!(
            shutdown.finish(LIMIT).await,
            Err(ShutdownError::TaskFailed(
                "watch of pods failed: no such kind".into()
            ))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_stop_is_counted_and_not_waited_for_without_end() {
        let shutdown = Shutdown::default();
        shutdown.spawn(std::future::pending::<()>());
        shutdown.request();
        assert_eq!(
            shutdown.finish(LIMIT).await,
            Err(ShutdownError::Unfinished {
                tasks: 1,
                seconds: 5
            })
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_goes_on_for_ever_ends_with_the_program_or_ends_it() {
        let shutdown = Shutdown::default();
        shutdown.spawn_until_stopped("keeper", std::future::pending());
        shutdown.request();
        assert_eq!(shutdown.finish(LIMIT).await, Ok(()));

        let shutdown = Shutdown::default();
        shutdown.spawn_until_stopped("keeper", async { panic!("broken") });
        let Err(ShutdownError::TaskFailed(why)) = shutdown.finish(LIMIT).await else {
            panic!("a panic is not noticed");
        };
        assert!(why.starts_with("keeper broke off"), "{why}");
    }

    #[tokio::test(start_paused = true)]
    async fn servers_go_on_after_a_requested_end_and_stop_at_once_after_a_failure() {
        type End = fn(&Shutdown);
        let ends: [(End, Duration); 2] = [
            (Shutdown::request, LIMIT),
            (|shutdown| shutdown.fail("broken".into()), Duration::ZERO),
        ];
        for (end, serves_on) in ends {
            let shutdown = Shutdown::default();
            shutdown.serve_on_for(LIMIT);
            let begun = tokio::time::Instant::now();
            end(&shutdown);
            shutdown.servers_stop().await;
            assert_eq!(begun.elapsed(), serves_on);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_requested_end_is_a_good_end() {
        let shutdown = Shutdown::default();
        let token = shutdown.token().clone();
        shutdown.spawn_essential("server", async move {
            token.cancelled().await;
            Ok::<(), String>(())
        });
        shutdown.request();
        assert_eq!(shutdown.finish(LIMIT).await, Ok(()));
    }
}
