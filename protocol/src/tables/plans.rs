//! Plans by Gang, by pod and by node: those that the Ledger commits and those that Gangs carry.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use muster_api::{Gang, Intent, IntentKind, LedgerSpec, Reason, gang::EvictionFault};

use crate::{
    admission::{plan::Plan, record},
    injected_bug::InjectedBugs,
};
use muster_cluster::{formed::GangKey, links::Links, table::Table};

/// An intent of the Ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Committed {
    /// Epoch of the leader that added it.
    pub(crate) leader_epoch: i64,
    /// What it is about.
    pub(crate) kind: IntentKind,
    /// Why the attempt is evicted.
    pub(crate) cause: Option<Reason>,
    /// For which fault, if for one.
    pub(crate) fault: Option<EvictionFault>,
    /// What it commits, or takes back. Of one whose proposal is gone, only its nodes are known.
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
            cause: intent.cause,
            fault: intent.fault.clone(),
            plan: Arc::new(plan),
            is_proposed: intent.digest.is_some(),
            bytes: record::bytes(intent) + 1,
            lost,
        }
    }

    /// Whether it was read from that intent.
    fn is_of(&self, intent: &Intent) -> bool {
        self.plan.gang_uid == intent.gang_uid
            && self.plan.attempt == intent.attempt
            && self.plan.sequence == intent.sequence
            && self.leader_epoch == intent.leader_epoch
            && self.kind == intent.kind
    }
}

/// What intents take of the Ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Bytes.
    pub(crate) bytes: usize,
    /// Intents.
    pub(crate) intents: usize,
}

