//! S7: a fault of a GPU is over only by a proof that is newer than the fault and fits its class.
//!
//! Compared are what a test did to the hardware ([`crate::faults::journal`]), in its order, and the taints that are published. A fault that
//! was told once has to be told for as long as nothing ended it that was done after it, whoever starts anew meanwhile. What was done is written down before
//! the hardware shows it, and read before what etcd brings next is judged: so a taint that goes is compared with all that could have made it go.
//!
//! That a machine was started anew counts only if its boot id, as its driver tells it, is another one soon.
//!
//! Two proofs nobody brings about on purpose. Nobody uses what a contained fault is about: by the records of the runtimes no container has had the GPU
//! in its hands from the fault to the end of its taint. NVLinks work: for five minutes nothing was heard of them.
//!
//! And a fault is told soon ([`PUBLISH_BOUND`]), so that one which is never told is no fault that is over.
//!
//! S8: no taint has the effect `NoExecute`, for which kube-controller-manager would delete single pods of a gang.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use kube::ResourceExt;
use muster_api::{NodeDevices, keys};

use super::{
    containers::Containers,
    etcd::Revision,
    findings::{
        Findings,
        Invariant::{S7, S8},
    },
    overdue::Overdue,
    wrong::Wrong,
};
use crate::faults::{
    Fault, Mend,
    journal::{Injected, What},
};

/// Longest time until a fault is told by a taint. Faults that only a look at the GPU finds are found within ten seconds; the rest is for a machine
/// whose cores are all busy.
const PUBLISH_BOUND: Duration = Duration::from_secs(25);
/// After so long whoever tells of faults has heard of this one, however busy: a taint that stands already stands for it, too.
const HEARD_MILLIS: u64 = 10_000;
/// How long nothing has to be heard of NVLinks before they are taken to work again; a little less than what is promised.
const LINKS_WORK_MILLIS: u64 = 290_000;

/// The GPUs, what was done to them, and what is told of them.
#[derive(Debug)]
pub(super) struct Faults {
    /// UUIDs of GPUs by node, in the order of their devices.
    gpus: BTreeMap<String, Vec<String>>,
    known: Vec<Known>,
    /// Taints of whole GPUs that keep claims away: value by key, by node and device.
    taints: BTreeMap<(String, String), BTreeMap<String, String>>,
    /// Contained faults whose taint went, which is well only if nobody had the GPU.
    to_have_been_idle: Vec<ToHaveBeenIdle>,
    untold: Overdue,
    /// Boot ids of nodes, as their drivers tell them.
    boot_ids: BTreeMap<String, String>,
    not_booted: Overdue,
}

/// A fault that keeps a GPU out of use.
#[derive(Clone, Debug)]
pub(super) struct Known {
    node: String,
    pub(super) gpu: String,
    pub(super) fault: Fault,
    pub(super) wrong: Wrong,
    /// The last revision before it was seen to be injected.
    since: Revision,
    since_millis: u64,
    /// Boot id of its node, if that was told.
    boot_id: Option<String>,
    /// What was done to the GPU after it.
    mends: BTreeSet<Mend>,
    is_told: bool,
    /// The revision at which it was told no more.
    pub(super) over: Option<Revision>,
}

/// A contained fault whose taint went.
#[derive(Clone, Copy, Debug)]
struct ToHaveBeenIdle {
    /// Number of the fault.
    number: usize,
    /// When the taint went.
    until: Revision,
    /// Whether the records were read since: what they say of the time before is there.
    is_recorded: bool,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            gpus: BTreeMap::new(),
            known: Vec::new(),
            taints: BTreeMap::new(),
            to_have_been_idle: Vec::new(),
            untold: Overdue::after(PUBLISH_BOUND),
            boot_ids: BTreeMap::new(),
            not_booted: Overdue::after(PUBLISH_BOUND),
        }
    }
}

impl Faults {
    /// A node has these GPUs, in PCI order.
    pub(super) fn node(&mut self, node: &str, gpus: &[String]) {
        self.gpus.insert(node.to_owned(), gpus.to_vec());
    }

