//! The act in which a GPU breaks.

use std::time::Instant;

use anyhow::{Context, Result};

use super::{
    Play,
    cast::Roles,
    observation::{Observation, Seen, tenths},
    report::FaultReport,
};
use crate::{
    cluster::Cluster,
    faults::{Fault, TargetGpu},
    gangs,
};

/// Two bits of the GPU's memory are wrong: what computes on it is lost, and it has to be reset.
const XID: u32 = 48;
/// The gang of which a GPU breaks.
const GANG: (&str, &str) = ("product", "sweep");
/// The gang of one pod that takes the seven other GPUs of the node.
const BESIDE: (&str, &str) = ("research", "seven");

impl<Say: Fn(&str)> Play<Say> {
    /// One GPU of the gang breaks; the gang runs again elsewhere, and the other seven GPUs of the node are used meanwhile. Then the GPU is
    /// mended.
    pub(super) async fn one_gpu_breaks(
        &mut self,
        cluster: &Cluster,
        roles: &Roles<'_>,
    ) -> Result<FaultReport> {
        let (team, name) = GANG;
        let gpu = first_gpu_of_gang(cluster).await?;
        let (node, device) = (gpu.node.clone(), gpu.device.clone());
        let before = seen(&self.observation, GANG)?.clone();

        self.say(&format!(
            "{device} of {node}, which {team}/{name} runs on, breaks: XID {XID}, as NVML tells it"
        ));
        let broke = gpu.inject(Fault::Xid(XID))?;
        self.until("the GPU is tainted", |seen| {
            seen.fault_of(&node, &device).is_some()
        })
        .await?;
        let (taint, tainted_at) = self
            .observation
            .fault_of(&node, &device)
            .map(|(taint, since)| (taint.to_owned(), since))
            .context("the taint that was just seen")?;
        let what = format!("{team}/{name} is evicted");
        self.until(&what, |seen| seen.is_evicted(team, name))
            .await?;
        let evicted_at = seen(&self.observation, GANG)?.evicted_since;

        let (team_beside, name_beside) = BESIDE;
        self.say(&format!(
            "{team_beside} submits {name_beside}: 7 GPUs of {node}, beside the one that is broken"
        ));
        roles
            .submit_beside(team_beside, name_beside, &node, 300)
            .await?;
        let what = format!("{team}/{name} runs again");
        self.until(&what, |seen| seen.is_running_again(team, name))
            .await?;
        let running_at = Instant::now();
        self.until_running(team_beside, name_beside).await?;
        let now = seen(&self.observation, GANG)?.clone();
        let beside = seen(&self.observation, BESIDE)?.clone();

        self.say(&format!(
            "{device} of {node} is reset, and an administrator says that it is mended"
        ));
        gpu.clear(cluster).await?;
        self.until("the taint is gone", |seen| {
            seen.fault_of(&node, &device).is_none()
        })
        .await?;

        let since = |at: Instant| tenths(at.saturating_duration_since(broke));
        Ok(FaultReport {
            xid: XID,
            gang: format!("{team}/{name}"),
            node,
            device,
            gpu: gpu.uuid,
            taint,
            taint_seconds: since(tainted_at),
            eviction_seconds: since(evicted_at.context("the eviction that was just seen")?),
            running_seconds: since(running_at),
            nodes_before: before.nodes_now.into_iter().collect(),
            nodes_now: now.nodes_now.into_iter().collect(),
            has_kept_its_place: before.queued_at.is_some() && before.queued_at == now.queued_at,
            beside: format!("{team_beside}/{name_beside}"),
            gpus_beside: beside.gpus.into_iter().collect(),
        })
    }
}

/// A GPU of the gang's first rank.
async fn first_gpu_of_gang(cluster: &Cluster) -> Result<TargetGpu> {
    let (team, name) = GANG;
    let gang = gangs::find(&cluster.client(), team, &gangs::of_job(name)).await?;
    let gang = gang.with_context(|| format!("there is no Gang of {team}/{name}"))?;
    let held = TargetGpu::held_by(cluster, &gang).await?;
    let gpu = held.into_values().flatten().next();
    gpu.with_context(|| format!("{team}/{name} holds no GPU"))
}

fn seen<'a>(observation: &'a Observation, gang: (&str, &str)) -> Result<&'a Seen> {
    let (team, name) = gang;
    let seen = observation.seen(team, name);
    seen.with_context(|| format!("{team}/{name} was never seen"))
}
