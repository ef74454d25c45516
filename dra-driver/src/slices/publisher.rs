//! Performs the plan, until what is published is what should be.
//!
//! Who else writes these slices: the kubelet, which deletes all of the node's when it starts and 30 s after it
//! lost us; another instance of the driver during an update; the garbage collector. Each update and deletion has
//! the version that was seen as its precondition. A creation has none: two instances may both create, and the next
//! look deletes the surplus.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    core::v1::Node,
    resource::v1::{Device, ResourceSlice},
};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams, Preconditions},
    runtime::watcher,
};
use muster_api::{NodeDevices, keys};
use muster_cluster::{device_plugin, managed::ManagedPods};
use muster_device::faults::FaultState;
use muster_serve::{
    Condition, Shutdown,
    client::{CALL_LIMIT, CallError, within},
    watch::{self, WatchEvent, WatchMetrics},
};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::{mpsc, watch as value};

use super::{
    desired::{Content, Desired, Tainted, desired},
    order::{self, Moves},
    others::{self, Offer, Sightings, Withdrawal},
    plan::{Plan, Pool, plan},
    retained::{Retained, retain},
};
use crate::{
    gone::is_gone,
    inventory::{KnownGpus, UsedPart},
    kubelet::pod_resources,
    kubernetes::Kubernetes,
    mig::{Mode, Policy, Settings},
    prepare::{Disk, Record},
    store::Store,
};

/// Changes that come together are written together.
const SETTLE: Duration = Duration::from_millis(100);
/// Shortest and longest pause after a publication that failed.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// How often it is looked at without a reason.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// What publishing needs.
#[expect(
    missing_debug_implementations,
    reason = "a Kubernetes client has none, and nobody prints this"
)]
pub struct Publisher {
    /// The node.
    pub node: String,
    /// For single calls.
    pub client: Client,
    /// The API server, for the claims of this node.
    pub kubernetes: Kubernetes,
    /// The checkpoint.
    pub store: Store,
    /// Which extended resources stand for devices.
    pub managed: ManagedPods,
    /// The GPUs; nothing is published before they were listed once.
    pub gpus: value::Receiver<Option<KnownGpus>>,
    /// Devices that are held without a permit.
    pub held: value::Receiver<BTreeSet<String>>,
    /// What processes use which nothing explains.
    pub bypassed: value::Receiver<BTreeSet<UsedPart>>,
    /// What is wrong with the GPUs.
    pub faults: value::Receiver<FaultState>,
    /// What the administrator says about MIG.
    pub mig: Settings,
    /// Receives what of it holds for this node, once the node was read.
    pub policy: value::Sender<Option<Policy>>,
    /// UUIDs of the GPUs that are being brought to their declared layout; `None`: that is not known yet.
    pub fences: value::Receiver<Option<BTreeSet<String>>>,
    /// Receives which of them are published with their taint.
    pub fenced: value::Sender<BTreeSet<String>>,
    /// What is permitted on this node, as the watch shows it.
    pub node_devices: value::Receiver<Option<Arc<NodeDevices>>>,
    /// Holds while what is published is what should be.
    pub published: Condition,
    /// The kubelet's socket that says what device plugins handed out; not asked without it.
    pub pod_resources_socket: Option<PathBuf>,
    /// Publications that failed.
    pub failures: Counter,
    /// What is known while others hand out GPUs of this node.
    pub withheld: Withheld,
    /// What is known from one publication to the next.
    pub memory: Memory,
}

/// What is known from one publication to the next.
#[derive(Debug)]
pub struct Memory {
    retained: Retained,
    moves: Moves,
    /// Whether the API server drops counters: without them slices that overlap would be given to two.
    drops_counters: bool,
    /// What was logged last of what the API cannot show, and of what is refused.
    left_out: Vec<String>,
    refused: Option<String>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            retained: Retained::default(),
            moves: Moves::new(Instant::now()),
            drops_counters: false,
            left_out: Vec::new(),
            refused: None,
        }
    }
}

impl Memory {
    /// Of what the API cannot show, what is to be told: all of it, when it is other than it was. `None`: it was told, or there is nothing.
    fn news_of(&mut self, left_out: Vec<String>) -> Option<&[String]> {
        let is_new = left_out != self.left_out;
        self.left_out = left_out;
        (is_new && !self.left_out.is_empty()).then_some(self.left_out.as_slice())
    }
}

