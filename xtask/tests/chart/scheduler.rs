//! The second kube-scheduler that the chart runs.

use std::fs;

use serde_json::{Value, json};

use crate::helm::{object, objects, root};

const ENABLED: [&str; 2] = ["mode=\"Enforce\"", "scheduler.enabled=true"];

/// There is one place that says how the extender is to be configured; the chart cannot call it.
#[test]
fn its_configuration_is_the_one_that_scheduler_config_prints() {
    let objects = objects(&ENABLED);
    let text = object(&objects, "ConfigMap", "muster-scheduler")["data"]["scheduler.yaml"].clone();
    let found: Value = serde_saphyr::from_str(text.as_str().unwrap()).unwrap();
    let printed = root().join("controller/tests/scheduler_config/second-files.expected.yaml");
    let printed: Value = serde_saphyr::from_str(&fs::read_to_string(printed).unwrap()).unwrap();
    assert_eq!(found, printed);
}

#[test]
fn it_gets_every_managed_pod_and_the_controller_watches_its_lease() {
    let objects = objects(&ENABLED);
    for program in ["controller", "webhook"] {
        let deployment = object(&objects, "Deployment", &format!("muster-{program}"));
        assert!(
            deployment
                .to_string()
                .contains("--scheduler-name=muster-scheduler"),
            "{program}"
        );
    }
    let controller = object(&objects, "Deployment", "muster-controller").to_string();
    assert!(controller.contains("--scheduler-lease=muster-system/muster-scheduler"));
    for (role, verb) in [
        ("muster-scheduler", "update"),
        ("muster-controller-scheduler-lease", "get"),
    ] {
        let role = object(&objects, "Role", role);
        assert_eq!(role["metadata"]["namespace"], "muster-system");
        let rules = role["rules"].as_array().unwrap();
        let may = rules.iter().any(|rule| {
            rule["resourceNames"] == json!(["muster-scheduler"])
                && rule["verbs"].as_array().unwrap().contains(&json!(verb))
        });
        assert!(may, "{role}");
    }
    let policy = object(
        &objects,
        "ValidatingAdmissionPolicy",
        "muster-pod-scheduler",
    );
    let expression = policy["spec"]["validations"][0]["expression"]
        .as_str()
        .unwrap();
    assert!(
        expression.ends_with("object.spec.schedulerName == 'muster-scheduler'"),
        "{expression}"
    );
    let binding = object(
        &objects,
        "ValidatingAdmissionPolicyBinding",
        "muster-pod-scheduler",
    );
    assert_eq!(binding["spec"]["validationActions"], json!(["Deny"]));
}

#[test]
fn it_never_sees_the_private_key_of_the_authority() {
    let objects = objects(&ENABLED);
    let pod = &object(&objects, "Deployment", "muster-scheduler")["spec"]["template"]["spec"];
    let volumes = pod["volumes"].as_array().unwrap();
    let secret = volumes
        .iter()
        .find(|volume| volume["secret"].is_object())
        .unwrap();
    let items = secret["secret"]["items"].as_array().unwrap();
    let keys: Vec<&str> = items
        .iter()
        .map(|item| item["key"].as_str().unwrap())
        .collect();
    assert_eq!(keys, ["ca.crt", "client.crt", "client.key"]);
}

#[test]
fn without_it_the_cluster_keeps_its_scheduler() {
    let objects = objects(&["mode=\"Enforce\""]);
    let names: Vec<&str> = objects
        .iter()
        .filter_map(|object| object["metadata"]["name"].as_str())
        .collect();
    assert!(
        !names
            .iter()
            .any(|name| name.starts_with("muster-scheduler") || *name == "muster-pod-scheduler")
    );
    let role = object(&objects, "Role", "muster-controller-scheduler-lease");
    assert_eq!(role["metadata"]["namespace"], "kube-system");
    assert_eq!(role["rules"][0]["resourceNames"], json!(["kube-scheduler"]));
}

/// A profile of that name in the cluster's scheduler would be a second one that takes the same pods.
#[test]
fn where_pods_have_a_scheduler_of_their_own_scheduler_config_is_for_that_one() {
    let target = |values: &[&str]| {
        let objects = objects(values);
        let pod = &object(&objects, "Deployment", "muster-controller")["spec"]["template"]["spec"];
        let variables = pod["containers"][0]["env"].as_array().unwrap().clone();
        let named = |name: &str| {
            let found = variables.iter().find(|variable| variable["name"] == name);
            found.map(|variable| variable["value"].as_str().unwrap().to_owned())
        };
        (
            named("MUSTER_SCHEDULER_CONFIG_FOR"),
            named("MUSTER_SCHEDULER_NAME"),
            named("MUSTER_SECOND_SCHEDULER"),
        )
    };
    assert_eq!(target(&[]), (None, None, None));
    let own = |name: &str, runs: Option<&str>| {
        (
            Some("second".to_owned()),
            Some(name.to_owned()),
            runs.map(str::to_owned),
        )
    };
    assert_eq!(target(&["schedulerName=\"gpus\""]), own("gpus", None));
    let by_the_chart = own("muster-scheduler", Some("true"));
    assert_eq!(target(&ENABLED), by_the_chart);
}
