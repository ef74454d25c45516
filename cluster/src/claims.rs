//! ResourceClaims as the engine's claims.
//!
//! Understood are requests for an exact number of devices of a DeviceClass, with CEL selectors, and
//! `matchAttribute` between them. Everything else (`All`, `firstAvailable`, admin access, capacity,
//! tolerations, `distinctAttribute`, derived attributes) changes what kube-scheduler's allocator
//! takes in a way that the planner does not model: it waits with the field named, never a guess.

mod observed;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::resource::v1::{
    DeviceClass, DeviceConstraint, DeviceRequest, DeviceSelector, ExactDeviceRequest,
};
use muster_engine as engine;

pub(crate) use observed::ClaimSpecs;
pub use observed::{AllocatedDevice, ObservedClaim};

use crate::{
    index::NamespacedName,
    pools::{PoolKey, device_name},
    selectors::{InvalidExpression, Selectors},
    shares::{RULES_PER_NAMESPACE, Shares},
    unsupported_field::UnsupportedField,
};

/// Most devices of one claim: what Kubernetes records in an allocation.
const MAX_DEVICES_PER_CLAIM: u32 = 32;

/// What a claim asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimRequest {
    /// Devices that are planned and charged.
    Charged {
        /// Its requests in claim order.
        requests: Vec<engine::DeviceRequest>,
        /// What the devices must have in common.
        constraints: Vec<engine::Constraint>,
    },
    /// Devices of excepted DeviceClasses only: not planned, not charged.
    Excepted,
}

/// What is needed to read a claim.
#[derive(Debug)]
pub(crate) struct ClaimReader<'a> {
    /// All DeviceClasses by name.
    pub(crate) classes: &'a BTreeMap<String, Arc<DeviceClass>>,
    /// DeviceClasses that are not charged.
    pub(crate) excepted: &'a BTreeSet<String>,
    /// Where selectors are interned.
    pub(crate) selectors: &'a mut Selectors,
    /// How many selectors each namespace uses.
    pub(crate) shares: &'a mut Shares<engine::SelectorId, NamespacedName>,
    /// The claim that is read.
    pub(crate) key: &'a NamespacedName,
    /// Selectors that were interned: nodes are to be told about them.
    pub(crate) new_selectors: BTreeSet<engine::SelectorId>,
}

