//! Carries out one effect of the protocol against the API server.
//!
//! Preconditions are the machine's: they are passed on with the write, so that the API server judges them at the
//! moment of the write. Nothing is retried here; the machine is given what is known and decides.

mod answer;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        batch::v1::Job,
        core::v1::{ObjectReference, Pod},
        events::v1::Event,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy},
    core::{ClusterResourceScope, Request},
};
use muster_api::{
    Cohort, CohortSpec, Flavor, FlavorSpec, Gang, GangSpec, GangStatus, Ledger, LedgerSpec,
    NodeDevices, NodeDevicesSpec, PriorityTier, PriorityTierSpec, Queue, QueueSpec, QueueStatus,
    Team, TeamSpec, keys,
};
use muster_cluster::object::{Object, ObjectKey};
use muster_protocol::{ApiRequest, EventNote, Outcome};
use muster_serve::{
    client::{CALL_LIMIT, CallError, within},
    event::Told,
    watch::managed_fields,
};
use serde::Serialize;
use serde_json::Value;

use crate::{outcome, read};

/// What Events name as their reporter.
const REPORTER: &str = "muster.dev/controller";

/// Carries out effects.
#[derive(Clone)]
pub struct Performer {
    client: Client,
    instance: String,
}

impl std::fmt::Debug for Performer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Performer")
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}

/// What a write came to, so far: the object, or why there is none.
type Written = Result<Option<Object>, Outcome>;

impl Performer {
    /// Writes with this client, which must not repeat anything by itself. `instance` is the replica's name.
    pub fn new(client: Client, instance: String) -> Self {
        Self { client, instance }
    }

    /// What it writes with.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Carries out a write and says what came of it. `seen` is the NodeDevices that the write replaces, as the machine
    /// sees it. [`ApiRequest::ReadAll`] is the feed's and not carried out here.
    pub async fn perform(&self, write: &ApiRequest, seen: Option<&NodeDevices>) -> Outcome {
        match self.attempt(write, seen).await {
            Ok(object) => Outcome::Done(object),
            Err(outcome) => outcome,
        }
    }

    async fn attempt(&self, write: &ApiRequest, seen: Option<&NodeDevices>) -> Written {
        match write {
            ApiRequest::ReadObject { key } => self.read(key).await,
            ApiRequest::ReadAll { kind } => {
                Err(Outcome::Refused(format!("{kind:?} is listed by its watch")))
            }
            ApiRequest::CreateLedger { spec } => self.create_ledger(spec).await,
            ApiRequest::ReplaceLedger {
                resource_version,
                spec,
            } => self.replace_ledger(resource_version, spec).await,
            ApiRequest::CreateGang { gang } => self.create_gang(gang).await,
            ApiRequest::ReplaceGangStatus {
                key,
                uid,
                resource_version,
                status,
                ..
            } => {
                self.replace_gang_status(key, uid, resource_version, status)
                    .await
            }
            ApiRequest::DeleteGang {
                key,
                uid,
                resource_version,
            } => self.delete_gang(key, uid, resource_version).await,
            ApiRequest::CreateNodeDevices { node, spec } => {
                self.create_node_devices(node, spec).await
            }
            ApiRequest::ReplaceNodeDevices {
                node,
                uid,
                resource_version,
                spec,
                finalizer,
            } => {
                let replaced = seen.filter(|seen| {
                    seen.metadata.uid.as_ref() == Some(uid)
                        && seen.metadata.resource_version.as_ref() == Some(resource_version)
                });
                self.replace_node_devices(node, replaced, spec, *finalizer)
                    .await
            }
            ApiRequest::DeleteNodeDevices {
                node,
                uid,
                resource_version,
            } => self.delete_node_devices(node, uid, resource_version).await,
            ApiRequest::PatchPod { key, patch } => self.patch_pod(key, patch).await,
            ApiRequest::PatchPodStatus { key, patch } => self.patch_pod_status(key, patch).await,
            ApiRequest::DeletePod {
                key,
                uid,
                grace_period_seconds,
            } => {
                let only_it = Preconditions {
                    uid: Some(uid.clone()),
                    resource_version: None,
                };
                let params = DeleteParams {
                    preconditions: Some(only_it),
                    grace_period_seconds: *grace_period_seconds,
                    ..DeleteParams::default()
                };
                self.delete_pod(key, &params).await
            }
            ApiRequest::ForceDeletePod {
                key,
                uid,
                resource_version,
            } => {
                let params = DeleteParams {
                    grace_period_seconds: Some(0),
                    ..only_as_seen(uid, resource_version)
                };
                self.delete_pod(key, &params).await
            }
            ApiRequest::PatchJob { key, patch, .. } => self.patch_job(key, patch).await,
            ApiRequest::PublishQueue {
                namespace,
                team,
                status,
            } => self.publish_queue(namespace, team, status).await,
            ApiRequest::PublishTeam { team, status } => {
                self.publish_status::<Team>(team, status, team_of).await
            }
            ApiRequest::PublishCohort { cohort, status } => {
                self.publish_status::<Cohort>(cohort, status, cohort_of)
                    .await
            }
            ApiRequest::PublishFlavor { flavor, status } => {
                self.publish_status::<Flavor>(flavor, status, flavor_of)
                    .await
            }
            ApiRequest::PublishPriorityTier { tier, status } => {
                self.publish_status::<PriorityTier>(tier, status, tier_of)
                    .await
            }
            ApiRequest::DeleteQueue { key } => self.delete_queue(key).await,
            ApiRequest::PublishEvent(note) => self.publish_event(note).await,
        }
    }

