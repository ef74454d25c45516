//! Which Flavors the parts of a gang get.
//!
//! Kueue chooses a Flavor for each pod set and each group of resources that are listed together, Muster one for the whole
//! gang. So the engine is asked once for each part, with what the parts before it have got in addition: what its quota says
//! about each amount, whether it may preempt for it, and which Flavor is the best of those that its search tries. What a
//! preemption would come to is given by the case; what nodes of a Flavor take a pod, which Muster finds out by placing it,
//! by the Flavors that the cases presume ([`super::nodes`]). Reasons are compared by their names, not by Kueue's words.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use muster_engine::{
    Amount, FlavorResource,
    quota::{
        FairStrategy, FlavorFungibility, FlavorMode, QuotaTree, QuotaVerdict, Search, Sharing,
        Suitability,
    },
};
use serde::Deserialize;
use serde_json::Value;

use super::{
    queues::{self, FlavorQuota, PodSet, Queue},
    same,
};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Case {
    cluster_queue: Queue,
    #[serde(default)]
    cluster_queue_usage: Amounts,
    secondary_cluster_queue: Option<Queue>,
    #[serde(default)]
    secondary_cluster_queue_usage: Amounts,
    /// By `flavor/resource`, what a preemption comes to.
    #[serde(default)]
    simulation_result: BTreeMap<String, (Possibility, usize)>,
    #[serde(default)]
    enable_fair_sharing: bool,
    wl_pods: Vec<PodSet>,
    #[serde(default)]
    wl_reclaimable_pods: Vec<Reclaimable>,
    want_assignment: WantedAssignment,
    #[serde(default)]
    want_rep_mode: Mode,
}

/// By `flavor/resource`, in base units.
type Amounts = BTreeMap<String, BaseUnits>;

/// A number, or a text that names a unit as often as it counts.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum BaseUnits {
    Number(i64),
    Units(String),
}

/// Pods of a set that have ended: they take nothing any more.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Reclaimable {
    name: String,
    count: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum Possibility {
    NoCandidates,
    Preempt,
    Reclaim,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
enum Mode {
    #[default]
    NoFit,
    Preempt,
    Fit,
}

/// Why a Flavor does not fit, the least severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
enum NoFitReason {
    WaitingForQuota,
    ExceedsMaxQuota,
    NoMatchingFlavor,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WantedAssignment {
    #[serde(default)]
    borrowing: usize,
    no_fit_reason: Option<NoFitReason>,
    #[serde(default)]
    pod_sets: Vec<WantedSet>,
    usage: WantedUsage,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WantedUsage {
    quota: WantedQuota,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WantedQuota {
    /// An object, or an empty list.
    #[serde(default)]
    assigned: Value,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WantedSet {
    name: String,
    count: i64,
    #[serde(default)]
    flavors: BTreeMap<String, WantedFlavor>,
    #[serde(default)]
    flavor_assignment_attempts: Vec<Attempt>,
}

/// What a resource of a pod set gets.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct WantedFlavor {
    name: String,
    mode: Mode,
    /// The position of the last one that was tried; -1 if that was the last of all.
    tried_flavor_idx: i64,
}

/// A Flavor that was tried for a pod set.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Attempt {
    flavor: String,
    mode: Mode,
    #[serde(default)]
    borrow: usize,
    preemption_possibility: Option<Possibility>,
    no_fit_reason: Option<NoFitReason>,
}

/// Resources that are listed together, each with what a pod set asks of it.
struct Part<'a> {
    flavors: &'a [FlavorQuota],
    requests: BTreeMap<&'a str, Amount>,
}

/// What a Flavor comes to for a part.
struct Tried {
    suits: Suitability,
    reason: Option<NoFitReason>,
    by_resource: BTreeMap<String, Suitability>,
}

/// What a pod set has got.
struct Assigned<'a> {
    set: &'a PodSet,
    count: i64,
    flavors: BTreeMap<String, WantedFlavor>,
    attempts: Vec<Attempt>,
    borrow_level: usize,
    /// If it got nothing for one of its parts: the most severe of the parts' reasons.
    refused: Option<NoFitReason>,
}

struct Assigner<'a> {
    case: &'a Case,
    tree: QuotaTree,
    fungibility: FlavorFungibility,
    /// What the pod sets before have got.
    assumed: BTreeMap<FlavorResource, Amount>,
}