impl ClaimReader<'_> {
    /// Reads what a claim asks for.
    pub(crate) fn read(&mut self, claim: &ObservedClaim) -> Result<ClaimRequest, UnsupportedField> {
        let devices = claim.spec.as_ref().and_then(|spec| spec.devices.as_ref());
        let requests = devices.and_then(|devices| devices.requests.as_deref());
        let requests = requests.unwrap_or_default();
        let excepted = requests
            .iter()
            .filter(|request| self.is_excepted(request))
            .count();
        if excepted > 0 && excepted == requests.len() {
            return Ok(ClaimRequest::Excepted);
        }
        if excepted > 0 {
            return Err(UnsupportedField::new(
                "spec.devices.requests",
                "names excepted DeviceClasses beside others; put them into a claim of their own",
            ));
        }
        let mut understood = Vec::with_capacity(requests.len());
        for (index, request) in requests.iter().enumerate() {
            understood.push(self.request(request, &format!("spec.devices.requests[{index}]"))?);
        }
        check_total(&understood)?;
        let constraints = devices
            .iter()
            .flat_map(|devices| devices.constraints.iter().flatten());
        let constraints = constraints
            .enumerate()
            .map(|(index, given)| constraint(given, index, &understood))
            .collect::<Result<_, _>>()?;
        Ok(ClaimRequest::Charged {
            requests: understood,
            constraints,
        })
    }

    fn is_excepted(&self, request: &DeviceRequest) -> bool {
        request
            .exactly
            .as_ref()
            .is_some_and(|exactly| self.excepted.contains(&exactly.device_class_name))
    }

    fn request(
        &mut self,
        request: &DeviceRequest,
        path: &str,
    ) -> Result<engine::DeviceRequest, UnsupportedField> {
        if request.first_available.is_some() {
            return Err(UnsupportedField::new(
                format!("{path}.firstAvailable"),
                "alternatives are not planned; use exactly",
            ));
        }
        let Some(exactly) = &request.exactly else {
            return Err(UnsupportedField::new(
                path,
                "is of a kind that is not known; use exactly",
            ));
        };
        let path = format!("{path}.exactly");
        check_plain(exactly, &path)?;
        let selector = self.selector(exactly, &path)?;
        let count = count(exactly, &path)?;
        Ok(engine::DeviceRequest::exactly(
            request.name.clone(),
            selector,
            count,
        ))
    }

    /// The class's expressions first, then the request's, as kube-scheduler evaluates them.
    fn selector(
        &mut self,
        exactly: &ExactDeviceRequest,
        path: &str,
    ) -> Result<engine::SelectorId, UnsupportedField> {
        let class_name = &exactly.device_class_name;
        let Some(class) = self.classes.get(class_name) else {
            return Err(UnsupportedField::new(
                format!("{path}.deviceClassName"),
                format!(
                    "there is no DeviceClass {class_name}; `kubectl get deviceclasses` lists those that exist"
                ),
            ));
        };
        let class_selectors = class
            .spec
            .as_ref()
            .and_then(|spec| spec.selectors.as_deref());
        let of_class = expressions(class_selectors, &|index| {
            format!("{path}.deviceClassName ({class_name}): spec.selectors[{index}]")
        })?;
        let of_request = expressions(exactly.selectors.as_deref(), &|index| {
            format!("{path}.selectors[{index}]")
        })?;
        let from_class = of_class.len();
        let all: Vec<String> = of_class.into_iter().chain(of_request).collect();
        self.check_share(&all, path)?;
        let (id, is_new) = self.selectors.intern(all).map_err(|error| {
            let InvalidExpression {
                position,
                cause: error,
            } = error;
            let field = match position.checked_sub(from_class) {
                Some(index) => format!("{path}.selectors[{index}].cel.expression"),
                None => format!(
                    "{path}.deviceClassName ({class_name}): spec.selectors[{position}].cel.expression"
                ),
            };
            UnsupportedField::new(field, error)
        })?;
        if is_new {
            self.new_selectors.insert(id);
        }
        Ok(id)
    }

    /// Whether the namespace may use the selector: it does already, or has room for one more.
    fn check_share(&mut self, texts: &[String], path: &str) -> Result<(), UnsupportedField> {
        let namespace = &self.key.namespace;
        let known = self.selectors.known(texts);
        if known.is_some_and(|id| self.shares.uses(namespace, id))
            || self.shares.has_room(namespace, self.key.clone())
        {
            return Ok(());
        }
        Err(UnsupportedField::new(
            format!("{path}.selectors"),
            format!(
                "the ResourceClaims of namespace {namespace} use {RULES_PER_NAMESPACE} different selectors; this one is read when one of them is no longer used"
            ),
        ))
    }
}

/// The DeviceClasses that a claim names, existing or not.
pub fn classes(claim: &ObservedClaim) -> impl Iterator<Item = &str> {
    let devices = claim.spec.iter().flat_map(|spec| &spec.devices);
    let requests = devices.flat_map(|devices| devices.requests.iter().flatten());
    requests
        .filter_map(|request| request.exactly.as_ref())
        .map(|exactly| exactly.device_class_name.as_str())
}

/// The devices that a claim is allocated, and their node. `None`: it is not allocated. `node_of` says
/// on which node a pool is.
pub fn allocated(
    claim: &ObservedClaim,
    node_of: impl Fn(&PoolKey) -> Option<String>,
) -> Result<Option<(engine::NodeName, Vec<engine::DeviceName>)>, UnsupportedField> {
    let field = "status.allocation.devices.results";
    let mut node = None;
    let mut names = Vec::new();
    for result in claim.allocated.iter().flatten() {
        let pool = PoolKey {
            driver: result.driver.to_string(),
            name: result.pool.to_string(),
        };
        let Some(on) = node_of(&pool) else {
            return Err(UnsupportedField::new(
                field,
                format!("no node publishes the pool {}/{}", pool.driver, pool.name),
            ));
        };
        if node.as_ref().is_some_and(|node| *node != on) {
            return Err(UnsupportedField::new(
                field,
                "names devices of several nodes",
            ));
        }
        node = Some(on);
        names.push(device_name(&result.driver, &result.pool, &result.device).into());
    }
    Ok(node.map(|node| (node.into(), names)))
}

