//! What a gang asks for, in the form in which it is fitted: units that share claims stay together, equal
//! units form a class, names and UIDs are gone. Gangs with equal demand fit or fail alike.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::room::exclude_each_other;
use crate::{
    model::{Claim, DeviceChoice, DeviceRequest, Gang, Pod, PodResources, TopologyRequest},
    names::{AttributeName, ClaimUid, DeviceName, LevelName, NodeFilterId, NodeName, SelectorId},
};

/// A claim without its names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClaimShape {
    pub(crate) requests: Vec<RequestShape>,
    pub(crate) constraints: Vec<ConstraintShape>,
}

/// A request without its names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestShape {
    /// Selector and number of each choice, in the order in which they are tried.
    pub(crate) choices: Vec<(SelectorId, usize)>,
}

impl RequestShape {
    /// The fewest devices with which it is satisfied.
    pub(crate) fn least(&self) -> usize {
        let counts = self.choices.iter().map(|(_, count)| *count);
        counts.min().unwrap_or(0)
    }
}

/// That devices share a value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConstraintShape {
    /// Of which requests, by which choices, the devices do: in order.
    pub(crate) covered: Vec<(usize, usize)>,
    pub(crate) attribute: AttributeName,
}

impl ConstraintShape {
    /// Whether it is about the devices of a request that are had by a choice.
    pub(crate) fn covers(&self, request: usize, choice: usize) -> bool {
        self.covered.binary_search(&(request, choice)).is_ok()
    }
}

impl ClaimShape {
    pub(crate) fn new(claim: &Claim) -> Self {
        let shape_of = |request: &DeviceRequest| RequestShape {
            choices: request
                .choices
                .iter()
                .map(|choice| (choice.selector, choice.count as usize))
                .collect(),
        };
        let constraints = claim.constraints.iter().map(|constraint| {
            let requests = claim.requests.iter().enumerate();
            let choices = requests.flat_map(|(at, request)| {
                let choices = request.choices.iter().enumerate();
                choices.map(move |(choice, of)| (at, choice, request, of))
            });
            let covered = choices.filter(|(_, _, request, choice)| {
                constraint.requests.is_empty() || names(&constraint.requests, request, choice)
            });
            ConstraintShape {
                covered: covered.map(|(at, choice, ..)| (at, choice)).collect(),
                attribute: constraint.attribute.clone(),
            }
        });
        Self {
            requests: claim.requests.iter().map(shape_of).collect(),
            constraints: constraints.collect(),
        }
    }

    /// How many devices it asks for at the least.
    pub(crate) fn devices(&self) -> usize {
        let least = self.requests.iter().map(RequestShape::least);
        least.fold(0, usize::saturating_add)
    }

    /// Whether no request has a second choice.
    pub(crate) fn has_one_choice(&self) -> bool {
        self.requests.iter().all(|it| it.choices.len() == 1)
    }

    /// Whether it waits for devices, be it for some that there never are.
    pub(crate) fn needs_devices(&self) -> bool {
        let asks = |request: &RequestShape| request.least() > 0 || request.choices.is_empty();
        self.requests.iter().any(asks)
    }
}

/// Whether a constraint names a choice of a request: by the request, whatever it gets, or as `request/alternative`.
fn names(named: &[String], request: &DeviceRequest, choice: &DeviceChoice) -> bool {
    named.iter().any(|named| {
        let alternative = || named.strip_prefix(&request.name)?.strip_prefix('/');
        *named == request.name || (choice.name.is_some() && alternative() == choice.name.as_deref())
    })
}

/// A claim of a unit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnitClaim {
    pub(crate) shape: ClaimShape,
    /// Where it is allocated already, and what.
    pub(crate) allocated: Option<(NodeName, Vec<DeviceName>)>,
    /// Whether several pods of the unit name it: which of them allocates it is then open.
    pub(crate) shared: bool,
}

/// A pod of a unit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnitPod {
    pub(crate) resources: PodResources,
    pub(crate) filter: NodeFilterId,
    /// Its claims in pod order, as indexes into the unit's.
    pub(crate) claims: Vec<usize>,
}

/// Pods that must stand on one node, without their names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnitShape {
    pub(crate) pods: Vec<UnitPod>,
    /// Every claim of its pods once.
    pub(crate) claims: Vec<UnitClaim>,
    /// What its pods say about nodes, each once.
    filters: Vec<NodeFilterId>,
    /// Nodes that its gang does not get: the same for all units of a gang.
    closed: Arc<BTreeSet<NodeName>>,
    /// Whether its pods do not exclude each other on a node.
    coherent: bool,
}

