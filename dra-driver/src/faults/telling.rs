//! Tells of faults and anomalies: to the controller, in the status of the node's NodeDevices, and to people, by Events on the Node.
//!
//! A GPU that NVML does not list any more, without an XID or a word, has no fault that is remembered: it is a state of the node's list, and over when the GPU is
//! back, or after a restart of the machine without it. It is told all the same, as a fault of the class that falling off the bus has in the catalogue (XID 79): whoever
//! repairs machines reads this list by the condition that is made of it.
//!
//! The taints go their own way and do not wait for this (`slices`). An Event is made once for each fault that was not there before; what is
//! remembered from before the program started was told then. The status is compared with what the watch shows, so that a write that is lost, or
//! that another instance overwrites during an update, is made again.
//!
//! **Who else writes the status.** The machine that prepares claims writes all of it but this list (`kubernetes`), and a merge leaves what it does
//! not name. This write names the list alone, and the UID of the object that was seen: a NodeDevices that was made anew gets what is true when it
//! is seen. There is no version to compare: whoever else writes the list is this driver, which knows best. Twice, or late, it says what was so then,
//! and the next look puts it right.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::{core::v1::ObjectReference, events::v1::Event};
use muster_api::{FaultyPart, GpuFault, NodeDevices, NodeDevicesStatus, Reason};
use muster_cluster::text::truncate;
use muster_device::{
    Gpu,
    faults::{Fault, FaultClass, FaultState, GpuFaults, Scope},
};
use muster_serve::{Shutdown, event::Told};
use tokio::sync::watch;

use crate::{inventory::KnownGpus, kubernetes::Kubernetes};

/// What Events name as their reporter.
const REPORTER: &str = "muster.dev/dra-driver";
/// Longest note; the API takes 1,024 bytes.
const NOTE_BYTES: usize = 1_024;
/// Time in which what comes together is told together. A storm of faults is a write a second.
const SETTLE: Duration = Duration::from_secs(1);
/// Pause after what could not be told.
const RETRY: Duration = Duration::from_secs(5);
/// How often it is looked at without a reason.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// What telling needs.
#[derive(Debug)]
pub struct Settings {
    /// The API server.
    pub kubernetes: Kubernetes,
    /// What is wrong; has what was remembered.
    pub faults: watch::Receiver<FaultState>,
    /// The GPUs.
    pub gpus: watch::Receiver<Option<KnownGpus>>,
    /// The object of this node, as the watch shows it.
    pub node_devices: watch::Receiver<Option<Arc<NodeDevices>>>,
    /// Which GPUs would not be reset for their faults now, and which would: by UUID, as far as that is known.
    pub hindered: watch::Receiver<BTreeMap<String, bool>>,
}

/// Starts to tell, until shutdown.
pub fn spawn(settings: Settings, shutdown: &Shutdown) {
    let announced = outlines(&settings.faults.borrow()).into_keys().collect();
    let teller = Teller {
        settings,
        announced,
    };
    shutdown.spawn_until_stopped("tell of faults", teller.run());
}

/// A fault, however often it was seen, and of whatever causes.
type Outline = (String, FaultClass, Scope);

struct Teller {
    settings: Settings,
    /// Of which there was an Event.
    announced: BTreeSet<Outline>,
}

impl Teller {
    async fn run(mut self) {
        loop {
            let is_told = self.tell().await;
            let wait = if is_told { LOOK_AGAIN } else { RETRY };
            let settings = &mut self.settings;
            tokio::select! {
                Ok(()) = settings.faults.changed(), if is_told => {}
                Ok(()) = settings.gpus.changed(), if is_told => {}
                Ok(()) = settings.node_devices.changed(), if is_told => {}
                Ok(()) = settings.hindered.changed(), if is_told => {}
                () = tokio::time::sleep(wait) => continue,
            }
            tokio::time::sleep(SETTLE).await;
        }
    }

