//! What is seen of a GPU without the lock of the node, and what that is worth under it.
//!
//! NVML may take a fifth of a second to answer, or the limit where a GPU hangs. So nobody asks it under the lock: a GPU is looked at first
//! ([`super::Effect::Look`]), and the turn that decides by that has it verified by what costs nothing.
//!
//! # What may have changed since the look
//!
//! * **The slices of the GPU, or its mode, by us**: a claim's slice, a step to the declared layout, a slice that nothing tells of; in this
//!   instance or in another. Whoever changes a GPU holds its lock, and counts the change when he takes it, before he asks NVML for anything.
//!   A look notes the count while nobody has that lock, and so does whoever verifies it. Two equal counts: no change has begun before the
//!   look that had not ended, and none has begun since. Whoever changes a GPU for no claim takes its lock under that of the node, so between
//!   verifying and recording none begins; one that is made for another claim leaves the Units of this one alone, for both are recorded.
//! * **Who uses it**: no lock ever kept a process from starting. What the lock keeps is who holds what, and that is read under it. A Unit
//!   that changed hands since the look was given back by whoever had it, and he looked before that, after the Unprepare had come, so after
//!   the kubelet had ceased to start containers with it. He saw nobody, or it would be recorded still. A give-back is decided by a look
//!   since which nobody has left a mark on the record: else it looks again. Containers are looked for under the lock, in cgroups.
//! * **What an administrator makes by hand**: nothing counts that. What he makes before the look is seen; what he makes after it is found
//!   before the slice is made, under the lock of the GPU, and refused there (`slice`).
//!
//! A look that comes late, or twice, is one of an earlier moment: its count tells. One that never comes is given up by the call's own end.

use std::{collections::BTreeMap, sync::Arc};

use muster_device::{MigInstance, Process};

use super::{
    disk::{Slices, Unit},
    effect::{LiveSlices, Probe},
};

/// What was seen of a GPU. One that is not there any more has no process and no slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sight {
    /// How many changes of the GPU had begun when it was looked at. An error if one was under way, or nobody can tell: then no claim is
    /// recorded by what was seen.
    pub changes: Result<u64, String>,
    /// Processes on it; or why NVML does not tell.
    pub processes: Result<Vec<Process>, String>,
    /// Its slices; or why NVML does not tell.
    pub live: Result<Vec<MigInstance>, String>,
}

/// What was seen, by UUID of the GPU.
pub type Sights = BTreeMap<String, Arc<Sight>>;

impl Sight {
    /// A process that uses a Unit of this GPU, but for bystanders.
    pub fn user_of(
        &self,
        unit: &Unit,
        is_bystander: impl Fn(u32) -> bool,
    ) -> Result<Option<u32>, String> {
        let mut processes = self.processes.clone()?;
        processes.retain(|process| !is_bystander(process.pid));
        if !asks_for_slices(unit, &processes) {
            return Ok(processes.first().map(|process| process.pid));
        }
        let live = self.live.as_ref().map_err(Clone::clone)?;
        Ok(user(unit, &processes, live))
    }
}

/// Whether only the slices of the GPU tell which of these processes use a Unit of it.
pub(crate) fn asks_for_slices(unit: &Unit, processes: &[Process]) -> bool {
    unit.slices != Slices::ALL && !processes.is_empty()
}

/// A process that uses a Unit. One of which NVML does not say which GPU instance it is on may be on any.
pub(crate) fn user(unit: &Unit, processes: &[Process], live: &[MigInstance]) -> Option<u32> {
    let lies_elsewhere = |number: u32| {
        let mut instances = live.iter();
        let instance = instances.find(|instance| instance.gpu_instance == number);
        instance.is_some_and(|instance| !unit.overlaps_placement(instance.placement))
    };
    let mut users = processes.iter();
    let user = users.find(|process| {
        unit.slices == Slices::ALL || !process.gpu_instance.is_some_and(lies_elsewhere)
    });
    user.map(|process| process.pid)
}

/// What of the sights counts under the lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Those that count.
    pub sights: Sights,
    /// The slices of each GPU. One that was changed since it was looked at is left out: it is looked at again.
    pub live: LiveSlices,
    /// Why none counts: a GPU is being changed, or that cannot be told.
    pub unknown: Option<String>,
}

