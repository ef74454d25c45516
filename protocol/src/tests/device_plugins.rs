//! GPUs of a device plugin: charged and permitted by name, and released with their pod, whatever any driver says.

use muster_api::{GangPhase, Reason};

use super::*;

const GPU: &str = "nvidia.com/gpu";
/// The node with the plugin. No driver of ours answers for it.
const NODE: &str = "p0";

fn flavor() -> Object {
    Object::Flavor(parse(json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Flavor", "metadata": {"name": "plugin"},
        "spec": {"extendedResource": GPU},
    })))
}

/// The node, whose plugin offers so many GPUs.
fn node(gpus: u32) -> Object {
    node_that_is(NODE, gpus, "True")
}

/// A node whose plugin offers so many GPUs, and whether it is Ready.
fn node_that_is(name: &str, gpus: u32, ready: &str) -> Object {
    Object::Node(parse(json!({
        "metadata": {"name": name},
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: gpus.to_string()},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    })))
}

/// A cluster in which the Team has two GPUs of a plugin, which offers so many.
fn bench(gpus: u32) -> Bench {
    bench_with(config(), gpus)
}

fn bench_with(config: Config, gpus: u32) -> Bench {
    let mut bench = Bench::with(config);
    bench.server.put(flavor());
    bench.server.put(node(gpus));
    let quota =
        |flavor: &str| json!({"flavor": flavor, "resources": [{"name": "gpus", "nominal": 2}]});
    bench.server.put(Object::Team(parse(json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Team", "metadata": {"name": "vision"},
        "spec": {"quota": [quota("gpu"), quota("plugin")]},
    }))));
    bench.silent_drivers.insert(NODE.to_owned());
    bench
}

/// A gated pod that asks for one GPU.
fn pod(label: &str, rank: usize, size: usize) -> Pod {
    pod_by_limits(GPU, label, rank, size)
}

fn submit(bench: &mut Bench, label: &str, size: usize) {
    for rank in 0..size {
        bench
            .server
            .put(Object::Pod(Arc::new(pod(label, rank, size))));
    }
}

/// The name under which a pod is charged.
fn by_name(bench: &Bench, pod: &str) -> String {
    let uid = bench.server.pod(pod).unwrap().metadata.uid.unwrap();
    format!("{uid}/{GPU}")
}

fn is_gated(bench: &Bench, pod: &str) -> bool {
    let spec = bench.server.pod(pod).unwrap().spec.unwrap();
    spec.scheduling_gates.is_some_and(|gates| !gates.is_empty())
}

/// Why a gang waits.
fn reason(bench: &Bench, label: &str) -> Option<Reason> {
    let gangs = bench.server.list(Kind::Gang);
    gangs.into_iter().find_map(|gang| match gang {
        Object::Gang(gang) if gang.spec.group.as_deref() == Some(label) => {
            Some(gang.status.clone()?.queue?.reason)
        }
        _ => None,
    })
}

/// A pod with a GPU runs that Muster did not see come: `old-0`, of no gang by its labels.
fn runs_already(bench: &mut Bench) {
    let mut runs = pod("old", 0, 1);
    runs.metadata.labels = None;
    let spec = runs.spec.as_mut().unwrap();
    spec.scheduling_gates = None;
    spec.node_name = Some(NODE.to_owned());
    runs.status.as_mut().unwrap().phase = Some("Running".to_owned());
    bench.server.put(Object::Pod(Arc::new(runs)));
}

