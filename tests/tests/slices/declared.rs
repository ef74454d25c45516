//! A Team that has its pods say how much memory they need, or says it for those that do not.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt, api::PostParams};
use muster_api::{Quantity, Reason, TeamSpec, VramPolicy, keys};
use muster_tests::{
    builders::{self, gpu_quota},
    cluster::Cluster,
    kubernetes::{LIMIT, Progress, eventually},
    scenarios,
    suite::Scenario,
    workloads::Workload,
};

use crate::stage::{A30, H100, Single, on, prepare_team, wait_until_uncut};

/// A whole GPU, and no word about memory.
const SILENT: [(&str, &str); 1] = [(keys::GPUS, "1")];

pub(crate) fn scenarios() -> Vec<Scenario> {
    scenarios![a_team_refuses_pods_that_do_not_say_how_much_memory_they_need_or_says_it_for_them]
}

async fn a_team_refuses_pods_that_do_not_say_how_much_memory_they_need_or_says_it_for_them(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "declares").await?;
    let workload = Workload {
        namespace: "declares",
        name: "silent",
        ranks: 1,
        gpus: 0,
    };
    let (_, spec) = workload.prepare(cluster).await?;
    let silent = builders::pod("silent", &[], &SILENT, &spec)?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "declares");
    // The webhook hears of the Team's rule a moment later.
    let only_asked = PostParams {
        dry_run: true,
        ..PostParams::default()
    };

    rule(&client, VramPolicy::Required, None).await?;
    let refused = eventually("who says nothing is refused", LIMIT, async || {
        let reason = Reason::VramNotDeclared.to_string();
        Ok(match pods.create(&only_asked, &silent).await {
            Err(kube::Error::Api(status)) if status.message.contains(&reason) => {
                Progress::Done(status.message.clone())
            }
            other => Progress::NotYet(format!("{other:?}")),
        })
    })
    .await?;
    for there_is in ["NVIDIA H100", "NVIDIA A100", "slices of"] {
        ensure!(refused.contains(there_is), "{there_is}: {refused}");
    }
    let least = [(keys::VRAM, "6Gi")];
    let says = Single::create(cluster, "declares", "says", &least, on(A30)).await?;
    let given = says.runs_on_one(cluster).await?;
    ensure!(given.device.contains("-mig-1g6gb-"), "{given:?}");
    says.finishes(&client, &[given]).await?;

    rule(&client, VramPolicy::Default, Some("80Gi".into())).await?;
    eventually("it is said for who says nothing", LIMIT, async || {
        let pod = pods.create(&only_asked, &silent).await?;
        let said = pod.annotations().get(keys::VRAM).cloned();
        Ok(Progress::when(said.as_deref() == Some("80Gi"), || {
            format!("{said:?}")
        }))
    })
    .await?;
    // On `bridged`, whose GPUs have half of it, there is room, too.
    let quiet = Single::create(cluster, "declares", "quiet", &SILENT, |spec| spec).await?;
    let given = quiet.runs_on_one(cluster).await?;
    ensure!(
        given.node == H100 && !given.device.contains("-mig-"),
        "{given:?}"
    );
    quiet.finishes(&client, &[given]).await?;
    wait_until_uncut(cluster, A30).await
}

/// What the Team has pods say from now on.
async fn rule(client: &Client, vram: VramPolicy, vram_default: Option<Quantity>) -> Result<()> {
    let spec = TeamSpec {
        quota: vec![gpu_quota("gpus", 8, None)],
        vram,
        vram_default,
        ..TeamSpec::default()
    };
    builders::team_of(client, "declares", spec).await
}
