//! What is known of Gangs and budgets, and what follows for each gang.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{core::Selector, runtime::watcher};
use muster_api::Gang;
use muster_cluster::{
    index::NamespacedName,
    object::{Change, Kind, Object, ObjectKey},
};

use super::budget::{Ours, Wanted, Whose};
use crate::shared_table::Observe;

/// What is known, and which gangs are to be seen to.
#[derive(Debug, Default)]
pub struct Table {
    /// Whether gangs are moved, so that budgets are wanted at all.
    pub(super) moves_gangs: bool,
    pub(super) gangs_are_listed: bool,
    pub(super) budgets_are_listed: bool,
    wanted: BTreeMap<NamespacedName, Wanted>,
    budgets: Budgets,
    /// What was listed so far, while a list is being received.
    listing: Option<Budgets>,
    pub(super) due: BTreeSet<NamespacedName>,
    /// The namespace that had a turn last.
    turn_of: String,
    /// UIDs of Gangs of which it was told that they have somebody else's budget.
    pub(super) told: BTreeMap<NamespacedName, String>,
}

#[derive(Debug, Default)]
pub(super) struct Budgets {
    ours: BTreeMap<NamespacedName, Ours>,
    /// Those of others, by namespace and name, and whom they select.
    others: BTreeMap<String, Arc<Others>>,
}

/// Budgets of others in a namespace, and whom they select.
pub(super) type Others = BTreeMap<String, Selector>;

/// What is to be done about the budget of a gang.
#[derive(Debug)]
pub(super) enum Step {
    Nothing,
    /// It is made.
    Make(Wanted),
    /// It goes.
    Remove(Ours),
    /// Others have budgets in the namespace: whether they select pods of the gang is to be looked at.
    Look {
        wanted: Wanted,
        others: Arc<Others>,
        ours: Option<Ours>,
    },
}

impl Observe for Table {
    /// Changes of Gangs; all others are nothing to it. Budgets are watched by the keeper itself.
    fn observe(&mut self, change: &Change) -> bool {
        match change {
            Change::Applied(Object::Gang(gang)) => self.apply_gang(gang),
            Change::Deleted(key) if key.kind == Kind::Gang => {
                self.forget_gang(NamespacedName::new(&*key.namespace, &*key.name))
            }
            Change::ListedKeys(Kind::Gang, keys) => self.keep_gangs(keys),
            Change::Listed(Kind::Gang, objects) => {
                let keys = objects.iter().map(Object::key).collect();
                for object in objects {
                    if let Object::Gang(gang) = object {
                        self.apply_gang(gang);
                    }
                }
                self.keep_gangs(&keys)
            }
            _ => false,
        }
    }
}

impl Table {
    fn apply_gang(&mut self, gang: &Gang) -> bool {
        let wanted = self.moves_gangs.then(|| Wanted::of(gang)).flatten();
        self.set_wanted(NamespacedName::of(&gang.metadata), wanted)
    }

    /// Whether that is news.
    fn set_wanted(&mut self, gang: NamespacedName, wanted: Option<Wanted>) -> bool {
        if self.wanted.get(&gang) == wanted.as_ref() {
            return false;
        }
        match wanted {
            Some(wanted) => self.wanted.insert(gang.clone(), wanted),
            None => self.wanted.remove(&gang),
        };
        self.due.insert(gang);
        true
    }

    /// A Gang is gone; whether that is news.
    fn forget_gang(&mut self, gang: NamespacedName) -> bool {
        self.told.remove(&gang);
        self.set_wanted(gang, None)
    }

    /// The next gang that is to be seen to. Namespaces take turns: one whose budgets come and go all the time holds up no other.
    pub(super) fn take_due(&mut self) -> Option<NamespacedName> {
        // No namespace is called like that, and none comes between.
        let after = NamespacedName::new(format!("{}\0", self.turn_of), "");
        let mut behind = self.due.range(after..);
        let next = behind.next().or_else(|| self.due.first())?.clone();
        self.due.remove(&next);
        self.turn_of.clone_from(&next.namespace);
        Some(next)
    }

