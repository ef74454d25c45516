//! A node of the gang is no more: its kubelet, its container runtime and its driver end, and with the runtime all that ran there.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt};
use muster_api::NodeDevices;

use super::{
    Bench, RUN_LIMIT,
    aftermath::LATE,
    gang::{self, Behaviour, NAMESPACE, RANKS, Running},
    in_vain::InVain,
    report::NodeLossReport,
    restarts::Before,
    seconds,
    times::{Counts, NodeLossTimes},
};
use crate::{
    cluster::Cluster,
    failure_report,
    kubernetes::{Progress, eventually, list},
    node::NodePart,
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

/// A gang that runs, and the node of it that is to be lost.
#[derive(Debug)]
struct Ready {
    gang: Running,
    before: Before,
    node: String,
}

/// What came of a loss.
#[derive(Clone, Copy, Debug)]
struct Lost {
    times: NodeLossTimes,
    /// The attempt in which the gang was whole again, if it was.
    again: Option<i64>,
    /// Whether old and new pods were mixed.
    is_mixed: bool,
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
    /// Takes so many nodes away, one after another. `keep` gets what was measured after each, with what was found meanwhile. An error: a node did not come
    /// back, nothing could be cleared away, or no gang came back, too often in a row.
    pub(super) async fn measure_node_losses(
        &mut self,
        elsewhere: RanksElsewhere,
        runs: u32,
        keep: impl Fn(NodeLossReport, &[String]) -> Result<()>,
    ) -> Result<NodeLossReport> {
        let word = elsewhere.word();
        self.say(&format!("a node is lost, the ranks elsewhere {word}"));
        let (began, gaps) = (Instant::now(), self.gaps());
        let (mut times, mut counts): (Vec<NodeLossTimes>, _) = (Vec::new(), Counts::default());
        let mut in_vain = InVain::default();
        for run in 0..runs {
            let what = format!("a node is lost, ranks {word}, run {} of {runs}", run + 1);
            let back = times.iter().filter(|it| is_back(it)).count();
            let ended = self
                .run_node_loss(elsewhere, run, &what, &mut times, &mut counts)
                .await;
            self.note_observed();
            let mut findings = self.wrong_since(began);
            let counts = counts.with_wrong(findings.len());
            findings.extend_from_slice(&self.findings);
            keep(NodeLossReport::of(word, &times, counts), &findings)?;
            ended.with_context(|| format!("{what}: clearing up"))?;
            let came_back = times.iter().filter(|it| is_back(it)).count() > back;
            let last = self.findings.last().map_or("", String::as_str);
            in_vain.note(came_back, &format!("a node is lost, ranks {word}"), last)?;
        }
        self.note_gaps(gaps);
        let wrong = self.wrong_since(began);
        let counts = counts.with_wrong(wrong.len());
        self.findings.extend(wrong);
        Ok(NodeLossReport::of(word, &times, counts))
    }

    /// One loss, and the node is back. What was measured is noted before anything is put in order. An error: that cannot be done.
    async fn run_node_loss(
        &mut self,
        elsewhere: RanksElsewhere,
        run: u32,
        name: &str,
        times: &mut Vec<NodeLossTimes>,
        counts: &mut Counts,
    ) -> Result<()> {
        let gaps = self.gaps();
        let job = self.new_job("lost");
        let ready = match self.get_ready_to_lose(elsewhere, run, &job).await {
            Ok(ready) => ready,
            Err(error) => {
                failure_report::write(self.cluster, &job).await;
                counts.unmeasured += 1;
                self.note_for_later(format!(
                    "UNMEASURED: {name}, Job {job}: it did not start: {error:#}"
                ));
                // What is cleared away is no restart.
                let of_job = format!("{NAMESPACE}/{job}");
                let gangs = self.watched.ask(|seen| seen.gangs_of_job(&of_job));
                let now = Instant::now();
                for gang in &gangs {
                    if self.watched.ask(|seen| seen.evicted_before(gang, now)) {
                        counts.wrong += 1;
                        self.findings.push(format!(
                            "WRONG: gang {gang} was evicted before its node was lost"
                        ));
                    }
                }
                self.meant.extend(gangs);
                return gang::delete(&self.client, NAMESPACE, &job).await;
            }
        };
        let lost = self.lose_node(&ready, name).await?;
        if self.gaps() == gaps {
            self.say(&format!("{name}: {}", lost.times));
            times.push(lost.times);
            counts.partial += usize::from(lost.is_mixed);
        } else {
            counts.unmeasured += 1;
            let finding = format!("UNMEASURED: {name}: a watch had to list anew");
            self.say(&finding);
            self.findings.push(finding);
        }
        let is_restarted_again = self.put_in_order(&ready, lost.again, name).await?;
        counts.wrong += usize::from(is_restarted_again);
        Ok(())
    }

    /// Starts a gang, and finds the node of it that is to be lost: that of another rank in each run.
    async fn get_ready_to_lose(
        &self,
        elsewhere: RanksElsewhere,
        run: u32,
        job: &str,
    ) -> Result<Ready> {
        let behaviour = Behaviour {
            takes_grace: true,
            dies_with_gpu: false,
            hangs_when_lost: elsewhere == RanksElsewhere::Hang,
        };
        let (gang, before) = self.start_gang(job, behaviour).await?;
        let node = gang.node_of(run % RANKS)?;
        Ok(Ready { gang, before, node })
    }

    /// Takes the node away, and waits until the gang runs whole without it, or too long.
    async fn lose_node(&mut self, ready: &Ready, name: &str) -> Result<Lost> {
        let Ready { gang, before, node } = ready;
        let on_node = self.watched.ask(|seen| seen.gangs_on(node));
        self.meant.extend(on_node);

        self.suspend_observer(true);
        let began = Instant::now();
        take_away(self.cluster, node)?;
        let what = format!("gang {} runs whole without node {node}", before.gang);
        let look = || {
            let evicted = (before.gang.clone(), before.attempt);
            self.watched.ask(|seen| {
                let size = RANKS as usize;
                let whole = seen.whole_after(&before.gang, before.attempt, size);
                (seen.evicted.get(&evicted).copied(), whole)
            })
        };
        let waited = eventually(&what, RUN_LIMIT, async || {
            let (intent, again) = look();
            if intent.is_none() && again.is_some_and(|(_, at)| at.elapsed() >= LATE) {
                return Ok(Progress::Never(anyhow!(
                    "it runs for {} s, and no eviction was seen: {again:?}",
                    LATE.as_secs()
                )));
            }
            Ok(Progress::when(intent.is_some() && again.is_some(), || {
                format!("{:?}", (intent, again))
            }))
        })
        .await;
        let (intent, again) = look();
        if let Err(error) = waited {
            failure_report::write(self.cluster, &gang.job).await;
            self.note_for_later(format!("UNFINISHED: {name}, Job {}: {error:#}", gang.job));
        }
        let mut is_mixed = false;
        if let Some(again) = again {
            let lost = Some(node.as_str());
            let mixed = self.watched.ask(|seen| seen.mixed(before, again, lost));
            is_mixed = self.note_mixed(&before.gang, mixed);
        }
        let since = |at: Option<Instant>| at.map(|at| seconds(began, at));
        Ok(Lost {
            times: NodeLossTimes {
                intent: since(intent),
                running: since(again.map(|(_, at)| at)),
            },
            again: again.map(|(attempt, _)| attempt),
            is_mixed,
        })
    }

    /// The node is back, and nothing is left of the gang, which ends well if it runs again. Whether it was restarted once more after it ran in the attempt
    /// `again`.
    async fn put_in_order(
        &mut self,
        ready: &Ready,
        again: Option<i64>,
        name: &str,
    ) -> Result<bool> {
        let Ready { gang, before, node } = ready;
        bring_back(self.cluster, node).await?;
        wait_until_as_before(&self.client, node).await?;
        self.suspend_observer(false);
        let mut is_restarted_again = false;
        if let Some(attempt) = again {
            if let Err(error) = gang.finish(&self.client).await {
                self.findings.push(format!("END: {name}: {error:#}"));
            }
            let gang = &before.gang;
            is_restarted_again = self.watched.ask(|seen| seen.restarted_after(gang, attempt));
            if is_restarted_again {
                self.findings.push(format!(
                    "WRONG: gang {gang} was restarted once more after attempt {attempt} ran, without another loss"
                ));
            }
        }
        gang::delete(&self.client, NAMESPACE, &gang.job).await?;
        self.renew_bystander(node).await?;
        Ok(is_restarted_again)
    }

    /// The gang of one pod that was on the node went with it: another one takes its place.
    pub(super) async fn renew_bystander(&mut self, node: &str) -> Result<()> {
        if let Some(job) = self.bystanders.remove(node) {
            gang::delete(&self.client, NAMESPACE, &job).await?;
        }
        self.start_bystander(node).await
    }
}

/// Whether the gang came back.
fn is_back(times: &NodeLossTimes) -> bool {
    times.running.is_some()
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
