//! A gang as users write it: an Indexed Job whose ranks find each other by name.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{Api, ResourceExt, api::ListParams};
use muster_tests::{
    containers::{Lab, operator, operator::TEAM_NAMESPACE, workload},
    kubernetes::{LIMIT, Progress, eventually},
};

use crate::GPU_MACHINES;

/// Two ranks with all GPUs of a node each. Rank 0 serves; the other one finds it by the Service's name, and each says what
/// it heard.
const MANIFEST: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: ranks}
spec: {clusterIP: None, selector: {job-name: ranks}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: all-of-a-node}
spec:
  spec:
    devices:
      requests: [{name: gpus, exactly: {deviceClassName: gpu.muster.dev, count: 8}}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: ranks}
spec:
  completionMode: Indexed
  completions: 2
  parallelism: 2
  backoffLimit: 0
  template:
    spec:
      subdomain: ranks
      restartPolicy: Never
      resourceClaims: [{name: gpus, resourceClaimTemplateName: all-of-a-node}]
      containers:
      - name: rank
        image: localhost/workload:1
        resources: {claims: [{name: gpus}]}
        env:
        - name: RANK
          valueFrom: {fieldRef: {fieldPath: "metadata.annotations['muster.dev/rank']"}}
        command: [/bin/sh, -euc]
        args:
        - |
          cuda-devices
          if [ "$RANK" = 0 ]; then
            echo "this is rank 0" | nc -l -p 29500 >/tmp/heard
          else
            until echo "this is rank 1" | nc ranks-0.ranks 29500 >/tmp/heard; do sleep 1; done
          fi
          echo "rank $RANK heard: $(cat /tmp/heard)"
          grep -q "this is rank $((1 - RANK))" /tmp/heard
"#;

pub(crate) async fn ranks_of_a_job_on_two_nodes_meet_over_the_pod_network(
    lab: &mut Lab,
) -> Result<()> {
    operator::apply(lab, "gang", MANIFEST, Some(TEAM_NAMESPACE)).await?;
    let client = lab.client();
    let jobs: Api<Job> = Api::namespaced(client.clone(), TEAM_NAMESPACE);
    eventually("the Job is complete", LIMIT * 2, async || {
        let status = jobs.get("ranks").await?.status.unwrap_or_default();
        if status.failed.unwrap_or_default() > 0 {
            return Ok(Progress::Never(anyhow::anyhow!(
                "a rank failed: {status:?}"
            )));
        }
        Ok(Progress::when(status.succeeded == Some(2), || {
            format!("{status:?}")
        }))
    })
    .await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), TEAM_NAMESPACE);
    let of_job = ListParams::default().labels("job-name=ranks");
    let ranks = pods.list(&of_job).await?.items;
    let nodes: BTreeSet<String> = ranks
        .iter()
        .filter_map(|pod| pod.spec.as_ref()?.node_name.clone())
        .collect();
    ensure!(
        nodes == BTreeSet::from(GPU_MACHINES.map(str::to_owned)),
        "the ranks ran on {nodes:?}"
    );
    for pod in &ranks {
        let rank = pod.annotations().get("muster.dev/rank");
        let rank = rank.context("a pod without a rank")?;
        let log = workload::log(&client, TEAM_NAMESPACE, &pod.name_any(), "rank").await?;
        let all: Vec<String> = (0..8).map(|gpu| format!("GPU {gpu}")).collect();
        ensure!(
            log.contains(&format!("cuda: {}\n", all.join(", "))),
            "{log}"
        );
        let other = i32::from(rank == "0");
        let heard = format!("rank {rank} heard: this is rank {other}");
        ensure!(log.contains(&heard), "rank {rank} says: {log}");
    }
    lab.kubectl(&[
        "delete",
        "job,service,resourceclaimtemplate",
        "ranks",
        "all-of-a-node",
        "--ignore-not-found",
        "--namespace",
        TEAM_NAMESPACE,
    ])
    .await?;
    workload::all_gone(&client, TEAM_NAMESPACE).await
}
