//! The conditions of Teams, Cohorts and Flavors: whether they take part at all, and what they name in vain; and of PriorityTiers.
//!
//! Texts carry no number that moves with use, so that a condition is written when it changes and not with every admission.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use muster_api::{Flavor, PriorityTier, Reason, Team, conditions as condition_types, team::Stop};
use muster_cluster::{
    flavor::{Counts, Scope},
    index::References,
    text::{self, listed},
};

use super::conditions::{self, ConditionUpdate};
use crate::poll_context::PollContext;

/// What a condition says, and why.
type Verdict = (bool, Reason, String);

/// Of which object conditions are written: its generation, and what stands in its status.
pub(super) struct Stands<'a> {
    pub(super) generation: Option<i64>,
    pub(super) conditions: Option<&'a Vec<Condition>>,
}

/// The conditions of a Team.
pub(super) fn of_team(
    context: PollContext<'_>,
    team: &Team,
    references: &References,
) -> Vec<Condition> {
    let stands = Stands {
        generation: team.metadata.generation,
        conditions: team.status.as_ref().map(|status| &status.conditions),
    };
    let is_without_flavor = !references.has_flavor && !references.missing_flavors.is_empty();
    let stopped = |what| (false, Reason::TeamStopped, format!("stop is {what}"));
    let active = match team.spec.stop {
        Stop::Hold => stopped("Hold: no gang is admitted, and admitted ones stay"),
        Stop::HoldAndDrain => {
            stopped("HoldAndDrain: no gang is admitted, and admitted ones are evicted")
        }
        Stop::None if !references.cycle.is_empty() => in_cycle(&references.cycle),
        Stop::None if is_without_flavor => (
            false,
            Reason::FlavorNotFound,
            format!(
                "of the Flavors of its quota none exists: {}",
                names(&references.missing_flavors)
            ),
        ),
        Stop::None => ready("its gangs may be admitted"),
    };
    written(context, &stands, active, resolved(references))
}

/// The conditions of a Cohort.
pub(super) fn of_cohort(
    context: PollContext<'_>,
    stands: &Stands<'_>,
    references: &References,
) -> Vec<Condition> {
    let active = if references.cycle.is_empty() {
        ready("its members share what they have")
    } else {
        in_cycle(&references.cycle)
    };
    written(context, stands, active, resolved(references))
}

/// The conditions of a Flavor that counts so many devices.
pub(super) fn of_flavor(
    context: PollContext<'_>,
    flavor: &Flavor,
    devices: usize,
    references: &References,
) -> Vec<Condition> {
    let stands = Stands {
        generation: flavor.metadata.generation,
        conditions: flavor.status.as_ref().map(|status| &status.conditions),
    };
    let active = if devices > 0 {
        ready("it counts devices")
    } else if references.faults.is_empty() {
        (false, Reason::NoDevices, looked_for(flavor))
    } else {
        (false, Reason::InvalidValue, references.faults.join("; "))
    };
    written(context, &stands, active, resolved(references))
}

/// The condition of a PriorityTier: whether it is the cluster's default.
pub(super) fn of_tier(context: PollContext<'_>, name: &str, tier: &PriorityTier) -> Vec<Condition> {
    let (holds, reason, message) = match context.index.default_tier() {
        Some(default) if default == name => {
            ready("gangs get it that name no tier, unless their Team has a default of its own")
        }
        Some(default) if tier.spec.default => not_default(format!(
            "PriorityTier {default} has default set, too, and comes first: of several the one of the highest value does, then the first by name"
        )),
        Some(default) => not_default(format!("PriorityTier {default} is the default")),
        None => not_default("no PriorityTier has default set".to_owned()),
    };
    let says = ConditionUpdate {
        type_: condition_types::DEFAULT,
        holds,
        reason: reason.as_str(),
        message,
    };
    let mut conditions = tier.status.clone().unwrap_or_default().conditions;
    let generation = tier.metadata.generation.unwrap_or_default();
    conditions::set(&mut conditions, says, generation, context.now.wall);
    conditions
}

fn not_default(says: String) -> Verdict {
    (false, Reason::NotDefault, says)
}

fn ready(says: &str) -> Verdict {
    (true, Reason::Ready, says.to_owned())
}

fn in_cycle(cycle: &[String]) -> Verdict {
    let way = cycle.iter().chain(cycle.first()).map(String::as_str);
    let way: Vec<&str> = way.collect();
    let says = format!(
        "the Cohorts form a cycle, and no gang of a Team below one of them is admitted: {}; give one of them another parent",
        text::way(&way)
    );
    (false, Reason::CohortCycle, says)
}

fn looked_for(flavor: &Flavor) -> String {
    let labels = flavor.spec.node_selector.iter();
    let labels: Vec<String> = labels
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let on = if labels.is_empty() {
        String::new()
    } else {
        format!(" with {}", listed(labels.iter().map(String::as_str)))
    };
    match Scope::of(&flavor.spec).counts {
        Counts::Devices { driver, selector } => {
            let matching = selector.map_or("", |_| " that matches its selector");
            format!("no node{on} has a device of driver {driver}{matching}")
        }
        Counts::Resource(name) => format!("no node{on} has any {name} in status.allocatable"),
    }
}

/// Whether all that is named exists and is understood. The gravest reason comes first; the text has all of them.
fn resolved(references: &References) -> Verdict {
    let mut missing: Vec<(Reason, String)> = Vec::new();
    if !references.missing_flavors.is_empty() {
        let flavors = names(&references.missing_flavors);
        let says = format!("its quota of Flavors that do not exist grants nothing: {flavors}");
        missing.push((Reason::FlavorNotFound, says));
    }
    if !references.faults.is_empty() {
        let says = format!("not understood: {}", references.faults.join("; "));
        missing.push((Reason::InvalidValue, says));
    }
    if !references.missing_tiers.is_empty() {
        let tiers = names(&references.missing_tiers);
        let says = format!("gangs that get a PriorityTier that does not exist wait: {tiers}");
        missing.push((Reason::TierNotFound, says));
    }
    if let Some(topology) = &references.missing_topology {
        let says = format!(
            "there is no Topology {topology}: gangs are placed as if all nodes were connected alike"
        );
        missing.push((Reason::TopologyNotFound, says));
    }
    if let Some(cohort) = &references.missing_cohort {
        let says =
            format!("there is no Cohort {cohort}: it counts as one without quota of its own");
        missing.push((Reason::CohortNotFound, says));
    }
    let Some((reason, _)) = missing.first() else {
        return ready("all that it names exists");
    };
    let reason = *reason;
    let texts: Vec<String> = missing.into_iter().map(|(_, says)| says).collect();
    (false, reason, texts.join("; "))
}

fn names<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    listed(names.into_iter().map(String::as_str))
}

fn written(
    context: PollContext<'_>,
    stands: &Stands<'_>,
    active: Verdict,
    resolved: Verdict,
) -> Vec<Condition> {
    let mut conditions = stands.conditions.cloned().unwrap_or_default();
    let generation = stands.generation.unwrap_or_default();
    for (type_, (holds, reason, message)) in [
        (condition_types::ACTIVE, active),
        (condition_types::RESOLVED_REFS, resolved),
    ] {
        let says = ConditionUpdate {
            type_,
            holds,
            reason: reason.as_str(),
            message,
        };
        conditions::set(&mut conditions, says, generation, context.now.wall);
    }
    conditions
}
