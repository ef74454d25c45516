//! Slices of GPUs give way to whoever takes the GPU as a whole.

use crate::{common::*, cut_gpus::*};
use muster_engine::{
    Amount, Claim, Decisions, DeviceChoice, DeviceRequest, Gang, Hold, Node, QuotaLimit, Resource,
    Running, State, Team, Timestamp, Update,
    quota::{PreemptionPolicy, WithinTeam},
};

/// A Team of which whoever has a higher priority goes first, and has so many GPUs.
fn preempting(gpus: i64) -> Team {
    Team {
        preemption: PreemptionPolicy {
            within_team: WithinTeam::LowerPriority,
            ..PreemptionPolicy::NEVER
        },
        ..team("a", None, limit(gpus))
    }
}

/// It runs, with this priority.
fn runs(state: &mut State, priority: i32, hold: &Hold) {
    state.apply(Update::Hold(hold.clone()));
    state.apply(Update::Running(Running {
        priority,
        ..held_since(Timestamp(0), hold)
    }));
}

fn victims(decisions: &Decisions) -> Vec<String> {
    let preemptions = decisions.preemptions.iter();
    let victims = preemptions.flat_map(|preemption| &preemption.victims);
    victims.map(|victim| victim.gang.to_string()).collect()
}

/// By memory the smallest devices are asked for first: the slices that there are stay with whoever is more important, and all that others
/// could give up is a GPU that cannot be cut.
#[test]
fn who_asks_for_memory_has_a_larger_device_freed_where_no_smaller_one_can_be() {
    let nodes = || vec![cut_node("cut", "s/l", 1), node("whole", "s/l", 1)];
    let table = [
        // Priority of who holds the whole GPU of each node, quota, who goes.
        (20, 0, 3, vec!["gang-of-whole"]),
        (20, 0, 2, vec!["gang-of-whole"]),
        // The least that helps is asked for: a slice.
        (0, 0, 2, vec!["gang-of-cut"]),
        (0, 20, 2, vec!["gang-of-cut"]),
        (20, 20, 3, vec![]),
    ];
    for (on_cut, on_whole, quota, expected) in table {
        let mut state = state(nodes(), vec![preempting(quota)]);
        let cut = hold_part("cut", "a", "cut", (0, ANY_GPU, 0));
        let whole = hold("whole", "a", "whole", &[0]);
        runs(&mut state, on_cut, &cut);
        runs(&mut state, on_whole, &whole);
        submit(&mut state, [with_priority(10, memory_gang("g", "a", 1, 1))]);
        let decisions = decide(&mut state);
        assert!(decisions.admissions.is_empty());
        assert_eq!(victims(&decisions), expected, "{on_cut} {on_whole} {quota}");
        for gone in [&cut, &whole] {
            if expected.contains(&gone.gang.as_str()) {
                state.apply(Update::NotRunning(gone.gang.clone()));
                state.apply(Update::HoldGone(gone.pod.clone()));
                // It starts on what was freed, at what kube-scheduler gives it there.
                assert_eq!(admitted(&decide(&mut state)), ["g"]);
            }
        }
    }
}

/// A GPU, or two slices that are charged as much together: whichever is preferred, who holds the only one to be had gives way.
#[test]
fn of_choices_that_are_charged_alike_each_is_a_place_in_whatever_order_they_stand() {
    let choices = [(ANY_GPU, 1), (THREE_SLICES, 2)];
    for order in [[0, 1], [1, 0]] {
        let nodes = vec![cut_node("cut", "s/l", 1), node("whole", "s/l", 1)];
        let mut state = state(nodes, vec![preempting(2)]);
        let whole = hold("whole", "a", "whole", &[0]);
        runs(
            &mut state,
            20,
            &hold_part("cut", "a", "cut", (0, ANY_GPU, 0)),
        );
        runs(&mut state, 0, &whole);
        let choices = order.iter().map(|at| {
            let (selector, count) = choices[*at];
            DeviceChoice {
                name: Some(format!("c{at}")),
                selector,
                count,
            }
        });
        let either = Claim {
            requests: vec![DeviceRequest {
                name: "gpus".into(),
                choices: choices.collect(),
            }],
            ..claim("either", 1)
        };
        let waiting = gang_of("g", "a", vec![pod("g-0", vec![either])]);
        submit(&mut state, [with_priority(10, waiting)]);
        let decisions = decide(&mut state);
        assert!(decisions.admissions.is_empty(), "{order:?}");
        assert_eq!(victims(&decisions), ["gang-of-whole"], "{order:?}");
        state.apply(Update::NotRunning(whole.gang.clone()));
        state.apply(Update::HoldGone(whole.pod.clone()));
        assert_eq!(admitted(&decide(&mut state)), ["g"], "{order:?}");
    }
}

