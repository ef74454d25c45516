//! What would help a gang that waits: what is told does help, and nothing less does.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/cut_gpus.rs"]
mod cut_gpus;
mod properties;
#[path = "../quota/random.rs"]
#[allow(dead_code, reason = "each test program uses its part")]
mod random;
mod repairs;
mod world;

use common::*;
use muster_engine::{
    NodeBlock, Order, Queueing, RemedyEvent, Update, Why,
    quota::{PreemptionPolicy, ReclaimWithinCohort},
};
use world::World;

#[test]
fn the_smallest_event_is_told_and_who_holds_what() {
    let mut world = World::new(
        vec![node("n0", "s/l0", 8), node("n1", "s/l1", 8)],
        vec![
            team("a", Some("all"), limit(4)),
            team("b", Some("all"), limit(8)),
        ],
    );
    world.run([
        gang("b-large", "b", 2, 4),
        gang("b-small", "b", 1, 1),
        gang("a-old", "a", 1, 2),
        gang("a-new", "a", 1, 4),
    ]);
    assert!(matches!(why(&world.state, "a-new"), Why::Quota { .. }));
    assert_eq!(
        world.remedies("a-new").to_string(),
        "as things are, it is admitted once b/b-large of Team b (8 GPUs of h100) ends, or once the Team's nominal quota is \
         raised by 3 GPUs of h100"
    );
    let raised = world.after(&|state| world.raise_in(state, "a", gpus(3)));
    assert_eq!(admitted(&raised), ["a-new"]);
}

/// It would fit; what keeps it is the gang before it, which is told.
#[test]
fn nothing_is_told_that_would_help_a_gang_behind_another_in_strict_order() {
    let strict = muster_engine::Team {
        queueing: Queueing::StrictFifo,
        ..team("a", None, limit(4))
    };
    let mut world = World::new(vec![node("n0", "s/l0", 4)], vec![strict]);
    world.run([
        gang("runs", "a", 1, 3),
        at(1, gang("head", "a", 1, 2)),
        at(2, gang("behind", "a", 1, 1)),
    ]);
    assert!(matches!(
        why(&world.state, "behind"),
        Why::BehindHead { .. }
    ));
    assert_eq!(world.remedies("behind"), muster_engine::Remedies::default());
    assert_eq!(world.remedies("head").each.len(), 1);
}

#[test]
fn who_is_in_the_way_of_a_place_is_told_though_it_holds_no_quota_that_lacks() {
    let mut world = World::new(
        vec![node("n0", "s/l0", 4), node("n1", "s/l1", 4)],
        vec![team("a", None, limit(100))],
    );
    world.run([
        gang("one", "a", 1, 3),
        gang("two", "a", 1, 2),
        gang("wide", "a", 2, 4),
    ]);
    let remedies = world.remedies("wide");
    assert_eq!(
        remedies.to_string(),
        "as things are, it is admitted once a/one of Team a (3 GPUs of h100) and a/two of Team a (2 GPUs of h100) end"
    );
    world.run([gang("wider", "a", 3, 4)]);
    let never = world.remedies("wider");
    assert_eq!((never.each.len(), never.gave_up), (0, false));
}

#[test]
fn whoever_goes_first_is_named() {
    let mut world = World::new(vec![node("n0", "s/l0", 4)], vec![team("a", None, limit(4))]);
    world.run([
        gang("runs", "a", 1, 4),
        at(1, gang("first", "a", 1, 2)),
        at(2, gang("second", "a", 1, 2)),
        at(3, gang("third", "a", 1, 3)),
    ]);
    let order = |gang| world.remedies(gang).each[0].order.clone();
    assert_eq!(order("first"), Order::Itself);
    assert_eq!(order("second"), Order::After("a/first".to_owned()));
    assert_eq!(order("third"), Order::After("a/first".to_owned()));
}

