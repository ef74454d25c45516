//! What is planned on a node against an allocator that works out everything anew for each device, and against every order in which
//! kube-scheduler may come to the pods that wait there, whatever comes free meanwhile.

use std::{collections::BTreeSet, sync::Arc};

use proptest::prelude::*;

use crate::{
    amount::Amount,
    model::{
        Claim, Constraint, Consumption, CounterSet, Device, DeviceChoice, DeviceRequest, Hold, Node,
    },
    names::{ClaimUid, SelectorId},
    placement::{
        allocator::{MAX_DEVICES_PER_CLAIM, Tally},
        capacity::{Capacity, Cause, Rules},
        coallocation::{Allocator, may_share_a_node},
        counters::MOST_COMPARED,
        demand::{ClaimShape, Demand},
        device_set::DeviceSet,
        fixtures,
        kind::Kinds,
        node::{NodeRecord, Occupancy, Released},
    },
};

/// A device that was chosen, and for what.
#[derive(Clone, Debug)]
struct Pick {
    claim: usize,
    request: usize,
    choice: usize,
    device: usize,
}

/// kube-scheduler's allocator without anything that makes it fast.
struct Naive<'a> {
    node: &'a Node,
    /// Devices that are allocated, by whomever.
    taken: &'a BTreeSet<usize>,
    claims: &'a [Claim],
}

impl Naive<'_> {
    /// By claim, what each gets.
    fn allocate(&self) -> Option<Vec<Vec<usize>>> {
        let picks = self.request(0, 0, Vec::new())?;
        let mut granted = vec![Vec::new(); self.claims.len()];
        for pick in picks {
            granted[pick.claim].push(pick.device);
        }
        Some(granted)
    }

    fn request(&self, claim: usize, request: usize, picks: Vec<Pick>) -> Option<Vec<Pick>> {
        let Some(of) = self.claims.get(claim) else {
            return Some(picks);
        };
        let Some(asked) = of.requests.get(request) else {
            return self.request(claim + 1, 0, picks);
        };
        let had = picks.iter().filter(|pick| pick.claim == claim).count();
        asked.choices.iter().enumerate().find_map(|(at, choice)| {
            let count = choice.count as usize;
            if had + count > MAX_DEVICES_PER_CLAIM {
                return None;
            }
            self.devices(claim, request, at, (count, 0), picks.clone())
        })
    }

    fn devices(
        &self,
        claim: usize,
        request: usize,
        choice: usize,
        (missing, first): (usize, usize),
        picks: Vec<Pick>,
    ) -> Option<Vec<Pick>> {
        if missing == 0 {
            return self.request(claim, request + 1, picks);
        }
        (first..self.node.devices.len()).find_map(|device| {
            let mut picks = picks.clone();
            picks.push(Pick {
                claim,
                request,
                choice,
                device,
            });
            if !self.may_be_picked(&picks) {
                return None;
            }
            let next = (missing - 1, device + 1);
            self.devices(claim, request, choice, next, picks)
        })
    }

    /// Whether the last pick may follow those before it.
    fn may_be_picked(&self, picks: &[Pick]) -> bool {
        let Some((last, before)) = picks.split_last() else {
            return true;
        };
        let device = &self.node.devices[last.device];
        let choice = &self.claims[last.claim].requests[last.request].choices[last.choice];
        let is_in_use = self.taken.contains(&last.device)
            || before.iter().any(|pick| pick.device == last.device);
        device.usable
            && !is_in_use
            && device.selectors.contains(&choice.selector)
            && self.has_counters(device, picks)
            && self.agrees(last.claim, picks)
    }

    /// Whether no counter of the pools that a device draws from is overdrawn.
    fn has_counters(&self, device: &Device, picks: &[Pick]) -> bool {
        let sets = &self.node.counter_sets;
        let pools: BTreeSet<u32> = device
            .consumes
            .iter()
            .map(|it| sets[it.set as usize].pool)
            .collect();
        let allocated: BTreeSet<usize> = self
            .taken
            .iter()
            .copied()
            .chain(picks.iter().map(|pick| pick.device))
            .collect();
        sets.iter().enumerate().all(|(set, of)| {
            !pools.contains(&of.pool)
                || of.counters.iter().enumerate().all(|(counter, there)| {
                    let drawn = allocated.iter().flat_map(|at| {
                        let consumes = self.node.devices[*at].consumes.iter();
                        consumes.filter(|it| it.set as usize == set)
                    });
                    let drawn = drawn.flat_map(|it| it.amounts.iter());
                    let drawn = drawn.filter(|(of, _)| *of as usize == counter);
                    drawn.map(|(_, amount)| amount).sum::<i64>() <= *there
                })
        })
    }

    /// Whether all constraints of a claim hold.
    fn agrees(&self, claim: usize, picks: &[Pick]) -> bool {
        self.claims[claim].constraints.iter().all(|constraint| {
            let values: BTreeSet<Option<&String>> = picks
                .iter()
                .filter(|pick| pick.claim == claim)
                .filter(|pick| {
                    let request = &self.claims[claim].requests[pick.request];
                    let name = request.choices[pick.choice].name.as_ref();
                    let full = name.map(|name| format!("{}/{name}", request.name));
                    constraint.requests.is_empty()
                        || constraint.requests.contains(&request.name)
                        || full.is_some_and(|full| constraint.requests.contains(&full))
                })
                .map(|pick| self.node.devices[pick.device].attribute(&constraint.attribute))
                .collect();
            values.len() < 2 && !values.contains(&None)
        })
    }
}

