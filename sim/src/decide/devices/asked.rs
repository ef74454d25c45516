//! What the requests of a claim ask for, and in which ways each of them can be met.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceClass, DeviceConstraint, DeviceRequest, DeviceSelector,
    DeviceSubRequest, ExactDeviceRequest,
};
use muster_cluster::{
    quantity::{self, ExactQuantity},
    selectors::SelectorText,
};
use muster_engine::AttributeName;

use super::ReadObjects;

/// Most devices of a claim, as Kubernetes limits them.
const MOST_DEVICES: usize = 32;

/// One way to meet a request: `exactly`, or an alternative of `firstAvailable`.
pub(super) struct Asked {
    /// As results name it: `request`, or `request/alternative`.
    pub(super) name: String,
    /// What each device must be like.
    pub(super) text: SelectorText,
    /// How many devices, one at least.
    pub(super) count: usize,
}

/// That devices must have the same value of an attribute.
pub(super) struct Constraint {
    /// The claim, as its place among those that are allocated together.
    claim: usize,
    /// Names of its requests, or of alternatives of them; empty: all.
    requests: Vec<String>,
    /// The attribute.
    pub(super) attribute: AttributeName,
}

/// What `exactly` and an alternative have in common.
struct Fields<'a> {
    class: &'a str,
    selectors: Option<&'a Vec<DeviceSelector>>,
    capacity: Option<&'a CapacityRequirements>,
    count: Option<i64>,
    mode: Option<&'a str>,
    is_for_admin: bool,
    derives_attributes: bool,
}

impl<'a> From<&'a ExactDeviceRequest> for Fields<'a> {
    fn from(exactly: &'a ExactDeviceRequest) -> Self {
        let derived = exactly.derived_attributes.as_ref();
        Self {
            class: &exactly.device_class_name,
            selectors: exactly.selectors.as_ref(),
            capacity: exactly.capacity.as_ref(),
            count: exactly.count,
            mode: exactly.allocation_mode.as_deref(),
            is_for_admin: exactly.admin_access == Some(true),
            derives_attributes: derived.is_some_and(|derived| !derived.is_empty()),
        }
    }
}

impl<'a> From<&'a DeviceSubRequest> for Fields<'a> {
    fn from(alternative: &'a DeviceSubRequest) -> Self {
        let derived = alternative.derived_attributes.as_ref();
        Self {
            class: &alternative.device_class_name,
            selectors: alternative.selectors.as_ref(),
            capacity: alternative.capacity.as_ref(),
            count: alternative.count,
            mode: alternative.allocation_mode.as_deref(),
            is_for_admin: false,
            derives_attributes: derived.is_some_and(|derived| !derived.is_empty()),
        }
    }
}

/// The ways in which a request can be met, in the order in which kube-scheduler tries them. What Muster does not plan
/// (`All`, admin access, derived attributes, unknown kinds) is left out, and tolerations of devices are not read: a tainted
/// device is never given.
pub(super) fn ways(objects: &impl ReadObjects, request: &DeviceRequest) -> Vec<Asked> {
    let exactly = request.exactly.iter();
    let exactly = exactly.map(|exactly| (request.name.clone(), Fields::from(exactly)));
    let alternatives = request.first_available.iter().flatten();
    let alternatives = alternatives.map(|alternative| {
        let name = format!("{}/{}", request.name, alternative.name);
        (name, Fields::from(alternative))
    });
    exactly
        .chain(alternatives)
        .filter_map(|(name, fields)| fields.read(objects, name))
        .collect()
}

impl Fields<'_> {
    fn read(&self, objects: &impl ReadObjects, name: String) -> Option<Asked> {
        let is_plain = !self.is_for_admin && !self.derives_attributes;
        if !is_plain || self.mode.is_some_and(|mode| mode != "ExactCount") {
            return None;
        }
        let count = usize::try_from(self.count.unwrap_or(1)).ok()?;
        let class = objects.find::<DeviceClass>("", self.class)?;
        let of_class = class.spec.as_ref().and_then(|spec| spec.selectors.as_ref());
        let selectors = of_class.into_iter().chain(self.selectors).flatten();
        let text = SelectorText {
            expressions: selectors.map(expression).collect::<Option<_>>()?,
            capacity: self.capacity()?,
        };
        (1..=MOST_DEVICES)
            .contains(&count)
            .then_some(Asked { name, text, count })
    }

    fn capacity(&self) -> Option<BTreeMap<String, ExactQuantity>> {
        let capacity = self
            .capacity
            .and_then(|capacity| capacity.requests.as_ref());
        let amounts = capacity.into_iter().flatten().map(|(name, amount)| {
            let amount = quantity::exact(&amount.0, name).ok()?;
            Some((name.clone(), amount))
        });
        amounts.collect()
    }
}

fn expression(selector: &DeviceSelector) -> Option<String> {
    Some(selector.cel.as_ref()?.expression.clone())
}

impl Constraint {
    /// A constraint of a claim. `None`: it is of a kind that Muster does not plan.
    pub(super) fn read(claim: usize, given: &DeviceConstraint) -> Option<Self> {
        let attribute = given.match_attribute.as_deref()?;
        if given.distinct_attribute.is_some() {
            return None;
        }
        Some(Self {
            claim,
            requests: given.requests.clone().unwrap_or_default(),
            attribute: attribute.into(),
        })
    }

    /// Whether it means a request of a claim, met in the way of that name.
    pub(super) fn covers(&self, claim: usize, way: &str) -> bool {
        let request = way.split_once('/').map_or(way, |(request, _)| request);
        let named = &self.requests;
        let is_named = || named.iter().any(|name| name == way || name == request);
        claim == self.claim && (named.is_empty() || is_named())
    }
}
