//! How well slices are packed: `cargo xtask bench mig`.
//!
//! Random clusters and requests ([`instance`]) go to three who decide: Muster's planner, with the driver's order of devices and kube-scheduler's
//! allocator on the node that was planned ([`planner`], [`first_fit`]); kube-scheduler alone, first fit by name; and whoever knows all
//! requests beforehand ([`optimum`]). All have the same requests in the same order, and nothing ends.
//!
//! The slices are those that the driver publishes ([`fleet`]), what is asked for is read as the controller reads it ([`ask`]), and
//! what is given out is made by the rules of the hardware at the end ([`packings`]).
//!
//! Without departures the driver moves no GPU: first fit cuts GPUs in the order in which they stand, so those that are cut stand first all the time.

mod ask;
mod card;
mod first_fit;
mod fleet;
mod instance;
mod optimum;
mod packings;
mod planner;
mod report;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};

use crate::{progress::Progress, report::write};
use instance::{Facts, Instance};
use optimum::{Optimum, Proof};
use packings::Cuts;
use planner::{Outcome, first_fit, planned};
use report::{Placed, Report, Solved};

/// What one question for the optimum may take.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// How well slices are packed, beside the optimum and first fit.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Random instances.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    instances: u64,
    /// Seed of the first; the others follow.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Writes what was measured as JSON, also if the targets are not met.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let (first, count) = (arguments.seed, arguments.instances);
    let mut progress = Progress::of(&format!("{count} instances from seed {first} on"));
    let mut cuts = Cuts::default();
    let mut solved = Vec::new();
    let mut unproved = Vec::new();
    for seed in (0..count).map(|offset| first.wrapping_add(offset)) {
        match measure(seed, &mut cuts, TIME_LIMIT)? {
            Measured::Solved(one) => {
                progress.tick(|| one.facts.to_string());
                solved.push(*one);
            }
            Measured::Unproved(facts) => {
                progress.say(&format!("{facts}: no optimum was proved"));
                unproved.push(facts);
            }
        }
    }
    let report = Report::of(first, solved, unproved)?;
    report.print();
    write(&report, arguments.report.as_deref())?;
    report.ensure_targets_met()
}

/// What came of one instance.
enum Measured {
    Solved(Box<Solved>),
    /// One of the questions for the optimum was not answered in time.
    Unproved(Facts),
}

fn measure(seed: u64, cuts: &mut Cuts, time_limit: Duration) -> Result<Measured> {
    let instance = Instance::new(seed)?;
    let optimum = Optimum::of(&instance.fleet, cuts, time_limit)?;
    compare(&instance, &optimum).with_context(|| instance.facts.to_string())
}

fn compare(instance: &Instance, optimum: &Optimum) -> Result<Measured> {
    let (fleet, arrivals) = (&instance.fleet, &instance.arrivals);
    let unproved = || Measured::Unproved(instance.facts.clone());
    let planned = planned(fleet, arrivals)?;
    let first_fit = first_fit(fleet, arrivals)?;
    let Proof::Optimal(most_placed) = optimum.most_placed(&instance.asked())? else {
        return Ok(unproved());
    };
    let Some(planned) = beside(optimum, most_placed, &planned)? else {
        return Ok(unproved());
    };
    let Some(first_fit) = beside(optimum, most_placed, &first_fit)? else {
        return Ok(unproved());
    };
    Ok(Measured::Solved(Box::new(Solved {
        facts: instance.facts.clone(),
        arrived: u32::try_from(arrivals.len())?,
        most_placed,
        planned,
        first_fit,
    })))
}

/// What somebody made of an instance, beside the optimum for the same requests. `None`: that was not proved.
fn beside(optimum: &Optimum, most_placed: u32, outcome: &Outcome) -> Result<Option<Placed>> {
    let Proof::Optimal(fewest_gpus) = optimum.fewest_gpus(&outcome.placed)? else {
        return Ok(None);
    };
    let placed = Placed {
        requests: outcome.all_placed(),
        gpus: u32::try_from(outcome.opened)?,
        fewest_gpus,
    };
    // The hardware makes what was given out, so this would be an error of the optimum.
    ensure!(
        placed.requests <= most_placed && placed.gpus >= fewest_gpus,
        "better than the optimum: {placed:?} of {most_placed}"
    );
    Ok(Some(placed))
}

#[cfg(test)]
mod tests {
    use super::{report::Summary, *};

    /// Each mix on each cluster.
    const SAMPLE: u64 = 25;
    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn packing_is_near_the_optimum_and_opens_no_more_gpus_than_first_fit() {
        let mut cuts = Cuts::default();
        let mut solved = Vec::new();
        for seed in 0..SAMPLE {
            match measure(seed, &mut cuts, LIMIT).unwrap() {
                Measured::Solved(one) => solved.push(*one),
                Measured::Unproved(facts) => eprintln!("{facts}: no optimum was proved"),
            }
        }
        // Without proofs everything would pass. Here those of more load count as well.
        let proved = solved.len() as u64;
        assert!(proved * 10 >= SAMPLE * 9, "{proved} of {SAMPLE} are proved");
        let judged: Vec<&Solved> = solved
            .iter()
            .filter(|one| one.facts.load_percent <= instance::JUDGED_UP_TO_PERCENT)
            .collect();
        let summary = Summary::of("sample", &judged);
        for target in summary.targets() {
            assert!(target.is_met, "{target}: {summary:?}");
        }
        let (ours, other) = (summary.planned, summary.first_fit);
        assert!(
            ours.extra_gpus_share <= other.extra_gpus_share,
            "{summary:?}"
        );
    }
}
