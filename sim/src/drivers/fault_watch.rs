//! What a driver knows of its GPUs' faults: the state that ships, the rules by which that begins and grows ([`remembering`]), and around them a small
//! state of the program's shell.
//!
//! The newest instance reads the kernel's log line by line, keeps what it has seen on the node's disk, and only then tells it: first to the machine
//! that prepares claims, then by the taints of its slice. A person's word, or what it finds when it looks, takes a fault off. Each of these is a step
//! of its own, so that a crash can come between any two: what was seen and is not on the disk is read again from the log.
//!
//! Simpler than the program: of two instances the newer one alone watches; a disk that fails is that of the records; and GPUs are looked at when there is
//! something to find.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::resource::v1::{Device as PublishedDevice, DeviceTaint, ResourceSlice},
    apimachinery::pkg::apis::meta::v1::Time,
};
use muster_api::keys::{TAINT_FAULT, TAINT_LINK_FAULT, TAINT_NODE_FAULT};
use muster_dra_driver::{
    faults::{
        Catalogue, Device, Fault, FaultState, KnownAddresses, LogPosition, Proof, Recovery, Scope,
        Validation,
        remembering::{self, FaultBugs},
    },
    prepare::Input,
};

use super::Drivers;
use crate::{
    api_server::{ApiServer, Precondition},
    fixtures,
    gpu_node::GpuNode,
};

/// A step about faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultStep {
    /// What is on the disk is loaded.
    Load,
    /// The next line of the log is read.
    Hear,
    /// What has changed is written to the disk.
    Keep,
    /// The machine that prepares claims is told.
    Tell,
    /// The taints are published.
    Publish,
    /// The GPUs are looked at, and whoever says that one is mended is answered.
    Look,
}

/// Taints that faults make, each with its value.
type Taints = BTreeMap<&'static str, String>;

/// What an instance knows.
#[derive(Debug)]
pub(super) struct FaultWatch {
    /// Which instance.
    instance: u64,
    state: FaultState,
    /// What is on the disk, as far as it knows.
    kept: FaultState,
    /// What it has told.
    told: FaultState,
    /// Whether whoever says that a GPU is mended is answered once that is on the disk. (If the driver ends before, they say it again.)
    owes_answer: bool,
    bugs: FaultBugs,
}

impl FaultWatch {
    fn load(instance: u64, node: &GpuNode, bugs: FaultBugs) -> Self {
        let file = node.faults_file.as_deref();
        let remembered = file.and_then(|file| serde_json::from_str(file).ok());
        let state = remembering::begin(remembered, &node.boot_id, bugs);
        Self {
            instance,
            kept: state.clone(),
            told: state.clone(),
            state,
            owes_answer: false,
            bugs,
        }
    }

    /// How many lines of the log it has read.
    fn lines_read(&self) -> usize {
        let read = self.state.log().map_or(0, |position| position.sequence);
        usize::try_from(read).unwrap_or(usize::MAX)
    }

    fn steps(&self, api: &ApiServer, node: &GpuNode) -> Vec<FaultStep> {
        let has_read_all = self.lines_read() >= node.faults.logged().len();
        let is_kept = self.state == self.kept;
        let is_told = self.state == self.told;
        let offers = [
            (FaultStep::Hear, !has_read_all),
            (FaultStep::Keep, !is_kept),
            (FaultStep::Tell, is_kept && !is_told),
            (FaultStep::Publish, is_unpublished(&self.told, api, node)),
            (
                FaultStep::Look,
                has_read_all
                    && (!node.faults.said().is_empty() && !self.owes_answer
                        || !self.state.gpus().is_empty() && self.looked_at(node) != self.state),
            ),
        ];
        let offers = offers.into_iter().filter(|(_, is_due)| *is_due);
        offers.map(|(step, _)| step).collect()
    }

