//! kube-scheduler's structured allocator, simulated: what it would allocate on a node.
//!
//! As in `dynamic-resource-allocation/structured` (1.36 and later): a depth-first search over the pod's
//! claims in pod order, requests in claim order, choices of a request (`firstAvailable`) in their order and each alone, devices in
//! slice order; within one choice combinations only, never permutations; the first complete solution wins, devices are not
//! scored. A device is left out that is in use, that draws more of a counter than is left (`counters`), or that
//! does not agree with those that a constraint covers. A choice that would bring a claim to more than
//! [`MAX_DEVICES_PER_CLAIM`] devices is passed over.
//!
//! Before the fix of kubernetes/kubernetes#140436, which 1.37 has, a device that a constraint or a taint excludes keeps what it would have
//! drawn from counters until the search ends: a claim for slices may be refused there that has a place.

use super::{counters::Left, demand::ClaimShape, device_set::DeviceSet, kind::NodeKind};

/// Most devices that one claim can be allocated (`AllocationResultsMaxSize` of `resource.k8s.io/v1`).
pub(crate) const MAX_DEVICES_PER_CLAIM: usize = 32;

/// Most devices looked at for one pod. kube-scheduler gives up by time; a search that long is not
/// worth a promise, and the pod is not planned for the node, whether it would fit there or not.
const MAX_STEPS: usize = 5_000;

/// What allocations have cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Devices that were looked at.
    pub(crate) looks: u64,
    /// Whether one ended before it had looked at everything: that it found nothing proves nothing.
    pub(crate) gave_up: bool,
}

impl Tally {
    /// The same as steps of an [`Effort`](super::Effort). A look at a device takes about 10 nanoseconds.
    pub(crate) fn steps(&self) -> u64 {
        self.looks / 4
    }
}

/// A request whose devices are to be found.
struct Asked {
    claim: usize,
    request: usize,
    choices: Vec<Choice>,
}

/// One way to satisfy it.
struct Choice {
    /// Which of the claim's it is.
    number: usize,
    count: usize,
    /// What matches. Of devices that share counters those are left out of which too little is left anyway.
    candidates: DeviceSet,
}

/// A device that is found.
#[derive(Clone, Copy)]
struct Chosen {
    claim: usize,
    request: usize,
    choice: usize,
    device: usize,
}

struct Search<'a> {
    kind: &'a NodeKind,
    claims: &'a [&'a ClaimShape],
    free: DeviceSet,
    left: Left,
    chosen: Vec<Chosen>,
    steps_left: usize,
}

/// The devices that each of one pod's claims would get of those that are free, or `None`. `left` is what is left of the node's
/// counters; of a pool of which something is overdrawn nothing is free.
pub(crate) fn allocate(
    kind: &NodeKind,
    free: &DeviceSet,
    left: &[i64],
    claims: &[&ClaimShape],
    tally: &mut Tally,
) -> Option<Vec<Vec<usize>>> {
    let mut all = Vec::new();
    for (claim, shape) in claims.iter().enumerate() {
        if shape.devices() > MAX_DEVICES_PER_CLAIM {
            return None;
        }
        for request in 0..shape.requests.len() {
            let asked = Asked::of(kind, free, claim, request, shape);
            if asked.choices.is_empty() {
                return None;
            }
            all.push(asked);
        }
    }
    let mut search = Search {
        kind,
        claims,
        free: free.clone(),
        left: left.to_vec(),
        chosen: Vec::new(),
        steps_left: MAX_STEPS,
    };
    let is_filled = search.fill(&all);
    tally.looks += (MAX_STEPS - search.steps_left) as u64;
    if !is_filled {
        tally.gave_up |= search.steps_left == 0;
        return None;
    }
    let mut granted = vec![Vec::new(); claims.len()];
    for chosen in &search.chosen {
        granted[chosen.claim].push(chosen.device);
    }
    Some(granted)
}

