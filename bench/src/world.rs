//! The world around the machine: an API server, drivers that acknowledge, and, when they are asked to, kube-scheduler,
//! kubelets and the claim controller.
//!
//! Everything that the machine asks for is done at once and told by the watches. Only what the machine itself takes is
//! counted ([`World::spent`]), and all of it: taking changes in, polling, taking answers in.

mod pods;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use muster_api::{NodeDevices, keys};
use muster_cluster::{
    index,
    managed::ManagedPods,
    object::{Change, Kind, Object},
};
use muster_protocol::{ApiRequest, Config, Effect, Machine, Now, Outcome};
use muster_sim::{
    api_server::{ApiServer, Place, Precondition, Stored, has_ended, is_bound},
    controller_writes::apply,
    owners::is_gated,
};
use serde_json::Value;

use crate::{
    cluster::{BEGIN_SECONDS, Cluster, GPUS_PER_NODE, node_name, object},
    progress::Progress,
    report::micros,
    stopwatch::Stopwatch,
};

/// Polls without rest after which a bug is reported.
const MOST_POLLS: usize = 1_000_000;

/// The machine, and all that surrounds it.
pub(crate) struct World {
    api: ApiServer,
    machine: Machine,
    watches: BTreeMap<Kind, Place>,
    seconds: u64,
    /// What the machine took so far.
    spent: Duration,
    polls: u64,
    /// Gangs that were committed to the Ledger so far.
    admitted: u64,
    last_sequence: i64,
    /// The steps since somebody began to look.
    pub(crate) steps: Vec<Step>,
    /// What was asked for so far, by its kind.
    pub(crate) writes: BTreeMap<&'static str, u64>,
    /// Nodes whose driver has not acknowledged.
    unacknowledged: BTreeSet<String>,
    /// Pods that kube-scheduler has to bind: namespace and name.
    unbound: BTreeSet<(String, String)>,
    /// By node, which GPUs a claim has.
    taken: BTreeMap<String, [bool; GPUS_PER_NODE]>,
    /// Reads of single objects that are not answered yet.
    reads: VecDeque<Effect>,
    /// How many of them are answered between two polls.
    reads_at_once: usize,
}

/// What is observed is taken in, polled for, and what that asks for is answered.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    second: u64,
    /// All of it, in microseconds.
    pub(crate) micros: f64,
    /// The poll alone.
    polling: f64,
    /// What it asked for.
    asked: String,
}

impl std::fmt::Display for Step {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            second,
            micros,
            polling,
            asked,
        } = self;
        write!(
            formatter,
            "second {second}: {micros:.0} us, {polling:.0} us of it the poll, which asks for {asked}"
        )
    }
}

/// What the chart ships.
pub(crate) fn config() -> Result<Config> {
    Ok(Config::new(index::Config {
        managed: ManagedPods::new(["nvidia.com/gpu"])?,
        excluded_namespaces: BTreeSet::new(),
        excepted_device_classes: BTreeSet::new(),
        default_team: None,
        start_timeout_seconds: muster_cluster::index::START_TIMEOUT_SECONDS,
    }))
}

impl World {
    /// A cluster and a machine that knows nothing of it yet.
    pub(crate) fn new(cluster: &Cluster) -> Result<Self> {
        Self::with(cluster, config()?)
    }

