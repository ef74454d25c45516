//! Admission policies of the release: each exists, is asked about what the chart's is, is bound, and refuses.

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicySpec,
};
use kube::{Api, Client, ResourceExt, api::ListParams};

use super::{
    expressions,
    finding::{Finding, Reason},
    guards::{About, BY_VALUE, POLICIES, Policy, SIDE_DOOR},
    installation::Installation,
    matching,
    reading::{self, Reading},
};
use crate::{enforce_check, listing::Names};

/// The label that the chart gives all its objects.
const LABEL: &str = "app.kubernetes.io/name=muster";

/// Policies of the chart, by name.
pub type Policies = BTreeMap<String, ValidatingAdmissionPolicy>;
/// Bindings of all policies of the chart.
pub type Bindings = Vec<ValidatingAdmissionPolicyBinding>;

/// Reads the policies.
pub async fn read(client: &Client) -> Reading<Policies> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let labelled = ListParams::default().labels(LABEL);
    reading::list(policies, labelled, Policies::new(), |found, policy| {
        found.insert(policy.name_any(), policy.clone());
    })
    .await
}

/// Reads their bindings: all of the cluster, since one without the label binds as well.
pub async fn read_bindings(client: &Client, policies: &Policies) -> Reading<Bindings> {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    reading::list(
        bindings,
        ListParams::default(),
        Bindings::new(),
        |found, binding| {
            if policies.contains_key(policy_name(binding)) {
                found.push(binding.clone());
            }
        },
    )
    .await
}

fn policy_name(binding: &ValidatingAdmissionPolicyBinding) -> &str {
    binding.spec.policy_name.as_str()
}

/// More than one release: as their controllers show, where those of all namespaces may be read, and their policies, which are in none.
pub fn of_releases(releases: &[Installation], policies: &Policies) -> Option<Finding> {
    let mut names: Vec<String> = releases
        .iter()
        .map(|release| format!("{}/{}", release.namespace, release.name))
        .collect();
    let of_policies = policies
        .keys()
        .filter_map(|name| name.strip_suffix("-pod-decided"));
    names.extend(
        of_policies
            .filter(|name| releases.iter().all(|release| release.name != *name))
            .map(str::to_owned),
    );
    (names.len() > 1).then(|| {
        Finding::new(
            Reason::SeveralReleases,
            "releases",
            format!(
                "{} releases of Muster are installed ({}): the policies of each refuse what the others write; only the first was looked at",
                names.len(),
                names.join(", ")
            ),
            "Uninstall all but one",
        )
    })
}

/// Whether the policies of this release hold.
pub fn findings(
    installation: &Installation,
    policies: &Reading<Policies>,
    bindings: &Reading<Bindings>,
) -> Vec<Finding> {
    if let Some(unread) = policies.unread.as_ref().or(bindings.unread.as_ref()) {
        // What was not read may be there.
        return vec![unread.finding()];
    }
    let mut findings = Vec::new();
    let mut other_versions = Names::default();
    let mut there = 0;
    let always = POLICIES.iter().map(|policy| (policy, true));
    for (wanted, needed) in always.chain(BY_VALUE.iter().map(|policy| (policy, false))) {
        let name = format!("{}-{}", installation.name, wanted.name);
        match policies.found.get(&name) {
            Some(policy) => {
                there += 1;
                findings.extend(of_rules(policy, wanted));
                match expressions::other_version(policy.labels()) {
                    Some(version) => other_versions.add(|| format!("{name}: {version}")),
                    None => findings.extend(of_expressions(policy, wanted, installation)),
                }
                findings.extend(of_policy(policy, wanted, installation, &bindings.found));
            }
            None if needed => findings.push(Finding::new(
                Reason::PolicyMissing,
                &name,
                "the ValidatingAdmissionPolicy does not exist, so nothing refuses what it is there for",
                "helm upgrade the release",
            )),
            None => {}
        }
    }
    if !other_versions.is_empty() {
        findings.push(Finding::new(
            Reason::NotVisible,
            "validatingadmissionpolicies",
            format!(
                "policies were installed by another version than {}, which is this program's, so their expressions were not compared: {other_versions}",
                expressions::VERSION
            ),
            "Run preflight of the version that is installed",
        ));
    }
    bindings.or_passed(findings, || {
        Finding::passed(
            "validatingadmissionpolicies",
            format!(
                "{there} policies of {} are bound and {}",
                installation.name,
                if installation.enforces {
                    "refuse"
                } else {
                    "audit or refuse, as mode=Observe has it"
                }
            ),
        )
    })
}

