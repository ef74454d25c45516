//! Tells of faults and anomalies: to the controller, in the status of the node's NodeDevices, and to people, by Events on the Node.
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
use muster_device::faults::{Fault, FaultClass, FaultState, Scope};
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
        let are_announced = self.announce(&faults, known.as_ref()).await;
        // Which GPUs there are has to be known: a list without a GPU says that nothing is wrong with it.
        let (Some(known), Some(object)) = (known, object) else {
            return are_announced;
        };
        let listed = listed(&faults, &known);
        let said = object
            .status
            .as_ref()
            .and_then(|status| status.faults.as_ref());
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

/// What is wrong with the GPUs that the node has, the worst first.
fn listed(state: &FaultState, known: &KnownGpus) -> Vec<GpuFault> {
    let mut found: Vec<(FaultClass, GpuFault)> = Vec::new();
    for gpu in &known.gpus {
        let Some(faults) = state.gpus().get(&gpu.gpu.uuid) else {
            continue;
        };
        let all = faults.all().iter();
        found.extend(all.map(|fault| {
            let told = GpuFault {
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
            };
            (fault.class, told)
        }));
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
mod tests {
    use muster_device::{
        Listed, ListedGpu, Placement,
        faults::{Cause, Device, KnownAddresses, Observation},
    };

    use super::*;
    use crate::inventory::fixtures;

    fn known(count: u32) -> KnownGpus {
        let gpus = (0..count).map(|index| ListedGpu {
            gpu: fixtures::gpu(
                &format!("GPU-{index}"),
                index,
                &format!("0000:{index:02x}:00.0"),
            ),
            silent: None,
        });
        let listed = Listed {
            gpus: gpus.collect(),
            unidentified: Vec::new(),
        };
        KnownGpus::default().after("boot", &listed)
    }

    fn see(state: &mut FaultState, gpu: &str, class: FaultClass, scope: Scope, xid: u32) {
        let addresses = KnownAddresses([(gpu.to_owned(), None)].into());
        let observation = Observation {
            class,
            scope,
            cause: Cause::Xid(xid),
        };
        let _ = state.observe(
            &Device::Uuid(gpu.to_owned()),
            observation,
            &addresses,
            1_790_000_000,
        );
    }

    #[test]
    fn the_controller_is_told_the_worst_first_of_gpus_that_the_node_has() {
        let mut state = FaultState::default();
        let slice = Scope::Slice(Placement { start: 2, size: 2 });
        see(&mut state, "GPU-1", FaultClass::Info, Scope::Gpu, 63);
        see(&mut state, "GPU-1", FaultClass::Contained, slice, 94);
        see(&mut state, "GPU-0", FaultClass::Reboot, Scope::Gpu, 79);
        see(
            &mut state,
            "GPU-exchanged",
            FaultClass::Retire,
            Scope::Gpu,
            1,
        );
        let listed = listed(&state, &known(2));
        let classes: Vec<&str> = listed.iter().map(|it| it.class.as_str()).collect();
        assert_eq!(classes, ["Reboot", "Contained", "Info"]);
        let contained = &listed[1];
        assert_eq!(contained.device, "gpu-1");
        assert_eq!(contained.part, Some(FaultyPart { start: 2, size: 2 }));
        assert_eq!(contained.causes, ["XID 94"]);
        assert!(contained.since.starts_with("2026-"), "{}", contained.since);
    }

    #[test]
    fn however_much_is_wrong_what_is_told_is_small() {
        let mut state = FaultState::default();
        for gpu in 0..16 {
            for start in 0..8 {
                let scope = Scope::Slice(Placement { start, size: 1 });
                for xid in 0..40 {
                    let gpu = format!("GPU-{gpu}");
                    see(&mut state, &gpu, FaultClass::Contained, scope, xid);
                }
            }
        }
        let listed = listed(&state, &known(16));
        assert_eq!(listed.len(), NodeDevicesStatus::MOST_FAULTS);
        let bytes = serde_json::to_vec(&listed).unwrap().len();
        assert!(bytes < 64 * 1_024, "{bytes}");
    }

    #[test]
    fn people_are_told_what_is_wrong_with_which_gpu() {
        let mut state = FaultState::default();
        let slice = Scope::Slice(Placement { start: 2, size: 2 });
        see(&mut state, "GPU-1", FaultClass::Contained, slice, 94);
        let (outline, fault) = outlines(&state).pop_first().unwrap();
        let note = note(&outline.0, Some("gpu-1"), fault);
        assert_eq!(
            note,
            "GPU GPU-1 (gpu-1, memory slices 2 to 3) has a fault of the class Contained: XID 94"
        );
        let event = event("node-0", "u", fault.class, note, Timestamp::UNIX_EPOCH);
        assert_eq!(event.reason.as_deref(), Some("GpuFault"));
        assert_eq!(event.type_.as_deref(), Some("Warning"));
    }
}
