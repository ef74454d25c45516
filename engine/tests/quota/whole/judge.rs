//! What a gang would get, as things are: a Flavor that is free, others that give way, or nothing.

use std::collections::BTreeSet;

use muster_engine::quota::{
    BorrowWithinCohort, FlavorMode, PreemptionPolicy, PreemptionReason, ReclaimWithinCohort,
    WithinTeam,
};

use super::{
    flavors::{is_better, stops},
    history::{Arrival, RESOURCES},
    model::{Charges, MOST_SECONDS, Model, Trees, Uid},
};
use crate::model::{Asking, Contest, Limit, Name, Nodes, Pair, Running, Tree, victims};

/// What a gang would get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) charges: Charges,
    /// How far up the tree it reaches.
    pub(super) level: usize,
    /// Who gives way; nobody if it is free.
    pub(super) victims: Vec<(Uid, PreemptionReason)>,
}

impl Verdict {
    fn mode(&self) -> FlavorMode {
        let mut reasons = self.victims.iter().map(|(_, reason)| *reason);
        if self.victims.is_empty() {
            FlavorMode::Fit
        } else if reasons.any(|reason| reason == PreemptionReason::InTeam) {
            FlavorMode::Preempt
        } else {
            FlavorMode::Reclaim
        }
    }
}

/// Why a gang gets nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Refused {
    /// Whether it lacks something on some Flavor that is not quota: a right, or time.
    pub(super) in_turn: bool,
    /// Whether every Flavor has less than it asks for, whoever uses it.
    pub(super) for_ever: bool,
}

/// What others would give up.
enum Search {
    Found(Verdict),
    /// What lacks is quota.
    LacksQuota,
    LacksElse,
}

/// The Flavors of a Team in its order.
fn flavors(nodes: &Nodes, team: Name) -> BTreeSet<u8> {
    nodes[&team].limits.keys().map(|pair| pair.flavor).collect()
}

/// What a gang is charged on a Flavor: what that does not name, on the first that does; what none names, not at all.
fn charges_on(nodes: &Nodes, asked: &Arrival, flavor: u8) -> Charges {
    let limits = &nodes[&asked.team].limits;
    let mut charges = Charges::new();
    for (resource, amount) in RESOURCES.into_iter().zip(asked.asks) {
        let on = |flavor| Pair { flavor, resource };
        let first = flavors(nodes, asked.team).into_iter();
        let mut named = std::iter::once(flavor).chain(first);
        let named = named.find(|flavor| limits.contains_key(&on(*flavor)));
        if let Some(flavor) = named
            && amount > 0
        {
            charges.insert(on(flavor), amount);
        }
    }
    charges
}

/// Whether so much is available; to a gang that may not borrow, within its Team's own quota.
pub(super) fn is_available(
    tree: &Tree<'_>,
    team: Name,
    charges: &Charges,
    may_borrow: bool,
) -> bool {
    charges.iter().all(|(pair, amount)| {
        *amount <= tree.team_available(team, *pair)
            && (may_borrow || !tree.is_borrowing_with(team, *pair, *amount))
    })
}

/// Whether so much is more than the Team could ever have.
fn exceeds_most(tree: &Tree<'_>, team: Name, charges: &Charges, may_borrow: bool) -> bool {
    charges.iter().any(|(pair, amount)| {
        *amount > tree.potentially_available(team, *pair)
            || !may_borrow && *amount > tree.subtree_quota(team, *pair)
    })
}

fn level(tree: &Tree<'_>, team: Name, charges: &Charges) -> usize {
    let levels = charges.iter();
    let levels = levels.map(|(pair, amount)| tree.borrow_level(team, *pair, *amount));
    levels.max().unwrap_or(0)
}

impl Model {
    pub(super) fn judge(&self, trees: &Trees<'_>, gang: Uid) -> Result<Verdict, Refused> {
        self.judge_with(trees, gang, true)
    }

    /// What a gang would get, with nobody giving way.
    pub(super) fn judge_free(
        &self,
        trees: &Trees<'_>,
        gang: Uid,
        may_borrow: bool,
    ) -> Option<Verdict> {
        let mut copy = self.clone();
        copy.gangs.get_mut(&gang)?.asked.may_borrow |= may_borrow;
        copy.judge_with(trees, gang, false).ok()
    }

