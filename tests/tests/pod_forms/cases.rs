//! What is expected of each form. `docs/pods.md` says the same, in the same words.

use std::fmt;

use muster_api::Reason;

use crate::TEAM;

/// One way to write a GPU pod.
#[derive(Debug)]
pub(crate) struct Case {
    /// Its file in `docs/pods`, without ending.
    pub(crate) form: &'static str,
    /// What becomes of it.
    pub(crate) outcome: Outcome,
}

/// What becomes of a manifest; written as the guide says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// So many gangs of so many pods each start, charged with so many GPUs together.
    Starts { gangs: usize, size: i32, gpus: i64 },
    /// So many gangs of so many pods each wait with this reason.
    Waits {
        gangs: usize,
        size: i32,
        reason: Reason,
    },
    /// Of two gangs of one pod each, one starts, charged with one GPU, and the other waits with this reason.
    OneWaits(Reason),
    /// The API server refuses it with this reason, and says this of what would be right.
    Refused(Reason, &'static str),
    /// Its pods run as if Muster were not there.
    NotManaged,
}

impl Case {
    /// The namespace in which it is made; it has no other.
    pub(crate) fn namespace(&self) -> String {
        format!("form-{}", self.form)
    }

    /// The Team of that namespace.
    pub(crate) fn team(&self) -> Option<&'static str> {
        let waits_for_team = matches!(
            self.outcome,
            Outcome::Waits {
                reason: Reason::NoTeam,
                ..
            }
        );
        (!waits_for_team).then_some(TEAM)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gangs = |gangs: usize, size: i32| match gangs {
            1 => format!("a gang of {size}"),
            _ => format!("{gangs} gangs of {size}"),
        };
        match *self {
            Self::Starts {
                gangs: number,
                size,
                gpus,
            } => {
                let plural = if gpus == 1 { "" } else { "s" };
                write!(formatter, "{}: {gpus} GPU{plural}", gangs(number, size))
            }
            Self::Waits {
                gangs: number,
                size,
                reason,
            } => {
                let waits = if number == 1 { "waits" } else { "wait" };
                write!(formatter, "{} {waits}: `{reason}`", gangs(number, size))
            }
            Self::OneWaits(reason) => {
                write!(
                    formatter,
                    "2 gangs of 1: 1 GPU; one of them waits: `{reason}`"
                )
            }
            Self::Refused(reason, _) => write!(formatter, "refused: `{reason}`"),
            Self::NotManaged => formatter.write_str("not managed"),
        }
    }
}

const fn starts(form: &'static str, gangs: usize, size: i32, gpus: i64) -> Case {
    let outcome = Outcome::Starts { gangs, size, gpus };
    Case { form, outcome }
}

const fn waits(form: &'static str, gangs: usize, size: i32, reason: Reason) -> Case {
    let outcome = Outcome::Waits {
        gangs,
        size,
        reason,
    };
    Case { form, outcome }
}

const fn becomes(form: &'static str, outcome: Outcome) -> Case {
    Case { form, outcome }
}

/// The forms, in the order of the guide.
pub(crate) const CASES: &[Case] = &[
    starts("pod-claim-template", 1, 1, 1),
    starts("pod-claim-by-name", 1, 1, 1),
    starts("pod-containers-share", 1, 1, 1),
    starts("pod-two-claims", 1, 1, 3),
    starts("pod-several-requests", 1, 1, 3),
    starts("pod-init-container", 1, 1, 1),
    starts("pod-sidecar", 1, 1, 1),
    starts("pod-selector", 1, 1, 1),
    starts("pod-node-affinity", 1, 1, 1),
    becomes("pods-shared-claim", Outcome::OneWaits(Reason::ClaimShared)),
    waits("pod-all-devices", 1, 1, Reason::RequestNotUnderstood),
    starts("pod-first-available", 1, 1, 2),
    starts("pod-vram", 1, 1, 1),
    starts("pod-gpus", 1, 1, 4),
    starts("pod-vram-container", 1, 1, 1),
    starts("pods-gang", 1, 3, 2),
    starts("pods-gang-shared-claim", 1, 2, 1),
    becomes(
        "pods-gang-without-size",
        Outcome::Refused(Reason::InvalidValue, "muster.dev/gang-size"),
    ),
    starts("job", 1, 1, 1),
    starts("job-indexed", 1, 2, 4),
    starts("job-in-turns", 2, 1, 2),
    starts("job-parallel", 3, 1, 3),
    starts("job-gang-size", 1, 3, 3),
    starts("job-one-by-one", 3, 1, 3),
    starts("job-min-count", 1, 4, 4),
    becomes(
        "job-annotations-misplaced",
        Outcome::Refused(Reason::InvalidValue, "spec.template.metadata.annotations"),
    ),
    starts("cron-job", 1, 1, 1),
    starts("deployment", 2, 1, 2),
    becomes(
        "deployment-shared-claim",
        Outcome::OneWaits(Reason::ClaimShared),
    ),
    starts("deployment-gang", 1, 2, 4),
    starts("stateful-set", 2, 1, 2),
    starts("stateful-set-gang", 1, 2, 2),
    waits("stateful-set-gang-ordered", 1, 2, Reason::MissingPods),
    starts("plugin-limits", 1, 1, 1),
    starts("plugin-requests-and-limits", 1, 1, 1),
    starts("plugin-two-containers", 1, 1, 3),
    starts("plugin-init-container", 1, 1, 1),
    waits("plugin-mig", 1, 1, Reason::NoQuotaForResource),
    waits("plugin-and-claim", 1, 1, Reason::RequestNotUnderstood),
    starts("plugin-deployment", 2, 1, 2),
    starts("plugin-job", 1, 2, 16),
    starts("device-class-gpus", 1, 1, 2),
    becomes(
        "device-class-resource",
        Outcome::Refused(Reason::RequestNotUnderstood, "spec.resourceClaims"),
    ),
    becomes(
        "pod-node-name",
        Outcome::Refused(Reason::NotPermitted, "spec.nodeSelector"),
    ),
    becomes(
        "pod-visible-devices",
        Outcome::Refused(Reason::NotPermitted, "by a ResourceClaim"),
    ),
    waits("namespace-without-team", 1, 1, Reason::NoTeam),
    becomes("pod-without-gpu", Outcome::NotManaged),
];