    /// Whether all is told, or nobody is there to be told.
    async fn tell(&mut self) -> bool {
        let faults = self.settings.faults.borrow_and_update().clone();
        let known = self.settings.gpus.borrow_and_update().clone();
        let object = self.settings.node_devices.borrow_and_update().clone();
        let hindered = self.settings.hindered.borrow_and_update().clone();
        let are_announced = self.announce(&faults, known.as_ref()).await;
        // Which GPUs there are has to be known: a list without a GPU says that nothing is wrong with it.
        let (Some(known), Some(object)) = (known, object) else {
            return are_announced;
        };
        let said = object
            .status
            .as_ref()
            .and_then(|status| status.faults.as_ref());
        let before = said.map(Vec::as_slice).unwrap_or_default();
        let listed = listed(&faults, &known, &hindered, before, Timestamp::now());
        if said == Some(&listed) {
            return are_announced;
        }
        let uid = object.metadata.uid.as_deref().unwrap_or_default();
        match self.settings.kubernetes.write_faults(uid, &listed).await {
            Ok(()) => are_announced,
            Err(error) => {
                tracing::warn!(%error, "the controller could not be told of faults; trying again");
                false
            }
        }
    }

    async fn announce(&mut self, faults: &FaultState, known: Option<&KnownGpus>) -> bool {
        let standing = outlines(faults);
        self.announced
            .retain(|outline| standing.contains_key(outline));
        let new = standing
            .iter()
            .filter(|(outline, _)| !self.announced.contains(*outline));
        let new: Vec<(Outline, Fault)> = new
            .map(|(outline, fault)| (outline.clone(), (*fault).clone()))
            .collect();
        if new.is_empty() {
            return true;
        }
        let kubernetes = &self.settings.kubernetes;
        let node = kubernetes.node();
        // As kubelets do.
        let uid = kubernetes.node_uid().await;
        let uid = uid.unwrap_or_else(|_| node.to_owned());
        for (outline, fault) in new {
            let device = known.and_then(|known| {
                let mut gpus = known.gpus.iter();
                let gpu = gpus.find(|known| known.gpu.uuid == outline.0)?;
                Some(gpu.gpu.device_name())
            });
            let note = note(&outline.0, device.as_deref(), &fault);
            let event = event(node, &uid, fault.class, note, Timestamp::now());
            if let Err(error) = kubernetes.create_event(&event).await {
                tracing::warn!(%error, "a fault could not be told by an Event");
                return false;
            }
            self.announced.insert(outline);
        }
        true
    }
}

fn outlines(state: &FaultState) -> BTreeMap<Outline, &Fault> {
    let gpus = state.gpus().iter();
    gpus.flat_map(|(uuid, faults)| {
        let all = faults.all().iter();
        all.map(move |fault| ((uuid.clone(), fault.class, fault.scope), fault))
    })
    .collect()
}

/// What is wrong with the GPUs that the node has, the worst first. `before` is what was said last. Whether a GPU would be reset stands as it was said of that very
/// fault, as long as nothing else is known: a driver that starts anew has not looked yet.
fn listed(
    state: &FaultState,
    known: &KnownGpus,
    hindered: &BTreeMap<String, bool>,
    before: &[GpuFault],
    now: Timestamp,
) -> Vec<GpuFault> {
    let mut found: Vec<(FaultClass, GpuFault)> = Vec::new();
    for gpu in &known.gpus {
        let faults = state.gpus().get(&gpu.gpu.uuid).map(GpuFaults::all);
        let all = faults.unwrap_or_default().iter();
        let first = found.len();
        found.extend(all.map(|fault| {
            let mut told = GpuFault {
                device: gpu.gpu.device_name(),
                gpu: gpu.gpu.uuid.clone(),
                part: match fault.scope {
                    Scope::Gpu => None,
                    Scope::Slice(placement) => Some(FaultyPart {
                        start: i64::from(placement.start),
                        size: i64::from(placement.size),
                    }),
                },
                class: fault.class.to_string(),
                causes: fault.causes.keys().take(MOST_CAUSES).cloned().collect(),
                since: time(fault.first_seen_unix_seconds),
                reset_hindered: false,
            };
            // Of others, which would be reset only where NVIDIA's driver asks for it, the controller does not count the node.
            if fault.class == FaultClass::Reset {
                let known = hindered.get(&told.gpu).copied();
                told.reset_hindered = known.unwrap_or_else(|| was_hindered(&told, before));
            }
            (fault.class, told)
        }));
        if gpu.gone {
            let mut own = found.iter_mut().skip(first);
            let is_same = |(class, fault): &&mut (FaultClass, GpuFault)| {
                *class == CLASS_OF_LOST && fault.part.is_none()
            };
            match own.find(is_same) {
                Some((_, fault)) => add_lost(&mut fault.causes),
                None => found.push((CLASS_OF_LOST, lost(&gpu.gpu, before, now))),
            }
        }
    }
    found.sort_by(|(one_class, one), (other_class, other)| {
        let key = |fault: &GpuFault| {
            let part = fault.part.map(|part| (part.start, part.size));
            (fault.device.clone(), part)
        };
        other_class
            .cmp(one_class)
            .then_with(|| key(one).cmp(&key(other)))
    });
    let found = found.into_iter().map(|(_, fault)| fault);
    found.take(NodeDevicesStatus::MOST_FAULTS).collect()
}

