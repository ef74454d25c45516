//! Turns of nodes that want GPUs reset.

use super::*;

const LIMITS: ResetLimits = ResetLimits {
    most_nodes: 2,
    patience_seconds: 30,
    turn_seconds: 900,
    run_out_seconds: 180,
};

fn name(number: usize) -> NodeName {
    format!("n{number}").into()
}

fn names(numbers: &[usize]) -> BTreeSet<NodeName> {
    numbers.iter().map(|number| name(*number)).collect()
}

fn seen(wants: Option<bool>, leave: Option<bool>) -> ResetSeen {
    let wish = match wants {
        None => ResetWish::Unknown,
        Some(false) => ResetWish::Nothing,
        Some(true) => ResetWish::Reset,
    };
    ResetSeen { wish, leave }
}

/// It wants a reset, and would not do it.
fn hindered(leave: Option<bool>) -> ResetSeen {
    let wish = ResetWish::Hindered;
    ResetSeen { wish, leave }
}

fn wanting(nodes: std::ops::Range<usize>, now: u64) -> ResetTurns {
    let mut turns = ResetTurns::default();
    turns.advance(LIMITS, false, |_| false, 0);
    for node in nodes {
        turns.note(&name(node), seen(Some(true), None), now);
    }
    turns
}

/// What is due is recorded at once, and told.
fn give(turns: &mut ResetTurns, now: u64) -> BTreeSet<NodeName> {
    let due = turns.due(LIMITS, now);
    turns.choose(due.clone());
    let news = turns.advance(LIMITS, false, |_| true, now);
    assert_eq!(news.changed.iter().cloned().collect::<BTreeSet<_>>(), due);
    for node in &due {
        turns.note(node, seen(Some(true), Some(true)), now);
    }
    due
}

#[test]
fn as_many_as_may_be_have_leave_after_a_while_in_the_order_in_which_they_wanted_it() {
    let mut turns = wanting(0..1, 100);
    for node in [5, 3, 4] {
        turns.note(&name(node), seen(Some(true), None), 101);
    }
    assert_eq!(turns.due(LIMITS, 129), names(&[]));
    assert!(!turns.is_to_be_judged(LIMITS, 129));
    assert!(turns.is_to_be_judged(LIMITS, 130));
    assert_eq!(turns.next_due(LIMITS, 129), Some(130));
    assert_eq!(turns.due(LIMITS, 130), names(&[0]));
    assert_eq!(give(&mut turns, 131), names(&[0, 3]));
    assert!(!turns.is_to_be_judged(LIMITS, 131), "no place is free");
    turns.note(&name(6), seen(Some(true), None), 131);
    assert!(turns.is_to_be_judged(LIMITS, 131), "one more wants it");
    turns.note(&name(6), seen(Some(false), None), 131);
    turns.choose(names(&[]));
    assert!(!turns.is_to_be_judged(LIMITS, 131));
    assert!(turns.has_leave(&name(0)) && !turns.has_leave(&name(4)));
    assert_eq!(turns.wanting().count(), 4);
    assert_eq!(turns.under_way().count(), 2);
    assert_eq!(turns.due(LIMITS, 200), names(&[]));
    // One is in order, and hears that it may not any more.
    turns.note(&name(3), seen(Some(false), Some(true)), 200);
    assert!(!turns.has_leave(&name(3)));
    assert_eq!(
        turns.due(LIMITS, 200),
        names(&[]),
        "it is told that it may, still"
    );
    turns.note(&name(3), seen(Some(false), None), 201);
    let news = turns.advance(LIMITS, false, |_| true, 201);
    assert_eq!(news.ended, [name(3)]);
    assert_eq!(turns.due(LIMITS, 201), names(&[4]));
}

