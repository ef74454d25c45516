//! Whose turn it is, and what comes of it, until nobody gets anything any more.
//!
//! In a round every Team has one turn. The model says who is next of all that wait. The engine asks those that lacked something
//! else than quota at the end of a call (ADR 18, "Asking again"), so that whoever lacked that may come later than its turn would
//! be; how often that made a difference is counted. In the end nobody may be left who gets anything.

use std::collections::{BTreeMap, BTreeSet};

use muster_engine::quota::PreemptionReason;

use super::{
    judge::Verdict,
    model::{Charges, Class, Model, Place, Uid},
};
use crate::model::{Name, Tree, Waiting, winner};

/// What the engine says that it decided.
#[derive(Clone, Debug, Default)]
pub(super) struct Decided {
    pub(super) admissions: Vec<(Uid, Charges)>,
    pub(super) preemptions: Vec<(Uid, Vec<(Uid, PreemptionReason)>)>,
    pub(super) spared: Vec<Uid>,
    /// Whether some that are asked at the end of a call are left for the next one.
    pub(super) leaves_some: bool,
}

/// The first gang of a class that gets something.
struct Head {
    class: Class,
    gang: Uid,
    place: Place,
    verdict: Verdict,
}

/// How far the engine's decisions were followed.
#[derive(Clone, Copy)]
struct At {
    admissions: usize,
    preemptions: usize,
    /// How many came later than their turn.
    late: usize,
}

/// After how many decisions nothing fits any more, and what.
type Failure = (usize, String);

impl Model {
    /// Decides, and compares with what the engine decided; how many turns it took later than the model.
    pub(super) fn decide(&mut self, decided: &Decided) -> Result<usize, String> {
        self.bring_up_to_date();
        let settled = self.settle();
        if !decided.admissions.starts_with(&settled) {
            return Err(format!(
                "the model settles {settled:?}, the engine admits {:?}",
                decided.admissions
            ));
        }
        let at = At {
            admissions: settled.len(),
            preemptions: 0,
            late: 0,
        };
        let (model, late) = self
            .clone()
            .follow(decided, at, &BTreeSet::new())
            .map_err(|(_, text)| text)?;
        *self = model;
        let spared = std::mem::take(&mut self.gave_way).into_iter();
        let spared: Vec<Uid> = spared
            .filter(|gang| self.held.contains_key(gang) && !self.gives_way(*gang))
            .collect();
        if spared == decided.spared {
            return Ok(late);
        }
        Err(format!(
            "the model spares {spared:?}, the engine {:?}",
            decided.spared
        ))
    }

    /// Takes one turn after the other, as long as the engine's decisions allow; who is late may be so only if it is asked in turn.
    fn follow(
        mut self,
        decided: &Decided,
        at: At,
        served: &BTreeSet<Name>,
    ) -> Result<(Self, usize), Failure> {
        let (heads, lacking) = self.heads();
        self.in_turn.extend(lacking);
        let nobody = BTreeSet::new();
        let tree = self.trees().larger;
        let strict = self.next(&tree, &heads, served, &nobody);
        if strict.is_none() && !served.is_empty() {
            drop(tree);
            return self.follow(decided, at, &BTreeSet::new());
        }
        let is_all = at.admissions == decided.admissions.len()
            && at.preemptions == decided.preemptions.len();
        let is_left = |head: &Head| decided.leaves_some && self.in_turn.contains(&head.class);
        if is_all && heads.iter().all(is_left) {
            drop(tree);
            return Ok((self, at.late));
        }
        let mut failure: Option<Failure> = None;
        let mut tried = Vec::new();
        for late in std::iter::once(nobody).chain(self.may_be_late()) {
            let Some(next) = self.next(&tree, &heads, served, &late) else {
                continue;
            };
            if tried.contains(&next) {
                continue;
            }
            tried.push(next);
            let late = at.late + usize::from(Some(next) != strict);
            match self.take(&heads[next], decided, At { late, ..at }, served) {
                Ok(found) => return Ok(found),
                Err(other) => {
                    let is_further = failure.as_ref().is_none_or(|known| known.0 < other.0);
                    failure = if is_further { Some(other) } else { failure };
                }
            }
        }
        let others = self.next(&tree, &heads, served, &self.in_turn);
        if others.is_none() && !served.is_empty() {
            drop(tree);
            return self.follow(decided, at, &BTreeSet::new());
        }
        let decisions = at.admissions + at.preemptions;
        Err(failure.unwrap_or_else(|| {
            let text = format!("after {decisions} decisions nobody is next; {decided:?}");
            (decisions, text)
        }))
    }