    async fn read(&self, key: &ObjectKey) -> Written {
        let stored = read::object(&self.client, key).await.map_err(failed)?;
        stored.map(Some).ok_or(Outcome::NotFound)
    }

    async fn create_ledger(&self, spec: &LedgerSpec) -> Written {
        let ledger = Ledger::new(keys::LEDGER_NAME, spec.clone());
        let ledgers: Api<Ledger> = Api::all(self.client.clone());
        let stored = within(CALL_LIMIT, ledgers.create(&post_params(), &ledger)).await;
        done(stored, Object::Ledger)
    }

    /// Replaces all of the Ledger but what the API server itself keeps: nobody else writes to it.
    async fn replace_ledger(&self, resource_version: &str, spec: &LedgerSpec) -> Written {
        let metadata = ObjectMeta {
            name: Some(keys::LEDGER_NAME.to_owned()),
            resource_version: Some(resource_version.to_owned()),
            ..ObjectMeta::default()
        };
        let ledger = json(&Sent::<_, ()>::of::<Ledger>(metadata, spec, None))?;
        let ledgers = calls_of::<Ledger>(None);
        let call = ledgers.replace(keys::LEDGER_NAME, &post_params(), ledger);
        let stored = answer::ledger(&self.client, call).await.map_err(failed)?;
        Ok(Some(Object::Ledger(Arc::new(stored))))
    }

    async fn create_gang(&self, gang: &Gang) -> Written {
        let namespace = gang.metadata.namespace.as_deref().unwrap_or_default();
        let call = calls_of::<Gang>(Some(namespace)).create(&post_params(), json(gang)?);
        told(answer::version(&self.client, call).await, gang_of)
    }

    /// A write to `/status` ignores all but the status, so the rest need not be known.
    async fn replace_gang_status(
        &self,
        key: &ObjectKey,
        uid: &str,
        resource_version: &str,
        status: &GangStatus,
    ) -> Written {
        let metadata = ObjectMeta {
            name: Some(key.name.clone()),
            namespace: Some(key.namespace.clone()),
            uid: Some(uid.to_owned()),
            resource_version: Some(resource_version.to_owned()),
            ..ObjectMeta::default()
        };
        let spec = ignored_gang_spec();
        let gang = json(&Sent::of::<Gang>(metadata, &spec, Some(status)))?;
        let gangs = calls_of::<Gang>(Some(&key.namespace));
        let call = gangs.replace_subresource("status", &key.name, &post_params(), gang);
        told(answer::version(&self.client, call).await, gang_of)
    }

