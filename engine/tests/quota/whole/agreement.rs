//! The engine and the model, decision by decision.

mod overdue;

use muster_engine::Why;

use super::{
    engine::Engine,
    history::{EVENTS, Event, History, Step},
    model::{Model, Uid},
};
use crate::seeds::{self, Seeded};

/// Histories of the ordinary run.
const HISTORIES: u64 = 300;
/// Of those in which each decision is made in slices, too.
const SLICED: u64 = 100;

/// What came of a history.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    histories: usize,
    preempting: usize,
    events: usize,
    decisions: usize,
    admissions: usize,
    undone: usize,
    preemptions: usize,
    victims: usize,
    spared: usize,
    /// Turns that were taken later than all others, as those are asked that lacked something else than quota.
    late: usize,
    /// Calls that left some of those to the next call.
    left: usize,
    explained: usize,
    /// Of those, how many wait behind another one in strict order.
    behind: usize,
    /// Admissions with fewer pods than all, and with more than the fewest.
    in_part: usize,
    grown: usize,
    /// Gangs that recovered, and how many of those gave way.
    recoveries: usize,
    yielded: usize,
}

impl Tally {
    fn decided(&self) -> usize {
        self.admissions + self.preemptions
    }

    fn add(&mut self, other: &Self) {
        self.histories += 1;
        self.preempting += usize::from(other.preemptions > 0);
        self.events += other.events;
        self.decisions += other.decisions;
        self.admissions += other.admissions;
        self.undone += other.undone;
        self.preemptions += other.preemptions;
        self.victims += other.victims;
        self.spared += other.spared;
        self.late += other.late;
        self.left += other.left;
        self.explained += other.explained;
        self.behind += other.behind;
        self.in_part += other.in_part;
        self.grown += other.grown;
        self.recoveries += other.recoveries;
        self.yielded += other.yielded;
    }
}

fn decide(
    engine: &mut Engine,
    model: &mut Model,
    undo: Option<usize>,
    tally: &mut Tally,
) -> Result<(), String> {
    let decided = engine.decide(model.now);
    tally.decisions += 1;
    tally.admissions += decided.admissions.len();
    tally.preemptions += decided.preemptions.len();
    tally.spared += decided.spared.len();
    tally.left += usize::from(decided.leaves_some);
    let victims = decided.preemptions.iter().map(|(_, victims)| victims.len());
    tally.victims += victims.sum::<usize>();
    tally.late += model.decide(&decided)?;
    for (gang, charges) in &decided.admissions {
        let (asked, pods) = (&model.gangs[gang].asked, engine.admitted_pods(*gang));
        if charges.is_empty() && pods != asked.pods {
            return Err(format!(
                "gang {gang} gets {pods} pods of those for which nothing is charged"
            ));
        }
        tally.in_part += usize::from(pods < asked.pods);
        tally.grown += usize::from(pods > asked.fewest());
    }
    let count = decided.admissions.len();
    for (at, (gang, _)) in decided.admissions.iter().enumerate() {
        if undo.is_some_and(|undo| undo % count == at) {
            tally.undone += 1;
            model.undo(*gang);
            engine.undo(*gang);
        } else {
            model.commit(*gang);
            engine.commit(model, *gang);
        }
    }
    Ok(())
}

/// Whether a gang is told the right reason; whether that is that it waits behind another one.
fn explains(engine: &Engine, model: &Model, gang: Uid) -> Result<bool, String> {
    let why = engine.why(gang);
    let is_right = if !model.waiting.contains(&gang) {
        why.is_none()
    } else if matches!(why, Some(Why::TeamStopped | Why::CohortCycle { .. })) {
        !model.is_active(model.gangs[&gang].asked.team)
    } else if model.held.contains_key(&gang) {
        matches!(why, Some(Why::Release { .. }))
    } else if let Some(kept) = model.kept.get(&gang) {
        let only_ending = kept.victims.is_empty() && !kept.ending.is_empty();
        match why {
            Some(Why::Preemption { .. }) => !only_ending,
            Some(Why::Release { .. }) => only_ending,
            _ => false,
        }
    } else if !model.is_active(model.gangs[&gang].asked.team) {
        false
    } else {
        let refused = model.judge(&model.trees(), gang);
        match why {
            Some(Why::ExceedsMaxQuota { .. }) => refused.is_err_and(|it| it.for_ever),
            Some(Why::BehindHead { .. }) => refused.is_err_and(|it| it.is_behind),
            Some(Why::Quota { .. }) => !refused.is_err_and(|it| it.for_ever || it.is_behind),
            _ => false,
        }
    };
    if is_right {
        return Ok(matches!(why, Some(Why::BehindHead { .. })));
    }
    Err(format!("gang {gang} is told {why:?}"))
}

