//! Taking changes in: each is stored, and what it may touch is noted.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    hash::Hash,
    sync::Arc,
};

use super::{
    Index, NamespacedName,
    pods::KeptPod,
    store::{Changed, Store, Versioned, version_of},
};
use crate::{
    claims::ObservedClaim,
    devices::SliceView,
    formed::GangKey,
    links::ByKey,
    object::{Change, Kind, Object, ObjectKey, Strip, types},
    table::Table,
};

/// How objects of one kind are kept.
pub(super) trait Observed: Sized {
    /// By what they are found.
    type Key: StoreKey;
    /// What is kept of them.
    type Kept: Versioned;
    /// In what they are kept. Of kinds that have hundreds of thousands of objects none is found by its order.
    type Items: ByKey<Self::Key, Arc<Self::Kept>> + Debug;
    /// What is kept of this one.
    fn keep(index: &mut Index, object: Arc<Self>) -> Arc<Self::Kept>;
    /// Notes what has to be derived again.
    fn changed(index: &mut Index, key: &Self::Key, changed: &Changed<Self::Kept>);
}

/// A key of a store.
pub(super) trait StoreKey: Ord + Hash + Clone {
    fn of(key: &ObjectKey) -> Self;
    fn object(&self, kind: Kind) -> ObjectKey;
}

impl StoreKey for String {
    fn of(key: &ObjectKey) -> Self {
        key.name.clone()
    }

    fn object(&self, kind: Kind) -> ObjectKey {
        ObjectKey {
            kind,
            namespace: Self::new(),
            name: self.clone(),
        }
    }
}

impl StoreKey for NamespacedName {
    fn of(key: &ObjectKey) -> Self {
        Self::new(&key.namespace, &key.name)
    }

