//! Pods as the index keeps them, and by what they are looked up.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use muster_api::keys;
use muster_engine::{PodResources, PodSelectorId};

use super::{
    Config, NamespacedName,
    store::{Versioned, parsed, version_of},
};
use crate::{
    links::Links,
    pod::{self, ObservedPod, PodFields},
    pod_resources, pod_rules,
    pod_terms::PodTerms,
    quantity::QuantityError,
    table::Table,
    unsupported_field::UnsupportedField,
};

/// A pod as the index keeps it.
#[derive(Debug)]
pub(super) enum KeptPod {
    /// One that Muster admits.
    Ours(Box<OurPod>),
    /// Any other pod. It counts for what it takes of its node.
    Other(Box<OtherPod>),
}

/// A pod that Muster admits.
#[derive(Debug)]
pub(super) struct OurPod {
    /// What is read of the pod.
    pub(super) object: Arc<ObservedPod>,
    /// What it takes of a node besides devices.
    pub(super) resources: Result<PodResources, QuantityError>,
    /// The first rule by which kube-scheduler could refuse a planned node.
    pub(super) unsupported: Option<UnsupportedField>,
    /// Fields that the planner does not look at.
    pub(super) unmodelled: Vec<String>,
    /// Keeps the ids of its anti-affinity alive.
    _terms: Vec<Arc<PodSelectorId>>,
    /// Whether it carries the marker, which only the webhook puts there.
    pub(super) is_marked: bool,
}

/// A pod that Muster does not admit.
#[derive(Debug)]
pub(super) struct OtherPod {
    uid: String,
    version: Option<u64>,
    /// `None`: it is not bound.
    usage: Option<Usage>,
    _terms: Vec<Arc<PodSelectorId>>,
}

/// What a bound pod uses: nothing once it is terminal.
#[derive(Debug)]
struct Usage {
    node: String,
    resources: Option<PodResources>,
}

impl KeptPod {
    /// Reads what is needed of a pod, and keeps nothing else.
    pub(super) fn of(whole: &Pod, config: &Config, terms: &mut PodTerms) -> Self {
        let terms = terms.of_pod(whole);
        let resources = pod_resources::of_pod(whole).map(|mut resources| {
            resources.repels = terms.iter().map(|id| **id).collect();
            resources.matched_by.clone_from(&resources.repels);
            resources
        });
        if !is_ours(whole, config) {
            return Self::Other(Box::new(OtherPod {
                uid: pod::uid(whole).to_owned(),
                version: version_of(&whole.metadata),
                usage: pod::bound_to(whole).map(|node| Usage {
                    node: node.to_owned(),
                    resources: used(whole, &resources).map(Cow::into_owned),
                }),
                _terms: terms,
            }));
        }
        let ours = OurPod {
            resources,
            _terms: terms,
            unsupported: pod_rules::unsupported(whole),
            unmodelled: pod_rules::unmodelled(whole),
            is_marked: pod_rules::is_marked(whole),
            object: Arc::new(ObservedPod::of(whole)),
        };
        Self::Ours(Box::new(ours))
    }

    pub(super) fn ours(&self) -> Option<&OurPod> {
        match self {
            Self::Ours(ours) => Some(ours),
            Self::Other(_) => None,
        }
    }

    /// The node that it is bound to.
    pub(super) fn node(&self) -> Option<&str> {
        match self {
            Self::Ours(ours) => pod::bound_to(&ours.object),
            Self::Other(other) => other.usage.as_ref().map(|usage| usage.node.as_str()),
        }
    }

    /// What it uses of the node that it is bound to; nothing once it is terminal.
    pub(super) fn usage(&self) -> Option<Cow<'_, PodResources>> {
        match self {
            Self::Ours(ours) => used(&ours.object, &ours.resources),
            Self::Other(other) => other.usage.as_ref()?.resources.as_ref().map(Cow::Borrowed),
        }
    }

    /// All that is read of our pod, but for its version.
    pub(super) fn facts(&self) -> Option<impl PartialEq + '_> {
        let OurPod {
            object,
            resources,
            unsupported,
            unmodelled,
            _terms: _,
            is_marked,
        } = self.ours()?;
        Some((
            object.facts(),
            resources,
            unsupported,
            unmodelled,
            is_marked,
        ))
    }

    /// All of our pod that says what it asks for. What chose its node has done its work once it has one.
    pub(super) fn request_facts(&self) -> Option<impl PartialEq + '_> {
        let OurPod {
            object,
            resources,
            unsupported,
            unmodelled,
            ..
        } = self.ours()?;
        let own = (pod::uid(object), resources, unmodelled);
        let claims = (object.claims(), object.claim_statuses());
        let rules = (!object.is_placed()).then(|| (object.node_rules(), unsupported));
        Some((own, claims, object.annotations(), rules))
    }

    /// All of our pod that says where it belongs, and which Gang its group means.
    pub(super) fn belonging_facts(&self) -> Option<impl PartialEq + '_> {
        let object = &self.ours()?.object;
        let declared = (object.annotations(), object.labels(), object.controller());
        Some((pod::uid(object), declared, pod::is_active(object)))
    }
}

impl Versioned for KeptPod {
    fn uid(&self) -> &str {
        match self {
            Self::Ours(ours) => pod::uid(&ours.object),
            Self::Other(other) => &other.uid,
        }
    }

    fn version(&self) -> Option<u64> {
        match self {
            Self::Ours(ours) => parsed(ours.object.resource_version()),
            Self::Other(other) => other.version,
        }
    }
}

