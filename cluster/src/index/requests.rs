//! What pods and claims ask for, kept until something that it depends on changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use k8s_openapi::api::{
    core::v1::{Pod, PodResourceClaim},
    resource::v1::ResourceClaim,
};
use muster_api::{Reason, keys};
use muster_engine as engine;

use super::{Index, NamespacedName};
use crate::{
    claims::{self, ClaimReader, ClaimRequest},
    formed::PendingReason,
    gangs::{self, PodRequest},
    node_filter::{ANY_NODE, NodeRules},
    pod_resources, pod_rules,
    unsupported_field::UnsupportedField,
};

/// What pods and claims ask for.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Of pods, by UID.
    pub(super) of_pods: BTreeMap<String, Result<PodRequest, PendingReason>>,
    /// Of claims, without what they are allocated.
    pub(super) of_claims: BTreeMap<NamespacedName, Result<ClaimRequest, UnsupportedField>>,
}

/// A claim of a pod, as the pod names it.
pub(super) enum Named<'a> {
    Claim(&'a Arc<ResourceClaim>),
    /// The pod needs none: Kubernetes decided that the template makes no claim.
    NotNeeded,
    Missing(String),
}

impl Index {
    /// Understands the pod unless that is done already.
    pub(super) fn understand(&mut self, pod: &Arc<Pod>) {
        if self.requests.of_pods.contains_key(gangs::uid(pod)) {
            return;
        }
        let request = self.read_pod(pod);
        self.requests
            .of_pods
            .insert(gangs::uid(pod).to_owned(), request);
    }

    fn read_pod(&mut self, pod: &Pod) -> Result<PodRequest, PendingReason> {
        let object = format!("pod {}", gangs::name(pod));
        let resources = pod_resources::of_pod(pod)
            .map_err(|error| UnsupportedField::from(error).wait(&object))?;
        // What is placed already is never planned anew: its rules about nodes have done their work,
        // and its pin would make a filter of its own for every pod.
        let is_placed =
            gangs::bound_to(pod).is_some() || gangs::annotation(pod, keys::PLACEMENT).is_some();
        let filter = if is_placed {
            ANY_NODE
        } else {
            if let Some(unsupported) = pod_rules::unsupported(pod, &self.config.managed) {
                return Err(unsupported.wait(&object));
            }
            self.check_shorthand(pod)
                .map_err(|error| error.wait(&object))?;
            let rules = NodeRules::of_pod(pod).map_err(|error| error.wait(&object))?;
            let (filter, is_new) = self.filters.intern(rules);
            self.touched.all_nodes |= is_new;
            filter
        };
        let (claims, has_excepted) = self.claims_of(pod, &object)?;
        Ok(PodRequest {
            excepted: has_excepted && claims.is_empty(),
            pod: engine::Pod {
                uid: gangs::uid(pod).into(),
                resources,
                filter,
                claims,
            },
        })
    }

