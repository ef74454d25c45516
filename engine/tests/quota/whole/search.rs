//! Who gives way to a gang, on one Flavor: whether it has a right, who can be asked, and whom Kueue's rules choose.

use std::collections::BTreeSet;

use muster_engine::quota::{BorrowWithinCohort, PreemptionPolicy, ReclaimWithinCohort, WithinTeam};

use super::{
    judge::{Verdict, is_available, level},
    model::{Charges, MOST_SECONDS, Model, Uid},
};
use crate::model::{Asking, Contest, Limit, Name, Pair, Running, Tree, victims};

/// What others would give up.
pub(super) enum Search {
    Found(Verdict),
    /// What lacks is quota.
    LacksQuota,
    LacksElse,
}

impl Model {
    /// Who gives way to a gang for these charges.
    pub(super) fn search(&self, gang: Uid, charges: &Charges) -> Search {
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
        // Others could be asked if more of what it asks for lacked.
        let may_contest_more = contested.len() < charges.len();
        let nothing_found = if some_stay || may_contest_more {
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
            let is_too_late =
                |since: i64| !told.ends && self.now - since - told.notice >= MOST_SECONDS;
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
