//! The same loss with what Kubernetes does by itself: an Indexed Job of as many pods, without GPUs, so that it is none of Muster's business.
//!
//! Nothing waits for a gang here, and nobody has to go: only the pods of the lost node are made anew, each by itself. Counted is until all of them are in
//! phase Running elsewhere.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Pod, Toleration},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};

use super::{
    Bench, RUN_LIMIT, Timing,
    gang::{GRACE_SECONDS, RANKS},
    node_loss::{bring_back, take_away},
    seconds,
    watched::{Seen, SeenPod},
};
use crate::{
    builders::{self, RankProgram, RankSource},
    kubernetes::{self, LIMIT, Progress, eventually},
};

/// Namespace of no Team.
const NAMESPACE: &str = "plain";
/// Name of the Job.
const JOB: &str = "plain";
/// Longest time until its pods are gone: those on the lost node go with its kubelet's help.
const END_LIMIT: Duration = Duration::from_mins(5);

impl<Say: Fn(&str)> Bench<'_, Say> {
    /// Seconds until the pods that a plain Job has lost with a node run elsewhere, and how many gangs were restarted meanwhile that had nothing on that node.
    pub(super) async fn measure_plain_job(&mut self, timing: Timing) -> Result<(f64, usize)> {
        self.say("a node is lost, with a plain Job and Kubernetes alone");
        let ranks = self.start_plain_job(timing).await?;
        let node = self.watched.ask(node_of_most).context("no pod is bound")?;
        let lost = self.watched.ask(|seen| indexes_on(seen, &node));
        self.say(&format!(
            "{} of its {RANKS} pods were on node {node}",
            lost.len()
        ));
        let on_node = self.watched.ask(|seen| seen.gangs_on(&node));
        self.meant.extend(on_node);
        self.suspend_observer(true);
        let (began, gaps) = (Instant::now(), self.gaps());
        take_away(self.cluster, &node)?;
        let what = format!("the pods that were on node {node} run elsewhere");
        let elsewhere = eventually(&what, RUN_LIMIT, async || {
            let at = self.watched.ask(|seen| all_run_since(seen, &lost, began));
            Ok(match at {
                Some(at) => Progress::Done(at),
                None => Progress::NotYet(format!("not all of indexes {lost:?} do")),
            })
        })
        .await?;
        self.note_gaps(gaps);
        let took = seconds(began, elsewhere);
        self.say(&format!("they run after {took:.1} s"));
        // What was measured stands whatever becomes of the rest.
        if let Err(error) = self.clear_up(&node, &ranks).await {
            self.findings.push(format!("END: plain Job: {error:#}"));
        }
        self.suspend_observer(false);
        self.note_observed();
        let wrong = self.wrong_since(began);
        let count = wrong.len();
        self.findings.extend(wrong);
        Ok((took, count))
    }

    async fn clear_up(&mut self, node: &str, ranks: &RankProgram) -> Result<()> {
        bring_back(self.cluster, node).await?;
        // Whatever their Job makes of it: what is left of the ranks is to end.
        ranks.finish()?;
        self.end_plain_job().await?;
        self.renew_bystander(node).await
    }

    async fn start_plain_job(&self, timing: Timing) -> Result<RankProgram> {
        builders::namespace(&self.client, NAMESPACE, None).await?;
        let peers = builders::peers_directory(self.cluster.directory(), NAMESPACE)?;
        let program = self.cluster.programs().path("rank");
        let mut ranks = RankProgram::new(program, peers, RANKS)
            .until_finished()
            .hanging_when_lost();
        ranks.rank = RankSource::CompletionIndex;
        let mut spec = builders::pod_spec(&ranks.container(&[])?)?;
        spec.termination_grace_period_seconds = Some(i64::from(GRACE_SECONDS));
        if timing != Timing::AS_SHIPPED {
            spec.tolerations = Some(tolerations(timing.toleration_seconds));
        }
        let mut job = builders::indexed_job(JOB, RANKS, &[], &spec)?;
        // What Kubernetes ships: without it the first pod that is lost would end the Job.
        job.spec.as_mut().context("a spec")?.backoff_limit = Some(6);
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), NAMESPACE);
        kubernetes::create(&jobs, &job).await?;
        eventually("the plain Job runs", LIMIT, async || {
            let running = self
                .watched
                .ask(|seen| pods_of(seen).filter(|pod| pod.runs()).count());
            Ok(Progress::when(running == RANKS as usize, || {
                format!("{running} of its pods run")
            }))
        })
        .await?;
        Ok(ranks)
    }

    async fn end_plain_job(&self) -> Result<()> {
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), NAMESPACE);
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let everything = ListParams::default();
        jobs.delete(JOB, &DeleteParams::background()).await?;
        eventually("nothing is left of the plain Job", END_LIMIT, async || {
            let left = pods.list(&everything).await?.items.len();
            Ok(Progress::when(left == 0, || {
                format!("{left} pods are left")
            }))
        })
        .await
    }
}

/// What Kubernetes gives every pod, with another time.
fn tolerations(seconds: i64) -> Vec<Toleration> {
    [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ]
    .map(|key| Toleration {
        key: Some(key.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        toleration_seconds: Some(seconds),
        ..Toleration::default()
    })
    .into()
}

fn pods_of(seen: &Seen) -> impl Iterator<Item = &SeenPod> {
    let owner = format!("{NAMESPACE}/{JOB}");
    let pods = seen.pods.values();
    pods.filter(move |pod| pod.owner.as_ref() == Some(&owner))
}

/// The node that most of its pods run on.
fn node_of_most(seen: &Seen) -> Option<String> {
    let mut pods: BTreeMap<&String, usize> = BTreeMap::new();
    for node in pods_of(seen).filter_map(|pod| pod.node.as_ref()) {
        *pods.entry(node).or_default() += 1;
    }
    let most = pods.into_iter().max_by_key(|(_, count)| *count);
    most.map(|(node, _)| node.clone())
}

/// Completion indexes of its pods on a node.
fn indexes_on(seen: &Seen, node: &str) -> Vec<u32> {
    let on_node = pods_of(seen).filter(|pod| pod.node.as_deref() == Some(node));
    on_node.filter_map(|pod| pod.index).collect()
}

/// When the last of these indexes got a pod that began to run since then, once all have one.
fn all_run_since(seen: &Seen, indexes: &[u32], since: Instant) -> Option<Instant> {
    let replaced = indexes.iter().map(|index| {
        let pods = pods_of(seen).filter(|pod| pod.index == Some(*index));
        let running = pods.filter_map(|pod| pod.running_since);
        running.filter(|at| *at >= since).min()
    });
    let replaced: Option<Vec<Instant>> = replaced.collect();
    replaced?.into_iter().max()
}
