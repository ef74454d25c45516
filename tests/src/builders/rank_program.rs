//! How the containers of a gang run the `rank` program.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use muster_api::keys;
use serde_json::{Value, json};

use super::typed;

/// Where a rank finds its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankSource {
    /// The annotation that the controller writes, by the downward API.
    Annotation,
    /// The completion index of an Indexed Job.
    CompletionIndex,
    /// A number given by the test.
    Fixed(u32),
}

/// How the containers of a gang run the `rank` program.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a choice of the test"
)]
pub struct RankProgram {
    /// The program.
    pub program: PathBuf,
    /// Directory that all ranks share; it is made.
    pub peers_dir: PathBuf,
    /// Number of ranks.
    pub world_size: u32,
    /// Steps before it ends.
    pub steps: u32,
    /// Milliseconds of a step.
    pub step_millis: u64,
    /// Seconds for which a rank waits for all its peers; then it fails.
    pub deadline_seconds: u64,
    /// Where the rank finds its number.
    pub rank: RankSource,
    /// Whether a rank that has lost a peer waits to be ended.
    pub hangs_when_lost: bool,
    /// After how many steps the gang notes how far it is, to go on from there when it starts again; never without.
    pub checkpoint_steps: Option<u32>,
    /// Whether the ranks are those that start together, whatever their numbers: as many as the attempt was admitted with.
    pub rendezvous: bool,
    /// Whether SIGTERM changes nothing.
    pub ignores_sigterm: bool,
    /// Whether a rank ends once a GPU of it fails, as programs that use CUDA do. The others lose a peer.
    pub dies_with_gpu: bool,
}

impl RankProgram {
    /// Three short steps; ranks from the controller's annotation.
    pub fn new(program: PathBuf, peers_dir: PathBuf, world_size: u32) -> Self {
        Self {
            program,
            peers_dir,
            world_size,
            steps: 3,
            step_millis: 50,
            deadline_seconds: 60,
            rank: RankSource::Annotation,
            hangs_when_lost: false,
            checkpoint_steps: None,
            rendezvous: false,
            ignores_sigterm: false,
            dies_with_gpu: false,
        }
    }

    /// Runs for about `seconds` (until it is told to end, if that is long).
    #[must_use]
    pub fn running_for(mut self, seconds: u32) -> Self {
        self.steps = seconds.saturating_mul(10);
        self.step_millis = 100;
        self
    }

    /// Runs until [`Self::finish`] is called (or for a quarter of an hour).
    #[must_use]
    pub fn until_finished(mut self) -> Self {
        self.steps = 9000;
        self.step_millis = 100;
        self
    }

    /// Ranks that have lost a peer hang until they are ended, as collective communication does.
    #[must_use]
    pub fn hanging_when_lost(mut self) -> Self {
        self.hangs_when_lost = true;
        self
    }

    /// A gang that writes a checkpoint every so many steps, and goes on from the last one. With the volume of
    /// [`super::told_of_its_end`] it writes one when it is told to go, too.
    #[must_use]
    pub fn with_checkpoints(mut self, steps: u32) -> Self {
        self.checkpoint_steps = Some(steps);
        self
    }

    /// A gang that may start with fewer ranks than all.
    #[must_use]
    pub fn of_those_admitted(mut self) -> Self {
        self.rendezvous = true;
        self
    }

    /// Ranks that only SIGKILL ends.
    #[must_use]
    pub fn ignoring_sigterm(mut self) -> Self {
        self.ignores_sigterm = true;
        self
    }

    /// Ranks that end once a GPU of them fails. What becomes of the others is said by [`Self::hanging_when_lost`]: they hang, or all die.
    #[must_use]
    pub fn dying_with_their_gpu(mut self) -> Self {
        self.dies_with_gpu = true;
        self
    }