/// The plans that are known.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    committed: Table<GangKey, Committed>,
    /// The Gangs of these.
    in_ledger: BTreeSet<GangKey>,
    /// Of Admits and of Evicts, which have their own room each: bytes that all of them take of the Ledger, and how many there
    /// are.
    admits: Taken,
    evicts: Taken,
    /// With the resourceVersion of the Gang that they were read from.
    carried: Table<GangKey, (Option<String>, Arc<Plan>)>,
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

    /// All intents, by Gang: for whoever looks at everything.
    pub(crate) fn all_committed(&self) -> impl Iterator<Item = (&GangKey, &Committed)> {
        self.committed.in_order()
    }

    /// What all intents of a kind take of the Ledger.
    pub(crate) fn taken(&self, kind: IntentKind) -> Taken {
        match kind {
            IntentKind::Admit => self.admits,
            IntentKind::Evict => self.evicts,
        }
    }

    fn taken_mut(&mut self, kind: IntentKind) -> &mut Taken {
        match kind {
            IntentKind::Admit => &mut self.admits,
            IntentKind::Evict => &mut self.evicts,
        }
    }

    /// The plan that a Gang carries.
    pub(crate) fn carried(&self, key: &GangKey) -> Option<&Arc<Plan>> {
        self.carried.get(key).map(|(_, plan)| plan)
    }

    /// The plans that all Gangs carry, by Gang: for whoever looks at everything.
    pub(crate) fn all_carried(&self) -> impl Iterator<Item = &Arc<Plan>> {
        self.carried.in_order().map(|(_, (_, plan))| plan)
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

    /// Reads the Ledger, if it is another than the one read last; returns the Gangs whose intent is another now, and the kind of the
    /// one before.
    pub(crate) fn read_ledger<'a>(
        &mut self,
        version: Option<&str>,
        spec: Option<&LedgerSpec>,
        gang: impl Fn(&GangKey) -> Option<&'a Gang>,
        bugs: InjectedBugs,
    ) -> BTreeMap<GangKey, Option<IntentKind>> {
        if self.ledger_version.as_deref() == version && version.is_some() {
            return BTreeMap::new();
        }
        self.ledger_version = version.map(str::to_owned);
        // The first counts, should two name the same Gang.
        let mut intents = HashMap::new();
        for intent in spec.iter().flat_map(|spec| &spec.intents) {
            let name = (intent.namespace.as_str(), intent.name.as_str());
            intents.entry(name).or_insert(intent);
        }
        let (mut changed, mut stand) = (BTreeSet::new(), HashSet::new());
        for key in &self.in_ledger {
            let name = (key.namespace.as_str(), key.name.as_str());
            let intent = intents.get(&name);
            let known = self.committed.get(key);
            // What an intent says never changes: it comes and goes whole. So what it commits is known for good once its
            // proposal was seen.
            if intent.is_some_and(|intent| known.is_some_and(|known| known.is_of(intent))) {
                stand.insert(name);
            } else {
                changed.insert(key.clone());
            }
        }
        let others = intents.iter().filter(|(name, _)| !stand.contains(*name));
        let mut others: BTreeMap<GangKey, &Intent> = others
            .map(|((namespace, name), intent)| (GangKey::new(*namespace, *name), *intent))
            .collect();
        changed.extend(others.keys().cloned());
        let changed = changed.into_iter().map(|key| {
            let after = others.remove(&key);
            let after = after.map(|intent| Committed::read(intent, gang(&key), bugs));
            let before = self.set_committed(&key, after);
            (key, before)
        });
        changed.collect()
    }

    /// Returns the kind of the intent before.
    fn set_committed(&mut self, key: &GangKey, after: Option<Committed>) -> Option<IntentKind> {
        self.lost.remove(key);
        let before = if let Some(after) = after {
            if after.lost.is_some() {
                self.lost.insert(key.clone());
            }
            self.link(&after.plan.clone());
            self.in_ledger.insert(key.clone());
            let taken = self.taken_mut(after.kind);
            taken.bytes += after.bytes;
            taken.intents += 1;
            self.committed.insert(key.clone(), after)
        } else {
            self.in_ledger.remove(key);
            self.committed.remove(key)
        };
        let before = before?;
        let taken = self.taken_mut(before.kind);
        taken.bytes -= before.bytes;
        taken.intents -= 1;
        self.unlink(&before.plan);
        Some(before.kind)
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
            self.set_committed(key, Some(found));
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

#[cfg(test)]
mod tests {
    use muster_api::{IntentPod, NodeRanks};

    use super::*;

    fn intent(number: u32, sequence: i64) -> Intent {
        Intent {
            sequence,
            leader_epoch: 1,
            namespace: "ml".to_owned(),
            name: format!("gang-{}", number % 7),
            gang_uid: format!("uid-{}", number % 14),
            attempt: 1,
            pods: vec![IntentPod {
                uid: format!("pod-{number}"),
                ..IntentPod::default()
            }],
            plan: vec![NodeRanks {
                node: "n0".to_owned(),
                ranks: 1,
                ..NodeRanks::default()
            }],
            ..Intent::default()
        }
    }

    fn read(plans: &mut Plans, version: usize, intents: &[Intent]) -> BTreeSet<GangKey> {
        let spec = LedgerSpec {
            intents: intents.to_vec(),
            ..LedgerSpec::default()
        };
        let bugs = InjectedBugs::default();
        let changed = plans.read_ledger(Some(&version.to_string()), Some(&spec), |_| None, bugs);
        changed.into_keys().collect()
    }

    fn committed(plans: &Plans) -> Vec<(GangKey, Committed)> {
        let all = plans.all_committed();
        all.map(|(key, intent)| (key.clone(), intent.clone()))
            .collect()
    }

    /// What is kept from one Ledger to the next is what reading the last one alone gives, whatever came and went: several
    /// intents about one Gang, Gangs made again and the same intent at another place included.
    #[test]
    fn a_ledger_is_read_by_its_difference_and_means_the_same_as_read_alone() {
        let mut plans = Plans::default();
        let mut intents: Vec<Intent> = Vec::new();
        let mut state = 11_u32;
        for step in 0..500 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let [_, _, third, fourth] = state.to_le_bytes();
            let place = usize::from(third) % (intents.len() + 1);
            if fourth < 140 || intents.is_empty() {
                let sequence = i64::try_from(step).unwrap();
                intents.insert(place, intent(u32::from(fourth), sequence));
            } else if place < intents.len() {
                intents.swap_remove(place);
            }
            let before = committed(&plans);
            let changed = read(&mut plans, step, &intents);
            let mut alone = Plans::default();
            read(&mut alone, step, &intents);
            let after = committed(&alone);
            assert_eq!(committed(&plans), after, "step {step}");
            let differ = before.iter().filter(|it| !after.contains(it));
            let differ = differ.chain(after.iter().filter(|it| !before.contains(it)));
            let differ: BTreeSet<GangKey> = differ.map(|(key, _)| key.clone()).collect();
            assert_eq!(changed, differ, "step {step}");
            let bytes = after.iter().map(|(_, intent)| intent.bytes).sum();
            let intents = after.len();
            assert_eq!(plans.taken(IntentKind::Admit), Taken { bytes, intents });
            for (key, intent) in &after {
                let pod = &intent.plan.ranks.first();
                let of_pod = pod.map(|rank| plans.of_pod(&rank.pod).any(|it| it == key));
                assert_ne!(of_pod, Some(false), "step {step}");
            }
        }
    }
}
