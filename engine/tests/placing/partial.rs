//! Gangs that may start with fewer pods than they have.

use std::collections::BTreeMap;

use crate::common::*;
use muster_engine::{
    Admission, Budget, CommitRoom, FlavorName, Gang, Node, NodeBlock, QuotaLimit, Resource, State,
    Team, Update, Why,
};
use proptest::prelude::*;

fn at_least(least: usize, mut gang: Gang) -> Gang {
    gang.min_count = Some(least);
    gang
}

/// How many pods of the gang were admitted, which are its first.
fn size(gang: &Gang, admissions: &[Admission]) -> Option<usize> {
    let mut of_gang = admissions.iter().filter(|it| it.gang == gang.uid);
    let admission = of_gang.next()?;
    let admitted = admission.pods.iter().map(|pod| &pod.uid);
    let first = gang.pods.iter().map(|pod| &pod.uid);
    assert!(admitted.eq(first.take(admission.pods.len())));
    assert_eq!(admission.gang_pods, gang.pods.len());
    Some(admission.pods.len())
}

/// So many nodes of 8 GPUs.
fn nodes(count: usize) -> Vec<Node> {
    (0..count)
        .map(|at| node(&format!("n{at}"), "s/l", 8))
        .collect()
}

fn room(gangs: usize, pods: usize, claims: usize, nodes: usize) -> CommitRoom {
    CommitRoom {
        gangs,
        pods,
        claims,
        nodes,
    }
}

#[test]
fn a_gang_gets_the_most_pods_that_fit_and_none_below_its_least() {
    // Pods that take a node each, of which there are 5.
    for (pods, least, quota, expected) in [
        (4, Some(2), 100, Some(4)),
        (8, Some(2), 100, Some(5)),
        (8, Some(5), 100, Some(5)),
        (8, Some(6), 100, None),
        (8, None, 100, None),
        (8, Some(8), 100, None),
        (8, Some(2), 24, Some(3)),
        (8, Some(4), 24, None),
        // What makes no sense is no reason to give more or less.
        (5, Some(0), 100, Some(5)),
        (8, Some(0), 100, Some(5)),
        (8, Some(9), 100, None),
        (5, Some(usize::MAX), 100, Some(5)),
        (1, Some(1), 100, Some(1)),
    ] {
        let mut state = state(nodes(5), vec![team("a", None, limit(quota))]);
        let mut gang = gang("g", "a", pods, 8);
        gang.min_count = least;
        submit(&mut state, [gang.clone()]);
        let decisions = decide(&mut state);
        let case = format!("{least:?} of {pods}, with a quota of {quota}");
        assert_eq!(size(&gang, &decisions.admissions), expected, "{case}");
        assert!(decide(&mut state).admissions.is_empty(), "{case}");
        // What it does not get is for others.
        let left = 5 - expected.unwrap_or(0).min(5);
        let left = i64::try_from(left * 8).expect("small");
        let used = expected.map_or(0, |pods| i64::try_from(pods * 8).expect("small"));
        assert_eq!(state.usage(&team_name("a"))[0].used, gpus(used), "{case}");
        state.apply(Update::Team(team("b", None, limit(100))));
        let devices = u32::try_from(left / 8).expect("small");
        let other = crate::common::gang("other", "b", devices as usize, 8);
        if devices > 0 {
            submit(&mut state, [other]);
            assert_eq!(admitted(&decide(&mut state)), ["other"], "{case}");
        }
    }
}

#[test]
fn a_gang_that_is_admitted_in_part_grows_no_more_in_that_attempt() {
    let mut state = open_state(nodes(4));
    let gang = at_least(2, gang("g", "research", 6, 8));
    submit(&mut state, [gang.clone()]);
    assert_eq!(size(&gang, &decide(&mut state).admissions), Some(4));
    state.apply(Update::Node(node("more", "s/l", 8)));
    assert!(decide(&mut state).admissions.is_empty());
    // Whatever is told of it: some of its pods hold something.
    submit(&mut state, [at_least(1, gang)]);
    assert!(decide(&mut state).admissions.is_empty());
}

