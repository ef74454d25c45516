//! Slices of GPUs: where they go, what they are charged, and what those are told who wait for whole GPUs.

use std::collections::{BTreeMap, BTreeSet};

use crate::{common::*, cut_gpus::*};
use muster_engine::{
    Amount, Claim, Consumption, Device, DeviceName, Gang, GangUid, Hold, Node, PodUid, Resource,
    SelectorId, State, Update, Why,
};
use proptest::prelude::*;

fn taken(state: &mut State, holds: impl IntoIterator<Item = Hold>) {
    for hold in holds {
        state.apply(Update::Hold(hold));
    }
}

fn used(state: &State, team: &str, resource: &Resource) -> Amount {
    let usage = state.usage(&team_name(team));
    let of = usage.iter().find(|usage| usage.of.resource == *resource);
    of.map_or(Amount::ZERO, |usage| usage.used)
}

#[test]
fn a_slice_is_cut_from_a_gpu_that_is_cut_then_from_a_whole_one_and_a_whole_one_is_taken_last() {
    let nodes = || {
        vec![
            cut_node("a", "s/l", 1),
            cut_node("b", "s/l", 2),
            node("c", "s/l", 1),
        ]
    };
    let one = |pod: &str, gpu| hold_part(pod, "other", "b", (gpu, ONE_SLICE, 0));
    let whole = |pod: &str, node: &str, gpu| hold_part(pod, "other", node, (gpu, ANY_GPU, 0));
    let table = [
        (vec![], "a", 142),
        (vec![one("x", 0)], "b", 142),
        (vec![one("x", 0), whole("y", "b", 1)], "b", 142),
        (vec![whole("x", "b", 0), whole("y", "b", 1)], "a", 142),
        (
            vec![whole("x", "a", 0), whole("y", "b", 0), whole("z", "b", 1)],
            "c",
            1000,
        ),
    ];
    for (holds, expected, charge) in table {
        let mut state = open_state(nodes());
        taken(&mut state, holds.clone());
        let gang = memory_gang("g", "research", 1, 1);
        assert_eq!(
            nodes_of(&mut state, gang),
            Some(vec![expected.to_owned()]),
            "{holds:?}"
        );
        assert_eq!(
            used(&state, "research", &Resource::Gpus),
            Amount(charge),
            "{holds:?}"
        );
    }
}

#[test]
fn what_is_left_of_a_gpu_decides_what_is_cut_from_it() {
    let mut state = open_state(vec![cut_node("a", "s/l", 1), cut_node("b", "s/l", 1)]);
    let mut small: Vec<_> = (4..7)
        .map(|start| hold_part(&format!("a{start}"), "other", "a", (0, ONE_SLICE, start)))
        .collect();
    small.extend(
        (0..6).map(|start| hold_part(&format!("b{start}"), "other", "b", (0, ONE_SLICE, start))),
    );
    taken(&mut state, small);
    let gang = gang_of(
        "g",
        "research",
        vec![pod("p", vec![first_of("c", &[THREE_SLICES])])],
    );
    assert_eq!(nodes_of(&mut state, gang), Some(vec!["a".to_owned()]));
    let gang = memory_gang("h", "research", 1, 1);
    assert_eq!(nodes_of(&mut state, gang), Some(vec!["b".to_owned()]));
}

#[test]
fn a_gang_of_slices_fills_a_gpu_and_none_is_promised_twice() {
    let mut state = open_state(vec![cut_node("a", "s/l", 1)]);
    assert_eq!(
        nodes_of(&mut state, memory_gang("eight", "research", 8, 1)),
        None
    );
    assert!(matches!(
        why(&state, "eight"),
        Why::PlacementImpossible { fit: 7, .. }
    ));
    state.apply(Update::NotWaiting("eight".into()));
    for (name, pods) in [("four", 4), ("three", 3)] {
        let gang = memory_gang(name, "research", pods, 1);
        submit(&mut state, [gang.clone()]);
        let decisions = decide(&mut state);
        let admission = decisions.admissions.first().expect("there is room");
        // Nothing is allocated yet.
        taken(&mut state, holds_of(&gang, admission));
        state.apply(Update::NotWaiting(gang.uid));
    }
    assert_eq!(used(&state, "research", &Resource::Gpus), Amount(7 * 142));
    assert_eq!(
        nodes_of(&mut state, memory_gang("one", "research", 1, 1)),
        None
    );
}