/// Whether the same are admitted and go if each commit has room for one gang only.
fn agrees_in_slices(engine: &Engine, now: i64) -> Result<(), String> {
    let at_once = engine.turns(now, usize::MAX);
    let in_slices = engine.turns(now, 1);
    let is_same = at_once.is_none() || in_slices.is_none() || at_once == in_slices;
    is_same
        .then_some(())
        .ok_or_else(|| format!("at once {at_once:?}, in slices {in_slices:?}"))
}

/// Plays these events; the first disagreement is an error.
fn agree(history: &History) -> Result<Tally, String> {
    play(history, false)
}

fn play(history: &History, slices: bool) -> Result<Tally, String> {
    let mut model = Model::new(history);
    let mut engine = Engine::new(history, &model);
    let mut tally = Tally::default();
    for (index, step) in history.events.iter().enumerate() {
        let Step {
            event,
            decides,
            undo,
        } = step;
        let before = model.clone();
        model.happens(event);
        engine.happens(event, &before, &model);
        tally.events += 1;
        tally.recoveries += model.recovering.len() - before.recovering.len();
        if *decides {
            if slices {
                agrees_in_slices(&engine, model.now)
                    .map_err(|difference| format!("event {index}, {event:?}: {difference}"))?;
            }
            decide(&mut engine, &mut model, *undo, &mut tally).map_err(|difference| {
                format!("event {index}, {event:?}: {difference}\n{before:?}")
            })?;
        }
    }
    // What was committed last may have others preempt: until nothing is decided any more.
    let mut decided = None;
    while decided != Some(tally.decided()) {
        decided = Some(tally.decided());
        decide(&mut engine, &mut model, None, &mut tally)
            .map_err(|difference| format!("in the end: {difference}\n{model:?}"))?;
    }
    tally.yielded = model.yielded;
    for gang in model.gangs.keys() {
        let is_behind = explains(&engine, &model, *gang)
            .map_err(|difference| format!("{difference}\n{model:?}"))?;
        tally.explained += 1;
        tally.behind += usize::from(is_behind);
    }
    Ok(tally)
}

#[test]
fn the_engine_admits_and_preempts_as_the_model_in_random_histories() {
    let first = seeds::first();
    let histories = seeds::histories(HISTORIES);
    let mut sum = Tally::default();
    for tally in seeds::all(first..first + histories, agree) {
        sum.add(&tally);
    }
    println!("{histories} histories of {EVENTS} events from seed {first}: {sum:?}");
    if histories >= HISTORIES {
        assert!(
            sum.preempting * 3 >= sum.histories,
            "a third of all histories preempt: {sum:?}"
        );
        assert!(
            sum.late > 0 && sum.undone > 0 && sum.spared > 0 && sum.behind > 0,
            "everything occurs: {sum:?}"
        );
        assert!(
            sum.in_part * 20 >= sum.admissions && sum.grown * 20 >= sum.admissions,
            "everything occurs: {sum:?}"
        );
    }
}

/// What is kept for a gang that recovers is in the way of others as if it ran, for as long as it may be, and given up in the decision by which
/// somebody has a right to it.
#[test]
fn the_engine_admits_and_preempts_as_the_model_while_gangs_recover() {
    let first = seeds::first();
    let histories = seeds::histories(HISTORIES);
    let mut sum = Tally::default();
    for tally in seeds::all(first..first + histories, |history: &History| {
        play(&history.with_recoveries(), false)
    }) {
        sum.add(&tally);
    }
    println!("{histories} histories of {EVENTS} events from seed {first}: {sum:?}");
    assert!(
        histories < HISTORIES || (sum.recoveries > sum.histories && sum.yielded > 0),
        "everything occurs: {sum:?}"
    );
}

#[test]
fn a_commit_with_room_for_one_gang_changes_nobodys_turn_in_random_histories() {
    let first = seeds::first();
    let histories = seeds::histories(SLICED);
    let mut sum = Tally::default();
    for tally in seeds::all(first..first + histories, |history: &History| {
        play(history, true)
    }) {
        sum.add(&tally);
    }
    assert!(
        histories < SLICED || (sum.admissions > 0 && sum.preemptions > 0),
        "everything occurs: {sum:?}"
    );
}

#[test]
fn the_events_of_random_histories_are_of_every_kind() {
    let histories = (1..=50).map(History::draw);
    let events: Vec<Event> = histories
        .flat_map(|history| history.events)
        .map(|step| step.event)
        .collect();
    let kinds: std::collections::BTreeSet<String> = events
        .iter()
        .map(|event| {
            let text = format!("{event:?}");
            let name: String = text.chars().take_while(|it| it.is_alphabetic()).collect();
            name
        })
        .collect();
    assert_eq!(kinds.len(), 17, "{kinds:?}");
}
