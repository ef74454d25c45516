//! The demonstration: the main job of Muster, on a real control plane, told as it happens.
//!
//! Two teams share a cohort with a slack pool. A gang of 16 GPUs takes two whole nodes of one leaf; another
//! team borrows idle quota; a third gang waits and says why in numbers; the first one ends, the waiting one
//! starts. Then a gang that runs on borrowed quota is told to give way, goes, and runs again once there is room. At last one GPU of a
//! gang breaks: its gang is restarted whole on other nodes, with its place in the queue, and the seven other GPUs take a pod meanwhile.
//! Everything that is told or reported is observed from the API server, nothing is what was intended.
//!
//! `cargo xtask demo` runs it; a scenario runs the same story and judges it.

mod cast;
mod fault;
mod observation;
mod report;
mod timeline;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

pub use cast::{LEAF_LABEL, NOTICE_SECONDS, nodes};
pub use report::{DemoReport, FaultReport, GangReport, ObserverReport};

use crate::cluster::Cluster;
use cast::Roles;
use observation::Observation;
use timeline::Timeline;

/// How often the API server is looked at.
const POLL: Duration = Duration::from_millis(100);
/// Longest time that one act of the story may take.
const ACT_LIMIT: Duration = Duration::from_secs(90);

/// Plays the story on a cluster of [`nodes`] and reports what was observed. `say` is told every line of the timeline.
pub async fn play(cluster: &Cluster, say: impl Fn(&str)) -> Result<DemoReport> {
    let mut play = Play {
        observation: Observation::new(cluster.client()),
        timeline: Timeline::default(),
        began: Instant::now(),
        say,
    };
    let roles = Roles::prepare(cluster).await?;

    play.say(
        "two teams, research (16 GPUs) and product (8 GPUs), share cohort lab with 8 GPUs of slack",
    );
    play.say("research submits train: an Indexed Job of 2 pods, 8 GPUs each");
    roles.submit("research", "train", 2, 15, None).await?;
    play.until_running("research", "train").await?;

    play.say("product submits sweep: 16 GPUs, 8 more than its own; idle slack is lent");
    roles.submit("product", "sweep", 2, 300, None).await?;
    play.until_running("product", "sweep").await?;

    play.say("research submits next: 8 GPUs, while all quota is in use");
    let next = roles.submit("research", "next", 1, 300, None).await?;
    play.until("research/next waits with a reason", |seen| {
        seen.waits("research", "next")
    })
    .await?;
    play.until("research/train ends", |seen| {
        seen.has_ended("research", "train")
    })
    .await?;
    play.until_running("research", "next").await?;

    play.say(&format!(
        "product submits batch: 8 GPUs that research leaves idle, in a tier that gives way {NOTICE_SECONDS} s after a notice"
    ));
    let tier = Some(cast::GIVES_WAY);
    roles.submit("product", "batch", 1, 300, tier).await?;
    play.until_running("product", "batch").await?;
    play.say("research submits serve: 8 GPUs, which it is guaranteed and product borrows");
    roles.submit("research", "serve", 1, 5, None).await?;
    play.until("product/batch is told to give way", |seen| {
        seen.is_told_to_give_way("product", "batch")
    })
    .await?;
    play.until("product/batch is evicted", |seen| {
        seen.is_evicted("product", "batch")
    })
    .await?;
    play.until_running("research", "serve").await?;
    play.until("product/batch runs again", |seen| {
        seen.is_running_again("product", "batch")
    })
    .await?;

    play.say("research/next is told to finish, which leaves a node free");
    next.finish()?;
    play.until("research/next ends", |seen| {
        seen.has_ended("research", "next")
    })
    .await?;
    let fault = play.one_gpu_breaks(cluster, &roles).await?;

    let version = cluster.client().apiserver_version().await?.git_version;
    let took = play.began.elapsed();
    let observer = cluster.observer().context("the observer watches")?;
    let verdict = observer.verdict_so_far().await?;
    Ok(play.observation.report(fault, version, took, verdict))
}

struct Play<Say> {
    observation: Observation,
    timeline: Timeline,
    began: Instant,
    say: Say,
}

impl<Say: Fn(&str)> Play<Say> {
    fn say(&self, text: &str) {
        (self.say)(&format!(
            "{:>7.1} s  {text}",
            self.began.elapsed().as_secs_f64()
        ));
    }

    /// Looks at the cluster until the gang runs.
    async fn until_running(&mut self, team: &str, name: &str) -> Result<()> {
        let what = format!("{team}/{name} runs");
        self.until(&what, |seen| seen.is_running(team, name)).await
    }

    /// Looks at the cluster until the act is over, telling what changes.
    async fn until(&mut self, what: &str, is_over: impl Fn(&Observation) -> bool) -> Result<()> {
        let deadline = Instant::now() + ACT_LIMIT;
        loop {
            self.observation.look().await?;
            for line in self.timeline.news(&self.observation) {
                self.say(&line);
            }
            if is_over(&self.observation) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "waited {} s until {what}; seen last:\n{}",
                    ACT_LIMIT.as_secs(),
                    self.observation
                );
            }
            tokio::time::sleep(POLL).await;
        }
    }
}