#[test]
fn a_gang_is_charged_by_name_and_gives_back_when_its_pods_end_though_no_driver_answers() {
    let mut bench = bench(4);
    submit(&mut bench, "train", 2);
    bench.run();
    for pod in ["train-0", "train-1"] {
        assert!(!is_gated(&bench, pod));
        bench.runs_on(pod, NODE);
    }
    bench.run();
    assert_eq!(bench.gang_status().phase, GangPhase::Running);
    let mut charged: Vec<String> = ["train-0", "train-1"]
        .map(|pod| by_name(&bench, pod))
        .into();
    charged.sort();
    let charge = bench.gang_status().admission.unwrap().charge;
    let [group] = charge.claims.as_slice() else {
        panic!("one group, not {charge:?}")
    };
    assert_eq!((group.flavor.as_str(), group.gpus_milli), ("plugin", 1_000));
    assert_eq!(group.uids, charged);
    let permits = bench.server.node_devices(NODE).unwrap().spec.permits;
    let named = permits.iter().flat_map(|permit| permit.claim_uids.clone());
    let mut named: Vec<String> = named.collect();
    named.sort();
    assert_eq!(named, charged);

    // The plugin has two more, and the Team has not.
    submit(&mut bench, "next", 1);
    bench.run();
    assert_eq!(reason(&bench, "next"), Some(Reason::WaitingForQuota));
    bench.ends("train-0");
    bench.ends("train-1");
    bench.run();
    assert!(!is_gated(&bench, "next-0"));
    let permits = bench.server.node_devices(NODE).unwrap().spec.permits;
    assert_eq!(permits.len(), 1, "{permits:?}");
    bench.server.remove(&pod_key("next-0"));
    bench.run();
    assert!(!bench.has_permits(NODE));
}

/// Nobody has to acknowledge that its permit is withdrawn.
#[test]
fn what_no_driver_of_ours_has_a_say_about_goes_in_the_write_that_follows_the_end_of_its_pod() {
    for is_deleted in [false, true] {
        let mut bench = bench(2);
        submit(&mut bench, "train", 1);
        bench.run();
        bench.runs_on("train-0", NODE);
        bench.run();
        assert!(bench.has_permits(NODE));
        let before = bench.written.len();
        if is_deleted {
            bench.server.remove(&pod_key("train-0"));
        } else {
            bench.ends("train-0");
        }
        bench.run();
        assert!(!bench.has_permits(NODE));
        let of_node = bench.written[before..].iter().filter(
            |write| matches!(write, ApiRequest::ReplaceNodeDevices { node, .. } if node == NODE),
        );
        assert_eq!(of_node.count(), 1, "deleted: {is_deleted}");
    }
}

/// It may be let go by a write that is under way.
#[test]
fn the_permit_of_a_pod_that_lives_is_withdrawn_before_it_goes() {
    let mut bench = bench(2);
    submit(&mut bench, "train", 2);
    assert!(bench.run_until(|write| matches!(write, ApiRequest::PatchPod { .. })));
    assert!(bench.has_permits(NODE) && is_gated(&bench, "train-0"));
    let before = bench.written.len();
    bench.take_over();
    bench.server.remove(&pod_key("train-1"));
    bench.run();
    let shows_withdrawn = |write: &ApiRequest| match write {
        ApiRequest::ReplaceNodeDevices { node, spec, .. } if node == NODE => {
            spec.permits.iter().any(|permit| permit.withdrawn)
        }
        _ => false,
    };
    assert!(bench.written[before..].iter().any(shows_withdrawn));
    assert!(!bench.has_permits(NODE));
}

#[test]
fn a_gang_whose_pod_is_made_anew_before_it_was_let_go_is_planned_again() {
    let mut bench = bench(2);
    submit(&mut bench, "train", 2);
    assert!(bench.run_until(|write| matches!(write, ApiRequest::PatchPod { .. })));
    assert!(bench.has_permits(NODE) && is_gated(&bench, "train-0"));
    // What was under way is lost.
    bench.take_over();
    bench.server.remove(&pod_key("train-1"));
    bench.server.put(Object::Pod(Arc::new(pod("train", 1, 2))));
    bench.run();
    for pod in ["train-0", "train-1"] {
        assert!(
            !is_gated(&bench, pod),
            "{pod}: {:?}",
            reason(&bench, "train")
        );
    }
    let permits = bench.server.node_devices(NODE).unwrap().spec.permits;
    assert_eq!(permits.iter().filter(|permit| !permit.withdrawn).count(), 2);
}