/// Devices that are allocated as the API server knows it.
fn taken_on(node: &Node) -> BTreeSet<usize> {
    let devices = node.devices.iter().enumerate();
    let taken = devices.filter(|(_, device)| device.allocated_to.is_some());
    taken.map(|(at, _)| at).collect()
}

fn draws(set: u32, amounts: &[i64]) -> Arc<[Consumption]> {
    let amounts = (0_u32..).zip(amounts.iter().copied());
    let amounts: Arc<[(u32, i64)]> = amounts.filter(|(_, amount)| *amount > 0).collect();
    vec![Consumption { set, amounts }].into()
}

/// What is random about a device: what it matches, its group, what it draws, whether it is usable and whether it is taken.
type Odd = (
    BTreeSet<u32>,
    Option<bool>,
    Option<(u32, [i64; 2])>,
    bool,
    bool,
);

fn odd_device() -> impl Strategy<Value = Odd> {
    (
        proptest::collection::btree_set(0_u32..4, 1..4),
        proptest::option::weighted(0.8, any::<bool>()),
        proptest::option::weighted(0.8, (0_u32..3, [0_i64..3, 0_i64..3])),
        proptest::bool::weighted(0.9),
        proptest::bool::weighted(0.2),
    )
}

/// Any devices that draw anything from three sets in two pools.
fn odd_node() -> impl Strategy<Value = Node> {
    let sets = proptest::collection::vec([0_i64..4, 0_i64..4], 3);
    (proptest::collection::vec(odd_device(), 1..7), sets).prop_map(|(devices, sets)| {
        let mut node = fixtures::node("n", devices.len());
        let sets = (0_u32..).zip(sets).map(|(at, counters)| CounterSet {
            pool: at / 2,
            counters: counters.into(),
        });
        node.counter_sets = sets.collect();
        for (device, (selectors, group, drawn, usable, taken)) in
            node.devices.iter_mut().zip(devices)
        {
            let selectors: BTreeSet<SelectorId> = selectors.into_iter().map(SelectorId).collect();
            device.selectors = selectors.into();
            if let Some(group) = group {
                Arc::make_mut(&mut device.attributes).insert("group".into(), group.to_string());
            }
            if let Some((set, amounts)) = drawn {
                device.consumes = draws(set, &amounts);
            }
            device.usable = usable;
            device.allocated_to = taken.then(|| "other".into());
        }
        node
    })
}

/// A GPU of four memory slices and three compute slices by the devices that it may be cut into: first and last memory slice, compute
/// slices, and the selectors that the device matches: 0 whole GPUs, 1 and 2 by size, 3 whatever it is.
const PARTS: [(usize, usize, i64, &[u32]); 7] = [
    (0, 0, 1, &[1, 3]),
    (1, 1, 1, &[1, 3]),
    (2, 2, 1, &[1, 3]),
    (3, 3, 1, &[1, 3]),
    (0, 1, 2, &[2, 3]),
    (2, 3, 2, &[2, 3]),
    (0, 3, 3, &[0, 3]),
];

/// Every part of two GPUs.
fn all_parts() -> Vec<(u32, usize)> {
    let gpus = (0..2).flat_map(|gpu| (0..PARTS.len()).map(move |part| (gpu, part)));
    gpus.collect()
}

