//! Explanations in words: what is asked, what there is, who has it, in the units that users write.

use std::fmt;

use crate::{
    amount::{Amount, FlavorResource, Resource, ResourceCharge},
    decision::{Blocker, CommitRoom, HeadReservation, KeptForRecovery, OverQuota, Why},
    model::NodeBlock,
    names::{DeviceName, FlavorName, LevelName, Timestamp},
    quota::PreemptionReason,
    remedy::{Holder, NodeRepair, Order, Remedies, Remedy, RemedyEvent},
    state::Nowhere,
};

/// Most causes that a text names.
const CAUSES_NAMED: usize = 4;

/// Why a gang may not borrow ([`crate::Gang::may_borrow`]).
const BORROWS_NOTHING: &str = "a gang that nobody may preempt (its PriorityTier says preemption: Never, or it has none) \
                               borrows nothing";

/// Most gangs of which a text says that they have to end.
const ENDING_NAMED: usize = 3;

/// Most nodes, and most devices of each, of which a text says that they have to be repaired.
const REPAIRS_NAMED: usize = 3;

/// An amount of a resource: `16 GPUs`, `0.5 GPUs`, `64Gi of memory`, `12.5 cores`.
struct Quantity<'a>(&'a Resource, Amount);

/// An amount as a bare number, for where the unit was said already.
struct Number<'a>(&'a Resource, Amount);

impl fmt::Display for PreemptionReason {
    /// Says of the gang that the other one gives way to by what right: "..., whose Team ...".
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::InTeam => "which goes first in its Team",
            Self::Reclaimed => "whose Team has quota back that others borrowed",
            Self::FairShare => "whose Team has a smaller share",
            Self::ReclaimedWhileBorrowing => "which has the higher tier, while both Teams borrow",
        })
    }
}

impl fmt::Display for OverQuota {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            team,
            of: FlavorResource { flavor, resource },
            cohort,
            used,
            most,
        } = self;
        match cohort {
            None => write!(formatter, "Team {team} uses ")?,
            Some(cohort) => write!(
                formatter,
                "Cohort {cohort}, from which Team {team} borrows, uses "
            )?,
        }
        let (used, most) = (Quantity(resource, *used), Number(resource, *most));
        write!(
            formatter,
            "{used} of {flavor} where {most} may be used, and the Team says shrink: Evict"
        )
    }
}

impl fmt::Display for Quantity<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(resource, amount) = self;
        let number = Number(resource, *amount);
        match resource {
            Resource::Gpus if *amount == Amount::ONE_GPU => write!(formatter, "{number} GPU"),
            Resource::Gpus => write!(formatter, "{number} GPUs"),
            Resource::Vram => write!(formatter, "{number} of GPU memory"),
            Resource::Cpu if *amount == Amount(1000) => write!(formatter, "{number} core"),
            Resource::Cpu => write!(formatter, "{number} cores"),
            Resource::Memory => write!(formatter, "{number} of memory"),
            Resource::Extended(name) => write!(formatter, "{number} {name}"),
        }
    }
}

impl fmt::Display for Number<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(resource, Amount(amount)) = self;
        match resource {
            Resource::Gpus | Resource::Cpu => decimal(formatter, *amount, 1000),
            Resource::Vram | Resource::Memory => bytes(formatter, *amount),
            Resource::Extended(_) => write!(formatter, "{amount}"),
        }
    }
}

/// A fraction with at most three digits, none of them a trailing zero; rounded towards zero.
fn decimal(formatter: &mut fmt::Formatter<'_>, value: i64, unit: i64) -> fmt::Result {
    let sign = if value < 0 { "-" } else { "" };
    let (value, unit) = (value.unsigned_abs(), unit.unsigned_abs().max(1));
    let thousandths = u128::from(value % unit) * 1000 / u128::from(unit);
    write!(formatter, "{sign}{}", value / unit)?;
    if thousandths == 0 {
        return Ok(());
    }
    let digits = format!("{thousandths:03}");
    write!(formatter, ".{}", digits.trim_end_matches('0'))
}