#[test]
fn room_for_its_least_wakes_a_gang() {
    let mut state = state(nodes(6), vec![team("a", None, limit(16))]);
    state.apply(Update::Team(team("b", None, limit(100))));
    let all = |at: usize| hold(&format!("p{at}"), "b", &format!("n{at}"), &[0, 1, 2, 3]);
    for at in 0..6 {
        state.apply(Update::Hold(all(at)));
    }
    let gang = at_least(2, gang("g", "a", 6, 8));
    submit(&mut state, [gang.clone()]);
    assert!(decide(&mut state).admissions.is_empty());
    assert!(matches!(
        why(&state, "g"),
        Why::Placement {
            pods: 2,
            fit: 0,
            ..
        }
    ));
    state.apply(Update::HoldGone(pod_uid("p0")));
    assert!(decide(&mut state).admissions.is_empty());
    assert!(matches!(
        why(&state, "g"),
        Why::Placement {
            pods: 2,
            fit: 1,
            ..
        }
    ));
    state.apply(Update::HoldGone(pod_uid("p1")));
    state.apply(Update::HoldGone(pod_uid("p2")));
    // There is a third place, but no quota for it.
    assert_eq!(size(&gang, &decide(&mut state).admissions), Some(2));
}

#[test]
fn quota_for_its_least_wakes_a_gang() {
    let mut state = state(nodes(6), vec![team("a", None, limit(8))]);
    let gang = at_least(2, gang("g", "a", 6, 8));
    submit(&mut state, [gang.clone()]);
    assert!(decide(&mut state).admissions.is_empty());
    state.apply(Update::Team(team("a", None, limit(15))));
    assert!(decide(&mut state).admissions.is_empty());
    state.apply(Update::Team(team("a", None, limit(30))));
    assert_eq!(size(&gang, &decide(&mut state).admissions), Some(3));
}

#[test]
fn gangs_that_start_with_as_many_share_what_is_found_out_and_grow_each_for_itself() {
    let mut state = open_state(nodes(8));
    state.apply(Update::Hold(hold("p", "research", "n0", &[0])));
    // All ask for two nodes at the least: the last one for no more.
    let gangs = [
        at(1, at_least(2, gang("g1", "research", 3, 8))),
        at(2, at_least(2, gang("g2", "research", 9, 8))),
        at(3, gang("g3", "research", 2, 8)),
    ];
    submit(&mut state, gangs.clone());
    let admissions = decide(&mut state).admissions;
    let sizes = gangs.iter().map(|gang| size(gang, &admissions));
    assert!(sizes.eq([Some(3), Some(4), None]));
    let room = state.waiting(&"g3".into()).expect("it waits");
    assert_eq!(room.min_count, None);
}

#[test]
fn what_a_gang_gets_besides_its_least_is_borrowed_after_those_who_borrow_nothing() {
    let pool = || Update::Cohort(cohort("all", None, 0));
    let borrowing = |name: &str, nominal| team(name, Some("all"), limit(nominal));
    let mut state = state(nodes(4), vec![borrowing("a", 16), borrowing("b", 16)]);
    state.apply(pool());
    // It came first, and its least is its Team's own.
    let large = at(1, at_least(1, gang("large", "a", 4, 8)));
    let small = at(2, gang("small", "b", 1, 8));
    submit(&mut state, [large.clone(), small]);
    let decisions = decide(&mut state);
    assert_eq!(admitted(&decisions), ["small", "large"]);
    assert_eq!(size(&large, &decisions.admissions), Some(3));
}