    async fn delete_gang(&self, key: &ObjectKey, uid: &str, resource_version: &str) -> Written {
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            ..only_as_seen(uid, resource_version)
        };
        let gangs: Api<Gang> = Api::namespaced(self.client.clone(), &key.namespace);
        let call = gangs.delete(&key.name, &params);
        within(CALL_LIMIT, call).await.map_err(failed)?;
        Ok(None)
    }

    async fn create_node_devices(&self, node: &str, spec: &NodeDevicesSpec) -> Written {
        let mut object = NodeDevices::new(node, spec.clone());
        set_permits_finalizer(&mut object.metadata, !spec.permits.is_empty());
        let all: Api<NodeDevices> = Api::all(self.client.clone());
        let stored = within(CALL_LIMIT, all.create(&post_params(), &object)).await;
        done(stored, Object::NodeDevices)
    }

    /// What is replaced is known, so that labels and finalizers of others stay, and it is the version that the machine
    /// saw. Where another is seen by now, the precondition cannot hold any more: nothing needs to be sent.
    async fn replace_node_devices(
        &self,
        node: &str,
        replaced: Option<&NodeDevices>,
        spec: &NodeDevicesSpec,
        finalizer: bool,
    ) -> Written {
        let mut metadata = replaced.ok_or(Outcome::Conflict)?.metadata.clone();
        set_permits_finalizer(&mut metadata, finalizer);
        let object = json(&Sent::<_, ()>::of::<NodeDevices>(metadata, spec, None))?;
        let call = calls_of::<NodeDevices>(None).replace(node, &post_params(), object);
        told(answer::version(&self.client, call).await, node_devices_of)
    }

    async fn delete_node_devices(&self, node: &str, uid: &str, resource_version: &str) -> Written {
        let all: Api<NodeDevices> = Api::all(self.client.clone());
        let params = only_as_seen(uid, resource_version);
        let call = all.delete(node, &params);
        within(CALL_LIMIT, call).await.map_err(failed)?;
        Ok(None)
    }

    async fn patch_pod(&self, key: &ObjectKey, patch: &Value) -> Written {
        let pods = calls_of::<Pod>(Some(&key.namespace));
        let call = pods.patch(&key.name, &patch_params(), &operations());
        let call = with_body(call, json(patch)?);
        told(answer::version(&self.client, call).await, pod_of)
    }

    async fn patch_pod_status(&self, key: &ObjectKey, patch: &Value) -> Written {
        let pods = calls_of::<Pod>(Some(&key.namespace));
        let call = pods.patch_subresource("status", &key.name, &patch_params(), &operations());
        let call = with_body(call, json(patch)?);
        told(answer::version(&self.client, call).await, pod_of)
    }

    /// With the grace period that the pod says, unless another one is given. A pod that its kubelet has to end first is answered as it is
    /// until then.
    async fn delete_pod(&self, key: &ObjectKey, params: &DeleteParams) -> Written {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let call = pods.delete(&key.name, params);
        let answer = within(CALL_LIMIT, call).await.map_err(failed)?;
        answer
            .left()
            .map_or(Ok(None), |pod| done(Ok(pod), Object::Pod))
    }

    async fn patch_job(&self, key: &ObjectKey, patch: &Value) -> Written {
        let jobs = calls_of::<Job>(Some(&key.namespace));
        let call = jobs.patch(&key.name, &patch_params(), &operations());
        let call = with_body(call, json(patch)?);
        told(answer::version(&self.client, call).await, job_of)
    }

    /// Without precondition: only leaders write Queues, nothing is decided by them, and what a superseded
    /// leader may still write is corrected by the next status that the new one publishes.
    async fn publish_queue(&self, namespace: &str, team: &str, status: &QueueStatus) -> Written {
        let of = (Some(namespace), team);
        match self.patch_status::<Queue>(of, status, queue_of).await {
            Err(Outcome::NotFound) => {}
            written => return written,
        }
        let queue = Queue::new(
            team,
            QueueSpec {
                team: team.to_owned(),
            },
        );
        let call = calls_of::<Queue>(Some(namespace)).create(&post_params(), json(&queue)?);
        match answer::done(&self.client, call).await {
            Ok(()) => {}
            Err(error) if error.status_code() == Some(409) => {}
            Err(error) => return Err(failed(error)),
        }
        self.patch_status::<Queue>(of, status, queue_of).await
    }

    /// The status of a Team, a Cohort, a Flavor or a PriorityTier. Without precondition, as for Queues. An object that is gone is not made again.
    async fn publish_status<K>(
        &self,
        name: &str,
        status: &impl Serialize,
        object_of: fn(ObjectMeta) -> Object,
    ) -> Written
    where
        K: Resource<Scope = ClusterResourceScope, DynamicType = ()>,
    {
        self.patch_status::<K>((None, name), status, object_of)
            .await
    }

    /// Of the object of that namespace and name. `add` replaces what is there, whole. A Queue names a hundred gangs, so what is sent is made
    /// once and not copied.
    async fn patch_status<K>(
        &self,
        (namespace, name): (Option<&str>, &str),
        status: &impl Serialize,
        object_of: fn(ObjectMeta) -> Object,
    ) -> Written
    where
        K: Resource<DynamicType = ()>,
    {
        let replacement = Replacement {
            op: "add",
            path: "/status",
            value: status,
        };
        let objects = calls_of::<K>(namespace);
        let call = objects.patch_subresource("status", name, &patch_params(), &operations());
        let call = with_body(call, json(&[replacement])?);
        told(answer::version(&self.client, call).await, object_of)
    }

    async fn delete_queue(&self, key: &ObjectKey) -> Written {
        let queues: Api<Queue> = Api::namespaced(self.client.clone(), &key.namespace);
        let params = DeleteParams::background();
        let call = queues.delete(&key.name, &params);
        within(CALL_LIMIT, call).await.map_err(failed)?;
        Ok(None)
    }

    async fn publish_event(&self, note: &EventNote) -> Written {
        let event = event(note, &self.instance, Timestamp::now());
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let call = calls_of::<Event>(Some(&namespace)).create(&post_params(), json(&event)?);
        answer::done(&self.client, call).await.map_err(failed)?;
        Ok(None)
    }
}

