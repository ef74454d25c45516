//! Pods that do not die, of a gang whose GPU broke: who may say that they are dead (docs/adr/0042).
//!
//! A gang has two nodes for itself. A GPU of its first rank breaks, and the attempt is evicted for that; the pod of its second rank hangs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use muster_api::{NodeDevices, Reason, keys};
use muster_tests::{
    cluster::{Cluster, Program},
    control_plane::ControlPlanePart,
    events,
    faults::{Fault, TargetGpu, ensure_fault_evictions, wait_for_fault_eviction},
    gangs,
    kubernetes::{LIMIT, Progress, always, eventually},
    node::NodePart,
    node_state::{is_well, set_out_of_service, wait_until_unreachable},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};
use serde_json::json;

use crate::stage::{Running, mended, prepare_team, restart_controller};

/// The arguments that ship, and those of these tests: a pod has ten seconds after its grace period, and the administrator consents.
const SOON: (&str, &str) = ("--force-after-seconds=60", "--force-after-seconds=10");
const WITH_CONSENT: (&str, &str) = ("--force-deletion=fenced", "--force-deletion=withconsent");
/// What is told of a pod then, before why it is not deleted by force.
const TOO_LONG: &str = "did not die within 10 s after its grace period of 3 s";
/// GPUs of a node, and of each rank.
const GPUS: u32 = 8;
/// How long it is looked whether a pod stays.
const STAYS: Duration = Duration::from_secs(3);
/// Kubelets give back what pods held that are gone once a minute.
const SLOW_LIMIT: Duration = Duration::from_secs(100);
/// Longest time for what these do beside the rest: a node is lost after a minute, and is back after two.
const MORE_TIME: Duration = Duration::from_mins(4);

pub(crate) fn scenarios() -> Vec<Scenario> {
    let scenarios = scenarios![
        behind_a_fence_a_pod_that_hangs_is_deleted_by_force,
        a_pod_on_a_silent_node_is_deleted_by_force_once_administrator_and_owner_consent,
        on_a_node_that_is_ready_a_pod_that_hangs_is_waited_for_whoever_consents,
    ];
    let scenarios = scenarios.into_iter().map(Scenario::with_fault_evictions);
    scenarios.map(|one| one.with_more_time(MORE_TIME)).collect()
}

/// A gang that runs.
struct Scene {
    running: Running<'static>,
    /// The first GPU of rank 0.
    gpu: TargetGpu,
    /// The pod of rank 1, which is going to hang.
    pod: Pod,
    /// Its node, which is another one than that of the GPU.
    node: String,
}

impl Scene {
    async fn begin(cluster: &Cluster, namespace: &'static str) -> Result<Self> {
        let client = cluster.client();
        prepare_team(&client, namespace, 2 * GPUS).await?;
        let workload = Workload {
            namespace,
            name: "train",
            ranks: 2,
            gpus: GPUS,
        };
        let running = Running::start_hanging(cluster, workload).await?;
        let gpu = running.gpu_of(cluster, 0).await?;
        let gang = running.now(&client).await?;
        let pod = gangs::pods(&client, &gang).await?.remove(&1);
        let pod = pod.context("there is no rank 1")?;
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let node = node.context("rank 1 is not bound")?;
        ensure!(node != gpu.node, "both ranks are on {node}");
        Ok(Self {
            running,
            gpu,
            pod,
            node,
        })
    }

