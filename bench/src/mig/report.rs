//! What was measured, for programs and for people.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde::Serialize;

use super::{
    TIME_LIMIT,
    instance::{Facts, JUDGED_UP_TO_PERCENT},
};
use crate::{machine::Machine, report::Verdict};

/// Of the requests that the optimum places, the most that may be missing.
pub(super) const MOST_MISSING: f64 = 0.02;
/// Of the GPUs that the optimum opens, the most that may be opened beside.
pub(super) const MOST_EXTRA: f64 = 0.05;
/// Of the instances that are to be judged, the most of which no optimum may be proved in time. What is hard to prove is often hard to pack,
/// too, so a verdict over the rest alone would flatter.
const MOST_UNPROVED: f64 = 0.1;

/// What one who decides made of an instance, beside the optimum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Placed {
    /// Requests that were placed.
    pub(super) requests: u32,
    /// GPUs of which something was given out.
    pub(super) gpus: u32,
    /// The fewest on which those very requests can be placed.
    pub(super) fewest_gpus: u32,
}

/// One instance that was solved to proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Solved {
    #[serde(flatten)]
    pub(super) facts: Facts,
    /// Requests that arrived.
    pub(super) arrived: u32,
    /// The most of them that can be placed.
    pub(super) most_placed: u32,
    pub(super) planned: Placed,
    pub(super) first_fit: Placed,
}

/// Sums over instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Packed {
    /// Requests that were placed, as a part of those that the optimum places.
    pub(super) placed_share: f64,
    /// What is missing to all of them. It is what is judged: exact at its limit, which 1 less the part that was placed is not.
    #[serde(skip)]
    missing: f64,
    /// GPUs that were opened beyond those that the optimum opens for the same requests, as a part of these.
    pub(super) extra_gpus_share: f64,
}

/// What some instances gave. Shares without a name are the planner's.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    of: String,
    /// How many were solved to proof.
    pub(super) instances: usize,
    #[serde(flatten)]
    pub(super) planned: Packed,
    pub(super) first_fit: Packed,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    machine: Machine,
    first_seed: u64,
    optimum_time_limit_seconds: u64,
    assumptions: &'static str,
    /// Instances with more load than this, in percent, are not judged.
    judged_up_to_percent: u64,
    /// Those that are judged: where no more is asked for than there is. They are what the report is about, so they are its top level.
    #[serde(flatten)]
    judged: Summary,
    targets: Vec<Verdict>,
    /// Whether all of these are met. Without any instance that is judged they are not, nor where too many are without a proof.
    are_targets_met: bool,
    /// Of what is judged, by cluster, by mix, by how requests say what they need, by load, by size, and by whether the optimum places all.
    groups: Vec<Summary>,
    /// Where more is asked for than there is: the optimum chooses whom it places.
    overloaded: Summary,
    /// Those for which no optimum was proved in time. They are in no sum.
    unproved: Vec<Facts>,
    /// Each instance that was solved to proof, judged or not.
    cases: Vec<Solved>,
}

const ASSUMPTIONS: &str = "requests for one device each, nothing ends, devices are allocated as soon as their pod is planned; \
    the optimum knows all requests beforehand; first fit takes nodes and devices in the order of their names";

/// Above what [`Report::print`] prints.
const HEADER: &str = "\
of                             instances     planner            first fit
                                             placed extra GPUs     placed extra GPUs";

impl Packed {
    fn of<'a>(solved: impl Iterator<Item = (&'a Solved, &'a Placed)>) -> Self {
        let mut sums = [0_u32; 4];
        for (solved, placed) in solved {
            let of_one = [
                placed.requests,
                solved.most_placed,
                placed.gpus,
                placed.fewest_gpus,
            ];
            for (sum, one) in sums.iter_mut().zip(of_one) {
                *sum += one;
            }
        }
        let [placed, most_placed, gpus, fewest] = sums.map(f64::from);
        Self {
            placed_share: placed / most_placed,
            missing: (most_placed - placed) / most_placed,
            extra_gpus_share: (gpus - fewest) / fewest,
        }
    }
}

impl Summary {
    pub(super) fn of(of: &str, solved: &[&Solved]) -> Self {
        let each = || solved.iter().copied();
        Self {
            of: of.to_owned(),
            instances: solved.len(),
            planned: Packed::of(each().map(|one| (one, &one.planned))),
            first_fit: Packed::of(each().map(|one| (one, &one.first_fit))),
        }
    }

    /// Whether packing is as good as it is to be.
    pub(super) fn targets(&self) -> Vec<Verdict> {
        let missing = self.planned.missing;
        let extra = self.planned.extra_gpus_share;
        vec![
            Verdict::at_most(
                "requests not placed, of the optimum's",
                missing,
                MOST_MISSING,
            ),
            Verdict::at_most("GPUs opened beyond the optimum's", extra, MOST_EXTRA),
        ]
    }
}

