//! What pods and claims ask for, kept until something that it depends on changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use k8s_openapi::api::core::v1::PodResourceClaim;
use muster_api::{ClaimByName, Reason, keys};
use muster_engine::{self as engine, NodeFilterId, PodResources, ResourceName, SelectorId};

use super::{Index, NamespacedName};
use crate::{
    claims::{self, ClaimReader, ClaimRequest, ObservedClaim},
    device_plugin,
    formed::PendingReason,
    gangs::{PodRequest, PodRequests},
    judgement::Rule,
    node_filter::{ANY_NODE, NodeRules},
    pod::{self, ObservedPod},
    shares::RULES_PER_NAMESPACE,
    table::Table,
    unsupported_field::UnsupportedField,
};

/// The fields by which a pod says something about nodes.
const RULE_FIELDS: &str = "spec.nodeSelector, spec.affinity.nodeAffinity and spec.tolerations";

/// What pods and claims ask for.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Of pods, by UID.
    pub(super) of_pods: PodRequests,
    /// The rules about nodes of pods, by UID; none for pods that say nothing.
    filters: Table<String, NodeFilterId>,
    /// Those of pods that are placed, and may be planned anew all the same, by UID.
    pub(super) anew: Table<String, Result<NodeFilterId, PendingReason>>,
    /// Of claims, without what they are allocated.
    pub(super) of_claims: Table<NamespacedName, Result<ClaimRequest, UnsupportedField>>,
}

/// A claim of a pod, as the pod names it.
pub(super) enum Named<'a> {
    Claim(&'a Arc<ObservedClaim>),
    /// The pod needs none: Kubernetes decided that the template makes no claim.
    NotNeeded,
    Missing(String),
}

impl Index {
    /// Understands the pod unless that is done already.
    pub(super) fn understand(&mut self, key: &NamespacedName, pod: &ObservedPod) {
        if self.requests.of_pods.contains_key(pod::uid(pod)) {
            return;
        }
        self.visits.requests += 1;
        let request = self.read_pod(key, pod);
        self.requests
            .of_pods
            .insert(pod::uid(pod).to_owned(), request);
    }

    /// The pod says these rules about nodes.
    pub(super) fn use_filter(&mut self, key: &NamespacedName, uid: &str, filter: NodeFilterId) {
        if filter == ANY_NODE {
            return;
        }
        self.filter_shares.take(&key.namespace, filter);
        self.use_rule(key, Rule::Filter(filter));
        self.pods_by_filter.link(filter, uid.to_owned());
        self.requests.filters.insert(uid.to_owned(), filter);
    }

    /// The pod is to be understood again.
    pub(super) fn forget_request(&mut self, namespace: &str, uid: &str) {
        self.requests.of_pods.remove(uid);
        self.requests.anew.remove(uid);
        self.forget_filter(namespace, uid);
    }

    /// The pod says no rules about nodes any more.
    pub(super) fn forget_filter(&mut self, namespace: &str, uid: &str) {
        if let Some(filter) = self.requests.filters.remove(uid) {
            self.pods_by_filter.unlink(&filter, &uid.to_owned());
            self.filter_shares.give(namespace, filter);
            self.touched.filters.insert(filter);
        }
    }

    /// Forgets what nobody says about nodes any more. Only once gangs are formed: the pod that said it may say it again.
    pub(super) fn retire_filters(&mut self) {
        for filter in mem::take(&mut self.touched.filters) {
            if self.pods_by_filter.of(&filter).next().is_none() {
                self.filters.forget(filter);
                self.docket.remove(Rule::Filter(filter));
                self.try_again.remove(&Rule::Filter(filter));
            }
        }
    }

    /// The filter of the rules, if the namespace uses it already or has room for one more.
    pub(super) fn filter_of(
        &mut self,
        key: &NamespacedName,
        rules: NodeRules,
    ) -> Result<NodeFilterId, UnsupportedField> {
        let namespace = &key.namespace;
        let known = self.filters.known(&rules);
        if !known.is_some_and(|id| self.filter_shares.uses(namespace, id))
            && !self.filter_shares.has_room(namespace, key.clone())
        {
            return Err(UnsupportedField::new(
                RULE_FIELDS,
                format!(
                    "pods that wait in namespace {namespace} have {RULES_PER_NAMESPACE} different rules about nodes; this one is read when one of them is no longer used"
                ),
            ));
        }
        let (filter, is_new) = self.filters.intern(rules);
        if is_new {
            self.rollout.add_filter(filter);
        }
        Ok(filter)
    }

