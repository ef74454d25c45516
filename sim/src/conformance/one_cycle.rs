//! One cycle as Kueue runs it, made of the engine's parts: one gang of each queue, looked at once before anything is decided.
//!
//! Muster decides until nothing more can be decided, and looks at whoever is next as things are by then. What Kueue leaves to its
//! next cycle is done at once, so a case that compares one cycle may differ ([`super::Deviation::ManyHeads`]). What is charged,
//! who gives way, which Flavor suits best and whose turn it is comes from the engine here, too; only the course of the cycle
//! is Kueue's:
//!
//! * everybody is nominated on what is there at the beginning, with one Flavor and with those who give way;
//! * whose victims others have taken before is nominated anew on what is left, on the same Flavor, and waits if it fits by that;
//! * who has nobody to give way holds what is its own for the cycle, unless it may take it back from anybody;
//! * who does not fit any more is left for the next cycle.
//!
//! A gang is asked about whole: which number of its pods would start is not worked out here.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use muster_engine::{
    Amount, CohortName, FlavorName, FlavorResource, GangUid, QuotaLimit, Resource, ResourceCharge,
    Team, TeamName, Timestamp,
    quota::{
        Entrant, FlavorMode, PreemptionReason, Preemptor, QuotaTree, QuotaVerdict,
        ReclaimWithinCohort, RunningGang, Search, Sharing, Suitability, fair_order, victims,
    },
};

/// What a cycle starts from.
pub(super) struct OneCycle {
    pub(super) tree: QuotaTree,
    pub(super) teams: BTreeMap<TeamName, Team>,
    /// The root of each Team's tree.
    pub(super) roots: BTreeMap<TeamName, CohortName>,
    pub(super) sharing: Sharing<'static>,
    /// Whether those are nominated anew whose victims were taken.
    pub(super) recomputes: bool,
    pub(super) running: Vec<RunningGang>,
    pub(super) heads: Vec<Head>,
}

/// The gang that is first in a queue.
pub(super) struct Head {
    pub(super) gang: GangUid,
    pub(super) team: TeamName,
    pub(super) priority: i32,
    pub(super) queued_at: Timestamp,
    pub(super) requests: BTreeMap<Resource, Amount>,
    /// Flavors that are not there, or that it does not tolerate.
    pub(super) excluded: BTreeSet<FlavorName>,
}

/// What a cycle comes to.
#[derive(Default)]
pub(super) struct Decided {
    pub(super) admitted: BTreeMap<GangUid, Vec<ResourceCharge>>,
    pub(super) preempted: BTreeMap<GangUid, PreemptionReason>,
}

/// What a head would get.
#[derive(Clone)]
struct Nomination {
    flavor: usize,
    suits: Suitability,
    charges: Vec<ResourceCharge>,
    /// Those who give way, by their positions.
    victims: BTreeMap<usize, PreemptionReason>,
}

impl Head {
    /// Who is first of a queue, and of those that reach as far up the tree.
    pub(super) fn place(&self) -> (Reverse<i32>, Timestamp, GangUid) {
        (Reverse(self.priority), self.queued_at, self.gang.clone())
    }
}

impl OneCycle {
    pub(super) fn decide(mut self) -> Decided {
        let nothing = BTreeSet::new();
        let mut left: BTreeMap<usize, Nomination> = BTreeMap::new();
        for head in 0..self.heads.len() {
            if let Some(nomination) = self.nominate(head, &nothing, None) {
                left.insert(head, nomination);
            }
        }
        let mut decided = Decided::default();
        let mut taken: BTreeSet<usize> = BTreeSet::new();
        while let Some(head) = self.next(&left) {
            let Some(mut nomination) = left.remove(&head) else {
                break;
            };
            let overlaps = |it: &Nomination| it.victims.keys().any(|victim| taken.contains(victim));
            let is_anew = self.recomputes && overlaps(&nomination);
            if is_anew {
                let Some(anew) = self.nominate(head, &taken, Some(nomination.flavor)) else {
                    continue;
                };
                nomination = anew;
            }
            let fits = nomination.suits.mode == FlavorMode::Fit;
            if !fits && nomination.victims.is_empty() {
                self.hold(head, &nomination);
                continue;
            }
            if is_anew && fits {
                self.charge(head, &nomination.charges);
                continue;
            }
            if overlaps(&nomination) || !self.fits_without(head, &nomination, &taken) {
                continue;
            }
            self.charge(head, &nomination.charges);
            taken.extend(nomination.victims.keys());
            for (victim, reason) in nomination.victims {
                let uid = self.running[victim].uid.clone();
                decided.preempted.insert(uid, reason);
            }
            if fits {
                let gang = self.heads[head].gang.clone();
                decided.admitted.insert(gang, nomination.charges);
            }
        }
        decided
    }

