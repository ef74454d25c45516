//! From the engine's explanation to the stable reason.

use muster_api::{Reason, keys};
use muster_engine::{Remedies, Why};

use crate::{
    formed::{DETAILS_BYTES, PendingReason},
    text,
};

/// What an explanation is told with, besides what the engine says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Circumstances<'a> {
    /// Whether several pods are a gang by the shape of their Job alone ([`crate::formed::FormedGang::implied`]): a reason that the gang
    /// can never start whole then says how to start its pods one by one.
    pub is_implied_gang: bool,
    /// With how many pods it may start at the least, and how many it has, if these are more: what is told is about the former.
    pub least_of: Option<(i32, usize)>,
    /// [`crate::formed::FormedGang::unmodelled`]: named where there is no place ([`name_unmodelled`]).
    pub unmodelled: &'a [String],
    /// [`crate::index::Index::faults_of_team`]: named where quota is the reason, since a limit that is not understood grants nothing.
    pub faults: &'a [String],
    /// The pod that a Deployment keeps until the one that waits runs ([`crate::index::Index::elder_of_deployment`]): named where the
    /// other one may wait for what it has.
    pub elder: Option<&'a str>,
    /// What would have it admitted.
    pub remedies: Option<&'a Remedies>,
}

/// The reason and the text of an engine explanation.
pub fn explain(why: &Why, circumstances: Circumstances<'_>) -> PendingReason {
    let reason = reason(why);
    let mut details = why.to_string();
    let is_final = matches!(
        reason,
        Reason::PlacementImpossible | Reason::ExceedsMaxQuota
    );
    if is_final && circumstances.is_implied_gang {
        details.push_str(
            "; it is a gang because it is an Indexed Job that runs all its ranks at once: ",
        );
        details.push_str(keys::GANG_SIZE);
        details.push_str(": \"1\" on the Job lets its pods start one by one");
    }
    if let Some((least, all)) = circumstances.least_of {
        details.push_str(&format!(
            "; that is about {least} of its {all} pods: by {} it starts with as few",
            keys::MIN_COUNT
        ));
    }
    let of_quota = matches!(
        reason,
        Reason::WaitingForQuota | Reason::ExceedsMaxQuota | Reason::NoQuotaForResource
    );
    let of_placement = matches!(
        reason,
        Reason::WaitingForPlacement | Reason::PlacementImpossible
    );
    if of_quota && !circumstances.faults.is_empty() {
        details.push_str("; not understood, so nothing is granted by it: ");
        details.push_str(&circumstances.faults.join("; "));
    }
    if of_placement {
        name_unmodelled(&mut details, circumstances.unmodelled);
    }
    if let (Some(elder), Reason::WaitingForQuota | Reason::WaitingForPlacement) =
        (circumstances.elder, reason)
    {
        name_elder(&mut details, elder);
    }
    if let Some(remedies) = circumstances.remedies.filter(|it| !it.each.is_empty()) {
        details.push_str("; ");
        details.push_str(&remedies.to_string());
    }
    text::truncate(&mut details, DETAILS_BYTES);
    PendingReason { reason, details }
}

/// Names in the text that a waiting pod is told the one that its Deployment keeps until it runs
/// ([`crate::index::Index::elder_of_deployment`]), and what ends that one first.
pub fn name_elder(text: &mut String, elder: &str) {
    text.push_str("; pod ");
    text.push_str(elder);
    text.push_str(
        " of the same Deployment may keep what it has until this one runs: strategy Recreate, or RollingUpdate with \
         maxSurge 0, ends it first",
    );
}

/// Names in a text what a gang asks for and no plan looks at ([`crate::formed::FormedGang::unmodelled`]): a node that looks
/// free may refuse its pods because of it.
pub fn name_unmodelled(text: &mut String, unmodelled: &[String]) {
    if !unmodelled.is_empty() {
        text.push_str("; not planned for: ");
        text.push_str(&unmodelled.join("; "));
    }
}

