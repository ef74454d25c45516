//! When several pods may wait for devices on one node.
//!
//! kube-scheduler allocates claims pod by pod, in an order that nobody promises, and other pods may end in
//! between. So a plan puts a second pod whose claims are not allocated yet on a node only where the order cannot
//! matter. The rule is the simplest that is sound: claims of different pods may wait on one node
//!
//! * if no device matches both of them: neither sees the other; or
//! * if the very same devices match both, these are charged alike and belong to the same Flavors, and both claims
//!   ask either for any of them, or for equally many that share the value of the same attribute. Then every order
//!   leaves equally many (among equal groups first fit is as good as any choice), also when further devices
//!   come free.
//!
//! Other pairs would work in some orders; they go to different nodes.

use super::{demand::ClaimShape, device_set::DeviceSet, kind::NodeKind};
use crate::names::AttributeName;

/// The pod for which a claim will be allocated. Claims of one pod are allocated together and need no rule among
/// themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allocator {
    /// A pod with a hold.
    Held(usize),
    /// A pod that is being planned.
    Planned(usize),
    /// Any of several pods that share the claim.
    Any,
}

/// A claim that is to be allocated on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingAllocation {
    allocator: Allocator,
    /// Every device that matches some request of it.
    pub(crate) candidates: DeviceSet,
    /// Whether it does not matter which of the candidates it gets.
    pub(crate) uniform: bool,
    /// How many devices it asks for.
    pub(crate) count: usize,
    pub(crate) choice: Choice,
}

/// Which of its candidates a claim takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Any of them.
    Any,
    /// Any of them that share a value of the attribute.
    Group(AttributeName),
    /// Something that depends on the request.
    Other,
}

impl PendingAllocation {
    pub(crate) fn new(kind: &NodeKind, shape: &ClaimShape, allocator: Allocator) -> Self {
        let none = DeviceSet::none(kind.devices());
        let mut requests = shape.requests.iter().filter(|(_, count)| *count > 0);
        let matching = |selector| kind.candidates(selector);
        let first = requests
            .next()
            .and_then(|(selector, _)| matching(*selector));
        let mut candidates = first.map_or(none, |first| first.devices.clone());
        let uniform = first.is_none_or(|first| first.uniform);
        let mut alike = true;
        for (selector, _) in requests {
            let others = matching(*selector).map(|matching| &matching.devices);
            alike &= others == Some(&candidates);
            if let Some(others) = others {
                candidates.extend(others);
            }
        }
        let choice = match shape.constraints.as_slice() {
            _ if !alike => Choice::Other,
            [] => Choice::Any,
            [(covered, attribute)] if covered.len() == shape.requests.len() => {
                Choice::Group(attribute.clone())
            }
            _ => Choice::Other,
        };
        Self {
            allocator,
            candidates,
            uniform,
            count: shape.devices(),
            choice,
        }
    }

    /// Whether the other asks for the same, whichever pod it is allocated for.
    pub(crate) fn asks_like(&self, other: &Self) -> bool {
        self.count == other.count
            && self.choice == other.choice
            && self.candidates == other.candidates
    }
}

/// Whether two claims may wait on one node.
pub(crate) fn may_share_a_node(one: &PendingAllocation, other: &PendingAllocation) -> bool {
    if one.allocator == other.allocator && one.allocator != Allocator::Any {
        return true;
    }
    if one.candidates.is_disjoint(&other.candidates) {
        return true;
    }
    let alike = one.candidates == other.candidates && one.uniform && other.uniform;
    alike
        && match (&one.choice, &other.choice) {
            (Choice::Any, Choice::Any) => true,
            (Choice::Group(one_by), Choice::Group(other_by)) => {
                one_by == other_by && one.count == other.count
            }
            _ => false,
        }
}
