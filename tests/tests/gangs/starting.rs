//! Gangs from their pods to their end, however they are declared.

use std::time::Instant;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use muster_api::Reason;
use muster_tests::{
    builders::{self, RankProgram},
    cluster::Cluster,
    gangs, kubernetes, scenarios,
    suite::Scenario,
    workloads::Workload,
};

use crate::stage::{allocated_gpus, prepare_team, ranks_got_what_was_allocated};

pub(crate) fn scenarios() -> Vec<Scenario> {
    scenarios![
        a_pod_that_declares_nothing_but_a_gpu_is_a_gang_of_one,
        pods_with_a_gang_label_start_together,
        a_launcher_without_gpus_starts_together_with_its_workers,
        ten_gangs_that_are_created_at_once_all_start,
    ]
}

async fn a_pod_that_declares_nothing_but_a_gpu_is_a_gang_of_one(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "one", "fabric", 8).await?;
    let workload = Workload {
        namespace: "one",
        name: "alone",
        ranks: 1,
        gpus: 1,
    };
    let (ranks, spec) = workload.prepare(cluster).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "one");
    kubernetes::create(&pods, &builders::pod("alone", &[], &[], &spec)?).await?;
    let gang = gangs::wait_until_running(&client, "one", &gangs::of_pod("alone")).await?;
    ensure!(gang.spec.size == 1, "its size is {}", gang.spec.size);
    ensure!(gangs::charged(&client).await?.get("one") == Some(&1000));
    let allocated = allocated_gpus(cluster, &gang).await?;
    ranks.finish()?;
    gangs::wait_until_finished(&client, "one", &gangs::of_pod("alone")).await?;
    ranks_got_what_was_allocated(&ranks, &allocated, &[1])
}

async fn pods_with_a_gang_label_start_together(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "labelled", "fabric", 16).await?;
    let workload = Workload {
        namespace: "labelled",
        name: "pair",
        ranks: 2,
        gpus: 8,
    };
    let (ranks, spec) = workload.prepare(cluster).await?;
    workload.create_labelled_pod(&client, &spec, 0).await?;
    let gang = workload.gang();
    gangs::wait_for_reason(&client, "labelled", &gang, Reason::MissingPods).await?;
    workload.create_labelled_pod(&client, &spec, 1).await?;
    let running = gangs::wait_until_running(&client, "labelled", &gang).await?;
    let allocated = allocated_gpus(cluster, &running).await?;
    ranks.finish()?;
    gangs::wait_until_finished(&client, "labelled", &gang).await?;
    ranks_got_what_was_allocated(&ranks, &allocated, &[8, 8])
}

async fn a_launcher_without_gpus_starts_together_with_its_workers(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "launch", "fabric", 8).await?;
    let workers = Workload {
        namespace: "launch",
        name: "mpi",
        ranks: 3,
        gpus: 4,
    };
    let launcher = Workload { gpus: 0, ..workers };
    let (ranks, worker_spec) = workers.prepare(cluster).await?;
    let launcher_spec = launcher.pod_spec(&client, &ranks).await?;
    launcher
        .create_labelled_pod(&client, &launcher_spec, 0)
        .await?;
    workers
        .create_labelled_pod(&client, &worker_spec, 1)
        .await?;
    let gang = workers.gang();
    gangs::wait_for_reason(&client, "launch", &gang, Reason::MissingPods).await?;
    workers
        .create_labelled_pod(&client, &worker_spec, 2)
        .await?;
    let running = gangs::wait_until_running(&client, "launch", &gang).await?;
    let allocated = allocated_gpus(cluster, &running).await?;
    ranks.finish()?;
    gangs::wait_until_finished(&client, "launch", &gang).await?;
    ranks_got_what_was_allocated(&ranks, &allocated, &[0, 4, 4])
}

/// Measures, too: the time from the creation of the Jobs until all their pods run.
async fn ten_gangs_that_are_created_at_once_all_start(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "ten", "fabric", 32).await?;
    let (mut programs, mut allocated) = (Vec::new(), Vec::new());
    for (first, count) in [(0, 1), (1, 10)] {
        let names: Vec<String> = (first..first + count)
            .map(|number| format!("job{number}"))
            .collect();
        let began = Instant::now();
        for name in &names {
            let workload = Workload {
                namespace: "ten",
                name,
                ranks: 2,
                gpus: 1,
            };
            programs.push(workload.submit_job(cluster, &[]).await?);
        }
        let mut running = Vec::new();
        for name in &names {
            running.push(gangs::wait_until_running(&client, "ten", &gangs::of_job(name)).await?);
        }
        eprintln!(
            "measured: {count} gangs of 2 pods run {:.2} s after their creation",
            began.elapsed().as_secs_f64()
        );
        for gang in &running {
            allocated.push(allocated_gpus(cluster, gang).await?);
        }
    }
    programs.iter().try_for_each(RankProgram::finish)?;
    for number in 0..programs.len() {
        gangs::wait_for_job(&client, "ten", &format!("job{number}")).await?;
    }
    for (ranks, allocated) in programs.iter().zip(&allocated) {
        ranks_got_what_was_allocated(ranks, allocated, &[1, 1])?;
    }
    Ok(())
}
