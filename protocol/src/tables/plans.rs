//! Plans by Gang, by pod and by node: those that the Ledger commits and those that Gangs carry.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_api::{Gang, IntentKind, LedgerSpec};

use crate::{
    admission::{plan::Plan, record},
    links::Links,
};
use muster_cluster::formed::GangKey;

/// An intent of the Ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Committed {
    /// Epoch of the leader that added it.
    pub(crate) leader_epoch: i64,
    /// What it is about.
    pub(crate) kind: IntentKind,
    /// What it commits.
    pub(crate) plan: Arc<Plan>,
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

    /// Reads the Ledger, if it is another than the one read last; returns the Gangs whose intent is another now.
    pub(crate) fn read_ledger(
        &mut self,
        version: Option<&str>,
        spec: Option<&LedgerSpec>,
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
            // What an intent says never changes: it comes and goes whole.
            let committed = known.cloned().unwrap_or_else(|| Committed {
                leader_epoch: intent.leader_epoch,
                kind: intent.kind,
                plan: Arc::new(record::of_intent(intent)),
            });
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
            let before = match after {
                Some(after) => {
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
    pub(crate) fn read_gang(&mut self, key: &GangKey, gang: Option<&Gang>) -> Option<Arc<Plan>> {
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
                let same = self.carried(key).filter(|known| ***known == after).cloned();
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
