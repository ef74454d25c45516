//! Why a gang waits: each reason exactly, with what a user needs to know.

use muster_api::Reason;
use muster_engine::Timestamp;
use serde_json::{Value, json};

use crate::{
    object::Kind,
    testing::{
        claim, gang, gone, index_with, indexed_job, is, member, namespace, only_gang, pod, rank_of,
        team, topology, with,
    },
};

/// A gang of two that waits for nothing.
fn pair() -> Vec<Value> {
    ["w-0", "w-1"]
        .iter()
        .flat_map(|name| [member(name, 5, "train", "2"), claim(name, 2)])
        .collect()
}

fn pair_with(pointer: &str, field: &Value) -> Vec<Value> {
    let mut objects = pair();
    objects[0] = with(objects[0].clone(), pointer, field.clone());
    objects
}

fn solo_with(pointer: &str, field: &Value) -> Vec<Value> {
    vec![
        with(pod("solo", 5), pointer, field.clone()),
        claim("solo", 2),
    ]
}

fn plus(mut objects: Vec<Value>, more: impl IntoIterator<Item = Value>) -> Vec<Value> {
    objects.extend(more);
    objects
}

#[test]
fn a_gang_waits_with_exactly_the_reason_that_its_objects_show() {
    use Reason::{
        ForeignGate, GangTooLarge, MissingPods, NoTeam, RequestNotUnderstood, SizeMismatch,
        TierNotAllowed,
    };
    let annotation = |key: &str| format!("/metadata/annotations/muster.dev~1{key}");
    let only_research = with(
        team("research"),
        "/spec/tiers",
        json!({"allowed": ["standard"]}),
    );
    let job_size = with(
        indexed_job("train", 2),
        "/metadata/annotations",
        json!({"muster.dev/gang-size": "3"}),
    );
    let rank = |index| rank_of("train", index, 5);
    for (what, objects, reason, details) in [
        (
            "a missing pod",
            pair()[..2].to_vec(),
            MissingPods,
            "1 of 2 pods exist",
        ),
        (
            "a pod that its StatefulSet makes only when the last one is ready",
            vec![with(
                member("w-0", 5, "train", "2"),
                "/metadata/ownerReferences",
                json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "w", "uid": "w", "controller": true}]),
            )],
            MissingPods,
            "1 of 2 pods exist; their StatefulSet makes the next one when the last is ready, unless its podManagementPolicy is \
             Parallel",
        ),
        (
            "a missing rank",
            vec![indexed_job("train", 2), rank(1), claim("train-1-x5", 1)],
            MissingPods,
            "1 of 2 pods exist",
        ),
        (
            "a claim that is not made yet",
            vec![pod("solo", 5)],
            MissingPods,
            "pod solo: spec.resourceClaims[0] (gpus): its ResourceClaim is not made yet",
        ),
        (
            "a claim of one's own that does not exist",
            vec![with(
                pod("solo", 5),
                "/spec/resourceClaims",
                json!([{"name": "g", "resourceClaimName": "mine"}]),
            )],
            MissingPods,
            "pod solo: spec.resourceClaims[0]: ResourceClaim mine does not exist",
        ),
        (
            "pods that disagree",
            pair_with(&annotation("gang-size"), &json!("4")),
            SizeMismatch,
            "pod w-1 says muster.dev/gang-size 2, pod w-0 says 4; all pods of a gang must say the same",
        ),
        (
            "a Job and a pod that disagree",
            vec![
                job_size,
                with(rank(0), &annotation("gang-size"), json!("2")),
            ],
            SizeMismatch,
            "pod train-0-x5 says muster.dev/gang-size 2, the Job says 3; all pods of a gang must say the same",
        ),
        (
            "a label without a size",
            vec![with(
                member("w-0", 5, "train", ""),
                "/metadata/annotations",
                json!({}),
            )],
            RequestNotUnderstood,
            "pods: metadata.annotations[muster.dev/gang-size]: is missing; pods with the label muster.dev/gang must say how many they are",
        ),
        (
            "a label without a size on the one pod of a Job, which others may belong to",
            vec![
                indexed_job("launch", 1),
                with(
                    with(
                        rank_of("launch", 0, 5),
                        "/metadata/labels",
                        json!({"muster.dev/gang": "train"}),
                    ),
                    "/metadata/annotations",
                    json!({}),
                ),
            ],
            RequestNotUnderstood,
            "pods: metadata.annotations[muster.dev/gang-size]: is missing; pods with the label muster.dev/gang must say how many they are",
        ),
        (
            "a size that is no number",
            vec![member("w-0", 5, "train", "two")],
            RequestNotUnderstood,
            "pods: metadata.annotations[muster.dev/gang-size]: is \"two\"; write a whole number from 1 to 4096",
        ),
        (
            "a size of nothing",
            vec![member("w-0", 5, "train", "0")],
            RequestNotUnderstood,
            "pods: metadata.annotations[muster.dev/gang-size]: is \"0\"; write a whole number from 1 to 4096",
        ),
        (
            "more pods than a gang may have",
            vec![member("w-0", 5, "train", "4097")],
            GangTooLarge,
            "4097 pods; a gang has at most 4096 (a Job whose pods may start one by one says muster.dev/gang-size: \"1\")",
        ),
        (
            "a gate of somebody else",
            pair_with(
                "/spec/schedulingGates",
                &json!([{"name": "muster.dev/admission"}, {"name": "kueue.x-k8s.io/admission"}]),
            ),
            ForeignGate,
            "pod w-0 carries the scheduling gate kueue.x-k8s.io/admission; whoever put it there must take it first",
        ),
        (
            "a namespace without Team",
            plus(pair(), [namespace("ml", None)]),
            NoTeam,
            "namespace ml belongs to no Team; an administrator puts it into one by its label muster.dev/team",
        ),
        (
            "a Team that does not exist",
            plus(pair(), [namespace("ml", Some("gone"))]),
            NoTeam,
            "namespace ml belongs to Team gone, which does not exist",
        ),
        (
            "a tier that does not exist",
            solo_with("/metadata/labels/muster.dev~1tier", &json!("urgent")),
            TierNotAllowed,
            "there is no PriorityTier urgent; there are: critical, standard",
        ),
        (
            "a tier that the Team may not use",
            plus(
                solo_with("/metadata/labels/muster.dev~1tier", &json!("critical")),
                [only_research],
            ),
            TierNotAllowed,
            "Team research may not use tier critical; it may use: standard",
        ),
        (
            "pods that name two tiers",
            plus(
                pair_with("/metadata/labels/muster.dev~1tier", &json!("critical")),
                [with(
                    member("w-1", 5, "train", "2"),
                    "/metadata/labels/muster.dev~1tier",
                    json!("standard"),
                )],
            ),
            RequestNotUnderstood,
            "pods: metadata.labels[muster.dev/tier]: pods of the gang name critical and standard; they must name one",
        ),
        (
            "a level that no Topology has",
            pair_with(&annotation("topology-required"), &json!("rack")),
            RequestNotUnderstood,
            "pods: metadata.annotations[muster.dev/topology-required]: no Topology has a level \"rack\"; there are leaf, spine, node",
        ),
        (
            "required anti-affinity",
            solo_with(
                "/spec/affinity",
                &json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "k"}]}}),
            ),
            RequestNotUnderstood,
            "pod solo: spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]: which other pods must or must not be near is not planned; the gang itself is placed by its topology, so leave this out or make it preferred (planned is one rule: pods like this one stay off its node, by topologyKey kubernetes.io/hostname)",
        ),
        (
            "required affinity",
            solo_with(
                "/spec/affinity",
                &json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "k"}]}}),
            ),
            RequestNotUnderstood,
            "pod solo: spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution: which other pods must or must not be near is not planned; the gang itself is placed by its topology, so leave this out or make it preferred",
        ),
        (
            "spreading that must hold",
            solo_with(
                "/spec/topologySpreadConstraints",
                &json!([{"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule"}]),
            ),
            RequestNotUnderstood,
            "pod solo: spec.topologySpreadConstraints[0].whenUnsatisfiable: spreading that must hold is not planned; use ScheduleAnyway",
        ),
        (
            "a GPU of a device plugin beside a claim",
            solo_with(
                "/spec/containers/0/resources/limits",
                &json!({"nvidia.com/gpu": "1"}),
            ),
            RequestNotUnderstood,
            "pod solo: resources.limits[nvidia.com/gpu]: is asked for beside ResourceClaims for devices; a pod has its GPUs from one Flavor, so ask for all of them by claims or for all of them by limits",
        ),
        (
            "a shorthand that became no claim",
            vec![with(
                with(
                    pod("solo", 5),
                    "/metadata/annotations",
                    json!({"muster.dev/gpus": "1"}),
                ),
                "/spec/resourceClaims",
                json!([]),
            )],
            RequestNotUnderstood,
            "pod solo: metadata.annotations[muster.dev/gpus]: no claim was made from it; create the pod anew, or give it spec.resourceClaims instead",
        ),
        (
            "an amount that is none",
            solo_with(
                "/spec/containers/0/resources/requests",
                &json!({"cpu": "four"}),
            ),
            RequestNotUnderstood,
            "pod solo: spec.containers[0].resources.requests[cpu]: \"four\" is not a quantity; write a number with an optional suffix, such as 16, 500m or 640Gi",
        ),
        (
            "an operator that is not known",
            solo_with(
                "/spec/tolerations",
                &json!([{"key": "k", "operator": "Gt", "value": "1"}]),
            ),
            RequestNotUnderstood,
            "pod solo: spec.tolerations[0].operator: Gt is not known; Equal and Exists are",
        ),
        (
            "a generated claim that was made for somebody else",
            vec![
                pod("solo", 5),
                with(
                    claim("solo", 2),
                    "/metadata/ownerReferences/0/uid",
                    json!("uid-other"),
                ),
            ],
            RequestNotUnderstood,
            "pod solo: spec.resourceClaims[0] (gpus): ResourceClaim solo-gpus was not made for this pod",
        ),
    ] {
        let index = index_with(objects);
        let wait = only_gang(&index)
            .wait
            .clone()
            .unwrap_or_else(|| panic!("{what}: waits for nothing"));
        assert_eq!(
            (wait.reason, wait.details.as_str()),
            (reason, details),
            "{what}"
        );
    }
}

