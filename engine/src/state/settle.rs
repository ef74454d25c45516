//! How a reservation ends: its gang is admitted, once its victims are gone or because it found room without them, or its time is over.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    State,
    ids::{ClassId, GangId},
    judge::{Fitting, request},
    reservations::{Judged, Reservation},
    team::Refusing,
    waiting::WaitingGang,
    work::Work,
};
use crate::{
    decision::{Budget, CommitRoom, Decisions},
    model::Hold,
    names::{ClaimUid, GangUid, PodUid},
    placement::{Effort, Verdict, View, plan},
    quota::{
        NodeId, QuotaTree,
        charges::{Delta, undoing},
    },
};

/// What came of judging a gang for which something was kept.
enum Settled {
    /// It was admitted, or waits like any other from now on.
    Over,
    /// Something is kept for it still: it is not to be judged again before something changed.
    Kept,
    /// It is to be admitted by the next commit.
    NextCommit,
}

impl State {
    /// Judges those whose victims are released, and those that may have room without waiting for theirs since something came free, before
    /// anybody else; and lets those wait as before whose time is over.
    pub(super) fn settle_reservations(
        &mut self,
        budget: &Budget,
        left: &mut CommitRoom,
        decisions: &mut Decisions,
        work: &mut Work,
    ) {
        for uid in self.reservations.ended(work.now) {
            if let Some(id) = self.waiting.id(&uid)
                && let Some(ended) = self.give_up_reservation(id)
            {
                self.reservations.note_overdue(ended.all_victims());
                self.wake_class_of(id);
            }
        }
        while self.settle_in_turn(budget, left, decisions, work) {}
        self.reservations.is_any_to_judge_again = false;
    }

    /// Judges each once that was not judged as things are. Whether they are to be judged again: what was kept for one that is over
    /// may help another one that was judged before it.
    fn settle_in_turn(
        &mut self,
        budget: &Budget,
        left: &mut CommitRoom,
        decisions: &mut Decisions,
        work: &mut Work,
    ) -> bool {
        let moment = self.moment();
        let mut unsettled: Vec<(GangUid, GangId, bool)> = self
            .reservations
            .unsettled(moment)
            .filter_map(|(uid, is_released)| {
                Some((uid.clone(), self.waiting.id(uid)?, is_released))
            })
            .collect();
        unsettled
            .sort_by_key(|(_, id, _)| self.waiting.get(*id).map(|waiting| waiting.place.clone()));
        let (before, mut kept, mut is_any_left) = (self.reservations.len(), Vec::new(), false);
        for (uid, id, is_released) in unsettled {
            if !is_released && !self.has_come_free(id) {
                kept.push((uid, id));
                continue;
            }
            if !is_released && work.is_enough() {
                is_any_left = true;
                continue;
            }
            let settled = if is_released || self.finds_room_elsewhere(id, work) {
                self.settle(id, is_released, budget, left, decisions, work)
            } else {
                Settled::Kept
            };
            match settled {
                Settled::Over => {}
                Settled::Kept => kept.push((uid, id)),
                Settled::NextCommit => {
                    decisions.exhausted = true;
                    return false;
                }
            }
        }
        let is_any_over = self.reservations.len() < before;
        if is_any_over && !work.is_enough() {
            return true;
        }
        self.reservations.is_any_left = is_any_left || is_any_over;
        if !is_any_over {
            // To those that were judged already, what was kept again meanwhile is the moment of before.
            let now = self.moment();
            if now != moment {
                let judged_before = self.reservations.judged_at(moment);
                kept.extend(
                    judged_before.filter_map(|uid| Some((uid.clone(), self.waiting.id(uid)?))),
                );
            }
            for (uid, id) in kept {
                let judged = self.judged_now(id);
                self.reservations.note_judged(&uid, judged);
            }
        }
        false
    }

