//! Another version, the version before, and the other mode, while a gang runs and pods are created all the time.

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use muster_api::{Reason, keys};
use muster_tests::{
    containers::{
        Lab, image_names, operator,
        operator::{DRIVER_NAMESPACE, NAMESPACE, TEAM_NAMESPACE},
        prepared, repository,
        workload::{self, STAY},
    },
    gangs,
    kubernetes::{LIMIT, Progress, eventually, list},
};
use serde_json::json;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

/// The version that is upgraded to.
const NEXT: &str = "99.0.0";
/// Between two turns of pods.
const PAUSE: Duration = Duration::from_millis(200);
/// In one of so many turns pods are kept for a moment; in the others they are only tried.
const TURNS: u32 = 15;

/// The one runs with half of the Team's GPUs; the other one wants all of them, and waits.
const JOBS: [(&str, u32); 2] = [("runs-on", 4), ("waits", 8)];

/// A gang of two pods, with so many GPUs each.
pub(crate) fn job(name: &str, gpus: u32) -> String {
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completionMode": "Indexed",
            "completions": 2,
            "parallelism": 2,
            "template": {
                "metadata": {"annotations": {"muster.dev/gpus": gpus.to_string()}},
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "rank", "image": prepared::WORKLOAD, "command": ["/bin/sh", "-c", STAY]}],
                },
            },
        },
    })
    .to_string()
}

/// Starts both gangs, and returns the containers of the one that runs.
async fn begin(lab: &Lab) -> Result<BTreeMap<String, String>> {
    let client = lab.client();
    let [(runs, few), (waits, many)] = JOBS;
    operator::apply(lab, runs, &job(runs, few), Some(TEAM_NAMESPACE)).await?;
    gangs::wait_until_running(&client, TEAM_NAMESPACE, &gangs::of_job(runs)).await?;
    operator::apply(lab, waits, &job(waits, many), Some(TEAM_NAMESPACE)).await?;
    let gang = gangs::of_job(waits);
    gangs::wait_for_reason(&client, TEAM_NAMESPACE, &gang, Reason::WaitingForQuota).await?;
    containers(&client).await
}

async fn end(lab: &Lab) -> Result<()> {
    let [(runs, _), (waits, _)] = JOBS;
    let words = ["delete", "job", runs, waits, "--ignore-not-found"];
    let namespace = format!("--namespace={TEAM_NAMESPACE}");
    lab.kubectl(&[&words[..], &[namespace.as_str()]].concat())
        .await?;
    workload::all_gone(&lab.client(), TEAM_NAMESPACE).await
}

/// The containers of the gang that runs, by pod: which they are, since when they run, and how often they were started again.
async fn containers(client: &Client) -> Result<BTreeMap<String, String>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), TEAM_NAMESPACE);
    let of_job = ListParams::default().labels(&format!("job-name={}", JOBS[0].0));
    let mut found = BTreeMap::new();
    for pod in pods.list(&of_job).await? {
        let status = pod.status.clone().unwrap_or_default();
        let containers = status.container_statuses.unwrap_or_default();
        let container = containers.first().context("a pod has a container")?;
        let running = container.state.as_ref().and_then(|it| it.running.as_ref());
        let running = running.with_context(|| format!("it does not run: {container:?}"))?;
        found.insert(
            pod.name_any(),
            format!(
                "pod {:?}, container {:?} since {:?}, started again {} times",
                pod.uid(),
                container.container_id,
                running.started_at,
                container.restart_count
            ),
        );
    }
    ensure!(found.len() == 2, "{found:?}");
    Ok(found)
}

async fn ensure_untouched(client: &Client, before: &BTreeMap<String, String>) -> Result<()> {
    let now = containers(client).await?;
    ensure!(now == *before, "{before:#?} became {now:#?}");
    let gang = gangs::wait_until_running(client, TEAM_NAMESPACE, &gangs::of_job(JOBS[0].0)).await?;
    let attempt = gang.status.unwrap_or_default().attempt;
    ensure!(attempt == 1, "its Gang is in attempt {attempt}");
    Ok(())
}

/// What became of pods that were created.
#[derive(Debug, Default)]
pub(crate) struct Created {
    tried: u32,
    plain_refused: Vec<String>,
    gpu_refused: Vec<(Instant, String)>,
}

impl Created {
    /// No pod was refused, with GPUs or without.
    pub(crate) fn ensure_none_refused(&self) -> Result<()> {
        self.ensure_plain_taken()?;
        let refused = self.gpu_refused.first();
        ensure!(
            refused.is_none(),
            "{} of {} pods with GPUs were refused, the first: {refused:?}",
            self.gpu_refused.len(),
            self.tried
        );
        Ok(())
    }

