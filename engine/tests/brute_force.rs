//! Placement against exhaustive search on small clusters.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests"
)]

mod common;

use common::*;
use muster_engine::{Gang, Node, Update};
use proptest::prelude::*;

/// A node: leaf, GPUs, GPUs taken, cores.
type Small = (usize, usize, usize, i64);

fn small_cluster() -> impl Strategy<Value = Vec<Small>> {
    let node = (0_usize..2, 0_usize..5, 0_usize..4, 1_i64..5);
    proptest::collection::vec(node, 1..5)
}

/// Pods: GPUs and cores.
fn small_gang() -> impl Strategy<Value = Vec<(u32, i64)>> {
    proptest::collection::vec((0_u32..4, 0_i64..3), 1..6)
}

fn build(cluster: &[Small]) -> Vec<Node> {
    let nodes = cluster
        .iter()
        .enumerate()
        .map(|(at, (leaf, gpus, taken, cores))| {
            let mut node = node(&format!("n{at}"), &format!("s/l{leaf}"), *gpus);
            node.allocatable.cpu_milli = cores * 1000;
            for device in node.devices.iter_mut().take(*taken) {
                device.allocated_to = Some("other".into());
            }
            node
        });
    nodes.collect()
}

fn build_gang(pods: &[(u32, i64)]) -> Gang {
    let pods = pods.iter().enumerate().map(|(rank, (gpus, cores))| {
        let uid = format!("p{rank}");
        let claims = if *gpus == 0 {
            Vec::new()
        } else {
            vec![claim(&uid, *gpus)]
        };
        let mut pod = pod(&uid, claims);
        pod.resources.cpu_milli = cores * 1000;
        pod
    });
    gang_of("g", "research", pods.collect())
}

/// Whether the pods fit on what is left, tried in every way.
fn fits(left: &mut [(usize, i64)], pods: &[(u32, i64)]) -> bool {
    let Some(((gpus, cores), rest)) = pods.split_first() else {
        return true;
    };
    let gpus = *gpus as usize;
    for at in 0..left.len() {
        if left[at].0 < gpus || left[at].1 < *cores {
            continue;
        }
        left[at].0 -= gpus;
        left[at].1 -= cores;
        if fits(left, rest) {
            return true;
        }
        left[at].0 += gpus;
        left[at].1 += cores;
    }
    false
}

fn fits_on(cluster: &[Small], keep: impl Fn(&Small) -> bool, pods: &[(u32, i64)]) -> bool {
    let mut left: Vec<(usize, i64)> = cluster
        .iter()
        .filter(|node| keep(node))
        .map(|(_, gpus, taken, cores)| (gpus.saturating_sub(*taken), *cores))
        .collect();
    fits(&mut left, pods)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_engine_finds_a_placement_exactly_if_there_is_one(
        cluster in small_cluster(),
        pods in small_gang(),
        in_one_leaf in any::<bool>(),
    ) {
        let mut state = open_state(build(&cluster));
        let gang = build_gang(&pods);
        let gang = if in_one_leaf { requiring("leaf", gang) } else { gang };
        let placed = nodes_of(&mut state, gang);
        let possible = if in_one_leaf {
            (0..2).any(|leaf| fits_on(&cluster, |node| node.0 == leaf, &pods))
        } else {
            fits_on(&cluster, |_| true, &pods)
        };
        prop_assert_eq!(placed.is_some(), possible);
        let Some(placed) = placed else { return Ok(()) };
        // And what it says is true: nothing is taken twice.
        let mut left: Vec<(usize, i64)> =
            cluster.iter().map(|(_, gpus, taken, cores)| (gpus.saturating_sub(*taken), *cores)).collect();
        for (node, (gpus, cores)) in placed.iter().zip(&pods) {
            let at: usize = node[1..].parse().expect("n and a number");
            prop_assert!(left[at].0 >= *gpus as usize && left[at].1 >= *cores);
            left[at].0 -= *gpus as usize;
            left[at].1 -= cores;
        }
    }

    /// The narrowest: no gang spans two nodes that one holds, nor two leaves that one leaf holds.
    #[test]
    fn no_narrower_domain_would_do(cluster in small_cluster(), pods in small_gang()) {
        let mut state = open_state(build(&cluster));
        let Some(placed) = nodes_of(&mut state, build_gang(&pods)) else { return Ok(()) };
        let used: std::collections::BTreeSet<usize> =
            placed.iter().map(|node| node[1..].parse().expect("n and a number")).collect();
        if used.len() > 1 {
            for at in 0..cluster.len() {
                prop_assert!(!fits_on(&cluster[at..=at], |_| true, &pods));
            }
        }
        let leaves: std::collections::BTreeSet<usize> = used.iter().map(|at| cluster[*at].0).collect();
        if leaves.len() > 1 {
            for leaf in 0..2 {
                prop_assert!(!fits_on(&cluster, |node| node.0 == leaf, &pods));
            }
        }
    }

    /// Devices taken by holds count like those that the API server calls allocated.
    #[test]
    fn holds_and_allocations_count_alike(cluster in small_cluster(), pods in small_gang()) {
        let allocated = nodes_of(&mut open_state(build(&cluster)), build_gang(&pods));
        let free: Vec<Small> = cluster.iter().map(|(leaf, gpus, _, cores)| (*leaf, *gpus, 0, *cores)).collect();
        let mut state = open_state(build(&free));
        for (at, (_, gpus, taken, _)) in cluster.iter().enumerate() {
            let devices: Vec<usize> = (0..*gpus.min(taken)).collect();
            let mut hold = hold(&format!("h{at}"), "research", &format!("n{at}"), &devices);
            hold.resources = muster_engine::PodResources::default();
            state.apply(Update::Hold(hold));
        }
        prop_assert_eq!(nodes_of(&mut state, build_gang(&pods)), allocated);
    }
}
