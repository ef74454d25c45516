//! Every bound, met and passed by one.

use crate::{
    amount::Amount,
    model::{Claim, Constraint, HostPort, HostPortProtocol, Node},
    names::{NodeFilterId, PodSelectorId, SelectorId},
    placement::{
        DeviceCharge, Effort, MOST_SLOTS_APART, Verdict, View,
        cache::MOST_INDEXES,
        capacity::MOST_LOOKS_TO_COUNT,
        equal_pods_fit,
        explain::{MOST_OCCUPIED, MOST_SORTED, explain},
        fixtures::*,
        index::NODES_PER_STEP,
        pack::{EXHAUSTIVE_UNITS, STEPS_PER_CHOICE},
        plan, plan_since,
        remembered::MOST_REMEMBERED,
        search::{MOST_PACKINGS, MOST_SHAPES, MOST_TIES},
    },
};

#[test]
fn a_decision_takes_the_steps_that_it_needs_and_gives_up_with_one_less() {
    // Every node has the GPUs, half of them the memory and the others the cores: each is looked at.
    let cluster = cluster((0..50).map(|at| {
        let mut node = node_at(&format!("n{at}"), "s/l", 8);
        if at % 2 == 0 {
            node.allocatable.cpu_milli = 1_000;
        } else {
            node.allocatable.memory_bytes = 1 << 30;
        }
        node
    }));
    let mut gang = equal_pods(1, 1);
    gang.pods[0].resources.cpu_milli = 2_000;
    gang.pods[0].resources.memory_bytes = 2 << 30;
    let verdict = |steps| {
        asking(&gang, |request| {
            let mut effort = Effort::of(steps);
            let verdict = plan(&cluster, &View::Now, request, &mut effort);
            assert_eq!(matches!(verdict, Verdict::GaveUp(_)), effort.gave_up());
            said(&cluster, &gang, &verdict)
        })
    };
    let enough = (1..1_000)
        .find(|steps| verdict(*steps) == Said::NoPlace)
        .expect("a few looks at 50 nodes");
    assert!(enough >= 50);
    assert_eq!(verdict(enough - 1), Said::GaveUp);
    assert_eq!(verdict(0), Said::GaveUp);
    assert_eq!(verdict(Effort::ONE_DECISION), Said::NoPlace);
}

#[test]
fn a_spent_effort_leaves_nothing_for_the_next_question() {
    let cluster = cluster([node_at("a", "s/l", 8)]);
    let gang = equal_pods(1, 1);
    asking(&gang, |request| {
        let mut effort = Effort::of(0);
        for _ in 0..2 {
            let verdict = plan(&cluster, &View::Now, request, &mut effort);
            assert!(matches!(verdict, Verdict::GaveUp(_)));
            assert!(effort.gave_up());
        }
    });
}

#[test]
fn sixteen_kinds_of_pods_are_searched_for_and_seventeen_are_not() {
    let mut node = node_at("a", "s/l", 40);
    std::sync::Arc::make_mut(&mut node.filters).extend((0..40).map(NodeFilterId));
    let cluster = cluster([node]);
    let kinds = |count: usize| {
        let mut gang = equal_pods(count, 1);
        for (filter, pod) in (0..).zip(&mut gang.pods) {
            pod.filter = NodeFilterId(filter);
        }
        now(&cluster, &gang)
    };
    assert!(matches!(kinds(MOST_SHAPES), Said::Placed(..)));
    assert_eq!(kinds(MOST_SHAPES + 1), Said::GaveUp);
}

/// A node with GPUs of these groups.
fn node_of_groups(groups: impl IntoIterator<Item = String>) -> crate::model::Node {
    let mut node = node_at("a", "s/l", 0);
    let devices = groups.into_iter().enumerate().map(|(at, group)| {
        let mut device = device(at);
        std::sync::Arc::make_mut(&mut device.attributes).insert("group".into(), group);
        device
    });
    node.devices = devices.collect();
    node
}

/// Pods that each ask for two GPUs of one group.
fn pods_with_pairs(count: usize) -> crate::model::Gang {
    let mut gang = equal_pods(count, 2);
    for pod in &mut gang.pods {
        pod.resources.cpu_milli = 1;
        pod.claims[0].constraints = vec![Constraint {
            requests: Vec::new(),
            attribute: "group".into(),
        }];
    }
    gang
}

