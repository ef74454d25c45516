use k8s_openapi::api::core::v1::Node;
use muster_cluster::object::Kind;

use super::*;
use crate::drains::drained::{DrainedRank, Part};

fn node(name: &str) -> NodeName {
    name.into()
}

fn object(name: &str) -> ObjectKey {
    ObjectKey {
        kind: Kind::Node,
        namespace: String::new(),
        name: name.to_owned(),
    }
}

/// A gang on a node that is drained, seen in second 5, has a place.
fn enter(drains: &mut Drains, gang: &str, on: &str) {
    let first = DrainedRank {
        node: node(on),
        part: Part::All(Box::default()),
        object: object(on),
        says: String::new(),
    };
    let entry = Entry {
        key: GangKey::new("ml", gang),
        attempt: 1,
        drained: Drained {
            first,
            nodes: BTreeSet::from([node(on)]),
            left: None,
        },
        pods: Vec::new(),
        seen_at: 5,
        looked_at: Some(5),
        look_at: None,
        elsewhere: Some(Elsewhere::On(BTreeSet::from([node("free")]))),
        is_unknown: None,
        confirmed_at: None,
        is_denied: false,
    };
    let of_object = drains.by_object.entry(object(on)).or_default();
    of_object.insert(gang.to_owned());
    drains.entries.insert(gang.to_owned(), entry);
    drains.note_holder(gang);
}

fn wait(drains: &mut Drains, gang: &str, on: &str) {
    let waiting = drains.waiting.entry(node(on)).or_default();
    waiting.insert(GangKey::new("ml", gang));
}

fn stored(is_cordoned: bool) -> Object {
    let node =
        serde_json::json!({"metadata": {"name": "n0"}, "spec": {"unschedulable": is_cordoned}});
    Object::Node(serde_json::from_value::<Node>(node).unwrap().into())
}

#[test]
fn s18_what_the_store_said_counts_if_it_was_asked_since_it_is_seen_and_not_for_long() {
    let mut drains = Drains::default();
    enter(&mut drains, "a", "n0");
    let until = |drains: &Drains| drains.entries["a"].confirmed_until();
    drains.take_answer(&object("n0"), 4, Some(&stored(true)));
    assert_eq!(until(&drains), None, "asked before");
    drains.take_answer(&object("n0"), 7, Some(&stored(true)));
    assert_eq!(until(&drains), Some(38));
    drains.take_answer(&object("n0"), 9, None);
    assert_eq!(until(&drains), None, "no answer");
}

#[test]
fn a_node_has_its_turn_as_long_as_the_store_does_not_say_otherwise() {
    let mut drains = Drains::default();
    enter(&mut drains, "a", "n0");
    let other = node("n1");
    assert!(drains.is_turn_of_another("b", &other));
    assert!(!drains.is_turn_of_another("a", &other), "its own");
    assert!(!drains.is_turn_of_another("b", &node("n0")));
    wait(&mut drains, "b", "n1");
    let again = drains.take_answer(&object("n0"), 7, Some(&stored(true)));
    assert_eq!(again.len(), 1, "b waits still");
    assert!(drains.is_turn_of_another("b", &other));
    let again = drains.take_answer(&object("n0"), 8, Some(&stored(false)));
    assert_eq!(again.len(), 2, "b has its turn");
    assert!(!drains.is_turn_of_another("b", &other));
    drains.take_answer(&object("n0"), 9, Some(&stored(true)));
    assert!(drains.is_turn_of_another("b", &other));
    drains.remove("a");
    assert!(!drains.is_turn_of_another("b", &other));
    assert!(drains.holders.is_empty() && drains.by_object.is_empty());
}

#[test]
fn places_are_looked_for_a_few_in_a_second_and_each_gets_its_look() {
    let mut drains = Drains::default();
    let looks: Vec<u64> = (0..=2 * MOST_LOOKS_PER_SECOND)
        .map(|_| drains.give_look(7))
        .collect();
    let of = |second: u64| looks.iter().filter(|it| **it == second).count();
    let most = MOST_LOOKS_PER_SECOND;
    assert_eq!((of(7), of(8), of(9)), (most, most, 1));
    assert_eq!(drains.give_look(8), 9, "behind those before it");
    assert_eq!(drains.give_look(20), 20);
}

#[test]
fn at_the_end_of_a_turn_the_gangs_of_one_node_look_and_those_of_the_next_if_none_takes_it() {
    let mut drains = Drains::default();
    enter(&mut drains, "a", "n0");
    for (gang, on) in [("b", "n1"), ("c", "n1"), ("d", "n2"), ("e", "n3")] {
        wait(&mut drains, gang, on);
    }
    let next = |drains: &mut Drains| {
        let next = drains.whose_turn_comes().into_iter();
        next.map(|gang| gang.name.clone()).collect::<Vec<_>>()
    };
    assert!(next(&mut drains).is_empty());
    drains.remove("a");
    assert_eq!(next(&mut drains), ["b", "c"]);
    // None of them takes it, and somebody else does on n3.
    assert_eq!(next(&mut drains), ["d"]);
    enter(&mut drains, "f", "n3");
    assert_eq!(next(&mut drains), ["e"], "it is the turn of its node");
    assert!(next(&mut drains).is_empty() && drains.waiting.is_empty());
}
