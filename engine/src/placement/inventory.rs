//! How many devices of which kind there are, taken or not.

use std::collections::BTreeMap;

use crate::{
    amount::{Amount, Overflow},
    model::Node,
    names::{FlavorName, SelectorId},
};

/// What a device, or several together, are charged as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DeviceCharge {
    /// Thousandths of a GPU.
    pub(crate) gpus: Amount,
    /// Bytes of memory.
    pub(crate) vram: Amount,
}

impl DeviceCharge {
    /// Both together.
    #[allow(
        clippy::should_implement_trait,
        reason = "an operator could not return the error"
    )]
    pub(crate) fn add(self, other: Self) -> Result<Self, Overflow> {
        Ok(Self {
            gpus: self.gpus.add(other.gpus)?,
            vram: self.vram.add(other.vram)?,
        })
    }

    /// The lesser of each.
    pub(crate) fn at_most(self, other: Self) -> Self {
        Self {
            gpus: self.gpus.min(other.gpus),
            vram: self.vram.min(other.vram),
        }
    }

    /// The larger of each.
    pub(crate) fn at_least(self, other: Self) -> Self {
        Self {
            gpus: self.gpus.max(other.gpus),
            vram: self.vram.max(other.vram),
        }
    }

    /// Whether neither part is larger.
    pub(crate) fn is_within(self, most: Self) -> bool {
        self.gpus <= most.gpus && self.vram <= most.vram
    }
}

/// Devices of a Flavor that match a selector: how many by what each is charged as.
type Kinds = BTreeMap<DeviceCharge, usize>;

/// All devices by Flavor and selector.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inventory {
    /// Under `None` what belongs to no Flavor and is charged as no GPU.
    counts: BTreeMap<Option<FlavorName>, BTreeMap<SelectorId, Kinds>>,
    kinds_version: u64,
}

impl Inventory {
    /// Counts the devices of a node in.
    pub(crate) fn enter(&mut self, node: &Node) {
        self.change(node, |counts, key| {
            let count = counts.entry(key).or_default();
            *count += 1;
            *count == 1
        });
    }

    /// Counts the devices of a node out.
    pub(crate) fn leave(&mut self, node: &Node) {
        self.change(node, |counts, key| match counts.get_mut(&key) {
            Some(count) if *count > 1 => {
                *count -= 1;
                false
            }
            _ => counts.remove(&key).is_some(),
        });
    }

    /// Changes the count of each device of a node by a function that says whether it made or removed a kind.
    fn change(&mut self, node: &Node, change: impl Fn(&mut Kinds, DeviceCharge) -> bool) {
        for device in &node.devices {
            let charge = DeviceCharge {
                gpus: device.gpus,
                vram: device.vram,
            };
            let no_flavor = device.flavors.is_empty() && device.gpus == Amount::ZERO;
            let flavors = device.flavors.iter().cloned().map(Some);
            for flavor in flavors.chain(no_flavor.then_some(None)) {
                let selectors = self.counts.entry(flavor.clone()).or_default();
                for selector in device.selectors.iter() {
                    let kinds = selectors.entry(*selector).or_default();
                    self.kinds_version += u64::from(change(kinds, charge));
                    if kinds.is_empty() {
                        selectors.remove(selector);
                    }
                }
                if selectors.is_empty() {
                    self.counts.remove(&flavor);
                }
            }
        }
    }

    /// How many devices that may be charged to a Flavor match a selector on all nodes, taken or not.
    pub(crate) fn devices(&self, flavor: &FlavorName, selector: SelectorId) -> usize {
        self.of(flavor, selector).flat_map(BTreeMap::values).sum()
    }

    /// What the devices of a Flavor that match a selector are charged as, each kind once.
    pub(crate) fn kinds(
        &self,
        flavor: &FlavorName,
        selector: SelectorId,
    ) -> impl Iterator<Item = DeviceCharge> {
        self.of(flavor, selector).flat_map(BTreeMap::keys).copied()
    }

    /// A number that moves whenever some Flavor and selector gain or lose a kind.
    pub(crate) fn kinds_version(&self) -> u64 {
        self.kinds_version
    }

    fn of(&self, flavor: &FlavorName, selector: SelectorId) -> impl Iterator<Item = &Kinds> {
        [Some(flavor.clone()), None]
            .into_iter()
            .filter_map(move |flavor| self.counts.get(&flavor)?.get(&selector))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::fixtures;

    #[test]
    fn kinds_move_with_their_first_and_last_device_only() {
        let (flavor, selector) = (FlavorName::from("h100"), SelectorId(0));
        let mut inventory = Inventory::default();
        let nodes = [fixtures::node("a", 2), fixtures::node("b", 2)];
        inventory.enter(&nodes[0]);
        let first = inventory.kinds_version();
        inventory.enter(&nodes[1]);
        assert_eq!(inventory.devices(&flavor, selector), 4);
        inventory.leave(&nodes[0]);
        assert_eq!(inventory.kinds_version(), first);
        assert_eq!(inventory.kinds(&flavor, selector).count(), 1);
        inventory.leave(&nodes[1]);
        assert_ne!(inventory.kinds_version(), first);
        assert!(inventory.counts.is_empty());
    }
}
