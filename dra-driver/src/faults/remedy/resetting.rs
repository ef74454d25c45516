//! Looks which GPUs are to be reset, and has it done, one after the other; and ends what an earlier driver left running.
//!
//! A reset takes nothing from anybody who runs, and is held back all the same while what is done about faults is only told, and while the circuit breaker is
//! open: a false alarm on many nodes would reset them all. The controller says so in the NodeDevices of the node (`spec.remediation`). What the watch
//! shows may be old, so before each reset the object is read anew. No answer is no leave (S18).

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use muster_api::{NodeDevices, Reason, Remediation};
use muster_device::faults::{Cause, FaultClass};
use muster_serve::Shutdown;
use tokio::sync::watch;

use super::{
    Tools,
    plan::{self, Due, Facts},
    processes::Ender,
    reset::{Outcome, Wanted, reset},
    run::How,
    settings::ResetOrder,
};
use crate::{
    kubernetes::Kubernetes,
    prepare::Read,
    store::{Guard, marks::Mark},
};

/// How often it is looked.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often it is looked for what an earlier driver left running.
const LOOK_FOR_LEFT_EVERY: Duration = Duration::from_secs(30);
/// The recovery action that asks for a reset.
pub(super) const RESET: u32 = 1;
/// How long after it was refused a reset is tried again.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);
/// The same if NVML was closed for it, and nothing came of that: all GPUs of the node felt it.
const CLOSED_PAUSE: Duration = Duration::from_mins(5);
/// For how long a GPU is refused its reset until people are told: whoever used it goes first, in an orderly way.
const REFUSED_FOR: Duration = Duration::from_mins(1);
/// How often people are told anew why a GPU is refused its reset, if that is another reason: who has it open may be another process each time.
const TELL_EVERY: Duration = Duration::from_mins(10);

/// The task.
#[derive(Debug)]
pub(super) struct Resetting {
    tools: Tools,
    order: Option<ResetOrder>,
    kubernetes: Kubernetes,
    node_devices: watch::Receiver<Option<Arc<NodeDevices>>>,
    shutdown: Shutdown,
    resets: Resets,
    refused: BTreeMap<String, Refused>,
    ender: Ender,
}

/// A GPU that is to be reset, and is not.
#[derive(Debug)]
struct Refused {
    since: Instant,
    /// When it is tried again.
    again: Instant,
    why: String,
    /// What people were told last, and when.
    told: Option<(String, Instant)>,
}

impl Refused {
    /// Whether people are to be told why, now that it is refused, and tried again after this pause.
    fn is_news(&self, why: &str, pause: Duration, now: Instant) -> bool {
        // What takes longer than that is told at once.
        let is_long = now.duration_since(self.since) + pause >= REFUSED_FOR;
        let is_other =
            |(told, at): &(String, Instant)| told != why && now.duration_since(*at) >= TELL_EVERY;
        is_long && self.told.as_ref().is_none_or(is_other)
    }
}

impl Resetting {
    pub(super) fn new(
        tools: Tools,
        order: Option<ResetOrder>,
        kubernetes: Kubernetes,
        node_devices: watch::Receiver<Option<Arc<NodeDevices>>>,
        shutdown: Shutdown,
    ) -> Self {
        Self {
            tools,
            order,
            kubernetes,
            node_devices,
            shutdown,
            resets: Resets::since(Instant::now()),
            refused: BTreeMap::new(),
            ender: Ender::default(),
        }
    }

