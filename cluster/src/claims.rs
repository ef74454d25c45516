//! ResourceClaims as the engine's claims.
//!
//! Understood are requests for an exact number of devices of a DeviceClass, with CEL selectors and
//! capacity; the same as alternatives (`firstAvailable`); and `matchAttribute` between them. Everything
//! else (`All`, admin access, tolerations, `distinctAttribute`, derived attributes) changes what
//! kube-scheduler's allocator takes in a way that the planner does not model: it waits with the field
//! named, never a guess.

mod asked;
mod observed;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::resource::v1::{DeviceClass, DeviceConstraint, DeviceRequest};
use muster_api::keys;
use muster_engine as engine;

use asked::Asked;
pub(crate) use observed::ClaimSpecs;
pub use observed::{AllocatedDevice, ObservedClaim};

use crate::{
    index::NamespacedName,
    pools::{PoolKey, device_name},
    selectors::{InvalidExpression, SelectorText, Selectors},
    shares::{RULES_PER_NAMESPACE, Shares},
    unsupported_field::UnsupportedField,
};

/// Most devices of one claim: what Kubernetes records in an allocation.
const MAX_DEVICES_PER_CLAIM: u32 = 32;
/// Most alternatives of one request, as Kubernetes limits them.
const MAX_ALTERNATIVES: usize = 8;

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
        let named: Vec<&str> = requests.iter().flat_map(classes_of).collect();
        let excepted = named
            .iter()
            .filter(|class| self.excepted.contains(**class))
            .count();
        if excepted > 0 && excepted == named.len() {
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

    fn request(
        &mut self,
        request: &DeviceRequest,
        path: &str,
    ) -> Result<engine::DeviceRequest, UnsupportedField> {
        let alternatives = request.first_available.as_deref();
        let choices = match (&request.exactly, alternatives.unwrap_or_default()) {
            (Some(exactly), []) => {
                vec![self.choice(None, &exactly.into(), &format!("{path}.exactly"))?]
            }
            (Some(_), _) => {
                return Err(UnsupportedField::new(
                    path,
                    "says both exactly and firstAvailable; use one of them",
                ));
            }
            (None, alternatives) if request.first_available.is_some() => {
                let path = format!("{path}.firstAvailable");
                if !(1..=MAX_ALTERNATIVES).contains(&alternatives.len()) {
                    let why = format!(
                        "names {} alternatives; a request has 1 to {MAX_ALTERNATIVES}",
                        alternatives.len()
                    );
                    return Err(UnsupportedField::new(path, why));
                }
                let mut choices = Vec::with_capacity(alternatives.len());
                let mut names = BTreeSet::new();
                for (index, alternative) in alternatives.iter().enumerate() {
                    let path = format!("{path}[{index}]");
                    if !names.insert(&alternative.name) {
                        let why = format!("another alternative is called {}", alternative.name);
                        return Err(UnsupportedField::new(format!("{path}.name"), why));
                    }
                    let name = Some(alternative.name.clone());
                    choices.push(self.choice(name, &alternative.into(), &path)?);
                }
                choices
            }
            (None, _) => {
                return Err(UnsupportedField::new(
                    path,
                    "is of a kind that is not known; use exactly or firstAvailable",
                ));
            }
        };
        Ok(engine::DeviceRequest {
            name: request.name.clone(),
            choices,
        })
    }

    fn choice(
        &mut self,
        name: Option<String>,
        asked: &Asked<'_>,
        path: &str,
    ) -> Result<engine::DeviceChoice, UnsupportedField> {
        asked.check_plain(path)?;
        let count = asked.count(path)?;
        Ok(engine::DeviceChoice {
            name,
            selector: self.selector(asked, path)?,
            count,
        })
    }

    /// The class's expressions first, then the request's, then the capacity, as kube-scheduler evaluates them.
    fn selector(
        &mut self,
        asked: &Asked<'_>,
        path: &str,
    ) -> Result<engine::SelectorId, UnsupportedField> {
        let class_name = asked.class;
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
        let of_class = asked::expressions(class_selectors.unwrap_or_default(), &|index| {
            format!("{path}.deviceClassName ({class_name}): spec.selectors[{index}]")
        })?;
        let of_request = asked.expressions(&|index| format!("{path}.selectors[{index}]"))?;
        let from_class = of_class.len();
        let text = SelectorText {
            expressions: of_class.into_iter().chain(of_request).collect(),
            capacity: asked.capacity(path)?,
        };
        self.check_share(&text, path)?;
        let (id, is_new) = self.selectors.intern(text).map_err(|error| {
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
    fn check_share(&mut self, text: &SelectorText, path: &str) -> Result<(), UnsupportedField> {
        let namespace = &self.key.namespace;
        let known = self.selectors.known(text);
        let uses = |id| self.shares.uses(namespace, id) || self.new_selectors.contains(&id);
        let others = self.new_selectors.len();
        if known.is_some_and(uses)
            || self
                .shares
                .has_room_beside(namespace, self.key.clone(), others)
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

/// The DeviceClasses that a claim names, existing or not. One that several requests name comes several times.
pub fn classes(claim: &ObservedClaim) -> impl Iterator<Item = &str> {
    let devices = claim.spec.iter().flat_map(|spec| &spec.devices);
    let requests = devices.flat_map(|devices| devices.requests.iter().flatten());
    requests.flat_map(classes_of)
}

/// Whether whoever has the claim uses the NVLinks of its GPUs: it has several, or says that they are to be connected.
pub fn uses_links(claim: &ObservedClaim) -> bool {
    let devices = claim.allocated.iter().flatten();
    let own = devices.filter(|device| !device.for_admin && *device.driver == *keys::DRIVER);
    if own.count() > 1 {
        return true;
    }
    let asked = claim.spec.iter().flat_map(|spec| &spec.devices);
    let constraints = asked.flat_map(|asked| asked.constraints.iter().flatten());
    let mut attributes = constraints.filter_map(|given| given.match_attribute.as_deref());
    attributes.any(|attribute| {
        let name = attribute.rsplit('/').next().unwrap_or(attribute);
        name.starts_with("nvlink") || name == "fabricClique"
    })
}

/// The DeviceClasses that a request names, in whatever way.
fn classes_of(request: &DeviceRequest) -> impl Iterator<Item = &str> {
    let exactly = request.exactly.iter();
    let exactly = exactly.map(|exactly| exactly.device_class_name.as_str());
    let alternatives = request.first_available.iter().flatten();
    exactly.chain(alternatives.map(|alternative| alternative.device_class_name.as_str()))
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

/// Whether the claim stays within its limit whichever alternatives it gets.
fn check_total(requests: &[engine::DeviceRequest]) -> Result<(), UnsupportedField> {
    let most = requests.iter().map(|request| {
        let counts = request.choices.iter().map(|choice| u64::from(choice.count));
        counts.max().unwrap_or(0)
    });
    let total: u64 = most.sum();
    if total <= u64::from(MAX_DEVICES_PER_CLAIM) {
        return Ok(());
    }
    Err(UnsupportedField::new(
        "spec.devices.requests",
        format!("asks for {total} devices; a claim has at most {MAX_DEVICES_PER_CLAIM}"),
    ))
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
        if !requests.iter().any(|request| is_named(request, name)) {
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

/// Whether a constraint means the request by that name, or one of its alternatives: `request` or `request/alternative`.
fn is_named(request: &engine::DeviceRequest, name: &str) -> bool {
    let Some((main, alternative)) = name.split_once('/') else {
        return request.name == name;
    };
    let mut choices = request.choices.iter();
    request.name == main && choices.any(|choice| choice.name.as_deref() == Some(alternative))
}
