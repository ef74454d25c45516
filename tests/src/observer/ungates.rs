//! S4: the first ungate of an attempt happens after its plan is stored and all its pods exist; no attempt mixes two
//! plans. A gate that somebody else takes is not an ungate of Muster's: S2 and S3 judge what comes of it.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use muster_api::keys;

use super::{
    findings::{Findings, Invariant::S4},
    world::{self, World},
};

/// Judges a pod that was written, by the world before it.
pub(super) fn check(world: &World, pod: &Pod, findings: &mut Findings) {
    let uid = world::uid(pod);
    let was_gated = world.pods.get(&uid).is_some_and(world::is_gated);
    let annotation = |key: &str| pod.annotations().get(key).cloned();
    let (Some(name), Some(attempt)) = (annotation(keys::GANG_NAME), annotation(keys::ATTEMPT))
    else {
        return;
    };
    if !was_gated
        || world::is_gated(pod)
        || annotation(keys::PLACEMENT).as_deref() == Some(keys::PLACEMENT_ANY)
    {
        return;
    }
    findings.check(S4, None);
    let who = format!("pod {} of gang {name}", pod.name_any());
    for wrong in wrongs(world, pod, &name, &attempt) {
        findings.violation(S4, &format!("{who} {wrong}"));
    }
}

fn wrongs(world: &World, pod: &Pod, gang: &str, attempt: &str) -> Vec<String> {
    let mut gangs = world.gangs.values();
    let gang = gangs.find(|known| known.namespace() == pod.namespace() && known.name_any() == gang);
    let Some(status) = gang.and_then(|gang| gang.status.as_ref()) else {
        return vec!["was ungated and the gang has no status".to_owned()];
    };
    let Some(admission) = &status.admission else {
        return vec!["was ungated before the gang's admission was stored".to_owned()];
    };
    let uid = world::uid(pod);
    let mut members = admission.pods.iter();
    let missing = members
        .clone()
        .filter(|member| !world.pods.contains_key(&member.uid))
        .count();
    let rank = members.position(|member| member.uid == uid);
    let planned = rank.and_then(|rank| status.placement.as_ref()?.node_of(rank));
    let pinned = pins(pod);
    let mut wrong = Vec::new();
    if attempt != status.attempt.to_string() {
        wrong.push(format!(
            "was ungated for attempt {attempt} while the gang is at {}",
            status.attempt
        ));
    }
    if missing > 0 {
        wrong.push(format!(
            "was ungated while {missing} of its gang's pods did not exist"
        ));
    }
    match planned {
        Some(node) if !pinned.iter().all(|pin| *pin == node.node) || pinned.is_empty() => {
            wrong.push(format!(
                "is planned on {} and pinned to {pinned:?}",
                node.node
            ));
        }
        None => wrong.push("was ungated and is not part of the stored plan".to_owned()),
        Some(_) => {}
    }
    wrong
}

/// The nodes that the pod's required terms pin it to, one per term; a term without a pin stands as `anywhere`.
fn pins(pod: &Pod) -> Vec<String> {
    let affinity = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| {
        affinity
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    required
        .iter()
        .flat_map(|required| &required.node_selector_terms)
        .map(|term| {
            let fields = term.match_fields.iter().flatten();
            fields
                .filter(|field| field.key == "metadata.name")
                .find_map(|field| field.values.as_ref()?.first().cloned())
                .unwrap_or_else(|| "anywhere".to_owned())
        })
        .collect()
}
