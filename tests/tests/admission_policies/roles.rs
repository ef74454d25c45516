//! What the chart's roles for people open, and what stays closed to everybody else.

use anyhow::{Context, Result, bail};
use k8s_openapi::api::{
    core::v1::Namespace,
    rbac::v1::{ClusterRoleBinding, PolicyRule},
};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use muster_api::{Flavor, Gang, PriorityTier, Team, Topology, keys};
use muster_tests::{
    builders,
    cluster::Cluster,
    kubernetes::{self, LIMIT, Progress, eventually},
    scenarios,
    suite::Scenario,
    users,
};
use serde_json::{Value, json};

use crate::policies::refused;

/// A namespace of nobody's Team.
const NAMESPACE: &str = "joins";
/// A Team with quota, and a namespace of the same name.
const TEAM: &str = "joined";
/// Who is bound to the role that assigns Teams.
const STEWARD: &str = "steward";

/// No gang is ever admitted here.
pub(crate) fn scenarios() -> Vec<Scenario> {
    let all = scenarios![a_namespace_joins_a_team_by_who_may_assign_it_and_all_read_what_pods_name];
    all.into_iter().map(Scenario::without_gangs).collect()
}

async fn a_namespace_joins_a_team_by_who_may_assign_it_and_all_read_what_pods_name(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    builders::team_of_sixteen(&client, TEAM).await?;
    builders::namespace(&client, NAMESPACE, None).await?;
    let tenant = users::user(cluster, NAMESPACE, "tenant", "edit", vec![labels()]).await?;
    let steward = users::user(cluster, NAMESPACE, STEWARD, "view", vec![labels()]).await?;
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    let group = "rbac.authorization.k8s.io";
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "steward-assigns"},
        "subjects": [{"kind": "User", "apiGroup": group, "name": STEWARD}],
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "muster-assign"},
    }))?;
    kubernetes::create(&bindings, &binding).await?;
    let tried = try_all(&tenant, &steward).await;
    kubernetes::delete(&bindings, "steward-assigns").await?;
    tried
}

/// Who labels a namespace may change it, too: the chart's role is about Teams alone.
fn labels() -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(vec!["namespaces".to_owned()]),
        resource_names: Some(vec![NAMESPACE.to_owned()]),
        verbs: vec!["get".to_owned(), "patch".to_owned()],
        ..PolicyRule::default()
    }
}

async fn try_all(tenant: &Client, steward: &Client) -> Result<()> {
    let joins = refused("joining", assign(tenant, &json!(TEAM)).await, "muster-team");
    joins.context("the tenant")?;
    eventually("the steward puts it into the Team", LIMIT, async || {
        assign(steward, &json!(TEAM)).await?;
        Ok(Progress::Done(()))
    })
    .await?;
    for (what, team) in [("leaving", json!(null)), ("changing", json!("another"))] {
        refused(what, assign(tenant, &team).await, "muster-team").context("the tenant")?;
    }
    assign(steward, &json!(null))
        .await
        .context("the steward takes it out of the Team")?;

    for (who, user) in [("the tenant", tenant), ("the steward", steward)] {
        reads_what_pods_name(user).await.context(who)?;
    }
    let teams = |user: &Client| Api::<Team>::all(user.clone());
    let everything = ListParams::default();
    let seen = teams(steward).list(&everything).await?;
    if !seen
        .items
        .iter()
        .any(|team| team.metadata.name.as_deref() == Some(TEAM))
    {
        bail!("the steward does not see the Team");
    }
    let seen = teams(tenant).list(&everything).await;
    refused("listing Teams", seen, "User \"tenant\" cannot")?;
    writes_nothing(tenant, "tenant").await?;
    writes_nothing(steward, STEWARD).await
}

/// Puts the namespace into a Team; `null` takes it out.
async fn assign(user: &Client, team: &Value) -> kube::Result<Namespace> {
    let namespaces: Api<Namespace> = Api::all(user.clone());
    let patch = Patch::Merge(json!({"metadata": {"labels": {keys::TEAM: team}}}));
    let params = PatchParams::default();
    namespaces.patch(NAMESPACE, &params, &patch).await
}

/// What users name in their pods, and what became of these.
async fn reads_what_pods_name(user: &Client) -> Result<()> {
    let everything = ListParams::default();
    let tiers: Api<PriorityTier> = Api::all(user.clone());
    if tiers.list(&everything).await?.items.is_empty() {
        bail!("the chart's PriorityTiers are not seen");
    }
    let flavors: Api<Flavor> = Api::all(user.clone());
    if flavors.list(&everything).await?.items.is_empty() {
        bail!("the Flavor is not seen");
    }
    Api::<Topology>::all(user.clone()).list(&everything).await?;
    let gangs: Api<Gang> = Api::namespaced(user.clone(), NAMESPACE);
    gangs.list(&everything).await?;
    Ok(())
}

/// Neither a role that reads nor one that assigns changes quota.
async fn writes_nothing(user: &Client, name: &str) -> Result<()> {
    let by = format!("User {name:?} cannot");
    let patch = Patch::Merge(json!({"metadata": {"labels": {"tried": "yes"}}}));
    let dry = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let teams: Api<Team> = Api::all(user.clone());
    let changed = teams.patch(TEAM, &dry, &patch).await;
    refused("changing a Team", changed, &by)?;
    let flavors: Api<Flavor> = Api::all(user.clone());
    let changed = flavors.patch("h100", &dry, &patch).await;
    refused("changing a Flavor", changed, &by)?;
    let tiers: Api<PriorityTier> = Api::all(user.clone());
    let changed = tiers.patch("standard", &dry, &patch).await;
    refused("changing a PriorityTier", changed, &by)?;
    let topologies: Api<Topology> = Api::all(user.clone());
    let changed = topologies.patch("default", &dry, &patch).await;
    refused("changing a Topology", changed, &by)
}
