//! Whether a gang that recovers has room again: as if nothing were kept for it, before anybody else, and as near to where it was as can be.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
};

use super::{
    comers::Lacks,
    keep::{Keep, sum_by_resource},
};
use crate::{
    amount::Resource,
    decision::{Budget, CommitRoom, Decisions, Preemption},
    model::{Hold, MOST_AVOIDED_NODES},
    names::{GangUid, NodeName, PodUid, Timestamp},
    placement::Effort,
    quota::charges::undoing,
    state::{
        State,
        ids::{ClassId, GangId},
        judge::{Candidate, Fitting},
        size::Asking,
        team::Refusing,
        waiting::HasAgain,
        work::Work,
    },
};

/// What came of judging a gang that recovers.
pub(super) enum Judgement {
    /// It is admitted, others give way to it, or it waits like any other from now on.
    Settled,
    /// It waits on, and what is kept is kept.
    InVain {
        /// When others may be preempted by time alone.
        more_at: Option<Timestamp>,
        /// What it lacked when it looked for others to preempt.
        lacks: Lacks,
    },
    /// It is to be admitted by the next commit.
    NextCommit,
}

impl Judgement {
    /// It waits until something comes free, or somebody comes.
    const IN_VAIN: Self = Self::InVain {
        more_at: None,
        lacks: Lacks::NOTHING,
    };
}

impl State {
    /// Judges one that recovers and waits: whether it is admitted, say.
    pub(super) fn judge_recovering(
        &mut self,
        uid: &GangUid,
        id: GangId,
        budget: &Budget,
        left: &mut CommitRoom,
        decisions: &mut Decisions,
        work: &mut Work,
    ) -> Judgement {
        let Some(needs) = self.needs(id) else {
            return Judgement::IN_VAIN;
        };
        let keep = self.keeps.by_gang.get(uid);
        let keep = keep.zip(self.waiting.get(id));
        let is_alike = keep.is_some_and(|(keep, waiting)| {
            needs.pods <= keep.parts.len() && keep.team() == Some(&waiting.gang.team)
        });
        // Whoever asks for more than it held, or another Team for it, stands in line for that; and it is told as any other that it is too large.
        if !is_alike || !budget.empty.holds(&needs) {
            self.end_keep(uid);
            return Judgement::Settled;
        }
        let most = CommitRoom {
            nodes: needs.pods,
            ..needs
        };
        if !left.holds(&most) && *left != budget.empty {
            return Judgement::NextCommit;
        }
        let before = self.cluster.visited();
        self.note_charged_ahead(id, true);
        let may_fit = self.would_fit(uid, id);
        self.note_charged_ahead(id, false);
        let team = self.waiting.get(id).map(|waiting| waiting.team);
        if !may_fit && !team.is_some_and(|team| self.may_preempt(team)) {
            work.note_in_vain(&self.cluster, before);
            return Judgement::IN_VAIN;
        }
        let freed = self.begin_question(id);
        let Some(keep) = self.lift_keep(uid) else {
            return Judgement::IN_VAIN;
        };
        self.wake_class_of(id);
        let fitting = match self.fitting_again(&keep, id, work) {
            Ok(fitting) => fitting,
            Err(refusals) => {
                return match self.preempt_for_what_is_lost(&keep, id, &refusals, work) {
                    Ok(preemption) => {
                        // From now on more is kept for it than it had.
                        self.keeps.over.insert(uid.clone(), keep.told.attempt);
                        self.note_preemption_changed(uid.clone());
                        decisions.preemptions.push(preemption);
                        Judgement::Settled
                    }
                    Err((more_at, lacks)) => {
                        self.keep_on(keep);
                        self.undo_question(id, freed);
                        Judgement::InVain { more_at, lacks }
                    }
                };
            }
        };
        let fitting = self.no_more_than_it_held(&keep, id, fitting, &budget.empty, work);
        let needs = fitting.and_then(|fitting| Some((self.needs_of(id, &fitting)?, fitting)));
        match needs {
            Some((needs, fitting)) if left.holds(&needs) => {
                *left = left.less(&needs);
                if let Some(admission) = self.admit(id, &fitting) {
                    self.keeps.admitted.insert(uid.clone(), keep);
                    self.note_preemption_changed(uid.clone());
                    decisions.admissions.push(admission);
                }
                Judgement::Settled
            }
            Some((needs, _)) if budget.empty.holds(&needs) => {
                self.keep_on(keep);
                self.undo_question(id, freed);
                Judgement::NextCommit
            }
            // It stands in line from now on: for more than it held, or to be told that it is too large.
            _ => {
                self.keeps.over.insert(uid.clone(), keep.told.attempt);
                self.note_preemption_changed(uid.clone());
                Judgement::Settled
            }
        }
    }

