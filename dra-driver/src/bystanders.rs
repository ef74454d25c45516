//! Who may use a GPU beside whoever holds it.
//!
//! A profiler or a monitor opens a GPU that somebody else has, and stays when that one goes. Taken for its user it would keep the GPU from
//! being given back, and from being given to anybody, for as long as it watches. So these do not count:
//!
//! * a process of a pod that has the GPU, or a part of it, by claims with administrative access alone;
//! * a process of a pod of a trusted namespace that holds nothing of the GPU by a claim, and where no claim of its namespace does: a pod may
//!   share any claim of its namespace, and nothing on the node need tell of it;
//! * a trusted program of the node itself, in no pod, on a node where pods have cgroups of their own.
//!
//! Whoever cannot be told from a tenant counts as one. Who holds what is read from the checkpoint under the lock: a pod becomes a holder by a
//! record, which is there before its containers start. What hardware refuses under a process it refuses under these, too: no slice is
//! destroyed and no MIG mode is changed before they leave, and the refusal names them.

use std::{collections::BTreeSet, path::PathBuf};

use crate::{
    bypass::{origin::Origin, pod_logs, processes, sight::Trusted},
    prepare::{Disk, Record},
};

/// Tells them from users. Blocking; reads files of the kernel's and the kubelet's.
#[derive(Clone, Debug)]
pub struct Bystanders {
    /// The host's `/proc`.
    pub proc: PathBuf,
    /// The kubelet's directory of the logs of pods.
    pub pod_logs: PathBuf,
    /// Who may use GPUs without a claim.
    pub trusted: Trusted,
}

impl Bystanders {
    /// Whether this process on this GPU is one, by what is recorded now.
    pub(crate) fn include(&self, gpu: &str, pid: u32, disk: &Disk) -> bool {
        let seen = processes::look_at(&self.proc, pid);
        match &seen.origin {
            Origin::Pod(uid) => {
                !may_hold(disk, gpu, uid)
                    && (watches(disk, gpu, uid) || self.trusts(gpu, uid, disk))
            }
            Origin::Node => {
                let program = seen.program.as_ref();
                program.is_some_and(|program| self.trusted.programs.contains(program))
                    && processes::some_are_in_pods(&self.proc)
            }
            Origin::Unknown | Origin::Hidden => false,
        }
    }

    /// Whether the pod is of a trusted namespace, of which no claim holds anything of the GPU. One whose name is not found is not.
    ///
    /// The kubelet calls for the first pod of a claim alone. Another one that shares it is recorded if it is permitted, or was in `reservedFor` by
    /// then; without permits (in Observe) one that comes later is neither, and uses the GPU all the same.
    fn trusts(&self, gpu: &str, pod: &str, disk: &Disk) -> bool {
        if self.trusted.namespaces.is_empty() {
            return false;
        }
        let wanted = BTreeSet::from([pod.to_owned()]);
        let names = pod_logs::names(&self.pod_logs, &wanted).unwrap_or_default();
        let name = names.get(pod);
        name.is_some_and(|name| {
            let mut holding = records(disk, gpu, false);
            self.trusted.namespaces.contains(&name.namespace)
                && !holding.any(|record| record.claim.namespace == name.namespace)
        })
    }
}

/// The records that have something of a GPU: by administrative access, or to hold it.
fn records<'a>(
    disk: &'a Disk,
    gpu: &'a str,
    admin_access: bool,
) -> impl Iterator<Item = &'a Record> {
    disk.records.values().filter(move |record| {
        let mut devices = record.devices.iter();
        record.holds() && devices.any(|it| it.unit.gpu == gpu && it.admin_access == admin_access)
    })
}

/// Whether the pod holds something of the GPU. A claim that no pod is named for may be any pod's.
fn may_hold(disk: &Disk, gpu: &str, pod: &str) -> bool {
    let is_its = |record: &Record| record.pods.is_empty() || record.pods.iter().any(|it| it == pod);
    records(disk, gpu, false).any(is_its)
}