#[test]
fn what_is_not_recorded_or_is_held_back_gives_no_leave() {
    for (is_recorded, is_held_back, most_nodes, is_given) in [
        (true, false, 2, true),
        (false, false, 2, false),
        (true, true, 2, false),
        (true, false, 0, false),
    ] {
        let mut turns = wanting(0..1, 100);
        turns.choose(turns.due(LIMITS, 130));
        let limits = ResetLimits {
            most_nodes,
            ..LIMITS
        };
        turns.advance(limits, is_held_back, |_| is_recorded, 130);
        let case = format!("{is_recorded} {is_held_back} {most_nodes}");
        assert_eq!(turns.has_leave(&name(0)), is_given, "{case}");
        let may_be_due = !is_given && most_nodes > 0;
        assert_eq!(turns.due(limits, 131).len(), usize::from(may_be_due));
    }
}

#[test]
fn whoever_makes_nothing_of_its_leave_gives_way_once_others_wait_and_when_a_reset_must_have_ended()
{
    let mut turns = wanting(0..2, 100);
    give(&mut turns, 130);
    let news = turns.advance(LIMITS, false, |_| true, 5_000);
    assert_eq!(news, ResetNews::default(), "nobody else wants any");
    turns.note(&name(2), seen(Some(true), None), 5_000);
    let news = turns.advance(LIMITS, false, |_| true, 5_029);
    assert_eq!(news, ResetNews::default(), "for a while");
    let news = turns.advance(LIMITS, false, |_| true, 5_030);
    assert_eq!(news.changed, [name(0)], "no more than others wait for");
    let again = turns.advance(LIMITS, false, |_| true, 5_031);
    assert_eq!(again, ResetNews::default());
    // It is told so at 5,040; what it began before may go on until 5,220.
    turns.advance(LIMITS, false, |_| true, 5_039);
    turns.note(&name(0), seen(Some(true), Some(false)), 5_040);
    turns.advance(LIMITS, false, |_| true, 5_219);
    assert_eq!(turns.due(LIMITS, 5_219), names(&[]));
    assert_eq!(turns.next_due(LIMITS, 5_219), Some(5_220));
    let news = turns.advance(LIMITS, false, |_| true, 5_220);
    assert_eq!(news.ended, [name(0)]);
    assert_eq!(give(&mut turns, 5_220), names(&[2]));
    assert_eq!(turns.wanting().count(), 3, "it waits anew");
}

#[test]
fn whoever_takes_over_counts_what_may_be_under_way_and_gives_no_leave_beside_it() {
    for (leave, is_recorded, has_leave, may_be_under_way) in [
        (Some(true), false, true, true),
        (Some(false), false, false, true),
        (None, true, false, true),
        (None, false, false, false),
    ] {
        let mut turns = ResetTurns::default();
        turns.note(&name(0), seen(Some(true), leave), 100);
        turns.advance(LIMITS, false, |_| is_recorded, 100);
        let case = format!("{leave:?} {is_recorded}");
        assert_eq!(turns.has_leave(&name(0)), has_leave, "{case}");
        let under_way = turns.under_way().count();
        assert_eq!(under_way, usize::from(may_be_under_way), "{case}");
        turns.note(&name(0), seen(Some(true), leave), 279);
        turns.advance(LIMITS, false, |_| is_recorded, 279);
        assert_eq!(turns.under_way().count(), under_way, "{case}");
        turns.advance(LIMITS, false, |_| is_recorded, 280);
        let under_way = turns.under_way().count();
        assert_eq!(under_way, usize::from(has_leave), "{case}");
    }
}

#[test]
fn s9_of_those_that_were_given_leave_before_no_more_keep_it_than_may_be_now() {
    let mut turns = ResetTurns::default();
    for node in 0..4 {
        turns.note(&name(node), seen(Some(true), Some(true)), 100);
    }
    let news = turns.advance(LIMITS, false, |_| true, 100);
    assert_eq!(news.changed, [name(2), name(3)]);
    assert!(turns.has_leave(&name(0)) && turns.has_leave(&name(1)));
    // What they have begun is waited for all the same.
    for node in [2, 3] {
        turns.note(&name(node), seen(Some(true), Some(false)), 101);
    }
    // A late write gives one more leave, that wants it by now.
    turns.note(&name(4), seen(Some(true), Some(true)), 102);
    let news = turns.advance(LIMITS, false, |_| true, 102);
    assert_eq!(news.changed, [name(4)]);
    assert_eq!(turns.under_way().count(), 5);
    let again = turns.advance(LIMITS, false, |_| true, 103);
    assert_eq!(again, ResetNews::default());
    assert_eq!(turns.due(LIMITS, 200), names(&[]));
}

