//! In which order gangs are admitted that may start with fewer pods than they have: the same, however little a commit carries.

use crate::{common::*, slices::decide_in_slices};
use muster_engine::{
    Admission, Amount, Cohort, Gang, Node, Queueing, QuotaLimit, Resource, State, Team, Update,
    quota::Sharing,
};
use proptest::prelude::*;

/// What is admitted by one decision, and by many that admit one gang each.
fn both_ways(state: &State) -> (Vec<Admission>, Vec<Admission>) {
    let at_once = decide(&mut state.clone()).admissions;
    let slices = decide_in_slices(&mut state.clone(), NOW, 1);
    let one_by_one = slices.into_iter().flat_map(|slice| slice.admissions);
    (at_once, one_by_one.collect())
}

fn names(admissions: &[Admission]) -> Vec<(String, usize)> {
    let names = admissions.iter();
    names
        .map(|it| (it.gang.to_string(), it.pods.len()))
        .collect()
}

/// GPUs and cores.
fn with_cores(name: &str, cohort: Option<&str>, devices: i64, cores: i64) -> Team {
    let mut team = team(name, cohort, limit(devices));
    let cores = QuotaLimit {
        nominal: Amount(cores * 1_000),
        ..QuotaLimit::default()
    };
    team.quota[0].1.insert(Resource::Cpu, cores);
    team
}

fn with_few_cores(name: &str, devices: usize, cores: i64) -> Node {
    let mut node = node(name, "s/l", devices);
    node.allocatable.cpu_milli = cores * 1_000;
    node
}

/// Pods of which each takes so many cores, and which share one GPU.
fn sharing(name: &str, team: &str, pods: usize, cores: i64) -> Gang {
    let pods = (0..pods).map(|rank| {
        let mut pod = pod(&format!("{name}-{rank}"), vec![claim(name, 1)]);
        pod.resources.cpu_milli = cores * 1_000;
        pod
    });
    gang_of(name, team, pods.collect())
}

#[test]
fn who_has_no_place_for_all_its_pods_any_more_comes_as_early_as_it_does_with_fewer() {
    let lender = |name: &str, root: &str| with_cores(name, Some(root), 8, 8);
    let teams = vec![
        with_cores("a", Some("left"), 8, 4),
        lender("lends-a", "left"),
        with_cores("b", None, 8, 8),
        with_cores("c", Some("right"), 0, 0),
        lender("lends-c", "right"),
    ];
    let nodes = vec![with_few_cores("n0", 8, 12), with_few_cores("n1", 1, 1)];
    let mut state = state(nodes, teams);
    // All four pods borrow cores. Once the second gang has its own, two of them are left, which borrow nothing.
    let mut shrinks = at(1, sharing("shrinks", "a", 4, 2));
    shrinks.min_count = Some(2);
    submit(
        &mut state,
        [
            shrinks,
            at(2, sharing("takes", "b", 1, 8)),
            sharing("borrows", "c", 1, 1),
        ],
    );
    let (at_once, one_by_one) = both_ways(&state);
    let expected = [("takes", 1), ("shrinks", 2), ("borrows", 1)];
    let expected = expected.map(|(name, pods)| (name.to_owned(), pods));
    assert_eq!(names(&one_by_one), expected);
    assert_eq!(names(&at_once), expected);
}

#[derive(Clone, Debug)]
struct World {
    /// GPUs, cores, and leaf of each node.
    nodes: Vec<(usize, i64, u8)>,
    /// Teams: their root, GPUs, cores, and whether their order is strict.
    teams: Vec<(u8, i64, i64, bool)>,
    gangs: Vec<Asks>,
}

#[derive(Clone, Debug)]
struct Asks {
    team: usize,
    /// GPUs and cores of each pod.
    pods: Vec<(u32, i64)>,
    /// Whether all its pods share one claim.
    shares: bool,
    least: Option<usize>,
    priority: i32,
    queued_at: i64,
    required: Option<&'static str>,
    may_borrow: bool,
}

