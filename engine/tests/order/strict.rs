//! Strict order, by Flavor: a gang that waits holds up those behind it on the Flavors that it could use, and on no other.

use std::{collections::BTreeMap, sync::Arc};

use crate::common::*;
use muster_engine::{
    FlavorName, Gang, Node, NodeFilterId, Queueing, Resource, SelectorId, State, Team, Update, Why,
};

const A100: &str = "a100";
/// Which only devices of one Flavor match.
const ONLY_H100: SelectorId = SelectorId(71);
const ONLY_A100: SelectorId = SelectorId(72);

/// A node of 8 GPUs of a Flavor.
fn node_of(name: &str, flavor: &str, selector: SelectorId) -> Node {
    let mut node = node(name, "s/l", 8);
    for device in &mut node.devices {
        device.flavors = [FlavorName::from(flavor)].into();
        Arc::make_mut(&mut device.selectors).insert(selector);
    }
    node
}

fn asking_for(selector: SelectorId, mut gang: Gang) -> Gang {
    for pod in &mut gang.pods {
        for claim in &mut pod.claims {
            claim.requests[0].choices[0].selector = selector;
        }
    }
    gang
}

fn strict(quota: i64) -> Team {
    let mut team = team("a", None, limit(quota));
    let of_gpus = BTreeMap::from([(Resource::Gpus, limit(quota))]);
    team.quota.push((A100.into(), of_gpus));
    team.queueing = Queueing::StrictFifo;
    team
}

/// A node of each Flavor, of which that of H100 is in use but for two GPUs.
fn h100_is_short(team: Team) -> State {
    let nodes = vec![node_of("h", H100, ONLY_H100), node_of("a", A100, ONLY_A100)];
    let mut state = state(nodes, vec![team]);
    state.apply(Update::Flavor(flavor(A100, Some(FABRIC))));
    state.apply(Update::Hold(hold(
        "p",
        "elsewhere",
        "h",
        &[0, 1, 2, 3, 4, 5],
    )));
    state
}

fn h100(name: &str, gpus: u32) -> Gang {
    asking_for(ONLY_H100, gang(name, "a", 1, gpus))
}

fn a100(name: &str, gpus: u32) -> Gang {
    asking_for(ONLY_A100, gang(name, "a", 1, gpus))
}

fn either(name: &str, gpus: u32) -> Gang {
    gang(name, "a", 1, gpus)
}

fn behind(head: &str, flavor: &str) -> Why {
    Why::BehindHead {
        head: format!("a/{head}"),
        flavor: Some(flavor.into()),
    }
}

#[test]
fn who_waits_for_one_flavor_holds_up_only_those_who_would_have_that() {
    let cases: Vec<(&str, Vec<Gang>, Vec<&str>)> = vec![
        (
            "another Flavor is free",
            vec![h100("head", 8), a100("next", 8)],
            vec!["next"],
        ),
        (
            "the same Flavor",
            vec![h100("head", 8), h100("next", 1)],
            vec![],
        ),
        (
            "one who could have both gets the other one",
            vec![h100("head", 8), either("next", 1)],
            vec!["next"],
        ),
        (
            "each Flavor has a head of its own",
            vec![
                h100("head", 8),
                a100("first", 6),
                a100("second", 4),
                a100("third", 1),
                h100("last", 1),
            ],
            vec!["first"],
        ),
        (
            "who could have both holds up both",
            vec![
                a100("running", 4),
                either("head", 8),
                a100("next", 1),
                h100("last", 1),
            ],
            vec!["running"],
        ),
        (
            "who fits nowhere holds up nobody",
            vec![either("never", 9), h100("first", 2), a100("second", 8)],
            vec!["first", "second"],
        ),
    ];
    for (case, gangs, expected) in cases {
        let mut state = h100_is_short(strict(100));
        let gangs = gangs.into_iter().enumerate();
        submit(
            &mut state,
            gangs.map(|(age, gang)| at(i64::try_from(age).expect("few"), gang)),
        );
        assert_eq!(admitted(&decide(&mut state)), expected, "{case}");
    }
}

#[test]
fn who_waits_behind_another_is_told_for_which_flavor() {
    let mut state = h100_is_short(strict(100));
    submit(
        &mut state,
        [
            at(0, h100("head", 8)),
            at(1, a100("running", 6)),
            at(2, a100("short", 4)),
            at(3, h100("one", 1)),
            at(4, a100("other", 1)),
            at(5, either("both", 1)),
        ],
    );
    assert_eq!(admitted(&decide(&mut state)), ["running"]);
    assert!(matches!(why(&state, "head"), Why::Placement { .. }));
    assert!(matches!(why(&state, "short"), Why::Placement { .. }));
    assert_eq!(why(&state, "one"), behind("head", H100));
    assert_eq!(why(&state, "other"), behind("short", A100));
    assert_eq!(why(&state, "both"), behind("head", H100));
    assert_eq!(
        why(&state, "other").to_string(),
        "waits for a100 behind a/short, which does not fit yet; the Team is StrictFifo"
    );
}

