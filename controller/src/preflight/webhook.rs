//! Muster's admission webhook: configured as it must be, ready, and reached by the API server.
//!
//! That the API server reaches it is proved by a dry run: the API server is asked to create a Team without keeping it, and asks the
//! webhook about that. Who may not create Teams is left with what the API server's metrics say of earlier calls.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    admissionregistration::v1::{
        MatchCondition, MatchResources, MutatingWebhookConfiguration, RuleWithOperations,
        ValidatingWebhookConfiguration, WebhookClientConfig,
    },
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, PostParams},
};
use muster_api::team::{Team, TeamSpec};
use muster_serve::client::CallError;

use super::{
    expressions,
    finding::{Finding, Reason},
    guards::{self, PODS, QUOTA, Webhook},
    installation::Installation,
    matching::{self, Guard},
    reading::{self, CallFailure, Reading, Unread},
    server_metrics::ServerMetrics,
};
use crate::listing::Names;

/// Name of the Team that is created in a dry run.
const TEAM: &str = "muster-preflight";
/// What the dry run takes.
const DRY_RUN: &str = "create (dry run)";
/// Of what it creates one.
const TEAMS: &str = "teams.muster.dev";
/// The webhook that is asked about Teams.
const TEAMS_WEBHOOK: &str = "teams.muster.dev";
/// What the dry run asks for.
const CREATED_TEAM: Guard = guards::muster(&["teams"], guards::CREATE);
/// Webhooks that are a courtesy, and fail open: what they say of Jobs is said of their pods again, what of claims by the driver.
const COURTESIES: [&str; 3] = [
    "jobs.muster.dev",
    "resourceclaims.muster.dev",
    "resourceclaimtemplates.muster.dev",
];

/// Before the release's name: the configuration is to be the last one.
const MUTATING_PREFIX: &str = "zz-";

/// A webhook of either kind of configuration.
struct Configured<'a> {
    name: &'a str,
    client: &'a WebhookClientConfig,
    failure: Option<&'a str>,
    matches: MatchResources,
    conditions: Option<&'a Vec<MatchCondition>>,
}

macro_rules! configured {
    ($configuration:expr) => {
        $configuration
            .webhooks
            .iter()
            .flatten()
            .map(|webhook| Configured {
                name: &webhook.name,
                client: &webhook.client_config,
                failure: webhook.failure_policy.as_deref(),
                matches: matching::of_webhook(
                    webhook.rules.as_ref(),
                    webhook.namespace_selector.as_ref(),
                    webhook.object_selector.as_ref(),
                ),
                conditions: webhook.match_conditions.as_ref(),
            })
            .collect::<Vec<_>>()
    };
}

/// What is configured.
#[derive(Clone, Debug, Default)]
pub struct Configurations {
    /// The release's own, if it is there.
    pub mutating: Option<MutatingWebhookConfiguration>,
    /// Others that may change pods after it.
    after: Names,
    /// The release's own, if it is there.
    pub validating: Option<ValidatingWebhookConfiguration>,
}

impl Configurations {
    /// Whether the API server takes no Team without having asked the webhook.
    fn ask_about_teams(&self) -> bool {
        let Some(configuration) = &self.validating else {
            return false;
        };
        configured!(configuration).iter().any(|webhook| {
            webhook.name == TEAMS_WEBHOOK
                && webhook.failure.is_none_or(|failure| failure == "Fail")
                && matching::left_out(&[CREATED_TEAM], &webhook.matches).is_empty()
                && matching::is_wide(&webhook.matches, |_| false)
                && webhook.conditions.is_none_or(Vec::is_empty)
        })
    }

    /// Whether the API server calls it at a URL of its own, and not by its Service.
    fn name_a_url(&self) -> bool {
        let validating = self.validating.iter();
        let validating = validating.flat_map(|found| found.webhooks.iter().flatten());
        let mutating = self.mutating.iter();
        let mutating = mutating.flat_map(|found| found.webhooks.iter().flatten());
        let clients: Vec<&WebhookClientConfig> = validating
            .map(|webhook| &webhook.client_config)
            .chain(mutating.map(|webhook| &webhook.client_config))
            .collect();
        !clients.is_empty() && clients.iter().all(|client| client.url.is_some())
    }
}

