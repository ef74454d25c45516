//! Waits that somebody can end: whoever put a gate, holds a claim, stopped a Team, suspended the gang.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod, PodSchedulingGate, PodSpec};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use muster_api::{
    FlavorQuota, Gang, Reason, TeamSpec, keys,
    team::{Stop, TeamTiers},
};
use muster_tests::{
    builders::{self, RankProgram, gpu_quota},
    cluster::Cluster,
    gangs,
    kubernetes::{self, LIMIT, Progress, eventually},
    scenarios,
    suite::Scenario,
    users,
    workloads::Workload,
};
use serde_json::{Value, json};

use super::{Waiting, all_wait_and_hold_nobody_up, pair, single, strict, team};
use crate::stage::prepare_flavors;

/// A gate of somebody else.
const FOREIGN_GATE: &str = "example.com/warm-up";

const GATED: Workload<'static> = single("waits", "gated");
const SUSPENDED: Workload<'static> = pair("waits", "suspended");
const TIERED: Workload<'static> = pair("waits", "tiered");
const HOLDER: Workload<'static> = single("waits", "holder");
const SHARER: Workload<'static> = single("waits", "sharer");
const LAST: Workload<'static> = pair("waits", "last");
const HELD: Workload<'static> = pair("held", "held");
const UNNAMED: Workload<'static> = pair("unnamed", "unnamed");
const TEAMLESS: Workload<'static> = pair("nobody", "teamless");

pub(super) fn scenarios() -> Vec<Scenario> {
    scenarios![a_wait_that_somebody_can_end_ends_when_he_does]
}

async fn a_wait_that_somebody_can_end_ends_when_he_does(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.client();
    prepare_flavors(&client).await?;
    team(&client, "waits", strict()).await?;
    let mut waits = Waits {
        cluster,
        tenant: users::user(cluster, "waits", "tenant", "edit", Vec::new()).await?,
        client,
        waiting: Vec::new(),
        started: Vec::new(),
    };
    waits.for_a_gate().await?;
    waits.for_a_user().await?;
    waits.for_a_tier().await?;
    waits.for_a_stopped_team().await?;
    waits.for_a_quota_of_gpus().await?;
    waits.for_a_team().await?;
    let holder = waits.for_a_claim().await?;
    let last = all_wait_and_hold_nobody_up(cluster, &waits.waiting, &LAST).await?;

    waits.end_all().await?;
    holder.finish()?;
    for (one, ranks) in waits.waiting.iter().zip(&waits.started) {
        gangs::wait_until_running(&waits.client, one.namespace, &one.gang).await?;
        ranks.finish()?;
    }
    last.finish()?;
    for (one, ranks) in waits.waiting.iter().zip(&waits.started) {
        gangs::wait_until_finished(&waits.client, one.namespace, &one.gang).await?;
        had_a_gpu_each(ranks)?;
    }
    had_a_gpu_each(&holder)
}

/// Every rank met its gang and had one GPU, as all gangs here ask for.
fn had_a_gpu_each(ranks: &RankProgram) -> Result<()> {
    ranks.ensure_all_met()?;
    for (rank, gpus) in ranks.gpus()? {
        ensure!(gpus.len() == 1, "rank {rank} had {gpus:?}");
    }
    Ok(())
}

/// Gangs that wait for somebody, and what their pods run.
struct Waits<'a> {
    cluster: &'a Cluster,
    client: Client,
    /// Somebody with `edit` in the namespace of most of them.
    tenant: Client,
    waiting: Vec<Waiting>,
    started: Vec<RankProgram>,
}

