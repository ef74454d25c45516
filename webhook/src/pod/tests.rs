use super::*;
use muster_api::{Team, TeamSpec, team::TeamTiers};
use muster_cluster::managed_cases::{MANAGED_CASES_RESOURCES, managed_cases};
use proptest::prelude::*;
use serde_json::{Value, json};

fn rules() -> PodRules {
    PodRules {
        managed: ManagedPods::new(MANAGED_CASES_RESOURCES).unwrap(),
        extender: true,
        void_devices: true,
        excepted_namespaces: ["tools".to_owned()].into(),
        scheduler_name: None,
    }
}

fn facts() -> Cache {
    let mut facts = Cache {
        tiers: ["critical", "standard"].map(str::to_owned).into(),
        levels_of_topology: [(
            "fabric".to_owned(),
            vec!["spine".to_owned(), "leaf".to_owned()],
        )]
        .into(),
        team_of_namespace: [("ml".to_owned(), "red".to_owned())].into(),
        ..Cache::default()
    };
    let tiers = TeamTiers {
        allowed: vec!["standard".into()],
        default: None,
    };
    let spec = TeamSpec {
        tiers: Some(tiers),
        ..TeamSpec::default()
    };
    facts
        .teams
        .insert("red".into(), Team::new("red", spec).spec);
    facts
}

/// A pod with a claim, and these labels and annotations.
fn pod(labels: &Value, annotations: &Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ml", "labels": labels, "annotations": annotations},
        "spec": {"containers": [{"name": "c"}], "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]},
    }))
    .unwrap()
}

fn applied(rules: &PodRules, pod: &Value) -> Value {
    applied_in("ml", rules, pod)
}

fn applied_in(namespace: &str, rules: &PodRules, pod: &Value) -> Value {
    let mut patched = pod.clone();
    let typed: Pod = serde_json::from_value(pod.clone()).unwrap();
    json_patch::patch(
        &mut patched,
        &rules.patch(&typed, namespace, &Cache::default()),
    )
    .unwrap();
    patched
}

#[test]
fn a_managed_pod_gets_gate_and_marker_and_no_other_pod_is_touched() {
    for case in managed_cases() {
        let patched = applied(&rules(), &case.pod);
        let names_node = case.pod["spec"]["nodeName"]
            .as_str()
            .is_some_and(|node| !node.is_empty());
        if !case.managed || names_node {
            assert_eq!(patched, case.pod, "{}", case.name);
            continue;
        }
        let gates = patched["spec"]["schedulingGates"].as_array().unwrap();
        let ours = gates
            .iter()
            .filter(|gate| gate["name"] == "muster.dev/admission");
        assert_eq!(ours.count(), 1, "{}", case.name);
        for field in ["limits", "requests"] {
            let marker =
                &patched["spec"]["containers"][0]["resources"][field]["muster.dev/managed"];
            assert_eq!(marker, "0", "{}: {field}", case.name);
        }
    }
}

#[test]
fn what_the_pod_asks_for_stays_as_it_is() {
    let pod = json!({"metadata": {"labels": {"muster.dev/gang": "g"}}, "spec": {
        "schedulingGates": [{"name": "other"}], "schedulerName": "default-scheduler",
        "containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}, "claims": [{"name": "gpu"}]}}, {"name": "b"}]}});
    let rules = PodRules {
        scheduler_name: Some("muster-scheduler".into()),
        ..rules()
    };
    let patched = applied(&rules, &pod);
    assert_eq!(
        patched["spec"]["schedulingGates"],
        json!([{"name": "other"}, {"name": "muster.dev/admission"}])
    );
    assert_eq!(patched["spec"]["schedulerName"], "muster-scheduler");
    assert_eq!(
        patched["spec"]["containers"],
        json!([{"name": "a", "env": void(), "resources": {
            "limits": {"cpu": "1", "muster.dev/managed": "0"},
            "requests": {"muster.dev/managed": "0"},
            "claims": [{"name": "gpu"}]}}, {"name": "b", "env": void()}])
    );
    let mut chosen = pod;
    chosen["spec"]["schedulerName"] = json!("own-scheduler");
    assert_eq!(
        applied(&rules, &chosen)["spec"]["schedulerName"],
        "own-scheduler"
    );
}

fn void() -> Value {
    json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}])
}