    /// Goes on until it is dropped.
    pub(super) async fn run(mut self) {
        let mut look_for_left_at = Instant::now();
        loop {
            if Instant::now() >= look_for_left_at {
                let (tools, ender) = (self.tools.clone(), self.ender.clone());
                let looked =
                    tokio::task::spawn_blocking(move || end_what_was_left(&tools, &ender)).await;
                if let Err(broken) = looked {
                    tracing::error!(%broken, "the look for commands that were left broke off");
                }
                look_for_left_at = Instant::now() + LOOK_FOR_LEFT_EVERY;
            }
            if let Some(order) = self.order.clone() {
                self.look(&order).await;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn look(&mut self, order: &ResetOrder) {
        let tools = self.tools.clone();
        let resets = self.resets.clone();
        let settle = order.settle;
        let found = tokio::task::spawn_blocking(move || wanted(&tools, &resets, settle)).await;
        let wanted = match found {
            Ok(wanted) => wanted,
            Err(broken) => {
                tracing::error!(%broken, "the look for GPUs to reset broke off");
                return;
            }
        };
        let names: BTreeSet<&String> = wanted.iter().map(|wanted| &wanted.gpu).collect();
        self.refused.retain(|uuid, _| names.contains(uuid));
        for wanted in &wanted {
            let refused = self.refused.get(&wanted.gpu);
            if refused.is_some_and(|refused| Instant::now() < refused.again) {
                continue;
            }
            if self.one(order, wanted).await {
                // That took its time, and may have been of use to others: what is wanted is looked for anew.
                return;
            }
        }
    }

    /// Has a GPU reset; whether the command was run.
    async fn one(&mut self, order: &ResetOrder, wanted: &Wanted) -> bool {
        if let Err(why) = self.is_allowed().await {
            tracing::debug!(gpu = wanted.gpu, why, "a GPU is not reset");
            return false;
        }
        if let Err(why) = self.tools.others.gave_nothing().await {
            self.refuse(&wanted.gpu, why, REFUSED_PAUSE).await;
            return false;
        }
        let (tools, stop) = (self.tools.clone(), self.shutdown.clone());
        let (order, of) = (order.clone(), wanted.clone());
        let done = move || reset(&tools, &order, &of, || stop.is_requested());
        match tokio::task::spawn_blocking(done).await {
            Ok(Outcome::Ran(ended, gpus)) => {
                self.resets.ended(&gpus, Instant::now());
                self.refused.remove(&wanted.gpu);
                let is_done = ended.how == How::Exited(0);
                let label = if is_done { "done" } else { "failed" };
                self.tools.metrics.reset_gpu(label);
                let note = format!(
                    "reset {} of {} for its fault: {}",
                    wanted.number,
                    plan::MOST_RESETS,
                    ended.message()
                );
                let teller = &self.tools.teller;
                if is_done {
                    teller.tell(&wanted.gpu, Reason::GpuReset, note).await;
                } else {
                    teller.warn(&wanted.gpu, Reason::GpuReset, note).await;
                }
                return true;
            }
            Ok(Outcome::Refused(why)) => self.refuse(&wanted.gpu, why, REFUSED_PAUSE).await,
            Ok(Outcome::InVain(why)) => self.refuse(&wanted.gpu, why, CLOSED_PAUSE).await,
            Err(broken) => tracing::error!(%broken, "the reset of a GPU broke off"),
        }
        false
    }

    /// Whether the controller says so, asked now. The watch first, which costs nothing.
    async fn is_allowed(&self) -> Result<(), String> {
        let says = |object: &NodeDevices| object.spec.remediation == Some(Remediation::Allowed);
        let is_told = self.node_devices.borrow().as_deref().is_some_and(says);
        if !is_told {
            return Err("the controller does not allow it".to_owned());
        }
        match self.kubernetes.node_devices().await {
            Read::Found(object) if says(&object) => Ok(()),
            Read::Found(_) | Read::Absent => Err("the controller does not allow it".to_owned()),
            Read::Failed(cause) => Err(cause),
        }
    }

    async fn refuse(&mut self, uuid: &str, why: String, pause: Duration) {
        let now = Instant::now();
        let refused = self
            .refused
            .entry(uuid.to_owned())
            .or_insert_with(|| Refused {
                since: now,
                again: now,
                why: String::new(),
                told: None,
            });
        refused.again = now + pause;
        if refused.why != why {
            tracing::info!(gpu = uuid, why, "a GPU is to be reset, and is not");
            refused.why.clone_from(&why);
        }
        if refused.is_news(&why, pause, now) {
            refused.told = Some((why.clone(), now));
            self.tools.metrics.reset_gpu("refused");
            let note = format!("it is to be reset for its fault, and is not: {why}");
            self.tools.teller.warn(uuid, Reason::GpuReset, note).await;
        }
    }
}

/// When GPUs were reset.
#[derive(Clone, Debug)]
struct Resets {
    /// When the program was started.
    begun: Instant,
    /// When the last of each ended since then.
    ended: BTreeMap<String, Instant>,
}

impl Resets {
    /// None since the program was started.
    fn since(begun: Instant) -> Self {
        Self {
            begun,
            ended: BTreeMap::new(),
        }
    }

    /// A reset of these GPUs ended. Whichever of them it was for, all are given time.
    fn ended(&mut self, gpus: &BTreeSet<String>, now: Instant) {
        let ended = gpus.iter().map(|gpu| (gpu.clone(), now));
        self.ended.extend(ended);
    }

    /// How long a GPU has had time to be found in order since it was reset, as often as this. That it was reset before the program was started, the
    /// disk tells, and not when: it may have been a moment ago.
    fn since_last(&self, uuid: &str, resets: Option<u32>) -> Option<Duration> {
        let earlier = resets.is_some_and(|resets| resets > 0);
        let ended = self.ended.get(uuid).copied();
        let last = ended.or_else(|| earlier.then_some(self.begun));
        last.map(|last| last.elapsed())
    }
}

/// The GPUs that are to be reset now. One that was reset in vain is noted as one to be exchanged. Blocking.
fn wanted(tools: &Tools, done: &Resets, settle: Duration) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    for known in tools.answering() {
        let uuid = known.gpu.uuid;
        // Most have nothing, whatever NVML says.
        if tools.eye.state().wants_reset(&uuid, Some(RESET)).is_none() {
            continue;
        }
        let Ok(action) = tools.eye.backend().recovery_action(&uuid) else {
            continue;
        };
        let (resets, awaits_proof) = {
            let state = tools.eye.state();
            let resets = state.wants_reset(&uuid, action);
            (resets, state.awaits_proof_of_reset(&uuid))
        };
        let facts = Facts {
            resets,
            since_last: done.since_last(&uuid, resets),
            awaits_check: awaits_proof && tools.eye.awaits_first_validation(&uuid),
        };
        match plan::due(facts, settle) {
            Due::Nothing => {}
            Due::Reset(number) => wanted.push(Wanted { gpu: uuid, number }),
            Due::Retire(resets) => {
                let cause = Cause::ResetInVain(resets);
                tools.eye.report(&uuid, FaultClass::Retire, cause);
            }
        }
    }
    wanted
}

/// Ends what drivers that have ended left running on GPUs, counts the resets among it, and gives the GPUs free. Blocking, for a bounded time: it is the task that resets GPUs
/// which waits.
fn end_what_was_left(tools: &Tools, ender: &Ender) {
    let left = match tools.store.left_marks() {
        Ok(left) => left,
        Err(failure) => {
            tracing::warn!(%failure, "commands that were left running are not looked for");
            return;
        }
    };
    let mut over: Vec<(String, Mark)> = Vec::new();
    let mut guards: Vec<Guard> = Vec::new();
    for (uuid, mark, guard) in left {
        tracing::warn!(
            gpu = uuid,
            ?mark,
            "a command was begun on a GPU by a driver that ended"
        );
        // Processes end with the boot.
        let is_ended = mark.boot_id != tools.boot_id || ender.end(Path::new("/proc"), &mark.id);
        if let Some(reset) = &mark.reset {
            tools.eye.count_reset(&reset.gpu, reset.number);
        }
        if is_ended {
            over.push((uuid, mark));
        }
        guards.push(guard);
    }
    if over.is_empty() {
        return;
    }
    // Whoever holds the lock of a GPU asks for no other.
    drop(guards);
    if let Err(failure) = tools.eye.keep() {
        tracing::warn!(%failure, "a reset that was begun is not kept; its mark stays");
        return;
    }
    for (uuid, mark) in over {
        if let Err(failure) = tools.store.remove_left_mark(&uuid, &mark) {
            tracing::warn!(gpu = uuid, %failure, "the mark of a GPU is not removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_was_reset_before_the_driver_was_started_is_given_time_to_be_found_in_order() {
        let settle = Duration::from_mins(1);
        let resets = Resets::since(Instant::now());
        for (count, expected) in [
            (None, Due::Nothing),
            (Some(0), Due::Reset(1)),
            (Some(1), Due::Nothing),
            (Some(2), Due::Nothing),
        ] {
            let facts = Facts {
                resets: count,
                since_last: resets.since_last("GPU-0", count),
                awaits_check: false,
            };
            assert_eq!(plan::due(facts, settle), expected, "{count:?}");
        }
        let since = resets.since_last("GPU-0", Some(2));
        assert!(since.is_some_and(|since| since < settle), "{since:?}");
    }

    #[test]
    fn whoever_keeps_a_gpu_from_being_reset_is_told_after_a_minute_and_others_ten_minutes_later() {
        let since = Instant::now();
        let at = |seconds| since + Duration::from_secs(seconds);
        let mut refused = Refused {
            since,
            again: since,
            why: String::new(),
            told: None,
        };
        assert!(!refused.is_news("process 1", REFUSED_PAUSE, at(50)));
        assert!(refused.is_news("no program", CLOSED_PAUSE, at(0)));
        assert!(refused.is_news("process 1", REFUSED_PAUSE, at(55)));
        refused.told = Some(("process 1".to_owned(), at(55)));
        for (why, seconds, is_news) in [
            ("process 1", 5_000, false),
            ("process 2", 60, false),
            ("process 2", 654, false),
            ("process 2", 655, true),
        ] {
            let told = refused.is_news(why, REFUSED_PAUSE, at(seconds));
            assert_eq!(told, is_news, "{why} {seconds}");
        }
    }

    #[test]
    fn what_was_reset_with_another_gpu_is_not_reset_once_more_before_it_was_looked_at() {
        let mut resets = Resets::since(Instant::now());
        let both = ["GPU-0", "GPU-1"].map(str::to_owned);
        resets.ended(&BTreeSet::from(both), Instant::now());
        for (gpu, expected) in [("GPU-1", Due::Nothing), ("GPU-2", Due::Reset(1))] {
            let facts = Facts {
                resets: Some(0),
                since_last: resets.since_last(gpu, Some(0)),
                awaits_check: false,
            };
            assert_eq!(plan::due(facts, Duration::from_mins(1)), expected, "{gpu}");
        }
    }
}