/// Two GPUs that may be cut, their devices in an order.
fn gpus_to_cut(order: &[(u32, usize)]) -> Node {
    let mut node = fixtures::node("n", order.len());
    let counters = |_| CounterSet {
        pool: 0,
        counters: vec![1, 1, 1, 1, 3],
    };
    node.counter_sets = (0..2).map(counters).collect();
    for (device, (gpu, part)) in node.devices.iter_mut().zip(order) {
        let (first, last, compute, selectors) = PARTS[*part];
        let mut amounts = [0, 0, 0, 0, compute];
        amounts[first..=last].fill(1);
        let selectors: BTreeSet<SelectorId> = selectors.iter().copied().map(SelectorId).collect();
        device.selectors = selectors.into();
        device.consumes = draws(*gpu, &amounts);
        device.gpus = match compute {
            3 => Amount::ONE_GPU,
            _ => Amount(compute * 300),
        };
        Arc::make_mut(&mut device.attributes).insert("group".into(), gpu.to_string());
    }
    node
}

/// GPUs that are cut or may be, their devices in any order, or the smallest of each first.
fn node_of_cut_gpus() -> impl Strategy<Value = Node> {
    let count = all_parts().len();
    let taken = proptest::collection::vec(proptest::bool::weighted(0.15), count);
    let tainted = proptest::collection::vec(proptest::bool::weighted(0.05), count);
    let order = prop_oneof![
        Just(all_parts()).prop_shuffle(),
        Just(all_parts()),
        Just(all_parts()).prop_shuffle().prop_map(|mut order| {
            order.sort_by_key(|(_, part)| PARTS[*part].2);
            order
        }),
    ];
    (order, taken, tainted).prop_map(|(order, taken, tainted)| {
        let mut node = gpus_to_cut(&order);
        for (at, device) in node.devices.iter_mut().enumerate() {
            device.usable = !tainted[at];
            device.allocated_to = taken[at].then(|| "other".into());
        }
        node
    })
}

fn any_node() -> impl Strategy<Value = Node> {
    prop_oneof![odd_node(), node_of_cut_gpus()]
}

/// What a constraint may name: everything, a request, one alternative of one.
const NAMED: [&[&str]; 4] = [&[], &["r0"], &["r0/c1"], &["r0", "r1/c0"]];

/// Requests of choices of selector and number, and what a constraint names.
fn any_claim() -> impl Strategy<Value = Claim> {
    let choices = proptest::collection::vec((0_u32..4, 1_u32..3), 1..4);
    let few = proptest::collection::vec((0_u32..4, Just(1_u32)), 1..3);
    let requests = prop_oneof![
        3 => proptest::collection::vec(choices, 1),
        1 => proptest::collection::vec(few, 2),
    ];
    (requests, proptest::option::weighted(0.3, 0..NAMED.len())).prop_map(
        |(requests, constraint)| {
            let requests = requests.into_iter().enumerate().map(|(at, choices)| {
                let is_one = choices.len() == 1;
                let choices = choices.into_iter().enumerate();
                DeviceRequest {
                    name: format!("r{at}"),
                    choices: choices
                        .map(|(choice, (selector, count))| DeviceChoice {
                            name: (!is_one).then(|| format!("c{choice}")),
                            selector: SelectorId(selector),
                            count,
                        })
                        .collect(),
                }
            });
            let constraint = constraint.map(|named| Constraint {
                requests: NAMED[named].iter().map(|name| (*name).to_owned()).collect(),
                attribute: "group".into(),
            });
            Claim {
                uid: "claim".into(),
                requests: requests.collect(),
                constraints: constraint.into_iter().collect(),
                allocated: None,
            }
        },
    )
}

fn record_of(node: &Node) -> (NodeRecord, Occupancy) {
    let record = NodeRecord::new(node.clone(), Kinds::default().enter(node));
    let nobody = std::iter::empty::<&Arc<Hold>>();
    let occupancy = record.occupancy(nobody, &Released::new());
    (record, occupancy)
}

/// All orders of so many.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(count - 1).into_iter();
    let longer = shorter.flat_map(|order| {
        (0..count).map(move |at| {
            let mut order = order.clone();
            order.insert(at, count - 1);
            order
        })
    });
    longer.collect()
}