#[test]
fn a_gang_is_no_larger_than_a_commit_and_no_slicing_makes_it_smaller() {
    for (empty, left, expected) in [
        (room(9, 9, 9, 9), room(9, 9, 9, 9), Some(6)),
        (room(9, 4, 9, 9), room(9, 4, 9, 9), Some(4)),
        (room(9, 9, 3, 9), room(9, 9, 3, 9), Some(3)),
        (room(9, 9, 9, 5), room(9, 9, 9, 5), Some(5)),
        // The next commit has room for more.
        (room(9, 9, 9, 9), room(9, 5, 9, 9), None),
    ] {
        let mut state = open_state(nodes(8));
        let gang = at_least(2, gang("g", "research", 6, 8));
        submit(&mut state, [gang.clone()]);
        let budget = Budget {
            left,
            empty,
            looks_in_vain: u64::MAX,
        };
        let decisions = state.decide(NOW, &budget);
        let case = format!("{left:?} of {empty:?}");
        assert_eq!(size(&gang, &decisions.admissions), expected, "{case}");
        assert_eq!(decisions.exhausted, expected.is_none(), "{case}");
        let next = Budget {
            left: empty,
            ..budget
        };
        let admissions = state.decide(NOW, &next).admissions;
        let then = expected.is_none().then_some(6);
        assert_eq!(size(&gang, &admissions), then, "{case}");
    }
}

#[test]
fn a_gang_does_not_grow_onto_a_node_that_it_avoids() {
    for (avoided, free, expected) in [
        (&["n0"][..], 4, 3),
        // It fits nowhere without these: then they are nodes like others.
        (&["n0", "n1", "n2"][..], 4, 4),
        (&[][..], 4, 4),
    ] {
        let mut state = open_state(nodes(free));
        let gang = avoiding(avoided, at_least(2, gang("g", "research", 6, 8)));
        submit(&mut state, [gang.clone()]);
        let admissions = decide(&mut state).admissions;
        assert_eq!(size(&gang, &admissions), Some(expected), "{avoided:?}");
    }
}

#[test]
fn to_find_the_size_takes_a_handful_of_searches() {
    let mut state = open_state(nodes(100));
    let gang = at_least(1, gang("g", "research", 4_096, 8));
    submit(&mut state, [gang.clone()]);
    let decisions = decide(&mut state);
    assert_eq!(size(&gang, &decisions.admissions), Some(100));
    // One for its least, and no more than one for each bit of 4,096 and one for all.
    let plans = decisions.visited.plans;
    assert!(plans <= 14, "{plans} searches");
}

#[test]
fn an_admission_in_part_that_is_not_committed_is_made_again() {
    let mut state = open_state(nodes(3));
    let gang = at_least(2, gang("g", "research", 6, 8));
    submit(&mut state, [gang.clone()]);
    let first = decide(&mut state).admissions;
    assert_eq!(size(&gang, &first), Some(3));
    state.undo(&gang.uid);
    assert_eq!(state.usage(&team_name("research"))[0].used, gpus(0));
    assert_eq!(decide(&mut state).admissions, first);
}

/// A random cluster, and the pods of one gang by the GPUs that each asks for.
#[derive(Clone, Debug)]
struct Random {
    /// GPUs of each node, how many of them are taken, whether they are of the second Flavor, and the leaf.
    nodes: Vec<(usize, usize, bool, u8)>,
    pods: Vec<(u32, i64)>,
    least: usize,
    quota: (i64, i64),
    required: Option<&'static str>,
    budget: usize,
}

fn random() -> impl Strategy<Value = Random> {
    let node = (0_usize..6, 0_usize..3, any::<bool>(), 0_u8..3);
    let pods = prop_oneof![
        (0_u32..4, 1_i64..5, 1_usize..8)
            .prop_map(|(gpus, cores, count)| vec![(gpus, cores); count]),
        proptest::collection::vec((0_u32..4, 1_i64..5), 1..7),
    ];
    let required = prop_oneof![3 => Just(None), 1 => Just(Some("leaf")), 1 => Just(Some("node"))];
    let quota = (0_i64..16, 0_i64..16);
    let gang = (pods, 0_usize..8, required, 1_usize..10);
    (proptest::collection::vec(node, 1..6), gang, quota).prop_map(
        |(nodes, (pods, least, required, budget), quota)| Random {
            nodes,
            pods,
            least,
            quota,
            required,
            budget,
        },
    )
}

