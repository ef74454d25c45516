//! What replaces an object that cannot be decoded, so that it holds back only what its absence would free.
//!
//! A leader concludes from what is not there: what no Gang and no permit names is free, whose pod is gone has ended. So an
//! object must not be missing only because this version cannot read it; and it must not stop everybody else either, or
//! whoever can create a Job could end all admission. It is replaced by as much of it as could be read, changed so that
//! nothing is concluded from what is missing: the table is [`rule`]. It is logged, by kind and name with what is
//! missing and what is held back, and counted in `muster_watch_undecodable_objects`.
//!
//! What could not be read is only *missing* if Muster reads it ([`Rule::read`]): a Job whose pod template is odd is a Job
//! like any other.
//!
//! A replacement is marked as well ([`super::Feed::undecodable`]): the protocol writes nothing to such an object, and
//! takes nothing back that depends on it.

use k8s_openapi::{
    api::{
        batch::v1::{Job, JobSpec},
        core::v1::{Namespace, Node, NodeSpec, Pod},
        resource::v1::{DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Resource;
use muster_api::{
    Cohort, CohortSpec, Flavor, Gang, GangSpec, Ledger, NodeDevices, NodeDevicesSpec, PriorityTier,
    Queue, Team, TeamSpec, Topology, keys, team::Stop,
};
use muster_cluster::object::Kind;
use muster_serve::watch::{
    Decoded, Taken,
    decoded::{Missing, Partial},
};

/// What an unreadable object of a kind means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// The fields that Muster reads, besides the metadata. What is missing elsewhere is not missed.
    pub(super) read: &'static [&'static str],
    /// What would be free, or permitted, if the object were simply left out.
    pub(super) absence_frees: &'static str,
    /// What is held back in its stead.
    pub(super) held_back: &'static str,
}

/// The table.
pub(super) fn rule(kind: Kind) -> Rule {
    let (read, absence_frees, held_back): (&'static [&'static str], _, _) = match kind {
        Kind::Cohort => (
            &["spec"],
            "the limits that it sets between its members and the rest",
            "nothing is admitted in any Team below it",
        ),
        Kind::DeviceClass => (&["spec"], "nothing", "gangs whose claims name it wait"),
        Kind::DeviceTaintRule => (
            &["spec"],
            "the devices that it keeps from being planned",
            "nothing: kube-scheduler binds no pod to such a device, so a gang that is planned on one goes back to its queue in time",
        ),
        Kind::Flavor => (
            &["spec"],
            "nothing: what is charged to it stays charged by its name",
            "nothing new is planned on its devices as this Flavor",
        ),
        Kind::Gang => (
            &["spec", "status"],
            "what its admission alone charges, and its name for another Gang",
            "the gang stays as it is: not written, not admitted, not ended; its permits stand",
        ),
        Kind::Job => (
            &[
                "spec.completions",
                "spec.completionMode",
                "spec.parallelism",
                "spec.suspend",
                "status.conditions",
            ],
            "its pods, which would start one by one",
            "its pods wait as a gang that is not complete, unless its annotation says their number",
        ),
        Kind::Ledger => (
            &["spec"],
            "everything that is committed and not yet carried out",
            "everything: nobody leads before it can be read",
        ),
        Kind::Namespace => (
            &[],
            "nothing: its gangs would be of no Team",
            "nothing: all that is read of it is metadata",
        ),
        Kind::Node => (
            &[
                "spec",
                "status.conditions",
                "status.allocatable",
                "status.nodeInfo",
            ],
            "what gangs hold on it: a Node that is gone proves that its devices are",
            "nothing is planned on the node, as if it were cordoned",
        ),
        Kind::NodeDevices => (
            &["spec", "status"],
            "the charge of its permits, and the node's devices",
            "nothing is planned on the node, permitted there, or counted as released there",
        ),
        Kind::Pod => (
            &[
                "spec",
                "status.phase",
                "status.conditions",
                "status.resourceClaimStatuses",
                "status.extendedResourceClaimStatus",
            ],
            "its permit and charge, and its rank for another pod",
            "its permit and charge stay; it is not ungated, and its gang waits for it",
        ),
        Kind::PriorityTier => (&["spec"], "nothing", "gangs of this tier wait"),
        Kind::Queue => (
            &["spec", "status"],
            "nothing",
            "nothing: it is published again",
        ),
        Kind::ResourceClaim => (
            &["spec", "status.allocation", "status.reservedFor"],
            "the devices that are allocated to it",
            "what a gang is charged for it stays; a gang that needs it to be understood waits",
        ),
        Kind::ResourceSlice => (
            &["spec"],
            "nothing",
            "nothing new is planned on the devices of its pool",
        ),
        Kind::Team => (
            &["spec"],
            "its part of what its Cohort lends, and of what an automatic quota leaves to others",
            "nothing is admitted in the Team, as if it were stopped",
        ),
        Kind::Topology => (
            &["spec"],
            "nothing",
            "gangs that require one of its levels wait",
        ),
    };
    Rule {
        read,
        absence_frees,
        held_back,
    }
}