    /// Whose turn it is.
    fn next(&mut self, left: &BTreeMap<usize, Nomination>) -> Option<usize> {
        if let Sharing::ByPriority = self.sharing {
            let turn = |head: &usize| (left[head].suits.borrow_level, self.heads[*head].place());
            return left.keys().copied().min_by_key(turn);
        }
        // Trees share nothing: they take their turns by name, after the Teams that stand alone.
        let root = |head: &usize| self.roots.get(&self.heads[*head].team);
        let first = left.keys().map(root).min()?;
        let Some(first) = first.cloned() else {
            let alone = left.keys().copied().filter(|head| root(head).is_none());
            return alone.min_by_key(|head| self.heads[*head].place());
        };
        let positions: Vec<usize> = left.keys().copied().collect();
        let entrants = left.iter().map(|(position, nomination)| {
            let head = &self.heads[*position];
            Entrant {
                gang: head.gang.clone(),
                team: head.team.clone(),
                priority: head.priority,
                queued_at: head.queued_at,
                charges: nomination.charges.clone(),
            }
        });
        let entrants: Vec<Entrant> = entrants.collect();
        let order = fair_order(&mut self.tree, &first, &entrants);
        order.first().map(|at| positions[*at])
    }

    /// What a head gets once these are gone, on one Flavor or on any.
    fn nominate(
        &mut self,
        head: usize,
        gone: &BTreeSet<usize>,
        only: Option<usize>,
    ) -> Option<Nomination> {
        self.without(gone, |cycle| {
            let team = cycle.teams.get(&cycle.heads[head].team)?.clone();
            let mut search = Search::new(team.fungibility);
            for flavor in 0..team.quota.len() {
                if only.is_some_and(|only| only != flavor) {
                    continue;
                }
                let Some(nomination) = cycle.nominate_on(head, &team, flavor, gone) else {
                    continue;
                };
                if search.offer(nomination.suits, nomination).is_break() {
                    break;
                }
            }
            search.best().map(|(_, nomination)| nomination)
        })
    }

    fn nominate_on(
        &mut self,
        head: usize,
        team: &Team,
        flavor: usize,
        gone: &BTreeSet<usize>,
    ) -> Option<Nomination> {
        let Head {
            gang: _,
            team: name,
            priority,
            queued_at,
            requests,
            excluded,
        } = &self.heads[head];
        if excluded.contains(&team.quota[flavor].0) {
            return None;
        }
        let charges = charges_on(team, flavor, requests);
        let mut contested: BTreeSet<FlavorResource> = BTreeSet::new();
        let mut borrow_level = 0;
        for charge in &charges {
            match self.tree.verdict(name, &charge.of, charge.amount).ok()? {
                QuotaVerdict::ExceedsMax { .. } => return None,
                QuotaVerdict::Free {
                    borrow_level: level,
                } => borrow_level = borrow_level.max(level),
                QuotaVerdict::Short {
                    borrow_level: level,
                } => {
                    borrow_level = borrow_level.max(level);
                    let may = self
                        .tree
                        .may_preempt(name, &charge.of, charge.amount, self.sharing);
                    if !may.ok()? {
                        return None;
                    }
                    contested.insert(charge.of.clone());
                }
            }
        }
        let mut nomination = Nomination {
            flavor,
            suits: Suitability {
                mode: FlavorMode::Fit,
                borrow_level,
            },
            charges,
            victims: BTreeMap::new(),
        };
        if contested.is_empty() {
            return Some(nomination);
        }
        let preemptor = Preemptor {
            team: name.clone(),
            priority: *priority,
            queued_at: *queued_at,
            charges: nomination.charges.clone(),
            contested,
        };
        let staying = (0..self.running.len()).filter(|at| !gone.contains(at));
        let positions: Vec<usize> = staying.collect();
        let running: Vec<RunningGang> = positions
            .iter()
            .map(|at| self.running[*at].clone())
            .collect();
        let name = name.clone();
        let chosen = victims(
            &mut self.tree,
            self.sharing,
            &running,
            &preemptor,
            &mut |_| true,
        );
        nomination.victims = chosen
            .iter()
            .map(|victim| (positions[victim.position], victim.reason))
            .collect();
        let mut reasons = nomination.victims.values();
        nomination.suits.mode = if nomination.victims.is_empty() {
            FlavorMode::NoCandidates
        } else if reasons.any(|reason| *reason == PreemptionReason::InTeam) {
            FlavorMode::Preempt
        } else {
            FlavorMode::Reclaim
        };
        let victims: BTreeSet<usize> = nomination.victims.keys().copied().collect();
        if !victims.is_empty() {
            let charges = &nomination.charges;
            nomination.suits.borrow_level = self.without(&victims, |cycle| {
                let levels = charges.iter().filter_map(|charge| {
                    let level = cycle.tree.borrow_level(&name, &charge.of, charge.amount);
                    level.ok()
                });
                levels.max().unwrap_or(0)
            });
        }
        Some(nomination)
    }

