//! What a gang asks of quota, and to which Flavor each resource is charged.
//!
//! A gang is judged on one Flavor of its Team at a time. GPUs and their memory are charged to that Flavor;
//! a claim that is allocated already is charged to the Flavor of its devices. Cores, memory and extended resources are
//! charged to that Flavor too, if the Team's quota for it names them, else to the first Flavor in the Team's
//! order that does: so no limit is evaded by running on a Flavor that lacks it. What no quota of the Team names
//! is not charged, but for GPUs: these need a quota.

use std::collections::BTreeMap;

use super::{PairId, QuotaTree};
use crate::{
    amount::{Amount, FlavorResource, Overflow, Resource},
    model::{PodResources, Team},
    names::{DeviceName, FlavorName, NodeName, SelectorId},
    placement::{Cluster, Demand, DeviceCharge, RequestShape},
};

/// Amounts by Flavor and resource, none of them zero.
pub(crate) type QuotaRequest = BTreeMap<PairId, Amount>;

/// To what a Team is charged for gangs on one of its Flavors.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    pub(crate) flavor: FlavorName,
    pub(crate) gpus: Option<PairId>,
    pub(crate) vram: Option<PairId>,
    /// Everything that is not a device.
    pub(crate) besides: BTreeMap<Resource, PairId>,
}

/// The assignments of a Team, in the order in which Flavors are tried.
pub(crate) fn assignments(team: &Team, tree: &mut QuotaTree) -> Vec<Assignment> {
    let mut pair = |flavor: &FlavorName, resource: &Resource| {
        tree.pair(&FlavorResource {
            flavor: flavor.clone(),
            resource: resource.clone(),
        })
    };
    let mut first_naming: BTreeMap<Resource, PairId> = BTreeMap::new();
    let mut assignments: Vec<Assignment> = Vec::new();
    for (flavor, named) in &team.quota {
        let mut of_flavor = BTreeMap::new();
        for resource in named.keys() {
            of_flavor.insert(resource.clone(), pair(flavor, resource));
        }
        let gpus = of_flavor.remove(&Resource::Gpus);
        let vram = of_flavor.remove(&Resource::Vram);
        for (resource, pair) in &of_flavor {
            first_naming.entry(resource.clone()).or_insert(*pair);
        }
        assignments.push(Assignment {
            flavor: flavor.clone(),
            gpus,
            vram,
            besides: of_flavor,
        });
    }
    for assignment in &mut assignments {
        for (resource, pair) in &first_naming {
            assignment.besides.entry(resource.clone()).or_insert(*pair);
        }
    }
    assignments
}

/// What a gang takes in all, whichever Flavor and nodes it gets.
#[derive(Clone, Debug)]
pub(crate) struct Totals {
    /// Of its pods; `None` if a sum does not fit.
    resources: Option<PodResources>,
    /// What is to be allocated: how often by which request.
    requests: BTreeMap<RequestShape, usize>,
    /// Claims that are allocated already.
    allocated: Vec<(NodeName, Vec<DeviceName>)>,
    pub(crate) pods: usize,
    pub(crate) claims: usize,
}

/// What a gang may be charged by.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub(crate) asked: QuotaRequest,
    /// Devices that are charged more are not counted on. `None`: it asks for none that there are.
    pub(crate) most_per_device: Option<DeviceCharge>,
}

/// Why no request can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestFault {
    /// The Team has no quota for GPUs of this Flavor, or of the Flavor of a claim that is allocated already.
    Unnamed,
    /// A sum does not fit.
    Overflow,
}

impl From<Overflow> for RequestFault {
    fn from(_: Overflow) -> Self {
        Self::Overflow
    }
}

impl Totals {
    pub(crate) fn of(demand: &Demand) -> Self {
        let mut totals = Self {
            resources: Some(PodResources::default()),
            requests: BTreeMap::new(),
            allocated: Vec::new(),
            pods: demand.pods,
            claims: 0,
        };
        for class in &demand.classes {
            let units = class.units.len();
            let of_all = class.shape.resources();
            let of_all = of_all.and_then(|of_unit| times(of_unit, units));
            totals.resources = totals
                .resources
                .zip(of_all)
                .and_then(|(sum, more)| add(sum, &more));
            totals.claims += class.shape.claims.len() * units;
            for claim in &class.shape.claims {
                if let Some(allocated) = &claim.allocated {
                    totals.allocated.push(allocated.clone());
                    continue;
                }
                for request in &claim.shape.requests {
                    let times = totals.requests.entry(request.clone()).or_default();
                    *times = times.saturating_add(units);
                }
            }
        }
        totals
    }