#[test]
fn whoever_falls_silent_keeps_its_place_for_as_long_as_a_reset_may_go_on() {
    let mut turns = wanting(0..1, 100);
    give(&mut turns, 130);
    turns.note(&name(0), seen(None, Some(true)), 140);
    assert!(!turns.has_leave(&name(0)));
    turns.note(&name(0), seen(None, None), 141);
    turns.advance(LIMITS, false, |_| true, 320);
    assert_eq!(turns.under_way().count(), 1);
    let news = turns.advance(LIMITS, false, |_| true, 321);
    assert_eq!(news.ended, [name(0)]);
    assert!(turns.is_empty());
}

#[test]
fn s9_a_node_that_would_reset_nothing_is_not_counted_and_once_it_would_it_is_before_it_has_leave() {
    let mut turns = wanting(0..0, 100);
    turns.note(&name(0), hindered(None), 100);
    assert_eq!(turns.wanting().count(), 0);
    assert!(!turns.is_to_be_judged(LIMITS, 5_000));
    assert_eq!(turns.due(LIMITS, 5_000), names(&[]));
    assert_eq!(turns.next_due(LIMITS, 100), None);
    // Others do not wait for it, and nobody gives way to it.
    turns.note(&name(1), seen(Some(true), None), 5_000);
    assert_eq!(give(&mut turns, 5_030), names(&[1]));
    let news = turns.advance(LIMITS, false, |_| true, 9_000);
    assert_eq!(news, ResetNews::default());
    turns.note(&name(0), seen(Some(true), None), 9_000);
    assert_eq!(turns.wanting().count(), 2, "at once");
    assert_eq!(turns.due(LIMITS, 9_029), names(&[]));
    assert!(turns.is_to_be_judged(LIMITS, 9_030));
    assert_eq!(give(&mut turns, 9_030), names(&[0]));
}

#[test]
fn s9_whoever_has_leave_and_would_reset_nothing_any_more_has_its_place_for_as_long_as_one_may_go_on()
 {
    let mut turns = wanting(0..1, 100);
    give(&mut turns, 130);
    turns.note(&name(0), hindered(Some(true)), 200);
    assert!(!turns.has_leave(&name(0)), "whether or not others wait");
    turns.note(&name(0), hindered(Some(false)), 201);
    // It would again, and has no leave for that before its turn comes anew.
    turns.note(&name(0), seen(Some(true), Some(false)), 300);
    assert!(!turns.has_leave(&name(0)));
    assert_eq!(turns.wanting().count(), 1);
    turns.note(&name(0), hindered(Some(false)), 310);
    turns.advance(LIMITS, false, |_| true, 380);
    assert_eq!(turns.under_way().count(), 1, "whatever it says");
    assert_eq!(turns.wanting().count(), 0);
    let news = turns.advance(LIMITS, false, |_| true, 381);
    assert_eq!(news.ended, [name(0)]);
    assert_eq!(turns.under_way().count(), 0);
    assert_eq!(turns.wanting().count(), 0);
    assert!(!turns.is_empty(), "it is known");
    turns.note(&name(0), seen(Some(true), Some(false)), 500);
    assert_eq!(turns.due(LIMITS, 529), names(&[]));
    assert_eq!(turns.due(LIMITS, 530), names(&[0]));
}

#[test]
fn a_word_that_changes_each_second_never_has_leave_nor_does_one_that_changes_once_it_is_chosen() {
    let mut turns = wanting(0..0, 0);
    for second in 0..300 {
        let would = second % 2 == 0;
        let word = if would {
            seen(Some(true), None)
        } else {
            hindered(None)
        };
        turns.note(&name(0), word, second);
        assert_eq!(turns.due(LIMITS, second), names(&[]), "{second}");
        assert_eq!(turns.wanting().count(), usize::from(would), "{second}");
        assert_eq!(turns.waiting.len(), 1, "{second}");
    }
    let mut turns = wanting(0..1, 100);
    turns.choose(turns.due(LIMITS, 130));
    turns.note(&name(0), hindered(None), 131);
    let news = turns.advance(LIMITS, false, |_| true, 131);
    assert_eq!(news, ResetNews::default());
    assert!(!turns.has_leave(&name(0)));
}