/// Of each size there are so many that it does not matter what kube-scheduler takes first.
#[test]
fn slices_of_several_sizes_wait_on_one_gpu_while_there_are_enough_in_any_order() {
    for (sizes, gpus, fit) in [
        (vec![1, 2], 1, true),
        (vec![1, 1, 2], 1, true),
        // Each small one could take from another of the three places for one of twice the size.
        (vec![1, 1, 1, 2], 1, false),
        (vec![1, 4], 1, true),
        (vec![1, 1, 4], 1, false),
        (vec![1, 1, 4], 2, true),
        (vec![1, 8], 1, false),
        (vec![1, 8], 2, true),
        (vec![1, 2, 4], 1, false),
        (vec![1, 2, 4, 8], 4, true),
    ] {
        let pods = sizes.iter().enumerate().map(|(rank, tens)| {
            let claim = tens_of_gib(&format!("c{rank}"), *tens);
            pod(&format!("p{rank}"), vec![claim])
        });
        let gang = gang_of("g", "research", pods.collect());
        let mut state = open_state(vec![cut_node("a", "s/l", gpus)]);
        let nodes = nodes_of(&mut state, gang);
        assert_eq!(nodes.is_some(), fit, "{sizes:?} on {gpus}");
    }
}

#[test]
fn who_asks_for_something_else_waits_until_what_is_promised_is_allocated() {
    let mut state = open_state(vec![cut_node("a", "s/l", 1)]);
    let small = memory_gang("small", "research", 3, 1);
    submit(&mut state, [small.clone()]);
    let decisions = decide(&mut state);
    let mut holds = holds_of(&small, &decisions.admissions[0]);
    taken(&mut state, holds.clone());
    state.apply(Update::NotWaiting(small.uid));
    assert_eq!(
        nodes_of(&mut state, memory_gang("large", "research", 1, 2)),
        None
    );
    let told = why(&state, "large").to_string();
    assert!(told.contains("not allocated yet"), "{told}");
    for (start, hold) in holds.iter_mut().enumerate() {
        hold.claims[0].devices = Some(vec![device(part(0, ONE_SLICE, start)).name]);
    }
    taken(&mut state, holds);
    assert_eq!(admitted(&decide(&mut state)), ["large"]);
}

#[test]
fn who_wants_a_whole_gpu_is_told_that_slices_have_to_end_and_whose_they_are() {
    let mut state = open_state(vec![cut_node("a", "s/l", 1), node("b", "s/l", 1)]);
    taken(
        &mut state,
        [
            hold_part("notebook", "research", "a", (0, ONE_SLICE, 3)),
            hold("training", "research", "b", &[0]),
        ],
    );
    assert_eq!(nodes_of(&mut state, gang("whole", "research", 1, 1)), None);
    let told = why(&state, "whole").to_string();
    assert!(
        told.contains("whole GPUs wait for slices to end: 1"),
        "{told}"
    );
    // Without the other node the slices are all that lacks.
    state.apply(Update::NodeGone(node_name("b")));
    let told = why(&state, "whole").to_string();
    assert!(told.contains("used by research/notebook"), "{told}");
    state.apply(Update::HoldGone(pod_uid("notebook")));
    assert_eq!(admitted(&decide(&mut state)), ["whole"]);
}

#[test]
fn who_wants_more_memory_than_any_gpu_has_left_is_told_so() {
    let mut state = open_state(vec![cut_node("a", "s/l", 1)]);
    taken(
        &mut state,
        [
            hold_part("one", "research", "a", (0, THREE_SLICES, 0)),
            hold_part("two", "research", "a", (0, TWO_SLICES, 4)),
        ],
    );
    let small = memory_gang("small", "research", 1, 1);
    let gang = gang_of(
        "g",
        "research",
        vec![pod("p", vec![first_of("c", &[TWO_SLICES, THREE_SLICES])])],
    );
    // One memory slice and one compute slice are left, and nothing fits in them.
    submit(&mut state, [small.clone()]);
    let decisions = decide(&mut state);
    let mut holds = holds_of(&small, &decisions.admissions[0]);
    holds[0].claims[0].devices = Some(vec![device(part(0, ONE_SLICE, 6)).name]);
    taken(&mut state, holds);
    state.apply(Update::NotWaiting(small.uid));
    assert_eq!(nodes_of(&mut state, gang), None);
    let told = why(&state, "g").to_string();
    assert!(
        told.contains("enough memory on no GPU: slices in use: 1"),
        "{told}"
    );
}

