//! What one turn costs the Teams that wait for theirs below the same root, and that none of them comes too late for it.

use crate::common::*;
use muster_engine::{Cohort, State, Update, Visited, quota::Sharing};

/// Teams that own one GPU each and ask for two, and then for one if others wait behind the first. Whoever asks for two borrows; so each
/// of them is judged before the first has its turn.
fn borrowing(teams: usize, sharing: Sharing<'static>, with_others: bool) -> State {
    let nodes = (0..400).map(|at| node(&format!("n{at:03}"), "s/l", 8));
    let names: Vec<String> = (0..teams).map(|at| format!("t{at:04}")).collect();
    let told = names.iter().map(|name| team(name, Some("all"), limit(1)));
    let mut state = state(nodes.collect(), told.collect());
    state.apply(Update::Cohort(Cohort {
        sharing,
        ..cohort("all", None, 10_000)
    }));
    for (number, name) in (0..).zip(&names) {
        submit(
            &mut state,
            [at(number, gang(&format!("large-{name}"), name, 1, 2))],
        );
        if with_others {
            let other = gang(&format!("small-{name}"), name, 1, 1);
            submit(&mut state, [at(10_000 + number, other)]);
        }
    }
    state
}

fn turns(teams: usize, sharing: Sharing<'static>, with_others: bool) -> (usize, Visited) {
    let mut state = borrowing(teams, sharing, with_others);
    let decisions = decide(&mut state);
    let of_each = 1 + usize::from(with_others);
    assert_eq!(decisions.admissions.len(), of_each * teams);
    (decisions.admissions.len(), decisions.visited)
}

#[test]
fn a_turn_costs_the_same_with_a_thousand_teams_that_borrow_as_with_a_hundred() {
    for (sharing, with_others) in [
        (Sharing::ByPriority, false),
        (Sharing::ByPriority, true),
        (Sharing::FAIR, false),
        (Sharing::FAIR, true),
    ] {
        let (few, visited_few) = turns(100, sharing, with_others);
        let (many, visited_many) = turns(1_000, sharing, with_others);
        assert!(
            visited_many.total() * few <= 2 * visited_few.total() * many,
            "{sharing:?}, others wait: {with_others}: {few} turns {visited_few:?}, {many} turns {visited_many:?}"
        );
    }
}

/// The Team `x` borrows, and is behind all others, as long as its first gang fits; with its second one it is before them. `w` owns nothing.
fn with_a_gang_behind(pool: i64, nodes: usize) -> Vec<String> {
    let nodes = (0..nodes).map(|at| node(&format!("n{at}"), "s/l", 3));
    let teams = [("w", 0), ("x", 1), ("y", 1), ("z", 1)];
    let teams = teams.map(|(name, owns)| team(name, Some("all"), limit(owns)));
    let mut state = state(nodes.collect(), teams.into());
    state.apply(Update::Cohort(cohort("all", None, pool)));
    submit(
        &mut state,
        [
            at(20, gang("x-large", "x", 1, 3)),
            at(21, gang("x-small", "x", 1, 1)),
            at(5, gang("y", "y", 1, 2)),
            at(12, gang("z", "z", 1, 2)),
            at(15, gang("w", "w", 1, 1)),
        ],
    );
    admitted(&decide(&mut state))
}

#[test]
fn who_lost_nothing_to_other_teams_has_its_turn_when_it_comes() {
    assert_eq!(
        with_a_gang_behind(100, 9),
        ["y", "z", "w", "x-large", "x-small"]
    );
}

#[test]
fn who_lost_its_quota_to_another_team_is_before_those_who_borrow_with_what_it_owns() {
    assert_eq!(with_a_gang_behind(1, 9), ["y", "x-small", "w"]);
}

#[test]
fn who_lost_its_place_to_another_team_is_before_those_who_borrow_with_what_it_owns() {
    assert_eq!(with_a_gang_behind(100, 1), ["y", "x-small"]);
    // First there is another place like the one that it had planned, then there is none.
    assert_eq!(with_a_gang_behind(100, 2), ["y", "z", "x-small", "w"]);
}