#[test]
fn a_gang_to_which_others_give_way_keeps_its_place_in_the_queue() {
    let mut owner = team("a", Some("all"), limit(4));
    owner.preemption = PreemptionPolicy {
        reclaim_within_cohort: ReclaimWithinCohort::Any,
        ..PreemptionPolicy::NEVER
    };
    let borrower = team("b", Some("all"), limit(0));
    let mut world = World::new(vec![node("n0", "s/l0", 4)], vec![owner, borrower]);
    world.run([
        gang("lent", "b", 1, 4),
        at(1, gang("wants", "a", 1, 4)),
        at(2, gang("next", "a", 1, 2)),
    ]);
    assert!(matches!(why(&world.state, "wants"), Why::Preemption { .. }));
    let queue = |world: &World| -> Vec<String> {
        let team = team_name("a");
        let queue = world.state.queue(&team);
        queue.map(|gang| gang.uid.to_string()).collect()
    };
    assert_eq!(queue(&world), ["wants", "next"]);
    let position = |gang: &str| world.state.explain(&gang.into()).unwrap().position;
    assert_eq!((position("wants"), position("next")), (1, 2));
    // Once the other one is gone it has the place, and stands nowhere any more.
    world.end(&"lent".into());
    world.settle();
    assert_eq!(queue(&world), ["next"]);
}

#[test]
fn who_would_borrow_for_more_pods_than_it_has_to_start_with_is_not_said_to_go_first() {
    let teams = vec![
        team("a", Some("all"), limit(4)),
        team("b", Some("all"), limit(2)),
    ];
    let mut world = World::new(vec![node("n0", "s/l0", 4)], teams);
    world.change_node("n0", |node| node.block = Some(NodeBlock::Cordoned));
    let mut elastic = at(1, gang("elastic", "b", 2, 2));
    elastic.min_count = Some(1);
    world.run([elastic, at(2, gang("whole", "a", 1, 4))]);
    // With one pod it would stay within the quota of its Team, and go first by its age. With both it borrows.
    let remedies = world.remedies("whole");
    assert_eq!(remedies.each[0].order, Order::Open, "{remedies}");
    let RemedyEvent::Repaired(nodes) = &remedies.each[0].event else {
        panic!("{remedies}");
    };
    let repaired = world.after(&|state| world.repair_in(state, nodes));
    assert_eq!(admitted(&repaired), ["whole"]);
}

#[test]
fn more_quota_is_no_remedy_where_it_lets_a_head_hold_up_the_others() {
    let mut strict = team("a", None, limit(5));
    strict.queueing = Queueing::StrictFifo;
    let nodes = (0..4).map(|at| node(&format!("n{at}"), "s/l0", 4));
    let mut world = World::new(nodes.collect(), vec![strict]);
    world.run([
        gang("one", "a", 1, 2),
        gang("two", "a", 1, 2),
        with_priority(1, gang("larger", "a", 4, 2)),
        gang("waits", "a", 3, 2),
    ]);
    // The one before it can never run, so it holds up nobody: with more quota it would.
    assert!(matches!(
        why(&world.state, "waits"),
        Why::ExceedsMaxQuota { .. }
    ));
    let raised = world.after(&|state| world.raise_in(state, "a", gpus(5)));
    assert_eq!(admitted(&raised), [""; 0]);
    assert_eq!(world.remedies("waits").each, []);
    world.state.apply(Update::NotWaiting("larger".into()));
    world.settle();
    let told = world.remedies("waits").to_string();
    assert!(told.contains("raised by 5 GPUs"), "{told}");
}

#[test]
fn a_search_among_more_than_it_may_consider_says_so() {
    let nodes = (0..40).map(|at| node(&format!("n{at:02}"), "s/l0", 4));
    let mut world = World::new(nodes.collect(), vec![team("a", None, limit(160))]);
    world.run((0..160).map(|at| gang(&format!("g{at:03}"), "a", 1, 1)));
    world.run([gang("all", "a", 40, 4)]);
    let remedies = world.remedies("all");
    assert!(remedies.gave_up, "{remedies}");
    let explained = world.state.explain(&"all".into()).unwrap();
    let before = world.state.visited();
    world.state.remedies(&explained);
    let looks = world.state.visited() - before;
    assert!(looks < 200_000, "{looks}");
}
