//! The accounts of the namespaces of one Team.

use std::collections::{BTreeMap, BTreeSet};

use super::{AdmissionFairness, Consumed, NamespaceUse, Part, WeightedUse};
use crate::{
    amount::{Amount, Resource},
    names::{GangUid, NamespaceName, Timestamp},
};

/// What is held of each resource, of all Flavors together.
pub(crate) type Held = BTreeMap<Resource, i128>;

/// What is held by namespace.
pub(crate) type HeldByNamespace = BTreeMap<NamespaceName, Held>;

/// What one namespace used. One that used nothing lately has no account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Account {
    consumed: Consumed,
    /// What counts at once of admissions that are not committed yet: it may be taken back.
    uncommitted: Consumed,
    /// What those hold. It is in no sample before they are committed.
    held_uncommitted: Held,
}

impl Account {
    fn is_nothing(&self) -> bool {
        self.consumed.is_nothing()
            && self.uncommitted.is_nothing()
            && self.held_uncommitted.is_empty()
    }

    fn used(&self) -> Consumed {
        let mut used = self.consumed.clone();
        used.add(&self.uncommitted);
        used
    }
}

/// An admission that is not committed yet.
#[derive(Clone, Debug)]
struct Uncommitted {
    namespace: NamespaceName,
    penalty: Consumed,
    held: Held,
}

/// See the module. It knows no charges: what is held is told with each question.
#[derive(Clone, Debug)]
pub(crate) struct Accounts {
    policy: AdmissionFairness,
    by_namespace: BTreeMap<NamespaceName, Account>,
    uncommitted: BTreeMap<GangUid, Uncommitted>,
    /// Up to when use was taken in; `None` while nobody holds or used anything.
    sampled_at: Option<Timestamp>,
    /// Resources that began to count since: of these nothing is known of the past.
    unknown: BTreeSet<Resource>,
}

impl Accounts {
    pub(crate) fn new(policy: AdmissionFairness) -> Self {
        Self {
            unknown: policy.resource_weights.keys().cloned().collect(),
            policy,
            by_namespace: BTreeMap::new(),
            uncommitted: BTreeMap::new(),
            sampled_at: None,
        }
    }

    /// Goes by another policy from now on.
    pub(crate) fn set_policy(&mut self, policy: AdmissionFairness) {
        let new = policy.resource_weights.keys();
        let new = new.filter(|it| !self.policy.resource_weights.contains_key(it));
        self.unknown.extend(new.cloned());
        self.unknown
            .retain(|resource| policy.resource_weights.contains_key(resource));
        self.policy = policy;
    }

    /// Where a namespace stands.
    pub(crate) fn use_of(&self, namespace: &NamespaceName) -> WeightedUse {
        let used = self.by_namespace.get(namespace).map(Account::used);
        used.unwrap_or_default().weighted(&self.policy, namespace)
    }

    /// What a namespace used, as it is shown and recorded, and by when: of what is too little to be shown, nothing.
    pub(crate) fn shown(
        &self,
        namespace: &NamespaceName,
    ) -> Option<(BTreeMap<Resource, Amount>, Timestamp)> {
        let account = self.by_namespace.get(namespace);
        let shown = account.map(|account| account.used().shown());
        Some((shown.unwrap_or_default(), self.sampled_at?))
    }

    /// When what is held is to be looked at next, if anybody holds or used anything.
    pub(crate) fn due_at(&self) -> Option<Timestamp> {
        let seconds = self.policy.sampling_interval_seconds.max(1);
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        Some(Timestamp(self.sampled_at?.0.saturating_add(seconds)))
    }

    /// The clock by which use was taken in last was ahead by so much.
    pub(crate) fn count_from_earlier(&mut self, seconds: i64) {
        if let Some(at) = &mut self.sampled_at {
            at.0 = at.0.saturating_sub(seconds);
        }
    }

    /// Whether there is something to [`begin`](Self::begin) with once somebody holds something.
    pub(crate) fn is_to_begin(&self) -> bool {
        self.sampled_at.is_none() || !self.unknown.is_empty()
    }

