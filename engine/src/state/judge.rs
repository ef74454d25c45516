//! Whether a gang may be admitted now: on which Flavor, where, and at what charge; and if not, what each
//! Flavor lacks.

use std::collections::BTreeMap;

use super::{State, WaitingGang};
use crate::{
    amount::{Amount, FlavorResource, Overflow, Resource},
    model::{Flavor, QuotaLimit, Team},
    names::FlavorName,
    placement::{Effort, Plan, Request, Unfit, Verdict, View, explain, plan},
    quota::{
        QuotaTree, TreeFault,
        ask::{Ask, at_least, exceeds_inventory},
    },
};

/// What a gang would get.
#[derive(Debug)]
pub(super) struct Fitting {
    pub(super) flavor: Option<FlavorName>,
    pub(super) plan: Plan,
    /// GPUs and bytes for each claim of each placed unit.
    pub(super) claims: Vec<Vec<(Amount, Amount)>>,
}

/// What a Flavor lacks for a gang.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The Team's quota for the Flavor does not name GPUs.
    Unnamed,
    /// There is no such Flavor.
    Unknown,
    /// All nodes together have too few such devices.
    TooFewDevices,
    /// More than the Team may ever have.
    ExceedsMax {
        of: FlavorResource,
        asked: Amount,
        most: Amount,
    },
    /// More than is available now.
    Quota { of: FlavorResource, asked: Amount },
    /// No nodes.
    NoPlace(Unfit),
    /// A sum did not fit.
    Overflow,
}

/// The Team's quota tree and the nodes, as they are or as they would be.
pub(super) struct World<'a> {
    pub(super) tree: &'a QuotaTree,
    pub(super) view: &'a View,
}

/// Limits of a Flavor by resource.
type Named = BTreeMap<Resource, QuotaLimit>;

impl State {
    /// Tries the Flavors in the Team's order; the first that fits is taken.
    pub(super) fn judge(
        &self,
        team: &Team,
        waiting: &WaitingGang,
        world: &World<'_>,
    ) -> Result<Fitting, Vec<(FlavorName, Refusal)>> {
        if team.quota.is_empty() && !draws(waiting) {
            let fitting = self.place(waiting, None, world);
            return fitting.map_err(|refusal| vec![(FlavorName::from(""), refusal)]);
        }
        let mut refusals = Vec::new();
        for (flavor, named) in &team.quota {
            match self.judge_flavor(team, waiting, flavor, named, world) {
                Ok(fitting) => return Ok(fitting),
                Err(refusal) => refusals.push((flavor.clone(), refusal)),
            }
        }
        Err(refusals)
    }

    pub(super) fn judge_flavor(
        &self,
        team: &Team,
        waiting: &WaitingGang,
        flavor: &FlavorName,
        named: &Named,
        world: &World<'_>,
    ) -> Result<Fitting, Refusal> {
        let ask = self.ask(waiting, flavor, named)?;
        judge_quota(team, flavor, &ask, world.tree)?;
        let known = self.flavors.get(flavor).ok_or(Refusal::Unknown)?;
        let fitting = self.place(waiting, Some(known), world)?;
        let exact = exact_ask(&ask, &fitting, named)?;
        judge_quota(team, flavor, &exact, world.tree)?;
        Ok(fitting)
    }

    /// The least that the gang would be charged on a Flavor.
    fn ask(
        &self,
        waiting: &WaitingGang,
        flavor: &FlavorName,
        named: &Named,
    ) -> Result<Ask, Refusal> {
        if !self.flavors.contains_key(flavor) {
            return Err(Refusal::Unknown);
        }
        let ask = at_least(&waiting.demand, flavor, named, &self.cluster)?;
        if ask.contains_key(&Resource::Gpus) && !named.contains_key(&Resource::Gpus) {
            return Err(Refusal::Unnamed);
        }
        Ok(ask)
    }