impl Verified {
    /// Compares each sight with `changes`, which counts as [`Sight::changes`] does, now. What is recorded already nobody changes for others:
    /// about that every sight counts.
    pub fn of(
        probe: Option<&Probe>,
        sights: &Sights,
        changes: impl Fn(&str) -> Result<u64, String>,
    ) -> Self {
        let mut verified = Self::default();
        for (gpu, sight) in sights {
            let compared = match probe {
                Some(Probe::Recorded(_)) => Ok(true),
                Some(Probe::Units(_)) | None => sight
                    .changes
                    .clone()
                    .and_then(|then| changes(gpu).map(|now| now == then)),
            };
            let live = match compared {
                Ok(true) => {
                    verified.sights.insert(gpu.clone(), Arc::clone(sight));
                    sight.live.clone()
                }
                Ok(false) => continue,
                Err(cause) => {
                    verified.unknown.get_or_insert_with(|| cause.clone());
                    Err(cause)
                }
            };
            verified.live.insert(gpu.clone(), live);
        }
        verified
    }
}

#[cfg(test)]
mod tests {
    use muster_device::Placement;

    use super::*;

    fn instance(number: u32, start: u32) -> MigInstance {
        MigInstance {
            placement: Placement { start, size: 1 },
            gpu_instance: number,
            compute_instance: Some(0),
            is_divided: false,
            profile: 19,
            uuid: Some(format!("MIG-{number}")),
        }
    }

    fn sight(changes: Result<u64, String>) -> Arc<Sight> {
        Arc::new(Sight {
            changes,
            processes: Ok(Vec::new()),
            live: Ok(vec![instance(1, 0)]),
        })
    }

    #[test]
    fn a_process_uses_the_units_that_its_slice_overlaps_and_any_if_it_does_not_say_which() {
        let slice = |start: u32| Unit::slice("GPU-0", Placement { start, size: 1 }, 1);
        let process = |gpu_instance: Option<u32>| Process {
            pid: 7,
            gpu_instance,
        };
        for (gpu_instance, unit, is_user) in [
            (Some(1), slice(0), true),
            (Some(1), slice(1), false),
            // A number that no slice has.
            (Some(9), slice(1), true),
            (None, slice(1), true),
            (Some(1), Unit::whole("GPU-0"), true),
        ] {
            let seen = Sight {
                processes: Ok(vec![process(gpu_instance)]),
                ..(*sight(Ok(0))).clone()
            };
            let expected = is_user.then_some(7);
            let case = format!("{gpu_instance:?} {unit}");
            assert_eq!(seen.user_of(&unit, |_| false), Ok(expected), "{case}");
            assert_eq!(seen.user_of(&unit, |pid| pid == 7), Ok(None), "{case}");
        }
    }

    #[test]
    fn slices_that_are_not_told_matter_only_where_they_tell_whose_a_process_is() {
        let seen = |processes: Vec<Process>| Sight {
            changes: Ok(0),
            processes: Ok(processes),
            live: Err("no answer".to_owned()),
        };
        let slice = Unit::slice("GPU-0", Placement { start: 0, size: 1 }, 1);
        assert_eq!(seen(Vec::new()).user_of(&slice, |_| false), Ok(None));
        let process = Process {
            pid: 7,
            gpu_instance: Some(1),
        };
        seen(vec![process]).user_of(&slice, |_| false).unwrap_err();
        let whole = Unit::whole("GPU-0");
        assert_eq!(seen(vec![process]).user_of(&whole, |_| false), Ok(Some(7)));
    }

    #[test]
    fn a_sight_counts_until_a_change_of_its_gpu_begins_and_not_while_one_is_under_way() {
        let busy = || Err("it is being changed".to_owned());
        let units = Probe::Units(Vec::new());
        let recorded = Probe::Recorded("c".to_owned());
        for (then, now, probe, is_listed, is_unknown) in [
            (Ok(3), Ok(3), Some(&units), true, false),
            (Ok(3), Ok(3), None, true, false),
            (Ok(3), Ok(4), Some(&units), false, false),
            (Ok(3), Ok(4), None, false, false),
            (busy(), Ok(3), Some(&units), true, true),
            (Ok(3), busy(), Some(&units), true, true),
            (Ok(3), Ok(4), Some(&recorded), true, false),
            (busy(), busy(), Some(&recorded), true, false),
        ] {
            let sights = Sights::from([("GPU-0".to_owned(), sight(then.clone()))]);
            let verified = Verified::of(probe, &sights, |_| now.clone());
            let case = format!("{then:?} {now:?} {probe:?}");
            assert_eq!(verified.live.contains_key("GPU-0"), is_listed, "{case}");
            assert_eq!(verified.unknown.is_some(), is_unknown, "{case}");
            let counts = is_listed && !is_unknown;
            assert_eq!(verified.sights.contains_key("GPU-0"), counts, "{case}");
        }
    }
}
