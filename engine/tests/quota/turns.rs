//! The order of turns where shares are fair: the engine and the model, on the trees of random histories.

use muster_engine::quota::{self, Entrant};

use crate::{
    history::{Arrival, Event, History},
    mirror,
    model::{self, Name, Waiting},
    play::Play,
    random::Random,
    seeds,
};

/// Histories of the ordinary run.
const HISTORIES: u64 = 300;
/// Gangs that wait, at most: those that arrive next in the history.
const MOST_WAITING: usize = 10;

fn arrival(event: &Event) -> Option<&Arrival> {
    match event {
        Event::Arrives(arrival) | Event::IsFound(arrival) | Event::Preempts { arrival, .. } => {
            Some(arrival)
        }
        _ => None,
    }
}

fn waiting(events: &[Event]) -> Vec<Waiting> {
    let arrivals = events.iter().filter_map(arrival).take(MOST_WAITING);
    let waiting = arrivals.map(|arrival| Waiting {
        uid: arrival.uid,
        team: arrival.team,
        priority: arrival.priority,
        queued_at: arrival.queued_at,
        charges: arrival.charges.clone(),
    });
    waiting.collect()
}

fn roots(play: &Play) -> Vec<Name> {
    let roots = play.nodes.iter();
    roots
        .filter(|(_, node)| node.policy.is_none() && node.parent.is_none())
        .map(|(name, _)| *name)
        .collect()
}

/// Calls `check` with every root and with who waits, after every event of random histories; it says how many turns it has checked.
fn after_every_event(check: impl Fn(&mut Play, Name, &[Waiting]) -> Result<usize, String> + Sync) {
    let first = seeds::first();
    let histories = seeds::histories(HISTORIES);
    let turns = seeds::all(first..first + histories, |history: &History| {
        let mut play = Play::new(history);
        let mut turns = 0;
        for (index, event) in history.events.iter().enumerate() {
            let waiting = waiting(&history.events[index..]);
            for root in roots(&play) {
                turns += check(&mut play, root, &waiting)
                    .map_err(|difference| format!("event {index}, root {root}: {difference}"))?;
            }
            play.happens(event);
        }
        Ok(turns)
    });
    let turns: usize = turns.into_iter().sum();
    println!("{histories} histories from seed {first}: {turns} turns");
    assert!(turns as u64 > 10 * histories, "few turns: {turns}");
}

fn decided(play: &mut Play, root: Name, waiting: &[Waiting]) -> Vec<u32> {
    let entrants: Vec<Entrant> = waiting.iter().map(mirror::entrant).collect();
    let order = quota::fair_order(&mut play.tree, &mirror::cohort_name(root), &entrants);
    let order = order.into_iter();
    order.map(|position| waiting[position].uid).collect()
}

#[test]
fn the_engine_agrees_with_the_model_on_whose_turn_it_is() {
    after_every_event(|play, root, waiting| {
        let order = decided(play, root, waiting);
        let expected = model::order(play.model(), root, waiting);
        let expected = expected.into_iter();
        let expected: Vec<u32> = expected.map(|position| waiting[position].uid).collect();
        if order == expected {
            return Ok(order.len());
        }
        Err(format!(
            "the engine says {order:?}, the model {expected:?}; {waiting:?} wait, {:?} run",
            play.running
        ))
    });
}

#[test]
fn the_order_in_which_gangs_are_told_does_not_change_turns_and_asking_does_not_change_the_tree() {
    after_every_event(|play, root, waiting| {
        let order = decided(play, root, waiting);
        let before = format!("{:?}", play.tree);
        let mut shuffled = waiting.to_vec();
        let seed = waiting.first().map_or(0, |gang| u64::from(gang.uid));
        Random::new(seed).shuffle(&mut shuffled);
        let again = decided(play, root, &shuffled);
        if order != again {
            return Err(format!("{order:?}, then {again:?}"));
        }
        if before != format!("{:?}", play.tree) {
            return Err("the tree has changed".to_owned());
        }
        Ok(order.len())
    });
}