/// CUDA's images name all GPUs: NVIDIA's runtime, the node's default one or by a RuntimeClass, would give them.
#[test]
fn a_container_for_which_no_gpu_was_asked_gets_none_that_its_image_names() {
    let limits = |name: &str, amount: &str| json!({"limits": {name: amount}});
    let field = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
    let other = json!([{"name": "OTHER", "value": "1"}]);
    let both = json!([other[0], void()[0]]);
    for (what, env, resources, expected) in [
        ("nothing", None, json!({}), Some(void())),
        (
            "a GPU of a device plugin",
            None,
            limits("nvidia.com/gpu", "1"),
            None,
        ),
        (
            "none of a device plugin",
            None,
            limits("nvidia.com/gpu", "0"),
            Some(void()),
        ),
        (
            "a slice of a device plugin",
            None,
            limits("nvidia.com/mig-1g.10gb", "1"),
            None,
        ),
        // A variable of the pod would overrule what the plugin says, and the container would have no GPU.
        (
            "a shared GPU of a device plugin, which is not managed",
            None,
            limits("nvidia.com/gpu.shared", "1"),
            None,
        ),
        (
            "what stands for no device",
            None,
            limits("nvidia.com/hostdev", "1"),
            Some(void()),
        ),
        (
            "a claim, which may be for a network card",
            None,
            json!({"claims": [{"name": "x"}]}),
            Some(void()),
        ),
        ("its own word", Some(field.clone()), json!({}), Some(field)),
        (
            "the same word",
            Some(void()),
            limits("nvidia.com/gpu", "0"),
            Some(void()),
        ),
        (
            "other variables",
            Some(other.clone()),
            json!({}),
            Some(both),
        ),
        ("no variables", Some(json!([])), json!({}), Some(void())),
        (
            "a GPU and other variables",
            Some(other.clone()),
            limits("nvidia.com/gpu", "1"),
            Some(other),
        ),
    ] {
        let mut container = json!({"name": "c", "resources": resources});
        if let Some(env) = env {
            container["env"] = env;
        }
        for list in ["containers", "initContainers"] {
            // The marker is for the first container only.
            let mut spec = json!({"containers": [{"name": "first", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]});
            match list {
                "containers" => spec[list].as_array_mut().unwrap().push(container.clone()),
                _ => spec[list] = json!([container]),
            }
            let pod = json!({"metadata": {"name": "p"}, "spec": spec});
            let patched = applied(&rules(), &pod);
            let last = patched["spec"][list].as_array().unwrap().last().unwrap();
            assert_eq!(last.get("env"), expected.as_ref(), "{what} in {list}");
            assert_eq!(applied(&rules(), &patched), patched, "{what} in {list}");
        }
    }
}

#[test]
fn a_pod_without_gpus_an_excepted_namespace_and_open_side_doors_are_left_as_they_are() {
    let plain = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}});
    assert_eq!(applied(&rules(), &plain), plain);
    let claiming = serde_json::to_value(pod(&json!({}), &json!({}))).unwrap();
    let open = PodRules {
        void_devices: false,
        ..rules()
    };
    let void = void();
    for (namespace, rules, expected) in [
        ("ml", rules(), Some(&void)),
        ("tools", rules(), None),
        ("ml", open, None),
    ] {
        let patched = applied_in(namespace, &rules, &claiming);
        let env = patched["spec"]["containers"][0].get("env");
        assert_eq!(env, expected, "{namespace}");
    }
}