    /// Steps that the gang's last checkpoint says were done; 0 without one.
    pub fn checkpointed_steps(&self) -> u32 {
        let text = std::fs::read_to_string(self.peers_dir.join("checkpoint")).ok();
        text.and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// When the gang has to be gone, by the notice for which it has saved its work last.
    pub fn saved_for(&self) -> Option<Timestamp> {
        let text = std::fs::read_to_string(self.peers_dir.join("saved-for")).ok();
        text.and_then(|text| text.parse().ok())
    }

    /// Tells a rank that runs to fail with exit code 1. It does so once.
    pub fn fail(&self, rank: u32) -> Result<()> {
        std::fs::write(self.peers_dir.join(format!("{rank}.fail")), "")?;
        Ok(())
    }

    /// Takes that back, if the rank has not done so yet: else that of the next attempt would.
    pub fn take_back_to_fail(&self, rank: u32) {
        // It is not there if the rank has taken it.
        let _ = std::fs::remove_file(self.peers_dir.join(format!("{rank}.fail")));
    }

    /// Tells all ranks to finish with success.
    pub fn finish(&self) -> Result<()> {
        std::fs::write(self.finish_file(), "")?;
        Ok(())
    }

    fn finish_file(&self) -> PathBuf {
        self.peers_dir.join("finish")
    }

    /// A container `main` that runs it, with these claims of its pod.
    pub fn container(&self, claims: &[&str]) -> Result<Container> {
        let from_field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
        let from_annotation = |key: &str| from_field(&format!("metadata.annotations['{key}']"));
        let mut env = vec![
            json!({"name": "MUSTER_PEERS_DIR", "value": self.peers_dir}),
            json!({"name": "MUSTER_FINISH_FILE", "value": self.finish_file()}),
            json!({"name": "STEPS", "value": self.steps.to_string()}),
            json!({"name": "STEP_MILLIS", "value": self.step_millis.to_string()}),
            json!({"name": "DEADLINE_SECONDS", "value": self.deadline_seconds.to_string()}),
            json!({"name": "HANG_WHEN_LOST", "value": self.hangs_when_lost.to_string()}),
            json!({"name": "CHECKPOINTS", "value": self.checkpoint_steps.is_some().to_string()}),
            json!({"name": "CHECKPOINT_STEPS", "value": self.checkpoint_steps.unwrap_or(1).to_string()}),
            json!({"name": "DIES_WITH_GPU", "value": self.dies_with_gpu.to_string()}),
            json!({"name": "IGNORE_SIGTERM", "value": self.ignores_sigterm.to_string()}),
            json!({"name": "POD_IP", "valueFrom": from_field("status.podIP")}),
        ];
        match self.rank {
            RankSource::Annotation => {
                env.push(json!({"name": "RANK", "valueFrom": from_annotation(keys::RANK)}));
            }
            RankSource::Fixed(rank) => env.push(json!({"name": "RANK", "value": rank.to_string()})),
            RankSource::CompletionIndex => {}
        }
        if self.rendezvous {
            let size = from_annotation(keys::ADMITTED_COUNT);
            env.push(json!({"name": "WORLD_SIZE", "valueFrom": size}));
            let attempt = from_annotation(keys::ATTEMPT);
            env.push(json!({"name": "RENDEZVOUS", "valueFrom": attempt}));
        } else {
            env.push(json!({"name": "WORLD_SIZE", "value": self.world_size.to_string()}));
        }
        let claims: Vec<Value> = claims.iter().map(|name| json!({"name": name})).collect();
        typed(json!({
            "name": "main",
            "image": "example.invalid/rank:1",
            "command": [self.program],
            "env": env,
            "resources": {"claims": claims},
        }))
    }

    /// How a rank ended that ended last, in its own words; `None`: none has reported anything.
    pub fn outcome(&self, rank: u32) -> Option<String> {
        let file = self.peers_dir.join(format!("{rank}.result.json"));
        let result: Value = serde_json::from_str(&std::fs::read_to_string(file).ok()?).ok()?;
        Some(result["outcome"].as_str()?.to_owned())
    }

    /// What the ranks reported at their end, by rank.
    pub fn results(&self) -> Result<BTreeMap<u32, Value>> {
        let mut results = BTreeMap::new();
        for rank in 0..self.world_size {
            let file = self.peers_dir.join(format!("{rank}.result.json"));
            let text = std::fs::read_to_string(&file)
                .with_context(|| format!("rank {rank} wrote no result: {}", file.display()))?;
            results.insert(rank, serde_json::from_str(&text)?);
        }
        Ok(results)
    }

    /// Fails unless every rank met all others and finished in step with them.
    pub fn ensure_all_met(&self) -> Result<()> {
        for (rank, result) in self.results()? {
            let peers = result["peers"].as_array().map_or(0, Vec::len);
            let finished = result["outcome"] == "Finished" && result["steps"] != 0;
            anyhow::ensure!(
                finished && peers + 1 == self.world_size as usize,
                "rank {rank} did not meet its gang: {result}"
            );
        }
        Ok(())
    }

    /// The GPUs that each rank was given, by UUID.
    pub fn gpus(&self) -> Result<BTreeMap<u32, Vec<String>>> {
        let results = self.results()?.into_iter();
        results
            .map(|(rank, result)| Ok((rank, serde_json::from_value(result["gpus"].clone())?)))
            .collect()
    }
}

/// Gives the program a file in which the kubelet tells it when its gang has to be gone.
pub fn told_of_its_end(spec: PodSpec) -> Result<PodSpec> {
    let mut spec = spec;
    let annotation = format!("metadata.annotations['{}']", keys::PREEMPT_AT);
    let volume = typed(json!({
        "name": "told",
        "downwardAPI": {"items": [{"path": "preempt-at", "fieldRef": {"fieldPath": annotation}}]},
    }))?;
    spec.volumes.get_or_insert_default().push(volume);
    for container in &mut spec.containers {
        let file = typed(json!({"name": "NOTICE_FILE", "value": "/told/preempt-at"}))?;
        container.env.get_or_insert_default().push(file);
        let mount = typed(json!({"name": "told", "mountPath": "/told"}))?;
        container.volume_mounts.get_or_insert_default().push(mount);
    }
    Ok(spec)
}

/// A fresh directory for the ranks of a gang, below the cluster's.
pub fn peers_directory(cluster: &Path, gang: &str) -> Result<PathBuf> {
    let directory = cluster.join("peers").join(gang);
    std::fs::create_dir_all(&directory)?;
    Ok(directory)
}
