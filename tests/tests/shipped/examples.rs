//! Every example of the README, of `manifests/examples` and of the guides, as it stands there. Their images are one that does nothing;
//! it has all the names that they pull. The guide that is walked from its beginning to its end is [`first_hour`]'s.

use std::{collections::BTreeSet, fs, path::PathBuf};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt, api::ListParams};
use muster_api::{NodeDevices, keys};
use muster_tests::{
    containers::{Lab, operator, operator::TEAM_NAMESPACE, repository, workload},
    kubernetes::{LIMIT, Progress, eventually, list},
};
use serde_json::{Value, json};

use crate::{GPU_MACHINES, first_hour};

/// The namespace of `manifests/examples`, which its `cluster.yaml` makes.
pub(crate) const NAMESPACE: &str = "vision";
/// The example that all others there need.
const CLUSTER: &str = "cluster.yaml";

/// The images that examples and `docs/first-hour.md` pull.
pub(crate) fn images() -> Result<Vec<String>> {
    let mut texts = vec![readme()?, first_hour::guide()?];
    for file in files()? {
        texts.push(fs::read_to_string(file)?);
    }
    let lines = texts.iter().flat_map(|text| text.lines());
    let images = lines.filter_map(|line| line.trim().strip_prefix("image: "));
    let images: BTreeSet<String> = images.map(|image| image.trim().to_owned()).collect();
    ensure!(!images.is_empty(), "no example names an image");
    Ok(images.into_iter().collect())
}

pub(crate) async fn every_example_runs_word_for_word(lab: &mut Lab) -> Result<()> {
    declare(lab).await?;
    lab.notes.examples += 1;
    let workloads = files()?.into_iter().filter(|file| !file.ends_with(CLUSTER));
    for file in workloads {
        let text = fs::read_to_string(&file)?;
        let name = file.display().to_string();
        let pods = run(lab, &text, NAMESPACE).await;
        pods.with_context(|| name.clone())?;
        lab.notes.examples += 1;
    }
    of_the_readme(lab).await?;
    of_the_guides(lab).await?;
    for namespace in [NAMESPACE, TEAM_NAMESPACE] {
        workload::all_gone(&lab.client(), namespace).await?;
    }
    Ok(())
}

/// Declares what all examples of `manifests/examples` need; it may be there already.
pub(crate) async fn declare(lab: &Lab) -> Result<()> {
    // As their Topology has it: one leaf for both.
    for machine in GPU_MACHINES {
        lab.kubectl(&[
            "label",
            "node",
            machine,
            "--overwrite",
            "topology.example.com/spine=a",
            "topology.example.com/leaf=a",
        ])
        .await?;
    }
    let cluster = file(CLUSTER);
    lab.kubectl(&["apply", "--filename", &cluster.display().to_string()])
        .await?;
    workload::namespace_is_ready(&lab.client(), NAMESPACE).await
}

/// The Team was declared before, and is in use.
async fn of_the_readme(lab: &mut Lab) -> Result<()> {
    lab.notes.examples += 1;
    let mut ran = 0;
    for block in operator::blocks(&readme()?, "yaml") {
        let documents = documents(&block)?;
        let first = documents.first().context("a block that is not empty")?;
        if first["apiVersion"] == "muster.dev/v1alpha1" {
            continue;
        }
        if first["kind"] == "Job" {
            // It names a template, which the guide's example of the same Job has.
            let template = template_of_job()?;
            operator::apply(lab, "template", &template, Some(TEAM_NAMESPACE)).await?;
            let ended = run(lab, &block, TEAM_NAMESPACE).await;
            ended.with_context(|| format!("of the README:\n{block}"))?;
        } else {
            // Lines that are to be added to a pod.
            let mut pod = json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "short"},
                "spec": {"containers": [{"name": "main", "image": "localhost/workload:1"}]},
            });
            merge(&mut pod, first);
            let ended = run(lab, &pod.to_string(), TEAM_NAMESPACE).await;
            ended.with_context(|| format!("of the README:\n{block}"))?;
        }
        ran += 1;
        lab.notes.examples += 1;
    }
    ensure!(ran == 2, "{ran} blocks of the README are workloads, not 2");
    Ok(())
}

/// Objects of administrators: the API server takes them.
async fn of_the_guides(lab: &mut Lab) -> Result<()> {
    let directory = repository().join("docs");
    let mut ran = 0;
    for entry in fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
        let guide = entry?.path();
        let is_markdown = guide.extension().is_some_and(|ending| ending == "md");
        if !is_markdown || guide.ends_with(first_hour::GUIDE) {
            continue;
        }
        let text = fs::read_to_string(&guide)?;
        for block in operator::blocks(&text, "yaml") {
            let of_guide = || format!("of {}:\n{block}", guide.display());
            let applied = operator::apply(lab, "guide", &block, None).await;
            applied.with_context(of_guide)?;
            let file = lab.directory().join("guide.yaml").display().to_string();
            let deleted = lab.kubectl(&["delete", "--filename", &file]).await;
            deleted.with_context(of_guide)?;
            ran += 1;
            lab.notes.examples += 1;
        }
    }
    ensure!(ran > 1, "{ran} blocks of the guides are objects");
    Ok(())
}

