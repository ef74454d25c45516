//! Pods at their creation: what is refused, and what is written into them.
//!
//! Nothing here is refused for lack of quota or place, and a set of pods that does not match its declared
//! size is not refused either: that queues, with its reason.

use json_patch::{
    AddOperation, Patch, PatchOperation,
    jsonptr::{PointerBuf, Token},
};
use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec},
    apimachinery::pkg::api::resource::Quantity,
};
use muster_api::{Reason, keys};
use muster_cluster::managed::ManagedPods;
use serde_json::{Value, json};
use std::collections::BTreeMap;

use crate::{declared::Declared, facts::Facts, finding::Findings};

/// The scheduler name that the API server writes into pods that name none.
const DEFAULT_SCHEDULER: &str = "default-scheduler";
/// The marker needs nothing of a node: zero.
const MARKER_QUANTITY: &str = "0";

/// What is written into managed pods.
#[derive(Clone, Debug)]
pub struct PodRules {
    /// Which pods are managed.
    pub managed: ManagedPods,
    /// Whether kube-scheduler has our extender: then pods get the marker by which it asks.
    pub extender: bool,
    /// The scheduler for pods that name none; the cluster's default without it.
    pub scheduler_name: Option<String>,
}

impl PodRules {
    /// What a pod lacks. Empty for a pod that has it all: applying the patch of a patched pod changes
    /// nothing, so it does not matter how often the API server calls.
    ///
    /// A pod that names a node is left alone: gate and node together are refused by the API server with a
    /// message that helps nobody, while [`PodRules::check`] and policy (a) say why.
    pub fn patch(&self, pod: &Pod) -> Patch {
        let mut operations = Vec::new();
        if let Some(spec) = &pod.spec
            && self.managed.is_managed(pod)
            && !names_node(spec)
        {
            operations.extend(gate(spec));
            if self.extender {
                operations.extend(marker(spec));
            }
            operations.extend(self.scheduler(spec));
        }
        Patch(operations)
    }

    /// Checks a pod that is being created in `namespace`.
    pub fn check(&self, pod: &Pod, namespace: &str, facts: &Facts) -> Findings {
        let mut findings = Findings::default();
        if !self.managed.is_managed(pod) {
            return findings;
        }
        let declared = Declared::at("metadata", &pod.metadata);
        declared.check(namespace, facts, &mut findings);
        check_node_name(pod, &mut findings);
        check_membership(pod, &declared, &mut findings);
        findings
    }

    fn scheduler(&self, spec: &PodSpec) -> Option<PatchOperation> {
        let wanted = self.scheduler_name.as_deref()?;
        let current = spec.scheduler_name.as_deref().unwrap_or(DEFAULT_SCHEDULER);
        (current == DEFAULT_SCHEDULER && current != wanted)
            .then(|| add(["spec", "schedulerName"], json!(wanted)))
    }
}

fn names_node(spec: &PodSpec) -> bool {
    spec.node_name
        .as_deref()
        .is_some_and(|node| !node.is_empty())
}

fn check_node_name(pod: &Pod, findings: &mut Findings) {
    if pod.spec.as_ref().is_some_and(names_node) {
        findings.error(
            Reason::NotPermitted,
            "spec.nodeName",
            "a pod that may hold devices is placed by Muster and kube-scheduler: use spec.nodeSelector or node affinity",
        );
    }
}

/// A bare pod says itself how large its gang is; for a pod of a Job the Job may say it.
fn check_membership(pod: &Pod, declared: &Declared<'_>, findings: &mut Findings) {
    let of_job = pod.metadata.owner_references.iter().flatten().any(|owner| {
        owner.controller == Some(true)
            && owner.kind == "Job"
            && owner.api_version.starts_with("batch/")
    });
    if of_job {
        return;
    }
    let labelled = declared.label(keys::GANG).is_some();
    let sized = declared.annotation(keys::GANG_SIZE).is_some();
    if labelled && !sized {
        findings.error(
            Reason::InvalidValue,
            declared.annotation_path(keys::GANG_SIZE),
            format!(
                "is required with the label {}: the number of pods of the gang, 1 to {}",
                keys::GANG,
                keys::MAX_GANG_SIZE
            ),
        );
    }
    if sized && !labelled && declared.gang_size() != Some(1) {
        findings.warn(format!(
            "{} has no effect without the label {}: the pod is a gang of one",
            declared.annotation_path(keys::GANG_SIZE),
            keys::GANG
        ));
    }
}

fn gate(spec: &PodSpec) -> Option<PatchOperation> {
    let gate = json!({"name": keys::ADMISSION_GATE});
    match &spec.scheduling_gates {
        Some(gates) if gates.iter().any(|gate| gate.name == keys::ADMISSION_GATE) => None,
        Some(_) => Some(add(["spec", "schedulingGates", "-"], gate)),
        None => Some(add(["spec", "schedulingGates"], json!([gate]))),
    }
}