/// Whether the pod has something of the GPU by administrative access.
fn watches(disk: &Disk, gpu: &str, pod: &str) -> bool {
    records(disk, gpu, true).any(|record| record.pods.iter().any(|it| it == pod))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path};

    use super::*;
    use crate::prepare::{ClaimRef, RecordState, RecordedDevice, Unit};

    const GPU: &str = "GPU-0";
    const WATCHER: &str = "0d9a1f4e-1111-2222-3333-444455556666";

    fn record(uid: &str, gpu: &str, pods: &[&str], admin_access: bool) -> Record {
        Record {
            claim: ClaimRef {
                uid: uid.to_owned(),
                namespace: "ml".to_owned(),
                name: uid.to_owned(),
            },
            state: RecordState::Prepared,
            call: None,
            by_name: None,
            pods: pods.iter().map(|pod| (*pod).to_owned()).collect(),
            devices: vec![RecordedDevice {
                request: "gpu".to_owned(),
                pool: "node-0".to_owned(),
                device: "gpu-0".to_owned(),
                unit: Unit::whole(gpu),
                minor: 0,
                admin_access,
                slice: None,
            }],
        }
    }

    fn disk(records: Vec<Record>) -> Disk {
        let records = records.into_iter();
        Disk {
            records: records.map(|it| (it.claim.uid.clone(), it)).collect(),
            ..Disk::default()
        }
    }

    fn has_process(root: &Path, pid: u32, cgroup: &str, program: &str) {
        let process = root.join("proc").join(pid.to_string());
        fs::create_dir_all(&process).unwrap();
        fs::write(process.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
        symlink(program, process.join("exe")).unwrap();
    }

    fn bystanders(root: &Path) -> Bystanders {
        Bystanders {
            proc: root.join("proc"),
            pod_logs: root.join("logs"),
            trusted: Trusted {
                namespaces: BTreeSet::from(["gpu-operator".to_owned()]),
                programs: BTreeSet::from(["/usr/bin/nv-hostengine".to_owned()]),
            },
        }
    }

    #[test]
    fn a_pod_with_administrative_access_alone_does_not_count() {
        let root = tempfile::tempdir().unwrap();
        has_process(root.path(), 7, &format!("/kubepods/pod{WATCHER}/1"), "/ncu");
        let bystanders = bystanders(root.path());
        let watch = || record("watch", GPU, &[WATCHER], true);
        for (what, records, expected) in [
            ("administrative access", vec![watch()], true),
            ("nothing", vec![], false),
            (
                "that of another GPU",
                vec![record("watch", "GPU-1", &[WATCHER], true)],
                false,
            ),
            (
                "another pod holds the GPU",
                vec![watch(), record("train", GPU, &["other"], false)],
                true,
            ),
            (
                "it holds the GPU as well",
                vec![watch(), record("train", GPU, &[WATCHER], false)],
                false,
            ),
            (
                "whose the GPU is nobody says",
                vec![watch(), record("train", GPU, &[], false)],
                false,
            ),
        ] {
            let found = bystanders.include(GPU, 7, &disk(records));
            assert_eq!(found, expected, "{what}");
        }
        // A mark of a call that waits gives nothing yet.
        let waiting = Record {
            state: RecordState::Waiting,
            ..watch()
        };
        assert!(!bystanders.include(GPU, 7, &disk(vec![waiting])));
        // A process that is gone, or not to be seen, is nobody's.
        assert!(!bystanders.include(GPU, 8, &disk(vec![watch()])));
    }

    #[test]
    fn a_pod_of_a_trusted_namespace_does_not_count_unless_it_holds_the_gpu() {
        let root = tempfile::tempdir().unwrap();
        has_process(root.path(), 7, &format!("/kubepods/pod{WATCHER}/1"), "/x");
        let bystanders = bystanders(root.path());
        assert!(!bystanders.include(GPU, 7, &Disk::default()), "no name");
        let logs = root.path().join("logs");
        fs::create_dir_all(logs.join(format!("gpu-operator_dcgm-1_{WATCHER}"))).unwrap();
        assert!(bystanders.include(GPU, 7, &Disk::default()));
        let holds = disk(vec![record("train", GPU, &[WATCHER], false)]);
        assert!(!bystanders.include(GPU, 7, &holds));
        // A claim of its own namespace it may share, whoever is recorded for that.
        let of_namespace = |namespace: &str, gpu: &str, admin_access: bool| {
            let mut record = record("train", gpu, &["other"], admin_access);
            record.claim.namespace = namespace.to_owned();
            disk(vec![record])
        };
        for (namespace, gpu, admin_access, expected) in [
            ("gpu-operator", GPU, false, false),
            ("gpu-operator", GPU, true, true),
            ("gpu-operator", "GPU-1", false, true),
            ("ml", GPU, false, true),
        ] {
            let found = bystanders.include(GPU, 7, &of_namespace(namespace, gpu, admin_access));
            assert_eq!(found, expected, "{namespace} {gpu} {admin_access}");
        }
        let other = Bystanders {
            trusted: Trusted::default(),
            ..bystanders
        };
        assert!(!other.include(GPU, 7, &Disk::default()));
    }

    #[test]
    fn a_trusted_program_of_the_node_does_not_count_where_pods_have_cgroups() {
        let root = tempfile::tempdir().unwrap();
        let service = "/system.slice/nvidia-dcgm.service";
        has_process(root.path(), 7, service, "/usr/bin/nv-hostengine");
        has_process(root.path(), 8, service, "/usr/bin/other");
        let bystanders = bystanders(root.path());
        // It may be in a pod as well.
        assert!(!bystanders.include(GPU, 7, &Disk::default()));
        has_process(
            root.path(),
            9,
            "/kubepods/podp-1/1",
            "/usr/bin/nv-hostengine",
        );
        assert!(bystanders.include(GPU, 7, &Disk::default()));
        assert!(!bystanders.include(GPU, 8, &Disk::default()));
        assert!(
            !bystanders.include(GPU, 9, &Disk::default()),
            "it is in a pod"
        );
    }
}
