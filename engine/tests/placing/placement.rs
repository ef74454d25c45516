//! Where gangs are placed.

use std::{collections::BTreeSet, sync::Arc};

use crate::common::*;
use muster_engine::{
    Amount, Claim, DeviceRequest, Elsewhere, Gang, HostPort, HostPortProtocol, LevelName, Node,
    NodeBlock, NodeFilterId, NodeName, PodSelectorId, SelectorId, State, Update, Why,
};

/// `spine/leaf` and how many GPUs its nodes have, as `name:gpus` separated by spaces.
fn cluster(leaves: &[(&str, &str)]) -> Vec<Node> {
    leaves
        .iter()
        .flat_map(|(path, nodes)| {
            nodes.split(' ').map(|part| {
                let (name, gpus) = part.split_once(':').expect("name:gpus");
                node(name, path, gpus.parse().expect("a number"))
            })
        })
        .collect()
}

struct Case {
    what: &'static str,
    leaves: &'static [(&'static str, &'static str)],
    gang: fn() -> Gang,
    /// Nodes rank by rank; empty if it does not fit.
    expected: &'static str,
}

fn one_gpu_each(pods: usize) -> Gang {
    gang("g", "research", pods, 1)
}

/// Vectors of Kueue's KEP-2724 and unit tests (numbers as in the reference) with one GPU per pod; a block is a
/// spine, a rack a leaf. Where Kueue lists nodes with counts, here stands one node per rank.
const TREE_B5: &[(&str, &str)] = &[
    ("b1/r1", "x3:2"),
    ("b1/r2", "x5:2"),
    ("b1/r3", "x1:1 x2:1 x4:1 x6:1"),
];
const TREE_Q: &[(&str, &str)] = &[
    ("b1/r1", "b1r1:1"),
    ("b1/r2", "b1r2:3"),
    ("b2/r1", "b2r1:1"),
    ("b2/r2", "b2r2:2"),
];

