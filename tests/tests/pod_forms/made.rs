//! The manifests as a user applies them, and what became of them.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::{NamespaceResourceScope, api::core::v1::Pod};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};
use muster_api::{Gang, GangPhase, Reason, keys};
use muster_tests::{
    builders,
    kubernetes::{Answer, create_or_be_refused},
};
use serde_json::{Value, json};

use crate::{
    cases::{Case, Outcome},
    document::{TEMPLATES, manifest},
};

/// Makes the namespace of a case and in it what its manifest has. The run that a CronJob would make at night is made at once, as by
/// `kubectl create job --from`.
pub(crate) async fn make(client: &Client, case: &Case) -> Result<Answer> {
    let namespace = case.namespace();
    builders::namespace(client, &namespace, case.team()).await?;
    for file in [TEMPLATES, case.form] {
        for object in documents(&manifest(file)?)? {
            let run = (object["kind"] == "CronJob").then(|| run_of(&object));
            for object in [Some(object), run].into_iter().flatten() {
                if let Answer::Refused(said) = create(client, Some(&namespace), object).await? {
                    return Ok(Answer::Refused(said));
                }
            }
        }
    }
    Ok(Answer::Taken)
}

pub(crate) fn documents(text: &str) -> Result<Vec<Value>> {
    let mut documents = Vec::new();
    for document in text.split("\n---\n") {
        documents.push(serde_saphyr::from_str(document)?);
    }
    Ok(documents)
}

fn run_of(cron_job: &Value) -> Value {
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "run"},
        "spec": cron_job["spec"]["jobTemplate"]["spec"],
    })
}

/// Creates an object of any kind, in a namespace unless its kind has none.
pub(crate) async fn create(
    client: &Client,
    namespace: Option<&str>,
    object: Value,
) -> Result<Answer> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let types = object.types.as_ref().context("apiVersion and kind")?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    create_or_be_refused(&api, &object).await
}

/// Objects by their namespace.
pub(crate) fn by_namespace<K>(objects: Vec<K>) -> BTreeMap<String, Vec<K>>
where
    K: Resource<Scope = NamespaceResourceScope>,
{
    let mut found: BTreeMap<String, Vec<K>> = BTreeMap::new();
    for object in objects {
        let namespace = object.namespace().unwrap_or_default();
        found.entry(namespace).or_default().push(object);
    }
    found
}

/// The pods are as the webhook writes them, and nobody has let them go.
pub(crate) fn is_held(pods: &[Pod]) -> Result<()> {
    ensure!(!pods.is_empty(), "there is no pod");
    for pod in pods {
        let name = pod.name_any();
        ensure!(has_gate(pod), "{name} has no gate");
        ensure!(has_marker(pod), "{name} has no marker");
        let annotations = pod.annotations();
        if keys::SHORTHAND
            .iter()
            .any(|key| annotations.contains_key(*key))
        {
            claim_is_given(pod).context(name)?;
        }
    }
    Ok(())
}

/// Nothing was written into the pods.
pub(crate) fn is_left_alone(pods: &[Pod]) -> Result<()> {
    ensure!(!pods.is_empty(), "there is no pod");
    for pod in pods {
        ensure!(
            !has_gate(pod) && !has_marker(pod),
            "{} was changed: {:?}",
            pod.name_any(),
            pod.spec
        );
    }
    Ok(())
}

fn has_gate(pod: &Pod) -> bool {
    let gates = pod.spec.iter().flat_map(|spec| &spec.scheduling_gates);
    gates
        .flatten()
        .any(|gate| gate.name == keys::ADMISSION_GATE)
}

fn has_marker(pod: &Pod) -> bool {
    let first = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    let resources = first.and_then(|container| container.resources.as_ref());
    resources.is_some_and(|resources| {
        [&resources.limits, &resources.requests]
            .into_iter()
            .all(|list| {
                let marker = list
                    .as_ref()
                    .and_then(|list| list.get(keys::MARKER_RESOURCE));
                marker.is_some_and(|amount| amount.0 == "0")
            })
    })
}

/// The one claim that a shorthand became is used by the container that it names, else by the first, and by no other.
fn claim_is_given(pod: &Pod) -> Result<()> {
    let spec = pod.spec.as_ref().context("a spec")?;
    let claims = spec.resource_claims.as_deref().unwrap_or_default();
    let [claim] = claims else {
        bail!("it has {} claims", claims.len());
    };
    let first = &spec.containers.first().context("a container")?.name;
    let wanted = pod.annotations().get(keys::CONTAINER).unwrap_or(first);
    let users: Vec<&String> = spec
        .containers
        .iter()
        .filter(|container| {
            let resources = container.resources.iter();
            let mut used = resources.flat_map(|resources| resources.claims.iter().flatten());
            used.any(|used| used.name == claim.name)
        })
        .map(|container| &container.name)
        .collect();
    ensure!(users == [wanted], "its claim is used by {users:?}");
    Ok(())
}

/// What is seen is this outcome.
pub(crate) fn became(outcome: &Outcome, pods: &[Pod], gangs: &[Gang]) -> Result<()> {
    let running = |size: i32| (size, None);
    let waiting = |size: i32, reason: Reason| (size, Some(reason));
    let (expected, gpus) = match *outcome {
        Outcome::Starts { gangs, size, gpus } => (vec![running(size); gangs], gpus),
        Outcome::Waits {
            gangs,
            size,
            reason,
        } => (vec![waiting(size, reason); gangs], 0),
        Outcome::OneWaits(reason) => (vec![running(1), waiting(1, reason)], 1),
        Outcome::Refused(..) => (Vec::new(), 0),
        Outcome::NotManaged => {
            let runs = |pod: &Pod| {
                let phase = pod
                    .status
                    .as_ref()
                    .and_then(|status| status.phase.as_deref());
                phase == Some("Running")
            };
            ensure!(!pods.is_empty() && pods.iter().all(runs), "it does not run");
            (Vec::new(), 0)
        }
    };
    let mut seen = Vec::new();
    let mut said = Vec::new();
    let mut milli = 0;
    for gang in gangs {
        let status = gang.status.clone().unwrap_or_default();
        let queue = status.queue.as_ref();
        said.push(format!(
            "{} is {:?}: {queue:?}",
            gang.name_any(),
            status.phase
        ));
        if status.phase == GangPhase::Running {
            seen.push(running(gang.spec.size));
        } else if let Some(queue) = queue {
            seen.push(waiting(gang.spec.size, queue.reason));
        }
        for claims in status.admission.iter().flat_map(|it| &it.charge.claims) {
            milli += i64::try_from(claims.uids.len())? * claims.gpus_milli;
        }
    }
    let same = gangs.len() == expected.len()
        && expected
            .iter()
            .all(|one| count(&seen, one) == count(&expected, one));
    ensure!(
        same && milli == gpus * 1000,
        "expected {outcome}; {milli} thousandths of GPUs are charged, and {said:?}"
    );
    Ok(())
}

fn count<T: PartialEq>(all: &[T], one: &T) -> usize {
    all.iter().filter(|other| *other == one).count()
}
