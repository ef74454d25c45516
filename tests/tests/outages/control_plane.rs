//! The API server and etcd crash under gangs that run. The observer misses nothing meanwhile: it reads etcd, and fails
//! a scenario in which it has missed a revision.

use anyhow::{Result, ensure};
use muster_tests::{
    builders,
    cluster::{Cluster, Program},
    control_plane::ControlPlanePart,
    gangs,
    install::Part,
    scenarios,
    suite::Scenario,
    workloads::Workload,
};

pub(crate) fn scenarios() -> Vec<Scenario> {
    let scenarios = scenarios![gangs_run_and_start_over_crashes_of_the_api_server_and_of_etcd];
    let scenarios = scenarios.into_iter();
    scenarios.map(Scenario::with_outages).collect()
}

async fn gangs_run_and_start_over_crashes_of_the_api_server_and_of_etcd(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    builders::team_of_sixteen(&client, "crashes").await?;
    for (number, part) in [ControlPlanePart::ApiServer, ControlPlanePart::Etcd]
        .into_iter()
        .enumerate()
    {
        let [before, after] = ["before", "after"].map(|word| format!("{word}-{number}"));
        let [before, after] = [&before, &after].map(|name| Workload {
            namespace: "crashes",
            name,
            ranks: 2,
            gpus: 4,
        });
        let ran_before = before.submit_job(cluster, &[]).await?;
        let gang = gangs::of_job(before.name);
        gangs::wait_until_running(&client, "crashes", &gang).await?;
        let containers = gangs_containers(cluster)?;

        crash(cluster, part).await?;
        let ran_after = after.submit_job(cluster, &[]).await?;
        let gang = gangs::of_job(after.name);
        gangs::wait_until_running(&client, "crashes", &gang).await?;
        ensure!(
            gangs_containers(cluster)? >= containers,
            "a container ended during the crash of {part:?}"
        );
        for (workload, ranks) in [(before, ran_before), (after, ran_after)] {
            ranks.finish()?;
            gangs::wait_for_job(&client, "crashes", workload.name).await?;
            ranks.ensure_all_met()?;
        }
    }
    Ok(())
}

/// Kills a program and starts it again. A controller that could not renew its lease meanwhile has ended by rule, and is
/// started again as a kubelet would start it.
async fn crash(cluster: &mut Cluster, part: ControlPlanePart) -> Result<()> {
    if let Some(observer) = cluster.observer() {
        observer.suspend_bounds(true);
        observer.outage_begins().await?;
    }
    let program = Program::ControlPlane(part);
    cluster.service(program)?.kill();
    cluster.service(program)?.start().await?;
    // An API server answers again once its etcd does.
    let api_server = Program::ControlPlane(ControlPlanePart::ApiServer);
    cluster.service(api_server)?.wait_until_ready().await?;
    cluster.installation()?.start(Part::Controller).await?;
    if let Some(observer) = cluster.observer() {
        observer.outage_is_over().await?;
        observer.suspend_bounds(false);
    }
    Ok(())
}

/// How many containers run, by the runtimes' records.
fn gangs_containers(cluster: &Cluster) -> Result<usize> {
    let mut running = 0_usize;
    for node in &cluster.nodes {
        for line in std::fs::read_to_string(node.record())?.lines() {
            let line: serde_json::Value = serde_json::from_str(line)?;
            if line["podNamespace"] == "crashes" {
                let has_started = line["event"] == "started";
                running = if has_started {
                    running + 1
                } else {
                    running.saturating_sub(1)
                };
            }
        }
    }
    Ok(running)
}
