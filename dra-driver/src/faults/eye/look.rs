//! Looks at the GPUs: what no event told, and what is over.
//!
//! Three proofs are seen here, beside the start of the machine: that nobody uses any more what a contained fault is about, that NVLinks have
//! worked for a while, and that a GPU which was to be reset does not have to be any more. Each is newer than the faults that it is to mend
//! because their number was taken before it was looked for; and each counts only if the GPU is found in order.

use muster_device::{
    BackendError,
    faults::{Change, Condition, FaultState, GpuFaults, Proof, Recovery, Scope, Validation},
};

use super::{Asked, Eye, unix_seconds, validation};
use crate::{
    inventory::KnownGpu,
    prepare::{DiskFailure, Record},
};

impl Eye {
    /// Looks at all GPUs. Blocking.
    pub(in crate::faults) fn look_at_all(&self) {
        for gpu in &self.gpus() {
            self.look_at(gpu);
        }
        if self.state().fade(unix_seconds()) > 0 {
            self.news.notify_one();
        }
    }

    pub(super) fn look_at(&self, gpu: &KnownGpu) {
        let known = self.known();
        let uuid = &gpu.gpu.uuid;
        // What is seen from here on is newer than all that this look proves.
        let mark = self.state().mark();
        // One that is silent may answer the next time, and is out of use until then.
        if gpu.silent && !gpu.gone {
            return;
        }
        let condition = if gpu.gone {
            Err(BackendError::Gone(uuid.clone()))
        } else {
            self.backend.condition(uuid)
        };
        let condition = match condition {
            Ok(condition) => condition,
            Err(BackendError::Gone(_)) => {
                if self.state().confirm(uuid, &known, true) != Change::None {
                    tracing::error!(gpu = uuid, "what was logged of a GPU that is gone stands");
                    self.news.notify_one();
                }
                return;
            }
            // Who lists the GPUs tells that it does not answer.
            Err(_) => return,
        };
        let now = unix_seconds();
        // Links that the fabric manager has yet to set up are not down.
        let links = condition.active_links.filter(|_| !gpu.lacks_fabric());
        let looked_at = Condition {
            active_links: links,
            ..condition.clone()
        };
        let catalogue = self.catalogue();
        let mut state = self.state();
        let mut change = state.look(&catalogue, uuid, &looked_at, &known, now);
        if state.is_unconfirmed(uuid, &known) {
            change = change.max(state.confirm(uuid, &known, false));
            tracing::info!(
                gpu = uuid,
                "what was logged of a GPU before it was watched is an anomaly: it answers"
            );
        }
        let reboot = Recovery {
            proof: Proof::Reboot,
            scope: Scope::Gpu,
            mark: state.boot_mark(),
        };
        let mut recoveries = vec![reboot];
        recoveries.extend(state.proved(uuid, &looked_at, now));
        let idle = state.waits_for_idle(uuid);
        drop(state);
        let idle = idle.into_iter().filter(|scope| self.is_idle(gpu, *scope));
        recoveries.extend(idle.map(|scope| Recovery {
            proof: Proof::Idle,
            scope,
            mark,
        }));
        let mended = self.apply(gpu, recoveries, &condition);
        if mended > 0 || change != Change::None {
            self.news.notify_one();
        }
    }

    /// Applies recoveries, or has those wait for the administrator's command that it has a say in. How many faults are over.
    fn apply(&self, gpu: &KnownGpu, recoveries: Vec<Recovery>, condition: &Condition) -> usize {
        let uuid = &gpu.gpu.uuid;
        let validated = self.take_validation(uuid);
        let mut mended = 0;
        let mut waits = false;
        let mut state = self.state();
        for mut recovery in recoveries {
            let validation = validation_of(&state, gpu, &recovery, condition);
            let is_asked = self.validates
                && validation::is_asked(&recovery)
                && state.would_mend(uuid, &recovery, &validation);
            match (is_asked, validated) {
                (false, _) => {}
                // What was seen since the command was begun it may not have seen.
                (true, Some(mark)) => recovery.mark = recovery.mark.min(mark),
                (true, None) => {
                    waits = true;
                    continue;
                }
            }
            mended += recover(&mut state, gpu, &recovery, condition);
        }
        drop(state);
        self.note_validation_due(uuid, waits);
        mended
    }

    /// Whether nobody uses a part of a GPU: no claim holds it, and no process is there.
    fn is_idle(&self, gpu: &KnownGpu, scope: Scope) -> bool {
        let uuid = &gpu.gpu.uuid;
        let is_held = || -> Result<bool, DiskFailure> {
            let lock = self
                .store
                .lock()
                .map_err(|error| DiskFailure::new(error.to_string()))?;
            let disk = self.store.load(&lock)?;
            let holding = disk.records.values().filter(|record| record.holds());
            let mut units = holding.flat_map(Record::units);
            Ok(units.any(|unit| {
                let overlaps = match scope {
                    Scope::Gpu => true,
                    Scope::Slice(placement) => unit.overlaps_placement(placement),
                };
                unit.gpu == *uuid && overlaps
            }))
        };
        match is_held() {
            Ok(false) => {}
            Ok(true) => return false,
            Err(failure) => {
                tracing::warn!(gpu = uuid, %failure, "whether a faulty GPU is still in use is not known");
                return false;
            }
        }
        // Who cannot tell may have some.
        let Ok(processes) = self.backend.processes(uuid) else {
            return false;
        };
        let mut asked = Asked::default();
        !processes.iter().any(|process| {
            // One whose slice nobody knows may be in any.
            let place = self.place(&mut asked, Some(uuid), process.gpu_instance);
            scope.reaches(place)
        })
    }
}

/// How a GPU has to be found after a recovery, and is.
fn validation_of<'a>(
    state: &FaultState,
    gpu: &KnownGpu,
    recovery: &Recovery,
    condition: &'a Condition,
) -> Validation<'a> {
    let faults = state.gpus().get(&gpu.gpu.uuid);
    let best_links = match recovery.proof {
        // Of this boot: what is connected may be other than before.
        Proof::Reboot => None,
        _ => faults.and_then(GpuFaults::best_links),
    };
    Validation {
        condition,
        has_fabric: !gpu.lacks_fabric(),
        best_links,
    }
}

/// Applies a recovery. What is not in order is tried again with the next look.
fn recover(
    state: &mut FaultState,
    gpu: &KnownGpu,
    recovery: &Recovery,
    condition: &Condition,
) -> usize {
    let uuid = &gpu.gpu.uuid;
    let validation = validation_of(state, gpu, recovery, condition);
    let mended = state.recover(uuid, recovery, &validation).unwrap_or(0);
    if mended > 0 {
        let proof = recovery.proof;
        tracing::info!(gpu = uuid, ?proof, mended, "faults are mended");
    }
    mended
}
