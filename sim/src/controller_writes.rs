//! The protocol's writes, done to the API server directly: for a benchmark, where the requests of the controller
//! ([`crate::performing`]) would only cost time. That both come to the same is asserted (`tests/requests.rs`).

use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use muster_api::{
    Cohort, Flavor, Gang, Ledger, NodeDevices, PriorityTier, Queue, QueueSpec, Team, keys,
};
use muster_cluster::object::{Kind, Object, ObjectKey};
use muster_protocol::{ApiRequest, Outcome};
use serde_json::Value;

use crate::api_server::{ApiServer, Failure, Precondition, Stored, key, validation};

/// Does a write. [`ApiRequest::ReadAll`] is not one: it needs the watch of whoever asked.
pub fn apply(api: &mut ApiServer, write: &ApiRequest) -> Outcome {
    let done = match write {
        ApiRequest::ReadObject { key } => api.object(key).cloned().ok_or(Failure::NotFound),
        ApiRequest::ReadAll { .. } | ApiRequest::PublishEvent(_) => return Outcome::Done(None),
        ApiRequest::CreateLedger { spec } => {
            api.create(Ledger::new(keys::LEDGER_NAME, spec.clone()))
        }
        ApiRequest::ReplaceLedger {
            resource_version,
            spec,
        } => {
            let precondition = Precondition {
                uid: None,
                resource_version: Some(resource_version),
            };
            api.update::<Ledger>("", keys::LEDGER_NAME, precondition, |ledger| {
                ledger.spec = spec.clone();
            })
        }
        ApiRequest::CreateGang { gang } => {
            let mut gang = gang.as_ref().clone();
            gang.status = None;
            api.create(gang)
        }
        ApiRequest::ReplaceGangStatus {
            key,
            uid,
            resource_version,
            status,
            ..
        } => {
            let precondition = Precondition::exactly(uid, resource_version);
            api.update::<Gang>(&key.namespace, &key.name, precondition, |gang| {
                gang.status = Some(status.as_ref().clone());
            })
        }
        ApiRequest::DeleteGang {
            key,
            uid,
            resource_version,
        } => {
            let precondition = Precondition::exactly(uid, resource_version);
            return deleted(api.delete(key, precondition));
        }
        ApiRequest::CreateNodeDevices { node, spec } => {
            let mut object = NodeDevices::new(node, spec.clone());
            object.metadata.finalizers = finalizers(!spec.permits.is_empty());
            api.create(object)
        }
        ApiRequest::ReplaceNodeDevices {
            node,
            uid,
            resource_version,
            spec,
            finalizer,
        } => {
            let precondition = Precondition::exactly(uid, resource_version);
            api.update::<NodeDevices>("", node, precondition, |object| {
                object.spec = spec.clone();
                object.metadata.finalizers = finalizers(*finalizer);
            })
        }
        ApiRequest::DeleteNodeDevices {
            node,
            uid,
            resource_version,
        } => {
            let precondition = Precondition::exactly(uid, resource_version);
            return deleted(api.delete(&key(Kind::NodeDevices, "", node), precondition));
        }
        ApiRequest::PatchPod { key, patch } => patch_pod(api, key, patch),
        ApiRequest::PatchPodStatus { key, patch } => {
            patched::<Pod>(api, key, patch).and_then(|after| {
                api.update::<Pod>(&key.namespace, &key.name, Precondition::default(), |pod| {
                    pod.status = after.status;
                })
            })
        }
        ApiRequest::DeletePod { key, uid, .. } => {
            let done = api.delete(key, Precondition::uid(uid));
            return ended(api, key, done);
        }
        ApiRequest::ForceDeletePod {
            key,
            uid,
            resource_version,
        } => {
            let precondition = Precondition::exactly(uid, resource_version);
            let done = api.delete_now(key, precondition);
            return ended(api, key, done);
        }
        ApiRequest::PatchJob { key, patch, .. } => {
            patched::<Job>(api, key, patch).and_then(|after| {
                api.update::<Job>(&key.namespace, &key.name, Precondition::default(), |job| {
                    // Empty ones are none, as where it is asked for by a request.
                    let annotations = after.metadata.annotations;
                    job.metadata.annotations = annotations.filter(|it| !it.is_empty());
                    job.spec = after.spec;
                })
            })
        }
        ApiRequest::PublishQueue {
            namespace,
            team,
            status,
        } => {
            if api.get::<Queue>(namespace, team).is_none() {
                let mut queue = Queue::new(team, QueueSpec { team: team.clone() });
                queue.metadata.namespace = Some(namespace.clone());
                if let Err(failure) = api.create(queue) {
                    return outcome(Err(failure));
                }
            }
            api.update::<Queue>(namespace, team, Precondition::default(), |queue| {
                queue.status = Some(status.as_ref().clone());
            })
        }
        ApiRequest::PublishTeam { team, status } => {
            api.update::<Team>("", team, Precondition::default(), |team| {
                team.status = Some(status.as_ref().clone());
            })
        }
        ApiRequest::PublishCohort { cohort, status } => {
            api.update::<Cohort>("", cohort, Precondition::default(), |cohort| {
                cohort.status = Some(status.as_ref().clone());
            })
        }
        ApiRequest::PublishFlavor { flavor, status } => {
            api.update::<Flavor>("", flavor, Precondition::default(), |flavor| {
                flavor.status = Some(status.as_ref().clone());
            })
        }
        ApiRequest::PublishPriorityTier { tier, status } => {
            api.update::<PriorityTier>("", tier, Precondition::default(), |tier| {
                tier.status = Some(status.as_ref().clone());
            })
        }
        ApiRequest::DeleteQueue { key } => {
            return deleted(api.delete(key, Precondition::default()));
        }
    };
    outcome(done)
}