    /// Takes in what was before: what was told of it, and of whom nothing was told that he always held what he holds now. The
    /// latter so that nobody who has held much for long starts as if he had used nothing.
    pub(crate) fn begin(
        &mut self,
        held: &HeldByNamespace,
        told: Option<&BTreeMap<NamespaceName, NamespaceUse>>,
        now: Timestamp,
    ) -> BTreeSet<NamespaceName> {
        let mut changed = BTreeSet::new();
        let unknown = std::mem::take(&mut self.unknown);
        if !unknown.is_empty() {
            let told_of = told.into_iter().flatten().map(|(namespace, _)| namespace);
            changed.extend(held.keys().chain(told_of).cloned());
        }
        for namespace in &changed {
            let committed = self.committed(namespace, held);
            let known = told.and_then(|told| told.get(namespace));
            let mut before = if let Some(known) = known {
                let left = self.left_after(known.as_of, now);
                Consumed::recorded(&known.used).decayed(left, &committed, &self.policy)
            } else {
                Consumed::part_of(&committed, Part::ALL, &self.policy)
            };
            before.retain(&unknown);
            let account = self.by_namespace.entry(namespace.clone()).or_default();
            account.consumed.add_unknown(before);
        }
        self.forget_nothing();
        if self.sampled_at.is_none() && self.is_anybody_active(held) {
            self.sampled_at = Some(now);
        }
        changed
    }

    /// Takes in what is held now; whose account is another one. It looks at those that hold or used something.
    pub(crate) fn sample(
        &mut self,
        held: &HeldByNamespace,
        now: Timestamp,
    ) -> BTreeSet<NamespaceName> {
        let Some(sampled_at) = self.sampled_at else {
            return BTreeSet::new();
        };
        let left = self.left_after(sampled_at, now);
        let active: BTreeSet<NamespaceName> = held
            .keys()
            .chain(self.by_namespace.keys())
            .cloned()
            .collect();
        for namespace in &active {
            let committed = self.committed(namespace, held);
            let account = self.by_namespace.entry(namespace.clone()).or_default();
            account.consumed = account.consumed.decayed(left, &committed, &self.policy);
        }
        self.forget_nothing();
        self.sampled_at = self.is_anybody_active(held).then_some(now);
        active
    }

    /// A gang was admitted that is charged so much; it is not committed yet.
    pub(crate) fn admit(&mut self, gang: &GangUid, namespace: NamespaceName, held: Held) {
        self.undo(gang);
        let penalty = Consumed::part_of(&held, self.policy.penalty(), &self.policy);
        let account = self.by_namespace.entry(namespace.clone()).or_default();
        account.uncommitted.add(&penalty);
        for (resource, amount) in &held {
            let sum = account
                .held_uncommitted
                .entry(resource.clone())
                .or_default();
            *sum += amount;
        }
        let uncommitted = Uncommitted {
            namespace,
            penalty,
            held,
        };
        self.uncommitted.insert(gang.clone(), uncommitted);
    }

    /// The admission of a gang is committed. Nobody moves by that.
    pub(crate) fn commit(&mut self, gang: &GangUid) {
        if let Some(uncommitted) = self.take_uncommitted(gang) {
            let account = self.by_namespace.entry(uncommitted.namespace).or_default();
            account.consumed.add(&uncommitted.penalty);
        }
    }

    /// The admission of a gang is taken back; whose account is another one.
    pub(crate) fn undo(&mut self, gang: &GangUid) -> Option<NamespaceName> {
        let namespace = self.take_uncommitted(gang)?.namespace;
        self.forget_nothing_of(&namespace);
        Some(namespace)
    }

    fn take_uncommitted(&mut self, gang: &GangUid) -> Option<Uncommitted> {
        let uncommitted = self.uncommitted.remove(gang)?;
        if let Some(account) = self.by_namespace.get_mut(&uncommitted.namespace) {
            account.uncommitted.subtract(&uncommitted.penalty);
            for (resource, amount) in &uncommitted.held {
                if let Some(sum) = account.held_uncommitted.get_mut(resource) {
                    *sum -= amount;
                }
            }
            account.held_uncommitted.retain(|_, amount| *amount != 0);
        }
        Some(uncommitted)
    }

    /// What a namespace holds by admissions that are committed.
    fn committed(&self, namespace: &NamespaceName, held: &HeldByNamespace) -> Held {
        let mut committed = held.get(namespace).cloned().unwrap_or_default();
        if let Some(account) = self.by_namespace.get(namespace) {
            for (resource, amount) in &account.held_uncommitted {
                *committed.entry(resource.clone()).or_default() -= amount;
            }
        }
        committed
    }

    fn left_after(&self, from: Timestamp, to: Timestamp) -> Part {
        let seconds = u64::try_from(to.0.saturating_sub(from.0)).unwrap_or(0);
        Part::left_after(seconds, self.policy.half_life_seconds)
    }

    fn is_anybody_active(&self, held: &HeldByNamespace) -> bool {
        !held.is_empty() || !self.by_namespace.is_empty()
    }

    fn forget_nothing(&mut self) {
        self.by_namespace.retain(|_, account| !account.is_nothing());
    }

    fn forget_nothing_of(&mut self, namespace: &NamespaceName) {
        if self
            .by_namespace
            .get(namespace)
            .is_some_and(Account::is_nothing)
        {
            self.by_namespace.remove(namespace);
        }
    }
}
