//! What is installed, under which names.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::helm::{object, objects, parsed, template};

/// Everything that can be switched on.
const EVERYTHING: [&str; 10] = [
    "mode=\"Enforce\"",
    "scheduler.enabled=true",
    "networkPolicy.enabled=true",
    "metrics.podMonitor.enabled=true",
    "metrics.prometheusRule.enabled=true",
    "metrics.dashboards.enabled=true",
    "openshift.enabled=true",
    "driver.namespace=\"gpu-drivers\"",
    "driver.createNamespace=true",
    "test.namespace=\"research\"",
];

/// Kinds whose names are not a release's own: there is one of each in a cluster.
const SHARED: [&str; 4] = [
    "CustomResourceDefinition",
    "DeviceClass",
    "PriorityTier",
    "Namespace",
];

/// What the API server asks the webhook by.
const WEBHOOKS: [(&str, &str); 2] = [
    ("MutatingWebhookConfiguration", "zz-muster"),
    ("ValidatingWebhookConfiguration", "muster"),
];

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

#[test]
fn nothing_of_a_release_of_another_name_or_namespace_is_named_as_by_default() {
    let values: Vec<String> = EVERYTHING.iter().map(|&value| value.to_owned()).collect();
    let text = template("second", "other", &values).unwrap();
    assert!(
        !text.contains("muster-system"),
        "the namespace of the default install is in it"
    );
    for object in parsed(&text) {
        let kind = object["kind"].as_str().unwrap();
        let own = name(&object)
            .trim_start_matches("zz-")
            .starts_with("second-muster");
        assert!(own || SHARED.contains(&kind), "{kind} {}", name(&object));
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("other");
        let expected = [
            "other",
            "kube-system",
            "kube-node-lease",
            "gpu-drivers",
            "research",
        ];
        assert!(
            expected.contains(&namespace),
            "{kind} {} in {namespace}",
            name(&object)
        );
    }
    let named = ["fullnameOverride=\"gangs\"".to_owned()];
    assert!(
        template("second", "other", &named)
            .unwrap()
            .contains("name: gangs-controller\n")
    );
}

#[test]
fn what_a_cluster_has_once_can_be_left_to_others_and_all_else_is_named_by_release() {
    let keys = |release: &str, values: &[&str]| -> BTreeSet<String> {
        let values: Vec<String> = values.iter().map(|&value| value.to_owned()).collect();
        parsed(&template(release, release, &values).unwrap())
            .iter()
            .map(|object| {
                format!(
                    "{} {} {}",
                    object["kind"],
                    object["metadata"]["namespace"],
                    name(object)
                )
            })
            .collect()
    };
    let first = keys("muster", &[]);
    let second = keys(
        "second",
        &[
            "crds.install=false",
            "deviceClasses.create=false",
            "priorityTiers={\"critical\":null,\"standard\":null,\"best-effort\":null}",
        ],
    );
    let both: Vec<&String> = first.intersection(&second).collect();
    assert!(both.is_empty(), "{both:?}");
}

/// A release may be called so; a Service may not.
#[test]
fn names_of_services_have_no_dots_and_fit_whatever_the_release_is_called() {
    for release in ["team.gpus", "long-".repeat(10).trim_end_matches('-')] {
        let values: Vec<String> = EVERYTHING.iter().map(|&value| value.to_owned()).collect();
        let objects = parsed(&template(release, "other", &values).unwrap());
        for object in objects {
            let labelled = [
                "Service",
                "Deployment",
                "DaemonSet",
                "Job",
                "Pod",
                "ServiceAccount",
            ];
            if labelled.contains(&object["kind"].as_str().unwrap()) {
                let name = name(&object);
                assert!(!name.contains('.') && name.len() <= 63, "{name}");
            }
        }
    }
}

/// Where a number stands that is one of the names below.
fn numbers(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Number(number)
            if number
                .as_i64()
                .is_some_and(|number| (71_001..=71_006).contains(&number)) =>
        {
            found.push(path.to_owned());
        }
        Value::Array(list) => {
            for value in list {
                numbers(value, path, found);
            }
        }
        Value::Object(map) => {
            for (key, value) in map {
                numbers(value, &format!("{path}.{key}"), found);
            }
        }
        _ => {}
    }
}