fn finalizers(wanted: bool) -> Option<Vec<String>> {
    wanted.then(|| vec![keys::PERMITS_FINALIZER.to_owned()])
}

fn outcome(done: Result<Object, Failure>) -> Outcome {
    match done {
        Ok(object) => Outcome::Done(Some(object)),
        Err(Failure::Conflict) => Outcome::Conflict,
        Err(Failure::NotFound) => Outcome::NotFound,
        Err(Failure::Refused(answer)) => Outcome::Refused(answer),
    }
}

fn deleted(done: Result<(), Failure>) -> Outcome {
    match done {
        Ok(()) => Outcome::Done(None),
        Err(failure) => outcome(Err(failure)),
    }
}

/// What is left of a pod that was told to end.
fn ended(api: &ApiServer, pod: &ObjectKey, done: Result<(), Failure>) -> Outcome {
    match done {
        Ok(()) => Outcome::Done(api.object(pod).cloned()),
        Err(failure) => outcome(Err(failure)),
    }
}

/// The object as a JSON patch leaves it: a failed test is a conflict; a patch that does not fit is refused.
fn patched<T>(api: &ApiServer, key: &ObjectKey, patch: &Value) -> Result<T, Failure>
where
    T: Stored + serde::Serialize + serde::de::DeserializeOwned,
{
    let refused = |cause: &dyn std::fmt::Display| Failure::Refused(cause.to_string());
    let before = api.get::<T>(&key.namespace, &key.name);
    let before = before.ok_or(Failure::NotFound)?;
    let patch: json_patch::Patch =
        serde_json::from_value(patch.clone()).map_err(|error| refused(&error))?;
    let mut document = serde_json::to_value(before).map_err(|error| refused(&error))?;
    json_patch::patch(&mut document, &patch.0).map_err(|error| match error.kind {
        json_patch::PatchErrorKind::TestFailed => Failure::Conflict,
        _ => refused(&error),
    })?;
    serde_json::from_value(document).map_err(|error| refused(&error))
}

/// A patch that changes what the API server lets nobody change is refused.
fn patch_pod(api: &mut ApiServer, key: &ObjectKey, patch: &Value) -> Result<Object, Failure> {
    let after: Pod = patched(api, key, patch)?;
    let pod = api.get::<Pod>(&key.namespace, &key.name);
    let pod = pod.ok_or(Failure::NotFound)?.clone();
    validation::update(&pod, &after).map_err(Failure::Refused)?;
    api.update::<Pod>(&key.namespace, &key.name, Precondition::default(), |pod| {
        pod.metadata.annotations = after.metadata.annotations;
        pod.metadata.labels = after.metadata.labels;
        pod.spec = after.spec;
    })
}