#[test]
fn without_the_extender_there_is_no_marker() {
    let rules = PodRules {
        extender: false,
        ..rules()
    };
    let patched = applied(
        &rules,
        &serde_json::to_value(pod(&json!({}), &json!({}))).unwrap(),
    );
    assert!(
        patched["spec"]["containers"][0].get("resources").is_none(),
        "{patched}"
    );
    assert!(patched["spec"]["schedulingGates"].is_array());
}

proptest! {
    /// patch(patch(x)) = patch(x), whatever gates, resources, markers, claims and shorthand the pod came with.
    #[test]
    fn the_patch_is_idempotent(
        gates in prop::option::of(prop::collection::vec(prop_oneof![Just("muster.dev/admission"), Just("other")], 0..3)),
        containers in prop::collection::vec(container(), 0..3),
        init_containers in prop::option::of(prop::collection::vec(container(), 0..2)),
        claims in prop::option::of(prop::collection::vec(prop_oneof![Just("muster-gpus"), Just("nic")], 0..3)),
        labelled in any::<bool>(),
        extender in any::<bool>(),
        scheduler in prop::option::of(prop_oneof![Just("default-scheduler"), Just("muster-scheduler"), Just("own")]),
        annotations in annotations(),
    ) {
        let mut spec = json!({"containers": named("c", containers)});
        if let Some(init) = init_containers {
            spec["initContainers"] = named("i", init);
        }
        if let Some(gates) = gates {
            spec["schedulingGates"] = gates.iter().map(|name| json!({"name": name})).collect();
        }
        if let Some(claims) = claims {
            spec["resourceClaims"] = claims.iter().map(|name| json!({"name": name, "resourceClaimName": "x"})).collect();
        }
        if let Some(scheduler) = scheduler {
            spec["schedulerName"] = json!(scheduler);
        }
        let labels = if labelled { json!({"muster.dev/gang": "g"}) } else { json!({}) };
        let pod = json!({"metadata": {"name": "p", "labels": labels, "annotations": annotations}, "spec": spec});
        let rules = PodRules { extender, scheduler_name: Some("muster-scheduler".into()), ..rules() };
        let once = applied(&rules, &pod);
        prop_assert_eq!(&applied(&rules, &once), &once);
        let typed: Pod = serde_json::from_value(once).unwrap();
        prop_assert!(rules.patch(&typed, "ml", &Cache::default()).0.is_empty(), "a patched pod lacks nothing");
    }
}

/// The `resources` of a container, or none.
fn container() -> impl Strategy<Value = Option<Value>> {
    let amounts = || {
        let names = prop_oneof![
            Just("muster.dev/managed"),
            Just("cpu"),
            Just("nvidia.com/gpu")
        ];
        prop::option::of(prop::collection::btree_map(names, "[0-3]", 0..3))
    };
    let claims = prop::option::of(prop::collection::vec(
        prop_oneof![Just("muster-gpus"), Just("nic")].prop_map(|name| json!({"name": name})),
        0..2,
    ));
    prop::option::of((amounts(), amounts(), claims).prop_map(|(limits, requests, claims)| {
        json!({"limits": limits, "requests": requests, "claims": claims})
    }))
}

fn named(prefix: &str, containers: Vec<Option<Value>>) -> Value {
    let named = containers.into_iter().enumerate().map(
        |(index, resources)| json!({"name": format!("{prefix}{index}"), "resources": resources}),
    );
    named.collect()
}

fn annotations() -> impl Strategy<Value = Value> {
    let gpus = prop::option::of("[0-4]");
    let vram = prop::option::of(prop_oneof![Just("40Gi"), Just("1e30")]);
    let interconnect = prop::option::of(prop_oneof![Just("nvlink"), Just("nvlink-pair")]);
    let container = prop::option::of(prop_oneof![Just("c1"), Just("i0"), Just("unknown")]);
    (gpus, vram, interconnect, container).prop_map(|(gpus, vram, interconnect, container)| {
        json!({"muster.dev/gpus": gpus, "muster.dev/vram": vram,
            "muster.dev/interconnect": interconnect, "muster.dev/container": container})
        .as_object()
        .map(|all| {
            all.iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect()
        })
        .unwrap_or_default()
    })
}