/// Reads the configurations.
pub async fn read(client: &Client, installation: &Installation) -> Reading<Configurations> {
    let own = format!("{MUTATING_PREFIX}{}", installation.name);
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let mutating = reading::list(
        mutating,
        ListParams::default(),
        Configurations::default(),
        |found, configuration| {
            let name = configuration.name_any();
            if name == own {
                found.mutating = Some(configuration.clone());
            } else if name > own && changes_pods(configuration) {
                found.after.add(|| name);
            }
        },
    )
    .await;
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let validating = reading::get(validating, &installation.name).await;
    Reading {
        found: Configurations {
            validating: validating.found,
            ..mutating.found
        },
        unread: mutating.unread.or(validating.unread),
    }
}

fn changes_pods(configuration: &MutatingWebhookConfiguration) -> bool {
    let webhooks = configuration.webhooks.iter().flatten();
    webhooks
        .flat_map(|webhook| webhook.rules.iter().flatten())
        .any(is_about_new_pods)
}

fn is_about_new_pods(rule: &RuleWithOperations) -> bool {
    let has = |list: &Option<Vec<String>>, words: [&str; 2]| {
        list.iter()
            .flatten()
            .any(|word| words.contains(&word.as_str()))
    };
    has(&rule.api_groups, ["", "*"])
        && has(&rule.operations, ["CREATE", "*"])
        && (has(&rule.resources, ["pods", "*"]) || has(&rule.resources, ["*/*", "pods/*"]))
}

/// How many addresses of the webhook's Service are ready, by Service.
pub async fn read_endpoints(client: &Client, installation: &Installation) -> Reading<usize> {
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), &installation.namespace);
    let service = format!("kubernetes.io/service-name={}-webhook", installation.name);
    let params = ListParams::default().labels(&service);
    reading::list(slices, params, 0, |ready: &mut usize, slice| {
        *ready += slice
            .endpoints
            .iter()
            .flatten()
            .filter(|endpoint| {
                let conditions = endpoint.conditions.as_ref();
                // Unknown counts as ready.
                conditions
                    .and_then(|conditions| conditions.ready)
                    .unwrap_or(true)
            })
            .count();
    })
    .await
}

