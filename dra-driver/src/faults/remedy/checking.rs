//! Checks GPUs that nobody uses, one at a time, each as often as the administrator says. One that is found out of order has a fault of the class Unknown, which
//! a person ends. A GPU that has a fault already is not checked: it is out of use. Nor is any other of the node while one has a fault of that class: a command that
//! is itself at fault would take all of them, of all nodes, and a person has to look at each.
//!
//! When each was checked last is not kept. The time begins with the program, so that a driver which starts anew, on a thousand nodes at once, say, does not
//! check all GPUs at once.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use muster_api::Reason;
use muster_device::faults::{Cause, FaultClass, FaultState, GpuFaults};
use muster_serve::Shutdown;

use super::{
    Tools,
    check::{Outcome, check},
    settings::Order,
};
use crate::inventory::KnownGpu;

/// How often it is looked whether one is due.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// When one that was in use, or was wanted, is tried again.
const TRY_AGAIN: Duration = Duration::from_mins(1);

/// Goes on until it is dropped.
pub(super) async fn run(tools: Tools, order: Order, every: Duration, shutdown: Shutdown) {
    let begin = Instant::now();
    let mut next: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        tokio::time::sleep(LOOK_EVERY.min(every / 4)).await;
        let known = tools.answering();
        next.retain(|uuid, _| Tools::named(&known, uuid).is_some());
        for gpu in &known {
            let first = || begin + every;
            next.entry(gpu.gpu.uuid.clone()).or_insert_with(first);
        }
        let Some(gpu) = due(&tools, &known, &next, Instant::now()) else {
            continue;
        };
        let uuid = gpu.gpu.uuid.clone();
        if let Err(why) = tools.others.gave_nothing().await {
            tracing::debug!(gpu = uuid, why, "a GPU is not checked now");
            next.insert(uuid, Instant::now() + TRY_AGAIN.min(every));
            continue;
        }
        let (with, order, stop) = (tools.clone(), order.clone(), shutdown.clone());
        let checked = tokio::task::spawn_blocking(move || {
            let outcome = check(&with, &order, &gpu, || stop.is_requested());
            if let Outcome::OutOfOrder(status, _) = &outcome {
                let cause = Cause::CheckFailed(*status);
                with.eye.report(&gpu.gpu.uuid, FaultClass::Unknown, cause);
            }
            outcome
        });
        let again = match checked.await {
            Ok(outcome) => taken_up(&tools, &uuid, &outcome, every).await,
            Err(broken) => {
                tracing::error!(%broken, "the check of a GPU broke off");
                every
            }
        };
        next.insert(uuid, Instant::now() + again);
    }
}

/// The GPU that has waited longest, of those that are due and have no fault.
fn due(
    tools: &Tools,
    known: &[KnownGpu],
    next: &BTreeMap<String, Instant>,
    now: Instant,
) -> Option<KnownGpu> {
    let state = tools.eye.state();
    if waits_for_a_person(&state) {
        return None;
    }
    let is_faulty = |uuid: &str| {
        let faults = state.gpus().get(uuid).map(GpuFaults::all);
        let mut faults = faults.unwrap_or_default().iter();
        faults.any(|fault| fault.class.is_fault())
    };
    let waiting = known.iter().filter_map(|known| {
        let at = *next.get(&known.gpu.uuid)?;
        (at <= now && !is_faulty(&known.gpu.uuid)).then_some((at, known))
    });
    waiting
        .min_by_key(|(at, _)| *at)
        .map(|(_, known)| known.clone())
}

/// Whether a GPU of the node has a fault that only a person can judge.
fn waits_for_a_person(state: &FaultState) -> bool {
    let mut faults = state.gpus().values().flat_map(GpuFaults::all);
    faults.any(|fault| fault.class == FaultClass::Unknown)
}

/// Tells what was found. When the GPU is checked again.
async fn taken_up(tools: &Tools, uuid: &str, outcome: &Outcome, every: Duration) -> Duration {
    let (label, message) = match outcome {
        Outcome::InOrder(_) => ("in_order", None),
        Outcome::OutOfOrder(_, ended) => ("out_of_order", Some(ended.message())),
        Outcome::NotRun(ended) => ("not_run", Some(ended.message())),
        Outcome::NotNow(why) => {
            tracing::debug!(gpu = uuid, why, "a GPU is not checked now");
            return TRY_AGAIN.min(every);
        }
    };
    tools.metrics.checked_gpu("deep", label);
    match message {
        None => tracing::info!(gpu = uuid, "a GPU that nobody uses is in order"),
        Some(message) => {
            let note =
                format!("the check of GPUs that nobody uses did not find it in order: {message}");
            tools.teller.warn(uuid, Reason::GpuCheck, note).await;
        }
    }
    every
}

#[cfg(test)]
mod tests {
    use muster_device::faults::{Device, KnownAddresses, Observation, Scope};

    use super::*;

    #[test]
    fn after_one_finding_no_other_gpu_of_the_node_is_checked_until_a_person_has_looked() {
        for (class, waits) in [
            (FaultClass::Info, false),
            (FaultClass::Reset, false),
            (FaultClass::Unknown, true),
        ] {
            let mut state = FaultState::default();
            assert!(!waits_for_a_person(&state));
            let known = KnownAddresses([("GPU-0".to_owned(), None)].into());
            let observation = Observation {
                class,
                scope: Scope::Gpu,
                cause: Cause::CheckFailed(Some(1)),
            };
            let gpu = Device::Uuid("GPU-0".to_owned());
            let _ = state.observe(&gpu, observation, &known, 0);
            assert_eq!(waits_for_a_person(&state), waits, "{class}");
            let _ = state.forget("GPU-0");
            assert!(!waits_for_a_person(&state));
        }
    }
}