impl UnitShape {
    pub(crate) fn new(
        pods: Vec<UnitPod>,
        claims: Vec<UnitClaim>,
        closed: Arc<BTreeSet<NodeName>>,
    ) -> Self {
        let filters: BTreeSet<NodeFilterId> = pods.iter().map(|pod| pod.filter).collect();
        Self {
            coherent: is_coherent(&pods),
            filters: filters.into_iter().collect(),
            closed,
            pods,
            claims,
        }
    }

    /// Whether its gang does not get the node.
    pub(crate) fn is_closed_on(&self, node: &NodeName) -> bool {
        self.closed.contains(node)
    }

    /// Whether it asks for the same as another one, whichever nodes their gangs do not get.
    fn asks_as(&self, other: &Self) -> bool {
        self.pods == other.pods && self.claims == other.claims
    }

    /// What its pods say about nodes, each once.
    pub(crate) fn filters(&self) -> &[NodeFilterId] {
        &self.filters
    }

    /// Whether it needs devices that are not allocated yet.
    pub(crate) fn needs_devices(&self) -> bool {
        self.claims
            .iter()
            .any(|claim| claim.allocated.is_none() && claim.shape.needs_devices())
    }

    /// The same unit as far as devices and node filters go: what gangs with different cpu and memory have in
    /// common.
    pub(crate) fn without_resources(&self) -> Self {
        let mut shape = self.clone();
        for pod in &mut shape.pods {
            pod.resources = PodResources::default();
        }
        shape
    }

    /// Whether its pods, which must run on one node, do not exclude each other there.
    pub(crate) fn is_coherent(&self) -> bool {
        self.coherent
    }

    /// Whether it asks for nothing but any devices that match one selector, if for devices at all.
    pub(crate) fn is_plain(&self) -> bool {
        let plain = |claim: &UnitClaim| {
            claim.allocated.is_none()
                && claim.shape.requests.len() <= 1
                && claim.shape.has_one_choice()
                && claim.shape.constraints.is_empty()
        };
        self.claims.len() <= 1 && self.claims.iter().all(plain)
    }

    /// Whether a node whose devices share nothing never holds more units for having fewer free devices. It is certain where each
    /// unit has one claim for devices of one kind; among several claims, or choices, first fit may do better with less to choose from.
    pub(super) fn is_monotone(&self) -> bool {
        let mut open = self.open_claims();
        let plain = |claim: &ClaimShape| {
            claim.has_one_choice()
                && match claim.constraints.as_slice() {
                    [] => claim.requests.len() <= 1,
                    [constraint] => claim.requests.len() == 1 && constraint.covered.len() == 1,
                    _ => false,
                }
        };
        open.next().is_none_or(plain) && open.next().is_none()
    }

    /// The claims whose devices are to be allocated.
    pub(super) fn open_claims(&self) -> impl Iterator<Item = &ClaimShape> {
        let open = self.claims.iter().filter(|claim| claim.allocated.is_none());
        open.map(|claim| &claim.shape)
    }

    /// How many devices are to be allocated for it.
    pub(crate) fn open_devices(&self) -> usize {
        let open = self.claims.iter().filter(|claim| claim.allocated.is_none());
        open.map(|claim| claim.shape.devices()).sum()
    }

    /// How many devices its claims ask for.
    pub(crate) fn devices(&self) -> usize {
        self.claims.iter().map(|claim| claim.shape.devices()).sum()
    }

    /// Sum of what its pods take; `None` if a sum does not fit.
    pub(crate) fn resources(&self) -> Option<PodResources> {
        let mut sum = PodResources::default();
        for PodResources {
            cpu_milli,
            memory_bytes,
            pods,
            others,
            host_ports,
            repels,
            matched_by,
        } in self.pods.iter().map(|pod| &pod.resources)
        {
            sum.cpu_milli = sum.cpu_milli.checked_add(*cpu_milli)?;
            sum.memory_bytes = sum.memory_bytes.checked_add(*memory_bytes)?;
            sum.pods = sum.pods.checked_add(*pods)?;
            for (name, amount) in others {
                let of_all = sum.others.entry(name.clone()).or_default();
                *of_all = of_all.checked_add(*amount)?;
            }
            sum.host_ports.extend(host_ports.iter().cloned());
            sum.repels.extend(repels);
            sum.matched_by.extend(matched_by);
        }
        Some(sum)
    }
}

/// Units that ask for the same.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    pub(crate) shape: UnitShape,
    /// For each unit its pods, as indexes into the gang's, in rank order.
    pub(crate) units: Vec<Vec<usize>>,
}

/// What a gang asks for.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    /// Largest first.
    pub(crate) classes: Vec<Class>,
    /// Number of pods.
    pub(crate) pods: usize,
    /// For how many seconds it runs at most, if that is known.
    pub(crate) max_seconds: Option<u64>,
}

