//! Pods as the index keeps them, and by what they are looked up.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

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
    usage: Option<(String, Usage)>,
    _terms: Vec<Arc<PodSelectorId>>,
}

/// What a bound pod uses: nothing once it is terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) uid: String,
    pub(super) resources: Option<PodResources>,
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
                usage: usage(whole, &resources),
                _terms: terms,
            }));
        }
        let ours = OurPod {
            resources,
            _terms: terms,
            unsupported: pod_rules::unsupported(whole, &config.managed),
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

    /// The node that it is bound to, and what it uses there.
    pub(super) fn usage(&self) -> Option<(String, Usage)> {
        match self {
            Self::Ours(ours) => usage(&ours.object, &ours.resources),
            Self::Other(other) => other.usage.clone(),
        }
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

/// What a bound pod uses. A request that cannot be read counts as all that a node can have: nothing is planned beside it.
fn usage(
    pod: &impl PodFields,
    resources: &Result<PodResources, QuantityError>,
) -> Option<(String, Usage)> {
    let node = pod::bound_to(pod)?;
    let resources = (!pod::is_terminal(pod)).then(|| {
        resources.clone().unwrap_or_else(|_| PodResources {
            cpu_milli: i64::MAX,
            memory_bytes: i64::MAX,
            pods: 1,
            ..PodResources::default()
        })
    });
    let usage = Usage {
        uid: pod::uid(pod).to_owned(),
        resources,
    };
    Some((node.to_owned(), usage))
}

/// Where pods are found by node, claim and Job.
#[derive(Debug, Default)]
pub(super) struct PodLinks {
    /// Our pods by UID.
    pub(super) by_uid: HashMap<String, Arc<KeptPod>>,
    /// Every pod that is bound to a node.
    pub(super) of_node: Links<String, NamespacedName>,
    /// Our pods by the claims that they name, existing or not.
    pub(super) of_claim: Links<NamespacedName, NamespacedName>,
    /// Our pods by the UID of the Job that controls them.
    pub(super) of_job: Links<String, NamespacedName>,
}

impl PodLinks {
    pub(super) fn replace(
        &mut self,
        key: &NamespacedName,
        old: Option<&KeptPod>,
        new: Option<&Arc<KeptPod>>,
    ) {
        if let Some(old) = old {
            if let Some((node, _)) = old.usage() {
                self.of_node.unlink(&node, key);
            }
            if let Some(old) = old.ours() {
                self.by_uid.remove(pod::uid(&old.object));
                for claim in named_claims(&old.object) {
                    self.of_claim.unlink(&claim, key);
                }
                if let Some(job) = pod::controlling_job(&old.object) {
                    self.of_job.unlink(&job.uid, key);
                }
            }
        }
        if let Some(new) = new {
            if let Some((node, _)) = new.usage() {
                self.of_node.link(node, key.clone());
            }
            let kept = new;
            if let Some(new) = kept.ours() {
                self.by_uid
                    .insert(pod::uid(&new.object).to_owned(), Arc::clone(kept));
                for claim in named_claims(&new.object) {
                    self.of_claim.link(claim, key.clone());
                }
                if let Some(job) = pod::controlling_job(&new.object) {
                    self.of_job.link(job.uid.clone(), key.clone());
                }
            }
        }
    }
}

/// The claims that a pod names, itself or by its status for generated ones.
fn named_claims(pod: &ObservedPod) -> BTreeSet<NamespacedName> {
    let by_name = pod.claims().iter();
    let by_name = by_name.filter_map(|claim| claim.resource_claim_name.as_deref());
    let generated = pod.claim_statuses().iter();
    let generated = generated.filter_map(|status| status.resource_claim_name.as_deref());
    by_name
        .chain(generated)
        .map(|name| NamespacedName::new(pod::namespace(pod), name))
        .collect()
}