    /// Whether anything has come free that may help a gang to have room without waiting for its victims, since it was judged last.
    fn has_come_free(&self, id: GangId) -> bool {
        let waiting = self.waiting.get(id);
        let kept = waiting.and_then(|waiting| self.reservations.of(&waiting.gang.uid));
        let Some(judged) = kept.and_then(|kept| kept.judged) else {
            return true;
        };
        // Whoever is let in where a place is kept may be so by what the time is.
        self.has_come_free_since(id, judged) || self.backfill.told().next().is_some()
    }

    pub(super) fn has_come_free_since(&self, id: GangId, judged: Judged) -> bool {
        let nodes = judged.moment.nodes();
        judged.freed != self.freed_for(id)
            || self.cluster.grown_since(nodes).next().is_some()
            || self.cluster.topologies_changed_since(nodes)
    }

    /// Somebody had a turn. Where others began to give way by that, more may be free once all victims are gone than their preemptor takes;
    /// and in a strict order somebody else may be first now, as may be where somebody stands in line no longer. Whether somebody for whom something is kept may have room by
    /// that: it is judged before anybody else has a turn. Else it would be so only if a commit happened to end here, and otherwise
    /// somebody behind it would take what it could have, and its victims go for nothing.
    pub(super) fn frees_room_by_turn(&mut self, work: &mut Work) -> bool {
        if work.is_enough() {
            return false;
        }
        self.reservations.is_any_to_judge_again = false;
        let moment = self.moment();
        let unsettled = self.reservations.unsettled(moment);
        let unsettled = unsettled.filter_map(|(uid, is_released)| {
            let id = self.waiting.id(uid)?;
            let judged = self.reservations.of(uid)?.judged;
            let is_helped = judged.is_none_or(|judged| self.has_come_free_since(id, judged));
            is_helped.then(|| (uid.clone(), id, is_released))
        });
        let unsettled: Vec<(GangUid, GangId, bool)> = unsettled.collect();
        for (uid, id, is_released) in unsettled {
            let has_room = if is_released {
                // Nobody's turn makes a place on a node, for whom that is all that lacks.
                self.with_quota_now(id)
                    .is_some_and(|(_, _, kept)| !kept.lacks_place_alone)
            } else {
                self.finds_room_elsewhere(id, work)
            };
            if has_room {
                return true;
            }
            if !is_released {
                let judged = self.judged_now(id);
                self.reservations.note_judged(&uid, judged);
            }
        }
        false
    }

    /// A gang, its Team and what is kept for it, if nothing stands in its way by now and what is kept is not charged to anybody any more.
    fn with_quota_now(&self, id: GangId) -> Option<(&WaitingGang, NodeId, &Reservation)> {
        let waiting = self.waiting.get(id)?;
        let node = self.teams.get(waiting.team)?.node?;
        let kept = self.reservations.of(&waiting.gang.uid)?;
        let has_quota =
            waiting.obstacle().is_none() && has_quota(&self.moments.now, node, &kept.charges);
        has_quota.then_some((waiting, node, kept))
    }

    /// Everybody had its turn. If searches in vain had taken enough by then, those were not asked for whom something is kept and that may
    /// have room since others began to give way: they are judged by the next call, though nothing is observed until then.
    pub(super) fn note_freed_by_turns(&mut self) {
        let moment = self.moment();
        let reservations = &self.reservations;
        let is_any_helped = reservations.unsettled(moment).any(|(uid, is_released)| {
            let kept = reservations.of(uid);
            let judged = kept.and_then(|kept| kept.judged).zip(self.waiting.id(uid));
            !is_released && judged.is_some_and(|(judged, id)| self.has_come_free_since(id, judged))
        });
        self.reservations.is_any_left |= is_any_helped;
    }

    /// A gang is judged as things are now.
    pub(super) fn judged_now(&self, id: GangId) -> Judged {
        Judged {
            moment: self.moment(),
            freed: self.freed_for(id),
        }
    }

    /// How often something has come free in the tree of a gang's Team.
    pub(super) fn freed_for(&self, id: GangId) -> u64 {
        let root = self.waiting.get(id).and_then(|it| self.root_of(it.team));
        root.map_or(0, |root| self.moments.freed(root))
    }

