//! The gang filter: what is said about one pod.
//!
//! A pure function of the cache, the pod and the time. kube-scheduler may ask again for attempts that
//! it throws away, in any order and with any subset of nodes; nothing is reserved and nothing remembered.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::{api::core::v1::Toleration, jiff::Timestamp};
use muster_api::{NodeRanks, Reason, keys};
use muster_cluster::formed::GangKey;

use crate::{
    cache::{Cache, GangView, MemberView},
    pin::pinned_node,
    place::{self, Lost},
    wire::RequestedPod,
};

/// What is said about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It runs on this node or nowhere.
    Planned(String),
    /// Muster has no say: the list as it came.
    AsGiven,
    /// It runs nowhere.
    Refused(Refusal),
    /// It cannot be judged; kube-scheduler is to ask again.
    Unknown(&'static str),
}

impl Verdict {
    /// The word for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Planned(_) => "planned",
            Self::AsGiven => "as-given",
            Self::Refused(_) => "refused",
            Self::Unknown(_) => "error",
        }
    }
}

/// Why a pod runs nowhere. Each has one constant text: see [`crate::wire::RefusedNodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The controller has not admitted its gang: it carries no placement.
    NotAdmitted,
    /// Its annotation `placement` has a value that does not exist.
    PlacementUnknown,
    /// It is said to be pinned, but its node affinity does not name one node.
    PinMissing,
    /// Under its UID another pod was observed, or one of another gang.
    IdentityMismatch,
    /// Its gang has a newer attempt.
    AttemptSuperseded,
    /// Its Gang plans its rank on another node than it is pinned to, or its node is not offered.
    PlannedElsewhere,
    /// A rank of its gang has lost its place.
    PlaceLost(Lost),
}

impl Refusal {
    /// The stable reason.
    pub fn reason(self) -> Reason {
        match self {
            Self::NotAdmitted
            | Self::PlacementUnknown
            | Self::PinMissing
            | Self::IdentityMismatch => Reason::NotAdmitted,
            Self::AttemptSuperseded => Reason::AttemptSuperseded,
            Self::PlannedElsewhere => Reason::PlannedElsewhere,
            Self::PlaceLost(_) => Reason::PlaceLost,
        }
    }

    /// The text that kube-scheduler shows in the pod's condition and event.
    pub fn text(self) -> &'static str {
        match self {
            Self::NotAdmitted => "NotAdmitted: its gang holds no quota and no place yet",
            Self::PlacementUnknown => "NotAdmitted: muster.dev/placement has an unknown value",
            Self::PinMissing => {
                "NotAdmitted: muster.dev/placement is pinned, but the node affinity names no single node"
            }
            Self::IdentityMismatch => {
                "NotAdmitted: the pod is not the one that was observed under its UID"
            }
            Self::AttemptSuperseded => "AttemptSuperseded: its gang has a newer attempt",
            Self::PlannedElsewhere => "PlannedElsewhere: its gang is planned on another node",
            Self::PlaceLost(Lost::Gone) => "PlaceLost: a node that its gang is planned on is gone",
            Self::PlaceLost(Lost::Cordoned) => {
                "PlaceLost: a node that its gang is planned on is cordoned"
            }
            Self::PlaceLost(Lost::Tainted) => {
                "PlaceLost: a node that its gang is planned on has a taint that the gang does not tolerate"
            }
            Self::PlaceLost(Lost::NotReady) => {
                "PlaceLost: a node that its gang is planned on has not been Ready for 30 s"
            }
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.text())
    }
}

/// Judges a pod. `cache` is synced: every kind has delivered its first list.
///
/// The placement is read from the pod that kube-scheduler sends, not from the cache: only the
/// controller may write it (policy d), and a pod is asked about milliseconds after it was ungated, often
/// before our own watch has told us.
pub fn judge(pod: &RequestedPod<'_>, cache: &Cache, now: Timestamp) -> Verdict {
    match annotation(pod, keys::PLACEMENT) {
        None => Verdict::Refused(Refusal::NotAdmitted),
        Some(keys::PLACEMENT_ANY) => Verdict::AsGiven,
        Some(keys::PLACEMENT_SCORED) => {
            Verdict::Unknown("muster.dev/placement scored is not supported by this version")
        }
        Some(keys::PLACEMENT_PINNED) => judge_pinned(pod, cache, now)
            .map_or_else(Verdict::Refused, |node| Verdict::Planned(node.to_owned())),
        Some(_) => Verdict::Refused(Refusal::PlacementUnknown),
    }
}