/// What it is asked about, and whether it can refuse anything.
fn of_rules(policy: &ValidatingAdmissionPolicy, wanted: &Policy) -> Vec<Finding> {
    let spec = policy.spec.clone().unwrap_or_default();
    let mut findings = Vec::new();
    let mut add = |reason, message: String| {
        findings.push(Finding::new(
            reason,
            policy.name_any(),
            message,
            "helm upgrade the release, and see who changed it",
        ));
    };
    if !refuses(&spec) {
        add(
            Reason::PolicyRefusesNothing,
            "it has no validation that could fail".to_owned(),
        );
    }
    let matches = spec.match_constraints.unwrap_or_default();
    let left_out = matching::left_out(wanted.guards, &matches);
    if !left_out.is_empty() {
        add(
            Reason::PolicyRulesLost,
            format!(
                "its resourceRules match no longer what it is there to refuse: {}",
                left_out.join(", ")
            ),
        );
    }
    let further =
        matching::further_conditions(spec.match_conditions.as_ref(), wanted.conditions).join(", ");
    if !further.is_empty() {
        add(
            Reason::PolicyNarrowed,
            format!("it has matchConditions that the chart's does not have: {further}"),
        );
    }
    // Namespaces are left out by its binding.
    if !matching::is_wide(&matches, |_| false) {
        add(
            Reason::PolicyNarrowed,
            "its matchConstraints leave out objects that the chart's do not: selectors or excludeResourceRules were added".to_owned(),
        );
    }
    findings
}

/// Whether it says what the chart's says.
fn of_expressions(
    policy: &ValidatingAdmissionPolicy,
    wanted: &Policy,
    installation: &Installation,
) -> Option<Finding> {
    let spec = policy.spec.clone().unwrap_or_default();
    // That it refuses nothing is told already.
    if !refuses(&spec) {
        return None;
    }
    let lost = expressions::lost(wanted.name, &spec, installation);
    (!lost.is_empty()).then(|| {
        Finding::new(
            Reason::PolicyChanged,
            policy.name_any(),
            format!(
                "it was changed: it does not have, as the chart's has, {}",
                lost.join(", ")
            ),
            "helm upgrade the release, and see who changed it",
        )
    })
}

/// Whether it has a validation that could fail.
fn refuses(spec: &ValidatingAdmissionPolicySpec) -> bool {
    let mut validations = spec.validations.iter().flatten();
    validations.any(|validation| validation.expression.trim() != "true")
}

