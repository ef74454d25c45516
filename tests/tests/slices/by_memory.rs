//! Who says how much memory he needs gets the smallest device that has it, whole or a slice.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{Api, ResourceExt};
use muster_api::keys;
use muster_tests::{
    builders::{self, RankProgram},
    cluster::Cluster,
    gangs, kubernetes, scenarios,
    suite::Scenario,
};
use serde_json::{Value, json};

use crate::stage::{
    A30, BRIDGED, Given, H100, Single, attributes, example, given, on, prepare_team,
    wait_until_uncut,
};

pub(crate) fn scenarios() -> Vec<Scenario> {
    scenarios![
        whole_gpus_go_where_their_memory_and_their_links_fit_best,
        the_example_by_memory_gives_each_the_smallest_device_that_fits,
    ]
}

/// Name, what it is annotated with, the node that it fits on, and how many GPUs it gets.
type Asked = (
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static str,
    usize,
);

/// GPUs that are counted are whole, of the product with the least memory that suffices, and connected where that is asked for. Beside them a
/// slice, on GPUs that somebody has put into MIG mode.
async fn whole_gpus_go_where_their_memory_and_their_links_fit_best(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "whole").await?;
    let asked: [Asked; 3] = [
        (
            "small",
            &[(keys::GPUS, "1"), (keys::VRAM, "12Gi")],
            BRIDGED,
            1,
        ),
        ("large", &[(keys::GPUS, "1"), (keys::VRAM, "80Gi")], H100, 1),
        (
            "pair",
            &[
                (keys::GPUS, "2"),
                (keys::VRAM, "80Gi"),
                (keys::INTERCONNECT, "nvlink"),
            ],
            H100,
            2,
        ),
    ];
    let mut running = Vec::new();
    for (name, annotations, node, gpus) in asked {
        let pod = Single::create(cluster, "whole", name, annotations, |spec| spec).await?;
        let given = pod.runs(cluster).await?;
        let fits = given.len() == gpus && given.iter().all(|given| is_whole(given, node));
        ensure!(fits, "{name} was given {given:?}");
        running.push((pod, given));
    }
    let least = [(keys::VRAM, "6Gi")];
    let slice = Single::create(cluster, "whole", "slice", &least, on(A30)).await?;
    let given = slice.runs_on_one(cluster).await?;
    ensure!(is_slice(&given, A30, "1g6gb"), "{given:?}");
    // Four GPUs, and a quarter of one.
    let charged = gangs::charged(&client).await?;
    ensure!(charged.get("whole") == Some(&4_250), "{charged:?}");
    slice.finishes(&client, &[given]).await?;
    for (pod, given) in running {
        pod.finishes(&client, &given).await?;
    }
    wait_until_uncut(cluster, A30).await
}

/// `manifests/examples/by-memory.yaml` as it stands there, but for its containers.
async fn the_example_by_memory_gives_each_the_smallest_device_that_fits(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "vision").await?;
    let [notebook, model, cards] = example("by-memory.yaml")?;
    let notebook = start(cluster, notebook).await?;
    let of_notebook = notebook.runs(cluster).await?;
    let model = start(cluster, model).await?;
    let of_model = model.runs(cluster).await?;
    let cards = start(cluster, cards).await?;
    let of_cards = cards.runs(cluster).await?;

    let ([notebook_has], [model_has], [one, other]) = (&*of_notebook, &*of_model, &*of_cards)
    else {
        anyhow::bail!("{of_notebook:?}, {of_model:?}, {of_cards:?}");
    };
    ensure!(is_slice(notebook_has, H100, "1g10gb"), "{notebook_has:?}");
    ensure!(is_slice(model_has, H100, "1g20gb"), "{model_has:?}");
    // No second GPU is cut as long as the first has room.
    ensure!(
        gpu(notebook_has) == gpu(model_has),
        "the notebook has {notebook_has:?}, the model {model_has:?}"
    );
    let are_whole = is_whole(one, &one.node) && is_whole(other, &one.node);
    let groups = attributes(&client, &of_cards, "nvlinkGroup").await?;
    let are_connected = groups.iter().all(|group| Some(group) == groups.first());
    ensure!(are_whole && are_connected, "{of_cards:?} of {groups:?}");
    let charged = gangs::charged(&client).await?;
    // One seventh, two eighths, and two.
    ensure!(charged.get("vision") == Some(&2_392), "{charged:?}");

    for (example, given) in [
        (notebook, &of_notebook),
        (model, &of_model),
        (cards, &of_cards),
    ] {
        example.finishes(cluster, given).await?;
    }
    wait_until_uncut(cluster, H100).await
}

/// What an example became: a pod or a Job of one, whose container runs until it is told to finish.
struct Example {
    gang: String,
    /// Name of the object, which that of its pod begins with.
    name: String,
    ranks: RankProgram,
}

/// Creates an object of the example. Its image is one that nobody has, so its container runs what ranks run.
async fn start(cluster: &Cluster, mut object: Value) -> Result<Example> {
    let client = cluster.client();
    let name = object["metadata"]["name"].as_str().context("a name")?;
    let name = name.to_owned();
    let peers = builders::peers_directory(cluster.directory(), &format!("vision-{name}"))?;
    let ranks = RankProgram::new(cluster.programs().path("rank"), peers, 1).until_finished();
    let container = serde_json::to_value(ranks.container(&[])?)?;
    let is_job = object["kind"] == "Job";
    let spec = if is_job {
        &mut object["spec"]["template"]["spec"]
    } else {
        &mut object["spec"]
    };
    spec["containers"] = json!([container]);
    spec["restartPolicy"] = json!("Never");
    let gang = if is_job {
        let jobs: Api<Job> = Api::namespaced(client, "vision");
        kubernetes::create(&jobs, &serde_json::from_value(object)?).await?;
        gangs::of_job(&name)
    } else {
        let pods: Api<Pod> = Api::namespaced(client, "vision");
        kubernetes::create(&pods, &serde_json::from_value(object)?).await?;
        gangs::of_pod(&name)
    };
    Ok(Example { gang, name, ranks })
}

impl Example {
    /// Waits until it runs; the devices that it was given.
    async fn runs(&self, cluster: &Cluster) -> Result<Vec<Given>> {
        let client = cluster.client();
        let gang = gangs::wait_until_running(&client, "vision", &self.gang).await?;
        let pods = gangs::pods(&client, &gang).await?;
        let pod = pods
            .values()
            .next()
            .with_context(|| format!("{} has a pod", self.name))?;
        given(cluster, "vision", &pod.name_any()).await
    }

    /// Tells it to finish, and fails unless its program saw what it was given.
    async fn finishes(&self, cluster: &Cluster, given: &[Given]) -> Result<()> {
        self.ranks.finish()?;
        gangs::wait_until_finished(&cluster.client(), "vision", &self.gang).await?;
        let single = Single {
            namespace: "vision",
            name: &self.name,
            ranks: self.ranks.clone(),
        };
        single.saw(given)
    }
}

fn is_whole(given: &Given, node: &str) -> bool {
    given.node == node && gpu(given) == given.device
}

fn is_slice(given: &Given, node: &str, profile: &str) -> bool {
    given.node == node && given.device.contains(&format!("-mig-{profile}-"))
}

/// The GPU that a device is, or is cut from.
fn gpu(given: &Given) -> &str {
    let device = given.device.as_str();
    device.split_once("-mig-").map_or(device, |(gpu, _)| gpu)
}