pub(super) fn judge(case: &Case) -> anyhow::Result<()> {
    let mut assigner = Assigner::new(case)?;
    let mut assigned: Vec<Assigned<'_>> = Vec::new();
    for set in &case.wl_pods {
        let next = assigner.assign(set)?;
        let is_refused = next.refused.is_some();
        assigned.push(next);
        if is_refused {
            break;
        }
    }
    let wanted = &case.want_assignment;
    let modes = assigned.iter().map(|set| match set.refused {
        Some(_) => Mode::NoFit,
        None => set
            .flavors
            .values()
            .map(|it| it.mode)
            .min()
            .unwrap_or(Mode::Fit),
    });
    let mode = modes.min().unwrap_or(Mode::Fit);
    same(|| "mode".to_owned(), &mode, &case.want_rep_mode)?;
    let reason = assigned.iter().filter_map(|set| set.refused).max();
    same(|| "reason".to_owned(), &reason, &wanted.no_fit_reason)?;
    let borrowing = assigned.iter().map(|set| set.borrow_level).max();
    same(
        || "borrow level".to_owned(),
        &borrowing.unwrap_or(0),
        &wanted.borrowing,
    )?;
    same(
        || "charged".to_owned(),
        &assigner.assumed,
        &wanted.usage.quota.amounts()?,
    )?;
    let names = |set: &Assigned<'_>| set.set.name.clone();
    same(
        || "pod sets".to_owned(),
        &assigned.iter().map(names).collect::<Vec<_>>(),
        &wanted.pod_sets.iter().map(|set| set.name.clone()).collect(),
    )?;
    assigned
        .iter()
        .zip(&wanted.pod_sets)
        .try_for_each(|(set, wanted)| set.compare(wanted))
}

impl<'a> Assigner<'a> {
    fn new(case: &'a Case) -> anyhow::Result<Self> {
        let mut charges = Vec::new();
        let usages = [
            &case.cluster_queue_usage,
            &case.secondary_cluster_queue_usage,
        ];
        let queues = std::iter::once(&case.cluster_queue).chain(&case.secondary_cluster_queue);
        for (queue, usage) in queues.clone().zip(usages) {
            charges.extend(queues::charges_of(&queue.name, &numbers(usage)?)?);
        }
        Ok(Self {
            case,
            tree: queues::tree(queues, &[], &charges)?,
            fungibility: case.cluster_queue.flavor_fungibility.policy(),
            assumed: BTreeMap::new(),
        })
    }