fn reason(why: &Why) -> Reason {
    match why {
        Why::TeamStopped => Reason::TeamStopped,
        Why::CohortCycle { .. } => Reason::CohortCycle,
        Why::NextCommit | Why::BehindHead { .. } | Why::Quota { .. } => Reason::WaitingForQuota,
        Why::ExceedsMaxQuota { .. } => Reason::ExceedsMaxQuota,
        Why::NoQuotaForResource { .. } => Reason::NoQuotaForResource,
        Why::Placement { .. }
        | Why::PlaceKept { .. }
        | Why::HeldOff { .. }
        | Why::Recovering { .. } => Reason::WaitingForPlacement,
        Why::PlacementImpossible { .. } => Reason::PlacementImpossible,
        Why::Release { .. } | Why::Preemption { .. } => Reason::WaitingForRelease,
        Why::ClaimShared { .. } => Reason::ClaimShared,
        Why::TooLarge { .. } => Reason::GangTooLarge,
        Why::Overflow => Reason::RequestNotUnderstood,
    }
}

#[cfg(test)]
mod tests {
    use muster_engine::{
        Amount, FlavorResource, Holder, KeptForRecovery, Order, Remedy, RemedyEvent, Resource,
        Timestamp, decision::Blocker,
    };

    use super::*;

    #[test]
    fn what_would_help_stands_behind_the_reason() {
        let remedies = Remedies {
            each: vec![Remedy {
                event: RemedyEvent::GangsEnd(vec![Holder {
                    gang: "a".into(),
                    name: "ml/a".to_owned(),
                    team: "research".into(),
                    holds: None,
                }]),
                order: Order::After("ml/b".to_owned()),
            }],
            gave_up: true,
        };
        let told = |remedies| {
            let circumstances = Circumstances {
                remedies,
                ..Circumstances::default()
            };
            explain(&Why::Overflow, circumstances).details
        };
        let alone = told(None);
        let nothing = Remedies::default();
        assert_eq!(told(Some(&nothing)), alone);
        assert_eq!(
            told(Some(&remedies)),
            format!(
                "{alone}; as things are, it is admitted once ml/a of Team research ends (after ml/b, which goes first)"
            )
        );
    }

    #[test]
    fn every_explanation_has_its_reason_and_keeps_the_numbers() {
        let of = || FlavorResource {
            flavor: "h100".into(),
            resource: Resource::Gpus,
        };
        let blocker = Blocker {
            gangs: vec!["ml/a".to_owned()],
            more: 2,
            is_partial: false,
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
                    flavor: Some("h100".into()),
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
                    may_borrow: true,
                    blocker: blocker.clone(),
                },
                Reason::WaitingForQuota,
                "16",
            ),
            (
                Why::Recovering {
                    kept: KeptForRecovery {
                        attempt: 1,
                        until: Timestamp(600),
                        pods: 4,
                        charged: 4,
                        placed: 3,
                    },
                    now: Timestamp(60),
                },
                Reason::WaitingForPlacement,
                "540 s",
            ),
            (
                Why::ExceedsMaxQuota {
                    of: of(),
                    asked: Amount(32_000),
                    most: Amount(16_000),
                    may_borrow: true,
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
                    is_fit_partial: false,
                    gave_up: false,
                    level: Some("leaf".into()),
                    nodes: 8,
                    excluded: vec![],
                    blocker: blocker.clone(),
                },
                Reason::WaitingForPlacement,
                "leaf",
            ),
            (
                Why::Placement {
                    pods: 17,
                    fit: 16,
                    is_fit_partial: true,
                    gave_up: true,
                    level: None,
                    nodes: 8,
                    excluded: vec![],
                    blocker: blocker.clone(),
                },
                Reason::WaitingForPlacement,
                "the search for a place met its bound",
            ),
            (
                Why::PlacementImpossible {
                    pods: 9,
                    fit: 4,
                    is_fit_partial: false,
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
                Why::Preemption {
                    victims: Blocker {
                        gangs: vec!["ml/b".to_owned()],
                        ..Blocker::default()
                    },
                },
                Reason::WaitingForRelease,
                "ml/b gives way",
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
            let wait = explain(&why, Circumstances::default());
            assert_eq!(wait.reason, reason);
            assert!(wait.details.contains(named), "{}", wait.details);
        }
    }

