//! Many seeds, on all cores. Each run is for itself, so the answers do not depend on how they are shared out.

use std::{
    fmt::Display,
    ops::Range,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Between two words on how far a long play is.
const TOLD_EVERY: Duration = Duration::from_mins(1);

/// How far the plays of many seeds are, told once a minute on standard error.
#[derive(Debug)]
pub struct Progress {
    seeds: u64,
    began: Instant,
    done: Mutex<Done>,
}

#[derive(Debug)]
struct Done {
    seeds: u64,
    broken: u64,
    told: Instant,
}

impl Progress {
    /// Begins now, for so many seeds.
    #[must_use]
    pub fn new(seeds: u64) -> Self {
        let now = Instant::now();
        let done = Done {
            seeds: 0,
            broken: 0,
            told: now,
        };
        Self {
            seeds,
            began: now,
            done: Mutex::new(done),
        }
    }

    /// One more is done. What a seed broke is told at once.
    pub fn note(&self, seed: u64, violation: Option<&dyn Display>) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.seeds += 1;
        if let Some(violation) = violation {
            done.broken += 1;
            eprintln!("seed {seed} breaks {violation}");
        }
        if done.told.elapsed() >= TOLD_EVERY {
            done.told = Instant::now();
            eprintln!("{}", self.text(&done, self.began.elapsed()));
        }
    }

    fn text(&self, done: &Done, elapsed: Duration) -> String {
        let minutes = |seconds: u64| seconds.div_ceil(60);
        let left = self.seeds.saturating_sub(done.seeds);
        let seconds_left = elapsed.as_secs().saturating_mul(left) / done.seeds.max(1);
        format!(
            "{} of {} seeds in {} min, {} broken; about {} min left",
            done.seeds,
            self.seeds,
            minutes(elapsed.as_secs()),
            done.broken,
            minutes(seconds_left)
        )
    }
}

/// Plays every seed, and returns what came of each, in the order of the seeds.
///
/// # Panics
///
/// If a play panics.
pub fn all<T: Send>(seeds: Range<u64>, play: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let next = AtomicU64::new(seeds.start);
    let answers = Mutex::new(Vec::new());
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let answer = play(seed);
                    let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
                    answers.push((seed, answer));
                }
            });
        }
    });
    let mut answers = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
    answers.sort_by_key(|(seed, _)| *seed);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_it_is_is_told_with_what_is_left() {
        let progress = Progress::new(20_000);
        progress.note(1, None);
        progress.note(2, Some(&"S1"));
        let mut done = progress.done.lock().unwrap();
        assert_eq!((done.seeds, done.broken), (2, 1));
        done.seeds = 5_000;
        let text = progress.text(&done, Duration::from_mins(10));
        assert_eq!(
            text,
            "5000 of 20000 seeds in 10 min, 1 broken; about 30 min left"
        );
    }

    #[test]
    fn every_seed_is_played_once_and_answers_are_in_their_order() {
        let answers = all(3..103, |seed| seed * 2);
        assert_eq!(answers, (3..103).map(|seed| seed * 2).collect::<Vec<_>>());
    }
}
