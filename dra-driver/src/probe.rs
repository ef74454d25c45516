//! Whether hardware that is to be given back, or taken, is in use.
//!
//! Two witnesses: NVML lists processes on the GPU, and the pod's cgroup has processes. Either is enough. For a
//! pod that was deleted by force the kubelet unprepares before its containers are dead, and NVML lists a process
//! only once it has a context. Who merely watches a GPU that others hold is no user ([`crate::bystanders`]).

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use muster_device::{Backend, BackendError, MigInstance};

use crate::{
    bystanders::Bystanders,
    faults::remedy::running::Checks,
    prepare::{Disk, InUse, LiveSlices, Probe, Sight, Sights, Unit, asks_for_slices, user},
};

/// Deepest nesting of cgroups below a pod's that is looked at: container, then what it makes itself.
const MAX_CGROUP_DEPTH: u32 = 8;

/// Looks at NVML and at cgroups. Blocking; bounded by the limit of the NVML backend per GPU.
#[derive(Clone, Debug)]
pub struct Prober {
    backend: Arc<Backend>,
    cgroups: PathBuf,
    bystanders: Option<Arc<Bystanders>>,
    checks: Checks,
}

impl Prober {
    /// `cgroups` is the host's `/sys/fs/cgroup`. A host without pod cgroups there has NVML as its only witness.
    pub fn new(backend: Arc<Backend>, cgroups: PathBuf) -> Self {
        Self {
            backend,
            cgroups,
            bystanders: None,
            checks: Checks::default(),
        }
    }

    /// These are no users.
    #[must_use]
    pub fn with_bystanders(self, bystanders: Bystanders) -> Self {
        Self {
            bystanders: Some(Arc::new(bystanders)),
            ..self
        }
    }

    /// These checks of GPUs end when somebody looks at their GPU for a claim.
    #[must_use]
    pub fn with_checks(self, checks: Checks) -> Self {
        Self { checks, ..self }
    }

    /// Looks at a GPU for a claim, of which so many changes have begun. No lock is needed for that.
    pub fn look_at(&self, gpu: &str, changes: Result<u64, String>) -> Sight {
        self.checks.want(gpu);
        let processes = match self.backend.processes(gpu) {
            // Nothing runs on a GPU that is not there.
            Err(BackendError::Gone(_)) => Ok(Vec::new()),
            found => found.map_err(|error| error.to_string()),
        };
        Sight {
            changes,
            processes,
            live: self.live_on(gpu),
        }
    }

    /// Answers the machine's question by what was seen before, and by the cgroups of now. Asks nothing of NVML.
    pub fn judge(&self, probe: &Probe, disk: &Disk, sights: &Sights) -> InUse {
        match probe {
            Probe::Units(units) => self.seen_on(units.iter(), disk, sights),
            Probe::Recorded(uid) => match disk.records.get(uid) {
                Some(record) => self
                    .living(&record.pods)
                    .unwrap_or_else(|| self.seen_on(record.units(), disk, sights)),
                None => InUse::No,
            },
        }
    }

    fn seen_on<'a>(
        &self,
        units: impl Iterator<Item = &'a Unit>,
        disk: &Disk,
        sights: &Sights,
    ) -> InUse {
        for unit in units {
            let is_bystander = |pid: u32| {
                let bystanders = self.bystanders.as_ref();
                bystanders.is_some_and(|bystanders| bystanders.include(&unit.gpu, pid, disk))
            };
            let user = match sights.get(&unit.gpu) {
                Some(sight) => sight.user_of(unit, is_bystander),
                None => Err("it was not looked at".to_owned()),
            };
            match user {
                Ok(None) => {}
                Ok(Some(pid)) => return InUse::Yes(format!("process {pid} on GPU {unit}")),
                Err(cause) => return InUse::Unknown(format!("GPU {unit}: {cause}")),
            }
        }
        InUse::No
    }

    /// A pod of these whose containers live.
    fn living(&self, pods: &[String]) -> Option<InUse> {
        let pod = pods.iter().find(|pod| self.pod_lives(pod))?;
        Some(InUse::Yes(format!(
            "a container of pod UID {pod} still runs"
        )))
    }

    /// Whether a claim with these Units, reserved for these pods, is in use now. Asks NVML, so not under the lock of the node. Without the
    /// checkpoint nobody is known to only watch.
    pub fn claim<'a>(
        &self,
        units: impl Iterator<Item = &'a Unit>,
        pods: &[String],
        disk: Option<&Disk>,
    ) -> InUse {
        self.living(pods).unwrap_or_else(|| self.units(units, disk))
    }

    fn units<'a>(&self, units: impl Iterator<Item = &'a Unit>, disk: Option<&Disk>) -> InUse {
        for unit in units {
            match self.process_on(unit, disk) {
                // Nothing runs on a GPU that is not there.
                Ok(None) | Err(BackendError::Gone(_)) => {}
                Ok(Some(pid)) => return InUse::Yes(format!("process {pid} on GPU {unit}")),
                // Enough not to give it away. To ask the others may take the limit for each.
                Err(error) => return InUse::Unknown(format!("GPU {unit}: {error}")),
            }
        }
        InUse::No
    }

    /// A process that uses a Unit.
    fn process_on(&self, unit: &Unit, disk: Option<&Disk>) -> Result<Option<u32>, BackendError> {
        let mut processes = self.backend.processes(&unit.gpu)?;
        if let (Some(bystanders), Some(disk)) = (&self.bystanders, disk) {
            processes.retain(|process| !bystanders.include(&unit.gpu, process.pid, disk));
        }
        let live = if asks_for_slices(unit, &processes) {
            self.backend.mig_instances(&unit.gpu)?
        } else {
            Vec::new()
        };
        Ok(user(unit, &processes, &live))
    }

    /// The slices of these GPUs. A GPU that is not there has none.
    pub fn live(&self, gpus: &[String]) -> LiveSlices {
        let all = gpus.iter();
        all.map(|gpu| (gpu.clone(), self.live_on(gpu))).collect()
    }

    fn live_on(&self, gpu: &str) -> Result<Vec<MigInstance>, String> {
        match self.backend.mig_instances(gpu) {
            Err(BackendError::Gone(_)) => Ok(Vec::new()),
            found => found.map_err(|error| error.to_string()),
        }
    }

    fn pod_lives(&self, uid: &str) -> bool {
        pod_cgroups(&self.cgroups, uid)
            .iter()
            .any(|path| has_processes(path, MAX_CGROUP_DEPTH))
    }
}

