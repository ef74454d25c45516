//! Has the administrator's command find GPUs in order before their faults are over ([`super::super::eye`]). What it finds out of order it checks again, after
//! a minute, then after twice as long each time, up to an hour.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use muster_api::Reason;
use muster_serve::Shutdown;
use tokio::task::JoinSet;

use super::{
    Tools,
    check::{Outcome, check},
    settings::Order,
};
use crate::{faults::eye::Eye, inventory::KnownGpu};

/// How often it is looked for GPUs that wait.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Shortest and longest pause after the command found a GPU out of order.
const PAUSE: (Duration, Duration) = (Duration::from_mins(1), Duration::from_hours(1));

/// When a GPU is looked at again that was in use.
const NOT_NOW_PAUSE: Duration = Duration::from_secs(10);
/// When a GPU is checked again after the command could not be run.
const NOT_RUN_PAUSE: Duration = Duration::from_mins(5);

/// When a GPU is checked again that was found out of order so often in a row.
fn pause(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    PAUSE.0.saturating_mul(1 << doublings).min(PAUSE.1)
}

/// Goes on until it is dropped. Different GPUs are checked at once.
pub(super) async fn run(tools: Tools, order: Order, shutdown: Shutdown) {
    let mut not_before: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let due = tools.eye.awaiting_validation();
        not_before.retain(|uuid, _| due.contains(uuid));
        let now = Instant::now();
        let known = tools.answering();
        let is_paused = |uuid: &String| not_before.get(uuid).is_some_and(|at| now < *at);
        let due = due.into_iter().filter(|uuid| !is_paused(uuid));
        let due: Vec<KnownGpu> = due
            .filter_map(|uuid| Tools::named(&known, &uuid).cloned())
            .collect();
        if due.is_empty() {
            continue;
        }
        if let Err(why) = tools.others.gave_nothing().await {
            tracing::info!(why, "GPUs whose faults may be over are not checked now");
            let again = Instant::now() + NOT_NOW_PAUSE;
            not_before.extend(due.into_iter().map(|known| (known.gpu.uuid, again)));
            continue;
        }
        let mut checks = JoinSet::new();
        for known in due {
            let uuid = known.gpu.uuid.clone();
            let (tools, order, stop) = (tools.clone(), order.clone(), shutdown.clone());
            checks.spawn_blocking(move || {
                let outcome = check(&tools, &order, &known, || stop.is_requested());
                let again = taken_up(&tools.eye, &uuid, &outcome);
                (uuid, outcome, again)
            });
        }
        while let Some(ended) = checks.join_next().await {
            match ended {
                Ok((uuid, outcome, again)) => {
                    tell(&tools, &uuid, &outcome).await;
                    not_before.insert(uuid, Instant::now() + again);
                }
                Err(broken) => tracing::error!(%broken, "the check of a GPU broke off"),
            }
        }
    }
}

/// Takes up what was found. When it is looked again, should the GPU still wait. A command that could not be run has found nothing: a GPU that was reset
/// goes on waiting for it, and is not reset once more, nor to be exchanged, for want of it.
pub(in crate::faults) fn taken_up(eye: &Eye, uuid: &str, outcome: &Outcome) -> Duration {
    match outcome {
        Outcome::InOrder(mark) => {
            eye.validated(uuid, *mark);
            pause(1)
        }
        Outcome::OutOfOrder(..) => pause(eye.not_validated(uuid)),
        Outcome::NotRun(_) => NOT_RUN_PAUSE,
        Outcome::NotNow(_) => NOT_NOW_PAUSE,
    }
}

async fn tell(tools: &Tools, uuid: &str, outcome: &Outcome) {
    let (label, message) = match outcome {
        Outcome::InOrder(_) => ("in_order", None),
        Outcome::OutOfOrder(_, ended) => ("out_of_order", Some(ended.message())),
        Outcome::NotRun(ended) => ("not_run", Some(ended.message())),
        Outcome::NotNow(why) => {
            tracing::info!(
                gpu = uuid,
                why,
                "a GPU whose fault may be over is not checked now"
            );
            return;
        }
    };
    tools.metrics.checked_gpu("validation", label);
    match message {
        None => tracing::info!(gpu = uuid, "the command finds a GPU in order"),
        Some(message) => {
            let note =
                format!("the check that is to end its fault did not find it in order: {message}");
            tools.teller.warn(uuid, Reason::GpuCheck, note).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_from_a_minute_to_an_hour() {
        let minutes = |failures| pause(failures).as_secs() / 60;
        let found: Vec<u64> = (1..9).map(minutes).collect();
        assert_eq!(found, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(minutes(u32::MAX), 60);
    }
}