    fn assign(&mut self, set: &'a PodSet) -> anyhow::Result<Assigned<'a>> {
        let mut ended = self.case.wl_reclaimable_pods.iter();
        let ended = ended.find(|ended| ended.name == set.name);
        let mut assigned = Assigned {
            set,
            count: set.count - ended.map_or(0, |ended| ended.count),
            flavors: BTreeMap::new(),
            attempts: Vec::new(),
            borrow_level: 0,
            refused: None,
        };
        let mut charged = Vec::new();
        for part in self.parts(set, assigned.count)? {
            let mut search = Search::new(self.fungibility);
            let mut reasons = BTreeSet::new();
            let mut last = 0;
            for (at, flavor) in part.flavors.iter().enumerate() {
                let tried = self.try_flavor(&flavor.flavor, set, &part)?;
                reasons.extend(tried.reason);
                assigned.attempts.push(Attempt::of(&flavor.flavor, &tried));
                last = at;
                if search.offer(tried.suits, (flavor, tried)).is_break() {
                    break;
                }
            }
            let best = search.best();
            let fitting = best.filter(|(suits, _)| suits.mode != FlavorMode::NoFit);
            let Some((suits, (flavor, tried))) = fitting else {
                // Of Flavors that could stand for each other the nearest reason is told, of what is needed together the
                // furthest.
                let nearest = reasons.first().copied();
                assigned.refused = assigned
                    .refused
                    .max(nearest.or(Some(NoFitReason::NoMatchingFlavor)));
                continue;
            };
            assigned.borrow_level = assigned.borrow_level.max(suits.borrow_level);
            let is_last = last + 1 == part.flavors.len();
            for (name, amount) in part.requests {
                let got = WantedFlavor {
                    name: flavor.flavor.clone(),
                    mode: mode_of(tried.by_resource[name].mode),
                    tried_flavor_idx: if is_last { -1 } else { i64::try_from(last)? },
                };
                assigned.flavors.insert(name.to_owned(), got);
                charged.push((of(&flavor.flavor, name), amount));
            }
        }
        if assigned.refused.is_some() {
            assigned.flavors.clear();
            assigned.borrow_level = 0;
            return Ok(assigned);
        }
        for (of, amount) in charged {
            let sum = self.assumed.entry(of).or_default();
            *sum = sum.add(amount)?;
        }
        Ok(assigned)
    }

    /// The requests of a pod set, by the groups of resources that the queue lists. What it lists nowhere is a part without
    /// Flavors.
    fn parts(&self, set: &'a PodSet, count: i64) -> anyhow::Result<Vec<Part<'a>>> {
        let groups = &self.case.cluster_queue.resource_groups;
        let times = usize::try_from(count).context("a pod set has a count")?;
        let mut requests = BTreeMap::new();
        for (name, text) in &set.requests {
            let amount = queues::amount(&queues::resource(name), text)?.times(times)?;
            requests.insert(name.as_str(), amount);
        }
        let covers = |group: &[FlavorQuota], name: &str| {
            let mut flavors = group.iter();
            flavors.any(|flavor| flavor.resources.contains_key(name))
        };
        if groups.iter().any(|group| covers(group, "pods")) {
            requests.insert("pods", Amount(count));
        }
        let mut parts = Vec::new();
        for group in groups {
            let of_group = requests.extract_if(.., |name, _| covers(group, name));
            let requests: BTreeMap<&str, Amount> = of_group.collect();
            if !requests.is_empty() {
                let flavors = group.as_slice();
                parts.push(Part { flavors, requests });
            }
        }
        requests.retain(|_, amount| *amount > Amount::ZERO);
        if !requests.is_empty() {
            let flavors = &[];
            parts.push(Part { flavors, requests });
        }
        Ok(parts)
    }

    fn try_flavor(&self, flavor: &str, set: &PodSet, part: &Part<'_>) -> anyhow::Result<Tried> {
        let no_fit = |borrow_level, reason| Tried {
            suits: Suitability {
                mode: FlavorMode::NoFit,
                borrow_level,
            },
            reason: Some(reason),
            by_resource: BTreeMap::new(),
        };
        if !set.constraints.allow(flavor)? {
            return Ok(no_fit(0, NoFitReason::NoMatchingFlavor));
        }
        let strategies = FairStrategy::DEFAULT;
        let sharing = if self.case.enable_fair_sharing {
            Sharing::Fair(&strategies)
        } else {
            Sharing::ByPriority
        };
        let team = self.case.cluster_queue.name.as_str().into();
        let mut by_resource = BTreeMap::new();
        for (name, amount) in &part.requests {
            let of = of(flavor, name);
            let assumed = self.assumed.get(&of).copied().unwrap_or_default();
            let amount = assumed.add(*amount)?;
            let suits = match self.tree.verdict(&team, &of, amount)? {
                QuotaVerdict::ExceedsMax { .. } => {
                    return Ok(no_fit(0, NoFitReason::ExceedsMaxQuota));
                }
                QuotaVerdict::Free { borrow_level } => Suitability {
                    mode: FlavorMode::Fit,
                    borrow_level,
                },
                QuotaVerdict::Short { borrow_level } => {
                    if !self.tree.may_preempt(&team, &of, amount, sharing)? {
                        return Ok(no_fit(borrow_level, NoFitReason::WaitingForQuota));
                    }
                    self.simulated(&format!("{flavor}/{name}"))
                }
            };
            by_resource.insert((*name).to_owned(), suits);
        }
        let suits = self.fungibility.worst(by_resource.values().copied());
        Ok(Tried {
            suits: suits.context("a part asks for something")?,
            reason: None,
            by_resource,
        })
    }

    /// What the case says that a preemption comes to; victims of the own Team, and no borrowing, where it says nothing.
    fn simulated(&self, key: &str) -> Suitability {
        let given = self.case.simulation_result.get(key).copied();
        let (possibility, borrow_level) = given.unwrap_or((Possibility::Preempt, 0));
        let mode = match possibility {
            Possibility::NoCandidates => FlavorMode::NoCandidates,
            Possibility::Preempt => FlavorMode::Preempt,
            Possibility::Reclaim => FlavorMode::Reclaim,
        };
        Suitability { mode, borrow_level }
    }
}

impl Assigned<'_> {
    fn compare(&self, wanted: &WantedSet) -> anyhow::Result<()> {
        let name = &wanted.name;
        same(|| format!("pods of {name}"), &self.count, &wanted.count)?;
        same(
            || format!("Flavors of {name}"),
            &self.flavors,
            &wanted.flavors,
        )?;
        let attempts = &wanted.flavor_assignment_attempts;
        let may_be_less = attempts.iter().any(|attempt| attempt.mode == Mode::Fit);
        for wanted in attempts {
            let mut tried = self.attempts.iter();
            let tried = tried.find(|tried| tried.flavor == wanted.flavor);
            if tried.is_some() || !may_be_less {
                same(|| format!("tried for {name}"), &tried, &Some(wanted))?;
            }
        }
        Ok(())
    }
}

impl Attempt {
    fn of(flavor: &str, tried: &Tried) -> Self {
        let possibility = match tried.suits.mode {
            FlavorMode::NoCandidates => Some(Possibility::NoCandidates),
            FlavorMode::Preempt => Some(Possibility::Preempt),
            FlavorMode::Reclaim => Some(Possibility::Reclaim),
            FlavorMode::NoFit | FlavorMode::Fit => None,
        };
        Self {
            flavor: flavor.to_owned(),
            mode: mode_of(tried.suits.mode),
            borrow: tried.suits.borrow_level,
            preemption_possibility: possibility,
            no_fit_reason: tried.reason,
        }
    }
}

impl WantedQuota {
    fn amounts(&self) -> anyhow::Result<BTreeMap<FlavorResource, Amount>> {
        if !self.assigned.is_object() {
            return Ok(BTreeMap::new());
        }
        let amounts: Amounts = serde_json::from_value(self.assigned.clone())?;
        Ok(queues::base_units(&numbers(&amounts)?)?
            .into_iter()
            .collect())
    }
}

fn mode_of(mode: FlavorMode) -> Mode {
    match mode {
        FlavorMode::NoFit => Mode::NoFit,
        FlavorMode::NoCandidates | FlavorMode::Preempt | FlavorMode::Reclaim => Mode::Preempt,
        FlavorMode::Fit => Mode::Fit,
    }
}

fn of(flavor: &str, name: &str) -> FlavorResource {
    FlavorResource {
        flavor: flavor.into(),
        resource: queues::resource(name),
    }
}

fn numbers(amounts: &Amounts) -> anyhow::Result<queues::BaseUnits> {
    let number = |amount: &BaseUnits| match amount {
        BaseUnits::Number(number) => Ok(*number),
        BaseUnits::Units(text) => {
            let mut rest = text.as_str();
            let mut sum = 0;
            while !rest.is_empty() {
                let (unit, after) = rest.split_at_checked(2).unwrap_or((rest, ""));
                sum += match unit {
                    "Ki" => 1 << 10,
                    "Mi" => 1 << 20,
                    "Gi" => 1 << 30,
                    _ => anyhow::bail!("{text:?} is no number of Ki, Mi or Gi"),
                };
                rest = after;
            }
            Ok(sum)
        }
    };
    let amounts = amounts.iter();
    amounts
        .map(|(key, amount)| Ok((key.clone(), number(amount)?)))
        .collect()
}
