//! kube-scheduler's allocator for one device: the first that is free, matches, and finds enough of its counters.

use muster_engine::{DeviceRequest, SelectorId};

use super::fleet::FleetNode;

/// What is left of a node.
#[derive(Debug)]
pub(super) struct Left<'a> {
    pub(super) of: &'a FleetNode,
    /// The devices in the order in which they are tried.
    order: Vec<usize>,
    is_taken: Vec<bool>,
    /// By counter set and counter.
    counters: Vec<Vec<i64>>,
}

impl<'a> Left<'a> {
    /// All of it, its devices tried in the order in which the driver publishes them.
    pub(super) fn as_published(of: &'a FleetNode) -> Self {
        let devices = of.node.devices.len();
        Self {
            of,
            order: (0..devices).collect(),
            is_taken: vec![false; devices],
            counters: of
                .node
                .counter_sets
                .iter()
                .map(|set| set.counters.clone())
                .collect(),
        }
    }

    /// All of it, its devices tried by name, as of a driver that gives them no order.
    pub(super) fn by_name(of: &'a FleetNode) -> Self {
        let mut left = Self::as_published(of);
        let devices = &of.node.devices;
        left.order
            .sort_by_key(|at| devices.get(*at).map(|device| &device.name));
        left
    }

    /// The device that a request for one gets. `None`: there is none.
    pub(super) fn first_fit(&self, request: &DeviceRequest) -> Option<usize> {
        let mut choices = request.choices.iter();
        choices.find_map(|choice| {
            let mut devices = self.order.iter().copied();
            devices.find(|at| self.is_to_be_had(*at, choice.selector))
        })
    }

    fn is_to_be_had(&self, at: usize, selector: SelectorId) -> bool {
        let device = &self.of.node.devices[at];
        let mut drawn = device.consumes.iter().flat_map(|draw| {
            let of = &self.counters[draw.set as usize];
            let amounts = draw.amounts.iter();
            amounts.map(move |(counter, amount)| (of[*counter as usize], *amount))
        });
        device.usable
            && !self.is_taken[at]
            && device.selectors.contains(&selector)
            && drawn.all(|(left, amount)| left >= amount)
    }

    /// Somebody has the device from now on.
    pub(super) fn take(&mut self, at: usize) {
        self.is_taken[at] = true;
        for draw in self.of.node.devices[at].consumes.iter() {
            let of = &mut self.counters[draw.set as usize];
            for (counter, amount) in draw.amounts.iter() {
                of[*counter as usize] -= amount;
            }
        }
    }

    /// The devices that somebody has.
    pub(super) fn taken(&self) -> impl Iterator<Item = usize> + '_ {
        let devices = self.is_taken.iter().enumerate();
        devices.filter_map(|(at, is_taken)| is_taken.then_some(at))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ask::Ask, card::H100, fleet::Fleet};
    use super::*;

    #[test]
    fn devices_are_tried_in_their_order_as_long_as_counters_last() {
        let asks = [Ask::Profile("1g.10gb"), Ask::Profile("4g.40gb")];
        let fleet = Fleet::new(&[(H100, 1)], &asks).unwrap();
        let [small, large] = &fleet.requests[..] else {
            panic!("two requests");
        };
        for (mut left, name, large_fits) in [
            (
                Left::as_published(&fleet.nodes[0]),
                "gpu-0-mig-1g10gb-4",
                true,
            ),
            (Left::by_name(&fleet.nodes[0]), "gpu-0-mig-1g10gb-0", false),
        ] {
            let first = left.first_fit(small).unwrap();
            let device = &fleet.nodes[0].node.devices[first];
            assert!(device.name.as_str().ends_with(name), "{}", device.name);
            left.take(first);
            assert_eq!(left.first_fit(large).is_some(), large_fits);
            for _ in 0..6 {
                left.take(left.first_fit(small).unwrap());
            }
            assert_eq!(left.first_fit(small), None);
            assert_eq!(left.taken().count(), 7);
        }
    }
}