/// One that was made again, or written meanwhile, is not meant.
fn only_as_seen(uid: &str, resource_version: &str) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: Some(resource_version.to_owned()),
        }),
        ..DeleteParams::default()
    }
}

/// A JSON patch to which [`with_body`] gives its operations: they are not made twice for that.
fn operations() -> Patch<()> {
    Patch::Json(json_patch::Patch(Vec::new()))
}

/// A call with a body that is made already.
fn with_body(call: answer::Built, body: Vec<u8>) -> answer::Built {
    call.map(|call| call.map(|_| body))
}

/// The operation of a JSON patch that sets a field.
#[derive(Serialize)]
struct Replacement<'a, T> {
    op: &'static str,
    path: &'static str,
    value: &'a T,
}

/// An object as it is sent: what it says may be large, and is not copied for that.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Sent<'a, S, T> {
    api_version: String,
    kind: String,
    metadata: ObjectMeta,
    spec: &'a S,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a T>,
}

impl<'a, S, T> Sent<'a, S, T> {
    /// An object of the kind `K`.
    fn of<K: Resource<DynamicType = ()>>(
        metadata: ObjectMeta,
        spec: &'a S,
        status: Option<&'a T>,
    ) -> Self {
        Self {
            api_version: K::api_version(&()).into_owned(),
            kind: K::kind(&()).into_owned(),
            metadata,
            spec,
            status,
        }
    }
}

/// Builds calls about a kind.
fn calls_of<K: Resource<DynamicType = ()>>(namespace: Option<&str>) -> Request {
    Request::new(K::url_path(&(), namespace))
}

fn json<T: Serialize + ?Sized>(object: &T) -> Result<Vec<u8>, Outcome> {
    serde_json::to_vec(object).map_err(|error| Outcome::Refused(format!("no JSON: {error}")))
}

/// An object of which only the version is told.
fn told(answer: Result<ObjectMeta, CallError>, object_of: fn(ObjectMeta) -> Object) -> Written {
    Ok(Some(object_of(answer.map_err(failed)?)))
}

fn pod_of(metadata: ObjectMeta) -> Object {
    Object::Pod(Arc::new(Pod {
        metadata,
        ..Pod::default()
    }))
}

fn job_of(metadata: ObjectMeta) -> Object {
    Object::Job(Arc::new(Job {
        metadata,
        ..Job::default()
    }))
}

/// Objects of our own kinds of which nothing is known but the metadata.
macro_rules! objects_of_metadata {
    ($($object_of:ident: $kind:ident, $spec:ident;)*) => {$(
        fn $object_of(metadata: ObjectMeta) -> Object {
            let object = $kind::new("", $spec::default());
            Object::$kind(Arc::new($kind { metadata, ..object }))
        }
    )*};
}

