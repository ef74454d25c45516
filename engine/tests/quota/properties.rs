//! What holds of every preemption, whatever the model says.

use std::collections::BTreeSet;

use crate::{
    history::History,
    mirror,
    model::Chosen,
    play::{Play, Question},
    random::Random,
    seeds,
};

/// Histories of the ordinary run.
const HISTORIES: u64 = 300;

/// Plays histories with the engine alone. `check` sees every question before its answer is carried out; what it counts, by
/// kind, is added up. `None` if fewer histories were asked for than the ordinary run plays.
pub(crate) fn at_every_question<const KINDS: usize>(
    ordinary: u64,
    check: impl Fn(&mut Play, &Question, &[Chosen]) -> Result<[usize; KINDS], String> + Sync,
) -> Option<[usize; KINDS]> {
    let first = seeds::first();
    let histories = seeds::histories(ordinary);
    let counts = seeds::all(first..first + histories, |history| {
        let mut counts = [0; KINDS];
        play_on(history, |play, question, victims| {
            let checked = check(play, question, victims)?;
            counts
                .iter_mut()
                .zip(checked)
                .for_each(|(sum, count)| *sum += count);
            Ok(())
        })?;
        Ok(counts)
    });
    let sums = std::array::from_fn(|kind| counts.iter().map(|counts| counts[kind]).sum());
    println!("{histories} histories from seed {first}: checked {sums:?} times");
    (histories >= ordinary).then_some(sums)
}

/// The same, for a check of one kind, which must not check nothing.
fn always(check: impl Fn(&mut Play, &Question, &[Chosen]) -> Result<usize, String> + Sync) {
    let checked = at_every_question(HISTORIES, |play, question, victims| {
        check(play, question, victims).map(|count| [count])
    });
    assert_ne!(checked, Some([0]), "nothing was checked");
}

/// Plays a history to its end.
fn play_on(
    history: &History,
    mut check: impl FnMut(&mut Play, &Question, &[Chosen]) -> Result<(), String>,
) -> Result<Play, String> {
    let mut play = Play::new(history);
    for event in &history.events {
        for question in play.questions(event) {
            let victims = play.decided(&question);
            check(&mut play, &question, &victims)?;
            if !victims.is_empty() {
                play.carry_out(&question, &victims);
                break;
            }
        }
        play.happens(event);
    }
    Ok(play)
}

pub(crate) fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

#[test]
fn a_simulated_preemption_leaves_the_tree_as_it_was_with_and_without_success() {
    always(|play, question, _| {
        // A resource that was never named before gets a number: that is no change of the tree.
        for (pair, _) in &question.asking.charges {
            play.tree.charge(
                &mirror::team_name(question.asking.team),
                &mirror::pair(*pair),
                mirror::amount(0),
            );
        }
        let before = format!("{:?}", play.tree);
        let found = play.decided(question);
        let same = before == format!("{:?}", play.tree);
        ensure(same, || {
            format!("{question:?} has changed the tree, {found:?}")
        })?;
        let found = play.decided_if(question, |_, _| false);
        ensure(found.is_empty(), || {
            format!("{question:?} has no place, but {found:?}")
        })?;
        let same = before == format!("{:?}", play.tree);
        ensure(same, || {
            format!("{question:?} has changed the tree in vain")
        })?;
        Ok(1)
    });
}

/// The gang fits once these are gone: with borrowing, and without.
fn fits(play: &Play, question: &Question, gone: &BTreeSet<usize>) -> (bool, bool) {
    let mut play = play.clone();
    let has_place = question.has_place(&play.running, gone);
    for position in gone.iter().rev() {
        play.end(*position);
    }
    let asking = &question.asking;
    let fits = has_place && play.lacks(asking.team, &asking.charges).is_empty();
    let borrows = asking.charges.iter().any(|(pair, _)| {
        let (team, of) = (mirror::team_name(asking.team), mirror::pair(*pair));
        let amounts = asking.charges.iter().filter(|(other, _)| other == pair);
        let amount: i128 = amounts.map(|(_, amount)| *amount).sum();
        let (used, nominal) = (play.tree.used(&team, &of), play.tree.nominal(&team, &of));
        let wide = |amount: muster_engine::Amount| i128::from(amount.0);
        used.map_or(0, wide) + amount > nominal.map_or(0, wide)
    });
    (fits, fits && !borrows)
}

