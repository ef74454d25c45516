//! What a gang would get, as things are: a Flavor that is free, others that give way, or nothing.

use std::collections::BTreeSet;

use muster_engine::quota::{FlavorMode, PreemptionReason};

use super::{
    flavors::{is_better, stops},
    history::{Arrival, RESOURCES},
    model::{Charges, Model, Trees, Uid},
    search::Search,
};
use crate::model::{Name, Nodes, Pair, Tree};

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
    /// Whether every Flavor that could have enough one day is held up.
    pub(super) is_behind: bool,
}

/// The Flavors of a Team in its order.
fn flavors(nodes: &Nodes, team: Name) -> BTreeSet<u8> {
    nodes[&team].limits.keys().map(|pair| pair.flavor).collect()
}

/// What so many pods of a gang are charged on a Flavor: what that does not name, on the first that does; what none names, not at all.
pub(super) fn charges_on(nodes: &Nodes, asked: &Arrival, pods: usize, flavor: u8) -> Charges {
    let limits = &nodes[&asked.team].limits;
    let mut charges = Charges::new();
    for (resource, amount) in RESOURCES.into_iter().zip(asked.asks_with(pods)) {
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
pub(super) fn exceeds_most(
    tree: &Tree<'_>,
    team: Name,
    charges: &Charges,
    may_borrow: bool,
) -> bool {
    charges.iter().any(|(pair, amount)| {
        *amount > tree.potentially_available(team, *pair)
            || !may_borrow && *amount > tree.subtree_quota(team, *pair)
    })
}

pub(super) fn level(tree: &Tree<'_>, team: Name, charges: &Charges) -> usize {
    let levels = charges.iter();
    let levels = levels.map(|(pair, amount)| tree.borrow_level(team, *pair, *amount));
    levels.max().unwrap_or(0)
}

impl Model {
    pub(super) fn judge(&self, trees: &Trees<'_>, gang: Uid) -> Result<Verdict, Refused> {
        self.judge_with(trees, gang, self.gangs[&gang].asked.fewest(), true)
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
        let pods = copy.gangs[&gang].asked.fewest();
        copy.judge_with(trees, gang, pods, false).ok()
    }

    /// What a gang gets that gets something with as few pods as it may have: with as many as are free, where nobody gives way.
    pub(super) fn grown(&self, trees: &Trees<'_>, gang: Uid, least: Verdict) -> Verdict {
        let asked = &self.gangs[&gang].asked;
        if !least.victims.is_empty() {
            return least;
        }
        let mut more = (asked.fewest() + 1..=asked.pods).rev();
        let grown = more.find_map(|pods| self.judge_with(trees, gang, pods, false).ok());
        grown.unwrap_or(least)
    }

    fn judge_with(
        &self,
        trees: &Trees<'_>,
        gang: Uid,
        pods: usize,
        may_preempt: bool,
    ) -> Result<Verdict, Refused> {
        let asked = &self.gangs[&gang].asked;
        let (team, nodes) = (asked.team, &self.limits.nodes);
        let fungibility = self.limits.fungibility[&team];
        let all = flavors(nodes, team);
        if all.is_empty() {
            if self.is_held_up(trees, gang, None) {
                return Err(Refused {
                    is_behind: true,
                    ..Refused::default()
                });
            }
            return Ok(Verdict {
                charges: Charges::new(),
                level: 0,
                victims: Vec::new(),
            });
        }
        let mut best = None::<Verdict>;
        let (mut in_turn, mut for_ever, mut is_behind) = (false, true, true);
        for flavor in all {
            let charges = charges_on(nodes, asked, pods, flavor);
            if exceeds_most(&trees.larger, team, &charges, asked.may_borrow) {
                continue;
            }
            for_ever = false;
            if self.is_held_up(trees, gang, Some(flavor)) {
                continue;
            }
            is_behind = false;
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
        best.ok_or(Refused {
            in_turn,
            for_ever,
            is_behind: is_behind && !for_ever,
        })
    }
}