    fn judge_with(
        &self,
        trees: &Trees<'_>,
        gang: Uid,
        may_preempt: bool,
    ) -> Result<Verdict, Refused> {
        let asked = &self.gangs[&gang].asked;
        let (team, nodes) = (asked.team, &self.limits.nodes);
        let fungibility = self.limits.fungibility[&team];
        let all = flavors(nodes, team);
        if all.is_empty() {
            return Ok(Verdict {
                charges: Charges::new(),
                level: 0,
                victims: Vec::new(),
            });
        }
        let (mut best, mut in_turn, mut for_ever) = (None::<Verdict>, false, true);
        for flavor in all {
            let charges = charges_on(nodes, asked, flavor);
            if exceeds_most(&trees.larger, team, &charges, asked.may_borrow) {
                continue;
            }
            for_ever = false;
            let found = if is_available(&trees.larger, team, &charges, asked.may_borrow) {
                Search::Found(Verdict {
                    level: level(&trees.larger, team, &charges),
                    charges,
                    victims: Vec::new(),
                })
            } else if may_preempt {
                self.search(gang, &charges)
            } else {
                Search::LacksQuota
            };
            match found {
                Search::Found(found) => {
                    let suits = (found.mode(), found.level);
                    let is_better = best.as_ref().is_none_or(|best| {
                        is_better(fungibility, suits, (best.mode(), best.level))
                    });
                    if stops(fungibility, suits) {
                        return Ok(found);
                    }
                    if is_better {
                        best = Some(found);
                    }
                }
                Search::LacksQuota => {}
                Search::LacksElse => in_turn = true,
            }
        }
        best.ok_or(Refused { in_turn, for_ever })
    }

    /// Who gives way to a gang for these charges.
    fn search(&self, gang: Uid, charges: &Charges) -> Search {
        let asked = &self.gangs[&gang].asked;
        let team = asked.team;
        let mut nodes = self.limits.nodes.clone();
        let policy = nodes[&team].policy.unwrap_or_default();
        if policy == PreemptionPolicy::NEVER {
            return Search::LacksQuota;
        }
        if !asked.may_borrow
            && let Some(node) = nodes.get_mut(&team)
        {
            for pair in charges.keys() {
                let limit = node.limits.entry(*pair).or_insert_with(Limit::default);
                limit.borrowing = Some(0);
            }
        }
        let charged = self.charged_afterwards(|_| false);
        let tree = Tree::new(&nodes, charged.iter().copied());
        let lacking = charges.iter();
        let lacking = lacking.filter(|(pair, amount)| **amount > tree.team_available(team, **pair));
        let lacking: BTreeSet<Pair> = lacking.map(|(pair, _)| *pair).collect();
        let contested = if lacking.is_empty() {
            charges.keys().copied().collect()
        } else {
            lacking.clone()
        };
        let has_right = |pair: &Pair| self.has_right(&tree, team, policy, (*pair, charges[pair]));
        if !contested.iter().all(has_right) {
            let lacks_quota = lacking.iter().any(|pair| !has_right(pair));
            return if lacks_quota && tree.parent(team).is_some() {
                Search::LacksQuota
            } else {
                Search::LacksElse
            };
        }
        let borrows_nothing = charges
            .iter()
            .all(|(pair, amount)| !tree.is_borrowing_with(team, *pair, *amount));
        let (running, some_stay) = self.can_be_asked(gang, &tree, &contested, borrows_nothing);
        let besides = self.charged_afterwards(|uid| running.iter().any(|gang| gang.uid == uid));
        let without_all = Tree::new(&nodes, besides.iter().copied());
        let nothing_found = if some_stay {
            Search::LacksElse
        } else {
            Search::LacksQuota
        };
        if !is_available(&without_all, team, charges, true) {
            return nothing_found;
        }
        if lacking.is_empty() {
            // It only has to wait for those that give way to others.
            return Search::LacksElse;
        }
        let asking = Asking {
            team,
            priority: asked.priority,
            queued_at: asked.queued_at,
            charges: charges
                .iter()
                .map(|(pair, amount)| (*pair, *amount))
                .collect(),
            contested,
        };
        let contest = Contest {
            nodes: &nodes,
            running: &running,
            besides: &besides,
            asking: &asking,
            has_place: &|_| true,
        };
        let root_is_cohort = tree.parent(team).is_some();
        let strategies = self.limits.strategies.as_deref();
        let chosen = victims(&contest, strategies.filter(|_| root_is_cohort));
        if chosen.is_empty() {
            return Search::LacksElse;
        }
        let goes = |uid| chosen.iter().any(|(at, _)| running[*at].uid == uid);
        let without = Tree::new(&nodes, self.charged_afterwards(goes));
        let chosen = chosen.iter();
        Search::Found(Verdict {
            level: level(&without, team, charges),
            charges: charges.clone(),
            victims: chosen
                .map(|(at, reason)| (running[*at].uid, *reason))
                .collect(),
        })
    }