    fn place(
        &self,
        waiting: &WaitingGang,
        flavor: Option<&Flavor>,
        world: &World<'_>,
    ) -> Result<Fitting, Refusal> {
        let name = flavor.map(|flavor| &flavor.name);
        if name.is_some_and(|name| exceeds_inventory(&waiting.demand, name, &self.cluster)) {
            return Err(Refusal::TooFewDevices);
        }
        let request = request(waiting, flavor);
        let plan = match plan(&self.cluster, world.view, &request, &mut Effort::default()) {
            Verdict::Placed(plan) => plan,
            Verdict::NoPlace(_) | Verdict::GaveUp(_) => {
                let unfit = explain(&self.cluster, world.view, &request);
                return Err(Refusal::NoPlace(unfit));
            }
        };
        let claims = plan
            .units
            .iter()
            .map(|unit| {
                let record = self.cluster.record(unit.slot).ok_or(Overflow)?;
                unit.grants
                    .iter()
                    .map(|devices| record.charged_as(devices))
                    .collect::<Result<Vec<_>, _>>()
            })
            .collect::<Result<Vec<_>, Overflow>>()?;
        Ok(Fitting {
            flavor: name.cloned(),
            plan,
            claims,
        })
    }

    /// How far the gang's Team would have to reach up the tree for the first Flavor whose quota suffices now;
    /// `usize::MAX` if none does.
    pub(super) fn borrow_level(&self, team: &Team, waiting: &WaitingGang) -> usize {
        let level_on = |(flavor, named): &(FlavorName, Named)| {
            let ask = self.ask(waiting, flavor, named).ok()?;
            judge_quota(team, flavor, &ask, &self.tree).ok()?;
            ask.into_iter()
                .map(|(resource, asked)| {
                    let of = FlavorResource {
                        flavor: flavor.clone(),
                        resource,
                    };
                    self.tree.borrow_level(&team.name, &of, asked).ok()
                })
                .try_fold(0, |highest, level| Some(level?.max(highest)))
        };
        if team.quota.is_empty() {
            return 0;
        }
        team.quota.iter().find_map(level_on).unwrap_or(usize::MAX)
    }
}

/// Whether the quota suffices; of several resources that lack, the first is told.
fn judge_quota(
    team: &Team,
    flavor: &FlavorName,
    ask: &Ask,
    tree: &QuotaTree,
) -> Result<(), Refusal> {
    let mut lacking = None;
    for (resource, asked) in ask {
        let of = FlavorResource {
            flavor: flavor.clone(),
            resource: resource.clone(),
        };
        let most = tree.potentially_available(&team.name, &of)?;
        if *asked > most {
            return Err(Refusal::ExceedsMax {
                of,
                asked: *asked,
                most,
            });
        }
        if *asked > tree.available(&team.name, &of)? && lacking.is_none() {
            lacking = Some(Refusal::Quota { of, asked: *asked });
        }
    }
    lacking.map_or(Ok(()), Err)
}

/// The request to place a gang on a Flavor.
pub(super) fn request<'a>(waiting: &'a WaitingGang, flavor: Option<&'a Flavor>) -> Request<'a> {
    Request {
        demand: &waiting.demand,
        flavor: flavor.map(|flavor| &flavor.name),
        topology: flavor.and_then(|flavor| flavor.topology.as_ref()),
        wish: &waiting.gang.topology,
    }
}

fn draws(waiting: &WaitingGang) -> bool {
    let mut classes = waiting.demand.classes.iter();
    classes.any(|class| !class.shape.claims.is_empty())
}

/// What the gang is charged with the devices that it would get.
fn exact_ask(ask: &Ask, fitting: &Fitting, named: &Named) -> Result<Ask, Overflow> {
    let (mut gpus, mut vram) = (Amount::ZERO, Amount::ZERO);
    for charge in fitting.claims.iter().flatten() {
        gpus = gpus.add(charge.0)?;
        vram = vram.add(charge.1)?;
    }
    let mut exact = ask.clone();
    exact.insert(Resource::Gpus, gpus);
    if named.contains_key(&Resource::Vram) {
        exact.insert(Resource::Vram, vram);
    }
    exact.retain(|_, amount| *amount > Amount::ZERO);
    Ok(exact)
}

impl From<Overflow> for Refusal {
    fn from(_: Overflow) -> Self {
        Self::Overflow
    }
}

/// A Team whose tree has a fault is not judged; only a sum can still fail.
impl From<TreeFault> for Refusal {
    fn from(_: TreeFault) -> Self {
        Self::Overflow
    }
}
