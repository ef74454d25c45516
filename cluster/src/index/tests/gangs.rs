//! Who belongs together, under which name and in which order.

use std::collections::BTreeSet;

use muster_api::{Reason, keys};
use serde_json::json;

use crate::{
    formed::{FormedGang, GangKey},
    index::{Config, Index, NamespacedName},
    object::Kind,
    testing::{
        admitted, background, claim, config, gang, gone, index_with, indexed_job, is, key, member,
        only_gang, owner, pod, rank_of, settle, with,
    },
};
use muster_engine::Timestamp;

fn names(gang: &FormedGang) -> Vec<&str> {
    gang.pods
        .iter()
        .map(|pod| pod.identity.name.as_str())
        .collect()
}

fn excess(gang: &FormedGang) -> Vec<&str> {
    gang.excess.iter().map(|pod| pod.name.as_str()).collect()
}

#[test]
fn a_pod_that_declares_nothing_but_gpus_is_a_gang_of_one_in_its_namespaces_team() {
    let index = index_with([pod("solo", 5), claim("solo", 2)]);
    let gang = only_gang(&index);
    assert!(gang.key.name.starts_with("pod-solo-"), "{}", gang.key);
    assert_eq!(gang.spec.size, 1);
    assert_eq!(
        gang.team.as_ref().map(muster_engine::TeamName::as_str),
        Some("research")
    );
    assert_eq!(gang.priority, 100, "the default tier");
    assert_eq!(gang.spec.start_timeout_seconds, 600);
    assert_eq!(
        (gang.wait.clone(), gang.ended.clone(), gang.owner.clone()),
        (None, None, None)
    );
    let request = gang.pods[0].request.as_ref().unwrap();
    assert_eq!(request.claims[0].requests[0].choices[0].count, 2);
    assert_eq!(
        (request.resources.cpu_milli, request.resources.memory_bytes),
        (4000, 16 << 30)
    );
    assert_eq!(
        index.gang_of_pod(&NamespacedName::new("ml", "solo")),
        Some(&gang.key)
    );
}

#[test]
fn a_gang_is_made_with_the_start_limit_that_the_installation_has() {
    let with_limit = |start_timeout_seconds, objects: Vec<serde_json::Value>| {
        let mut index = Index::new(Config {
            start_timeout_seconds,
            ..config()
        });
        for change in background().into_iter().chain(objects.into_iter().map(is)) {
            index.observe(change);
        }
        settle(&mut index);
        only_gang(&index).spec.start_timeout_seconds
    };
    let alone = || vec![pod("solo", 5), claim("solo", 2)];
    assert_eq!(with_limit(1_200, alone()), 1_200);
    assert_eq!(with_limit(1, alone()), 1);
}

