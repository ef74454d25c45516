//! Nominal quota that follows what is healthy.

use std::{collections::BTreeMap, sync::Arc};

use crate::{common::*, cut_gpus::*};
use muster_engine::{
    Amount, Cohort, FlavorResource, Node, QuotaLimit, Resource, State, Team, Update, Why,
    model::NodeBlock, quota::Weight,
};
use proptest::prelude::*;

const ROOT: &str = "all";

fn automatic() -> QuotaLimit {
    QuotaLimit {
        automatic: true,
        ..QuotaLimit::default()
    }
}

/// A Cohort whose pool is whatever its Teams are not guaranteed.
fn slack() -> Cohort {
    Cohort {
        quota: gpu_quota(automatic()),
        ..cohort(ROOT, None, 0)
    }
}

/// What a Team is guaranteed and what it could get, in whole GPUs.
fn has(state: &mut State, team: &str) -> (i64, i64) {
    decide(state);
    let usage = state.usage(&team_name(team));
    let gpus = usage
        .iter()
        .find(|usage| usage.of.resource == Resource::Gpus);
    let gpus = gpus.expect("its quota names GPUs");
    (gpus.nominal.0 / 1000, gpus.available.0 / 1000)
}

fn faulty(mut node: Node, devices: usize) -> Node {
    for device in node.devices.iter_mut().take(devices) {
        device.usable = false;
        device.healthy = false;
    }
    node
}

/// The first devices of a node are allocated.
fn in_use(mut node: Node, devices: usize) -> Node {
    for (at, device) in node.devices.iter_mut().take(devices).enumerate() {
        device.allocated_to = Some(format!("claim-{at}").as_str().into());
    }
    node
}

#[test]
fn gpus_that_drop_out_shrink_the_slack_and_no_guarantee_before_it_is_used_up() {
    let owns = team("owns", Some(ROOT), limit(8));
    let mut state = state(vec![], vec![owns, team("borrows", Some(ROOT), limit(0))]);
    state.apply(Update::Cohort(slack()));
    for (nodes, of_borrower, of_owner) in [
        (vec![node("n0", "s/l", 8), node("n1", "s/l", 8)], 16, 16),
        (vec![faulty(node("n1", "s/l", 8), 3)], 13, 13),
        (vec![faulty(node("n1", "s/l", 8), 8)], 8, 8),
        // Less is healthy than is guaranteed: the guarantee stays, and who has a place for it is placement's part.
        (vec![faulty(node("n0", "s/l", 8), 1)], 8, 8),
        (vec![node("n0", "s/l", 8), node("n1", "s/l", 8)], 16, 16),
    ] {
        for node in nodes {
            state.apply(Update::Node(node));
        }
        assert_eq!(has(&mut state, "owns"), (8, of_owner));
        assert_eq!(has(&mut state, "borrows"), (0, of_borrower));
    }
}

#[test]
fn a_gpu_that_may_be_cut_counts_once_and_no_other_for_being_cut() {
    let both = BTreeMap::from([(Resource::Gpus, automatic()), (Resource::Vram, automatic())]);
    let all = Team {
        quota: vec![(H100.into(), both)],
        ..team("all-of-it", None, automatic())
    };
    let mut state = state(vec![], vec![all]);
    let slice = part(0, ONE_SLICE, 3);
    let cut = || {
        let mut node = cut_node("n0", "s/l", 2);
        node.devices[slice].allocated_to = Some("claim".into());
        node
    };
    let cordoned = Node {
        block: Some(NodeBlock::Cordoned),
        ..cut()
    };
    let drained = Node {
        block: Some(NodeBlock::Drained),
        ..cut()
    };
    let mut only_slices = cut_node("n0", "s/l", 2);
    only_slices
        .devices
        .retain(|device| device.gpus < Amount::ONE_GPU);
    let mut beyond = cut_node("n0", "s/l", 2);
    beyond.counter_sets = Arc::from(&beyond.counter_sets[..1]);
    for (what, node, milli, tens_of_gib) in [
        ("whole", cut_node("n0", "s/l", 2), 2000, 16),
        ("cut", cut(), 2000, 16),
        ("cut and cordoned", cordoned, 142, 1),
        ("cut and drained", drained, 142, 1),
        (
            "one faulty",
            faulty(cut_node("n0", "s/l", 2), DEVICES_PER_GPU),
            1000,
            8,
        ),
        (
            "one faulty and cut",
            faulty(cut(), DEVICES_PER_GPU),
            1142,
            9,
        ),
        ("slices alone", only_slices, 2000, 16),
        ("one without counters", beyond, 1000, 8),
        (
            "not to be cut",
            crate::common::node("n0", "s/l", 2),
            2000,
            16,
        ),
    ] {
        state.apply(Update::Node(node));
        decide(&mut state);
        let usage = state.usage(&team_name("all-of-it"));
        let nominal = |of: Resource| {
            let mut usage = usage.iter();
            let usage = usage.find(|usage| usage.of.resource == of);
            usage.map(|usage| usage.nominal.0)
        };
        let bytes = tens_of_gib * 10 * GIB;
        assert_eq!(nominal(Resource::Gpus), Some(milli), "{what}");
        assert_eq!(nominal(Resource::Vram), Some(bytes), "{what}");
    }
}