/// What is known while others hand out GPUs of the node.
#[derive(Debug, Default)]
pub struct Withheld {
    /// Who does, as it was seen last; empty: nobody.
    others: String,
    sightings: Sightings,
    withdrawal: Withdrawal,
    /// The devices that claims had when these were listed last.
    in_use: Option<BTreeSet<String>>,
}

/// The node's slices by name, those of other drivers included.
type Slices = BTreeMap<String, ResourceSlice>;

/// Starts to watch the node's slices and to publish.
pub fn spawn(
    publisher: Publisher,
    watch_client: Client,
    metrics: WatchMetrics,
    synced: Condition,
    shutdown: &Shutdown,
) {
    let (sender, seen) = mpsc::channel(64);
    let fields = format!("spec.nodeName={}", publisher.node);
    let api: Api<watch::Decoded<ResourceSlice>> = Api::all(watch_client);
    let config = watcher::Config::default().fields(&fields);
    let watch = watch::run(api, config, metrics, synced, sender, |seen| seen);
    shutdown.spawn_until_stopped("watch of ResourceSlices", watch);
    shutdown.spawn_until_stopped("publisher of ResourceSlices", publisher.run(seen));
}

impl Publisher {
    async fn run(mut self, mut seen: mpsc::Receiver<WatchEvent<ResourceSlice>>) {
        let mut slices: Option<Slices> = None;
        let mut pause = RETRY.0;
        loop {
            let wait = if self.publish(&mut slices).await {
                pause = RETRY.0;
                LOOK_AGAIN
            } else {
                pause = (pause * 2).min(RETRY.1);
                pause
            };
            tokio::select! {
                event = seen.recv() => match event {
                    Some(event) => take(&mut slices, event),
                    None => return,
                },
                Ok(()) = self.gpus.changed() => {}
                Ok(()) = self.held.changed() => {}
                Ok(()) = self.bypassed.changed() => {}
                Ok(()) = self.fences.changed() => {}
                Ok(()) = self.faults.changed() => {}
                () = tokio::time::sleep(wait) => continue,
            }
            tokio::time::sleep(SETTLE).await;
            while let Ok(event) = seen.try_recv() {
                take(&mut slices, event);
            }
        }
    }

    /// Whether all is as it should be, or nothing can be done yet.
    async fn publish(&mut self, slices: &mut Option<Slices>) -> bool {
        let fences = self.fences.borrow_and_update().clone();
        let tainted = Tainted {
            held: self.held.borrow_and_update().clone(),
            bypassed: self.bypassed.borrow_and_update().clone(),
            reconfiguring: fences.unwrap_or_default(),
            faults: self.faults.borrow_and_update().clone(),
        };
        let known = self.gpus.borrow_and_update().clone();
        let (Some(known), Some(slices)) = (known, slices.as_mut()) else {
            return true;
        };
        let published = self.write(&known, &tainted, slices).await;
        match &published {
            Ok(()) => {}
            Err(error) => {
                self.failures.inc();
                tracing::warn!(error = %format_args!("{error:#}"), "ResourceSlices are not published; trying again");
            }
        }
        self.published.set(published.is_ok());
        published.is_ok()
    }

