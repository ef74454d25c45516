//! Faults of GPUs, as tests bring them about: on the hardware, which the mock NVML library shows, and in no other way.
//!
//! ```text
//! let gpu = TargetGpu::of(cluster.node("node-0")?, 3)?;
//! gpu.inject(Fault::Xid(48))?;
//! gpu.wait_until_tainted(&client, keys::TAINT_FAULT, "Reset").await?;
//! wait_for_fault_eviction(&client, namespace, &gangs::of_job("train"), &gpu).await?;
//! gangs::wait_until_running_again(&client, namespace, &gangs::of_job("train"), 2).await?;
//! gpu.clear(&cluster).await?;
//! ```
//!
//! Each is written down first, for the observer ([`journal`]): what is done to the hardware in another way is for it a fault that
//! never was, and an eviction for it one without a cause. Nothing is evicted for faults unless Muster is installed with the value
//! `recovery.mode=Enforce`, as it is in tests.

pub mod journal;

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::resource::v1::{DeviceTaint, ResourceSlice};
use kube::{Api, Client, ResourceExt, api::ListParams};
use muster_api::{Breaker, Gang, Ledger, Reason, gang::Eviction, keys};
use nvidia_ml_mock::{Card, Event, RemappedRows, State, StateFile};
use serde::{Deserialize, Serialize};

use self::journal::{Journal, What};
use crate::{
    cluster::Cluster,
    gangs,
    install::RELEASE,
    kubernetes::{LIMIT, Progress, eventually},
    node::{BOOT_ID_FILE, Node, NodePart},
    process::Launch,
};

/// NVML's bit of events that are XIDs.
const XID: u64 = 8;
/// NVML's bit of clocks that are slowed down since the GPU is too hot (`HW_THERMAL_SLOWDOWN`).
const THERMAL_SLOWDOWN: u64 = 0x40;
/// The driver wants the GPU to be reset (NVML's field 230).
const RESET_ACTION: u32 = 1;
/// The driver wants the node to be rebooted.
const REBOOT_ACTION: u32 = 2;
/// The keys by which a device is told to be faulty or gone.
const KEYS: [&str; 4] = [
    keys::TAINT_FAULT,
    keys::TAINT_LINK_FAULT,
    keys::TAINT_NODE_FAULT,
    keys::TAINT_GONE,
];

/// What breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Fault {
    /// The driver reports this XID of the whole GPU, and wants done with it what NVIDIA's catalogue says: a reset, a reboot of the
    /// node, or nothing.
    Xid(u32),
    /// NVML does not find it any more, without a word.
    Lost,
    /// A row of its memory is broken, and there is no spare one.
    RowRemapFailure,
    /// It is slowed down for heat: no fault, but an anomaly.
    TooHot,
}

/// What may end a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Mend {
    /// The GPU was reset, and all that it says of itself is in order. One that was lost is back.
    Reset,
    /// The machine was started anew.
    Reboot,
    /// A person said that it is in order.
    Operator,
}

/// A GPU that faults are injected into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetGpu {
    /// Its node.
    pub node: String,
    /// The device that is all of it: `gpu-3`.
    pub device: String,
    /// Its UUID.
    pub uuid: String,
    hardware: StateFile,
    journal: Journal,
}

impl TargetGpu {
    /// The GPU with this number, from 0, in PCI order: device `gpu-NUMBER` of the node.
    pub fn of(node: &Node, number: usize) -> Result<Self> {
        let uuid = node.gpu_uuids().into_iter().nth(number);
        let uuid =
            uuid.with_context(|| format!("node {} has no GPU with number {number}", node.name()))?;
        Ok(Self {
            node: node.name().to_owned(),
            device: format!("gpu-{number}"),
            uuid,
            hardware: node.hardware(),
            journal: Journal::of(node.directory()),
        })
    }

    /// The GPU of a device of a node: `gpu-3`, or a slice of it, `gpu-3-mig-…`.
    pub fn of_device(cluster: &Cluster, node: &str, device: &str) -> Result<Self> {
        let number = device.strip_prefix("gpu-").map(|rest| {
            let digits = rest.split('-').next().unwrap_or_default();
            digits.parse::<usize>()
        });
        let number =
            number.with_context(|| format!("{device} is no GPU, nor a slice of one"))??;
        Self::of(node_of(cluster, node)?, number)
    }

    /// The GPUs that the pods of a gang have, by rank.
    pub async fn held_by(cluster: &Cluster, gang: &Gang) -> Result<BTreeMap<u32, Vec<Self>>> {
        let client = cluster.client();
        let namespace = gang.namespace().context("a Gang has a namespace")?;
        let granted = gangs::granted(&client, &namespace).await?;
        let pods = gangs::pods(&client, gang).await?;
        let held = pods.into_iter().map(|(rank, pod)| {
            let devices = granted.get(&pod.name_any()).into_iter().flatten();
            let gpus = devices.map(|(node, device)| Self::of_device(cluster, node, device));
            Ok((rank, gpus.collect::<Result<Vec<Self>>>()?))
        });
        held.collect()
    }

