//! Mutating webhooks of others, which the API server asks before or after ours by the names of their configurations.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    core::v1::{Pod, PodSpec},
};
use kube::{Api, api::PostParams};
use muster_api::keys;
use muster_tests::{
    builders::{self, RankProgram},
    cluster::Cluster,
    kubernetes::{self, LIMIT, Progress, eventually},
    scenarios,
    suite::Scenario,
    vendor_webhook::VendorWebhook,
};
use serde_json::{Value, json};

/// Nothing is created here.
pub(crate) fn scenarios() -> Vec<Scenario> {
    let all = scenarios![
        a_webhook_that_adds_a_claim_too_late_is_named_in_the_refusal_and_all_others_leave_the_gate,
    ];
    all.into_iter().map(Scenario::without_gangs).collect()
}

/// A webhook of somebody else, and what becomes of a pod.
struct Case {
    /// Name of its configuration, of the namespace and of the files of its certificate.
    name: &'static str,
    /// The claims that the pod comes with.
    claims: &'static [&'static str],
    patch: Value,
    expected: Expected,
}

enum Expected {
    /// It is taken, with the gate.
    Gated,
    /// It is taken, without: it holds no device.
    Ungated,
    /// It is refused in these words.
    Refused(&'static str),
}

fn cases() -> [Case; 6] {
    let add = |path: &str, value: Value| json!([{"op": "add", "path": path, "value": value}]);
    let claim = json!({"name": "added", "resourceClaimName": "added"});
    let first = add("/spec/resourceClaims", json!([claim]));
    let further = add("/spec/resourceClaims/-", claim);
    let selector = add(
        "/spec/nodeSelector",
        json!({"vendor.example/pool": "added"}),
    );
    let no_gate = json!([{"op": "remove", "path": "/spec/schedulingGates"}]);
    [
        Case {
            name: "aa-adds-a-claim",
            claims: &[],
            patch: first.clone(),
            expected: Expected::Gated,
        },
        Case {
            name: "zzz-adds-a-claim",
            claims: &[],
            patch: first,
            expected: Expected::Refused("its configuration must have a name before zz-muster"),
        },
        Case {
            name: "zzz-adds-a-further-claim",
            claims: &["gpus"],
            patch: further,
            expected: Expected::Gated,
        },
        Case {
            name: "zzz-adds-a-selector",
            claims: &["gpus"],
            patch: selector.clone(),
            expected: Expected::Gated,
        },
        Case {
            name: "zzz-adds-a-selector-to-others",
            claims: &[],
            patch: selector,
            expected: Expected::Ungated,
        },
        // Ours is asked again about what changed after it.
        Case {
            name: "zzz-takes-the-gate",
            claims: &["gpus"],
            patch: no_gate,
            expected: Expected::Gated,
        },
    ]
}

async fn a_webhook_that_adds_a_claim_too_late_is_named_in_the_refusal_and_all_others_leave_the_gate(
    cluster: &mut Cluster,
) -> Result<()> {
    let cluster = &*cluster;
    let cases = cases();
    try_join_all(cases.iter().map(|case| case.meets(cluster))).await?;
    Ok(())
}

impl Case {
    async fn meets(&self, cluster: &Cluster) -> Result<()> {
        let client = cluster.client();
        builders::namespace(&client, self.name, None).await?;
        let pki = cluster.control_plane.pki();
        let webhook = VendorWebhook::start(pki, self.name, &self.patch).await?;
        let configuration = webhook.configuration(self.name, self.name)?;
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(client);
        kubernetes::create(&configurations, &configuration).await?;
        let met = self.wait_until_met(cluster, &webhook).await;
        kubernetes::delete(&configurations, self.name).await?;
        met.context(self.name)
    }

    /// The API server takes a moment to see that there is a webhook; what it decides before counts for nothing. Every call is
    /// a dry run.
    async fn wait_until_met(&self, cluster: &Cluster, webhook: &VendorWebhook) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(cluster.client(), self.name);
        let ranks = RankProgram::new(cluster.programs().path("rank"), "/".into(), 1);
        let mut spec = builders::pod_spec(&ranks.container(self.claims)?)?;
        for claim in self.claims {
            spec = builders::with_claim(spec, claim);
        }
        let pod = builders::pod("tried", &[], &[], &spec)?;
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        eventually(
            "the pod is decided about as documented",
            LIMIT,
            async || {
                let before = webhook.reviews();
                let created = pods.create(&dry, &pod).await;
                let asked = webhook.reviews() - before;
                let (is_met, seen) = match (&self.expected, created) {
                    (Expected::Refused(words), Err(kube::Error::Api(status))) => {
                        (status.message.contains(words), status.message.clone())
                    }
                    (_, Err(error)) => (false, error.to_string()),
                    (expected, Ok(pod)) => {
                        let spec = pod.spec.unwrap_or_default();
                        let is_met = match expected {
                            Expected::Gated => self.is_patched(&spec) && is_gated(&spec),
                            Expected::Ungated => self.is_patched(&spec) && !is_gated(&spec),
                            Expected::Refused(_) => false,
                        };
                        (is_met, format!("{spec:?}"))
                    }
                };
                Ok(Progress::when(is_met && asked > 0, || {
                    format!("asked {asked} times: {seen}")
                }))
            },
        )
        .await
    }

    /// Whether the pod has what the webhook adds; what it takes is seen by nobody but ours.
    fn is_patched(&self, spec: &PodSpec) -> bool {
        let claims = spec.resource_claims.iter().flatten();
        let mut names: BTreeSet<&str> = claims.map(|claim| claim.name.as_str()).collect();
        names.extend(
            spec.node_selector
                .iter()
                .flatten()
                .map(|(_, value)| value.as_str()),
        );
        self.patch[0]["op"] == "remove" || names.contains("added")
    }
}

fn is_gated(spec: &PodSpec) -> bool {
    let mut gates = spec.scheduling_gates.iter().flatten();
    gates.any(|gate| gate.name == keys::ADMISSION_GATE)
}
