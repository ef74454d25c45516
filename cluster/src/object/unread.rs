//! What nobody reads of an object, and what is therefore not even made when it is received.
//!
//! A pod says most about its containers: environments, mounts, probes, images; a Job carries the template of its pods; a Node lists the images
//! that it has. To make all of that, and to drop it a moment later (`super::strip`), takes longer than to read the rest. So whoever receives
//! objects passes it over as text.
//!
//! The tables name what is **not** read: what is missing in them costs time and nothing else. Whoever begins to read a field takes it out. A
//! field that is passed over is never found to be wrong, either.

#[cfg(test)]
mod tests;

use serde::de::DeserializeOwned;

use super::types;

/// A field, and how much of it nobody reads.
pub type Unread = (&'static str, Part);

/// How much of a field.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// All of it.
    Whole,
    /// These fields of it; of a list, of each object in it.
    Fields(&'static [Unread]),
}

use Part::{Fields, Whole};

const OF_CONTAINER: &[Unread] = &[
    ("args", Whole),
    ("command", Whole),
    ("env", Whole),
    ("envFrom", Whole),
    ("image", Whole),
    ("imagePullPolicy", Whole),
    ("lifecycle", Whole),
    ("livenessProbe", Whole),
    ("readinessProbe", Whole),
    ("securityContext", Whole),
    ("startupProbe", Whole),
    ("terminationMessagePath", Whole),
    ("terminationMessagePolicy", Whole),
    ("volumeMounts", Whole),
    ("workingDir", Whole),
];

/// Whether a volume is a claim is read, and nothing of the others.
const OF_VOLUME: &[Unread] = &[
    ("configMap", Whole),
    ("downwardAPI", Whole),
    ("emptyDir", Whole),
    ("hostPath", Whole),
    ("projected", Whole),
    ("secret", Whole),
];

const OF_CONTAINER_STATUS: &[Unread] = &[
    ("allocatedResources", Whole),
    ("containerID", Whole),
    ("image", Whole),
    ("imageID", Whole),
    ("lastState", Whole),
    ("resources", Whole),
    (
        "state",
        Fields(&[
            ("running", Fields(&[("startedAt", Whole)])),
            ("terminated", Fields(OF_ENDED_CONTAINER)),
            ("waiting", Fields(&[("message", Whole)])),
        ]),
    ),
    ("user", Whole),
    ("volumeMounts", Whole),
];

/// With what code it ended is read.
const OF_ENDED_CONTAINER: &[Unread] = &[
    ("containerID", Whole),
    ("finishedAt", Whole),
    ("message", Whole),
    ("reason", Whole),
    ("startedAt", Whole),
];

/// Whether it holds, and for what reason, is read.
const OF_CONDITION_OF_POD: &[Unread] = &[
    ("lastProbeTime", Whole),
    ("lastTransitionTime", Whole),
    ("message", Whole),
    ("observedGeneration", Whole),
];

const OF_POD: &[Unread] = &[
    (
        "spec",
        Fields(&[
            ("containers", Fields(OF_CONTAINER)),
            ("dnsPolicy", Whole),
            ("enableServiceLinks", Whole),
            ("imagePullSecrets", Whole),
            ("initContainers", Fields(OF_CONTAINER)),
            ("securityContext", Whole),
            ("serviceAccount", Whole),
            ("serviceAccountName", Whole),
            ("volumes", Fields(OF_VOLUME)),
        ]),
    ),
    (
        "status",
        Fields(&[
            ("conditions", Fields(OF_CONDITION_OF_POD)),
            ("containerStatuses", Fields(OF_CONTAINER_STATUS)),
            ("hostIP", Whole),
            ("hostIPs", Whole),
            ("initContainerStatuses", Fields(OF_CONTAINER_STATUS)),
            ("podIP", Whole),
            ("podIPs", Whole),
            ("qosClass", Whole),
            ("startTime", Whole),
        ]),
    ),
];

/// Whether the pods of a Job start their containers anew in place is read.
const OF_TEMPLATE: &[Unread] = &[
    ("affinity", Whole),
    ("containers", Whole),
    ("dnsConfig", Whole),
    ("dnsPolicy", Whole),
    ("ephemeralContainers", Whole),
    ("hostAliases", Whole),
    ("imagePullSecrets", Whole),
    ("initContainers", Whole),
    ("nodeSelector", Whole),
    ("overhead", Whole),
    ("readinessGates", Whole),
    ("resourceClaims", Whole),
    ("resources", Whole),
    ("schedulingGates", Whole),
    ("securityContext", Whole),
    ("tolerations", Whole),
    ("topologySpreadConstraints", Whole),
    ("volumes", Whole),
];

const OF_JOB: &[Unread] = &[
    (
        "spec",
        Fields(&[
            ("selector", Whole),
            ("successPolicy", Whole),
            (
                "template",
                Fields(&[("metadata", Whole), ("spec", Fields(OF_TEMPLATE))]),
            ),
        ]),
    ),
    ("status", Fields(&[("uncountedTerminatedPods", Whole)])),
];

const OF_NODE: &[Unread] = &[(
    "status",
    Fields(&[
        ("images", Whole),
        ("volumesAttached", Whole),
        ("volumesInUse", Whole),
    ]),
)];

/// A kind whose objects are received.
pub trait Receive: DeserializeOwned {
    /// What nobody reads of an object: it is read as if it did not say that.
    const UNREAD: &'static [Unread] = &[];
}

macro_rules! receive {
    ($($kind:ident $(but $unread:ident)?;)*) => {
        $(impl Receive for types::$kind {
            $(const UNREAD: &'static [Unread] = $unread;)?
        })*
    };
}

receive! {
    Cohort;
    DeviceClass;
    DeviceTaintRule;
    Flavor;
    Gang;
    Job but OF_JOB;
    Ledger;
    Namespace;
    Node but OF_NODE;
    NodeDevices;
    Pod but OF_POD;
    PriorityTier;
    Queue;
    ResourceClaim;
    ResourceSlice;
    Team;
    Topology;
}
