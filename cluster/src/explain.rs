//! From the engine's explanation to the stable reason.

use muster_api::{Reason, keys};
use muster_engine::Why;

use crate::formed::PendingReason;

/// The reason and the text of an engine explanation. `implied` is [`crate::formed::FormedGang::implied`]:
/// a reason that the gang can never start whole then says how to start its pods one by one.
pub fn explain(why: &Why, implied: bool) -> PendingReason {
    let reason = reason(why);
    let mut details = why.to_string();
    let is_final = matches!(
        reason,
        Reason::PlacementImpossible | Reason::ExceedsMaxQuota
    );
    if is_final && implied {
        details.push_str(
            "; it is a gang because it is an Indexed Job that runs all its ranks at once: ",
        );
        details.push_str(keys::GANG_SIZE);
        details.push_str(": \"1\" on the Job lets its pods start one by one");
    }
    PendingReason { reason, details }
}

fn reason(why: &Why) -> Reason {
    match why {
        Why::TeamStopped => Reason::TeamStopped,
        Why::CohortCycle { .. } => Reason::CohortCycle,
        Why::NextCommit | Why::BehindHead { .. } | Why::Quota { .. } => Reason::WaitingForQuota,
        Why::ExceedsMaxQuota { .. } => Reason::ExceedsMaxQuota,
        Why::NoQuotaForResource { .. } => Reason::NoQuotaForResource,
        Why::Placement { .. } => Reason::WaitingForPlacement,
        Why::PlacementImpossible { .. } => Reason::PlacementImpossible,
        Why::Release { .. } => Reason::WaitingForRelease,
        Why::ClaimShared { .. } => Reason::ClaimShared,
        Why::TooLarge { .. } => Reason::GangTooLarge,
        Why::Overflow => Reason::RequestNotUnderstood,
    }
}

#[cfg(test)]
mod tests {
    use muster_engine::{Amount, FlavorResource, Resource, decision::Blocker};

    use super::*;

    #[test]
    fn every_explanation_has_its_reason_and_keeps_the_numbers() {
        let of = || FlavorResource {
            flavor: "h100".into(),
            resource: Resource::Gpus,
        };
        let blocker = Blocker {
            gangs: vec!["ml/a".to_owned()],
            more: 2,
        };
        for (why, reason, named) in [
            (Why::TeamStopped, Reason::TeamStopped, "stopped"),
            (
                Why::CohortCycle {
                    cohort: "ring".into(),
                },
                Reason::CohortCycle,
                "ring",
            ),
            (
                Why::BehindHead {
                    head: "ml/big".to_owned(),
                },
                Reason::WaitingForQuota,
                "ml/big",
            ),
            (
                Why::Quota {
                    of: of(),
                    asked: Amount(16_000),
                    available: Amount(8000),
                    borrowable: Amount(0),
                    blocker: blocker.clone(),
                },
                Reason::WaitingForQuota,
                "16",
            ),
            (
                Why::ExceedsMaxQuota {
                    of: of(),
                    asked: Amount(32_000),
                    most: Amount(16_000),
                },
                Reason::ExceedsMaxQuota,
                "32",
            ),
            (
                Why::NoQuotaForResource {
                    resource: Resource::Gpus,
                    flavors: vec!["t4".into()],
                },
                Reason::NoQuotaForResource,
                "t4",
            ),
            (
                Why::Placement {
                    pods: 7,
                    fit: 3,
                    level: Some("leaf".into()),
                    nodes: 8,
                    excluded: vec![],
                    blocker: blocker.clone(),
                },
                Reason::WaitingForPlacement,
                "leaf",
            ),
            (
                Why::PlacementImpossible {
                    pods: 9,
                    fit: 4,
                    level: None,
                    nodes: 4,
                    excluded: vec![],
                },
                Reason::PlacementImpossible,
                "4 of 9",
            ),
            (
                Why::Release {
                    pods: 2,
                    blocker,
                    behind: None,
                },
                Reason::WaitingForRelease,
                "ml/a and 2 more",
            ),
            (
                Why::ClaimShared {
                    claim: "c-1".into(),
                    holder: "ml/a".to_owned(),
                },
                Reason::ClaimShared,
                "c-1",
            ),
            (Why::Overflow, Reason::RequestNotUnderstood, "large"),
        ] {
            let wait = explain(&why, false);
            assert_eq!(wait.reason, reason);
            assert!(wait.details.contains(named), "{}", wait.details);
        }
    }

    #[test]
    fn a_job_that_never_fits_whole_is_told_how_to_start_its_pods_one_by_one() {
        let why = Why::PlacementImpossible {
            pods: 9,
            fit: 4,
            level: None,
            nodes: 4,
            excluded: vec![],
        };
        assert!(
            explain(&why, true)
                .details
                .ends_with("muster.dev/gang-size: \"1\" on the Job lets its pods start one by one")
        );
        assert!(!explain(&why, false).details.contains("gang-size"));
        assert!(
            !explain(&Why::TeamStopped, true)
                .details
                .contains("gang-size"),
            "it may fit yet"
        );
    }
}
