//! Plans by Gang, by pod and by node: those that the Ledger commits and those that Gangs carry.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_api::{Gang, Intent, IntentKind, LedgerSpec};

use crate::{
    admission::{plan::Plan, record},
    injected_bug::InjectedBugs,
};
use muster_cluster::{formed::GangKey, links::Links};

/// An intent of the Ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Committed {
    /// Epoch of the leader that added it.
    pub(crate) leader_epoch: i64,
    /// What it is about.
    pub(crate) kind: IntentKind,
    /// What it commits. Of one whose proposal is gone, only its nodes are known.
    pub(crate) plan: Arc<Plan>,
    /// Whether it names a proposal instead of saying what it commits.
    pub(crate) is_proposed: bool,
    /// Bytes that it takes of the Ledger.
    pub(crate) bytes: usize,
    /// The intent, while nobody knows what it commits: its Gang does not carry the proposal that it names.
    pub(crate) lost: Option<Arc<Intent>>,
}

impl Committed {
    fn read(intent: &Intent, gang: Option<&Gang>, bugs: InjectedBugs) -> Self {
        let found = record::of_intent(intent, gang);
        let lost = found.is_none().then(|| Arc::new(intent.clone()));
        let plan = found.unwrap_or_else(|| record::of_lost_intent(intent, bugs));
        Self {
            leader_epoch: intent.leader_epoch,
            kind: intent.kind,
            plan: Arc::new(plan),
            is_proposed: intent.digest.is_some(),
            bytes: record::bytes(intent) + 1,
            lost,
        }
    }
}

/// The plans that are known.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    committed: BTreeMap<GangKey, Committed>,
    /// With the resourceVersion of the Gang that they were read from.
    carried: BTreeMap<GangKey, (Option<String>, Arc<Plan>)>,
    by_pod: Links<String, GangKey>,
    by_node: Links<String, GangKey>,
    ledger_version: Option<String>,
    /// Gangs with an intent of which nobody knows what it commits.
    lost: BTreeSet<GangKey>,
}

impl Plans {
    /// The intent about a Gang, by its name: one that was made again must not be touched while an intent of its
    /// predecessor is in the Ledger.
    pub(crate) fn committed(&self, key: &GangKey) -> Option<&Committed> {
        self.committed.get(key)
    }

    /// All intents, by Gang.
    pub(crate) fn all_committed(&self) -> impl Iterator<Item = (&GangKey, &Committed)> {
        self.committed.iter()
    }

    /// The plan that a Gang carries.
    pub(crate) fn carried(&self, key: &GangKey) -> Option<&Arc<Plan>> {
        self.carried.get(key).map(|(_, plan)| plan)
    }

    /// The plans that all Gangs carry, by Gang.
    pub(crate) fn all_carried(&self) -> impl Iterator<Item = &Arc<Plan>> {
        self.carried.values().map(|(_, plan)| plan)
    }

    /// Gangs with a plan for the pod.
    pub(crate) fn of_pod(&self, uid: &str) -> impl Iterator<Item = &GangKey> {
        self.by_pod.of(uid)
    }

    /// Gangs with a plan that names the node.
    pub(crate) fn on_node(&self, node: &str) -> impl Iterator<Item = &GangKey> {
        self.by_node.of(node)
    }

    /// Whether nobody knows what some intent commits, and so what it charges.
    pub(crate) fn is_any_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Gangs with such an intent that names the node. Its pods are those that permits there name.
    pub(crate) fn lost_on_node(&self, node: &str) -> impl Iterator<Item = &GangKey> {
        let lost = |key: &&GangKey| self.lost.contains(*key);
        self.on_node(node).filter(lost)
    }