fn judge_pinned<'a>(
    pod: &'a RequestedPod<'_>,
    cache: &Cache,
    now: Timestamp,
) -> Result<&'a str, Refusal> {
    let node = pinned_node(pod.spec.affinity.as_ref()).ok_or(Refusal::PinMissing)?;
    let subject = AdmittedPod::of(pod).ok_or(Refusal::NotAdmitted)?;
    if let Some(observed) = cache.member(&pod.metadata.uid) {
        check_identity(&subject, pod, observed)?;
    }
    let gang = cache.gang(&subject.gang);
    check_attempt(&subject, gang, cache)?;
    // A Gang of an older attempt says nothing about this one: our watch is behind.
    let gang = gang.filter(|gang| gang.attempt == subject.attempt);
    check_plan(&subject, node, gang)?;
    check_places(&subject, node, pod, gang, cache, now)?;
    Ok(node)
}

/// The pod that is asked about, and what the controller wrote into it. Its rank is for the workload (ranks that have succeeded
/// leave gaps); its place in the plan is where the Gang's admission lists its UID.
struct AdmittedPod<'a> {
    uid: &'a str,
    gang: GangKey,
    attempt: i64,
}

impl<'a> AdmittedPod<'a> {
    fn of(pod: &'a RequestedPod<'_>) -> Option<Self> {
        Some(Self {
            uid: &pod.metadata.uid,
            gang: GangKey::new(
                pod.metadata.namespace.to_string(),
                annotation(pod, keys::GANG_NAME)?,
            ),
            attempt: annotation(pod, keys::ATTEMPT)?.parse().ok()?,
        })
    }
}