    /// Whoever else hands out these GPUs is looked for first. What may be written then is, also if the kubelet did not answer: a GPU
    /// that others have is withdrawn, and a taint is put on, whatever it says. Only then its silence is told.
    async fn write(
        &mut self,
        known: &KnownGpus,
        tainted: &Tainted,
        slices: &mut Slices,
    ) -> anyhow::Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = within(CALL_LIMIT, nodes.get(&self.node)).await?;
        let policy = self.resolve(&node);
        // How far a layout was applied by an earlier instance is not known before it was looked at once.
        if policy.layout.is_some() && self.fences.borrow().is_none() {
            return Ok(());
        }
        let handed_out = match &self.pod_resources_socket {
            Some(socket) => pod_resources::handed_out(socket, &self.managed).await,
            None => Ok(None),
        };
        let offer = self.look(&node, &handed_out, slices);
        let kept = self.kept(offer, slices).await?;
        // A pool without devices says that there are none. While nobody knows, none says anything.
        let says_nothing =
            offer == Offer::Published && kept.as_ref().is_some_and(BTreeSet::is_empty);
        if !says_nothing {
            let now = Instant::now();
            let contents = self.contents(known, &policy, tainted, slices, now).await;
            let contents = self.with_retained(contents, offer, slices).await?;
            let withheld = kept.map(|kept| others::only(&contents, &kept));
            let contents = withheld.as_deref().unwrap_or(&contents);
            self.write_these(node, contents, slices).await?;
            let fenced = &tainted.reconfiguring;
            self.fenced.send_if_modified(|before| {
                let is_new = *before != *fenced;
                before.clone_from(fenced);
                is_new
            });
        }
        handed_out.map(drop)
    }

    /// What holds for this node by its labels; told when that changes.
    fn resolve(&mut self, node: &Node) -> Policy {
        let labels = node.metadata.labels.clone().unwrap_or_default();
        let mut policy = self.mig.policy(&labels);
        if self.memory.drops_counters && policy.mode == Mode::Dynamic {
            policy.mode = Mode::Static;
            policy.refused = Some(
                "the API server drops counters of ResourceSlices (feature gate DRAPartitionableDevices), without which slices that \
                 overlap would be given to two: only the slices that exist are offered"
                    .to_owned(),
            );
        }
        if policy.refused != self.memory.refused {
            if let Some(refused) = &policy.refused {
                tracing::error!("MIG: {refused}");
            } else {
                tracing::info!(mode = ?policy.mode, "MIG: nothing is refused any more");
            }
            self.memory.refused.clone_from(&policy.refused);
        }
        self.policy.send_if_modified(|before| {
            let is_new = before.as_ref() != Some(&policy);
            if is_new {
                *before = Some(policy.clone());
            }
            is_new
        });
        policy
    }

    /// What the slices are to hold, the GPUs in the order in which they stand. One may move (`order`).
    async fn contents(
        &mut self,
        known: &KnownGpus,
        policy: &Policy,
        tainted: &Tainted,
        slices: &Slices,
        now: Instant,
    ) -> Vec<Content> {
        let standing = order::standing(own(slices));
        let mut order = order::arranged(known, policy, &standing);
        if let Some((one, other)) = order::next_move(known, policy, &order)
            && self.memory.moves.is_due(now)
            && self.nobody_waits().await
        {
            tracing::info!(
                gpu = order[other],
                before = order[one],
                "a GPU moves in the ResourceSlices"
            );
            order.swap(one, other);
            self.memory.moves.moved(now);
        }
        let Desired { contents, left_out } = desired(known, policy, &order, tainted);
        if let Some(left_out) = self.memory.news_of(left_out) {
            tracing::warn!(
                ?left_out,
                "the GPUs can be cut into more than ResourceSlices can show"
            );
        }
        contents
    }

    /// Whether no pod that was let go to this node lacks its devices, as far as permits and records say. Where they do not, somebody may.
    async fn nobody_waits(&self) -> bool {
        // Permits first: a claim that is prepared meanwhile has its record by then.
        let node_devices = self.node_devices.borrow().clone();
        let Some(node_devices) = node_devices.filter(|it| order::tells_who_waits(it)) else {
            return false;
        };
        let Some(disk) = self.disk().await else {
            return false;
        };
        let holding = disk.records.values().filter(|record| record.holds());
        let named = holding.flat_map(|record| [Some(&record.claim.uid), record.by_name.as_ref()]);
        let recorded = named.flatten().cloned().collect();
        order::awaited(&node_devices, &recorded).is_empty()
    }

    /// The same with the devices that are published, not offered any more, and may still be allocated. All claims are listed only
    /// while there are such, and none twice within a minute without a change.
    async fn with_retained(
        &mut self,
        mut contents: Vec<Content>,
        offer: Offer,
        slices: &Slices,
    ) -> anyhow::Result<Vec<Content>> {
        let published = own(slices).flat_map(|slice| slice.spec.devices.iter().flatten());
        let missing = Retained::missing(published, &contents);
        let asked = self.memory.retained.look(Instant::now(), &missing);
        let mut over = BTreeSet::new();
        // While others hand out these GPUs `kept` says what stays.
        if offer == Offer::All && !asked.is_empty() {
            let claims = self.kubernetes.allocated_here().await?;
            let devices = claims
                .iter()
                .flat_map(|claim| claim.devices.iter().flatten());
            let used = devices.filter(|device| device.pool == self.node);
            let used: BTreeSet<&str> = used.map(|device| device.device.as_str()).collect();
            over = asked;
            over.retain(|name| !used.contains(name.as_str()));
        }
        let stays = missing.iter().filter(|(name, _)| !over.contains(*name));
        let stays: Vec<&Device> = stays.map(|(_, device)| *device).collect();
        retain(&mut contents, &stays);
        Ok(contents)
    }

    async fn write_these(
        &mut self,
        node: Node,
        desired: &[Content],
        slices: &mut Slices,
    ) -> anyhow::Result<()> {
        let pool = Pool {
            driver: keys::DRIVER.to_owned(),
            node: self.node.clone(),
            node_uid: node.metadata.uid.unwrap_or_default(),
        };
        let existing: Vec<ResourceSlice> = own(slices).cloned().collect();
        let plan = plan(&pool, desired, &existing);
        if plan.is_empty() {
            return Ok(());
        }
        tracing::info!(
            delete = plan.delete.len(),
            update = plan.update.len(),
            create = plan.create.len(),
            "publishing ResourceSlices"
        );
        Ok(self.perform(plan, slices).await?)
    }

    /// What is published by who else is seen to hand out GPUs of this node; told when that changes.
    fn look(
        &mut self,
        node: &Node,
        handed_out: &anyhow::Result<Option<String>>,
        slices: &Slices,
    ) -> Offer {
        let publishing = slices.values().map(|slice| slice.spec.driver.as_str());
        let given = handed_out.as_ref().ok().and_then(Option::as_deref);
        let others = others::others(node, publishing, given, &self.managed);
        let offer = self.withheld.sightings.look(
            Instant::now(),
            !others.is_empty(),
            device_plugin::was_offered(node, &self.managed),
            handed_out.is_ok(),
        );
        if others != self.withheld.others {
            if others.is_empty() {
                tracing::info!(
                    "nobody else is seen to hand out GPUs of this node any more; publishing them if that lasts for {} s",
                    others::QUIET.as_secs()
                );
            } else {
                tracing::error!(
                    %others,
                    "others hand out the GPUs of this node; publishing none but those in use. Take them off the node, or the \
                     driver's label"
                );
            }
            self.withheld.others = others;
        }
        offer
    }

    /// The devices that are published, by name; `None`: all are.
    async fn kept(
        &mut self,
        offer: Offer,
        slices: &Slices,
    ) -> anyhow::Result<Option<BTreeSet<String>>> {
        let devices = own(slices).flat_map(|slice| slice.spec.devices.iter().flatten());
        let mut published = devices.map(|device| device.name.clone());
        let known = self.withheld.in_use.as_ref();
        match offer {
            Offer::All => {
                self.withheld.in_use = None;
                self.withheld.withdrawal = Withdrawal::default();
                Ok(None)
            }
            Offer::Published => {
                let recorded = self.recorded().await;
                let known = known.into_iter().flatten().cloned();
                Ok(Some(known.chain(published).chain(recorded).collect()))
            }
            // What is not published is given to nobody. All claims of the cluster are listed only while some of it may be in use: this
            // may be so on a thousand nodes.
            Offer::InUse => {
                let now = Instant::now();
                let is_published = published.next().is_some();
                let is_over = self.withheld.withdrawal.is_over(now, is_published);
                if is_over && known.is_some_and(BTreeSet::is_empty) {
                    return Ok(Some(BTreeSet::new()));
                }
                let claims = self.kubernetes.claims_here().await?;
                let devices = claims
                    .iter()
                    .flat_map(|claim| claim.devices.iter().flatten());
                let used = devices.filter(|device| device.pool == self.node);
                let used: BTreeSet<String> = used.map(|device| device.device.clone()).collect();
                self.withheld.withdrawal.listed(now);
                Ok(Some(self.withheld.in_use.insert(used).clone()))
            }
        }
    }

    /// The devices that claims have as the checkpoint says, by name. What the kubelet took away of them while the driver was gone comes
    /// back at once, and no list of all claims is needed, for which a thousand kubelets may be restarted together.
    async fn recorded(&self) -> BTreeSet<String> {
        let disk = self.disk().await.unwrap_or_default();
        let records = disk.records.into_values();
        let holding = records.filter(Record::holds);
        let devices = holding.flat_map(|record| record.devices);
        devices.map(|device| device.device).collect()
    }

    /// The checkpoint; `None`: it cannot be read.
    async fn disk(&self) -> Option<Disk> {
        let store = self.store.clone();
        let load = move || -> anyhow::Result<Disk> {
            let lock = store.lock()?;
            Ok(store.load(&lock)?)
        };
        match tokio::task::spawn_blocking(load).await {
            Ok(Ok(disk)) => Some(disk),
            Ok(Err(error)) => {
                tracing::warn!(error = %format_args!("{error:#}"), "which devices claims have is not known");
                None
            }
            Err(panicked) => {
                tracing::warn!(%panicked, "which devices claims have is not known");
                None
            }
        }
    }

    /// What was written is remembered at once: the watch may show it only later, and it must not be written twice.
    async fn perform(&mut self, plan: Plan, slices: &mut Slices) -> Result<(), CallError> {
        let api: Api<ResourceSlice> = Api::all(self.client.clone());
        let params = PostParams {
            field_manager: Some(keys::FIELD_MANAGER_DRIVER.to_owned()),
            ..PostParams::default()
        };
        for slice in plan.delete {
            let name = slice.metadata.name.unwrap_or_default();
            let delete = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: slice.metadata.uid,
                    resource_version: slice.metadata.resource_version,
                }),
                ..DeleteParams::default()
            };
            match within(CALL_LIMIT, api.delete(&name, &delete)).await {
                Ok(_) => {}
                Err(error) if is_gone::<ResourceSlice>(&error, &name) => {}
                Err(error) => return Err(error),
            }
            slices.remove(&name);
        }
        for slice in plan.update {
            let name = slice.metadata.name.clone().unwrap_or_default();
            match within(CALL_LIMIT, api.replace(&name, &params, &slice)).await {
                Ok(stored) => self.memory.drops_counters |= remember(slices, &slice, stored),
                Err(error) => {
                    if is_gone::<ResourceSlice>(&error, &name) {
                        slices.remove(&name);
                    }
                    return Err(error);
                }
            }
        }
        for slice in plan.create {
            let stored = within(CALL_LIMIT, api.create(&params, &slice)).await?;
            self.memory.drops_counters |= remember(slices, &slice, stored);
        }
        Ok(())
    }
}

