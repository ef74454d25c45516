//! What is wrong with the GPUs of a node, whoever knows of it, and what the kernel's log says of it.
//!
//! This is how the machine is. What its driver has heard, remembers and publishes is told apart ([`crate::drivers`]), and S7 is judged by both.

use std::collections::{BTreeMap, BTreeSet};

use muster_dra_driver::faults::{
    Catalogue, Cause, Condition, FaultClass, Observation, Scope, of_xid,
};

/// A fault that is not mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Tells it from every other of the node.
    pub number: u64,
    /// How bad it is.
    pub class: FaultClass,
}

/// What is wrong with the GPUs of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuFaults {
    /// By number of the GPU; only such as have any.
    standing: BTreeMap<usize, Vec<Standing>>,
    /// What the kernel has logged since the machine was started: the GPU, and what was seen of it.
    log: Vec<(usize, Observation)>,
    /// GPUs that had a fault since a person mended them last.
    broken: BTreeSet<usize>,
    /// GPUs that a person has mended, and said so. Their driver has not answered yet.
    said: BTreeSet<usize>,
    numbers: u64,
}

impl GpuFaults {
    /// Something is logged of a GPU. If it is a fault, it stands until it is mended.
    pub fn log(&mut self, gpu: usize, class: FaultClass) {
        self.log.push((gpu, seen(class)));
        if class.is_fault() {
            self.broken.insert(gpu);
            self.numbers += 1;
            let number = self.numbers;
            let standing = self.standing.entry(gpu).or_default();
            standing.push(Standing { number, class });
        }
    }

    /// What was logged since the machine was started.
    pub fn logged(&self) -> &[(usize, Observation)] {
        &self.log
    }

    /// The faults that stand, by number of their GPU.
    pub fn standing(&self) -> &BTreeMap<usize, Vec<Standing>> {
        &self.standing
    }

    /// The GPUs that a person says are mended.
    pub fn said(&self) -> &BTreeSet<usize> {
        &self.said
    }

    /// A person mends all GPUs that had a fault, also such as a reboot has mended, and says so to the driver.
    pub fn mend(&mut self) {
        self.said.append(&mut self.broken);
        self.standing.clear();
    }

    /// The driver has answered whoever said that GPUs are mended.
    pub fn answer(&mut self) {
        self.said.clear();
    }

    /// The machine is started anew: what that mends is mended, and the log begins anew.
    pub fn reboot(&mut self) {
        self.log.clear();
        for standing in self.standing.values_mut() {
            standing.retain(|fault| !is_mended_by_reboot(fault.class));
        }
        self.standing.retain(|_, standing| !standing.is_empty());
    }

    /// The machine has other GPUs. What they have is told from what those before had.
    pub fn exchange(&mut self) {
        *self = Self {
            numbers: self.numbers,
            ..Self::default()
        };
    }

    /// What a GPU says of itself when it is looked at.
    pub fn condition(&self, gpu: usize) -> Condition {
        let has = |class| {
            let mut standing = self.standing.get(&gpu).into_iter().flatten();
            standing.any(|fault| fault.class == class)
        };
        let recovery_action = match (has(FaultClass::Reboot), has(FaultClass::Reset)) {
            (true, _) => 2,
            (false, true) => 1,
            (false, false) => 0,
        };
        Condition {
            recovery_action: Some(recovery_action),
            row_remap_failure: Some(has(FaultClass::Retire)),
            ..Condition::default()
        }
    }
}

/// By what the classes mean, and not by what the driver makes of them.
fn is_mended_by_reboot(class: FaultClass) -> bool {
    matches!(
        class,
        FaultClass::Contained | FaultClass::Link | FaultClass::Reset | FaultClass::Reboot
    )
}

/// Something that is of that class by the shipped table.
fn seen(class: FaultClass) -> Observation {
    let xid = match class {
        FaultClass::Info => 43,
        FaultClass::App => 13,
        FaultClass::Contained => 94,
        FaultClass::Link => 74,
        // In no table.
        FaultClass::Unknown => 9_999,
        FaultClass::Reset => 48,
        FaultClass::Reboot => 79,
        FaultClass::Retire => {
            return Observation {
                class,
                scope: Scope::Gpu,
                cause: Cause::RowRemapFailure,
            };
        }
    };
    of_xid(xid, None, &Catalogue::shipped(), None, |_| None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_logged_is_of_the_class_that_it_is_meant_to_be() {
        for class in FaultClass::ALL {
            assert_eq!(seen(class).class, class);
        }
    }

    #[test]
    fn a_fault_stands_until_a_person_or_a_reboot_mends_it_and_an_anomaly_never_does() {
        for class in FaultClass::ALL {
            let mut faults = GpuFaults::default();
            faults.log(1, class);
            assert_eq!(faults.standing().contains_key(&1), class.is_fault());
            let mut booted = faults.clone();
            booted.reboot();
            let outlives = matches!(class, FaultClass::Unknown | FaultClass::Retire);
            assert_eq!(!booted.standing().is_empty(), outlives, "{class}");
            assert!(booted.logged().is_empty() && booted.said().is_empty());
            faults.mend();
            assert!(faults.standing().is_empty());
            assert_eq!(faults.said().contains(&1), class.is_fault());
            assert_eq!(faults.condition(1).recovery_action, Some(0));
        }
    }
}
