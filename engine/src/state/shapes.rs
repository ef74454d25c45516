//! Demands without names, each known once: gangs of all Teams that ask for the same share what was found out
//! about it.

use std::{collections::BTreeMap, sync::Arc};

use super::ids::{ShapeId, Slab};
use crate::{
    model::TopologyRequest,
    names::FlavorName,
    placement::{Demand, Refusal, Signature},
    quota::request::Totals,
};

/// That a shape has no place on a Flavor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    pub(super) refusal: Refusal,
    /// Whether the search ended before it had looked at everything.
    pub(super) gave_up: bool,
}

/// Whether a shape would fit on the empty cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnEmpty {
    /// As of which inventory.
    pub(super) inventory: u64,
    pub(super) impossible: bool,
}

/// A demand that some waiting gang has.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    signature: Arc<Signature>,
    pub(super) totals: Totals,
    /// The signature of the demand with amounts rounded down to powers of two: what shapes of one group have in common.
    pub(super) rounded: Signature,
    /// What its pods ask for, as [`Demand::amounts`] gives it.
    pub(super) amounts: Vec<i64>,
    /// By Flavor, `None` for gangs that need no quota.
    pub(super) refused: BTreeMap<Option<FlavorName>, Refused>,
    pub(super) on_empty: BTreeMap<Option<FlavorName>, OnEmpty>,
    gangs: usize,
}

/// The shapes of all waiting gangs, and of no others.
#[derive(Clone, Debug, Default)]
pub(super) struct Shapes {
    shapes: Slab<ShapeId, Shape>,
    by_signature: BTreeMap<Arc<Signature>, ShapeId>,
}

impl Shapes {
    /// The shape of a gang, which is counted until it is given back.
    pub(super) fn take(&mut self, demand: &Demand, wish: &TopologyRequest) -> ShapeId {
        let signature = demand.signature(wish);
        if let Some(id) = self.by_signature.get(&signature) {
            if let Some(shape) = self.shapes.get_mut(*id) {
                shape.gangs += 1;
            }
            return *id;
        }
        let signature = Arc::new(signature);
        let id = self.shapes.insert(Shape {
            totals: Totals::of(demand),
            rounded: rounded_down(demand).signature(wish),
            amounts: demand.amounts(),
            signature: Arc::clone(&signature),
            refused: BTreeMap::new(),
            on_empty: BTreeMap::new(),
            gangs: 1,
        });
        self.by_signature.insert(signature, id);
        id
    }

    /// A gang of this shape waits no longer.
    pub(super) fn give_back(&mut self, id: ShapeId) {
        let Some(shape) = self.shapes.get_mut(id) else {
            return;
        };
        shape.gangs -= 1;
        if shape.gangs == 0
            && let Some(shape) = self.shapes.remove(id)
        {
            self.by_signature.remove(&shape.signature);
        }
    }

    pub(super) fn get(&self, id: ShapeId) -> Option<&Shape> {
        self.shapes.get(id)
    }

    pub(super) fn get_mut(&mut self, id: ShapeId) -> Option<&mut Shape> {
        self.shapes.get_mut(id)
    }

    /// Forgets what was found out: a Flavor or Topology is another one.
    pub(super) fn forget(&mut self) {
        for id in self.by_signature.values() {
            if let Some(shape) = self.shapes.get_mut(*id) {
                shape.refused.clear();
                shape.on_empty.clear();
            }
        }
    }
}

fn rounded_down(demand: &Demand) -> Demand {
    let mut probe = demand.clone();
    let pods = probe
        .classes
        .iter_mut()
        .flat_map(|class| &mut class.shape.pods);
    for amount in pods.flat_map(|pod| pod.resources.amounts_mut()) {
        *amount = power_of_two_at_most(*amount);
    }
    probe
}

fn power_of_two_at_most(amount: i64) -> i64 {
    amount
        .max(0)
        .checked_ilog2()
        .map_or(0, |exponent| 1_i64 << exponent)
}

#[cfg(test)]
mod tests {
    use super::power_of_two_at_most;

    #[test]
    fn amounts_are_rounded_down_and_never_up() {
        for (amount, expected) in [(-5, 0), (0, 0), (1, 1), (3, 2), (4, 4), (i64::MAX, 1 << 62)] {
            assert_eq!(power_of_two_at_most(amount), expected, "{amount}");
        }
    }
}