    /// How evictions name the device: `gpu.muster.dev/NODE/gpu-3`.
    pub fn full_device_name(&self) -> String {
        format!("{}/{}/{}", keys::DRIVER, self.node, self.device)
    }

    /// Breaks it. When that was: just before the hardware shows it.
    pub fn inject(&self, fault: Fault) -> Result<Instant> {
        self.journal.note(&self.uuid, What::Fault(fault))?;
        let at = Instant::now();
        self.hardware
            .change(|state| fault.show(state, &self.uuid))?;
        Ok(at)
    }

    /// The hardware is in order again, as after a reset. Of faults of the class Reset, and of those that are milder, that is a proof, which
    /// the driver sees when it next looks, within ten seconds; of worse ones it is none.
    pub fn reset(&self) -> Result<()> {
        self.journal.note(&self.uuid, What::Mend(Mend::Reset))?;
        self.hardware.change(|state| {
            state.lost.retain(|lost| *lost != self.uuid);
            put_in_order(state.card(&self.uuid));
        })?;
        Ok(())
    }

    /// Says as an administrator that it is in order, by the driver's own command, and returns the answer; an error if it is not believed. It
    /// takes about a second.
    pub async fn say_that_it_is_mended(&self, cluster: &Cluster) -> Result<String> {
        self.journal.note(&self.uuid, What::Mend(Mend::Operator))?;
        let program = cluster.programs().path("muster-dra-driver");
        let launch = node_of(cluster, &self.node)?.launch("mended", program);
        let launch = launch
            .arg("--mended")
            .arg(self.uuid.as_str())
            .arg(format!("--node-name={}", self.node));
        launch.output(2 * LIMIT).await
    }

    /// Mends all that is wrong with it, and waits until nobody says otherwise.
    pub async fn clear(&self, cluster: &Cluster) -> Result<()> {
        let client = cluster.client();
        self.reset()?;
        self.wait_until_untainted(&client, &[keys::TAINT_GONE])
            .await?;
        self.say_that_it_is_mended(cluster).await?;
        self.wait_until_untainted(&client, &KEYS).await
    }

    /// The taints of its device, as they are published.
    pub async fn taints(&self, client: &Client) -> Result<Vec<DeviceTaint>> {
        let slices: Api<ResourceSlice> = Api::all(client.clone());
        let slices = slices.list(&ListParams::default()).await?;
        let mut devices = slices
            .iter()
            .filter(|slice| slice.spec.driver == keys::DRIVER && slice.spec.pool.name == self.node)
            .flat_map(|slice| slice.spec.devices.iter().flatten());
        let device = devices.find(|device| device.name == self.device);
        let device =
            device.with_context(|| format!("{} is not published", self.full_device_name()))?;
        Ok(device.taints.clone().unwrap_or_default())
    }

    /// Waits until its device has the taint of this key with this value, NoSchedule: a fault class, or nothing
    /// ([`keys::TAINT_GONE`]).
    pub async fn wait_until_tainted(
        &self,
        client: &Client,
        key: &str,
        value: &str,
    ) -> Result<DeviceTaint> {
        let name = self.full_device_name();
        let what = format!("{name} has the taint {key}={value}");
        eventually(&what, LIMIT, async || {
            let taints = self.taints(client).await?;
            let is_so = |taint: &&DeviceTaint| {
                taint.key == key
                    && taint.value.as_deref().unwrap_or_default() == value
                    && taint.effect == "NoSchedule"
            };
            Ok(match taints.iter().find(is_so) {
                Some(found) => Progress::Done(found.clone()),
                None => Progress::NotYet(format!("{taints:?}")),
            })
        })
        .await
    }

    /// Waits until its device has no taint of these keys.
    pub async fn wait_until_untainted(&self, client: &Client, keys: &[&str]) -> Result<()> {
        let what = format!("{} has no taint {keys:?}", self.full_device_name());
        eventually(&what, LIMIT, async || {
            let taints = self.taints(client).await?;
            let stands = taints.iter().any(|taint| keys.contains(&&*taint.key));
            Ok(Progress::when(!stands, || format!("{taints:?}")))
        })
        .await
    }
}

impl Fault {
    /// The hardware is so from now on.
    fn show(self, state: &mut State, gpu: &str) {
        match self {
            Self::Xid(code) => {
                let action = recovery_action(code);
                let card = state.card(gpu);
                card.recovery_action = card.recovery_action.max(action);
                state.report(Event {
                    gpu: gpu.to_owned(),
                    kind: XID,
                    data: u64::from(code),
                    ..Event::default()
                });
            }
            Self::Lost => {
                if !state.lost.iter().any(|lost| lost == gpu) {
                    state.lost.push(gpu.to_owned());
                }
            }
            Self::RowRemapFailure => state.card(gpu).remapped_rows.has_failed = true,
            Self::TooHot => state.card(gpu).throttle_reasons |= THERMAL_SLOWDOWN,
        }
    }
}

/// What NVIDIA's driver wants done after an XID, by the catalogue's immediate resolution: `RESET_GPU`, `RESTART_BM`, or nothing.
fn recovery_action(xid: u32) -> u32 {
    match xid {
        46 | 48 | 62 | 64 | 95 | 109 | 110 | 119 | 120 | 136 | 140 | 143 | 155 | 156 | 158 => {
            RESET_ACTION
        }
        79 | 151 => REBOOT_ACTION,
        _ => 0,
    }
}