impl Asked {
    /// With the choices for which there are as many free devices.
    fn of(
        kind: &NodeKind,
        free: &DeviceSet,
        claim: usize,
        request: usize,
        shape: &ClaimShape,
    ) -> Self {
        let choices = shape.requests[request].choices.iter().enumerate();
        let choices = choices.filter_map(|(number, (selector, count))| {
            let matching = kind.candidates(*selector).map(|matching| &matching.devices);
            let candidates = match matching {
                Some(matching) if matching.common(free) < *count => return None,
                Some(matching) if kind.has_counters() => matching.and(free),
                Some(matching) => matching.clone(),
                None if *count > 0 => return None,
                None => DeviceSet::none(kind.devices()),
            };
            Some(Choice {
                number,
                count: *count,
                candidates,
            })
        });
        Self {
            claim,
            request,
            choices: choices.collect(),
        }
    }
}

impl Search<'_> {
    /// Finds the devices of some requests; leaves everything as it was if that cannot be done.
    fn fill(&mut self, asked: &[Asked]) -> bool {
        let Some((first, rest)) = asked.split_first() else {
            return true;
        };
        let of_claim = self.chosen.iter().filter(|it| it.claim == first.claim);
        let room = MAX_DEVICES_PER_CLAIM.saturating_sub(of_claim.count());
        first
            .choices
            .iter()
            .any(|choice| choice.count <= room && self.choose(first, choice, choice.count, 0, rest))
    }

    /// Finds so many more devices by one choice, none before a place in the order, and those of the requests behind it.
    fn choose(
        &mut self,
        asked: &Asked,
        choice: &Choice,
        missing: usize,
        first: usize,
        rest: &[Asked],
    ) -> bool {
        if missing == 0 {
            return self.fill(rest);
        }
        for device in choice.candidates.iter_from(first) {
            if self.steps_left == 0 {
                return false;
            }
            self.steps_left -= 1;
            let chosen = Chosen {
                claim: asked.claim,
                request: asked.request,
                choice: choice.number,
                device,
            };
            let is_open =
                self.free.contains(device) && self.kind.counters.admit(&self.left, device);
            if !is_open || !self.meets_constraints(chosen) {
                continue;
            }
            self.free.remove(device);
            self.kind.counters.take(&mut self.left, device);
            self.chosen.push(chosen);
            if self.choose(asked, choice, missing - 1, device + 1, rest) {
                return true;
            }
            self.chosen.pop();
            self.kind.counters.give_back(&mut self.left, device);
            self.free.insert(device);
        }
        false
    }

    /// Whether a device has, for each constraint on what it is to be chosen for, the attribute, and
    /// with the value of those chosen before.
    fn meets_constraints(&self, next: Chosen) -> bool {
        let constraints = self.claims[next.claim].constraints.iter();
        let mut covering = constraints.filter(|it| it.covers(next.request, next.choice));
        covering.all(|constraint| {
            let attribute = &constraint.attribute;
            let Some(value) = self.kind.value(next.device, attribute) else {
                return false;
            };
            let earlier = self.chosen.iter().find(|other| {
                other.claim == next.claim && constraint.covers(other.request, other.choice)
            });
            earlier.is_none_or(|other| self.kind.value(other.device, attribute) == Some(value))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, BTreeSet},
        sync::Arc,
    };

    use super::*;
    use crate::{
        names::SelectorId,
        placement::{
            demand::{ConstraintShape, RequestShape},
            fixtures,
            kind::Kinds,
        },
    };

    /// A node of devices, each with the numbers of the selectors it matches and maybe a group.
    fn kind(devices: &[(&[u32], Option<&str>)]) -> Arc<NodeKind> {
        let mut node = fixtures::node("n", devices.len());
        for (device, (selectors, group)) in node.devices.iter_mut().zip(devices) {
            let selectors: BTreeSet<_> = selectors.iter().copied().map(SelectorId).collect();
            device.selectors = selectors.into();
            let attributes: BTreeMap<_, _> = group
                .iter()
                .map(|group| ("group".into(), (*group).to_owned()))
                .collect();
            device.attributes = attributes.into();
            device.flavors = BTreeSet::new();
        }
        Kinds::default().enter(&node)
    }

    /// A claim of requests, each a selector and a count; grouped if the requests named share a group.
    fn claim(requests: &[(u32, usize)], grouped: &[usize]) -> ClaimShape {
        let constraint = (!grouped.is_empty()).then(|| ConstraintShape {
            covered: grouped.iter().map(|request| (*request, 0)).collect(),
            attribute: "group".into(),
        });
        let of_one_choice = |(selector, count): &(u32, usize)| RequestShape {
            choices: vec![(SelectorId(*selector), *count)],
        };
        ClaimShape {
            requests: requests.iter().map(of_one_choice).collect(),
            constraints: constraint.into_iter().collect(),
        }
    }

    fn granted(kind: &NodeKind, claims: &[ClaimShape]) -> Option<Vec<Vec<usize>>> {
        let claims: Vec<&ClaimShape> = claims.iter().collect();
        let free = DeviceSet::of(kind.devices(), 0..kind.devices());
        let left = kind.counters.total();
        allocate(kind, &free, left, &claims, &mut Tally::default())
    }

    /// Whether it is given up, and how many devices are looked at.
    fn tally(kind: &NodeKind, claims: &[ClaimShape]) -> Tally {
        let claims: Vec<&ClaimShape> = claims.iter().collect();
        let free = DeviceSet::of(kind.devices(), 0..kind.devices());
        let mut tally = Tally::default();
        allocate(kind, &free, kind.counters.total(), &claims, &mut tally);
        tally
    }

    #[test]
    fn the_first_devices_in_order_are_taken() {
        let kind = kind(&[(&[0], None), (&[1], None), (&[0], None), (&[0, 1], None)]);
        let claims = [claim(&[(0, 2)], &[]), claim(&[(1, 2)], &[])];
        assert_eq!(granted(&kind, &claims), Some(vec![vec![0, 2], vec![1, 3]]));
    }

    #[test]
    fn an_earlier_claim_gives_way_to_a_later_one_of_the_same_pod() {
        let kind = kind(&[(&[0, 1], None), (&[0], None)]);
        let claims = [claim(&[(0, 1)], &[]), claim(&[(1, 1)], &[])];
        assert_eq!(granted(&kind, &claims), Some(vec![vec![1], vec![0]]));
    }

    #[test]
    fn a_constraint_holds_over_its_requests_and_leaves_others_alone() {
        let devices: [(&[u32], Option<&str>); 4] = [
            (&[0], Some("a")),
            (&[0], Some("b")),
            (&[0], None),
            (&[0], Some("b")),
        ];
        let kind = kind(&devices);
        assert_eq!(
            granted(&kind, &[claim(&[(0, 2)], &[0])]),
            Some(vec![vec![1, 3]])
        );
        assert_eq!(granted(&kind, &[claim(&[(0, 3)], &[0])]), None);
        let second_alone = claim(&[(0, 1), (0, 2)], &[1]);
        assert_eq!(granted(&kind, &[second_alone]), Some(vec![vec![0, 1, 3]]));
    }

    #[test]
    fn more_devices_than_an_allocation_can_list_are_never_granted() {
        let devices: Vec<(&[u32], Option<&str>)> = vec![(&[0], None); MAX_DEVICES_PER_CLAIM + 1];
        let kind = kind(&devices);
        assert!(granted(&kind, &[claim(&[(0, MAX_DEVICES_PER_CLAIM)], &[])]).is_some());
        assert_eq!(
            granted(&kind, &[claim(&[(0, MAX_DEVICES_PER_CLAIM + 1)], &[])]),
            None
        );
    }

    #[test]
    fn a_choice_that_would_bring_a_claim_to_too_many_devices_is_passed_over() {
        let devices: Vec<(&[u32], Option<&str>)> = vec![(&[0], None); 2 * MAX_DEVICES_PER_CLAIM];
        let kind = kind(&devices);
        let granted_with = |choices: &[usize]| {
            let mut claim = claim(&[(0, 20), (0, 1)], &[]);
            let choices = choices.iter().map(|count| (SelectorId(0), *count));
            claim.requests[1].choices = choices.collect();
            granted(&kind, &[claim]).map(|granted| granted[0].len())
        };
        assert_eq!(granted_with(&[12, 1]), Some(MAX_DEVICES_PER_CLAIM));
        assert_eq!(granted_with(&[13, 1]), Some(21));
        assert_eq!(granted_with(&[13, 14]), None);
    }

    #[test]
    fn choices_are_tried_in_their_order_and_each_alone() {
        let kind = kind(&[
            (&[0], Some("a")),
            (&[0], Some("b")),
            (&[1], Some("b")),
            (&[2], None),
        ]);
        let mut asked = claim(&[(0, 2), (1, 1)], &[]);
        asked.requests[0].choices =
            vec![(SelectorId(0), 3), (SelectorId(2), 1), (SelectorId(0), 1)];
        assert_eq!(granted(&kind, &[asked.clone()]), Some(vec![vec![3, 2]]));
        // The request and one alternative of the other share a group, which brings the first to its last choice.
        asked.constraints = vec![ConstraintShape {
            covered: vec![(0, 0), (0, 1), (0, 2), (1, 0)],
            attribute: "group".into(),
        }];
        assert_eq!(granted(&kind, &[asked.clone()]), Some(vec![vec![1, 2]]));
        asked.constraints[0].covered = vec![(0, 0), (0, 2), (1, 0)];
        assert_eq!(granted(&kind, &[asked]), Some(vec![vec![3, 2]]));
    }

    /// Devices that could be first, each of which is tried with all that could be second; only the last is of their group.
    fn first_and_second(first: usize, second: usize) -> Option<Vec<Vec<usize>>> {
        let names: Vec<String> = (1..first).map(|at| format!("g{at}")).collect();
        let mut devices: Vec<(&[u32], Option<&str>)> = names
            .iter()
            .map(|name| (&[0_u32][..], Some(name.as_str())))
            .collect();
        devices.push((&[0], Some("together")));
        devices.extend(vec![(&[1_u32][..], Some("together")); second]);
        granted(&kind(&devices), &[claim(&[(0, 1), (1, 1)], &[0, 1])])
    }

    #[test]
    fn so_many_devices_are_looked_at_for_one_pod_and_no_more() {
        let second = 99;
        // Each first one that is of another group takes a look at itself, and one at each second.
        let in_vain = MAX_STEPS / (1 + second);
        let last = in_vain - 1;
        assert_eq!(
            first_and_second(in_vain, second),
            Some(vec![vec![last, last + 1]])
        );
        assert_eq!(first_and_second(in_vain + 1, second), None);
    }

    #[test]
    fn a_search_without_end_is_given_up() {
        // Every choice of 16 among 32 singles fails only at the pair that is not there.
        let names: Vec<String> = (0..32).map(|at| format!("g{at}")).collect();
        let devices: Vec<(&[u32], Option<&str>)> = names
            .iter()
            .map(|name| (&[0_u32][..], Some(name.as_str())))
            .collect();
        let claims = [claim(&[(0, 16)], &[]), claim(&[(0, 2)], &[0])];
        assert_eq!(granted(&kind(&devices), &claims), None);
        let tally = tally(&kind(&devices), &claims);
        assert_eq!((tally.gave_up, tally.looks), (true, MAX_STEPS as u64));
    }

    #[test]
    fn what_cannot_be_allocated_is_not_taken_for_given_up() {
        let kind = kind(&[(&[0], Some("a")), (&[0], Some("b"))]);
        let tally = tally(&kind, &[claim(&[(0, 2)], &[0])]);
        assert!(!tally.gave_up && tally.looks > 0, "{tally:?}");
    }
}