    /// Whether others may be made to give way for an amount: the Team owns so much, a part of the tree below its root holds it,
    /// or the Team may preempt while it borrows.
    fn has_right(
        &self,
        tree: &Tree<'_>,
        team: Name,
        policy: PreemptionPolicy,
        (pair, amount): (Pair, i128),
    ) -> bool {
        if amount <= tree.limit(team, pair).nominal {
            return true;
        }
        let mut remaining = Charges::from([(pair, amount)]);
        for node in std::iter::once(team).chain(tree.ancestors(team)) {
            if tree.parent(node).is_some() && tree.holds(node, &remaining) {
                return true;
            }
            remaining = tree.remainder(node, &remaining);
        }
        let is_fair = self.limits.strategies.is_some() && tree.parent(team).is_some();
        policy.borrow_within_cohort != BorrowWithinCohort::Never
            || is_fair && policy.reclaim_within_cohort != ReclaimWithinCohort::Never
    }

    /// Who can be asked to give way to a gang, and whether somebody is left out for whom it went itself.
    fn can_be_asked(
        &self,
        gang: Uid,
        tree: &Tree<'_>,
        contested: &BTreeSet<Pair>,
        borrows_nothing: bool,
    ) -> (Vec<Running>, bool) {
        let asked = &self.gangs[&gang].asked;
        let policy = self.limits.nodes[&asked.team].policy.unwrap_or_default();
        let root = |team| tree.ancestors(team).last().copied().unwrap_or(team);
        let (mut running, mut some_stay) = (Vec::new(), false);
        for (uid, told) in &self.told {
            let Some(charges) = self.held.get(uid) else {
                continue;
            };
            let other = &self.gangs[uid].asked;
            let is_lower = told.priority < asked.priority;
            let is_newer = told.priority == asked.priority && other.queued_at > asked.queued_at;
            let is_own = other.team == asked.team;
            let may = if is_own {
                match policy.within_team {
                    WithinTeam::Never => false,
                    WithinTeam::LowerPriority => is_lower,
                    WithinTeam::LowerOrNewerEqualPriority => is_lower || is_newer,
                }
            } else {
                let borrows = |pair: &Pair| tree.is_borrowing_with(other.team, *pair, 0);
                !tree.is_in_a_cycle(other.team)
                    && root(other.team) == root(asked.team)
                    && contested.iter().any(borrows)
                    && match policy.reclaim_within_cohort {
                        ReclaimWithinCohort::Never => false,
                        ReclaimWithinCohort::LowerPriority => is_lower,
                        ReclaimWithinCohort::Any => true,
                    }
            };
            if !may || !charges.keys().any(|pair| contested.contains(pair)) {
                continue;
            }
            let spares = || {
                let memory = &self.memory;
                memory.spares((gang, asked.priority), (*uid, told.priority))
            };
            if !borrows_nothing && !told.ends && spares() {
                some_stay = true;
                continue;
            }
            let is_ending = told.ends || told.ending_since.is_some();
            let is_too_late = |since: i64| !told.ends && self.now - since >= MOST_SECONDS;
            let is_protected = told.protected_until.is_some_and(|until| until > self.now);
            if self.gives_way(*uid)
                || self.overdue.contains(uid)
                || told.ending_since.is_some_and(is_too_late)
                || !is_ending && is_protected
            {
                continue;
            }
            running.push(Running {
                uid: *uid,
                team: other.team,
                priority: told.priority,
                queued_at: other.queued_at,
                admitted_at: Some(told.admitted_at),
                is_ending,
                charges: charges
                    .iter()
                    .map(|(pair, amount)| (*pair, *amount))
                    .collect(),
            });
        }
        (running, some_stay)
    }
}