/// Quota is short as a place is.
#[test]
fn a_flavor_whose_quota_is_used_holds_up_nobody_on_another() {
    let mut team = strict(100);
    team.quota[0].1.insert(Resource::Gpus, limit(8));
    let mut state = h100_is_short(team);
    state.apply(Update::Hold(hold("own", "a", "h", &[6])));
    submit(
        &mut state,
        [
            at(0, h100("head", 8)),
            at(1, h100("one", 1)),
            at(2, a100("other", 8)),
        ],
    );
    assert_eq!(admitted(&decide(&mut state)), ["other"]);
    assert!(matches!(why(&state, "head"), Why::Quota { .. }));
    assert_eq!(why(&state, "one"), behind("head", H100));
}

#[test]
fn once_a_head_leaves_its_line_is_judged_as_far_as_the_next_head() {
    let mut state = h100_is_short(strict(100));
    submit(
        &mut state,
        [
            at(0, h100("head", 8)),
            at(1, a100("running", 6)),
            at(2, a100("short", 4)),
            at(3, h100("large", 4)),
            at(4, h100("larger", 5)),
            at(5, h100("small", 2)),
        ],
    );
    assert_eq!(admitted(&decide(&mut state)), ["running"]);
    assert_eq!(decide(&mut state).visited.classes, 0, "nothing changed");
    state.apply(Update::NotWaiting("head".into()));
    let decisions = decide(&mut state);
    assert!(decisions.admissions.is_empty());
    assert_eq!(
        decisions.visited.classes, 2,
        "that the short one cannot have an H100 is found out now, and then it is the large one's turn"
    );
    assert_eq!(why(&state, "larger"), behind("large", H100));
    state.apply(Update::NotWaiting("large".into()));
    assert_eq!(decide(&mut state).visited.classes, 1, "the larger one");
    assert_eq!(why(&state, "small"), behind("larger", H100));
    state.apply(Update::NotWaiting("larger".into()));
    assert_eq!(admitted(&decide(&mut state)), ["small"]);
}

#[test]
fn whatever_changes_nobody_behind_a_head_is_looked_at() {
    let mut state = h100_is_short(strict(100));
    state.apply(Update::Team(team("b", None, limit(1))));
    submit(
        &mut state,
        [at(0, a100("running", 8)), at(1, a100("short", 8))],
    );
    assert_eq!(admitted(&decide(&mut state)), ["running"]);
    // Each asks for something else, and so is a class of its own.
    let many = (1..=8).flat_map(|pods| {
        [2, 3, 5, 7].map(|gpus| {
            let gang = gang(&format!("{pods}-of-{gpus}"), "a", pods, gpus);
            at(10, asking_for(ONLY_H100, gang))
        })
    });
    submit(&mut state, many);
    submit(&mut state, [at(2, h100("next", 8))]);
    assert!(decide(&mut state).admissions.is_empty());
    let mut blocked = node_of("h2", H100, ONLY_H100);
    blocked.block = Some(muster_engine::NodeBlock::Cordoned);
    let changes = [
        ("a node comes", Update::Node(blocked)),
        ("a node goes", Update::NodeGone("h2".into())),
        (
            "another Team has more",
            Update::Team(team("b", None, limit(2))),
        ),
        (
            "something is held",
            Update::Hold(hold("q", "elsewhere", "h", &[6])),
        ),
        ("it comes free", Update::HoldGone(pod_uid("q"))),
    ];
    for (change, update) in changes {
        state.apply(update);
        let decisions = decide(&mut state);
        assert!(decisions.admissions.is_empty(), "{change}");
        let classes = decisions.visited.classes;
        assert!(classes <= 2, "{change}: {classes}");
    }
}

/// What kept it from its Flavor was that nobody had told of that.
#[test]
fn a_flavor_that_is_told_late_has_a_line() {
    let mut only = team("a", None, limit(100));
    only.queueing = Queueing::StrictFifo;
    let mut state = h100_is_short(only);
    state.apply(Update::FlavorGone(H100.into()));
    submit(&mut state, [at(0, h100("head", 8)), at(1, h100("next", 1))]);
    assert!(decide(&mut state).admissions.is_empty());
    state.apply(Update::Flavor(flavor(H100, Some(FABRIC))));
    assert!(decide(&mut state).admissions.is_empty());
    assert_eq!(why(&state, "next"), behind("head", H100));
    state.apply(Update::HoldGone(pod_uid("p")));
    assert_eq!(admitted(&decide(&mut state)), ["head"]);
}