fn charge(node: &Node, devices: &[usize]) -> i64 {
    devices.iter().map(|at| node.devices[*at].gpus.0).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn what_is_allocated_is_what_an_allocator_without_short_cuts_finds(
        node in any_node(),
        claims in proptest::collection::vec(any_claim(), 1..3),
    ) {
        let (record, occupancy) = record_of(&node);
        let shapes: Vec<ClaimShape> = claims.iter().map(ClaimShape::new).collect();
        let shapes: Vec<&ClaimShape> = shapes.iter().collect();
        let mut tally = Tally::default();
        let granted = occupancy.allocate(&record.kind, &shapes, &mut tally);
        prop_assume!(!tally.gave_up);
        let taken = taken_on(&node);
        let naive = Naive { node: &node, taken: &taken, claims: &claims };
        prop_assert_eq!(granted, naive.allocate());
    }

    /// S4: whatever waits on a node by the rule is allocated there in every order, though devices come free in between; and what it
    /// is charged does not depend on the order.
    #[test]
    fn pods_that_may_wait_on_one_node_get_their_devices_in_every_order(
        node in any_node(),
        claims in proptest::collection::vec(any_claim(), 1..3),
        copies in 1_usize..3,
        frees in proptest::collection::vec((0_usize..4, 0_usize..14), 0..4),
    ) {
        let claims: Vec<Claim> = claims.iter().flat_map(|claim| vec![claim.clone(); copies]).take(3).collect();
        let (record, mut occupancy) = record_of(&node);
        let mut planned: Vec<(Claim, i64)> = Vec::new();
        for (pod, claim) in claims.into_iter().enumerate() {
            let shape = ClaimShape::new(&claim);
            let pending = record.pending(&shape, Allocator::Planned(pod));
            if !occupancy.admits(&record.kind, std::slice::from_ref(&pending)) {
                continue;
            }
            let Some(granted) = occupancy.allocate(&record.kind, &[&shape], &mut Tally::default()) else {
                continue;
            };
            occupancy.set_waiting(vec![pending]);
            for device in &granted[0] {
                occupancy.take(&record.kind, *device);
            }
            planned.push((claim, charge(&node, &granted[0])));
        }
        for order in orders(planned.len()) {
            for frees in [&[][..], &frees[..]] {
                let mut taken = taken_on(&node);
                let initially = taken.clone();
                for (step, at) in order.iter().enumerate() {
                    for (_, device) in frees.iter().filter(|(when, _)| *when == step) {
                        if initially.contains(device) {
                            taken.remove(device);
                        }
                    }
                    let (claim, charged) = &planned[*at];
                    let claims = std::slice::from_ref(claim);
                    let granted = Naive { node: &node, taken: &taken, claims }.allocate();
                    let Some(granted) = granted else {
                        return Err(TestCaseError::fail(format!("{order:?} fails at {step}, {frees:?}")));
                    };
                    if frees.is_empty() {
                        prop_assert_eq!(charge(&node, &granted[0]), *charged);
                    }
                    taken.extend(&granted[0]);
                }
            }
        }
    }

    /// As many units fit as can be allocated one after the other, as far as they may wait together.
    #[test]
    fn as_many_units_are_counted_as_are_allocated_one_after_the_other(
        node in any_node(),
        claim in any_claim(),
    ) {
        let (record, occupancy) = record_of(&node);
        let mut taken = taken_on(&node);
        let shape = ClaimShape::new(&claim);
        let [one, other] = [0, 1].map(|pod| record.pending(&shape, Allocator::Planned(pod)));
        let most = if may_share_a_node(&one, &other) { usize::MAX } else { 1 };
        let mut units = 0;
        let claims = std::slice::from_ref(&claim);
        while units < most
            && let Some(granted) = (Naive { node: &node, taken: &taken, claims }).allocate()
        {
            taken.extend(&granted[0]);
            units += 1;
        }
        let mut pod = fixtures::pod("p", 0);
        pod.claims = vec![claim.clone()];
        let demand = Demand::new(&fixtures::gang(vec![pod]));
        let rules = Rules { flavor: None, most_per_device: None };
        let counted = rules.device_capacity(&record, &occupancy, &demand.classes[0].shape);
        let exact = !matches!(&counted, Ok(counted) if counted.is_partial);
        prop_assume!(exact && counted != Err(Cause::TooManyWays));
        prop_assert_eq!(counted.map_or(0, |counted| counted.units), units);
    }
}

