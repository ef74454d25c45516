//! Calls that may hang, and callers that may not.
//!
//! Each call runs on a thread of its own, which costs less than any question to a driver. A call that hangs cannot be
//! ended: its caller leaves after the limit, and the thread stays where it is until the call returns, if ever. So that
//! this costs nobody but whoever hangs:
//!
//! * A call has a lane: that of its GPU, or that of the library as a whole. One call at a time is in a lane, so as many
//!   threads can be stuck as there are lanes, and never more than [`MOST_STUCK`].
//! * Behind a call that overran its limit nobody waits: callers of that lane are refused at once until it returns.
//! * A call that panics ends its own thread, frees its lane, and is an answer like any other.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

/// Most calls that may be stuck: far more than a node has GPUs. Beyond it nothing is asked any more.
const MOST_STUCK: usize = 64;

/// What hangs together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lane {
    /// The library: opening and closing it, and what it says of the whole node.
    Library,
    /// The wait for events.
    Events,
    /// A GPU that is not known yet, by NVML's index.
    Index(u32),
    /// A GPU, by UUID.
    Gpu(String),
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// None in time, or none to one before it.
    Late,
    /// One before it is in time, and takes longer than the caller waits.
    Busy,
    /// The call panicked.
    Broken,
    /// The machine has no thread for it.
    NoThread(io::Error),
}

/// Runs calls within a limit.
#[derive(Debug)]
pub(super) struct Calls {
    limit: Duration,
    lanes: Arc<Lanes>,
}

/// Which lanes have a call, and until when it is in time.
#[derive(Debug, Default)]
struct Lanes {
    running: Mutex<Running>,
    left: Condvar,
}

type Running = BTreeMap<Lane, Instant>;

impl Lanes {
    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lane that is taken. Dropped on the thread of its call, also by a panic, or where no thread could be had.
#[derive(Debug)]
struct Taken {
    lanes: Arc<Lanes>,
    lane: Lane,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.lanes.running().remove(&self.lane);
        self.lanes.left.notify_all();
    }
}

impl Calls {
    /// No call takes longer than `limit` for its caller.
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            lanes: Arc::default(),
        }
    }

    /// Runs a call and waits for its answer: at most the limit for the lane, and the limit again for the answer. What `call`
    /// owns is dropped on its own thread, unless there is none.
    pub(super) fn run<Answer: Send + 'static>(
        &self,
        lane: Lane,
        call: impl FnOnce() -> Answer + Send + 'static,
    ) -> Result<Answer, NoAnswer> {
        self.run_within(lane, self.limit, call)
    }

    /// The same for a call that may take this long by itself. Who waits for its lane does so for his own limit only.
    pub(super) fn run_within<Answer: Send + 'static>(
        &self,
        lane: Lane,
        limit: Duration,
        call: impl FnOnce() -> Answer + Send + 'static,
    ) -> Result<Answer, NoAnswer> {
        let taken = self.take(lane, limit)?;
        let (answer, wait) = mpsc::sync_channel(1);
        let body = move || {
            let result = call();
            // First the lane: whoever has the answer may ask again.
            drop(taken);
            // The caller may have left; then nobody wants the answer.
            let _ = answer.send(result);
        };
        let thread = thread::Builder::new().name("nvml".to_owned());
        thread.spawn(body).map_err(NoAnswer::NoThread)?;
        wait.recv_timeout(limit).map_err(|none| match none {
            RecvTimeoutError::Timeout => NoAnswer::Late,
            RecvTimeoutError::Disconnected => NoAnswer::Broken,
        })
    }

    /// The limit of a call.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// How many calls overran their limit and have not returned.
    pub(super) fn stuck(&self) -> usize {
        overdue(&self.lanes.running())
    }

    /// Waits until no call runs but those that are stuck: at most for the limit, while nobody begins another.
    pub(super) fn settle(&self) {
        let deadline = Instant::now() + self.limit;
        let mut running = self.lanes.running();
        loop {
            let now = Instant::now();
            if overdue(&running) == running.len() || now >= deadline {
                return;
            }
            running = self.wait(running, deadline - now);
        }
    }

    fn take(&self, lane: Lane, limit: Duration) -> Result<Taken, NoAnswer> {
        let deadline = Instant::now() + self.limit;
        let mut running = self.lanes.running();
        loop {
            let now = Instant::now();
            let overdue_at = running.get(&lane).copied();
            let wait = match overdue_at {
                None if overdue(&running) >= MOST_STUCK => return Err(NoAnswer::Late),
                None => {
                    running.insert(lane.clone(), now + limit);
                    drop(running);
                    let lanes = Arc::clone(&self.lanes);
                    return Ok(Taken { lanes, lane });
                }
                Some(overdue_at) => overdue_at.min(deadline).saturating_duration_since(now),
            };
            if wait.is_zero() {
                let is_in_time = overdue_at.is_some_and(|at| at > now);
                return Err(if is_in_time {
                    NoAnswer::Busy
                } else {
                    NoAnswer::Late
                });
            }
            running = self.wait(running, wait);
        }
    }

    fn wait<'a>(
        &self,
        running: MutexGuard<'a, Running>,
        longest: Duration,
    ) -> MutexGuard<'a, Running> {
        let waited = self.lanes.left.wait_timeout(running, longest);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// How many calls overran their limit.