/// What a write is about, in one line of a trace.
pub fn describe(write: &ApiRequest) -> String {
    match write {
        ApiRequest::ReadObject { key } => format!("read {}", name(key)),
        ApiRequest::ReadAll { kind } => format!("list and watch {kind:?}"),
        ApiRequest::CreateLedger { spec } => format!("create Ledger: epoch {}", spec.leader_epoch),
        ApiRequest::ReplaceLedger { spec, .. } => {
            let intents: Vec<String> = spec
                .intents
                .iter()
                .map(|intent| format!("{:?} {}#{}", intent.kind, intent.name, intent.attempt))
                .collect();
            format!(
                "Ledger: epoch {}, sequence {}, {}",
                spec.leader_epoch,
                spec.sequence,
                if intents.is_empty() {
                    "no intent".to_owned()
                } else {
                    intents.join(", ")
                }
            )
        }
        ApiRequest::CreateGang { gang } => format!("create {}", name(&gang_key(gang))),
        ApiRequest::ReplaceGangStatus { key, status, .. } => format!(
            "{} status: epoch {}, {:?}, attempt {}, {}",
            name(key),
            status.leader_epoch,
            status.phase,
            status.attempt,
            match (&status.placement, &status.queue) {
                (None, _) if status.proposal.is_some() => "proposed".to_owned(),
                (Some(placement), _) => placement
                    .nodes
                    .iter()
                    .map(|run| format!("{}x{}", run.node, run.ranks))
                    .collect::<Vec<_>>()
                    .join(" "),
                (None, Some(queue)) => queue.reason.to_string(),
                (None, None) => "holds nothing".to_owned(),
            }
        ),
        ApiRequest::DeleteGang { key, .. } | ApiRequest::DeleteQueue { key } => {
            format!("delete {}", name(key))
        }
        ApiRequest::CreateNodeDevices { node, spec } => {
            format!("create NodeDevices {node}: {}", permits(spec))
        }
        ApiRequest::ReplaceNodeDevices { node, spec, .. } => {
            let lost = if spec.lost { "lost, " } else { "" };
            let awaits = if spec.awaits_driver {
                "awaits its driver, "
            } else {
                ""
            };
            format!("NodeDevices {node}: {lost}{awaits}{}", permits(spec))
        }
        ApiRequest::DeleteNodeDevices { node, .. } => format!("delete NodeDevices {node}"),
        ApiRequest::PatchPodStatus { key, .. } => format!("tell {} that it is evicted", name(key)),
        ApiRequest::DeletePod { key, .. } => format!("evict {}", name(key)),
        ApiRequest::ForceDeletePod { key, .. } => format!("delete {} by force", name(key)),
        ApiRequest::PatchJob { key, patch, .. } => {
            let operations = patch.as_array().map_or(&[][..], Vec::as_slice);
            let changes = operations.iter().filter(|it| it["op"] != "test");
            let paths: Vec<String> = changes
                .map(|it| format!("{} {} {}", it["op"], it["path"], it["value"]))
                .collect();
            format!("patch {}: {}", name(key), paths.join(", "))
        }
        ApiRequest::PatchPod { key, patch } => {
            let parts: Vec<String> = patch
                .as_array()
                .into_iter()
                .flatten()
                .filter(|operation| operation["op"] != "test")
                .map(|operation| {
                    let path = operation["path"].as_str().unwrap_or_default();
                    match operation["value"].as_str() {
                        Some(value) => format!("{path}={value}"),
                        None => format!("{} {path}", operation["op"].as_str().unwrap_or_default()),
                    }
                })
                .collect();
            format!("{}: {}", name(key), parts.join(" "))
        }
        ApiRequest::PublishQueue {
            namespace, team, ..
        } => format!("Queue {namespace}/{team}"),
        ApiRequest::PublishTeam { team, .. } => format!("status of Team {team}"),
        ApiRequest::PublishCohort { cohort, .. } => format!("status of Cohort {cohort}"),
        ApiRequest::PublishFlavor { flavor, .. } => format!("status of Flavor {flavor}"),
        ApiRequest::PublishPriorityTier { tier, .. } => format!("status of PriorityTier {tier}"),
        ApiRequest::PublishEvent(note) => format!("Event {} {}", note.name, note.reason),
    }
}