#[test]
fn what_runs_stays_charged_and_in_its_place_while_no_flavor_counts_it() {
    let mut bench = bench(1);
    submit(&mut bench, "train", 1);
    bench.run();
    bench.runs_on("train-0", NODE);
    bench.run();
    let flavor_key = ObjectKey {
        kind: Kind::Flavor,
        namespace: String::new(),
        name: "plugin".to_owned(),
    };
    bench.server.remove(&flavor_key);
    submit(&mut bench, "next", 1);
    bench.run();
    assert!(bench.has_permits(NODE));
    assert_eq!(reason(&bench, "next"), Some(Reason::NoQuotaForResource));
    bench.server.put(flavor());
    bench.run();
    assert_eq!(reason(&bench, "next"), Some(Reason::WaitingForPlacement));
    bench.ends("train-0");
    bench.run();
    assert!(!is_gated(&bench, "next-0"));
}

#[test]
fn what_ran_before_muster_came_is_adopted_at_what_it_has() {
    let mut bench = bench(2);
    runs_already(&mut bench);
    bench.run();
    let admission = bench.gang_status().admission.unwrap();
    assert!(admission.adopted);
    let [group] = admission.charge.claims.as_slice() else {
        panic!("one group, not {admission:?}")
    };
    assert_eq!((group.flavor.as_str(), group.gpus_milli), ("plugin", 1_000));
    assert_eq!(group.uids, [by_name(&bench, "old-0")]);
    // A new leader knows no more than what is written.
    bench.take_over();
    submit(&mut bench, "next", 2);
    bench.run();
    assert_eq!(reason(&bench, "next"), Some(Reason::WaitingForQuota));
    bench.server.remove(&pod_key("old-0"));
    bench.run();
    assert!(!is_gated(&bench, "next-0"));
}

#[test]
fn what_runs_is_adopted_as_of_its_flavor_also_while_the_plugin_restarts() {
    let mut bench = bench(0);
    runs_already(&mut bench);
    bench.run();
    let charge = bench.gang_status().admission.unwrap().charge;
    let [group] = charge.claims.as_slice() else {
        panic!("one group, not {charge:?}")
    };
    assert_eq!((group.flavor.as_str(), group.gpus_milli), ("plugin", 1_000));
}

#[test]
fn nobody_is_evicted_for_what_a_plugin_offers_no_more_whatever_follows_it() {
    let mut bench = bench(2);
    bench.server.put(Object::Team(parse(json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Team", "metadata": {"name": "vision"},
        "spec": {
            "shrink": "Evict",
            "quota": [{"flavor": "plugin", "resources": [{"name": "gpus", "auto": true}]}],
        },
    }))));
    for label in ["one", "two"] {
        submit(&mut bench, label, 1);
        bench.run();
        bench.runs_on(&format!("{label}-0"), NODE);
        bench.run();
    }
    // One of the two is faulty; then the plugin is exchanged, which takes its time.
    for gpus in [1, 0] {
        bench.server.put(node(gpus));
        for _ in 0..15 {
            bench.seconds += 60;
            bench.run();
        }
        for gang in bench.server.list(Kind::Gang) {
            let Object::Gang(gang) = gang else { continue };
            let status = gang.status.clone().unwrap();
            assert_eq!(status.phase, GangPhase::Running, "{status:?}");
            assert_eq!((status.attempt, status.preemption), (1, None));
        }
    }
    // Nothing is planned by that: what is in use is not free.
    bench.ends("one-0");
    submit(&mut bench, "next", 1);
    bench.run();
    assert!(is_gated(&bench, "next-0"));
    bench.server.put(node(2));
    bench.run();
    assert!(!is_gated(&bench, "next-0"));
}

#[test]
fn a_lost_node_that_went_over_from_the_driver_to_a_plugin_is_back_when_it_is_ready() {
    let mut bench = bench(0);
    bench.run();
    let answered = bench.server.node_devices("n0").unwrap().status;
    assert!(answered.is_some(), "the driver was there");
    // The driver's label is taken off, and the plugin comes.
    bench.silent_drivers.insert("n0".to_owned());
    bench.server.remove(&ObjectKey {
        kind: Kind::ResourceSlice,
        namespace: String::new(),
        name: "n0-gpus".to_owned(),
    });
    bench.server.put(node_that_is("n0", 2, "True"));
    bench.run();
    bench.seconds += 130;
    bench.run();
    bench.server.put(node_that_is("n0", 2, "Unknown"));
    for _ in 0..70 {
        bench.seconds += 1;
        bench.run_at_once();
    }
    let is_lost = |bench: &Bench| bench.server.node_devices("n0").unwrap().spec.lost;
    assert!(is_lost(&bench));
    bench.server.put(node_that_is("n0", 2, "True"));
    bench.run();
    assert!(!is_lost(&bench));
    submit(&mut bench, "train", 1);
    bench.run();
    assert!(!is_gated(&bench, "train-0"));
    assert!(bench.has_permits("n0"));
}

