//! What the driver does about faults, where an administrator has given it a command for that: resets, checks before a fault is over, and checks of
//! GPUs that nobody uses. Without a command it does nothing of the kind (`docs/adr/0045-gpus-are-reset-by-a-command-under-a-mark.md`).
//!
//! * [`settings`], [`command`]: which commands, and how they are called. [`plan`]: what is due about a GPU, without IO.
//! * [`run`], [`processes`]: a command as processes that end, whatever it does. [`in_root`]: in the file system of the host's driver.
//!   [`crate::store::marks`]: which GPUs are kept for one, over a crash.
//! * [`reset`], [`check`]: what has to be so before, and what becomes of it. [`holders`]: who has a GPU open. [`others`]: who may open one. [`running`]: a check gives way to
//!   a claim.
//! * [`resetting`], [`validating`], [`checking`]: the tasks. [`refused`]: what keeps GPUs from being reset. [`tell`]: Events.
//!
//! **The driver never starts a node anew**, and resets nothing that anybody uses.

pub mod check;
pub mod checking;
pub mod command;
pub mod holders;
pub mod in_root;
pub mod others;
pub mod plan;
pub mod processes;
pub mod refused;
pub mod reset;
pub mod resetting;
pub mod run;
pub mod running;
pub mod settings;
pub mod tell;
pub mod validating;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use muster_api::NodeDevices;
use muster_serve::Shutdown;
use tokio::sync::watch;

use self::{
    command::Named,
    others::Others,
    running::Checks,
    settings::{Order, Remedies},
    tell::Teller,
};
use super::eye::Eye;
use crate::{
    inventory::{KnownGpu, KnownGpus},
    kubernetes::Kubernetes,
    metrics::DriverMetrics,
    store::Store,
};

/// What remedies need. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tools {
    /// What is known of faults.
    pub eye: Arc<Eye>,
    /// Where GPUs are kept for a command.
    pub store: Store,
    /// Which boot this is.
    pub boot_id: String,
    /// Tells this instance from every other.
    pub instance: String,
    /// The host's `/proc`.
    pub proc: PathBuf,
    /// The file system in which commands run; the driver's own without it.
    pub root: Option<PathBuf>,
    /// The GPUs.
    pub gpus: watch::Receiver<Option<KnownGpus>>,
    /// What others gave to containers.
    pub others: Others,
    /// Which checks run.
    pub checks: Checks,
    /// What is counted.
    pub metrics: DriverMetrics,
    /// Who tells people.
    pub teller: Teller,
}

/// What a start of them needs.
#[derive(Debug)]
pub struct Settings {
    /// Which commands.
    pub remedies: Remedies,
    /// What they need.
    pub tools: Tools,
    /// The API server.
    pub kubernetes: Kubernetes,
    /// The object of this node, as the watch shows it.
    pub node_devices: watch::Receiver<Option<Arc<NodeDevices>>>,
    /// Receives which GPUs would not be reset for their faults now, whatever the controller allows, and which would: by UUID, as far as that is known.
    pub hindered: watch::Sender<BTreeMap<String, bool>>,
}

/// Starts what there is a command for, until shutdown; and in any case what ends commands that an earlier driver left running.
pub fn spawn(settings: Settings, shutdown: &Shutdown) {
    let Settings {
        remedies,
        tools,
        kubernetes,
        node_devices,
        hindered,
    } = settings;
    let deep_check = remedies.deep_check();
    if let Some(validation) = remedies.validation() {
        let validating = validating::run(tools.clone(), validation, shutdown.clone());
        shutdown.spawn_until_stopped("check GPUs before their faults are over", validating);
    }
    if let Some((check, every)) = deep_check {
        let checking = checking::run(tools.clone(), check, every, shutdown.clone());
        shutdown.spawn_until_stopped("check GPUs that nobody uses", checking);
    }
    let resetting = resetting::Resetting::new(
        tools,
        remedies.reset(),
        kubernetes,
        node_devices,
        hindered,
        shutdown.clone(),
    );
    shutdown.spawn_until_stopped("reset GPUs", resetting.run());
}

impl Tools {
    /// The GPUs that answer.
    fn answering(&self) -> Vec<KnownGpu> {
        let known = self.gpus.borrow();
        let gpus = known.iter().flat_map(|known| &known.gpus);
        let answering = gpus.filter(|known| !known.gone && !known.silent);
        answering.cloned().collect()
    }

    /// Of these GPUs the one with this UUID.
    fn named<'a>(gpus: &'a [KnownGpu], uuid: &str) -> Option<&'a KnownGpu> {
        gpus.iter().find(|known| known.gpu.uuid == uuid)
    }
}

/// A command about these GPUs. An error says why they cannot be named.
fn words<'a>(
    tools: &Tools,
    order: &Order,
    gpus: impl Iterator<Item = &'a KnownGpu>,
) -> Result<Vec<String>, String> {
    let named = |known: &'a KnownGpu| {
        let gpu = &known.gpu;
        match tools.eye.backend().index(&gpu.uuid) {
            Ok(nvml_index) => Ok(Named { gpu, nvml_index }),
            Err(error) => Err(format!(
                "the number of GPU {} cannot be told: {error}",
                gpu.uuid
            )),
        }
    };
    let named: Vec<Named<'a>> = gpus.map(named).collect::<Result<_, String>>()?;
    Ok(order.template.about(&named))
}

/// UUIDs, for people.
fn listed(uuids: &BTreeSet<String>) -> String {
    let uuids: Vec<&str> = uuids.iter().map(String::as_str).collect();
    uuids.join(", ")
}