    fn object(&self, kind: Kind) -> ObjectKey {
        ObjectKey {
            kind,
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}

impl StoreKey for GangKey {
    fn of(key: &ObjectKey) -> Self {
        NamespacedName::of_object(key).into()
    }

    fn object(&self, kind: Kind) -> ObjectKey {
        NamespacedName::from(self.clone()).object(kind)
    }
}

macro_rules! observed {
    ($($kind:ident: $items:ident by $key:ty, $changed:ident;)*) => {
        $(impl Observed for types::$kind {
            type Key = $key;
            type Kept = Self;
            type Items = $items<$key, Arc<Self>>;
            fn keep(_: &mut Index, object: Arc<Self>) -> Arc<Self> {
                Strip::strip(object)
            }
            fn changed(index: &mut Index, key: &$key, changed: &Changed<Self>) {
                index.$changed(key, changed);
            }
        })*
    };
}

observed! {
    Cohort: BTreeMap by String, cohort_changed;
    DeviceClass: BTreeMap by String, class_changed;
    DeviceTaintRule: BTreeMap by String, taint_rule_changed;
    Flavor: BTreeMap by String, flavor_changed;
    Gang: Table by GangKey, gang_changed;
    Job: BTreeMap by NamespacedName, job_changed;
    Ledger: BTreeMap by String, ledger_changed;
    Namespace: BTreeMap by String, namespace_changed;
    Node: BTreeMap by String, node_changed;
    NodeDevices: Table by String, node_devices_changed;
    PriorityTier: BTreeMap by String, tier_changed;
    Queue: BTreeMap by NamespacedName, queue_changed;
    Team: BTreeMap by String, team_changed;
    Topology: BTreeMap by String, topology_changed;
}

impl Observed for types::ResourceSlice {
    type Key = String;
    type Kept = SliceView;
    type Items = Table<String, Arc<SliceView>>;

    fn keep(index: &mut Index, object: Arc<Self>) -> Arc<SliceView> {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let old = index.objects.resource_slices.get(name).cloned();
        Arc::new(index.device_kinds.slice(object, old.as_deref()))
    }

    fn changed(index: &mut Index, _: &String, changed: &Changed<SliceView>) {
        index.slice_changed(changed);
    }
}

impl Observed for types::Pod {
    type Key = NamespacedName;
    type Kept = KeptPod;
    type Items = Table<NamespacedName, Arc<KeptPod>>;

    fn keep(index: &mut Index, object: Arc<Self>) -> Arc<KeptPod> {
        let kept = KeptPod::of(&object, &index.config, &mut index.pod_terms);
        Arc::new(kept)
    }

    fn changed(index: &mut Index, key: &NamespacedName, changed: &Changed<KeptPod>) {
        index.pod_changed(key, changed);
    }
}

impl Observed for types::ResourceClaim {
    type Key = NamespacedName;
    type Kept = ObservedClaim;
    type Items = Table<NamespacedName, Arc<ObservedClaim>>;

    fn keep(index: &mut Index, object: Arc<Self>) -> Arc<ObservedClaim> {
        let key = NamespacedName::of(&object.metadata);
        let old = index.objects.resource_claims.get(&key);
        Arc::new(index.claim_specs.observe(&object, old.map(AsRef::as_ref)))
    }

    fn changed(index: &mut Index, key: &NamespacedName, changed: &Changed<ObservedClaim>) {
        index.claim_changed(key, changed);
    }
}

macro_rules! stores {
    ($($kind:ident: $scope:ident $collection:ident $status:ident;)*) => {
        /// All objects that are held.
        #[derive(Debug, Default)]
        pub(super) struct Objects {
            $(pub(super) $collection: Store<
                <types::$kind as Observed>::Key,
                <types::$kind as Observed>::Kept,
                <types::$kind as Observed>::Items,
            >,)*
        }

        impl Index {
            fn put(&mut self, object: Object) {
                let key = object.key();
                match object {
                    $(Object::$kind(object) => {
                        let key = <<types::$kind as Observed>::Key as StoreKey>::of(&key);
                        let kept = <types::$kind as Observed>::keep(self, object);
                        if let Some(changed) = self.objects.$collection.put(key.clone(), kept) {
                            <types::$kind as Observed>::changed(self, &key, &changed);
                        }
                    })*
                }
            }

            /// `is_gone`: reported as deleted, for good; otherwise only missing in a list.
            fn take_out(&mut self, key: &ObjectKey, is_gone: bool) {
                match key.kind {
                    $(Kind::$kind => {
                        let key = <<types::$kind as Observed>::Key as StoreKey>::of(key);
                        let store = &mut self.objects.$collection;
                        let changed = if is_gone { store.remove(&key) } else { store.forget(&key) };
                        if let Some(changed) = changed {
                            <types::$kind as Observed>::changed(self, &key, &changed);
                        }
                    })*
                }
            }

            /// Whether an object says nothing new: what is held is as new as it, or it was reported as deleted. Lists
            /// report every object once more.
            pub fn knows(&self, object: &Object) -> bool {
                let key = object.key();
                let metadata = object.metadata();
                let uid = metadata.uid.as_deref().unwrap_or_default();
                match object {
                    $(Object::$kind(_) => {
                        let key = <<types::$kind as Observed>::Key as StoreKey>::of(&key);
                        self.objects.$collection.knows(&key, uid, version_of(metadata))
                    })*
                }
            }

            /// Whether what is held under its name has a later version: the object is told late, or the store was set back
            /// to an earlier state.
            pub fn is_behind(&self, object: &Object) -> bool {
                let held = self.version(&object.key());
                let told = version_of(object.metadata());
                held.zip(told).is_some_and(|(held, told)| told < held)
            }

            /// The resourceVersion of what is held under a name, as a number.
            pub fn version(&self, key: &ObjectKey) -> Option<u64> {
                match key.kind {
                    $(Kind::$kind => {
                        let key = <<types::$kind as Observed>::Key as StoreKey>::of(key);
                        self.objects.$collection.get(&key)?.version()
                    })*
                }
            }

            /// Whether another object of that name is held: this one was made after it.
            pub fn replaces_another(&self, object: &Object) -> bool {
                let key = object.key();
                let uid = object.metadata().uid.as_deref().unwrap_or_default();
                match object {
                    $(Object::$kind(_) => {
                        let key = <<types::$kind as Observed>::Key as StoreKey>::of(&key);
                        let held = self.objects.$collection.get(&key);
                        held.is_some_and(|held| held.uid() != uid)
                    })*
                }
            }

            /// Keys of the objects of a kind that are held and not among those that were listed, in order.
            pub fn unlisted(&self, kind: Kind, listed: &BTreeSet<ObjectKey>) -> Vec<ObjectKey> {
                match kind {
                    $(Kind::$kind => {
                        let objects = &self.objects.$collection;
                        let missing = objects.keys_where(|key| !listed.contains(&key.object(kind)));
                        missing.into_iter().map(|key| key.object(kind)).collect()
                    })*
                }
            }
        }
    };
}
crate::for_each_kind!(stores);

impl Index {
    pub(super) fn take_in(&mut self, change: Change) {
        match change {
            Change::Applied(object) => self.put(object),
            Change::Deleted(key) => self.take_out(&key, true),
            Change::Listed(kind, objects) => {
                let listed: BTreeSet<ObjectKey> = objects.iter().map(Object::key).collect();
                for object in objects {
                    self.put(object);
                }
                self.end_list(kind, &listed);
            }
            Change::ListedKeys(kind, listed) => self.end_list(kind, &listed),
        }
    }

    fn end_list(&mut self, kind: Kind, listed: &BTreeSet<ObjectKey>) {
        for key in self.unlisted(kind, listed) {
            self.take_out(&key, false);
        }
        self.synced.insert(kind);
    }
}
