//! When several pods may wait for devices on one node.
//!
//! kube-scheduler allocates claims pod by pod, in an order that nobody promises, and other pods may end in
//! between. So a plan may put a second pod that draws devices on a node only where the order cannot matter.
//! The rule, the simplest that is sound: two claims of different pods may wait on one node if the devices
//! that match them have nothing in common; or if the very same devices match both, these are charged alike
//! and of the same Flavors, and both ask either for any of them, or for equally many that share the value of
//! one and the same attribute. In the first case neither sees the other; in the second every order leaves
//! equally many (for equal groups, first fit is as good as any choice), also when further devices come free.
//! Other pairs could work in some orders; they go to different nodes.

use super::{demand::ClaimShape, device_set::DeviceSet, node::NodeRecord};
use crate::names::AttributeName;

/// Which pod draws; claims of one pod are allocated together and need no rule among themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allocator {
    /// A pod with a hold.
    Held(usize),
    /// A pod that is being planned.
    Planned(usize),
    /// Any of several pods that share the claim.
    Open,
}

/// A claim that is to be allocated on a node.
#[derive(Clone, Debug)]
pub(crate) struct PendingAllocation {
    tag: Allocator,
    /// Every device that matches some request of it.
    pub(crate) candidates: DeviceSet,
    /// Whether it does not matter which of the candidates it gets.
    pub(crate) uniform: bool,
    /// How many devices it asks for.
    pub(crate) count: usize,
    pub(crate) kind: AllocationKind,
}

/// How a claim draws.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AllocationKind {
    /// Any of the candidates.
    Any,
    /// Any of the candidates that share a value.
    Group(AttributeName),
    /// In another way.
    Other,
}

impl PendingAllocation {
    pub(crate) fn new(record: &NodeRecord, shape: &ClaimShape, tag: Allocator) -> Self {
        let none = DeviceSet::none(record.node.devices.len());
        let mut requests = shape.requests.iter().filter(|(_, count)| *count > 0);
        let matching = |selector| record.candidates(selector);
        let first = requests
            .next()
            .and_then(|(selector, _)| matching(*selector));
        let mut candidates = first.map_or(none, |first| first.devices.clone());
        let uniform = first.is_none_or(|first| first.uniform);
        let mut one_kind = true;
        for (selector, _) in requests {
            let others = matching(*selector).map(|matching| &matching.devices);
            one_kind &= others == Some(&candidates);
            for device in others.into_iter().flat_map(DeviceSet::iter) {
                candidates.insert(device);
            }
        }
        let count = shape.devices();
        let kind = match shape.constraints.as_slice() {
            _ if !one_kind => AllocationKind::Other,
            [] => AllocationKind::Any,
            [(covered, attribute)] if covered.len() == shape.requests.len() => {
                AllocationKind::Group(attribute.clone())
            }
            _ => AllocationKind::Other,
        };
        Self {
            tag,
            candidates,
            uniform,
            count,
            kind,
        }
    }
}

/// Whether two claims may wait on one node.
pub(crate) fn may_share_a_node(one: &PendingAllocation, other: &PendingAllocation) -> bool {
    if one.tag == other.tag && one.tag != Allocator::Open {
        return true;
    }
    if one.candidates.is_disjoint(&other.candidates) {
        return true;
    }
    let alike = one.candidates == other.candidates && one.uniform && other.uniform;
    alike
        && match (&one.kind, &other.kind) {
            (AllocationKind::Any, AllocationKind::Any) => true,
            (AllocationKind::Group(one_by), AllocationKind::Group(other_by)) => {
                one_by == other_by && one.count == other.count
            }
            _ => false,
        }
}