    fn namespace(&self) -> &'static str {
        self.running.workload.namespace
    }

    fn pods(&self, client: &Client) -> Api<Pod> {
        Api::namespaced(client.clone(), self.namespace())
    }

    /// The GPU breaks, and the attempt is evicted for it. Of the pod that hangs it is told for how long, and why it is not deleted by force.
    async fn is_evicted_and_hangs(&self, client: &Client, why: &str) -> Result<()> {
        self.gpu.inject(Fault::Xid(48))?;
        let gang = self.running.gang();
        wait_for_fault_eviction(client, self.namespace(), &gang, &self.gpu).await?;
        let name = self.pod.name_any();
        let what = format!("the gang tells that {name} hangs, and {why:?}");
        eventually(&what, LIMIT, async || {
            let status = self.running.now(client).await?.status.unwrap_or_default();
            let details = status.queue.map_or_else(String::new, |queue| queue.details);
            let mut words = [&*name, TOO_LONG, why].into_iter();
            let is_told = words.all(|word| details.contains(word));
            Ok(Progress::when(is_told, || {
                format!("it is {:?}: {details}", status.phase)
            }))
        })
        .await
    }

    /// The pod that hangs; `None`: it is gone.
    async fn hanging(&self, client: &Client) -> Result<Option<Pod>> {
        let found = self.pods(client).get_opt(&self.pod.name_any()).await?;
        Ok(found.filter(|found| found.uid() == self.pod.uid()))
    }

    /// Nothing but its kubelet keeps the pod: whoever made it has taken his finalizer away.
    async fn has_no_finalizer(&self, client: &Client) -> Result<()> {
        eventually("the pod that hangs has no finalizer", LIMIT, async || {
            let pod = self.hanging(client).await?.context("it is gone")?;
            let finalizers = pod.finalizers();
            Ok(Progress::when(finalizers.is_empty(), || {
                format!("{finalizers:?}")
            }))
        })
        .await
    }

    /// The owner consents.
    async fn consents(&self, client: &Client) -> Result<()> {
        let annotations = json!({keys::FORCE_DELETION: keys::FORCE_DELETION_CONSENTED});
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        let (name, parameters) = (self.pod.name_any(), PatchParams::default());
        let pods = self.pods(client);
        pods.patch(&name, &parameters, &patch).await.map(drop)?;
        Ok(())
    }

    /// The pod goes, by force, and by whose word is told of it and of its gang.
    async fn is_forced(&self, client: &Client, word: &str) -> Result<()> {
        let (namespace, name) = (self.namespace(), self.pod.name_any());
        eventually("the pod that hangs is gone", LIMIT, async || {
            let pod = self.hanging(client).await?;
            Ok(Progress::when(pod.is_none(), || {
                format!("{:?}", pod.map(|pod| pod.metadata))
            }))
        })
        .await?;
        let says = format!("{word}: it is deleted by force");
        events::wait_for_message(client, namespace, &name, &says).await?;
        let (gang, reason) = (self.running.gang(), Reason::ForcedDeletion);
        events::wait_for_reason(client, namespace, "Gang", &gang, reason).await
    }

    /// The fault costs one attempt, and the next one runs whole.
    async fn runs_again(&self, cluster: &Cluster) -> Result<()> {
        let (running, gpu) = (&self.running, &self.gpu);
        running.runs_again(cluster, 2, 2 * LIMIT, &[gpu]).await?;
        let (client, gang) = (cluster.client(), running.gang());
        ensure_fault_evictions(&client, self.namespace(), &gang, 1).await
    }

    /// The node of the pod that hung counts again, and nothing is left there of it.
    async fn is_back(&self, cluster: &mut Cluster) -> Result<()> {
        let devices: Api<NodeDevices> = Api::all(cluster.client());
        let records = cluster.node(&self.node)?.driver_records();
        let what = format!("node {} is back, and holds nothing", self.node);
        eventually(&what, SLOW_LIMIT, async || {
            let object = devices.get(&self.node).await?;
            let left = std::fs::read_dir(&records)?.count();
            Ok(Progress::when(is_well(&object) && left == 0, || {
                format!("{left} records, {:?}, {:?}", object.spec, object.status)
            }))
        })
        .await
    }
}

async fn behind_a_fence_a_pod_that_hangs_is_deleted_by_force(cluster: &mut Cluster) -> Result<()> {
    restart_controller(cluster, &[SOON]).await?;
    let forced = is_off(cluster).await;
    restart_controller(cluster, &[]).await?;
    forced
}

/// The machine of the second rank is off, which nobody says at first.
async fn is_off(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.client();
    let scene = Scene::begin(cluster, "fenced").await?;
    // What the machine has on its disk is given back only when it is back.
    suspend_bounds(cluster, true);
    let node = cluster.node(&scene.node)?;
    node.service(NodePart::Kubelet)?.kill();
    node.service(NodePart::Driver)?.kill();
    // What ran there is dead.
    scene.running.ranks.fail(1)?;
    let judged = is_forced_behind_a_fence(cluster, &scene).await;
    // Whatever was found, the next ones have nothing of it.
    let cleared = scene.gpu.clear(cluster).await;
    set_out_of_service(&client, &scene.node, false).await?;
    let node = cluster.node(&scene.node)?;
    node.start_kubelet()?;
    node.start_driver()?;
    let back = scene.is_back(cluster).await;
    suspend_bounds(cluster, false);
    judged?;
    cleared?;
    back?;
    scene.running.finishes(&client).await
}