/// Whether it is configured as the chart has it.
pub fn of_configurations(
    installation: &Installation,
    configurations: &Reading<Configurations>,
) -> Vec<Finding> {
    if let Some(unread) = &configurations.unread {
        return vec![unread.finding()];
    }
    let found = &configurations.found;
    let mut findings = Vec::new();
    let missing = |kind: &str, name: &str| {
        let message = format!("the {kind} does not exist, so the API server asks nobody");
        Finding::new(
            Reason::WebhookMissing,
            name,
            message,
            "helm upgrade the release",
        )
    };
    match &found.validating {
        Some(configuration) => {
            // In Observe nobody is asked about pods.
            let pods = installation.enforces.then_some(PODS);
            let needed: Vec<Webhook> = QUOTA.into_iter().chain(pods).collect();
            let webhooks = configured!(configuration);
            let name = configuration.name_any();
            let compared = is_of_this_version(configuration);
            let found = of_webhooks(&name, &needed, &webhooks, installation, compared);
            findings.extend(found);
        }
        None => findings.push(missing(
            "ValidatingWebhookConfiguration",
            &installation.name,
        )),
    }
    let own = format!("{MUTATING_PREFIX}{}", installation.name);
    match &found.mutating {
        Some(configuration) => {
            let webhooks = configured!(configuration);
            let compared = is_of_this_version(configuration);
            // In Observe it is there, has its authority, and is asked about nothing.
            let needed: Vec<Webhook> = installation.enforces.then_some(PODS).into_iter().collect();
            let found = of_webhooks(&own, &needed, &webhooks, installation, compared);
            findings.extend(found);
        }
        // In Observe nothing is changed.
        None if installation.enforces => {
            findings.push(missing("MutatingWebhookConfiguration", &own));
        }
        None => {}
    }
    if !found.after.is_empty() {
        findings.push(Finding::new(
            Reason::WebhookAfterOurs,
            "mutatingwebhookconfigurations",
            format!(
                "{} that change pods come after Muster's, by their names ({}): a claim that one adds is not seen",
                found.after.count(),
                found.after.list()
            ),
            "Rename them, so that they sort before zz-",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::passed(
            "webhook configurations",
            "they have an authority, are asked about all that they must be, fail closed, and Muster's is the last that changes pods",
        ));
    }
    findings
}

/// Whether expressions of a configuration are compared: not where another version installed it, which is told of the policies.
fn is_of_this_version<K: ResourceExt>(configuration: &K) -> bool {
    expressions::other_version(configuration.labels()).is_none()
}

fn of_webhooks(
    object: &str,
    needed: &[Webhook],
    webhooks: &[Configured<'_>],
    installation: &Installation,
    compared: bool,
) -> Vec<Finding> {
    let (mut without, mut open) = (Names::default(), Names::default());
    for webhook in webhooks {
        let bundle = webhook.client.ca_bundle.as_ref();
        if bundle.is_none_or(|bundle| bundle.0.is_empty()) {
            without.add(|| webhook.name.to_owned());
        }
        let is_courtesy = COURTESIES.contains(&webhook.name);
        if !is_courtesy && webhook.failure.is_some_and(|failure| failure != "Fail") {
            open.add(|| webhook.name.to_owned());
        }
    }
    let (mut absent, mut narrowed) = (Vec::new(), Vec::new());
    for wanted in needed {
        let Some(found) = webhooks.iter().find(|webhook| webhook.name == wanted.name) else {
            absent.push(wanted.name.to_owned());
            continue;
        };
        let left_out = matching::left_out(wanted.guards, &found.matches);
        if !left_out.is_empty() {
            absent.push(format!("{} for {}", wanted.name, left_out.join(", ")));
        }
        let further = matching::further_conditions(found.conditions, wanted.conditions);
        let changed = expressions::changed_conditions(wanted.name, found.conditions, installation);
        let is_changed = compared && !changed.is_empty();
        // Only of pods the chart leaves out namespaces.
        let is_wide = matching::is_wide(&found.matches, |namespace| {
            wanted.name == PODS.name && installation.may_leave_out(namespace)
        });
        if !is_wide || !further.is_empty() || is_changed {
            narrowed.push(wanted.name);
        }
    }
    let mut findings = Vec::new();
    let mut add = |reason, message: String, remedy: &str| {
        findings.push(Finding::new(reason, object, message, remedy));
    };
    let upgrade = "helm upgrade the release, and see who changed it";
    if !absent.is_empty() {
        add(
            Reason::WebhookMissing,
            format!(
                "it does not have {}, so the API server asks nobody about these",
                absent.join("; ")
            ),
            upgrade,
        );
    }
    if !narrowed.is_empty() {
        add(
            Reason::WebhookNarrowed,
            format!(
                "{} leave out what the chart's do not: selectors or matchConditions were added or changed",
                narrowed.join(", ")
            ),
            upgrade,
        );
    }
    if !without.is_empty() {
        add(
            Reason::WebhookWithoutAuthority,
            format!("without a caBundle the API server believes none of its webhooks: {without}"),
            "The leader of muster-controller sets it, or cert-manager: look at its log",
        );
    }
    if !open.is_empty() {
        add(
            Reason::WebhookFailsOpen,
            format!(
                "failurePolicy of {} is not Fail: what it would refuse is let pass while it does not answer",
                open.list()
            ),
            upgrade,
        );
    }
    findings
}

/// Whether anybody is there to answer.
pub fn of_endpoints(
    installation: &Installation,
    configurations: &Reading<Configurations>,
    ready: &Reading<usize>,
) -> Vec<Finding> {
    let object = format!("{}-webhook", installation.name);
    if configurations.found.name_a_url() {
        let message = "its Service is not used: the API server calls it at a URL";
        return vec![Finding::passed(&object, message)];
    }
    let mut findings = Vec::new();
    if ready.found == 0 && ready.unread.is_none() {
        findings.push(Finding::new(
            Reason::WebhookNotReady,
            &object,
            "its Service has no ready address: Teams cannot be written, nor, in Enforce, managed pods be created",
            "Look at the webhook's pods",
        ));
    }
    ready.or_passed(findings, || {
        Finding::passed(
            &object,
            format!("its Service has {} ready addresses", ready.found),
        )
    })
}

/// What came of the dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DryRun {
    /// The webhook was asked, and refused.
    Asked,
    /// Nobody refused. So the webhook was asked, if the API server takes no Team without.
    Taken,
    /// The API server could not ask it.
    NotReached(String),
    /// It was not tried, or ended before it.
    NotTried(Unread),
}

/// Asks the API server to create a Team, without keeping it.
pub async fn dry_run(client: &Client) -> DryRun {
    let teams: Api<Team> = Api::all(client.clone());
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let team = Team::new(TEAM, TeamSpec::default());
    match reading::one(teams.create(&params, &team)).await {
        Ok(_) => DryRun::Taken,
        Err(CallFailure::Call(error)) => judged(&error),
        Err(late @ CallFailure::OutOfTime) => DryRun::NotTried(late.unread(DRY_RUN, TEAMS)),
    }
}

fn judged(error: &CallError) -> DryRun {
    let text = error.to_string();
    let failed = format!("failed calling webhook \"{TEAMS_WEBHOOK}\"");
    let denied = format!("admission webhook \"{TEAMS_WEBHOOK}\" denied");
    if text.contains(&failed) {
        DryRun::NotReached(text)
    } else if text.contains(&denied) {
        DryRun::Asked
    // A name that is taken is found out last.
    } else if error.status_code() == Some(409) {
        DryRun::Taken
    } else {
        // A policy, or a webhook of somebody else, answers 403 too.
        DryRun::NotTried(if text.contains(" denied ") {
            Unread::refused(DRY_RUN, TEAMS, error)
        } else {
            Unread::failed(DRY_RUN, TEAMS, error)
        })
    }
}

/// Whether the API server reaches the webhook: by the dry run, else by its metrics.
pub fn of_reach(
    dry_run: &DryRun,
    configurations: &Reading<Configurations>,
    metrics: &Reading<ServerMetrics>,
) -> Vec<Finding> {
    let object = "kube-apiserver";
    let mut findings = Vec::new();
    match dry_run {
        DryRun::Taken if !configurations.found.ask_about_teams() => findings.push(Finding::new(
            Reason::NoEvidence,
            object,
            format!(
                "it took a Team in a dry run, and may have done so without the webhook: nothing says here that {TEAMS_WEBHOOK} is asked about \
                 each Team, and fails closed"
            ),
            "Mend what is told of the configurations, and run preflight again",
        )),
        DryRun::Asked | DryRun::Taken => findings.push(Finding::passed(object, "it asked the webhook in a dry run")),
        DryRun::NotReached(text) => findings.push(Finding::new(
            Reason::WebhookUnreachable,
            object,
            format!("it cannot call the webhook: {text}"),
            "Let the control plane reach port 8443 of the webhook's pods (docs/operator-guide.md, Networks), and look at the certificate",
        )),
        DryRun::NotTried(unread) => findings.extend(of_metrics(unread, metrics)),
    }
    findings
}

fn of_metrics(dry_run: &Unread, metrics: &Reading<ServerMetrics>) -> Vec<Finding> {
    let ours: BTreeMap<&str, _> = metrics
        .found
        .webhooks
        .iter()
        .filter(|(name, _)| name.ends_with(".muster.dev"))
        .map(|(name, calls)| (name.as_str(), *calls))
        .collect();
    let answered: f64 = ours.values().map(|calls| calls.answered).sum();
    let failed: f64 = ours.values().map(|calls| calls.failed).sum();
    let numbers = format!("since it started, {answered} calls were answered and {failed} were not");
    if failed > 0.0 {
        return vec![Finding::new(
            Reason::WebhookCallsFailed,
            "kube-apiserver",
            numbers,
            "An update of the webhook may explain a few. Run preflight as somebody who may create Teams: it then asks the API server to try",
        )];
    }
    if answered > 0.0 {
        return vec![Finding::passed("kube-apiserver", numbers)];
    }
    let mut findings = vec![dry_run.finding()];
    match &metrics.unread {
        Some(unread) => findings.push(unread.finding()),
        None => findings.push(Finding::new(
            Reason::NoEvidence,
            "kube-apiserver",
            "it has not called the webhook since it started, so nobody knows whether it can",
            "Create a Team, or run preflight as somebody who may",
        )),
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use muster_serve::client::CALL_LIMIT;

    use crate::{
        preflight::server_metrics::Calls,
        scripted_api::{ScriptedApi, failure},
    };

    fn installation(enforces: bool) -> Installation {
        Installation {
            name: "muster".to_owned(),
            namespace: "muster-system".to_owned(),
            enforces,
            ..Installation::default()
        }
    }

    fn webhook(name: &str, bundle: &str, failure: &str) -> Value {
        let (kind, _) = name.split_once('.').unwrap();
        let (group, version, operations) = match kind {
            "pods" => ("", "v1", json!(["CREATE"])),
            "jobs" => ("batch", "v1", json!(["CREATE"])),
            _ => ("muster.dev", "v1alpha1", json!(["CREATE", "UPDATE"])),
        };
        json!({"name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": failure,
            "clientConfig": {"caBundle": bundle}, "namespaceSelector": {}, "objectSelector": {},
            "rules": [{"apiGroups": [group], "apiVersions": [version], "resources": [kind], "operations": operations, "scope": "*"}]})
    }

    /// The webhooks about quota as the chart has them, but for this one of them.
    fn quota_but(changed: &Value) -> Vec<Value> {
        let names = QUOTA.iter().map(|webhook| webhook.name);
        let others = names.filter(|name| changed["name"] != *name);
        let others = others.map(|name| webhook(name, "YQ==", "Fail"));
        others.chain([changed.clone()]).collect()
    }

    fn configuration(name: &str, webhooks: &[Value]) -> Value {
        json!({"metadata": {"name": name}, "webhooks": webhooks})
    }

    async fn reasons(enforces: bool, mutating: &[Value], validating: Option<Value>) -> Vec<Reason> {
        let list = json!({"kind": "MutatingWebhookConfigurationList", "apiVersion": "admissionregistration.k8s.io/v1",
            "metadata": {}, "items": mutating});
        let validating = validating.map_or_else(|| failure(404, "not found"), |found| (200, found));
        let api = ScriptedApi::new([(200, list), validating]);
        let installation = installation(enforces);
        let configurations = read(&api.client(), &installation).await;
        let found = of_configurations(&installation, &configurations);
        found.iter().map(|finding| finding.reason).collect()
    }

    #[tokio::test]
    async fn in_observe_what_is_about_pods_has_its_authority_and_no_rules() {
        let about_nothing = |bundle: &str| {
            let mut webhook = webhook("pods.muster.dev", bundle, "Fail");
            webhook.as_object_mut().unwrap().remove("rules");
            webhook
        };
        for (enforces, bundle, expected) in [
            (false, "YQ==", Reason::Passed),
            (false, "", Reason::WebhookWithoutAuthority),
            (true, "YQ==", Reason::WebhookMissing),
        ] {
            let mutating = [configuration("zz-muster", &[about_nothing(bundle)])];
            let validating = configuration("muster", &quota_but(&about_nothing("YQ==")));
            let found = reasons(enforces, &mutating, Some(validating)).await;
            assert!(found.contains(&expected), "{found:?}");
            let is_missing = found.contains(&Reason::WebhookMissing);
            assert_eq!(is_missing, enforces, "{found:?}");
        }
    }

    #[tokio::test]
    async fn each_way_in_which_a_configuration_does_not_work_is_told() {
        use Reason::*;
        let pods = webhook("pods.muster.dev", "YQ==", "Fail");
        let ours = configuration("zz-muster", std::slice::from_ref(&pods));
        let quota = quota_but(&webhook("teams.muster.dev", "YQ==", "Fail"));
        let with_quota = |webhook: &Value| {
            let all = [vec![webhook.clone()], quota.clone()].concat();
            Some(configuration("muster", &all))
        };
        let validating = with_quota(&pods);
        let without = webhook("pods.muster.dev", "", "Fail");
        let open = webhook("pods.muster.dev", "YQ==", "Ignore");
        let courtesies = COURTESIES.map(|name| webhook(name, "YQ==", "Ignore"));
        let open_teams = webhook("teams.muster.dev", "YQ==", "Ignore");
        let later = configuration("zzz-other", std::slice::from_ref(&pods));
        let earlier = configuration("other", std::slice::from_ref(&pods));
        let mut of_nodes = pods.clone();
        of_nodes["rules"][0]["resources"] = json!(["nodes"]);
        let later_of_nodes = configuration("zzz-nodes", &[of_nodes]);
        for (enforces, mutating, validating, expected) in [
            (
                true,
                vec![ours.clone(), earlier, later_of_nodes],
                validating.clone(),
                vec![Passed],
            ),
            (true, vec![], validating.clone(), vec![WebhookMissing]),
            (false, vec![], validating.clone(), vec![Passed]),
            (true, vec![ours.clone()], None, vec![WebhookMissing]),
            (
                true,
                vec![configuration("zz-muster", &[without])],
                validating.clone(),
                vec![WebhookWithoutAuthority],
            ),
            (
                true,
                vec![configuration("zz-muster", &[open])],
                validating.clone(),
                vec![WebhookFailsOpen],
            ),
            (
                true,
                vec![ours.clone()],
                Some(configuration(
                    "muster",
                    &[vec![pods.clone()], courtesies.to_vec(), quota.clone()].concat(),
                )),
                vec![Passed],
            ),
            (
                true,
                vec![ours.clone()],
                Some(configuration(
                    "muster",
                    &[vec![pods.clone()], quota_but(&open_teams)].concat(),
                )),
                vec![WebhookFailsOpen],
            ),
            (
                true,
                vec![ours.clone()],
                Some(configuration("muster", &quota)),
                vec![WebhookMissing],
            ),
            (
                true,
                vec![configuration("zz-muster", &[])],
                validating.clone(),
                vec![WebhookMissing],
            ),
            (true, vec![ours, later], validating, vec![WebhookAfterOurs]),
        ] {
            assert_eq!(
                reasons(enforces, &mutating, validating).await,
                expected,
                "{mutating:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_webhook_that_is_not_asked_any_more_about_all_that_it_must_be_is_told() {
        use Reason::{Passed, WebhookMissing, WebhookNarrowed};
        let names = json!({"matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}]});
        let managed =
            expressions::tests::rendered(PODS.name, "muster-system")["matchConditions"].clone();
        let nothing = json!([{"name": "managed", "expression": "false"}]);
        let mine = json!([{"name": "mine", "expression": "false"}]);
        let labels = json!({"matchLabels": {"guarded": "yes"}});
        for (name, pointer, value, expected) in [
            (
                "pods.muster.dev",
                "/namespaceSelector",
                names.clone(),
                Passed,
            ),
            ("pods.muster.dev", "/matchConditions", managed, Passed),
            (
                "pods.muster.dev",
                "/matchConditions",
                nothing,
                WebhookNarrowed,
            ),
            (
                "pods.muster.dev",
                "/rules/0/operations",
                json!(["*"]),
                Passed,
            ),
            (
                "pods.muster.dev",
                "/rules/0/resources",
                json!(["nodes"]),
                WebhookMissing,
            ),
            ("pods.muster.dev", "/rules", json!([]), WebhookMissing),
            (
                "teams.muster.dev",
                "/rules/0/operations",
                json!(["CREATE"]),
                WebhookMissing,
            ),
            (
                "cohorts.muster.dev",
                "/name",
                json!("other.muster.dev"),
                WebhookMissing,
            ),
            (
                "pods.muster.dev",
                "/objectSelector",
                labels,
                WebhookNarrowed,
            ),
            ("pods.muster.dev", "/matchConditions", mine, WebhookNarrowed),
            (
                "teams.muster.dev",
                "/namespaceSelector",
                names,
                WebhookNarrowed,
            ),
        ] {
            let pods = webhook("pods.muster.dev", "YQ==", "Fail");
            let ours = configuration("zz-muster", std::slice::from_ref(&pods));
            let teams = webhook("teams.muster.dev", "YQ==", "Fail");
            let mut webhooks = [vec![pods], quota_but(&teams)].concat();
            let changed = webhooks.iter_mut().find(|webhook| webhook["name"] == name);
            let changed = changed.unwrap();
            changed["matchConditions"] = json!([]);
            *changed.pointer_mut(pointer).unwrap() = value;
            let validating = Some(configuration("muster", &webhooks));
            let found = reasons(true, &[ours], validating).await;
            assert_eq!(found, [expected], "{name} {pointer}");
        }
    }

    #[test]
    fn a_service_without_a_ready_address_answers_nobody() {
        for (ready, expected) in [(0, Reason::WebhookNotReady), (2, Reason::Passed)] {
            let found = of_endpoints(
                &installation(true),
                &Reading::default(),
                &Reading::whole(ready),
            );
            assert_eq!(found[0].reason, expected);
        }
        let mut elsewhere = webhook("teams.muster.dev", "YQ==", "Fail");
        elsewhere["clientConfig"] =
            json!({"caBundle": "YQ==", "url": "https://10.0.0.9:8443/validate/teams"});
        let validating = serde_json::from_value(configuration("muster", &[elsewhere])).unwrap();
        let configurations = Configurations {
            validating,
            ..Configurations::default()
        };
        let found = of_endpoints(
            &installation(true),
            &Reading::whole(configurations),
            &Reading::whole(0),
        );
        assert_eq!(found[0].reason, Reason::Passed);
    }

    #[tokio::test]
    async fn the_dry_run_keeps_nothing_and_tells_a_refusal_of_the_webhook_from_one_on_the_way() {
        let created = (201, json!({"metadata": {"name": TEAM}, "spec": {}}));
        let unreached = "Internal error occurred: failed calling webhook \"teams.muster.dev\": dial tcp 10.0.0.1:8443: i/o timeout";
        let denied_by_other =
            "admission webhook \"validate.kyverno.svc-fail\" denied the request: no label owner";
        let denied = "admission webhook \"teams.muster.dev\" denied the request: InvalidField";
        let configurations = configured(&webhook(TEAMS_WEBHOOK, "YQ==", "Fail"));
        for (answer, expected) in [
            (created, Some(Reason::Passed)),
            (failure(400, denied), Some(Reason::Passed)),
            (failure(403, denied_by_other), Some(Reason::ReadFailed)),
            (failure(409, "already exists"), Some(Reason::Passed)),
            (failure(500, unreached), Some(Reason::WebhookUnreachable)),
            (
                failure(403, "teams is forbidden"),
                Some(Reason::ReadForbidden),
            ),
            (
                failure(422, "spec: Invalid value"),
                Some(Reason::ReadFailed),
            ),
        ] {
            let api = ScriptedApi::new([answer]);
            let outcome = dry_run(&api.client()).await;
            let found = of_reach(&outcome, &configurations, &Reading::default());
            assert_eq!(
                found.first().map(|finding| finding.reason),
                expected,
                "{outcome:?}"
            );
            assert!(
                api.asked()[0].query.contains("dryRun=All"),
                "{:?}",
                api.asked()
            );
        }
    }

    /// The release's configuration for validation, of this webhook alone.
    fn configured(webhook: &Value) -> Reading<Configurations> {
        let webhooks = std::slice::from_ref(webhook);
        let validating = serde_json::from_value(configuration("muster", webhooks)).unwrap();
        Reading::whole(Configurations {
            validating,
            ..Configurations::default()
        })
    }

    #[test]
    fn a_team_that_is_taken_without_the_webhook_proves_nothing() {
        let closed = webhook(TEAMS_WEBHOOK, "YQ==", "Fail");
        let mut of_updates = closed.clone();
        of_updates["rules"][0]["operations"] = json!(["UPDATE"]);
        let mut of_some = closed.clone();
        of_some["matchConditions"] = json!([{"name": "mine", "expression": "false"}]);
        for (configurations, expected) in [
            (configured(&closed), Reason::Passed),
            (
                configured(&webhook(TEAMS_WEBHOOK, "YQ==", "Ignore")),
                Reason::NoEvidence,
            ),
            (configured(&of_updates), Reason::NoEvidence),
            (configured(&of_some), Reason::NoEvidence),
            (
                configured(&webhook("cohorts.muster.dev", "YQ==", "Fail")),
                Reason::NoEvidence,
            ),
            (Reading::default(), Reason::NoEvidence),
        ] {
            let found = of_reach(&DryRun::Taken, &configurations, &Reading::default());
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].reason, expected, "{configurations:?}");
            // Its refusal proves it whatever is configured.
            let refused = of_reach(&DryRun::Asked, &configurations, &Reading::default());
            assert_eq!(refused[0].reason, Reason::Passed);
        }
    }

    #[test]
    fn who_may_not_try_is_told_what_the_api_server_saw() {
        let forbidden = DryRun::NotTried(Unread::failed(
            "create (dry run)",
            "teams.muster.dev",
            &CallError::Timeout(CALL_LIMIT),
        ));
        for (name, answered, failed, expected) in [
            ("teams.muster.dev", 3.0, 0.0, vec![Reason::Passed]),
            (
                "teams.muster.dev",
                3.0,
                1.0,
                vec![Reason::WebhookCallsFailed],
            ),
            (
                "other.example.com",
                3.0,
                1.0,
                vec![Reason::ReadFailed, Reason::NoEvidence],
            ),
        ] {
            let mut metrics = ServerMetrics::default();
            metrics
                .webhooks
                .insert(name.to_owned(), Calls { answered, failed });
            let metrics = Reading::whole(metrics);
            let found = of_reach(&forbidden, &Reading::default(), &metrics);
            let reasons: Vec<Reason> = found.iter().map(|finding| finding.reason).collect();
            assert_eq!(reasons, expected);
        }
    }
}