/// Finding E5: what is asked of quota and what is charged is the same.
#[test]
fn a_slice_needs_quota_for_a_slice_and_a_whole_gpu_instead_of_it_for_a_whole_one() {
    let limited = |milli: i64| {
        let mut team = team("a", None, limit(0));
        for (_, quota) in &mut team.quota {
            quota.insert(
                Resource::Gpus,
                muster_engine::QuotaLimit {
                    nominal: Amount(milli),
                    ..muster_engine::QuotaLimit::default()
                },
            );
        }
        team
    };
    for (milli, on_cut, on_whole) in [
        (141, false, false),
        (142, true, false),
        (999, true, false),
        (1000, true, true),
    ] {
        for (node, expected) in [
            (cut_node("n", "s/l", 1), on_cut),
            (node("n", "s/l", 1), on_whole),
        ] {
            let mut state = state(vec![node], vec![limited(milli)]);
            let placed = nodes_of(&mut state, memory_gang("g", "a", 1, 1));
            assert_eq!(placed.is_some(), expected, "{milli}");
        }
    }
}

/// What kube-scheduler would give to a claim of one device, by place: the first of the first choice for which there is one.
fn first_fit(node: &Node, taken: &BTreeSet<usize>, claim: &Claim) -> Option<usize> {
    let fits = |device: usize| {
        let mut consumes = node.devices[device].consumes.iter();
        consumes.all(|own| {
            let set = &node.counter_sets[own.set as usize];
            own.amounts.iter().all(|(counter, amount)| {
                let others = taken
                    .iter()
                    .flat_map(|at| node.devices[*at].consumes.iter());
                let others = others.filter(|other| other.set == own.set);
                let drawn = others.flat_map(|other| other.amounts.iter());
                let drawn = drawn.filter(|(of, _)| of == counter);
                let drawn: i64 = drawn.map(|(_, amount)| amount).sum();
                drawn + amount <= set.counters[*counter as usize]
            })
        })
    };
    let mut choices = claim.requests[0].choices.iter();
    choices.find_map(|choice| {
        (0..node.devices.len()).find(|at| {
            let matches = node.devices[*at].selectors.contains(&choice.selector);
            matches && !taken.contains(at) && fits(*at)
        })
    })
}

/// A profile that a GPU of [`cut_node`] has besides, as an H100 does: it matches the selector of another one, before or behind which it
/// stands. So many memory and compute slices, whether it draws the one engine of its GPU, where it may begin, and its charge.
struct SecondProfile {
    selector: SelectorId,
    stands_first: bool,
    slices: (usize, i64),
    has_engine: bool,
    starts: &'static [usize],
    gpus: i64,
}

const SECOND_PROFILES: [SecondProfile; 3] = [
    // 1g.10gb+me
    SecondProfile {
        selector: ONE_SLICE,
        stands_first: false,
        slices: (1, 1),
        has_engine: true,
        starts: &[4, 5, 0, 1, 2, 3, 6],
        gpus: 142,
    },
    // 1g.20gb
    SecondProfile {
        selector: TWO_SLICES,
        stands_first: true,
        slices: (2, 1),
        has_engine: false,
        starts: &[6, 4, 0, 2],
        gpus: 250,
    },
    // 4g.40gb
    SecondProfile {
        selector: THREE_SLICES,
        stands_first: false,
        slices: (4, 4),
        has_engine: false,
        starts: &[0],
        gpus: 571,
    },
];