/// Of a GPU that does not tell its memory none is charged; of the other one more is than the Team's own. Whoever may not borrow that would not start on
/// it, so nobody gives it up for him.
#[test]
fn nobody_gives_up_a_larger_device_for_who_may_not_borrow_what_it_is_charged() {
    for (may_borrow, expected) in [(true, vec!["gang-of-tells"]), (false, vec![])] {
        let mut silent = node("silent", "s/l", 1);
        silent.devices[0].vram = Amount::ZERO;
        let of_memory = |gib: i64| QuotaLimit {
            nominal: Amount(gib * GIB),
            ..QuotaLimit::default()
        };
        let borrower = Team {
            cohort: Some("all".into()),
            quota: vec![(
                H100.into(),
                [(Resource::Gpus, limit(2)), (Resource::Vram, of_memory(40))].into(),
            )],
            ..preempting(2)
        };
        let lender = Team {
            quota: vec![(H100.into(), [(Resource::Vram, of_memory(800))].into())],
            ..team("b", Some("all"), limit(0))
        };
        let nodes = vec![silent, node("tells", "s/l", 1)];
        let mut state = state(nodes, vec![borrower, lender]);
        let mut tells = hold("tells", "a", "tells", &[0]);
        tells.claims[0].vram = Amount(80 * GIB);
        runs(&mut state, 20, &hold("silent", "a", "silent", &[0]));
        runs(&mut state, 0, &tells);
        let waiting = Gang {
            may_borrow,
            ..gang("g", "a", 1, 1)
        };
        submit(&mut state, [with_priority(10, waiting)]);
        let decisions = decide(&mut state);
        assert!(decisions.admissions.is_empty(), "{may_borrow}");
        assert_eq!(victims(&decisions), expected, "{may_borrow}");
        if may_borrow {
            state.apply(Update::NotRunning(tells.gang.clone()));
            state.apply(Update::HoldGone(tells.pod.clone()));
            assert_eq!(admitted(&decide(&mut state)), ["g"]);
        }
    }
}

/// What is freed has to be a place for a slice of the size that is asked for, as kube-scheduler would come to it.
#[test]
fn nobody_gives_way_where_the_memory_that_he_has_is_no_place_for_a_slice() {
    for (tens, expected) in [(1, vec!["gang-of-small"]), (2, vec![])] {
        let nodes: Vec<Node> = vec![cut_node("n", "s/l", 1)];
        let mut state = state(nodes, vec![preempting(8)]);
        for (pod, priority, part) in [
            ("large", 20, (0, THREE_SLICES, 0)),
            ("middle", 20, (0, TWO_SLICES, 4)),
            // Behind it is one memory slice more, and a slice of two does not begin here.
            ("small", 0, (0, ONE_SLICE, 6)),
        ] {
            runs(&mut state, priority, &hold_part(pod, "a", "n", part));
        }
        submit(
            &mut state,
            [with_priority(10, memory_gang("g", "a", 1, tens))],
        );
        let decisions = decide(&mut state);
        assert_eq!(victims(&decisions), expected, "{tens}");
        assert!(decisions.admissions.is_empty());
    }
}

/// Who asks for memory is asked for by each size that there is: three here. None of them has a place.
#[test]
fn where_no_size_has_a_place_whoever_goes_that_is_found_out_once_and_not_for_each_size() {
    let searches = |asked: Gang| {
        let mut state = state(vec![cut_node("n", "s/l", 1)], vec![preempting(8)]);
        for (pod, priority, part) in [
            ("large", 20, (0, THREE_SLICES, 0)),
            ("middle", 20, (0, TWO_SLICES, 4)),
            ("small", 0, (0, ONE_SLICE, 6)),
        ] {
            runs(&mut state, priority, &hold_part(pod, "a", "n", part));
        }
        submit(&mut state, [with_priority(10, asked)]);
        let decisions = decide(&mut state);
        assert!(decisions.admissions.is_empty());
        assert_eq!(victims(&decisions), Vec::<String>::new());
        decisions.visited.searches
    };
    let two_slices = first_of("g-0-memory", &[TWO_SLICES]);
    let of_one_size = gang_of("g", "a", vec![pod("g-0", vec![two_slices])]);
    let of_one_size = searches(of_one_size);
    assert!(of_one_size > 0, "the smallest may be asked");
    assert_eq!(searches(memory_gang("g", "a", 1, 2)), of_one_size);
}

#[test]
fn the_holder_of_a_slice_gives_way_to_a_whole_gpu_which_starts_once_it_is_released() {
    let mut state = state(vec![cut_node("n", "s/l", 1)], vec![preempting(1)]);
    let slice = hold_part("p", "a", "n", (0, ONE_SLICE, 2));
    runs(&mut state, 0, &slice);
    submit(&mut state, [with_priority(10, gang("whole", "a", 1, 1))]);
    let decisions = decide(&mut state);
    assert_eq!(victims(&decisions), ["gang-of-p"]);
    assert!(decisions.admissions.is_empty());
    state.apply(Update::NotRunning(slice.gang.clone()));
    state.apply(Update::HoldGone(slice.pod));
    assert_eq!(admitted(&decide(&mut state)), ["whole"]);
}
