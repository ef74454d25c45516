//! When a fault is over.

use super::{class::FaultClass, condition::Condition, fault::Fault, observation::Scope};

/// What was done, or has come about, that may have mended a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proof {
    /// Whoever used it is gone.
    Idle,
    /// NVLink works again.
    LinksWork,
    /// The GPU was reset.
    Reset,
    /// The machine was started anew.
    Reboot,
    /// A person has looked, and says so.
    Operator,
}

impl Proof {
    /// Whether it mends faults of this class.
    pub fn heals(self, class: FaultClass) -> bool {
        match class {
            FaultClass::Info | FaultClass::App => true,
            FaultClass::Contained => self != Self::LinksWork,
            FaultClass::Link => self != Self::Idle,
            FaultClass::Reset => self >= Self::Reset,
            FaultClass::Reboot => self >= Self::Reboot,
            FaultClass::Unknown | FaultClass::Retire => self == Self::Operator,
        }
    }
}

/// A recovery that is to be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// What was done.
    pub proof: Proof,
    /// What it was done to.
    pub scope: Scope,
    /// [`super::FaultState::mark`] before it was begun: what was seen after that is newer than the recovery, and stays.
    pub mark: u64,
}

impl Recovery {
    /// Whether a fault is over by it.
    pub fn mends(&self, fault: &Fault) -> bool {
        self.proof.heals(fault.class) && self.scope.holds(fault.scope) && fault.newest <= self.mark
    }
}

/// How the GPU is found after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Validation<'a> {
    /// What it says of itself.
    pub condition: &'a Condition,
    /// Whether the fabric manager is done with it, where there is one.
    pub has_fabric: bool,
    /// How many NVLinks were active at best ([`super::GpuFaults::best_links`]).
    pub best_links: Option<u32>,
}

/// Why a GPU is not believed to be mended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not mended: {0}")]
pub struct NotValid(pub String);

impl Validation<'_> {
    /// Whether the GPU can be used again.
    pub fn check(&self, proof: Proof) -> Result<(), NotValid> {
        let condition = self.condition;
        let mut wrong = Vec::new();
        if let Some(action) = condition.recovery_action.filter(|action| *action != 0) {
            wrong.push(format!("its recovery action is {action}"));
        }
        // Who cannot mend that leaves the fault that the look found of it, which keeps the GPU out of use. It holds up nothing else: the others
        // of the node do not wait for a GPU that is to be exchanged.
        if condition.row_remap_failure == Some(true) && proof.heals(FaultClass::Retire) {
            wrong.push("a row of its memory could not be replaced".to_owned());
        }
        // Who only left a slice did not reset the GPU; what is pending waits for that, and harms nobody until then.
        if condition.row_remap_pending == Some(true) && proof >= Proof::Reset {
            wrong.push("a row of its memory is still to be replaced".to_owned());
        }
        if !self.has_fabric {
            wrong.push("the fabric manager is not done with it".to_owned());
        }
        let links = self.best_links.zip(condition.active_links);
        if let Some((best, now)) = links
            && now < best
            && proof != Proof::Idle
        {
            wrong.push(format!("{now} of {best} NVLinks are active"));
        }
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(NotValid(wrong.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_has_its_proof() {
        use Proof::{Idle, LinksWork, Operator, Reboot, Reset};
        let all = [Idle, LinksWork, Reset, Reboot, Operator];
        for (class, heal) in [
            (FaultClass::Info, &all[..]),
            (FaultClass::App, &all[..]),
            (FaultClass::Contained, &[Idle, Reset, Reboot, Operator]),
            (FaultClass::Link, &[LinksWork, Reset, Reboot, Operator]),
            (FaultClass::Unknown, &[Operator]),
            (FaultClass::Reset, &[Reset, Reboot, Operator]),
            (FaultClass::Reboot, &[Reboot, Operator]),
            (FaultClass::Retire, &[Operator]),
        ] {
            for proof in all {
                assert_eq!(
                    proof.heals(class),
                    heal.contains(&proof),
                    "{class} {proof:?}"
                );
            }
        }
    }

    #[test]
    fn a_gpu_that_says_that_something_is_wrong_is_not_mended_whoever_says_so() {
        // What it is made to say, and what is told of that.
        type Breaking = (fn(&mut Condition, &mut bool), &'static str);
        let broken: [Breaking; 5] = [
            (|it, _| it.recovery_action = Some(4), "recovery action is 4"),
            (
                |it, _| it.row_remap_failure = Some(true),
                "could not be replaced",
            ),
            (
                |it, _| it.row_remap_pending = Some(true),
                "still to be replaced",
            ),
            (|it, _| it.active_links = Some(17), "17 of 18"),
            (|_, fabric| *fabric = false, "fabric manager"),
        ];
        for (breaks, cause) in broken {
            let (mut condition, mut has_fabric) = (Condition::default(), true);
            let check = |condition: &Condition, has_fabric| {
                let validation = Validation {
                    condition,
                    has_fabric,
                    best_links: Some(18),
                };
                validation.check(Proof::Operator)
            };
            assert_eq!(check(&condition, has_fabric), Ok(()));
            breaks(&mut condition, &mut has_fabric);
            let error = check(&condition, has_fabric).unwrap_err().to_string();
            assert!(error.contains(cause), "{error}");
        }
    }
}