/// Bytes in the largest binary unit that leaves at least one, as Kubernetes writes quantities.
fn bytes(formatter: &mut fmt::Formatter<'_>, value: i64) -> fmt::Result {
    const UNITS: [(&str, i64); 3] = [("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];
    let unit = UNITS
        .iter()
        .find(|(_, unit)| value.unsigned_abs() >= unit.unsigned_abs());
    match unit {
        Some((suffix, unit)) => {
            decimal(formatter, value, *unit)?;
            formatter.write_str(suffix)
        }
        None => write!(formatter, "{value}"),
    }
}

impl fmt::Display for Why {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NextCommit => {
                formatter.write_str("is about to be looked at, with the next commit")
            }
            Self::TeamStopped => {
                formatter.write_str("the Team is stopped; nothing is admitted until it is resumed")
            }
            Self::CohortCycle { cohort } => write!(
                formatter,
                "the Cohorts above the Team form a cycle through {cohort}; nothing below it is \
                 admitted until one of them has another parent"
            ),
            Self::BehindHead { head, flavor } => {
                formatter.write_str("waits ")?;
                if let Some(flavor) = flavor {
                    write!(formatter, "for {flavor} ")?;
                }
                write!(
                    formatter,
                    "behind {head}, which does not fit yet; the Team is StrictFifo"
                )
            }
            Self::Quota {
                of,
                asked,
                available,
                borrowable,
                may_borrow,
                blocker,
            } => {
                let FlavorResource { flavor, resource } = of;
                let borrowed = if *may_borrow {
                    Amount::ZERO
                } else {
                    *borrowable
                };
                write!(
                    formatter,
                    "asks for {} of {flavor}, {} can be had now",
                    Quantity(resource, *asked),
                    Number(resource, Amount(available.0.saturating_sub(borrowed.0)))
                )?;
                if borrowed > Amount::ZERO {
                    write!(
                        formatter,
                        "; {} more could be borrowed, but {BORROWS_NOTHING}",
                        Number(resource, borrowed)
                    )?;
                } else if *borrowable > Amount::ZERO {
                    write!(
                        formatter,
                        " ({} of them borrowed)",
                        Number(resource, *borrowable)
                    )?;
                }
                used_by(formatter, blocker)
            }
            Self::ExceedsMaxQuota {
                of,
                asked,
                most,
                may_borrow: false,
            } => write!(
                formatter,
                "asks for {} of {}, but the Team has no more than {} of its own, and {BORROWS_NOTHING}; ask for less, use another \
                 tier, or have the Team's quota raised",
                Quantity(&of.resource, *asked),
                of.flavor,
                Number(&of.resource, *most)
            ),
            Self::ExceedsMaxQuota {
                of,
                asked,
                most,
                may_borrow: true,
            } => write!(
                formatter,
                "asks for {} of {}, but the Team can never have more than {}, borrowing included; \
                 ask for less, or have the Team's quota raised",
                Quantity(&of.resource, *asked),
                of.flavor,
                Number(&of.resource, *most)
            ),
            Self::NoQuotaForResource { resource, flavors } => {
                write!(formatter, "the Team has no quota for {resource}")?;
                if flavors.is_empty() {
                    return formatter.write_str(" nor for anything else");
                }
                let flavors: Vec<&str> = flavors.iter().map(FlavorName::as_str).collect();
                write!(
                    formatter,
                    "; none of its Flavors names it ({})",
                    flavors.join(", ")
                )
            }
            Self::Placement {
                pods,
                fit,
                is_fit_partial,
                gave_up,
                level,
                nodes,
                excluded,
                blocker,
            } => {
                if *gave_up {
                    write!(
                        formatter,
                        "quota is there, but the search for a place met its bound before it had tried every way; it found \
                         places for {fit} of {pods} pods. A gang whose pods differ less is easier to place"
                    )?;
                } else {
                    let room = Room {
                        pods: *pods,
                        fit: *fit,
                        is_partial: *is_fit_partial,
                        level: level.as_ref(),
                    };
                    write!(formatter, "quota is there, but {room}")?;
                }
                left_out(formatter, *nodes, excluded)?;
                used_by(formatter, blocker)
            }
            Self::PlacementImpossible {
                pods,
                fit,
                is_fit_partial,
                level,
                nodes,
                excluded,
            } => {
                let room = Room {
                    pods: *pods,
                    fit: *fit,
                    is_partial: *is_fit_partial,
                    level: level.as_ref(),
                };
                write!(formatter, "even on the empty cluster {room}")?;
                left_out(formatter, *nodes, excluded)
            }
            Self::Release {
                pods,
                blocker,
                behind,
            } => {
                write!(
                    formatter,
                    "waits until the devices of {pods} {} are proved released; held by {blocker}",
                    if *pods == 1 { "pod" } else { "pods" }
                )?;
                match behind {
                    Some(first) => write!(formatter, "; {first} goes first"),
                    None => Ok(()),
                }
            }
            Self::Preemption { victims } => write!(
                formatter,
                "{victims} {} way to it; it is admitted once their devices are proved released",
                if victims.gangs.len() + victims.more == 1 {
                    "gives"
                } else {
                    "give"
                }
            ),
            Self::PlaceKept { reservation, now } => place_kept(formatter, reservation, *now),
            Self::HeldOff { behind, seconds } => {
                write!(
                    formatter,
                    "its place is kept for {behind}, which waits for long"
                )?;
                match seconds.map(|seconds| seconds / 60 * 60) {
                    Some(most) if most > 0 => write!(
                        formatter,
                        "; with a max-runtime-seconds of at most {most} it would be let in until then"
                    ),
                    _ => formatter.write_str("; nobody knows how soon"),
                }
            }
            Self::Recovering { kept, now } => recovering(formatter, kept, *now),
            Self::ClaimShared { claim, holder } => {
                write!(
                    formatter,
                    "its ResourceClaim with UID {claim} is held by {holder}"
                )
            }
            Self::TooLarge { needs, most } => write!(
                formatter,
                "one commit carries at most {}, the gang needs {}; split it",
                Size(most),
                Size(needs)
            ),
            Self::Overflow => formatter
                .write_str("a number that it asks for or is judged by is too large to be counted"),
        }
    }
}

