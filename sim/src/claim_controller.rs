//! The claim controller of kube-controller-manager: makes claims from templates, and takes back what pods that
//! ended had reserved.
//!
//! It decides by what its informers show, which lags; what it writes carries the versions that it saw. Before it takes a
//! pod for gone that it does not know it asks the API server.
//!
//! A claim that several pods name is made by their user, and never deleted here.
//!
//! A pod leaves `reservedFor` when its object is gone, its phase is terminal, or it is deleted and never had a
//! node; **not** while it terminates on a node. The last one to leave clears the allocation in the same write,
//! whatever still runs: for a pod that was deleted by force the devices are free in the API at once.

use k8s_openapi::api::{
    core::v1::{Pod, PodResourceClaim, PodResourceClaimStatus, PodStatus},
    resource::v1::ResourceClaim,
};
use muster_cluster::object::{Kind, Object};

use crate::{
    api_server::{ApiServer, Informer, Precondition, has_ended, is_bound, key},
    fixtures,
};

/// What it watches.
pub const WATCHED: [Kind; 2] = [Kind::Pod, Kind::ResourceClaim];

/// Keeps an allocated claim from going: only the scheduler sets it, and only this controller takes it.
pub const DELETE_PROTECTION: &str = "resource.kubernetes.io/delete-protection";

/// One write of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes a claim of a pod.
    Make {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        pod: String,
    },
    /// Takes pods that are done off a claim, with the allocation if none is left.
    Release {
        /// Namespace of the claim.
        namespace: String,
        /// Name of the claim.
        claim: String,
    },
    /// Lets a deleted claim go.
    Finalize {
        /// Namespace of the claim.
        namespace: String,
        /// Name of the claim.
        claim: String,
    },
    /// Deletes the claim of a pod that ended.
    Delete {
        /// Namespace of the claim.
        namespace: String,
        /// Name of the claim.
        claim: String,
    },
}

/// Name in the API of a claim that the pod names; `None` while there is none.
fn claim_name<'a>(pod: &'a Pod, named: &str) -> Option<&'a str> {
    pod.status
        .as_ref()?
        .resource_claim_statuses
        .as_ref()?
        .iter()
        .find(|status| status.name == named)?
        .resource_claim_name
        .as_deref()
}

/// A claim that the pod names: one that somebody made for it and others, or its own.
fn claim_of<'a>(
    api: &'a ApiServer,
    pod: &Pod,
    named: &PodResourceClaim,
) -> Option<&'a ResourceClaim> {
    let namespace = pod.metadata.namespace.as_deref()?;
    if let Some(name) = &named.resource_claim_name {
        return api.get::<ResourceClaim>(namespace, name);
    }
    let claim = api.get::<ResourceClaim>(namespace, claim_name(pod, &named.name)?)?;
    let owners = claim.metadata.owner_references.as_ref()?;
    owners
        .iter()
        .any(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref())
        .then_some(claim)
}

fn named_claims(pod: &Pod) -> impl Iterator<Item = &PodResourceClaim> {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.resource_claims.as_ref())
        .into_iter()
        .flatten()
}

/// The pod's claims, in the order in which it names them; `None` while one of them is not made.
pub fn claims_of<'a>(api: &'a ApiServer, pod: &Pod) -> Option<Vec<&'a ResourceClaim>> {
    named_claims(pod)
        .map(|claim| claim_of(api, pod, claim))
        .collect()
}

/// A claim of the pod that is yet to be made from a template.
fn to_be_made<'a>(api: &ApiServer, pod: &'a Pod) -> Option<&'a PodResourceClaim> {
    named_claims(pod).find(|claim| {
        claim.resource_claim_template_name.is_some() && claim_of(api, pod, claim).is_none()
    })
}

/// All that the controller has to do.
pub fn steps(api: &ApiServer) -> Vec<Step> {
    let makes = api
        .list::<Pod>()
        .filter(|pod| {
            pod.metadata.deletion_timestamp.is_none()
                && !has_ended(pod)
                && to_be_made(api, pod).is_some()
        })
        .map(|pod| Step::Make {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            pod: pod.metadata.name.clone().unwrap_or_default(),
        });
    let claims = api
        .list::<ResourceClaim>()
        .filter_map(|claim| step_of(api, claim));
    makes.chain(claims).collect()
}

