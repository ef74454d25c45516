//! What is told of gangs that do not fit is true by brute force.

use proptest::prelude::*;

use crate::{
    model::{Gang, Node},
    names::NodeFilterId,
    placement::{
        Effort, View,
        explain::{EXHAUSTIVE, explain},
        fixtures::*,
    },
};

/// Devices and cores of a pod; devices and cores of a node.
type Pair = (u32, i64);

fn small_gang(pods: &[Pair]) -> Gang {
    let pods = pods.iter().enumerate().map(|(rank, (devices, cores))| {
        let mut pod = pod(&format!("p{rank}"), *devices);
        pod.resources.cpu_milli = cores * 1000;
        pod
    });
    gang(pods.collect())
}

fn small_nodes(nodes: &[Pair]) -> Vec<Node> {
    let nodes = nodes.iter().enumerate().map(|(at, (devices, cores))| {
        let mut node = node_at(
            &format!("n{at}"),
            &format!("s/l{}", at % 2),
            *devices as usize,
        );
        node.allocatable.cpu_milli = cores * 1000;
        node
    });
    nodes.collect()
}

/// The most pods that can be put on the nodes at once, tried in every way.
fn most_pods(left: &mut [Pair], pods: &[Pair]) -> usize {
    let Some(((devices, cores), rest)) = pods.split_first() else {
        return 0;
    };
    let mut most = most_pods(left, rest);
    for at in 0..left.len() {
        if left[at].0 >= *devices && left[at].1 >= *cores {
            left[at].0 -= devices;
            left[at].1 -= cores;
            most = most.max(1 + most_pods(left, rest));
            left[at].0 += devices;
            left[at].1 += cores;
        }
    }
    most
}

fn told(nodes: &[Pair], gang: &Gang) -> usize {
    let cluster = cluster(small_nodes(nodes));
    asking(gang, |request| {
        explain(&cluster, &View::Now, request, &mut Effort::default())
    })
    .fit
}

#[test]
fn pods_of_different_needs_are_not_counted_twice() {
    let pods = [(4, 1), (4, 1), (4, 1), (4, 2), (4, 2), (4, 2)];
    assert_eq!(told(&[(8, 64)], &small_gang(&pods)), 2);
}

#[test]
fn pods_that_share_a_claim_are_counted_together() {
    let shared = claim("shared", 4);
    let mut pods: Vec<_> = (0..3).map(|rank| pod(&format!("p{rank}"), 0)).collect();
    for pod in &mut pods[..2] {
        pod.claims = vec![shared.clone()];
    }
    pods[2].claims = vec![claim("own", 5)];
    assert_eq!(told(&[(8, 64)], &gang(pods)), 2);
}

/// Two pairs of pods that share no nodes: of one pair all fit only if the large pods go first, of the other only if
/// the small ones do. Pods without devices bring the gang to the size that is asked for; the last one never fits.
fn told_of(units: usize, steps: u64) -> (usize, bool) {
    let sized = |names: [&str; 2], sizes: [usize; 2], filter: u32| {
        let nodes = names.into_iter().zip(sizes).map(move |(name, size)| {
            let mut node = node_at(name, "s/l", size);
            node.filters = std::collections::BTreeSet::from([NodeFilterId(filter)]).into();
            node
        });
        nodes.collect::<Vec<_>>()
    };
    let mut nodes = sized(["a", "b"], [5, 5], 1);
    nodes.extend(sized(["c", "d"], [4, 3], 2));
    nodes.extend(sized(["e", "f"], [0, 0], 3));
    let asked = [
        (2, 1),
        (2, 1),
        (3, 1),
        (3, 1),
        (3, 2),
        (2, 2),
        (2, 2),
        (9, 3),
    ];
    let pods = (0..units).map(|at| {
        let (devices, filter) = asked.get(at).copied().unwrap_or((0, 3));
        let mut pod = pod(&format!("p{at:02}"), devices);
        pod.filter = NodeFilterId(filter);
        pod
    });
    let cluster = cluster(nodes);
    let gang = gang(pods.collect());
    let mut effort = Effort::of(steps);
    let unfit = asking(&gang, |request| {
        explain(&cluster, &View::Now, request, &mut effort)
    });
    (unfit.fit, unfit.is_fit_partial)
}

#[test]
fn the_count_is_exact_up_to_16_units_and_never_too_high() {
    let told = |units| told_of(units, Effort::ONE_DECISION);
    assert_eq!(told(8), (7, false));
    assert_eq!(told(EXHAUSTIVE), (EXHAUSTIVE - 1, false));
    let (fit, is_partial) = told(EXHAUSTIVE + 1);
    assert!((EXHAUSTIVE - 2..EXHAUSTIVE).contains(&fit), "{fit}");
    assert!(is_partial, "not every way was tried");
}

#[test]
fn a_count_whose_steps_run_out_says_that_more_may_fit() {
    let told = |steps| told_of(EXHAUSTIVE, steps);
    let exact = (EXHAUSTIVE - 1, false);
    let enough = (1..Effort::ONE_DECISION).find(|steps| told(*steps) == exact);
    let enough = enough.expect("a bound that is met");
    for steps in [0, enough / 2, enough - 1] {
        let (fit, is_partial) = told(steps);
        assert!(is_partial && fit <= exact.0, "{steps} of {enough}: {fit}");
    }
    assert_eq!(told(enough + 1), exact);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn as_many_pods_fit_as_is_told(
        nodes in proptest::collection::vec((0_u32..5, 1_i64..5), 1..5),
        pods in proptest::collection::vec((0_u32..4, 0_i64..4), 1..7),
        in_one_leaf in any::<bool>(),
    ) {
        let gang = small_gang(&pods);
        let gang = if in_one_leaf { requiring("leaf", gang) } else { gang };
        let mut areas: Vec<Vec<Pair>> = Vec::new();
        if in_one_leaf {
            areas.extend((0..2).map(|leaf| nodes.iter().copied().skip(leaf).step_by(2).collect()));
        } else {
            areas.push(nodes.clone());
        }
        let truth = areas.iter_mut().map(|area| most_pods(area, &pods)).max().unwrap_or(0);
        prop_assert_eq!(told(&nodes, &gang), truth.min(pods.len() - 1));
    }
}