/// Of the node's slices those of this driver.
fn own(slices: &Slices) -> impl Iterator<Item = &ResourceSlice> {
    let slices = slices.values();
    slices.filter(|slice| slice.spec.driver == keys::DRIVER)
}

/// An API server with a feature switched off drops fields silently. That cannot be cured by writing again. Returns whether it dropped counters.
fn remember(slices: &mut Slices, wanted: &ResourceSlice, stored: ResourceSlice) -> bool {
    let taints = |slice: &ResourceSlice| {
        let taints = |device: &Device| device.taints.as_ref().map_or(0, Vec::len);
        let devices = slice.spec.devices.iter().flatten();
        devices.map(taints).sum::<usize>()
    };
    if taints(wanted) != taints(&stored) {
        tracing::error!("the API server dropped device taints: is DRADeviceTaints switched off?");
    }
    let drawn = |slice: &ResourceSlice| {
        let devices = slice.spec.devices.iter().flatten();
        let drawing = devices.filter(|device| device.consumes_counters.is_some());
        drawing.count()
    };
    let sets = |slice: &ResourceSlice| slice.spec.shared_counters.as_ref().map_or(0, Vec::len);
    let drops_counters = drawn(wanted) != drawn(&stored) || sets(wanted) != sets(&stored);
    if let Some(name) = stored.metadata.name.clone() {
        slices.insert(name, stored);
    }
    drops_counters
}

fn take(slices: &mut Option<Slices>, event: WatchEvent<ResourceSlice>) {
    let named = |slice: ResourceSlice| Some((slice.metadata.name.clone()?, slice));
    match event {
        WatchEvent::Listed(all) => *slices = Some(all.into_iter().filter_map(named).collect()),
        WatchEvent::Applied(slice) => {
            slices.get_or_insert_default().extend(named(slice));
        }
        WatchEvent::Deleted(metadata) => {
            if let (Some(slices), Some(name)) = (slices, &metadata.name) {
                slices.remove(name);
            }
        }
    }
}

#[cfg(test)]
mod tests;