#[test]
fn a_cordoned_drained_or_lost_node_is_missed_and_one_that_is_silent_for_the_moment_does_not() {
    let mut state = state(vec![], vec![team("all-of-it", None, automatic())]);
    for (block, gpus) in [
        (None, 8),
        (Some(NodeBlock::NotReady), 8),
        (Some(NodeBlock::SlicesMissing), 8),
        (Some(NodeBlock::DriverSilent), 8),
        (Some(NodeBlock::Cordoned), 0),
        (Some(NodeBlock::Drained), 0),
        (Some(NodeBlock::Lost), 0),
    ] {
        let mut node = node("n0", "s/l", 8);
        node.block = block;
        state.apply(Update::Node(node));
        assert_eq!(
            has(&mut state, "all-of-it"),
            (8.min(gpus), gpus),
            "{block:?}"
        );
    }
    state.apply(Update::Node(node("n0", "s/l", 8)));
    assert_eq!(has(&mut state, "all-of-it"), (8, 8));
    state.apply(Update::NodeGone("n0".into()));
    assert_eq!(has(&mut state, "all-of-it"), (0, 0));
}

/// The pool is lent when its node is drained. What the owner is guaranteed is free, and it gets it.
#[test]
fn what_is_drained_under_a_borrower_is_missed_when_it_is_free_and_costs_no_owner_its_guarantee() {
    for drained in [
        |mut node: Node| {
            node.block = Some(NodeBlock::Cordoned);
            node
        },
        |mut node: Node| {
            node.block = Some(NodeBlock::Drained);
            node
        },
        |node: Node| faulty(node, 8),
    ] {
        let teams = vec![
            team("owns", Some(ROOT), limit(8)),
            team("borrows", Some(ROOT), limit(0)),
        ];
        let free = node("n1", "s/l", 8);
        let mut state = state(vec![node("n0", "s/l", 8), free.clone()], teams);
        state.apply(Update::Cohort(slack()));
        let devices: Vec<usize> = (0..8).collect();
        state.apply(Update::Hold(hold("r", "borrows", "n1", &devices)));
        state.apply(Update::Node(drained(in_use(free.clone(), 8))));
        submit(&mut state, [gang("of-owner", "owns", 1, 8)]);
        assert_eq!(admitted(&decide(&mut state)), ["of-owner"]);
        assert_eq!(has(&mut state, "borrows").1, 0);

        state.apply(Update::HoldGone(pod_uid("r")));
        state.apply(Update::Node(drained(free)));
        assert_eq!(has(&mut state, "borrows").1, 0);
    }
}

#[test]
fn a_device_that_is_only_held_until_it_is_released_is_not_missed() {
    let mut state = state(vec![], vec![team("all-of-it", None, automatic())]);
    let mut held = node("n0", "s/l", 8);
    held.devices[0].usable = false;
    state.apply(Update::Node(held));
    assert_eq!(has(&mut state, "all-of-it").0, 8);
}