fn marker(spec: &PodSpec) -> Vec<PatchOperation> {
    let Some(Container { resources, .. }) = spec.containers.first() else {
        return vec![];
    };
    let path = ["spec", "containers", "0", "resources"];
    let marked = json!({keys::MARKER_RESOURCE: MARKER_QUANTITY});
    let Some(resources) = resources else {
        let both = json!({"limits": marked, "requests": marked});
        return vec![add(path, both)];
    };
    let mark = |field: &'static str, present: Option<&BTreeMap<String, Quantity>>| match present {
        Some(amounts) => {
            let value = amounts.get(keys::MARKER_RESOURCE);
            let missing = value.is_none_or(|value| value.0 != MARKER_QUANTITY);
            let path = path.into_iter().chain([field, keys::MARKER_RESOURCE]);
            missing.then(|| add(path, json!(MARKER_QUANTITY)))
        }
        None => Some(add(path.into_iter().chain([field]), marked.clone())),
    };
    let limits = mark("limits", resources.limits.as_ref());
    let requests = mark("requests", resources.requests.as_ref());
    limits.into_iter().chain(requests).collect()
}

fn add<'a>(tokens: impl IntoIterator<Item = &'a str>, value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation {
        path: PointerBuf::from_tokens(tokens.into_iter().map(Token::new)),
        value,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_api::{Team, TeamSpec, team::TeamTiers};
    use muster_cluster::managed_cases::{MANAGED_CASES_RESOURCES, managed_cases};
    use proptest::prelude::*;

    fn rules() -> PodRules {
        PodRules {
            managed: ManagedPods::new(MANAGED_CASES_RESOURCES).unwrap(),
            extender: true,
            scheduler_name: None,
        }
    }

    fn facts() -> Facts {
        let mut facts = Facts {
            tiers: ["critical", "standard"].map(str::to_owned).into(),
            levels_of_topology: [(
                "fabric".to_owned(),
                vec!["spine".to_owned(), "leaf".to_owned()],
            )]
            .into(),
            team_of_namespace: [("ml".to_owned(), "red".to_owned())].into(),
            ..Facts::default()
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
        let mut patched = pod.clone();
        let typed: Pod = serde_json::from_value(pod.clone()).unwrap();
        json_patch::patch(&mut patched, &rules.patch(&typed)).unwrap();
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
            json!([{"name": "a", "resources": {
                "limits": {"cpu": "1", "muster.dev/managed": "0"},
                "requests": {"muster.dev/managed": "0"},
                "claims": [{"name": "gpu"}]}}, {"name": "b"}])
        );
        let mut chosen = pod;
        chosen["spec"]["schedulerName"] = json!("own-scheduler");
        assert_eq!(
            applied(&rules, &chosen)["spec"]["schedulerName"],
            "own-scheduler"
        );
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
        /// patch(patch(x)) = patch(x), whatever gates, resources and markers the pod came with.
        #[test]
        fn the_patch_is_idempotent(
            gates in prop::option::of(prop::collection::vec(prop_oneof![Just("muster.dev/admission"), Just("other")], 0..3)),
            limits in prop::option::of(prop::collection::btree_map(prop_oneof![Just("muster.dev/managed"), Just("cpu"), Just("nvidia.com/gpu")], "[0-3]", 0..3)),
            requests in prop::option::of(prop::collection::btree_map(prop_oneof![Just("muster.dev/managed"), Just("cpu")], "[0-3]", 0..3)),
            resources in any::<bool>(),
            labelled in any::<bool>(),
            extender in any::<bool>(),
            scheduler in prop::option::of(prop_oneof![Just("default-scheduler"), Just("muster-scheduler"), Just("own")]),
        ) {
            let mut container = json!({"name": "c"});
            if resources {
                container["resources"] = json!({"limits": limits, "requests": requests});
            }
            let mut spec = json!({"containers": [container]});
            if let Some(gates) = gates {
                spec["schedulingGates"] = gates.iter().map(|name| json!({"name": name})).collect();
            }
            if let Some(scheduler) = scheduler {
                spec["schedulerName"] = json!(scheduler);
            }
            let labels = if labelled { json!({"muster.dev/gang": "g"}) } else { json!({}) };
            let pod = json!({"metadata": {"name": "p", "labels": labels}, "spec": spec});
            let rules = PodRules { extender, scheduler_name: Some("muster-scheduler".into()), ..rules() };
            let once = applied(&rules, &pod);
            prop_assert_eq!(&applied(&rules, &once), &once);
            let typed: Pod = serde_json::from_value(once).unwrap();
            prop_assert!(rules.patch(&typed).0.is_empty(), "a patched pod lacks nothing");
        }
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
                json!({"muster.dev/gpus": "8"}),
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
        assert!(rules().patch(&bound).0.is_empty());
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
}