/// A namespace may be called so, and what YAML reads as a number the API server takes for no name.
#[test]
fn names_that_look_like_numbers_are_texts_all_the_same() {
    for monitor in ["podMonitor", "serviceMonitor"] {
        let mut values: Vec<String> = EVERYTHING.iter().map(|&value| value.to_owned()).collect();
        values.extend([
            "fullnameOverride=\"71003\"".to_owned(),
            "schedulerName=\"71004\"".to_owned(),
            "driver.namespace=\"71005\"".to_owned(),
            "test.namespace=\"71006\"".to_owned(),
            "metrics.podMonitor.enabled=false".to_owned(),
            format!("metrics.{monitor}.enabled=true"),
        ]);
        let objects = parsed(&template("71001", "71002", &values).unwrap());
        let mut found = Vec::new();
        for object in &objects {
            let kind = object["kind"].as_str().unwrap();
            numbers(object, kind, &mut found);
            if let Some(text) = object["data"]["scheduler.yaml"].as_str() {
                let configuration: Value = serde_saphyr::from_str(text).unwrap();
                numbers(&configuration, "scheduler.yaml", &mut found);
            }
        }
        assert!(found.is_empty(), "{found:#?}");
        assert!(objects.iter().any(|object| object["kind"] == "Service"));
    }
}

/// A key that is there twice is refused by the API server's reader of YAML, or the last one wins.
#[test]
fn a_label_that_is_given_twice_is_there_once_and_the_nearer_one_wins() {
    let values = [
        "commonLabels={\"team\":\"all\",\"release\":\"all\"}",
        "webhook.podLabels={\"team\":\"near\"}",
        "metrics.podMonitor.enabled=true",
        "metrics.podMonitor.labels={\"release\":\"prometheus\"}",
    ];
    let values: Vec<String> = values.map(str::to_owned).to_vec();
    let text = template("muster", "muster-system", &values).unwrap();
    let objects = parsed(&text);
    let labels = |object: &Value| object["metadata"]["labels"].clone();
    let deployment = object(&objects, "Deployment", "muster-webhook");
    assert_eq!(labels(deployment)["team"], "all");
    assert_eq!(labels(&deployment["spec"]["template"])["team"], "near");
    let monitor = object(&objects, "PodMonitor", "muster");
    assert_eq!(labels(monitor)["release"], "prometheus");
}

#[test]
fn the_first_install_only_observes() {
    let objects = objects(&[]);
    // Nobody is asked about pods or Jobs.
    let mut webhooks = 0;
    for (kind, name) in WEBHOOKS {
        for webhook in object(&objects, kind, name)["webhooks"].as_array().unwrap() {
            webhooks += 1;
            let about = webhook["rules"][0]["apiGroups"][0].as_str();
            assert!([None, Some("muster.dev")].contains(&about), "{webhook}");
        }
    }
    assert_eq!(
        webhooks, 9,
        "pods twice, jobs, claims, templates of claims, teams, cohorts, flavors, fault policies"
    );
    let controller = object(&objects, "Deployment", "muster-controller").to_string();
    assert!(controller.contains("--mode=observe"));
    let driver = object(&objects, "DaemonSet", "muster-driver").to_string();
    assert!(!driver.contains("--enforce-unless-told"));
    // And on no node that nobody chose for it.
    assert!(
        driver.contains("\"nodeSelector\":{\"muster.dev/driver\":\"true\"}"),
        "{driver}"
    );
}

/// One definition: the chart's text is what the programs take for the class.
#[test]
fn the_selectors_of_device_classes_are_those_that_the_programs_know() {
    let objects = objects(&[]);
    let classes = objects
        .iter()
        .filter(|object| object["kind"] == "DeviceClass");
    assert_eq!(classes.count(), muster_api::device_class::SHIPPED.len());
    for class in muster_api::device_class::SHIPPED {
        let selectors = &object(&objects, "DeviceClass", class.name)["spec"]["selectors"];
        let expected = json!([{"cel": {"expression": class.selector}}]);
        assert_eq!(*selectors, expected, "{}", class.name);
    }
}

/// kube-scheduler would give every pod of the cluster that asks for it a claim that nobody planned.
#[test]
fn the_device_class_stands_for_no_extended_resource_unless_asked() {
    let name_of = |values: &[&str]| {
        let objects = objects(values);
        object(&objects, "DeviceClass", "gpu.muster.dev")["spec"]["extendedResourceName"].clone()
    };
    assert_eq!(name_of(&[]), Value::Null);
    assert_eq!(name_of(&["mode=\"Enforce\""]), Value::Null);
    let asked = name_of(&["deviceClasses.gpu.extendedResourceName=\"nvidia.com/gpu\""]);
    assert_eq!(asked, "nvidia.com/gpu");
}

/// Pods that ask for it would pass without a gate.
#[test]
fn a_resource_that_the_class_of_whole_gpus_stands_behind_is_managed_everywhere() {
    let values = [
        "mode=\"Enforce\"",
        "deviceClasses.gpu.extendedResourceName=\"example.com/gpu\"",
    ];
    let objects = objects(&values);
    for (kind, name) in [
        ("Deployment", "muster-controller"),
        ("Deployment", "muster-webhook"),
        ("DaemonSet", "muster-driver"),
    ] {
        let text = object(&objects, kind, name).to_string();
        let listed = "nvidia.com/gpu,nvidia.com/mig-*,example.com/gpu";
        assert!(text.contains(listed), "{kind} {name}");
    }
    for (kind, name) in WEBHOOKS {
        let text = object(&objects, kind, name).to_string();
        assert!(text.contains("r == 'example.com/gpu'"), "{kind} {name}");
    }
}

