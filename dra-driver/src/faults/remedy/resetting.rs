//! Looks which GPUs are to be reset, and has it done, one after the other; and ends what an earlier driver left running.
//!
//! A reset takes nothing from anybody who runs, and is held back all the same while what is done about faults is only told, and while the circuit breaker is
//! open: a false alarm on many nodes would reset them all. The controller says so in the NodeDevices of the node (`spec.remediation`). What the watch
//! shows may be old, so before each reset the object is read anew. No answer is no leave (S18).
//!
//! Who may not be reset is looked at all the same: whether it would be, if it might, is told to the controller ([`super::refused`]), and what keeps it from that, to
//! people.

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
    refused::{News, Refused},
    reset::{Outcome, Wanted, reset, would_reset},
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
/// For how long a GPU may wait for the command that checks it once it was reset, until the controller is told that it is not reset: as long as that may
/// take as it ships. One that cannot be run is waited for for ever.
const CHECKED_WITHIN: Duration = Duration::from_mins(10);

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
    /// Since when GPUs that were reset wait to be checked.
    unchecked: BTreeMap<String, Instant>,
    /// Receives which GPUs would not be reset for their faults, and which would, as far as that is known.
    hindered: watch::Sender<BTreeMap<String, bool>>,
    ender: Ender,
}

/// The GPUs that have what a reset mends.
#[derive(Debug, Default)]
struct Found {
    /// To be reset now.
    wanted: Vec<Wanted>,
    /// Those for which it cannot even be told whether they are, and why.
    unknown: BTreeMap<String, String>,
    /// Reset, and not checked yet.
    unchecked: BTreeSet<String>,
}

