//! The engine and the model, event by event.

use muster_engine::quota::{PreemptionReason, Share, TreeFault};

use crate::{
    history::{Event, History},
    mirror,
    model::{Chosen, Name, Pair, Tree},
    play::Play,
    seeds,
};

/// Histories of the ordinary run.
const HISTORIES: u64 = 300;

/// What came of a history.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    histories: usize,
    events: usize,
    asked: usize,
    questions: usize,
    preempted: usize,
    victims: usize,
    /// By reason: in the Team, reclaimed, by share, while borrowing.
    reasons: [usize; 4],
    cycles: usize,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.histories += other.histories;
        self.events += other.events;
        self.asked += other.asked;
        self.questions += other.questions;
        self.preempted += other.preempted;
        self.victims += other.victims;
        self.cycles += other.cycles;
        for (sum, count) in self.reasons.iter_mut().zip(other.reasons) {
            *sum += count;
        }
    }

    fn count(&mut self, victims: &[Chosen]) {
        self.questions += 1;
        self.preempted += usize::from(!victims.is_empty());
        self.victims += victims.len();
        for (_, reason) in victims {
            let index = match reason {
                PreemptionReason::InTeam => 0,
                PreemptionReason::Reclaimed => 1,
                PreemptionReason::FairShare => 2,
                PreemptionReason::ReclaimedWhileBorrowing => 3,
            };
            self.reasons[index] += 1;
        }
    }
}

fn same<T: PartialEq + std::fmt::Debug>(
    what: &str,
    decided: &T,
    expected: &T,
) -> Result<(), String> {
    if decided == expected {
        return Ok(());
    }
    Err(format!(
        "{what}: the engine says {decided:?}, the model {expected:?}"
    ))
}

fn same_amounts(play: &Play, model: &Tree<'_>, team: Name, pair: Pair) -> Result<(), String> {
    let (name, of) = (mirror::team_name(team), mirror::pair(pair));
    let what = |which: &str| format!("{which} {of:?} of {name}");
    let wide = |amount: Result<muster_engine::Amount, TreeFault>| {
        amount.map(|amount| i128::from(amount.0))
    };
    let used = wide(play.tree.used(&name, &of));
    same(&what("used"), &used, &Ok(model.usage(team, pair)))?;
    let nominal = wide(play.tree.nominal(&name, &of));
    same(
        &what("nominal"),
        &nominal,
        &Ok(model.subtree_quota(team, pair)),
    )?;
    let available = model.team_available(team, pair);
    let decided = wide(play.tree.available(&name, &of));
    same(&what("available"), &decided, &Ok(available))?;
    let most = wide(play.tree.potentially_available(&name, &of));
    let expected = model.potentially_available(team, pair);
    same(&what("potentially available"), &most, &Ok(expected))?;
    let has_quota = play
        .nodes
        .values()
        .any(|node| node.limits.contains_key(&pair));
    for amount in [available / 2, available + 1] {
        if !has_quota {
            continue;
        }
        let level = play.tree.borrow_level(&name, &of, mirror::amount(amount));
        let expected = model.borrow_level(team, pair, amount);
        same(
            &what(&format!("level of borrowing {amount}")),
            &level,
            &Ok(expected),
        )?;
    }
    Ok(())
}