    /// Lets pods and claims try again for whose rules there is room now.
    pub(super) fn wake_shares(&mut self) {
        let claims = self.selector_shares.wake();
        for claim in claims {
            self.touch_users(&claim);
            self.touched.claims.insert(claim);
        }
        for pod in self.filter_shares.wake() {
            if let Some(uid) = self.pod(&pod).map(|pod| pod::uid(pod).to_owned()) {
                self.forget_request(&pod.namespace, &uid);
                let gang = self.membership.gang_of(&pod).cloned();
                self.touched.gangs.extend(gang);
            }
        }
    }

    fn read_pod(
        &mut self,
        key: &NamespacedName,
        pod: &ObservedPod,
    ) -> Result<PodRequest, PendingReason> {
        let object = format!("pod {}", pod::name(pod));
        let kept = self.our_pod(key);
        let mut resources = match kept.map(|kept| kept.resources.clone()) {
            Some(resources) => {
                resources.map_err(|error| UnsupportedField::from(error).wait(&object))?
            }
            None => PodResources::default(),
        };
        let unmodelled = kept.map(|kept| kept.unmodelled.clone()).unwrap_or_default();
        // What is placed already is never planned anew: its rules about nodes have done their work,
        // and its pin would make a filter of its own for every pod.
        let rules = if pod.is_placed() {
            None
        } else {
            if let Some(unsupported) = kept.and_then(|kept| kept.unsupported.as_ref()) {
                return Err(unsupported.wait(&object));
            }
            self.check_shorthand(pod)
                .map_err(|error| error.wait(&object))?;
            Some(NodeRules::of_pod(pod).map_err(|error| error.wait(&object))?)
        };
        let (mut claims, has_excepted) = self.claims_of(pod, &object)?;
        let views = &self.views;
        let of_classes = views
            .class_resources
            .take_from(&mut resources, &views.counted_resources);
        let by_name =
            self.claims_by_name(pod, &object, (&resources, &of_classes), !claims.is_empty())?;
        claims.extend(by_name);
        // Last, so that no filter is interned for a pod that waits for something else.
        let filter = match rules {
            Some(rules) => self
                .filter_of(key, rules)
                .map_err(|error| error.wait(&object))?,
            None => ANY_NODE,
        };
        self.use_filter(key, pod::uid(pod), filter);
        if let Some(cause) = self.filters.given_up(filter) {
            return Err(UnsupportedField::new(RULE_FIELDS, cause.as_ref()).wait(&object));
        }
        Ok(PodRequest {
            excepted: has_excepted && claims.is_empty(),
            unmodelled,
            pod: Arc::new(engine::Pod {
                uid: pod::uid(pod).into(),
                resources,
                filter,
                claims,
            }),
        })
    }

