//! Checks give way: while one runs on a GPU that no claim holds, a claim may come for that GPU.
//!
//! Whoever prepares a claim looks at its GPUs first ([`crate::probe::Prober::look_at`]). That is the sign: a check of such a GPU is ended at once,
//! and the Prepare, which finds the GPU being changed, waits for that inside its call, as for a holder that goes. In another instance, during an update,
//! nobody sees the sign; but that instance is told to stop, and its checks end with it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Which checks run. Cheap to clone; clones share everything.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    /// By UUID of the GPU whether somebody wants it.
    running: Arc<Mutex<BTreeMap<String, bool>>>,
}

/// A check that runs until this is dropped.
#[derive(Debug)]
#[must_use = "without it the check is not known"]
pub struct Running {
    checks: Checks,
    gpu: String,
}

impl Checks {
    fn running(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A check of a GPU begins; `None`: another one runs.
    pub fn begin(&self, gpu: &str) -> Option<Running> {
        let mut running = self.running();
        if running.contains_key(gpu) {
            return None;
        }
        running.insert(gpu.to_owned(), false);
        Some(Running {
            checks: self.clone(),
            gpu: gpu.to_owned(),
        })
    }

    /// Somebody wants a GPU.
    pub fn want(&self, gpu: &str) {
        if let Some(is_wanted) = self.running().get_mut(gpu) {
            *is_wanted = true;
        }
    }
}

impl Running {
    /// Whether somebody wants the GPU since the check began.
    pub fn is_wanted(&self) -> bool {
        self.checks
            .running()
            .get(&self.gpu)
            .copied()
            .unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.checks.running().remove(&self.gpu);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_learns_that_its_gpu_is_wanted_while_it_runs_and_of_no_other() {
        let checks = Checks::default();
        checks.want("GPU-0");
        let running = checks.begin("GPU-0").unwrap();
        assert!(checks.begin("GPU-0").is_none(), "one at a time");
        assert!(!running.is_wanted(), "that was before");
        checks.want("GPU-1");
        assert!(!running.is_wanted());
        checks.clone().want("GPU-0");
        assert!(running.is_wanted());
        drop(running);
        assert!(checks.running().is_empty());
    }
}
