//! When several pods may wait for devices on one node.
//!
//! kube-scheduler allocates claims pod by pod, in an order that nobody promises, and other pods may end in
//! between. So a plan puts a second pod whose claims are not allocated yet on a node only where the order cannot
//! matter. The rule is the simplest that is sound: claims of different pods may wait on one node
//!
//! * if no device matches both of them, and none that matches the one draws from a counter from which one draws that matches the
//!   other: neither sees the other; or
//! * if both [come to](NodeKind::settled) the very same devices, these are charged alike and belong to the same Flavors, it makes no
//!   difference which of them are taken first, and both claims ask either for any of them, or for equally many that share the value
//!   of the same attribute. Then every order leaves equally many (among equal groups first fit is as good as any choice), also
//!   when further devices come free.
//!
//! Why counters change nothing in that: devices among which it makes no difference ([`Together`](super::counters::Together)) form
//! groups. Of a group as many are to be had as are open, or as what is left of their common counters suffices for, whichever is less. Whichever
//! of them is taken, both numbers are less by one, in this group and in no other, since what it draws besides is its own. What comes free
//! makes no number less. So a claim for some of them is met exactly if the sum over all groups is as large, and every order of the same
//! claims leaves the same sum. Nobody else draws from these counters meanwhile: whoever waits on the node and could is among those that come to
//! the same devices. A pool that is overdrawn gives nothing to any of them, before and after.
//!
//! Why choices change nothing: a claim comes to the devices of one choice only if it is the first that there are devices for, and wherever a
//! device of a later one is to be had one of the first is, whatever else is allocated: it lies inside the other. So kube-scheduler never gets
//! to the later choices, or finds nothing in them. (What they match still counts as what the claim may see.)
//!
//! Why devices of several sizes change nothing where the small ones stand first: of the candidates of one choice a claim comes to the
//! first ones alone ([`NodeKind::taken_first`]). Before each other one there stands, in the order of devices, one of the first that lies
//! inside it. Take any complete solution of kube-scheduler's search that has such another one, and put the one inside in its place. That one
//! is free: whoever has it, be it another request of the same pod, leaves too little for the other. It draws no more, so the rest of the
//! solution stands. And the search comes to this solution sooner, since it tries devices in their order. So the solution that it finds
//! has none of the others, whatever is allocated and whatever comes free; and it finds one wherever it would with them. The one inside might
//! not meet a constraint: claims with any are left out. (All that a choice matches still counts as what the claim may see.)
//!
//! Where NVLink groups, say, are asked for, devices that share a counter must agree in the attribute: then each of its groups is a sum of
//! whole groups, and the same holds for them. With choices besides, what lies inside another device might not agree with it: that is left
//! out.
//!
//! Claims for slices of several sizes ([`suffice_in_any_order`]): each comes to devices of one kind, any of them, and of each kind there are
//! so many that whatever the others take, and whichever they take, leaves enough. A device that is taken leaves so many fewer of another
//! kind at most, whatever is free; so the sum of what all take is the most by which any of them can be less when its turn comes. What comes free
//! meanwhile makes no number less, and once one of them is allocated what there is and what is still to be taken are less by the same at
//! most. What counts is what was free before anything was set aside for those that wait.
//!
//! Other pairs would work in some orders; they go to different nodes.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    allocator::MAX_DEVICES_PER_CLAIM,
    counters::Together,
    demand::{ClaimShape, RequestShape},
    device_set::DeviceSet,
    kind::{Candidates, NodeKind},
};
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
    /// Every device that matches some choice of some request of it.
    pub(crate) candidates: DeviceSet,
    /// Those, and all that draw from a counter from which one of them draws; `None`: no others.
    reach: Option<DeviceSet>,
    /// The devices to which it comes, if all its requests come to the same.
    pub(crate) from: Option<DeviceSet>,
    /// How many of these can be allocated at once.
    together: Option<Arc<Together>>,
    /// Whether it does not matter for its charge which of these it gets.
    pub(crate) uniform: bool,
    /// How many devices it asks for.
    pub(crate) count: usize,
    pub(crate) choice: Choice,
}

/// Which of the devices to which it comes a claim takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Any of them.
    Any,
    /// Any of them that share a value of the attribute.
    Group(AttributeName),
    /// Something that depends on the request.
    Other,
}

/// The devices to which all requests of a claim come on a node of a kind, and how many it takes of them; `None` if they come to
/// different ones, or to none.
pub(crate) fn settled<'a>(
    kind: &'a NodeKind,
    shape: &ClaimShape,
    tainted: &DeviceSet,
) -> Option<(&'a Candidates, usize)> {
    let mut found: Option<(&Candidates, usize)> = None;
    for request in shape.requests.iter().filter(|it| asks(it)) {
        let (candidates, count) = kind.settled(request, tainted)?;
        let candidates = if shape.constraints.is_empty() {
            kind.taken_first(candidates, tainted)
        } else {
            candidates
        };
        found = match found {
            None => Some((candidates, count)),
            Some((first, sum)) if first.devices == candidates.devices => Some((first, sum + count)),
            Some(_) => return None,
        };
    }
    // Of more devices than a claim can have kube-scheduler would come to a later choice, or to none.
    found.filter(|(_, count)| *count <= MAX_DEVICES_PER_CLAIM)
}

fn asks(request: &RequestShape) -> bool {
    request.least() > 0
}