#[test]
fn whoever_asks_decides_by_limits_that_follow_the_inventory_hears_when_they_move() {
    let mut state = state(
        vec![node("n0", "s/l", 8)],
        vec![team("a", None, automatic())],
    );
    decide(&mut state);
    let before = state.limits_version();
    decide(&mut state);
    state.apply(Update::Node(in_use(node("n0", "s/l", 8), 2)));
    decide(&mut state);
    assert_eq!(state.limits_version(), before, "nothing moved");
    state.apply(Update::Node(faulty(node("n0", "s/l", 8), 1)));
    decide(&mut state);
    assert_ne!(state.limits_version(), before);
}

#[test]
fn several_that_follow_the_inventory_share_it_by_weight() {
    let weighted = |name: &str, weight: u64| Team {
        weight: Weight(weight * Weight::ONE.0),
        ..team(name, None, automatic())
    };
    let teams = vec![
        weighted("a", 3),
        weighted("b", 1),
        team("c", None, limit(4)),
    ];
    let mut state = state(vec![node("n0", "s/l", 8), node("n1", "s/l", 8)], teams);
    let parts = |state: &mut State| ["a", "b"].map(|team| has(state, team).0);
    assert_eq!(parts(&mut state), [9, 3]);
    state.apply(Update::Team(weighted("b", 3)));
    assert_eq!(parts(&mut state), [6, 6]);
    // A number that is lowered, or gone with its Team, leaves more.
    state.apply(Update::Team(team("c", None, limit(0))));
    assert_eq!(parts(&mut state), [8, 8]);
    state.apply(Update::TeamGone("c".into()));
    state.apply(Update::TeamGone("b".into()));
    assert_eq!(has(&mut state, "a").0, 16);
}

#[test]
fn memory_of_gpus_is_followed_too_and_what_no_device_has_is_nothing() {
    let mut follows = team("a", None, automatic());
    for resource in [Resource::Vram, Resource::Cpu] {
        follows.quota[0].1.insert(resource, automatic());
    }
    let second = Team {
        name: team_name("b"),
        ..follows.clone()
    };
    let mut state = state(vec![node("n0", "s/l", 3)], vec![follows]);
    let nominal = |state: &mut State, name: &str, resource: &Resource| {
        decide(state);
        let usage = state.usage(&team_name(name));
        let limit = usage.iter().find(|usage| usage.of.resource == *resource);
        limit.expect("it is named").nominal
    };
    assert_eq!(nominal(&mut state, "a", &Resource::Vram), Amount(240 * GIB));
    assert_eq!(nominal(&mut state, "a", &Resource::Cpu), Amount::ZERO);
    // The memory goes with the GPUs.
    state.apply(Update::Team(second));
    for (name, gpus) in [("a", 2), ("b", 1)] {
        let of = |state: &mut State, resource| nominal(state, name, resource);
        assert_eq!(of(&mut state, &Resource::Gpus), Amount(gpus * 1000));
        assert_eq!(of(&mut state, &Resource::Vram), Amount(gpus * 80 * GIB));
    }
    state.apply(Update::Node(node("n0", "s/l", 2)));
    assert_eq!(nominal(&mut state, "a", &Resource::Vram), Amount(80 * GIB));
}

#[test]
fn a_gang_that_waits_for_quota_is_admitted_when_a_node_brings_it() {
    let mut state = state(
        vec![node("n0", "s/l", 4)],
        vec![team("a", None, automatic())],
    );
    submit(&mut state, [gang("large", "a", 1, 8)]);
    assert!(admitted(&decide(&mut state)).is_empty());
    assert!(
        matches!(why(&state, "large"), Why::ExceedsMaxQuota { .. }),
        "{:?}",
        why(&state, "large")
    );
    state.apply(Update::Node(node("n1", "s/l", 8)));
    assert_eq!(admitted(&decide(&mut state)), ["large"]);
}

/// One thing that is told.
#[derive(Clone, Debug)]
enum Told {
    Team(u8, Option<(bool, i64, u64)>),
    Cohort(Option<(bool, i64)>),
    Node(u8, Option<(usize, usize, bool)>),
}

fn told() -> impl Strategy<Value = Told> {
    let team = prop::option::of((any::<bool>(), 0_i64..12, 0_u64..4));
    let node = prop::option::of((0_usize..9, 0_usize..9, any::<bool>()));
    prop_oneof![
        (0_u8..4, team).prop_map(|(name, team)| Told::Team(name, team)),
        prop::option::of((any::<bool>(), 0_i64..12)).prop_map(Told::Cohort),
        (0_u8..4, node).prop_map(|(name, node)| Told::Node(name, node)),
    ]
}