    /// Whether it asks for any device that is not allocated yet.
    pub(crate) fn draws_devices(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Whether devices of its claims are allocated already.
    pub(crate) fn has_allocated(&self) -> bool {
        !self.allocated.is_empty()
    }

    /// The least that the gang may be charged on a Flavor, before it is known which devices it gets.
    pub(crate) fn least(
        &self,
        assignment: &Assignment,
        all: &[Assignment],
        cluster: &Cluster,
    ) -> Result<QuotaRequest, RequestFault> {
        let (mut gpus, mut vram) = (Amount::ZERO, Amount::ZERO);
        for (request, times) in &self.requests {
            let least = least_of(request, &assignment.flavor, cluster)?;
            gpus = gpus.add(least.gpus.times(*times)?)?;
            vram = vram.add(least.vram.times(*times)?)?;
        }
        let mut request = self.besides_devices(assignment, all, cluster)?;
        add_devices(&mut request, assignment, DeviceCharge { gpus, vram })?;
        Ok(finished(request))
    }

    /// What the gang may be charged on a Flavor, the least first, each with the most that a device may be charged as for that. Of more than one
    /// it is known only where all that it asks for is one request, by devices that are all charged alike; and of at most so many.
    pub(crate) fn ways(
        &self,
        assignment: &Assignment,
        all: &[Assignment],
        cluster: &Cluster,
        most: usize,
    ) -> Result<Vec<Way>, RequestFault> {
        let least = self.least(assignment, all, cluster)?;
        let of_requests = self.requests().filter_map(|request| {
            let choices = request.choices.iter();
            let cheapest = choices.filter_map(|(of, _)| cluster.cheapest(&assignment.flavor, *of));
            cheapest.reduce(DeviceCharge::at_most)
        });
        let mut ways = vec![Way {
            asked: least,
            most_per_device: of_requests.reduce(DeviceCharge::at_least),
        }];
        let mut requests = self.requests.iter();
        let (Some((request, times)), None) = (requests.next(), requests.next()) else {
            return Ok(ways);
        };
        let mut kinds: BTreeMap<DeviceCharge, DeviceCharge> = BTreeMap::new();
        for (selector, count) in &request.choices {
            for of_one in cluster.kinds(&assignment.flavor, *selector) {
                let of_all = DeviceCharge {
                    gpus: of_one.gpus.times(*count)?.times(*times)?,
                    vram: of_one.vram.times(*count)?.times(*times)?,
                };
                // By another choice as much may be charged for fewer and larger ones: they count all the same.
                let most = kinds.entry(of_all).or_insert(of_one);
                *most = most.at_least(of_one);
            }
        }
        for (of_all, of_one) in kinds {
            let asked = self.exact(assignment, all, cluster, of_all)?;
            // What quota does not count makes no difference.
            if let Some(same) = ways.iter_mut().find(|way| way.asked == asked) {
                let most = same.most_per_device.get_or_insert(of_one);
                *most = most.at_least(of_one);
                continue;
            }
            if ways.len() >= most {
                break;
            }
            ways.push(Way {
                asked,
                most_per_device: Some(of_one),
            });
        }
        Ok(ways)
    }

    /// What the gang is charged on a Flavor with the devices that it would get.
    pub(crate) fn exact(
        &self,
        assignment: &Assignment,
        all: &[Assignment],
        cluster: &Cluster,
        granted: DeviceCharge,
    ) -> Result<QuotaRequest, RequestFault> {
        let mut request = self.besides_devices(assignment, all, cluster)?;
        add_devices(&mut request, assignment, granted)?;
        Ok(finished(request))
    }

    /// Everything but the devices that are still to be allocated.
    fn besides_devices(
        &self,
        assignment: &Assignment,
        all: &[Assignment],
        cluster: &Cluster,
    ) -> Result<QuotaRequest, RequestFault> {
        let mut request = QuotaRequest::new();
        let resources = self.resources.as_ref().ok_or(RequestFault::Overflow)?;
        for (resource, pair) in &assignment.besides {
            add_to(&mut request, *pair, amount_of(resources, resource))?;
        }
        for (node, devices) in &self.allocated {
            let (charged_to, charge) = allocated_charge(node, devices, assignment, all, cluster)?;
            add_devices(&mut request, charged_to, charge)?;
        }
        Ok(request)
    }

    /// Whether a Flavor has, on all nodes together and taken or not, fewer devices than the gang asks for; `true` is certain. Slices of a
    /// GPU count each, though not all of them are to be had at once.
    pub(crate) fn exceeds_inventory(&self, flavor: &FlavorName, cluster: &Cluster) -> bool {
        let mut by_selector: BTreeMap<SelectorId, usize> = BTreeMap::new();
        let is_too_much = self.requests.iter().any(|(request, times)| {
            let there = |(selector, _): &(SelectorId, usize)| cluster.devices(flavor, *selector);
            if let [(selector, count)] = request.choices.as_slice() {
                let sum = by_selector.entry(*selector).or_default();
                *sum = sum.saturating_add(count.saturating_mul(*times));
                return false;
            }
            // Whichever choices are had, there is one device for each that is asked for at the least.
            let there = request.choices.iter().map(there);
            request.least().saturating_mul(*times) > there.fold(0, usize::saturating_add)
        });
        is_too_much
            || by_selector
                .into_iter()
                .any(|(selector, count)| count > cluster.devices(flavor, selector))
    }

    /// What is to be allocated, each request once.
    pub(crate) fn requests(&self) -> impl Iterator<Item = &RequestShape> {
        self.requests.keys()
    }

    /// The selectors of the devices that are to be allocated.
    pub(crate) fn selectors(&self) -> impl Iterator<Item = SelectorId> + '_ {
        let choices = self.requests().flat_map(|request| &request.choices);
        choices.map(|(selector, _)| *selector)
    }
}

