//! Who is let in where a place is kept for another gang, and what they are asked and told by that.

use std::collections::{BTreeMap, BTreeSet};

use super::{end_after, kept::Kept, rank};
use crate::{
    decision::Why,
    names::{FlavorName, NodeName},
    placement::{Effort, Fits, Refusal, View, fits, may_fit_since},
    state::{State, judge::request, waiting::WaitingGang, waits::Group, work::Work},
};

impl State {
    /// Whether a gang may be planned where a place is kept for another one, or for itself.
    fn may_enter(&self, kept: &Kept, waiting: &WaitingGang) -> bool {
        let gang = &waiting.gang;
        if gang.uid == kept.told.gang || gang.priority > kept.rank.priority {
            return true;
        }
        let now = self.backfill.now;
        let by = |seconds: Option<u64>| {
            let ends = seconds.map(|seconds| end_after(now, seconds));
            ends.zip(kept.told.starts_at)
                .is_some_and(|(end, starts)| end <= starts)
        };
        if by(gang.run_time.gone_after_seconds()) {
            return true;
        }
        if waiting.team != kept.team {
            return false;
        }
        let entry = self.teams.get(kept.team);
        if entry.is_some_and(|entry| entry.standing_of(waiting) < kept.standing(entry)) {
            return true;
        }
        let node = entry.and_then(|entry| entry.node);
        let policy = node.map(|node| self.tree.policy_of(node));
        let may_preempt = policy.is_some_and(|it| it.may_preempt(kept.rank, rank(waiting), true));
        let after = gang.run_time.preemptable_after_seconds;
        let gone_after = after.map(|after| after.saturating_add(gang.run_time.ends_within_seconds));
        may_preempt && kept.stays_within_nominal && (after == Some(0) || by(gone_after))
    }

    /// The nodes that are kept and on which a gang may be planned all the same: it is let in, or its own place is kept there for longer.
    pub(in crate::state) fn opened_for(&self, waiting: &WaitingGang) -> BTreeSet<NodeName> {
        let kept = self.backfill.kept.values();
        let open = kept.filter(|kept| self.may_enter(kept, waiting));
        let nodes = open.flat_map(|kept| &kept.told.nodes);
        let own = waiting.has_again.iter().flat_map(|again| &again.nodes);
        let own = own.filter(|node| self.cluster.is_held_back(node));
        nodes.chain(own).cloned().collect()
    }

    /// The Flavors of which a place is kept where a gang may be planned all the same.
    pub(in crate::state) fn lets_in(&self, waiting: &WaitingGang) -> Vec<FlavorName> {
        let kept = self.backfill.kept.iter();
        let open = kept.filter(|(_, kept)| self.may_enter(kept, waiting));
        open.map(|(flavor, _)| flavor.clone()).collect()
    }

    /// What a gang may use that may be planned where places are kept; `None` if it is what all may use.
    pub(in crate::state) fn view_for(&self, waiting: &WaitingGang) -> Option<View> {
        if self.backfill.kept.is_empty() {
            return None;
        }
        let opened = self.opened_for(waiting);
        (!opened.is_empty()).then(|| self.cluster.opened(&opened, &BTreeMap::new()))
    }

    /// Whether what came free since a group closed last, together with what is free where places are kept, may help some member.
    pub(in crate::state) fn may_backfill(&self, group: &Group, work: &mut Work) -> bool {
        let now = self.backfill.now;
        let may_enter = |kept: &&Kept| {
            let ends = group
                .shortest_seconds()
                .map(|seconds| end_after(now, seconds));
            let in_time = ends
                .zip(kept.told.starts_at)
                .is_some_and(|(end, starts)| end <= starts);
            in_time || group.highest > kept.rank.priority || group.has_team(kept.team)
        };
        let kept = self.backfill.kept.values().filter(may_enter);
        let nodes: BTreeSet<NodeName> = kept.flat_map(|kept| &kept.told.nodes).cloned().collect();
        let (cluster, request) = (&self.cluster, group.request());
        if nodes.is_empty() || !cluster.has_changed_since(group.closed.as_of) {
            return false;
        }
        let view = cluster.opened(&nodes, &BTreeMap::new());
        may_fit_since(cluster, &view, &request, group.closed)
            && work.may_help(cluster, |effort: &mut Effort| {
                fits(cluster, &view, &request, effort) != Fits::No
            })
    }

    /// Whether what came free since helps a gang that may be planned where places are kept.
    pub(in crate::state) fn may_help_inside(
        &self,
        waiting: &WaitingGang,
        flavor: Option<&FlavorName>,
        since: Refusal,
    ) -> bool {
        if !self.cluster.has_changed_since(since.as_of) {
            return false;
        }
        let flavor = flavor.and_then(|name| self.flavors.get(name));
        self.view_for(waiting).is_some_and(|view| {
            let request = request(waiting, flavor);
            may_fit_since(&self.cluster, &view, &request, since)
        })
    }

    /// That a gang would have a place if none were kept for others there.
    pub(in crate::state) fn why_held_off(
        &self,
        waiting: &WaitingGang,
        flavor: Option<&FlavorName>,
        effort: &mut Effort,
    ) -> Option<Why> {
        if self.backfill.kept.is_empty() {
            return None;
        }
        let all = self.backfill.told().flat_map(|told| &told.nodes);
        let view = self
            .cluster
            .opened(&all.cloned().collect(), &BTreeMap::new());
        let flavor = flavor.and_then(|name| self.flavors.get(name));
        let request = request(waiting, flavor);
        if fits(&self.cluster, &view, &request, effort) != Fits::Yes {
            return None;
        }
        let shut = self.backfill.kept.values();
        let first = shut
            .filter(|kept| !self.may_enter(kept, waiting))
            .max_by_key(|kept| {
                // The one that would let it in, rather than another.
                (
                    flavor.map(|flavor| &flavor.name) == Some(&kept.told.flavor),
                    kept.told.starts_at,
                )
            })?;
        let now = self.backfill.now;
        Some(Why::HeldOff {
            behind: first.told.gang_name.clone(),
            seconds: first
                .told
                .starts_at
                .map(|at| at.0.saturating_sub(now.0))
                .and_then(|seconds| u64::try_from(seconds).ok())
                .map(|seconds| seconds.saturating_sub(waiting.gang.run_time.ends_within_seconds)),
        })
    }
}