/// Applies it, waits until all pods that it asks for run, and deletes it. While its pods end, the next one may start.
async fn run(lab: &Lab, text: &str, namespace: &str) -> Result<()> {
    let objects = documents(text)?;
    let expected: u64 = objects.iter().map(pods_of).sum();
    ensure!(expected > 0, "it asks for no pod");
    let client = lab.client();
    if text.contains(keys::MIN_COUNT) {
        // It starts with what is free, and does not grow while it runs.
        is_given_back(&client, namespace).await?;
    }
    operator::apply(lab, "example", text, Some(namespace)).await?;
    let what = format!("{expected} pods run");
    eventually(&what, LIMIT, async || {
        let pods: Vec<Pod> = list(&client, Some(namespace)).await?;
        let phases: Vec<String> = pods
            .iter()
            .filter(|pod| objects.iter().any(|object| is_of(pod, object)))
            .filter_map(|pod| pod.status.as_ref()?.phase.clone())
            .collect();
        let running = phases.iter().filter(|phase| *phase == "Running").count();
        Ok(Progress::when(running as u64 == expected, || {
            format!("{phases:?}")
        }))
    })
    .await?;
    let file = lab.directory().join("example.yaml").display().to_string();
    let namespace_flag = format!("--namespace={namespace}");
    lab.kubectl(&[
        "delete",
        "--filename",
        &file,
        &namespace_flag,
        "--cascade=foreground",
        "--wait=false",
    ])
    .await
    .map(drop)
}

/// Waits until nothing of a namespace's gangs is held on any node.
async fn is_given_back(client: &Client, namespace: &str) -> Result<()> {
    workload::all_gone(client, namespace).await?;
    let nodes: Api<NodeDevices> = Api::all(client.clone());
    let what = format!("all that gangs of {namespace} had is given back");
    let prefix = format!("{namespace}/");
    eventually(&what, LIMIT, async || {
        let nodes = nodes.list(&ListParams::default()).await?;
        let permits = nodes.iter().flat_map(|node| &node.spec.permits);
        let held: Vec<&str> = permits
            .map(|permit| permit.gang.as_str())
            .filter(|gang| gang.starts_with(&prefix))
            .collect();
        Ok(Progress::when(held.is_empty(), || format!("{held:?}")))
    })
    .await
}

/// Whether a pod is the one that is written there, or one of the Job.
fn is_of(pod: &Pod, object: &Value) -> bool {
    let name = match object["kind"].as_str() {
        Some("Pod") => pod.metadata.name.as_ref(),
        Some("Job") => pod.labels().get("batch.kubernetes.io/job-name"),
        _ => None,
    };
    name.is_some_and(|name| object["metadata"]["name"] == name.as_str())
}

fn pods_of(object: &Value) -> u64 {
    match object["kind"].as_str() {
        Some("Pod") => 1,
        Some("Job") => object["spec"]["parallelism"].as_u64().unwrap_or(1),
        _ => 0,
    }
}

fn template_of_job() -> Result<String> {
    let documents = documents(&fs::read_to_string(file("gang-job.yaml"))?)?;
    let template = documents
        .into_iter()
        .find(|object| object["kind"] == "ResourceClaimTemplate");
    let mut template = template.context("gang-job.yaml has a template")?;
    template["metadata"]["namespace"] = json!(TEAM_NAMESPACE);
    Ok(template.to_string())
}

fn readme() -> Result<String> {
    Ok(fs::read_to_string(repository().join("README.md"))?)
}

/// An example of `manifests/examples`.
pub(crate) fn file(name: &str) -> PathBuf {
    directory().join(name)
}

fn directory() -> PathBuf {
    repository().join("manifests/examples")
}

fn files() -> Result<Vec<PathBuf>> {
    let directory = directory();
    let mut files = Vec::new();
    for entry in fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
        files.push(entry?.path());
    }
    files.retain(|file| file.extension().is_some_and(|it| it == "yaml"));
    files.sort();
    ensure!(files.len() > 1, "{} has no examples", directory.display());
    Ok(files)
}

fn documents(text: &str) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    for document in text.split("\n---") {
        let value: Value = serde_saphyr::from_str(document)?;
        if !value.is_null() {
            found.push(value);
        }
    }
    Ok(found)
}

/// What `from` says is said by `into`, too.
fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (field, value) in from {
                merge(into.entry(field).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}