    /// Judges a gang as if nothing were kept for it, and keeps it again if it has to wait still.
    fn settle(
        &mut self,
        id: GangId,
        is_released: bool,
        budget: &Budget,
        left: &mut CommitRoom,
        decisions: &mut Decisions,
        work: &mut Work,
    ) -> Settled {
        // It is to be admitted as soon as nothing is kept for it any more; how many nodes it needs then is not known.
        let Some(needs) = self.needs(id) else {
            return Settled::Over;
        };
        let most = CommitRoom {
            nodes: needs.pods,
            ..needs
        };
        if !left.holds(&most) && *left != budget.empty {
            return Settled::NextCommit;
        }
        let kept = self.give_up_reservation(id);
        self.wake_class_of(id);
        let waiting = self.waiting.get(id);
        let class = waiting.and_then(|it| it.class);
        let has_obstacle = waiting.is_some_and(|it| it.obstacle().is_some());
        let Some(kept) = kept else {
            return Settled::Over;
        };
        let Some(class) = class else {
            // Something stands in its way for now that is not room.
            if has_obstacle || !is_released {
                self.reserve(id, kept);
                return Settled::Kept;
            }
            return Settled::Over;
        };
        self.settle_before(id);
        // While its victims hold theirs still, it is they who leave its Team no nominal quota.
        let judged = if is_released {
            self.judge_as_charged_ahead(class, id, work)
        } else {
            self.judge(class, id, work)
        };
        let fitting = match judged {
            Ok(fitting) => fitting,
            Err(refusals) => {
                if !is_released || self.fits_afterwards_at(id, &kept) {
                    let lacks_place_alone = lack_place_alone(&refusals);
                    let kept = Reservation {
                        lacks_place_alone,
                        ..kept
                    };
                    self.reserve(id, kept);
                    return Settled::Kept;
                }
                return Settled::Over;
            }
        };
        let fitting = self.grow(id, fitting, &budget.empty, work);
        let Some(needs) = self.needs_of(id, &fitting) else {
            return Settled::Over;
        };
        if left.holds(&needs) {
            *left = left.less(&needs);
            if let Some(admission) = self.admit(id, &fitting) {
                self.reservations.note_admitted(&admission.gang, kept);
                decisions.admissions.push(admission);
            }
        } else if budget.empty.holds(&needs) {
            self.reserve(id, kept);
            return Settled::NextCommit;
        }
        Settled::Over
    }

    /// Judges a gang for what it was charged ahead until now.
    fn judge_as_charged_ahead(
        &mut self,
        class: ClassId,
        id: GangId,
        work: &mut Work,
    ) -> Result<Fitting, Vec<Refusing>> {
        self.note_charged_ahead(id, true);
        let judged = self.judge(class, id, work);
        self.note_charged_ahead(id, false);
        judged
    }

    pub(super) fn note_charged_ahead(&mut self, id: GangId, was: bool) {
        if let Some(waiting) = self.waiting.get_mut(id) {
            waiting.was_charged_ahead = was;
        }
    }

    /// Whether a gang has quota and a place though its victims hold theirs still: on other nodes than those that are kept, its own
    /// included, and with those victims charged that would stay. Nothing changes by the question.
    fn finds_room_elsewhere(&mut self, id: GangId, work: &mut Work) -> bool {
        let Some((waiting, node, kept)) = self.with_quota_now(id) else {
            return false;
        };
        let shape = waiting.shape;
        let (flavor, charges) = (kept.flavor.clone(), kept.charges.clone());
        let stay = self.reservations.only_victims_of(&waiting.gang.uid);
        let stay: Vec<Delta> = stay
            .iter()
            .flat_map(|victim| self.charges_of(victim))
            .collect();
        let tree = &mut self.moments.afterwards;
        tree.apply(&undoing(&charges), |_, _, _| {});
        tree.apply(&stay, |_, _, _| {});
        let has_quota = has_quota(tree, node, &charges);
        tree.apply(&undoing(&stay), |_, _, _| {});
        tree.apply(&charges, |_, _, _| {});
        if !has_quota {
            return false;
        }
        let before = self.cluster.visited();
        let mut effort = Effort::default();
        let placed = self.place_unless_refused(
            shape,
            id,
            Some(&flavor),
            &View::Now,
            &mut effort,
            &mut work.visited,
        );
        if placed.is_err() {
            work.note_in_vain(&self.cluster, before);
        }
        placed.is_ok()
    }