    pub(crate) fn ensure_plain_taken(&self) -> Result<()> {
        ensure!(self.tried > TURNS, "only {} pods were tried", self.tried);
        let refused = self.plain_refused.first();
        ensure!(
            refused.is_none(),
            "{} of {} pods without GPUs were refused, the first: {refused:?}",
            self.plain_refused.len(),
            self.tried
        );
        Ok(())
    }

    /// No pod without GPUs was refused, and those with GPUs for one of these causes alone.
    pub(crate) fn ensure_refused_only_by(&self, causes: &[&str]) -> Result<()> {
        self.ensure_plain_taken()?;
        for (_, said) in &self.gpu_refused {
            ensure!(causes.iter().any(|cause| said.contains(cause)), "{said}");
        }
        Ok(())
    }

    /// What is worth telling of it.
    pub(crate) fn note(&self, what: &str) -> String {
        format!(
            "{what}: {} of {} pods with GPUs were refused, within {} ms",
            self.gpu_refused.len(),
            self.tried,
            self.gap().as_millis()
        )
    }

    /// From the first pod with a GPU that was refused to the last.
    fn gap(&self) -> Duration {
        let first = self.gpu_refused.first();
        let last = self.gpu_refused.last();
        match (first, last) {
            (Some((first, _)), Some((last, _))) => last.duration_since(*first),
            _ => Duration::ZERO,
        }
    }

    /// Creates a pod of each kind; if it is kept, it is deleted again.
    async fn turn(&mut self, pods: &Api<Pod>, is_kept: bool) -> Result<()> {
        let parameters = PostParams {
            dry_run: !is_kept,
            ..PostParams::default()
        };
        self.tried += 1;
        for annotations in [json!({}), json!({"muster.dev/gpus": "1"})] {
            let asks = annotations != json!({});
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"generateName": "made-", "annotations": annotations},
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "made", "image": prepared::WORKLOAD, "command": ["/bin/sh", "-c", STAY]}],
                },
            }))?;
            match pods.create(&parameters, &pod).await {
                Ok(created) if is_kept => {
                    pods.delete(&created.name_any(), &DeleteParams::default())
                        .await?;
                }
                Ok(_) => {}
                Err(refused) if asks => {
                    self.gpu_refused.push((Instant::now(), refused.to_string()));
                }
                Err(refused) => self.plain_refused.push(refused.to_string()),
            }
        }
        Ok(())
    }
}