fn asks() -> impl Strategy<Value = Asks> {
    let pods = prop_oneof![
        3 => (0_u32..3, 1_i64..4, 1_usize..6).prop_map(|(gpus, cores, pods)| vec![(gpus, cores); pods]),
        1 => proptest::collection::vec((0_u32..3, 1_i64..4), 1..6),
    ];
    let required = prop_oneof![4 => Just(None), 1 => Just(Some("leaf")), 1 => Just(Some("node"))];
    let least = proptest::option::weighted(0.7, 1_usize..4);
    let of_team = (0_usize..6, 0..2_i32, 0..4_i64, any::<bool>());
    (pods, any::<bool>(), least, required, of_team).prop_map(
        |(pods, shares, least, required, (team, priority, queued_at, may_borrow))| Asks {
            team,
            pods,
            shares,
            least,
            priority,
            queued_at,
            required,
            may_borrow,
        },
    )
}

fn world() -> impl Strategy<Value = World> {
    let nodes = proptest::collection::vec((0_usize..7, 2_i64..14, 0_u8..3), 1..5);
    let strict = proptest::bool::weighted(0.3);
    let teams = proptest::collection::vec((0_u8..4, 0_i64..6, 0_i64..10, strict), 2..7);
    let gangs = proptest::collection::vec(asks(), 2..9);
    (nodes, teams, gangs).prop_map(|(nodes, teams, gangs)| World {
        nodes,
        teams,
        gangs,
    })
}

impl World {
    fn gang(&self, number: usize, asks: &Asks) -> Gang {
        let name = format!("g{number}");
        let pods = asks.pods.iter().enumerate().map(|(rank, (gpus, cores))| {
            let claims = match (*gpus, asks.shares) {
                (0, _) => Vec::new(),
                (_, true) => vec![claim(&name, asks.pods[0].0.max(1))],
                (gpus, false) => vec![claim(&format!("{name}-{rank}"), gpus)],
            };
            let mut pod = pod(&format!("{name}-{rank}"), claims);
            pod.resources.cpu_milli = cores * 1_000;
            pod
        });
        let mut gang = gang_of(
            &name,
            &format!("t{}", asks.team % self.teams.len()),
            pods.collect(),
        );
        gang.min_count = asks.least;
        gang.priority = asks.priority;
        gang.queued_at = muster_engine::Timestamp(asks.queued_at);
        gang.topology.required = asks.required.map(Into::into);
        gang.may_borrow = asks.may_borrow;
        gang
    }

    fn state(&self) -> State {
        let nodes = self.nodes.iter().enumerate();
        let nodes = nodes.map(|(at, (devices, cores, leaf))| {
            let mut node = node(&format!("n{at}"), &format!("s/l{leaf}"), *devices);
            node.allocatable.cpu_milli = cores * 1_000;
            node
        });
        let teams = self.teams.iter().enumerate();
        let teams = teams.map(|(at, (root, devices, cores, strict))| {
            let root = (*root > 0).then(|| format!("root{root}"));
            let mut team = with_cores(&format!("t{at}"), root.as_deref(), *devices, *cores);
            if *strict {
                team.queueing = Queueing::StrictFifo;
            }
            team
        });
        let mut state = state(nodes.collect(), teams.collect());
        state.apply(Update::Cohort(Cohort {
            sharing: Sharing::FAIR,
            ..cohort("root1", None, 2)
        }));
        for root in ["root2", "root3"] {
            let mut cohort = cohort(root, None, 2);
            cohort.quota[0].1.insert(
                Resource::Cpu,
                QuotaLimit {
                    nominal: Amount(4_000),
                    ..QuotaLimit::default()
                },
            );
            state.apply(Update::Cohort(cohort));
        }
        for (number, asks) in self.gangs.iter().enumerate() {
            submit(&mut state, [self.gang(number, asks)]);
        }
        state
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn gangs_are_admitted_in_the_same_order_and_size_however_little_a_commit_carries(world in world()) {
        let (at_once, one_by_one) = both_ways(&world.state());
        prop_assert_eq!(names(&at_once), names(&one_by_one));
        prop_assert_eq!(at_once, one_by_one);
    }
}