/// It comes last and goes first: those that were judged before stand behind it from now on.
#[test]
fn a_gang_that_comes_before_a_head_takes_its_line() {
    let mut state = h100_is_short(strict(100));
    submit(
        &mut state,
        [at(0, h100("head", 4)), at(1, a100("running", 6))],
    );
    assert_eq!(admitted(&decide(&mut state)), ["running"]);
    let urgent = with_priority(1, at(2, asking_for(ONLY_H100, gang("urgent", "a", 1, 8))));
    submit(&mut state, [urgent]);
    assert!(decide(&mut state).admissions.is_empty());
    assert_eq!(why(&state, "head"), behind("urgent", H100));
    submit(&mut state, [at(3, a100("free", 2))]);
    assert_eq!(admitted(&decide(&mut state)), ["free"]);
    state.apply(Update::HoldGone(pod_uid("p")));
    assert_eq!(admitted(&decide(&mut state)), ["urgent"]);
}

/// A gang that asks for no device runs on the nodes of a Flavor like any other.
#[test]
fn a_gang_without_devices_waits_in_the_line_of_every_flavor_that_it_could_run_on() {
    let without_devices = |name: &str| gang_of(name, "a", vec![pod(&format!("{name}-0"), vec![])]);
    let mut state = h100_is_short(strict(100));
    submit(
        &mut state,
        [at(0, h100("head", 8)), at(1, without_devices("next"))],
    );
    assert_eq!(admitted(&decide(&mut state)), ["next"], "beside A100");
    // It says of nodes what none passes now and some would on the empty cluster.
    let picky = NodeFilterId(9);
    let mut state = h100_is_short(strict(100));
    for (name, flavor, selector) in [("h", H100, ONLY_H100), ("a", A100, ONLY_A100)] {
        let mut node = node_of(name, flavor, selector);
        Arc::make_mut(&mut node.filters).insert(picky);
        node.block = Some(muster_engine::NodeBlock::Cordoned);
        state.apply(Update::Node(node));
    }
    state.apply(Update::Node(node_of("h2", H100, ONLY_H100)));
    state.apply(Update::Node(node_of("a2", A100, ONLY_A100)));
    let mut waits = without_devices("head");
    waits.pods[0].filter = picky;
    submit(
        &mut state,
        [at(0, waits), at(1, h100("one", 1)), at(2, a100("other", 1))],
    );
    assert!(decide(&mut state).admissions.is_empty());
    assert_eq!(why(&state, "one"), behind("head", H100));
    assert_eq!(why(&state, "other"), behind("head", A100));
}

/// What it is known to be refused on is found out anew once the inventory is another one.
#[test]
fn a_node_that_comes_puts_a_gang_in_the_line_of_its_flavor() {
    let mut state = h100_is_short(strict(100));
    submit(
        &mut state,
        [at(0, gang("pair", "a", 2, 8)), at(1, h100("one", 1))],
    );
    assert_eq!(
        admitted(&decide(&mut state)),
        ["one"],
        "the pair fits nowhere"
    );
    let mut blocked = node_of("h2", H100, ONLY_H100);
    blocked.block = Some(muster_engine::NodeBlock::NotReady);
    state.apply(Update::Node(blocked));
    submit(&mut state, [at(2, h100("two", 1)), at(3, a100("other", 1))]);
    assert_eq!(admitted(&decide(&mut state)), ["other"]);
    assert_eq!(why(&state, "two"), behind("pair", H100));
}

/// An attempt that failed and still holds something is not judged, and stands in line where it could run.
#[test]
fn a_gang_that_waits_for_its_own_release_holds_up_its_flavors_only() {
    let mut state = h100_is_short(strict(100));
    let mut own = hold("earlier", "a", "h", &[6]);
    own.gang = "head".into();
    own.gang_name = "a/head".into();
    own.releasing = true;
    state.apply(Update::Hold(own));
    submit(
        &mut state,
        [
            at(0, h100("head", 2)),
            at(1, h100("one", 1)),
            at(2, a100("other", 8)),
        ],
    );
    assert_eq!(admitted(&decide(&mut state)), ["other"]);
    assert!(matches!(why(&state, "head"), Why::Release { .. }));
    assert_eq!(why(&state, "one"), behind("head", H100));
    state.apply(Update::HoldGone(pod_uid("earlier")));
    assert_eq!(admitted(&decide(&mut state)), ["head"]);
}
