//! `muster-sim conformance FILE`: whether Muster's quota decides as Kueue's does, by cases in a file.
//!
//! A file is a JSON object of suites, a suite an object of cases by name; keys that begin with `_` describe. The forms are
//! those of Kueue's own tests, re-expressed as data (`reference/quota.md` 18 of the design says where they come from and what
//! their fields mean). No case is known here by its name, and what a suite looks like is read in one file each:
//!
//! * `quota_available`: what each Team can get, and could ever get ([`availability`]);
//! * `dominant_resource_share`: how much of what could be lent a node borrows ([`shares`]);
//! * `classical_preemption`, `hierarchical_preemption`, `fair_sharing_preemption`: which gangs give way to another whose
//!   Flavors are chosen already ([`preemption`]);
//! * `schedule_cycle`, `schedule_cycle_fair_sharing`, `schedule_cycle_recompute`: what one round admits, and whom it preempts
//!   ([`cycle`]);
//! * `flavor_is_preferred`: which of two Flavors suits a gang better ([`preference`]);
//! * `flavor_assignment`: which Flavors the parts of a gang get ([`assignment`]).
//!
//! Cases that keep names of Go's builders, which say nothing here, and those of any other suite are skipped and counted. A case
//! of a round that differs is judged a second time without the [`Deviation`] that may explain it ([`one_cycle`]), and counts as
//! deviated only if it passes then. Where a case can only mean that a write fails, it does ([`failed_write`]).

mod assignment;
mod availability;
mod cycle;
mod failed_write;
mod nodes;
mod one_cycle;
mod pods;
mod preemption;
mod preference;
mod queues;
mod shares;

use std::{collections::BTreeMap, fmt};

use anyhow::Context;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The suites that are known.
const SUITES: [&str; 10] = [
    "quota_available",
    "dominant_resource_share",
    "classical_preemption",
    "hierarchical_preemption",
    "fair_sharing_preemption",
    "schedule_cycle",
    "schedule_cycle_fair_sharing",
    "schedule_cycle_recompute",
    "flavor_is_preferred",
    "flavor_assignment",
];

/// What came of one case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is decided as the file says.
    Passed,
    /// It is not, by a deliberate deviation, without which it would be: what differs.
    Deviated(Deviation, String),
    /// It is not: what differs.
    Failed(String),
    /// It was not tried: why.
    Skipped(String),
}

/// Where Muster decides otherwise than Kueue on purpose, and a case can tell. `docs/kueue.md` lists all that there are, and
/// ADR 48 says why each is switched off here and not in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deviation {
    /// Kueue looks at one gang of each queue in a cycle, once; Muster decides until nothing more can be decided, and looks at
    /// whoever is next as things are by then. (`reference/quota.md` 13.2 of the design.)
    ManyHeads,
}

impl Deviation {
    /// All that a case is judged without, one by one, if it differs: no other is ever reported.
    pub const ALL: [Self; 1] = [Self::ManyHeads];

    /// Judges a case of a round with this deviation switched off. Fails, too, where the case cannot be about it.
    fn judge_without(self, fixture: &cycle::Fixture, case: &cycle::Case) -> anyhow::Result<()> {
        match self {
            Self::ManyHeads => cycle::judge_one_cycle(fixture, case),
        }
    }
}

impl fmt::Display for Deviation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ManyHeads => formatter.write_str("many heads per cycle"),
        }
    }
}

/// What came of all cases of a file.
#[derive(Clone, Debug, Default)]
pub struct Report {
    suites: BTreeMap<String, BTreeMap<String, Verdict>>,
}

/// Runs every case of a file.
pub fn run(text: &str) -> anyhow::Result<Report> {
    let suites: BTreeMap<String, BTreeMap<String, Value>> = suites_of(text)?;
    let suites = suites.into_iter().map(|(name, mut cases)| {
        let fixture = cases.remove("_fixture");
        let cases = cases.into_iter();
        let verdicts = cases
            .filter(|(case, _)| !case.starts_with('_'))
            .map(|(case, value)| (case, judge(&name, fixture.as_ref(), value)))
            .collect();
        (name, verdicts)
    });
    Ok(Report {
        suites: suites.collect(),
    })
}

fn suites_of(text: &str) -> anyhow::Result<BTreeMap<String, BTreeMap<String, Value>>> {
    let file: BTreeMap<String, Value> =
        serde_json::from_str(text).context("the file is no JSON object of suites")?;
    let suites = file.into_iter().filter(|(name, _)| !name.starts_with('_'));
    suites
        .map(|(name, suite)| match suite {
            Value::Object(cases) => Ok((name, cases.into_iter().collect())),
            _ => anyhow::bail!("suite {name:?} is no object of cases"),
        })
        .collect()
}