impl PendingAllocation {
    pub(crate) fn new(
        kind: &NodeKind,
        tainted: &DeviceSet,
        shape: &ClaimShape,
        allocator: Allocator,
    ) -> Self {
        let mut candidates = DeviceSet::none(kind.devices());
        let choices = shape.requests.iter().flat_map(|it| &it.choices);
        for (selector, _) in choices.filter(|(_, count)| *count > 0) {
            if let Some(matching) = kind.candidates(*selector) {
                candidates.extend(&matching.devices);
            }
        }
        let reach = kind.has_counters().then(|| {
            let mut reach = candidates.clone();
            for beside in candidates.iter().filter_map(|at| kind.counters.beside(at)) {
                reach.extend(beside);
            }
            reach
        });
        let settled = settled(kind, shape, tainted);
        let choice = match (settled, shape.constraints.as_slice()) {
            (None, []) if shape.devices() == 0 => Choice::Any,
            (Some((of, _)), _) if !of.together.is_countable() => Choice::Other,
            (Some(_), []) => Choice::Any,
            (Some((of, _)), [constraint])
                if (shape.has_one_choice() || !kind.has_counters())
                    && covers_all(shape, constraint.covered.len())
                    && kind.agree_in_groups(of, &constraint.attribute) =>
            {
                Choice::Group(constraint.attribute.clone())
            }
            _ => Choice::Other,
        };
        Self {
            allocator,
            candidates,
            reach,
            from: settled.map(|(of, _)| of.devices.clone()),
            together: settled.map(|(of, _)| Arc::clone(&of.together)),
            uniform: settled.is_none_or(|(of, _)| of.uniform),
            count: settled.map_or_else(|| shape.devices(), |(_, count)| count),
            choice,
        }
    }

    /// Whether the other asks for the same, whichever pod it is allocated for.
    pub(crate) fn asks_like(&self, other: &Self) -> bool {
        self.count == other.count
            && self.choice == other.choice
            && self.from == other.from
            && self.candidates == other.candidates
    }

    /// Whether nothing of what it may see is what the other may get.
    fn is_apart_from(&self, other: &Self) -> bool {
        let reach = self.reach.as_ref().unwrap_or(&self.candidates);
        reach.is_disjoint(&other.candidates)
    }
}

/// Whether so many choices are all that a claim has.
fn covers_all(shape: &ClaimShape, covered: usize) -> bool {
    let choices = shape.requests.iter().map(|it| it.choices.len());
    choices.sum::<usize>() == covered
}

/// Whether two claims may wait on one node.
pub(crate) fn may_share_a_node(one: &PendingAllocation, other: &PendingAllocation) -> bool {
    if one.allocator == other.allocator && one.allocator != Allocator::Any {
        return true;
    }
    if one.is_apart_from(other) {
        return true;
    }
    let alike = one.from.is_some() && one.from == other.from && one.uniform && other.uniform;
    alike
        && match (&one.choice, &other.choice) {
            (Choice::Any, Choice::Any) => true,
            (Choice::Group(one_by), Choice::Group(other_by)) => {
                one_by == other_by && one.count == other.count
            }
            _ => false,
        }
}

/// Most kinds of devices for which claims wait on a node, in any order: each is compared with each.
const MOST_KINDS: usize = 8;

/// Most devices that are compared with groups of devices to find out whether there are enough in any order. Sixteen GPUs have some hundred
/// slices of the smallest size, in sixteen groups.
const MOST_LOOKS: usize = 8_192;

/// What is asked of devices among which it makes no difference which are taken.
struct AskedOf<'a> {
    together: &'a Together,
    count: usize,
}

/// Whether all these claims get their devices in whatever order they are allocated, if just these devices were free and so much were left
/// of counters, and whatever comes free meanwhile. Each is charged the same in every order.
pub(crate) fn suffice_in_any_order(
    kind: &NodeKind,
    (free, left): (&DeviceSet, &[i64]),
    claims: &[&PendingAllocation],
) -> bool {
    let mut asked: BTreeMap<&DeviceSet, AskedOf<'_>> = BTreeMap::new();
    for (at, claim) in claims.iter().enumerate() {
        let is_any = claim.uniform && claim.choice == Choice::Any;
        if is_any && let (Some(from), Some(together)) = (&claim.from, &claim.together) {
            let together = &**together;
            let of = asked.entry(from).or_insert(AskedOf { together, count: 0 });
            of.count = of.count.saturating_add(claim.count);
        } else {
            let others = claims.iter().enumerate().filter(|(other, _)| *other != at);
            let mut others = others.map(|(_, other)| other);
            if !others.all(|other| claim.is_apart_from(other)) {
                return false;
            }
        }
    }
    if asked.len() > MOST_KINDS || looks(&asked) > MOST_LOOKS {
        return false;
    }
    asked.iter().all(|(devices, of)| {
        let lost_to = |taken| of.together.lost_to(&kind.counters, devices, taken);
        let mut needed: Option<usize> = Some(0);
        for (others, taking) in &asked {
            let most = others
                .iter()
                .try_fold(0, |most: usize, taken| Some(most.max(lost_to(taken)?)));
            let lost = most.and_then(|most| most.checked_mul(taking.count));
            needed = needed
                .zip(lost)
                .and_then(|(sum, lost)| sum.checked_add(lost));
        }
        let there = of.together.count(devices, free, left);
        needed
            .zip(there)
            .is_some_and(|(needed, there)| needed <= there)
    })
}

/// How many devices are compared with how many groups.
fn looks(asked: &BTreeMap<&DeviceSet, AskedOf<'_>>) -> usize {
    let groups = asked.values().map(|of| of.together.groups().len().max(1));
    let devices = asked.keys().map(|devices| devices.len());
    groups.sum::<usize>().saturating_mul(devices.sum())
}
