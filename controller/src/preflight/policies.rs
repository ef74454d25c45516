//! Admission policies of the release: each exists, is bound, and refuses.

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::{Api, Client, ResourceExt, api::ListParams};

use super::{
    finding::{Finding, Reason},
    installation::Installation,
    reading::{self, Reading},
};

/// The label that the chart gives all its objects.
const LABEL: &str = "app.kubernetes.io/name=muster";

/// What a policy is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// What users do with their pods: it refuses in Enforce, and audits in Observe.
    Workloads,
    /// Muster's own objects and identities, and who pays: it always refuses, everywhere.
    Muster,
}

/// The policies that the chart always installs, by what stands behind the release's name.
pub const POLICIES: [(&str, About); 13] = [
    ("binding", About::Workloads),
    ("claim", About::Workloads),
    ("job-by-controller", About::Muster),
    ("node", About::Muster),
    ("objects", About::Muster),
    ("pod-by-controller", About::Muster),
    ("pod-created", About::Workloads),
    ("pod-decided", About::Workloads),
    ("pod-declared", About::Workloads),
    ("pod-evicted", About::Muster),
    ("pod-gate", About::Workloads),
    ("pod-resized", About::Workloads),
    ("team", About::Muster),
];

/// Those that it installs by a value: they have to be bound if they are there.
pub const BY_VALUE: [(&str, About); 2] = [
    ("pod-scheduler", About::Workloads),
    ("pod-side-door", About::Workloads),
];

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
    let mut there = 0;
    let always = POLICIES.map(|policy| (policy, true));
    for ((suffix, about), needed) in always
        .into_iter()
        .chain(BY_VALUE.map(|policy| (policy, false)))
    {
        let name = format!("{}-{suffix}", installation.name);
        match policies.found.get(&name) {
            Some(policy) => {
                there += 1;
                findings.extend(of_policy(policy, about, installation, &bindings.found));
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

fn of_policy(
    policy: &ValidatingAdmissionPolicy,
    about: About,
    installation: &Installation,
    bindings: &Bindings,
) -> Vec<Finding> {
    let name = policy.name_any();
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
    let denies = |binding: &&&ValidatingAdmissionPolicyBinding| {
        binding
            .spec
            .validation_actions
            .iter()
            .any(|action| action == "Deny")
    };
    let wide = |binding: &&&ValidatingAdmissionPolicyBinding| {
        binding.spec.param_ref.is_none()
            && is_as_wide_as_the_charts(binding.spec.match_resources.as_ref(), about)
    };
    if own.is_empty() {
        add(
            Reason::PolicyNotBound,
            "no ValidatingAdmissionPolicyBinding names it, so it refuses nothing".to_owned(),
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

/// The chart leaves out namespaces by their own names, and only from policies about workloads.
fn is_as_wide_as_the_charts(matches: Option<&MatchResources>, about: About) -> bool {
    let Some(matches) = matches else { return true };
    let empty = |rules: Option<usize>| rules.is_none_or(|count| count == 0);
    let by_name = matches.namespace_selector.as_ref().is_none_or(|selector| {
        let labels = selector
            .match_labels
            .as_ref()
            .is_none_or(BTreeMap::is_empty);
        let expressions = selector.match_expressions.as_deref().unwrap_or_default();
        let about_names = |key: &str, operator: &str| {
            about == About::Workloads && key == "kubernetes.io/metadata.name" && operator == "NotIn"
        };
        labels
            && expressions
                .iter()
                .all(|expression| about_names(&expression.key, &expression.operator))
    });
    let objects = matches.object_selector.as_ref().is_none_or(|selector| {
        selector
            .match_labels
            .as_ref()
            .is_none_or(BTreeMap::is_empty)
            && selector
                .match_expressions
                .as_ref()
                .is_none_or(Vec::is_empty)
    });
    by_name
        && objects
        && empty(matches.resource_rules.as_ref().map(Vec::len))
        && empty(matches.exclude_resource_rules.as_ref().map(Vec::len))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn policies(failure: &str) -> Policies {
        let named = |suffix: &str| {
            let name = format!("muster-{suffix}");
            let policy = json!({"metadata": {"name": name}, "spec": {"failurePolicy": failure}});
            (name, serde_json::from_value(policy).unwrap())
        };
        POLICIES.iter().map(|(suffix, _)| named(suffix)).collect()
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
            .map(|(suffix, about)| {
                let name = format!("muster-{suffix}");
                match about {
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
    fn the_policies_that_are_looked_for_are_those_of_the_chart() {
        let directory = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../deploy/helm/muster/templates/policies"
        );
        let mut of_chart: BTreeMap<String, String> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
                (name, std::fs::read_to_string(path).unwrap())
            })
            .collect();
        for (name, about) in POLICIES.into_iter().chain(BY_VALUE) {
            let template = of_chart.remove(name).unwrap_or_else(|| panic!("no {name}"));
            assert!(template.contains(&format!("\"%s-{name}\"")), "{name}");
            // Only those about workloads go by the mode.
            let by_mode = template.contains("\"workloads\"") || template.contains("[Audit]");
            assert_eq!(by_mode, about == About::Workloads, "{name}");
        }
        assert!(of_chart.is_empty(), "{:?}", of_chart.keys());
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
            (open, bindings("Deny"), vec![Reason::PolicyFailsOpen; 13]),
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
        let audited = instead("muster-pod-gate", "Audit", json!({}));
        assert_eq!(reasons(false, policies("Fail"), audited), [Reason::Passed]);
        let mut side_door = policies("Fail");
        side_door.insert(
            "muster-pod-side-door".to_owned(),
            ValidatingAdmissionPolicy::default(),
        );
        side_door
            .get_mut("muster-pod-side-door")
            .unwrap()
            .metadata
            .name = Some("muster-pod-side-door".to_owned());
        assert_eq!(
            reasons(true, side_door, bindings("Deny")),
            [Reason::PolicyNotBound]
        );
    }
}