    /// Whether a nomination holds still, with all victims gone and its own.
    fn fits_without(
        &mut self,
        head: usize,
        nomination: &Nomination,
        taken: &BTreeSet<usize>,
    ) -> bool {
        let own = nomination.victims.keys();
        let gone: BTreeSet<usize> = taken.iter().chain(own).copied().collect();
        let team = self.heads[head].team.clone();
        self.without(&gone, |cycle| {
            nomination.charges.iter().all(|charge| {
                let available = cycle.tree.available(&team, &charge.of);
                available.is_ok_and(|available| charge.amount <= available)
            })
        })
    }

    /// What a head without victims keeps from others for the cycle: what is its own, or what it may borrow.
    fn hold(&mut self, head: usize, nomination: &Nomination) {
        let team = &self.teams[&self.heads[head].team];
        if team.preemption.reclaim_within_cohort == ReclaimWithinCohort::Any {
            return;
        }
        let charges = nomination.charges.iter().map(|charge| {
            let of = &charge.of;
            let used = self.tree.used(&team.name, of).unwrap_or_default();
            let QuotaLimit {
                nominal,
                borrowing_limit,
                ..
            } = limit(team, of);
            let most = match (nomination.suits.borrow_level, borrowing_limit) {
                (0, _) => Some(nominal),
                (_, None) => None,
                (_, Some(borrowing)) => Some(Amount(nominal.0.saturating_add(borrowing.0))),
            };
            let left = most.map(|most| most.0.saturating_sub(used.0).max(0));
            ResourceCharge {
                of: of.clone(),
                amount: left.map_or(charge.amount, |left| charge.amount.min(Amount(left))),
            }
        });
        let charges: Vec<ResourceCharge> = charges.collect();
        self.charge(head, &charges);
    }

    fn charge(&mut self, head: usize, charges: &[ResourceCharge]) {
        for charge in charges {
            self.tree
                .charge(&self.heads[head].team, &charge.of, charge.amount);
        }
    }

    /// Does something as if these gangs were gone.
    fn without<T>(&mut self, gone: &BTreeSet<usize>, ask: impl FnOnce(&mut Self) -> T) -> T {
        for gang in gone.iter().map(|at| &self.running[*at]) {
            for charge in &gang.charges {
                self.tree.discharge(&gang.team, &charge.of, charge.amount);
            }
        }
        let answer = ask(self);
        for gang in gone.iter().map(|at| &self.running[*at]) {
            for charge in &gang.charges {
                self.tree.charge(&gang.team, &charge.of, charge.amount);
            }
        }
        answer
    }
}

/// What is charged to a Flavor, or for what it does not name, to the first that does. What none names is not charged.
fn charges_on(
    team: &Team,
    flavor: usize,
    requests: &BTreeMap<Resource, Amount>,
) -> Vec<ResourceCharge> {
    let asked = requests
        .iter()
        .filter(|(_, amount)| **amount > Amount::ZERO);
    let charges = asked.filter_map(|(resource, amount)| {
        let mut naming = team.quota.get(flavor).into_iter().chain(&team.quota);
        let (flavor, _) = naming.find(|(_, named)| named.contains_key(resource))?;
        Some(ResourceCharge::new(
            flavor.clone(),
            resource.clone(),
            *amount,
        ))
    });
    charges.collect()
}

fn limit(team: &Team, of: &FlavorResource) -> QuotaLimit {
    let mut quota = team.quota.iter();
    let flavor = quota.find(|(flavor, _)| *flavor == of.flavor);
    let limit = flavor.and_then(|(_, limits)| limits.get(&of.resource));
    limit.copied().unwrap_or_default()
}