    #[test]
    fn a_gang_that_may_start_with_fewer_pods_is_told_how_few_would_start() {
        let told = |least_of| {
            let circumstances = Circumstances {
                least_of,
                ..Circumstances::default()
            };
            explain(&Why::TeamStopped, circumstances).details
        };
        let alone = told(None);
        assert_eq!(
            told(Some((2, 6))),
            format!(
                "{alone}; that is about 2 of its 6 pods: by muster.dev/min-count it starts with as few"
            )
        );
    }

    #[test]
    fn a_job_that_never_fits_whole_is_told_how_to_start_its_pods_one_by_one() {
        let implied = Circumstances {
            is_implied_gang: true,
            ..Circumstances::default()
        };
        let why = Why::PlacementImpossible {
            pods: 9,
            fit: 4,
            is_fit_partial: false,
            level: None,
            nodes: 4,
            excluded: vec![],
        };
        assert!(
            explain(&why, implied)
                .details
                .ends_with("muster.dev/gang-size: \"1\" on the Job lets its pods start one by one")
        );
        assert!(
            !explain(&why, Circumstances::default())
                .details
                .contains("gang-size")
        );
        assert!(
            !explain(&Why::TeamStopped, implied)
                .details
                .contains("gang-size"),
            "it may fit yet"
        );
    }

    #[test]
    fn what_is_not_understood_is_named_where_it_may_be_the_cause() {
        let unmodelled = ["spec.volumes[0] (data)".to_owned()];
        let faults = ["Team/research: spec.quota[0]".to_owned()];
        let circumstances = Circumstances {
            is_implied_gang: false,
            least_of: None,
            unmodelled: &unmodelled,
            faults: &faults,
            elder: None,
            remedies: None,
        };
        let no_quota = Why::NoQuotaForResource {
            resource: Resource::Gpus,
            flavors: vec![],
        };
        let no_place = Why::PlacementImpossible {
            pods: 2,
            fit: 1,
            is_fit_partial: false,
            level: None,
            nodes: 4,
            excluded: vec![],
        };
        for (why, named) in [(&no_quota, "Team/research"), (&no_place, "spec.volumes[0]")] {
            let details = explain(why, circumstances).details;
            assert!(details.contains(named), "{details}");
            assert_eq!(
                details.contains("Team/research"),
                details.contains("not understood"),
                "{details}"
            );
        }
        let told = explain(&Why::TeamStopped, circumstances).details;
        assert!(
            !told.contains("research") && !told.contains("volumes"),
            "{told}"
        );
    }

    #[test]
    fn details_are_cut_where_the_next_byte_is_too_many() {
        let told = |field: usize| {
            let unmodelled = ["x".repeat(field)];
            let circumstances = Circumstances {
                unmodelled: &unmodelled,
                ..Circumstances::default()
            };
            let why = Why::PlacementImpossible {
                pods: 1,
                fit: 0,
                is_fit_partial: false,
                level: None,
                nodes: 1,
                excluded: vec![],
            };
            explain(&why, circumstances).details
        };
        let own = told(1).len() - 1;
        let whole = told(DETAILS_BYTES - own);
        assert_eq!((whole.len(), whole.ends_with('x')), (DETAILS_BYTES, true));
        let cut = told(DETAILS_BYTES - own + 1);
        assert!(cut.len() <= DETAILS_BYTES && cut.ends_with('…'));
    }
}