fn judge(suite: &str, fixture: Option<&Value>, case: Value) -> Verdict {
    if SUITES.contains(&suite) && keeps_builder_names(&case) {
        return Verdict::Skipped("the case keeps names of Go's builders".to_owned());
    }
    let judged = match suite {
        "quota_available" => read(case).and_then(|case| availability::judge(&case)),
        "dominant_resource_share" => read(case).and_then(|case| shares::judge(&case)),
        "classical_preemption" | "hierarchical_preemption" => {
            read(case).and_then(|case| preemption::judge_by_priority(&case))
        }
        "fair_sharing_preemption" => read(case).and_then(|case| preemption::judge_fair(&case)),
        "schedule_cycle" | "schedule_cycle_fair_sharing" | "schedule_cycle_recompute" => {
            let fixture = fixture.cloned().map(read).transpose();
            let fixture = fixture.context("the fixture of the suite");
            let judged = fixture
                .and_then(|fixture| Ok(judge_round(&fixture.unwrap_or_default(), &read(case)?)));
            return judged.unwrap_or_else(|fault| Verdict::Failed(format!("{fault:#}")));
        }
        "flavor_assignment" => read(case).and_then(|case| assignment::judge(&case)),
        "flavor_is_preferred" => read(case).and_then(|case| preference::judge(&case)),
        _ => return Verdict::Skipped("the suite is not known".to_owned()),
    };
    match judged {
        Ok(()) => Verdict::Passed,
        Err(difference) => Verdict::Failed(format!("{difference:#}")),
    }
}

/// A case that differs is judged again without each deviation that may explain it.
fn judge_round(fixture: &cycle::Fixture, case: &cycle::Case) -> Verdict {
    let Err(difference) = cycle::judge(fixture, case) else {
        return Verdict::Passed;
    };
    let difference = format!("{difference:#}");
    let explains = |deviation: &Deviation| deviation.judge_without(fixture, case).is_ok();
    match Deviation::ALL.into_iter().find(explains) {
        Some(deviation) => Verdict::Deviated(deviation, difference),
        None => Verdict::Failed(difference),
    }
}

/// Whether some part of a case is written as the calls by which Go's tests build it.
fn keeps_builder_names(case: &Value) -> bool {
    match case {
        Value::Object(fields) => {
            let mut fields = fields.iter();
            fields.any(|(name, value)| name == "$" || name == "go" || keeps_builder_names(value))
        }
        Value::Array(values) => values.iter().any(keeps_builder_names),
        _ => false,
    }
}

fn read<T: DeserializeOwned>(case: Value) -> anyhow::Result<T> {
    serde_path_to_error::deserialize(case).context("the case cannot be read")
}

/// Fails unless both are the same.
fn same<T: PartialEq + fmt::Debug>(
    what: impl FnOnce() -> String,
    decided: &T,
    expected: &T,
) -> anyhow::Result<()> {
    anyhow::ensure!(
        decided == expected,
        "{}: {decided:?}, expected {expected:?}",
        what()
    );
    Ok(())
}

/// How many cases there are of each verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Decided as the file says.
    pub passed: usize,
    /// Not decided so, for a reason that is documented.
    pub deviated: usize,
    /// Not decided so.
    pub failed: usize,
    /// Not tried.
    pub skipped: usize,
}

impl Counts {
    fn add(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Passed => self.passed += 1,
            Verdict::Deviated(..) => self.deviated += 1,
            Verdict::Failed(_) => self.failed += 1,
            Verdict::Skipped(_) => self.skipped += 1,
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            passed,
            deviated,
            failed,
            skipped,
        } = self;
        write!(
            formatter,
            "passed {passed}, deviated {deviated}, failed {failed}, skipped {skipped}"
        )
    }
}

impl Report {
    /// The cases that deviate, by suite and name.
    pub fn deviated(&self) -> impl Iterator<Item = (&str, &str, Deviation)> {
        let cases = self.suites.iter().flat_map(|(suite, cases)| {
            let cases = cases.iter();
            cases.map(move |(case, verdict)| (suite.as_str(), case.as_str(), verdict))
        });
        cases.filter_map(|(suite, case, verdict)| match verdict {
            Verdict::Deviated(deviation, _) => Some((suite, case, *deviation)),
            _ => None,
        })
    }

    /// How many cases there are of each verdict, in all suites or in one.
    pub fn counts(&self, suite: Option<&str>) -> Counts {
        let mut counts = Counts::default();
        let suites = self.suites.iter();
        suites
            .filter(|(name, _)| suite.is_none_or(|suite| suite == name.as_str()))
            .flat_map(|(_, cases)| cases.values())
            .for_each(|verdict| counts.add(verdict));
        counts
    }
}

/// Suite by suite, with every case that did not pass; the sum in the last line.
impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (suite, cases) in &self.suites {
            writeln!(formatter, "{suite}: {}", self.counts(Some(suite)))?;
            let mut skipped: BTreeMap<&str, usize> = BTreeMap::new();
            for (case, verdict) in cases {
                match verdict {
                    Verdict::Passed => {}
                    Verdict::Deviated(deviation, difference) => {
                        writeln!(
                            formatter,
                            "  deviated: {case}\n    {deviation}: {difference}"
                        )?;
                    }
                    Verdict::Failed(difference) => {
                        writeln!(formatter, "  failed: {case}\n    {difference}")?;
                    }
                    Verdict::Skipped(reason) => *skipped.entry(reason).or_default() += 1,
                }
            }
            for (reason, cases) in skipped {
                writeln!(formatter, "  skipped {cases}: {reason}")?;
            }
        }
        writeln!(formatter, "{}", self.counts(None))
    }
}