    /// Whether a gang for which nothing is kept any more has quota and a place, wherever it is, once the victims of others
    /// are gone, and what its own have left behind. Without any of it, it has not: it was judged already.
    fn fits_afterwards_at(&self, id: GangId, kept: &Reservation) -> bool {
        let leftovers = self.leftovers_of(kept);
        let is_any_left = !leftovers.is_empty() || self.cluster.is_any_tied_on(&kept.nodes);
        if !is_any_left && self.reservations.victims().next().is_none() {
            return false;
        }
        let waiting = self.waiting.get(id);
        let entry = waiting.and_then(|waiting| self.teams.get(waiting.team));
        let Some((waiting, entry)) = waiting.zip(entry) else {
            return false;
        };
        let Some(node) = entry.node else { return false };
        let tree = &self.moments.afterwards;
        if !has_quota(tree, node, &kept.charges) {
            return false;
        }
        let gone: BTreeMap<PodUid, &Hold> =
            self.going().map(|hold| (hold.pod.clone(), hold)).collect();
        let visits = gone.len() + kept.nodes.len();
        self.cluster.note_visits(visits as u64);
        let view = self
            .cluster
            .without_leftovers(&gone, &kept.nodes, &leftovers);
        let mut flavors = entry.assignments.iter().map(|it| &it.flavor);
        let flavor = flavors.find(|flavor| {
            let mut charges = kept.charges.iter();
            charges.any(|delta| delta.of.flavor == **flavor)
        });
        let flavor = flavor.and_then(|name| self.flavors.get(name));
        let request = request(waiting, flavor);
        let verdict = plan(&self.cluster, &view, &request, &mut Effort::default());
        matches!(verdict, Verdict::Placed(_))
    }

    /// Claims that have devices on the nodes that are kept though nobody holds them: those that its victims held, and all that nobody
    /// who waits names. What a gang holds is gone as soon as its driver says so; its claims are deallocated once its pods are gone
    /// as objects, too. So is one that gangs share by name. The next attempt of a victim names it again, needs nothing else, and
    /// would have it back at once if nothing were kept any more, and give way again, time after time. What somebody who waits
    /// names and no victim held was made in advance: nobody gives it back.
    fn leftovers_of<'a>(&'a self, kept: &'a Reservation) -> BTreeSet<&'a ClaimUid> {
        let claims = self.cluster.claims_on(&kept.nodes);
        let is_left = |claim: &&ClaimUid| {
            let was_theirs = kept.claims.contains(*claim);
            let may_go = was_theirs || self.waiting.naming(claim).next().is_none();
            may_go && self.charges.holders(claim) == 0
        };
        claims.filter(is_left).collect()
    }
}

/// Whether a gang was refused on every Flavor since there is no place.
fn lack_place_alone(refusals: &[Refusing]) -> bool {
    let is_place = |refusing: &Refusing| {
        matches!(
            refusing,
            Refusing::NoPlace { .. } | Refusing::TooFewDevices(_)
        )
    };
    !refusals.is_empty() && refusals.iter().all(is_place)
}

/// Whether so much is available to a Team.
fn has_quota(tree: &QuotaTree, node: NodeId, charges: &[Delta]) -> bool {
    charges.iter().all(|delta| {
        let pair = tree.known_pair(&delta.of);
        let available = pair.map(|pair| tree.available_at(node, pair));
        available.is_some_and(|available| delta.amount <= i128::from(available.0))
    })
}