#[test]
fn s14_the_gang_fits_without_its_victims_and_not_if_any_one_of_them_stays() {
    always(|play, question, victims| {
        if victims.is_empty() {
            return Ok(0);
        }
        let all: BTreeSet<usize> = victims.iter().map(|victim| victim.0).collect();
        ensure(all.len() == victims.len(), || {
            format!("{victims:?} name one twice")
        })?;
        let (may_borrow, within_quota) = fits(play, question, &all);
        ensure(may_borrow, || {
            format!("{question:?} does not fit without {victims:?}")
        })?;
        let but_one = all.iter().map(|victim| {
            let mut but_one = all.clone();
            but_one.remove(victim);
            fits(play, question, &but_one)
        });
        let but_one: Vec<(bool, bool)> = but_one.collect();
        // By one of the two measures by which a set is sought, it is minimal.
        let is_minimal = but_one.iter().all(|fits| !fits.0)
            || within_quota && but_one.iter().all(|fits| !fits.1);
        ensure(is_minimal, || {
            format!("{victims:?} of {question:?} are too many: {but_one:?}")
        })?;
        Ok(1)
    });
}

#[test]
fn s6_nothing_is_charged_borrowed_or_missing_once_everything_has_ended() {
    let first = seeds::first();
    let histories = seeds::histories(HISTORIES);
    let ended = seeds::all(first..first + histories, |history| {
        let mut play = play_on(history, |_, _, _| Ok(()))?;
        let gangs = play.running.len();
        let mut random = Random::new(gangs as u64);
        while !play.running.is_empty() {
            play.end(random.index(play.running.len()));
        }
        let empty = mirror::tree(&play.nodes, &[]);
        for (name, node) in &play.nodes {
            if node.policy.is_none() {
                let share = play.tree.cohort_share(&mirror::cohort_name(*name));
                let borrows = share.is_some_and(|share| share.is_borrowing());
                ensure(!borrows, || format!("cohort {name} borrows"))?;
                continue;
            }
            let team = mirror::team_name(*name);
            for pair in &play.pairs {
                let of = mirror::pair(*pair);
                let (used, available) =
                    (play.tree.used(&team, &of), play.tree.available(&team, &of));
                let is_empty =
                    used == empty.used(&team, &of) && available == empty.available(&team, &of);
                ensure(
                    is_empty
                        && used.as_ref().is_ok_and(|used| used.0 == 0)
                            == empty.check(&team).is_ok(),
                    || format!("{team} is left with {used:?} of {of:?}, and can get {available:?}"),
                )?;
            }
        }
        Ok(gangs)
    });
    assert!(ended.iter().sum::<usize>() > 0, "no gang ran");
}

#[test]
fn the_order_in_which_gangs_and_charges_are_told_changes_neither_the_tree_nor_the_victims() {
    always(|play, question, victims| {
        let mut random = Random::new(u64::from(question.uid));
        let mut other = play.clone();
        random.shuffle(&mut other.running);
        for gang in &mut other.running {
            random.shuffle(&mut gang.charges);
        }
        other.tree = mirror::tree(&other.nodes, &other.running);
        let mut question = question.clone();
        random.shuffle(&mut question.asking.charges);
        for (name, node) in &play.nodes {
            let team = mirror::team_name(*name);
            for pair in play.pairs.iter().filter(|_| node.policy.is_some()) {
                let of = mirror::pair(*pair);
                let told = |play: &Play| {
                    let level = play.tree.borrow_level(&team, &of, mirror::amount(1));
                    (
                        play.tree.used(&team, &of),
                        play.tree.available(&team, &of),
                        level,
                    )
                };
                ensure(told(play) == told(&other), || {
                    format!(
                        "{of:?} of {team}: {:?}, then {:?}",
                        told(play),
                        told(&other)
                    )
                })?;
            }
        }
        let by_uid = |play: &Play, victims: &[Chosen]| -> Vec<(u32, _)> {
            let victims = victims.iter();
            victims
                .map(|(position, reason)| (play.running[*position].uid, *reason))
                .collect()
        };
        let others = other.decided(&question);
        let (mine, theirs) = (by_uid(play, victims), by_uid(&other, &others));
        ensure(mine == theirs, || {
            format!("{question:?}: {mine:?}, then {theirs:?}")
        })?;
        Ok(victims.len())
    });
}