fn check_plain(exactly: &ExactDeviceRequest, path: &str) -> Result<(), UnsupportedField> {
    let refuse =
        |field: &str, why: &str| Err(UnsupportedField::new(format!("{path}.{field}"), why));
    if exactly.admin_access == Some(true) {
        return refuse("adminAccess", "devices that others hold are not planned");
    }
    if !matches!(
        exactly.allocation_mode.as_deref(),
        None | Some("ExactCount")
    ) {
        let mode = exactly.allocation_mode.as_deref().unwrap_or_default();
        return refuse(
            "allocationMode",
            &format!("{mode} is not planned; use ExactCount with a count"),
        );
    }
    if exactly.capacity.is_some() {
        return refuse("capacity", "shares of a device are not planned");
    }
    if exactly
        .tolerations
        .as_ref()
        .is_some_and(|list| !list.is_empty())
    {
        return refuse("tolerations", "tainted devices are not planned");
    }
    if exactly
        .derived_attributes
        .as_ref()
        .is_some_and(|list| !list.is_empty())
    {
        return refuse("derivedAttributes", "is not evaluated");
    }
    Ok(())
}

fn count(exactly: &ExactDeviceRequest, path: &str) -> Result<u32, UnsupportedField> {
    let count = exactly.count.unwrap_or(1);
    u32::try_from(count)
        .ok()
        .filter(|count| (1..=MAX_DEVICES_PER_CLAIM).contains(count))
        .ok_or_else(|| {
            UnsupportedField::new(
                format!("{path}.count"),
                format!("is {count}; a claim has 1 to {MAX_DEVICES_PER_CLAIM} devices"),
            )
        })
}

fn check_total(requests: &[engine::DeviceRequest]) -> Result<(), UnsupportedField> {
    let total: u64 = requests
        .iter()
        .flat_map(|request| &request.choices)
        .map(|choice| u64::from(choice.count))
        .sum();
    if total <= u64::from(MAX_DEVICES_PER_CLAIM) {
        return Ok(());
    }
    Err(UnsupportedField::new(
        "spec.devices.requests",
        format!("asks for {total} devices; a claim has at most {MAX_DEVICES_PER_CLAIM}"),
    ))
}

fn expressions(
    selectors: Option<&[DeviceSelector]>,
    path: &dyn Fn(usize) -> String,
) -> Result<Vec<String>, UnsupportedField> {
    selectors
        .unwrap_or_default()
        .iter()
        .enumerate()
        .map(|(index, selector)| match &selector.cel {
            Some(cel) => Ok(cel.expression.clone()),
            None => Err(UnsupportedField::new(
                path(index),
                "is of a kind that is not known; use cel",
            )),
        })
        .collect()
}

fn constraint(
    given: &DeviceConstraint,
    index: usize,
    requests: &[engine::DeviceRequest],
) -> Result<engine::Constraint, UnsupportedField> {
    let path = format!("spec.devices.constraints[{index}]");
    if given.distinct_attribute.is_some() {
        return Err(UnsupportedField::new(
            format!("{path}.distinctAttribute"),
            "is not planned",
        ));
    }
    let Some(attribute) = &given.match_attribute else {
        return Err(UnsupportedField::new(
            path,
            "is of a kind that is not known; use matchAttribute",
        ));
    };
    let named = given.requests.clone().unwrap_or_default();
    for (position, name) in named.iter().enumerate() {
        if !requests.iter().any(|request| request.name == *name) {
            return Err(UnsupportedField::new(
                format!("{path}.requests[{position}]"),
                format!("there is no request {name}"),
            ));
        }
    }
    Ok(engine::Constraint {
        requests: named,
        attribute: attribute.as_str().into(),
    })
}
