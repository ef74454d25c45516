//! What is given up of what is kept, since limits let a Team have less.

use std::collections::{BTreeMap, BTreeSet};

use super::keep::{Keep, has_place, sum_of};
use crate::{
    amount::{Amount, FlavorResource},
    model::Stop,
    names::{GangUid, PodUid},
    queue::Place,
    quota::charges::{Delta, undoing},
    state::State,
};

impl Keep {
    /// What is charged for what is kept.
    fn charges(&self) -> BTreeMap<FlavorResource, i128> {
        sum_of(self.kept.values().map(|hold| &**hold))
    }

    /// What to give up so that no more is charged than this (`most`): first what has no place, then what was held by the last pods; and nothing
    /// that does not help.
    fn beyond(&self, most: &BTreeMap<FlavorResource, i128>) -> Vec<PodUid> {
        let mut charges = self.charges();
        let last_first = || self.kept.iter().rev();
        let without = last_first().filter(|(_, hold)| !has_place(hold));
        let with = last_first().filter(|(_, hold)| has_place(hold));
        let mut beyond = Vec::new();
        for (pod, hold) in without.chain(with) {
            let freed = sum_of(std::iter::once(&**hold));
            if !freed.keys().any(|of| charges.get(of) > most.get(of)) {
                continue;
            }
            for (of, amount) in freed {
                *charges.entry(of).or_default() -= amount;
            }
            beyond.push(pod.clone());
        }
        beyond
    }
}

impl State {
    /// Limits changed: of what is kept just so much is given up that the Teams are within theirs, by whole pods. Who came last gives up first.
    pub(in crate::state) fn trim_keeps(&mut self) {
        self.keeps.judge_all_again();
        let gangs = self.keeps.by_gang.keys().cloned().collect();
        self.trim(gangs);
    }

    /// The same of these gangs.
    pub(super) fn trim(&mut self, gangs: BTreeSet<GangUid>) {
        let mut keeps: Vec<(Place, GangUid)> = Vec::new();
        for gang in gangs {
            let Some(keep) = self.keeps.by_gang.get(&gang) else {
                continue;
            };
            keeps.push((keep.place(), gang));
        }
        keeps.sort();
        for (_, gang) in keeps.into_iter().rev() {
            let keep = self.keeps.by_gang.get(&gang);
            let team = keep.and_then(Keep::team);
            let team = team.and_then(|team| self.limits.teams.get(team));
            if team.is_none_or(|team| team.stop != Stop::None) {
                self.end_keep(&gang);
                continue;
            }
            // What is held still cannot be given up, and what can be would depend on who is released first. It is looked at again with the last
            // release.
            if keep.is_some_and(|keep| !keep.held.is_empty()) {
                continue;
            }
            self.give_up_beyond_limits(&gang);
            self.end_keep_of_nothing(&gang);
        }
    }

    /// Gives up what is kept for a gang beyond what its Team may have beside what others hold.
    fn give_up_beyond_limits(&mut self, gang: &GangUid) {
        let Some(keep) = self.keeps.by_gang.get(gang) else {
            return;
        };
        let Some(team) = keep.team() else {
            return;
        };
        let tree = &mut self.moments.now;
        let mut most: BTreeMap<FlavorResource, i128> = BTreeMap::new();
        // Without its Team it may have nothing.
        if let Some(node) = tree.node_of(team) {
            let charges = keep.charges();
            let deltas = charges.iter().map(|(of, amount)| Delta {
                gang: gang.clone(),
                team: team.clone(),
                of: of.clone(),
                amount: *amount,
            });
            let deltas: Vec<Delta> = deltas.collect();
            tree.apply(&undoing(&deltas), |_, _, _| {});
            for of in charges.into_keys() {
                let pair = tree.known_pair(&of);
                let available = pair.map_or(Amount::ZERO, |pair| tree.available_at(node, pair));
                most.insert(of, i128::from(available.0));
            }
            tree.apply(&deltas, |_, _, _| {});
        }
        for pod in keep.beyond(&most) {
            self.give_up_part(gang, &pod);
        }
    }

    /// Those that are to go, since their Team uses more than it may, give up what is kept for them at once: nobody has to be told. Whether there
    /// were any.
    pub(in crate::state) fn end_chosen_keeps(&mut self) -> bool {
        let chosen = self.shrinking.due();
        let chosen = chosen.filter(|gang| self.keeps.has(gang));
        let chosen: Vec<GangUid> = chosen.cloned().collect();
        for gang in &chosen {
            self.end_keep(gang);
        }
        !chosen.is_empty()
    }
}