/// What a card says of itself is in order. Its slices stay.
fn put_in_order(card: &mut Card) {
    card.recovery_action = 0;
    card.remapped_rows = RemappedRows::default();
    card.throttle_reasons = 0;
}

/// The machine is started anew: what ran there is dead, its hardware is in order. The driver has to be installed with
/// `driver.extraArgs={--boot-id-file=/run/machine/boot-id}` ([`crate::node::BOOT_ID_ARGUMENT`]), since the tests cannot give the machine another boot id.
pub async fn reboot(cluster: &mut Cluster, node: &str) -> Result<()> {
    let node = cluster.node(node)?;
    let journal = Journal::of(node.directory());
    for part in [NodePart::Driver, NodePart::Kubelet, NodePart::Runtime] {
        node.service(part)?.kill();
    }
    for gpu in node.gpu_uuids() {
        journal.note(&gpu, What::Mend(Mend::Reboot))?;
    }
    node.hardware().change(|state| {
        state.lost.clear();
        state.cards.values_mut().for_each(put_in_order);
    })?;
    let boot_id = node.directory().join(BOOT_ID_FILE);
    let before = fs::read_to_string(&boot_id)?;
    fs::write(&boot_id, format!("{}-again", before.trim()))?;
    node.service(NodePart::Runtime)?.start().await?;
    node.service(NodePart::Kubelet)?.start().await?;
    node.service(NodePart::Driver)?.start().await
}

/// Waits until the Gang says that an attempt of it was evicted for a fault of this GPU.
pub async fn wait_for_fault_eviction(
    client: &Client,
    namespace: &str,
    beginning: &str,
    gpu: &TargetGpu,
) -> Result<(Gang, Eviction)> {
    let device = gpu.full_device_name();
    let what = format!("gang {namespace}/{beginning}* is evicted for a fault of {device}");
    eventually(&what, LIMIT, async || {
        let gang = gangs::find(client, namespace, beginning).await?;
        let gang = gang.context("there is no such Gang")?;
        let status = gang.status.clone().unwrap_or_default();
        let is_so = |it: &&Eviction| {
            let fault = it.fault.as_ref();
            it.reason == Reason::DeviceFault && fault.is_some_and(|fault| fault.device == device)
        };
        // The latest counts.
        let found = status.evictions.iter().rev().find(is_so).cloned();
        Ok(match found {
            Some(eviction) => Progress::Done((gang, eviction)),
            None => Progress::NotYet(format!(
                "it is {:?} in attempt {}, {:?}, {:?}",
                status.phase, status.attempt, status.conditions, status.evictions
            )),
        })
    })
    .await
}

/// Fails unless the Gang was evicted for faults so many times, in all its life (of which the last eight evictions are told).
pub async fn ensure_fault_evictions(
    client: &Client,
    namespace: &str,
    beginning: &str,
    expected: usize,
) -> Result<()> {
    let gang = gangs::find(client, namespace, beginning).await?;
    let status = gang.context("there is no such Gang")?.status;
    let evictions = status.unwrap_or_default().evictions;
    let of_faults = evictions
        .iter()
        .filter(|it| it.reason == Reason::DeviceFault);
    ensure!(
        of_faults.count() == expected,
        "gang {namespace}/{beginning}* was to be evicted for faults {expected} times: {evictions:?}"
    );
    Ok(())
}

/// Waits until the circuit breaker is open, or closed; what the Ledger says of it.
pub async fn wait_for_breaker(client: &Client, is_open: bool) -> Result<Breaker> {
    let word = if is_open { "open" } else { "closed" };
    let what = format!("the circuit breaker is {word}");
    let ledgers: Api<Ledger> = Api::all(client.clone());
    eventually(&what, LIMIT, async || {
        let ledger = ledgers.get(keys::LEDGER_NAME).await?;
        let breaker = ledger.spec.breaker;
        Ok(if breaker.opened_at.is_some() == is_open {
            Progress::Done(breaker)
        } else {
            Progress::NotYet(format!("{breaker:?}"))
        })
    })
    .await
}

/// Closes the circuit breaker as an administrator does, by the controller's own command; what it says.
pub async fn reset_breaker(cluster: &Cluster) -> Result<String> {
    let kubeconfig = format!("{RELEASE}-controller.kubeconfig");
    let kubeconfig = cluster.control_plane.directory().join(kubeconfig);
    let program = cluster.programs().path("muster-controller");
    let launch = Launch::new("reset-breaker", program)
        .arg("reset-breaker")
        .arg(format!("--kubeconfig={}", kubeconfig.display()));
    launch.output(Duration::from_secs(30)).await
}

fn node_of<'a>(cluster: &'a Cluster, name: &str) -> Result<&'a Node> {
    let mut nodes = cluster.nodes.iter();
    let node = nodes.find(|node| node.name() == name);
    node.with_context(|| format!("the cluster has no node {name}"))
}