/// What a whole GPU, slices of one and a few of several come to, with what is said of a node that has too little.
#[test]
fn slices_that_are_alike_are_counted_and_whole_gpus_wait_for_them() {
    let mut node = gpus_to_cut(&all_parts());
    let units = |node: &Node, selector: u32| {
        let (record, occupancy) = record_of(node);
        let mut pod = fixtures::pod("p", 1);
        pod.claims[0].requests[0].choices[0].selector = SelectorId(selector);
        let demand = Demand::new(&fixtures::gang(vec![pod]));
        let rules = Rules {
            flavor: None,
            most_per_device: None,
        };
        let counted = rules.device_capacity(&record, &occupancy, &demand.classes[0].shape);
        counted
            .map(|counted| counted.units)
            .map_err(|cause| cause.to_string())
    };
    // Compute slices are used up before memory slices.
    assert_eq!(
        (units(&node, 1), units(&node, 2), units(&node, 0)),
        (Ok(6), Ok(2), Ok(2))
    );
    // A slice on each GPU.
    for gpu in 0..2 {
        let small = node.devices.iter_mut().find(|device| {
            device.selectors.contains(&SelectorId(1)) && device.consumes[0].set == gpu
        });
        if let Some(small) = small {
            small.allocated_to = Some("other".into());
        }
    }
    assert_eq!((units(&node, 1), units(&node, 2)), (Ok(4), Ok(2)));
    assert_eq!(
        units(&node, 0),
        Err("whole GPUs wait for slices to end".to_owned())
    );
    // As in kube-scheduler, a counter that is overdrawn shuts its whole pool.
    let mut sets = node.counter_sets.to_vec();
    sets[0].counters[4] = 0;
    node.counter_sets = sets.into();
    assert!(units(&node, 1).is_err());
}

/// First fit comes to a larger device only if it stands before the small ones that it is made of, or nothing is to be had of these.
#[test]
fn pods_wait_together_for_devices_of_several_sizes_where_the_small_ones_stand_first() {
    let smallest_first = all_parts();
    let mut largest_first = all_parts();
    largest_first.reverse();
    // Whatever its size; the first GPU has slices of one at 0 to 3, of two at 4 and 5, and the whole at 6.
    let any_size = SelectorId(3);
    for (what, order, tainted, is_grouped, units) in [
        ("the smallest first", &smallest_first, vec![], false, 6),
        ("the largest first", &largest_first, vec![], false, 1),
        ("one is tainted", &smallest_first, vec![0_usize], false, 6),
        (
            "of one of two none is usable",
            &smallest_first,
            vec![0, 1],
            false,
            1,
        ),
        ("nor is it itself", &smallest_first, vec![0, 1, 4], false, 5),
        ("a constraint", &smallest_first, vec![], true, 1),
    ] {
        let mut node = gpus_to_cut(order);
        for at in tainted {
            node.devices[at].usable = false;
        }
        let mut claim = fixtures::claim("c", 1);
        claim.requests[0].choices[0].selector = any_size;
        if is_grouped {
            claim.constraints = vec![Constraint {
                requests: Vec::new(),
                attribute: "group".into(),
            }];
        }
        let counted = counted(&node, claim).map(|counted| counted.units);
        assert_eq!(counted, Ok(units), "{what}");
    }
}

/// Who waits for a GPU whose slices end must not have others end for it: its driver taints whatever overlaps a slice for as long as
/// that is held after its pod.
#[test]
fn with_a_slice_that_is_released_all_comes_free_that_is_tainted_for_it() {
    // The first slice of the first GPU, the one of twice its size, and the GPU as a whole.
    let overlapping = [0, 4, 6];
    let (gone, stays) = (ClaimUid::from("gone"), ClaimUid::from("stays"));
    for (what, release, other, faulty, expected) in [
        ("it is held", false, false, false, vec![]),
        ("it is released", true, false, false, vec![0, 4, 6]),
        ("another slice is in use", true, true, false, vec![0]),
        ("the GPU has a fault", true, false, true, vec![0, 4]),
    ] {
        let mut node = gpus_to_cut(&all_parts());
        for at in overlapping {
            node.devices[at].usable = false;
        }
        node.devices[0].allocated_to = Some(gone.clone());
        node.devices[1].allocated_to = other.then(|| stays.clone());
        node.devices[6].healthy = !faulty;
        let devices = [node.devices[0].name.clone()];
        let record = NodeRecord::new(node.clone(), Kinds::default().enter(&node));
        let mut released = Released::new();
        if release {
            released.insert(&gone, &devices[..]);
        }
        let nobody = std::iter::empty::<&Arc<Hold>>();
        let occupancy = record.occupancy(nobody, &released);
        let overlapping = overlapping.iter().copied();
        let free: Vec<usize> = overlapping
            .filter(|at| occupancy.free.contains(*at))
            .collect();
        assert_eq!(free, expected, "{what}");
    }
}

