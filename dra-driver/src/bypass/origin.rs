//! Whose a process is, as its cgroups tell.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::kubelet::calls::is_uid;

/// Name of the cgroup above those of all pods.
const PODS: &str = "kubepods";
/// Shortest UID of a pod: a static pod's is a hash without dashes.
const SHORTEST_UID: usize = 32;

/// Whose a process is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// That of the pod with this UID.
    Pod(String),
    /// The node's own: it is in no pod.
    Node,
    /// That cannot be told.
    Unknown,
    /// That was hidden: the kernel cannot write the path of its cgroup, which no runtime makes so long.
    Hidden,
}

impl Origin {
    /// Reads `/proc/PID/cgroup`. Children and programs that are run in a container later are in its cgroup, too.
    ///
    /// Of a path the part nearest to the root counts: below it a container may have made cgroups of any name. Where hierarchies
    /// name different pods, nobody knows.
    pub fn of_cgroups(text: &str) -> Self {
        let mut pods = BTreeSet::new();
        for line in text.lines() {
            // HIERARCHY:CONTROLLERS:PATH
            let Some(path) = line.splitn(3, ':').nth(2) else {
                return Self::Unknown;
            };
            pods.extend(pod_of(path));
        }
        match (pods.pop_first(), pods.is_empty()) {
            (Some(pod), true) => Self::Pod(pod),
            (None, _) if !text.is_empty() => Self::Node,
            (None | Some(_), _) => Self::Unknown,
        }
    }

    /// In metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Pod(_) => "pod",
            Self::Node => "node",
            Self::Unknown => "unknown",
            Self::Hidden => "hidden",
        }
    }

    /// Whether it is a tenant's: nobody makes cgroups so deep but from within a container.
    pub fn is_of_tenant(&self) -> bool {
        matches!(self, Self::Pod(_) | Self::Hidden)
    }
}

/// UID of the pod whose cgroup this is, or is below of.
fn pod_of(path: &str) -> Option<String> {
    // Seen from another cgroup namespace a path goes upwards, and may leave out what all pods have in common.
    let is_relative = path.starts_with("/..");
    let mut below_pods = false;
    for name in path.split('/') {
        // `user@1000.service`: below it a user of the node makes cgroups of any name.
        if name.starts_with("user@") && name.ends_with(".service") {
            return None;
        }
        if let Some(uid) = by_systemd(name) {
            return Some(uid);
        }
        let uid = name.strip_prefix("pod").filter(|uid| is_uid(uid));
        if let Some(uid) = uid
            && (below_pods || (is_relative && uid.len() >= SHORTEST_UID))
        {
            return Some(uid.to_owned());
        }
        below_pods |= name == PODS;
    }
    None
}

/// `kubepods-burstable-pod0d9a1f4e_1111_2222_3333_444455556666.slice`, perhaps with what a cgroup root of its own puts in front.
fn by_systemd(name: &str) -> Option<String> {
    let (parents, uid) = name.strip_suffix(".slice")?.rsplit_once("-pod")?;
    let uid = uid.replace('_', "-");
    let is_below_pods = parents.split('-').any(|parent| parent == PODS);
    (is_below_pods && is_uid(&uid)).then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0d9a1f4e-1111-2222-3333-444455556666";
    const SLICE: &str = "0d9a1f4e_1111_2222_3333_444455556666";
    const OTHER: &str = "ffffffff_1111_2222_3333_444455556666";
    /// Of a static pod.
    const HASH: &str = "6c2a7d1d9e0b4b7f8a5e3c1d2b4f6a80";

    fn pod(uid: &str) -> Origin {
        Origin::Pod(uid.to_owned())
    }

    #[test]
    fn a_pod_is_found_in_the_cgroups_of_every_driver_and_version() {
        for (cgroups, expected) in [
            // Version 2, systemd: guaranteed, burstable, CRI-O, a cgroup that the container made.
            (
                format!("0::/kubepods.slice/kubepods-pod{SLICE}.slice/cri-containerd-1.scope\n"),
                pod(UID),
            ),
            (
                format!(
                    "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/crio-1.scope\n"
                ),
                pod(UID),
            ),
            (
                format!(
                    "0::/kubepods.slice/kubepods-pod{SLICE}.slice/cri-containerd-1.scope/a/b\n"
                ),
                pod(UID),
            ),
            // With a cgroup root of its own (kind).
            (
                format!(
                    "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{SLICE}.slice/x\n"
                ),
                pod(UID),
            ),
            // cgroupfs: version 2, version 1 with many lines, a root of its own, a static pod.
            (format!("0::/kubepods/burstable/pod{UID}/1\n"), pod(UID)),
            (
                format!(
                    "11:memory:/kubepods/pod{UID}/1\n3:cpu,cpuacct:/kubepods/pod{UID}/1\n1:name=systemd:/\n0::/\n"
                ),
                pod(UID),
            ),
            (
                format!("5:pids:/node-0/kubepods/besteffort/pod{UID}/1\n"),
                pod(UID),
            ),
            (format!("0::/kubepods/burstable/pod{HASH}/1\n"), pod(HASH)),
            // Seen from the cgroup namespace of another pod.
            (
                format!("0::/../../kubepods-pod{SLICE}.slice/cri-containerd-1.scope\n"),
                pod(UID),
            ),
            (format!("0::/../../pod{UID}/1\n"), pod(UID)),
            // What a container calls its own cgroups makes it no other pod.
            (
                format!(
                    "0::/kubepods.slice/kubepods-pod{SLICE}.slice/1.scope/kubepods-pod{OTHER}.slice\n"
                ),
                pod(UID),
            ),
            (
                format!("0::/kubepods/pod{UID}/1/kubepods/pod{HASH}\n"),
                pod(UID),
            ),
            // Of the node.
            (
                "0::/system.slice/nv-hostengine.service\n".to_owned(),
                Origin::Node,
            ),
            (
                "0::/user.slice/user-1000.slice/session-3.scope\n".to_owned(),
                Origin::Node,
            ),
            ("0::/system.slice/podman-4.scope\n".to_owned(), Origin::Node),
            ("0::/../../podruntime.slice\n".to_owned(), Origin::Node),
            (
                format!("0::/machine.slice/libpod-pod{SLICE}.slice\n"),
                Origin::Node,
            ),
            ("0::/kubepods.slice\n".to_owned(), Origin::Node),
            (
                format!(
                    "0::/user.slice/user-1000.slice/user@1000.service/kubepods.slice/kubepods-pod{SLICE}.slice/x\n"
                ),
                Origin::Node,
            ),
            (
                format!("0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/1\n"),
                Origin::Node,
            ),
            ("12:pids:/\n0::/\n".to_owned(), Origin::Node),
            // Of nobody that could be named.
            (String::new(), Origin::Unknown),
            ("nonsense\n".to_owned(), Origin::Unknown),
            (
                format!("2:pids:/kubepods/pod{UID}/1\n1:cpu:/kubepods/pod{HASH}/1\n"),
                Origin::Unknown,
            ),
        ] {
            assert_eq!(Origin::of_cgroups(&cgroups), expected, "{cgroups}");
        }
    }
}
