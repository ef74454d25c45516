//! How a GPU is found when it is looked at: faults that no event told, and whether one that was told is over.

use super::{
    class::FaultClass,
    observation::{Cause, Observation, Scope, recovery_class},
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
}

impl Condition {
    /// What is wrong with it. `links`: how many NVLinks were active at best since the machine was started.
    pub fn observations(&self, links: Option<u32>) -> Vec<Observation> {
        let action = self.recovery_action;
        let verdict = action
            .and_then(|action| Some((recovery_class(action)?, Cause::RecoveryAction(action))));
        let is_so = |told: Option<bool>| told == Some(true);
        let down = links
            .zip(self.active_links)
            .map_or(0, |(best, now)| best.saturating_sub(now));
        let narrow = self.pcie_lanes.filter(|(lanes, most)| lanes < most);
        let found = [
            verdict,
            is_so(self.row_remap_failure).then_some((FaultClass::Retire, Cause::RowRemapFailure)),
            is_so(self.row_remap_pending).then_some((FaultClass::Info, Cause::RowRemapPending)),
            (down > 0).then_some((FaultClass::Link, Cause::LinksDown(down))),
            narrow.map(|(lanes, most)| (FaultClass::Info, Cause::NarrowBus { lanes, most })),
            is_so(self.is_throttled).then_some((FaultClass::Info, Cause::Throttled)),
        ];
        let found = found.into_iter().flatten();
        found
            .map(|(class, cause)| Observation {
                class,
                scope: Scope::Gpu,
                cause,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        FaultClass::{Info, Link, Reboot, Retire},
        *,
    };

    #[test]
    fn a_look_at_a_gpu_tells_what_no_event_did() {
        let healthy = Condition {
            recovery_action: Some(0),
            row_remap_pending: Some(false),
            row_remap_failure: Some(false),
            active_links: Some(18),
            pcie_lanes: Some((16, 16)),
            is_throttled: Some(false),
        };
        assert!(healthy.observations(Some(18)).is_empty());
        assert!(Condition::default().observations(Some(18)).is_empty());
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
            let found = condition.observations(Some(18));
            assert_eq!(found.len(), 1, "{condition:?}");
            assert_eq!((found[0].class, found[0].scope), (class, Scope::Gpu));
            assert!(found[0].cause.lasts());
        }
        // More links than before are no fault, nor is a number to compare with nothing.
        assert!(healthy.observations(Some(12)).is_empty());
        assert!(healthy.observations(None).is_empty());
    }
}
