//! Whose turn it is to have a place kept, and where: no gang, no Team and nobody who runs takes all turns.

use std::collections::BTreeMap;

use muster_engine::{
    FlavorName, Gang, Node, NodeBlock, NodeFilterId, Resource, State, Team, Timestamp, Update,
};

use super::{
    GPUS_PER_NODE, LONG, cluster, common::*, decide_at, ends, kept, kept_in_short, rich, runs,
};

/// For how long a place of unknown end is kept though nothing more comes free.
const STANDS_STILL: i64 = 2 * LONG;

fn kept_for(gang: &str, leaf: usize) -> (String, Vec<String>, Option<i64>) {
    let nodes = [0, 1].map(|at| format!("n{leaf}{at}"));
    (gang.to_owned(), nodes.to_vec(), None)
}

/// Fewest GPUs have to come free in the first leaf, where somebody never ends and nothing is idle. In the other one there are many
/// who end soon, and nobody says so.
#[test]
fn who_never_ends_keeps_no_place_from_others() {
    let mut state = cluster(2, 2, vec![rich("a"), rich("b")]);
    runs(&mut state, "endless", "n00", 0..4, None);
    runs(&mut state, "long", "n01", 0..4, Some(80_000));
    let brief = (0..8).map(|at| (format!("brief{at}"), format!("n1{}", at / 4), at % 4));
    let brief: Vec<(String, String, usize)> = brief.collect();
    for (name, node, gpu) in &brief {
        runs(&mut state, name, node, *gpu..gpu + 1, None);
    }
    for of in ["a", "b"] {
        submit(&mut state, [requiring("leaf", gang(of, of, 2, 4))]);
    }
    decide_at(&mut state, 0);
    decide_at(&mut state, LONG);
    assert_eq!(kept_in_short(&state), Some(kept_for("a", 0)));
    let decisions = decide_at(&mut state, LONG + STANDS_STILL - 1);
    assert_eq!(kept_in_short(&state), Some(kept_for("a", 0)));
    let given_up_at = LONG + STANDS_STILL;
    assert_eq!(decisions.look_again_at, Some(Timestamp(given_up_at)));
    // Nothing stood idle: the next one has a place at once, and not there.
    decide_at(&mut state, given_up_at);
    assert_eq!(kept_in_short(&state), Some(kept_for("b", 1)));
    // As long as more comes free the place is kept.
    for (at, (name, ..)) in (1..).zip(&brief[..4]) {
        ends(&mut state, name);
        decide_at(&mut state, given_up_at + 100 * at);
        assert_eq!(kept_in_short(&state), Some(kept_for("b", 1)));
    }
    for (name, ..) in &brief[4..] {
        ends(&mut state, name);
    }
    assert_eq!(admitted(&decide_at(&mut state, given_up_at + 500)), ["b"]);
}

/// Everybody outlasts every place: each leaf is tried as often as the others.
#[test]
fn where_nobody_ends_each_leaf_is_tried_in_turn() {
    let mut state = cluster(3, 2, vec![rich("a")]);
    for (leaf, gpus) in [(0, 4), (1, 4), (2, 4)] {
        for at in 0..2 {
            let node = format!("n{leaf}{at}");
            runs(&mut state, &format!("r{leaf}{at}"), &node, 0..gpus, None);
        }
    }
    submit(&mut state, [requiring("leaf", gang("a", "a", 2, 4))]);
    decide_at(&mut state, 0);
    let mut now = LONG;
    let mut leaves = Vec::new();
    for _ in 0..6 {
        decide_at(&mut state, now);
        let (_, nodes, _) = kept_in_short(&state).expect("kept");
        leaves.push(nodes[0].chars().nth(1).expect("a leaf"));
        now += STANDS_STILL;
    }
    assert_eq!(leaves, ['0', '1', '2', '0', '1', '2']);
}

const A100: &str = "a100";

/// So many gangs of two nodes that differ by a byte, so that each is a class of its own.
fn alike(of: &str, number: usize) -> impl Iterator<Item = Gang> + '_ {
    (0..number).map(move |at| {
        let mut gang = gang(&format!("{of}-{at:03}"), of, 2, 4);
        for pod in &mut gang.pods {
            pod.resources.memory_bytes += i64::try_from(at).expect("few");
        }
        gang
    })
}

/// Two leaves of two nodes, of which one is cordoned, and the same of another Flavor: no gang that requires a leaf has a place
/// that could be kept, and whoever takes any two nodes has one.
fn half_cordoned(teams: &[&str]) -> State {
    let of_flavor = |flavor: &'static str| {
        (0..4).map(move |at| {
            let mut node: Node = node(
                &format!("{flavor}-{at}"),
                &format!("s/{flavor}-{}", at / 2),
                GPUS_PER_NODE,
            );
            node.block = (at % 2 == 1).then_some(NodeBlock::Cordoned);
            for device in &mut node.devices {
                device.flavors = [FlavorName::from(flavor)].into();
            }
            node
        })
    };
    let both = |name: &&str| -> Team {
        let mut team = rich(name);
        let gpus = BTreeMap::from([(Resource::Gpus, limit(1_000))]);
        team.quota.push((A100.into(), gpus));
        team
    };
    let nodes = of_flavor(H100).chain(of_flavor(A100));
    let mut state = state(nodes.collect(), teams.iter().map(both).collect());
    state.apply(Update::Flavor(flavor(A100, Some(FABRIC))));
    for node in ["h100-0", "h100-2", "a100-0", "a100-2"] {
        runs(&mut state, node, node, 0..4, None);
    }
    state
}