/// Whether enough of what is to be judged was solved to proof: it is judged by these alone.
fn proofs(judged: usize, unproved: &[Facts]) -> Result<Verdict> {
    let unproved = unproved.iter().filter(|facts| is_judged(facts)).count();
    let without = f64::from(u32::try_from(unproved)?);
    let all = f64::from(u32::try_from(judged + unproved)?);
    Ok(Verdict::at_most(
        "instances without a proved optimum, of those to be judged",
        without / all,
        MOST_UNPROVED,
    ))
}

/// Whether packing is judged there.
fn is_judged(facts: &Facts) -> bool {
    facts.load_percent <= JUDGED_UP_TO_PERCENT
}

/// The sums over what is judged, by group and over all, and over the rest.
fn sums(solved: &[Solved]) -> (Vec<Summary>, Summary, Summary) {
    let (judged, overloaded): (Vec<&Solved>, Vec<&Solved>) =
        solved.iter().partition(|one| is_judged(&one.facts));
    let mut groups: BTreeMap<(usize, String), Vec<&Solved>> = BTreeMap::new();
    for one in judged.iter().copied() {
        let facts = &one.facts;
        let names = [
            facts.cluster.to_owned(),
            format!("mix {:?}", facts.mix),
            format!("by {:?}", facts.style),
            format!("load {:3} %", facts.load_percent),
            format!("GPUs {:3}", facts.gpus),
            if one.most_placed == one.arrived {
                "all can be placed".to_owned()
            } else {
                "not all can be placed".to_owned()
            },
        ];
        for (at, name) in names.into_iter().enumerate() {
            groups.entry((at, name)).or_default().push(one);
        }
    }
    let groups = groups.iter();
    let groups = groups.map(|((_, name), solved)| Summary::of(name, solved));
    (
        groups.collect(),
        Summary::of("all that are judged", &judged),
        Summary::of("more asked for than there is", &overloaded),
    )
}

impl Report {
    pub(super) fn of(first_seed: u64, solved: Vec<Solved>, unproved: Vec<Facts>) -> Result<Self> {
        let (groups, judged, overloaded) = sums(&solved);
        let mut targets = judged.targets();
        targets.push(proofs(judged.instances, &unproved)?);
        Ok(Self {
            machine: Machine::here()?,
            first_seed,
            optimum_time_limit_seconds: TIME_LIMIT.as_secs(),
            assumptions: ASSUMPTIONS,
            judged_up_to_percent: JUDGED_UP_TO_PERCENT,
            judged,
            are_targets_met: targets.iter().all(|target| target.is_met),
            targets,
            groups,
            overloaded,
            unproved,
            cases: solved,
        })
    }

    /// Fails unless packing is as good as it is to be, over as many instances as it takes to say so.
    pub(super) fn ensure_targets_met(&self) -> Result<()> {
        let missed = self.targets.iter().filter(|target| !target.is_met);
        let missed: Vec<String> = missed.map(ToString::to_string).collect();
        ensure!(
            self.are_targets_met,
            "the targets are not met, over {} instances that are judged: {}",
            self.judged.instances,
            missed.join(", ")
        );
        Ok(())
    }