/// How many units of one claim a node holds as far as devices go.
fn counted(node: &Node, claim: Claim) -> Result<Capacity, Cause> {
    let (record, occupancy) = record_of(node);
    let mut pod = fixtures::pod("p", 0);
    pod.claims = vec![claim];
    let demand = Demand::new(&fixtures::gang(vec![pod]));
    let rules = Rules {
        flavor: None,
        most_per_device: None,
    };
    rules.device_capacity(&record, &occupancy, &demand.classes[0].shape)
}

/// Alike devices that draw one each of a single counter, of which there is one for each, and are of one group.
fn node_of_one_counter(devices: usize) -> Node {
    let mut node = fixtures::node("n", devices);
    node.counter_sets = vec![CounterSet {
        pool: 0,
        counters: vec![i64::try_from(devices).unwrap()],
    }]
    .into();
    for device in &mut node.devices {
        device.consumes = draws(0, &[1]);
        Arc::make_mut(&mut device.attributes).insert("group".into(), "one".into());
    }
    node
}

/// S4: kube-scheduler passes a choice over that would bring a claim to more than it can have, and there is no other that has devices.
#[test]
fn a_claim_that_only_comes_to_more_devices_than_it_can_have_has_no_place() {
    let (some, none) = (SelectorId(0), SelectorId(9));
    for (first, units) in [(19_u32, Some(2)), (20, None)] {
        let mut claim = fixtures::claim("c", first);
        let choices = [("rare", none, 1), ("many", some, 13)];
        claim.requests.push(DeviceRequest {
            name: "more".into(),
            choices: choices
                .map(|(name, selector, count)| DeviceChoice {
                    name: Some(name.into()),
                    selector,
                    count,
                })
                .into(),
        });
        let counted = counted(&fixtures::node("n", 80), claim);
        assert_eq!(counted.ok().map(|counted| counted.units), units, "{first}");
    }
}

/// Whoever publishes more devices that share something than there are ways to cut a GPU costs others no more: the work is bounded,
/// and nothing is promised that was not looked at.
#[test]
fn of_many_devices_that_share_a_counter_not_all_is_found_out() {
    for devices in [MOST_COMPARED, MOST_COMPARED + 1] {
        let mut node = node_of_one_counter(devices);
        node.counter_sets = vec![CounterSet {
            pool: 0,
            counters: vec![1],
        }]
        .into();
        let (record, _) = record_of(&node);
        let other = DeviceSet::of(devices, [0]);
        let is_known = record.kind.counters.has_inside(1, &other);
        assert_eq!(is_known, devices == MOST_COMPARED, "{devices}");
    }
    for (devices, is_partial) in [(32, false), (1024, true)] {
        let mut claim = fixtures::claim("c", 2);
        claim.constraints = vec![Constraint {
            requests: Vec::new(),
            attribute: "group".into(),
        }];
        let counted = counted(&node_of_one_counter(devices), claim).unwrap();
        assert_eq!(counted.is_partial, is_partial, "{devices}");
        assert_eq!(counted.units == devices / 2, !is_partial, "{devices}");
    }
}

/// Of so many kinds of devices that all draw from one counter, for how many a claim each may wait on one node.
fn kinds_that_may_wait(kinds: usize, devices: usize) -> usize {
    let mut node = node_of_one_counter(kinds * devices);
    for (at, device) in node.devices.iter_mut().enumerate() {
        let kind = u32::try_from(at / devices).unwrap();
        device.selectors = BTreeSet::from([SelectorId(kind)]).into();
    }
    let (record, mut occupancy) = record_of(&node);
    for kind in 0..kinds {
        let mut claim = fixtures::claim("c", 1);
        claim.requests[0].choices[0].selector = SelectorId(u32::try_from(kind).unwrap());
        let shape = ClaimShape::new(&claim);
        let pending = vec![record.pending(&shape, Allocator::Planned(kind))];
        if !occupancy.admits(&record.kind, &pending) {
            return kind;
        }
        let granted = occupancy.allocate(&record.kind, &[&shape], &mut Tally::default());
        occupancy.set_waiting(pending);
        for device in granted.unwrap().into_iter().flatten() {
            occupancy.take(&record.kind, device);
        }
    }
    kinds
}

#[test]
fn for_how_many_kinds_and_among_how_many_devices_claims_wait_together_is_bounded() {
    for (kinds, devices, waiting) in [(8, 20, 8), (9, 20, 8), (2, 2048, 2), (2, 2049, 1)] {
        let found = kinds_that_may_wait(kinds, devices);
        assert_eq!(found, waiting, "{kinds} of {devices}");
    }
}
