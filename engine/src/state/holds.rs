//! What is held: its charge, its place on a node, and whom it wakes when it goes.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    State,
    ids::GangId,
    waiting::{HeldClaims, WaitingGang},
};
use crate::{
    model::{Gang, Hold},
    names::{ClaimUid, PodUid},
    quota::charges::HolderChange,
};

impl State {
    /// The cluster told what a pod holds: it is no longer only this engine's word.
    pub(super) fn set_told_hold(&mut self, hold: Hold) {
        if let Some(pods) = self.provisional.get_mut(&hold.gang) {
            pods.remove(&hold.pod);
            if pods.is_empty() {
                self.provisional.remove(&hold.gang);
                self.reservations.note_committed(&hold.gang);
                self.keeps.note_committed(&hold.gang);
                self.namespaces.commit(&hold.gang);
            }
        }
        self.note_held_again(&hold);
        let known = self.holds.get(&hold.pod);
        let leaves_account = |known: &&Arc<Hold>| hold.charged_to_node && !known.charged_to_node;
        let known = known.filter(leaves_account).cloned();
        self.set_hold(hold);
        if let Some(known) = known {
            self.keep_released(&known);
        }
    }

    pub(super) fn set_hold(&mut self, hold: Hold) {
        if let Some(known) = self.holds.get(&hold.pod).cloned() {
            if *known == hold {
                return;
            }
            if is_charged_alike(&known, &hold) {
                self.replace_hold(&known, hold);
                return;
            }
        }
        // What is told anew is not released, whatever it is charged now.
        let before = self.take_hold(&hold.pod);
        let hold = Arc::new(hold);
        let changes = self.charges.add(&hold);
        self.change_tree(&changes.deltas);
        self.namespaces.note_held(&changes.deltas);
        self.cluster.add_hold(&hold);
        if hold.releasing && !hold.charged_to_node {
            self.releasing.insert(hold.pod.clone());
            self.releasing_changed = true;
        }
        self.running.note_hold(&hold.gang, &hold.pod);
        self.holds.insert(hold.pod.clone(), Arc::clone(&hold));
        if let Some(id) = self.waiting.of_pod(&hold.pod)
            && let Some(waiting) = self.waiting.get_mut(id)
        {
            waiting.pods_that_hold += 1;
            if waiting.pods_that_hold == 1 {
                // It is admitted, by whomever: nothing is kept for it beside what it holds.
                self.unpark(id);
                self.end_head_reservation(&hold.gang, true);
                self.give_up_reservation(id);
                self.drop_out(id);
            }
        }
        self.note_earlier_pod(&hold, true);
        if let Some(before) = before
            && self.running.is_released(&before.gang)
        {
            self.note_released(&before.gang);
        }
        self.note_going(&hold.pod);
        self.note_unseen(&hold.pod);
        self.note_holders(changes.holders);
    }

    /// What is known of a hold changed, its charge did not: nobody but its node is concerned.
    fn replace_hold(&mut self, known: &Hold, hold: Hold) {
        let hold = Arc::new(hold);
        self.cluster.replace_hold(known, &hold);
        let releasing = hold.releasing && !hold.charged_to_node;
        let changed = if releasing {
            self.releasing.insert(hold.pod.clone())
        } else {
            self.releasing.remove(&hold.pod)
        };
        self.releasing_changed |= changed;
        if changed {
            self.note_shrinking_below(&hold.team);
        }
        let pod = hold.pod.clone();
        self.holds.insert(pod.clone(), hold);
        self.note_going(&pod);
        self.note_unseen(&pod);
    }

    /// A hold is gone. One that only this engine knows of cannot be: what says so speaks of an earlier one.
    pub(super) fn remove_told_hold(&mut self, pod: &PodUid) {
        let gang = self.holds.get(pod).map(|hold| &hold.gang);
        let provisional = gang.and_then(|gang| self.provisional.get(gang));
        if !provisional.is_some_and(|pods| pods.contains(pod)) {
            let known = self.holds.get(pod).cloned();
            self.remove_hold(pod);
            if let Some(known) = known {
                self.keep_released(&known);
            }
        }
    }

    pub(super) fn remove_hold(&mut self, pod: &PodUid) {
        if let Some(hold) = self.take_hold(pod)
            && self.running.is_released(&hold.gang)
        {
            self.note_released(&hold.gang);
        }
    }

    /// A pod holds nothing any more, or something else from now on.
    fn take_hold(&mut self, pod: &PodUid) -> Option<Arc<Hold>> {
        let hold = self.holds.remove(pod)?;
        self.running.note_hold_gone(&hold.gang, pod);
        let changes = self.charges.remove(&hold);
        self.change_tree(&changes.deltas);
        self.cluster.remove_hold(&hold);
        self.note_going(pod);
        self.note_unseen(pod);
        if self.releasing.remove(pod) {
            self.releasing_changed = true;
        }
        self.note_holders(changes.holders);
        if let Some(id) = self.waiting.of_pod(pod)
            && let Some(waiting) = self.waiting.get_mut(id)
        {
            waiting.pods_that_hold = waiting.pods_that_hold.saturating_sub(1);
            if waiting.pods_that_hold == 0 {
                self.line_up(id);
                self.park(id);
            }
        }
        self.note_earlier_pod(&hold, false);
        Some(hold)
    }