    /// The claims of a pod for what it asks for of device plugins, and by the names of DeviceClasses. Once it is placed it is charged as
    /// it runs, whatever it asks for; but what nobody counts yet would be charged to nobody for as long as it runs, so a pod without
    /// claims is not understood before.
    fn claims_by_name(
        &self,
        pod: &ObservedPod,
        object: &str,
        (resources, of_classes): (&PodResources, &BTreeMap<ResourceName, i64>),
        has_claims: bool,
    ) -> Result<Vec<engine::Claim>, PendingReason> {
        let counted = &self.views.counted_resources;
        let of_plugins = device_plugin::asked(resources, &self.config.managed);
        let of_classes = of_classes.iter().map(|(name, units)| (name, *units));
        let asked: Vec<_> = of_plugins.chain(of_classes).collect();
        if !pod.is_placed() {
            device_plugin::check(&asked, has_claims).map_err(|error| error.wait(object))?;
        }
        let mut of_plugins = asked.iter().map(|(name, _)| *name).filter(|name| {
            !name
                .as_str()
                .starts_with(keys::DEVICE_CLASS_RESOURCE_PREFIX)
        });
        let uncounted = of_plugins.find(|name| counted.selector(name).is_none());
        if let Some(name) = uncounted.filter(|_| !pod.is_placed() || !has_claims) {
            return Err(PendingReason {
                reason: Reason::NoQuotaForResource,
                details: format!(
                    "{object}: resources.limits[{name}]: no Flavor counts it; an administrator makes one with spec.extendedResource \
                     {name} and gives the Team quota of it, or the pod asks by spec.resourceClaims"
                ),
            });
        }
        let mut of_classes = asked.iter().map(|(name, _)| *name).filter(|name| {
            name.as_str()
                .starts_with(keys::DEVICE_CLASS_RESOURCE_PREFIX)
        });
        let unknown = of_classes.find(|name| counted.selector(name).is_none());
        if let Some(name) = unknown.filter(|_| !pod.is_placed()) {
            let field = format!("resources.limits[{name}]");
            let why = "its DeviceClass does not exist, or is not understood";
            return Err(UnsupportedField::new(field, why).wait(object));
        }
        let claims = asked.into_iter().filter_map(|(name, units)| {
            let name = ClaimByName {
                pod_uid: pod::uid(pod),
                resource: name.as_str(),
            };
            counted.claim(name, units)
        });
        Ok(claims.collect())
    }