impl SecondProfile {
    /// Its devices on a GPU of which this is a part.
    fn devices(&self, part: &Device) -> Vec<Device> {
        let (memory, compute) = self.slices;
        let starts = self.starts.iter();
        let devices = starts.map(|start| {
            let memory = (*start..start + memory).map(|slice| (slice, 1));
            // Behind the eight memory slices.
            let others = [(8, compute), (9, i64::from(self.has_engine))];
            let amounts = memory.chain(others).filter(|(_, amount)| *amount > 0);
            let amounts = amounts
                .map(|(counter, amount)| (u32::try_from(counter).expect("few"), amount))
                .collect();
            let set = part.consumes[0].set;
            Device {
                gpus: Amount(self.gpus),
                selectors: BTreeSet::from([self.selector]).into(),
                consumes: vec![Consumption { set, amounts }].into(),
                ..part.clone()
            }
        });
        devices.collect()
    }
}

/// A node of GPUs with two profiles of each size but the largest.
fn node_with_second_profiles(name: &str, gpus: u32) -> Node {
    let mut node = cut_node(name, "s/l", gpus);
    let mut sets = node.counter_sets.to_vec();
    for set in &mut sets {
        set.counters.push(1);
    }
    node.counter_sets = sets.into();
    let devices = std::mem::take(&mut node.devices);
    for of_gpu in devices.chunks(DEVICES_PER_GPU) {
        for of_profile in of_gpu.chunk_by(|one, other| one.selectors == other.selectors) {
            let first = &of_profile[0];
            let mut second = SECOND_PROFILES.iter();
            let second = second.find(|it| first.selectors.contains(&it.selector));
            let added = second.map(|second| second.devices(first));
            let added = added.unwrap_or_default();
            let own = of_profile.to_vec();
            let both = match second {
                Some(second) if second.stands_first => [added, own],
                _ => [own, added],
            };
            node.devices.extend(both.into_iter().flatten());
        }
    }
    for (at, part) in node.devices.iter_mut().enumerate() {
        part.name = device(at).name;
    }
    node
}

/// What is so, whatever the engine thinks.
struct World {
    state: State,
    nodes: Vec<Node>,
    waiting: BTreeMap<GangUid, Gang>,
    holds: BTreeMap<PodUid, Hold>,
}

impl World {
    fn new() -> Self {
        Self::of(vec![
            cut_node("n0", "s/l0", 1),
            cut_node("n1", "s/l0", 2),
            node("n2", "s/l1", 1),
        ])
    }

    fn of(nodes: Vec<Node>) -> Self {
        Self {
            state: open_state(nodes.clone()),
            nodes,
            waiting: BTreeMap::new(),
            holds: BTreeMap::new(),
        }
    }

    fn set(&mut self, hold: Hold) {
        self.state.apply(Update::Hold(hold.clone()));
        self.holds.insert(hold.pod.clone(), hold);
    }

    /// Decides, and tells what came of it; what another engine decides that is told everything at once.
    fn decide(&mut self) -> [Vec<String>; 2] {
        let mut other = open_state(self.nodes.clone());
        for hold in self.holds.values() {
            other.apply(Update::Hold(hold.clone()));
        }
        submit(&mut other, self.waiting.values().cloned());
        let decisions = [decide(&mut self.state), decide(&mut other)];
        for admission in &decisions[0].admissions {
            let Some(gang) = self.waiting.remove(&admission.gang) else {
                continue;
            };
            for hold in holds_of(&gang, admission) {
                self.set(hold);
            }
            self.state.apply(Update::NotWaiting(gang.uid));
        }
        decisions.map(|decisions| {
            let admissions = decisions.admissions.iter();
            admissions
                .map(|admission| format!("{admission:?}"))
                .collect()
        })
    }

    fn taken_on(&self, node: &Node) -> BTreeSet<usize> {
        let holds = self.holds.values().filter(|hold| hold.node == node.name);
        let names: BTreeSet<&DeviceName> = holds
            .flat_map(|hold| &hold.claims)
            .flat_map(|claim| claim.devices.iter().flatten())
            .collect();
        let devices = node.devices.iter().enumerate();
        let taken = devices.filter(|(_, device)| names.contains(&device.name));
        taken.map(|(at, _)| at).collect()
    }

