//! What is kept of what one pod held.

use std::sync::Arc;

use super::keep::{sum_of, take_place};
use crate::{
    model::{Hold, Node},
    names::{GangUid, NodeName, PodUid},
    placement::NodeChange,
    state::State,
};

impl State {
    /// A pod gave back what it held, or its node bears that from now on: it is kept, if its gang recovers.
    pub(in crate::state) fn keep_released(&mut self, known: &Hold) {
        if self.keeps.goes_on(&known.gang, &known.pod) {
            self.keep_part(&known.gang, &known.pod, Some(known));
            // Limits may have changed while it was held.
            let keep = self.keeps.by_gang.get(&known.gang);
            if keep.is_some_and(|keep| keep.held.is_empty()) {
                self.keeps.to_trim.insert(known.gang.clone());
                if self.reservations.note_gone(&known.gang) {
                    self.note_can_be_asked(&known.gang);
                }
            }
        }
    }

    /// Keeps what a pod held. `known`: that was until now; else it is kept as far as it is free.
    pub(super) fn keep_part(&mut self, gang: &GangUid, pod: &PodUid, known: Option<&Hold>) {
        let Some(keep) = self.keeps.by_gang.get_mut(gang) else {
            return;
        };
        keep.held.remove(pod);
        keep.missing.remove(pod);
        let Some(part) = keep.parts.get(pod) else {
            return;
        };
        let mut hold = Hold {
            team: part.team.clone(),
            charged_to_node: false,
            releasing: false,
            ..known.unwrap_or(part).clone()
        };
        // Whoever releases a claim last keeps it.
        let claims = &mut keep.claims;
        hold.claims.retain(|claim| {
            let Some(others) = claims.get_mut(&claim.uid) else {
                return false;
            };
            *others = others.saturating_sub(1);
            *others == 0
        });
        let left = keep.told.left.contains(&hold.node);
        if left || !self.find_place(&mut hold, known.is_none()) {
            take_place(&mut hold);
        }
        if known.is_none() && !self.is_available(&hold) {
            return;
        }
        hold.pod = format!("{pod}/kept").into();
        for claim in &mut hold.claims {
            claim.uid = format!("{}/kept", claim.uid).into();
        }
        self.keep_as(gang, pod, hold);
    }

    /// Whether what a pod held and has released has its place still, and nobody else has it.
    pub(super) fn has_its_place_still(&self, gang: &GangUid, pod: &PodUid) -> bool {
        let keep = self.keeps.by_gang.get(gang);
        let part = keep.and_then(|keep| Some((keep, keep.parts.get(pod)?)));
        part.is_some_and(|(keep, part)| {
            !keep.told.left.contains(&part.node) && self.find_place(&mut part.clone(), true)
        })
    }

    /// Keeps what was kept until its gang was admitted, which came to nothing, as far as it is free.
    pub(super) fn keep_part_again(&mut self, gang: &GangUid, pod: &PodUid, hold: Arc<Hold>) {
        let mut hold = Arc::unwrap_or_clone(hold);
        if !self.find_place(&mut hold, true) {
            take_place(&mut hold);
        }
        if self.is_available(&hold) {
            self.keep_as(gang, pod, hold);
        }
    }

    fn keep_as(&mut self, gang: &GangUid, pod: &PodUid, hold: Hold) {
        self.keeps.pods.insert(hold.pod.clone());
        if let Some(keep) = self.keeps.by_gang.get_mut(gang) {
            keep.kept.insert(pod.clone(), Arc::new(hold.clone()));
        }
        self.set_hold(hold);
    }

    /// Whether the Team may be charged that much more.
    fn is_available(&self, hold: &Hold) -> bool {
        let Some(node) = self.tree.node_of(&hold.team) else {
            return false;
        };
        let sums = sum_of(std::iter::once(hold));
        sums.iter().all(|(of, amount)| {
            let pair = self.tree.known_pair(of);
            let available = pair.map(|pair| self.tree.available_at(node, pair));
            available.is_some_and(|available| *amount <= i128::from(available.0))
        })
    }

    /// A node is as given; what that changes. Who may have what is kept there hears what comes free beneath that, too: its claim is allocated no longer, say.
    /// Else a gang that was asked before would wait until its time is over, beside what it waits for.
    pub(in crate::state) fn set_node(&mut self, node: Node) -> NodeChange {
        let name = node.name.clone();
        let before = self.cluster.free_beneath(&name, &self.keeps.pods);
        let change = self.cluster.set_node(node);
        if let (NodeChange::Free, Some(before)) = (change, before) {
            self.cluster
                .note_free_beneath(&name, &self.keeps.pods, &before);
        }
        change
    }

    /// A node, or what is wrong with its devices, is another: what is kept there may have its place there no longer.
    pub(in crate::state) fn note_kept_on(&mut self, node: &NodeName) {
        if self.keeps.pods.is_empty() {
            return;
        }
        let pods = self.cluster.pods_on(node);
        let kept: Vec<PodUid> = pods
            .filter(|pod| self.keeps.is_kept(pod))
            .cloned()
            .collect();
        for pod in kept {
            let Some(hold) = self.holds.get(&pod).cloned() else {
                continue;
            };
            let mut hold = Arc::unwrap_or_clone(hold);
            if self.find_place(&mut hold, false) {
                continue;
            }
            take_place(&mut hold);
            let keep = self.keeps.by_gang.get_mut(&hold.gang);
            let mut kept = keep.into_iter().flat_map(|keep| keep.kept.values_mut());
            if let Some(kept) = kept.find(|kept| kept.pod == pod) {
                *kept = Arc::new(hold.clone());
            }
            self.set_hold(hold);
        }
    }

    pub(super) fn give_up_part(&mut self, gang: &GangUid, pod: &PodUid) {
        let keep = self.keeps.by_gang.get_mut(gang);
        if let Some(hold) = keep.and_then(|keep| keep.kept.remove(pod)) {
            self.remove_hold(&hold.pod);
            self.keeps.pods.remove(&hold.pod);
        }
    }
}
