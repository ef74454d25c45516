//! How a GPU is found when it is looked at: faults that no event told, and whether one that was told is over.

use serde::{Deserialize, Serialize};

use super::{
    catalogue::Catalogue,
    observation::{Cause, Observation, Scope, recovery_class},
    signal::Subject,
};

/// How a GPU is found. `None`: it does not tell, because the part or the driver cannot, or because it is cut into slices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// What the driver says has to be done with it (NVML's field 230); 0: nothing.
    pub recovery_action: Option<u32>,
    /// Whether a row of memory is replaced with the next reset.
    pub row_remap_pending: Option<bool>,
    /// Whether one could not be replaced.
    pub row_remap_failure: Option<bool>,
    /// How many of its NVLinks are active. In MIG mode none needs to be, and it is not asked.
    pub active_links: Option<u32>,
    /// PCIe lanes now, and how many it could have.
    pub pcie_lanes: Option<(u32, u32)>,
    /// Whether it is slowed down for heat or for power beyond its limit.
    pub is_throttled: Option<bool>,
    /// Errors that it has counted.
    pub errors: Errors,
}

/// Errors that a GPU has counted since its driver was loaded, or it was reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Errors {
    /// Of its memory, corrected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub corrected_ecc: Option<u64>,
    /// Of its memory, and not corrected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncorrected_ecc: Option<u64>,
    /// Of all its NVLinks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub links: Option<u64>,
}

impl Errors {
    /// These, with what was told before where nothing is told now.
    pub(super) fn or(self, before: Self) -> Self {
        Self {
            corrected_ecc: self.corrected_ecc.or(before.corrected_ecc),
            uncorrected_ecc: self.uncorrected_ecc.or(before.uncorrected_ecc),
            links: self.links.or(before.links),
        }
    }

    /// What has grown since it was looked at before. What is less was begun anew, and what was not told before says nothing.
    pub(super) fn grown_since(&self, before: &Self) -> impl Iterator<Item = Cause> {
        let grows = |before: Option<u64>, now: Option<u64>| {
            before.zip(now).is_some_and(|(before, now)| before < now)
        };
        let causes = [
            (
                Cause::CorrectedEcc,
                grows(before.corrected_ecc, self.corrected_ecc),
            ),
            (
                Cause::UncorrectedEcc,
                grows(before.uncorrected_ecc, self.uncorrected_ecc),
            ),
            (Cause::LinkErrors, grows(before.links, self.links)),
        ];
        let causes = causes.into_iter().filter(|(_, is_so)| *is_so);
        causes.map(|(cause, _)| cause)
    }
}

impl Condition {
    /// What is wrong with it. `links`: how many NVLinks were active at best since the machine was started; `before`: the errors that it had
    /// counted when it was looked at before.
    pub fn observations(
        &self,
        catalogue: &Catalogue,
        links: Option<u32>,
        before: &Errors,
    ) -> Vec<Observation> {
        let action = self.recovery_action;
        let verdict = action.and_then(|action| {
            Some(Observation {
                class: recovery_class(action)?,
                scope: Scope::Gpu,
                cause: Cause::RecoveryAction(action),
            })
        });
        let is_so = |told: Option<bool>| told == Some(true);
        let down = links
            .zip(self.active_links)
            .map_or(0, |(best, now)| best.saturating_sub(now));
        let narrow = self.pcie_lanes.filter(|(lanes, most)| lanes < most);
        let found = [
            is_so(self.row_remap_failure).then_some(Cause::RowRemapFailure),
            is_so(self.row_remap_pending).then_some(Cause::RowRemapPending),
            (down > 0).then_some(Cause::LinksDown(down)),
            narrow.map(|(lanes, most)| Cause::NarrowBus { lanes, most }),
            is_so(self.is_throttled).then_some(Cause::Throttled),
        ];
        let found = found.into_iter().flatten();
        let found = found.chain(self.errors.grown_since(before));
        let found = found.filter_map(|cause| match cause.subject() {
            Some(Subject::Signal(signal)) => Some(Observation {
                class: catalogue.class_of(signal),
                scope: Scope::Gpu,
                cause,
            }),
            _ => None,
        });
        verdict.into_iter().chain(found).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::FaultClass::{Info, Link, Reboot, Retire},
        *,
    };

    fn found(condition: &Condition, links: Option<u32>) -> Vec<Observation> {
        condition.observations(&Catalogue::shipped(), links, &Errors::default())
    }

    #[test]
    fn a_look_at_a_gpu_tells_what_no_event_did() {
        let healthy = Condition {
            recovery_action: Some(0),
            row_remap_pending: Some(false),
            row_remap_failure: Some(false),
            active_links: Some(18),
            pcie_lanes: Some((16, 16)),
            is_throttled: Some(false),
            errors: Errors::default(),
        };
        assert!(found(&healthy, Some(18)).is_empty());
        assert!(found(&Condition::default(), Some(18)).is_empty());
        let broken: [(fn(&mut Condition), _); 6] = [
            (|it| it.recovery_action = Some(2), Reboot),
            (|it| it.row_remap_failure = Some(true), Retire),
            (|it| it.row_remap_pending = Some(true), Info),
            (|it| it.active_links = Some(17), Link),
            (|it| it.pcie_lanes = Some((8, 16)), Info),
            (|it| it.is_throttled = Some(true), Info),
        ];
        for (breaks, class) in broken {
            let mut condition = healthy.clone();
            breaks(&mut condition);
            let found = found(&condition, Some(18));
            assert_eq!(found.len(), 1, "{condition:?}");
            assert_eq!((found[0].class, found[0].scope), (class, Scope::Gpu));
            assert!(found[0].cause.lasts());
        }
        // More links than before are no fault, nor is a number to compare with nothing.
        assert!(found(&healthy, Some(12)).is_empty());
        assert!(found(&healthy, None).is_empty());
    }

    #[test]
    fn counters_of_errors_tell_by_growing() {
        let errors = |corrected, uncorrected, links| Errors {
            corrected_ecc: corrected,
            uncorrected_ecc: uncorrected,
            links,
        };
        let before = errors(Some(5), Some(0), None);
        for (now, expected) in [
            (errors(Some(5), Some(0), Some(9)), &[][..]),
            (errors(None, None, None), &[]),
            // It was reset.
            (errors(Some(0), Some(0), Some(0)), &[]),
            (errors(Some(6), Some(0), None), &[Cause::CorrectedEcc]),
            (
                errors(Some(6), Some(1), None),
                &[Cause::CorrectedEcc, Cause::UncorrectedEcc],
            ),
        ] {
            let condition = Condition {
                errors: now,
                ..Condition::default()
            };
            let seen = condition.observations(&Catalogue::shipped(), None, &before);
            let causes: Vec<Cause> = seen.iter().map(|seen| seen.cause).collect();
            assert_eq!(causes, expected, "{now:?}");
            assert!(seen.iter().all(|seen| seen.class == Info));
            assert!(seen.iter().all(|seen| !seen.cause.lasts()));
        }
        let links = Errors {
            links: Some(2),
            ..Errors::default()
        };
        let more = Errors {
            links: Some(3),
            ..links
        };
        assert!(more.grown_since(&links).eq([Cause::LinkErrors]));
    }
}