    /// What a gang gets of what it fits with, or of more of its pods: as many as its last attempt had at most, and charged no more. Else it would be
    /// served with what others wait for in front of it. `None`: it asks for more than that.
    fn no_more_than_it_held(
        &mut self,
        keep: &Keep,
        id: GangId,
        least: Fitting,
        empty: &CommitRoom,
        work: &mut Work,
    ) -> Option<Fitting> {
        let most = CommitRoom {
            pods: empty.pods.min(keep.parts.len()),
            ..*empty
        };
        self.note_has_again(id, Some(keep));
        let grown = self.grow(id, least.clone(), &most, work);
        self.note_has_again(id, None);
        [grown, least].into_iter().find(|fitting| {
            let holds = self.would_hold(id, fitting);
            holds.is_some_and(|holds| keep.held_as_much(&sum_by_resource(holds.iter())))
        })
    }

    /// Whether a gang had quota and a place, if what is kept for it were free. Nothing changes by the question.
    fn would_fit(&mut self, uid: &GangUid, id: GangId) -> bool {
        let Some(keep) = self.keeps.by_gang.get(uid) else {
            return false;
        };
        let charged = self.charges.without(&self.kept_holds(keep));
        let looks = keep.kept.len() + 2 * charged.len();
        self.cluster.note_visits(looks as u64);
        self.charge_for_a_question(&charged);
        let would_fit = self.fits_in_what_is_kept(uid, id);
        self.charge_for_a_question(&undoing(&charged));
        would_fit
    }

    /// What is held in the place of a gang that recovers.
    fn kept_holds(&self, keep: &Keep) -> BTreeMap<PodUid, &Hold> {
        let pods = keep.kept.values().map(|hold| &hold.pod);
        let holds = pods.filter_map(|pod| Some((pod.clone(), &**self.holds.get(pod)?)));
        holds.collect()
    }

    /// Whether a gang has quota, while what is kept for it is charged to nobody, and a place, if that were free; be it where a place is kept for
    /// somebody else, if it is let in, or had its own before.
    fn fits_in_what_is_kept(&self, uid: &GangUid, id: GangId) -> bool {
        let waiting = self.waiting.get(id);
        let entry = waiting.and_then(|waiting| self.teams.get(waiting.team));
        let keep = self.keeps.by_gang.get(uid);
        let Some(((waiting, entry), keep)) = waiting.zip(entry).zip(keep) else {
            return false;
        };
        let Some(totals) = self.shapes.get(waiting.shape).map(|it| &it.totals) else {
            return false;
        };
        if entry.node.is_none() {
            return false;
        }
        let seen = OnceCell::new();
        let mut opened = self.opened_for(waiting);
        opened.extend(keep.nodes());
        let view = || seen.get_or_init(|| self.cluster.opened(&opened, &self.kept_holds(keep)));
        let mut effort = Effort::default();
        if entry.assignments.is_empty() && totals.claims == 0 {
            let placed = self.placed_in(waiting, None, view(), &mut effort);
            return matches!(placed, Ok(Some(_)));
        }
        (0..entry.assignments.len()).any(|at| {
            let candidate = Candidate {
                waiting,
                demand: &waiting.demand,
                totals,
                node: entry.node,
                assignments: &entry.assignments,
                at,
            };
            if self.may_be_charged(&candidate, &self.tree).is_err() {
                return false;
            }
            let fits = self.fits_in(&candidate, &self.tree, view(), &mut effort);
            matches!(fits, Ok(Some(_)))
        })
    }