/// Whether Muster admits the pod. One that carries the gate, or a gang name, is admitted whatever the configuration
/// says now: nobody else would take the gate.
fn is_ours(pod: &Pod, config: &Config) -> bool {
    pod::is_gated(pod)
        || pod::annotation(pod, keys::GANG_NAME).is_some()
        || (!config.excluded_namespaces.contains(pod::namespace(pod))
            && config.managed.is_managed(pod))
}

/// What a bound pod uses; nothing once it is terminal. A request that cannot be read counts as all that a node can have:
/// nothing is planned beside it.
fn used<'a>(
    pod: &impl PodFields,
    resources: &'a Result<PodResources, QuantityError>,
) -> Option<Cow<'a, PodResources>> {
    let uses = pod::bound_to(pod).is_some() && !pod::is_terminal(pod);
    uses.then(|| match resources {
        Ok(resources) => Cow::Borrowed(resources),
        Err(_) => Cow::Owned(PodResources {
            cpu_milli: i64::MAX,
            memory_bytes: i64::MAX,
            pods: 1,
            ..PodResources::default()
        }),
    })
}

/// Where pods are found by node, claim and Job.
#[derive(Debug, Default)]
pub(super) struct PodLinks {
    /// Our pods by UID.
    pub(super) by_uid: Table<String, Arc<KeptPod>>,
    /// Every pod that is bound to a node.
    pub(super) of_node: Links<String, NamespacedName>,
    /// Those of them that use something of their node. A Job's pods stay for as long as it does after they have ended, which may be
    /// for days: there are many more of them than of these.
    pub(super) using_node: Links<String, NamespacedName>,
    /// Our pods by the claims that they name, existing or not.
    pub(super) of_claim: Links<NamespacedName, NamespacedName>,
    /// Our pods by the UID of the Job that controls them.
    pub(super) of_job: Links<String, NamespacedName>,
    /// Our pods by the UID of the ReplicaSet that controls them, if a Deployment has made it.
    pub(super) of_replica_set: Links<String, NamespacedName>,
    /// UIDs of the ReplicaSets of a Deployment that have pods of ours.
    pub(super) of_deployment: Links<NamespacedName, String>,
}

impl PodLinks {
    pub(super) fn replace(
        &mut self,
        key: &NamespacedName,
        old: Option<&KeptPod>,
        new: Option<&Arc<KeptPod>>,
    ) {
        let ours = |kept: Option<&KeptPod>| kept.and_then(KeptPod::ours).is_some();
        if ours(old) {
            self.by_uid.remove(old.map_or("", Versioned::uid));
        }
        if let Some(new) = new.filter(|new| ours(Some(new))) {
            self.by_uid.insert(new.uid().to_owned(), Arc::clone(new));
        }
        let new = new.map(AsRef::as_ref);
        let (before, after) = (old.and_then(KeptPod::node), new.and_then(KeptPod::node));
        if before != after {
            if let Some(node) = before {
                self.of_node.unlink(node, key);
            }
            if let Some(node) = after {
                self.of_node.link(node.to_owned(), key.clone());
            }
        }
        let (before, after) = (used_node(old), used_node(new));
        if before != after {
            if let Some(node) = before {
                self.using_node.unlink(node, key);
            }
            if let Some(node) = after {
                self.using_node.link(node.to_owned(), key.clone());
            }
        }
        let (before, after) = (named_claims(old), named_claims(new));
        for claim in before.difference(&after) {
            self.of_claim.unlink(claim, key);
        }
        for claim in after.difference(&before) {
            self.of_claim.link(claim.clone(), key.clone());
        }
        let (before, after) = (replica_set(old), replica_set(new));
        if before != after {
            if let Some((deployment, replica_set)) = before {
                self.of_replica_set.unlink(replica_set, key);
                if !self.of_replica_set.has(replica_set) {
                    self.of_deployment
                        .unlink(&deployment, &replica_set.to_owned());
                }
            }
            if let Some((deployment, replica_set)) = after {
                self.of_replica_set
                    .link(replica_set.to_owned(), key.clone());
                self.of_deployment.link(deployment, replica_set.to_owned());
            }
        }
        let (before, after) = (job(old), job(new));
        if before != after {
            if let Some(job) = before {
                self.of_job.unlink(job, key);
            }
            if let Some(job) = after {
                self.of_job.link(job.to_owned(), key.clone());
            }
        }
    }
}

/// The Deployment that our pod belongs to, and the UID of its ReplicaSet.
fn replica_set(pod: Option<&KeptPod>) -> Option<(NamespacedName, &str)> {
    let pod = &pod?.ours()?.object;
    let deployment = NamespacedName::new(pod::namespace(pod), pod::deployment(pod)?);
    Some((deployment, pod::controller(pod)?.uid.as_str()))
}

/// The node of which the pod uses something.
fn used_node(pod: Option<&KeptPod>) -> Option<&str> {
    pod.filter(|pod| pod.usage().is_some())?.node()
}

/// The UID of the Job that controls our pod.
fn job(pod: Option<&KeptPod>) -> Option<&str> {
    let owner = pod::controlling_job(&pod?.ours()?.object)?;
    Some(&owner.uid)
}

/// The claims that our pod names, itself or by its status for generated ones.
fn named_claims(pod: Option<&KeptPod>) -> BTreeSet<NamespacedName> {
    let Some(OurPod { object: pod, .. }) = pod.and_then(KeptPod::ours) else {
        return BTreeSet::new();
    };
    let by_name = pod.claims().iter();
    let by_name = by_name.filter_map(|claim| claim.resource_claim_name.as_deref());
    let generated = pod.claim_statuses().iter();
    let generated = generated.filter_map(|status| status.resource_claim_name.as_deref());
    by_name
        .chain(generated)
        .map(|name| NamespacedName::new(pod::namespace(pod), name))
        .collect()
}
