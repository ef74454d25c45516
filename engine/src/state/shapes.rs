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
    /// The steps after which the search ended before it had looked at everything; `None` if it looked at everything. To
    /// whoever has more steps that says nothing.
    pub(super) gave_up_after: Option<u64>,
}

impl Refused {
    /// Whether it says anything to somebody who has so many steps.
    pub(super) fn holds_with(&self, steps: u64) -> bool {
        self.gave_up_after.is_none_or(|had| had >= steps)
    }
}

/// Whether a shape would fit on the empty cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnEmpty {
    /// As of which inventory.
    pub(super) inventory: u64,
    pub(super) impossible: bool,
    /// The steps after which the search gave up. To whoever has more that says nothing.
    pub(super) gave_up_after: Option<u64>,
}

/// A demand that some waiting gang has.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    signature: Arc<Signature>,
    pub(super) totals: Totals,
    /// The signature with amounts rounded down: what shapes of one group have in common, and share.
    pub(super) rounded: Arc<Signature>,
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
    all: Slab<ShapeId, Shape>,
    by_signature: BTreeMap<Arc<Signature>, ShapeId>,
    /// Signatures with amounts rounded down, each with the number of its shapes.
    roundings: BTreeMap<Arc<Signature>, usize>,
}

impl Shapes {
    /// The shape of a gang, which is counted until it is given back.
    pub(super) fn take(&mut self, demand: &Demand, wish: &TopologyRequest) -> ShapeId {
        let signature = demand.signature(wish);
        if let Some(id) = self.by_signature.get(&signature) {
            if let Some(shape) = self.all.get_mut(*id) {
                shape.gangs += 1;
            }
            return *id;
        }
        let rounded = self.rounding(signature.rounded_down());
        let signature = Arc::new(signature);
        let id = self.all.insert(Shape {
            totals: Totals::of(demand),
            rounded,
            amounts: demand.amounts(),
            signature: Arc::clone(&signature),
            refused: BTreeMap::new(),
            on_empty: BTreeMap::new(),
            gangs: 1,
        });
        self.by_signature.insert(signature, id);
        id
    }

    /// A rounded signature, which is counted until its shape goes.
    fn rounding(&mut self, rounded: Signature) -> Arc<Signature> {
        let known = self.roundings.get_key_value(&rounded);
        let rounded = known.map_or_else(|| Arc::new(rounded), |(known, _)| Arc::clone(known));
        *self.roundings.entry(Arc::clone(&rounded)).or_default() += 1;
        rounded
    }

    /// A gang of this shape waits no longer.
    pub(super) fn give_back(&mut self, id: ShapeId) {
        let Some(shape) = self.all.get_mut(id) else {
            return;
        };
        shape.gangs -= 1;
        if shape.gangs == 0
            && let Some(shape) = self.all.remove(id)
        {
            self.by_signature.remove(&shape.signature);
            if let Some(shapes) = self.roundings.get_mut(&shape.rounded) {
                *shapes -= 1;
                if *shapes == 0 {
                    self.roundings.remove(&shape.rounded);
                }
            }
        }
    }

    pub(super) fn get(&self, id: ShapeId) -> Option<&Shape> {
        self.all.get(id)
    }

    pub(super) fn get_mut(&mut self, id: ShapeId) -> Option<&mut Shape> {
        self.all.get_mut(id)
    }

    /// Forgets what was found out: a Flavor or Topology is another one.
    pub(super) fn forget(&mut self) {
        for id in self.by_signature.values() {
            if let Some(shape) = self.all.get_mut(*id) {
                shape.refused.clear();
                shape.on_empty.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{Gang, Pod, PodResources},
        names::{NodeFilterId, Timestamp},
    };

    /// The demand of a pod that asks for so many bytes.
    fn asking(memory_bytes: i64) -> Demand {
        let resources = PodResources {
            memory_bytes,
            ..PodResources::default()
        };
        Demand::new(&Gang {
            uid: "g".into(),
            name: "ml/g".into(),
            attempt: 1,
            team: "ml".into(),
            priority: 0,
            queued_at: Timestamp(0),
            may_borrow: true,
            topology: TopologyRequest::default(),
            run_time: crate::model::RunTime::default(),
            lacks_place_since: None,
            min_count: None,
            pods: vec![Pod {
                uid: "p".into(),
                resources,
                filter: NodeFilterId(0),
                claims: Vec::new(),
            }],
        })
    }

    #[test]
    fn shapes_that_differ_in_amounts_share_their_rounding_and_leave_nothing_behind() {
        let gib = 1_i64 << 30;
        let wish = TopologyRequest::default();
        let mut shapes = Shapes::default();
        let gangs: Vec<Demand> = (0..50_000).map(|at| asking(gib + at)).collect();
        let ids: Vec<ShapeId> = gangs.iter().map(|gang| shapes.take(gang, &wish)).collect();
        let again: Vec<ShapeId> = gangs.iter().map(|gang| shapes.take(gang, &wish)).collect();
        assert_eq!(ids, again);
        assert_eq!(
            (shapes.by_signature.len(), shapes.roundings.len()),
            (50_000, 1)
        );
        let other = shapes.take(&asking(2 * gib), &wish);
        assert_eq!(shapes.roundings.len(), 2);
        for id in ids.into_iter().chain(again).chain([other]) {
            shapes.give_back(id);
        }
        assert!(shapes.by_signature.is_empty() && shapes.roundings.is_empty());
        assert_eq!(shapes.all.iter().count(), 0);
    }
}