objects_of_metadata! {
    cohort_of: Cohort, CohortSpec;
    flavor_of: Flavor, FlavorSpec;
    gang_of: Gang, GangSpec;
    node_devices_of: NodeDevices, NodeDevicesSpec;
    queue_of: Queue, QueueSpec;
    team_of: Team, TeamSpec;
    tier_of: PriorityTier, PriorityTierSpec;
}

/// What a write is called in metrics and logs.
pub fn name(write: &ApiRequest) -> &'static str {
    match write {
        ApiRequest::ReadObject { .. } => "ReadObject",
        ApiRequest::ReadAll { .. } => "ReadAll",
        ApiRequest::CreateLedger { .. } => "CreateLedger",
        ApiRequest::ReplaceLedger { .. } => "ReplaceLedger",
        ApiRequest::CreateGang { .. } => "CreateGang",
        ApiRequest::ReplaceGangStatus { .. } => "ReplaceGangStatus",
        ApiRequest::DeleteGang { .. } => "DeleteGang",
        ApiRequest::CreateNodeDevices { .. } => "CreateNodeDevices",
        ApiRequest::ReplaceNodeDevices { .. } => "ReplaceNodeDevices",
        ApiRequest::DeleteNodeDevices { .. } => "DeleteNodeDevices",
        ApiRequest::PatchPod { .. } => "PatchPod",
        ApiRequest::PatchPodStatus { .. } => "PatchPodStatus",
        ApiRequest::DeletePod { .. } => "DeletePod",
        ApiRequest::ForceDeletePod { .. } => "ForceDeletePod",
        ApiRequest::PatchJob { .. } => "PatchJob",
        ApiRequest::PublishQueue { .. } => "PublishQueue",
        ApiRequest::PublishTeam { .. } => "PublishTeam",
        ApiRequest::PublishCohort { .. } => "PublishCohort",
        ApiRequest::PublishFlavor { .. } => "PublishFlavor",
        ApiRequest::PublishPriorityTier { .. } => "PublishPriorityTier",
        ApiRequest::DeleteQueue { .. } => "DeleteQueue",
        ApiRequest::PublishEvent(_) => "PublishEvent",
    }
}

fn done<K: Resource>(answer: Result<K, CallError>, wrap: fn(Arc<K>) -> Object) -> Written {
    let mut object = answer.map_err(failed)?;
    managed_fields::reduce(object.meta_mut());
    Ok(Some(wrap(Arc::new(object))))
}

#[expect(clippy::needless_pass_by_value, reason = "used in map_err")]
fn failed(error: CallError) -> Outcome {
    let outcome = outcome::of_failure(&error);
    if matches!(outcome, Outcome::Unknown) {
        tracing::warn!(%error, "whether it was done is not known");
    }
    outcome
}

fn post_params() -> PostParams {
    PostParams {
        field_manager: Some(keys::FIELD_MANAGER_CONTROLLER.to_owned()),
        ..PostParams::default()
    }
}

fn patch_params() -> PatchParams {
    PatchParams {
        field_manager: Some(keys::FIELD_MANAGER_CONTROLLER.to_owned()),
        ..PatchParams::default()
    }
}

/// A spec that passes the schema; it is not stored.
fn ignored_gang_spec() -> GangSpec {
    GangSpec {
        size: 1,
        start_timeout_seconds: 1,
        ..GangSpec::default()
    }
}

fn set_permits_finalizer(metadata: &mut ObjectMeta, stands: bool) {
    let finalizers = metadata.finalizers.get_or_insert_default();
    finalizers.retain(|finalizer| finalizer != keys::PERMITS_FINALIZER);
    if stands {
        finalizers.push(keys::PERMITS_FINALIZER.to_owned());
    }
}

fn event(note: &EventNote, instance: &str, now: Timestamp) -> Event {
    let told = Told {
        regarding: ObjectReference {
            api_version: Some(note.api_version.clone()),
            kind: Some(note.kind.clone()),
            namespace: Some(note.namespace.clone()).filter(|namespace| !namespace.is_empty()),
            name: Some(note.name.clone()),
            uid: Some(note.uid.clone()),
            ..ObjectReference::default()
        },
        action: "Admission",
        reason: note.reason.to_string(),
        note: note.note.clone(),
        is_warning: note.warning,
        reporter: REPORTER,
        instance,
    };
    told.at(now)
}

#[cfg(test)]
mod tests;
