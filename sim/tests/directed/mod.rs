//! Seeds with chosen faults: what happened in all of them, if no seed breaks an invariant.

use std::collections::BTreeMap;

use muster_sim::{
    faults::{Fault, Faults},
    run::{Options, run},
    scenario::Hardships,
    seeds,
};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What happened in all seeds.
pub(crate) struct Played {
    /// In words.
    pub(crate) told: String,
    /// How often each thing was done.
    tally: BTreeMap<String, u64>,
    /// How often each fault was injected.
    injected: BTreeMap<Fault, u64>,
    /// Whether there were as many seeds as usual.
    is_usual: bool,
}

/// Plays so many seeds, unless it is said how many, with these faults and hardships of these names.
///
/// # Panics
///
/// If a seed breaks an invariant.
pub(crate) fn play(faults: &[(Fault, u64)], hardships: &str, usual: u64) -> Played {
    let runs = number("MUSTER_RUNS").unwrap_or(usual);
    let first = number("MUSTER_SEED").unwrap_or(1);
    let hardships = Hardships::named(hardships);
    assert!(hardships.is_some(), "they have these names");
    let options = Options {
        faults: Some(Faults::directed(faults)),
        hardships,
        trace_lines: number("MUSTER_TRACE").and_then(|lines| usize::try_from(lines).ok()),
        ..Options::default()
    };
    let mut tally: BTreeMap<String, u64> = BTreeMap::new();
    let mut injected: BTreeMap<Fault, u64> = BTreeMap::new();
    let mut broken = Vec::new();
    for report in seeds::all(first..first + runs, |seed| run(seed, &options)) {
        if report.violation.is_some() {
            broken.push(report);
            continue;
        }
        for (what, times) in report.tally {
            *tally.entry(what).or_default() += times;
        }
        for (fault, times) in report.faults {
            *injected.entry(fault).or_default() += times;
        }
    }
    let violations: Vec<String> = broken
        .iter()
        .filter_map(|report| {
            Some(format!(
                "seed {}: {}",
                report.seed,
                report.violation.as_ref()?
            ))
        })
        .collect();
    let shortest = broken.iter().min_by_key(|report| report.steps);
    let story = shortest.map(|report| format!("seed {}\n{}", report.seed, report.story));
    assert!(
        broken.is_empty(),
        "{} of {runs} seeds break an invariant: {violations:#?}; the shortest: {}",
        broken.len(),
        story.unwrap_or_default()
    );
    Played {
        told: format!("{runs} seeds from {first}: {injected:?}; happened: {tally:#?}"),
        tally,
        injected,
        is_usual: runs >= usual,
    }
}

impl Played {
    /// Each fault was injected, and each of these things happened so often; in as many seeds as usual.
    ///
    /// # Panics
    ///
    /// If not.
    pub(crate) fn assert_eventful(&self, faults: &[(Fault, u64)], happened: &[(&str, u64)]) {
        if !self.is_usual {
            return;
        }
        for (fault, _) in faults {
            assert!(
                self.injected.contains_key(fault),
                "{fault:?} never happened"
            );
        }
        for (what, least) in happened {
            let times = self.tally.get(*what).copied().unwrap_or_default();
            assert!(
                times >= *least,
                "it hardly ever happened: {what}: {:?}",
                self.tally
            );
        }
    }
}