impl Demand {
    /// The amounts that its pods ask for, one after the other, in the order of its [signature](Self::signature).
    pub(crate) fn amounts(&self) -> Vec<i64> {
        let pods = self.classes.iter().flat_map(|class| &class.shape.pods);
        let mut amounts = Vec::new();
        for pod in pods {
            let resources = &pod.resources;
            amounts.extend([resources.cpu_milli, resources.memory_bytes]);
            amounts.extend(resources.others.values());
        }
        amounts
    }

    /// Lowers amounts, given as [`Self::amounts`] gives them, where these are less.
    pub(crate) fn lower_to(&mut self, amounts: &[i64]) {
        let pods = self
            .classes
            .iter_mut()
            .flat_map(|class| &mut class.shape.pods);
        let own = pods.flat_map(|pod| pod.resources.amounts_mut());
        for (own, amount) in own.zip(amounts) {
            *own = (*own).min(*amount);
        }
    }

    /// Into how many shares an effort is split for so many ways to try. A gang of unequal pods may try each of them in vain
    /// until its steps run out, so each has a share; one of equal pods takes what it needs, which is about a look at each node.
    pub(crate) fn shares(&self, ways: usize) -> usize {
        if self.is_unequal() { ways } else { 1 }
    }

    /// Whether it has pods that ask for different things.
    pub(crate) fn is_unequal(&self) -> bool {
        self.classes.len() > 1
    }

    /// How many devices are to be allocated for it.
    pub(crate) fn open_devices(&self) -> usize {
        let classes = self.classes.iter();
        let devices = classes.map(|class| class.shape.open_devices() * class.units.len());
        devices.sum()
    }

    /// Whether it asks for the same as another one, whatever the pods are called, and whichever nodes are closed to them: nobody who can
    /// close a node to a gang is to make it wait anew.
    pub(crate) fn asks_as(&self, other: &Self) -> bool {
        let asks_as = |(own, other): (&Class, &Class)| {
            own.units.len() == other.units.len() && own.shape.asks_as(&other.shape)
        };
        self.classes.len() == other.classes.len()
            && self.classes.iter().zip(&other.classes).all(asks_as)
    }

    /// How many units it has.
    pub(crate) fn units(&self) -> usize {
        self.classes.iter().map(|class| class.units.len()).sum()
    }

    /// What all pods of a gang ask for.
    #[cfg(test)]
    pub(crate) fn new(gang: &Gang) -> Self {
        Self::of_first(gang, gang.pods.len())
    }

    /// What the first so many pods of a gang ask for.
    pub(crate) fn of_first(gang: &Gang, pods: usize) -> Self {
        let pods = gang.pods.get(..pods).unwrap_or(&gang.pods);
        let mut by_shape: BTreeMap<UnitShape, Vec<Vec<usize>>> = BTreeMap::new();
        let closed = Arc::new(gang.topology.closed.clone());
        for unit in units(pods) {
            let shape = shape(pods, &unit, &closed);
            by_shape.entry(shape).or_default().push(unit);
        }
        let mut classes: Vec<Class> = by_shape
            .into_iter()
            .map(|(shape, units)| Class { shape, units })
            .collect();
        // Stable: equal sizes stay in shape order.
        classes.sort_by_cached_key(|class| {
            let resources = class.shape.resources().unwrap_or_default();
            std::cmp::Reverse((class.shape.devices(), resources))
        });
        Self {
            classes,
            pods: pods.len(),
            max_seconds: gang.run_time.gone_after_seconds(),
        }
    }

    /// The part that decides whether it fits, and where it may run for how long it runs.
    pub(crate) fn signature(&self, wish: &TopologyRequest) -> Signature {
        Signature {
            max_seconds: self.max_seconds.map(rounded_run_time),
            required: wish.required.clone(),
            classes: self
                .classes
                .iter()
                .map(|class| (class.shape.clone(), class.units.len()))
                .collect(),
        }
    }
}

/// Equal for gangs that ask for the same: of one Team, they fit or fail alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Signature {
    /// Gangs that do not run equally long may not be let in to the same nodes. Rounded, so that there are few of them.
    max_seconds: Option<u64>,
    required: Option<LevelName>,
    classes: Vec<(UnitShape, usize)>,
}

impl Signature {
    /// The same with every amount rounded down to a power of two: of the endless many amounts that may be asked for there
    /// are 63 then.
    pub(crate) fn rounded_down(&self) -> Self {
        let mut rounded = self.clone();
        let pods = rounded
            .classes
            .iter_mut()
            .flat_map(|(shape, _)| &mut shape.pods);
        for amount in pods.flat_map(|pod| pod.resources.amounts_mut()) {
            *amount = power_of_two_at_most(*amount);
        }
        rounded.max_seconds = rounded.max_seconds.map(|seconds| leading_bits(seconds, 1));
        rounded
    }
}