#[test]
fn a_gang_goes_to_the_narrowest_and_tightest_domain() {
    let cases = [
        Case {
            what: "B1: largest nodes first, the last one the tightest that suffices",
            leaves: &[("b1/r1", "x1:3 x2:3 x3:2 x4:1")],
            gang: || requiring("leaf", one_gpu_each(7)),
            expected: "x1 x1 x1 x2 x2 x2 x4",
        },
        Case {
            what: "B5: fewest racks before fewest nodes",
            leaves: TREE_B5,
            gang: || requiring("spine", one_gpu_each(4)),
            expected: "x1 x2 x4 x6",
        },
        Case {
            what: "B6: one node rather than two",
            leaves: &[("b1/r1", "x3:2 x5:1 x1:1")],
            gang: || requiring("spine", one_gpu_each(2)),
            expected: "x3 x3",
        },
        Case {
            what: "B8: the first block of equal ones",
            leaves: &[
                ("b1/r1", "x3:1 x5:1"),
                ("b1/r2", "x1:1 x6:1"),
                ("b2/r1", "x2:1 x4:1"),
                ("b2/r2", "x7:1 x8:1"),
            ],
            gang: || requiring("spine", one_gpu_each(4)),
            expected: "x3 x5 x1 x6",
        },
        Case {
            what: "B9: preferred, and no block holds it: as few blocks as possible",
            leaves: &[("b1/r1", "x1:2"), ("b2/r1", "x2:1"), ("b3/r1", "x3:4")],
            gang: || preferring("spine", one_gpu_each(5)),
            expected: "x2 x3 x3 x3 x3",
        },
        Case {
            what: "Q2: the tightest rack",
            leaves: TREE_Q,
            gang: || requiring("leaf", one_gpu_each(2)),
            expected: "b2r2 b2r2",
        },
        Case {
            what: "Q3",
            leaves: TREE_Q,
            gang: || requiring("leaf", one_gpu_each(3)),
            expected: "b1r2 b1r2 b1r2",
        },
        Case {
            what: "Q4: only 3 of 4 fit into one rack",
            leaves: TREE_Q,
            gang: || requiring("leaf", one_gpu_each(4)),
            expected: "",
        },
        Case {
            what: "Q5 (and Q1, where Kueue takes b1): of equal racks the one in the tighter block",
            leaves: TREE_Q,
            gang: || requiring("spine", one_gpu_each(1)),
            expected: "b2r1",
        },
        Case {
            what: "Q6",
            leaves: TREE_Q,
            gang: || requiring("spine", one_gpu_each(4)),
            expected: "b1r1 b1r2 b1r2 b1r2",
        },
        Case {
            what: "Q7: only 4 of 5 fit into one block",
            leaves: TREE_Q,
            gang: || requiring("spine", one_gpu_each(5)),
            expected: "",
        },
        Case {
            what: "Q8: falls back from rack to block",
            leaves: TREE_Q,
            gang: || preferring("leaf", one_gpu_each(4)),
            expected: "b1r1 b1r2 b1r2 b1r2",
        },
        Case {
            what: "Q9: falls back to several blocks",
            leaves: TREE_Q,
            gang: || preferring("leaf", one_gpu_each(6)),
            expected: "b1r1 b1r2 b1r2 b1r2 b2r2 b2r2",
        },
        Case {
            what: "Q11: 7 GPUs in all",
            leaves: TREE_Q,
            gang: || preferring("spine", one_gpu_each(10)),
            expected: "",
        },
        Case {
            what: "Q12: a node that holds all is found without being asked for",
            leaves: TREE_Q,
            gang: || one_gpu_each(3),
            expected: "b1r2 b1r2 b1r2",
        },
        Case {
            what: "F3: the only rack that holds three",
            leaves: &[
                ("b1/r1", "x3:1"),
                ("b1/r2", "x5:1 x1:1 x6:1"),
                ("b2/r1", "x2:1"),
                ("b2/r2", "x4:2"),
            ],
            gang: || requiring("leaf", one_gpu_each(3)),
            expected: "x1 x5 x6",
        },
        Case {
            what: "two whole nodes of one leaf, though a node of each leaf comes first by name",
            leaves: &[("s/l2", "a:8 z:4"), ("s/l1", "b:8 c:8")],
            gang: || gang("g", "research", 2, 8),
            expected: "b c",
        },
    ];
    for case in cases {
        let placed = nodes_of(&mut open_state(cluster(case.leaves)), (case.gang)());
        assert_eq!(
            placed.unwrap_or_default().join(" "),
            case.expected,
            "{}",
            case.what
        );
    }
}

#[test]
fn a_gang_avoids_nodes_where_it_failed_unless_it_fits_nowhere_else() {
    for (what, leaves, gang, expected) in [
        (
            "two nodes instead of one",
            &[("s/l", "a:2 b:1 c:1")][..],
            avoiding(&["a"], one_gpu_each(2)),
            "b c",
        ),
        (
            "another leaf, if one must hold it",
            &[("s/l1", "a:2 b:1"), ("s/l2", "c:4")],
            requiring("leaf", avoiding(&["a"], one_gpu_each(2))),
            "c c",
        ),
        (
            "nowhere else",
            &[("s/l", "a:2 b:1")],
            avoiding(&["a"], one_gpu_each(2)),
            "a a",
        ),
        (
            "all of them",
            &[("s/l", "a:2 b:2")],
            avoiding(&["a", "b"], one_gpu_each(2)),
            "a a",
        ),
        (
            "one that is gone",
            &[("s/l", "a:2 b:2")],
            avoiding(&["z"], one_gpu_each(2)),
            "a a",
        ),
        (
            "pods without devices",
            &[("s/l", "a:0 b:0")],
            avoiding(&["a"], gang("g", "research", 1, 0)),
            "b",
        ),
        (
            "as many as count",
            &[("s/l", "a:1 b:1 c:1 d:1 e:1 f:1 g:1 h:1 i:1 j:1")],
            avoiding(
                &["a", "b", "c", "d", "e", "f", "g", "h", "i"],
                one_gpu_each(2),
            ),
            "i j",
        ),
    ] {
        let placed = nodes_of(&mut open_state(cluster(leaves)), gang);
        assert_eq!(placed.unwrap_or_default().join(" "), expected, "{what}");
    }
}