/// Where the kubelet may have put a pod: cgroup v2 or one hierarchy of v1, systemd or cgroupfs names, each
/// quality of service.
fn pod_cgroups(root: &Path, uid: &str) -> Vec<PathBuf> {
    let underscored = uid.replace('-', "_");
    let mut paths = Vec::new();
    for hierarchy in ["", "pids", "systemd"] {
        let base = root.join(hierarchy);
        for service in ["", "burstable", "besteffort"] {
            let cgroupfs = base.join("kubepods").join(service);
            paths.push(cgroupfs.join(format!("pod{uid}")));
            let systemd = base.join("kubepods.slice");
            let (parent, prefix) = if service.is_empty() {
                (systemd, "kubepods".to_owned())
            } else {
                let prefix = format!("kubepods-{service}");
                (systemd.join(format!("{prefix}.slice")), prefix)
            };
            paths.push(parent.join(format!("{prefix}-pod{underscored}.slice")));
        }
    }
    paths
}

fn has_processes(cgroup: &Path, depth: u32) -> bool {
    let listed = |text: String| !text.trim().is_empty();
    if fs::read_to_string(cgroup.join("cgroup.procs")).is_ok_and(listed) {
        return true;
    }
    let Some(depth) = depth.checked_sub(1) else {
        return false;
    };
    let children = fs::read_dir(cgroup).into_iter().flatten().flatten();
    children
        .filter(|child| child.file_type().is_ok_and(|kind| kind.is_dir()))
        .any(|child| has_processes(&child.path(), depth))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use muster_device::{BackendConfig, LibrarySource};
    use nvidia_ml_mock::Hang;

    use super::*;
    use crate::mock_node::MockNode;

    const UID: &str = "0d9a1f4e-1111-2222-3333-444455556666";

    fn prober(cgroups: &Path) -> Prober {
        let library = LibrarySource::File("/nonexistent-muster/libnvidia-ml.so.1".into());
        let backend = Backend::new(BackendConfig::new(library));
        Prober::new(Arc::new(backend), cgroups.to_owned())
    }

    #[test]
    fn a_pod_lives_as_long_as_its_cgroup_has_a_process() {
        let underscored = UID.replace('-', "_");
        for path in [
            format!("kubepods/pod{UID}/crio-1"),
            format!("kubepods/burstable/pod{UID}/1"),
            format!("pids/kubepods/besteffort/pod{UID}/1"),
            format!("kubepods.slice/kubepods-pod{underscored}.slice/cri-1.scope"),
            format!(
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{underscored}.slice/cri-1.scope"
            ),
        ] {
            let root = tempfile::tempdir().unwrap();
            let container = root.path().join(&path);
            fs::create_dir_all(&container).unwrap();
            let list = container.join("cgroup.procs");
            fs::write(&list, "4242\n").unwrap();
            assert!(prober(root.path()).pod_lives(UID), "{path}");
            assert!(!prober(root.path()).pod_lives("another"), "{path}");
            fs::write(&list, "").unwrap();
            assert!(!prober(root.path()).pod_lives(UID), "{path}");
        }
    }

    #[test]
    fn what_cannot_be_asked_is_not_free() {
        let root = tempfile::tempdir().unwrap();
        let unit = Unit::whole("GPU-0");
        let answer = prober(root.path()).claim([&unit].into_iter(), &[], None);
        assert!(matches!(answer, InUse::Unknown(_)), "{answer:?}");
    }

    #[test]
    fn when_all_gpus_hang_whoever_needs_all_waits_for_one_of_them_only() {
        const LIMIT: Duration = Duration::from_secs(1);
        let node = MockNode::with_call_limit(LIMIT);
        let gpus = node.gpus();
        let hang = |gpu: &String| Hang {
            function: String::new(),
            gpu: gpu.clone(),
        };
        let hangs: Vec<Hang> = gpus.iter().map(hang).collect();
        node.card.change(|state| state.hangs = hangs).unwrap();
        let units: Vec<Unit> = gpus.into_iter().map(Unit::whole).collect();
        assert_eq!(units.len(), 8);

        let prober = Prober::new(node.backend, node.directory.path().to_owned());
        let started = Instant::now();
        let answer = prober.claim(units.iter(), &[], None);
        assert!(matches!(answer, InUse::Unknown(_)), "{answer:?}");
        assert!(started.elapsed() < 4 * LIMIT, "{:?}", started.elapsed());
        node.card.change(|state| state.hangs.clear()).unwrap();
    }
}