#[test]
fn what_ran_before_any_flavor_counted_it_is_charged_as_soon_as_one_does() {
    let mut bench = bench(3);
    bench.server.remove(&flavor().key());
    runs_already(&mut bench);
    bench.run();
    let status = bench.gang_status();
    assert_eq!(status.admission, None);
    assert_eq!(status.queue.unwrap().reason, Reason::NoQuotaForResource);
    bench.server.put(flavor());
    bench.run();
    let admission = bench.gang_status().admission.unwrap();
    assert!(admission.adopted);
    let [group] = admission.charge.claims.as_slice() else {
        panic!("one group, not {admission:?}")
    };
    assert_eq!((group.flavor.as_str(), group.gpus_milli), ("plugin", 1_000));
    // The plugin has two more, and the Team one.
    submit(&mut bench, "next", 2);
    bench.run();
    assert_eq!(reason(&bench, "next"), Some(Reason::WaitingForQuota));
}

#[test]
fn what_runs_for_a_resource_that_no_flavor_counts_keeps_no_driver_from_enforcing() {
    let mut bench = Bench::new();
    let mut runs = pod("old", 0, 1);
    runs.metadata.labels = None;
    let spec = runs.spec.as_mut().unwrap();
    spec.scheduling_gates = None;
    spec.node_name = Some("n0".to_owned());
    runs.status.as_mut().unwrap().phase = Some("Running".to_owned());
    bench.server.put(Object::Pod(Arc::new(runs)));
    bench.run();
    let waits = bench.gang_status().queue.unwrap().reason;
    assert_eq!(waits, Reason::NoQuotaForResource);
    assert!(bench.server.node_devices("n0").unwrap().spec.enforce);
}

/// It is charged as long as the pod is there and no longer, whatever runs there still.
#[test]
fn what_no_driver_answers_for_is_deleted_by_force_behind_a_fence_alone() {
    let recovery = crate::Recovery {
        force_deletion: crate::ForcePolicy::WithConsent,
        ..config().recovery
    };
    let mut bench = bench_with(
        Config {
            recovery,
            ..config()
        },
        1,
    );
    submit(&mut bench, "train", 1);
    bench.change_pod("train-0", |pod| {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::FORCE_DELETION.to_owned(), "true".to_owned());
    });
    bench.run();
    bench.runs_on("train-0", NODE);
    bench.run();
    let mut object = bench.server.list(Kind::Team).remove(0);
    if let Object::Team(team) = &mut object {
        Arc::make_mut(team).spec.stop = muster_api::team::Stop::HoldAndDrain;
    }
    bench.server.put(object);
    bench.run();
    let pod = bench.server.pod("train-0").unwrap();
    assert!(pod.metadata.deletion_timestamp.is_some());
    let pass = |bench: &mut Bench, seconds: u64| {
        for _ in 0..seconds {
            bench.run_at_once();
            bench.seconds += 1;
        }
    };
    bench.server.put(node_that_is(NODE, 1, "Unknown"));
    pass(&mut bench, 200);
    assert!(bench.server.pod("train-0").is_some());
    let mut object = node_that_is(NODE, 1, "Unknown");
    if let Object::Node(node) = &mut object {
        let taint = k8s_openapi::api::core::v1::Taint {
            key: "node.kubernetes.io/out-of-service".to_owned(),
            effect: "NoExecute".to_owned(),
            ..k8s_openapi::api::core::v1::Taint::default()
        };
        Arc::make_mut(node).spec.get_or_insert_default().taints = Some(vec![taint]);
    }
    bench.server.put(object);
    pass(&mut bench, 2);
    assert!(bench.server.pod("train-0").is_none());
}