/// A kind of which an object can be stood in for.
pub(super) trait StandIn: Resource<DynamicType = ()> + Sized {
    /// What replaces an object of which only a part, or only the metadata, could be read; `None`: nothing needs to.
    fn stand_in(read: Option<Self>, metadata: ObjectMeta) -> Option<Self>;
}

/// What becomes of an object, by what is missing of it.
pub(super) fn take_over<K: StandIn>(kind: Kind, decoded: Decoded<K>) -> Taken<K> {
    let Partial {
        metadata,
        object,
        missing,
    } = match decoded {
        Decoded::Whole(object) => return Taken::Whole(object),
        Decoded::Partial(partial) => *partial,
    };
    let rule = rule(kind);
    let missed: Vec<&Missing> = missing
        .iter()
        .filter(|missing| rule.misses(&missing.path))
        .collect();
    match object {
        Some(object) if missed.is_empty() => Taken::Whole(object),
        object => {
            tracing::error!(
                ?kind,
                namespace = metadata.namespace,
                name = metadata.name,
                missing = ?missed,
                absence_would_free = rule.absence_frees,
                held_back = rule.held_back,
                "an object cannot be read: mend or delete it, or run the version that wrote it"
            );
            K::stand_in(object, metadata).map_or(Taken::LeftOut, Taken::StandIn)
        }
    }
}

impl Rule {
    /// Whether something at this place, or all below it, is read.
    fn misses(self, path: &str) -> bool {
        let is_below = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| {
                rest.is_empty() || outer.is_empty() || rest.starts_with(['.', '['])
            })
        };
        if is_below(path, "metadata") {
            return !is_below(path, "metadata.managedFields");
        }
        self.read
            .iter()
            .any(|field| is_below(path, field) || is_below(field, path))
    }
}

/// Where absence frees nothing, nothing replaces it.
macro_rules! nothing_stands_in {
    ($($kind:ty)*) => {$(
        impl StandIn for $kind {
            fn stand_in(_: Option<Self>, _: ObjectMeta) -> Option<Self> {
                None
            }
        }
    )*};
}

// (The Ledger: it cannot be replaced by anything. Without it nobody leads.)
nothing_stands_in!(DeviceClass DeviceTaintRule Flavor Ledger PriorityTier Queue Topology);

/// Its metadata, or what could be read, says all that has to be said.
macro_rules! what_is_read_stands_in {
    ($($kind:ident)*) => {$(
        impl StandIn for $kind {
            fn stand_in(read: Option<Self>, metadata: ObjectMeta) -> Option<Self> {
                Some(read.unwrap_or_else(|| Self { metadata, ..Self::default() }))
            }
        }
    )*};
}

// A pod without a phase has not ended, one without a node is not bound; a claim without an allocation stays what it was
// charged as.
what_is_read_stands_in!(Namespace Pod ResourceClaim);

impl StandIn for Cohort {
    /// A Cohort below itself: the engine admits nothing in a tree with a cycle.
    fn stand_in(_: Option<Self>, metadata: ObjectMeta) -> Option<Self> {
        let name = metadata.name.clone().unwrap_or_default();
        let spec = CohortSpec {
            parent: Some(name.clone()),
            ..CohortSpec::default()
        };
        Some(Self {
            metadata,
            ..Self::new(&name, spec)
        })
    }
}