    /// kube-scheduler allocates so many claims that wait, from one on.
    fn allocate(&mut self, first: usize, count: usize) -> Result<(), TestCaseError> {
        let pending = self
            .holds
            .values()
            .filter(|hold| hold.claims[0].devices.is_none());
        let mut pending: Vec<Hold> = pending.cloned().collect();
        let middle = first % pending.len().max(1);
        pending.rotate_left(middle);
        for mut hold in pending.into_iter().take(count) {
            let node = self.nodes.iter().find(|node| node.name == hold.node);
            let node = node.expect("no node goes");
            let claim = &mut hold.claims[0];
            let asked = claim.request.as_ref().expect("it is known");
            let Some(at) = first_fit(node, &self.taken_on(node), asked) else {
                return Err(TestCaseError::fail(format!(
                    "nothing left for {}",
                    hold.pod
                )));
            };
            let device = &node.devices[at];
            prop_assert_eq!(claim.gpus, device.gpus);
            claim.devices = Some(vec![device.name.clone()]);
            self.set(hold);
        }
        Ok(())
    }

    fn end(&mut self, which: usize) {
        let gangs: BTreeSet<GangUid> = self.holds.values().map(|hold| hold.gang.clone()).collect();
        let Some(gang) = gangs.iter().nth(which % gangs.len().max(1)) else {
            return;
        };
        let pods = self.holds.values().filter(|hold| hold.gang == *gang);
        let pods: Vec<PodUid> = pods.map(|hold| hold.pod.clone()).collect();
        for pod in pods {
            self.holds.remove(&pod);
            self.state.apply(Update::HoldGone(pod));
        }
    }
}

/// Nobody waits until kube-scheduler has allocated what others were promised, though each size but the largest has two profiles; and all get
/// the one that first fit comes to, at its charge.
#[test]
fn a_burst_of_pods_that_ask_for_memory_waits_on_one_node_until_it_is_full() {
    for (tens, fit, charge) in [(1, 56, 142), (2, 32, 250), (4, 16, 500), (8, 8, 1000)] {
        let mut world = World::of(vec![node_with_second_profiles("n", 8)]);
        for at in 0..=fit {
            let gang = memory_gang(&format!("g{at:02}"), "research", 1, tens);
            world.waiting.insert(gang.uid.clone(), gang.clone());
            submit(&mut world.state, [gang]);
        }
        loop {
            let [by_steps, at_once] = world.decide();
            assert_eq!(by_steps, at_once, "{tens}");
            if by_steps.is_empty() {
                break;
            }
        }
        assert_eq!(world.holds.len(), fit, "{tens}");
        let mut claims = world.holds.values().flat_map(|hold| &hold.claims);
        assert!(
            claims.all(|claim| claim.devices.is_none() && claim.gpus == Amount(charge)),
            "{tens}"
        );
        let last = world.waiting.keys().next().expect("one is too many");
        let told = why(&world.state, last.as_str()).to_string();
        assert!(!told.contains("not allocated yet"), "{told}");
        // From the middle on, and a few of them end.
        world.allocate(fit / 2, fit / 2).expect("as promised");
        world.end(1);
        world.allocate(3, usize::MAX).expect("as promised");
    }
}

/// Something that happens.
#[derive(Clone, Debug)]
enum Event {
    Submit { pods: usize, tens: usize },
    Allocate { first: usize, count: usize },
    End(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (1_usize..4, proptest::sample::select(vec![1_usize, 2, 4, 8]))
            .prop_map(|(pods, tens)| Event::Submit { pods, tens }),
        2 => (0_usize..8, 1_usize..6).prop_map(|(first, count)| Event::Allocate { first, count }),
        1 => (0_usize..8).prop_map(Event::End),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Step by step as at once; and whatever is promised is there when kube-scheduler comes to it, at the charge that was told, in
    /// whatever order it comes and whoever has ended (S4).
    #[test]
    fn what_is_promised_of_gpus_that_are_cut_is_given_in_every_order(
        events in proptest::collection::vec(event(), 1..40),
    ) {
        let mut world = World::new();
        for (at, event) in events.into_iter().enumerate() {
            match event {
                Event::Submit { pods, tens } => {
                    let gang = memory_gang(&format!("g{at:02}"), "research", pods, tens);
                    world.waiting.insert(gang.uid.clone(), gang.clone());
                    submit(&mut world.state, [gang]);
                }
                Event::Allocate { first, count } => world.allocate(first, count)?,
                Event::End(which) => world.end(which),
            }
            let [by_steps, at_once] = world.decide();
            prop_assert_eq!(by_steps, at_once);
        }
        world.allocate(0, usize::MAX)?;
    }
}
