//! A node whose GPUs have more counters than one ResourceSlice may hold.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::resource::v1::{CounterSet, Device, ResourceClaimTemplate, ResourceSlice};
use kube::{Api, Client, ResourceExt, api::ListParams};
use muster_api::keys;
use muster_tests::{
    builders,
    cluster::Cluster,
    gangs,
    kubernetes::{self, LIMIT, Progress, eventually},
    scenarios,
    suite::Scenario,
};

use crate::stage::{A30, Single, prepare_team, wait_until_uncut};

/// Most sets of counters that the API server takes in one ResourceSlice. Each GPU that is cut for claims has one.
const MOST_SETS: usize = 8;
/// What a quarter of an A30 is charged as, in thousandths of a GPU.
const QUARTER: i64 = 250;

pub(crate) fn scenarios() -> Vec<Scenario> {
    scenarios![sixteen_gpus_have_two_slices_of_counters_and_a_pod_draws_from_the_second]
}

/// What the API server has is what it took: it judges each ResourceSlice by itself. That both slices of counters are read together with those
/// of devices is shown by a pod that is given a part of the last GPU, and charged for it.
async fn sixteen_gpus_have_two_slices_of_counters_and_a_pod_draws_from_the_second(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "counters").await?;
    let gpus = cluster.node(A30)?.gpu_uuids().len();
    let pool = complete_pool(&client).await?;
    let counters: Vec<&[CounterSet]> = pool
        .iter()
        .filter_map(|slice| slice.spec.shared_counters.as_deref())
        .collect();
    let sizes: Vec<usize> = counters.iter().map(|sets| sets.len()).collect();
    ensure!(
        sizes == [MOST_SETS; 2],
        "the slices of counters have {sizes:?} sets"
    );
    let sets = counters.iter().copied().flatten();
    let sets: BTreeMap<&str, &CounterSet> = sets.map(|set| (set.name.as_str(), set)).collect();
    ensure!(
        sets.len() == gpus,
        "{gpus} GPUs have the sets {:?}",
        sets.keys()
    );
    let devices = pool.iter().flat_map(|slice| slice.spec.devices.iter());
    let mut by_set: BTreeMap<&str, Vec<&Device>> = BTreeMap::new();
    for device in devices.flatten() {
        let set = set_of(device, &sets)?;
        by_set.entry(&set.name).or_default().push(device);
    }
    ensure!(
        by_set.len() == gpus,
        "devices draw from {:?} alone",
        by_set.keys()
    );

    let [_, second] = counters.as_slice() else {
        anyhow::bail!("there are {} slices of counters", counters.len());
    };
    let last = second.last().context("the second has a set")?;
    let of_last = by_set.remove(last.name.as_str()).unwrap_or_default();
    let gpu = of_last
        .first()
        .and_then(|device| device.attributes.as_ref()?.get("parentUUID"));
    let gpu = gpu.and_then(|gpu| gpu.string.as_deref());
    let gpu = gpu.with_context(|| format!("no device tells which GPU {} is of", last.name))?;
    let device = "device.attributes['gpu.muster.dev']";
    let selector = format!("{device}.profile == '1g.6gb' && {device}.parentUUID == '{gpu}'");
    let template = builders::slice_template("quarter", &selector)?;
    let templates: Api<ResourceClaimTemplate> = Api::namespaced(client.clone(), "counters");
    kubernetes::create(&templates, &template).await?;
    let pod = Single::create_with_template(cluster, "counters", "last", "quarter").await?;
    let given = pod.runs_on_one(cluster).await?;
    let draws_from_last = of_last.iter().any(|device| device.name == given.device);
    ensure!(
        given.node == A30 && draws_from_last,
        "{given:?} does not draw from {}",
        last.name
    );
    let charged = gangs::charged(&client).await?;
    ensure!(charged.get("counters") == Some(&QUARTER), "{charged:?}");
    pod.finishes(&client, &[given]).await?;
    wait_until_uncut(cluster, A30).await
}

/// All slices of the node's pool, in the order of their names, once they are as many as each of them says.
async fn complete_pool(client: &Client) -> Result<Vec<ResourceSlice>> {
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    eventually("the pool is complete", LIMIT, async || {
        let mut pool = slices.list(&ListParams::default()).await?.items;
        pool.retain(|slice| slice.spec.driver == keys::DRIVER && slice.spec.pool.name == A30);
        pool.sort_by_key(ResourceExt::name_any);
        let said: Vec<(i64, i64)> = pool
            .iter()
            .map(|slice| &slice.spec.pool)
            .map(|pool| (pool.generation, pool.resource_slice_count))
            .collect();
        let listed = i64::try_from(pool.len())?;
        let is_complete = said.first().is_some_and(|&(generation, count)| {
            count == listed && said.iter().all(|it| *it == (generation, count))
        });
        Ok(if is_complete {
            Progress::Done(pool)
        } else {
            Progress::NotYet(format!(
                "{listed} slices, which say their generation and their number: {said:?}"
            ))
        })
    })
    .await
}

/// The set that a device draws from. Fails unless it is one of its pool, and has each of the counters.
fn set_of<'a>(device: &Device, sets: &BTreeMap<&str, &'a CounterSet>) -> Result<&'a CounterSet> {
    let name = &device.name;
    let drawn = device.consumes_counters.as_deref().unwrap_or_default();
    let [drawn] = drawn else {
        anyhow::bail!("{name} draws from {} sets of counters", drawn.len());
    };
    let set = sets.get(drawn.counter_set.as_str());
    let set = *set.with_context(|| format!("{name} draws from {}", drawn.counter_set))?;
    let mut counters = drawn.counters.keys();
    ensure!(
        !drawn.counters.is_empty() && counters.all(|counter| set.counters.contains_key(counter)),
        "{name} draws {:?} from {set:?}",
        drawn.counters
    );
    Ok(set)
}