fn step_of(api: &ApiServer, claim: &ResourceClaim) -> Option<Step> {
    let namespace = claim.metadata.namespace.clone()?;
    let name = claim.metadata.name.clone()?;
    let reserved = claim
        .status
        .as_ref()
        .and_then(|status| status.reserved_for.as_ref());
    if reserved.is_some_and(|pods| pods.iter().any(|pod| is_done(api, &pod.uid))) {
        return Some(Step::Release {
            namespace,
            claim: name,
        });
    }
    let is_deleted = claim.metadata.deletion_timestamp.is_some();
    let allocated = claim
        .status
        .as_ref()
        .is_some_and(|status| status.allocation.is_some());
    let protected = claim.metadata.finalizers.is_some();
    if is_deleted && protected && reserved.is_none_or(Vec::is_empty) {
        return Some(Step::Finalize {
            namespace,
            claim: name,
        });
    }
    let owners = claim.metadata.owner_references.iter().flatten();
    let owner_ended = owners
        .filter_map(|owner| api.pod_by_uid(&owner.uid))
        .any(has_ended);
    (owner_ended && !is_deleted && !allocated).then_some(Step::Delete {
        namespace,
        claim: name,
    })
}

fn is_done(api: &ApiServer, pod_uid: &str) -> bool {
    api.pod_by_uid(pod_uid).is_none_or(|pod| {
        has_ended(pod) || (pod.metadata.deletion_timestamp.is_some() && !is_bound(pod))
    })
}

/// Does one write, as it was decided by the informer's cache. `random` makes the name of a new claim.
pub fn perform(api: &mut ApiServer, informer: &mut Informer, step: &Step, random: u64) {
    match step {
        Step::Make { namespace, pod } => make(api, informer, namespace, pod, random),
        Step::Release { namespace, claim } => release(api, informer, namespace, claim),
        Step::Finalize { namespace, claim } => {
            let version = version(informer, namespace, claim);
            let done = api.update::<ResourceClaim>(
                namespace,
                claim,
                Precondition::as_seen(version.as_ref()),
                |claim| {
                    claim.metadata.finalizers = None;
                    claim.status = None;
                },
            );
            assume(informer, done.ok());
        }
        Step::Delete { namespace, claim } => {
            let version = version(informer, namespace, claim);
            let key = key(Kind::ResourceClaim, namespace, claim);
            let _ = api.delete(&key, Precondition::as_seen(version.as_ref()));
        }
    }
}

fn version(informer: &Informer, namespace: &str, claim: &str) -> Option<String> {
    let claim = informer.cache().get::<ResourceClaim>(namespace, claim)?;
    claim.metadata.resource_version.clone()
}

/// What was written last may have been the last that the object waited for: then it is gone, and a watch says so.
fn assume(informer: &mut Informer, written: Option<Object>) {
    if let Some(written) = written {
        informer.assume(&written);
    }
}

fn make(api: &mut ApiServer, informer: &mut Informer, namespace: &str, name: &str, random: u64) {
    let Some(pod) = informer.cache().get::<Pod>(namespace, name).cloned() else {
        return;
    };
    let Some(missing) = to_be_made(informer.cache(), &pod) else {
        return;
    };
    let (named, template) = (missing.name.clone(), &missing.resource_claim_template_name);
    let claim_name = format!("{name}-{named}-{random:05x}");
    let template = template.as_deref().unwrap_or_default();
    let Some(claim) = fixtures::claim_from_template(template, &pod, &claim_name) else {
        return;
    };
    let Ok(claim) = api.create(claim) else {
        return;
    };
    informer.assume(&claim);
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let done = api.update::<Pod>(namespace, name, Precondition::uid(&uid), |pod| {
        let status = pod.status.get_or_insert_with(PodStatus::default);
        let statuses = status.resource_claim_statuses.get_or_insert_default();
        statuses.retain(|status| status.name != named);
        statuses.push(PodResourceClaimStatus {
            name: named,
            resource_claim_name: Some(claim_name),
        });
    });
    assume(informer, done.ok());
}

fn release(api: &mut ApiServer, informer: &mut Informer, namespace: &str, name: &str) {
    let cache = informer.cache();
    let Some(claim) = cache.get::<ResourceClaim>(namespace, name) else {
        return;
    };
    let mut left = claim
        .status
        .as_ref()
        .and_then(|status| status.reserved_for.clone())
        .unwrap_or_default();
    left.retain(|pod| {
        let unknown = cache.pod_by_uid(&pod.uid).is_none();
        !is_done(if unknown { api } else { cache }, &pod.uid)
    });
    let version = claim.metadata.resource_version.clone();
    let done = api.update::<ResourceClaim>(
        namespace,
        name,
        Precondition::as_seen(version.as_ref()),
        |claim| {
            if left.is_empty() {
                claim.status = None;
                claim.metadata.finalizers = None;
            } else if let Some(status) = &mut claim.status {
                status.reserved_for = Some(left);
            }
        },
    );
    assume(informer, done.ok());
}
