//! A line in which namespaces stand by what they used, and the gangs of each by place.
//!
//! The order is that of [`Standing`]. It is not kept gang by gang: when a namespace used more, its first gang moves, and with it all
//! behind it, at the price of one.

use std::collections::{BTreeMap, BTreeSet};

use super::ids::GangId;
use crate::{
    fairness::WeightedUse,
    names::NamespaceName,
    queue::{Place, Standing},
};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct NamespaceLine {
    namespaces: BTreeMap<NamespaceName, OfNamespace>,
    /// Each namespace once, where its first gang stands.
    firsts: BTreeSet<(Standing, NamespaceName)>,
    gangs: usize,
}

#[derive(Clone, Debug)]
struct OfNamespace {
    used: WeightedUse,
    gangs: BTreeMap<Place, GangId>,
}

impl OfNamespace {
    fn first(&self) -> Option<Standing> {
        let (place, _) = self.gangs.first_key_value()?;
        Some(Standing::new(self.used, place.clone()))
    }
}

impl NamespaceLine {
    /// Puts a gang in line. Its namespace stands where it stands already, or by what it used.
    pub(super) fn insert(
        &mut self,
        namespace: &NamespaceName,
        used: WeightedUse,
        place: Place,
        gang: GangId,
    ) -> Option<GangId> {
        let mut before = None;
        self.change(namespace, used, |line| {
            before = line.gangs.insert(place, gang);
        });
        self.gangs += usize::from(before.is_none());
        before
    }

    /// Takes a gang out of line.
    pub(super) fn remove(&mut self, namespace: &NamespaceName, place: &Place) -> Option<GangId> {
        let mut removed = None;
        if self.namespaces.contains_key(namespace) {
            self.change(namespace, WeightedUse::NOTHING, |line| {
                removed = line.gangs.remove(place);
            });
        }
        self.gangs -= usize::from(removed.is_some());
        removed
    }

    /// A namespace used so much.
    pub(super) fn set_used(&mut self, namespace: &NamespaceName, used: WeightedUse) {
        if self.namespaces.contains_key(namespace) {
            self.change(namespace, used, |line| line.used = used);
        }
    }

    fn change(
        &mut self,
        namespace: &NamespaceName,
        used: WeightedUse,
        change: impl FnOnce(&mut OfNamespace),
    ) {
        let line = self.namespaces.entry(namespace.clone());
        let line = line.or_insert_with(|| OfNamespace {
            used,
            gangs: BTreeMap::new(),
        });
        let before = line.first();
        change(line);
        let after = line.first();
        if after.is_none() {
            self.namespaces.remove(namespace);
        }
        if before != after {
            if let Some(before) = before {
                self.firsts.remove(&(before, namespace.clone()));
            }
            self.firsts
                .extend(after.map(|after| (after, namespace.clone())));
        }
    }

    /// By what a namespace stands here that has a gang here.
    pub(super) fn used_by(&self, namespace: &NamespaceName) -> Option<WeightedUse> {
        Some(self.namespaces.get(namespace)?.used)
    }

    /// Who stands first.
    pub(super) fn first(&self) -> Option<(&Standing, GangId)> {
        let (standing, namespace) = self.firsts.first()?;
        let gang = self
            .namespaces
            .get(namespace)?
            .gangs
            .get(standing.place())?;
        Some((standing, *gang))
    }

    /// How many gangs there are.
    pub(super) fn len(&self) -> usize {
        self.gangs
    }

    /// How many gangs stand before this. It counts them.
    pub(super) fn before(&self, standing: &Standing) -> usize {
        let place = standing.place();
        let before = self.namespaces.values().map(|line| {
            let gangs = line.gangs.keys();
            gangs
                .take_while(|other| {
                    // Whoever is of a higher tier, and of the same one by what was used and by place.
                    let order = other.compare_priority(place);
                    let order = order.then(line.used.cmp(&standing.used()));
                    order.then_with(|| (*other).cmp(place)).is_lt()
                })
                .count()
        });
        before.sum()
    }

    /// The gangs, in order.
    pub(super) fn in_order(&self) -> InOrder<'_> {
        let next = self.firsts.iter();
        InOrder {
            line: self,
            next: next
                .map(|(standing, name)| (standing.clone(), name))
                .collect(),
        }
    }

    /// The gangs, in whatever order.
    pub(super) fn gangs(&self) -> impl Iterator<Item = GangId> {
        let lines = self.namespaces.values();
        lines.flat_map(|line| line.gangs.values().copied())
    }
}

/// The gangs of a line, merged from those of its namespaces.
pub(super) struct InOrder<'a> {
    line: &'a NamespaceLine,
    /// Each namespace that has gangs left, by the next of them.
    next: BTreeSet<(Standing, &'a NamespaceName)>,
}

impl Iterator for InOrder<'_> {
    type Item = GangId;

    fn next(&mut self) -> Option<GangId> {
        let (standing, namespace) = self.next.pop_first()?;
        let line = self.line.namespaces.get(namespace)?;
        let mut from = line.gangs.range(standing.place()..);
        let (_, gang) = from.next()?;
        if let Some((place, _)) = from.next() {
            let standing = Standing::new(line.used, place.clone());
            self.next.insert((standing, namespace));
        }
        Some(*gang)
    }
}
