//! Every label, annotation, scheduling gate, finalizer, resource and field manager of Muster.
//!
//! Whether a key may change once the pod exists is part of its meaning; the admission policies (ValidatingAdmissionPolicies
//! in the chart) enforce it.

/// Namespace label: the Team that the namespace belongs to. Guarded by the RBAC verb
/// [`ASSIGN_VERB`] on `teams`.
pub const TEAM: &str = "muster.dev/team";
/// RBAC verb on `teams` that lets a user put a namespace into that Team.
pub const ASSIGN_VERB: &str = "assign";

/// Pod label: name of the gang that the pod belongs to. Fixed once the pod exists.
pub const GANG: &str = "muster.dev/gang";
/// Pod or Job annotation: how many pods the gang has, 1 to [`MAX_GANG_SIZE`]. Fixed.
pub const GANG_SIZE: &str = "muster.dev/gang-size";
/// Pod or Job label: name of the `PriorityTier`. Fixed; later changes go through `Gang.spec.tier`.
pub const TIER: &str = "muster.dev/tier";
/// Annotation: the level of the Topology that must hold the whole gang. Fixed.
pub const TOPOLOGY_REQUIRED: &str = "muster.dev/topology-required";
/// Annotation: the level of the Topology that should hold the whole gang. Fixed.
pub const TOPOLOGY_PREFERRED: &str = "muster.dev/topology-preferred";

/// Pod or Job annotation: for how long the gang's start may make no progress, in seconds, 1 to [`MAX_LIMIT_SECONDS`]. Then its
/// attempt is evicted. Fixed.
pub const START_TIMEOUT_SECONDS: &str = "muster.dev/start-timeout-seconds";
/// Pod or Job annotation: for how long a rank may have failed while others of its attempt go on, in seconds, 1 to
/// [`MAX_LIMIT_SECONDS`]. Then the attempt is evicted. Fixed.
pub const FAILURE_GRACE_SECONDS: &str = "muster.dev/failure-grace-seconds";
/// Pod or Job annotation: for how long an attempt of the gang runs at most, counted from its admission, in seconds, 1 to
/// [`LONGEST_RUNTIME_SECONDS`]. Then it is evicted, and the gang is not started again. Fixed.
pub const MAX_RUNTIME_SECONDS: &str = "muster.dev/max-runtime-seconds";
/// Pod or Job annotation: for how long the gang may tell the same by [`PROGRESS`], in seconds, 1 to [`MAX_LIMIT_SECONDS`]. Then the attempt
/// is evicted. Fixed.
pub const PROGRESS_DEADLINE_SECONDS: &str = "muster.dev/progress-deadline-seconds";
/// Pod or Job annotation: how often the gang is started anew at most after attempts of which pods failed by themselves, 0 to
/// [`MOST_RESTARTS`]. Fixed.
pub const MAX_RESTARTS: &str = "muster.dev/max-restarts";

/// Pod or Job annotation: with how many of its pods a gang of a Job with `completions` may start at the least, 1 to its size. The
/// others wait for its next attempt. Fixed.
pub const MIN_COUNT: &str = "muster.dev/min-count";

/// Annotation, shorthand for a claim: number of whole GPUs. Fixed.
pub const GPUS: &str = "muster.dev/gpus";
/// Annotation, shorthand for a claim: least memory of the device, or of each GPU beside [`GPUS`], a Kubernetes quantity that is meant
/// nominally. Fixed.
pub const VRAM: &str = "muster.dev/vram";
/// Annotation, shorthand for a claim: interconnect that the GPUs must share. Fixed.
pub const INTERCONNECT: &str = "muster.dev/interconnect";
/// Annotation, shorthand for a claim: the container that gets it; the first one without. Fixed.
pub const CONTAINER: &str = "muster.dev/container";
/// The shorthand annotations: a pod that carries any of them may hold devices.
pub const SHORTHAND: [&str; 4] = [GPUS, VRAM, INTERCONNECT, CONTAINER];