/// What is kept for a gang that recovers, and what it lacks.
fn recovering(
    formatter: &mut fmt::Formatter<'_>,
    kept: &KeptForRecovery,
    now: Timestamp,
) -> fmt::Result {
    let KeptForRecovery {
        attempt,
        until,
        pods,
        charged,
        placed,
    } = kept;
    let seconds = until.0.saturating_sub(now.0).max(0);
    write!(
        formatter,
        "it recovers from attempt {attempt}, of which the quota of {charged} and the place of {placed} of {pods} pods are kept for it, for \
         {seconds} s more at most; besides these there is no room"
    )?;
    if placed < pods {
        formatter.write_str(" for what it lost")?;
    }
    Ok(())
}

fn place_kept(
    formatter: &mut fmt::Formatter<'_>,
    kept: &HeadReservation,
    now: Timestamp,
) -> fmt::Result {
    let count = kept.nodes.len();
    let nodes = if count == 1 { "node" } else { "nodes" };
    write!(formatter, "{count} {nodes} of {}", kept.flavor)?;
    if !kept.domain.is_empty() {
        write!(formatter, " in {}", kept.domain.join("/"))?;
    }
    let minutes = |seconds: i64| Minutes(seconds.max(0));
    let since = minutes(now.0.saturating_sub(kept.since.0));
    write!(
        formatter,
        ", where it fits soonest, are kept for it for {since} now"
    )?;
    match kept.starts_at {
        Some(at) => {
            let within = minutes(at.0.saturating_sub(now.0));
            write!(formatter, "; who runs there ends within {within}")?;
        }
        None => formatter.write_str("; when who runs there ends is not known")?,
    }
    write!(
        formatter,
        "; {} stood idle for that",
        GpuHours(kept.idle_gpu_seconds)
    )?;
    match kept.most_idle_gpu_seconds {
        Some(most) => write!(formatter, ", of {} at most", GpuHours(most)),
        None => Ok(()),
    }
}

/// A time in whole minutes, rounded up: `1 minute`, `12 minutes`.
struct Minutes(i64);

impl fmt::Display for Minutes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 / 60 + i64::from(self.0 % 60 > 0) {
            1 => formatter.write_str("1 minute"),
            minutes => write!(formatter, "{minutes} minutes"),
        }
    }
}

/// Thousandths of a GPU times seconds, in hours of a GPU.
struct GpuHours(i128);