/// Whether it was said of this very fault that it would not be reset for it.
fn was_hindered(fault: &GpuFault, before: &[GpuFault]) -> bool {
    let mut before = before.iter();
    before.any(|it| {
        let key = |it: &GpuFault| (it.part, it.since.clone());
        let is_same = it.gpu == fault.gpu && it.class == fault.class && key(it) == key(fault);
        is_same && it.reset_hindered
    })
}

/// The cause of a GPU that NVML does not list any more.
const LOST: &str = "GPU lost";
/// Its class: that of XID 79.
const CLASS_OF_LOST: FaultClass = FaultClass::Reboot;

/// It is lost, and nothing else of the kind is known of it. Since when is remembered where it is told: a driver that starts anew finds it there, and of two writes
/// before the watch shows the first the later time stays.
fn lost(gpu: &Gpu, before: &[GpuFault], now: Timestamp) -> GpuFault {
    let mut before = before.iter();
    let is_this =
        |fault: &&GpuFault| fault.gpu == gpu.uuid && fault.causes.iter().any(|cause| cause == LOST);
    let since = before.find(is_this).map(|fault| fault.since.clone());
    GpuFault {
        device: gpu.device_name(),
        gpu: gpu.uuid.clone(),
        part: None,
        class: CLASS_OF_LOST.to_string(),
        causes: vec![LOST.to_owned()],
        since: since.unwrap_or_else(|| time(now.as_second())),
        reset_hindered: false,
    }
}

/// To causes, which stay ascending and as many as may be.
fn add_lost(causes: &mut Vec<String>) {
    let place = causes.partition_point(|cause| cause.as_str() < LOST);
    causes.insert(place.min(MOST_CAUSES - 1), LOST.to_owned());
    causes.truncate(MOST_CAUSES);
}

/// Most causes of a fault that are listed.
const MOST_CAUSES: usize = 16;

fn time(unix_seconds: i64) -> String {
    let time = Timestamp::from_second(unix_seconds);
    time.unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

/// For people.
fn note(uuid: &str, device: Option<&str>, fault: &Fault) -> String {
    let part = match fault.scope {
        Scope::Gpu => String::new(),
        Scope::Slice(placement) => format!(
            ", memory slices {} to {}",
            placement.start,
            placement.end().saturating_sub(1)
        ),
    };
    let what = if fault.class.is_fault() {
        "a fault"
    } else {
        "an anomaly"
    };
    let mut note = format!(
        "GPU {uuid} ({}{part}) has {what} of the class {}: {}",
        device.unwrap_or("no device of the node"),
        fault.class,
        fault.message()
    );
    truncate(&mut note, NOTE_BYTES);
    note
}

fn event(node: &str, node_uid: &str, class: FaultClass, note: String, now: Timestamp) -> Event {
    let reason = if class.is_fault() {
        Reason::GpuFault
    } else {
        Reason::GpuAnomaly
    };
    let told = Told {
        regarding: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            uid: Some(node_uid.to_owned()),
            ..ObjectReference::default()
        },
        action: "Detection",
        reason: reason.to_string(),
        note,
        is_warning: class.is_fault(),
        reporter: REPORTER,
        instance: node,
    };
    told.at(now)
}

#[cfg(test)]
mod tests;