    /// What a gang gets for which nothing is kept any more: as near to where it was as there is room. Whoever is before it in a strict order held it
    /// up no more while it ran.
    fn fitting_again(
        &mut self,
        keep: &Keep,
        id: GangId,
        work: &mut Work,
    ) -> Result<Fitting, Vec<Refusing>> {
        let class = self.waiting.get(id).and_then(|waiting| waiting.class);
        let class = class.ok_or_else(Vec::new)?;
        self.note_charged_ahead(id, true);
        self.note_has_again(id, Some(keep));
        let fitting = match self.fitting_nearby(keep, class, id, work) {
            Some(fitting) => Ok(fitting),
            None => self.judge(class, id, work),
        };
        self.note_has_again(id, None);
        self.note_charged_ahead(id, false);
        fitting
    }

    /// A gang is judged for what was kept for it, or is so no longer.
    fn note_has_again(&mut self, id: GangId, keep: Option<&Keep>) {
        if let Some(waiting) = self.waiting.get_mut(id) {
            waiting.has_again = keep.map(|keep| HasAgain {
                nodes: keep.nodes(),
            });
        }
    }

    /// Has others give way to a gang that has no room though all that was kept for it is free, if somebody has to: by the right that it
    /// has as any other that waits, and before anybody else has a turn. If nobody does, the error says when others may be preempted by time
    /// alone, and what it lacked.
    fn preempt_for_what_is_lost(
        &mut self,
        keep: &Keep,
        id: GangId,
        refusals: &[Refusing],
        work: &mut Work,
    ) -> Result<Preemption, (Option<Timestamp>, Lacks)> {
        const NOT_BY_PREEMPTION: (Option<Timestamp>, Lacks) = (None, Lacks::NOTHING);
        let class = self.waiting.get(id).and_then(|waiting| waiting.class);
        let Some(class) = class else {
            return Err(NOT_BY_PREEMPTION);
        };
        let found = self.find_victims(class, id, refusals, work);
        let in_vain = self.in_vain.take();
        let Some(found) = found else {
            let in_vain = in_vain.map(|(_, in_vain)| (in_vain.more_at, in_vain.lacks()));
            return Err(in_vain.unwrap_or(NOT_BY_PREEMPTION));
        };
        let mut asked: BTreeMap<Resource, i128> = BTreeMap::new();
        for delta in found.charges() {
            *asked.entry(delta.of.resource.clone()).or_default() += delta.amount;
        }
        // For more than it held it has no turn yet.
        if !keep.held_as_much(&asked) {
            return Err(NOT_BY_PREEMPTION);
        }
        self.preempt(id, found, work.now).ok_or(NOT_BY_PREEMPTION)
    }

    fn fitting_nearby(
        &mut self,
        keep: &Keep,
        class: ClassId,
        id: GangId,
        work: &mut Work,
    ) -> Option<Fitting> {
        let shape = self.classes.get(class)?.shape;
        let claims = keep.parts.values().flat_map(|part| &part.claims);
        let mut flavors = claims.filter_map(|claim| self.flavors.get(&claim.flavor));
        let topology = flavors.next()?.topology.clone();
        let domain = &keep.told.domain;
        for depth in (1..=domain.len()).rev() {
            let outside = self
                .cluster
                .nodes_outside(topology.as_ref(), domain.get(..depth)?);
            let avoided = &self.waiting.get(id)?.gang.topology.avoided;
            let avoided = avoided.iter().take(MOST_AVOIDED_NODES);
            let shut: BTreeSet<&NodeName> = outside.iter().chain(avoided).collect();
            // The whole cluster is no domain to be looked at apart.
            let Some(view) = self.cluster.without_nodes(shut.into_iter()) else {
                continue;
            };
            let effort = &mut Effort::default();
            let (asking, visited) = (Asking::Least(shape), &mut work.visited);
            if let Ok(fitting) = self.judge_with(asking, id, &view, effort, visited) {
                return Some(fitting);
            }
        }
        None
    }
}
