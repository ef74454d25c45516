//! When each gang was seen admitted and running.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use kube::Client;
use muster_api::{Gang, GangPhase};
use tokio_util::task::AbortOnDropHandle;

use crate::gangs;

/// Watches Gangs until it is dropped.
#[derive(Debug)]
pub(super) struct Watched {
    seen: Arc<Mutex<Seen>>,
    _task: AbortOnDropHandle<()>,
}

/// First sight of each gang as admitted and as running, by the name of its Job.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    admitted: BTreeMap<String, Instant>,
    running: BTreeMap<String, Instant>,
}

impl Watched {
    pub(super) fn start(client: Client) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let noted = Arc::clone(&seen);
        let task = gangs::watch(client, move |gang| lock(&noted).note(gang));
        Self { seen, _task: task }
    }

    pub(super) fn seen(&self) -> Seen {
        lock(&self.seen).clone()
    }
}

fn lock(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seen {
    fn note(&mut self, gang: &Gang) {
        let Some((namespace, job)) = gangs::owner_of(gang) else {
            return;
        };
        let status = gang.status.as_ref();
        let key = format!("{namespace}/{job}");
        if status.is_some_and(|status| status.admission.is_some()) {
            self.admitted
                .entry(key.clone())
                .or_insert_with(Instant::now);
        }
        if status.is_some_and(|status| status.phase == GangPhase::Running) {
            self.running.entry(key).or_insert_with(Instant::now);
        }
    }

    pub(super) fn admitted(&self) -> usize {
        self.admitted.len()
    }

    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    pub(super) fn first_admitted(&self) -> Option<Instant> {
        self.admitted.values().min().copied()
    }

    pub(super) fn last_running(&self) -> Option<Instant> {
        self.running.values().max().copied()
    }

    /// Seconds from the answer to each Job's creation to its gang's admission; 0 where the watch was faster than the answer.
    pub(super) fn created_to_admitted(&self, created: &BTreeMap<String, Instant>) -> Vec<f64> {
        self.admitted
            .iter()
            .filter_map(|(gang, at)| Some(at.saturating_duration_since(*created.get(gang)?)))
            .map(|wait| wait.as_secs_f64())
            .collect()
    }

    pub(super) fn admitted_to_running(&self) -> Vec<f64> {
        self.running
            .iter()
            .filter_map(|(gang, at)| Some(at.duration_since(*self.admitted.get(gang)?)))
            .map(|wait| wait.as_secs_f64())
            .collect()
    }
}
