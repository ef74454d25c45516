//! Faults that schedulers of this kind once had, by what their change logs and issues say. Each is planted alone, in clusters with the faults
//! that bring it to light, and must break the invariant that is named here; without it the same run breaks nothing.

use muster_sim::{
    controllers::InjectedBug,
    faults::{Fault, Faults},
    run::{Options, Planted, Report, run},
    seeds,
};

/// Seeds that are tried before a fault counts as unseen.
const MOST_SEEDS: u64 = 400;

/// A fault of the field.
#[derive(Clone, Copy)]
struct Case {
    bug: InjectedBug,
    /// What it is known as.
    known: &'static str,
    /// What goes wrong besides.
    faults: &'static [(Fault, u64)],
    /// The invariant that it breaks.
    breaks: &'static [&'static str],
}

const fn case(
    bug: InjectedBug,
    known: &'static str,
    faults: &'static [(Fault, u64)],
    breaks: &'static [&'static str],
) -> Case {
    Case {
        bug,
        known,
        faults,
        breaks,
    }
}

/// Leaders that follow each other.
const SUCCESSION: &[(Fault, u64)] = &[(Fault::LeaseLost, 6), (Fault::ControllerCrash, 8)];
/// What has attempts evicted.
const EVICTING: &[(Fault, u64)] = &[
    (Fault::Delete, 4),
    (Fault::RankFails, 4),
    (Fault::DrainTeam, 3),
];

fn cases() -> Vec<Case> {
    use InjectedBug as Bug;
    vec![
        case(
            Bug::FreedAtDeletion,
            "Kueue KEP-6143: quota comes back when pods are deleted, not when they are gone",
            &[(Fault::Delete, 10)],
            &["S1", "S2", "S3", "S14"],
        ),
        case(
            Bug::BorrowingLimitDropped,
            "Kueue #2873, #10797: more is admitted than limits say that were changed",
            &[(Fault::LowerQuota, 8)],
            &["S1"],
        ),
        case(
            Bug::DecidedNotHeld,
            "Kueue #14646: two gangs of one cycle get the same place",
            &[(Fault::ControllerConflict, 12), (Fault::WatchLag, 6)],
            &["S1", "S3"],
        ),
        case(
            Bug::StartNotResumed,
            "Kueue #4653, #3612: gates stay after another replica leads",
            SUCCESSION,
            &["S6", "L-6"],
        ),
        case(
            Bug::UnansweredCountsAsDone,
            "Kueue #10185, #11502: what was never done is waited for for ever",
            &[(Fault::ControllerUnanswered, 20)],
            &["S6", "L-6"],
        ),
        case(
            Bug::NodeDevicesWakeNobody,
            "Kueue #9029: a gang waits until something else changes",
            &[],
            &["wakeup"],
        ),
        case(
            Bug::AgeLost,
            "Kueue #599, #1282: a gang that was evicted is behind all that came after it",
            EVICTING,
            &["S14"],
        ),
        case(
            Bug::NoticeIgnored,
            "gangs are preempted before they could write a checkpoint",
            &[],
            &["S14"],
        ),
        case(
            Bug::TierIgnored,
            "Kueue #2807, #4165: gangs of one priority preempt each other",
            &[],
            &["S14", "S15"],
        ),
        case(
            Bug::FailedPodsKeepPermits,
            "Kueue #13717, #14192: what has failed holds its quota for ever",
            &[(Fault::RankFails, 8)],
            &["S6", "L-6"],
        ),
    ]
}

/// The rules that are broken here.
pub(crate) fn planted() -> impl Iterator<Item = Planted> {
    cases()
        .into_iter()
        .map(|case| Planted::Controller(case.bug))
}

fn play(seed: u64, case: &Case, planted: &[Planted]) -> Report {
    let options = Options {
        faults: Some(Faults::directed(case.faults)),
        planted: planted.to_vec(),
        ..Options::default()
    };
    run(seed, &options)
}

/// The first seed in which it breaks the invariant that it should, and how.
///
/// # Panics
///
/// If that seed breaks something without it as well.
fn first_seen(case: &Case, most: u64) -> Option<(u64, String)> {
    (1..=most).find_map(|seed| {
        let violation = play(seed, case, &[Planted::Controller(case.bug)]).violation?;
        if !case.breaks.contains(&violation.invariant) {
            return None;
        }
        let intact = play(seed, case, &[]);
        assert_eq!(
            intact.violation, None,
            "{:?}, seed {seed}, intact\n{}",
            case.bug, intact.story
        );
        Some((seed, violation.to_string()))
    })
}

#[test]
fn faults_that_others_had_are_each_seen_by_the_invariant_that_they_break() {
    let number = |name| std::env::var(name).ok()?.parse().ok();
    let most = number("MUSTER_RUNS").unwrap_or(MOST_SEEDS);
    let only = std::env::var("MUSTER_ONLY").unwrap_or_default();
    let mut cases = cases();
    cases.retain(|case| format!("{:?}", case.bug).contains(&only));
    let seen = seeds::all(0..cases.len() as u64, |number| {
        let case = usize::try_from(number).ok();
        let case = case.and_then(|number| cases.get(number));
        case.map(|case| (*case, first_seen(case, most)))
    });
    let mut unseen = Vec::new();
    for (case, seen) in seen.into_iter().flatten() {
        match seen {
            Some((seed, violation)) => {
                println!("{} ({:?}): seed {seed}, {violation}", case.known, case.bug);
            }
            None => unseen.push(case.bug),
        }
    }
    assert!(unseen.is_empty(), "not seen in {most} seeds: {unseen:?}");
}