/// Pod annotation, written by the controller only: the pod's rank in its gang.
pub const RANK: &str = "muster.dev/rank";
/// Pod annotation, written by the controller only: the attempt that the pod belongs to.
pub const ATTEMPT: &str = "muster.dev/attempt";
/// Pod annotation, written by the controller only, where the gang names [`MIN_COUNT`]: how many pods the attempt has. Readable by
/// the downward API.
pub const ADMITTED_COUNT: &str = "muster.dev/admitted-count";
/// Pod annotation, written by the controller only: name of the Gang object; once set it is the
/// pod's identity.
pub const GANG_NAME: &str = "muster.dev/gang-name";
/// Pod annotation, written by the controller only: `pinned`, `scored` or `any`.
pub const PLACEMENT: &str = "muster.dev/placement";
/// Pod annotation, written by the controller: how often the kubelet was asked to look at the pod again. A changed
/// annotation is what makes it.
pub const NUDGES: &str = "muster.dev/nudges";
/// Pod annotation, written by the controller only: when the pod's gang is ended for another one at the latest, in RFC 3339. It is
/// taken away if the gang may stay. Readable by the downward API.
pub const PREEMPT_AT: &str = "muster.dev/preempt-at";
/// Pod annotation, written by the workload at any time: when it wrote its last checkpoint, in RFC 3339.
pub const CHECKPOINTED_AT: &str = "muster.dev/checkpointed-at";
/// Pod annotation, written by the workload at any time, on the pod of its first rank: how far the gang has come. Any text that is another one
/// whenever there was progress; it is compared with itself alone.
pub const PROGRESS: &str = "muster.dev/progress";
/// Pod annotation, written by the pod's owner at any time. `true`: its owner bears that the pod is deleted by force, though what ran in it may
/// run on, where its node is not Ready and the administrator says `recovery.forceDeletion: WithConsent`.
pub const FORCE_DELETION: &str = "muster.dev/force-deletion";
/// Value of [`FORCE_DELETION`] by which an owner consents. Every other one says no.
pub const FORCE_DELETION_CONSENTED: &str = "true";
/// The annotations that only the controller writes.
pub const CONTROLLER_ANNOTATIONS: [&str; 6] = [
    RANK,
    ATTEMPT,
    ADMITTED_COUNT,
    GANG_NAME,
    PLACEMENT,
    PREEMPT_AT,
];

/// Value of [`PLACEMENT`]: the pod's node affinity names exactly one node.
pub const PLACEMENT_PINNED: &str = "pinned";
/// Value of [`PLACEMENT`]: the extender chooses among free nodes.
pub const PLACEMENT_SCORED: &str = "scored";
/// Value of [`PLACEMENT`]: the pod asks only for excepted devices; Muster has no say.
pub const PLACEMENT_ANY: &str = "any";

/// Job annotation, written by the controller only, as `GANG/ATTEMPT/UID` with the UID of the Job: Muster suspended the Job to evict
/// that attempt of that Gang, and resumes it once its pods are gone. A suspension without it is somebody else's, and is never
/// undone; so is one that names another Job, from whose manifest this one was made, or that another field manager wants as well.
pub const SUSPENDED_FOR: &str = "muster.dev/suspended-for";
/// Job annotation, written by the controller only, as `GANG/ATTEMPT/UID`: somebody else resumed the Job while Muster had suspended
/// it for that, or made the suspension theirs. It is neither suspended nor resumed for that again.
pub const RESUMED_BY_OTHERS: &str = "muster.dev/resumed-by-others";
/// Job annotation, written by the controller only, as `GANG/ATTEMPT/UID/LIMIT`: the Job's `backoffLimit` was raised to that, by the
/// number of the pods that are deleted for that attempt.
pub const BACKOFF_RAISED_FOR: &str = "muster.dev/backoff-limit-raised-for";
/// Job annotation, written by the controller only, as `FROM/TO/UID` with the UID of the Job: the Job's `backoffLimit` was raised to `TO`, so
/// that its gang may be started anew: it covers all failures of as many restarts as [`MAX_RESTARTS`] allows, or, where nothing says how many, of
/// all attempts so far. `FROM` is what it was as its user wrote it: more pods that fail by themselves, and it is lowered to that again, which `FROM/FROM/UID`
/// says. Another limit than `TO` is somebody else's, and counts as what is written.
pub const BACKOFF_COVERS: &str = "muster.dev/backoff-limit-covers";