    pub(super) fn print(&self) {
        println!("{HEADER}");
        let sums = [&self.judged, &self.overloaded];
        let summaries = self.groups.iter().chain(sums);
        for summary in summaries.filter(|summary| summary.instances > 0) {
            let Summary {
                of,
                instances,
                planned,
                first_fit,
            } = summary;
            println!(
                "{of:<30} {instances:>9}  {:>8.2} % {:>8.2} %  {:>8.2} % {:>8.2} %",
                planned.placed_share * 100.0,
                planned.extra_gpus_share * 100.0,
                first_fit.placed_share * 100.0,
                first_fit.extra_gpus_share * 100.0,
            );
        }
        let seconds = self.optimum_time_limit_seconds;
        println!(
            "no optimum proved within {seconds} s, and in no sum: {}",
            self.unproved.len()
        );
        for facts in &self.unproved {
            println!("  {facts}");
        }
        for target in &self.targets {
            println!("{target}");
        }
        let verdict = if self.are_targets_met {
            "met"
        } else {
            "NOT MET"
        };
        println!(
            "targets, judged up to {} % of load, over {} instances: {verdict}",
            self.judged_up_to_percent, self.judged.instances
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::instance::{Mix, Style};
    use super::*;

    /// An instance of which the planner placed `requests` on `gpus`, and first fit as many on twice the fewest.
    fn solved(most_placed: u32, planned: [u32; 3], load_percent: u64) -> Solved {
        let [requests, gpus, fewest_gpus] = planned;
        let planned = Placed {
            requests,
            gpus,
            fewest_gpus,
        };
        Solved {
            facts: Facts {
                seed: 0,
                cluster: "a30",
                gpus: 64,
                mix: Mix::Even,
                style: Style::Memory,
                load_percent,
            },
            arrived: 100,
            most_placed,
            planned,
            first_fit: Placed {
                gpus: 2 * fewest_gpus,
                ..planned
            },
        }
    }

    fn near(found: f64, wanted: f64) -> bool {
        (found - wanted).abs() < 1e-9
    }

    #[test]
    fn shares_are_of_sums_and_each_is_judged_by_what_it_placed() {
        let all = vec![
            solved(100, [98, 21, 20], 100),
            solved(100, [98, 21, 20], 60),
            solved(100, [50, 64, 64], 115),
        ];
        let report = Report::of(7, all, Vec::new()).unwrap();
        assert_eq!(
            (report.judged.instances, report.overloaded.instances),
            (2, 1)
        );
        assert!(near(report.judged.planned.placed_share, 0.98));
        assert!(near(report.judged.planned.extra_gpus_share, 0.05));
        assert!(near(report.judged.first_fit.extra_gpus_share, 1.0));
        assert!(near(report.overloaded.planned.placed_share, 0.5));
        // Two loads, and one of all else.
        assert_eq!(report.groups.len(), 7);
        assert_eq!(report.targets.len(), 3);
    }

    #[test]
    fn the_top_level_of_the_report_is_what_is_judged() {
        let all = vec![
            solved(100, [98, 21, 20], 100),
            solved(100, [50, 64, 64], 115),
        ];
        let report = Report::of(7, all, Vec::new()).unwrap();
        let report = serde_json::to_value(report).unwrap();
        let share = |of: &Value, name: &str| of[name].as_f64().unwrap();
        assert_eq!(report["instances"], json!(1));
        assert_eq!(report["judgedUpToPercent"], json!(100));
        assert!(near(share(&report, "placedShare"), 0.98), "{report}");
        assert!(near(share(&report, "extraGpusShare"), 0.05), "{report}");
        let first_fit = &report["firstFit"];
        assert!(near(share(first_fit, "placedShare"), 0.98), "{report}");
        assert!(near(share(first_fit, "extraGpusShare"), 1.0), "{report}");
        assert_eq!(report["areTargetsMet"], json!(true));
        let overloaded = &report["overloaded"];
        assert!(near(share(overloaded, "placedShare"), 0.5), "{report}");
        assert_eq!(report["cases"].as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn targets_are_met_up_to_their_limits_and_not_where_nothing_is_judged() {
        // Requests placed of 100, GPUs opened beside 20 that suffice, load; whether that is good enough.
        for (requests, gpus, load_percent, is_met) in [
            (100, 20, 100, true),
            (98, 21, 100, true),
            (97, 20, 100, false),
            (100, 22, 100, false),
            (100, 20, 115, false),
        ] {
            let one = solved(100, [requests, gpus, 20], load_percent);
            let report = Report::of(7, vec![one], Vec::new()).unwrap();
            let case = format!("{requests} of 100 on {gpus}, load {load_percent} %");
            assert_eq!(report.are_targets_met, is_met, "{case}");
            assert_eq!(report.ensure_targets_met().is_ok(), is_met, "{case}");
        }
    }

    #[test]
    fn nothing_is_met_where_too_few_of_what_is_judged_are_proved() {
        // Instances that were proved, and those that were not: of full load, and with more than there is. Whether that is enough.
        for (proved, unproved, overloaded, is_enough) in [
            (9, 1, 0, true),
            (9, 1, 50, true),
            (90, 10, 0, true),
            (89, 11, 0, false),
            (8, 1, 0, false),
            (1, 299, 0, false),
            (0, 1, 0, false),
        ] {
            let all = vec![solved(100, [100, 20, 20], 100); proved];
            let facts = |load_percent| solved(100, [100, 20, 20], load_percent).facts;
            let mut without = vec![facts(JUDGED_UP_TO_PERCENT); unproved];
            without.extend(vec![facts(JUDGED_UP_TO_PERCENT + 15); overloaded]);
            let report = Report::of(7, all, without).unwrap();
            let case = format!("{proved} proved, {unproved} not, {overloaded} of more load");
            assert_eq!(report.are_targets_met, is_enough, "{case}");
            let judged = report.ensure_targets_met();
            assert_eq!(judged.is_ok(), is_enough, "{case}");
        }
    }
}