impl Waits<'_> {
    /// Notes a gang and returns the spec of its pods, which are not created yet.
    async fn note(
        &mut self,
        workload: &Workload<'static>,
        reason: Reason,
        says: &'static [&'static str],
    ) -> Result<PodSpec> {
        let (ranks, spec) = workload.prepare(self.cluster).await?;
        self.started.push(ranks);
        self.waiting.push(Waiting::new(workload, reason, says));
        Ok(spec)
    }

    async fn for_a_gate(&mut self) -> Result<()> {
        let says = &["pod gated-0", FOREIGN_GATE];
        let mut spec = self.note(&GATED, Reason::ForeignGate, says).await?;
        let gate = PodSchedulingGate {
            name: FOREIGN_GATE.to_owned(),
        };
        spec.scheduling_gates = Some(vec![gate]);
        GATED.create_labelled_pods(&self.client, &spec).await
    }

    /// Suspended before it is complete.
    async fn for_a_user(&mut self) -> Result<()> {
        let spec = self
            .note(&SUSPENDED, Reason::Suspended, &["spec.suspend"])
            .await?;
        SUSPENDED
            .create_labelled_pod(&self.client, &spec, 0)
            .await?;
        patch_gang(&self.tenant, &SUSPENDED, &json!({"suspend": true})).await?;
        SUSPENDED
            .create_labelled_pod(&self.client, &spec, 1)
            .await?;
        Ok(())
    }

    /// The tier is the Team's to use when the first pod comes, and not any more when the gang is complete. The second
    /// pod names no tier: with one that is not allowed it would be refused.
    async fn for_a_tier(&mut self) -> Result<()> {
        let says = &["critical", "standard"];
        let spec = self.note(&TIERED, Reason::TierNotAllowed, says).await?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), TIERED.namespace);
        let labels = [(keys::GANG, TIERED.name), (keys::TIER, "critical")];
        let first = builders::pod("tiered-0", &labels, &[(keys::GANG_SIZE, "2")], &spec)?;
        kubernetes::create(&pods, &first).await?;
        let narrowed = TeamSpec {
            tiers: Some(TeamTiers {
                allowed: vec!["standard".to_owned()],
                default: None,
            }),
            ..strict()
        };
        builders::team_of(&self.client, "waits", narrowed).await?;
        let (namespace, gang) = (TIERED.namespace, TIERED.gang());
        gangs::wait_for_reason(&self.client, namespace, &gang, Reason::TierNotAllowed).await?;
        TIERED.create_labelled_pod(&self.client, &spec, 1).await?;
        Ok(())
    }

    async fn for_a_stopped_team(&mut self) -> Result<()> {
        let stopped = TeamSpec {
            stop: Stop::Hold,
            ..strict()
        };
        team(&self.client, "held", stopped).await?;
        let spec = self.note(&HELD, Reason::TeamStopped, &["stopped"]).await?;
        HELD.create_labelled_pods(&self.client, &spec).await
    }

    async fn for_a_quota_of_gpus(&mut self) -> Result<()> {
        let of_cpu = TeamSpec {
            quota: vec![cpu_quota()],
            ..strict()
        };
        team(&self.client, "unnamed", of_cpu).await?;
        let says = &["gpus", "fabric"];
        let spec = self
            .note(&UNNAMED, Reason::NoQuotaForResource, says)
            .await?;
        UNNAMED.create_labelled_pods(&self.client, &spec).await
    }

    async fn for_a_team(&mut self) -> Result<()> {
        builders::namespace(&self.client, "nobody", None).await?;
        let says = &["namespace nobody", keys::TEAM];
        let spec = self.note(&TEAMLESS, Reason::NoTeam, says).await?;
        TEAMLESS.create_labelled_pods(&self.client, &spec).await
    }

    /// Two gangs name one claim; returns what the one runs that has it.
    async fn for_a_claim(&mut self) -> Result<RankProgram> {
        let claims = Api::namespaced(self.client.clone(), HOLDER.namespace);
        kubernetes::create(&claims, &builders::claim("shared", 1)?).await?;
        let (holder, spec) = HOLDER.prepare_with_claim(self.cluster, "shared").await?;
        HOLDER.create_labelled_pods(&self.client, &spec).await?;
        gangs::wait_until_running(&self.client, HOLDER.namespace, &HOLDER.gang()).await?;
        let (ranks, spec) = SHARER.prepare_with_claim(self.cluster, "shared").await?;
        SHARER.create_labelled_pods(&self.client, &spec).await?;
        self.started.push(ranks);
        let waiting = Waiting::new(&SHARER, Reason::ClaimShared, &["group-holder"]);
        self.waiting.push(waiting);
        Ok(holder)
    }

    /// All but the claim, which the gang that has it gives back by ending.
    async fn end_all(&self) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.tenant.clone(), GATED.namespace);
        let ours_alone = json!({"spec": {"schedulingGates": [{"name": keys::ADMISSION_GATE}]}});
        merge(&pods, "gated-0", &ours_alone).await?;
        patch_gang(&self.tenant, &SUSPENDED, &json!({"suspend": false})).await?;
        patch_gang(&self.tenant, &TIERED, &json!({"tier": "standard"})).await?;
        builders::team_of(&self.client, "held", strict()).await?;
        builders::team_of(&self.client, "unnamed", strict()).await?;
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let into_team = json!({"metadata": {"labels": {keys::TEAM: "waits"}}});
        merge(&namespaces, TEAMLESS.namespace, &into_team).await
    }
}

/// A quota that names the flavor, and of it no GPUs.
fn cpu_quota() -> FlavorQuota {
    let mut quota = gpu_quota("fabric", 64, None);
    for resource in &mut quota.resources {
        "cpu".clone_into(&mut resource.name);
    }
    quota
}

/// What a user with `edit` may change of the workload's Gang, once there is one.
async fn patch_gang(tenant: &Client, workload: &Workload<'_>, spec: &Value) -> Result<()> {
    let what = format!("there is a gang {}", workload.gang());
    let name = eventually(&what, LIMIT, async || {
        let gang = gangs::find(tenant, workload.namespace, &workload.gang()).await?;
        let name = gang.and_then(|gang| gang.metadata.name);
        Ok(name.map_or_else(|| Progress::NotYet("none".to_owned()), Progress::Done))
    })
    .await?;
    let gangs: Api<Gang> = Api::namespaced(tenant.clone(), workload.namespace);
    merge(&gangs, &name, &json!({"spec": spec})).await
}

async fn merge<K>(api: &Api<K>, name: &str, patch: &Value) -> Result<()>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .with_context(|| format!("patching {name} with {patch}"))
        .map(drop)
}
