//! Where a place is looked for: that one is found if there will be one, and that it still is one while it is kept.

use muster_engine::{Gang, Hold, Node, PodResources, State, Timestamp, Update};

use super::{GPUS_PER_NODE, LONG, cluster, common::*, decide_at, kept, kept_in_short, rich, runs};

fn leaf_of_place(state: &State) -> Option<String> {
    let (_, nodes, _) = kept_in_short(state)?;
    let leaves: Vec<String> = nodes.iter().map(|name| name[..2].to_owned()).collect();
    assert!(
        leaves.windows(2).all(|pair| pair[0] == pair[1]),
        "{nodes:?}"
    );
    leaves.first().cloned()
}

/// A pod whose process cannot be killed, say, holds its devices long after its gang had to end.
#[test]
fn who_should_have_ended_long_ago_is_not_counted_on_for_ever() {
    let mut state = cluster(2, 2, vec![rich("large")]);
    runs(&mut state, "hangs", "n00", 0..4, Some(100));
    runs(&mut state, "goes-on", "n10", 0..4, None);
    submit(&mut state, [requiring("leaf", gang("head", "large", 2, 4))]);
    decide_at(&mut state, 0);
    let mut now = LONG;
    let mut leaves = Vec::new();
    for _ in 0..6 {
        now = decide_at(&mut state, now)
            .look_again_at
            .expect("something is due")
            .0;
        let leaf = leaf_of_place(&state);
        if leaves.last() != Some(&leaf) {
            leaves.push(leaf);
        }
    }
    let leaves: Vec<String> = leaves.into_iter().flatten().collect();
    assert_eq!(leaves[..2], ["n0", "n1"], "{leaves:?}");
}

/// A hold of so many GPUs that takes most of the cores of its node, too.
fn takes_cores(name: &str, node: &str, gpus: &[usize]) -> Hold {
    let mut hold = hold(name, "elsewhere", node, gpus);
    hold.resources.cpu_milli = 60_000;
    hold
}

fn of_many_cores(mut gang: Gang) -> Gang {
    for pod in &mut gang.pods {
        pod.resources.cpu_milli = 40_000;
    }
    gang
}

#[test]
fn whoever_takes_the_cores_and_leaves_the_gpus_has_to_end_as_well() {
    for until in [Some(5_000), None] {
        for gpus in [&[0][..], &[]] {
            let mut state = cluster(1, 2, vec![rich("large")]);
            for node in ["n00", "n01"] {
                let name = format!("on-{node}");
                let mut hold = takes_cores(&name, node, gpus);
                if gpus.is_empty() {
                    hold.claims.clear();
                }
                let gang = hold.gang.clone();
                state.apply(Update::Hold(hold));
                state.apply(Update::Ends(gang, until.map(Timestamp)));
            }
            let head = of_many_cores(gang("head", "large", 2, 2));
            submit(&mut state, [head]);
            assert_eq!(admitted(&decide_at(&mut state, 0)), Vec::<String>::new());
            decide_at(&mut state, LONG);
            let nodes = vec!["n00".to_owned(), "n01".to_owned()];
            let expected = ("head".to_owned(), nodes, until);
            assert_eq!(kept_in_short(&state), Some(expected), "{until:?} {gpus:?}");
        }
    }
}

#[test]
fn a_gang_whose_pods_ask_for_different_things_has_a_place_kept_for_all_of_them() {
    let mut state = cluster(1, 2, vec![rich("large")]);
    runs(&mut state, "a", "n00", 0..4, Some(2_000));
    runs(&mut state, "b", "n01", 0..2, Some(3_000));
    runs(&mut state, "c", "n01", 2..4, Some(9_000));
    let mut pods = vec![pod("head-0", vec![claim("head-0", 4)])];
    pods.extend((1..3).map(|rank| {
        let name = format!("head-{rank}");
        pod(&name, vec![claim(&name, 1)])
    }));
    submit(&mut state, [gang_of("head", "large", pods)]);
    decide_at(&mut state, 0);
    decide_at(&mut state, LONG);
    let nodes = vec!["n00".to_owned(), "n01".to_owned()];
    let expected = ("head".to_owned(), nodes, Some(3_000));
    assert_eq!(kept_in_short(&state), Some(expected));
}

/// Two leaves of which the first is free sooner: a place is kept there.
fn on_the_first_leaf() -> State {
    let mut state = cluster(2, 2, vec![rich("large")]);
    runs(&mut state, "first", "n00", 0..4, Some(50_000));
    runs(&mut state, "second", "n10", 0..4, Some(60_000));
    submit(&mut state, [requiring("leaf", gang("head", "large", 2, 4))]);
    decide_at(&mut state, 0);
    decide_at(&mut state, LONG);
    assert_eq!(leaf_of_place(&state).as_deref(), Some("n0"));
    state
}

#[test]
fn a_place_that_is_none_any_more_is_kept_no_longer() {
    type Change = fn(&mut Node);
    let table: [(&str, Change); 5] = [
        ("its devices are of another Flavor", |node| {
            for device in &mut node.devices {
                device.flavors = std::iter::once("other".into()).collect();
            }
        }),
        ("it has fewer devices", |node| node.devices.truncate(3)),
        ("one of its devices is broken", |node| {
            node.devices[0].usable = false;
            node.devices[0].healthy = false;
        }),
        ("it has fewer cores", |node| {
            node.allocatable.cpu_milli = 100;
        }),
        ("it stands elsewhere", |node| {
            node.fabric
                .insert(FABRIC.into(), vec!["s".to_owned(), "l7".to_owned()]);
        }),
    ];
    for (what, change) in table {
        let mut state = on_the_first_leaf();
        let mut other = node("n01", "s/l0", GPUS_PER_NODE);
        change(&mut other);
        state.apply(Update::Node(other));
        decide_at(&mut state, LONG + 100);
        assert_eq!(leaf_of_place(&state).as_deref(), Some("n1"), "{what}");
        let elsewhere = kept(&state).expect("kept");
        assert_eq!(elsewhere.since, Timestamp(LONG), "{what}");
        assert_eq!(elsewhere.idle_gpu_seconds, 4_000 * 100, "{what}");
    }
}