impl Random {
    fn nodes(&self) -> impl Iterator<Item = Node> {
        let nodes = self.nodes.iter().enumerate();
        nodes.map(|(at, (devices, taken, other, leaf))| {
            let mut node = node(&format!("n{at}"), &format!("s/l{leaf}"), *devices);
            node.allocatable.cpu_milli = 6_000;
            for device in node.devices.iter_mut().take(*taken) {
                device.allocated_to = Some("other".into());
            }
            if *other {
                for device in &mut node.devices {
                    device.flavors = [FlavorName::from("a100")].into();
                }
            }
            node
        })
    }

    fn state(&self) -> State {
        let mut both: Team = team("a", None, limit(self.quota.0));
        let of_other: QuotaLimit = limit(self.quota.1);
        let of_other = BTreeMap::from([(Resource::Gpus, of_other)]);
        both.quota.push(("a100".into(), of_other));
        let mut state = state(self.nodes().collect(), vec![both]);
        state.apply(Update::Flavor(flavor("a100", Some(FABRIC))));
        state
    }

    /// A gang of the first so many pods, which starts whole or not at all.
    fn whole(&self, pods: usize) -> Gang {
        let pods = self.pods.iter().take(pods).enumerate();
        let pods = pods.map(|(rank, (gpus, cores))| {
            let claims = if *gpus == 0 {
                Vec::new()
            } else {
                vec![claim(&format!("c{rank}"), *gpus)]
            };
            let mut pod = pod(&format!("p{rank}"), claims);
            pod.resources.cpu_milli = cores * 1_000;
            pod
        });
        let mut gang = gang_of("g", "a", pods.collect());
        gang.topology.required = self.required.map(Into::into);
        gang
    }

    fn budget(&self) -> Budget {
        let empty = CommitRoom {
            pods: self.budget,
            ..CommitRoom::UNLIMITED
        };
        Budget {
            left: empty,
            empty,
            looks_in_vain: u64::MAX,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// As large as the largest gang of its first pods that is admitted whole, found by asking about each size by itself.
    #[test]
    fn a_gang_is_as_large_as_the_largest_that_would_be_admitted_whole(random in random()) {
        let all = random.pods.len();
        let least = random.least.clamp(1, all);
        let fits = |pods: usize| {
            let mut state = random.state();
            submit(&mut state, [random.whole(pods)]);
            !state.decide(NOW, &random.budget()).admissions.is_empty()
        };
        let expected = (least..=all).rev().find(|pods| fits(*pods));
        let gang = at_least(random.least, random.whole(all));
        let mut state = random.state();
        submit(&mut state, [gang.clone()]);
        let decisions = state.decide(NOW, &random.budget());
        prop_assert_eq!(size(&gang, &decisions.admissions), expected);
        prop_assert!(state.decide(NOW, &random.budget()).admissions.is_empty());
    }

    /// Nor is it another one for what was found out about others before, or for having waited.
    #[test]
    fn a_gang_that_waited_is_as_large_as_one_that_just_came(random in random()) {
        let all = random.pods.len();
        let gang = at_least(random.least, random.whole(all));
        let mut waited = random.state();
        for mut node in random.nodes() {
            node.block = Some(NodeBlock::Cordoned);
            waited.apply(Update::Node(node));
        }
        submit(&mut waited, [gang.clone()]);
        prop_assert!(waited.decide(NOW, &random.budget()).admissions.is_empty());
        for node in random.nodes() {
            waited.apply(Update::Node(node));
        }
        let mut fresh = random.state();
        submit(&mut fresh, [gang]);
        prop_assert_eq!(
            waited.decide(NOW, &random.budget()).admissions,
            fresh.decide(NOW, &random.budget()).admissions
        );
    }
}