#[test]
fn that_a_second_pod_was_not_looked_for_to_the_end_is_never_told_as_impossible() {
    // The first pair is found at once. Before the second, each of 110 singles is tried with all behind it.
    let singles = (0..110).map(|at| format!("single-{at}"));
    let pair = |group: &str| [group.to_owned(), group.to_owned()];
    let groups = pair("a").into_iter().chain(singles).chain(pair("b"));
    let cluster = cluster([node_of_groups(groups)]);
    assert!(matches!(
        now(&cluster, &pods_with_pairs(1)),
        Said::Placed(..)
    ));
    let two = pods_with_pairs(2);
    for view in [View::Now, View::Empty] {
        let verdict = judged(&cluster, &view, &two);
        assert_eq!(said(&cluster, &two, &verdict), Said::GaveUp, "{view:?}");
        asking(&two, |request| {
            assert_eq!(equal_pods_fit(&cluster, &view, request), None, "{view:?}");
        });
    }
    asking(&pods_with_pairs(3), |request| {
        let unfit = explain(&cluster, &View::Now, request, &mut Effort::default());
        assert_eq!((unfit.fit, unfit.is_fit_partial), (1, true));
    });
    // Once the node is gone, so is the doubt.
    let mut without = cluster.clone();
    without.remove_node(&"a".into());
    assert_eq!(now(&without, &two), Said::NoPlace);
}

#[test]
fn units_of_a_node_are_counted_as_far_as_the_looks_go_and_those_behind_are_not_denied() {
    // Each further pair is found behind those that are taken: n pairs take n * (n + 1) looks.
    let said_of = |pairs: usize, pods: usize| {
        let groups = (0..pairs).flat_map(|pair| [pair.to_string(), pair.to_string()]);
        now(&cluster([node_of_groups(groups)]), &pods_with_pairs(pods))
    };
    let counted = (1..100)
        .take_while(|pairs| pairs * (pairs + 1) < MOST_LOOKS_TO_COUNT)
        .count();
    assert!(matches!(said_of(counted, counted), Said::Placed(..)));
    assert_eq!(said_of(counted, counted + 1), Said::NoPlace);
    assert!(matches!(
        said_of(counted + 1, counted + 1),
        Said::Placed(..)
    ));
    assert_eq!(said_of(counted + 1, counted + 2), Said::GaveUp);
}

#[test]
fn gangs_that_differ_in_memory_alone_share_what_is_known() {
    let cluster = cluster((0..10).map(|at| node_at(&format!("n{at}"), "s/l", 8)));
    for memory in 1..2_000 {
        let mut gang = equal_pods(2, 1);
        for pod in &mut gang.pods {
            pod.resources.memory_bytes = memory << 20;
        }
        assert!(matches!(now(&cluster, &gang), Said::Placed(..)));
    }
    assert_eq!(cluster.indexes(), 1);
}

#[test]
fn no_more_is_kept_than_there_is_room_for_and_what_is_dropped_is_not_missed() {
    let mut node = node_at("a", "s/l", 8);
    let shapes = u32::try_from(MOST_INDEXES).unwrap() + 10;
    std::sync::Arc::make_mut(&mut node.filters).extend((0..shapes).map(NodeFilterId));
    let cluster = cluster([node, node_at("b", "s/l", 4)]);
    let ask = |filter| {
        let mut gang = equal_pods(1, 3);
        gang.pods[0].filter = NodeFilterId(filter);
        now(&cluster, &gang)
    };
    let first: Vec<Said> = (0..shapes).map(ask).collect();
    assert_eq!(cluster.indexes(), MOST_INDEXES);
    let again: Vec<Said> = (0..shapes).map(ask).collect();
    assert_eq!(first, again);
    cluster.forget();
    assert_eq!(first, (0..shapes).map(ask).collect::<Vec<_>>());
}

#[test]
fn a_claim_that_is_tied_to_a_node_leaves_nothing_behind() {
    let mut node = node_at("a", "s/l", 8);
    node.devices[3].allocated_to = Some("made".into());
    let cluster = cluster([node, node_at("b", "s/l", 8)]);
    let mut gang = equal_pods(1, 1);
    gang.pods[0].claims[0].uid = "made".into();
    gang.pods[0].claims[0].allocated = Some(("a".into(), vec![device(3).name]));
    assert!(matches!(now(&cluster, &gang), Said::Placed(nodes, _) if nodes == ["a"]));
    assert_eq!(cluster.indexes(), 0);
}