/// A run time without what lies below an eighth of it: of those that round alike, the first in line speaks for all.
fn rounded_run_time(seconds: u64) -> u64 {
    leading_bits(seconds, 4)
}

/// A number with so many of its leading bits.
fn leading_bits(number: u64, bits: u32) -> u64 {
    let below = number.checked_ilog2().unwrap_or(0).saturating_sub(bits - 1);
    (number >> below) << below
}

fn power_of_two_at_most(amount: i64) -> i64 {
    amount
        .max(0)
        .checked_ilog2()
        .map_or(0, |exponent| 1_i64 << exponent)
}

/// Pods joined by claims, in rank order of their first pods.
fn units(pods: &[Pod]) -> Vec<Vec<usize>> {
    let mut unit_of: Vec<usize> = (0..pods.len()).collect();
    let mut first_with: BTreeMap<&ClaimUid, usize> = BTreeMap::new();
    for (at, pod) in pods.iter().enumerate() {
        for claim in &pod.claims {
            let other = *first_with.entry(&claim.uid).or_insert(at);
            let (one, other) = (root(&unit_of, at), root(&unit_of, other));
            unit_of[one.max(other)] = one.min(other);
        }
    }
    let mut units: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for at in 0..pods.len() {
        units.entry(root(&unit_of, at)).or_default().push(at);
    }
    units.into_values().collect()
}

fn root(unit_of: &[usize], mut at: usize) -> usize {
    while unit_of[at] != at {
        at = unit_of[at];
    }
    at
}

fn shape(of_gang: &[Pod], unit: &[usize], closed: &Arc<BTreeSet<NodeName>>) -> UnitShape {
    let mut places: BTreeMap<&ClaimUid, usize> = BTreeMap::new();
    let mut claims: Vec<UnitClaim> = Vec::new();
    let mut pods = Vec::new();
    for pod in unit.iter().filter_map(|at| of_gang.get(*at)) {
        let mut of_pod = Vec::new();
        for claim in &pod.claims {
            let place = *places.entry(&claim.uid).or_insert(claims.len());
            if place == claims.len() {
                claims.push(UnitClaim {
                    shape: ClaimShape::new(claim),
                    allocated: claim.allocated.clone(),
                    shared: false,
                });
            } else if !of_pod.contains(&place) {
                claims[place].shared = true;
            }
            if !of_pod.contains(&place) {
                of_pod.push(place);
            }
        }
        pods.push(UnitPod {
            resources: pod.resources.clone(),
            filter: pod.filter,
            claims: of_pod,
        });
    }
    UnitShape::new(pods, claims, Arc::clone(closed))
}

/// Whether no two of these pods exclude each other on a node.
fn is_coherent(pods: &[UnitPod]) -> bool {
    let picky = |pod: &&UnitPod| {
        let PodResources {
            host_ports, repels, ..
        } = &pod.resources;
        !host_ports.is_empty() || !repels.is_empty()
    };
    pods.iter()
        .enumerate()
        .filter(|(_, pod)| picky(pod))
        .all(|(at, one)| {
            let mut others = pods.iter().enumerate().filter(|(other, _)| *other != at);
            !others.any(|(_, other)| exclude_each_other(&one.resources, &other.resources))
        })
}

/// The claims of a unit's pods, each once, in the order of [`UnitShape::claims`].
pub(crate) fn claims_of<'a>(pods: impl Iterator<Item = &'a Pod>) -> Vec<&'a Claim> {
    let mut claims: Vec<&Claim> = Vec::new();
    for claim in pods.flat_map(|pod| &pod.claims) {
        if !claims.iter().any(|known| known.uid == claim.uid) {
            claims.push(claim);
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::{leading_bits, power_of_two_at_most};

    #[test]
    fn run_times_are_told_apart_by_their_leading_bits() {
        let table = [
            (0, 0),
            (1, 1),
            (9, 9),
            (15, 15),
            (17, 16),
            (3_600, 3_584),
            (3_599, 3_584),
        ];
        for (seconds, expected) in table {
            assert_eq!(leading_bits(seconds, 4), expected, "{seconds}");
        }
        assert_eq!(leading_bits(u64::MAX, 4), 15 << 60);
        assert_eq!(leading_bits(3_600, 1), 2_048);
    }

    #[test]
    fn amounts_are_rounded_down_and_never_up() {
        for (amount, expected) in [(-5, 0), (0, 0), (1, 1), (3, 2), (4, 4), (i64::MAX, 1 << 62)] {
            assert_eq!(power_of_two_at_most(amount), expected, "{amount}");
        }
    }
}