    /// A list of all Gangs is complete: what it does not name is gone.
    fn keep_gangs(&mut self, keys: &BTreeSet<ObjectKey>) -> bool {
        let names: BTreeSet<NamespacedName> = keys
            .iter()
            .map(|key| NamespacedName::new(&*key.namespace, &*key.name))
            .collect();
        let gone: Vec<NamespacedName> = self
            .wanted
            .keys()
            .filter(|name| !names.contains(name))
            .cloned()
            .collect();
        for name in gone {
            self.set_wanted(name, None);
        }
        self.told.retain(|name, _| names.contains(name));
        self.gangs_are_listed = true;
        true
    }

    pub(super) fn apply_budget(&mut self, seen: watcher::Event<PodDisruptionBudget>) {
        match seen {
            watcher::Event::Init => self.listing = Some(Budgets::default()),
            watcher::Event::InitApply(budget) => {
                if let Some(listing) = &mut self.listing {
                    listing.put(&budget);
                }
            }
            watcher::Event::InitDone => {
                if let Some(listed) = self.listing.take() {
                    self.due.extend(self.budgets.ours.keys().cloned());
                    self.due.extend(listed.ours.keys().cloned());
                    self.due.extend(self.wanted.keys().cloned());
                    self.budgets = listed;
                    self.budgets_are_listed = true;
                }
            }
            watcher::Event::Apply(budget) => {
                // How those of others fare is written with every pod that comes or goes.
                let is_news = self.budgets.is_news(&budget);
                self.budgets.remove(&budget);
                self.budgets.put(&budget);
                if is_news {
                    self.note_budget(&budget);
                }
            }
            watcher::Event::Delete(budget) => {
                self.budgets.remove(&budget);
                self.note_budget(&budget);
            }
        }
    }

    /// A budget is another one: the gang of that name is concerned if it is ours, and all of its namespace if it is not.
    fn note_budget(&mut self, budget: &PodDisruptionBudget) {
        let name = NamespacedName::of(&budget.metadata);
        if matches!(Whose::of(budget), Whose::Ours(_)) {
            self.due.insert(name);
            return;
        }
        let first = NamespacedName::new(name.namespace.clone(), "");
        let from = self.wanted.range(first..).map(|(gang, _)| gang);
        let in_namespace = from.take_while(|gang| gang.namespace == name.namespace);
        self.due.extend(in_namespace.cloned());
    }

    pub(super) fn step(&self, gang: &NamespacedName) -> Step {
        let ours = self.budgets.ours.get(gang);
        let Some(wanted) = self.wanted.get(gang) else {
            return ours.cloned().map_or(Step::Nothing, Step::Remove);
        };
        // Made anew once it is seen that it is gone.
        if let Some(other) = ours.filter(|ours| !ours.says(wanted)) {
            return Step::Remove(other.clone());
        }
        let others = self.budgets.others.get(&gang.namespace);
        match others.filter(|others| !others.is_empty()) {
            Some(others) => Step::Look {
                wanted: wanted.clone(),
                others: Arc::clone(others),
                ours: ours.cloned(),
            },
            None if ours.is_none() => Step::Make(wanted.clone()),
            None => Step::Nothing,
        }
    }
}

impl Budgets {
    /// Whether anything may follow from the budget that did not before. Ours is removed as it was seen last, so each version counts.
    fn is_news(&self, budget: &PodDisruptionBudget) -> bool {
        let name = NamespacedName::of(&budget.metadata);
        let others = self.others.get(&name.namespace);
        let known = others.and_then(|others| others.get(&name.name));
        match Whose::of(budget) {
            Whose::Ours(_) => true,
            Whose::Other(selector) => known != Some(&selector),
            Whose::Nobody => known.is_some() || self.ours.contains_key(&name),
        }
    }

    fn put(&mut self, budget: &PodDisruptionBudget) {
        let name = NamespacedName::of(&budget.metadata);
        match Whose::of(budget) {
            Whose::Ours(ours) => {
                self.ours.insert(name, ours);
            }
            Whose::Other(selector) => {
                let others = self.others.entry(name.namespace).or_default();
                Arc::make_mut(others).insert(name.name, selector);
            }
            Whose::Nobody => {}
        }
    }

    fn remove(&mut self, budget: &PodDisruptionBudget) {
        let name = NamespacedName::of(&budget.metadata);
        if let Some(others) = self.others.get_mut(&name.namespace) {
            if others.contains_key(&name.name) {
                Arc::make_mut(others).remove(&name.name);
            }
            if others.is_empty() {
                self.others.remove(&name.namespace);
            }
        }
        self.ours.remove(&name);
    }
}