    /// The same with a machine that is told something else than the chart ships.
    pub(crate) fn with(cluster: &Cluster, config: Config) -> Result<Self> {
        let mut api = ApiServer::default();
        for collection in cluster.collections() {
            for number in 0..collection.count {
                let value = (collection.make)(cluster, number);
                let object = object(collection.kind, value)
                    .with_context(|| format!("{:?} {number}", collection.kind))?;
                api.restore(object);
            }
        }
        let mut taken: BTreeMap<String, [bool; GPUS_PER_NODE]> = BTreeMap::new();
        for pod in &cluster.running {
            let gpus = taken.entry(node_name(pod.node)).or_default();
            gpus[pod.first_gpu..pod.first_gpu + pod.gpus].fill(true);
        }
        Ok(Self {
            api,
            machine: Machine::new(config),
            watches: BTreeMap::new(),
            seconds: 1_000,
            spent: Duration::ZERO,
            polls: 0,
            admitted: 0,
            last_sequence: 0,
            steps: Vec::new(),
            writes: BTreeMap::new(),
            unacknowledged: BTreeSet::new(),
            unbound: BTreeSet::new(),
            taken,
            reads: VecDeque::new(),
            reads_at_once: usize::MAX,
        })
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(crate) fn api(&self) -> &ApiServer {
        &self.api
    }

    /// What the machine took so far.
    pub(crate) fn spent(&self) -> Duration {
        self.spent
    }

    /// How often it was polled so far.
    pub(crate) fn polls(&self) -> u64 {
        self.polls
    }

    /// Gangs that were committed to the Ledger so far.
    pub(crate) fn admitted(&self) -> u64 {
        self.admitted
    }

    /// Objects that were looked at so far: gangs and nodes by the protocol; gangs, pods and nodes by the index.
    pub(crate) fn looked_at(&self) -> u64 {
        let index = self.machine.index().visits();
        self.machine.visited() + index.gangs + index.pods + index.nodes
    }

    /// Nodes and domains that the engine's placement looked at so far.
    pub(crate) fn searched(&self) -> u64 {
        self.machine.engine().visited()
    }

    /// Both together.
    pub(crate) fn visited(&self) -> u64 {
        self.looked_at() + self.searched()
    }

    /// Gives the world away and leaves the machine with what nobody shares with it.
    pub(crate) fn into_machine(self) -> Machine {
        self.machine
    }

    /// Puts an object there, new or changed, and lets its watch tell.
    pub(crate) fn put(&mut self, kind: Kind, value: Value) -> Result<()> {
        self.api.restore(object(kind, value)?);
        Ok(())
    }

    /// Changes an object as one write.
    pub(crate) fn change<T: Stored>(
        &mut self,
        (namespace, name): (&str, &str),
        change: impl FnOnce(&mut T),
    ) -> Result<()> {
        let any = Precondition::default();
        let changed = self.api.update(namespace, name, any, change);
        match changed {
            Ok(_) => Ok(()),
            Err(failure) => bail!("{:?} {namespace}/{name}: {failure:?}", T::KIND),
        }
    }

    /// From now on so many reads of single objects are answered between two polls.
    #[cfg(test)]
    pub(crate) fn answer_at_once(&mut self, reads: usize) {
        self.reads_at_once = reads;
    }

    /// One second passes.
    pub(crate) fn wait_a_second(&mut self) {
        self.seconds += 1;
        self.api.set_time(self.now().wall);
    }

    /// A long time passes.
    pub(crate) fn wait(&mut self, seconds: u64) {
        self.seconds += seconds;
        self.api.set_time(self.now().wall);
    }

    /// Lets the machine do what is owed at this second, to the end. Returns the number of polls that asked for something.
    pub(crate) fn settle_second(&mut self) -> Result<usize> {
        for poll in 0..MOST_POLLS {
            self.acknowledge()?;
            let begun = self.spent;
            self.tell();
            let told = self.spent;
            let effects = self.poll()?;
            let polled = self.spent;
            let due = self.machine.next_due();
            let is_idle = effects.is_empty() && due.is_none_or(|due| due > self.seconds);
            let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
            for effect in &effects {
                *kinds.entry(kind(&effect.write)).or_default() += 1;
            }
            self.answer(effects);
            self.steps.push(Step {
                second: self.seconds,
                micros: micros(self.spent.saturating_sub(begun)),
                polling: micros(polled.saturating_sub(told)),
                asked: format!("{kinds:?}"),
            });
            if is_idle && self.unacknowledged.is_empty() && self.reads.is_empty() {
                return Ok(poll);
            }
        }
        bail!("the machine does not come to rest within a second: {MOST_POLLS} polls")
    }

    /// Lets seconds pass until nothing is owed for so many of them.
    pub(crate) fn settle(&mut self, quiet_seconds: usize, progress: &mut Progress) -> Result<()> {
        let mut quiet = 0;
        while quiet < quiet_seconds {
            quiet = if self.settle_second()? == 0 {
                quiet + 1
            } else {
                0
            };
            self.wait_a_second();
            progress.tick(|| {
                let asked: u64 = self.writes.values().sum();
                format!(
                    "{} polls, {asked} effects, {} admitted",
                    self.polls, self.admitted
                )
            });
        }
        Ok(())
    }

    /// One poll in which nothing is new; what it took.
    pub(crate) fn idle_poll(&mut self) -> Result<Duration> {
        let before = self.spent;
        let effects = self.poll()?;
        ensure!(effects.is_empty(), "an idle poll asks for {effects:?}");
        Ok(self.spent.saturating_sub(before))
    }

    fn now(&self) -> Now {
        let wall = BEGIN_SECONDS + i64::try_from(self.seconds).unwrap_or(0);
        Now {
            monotonic_seconds: self.seconds,
            wall: Timestamp::from_second(wall).unwrap_or_default(),
        }
    }

    fn poll(&mut self) -> Result<Vec<Effect>> {
        let now = self.now();
        let effects = self.timed(|machine| machine.poll(now));
        self.polls += 1;
        if let Some(reason) = self.machine.must_exit() {
            bail!("the machine gave up: {reason}");
        }
        Ok(effects)
    }

    fn answer(&mut self, effects: Vec<Effect>) {
        let is_read = |effect: &Effect| matches!(*effect.write, ApiRequest::ReadObject { .. });
        let (reads, effects): (Vec<Effect>, Vec<Effect>) = effects.into_iter().partition(is_read);
        self.reads.extend(reads);
        let answered = self.reads.len().min(self.reads_at_once);
        let reads: Vec<Effect> = self.reads.drain(..answered).collect();
        for effect in reads.into_iter().chain(effects) {
            self.count(&effect.write);
            let outcome = match &*effect.write {
                ApiRequest::ReadAll { kind } => {
                    let objects = self.api.objects(*kind).cloned().collect();
                    self.watches.insert(*kind, self.api.watch(*kind));
                    self.timed(|machine| machine.observe(Change::Listed(*kind, objects)));
                    Outcome::Done(None)
                }
                write => {
                    // Who suspends a Job is told apart by this.
                    let before = self.api.hear(keys::FIELD_MANAGER_CONTROLLER);
                    let outcome = apply(&mut self.api, write);
                    self.api.hear(before);
                    outcome
                }
            };
            self.timed(|machine| machine.settle(effect.id, outcome));
        }
        self.tell();
    }

    /// The watches tell all that changed.
    fn tell(&mut self) {
        let mut changes = Vec::new();
        for place in self.watches.values_mut() {
            while let Some(event) = self.api.next_event(*place) {
                *place = place.after();
                changes.push(event.change());
            }
        }
        for change in &changes {
            if let Change::Applied(object) = change {
                self.notice(object);
            }
        }
        self.timed(|machine| {
            for change in changes {
                machine.observe(change);
            }
        });
    }

    /// What drivers and kube-scheduler see of a change.
    fn notice(&mut self, object: &Object) {
        match object {
            Object::NodeDevices(devices) => {
                let acknowledged = devices.status.as_ref().is_some_and(|status| {
                    Some(status.observed_generation) == devices.metadata.generation
                });
                if let (Some(name), false) = (&devices.metadata.name, acknowledged) {
                    self.unacknowledged.insert(name.clone());
                }
            }
            Object::Pod(pod) if !is_gated(pod) && !is_bound(pod) && !has_ended(pod) => {
                let metadata = &pod.metadata;
                let name = (metadata.namespace.clone(), metadata.name.clone());
                if let (Some(namespace), Some(name)) = name {
                    self.unbound.insert((namespace, name));
                }
            }
            _ => {}
        }
    }

    /// Drivers acknowledge what they were told; what they were not given is not held.
    fn acknowledge(&mut self) -> Result<()> {
        for node in std::mem::take(&mut self.unacknowledged) {
            self.change::<NodeDevices>(("", &node), |devices| {
                let status = devices.status.get_or_insert_default();
                status.uid = devices.metadata.uid.clone().unwrap_or_default();
                status.observed_generation = devices.metadata.generation.unwrap_or_default();
            })?;
        }
        Ok(())
    }

    fn timed<T>(&mut self, work: impl FnOnce(&mut Machine) -> T) -> T {
        let begun = Stopwatch::start();
        let done = work(&mut self.machine);
        self.spent += begun.elapsed();
        done
    }

    fn count(&mut self, write: &ApiRequest) {
        if let ApiRequest::ReplaceLedger { spec, .. } = write {
            let new = spec.intents.iter();
            let new = new.filter(|intent| intent.sequence > self.last_sequence);
            self.admitted += u64::try_from(new.count()).unwrap_or(0);
            self.last_sequence = self.last_sequence.max(spec.sequence);
        }
        *self.writes.entry(kind(write)).or_default() += 1;
    }
}

/// What is asked for, in words.
fn kind(write: &ApiRequest) -> &'static str {
    match write {
        ApiRequest::ReadAll { .. } => "list",
        ApiRequest::ReadObject { .. } => "read",
        ApiRequest::PublishEvent(_) => "Event",
        ApiRequest::PublishQueue { .. } => "Queue",
        ApiRequest::PublishTeam { .. } => "Team status",
        ApiRequest::PublishCohort { .. } => "Cohort status",
        ApiRequest::PublishFlavor { .. } => "Flavor status",
        ApiRequest::PublishPriorityTier { .. } => "PriorityTier status",
        ApiRequest::DeleteQueue { .. } => "delete Queue",
        ApiRequest::CreateLedger { .. } => "create Ledger",
        ApiRequest::ReplaceLedger { .. } => "Ledger",
        ApiRequest::CreateGang { .. } => "create Gang",
        ApiRequest::ReplaceGangStatus { .. } => "Gang status",
        ApiRequest::DeleteGang { .. } => "delete Gang",
        ApiRequest::CreateNodeDevices { .. } => "create NodeDevices",
        ApiRequest::ReplaceNodeDevices { .. } => "NodeDevices",
        ApiRequest::DeleteNodeDevices { .. } => "delete NodeDevices",
        ApiRequest::PatchPod { .. } => "patch of a Pod",
        ApiRequest::PatchPodStatus { .. } => "patch of a Pod's status",
        ApiRequest::DeletePod { .. } => "delete Pod",
        ApiRequest::ForceDeletePod { .. } => "delete Pod by force",
        ApiRequest::PatchJob { .. } => "patch of a Job",
    }
}