    /// The charged claims of a pod, each once, and whether it has excepted ones.
    fn claims_of(
        &mut self,
        pod: &Pod,
        object: &str,
    ) -> Result<(Vec<engine::Claim>, bool), PendingReason> {
        let named = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.resource_claims.clone())
            .unwrap_or_default();
        let mut read = Vec::new();
        let mut seen = BTreeSet::new();
        let mut has_excepted = false;
        for (index, one) in named.iter().enumerate() {
            let claim = match self
                .named_claim(pod, one, index)
                .map_err(|error| error.wait(object))?
            {
                Named::Claim(claim) => Arc::clone(claim),
                Named::NotNeeded => continue,
                Named::Missing(details) => {
                    let details = format!("{object}: {details}");
                    return Err(PendingReason {
                        reason: Reason::MissingPods,
                        details,
                    });
                }
            };
            if !seen.insert(claim.metadata.uid.clone()) {
                continue;
            }
            match self.known_claim(&claim).map_err(|error| {
                error.wait(&format!(
                    "ResourceClaim {}",
                    NamespacedName::of(&claim.metadata).name
                ))
            })? {
                Some(charged) => read.push(charged),
                None => has_excepted = true,
            }
        }
        Ok((read, has_excepted))
    }

    /// The claim that a pod names at a position of its list.
    pub(super) fn named_claim(
        &self,
        pod: &Pod,
        named: &PodResourceClaim,
        index: usize,
    ) -> Result<Named<'_>, UnsupportedField> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let field = format!("spec.resourceClaims[{index}]");
        if let Some(name) = &named.resource_claim_name {
            let claim = self
                .objects
                .claims
                .get(&NamespacedName::new(namespace, name));
            return Ok(claim.filter(|claim| !is_going(claim)).map_or_else(
                || Named::Missing(format!("{field}: ResourceClaim {name} does not exist")),
                Named::Claim,
            ));
        }
        if named.resource_claim_template_name.is_none() {
            return Err(UnsupportedField::new(
                field,
                "names neither a ResourceClaim nor a template",
            ));
        }
        let mut generated = pod
            .status
            .iter()
            .flat_map(|status| status.resource_claim_statuses.iter().flatten())
            .filter(|status| status.name == named.name);
        let waiting = || {
            Named::Missing(format!(
                "{field} ({}): its ResourceClaim is not made yet",
                named.name
            ))
        };
        let Some(status) = generated.next() else {
            return Ok(waiting());
        };
        let Some(name) = &status.resource_claim_name else {
            return Ok(Named::NotNeeded);
        };
        let Some(claim) = self
            .objects
            .claims
            .get(&NamespacedName::new(namespace, name))
        else {
            return Ok(waiting());
        };
        let mut owners = claim.metadata.owner_references.iter().flatten();
        if !owners.any(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref()) {
            return Err(UnsupportedField::new(
                format!("{field} ({})", named.name),
                format!("ResourceClaim {name} was not made for this pod"),
            ));
        }
        Ok(if is_going(claim) {
            waiting()
        } else {
            Named::Claim(claim)
        })
    }

    /// The claims that the pod names now, in pod order; `None` while one does not exist.
    pub(super) fn existing_claims(&self, pod: &Pod) -> Option<Vec<&Arc<ResourceClaim>>> {
        let named = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.resource_claims.as_deref())
            .unwrap_or_default();
        let mut claims = Vec::new();
        for (index, one) in named.iter().enumerate() {
            match self.named_claim(pod, one, index) {
                Ok(Named::Claim(claim)) => claims.push(claim),
                Ok(Named::NotNeeded) => {}
                Ok(Named::Missing(_)) | Err(_) => return None,
            }
        }
        Some(claims)
    }

    /// Reads the claims that are new or name a DeviceClass that changed.
    pub(super) fn read_claims(&mut self) {
        for key in mem::take(&mut self.touched.claims) {
            let Some(claim) = self.objects.claims.get(&key) else {
                continue;
            };
            let mut reader = ClaimReader {
                classes: self.objects.classes.items(),
                excepted: &self.config.excepted_device_classes,
                selectors: &mut self.selectors,
                found_new_selector: false,
            };
            let request = reader.read(claim);
            self.touched.all_nodes |= reader.found_new_selector;
            self.requests.of_claims.insert(key, request);
        }
    }

    /// What a claim asks for; `None`: only excepted devices.
    pub(super) fn known_claim(
        &self,
        claim: &ResourceClaim,
    ) -> Result<Option<engine::Claim>, UnsupportedField> {
        let key = NamespacedName::of(&claim.metadata);
        let (requests, constraints) = match self.requests.of_claims.get(&key) {
            Some(Ok(ClaimRequest::Charged {
                requests,
                constraints,
            })) => (requests, constraints),
            Some(Ok(ClaimRequest::Excepted)) => return Ok(None),
            Some(Err(error)) => return Err(error.clone()),
            None => return Err(UnsupportedField::new("spec", "was not read yet")),
        };
        for (index, request) in requests.iter().enumerate() {
            if let Some(cause) = self.views.fails_everywhere(request.selector) {
                return Err(UnsupportedField::new(
                    format!("spec.devices.requests[{index}].exactly.selectors"),
                    format!("match no device, and cannot be evaluated for some: {cause}"),
                ));
            }
        }
        let allocated = claims::allocated(claim, |pool| self.home_of(pool))?;
        Ok(Some(engine::Claim {
            uid: claim.metadata.uid.as_deref().unwrap_or_default().into(),
            requests: requests.clone(),
            constraints: constraints.clone(),
            allocated,
        }))
    }
}

fn is_going(claim: &ResourceClaim) -> bool {
    claim.metadata.deletion_timestamp.is_some()
}