impl StandIn for Gang {
    fn stand_in(read: Option<Self>, metadata: ObjectMeta) -> Option<Self> {
        let name = metadata.name.clone().unwrap_or_default();
        Some(read.unwrap_or_else(|| Self {
            metadata,
            ..Self::new(&name, GangSpec::default())
        }))
    }
}

impl StandIn for Job {
    /// The largest gang there is: it is never complete.
    fn stand_in(read: Option<Self>, metadata: ObjectMeta) -> Option<Self> {
        let mut job = read.unwrap_or_else(|| Self {
            metadata,
            ..Self::default()
        });
        let spec = job.spec.get_or_insert_with(JobSpec::default);
        let size = i32::try_from(keys::MAX_GANG_SIZE).ok();
        spec.completion_mode = Some("Indexed".to_owned());
        spec.completions = size;
        spec.parallelism = size;
        Some(job)
    }
}

impl StandIn for Node {
    fn stand_in(read: Option<Self>, metadata: ObjectMeta) -> Option<Self> {
        let mut node = read.unwrap_or_else(|| Self {
            metadata,
            ..Self::default()
        });
        let spec = node.spec.get_or_insert_with(NodeSpec::default);
        spec.unschedulable = Some(true);
        Some(node)
    }
}

impl StandIn for NodeDevices {
    /// Without a status the driver has not answered: nothing is planned or released on the node.
    fn stand_in(read: Option<Self>, metadata: ObjectMeta) -> Option<Self> {
        let name = metadata.name.clone().unwrap_or_default();
        let mut devices = read.unwrap_or_else(|| Self {
            metadata,
            ..Self::new(&name, NodeDevicesSpec::default())
        });
        devices.status = None;
        Some(devices)
    }
}

impl StandIn for ResourceSlice {
    /// Its pool with no device of it: a device that may be tainted, or described wrongly, is not offered.
    fn stand_in(read: Option<Self>, metadata: ObjectMeta) -> Option<Self> {
        let mut slice = read.unwrap_or_else(|| Self {
            metadata,
            ..Self::default()
        });
        slice.spec.devices = None;
        Some(slice)
    }
}