    /// The charged claims of a pod, each once, and whether it has excepted ones.
    fn claims_of(
        &mut self,
        pod: &ObservedPod,
        object: &str,
    ) -> Result<(Vec<engine::Claim>, bool), PendingReason> {
        let named = pod.claims();
        let mut read = Vec::with_capacity(named.len());
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
            if !seen.insert(claim.uid.clone()) {
                continue;
            }
            match self
                .known_claim(&claim)
                .map_err(|error| error.wait(&format!("ResourceClaim {}", claim.name)))?
            {
                Some(charged) => read.push(charged),
                None => has_excepted = true,
            }
        }
        Ok((read, has_excepted))
    }

    /// The claim that a pod names at a position of its list.
    pub(super) fn named_claim(
        &self,
        pod: &ObservedPod,
        named: &PodResourceClaim,
        index: usize,
    ) -> Result<Named<'_>, UnsupportedField> {
        let namespace = pod::namespace(pod);
        let field = format!("spec.resourceClaims[{index}]");
        if let Some(name) = &named.resource_claim_name {
            let claim = self
                .objects
                .resource_claims
                .get(&NamespacedName::new(namespace, name));
            // It stands for what another pod asks for, and would be taken for that.
            if claim.is_some_and(|claim| ClaimByName::parse(&claim.uid).is_some()) {
                return Err(UnsupportedField::new(
                    field,
                    format!(
                        "ResourceClaim {name} is kube-scheduler's, for another pod; name one of your own"
                    ),
                ));
            }
            return Ok(claim.filter(|claim| !claim.is_going).map_or_else(
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
        let generated = pod.claim_statuses().iter();
        let mut generated = generated.filter(|status| status.name == named.name);
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
            .resource_claims
            .get(&NamespacedName::new(namespace, name))
        else {
            return Ok(waiting());
        };
        if !claim.is_owned_by(pod::uid(pod)) {
            return Err(UnsupportedField::new(
                format!("{field} ({})", named.name),
                format!("ResourceClaim {name} was not made for this pod"),
            ));
        }
        Ok(if claim.is_going {
            waiting()
        } else {
            Named::Claim(claim)
        })
    }

    /// The claims that the pod names now, in pod order; `None` while one does not exist.
    pub(super) fn existing_claims(&self, pod: &ObservedPod) -> Option<Vec<&Arc<ObservedClaim>>> {
        let named = pod.claims();
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

    /// Reads the claims that are new, gone, or name a DeviceClass that changed.
    pub(super) fn read_claims(&mut self) {
        for key in mem::take(&mut self.touched.claims) {
            let claim = self.objects.resource_claims.get(&key).cloned();
            let mut unused = BTreeSet::new();
            let request = claim.map(|claim| {
                let mut reader = ClaimReader {
                    classes: self.objects.device_classes.items(),
                    excepted: &self.config.excepted_device_classes,
                    selectors: &mut self.selectors,
                    shares: &mut self.selector_shares,
                    key: &key,
                    new_selectors: BTreeSet::new(),
                };
                let request = reader.read(&claim);
                if request.is_err() {
                    unused = reader.new_selectors;
                    return request;
                }
                for selector in reader.new_selectors {
                    self.rollout.add_selector(selector);
                }
                request
            });
            // What comes before a field that is not understood is used by nobody.
            for selector in unused {
                self.retire_selector(selector);
            }
            for selector in request.iter().flat_map(selectors) {
                self.selector_shares.take(&key.namespace, selector);
                self.use_rule(&key, Rule::Selector(selector));
                self.claims_by_selector.link(selector, key.clone());
            }
            let old = match request {
                Some(request) => self.requests.of_claims.insert(key.clone(), request),
                None => self.requests.of_claims.remove(&key),
            };
            let used: BTreeSet<SelectorId> = self
                .requests
                .of_claims
                .get(&key)
                .into_iter()
                .flat_map(selectors)
                .collect();
            for selector in old.iter().flat_map(selectors) {
                self.selector_shares.give(&key.namespace, selector);
                if !used.contains(&selector) {
                    self.claims_by_selector.unlink(&selector, &key);
                    self.retire_selector(selector);
                }
            }
        }
    }

    /// Forgets a selector that no claim and no Flavor uses any more. Ids are never used twice, so a device that still
    /// carries it matches nothing by it.
    pub(super) fn retire_selector(&mut self, selector: SelectorId) {
        let by_flavor = self
            .views
            .flavors
            .iter()
            .any(|flavor| flavor.selector() == Some(selector));
        let by_resource = self.views.counted_resources.uses(selector);
        if !by_flavor && !by_resource && self.claims_by_selector.of(&selector).next().is_none() {
            self.selectors.forget(selector);
            self.docket.remove(Rule::Selector(selector));
            self.try_again.remove(&Rule::Selector(selector));
        }
    }

    /// What a claim asks for; `None`: only excepted devices.
    pub(super) fn known_claim(
        &self,
        claim: &ObservedClaim,
    ) -> Result<Option<engine::Claim>, UnsupportedField> {
        let key = NamespacedName::new(&*claim.namespace, &*claim.name);
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
            for (place, choice) in request.choices.iter().enumerate() {
                let field = || {
                    let request = format!("spec.devices.requests[{index}]");
                    match choice.name {
                        Some(_) => format!("{request}.firstAvailable[{place}].selectors"),
                        None => format!("{request}.exactly.selectors"),
                    }
                };
                if let Some(cause) = self.selectors.given_up(choice.selector) {
                    return Err(UnsupportedField::new(
                        field(),
                        format!("is not evaluated: {cause}"),
                    ));
                }
                if let Some(cause) = self.views.fails_everywhere(choice.selector) {
                    return Err(UnsupportedField::new(
                        field(),
                        format!("match no device, and cannot be evaluated for some: {cause}"),
                    ));
                }
                // What is allocated needs no plan.
                let withheld = self.views.withheld_everywhere(choice.selector);
                if let Some(cause) = withheld.filter(|_| claim.allocated.is_none()) {
                    return Err(UnsupportedField::new(
                        field(),
                        format!("match nothing without a device that is never planned: {cause}"),
                    ));
                }
            }
        }
        let allocated = claims::allocated(claim, |pool| self.home_of(pool))?;
        Ok(Some(engine::Claim {
            uid: (*claim.uid).into(),
            requests: requests.clone(),
            constraints: constraints.clone(),
            allocated,
        }))
    }
}

/// The selectors that a claim uses.
fn selectors(request: &Result<ClaimRequest, UnsupportedField>) -> impl Iterator<Item = SelectorId> {
    let requests = match request {
        Ok(ClaimRequest::Charged { requests, .. }) => requests.as_slice(),
        Ok(ClaimRequest::Excepted) | Err(_) => &[],
    };
    let choices = requests.iter().flat_map(|request| &request.choices);
    choices.map(|choice| choice.selector)
}