    /// A pod began or ceased to hold something: if it is of an earlier attempt of a gang that waits, that stands in the way.
    fn note_earlier_pod(&mut self, hold: &Hold, holds: bool) {
        // What is kept for it does not.
        if self.keeps.is_kept(&hold.pod) {
            return;
        }
        let id = self.waiting.id(&hold.gang);
        if let Some(id) = id.filter(|id| self.waiting.of_pod(&hold.pod) != Some(*id)) {
            let is_released = self.running.is_released(&hold.gang);
            self.change_obstacle(id, |waiting| {
                count(&mut waiting.earlier_pods, holds);
                if is_released {
                    waiting.earlier_pods = 0;
                }
            });
        }
    }

    /// How many pods hold something for a gang that are not its own any more.
    pub(super) fn earlier_pods(&self, gang: &Gang) -> usize {
        let held = self.running.pods_of(&gang.uid).count();
        if held == 0 {
            return 0;
        }
        let own: BTreeSet<&PodUid> = gang.pods.iter().map(|pod| &pod.uid).collect();
        let held = self.running.pods_of(&gang.uid);
        held.filter(|pod| !own.contains(pod) && !self.keeps.is_kept(pod))
            .count()
    }

    /// Gangs began or ceased to hold claims: who names these may have an obstacle now, or none any more.
    fn note_holders(&mut self, changes: Vec<HolderChange>) {
        for change in changes {
            let naming: Vec<GangId> = self.waiting.naming(&change.claim).collect();
            for id in naming {
                self.note_holder(id, &change);
            }
            // Who shared it with others freed nothing of it by going; who is left alone does.
            if !change.holds
                && let Some(gang) = self.charges.only_holder(&change.claim).cloned()
            {
                self.note_can_be_asked(&gang);
            }
        }
    }

    fn note_holder(&mut self, id: GangId, change: &HolderChange) {
        let Some(waiting) = self.waiting.get(id) else {
            return;
        };
        let others =
            change.holders - usize::from(self.charges.is_held_by(&change.claim, &waiting.gang.uid));
        self.change_obstacle(id, |waiting| {
            if waiting.gang.uid == change.gang {
                count(&mut waiting.held_claims.by_itself, change.holds);
            } else if others == usize::from(change.holds) {
                // The first other gang came, or the last one went.
                count(&mut waiting.held_claims.by_others, change.holds);
            }
        });
    }

    /// What stands in the way of a gang may be something else.
    fn change_obstacle(&mut self, id: GangId, change: impl FnOnce(&mut WaitingGang)) {
        let Some(waiting) = self.waiting.get_mut(id) else {
            return;
        };
        let before = waiting.obstacle();
        change(waiting);
        let (after, holds) = (waiting.obstacle(), waiting.pods_that_hold > 0);
        // A gang that holds something is seated when it does so no longer.
        if before != after && !holds {
            let led = self.unseat(id);
            self.ask_next(led);
            self.changed_gangs.insert(id);
            self.seat(id);
            if let Some(waiting) = self.waiting.get(id) {
                self.reservations.judge_again(&waiting.gang.uid);
                self.keeps.judge_again(&waiting.gang.uid, id);
            }
        }
    }

    /// How many of the claims that a gang names are held.
    pub(super) fn held_claims(&self, gang: &Gang) -> HeldClaims {
        let claims = gang.pods.iter().flat_map(|pod| &pod.claims);
        let claims: BTreeSet<&ClaimUid> = claims.map(|claim| &claim.uid).collect();
        let mut held = HeldClaims::default();
        for claim in claims {
            let own = self.charges.is_held_by(claim, &gang.uid);
            held.by_itself += usize::from(own);
            held.by_others += usize::from(self.charges.holders(claim) > usize::from(own));
        }
        held
    }

    /// Teams below a node may borrow from less far up than they are listed by.
    pub(super) fn list_again_below(&mut self, node: crate::quota::NodeId) {
        let names: Vec<_> = self.tree.teams_below(node).into_iter().cloned().collect();
        for name in names {
            if let Some(id) = self.team_ids.get(&name).copied()
                && self.teams.get(id).is_some_and(|team| team.listed)
            {
                self.list(id, true);
            }
        }
    }
}

/// Whether the same is charged to the same Team for the same gang, on the same node: claims are charged by node.
fn is_charged_alike(one: &Hold, other: &Hold) -> bool {
    let claims = |hold: &Hold| -> Vec<_> {
        let claims = hold.claims.iter();
        claims
            .map(|claim| {
                let charge = (claim.gpus, claim.vram);
                (claim.uid.clone(), claim.flavor.clone(), charge)
            })
            .collect()
    };
    one.gang == other.gang
        && one.gang_name == other.gang_name
        && one.team == other.team
        && one.node == other.node
        && one.charged_to_node == other.charged_to_node
        && one.charged == other.charged
        && claims(one) == claims(other)
}

/// Counts one in or out.
fn count(of: &mut usize, comes: bool) {
    *of = if comes { *of + 1 } else { of.saturating_sub(1) };
}
