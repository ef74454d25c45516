//! The rules that the definitions carry (CEL), case by case, as the API server applies them: to an object with its defaults.
//!
//! What a real API server makes of the definitions is tested with it; here every rule has cases that it alone refuses.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeSet, path::Path};

use kube_cel::{
    KubeCelExt,
    cel::{Context, Program, Value as Cel, to_value},
};
use serde_json::{Value, json};

const NEEDS_COHORT: &str = "borrowingLimit and lendingLimit need a cohort";
const NEEDS_PARENT: &str = "borrowingLimit and lendingLimit need a parent";
const OWN_PARENT: &str = "a cohort cannot be its own parent";
const EITHER: &str = "say either nominal or auto: true";
const AUTO: &str = "auto follows gpus and vram";
const PREFERENCE: &str = "preference needs whenCanBorrow and whenCanPreempt to be TryNextFlavor: else the first Flavor of a kind \
                          ends the search";
const THRESHOLD: &str = "maxPriorityThreshold says nothing where policy is Never";
const BORROW: &str = "borrowWithinCohort says nothing where reclaimWithinCohort is Never";
const INTERVAL: &str = "samplingIntervalSeconds must not exceed halfLifeSeconds: an admission would count for more than half of \
                        what it holds at once";
const VRAM_DEFAULT: &str = "vramDefault goes with vram: Default: say both or neither";
const LEVELS: &str = "level names and node labels are unique, and 'node' is reserved";

const ONE_SOURCE: &str = "devices counts what a DRA driver hands out, extendedResource what a device plugin does: say one of them, and \
                          make a Flavor for each";
const RESOURCE_NAME: &str = "extendedResource is DOMAIN/NAME, such as nvidia.com/gpu";
const OF_A_PLUGIN: &str = "extendedResource is what a device plugin registers: no name of kubernetes.io (there DeviceClasses stand for \
                           claims) nor of muster.dev";

/// The definitions that administrators write objects of.
const DEFINITIONS: [&str; 5] = ["cohorts", "flavors", "prioritytiers", "teams", "topologies"];

/// The schema of a definition.
fn schema(definition: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/crds");
    let text = std::fs::read_to_string(path.join(format!("{definition}.yaml"))).unwrap();
    let definition: Value = serde_saphyr::from_str(&text).unwrap();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// Calls `visit` with every part of a schema that the object has a value for, the outer ones first.
fn walk(schema: &Value, value: &mut Value, visit: &mut dyn FnMut(&Value, &mut Value)) {
    visit(schema, value);
    for (name, of_field) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(field) = value.get_mut(name) {
            walk(of_field, field, visit);
        }
    }
    for item in value.as_array_mut().into_iter().flatten() {
        walk(&schema["items"], item, visit);
    }
}

fn set_defaults(schema: &Value, value: &mut Value) {
    let (Some(properties), Some(object)) =
        (schema["properties"].as_object(), value.as_object_mut())
    else {
        return;
    };
    for (name, of_field) in properties {
        if let Some(default) = of_field.get("default") {
            let field = object.entry(name.clone());
            field.or_insert_with(|| default.clone());
        }
    }
}

fn rules(schema: &Value) -> Vec<(&str, &str)> {
    let rules = schema["x-kubernetes-validations"].as_array();
    let rules = rules.into_iter().flatten();
    rules
        .map(|rule| {
            let text = |field: &str| rule[field].as_str().unwrap();
            (text("rule"), text("message"))
        })
        .collect()
}

/// What an object of this name and spec violates. An error of a rule counts: it refuses, too.
fn violated(definition: &str, name: &str, spec: &Value) -> Vec<String> {
    let schema = schema(definition);
    let mut object = json!({"metadata": {"name": name}, "spec": spec});
    walk(&schema, &mut object, &mut set_defaults);
    let mut violated = Vec::new();
    walk(&schema, &mut object, &mut |schema, value| {
        for (rule, message) in rules(schema) {
            let mut context = Context::default().with_all();
            context.add_variable_from_value("self", to_value(&*value).unwrap());
            let holds = Program::compile(rule).unwrap().execute(&context);
            if !matches!(holds, Ok(Cel::Bool(true))) {
                violated.push(message.to_owned());
            }
        }
    });
    violated
}

fn gpus(quota: &Value) -> Value {
    let mut resource = json!({"name": "gpus"});
    json_patch::merge(&mut resource, quota);
    json!({"quota": [{"flavor": "h100", "resources": [resource]}]})
}