fn of_policy(
    policy: &ValidatingAdmissionPolicy,
    wanted: &Policy,
    installation: &Installation,
    bindings: &Bindings,
) -> Vec<Finding> {
    let (name, about) = (policy.name_any(), wanted.about);
    let mut findings = Vec::new();
    let mut add = |reason, message: String| {
        findings.push(Finding::new(
            reason,
            &name,
            message,
            "helm upgrade the release, and see who changed it",
        ));
    };
    let failure = policy
        .spec
        .as_ref()
        .and_then(|spec| spec.failure_policy.as_deref());
    // Without a word it is Fail.
    if failure.is_some_and(|failure| failure != "Fail") {
        add(
            Reason::PolicyFailsOpen,
            format!(
                "failurePolicy is {}: an expression that fails lets pass what it is there to refuse",
                failure.unwrap_or_default()
            ),
        );
    }
    let own: Vec<_> = bindings
        .iter()
        .filter(|binding| policy_name(binding) == name)
        .collect();
    let must_deny = about == About::Muster || installation.enforces;
    let denies = |binding: &&&ValidatingAdmissionPolicyBinding| enforce_check::refuses(binding);
    // The chart leaves out namespaces only from policies about workloads.
    let may_leave_out = |namespace: &str| {
        about == About::Workloads
            && (wanted.name == SIDE_DOOR || installation.may_leave_out(namespace))
    };
    // Else the API server does not look at a paramRef.
    let spec = policy.spec.as_ref();
    let takes_parameters = spec.is_some_and(|spec| spec.param_kind.is_some());
    let wide = |binding: &&&ValidatingAdmissionPolicyBinding| {
        let matches = binding.spec.match_resources.as_ref();
        (binding.spec.param_ref.is_none() || !takes_parameters)
            && matches.is_none_or(|matches| {
                let rules = matches.resource_rules.as_deref().unwrap_or_default();
                rules.is_empty() && matching::is_wide(matches, may_leave_out)
            })
    };
    if own.is_empty() {
        add(
            Reason::PolicyNotBound,
            "no ValidatingAdmissionPolicyBinding names it, so it refuses nothing".to_owned(),
        );
    } else if !must_deny && own.iter().any(|binding| denies(&binding)) {
        add(
            Reason::PolicyRefusesInObserve,
            "a binding of it has Deny in validationActions, although mode is Observe: what nobody gates is refused".to_owned(),
        );
    } else if must_deny && !own.iter().any(|binding| denies(&binding)) {
        add(
            Reason::PolicyOnlyAudits,
            format!(
                "none of its {} bindings has Deny in validationActions{}",
                own.len(),
                if about == About::Workloads {
                    ", although mode is Enforce"
                } else {
                    ""
                }
            ),
        );
    } else if !own
        .iter()
        .any(|binding| (!must_deny || denies(&binding)) && wide(&binding))
    {
        add(
            Reason::PolicyNarrowed,
            "its bindings leave out objects that the chart's does not: matchResources or paramRef was changed".to_owned(),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A policy as the chart has it.
    fn policy(of: &Policy, failure: &str) -> (String, ValidatingAdmissionPolicy) {
        let name = format!("muster-{}", of.name);
        let rules: Vec<Value> = of
            .guards
            .iter()
            .map(|guard| {
                json!({"apiGroups": [guard.group], "apiVersions": ["*"], "resources": guard.resources,
                    "operations": guard.operations, "scope": "*"})
            })
            .collect();
        let mut spec = expressions::tests::rendered(of.name, "");
        spec["failurePolicy"] = json!(failure);
        spec["matchConstraints"] =
            json!({"resourceRules": rules, "namespaceSelector": {}, "objectSelector": {}});
        let policy = json!({"metadata": {"name": name}, "spec": spec});
        (name, serde_json::from_value(policy).unwrap())
    }

    fn policies(failure: &str) -> Policies {
        POLICIES
            .iter()
            .map(|wanted| policy(wanted, failure))
            .collect()
    }

    fn binding(name: &str, action: &str, matches: &Value) -> ValidatingAdmissionPolicyBinding {
        serde_json::from_value(
            json!({"metadata": {"name": name}, "spec": {"policyName": name,
            "validationActions": [action], "matchResources": matches}}),
        )
        .unwrap()
    }

    fn bindings(workloads: &str) -> Bindings {
        let by_name = json!({"namespaceSelector": {"matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}]},
            "objectSelector": {}, "matchPolicy": "Equivalent"});
        POLICIES
            .iter()
            .map(|policy| {
                let name = format!("muster-{}", policy.name);
                match policy.about {
                    About::Workloads => binding(&name, workloads, &by_name),
                    About::Muster => binding(
                        &name,
                        "Deny",
                        &json!({"objectSelector": {}, "namespaceSelector": {}}),
                    ),
                }
            })
            .collect()
    }

    fn reasons(enforces: bool, policies: Policies, bindings: Bindings) -> Vec<Reason> {
        let installation = Installation {
            name: "muster".to_owned(),
            enforces,
            ..Installation::default()
        };
        let found = findings(
            &installation,
            &Reading::whole(policies),
            &Reading::whole(bindings),
        );
        found.iter().map(|finding| finding.reason).collect()
    }

    #[test]
    fn a_second_release_shows_by_its_policies_where_its_namespace_is_not_read() {
        let one = Installation {
            name: "muster".to_owned(),
            namespace: "muster-system".to_owned(),
            ..Installation::default()
        };
        let mut both = policies("Fail");
        assert_eq!(of_releases(std::slice::from_ref(&one), &both), None);
        both.insert(
            "second-pod-decided".to_owned(),
            ValidatingAdmissionPolicy::default(),
        );
        let found = of_releases(&[one], &both).unwrap();
        assert_eq!(found.reason, Reason::SeveralReleases);
        assert!(
            found
                .message
                .contains("2 releases of Muster are installed (muster-system/muster, second)"),
            "{found:?}"
        );
    }

    #[test]
    fn policies_as_the_chart_installs_them_pass_in_either_mode() {
        assert_eq!(
            reasons(true, policies("Fail"), bindings("Deny")),
            [Reason::Passed]
        );
        assert_eq!(
            reasons(false, policies("Fail"), bindings("Audit")),
            [Reason::Passed]
        );
    }

    #[test]
    fn a_binding_leaves_out_no_namespace_that_the_controller_looks_at() {
        let installation = Installation {
            name: "muster".to_owned(),
            enforces: true,
            excluded_namespaces: Some(["kube-system".to_owned()].into()),
            ..Installation::default()
        };
        let (mut all, mut bound) = (policies("Fail"), bindings("Deny"));
        all.extend([policy(&BY_VALUE[1], "Fail")]);
        let names = |names: &[&str]| {
            json!({"namespaceSelector": {"matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": names}]}})
        };
        // The chart has exceptions of its own there.
        let excepted = names(&["gpu-operator", "kube-system"]);
        bound.push(binding("muster-pod-side-door", "Deny", &excepted));
        for (left_out, expected) in [
            (vec!["kube-system"], Reason::Passed),
            (vec!["kube-system", "ml"], Reason::PolicyNarrowed),
        ] {
            bound.retain(|binding| policy_name(binding) != "muster-pod-gate");
            bound.push(binding("muster-pod-gate", "Deny", &names(&left_out)));
            let found = findings(
                &installation,
                &Reading::whole(all.clone()),
                &Reading::whole(bound.clone()),
            );
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].reason, expected);
        }
    }

    #[test]
    fn parameters_narrow_a_binding_only_of_a_policy_that_takes_some() {
        for (takes, expected) in [(false, Reason::Passed), (true, Reason::PolicyNarrowed)] {
            let (mut policies, mut bindings) = (policies("Fail"), bindings("Deny"));
            if takes {
                let spec = policies.get_mut("muster-team").unwrap().spec.as_mut();
                let kind = json!({"apiVersion": "v1", "kind": "ConfigMap"});
                spec.unwrap().param_kind = Some(serde_json::from_value(kind).unwrap());
            }
            let binding = bindings
                .iter_mut()
                .find(|binding| policy_name(binding) == "muster-team");
            let reference = json!({"name": "a", "parameterNotFoundAction": "Allow"});
            binding.unwrap().spec.param_ref = Some(serde_json::from_value(reference).unwrap());
            assert_eq!(reasons(true, policies, bindings), [expected]);
        }
    }

    #[test]
    fn expressions_of_another_version_are_not_compared_and_that_is_told() {
        let mut policies = policies("Fail");
        for (name, version) in [
            ("muster-team", "9.9.9"),
            ("muster-claim", expressions::VERSION),
        ] {
            let policy = policies.get_mut(name).unwrap();
            policy
                .labels_mut()
                .insert(expressions::VERSION_LABEL.to_owned(), version.to_owned());
            let spec = policy.spec.as_mut().unwrap();
            spec.validations.as_mut().unwrap()[0].expression = "object.a".to_owned();
        }
        let found = reasons(true, policies, bindings("Deny"));
        assert_eq!(found, [Reason::PolicyChanged, Reason::NotVisible]);
    }

    #[test]
    fn each_way_in_which_a_policy_does_not_hold_is_told() {
        let without = |name: &str| {
            let mut bindings = bindings("Deny");
            bindings.retain(|binding| policy_name(binding) != name);
            bindings
        };
        let instead = |name: &str, action: &str, matches: Value| {
            let mut bindings = without(name);
            bindings.push(binding(name, action, &matches));
            bindings
        };
        let mut missing = policies("Fail");
        missing.remove("muster-team");
        let open = policies("Ignore");
        let labels = json!({"namespaceSelector": {"matchLabels": {"guarded": "yes"}}});
        let by_name = json!({"namespaceSelector": {"matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["ml"]}]}});
        let rules = json!({"excludeResourceRules": [{"resources": ["pods"], "apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"]}]});
        for (policies, bindings, expected) in [
            (missing, bindings("Deny"), vec![Reason::PolicyMissing]),
            (open, bindings("Deny"), vec![Reason::PolicyFailsOpen; 14]),
            (
                policies("Fail"),
                without("muster-pod-gate"),
                vec![Reason::PolicyNotBound],
            ),
            (
                policies("Fail"),
                instead("muster-objects", "Audit", json!({})),
                vec![Reason::PolicyOnlyAudits],
            ),
            (
                policies("Fail"),
                instead("muster-pod-gate", "Audit", json!({})),
                vec![Reason::PolicyOnlyAudits],
            ),
            (
                policies("Fail"),
                instead("muster-pod-gate", "Deny", labels),
                vec![Reason::PolicyNarrowed],
            ),
            (
                policies("Fail"),
                instead("muster-team", "Deny", by_name),
                vec![Reason::PolicyNarrowed],
            ),
            (
                policies("Fail"),
                instead("muster-pod-created", "Deny", rules),
                vec![Reason::PolicyNarrowed],
            ),
        ] {
            assert_eq!(reasons(true, policies, bindings), expected);
        }
        // In Observe no pod has the gate that this one insists on.
        assert_eq!(
            reasons(
                false,
                policies("Fail"),
                [
                    bindings("Audit"),
                    vec![binding("muster-pod-created", "Deny", &json!({}))]
                ]
                .concat()
            ),
            [Reason::PolicyRefusesInObserve]
        );
        let audited = bindings("Audit");
        assert_eq!(reasons(false, policies("Fail"), audited), [Reason::Passed]);
        let mut side_door = policies("Fail");
        side_door.extend([policy(&BY_VALUE[1], "Fail")]);
        assert_eq!(
            reasons(true, side_door, bindings("Deny")),
            [Reason::PolicyNotBound]
        );
    }

    #[test]
    fn a_policy_that_was_emptied_or_narrowed_is_told_by_what_it_does_not_look_at_any_more() {
        use Reason::{PolicyChanged, PolicyNarrowed, PolicyRefusesNothing, PolicyRulesLost};
        for (pointer, value, expected, told) in [
            (
                "/spec/validations",
                json!([]),
                PolicyRefusesNothing,
                "no validation",
            ),
            (
                "/spec/validations",
                json!([{"expression": " true "}]),
                PolicyRefusesNothing,
                "no validation",
            ),
            (
                "/spec/matchConstraints/resourceRules",
                json!([]),
                PolicyRulesLost,
                "CREATE pods, UPDATE pods, UPDATE pods/status",
            ),
            (
                "/spec/matchConstraints/resourceRules/0/operations",
                json!(["CREATE"]),
                PolicyRulesLost,
                ": UPDATE pods",
            ),
            (
                "/spec/matchConstraints/resourceRules/1/resources",
                json!(["nodes"]),
                PolicyRulesLost,
                ": UPDATE pods/status",
            ),
            (
                "/spec/matchConstraints/objectSelector",
                json!({"matchLabels": {"a": "b"}}),
                PolicyNarrowed,
                "matchConstraints",
            ),
            (
                "/spec/matchConditions/1",
                json!({"name": "mine", "expression": "false"}),
                PolicyNarrowed,
                ": mine",
            ),
            (
                "/spec/matchConditions/0/expression",
                json!("false"),
                PolicyChanged,
                "as the chart's has, matchCondition not-by-the-controller",
            ),
            (
                "/spec/validations/0/expression",
                json!("true || object.a"),
                PolicyChanged,
                "as the chart's has, validation 1",
            ),
            (
                "/spec/variables/0/expression",
                json!("{}"),
                PolicyChanged,
                "as the chart's has, variable ",
            ),
        ] {
            let mut policies = policies("Fail");
            let changed = policies.get_mut("muster-pod-decided").unwrap();
            let mut object = serde_json::to_value(&*changed).unwrap();
            if pointer == "/spec/matchConditions/1" {
                let conditions = &mut object["spec"]["matchConditions"];
                conditions.as_array_mut().unwrap().push(value);
            } else {
                *object.pointer_mut(pointer).unwrap() = value;
            }
            *changed = serde_json::from_value(object).unwrap();
            let installation = Installation {
                name: "muster".to_owned(),
                enforces: true,
                ..Installation::default()
            };
            let found = findings(
                &installation,
                &Reading::whole(policies),
                &Reading::whole(bindings("Deny")),
            );
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].reason, expected);
            assert_eq!(found[0].object, "muster-pod-decided");
            assert!(found[0].message.contains(told), "{found:?}");
        }
    }
}