#[test]
fn every_refusal_names_its_field_and_reason() {
    let gang = json!({"muster.dev/gang": "g"});
    let none = json!({});
    let of_two = |key: &str, value: &str| json!({"muster.dev/gang-size": "2", key: value});
    let cases = [
        (
            gang.clone(),
            json!({"muster.dev/gang-size": "0"}),
            "metadata.annotations[muster.dev/gang-size]",
            Reason::InvalidValue,
        ),
        (
            gang.clone(),
            json!({"muster.dev/gang-size": "4097"}),
            "metadata.annotations[muster.dev/gang-size]",
            Reason::InvalidValue,
        ),
        (
            gang.clone(),
            json!({"muster.dev/gang-size": "+2"}),
            "metadata.annotations[muster.dev/gang-size]",
            Reason::InvalidValue,
        ),
        (
            gang.clone(),
            none.clone(),
            "metadata.annotations[muster.dev/gang-size]",
            Reason::InvalidValue,
        ),
        (
            gang.clone(),
            of_two("muster.dev/start-timeout-seconds", "0"),
            "metadata.annotations[muster.dev/start-timeout-seconds]",
            Reason::InvalidValue,
        ),
        (
            gang.clone(),
            of_two("muster.dev/failure-grace-seconds", "86401"),
            "metadata.annotations[muster.dev/failure-grace-seconds]",
            Reason::InvalidValue,
        ),
        (
            gang.clone(),
            of_two("muster.dev/max-runtime-seconds", "31536001"),
            "metadata.annotations[muster.dev/max-runtime-seconds]",
            Reason::InvalidValue,
        ),
        (
            gang.clone(),
            of_two("muster.dev/progress-deadline-seconds", "0"),
            "metadata.annotations[muster.dev/progress-deadline-seconds]",
            Reason::InvalidValue,
        ),
        (
            gang.clone(),
            of_two("muster.dev/max-restarts", "1001"),
            "metadata.annotations[muster.dev/max-restarts]",
            Reason::InvalidValue,
        ),
        (
            json!({"muster.dev/gang": ""}),
            of_two("a", "b"),
            "metadata.labels[muster.dev/gang]",
            Reason::InvalidValue,
        ),
        (
            json!({"muster.dev/tier": "gold"}),
            none.clone(),
            "metadata.labels[muster.dev/tier]",
            Reason::TierNotAllowed,
        ),
        (
            json!({"muster.dev/tier": "critical"}),
            none.clone(),
            "metadata.labels[muster.dev/tier]",
            Reason::TierNotAllowed,
        ),
        (
            none.clone(),
            json!({"muster.dev/topology-required": "rack"}),
            "metadata.annotations[muster.dev/topology-required]",
            Reason::InvalidValue,
        ),
        (
            none.clone(),
            json!({"muster.dev/topology-preferred": ""}),
            "metadata.annotations[muster.dev/topology-preferred]",
            Reason::InvalidValue,
        ),
        (
            none.clone(),
            json!({"muster.dev/rank": "0"}),
            "metadata.annotations[muster.dev/rank]",
            Reason::NotPermitted,
        ),
        (
            none.clone(),
            json!({"muster.dev/placement": "any"}),
            "metadata.annotations[muster.dev/placement]",
            Reason::NotPermitted,
        ),
        (
            none.clone(),
            json!({"muster.dev/gpus": "many"}),
            "metadata.annotations[muster.dev/gpus]",
            Reason::InvalidValue,
        ),
    ];
    for (labels, annotations, field, reason) in cases {
        let findings = rules().check(&pod(&labels, &annotations), "ml", &facts());
        let found = findings
            .errors
            .iter()
            .any(|finding| finding.field == field && finding.reason == reason);
        assert!(
            found && findings.errors.len() == 1,
            "{labels} {annotations}: {findings:?}"
        );
    }
}