#[test]
fn pods_with_one_gang_label_are_one_gang_in_the_natural_order_of_their_names() {
    let members = ["w-10", "w-9", "w-1"];
    let index = index_with(
        members
            .iter()
            .flat_map(|name| [member(name, 5, "train", "3"), claim(name, 2)]),
    );
    let gang = only_gang(&index);
    assert!(gang.key.name.starts_with("group-train-"));
    assert_eq!(names(gang), ["w-1", "w-9", "w-10"]);
    assert_eq!(
        gang.pods.iter().map(|pod| pod.rank).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert_eq!(gang.wait, None);
    assert_eq!(
        gang.labels().get(keys::GANG).map(String::as_str),
        Some("train")
    );
    assert_eq!(gang.spec.group.as_deref(), Some("train"));
    assert_eq!(gang.spec.pod_sets.len(), 1);
    assert_eq!(gang.spec.pod_sets[0].count, 3);
}

#[test]
fn a_gang_of_one_launcher_without_devices_and_two_workers_has_two_pod_sets() {
    let launcher = with(
        member("launcher", 5, "mpi", "3"),
        "/spec/resourceClaims",
        json!([]),
    );
    let workers = ["w-0", "w-1"]
        .iter()
        .flat_map(|name| [member(name, 6, "mpi", "3"), claim(name, 2)]);
    let index = index_with(std::iter::once(launcher).chain(workers.collect::<Vec<_>>()));
    let gang = only_gang(&index);
    assert_eq!(gang.wait, None);
    let sets: Vec<_> = gang.spec.pod_sets.iter().map(|set| set.count).collect();
    assert_eq!(sets, [1, 2]);
}

#[test]
fn an_indexed_job_that_runs_all_its_ranks_at_once_is_a_gang_with_the_job_as_owner() {
    let ranks = (0..2).flat_map(|rank| {
        [
            rank_of("train", rank, 9 - rank),
            claim(&format!("train-{rank}-x{}", 9 - rank), 1),
        ]
    });
    let index = index_with([indexed_job("train", 2)].into_iter().chain(ranks));
    let gang = only_gang(&index);
    assert!(gang.key.name.starts_with("job-train-"));
    assert!(gang.implied);
    assert_eq!(names(gang), ["train-0-x9", "train-1-x8"]);
    let owner = gang.owner.as_ref().unwrap();
    assert_eq!(
        (owner.kind.as_str(), owner.uid.as_str()),
        ("Job", "job-train")
    );
    assert_eq!(
        (owner.block_owner_deletion, owner.controller),
        (Some(false), None)
    );
    assert_eq!(gang.wait, None);
}

#[test]
fn which_jobs_are_gangs() {
    let job = || indexed_job("train", 2);
    let annotated = |size: &str| {
        with(
            job(),
            "/metadata/annotations",
            json!({"muster.dev/gang-size": size}),
        )
    };
    let parallel = |spec: serde_json::Value| with(job(), "/spec", spec);
    for (what, job, gangs, size) in [
        ("Indexed with all ranks at once", job(), 1, 2),
        ("opted out by the size 1", annotated("1"), 2, 1),
        (
            "Indexed with fewer at a time",
            parallel(
                json!({"completionMode": "Indexed", "completions": 4, "parallelism": 2, "template": {}}),
            ),
            2,
            1,
        ),
        (
            "not Indexed",
            parallel(json!({"completions": 2, "parallelism": 2, "template": {}})),
            2,
            1,
        ),
        (
            "not Indexed, with a size",
            with(
                parallel(json!({"completions": 2, "parallelism": 2, "template": {}})),
                "/metadata/annotations",
                json!({"muster.dev/gang-size": "2"}),
            ),
            1,
            2,
        ),
    ] {
        let index = index_with([job, rank_of("train", 0, 5), rank_of("train", 1, 5)]);
        let formed: Vec<_> = index.formed_gangs().collect();
        assert_eq!(formed.len(), gangs, "{what}");
        assert_eq!(formed[0].spec.size, size, "{what}");
    }
}

#[test]
fn a_job_of_one_pod_is_one_gang_however_often_its_pod_is_made_again() {
    let of = |spec: serde_json::Value| with(indexed_job("train", 1), "/spec", spec);
    let once = || of(json!({"completions": 1, "parallelism": 1, "template": {}}));
    let declared = with(
        once(),
        "/metadata/annotations",
        json!({"muster.dev/gang-size": "1"}),
    );
    for (what, job, is_one) in [
        ("one pod", once(), true),
        (
            "one pod, at rest",
            of(json!({"completions": 1, "parallelism": 0, "template": {}})),
            true,
        ),
        ("one pod, declared", declared, true),
        ("Indexed", indexed_job("train", 1), true),
        (
            "one pod, whatever runs at once",
            of(json!({"completions": 1, "parallelism": 4, "template": {}})),
            true,
        ),
        (
            "one after the other",
            of(json!({"completions": 3, "parallelism": 1, "template": {}})),
            false,
        ),
        (
            "a queue of work",
            of(json!({"parallelism": 1, "template": {}})),
            false,
        ),
    ] {
        let pod = rank_of("train", 0, 5);
        let lost = with(pod.clone(), "/status/phase", json!("Failed"));
        let keys = |objects: Vec<serde_json::Value>| -> Vec<GangKey> {
            let index = index_with(objects);
            index.formed_gangs().map(|gang| gang.key.clone()).collect()
        };
        let first = keys(vec![job.clone(), pod]);
        assert_eq!(first.len(), 1, "{what}");
        assert_eq!(first[0].name.starts_with("job-train-"), is_one, "{what}");
        let again = keys(vec![job, lost, rank_of("train", 0, 9)]);
        assert_eq!(again == first, is_one, "{what}: {again:?}");
    }
}

#[test]
fn a_pod_is_not_taken_for_a_gang_of_one_while_its_job_is_not_known() {
    let mut index = index_with([rank_of("train", 0, 5)]);
    assert_eq!(index.formed_gangs().count(), 0);
    index.observe(is(indexed_job("train", 2)));
    index.refresh(Timestamp(0));
    assert!(only_gang(&index).key.name.starts_with("job-train-"));
}

#[test]
fn ranks_that_succeeded_are_not_waited_for() {
    let job = with(
        indexed_job("train", 4),
        "/status",
        json!({"completedIndexes": "0,2"}),
    );
    let succeeded = with(rank_of("train", 1, 4), "/status/phase", json!("Succeeded"));
    let left = rank_of("train", 3, 5);
    let index = index_with([job, succeeded, left, claim("train-3-x5", 1)]);
    let gang = only_gang(&index);
    assert_eq!(gang.spec.size, 1);
    assert_eq!(gang.wait, None);
    assert_eq!(gang.pods[0].rank, 3, "a rank is the completion index");
}

#[test]
fn a_gang_by_label_waits_for_pods_that_the_job_of_the_first_of_them_does_not_make() {
    for (completions, at_once, done, declared, size) in [
        (2, 2, 1, 3, 3),
        (3, 3, 1, 3, 2),
        // It makes as many in all, and half of them later: others make the other half.
        (4, 2, 2, 4, 4),
        (4, 4, 2, 4, 2),
    ] {
        let ranks: Vec<String> = (0..done).map(|rank: u32| rank.to_string()).collect();
        let job = with(
            indexed_job("train", completions),
            "/status",
            json!({"completedIndexes": ranks.join(",")}),
        );
        let job = with(job, "/spec/parallelism", json!(at_once));
        let pods = (done..completions).flat_map(|rank| {
            let pod = rank_of("train", rank, 4);
            let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
            let labels = with(pod, "/metadata/labels", json!({keys::GANG: "both"}));
            let said = json!({
                keys::GANG_SIZE: declared.to_string(),
                "batch.kubernetes.io/job-completion-index": rank.to_string(),
            });
            [with(labels, "/metadata/annotations", said), claim(&name, 1)]
        });
        let index = index_with(std::iter::once(job).chain(pods.collect::<Vec<_>>()));
        let gang = only_gang(&index);
        let case = format!("{completions}, {at_once} at once, of {declared}");
        assert_eq!(gang.spec.size, size, "{case}");
        let waits = i64::from(size) > i64::from(completions - done);
        assert_eq!(gang.wait.is_some(), waits, "{case}: {:?}", gang.wait);
    }
}

#[test]
fn surplus_pods_are_the_latest_by_creation_then_uid() {
    let pods = ["w-3", "w-1", "w-2"].into_iter().zip([7, 7, 6]);
    let index = index_with(
        pods.flat_map(|(name, second)| [member(name, second, "train", "2"), claim(name, 1)]),
    );
    let gang = only_gang(&index);
    assert_eq!(names(gang), ["w-1", "w-2"]);
    assert_eq!(excess(gang), ["w-3"]);
    assert_eq!(gang.wait, None, "the gang does not wait for its surplus");
}

#[test]
fn pods_that_ended_or_are_being_deleted_do_not_count() {
    let failed = with(
        member("w-0", 1, "train", "2"),
        "/status/phase",
        json!("Failed"),
    );
    let going = with(
        member("w-1", 2, "train", "2"),
        "/metadata/deletionTimestamp",
        json!("2026-11-21T00:00:09Z"),
    );
    let pods = [
        failed,
        going,
        member("w-2", 3, "train", "2"),
        member("w-3", 4, "train", "2"),
    ];
    let index = index_with(pods);
    assert_eq!(names(only_gang(&index)), ["w-2", "w-3"]);
    assert_eq!(
        index.pods_of_gang(&only_gang(&index).key).len(),
        4,
        "but they are still its pods"
    );
}

#[test]
fn the_members_of_an_admitted_gang_are_fixed_by_the_admission() {
    let first = index_with([
        member("w-1", 5, "train", "2"),
        member("w-2", 6, "train", "2"),
    ]);
    let name = only_gang(&first).key.name.clone();
    let gang = admitted(
        with(gang(&name, 2, "Admitted"), "/spec/group", json!("train")),
        &["w-2", "w-1"],
    );
    let older = member("w-0", 1, "train", "2");
    let index = index_with([
        gang,
        older,
        member("w-1", 5, "train", "2"),
        member("w-2", 6, "train", "2"),
    ]);
    let formed = only_gang(&index);
    assert_eq!(
        names(formed),
        ["w-2", "w-1"],
        "in the order of the admission"
    );
    assert_eq!(excess(formed), ["w-0"], "whatever its age");
}

#[test]
fn the_gang_name_that_a_pod_carries_is_its_identity() {
    let named = with(
        pod("w-7", 5),
        "/metadata/annotations",
        json!({"muster.dev/gang-name": "group-train-abcde"}),
    );
    let index = index_with([named, claim("w-7", 1)]);
    assert_eq!(only_gang(&index).key, key("group-train-abcde"));
}

#[test]
fn a_label_means_its_gang_until_that_has_ended() {
    let group = json!("train");
    let of = |phase: &str| {
        with(
            gang("group-train-aaaaa", 1, phase),
            "/spec/group",
            group.clone(),
        )
    };
    for (phase, same) in [
        ("Pending", true),
        ("Running", true),
        ("Finished", false),
        ("Failed", false),
    ] {
        let index = index_with([of(phase), member("w-0", 5, "train", "1"), claim("w-0", 1)]);
        let key = index
            .gang_of_pod(&NamespacedName::new("ml", "w-0"))
            .unwrap();
        assert_eq!(key.name == "group-train-aaaaa", same, "{phase}");
    }
}

#[test]
fn a_gang_is_found_by_its_group_whatever_labels_somebody_gives_it() {
    let relabelled = with(
        with(
            gang("group-train-aaaaa", 1, "Pending"),
            "/spec/group",
            json!("train"),
        ),
        "/metadata/labels",
        json!({"muster.dev/gang": "other"}),
    );
    let index = index_with([
        relabelled,
        member("w-0", 5, "train", "1"),
        member("o-0", 6, "other", "1"),
    ]);
    let named = |pod: &str| {
        let gang = index.gang_of_pod(&NamespacedName::new("ml", pod));
        gang.unwrap().name == "group-train-aaaaa"
    };
    assert_eq!((named("w-0"), named("o-0")), (true, false));
}

#[test]
fn a_gang_of_which_no_pod_is_active_misses_as_many_as_its_pods_said_though_its_job_says_nothing() {
    let by_job = json!([owner("batch/v1", "Job", "queue", "job-queue")]);
    let job = with(
        indexed_job("queue", 2),
        "/spec/completionMode",
        json!("NonIndexed"),
    );
    let job = with(job, "/spec/completions", json!(null));
    let group = with(
        gang("group-train-aaaaa", 2, "Pending"),
        "/spec/group",
        json!("train"),
    );
    let group = with(group, "/metadata/ownerReferences", by_job.clone());
    let failed = ["w-0", "w-1"].map(|name| {
        let pod = member(name, 5, "train", "2");
        let pod = with(pod, "/metadata/ownerReferences", by_job.clone());
        with(pod, "/status/phase", json!("Failed"))
    });
    let index = index_with([job, group].into_iter().chain(failed));
    let gang = only_gang(&index);
    assert_eq!((gang.spec.size, gang.pods.len()), (2, 0));
    let wait = gang.wait.as_ref().unwrap();
    assert_eq!(wait.reason, Reason::MissingPods, "{}", wait.details);
}

#[test]
fn a_label_whose_admitted_pods_are_all_gone_means_a_new_gang() {
    let group = json!("train");
    let old = admitted(
        with(
            gang("group-train-aaaaa", 1, "Running"),
            "/spec/group",
            group,
        ),
        &["old"],
    );
    let index = index_with([old, member("w-0", 5, "train", "1"), claim("w-0", 1)]);
    assert_ne!(
        index.gang_of_pod(&NamespacedName::new("ml", "w-0")),
        Some(&key("group-train-aaaaa"))
    );
}

#[test]
fn the_gangs_of_a_label_are_those_of_the_pods_with_it() {
    let ended = with(
        gang("group-train-aaaaa", 1, "Finished"),
        "/spec/group",
        json!("train"),
    );
    let of_ended = with(
        member("w-2", 7, "train", "2"),
        "/metadata/annotations/muster.dev~1gang-name",
        json!("group-train-aaaaa"),
    );
    let index = index_with([
        ended,
        member("w-0", 5, "train", "2"),
        member("w-1", 6, "train", "2"),
        of_ended,
        member("o-0", 5, "other", "1"),
    ]);
    let of = |pod: &str| {
        let gang = index.gang_of_pod(&NamespacedName::new("ml", pod));
        gang.expect("it has a gang")
    };
    assert_eq!(of("w-0"), of("w-1"));
    assert_ne!(of("w-0"), of("w-2"));
    for (namespace, label, expected) in [
        ("ml", "train", BTreeSet::from([of("w-0"), of("w-2")])),
        ("ml", "other", BTreeSet::from([of("o-0")])),
        ("ml", "none", BTreeSet::new()),
        ("other", "train", BTreeSet::new()),
    ] {
        let gangs = index.gangs_of_label(namespace, label);
        assert_eq!(gangs, expected, "{label} in {namespace}");
    }
}

#[test]
fn a_gang_keeps_its_name_when_the_pod_that_gave_it_goes() {
    let mut index = index_with([
        member("w-0", 5, "train", "2"),
        member("w-1", 6, "train", "2"),
    ]);
    let name = only_gang(&index).key.name.clone();
    index.observe(is(with(
        gang(&name, 2, "Assembling"),
        "/spec/group",
        json!("train"),
    )));
    index.observe(gone(Kind::Pod, "ml", "w-0"));
    index.refresh(Timestamp(0));
    assert_eq!(only_gang(&index).key.name, name);
}

#[test]
fn pods_of_a_replica_set_with_a_label_keep_their_gang_through_replacement() {
    let owned = |name: &str, second| {
        with(
            member(name, second, "serve", "1"),
            "/metadata/ownerReferences",
            json!([owner("apps/v1", "ReplicaSet", "serve", "rs-1")]),
        )
    };
    let mut index = index_with([owned("serve-a", 5)]);
    let before = only_gang(&index).key.clone();
    index.observe(gone(Kind::Pod, "ml", "serve-a"));
    index.observe(is(owned("serve-b", 9)));
    index.refresh(Timestamp(0));
    assert_eq!(only_gang(&index).key, before);
}

#[test]
fn pods_that_run_without_an_admission_are_told_apart() {
    let running = with(pod("solo", 5), "/spec/nodeName", json!("a"));
    let index = index_with([
        with(running, "/spec/schedulingGates", json!([])),
        claim("solo", 1),
    ]);
    let gang = only_gang(&index);
    assert_eq!(gang.unadmitted.len(), 1);
    assert_eq!(gang.unadmitted[0].name, "solo");
}

#[test]
fn pods_of_excluded_namespaces_are_no_gangs_unless_they_wait_at_our_gate() {
    let system = |gates| {
        with(
            with(
                pod("plugin", 5),
                "/metadata/namespace",
                json!("kube-system"),
            ),
            "/spec/schedulingGates",
            gates,
        )
    };
    assert_eq!(index_with([system(json!([]))]).formed_gangs().count(), 0);
    assert_eq!(
        index_with([system(json!([{"name": "muster.dev/admission"}]))])
            .formed_gangs()
            .count(),
        1
    );
}

#[test]
fn a_gang_whose_claims_name_only_excepted_classes_waits_for_nothing() {
    let nic = with(
        claim("solo", 1),
        "/spec/devices/requests/0/exactly/deviceClassName",
        json!("nic.example.com"),
    );
    let stranger = with(pod("solo", 5), "/metadata/namespace", json!("ml"));
    let mut index = index_with([nic, stranger]);
    index.observe(is(crate::testing::namespace("ml", None)));
    index.refresh(Timestamp(0));
    let gang = only_gang(&index);
    assert!(gang.excepted);
    assert_eq!(gang.wait, None, "not even a Team is asked for");
}

#[test]
fn the_one_pod_of_a_job_whose_claims_name_only_excepted_classes_waits_for_nothing() {
    let nic = with(
        claim("train-0-x5", 1),
        "/spec/devices/requests/0/exactly/deviceClassName",
        json!("nic.example.com"),
    );
    let declared = with(
        indexed_job("train", 1),
        "/metadata/annotations",
        json!({"muster.dev/gang-size": "1"}),
    );
    for job in [indexed_job("train", 1), declared] {
        let index = index_with([job, nic.clone(), rank_of("train", 0, 5)]);
        let gang = only_gang(&index);
        assert!(gang.key.name.starts_with("job-train-"));
        assert!(gang.excepted, "{:?}", gang.wait);
    }
}

#[test]
fn a_tier_is_taken_from_the_gang_then_the_pods_then_the_team_then_the_cluster() {
    let labelled = with(
        pod("solo", 5),
        "/metadata/labels",
        json!({"muster.dev/tier": "critical"}),
    );
    let index = index_with([labelled.clone(), claim("solo", 1)]);
    assert_eq!(only_gang(&index).priority, 1000);
    assert_eq!(only_gang(&index).spec.tier.as_deref(), Some("critical"));

    let name = only_gang(&index).key.name.clone();
    let changed = with(gang(&name, 1, "Pending"), "/spec/tier", json!("standard"));
    let index = index_with([labelled, claim("solo", 1), changed]);
    assert_eq!(
        only_gang(&index).priority,
        100,
        "a user changed it on the Gang"
    );

    let team = with(
        crate::testing::team("research"),
        "/spec/tiers",
        json!({"default": "critical"}),
    );
    let index = index_with([team, pod("solo", 5), claim("solo", 1)]);
    assert_eq!(only_gang(&index).priority, 1000);
}

/// The Team may change between the pod and its Gang, and so may the tiers that there are.
#[test]
fn a_tier_that_may_not_be_used_is_the_gangs_still_once_that_is_made() {
    for (tier, details) in [
        ("critical", "Team research may not use tier critical"),
        ("urgent", "there is no PriorityTier urgent"),
    ] {
        let team = with(
            crate::testing::team("research"),
            "/spec/tiers",
            json!({"allowed": ["standard"]}),
        );
        let labelled = with(
            pod("solo", 5),
            "/metadata/labels",
            json!({"muster.dev/tier": tier}),
        );
        let mut index = index_with([team, labelled, claim("solo", 1)]);
        let formed = only_gang(&index);
        let spec = serde_json::to_value(&formed.spec).unwrap();
        let made = with(gang(&formed.key.name, 1, "Pending"), "/spec", spec);
        index.observe(is(made));
        index.refresh(Timestamp(0));
        let wait = only_gang(&index).wait.clone().unwrap();
        assert_eq!(wait.reason, muster_api::Reason::TierNotAllowed, "{wait:?}");
        assert!(wait.details.starts_with(details), "{wait:?}");
    }
}

#[test]
fn fields_that_may_matter_and_are_not_planned_are_named() {
    let volume = with(
        pod("solo", 5),
        "/spec/volumes",
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "d"}}]),
    );
    let both = with(
        volume,
        "/spec/containers/0/resources/limits",
        json!({"example.com/rdma": "1", "muster.dev/managed": "0"}),
    );
    let index = index_with([both, claim("solo", 1)]);
    let gang = only_gang(&index);
    assert_eq!(gang.wait, None);
    assert_eq!(
        gang.unmodelled,
        ["spec.volumes[0] (data): where its volume can be reached is not looked at"]
    );
    let taken = gang.pods[0]
        .request
        .as_ref()
        .map(|request| request.resources.others.clone());
    assert_eq!(
        taken,
        Some([("example.com/rdma".into(), 1)].into()),
        "every resource is planned"
    );
}

#[test]
fn a_gang_that_ends_gives_up_its_label_also_where_it_does_not_carry_it() {
    let mut index = index_with([
        member("w-0", 5, "train", "2"),
        member("w-1", 6, "train", "2"),
    ]);
    let first = only_gang(&index).key.clone();
    index.observe(is(gang(&first.name, 2, "Failed")));
    index.refresh(Timestamp(0));
    let next = index
        .gang_of_pod(&NamespacedName::new("ml", "w-0"))
        .cloned();
    assert_ne!(next, Some(first));
}
