//! Objects that scenarios and the demo create: namespaces, Teams, claim templates, Jobs and pods whose
//! containers run the `rank` program.
//!
//! Everything carries a label, so that [`clear`] finds it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Container, Namespace, Pod, PodSpec},
    resource::v1::{ResourceClaim, ResourceClaimTemplate},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PropagationPolicy},
};
use muster_api::{
    Cohort, CohortSpec, Flavor, FlavorQuota, FlavorSpec, Team, TeamSpec, Topology, TopologySpec,
    keys,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::kubernetes::{self, Progress, eventually};

/// Label of everything that a scenario makes.
const MADE_BY: (&str, &str) = ("muster-tests", "scenario");
/// Longest time until everything that a scenario made is gone.
const CLEAR_LIMIT: Duration = Duration::from_mins(1);
/// Grace of pods, in seconds: the `rank` program ends at once.
const TERMINATION_GRACE_SECONDS: i64 = 3;

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
    /// Where the rank finds its number.
    pub rank: RankSource,
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
            rank: RankSource::Annotation,
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
        let mut env = vec![
            json!({"name": "MUSTER_PEERS_DIR", "value": self.peers_dir}),
            json!({"name": "MUSTER_FINISH_FILE", "value": self.finish_file()}),
            json!({"name": "WORLD_SIZE", "value": self.world_size.to_string()}),
            json!({"name": "STEPS", "value": self.steps.to_string()}),
            json!({"name": "STEP_MILLIS", "value": self.step_millis.to_string()}),
            json!({"name": "POD_IP", "valueFrom": from_field("status.podIP")}),
        ];
        match self.rank {
            RankSource::Annotation => {
                let path = format!("metadata.annotations['{}']", keys::RANK);
                env.push(json!({"name": "RANK", "valueFrom": from_field(&path)}));
            }
            RankSource::Fixed(rank) => env.push(json!({"name": "RANK", "value": rank.to_string()})),
            RankSource::CompletionIndex => {}
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

/// A pod's spec with one container; restarts nothing.
pub fn pod_spec(container: &Container) -> Result<PodSpec> {
    typed(json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": TERMINATION_GRACE_SECONDS,
        "automountServiceAccountToken": false,
        "containers": [container],
    }))
}

/// Gives the pod a claim named `gpus`: this one, which exists by itself.
#[must_use]
pub fn with_claim(mut spec: PodSpec, claim: &str) -> PodSpec {
    let claim = k8s_openapi::api::core::v1::PodResourceClaim {
        name: "gpus".to_owned(),
        resource_claim_name: Some(claim.to_owned()),
        ..Default::default()
    };
    spec.resource_claims.get_or_insert_default().push(claim);
    spec
}

/// Gives the pod a claim named `gpus`, made from this template.
#[must_use]
pub fn with_claim_template(mut spec: PodSpec, template: &str) -> PodSpec {
    let claim = k8s_openapi::api::core::v1::PodResourceClaim {
        name: "gpus".to_owned(),
        resource_claim_template_name: Some(template.to_owned()),
        ..Default::default()
    };
    spec.resource_claims.get_or_insert_default().push(claim);
    spec
}

/// A pod.
pub fn pod(
    name: &str,
    labels: &[(&str, &str)],
    annotations: &[(&str, &str)],
    spec: &PodSpec,
) -> Result<Pod> {
    typed(json!({
        "metadata": {"name": name, "labels": made(labels), "annotations": map(annotations)},
        "spec": spec,
    }))
}

/// An Indexed Job of `ranks` pods that run side by side and are never retried.
pub fn indexed_job(
    name: &str,
    ranks: u32,
    annotations: &[(&str, &str)],
    spec: &PodSpec,
) -> Result<Job> {
    typed(json!({
        "metadata": {"name": name, "labels": made(&[]), "annotations": map(annotations)},
        "spec": {
            "completionMode": "Indexed",
            "completions": ranks,
            "parallelism": ranks,
            "backoffLimit": 0,
            "template": {"metadata": {"labels": made(&[])}, "spec": spec},
        },
    }))
}

