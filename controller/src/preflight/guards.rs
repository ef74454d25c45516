//! What the release's admission policies and webhooks must be asked about: as the chart has it, and no less.

use super::matching::Guard;

/// What a policy is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// What users do with their pods: it refuses in Enforce, and audits in Observe.
    Workloads,
    /// Muster's own objects and identities, and who pays: it always refuses, everywhere.
    Muster,
}

/// A policy of the chart.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// What stands behind the release's name.
    pub name: &'static str,
    /// What it is about.
    pub about: About,
    /// What it must be asked about.
    pub guards: &'static [Guard],
    /// Names of its matchConditions.
    pub conditions: &'static [&'static str],
}

/// A webhook of the chart.
#[derive(Clone, Copy, Debug)]
pub struct Webhook {
    /// Its name.
    pub name: &'static str,
    /// What it must be asked about.
    pub guards: &'static [Guard],
    /// Names of its matchConditions.
    pub conditions: &'static [&'static str],
}

pub(super) const CREATE: &[&str] = &["CREATE"];
const UPDATE: &[&str] = &["UPDATE"];
const CREATE_UPDATE: &[&str] = &["CREATE", "UPDATE"];

/// Of the core group.
const fn core(resources: &'static [&'static str], operations: &'static [&'static str]) -> Guard {
    Guard {
        group: "",
        version: "v1",
        resources,
        operations,
    }
}

/// Of our own group.
pub(super) const fn muster(
    resources: &'static [&'static str],
    operations: &'static [&'static str],
) -> Guard {
    Guard {
        group: "muster.dev",
        version: "v1alpha1",
        resources,
        operations,
    }
}

const fn of_group(
    group: &'static str,
    resources: &'static [&'static str],
    operations: &'static [&'static str],
) -> Guard {
    Guard {
        group,
        version: "v1",
        resources,
        operations,
    }
}

/// The policies that the chart always installs.
pub const POLICIES: [Policy; 14] = [
    Policy {
        name: "binding",
        about: About::Workloads,
        guards: &[core(&["pods/binding", "bindings"], CREATE)],
        conditions: &[],
    },
    Policy {
        name: "claim",
        about: About::Workloads,
        guards: &[of_group("resource.k8s.io", &["resourceclaims"], UPDATE)],
        conditions: &["protected"],
    },
    Policy {
        name: "claim-by-scheduler",
        about: About::Workloads,
        guards: &[
            of_group("resource.k8s.io", &["resourceclaims"], CREATE_UPDATE),
            of_group("resource.k8s.io", &["resourceclaimtemplates"], CREATE),
        ],
        conditions: &[],
    },
    Policy {
        name: "job-by-controller",
        about: About::Muster,
        guards: &[of_group("batch", &["jobs", "jobs/status"], UPDATE)],
        conditions: &["by-the-controller"],
    },
    Policy {
        name: "node",
        about: About::Muster,
        guards: &[
            of_group(
                "resource.k8s.io",
                &["resourceslices"],
                &["CREATE", "UPDATE", "DELETE"],
            ),
            muster(&["nodedevices/status"], UPDATE),
        ],
        conditions: &[],
    },
    Policy {
        name: "objects",
        about: About::Muster,
        guards: &[
            muster(
                &["gangs", "queues", "ledgers", "nodedevices"],
                CREATE_UPDATE,
            ),
            muster(
                &[
                    "gangs/status",
                    "queues/status",
                    "teams/status",
                    "cohorts/status",
                    "flavors/status",
                    "prioritytiers/status",
                ],
                UPDATE,
            ),
        ],
        conditions: &["not-by-the-controller"],
    },
    Policy {
        name: "pod-by-controller",
        about: About::Muster,
        guards: &[core(
            &[
                "pods",
                "pods/status",
                "pods/resize",
                "pods/ephemeralcontainers",
            ],
            UPDATE,
        )],
        conditions: &["by-the-controller"],
    },
    Policy {
        name: "pod-created",
        about: About::Workloads,
        guards: &[core(&["pods"], CREATE)],
        conditions: &["managed"],
    },
    Policy {
        name: "pod-decided",
        about: About::Workloads,
        guards: &[
            core(&["pods"], CREATE_UPDATE),
            core(&["pods/status"], UPDATE),
        ],
        conditions: &["not-by-the-controller"],
    },
    Policy {
        name: "pod-declared",
        about: About::Workloads,
        guards: &[core(&["pods", "pods/status"], UPDATE)],
        conditions: &[],
    },
    Policy {
        name: "pod-evicted",
        about: About::Muster,
        guards: &[core(&["pods"], &["DELETE"])],
        conditions: &["by-the-controller"],
    },
    Policy {
        name: "pod-gate",
        about: About::Workloads,
        guards: &[core(&["pods"], UPDATE)],
        conditions: &["gated", "not-by-the-controller"],
    },
    Policy {
        name: "pod-resized",
        about: About::Workloads,
        guards: &[core(&["pods/resize"], UPDATE)],
        conditions: &["of-a-gang"],
    },
    Policy {
        name: "team",
        about: About::Muster,
        guards: &[core(
            &["namespaces", "namespaces/status", "namespaces/finalize"],
            CREATE_UPDATE,
        )],
        conditions: &[],
    },
];

/// The policy about side doors, from which the chart may leave out namespaces of its own.
pub const SIDE_DOOR: &str = "pod-side-door";