/// Scheduling gate, put by the webhook, taken by the controller only.
pub const ADMISSION_GATE: &str = "muster.dev/admission";
/// The marker: an extended resource of quantity `"0"` by which kube-scheduler recognises the pods
/// that it must ask the extender about. Zero is deliberate: a node needs none of it.
pub const MARKER_RESOURCE: &str = "muster.dev/managed";
/// Finalizer of `NodeDevices` while it has permits.
pub const PERMITS_FINALIZER: &str = "muster.dev/permits";

/// Resource-name prefix of extended resources backed by a DeviceClass (Kubernetes KEP-5004).
pub const DEVICE_CLASS_RESOURCE_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// Name of the DRA driver, vendor of its CDI specs and domain of its attributes.
pub const DRIVER: &str = "gpu.muster.dev";
/// DeviceClass of whole GPUs.
pub const DEVICE_CLASS_GPU: &str = "gpu.muster.dev";
/// DeviceClass of MIG slices.
pub const DEVICE_CLASS_MIG: &str = "mig.muster.dev";
/// DeviceClass of whole GPUs and MIG slices.
pub const DEVICE_CLASS_GPU_OR_SLICE: &str = "gpu-or-slice.muster.dev";
/// Taint key of a Node that an administrator drains by hand, with effect `NoSchedule` or `NoExecute`. Its value says who, and why.
pub const TAINT_DRAIN: &str = "muster.dev/drain";
/// Annotation of a ResourceClaim that kube-scheduler made for what a pod asks for by the name of a resource (Kubernetes
/// KEP-5004); its value is `true`.
pub const EXTENDED_RESOURCE_CLAIM: &str = "resource.kubernetes.io/extended-resource-claim";
/// Annotation of a ResourceClaim that kube-controller-manager made from a template: which claim of its pod it is. It is written after the
/// annotations that the template gives, so no template can leave it out.
pub const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";
/// Taint key (NoSchedule) on devices that are held without a permit.
pub const TAINT_HELD: &str = "gpu.muster.dev/held";
/// Taint key (NoSchedule) on GPUs that NVML does not list any more.
pub const TAINT_GONE: &str = "gpu.muster.dev/gone";
/// Taint key (NoSchedule) on devices that processes use which no claim and no device plugin explains.
pub const TAINT_BYPASSED: &str = "gpu.muster.dev/bypassed";
/// Taint key (NoSchedule) on devices that a fault of their GPU reaches. Its value is the class of the worst.
pub const TAINT_FAULT: &str = "gpu.muster.dev/fault";
/// Taint key (NoSchedule) on whole GPUs whose NVLinks have a fault: a claim that needs none may tolerate it. Its value is the class.
pub const TAINT_LINK_FAULT: &str = "gpu.muster.dev/link-fault";
/// Taint key (NoSchedule) on all devices of a node that has to be started anew for one of them. Its value is the class.
pub const TAINT_NODE_FAULT: &str = "gpu.muster.dev/node-fault";

/// Name of the one `Ledger` object.
pub const LEDGER_NAME: &str = "cluster";

/// Longest limit that a gang may ask for by [`START_TIMEOUT_SECONDS`], [`FAILURE_GRACE_SECONDS`] and
/// [`PROGRESS_DEADLINE_SECONDS`]: a day.
pub const MAX_LIMIT_SECONDS: u32 = 86_400;

/// Longest run that a gang may ask for by [`MAX_RUNTIME_SECONDS`]: a year.
pub const LONGEST_RUNTIME_SECONDS: u32 = 31_536_000;

/// How often a gang may ask at most to be started anew, by [`MAX_RESTARTS`].
pub const MOST_RESTARTS: u32 = 1_000;

/// Largest gang. Bounded by what one `Ledger` write may carry.
pub const MAX_GANG_SIZE: u32 = 4096;

/// Field manager of the controller's writes (at most 128 characters, as Kubernetes demands).
pub const FIELD_MANAGER_CONTROLLER: &str = "muster-controller";
/// Field manager of the driver's writes.
pub const FIELD_MANAGER_DRIVER: &str = "muster-dra-driver";
/// Field manager of the `caBundle` that the leader keeps in the webhook configurations.
pub const FIELD_MANAGER_CERTIFICATES: &str = "muster-certificates";