/// A template of claims for `gpus` whole GPUs, with a CEL selector if one is given.
pub fn claim_template(
    name: &str,
    gpus: u32,
    selector: Option<&str>,
) -> Result<ResourceClaimTemplate> {
    typed(json!({
        "metadata": {"name": name, "labels": made(&[])},
        "spec": {"spec": claim_spec(gpus, selector)},
    }))
}

/// A claim for `gpus` whole GPUs that pods name.
pub fn claim(name: &str, gpus: u32) -> Result<ResourceClaim> {
    typed(json!({
        "metadata": {"name": name, "labels": made(&[])},
        "spec": claim_spec(gpus, None),
    }))
}

fn claim_spec(gpus: u32, selector: Option<&str>) -> Value {
    let selectors: Vec<Value> = selector
        .iter()
        .map(|expression| json!({"cel": {"expression": expression}}))
        .collect();
    json!({"devices": {"requests": [{
        "name": "gpus",
        "exactly": {
            "deviceClassName": keys::DEVICE_CLASS_GPU,
            "allocationMode": "ExactCount",
            "count": gpus,
            "selectors": selectors,
        },
    }]}})
}

/// Creates a namespace of this Team (of none without) and waits until pods can be created in it.
pub async fn namespace(client: &Client, name: &str, team: Option<&str>) -> Result<()> {
    let mut labels = made(&[]);
    if let Some(team) = team {
        labels.insert(keys::TEAM.to_owned(), team.to_owned());
    }
    let namespace: Namespace = typed(json!({"metadata": {"name": name, "labels": labels}}))?;
    kubernetes::create(&Api::all(client.clone()), &namespace).await?;
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
        Api::namespaced(client.clone(), name);
    eventually(
        &format!("namespace {name} has its default ServiceAccount"),
        Duration::from_secs(20),
        async || {
            let account = accounts.get_opt("default").await?;
            Ok(Progress::when(account.is_some(), || {
                "it has none".to_owned()
            }))
        },
    )
    .await
}

/// Makes or changes a Team.
pub async fn team(
    client: &Client,
    name: &str,
    cohort: Option<&str>,
    quota: Vec<FlavorQuota>,
) -> Result<()> {
    let mut team = Team::new(
        name,
        TeamSpec {
            cohort: cohort.map(str::to_owned),
            quota,
            ..TeamSpec::default()
        },
    );
    team.metadata.labels = Some(made(&[]));
    kubernetes::apply(&Api::all(client.clone()), &team).await?;
    Ok(())
}

/// Makes or changes a Cohort.
pub async fn cohort(client: &Client, name: &str, quota: Vec<FlavorQuota>) -> Result<()> {
    let mut cohort = Cohort::new(
        name,
        CohortSpec {
            parent: None,
            quota,
        },
    );
    cohort.metadata.labels = Some(made(&[]));
    kubernetes::apply(&Api::all(client.clone()), &cohort).await?;
    Ok(())
}

/// Makes or changes a Flavor of all devices of Muster's driver.
pub async fn flavor(client: &Client, name: &str, topology: Option<&str>) -> Result<()> {
    flavor_on(client, name, topology, &[]).await
}

/// Makes or changes a Flavor of the devices of Muster's driver on nodes with these labels.
pub async fn flavor_on(
    client: &Client,
    name: &str,
    topology: Option<&str>,
    node_labels: &[(&str, &str)],
) -> Result<()> {
    let mut flavor = Flavor::new(
        name,
        FlavorSpec {
            node_selector: map(node_labels),
            topology: topology.map(str::to_owned),
            ..FlavorSpec::default()
        },
    );
    flavor.metadata.labels = Some(made(&[]));
    kubernetes::apply(&Api::all(client.clone()), &flavor).await?;
    Ok(())
}

