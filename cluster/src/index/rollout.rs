//! Telling nodes about new rules, a bounded number of nodes at a time.
//!
//! A rule about nodes or a selector of devices that nobody used before may concern every node. It waits, with the gangs that
//! use it and with nobody else, until it is judged ([`super::judging`]) and all nodes have been looked at: at most
//! [`NODES_PER_REFRESH`] per refresh. Rules that come meanwhile wait for the next round together, so any number of new rules
//! costs at most one walk at a time.

use std::{collections::BTreeSet, mem, ops::Bound};

use muster_engine::{NodeFilterId, SelectorId};

use super::{Index, NamespacedName};
use crate::gangs::PodRequest;

/// Most nodes that one refresh looks at for the sake of new rules: a millisecond or two.
pub(super) const NODES_PER_REFRESH: usize = 64;

/// Rules that not all nodes have been told about.
#[derive(Debug, Default)]
pub(super) struct Rollout {
    round: Rules,
    /// The last node of the round that was looked at.
    after: Option<String>,
    /// Whether the last node of the round was looked at.
    is_last: bool,
    next: Rules,
}

/// Rules about nodes and devices.
#[derive(Debug, Default)]
struct Rules {
    filters: BTreeSet<NodeFilterId>,
    selectors: BTreeSet<SelectorId>,
}

impl Rules {
    fn is_empty(&self) -> bool {
        self.filters.is_empty() && self.selectors.is_empty()
    }
}

impl Rollout {
    pub(super) fn add_filter(&mut self, filter: NodeFilterId) {
        self.next.filters.insert(filter);
    }

    pub(super) fn add_selector(&mut self, selector: SelectorId) {
        self.next.selectors.insert(selector);
    }

    fn has_filter(&self, filter: NodeFilterId) -> bool {
        self.round.filters.contains(&filter) || self.next.filters.contains(&filter)
    }

    fn has_selector(&self, selector: SelectorId) -> bool {
        self.round.selectors.contains(&selector) || self.next.selectors.contains(&selector)
    }
}

impl Index {
    /// Whether every node knows the rules of the request.
    pub(super) fn is_settled(&self, request: &PodRequest) -> bool {
        let mut selectors = request
            .pod
            .claims
            .iter()
            .flat_map(|claim| &claim.requests)
            .flat_map(|request| &request.choices)
            .map(|choice| choice.selector);
        !self.rollout.has_filter(request.pod.filter)
            && selectors.all(|id| !self.rollout.has_selector(id))
    }

    /// Whether the rules were judged, and every node knows them.
    pub(super) fn is_told_to_nodes(&self, filter: NodeFilterId) -> bool {
        self.filters.is_judged(filter) && !self.rollout.has_filter(filter)
    }

    /// Whether there are nodes to go on with.
    pub(super) fn has_rollout(&self) -> bool {
        let next = &self.rollout.next;
        let mut filters = next.filters.iter();
        let mut selectors = next.selectors.iter();
        !self.rollout.round.is_empty()
            || filters.any(|id| self.filters.is_judged(*id))
            || selectors.any(|id| self.selectors.is_judged(*id))
    }

    /// Goes on with the round: looks at as many nodes as are left, and returns those that a new rule concerns. In the order
    /// of their names, so that none is skipped.
    pub(super) fn advance_rollout(&mut self, looks: &mut usize) -> Vec<String> {
        if self.rollout.round.is_empty() {
            // What is still being judged waits for the next round.
            let next = mem::take(&mut self.rollout.next);
            let (selectors, waiting) = next
                .selectors
                .into_iter()
                .partition(|id| self.selectors.is_judged(*id));
            self.rollout.next.selectors = waiting;
            let (filters, waiting) = next
                .filters
                .into_iter()
                .partition(|id| self.filters.is_judged(*id));
            self.rollout.next.filters = waiting;
            self.rollout.round = Rules { filters, selectors };
            self.rollout.after = None;
        }
        if self.rollout.round.is_empty() {
            return Vec::new();
        }
        let after = self.rollout.after.as_ref();
        let range = (
            after.map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Unbounded,
        );
        let nodes = self.objects.nodes.items().range::<String, _>(range);
        let batch: Vec<&String> = nodes.map(|(name, _)| name).take(*looks).collect();
        self.rollout.is_last = batch.len() < *looks;
        *looks -= batch.len();
        let last = batch.last().map(|name| (*name).clone());
        let concerned = batch.into_iter().filter(|name| self.is_concerned(name));
        let concerned: Vec<String> = concerned.cloned().collect();
        if last.is_some() {
            self.rollout.after = last;
        }
        concerned
    }

    /// Ends the round if all nodes have been looked at, and made again where a rule concerns them.
    pub(super) fn finish_rollout(&mut self) {
        if !mem::take(&mut self.rollout.is_last) {
            return;
        }
        let done = mem::take(&mut self.rollout.round);
        for id in &done.selectors {
            self.selectors.set_told(*id, &self.device_kinds);
        }
        self.touch_users_of(&done);
    }

    fn is_concerned(&self, node: &str) -> bool {
        let round = &self.rollout.round;
        let mut filters = round.filters.iter();
        filters.any(|id| self.views.passes(node, *id))
            || self.views.devices(node).iter().any(|device| {
                let mut selectors = round.selectors.iter();
                selectors.any(|id| self.selectors.concerns(*id, &device.published))
            })
    }

    fn touch_users_of(&mut self, rules: &Rules) {
        let pods: Vec<String> = rules
            .filters
            .iter()
            .flat_map(|filter| self.pods_by_filter.of(filter))
            .cloned()
            .collect();
        for uid in pods {
            if let Some(pod) = self.our_pod_by_uid(&uid) {
                let key = NamespacedName::of_pod(&pod.object);
                let gang = self.membership.gang_of(&key).cloned();
                self.touched.gangs.extend(gang);
            }
        }
        self.forget_requests_with(&rules.selectors);
    }
}
