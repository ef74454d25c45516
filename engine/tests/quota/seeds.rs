//! Many seeds, on all cores; the history of a seed that fails is cut down before it is shown.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use crate::history::{Event, History};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The first seed, by `MUSTER_SEED`.
pub(crate) fn first() -> u64 {
    number("MUSTER_SEED").unwrap_or(1)
}

/// How many histories are played, by `MUSTER_RUNS`.
pub(crate) fn histories(ordinary: u64) -> u64 {
    number("MUSTER_RUNS").unwrap_or(ordinary)
}

/// What a seed stands for: events that are drawn whole, any part of which can be played.
pub(crate) trait Seeded: Clone + std::fmt::Debug {
    type Event;

    fn draw(seed: u64) -> Self;

    fn events(&mut self) -> &mut Vec<Self::Event>;
}

impl Seeded for History {
    type Event = Event;

    fn draw(seed: u64) -> Self {
        Self::draw(seed)
    }

    fn events(&mut self) -> &mut Vec<Event> {
        &mut self.events
    }
}

/// Plays the history of every seed, and returns what came of each.
///
/// # Panics
///
/// If one of them fails: with its seed and with what is left of the history once all events are cut out that it fails without.
pub(crate) fn all<H: Seeded, T: Send>(
    seeds: Range<u64>,
    play: impl Fn(&H) -> Result<T, String> + Sync,
) -> Vec<T> {
    let next = AtomicU64::new(seeds.start);
    let has_failed = AtomicBool::new(false);
    let answers = Mutex::new(Vec::new());
    let failures = Mutex::new(Vec::new());
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || has_failed.load(Ordering::Relaxed) {
                        break;
                    }
                    match guarded(&H::draw(seed), &play) {
                        Ok(answer) => locked(&answers).push((seed, answer)),
                        Err(failure) => {
                            has_failed.store(true, Ordering::Relaxed);
                            locked(&failures).push((seed, failure));
                        }
                    }
                }
            });
        }
    });
    let failed = locked(&failures).iter().min().cloned();
    if let Some((seed, failure)) = failed {
        let mut history = cut(H::draw(seed), &play);
        let last = guarded(&history, &play).err().unwrap_or(failure);
        let left = history.events().len();
        panic!(
            "seed {seed} (MUSTER_SEED={seed} MUSTER_RUNS=1), cut to {left} events: {last}\n{history:?}"
        );
    }
    let mut answers = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
    answers.sort_by_key(|(seed, _)| *seed);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A panic is a failure like others.
fn guarded<H, T>(history: &H, play: &impl Fn(&H) -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(|| play(history))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.unwrap_or_else(|| "it panicked".to_owned()))
    })
}

/// Without the events that it fails without: halves first, then ever smaller parts, until no single one can go.
fn cut<H: Seeded, T>(mut history: H, play: &impl Fn(&H) -> Result<T, String>) -> H {
    let mut size = history.events().len();
    while size > 0 {
        let mut start = 0;
        let mut has_shrunk = false;
        while start < history.events().len() {
            let mut shorter = history.clone();
            let end = (start + size).min(shorter.events().len());
            shorter.events().drain(start..end);
            if guarded(&shorter, play).is_err() {
                history = shorter;
                has_shrunk = true;
            } else {
                start += size;
            }
        }
        if size > 1 || !has_shrunk {
            size /= 2;
        }
    }
    history
}

#[test]
fn a_history_is_cut_to_the_events_without_which_it_does_not_fail() {
    let arrivals = |history: &History| {
        let events = history.events.iter();
        events
            .filter(|event| matches!(event, Event::Arrives(_)))
            .count()
    };
    let play = |history: &History| {
        if arrivals(history) < 2 {
            Ok(())
        } else {
            Err("two arrive".to_owned())
        }
    };
    let history = History::draw(1);
    assert!(arrivals(&history) > 2, "there is something to cut");
    let cut = cut(history, &play);
    assert_eq!((cut.events.len(), arrivals(&cut)), (2, 2));
}