#[test]
fn whoever_takes_over_counts_what_may_be_under_way_where_nothing_would_be_reset_now() {
    for (leave, is_recorded, may_be_under_way) in [
        (Some(true), false, true),
        (Some(false), false, true),
        (None, true, true),
        (None, false, false),
    ] {
        let mut turns = ResetTurns::default();
        turns.note(&name(0), hindered(leave), 100);
        let case = format!("{leave:?} {is_recorded}");
        assert!(!turns.waits_in_vain(&name(0)), "{case}: nobody knows yet");
        turns.advance(LIMITS, false, |_| is_recorded, 100);
        assert!(!turns.has_leave(&name(0)), "{case}");
        let under_way = turns.under_way().count();
        assert_eq!(under_way, usize::from(may_be_under_way), "{case}");
        let waits_in_vain = turns.waits_in_vain(&name(0));
        assert_eq!(waits_in_vain, !may_be_under_way, "{case}");
        assert_eq!(turns.wanting().count(), 0, "{case}: nor is it wanted");
        turns.note(&name(0), hindered(leave.map(|_| false)), 101);
        turns.advance(LIMITS, false, |_| is_recorded, 279);
        assert_eq!(turns.under_way().count(), under_way, "{case}");
        turns.advance(LIMITS, false, |_| is_recorded, 281);
        assert_eq!(turns.under_way().count(), 0, "{case}");
        assert_eq!(turns.wanting().count(), 0, "{case}");
        assert!(turns.waits_in_vain(&name(0)), "{case}");
        turns.note(&name(0), seen(Some(true), None), 282);
        assert!(!turns.waits_in_vain(&name(0)), "{case}: it would by now");
    }
}

/// Whatever is seen, recorded and held back, in any order.
#[test]
fn s9_never_do_more_nodes_have_a_place_than_may_be() {
    for seed in 0..200_u64 {
        let mut random = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut draw = |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut turns = ResetTurns::default();
        let mut told: BTreeMap<NodeName, bool> = BTreeMap::new();
        turns.advance(LIMITS, false, |_| false, 0);
        for step in 0..400 {
            let now = step * 13;
            let node = name(usize::try_from(draw(6)).unwrap());
            let wishes = [
                ResetWish::Reset,
                ResetWish::Reset,
                ResetWish::Reset,
                ResetWish::Hindered,
                ResetWish::Nothing,
                ResetWish::Unknown,
            ];
            let wish = wishes[usize::try_from(draw(6)).unwrap()];
            let leave = told.get(&node).copied();
            turns.note(&node, ResetSeen { wish, leave }, now);
            let due = turns.due(LIMITS, now);
            let judged: BTreeSet<&NodeName> = turns.wanting().collect();
            let are_judged = due.iter().all(|node| judged.contains(node));
            assert!(are_judged, "seed {seed}, step {step}");
            turns.choose(due);
            let (is_held_back, is_recorded) = (draw(9) == 0, draw(3) > 0);
            turns.advance(LIMITS, is_held_back, |_| is_recorded, now);
            let places = turns.under_way().count();
            assert!(places <= LIMITS.most_nodes, "seed {seed}, step {step}");
            // The leader tells a node, sooner or later.
            let has_leave = turns.has_leave(&node);
            if draw(2) == 0 && (has_leave || told.contains_key(&node)) {
                told.insert(node.clone(), has_leave);
                let leave = Some(has_leave);
                turns.note(&node, ResetSeen { wish, leave }, now);
            }
            let may = told.iter().filter(|(_, may)| **may);
            let places: BTreeSet<&NodeName> = turns.under_way().collect();
            for (node, _) in may {
                assert!(places.contains(node), "seed {seed}, step {step}: {node}");
            }
        }
    }
}