fn gang_key(gang: &Gang) -> ObjectKey {
    key(
        Kind::Gang,
        gang.metadata().namespace.as_deref().unwrap_or_default(),
        gang.metadata().name.as_deref().unwrap_or_default(),
    )
}

fn name(key: &ObjectKey) -> String {
    format!("{:?} {}", key.kind, key.name)
}

fn permits(spec: &muster_api::NodeDevicesSpec) -> String {
    let permits: Vec<String> = spec
        .permits
        .iter()
        .map(|permit| {
            let mark = if permit.withdrawn { " withdrawn" } else { "" };
            format!("{}#{}{mark}", permit.pod_uid, permit.attempt)
        })
        .collect();
    format!(
        "epoch {}, permits [{}]",
        spec.leader_epoch,
        permits.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{PodSchedulingGate, PodSpec};
    use muster_api::{LedgerSpec, NodeDevicesSpec, Permit};
    use serde_json::json;

    use super::*;

    fn gated_pod(api: &mut ApiServer) -> Object {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("ml".into());
        pod.metadata.name = Some("p".into());
        pod.spec = Some(PodSpec {
            scheduling_gates: Some(vec![PodSchedulingGate {
                name: keys::ADMISSION_GATE.into(),
            }]),
            ..PodSpec::default()
        });
        api.create(pod).unwrap()
    }

    fn ungate(pod: &Object) -> ApiRequest {
        let version = pod.metadata().resource_version.clone();
        ApiRequest::PatchPod {
            key: pod.key(),
            patch: json!([
                {"op": "test", "path": "/metadata/resourceVersion", "value": version},
                {"op": "remove", "path": "/spec/schedulingGates"},
            ]),
        }
    }

    #[test]
    fn a_patch_is_done_once_and_conflicts_when_its_test_fails() {
        let mut api = ApiServer::default();
        let pod = gated_pod(&mut api);
        let write = ungate(&pod);
        assert!(matches!(apply(&mut api, &write), Outcome::Done(Some(_))));
        assert!(matches!(apply(&mut api, &write), Outcome::Conflict));
    }

    #[test]
    fn a_gate_is_never_put_back() {
        let mut api = ApiServer::default();
        let pod = gated_pod(&mut api);
        apply(&mut api, &ungate(&pod));
        let back = ApiRequest::PatchPod {
            key: pod.key(),
            patch: json!([{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": "x"}]}]),
        };
        assert!(matches!(apply(&mut api, &back), Outcome::Refused(_)));
    }

    #[test]
    fn what_exists_is_not_created_again_and_what_is_gone_is_not_found() {
        let mut api = ApiServer::default();
        let create = ApiRequest::CreateLedger {
            spec: LedgerSpec::default(),
        };
        assert!(matches!(apply(&mut api, &create), Outcome::Done(_)));
        assert!(matches!(apply(&mut api, &create), Outcome::Conflict));
        let read = ApiRequest::ReadObject {
            key: key(Kind::Gang, "ml", "g"),
        };
        assert!(matches!(apply(&mut api, &read), Outcome::NotFound));
    }

    #[test]
    fn node_devices_have_their_finalizer_while_they_have_permits() {
        let mut api = ApiServer::default();
        let spec = NodeDevicesSpec {
            permits: vec![Permit::default()],
            ..NodeDevicesSpec::default()
        };
        apply(
            &mut api,
            &ApiRequest::CreateNodeDevices {
                node: "node-0".into(),
                spec,
            },
        );
        let object = api.get::<NodeDevices>("", "node-0").unwrap();
        assert_eq!(
            object.metadata.finalizers.as_deref(),
            Some([keys::PERMITS_FINALIZER.to_owned()].as_slice())
        );
    }
}