/// Those that it installs by a value: they have to be bound if they are there.
pub const BY_VALUE: [Policy; 2] = [
    Policy {
        name: "pod-scheduler",
        about: About::Workloads,
        guards: &[core(&["pods"], CREATE)],
        conditions: &["managed"],
    },
    Policy {
        name: SIDE_DOOR,
        about: About::Workloads,
        guards: &[
            core(&["pods"], CREATE_UPDATE),
            core(&["pods/status", "pods/ephemeralcontainers"], UPDATE),
        ],
        conditions: &[],
    },
];

/// The webhook that is asked about pods; not in Observe.
pub const PODS: Webhook = Webhook {
    name: "pods.muster.dev",
    guards: &[core(&["pods"], CREATE)],
    conditions: &["managed"],
};

/// The webhooks that are asked about quota.
pub const QUOTA: [Webhook; 3] = [
    Webhook {
        name: "teams.muster.dev",
        guards: &[muster(&["teams"], CREATE_UPDATE)],
        conditions: &[],
    },
    Webhook {
        name: "cohorts.muster.dev",
        guards: &[muster(&["cohorts"], CREATE_UPDATE)],
        conditions: &[],
    },
    Webhook {
        name: "flavors.muster.dev",
        guards: &[muster(&["flavors"], CREATE_UPDATE)],
        conditions: &[],
    },
];

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs};

    use serde_json::{Value, json};

    use super::*;
    use crate::preflight::matching;

    const TEMPLATES: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../deploy/helm/muster/templates"
    );

    /// The rules that a template writes, each of which is one line.
    fn rules(template: &str) -> Vec<Value> {
        let lines = template.lines().map(str::trim);
        lines
            .filter_map(|line| line.strip_prefix("- {apiGroups: "))
            .map(|rest| serde_saphyr::from_str(&format!("{{apiGroups: {rest}")).unwrap())
            .collect()
    }

    /// The names below `matchConditions:`.
    fn conditions(template: &str) -> Vec<&str> {
        let Some((_, after)) = template.split_once("matchConditions:\n") else {
            return Vec::new();
        };
        after
            .lines()
            .take_while(|line| line.trim_start().starts_with(['-', 'e']))
            .filter_map(|line| line.trim().strip_prefix("- name: "))
            .collect()
    }

    #[test]
    fn the_policies_that_are_looked_for_are_those_of_the_chart_with_what_they_are_asked_about() {
        let mut of_chart: BTreeMap<String, String> = fs::read_dir(format!("{TEMPLATES}/policies"))
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
                (name, fs::read_to_string(path).unwrap())
            })
            .collect();
        for policy in POLICIES.into_iter().chain(BY_VALUE) {
            let name = policy.name;
            let template = of_chart.remove(name).unwrap_or_else(|| panic!("no {name}"));
            assert!(template.contains(&format!("\"%s-{name}\"")), "{name}");
            // Only those about workloads go by the mode.
            let by_mode = template.contains("\"workloads\"") || template.contains("[Audit]");
            assert_eq!(by_mode, policy.about == About::Workloads, "{name}");
            assert_eq!(conditions(&template), policy.conditions, "{name}");
            let rules = rules(&template);
            assert_eq!(rules.len(), policy.guards.len(), "{name}");
            for (rule, guard) in rules.iter().zip(policy.guards) {
                assert_eq!(rule["apiGroups"], json!([guard.group]), "{name}");
                assert_eq!(rule["resources"], json!(guard.resources), "{name}");
                assert_eq!(rule["operations"], json!(guard.operations), "{name}");
            }
            let rules = serde_json::from_value(json!({"resourceRules": rules})).unwrap();
            assert_eq!(matching::left_out(policy.guards, &rules), [""; 0], "{name}");
        }
        assert!(of_chart.is_empty(), "{:?}", of_chart.keys());
    }

    #[test]
    fn the_webhooks_that_are_looked_for_are_those_of_the_chart_with_what_they_are_asked_about() {
        let template = fs::read_to_string(format!("{TEMPLATES}/webhookconfigurations.yaml"));
        let template = template.unwrap();
        // Those about quota are written by one loop, and those about claims, which refuse nothing that matters here, by another.
        let of_quota = |rule: &Value| rule["apiGroups"] == json!(["muster.dev"]);
        let of_claims = |rule: &Value| rule["apiGroups"] == json!(["resource.k8s.io"]);
        for webhook in QUOTA.into_iter().chain([PODS]) {
            let kind = webhook.name.split('.').next().unwrap();
            let template = template.replace("{{ $kind }}", kind);
            let rules: Vec<Value> = rules(&template)
                .into_iter()
                .filter(|rule| !of_claims(rule))
                .filter(|rule| of_quota(rule) == (webhook.name != PODS.name))
                .collect();
            let of_kind = rules
                .iter()
                .filter(|rule| rule["resources"] == json!([kind]));
            assert_eq!(of_kind.count(), if kind == "pods" { 2 } else { 1 });
            let named = format!("- name: {}", webhook.name);
            assert!(template.contains(&named), "{named}");
            let rules = serde_json::from_value(json!({"resourceRules": rules})).unwrap();
            assert_eq!(matching::left_out(webhook.guards, &rules), [""; 0]);
        }
        assert_eq!(conditions(&template), PODS.conditions);
    }
}