#[test]
fn a_gang_that_a_user_suspends_says_so_before_all_else() {
    let index = index_with(pair());
    let name = only_gang(&index).key.name.clone();
    let suspended = with(gang(&name, 2, "Pending"), "/spec/suspend", json!(true));
    let suspended = with(suspended, "/spec/group", json!("train"));
    let index = index_with(plus(
        pair()[..2].to_vec(),
        [suspended, namespace("ml", None)],
    ));
    assert_eq!(
        only_gang(&index).wait.as_ref().unwrap().reason,
        Reason::Suspended
    );
    assert!(only_gang(&index).spec.suspend);
}

#[test]
fn a_wait_ends_when_what_it_waits_for_comes() {
    let mut index = index_with([pod("solo", 5), namespace("ml", Some("later"))]);
    assert_eq!(
        only_gang(&index).wait.as_ref().unwrap().reason,
        Reason::NoTeam
    );

    index.observe(is(team("later")));
    assert_eq!(index.refresh(Timestamp(0)).gangs.len(), 1);
    assert_eq!(
        only_gang(&index).wait.as_ref().unwrap().reason,
        Reason::MissingPods
    );

    index.observe(is(claim("solo", 1)));
    assert_eq!(index.refresh(Timestamp(0)).gangs.len(), 1);
    assert_eq!(only_gang(&index).wait, None);

    index.observe(gone(Kind::DeviceClass, "", "gpu.muster.dev"));
    index.refresh(Timestamp(0));
    assert_eq!(
        only_gang(&index).wait.as_ref().unwrap().reason,
        Reason::RequestNotUnderstood
    );

    index.observe(is(crate::testing::with(
        crate::testing::device_class(),
        "/metadata/uid",
        json!("class-2"),
    )));
    index.refresh(Timestamp(0));
    assert_eq!(only_gang(&index).wait, None);
}

#[test]
fn a_level_that_a_topology_gains_is_known_at_once() {
    let mut index = index_with(pair_with(
        "/metadata/annotations/muster.dev~1topology-preferred",
        &json!("rack"),
    ));
    assert!(only_gang(&index).wait.is_some());
    index.observe(is(with(topology(), "/spec/fabric/0/name", json!("rack"))));
    index.refresh(Timestamp(0));
    assert_eq!(only_gang(&index).wait, None);
}

#[test]
fn the_default_team_catches_namespaces_without_one() {
    let mut config = crate::testing::config();
    config.default_team = Some("research".to_owned());
    let mut index = crate::index::Index::new(config);
    for change in crate::testing::background() {
        index.observe(change);
    }
    for object in plus(pair(), [namespace("ml", None)]) {
        index.observe(is(object));
    }
    index.refresh(Timestamp(0));
    assert_eq!(only_gang(&index).wait, None);
    assert_eq!(index.namespaces_of_team("research"), ["ml"]);
}
