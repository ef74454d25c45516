//! A node of the gang is no more: its kubelet, its container runtime and its driver end, and with the runtime all that ran there.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt};
use muster_api::NodeDevices;

use super::{
    Bench, RUN_LIMIT,
    gang::{self, Behaviour, NAMESPACE, RANKS},
    report::NodeLossReport,
    seconds,
};
use crate::{
    cluster::Cluster,
    kubernetes::{Progress, eventually, list},
    node::NodePart,
    scale::Percentiles,
};

/// Longest time until a node is as it was: its kubelet looks once a minute at pods that are gone.
const BACK_LIMIT: Duration = Duration::from_mins(5);
/// In the order in which they end: a kubelet must not tell any more what became of its containers.
const PARTS: [NodePart; 3] = [NodePart::Kubelet, NodePart::Runtime, NodePart::Driver];

/// What the ranks on other nodes do once they have lost their peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RanksElsewhere {
    /// They hang: nothing tells of the loss but that the kubelet is silent.
    Hang,
    /// They fail, as with a collective library that notices.
    Fail,
}

impl RanksElsewhere {
    fn word(self) -> &'static str {
        match self {
            Self::Hang => "hang",
            Self::Fail => "fail",
        }
    }
}

impl<Say: Fn(&str)> Bench<'_, Say> {
    /// Takes so many nodes away, one after another.
    pub(super) async fn measure_node_losses(
        &mut self,
        elsewhere: RanksElsewhere,
        runs: u32,
    ) -> Result<NodeLossReport> {
        let word = elsewhere.word();
        self.say(&format!("a node is lost, the ranks elsewhere {word}"));
        let began = Instant::now();
        let (mut intents, mut running, mut partial) = (Vec::new(), Vec::new(), 0);
        for run in 0..runs {
            let context = || format!("a node is lost, ranks {word}, run {} of {runs}", run + 1);
            let lost = self.run_node_loss(elsewhere, run).await;
            let (intent, whole, is_mixed) = lost.with_context(context)?;
            self.say(&format!(
                "{}: intent {intent:.1} s, all running {whole:.1} s",
                context()
            ));
            intents.push(intent);
            running.push(whole);
            partial += usize::from(is_mixed);
        }
        self.ensure_all_was_seen()?;
        Ok(NodeLossReport {
            runs: running.len(),
            ranks_elsewhere: word,
            node_loss_to_intent_seconds: Percentiles::of(intents),
            node_loss_to_running_seconds: Percentiles::of(running),
            wrong_restarts: self.wrong_since(began),
            partial_restarts: partial,
        })
    }

    /// One loss: seconds to the intent and to all running, and whether old and new pods were mixed.
    async fn run_node_loss(
        &mut self,
        elsewhere: RanksElsewhere,
        run: u32,
    ) -> Result<(f64, f64, bool)> {
        let behaviour = Behaviour {
            takes_grace: true,
            dies_with_gpu: false,
            hangs_when_lost: elsewhere == RanksElsewhere::Hang,
        };
        let (gang, before) = self.start_gang("lost", behaviour).await?;
        let node = gang.node_of(run % RANKS)?;
        let on_node = self.watched.ask(|seen| seen.gangs_on(&node));
        self.meant.extend(on_node);

        let began = Instant::now();
        take_away(self.cluster, &node)?;
        let what = format!("gang {} runs whole without node {node}", before.gang);
        let (intent, again) = eventually(&what, RUN_LIMIT, async || {
            let evicted = (before.gang.clone(), before.attempt);
            let (intent, again) = self.watched.ask(|seen| {
                let size = RANKS as usize;
                let whole = seen.whole_after(&before.gang, before.attempt, size);
                (seen.evicted.get(&evicted).copied(), whole)
            });
            Ok(match (intent, again) {
                (Some(intent), Some(again)) => Progress::Done((intent, again)),
                other => Progress::NotYet(format!("{other:?}")),
            })
        })
        .await?;
        let lost = Some(node.as_str());
        let mixed = self.watched.ask(|seen| seen.mixed(&before, again, lost));
        let is_mixed = self.note_mixed(&before.gang, mixed);

        bring_back(self.cluster, &node).await?;
        wait_until_as_before(&self.client, &node).await?;
        gang.finish(&self.client).await?;
        self.renew_bystander(&node).await?;
        Ok((seconds(began, intent), seconds(began, again.1), is_mixed))
    }

    /// The gang of one pod that was on the node went with it: another one takes its place.
    pub(super) async fn renew_bystander(&mut self, node: &str) -> Result<()> {
        if let Some(job) = self.bystanders.remove(node) {
            gang::delete(&self.client, NAMESPACE, &job).await?;
        }
        self.start_bystander(node).await
    }
}

/// All programs of the node end at once.
pub(super) fn take_away(cluster: &mut Cluster, node: &str) -> Result<()> {
    let node = cluster.node(node)?;
    for part in PARTS {
        node.service(part)?.kill();
    }
    Ok(())
}

/// The machine is switched on again with what it has on its disk.
pub(super) async fn bring_back(cluster: &mut Cluster, name: &str) -> Result<()> {
    let node = cluster.node(name)?;
    node.service(NodePart::Runtime)?.start().await?;
    node.start_kubelet()?;
    node.start_driver()?;
    node.wait_for_driver().await?;
    let mut nodes = cluster.nodes.iter_mut();
    let node = nodes.find(|node| node.name() == name);
    let node = node.with_context(|| format!("the cluster has no node {name}"))?;
    node.wait_until_ready(&cluster.control_plane).await
}

/// Waits until the node counts, its driver has answered, and no pod or permit of what was there before is left.
async fn wait_until_as_before(client: &Client, node: &str) -> Result<()> {
    let devices: Api<NodeDevices> = Api::all(client.clone());
    let what = format!("node {node} is as it was");
    eventually(&what, BACK_LIMIT, async || {
        let object = devices.get(node).await?;
        let spec = &object.spec;
        let has_answered = object.status.as_ref().is_some_and(|status| {
            Some(&status.uid) == object.metadata.uid.as_ref()
                && Some(status.observed_generation) == object.metadata.generation
        });
        let withdrawn = spec.permits.iter().filter(|it| it.withdrawn).count();
        let pods: Vec<Pod> = list(client, Some(NAMESPACE)).await?;
        let ending: Vec<String> = pods
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_some())
            .map(ResourceExt::name_any)
            .collect();
        let is_so = has_answered
            && !spec.lost
            && !spec.awaits_driver
            && withdrawn == 0
            && ending.is_empty();
        Ok(Progress::when(is_so, || {
            format!(
                "lost: {}, awaits its driver: {}, has answered: {has_answered}, {withdrawn} permits are withdrawn, {ending:?} are ending",
                spec.lost, spec.awaits_driver
            )
        }))
    })
    .await
}
