//! Many seeds, on all cores. Each run is for itself, so the answers do not depend on how they are shared out.

use std::{
    ops::Range,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

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
    #[test]
    fn every_seed_is_played_once_and_answers_are_in_their_order() {
        let answers = super::all(3..103, |seed| seed * 2);
        assert_eq!(answers, (3..103).map(|seed| seed * 2).collect::<Vec<_>>());
    }
}