impl fmt::Display for GpuHours {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = i64::try_from(self.0).unwrap_or(i64::MAX);
        decimal(formatter, value, 1000 * 3600)?;
        formatter.write_str(" GPU hours")
    }
}

/// What a commit carries or a gang needs, as far as it is bounded or known.
struct Size<'a>(&'a CommitRoom);

impl fmt::Display for Size<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CommitRoom {
            gangs,
            pods,
            claims,
            nodes,
        } = *self.0;
        let parts = [
            (gangs, "gangs"),
            (pods, "pods"),
            (claims, "claims"),
            (nodes, "nodes"),
        ];
        let mut comma = "";
        for (count, what) in parts {
            if count != usize::MAX && (what != "gangs" || count != 1) {
                write!(formatter, "{comma}{count} {what}")?;
                comma = ", ";
            }
        }
        Ok(())
    }
}

/// How many of some pods fit, in one domain of which level.
struct Room<'a> {
    pods: usize,
    fit: usize,
    /// Whether more of them may fit, though not all.
    is_partial: bool,
    level: Option<&'a LevelName>,
}

impl fmt::Display for Room<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pods,
            fit,
            is_partial,
            level,
        } = self;
        match (pods, fit, is_partial) {
            (1, ..) => formatter.write_str("there is no place for its pod")?,
            (_, 0, false) => write!(formatter, "there is no place for any of {pods} pods")?,
            (_, _, false) => write!(formatter, "there is a place for only {fit} of {pods} pods")?,
            (_, _, true) => write!(
                formatter,
                "there is no place for all {pods} pods; the count met its bound when it had found places for {fit}"
            )?,
        }
        match level {
            Some(level) => write!(formatter, " in one domain of level {level}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Nowhere {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pods,
            fit,
            is_fit_partial,
            gave_up,
            level,
            nodes,
            excluded,
        } = self;
        let room = Room {
            pods: *pods,
            fit: *fit,
            is_partial: *is_fit_partial || *gave_up,
            level: level.as_ref(),
        };
        write!(formatter, "{room}")?;
        left_out(formatter, *nodes, excluded)
    }
}

fn left_out(
    formatter: &mut fmt::Formatter<'_>,
    nodes: usize,
    excluded: &[(String, usize)],
) -> fmt::Result {
    write!(formatter, "; of {nodes} nodes")?;
    if excluded.is_empty() {
        return formatter.write_str(" none is left out, but they do not hold all pods together");
    }
    formatter.write_str(" left out: ")?;
    for (at, (cause, count)) in excluded.iter().take(CAUSES_NAMED).enumerate() {
        let comma = if at > 0 { ", " } else { "" };
        write!(formatter, "{comma}{cause}: {count}")?;
    }
    let further: usize = excluded
        .iter()
        .skip(CAUSES_NAMED)
        .map(|(_, count)| count)
        .sum();
    if further > 0 {
        write!(formatter, ", other: {further}")?;
    }
    Ok(())
}

fn used_by(formatter: &mut fmt::Formatter<'_>, blocker: &Blocker) -> fmt::Result {
    if blocker.gangs.is_empty() {
        return Ok(());
    }
    write!(formatter, "; used by {blocker}")
}

impl fmt::Display for Remedies {
    /// "it is admitted once ..., or once ..."; empty if nothing was found.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, remedy) in self.each.iter().enumerate() {
            let begin = if at == 0 {
                "as things are, it is admitted"
            } else {
                ", or"
            };
            write!(formatter, "{begin} once {remedy}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.event)?;
        match &self.order {
            Order::Itself => Ok(()),
            Order::After(first) => write!(formatter, " (after {first}, which goes first)"),
            Order::Open => formatter.write_str(" (unless others go first)"),
        }
    }
}