    fn hear(&mut self, node: &GpuNode, now_unix_seconds: i64) {
        let line = self.lines_read();
        let Some((gpu, observation)) = node.faults.logged().get(line) else {
            return;
        };
        let names = (0..node.shape.gpus).map(|gpu| fixtures::gpu_uuid(&node.shape.name, gpu));
        let known = KnownAddresses(names.map(|uuid| (uuid, None)).collect());
        let uuid = fixtures::gpu_uuid(&node.shape.name, *gpu);
        let _ = remembering::see(
            &mut self.state,
            &Catalogue::shipped(),
            &known,
            &Device::Uuid(uuid),
            *observation,
            now_unix_seconds,
            self.bugs,
        );
        self.state.read_log(position(line + 1));
    }

    /// What it would know after a look at all GPUs.
    fn looked_at(&self, node: &GpuNode) -> FaultState {
        let mut state = self.state.clone();
        // What is seen from here on is newer than all that this look proves.
        let mark = state.mark();
        for gpu in 0..node.shape.gpus {
            let uuid = fixtures::gpu_uuid(&node.shape.name, gpu);
            if !state.gpus().contains_key(&uuid) {
                continue;
            }
            let condition = node.faults.condition(gpu);
            let validation = Validation {
                condition: &condition,
                has_fabric: true,
                best_links: None,
            };
            let mut recoveries = vec![Recovery {
                proof: Proof::Reboot,
                scope: Scope::Gpu,
                mark: state.boot_mark(),
            }];
            if !node.is_used(&uuid) {
                let idle = state.waits_for_idle(&uuid).into_iter();
                recoveries.extend(idle.map(|scope| Recovery {
                    proof: Proof::Idle,
                    scope,
                    mark,
                }));
            }
            if node.faults.said().contains(&gpu) {
                recoveries.push(Recovery {
                    proof: Proof::Operator,
                    scope: Scope::Gpu,
                    mark,
                });
            }
            for recovery in &recoveries {
                // What is not in order stays as it is.
                let _ = state.recover(&uuid, recovery, &validation);
            }
        }
        state
    }
}

fn position(lines: usize) -> LogPosition {
    LogPosition {
        sequence: u64::try_from(lines).unwrap_or(u64::MAX),
    }
}

/// The taints that a GPU is to have.
fn wanted(state: &FaultState, node: &GpuNode, device: &str) -> Taints {
    let mut gpus = 0..node.shape.gpus;
    let Some(gpu) = gpus.find(|gpu| fixtures::device_name(*gpu) == device) else {
        return Taints::new();
    };
    let uuid = fixtures::gpu_uuid(&node.shape.name, gpu);
    let of_node = state.node_fault(|_| true).map(|(_, fault)| fault);
    let found: [(&str, Option<&Fault>); 3] = [
        (TAINT_FAULT, state.fault(&uuid, None)),
        (TAINT_LINK_FAULT, state.link_fault(&uuid, None)),
        (TAINT_NODE_FAULT, of_node),
    ];
    let found = found.into_iter();
    found
        .filter_map(|(key, fault)| Some((key, fault?.class.to_string())))
        .collect()
}

fn is_of_faults(taint: &DeviceTaint) -> bool {
    [TAINT_FAULT, TAINT_LINK_FAULT, TAINT_NODE_FAULT].contains(&taint.key.as_str())
}

fn is_unpublished(told: &FaultState, api: &ApiServer, node: &GpuNode) -> bool {
    let slice = api.get::<ResourceSlice>("", &fixtures::slice_name(&node.shape.name));
    let mut devices = slice.into_iter().flat_map(|slice| &slice.spec.devices);
    devices.any(|devices| devices.iter().any(|device| !says(device, told, node)))
}

fn says(device: &PublishedDevice, told: &FaultState, node: &GpuNode) -> bool {
    let taints = device.taints.iter().flatten();
    let said: BTreeMap<&str, &str> = taints
        .filter(|taint| is_of_faults(taint))
        .map(|taint| {
            (
                taint.key.as_str(),
                taint.value.as_deref().unwrap_or_default(),
            )
        })
        .collect();
    let wanted = wanted(told, node, &device.name);
    let wanted: BTreeMap<&str, &str> = wanted.iter().map(|(key, it)| (*key, it.as_str())).collect();
    said == wanted
}

