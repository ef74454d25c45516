//! The devices of a node, and what is left of what they share.

use std::{collections::BTreeMap, sync::Arc};

use muster_cluster::pools::{Offered, OfferedDevice};
use muster_engine::{AttributeName, Consumption, SelectorId};

/// Devices of a node, in the order in which kube-scheduler tries them.
pub(super) struct OfNode {
    devices: Vec<OfferedDevice>,
    /// Of each device, whether nobody has it.
    free: Vec<bool>,
    /// What is left of each counter of each set.
    left: Vec<Vec<i64>>,
    /// The places of the devices that a selector matches and that may be given out.
    matching: BTreeMap<SelectorId, Arc<[usize]>>,
}

impl OfNode {
    /// All of it is free.
    pub(super) fn new(offered: Offered) -> Self {
        let sets = offered.counter_sets.iter();
        Self {
            left: sets.map(|set| set.counters.clone()).collect(),
            free: vec![true; offered.devices.len()],
            devices: offered.devices,
            matching: BTreeMap::new(),
        }
    }

    /// The devices, each at its place.
    pub(super) fn devices(&self) -> &[OfferedDevice] {
        &self.devices
    }

    /// The places of the devices of a selector, which `find` finds if it was not asked for before.
    pub(super) fn matching(
        &mut self,
        selector: SelectorId,
        find: impl FnOnce(&[OfferedDevice]) -> Vec<usize>,
    ) -> Arc<[usize]> {
        let known = self.matching.get(&selector).cloned();
        known.unwrap_or_else(|| {
            let found: Arc<[usize]> = find(&self.devices).into();
            self.matching.insert(selector, Arc::clone(&found));
            found
        })
    }

    /// Whether nobody has the device at that place, and there is enough of all that it draws from.
    pub(super) fn is_free(&self, place: usize) -> bool {
        let Some(device) = self.devices.get(place).filter(|_| self.free[place]) else {
            return false;
        };
        let mut drawn = amounts(&device.consumes);
        drawn.all(|(set, counter, amount)| {
            let left = self.left.get(set).and_then(|set| set.get(counter));
            left.is_some_and(|left| *left >= amount)
        })
    }

    /// Somebody has the device at that place.
    pub(super) fn take(&mut self, place: usize) {
        self.change(place, 1);
    }

    /// Nobody has the device at that place any more.
    pub(super) fn give_back(&mut self, place: usize) {
        self.change(place, -1);
    }

    fn change(&mut self, place: usize, sign: i64) {
        let Some(device) = self.devices.get(place) else {
            return;
        };
        self.free[place] = sign < 0;
        for (set, counter, amount) in amounts(&device.consumes) {
            let left = self.left.get_mut(set).and_then(|set| set.get_mut(counter));
            if let Some(left) = left {
                *left = left.saturating_sub(amount.saturating_mul(sign));
            }
        }
    }

    /// The value of an attribute of the device at that place.
    pub(super) fn attribute(&self, place: usize, name: &AttributeName) -> Option<&String> {
        let published = &self.devices.get(place)?.published;
        let mut own = published.own_attributes.iter();
        let own = own.find(|(own, _)| own == name).map(|(_, value)| value);
        own.or_else(|| published.kind.attributes.get(name))
    }
}

/// What is drawn: set, counter and amount.
fn amounts(consumes: &[Consumption]) -> impl Iterator<Item = (usize, usize, i64)> {
    consumes.iter().flat_map(|of| {
        let amounts = of.amounts.iter();
        amounts.map(move |(counter, amount)| (of.set as usize, *counter as usize, *amount))
    })
}