impl fmt::Display for RemedyEvent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GangsEnd(gangs) => {
                let named = gangs.len().min(ENDING_NAMED);
                let more = gangs.len() - named;
                for (at, holder) in gangs.iter().take(named).enumerate() {
                    let comma = match at {
                        0 => "",
                        _ if at + 1 == named && more == 0 => " and ",
                        _ => ", ",
                    };
                    write!(formatter, "{comma}{holder}")?;
                }
                match (gangs.len(), more) {
                    (1, _) => formatter.write_str(" ends"),
                    (_, 0) => formatter.write_str(" end"),
                    (_, more) => write!(formatter, " and {more} more gangs end"),
                }
            }
            Self::QuotaRaised(by) => {
                formatter.write_str("the Team's nominal quota is raised by ")?;
                for (at, more) in by.iter().enumerate() {
                    let comma = if at > 0 { ", " } else { "" };
                    let quantity = Quantity(&more.of.resource, more.amount);
                    write!(formatter, "{comma}{quantity} of {}", more.of.flavor)?;
                }
                Ok(())
            }
            Self::Repaired(nodes) => {
                let named = nodes.len().min(REPAIRS_NAMED);
                for (at, repair) in nodes.iter().take(named).enumerate() {
                    let comma = match at {
                        0 => "",
                        _ if at + 1 == nodes.len() => " and ",
                        _ => ", ",
                    };
                    write!(formatter, "{comma}{repair}")?;
                }
                match nodes.len() - named {
                    0 => Ok(()),
                    1 => formatter.write_str(" and 1 more node is all right"),
                    more => write!(formatter, " and {more} more nodes are all right"),
                }
            }
        }
    }
}

impl fmt::Display for NodeRepair {
    /// "node n2, which is cordoned, is schedulable and 2 of its devices are healthy (gpu-0, gpu-3)".
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            node,
            block,
            devices,
        } = self;
        if let Some(block) = block {
            let now = match block {
                NodeBlock::Cordoned => "which is cordoned",
                NodeBlock::Drained => "which is drained by hand",
                NodeBlock::NotReady => "which is not Ready",
                NodeBlock::Lost => "which is lost",
                NodeBlock::SlicesMissing => "whose ResourceSlices are missing",
                NodeBlock::DriverSilent => "whose driver has not answered yet",
            };
            write!(formatter, "node {node}, {now}, is schedulable")?;
        }
        let of = match (block, devices.len()) {
            (_, 0) => return Ok(()),
            (Some(_), 1) => " and 1 of its devices is healthy".to_owned(),
            (Some(_), count) => format!(" and {count} of its devices are healthy"),
            (None, 1) => format!("1 device of node {node} is healthy"),
            (None, count) => format!("{count} devices of node {node} are healthy"),
        };
        // Driver and pool stand before the name.
        let short = |device: &DeviceName| {
            let name = device.as_str();
            name.rsplit('/').next().unwrap_or(name).to_owned()
        };
        let names: Vec<String> = devices.iter().take(REPAIRS_NAMED).map(short).collect();
        let more = if devices.len() > names.len() {
            ", …"
        } else {
            ""
        };
        write!(formatter, "{of} ({}{more})", names.join(", "))
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} of Team {}", self.name, self.team)?;
        match &self.holds {
            Some(ResourceCharge { of, amount }) => {
                let quantity = Quantity(&of.resource, *amount);
                write!(formatter, " ({quantity} of {})", of.flavor)
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_causes_are_named_and_the_others_counted() {
        let told = |causes: usize| {
            let causes = (0..causes).map(|at| (format!("cause {at}"), 10 - at));
            let why = Why::PlacementImpossible {
                pods: 2,
                fit: 1,
                is_fit_partial: false,
                level: None,
                nodes: 50,
                excluded: causes.collect(),
            };
            why.to_string()
        };
        let last = format!("cause {}", CAUSES_NAMED - 1);
        let (all, more) = (told(CAUSES_NAMED), told(CAUSES_NAMED + 2));
        assert!(all.contains(&last) && !all.contains("other"), "{all}");
        // The fifth was on six nodes, the sixth on five.
        assert!(
            more.contains(&last) && more.ends_with("other: 11"),
            "{more}"
        );
    }

    #[test]
    fn a_count_that_met_its_bound_does_not_speak_of_only() {
        let told = |fit, is_partial| {
            let room = Room {
                pods: 9,
                fit,
                is_partial,
                level: None,
            };
            room.to_string()
        };
        assert_eq!(told(4, false), "there is a place for only 4 of 9 pods");
        assert_eq!(told(0, false), "there is no place for any of 9 pods");
        for fit in [0, 4] {
            let text = told(fit, true);
            assert!(
                text.contains("met its bound") && text.ends_with(&fit.to_string()),
                "{text}"
            );
        }
    }
}