impl Told {
    fn update(&self) -> Update {
        let limit_of = |follows: bool, nominal| QuotaLimit {
            automatic: follows,
            ..limit(nominal)
        };
        match self {
            Self::Team(name, None) => Update::TeamGone(format!("t{name}").as_str().into()),
            Self::Team(name, Some((follows, nominal, weight))) => Update::Team(Team {
                weight: Weight(*weight),
                ..team(
                    &format!("t{name}"),
                    Some(ROOT),
                    limit_of(*follows, *nominal),
                )
            }),
            Self::Cohort(None) => Update::CohortGone(ROOT.into()),
            Self::Cohort(Some((follows, nominal))) => Update::Cohort(Cohort {
                quota: gpu_quota(limit_of(*follows, *nominal)),
                ..cohort(ROOT, None, 0)
            }),
            Self::Node(name, None) => Update::NodeGone(format!("n{name}").as_str().into()),
            Self::Node(name, Some((devices, unusable, is_cordoned))) => {
                let mut node = faulty(node(&format!("n{name}"), "s/l", *devices), *unusable);
                node.block = is_cordoned.then_some(NodeBlock::Cordoned);
                Update::Node(node)
            }
        }
    }

    fn subject(&self) -> (u8, u8) {
        match self {
            Self::Team(name, _) => (0, *name),
            Self::Cohort(_) => (1, 0),
            Self::Node(name, _) => (2, *name),
        }
    }
}

fn usage(state: &mut State) -> Vec<Vec<(FlavorResource, Amount, Amount)>> {
    decide(state);
    let teams = (0_u8..4).map(|name| state.usage(&team_name(&format!("t{name}"))));
    let shown = teams.map(|usage| {
        let shown = usage.into_iter();
        shown.map(|it| (it.of, it.nominal, it.available)).collect()
    });
    shown.collect()
}

proptest! {
    /// Told step by step, with a decision between any two or not, and told at once, only as it is in the end, in another order:
    /// the guarantees are the same. Nothing is divided that is not there.
    #[test]
    fn what_is_guaranteed_depends_on_what_is_and_not_on_how_it_came_about(
        history in prop::collection::vec((told(), any::<bool>()), 1..24),
    ) {
        let mut by_steps = state(vec![], vec![]);
        for (told, decides) in &history {
            by_steps.apply(told.update());
            by_steps.apply(told.update());
            if *decides {
                decide(&mut by_steps);
            }
        }
        let last: BTreeMap<(u8, u8), &Told> =
            history.iter().map(|(told, _)| (told.subject(), told)).collect();
        let mut at_once = state(vec![], vec![]);
        for told in last.values().rev() {
            at_once.apply(told.update());
        }
        let shown = usage(&mut by_steps);
        prop_assert_eq!(&shown, &usage(&mut at_once));

        let (mut healthy, mut fixed, mut weights) = (0, 0, Vec::new());
        for told in last.values() {
            match told {
                Told::Node(_, Some((devices, unusable, false))) => {
                    healthy += i64::try_from(devices.saturating_sub(*unusable)).expect("few");
                }
                Told::Team(_, Some((false, nominal, _))) | Told::Cohort(Some((false, nominal))) => fixed += nominal,
                Told::Team(_, Some((true, _, weight))) => weights.push(*weight),
                Told::Cohort(Some((true, _))) => weights.push(Weight::ONE.0),
                _ => {}
            }
        }
        let follows = last.values().filter_map(|told| match told {
            Told::Team(name, Some((true, _, _))) => Some(usize::from(*name)),
            _ => None,
        });
        let of_teams: i64 = follows.map(|name| shown[name][0].1.0 / 1000).sum();
        let slack = (healthy - fixed).max(0);
        prop_assert!(of_teams <= slack);
        if !matches!(last.get(&(1, 0)), Some(Told::Cohort(Some((true, _))))) && !weights.is_empty() {
            prop_assert_eq!(of_teams, slack);
        }
    }
}