fn same_shares(play: &Play, model: &Tree<'_>) -> Result<(), String> {
    let mut before: Option<(Share, crate::model::Share)> = None;
    for (name, node) in &play.nodes {
        let share = if node.policy.is_some() {
            play.tree.team_share(&mirror::team_name(*name))
        } else {
            play.tree.cohort_share(&mirror::cohort_name(*name))
        };
        // A Cohort without object that nobody names is not there.
        let Some(share) = share else {
            let is_absent = model.is_in_a_cycle(*name)
                || node.policy.is_none()
                    && !play.nodes.values().any(|child| child.parent == Some(*name));
            same(&format!("node {name} is absent"), &true, &is_absent)?;
            continue;
        };
        same(
            &format!("node {name} is cut off"),
            &false,
            &model.is_in_a_cycle(*name),
        )?;
        let expected = model.share(*name);
        let told = (
            share.dominant().cloned(),
            share
                .thousandths()
                .and_then(|share| i128::try_from(share).ok()),
            share.is_borrowing(),
        );
        let expected_words = (
            expected.dominant.map(mirror::resource),
            expected.thousandths(),
            expected.is_borrowing,
        );
        same(&format!("share of node {name}"), &told, &expected_words)?;
        if let Some((share_before, expected_before)) = &before {
            let order = share.compare(share_before);
            same(
                &format!("share of node {name} and of the one before"),
                &order,
                &expected.compare(expected_before),
            )?;
        }
        before = Some((share, expected));
    }
    Ok(())
}

/// How many Teams hang in a cycle.
fn same_numbers(play: &Play) -> Result<usize, String> {
    let model = play.model();
    let mut cycles = 0;
    for (name, node) in &play.nodes {
        if node.policy.is_none() {
            continue;
        }
        let checked = play.tree.check(&mirror::team_name(*name));
        let is_cut_off = matches!(checked, Err(TreeFault::Cycle(_)));
        same(
            &format!("team {name} in a cycle"),
            &is_cut_off,
            &model.is_in_a_cycle(*name),
        )?;
        if is_cut_off {
            cycles += 1;
            continue;
        }
        for pair in &play.pairs {
            same_amounts(play, &model, *name, *pair)?;
        }
    }
    same_shares(play, &model)?;
    Ok(cycles)
}

fn step(play: &mut Play, event: &Event, tally: &mut Tally) -> Result<(), String> {
    tally.events += 1;
    tally.asked += usize::from(matches!(event, Event::Preempts { .. }));
    for question in play.questions(event) {
        let decided = play.decided(&question);
        same(
            &format!("victims of {question:?}"),
            &decided,
            &play.expected(&question),
        )?;
        tally.count(&decided);
        if !decided.is_empty() {
            same_numbers(play)?;
            play.carry_out(&question, &decided);
            break;
        }
    }
    play.happens(event);
    tally.cycles += same_numbers(play)?;
    Ok(())
}

/// Plays these events; the first disagreement is an error.
fn agree(history: &History) -> Result<Tally, String> {
    let mut play = Play::new(history);
    let mut tally = Tally {
        histories: 1,
        ..Tally::default()
    };
    for (index, event) in history.events.iter().enumerate() {
        step(&mut play, event, &mut tally).map_err(|difference| {
            format!(
                "event {index}, {event:?}: {difference}\nrunning: {:?}",
                play.running
            )
        })?;
    }
    Ok(tally)
}

#[test]
fn the_engine_agrees_with_the_reference_model_after_every_event_of_random_histories() {
    let first = seeds::first();
    let histories = seeds::histories(HISTORIES);
    let mut sum = Tally::default();
    let mut preempting = 0;
    for tally in seeds::all(first..first + histories, agree) {
        preempting += u64::from(tally.preempted > 0);
        sum.add(&tally);
    }
    println!("{histories} histories from seed {first}, {preempting} of which preempt: {sum:?}");
    if histories >= HISTORIES {
        assert!(
            preempting * 3 >= histories,
            "a third of all histories preempt: {preempting} of {histories}"
        );
        assert!(
            sum.asked * 10 >= sum.events * 3,
            "three of ten events ask: {sum:?}"
        );
        assert!(
            sum.preempted * 10 >= sum.events,
            "a tenth of all events preempt: {sum:?}"
        );
        assert!(
            sum.reasons.iter().all(|count| *count > 0),
            "every reason occurs: {sum:?}"
        );
        assert!(sum.cycles > 0, "cycles occur: {sum:?}");
    }
}