    /// The GPU of a device: `gpu-3`, or of a slice, `gpu-3-mig-…`.
    pub(super) fn gpu_of(&self, node: &str, device: &str) -> Option<&str> {
        let number = device.strip_prefix("gpu-")?.split('-').next()?;
        let gpus = self.gpus.get(node)?;
        Some(gpus.get(number.parse::<usize>().ok()?)?)
    }

    /// All that was injected, in its order.
    pub(super) fn known(&self) -> &[Known] {
        &self.known
    }

    /// A line of a node's journal, in the order of the journal.
    pub(super) fn injected(
        &mut self,
        node: &str,
        injected: &Injected,
        revision: Revision,
        now_millis: u64,
    ) {
        let gpu = &injected.gpu;
        match injected.what {
            What::Fault(fault) => self.known.extend(Wrong::after(fault).map(|wrong| Known {
                node: node.to_owned(),
                gpu: gpu.clone(),
                fault,
                wrong,
                since: revision,
                since_millis: now_millis,
                boot_id: self.boot_ids.get(node).cloned(),
                mends: BTreeSet::new(),
                is_told: false,
                over: None,
            })),
            What::Mend(mend) => {
                let of_gpu = self.known.iter_mut().filter(|known| known.gpu == *gpu);
                for known in of_gpu {
                    known.mends.insert(mend);
                }
            }
        }
    }

    /// The object of a node was written.
    pub(super) fn node_devices(&mut self, object: &NodeDevices) {
        let told = object.status.as_ref().map(|status| &status.boot_id);
        if let Some(boot_id) = told.filter(|boot_id| !boot_id.is_empty()) {
            self.boot_ids.insert(object.name_any(), boot_id.clone());
        }
    }

    /// A slice was written, or is gone: what is not published is told by nobody, and given to nobody.
    pub(super) fn slice(
        &mut self,
        slice: &ResourceSlice,
        gone: bool,
        (revision, now_millis): (Revision, u64),
        findings: &mut Findings,
    ) {
        let spec = &slice.spec;
        if spec.driver != keys::DRIVER {
            return;
        }
        let node = &spec.pool.name;
        for device in spec.devices.iter().flatten() {
            let is_whole = !device.name.contains("-mig-");
            let name = (node.clone(), device.name.clone());
            if gone {
                self.taints.remove(&name);
                continue;
            }
            ends_nobody(node, device, findings);
            let taints = device.taints.iter().flatten();
            let taints = taints.filter(|taint| taint.effect != "None");
            let taints: BTreeMap<String, String> = taints
                .map(|taint| (taint.key.clone(), taint.value.clone().unwrap_or_default()))
                .collect();
            let Some(gpu) = self.gpu_of(node, &device.name).map(str::to_owned) else {
                continue;
            };
            for number in 0..self.known.len() {
                let Some(known) = self.known.get_mut(number) else {
                    continue;
                };
                // A slice needs no NVLink.
                let is_about = known.gpu == gpu && (is_whole || known.wrong != Wrong::Link);
                if !is_about || known.over.is_some() {
                    continue;
                }
                if known.is_told_by(&taints) {
                    known.is_told = true;
                    findings.check(S7, None);
                    continue;
                }
                if !known.is_told {
                    continue;
                }
                known.over = Some(revision);
                let is_mended = known.is_mended(now_millis);
                if !is_mended && known.wrong == Wrong::Contained {
                    self.to_have_been_idle.push(ToHaveBeenIdle {
                        number,
                        until: revision,
                        is_recorded: false,
                    });
                    continue;
                }
                let wrong = (!is_mended).then(|| {
                    format!(
                        "{} of {node} is not told any more to have had {:?}, which is {:?}: since then was done {:?}",
                        device.name, known.fault, known.wrong, known.mends
                    )
                });
                findings.check(S7, wrong);
            }
            if is_whole {
                self.taints.insert(name, taints);
            }
        }
    }