/// A first install that failed, since `check-enforce` refused it, say, is mended by an upgrade, for which Helm runs no hooks of installs. A gang
/// without a tier borrows nothing.
#[test]
fn tiers_are_made_where_there_is_none_also_by_an_upgrade() {
    let objects = objects(&[]);
    for tier in ["critical", "standard", "best-effort"] {
        let annotations = &object(&objects, "PriorityTier", tier)["metadata"]["annotations"];
        assert_eq!(
            annotations["helm.sh/hook"], "post-install,post-upgrade",
            "{tier}"
        );
    }
}

#[test]
fn what_holds_data_outlives_the_release() {
    let objects = objects(&[]);
    for object in &objects {
        let kept = object["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep";
        let data =
            ["CustomResourceDefinition", "Secret"].contains(&object["kind"].as_str().unwrap());
        assert_eq!(kept, data, "{} {}", object["kind"], name(object));
    }
}

#[test]
fn programs_are_restricted_but_for_the_driver_whose_namespace_says_so() {
    let objects = objects(&EVERYTHING);
    let mut seen = 0;
    for object in &objects {
        let pod = match object["kind"].as_str().unwrap() {
            "Deployment" | "DaemonSet" | "Job" => &object["spec"]["template"]["spec"],
            "Pod" => &object["spec"],
            _ => continue,
        };
        seen += 1;
        let context = &pod["containers"][0]["securityContext"];
        assert_eq!(context["readOnlyRootFilesystem"], true, "{}", name(object));
        if name(object) == "muster-driver" {
            assert_eq!(object["metadata"]["namespace"], "gpu-drivers");
            continue;
        }
        assert_eq!(context["runAsNonRoot"], true, "{}", name(object));
        assert_eq!(
            context["allowPrivilegeEscalation"],
            false,
            "{}",
            name(object)
        );
        assert_eq!(
            context["capabilities"]["drop"][0],
            "ALL",
            "{}",
            name(object)
        );
        assert_eq!(
            context["seccompProfile"]["type"],
            "RuntimeDefault",
            "{}",
            name(object)
        );
        assert!(
            pod["hostNetwork"].is_null() && pod["hostPID"].is_null(),
            "{}",
            name(object)
        );
    }
    assert_eq!(
        seen, 9,
        "controller, webhook, extender, scheduler, driver, the two tests and the two checks"
    );
    let namespace = object(&objects, "Namespace", "gpu-drivers");
    assert_eq!(
        namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"],
        "privileged"
    );
    let policy = object(&objects, "ValidatingAdmissionPolicy", "muster-node").to_string();
    assert!(
        policy.contains("system:serviceaccount:gpu-drivers:muster-driver"),
        "{policy}"
    );
}

/// A server answers for 5 s more and then gives what is in flight 10 s, within 20 s altogether.
#[test]
fn servers_are_rolled_without_a_replica_less_and_have_the_time_that_they_take_to_stop() {
    let objects = objects(&["mode=\"Enforce\""]);
    for name in ["muster-webhook", "muster-extender"] {
        let spec = &object(&objects, "Deployment", name)["spec"];
        let rolling = &spec["strategy"]["rollingUpdate"];
        assert_eq!(rolling["maxUnavailable"], 0, "{name}");
        assert_ne!(rolling["maxSurge"], 0, "{name}");
        let pod = &spec["template"]["spec"];
        let grace = &pod["terminationGracePeriodSeconds"];
        // Kubernetes gives 30 s where nothing is said.
        assert!(grace.is_null() || grace.as_i64().unwrap() >= 25, "{name}");
        let probe = &pod["containers"][0]["readinessProbe"];
        assert_eq!(probe["httpGet"]["path"], "/readyz", "{name}");
        let unready =
            probe["periodSeconds"].as_i64().unwrap() * probe["failureThreshold"].as_i64().unwrap();
        assert!(unready <= 5, "{name}: it is asked for {unready} s more");
    }
}

/// A pod on the node's network has its ports alone: where each node of its choice has an old one, a further one is placed nowhere.
#[test]
fn a_rollout_on_the_nodes_network_waits_for_no_port_that_an_old_pod_has() {
    for program in ["controller", "webhook", "extender", "scheduler"] {
        for (on_host, may_go_first) in [(false, 0), (true, 1)] {
            let objects = objects(&[
                "mode=\"Enforce\"",
                "scheduler.enabled=true",
                &format!("{program}.hostNetwork={on_host}"),
            ]);
            let deployment = object(&objects, "Deployment", &format!("muster-{program}"));
            let rolling = &deployment["spec"]["strategy"]["rollingUpdate"];
            assert_eq!(
                rolling["maxUnavailable"], may_go_first,
                "{program}, on the node's network: {on_host}"
            );
        }
    }
}

#[test]
fn side_doors_are_shut_but_in_namespaces_whose_business_they_are() {
    let binding = |values: &[&str]| {
        let objects = objects(values);
        let kind = "ValidatingAdmissionPolicyBinding";
        object(&objects, kind, "muster-pod-side-door")["spec"].clone()
    };
    let spec = binding(&EVERYTHING);
    assert_eq!(spec["validationActions"][0], "Deny");
    let excepted = &spec["matchResources"]["namespaceSelector"]["matchExpressions"][0];
    assert_eq!(excepted["operator"], "NotIn");
    let names: BTreeSet<&str> = excepted["values"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    for name in [
        "gpu-operator",
        "kube-system",
        "muster-system",
        "gpu-drivers",
    ] {
        assert!(names.contains(name), "{name} is not in {names:?}");
    }
    assert_eq!(binding(&[])["validationActions"][0], "Audit");
    let open = objects(&["sideDoors.refuse=false"]);
    assert!(
        open.iter()
            .all(|object| name(object) != "muster-pod-side-door")
    );
}

/// Whom the policy does not refuse, the driver does not tell of.
#[test]
fn the_driver_trusts_the_namespaces_that_the_policy_about_side_doors_excepts() {
    let objects = objects(&EVERYTHING);
    let binding = object(
        &objects,
        "ValidatingAdmissionPolicyBinding",
        "muster-pod-side-door",
    );
    let excepted =
        &binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"][0]["values"];
    let names: Vec<&str> = excepted
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let driver = object(&objects, "DaemonSet", "muster-driver");
    let variables = driver["spec"]["template"]["spec"]["containers"][0]["env"].as_array();
    let trusted = variables
        .unwrap()
        .iter()
        .find(|variable| variable["name"] == "MUSTER_TRUSTED_NAMESPACES")
        .unwrap();
    assert_eq!(trusted["value"], names.join(","));
}

/// Every ServiceAccount that a pod uses or a binding names is made.
#[test]
fn rights_are_bound_to_accounts_that_exist_and_pods_run_as_these() {
    let objects = objects(&EVERYTHING);
    let accounts: BTreeSet<(&str, &str)> = objects
        .iter()
        .filter(|object| object["kind"] == "ServiceAccount")
        .map(|object| {
            (
                object["metadata"]["namespace"].as_str().unwrap(),
                name(object),
            )
        })
        .collect();
    for object in &objects {
        let subjects = object["subjects"].as_array().into_iter().flatten();
        for subject in subjects.filter(|subject| subject["kind"] == "ServiceAccount") {
            let account = (
                subject["namespace"].as_str().unwrap(),
                subject["name"].as_str().unwrap(),
            );
            assert!(
                accounts.contains(&account),
                "{} {}: {account:?}",
                object["kind"],
                name(object)
            );
        }
        let pod = match object["kind"].as_str() {
            Some("Pod") => &object["spec"],
            _ => &object["spec"]["template"]["spec"],
        };
        if let Some(account) = pod["serviceAccountName"].as_str() {
            let account = (object["metadata"]["namespace"].as_str().unwrap(), account);
            assert!(accounts.contains(&account), "{}: {account:?}", name(object));
        }
    }
    assert_eq!(accounts.len(), 8);
}

/// The token of its driver lies on every node. What of this is not enough, the suites on the real control plane show.
#[test]
fn the_driver_may_read_and_write_what_it_does_and_nothing_else() {
    let objects = objects(&[]);
    let role = object(&objects, "ClusterRole", "muster-driver");
    let rules = role["rules"].as_array().unwrap().iter();
    let given: BTreeSet<String> = rules
        .map(|rule| {
            let words = |field: &str| {
                let words = rule[field].as_array().unwrap().iter();
                words
                    .filter_map(Value::as_str)
                    .collect::<Vec<_>>()
                    .join(" ")
            };
            format!("{}: {}", words("resources"), words("verbs"))
        })
        .collect();
    let expected = [
        "events: create",
        "faultpolicies nodedevices: get list watch",
        "nodedevices/status: patch",
        "nodes: get",
        "resourceclaims: get list",
        "resourceslices: list watch create update delete",
    ];
    assert_eq!(given, BTreeSet::from(expected.map(str::to_owned)));
}

/// A policy, a budget, a Service or a monitor that selects no pod does nothing, in silence.
#[test]
fn selectors_select_pods_and_ports_are_named_by_them() {
    for monitor in [
        "metrics.podMonitor.enabled=true",
        "metrics.serviceMonitor.enabled=true",
    ] {
        let objects = objects(&["networkPolicy.enabled=true", monitor]);
        let pods: Vec<&Value> = objects
            .iter()
            .map(|object| &object["spec"]["template"])
            .filter(|template| template.is_object())
            .collect();
        let mut seen = 0;
        for object in &objects {
            let spec = &object["spec"];
            let labels = match object["kind"].as_str().unwrap() {
                "NetworkPolicy" => &spec["podSelector"]["matchLabels"],
                "Service" => &spec["selector"],
                "PodDisruptionBudget" | "PodMonitor" => &spec["selector"]["matchLabels"],
                _ => continue,
            };
            seen += 1;
            let chosen: Vec<&&Value> = pods
                .iter()
                .filter(|pod| {
                    let found = &pod["metadata"]["labels"];
                    labels
                        .as_object()
                        .unwrap()
                        .iter()
                        .all(|(key, value)| found[key] == *value)
                })
                .collect();
            assert!(
                !chosen.is_empty(),
                "{} {} selects no pod",
                object["kind"],
                name(object)
            );
            let ports = spec["ingress"].as_array().into_iter().flatten();
            let ports = ports.flat_map(|rule| rule["ports"].as_array().into_iter().flatten());
            let ports = ports.map(|port| &port["port"]);
            let targets = spec["ports"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|port| &port["targetPort"]);
            let endpoints = spec["podMetricsEndpoints"].as_array().into_iter().flatten();
            for port in ports
                .chain(targets)
                .chain(endpoints.map(|endpoint| &endpoint["port"]))
            {
                for pod in &chosen {
                    let own = pod["spec"]["containers"][0]["ports"].as_array().unwrap();
                    let has = own.iter().any(|own| own["name"] == *port);
                    assert!(has, "{} {}: {port}", object["kind"], name(object));
                }
            }
        }
        assert!(seen > 8, "{seen}");
    }
}

/// For a NetworkPolicy who is on a node's network is no pod. A controller that hears nothing of an extender releases no pod.
#[test]
fn a_controller_on_the_nodes_network_may_ask_whether_the_extender_is_ready() {
    for on_host in [false, true] {
        let objects = objects(&[
            "networkPolicy.enabled=true",
            "networkPolicy.controlPlaneCidrs=[\"10.1.0.0/16\"]",
            &format!("controller.hostNetwork={on_host}"),
        ]);
        let policy = object(&objects, "NetworkPolicy", "muster-extender");
        let mut rules = policy["spec"]["ingress"].as_array().unwrap().iter();
        let may = rules.any(|rule| {
            let ports = rule["ports"].as_array().unwrap();
            ports.contains(&json!({"port": "admin"}))
                && rule["from"] == json!([{"ipBlock": {"cidr": "10.1.0.0/16"}}])
        });
        assert_eq!(may, on_host);
    }
}

#[test]
fn the_test_of_a_release_asks_for_one_gpu_in_a_namespace_of_a_team() {
    let objects = objects(&["test.namespace=\"research\""]);
    let pod = object(&objects, "Pod", "muster-test-device");
    assert_eq!(pod["metadata"]["namespace"], "research");
    assert_eq!(pod["metadata"]["annotations"]["helm.sh/hook"], "test");
    let claim = &pod["spec"]["resourceClaims"][0];
    let template = object(
        &objects,
        "ResourceClaimTemplate",
        claim["resourceClaimTemplateName"].as_str().unwrap(),
    );
    assert_eq!(template["metadata"]["annotations"]["helm.sh/hook"], "test");
    let request = &template["spec"]["spec"]["devices"]["requests"][0]["exactly"];
    let class = object(
        &objects,
        "DeviceClass",
        request["deviceClassName"].as_str().unwrap(),
    );
    assert!(
        class["spec"]["selectors"][0]["cel"]["expression"]
            .as_str()
            .unwrap()
            .contains("gpu.muster.dev")
    );
    assert_eq!(
        pod["spec"]["containers"][0]["resources"]["claims"][0]["name"],
        claim["name"]
    );
}

/// What reads every node and every role of a cluster has that right while it runs, and no other.
#[test]
fn the_preflight_of_a_release_only_reads_and_only_while_it_runs() {
    let objects = self::objects(&["extender.urlOverride=\"https://gangs.example.com:8444\""]);
    let pod = object(&objects, "Pod", "muster-test-preflight");
    assert_eq!(pod["metadata"]["annotations"]["helm.sh/hook"], "test");
    assert_eq!(pod["spec"]["serviceAccountName"], "muster-preflight");
    let args = pod["spec"]["containers"][0]["args"].as_array().unwrap();
    for arg in [
        "preflight",
        "--namespace=muster-system",
        "--extended-resource=nvidia.com/gpu,nvidia.com/mig-*",
        "--extender-tls-files=/etc/muster/extender",
        "--extender-url=https://gangs.example.com:8444/scheduler",
    ] {
        assert!(args.contains(&arg.into()), "{arg}: {args:?}");
    }
    let mounted = &pod["spec"]["volumes"][0]["secret"];
    assert_eq!(mounted["secretName"], "muster-extender-ca");
    let keys: Vec<&Value> = mounted["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["key"])
        .collect();
    assert_eq!(keys, ["ca.crt", "client.crt", "client.key"]);
    let mut seen = 0;
    for object in &objects {
        let kind = object["kind"].as_str().unwrap();
        if !name(object).starts_with("muster-preflight") {
            continue;
        }
        seen += 1;
        let annotations = &object["metadata"]["annotations"];
        assert_eq!(annotations["helm.sh/hook"], "test", "{kind}");
        let gone = annotations["helm.sh/hook-delete-policy"].as_str().unwrap();
        assert!(gone.contains("hook-succeeded"), "{kind}: {gone}");
        for rule in object["rules"].as_array().into_iter().flatten() {
            for verb in rule["verbs"].as_array().unwrap() {
                assert!(verb == "list" || verb == "get", "{kind}: {rule}");
            }
            let resources = rule["resources"].to_string();
            assert!(
                !resources.contains('*') && !resources.contains("secrets"),
                "{rule}"
            );
        }
    }
    assert_eq!(
        seen,
        3 + 2 * 4,
        "account, cluster role, roles and their bindings"
    );
    let without = self::objects(&["test.preflight=false"]);
    assert!(
        without
            .iter()
            .all(|object| !name(object).contains("preflight"))
    );
    let no_extender = self::objects(&["extender.enabled=false"]);
    let pod = object(&no_extender, "Pod", "muster-test-preflight");
    assert!(pod["spec"]["volumes"].is_null());
}

#[test]
fn the_driver_root_is_seen_through_the_directory_that_it_is_in() {
    for (root, mounted, seen) in [
        ("/", "/", "/driver-root-parent"),
        (
            "/run/nvidia/driver",
            "/run/nvidia",
            "/driver-root-parent/driver",
        ),
        (
            "/home/kubernetes/bin/nvidia/",
            "/home/kubernetes/bin",
            "/driver-root-parent/nvidia",
        ),
        (
            "/run/nvidia/driver/.",
            "/run/nvidia",
            "/driver-root-parent/driver",
        ),
        (
            "/run/nvidia/driver/580/..",
            "/run/nvidia",
            "/driver-root-parent/driver",
        ),
        (
            "/opt//a driver, or two: {580} #1",
            "/opt",
            "/driver-root-parent/a driver, or two: {580} #1",
        ),
    ] {
        let objects = objects(&[&format!("driver.driverRoot=\"{root}\"")]);
        let driver = object(&objects, "DaemonSet", "muster-driver");
        let pod = &driver["spec"]["template"]["spec"];
        let named = |list: &Value, name: &str| {
            let mut list = list.as_array().unwrap().iter();
            list.find(|entry| entry["name"] == name).unwrap().clone()
        };
        let container = &pod["containers"][0];
        let variable = named(&container["env"], "MUSTER_DRIVER_ROOT");
        assert_eq!(variable["value"], seen);
        let on_host = named(&container["env"], "MUSTER_DRIVER_ROOT_ON_HOST");
        let name = seen.strip_prefix("/driver-root-parent").unwrap();
        let whole = std::path::Path::new(mounted).join(name.trim_start_matches('/'));
        assert_eq!(on_host["value"].as_str(), whole.to_str());
        let mount = named(&container["volumeMounts"], "driver-root-parent");
        assert_eq!(mount["mountPath"], "/driver-root-parent");
        assert_eq!(mount["mountPropagation"], "HostToContainer");
        let volume = named(&pod["volumes"], "driver-root-parent");
        assert_eq!(volume["hostPath"]["path"], mounted);
        // The driver is there, and says what it misses, before a driver container has made the directory.
        assert_eq!(volume["hostPath"]["type"], "DirectoryOrCreate");
    }
}

/// What Helm runs at these events, with what it needs, which is there only meanwhile.
fn assert_runs_at(objects: &[Value], check: &str, events: &str) {
    for kind in ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job"] {
        let annotations = &object(objects, kind, check)["metadata"]["annotations"];
        assert_eq!(annotations["helm.sh/hook"], events, "{kind}");
        let policy = annotations["helm.sh/hook-delete-policy"].as_str().unwrap();
        assert!(policy.starts_with("before-hook-creation"), "{kind}");
        let weight = if kind == "Job" { "-1" } else { "-2" };
        assert_eq!(annotations["helm.sh/hook-weight"], weight, "{kind}");
    }
    let spec = &object(objects, "Job", check)["spec"];
    assert_eq!(spec["backoffLimit"], 0);
    // Helm gives up after 300 s, and says less of why.
    assert!(spec["activeDeadlineSeconds"].as_i64().unwrap() <= 240);
    let pod = &spec["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], check);
}

/// The arguments of the container of a Job.
fn arguments<'a>(objects: &'a [Value], job: &str) -> Vec<&'a str> {
    let pod = &object(objects, "Job", job)["spec"]["template"]["spec"];
    let arguments = pod["containers"][0]["args"].as_array().unwrap().iter();
    arguments.filter_map(Value::as_str).collect()
}

/// After an install that failed nothing of the release is there, and it can be uninstalled all the same.
#[test]
fn nothing_is_uninstalled_before_it_was_looked_at_unless_that_is_switched_off() {
    let checked = objects(&[]);
    assert_runs_at(&checked, "muster-check-uninstall", "pre-delete");
    assert_eq!(
        arguments(&checked, "muster-check-uninstall"),
        [
            "check-uninstall",
            "--restore-command=helm rollback muster 1 --no-hooks --namespace muster-system",
        ]
    );
    let rules = object(&checked, "ClusterRole", "muster-check-uninstall")["rules"].to_string();
    for kind in [
        "pods",
        "jobs",
        "resourceclaims",
        "nodedevices",
        "poddisruptionbudgets",
    ] {
        assert!(rules.contains(&format!("[\"{kind}\"]")), "{kind}: {rules}");
    }
    let forced = objects(&["uninstall.check=false"]);
    let found = forced
        .iter()
        .filter(|object| name(object) == "muster-check-uninstall");
    assert_eq!(found.count(), 0);
}

/// Those that only audit in Observe are the ones that insist on what Muster does with pods.
#[test]
fn what_refuses_and_holds_pods_is_taken_down_before_enforce_is_uninstalled() {
    const CHECK: &str = "muster-check-uninstall";
    let enforced = objects(&["mode=\"Enforce\"", "scheduler.enabled=true"]);
    assert_runs_at(&enforced, CHECK, "pre-delete");
    let observed = objects(&[]);
    let bindings = enforced
        .iter()
        .filter(|object| object["kind"] == "ValidatingAdmissionPolicyBinding");
    let about_pods = bindings.filter(|binding| {
        let mut same = observed
            .iter()
            .filter(|object| object["kind"] == binding["kind"] && name(object) == name(binding));
        same.all(|binding| binding["spec"]["validationActions"] == json!(["Audit"]))
    });
    let about_pods: BTreeSet<&str> = about_pods.map(name).collect();
    assert!(about_pods.contains("muster-pod-created"), "{about_pods:?}");
    let given = arguments(&enforced, CHECK);
    let value = |flag: &str| {
        let flag = format!("--{flag}=");
        given.iter().find_map(|word| word.strip_prefix(&flag))
    };
    let taken: BTreeSet<&str> = value("policy-binding").unwrap().split(',').collect();
    assert_eq!(taken, about_pods);
    assert_eq!(value("mutating-webhook-configuration"), Some("zz-muster"));
    assert_eq!(value("validating-webhook-configuration"), Some("muster"));
    let rules = object(&enforced, "ClusterRole", CHECK)["rules"].clone();
    let deleting = rules.as_array().unwrap().iter();
    let deleting = deleting.filter(|rule| rule["verbs"] == json!(["delete"]));
    let may: BTreeSet<&str> = deleting
        .flat_map(|rule| rule["resourceNames"].as_array().unwrap())
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(may, &taken | &BTreeSet::from(["zz-muster", "muster"]));
}

#[test]
fn enforce_begins_after_pods_were_looked_at_by_what_the_policy_says_unless_that_is_switched_off() {
    const CHECK: &str = "muster-check-enforce";
    let enforced = [
        "mode=\"Enforce\"",
        "driver.namespace=\"gpu-drivers\"",
        "sideDoors.runtimeClasses=[\"gpus\",\"nvidia\"]",
        "managedResources=[\"example.com/gpu\"]",
    ];
    let checked = objects(&enforced);
    assert_runs_at(&checked, CHECK, "pre-install,pre-upgrade,pre-rollback");
    let kind = "ValidatingAdmissionPolicyBinding";
    let binding = object(&checked, kind, "muster-pod-side-door");
    let selector = &binding["spec"]["matchResources"]["namespaceSelector"];
    let excepted: Vec<&str> = selector["matchExpressions"][0]["values"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert!(excepted.contains(&"gpu-drivers"), "{excepted:?}");
    let arguments = arguments(&checked, CHECK);
    assert_eq!(
        arguments,
        [
            "check-enforce",
            "--policy=muster-pod-side-door",
            &format!("--excepted-namespace={}", excepted.join(",")),
            "--runtime-class=gpus,nvidia",
            "--extended-resource=example.com/gpu",
        ]
    );
    let rules = object(&checked, "ClusterRole", CHECK)["rules"].to_string();
    assert!(rules.contains("\"muster-pod-side-door\""), "{rules}");
    let accepting = objects(&["mode=\"Enforce\"", "enforce.acceptViolations=true"]);
    assert!(self::arguments(&accepting, CHECK).contains(&"--accept-violations"));
    for without in [
        vec![],
        vec!["mode=\"Enforce\"", "enforce.check=false"],
        vec!["mode=\"Enforce\"", "sideDoors.refuse=false"],
    ] {
        let objects = objects(&without);
        let found = objects.iter().filter(|object| name(object) == CHECK);
        assert_eq!(found.count(), 0, "{without:?}");
    }
}

/// Those that look at what the webhook puts: it is asked about no pod any more before every API server knows that these only audit.
#[test]
fn what_refuses_pods_for_want_of_the_webhook_is_taken_down_before_observe_begins() {
    const JOB: &str = "muster-begin-observe";
    let observing = objects(&[]);
    assert_runs_at(&observing, JOB, "pre-upgrade,pre-rollback");
    let names = [
        "muster-pod-created",
        "muster-pod-scheduler",
        "muster-pod-side-door",
    ];
    let flag = format!("--policy-binding={}", names.join(","));
    assert_eq!(arguments(&observing, JOB), ["begin-observe", &flag]);
    let rules = object(&observing, "ClusterRole", JOB)["rules"].clone();
    assert_eq!(rules[0]["resourceNames"], json!(names));
    assert_eq!(rules[0]["verbs"], json!(["get", "delete"]));
    let enforcing = objects(&["mode=\"Enforce\"", "scheduler.enabled=true"]);
    for binding in names {
        let found = object(&enforcing, "ValidatingAdmissionPolicyBinding", binding);
        assert_eq!(found["spec"]["validationActions"], json!(["Deny"]));
    }
    // Argo CD knows no `--no-hooks`: a Job that cannot run would keep Enforce for ever.
    let without = objects(&["observe.takeDown=false"]);
    for objects in [enforcing, without] {
        assert!(objects.iter().all(|object| name(object) != JOB));
    }
}

/// A webhook that a change to Enforce makes would have no caBundle at first, and pods would be refused.
#[test]
fn a_change_of_mode_changes_what_webhooks_are_asked_about_and_makes_none() {
    let observing = objects(&[]);
    let enforcing = objects(&["mode=\"Enforce\""]);
    for (kind, name) in WEBHOOKS {
        let without_rules = |objects: &[Value]| {
            let mut webhooks = object(objects, kind, name)["webhooks"].clone();
            for webhook in webhooks.as_array_mut().unwrap() {
                webhook.as_object_mut().unwrap().remove("rules");
            }
            webhooks
        };
        assert_eq!(without_rules(&observing), without_rules(&enforcing));
        for objects in [&observing, &enforcing] {
            let controller = object(objects, "Deployment", "muster-controller").to_string();
            let flag = format!("-webhook-configuration={name}\"");
            assert!(controller.contains(&flag), "{controller}");
            let role = object(objects, "ClusterRole", "muster-controller")["rules"].to_string();
            assert!(role.contains(&format!("\"{name}\"")), "{role}");
        }
    }
}

/// Two that keep a caBundle would undo each other.
#[test]
fn the_webhooks_certificate_and_its_authority_are_cert_managers_or_musters_and_never_both() {
    let values = [
        "mode=\"Enforce\"",
        "webhook.tlsNames=[\"hook.example.com\",\"10.0.0.1\"]",
    ];
    let issuer = [
        "certManager.enabled=true",
        "certManager.issuerRef={\"name\":\"ca\"}",
    ];
    let theirs = objects(&[&values[..], &issuer[..]].concat());
    let certificate = object(&theirs, "Certificate", "muster-webhook");
    assert_eq!(
        certificate["spec"]["ipAddresses"],
        serde_json::json!(["10.0.0.1"])
    );
    let names = certificate["spec"]["dnsNames"].as_array().unwrap();
    assert!(
        names.contains(&"hook.example.com".into())
            && names.contains(&"muster-webhook.muster-system.svc".into())
    );
    let webhook = object(&theirs, "Deployment", "muster-webhook");
    let secrets: Vec<&Value> = webhook["spec"]["template"]["spec"]["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| &volume["secret"]["secretName"])
        .collect();
    assert_eq!(secrets, [&certificate["spec"]["secretName"]]);
    let ours = objects(&values);
    for (objects, by_cert_manager) in [(&theirs, true), (&ours, false)] {
        let controller = object(objects, "Deployment", "muster-controller").to_string();
        assert_eq!(
            controller.contains("-webhook-configuration="),
            !by_cert_manager
        );
        for (kind, name) in [
            ("MutatingWebhookConfiguration", "zz-muster"),
            ("ValidatingWebhookConfiguration", "muster"),
        ] {
            let annotation = &object(objects, kind, name)["metadata"]["annotations"]["cert-manager.io/inject-ca-from"];
            assert_eq!(
                *annotation == "muster-system/muster-webhook",
                by_cert_manager,
                "{name}"
            );
        }
        let webhook = object(objects, "Deployment", "muster-webhook").to_string();
        assert_eq!(webhook.contains("--tls-certificate-file="), by_cert_manager);
        assert_eq!(webhook.contains("--tls-names="), !by_cert_manager);
    }
}