fn with(mut spec: Value, more: &Value) -> Value {
    json_patch::merge(&mut spec, more);
    spec
}

/// Definition, spec, and the rules that it violates.
fn cases() -> Vec<(&'static str, Value, &'static [&'static str])> {
    let limited = |limit: &str| gpus(&json!({"nominal": 1, limit: 1}));
    let in_cohort = json!({"cohort": "all"});
    let below = json!({"parent": "all"});
    let fungibility = |it: Value| json!({"flavorFungibility": it});
    let preemption = |it: Value| json!({"preemption": it});
    let borrow = |it: Value| json!({"preemption": {"borrowWithinCohort": it}});
    let fairness = |it: Value| json!({"admissionFairness": it});
    let level = |name: &str, label: &str| json!({"name": name, "nodeLabel": label});
    let fabric = |levels: &[Value]| json!({"fabric": levels});
    let counting = |resource: &str| json!({"extendedResource": resource});
    vec![
        ("flavors", json!({}), &[]),
        ("flavors", counting("nvidia.com/gpu"), &[]),
        ("flavors", counting("nvidia.com/mig-1g.10gb"), &[]),
        (
            "flavors",
            json!({"devices": {"driver": "gpu.muster.dev"}}),
            &[],
        ),
        (
            "flavors",
            with(
                counting("nvidia.com/gpu"),
                &json!({"devices": {"driver": "gpu.muster.dev"}}),
            ),
            &[ONE_SOURCE],
        ),
        ("flavors", counting("gpu"), &[RESOURCE_NAME]),
        ("flavors", counting("nvidia/gpu"), &[RESOURCE_NAME]),
        ("flavors", counting("nvidia.com/gpu/8"), &[RESOURCE_NAME]),
        ("flavors", counting("nvidia.com/mig-*"), &[RESOURCE_NAME]),
        ("flavors", counting("Nvidia.com/gpu"), &[RESOURCE_NAME]),
        ("flavors", counting("muster.dev/managed"), &[OF_A_PLUGIN]),
        ("flavors", counting("kubernetes.io/gpu"), &[OF_A_PLUGIN]),
        (
            "flavors",
            counting("deviceclass.resource.kubernetes.io/gpu"),
            &[OF_A_PLUGIN],
        ),
        ("teams", json!({}), &[]),
        ("teams", json!({"shrink": "Evict"}), &[]),
        ("teams", json!({"vram": "Required"}), &[]),
        (
            "teams",
            json!({"vram": "Default", "vramDefault": "10Gi"}),
            &[],
        ),
        ("teams", json!({"vram": "Default"}), &[VRAM_DEFAULT]),
        ("teams", json!({"vramDefault": "10Gi"}), &[VRAM_DEFAULT]),
        (
            "teams",
            json!({"vram": "Required", "vramDefault": "10Gi"}),
            &[VRAM_DEFAULT],
        ),
        ("teams", fairness(json!({"halfLifeSeconds": 300})), &[]),
        (
            "teams",
            fairness(json!({"halfLifeSeconds": 299})),
            &[INTERVAL],
        ),
        (
            "teams",
            fairness(json!({"halfLifeSeconds": 60, "samplingIntervalSeconds": 60})),
            &[],
        ),
        (
            "teams",
            fairness(json!({"halfLifeSeconds": 60, "samplingIntervalSeconds": 61})),
            &[INTERVAL],
        ),
        ("cohorts", json!({}), &[]),
        ("flavors", json!({}), &[]),
        ("prioritytiers", json!({"value": 1}), &[]),
        ("topologies", json!({}), &[]),
        ("teams", limited("borrowingLimit"), &[NEEDS_COHORT]),
        ("teams", limited("lendingLimit"), &[NEEDS_COHORT]),
        ("teams", with(limited("borrowingLimit"), &in_cohort), &[]),
        ("teams", with(limited("lendingLimit"), &in_cohort), &[]),
        ("cohorts", limited("borrowingLimit"), &[NEEDS_PARENT]),
        ("cohorts", limited("lendingLimit"), &[NEEDS_PARENT]),
        ("cohorts", with(limited("borrowingLimit"), &below), &[]),
        ("cohorts", with(limited("lendingLimit"), &below), &[]),
        ("cohorts", json!({"parent": "itself"}), &[OWN_PARENT]),
        ("teams", gpus(&json!({"nominal": 0})), &[]),
        ("teams", gpus(&json!({"auto": true})), &[]),
        ("teams", gpus(&json!({})), &[EITHER]),
        ("teams", gpus(&json!({"auto": false})), &[EITHER]),
        (
            "teams",
            gpus(&json!({"nominal": 0, "auto": true})),
            &[EITHER],
        ),
        ("teams", gpus(&json!({"nominal": 0, "auto": false})), &[]),
        ("teams", gpus(&json!({"name": "vram", "auto": true})), &[]),
        (
            "teams",
            gpus(&json!({"name": "cpu", "auto": true})),
            &[AUTO],
        ),
        ("cohorts", gpus(&json!({"auto": true})), &[]),
        ("cohorts", gpus(&json!({})), &[EITHER]),
        (
            "cohorts",
            gpus(&json!({"name": "cpu", "auto": true})),
            &[AUTO],
        ),
        (
            "teams",
            fungibility(json!({"preference": "BorrowingOverPreemption"})),
            &[PREFERENCE],
        ),
        (
            "teams",
            fungibility(
                json!({"preference": "PreemptionOverBorrowing", "whenCanBorrow": "TryNextFlavor",
                "whenCanPreempt": "MayStopSearch"}),
            ),
            &[PREFERENCE],
        ),
        (
            "teams",
            fungibility(
                json!({"preference": "PreemptionOverBorrowing", "whenCanBorrow": "TryNextFlavor"}),
            ),
            &[],
        ),
        ("teams", fungibility(json!({})), &[]),
        (
            "teams",
            borrow(json!({"maxPriorityThreshold": 5})),
            &[THRESHOLD],
        ),
        (
            "teams",
            borrow(json!({"maxPriorityThreshold": 5, "policy": "LowerPriority"})),
            &[],
        ),
        ("teams", borrow(json!({})), &[]),
        (
            "teams",
            preemption(json!({"reclaimWithinCohort": "Never"})),
            &[],
        ),
        (
            "teams",
            preemption(json!({"reclaimWithinCohort": "Never",
                "borrowWithinCohort": {"policy": "LowerPriority"}})),
            &[BORROW],
        ),
        (
            "teams",
            preemption(json!({"borrowWithinCohort": {"policy": "LowerPriority"}})),
            &[],
        ),
        (
            "topologies",
            fabric(&[level("block", "a"), level("rack", "b")]),
            &[],
        ),
        (
            "topologies",
            fabric(&[level("rack", "a"), level("rack", "b")]),
            &[LEVELS],
        ),
        (
            "topologies",
            fabric(&[level("block", "a"), level("rack", "a")]),
            &[LEVELS],
        ),
        ("topologies", fabric(&[level("node", "a")]), &[LEVELS]),
    ]
}

#[test]
fn each_rule_of_a_definition_refuses_what_it_says_and_nothing_else() {
    for (definition, spec, expected) in cases() {
        let found = violated(definition, "itself", &spec);
        assert_eq!(found, expected, "{definition}: {spec}");
    }
}

#[test]
fn a_team_keeps_its_gangs_where_it_says_nothing_and_knows_two_words_about_it() {
    let shrink = &schema("teams")["properties"]["spec"]["properties"]["shrink"];
    assert_eq!(shrink["default"], "Keep");
    assert_eq!(shrink["enum"], json!(["Keep", "Evict"]));
}

#[test]
fn every_rule_of_every_definition_has_a_case_that_it_alone_refuses() {
    let refused: BTreeSet<(&str, &str)> = cases()
        .into_iter()
        .filter_map(|(definition, _, expected)| match expected {
            [only] => Some((definition, *only)),
            _ => None,
        })
        .collect();
    for definition in DEFINITIONS {
        collect(&schema(definition), &mut |message| {
            assert!(
                refused.contains(&(definition, message)),
                "{definition}: {message}"
            );
        });
    }
}

/// Calls `each` with the message of every rule of a schema.
fn collect(schema: &Value, each: &mut dyn FnMut(&str)) {
    for (_, message) in rules(schema) {
        each(message);
    }
    let properties = schema["properties"].as_object().into_iter().flatten();
    let parts = properties.map(|(_, part)| part).chain(schema.get("items"));
    for part in parts {
        collect(part, each);
    }
}