/// Creates pods all the time until it is stopped; `keeps`: whether some of them are kept for a moment.
async fn create(client: Client, keeps: bool, stopped: CancellationToken) -> Result<Created> {
    let pods: Api<Pod> = Api::namespaced(client, TEAM_NAMESPACE);
    let mut created = Created::default();
    while !stopped.is_cancelled() {
        let is_kept = keeps && created.tried.is_multiple_of(TURNS);
        created.turn(&pods, is_kept).await?;
        tokio::select! {
            () = stopped.cancelled() => {}
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
    Ok(created)
}

/// Creates pods as long as something is done, and tells what became of them.
pub(crate) async fn meanwhile(
    lab: &Lab,
    keeps: bool,
    work: impl Future<Output = Result<()>>,
) -> Result<Created> {
    let stopped = CancellationToken::new();
    let creating = tokio::spawn(create(lab.client(), keeps, stopped.clone()));
    let creating = AbortOnDropHandle::new(creating);
    let done = work.await;
    stopped.cancel();
    let created = creating.await.context("pods are created")??;
    done?;
    Ok(created)
}

/// Runs a line of Helm, waits until all that the chart starts is Ready, and tells what became of pods that were created meanwhile.
pub(crate) async fn change(lab: &Lab, line: &str) -> Result<Created> {
    let changed = async {
        lab.shell(line).await?;
        operator::wait_until_ready(lab).await
    };
    let created = meanwhile(lab, true, changed).await;
    created.with_context(|| line.to_owned())
}

/// Waits until all of Muster's pods are of this version.
async fn all_are_of(client: &Client, version: &str) -> Result<()> {
    let what = format!("all of Muster's pods are of version {version}");
    eventually(&what, LIMIT, async || {
        let mut pods: Vec<Pod> = list(client, Some(NAMESPACE)).await?;
        pods.extend(list::<Pod>(client, Some(DRIVER_NAMESPACE)).await?);
        let specs = pods.iter().filter_map(|pod| pod.spec.as_ref());
        let images = specs.flat_map(|spec| &spec.containers);
        let images: Vec<String> = images.filter_map(|it| it.image.clone()).collect();
        let is_so = |image: &String| image.ends_with(&format!(":{version}"));
        Ok(Progress::when(
            !images.is_empty() && images.iter().all(is_so),
            || format!("{images:?}"),
        ))
    })
    .await
}

/// The chart as it would be with another version.
fn next_chart(lab: &Lab) -> Result<String> {
    let chart = lab.directory().join("next-chart");
    let from = repository().join("deploy/helm/muster");
    let copied = std::process::Command::new("cp")
        .arg("--archive")
        .args([&from, &chart])
        .status()?;
    ensure!(copied.success(), "cp: {copied}");
    let file = chart.join("Chart.yaml");
    let text = fs::read_to_string(&file)?;
    let next = text.replace(image_names::VERSION, NEXT);
    ensure!(
        next.matches(NEXT).count() == 2,
        "version and appVersion are not {}: {text}",
        image_names::VERSION
    );
    fs::write(file, next)?;
    Ok(chart.display().to_string())
}

pub(crate) async fn a_gang_runs_on_through_an_upgrade_and_a_rollback_and_no_pod_is_refused(
    lab: &mut Lab,
) -> Result<()> {
    image_names::name_too(lab, image_names::REPOSITORY, NEXT).await?;
    let client = lab.client();
    let before = begin(lab).await?;
    let chart = next_chart(lab)?;
    let upgrade = operator::upgrade_line(lab)?.replace("deploy/helm/muster", &chart);
    for (line, version) in [
        (upgrade, NEXT),
        (operator::rollback_line()?, image_names::VERSION),
    ] {
        let created = change(lab, &line).await?;
        all_are_of(&client, version).await?;
        created.ensure_none_refused().context(line)?;
        ensure_untouched(&client, &before).await?;
        let note = created.note(&format!("to version {version}"));
        lab.notes.lines.push(note);
    }
    // What waited, waits, and has its turn.
    let waits = gangs::of_job(JOBS[1].0);
    gangs::wait_for_reason(&client, TEAM_NAMESPACE, &waits, Reason::WaitingForQuota).await?;
    let namespace = format!("--namespace={TEAM_NAMESPACE}");
    lab.kubectl(&["delete", "job", JOBS[0].0, &namespace])
        .await?;
    gangs::wait_until_running(&client, TEAM_NAMESPACE, &waits).await?;
    end(lab).await
}

pub(crate) async fn a_gang_runs_on_while_the_mode_changes_and_nothing_stays_gated(
    lab: &mut Lab,
) -> Result<()> {
    let client = lab.client();
    let before = begin(lab).await?;
    let line = operator::upgrade_line(lab)?;
    let created = change(lab, &format!("{line} --set mode=Observe")).await?;
    created.ensure_none_refused().context("to Observe")?;
    ensure_untouched(&client, &before).await?;
    eventually("no pod is gated", LIMIT, async || {
        let pods: Vec<Pod> = list(&client, None).await?;
        let gated = pods.iter().filter(|pod| is_gated(pod));
        let gated: Vec<String> = gated.map(ResourceExt::name_any).collect();
        Ok(Progress::when(gated.is_empty(), || format!("{gated:?}")))
    })
    .await?;
    // It was let go, and would take what is free, quota or not.
    let namespace = format!("--namespace={TEAM_NAMESPACE}");
    lab.kubectl(&["delete", "job", JOBS[1].0, &namespace])
        .await?;

    let created = change(lab, &line).await?;
    created.ensure_none_refused().context("to Enforce")?;
    lab.notes.lines.push(created.note("to Enforce"));
    ensure_untouched(&client, &before).await?;
    is_held_again(&client).await?;
    end(lab).await
}

pub(crate) fn is_gated(pod: &Pod) -> bool {
    let gates = pod.spec.iter().flat_map(|spec| &spec.scheduling_gates);
    gates
        .flatten()
        .any(|gate| gate.name == keys::ADMISSION_GATE)
}

/// A pod with a GPU is gated when it is created, and runs as a gang.
async fn is_held_again(client: &Client) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), TEAM_NAMESPACE);
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "held-again", "annotations": {"muster.dev/gpus": "1"}},
        "spec": {"containers": [workload::reporting("held", &[], &json!({}), true)]},
    }))?;
    let created = eventually("a pod with a GPU is taken", LIMIT, async || {
        let created = pods.create(&PostParams::default(), &pod).await?;
        Ok(Progress::Done(created))
    })
    .await?;
    ensure!(is_gated(&created), "it was created without the gate");
    let gang = gangs::of_pod("held-again");
    gangs::wait_until_running(client, TEAM_NAMESPACE, &gang).await?;
    pods.delete("held-again", &DeleteParams::default()).await?;
    Ok(())
}