/// Publishes the taints that faults make. One that stands as it is keeps its time: by that it is told from every other.
fn publish(told: &FaultState, api: &mut ApiServer, node: &GpuNode) {
    let now = Time(api.time());
    let name = fixtures::slice_name(&node.shape.name);
    let _ = api.update::<ResourceSlice>("", &name, Precondition::default(), |slice| {
        for device in slice.spec.devices.iter_mut().flatten() {
            let mut wanted = wanted(told, node, &device.name);
            let mut taints = device.taints.take().unwrap_or_default();
            taints.retain(|taint| {
                let stands = wanted.get(taint.key.as_str()) == taint.value.as_ref();
                !is_of_faults(taint) || stands && wanted.remove(taint.key.as_str()).is_some()
            });
            taints.extend(wanted.into_iter().map(|(key, value)| DeviceTaint {
                key: key.to_owned(),
                value: Some(value),
                effect: "NoSchedule".to_owned(),
                time_added: Some(now.clone()),
            }));
            device.taints = (!taints.is_empty()).then_some(taints);
        }
    });
}

impl Drivers {
    /// Breaks a rule about faults in every instance that starts from now on.
    #[cfg(feature = "injected-bugs")]
    pub fn plant_about_faults(&mut self, bug: super::FaultBug) {
        self.fault_bugs = FaultBugs::plant(bug);
    }

    /// What the newest instance knows of faults is what is on the disk: before it prepares anything.
    pub(super) fn load_faults(&mut self, now: u64, node: &GpuNode) {
        let Some(newest) = self.instances.last_mut() else {
            return;
        };
        let watch = FaultWatch::load(newest.id, node, self.fault_bugs);
        newest.tell(now, Input::Faults(Arc::new(watch.state.clone())));
        self.fault_watch = Some(watch);
    }

    /// What may be done about faults, and by which instance.
    pub(super) fn fault_steps(&self, now: u64, api: &ApiServer, node: &GpuNode) -> Vec<FaultStep> {
        let Some(newest) = self.instances.last() else {
            return Vec::new();
        };
        if newest.paused_until > now {
            return Vec::new();
        }
        match &self.fault_watch {
            Some(watch) if watch.instance == newest.id => watch.steps(api, node),
            // The one that knew of faults is gone, and this is the older one.
            _ if node.faults_file.is_some() || !node.faults.logged().is_empty() => {
                vec![FaultStep::Load]
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn take_fault_step(
        &mut self,
        step: FaultStep,
        now: u64,
        api: &mut ApiServer,
        node: &mut GpuNode,
    ) {
        if step == FaultStep::Load {
            self.load_faults(now, node);
            return;
        }
        let (Some(watch), Some(newest)) = (&mut self.fault_watch, self.instances.last_mut()) else {
            return;
        };
        match step {
            FaultStep::Load => {}
            FaultStep::Hear => watch.hear(node, node.clock.time_of_day(now).as_second()),
            FaultStep::Keep => {
                node.faults_file = serde_json::to_string(&watch.state).ok();
                watch.kept = watch.state.clone();
                if std::mem::take(&mut watch.owes_answer) {
                    node.faults.answer();
                }
            }
            FaultStep::Tell => {
                // First, so that no claim is prepared that has a taint.
                let state = Arc::new(watch.state.clone());
                newest.tell(now, Input::Faults(state));
                watch.told = watch.state.clone();
            }
            FaultStep::Publish => publish(&watch.told, api, node),
            FaultStep::Look => {
                watch.state = watch.looked_at(node);
                watch.owes_answer = !node.faults.said().is_empty();
                if watch.owes_answer && watch.state == watch.kept {
                    watch.owes_answer = false;
                    node.faults.answer();
                }
            }
        }
    }

    /// A slice that is published anew has its taints from the first on.
    pub fn publish_faults(&self, api: &mut ApiServer, node: &GpuNode) {
        if let Some(watch) = &self.fault_watch
            && !self.instances.is_empty()
        {
            publish(&watch.told, api, node);
        }
    }
}