    /// Judges what the records of the runtimes and the time tell. `containers` has all that happened up to now.
    pub(super) fn judge(
        &mut self,
        containers: &Containers,
        now_millis: u64,
        findings: &mut Findings,
    ) {
        for idle in std::mem::take(&mut self.to_have_been_idle) {
            if !idle.is_recorded {
                self.to_have_been_idle.push(ToHaveBeenIdle {
                    is_recorded: true,
                    ..idle
                });
                continue;
            }
            let Some(known) = self.known.get(idle.number) else {
                continue;
            };
            let mut users = containers.throughout(known.since, idle.until);
            let user = users.find(|container| container.has(&known.gpu));
            let wrong = user.map(|user| {
                format!(
                    "{} of {} is not told any more to have had {:?}, and {} has had it in its hands all the time since",
                    known.gpu, known.node, known.fault, user.pod
                )
            });
            findings.check(S7, wrong);
        }
        let mut untold = BTreeSet::new();
        for known in &mut self.known {
            if known.is_told || known.over.is_some() || known.is_mended(now_millis) {
                continue;
            }
            let mut gpus = self.gpus.get(&known.node).into_iter().flatten();
            let Some(number) = gpus.position(|gpu| *gpu == known.gpu) else {
                continue;
            };
            let device = format!("gpu-{number}");
            let taints = self.taints.get(&(known.node.clone(), device));
            let Some(taints) = taints else {
                continue;
            };
            if !known.is_told_by(taints) {
                untold.insert(format!(
                    "{} of {} has {:?}, which is {:?}, and that is not told: {taints:?}",
                    known.gpu, known.node, known.fault, known.wrong
                ));
            } else if now_millis >= known.since_millis + HEARD_MILLIS {
                known.is_told = true;
            }
        }
        let not_booted = self.known.iter().filter(|known| {
            let boot_id = self.boot_ids.get(&known.node);
            known.is_over_by_reboot() && boot_id.is_some() && boot_id == known.boot_id.as_ref()
        });
        let not_booted = not_booted.map(|known| {
            format!(
                "{} of {} is not told any more to have had {:?}, by a reboot, and its node has the same boot id",
                known.gpu, known.node, known.fault
            )
        });
        let not_booted = not_booted.collect();
        let untold = self.untold.note(untold, now_millis);
        let not_booted = self.not_booted.note(not_booted, now_millis);
        for late in untold.iter().chain(&not_booted) {
            findings.violation(S7, late);
        }
    }

    /// Time passed that does not count.
    pub(super) fn shift(&mut self, by_millis: u64) {
        self.untold.shift(by_millis);
        self.not_booted.shift(by_millis);
    }
}

/// S8: whom a fault costs is decided gang by gang; no taint of ours has others delete pods one by one. It is not counted as a check: one that only
/// looked at taints has not looked at evictions.
fn ends_nobody(node: &str, device: &Device, findings: &mut Findings) {
    let taints = device.taints.iter().flatten();
    for taint in taints.filter(|taint| taint.effect == "NoExecute") {
        let how = format!(
            "{} of {node} has the taint {} with the effect NoExecute, for which single pods of gangs are deleted",
            device.name, taint.key
        );
        findings.violation(S8, &how);
    }
}

impl Known {
    fn is_told_by(&self, taints: &BTreeMap<String, String>) -> bool {
        let value = taints.get(self.wrong.key());
        value.is_some_and(|value| self.wrong.is_told_by(value))
    }

    /// Whether it is over, and nothing but the start of the machine can have ended it.
    fn is_over_by_reboot(&self) -> bool {
        let mut mends = self.mends.iter();
        self.over.is_some()
            && self.mends.contains(&Mend::Reboot)
            && !mends.any(|mend| *mend != Mend::Reboot && self.wrong.is_mended_by(*mend))
            && !matches!(self.wrong, Wrong::Contained | Wrong::Link)
    }

    /// Whether anything ended it that was done after it.
    fn is_mended(&self, now_millis: u64) -> bool {
        let links_work = self.wrong == Wrong::Link
            && now_millis >= self.since_millis.saturating_add(LINKS_WORK_MILLIS);
        links_work || self.mends.iter().any(|mend| self.wrong.is_mended_by(*mend))
    }
}