#[test]
fn a_pod_that_names_its_node_is_told_what_to_do_instead() {
    let mut bound = pod(&json!({}), &json!({}));
    bound.spec.as_mut().unwrap().node_name = Some("n1".into());
    let findings = rules().check(&bound, "ml", &facts());
    assert_eq!(findings.errors[0].field, "spec.nodeName");
    assert_eq!(findings.errors[0].reason, Reason::NotPermitted);
    assert!(rules().patch(&bound, "ml", &facts()).0.is_empty());
}

#[test]
fn fewer_pods_than_all_are_for_pods_of_jobs() {
    let job = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true}]);
    let set = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "u", "controller": true}]);
    for (owners, least, size, says) in [
        (&job, "2", "4", None),
        (&job, "4", "4", None),
        (&job, "5", "4", Some("from 1 to 4, the size of the gang")),
        (&job, "0", "4", Some("from 1 to 4")),
        (&set, "2", "4", Some("a Job with spec.completions")),
        (&json!([]), "2", "4", Some("a Job with spec.completions")),
    ] {
        let annotations = json!({"muster.dev/min-count": least, "muster.dev/gang-size": size});
        let mut pod = pod(&json!({"muster.dev/gang": "g"}), &annotations);
        pod.metadata.owner_references = serde_json::from_value(owners.clone()).unwrap();
        let errors = rules().check(&pod, "ml", &facts()).errors;
        let Some(says) = says else {
            assert!(errors.is_empty(), "{least} of {size}: {errors:?}");
            continue;
        };
        assert_eq!(errors.len(), 1, "{least} of {size}: {errors:?}");
        assert_eq!(errors[0].reason, Reason::InvalidValue);
        assert_eq!(
            errors[0].field,
            "metadata.annotations[muster.dev/min-count]"
        );
        assert!(errors[0].message.contains(says), "{errors:?}");
    }
}

#[test]
fn what_queues_is_not_refused() {
    for (labels, annotations) in [
        (json!({}), json!({})),
        (
            json!({"muster.dev/gang": "g"}),
            json!({"muster.dev/gang-size": "4096"}),
        ),
        (
            json!({"muster.dev/tier": "standard"}),
            json!({"muster.dev/topology-required": "leaf"}),
        ),
        (json!({}), json!({"muster.dev/topology-required": "node"})),
    ] {
        let findings = rules().check(&pod(&labels, &annotations), "ml", &facts());
        assert_eq!(findings, Findings::default(), "{labels} {annotations}");
    }
    let nowhere = rules().check(
        &pod(&json!({"muster.dev/tier": "critical"}), &json!({})),
        "no-team",
        &facts(),
    );
    assert!(
        nowhere.errors.is_empty(),
        "a namespace without Team waits with NoTeam"
    );
}

#[test]
fn a_misspelt_key_is_warned_of() {
    let labels = json!({"muster.dev/gan": "g"});
    let annotations = json!({"muster.dev/gangsize": "2"});
    let findings = rules().check(&pod(&labels, &annotations), "ml", &facts());
    assert!(findings.errors.is_empty());
    assert_eq!(findings.warnings.len(), 2, "{findings:?}");
}

#[test]
fn the_size_of_a_jobs_pods_may_stand_at_the_job() {
    let mut of_job = pod(&json!({"muster.dev/gang": "g"}), &json!({}));
    of_job.metadata.owner_references = Some(vec![
        serde_json::from_value(
            json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true}),
        )
        .unwrap(),
    ]);
    let findings = rules().check(&of_job, "ml", &facts());
    assert_eq!(findings, Findings::default());
}