/// Two pods of different needs that no node holds together, on clusters of up to 600 idle nodes.
#[test]
fn unequal_pods_find_two_nodes_however_many_there_are() {
    for nodes in [2, 255, 256, 257, 300, 600] {
        let cluster = cluster((0..nodes).map(|at| {
            let mut node = node_at(
                &format!("n{at:03}"),
                &format!("s{}/l{}", at % 3, at % 30),
                8,
            );
            // No two alike.
            node.allocatable.memory_bytes += at;
            node
        }));
        let mut gang = gang(vec![pod("large", 4), pod("small", 2)]);
        for pod in &mut gang.pods {
            pod.resources.cpu_milli = 40_000;
        }
        assert!(
            matches!(now(&cluster, &gang), Said::Placed(..)),
            "{nodes} nodes"
        );
    }
}

/// At every node the pods fit by their sums, but not by their NVLink groups: all areas of the narrowest width
/// are tried in vain, and the wider ones have steps left.
#[test]
fn narrow_domains_do_not_use_up_the_steps_of_wide_ones() {
    let cluster = cluster((0..600).map(|at| {
        let mut node = node_at(
            &format!("n{at:03}"),
            &format!("s{}/l{}", at % 3, at % 30),
            4,
        );
        for (index, device) in node.devices.iter_mut().enumerate() {
            std::sync::Arc::make_mut(&mut device.attributes)
                .insert("pair".into(), format!("{}", index / 2));
        }
        node.allocatable.memory_bytes += at;
        node
    }));
    // Three of a pair do not exist; a pair and two singles may not wait on one node.
    let mut gang = gang(vec![pod("pair", 2), pod("one", 1), pod("other", 1)]);
    gang.pods[0].claims[0].constraints = vec![Constraint {
        requests: Vec::new(),
        attribute: "pair".into(),
    }];
    let Said::Placed(nodes, _) = now(&cluster, &gang) else {
        panic!("two nodes hold the gang");
    };
    assert_ne!(nodes[0], nodes[1]);
}

#[test]
fn what_a_node_lists_is_counted() {
    let mut nodes = [node_at("a", "s/l", 8), node_at("b", "s/l", 8)];
    for node in &mut nodes {
        node.allocatable
            .others
            .insert("vpc.amazonaws.com/efa".into(), 32);
    }
    let mut gang = equal_pods(2, 4);
    for pod in &mut gang.pods {
        pod.resources
            .others
            .insert("vpc.amazonaws.com/efa".into(), 32);
    }
    let one = cluster(nodes[..1].to_vec());
    assert_eq!(now(&one, &gang), Said::NoPlace);
    let Said::Placed(placed, _) = now(&cluster(nodes), &gang) else {
        panic!("each on a node of its own");
    };
    assert_ne!(placed[0], placed[1]);
}

#[test]
fn pods_that_bind_a_host_port_or_repel_each_other_go_to_nodes_of_their_own() {
    let nodes = || (0..3).map(|at| node_at(&format!("n{at}"), "s/l", 8));
    let mut ports = equal_pods(3, 1);
    let mut repelling = equal_pods(3, 1);
    for pod in &mut ports.pods {
        pod.resources.host_ports.insert(HostPort {
            protocol: HostPortProtocol::Tcp,
            ip: None,
            port: 29_500,
        });
    }
    for pod in &mut repelling.pods {
        pod.resources.repels.insert(PodSelectorId(1));
        pod.resources.matched_by.insert(PodSelectorId(1));
    }
    for gang in [ports, repelling] {
        let Said::Placed(placed, _) = now(&cluster(nodes()), &gang) else {
            panic!("three nodes for three pods");
        };
        assert_eq!(placed, ["n0", "n1", "n2"]);
        assert_eq!(now(&cluster(nodes().take(2)), &gang), Said::NoPlace);
        // What runs there counts as well.
        let mut taken = cluster(nodes());
        let mut other = hold("other", "n1", &[]);
        other.claims.clear();
        other.resources = gang.pods[0].resources.clone();
        add(&mut taken, other);
        assert_eq!(now(&taken, &gang), Said::NoPlace);
    }
}

