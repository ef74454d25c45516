//! A training of 16 GPUs on quota that another Team lends: it is told, saves its work, goes at that checkpoint, and goes on from
//! there when the GPUs are idle again.

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use muster_api::{Reason, TierPreemption, keys};
use muster_tests::{
    builders::{in_tier, indexed_job, tier, told_of_its_end},
    cluster::Cluster,
    gangs,
    kubernetes::{self, LIMIT, Progress, eventually},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};
use serde_json::json;

use super::{prepare_teams, wait_for_notice, wait_until_pods_are_told};
use crate::evictions::wait_for_eviction;

pub(super) fn scenarios() -> Vec<Scenario> {
    scenarios![a_training_gives_way_to_inference_at_its_checkpoint_and_goes_on_from_there]
}

/// Far longer than the scenario: it is the checkpoint that ends it.
const NOTICE_SECONDS: i64 = 240;
/// Within how many seconds of its checkpoint the gang is gone.
const SOON_SECONDS: i64 = 60;
/// Steps before inference comes: the four hours of training, shortened to some seconds.
const STEPS: u32 = 30;
/// Steps from one of its regular checkpoints to the next: so long that the one for the notice is another.
const CHECKPOINT_STEPS: u32 = 15;

async fn a_training_gives_way_to_inference_at_its_checkpoint_and_goes_on_from_there(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    let after_checkpoint = TierPreemption::AfterCheckpoint;
    tier(&client, "saves", 50, after_checkpoint, Some(NOTICE_SECONDS)).await?;
    let teams = [("training", 8), ("inference", 8)];
    prepare_teams(&client, "works", teams, "saves").await?;
    let train = Workload {
        namespace: "training",
        name: "train",
        ranks: 2,
        gpus: 8,
    };
    let (train_ranks, _) = train.prepare(cluster).await?;
    let train_ranks = train_ranks.with_checkpoints(CHECKPOINT_STEPS);
    let spec = told_of_its_end(train.pod_spec(&client, &train_ranks).await?)?;
    let job = in_tier(indexed_job("train", 2, &[], &spec)?, "saves");
    kubernetes::create(&Api::namespaced(client.clone(), "training"), &job).await?;
    let training = gangs::of_job("train");
    let gang = gangs::wait_until_running(&client, "training", &training).await?;
    let queued_at = gang
        .status
        .context("a status")?
        .queued_at
        .context("its age")?;
    eventually("it has trained for some steps", LIMIT, async || {
        let steps = train_ranks.checkpointed_steps();
        Ok(Progress::when(steps >= STEPS, || format!("{steps} steps")))
    })
    .await?;

    let serve = Workload {
        namespace: "inference",
        name: "serve",
        ranks: 2,
        gpus: 4,
    };
    let serve_ranks = serve.submit_job(cluster, &[]).await?;
    let notice = wait_for_notice(&client, "training", &training).await?;
    wait_until_pods_are_told(&client, "training", &training, &notice, 2).await?;
    eventually("the training has saved its work", LIMIT, async || {
        let saved_for = train_ranks.saved_for();
        let is_saved = saved_for == Some(notice.preempt_at.0);
        Ok(Progress::when(is_saved, || format!("for {saved_for:?}")))
    })
    .await?;
    let told_at = train_ranks.checkpointed_steps();
    say_that_it_is_saved(&client, &training).await?;
    let (_, eviction) =
        wait_for_eviction(&client, "training", &training, Reason::Preempted).await?;
    let lasted = eviction.at.0.as_second() - notice.noticed_at.0.as_second();
    ensure!(
        lasted < SOON_SECONDS,
        "it was saved, and went after {lasted} s"
    );
    let serving = gangs::of_job("serve");
    gangs::wait_until_running(&client, "inference", &serving).await?;
    gangs::wait_for_reason(&client, "training", &training, Reason::WaitingForQuota).await?;
    let saved = train_ranks.checkpointed_steps();

    serve_ranks.finish()?;
    gangs::wait_for_job(&client, "inference", "serve").await?;
    let again = gangs::wait_until_running_again(&client, "training", &training, 2).await?;
    let status = again.status.context("a status")?;
    ensure!(status.queued_at == Some(queued_at), "it lost its age");
    train_ranks.finish()?;
    gangs::wait_for_job(&client, "training", "train").await?;
    train_ranks.ensure_all_met()?;
    for (rank, result) in train_ranks.results()? {
        ensure!(
            result["resumedAt"] == saved && saved >= told_at && told_at >= STEPS,
            "rank {rank} did not go on from step {saved}: {result}"
        );
    }
    Ok(())
}

/// What the workload, or whatever looks after its checkpoints, tells the cluster, by a clock that is an hour behind: what counts is that its pods say so after they
/// were told.
async fn say_that_it_is_saved(client: &Client, beginning: &str) -> Result<()> {
    let gang = gangs::find(client, "training", beginning).await?;
    let gang = gang.context("there is no such Gang")?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "training");
    let now = Timestamp::now() - SignedDuration::from_hours(1);
    let patch = json!({"metadata": {"annotations": {keys::CHECKPOINTED_AT: now.to_string()}}});
    for pod in gangs::pods(client, &gang).await?.into_values() {
        let patch = Patch::Merge(&patch);
        pods.patch(&pod.name_any(), &PatchParams::default(), &patch)
            .await?;
    }
    Ok(())
}