#[test]
fn what_one_gang_avoids_another_one_like_it_gets() {
    let mut state = open_state(cluster(&[("s/l", "a:2 b:2")]));
    let picky = avoiding(&["a", "b"], gang("g", "research", 1, 2));
    submit(
        &mut state,
        [
            picky,
            avoiding(&["b"], gang("h", "research", 1, 2)),
            gang("i", "research", 1, 2),
        ],
    );
    let admitted = decide(&mut state).admissions;
    let nodes = admitted.iter().map(|it| it.pods[0].node.to_string());
    assert_eq!(nodes.collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn ranks_follow_the_tree() {
    let mut state = open_state(cluster(&[
        ("s1/l1", "d:2 b:2"),
        ("s1/l2", "a:2 c:2"),
        ("s2/l1", "e:2"),
    ]));
    let placed = nodes_of(&mut state, gang("g", "research", 4, 2));
    assert_eq!(placed.expect("fits").join(" "), "b d a c");
}

#[test]
fn the_admission_names_the_narrowest_domain() {
    let table: [(usize, Option<&str>, &[&str]); 4] = [
        // One pod goes where the surroundings are tightest.
        (1, Some("node"), &["s2", "l1", "d"]),
        (2, Some("leaf"), &["s1", "l1"]),
        (3, Some("spine"), &["s1"]),
        (4, None, &[]),
    ];
    for (pods, level, domain) in table {
        let mut state = open_state(cluster(&[
            ("s1/l1", "a:8 b:8"),
            ("s1/l2", "c:8"),
            ("s2/l1", "d:8"),
        ]));
        submit(&mut state, [gang("g", "research", pods, 8)]);
        let decisions = decide(&mut state);
        let admission = &decisions.admissions[0];
        assert_eq!(
            admission.level.as_ref().map(ToString::to_string).as_deref(),
            level
        );
        assert_eq!(admission.domain, domain);
        assert_eq!(admission.topology, Some(FABRIC.into()));
    }
}

#[test]
fn without_a_topology_all_nodes_are_one_flat_set() {
    let mut state = open_state(cluster(&[("s1/l1", "a:8"), ("s2/l1", "b:8")]));
    state.apply(Update::Flavor(flavor(H100, None)));
    submit(
        &mut state,
        [
            gang("g", "research", 2, 8),
            requiring("leaf", gang("h", "research", 1, 8)),
        ],
    );
    let decisions = decide(&mut state);
    let admission = &decisions.admissions[0];
    assert_eq!(
        (admission.topology.clone(), admission.level.clone()),
        (None, None)
    );
    assert!(matches!(
        why(&state, "h"),
        Why::PlacementImpossible { level: Some(_), .. }
    ));
}

#[test]
fn a_level_that_the_topology_does_not_have_is_named() {
    let mut state = open_state(cluster(&[("s1/l1", "a:8")]));
    submit(&mut state, [requiring("rack", gang("g", "research", 1, 1))]);
    decide(&mut state);
    let why = why(&state, "g");
    let Why::PlacementImpossible {
        level, excluded, ..
    } = &why
    else {
        panic!("{why:?}");
    };
    assert_eq!(level.as_ref().map(LevelName::as_str), Some("rack"));
    assert_eq!(
        *excluded,
        [("Topology fabric has no level rack".to_owned(), 1)]
    );
}

#[test]
fn a_node_outside_the_topology_takes_no_gang_that_requires_a_level() {
    let mut state = open_state(cluster(&[("", "a:8"), ("s1/l1", "b:4")]));
    submit(
        &mut state,
        [requiring("spine", gang("g", "research", 1, 8))],
    );
    decide(&mut state);
    assert!(matches!(why(&state, "g"), Why::PlacementImpossible { .. }));
    assert_eq!(
        nodes_of(&mut state, gang("h", "research", 1, 8)),
        Some(vec!["a".into()])
    );
}

#[test]
fn an_accelerator_domain_breaks_ties() {
    let mut nodes = cluster(&[("s1/l1", "a:8 b:8 c:8 d:8")]);
    for (node, domain) in nodes.iter_mut().zip(["nvl-2", "nvl-1", "nvl-2", "nvl-1"]) {
        node.accelerator.insert(FABRIC.into(), domain.into());
    }
    let placed = nodes_of(&mut open_state(nodes), gang("g", "research", 2, 8));
    assert_eq!(placed.expect("fits").join(" "), "b d");
}

#[test]
fn a_part_of_a_node_leaves_nvlink_groups_whole() {
    let mut nodes = cluster(&[("s1/l1", "a:4 b:4")]);
    for node in &mut nodes {
        for (index, device) in node.devices.iter_mut().enumerate() {
            device.nvlink_group = Some(format!("pair-{}", index / 2));
        }
    }
    let mut state = open_state(nodes);
    // On a, one GPU of each pair is left: nothing is broken there. On b, a whole pair is.
    state.apply(Update::Hold(hold("p", "research", "a", &[0, 2])));
    state.apply(Update::Hold(hold("q", "research", "b", &[0, 1])));
    assert_eq!(
        nodes_of(&mut state, gang("g", "research", 1, 1)),
        Some(vec!["a".into()])
    );
    assert_eq!(
        nodes_of(&mut state, gang("h", "research", 1, 2)),
        Some(vec!["b".into()])
    );
}

#[test]
fn of_nodes_that_are_as_tight_the_first_is_not_taken_where_another_one_breaks_no_group() {
    for topology in [Some(FABRIC), None] {
        let mut nodes = cluster(&[("s1/l1", "a:4 b:4")]);
        for node in &mut nodes {
            for (index, device) in node.devices.iter_mut().enumerate() {
                device.nvlink_group = Some(format!("pair-{}", index / 2));
            }
        }
        let mut state = open_state(nodes);
        state.apply(Update::Flavor(flavor(H100, topology)));
        // On a, a whole pair is left. On b, one GPU of each.
        state.apply(Update::Hold(hold("p", "research", "a", &[0, 1])));
        state.apply(Update::Hold(hold("q", "research", "b", &[0, 2])));
        assert_eq!(
            nodes_of(&mut state, gang("g", "research", 1, 1)),
            Some(vec!["b".into()]),
            "{topology:?}"
        );
    }
}

#[test]
fn a_pod_without_gpus_goes_where_least_is_around_it_and_without_a_topology_to_the_first_node() {
    for (topology, expected) in [(Some(FABRIC), "c"), (None, "a")] {
        let nodes = cluster(&[("s1/l1", "a:0 b:0"), ("s1/l2", "c:0")]);
        let mut state = open_state(nodes);
        state.apply(Update::Flavor(flavor(H100, topology)));
        assert_eq!(
            nodes_of(&mut state, gang("g", "research", 1, 0)),
            Some(vec![expected.into()]),
            "{topology:?}"
        );
    }
}

#[test]
fn a_launcher_without_gpus_starts_with_its_workers() {
    let mut pods = vec![pod("launcher", Vec::new())];
    pods.extend((0..2).map(|rank| pod(&format!("w{rank}"), vec![claim(&format!("c{rank}"), 8)])));
    let together = gang_of("mpi", "research", pods.clone());
    let mut state = open_state(cluster(&[("s1/l1", "a:8 b:8"), ("s1/l2", "c:8 d:4")]));
    assert_eq!(
        nodes_of(&mut state, together).expect("fits").join(" "),
        "a a b"
    );

    // No room beside the workers: the launcher goes where the GPUs are not.
    let mut nodes = cluster(&[("s1/l1", "a:8 b:8"), ("", "cpu:0")]);
    for node in &mut nodes[..2] {
        node.allocatable.pods = 1;
    }
    let apart = gang_of("mpi", "research", pods);
    assert_eq!(
        nodes_of(&mut open_state(nodes), apart)
            .expect("fits")
            .join(" "),
        "cpu a b"
    );
}

#[test]
fn cpu_memory_pods_and_what_runs_there_count() {
    type Narrow = fn(&mut Node);
    let narrow: [(&str, Narrow); 6] = [
        ("too little cpu", |node| node.allocatable.cpu_milli = 999),
        ("too little memory", |node| {
            node.allocatable.memory_bytes = GIB - 1;
        }),
        ("too many pods", |node| node.allocatable.pods = 0),
        ("too little cpu", |node| node.used.cpu_milli = 63_001),
        ("too little memory", |node| {
            node.used.memory_bytes = 512 * GIB;
        }),
        ("too many pods", |node| node.used.pods = 110),
    ];
    for (cause, narrow) in narrow {
        let mut nodes = cluster(&[("s1/l1", "a:8")]);
        narrow(&mut nodes[0]);
        let mut state = open_state(nodes);
        submit(&mut state, [gang("g", "research", 1, 1)]);
        decide(&mut state);
        let (Why::Placement { excluded, .. } | Why::PlacementImpossible { excluded, .. }) =
            why(&state, "g")
        else {
            panic!("{cause}");
        };
        assert_eq!(excluded, [(cause.to_owned(), 1)]);
    }
}

#[test]
fn what_blocks_a_node_passes_and_what_a_pod_says_does_not() {
    let mut nodes = cluster(&[("s1/l1", "a:8")]);
    nodes[0].block = Some(NodeBlock::Cordoned);
    let mut state = open_state(nodes.clone());
    submit(&mut state, [gang("g", "research", 1, 8)]);
    decide(&mut state);
    assert!(matches!(
        why(&state, "g"),
        Why::Placement {
            fit: 0,
            nodes: 1,
            ..
        }
    ));

    nodes[0].block = None;
    state.apply(Update::Node(nodes[0].clone()));
    assert_eq!(admitted(&decide(&mut state)), ["g"]);

    let mut elsewhere = gang("h", "research", 1, 1);
    elsewhere.pods[0].filter = NodeFilterId(7);
    submit(&mut state, [elsewhere]);
    decide(&mut state);
    let Why::PlacementImpossible { excluded, .. } = why(&state, "h") else {
        panic!("a filter that no node passes");
    };
    assert_eq!(
        excluded,
        [("node selector, affinity or taints".to_owned(), 1)]
    );
}

#[test]
fn a_claim_that_pods_share_is_granted_once_on_one_node() {
    let shared = claim("shared", 4);
    let pods = (0..3).map(|rank| pod(&format!("p{rank}"), vec![shared.clone()]));
    let mut state = open_state(cluster(&[("s1/l1", "a:4 b:4")]));
    submit(&mut state, [gang_of("g", "research", pods.collect())]);
    let decisions = decide(&mut state);
    let admission = &decisions.admissions[0];
    assert!(
        admission
            .pods
            .iter()
            .all(|pod| pod.node == admission.pods[0].node)
    );
    assert_eq!(state.usage(&team_name("research"))[0].used, gpus(4));
}

#[test]
fn a_claim_that_is_allocated_already_draws_its_pod_to_its_node() {
    let mut made = claim("made", 2);
    made.allocated = Some((node_name("b"), vec![device(2).name, device(3).name]));
    let mut nodes = cluster(&[("s1/l1", "a:4 b:4")]);
    for index in [2, 3] {
        nodes[1].devices[index].allocated_to = Some("made".into());
    }
    let mut state = open_state(nodes);
    let placed = nodes_of(
        &mut state,
        gang_of("g", "research", vec![pod("p", vec![made])]),
    );
    assert_eq!(placed, Some(vec!["b".into()]));
    assert_eq!(state.usage(&team_name("research"))[0].used, gpus(2));
}

fn select(uid: &str, selector: u32, count: u32) -> Claim {
    let mut claim = claim(uid, count);
    claim.requests = vec![DeviceRequest::exactly("gpus", SelectorId(selector), count)];
    claim
}

/// One node with four GPUs, of which the last two also match selector 1.
fn two_kinds() -> State {
    let mut nodes = cluster(&[("s1/l1", "a:4")]);
    for index in [2, 3] {
        std::sync::Arc::make_mut(&mut nodes[0].devices[index].selectors).insert(SelectorId(1));
    }
    open_state(nodes)
}

#[test]
fn pods_wait_for_devices_on_one_node_only_if_their_order_cannot_matter() {
    let one = |name: &str, claim: Claim| gang_of(name, "research", vec![pod(name, vec![claim])]);
    let any = |count| move |uid: &str| select(uid, 0, count);
    let special = |count| move |uid: &str| select(uid, 1, count);
    let table: Vec<(&str, Claim, Claim, bool)> = vec![
        ("any and any", any(1)("x"), any(3)("y"), true),
        (
            "special and special",
            special(1)("x"),
            special(1)("y"),
            true,
        ),
        (
            "any might take what only the other can use",
            any(1)("x"),
            special(2)("y"),
            false,
        ),
        (
            "pairs alike",
            paired(any(2)("x")),
            paired(any(2)("y")),
            true,
        ),
        (
            "a single one might break a pair",
            any(1)("x"),
            paired(any(2)("y")),
            false,
        ),
        (
            "groups of unequal size",
            paired(any(1)("x")),
            paired(any(2)("y")),
            false,
        ),
    ];
    for (what, first, second, together) in table {
        let mut state = two_kinds();
        assert!(
            nodes_of(&mut state, one("first", first)).is_some(),
            "{what}"
        );
        let placed = nodes_of(&mut state, one("second", second.clone()));
        assert_eq!(placed.is_some(), together, "{what}");
        if !together {
            let Why::Placement { excluded, .. } = why(&state, "second") else {
                panic!("{what}");
            };
            assert_eq!(excluded[0].0, "devices of another gang not allocated yet");
        }
    }
}

#[test]
fn once_the_first_is_allocated_the_second_may_come() {
    let mut state = two_kinds();
    let first = gang_of(
        "first",
        "research",
        vec![pod("first", vec![select("x", 0, 1)])],
    );
    submit(&mut state, [first.clone()]);
    let decisions = decide(&mut state);
    let mut held = holds_of(&first, &decisions.admissions[0]);
    held[0].claims[0].devices = Some(vec![device(0).name]);
    state.apply(Update::Hold(held.remove(0)));
    let second = gang_of(
        "second",
        "research",
        vec![pod("second", vec![select("y", 1, 2)])],
    );
    assert!(nodes_of(&mut state, second).is_some());
}

#[test]
fn a_hold_of_unknown_devices_blocks_its_node() {
    let mut state = open_state(cluster(&[("s1/l1", "a:8")]));
    let mut unknown = hold("p", "research", "a", &[]);
    unknown.claims[0].devices = None;
    state.apply(Update::Hold(unknown));
    submit(&mut state, [gang("g", "research", 1, 1)]);
    decide(&mut state);
    let Why::Placement { excluded, .. } = why(&state, "g") else {
        panic!()
    };
    assert_eq!(excluded, [("held devices unknown".to_owned(), 1)]);
}

#[test]
fn devices_that_the_api_server_calls_allocated_are_taken() {
    let mut nodes = cluster(&[("s1/l1", "a:2")]);
    nodes[0].devices[0].allocated_to = Some("somebody".into());
    let mut state = open_state(nodes);
    submit(&mut state, [gang("g", "research", 1, 2)]);
    decide(&mut state);
    assert!(matches!(why(&state, "g"), Why::Placement { .. }));
}

#[test]
fn an_allocator_that_backtracks_finds_what_first_fit_misses() {
    // The request for any GPU comes first and would take the only special one.
    let mut nodes = cluster(&[("s1/l1", "a:2")]);
    std::sync::Arc::make_mut(&mut nodes[0].devices[0].selectors).insert(SelectorId(1));
    let mut both = claim("both", 1);
    both.requests
        .push(DeviceRequest::exactly("special", SelectorId(1), 1));
    let mut state = open_state(nodes);
    let placed = nodes_of(
        &mut state,
        gang_of("g", "research", vec![pod("p", vec![both])]),
    );
    assert_eq!(placed, Some(vec!["a".into()]));
}

#[test]
fn unequal_pods_find_the_one_way_that_works() {
    // Two big pods and two small ones on 3 + 3 GPUs: big ones may not share a node.
    let pods = [("b0", 2), ("b1", 2), ("s0", 1), ("s1", 1)];
    let pods = pods.map(|(name, count)| pod(name, vec![claim(name, count)]));
    let mut state = open_state(cluster(&[("s1/l1", "a:3 b:3")]));
    let placed = nodes_of(&mut state, gang_of("g", "research", pods.to_vec())).expect("fits");
    assert_ne!(placed[0], placed[1]);
    assert_ne!(placed[2], placed[3]);
}

#[test]
fn two_pods_of_different_needs_find_two_of_hundreds_of_idle_nodes() {
    for count in [2, 255, 300, 600] {
        let nodes = (0..count).map(|at| node(&format!("n{at:03}"), &format!("s/l{}", at % 40), 8));
        let pods = [("large", 4), ("small", 2)].map(|(name, gpus)| {
            let mut pod = pod(name, vec![claim(name, gpus)]);
            pod.resources.cpu_milli = 40_000;
            pod
        });
        let mut state = open_state(nodes.collect());
        let placed = nodes_of(&mut state, gang_of("g", "research", pods.to_vec()));
        let placed = placed.unwrap_or_else(|| panic!("{count} nodes"));
        assert_ne!(placed[0], placed[1]);
    }
}

#[test]
fn what_a_node_lists_besides_cores_and_memory_is_counted() {
    for resource in [
        "vpc.amazonaws.com/efa",
        "hugepages-2Mi",
        "ephemeral-storage",
    ] {
        let mut nodes = cluster(&[("s1/l1", "a:8 b:8")]);
        for node in &mut nodes {
            node.allocatable.others.insert(resource.into(), 32);
        }
        let mut whole = gang("g", "research", 2, 4);
        for pod in &mut whole.pods {
            pod.resources.others.insert(resource.into(), 32);
        }
        let placed = nodes_of(&mut open_state(nodes[..1].to_vec()), whole.clone());
        assert_eq!(placed, None, "{resource}");
        let placed = nodes_of(&mut open_state(nodes.clone()), whole.clone()).expect("two nodes");
        assert_ne!(placed[0], placed[1]);

        nodes[1].used.others.insert(resource.into(), 1);
        let mut state = open_state(nodes);
        submit(&mut state, [whole]);
        decide(&mut state);
        let Why::Placement { excluded, .. } = why(&state, "g") else {
            panic!("{resource}");
        };
        assert_eq!(excluded, [(format!("too little {resource}"), 1)]);
    }
}

#[test]
fn pods_that_bind_the_same_host_port_go_to_different_nodes() {
    let port = HostPort {
        protocol: HostPortProtocol::Tcp,
        ip: None,
        port: 29_500,
    };
    let mut with_port = gang("g", "research", 2, 1);
    for pod in &mut with_port.pods {
        pod.resources.host_ports.insert(port.clone());
    }
    let nodes = cluster(&[("s1/l1", "a:8 b:8")]);
    let placed = nodes_of(&mut open_state(nodes.clone()), with_port.clone()).expect("two nodes");
    assert_ne!(placed[0], placed[1]);

    let mut taken = nodes;
    taken[0].used.host_ports.insert(port);
    let mut state = open_state(taken);
    submit(&mut state, [with_port]);
    decide(&mut state);
    let Why::Placement { excluded, .. } = why(&state, "g") else {
        panic!("{:?}", why(&state, "g"));
    };
    assert_eq!(excluded, [("host port in use".to_owned(), 1)]);
}

#[test]
fn pods_that_repel_each_other_by_hostname_go_to_different_nodes() {
    let mut apart = gang("g", "research", 3, 1);
    for pod in &mut apart.pods {
        pod.resources.repels.insert(PodSelectorId(0));
        pod.resources.matched_by.insert(PodSelectorId(0));
    }
    let nodes = cluster(&[("s1/l1", "a:8 b:8 c:8")]);
    let placed = nodes_of(&mut open_state(nodes.clone()), apart.clone());
    assert_eq!(placed.expect("three nodes").join(" "), "a b c");
    assert_eq!(nodes_of(&mut open_state(nodes[..2].to_vec()), apart), None);
}

/// There is room for all of them, but a search looks for so many kinds of pods and no more.
#[test]
fn a_search_that_met_its_bound_says_so_and_never_that_it_is_impossible() {
    for (kinds, is_admitted) in [(16, true), (17, false)] {
        let mut nodes = cluster(&[("s1/l1", "a:24")]);
        Arc::make_mut(&mut nodes[0].filters).extend((100..200).map(NodeFilterId));
        let mut state = open_state(nodes);
        let mut unequal = gang("g", "research", kinds, 1);
        for (filter, pod) in (100..).zip(&mut unequal.pods) {
            pod.filter = NodeFilterId(filter);
        }
        submit(&mut state, [unequal]);
        assert_eq!(!admitted(&decide(&mut state)).is_empty(), is_admitted);
        if is_admitted {
            continue;
        }
        let told = why(&state, "g");
        assert!(
            matches!(
                told,
                Why::Placement {
                    gave_up: true,
                    pods: 17,
                    ..
                }
            ),
            "{told:?}"
        );
        let text = told.to_string();
        assert!(text.contains("met its bound"), "{text}");
        assert!(!text.contains("only"), "{text}");
    }
}

#[test]
fn where_every_way_was_tried_nobody_speaks_of_a_bound() {
    let mut state = open_state(cluster(&[("s1/l1", "a:4 b:4")]));
    submit(&mut state, [gang("first", "research", 1, 3)]);
    decide(&mut state);
    submit(&mut state, [gang("g", "research", 2, 4)]);
    decide(&mut state);
    let told = why(&state, "g");
    assert!(
        matches!(
            told,
            Why::Placement {
                gave_up: false,
                fit: 1,
                ..
            }
        ),
        "{told:?}"
    );
}

#[test]
fn a_gang_that_runs_has_a_place_elsewhere_if_there_is_one_beside_all_others() {
    let pair = || gang("g", "research", 2, 4);
    let names = |names: &[&str]| -> BTreeSet<NodeName> {
        names.iter().copied().map(NodeName::from).collect()
    };
    let mut state = open_state(cluster(&[("s/l", "n0:8 n1:8 n2:4")]));
    let on = nodes_of(&mut state, pair()).expect("a place");
    let here = on.first().expect("a node").as_str();
    let other = if here == "n0" { "n1" } else { "n0" };
    assert_eq!(on, [here, here], "both on one node");
    let elsewhere = |state: &State, without: &[&str]| state.elsewhere(&pair(), &names(without));
    let is_on = |found: Elsewhere, node: &str| found == Elsewhere::On(names(&[node]));
    assert!(is_on(elsewhere(&state, &[here]), other));
    // What it holds itself is no obstacle, nor is what its claims are allocated.
    let mut allocated = pair();
    for pod in &mut allocated.pods {
        for claim in &mut pod.claims {
            claim.allocated = Some((here.into(), Vec::new()));
        }
    }
    assert!(is_on(state.elsewhere(&allocated, &names(&[here])), other));
    assert!(is_on(elsewhere(&state, &[other]), here));
    let Elsewhere::Nowhere(nowhere) = elsewhere(&state, &[here, other]) else {
        panic!("one of them fits on n2");
    };
    assert_eq!((nowhere.pods, nowhere.fit, nowhere.gave_up), (2, 1, false));
    // Nobody is to be moved onto what is drained as well, nor onto what another gang has.
    let mut cordoned = node(other, "s/l", 8);
    cordoned.block = Some(NodeBlock::Cordoned);
    let mut drained = state.clone();
    drained.apply(Update::Node(cordoned));
    assert!(matches!(
        elsewhere(&drained, &[here]),
        Elsewhere::Nowhere(_)
    ));
    nodes_of(&mut state, gang("h", "research", 1, 8)).expect("the other node");
    assert!(matches!(elsewhere(&state, &[here]), Elsewhere::Nowhere(_)));
}

#[test]
fn a_gang_of_slices_has_no_place_on_devices_that_take_more_quota_than_it_gives_back() {
    let of = |name: &str, gpus: i64| {
        let mut node = node(name, "s/l", 1);
        for device in &mut node.devices {
            device.gpus = Amount(gpus);
        }
        node
    };
    let one = || gang("g", "research", 1, 1);
    let mut state = open_state(vec![of("n0", 250)]);
    let on = nodes_of(&mut state, one()).expect("a place");
    assert_eq!(on, ["n0"]);
    let without = BTreeSet::from([NodeName::from("n0")]);
    state.apply(Update::Node(of("n1", 1_000)));
    let larger = state.elsewhere(&one(), &without);
    assert!(matches!(larger, Elsewhere::Nowhere(_)), "{larger:?}");
    state.apply(Update::Node(of("n2", 250)));
    let equal = BTreeSet::from([NodeName::from("n2")]);
    assert_eq!(state.elsewhere(&one(), &without), Elsewhere::On(equal));
}