/// Kubernetes' own garbage collector takes pods of nodes that are out of service away as well, a while after somebody said so. So it is away itself, and
/// whoever would make new pods, which is the same program, with it.
async fn is_forced_behind_a_fence(cluster: &mut Cluster, scene: &Scene) -> Result<()> {
    let client = cluster.client();
    wait_until_unreachable(&client, &scene.node).await?;
    let why = "the node is not Ready and may run it still";
    scene.is_evicted_and_hangs(&client, why).await?;
    scene.has_no_finalizer(&client).await?;
    let collector = Program::ControlPlane(ControlPlanePart::ControllerManager);
    cluster.service(collector)?.kill();
    let forced = async {
        always("without a fence it stays", STAYS, async || {
            let pod = scene.hanging(&client).await?;
            Ok(Progress::when(pod.is_some(), || "it is gone".to_owned()))
        })
        .await?;
        set_out_of_service(&client, &scene.node, true).await?;
        scene.is_forced(&client, "the node is out of service").await
    }
    .await;
    cluster.service(collector)?.start().await?;
    forced?;
    scene.runs_again(cluster).await
}

async fn a_pod_on_a_silent_node_is_deleted_by_force_once_administrator_and_owner_consent(
    cluster: &mut Cluster,
) -> Result<()> {
    restart_controller(cluster, &[SOON, WITH_CONSENT]).await?;
    let forced = is_silent(cluster).await;
    restart_controller(cluster, &[]).await?;
    forced
}

/// Kubelet and driver of the second rank hang, as if the network were cut; what they have started runs on.
async fn is_silent(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.client();
    let scene = Scene::begin(cluster, "consenting").await?;
    let node = cluster.node(&scene.node)?;
    for part in [NodePart::Kubelet, NodePart::Driver] {
        node.service(part)?.freeze();
    }
    let judged = is_forced_by_consent(cluster, &scene).await;
    // A kubelet that has missed how a pod went gives back what it held when it looks at all pods.
    suspend_bounds(cluster, true);
    let node = cluster.node(&scene.node)?;
    for part in [NodePart::Driver, NodePart::Kubelet] {
        node.service(part)?.thaw();
    }
    let back = scene.is_back(cluster).await;
    suspend_bounds(cluster, false);
    let cleared = scene.gpu.clear(cluster).await;
    judged?;
    back?;
    cleared?;
    scene.running.finishes(&client).await
}

/// Once the node is lost the gang goes on without the pod, which stays until its owner consents. Its devices stay where they are even then.
async fn is_forced_by_consent(cluster: &Cluster, scene: &Scene) -> Result<()> {
    let client = cluster.client();
    wait_until_unreachable(&client, &scene.node).await?;
    let why = "or consent by the annotation muster.dev/force-deletion";
    scene.is_evicted_and_hangs(&client, why).await?;
    scene.runs_again(cluster).await?;
    let pod = scene.hanging(&client).await?;
    ensure!(pod.is_some(), "it is gone, and its owner said nothing");
    scene.consents(&client).await?;
    let word = "the node is not Ready for long, and administrator and owner consent";
    scene.is_forced(&client, word).await?;
    let devices: Api<NodeDevices> = Api::all(client);
    let spec = devices.get(&scene.node).await?.spec;
    let permits = spec.permits.iter();
    let permits: Vec<(i64, bool)> = permits.map(|it| (it.attempt, it.withdrawn)).collect();
    ensure!(spec.lost && permits == [(1, true)], "{spec:?}");
    Ok(())
}

async fn on_a_node_that_is_ready_a_pod_that_hangs_is_waited_for_whoever_consents(
    cluster: &mut Cluster,
) -> Result<()> {
    restart_controller(cluster, &[SOON, WITH_CONSENT]).await?;
    let waited = is_ready(cluster).await;
    restart_controller(cluster, &[]).await?;
    waited
}

/// The process of the second rank cannot be killed for a while.
async fn is_ready(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.client();
    let scene = Scene::begin(cluster, "ready").await?;
    let node = cluster.node(&scene.node)?;
    node.set_runtime_faults(&json!({"hangStop": [{"pod": "train-"}]}))?;
    let judged = async {
        scene.consents(&client).await?;
        let why = "the node is Ready, where nothing is deleted by force";
        scene.is_evicted_and_hangs(&client, why).await?;
        always("it is waited for", STAYS, async || {
            let pod = scene.hanging(&client).await?;
            Ok(Progress::when(pod.is_some(), || "it is gone".to_owned()))
        })
        .await
    }
    .await;
    cluster.node(&scene.node)?.set_runtime_faults(&json!({}))?;
    let again = match judged {
        Ok(()) => scene.runs_again(cluster).await,
        failed => failed,
    };
    mended(cluster, &scene.gpu, again).await?;
    scene.running.finishes(&client).await
}

/// Whether what the observer gives time for may last.
fn suspend_bounds(cluster: &Cluster, suspended: bool) {
    if let Some(observer) = cluster.observer() {
        observer.suspend_bounds(suspended);
    }
}