    /// Reads the Ledger, if it is another than the one read last; returns the Gangs whose intent is another now.
    pub(crate) fn read_ledger<'a>(
        &mut self,
        version: Option<&str>,
        spec: Option<&LedgerSpec>,
        gang: impl Fn(&GangKey) -> Option<&'a Gang>,
        bugs: InjectedBugs,
    ) -> BTreeSet<GangKey> {
        if self.ledger_version.as_deref() == version && version.is_some() {
            return BTreeSet::new();
        }
        self.ledger_version = version.map(str::to_owned);
        let mut intents = BTreeMap::new();
        for intent in spec.iter().flat_map(|spec| &spec.intents) {
            let key = crate::objects::gang_key(intent);
            let known = self.committed.get(&key).filter(|known| {
                known.plan.gang_uid == intent.gang_uid
                    && known.plan.attempt == intent.attempt
                    && known.plan.sequence == intent.sequence
                    && known.leader_epoch == intent.leader_epoch
                    && known.kind == intent.kind
            });
            // What an intent says never changes: it comes and goes whole. So what it commits is known for good once its
            // proposal was seen.
            let committed = known
                .cloned()
                .unwrap_or_else(|| Committed::read(intent, gang(&key), bugs));
            // The first counts, should two name the same Gang.
            intents.entry(key).or_insert(committed);
        }
        let keys: BTreeSet<GangKey> = self
            .committed
            .keys()
            .chain(intents.keys())
            .cloned()
            .collect();
        let mut changed = BTreeSet::new();
        for key in keys {
            let after = intents.remove(&key);
            if self.committed.get(&key) == after.as_ref() {
                continue;
            }
            self.lost.remove(&key);
            let before = match after {
                Some(after) => {
                    if after.lost.is_some() {
                        self.lost.insert(key.clone());
                    }
                    self.link(&after.plan.clone());
                    self.committed.insert(key.clone(), after)
                }
                None => self.committed.remove(&key),
            };
            if let Some(before) = before {
                self.unlink(&before.plan);
            }
            changed.insert(key);
        }
        changed
    }

    /// Reads what a Gang carries now; returns what it carried before, if that is another plan.
    pub(crate) fn read_gang(
        &mut self,
        key: &GangKey,
        gang: Option<&Gang>,
        bugs: InjectedBugs,
    ) -> Option<Arc<Plan>> {
        self.look_for_proposal(key, gang, bugs);
        let version = gang.and_then(|gang| gang.metadata.resource_version.clone());
        if version.is_some()
            && self
                .carried
                .get(key)
                .is_some_and(|known| known.0 == version)
        {
            return None;
        }
        let after = gang.and_then(|gang| record::of_gang(key, gang));
        let before = match after {
            Some(after) => {
                // What is carried is what was committed: both are one.
                let committed = self.committed.get(key).map(|intent| &intent.plan);
                let mut known = self.carried(key).into_iter().chain(committed);
                let same = known.find(|known| ***known == after).cloned();
                let plan = same.unwrap_or_else(|| Arc::new(after));
                self.link(&plan);
                self.carried.insert(key.clone(), (version, plan))
            }
            None => self.carried.remove(key),
        };
        let (_, before) = before?;
        let changed = self.carried(key) != Some(&before);
        if changed {
            self.unlink(&before);
        }
        changed.then_some(before)
    }

    /// Whether the Gang carries by now what an intent about it commits: watches of several kinds come in any order.
    fn look_for_proposal(&mut self, key: &GangKey, gang: Option<&Gang>, bugs: InjectedBugs) {
        if !self.lost.contains(key) {
            return;
        }
        let Some(intent) = self.committed(key).and_then(|it| it.lost.clone()) else {
            return;
        };
        let found = Committed::read(&intent, gang, bugs);
        if found.lost.is_none() {
            self.lost.remove(key);
            self.link(&found.plan.clone());
            self.committed.insert(key.clone(), found);
        }
    }

    fn link(&mut self, plan: &Plan) {
        for rank in &plan.ranks {
            self.by_pod.link(rank.pod.clone(), plan.key.clone());
        }
        for node in plan.nodes() {
            self.by_node.link(node.clone(), plan.key.clone());
        }
    }

    /// Takes the links of a plan away that none of the Gang's other plans has.
    fn unlink(&mut self, plan: &Plan) {
        for rank in &plan.ranks {
            self.by_pod.unlink(rank.pod.as_str(), &plan.key);
        }
        for node in plan.nodes() {
            self.by_node.unlink(node.as_str(), &plan.key);
        }
        let committed = self.committed(&plan.key).map(|it| Arc::clone(&it.plan));
        let carried = self.carried(&plan.key).cloned();
        for other in committed.into_iter().chain(carried) {
            self.link(&other);
        }
    }
}
