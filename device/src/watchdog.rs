//! One thread that may hang, and callers that may not.

use std::{
    io,
    sync::{
        Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError, SyncSender},
    },
    thread,
    time::{Duration, Instant},
};

/// The thread did not answer in time, or is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unresponsive;

/// Runs jobs on a thread of their own, one after the other, on a state that lives there.
///
/// A job that hangs cannot be ended: its caller is told after the limit, and callers after it at once, until
/// the job returns. Nothing piles up behind it but what one caller each has asked.
#[derive(Debug)]
pub(crate) struct Watchdog<State> {
    jobs: SyncSender<Job<State>>,
    limit: Duration,
    /// Since when a job overran its limit.
    hanging: Mutex<Option<Instant>>,
}

type Job<State> = Box<dyn FnOnce(&mut State) + Send>;

impl<State: 'static> Watchdog<State> {
    /// Starts the thread. `make` runs on it.
    pub(crate) fn start(
        name: &str,
        limit: Duration,
        make: impl FnOnce() -> State + Send + 'static,
    ) -> io::Result<Self> {
        let (jobs, queue) = mpsc::sync_channel::<Job<State>>(64);
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let mut state = make();
                while let Ok(job) = queue.recv() {
                    job(&mut state);
                }
            })?;
        Ok(Self {
            jobs,
            limit,
            hanging: Mutex::new(None),
        })
    }

    /// Runs a job and waits for its answer, at most as long as the limit; while one before it hangs, not
    /// at all, but for one caller per limit that looks whether it still does.
    pub(crate) fn run<Answer: Send + 'static>(
        &self,
        job: impl FnOnce(&mut State) -> Answer + Send + 'static,
    ) -> Result<Answer, Unresponsive> {
        if self.is_hanging() {
            return Err(Unresponsive);
        }
        let (answer, wait) = mpsc::sync_channel(1);
        let job: Job<State> = Box::new(move |state| {
            // The caller may have left; then nobody wants the answer.
            let _ = answer.send(job(state));
        });
        self.jobs.try_send(job).map_err(|_| Unresponsive)?;
        let result = wait.recv_timeout(self.limit);
        let mut hanging = self.hanging.lock().unwrap_or_else(PoisonError::into_inner);
        *hanging = matches!(result, Err(RecvTimeoutError::Timeout)).then(Instant::now);
        result.map_err(|_| Unresponsive)
    }

    fn is_hanging(&self) -> bool {
        let mut hanging = self.hanging.lock().unwrap_or_else(PoisonError::into_inner);
        match *hanging {
            Some(since) if since.elapsed() < self.limit => true,
            Some(_) => {
                // This caller looks again; others are sent away meanwhile.
                *hanging = Some(Instant::now());
                false
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hanging_job_costs_its_caller_the_limit_and_the_next_nothing() {
        let limit = Duration::from_millis(200);
        let watchdog = Watchdog::start("test", limit, || 0).unwrap();
        assert_eq!(watchdog.run(|state| *state + 1), Ok(1));

        let (release, held) = mpsc::channel::<()>();
        let started = Instant::now();
        let hung = watchdog.run(move |_| held.recv().is_ok());
        assert_eq!(hung, Err(Unresponsive));
        assert!(started.elapsed() >= limit);

        let started = Instant::now();
        assert_eq!(watchdog.run(|state| *state), Err(Unresponsive));
        assert!(started.elapsed() < limit);

        release.send(()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while watchdog.run(|state| *state).is_err() {
            assert!(Instant::now() < deadline, "it never came back");
            thread::yield_now();
        }
    }
}
