//! What an administrator says about MIG, as it concerns the GPUs of this node. How it is read, and what of it holds for a node, is the same for
//! every program: [`muster_cluster::mig_settings`].

pub use muster_cluster::mig_settings::{
    Cut, LayoutEntry, Mode, NodeRule, Policy, Settings, Toggle,
};

use super::layout::Goal;
use crate::{inventory::KnownGpu, prepare::SliceMode};

/// What holds for a node, said of its GPUs.
pub trait OnGpus {
    /// Who makes the slices that claims are given.
    fn slice_mode(&self) -> SliceMode;

    /// Whether the MIG mode of this GPU may be switched.
    fn may_toggle(&self, known: &KnownGpu) -> bool;

    /// What is to become of this GPU where it stands idle; `None`: it stays as it is. With `Off` slices are made for nobody, so one that may be
    /// switched is made whole, from which `Dynamic` may have left it.
    fn goal(&self, known: &KnownGpu) -> Option<Goal>;
}

impl OnGpus for Policy {
    fn slice_mode(&self) -> SliceMode {
        match self.mode {
            Mode::Off | Mode::Static => SliceMode::Static,
            Mode::Dynamic => SliceMode::Dynamic,
        }
    }

    fn may_toggle(&self, known: &KnownGpu) -> bool {
        self.toggle == Toggle::WhenIdle && known.can_toggle()
    }

    fn goal(&self, known: &KnownGpu) -> Option<Goal> {
        let cut = self.cut(&known.gpu.device_name()).cloned();
        let is_left = || self.mode == Mode::Off && known.is_in_mig_mode() && self.may_toggle(known);
        cut.map(Goal::Cut)
            .or_else(|| is_left().then_some(Goal::Whole))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use muster_device::{Gpu, Listed, ListedGpu, MigFacts};
    use serde_json::json;

    use super::*;
    use crate::inventory::{
        KnownGpus,
        fixtures::{gpu, h100},
    };

    fn known(mig: MigFacts, cuda_compute_capability: (u32, u32)) -> KnownGpu {
        let gpu = Gpu {
            mig: Some(mig),
            cuda_compute_capability,
            ..gpu("GPU-0", 0, "0000:01:00.0")
        };
        let listed = Listed {
            gpus: vec![ListedGpu { gpu, silent: None }],
            unidentified: Vec::new(),
        };
        let known = KnownGpus::default().after("boot", &listed);
        known.gpus.into_iter().next().unwrap()
    }

    #[test]
    fn with_off_and_when_idle_a_gpu_that_is_left_in_mig_mode_is_made_whole_but_not_ampere_nor_beside_mig_manager()
     {
        let (hopper, ampere) = ((9, 0), (8, 0));
        for (mode, toggle, capability, is_in_mig_mode, manager, is_made_whole) in [
            ("Off", "WhenIdle", hopper, true, false, true),
            ("Off", "Never", hopper, true, false, false),
            ("Off", "WhenIdle", ampere, true, false, false),
            ("Off", "WhenIdle", hopper, false, false, false),
            ("Off", "WhenIdle", hopper, true, true, false),
            ("Static", "WhenIdle", hopper, true, false, false),
            ("Dynamic", "WhenIdle", hopper, true, false, false),
        ] {
            let text = json!({"mode": mode, "toggle": toggle}).to_string();
            let manager = manager.then(|| {
                let deployed = "nvidia.com/gpu.deploy.mig-manager";
                (deployed.to_owned(), "true".to_owned())
            });
            let labels: BTreeMap<String, String> = manager.into_iter().collect();
            let policy = Settings::parse(&text).unwrap().policy(&labels);
            let goal = policy.goal(&known(h100(is_in_mig_mode), capability));
            let expected = is_made_whole.then_some(Goal::Whole);
            assert_eq!(goal, expected, "{text} {capability:?} {labels:?}");
        }
        let layouts = json!({"large": [{"slices": {"3g.40gb": 2}}]});
        let text = json!({"mode": "Static", "layout": "large", "layouts": layouts}).to_string();
        let policy = Settings::parse(&text).unwrap().policy(&BTreeMap::new());
        let goal = policy.goal(&known(h100(true), hopper));
        assert!(matches!(goal, Some(Goal::Cut(_))), "{goal:?}");
    }
}