fn overdue(running: &Running) -> usize {
    let now = Instant::now();
    running.values().filter(|at| **at <= now).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(200);

    fn gpu(name: &str) -> Lane {
        Lane::Gpu(name.to_owned())
    }

    #[test]
    fn a_call_that_hangs_costs_its_caller_the_limit_the_next_nothing_and_other_lanes_nothing() {
        let calls = Calls::new(LIMIT);
        assert_eq!(calls.run(gpu("a"), || 1).unwrap(), 1);

        let (release, held) = mpsc::channel::<()>();
        let started = Instant::now();
        let hung = calls.run(gpu("a"), move || held.recv().is_ok());
        assert!(matches!(hung, Err(NoAnswer::Late)), "{hung:?}");
        assert!(started.elapsed() >= LIMIT);
        assert_eq!(calls.stuck(), 1);

        let started = Instant::now();
        assert!(matches!(calls.run(gpu("a"), || 2), Err(NoAnswer::Late)));
        assert!(started.elapsed() < LIMIT);
        assert_eq!(calls.run(gpu("b"), || 3).unwrap(), 3);
        calls.settle();

        release.send(()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while calls.run(gpu("a"), || 4).is_err() {
            assert!(Instant::now() < deadline, "it never came back");
            thread::yield_now();
        }
        assert_eq!(calls.stuck(), 0);
    }

    #[test]
    fn a_call_that_may_take_longer_is_waited_for_and_is_stuck_only_after_that() {
        let calls = Calls::new(LIMIT);
        let answer = calls.run_within(gpu("a"), 50 * LIMIT, || {
            thread::sleep(2 * LIMIT);
            6
        });
        assert_eq!(answer.unwrap(), 6);

        let (release, held) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let (begun, begins) = mpsc::channel();
            let long = scope.spawn(|| {
                calls.run_within(gpu("a"), 50 * LIMIT, move || {
                    begun.send(()).unwrap();
                    held.recv().is_ok()
                })
            });
            begins.recv().unwrap();
            // Others wait for their own limit.
            assert!(matches!(calls.run(gpu("a"), || 1), Err(NoAnswer::Busy)));
            assert_eq!(calls.stuck(), 0, "it is in time");
            release.send(()).unwrap();
            assert!(long.join().unwrap().unwrap());
        });
        assert_eq!(calls.run(gpu("a"), || 2).unwrap(), 2);
    }

    #[test]
    fn a_call_that_panics_is_told_and_the_next_is_answered() {
        let calls = Calls::new(Duration::from_secs(10));
        let broken = calls.run(Lane::Library, || -> u32 { panic!("broken") });
        assert!(matches!(broken, Err(NoAnswer::Broken)), "{broken:?}");
        assert_eq!(calls.run(Lane::Library, || 5).unwrap(), 5);
    }

    #[test]
    fn no_more_threads_are_stuck_than_the_bound_whoever_asks() {
        let calls = Calls::new(Duration::from_millis(1));
        // Dropped at the end of the test: then all of them return.
        let mut releases = Vec::new();
        for index in 0..200 {
            let (release, held) = mpsc::channel::<()>();
            let hung = calls.run(Lane::Index(index), move || held.recv().is_ok());
            assert!(matches!(hung, Err(NoAnswer::Late)), "{hung:?}");
            releases.push(release);
        }
        assert_eq!(calls.stuck(), MOST_STUCK);
    }

    #[test]
    fn callers_of_one_lane_wait_for_each_other() {
        static ALONE: Mutex<u32> = Mutex::new(0);
        let calls = Calls::new(Duration::from_secs(10));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let alone = calls.run(gpu("a"), || {
                        ALONE.try_lock().is_ok_and(|mut count| {
                            *count += 1;
                            thread::yield_now();
                            true
                        })
                    });
                    assert!(alone.unwrap());
                });
            }
        });
        assert_eq!(*ALONE.lock().unwrap(), 8);
    }
}