impl StandIn for Team {
    fn stand_in(read: Option<Self>, metadata: ObjectMeta) -> Option<Self> {
        let name = metadata.name.clone().unwrap_or_default();
        let mut team = read.unwrap_or_else(|| Self {
            metadata,
            ..Self::new(&name, TeamSpec::default())
        });
        team.spec.stop = Stop::Hold;
        Some(team)
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn taken<K: StandIn + DeserializeOwned>(kind: Kind, stored: Value) -> Taken<K> {
        take_over(kind, serde_json::from_value(stored).unwrap())
    }

    fn stand_in<K: StandIn + DeserializeOwned>(kind: Kind, stored: Value) -> K {
        match taken(kind, stored) {
            Taken::StandIn(object) => object,
            Taken::Whole(_) => panic!("{kind:?}: nothing is missed"),
            Taken::LeftOut => panic!("{kind:?}: left out"),
        }
    }

    fn metadata() -> Value {
        json!({"name": "a", "namespace": "lab", "uid": "u", "resourceVersion": "7"})
    }

    #[test]
    fn a_job_of_the_far_future_is_a_job_like_any_other() {
        let stored = json!({"metadata": metadata(), "spec": {
            "completions": 4, "parallelism": 4, "completionMode": "Indexed",
            "template": {"metadata": {"creationTimestamp": "9999-12-31T23:59:59Z"}, "spec": {}},
        }});
        let Taken::Whole(job) = taken::<Job>(Kind::Job, stored) else {
            panic!("it is not decoded");
        };
        assert_eq!(job.spec.unwrap().completions, Some(4));
    }

    #[test]
    fn what_muster_does_not_read_is_not_missed() {
        let job = json!({"metadata": metadata(), "spec": {"completions": 4, "template": "none"}});
        assert!(matches!(taken::<Job>(Kind::Job, job), Taken::Whole(_)));
        let pod = json!({"metadata": metadata(), "status": {"startTime": "tomorrow"}});
        assert!(matches!(taken::<Pod>(Kind::Pod, pod), Taken::Whole(_)));
        let pod = json!({"metadata": metadata(), "status": {"phase": 4}});
        assert!(matches!(taken::<Pod>(Kind::Pod, pod), Taken::StandIn(_)));
        let pod = json!({"metadata": metadata(), "status": "gone"});
        assert!(matches!(taken::<Pod>(Kind::Pod, pod), Taken::StandIn(_)));
    }

    #[test]
    fn where_absence_frees_nothing_an_object_is_left_out() {
        let broken = || json!({"metadata": metadata(), "spec": "none"});
        let left_out = [
            matches!(
                taken::<DeviceClass>(Kind::DeviceClass, broken()),
                Taken::LeftOut
            ),
            matches!(
                taken::<DeviceTaintRule>(Kind::DeviceTaintRule, broken()),
                Taken::LeftOut
            ),
            matches!(taken::<Flavor>(Kind::Flavor, broken()), Taken::LeftOut),
            matches!(taken::<Ledger>(Kind::Ledger, broken()), Taken::LeftOut),
            matches!(
                taken::<PriorityTier>(Kind::PriorityTier, broken()),
                Taken::LeftOut
            ),
            matches!(taken::<Queue>(Kind::Queue, broken()), Taken::LeftOut),
            matches!(taken::<Topology>(Kind::Topology, broken()), Taken::LeftOut),
        ];
        assert_eq!(left_out, [true; 7]);
    }

    #[test]
    fn what_stands_in_frees_nothing_and_is_the_same_object() {
        let broken = || json!({"metadata": metadata(), "spec": "none", "status": "none"});
        let same = |metadata: &ObjectMeta| {
            assert_eq!(metadata.name.as_deref(), Some("a"));
            assert_eq!(metadata.uid.as_deref(), Some("u"));
            assert_eq!(metadata.resource_version.as_deref(), Some("7"));
        };
        let cohort: Cohort = stand_in(Kind::Cohort, broken());
        assert_eq!(cohort.spec.parent.as_deref(), Some("a"), "a cycle");
        same(&cohort.metadata);
        let gang: Gang = stand_in(Kind::Gang, broken());
        same(&gang.metadata);
        let job: Job = stand_in(Kind::Job, broken());
        assert_eq!(job.spec.unwrap().completions, Some(4_096));
        same(&job.metadata);
        let node: Node = stand_in(Kind::Node, broken());
        assert_eq!(node.spec.unwrap().unschedulable, Some(true));
        same(&node.metadata);
        let devices: NodeDevices = stand_in(Kind::NodeDevices, broken());
        assert_eq!(devices.status, None);
        same(&devices.metadata);
        let pod: Pod = stand_in(Kind::Pod, broken());
        assert_eq!(pod.status, None);
        same(&pod.metadata);
        let claim: ResourceClaim = stand_in(Kind::ResourceClaim, broken());
        same(&claim.metadata);
        let slice: ResourceSlice = stand_in(Kind::ResourceSlice, broken());
        assert_eq!(slice.spec.devices, None);
        same(&slice.metadata);
        let team: Team = stand_in(Kind::Team, broken());
        assert_eq!(team.spec.stop, Stop::Hold);
        same(&team.metadata);
    }

    #[test]
    fn what_can_be_read_of_a_node_s_permits_stands() {
        let permit = |attempt: Value| {
            json!({"podUid": "p", "claimUids": [], "gang": "lab/g", "gangUid": "g",
                "attempt": attempt, "team": "vision", "charge": {}})
        };
        let stored = json!({"metadata": metadata(),
            "spec": {"nodeUid": "n", "leaderEpoch": 3, "permits": [permit(json!("one")), permit(json!(2))]},
            "status": {"uid": "u", "observedGeneration": 1}});
        let devices: NodeDevices = stand_in(Kind::NodeDevices, stored);
        let attempts: Vec<i64> = devices
            .spec
            .permits
            .iter()
            .map(|permit| permit.attempt)
            .collect();
        assert_eq!(attempts, [2]);
        assert_eq!(
            devices.status, None,
            "the driver's word is not about what is left"
        );
    }

    #[test]
    fn a_team_of_a_later_version_is_stopped() {
        let stored = json!({"metadata": metadata(), "spec": {"cohort": "all", "stop": "AtNight"}});
        let team: Team = stand_in(Kind::Team, stored);
        assert_eq!(team.spec.stop, Stop::Hold);
        assert_eq!(team.spec.cohort.as_deref(), Some("all"));
    }
}
