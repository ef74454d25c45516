//! Performs the plan, until what is published is what should be.
//!
//! Who else writes these slices: the kubelet, which deletes all of the node's when it starts and 30 s after it
//! lost us; another instance of the driver during an update; the garbage collector. Each update and deletion has
//! the version that was seen as its precondition. A creation has none: two instances may both create, and the next
//! look deletes the surplus.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
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
use muster_api::keys;
use muster_cluster::{device_plugin, managed::ManagedPods};
use muster_serve::{
    Condition, Shutdown,
    client::{CALL_LIMIT, CallError, within},
    watch::{self, WatchEvent, WatchMetrics},
};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::{mpsc, watch as value};

use super::{
    desired::{self, Tainted},
    others::{self, Offer, Sightings, Withdrawal},
    plan::{Plan, Pool, plan},
};
use crate::{
    gone::is_gone,
    inventory::KnownGpus,
    kubelet::pod_resources,
    kubernetes::Kubernetes,
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
    /// UUIDs of the GPUs that processes use which nothing explains.
    pub bypassed: value::Receiver<BTreeSet<String>>,
    /// Holds while what is published is what should be.
    pub published: Condition,
    /// The kubelet's socket that says what device plugins handed out; not asked without it.
    pub pod_resources_socket: Option<PathBuf>,
    /// Publications that failed.
    pub failures: Counter,
    /// What is known while others hand out GPUs of this node.
    pub withheld: Withheld,
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
        let tainted = Tainted {
            held: self.held.borrow_and_update().clone(),
            bypassed: self.bypassed.borrow_and_update().clone(),
        };
        let desired = {
            let gpus = self.gpus.borrow_and_update();
            gpus.as_ref().map(|known| desired::devices(known, &tainted))
        };
        let (Some(desired), Some(slices)) = (desired, slices.as_mut()) else {
            return true;
        };
        let published = self.write(&desired, slices).await;
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
    async fn write(&mut self, desired: &[Vec<Device>], slices: &mut Slices) -> anyhow::Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = within(CALL_LIMIT, nodes.get(&self.node)).await?;
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
            let withheld = kept.map(|kept| others::only(desired, &kept));
            let desired = withheld.as_deref().unwrap_or(desired);
            self.write_these(node, desired, slices).await?;
        }
        handed_out.map(drop)
    }

    async fn write_these(
        &self,
        node: Node,
        desired: &[Vec<Device>],
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
        let store = self.store.clone();
        let load = move || -> anyhow::Result<Disk> {
            let lock = store.lock()?;
            Ok(store.load(&lock)?)
        };
        let disk = match tokio::task::spawn_blocking(load).await {
            Ok(Ok(disk)) => disk,
            Ok(Err(error)) => {
                tracing::warn!(error = %format_args!("{error:#}"), "which devices claims have is not known");
                Disk::default()
            }
            Err(panicked) => {
                tracing::warn!(%panicked, "which devices claims have is not known");
                Disk::default()
            }
        };
        let holding = disk.records.into_values().filter(Record::holds);
        let devices = holding.flat_map(|record| record.devices);
        devices.map(|device| device.device).collect()
    }

    /// What was written is remembered at once: the watch may show it only later, and it must not be written twice.
    async fn perform(&self, plan: Plan, slices: &mut Slices) -> Result<(), CallError> {
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
                Ok(stored) => remember(slices, &slice, stored),
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
            remember(slices, &slice, stored);
        }
        Ok(())
    }
}

/// Of the node's slices those of this driver.
fn own(slices: &Slices) -> impl Iterator<Item = &ResourceSlice> {
    let slices = slices.values();
    slices.filter(|slice| slice.spec.driver == keys::DRIVER)
}

/// An API server with a feature switched off drops fields silently. That cannot be cured by writing again.
fn remember(slices: &mut Slices, wanted: &ResourceSlice, stored: ResourceSlice) {
    let count = |slice: &ResourceSlice| {
        let taints = |device: &Device| device.taints.as_ref().map_or(0, Vec::len);
        let devices = slice.spec.devices.iter().flatten();
        devices.map(taints).sum::<usize>()
    };
    if count(wanted) != count(&stored) {
        tracing::error!("the API server dropped device taints: is DRADeviceTaints switched off?");
    }
    if let Some(name) = stored.metadata.name.clone() {
        slices.insert(name, stored);
    }
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