/// Nothing else need change on the node for that.
#[test]
fn a_place_is_kept_no_longer_once_a_node_of_it_is_closed_to_its_gang() {
    for (closed, leaf) in [("n00", "n1"), ("n01", "n1"), ("n10", "n0"), ("n11", "n0")] {
        let mut state = on_the_first_leaf();
        let mut head = requiring("leaf", gang("head", "large", 2, 4));
        head.topology.closed = [closed.into()].into();
        submit(&mut state, [head]);
        decide_at(&mut state, LONG + 100);
        assert_eq!(leaf_of_place(&state).as_deref(), Some(leaf), "{closed}");
        let place = kept(&state).expect("kept");
        assert_eq!(place.since, Timestamp(LONG), "{closed}");
        assert_eq!(place.idle_gpu_seconds, 4_000 * 100, "{closed}");
    }
}

/// Updates of a node come all the time.
#[test]
fn a_node_that_is_told_anew_costs_no_search() {
    let mut state = on_the_first_leaf();
    let before = state.visited();
    for at in 0..100 {
        let mut told = node("n01", "s/l0", GPUS_PER_NODE);
        told.used = PodResources {
            cpu_milli: at,
            ..PodResources::default()
        };
        state.apply(Update::Node(told));
        decide_at(&mut state, LONG + at);
    }
    assert_eq!(kept(&state).expect("kept").since, Timestamp(LONG));
    let visited = state.visited() - before;
    assert!(visited <= 1_000, "{visited}");
}

/// To look for a place takes a look at each node: whoever is told anew all the time has none looked for all the time.
#[test]
fn a_gang_that_is_told_anew_has_no_place_looked_for_sooner() {
    let mut state = cluster(50, 2, vec![rich("large"), rich("other")]);
    // Nobody who is managed runs there, and nobody knows when these cores come free.
    for leaf in 0..50 {
        for at in 0..2 {
            let mut busy = node(
                &format!("n{leaf}{at}"),
                &format!("s/l{leaf}"),
                GPUS_PER_NODE,
            );
            busy.used.cpu_milli = 63_900;
            state.apply(Update::Node(busy));
        }
    }
    let head = || requiring("leaf", gang("head", "large", 2, 4));
    let told_from = |state: &mut State, from: i64| {
        let before = state.visited();
        for at in from..from + 20 {
            let mut again = head();
            again.run_time.max_seconds = Some(100_000 + at.unsigned_abs());
            submit(state, [again]);
            decide_at(state, at);
        }
        state.visited() - before
    };
    let young = told_from(&mut state, 0);
    decide_at(&mut state, LONG);
    assert_eq!(kept(&state), None);
    let old = told_from(&mut state, LONG + 1);
    assert!(old <= young + 20, "{young} {old}");
    // It is, once it is time for that.
    let before = state.visited();
    decide_at(&mut state, 2 * LONG);
    assert!(state.visited() - before >= 100);
}

/// Whoever led before saw it lack a place for what it asked then.
#[test]
fn what_an_earlier_leader_saw_says_nothing_of_what_a_gang_asks_for_later() {
    let mut state = cluster(1, 2, vec![rich("large")]);
    runs(&mut state, "old", "n00", 0..4, Some(90_000));
    let head = |each| {
        let mut head = gang("head", "large", 2, each);
        head.lacks_place_since = Some(Timestamp(9_900));
        head
    };
    submit(&mut state, [head(4)]);
    decide_at(&mut state, 10_000);
    for told in 0..3 {
        let mut other = head(3);
        other.run_time.max_seconds = Some(100_000 + told);
        submit(&mut state, [other]);
        decide_at(&mut state, 10_001 + LONG - 10);
        assert_eq!(kept(&state), None, "{told}");
    }
    decide_at(&mut state, 10_000 + LONG);
    assert!(kept(&state).is_some());
}

/// Nodes that come and go keep the turn of others from nobody.
#[test]
fn a_place_where_nothing_comes_free_is_given_up_though_its_nodes_are_others_meanwhile() {
    let mut state = cluster(1, 8, vec![rich("large"), rich("other")]);
    for at in 0..8 {
        runs(
            &mut state,
            &format!("r{at}"),
            &format!("n0{at}"),
            0..4,
            None,
        );
    }
    submit(&mut state, [gang("head", "large", 2, 4)]);
    submit(
        &mut state,
        [super::common::at(1, gang("next", "other", 2, 4))],
    );
    decide_at(&mut state, 1);
    let mut now = LONG + 1;
    decide_at(&mut state, now);
    let mut whose = Vec::new();
    while now < 3 * LONG + 2 {
        let place = kept(&state).expect("kept");
        whose.push(place.gang.to_string());
        // One of its nodes is cordoned, and is back a little later.
        let name = place.nodes.first().expect("it has nodes").to_string();
        let mut away = node(&name, "s/l0", GPUS_PER_NODE);
        away.block = Some(muster_engine::NodeBlock::Cordoned);
        state.apply(Update::Node(away));
        now += 50;
        decide_at(&mut state, now);
        state.apply(Update::Node(node(&name, "s/l0", GPUS_PER_NODE)));
        now += 50;
        decide_at(&mut state, now);
    }
    assert_eq!(whose.first().map(String::as_str), Some("head"));
    assert_eq!(kept(&state).expect("kept").gang, "next".into());
}