impl Resetting {
    pub(super) fn new(
        tools: Tools,
        order: Option<ResetOrder>,
        kubernetes: Kubernetes,
        node_devices: watch::Receiver<Option<Arc<NodeDevices>>>,
        hindered: watch::Sender<BTreeMap<String, bool>>,
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
            unchecked: BTreeMap::new(),
            hindered,
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
            } else {
                self.say(without_command(&self.tools));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn look(&mut self, order: &ResetOrder) {
        let tools = self.tools.clone();
        let resets = self.resets.clone();
        let settle = order.settle;
        let found = tokio::task::spawn_blocking(move || find(&tools, &resets, settle)).await;
        let found = match found {
            Ok(found) => found,
            Err(broken) => {
                tracing::error!(%broken, "the look for GPUs to reset broke off");
                return;
            }
        };
        let Found {
            wanted,
            unknown,
            unchecked,
        } = found;
        let now = Instant::now();
        self.unchecked.retain(|uuid, _| unchecked.contains(uuid));
        for uuid in unchecked {
            self.unchecked.entry(uuid).or_insert(now);
        }
        let names: BTreeSet<&String> = wanted.iter().map(|wanted| &wanted.gpu).collect();
        self.refused
            .retain(|uuid, _| names.contains(uuid) || unknown.contains_key(uuid));
        for (uuid, why) in unknown {
            if self.is_due(&uuid) {
                self.refuse(&uuid, why).await;
            }
        }
        for wanted in &wanted {
            if self.is_due(&wanted.gpu) && self.one(order, wanted).await {
                // That took its time, and may have been of use to others: what is wanted is looked for anew.
                break;
            }
        }
        self.say(hindered(&self.refused, &self.unchecked, Instant::now()));
    }

    /// Whether a GPU is to be looked at now.
    fn is_due(&self, uuid: &str) -> bool {
        let refused = self.refused.get(uuid);
        refused.is_none_or(|refused| refused.is_due(self.is_told(), Instant::now()))
    }

    fn say(&self, hindered: BTreeMap<String, bool>) {
        self.hindered.send_if_modified(|before| {
            let is_other = *before != hindered;
            if is_other {
                *before = hindered;
            }
            is_other
        });
    }

    /// Looks whether a GPU would be reset, if it might be.
    async fn look_at(&mut self, order: &ResetOrder, uuid: &str) {
        let (tools, order, of) = (self.tools.clone(), order.clone(), uuid.to_owned());
        let looked = move || would_reset(&tools, &order, &of);
        match tokio::task::spawn_blocking(looked).await {
            Ok(Ok(())) => {
                let now = Instant::now();
                self.of(uuid).found_free(now);
            }
            Ok(Err(why)) => self.refuse(uuid, why).await,
            Err(broken) => tracing::error!(%broken, "the look at a GPU to reset broke off"),
        }
    }

    /// Has a GPU reset; whether the command was run.
    async fn one(&mut self, order: &ResetOrder, wanted: &Wanted) -> bool {
        let allowed = self.is_allowed().await;
        if let Err(why) = self.tools.others.gave_nothing().await {
            self.refuse(&wanted.gpu, why).await;
            return false;
        }
        if let Err(why) = allowed {
            tracing::debug!(gpu = wanted.gpu, why, "a GPU is not reset");
            self.look_at(order, &wanted.gpu).await;
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
            Ok(Outcome::Refused(why)) => self.refuse(&wanted.gpu, why).await,
            Ok(Outcome::InVain(why)) => {
                let now = Instant::now();
                let news = self.of(&wanted.gpu).was_in_vain(&why, now);
                self.tell(&wanted.gpu, why, news).await;
            }
            Err(broken) => tracing::error!(%broken, "the reset of a GPU broke off"),
        }
        false
    }

    /// Whether the watch shows that the controller allows it.
    fn is_told(&self) -> bool {
        self.node_devices.borrow().as_deref().is_some_and(allows)
    }

    /// Whether the controller says so, asked now. The watch first, which costs nothing.
    async fn is_allowed(&self) -> Result<(), String> {
        if !self.is_told() {
            return Err("the controller does not allow it".to_owned());
        }
        match self.kubernetes.node_devices().await {
            Read::Found(object) if allows(&object) => Ok(()),
            Read::Found(_) | Read::Absent => Err("the controller does not allow it".to_owned()),
            Read::Failed(cause) => Err(cause),
        }
    }

    /// What is known of a GPU.
    fn of(&mut self, uuid: &str) -> &mut Refused {
        let new = || Refused::new(Instant::now());
        self.refused.entry(uuid.to_owned()).or_insert_with(new)
    }

    async fn refuse(&mut self, uuid: &str, why: String) {
        let now = Instant::now();
        let news = self.of(uuid).refuse(&why, now);
        self.tell(uuid, why, news).await;
    }

    async fn tell(&self, uuid: &str, why: String, news: News) {
        if news.is_other {
            tracing::info!(gpu = uuid, why, "a GPU is to be reset, and is not");
        }
        if news.is_to_be_told {
            self.tools.metrics.reset_gpu("refused");
            let note = format!("it is to be reset for its fault, and is not: {why}");
            self.tools.teller.warn(uuid, Reason::GpuReset, note).await;
        }
    }
}

/// Which GPUs would not be reset now, whatever the controller allows, and which would: of those that are to be, and of those that were and have waited since
/// then to be checked.
fn hindered(
    refused: &BTreeMap<String, Refused>,
    unchecked: &BTreeMap<String, Instant>,
    now: Instant,
) -> BTreeMap<String, bool> {
    let refused = refused.iter();
    let refused =
        refused.filter_map(|(uuid, refused)| Some((uuid.clone(), refused.is_hindered()?)));
    let unchecked = unchecked.iter();
    let late = unchecked.filter(|(_, since)| now.duration_since(**since) >= CHECKED_WITHIN);
    let late = late.map(|(uuid, _)| (uuid.clone(), true));
    refused.chain(late).collect()
}

fn allows(object: &NodeDevices) -> bool {
    object.spec.remediation == Some(Remediation::Allowed)
}

/// Where there is no command none of the GPUs would be reset that have a fault of that class.
fn without_command(tools: &Tools) -> BTreeMap<String, bool> {
    let state = tools.eye.state();
    let gpus = state.gpus().keys();
    let wanted = gpus.filter(|uuid| state.wants_reset(uuid, None).is_some());
    wanted.map(|uuid| (uuid.clone(), true)).collect()
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

/// Looks which GPUs are to be reset. One that was reset in vain is noted as one to be exchanged. Blocking.
fn find(tools: &Tools, done: &Resets, settle: Duration) -> Found {
    let mut found = Found::default();
    let known = tools.gpus.borrow().clone().unwrap_or_default();
    for known in known.gpus.iter().filter(|known| !known.gone) {
        let uuid = known.gpu.uuid.clone();
        // Most have nothing, whatever NVML says.
        if tools.eye.state().wants_reset(&uuid, Some(RESET)).is_none() {
            continue;
        }
        let action = if known.silent {
            Err("the GPU does not answer".to_owned())
        } else {
            let action = tools.eye.backend().recovery_action(&uuid);
            action.map_err(|error| format!("what the GPU wants done cannot be told: {error}"))
        };
        let action = match action {
            Ok(action) => action,
            Err(why) => {
                // Others are to be reset only if it says so.
                if tools.eye.state().wants_reset(&uuid, None).is_some() {
                    found.unknown.insert(uuid, why);
                }
                continue;
            }
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
            Due::Nothing => {
                if facts.awaits_check {
                    found.unchecked.insert(uuid);
                }
            }
            Due::Reset(number) => found.wanted.push(Wanted { gpu: uuid, number }),
            Due::Retire(resets) => {
                let cause = Cause::ResetInVain(resets);
                tools.eye.report(&uuid, FaultClass::Retire, cause);
            }
        }
    }
    found
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
    fn a_gpu_that_was_reset_is_hindered_once_its_check_does_not_come_within_ten_minutes() {
        let begin = Instant::now();
        let mut free = Refused::new(begin);
        free.found_free(begin);
        let mut open = Refused::new(begin);
        let _ = open.refuse("process 1", begin);
        let refused = BTreeMap::from([("free".to_owned(), free), ("open".to_owned(), open)]);
        let unchecked = BTreeMap::from([("unchecked".to_owned(), begin)]);
        for (seconds, expected) in [(599, None), (600, Some(true))] {
            let now = begin + Duration::from_secs(seconds);
            let told = hindered(&refused, &unchecked, now);
            assert_eq!(told.get("unchecked").copied(), expected, "{seconds}");
            // Of one that was refused only now nothing is said yet.
            let others = (told.get("free").copied(), told.get("open").copied());
            assert_eq!(others, (Some(false), None), "{seconds}");
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