/// The least that devices of a Flavor for one request are charged as, by whichever choice: gpus and bytes each by itself.
fn least_of(
    request: &RequestShape,
    flavor: &FlavorName,
    cluster: &Cluster,
) -> Result<DeviceCharge, Overflow> {
    let mut least: Option<DeviceCharge> = None;
    for (selector, count) in &request.choices {
        let Some(of_one) = cluster.cheapest(flavor, *selector) else {
            continue;
        };
        let of_all = DeviceCharge {
            gpus: of_one.gpus.times(*count)?,
            vram: of_one.vram.times(*count)?,
        };
        least = Some(least.map_or(of_all, |least| least.at_most(of_all)));
    }
    match least {
        Some(least) => Ok(least),
        // What no node has is taken for whole GPUs: the number that its owner has in mind.
        None => Ok(DeviceCharge {
            gpus: Amount::ONE_GPU.times(request.least())?,
            vram: Amount::ZERO,
        }),
    }
}

/// The assignment of a claim that is allocated already: the Flavor that is tried if it has all the claim's devices, else the
/// first of the Team that has. What is charged as no GPU and belongs to no Flavor goes along with any.
pub(crate) fn allocated_charge<'a>(
    node: &NodeName,
    devices: &[DeviceName],
    assignment: &'a Assignment,
    all: &'a [Assignment],
    cluster: &Cluster,
) -> Result<(&'a Assignment, DeviceCharge), RequestFault> {
    let has = |candidate: &&Assignment| {
        cluster.devices_named(node, devices).all(|device| {
            device.flavors.contains(&candidate.flavor)
                || (device.flavors.is_empty() && device.gpus == Amount::ZERO)
        })
    };
    let charged_to = std::iter::once(assignment)
        .chain(all)
        .find(has)
        .ok_or(RequestFault::Unnamed)?;
    Ok((charged_to, cluster.charged_as(node, devices)?))
}

fn add_devices(
    request: &mut QuotaRequest,
    assignment: &Assignment,
    charge: DeviceCharge,
) -> Result<(), RequestFault> {
    if charge.gpus > Amount::ZERO {
        let pair = assignment.gpus.ok_or(RequestFault::Unnamed)?;
        add_to(request, pair, charge.gpus)?;
    }
    if let Some(pair) = assignment.vram {
        add_to(request, pair, charge.vram)?;
    }
    Ok(())
}

fn add_to(request: &mut QuotaRequest, pair: PairId, amount: Amount) -> Result<(), Overflow> {
    let sum = request.entry(pair).or_default();
    *sum = sum.add(amount)?;
    Ok(())
}

fn finished(mut request: QuotaRequest) -> QuotaRequest {
    request.retain(|_, amount| *amount > Amount::ZERO);
    request
}

/// How much of a resource that is no device.
pub(crate) fn amount_of(resources: &PodResources, resource: &Resource) -> Amount {
    Amount(match resource {
        Resource::Cpu => resources.cpu_milli,
        Resource::Memory => resources.memory_bytes,
        Resource::Extended(name) => {
            let amount = resources
                .others
                .iter()
                .find(|(known, _)| known.as_str() == &**name);
            amount.map_or(0, |(_, amount)| *amount)
        }
        Resource::Gpus | Resource::Vram => 0,
    })
}

fn times(mut resources: PodResources, count: usize) -> Option<PodResources> {
    let count = i64::try_from(count).ok()?;
    resources.cpu_milli = resources.cpu_milli.checked_mul(count)?;
    resources.memory_bytes = resources.memory_bytes.checked_mul(count)?;
    resources.pods = resources.pods.checked_mul(count)?;
    for amount in resources.others.values_mut() {
        *amount = amount.checked_mul(count)?;
    }
    Some(resources)
}

fn add(mut sum: PodResources, more: &PodResources) -> Option<PodResources> {
    sum.cpu_milli = sum.cpu_milli.checked_add(more.cpu_milli)?;
    sum.memory_bytes = sum.memory_bytes.checked_add(more.memory_bytes)?;
    sum.pods = sum.pods.checked_add(more.pods)?;
    for (name, amount) in &more.others {
        let of_both = sum.others.entry(name.clone()).or_default();
        *of_both = of_both.checked_add(*amount)?;
    }
    Some(sum)
}