/// Seven hundred gangs of one Team for which no place is found, each a class of its own, are no seven hundred turns.
#[test]
fn who_has_a_place_looked_for_in_vain_takes_no_more_turns_than_others() {
    let mut state = half_cordoned(&["many", "one", "two"]);
    submit(
        &mut state,
        alike("many", 700).map(|gang| requiring("leaf", gang)),
    );
    let later = |of: &str| at(1, gang(of, of, 2, 4));
    submit(&mut state, [later("one"), later("two")]);
    decide_at(&mut state, 1);
    let mut decisions = decide_at(&mut state, LONG + 1);
    for _ in 0..4 {
        let next = decisions.look_again_at.expect("there is more to look for");
        decisions = decide_at(&mut state, next.0);
    }
    let kept: BTreeMap<String, String> = state
        .head_reservations()
        .map(|kept| (kept.flavor.to_string(), kept.gang.to_string()))
        .collect();
    let flavors: Vec<&str> = kept.keys().map(String::as_str).collect();
    let mut gangs: Vec<&str> = kept.values().map(String::as_str).collect();
    gangs.sort_unstable();
    assert_eq!((flavors, gangs), (vec![A100, H100], vec!["one", "two"]));
}

/// A place that was not found is looked for again later and later, whatever has the gang judged meanwhile.
#[test]
fn a_place_that_was_not_found_is_looked_for_less_and_less_often() {
    let mut state = cluster(1, 2, vec![rich("a")]);
    runs(&mut state, "old", "n00", 0..4, None);
    let mut cordoned = node("n01", "s/l0", GPUS_PER_NODE);
    cordoned.block = Some(NodeBlock::Cordoned);
    state.apply(Update::Node(cordoned));
    submit(&mut state, [gang("a", "a", 2, 4)]);
    decide_at(&mut state, 0);
    let mut now = LONG;
    for factor in [1, 2, 4, 4] {
        let before = state.visited();
        decide_at(&mut state, now);
        assert!(state.visited() > before, "it is looked for at {now}");
        // Everybody is judged again.
        let mut other = flavor(H100, Some(FABRIC));
        other.excluded = [NodeFilterId(90 + u32::try_from(factor).expect("small"))].into();
        state.apply(Update::Flavor(other));
        let next = decide_at(&mut state, now + 1).look_again_at;
        assert_eq!(next, Some(Timestamp(now + factor * LONG)));
        now += factor * LONG;
    }
}

/// A Team that can have no place for one of its gangs has one for another, be that later in its order.
#[test]
fn the_gangs_of_a_team_take_turns_too() {
    let mut state = cluster(1, 2, vec![rich("a")]);
    runs(&mut state, "old", "n00", 0..4, None);
    submit(&mut state, alike("a", 3));
    decide_at(&mut state, 0);
    let (mut now, mut turns) = (LONG, Vec::new());
    for _ in 0..6 {
        let decisions = decide_at(&mut state, now);
        turns.extend(kept(&state).map(|kept| kept.gang.to_string()));
        now = decisions.look_again_at.expect("something is due").0;
        let decisions = decide_at(&mut state, now);
        now = decisions.look_again_at.expect("something is due").0;
    }
    assert_eq!(
        turns,
        ["a-000", "a-001", "a-002", "a-000", "a-001", "a-002"]
    );
}

/// Heads whose quota others took are passed over, some in each call, and each at the cost of a look.
#[test]
fn heads_without_quota_cost_a_call_no_more_the_more_they_are() {
    let cost = |teams: usize| {
        let name = |at: usize| format!("t{at:03}");
        let mut all = vec![team("lender", Some("all"), limit(8))];
        all.extend((0..teams).map(|at| team(&name(at), Some("all"), limit(0))));
        let mut state = cluster(1, 2, all);
        state.apply(Update::Cohort(cohort("all", None, 0)));
        runs(&mut state, "old", "n00", 0..4, None);
        for at in 0..teams {
            submit(&mut state, alike(&name(at), 10));
        }
        decide_at(&mut state, 0);
        state.apply(Update::Hold(hold("mine", "lender", "elsewhere", &[0])));
        decide_at(&mut state, LONG - 1);
        let (mut most, mut now) = (0, LONG);
        // Until each was passed over, and then some.
        for _ in 0..teams {
            let before = state.visited();
            let decisions = decide_at(&mut state, now);
            assert!(decisions.look_again_at.is_none_or(|next| next.0 > now));
            most = most.max(state.visited() - before);
            now += 1;
        }
        assert!(kept(&state).is_none());
        // It is as good as a head once it has quota again.
        state.apply(Update::HoldGone(pod_uid("mine")));
        decide_at(&mut state, now);
        decide_at(&mut state, now + LONG);
        assert!(kept(&state).is_some());
        most
    };
    let (few, many) = (cost(20), cost(100));
    assert!(many <= few + 10 && many < 100, "{few} {many}");
}