#[test]
fn a_node_whose_devices_are_charged_as_too_much_is_left_out() {
    let mut large = node_at("a", "s/l", 1);
    large.devices[0].vram = Amount(80);
    let mut small = node_at("b", "s/l", 2);
    for device in &mut small.devices {
        device.vram = Amount(40);
    }
    let cluster = cluster([large, small]);
    let gang = equal_pods(1, 1);
    let placed = |vram: Option<i64>| {
        asking(&gang, |request| {
            let mut request = *request;
            request.most_per_device = vram.map(|vram| DeviceCharge {
                gpus: Amount::ONE_GPU,
                vram: Amount(vram),
            });
            let verdict = plan(&cluster, &View::Now, &request, &mut Effort::default());
            said(&cluster, &gang, &verdict)
        })
    };
    assert!(matches!(placed(None), Said::Placed(nodes, _) if nodes == ["a"]));
    assert!(matches!(placed(Some(80)), Said::Placed(nodes, _) if nodes == ["a"]));
    assert!(matches!(placed(Some(79)), Said::Placed(nodes, _) if nodes == ["b"]));
    assert_eq!(placed(Some(39)), Said::NoPlace);
}

#[test]
fn a_request_that_no_device_matches_has_no_place() {
    let cluster = cluster([node_at("a", "s/l", 8)]);
    let mut gang = equal_pods(1, 1);
    let other: &mut Claim = &mut gang.pods[0].claims[0];
    other.requests[0].choices[0].selector = SelectorId(9);
    assert_eq!(now(&cluster, &gang), Said::NoPlace);
    assert_eq!(
        said(&cluster, &gang, &judged(&cluster, &View::Empty, &gang)),
        Said::NoPlace
    );
}

/// A gang that fits on a node by its sums but not by the rules of coallocation, on nodes of which no two are alike.
fn misfits(nodes: usize) -> (crate::placement::Cluster, crate::model::Gang) {
    let cluster = cluster((0..nodes).map(|at| {
        let mut node = node_at(&format!("n{at:03}"), "s/l", 4);
        for (index, device) in node.devices.iter_mut().enumerate() {
            let pair = format!("{}", index / 2);
            std::sync::Arc::make_mut(&mut device.attributes).insert("pair".into(), pair);
        }
        node.allocatable.memory_bytes += i64::try_from(at).unwrap();
        node
    }));
    let mut gang = gang(vec![pod("pair", 2), pod("one", 1), pod("other", 1)]);
    gang.pods[0].claims[0].constraints = vec![Constraint {
        requests: Vec::new(),
        attribute: "pair".into(),
    }];
    (cluster, requiring("node", gang))
}

#[test]
fn so_many_areas_are_packed_in_vain_and_no_more() {
    let (cluster, gang) = misfits(MOST_PACKINGS);
    assert_eq!(now(&cluster, &gang), Said::NoPlace);
    let (cluster, gang) = misfits(MOST_PACKINGS + 1);
    assert_eq!(now(&cluster, &gang), Said::GaveUp);
}

/// Greedily both large pods go to one node, and then the small ones do not fit; one of each on both nodes is the
/// only way. Pods without devices bring the gang to the size that is asked for.
fn only_one_way(units: usize) -> Said {
    let mut nodes = [node_at("a", "s/l", 4), node_at("b", "s/l", 3)];
    for node in &mut nodes {
        node.allocatable.cpu_milli = 4_000;
    }
    let pods = (0..units).map(|at| {
        let (devices, cores) = match at {
            0 | 1 => (2, 1),
            2 | 3 => (1, 3),
            _ => (0, 0),
        };
        let mut pod = pod(&format!("p{at}"), devices);
        pod.resources.cpu_milli = cores * 1000;
        pod
    });
    now(&cluster(nodes), &gang(pods.collect()))
}

#[test]
fn gangs_of_64_units_are_searched_exhaustively_and_larger_ones_are_not() {
    assert!(matches!(only_one_way(4), Said::Placed(..)));
    assert!(matches!(only_one_way(EXHAUSTIVE_UNITS), Said::Placed(..)));
    assert_eq!(only_one_way(EXHAUSTIVE_UNITS + 1), Said::GaveUp);
}

