//! The steps from what is there to what a GPU is to become.

use muster_device::{MigFacts, MigInstance, MigProfile, Placement};

use super::places::{Part, target};
use crate::mig::settings::Cut;

/// One change of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Switch its MIG mode on.
    SwitchOn,
    /// Switch its MIG mode off.
    SwitchOff,
    /// Remove a slice that the layout does not have, or that is not whole.
    Destroy {
        /// Number of its GPU instance.
        gpu_instance: u32,
        /// Where it lies.
        placement: Placement,
    },
    /// Make a slice.
    Create {
        /// What kind.
        profile: MigProfile,
        /// Where.
        placement: Placement,
    },
}

/// What a GPU is to become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Cut like this.
    Cut(Cut),
    /// Whole, out of MIG mode. No slice is removed for that.
    Whole,
}

impl Goal {
    /// The steps from what is there to the goal; none: it is there. An error says why they cannot lead there.
    pub fn steps(
        &self,
        mig: &MigFacts,
        live: &[MigInstance],
        awaited: &[Part],
        may_toggle: bool,
    ) -> Result<Vec<Step>, String> {
        match self {
            Self::Cut(cut) => steps(mig, live, cut, awaited, may_toggle),
            Self::Whole => steps_to_whole(mig, live, may_toggle),
        }
    }
}

/// A GPU with slices stays as it is: whoever made them wants them.
fn steps_to_whole(
    mig: &MigFacts,
    live: &[MigInstance],
    may_toggle: bool,
) -> Result<Vec<Step>, String> {
    if !mig.current {
        return Ok(Vec::new());
    }
    if !live.is_empty() {
        return Err(format!("{} slices are on it", live.len()));
    }
    if !may_toggle {
        return Err(
            "driver.mig.toggle is not WhenIdle, or it would have to be reset (Ampere)".to_owned(),
        );
    }
    Ok(vec![Step::SwitchOff])
}

/// The steps from what is there to the layout; none: it is there. An error says why they cannot lead there.
pub(super) fn steps(
    mig: &MigFacts,
    live: &[MigInstance],
    cut: &Cut,
    awaited: &[Part],
    may_toggle: bool,
) -> Result<Vec<Step>, String> {
    if !mig.current {
        return match (cut.values().all(|count| *count == 0), mig.pending, may_toggle) {
            (true, _, _) => Ok(Vec::new()),
            (_, true, _) => Err("its MIG mode is on after the next reset only".to_owned()),
            (_, false, true) => Ok(vec![Step::SwitchOn]),
            (_, false, false) => Err(
                "it is not in MIG mode, and nothing switches that: driver.mig.toggle is not WhenIdle, or it would have to be reset (Ampere)"
                    .to_owned(),
            ),
        };
    }
    let target = target(mig, live, cut, awaited)?;
    let is_wanted = |instance: &MigInstance| {
        let is_same = |(profile, placement): &(&MigProfile, Placement)| {
            profile.gpu_instance_profile == instance.profile && *placement == instance.placement
        };
        !instance.is_divided && target.iter().any(is_same)
    };
    let destroy = live.iter().filter(|instance| !is_wanted(instance));
    let destroy = destroy.map(|instance| Step::Destroy {
        gpu_instance: instance.gpu_instance,
        placement: instance.placement,
    });
    let is_there = |profile: &MigProfile, placement: Placement| {
        live.iter().any(|instance| {
            instance.compute_instance.is_some()
                && !instance.is_divided
                && instance.profile == profile.gpu_instance_profile
                && instance.placement == placement
        })
    };
    let create = target
        .iter()
        .filter(|(profile, placement)| !is_there(profile, *placement));
    let create = create.map(|(profile, placement)| Step::Create {
        profile: (*profile).clone(),
        placement: *placement,
    });
    Ok(destroy.chain(create).collect())
}