fn annotation<'a>(pod: &'a RequestedPod<'_>, key: &str) -> Option<&'a str> {
    let annotations: &BTreeMap<String, String> = pod.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

/// Namespace, name and gang name never change under one UID; an observation that is merely older may
/// lack the gang name.
fn check_identity(
    subject: &AdmittedPod<'_>,
    pod: &RequestedPod<'_>,
    observed: &MemberView,
) -> Result<(), Refusal> {
    let same = observed.namespace == pod.metadata.namespace
        && observed.name == pod.metadata.name
        && observed
            .gang
            .as_ref()
            .is_none_or(|gang| *gang == subject.gang.name);
    same.then_some(()).ok_or(Refusal::IdentityMismatch)
}

/// Attempts only rise, so a higher one anywhere is proof, however late the rest of the cache is. Pods
/// that are still gated are stamped before the Gang is written.
fn check_attempt(
    subject: &AdmittedPod<'_>,
    gang: Option<&GangView>,
    cache: &Cache,
) -> Result<(), Refusal> {
    let of_gang = gang.map(|gang| gang.attempt);
    let newest = cache
        .members_of(&subject.gang)
        .filter_map(|(_, member)| member.attempt)
        .chain(of_gang)
        .max();
    if newest.is_some_and(|newest| newest > subject.attempt) {
        return Err(Refusal::AttemptSuperseded);
    }
    Ok(())
}

/// The pin must be what the Gang plans for the pod.
fn check_plan(
    subject: &AdmittedPod<'_>,
    node: &str,
    gang: Option<&GangView>,
) -> Result<(), Refusal> {
    let planned = gang.and_then(|gang| gang.planned_node(gang.place_of(subject.uid)?));
    if planned.is_some_and(|planned| planned.node != node) {
        return Err(Refusal::PlannedElsewhere);
    }
    Ok(())
}

/// No member of the gang that still needs its place may have lost it: a doomed gang stops binding at once.
fn check_places(
    subject: &AdmittedPod<'_>,
    node: &str,
    pod: &RequestedPod<'_>,
    gang: Option<&GangView>,
    cache: &Cache,
    now: Timestamp,
) -> Result<(), Refusal> {
    let planned = |place: Option<usize>| gang.zip(place)?.0.planned_node(place?);
    let check = |node: &str, planned: Option<&NodeRanks>, tolerations: &[Toleration]| {
        let uid = planned
            .map(|run| run.node_uid.as_str())
            .filter(|uid| !uid.is_empty());
        place::lost(cache.node(node), uid, tolerations, now)
            .map_or(Ok(()), |lost| Err(Refusal::PlaceLost(lost)))
    };
    let own = gang.and_then(|gang| gang.place_of(subject.uid));
    let tolerations = pod.spec.tolerations.as_deref().unwrap_or_default();
    check(node, planned(own), tolerations)?;
    for (place, member) in members_that_need_a_place(subject, gang, cache).into_values() {
        let planned = planned(place);
        let node = planned.map(|run| run.node.as_str());
        if let Some(node) = node.or(member.pinned.as_deref()) {
            check(node, planned, &member.tolerations)?;
        }
    }
    Ok(())
}

/// The other members of the attempt that are not bound yet, by UID, with their place in the plan where it is known:
/// those that the Gang's admission lists (they may still be gated, without pin), and those that carry gang and attempt
/// themselves (the Gang may not have reached us yet).
fn members_that_need_a_place<'a>(
    subject: &AdmittedPod<'_>,
    gang: Option<&'a GangView>,
    cache: &'a Cache,
) -> BTreeMap<&'a str, (Option<usize>, &'a MemberView)> {
    let admitted = gang
        .into_iter()
        .flat_map(|gang| gang.pods.iter().enumerate())
        .filter_map(|(place, uid)| Some((uid.as_str(), (Some(place), cache.member(uid)?))));
    let annotated = cache
        .members_of(&subject.gang)
        .filter(|(_, member)| member.attempt == Some(subject.attempt))
        .map(|(uid, member)| (uid, (None, member)));
    annotated
        .chain(admitted)
        .filter(|(uid, (_, member))| *uid != subject.uid && !member.settled)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slim::{SlimNode, SlimPod};
    use muster_api::Gang;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    /// A pod as kube-scheduler sends it: rank `rank` of gang `g`, pinned to `node`.
    fn pinned(rank: usize, attempt: i64, node: &str) -> Value {
        json!({"metadata": {"namespace": "ml", "name": format!("w-{rank}"), "uid": format!("uid-{rank}"),
            "annotations": {"muster.dev/placement": "pinned", "muster.dev/gang-name": "g",
                "muster.dev/attempt": attempt.to_string(), "muster.dev/rank": rank.to_string()}},
            "spec": {"containers": [], "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}}}}})
    }

    fn gated(rank: usize) -> Value {
        json!({"metadata": {"namespace": "ml", "name": format!("w-{rank}"), "uid": format!("uid-{rank}")},
            "spec": {"containers": [], "schedulingGates": [{"name": "muster.dev/admission"}]}})
    }

    fn bound(rank: usize, node: &str) -> Value {
        let mut pod = pinned(rank, 1, node);
        pod["spec"]["nodeName"] = json!(node);
        pod
    }

    fn node(name: &str, spec: &Value) -> SlimNode {
        serde_json::from_value(
            json!({"metadata": {"name": name, "uid": format!("{name}-uid")}, "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
        )
        .unwrap()
    }

    /// Gang `g` in `attempt`, rank by rank on `nodes`.
    fn gang(attempt: i64, nodes: &[&str]) -> Gang {
        let runs: Vec<Value> = nodes
            .iter()
            .map(|name| json!({"node": name, "nodeUid": format!("{name}-uid"), "ranks": 1}))
            .collect();
        let pods: Vec<Value> = (0..nodes.len())
            .map(|rank| json!({"uid": format!("uid-{rank}")}))
            .collect();
        serde_json::from_value(json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Gang",
            "metadata": {"namespace": "ml", "name": "g"}, "spec": {"size": nodes.len()},
            "status": {"attempt": attempt, "phase": "Admitted", "placement": {"nodes": runs},
                "admission": {"team": "t", "teamGeneration": 1, "ledgerSequence": 1, "charge": {}, "pods": pods}}}))
        .unwrap()
    }

    struct World {
        cache: Cache,
    }

    impl World {
        /// Three ready nodes and nothing else.
        fn new() -> Self {
            let mut cache = Cache::default();
            for name in ["n0", "n1", "n2"] {
                cache.node_is(&node(name, &json!({})));
            }
            Self { cache }
        }

        fn pod(mut self, pod: &Value) -> Self {
            let pod: SlimPod = serde_json::from_value(pod.clone()).unwrap();
            self.cache.pod_is(&pod);
            self
        }

        fn gang(mut self, gang: &Gang) -> Self {
            self.cache.gang_is(&gang.clone().into());
            self
        }

        fn node(mut self, name: &str, spec: &Value) -> Self {
            self.cache.node_is(&node(name, spec));
            self
        }

        fn judge(&self, pod: &Value) -> Verdict {
            let text = pod.to_string();
            let requested: RequestedPod<'_> = serde_json::from_str(&text).unwrap();
            judge(&requested, &self.cache, NOW)
        }
    }

    fn refused(refusal: Refusal) -> Verdict {
        Verdict::Refused(refusal)
    }

    #[test]
    fn the_guarded_placement_decides_who_has_the_say() {
        let placement =
            |value: &str| json!({"metadata": {"annotations": {"muster.dev/placement": value}}});
        let world = World::new();
        assert_eq!(world.judge(&json!({})), refused(Refusal::NotAdmitted));
        assert_eq!(world.judge(&placement("any")), Verdict::AsGiven);
        assert!(matches!(
            world.judge(&placement("scored")),
            Verdict::Unknown(_)
        ));
        assert_eq!(
            world.judge(&placement("Pinned")),
            refused(Refusal::PlacementUnknown)
        );
        assert_eq!(
            world.judge(&placement("pinned")),
            refused(Refusal::PinMissing)
        );
    }

    #[test]
    fn a_pinned_pod_goes_to_its_node_also_before_our_watch_has_told_us_of_it() {
        let planned = Verdict::Planned("n1".into());
        let pod = pinned(1, 1, "n1");
        assert_eq!(World::new().judge(&pod), planned, "nothing seen yet");
        let world = World::new().pod(&gated(1)).gang(&gang(0, &["n2", "n2"]));
        assert_eq!(
            world.judge(&pod),
            planned,
            "pod and Gang seen before the admission"
        );
        let world = World::new().pod(&pod).gang(&gang(1, &["n0", "n1"]));
        assert_eq!(world.judge(&pod), planned);
    }

    #[test]
    fn a_newer_attempt_of_gang_or_of_a_stamped_member_ends_the_old_one() {
        let pod = pinned(1, 1, "n1");
        let by_gang = World::new().gang(&gang(2, &["n0", "n1"]));
        assert_eq!(by_gang.judge(&pod), refused(Refusal::AttemptSuperseded));
        let by_stamp = World::new().pod(&pinned(0, 2, "n0"));
        assert_eq!(by_stamp.judge(&pod), refused(Refusal::AttemptSuperseded));
    }

    #[test]
    fn a_forged_identity_is_refused() {
        let mut other_gang = pinned(1, 1, "n1");
        other_gang["metadata"]["annotations"]["muster.dev/gang-name"] = json!("another");
        let mut other_name = pinned(1, 1, "n1");
        other_name["metadata"]["name"] = json!("another");
        for observed in [other_gang, other_name] {
            let world = World::new().pod(&observed);
            assert_eq!(
                world.judge(&pinned(1, 1, "n1")),
                refused(Refusal::IdentityMismatch)
            );
        }
    }

    #[test]
    fn a_pin_that_contradicts_the_gangs_plan_is_refused() {
        let world = World::new().gang(&gang(1, &["n0", "n1"]));
        assert_eq!(
            world.judge(&pinned(1, 1, "n2")),
            refused(Refusal::PlannedElsewhere)
        );
    }

    /// Of a Job whose index 0 has succeeded, ranks 1 and 2 have the places 0 and 1.
    #[test]
    fn the_place_of_a_pod_is_where_the_gang_lists_it_whatever_its_rank() {
        let mut gang = gang(1, &["n1", "n2"]);
        let admission = gang.status.as_mut().unwrap().admission.as_mut().unwrap();
        for (place, pod) in admission.pods.iter_mut().enumerate() {
            pod.uid = format!("uid-{}", place + 1);
        }
        let world = || World::new().gang(&gang);
        for (rank, node, expected) in [
            (1, "n1", Verdict::Planned("n1".into())),
            (2, "n2", Verdict::Planned("n2".into())),
            (1, "n2", refused(Refusal::PlannedElsewhere)),
        ] {
            assert_eq!(world().judge(&pinned(rank, 1, node)), expected);
        }
        let cordoned = world()
            .pod(&gated(2))
            .node("n2", &json!({"unschedulable": true}));
        let lost = refused(Refusal::PlaceLost(Lost::Cordoned));
        assert_eq!(cordoned.judge(&pinned(1, 1, "n1")), lost);
    }

    #[test]
    fn one_lost_place_stops_the_whole_gang_unless_its_rank_is_bound() {
        let asked = pinned(1, 1, "n1");
        let cordon = json!({"unschedulable": true});
        let admitted = || World::new().gang(&gang(1, &["n0", "n1"]));
        let lost = refused(Refusal::PlaceLost(Lost::Cordoned));
        for (other, expected) in [
            (pinned(0, 1, "n0"), lost.clone()),
            (gated(0), lost.clone()),
            (bound(0, "n0"), Verdict::Planned("n1".into())),
        ] {
            let world = admitted().pod(&other).node("n0", &cordon);
            assert_eq!(world.judge(&asked), expected, "{other}");
        }
        let before_the_gang = World::new().pod(&pinned(0, 1, "n0")).node("n0", &cordon);
        assert_eq!(before_the_gang.judge(&asked), lost, "by the members alone");
        let own = admitted().node("n1", &cordon);
        assert_eq!(own.judge(&asked), lost, "its own place");
    }

    #[test]
    fn a_taint_costs_the_place_of_a_rank_that_does_not_tolerate_it() {
        let taints = json!({"taints": [{"key": "fault", "effect": "NoSchedule"}]});
        let mut tolerant = pinned(0, 1, "n0");
        tolerant["spec"]["tolerations"] = json!([{"key": "fault", "operator": "Exists"}]);
        let asked = pinned(1, 1, "n1");
        let world = World::new().node("n0", &taints);
        let world = world.pod(&tolerant);
        assert_eq!(world.judge(&asked), Verdict::Planned("n1".into()));
        let world = world.pod(&pinned(0, 1, "n0"));
        assert_eq!(
            world.judge(&asked),
            refused(Refusal::PlaceLost(Lost::Tainted))
        );
    }

    #[test]
    fn a_node_that_is_gone_or_was_replaced_is_a_lost_place() {
        let asked = pinned(1, 1, "n1");
        let gone = refused(Refusal::PlaceLost(Lost::Gone));
        assert_eq!(World::new().judge(&pinned(1, 1, "n9")), gone);
        let mut remade = node("n1", &json!({}));
        remade.view.uid = "another".into();
        let mut world = World::new().gang(&gang(1, &["n0", "n1"]));
        world.cache.node_is(&remade);
        assert_eq!(world.judge(&asked), gone);
    }

    #[test]
    fn t23_every_text_is_short_and_begins_with_its_stable_reason() {
        for refusal in [
            Refusal::NotAdmitted,
            Refusal::PlacementUnknown,
            Refusal::PinMissing,
            Refusal::IdentityMismatch,
            Refusal::AttemptSuperseded,
            Refusal::PlannedElsewhere,
            Refusal::PlaceLost(Lost::Gone),
            Refusal::PlaceLost(Lost::Cordoned),
            Refusal::PlaceLost(Lost::Tainted),
            Refusal::PlaceLost(Lost::NotReady),
        ] {
            let prefix = format!("{}: ", refusal.reason());
            assert!(refusal.text().starts_with(&prefix), "{refusal}");
            assert!(refusal.text().len() < 128, "{refusal}");
        }
    }

    proptest! {
        /// T7, T27: asked fifty times, in any state, the extender says the same and has changed nothing.
        #[test]
        fn t7_the_filter_remembers_nothing(cordoned: bool, attempt in 0_i64..3, stamped in 0_i64..3, rank in 0_usize..3) {
            let mut world = World::new().gang(&gang(attempt, &["n0", "n1", "n2"])).pod(&pinned(0, stamped, "n0"));
            if cordoned {
                world = world.node("n0", &json!({"unschedulable": true}));
            }
            let asked = pinned(rank, 1, "n1");
            let first = world.judge(&asked);
            for _ in 0..50 {
                prop_assert_eq!(&world.judge(&asked), &first);
            }
        }
    }
}