/// Makes or changes a Topology: (level, node label), outermost first.
pub async fn topology(client: &Client, name: &str, levels: &[(&str, &str)]) -> Result<()> {
    let level = |(name, label): &(&str, &str)| muster_api::TopologyLevel {
        name: (*name).to_owned(),
        node_label: (*label).to_owned(),
    };
    let mut topology = Topology::new(
        name,
        TopologySpec {
            fabric: levels.iter().map(level).collect(),
            accelerator: None,
        },
    );
    topology.metadata.labels = Some(made(&[]));
    kubernetes::apply(&Api::all(client.clone()), &topology).await?;
    Ok(())
}

/// A quota of whole GPUs of one flavor.
pub fn gpu_quota(flavor: &str, nominal: u32, borrowing_limit: Option<u32>) -> FlavorQuota {
    let quantity = |gpus: u32| muster_api::Quantity(gpus.to_string());
    FlavorQuota {
        flavor: flavor.to_owned(),
        resources: vec![muster_api::ResourceQuota {
            name: "gpus".to_owned(),
            nominal: quantity(nominal),
            borrowing_limit: borrowing_limit.map(quantity),
            lending_limit: None,
        }],
    }
}

/// A fresh directory for the ranks of a gang, below the cluster's.
pub fn peers_directory(cluster: &Path, gang: &str) -> Result<PathBuf> {
    let directory = cluster.join("peers").join(gang);
    std::fs::create_dir_all(&directory)?;
    Ok(directory)
}

/// Deletes the workloads that scenarios made and waits until no pod of them is left.
pub async fn clear_workloads(client: &Client) -> Result<()> {
    for name in namespaces_made(client).await? {
        clear_namespace(client, &name).await?;
    }
    Ok(())
}

/// Deletes the namespaces, Teams and Cohorts that scenarios made, and waits for none of it: namespaces go
/// slowly, and every scenario has names of its own. Only after everything was given back: a Team that
/// is gone has no limits.
pub async fn clear_owners(client: &Client) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for name in namespaces_made(client).await? {
        kubernetes::delete(&namespaces, &name).await?;
    }
    let parameters = DeleteParams::default();
    let teams: Api<Team> = Api::all(client.clone());
    if teams.list(&made_by_us()).await.is_ok() {
        teams.delete_collection(&parameters, &made_by_us()).await?;
        let cohorts: Api<Cohort> = Api::all(client.clone());
        cohorts
            .delete_collection(&parameters, &made_by_us())
            .await?;
    }
    Ok(())
}

async fn namespaces_made(client: &Client) -> Result<Vec<String>> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let made = namespaces.list(&made_by_us()).await?;
    let live = made
        .iter()
        .filter(|namespace| namespace.metadata.deletion_timestamp.is_none());
    Ok(live.map(ResourceExt::name_any).collect())
}

fn made_by_us() -> ListParams {
    ListParams::default().labels(&format!("{}={}", MADE_BY.0, MADE_BY.1))
}

async fn clear_namespace(client: &Client, name: &str) -> Result<()> {
    let jobs: Api<Job> = Api::namespaced(client.clone(), name);
    let pods: Api<Pod> = Api::namespaced(client.clone(), name);
    let everything = ListParams::default();
    let background = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Background),
        ..DeleteParams::default()
    };
    jobs.delete_collection(&background, &everything).await?;
    eventually(
        &format!("all pods of namespace {name} are gone"),
        CLEAR_LIMIT,
        async || {
            // Again in each round: a Job that was just being synced may have made another pod.
            pods.delete_collection(&DeleteParams::default(), &everything)
                .await?;
            let left: Vec<String> = pods
                .list(&everything)
                .await?
                .iter()
                .map(ResourceExt::name_any)
                .collect();
            Ok(Progress::when(left.is_empty(), || format!("{left:?}")))
        },
    )
    .await
}

fn made(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    let mut all = map(labels);
    all.insert(MADE_BY.0.to_owned(), MADE_BY.1.to_owned());
    all
}

fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    entries.iter().map(owned).collect()
}

fn typed<T: DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value).context("an object that a test builds has a wrong shape")
}