    /// Who may not be asked yet: all that are asked in turn, all but one, or one.
    fn may_be_late(&self) -> impl Iterator<Item = BTreeSet<Class>> + '_ {
        let all_but_one = self.in_turn.iter().map(|class| {
            let mut late = self.in_turn.clone();
            late.remove(class);
            late
        });
        let one = self.in_turn.iter().map(|class| BTreeSet::from([*class]));
        std::iter::once(self.in_turn.clone())
            .chain(all_but_one)
            .chain(one)
    }

    /// A gang has its turn, if the engine says so.
    fn take(
        &self,
        head: &Head,
        decided: &Decided,
        mut at: At,
        served: &BTreeSet<Name>,
    ) -> Result<(Self, usize), Failure> {
        let Verdict {
            charges, victims, ..
        } = &head.verdict;
        let is_free = victims.is_empty();
        let expected = if is_free {
            at.admissions += 1;
            decided.admissions.get(at.admissions - 1) == Some(&(head.gang, charges.clone()))
        } else {
            at.preemptions += 1;
            decided.preemptions.get(at.preemptions - 1) == Some(&(head.gang, victims.clone()))
        };
        if !expected {
            let decisions = at.admissions + at.preemptions - 1;
            let text = format!(
                "after {decisions} decisions the next is {} with {:?}; {decided:?}",
                head.gang, head.verdict
            );
            return Err((decisions, text));
        }
        let mut model = self.clone();
        if is_free {
            model.admit(head.gang, charges);
        } else {
            model.preempt(head.gang, &head.verdict);
        }
        let settled = model.settle_after_turn(head.gang);
        let until = at.admissions + settled.len();
        if decided.admissions.get(at.admissions..until) != Some(settled.as_slice()) {
            let decisions = at.admissions + at.preemptions;
            let text = format!(
                "after {decisions} decisions the turn of {} makes room for {settled:?}; {decided:?}",
                head.gang
            );
            return Err((decisions, text));
        }
        at.admissions = until;
        let mut served = served.clone();
        served.insert(head.class.0);
        model.follow(decided, at, &served)
    }

    /// The first gangs of classes that get something, and the classes that lack something else than quota.
    fn heads(&self) -> (Vec<Head>, Vec<Class>) {
        let trees = self.trees();
        let mut first: BTreeMap<Class, Uid> = BTreeMap::new();
        for gang in &self.waiting {
            let known = &self.gangs[gang];
            if self.held.contains_key(gang)
                || self.kept.contains_key(gang)
                || !self.is_active(known.asked.team)
            {
                continue;
            }
            let entry = first.entry(known.class()).or_insert(*gang);
            if known.place() < self.gangs[entry].place() {
                *entry = *gang;
            }
        }
        let (mut heads, mut lacking) = (Vec::new(), Vec::new());
        for (class, gang) in first {
            match self.judge(&trees, gang) {
                Ok(verdict) => heads.push(Head {
                    class,
                    gang,
                    place: self.gangs[&gang].place(),
                    verdict: self.grown(&trees, gang, verdict),
                }),
                Err(refused) if refused.in_turn => lacking.push(class),
                Err(_) => {}
            }
        }
        (heads, lacking)
    }

    /// The next of these, by position, if those of some classes are not asked.
    fn next(
        &self,
        tree: &Tree<'_>,
        heads: &[Head],
        served: &BTreeSet<Name>,
        not_asked: &BTreeSet<Class>,
    ) -> Option<usize> {
        let mut of_team: BTreeMap<Name, usize> = BTreeMap::new();
        for (position, head) in heads.iter().enumerate() {
            let team = head.class.0;
            if served.contains(&team) || not_asked.contains(&head.class) {
                continue;
            }
            let known = of_team.entry(team).or_insert(position);
            if head.place < heads[*known].place {
                *known = position;
            }
        }
        let mut contending: Vec<usize> = of_team.values().copied().collect();
        if self.limits.strategies.is_some() {
            contending = self.winners(tree, heads, &contending);
        }
        let turn = |position: &usize| (heads[*position].verdict.level, heads[*position].place);
        contending.into_iter().min_by_key(turn)
    }

    /// Of each tree the winner by shares; Teams without a Cohort are not in one.
    fn winners(&self, tree: &Tree<'_>, heads: &[Head], contending: &[usize]) -> Vec<usize> {
        let mut winners = Vec::new();
        let mut by_root: BTreeMap<Name, Vec<usize>> = BTreeMap::new();
        for position in contending {
            match tree.ancestors(heads[*position].class.0).last() {
                Some(root) => by_root.entry(*root).or_default().push(*position),
                None => winners.push(*position),
            }
        }
        for (root, positions) in by_root {
            let waiting: Vec<Waiting> = positions
                .iter()
                .map(|position| {
                    let asked = &self.gangs[&heads[*position].gang].asked;
                    let charges = heads[*position].verdict.charges.iter();
                    Waiting {
                        uid: asked.uid,
                        team: asked.team,
                        priority: asked.priority,
                        queued_at: asked.queued_at,
                        charges: charges.map(|(pair, amount)| (*pair, *amount)).collect(),
                    }
                })
                .collect();
            let all: Vec<usize> = (0..waiting.len()).collect();
            winners.extend(winner(tree, root, &waiting, &all).map(|at| positions[at]));
        }
        winners
    }
}