#[test]
fn of_equally_tight_nodes_the_first_64_are_compared_by_their_surroundings() {
    let placed = |equals: usize| {
        let many = (0..equals).map(|at| node_at(&format!("n{at:03}"), "s/l1", 8));
        // Alone in its leaf, and last in order.
        let alone = node_at("tight", "s/l2", 8);
        match now(&cluster(many.chain([alone])), &equal_pods(1, 1)) {
            Said::Placed(nodes, _) => nodes.concat(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(placed(MOST_TIES - 1), "tight");
    assert_eq!(placed(MOST_TIES), "n000");
}

/// Nodes with free GPUs that have no room for a pod.
const POOR: usize = 500;

/// Steps until a refused gang finds a place after so many nodes came free. Before these a search of all nodes looks at the poor ones.
fn steps_to_find_again(freed: usize, impoverish: impl Fn(usize, &mut Node)) -> u64 {
    let nodes = (0..200).map(|at| node_at(&format!("n{at:03}"), &format!("s/l{}", at % 7), 8));
    let poor = (0..POOR).map(|at| {
        let mut node = node_at(&format!("a{at:03}"), &format!("p/l{}", at % 7), 8);
        impoverish(at, &mut node);
        node
    });
    let mut cluster = cluster(nodes.chain(poor));
    let all = [0, 1, 2, 3, 4, 5, 6, 7];
    let holds: Vec<_> = (0..200)
        .map(|at| hold(&format!("h{at:03}"), &format!("n{at:03}"), &all))
        .collect();
    for hold in &holds {
        add(&mut cluster, hold.clone());
    }
    let gang = equal_pods(1, 8);
    let Verdict::NoPlace(refusal) = judged(&cluster, &View::Now, &gang) else {
        panic!("all is taken");
    };
    for hold in holds.iter().step_by(3).take(freed) {
        cluster.remove_hold(hold);
    }
    let mut effort = Effort::default();
    let again = asking(&gang, |request| {
        plan_since(&cluster, request, refusal, &mut effort)
    });
    assert_eq!(again, judged(&cluster, &View::Now, &gang));
    assert!(matches!(again, Verdict::Placed(_)));
    let left = (0..Effort::ONE_DECISION)
        .take_while(|_| effort.spend(1))
        .count() as u64;
    Effort::ONE_DECISION - left
}

#[test]
fn a_refused_gang_finds_the_same_place_by_few_changes_and_by_many() {
    // In each leaf some nodes have memory and some have cores.
    let by_turns = |at: usize, node: &mut Node| {
        if at.is_multiple_of(2) {
            node.allocatable.memory_bytes = 0;
        } else {
            node.allocatable.cpu_milli = 0;
        }
    };
    let few = steps_to_find_again(MOST_SLOTS_APART, by_turns);
    let many = steps_to_find_again(MOST_SLOTS_APART + 1, by_turns);
    assert!(few < POOR as u64, "{few} steps");
    assert!(many >= POOR as u64, "{many} steps");
}

#[test]
fn nodes_of_a_leaf_on_none_of_which_a_pod_has_room_are_passed_over() {
    let steps = steps_to_find_again(MOST_SLOTS_APART + 1, |_, node| {
        node.allocatable.memory_bytes = 0;
    });
    assert!(steps < POOR as u64, "{steps} steps");
}

#[test]
fn no_more_answers_are_remembered_than_there_is_room_for() {
    assert_eq!(remembered_of(MOST_REMEMBERED), MOST_REMEMBERED);
    // One too many, and the room is cleared for it.
    assert_eq!(remembered_of(MOST_REMEMBERED + 1), 1);
}

/// How many answers are remembered of nodes on each of which other devices are free.
fn remembered_of(nodes: usize) -> usize {
    let cluster = cluster((0..nodes).map(|at| {
        let mut node = node_at(&format!("n{at:04}"), "s/l", 14);
        for (bit, device) in node.devices.iter_mut().enumerate() {
            std::sync::Arc::make_mut(&mut device.attributes)
                .insert("pair".into(), format!("{}", bit / 2));
            if (at + 1) >> bit & 1 == 0 {
                device.allocated_to = Some("somebody".into());
            }
        }
        node
    }));
    let mut gang = equal_pods(4, 2);
    for pod in &mut gang.pods {
        pod.claims[0].constraints = vec![Constraint {
            requests: Vec::new(),
            attribute: "pair".into(),
        }];
    }
    let first = now(&cluster, &gang);
    assert!(matches!(first, Said::Placed(..)));
    let remembered = cluster.most_remembered();
    assert_eq!(now(&cluster, &gang), first);
    remembered
}

/// Each of sixteen kinds of pods looks at every node: to count what fits, and to choose. To choose takes most of the steps.
#[test]
fn to_choose_nodes_for_a_gang_takes_steps_of_the_decision() {
    let steps = |nodes: usize| {
        let cluster = cluster((0..nodes).map(|at| {
            let mut node = node_at(&format!("n{at}"), "s/l", 1);
            std::sync::Arc::make_mut(&mut node.filters).extend((0..16).map(NodeFilterId));
            node
        }));
        let mut gang = equal_pods(EXHAUSTIVE_UNITS + 1, 1);
        for (filter, pod) in (0..16).cycle().zip(&mut gang.pods) {
            pod.filter = NodeFilterId(filter);
        }
        let placed = |steps| {
            asking(&gang, |request| {
                let mut effort = Effort::of(steps);
                let verdict = plan(&cluster, &View::Now, request, &mut effort);
                matches!(verdict, Verdict::Placed(_))
            })
        };
        assert!(!placed(0));
        // Enough always is: what is found with few steps is found with more.
        let (mut few, mut enough) = (0, 1 << 20);
        while few + 1 < enough {
            let between = u64::midpoint(few, enough);
            if placed(between) {
                enough = between;
            } else {
                few = between;
            }
        }
        assert!(placed(enough) && !placed(enough - 1));
        enough
    };
    let looks = |nodes: u64| 16 * nodes * STEPS_PER_CHOICE;
    let (few, many) = (steps(100), steps(400));
    assert!(few >= looks(100), "{few}");
    assert!(many - few >= looks(300), "{few} steps, then {many}");
}

/// Of so many kinds, pods that no node holds together, on nodes that no Topology orders.
fn kinds_on_flat_nodes(kinds: u32, nodes: usize) -> u64 {
    let cluster = cluster((0..nodes).map(|at| {
        let mut node = node_at(&format!("n{at:05}"), "", 8);
        node.allocatable.memory_bytes += i64::try_from(at).unwrap();
        node
    }));
    let mut gang = gang(
        (0..kinds)
            .map(|at| pod(&format!("p{at}"), 8 - at))
            .collect(),
    );
    for pod in &mut gang.pods {
        pod.resources.cpu_milli = 40_000;
    }
    let mut effort = Effort::of(1 << 30);
    asking(&gang, |request| {
        let verdict = plan(&cluster, &View::Now, request, &mut effort);
        assert!(matches!(verdict, Verdict::Placed(_)));
    });
    (1 << 30) - effort.steps()
}

#[test]
fn a_decision_suffices_for_four_kinds_of_pods_on_ten_thousand_nodes_that_no_topology_orders() {
    let steps = kinds_on_flat_nodes(4, 10_000);
    assert!(steps <= Effort::ONE_DECISION, "{steps} steps");
}

#[test]
fn every_index_of_a_decision_is_paid_for_whether_it_is_kept_or_not() {
    let nodes = 40 * NODES_PER_STEP;
    let cluster = cluster((0..nodes).map(|at| {
        let mut node = node_at(&format!("n{at:04}"), &format!("s/l{}", at / 16), 1);
        std::sync::Arc::make_mut(&mut node.filters).extend((0..16).map(NodeFilterId));
        node
    }));
    let steps = |kinds: u32| {
        let mut gang = equal_pods(kinds as usize, 1);
        for (filter, pod) in (0..).zip(&mut gang.pods) {
            pod.filter = NodeFilterId(filter);
        }
        let mut effort = Effort::default();
        asking(&gang, |request| {
            let verdict = plan(&cluster, &View::Now, request, &mut effort);
            assert!(matches!(verdict, Verdict::Placed(_)));
        });
        Effort::ONE_DECISION - effort.steps()
    };
    let cold = (steps(2), steps(16));
    assert_eq!(cold, (steps(2), steps(16)), "kept or not");
    // What cannot be paid is not begun: of sixteen kinds nothing is made.
    cluster.forget();
    let mut gang = equal_pods(16, 1);
    for (filter, pod) in (0..).zip(&mut gang.pods) {
        pod.filter = NodeFilterId(filter);
    }
    let before = cluster.visited();
    let mut effort = Effort::of(16 * 40 - 1);
    asking(&gang, |request| {
        let verdict = plan(&cluster, &View::Now, request, &mut effort);
        assert!(matches!(verdict, Verdict::GaveUp(_)));
    });
    assert_eq!((cluster.indexes(), cluster.visited()), (0, before));
}

/// Pods of two kinds that compete, one of them too many.
#[test]
fn an_explanation_counts_as_far_as_its_looks_go_and_never_more_than_there_is() {
    let cluster = cluster((0..30).map(|at| {
        let mut node = node_at(&format!("n{at:02}"), &format!("s/l{}", at % 3), 4);
        node.allocatable.memory_bytes += i64::from(at);
        node
    }));
    let pods = (0..61).map(|at| pod(&format!("p{at}"), if at % 2 == 0 { 3 } else { 1 }));
    for gang in [
        gang(pods.clone().collect()),
        requiring("leaf", gang(pods.collect())),
    ] {
        let fit = |looks| {
            asking(&gang, |request| {
                explain(&cluster, &View::Now, request, &mut Effort::of(looks)).fit
            })
        };
        let most = fit(Effort::ONE_DECISION);
        let enough = (0..20_000).find(|looks| fit(*looks) == most);
        let enough = enough.expect("a bound that is met");
        assert!(enough > 30, "{enough} looks at 30 nodes");
        assert!((0..enough).all(|looks| fit(looks) < most));
        assert_eq!(fit(0), 0);
    }
}

/// No two nodes have the same left, and gangs of several kinds are told why they have no place.
#[test]
fn indexes_share_with_the_nodes_what_is_left_on_them() {
    let kinds = 3;
    let cluster = cluster((0..50).map(|at| {
        let mut node = node_at(&format!("n{at:02}"), "s/l", 8);
        node.allocatable.memory_bytes += at;
        std::sync::Arc::make_mut(&mut node.filters).extend((0..kinds).map(NodeFilterId));
        node
    }));
    for kind in 0..kinds {
        let mut gang = equal_pods(1, 1);
        gang.pods[0].filter = NodeFilterId(kind);
        gang.pods[0].resources.memory_bytes = 1 << 50;
        let unfit = asking(&gang, |request| {
            explain(&cluster, &View::Now, request, &mut Effort::default())
        });
        assert_eq!(unfit.excluded, [("too little memory".to_owned(), 50)]);
    }
    for slot in 0..50 {
        let room = &cluster.record(slot).unwrap().now.room;
        // Each index has it as a key and at the node.
        let shared = std::sync::Arc::strong_count(room);
        assert!(shared > 2 * kinds as usize, "{shared} times");
    }
}

/// Few of the nodes that have the devices have the memory, too. Up to a number they are brought in order, and the others
/// not looked at.
#[test]
fn of_few_nodes_that_hold_a_pod_an_explanation_looks_at_no_others() {
    let nodes = 2_000;
    let looks = |holding: usize| {
        let cluster = cluster((0..nodes).map(|at| {
            let mut node = node_at(&format!("n{at:04}"), "s/l", 8);
            if at >= holding {
                node.allocatable.memory_bytes = 1 << 20;
            }
            node
        }));
        let pods = (0..=holding).map(|at| pod(&format!("p{at}"), if at == 0 { 6 } else { 7 }));
        let gang = gang(pods.collect());
        let explained = || {
            let unfit = asking(&gang, |request| {
                explain(&cluster, &View::Now, request, &mut Effort::default())
            });
            assert_eq!(unfit.fit, holding);
        };
        explained();
        let before = cluster.visited();
        explained();
        cluster.visited() - before
    };
    let (few, many) = (looks(MOST_SORTED), looks(MOST_SORTED + 1));
    assert!(many > few + nodes as u64 / 2, "{few} looks, then {many}");
}

/// All GPUs are free, and all memory is taken, by as many gangs as there are nodes.
#[test]
fn of_so_many_nodes_it_is_told_who_has_what_lacks() {
    let occupants = |nodes: usize| {
        let mut cluster = cluster((0..nodes).map(|at| node_at(&format!("n{at:03}"), "s/l", 8)));
        for at in 0..nodes {
            let mut memory = hold(&format!("h{at:03}"), &format!("n{at:03}"), &[]);
            memory.claims.clear();
            memory.resources.memory_bytes = 512 << 30;
            add(&mut cluster, memory);
        }
        let gang = equal_pods(1, 1);
        let unfit = asking(&gang, |request| {
            explain(&cluster, &View::Now, request, &mut Effort::default())
        });
        let occupants = unfit.occupants.expect("memory is what lacks");
        (occupants.gangs.len(), occupants.is_partial)
    };
    assert_eq!(occupants(MOST_OCCUPIED), (MOST_OCCUPIED, false));
    assert_eq!(occupants(MOST_OCCUPIED + 1), (MOST_OCCUPIED, true));
}
